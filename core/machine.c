#include "core/machine.h"

#include "core/log.h"
#include "core/size.h"
#include "core/system_file.h"

#include <errno.h>
#include <hwloc.h>
#include <inttypes.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

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

static void read_topology(struct sw_machine *machine) {
    hwloc_topology_t topology;
    machine->numa_nodes = 1;
    snprintf(machine->cpu, sizeof machine->cpu, "unknown");
    if (hwloc_topology_init(&topology) != 0)
        return;
    if (hwloc_topology_load(topology) == 0) {
        machine->numa_nodes = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE);
        machine->physical_cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);
        const hwloc_obj_t package = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PACKAGE, 0);
        const char *model = package == NULL ? NULL : hwloc_obj_get_info_by_name(package, "CPUModel");
        if (model != NULL)
            snprintf(machine->cpu, sizeof machine->cpu, "%s", model);
    }
    hwloc_topology_destroy(topology);
}

static int64_t memlock_bytes(void) {
    struct rlimit lock;
    if (getrlimit(RLIMIT_MEMLOCK, &lock) != 0)
        return 0;
    return lock.rlim_cur >= (rlim_t)INT64_MAX ? INT64_MAX : (int64_t)lock.rlim_cur;
}

/* Fails where a limit could not be read for want of what another attempt may have, such as open files: memory beyond it
 * would end the process. A container may refuse a file for ever; of that it warns once. */
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

sw_status sw_machine_read(struct sw_machine *out) {
    *out = (struct sw_machine){.cores = sw_machine_cores(), .memlock_bytes = memlock_bytes()};
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    int64_t free_swap_bytes;
    out->all_cores = online > out->cores ? (int)online : out->cores;
    SW_TRY(read_meminfo("MemTotal", &out->physical_bytes));
    SW_TRY(read_meminfo("MemAvailable", &out->available_bytes));
    SW_TRY(read_meminfo("SwapTotal", &out->swap_bytes));
    SW_TRY(read_meminfo("SwapFree", &free_swap_bytes));
    out->swap_used_bytes = out->swap_bytes - free_swap_bytes;
    sw_memory_limit_read("", &out->limit);
    SW_TRY(check_limit(&out->limit));
    sw_cpu_limit_read("", &out->cpu_limit);
    out->memory_bytes = sw_min_i64(out->physical_bytes, out->limit.limit_bytes);
    out->available_bytes = sw_min_i64(out->available_bytes, out->limit.room_bytes);
    read_topology(out);
    return SW_OK;
}

/* The instruction set that arithmetic on the processor uses: the best that the machine has, or a lower one that the
 * environment names. */

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
/* Returns whether the machine has what compilers assume for x86-64-v3. */
static bool has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2");
}

/* Returns whether the machine has what compilers assume for x86-64-v4. */
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

/* Returns what SW_CPU_ISA is set to; NULL: nothing. */
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

/* Returns the machine's topology, which the caller destroys; NULL where it cannot be had. */
static hwloc_topology_t load(void) {
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology) != 0)
        return NULL;
    if (hwloc_topology_load(topology) == 0)
        return topology;
    hwloc_topology_destroy(topology);
    return NULL;
}

static bool is_near_one(hwloc_topology_t topology, hwloc_const_bitmap_t cores) {
    for (hwloc_obj_t node = NULL; (node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != NULL;)
        if (hwloc_bitmap_isincluded(cores, node->cpuset))
            return true;
    return false;
}

void sw_machine_bind_to_node(void *base, int64_t bytes, int numa_node) {
    hwloc_topology_t topology = load();
    if (topology == NULL)
        return;
    const hwloc_obj_t node = hwloc_get_numanode_obj_by_os_index(topology, (unsigned)numa_node);
    if (node != NULL)
        (void)hwloc_set_area_membind(topology, base, (size_t)bytes, node->nodeset, HWLOC_MEMBIND_BIND,
                                     HWLOC_MEMBIND_BYNODESET);
    hwloc_topology_destroy(topology);
}

void sw_machine_keep_to_node(int numa_node) {
    hwloc_topology_t topology = load();
    hwloc_bitmap_t cores = hwloc_bitmap_alloc();
    const hwloc_obj_t node =
        topology == NULL ? NULL : hwloc_get_numanode_obj_by_os_index(topology, (unsigned)numa_node);
    if (node != NULL && cores != NULL && hwloc_get_cpubind(topology, cores, HWLOC_CPUBIND_THREAD) == 0 &&
        !is_near_one(topology, cores) && hwloc_bitmap_intersects(cores, node->cpuset)) {
        hwloc_bitmap_and(cores, cores, node->cpuset);
        (void)hwloc_set_cpubind(topology, cores, HWLOC_CPUBIND_THREAD);
    }
    hwloc_bitmap_free(cores);
    if (topology != NULL)
        hwloc_topology_destroy(topology);
}

int sw_machine_node_of_share(int number, int shares) {
    hwloc_topology_t topology = load();
    int node = -1;
    if (topology == NULL)
        return node;
    const int nodes = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE);
    if (nodes > 1 && shares > 1)
        node = (int)hwloc_get_obj_by_type(topology, HWLOC_OBJ_NUMANODE, (unsigned)(number * nodes / shares))->os_index;
    hwloc_topology_destroy(topology);
    return node;
}

int sw_machine_node_of_bus(const char *bus) {
    return bus == NULL || bus[0] == '\0' ? -1 : (int)sw_system_number("", "/sys/bus/pci/devices/%s/numa_node", bus);
}
