#include "run/data/token_cache.h"

#include "core/files/files.h"
#include "core/log.h"
#include "core/size.h"

#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

/* A token file's name, "tokens-0123456789abcdef.bin", begins the names of all files that belong to it. */
#define NAME_BEGINS "tokens-"
#define NAME_ENDS ".bin"
enum { DIGEST_CHARS = 16, NAME_CHARS = sizeof NAME_BEGINS - 1 + DIGEST_CHARS + sizeof NAME_ENDS - 1 };
enum { DAY_S = 24 * 60 * 60, MOST_UNUSED_S = 30 * DAY_S, PARTS_OF_DISK = 10 };

struct entry {
    char name[NAME_CHARS + 1]; /* of the token file */
    int64_t bytes;             /* of all files that belong to it */
    time_t used;               /* last use; of a file that was never finished, its last writing */
};

struct entries {
    struct entry *entry;
    size_t count, room;
};

static struct entry *find_or_add(struct entries *all, const char *name) {
    for (size_t i = 0; i < all->count; i++)
        if (memcmp(all->entry[i].name, name, NAME_CHARS) == 0)
            return &all->entry[i];
    if (all->count == all->room) {
        const size_t room = all->room == 0 ? 16 : all->room * 2;
        struct entry *grown = reallocarray(all->entry, room, sizeof *grown);
        if (grown == NULL)
            return NULL;
        all->entry = grown;
        all->room = room;
    }
    struct entry *added = &all->entry[all->count++];
    *added = (struct entry){0};
    memcpy(added->name, name, NAME_CHARS);
    return added;
}

static bool is_of_tokens(const char *name) {
    return strlen(name) >= NAME_CHARS && strncmp(name, NAME_BEGINS, sizeof NAME_BEGINS - 1) == 0 &&
           memcmp(name + NAME_CHARS - (sizeof NAME_ENDS - 1), NAME_ENDS, sizeof NAME_ENDS - 1) == 0;
}

/* Calls `act` for each file of the folder that belongs to a token file. */
static void for_each(const char *folder, void (*act)(int folder_fd, const char *name, void *context), void *context) {
    DIR *list = opendir(folder);
    for (const struct dirent *file; list != NULL && (file = readdir(list)) != NULL;)
        if (is_of_tokens(file->d_name))
            act(dirfd(list), file->d_name, context);
    if (list != NULL)
        closedir(list);
}

static void count_file(int folder_fd, const char *name, void *context) {
    struct stat info;
    struct entry *entry = find_or_add(context, name);
    if (entry == NULL || fstatat(folder_fd, name, &info, AT_SYMLINK_NOFOLLOW) != 0)
        return;
    const time_t used = strlen(name) == NAME_CHARS ? info.st_atime : info.st_mtime;
    entry->bytes += info.st_size;
    entry->used = used > entry->used ? used : entry->used;
}

/* Tells whether a process has the file open. Data files are opened with a shared lock (data_file.h), and a file that is
 * being written has an exclusive one. */
static bool is_in_use(int folder_fd, const char *name) {
    const int fd = openat(folder_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    const bool in_use = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0;
    if (fd >= 0)
        close(fd);
    return in_use;
}

/* The files that belong to one token file. */
struct group {
    const char *name;
    bool in_use;
};

static void look_at_use(int folder_fd, const char *name, void *context) {
    struct group *group = context;
    if (memcmp(group->name, name, NAME_CHARS) == 0)
        group->in_use |= is_in_use(folder_fd, name);
}

static void remove_file(int folder_fd, const char *name, void *context) {
    const struct group *group = context;
    if (memcmp(group->name, name, NAME_CHARS) == 0)
        (void)unlinkat(folder_fd, name, 0);
}

/* Removes a token file, and then what belongs to it: without the tokens, the rest counts as unfinished. */
static bool remove_group(const char *folder, const char *name) {
    struct group group = {.name = name};
    char path[PATH_MAX];
    for_each(folder, look_at_use, &group);
    if (group.in_use || sw_path_join(path, sizeof path, folder, name) != SW_OK)
        return false;
    (void)unlink(path);
    for_each(folder, remove_file, &group);
    return true;
}

static int by_use(const void *left, const void *right) {
    const struct entry *a = left, *b = right;
    return (a->used > b->used) - (a->used < b->used);
}

static void remove_old(const char *folder, struct entries *all) {
    struct statvfs disk;
    const time_t now = time(NULL);
    int64_t bytes = 0, removed_bytes = 0;
    int removed = 0;
    char size[SW_SIZE_CHARS];
    if (statvfs(folder, &disk) != 0)
        return;
    const int64_t most = (int64_t)(disk.f_blocks * disk.f_frsize / PARTS_OF_DISK);
    for (size_t i = 0; i < all->count; i++)
        bytes += all->entry[i].bytes;
    qsort(all->entry, all->count, sizeof *all->entry, by_use);
    for (size_t i = 0; i < all->count; i++) {
        const struct entry *entry = &all->entry[i];
        const bool is_beyond = bytes > most && now - entry->used > DAY_S;
        if ((!is_beyond && now - entry->used <= MOST_UNUSED_S) || !remove_group(folder, entry->name))
            continue;
        bytes -= entry->bytes;
        removed_bytes += entry->bytes;
        removed++;
    }
    if (removed > 0)
        sw_log_info("removed %d token files (%s) from %s: unused for 30 days, or the oldest beyond a tenth of the disk",
                    removed, sw_format_size(removed_bytes, size), folder);
}

void sw_token_cache_make_room(const char *path) {
    struct entries all = {0};
    char *folder = strdup(path);
    char *slash = folder != NULL ? strrchr(folder, '/') : NULL;
    if (slash != NULL) {
        *slash = '\0';
        for_each(folder, count_file, &all);
        /* Without an entry, qsort would get a null pointer. */
        if (all.count > 0)
            remove_old(folder, &all);
    }
    free(all.entry);
    free(folder);
}

void sw_token_cache_note_use(const char *path) {
    const struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_OMIT}};
    (void)utimensat(AT_FDCWD, path, times, 0);
}
