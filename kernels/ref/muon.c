/* The products of the Muon update, term by term. */
#include "kernels/muon.h"
#include "kernels/ref/ref.h"

#include <math.h>

static void gram(struct sw_stream *stream, int64_t rows, int64_t terms, const float *from, float *to) {
    (void)stream;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < rows; j++) {
            float sum = 0.0f;
            for (int64_t k = 0; k < terms; k++)
                sum = fmaf(from[i * terms + k], from[j * terms + k], sum);
            to[i * rows + j] = sum;
        }
}

static void product(struct sw_stream *stream, int64_t rows, int64_t cols, const float *left, const float *right,
                    float *to) {
    (void)stream;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) {
            float sum = 0.0f;
            for (int64_t k = 0; k < rows; k++)
                sum = fmaf(left[i * rows + k], right[k * cols + j], sum);
            to[i * cols + j] = sum;
        }
}

static void share(struct sw_stream *stream, int64_t elems, int64_t items, sw_muon_items run, const void *context) {
    (void)stream;
    (void)elems;
    run(context, 0, items, 0);
}

static sw_status update_muon(struct sw_stream *stream, const struct sw_update_muon *args) {
    const struct sw_muon_products products = {.gram = gram, .product = product, .share = share};
    sw_muon_update(stream, &products, args);
    return SW_OK;
}

void sw_ref_add_muon(struct sw_device_ops *ops) {
    ops->update_muon = update_muon;
}
