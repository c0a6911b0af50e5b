/* Runs each kind of op. Exchanges of a tensor group are in place but for a rank's rows that lie in a slot of their own.
 */
#include "core/size.h"
#include "offload/engine/engine_private.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* torch.nn.utils.clip_grad_norm_ divides by the norm plus this. */
#define CLIP_EPSILON 1e-6

/* The surroundings that an op runs in. */
struct op_run {
    struct sw_engine *engine;
    struct lane *lane;
    const struct sw_op *op;
    struct step_context *context;
};

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
    return (char *)piece + sw_plan_own_rows(plan).first_grain * sw_plan_row_bytes(plan);
}

/* Tells whether an op's input has this rank's rows alone, although the plan's other inputs have all. */
static bool recalls_rows(const struct sw_engine *engine, const struct sw_op *op) {
    return op->kind == SW_OP_BACKWARD_NORM && sw_plan_recalls_rows(engine->plan, op->unit);
}

/* Returns the ranks, or tensor groups, that have micro-batches of their own, which are those of each stage; and this
 * one's number. */
static int64_t data_ranks_of(const struct sw_plan *plan) {
    return sw_plan_stage_ranks(plan) / sw_plan_tensor_ranks(plan);
}

static int64_t data_rank_of(const struct sw_plan *plan) {
    return sw_plan_job_rank(plan) % sw_plan_stage_ranks(plan) / sw_plan_tensor_ranks(plan);
}

/* Returns the `draw` of an op's call. Ranks have consecutive micro-batches of a step, so that its number is the same
 * for any number of ranks. */
static uint64_t draw_of(const struct sw_engine *engine, const struct step_context *context, int64_t micro) {
    const struct sw_plan_spec *spec = &engine->plan->spec;
    const int64_t ranks = data_ranks_of(engine->plan);
    const int64_t rank = data_rank_of(engine->plan);
    if (context->input.kind != SW_STEP_TRAIN)
        return 0;
    return (uint64_t)(((context->input.step - 1) * ranks + rank) * spec->micro_batches + micro + 1);
}

/* Returns the gradient at a norm, for its backward pass: this member's rows of a piece with those of all members of an
 * expert group, if an op's unit sent some there. */
static void *norm_grad_of(const struct sw_engine *engine, const struct sw_op *op) {
    const struct sw_plan *plan = engine->plan;
    void *piece = sw_engine_operand(engine, op, SW_ROLE_NORM_GRAD);
    const bool sent = op->kind == SW_OP_BACKWARD
                          ? sw_plan_sends_rows(plan, op->unit)
                          : op->kind == SW_OP_BACKWARD_NORM && sw_plan_shares_experts(plan, op->unit);
    if (piece == NULL || !sent)
        return piece;
    const struct sw_span rows = sw_plan_rows_of(plan, SW_AMONG_SENDERS, plan->spec.experts.rank);
    return (char *)piece + rows.first_grain * sw_plan_row_bytes(plan);
}

static sw_status run_unit(const struct op_run *run) {
    const struct sw_engine *engine = run->engine;
    const struct sw_op *op = run->op;
    const struct step_context *context = run->context;
    const struct sw_unit_ops *ops = &engine->spec.ops;
    void *in = sw_engine_operand(engine, op, SW_ROLE_INPUT), *grad = sw_engine_operand(engine, op, SW_ROLE_OUTPUT_GRAD);
    const struct sw_unit_call call = {
        .stream = run->lane->stream,
        .unit = op->unit,
        .micro = op->micro,
        .seed = engine->spec.seed,
        .draw = draw_of(engine, context, op->micro),
        .weights = sw_engine_operand(engine, op, SW_ROLE_WEIGHTS),
        .base = sw_engine_operand(engine, op, SW_ROLE_BASE),
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
        .norm_grad = norm_grad_of(engine, op),
        .product_grad = sw_engine_operand(engine, op, SW_ROLE_PRODUCT_GRAD),
        .softmax = sw_engine_operand(engine, op, SW_ROLE_SOFTMAX),
        .own_rows = sw_plan_own_rows(engine->plan),
        .acc = sw_engine_operand(engine, op, SW_ROLE_ACC),
        .table_acc = sw_engine_operand(engine, op, SW_ROLE_TABLE_ACC),
        .work = sw_engine_operand(engine, op, SW_ROLE_WORK),
        .loss_scale = (float)(engine->loss_scale.scale / (double)sw_max_i64(1, context->input.loss_tokens)),
        .micro_scale =
            engine->loss_scale.scale / (double)(engine->plan->spec.micro_batches * data_ranks_of(engine->plan)),
        .loss = &context->loss[op->micro * sw_plan_losses(engine->plan)],
        .tally = context->input.kind == SW_STEP_TRAIN && engine->plan->spec.tally > 0 ? context->tally : NULL,
        .row = context->input.row,
        .past = context->input.past,
        .count = context->input.count,
        .cache = sw_engine_operand(engine, op, SW_ROLE_CACHE),
        .logits = context->input.logits,
        .routing = sw_engine_operand(engine, op, SW_ROLE_ROUTING),
    };
    switch (op->kind) {
    case SW_OP_FORWARD: return ops->forward(ops->context, &call);
    case SW_OP_SEND_ROWS: return ops->send(ops->context, &call);
    case SW_OP_FORWARD_EXPERTS: return ops->experts_forward(ops->context, &call);
    case SW_OP_RECALL_ROWS: return ops->recall(ops->context, &call);
    case SW_OP_BACKWARD_EXPERTS: return ops->experts_backward(ops->context, &call);
    case SW_OP_BACKWARD:
        return sw_plan_sends_rows(engine->plan, op->unit) ? ops->backward(ops->context, &call)
                                                          : run_backward(ops, &call);
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

static sw_status run_tokens(const struct op_run *run) {
    const struct sw_engine *engine = run->engine;
    const struct sw_access *to = NULL;
    while ((to = sw_engine_next_operand(engine, run->op, SW_ROLE_TO, to)) != NULL)
        SW_TRY(sw_copy_to_device(run->lane->stream, sw_engine_address(engine, to),
                                 sw_engine_staged_tokens(engine, run->context - engine->context, to->first_index),
                                 engine->plan->spec.token_bytes));
    return SW_OK;
}

static sw_status run_gather_rows(const struct op_run *run) {
    const struct sw_engine *engine = run->engine;
    const struct sw_op *op = run->op;
    const void *weights = sw_engine_operand(engine, op, SW_ROLE_WEIGHTS);
    const struct sw_access *rows = NULL;
    while ((rows = sw_engine_next_operand(engine, op, SW_ROLE_ROWS, rows)) != NULL)
        engine->spec.ops.gather(
            engine->spec.ops.context,
            &(struct sw_gather_call){
                .tokens = sw_engine_staged_tokens(engine, run->context - engine->context, rows->first_index),
                .weights = weights,
                .first_elem = op->first_grain * SW_GRAIN_ELEMS,
                .elems = op->grains * SW_GRAIN_ELEMS,
                .out = sw_engine_address(engine, rows),
            });
    return SW_OK;
}

static sw_status run_zero_accumulator(const struct op_run *run) {
    const struct sw_access *to = sw_engine_next_operand(run->engine, run->op, SW_ROLE_TO, NULL);
    return sw_zero(run->lane->stream, sw_engine_address(run->engine, to), to->bytes);
}

static sw_status run_round_gradients(const struct op_run *run) {
    const struct sw_engine *engine = run->engine;
    const struct sw_op *op = run->op;
    return sw_finish_gradient(
        run->lane->stream, .type = engine->plan->spec.type, .elems = op->grains * SW_GRAIN_ELEMS,
        .acc = sw_engine_operand(engine, op, SW_ROLE_FROM), .grads = sw_engine_operand(engine, op, SW_ROLE_TO),
        .sums = sw_engine_operand(engine, op, SW_ROLE_SQUARE_SUMS), .format = engine->plan->spec.grads);
}

static sw_status run_add_to_accumulator(const struct op_run *run) {
    const struct sw_engine *engine = run->engine;
    const struct sw_op *op = run->op;
    float *acc = sw_engine_operand(engine, op, SW_ROLE_TO);
    return sw_add(run->lane->stream, SW_F32, op->grains * SW_GRAIN_ELEMS, acc,
                  sw_engine_operand(engine, op, SW_ROLE_FROM), acc);
}

static sw_status run_sum_squares(const struct op_run *run) {
    const struct sw_engine *engine = run->engine;
    const struct sw_op *op = run->op;
    return sw_square_sums(run->lane->stream, engine->plan->spec.type, op->grains * SW_GRAIN_ELEMS,
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
static sw_status run_compute_norm(const struct op_run *run) {
    struct sw_engine *engine = run->engine;
    struct step_context *context = run->context;
    const struct sw_access *sums_of_unit = NULL;
    double total = 0.0;
    while ((sums_of_unit = sw_engine_next_operand(engine, run->op, SW_ROLE_SQUARE_SUMS, sums_of_unit)) != NULL) {
        const double *sums = sw_engine_address(engine, sums_of_unit);
        for (int64_t g = 0; g < sw_plan_trained_anywhere(engine->plan, sums_of_unit->first_index).grains; g++)
            total += sums[g];
    }
    if (engine->spec.ops.join_squares != NULL)
        SW_TRY(engine->spec.ops.join_squares(engine->spec.ops.context, &total));
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
    engine->pending = (struct pending_update){
        .redo = result->redone, .adamw = adamw, .muon = context->input.muon, .step = result->step};
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

/* Returns what the caller lends of an op's elements from its element `at` on, or that it lends none of the rest. */
static struct sw_loan loan_at(const struct op_run *run, int64_t at) {
    const struct sw_unit_ops *ops = &run->engine->spec.ops;
    const struct sw_op *op = run->op;
    const int64_t count = op->grains * SW_GRAIN_ELEMS - at;
    if (ops->lend == NULL)
        return (struct sw_loan){.elems = count};
    return ops->lend(ops->context, op->unit, op->first_grain * SW_GRAIN_ELEMS + at, count);
}

/* Returns where the elements of a vector of an op from its element `at` on are; NULL: the op has no such operand. */
static void *elements(const struct op_run *run, sw_role role, int64_t at) {
    char *vector = sw_engine_operand(run->engine, run->op, role);
    return vector != NULL ? vector + at * sw_dtype_bytes(run->engine->plan->spec.type) : NULL;
}

/* Returns where the gradients of an update are from its element `at` on. */
static const void *gradients(const struct op_run *run, int64_t at) {
    const struct sw_plan *plan = run->engine->plan;
    const char *grads = sw_engine_operand(run->engine, run->op, SW_ROLE_GRADS);
    return grads + at / SW_GRAIN_ELEMS * sw_plan_grain_bytes(plan, SW_CONTENT_GRADS, run->op->unit);
}

/* The rates of an update. */
struct rates {
    struct sw_adamw adamw;
    struct sw_muon muon;
};

/* Updates the matrices of a chunk that are Muon's. */
static sw_status update_muon(const struct op_run *run, const struct rates *rates, int64_t grains) {
    const struct sw_engine *engine = run->engine;
    const struct sw_plan_spec *spec = &engine->plan->spec;
    const struct sw_span span = {run->op->first_grain, grains};
    int64_t tensors;
    const struct sw_muon_tensor *tensor = sw_unit_muon_in(&spec->units->unit[run->op->unit], span, &tensors);
    struct sw_muon muon = rates->muon;
    muon.grad_scale = rates->adamw.grad_scale;
    muon.skip = rates->adamw.skip;
    char *scratch = sw_engine_operand(engine, run->op, SW_ROLE_WORK);
    /* The work area of the passes begins with what they keep from step to step. */
    if (run->op->kind == SW_OP_UPDATE_ON_DEVICE)
        scratch += sw_round_up(spec->work_bytes, SW_BUFFER_ALIGN_BYTES);
    return sw_update_muon(run->lane->stream,
                          &(struct sw_update_muon){.type = spec->type,
                                                   .muon = &muon,
                                                   .format = spec->units->optimizer,
                                                   .rounding = engine->spec.rounding,
                                                   .seed = engine->spec.seed,
                                                   .unit = run->op->unit,
                                                   .step = rates->adamw.step,
                                                   .first_elem = run->op->first_grain * SW_GRAIN_ELEMS,
                                                   .grains = grains,
                                                   .tensor = tensor,
                                                   .tensors = tensors,
                                                   .grads_format = spec->grads,
                                                   .grads = sw_engine_operand(engine, run->op, SW_ROLE_GRADS),
                                                   .records = sw_engine_operand(engine, run->op, SW_ROLE_OPTIMIZER),
                                                   .weights = sw_engine_operand(engine, run->op, SW_ROLE_WEIGHTS),
                                                   .scratch = scratch});
}

/* Updates the elements of a loan, or those of a chunk that are AdamW's. */
static sw_status update_loan(const struct op_run *run, const struct sw_adamw *adamw, int64_t at,
                             const struct sw_loan *loan) {
    const struct sw_engine *engine = run->engine;
    const struct sw_op *op = run->op;
    const struct sw_units *units = engine->plan->spec.units;
    const struct sw_unit *unit = &units->unit[op->unit];
    const bool packs = sw_units_packs(units, op->unit);
    const struct sw_span span = {op->first_grain + at / SW_GRAIN_ELEMS, loan->elems / SW_GRAIN_ELEMS};
    char *records = sw_engine_operand(engine, op, SW_ROLE_OPTIMIZER);
    records += sw_plan_record_distance(engine->plan, op->unit, op->first_grain, span.first_grain);
    const void *grads = loan->grads != NULL ? loan->grads : gradients(run, at);
    void *weights = loan->weights != NULL ? loan->weights : elements(run, SW_ROLE_WEIGHTS, at);
    SW_TRY(sw_update_adamw(run->lane->stream, .type = engine->plan->spec.type, .adamw = adamw,
                           .first_elem = span.first_grain * SW_GRAIN_ELEMS, .grains = span.grains, .runs = unit->run,
                           .run_count = unit->run_count, .grads = grads, .records = records,
                           .weights = packs ? NULL : weights, .format = sw_optimizer_records(units->optimizer),
                           .rounding = engine->spec.rounding, .seed = engine->spec.seed, .unit = op->unit,
                           .wide_elem = unit->wide_grain * SW_GRAIN_ELEMS, .grads_format = engine->plan->spec.grads,
                           .record_bytes = sw_plan_optimizer_bytes(engine->plan, 1)));
    return packs ? sw_engine_pack(engine, run->lane->stream, op->unit, span, records, weights) : SW_OK;
}

static sw_status run_update(const struct op_run *run) {
    const struct sw_engine *engine = run->engine;
    struct rates rates = {.adamw = engine->pending.adamw, .muon = engine->pending.muon};
    if (run->op->speculates) {
        /* The norm will say the same if nothing is clipped or skipped. */
        rates = (struct rates){.adamw = run->context->input.adamw, .muon = run->context->input.muon};
        rates.adamw.step = engine->applied_steps + 1;
        rates.adamw.grad_scale = unscaling(engine);
    }
    const int64_t muon_grains =
        sw_plan_muon_grains(engine->plan, run->op->unit, (struct sw_span){run->op->first_grain, run->op->grains});
    if (muon_grains > 0)
        SW_TRY(update_muon(run, &rates, muon_grains));
    struct sw_loan loan;
    for (int64_t at = muon_grains * SW_GRAIN_ELEMS; at < run->op->grains * SW_GRAIN_ELEMS; at += loan.elems) {
        loan = loan_at(run, at);
        SW_TRY(update_loan(run, &rates.adamw, at, &loan));
    }
    const struct sw_unit_ops *ops = &engine->spec.ops;
    if (ops->stamp != NULL)
        ops->stamp(ops->context, run->op->unit, run->op->first_grain * SW_GRAIN_ELEMS, run->op->grains * SW_GRAIN_ELEMS,
                   sw_engine_operand(engine, run->op, SW_ROLE_OPTIMIZER));
    return SW_OK;
}

static sw_status run_take_gradients(const struct op_run *run) {
    const struct sw_unit_ops *ops = &run->engine->spec.ops;
    const struct sw_op *op = run->op;
    double *sums = sw_engine_operand(run->engine, op, SW_ROLE_SQUARE_SUMS);
    struct sw_loan loan;
    for (int64_t at = 0; at < op->grains * SW_GRAIN_ELEMS; at += loan.elems) {
        loan = loan_at(run, at);
        const void *grads = loan.grads;
        if (grads == NULL) {
            void *staging = elements(run, SW_ROLE_GRADS, at);
            SW_TRY(ops->take(ops->context, op->unit, op->first_grain * SW_GRAIN_ELEMS + at, loan.elems, staging));
            grads = staging;
        }
        if (sums != NULL)
            SW_TRY(sw_square_sums(run->lane->stream, run->engine->plan->spec.type, loan.elems, grads,
                                  sums + at / SW_GRAIN_ELEMS));
    }
    return SW_OK;
}

static sw_status run_give_weights(const struct op_run *run) {
    const struct sw_unit_ops *ops = &run->engine->spec.ops;
    const struct sw_op *op = run->op;
    struct sw_loan loan;
    for (int64_t at = 0; at < op->grains * SW_GRAIN_ELEMS; at += loan.elems) {
        loan = loan_at(run, at);
        if (loan.weights == NULL)
            SW_TRY(ops->give(ops->context, op->unit, op->first_grain * SW_GRAIN_ELEMS + at, loan.elems,
                             elements(run, SW_ROLE_WEIGHTS, at)));
    }
    return SW_OK;
}

static sw_status run_upload(const struct op_run *run) {
    const struct sw_access *from = sw_engine_next_operand(run->engine, run->op, SW_ROLE_FROM, NULL);
    return sw_copy_to_device(run->lane->stream, sw_engine_operand(run->engine, run->op, SW_ROLE_TO),
                             sw_engine_address(run->engine, from), from->bytes);
}

static sw_status run_download(const struct op_run *run) {
    const struct sw_access *from = sw_engine_next_operand(run->engine, run->op, SW_ROLE_FROM, NULL);
    return sw_copy_to_host(run->lane->stream, sw_engine_operand(run->engine, run->op, SW_ROLE_TO),
                           sw_engine_address(run->engine, from), from->bytes);
}

static sw_status run_keep_secondary(const struct op_run *run) {
    const struct sw_access *from = sw_engine_next_operand(run->engine, run->op, SW_ROLE_FROM, NULL);
    return sw_copy_on_device(run->lane->stream, sw_engine_operand(run->engine, run->op, SW_ROLE_TO),
                             sw_engine_address(run->engine, from), from->bytes);
}

static sw_status run_commit(const struct op_run *run) {
    const struct sw_engine *engine = run->engine;
    return sw_store_commit(engine->spec.store, engine->pending.step, run->context->generation[SW_GENERATION_COMMITTED],
                           engine->text);
}

/* Ends what an op of the comm lane has begun, on the lane's thread: leaves it to the lane's device, which goes on
 * alone, or waits for it. */
static sw_status end_collective(const struct lane *lane, struct sw_comm_request *request) {
    if (lane->left == NULL)
        return sw_comm_wait(request);
    sw_comm_leave(request, lane->left);
    return SW_OK;
}

/* Returns where each rank's part begins, in grains times `scale`. Valid until the next call. */
static const int64_t *bounds_of(struct sw_engine *engine, const struct sw_op *op, int64_t scale) {
    int64_t *bounds = engine->bounds;
    bounds[0] = 0;
    for (int rank = 0; rank < sw_plan_unit_ranks(engine->plan, op->unit); rank++)
        bounds[rank + 1] = bounds[rank] + sw_plan_share_of(engine->plan, op, rank).grains * scale;
    return bounds;
}

/* Returns where grains of an op's unit lie in its accumulator. */
static void *grain_of_accumulator(const struct sw_engine *engine, const struct sw_op *op, int64_t grain) {
    const int32_t slot = sw_engine_next_operand(engine, op, SW_ROLE_FROM, NULL)->slot;
    const int64_t within = grain - sw_plan_slot_grain(engine->plan, slot, SW_CONTENT_ACC, op->unit);
    return (char *)sw_engine_piece(engine, slot, 0) + within * engine->plan->slot[slot].grain_bytes;
}

/* Rounds every rank's part of the gradient into the bucket, one after the other. */
static sw_status round_bucket(const struct op_run *run) {
    struct sw_engine *engine = run->engine;
    const struct sw_op *op = run->op;
    char *to = sw_engine_operand(engine, op, SW_ROLE_TO);
    for (int rank = 0; rank < sw_plan_unit_ranks(engine->plan, op->unit); rank++) {
        const struct sw_span at = sw_plan_share_of(engine->plan, op, rank);
        if (at.grains == 0)
            continue;
        SW_TRY(sw_round_gradient(run->lane->stream, .type = engine->plan->spec.type,
                                 .elems = at.grains * SW_GRAIN_ELEMS,
                                 .from = grain_of_accumulator(engine, op, at.first_grain), .to = to));
        to += sw_plan_typed_bytes(engine->plan, at.grains);
    }
    return SW_OK;
}

static sw_status run_round_own_gradients(const struct op_run *run) {
    if (run->op->bucket)
        return round_bucket(run);
    return sw_round_gradient(run->lane->stream, .type = run->engine->plan->spec.type,
                             .elems = run->op->grains * SW_GRAIN_ELEMS,
                             .from = sw_engine_operand(run->engine, run->op, SW_ROLE_FROM),
                             .to = sw_engine_operand(run->engine, run->op, SW_ROLE_TO));
}

/* Quantizes every rank's part of the gradient into the bucket, by its number within its node and then by node. */
static sw_status run_quantize_gradients(const struct op_run *run) {
    const struct sw_engine *engine = run->engine;
    const struct sw_op *op = run->op;
    const struct sw_plan *plan = engine->plan;
    const int nodes = sw_plan_reduce_nodes(plan), node_ranks = sw_plan_reduce_node_ranks(plan);
    char *to = sw_engine_operand(engine, op, SW_ROLE_TO);
    for (int place = 0; place < sw_plan_ranks(plan); place++) {
        const struct sw_span at = sw_plan_share_of(engine->plan, op, place % nodes * node_ranks + place / nodes);
        if (at.grains == 0)
            continue;
        SW_TRY(sw_quantize(run->lane->stream, SW_F32, plan->spec.reduce, at.grains,
                           grain_of_accumulator(engine, op, at.first_grain), to));
        to += at.grains * sw_plan_grain_bytes(plan, SW_CONTENT_QUANT_GRADS, op->unit);
    }
    return SW_OK;
}

/* Quantizes what a node has summed for the ranks of this one's number. */
static sw_status run_quantize_node_sum(const struct op_run *run) {
    const struct sw_engine *engine = run->engine;
    const struct sw_op *op = run->op;
    if (op->grains == 0) /* this rank has none of the unit, or of the bucket */
        return SW_OK;
    return sw_quantize(run->lane->stream, SW_F32, engine->plan->spec.reduce, op->grains,
                       sw_engine_operand(engine, op, SW_ROLE_FROM), sw_engine_operand(engine, op, SW_ROLE_TO));
}

/* Returns where the parts begin that the ranks of a level exchange, in bytes. Valid until the next call. */
static const int64_t *bounds_of_level(struct sw_engine *engine, const struct sw_op *op) {
    const struct sw_plan *plan = engine->plan;
    const int node_ranks = sw_plan_reduce_node_ranks(plan), number = plan->spec.rank % node_ranks;
    const bool across = op->level == SW_LEVEL_ACROSS;
    const int ranks = across ? sw_plan_reduce_nodes(plan) : node_ranks;
    int64_t *bounds = engine->bounds;
    bounds[0] = 0;
    for (int r = 0; r < ranks; r++) {
        const int64_t grains = across ? sw_plan_share_of(engine->plan, op, r * node_ranks + number).grains
                                      : sw_plan_part_grains(plan, op->unit, op->chunk, r);
        bounds[r + 1] = bounds[r] + grains * sw_quant_grain_bytes(plan->spec.reduce);
    }
    return bounds;
}

static sw_status run_exchange_gradients(const struct op_run *run) {
    struct sw_engine *engine = run->engine;
    const struct sw_op *op = run->op;
    static const sw_comm_scope scopes[] = {
        [SW_LEVEL_ALL] = SW_SCOPE_ALL, [SW_LEVEL_NODE] = SW_SCOPE_NODE, [SW_LEVEL_ACROSS] = SW_SCOPE_ACROSS};
    void *from = sw_engine_operand(engine, op, SW_ROLE_FROM), *to = sw_engine_operand(engine, op, SW_ROLE_TO);
    const struct sw_comm_exchange exchange = {.what = sw_op_name(op->kind),
                                              .index = op->unit,
                                              .data = from,
                                              .bounds_bytes = bounds_of_level(engine, op),
                                              .to = to != NULL ? to : from, /* without a part it receives nothing */
                                              .scope = scopes[op->level]};
    struct sw_comm_request *request;
    SW_TRY(sw_comm_exchange(engine->spec.comm, &exchange, &request));
    return end_collective(run->lane, request);
}

static sw_status run_dequantize_gradients(const struct op_run *run) {
    const struct sw_engine *engine = run->engine;
    const struct sw_op *op = run->op;
    if (op->grains == 0) /* this rank has none of the unit, or of the bucket */
        return SW_OK;
    const struct sw_plan_spec *spec = &engine->plan->spec;
    const int node_ranks = sw_plan_reduce_node_ranks(engine->plan);
    const bool across = op->level == SW_LEVEL_ACROSS, wide = op->wide || op->level == SW_LEVEL_NODE;
    const struct sw_dequantize args = {.type = wide ? SW_F32 : spec->type,
                                       .quant = spec->reduce,
                                       .grains = op->grains,
                                       .rank = across ? spec->rank / node_ranks : spec->rank % node_ranks,
                                       .ranks = across ? sw_plan_reduce_nodes(engine->plan) : node_ranks,
                                       .stride_bytes = op->grains * sw_quant_grain_bytes(spec->reduce),
                                       .own = sw_engine_operand(engine, op, SW_ROLE_GRADS),
                                       .others = sw_engine_operand(engine, op, SW_ROLE_FROM),
                                       .to = sw_engine_operand(engine, op, SW_ROLE_TO)};
    return sw_device_run(run->lane->stream, SW_DEVICE_DEQUANTIZE, &args);
}

static sw_status run_quantize_weights(const struct op_run *run) {
    const struct sw_engine *engine = run->engine;
    const struct sw_op *op = run->op;
    if (op->grains == 0) /* this rank has none of the unit, or of the bucket */
        return SW_OK;
    return sw_quantize(run->lane->stream, engine->plan->spec.type, engine->plan->spec.gather, op->grains,
                       sw_engine_operand(engine, op, SW_ROLE_FROM), sw_engine_operand(engine, op, SW_ROLE_TO));
}

static sw_status run_dequantize_weights(const struct op_run *run) {
    const struct sw_engine *engine = run->engine;
    const struct sw_op *op = run->op;
    if (op->grains == 0) /* this rank has none of the unit, or of the bucket */
        return SW_OK;
    return sw_dequantize(run->lane->stream, .type = engine->plan->spec.type, .quant = engine->plan->spec.gather,
                         .grains = op->grains, .ranks = 1, .own = sw_engine_operand(engine, op, SW_ROLE_FROM),
                         .to = sw_engine_operand(engine, op, SW_ROLE_TO));
}

static sw_status run_reduce_gradients(const struct op_run *run) {
    struct sw_engine *engine = run->engine;
    const struct sw_op *op = run->op;
    const int64_t *bounds = bounds_of(engine, op, SW_GRAIN_ELEMS);
    void *from = sw_engine_operand(engine, op, SW_ROLE_FROM), *to = sw_engine_operand(engine, op, SW_ROLE_TO);
    const struct sw_comm_reduce reduce = {.what = sw_op_name(op->kind),
                                          .index = op->unit,
                                          .from = from,
                                          .bounds = bounds,
                                          .to = to != NULL ? to : from, /* a rank without a part receives nothing */
                                          .type = engine->plan->spec.type,
                                          .to_type = op->wide ? SW_F32 : engine->plan->spec.type,
                                          .scope = sw_engine_sharers(engine, op->unit)};
    struct sw_comm_request *request;
    SW_TRY(sw_comm_reduce_scatter(engine->spec.comm, &reduce, &request));
    return end_collective(run->lane, request);
}

/* Returns where the secondary shard of each rank of a part of a node begins, in bytes. Valid until the next call. */
static const int64_t *secondary_bounds(struct sw_engine *engine, const struct sw_op *op) {
    const struct sw_plan *plan = engine->plan;
    int64_t *bounds = engine->bounds;
    bounds[0] = 0;
    for (int number = 0; number < plan->spec.secondary_ranks; number++)
        bounds[number + 1] =
            bounds[number] + sw_plan_weights_bytes(plan, op->unit, sw_plan_secondary_of(plan, op->unit, number).grains);
    return bounds;
}

/* Gathers a whole unit, or all chunks of a bucket. This rank's part may lie in a slot of its own. */
static sw_status run_all_gather(const struct op_run *run) {
    struct sw_engine *engine = run->engine;
    const struct sw_op *op = run->op;
    const struct sw_access *from = sw_engine_next_operand(engine, op, SW_ROLE_FROM, NULL);
    const struct sw_access *to = sw_engine_next_operand(engine, op, SW_ROLE_TO, NULL);
    const bool apart = from != NULL && from->slot != to->slot;
    const struct sw_comm_gather gather = {
        .what = sw_op_name(op->kind),
        .index = op->unit,
        .data = sw_engine_address(engine, to),
        .own = apart ? sw_engine_address(engine, from) : NULL,
        .bounds_bytes = op->secondary ? secondary_bounds(engine, op)
                                      : bounds_of(engine, op, sw_plan_grain_bytes(engine->plan, op->content, op->unit)),
        .scope = op->secondary ? SW_SCOPE_PART : sw_engine_sharers(engine, op->unit),
    };
    struct sw_comm_request *request;
    SW_TRY(sw_comm_all_gather(engine->spec.comm, &gather, &request));
    return end_collective(run->lane, request);
}

/* Copies the square sums of this rank's shards of the units that its stage computes to its summary. */
static void note_sums(struct sw_engine *engine, const struct sw_op *op, double *record) {
    const struct sw_plan *plan = engine->plan;
    const struct sw_access *of_unit = NULL;
    while ((of_unit = sw_engine_next_operand(engine, op, SW_ROLE_SQUARE_SUMS, of_unit)) != NULL) {
        if (!sw_plan_computes(plan, of_unit->first_index))
            continue;
        const struct sw_span at =
            sw_plan_shard_of(plan, of_unit->first_index, sw_plan_unit_rank(plan, of_unit->first_index));
        const double *sums = (const double *)sw_engine_address(engine, of_unit) + at.first_grain -
                             sw_plan_trained(plan, of_unit->first_index).first_grain;
        memcpy(record, sums, (size_t)at.grains * sizeof *sums);
        record += at.grains;
    }
}

/* Takes the square sums of a rank's shards, of the units that its stage computes, from its summary. The ranks of a
 * group, of which each has its part of a unit, come one after the other: the first sets the sum of a grain and the
 * others add theirs, but for grains that are the same on all of them. */
static void take_sums(struct sw_engine *engine, const struct sw_op *op, int job_rank, const double *record) {
    const struct sw_plan *plan = engine->plan;
    const int stage = job_rank / sw_plan_stage_ranks(plan), rank = job_rank % sw_plan_stage_ranks(plan);
    const struct sw_access *of_unit = NULL;
    while ((of_unit = sw_engine_next_operand(engine, op, SW_ROLE_SQUARE_SUMS, of_unit)) != NULL) {
        const struct sw_unit *unit = &plan->spec.units->unit[of_unit->first_index];
        if (sw_plan_stage_of(plan, of_unit->first_index) != stage)
            continue;
        const int sharers = sw_plan_unit_ranks(plan, of_unit->first_index), parts = sw_plan_stage_ranks(plan) / sharers;
        const bool adds = rank % parts > 0;
        const struct sw_span all = sw_plan_trained_anywhere(plan, of_unit->first_index);
        const struct sw_span at = sw_plan_shard_anywhere(plan, of_unit->first_index, rank / parts);
        double *sums = (double *)sw_engine_address(engine, of_unit) + at.first_grain - all.first_grain;
        for (int64_t g = 0; g < at.grains; g++)
            if (!adds)
                sums[g] = record[g];
            else if (!sw_unit_grain_copies(unit, at.first_grain + g))
                sums[g] += record[g];
        record += at.grains;
    }
}

static double compute_seconds(struct sw_engine *engine, const struct step_context *context) {
    pthread_mutex_lock(&engine->mutex);
    const double seconds = context->result.busy_seconds[SW_LANE_COMPUTE];
    pthread_mutex_unlock(&engine->mutex);
    return seconds;
}

/* Takes the mean and the least of the ranks' times, of which each record has one. */
static void take_stage_times(const struct sw_plan *plan, const double *time_s, int64_t doubles,
                             struct sw_step_result *result) {
    const int ranks = sw_plan_job_ranks(plan);
    result->mean_compute_seconds = 0.0;
    result->least_compute_seconds = INFINITY;
    for (int rank = 0; rank < ranks; rank++) {
        result->mean_compute_seconds += time_s[rank * doubles] / ranks;
        result->least_compute_seconds = fmin(result->least_compute_seconds, time_s[rank * doubles]);
    }
}

static sw_status run_exchange_summary(const struct op_run *run) {
    struct sw_engine *engine = run->engine;
    const struct sw_op *op = run->op;
    struct step_context *context = run->context;
    const struct sw_plan *plan = engine->plan;
    const bool sums = op->content == SW_CONTENT_SQUARE_SUMS;
    const int64_t bytes = sw_plan_summary_bytes(plan, sums), doubles = bytes / (int64_t)sizeof(double);
    double *records = sw_engine_piece(engine, sw_plan_buffer(plan, SW_BUFFER_SUMMARIES), 0),
           *mine = records + sw_plan_job_rank(plan) * doubles, own[SW_PAIR_SUMS];
    /* The tally, the other sums of pairs, and the time of a pipeline's stage come last in a record. */
    const bool has_stages = sw_plan_stages(plan) > 1;
    const int64_t pairs_end = doubles - has_stages;
    const int64_t others = pairs_end - (plan->spec.pair_sequences > 0 ? SW_PAIR_SUMS - 1 : 0);
    const int64_t tally = others - plan->spec.tally;
    sw_engine_own_sums(engine, context, own);
    mine[SW_SUMMARY_LOSS] = own[SW_PAIR_LOSS];
    memcpy(mine + others, own + 1, (size_t)(pairs_end - others) * sizeof *mine);
    memcpy(mine + tally, context->tally, (size_t)(others - tally) * sizeof *mine);
    mine[SW_SUMMARY_REQUESTS] = (double)atomic_load(&engine->requests);
    if (sums)
        note_sums(engine, op, mine + SW_SUMMARY_SQUARE_SUMS);
    if (has_stages)
        mine[pairs_end] = compute_seconds(engine, context);
    SW_TRY(sw_comm_share_records(engine->spec.comm, sw_op_name(op->kind), records, bytes));
    unsigned requests = 0;
    memset(context->shared_sums, 0, sizeof context->shared_sums);
    memset(context->shared_tally, 0, (size_t)(others - tally) * sizeof *mine);
    for (int rank = 0; rank < sw_plan_job_ranks(plan); rank++) {
        const double *record = records + rank * doubles;
        /* The ranks of a tensor group have the same losses, and those of all stages but the last have none. */
        const bool counts = rank % sw_plan_tensor_ranks(plan) == 0;
        context->shared_sums[SW_PAIR_LOSS] += counts ? record[SW_SUMMARY_LOSS] : 0.0;
        for (int64_t i = tally; counts && i < others; i++)
            context->shared_tally[i - tally] += record[i];
        for (int64_t i = others; counts && i < pairs_end; i++)
            context->shared_sums[1 + i - others] += record[i];
        requests |= (unsigned)record[SW_SUMMARY_REQUESTS];
        if (sums)
            take_sums(engine, op, rank, record + SW_SUMMARY_SQUARE_SUMS);
    }
    context->result.requests = requests;
    if (has_stages)
        take_stage_times(plan, records + pairs_end, doubles, &context->result);
    return SW_OK;
}

/* Returns the piece that an op of a tensor group makes whole, or takes apart. */
static void *piece_of(const struct sw_engine *engine, const struct sw_op *op) {
    return sw_engine_operand(engine, op, op->kind == SW_OP_REDUCE_TENSOR ? SW_ROLE_FROM : SW_ROLE_TO);
}

/* Returns where this rank's rows are, or go, if not to their place in the piece; else NULL. */
static void *rows_apart(const struct sw_engine *engine, const struct sw_op *op) {
    const struct sw_access *from = sw_engine_next_operand(engine, op, SW_ROLE_FROM, NULL);
    const struct sw_access *to = sw_engine_next_operand(engine, op, SW_ROLE_TO, NULL);
    if (from->slot == to->slot)
        return NULL;
    return sw_engine_address(engine, op->kind == SW_OP_REDUCE_TENSOR ? to : from);
}

/* Returns where the rows of each rank of an op begin, in `scale` for each row; a tensor group's pass of fewer tokens
 * than a micro-batch has has fewer rows. Valid until the next call. */
static const int64_t *row_bounds(struct sw_engine *engine, const struct op_run *run, int64_t scale) {
    const struct sw_plan *plan = engine->plan;
    const sw_among among = sw_plan_among(plan, run->op);
    const int ranks = sw_plan_members(plan, among);
    const int64_t tokens = run->context->input.count;
    int64_t *bounds = engine->bounds;
    bounds[0] = 0;
    for (int rank = 0; rank < ranks; rank++) {
        const struct sw_span at = tokens > 0 ? sw_shard(tokens, ranks, rank) : sw_plan_rows_of(plan, among, rank);
        bounds[rank + 1] = bounds[rank] + at.grains * scale;
    }
    return bounds;
}

/* Returns the scope of an exchange in a group. */
static sw_comm_scope scope_of(const struct sw_engine *engine, const struct sw_op *op) {
    switch (sw_plan_among(engine->plan, op)) {
    case SW_AMONG_EXPERTS: return SW_SCOPE_EXPERTS;
    case SW_AMONG_SENDERS: return SW_SCOPE_SENDERS;
    case SW_AMONG_LINK: return SW_SCOPE_ENDS;
    default: return SW_SCOPE_TENSOR;
    }
}

/* Sums a vector of the group's ranks; each gets its part. */
static sw_status reduce_in_group(const struct op_run *run, void *data, const int64_t *bounds, sw_dtype type) {
    const struct sw_engine *engine = run->engine;
    const struct sw_op *op = run->op;
    void *apart = rows_apart(engine, op);
    const int number = sw_comm_scope_rank(engine->spec.comm, scope_of(engine, op));
    const struct sw_comm_reduce reduce = {
        .what = sw_op_name(op->kind),
        .index = op->unit,
        .from = data,
        .bounds = bounds,
        .to = apart != NULL ? apart : (char *)data + bounds[number] * sw_dtype_bytes(type),
        .type = type,
        .to_type = type,
        .scope = scope_of(engine, op),
    };
    struct sw_comm_request *request;
    SW_TRY(sw_comm_reduce_scatter(engine->spec.comm, &reduce, &request));
    return end_collective(run->lane, request);
}

static sw_status gather_in_group(const struct op_run *run, void *data, const int64_t *bounds_bytes) {
    const struct sw_engine *engine = run->engine;
    const struct sw_op *op = run->op;
    const struct sw_comm_gather gather = {.what = sw_op_name(op->kind),
                                          .index = op->unit,
                                          .data = data,
                                          .own = rows_apart(engine, op),
                                          .bounds_bytes = bounds_bytes,
                                          .scope = scope_of(engine, op)};
    struct sw_comm_request *request;
    SW_TRY(sw_comm_all_gather(engine->spec.comm, &gather, &request));
    return end_collective(run->lane, request);
}

/* Sums the fp32 accumulators of what every rank has, and gives the sums to all. */
static sw_status run_sum_replicated(const struct op_run *run) {
    struct sw_engine *engine = run->engine;
    const struct sw_op *op = run->op;
    const struct sw_plan *plan = engine->plan;
    const int ranks = sw_plan_members(plan, sw_plan_among(plan, op));
    const struct sw_unit *unit = &plan->spec.units->unit[op->unit];
    float *acc = (float *)piece_of(engine, op) + (unit->replicated_grain - unit->trained_grain) * SW_GRAIN_ELEMS;
    int64_t *bounds = engine->bounds;
    for (int rank = 0; rank < ranks; rank++) {
        const struct sw_span at = sw_plan_replicated_of(plan, op->unit, rank);
        bounds[rank] = at.first_grain;
        bounds[rank + 1] = at.first_grain + at.grains;
    }
    SW_TRY(reduce_in_group(run, acc, bounds, SW_F32));
    for (int rank = 0; rank <= ranks; rank++)
        bounds[rank] *= (int64_t)sizeof(float);
    return gather_in_group(run, acc, bounds);
}

static sw_status run_reduce_tensor(const struct op_run *run) {
    const sw_dtype type = run->engine->plan->spec.type;
    const int64_t row_elems = sw_plan_row_bytes(run->engine->plan) / sw_dtype_bytes(type);
    return reduce_in_group(run, piece_of(run->engine, run->op), row_bounds(run->engine, run, row_elems), type);
}

static sw_status run_gather_tensor(const struct op_run *run) {
    struct sw_engine *engine = run->engine;
    const struct sw_plan *plan = engine->plan;
    void *piece = piece_of(engine, run->op);
    if (run->op->content != SW_CONTENT_SOFTMAX)
        return gather_in_group(run, piece, row_bounds(engine, run, sw_plan_row_bytes(plan)));
    for (int rank = 0; rank <= sw_plan_tensor_ranks(plan); rank++)
        engine->bounds[rank] = rank * plan->spec.tensor.softmax_bytes;
    return gather_in_group(run, piece, engine->bounds);
}

/* Returns the scope of what an op passes: outputs go to the next stage, gradients come from there. */
static sw_comm_scope link_of(const struct sw_op *op) {
    return (op->kind == SW_OP_SEND) == (op->content == SW_CONTENT_BLOCK_OUTPUT) ? SW_SCOPE_NEXT : SW_SCOPE_PREVIOUS;
}

static sw_status run_pass(const struct op_run *run) {
    const struct sw_engine *engine = run->engine;
    const struct sw_op *op = run->op;
    const bool sends = op->kind == SW_OP_SEND;
    const struct sw_comm_pass pass = {.what = sw_op_name(op->kind),
                                      .index = op->unit,
                                      .data = sw_engine_operand(engine, op, sends ? SW_ROLE_FROM : SW_ROLE_TO),
                                      .bytes = engine->plan->spec.cost[op->unit].output_bytes,
                                      .scope = link_of(op),
                                      .sends = sends};
    struct sw_comm_request *request;
    SW_TRY(sw_comm_pass(engine->spec.comm, &pass, &request));
    return end_collective(run->lane, request);
}

/* Sums the fp32 accumulators of the first and the last stage, and gives the sums to both. */
static sw_status run_sum_table(const struct op_run *run) {
    struct sw_engine *engine = run->engine;
    float *acc = sw_engine_operand(engine, run->op, SW_ROLE_FROM);
    int64_t *bounds = engine->bounds;
    sw_comm_even_bounds(sw_plan_trained(engine->plan, run->op->unit).grains * SW_GRAIN_ELEMS, SW_GRAIN_ELEMS, 2,
                        bounds);
    SW_TRY(reduce_in_group(run, acc, bounds, SW_F32));
    for (int rank = 0; rank <= 2; rank++)
        bounds[rank] *= (int64_t)sizeof(float);
    return gather_in_group(run, acc, bounds);
}

/* Runs an op of each kind. Reads and writes have none: the lanes of the store give them to the drives. */
typedef sw_status (*run_function)(const struct op_run *run);
static const run_function run_of[SW_OP_KINDS] = {
    [SW_OP_UPLOAD_TOKENS] = run_tokens,
    [SW_OP_FORWARD] = run_unit,
    [SW_OP_FORWARD_NORM] = run_unit,
    [SW_OP_SEND_ROWS] = run_unit,
    [SW_OP_FORWARD_EXPERTS] = run_unit,
    [SW_OP_RECALL_ROWS] = run_unit,
    [SW_OP_BACKWARD_EXPERTS] = run_unit,
    [SW_OP_HEAD_LOGITS] = run_unit,
    [SW_OP_COMPUTE_LOSS] = run_unit,
    [SW_OP_COMPUTE_LOGITS] = run_unit,
    [SW_OP_ZERO_ACCUMULATOR] = run_zero_accumulator,
    [SW_OP_FORWARD_BACKWARD_HEAD] = run_unit,
    [SW_OP_BACKWARD] = run_unit,
    [SW_OP_BACKWARD_LAST] = run_unit,
    [SW_OP_BACKWARD_FIRST] = run_unit,
    [SW_OP_BACKWARD_NORM] = run_unit,
    [SW_OP_ROUND_GRADIENTS] = run_round_gradients,
    [SW_OP_ROUND_OWN_GRADIENTS] = run_round_own_gradients,
    [SW_OP_REDUCE_GRADIENTS] = run_reduce_gradients,
    [SW_OP_ADD_TO_ACCUMULATOR] = run_add_to_accumulator,
    [SW_OP_QUANTIZE_GRADIENTS] = run_quantize_gradients,
    [SW_OP_QUANTIZE_NODE_SUM] = run_quantize_node_sum,
    [SW_OP_EXCHANGE_GRADIENTS] = run_exchange_gradients,
    [SW_OP_DEQUANTIZE_GRADIENTS] = run_dequantize_gradients,
    [SW_OP_SUM_SQUARES] = run_sum_squares,
    [SW_OP_ALL_GATHER] = run_all_gather,
    [SW_OP_QUANTIZE_WEIGHTS] = run_quantize_weights,
    [SW_OP_DEQUANTIZE_WEIGHTS] = run_dequantize_weights,
    [SW_OP_KEEP_SECONDARY] = run_keep_secondary,
    [SW_OP_REDUCE_TENSOR] = run_reduce_tensor,
    [SW_OP_GATHER_TENSOR] = run_gather_tensor,
    [SW_OP_SUM_REPLICATED] = run_sum_replicated,
    [SW_OP_SEND] = run_pass,
    [SW_OP_RECEIVE] = run_pass,
    [SW_OP_SUM_TABLE] = run_sum_table,
    [SW_OP_EXCHANGE_SUMMARY] = run_exchange_summary,
    [SW_OP_DOWNLOAD_SQUARE_SUMS] = run_download,
    [SW_OP_COMPUTE_NORM] = run_compute_norm,
    [SW_OP_UPDATE_ON_HOST] = run_update,
    [SW_OP_UPDATE_ON_DEVICE] = run_update,
    [SW_OP_TAKE_GRADIENTS] = run_take_gradients,
    [SW_OP_GIVE_WEIGHTS] = run_give_weights,
    [SW_OP_GATHER_ROWS] = run_gather_rows,
    [SW_OP_UPLOAD] = run_upload,
    [SW_OP_DOWNLOAD] = run_download,
    [SW_OP_COMMIT] = run_commit,
};

bool sw_engine_runs(sw_op_kind kind) {
    return run_of[kind] != NULL || kind == SW_OP_READ || kind == SW_OP_WRITE;
}

static sw_status run_op(struct sw_engine *engine, struct lane *lane, const struct sw_op *op,
                        struct step_context *context) {
    return run_of[op->kind](&(struct op_run){.engine = engine, .lane = lane, .op = op, .context = context});
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
        [SW_CONTENT_ACC] = SW_STORE_ACCUMULATORS,    [SW_CONTENT_BLOCK_OUTPUT] = SW_STORE_ACTS,
        [SW_CONTENT_BASE] = SW_STORE_BASE,
    };
    const bool write = op->kind == SW_OP_WRITE, optimizer = op->content == SW_CONTENT_OPTIMIZER;
    const struct sw_access *memory = sw_engine_next_operand(engine, op, write ? SW_ROLE_FROM : SW_ROLE_TO, NULL);
    const struct sw_access *home = sw_engine_next_operand(engine, op, write ? SW_ROLE_TO : SW_ROLE_FROM, NULL);
    const int generation = !optimizer                                         ? 0
                           : !write && home->generation == SW_GENERATION_NONE ? context->in_place_from
                                                                              : context->generation[home->generation];
    const int64_t unit = engine->plan->slot[home->slot].unit;
    const bool weights = op->content == SW_CONTENT_WEIGHTS;
    const int64_t each =
        weights ? sw_units_stored_grains(engine->plan->spec.units, op->unit, engine->plan->spec.type) : 1;
    return (struct sw_store_transfer){
        .write = write,
        .kind = weights ? sw_engine_kind_of_weights(engine, unit, op->first_grain) : kinds[op->content],
        .generation = generation,
        .unit = unit,
        .first_grain = op->first_grain * each,
        .grains = op->grains * each,
        .buf = sw_engine_address(engine, memory),
        .step = context->input.step,
    };
}
