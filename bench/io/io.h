/* `bench io`: the rates of a drive through the queue that the store's lanes use. */
#ifndef SW_BENCH_IO_IO_H
#define SW_BENCH_IO_IO_H

#include "bench/io/target.h"
#include "bench/report.h"
#include "core/long_work.h"
#include "core/size.h"
#include "job/settings/options.h"

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
    int round_passes; /* passes of each contender in a round of the comparison: 2, there and back, or 1 */
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

#endif
