#include "kernels/ref/ref.h"

static sw_status prepare_gemm(struct sw_device *device, struct sw_gemm_entry *entry) {
    (void)device;
    entry->scratch_bytes = 0;
    return SW_OK;
}

static void release_gemm(struct sw_device *device, struct sw_gemm_entry *entry) {
    (void)device;
    (void)entry;
}

/* Returns one element of op(A)·op(B). */
static double product(const struct sw_gemm *shape, const void *a, const void *b, int64_t row, int64_t col) {
    const int64_t a_stride = sw_gemm_a_stride(shape);
    double sum = 0.0;
    for (int64_t i = 0; i < shape->k; i++) {
        const int64_t a_index = shape->transpose_a ? i * a_stride + row : row * a_stride + i;
        const int64_t b_index = shape->transpose_b ? col * shape->k + i : i * shape->n + col;
        sum += (double)sw_dtype_load(shape->in, a, a_index) * sw_dtype_load(shape->in, b, b_index);
    }
    return sum;
}

static sw_status gemm(struct sw_stream *stream, struct sw_gemm_entry *entry, const void *a, const void *b,
                      const void *bias, const void *addend, void *c, void *scratch) {
    (void)stream;
    (void)scratch;
    const struct sw_gemm *shape = &entry->shape;
    for (int64_t row = 0; row < shape->m; row++) {
        for (int64_t col = 0; col < shape->n; col++) {
            const int64_t index = row * sw_gemm_c_stride(shape) + col;
            double sum = product(shape, a, b, row, col);
            if (shape->bias)
                sum += sw_dtype_load(shape->in, bias, col);
            if (shape->accumulate)
                sum += sw_dtype_load(shape->out, c, index);
            if (shape->addend)
                sum += sw_dtype_load(shape->out, addend, index);
            sw_dtype_store(shape->out, c, index, (float)sum);
        }
    }
    return SW_OK;
}

void sw_ref_add_gemm(struct sw_device_ops *ops) {
    ops->prepare_gemm = prepare_gemm;
    ops->release_gemm = release_gemm;
    ops->gemm = gemm;
}
