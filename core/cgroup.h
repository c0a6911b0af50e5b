/* Memory cgroups: what this process and all around it may take together. */
#ifndef SW_CORE_CGROUP_H
#define SW_CORE_CGROUP_H

#include <stdint.h>

enum { SW_CGROUP_CHARS = 512 };

struct sw_memory_limit {
    int64_t limit_bytes;           /* the least of this group's and of all around it; INT64_MAX: none */
    int64_t room_bytes;            /* what may still be taken, by the fullest of them; likewise */
    char setting[SW_CGROUP_CHARS]; /* the file that sets the limit */
};

/* Of version 2 or 1. root: as for sw_system_line. */
void sw_memory_limit_read(const char *root, struct sw_memory_limit *out);

#endif
