/* What `bench io` reads and writes: a file without a name in each directory, so that nothing of it outlives the
 * process, or block devices; the memory for it; and how much may still be written. */
#ifndef SW_BENCH_IO_TARGET_H
#define SW_BENCH_IO_TARGET_H

#include "core/arena.h"
#include "core/status.h"
#include "io/store/store.h"

#include <stdbool.h>
#include <stdint.h>

/* The least memory of a target: what its first writing has in flight. */
#define SW_IO_FILL_BYTES (INT64_C(32) << 20)

struct sw_io_target_spec {
    const char *const *paths; /* existing directories, or block devices */
    int count;
    int64_t size_bytes;         /* of all together; 0: 1GiB, or a quarter of the free space where that is less */
    int64_t largest_auto_bytes; /* what 0 chooses at most */
    bool overwrite;             /* block devices without asking */
    bool allow_buffered;
};

struct sw_io_target {
    const char *const *paths;
    int count;
    int fd[SW_STORE_MAX_FILES];
    int64_t file_bytes; /* of each file */
    bool has_device, direct;
    struct sw_arena *arena;
    char *memory[2]; /* of readers and of writers, memory_bytes each */
    int64_t memory_bytes;
    int64_t may_write_bytes, written_bytes;
    double planned_s; /* of the writing that is still to come, which shares may_write_bytes */
};

/* Makes and takes the files, unwritten; memory comes later. */
sw_status sw_io_target_open(const struct sw_io_target_spec *spec, struct sw_io_target *out);
void sw_io_target_close(struct sw_io_target *target);

/* Memory for so many bytes in flight each way, filled with random bits. */
sw_status sw_io_target_take_memory(struct sw_io_target *target, int64_t bytes);

/* Gives the space behind file_bytes back. Block devices stay as they are. */
sw_status sw_io_target_shrink(struct sw_io_target *target, int64_t file_bytes);

/* Sets aside what a pass of so many seconds may write, by its part of the planned time. */
int64_t sw_io_target_share(struct sw_io_target *target, double seconds);
/* Counts what was written, and gives back what had been set aside for it. */
void sw_io_target_count(struct sw_io_target *target, int64_t share_bytes, int64_t written_bytes);

#endif
