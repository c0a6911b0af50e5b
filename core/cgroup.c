#include "core/cgroup.h"

#include "core/size.h"
#include "core/system_file.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Limits from here on are none: version 1 has no word for "no limit", only a number about as large as there are. */
#define NO_LIMIT_BYTES (INT64_MAX / 2)

/* The names of the files of one cgroup version. */
struct version {
    const char *mount[2]; /* where groups that limit memory are, and those that limit processor time */
    const char *limit[2]; /* the second may be NULL */
    const char *usage;
    const char *cache[2]; /* lines of memory.stat */
    const char *nested;   /* holds 0 where a group does not limit the memory of those within; NULL: always does */
    const char *quota;    /* microseconds of processor time in each period; the period follows where period is NULL */
    const char *period;
};

enum { MEMORY, CPU };
static const char *const controllers_of[] = {[MEMORY] = "memory", [CPU] = "cpu"};

static const struct version unified = {.mount = {"/sys/fs/cgroup", "/sys/fs/cgroup"},
                                       .limit = {"memory.max", "memory.high"},
                                       .usage = "memory.current",
                                       .cache = {"inactive_file", "active_file"},
                                       .quota = "cpu.max"};
static const struct version legacy = {.mount = {"/sys/fs/cgroup/memory", "/sys/fs/cgroup/cpu"},
                                      .limit = {"memory.limit_in_bytes"},
                                      .usage = "memory.usage_in_bytes",
                                      .cache = {"total_inactive_file", "total_active_file"},
                                      .nested = "memory.use_hierarchy",
                                      .quota = "cpu.cfs_quota_us",
                                      .period = "cpu.cfs_period_us"};

/* Where the limits that are found go; one of the two is NULL. */
struct found {
    struct sw_memory_limit *memory;
    struct sw_cpu_limit *cpu;
};

static void note_setting(char out[SW_CGROUP_CHARS], const char *mount, const char *group, const char *file) {
    snprintf(out, SW_CGROUP_CHARS, "%.*s%.*s/%s", 64, mount, 384, group, file);
}

/* Notes the first file that could not be read. Files that are not there, or whose group has ended, limit nothing. */
static void note_unread(struct sw_memory_limit *out, int error, const char *mount, const char *group,
                        const char *file) {
    if (error == 0 || error == ENOENT || error == ENOTDIR || error == ENODEV || out->unread_error != 0)
        return;
    out->unread_error = error;
    note_setting(out->unread, mount, group, file);
}

/* Returns the bytes of page cache, which count as used and yet are given back when memory is asked for. */
static int64_t cache_bytes(const struct version *version, const char *root, const char *group,
                           struct sw_memory_limit *out) {
    static const char name_of_file[] = "memory.stat";
    const char *mount = version->mount[MEMORY];
    char path[SW_SYSTEM_PATH_CHARS], name[64];
    int64_t value, cache = 0;
    if (snprintf(path, sizeof path, "%s%s%s/%s", root, mount, group, name_of_file) >= (int)sizeof path)
        return 0;
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        note_unread(out, errno, mount, group, name_of_file);
        return 0;
    }
    while (fscanf(file, "%63s %" SCNd64, name, &value) == 2)
        if (strcmp(name, version->cache[0]) == 0 || strcmp(name, version->cache[1]) == 0)
            cache += value;
    fclose(file);
    return cache;
}

static void look_at_memory(const struct version *version, const char *root, const char *group,
                           struct sw_memory_limit *out) {
    const char *mount = version->mount[MEMORY];
    for (int i = 0; i < 2 && version->limit[i] != NULL; i++) {
        const int64_t limit = sw_system_number(root, "%s%s/%s", mount, group, version->limit[i]);
        note_unread(out, errno, mount, group, version->limit[i]);
        if (limit <= 0 || limit >= NO_LIMIT_BYTES)
            continue;
        const int64_t usage = sw_system_number(root, "%s%s/%s", mount, group, version->usage);
        note_unread(out, errno, mount, group, version->usage);
        const int64_t used = sw_max_i64(0, usage - cache_bytes(version, root, group, out));
        out->room_bytes = sw_min_i64(out->room_bytes, sw_max_i64(0, limit - used));
        if (limit < out->limit_bytes) {
            out->limit_bytes = limit;
            note_setting(out->setting, mount, group, version->limit[i]);
        }
    }
}

/* A quota that is none is the word "max", or -1 in version 1. */
static void look_at_cpu(const struct version *version, const char *root, const char *group, struct sw_cpu_limit *out) {
    const char *mount = version->mount[CPU];
    char line[64];
    int64_t quota_us = -1, period_us = -1;
    if (!sw_system_line(root, line, sizeof line, "%s%s/%s", mount, group, version->quota) ||
        sscanf(line, "%" SCNd64 " %" SCNd64, &quota_us, &period_us) < 1)
        return;
    if (version->period != NULL)
        period_us = sw_system_number(root, "%s%s/%s", mount, group, version->period);
    if (quota_us <= 0 || period_us <= 0 || (double)quota_us / (double)period_us >= out->cores)
        return;
    out->cores = (double)quota_us / (double)period_us;
    note_setting(out->setting, mount, group, version->quota);
}

static void look_at_group(const struct version *version, const char *root, const char *group, struct found out) {
    if (out.memory != NULL)
        look_at_memory(version, root, group, out.memory);
    else
        look_at_cpu(version, root, group, out.cpu);
}

/* Reads the limits of the group and of those around it up to the mount. A container may show the outermost group that
 * it can see as the mount itself, while the process is told a path from further out: groups that are not there limit
 * nothing. */
static void look_outwards(const struct version *version, const char *root, char *group, struct found out) {
    if (strstr(group, "..") != NULL || strcmp(group, "/") == 0)
        group[0] = '\0';
    for (;;) {
        look_at_group(version, root, group, out);
        char *slash = strrchr(group, '/');
        if (slash == NULL)
            return;
        *slash = '\0';
        if (out.memory != NULL && version->nested != NULL &&
            sw_system_number(root, "%s%s/%s", version->mount[MEMORY], group, version->nested) == 0)
            return;
    }
}

/* Tells whether a list of controllers, with commas between them, names this one. */
static bool names(const char *list, const char *controller) {
    const size_t length = strlen(controller);
    for (const char *at = list; at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, controller, length) == 0 && (at[length] == ',' || at[length] == '\0'))
            return true;
    }
    return false;
}

/* Reads /proc/self/cgroup, whose lines are "ID:CONTROLLERS:GROUP", without controllers for version 2. */
static void look(const char *root, struct found out) {
    const char *controller = controllers_of[out.memory != NULL ? MEMORY : CPU];
    char path[SW_SYSTEM_PATH_CHARS], *line = NULL;
    size_t capacity = 0;
    FILE *file = snprintf(path, sizeof path, "%s/proc/self/cgroup", root) < (int)sizeof path ? fopen(path, "re") : NULL;
    if (file == NULL && out.memory != NULL)
        note_unread(out.memory, errno, "/proc", "/self", "cgroup");
    while (file != NULL && getline(&line, &capacity, file) > 0) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':'), *group = controllers == NULL ? NULL : strchr(controllers + 1, ':');
        if (group == NULL)
            continue;
        *group++ = '\0';
        if (strcmp(line, "0:") == 0)
            look_outwards(&unified, root, group, out);
        else if (names(controllers + 1, controller))
            look_outwards(&legacy, root, group, out);
    }
    free(line);
    if (file != NULL)
        fclose(file);
}

void sw_memory_limit_read(const char *root, struct sw_memory_limit *out) {
    *out = (struct sw_memory_limit){.limit_bytes = INT64_MAX, .room_bytes = INT64_MAX};
    look(root, (struct found){.memory = out});
}

void sw_cpu_limit_read(const char *root, struct sw_cpu_limit *out) {
    *out = (struct sw_cpu_limit){.cores = INFINITY};
    look(root, (struct found){.cpu = out});
}

int sw_cpu_limit_cores(const struct sw_cpu_limit *limit, int cores) {
    return (int)fmax(1.0, fmin(cores, ceil(limit->cores)));
}
