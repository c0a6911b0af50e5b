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

static double scale_of(float scale, const float *row_scale, int64_t row) {
    return row_scale == NULL ? (double)scale : (double)scale * (double)row_scale[row];
}

static sw_status cross_entropy(struct sw_stream *stream, const void *args) {
    const struct sw_cross_entropy *op = args;
    (void)stream;
    for (int64_t row = 0; row < op->rows; row++) {
        const float *line = op->logits + row * op->stride;
        const int32_t target = op->targets[row];
        const double scale = scale_of(op->scale, op->row_scale, row);
        const double lse = target < 0 ? 0.0 : log_sum_exp(op->vocab, line);
        op->loss[row] = target < 0 ? 0.0f : (float)(lse - line[target]);
        for (int64_t i = 0; op->d_logits != NULL && i < op->vocab; i++) {
            const double gradient = target < 0 ? 0.0 : exp(line[i] - lse) - (i == target ? 1.0 : 0.0);
            sw_dtype_store(op->type, op->d_logits, row * op->stride + i, (float)(scale * gradient));
        }
    }
    return SW_OK;
}

static sw_status softmax_partial(struct sw_stream *stream, const void *args) {
    const struct sw_softmax_partial *op = args;
    (void)stream;
    for (int64_t row = 0; row < op->rows; row++) {
        const float *line = op->logits + row * op->stride;
        const bool ignored = op->targets[row] < 0;
        if (op->first_col == op->begin_col) {
            op->max[row] = ignored ? 0.0f : -FLT_MAX;
            op->sum[row] = ignored ? 1.0f : 0.0f;
            op->target_logit[row] = 0.0f;
        }
        if (ignored)
            continue;
        double largest = op->max[row], total = 0.0;
        for (int64_t i = 0; i < op->tile_cols; i++)
            largest = fmax(largest, line[i]);
        for (int64_t i = 0; i < op->tile_cols; i++)
            total += exp(line[i] - largest);
        op->sum[row] = (float)(op->sum[row] * exp(op->max[row] - largest) + total);
        op->max[row] = (float)largest;
        if (op->targets[row] >= op->first_col && op->targets[row] < op->first_col + op->tile_cols)
            op->target_logit[row] = line[op->targets[row] - op->first_col];
    }
    return SW_OK;
}

/* Rows without a target get values that no pass reads. */
static sw_status softmax_combine(struct sw_stream *stream, const void *args) {
    const struct sw_softmax_combine *op = args;
    (void)stream;
    for (int64_t row = 0; row < op->rows; row++) {
        const float *part = op->part + row;
        double largest = part[0], sum = 0.0, target_logit = 0.0;
        for (int64_t p = 1; p < op->parts; p++)
            largest = fmax(largest, part[p * op->part_stride]);
        for (int64_t p = 0; p < op->parts; p++) {
            const float *at = part + p * op->part_stride;
            sum += at[op->row_stride] * exp(at[0] - largest);
            target_logit += at[2 * op->row_stride];
        }
        op->max[row] = (float)largest;
        op->sum[row] = (float)sum;
        op->target_logit[row] = (float)target_logit;
    }
    return SW_OK;
}

static sw_status cross_entropy_tile(struct sw_stream *stream, const void *args) {
    const struct sw_cross_entropy_tile *op = args;
    (void)stream;
    for (int64_t row = 0; row < op->rows; row++) {
        const double lse = op->max[row] + log((double)op->sum[row]);
        const bool ignored = op->targets[row] < 0;
        const double scale = scale_of(op->scale, op->row_scale, row);
        if (op->loss != NULL && op->first_col == 0)
            op->loss[row] = ignored ? 0.0f : (float)(lse - op->target_logit[row]);
        for (int64_t i = 0; op->d_logits != NULL && i < op->tile_cols; i++) {
            const double target = op->first_col + i == op->targets[row] ? 1.0 : 0.0;
            const double gradient = ignored ? 0.0 : exp(op->logits[row * op->stride + i] - lse) - target;
            sw_dtype_store(op->type, op->d_logits, row * op->stride + i, (float)(scale * gradient));
        }
    }
    return SW_OK;
}

static sw_status sum_losses(struct sw_stream *stream, const void *args) {
    const struct sw_sum_losses *op = args;
    (void)stream;
    for (int64_t row = 0; row < op->rows; row++)
        *op->total += (double)op->losses[row];
    return SW_OK;
}

static double sum_of(int64_t count, const float *losses) {
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++)
        sum += (double)losses[i];
    return sum;
}

static sw_status preference(struct sw_stream *stream, const void *args) {
    const struct sw_preference *op = args;
    (void)stream;
    for (int64_t pair = 0; pair < op->pairs; pair++) {
        double *sums = op->sums + 2 * pair;
        const double *reference = op->reference + 2 * pair;
        const int64_t chosen = 2 * pair * op->seq, rejected = chosen + op->seq;
        sums[0] = sum_of(op->seq, op->losses + chosen);
        sums[1] = sum_of(op->seq, op->losses + rejected);
        const double margin = (-sums[0] - reference[0]) - (-sums[1] - reference[1]);
        const double derivative = isnan(reference[0]) ? 0.0 : op->beta / (1.0 + exp(op->beta * margin));
        for (int64_t i = 0; op->row_scale != NULL && i < op->seq; i++) {
            op->row_scale[chosen + i] = (float)derivative;
            op->row_scale[rejected + i] = (float)-derivative;
        }
    }
    return SW_OK;
}

void sw_ref_add_cross_entropy(struct sw_device_ops *ops) {
    ops->op[SW_DEVICE_SUM_LOSSES] = sum_losses;
    ops->op[SW_DEVICE_PREFERENCE] = preference;
    ops->op[SW_DEVICE_CROSS_ENTROPY] = cross_entropy;
    ops->op[SW_DEVICE_SOFTMAX_PARTIAL] = softmax_partial;
    ops->op[SW_DEVICE_SOFTMAX_COMBINE] = softmax_combine;
    ops->op[SW_DEVICE_CROSS_ENTROPY_TILE] = cross_entropy_tile;
}
