#include "kernels/ref/ref.h"
#include "kernels/tiling.h"

/* A tile of rows is summed apart and then added, so that the accumulator rounds once a tile. */
static sw_status bias_gradient(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t cols, const void *dy,
                               float *acc) {
    (void)stream;
    for (int64_t first = 0; first < rows; first += SW_BIAS_TILE_ROWS) {
        const int64_t end = sw_min_i64(rows, first + SW_BIAS_TILE_ROWS);
        for (int64_t col = 0; col < cols; col++) {
            float sum = 0.0f;
            for (int64_t row = first; row < end; row++)
                sum += sw_dtype_load(type, dy, row * cols + col);
            acc[col] += sum;
        }
    }
    return SW_OK;
}

void sw_ref_add_columns(struct sw_device_ops *ops) {
    ops->bias_gradient = bias_gradient;
}
