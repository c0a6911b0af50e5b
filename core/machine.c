#include "core/machine.h"

#include "core/log.h"
#include "core/size.h"

#include <errno.h>
#include <hwloc.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { NUMBER_CHARS = 64 };

/* Reads the line. Sets errno to the reason why the file cannot be read, or 0. */
static bool read_line(const char *root, char *out, size_t chars, const char *format, va_list args) {
    char path[SW_SYSTEM_PATH_CHARS];
    const int used = snprintf(path, sizeof path, "%s", root);
    out[0] = '\0';
    errno = ENAMETOOLONG;
    if (used < 0 || (size_t)used >= sizeof path)
        return false;
    const int more = vsnprintf(path + used, sizeof path - (size_t)used, format, args);
    errno = ENAMETOOLONG;
    if (more < 0 || (size_t)(used + more) >= sizeof path)
        return false;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    errno = 0;
    const bool found = fgets(out, (int)chars, file) != NULL;
    const int error = ferror(file) ? errno : 0;
    fclose(file);
    out[found ? strcspn(out, "\n") : 0] = '\0';
    errno = error;
    return found;
}

bool sw_system_line(const char *root, char *out, size_t chars, const char *path, ...) {
    va_list args;
    va_start(args, path);
    const bool found = read_line(root, out, chars, path, args);
    va_end(args);
    return found;
}

int64_t sw_system_number(const char *root, const char *path, ...) {
    char text[NUMBER_CHARS], *end = text;
    va_list args;
    va_start(args, path);
    const bool found = read_line(root, text, sizeof text, path, args);
    va_end(args);
    if (!found)
        return -1;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    const bool is_number = end != text && errno == 0;
    errno = 0;
    return is_number && value >= 0 ? value : -1;
}

/* Limits at or above this are none: version 1 says "no limit" by a huge number. */
#define NO_LIMIT_BYTES (INT64_MAX / 2)

/* The names of the files of one cgroup version. */
struct version {
    const char *mount[2]; /* mount points of groups that limit memory, and of groups that limit processor time */
    const char *limit[2]; /* the second may be NULL */
    const char *usage;
    const char *cache[2]; /* keys of page cache in memory.stat */
    const char *nested;   /* holds 0 if a group does not limit the memory of groups within it; NULL: it always does */
    const char *quota;    /* microseconds of processor time per period */
    const char *period;   /* NULL: the period follows the quota in the same file */
};

enum { MEMORY, CPU };
static const char *const controllers_of[] = {[MEMORY] = "memory", [CPU] = "cpu"};

static const struct version unified = {.mount = {"/sys/fs/cgroup", "/sys/fs/cgroup"},
                                       .limit = {"memory.max", "memory.high"},
                                       .usage = "memory.current",
                                       .cache = {"inactive_file", "active_file"},
                                       .quota = "cpu.max"};
static const struct version legacy = {.mount = {"/sys/fs/cgroup/memory", "/sys/fs/cgroup/cpu"},
                                      .limit = {"memory.limit_in_bytes"},
                                      .usage = "memory.usage_in_bytes",
                                      .cache = {"total_inactive_file", "total_active_file"},
                                      .nested = "memory.use_hierarchy",
                                      .quota = "cpu.cfs_quota_us",
                                      .period = "cpu.cfs_period_us"};

/* Where to put the limits that are found. One of the two is NULL. */
struct found {
    struct sw_memory_limit *memory;
    struct sw_cpu_limit *cpu;
};

static void note_setting(char out[SW_CGROUP_CHARS], const char *mount, const char *group, const char *file) {
    snprintf(out, SW_CGROUP_CHARS, "%.*s%.*s/%s", 64, mount, 384, group, file);
}

/* Notes the first file that could not be read. Missing files, and files of a group that has ended, limit nothing. */
static void note_unread(struct sw_memory_limit *out, int error, const char *mount, const char *group,
                        const char *file) {
    if (error == 0 || error == ENOENT || error == ENOTDIR || error == ENODEV || out->unread_error != 0)
        return;
    out->unread_error = error;
    note_setting(out->unread, mount, group, file);
}

/* Returns the bytes of page cache, which count as used but are given back when memory is needed. */
static int64_t cache_bytes(const struct version *version, const char *root, const char *group,
                           struct sw_memory_limit *out) {
    static const char name_of_file[] = "memory.stat";
    const char *mount = version->mount[MEMORY];
    char path[SW_SYSTEM_PATH_CHARS], name[64];
    int64_t value, cache = 0;
    if (snprintf(path, sizeof path, "%s%s%s/%s", root, mount, group, name_of_file) >= (int)sizeof path)
        return 0;
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        note_unread(out, errno, mount, group, name_of_file);
        return 0;
    }
    while (fscanf(file, "%63s %" SCNd64, name, &value) == 2)
        if (strcmp(name, version->cache[0]) == 0 || strcmp(name, version->cache[1]) == 0)
            cache += value;
    fclose(file);
    return cache;
}

static void look_at_memory(const struct version *version, const char *root, const char *group,
                           struct sw_memory_limit *out) {
    const char *mount = version->mount[MEMORY];
    for (int i = 0; i < 2 && version->limit[i] != NULL; i++) {
        const int64_t limit = sw_system_number(root, "%s%s/%s", mount, group, version->limit[i]);
        note_unread(out, errno, mount, group, version->limit[i]);
        if (limit <= 0 || limit >= NO_LIMIT_BYTES)
            continue;
        const int64_t usage = sw_system_number(root, "%s%s/%s", mount, group, version->usage);
        note_unread(out, errno, mount, group, version->usage);
        const int64_t used = sw_max_i64(0, usage - cache_bytes(version, root, group, out));
        out->room_bytes = sw_min_i64(out->room_bytes, sw_max_i64(0, limit - used));
        if (limit < out->limit_bytes) {
            out->limit_bytes = limit;
            note_setting(out->setting, mount, group, version->limit[i]);
        }
    }
}

/* Reads a group's quota. No quota is the word "max", or -1 in version 1. */
static void look_at_cpu(const struct version *version, const char *root, const char *group, struct sw_cpu_limit *out) {
    const char *mount = version->mount[CPU];
    char line[64];
    int64_t quota_us = -1, period_us = -1;
    if (!sw_system_line(root, line, sizeof line, "%s%s/%s", mount, group, version->quota) ||
        sscanf(line, "%" SCNd64 " %" SCNd64, &quota_us, &period_us) < 1)
        return;
    if (version->period != NULL)
        period_us = sw_system_number(root, "%s%s/%s", mount, group, version->period);
    if (quota_us <= 0 || period_us <= 0 || (double)quota_us / (double)period_us >= out->cores)
        return;
    out->cores = (double)quota_us / (double)period_us;
    note_setting(out->setting, mount, group, version->quota);
}

static void look_at_group(const struct version *version, const char *root, const char *group, struct found out) {
    if (out.memory != NULL)
        look_at_memory(version, root, group, out.memory);
    else
        look_at_cpu(version, root, group, out.cpu);
}

/* Reads the limits of the group and of its ancestors up to the mount. A container may see its outermost group as the
 * mount itself, while the process is told a path from further out; groups that are not visible limit nothing. */
static void look_outwards(const struct version *version, const char *root, char *group, struct found out) {
    if (strstr(group, "..") != NULL || strcmp(group, "/") == 0)
        group[0] = '\0';
    for (;;) {
        look_at_group(version, root, group, out);
        char *slash = strrchr(group, '/');
        if (slash == NULL)
            return;
        *slash = '\0';
        if (out.memory != NULL && version->nested != NULL &&
            sw_system_number(root, "%s%s/%s", version->mount[MEMORY], group, version->nested) == 0)
            return;
    }
}

/* Tells whether a comma-separated list of controllers contains this one. */
static bool lists(const char *list, const char *controller) {
    const size_t length = strlen(controller);
    for (const char *at = list; at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, controller, length) == 0 && (at[length] == ',' || at[length] == '\0'))
            return true;
    }
    return false;
}

/* Reads /proc/self/cgroup, whose lines are "ID:CONTROLLERS:GROUP", with no controllers in version 2. */
static void look(const char *root, struct found out) {
    const char *controller = controllers_of[out.memory != NULL ? MEMORY : CPU];
    char path[SW_SYSTEM_PATH_CHARS], *line = NULL;
    size_t capacity = 0;
    FILE *file = snprintf(path, sizeof path, "%s/proc/self/cgroup", root) < (int)sizeof path ? fopen(path, "re") : NULL;
    if (file == NULL && out.memory != NULL)
        note_unread(out.memory, errno, "/proc", "/self", "cgroup");
    while (file != NULL && getline(&line, &capacity, file) > 0) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':'), *group = controllers == NULL ? NULL : strchr(controllers + 1, ':');
        if (group == NULL)
            continue;
        *group++ = '\0';
        if (strcmp(line, "0:") == 0)
            look_outwards(&unified, root, group, out);
        else if (lists(controllers + 1, controller))
            look_outwards(&legacy, root, group, out);
    }
    free(line);
    if (file != NULL)
        fclose(file);
}

void sw_memory_limit_read(const char *root, struct sw_memory_limit *out) {
    *out = (struct sw_memory_limit){.limit_bytes = INT64_MAX, .room_bytes = INT64_MAX};
    look(root, (struct found){.memory = out});
}

void sw_cpu_limit_read(const char *root, struct sw_cpu_limit *out) {
    *out = (struct sw_cpu_limit){.cores = INFINITY};
    look(root, (struct found){.cpu = out});
}

int sw_cpu_limit_cores(const struct sw_cpu_limit *limit, int cores) {
    return (int)fmax(1.0, fmin(cores, ceil(limit->cores)));
}

/* Returns the number of logical cores that this process may run on. */
static int cores_to_run_on(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set);
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

int sw_machine_cores(void) {
    struct sw_cpu_limit limit;
    sw_cpu_limit_read("", &limit);
    return sw_cpu_limit_cores(&limit, cores_to_run_on());
}

static sw_status read_meminfo(const char *key, int64_t *out_bytes) {
    FILE *file = fopen("/proc/meminfo", "re");
    char line[256];
    int64_t kib = -1;
    if (file == NULL)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "how much memory there is cannot be read from /proc/meminfo: %s; is /proc mounted?",
                       strerror(errno));
    while (kib < 0 && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, key, strlen(key)) == 0)
            sscanf(line + strlen(key), ": %" SCNd64, &kib);
    fclose(file);
    if (kib < 0)
        return sw_fail(SW_ERR_UNSUPPORTED, "/proc/meminfo does not tell how much memory there is: it lacks %s", key);
    *out_bytes = kib * 1024;
    return SW_OK;
}

/* Returns the machine's topology; NULL: not available. It is read once a process: that opens tens of files for each
 * core, and a start asks six times. It is never destroyed, and any thread may look at it. */
static hwloc_topology_t topology_of_machine(void) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static hwloc_topology_t kept;
    pthread_mutex_lock(&lock);
    hwloc_topology_t loaded = NULL;
    if (kept == NULL && hwloc_topology_init(&loaded) == 0) {
        if (hwloc_topology_load(loaded) == 0)
            kept = loaded;
        else
            hwloc_topology_destroy(loaded);
    }
    hwloc_topology_t found = kept;
    pthread_mutex_unlock(&lock);
    return found;
}

static void read_topology(struct sw_machine *machine) {
    hwloc_topology_t topology = topology_of_machine();
    machine->numa_nodes = 1;
    snprintf(machine->cpu, sizeof machine->cpu, "unknown");
    if (topology == NULL)
        return;
    machine->numa_nodes = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE);
    machine->physical_cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);
    const hwloc_obj_t package = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PACKAGE, 0);
    const char *model = package == NULL ? NULL : hwloc_obj_get_info_by_name(package, "CPUModel");
    if (model != NULL)
        snprintf(machine->cpu, sizeof machine->cpu, "%s", model);
}

static int64_t memlock_bytes(void) {
    struct rlimit lock;
    if (getrlimit(RLIMIT_MEMLOCK, &lock) != 0)
        return 0;
    return lock.rlim_cur >= (rlim_t)INT64_MAX ? INT64_MAX : (int64_t)lock.rlim_cur;
}

/* Fails if a limit could not be read for a reason that may pass, such as too many open files: memory beyond the limit
 * would end the process. If a container refuses a file for good, warns once. */
static sw_status check_limit(const struct sw_memory_limit *limit) {
    static atomic_flag said = ATOMIC_FLAG_INIT;
    const int error = limit->unread_error;
    if (error == EMFILE || error == ENFILE || error == ENOMEM)
        return sw_fail(SW_ERR_IO, "whether a cgroup limits this process's memory cannot be read from %s: %s",
                       limit->unread, strerror(error));
    if (error != 0 && !atomic_flag_test_and_set(&said))
        sw_log_warn("whether a cgroup limits this process's memory cannot be read from %s (%s); if it does, give "
                    "--host-memory less than the limit, beyond which the process is killed",
                    limit->unread, strerror(error));
    return SW_OK;
}

sw_status sw_machine_read_memory(struct sw_machine *out) {
    int64_t free_swap_bytes;
    *out = (struct sw_machine){0};
    SW_TRY(read_meminfo("MemTotal", &out->physical_bytes));
    SW_TRY(read_meminfo("MemAvailable", &out->available_bytes));
    SW_TRY(read_meminfo("SwapTotal", &out->swap_bytes));
    SW_TRY(read_meminfo("SwapFree", &free_swap_bytes));
    out->swap_used_bytes = out->swap_bytes - free_swap_bytes;
    sw_memory_limit_read("", &out->limit);
    SW_TRY(check_limit(&out->limit));
    out->memory_bytes = sw_min_i64(out->physical_bytes, out->limit.limit_bytes);
    out->available_bytes = sw_min_i64(out->available_bytes, out->limit.room_bytes);
    return SW_OK;
}

sw_status sw_machine_read(struct sw_machine *out) {
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    SW_TRY(sw_machine_read_memory(out));
    out->cores = sw_machine_cores();
    out->all_cores = online > out->cores ? (int)online : out->cores;
    out->memlock_bytes = memlock_bytes();
    sw_cpu_limit_read("", &out->cpu_limit);
    read_topology(out);
    return SW_OK;
}

/* The instruction set for arithmetic on the processor: the best of the machine, or a lower one that the environment
 * names. */

static const char *const names[SW_ISA_COUNT] = {"baseline", "avx2", "avx512", "avx512_bf16"};

const char *sw_isa_name(sw_isa isa) {
    return names[isa];
}

sw_status sw_isa_parse(const char *name, sw_isa *out) {
    for (int isa = 0; isa < SW_ISA_COUNT; isa++)
        if (strcmp(name, names[isa]) == 0) {
            *out = (sw_isa)isa;
            return SW_OK;
        }
    return sw_fail(SW_ERR_ARG, "there is no instruction set '%s'; there are baseline, avx2, avx512 and avx512_bf16",
                   name);
}

#if defined(__x86_64__)
/* Returns whether the machine has everything that compilers assume for x86-64-v3. */
static bool has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2");
}

/* Returns whether the machine has everything that compilers assume for x86-64-v4. */
static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

sw_isa sw_machine_isa(void) {
    if (!has_avx512())
        return has_avx2() ? SW_ISA_AVX2 : SW_ISA_BASELINE;
    return __builtin_cpu_supports("avx512bf16") ? SW_ISA_AVX512_BF16 : SW_ISA_AVX512;
}
#else
sw_isa sw_machine_isa(void) {
    return SW_ISA_BASELINE;
}
#endif

/* Returns the value of SW_CPU_ISA; NULL: not set. */
static const char *variable(void) {
    const char *name = getenv(SW_ISA_VARIABLE);
    return name != NULL && name[0] != '\0' ? name : NULL;
}

sw_status sw_isa_in_use(sw_isa *out, bool *out_named) {
    const char *name = variable();
    const sw_isa best = sw_machine_isa();
    sw_isa isa = best;
    if (name != NULL && sw_isa_parse(name, &isa) != SW_OK)
        return sw_fail_while(SW_ERR_ARG, "reading " SW_ISA_VARIABLE " in the environment");
    if (isa > best)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       SW_ISA_VARIABLE " in the environment asks for %s, which this processor lacks; its best is %s",
                       name, sw_isa_name(best));
    *out = isa;
    *out_named = name != NULL;
    return SW_OK;
}

sw_isa sw_isa_of_process(void) {
    static _Atomic int known = -1;
    int isa = atomic_load_explicit(&known, memory_order_relaxed);
    if (isa < 0) {
        isa = (int)sw_machine_isa();
        for (int lower = 0; variable() != NULL && lower < isa; lower++)
            if (strcmp(variable(), names[lower]) == 0)
                isa = lower;
        atomic_store_explicit(&known, isa, memory_order_relaxed);
    }
    return (sw_isa)isa;
}

/* NUMA nodes, their memory, and the cores near them. */

static bool is_near_one(hwloc_topology_t topology, hwloc_const_bitmap_t cores) {
    for (hwloc_obj_t node = NULL; (node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != NULL;)
        if (hwloc_bitmap_isincluded(cores, node->cpuset))
            return true;
    return false;
}

void sw_machine_bind_to_node(void *base, int64_t bytes, int numa_node) {
    hwloc_topology_t topology = topology_of_machine();
    if (topology == NULL)
        return;
    const hwloc_obj_t node = hwloc_get_numanode_obj_by_os_index(topology, (unsigned)numa_node);
    if (node != NULL)
        (void)hwloc_set_area_membind(topology, base, (size_t)bytes, node->nodeset, HWLOC_MEMBIND_BIND,
                                     HWLOC_MEMBIND_BYNODESET);
}

void sw_machine_keep_to_node(int numa_node) {
    hwloc_topology_t topology = topology_of_machine();
    hwloc_bitmap_t cores = hwloc_bitmap_alloc();
    const hwloc_obj_t node =
        topology == NULL ? NULL : hwloc_get_numanode_obj_by_os_index(topology, (unsigned)numa_node);
    if (node != NULL && cores != NULL && hwloc_get_cpubind(topology, cores, HWLOC_CPUBIND_THREAD) == 0 &&
        !is_near_one(topology, cores) && hwloc_bitmap_intersects(cores, node->cpuset)) {
        hwloc_bitmap_and(cores, cores, node->cpuset);
        (void)hwloc_set_cpubind(topology, cores, HWLOC_CPUBIND_THREAD);
    }
    hwloc_bitmap_free(cores);
}

int sw_machine_node_of_share(int number, int shares) {
    hwloc_topology_t topology = topology_of_machine();
    int node = -1;
    if (topology == NULL)
        return node;
    const int nodes = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE);
    if (nodes > 1 && shares > 1)
        node = (int)hwloc_get_obj_by_type(topology, HWLOC_OBJ_NUMANODE, (unsigned)(number * nodes / shares))->os_index;
    return node;
}

int sw_machine_node_of_bus(const char *bus) {
    return bus == NULL || bus[0] == '\0' ? -1 : (int)sw_system_number("", "/sys/bus/pci/devices/%s/numa_node", bus);
}
