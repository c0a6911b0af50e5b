/* Norms and rotary positions. Tolerances are those of sums of a row in fp32: some units in the last place of the sum of
 * magnitudes, which for drawn elements is near 1. */
#include "kernels/self_test/ops.h"

static const float EPSILON = 1e-5f;
static const struct trial_tolerance VALUES = {1e-5, 2e-5}, STATISTICS = {1e-5, 2e-6}, SUMS = {1e-5, 4e-4};

static const float *positive(struct trial *trial, const char *name, int64_t elems) {
    return trial_operand(
        trial, (struct trial_operand){
                   .name = name, .type = ELEMENT_F32, .elems = elems, .fill = FILL_POSITIVE, .deviation = 0.3f});
}

sw_status trial_layernorm_forward(struct trial *trial) {
    const struct test_rows *s = trial->shape;
    const void *x = trial_input(trial, "x", trial->type, s->rows * s->cols, 1.0f);
    const void *gamma = trial_input(trial, "gamma", trial->type, s->cols, 1.0f);
    const void *beta = trial_input(trial, "beta", trial->type, s->cols, 1.0f);
    void *y = trial_output(trial, "y", trial->type, s->rows * s->cols, VALUES);
    float *mean = trial_output(trial, "mean", SW_F32, s->rows, STATISTICS);
    float *rstd = trial_output(trial, "rstd", SW_F32, s->rows, STATISTICS);
    if (trial->pass < TRIAL_REFERENCE)
        return SW_OK;
    return sw_layernorm_forward(trial->stream, trial->type, s->rows, s->cols, EPSILON, x, gamma, beta, y, mean, rstd);
}

/* The residual path adds to dx, in half of the trials. */
sw_status trial_layernorm_backward(struct trial *trial) {
    const struct test_rows *s = trial->shape;
    const bool adds = s->rows % 2 == 0;
    const void *dy = trial_input(trial, "dy", trial->type, s->rows * s->cols, 1.0f);
    const void *x = trial_input(trial, "x", trial->type, s->rows * s->cols, 1.0f);
    const void *gamma = trial_input(trial, "gamma", trial->type, s->cols, 1.0f);
    const float *mean = trial_input(trial, "mean", SW_F32, s->rows, 0.1f);
    const float *rstd = positive(trial, "rstd", s->rows);
    void *dx = adds ? trial_sum(trial, "dx", trial->type, s->rows * s->cols, VALUES)
                    : trial_output(trial, "dx", trial->type, s->rows * s->cols, VALUES);
    float *gamma_acc = trial_sum(trial, "gamma's gradient", SW_F32, s->cols, SUMS);
    float *beta_acc = trial_sum(trial, "beta's gradient", SW_F32, s->cols, SUMS);
    if (trial->pass < TRIAL_REFERENCE)
        return SW_OK;
    return sw_layernorm_backward(trial->stream, trial->type, s->rows, s->cols, adds, dy, x, gamma, mean, rstd, dx,
                                 gamma_acc, beta_acc);
}

static sw_status add_norm(struct trial *trial, bool centred) {
    const struct test_rows *s = trial->shape;
    const void *a = trial_input(trial, "a", trial->type, s->rows * s->cols, 1.0f);
    const void *b = trial_input(trial, "b", trial->type, s->rows * s->cols, 1.0f);
    const void *gamma = trial_input(trial, "gamma", trial->type, s->cols, 1.0f);
    const void *beta = centred ? trial_input(trial, "beta", trial->type, s->cols, 1.0f) : NULL;
    void *sum = trial_output(trial, "sum", trial->type, s->rows * s->cols, (struct trial_tolerance){0});
    void *y = trial_output(trial, "y", trial->type, s->rows * s->cols, VALUES);
    float *mean = centred ? trial_output(trial, "mean", SW_F32, s->rows, STATISTICS) : NULL;
    float *rstd = trial_output(trial, "rstd", SW_F32, s->rows, STATISTICS);
    if (trial->pass < TRIAL_REFERENCE)
        return SW_OK;
    return sw_add_norm_forward(trial->stream, trial->type, s->rows, s->cols, EPSILON, a, b, sum, gamma, beta, y, mean,
                               rstd);
}

sw_status trial_add_layernorm(struct trial *trial) {
    return add_norm(trial, true);
}

sw_status trial_add_rmsnorm(struct trial *trial) {
    return add_norm(trial, false);
}

/* The heads of a token lie side by side within longer rows, as queries do beside keys. */
static struct sw_rmsnorm norm_of(const struct test_heads *s) {
    const int64_t width = s->heads * s->head_dim;
    return (struct sw_rmsnorm){.rows = s->batch * s->seq * s->heads,
                               .cols = s->head_dim,
                               .groups = s->heads,
                               .x_stride = width + s->gap,
                               .y_stride = width + 2 * s->gap,
                               .epsilon = EPSILON};
}

/* The last row ends where its elements do, so that what is written behind it shows. */
static int64_t elems_of(const struct test_heads *s, int64_t gap) {
    return s->batch * s->seq * (s->heads * s->head_dim + gap) - gap;
}

sw_status trial_rmsnorm_forward(struct trial *trial) {
    const struct test_heads *s = trial->shape;
    const struct sw_rmsnorm norm = norm_of(s);
    const void *x = trial_input(trial, "x", trial->type, elems_of(s, s->gap), 1.0f);
    const void *gamma = trial_input(trial, "gamma", trial->type, norm.cols, 1.0f);
    void *y = trial_output(trial, "y", trial->type, elems_of(s, 2 * s->gap), VALUES);
    float *rstd = trial_output(trial, "rstd", SW_F32, norm.rows, STATISTICS);
    if (trial->pass < TRIAL_REFERENCE)
        return SW_OK;
    return sw_rmsnorm_forward(trial->stream, trial->type, &norm, x, gamma, y, rstd);
}

sw_status trial_rmsnorm_backward(struct trial *trial) {
    const struct test_heads *s = trial->shape;
    const struct sw_rmsnorm norm = norm_of(s);
    const bool adds = s->seq % 2 == 0;
    const void *dy = trial_input(trial, "dy", trial->type, elems_of(s, 2 * s->gap), 1.0f);
    const void *x = trial_input(trial, "x", trial->type, elems_of(s, s->gap), 1.0f);
    const void *gamma = trial_input(trial, "gamma", trial->type, norm.cols, 1.0f);
    const float *rstd = positive(trial, "rstd", norm.rows);
    void *dx = adds ? trial_sum(trial, "dx", trial->type, elems_of(s, s->gap), VALUES)
                    : trial_output(trial, "dx", trial->type, elems_of(s, s->gap), VALUES);
    float *gamma_acc = trial_sum(trial, "gamma's gradient", SW_F32, norm.cols, SUMS);
    if (trial->pass < TRIAL_REFERENCE)
        return SW_OK;
    return sw_rmsnorm_backward(trial->stream, trial->type, &norm, adds, dy, x, gamma, rstd, dx, gamma_acc);
}

sw_status trial_rotate(struct trial *trial) {
    const struct test_heads *s = trial->shape;
    const struct sw_rotation rotation = {.batch = s->batch,
                                         .seq = s->seq,
                                         .heads = s->heads,
                                         .head_dim = s->head_dim,
                                         .stride = s->heads * s->head_dim + s->gap,
                                         .back = s->seq % 2 == 1};
    const float *table = trial_input(trial, "table", SW_F32, s->seq * s->head_dim, 1.0f);
    void *x = trial_sum(trial, "x", trial->type, elems_of(s, s->gap), (struct trial_tolerance){2e-6, 2e-6});
    if (trial->pass < TRIAL_REFERENCE)
        return SW_OK;
    return sw_rotate(trial->stream, trial->type, &rotation, table, x);
}
