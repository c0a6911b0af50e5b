/* What this machine has: cores and memory that this process may use. */
#ifndef SW_CORE_MACHINE_H
#define SW_CORE_MACHINE_H

#include "core/cgroup.h"
#include "core/status.h"

#include <stdint.h>

struct sw_machine {
    int cores;          /* that this process may run on; with SMT, several share a physical one */
    int all_cores;      /* of the machine, online */
    int physical_cores; /* likewise; 0: not known */
    int numa_nodes;
    int64_t memory_bytes;    /* physical, or the memory cgroups' limit where that is less */
    int64_t available_bytes; /* what can be taken now without swapping */
    int64_t physical_bytes;
    int64_t swap_bytes, swap_used_bytes;
    int64_t memlock_bytes; /* RLIMIT_MEMLOCK; INT64_MAX for none */
    struct sw_memory_limit limit;
    char cpu[128];
};

sw_status sw_machine_read(struct sw_machine *out);

/* Cores that this process may run on. */
int sw_machine_cores(void);

#endif
