#include "bench/kernels/memory.h"

#include "core/clock.h"
#include "core/size.h"
#include "offload/simulate/measure.h"

#include <string.h>

enum { RUNS = 5 };

sw_status sw_bench_memory_open(int threads, int64_t area_bytes, struct sw_bench_memory *out) {
    *out = (struct sw_bench_memory){.threads = threads, .area_bytes = area_bytes};
    const int64_t bytes = SW_BENCH_AREAS * sw_round_up(area_bytes, SW_BUFFER_ALIGN_BYTES);
    SW_TRY(sw_arena_create("bench", bytes, false, NULL, &out->arena));
    for (int i = 0; i < SW_BENCH_AREAS; i++) {
        void *area;
        SW_TRY(sw_arena_take(out->arena, area_bytes, &area));
        out->area[i] = area;
        for (int64_t e = 0; e < area_bytes / (int64_t)sizeof(float); e++)
            out->area[i][e] = (float)(e % 1009) * 1e-3f;
    }
    return SW_OK;
}

void sw_bench_memory_close(struct sw_bench_memory *memory) {
    sw_arena_destroy(memory->arena);
}

double sw_bench_rate(void (*loop)(const void *context), const void *context, int64_t bytes) {
    double rate[RUNS];
    for (int run = -1; run < RUNS; run++) {
        const int64_t start_ns = sw_now_ns();
        loop(context);
        if (run >= 0)
            rate[run] = (double)bytes * 1e9 / (double)sw_max_i64(1, sw_now_ns() - start_ns);
    }
    return sw_median(rate, RUNS);
}

struct copies {
    const struct sw_bench_memory *memory;
    int64_t bytes, chunk_bytes;
    int threads;
};

static void copy_together(char *to, const char *from, int64_t bytes, int threads) {
    const int64_t slice_bytes = sw_div_up(bytes, threads);
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int64_t at = 0; at < bytes; at += slice_bytes)
        memcpy(to + at, from + at, (size_t)sw_min_i64(slice_bytes, bytes - at));
}

static void copy_chunks(const void *context) {
    const struct copies *copies = context;
    char *to = (char *)copies->memory->area[0];
    const char *from = (const char *)copies->memory->area[1];
    for (int64_t at = 0; at + copies->chunk_bytes <= copies->bytes; at += copies->chunk_bytes) {
        if (copies->threads == 1)
            memcpy(to + at, from + at, (size_t)copies->chunk_bytes);
        else
            copy_together(to + at, from + at, copies->chunk_bytes, copies->threads);
    }
}

double sw_bench_memcpy(const struct sw_bench_memory *memory, int64_t bytes, int64_t chunk_bytes, int threads) {
    const struct copies copies = {.memory = memory, .bytes = bytes, .chunk_bytes = chunk_bytes, .threads = threads};
    return sw_bench_rate(copy_chunks, &copies, bytes / chunk_bytes * chunk_bytes);
}
