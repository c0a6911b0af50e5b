#include "core/machine.h"

#include "core/size.h"

#include <hwloc.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

int sw_machine_cores(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set);
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

/* The first number in a file, or -1. */
static int64_t number_in(const char *path) {
    FILE *file = fopen(path, "re");
    int64_t value = -1;
    if (file != NULL && fscanf(file, "%" SCNd64, &value) != 1)
        value = -1;
    if (file != NULL)
        fclose(file);
    return value;
}

/* Page cache of a memory cgroup, which counts as used and yet is given back when memory is asked for. */
static int64_t file_cache_bytes(const char *folder, bool unified) {
    char path[640], name[64];
    int64_t value, cache = 0;
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    FILE *file = fopen(path, "re");
    while (file != NULL && fscanf(file, "%63s %" SCNd64, name, &value) == 2)
        if (strcmp(name, unified ? "inactive_file" : "total_inactive_file") == 0 ||
            strcmp(name, unified ? "active_file" : "total_active_file") == 0)
            cache += value;
    if (file != NULL)
        fclose(file);
    return cache;
}

static int64_t meminfo_bytes(const char *key) {
    FILE *file = fopen("/proc/meminfo", "re");
    char line[256];
    int64_t kib = -1;
    while (file != NULL && kib < 0 && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, key, strlen(key)) == 0)
            sscanf(line + strlen(key), ": %" SCNd64, &kib);
    if (file != NULL)
        fclose(file);
    return kib < 0 ? -1 : kib * 1024;
}

/* This process's memory cgroup, version 2 or 1, may allow less than the machine has. */
static void limit_to_cgroup(struct sw_machine *machine) {
    FILE *file = fopen("/proc/self/cgroup", "re");
    char line[512];
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        const bool unified = strncmp(line, "0::", 3) == 0;
        const char *memory = strstr(line, ":memory:");
        if (!unified && memory == NULL)
            continue;
        const char *group = unified ? line + 3 : memory + 8;
        char folder[600], limit_path[640], usage_path[640];
        snprintf(folder, sizeof folder, "/sys/fs/cgroup%s%s", unified ? "" : "/memory", group);
        snprintf(limit_path, sizeof limit_path, "%s/%s", folder, unified ? "memory.max" : "memory.limit_in_bytes");
        snprintf(usage_path, sizeof usage_path, "%s/%s", folder, unified ? "memory.current" : "memory.usage_in_bytes");
        const int64_t limit = number_in(limit_path);
        const int64_t used = number_in(usage_path) - file_cache_bytes(folder, unified);
        if (limit > 0 && limit < machine->memory_bytes) {
            machine->memory_bytes = limit;
            machine->available_bytes = sw_min_i64(machine->available_bytes, sw_max_i64(limit - sw_max_i64(used, 0), 0));
        }
    }
    if (file != NULL)
        fclose(file);
}

static void read_topology(struct sw_machine *machine) {
    hwloc_topology_t topology;
    machine->numa_nodes = 1;
    snprintf(machine->cpu, sizeof machine->cpu, "unknown");
    if (hwloc_topology_init(&topology) != 0)
        return;
    if (hwloc_topology_load(topology) == 0) {
        machine->numa_nodes = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE);
        const hwloc_obj_t package = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PACKAGE, 0);
        const char *model = package == NULL ? NULL : hwloc_obj_get_info_by_name(package, "CPUModel");
        if (model != NULL)
            snprintf(machine->cpu, sizeof machine->cpu, "%s", model);
    }
    hwloc_topology_destroy(topology);
}

sw_status sw_machine_read(struct sw_machine *out) {
    *out = (struct sw_machine){.cores = sw_machine_cores()};
    out->memory_bytes = meminfo_bytes("MemTotal");
    out->available_bytes = meminfo_bytes("MemAvailable");
    if (out->memory_bytes <= 0 || out->available_bytes < 0)
        return sw_fail(SW_ERR_UNSUPPORTED, "/proc/meminfo does not tell how much memory there is; is /proc mounted?");
    limit_to_cgroup(out);
    struct rlimit lock;
    out->memlock_bytes = getrlimit(RLIMIT_MEMLOCK, &lock) != 0 ? 0
                         : lock.rlim_cur >= (rlim_t)INT64_MAX  ? INT64_MAX
                                                               : (int64_t)lock.rlim_cur;
    read_topology(out);
    return SW_OK;
}
