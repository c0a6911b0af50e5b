/* Cgroups: how much memory and processor time the groups around this process allow to all their members together. */
#ifndef SW_CORE_CGROUP_H
#define SW_CORE_CGROUP_H

#include <stdint.h>

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

#endif
