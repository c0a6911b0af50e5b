#include "kernels/cpu/isa.h"
#include "kernels/cpu/tile.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/tiling.h"

#include <float.h>
#include <math.h>

/* The largest logit so far, and the sum of exp(logit - largest). They are kept separately: their logarithm would round
 * away what large logits need. */
struct softmax {
    float largest, sum;
};

/* Starts finite, so that the difference of two is a number. */
static const struct softmax nothing_yet = {.largest = -FLT_MAX, .sum = 0.0f};

/* Independent sums, so that none waits for the one before. */
enum { LARGEST = 4, SUMS = 2 };

static float largest_of(float before, int64_t count, const float *logits) {
    sw_vec largest[LARGEST];
    for (int j = 0; j < LARGEST; j++)
        largest[j] = sw_vec_splat(before);
    int64_t i = 0;
    for (; i + LARGEST * SW_LANES <= count; i += LARGEST * SW_LANES) {
        for (int j = 0; j < LARGEST; j++)
            largest[j] = sw_vec_max(sw_vec_load(logits + i + j * SW_LANES), largest[j]);
    }
    for (; i < count; i += SW_LANES)
        largest[0] = sw_vec_max(sw_load_up_to(SW_F32, logits, i, count - i, -FLT_MAX), largest[0]);
    return sw_vec_largest(sw_vec_max(sw_vec_max(largest[0], largest[1]), sw_vec_max(largest[2], largest[3])));
}

static float sum_of_exponentials(float largest, int64_t count, const float *logits) {
    sw_vec sum[SUMS] = {{0}};
    int64_t i = 0;
    for (; i + SUMS * SW_LANES <= count; i += SUMS * SW_LANES) {
        for (int j = 0; j < SUMS; j++)
            sum[j] += sw_vec_exp(sw_vec_load(logits + i + j * SW_LANES) - largest);
    }
    for (; i < count; i += SW_LANES)
        sum[0] += sw_vec_exp(sw_load_up_to(SW_F32, logits, i, count - i, -INFINITY) - largest);
    return sw_vec_sum(sum[0] + sum[1]);
}

/* Processes columns block by block. A block is read twice, the second time from the first-level cache. */
static struct softmax take_columns(struct softmax s, int64_t cols, const float *logits) {
    for (int64_t at = 0; at < cols; at += SW_SOFTMAX_BLOCK_COLUMNS) {
        const int64_t count = sw_min_i64(SW_SOFTMAX_BLOCK_COLUMNS, cols - at);
        const float largest = largest_of(s.largest, count, logits + at);
        const float rescale = largest == s.largest ? 1.0f : expf(s.largest - largest);
        s.sum = s.sum * rescale + sum_of_exponentials(largest, count, logits + at);
        s.largest = largest;
    }
    return s;
}

static float loss_of(struct softmax s, float target_logit) {
    return logf(s.sum) + (s.largest - target_logit);
}

/* Writes d_logits of one row of columns. target is relative to the first of them, and may be outside. */
static void gradient(sw_dtype type, int64_t cols, const float *logits, struct softmax s, int64_t target, float scale,
                     void *d_logits, int64_t row_at) {
    const float factor = scale / s.sum;
    for (int64_t at = 0; at < cols; at += SW_TILE_ELEMS) {
        const int64_t count = sw_min_i64(SW_TILE_ELEMS, cols - at);
        struct sw_tile tile;
        float *out = sw_tile_target(type, d_logits, row_at + at, &tile);
        for (int64_t i = 0; i < count; i += SW_LANES) {
            const sw_vec logit = sw_load_up_to(SW_F32, logits, at + i, count - i, 0.0f);
            sw_store_up_to(SW_F32, out, i, count - i, sw_vec_exp(logit - s.largest) * factor);
        }
        sw_tile_store(type, d_logits, row_at + at, count, &tile);
    }
    if (target >= 0 && target < cols)
        sw_dtype_store(type, d_logits, row_at + target, scale * (expf(logits[target] - s.largest) / s.sum - 1.0f));
}

static void no_gradient(sw_dtype type, int64_t cols, void *d_logits, int64_t row_at) {
    memset((char *)d_logits + row_at * sw_dtype_bytes(type), 0, (size_t)(cols * sw_dtype_bytes(type)));
}

static float scale_of(float scale, const float *row_scale, int64_t row) {
    return row_scale == NULL ? scale : scale * row_scale[row];
}

static void cross_entropy_rows(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sw_cross_entropy *op = args;
    for (int64_t row = first; row < end; row++) {
        const float *line = op->logits + row * op->stride;
        if (op->targets[row] < 0) {
            op->loss[row] = 0.0f;
            if (op->d_logits != NULL)
                no_gradient(op->type, op->vocab, op->d_logits, row * op->stride);
            continue;
        }
        const struct softmax s = take_columns(nothing_yet, op->vocab, line);
        op->loss[row] = loss_of(s, line[op->targets[row]]);
        if (op->d_logits != NULL)
            gradient(op->type, op->vocab, line, s, op->targets[row], scale_of(op->scale, op->row_scale, row),
                     op->d_logits, row * op->stride);
    }
}

static sw_status cross_entropy(struct sw_stream *stream, const void *args) {
    const struct sw_cross_entropy *op = args;
    sw_cpu_share(stream, op->rows * op->vocab >= SW_PARALLEL_MIN_ELEMS, op->rows, cross_entropy_rows, op);
    return SW_OK;
}

static void partial_rows(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sw_softmax_partial *op = args;
    for (int64_t row = first; row < end; row++) {
        const float *line = op->logits + row * op->stride;
        const int64_t target = op->targets[row] - op->first_col;
        struct softmax s = {.largest = 0.0f, .sum = 1.0f};
        const bool begins = op->first_col == op->begin_col;
        if (begins)
            op->target_logit[row] = 0.0f;
        if (op->targets[row] >= 0)
            s = take_columns(begins ? nothing_yet : (struct softmax){op->max[row], op->sum[row]}, op->tile_cols, line);
        if (op->targets[row] >= 0 && target >= 0 && target < op->tile_cols)
            op->target_logit[row] = line[target];
        op->max[row] = s.largest;
        op->sum[row] = s.sum;
    }
}

static sw_status softmax_partial(struct sw_stream *stream, const void *args) {
    const struct sw_softmax_partial *op = args;
    sw_cpu_share(stream, op->rows * op->tile_cols >= SW_PARALLEL_MIN_ELEMS, op->rows, partial_rows, op);
    return SW_OK;
}

static void tile_rows(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sw_cross_entropy_tile *op = args;
    for (int64_t row = first; row < end; row++) {
        const int64_t row_at = row * op->stride;
        const struct softmax s = {.largest = op->max[row], .sum = op->sum[row]};
        if (op->loss != NULL && op->first_col == 0)
            op->loss[row] = op->targets[row] < 0 ? 0.0f : loss_of(s, op->target_logit[row]);
        if (op->d_logits != NULL && op->targets[row] < 0)
            no_gradient(op->type, op->tile_cols, op->d_logits, row_at);
        else if (op->d_logits != NULL)
            gradient(op->type, op->tile_cols, op->logits + row_at, s, op->targets[row] - op->first_col,
                     scale_of(op->scale, op->row_scale, row), op->d_logits, row_at);
    }
}

static sw_status cross_entropy_tile(struct sw_stream *stream, const void *args) {
    const struct sw_cross_entropy_tile *op = args;
    sw_cpu_share(stream, op->rows * op->tile_cols >= SW_PARALLEL_MIN_ELEMS, op->rows, tile_rows, op);
    return SW_OK;
}

void SW_ISA_NAME(sw_cpu_add_cross_entropy)(struct sw_device_ops *ops) {
    ops->op[SW_DEVICE_CROSS_ENTROPY] = cross_entropy;
    ops->op[SW_DEVICE_SOFTMAX_PARTIAL] = softmax_partial;
    ops->op[SW_DEVICE_CROSS_ENTROPY_TILE] = cross_entropy_tile;
}
