/* Ops on elements, sums over rows, the embedding. */
#include "kernels/self_test/ops.h"

/* exp and tanh of a GPU are right to two units in the last place, which the formulas around them carry on. */
static const struct trial_tolerance CURVES = {4e-6, 2e-6}, GRADIENTS = {4e-6, 8e-6}, EXACT = {0, 0};
/* Sums of some thousand rows in another order, in fp32. */
static const struct trial_tolerance SUMS = {1e-5, 4e-4};
enum { ACTIVATIONS = SW_SILU + 1 };

/* One trial takes all four in turn, each over a row of outputs of its own. */
sw_status trial_activations(struct trial *trial) {
    static const char *const names[ACTIVATIONS] = {"gelu (tanh)", "gelu (erf)", "relu", "silu"};
    const struct test_rows *s = trial->shape;
    const int64_t elems = s->rows * s->cols;
    const void *x = trial_input(trial, "x", trial->type, elems, 2.0f);
    for (int which = 0; which < ACTIVATIONS; which++) {
        void *y = trial_output(trial, names[which], trial->type, elems, CURVES);
        if (trial->pass >= TRIAL_REFERENCE)
            SW_TRY(sw_activation_forward(trial->stream, trial->type, (sw_activation)which, elems, x, y));
    }
    return SW_OK;
}

sw_status trial_activation_gradients(struct trial *trial) {
    static const char *const names[ACTIVATIONS][2] = {{"dx of gelu (tanh)", "gelu (tanh)"},
                                                      {"dx of gelu (erf)", "gelu (erf)"},
                                                      {"dx of relu", "relu"},
                                                      {"dx of silu", "silu"}};
    const struct test_rows *s = trial->shape;
    const int64_t elems = s->rows * s->cols;
    const void *x = trial_input(trial, "x", trial->type, elems, 2.0f);
    const void *dy = trial_input(trial, "dy", trial->type, elems, 1.0f);
    for (int which = 0; which < ACTIVATIONS; which++) {
        void *dx = trial_output(trial, names[which][0], trial->type, elems, GRADIENTS);
        void *y = trial_output(trial, names[which][1], trial->type, elems, CURVES);
        if (trial->pass >= TRIAL_REFERENCE)
            SW_TRY(sw_activation_backward(trial->stream, trial->type, (sw_activation)which, elems, x, dy, dx, y));
    }
    return SW_OK;
}

sw_status trial_gated(struct trial *trial) {
    const struct test_rows *s = trial->shape;
    const void *x = trial_input(trial, "x", trial->type, 2 * s->rows * s->cols, 1.5f);
    void *y = trial_output(trial, "y", trial->type, s->rows * s->cols, CURVES);
    if (trial->pass < TRIAL_REFERENCE)
        return SW_OK;
    return sw_gated_forward(trial->stream, trial->type, SW_SILU, s->rows, s->cols, x, y);
}

sw_status trial_gated_gradients(struct trial *trial) {
    const struct test_rows *s = trial->shape;
    const void *x = trial_input(trial, "x", trial->type, 2 * s->rows * s->cols, 1.5f);
    const void *dy = trial_input(trial, "dy", trial->type, s->rows * s->cols, 1.0f);
    void *dx = trial_output(trial, "dx", trial->type, 2 * s->rows * s->cols, GRADIENTS);
    void *y = trial_output(trial, "y", trial->type, s->rows * s->cols, CURVES);
    if (trial->pass < TRIAL_REFERENCE)
        return SW_OK;
    return sw_gated_backward(trial->stream, trial->type, SW_SILU, s->rows, s->cols, x, dy, dx, y);
}

sw_status trial_add(struct trial *trial) {
    const struct test_rows *s = trial->shape;
    const int64_t elems = s->rows * s->cols;
    const void *a = trial_input(trial, "a", trial->type, elems, 1.0f);
    const void *b = trial_input(trial, "b", trial->type, elems, 1.0f);
    void *y = trial_output(trial, "y", trial->type, elems, EXACT);
    return trial->pass < TRIAL_REFERENCE ? SW_OK : sw_add(trial->stream, trial->type, elems, a, b, y);
}

sw_status trial_bias_gradient(struct trial *trial) {
    const struct test_rows *s = trial->shape;
    const void *dy = trial_input(trial, "dy", trial->type, s->rows * s->cols, 1.0f);
    float *acc = trial_sum(trial, "the bias's gradient", SW_F32, s->cols, SUMS);
    return trial->pass < TRIAL_REFERENCE ? SW_OK
                                         : sw_bias_gradient(trial->stream, trial->type, s->rows, s->cols, dy, acc);
}

/* Tokens come several times each, as the order in which their gradients are added is part of the contract. */
struct embedding {
    int64_t cols, vocab;
    const int32_t *tokens, *documents;
};

static struct embedding embedding_of(struct trial *trial) {
    const struct test_heads *s = trial->shape;
    const int64_t rows = s->batch * s->seq;
    struct embedding e = {.cols = s->heads * s->head_dim, .vocab = rows / 3 + 1};
    e.tokens = trial_operand(
        trial,
        (struct trial_operand){
            .name = "tokens", .type = ELEMENT_I32, .elems = rows, .fill = FILL_INDICES, .first = 0, .limit = e.vocab});
    if (s->document > 0)
        e.documents = trial_operand(trial, (struct trial_operand){.name = "documents",
                                                                  .type = ELEMENT_I32,
                                                                  .elems = rows,
                                                                  .fill = FILL_DOCUMENTS,
                                                                  .first = s->seq,
                                                                  .limit = s->document});
    return e;
}

sw_status trial_embedding_forward(struct trial *trial) {
    const struct test_heads *s = trial->shape;
    const struct embedding e = embedding_of(trial);
    const void *table = trial_input(trial, "table", trial->type, e.vocab * e.cols, 1.0f);
    const void *positions = trial_input(trial, "positions", trial->type, s->seq * e.cols, 1.0f);
    void *out = trial_output(trial, "out", trial->type, s->batch * s->seq * e.cols, EXACT);
    if (trial->pass < TRIAL_REFERENCE)
        return SW_OK;
    return sw_embedding_forward(trial->stream, trial->type, s->batch, s->seq, e.cols, e.tokens, e.documents, table,
                                positions, out, .positions_part = {0});
}

sw_status trial_embedding_backward(struct trial *trial) {
    const struct test_heads *s = trial->shape;
    const struct embedding e = embedding_of(trial);
    const void *d_out = trial_input(trial, "d_out", trial->type, s->batch * s->seq * e.cols, 1.0f);
    float *table = trial_sum(trial, "the table's gradient", SW_F32, e.vocab * e.cols, EXACT);
    float *positions = trial_sum(trial, "the positions' gradient", SW_F32, s->seq * e.cols, EXACT);
    if (trial->pass < TRIAL_REFERENCE)
        return SW_OK;
    return sw_embedding_backward(trial->stream, trial->type, s->batch, s->seq, e.cols, e.tokens, e.documents, d_out,
                                 table, positions, .positions_part = {0});
}
