/* The loss and its gradient, whole and by tiles of the vocabulary. */
#include "core/size.h"
#include "kernels/self_test/ops.h"
#include "kernels/tiling.h"

#include <string.h>

/* Logarithms and sums of exponentials in fp32, beside those of the reference in double. */
static const struct trial_tolerance LOSS = {2e-6, 4e-6}, GRADIENT = {4e-6, 4e-7}, SUM = {4e-6, 1e-6}, EXACT = {0, 0};
static const float SCALE = 0.25f;

/* Some rows have no target. */
static const int32_t *targets_of(struct trial *trial, const struct test_rows *s) {
    return trial_operand(trial, (struct trial_operand){.name = "targets",
                                                       .type = ELEMENT_I32,
                                                       .elems = s->rows,
                                                       .fill = FILL_INDICES,
                                                       .first = -1,
                                                       .limit = s->cols});
}

sw_status trial_cross_entropy(struct trial *trial) {
    const struct test_rows *s = trial->shape;
    const int64_t stride = sw_round_up(s->cols, TRIAL_ROW_MULTIPLE), elems = s->rows * stride;
    const float *logits = trial_input(trial, "logits", SW_F32, elems, 2.0f);
    const int32_t *targets = targets_of(trial, s);
    float *loss = trial_output(trial, "loss", SW_F32, s->rows, LOSS);
    void *gradient = trial_output(trial, "d_logits", trial->type, elems, GRADIENT);
    if (trial->pass < TRIAL_REFERENCE)
        return SW_OK;
    return sw_cross_entropy(trial->stream, trial->type, s->rows, s->cols, stride, SCALE, logits, targets, loss,
                            gradient);
}

/* Two tiles, the second of which is ragged and has gaps between rows: both hold the columns of the whole in their own
 * order. */
struct tiles {
    int64_t cols[2], stride[2];
    const float *logits[2];
    const int32_t *targets;
};

static struct tiles tiles_of(struct trial *trial) {
    const struct test_rows *s = trial->shape;
    struct tiles t = {0};
    t.cols[0] = s->cols > SW_SOFTMAX_BLOCK_COLUMNS ? s->cols / 2 / SW_SOFTMAX_BLOCK_COLUMNS * SW_SOFTMAX_BLOCK_COLUMNS
                                                   : s->cols;
    t.cols[0] = sw_max_i64(t.cols[0], sw_min_i64(s->cols, SW_SOFTMAX_BLOCK_COLUMNS));
    t.cols[1] = s->cols - t.cols[0];
    t.stride[0] = t.cols[0];
    t.stride[1] = sw_round_up(t.cols[1], TRIAL_ROW_MULTIPLE);
    for (int i = 0; i < 2 && t.cols[i] > 0; i++)
        t.logits[i] = trial_input(trial, "logits", SW_F32, s->rows * t.stride[i], 2.0f);
    t.targets = targets_of(trial, s);
    return t;
}

static sw_status take_tiles(struct sw_stream *stream, const struct test_rows *s, const struct tiles *t, float *max,
                            float *sum, float *target_logit) {
    SW_TRY(sw_softmax_partial(stream, s->rows, t->cols[0], t->stride[0], 0, t->logits[0], t->targets, max, sum,
                              target_logit, .begin_col = 0));
    if (t->cols[1] == 0)
        return SW_OK;
    return sw_softmax_partial(stream, s->rows, t->cols[1], t->stride[1], t->cols[0], t->logits[1], t->targets, max, sum,
                              target_logit, .begin_col = 0);
}

sw_status trial_softmax_partial(struct trial *trial) {
    const struct test_rows *s = trial->shape;
    const struct tiles t = tiles_of(trial);
    float *max = trial_output(trial, "max", SW_F32, s->rows, EXACT);
    float *sum = trial_output(trial, "sum", SW_F32, s->rows, SUM);
    float *target_logit = trial_output(trial, "the target's logit", SW_F32, s->rows, EXACT);
    if (trial->pass < TRIAL_REFERENCE)
        return SW_OK;
    return take_tiles(trial->stream, s, &t, max, sum, target_logit);
}

/* As many parts as a large tensor group has ranks. */
sw_status trial_softmax_combine(struct trial *trial) {
    enum { PARTS = 8 };
    const struct test_rows *s = trial->shape;
    const float *part = trial_input(trial, "parts", SW_F32, (int64_t)PARTS * 3 * s->rows, 2.0f);
    float *max = trial_output(trial, "max", SW_F32, s->rows, EXACT);
    float *sum = trial_output(trial, "sum", SW_F32, s->rows, SUM);
    float *target_logit = trial_output(trial, "the target's logit", SW_F32, s->rows, SUM);
    return trial->pass < TRIAL_REFERENCE
               ? SW_OK
               : sw_softmax_combine(trial->stream, s->rows, PARTS, 3 * s->rows, s->rows, part, max, sum, target_logit);
}

sw_status trial_cross_entropy_tile(struct trial *trial) {
    const struct test_rows *s = trial->shape;
    const struct tiles t = tiles_of(trial);
    float *max = (float *)trial_input(trial, "max", SW_F32, s->rows, 1.0f);
    float *sum = (float *)trial_input(trial, "sum", SW_F32, s->rows, 1.0f);
    float *target_logit = (float *)trial_input(trial, "the target's logit", SW_F32, s->rows, 1.0f);
    float *loss = trial_output(trial, "loss", SW_F32, s->rows, LOSS);
    int64_t first = 0;
    if (trial->pass == TRIAL_PREPARE)
        SW_TRY(take_tiles(trial->stream, s, &t, max, sum, target_logit));
    for (int i = 0; i < 2 && t.cols[i] > 0; i++) {
        void *gradient = trial_output(trial, "d_logits", trial->type, s->rows * t.stride[i], GRADIENT);
        if (trial->pass >= TRIAL_REFERENCE)
            SW_TRY(sw_cross_entropy_tile(trial->stream, trial->type, s->rows, t.cols[i], t.stride[i], first, SCALE,
                                         t.logits[i], t.targets, max, sum, target_logit, loss, gradient));
        first += t.cols[i];
    }
    return SW_OK;
}

sw_status trial_sum_losses(struct trial *trial) {
    const struct test_rows *s = trial->shape;
    const float *losses = trial_input(trial, "losses", SW_F32, s->rows, 1.0f);
    double *total = trial_operand(trial, (struct trial_operand){.name = "total",
                                                                .type = ELEMENT_F64,
                                                                .elems = 1,
                                                                .fill = FILL_NORMAL,
                                                                .deviation = 1.0f,
                                                                .compare = COMPARE_CLOSE,
                                                                .tolerance = {1e-12, 1e-12}});
    return trial->pass < TRIAL_REFERENCE ? SW_OK : sw_sum_losses(trial->stream, s->rows, losses, total);
}
