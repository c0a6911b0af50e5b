/* `bench io`: what a drive delivers through the queue that the store's lanes use, and what bounds that. */
#ifndef SW_BENCH_IO_IO_H
#define SW_BENCH_IO_IO_H

#include "bench/io/target.h"
#include "bench/report.h"
#include "core/long_work.h"
#include "train/settings/options.h"

enum { SW_IO_MAX_BLOCKS = 4, SW_IO_MAX_DEPTHS = 7, SW_IO_MAX_CELLS = SW_IO_MAX_BLOCKS * SW_IO_MAX_DEPTHS };

typedef enum { SW_IO_READ, SW_IO_WRITE, SW_IO_BOTH, SW_IO_WAYS } sw_io_way;

struct sw_io_options {
    struct sw_option_list nvme;
    int64_t size_bytes, block_bytes, depth; /* may be SW_OPTION_AUTO */
    int64_t rounds, time_limit_s, most_bytes;
    double seconds; /* of a cell; 0: as --thorough or the default has it */
    char *svg;
    bool thorough, random, sustain, no_fio, overwrite, allow_buffered, json;
};

/* What was measured of one way, block size and depth. Rates of both at once are the sum; `read` and `write` its parts.
 */
struct sw_io_rate {
    double bytes_per_s, read_bytes_per_s, write_bytes_per_s, cores;
    double seconds; /* that it took */
};

struct sw_io_cell {
    sw_io_way way;
    int64_t block_bytes;
    int depth;
};

/* What one pass shall do: it ends when its time is over, or what it reads, or writes, or writes beside reading, is
 * done. */
struct sw_io_turn {
    struct sw_io_cell cell;
    double seconds;
    int64_t most_bytes;
};

/* How often what is measured. The time of a cell is divided into sweep rounds, so that what else the machine does for a
 * moment does not decide. The fastest cells are measured some times more, because the fastest of many is often only the
 * luckiest. */
struct sw_io_effort {
    int sweep_rounds;
    int finalists, final_rounds;
    int round_passes; /* of each contender in a round of the comparison: 2, there and back, or 1 */
    int64_t rounds;   /* of the comparison */
    double seconds;   /* of a cell, and of a pass of the comparison */
};

/* The cells that are measured: all ways of all blocks and depths that fit into the files. */
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
};

const char *sw_io_way_name(sw_io_way way);
/* Whether the files have room for all that is in flight at once. */
bool sw_io_fits(const struct sw_io_bench *bench, int64_t block_bytes, int depth);

/* Caption of a picture: "/data: nvme0n1 MODEL, ext4, 2026-11-22"; what the system does not tell is left out. */
void sw_io_caption(const struct sw_io_target *target, char *text, size_t chars);

/* The two forms of the bench. The target is open; its files have been written once only for the sweep. */
sw_status sw_io_sweep(struct sw_io_bench *bench);
sw_status sw_io_sustain(struct sw_io_bench *bench);

/* Processor seconds for a gigabyte. */
static inline double sw_io_core_s_per_gb(double cores, double bytes_per_s) {
    return cores / bytes_per_s * 1e9;
}

#endif
