#include "core/cgroup.h"

#include "core/size.h"
#include "core/system_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Limits from here on are none: version 1 has no word for "no limit", only a number about as large as there are. */
#define NO_LIMIT_BYTES (INT64_MAX / 2)

/* The names of the files of one cgroup version. */
struct version {
    const char *mount;
    const char *limit[2]; /* the second may be NULL */
    const char *usage;
    const char *cache[2]; /* lines of memory.stat */
    const char *nested;   /* holds 0 where a group does not limit those within; NULL: always does */
};

static const struct version unified = {.mount = "/sys/fs/cgroup",
                                       .limit = {"memory.max", "memory.high"},
                                       .usage = "memory.current",
                                       .cache = {"inactive_file", "active_file"}};
static const struct version legacy = {.mount = "/sys/fs/cgroup/memory",
                                      .limit = {"memory.limit_in_bytes"},
                                      .usage = "memory.usage_in_bytes",
                                      .cache = {"total_inactive_file", "total_active_file"},
                                      .nested = "memory.use_hierarchy"};

/* Returns the bytes of page cache, which count as used and yet are given back when memory is asked for. */
static int64_t cache_bytes(const struct version *version, const char *root, const char *group) {
    char path[SW_SYSTEM_PATH_CHARS], name[64];
    int64_t value, cache = 0;
    if (snprintf(path, sizeof path, "%s%s%s/memory.stat", root, version->mount, group) >= (int)sizeof path)
        return 0;
    FILE *file = fopen(path, "re");
    while (file != NULL && fscanf(file, "%63s %" SCNd64, name, &value) == 2)
        if (strcmp(name, version->cache[0]) == 0 || strcmp(name, version->cache[1]) == 0)
            cache += value;
    if (file != NULL)
        fclose(file);
    return cache;
}

static void look_at_group(const struct version *version, const char *root, const char *group,
                          struct sw_memory_limit *out) {
    for (int i = 0; i < 2 && version->limit[i] != NULL; i++) {
        const int64_t limit = sw_system_number(root, "%s%s/%s", version->mount, group, version->limit[i]);
        if (limit <= 0 || limit >= NO_LIMIT_BYTES)
            continue;
        const int64_t usage = sw_system_number(root, "%s%s/%s", version->mount, group, version->usage);
        const int64_t used = sw_max_i64(0, usage - cache_bytes(version, root, group));
        out->room_bytes = sw_min_i64(out->room_bytes, sw_max_i64(0, limit - used));
        if (limit < out->limit_bytes) {
            out->limit_bytes = limit;
            snprintf(out->setting, sizeof out->setting, "%.*s%.*s/%s", 64, version->mount, 384, group,
                     version->limit[i]);
        }
    }
}

/* Reads the limits of the group and of those around it up to the mount. A container may show the outermost group that
 * it can see as the mount itself, while the process is told a path from further out: groups that are not there limit
 * nothing. */
static void look_outwards(const struct version *version, const char *root, char *group, struct sw_memory_limit *out) {
    if (strstr(group, "..") != NULL || strcmp(group, "/") == 0)
        group[0] = '\0';
    for (;;) {
        look_at_group(version, root, group, out);
        char *slash = strrchr(group, '/');
        if (slash == NULL)
            return;
        *slash = '\0';
        if (version->nested != NULL && sw_system_number(root, "%s%s/%s", version->mount, group, version->nested) == 0)
            return;
    }
}

/* Reads /proc/self/cgroup, whose lines are "ID:CONTROLLERS:GROUP", without controllers for version 2. */
void sw_memory_limit_read(const char *root, struct sw_memory_limit *out) {
    char path[SW_SYSTEM_PATH_CHARS], *line = NULL;
    size_t capacity = 0;
    *out = (struct sw_memory_limit){.limit_bytes = INT64_MAX, .room_bytes = INT64_MAX};
    FILE *file = snprintf(path, sizeof path, "%s/proc/self/cgroup", root) < (int)sizeof path ? fopen(path, "re") : NULL;
    while (file != NULL && getline(&line, &capacity, file) > 0) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':'), *group = controllers == NULL ? NULL : strchr(controllers + 1, ':');
        if (group == NULL)
            continue;
        *group++ = '\0';
        if (strcmp(line, "0:") == 0)
            look_outwards(&unified, root, group, out);
        else if (strcmp(controllers + 1, "memory") == 0 || strstr(controllers, "memory,") != NULL ||
                 strstr(controllers, ",memory") != NULL)
            look_outwards(&legacy, root, group, out);
    }
    free(line);
    if (file != NULL)
        fclose(file);
}
