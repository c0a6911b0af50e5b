/* The cores and the memory of this machine, and how much of both this process may use. */
#ifndef SW_CORE_MACHINE_H
#define SW_CORE_MACHINE_H

#include "core/cgroup.h"
#include "core/status.h"

#include <stdint.h>

struct sw_machine {
    int cores;          /* as sw_machine_cores; with SMT, several share a physical one */
    int all_cores;      /* logical cores of the machine that are online */
    int physical_cores; /* physical cores of the machine that are online; 0: not known */
    int numa_nodes;
    int64_t memory_bytes;    /* the physical memory, or the memory cgroups' limit where that is less */
    int64_t available_bytes; /* memory that can be taken now without swapping */
    int64_t physical_bytes;
    int64_t swap_bytes, swap_used_bytes;
    int64_t memlock_bytes; /* RLIMIT_MEMLOCK; INT64_MAX for none */
    struct sw_memory_limit limit;
    struct sw_cpu_limit cpu_limit;
    char cpu[128];
};

/* Reads all of this. Fails with SW_ERR_UNSUPPORTED where /proc does not tell the memory. */
sw_status sw_machine_read(struct sw_machine *out);

/* Returns the number of logical cores that this process may keep busy: those that it may run on, or as many as the
 * quotas of cgroups allow where that is less (sw_cpu_limit_cores). */
int sw_machine_cores(void);

/* Takes pages of this memory that are not there yet from a NUMA node, as the system numbers it, while that has any.
 * Where the system refuses, they come from any node, which is slower and no less right. */
void sw_machine_bind_to_node(void *base, int64_t bytes, int numa_node);
/* Lets this thread, and those that it starts from now on, run only on those of its cores that are near a NUMA node,
 * as the system numbers it. Nothing changes where they are all near one already, as a launcher may have seen to, or
 * none is near that one. */
void sw_machine_keep_to_node(int numa_node);
/* Returns the NUMA node for process `number`, counted from 0, of `shares` processes that share this machine evenly; -1
 * where the machine has one node. */
int sw_machine_node_of_share(int number, int shares);
/* Returns the NUMA node of a PCI address ("0000:17:00.0"), or -1 where the system does not know it. */
int sw_machine_node_of_bus(const char *bus);

#endif
