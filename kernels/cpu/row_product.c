/* The product of one row and a matrix, which is all that continuing a text consists of. Reading the matrix is the
 * bottleneck: it is read once, in its own type, in the longest possible runs. Every element of the result is one sum in
 * a fixed order. */
#include "kernels/cpu/tile.h"

enum { ROWS = 8, SUMS = 4, DOTS = 64, MOST_COLUMNS = 2048 };
/* The hardware's own prefetching leaves a third of the memory's rate unused. */
enum { AHEAD_BYTES = 4096, LINE_BYTES = 64 };

struct call {
    const struct sw_gemm *shape;
    const float *x; /* the row in fp32, padded with zeros to a whole vector */
    const void *b, *bias;
    void *y;
};

static int64_t scratch_bytes(const struct sw_gemm *shape) {
    return sw_round_up(shape->k, SW_LANES) * (int64_t)sizeof(float);
}

static float bias_at(const struct call *c, int64_t col) {
    return c->shape->bias ? sw_dtype_load(c->shape->in, c->bias, col) : 0.0f;
}

/* Prefetches `count` elements from `at` on. Addresses beyond the tensor are harmless. */
SW_INLINE void prefetch(const sw_dtype type, const void *tensor, int64_t at, const int64_t count) {
    const char *from = (const char *)tensor + at * sw_dtype_bytes(type);
    for (int64_t line = 0; line < count * sw_dtype_bytes(type); line += LINE_BYTES)
        __builtin_prefetch(from + line);
}

/* Multiplies by a stored row of the transposed matrix, in several independent sums. */
SW_INLINE void dot(const sw_dtype type, const struct call *c, int64_t row) {
    const int64_t k = c->shape->k, at = row * k, ahead = at + AHEAD_BYTES / sw_dtype_bytes(type);
    sw_vec sum[SUMS] = {0};
    int64_t i = 0;
    for (; i + SUMS * SW_LANES <= k; i += SUMS * SW_LANES) {
        prefetch(type, c->b, ahead + i, SUMS * SW_LANES);
        for (int64_t s = 0; s < SUMS; s++) {
            const int64_t from = i + s * SW_LANES;
            sum[s] = sw_vec_fma(sw_vec_load(c->x + from), sw_load(type, c->b, at + from), sum[s]);
        }
    }
    for (; i < k; i += SW_LANES)
        sum[0] = sw_vec_fma(sw_vec_load(c->x + i), sw_load_up_to(type, c->b, at + i, k - i, 0.0f), sum[0]);
    const float total = sw_vec_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
    sw_dtype_store(c->shape->out, c->y, row, total + bias_at(c, row));
}
static_assert(SUMS == 4, "as many are added at the end");

SW_INLINE void dots(const sw_dtype type, const struct call *c, int64_t first, int64_t count) {
    for (int64_t row = first; row < first + count; row++)
        dot(type, c, row);
}

/* Adds `rows` stored rows of the matrix from row k on, times those elements of x, to the sums of some columns. */
SW_INLINE void add_rows(const sw_dtype type, const struct call *c, int64_t k, const int64_t rows, int64_t first_col,
                        int64_t cols, float *sum) {
    const int64_t n = c->shape->n, at = k * n + first_col;
    int64_t col = 0;
    for (; col + 2 * SW_LANES <= cols; col += 2 * SW_LANES) {
        sw_vec low = {0}, high = {0};
        for (int64_t r = 0; r < rows; r++) {
            const sw_vec x = sw_vec_splat(c->x[k + r]);
            const int64_t from = at + r * n + col;
            prefetch(type, c->b, from + rows * n, 2 * SW_LANES);
            low = sw_vec_fma(x, sw_load(type, c->b, from), low);
            high = sw_vec_fma(x, sw_load(type, c->b, from + SW_LANES), high);
        }
        sw_vec_store(sum + col, sw_vec_load(sum + col) + low);
        sw_vec_store(sum + col + SW_LANES, sw_vec_load(sum + col + SW_LANES) + high);
    }
    for (; col < cols; col += SW_LANES) {
        sw_vec part = {0};
        for (int64_t r = 0; r < rows; r++)
            part = sw_vec_fma(sw_vec_splat(c->x[k + r]), sw_load_up_to(type, c->b, at + r * n + col, cols - col, 0.0f),
                              part);
        sw_vec_store(sum + col, sw_vec_load(sum + col) + part);
    }
}

SW_INLINE void columns(const sw_dtype type, const struct call *c, int64_t first, int64_t count) {
    float sum[MOST_COLUMNS] = {0};
    int64_t k = 0;
    for (; k + ROWS <= c->shape->k; k += ROWS)
        add_rows(type, c, k, ROWS, first, count, sum);
    for (; k < c->shape->k; k++)
        add_rows(type, c, k, 1, first, count, sum);
    for (int64_t col = 0; col < count; col++)
        sw_dtype_store(c->shape->out, c->y, first + col, sum[col] + bias_at(c, first + col));
}
static_assert((int)MOST_COLUMNS % (int)SW_LANES == 0, "the last vector of the sums is whole");

struct runs {
    const struct call *call;
    int64_t columns; /* of each run */
};

static void some_runs(const void *context, int64_t first_run, int64_t end_run, int thread) {
    (void)thread;
    const struct runs *runs = context;
    const struct sw_gemm *shape = runs->call->shape;
    for (int64_t run = first_run; run < end_run; run++) {
        const int64_t first = run * runs->columns, count = sw_min_i64(runs->columns, shape->n - first);
        if (shape->transpose_b)
            SW_FOR_TYPE(dots, shape->in, runs->call, first, count);
        else
            SW_FOR_TYPE(columns, shape->in, runs->call, first, count);
    }
}

/* Widens the row, which with transpose_a is a column of the stored A. */
static void widen_row(const struct sw_gemm *shape, const void *a, float *x) {
    const int64_t step = shape->transpose_a ? sw_gemm_a_stride(shape) : 1;
    if (step == 1)
        sw_widen(shape->in, a, 0, shape->k, x);
    for (int64_t i = 0; step > 1 && i < shape->k; i++)
        x[i] = sw_dtype_load(shape->in, a, i * step);
}

static sw_status row_product(struct sw_stream *stream, const struct sw_gemm *shape, const void *a, const void *b,
                             const void *bias, void *y, float *scratch) {
    const struct call c = {.shape = shape, .x = scratch, .b = b, .bias = bias, .y = y};
    const int threads = shape->n * shape->k < SW_PARALLEL_MIN_ELEMS ? 1 : stream->device->info.threads;
    /* Which thread sums an element does not change the sum. */
    const int64_t even = sw_round_up(sw_div_up(shape->n, threads), SW_LANES);
    const struct runs runs = {.call = &c, .columns = shape->transpose_b ? DOTS : sw_min_i64(even, MOST_COLUMNS)};
    memset(scratch, 0, (size_t)scratch_bytes(shape));
    widen_row(shape, a, scratch);
    sw_cpu_share(stream, threads > 1, sw_div_up(shape->n, runs.columns), some_runs, &runs);
    return SW_OK;
}

void SW_ISA_NAME(sw_cpu_add_row_product)(struct sw_device_ops *ops) {
    ops->row_product_scratch_bytes = scratch_bytes;
    ops->row_product = row_product;
}
