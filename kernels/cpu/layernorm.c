#include "kernels/cpu/isa.h"
#include "kernels/cpu/tile.h"

#include <math.h>

/* Sums that run side by side, so that none waits for the one before. */
enum { SUMS = 4 };

struct forward {
    int64_t cols;
    float epsilon;
    const void *x, *gamma, *beta;
    void *y;
    float *mean, *rstd;
};

SW_INLINE float row_mean(const sw_dtype type, const struct forward *f, int64_t row_at) {
    sw_vec sum[SUMS] = {{0}};
    int64_t i = 0;
    for (; i + SUMS * SW_LANES <= f->cols; i += SUMS * SW_LANES) {
        for (int j = 0; j < SUMS; j++)
            sum[j] += sw_load(type, f->x, row_at + i + j * SW_LANES);
    }
    for (; i < f->cols; i += SW_LANES)
        sum[0] += sw_load_up_to(type, f->x, row_at + i, f->cols - i, 0.0f);
    return sw_vec_sum((sum[0] + sum[1]) + (sum[2] + sum[3])) / (float)f->cols;
}

SW_INLINE float row_rstd(const sw_dtype type, const struct forward *f, int64_t row_at, float mean) {
    sw_vec sum[SUMS] = {{0}};
    int64_t i = 0;
    for (; i + SUMS * SW_LANES <= f->cols; i += SUMS * SW_LANES) {
        for (int j = 0; j < SUMS; j++) {
            const sw_vec centred = sw_load(type, f->x, row_at + i + j * SW_LANES) - mean;
            sum[j] = sw_vec_fma(centred, centred, sum[j]);
        }
    }
    for (; i < f->cols; i += SW_LANES) {
        const sw_vec centred = sw_load_up_to(type, f->x, row_at + i, f->cols - i, mean) - mean;
        sum[0] = sw_vec_fma(centred, centred, sum[0]);
    }
    const float squares = sw_vec_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
    return 1.0f / sqrtf(squares / (float)f->cols + f->epsilon);
}

SW_INLINE void forward_row(const sw_dtype type, const struct forward *f, int64_t row) {
    const int64_t row_at = row * f->cols;
    const float mean = row_mean(type, f, row_at), rstd = row_rstd(type, f, row_at, mean);
    f->mean[row] = mean;
    f->rstd[row] = rstd;
    for (int64_t i = 0; i < f->cols; i += SW_LANES) {
        const int64_t rest = f->cols - i;
        const sw_vec normal = (sw_load_up_to(type, f->x, row_at + i, rest, mean) - mean) * rstd;
        const sw_vec gamma = sw_load_up_to(type, f->gamma, i, rest, 0.0f);
        const sw_vec beta = sw_load_up_to(type, f->beta, i, rest, 0.0f);
        sw_store_up_to(type, f->y, row_at + i, rest, sw_vec_fma(normal, gamma, beta));
    }
}

static sw_status layernorm_forward(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t cols, float epsilon,
                                   const void *x, const void *gamma, const void *beta, void *y, float *mean,
                                   float *rstd) {
    const int threads = stream->device->info.threads;
    const struct forward f = {
        .cols = cols, .epsilon = epsilon, .x = x, .gamma = gamma, .beta = beta, .y = y, .mean = mean, .rstd = rstd};
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * cols >= SW_PARALLEL_MIN_ELEMS)
    for (int64_t row = 0; row < rows; row++)
        SW_FOR_TYPE(forward_row, type, &f, row);
    return SW_OK;
}

void SW_ISA_NAME(sw_cpu_add_layernorm)(struct sw_device_ops *ops) {
    ops->layernorm_forward = layernorm_forward;
}
