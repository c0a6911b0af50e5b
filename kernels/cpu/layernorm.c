#include "kernels/cpu/isa.h"
#include "kernels/cpu/tile.h"

#include <math.h>

/* Returns where a norm's row begins. The rows of a LayerNorm are the special case without groups. */
static inline int64_t sw_rmsnorm_row(const struct sw_rmsnorm *shape, int64_t stride, int64_t row) {
    return shape->groups == 1 ? row * stride : row / shape->groups * stride + row % shape->groups * shape->cols;
}

/* Independent sums, so that none waits for the one before. */
enum { SUMS = 4 };

/* Forward pass of both norms. A root-mean-square norm has no mean and no beta: `centred` is a constant at every call.
 */
struct forward {
    struct sw_rmsnorm shape;
    const void *a, *b; /* x = sum = a + b is computed first; sum NULL: x is already in memory */
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
        const sw_vec gamma = sw_load_up_to(type, f->gamma, i, rest, 0.0f) + f->shape.gamma_base;
        const sw_vec beta = centred ? sw_load_up_to(type, f->beta, i, rest, 0.0f) : (sw_vec){0};
        sw_store_up_to(type, f->y, y_at + i, rest, sw_vec_fma(normal, gamma, beta));
    }
}

/* Adds up each row and normalises it while it is in the first-level cache. */
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
    struct forward f = {.shape = sw_plain_rows(op->rows, op->cols, op->epsilon),
                        .a = op->a,
                        .b = op->b,
                        .sum = op->sum,
                        .x = op->sum,
                        .gamma = op->gamma,
                        .beta = op->beta,
                        .y = op->y,
                        .mean = op->mean,
                        .rstd = op->rstd};
    f.shape.gamma_base = op->gamma_base;
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

/* Independent sums, so that none waits for the one before. */
enum { BACKWARD_SUMS = 2 };

/* Backward pass of both norms. A root-mean-square norm has no mean and no beta, and subtracts only what the scale
 * gives: `centred` is a constant at every call. */
struct backward {
    struct sw_rmsnorm shape;
    const void *dy, *x, *gamma;
    const float *mean, *rstd;
    bool add_to_dx;
    void *dx;
    float *gamma_acc, *beta_acc;
};

/* The row's averages of g = dy·gamma and of g·n, with n = (x - mean)·rstd. */
struct row_averages {
    float g, g_normal;
};

SW_INLINE struct row_averages averages(const sw_dtype type, const struct backward *b, int64_t row, const bool centred) {
    const int64_t y_at = sw_rmsnorm_row(&b->shape, b->shape.y_stride, row);
    const int64_t x_at = sw_rmsnorm_row(&b->shape, b->shape.x_stride, row);
    const float mean = centred ? b->mean[row] : 0.0f;
    sw_vec sum[BACKWARD_SUMS] = {{0}}, sum_centred[BACKWARD_SUMS] = {{0}};
    int64_t i = 0;
    for (; i + BACKWARD_SUMS * SW_LANES <= b->shape.cols; i += BACKWARD_SUMS * SW_LANES) {
        for (int j = 0; j < BACKWARD_SUMS; j++) {
            const int64_t col = i + j * SW_LANES;
            const sw_vec g = sw_load(type, b->dy, y_at + col) * (sw_load(type, b->gamma, col) + b->shape.gamma_base);
            sum[j] += g;
            sum_centred[j] = sw_vec_fma(g, sw_load(type, b->x, x_at + col) - mean, sum_centred[j]);
        }
    }
    for (; i < b->shape.cols; i += SW_LANES) {
        const int64_t rest = b->shape.cols - i;
        const sw_vec gamma = sw_load_up_to(type, b->gamma, i, rest, 0.0f) + b->shape.gamma_base;
        const sw_vec g = sw_load_up_to(type, b->dy, y_at + i, rest, 0.0f) * gamma;
        sum[0] += g;
        sum_centred[0] = sw_vec_fma(g, sw_load_up_to(type, b->x, x_at + i, rest, mean) - mean, sum_centred[0]);
    }
    return (struct row_averages){.g = sw_vec_sum(sum[0] + sum[1]) / (float)b->shape.cols,
                                 .g_normal =
                                     sw_vec_sum(sum_centred[0] + sum_centred[1]) * b->rstd[row] / (float)b->shape.cols};
}

/* dx = rstd·(g - average(g) - n·average(g·n)), average(g) only where centred. */
SW_INLINE void row_dx(const sw_dtype type, const struct backward *b, int64_t row, const bool centred) {
    const struct row_averages average = averages(type, b, row, centred);
    const float mean = centred ? b->mean[row] : 0.0f, rstd = b->rstd[row];
    const sw_vec minus_g = sw_vec_splat(centred ? -average.g : 0.0f), minus_g_normal = sw_vec_splat(-average.g_normal);
    const int64_t y_at = sw_rmsnorm_row(&b->shape, b->shape.y_stride, row);
    const int64_t x_at = sw_rmsnorm_row(&b->shape, b->shape.x_stride, row);
    for (int64_t i = 0; i < b->shape.cols; i += SW_LANES) {
        const int64_t rest = b->shape.cols - i;
        const sw_vec normal = (sw_load_up_to(type, b->x, x_at + i, rest, mean) - mean) * rstd;
        const sw_vec gamma = sw_load_up_to(type, b->gamma, i, rest, 0.0f) + b->shape.gamma_base;
        const sw_vec g = sw_vec_fma(sw_load_up_to(type, b->dy, y_at + i, rest, 0.0f), gamma, minus_g);
        const sw_vec inner = sw_vec_fma(normal, minus_g_normal, g);
        const sw_vec before = b->add_to_dx ? sw_load_up_to(type, b->dx, x_at + i, rest, 0.0f) : (sw_vec){0};
        sw_store_up_to(type, b->dx, x_at + i, rest, sw_vec_fma(inner, sw_vec_splat(rstd), before));
    }
}

/* Columns whose accumulators stay in registers while rows are added to them, and the most columns per turn of a thread.
 */
enum { STRIP_VECTORS = 4, STRIP = STRIP_VECTORS * SW_LANES, MOST_COLUMNS = 128 };
static_assert(MOST_COLUMNS % STRIP == 0, "a thread's columns are whole strips");

/* A few columns, as the heads' norms have, are divided by vectors, so that every thread has some. */
static int64_t column_tile(int64_t cols, int threads) {
    return sw_min_i64(MOST_COLUMNS, sw_round_up(sw_div_up(cols, threads), SW_LANES));
}

/* Adds rows one by one into the accumulators, in the order that the contract fixes. vectors is a constant. */
SW_INLINE void strip_sums(const sw_dtype type, const struct backward *b, int64_t first_row, int64_t end_row, int64_t at,
                          int64_t count, const int vectors, const bool centred) {
    sw_vec gamma_sum[STRIP_VECTORS], beta_sum[STRIP_VECTORS];
    for (int j = 0; j < vectors; j++) {
        const int64_t col = at + j * SW_LANES, rest = count - j * SW_LANES;
        gamma_sum[j] = sw_load_up_to(SW_F32, b->gamma_acc, col, rest, 0.0f);
        beta_sum[j] = centred ? sw_load_up_to(SW_F32, b->beta_acc, col, rest, 0.0f) : (sw_vec){0};
    }
    for (int64_t row = first_row; row < end_row; row++) {
        const float mean = centred ? b->mean[row] : 0.0f, rstd = b->rstd[row];
        const int64_t y_at = sw_rmsnorm_row(&b->shape, b->shape.y_stride, row) + at;
        const int64_t x_at = sw_rmsnorm_row(&b->shape, b->shape.x_stride, row) + at;
        for (int j = 0; j < vectors; j++) {
            const int64_t rest = count - j * SW_LANES;
            const sw_vec gradient = sw_load_up_to(type, b->dy, y_at + j * SW_LANES, rest, 0.0f);
            const sw_vec normal = (sw_load_up_to(type, b->x, x_at + j * SW_LANES, rest, mean) - mean) * rstd;
            gamma_sum[j] = sw_vec_fma(gradient, normal, gamma_sum[j]);
            beta_sum[j] += gradient;
        }
    }
    for (int j = 0; j < vectors; j++) {
        const int64_t col = at + j * SW_LANES, rest = count - j * SW_LANES;
        sw_store_up_to(SW_F32, b->gamma_acc, col, rest, gamma_sum[j]);
        if (centred)
            sw_store_up_to(SW_F32, b->beta_acc, col, rest, beta_sum[j]);
    }
}

SW_INLINE void column_sums(const sw_dtype type, const struct backward *b, int64_t first_row, int64_t end_row,
                           int64_t at, int64_t end, const bool centred) {
    for (; at + STRIP <= end; at += STRIP)
        strip_sums(type, b, first_row, end_row, at, STRIP, STRIP_VECTORS, centred);
    for (; at < end; at += SW_LANES)
        strip_sums(type, b, first_row, end_row, at, end - at, 1, centred);
}

/* Returns how many rows get their dx before their share of gamma_acc and beta_acc: as many as a second-level cache
 * holds of dy and x, so that the second reading finds them there and threads seldom wait for each other. */
static int64_t rows_in_cache(sw_dtype type, int64_t cols) {
    enum { CACHE_BYTES = 512 * 1024 };
    return sw_max_i64(1, CACHE_BYTES / (2 * cols * sw_dtype_bytes(type)));
}

/* Rows processed together, first along rows and then along columns. */
struct backward_rows {
    sw_dtype type;
    const struct backward *backward;
    int64_t first, end, tile;
};

static void dx_of(const void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct backward_rows *rows = context;
    const struct backward *b = rows->backward;
    for (int64_t row = rows->first + first; row < rows->first + end; row++) {
        if (b->mean != NULL)
            SW_FOR_TYPE(row_dx, rows->type, b, row, true);
        else
            SW_FOR_TYPE(row_dx, rows->type, b, row, false);
    }
}

static void columns_of(const void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct backward_rows *rows = context;
    const struct backward *b = rows->backward;
    const int64_t at = first * rows->tile, to = sw_min_i64(end * rows->tile, b->shape.cols);
    if (b->mean != NULL)
        SW_FOR_TYPE(column_sums, rows->type, b, rows->first, rows->end, at, to, true);
    else
        SW_FOR_TYPE(column_sums, rows->type, b, rows->first, rows->end, at, to, false);
}

static void all_rows_backward(struct sw_stream *stream, sw_dtype type, const struct backward *b) {
    const int threads = stream->device->info.threads;
    const int64_t rows = b->shape.rows, cols = b->shape.cols, block_rows = rows_in_cache(type, cols) * threads;
    const bool enough = rows * cols >= SW_PARALLEL_MIN_ELEMS;
    for (int64_t first = 0; first < rows; first += block_rows) {
        const struct backward_rows block = {.type = type,
                                            .backward = b,
                                            .first = first,
                                            .end = sw_min_i64(rows, first + block_rows),
                                            .tile = column_tile(cols, threads)};
        sw_cpu_share(stream, enough, block.end - first, dx_of, &block);
        sw_cpu_share(stream, enough, sw_div_up(cols, block.tile), columns_of, &block);
    }
}

static sw_status layernorm_backward(struct sw_stream *stream, const void *args) {
    const struct sw_layernorm_backward *op = args;
    const struct backward b = {
        .shape = sw_plain_rows(op->rows, op->cols, 0.0f),
        .dy = op->dy,
        .x = op->x,
        .gamma = op->gamma,
        .mean = op->mean,
        .rstd = op->rstd,
        .add_to_dx = op->add_to_dx,
        .dx = op->dx,
        .gamma_acc = op->gamma_acc,
        .beta_acc = op->beta_acc,
    };
    all_rows_backward(stream, op->type, &b);
    return SW_OK;
}

static sw_status rmsnorm_backward(struct sw_stream *stream, const void *args) {
    const struct sw_rmsnorm_backward *op = args;
    const struct backward b = {.shape = *op->shape,
                               .dy = op->dy,
                               .x = op->x,
                               .gamma = op->gamma,
                               .rstd = op->rstd,
                               .add_to_dx = op->add_to_dx,
                               .dx = op->dx,
                               .gamma_acc = op->gamma_acc};
    all_rows_backward(stream, op->type, &b);
    return SW_OK;
}

void SW_ISA_NAME(sw_cpu_add_layernorm)(struct sw_device_ops *ops) {
    ops->op[SW_DEVICE_LAYERNORM_FORWARD] = layernorm_forward;
    ops->op[SW_DEVICE_RMSNORM_FORWARD] = rmsnorm_forward;
    ops->op[SW_DEVICE_ADD_NORM_FORWARD] = add_norm_forward;
    ops->op[SW_DEVICE_LAYERNORM_BACKWARD] = layernorm_backward;
    ops->op[SW_DEVICE_RMSNORM_BACKWARD] = rmsnorm_backward;
}
