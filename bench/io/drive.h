/* The files that `bench io` reads and writes, and the memory for them. In each directory it makes a file without a
 * name, so that nothing outlives the process; a block device is used itself. */
#ifndef SW_BENCH_IO_DRIVE_H
#define SW_BENCH_IO_DRIVE_H

#include "bench/report.h"
#include "core/arena.h"
#include "core/log.h"
#include "core/size.h"
#include "core/status.h"
#include "io/store/store.h"
#include "job/settings/options.h"

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

/* Counts from a line of /sys/dev/block/MAJOR:MINOR/stat. */
struct sw_drive_counts {
    int64_t transfers; /* reads and writes that are done */
    int64_t discards;  /* done */
    int64_t in_flight; /* of all kinds */
};

/* Returns false for a line without discards, as kernels before 4.18 have it. */
bool sw_drive_counts_parse(const char *stat_line, struct sw_drive_counts *out);

/* Returns whether the drive worked on discards between two looks: some were done, or requests are in flight and no
 * transfer was done. */
bool sw_drive_discarded(const struct sw_drive_counts *before, const struct sw_drive_counts *now);

/* Makes deletions reach the drives of the directories, and waits until each has discarded nothing for a while, at most
 * a minute. A drive that cannot be asked is not waited for. */
void sw_discards_wait(const char *const *directories, int count);

/* `bench io`: the rates of a drive through the queue that the store's lanes use. */
enum { SW_IO_MAX_BLOCKS = 4, SW_IO_MAX_DEPTHS = 7, SW_IO_MAX_CELLS = SW_IO_MAX_BLOCKS * SW_IO_MAX_DEPTHS };

/* The most bytes of a pass that are in flight at once. */
#define SW_IO_MOST_IN_FLIGHT_BYTES SW_GIB

typedef enum { SW_IO_READ, SW_IO_WRITE, SW_IO_BOTH, SW_IO_WAYS } sw_io_way;

struct sw_io_options {
    struct sw_option_list nvme;
    int64_t size_bytes, block_bytes, depth, rounds; /* SW_OPTION_AUTO: not given */
    int64_t time_limit_s, most_bytes;
    double seconds; /* of a cell; 0: not given */
    bool thorough, random, sustain, no_fio, overwrite, allow_buffered, json;
};

/* One setting of a drive. */
struct sw_io_cell {
    sw_io_way way;
    int64_t block_bytes;
    int depth; /* requests in flight */
};

/* The rates of one cell. `bytes_per_s` is the sum of reading and writing. */
struct sw_io_rate {
    double bytes_per_s, read_bytes_per_s, write_bytes_per_s;
    double cores; /* processor time over time */
    double seconds;
};

/* Bounds of one pass: it ends when its time is over, or its bytes are moved. Bytes bound the writer, and the reader
 * of a pass that only reads. */
struct sw_io_turn {
    struct sw_io_cell cell;
    double seconds;
    int64_t most_bytes;
};

/* The rounds and the time that a sweep takes. */
struct sw_io_effort {
    int sweep_rounds; /* a cell's result is its median round, so that one moment of the machine does not decide */
    int64_t rounds;   /* of the comparison */
    double seconds;   /* of a cell in a sweep round, and of a pass of the comparison */
};

/* The block sizes and depths of the sweep. */
struct sw_io_grid {
    int blocks, depths;
    int64_t block_bytes[SW_IO_MAX_BLOCKS];
    int depth[SW_IO_MAX_DEPTHS];
};

struct sw_io_bench {
    const struct sw_io_options *given;
    struct sw_io_target target;
    struct sw_io_grid grid;
    struct sw_io_effort effort;
    struct sw_long_work progress;
    double planned_write_s; /* time of all writing passes of the sweep, which share the bytes of --most */
    int64_t planned_write_bytes;
};

const char *sw_io_way_name(sw_io_way way);
/* Returns whether the files have room for all blocks that are in flight at once. */
bool sw_io_fits(const struct sw_io_bench *bench, int64_t block_bytes, int depth);
/* Returns the bytes that a pass of so many seconds may write. */
int64_t sw_io_share(const struct sw_io_bench *bench, double seconds);
/* Run the two forms of the bench on an open target. */
sw_status sw_io_sweep(struct sw_io_bench *bench);
sw_status sw_io_sustain(struct sw_io_bench *bench);

/* Returns processor seconds a gigabyte. */
static inline double sw_io_core_s_per_gb(double cores, double bytes_per_s) {
    return cores / bytes_per_s * 1e9;
}

/* Called about once a second with the time and the bytes so far; false ends the pass. */
typedef bool (*sw_io_tick)(void *context, double seconds, int64_t bytes);

struct sw_io_pass {
    struct sw_io_turn turn;
    int64_t span_bytes;  /* of each file; 0: all of it */
    int64_t first_block; /* where a sequential pass begins */
    bool random;
    bool sums;          /* computes checksums as the store does */
    sw_io_tick tick[2]; /* of the reader and of the writer; may be NULL */
    void *context[2];
};

struct sw_io_done {
    struct sw_io_rate rate;
    int64_t read_bytes, write_bytes;
};

/* Runs a pass, whose written bytes the target counts. Either direction moves one block at least, unless most_bytes is
 * less than that. */
sw_status sw_io_run(struct sw_io_target *target, const struct sw_io_pass *pass, struct sw_io_done *out);

/* Writes all of the files once, so that all their space is allocated and holds data. Needs SW_IO_FILL_BYTES of
 * memory. */
sw_status sw_io_fill(struct sw_io_target *target);

#endif
