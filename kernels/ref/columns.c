#include "kernels/ref/ref.h"
#include "kernels/tiling.h"

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

void sw_ref_add_columns(struct sw_device_ops *ops) {
    ops->op[SW_DEVICE_BIAS_GRADIENT] = bias_gradient;
}
