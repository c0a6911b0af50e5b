/* One measured pass over the target's files: reading, writing, or both at once by a thread each. Requests go through
 * io/queue/queue.h. */
#ifndef SW_BENCH_IO_PASS_H
#define SW_BENCH_IO_PASS_H

#include "bench/io/io.h"

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
