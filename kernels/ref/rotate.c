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

static sw_status rotate(struct sw_stream *stream, sw_dtype type, const struct sw_rotation *shape, const float *table,
                        void *x) {
    (void)stream;
    for (int64_t row = 0; row < shape->batch * shape->seq; row++) {
        for (int64_t head = 0; head < shape->heads; head++)
            rotate_head(type, shape->head_dim, shape->back, table + row % shape->seq * shape->head_dim, x,
                        row * shape->stride + head * shape->head_dim);
    }
    return SW_OK;
}

void sw_ref_add_rotate(struct sw_device_ops *ops) {
    ops->rotate = rotate;
}
