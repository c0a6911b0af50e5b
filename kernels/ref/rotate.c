#include "kernels/ref/ref.h"

static void rotate_head(sw_dtype type, int64_t head_dim, bool back, const float *table, void *x, int64_t at) {
    const int64_t half = head_dim / 2;
    for (int64_t i = 0; i < half; i++) {
        const double cosine = table[i], sine = back ? -table[half + i] : table[half + i];
        const double first = sw_dtype_load(type, x, at + i), second = sw_dtype_load(type, x, at + half + i);
        sw_dtype_store(type, x, at + i, (float)(first * cosine - second * sine));
        sw_dtype_store(type, x, at + half + i, (float)(second * cosine + first * sine));
    }
}

static sw_status rotate(struct sw_stream *stream, const void *args) {
    const struct sw_rotate *op = args;
    (void)stream;
    for (int64_t row = 0; row < op->shape->batch * op->shape->seq; row++) {
        for (int64_t head = 0; head < op->shape->heads; head++)
            rotate_head(op->type, op->shape->head_dim, op->shape->back,
                        op->table + row % op->shape->seq * op->shape->head_dim, op->x,
                        row * op->shape->stride + head * op->shape->head_dim);
    }
    return SW_OK;
}

void sw_ref_add_rotate(struct sw_device_ops *ops) {
    ops->op[SW_DEVICE_ROTATE] = rotate;
}
