#include "kernels/cpu/isa.h"
#include "kernels/cpu/tile.h"
#include "kernels/cpu/vector_math.h"

#include <math.h>

/* Rows whose dx is made before their share of gamma_acc and beta_acc, so that the second reading finds them in cache.
 */
enum { BLOCK_ROWS = 32 };
/* Columns that one thread sums at once: whole cache lines of either type. */
enum { COLUMN_TILE = 128 };
static_assert((int)COLUMN_TILE <= (int)SW_TILE_ELEMS, "a tile of columns fits the buffer");

static float row_mean(sw_dtype type, const void *x, int64_t row_at, int64_t cols) {
    double total = 0.0;
    for (int64_t at = 0; at < cols; at += SW_TILE_ELEMS) {
        const int64_t count = sw_min_i64(SW_TILE_ELEMS, cols - at);
        struct sw_tile tile;
        const float *in = sw_tile_load(type, x, row_at + at, count, &tile);
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < count; i++)
            sum += in[i];
        total += sum;
    }
    return (float)(total / (double)cols);
}

static float row_rstd(sw_dtype type, const void *x, int64_t row_at, int64_t cols, float mean, float epsilon) {
    double total = 0.0;
    for (int64_t at = 0; at < cols; at += SW_TILE_ELEMS) {
        const int64_t count = sw_min_i64(SW_TILE_ELEMS, cols - at);
        struct sw_tile tile;
        const float *in = sw_tile_load(type, x, row_at + at, count, &tile);
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < count; i++)
            sum += (in[i] - mean) * (in[i] - mean);
        total += sum;
    }
    return (float)(1.0 / sqrt(total / (double)cols + epsilon));
}

static sw_status layernorm_forward(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t cols, float epsilon,
                                   const void *x, const void *gamma, const void *beta, void *y, float *mean,
                                   float *rstd) {
    const int threads = stream->device->info.threads;
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * cols >= SW_PARALLEL_MIN_ELEMS)
    for (int64_t row = 0; row < rows; row++) {
        const int64_t row_at = row * cols;
        const float centre = row_mean(type, x, row_at, cols);
        const float scale = row_rstd(type, x, row_at, cols, centre, epsilon);
        mean[row] = centre;
        rstd[row] = scale;
        for (int64_t at = 0; at < cols; at += SW_TILE_ELEMS) {
            const int64_t count = sw_min_i64(SW_TILE_ELEMS, cols - at);
            struct sw_tile x_tile, gamma_tile, beta_tile, y_tile;
            const float *in = sw_tile_load(type, x, row_at + at, count, &x_tile);
            const float *weight = sw_tile_load(type, gamma, at, count, &gamma_tile);
            const float *offset = sw_tile_load(type, beta, at, count, &beta_tile);
            float *out = sw_tile_target(type, y, row_at + at, &y_tile);
#pragma omp simd
            for (int64_t i = 0; i < count; i++)
                out[i] = sw_fma_fast((in[i] - centre) * scale, weight[i], offset[i]);
            sw_tile_store(type, y, row_at + at, count, &y_tile);
        }
    }
    return SW_OK;
}

/* The row's averages of g = dy·gamma and of g·n, with n = (x - mean)·rstd. */
struct row_averages {
    float g, g_normal;
};

/* What a backward call works on. */
struct backward {
    sw_dtype type;
    int64_t cols;
    const void *dy, *x, *gamma;
    const float *mean, *rstd;
    bool add_to_dx;
    void *dx;
    float *gamma_acc, *beta_acc;
};

static struct row_averages averages(const struct backward *b, int64_t row) {
    double total_g = 0.0, total_normal = 0.0;
    const float mean = b->mean[row], rstd = b->rstd[row];
    for (int64_t at = 0; at < b->cols; at += SW_TILE_ELEMS) {
        const int64_t count = sw_min_i64(SW_TILE_ELEMS, b->cols - at);
        struct sw_tile dy_tile, x_tile, gamma_tile;
        const float *gradient = sw_tile_load(b->type, b->dy, row * b->cols + at, count, &dy_tile);
        const float *in = sw_tile_load(b->type, b->x, row * b->cols + at, count, &x_tile);
        const float *weight = sw_tile_load(b->type, b->gamma, at, count, &gamma_tile);
        float sum = 0.0f, sum_normal = 0.0f;
#pragma omp simd reduction(+ : sum, sum_normal)
        for (int64_t i = 0; i < count; i++) {
            const float g = gradient[i] * weight[i];
            sum += g;
            sum_normal += g * ((in[i] - mean) * rstd);
        }
        total_g += sum;
        total_normal += sum_normal;
    }
    return (struct row_averages){.g = (float)(total_g / (double)b->cols),
                                 .g_normal = (float)(total_normal / (double)b->cols)};
}

static void row_dx(const struct backward *b, int64_t row) {
    const struct row_averages average = averages(b, row);
    const float mean = b->mean[row], rstd = b->rstd[row];
    for (int64_t at = 0; at < b->cols; at += SW_TILE_ELEMS) {
        const int64_t count = sw_min_i64(SW_TILE_ELEMS, b->cols - at), index = row * b->cols + at;
        struct sw_tile dy_tile, x_tile, gamma_tile, before_tile, dx_tile;
        const float *gradient = sw_tile_load(b->type, b->dy, index, count, &dy_tile);
        const float *in = sw_tile_load(b->type, b->x, index, count, &x_tile);
        const float *weight = sw_tile_load(b->type, b->gamma, at, count, &gamma_tile);
        memset(before_tile.value, 0, sizeof before_tile.value);
        const float *before =
            b->add_to_dx ? sw_tile_load(b->type, b->dx, index, count, &before_tile) : before_tile.value;
        float *out = sw_tile_target(b->type, b->dx, index, &dx_tile);
#pragma omp simd
        for (int64_t i = 0; i < count; i++) {
            const float normal = (in[i] - mean) * rstd;
            const float inner = gradient[i] * weight[i] - average.g - normal * average.g_normal;
            out[i] = sw_fma_fast(inner, rstd, before[i]);
        }
        sw_tile_store(b->type, b->dx, index, count, &dx_tile);
    }
}

/* Rows in order, one by one, straight into the accumulators: the order that the contract fixes. */
static void column_sums(const struct backward *b, int64_t first_row, int64_t end_row, int64_t at, int64_t count) {
    float *restrict gamma_sum = b->gamma_acc + at, *restrict beta_sum = b->beta_acc + at;
    for (int64_t row = first_row; row < end_row; row++) {
        struct sw_tile dy_tile, x_tile;
        const float *gradient = sw_tile_load(b->type, b->dy, row * b->cols + at, count, &dy_tile);
        const float *in = sw_tile_load(b->type, b->x, row * b->cols + at, count, &x_tile);
        const float mean = b->mean[row], rstd = b->rstd[row];
#pragma omp simd
        for (int64_t i = 0; i < count; i++) {
            gamma_sum[i] += gradient[i] * ((in[i] - mean) * rstd);
            beta_sum[i] += gradient[i];
        }
    }
}

static sw_status layernorm_backward(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t cols, const void *dy,
                                    const void *x, const void *gamma, const float *mean, const float *rstd,
                                    bool add_to_dx, void *dx, float *gamma_acc, float *beta_acc) {
    const int threads = stream->device->info.threads;
    const struct backward b = {.type = type,
                               .cols = cols,
                               .dy = dy,
                               .x = x,
                               .gamma = gamma,
                               .mean = mean,
                               .rstd = rstd,
                               .add_to_dx = add_to_dx,
                               .dx = dx,
                               .gamma_acc = gamma_acc,
                               .beta_acc = beta_acc};
    const int64_t block_rows = BLOCK_ROWS * (int64_t)threads;
#pragma omp parallel num_threads(threads) if (rows * cols >= SW_PARALLEL_MIN_ELEMS)
    for (int64_t first = 0; first < rows; first += block_rows) {
        const int64_t end = sw_min_i64(rows, first + block_rows);
#pragma omp for schedule(static) nowait
        for (int64_t row = first; row < end; row++)
            row_dx(&b, row);
#pragma omp for schedule(static)
        for (int64_t at = 0; at < cols; at += COLUMN_TILE)
            column_sums(&b, first, end, at, sw_min_i64(COLUMN_TILE, cols - at));
    }
    return SW_OK;
}

void SW_ISA_NAME(sw_cpu_add_layernorm)(struct sw_device_ops *ops) {
    ops->layernorm_forward = layernorm_forward;
    ops->layernorm_backward = layernorm_backward;
}
