#include "kernels/ref/ref.h"

#include <math.h>

static double log_sum_exp(int64_t vocab, const float *logits) {
    double largest = -INFINITY, sum = 0.0;
    for (int64_t i = 0; i < vocab; i++)
        largest = fmax(largest, logits[i]);
    for (int64_t i = 0; i < vocab; i++)
        sum += exp(logits[i] - largest);
    return largest + log(sum);
}

static sw_status cross_entropy(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t vocab,
                               const float *logits, const int32_t *targets, float scale, float *loss, void *d_logits) {
    (void)stream;
    for (int64_t row = 0; row < rows; row++) {
        const float *line = logits + row * vocab;
        const int32_t target = targets[row];
        const double lse = target < 0 ? 0.0 : log_sum_exp(vocab, line);
        loss[row] = target < 0 ? 0.0f : (float)(lse - line[target]);
        for (int64_t i = 0; d_logits != NULL && i < vocab; i++) {
            const double gradient = target < 0 ? 0.0 : exp(line[i] - lse) - (i == target ? 1.0 : 0.0);
            sw_ref_store(type, d_logits, row * vocab + i, (float)(scale * gradient));
        }
    }
    return SW_OK;
}

void sw_ref_add_cross_entropy(struct sw_device_ops *ops) {
    ops->cross_entropy = cross_entropy;
}
