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
    int64_t limit_bytes;           /* smallest limit of this group and its ancestors; INT64_MAX: none */
    int64_t room_bytes;            /* what the fullest of these groups still allows; INT64_MAX: no limit */
    char setting[SW_CGROUP_CHARS]; /* the file that sets the limit */
    char unread[SW_CGROUP_CHARS];  /* an existing file that may set a limit but could not be read; empty: none */
    int unread_error;              /* why, as an errno */
};

struct sw_cpu_limit {
    double cores;                  /* the smallest quota of these groups, as a number of cores; INFINITY: none */
    char setting[SW_CGROUP_CHARS]; /* the file that sets the quota */
};

/* Reads the smallest limit of the memory cgroups, of versions 1 and 2, around this process. `root` is as for
 * sw_system_line. */
void sw_memory_limit_read(const char *root, struct sw_memory_limit *out);
/* Reads the smallest quota of the cpu cgroups around this process, in the same way. */
void sw_cpu_limit_read(const char *root, struct sw_cpu_limit *out);
/* Returns how many of `cores` cores the quota keeps busy, rounded up and at least 1. More threads would use up the
 * quota early in each period and then stand still. */
int sw_cpu_limit_cores(const struct sw_cpu_limit *limit, int cores);

struct sw_machine {
    int cores;          /* as sw_machine_cores; with SMT, several are one physical core */
    int all_cores;      /* logical cores of the machine that are online */
    int physical_cores; /* physical cores of the machine that are online; 0: unknown */
    int numa_nodes;
    int64_t memory_bytes;    /* physical memory, or the memory cgroups' limit if that is smaller */
    int64_t available_bytes; /* memory that can be taken now without swapping */
    int64_t physical_bytes;
    int64_t swap_bytes, swap_used_bytes;
    int64_t memlock_bytes; /* RLIMIT_MEMLOCK; INT64_MAX: no limit */
    struct sw_memory_limit limit;
    struct sw_cpu_limit cpu_limit;
    char cpu[128];
};

/* Reads all of this. SW_ERR_UNSUPPORTED: /proc does not tell the memory. SW_ERR_IO: the process has too few open files
 * or too little memory to read the limits of cgroups. */
sw_status sw_machine_read(struct sw_machine *out);

/* Reads what concerns memory and leaves the rest 0: it does not ask for the topology, which takes some milliseconds. */
sw_status sw_machine_read_memory(struct sw_machine *out);

/* Returns the number of logical cores that this process may keep busy: those that it may run on, or fewer if the quotas
 * of cgroups allow fewer (sw_cpu_limit_cores). */
int sw_machine_cores(void);

/* Takes pages of this memory that do not exist yet from a NUMA node (numbered by the system), while it has any. If the
 * system refuses, they come from any node, which is slower but works. */
void sw_machine_bind_to_node(void *base, int64_t bytes, int numa_node);
/* Restricts this thread, and threads it starts from now on, to those of its cores that are near a NUMA node (numbered
 * by the system). Changes nothing if its cores are all near one node already, as a launcher may have arranged, or none
 * is near this one. */
void sw_machine_keep_to_node(int numa_node);
/* Returns the NUMA node for process `number` (from 0) of `shares` processes that divide this machine evenly; -1: the
 * machine has one node. */
int sw_machine_node_of_share(int number, int shares);
/* Returns the NUMA node of a PCI address ("0000:17:00.0"), or -1 if the system does not know it. */
int sw_machine_node_of_bus(const char *bus);

/* The instruction sets for which arithmetic on the processor is compiled, in ascending order: each includes those
 * before it. Processors other than x86-64 have only the baseline. */
typedef enum { SW_ISA_BASELINE, SW_ISA_AVX2, SW_ISA_AVX512, SW_ISA_AVX512_BF16, SW_ISA_COUNT } sw_isa;

/* Returns the name of the instruction set, as the environment spells it: "avx2". */
const char *sw_isa_name(sw_isa isa);
/* Parses the name of an instruction set. SW_ERR_ARG: there is none of this name; the message lists the names. */
sw_status sw_isa_parse(const char *name, sw_isa *out);

/* Returns the best instruction set that the processor and the operating system have. */
sw_isa sw_machine_isa(void);

/* The environment variable that lowers the instruction set. */
#define SW_ISA_VARIABLE "SW_CPU_ISA"

/* Returns the instruction set that this process uses: that of SW_CPU_ISA, or the best. *out_named: whether SW_CPU_ISA
 * is set. SW_ERR_ARG: unknown name. SW_ERR_UNSUPPORTED: the machine lacks it. */
sw_status sw_isa_in_use(sw_isa *out, bool *out_named);
/* Returns the same for code that cannot fail and whose results do not depend on it; the best if sw_isa_in_use fails. */
sw_isa sw_isa_of_process(void);

/* The longest path of a small text file of the kernel, under /proc and /sys. */
enum { SW_SYSTEM_PATH_CHARS = 4608 };

/* Writes the first line of the file at root + path into out, without its line end. Returns false, with an empty text,
 * if the file cannot be read: a container need not have /proc or /sys. root: "" for this machine, or a folder with a
 * copy of another's files. path: a format, as for printf. Sets errno to the reason, or 0. */
__attribute__((format(printf, 4, 5))) bool sw_system_line(const char *root, char *out, size_t chars, const char *path,
                                                          ...);

/* Returns the number at the beginning of this line, or -1 if there is none or it is negative. Sets errno likewise. */
__attribute__((format(printf, 2, 3))) int64_t sw_system_number(const char *root, const char *path, ...);

#endif
