/* The passes of a group of micro-batches through the units: forward, head and backward, with the accumulators that the
 * backward pass adds to. */
#include "core/size.h"
#include "offload/plan/builder.h"

/* Backward costs two products for each one of forward. */
enum { BACKWARD_FLOPS = 2 };

static float forward_flops(const struct sw_builder *b, int64_t unit) {
    return b->plan->spec.forward_flops == NULL ? 0.0F : (float)b->plan->spec.forward_flops[unit];
}

static int64_t head_of(const struct sw_builder *b) {
    return b->plan->spec.units->count - 1;
}

/* The compute lane copies the tokens: behind the uploads of the step before, they would hold the forward pass back
 * until the update has ended. */
void sw_build_tokens(struct sw_builder *b, int64_t micros) {
    struct sw_op *op = sw_build_op(b, SW_OP_UPLOAD_TOKENS, SW_LANE_COMPUTE, -1, -1);
    op->bytes = micros * b->plan->spec.token_bytes;
    for (int64_t m = 0; m < micros; m++)
        sw_build_write(b, (struct sw_operand){.slot = b->index->tokens, .piece = m},
                       (struct sw_what){SW_CONTENT_TOKENS, -1, m, 0, 0, 0});
}

static void read_tokens(struct sw_builder *b, int64_t micro) {
    sw_build_read(b, (struct sw_operand){.slot = b->index->tokens, .piece = micro},
                  (struct sw_what){SW_CONTENT_TOKENS, -1, micro, 0, 0, 0});
}

static void read_weights(struct sw_builder *b, int64_t unit, int32_t slot) {
    sw_build_read_unit(b, slot, (struct sw_what){SW_CONTENT_WEIGHTS, unit, 0, 0, b->state_age, 0});
}

static void touch_work(struct sw_builder *b) {
    sw_build_write(b, (struct sw_operand){.slot = b->index->work}, (struct sw_what){SW_CONTENT_WORK, -1, 0, 0, 0, 0});
    b->works = true;
}

static void touch_cache(struct sw_builder *b, int64_t unit) {
    const struct sw_operand cache = {.slot = b->index->cache[unit]};
    if (cache.slot < 0)
        return;
    sw_build_read(b, cache, (struct sw_what){SW_CONTENT_KV_CACHE, unit, 0, 0, 1, 0});
    sw_build_write(b, cache, (struct sw_what){SW_CONTENT_KV_CACHE, unit, 0, 0, 0, 0});
}

/* Adds to the last op that it makes or reads one kind of a unit's intermediates of one micro-batch, which lie in a slot
 * of the unit's own or in one that all units share. */
static void touch_kind(struct sw_builder *b, int32_t own, int32_t shared, int64_t within, struct sw_what what,
                       bool make) {
    const struct sw_operand place =
        own >= 0 ? (struct sw_operand){.slot = own, .piece = within} : (struct sw_operand){.slot = shared};
    if (make)
        sw_build_write(b, place, what);
    else
        sw_build_read(b, place, what);
}

/* Adds both kinds of intermediates; `again` says which of them are made. */
static void touch_intermediates(struct sw_builder *b, int64_t unit, int64_t within, int64_t micro, sw_recompute again) {
    const struct sw_plan_index *index = b->index;
    const struct sw_plan_spec *spec = &b->plan->spec;
    struct sw_what what = {SW_CONTENT_SAVED, unit, micro, 0, 0, 0};
    if (spec->saved_bytes[unit] > 0)
        touch_kind(b, index->saved[unit], index->saved_shared, within, what, again >= SW_RECOMPUTE_UNIT);
    what.content = SW_CONTENT_DERIVED;
    if (spec->derived_bytes[unit] > 0)
        touch_kind(b, index->derived[unit], index->derived_shared, within, what, again >= SW_RECOMPUTE_DERIVED);
}

static struct sw_what output_of(int64_t unit, int64_t micro) {
    return (struct sw_what){SW_CONTENT_BLOCK_OUTPUT, unit, micro, 0, 0, 0};
}

/* Returns where a unit's output goes: to the home of the next unit's input if that is on the device, else into the
 * ring.
 */
static struct sw_operand output_place(struct sw_builder *b, int64_t unit, int64_t within) {
    const int32_t home = b->index->input[unit + 1];
    const bool on_device = home >= 0 && b->plan->slot[home].tier == SW_DEVICE;
    return on_device ? (struct sw_operand){.slot = home, .piece = within} : sw_build_ring(b, RING_OUTPUT);
}

/* Moves a block input to its home, where that is not the device. */
static void emit_keep(struct sw_builder *b, int64_t unit, int64_t within, int64_t micro, struct sw_operand from) {
    const int32_t home = b->index->input[unit + 1];
    const int64_t bytes = b->plan->spec.output_bytes[unit];
    if (home < 0 || b->plan->slot[home].tier == SW_DEVICE)
        return;
    const struct sw_operand to = {.slot = home, .piece = within};
    const struct sw_what what = output_of(unit, micro);
    if (b->plan->slot[home].tier == SW_HOST) {
        sw_build_transfer(b, from, to, what, micro, bytes);
        return;
    }
    const struct sw_operand staging = sw_build_ring(b, RING_INPUT_OUT);
    sw_build_transfer(b, from, staging, what, micro, bytes);
    sw_build_transfer(b, staging, to, what, micro, bytes);
}

/* Writes down the chunks of the update ahead that fall to one micro-batch of a unit before it. */
static void emit_ahead(struct sw_builder *b, struct sw_group *group, int64_t unit, int64_t within) {
    struct sw_unit_update *ahead = &group->ahead;
    if (ahead->begun) {
        const int64_t passes = (ahead->unit - unit) * group->count - within;
        sw_build_update_to(b, ahead, ahead->next + sw_div_up(ahead->chunks - ahead->next, passes));
    }
}

void sw_build_forward(struct sw_builder *b, struct sw_group *group, int64_t unit) {
    const int32_t weights = sw_build_fetch(b, unit); /* -1: gathered rows take their place */
    if (group->train && sw_plan_keeps_secondary(b->plan, unit))
        sw_build_keep_secondary(b, unit, weights);
    for (int64_t w = 0; w < group->count; w++) {
        emit_ahead(b, group, unit, w);
        const int64_t micro = group->first + w;
        const struct sw_operand out = output_place(b, unit, w);
        const struct sw_operand rows = weights < 0 ? sw_build_rows(b, micro) : (struct sw_operand){.slot = -1};
        struct sw_op *op = sw_build_op(b, SW_OP_FORWARD, SW_LANE_COMPUTE, unit, micro);
        op->flops = forward_flops(b, unit);
        if (weights < 0)
            sw_build_read(b, rows, (struct sw_what){SW_CONTENT_ROWS, 0, micro, sw_plan_chunks(b->plan, 0), 0, 0});
        else
            read_weights(b, unit, weights);
        read_tokens(b, micro);
        if (unit > 0)
            sw_build_read(b, group->at[w], output_of(unit - 1, micro));
        sw_build_write(b, out, output_of(unit, micro));
        if (unit > 0)
            touch_intermediates(b, unit, w, micro, SW_RECOMPUTE_UNIT);
        if (group->caches)
            touch_cache(b, unit);
        touch_work(b);
        group->at[w] = out;
        if (group->train)
            emit_keep(b, unit, w, micro, out);
    }
}

/* Adds to the last op what every form of the head reads. */
static void read_head(struct sw_builder *b, const struct sw_group *group, int64_t within, int32_t weights,
                      int32_t table) {
    const int64_t head = head_of(b), micro = group->first + within;
    read_weights(b, head, weights);
    if (table >= 0)
        read_weights(b, 0, table);
    read_tokens(b, micro);
    sw_build_read(b, group->at[within], output_of(head - 1, micro));
    touch_work(b);
}

void sw_build_inference_head(struct sw_builder *b, const struct sw_group *group, sw_op_kind kind) {
    const int64_t head = head_of(b);
    const int32_t weights = sw_build_fetch(b, head);
    const int32_t table = b->plan->spec.units->tied ? sw_build_fetch(b, 0) : -1;
    for (int64_t w = 0; w < group->count; w++) {
        struct sw_op *op = sw_build_op(b, kind, SW_LANE_COMPUTE, head, group->first + w);
        op->flops = forward_flops(b, head);
        read_head(b, group, w, weights, table);
    }
}

/* An accumulator in use: its slot on the device, and the micro-batches added so far. */
struct accumulator {
    int32_t slot;
    int64_t version;
};

static struct sw_what acc_of(int64_t unit, int64_t index, int64_t version) {
    return (struct sw_what){SW_CONTENT_ACC, unit, index, version, 0, 0};
}

static bool is_table(const struct sw_builder *b, int64_t unit) {
    return unit == 0 && b->plan->spec.units->tied;
}

static void emit_acc_transfer(struct sw_builder *b, int64_t unit, struct accumulator acc, bool in) {
    const int32_t home = b->index->acc[unit];
    const bool nvme = b->plan->slot[home].tier == SW_NVME;
    for (int64_t c = 0; c < sw_plan_chunks(b->plan, unit); c++) {
        const struct sw_chunk chunk = {unit, c, sw_plan_unit_chunk(b->plan, unit, c)};
        const int64_t bytes = chunk.at.grains * SW_GRAIN_ELEMS * (int64_t)sizeof(float);
        const struct sw_what what = acc_of(unit, c, acc.version);
        const struct sw_operand on_device = {.slot = acc.slot, .piece = SW_BY_GRAINS};
        const struct sw_operand at_home = {.slot = home, .piece = SW_BY_GRAINS};
        const struct sw_operand on_host = nvme ? sw_build_ring(b, in ? RING_ACC_IN : RING_ACC_OUT) : at_home;
        if (in && nvme)
            sw_build_move(b, at_home, on_host, what, &chunk, bytes);
        sw_build_move(b, in ? on_host : on_device, in ? on_device : on_host, what, &chunk, bytes);
        if (!in && nvme)
            sw_build_move(b, on_host, at_home, what, &chunk, bytes);
    }
}

/* Returns the accumulator of a unit for a group: zeroed for the first, else as the group before left it. Each
 * micro-batch adds `per_micro` times (to a tied table twice, once by the head). */
static struct accumulator begin_acc(struct sw_builder *b, int64_t unit, const struct sw_group *group, int per_micro) {
    const int32_t home = b->index->acc[unit];
    const bool on_device = home >= 0 && b->plan->slot[home].tier == SW_DEVICE;
    const bool anew = group->first == 0 || sw_plan_reduces_groups(b->plan);
    struct accumulator acc = {.slot = home, .version = anew ? 0 : per_micro * group->first};
    if (is_table(b, unit))
        acc.slot = b->index->table_acc;
    else if (!on_device)
        acc.slot = b->index->work_acc[b->index->work_acc[1] < 0 ? 0 : b->work_acc_next++ % 2];
    if (anew) {
        struct sw_op *op = sw_build_op(b, SW_OP_ZERO_ACCUMULATOR, SW_LANE_COMPUTE, unit, -1);
        op->grains = b->plan->spec.units->unit[unit].grains;
        sw_build_write_unit(b, acc.slot, acc_of(unit, 0, 0));
    } else if (!on_device && !is_table(b, unit)) {
        emit_acc_transfer(b, unit, acc, true);
    }
    return acc;
}

static void end_acc(struct sw_builder *b, int64_t unit, const struct sw_group *group, struct accumulator acc) {
    const int32_t home = b->index->acc[unit];
    const bool last = group->first + group->count == b->plan->spec.micro_batches;
    if (sw_plan_reduces_groups(b->plan)) {
        const int64_t before = group->first / sw_plan_group(b->plan);
        sw_build_reduce_group(b, unit, acc.slot, acc.version, before);
        if (last)
            sw_build_round_gradients(b, unit, b->index->acc_shard[unit], before + 1, false);
        return;
    }
    if (last)
        sw_build_round_gradients(b, unit, acc.slot, acc.version, group->speculate);
    else if (!is_table(b, unit) && b->plan->slot[home].tier != SW_DEVICE)
        emit_acc_transfer(b, unit, acc, false);
}

static void accumulate(struct sw_builder *b, int64_t unit, struct accumulator *acc) {
    sw_build_read_unit(b, acc->slot, acc_of(unit, 0, acc->version));
    sw_build_write_unit(b, acc->slot, acc_of(unit, 0, acc->version + 1));
    acc->version++;
}

static struct accumulator emit_head(struct sw_builder *b, struct sw_group *group) {
    const bool tied = b->plan->spec.units->tied, trains_table = tied && sw_plan_trains(b->plan, 0);
    const int64_t head = head_of(b);
    struct accumulator table = trains_table ? begin_acc(b, 0, group, 2) : (struct accumulator){0};
    struct accumulator own = begin_acc(b, head, group, 1);
    const int32_t weights = sw_build_fetch(b, head), table_slot = tied ? sw_build_fetch(b, 0) : -1;
    if (sw_plan_keeps_secondary(b->plan, head))
        sw_build_keep_secondary(b, head, weights);
    for (int64_t w = 0; w < group->count; w++) {
        struct sw_op *op = sw_build_op(b, SW_OP_FORWARD_BACKWARD_HEAD, SW_LANE_COMPUTE, head, group->first + w);
        op->flops = (1 + BACKWARD_FLOPS - (tied && !trains_table ? 1 : 0)) * forward_flops(b, head);
        read_head(b, group, w, weights, table_slot);
        sw_build_read_norm(b); /* it decides the loss scale */
        accumulate(b, head, &own);
        if (trains_table)
            accumulate(b, 0, &table);
        sw_build_write(b, (struct sw_operand){.slot = b->index->output_grad, .piece = w},
                       (struct sw_what){SW_CONTENT_BLOCK_OUTPUT_GRAD, head - 1, group->first + w, 0, 0, 0});
    }
    end_acc(b, head, group, own);
    return table;
}

/* Returns where a unit's kept input is on the device for the backward pass, and moves it there if needed. */
static struct sw_operand emit_recall(struct sw_builder *b, int64_t unit, int64_t within, int64_t micro) {
    const struct sw_operand home = {.slot = b->index->input[unit], .piece = within};
    const sw_tier tier = b->plan->slot[home.slot].tier;
    const struct sw_what what = output_of(unit - 1, micro);
    const int64_t bytes = b->plan->spec.output_bytes[unit - 1];
    struct sw_operand from = home;
    if (tier == SW_DEVICE)
        return home;
    if (tier == SW_NVME) {
        from = sw_build_ring(b, RING_INPUT_IN);
        sw_build_transfer(b, home, from, what, micro, bytes);
    }
    const struct sw_operand to = sw_build_ring(b, RING_INPUT_BACK);
    sw_build_transfer(b, from, to, what, micro, bytes);
    return to;
}

static void emit_backward(struct sw_builder *b, const struct sw_group *group, int64_t unit, int64_t within,
                          int32_t weights, struct accumulator *acc) {
    const int64_t micro = group->first + within;
    const struct sw_operand grad = {.slot = b->index->output_grad, .piece = within};
    const int64_t kept = unit > 0 ? sw_plan_backward_input(b->plan, unit) : 0;
    const struct sw_operand in = unit > 0 ? emit_recall(b, kept, within, micro) : (struct sw_operand){0};
    const sw_recompute again = b->plan->recompute[unit];
    struct sw_op *op = sw_build_op(b, SW_OP_BACKWARD, SW_LANE_COMPUTE, unit, micro);
    op->flops = (BACKWARD_FLOPS + (again == SW_RECOMPUTE_UNIT ? 1 : 0)) * forward_flops(b, unit);
    read_tokens(b, micro);
    if (unit > 0) {
        read_weights(b, unit, weights);
        sw_build_read(b, in, output_of(kept - 1, micro));
        touch_intermediates(b, unit, within, micro, again);
    }
    sw_build_read(b, grad, (struct sw_what){SW_CONTENT_BLOCK_OUTPUT_GRAD, unit, micro, 0, 0, 0});
    if (unit > 0)
        sw_build_write(b, grad, (struct sw_what){SW_CONTENT_BLOCK_OUTPUT_GRAD, unit - 1, micro, 0, 0, 0});
    accumulate(b, unit, acc);
    touch_work(b);
}

void sw_build_backward(struct sw_builder *b, struct sw_group *group) {
    struct accumulator table = emit_head(b, group);
    for (int64_t u = head_of(b) - 1; u >= b->plan->spec.frozen_units; u--) {
        const int32_t weights = u > 0 ? sw_build_fetch(b, u) : -1;
        struct accumulator acc = is_table(b, u) ? table : begin_acc(b, u, group, 1);
        for (int64_t w = 0; w < group->count; w++)
            emit_backward(b, group, u, w, weights, &acc);
        /* The next unit's weights go ahead of this one's gradients and updates, which nothing waits for so soon. */
        if (u > 1 && sw_plan_trains(b->plan, u - 1))
            sw_build_fetch(b, u - 1);
        end_acc(b, u, group, acc);
    }
}
