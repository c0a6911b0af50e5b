/* The price of the store over the queue alone: its lanes, and above all the checksums of all that it moves. */
#ifndef SW_BENCH_IO_STORE_H
#define SW_BENCH_IO_STORE_H

#include "bench/io/io.h"

/* The contenders of a round: the queue alone and the store, with requests of the same size and number. */
enum { SW_IO_PLAIN, SW_IO_STORE, SW_IO_STORE_CONTENDERS };
#define SW_IO_STORE_LEAST_BYTES (INT64_C(3) << 20) /* of a pass that writes */

/* Reading or writing, by the contenders. */
struct sw_io_store_way {
    const char *way;
    struct sw_bench_rounds rates, core_s_per_gb;
    double sums_core_s_per_gb; /* difference of the medians */
};

struct sw_io_store_price {
    int64_t block_bytes;
    int depth;
    struct sw_io_store_way way[SW_IO_WRITE + 1];
};

/* Returns false for block devices, and where the files are tiny. */
bool sw_io_has_room_for_store(const struct sw_io_target *target);

/* Measures a store that takes half of the target's space, which the target's files give up. */
sw_status sw_io_measure_store(struct sw_io_bench *bench, struct sw_io_store_price *out);

#endif
