/* What the store adds to the queue: its lanes, and above all the checksums of everything read and written. */
#ifndef SW_BENCH_IO_STORE_H
#define SW_BENCH_IO_STORE_H

#include "bench/io/io.h"

/* In turn within a round: the queue alone and the store, with requests of the same size and number. */
enum { SW_IO_PLAIN, SW_IO_STORE, SW_IO_STORE_CONTENDERS };
enum { SW_IO_STORE_PASSES = 2 };                   /* that write, of a round */
#define SW_IO_STORE_LEAST_BYTES (INT64_C(3) << 20) /* of such a pass */

struct sw_io_store_price {
    int64_t block_bytes;
    int depth;
    struct sw_bench_rounds rates[SW_IO_WAYS], costs[SW_IO_WAYS]; /* of reading and of writing; core-seconds a GB */
};

/* Not on block devices, nor where the files are tiny. */
bool sw_io_has_room_for_store(const struct sw_io_target *target);

/* In a store of its own that takes half of the target's space, which the target's files give up. */
sw_status sw_io_measure_store(struct sw_io_bench *bench, struct sw_io_store_price *out);

#endif
