/* The MLP of a mixture of experts, forward and backward: a router chooses some experts for each token, and the token's
 * row goes through each of them (Shazeer et al., arXiv 1701.06538).
 *
 * The rows of all (token, expert) pairs are sorted by expert, so one grouped product multiplies the rows of every
 * expert by that expert's matrix. How many rows an expert has is known on the device only: areas have room for all
 * pairs, which is exact in total, and no plan depends on the routing.
 *
 * A weight scales an expert's activated values, not its result. The value is the same, and the gradient of the weight
 * then needs the activated values and not the result of another product.
 *
 * Sorted inputs and activated values are computed again in the backward pass, whatever the plan keeps: they cost only
 * memory traffic, and take chosen_experts times the memory of a dense block's.
 *
 * Some experts may be a unit of their own (expert_units.c). The functions here then work on the places of its experts.
 */
#include "core/size.h"
#include "model/model_private.h"

#include <assert.h>

static struct sw_expert_run experts_in(const struct sw_model *model, int64_t unit) {
    return sw_experts_in(&model->config, &model->cut, unit);
}

/* Tells whether the matrices of experts are [in, out]. Those of all other families are [out, in], like a joined base in
 * MXFP4. */
static bool are_in_first(const struct sw_model *model) {
    return model->config.joined_experts && model->units->base != SW_BASE_MXFP4;
}

static int64_t end_of(struct sw_expert_run run) {
    return run.first + run.count;
}

struct sw_row_run sw_experts_places(const struct sw_model *model, const struct sw_unit_call *call,
                                    const struct saved *s) {
    const struct sw_expert_run own = experts_in(model, call->unit);
    return own.count == model->config.experts ? SW_ALL_ROWS
                                              : (struct sw_row_run){.first = s->expert_offset + own.first,
                                                                    .end = s->expert_offset + end_of(own),
                                                                    .likely = sw_experts_likely_rows(model, own.count)};
}

/* A run of experts whose matrices of one kind are the same distance apart in the unit, and are all trained or all
 * frozen. Freezing some experts of a unit moves them away from the others. A quantized base is unpacked into the work
 * area, so a run in it has at most UNPACKED_EXPERTS. */
struct expert_run {
    int64_t first, count;
    int tensor;     /* the matrix of the first expert, in the unit */
    int64_t stride; /* elements from one expert's matrix to the next */
    bool in_base;
    int64_t within; /* elements of the tensor before the first expert's matrix, where experts are joined */
};
enum { UNPACKED_EXPERTS = 4 };

/* Returns the tensor of the unit that has all experts' matrices of one kind, or -1 where each expert has its own. */
static int joined_tensor(const struct sw_model *model, int64_t unit, enum sw_expert_matrix matrix) {
    return sw_block_tensor_in(model, unit, matrix == EXPERT_DOWN ? JOINED_DOWN : JOINED_UP);
}

/* Returns the elements of one expert's matrix in the unit: gate and up are one. */
static int64_t matrix_elems(const struct sw_model *model, enum sw_expert_matrix matrix) {
    return model->config.hidden * model->widths.expert_ffn * (matrix == EXPERT_DOWN ? 1 : 2);
}

/* Returns the distance between unpacked matrices. */
static int64_t unpacked_stride(const struct sw_model *model, enum sw_expert_matrix matrix) {
    return sw_round_up(matrix_elems(model, matrix), SW_TENSOR_ALIGN_ELEMS);
}

int64_t sw_experts_unpacked_elems(const struct sw_model *model) {
    return model->config.experts == 0 ? 0 : UNPACKED_EXPERTS * unpacked_stride(model, EXPERT_GATE);
}

/* Returns the longest run that begins with expert `first`. matrix: EXPERT_GATE, with which EXPERT_UP is joined, or
 * EXPERT_DOWN. */
static struct expert_run run_at(const struct sw_model *model, int64_t unit, enum sw_expert_matrix matrix,
                                int64_t first) {
    const struct sw_tensor *tensor = model->units->unit[unit].tensor;
    const struct sw_expert_run own = experts_in(model, unit);
    const int base = sw_block_tensor_in(model, unit, EXPERTS) + (int)matrix;
    const int joined = joined_tensor(model, unit, matrix);
    if (joined >= 0) {
        const bool in_base = is_in_base(model, unit, joined);
        return (struct expert_run){.first = first,
                                   .count = sw_min_i64(end_of(own) - first, in_base ? UNPACKED_EXPERTS : own.count),
                                   .tensor = joined,
                                   .stride = matrix_elems(model, matrix),
                                   .in_base = in_base,
                                   .within = (first - own.first) * matrix_elems(model, matrix)};
    }
    struct expert_run run = {.first = first, .count = 1, .tensor = base + EXPERT_MATRICES * (int)(first - own.first)};
    const struct sw_tensor *begin = &tensor[run.tensor];
    run.stride = first + 1 < end_of(own) ? begin[EXPERT_MATRICES].offset - begin->offset : 0;
    run.in_base = is_in_base(model, unit, run.tensor);
    while (first + run.count < end_of(own)) {
        const struct sw_tensor *next = &begin[EXPERT_MATRICES * run.count];
        if (run.in_base && run.count == UNPACKED_EXPERTS)
            break;
        if (next->offset != begin->offset + run.count * run.stride || next->frozen != begin->frozen)
            break;
        run.count++;
    }
    return run;
}

/* The products of an expert's matrix. */
enum pass { FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, PASSES };

/* Returns the shape of a product for a run of experts. */
static struct sw_grouped_gemm product_of(const struct sw_model *model, enum sw_expert_matrix matrix, enum pass pass,
                                         const struct expert_run *run) {
    const struct sw_model_config *c = &model->config;
    const bool down = matrix == EXPERT_DOWN;
    const int64_t inner = model->widths.expert_ffn;
    const int64_t in = down ? inner : c->hidden, out = down ? c->hidden : 2 * inner;
    const int64_t stride = run->in_base ? unpacked_stride(model, matrix) : run->stride;
    const sw_dtype type = model->shape.type;
    /* A weight gradient [in, out] is that of the product with the operands exchanged. */
    const bool exchanged = pass == INPUT_GRADIENT || (pass == WEIGHT_GRADIENT && are_in_first(model));
    const bool has_bias = pass == FORWARD && c->joined_experts && !down;
    return (struct sw_grouped_gemm){.experts = run->count,
                                    .rows = sw_experts_pairs(model),
                                    .n = exchanged ? in : out,
                                    .k = exchanged ? out : in,
                                    .weight_gradient = pass == WEIGHT_GRADIENT,
                                    .transpose_b = pass == (are_in_first(model) ? INPUT_GRADIENT : FORWARD),
                                    .bias = has_bias,
                                    .bias_stride = has_bias ? out : 0,
                                    .in = type,
                                    .out = pass == WEIGHT_GRADIENT ? SW_F32 : type,
                                    .likely_rows = sw_experts_likely_rows(model, run->count),
                                    .matrix_stride = run->count > 1 ? stride : in * out};
}

static sw_status prepare_unit(struct sw_model *model, int64_t unit, enum sw_expert_matrix matrix) {
    const struct sw_expert_run own = experts_in(model, unit);
    struct expert_run run = {0};
    for (int64_t first = own.first; first < end_of(own); first += run.count) {
        run = run_at(model, unit, matrix, first);
        for (int pass = FORWARD; pass < (model->shape.forward_only ? INPUT_GRADIENT : PASSES); pass++) {
            const struct sw_grouped_gemm shape = product_of(model, matrix, (enum pass)pass, &run);
            int64_t bytes;
            SW_TRY(sw_device_prepare_grouped_gemm(model->device, &shape, &bytes));
            model->scratch_bytes = sw_max_i64(model->scratch_bytes, bytes);
        }
    }
    return SW_OK;
}

bool sw_experts_have_loss(const struct sw_model *model) {
    return sw_experts_tally(model) > 0 && (model->shape.router_aux_loss != 0.0 || model->shape.router_z_loss != 0.0);
}

/* The losses of the router, behind the rows of each expert of each layer. */
enum { ROUTER_LOSSES = 2 };

int64_t sw_experts_tally(const struct sw_model *model) {
    const bool trains = model->config.experts > 0 && !model->shape.forward_only;
    return trains ? model->config.layers * model->config.experts + ROUTER_LOSSES : 0;
}

static sw_status prepare_router(struct sw_model *model) {
    const int64_t rows = model->rows, experts = model->config.experts, hidden = model->config.hidden;
    const sw_dtype type = model->shape.type;
    model->routing = (struct sw_routing){.rows = rows,
                                         .experts = experts,
                                         .chosen = model->config.chosen_experts,
                                         .softmax_first = true,
                                         .normalised = model->config.normalises_chosen};
    model->router = (struct linear){
        .forward = {.m = rows,
                    .n = experts,
                    .k = hidden,
                    .transpose_b = true,
                    .bias = sw_block_pieces(&model->config, ROUTER_BIAS) > 0,
                    .in = type,
                    .out = type},
        .input_gradient = {.m = rows, .n = hidden, .k = experts, .in = type, .out = type},
        .weight_gradient =
            {.m = experts, .n = hidden, .k = rows, .transpose_a = true, .accumulate = true, .in = type, .out = SW_F32},
    };
    SW_TRY(sw_model_prepare_product(model, &model->router.forward));
    SW_TRY(sw_model_prepare_product(model, &model->router.input_gradient));
    return sw_model_prepare_product(model, &model->router.weight_gradient);
}

sw_status sw_experts_prepare(struct sw_model *model) {
    if (model->config.experts == 0)
        return SW_OK;
    SW_TRY(prepare_router(model));
    for (int64_t u = 1; u + 1 < model->units->count; u++) {
        if (sw_block_tensor_in(model, u, EXPERTS) < 0 && joined_tensor(model, u, EXPERT_GATE) < 0)
            continue;
        SW_TRY(prepare_unit(model, u, EXPERT_GATE));
        SW_TRY(prepare_unit(model, u, EXPERT_DOWN));
    }
    return SW_OK;
}

/* Returns in *out the matrices of a run in the compute type: in the unit's weights, or unpacked into the work area,
 * where the next call overwrites them. */
static sw_status matrices_of(const struct sw_model *model, const struct sw_unit_call *call,
                             enum sw_expert_matrix matrix, const struct expert_run *run, const void **out) {
    const struct sw_tensor *tensor = &model->units->unit[call->unit].tensor[run->tensor];
    char *to = area_at(call->work, model->work.matrix);
    const int64_t typed = sw_dtype_bytes(model->shape.type), joined = model->config.joined_experts ? run->stride : 0;
    *out = run->in_base ? to : (const char *)tensor_at(model, call, run->tensor) + run->within * typed;
    for (int64_t i = 0; run->in_base && i < run->count; i++)
        SW_TRY(sw_dequantize_base(call->stream, .type = model->shape.type, .format = model->units->base,
                                  .first_elem = joined > 0 ? tensor->offset + run->within + i * joined
                                                           : tensor[EXPERT_MATRICES * i].offset,
                                  .elems = matrix_elems(model, matrix), .records = call->base,
                                  .to = to + i * unpacked_stride(model, matrix) * typed));
    return SW_OK;
}

/* Tells whether this rank adds the biases of the down matrices, and their gradients. The ranks of a tensor group add up
 * their results, and the first has the biases. */
static bool adds_down_biases(const struct sw_model *model) {
    return model->cut.rank == 0;
}

/* Returns the biases of one kind of the unit's experts, from expert `first` on; NULL: the experts have none. */
static const void *biases_of(const struct sw_model *model, const struct sw_unit_call *call, enum sw_block_tensor biases,
                             int64_t first, int64_t cols) {
    const int tensor = sw_block_tensor_in(model, call->unit, biases);
    const int64_t before = first - experts_in(model, call->unit).first;
    return tensor < 0
               ? NULL
               : (const char *)tensor_at(model, call, tensor) + before * cols * sw_dtype_bytes(model->shape.type);
}

/* Adds the gradient of joined experts' biases, unless they are frozen or the experts have none. weight NULL: dy is the
 * gradient at what the biases are added to. */
static sw_status bias_gradient(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s,
                               enum sw_block_tensor biases, int64_t cols, const float *weight, const void *dy) {
    const int tensor = sw_block_tensor_in(model, call->unit, biases);
    const struct sw_expert_run own = experts_in(model, call->unit);
    float *acc = tensor < 0 ? NULL : acc_at(model, call, tensor);
    return acc == NULL ? SW_OK
                       : sw_expert_bias_backward(call->stream, .type = model->shape.type, .experts = own.count,
                                                 .rows = sw_experts_pairs(model),
                                                 .likely_rows = sw_experts_likely_rows(model, own.count), .cols = cols,
                                                 .bias_stride = cols, .offset = s->expert_offset + own.first,
                                                 .source = s->expert_source, .weight = weight, .dy = dy, .acc = acc);
}

/* Multiplies the rows of each expert by its matrix, or in the gradient of the input by the transposed matrix, and adds
 * what adapters add. */
static sw_status multiply(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s,
                          enum sw_expert_matrix matrix, enum pass pass, const void *x, void *y) {
    const struct sw_expert_run own = experts_in(model, call->unit);
    struct expert_run run = {0};
    for (int64_t first = own.first; first < end_of(own); first += run.count) {
        run = run_at(model, call->unit, matrix, first);
        const struct sw_grouped_gemm shape = product_of(model, matrix, pass, &run);
        const void *matrices;
        SW_TRY(matrices_of(model, call, matrix, &run, &matrices));
        SW_TRY(sw_grouped_gemm(call->stream, .shape = &shape, .offset = s->expert_offset + first, .a = x, .b = matrices,
                               .bias =
                                   shape.bias ? biases_of(model, call, JOINED_UP_BIAS, first, shape.bias_stride) : NULL,
                               .c = y, .scratch = area_at(call->work, model->work.scratch)));
    }
    return pass == FORWARD ? sw_expert_adapters_forward(model, call, s, matrix, x, y)
                           : sw_expert_adapters_input_gradient(model, call, s, matrix, x, y);
}

/* Adds the gradients of the experts' matrices of one kind that are trained, and of adapters beside them. */
static sw_status weight_gradient(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s,
                                 enum sw_expert_matrix matrix, const void *x, const void *dy) {
    const struct sw_expert_run own = experts_in(model, call->unit);
    struct expert_run run = {0};
    for (int64_t first = own.first; first < end_of(own); first += run.count) {
        run = run_at(model, call->unit, matrix, first);
        const struct sw_grouped_gemm shape = product_of(model, matrix, WEIGHT_GRADIENT, &run);
        float *acc = acc_at(model, call, run.tensor);
        const bool in_first = are_in_first(model);
        if (acc != NULL)
            SW_TRY(sw_grouped_gemm(call->stream, .shape = &shape, .offset = s->expert_offset + first,
                                   .a = in_first ? x : dy, .b = in_first ? dy : x, .c = acc + run.within,
                                   .scratch = area_at(call->work, model->work.scratch)));
    }
    return sw_expert_adapters_weight_gradient(model, call, s, matrix, x, dy);
}

/* Copies each token's row to the places of its pairs, in the work area. */
static sw_status sort_rows(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s,
                           const void *x, void **out) {
    *out = area_at(call->work, model->work.expert_rows);
    return sw_permute_rows(call->stream, .type = model->shape.type, .rows = model->rows, .cols = model->config.hidden,
                           .chosen = model->config.chosen_experts, .source = s->expert_source, .x = x, .y = *out,
                           .run = sw_experts_places(model, call, s));
}

/* Adds up the rows of each token's pairs: in the forward pass behind the addend, in the backward pass before it. */
static sw_status add_rows(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s,
                          bool backward, const void *x, const void *addend, void *y) {
    return sw_unpermute_rows(call->stream, .type = model->shape.type, .rows = model->rows, .cols = model->config.hidden,
                             .chosen = model->config.chosen_experts, .place = s->expert_place, .x = x, .addend = addend,
                             .y = y, .run = sw_experts_places(model, call, s), .falling = backward);
}

/* Computes the activated values, before weights scale them. */
static sw_status activate(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s,
                          void *activated) {
    if (model->config.joined_experts)
        return sw_clamped_forward(call->stream, model->shape.type, sw_experts_pairs(model), model->widths.expert_ffn,
                                  s->expert_up, activated, sw_experts_places(model, call, s));
    return sw_gated_forward(call->stream, model->shape.type, model->config.activation, sw_experts_pairs(model),
                            model->widths.expert_ffn, s->expert_up, activated, sw_experts_places(model, call, s));
}

/* Scales the activated values in place. */
static sw_status scale(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s,
                       void *activated) {
    return sw_scale_rows(call->stream, .type = model->shape.type, .rows = sw_experts_pairs(model),
                         .cols = model->widths.expert_ffn, .source = s->expert_source, .weight = s->expert_weight,
                         .x = activated, .y = activated, .run = sw_experts_places(model, call, s));
}

sw_status sw_experts_route(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                           const struct saved *s) {
    const void *matrix = tensor_at(model, call, sw_block_tensor_in(model, call->unit, ROUTER));
    const int bias = sw_block_tensor_in(model, call->unit, ROUTER_BIAS);
    SW_TRY(sw_gemm(call->stream, &model->router.forward, n, matrix, bias < 0 ? NULL : tensor_at(model, call, bias),
                   s->router_logits, area_at(call->work, model->work.scratch)));
    SW_TRY(sw_route_forward(call->stream, .type = model->shape.type, .shape = &model->routing,
                            .logits = s->router_logits, .expert = s->expert_chosen, .weight = s->expert_weight));
    return sw_order_by_expert(call->stream, .rows = model->rows, .experts = model->config.experts,
                              .chosen = model->config.chosen_experts, .expert = s->expert_chosen,
                              .offset = s->expert_offset, .source = s->expert_source, .place = s->expert_place);
}

/* Returns the rows of a micro-batch that all layers send to each expert; NULL: the router has no loss. */
static double *router_counts(const struct sw_model *model, const struct sw_unit_call *call) {
    const int64_t at = call->micro * model->config.experts * (int64_t)sizeof(double);
    return sw_experts_have_loss(model) ? area_at(call->work, model->work.router_counts + at) : NULL;
}

sw_status sw_experts_count(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s) {
    const struct work_layout *w = &model->work;
    const int64_t experts = model->config.experts, layers = model->config.layers;
    const int64_t layer = sw_tile_of(&model->cut, call->unit).layer, double_bytes = (int64_t)sizeof(double);
    const bool has_loss = sw_experts_have_loss(model);
    if (call->draw == 0)
        return SW_OK;
    assert(!has_loss || call->micro < model->shape.micro_batches);
    double *all = area_at(call->work, w->tally), *counts = router_counts(model, call);
    double *sums = has_loss ? area_at(call->work, w->router_sums + call->micro * (experts + 1) * double_bytes) : NULL;
    return sw_tally_routing(call->stream, .type = model->shape.type, .shape = &model->routing, .layers = layers,
                            .first_layer = layer == 0, .last_layer = layer + 1 == layers,
                            .first_micro = call->micro == 0, .logits = s->router_logits, .offset = s->expert_offset,
                            .routed = all + layer * experts, .count = counts, .sum = sums,
                            .losses = has_loss ? all + layers * experts : NULL,
                            .scratch = has_loss ? area_at(call->work, w->tally_scratch) : NULL);
}

sw_status sw_experts_up(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                        const struct saved *s) {
    SW_TRY(sw_experts_route(model, call, n, s));
    return sw_experts_up_products(model, call, n, s);
}

sw_status sw_experts_up_products(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                                 const struct saved *s) {
    void *sorted;
    SW_TRY(sort_rows(model, call, s, n, &sorted));
    return multiply(model, call, s, EXPERT_GATE, FORWARD, sorted, s->expert_up);
}

sw_status sw_experts_results(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s,
                             void **out) {
    void *activated = area_at(call->work, model->work.expert_inner);
    *out = area_at(call->work, model->work.expert_rows);
    SW_TRY(activate(model, call, s, activated));
    SW_TRY(scale(model, call, s, activated));
    SW_TRY(multiply(model, call, s, EXPERT_DOWN, FORWARD, activated, *out));
    const struct sw_expert_run own = experts_in(model, call->unit);
    const void *biases = biases_of(model, call, JOINED_DOWN_BIAS, own.first, model->config.hidden);
    return biases == NULL || !adds_down_biases(model)
               ? SW_OK
               : sw_expert_bias_forward(
                     call->stream, .type = model->shape.type, .experts = own.count, .rows = sw_experts_pairs(model),
                     .likely_rows = sw_experts_likely_rows(model, own.count), .cols = model->config.hidden,
                     .bias_stride = model->config.hidden, .offset = s->expert_offset + own.first,
                     .source = s->expert_source, .weight = s->expert_weight, .bias = biases, .y = *out);
}

/* Adds the part of the biases, which the weights scale too, to the gradient at the weights. */
static sw_status add_bias_part(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s,
                               const void *sorted, float *weight_grad) {
    const struct sw_expert_run own = experts_in(model, call->unit);
    const void *biases = biases_of(model, call, JOINED_DOWN_BIAS, own.first, model->config.hidden);
    return biases == NULL || !adds_down_biases(model)
               ? SW_OK
               : sw_expert_bias_backward(
                     call->stream, .type = model->shape.type, .experts = own.count, .rows = sw_experts_pairs(model),
                     .likely_rows = sw_experts_likely_rows(model, own.count), .cols = model->config.hidden,
                     .bias_stride = model->config.hidden, .offset = s->expert_offset + own.first,
                     .source = s->expert_source, .bias = biases, .dy = sorted, .d_weight = weight_grad);
}

sw_status sw_experts_forward(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                             const void *addend, const struct saved *s) {
    void *results;
    SW_TRY(sw_experts_up(model, call, n, s));
    SW_TRY(sw_experts_count(model, call, s));
    SW_TRY(sw_experts_results(model, call, s, &results));
    return add_rows(model, call, s, false, results, addend, call->out);
}

/* Goes from call->grad to the gradient at the results of the up products and to that at the weights. Leaves the sorted
 * rows of call->grad and the activated values in the work area. */
static sw_status down_input_gradient(const struct sw_model *model, const struct sw_unit_call *call,
                                     const struct saved *s, void *up_grad, float *weight_grad) {
    void *activated = area_at(call->work, model->work.expert_inner);
    void *inner_grad = area_at(call->work, model->work.expert_inner_grad), *sorted;
    SW_TRY(sort_rows(model, call, s, call->grad, &sorted));
    SW_TRY(multiply(model, call, s, EXPERT_DOWN, INPUT_GRADIENT, sorted, inner_grad));
    SW_TRY(activate(model, call, s, activated));
    SW_TRY(sw_scale_rows_backward(call->stream, .type = model->shape.type, .rows = sw_experts_pairs(model),
                                  .cols = model->widths.expert_ffn, .source = s->expert_source,
                                  .weight = s->expert_weight, .x = activated, .dy = inner_grad, .dx = inner_grad,
                                  .d_weight = weight_grad, .run = sw_experts_places(model, call, s)));
    SW_TRY(add_bias_part(model, call, s, sorted, weight_grad));
    if (model->config.joined_experts)
        return sw_clamped_backward(call->stream, model->shape.type, sw_experts_pairs(model), model->widths.expert_ffn,
                                   s->expert_up, inner_grad, up_grad, sw_experts_places(model, call, s));
    return sw_gated_backward(call->stream, model->shape.type, model->config.activation, sw_experts_pairs(model),
                             model->widths.expert_ffn, s->expert_up, inner_grad, up_grad, NULL,
                             sw_experts_places(model, call, s));
}

/* Adds the gradients of the down matrices, from what down_input_gradient left. */
static sw_status down_weight_gradient(const struct sw_model *model, const struct sw_unit_call *call,
                                      const struct saved *s) {
    void *activated = area_at(call->work, model->work.expert_inner);
    void *sorted = area_at(call->work, model->work.expert_rows);
    SW_TRY(scale(model, call, s, activated));
    if (adds_down_biases(model))
        SW_TRY(bias_gradient(model, call, s, JOINED_DOWN_BIAS, model->config.hidden, s->expert_weight, sorted));
    return weight_gradient(model, call, s, EXPERT_DOWN, activated, sorted);
}

/* Goes from the gradient at the weights to that at the router's logits, and to the router's part of the gradient at the
 * normalised input, with the part that a shared expert has left in the work area, unless that is in another unit. The
 * router's own losses are means over the rows of all layers, and the balance is a product of two such means. In a
 * tensor group, whose ranks' parts are added up, the first rank has the gradients of these losses. */
static sw_status router_input_gradient(const struct sw_model *model, const struct sw_unit_call *call,
                                       const struct saved *s, const float *weight_grad, void *logits_grad, void *dn) {
    const void *matrix = tensor_at(model, call, sw_block_tensor_in(model, call->unit, ROUTER));
    const bool adds_losses = sw_experts_have_loss(model) && call->draw > 0 && model->cut.rank == 0;
    const double rows = (double)model->rows * (double)model->config.layers;
    const double of_rows = adds_losses ? call->micro_scale / rows : 0.0;
    const double balance = model->shape.router_aux_loss * of_rows * (double)model->config.experts / rows;
    SW_TRY(sw_route_backward(call->stream, .type = model->shape.type, .shape = &model->routing,
                             .logits = s->router_logits, .expert = s->expert_chosen, .d_weight = weight_grad,
                             .d_logits = logits_grad, .count = adds_losses ? router_counts(model, call) : NULL,
                             .balance = balance, .z = model->shape.router_z_loss * of_rows));
    SW_TRY(sw_gemm(call->stream, &model->router.input_gradient, logits_grad, matrix, NULL, dn,
                   area_at(call->work, model->work.scratch)));
    if (!sw_config_has_shared_expert(&model->config) || model->cut.expert_ranks > 1)
        return SW_OK;
    return sw_add(call->stream, .type = model->shape.type, .elems = model->rows * model->config.hidden, .a = dn,
                  .b = area_at(call->work, model->work.shared_rows), .y = dn);
}

/* Goes on from the gradient at the results of the up products to dn, with the router's part. */
static sw_status up_input_gradient(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s,
                                   const float *weight_grad, void *product_grad, void *dn) {
    void *rows = area_at(call->work, model->work.expert_rows);
    SW_TRY(router_input_gradient(model, call, s, weight_grad, area_at(product_grad, sw_router_grad_offset(model)), dn));
    SW_TRY(multiply(model, call, s, EXPERT_GATE, INPUT_GRADIENT, product_grad, rows));
    return add_rows(model, call, s, true, rows, dn, dn);
}

sw_status sw_experts_input_gradient(const struct sw_model *model, const struct sw_unit_call *call,
                                    const struct saved *s, void *product_grad, void *dn) {
    float *weight_grad = area_at(call->work, model->work.expert_weight_grad);
    SW_TRY(down_input_gradient(model, call, s, product_grad, weight_grad));
    return up_input_gradient(model, call, s, weight_grad, product_grad, dn);
}

sw_status sw_experts_last_product(const struct sw_model *model, const struct sw_unit_call *call,
                                  const struct saved *s) {
    void *sorted;
    SW_TRY(sort_rows(model, call, s, call->grad, &sorted));
    SW_TRY(activate(model, call, s, area_at(call->work, model->work.expert_inner)));
    return down_weight_gradient(model, call, s);
}

static sw_status up_weight_gradient(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                                    const struct saved *s, const void *product_grad) {
    void *sorted;
    SW_TRY(sort_rows(model, call, s, n, &sorted));
    SW_TRY(bias_gradient(model, call, s, JOINED_UP_BIAS, 2 * model->widths.expert_ffn, NULL, product_grad));
    return weight_gradient(model, call, s, EXPERT_GATE, sorted, product_grad);
}

static sw_status router_weight_gradient(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                                        const void *logits_grad) {
    float *acc = acc_at(model, call, sw_block_tensor_in(model, call->unit, ROUTER));
    const int bias = sw_block_tensor_in(model, call->unit, ROUTER_BIAS);
    float *bias_acc = bias < 0 ? NULL : acc_at(model, call, bias);
    if (bias_acc != NULL)
        SW_TRY(sw_bias_gradient(call->stream, model->shape.type, model->rows, model->config.experts, logits_grad,
                                bias_acc));
    return acc == NULL ? SW_OK
                       : sw_gemm(call->stream, &model->router.weight_gradient, logits_grad, n, NULL, acc,
                                 area_at(call->work, model->work.scratch));
}

sw_status sw_experts_first_product(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                                   const struct saved *s, const void *product_grad) {
    SW_TRY(up_weight_gradient(model, call, n, s, product_grad));
    return router_weight_gradient(model, call, n, (const char *)product_grad + sw_router_grad_offset(model));
}

sw_status sw_experts_backward(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                              const struct saved *s, void *dn) {
    void *product_grad = area_at(call->work, model->work.wide);
    float *weight_grad = area_at(call->work, model->work.expert_weight_grad);
    SW_TRY(down_input_gradient(model, call, s, product_grad, weight_grad));
    SW_TRY(down_weight_gradient(model, call, s));
    SW_TRY(up_input_gradient(model, call, s, weight_grad, product_grad, dn));
    return sw_experts_first_product(model, call, n, s, product_grad);
}

sw_status sw_experts_part_backward(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                                   const struct saved *s, float *weight_grad, void **out) {
    void *product_grad = area_at(call->work, model->work.wide);
    *out = area_at(call->work, model->work.expert_rows);
    SW_TRY(down_input_gradient(model, call, s, product_grad, weight_grad));
    SW_TRY(down_weight_gradient(model, call, s));
    SW_TRY(up_weight_gradient(model, call, n, s, product_grad));
    return multiply(model, call, s, EXPERT_GATE, INPUT_GRADIENT, product_grad, *out);
}

sw_status sw_experts_router_backward(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                                     const struct saved *s, const float *weight_grad, void *dn) {
    void *logits_grad = area_at(call->work, model->work.wide);
    SW_TRY(router_input_gradient(model, call, s, weight_grad, logits_grad, dn));
    return router_weight_gradient(model, call, n, logits_grad);
}
