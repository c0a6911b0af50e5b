/* Runs each kind of op. */
#include "core/size.h"
#include "offload/engine/engine_private.h"

#include <assert.h>
#include <math.h>

/* torch.nn.utils.clip_grad_norm_ divides by the norm plus this. */
#define CLIP_EPSILON 1e-6

static sw_status run_backward(const struct sw_unit_ops *ops, const struct sw_unit_call *call) {
    if (call->recompute != SW_RECOMPUTE_NOTHING)
        SW_TRY(ops->recompute(ops->context, call));
    return ops->backward(ops->context, call);
}

/* Returns this rank's rows of an input or its gradient, which may have no others; without a tensor group they are all.
 */
static void *own_rows_of(const struct sw_engine *engine, void *piece) {
    const struct sw_plan *plan = engine->plan;
    if (piece == NULL || sw_plan_tensor_ranks(plan) == 1 || sw_plan_is_sequence_parallel(plan))
        return piece;
    return (char *)piece + sw_plan_rows_of(plan, plan->spec.tensor.rank).first_grain * sw_plan_row_bytes(plan);
}

/* Tells whether an op's input has this rank's rows alone, although the plan's other inputs have all. */
static bool recalls_rows(const struct sw_engine *engine, const struct sw_op *op) {
    return op->kind == SW_OP_BACKWARD_NORM && sw_plan_recalls_rows(engine->plan, op->unit);
}

static sw_status run_unit(struct sw_engine *engine, struct lane *lane, const struct sw_op *op,
                          struct step_context *context) {
    const struct sw_unit_ops *ops = &engine->spec.ops;
    void *in = sw_engine_operand(engine, op, SW_ROLE_INPUT), *grad = sw_engine_operand(engine, op, SW_ROLE_OUTPUT_GRAD);
    const struct sw_unit_call call = {
        .stream = lane->stream,
        .unit = op->unit,
        .micro = op->micro,
        .weights = sw_engine_operand(engine, op, SW_ROLE_WEIGHTS),
        .rows = sw_engine_operand(engine, op, SW_ROLE_ROWS),
        .table = sw_engine_operand(engine, op, SW_ROLE_TABLE),
        .tokens = sw_engine_operand(engine, op, SW_ROLE_TOKENS),
        .in = sw_plan_is_sequence_parallel(engine->plan) ? NULL : in,
        .own_in = recalls_rows(engine, op) ? in : own_rows_of(engine, in),
        .normed = sw_engine_operand(engine, op, SW_ROLE_NORMED),
        .out = sw_engine_operand(engine, op, SW_ROLE_OUTPUT),
        .saved = sw_engine_operand(engine, op, SW_ROLE_SAVED),
        .derived = sw_engine_operand(engine, op, SW_ROLE_DERIVED),
        .recompute = engine->plan->recompute[op->unit],
        .grad = grad,
        .own_grad = own_rows_of(engine, grad),
        .norm_grad = sw_engine_operand(engine, op, SW_ROLE_NORM_GRAD),
        .product_grad = sw_engine_operand(engine, op, SW_ROLE_PRODUCT_GRAD),
        .softmax = sw_engine_operand(engine, op, SW_ROLE_SOFTMAX),
        .own_rows = sw_plan_rows_of(engine->plan, engine->plan->spec.tensor.rank),
        .acc = sw_engine_operand(engine, op, SW_ROLE_ACC),
        .table_acc = sw_engine_operand(engine, op, SW_ROLE_TABLE_ACC),
        .work = sw_engine_operand(engine, op, SW_ROLE_WORK),
        .loss_scale = (float)(engine->loss_scale.scale / (double)sw_max_i64(1, context->input.loss_tokens)),
        .loss = &context->loss[op->micro],
        .row = context->input.row,
        .past = context->input.past,
        .count = context->input.count,
        .cache = sw_engine_operand(engine, op, SW_ROLE_CACHE),
        .logits = context->input.logits,
    };
    switch (op->kind) {
    case SW_OP_FORWARD: return ops->forward(ops->context, &call);
    case SW_OP_BACKWARD: return run_backward(ops, &call);
    case SW_OP_BACKWARD_LAST: return ops->last_product(ops->context, &call);
    case SW_OP_BACKWARD_FIRST: return ops->first_product(ops->context, &call);
    case SW_OP_FORWARD_BACKWARD_HEAD: return ops->head(ops->context, &call);
    case SW_OP_FORWARD_NORM: return ops->norm_forward(ops->context, &call);
    case SW_OP_BACKWARD_NORM: return ops->norm_backward(ops->context, &call);
    case SW_OP_HEAD_LOGITS: return ops->head_logits(ops->context, &call);
    case SW_OP_COMPUTE_LOSS: return ops->loss(ops->context, &call);
    default: return ops->logits(ops->context, &call);
    }
}

static sw_status run_tokens(struct sw_engine *engine, struct lane *lane, const struct sw_op *op,
                            struct step_context *context) {
    const struct sw_access *to = NULL;
    while ((to = sw_engine_next_operand(engine, op, SW_ROLE_TO, to)) != NULL)
        SW_TRY(sw_copy_to_device(lane->stream, sw_engine_address(engine, to),
                                 sw_engine_staged_tokens(engine, context - engine->context, to->first_index),
                                 engine->plan->spec.token_bytes));
    return SW_OK;
}

static sw_status run_gather_rows(struct sw_engine *engine, const struct sw_op *op, struct step_context *context) {
    const void *weights = sw_engine_operand(engine, op, SW_ROLE_WEIGHTS);
    const struct sw_access *rows = NULL;
    while ((rows = sw_engine_next_operand(engine, op, SW_ROLE_ROWS, rows)) != NULL)
        engine->spec.ops.gather(engine->spec.ops.context, &(struct sw_gather_call){
                                                              .tokens = sw_engine_staged_tokens(
                                                                  engine, context - engine->context, rows->first_index),
                                                              .weights = weights,
                                                              .first_elem = op->first_grain * SW_GRAIN_ELEMS,
                                                              .elems = op->grains * SW_GRAIN_ELEMS,
                                                              .out = sw_engine_address(engine, rows),
                                                          });
    return SW_OK;
}

static sw_status run_zero_accumulator(struct sw_engine *engine, struct lane *lane, const struct sw_op *op) {
    const struct sw_access *to = sw_engine_next_operand(engine, op, SW_ROLE_TO, NULL);
    return sw_zero(lane->stream, sw_engine_address(engine, to), to->bytes);
}

static sw_status run_round_gradients(struct sw_engine *engine, struct lane *lane, const struct sw_op *op) {
    return sw_finish_gradient(
        lane->stream, .type = engine->plan->spec.type, .elems = op->grains * SW_GRAIN_ELEMS,
        .acc = sw_engine_operand(engine, op, SW_ROLE_FROM), .grads = sw_engine_operand(engine, op, SW_ROLE_TO),
        .sums = sw_engine_operand(engine, op, SW_ROLE_SQUARE_SUMS), .format = engine->plan->spec.grads);
}

static sw_status run_add_to_accumulator(struct sw_engine *engine, struct lane *lane, const struct sw_op *op) {
    float *acc = sw_engine_operand(engine, op, SW_ROLE_TO);
    return sw_add(lane->stream, SW_F32, op->grains * SW_GRAIN_ELEMS, acc, sw_engine_operand(engine, op, SW_ROLE_FROM),
                  acc);
}

static sw_status run_sum_squares(struct sw_engine *engine, struct lane *lane, const struct sw_op *op) {
    return sw_square_sums(lane->stream, engine->plan->spec.type, op->grains * SW_GRAIN_ELEMS,
                          sw_engine_operand(engine, op, SW_ROLE_FROM),
                          sw_engine_operand(engine, op, SW_ROLE_SQUARE_SUMS));
}

/* Returns the factor of gradients where nothing is clipped. */
static float unscaling(const struct sw_engine *engine) {
    return (float)(1.0 / engine->loss_scale.scale);
}

static struct sw_loss_scale next_scale(sw_dtype type, struct sw_loss_scale now, bool overflow) {
    if (type != SW_F16)
        return now;
    if (overflow)
        return (struct sw_loss_scale){.scale = fmax(1.0, now.scale / 2)};
    if (now.good_steps + 1 < SW_SCALE_STEPS)
        return (struct sw_loss_scale){.scale = now.scale, .good_steps = now.good_steps + 1};
    return (struct sw_loss_scale){.scale = fmin(SW_FP16_LARGEST_SCALE, now.scale * 2)};
}

/* Adds up the square sums in unit and grain order, and derives the update's clip factor, or that it is skipped. */
static sw_status run_compute_norm(struct sw_engine *engine, const struct sw_op *op, struct step_context *context) {
    const struct sw_units *units = engine->plan->spec.units;
    const struct sw_access *sums_of_unit = NULL;
    double total = 0.0;
    while ((sums_of_unit = sw_engine_next_operand(engine, op, SW_ROLE_SQUARE_SUMS, sums_of_unit)) != NULL) {
        const double *sums = sw_engine_address(engine, sums_of_unit);
        for (int64_t g = 0; g < units->unit[sums_of_unit->first_index].grains; g++)
            total += sums[g];
    }
    struct sw_step_result *result = &context->result;
    result->loss_scale = engine->loss_scale.scale;
    result->grad_norm = sqrt(total) / result->loss_scale;
    result->skipped = !isfinite(result->grad_norm);
    if (result->skipped)
        engine->skipped_steps++;
    else
        engine->applied_steps++;
    result->applied_steps = engine->applied_steps;
    result->skipped_steps = engine->skipped_steps;
    result->next_scale = next_scale(engine->plan->spec.type, engine->loss_scale, result->skipped);
    const double clip = context->input.clip;
    const double coefficient = clip > 0 ? clip / (result->grad_norm + CLIP_EPSILON) : 1.0;
    struct sw_adamw adamw = context->input.adamw;
    adamw.step = engine->applied_steps;
    adamw.skip = result->skipped;
    adamw.grad_scale = (float)(fmin(1.0, coefficient) / result->loss_scale);
    const bool wrong = adamw.skip || adamw.grad_scale != unscaling(engine);
    pthread_mutex_lock(&engine->mutex);
    sw_pace_note_clip(&engine->pace, wrong);
    pthread_mutex_unlock(&engine->mutex);
    result->redone = context->speculates && wrong;
    engine->pending = (struct pending_update){.redo = result->redone, .adamw = adamw, .step = result->step};
    engine->loss_scale = result->next_scale;
    return SW_OK;
}

sw_status sw_engine_pack(const struct sw_engine *engine, struct sw_stream *stream, int64_t unit, struct sw_span at,
                         const void *records, void *weights) {
    const struct sw_plan_spec *spec = &engine->plan->spec;
    return sw_pack_weights(stream, .type = spec->type, .first_elem = at.first_grain * SW_GRAIN_ELEMS,
                           .grains = at.grains, .wide_elem = spec->units->unit[unit].wide_grain * SW_GRAIN_ELEMS,
                           .format = spec->units->optimizer, .records = records, .weights = weights);
}

static sw_status run_update(struct sw_engine *engine, struct lane *lane, const struct sw_op *op,
                            const struct step_context *context) {
    const struct sw_unit *unit = &engine->plan->spec.units->unit[op->unit];
    struct sw_adamw adamw = engine->pending.adamw;
    if (op->speculates) {
        /* The norm will say the same if nothing is clipped or skipped. */
        adamw = context->input.adamw;
        adamw.step = engine->applied_steps + 1;
        adamw.grad_scale = unscaling(engine);
    }
    const struct sw_units *units = engine->plan->spec.units;
    const bool packs = sw_units_packs(units, op->unit);
    void *records = sw_engine_operand(engine, op, SW_ROLE_OPTIMIZER);
    void *weights = sw_engine_operand(engine, op, SW_ROLE_WEIGHTS);
    SW_TRY(sw_update_adamw(
        lane->stream, .type = engine->plan->spec.type, .adamw = &adamw, .first_elem = op->first_grain * SW_GRAIN_ELEMS,
        .grains = op->grains, .runs = unit->run, .run_count = unit->run_count,
        .grads = sw_engine_operand(engine, op, SW_ROLE_GRADS), .records = records, .weights = packs ? NULL : weights,
        .format = sw_optimizer_records(units->optimizer), .rounding = engine->spec.rounding, .seed = engine->spec.seed,
        .unit = op->unit, .wide_elem = unit->wide_grain * SW_GRAIN_ELEMS, .grads_format = engine->plan->spec.grads));
    const struct sw_span at = {op->first_grain, op->grains};
    return packs ? sw_engine_pack(engine, lane->stream, op->unit, at, records, weights) : SW_OK;
}

static sw_status run_copy(struct lane *lane, const struct sw_op *op, const struct sw_engine *engine) {
    const struct sw_access *from = sw_engine_next_operand(engine, op, SW_ROLE_FROM, NULL);
    void *to = sw_engine_operand(engine, op, SW_ROLE_TO);
    return op->kind == SW_OP_UPLOAD ? sw_copy_to_device(lane->stream, to, sw_engine_address(engine, from), from->bytes)
                                    : sw_copy_to_host(lane->stream, to, sw_engine_address(engine, from), from->bytes);
}

static sw_status run_keep_secondary(struct lane *lane, const struct sw_op *op, const struct sw_engine *engine) {
    const struct sw_access *from = sw_engine_next_operand(engine, op, SW_ROLE_FROM, NULL);
    return sw_copy_on_device(lane->stream, sw_engine_operand(engine, op, SW_ROLE_TO), sw_engine_address(engine, from),
                             from->bytes);
}

static sw_status run_commit(const struct sw_engine *engine, const struct step_context *context) {
    return sw_store_commit(engine->spec.store, engine->pending.step, context->generation[SW_GENERATION_COMMITTED],
                           engine->text);
}

static sw_status run_op(struct sw_engine *engine, struct lane *lane, const struct sw_op *op,
                        struct step_context *context) {
    switch (op->kind) {
    case SW_OP_FORWARD:
    case SW_OP_FORWARD_NORM:
    case SW_OP_BACKWARD:
    case SW_OP_BACKWARD_LAST:
    case SW_OP_BACKWARD_FIRST:
    case SW_OP_FORWARD_BACKWARD_HEAD:
    case SW_OP_BACKWARD_NORM:
    case SW_OP_HEAD_LOGITS:
    case SW_OP_COMPUTE_LOSS:
    case SW_OP_COMPUTE_LOGITS: return run_unit(engine, lane, op, context);
    case SW_OP_UPLOAD_TOKENS: return run_tokens(engine, lane, op, context);
    case SW_OP_GATHER_ROWS: return run_gather_rows(engine, op, context);
    case SW_OP_ZERO_ACCUMULATOR: return run_zero_accumulator(engine, lane, op);
    case SW_OP_ROUND_GRADIENTS: return run_round_gradients(engine, lane, op);
    case SW_OP_ROUND_OWN_GRADIENTS: return sw_engine_round(engine, lane, op);
    case SW_OP_ADD_TO_ACCUMULATOR: return run_add_to_accumulator(engine, lane, op);
    case SW_OP_SUM_SQUARES: return run_sum_squares(engine, lane, op);
    case SW_OP_REDUCE_GRADIENTS: return sw_engine_reduce(engine, op);
    case SW_OP_ALL_GATHER: return sw_engine_all_gather(engine, op);
    case SW_OP_REDUCE_TENSOR:
    case SW_OP_GATHER_TENSOR:
    case SW_OP_SUM_REPLICATED: return sw_engine_run_tensor(engine, op, context);
    case SW_OP_QUANTIZE_GRADIENTS:
    case SW_OP_EXCHANGE_GRADIENTS:
    case SW_OP_DEQUANTIZE_GRADIENTS:
    case SW_OP_QUANTIZE_WEIGHTS:
    case SW_OP_DEQUANTIZE_WEIGHTS: return sw_engine_run_quantized(engine, lane, op);
    case SW_OP_KEEP_SECONDARY: return run_keep_secondary(lane, op, engine);
    case SW_OP_EXCHANGE_SUMMARY: return sw_engine_exchange_summary(engine, op, context);
    case SW_OP_DOWNLOAD_SQUARE_SUMS:
    case SW_OP_UPLOAD:
    case SW_OP_DOWNLOAD: return run_copy(lane, op, engine);
    case SW_OP_COMPUTE_NORM: return run_compute_norm(engine, op, context);
    case SW_OP_UPDATE_ON_HOST:
    case SW_OP_UPDATE_ON_DEVICE: return run_update(engine, lane, op, context);
    case SW_OP_COMMIT: return run_commit(engine, context);
    default: return sw_fail(SW_ERR_INTERNAL, "the op %s does not run on a thread", sw_op_name(op->kind));
    }
}

sw_status sw_engine_fail_while(sw_status status, const struct sw_op *op, const struct step_context *context) {
    if (op->unit < 0)
        return sw_fail_while(status, "running %s in step %lld", sw_op_name(op->kind), (long long)context->input.step);
    return sw_fail_while(status, "running %s of unit %d in step %lld", sw_op_name(op->kind), op->unit,
                         (long long)context->input.step);
}

sw_status sw_engine_start_op(struct sw_engine *engine, struct lane *lane, const struct sw_op *op,
                             struct step_context *context) {
    const sw_status status = run_op(engine, lane, op, context);
    return status == SW_OK ? SW_OK : sw_engine_fail_while(status, op, context);
}

sw_status sw_engine_run_op(struct sw_engine *engine, struct lane *lane, const struct sw_op *op,
                           struct step_context *context) {
    sw_status status = run_op(engine, lane, op, context);
    if (status == SW_OK && lane->stream != NULL)
        status = sw_stream_synchronize(lane->stream);
    return status == SW_OK ? SW_OK : sw_engine_fail_while(status, op, context);
}

struct sw_store_transfer sw_engine_transfer(const struct sw_engine *engine, const struct sw_op *op,
                                            const struct step_context *context) {
    static const sw_store_kind kinds[SW_CONTENTS] = {
        [SW_CONTENT_OPTIMIZER] = SW_STORE_OPTIMIZER, [SW_CONTENT_GRADS] = SW_STORE_GRADS,
        [SW_CONTENT_WEIGHTS] = SW_STORE_WEIGHTS,     [SW_CONTENT_BLOCK_OUTPUT] = SW_STORE_ACTS,
        [SW_CONTENT_ACC] = SW_STORE_ACCUMULATORS,
    };
    const bool write = op->kind == SW_OP_WRITE, optimizer = op->content == SW_CONTENT_OPTIMIZER;
    const struct sw_access *memory = sw_engine_next_operand(engine, op, write ? SW_ROLE_FROM : SW_ROLE_TO, NULL);
    const struct sw_access *home = sw_engine_next_operand(engine, op, write ? SW_ROLE_TO : SW_ROLE_FROM, NULL);
    const int generation = !optimizer                                         ? 0
                           : !write && home->generation == SW_GENERATION_NONE ? context->in_place_from
                                                                              : context->generation[home->generation];
    const int64_t each = op->content == SW_CONTENT_WEIGHTS
                             ? sw_units_stored_grains(engine->plan->spec.units, op->unit, engine->plan->spec.type)
                             : 1;
    return (struct sw_store_transfer){
        .write = write,
        .kind = kinds[op->content],
        .generation = generation,
        .unit = engine->plan->slot[home->slot].unit,
        .first_grain = op->first_grain * each,
        .grains = op->grains * each,
        .buf = sw_engine_address(engine, memory),
        .step = context->input.step,
    };
}
