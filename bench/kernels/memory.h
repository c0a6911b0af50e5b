/* Plain loops over memory, all threads at once: the machine's own limit beside what is measured. Rates are bytes read
 * and written a second, medians of a few runs after one that warms up. What a cache fetches before it overwrites is not
 * counted, as STREAM does not. */
#ifndef SW_BENCH_KERNELS_MEMORY_H
#define SW_BENCH_KERNELS_MEMORY_H

#include "core/arena.h"
#include "core/status.h"

#include <stdint.h>

enum { SW_BENCH_AREAS = 3 };

struct sw_bench_memory {
    int threads;
    struct sw_arena *arena;
    int64_t area_bytes;
    float *area[SW_BENCH_AREAS];
};

/* Areas in an arena, like the memory that the engine works in, filled with small numbers. */
sw_status sw_bench_memory_open(int threads, int64_t area_bytes, struct sw_bench_memory *out);
void sw_bench_memory_close(struct sw_bench_memory *memory);

/* a = b + s·c: two thirds read, a third written. */
double sw_bench_triad(const struct sw_bench_memory *memory);
/* a += s·b and b += s·a (the old a) at once: half read, half written, as an update does. */
double sw_bench_triad_in_place(const struct sw_bench_memory *memory);
/* memcpy of the first `bytes` of an area by chunks, each by `threads` threads together. Bytes copied, not traffic. */
double sw_bench_memcpy(const struct sw_bench_memory *memory, int64_t bytes, int64_t chunk_bytes, int threads);

/* Runs a loop once and then a few times: bytes a second, the median. */
double sw_bench_rate(void (*loop)(const void *context), const void *context, int64_t bytes);

#endif
