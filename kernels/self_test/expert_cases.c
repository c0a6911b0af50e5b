/* The comparisons of the ops of mixtures of experts. Each begins with the router's choice, as a model does. */
#include "kernels/self_test/cases.h"

#include "core/size.h"

#include <math.h>

static const struct trial_tolerance WEIGHTS = {1e-5, 2e-6}, EXACT = {0, 0};
enum { MOST_ROUTED = 8, EXPERTS = 5, CHOSEN = 2, WIDTH = 24 };

static void *index_output(struct trial *trial, const char *name, int64_t elems) {
    return trial_operand(
        trial, (struct trial_operand){.name = name, .type = ELEMENT_I32, .elems = elems, .compare = COMPARE_BITS});
}

static double *sum_output(struct trial *trial, const char *name, int64_t elems) {
    return trial_operand(
        trial, (struct trial_operand){
                   .name = name, .type = ELEMENT_F64, .elems = elems, .compare = COMPARE_CLOSE, .tolerance = WEIGHTS});
}

/* Tallies the routing as that of the only layer, and then finds the logits' gradient with both losses. */
static sw_status tally(struct trial *trial, const struct sw_routing *routing, struct sw_route_backward backward) {
    const int64_t pairs = routing->rows * routing->chosen, experts = routing->experts;
    int32_t *offset = index_output(trial, "the experts' first places", experts + 1);
    int32_t *source = index_output(trial, "the places' pairs", pairs);
    int32_t *place = index_output(trial, "the pairs' places", pairs);
    double *routed = sum_output(trial, "the experts' rows", experts);
    double *count = sum_output(trial, "the experts' rows in all layers", experts);
    double *sum = sum_output(trial, "the sums of probabilities", experts + 1);
    double *losses = sum_output(trial, "the router's losses", 2);
    if (trial->pass == TRIAL_DECLARE)
        trial_needs_scratch(trial, sw_tally_scratch_bytes(routing), sw_tally_scratch_bytes(routing));
    if (trial->pass < TRIAL_REFERENCE)
        return SW_OK;
    SW_TRY(sw_order_by_expert(trial->stream, routing->rows, experts, routing->chosen, backward.expert, offset, source,
                              place));
    SW_TRY(sw_tally_routing(trial->stream, .type = trial->type, .shape = routing, .layers = 1, .first_layer = true,
                            .last_layer = true, .first_micro = true, .logits = backward.logits, .offset = offset,
                            .routed = routed, .count = count, .sum = sum, .losses = losses,
                            .scratch = (float *)(void *)trial->scratch));
    backward.count = count;
    backward.balance = 0.01 / (double)(1 + routing->rows);
    backward.z = 0.001;
    return sw_device_run(trial->stream, SW_DEVICE_ROUTE_BACKWARD, &backward);
}

/* Rows of an odd number have the softmax over all experts, the others over the chosen ones. */
sw_status trial_routing(struct trial *trial) {
    const struct test_rows *s = trial->shape;
    const int64_t experts = sw_min_i64(s->cols, SW_MOST_EXPERTS), chosen = sw_min_i64(experts, MOST_ROUTED);
    const struct sw_routing routing = {
        .rows = s->rows, .experts = experts, .chosen = chosen, .softmax_first = s->rows % 2 == 1};
    const void *logits = trial_input(trial, "logits", trial->type, s->rows * experts, 2.0f);
    const float *d_weight = trial_input(trial, "the weights' gradient", SW_F32, s->rows * chosen, 1.0f);
    int32_t *expert = index_output(trial, "the chosen experts", s->rows * chosen);
    float *weight = trial_output(trial, "the weights", SW_F32, s->rows * chosen, WEIGHTS);
    void *d_logits = trial_output(trial, "the logits' gradient", trial->type, s->rows * experts, WEIGHTS);
    if (trial->pass >= TRIAL_REFERENCE)
        SW_TRY(sw_route_forward(trial->stream, trial->type, &routing, logits, expert, weight));
    return tally(trial, &routing,
                 (struct sw_route_backward){.type = trial->type,
                                            .shape = &routing,
                                            .logits = logits,
                                            .expert = expert,
                                            .d_weight = d_weight,
                                            .d_logits = d_logits});
}

/* The order of the pairs of a token and a slot, whose experts are drawn. */
struct order {
    int64_t pairs;
    const int32_t *expert;
    int32_t *offset, *source, *place;
};

static sw_status order_pairs(struct trial *trial, struct order *out) {
    const int64_t rows = ((const struct test_rows *)trial->shape)->rows, pairs = rows * CHOSEN;
    *out = (struct order){.pairs = pairs,
                          .expert = trial_operand(trial, (struct trial_operand){.name = "experts",
                                                                                .type = ELEMENT_I32,
                                                                                .elems = pairs,
                                                                                .fill = FILL_INDICES,
                                                                                .first = 0,
                                                                                .limit = EXPERTS}),
                          .offset = index_output(trial, "the experts' first places", EXPERTS + 1),
                          .source = index_output(trial, "the places' pairs", pairs),
                          .place = index_output(trial, "the pairs' places", pairs)};
    return trial->pass < TRIAL_REFERENCE ? SW_OK
                                         : sw_order_by_expert(trial->stream, rows, EXPERTS, CHOSEN, out->expert,
                                                              out->offset, out->source, out->place);
}

sw_status trial_expert_rows(struct trial *trial) {
    const struct test_rows *s = trial->shape;
    const sw_dtype type = trial->type;
    struct order order;
    SW_TRY(order_pairs(trial, &order));
    const int64_t elems = s->rows * s->cols, wide = order.pairs * s->cols;
    const double sum = 2e-6 * sqrt((double)s->cols);
    const void *x = trial_input(trial, "x", type, elems, 1.0f), *dy = trial_input(trial, "dy", type, wide, 1.0f);
    const float *weight = trial_input(trial, "weights", SW_F32, order.pairs, 1.0f);
    void *y = trial_output(trial, "permuted rows", type, wide, EXACT);
    void *scaled = trial_output(trial, "scaled rows", type, wide, EXACT);
    void *back = trial_sum(trial, "rows of tokens", type, elems, EXACT);
    void *dx = trial_output(trial, "the gradient of scaled rows", type, wide, EXACT);
    float *d_weight =
        trial_output(trial, "the weights' gradient", SW_F32, order.pairs, (struct trial_tolerance){1e-5, sum});
    if (trial->pass < TRIAL_REFERENCE)
        return SW_OK;
    SW_TRY(sw_permute_rows(trial->stream, type, s->rows, s->cols, CHOSEN, order.source, x, y, SW_ALL_ROWS));
    SW_TRY(sw_scale_rows(trial->stream, type, order.pairs, s->cols, order.source, weight, y, scaled, SW_ALL_ROWS));
    SW_TRY(sw_unpermute_rows(trial->stream, .type = type, .rows = s->rows, .cols = s->cols, .chosen = CHOSEN,
                             .place = order.place, .x = scaled, .addend = back, .y = back));
    return sw_scale_rows_backward(trial->stream, type, order.pairs, s->cols, order.source, weight, y, dy, dx, d_weight,
                                  SW_ALL_ROWS);
}

/* Prepares a grouped product while operands are declared. */
static sw_status prepare(struct trial *trial, const struct sw_grouped_gemm *shape, int64_t *most_bytes) {
    int64_t bytes;
    if (trial->pass != TRIAL_DECLARE)
        return SW_OK;
    SW_TRY(sw_device_prepare_grouped_gemm(trial->device, shape, &bytes));
    *most_bytes = sw_max_i64(*most_bytes, bytes);
    trial_needs_scratch(trial, *most_bytes, 0);
    return SW_OK;
}

/* Some rows by the matrices of their experts, also added to a part of longer rows, and the gradients of those rows and
 * of the matrices. */
sw_status trial_grouped(struct trial *trial) {
    const struct test_rows *s = trial->shape;
    const sw_dtype type = trial->type;
    const int64_t n = sw_min_i64(s->cols, WIDTH), k = s->cols;
    struct order order;
    int64_t scratch_bytes = 0;
    SW_TRY(order_pairs(trial, &order));
    const struct sw_grouped_gemm forward = {.experts = EXPERTS,
                                            .rows = order.pairs,
                                            .n = n,
                                            .k = k,
                                            .transpose_b = true,
                                            .bias = true,
                                            .in = type,
                                            .out = type,
                                            .matrix_stride = n * k,
                                            .bias_stride = n};
    struct sw_grouped_gemm backward = forward, gradient = forward, added = forward;
    added.bias = false;
    added.accumulate = true;
    added.c_stride = gradient.a_stride = 2 * n;
    backward.transpose_b = backward.bias = gradient.transpose_b = gradient.bias = false;
    backward.n = k;
    backward.k = n;
    gradient.weight_gradient = true;
    gradient.out = SW_F32;
    SW_TRY(prepare(trial, &forward, &scratch_bytes));
    SW_TRY(prepare(trial, &backward, &scratch_bytes));
    SW_TRY(prepare(trial, &gradient, &scratch_bytes));
    SW_TRY(prepare(trial, &added, &scratch_bytes));
    const double one = type == SW_F32 ? 5e-6 : 2e-5; /* as for other products: tensor cores truncate sums */
    const struct trial_tolerance along_k = {1e-5, one * sqrt((double)k)}, along_n = {1e-5, one * sqrt((double)n)},
                                 along_rows = {1e-5, one * sqrt((double)order.pairs)};
    const void *x = trial_input(trial, "x", type, order.pairs * k, 1.0f);
    const void *dy = trial_input(trial, "dy", type, order.pairs * n, 1.0f);
    const void *matrices = trial_input(trial, "matrices", type, EXPERTS * n * k, 1.0f);
    const void *bias = trial_input(trial, "biases", type, EXPERTS * n, 1.0f);
    void *y = trial_output(trial, "y", type, order.pairs * n, along_k);
    void *dx = trial_output(trial, "dx", type, order.pairs * k, along_n);
    const char *wide = trial_input(trial, "long rows", type, order.pairs * 2 * n, 1.0f);
    char *sums = trial_sum(trial, "sums in long rows", type, order.pairs * 2 * n, along_k);
    const int64_t second_half = n * sw_dtype_bytes(type);
    float *acc = trial_sum(trial, "the matrices' gradient", SW_F32, EXPERTS * n * k, along_rows);
    if (trial->pass < TRIAL_REFERENCE)
        return SW_OK;
    SW_TRY(sw_grouped_gemm(trial->stream, &forward, order.offset, x, matrices, bias, y, trial->scratch));
    SW_TRY(sw_grouped_gemm(trial->stream, &backward, order.offset, dy, matrices, NULL, dx, trial->scratch));
    SW_TRY(sw_grouped_gemm(trial->stream, &added, order.offset, x, matrices, NULL, sums + second_half, trial->scratch));
    return sw_grouped_gemm(trial->stream, &gradient, order.offset, wide + second_half, x, NULL, acc, trial->scratch);
}
