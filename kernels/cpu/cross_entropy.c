#include "kernels/cpu/isa.h"
#include "kernels/cpu/tile.h"
#include "kernels/cpu/vector_math.h"

#include <math.h>

static float largest_of(int64_t vocab, const float *logits) {
    float largest = -INFINITY;
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < vocab; i++)
        largest = logits[i] > largest ? logits[i] : largest;
    return largest;
}

/* log(sum(exp(logits))) = largest + log_rest; kept apart, because their sum would round away what large logits need. */
struct log_sum {
    float largest, log_rest;
};

static struct log_sum log_sum_exp(int64_t vocab, const float *logits) {
    const float largest = largest_of(vocab, logits);
    double total = 0.0;
    for (int64_t at = 0; at < vocab; at += SW_TILE_ELEMS) {
        const int64_t count = sw_min_i64(SW_TILE_ELEMS, vocab - at);
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < count; i++)
            sum += sw_exp(logits[at + i] - largest);
        total += sum;
    }
    return (struct log_sum){.largest = largest, .log_rest = (float)log(total)};
}

static void row_gradient(sw_dtype type, int64_t vocab, const float *logits, struct log_sum log_sum, int64_t target,
                         float scale, void *d_logits, int64_t row_at) {
    for (int64_t at = 0; at < vocab; at += SW_TILE_ELEMS) {
        const int64_t count = sw_min_i64(SW_TILE_ELEMS, vocab - at);
        struct sw_tile tile;
        float *out = sw_tile_target(type, d_logits, row_at + at, &tile);
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            out[i] = scale * sw_exp(logits[at + i] - log_sum.largest - log_sum.log_rest);
        if (target >= at && target < at + count)
            out[target - at] = scale * (sw_exp(logits[target] - log_sum.largest - log_sum.log_rest) - 1.0f);
        sw_tile_store(type, d_logits, row_at + at, count, &tile);
    }
}

static void one_row(sw_dtype type, int64_t vocab, const float *logits, int32_t target, float scale, float *loss,
                    void *d_logits, int64_t row_at) {
    if (target < 0) {
        *loss = 0.0f;
        if (d_logits != NULL)
            memset((char *)d_logits + row_at * sw_dtype_bytes(type), 0, (size_t)(vocab * sw_dtype_bytes(type)));
        return;
    }
    const struct log_sum log_sum = log_sum_exp(vocab, logits);
    *loss = log_sum.largest - logits[target] + log_sum.log_rest;
    if (d_logits != NULL)
        row_gradient(type, vocab, logits, log_sum, target, scale, d_logits, row_at);
}

static sw_status cross_entropy(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t vocab,
                               const float *logits, const int32_t *targets, float scale, float *loss, void *d_logits) {
    const int threads = stream->device->info.threads;
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * vocab >= SW_PARALLEL_MIN_ELEMS)
    for (int64_t row = 0; row < rows; row++)
        one_row(type, vocab, logits + row * vocab, targets[row], scale, &loss[row], d_logits, row * vocab);
    return SW_OK;
}

void SW_ISA_NAME(sw_cpu_add_cross_entropy)(struct sw_device_ops *ops) {
    ops->cross_entropy = cross_entropy;
}
