/* The files that `bench io` reads and writes, and the memory for them. In each directory it makes a file without a
 * name, so that nothing outlives the process; a block device is used itself. */
#ifndef SW_BENCH_IO_TARGET_H
#define SW_BENCH_IO_TARGET_H

#include "core/arena.h"
#include "core/status.h"
#include "io/store/store.h"

#include <stdbool.h>
#include <stdint.h>

/* The least memory of a target: the bytes that its first writing has in flight. */
#define SW_IO_FILL_BYTES (INT64_C(32) << 20)

struct sw_io_target_spec {
    const char *const *paths; /* existing directories, or block devices */
    int count;
    int64_t size_bytes;         /* of all files together; 0: a quarter of the free space */
    int64_t largest_auto_bytes; /* the most that 0 chooses */
    bool overwrite;             /* block devices without asking */
    bool allow_buffered;
};

struct sw_io_target {
    const char *const *paths;
    int count;
    int fd[SW_STORE_MAX_FILES];
    int64_t file_bytes; /* of each file */
    bool direct;
    struct sw_arena *arena;
    char *memory[2]; /* of readers and of writers, memory_bytes each */
    int64_t memory_bytes;
    int64_t written_bytes; /* so far, by whoever writes */
};

/* Makes the files and takes their space, unwritten. Memory comes later. */
sw_status sw_io_target_open(const struct sw_io_target_spec *spec, struct sw_io_target *out);
void sw_io_target_close(struct sw_io_target *target);

/* Takes memory for so many bytes in flight each way, where there is less yet. The writer's holds random bits. */
sw_status sw_io_target_take_memory(struct sw_io_target *target, int64_t bytes);

#endif
