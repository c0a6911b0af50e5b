#include "kernels/cpu/norm.h"
#include "kernels/cpu/tile.h"

#include <math.h>

/* Sums that run side by side, so that none waits for the one before. */
enum { SUMS = 4 };

/* A root-mean-square norm has no mean and no beta: `centred` is a constant wherever it is given. */
struct forward {
    struct sw_rmsnorm shape;
    const void *a, *b; /* x = sum = a + b comes first; sum NULL: x is in memory already */
    void *sum;
    const void *x, *gamma, *beta;
    void *y;
    float *mean, *rstd;
};

SW_INLINE float row_mean(const sw_dtype type, const struct forward *f, int64_t row_at) {
    sw_vec sum[SUMS] = {{0}};
    int64_t i = 0;
    for (; i + SUMS * SW_LANES <= f->shape.cols; i += SUMS * SW_LANES) {
        for (int j = 0; j < SUMS; j++)
            sum[j] += sw_load(type, f->x, row_at + i + j * SW_LANES);
    }
    for (; i < f->shape.cols; i += SW_LANES)
        sum[0] += sw_load_up_to(type, f->x, row_at + i, f->shape.cols - i, 0.0f);
    return sw_vec_sum((sum[0] + sum[1]) + (sum[2] + sum[3])) / (float)f->shape.cols;
}

SW_INLINE float row_rstd(const sw_dtype type, const struct forward *f, int64_t row_at, float mean) {
    sw_vec sum[SUMS] = {{0}};
    int64_t i = 0;
    for (; i + SUMS * SW_LANES <= f->shape.cols; i += SUMS * SW_LANES) {
        for (int j = 0; j < SUMS; j++) {
            const sw_vec centred = sw_load(type, f->x, row_at + i + j * SW_LANES) - mean;
            sum[j] = sw_vec_fma(centred, centred, sum[j]);
        }
    }
    for (; i < f->shape.cols; i += SW_LANES) {
        const sw_vec centred = sw_load_up_to(type, f->x, row_at + i, f->shape.cols - i, mean) - mean;
        sum[0] = sw_vec_fma(centred, centred, sum[0]);
    }
    const float squares = sw_vec_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
    return 1.0f / sqrtf(squares / (float)f->shape.cols + f->shape.epsilon);
}

SW_INLINE void forward_row(const sw_dtype type, const struct forward *f, int64_t row, const bool centred) {
    const int64_t x_at = sw_rmsnorm_row(&f->shape, f->shape.x_stride, row);
    const int64_t y_at = sw_rmsnorm_row(&f->shape, f->shape.y_stride, row);
    const float mean = centred ? row_mean(type, f, x_at) : 0.0f, rstd = row_rstd(type, f, x_at, mean);
    if (centred)
        f->mean[row] = mean;
    f->rstd[row] = rstd;
    for (int64_t i = 0; i < f->shape.cols; i += SW_LANES) {
        const int64_t rest = f->shape.cols - i;
        const sw_vec normal = (sw_load_up_to(type, f->x, x_at + i, rest, mean) - mean) * rstd;
        const sw_vec gamma = sw_load_up_to(type, f->gamma, i, rest, 0.0f);
        const sw_vec beta = centred ? sw_load_up_to(type, f->beta, i, rest, 0.0f) : (sw_vec){0};
        sw_store_up_to(type, f->y, y_at + i, rest, sw_vec_fma(normal, gamma, beta));
    }
}

/* Each row is added up and then, while it is in the first-level cache, normalised. */
SW_INLINE void add_row(const sw_dtype type, int64_t cols, int64_t row, const void *a, const void *b, void *sum) {
    for (int64_t i = 0; i < cols; i += SW_LANES) {
        const int64_t at = row * cols + i, rest = cols - i;
        sw_store_up_to(type, sum, at, rest,
                       sw_load_up_to(type, a, at, rest, 0.0f) + sw_load_up_to(type, b, at, rest, 0.0f));
    }
}

struct rows {
    sw_dtype type;
    const struct forward *forward;
};

static void some_rows(const void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const sw_dtype type = ((const struct rows *)context)->type;
    const struct forward *f = ((const struct rows *)context)->forward;
    for (int64_t row = first; row < end; row++) {
        if (f->sum != NULL)
            SW_FOR_TYPE(add_row, type, f->shape.cols, row, f->a, f->b, f->sum);
        if (f->mean != NULL)
            SW_FOR_TYPE(forward_row, type, f, row, true);
        else
            SW_FOR_TYPE(forward_row, type, f, row, false);
    }
}

static sw_status all_rows(struct sw_stream *stream, sw_dtype type, const struct forward *f) {
    const struct rows all = {.type = type, .forward = f};
    sw_cpu_share(stream, f->shape.rows * f->shape.cols >= SW_PARALLEL_MIN_ELEMS, f->shape.rows, some_rows, &all);
    return SW_OK;
}

static sw_status add_norm_forward(struct sw_stream *stream, const void *args) {
    const struct sw_add_norm_forward *op = args;
    const struct forward f = {.shape = sw_plain_rows(op->rows, op->cols, op->epsilon),
                              .a = op->a,
                              .b = op->b,
                              .sum = op->sum,
                              .x = op->sum,
                              .gamma = op->gamma,
                              .beta = op->beta,
                              .y = op->y,
                              .mean = op->mean,
                              .rstd = op->rstd};
    return all_rows(stream, op->type, &f);
}

static sw_status layernorm_forward(struct sw_stream *stream, const void *args) {
    const struct sw_layernorm_forward *op = args;
    const struct forward f = {.shape = sw_plain_rows(op->rows, op->cols, op->epsilon),
                              .x = op->x,
                              .gamma = op->gamma,
                              .beta = op->beta,
                              .y = op->y,
                              .mean = op->mean,
                              .rstd = op->rstd};
    return all_rows(stream, op->type, &f);
}

static sw_status rmsnorm_forward(struct sw_stream *stream, const void *args) {
    const struct sw_rmsnorm_forward *op = args;
    const struct forward f = {.shape = *op->shape, .x = op->x, .gamma = op->gamma, .y = op->y, .rstd = op->rstd};
    return all_rows(stream, op->type, &f);
}

void SW_ISA_NAME(sw_cpu_add_layernorm)(struct sw_device_ops *ops) {
    ops->op[SW_DEVICE_LAYERNORM_FORWARD] = layernorm_forward;
    ops->op[SW_DEVICE_RMSNORM_FORWARD] = rmsnorm_forward;
    ops->op[SW_DEVICE_ADD_NORM_FORWARD] = add_norm_forward;
}
