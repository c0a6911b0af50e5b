#include "kernels/ref/ref.h"

#include <float.h>
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
            sw_dtype_store(type, d_logits, row * vocab + i, (float)(scale * gradient));
        }
    }
    return SW_OK;
}

static sw_status softmax_partial(struct sw_stream *stream, int64_t rows, int64_t tile_cols, int64_t first_col,
                                 const float *logits, const int32_t *targets, float *max, float *sum,
                                 float *target_logit) {
    (void)stream;
    for (int64_t row = 0; row < rows; row++) {
        const float *line = logits + row * tile_cols;
        const bool ignored = targets[row] < 0;
        if (first_col == 0) {
            max[row] = ignored ? 0.0f : -FLT_MAX;
            sum[row] = ignored ? 1.0f : 0.0f;
            target_logit[row] = 0.0f;
        }
        if (ignored)
            continue;
        double largest = max[row], total = 0.0;
        for (int64_t i = 0; i < tile_cols; i++)
            largest = fmax(largest, line[i]);
        for (int64_t i = 0; i < tile_cols; i++)
            total += exp(line[i] - largest);
        sum[row] = (float)(sum[row] * exp(max[row] - largest) + total);
        max[row] = (float)largest;
        if (targets[row] >= first_col && targets[row] < first_col + tile_cols)
            target_logit[row] = line[targets[row] - first_col];
    }
    return SW_OK;
}

static sw_status cross_entropy_tile(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t tile_cols,
                                    int64_t first_col, const float *logits, const int32_t *targets, float scale,
                                    const float *max, const float *sum, const float *target_logit, float *loss,
                                    void *d_logits) {
    (void)stream;
    for (int64_t row = 0; row < rows; row++) {
        const double lse = max[row] + log((double)sum[row]);
        const bool ignored = targets[row] < 0;
        if (loss != NULL && first_col == 0)
            loss[row] = ignored ? 0.0f : (float)(lse - target_logit[row]);
        for (int64_t i = 0; d_logits != NULL && i < tile_cols; i++) {
            const double target = first_col + i == targets[row] ? 1.0 : 0.0;
            const double gradient = ignored ? 0.0 : exp(logits[row * tile_cols + i] - lse) - target;
            sw_dtype_store(type, d_logits, row * tile_cols + i, (float)(scale * gradient));
        }
    }
    return SW_OK;
}

static sw_status sum_losses(struct sw_stream *stream, int64_t rows, const float *losses, double *total) {
    (void)stream;
    for (int64_t row = 0; row < rows; row++)
        *total += (double)losses[row];
    return SW_OK;
}

void sw_ref_add_cross_entropy(struct sw_device_ops *ops) {
    ops->sum_losses = sum_losses;
    ops->cross_entropy = cross_entropy;
    ops->softmax_partial = softmax_partial;
    ops->cross_entropy_tile = cross_entropy_tile;
}
