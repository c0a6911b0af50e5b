/* Plain loops over memory by all threads at once: the machine's own limit. Rates are bytes a second, medians of a few
 * runs after one that warms up. Lines that a cache fetches before it overwrites them do not count, as in STREAM. */
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

/* Takes areas in an arena, like the engine's memory, and fills them with small numbers. */
sw_status sw_bench_memory_open(int threads, int64_t area_bytes, struct sw_bench_memory *out);
void sw_bench_memory_close(struct sw_bench_memory *memory);

/* Measures memcpy of the first `bytes` of an area by chunks, each by `threads` threads together. The rate is of bytes
 * copied, each of which is read and written. */
double sw_bench_memcpy(const struct sw_bench_memory *memory, int64_t bytes, int64_t chunk_bytes, int threads);

/* Runs a loop once and then a few times, and returns the median of its bytes a second. */
double sw_bench_rate(void (*loop)(const void *context), const void *context, int64_t bytes);

#endif
