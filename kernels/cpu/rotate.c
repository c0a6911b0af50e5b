#include "kernels/cpu/tile.h"

SW_INLINE void rotate_row(const sw_dtype type, const struct sw_rotation *shape, const float *table, void *x,
                          int64_t row) {
    const int64_t half = shape->head_dim / 2;
    const float *cosines = table + row % shape->seq * shape->head_dim, *sines = cosines + half;
    for (int64_t head = 0; head < shape->heads; head++) {
        const int64_t at = row * shape->stride + head * shape->head_dim;
        for (int64_t i = 0; i < half; i += SW_LANES) {
            const int64_t rest = half - i;
            const sw_vec cosine = sw_load_up_to(SW_F32, cosines, i, rest, 0.0f);
            const sw_vec sine = sw_load_up_to(SW_F32, sines, i, rest, 0.0f), turn = shape->back ? -sine : sine;
            const sw_vec first = sw_load_up_to(type, x, at + i, rest, 0.0f);
            const sw_vec second = sw_load_up_to(type, x, at + half + i, rest, 0.0f);
            sw_store_up_to(type, x, at + i, rest, sw_vec_fma(first, cosine, -(second * turn)));
            sw_store_up_to(type, x, at + half + i, rest, sw_vec_fma(second, cosine, first * turn));
        }
    }
}

static void rotate_rows(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sw_rotate *op = args;
    for (int64_t row = first; row < end; row++)
        SW_FOR_TYPE(rotate_row, op->type, op->shape, op->table, op->x, row);
}

static sw_status rotate(struct sw_stream *stream, const void *args) {
    const struct sw_rotate *op = args;
    const int64_t rows = op->shape->batch * op->shape->seq;
    sw_cpu_share(stream, rows * op->shape->heads * op->shape->head_dim >= SW_PARALLEL_MIN_ELEMS, rows, rotate_rows, op);
    return SW_OK;
}

void SW_ISA_NAME(sw_cpu_add_rotate)(struct sw_device_ops *ops) {
    ops->op[SW_DEVICE_ROTATE] = rotate;
}
