/* The cores, the instruction set and the memory of this machine, and how much of them this process may use. */
#ifndef SW_CORE_MACHINE_H
#define SW_CORE_MACHINE_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Cgroups: how much memory and processor time the groups around this process allow to all their members together. */
enum { SW_CGROUP_CHARS = 512 };

struct sw_memory_limit {
    int64_t limit_bytes; /* the least limit of this group and the groups around it; INT64_MAX: there is none */
    int64_t room_bytes;  /* what the fullest of these groups still allows; INT64_MAX: no limit */
    char setting[SW_CGROUP_CHARS]; /* the file that sets the limit */
    char unread[SW_CGROUP_CHARS];  /* a file that may set a limit, and is there but could not be read; empty: none */
    int unread_error;              /* why, as an errno */
};

struct sw_cpu_limit {
    double cores; /* the processor time of so many cores is the least quota of these groups; INFINITY: there is none */
    char setting[SW_CGROUP_CHARS]; /* the file that sets the quota */
};

/* Reads the least limit among the memory cgroups, of version 1 and 2, around this process. `root` is as for
 * sw_system_line. */
void sw_memory_limit_read(const char *root, struct sw_memory_limit *out);
/* Reads the least quota among the cpu cgroups around this process, in the same way. */
void sw_cpu_limit_read(const char *root, struct sw_cpu_limit *out);
/* Returns how many of `cores` cores the quota keeps busy, rounded up and at least 1. More threads than that would use
 * the quota up early in each period and then stand still. */
int sw_cpu_limit_cores(const struct sw_cpu_limit *limit, int cores);

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

/* Reads all of this. Fails with SW_ERR_UNSUPPORTED where /proc does not tell the memory, and with SW_ERR_IO where the
 * process has too few open files or too little memory to read the limits of cgroups. */
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

/* The instruction sets for which arithmetic on the processor is compiled, in order: each includes those before it.
 * Other processors than x86-64 have the baseline only. */
typedef enum { SW_ISA_BASELINE, SW_ISA_AVX2, SW_ISA_AVX512, SW_ISA_AVX512_BF16, SW_ISA_COUNT } sw_isa;

/* Names the instruction set, as the environment does: "avx2". */
const char *sw_isa_name(sw_isa isa);
/* Finds the instruction set of a name. SW_ERR_ARG: there is none; the message lists the names. */
sw_status sw_isa_parse(const char *name, sw_isa *out);

/* Returns the best instruction set that the processor and the operating system have. */
sw_isa sw_machine_isa(void);

/* The environment variable that lowers the instruction set. */
#define SW_ISA_VARIABLE "SW_CPU_ISA"

/* Finds the instruction set that this process uses: the one that SW_CPU_ISA names, or the best. *out_named: whether
 * SW_CPU_ISA is set. SW_ERR_ARG: there is no instruction set of that name. SW_ERR_UNSUPPORTED: the machine lacks it. */
sw_status sw_isa_in_use(sw_isa *out, bool *out_named);
/* Returns the same for code that cannot fail and has the same results by each of them; the best where sw_isa_in_use
 * fails. */
sw_isa sw_isa_of_process(void);

/* The longest path of a small text file of the kernel, under /proc and /sys. */
enum { SW_SYSTEM_PATH_CHARS = 4608 };

/* Writes the first line of the file at root + path, without its end, into out. Returns false, with an empty text, where
 * the file cannot be read: a container need not have /proc or /sys. root: "" for this machine, or a folder that holds a
 * copy of another's. path: a format, as of printf. errno says why the file could not be read; 0: it could. */
__attribute__((format(printf, 4, 5))) bool sw_system_line(const char *root, char *out, size_t chars, const char *path,
                                                          ...);

/* Returns the number that begins this line, or -1 where there is none or it is negative. errno is as above. */
__attribute__((format(printf, 2, 3))) int64_t sw_system_number(const char *root, const char *path, ...);

#endif
