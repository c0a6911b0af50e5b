/* One measured pass over the target's files through io/queue/queue.h: reading, writing, or both at once by a thread
 * each. */
#ifndef SW_BENCH_IO_PASS_H
#define SW_BENCH_IO_PASS_H

#include "bench/io/io.h"

/* Called about once a second with what is done; false ends the pass. */
typedef bool (*sw_io_tick)(void *context, double seconds, int64_t bytes);

struct sw_io_pass {
    struct sw_io_cell cell;
    double seconds;      /* after which nothing more is issued */
    int64_t most_bytes;  /* read by a pass that only reads, else written */
    bool shared;         /* they had been set aside */
    int64_t span_bytes;  /* of each file; 0: all of it */
    int64_t first_block; /* of a sequential writer */
    bool random;
    bool sums;          /* checksums as the store makes and checks them */
    sw_io_tick tick[2]; /* of the reader and of the writer; may be NULL */
    void *context[2];
};

struct sw_io_done {
    struct sw_io_rate rate;
    int64_t read_bytes, write_bytes;
};

sw_status sw_io_run(struct sw_io_target *target, const struct sw_io_pass *pass, struct sw_io_done *out);

/* Writes all of the files once, so that they have all their space and data. Needs SW_IO_FILL_BYTES of memory. */
sw_status sw_io_fill(struct sw_io_target *target);

#endif
