#include "bench/io/target.h"

#include "bench/io/sustain.h"
#include "core/log.h"
#include "core/size.h"
#include "io/queue/file.h"
#include "io/store/block.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* A file is a multiple of this size, so that every block size up to it divides the file. */
#define FILE_MULTIPLE_BYTES (4 * SW_MIB)
enum { FREE_PART = 4 };

/* Returns the part of a size that each of the files has. */
static int64_t part_of(int64_t size_bytes, int count) {
    const int64_t part = size_bytes / count;
    return part >= FILE_MULTIPLE_BYTES ? part / FILE_MULTIPLE_BYTES * FILE_MULTIPLE_BYTES
                                       : part / SW_BUFFER_ALIGN_BYTES * SW_BUFFER_ALIGN_BYTES;
}

/* Chooses a quarter of the free space, which the paths of one file system share. */
static sw_status choose_size(const struct sw_io_target_spec *spec, int64_t *out) {
    *out = spec->largest_auto_bytes;
    for (int i = 0; i < spec->count; i++) {
        struct statvfs space;
        if (sw_block_is_one(spec->paths[i]))
            continue;
        if (statvfs(spec->paths[i], &space) != 0)
            return sw_fail(SW_ERR_ARG, "%s is not an existing directory (%s): make it first", spec->paths[i],
                           strerror(errno));
        *out = sw_min_i64(*out, (int64_t)space.f_bavail * (int64_t)space.f_frsize / FREE_PART);
    }
    return SW_OK;
}

static sw_status confirm(const struct sw_io_target_spec *spec, const char *path, int64_t bytes) {
    char size[SW_SIZE_CHARS], answer[8] = "";
    sw_format_size(bytes, size);
    if (spec->overwrite)
        return SW_OK;
    if (isatty(STDIN_FILENO) && isatty(STDERR_FILENO)) {
        char question[PATH_MAX + 128];
        snprintf(question, sizeof question,
                 "%s is a block device: its first %s will be overwritten. Type yes to go on: ", path, size);
        sw_log_text(question);
        if (fgets(answer, sizeof answer, stdin) != NULL && strcmp(answer, "yes\n") == 0)
            return SW_OK;
    }
    return sw_fail(SW_ERR_ARG, "%s is a block device, whose first %s would be overwritten: --yes-overwrite allows that",
                   path, size);
}

static sw_status open_one(const struct sw_io_target_spec *spec, int i, struct sw_io_target *target) {
    const char *path = spec->paths[i];
    int64_t bytes;
    if (!sw_block_is_one(path))
        return sw_file_create_unnamed(path, spec->allow_buffered, &target->fd[i]);
    SW_TRY(sw_block_open(path, &target->fd[i], &bytes));
    target->file_bytes = sw_min_i64(target->file_bytes, part_of(bytes, 1));
    return SW_OK;
}

/* The length of a file is known once all are open. */
static sw_status take_space(const struct sw_io_target_spec *spec, struct sw_io_target *target) {
    int64_t bytes[SW_STORE_MAX_FILES];
    const char *directories[SW_STORE_MAX_FILES];
    int count = 0;
    for (int i = 0; i < spec->count; i++) {
        if (sw_block_is_one(spec->paths[i])) {
            SW_TRY(confirm(spec, spec->paths[i], target->file_bytes));
            continue;
        }
        bytes[count] = target->file_bytes;
        directories[count++] = spec->paths[i];
    }
    SW_TRY(sw_file_check_space(directories, bytes, count));
    for (int i = 0; i < spec->count; i++)
        if (!sw_block_is_one(spec->paths[i]))
            SW_TRY(sw_file_allocate(target->fd[i], spec->paths[i], target->file_bytes));
    return SW_OK;
}

static sw_status open_all(const struct sw_io_target_spec *spec, struct sw_io_target *target) {
    int64_t size_bytes = spec->size_bytes;
    if (spec->count > SW_STORE_MAX_FILES)
        return sw_fail(SW_ERR_USAGE, "at most %d directories or drives are measured at once", SW_STORE_MAX_FILES);
    SW_TRY(sw_file_check_distinct(spec->paths, spec->count));
    if (size_bytes == 0)
        SW_TRY(choose_size(spec, &size_bytes));
    target->file_bytes = part_of(size_bytes, spec->count);
    for (int i = 0; i < spec->count; i++)
        SW_TRY(open_one(spec, i, target));
    if (target->file_bytes == 0)
        return sw_fail(SW_ERR_SPACE, "there is no room to measure in: free some space, or name another directory");
    target->direct = true;
    for (int i = 0; i < spec->count; i++)
        target->direct = target->direct && (fcntl(target->fd[i], F_GETFL) & O_DIRECT) != 0;
    return take_space(spec, target);
}

sw_status sw_io_target_open(const struct sw_io_target_spec *spec, struct sw_io_target *out) {
    *out = (struct sw_io_target){.paths = spec->paths, .count = spec->count};
    for (int i = 0; i < SW_STORE_MAX_FILES; i++)
        out->fd[i] = -1;
    sw_discards_wait(spec->paths, spec->count);
    const sw_status status = open_all(spec, out);
    if (status != SW_OK)
        sw_io_target_close(out);
    return status;
}

void sw_io_target_close(struct sw_io_target *target) {
    for (int i = 0; i < SW_STORE_MAX_FILES; i++)
        if (target->fd[i] >= 0)
            sw_file_close(target->fd[i]);
    sw_arena_destroy(target->arena);
    *target = (struct sw_io_target){0};
}

/* A drive that compresses must not gain by the content. */
static void fill_random(char *memory, int64_t bytes) {
    uint64_t state = UINT64_C(0x9e3779b97f4a7c15), *words = (uint64_t *)memory;
    for (int64_t i = 0; i < bytes / (int64_t)sizeof *words; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        words[i] = state;
    }
}

sw_status sw_io_target_take_memory(struct sw_io_target *target, int64_t bytes) {
    if (target->memory_bytes >= bytes)
        return SW_OK;
    sw_arena_destroy(target->arena);
    target->arena = NULL;
    SW_TRY(sw_arena_create("measurement", 2 * bytes, false, NULL, &target->arena));
    for (int i = 0; i < 2; i++) {
        void *base;
        SW_TRY(sw_arena_take(target->arena, bytes, &base));
        target->memory[i] = base;
    }
    target->memory_bytes = bytes;
    fill_random(target->memory[1], bytes);
    return SW_OK;
}
