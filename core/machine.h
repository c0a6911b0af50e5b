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

/* Lets this thread, and those that it starts from now on, run only on those of its cores that are near a NUMA node.
 * Nothing changes where they are all near one already, as a launcher may have seen to, or none is near that one. */
void sw_machine_keep_to_node(int numa_node); /* as the system numbers it */
/* The node of one of several processes that share this machine evenly; -1: it has but one. */
int sw_machine_node_of_share(int number, int shares);
/* The node that a place on the PCI bus ("0000:17:00.0") hangs on; -1 where that is not known. */
int sw_machine_node_of_bus(const char *bus);

#endif
