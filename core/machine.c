#include "core/machine.h"

#include "core/log.h"
#include "core/size.h"

#include <errno.h>
#include <hwloc.h>
#include <inttypes.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
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
