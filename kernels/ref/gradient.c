#include "kernels/ref/ref.h"
#include "kernels/tiling.h"

#include <math.h>

static double grain_sum(sw_dtype type, int64_t at, const void *grads) {
    double partial[SW_GRAIN_PARTIAL_SUMS] = {0};
    for (int64_t i = 0; i < SW_GRAIN_ELEMS; i++) {
        const double value = sw_dtype_load(type, grads, at + i);
        partial[i % SW_GRAIN_PARTIAL_SUMS] = fma(value, value, partial[i % SW_GRAIN_PARTIAL_SUMS]);
    }
    for (int64_t half = SW_GRAIN_PARTIAL_SUMS / 2; half >= 1; half /= 2) {
        for (int64_t i = 0; i < half; i++)
            partial[i] += partial[i + half];
    }
    return partial[0];
}

static sw_status square_sums(struct sw_stream *stream, const void *args) {
    const struct sw_square_sums *op = args;
    (void)stream;
    for (int64_t grain = 0; grain < op->elems / SW_GRAIN_ELEMS; grain++)
        op->sums[grain] = grain_sum(op->type, grain * SW_GRAIN_ELEMS, op->grads);
    return SW_OK;
}

static sw_status finish_8bit(struct sw_stream *stream, const struct sw_finish_gradient *op) {
    float values[SW_GRAIN_ELEMS];
    for (int64_t grain = 0; grain < op->elems / SW_GRAIN_ELEMS; grain++) {
        char *record = (char *)op->grads + grain * SW_GRADS_8BIT_GRAIN_BYTES;
        memset(record, 0, SW_GRADS_8BIT_GRAIN_BYTES);
        SW_TRY(sw_quantize(stream, SW_F32, SW_QUANT_INT8, 1, op->acc + grain * SW_GRAIN_ELEMS, record));
        for (int64_t i = 0; i < SW_GRAIN_ELEMS; i++)
            values[i] = sw_grads_8bit_at(record, i);
        op->sums[grain] = grain_sum(SW_F32, 0, values);
    }
    return SW_OK;
}

static sw_status finish_gradient(struct sw_stream *stream, const void *args) {
    const struct sw_finish_gradient *op = args;
    if (op->format == SW_GRADS_8BIT)
        return finish_8bit(stream, op);
    for (int64_t i = 0; i < op->elems; i++)
        sw_dtype_store(op->type, op->grads, i, op->acc[i]);
    return sw_square_sums(stream, op->type, op->elems, op->grads, op->sums);
}

/* A tile of rows is summed apart and then added, so that the accumulator rounds once a tile. */
static sw_status bias_gradient(struct sw_stream *stream, const void *args) {
    const struct sw_bias_gradient *op = args;
    (void)stream;
    for (int64_t first = 0; first < op->rows; first += SW_BIAS_TILE_ROWS) {
        const int64_t end = sw_min_i64(op->rows, first + SW_BIAS_TILE_ROWS);
        for (int64_t col = 0; col < op->cols; col++) {
            float sum = 0.0f;
            for (int64_t row = first; row < end; row++)
                sum += sw_dtype_load(op->type, op->dy, row * op->cols + col);
            op->acc[col] += sum;
        }
    }
    return SW_OK;
}

void sw_ref_add_gradient(struct sw_device_ops *ops) {
    ops->op[SW_DEVICE_BIAS_GRADIENT] = bias_gradient;
    ops->op[SW_DEVICE_FINISH_GRADIENT] = finish_gradient;
    ops->op[SW_DEVICE_SQUARE_SUMS] = square_sums;
}
