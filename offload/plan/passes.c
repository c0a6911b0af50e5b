/* The passes of a group of micro-batches through the units, forward and backward. */
#include "core/size.h"
#include "offload/plan/builder.h"

/* The head: its forward pass for evaluations and inference, and fused with its backward pass in training. In a tensor
 * group each rank has a part of the vocabulary, and the ranks tell each other what the softmax needs of it. */

/* The normalised inputs that are alive at once: that of the next micro-batch, that of the one whose logits are
 * computed, and that of the one before, whose gradients are. */
enum { NORMED_ALIVE = 3 };

/* The head of a group: its micro-batches, weights, and what its backward pass adds to. */
struct head_work {
    const struct sw_group *group;
    int32_t weights, table_slot; /* table_slot: the tied table; -1: the head has a table of its own */
    bool tied, trains_table;
    struct sw_accumulator own, table;
    struct sw_operand normed[NORMED_ALIVE]; /* with sequence parallelism, by micro-batch */
};

/* Runs the final norm of a micro-batch, if there is one, where norms are apart. */
static void schedule_head_norm(struct sw_builder *b, struct head_work *h, int64_t within) {
    if (sw_plan_is_sequence_parallel(b->plan) && within < h->group->count)
        h->normed[within % NORMED_ALIVE] =
            sw_build_forward_norm(b, &(struct sw_norm_work){.unit = sw_build_head_of(b),
                                                            .micro = h->group->first + within,
                                                            .input = h->group->at[within],
                                                            .weights = h->weights});
}

/* Adds to the last op what every form of the head reads. */
static void read_head(struct sw_builder *b, const struct head_work *h, int64_t within) {
    const int64_t head = sw_build_head_of(b), micro = h->group->first + within;
    sw_build_read_weights(b, head, h->weights);
    if (h->table_slot >= 0)
        sw_build_read_weights(b, 0, h->table_slot);
    sw_build_read_tokens(b, micro);
    if (sw_plan_is_sequence_parallel(b->plan))
        sw_build_read_normed(b, head, micro, h->normed[within % NORMED_ALIVE]);
    else
        sw_build_read(b, h->group->at[within], sw_build_output_of(head - 1, micro));
    sw_build_touch_work(b);
}

/* Writes down this rank's part of the logits of one micro-batch, and what its group needs of them. Returns where the
 * parts of all are; of a rank without a group nowhere. */
static struct sw_operand emit_logits(struct sw_builder *b, const struct head_work *h, int64_t within) {
    const int64_t head = sw_build_head_of(b), micro = h->group->first + within;
    if (sw_plan_tensor_ranks(b->plan) == 1)
        return (struct sw_operand){.slot = -1};
    struct sw_op *op = sw_build_op(b, SW_OP_HEAD_LOGITS, head, micro);
    op->flops = sw_build_forward_flops(b, head);
    read_head(b, h, within);
    return sw_build_share_softmax(b, micro);
}

static void read_softmax(struct sw_builder *b, int64_t micro, struct sw_operand softmax) {
    if (softmax.slot >= 0)
        sw_build_read(b, softmax, (struct sw_what){SW_CONTENT_SOFTMAX, -1, micro, 0, 0, 0});
}

void sw_build_inference_head(struct sw_builder *b, const struct sw_group *group, sw_op_kind kind) {
    const int64_t head = sw_build_head_of(b);
    struct head_work h = {.group = group, .weights = sw_build_fetch(b, head)};
    h.table_slot = b->plan->spec.units->tied ? sw_build_fetch(b, 0) : -1;
    schedule_head_norm(b, &h, 0);
    for (int64_t w = 0; w < group->count; w++) {
        const bool shares = kind == SW_OP_COMPUTE_LOSS; /* each rank's part of the logits is wanted as it is */
        schedule_head_norm(b, &h, w + 1);
        const struct sw_operand softmax = shares ? emit_logits(b, &h, w) : (struct sw_operand){.slot = -1};
        struct sw_op *op = sw_build_op(b, kind, head, group->first + w);
        op->flops = softmax.slot < 0 ? sw_build_forward_flops(b, head) : 0;
        read_head(b, &h, w);
        read_softmax(b, group->first + w, softmax);
    }
}

/* Returns where the gradient at an output of a micro-batch is. */
static struct sw_operand output_grad_place(const struct sw_builder *b, const struct sw_group *group, int64_t within) {
    return (struct sw_operand){.slot = b->index->slot[SLOT_OUTPUT_GRAD], .piece = group->grads + within};
}

/* Writes down the head of one micro-batch: the loss and its gradients. In a tensor group the norm comes later, and the
 * logits are computed again. Returns what the norm needs. */
static struct sw_norm_work emit_micro(struct sw_builder *b, struct head_work *h, int64_t within,
                                      struct sw_operand softmax) {
    const int64_t head = sw_build_head_of(b), micro = h->group->first + within;
    const struct sw_operand grad = output_grad_place(b, h->group, within);
    struct sw_norm_work norm = {.unit = head, .micro = micro, .grad = grad, .weights = h->weights, .acc = &h->own};
    struct sw_op *op = sw_build_op(b, SW_OP_FORWARD_BACKWARD_HEAD, head, micro);
    op->flops = (1 + SW_BACKWARD_FLOPS - (h->tied && !h->trains_table ? 1 : 0)) * sw_build_forward_flops(b, head) -
                (float)b->plan->spec.cost[head].frozen_flops;
    read_head(b, h, within);
    sw_build_read_norm(b); /* it decides the loss scale */
    read_softmax(b, micro, softmax);
    if (sw_plan_trains(b->plan, head))
        sw_build_accumulate(b, head, &h->own);
    if (h->trains_table)
        sw_build_accumulate(b, 0, &h->table);
    if (softmax.slot < 0) {
        sw_build_write(b, grad, (struct sw_what){SW_CONTENT_BLOCK_OUTPUT_GRAD, head - 1, micro, 0, 0, 0});
        return norm;
    }
    norm.input = h->group->at[within];
    norm.norm_grad = sw_build_write_norm_grad(b, head, micro);
    sw_build_reduce_norm_grad(b, &norm);
    return norm;
}

/* Writes down the head of all micro-batches of a group. In a tensor group the logits of micro-batch m
 * are followed by the gradients of m-1 and the norm of m-2, so that each exchange has arithmetic to overlap with. */
static void emit_micros(struct sw_builder *b, struct head_work *h) {
    const bool apart = sw_plan_tensor_ranks(b->plan) > 1;
    const int64_t count = h->group->count, behind = apart ? 2 : 0;
    struct sw_operand softmax[2] = {{.slot = -1}, {.slot = -1}};
    struct sw_norm_work norm[2] = {{0}, {0}};
    schedule_head_norm(b, h, 0);
    for (int64_t w = 0; w < count + behind; w++) {
        schedule_head_norm(b, h, w + 1);
        if (w < count)
            softmax[w % 2] = emit_logits(b, h, w);
        const int64_t gradients = apart ? w - 1 : w;
        if (gradients >= 0 && gradients < count)
            norm[gradients % 2] = emit_micro(b, h, gradients, softmax[gradients % 2]);
        if (apart && w >= 2)
            sw_build_backward_norm(b, &norm[w % 2]);
    }
}

/* Returns how often a micro-batch adds to a tied table's accumulator here: by the head and by the embedding. */
static int table_adds(const struct sw_builder *b) {
    return sw_plan_stages(b->plan) > 1 ? 1 : 2;
}

/* Runs the head of a group, forward and backward, and returns the accumulator of a tied table (passes.c). */
static struct sw_accumulator build_head(struct sw_builder *b, struct sw_group *group) {
    const int64_t head = sw_build_head_of(b);
    struct head_work h = {.group = group, .tied = b->plan->spec.units->tied};
    h.trains_table = h.tied && sw_plan_trains(b->plan, 0);
    if (h.trains_table)
        h.table = sw_build_begin_acc(b, 0, group, table_adds(b));
    if (sw_plan_trains(b->plan, head))
        h.own = sw_build_begin_acc(b, head, group, sw_build_adds(b, head));
    h.weights = sw_build_fetch(b, head);
    h.table_slot = h.tied ? sw_build_fetch(b, 0) : -1;
    if (sw_plan_keeps_secondary(b->plan, head))
        sw_build_keep_secondary(b, head, h.weights);
    emit_micros(b, &h);
    if (sw_plan_trains(b->plan, head))
        sw_build_end_acc(b, head, group, h.own);
    return h.table;
}

/* The compute lane copies the tokens. On the upload lane they would queue after the uploads of the step before, and
 * delay the forward pass until the update has ended. */
void sw_build_tokens(struct sw_builder *b, int64_t micros) {
    struct sw_op *op = sw_build_op(b, SW_OP_UPLOAD_TOKENS, -1, -1);
    op->bytes = micros * b->plan->spec.token_bytes;
    for (int64_t m = 0; m < micros; m++)
        sw_build_in_order(b, true, (struct sw_operand){.slot = b->index->slot[SLOT_TOKENS], .piece = m},
                          (struct sw_what){SW_CONTENT_TOKENS, -1, m, 0, 0, 0});
}

static void touch_cache(struct sw_builder *b, int64_t unit) {
    const struct sw_operand cache = {.slot = b->index->of_unit[SLOT_CACHE][unit]};
    if (cache.slot < 0)
        return;
    sw_build_read(b, cache, (struct sw_what){SW_CONTENT_KV_CACHE, unit, 0, 0, 1, 0});
    sw_build_write(b, cache, (struct sw_what){SW_CONTENT_KV_CACHE, unit, 0, 0, 0, 0});
}

/* Makes the last op tell the host the routing, which decides which of the following units of experts are fetched. */
static void tell_routing(struct sw_builder *b, int64_t unit) {
    if (b->plan->spec.cost[unit].routing_bytes == 0 || b->index->slot[SLOT_ROUTING] < 0)
        return;
    sw_build_write(b, (struct sw_operand){.slot = b->index->slot[SLOT_ROUTING]},
                   (struct sw_what){.content = SW_CONTENT_ROUTING, .unit = unit});
    b->routing_unit = unit;
}

/* Declares that the last op makes or reads one kind of a unit's intermediates of one micro-batch. The unit has a slot
 * of its own for them, or shares one with all units. */
static void touch_kind(struct sw_builder *b, int32_t own, int32_t shared, int64_t within, struct sw_what what,
                       bool make) {
    const struct sw_operand place =
        own >= 0 ? (struct sw_operand){.slot = own, .piece = within} : (struct sw_operand){.slot = shared};
    sw_build_in_order(b, make, place, what);
}

/* Adds both kinds of intermediates; `again` says which of them are made. */
static void touch_intermediates(struct sw_builder *b, const struct sw_group *group, int64_t unit, int64_t within,
                                sw_recompute again) {
    const int64_t micro = group->first + within;
    within = sw_build_piece(b, group, sw_plan_groups_in_flight(b->plan, unit) * sw_plan_group(b->plan), within);
    const struct sw_plan_index *index = b->index;
    const struct sw_plan_spec *spec = &b->plan->spec;
    struct sw_what what = {SW_CONTENT_SAVED, unit, micro, 0, 0, 0};
    if (spec->cost[unit].saved_bytes > 0)
        touch_kind(b, index->of_unit[SLOT_SAVED][unit], index->slot[SLOT_SAVED_SHARED], within, what,
                   again >= SW_RECOMPUTE_UNIT);
    what.content = SW_CONTENT_DERIVED;
    if (spec->cost[unit].derived_bytes > 0)
        touch_kind(b, index->of_unit[SLOT_DERIVED][unit], index->slot[SLOT_DERIVED_SHARED], within, what,
                   again >= SW_RECOMPUTE_DERIVED);
}

/* Returns where a unit's output goes: to the home of the next unit's input if that is on the device and has room for
 * the output's rows (with sequence parallelism, this rank's); else to the ring. */
static struct sw_operand output_place(struct sw_builder *b, const struct sw_group *group, int64_t unit,
                                      int64_t within) {
    const int32_t home = b->index->of_unit[SLOT_INPUT][unit + 1];
    const bool sequence = sw_plan_is_sequence_parallel(b->plan),
               fits = sequence || !sw_plan_partitions_input(b->plan, unit + 1);
    const bool on_device = home >= 0 && fits && b->plan->slot[home].tier == SW_DEVICE;
    struct sw_operand at =
        on_device ? (struct sw_operand){.slot = home, .piece = sw_build_input_piece(b, group, unit + 1, within)}
                  : sw_build_ring(b, SLOT_OUTPUT_RING);
    at.own = sequence;
    return at;
}

/* Moves a block input to its home, where that is not the device: all of it, or this rank's rows. */
static void emit_keep(struct sw_builder *b, const struct sw_group *group, int64_t unit, int64_t within,
                      struct sw_operand from) {
    const int64_t micro = group->first + within;
    const int32_t home = b->index->of_unit[SLOT_INPUT][unit + 1];
    const bool rows = sw_plan_partitions_input(b->plan, unit + 1);
    const int64_t bytes = rows ? sw_build_own_rows_bytes(b) : b->plan->spec.cost[unit].output_bytes;
    if (home < 0 || b->plan->slot[home].tier == SW_DEVICE)
        return;
    const struct sw_operand to = {.slot = home, .piece = sw_build_input_piece(b, group, unit + 1, within), .own = rows};
    const struct sw_what what = sw_build_output_of(unit, micro);
    if (rows && !sw_plan_is_sequence_parallel(b->plan))
        from = sw_build_own_rows(b, from);
    if (b->plan->slot[home].tier == SW_HOST) {
        sw_build_transfer(b, from, to, what, micro, bytes);
        return;
    }
    struct sw_operand staging = sw_build_ring(b, SLOT_INPUT_OUT);
    staging.own = rows;
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

/* Adds to the last op that it writes a unit's output, or this rank's part of it, which the group then adds up. */
static void write_output(struct sw_builder *b, int64_t unit, int64_t micro, struct sw_operand at) {
    struct sw_what output = sw_build_output_of(unit, micro);
    const bool part = sw_plan_tensor_ranks(b->plan) > 1 && !sw_plan_continues(b->plan, unit + 1);
    output.version = part ? SW_VERSION_LOCAL : 0;
    sw_build_write(b, at, output);
}

/* Runs the norm of a unit for one micro-batch, if there is one, where norms are apart. */
static void schedule_norm(struct sw_builder *b, const struct sw_group *group, int64_t unit, int64_t within,
                          int32_t weights, struct sw_operand normed[2]) {
    if (sw_plan_is_sequence_parallel(b->plan) && unit > 0 && within < group->count)
        normed[within % 2] = sw_build_forward_norm(
            b, &(struct sw_norm_work){
                   .unit = unit, .micro = group->first + within, .input = group->at[within], .weights = weights});
}

/* Writes down the op of one micro-batch by which a unit of experts that has their norm normalises the rows that it
 * sends to the group: `kind` in the forward pass or in the backward pass. Gathers those of all, and returns where. */
static struct sw_operand emit_sent_norm(struct sw_builder *b, sw_op_kind kind, int64_t experts, int64_t micro,
                                        int32_t weights, struct sw_operand input) {
    enum { PASSES = 2 }; /* over the rows: it reads and writes them */
    struct sw_op *op = sw_build_op(b, kind, experts, micro);
    op->bytes = PASSES * sw_plan_micro_rows(b->plan) * sw_plan_row_bytes(b->plan);
    sw_build_read_weights(b, experts, weights);
    sw_build_read(b, input, sw_build_output_of(experts - 1, micro));
    const struct sw_operand sent = sw_build_write_sent(b, experts, micro);
    sw_build_touch_work(b);
    sw_build_gather_sent(b, experts, micro, sent);
    return sent;
}

/* Writes down the experts of this rank for the rows that `sender` has sent. Returns where their part of all outputs
 * is. */
static struct sw_operand emit_experts(struct sw_builder *b, int64_t experts, int64_t sender, int64_t micro,
                                      int32_t weights, struct sw_operand sent) {
    const struct sw_operand parts = sw_build_parts(b);
    struct sw_what part = sw_build_output_of(experts, micro);
    part.version = SW_VERSION_LOCAL;
    struct sw_op *op = sw_build_op(b, SW_OP_FORWARD_EXPERTS, experts, micro);
    op->flops = sw_build_forward_flops(b, experts);
    sw_build_read_weights(b, experts, weights);
    sw_build_read_normed(b, sender, micro, sent);
    sw_build_write(b, parts, part);
    sw_build_touch_work(b);
    return parts;
}

/* Writes down the forward pass of one micro-batch of a block whose experts, the unit behind, a group shares out: up to
 * the rows that go to experts, the experts of this rank for the rows of all ranks, and the sums of what the ranks'
 * experts made of each. */
static void emit_shared_forward(struct sw_builder *b, const struct sw_group *group, int64_t unit, int64_t within,
                                int32_t weights, int32_t experts_weights, struct sw_operand out) {
    const int64_t micro = group->first + within, experts = unit + 1;
    struct sw_op *op = sw_build_op(b, SW_OP_SEND_ROWS, unit, micro);
    op->flops = sw_build_forward_flops(b, unit);
    sw_build_read_weights(b, unit, weights);
    sw_build_read_tokens(b, micro);
    sw_build_read(b, group->at[within], sw_build_output_of(unit - 1, micro));
    const struct sw_operand sent = sw_build_write_sent(b, unit, micro);
    touch_intermediates(b, group, unit, within, SW_RECOMPUTE_UNIT);
    sw_build_touch_work(b);
    sw_build_gather_sent(b, unit, micro, sent);
    const struct sw_operand parts = emit_experts(b, experts, unit, micro, experts_weights, sent);
    touch_intermediates(b, group, unit, within, SW_RECOMPUTE_NOTHING);
    sw_build_sum_parts(b, experts, micro, parts, out);
}

/* Writes down the forward pass of experts that a group of tensor groups shares out. */
static void build_experts_forward(struct sw_builder *b, struct sw_group *group, int64_t experts) {
    const int32_t weights = sw_build_fetch(b, experts);
    for (int64_t w = 0; w < group->count; w++) {
        const int64_t micro = group->first + w;
        emit_ahead(b, group, experts, w);
        const struct sw_operand in = group->at[w], out = output_place(b, group, experts, w);
        const struct sw_operand sent = emit_sent_norm(b, SW_OP_SEND_ROWS, experts, micro, weights, in);
        const struct sw_operand parts = emit_experts(b, experts, experts, micro, weights, sent);
        sw_build_read(b, in, sw_build_output_of(experts - 1, micro)); /* this rank's rows are added to its part */
        sw_build_sum_experts(b, group, experts, w, parts, out);
        group->at[w] = out;
        if (group->train)
            emit_keep(b, group, experts, w, out);
    }
}

/* Writes down the forward pass of a block and of its experts, which a group shares out. */
static void build_shared_forward(struct sw_builder *b, struct sw_group *group, int64_t unit) {
    const int64_t experts = unit + 1;
    const int32_t weights = sw_build_fetch(b, unit), experts_weights = sw_build_fetch(b, experts);
    for (int64_t w = 0; w < group->count; w++) {
        emit_ahead(b, group, experts, w);
        const struct sw_operand out = output_place(b, group, experts, w);
        emit_shared_forward(b, group, unit, w, weights, experts_weights, out);
        group->at[w] = out;
        if (group->train)
            emit_keep(b, group, experts, w, out);
    }
}

/* The norm of each micro-batch comes ahead of the forward pass of the one before, so that the group's exchange hides
 * there. */
void sw_build_forward(struct sw_builder *b, struct sw_group *group, int64_t unit) {
    if (sw_plan_sends_rows(b->plan, unit)) {
        build_shared_forward(b, group, unit);
        return;
    }
    if (sw_plan_shares_experts(b->plan, unit)) {
        build_experts_forward(b, group, unit);
        return;
    }
    const int32_t weights = sw_build_fetch(b, unit); /* -1: gathered rows take their place */
    const bool sequence = sw_plan_is_sequence_parallel(b->plan);
    struct sw_operand normed[2] = {{.slot = -1}, {.slot = -1}};
    if (group->train && sw_plan_keeps_secondary(b->plan, unit))
        sw_build_keep_secondary(b, unit, weights);
    schedule_norm(b, group, unit, 0, weights, normed);
    for (int64_t w = 0; w < group->count; w++) {
        emit_ahead(b, group, unit, w);
        schedule_norm(b, group, unit, w + 1, weights, normed);
        const int64_t micro = group->first + w;
        const struct sw_operand out = output_place(b, group, unit, w), parts = sequence ? sw_build_parts(b) : out;
        const struct sw_operand rows = weights < 0 ? sw_build_rows(b, micro) : (struct sw_operand){.slot = -1};
        struct sw_op *op = sw_build_op(b, SW_OP_FORWARD, unit, micro);
        op->flops = sw_build_forward_flops(b, unit);
        if (weights < 0)
            sw_build_read(b, rows, (struct sw_what){SW_CONTENT_ROWS, 0, micro, sw_plan_chunks(b->plan, 0), 0, 0});
        else
            sw_build_read_weights(b, unit, weights);
        sw_build_read_tokens(b, micro);
        if (unit > 0)
            sw_build_read(b, group->at[w], sw_build_output_of(unit - 1, micro));
        if (unit > 0 && sequence)
            sw_build_read_normed(b, unit, micro, normed[w % 2]);
        write_output(b, unit, micro, parts);
        if (unit > 0)
            touch_intermediates(b, group, unit, w, SW_RECOMPUTE_UNIT);
        if (group->caches) {
            touch_cache(b, unit);
            tell_routing(b, unit);
        }
        sw_build_touch_work(b);
        group->at[w] = out;
        if (sequence)
            sw_build_sum_rows(b, unit, micro, parts, out);
        else
            sw_build_sum_output(b, group, unit, w, out);
        if (group->train)
            emit_keep(b, group, unit, w, out);
    }
}

/* Tells whether the next unit reads the same kept input as this unit, in a backward pass of its own. */
static bool is_shared(const struct sw_builder *b, int64_t unit) {
    return !sw_plan_sends_rows(b->plan, unit) && unit + 2 < b->plan->spec.units->count &&
           b->plan->spec.cost[unit + 1].shares_input;
}

/* Returns where a shared input comes back to: the ring of outputs, which carries nothing in the backward pass, so that
 * it stays for the other units. *there: it is back already. */
static struct sw_operand shared_place(struct sw_builder *b, int64_t unit, int64_t first, int64_t within, bool *there) {
    const int32_t slot = b->index->slot[SLOT_OUTPUT_RING];
    if (b->shared_unit != unit || b->shared_first != first) {
        b->shared_unit = unit;
        b->shared_first = first;
        b->shared_count = 0;
    }
    *there = within < b->shared_count;
    if (*there)
        return (struct sw_operand){.slot = slot, .piece = (b->shared_piece + within) % b->plan->slot[slot].pieces};
    const struct sw_operand at = sw_build_ring(b, SLOT_OUTPUT_RING);
    b->shared_piece = within == 0 ? (int32_t)at.piece : b->shared_piece;
    b->shared_count++;
    return at;
}

/* Returns where a unit's kept input is on the device for the backward pass, and moves it there if needed. A partitioned
 * one is gathered there, unless this rank's rows, which are then returned, are enough: with sequence parallelism, and
 * where nothing is computed again. */
static struct sw_operand emit_recall(struct sw_builder *b, const struct sw_group *group, int64_t unit, int64_t within) {
    const int64_t micro = group->first + within;
    const bool rows = sw_plan_partitions_input(b->plan, unit),
               in_place = rows && !sw_plan_is_sequence_parallel(b->plan);
    const struct sw_operand home = {.slot = b->index->of_unit[SLOT_INPUT][unit],
                                    .piece = sw_build_input_piece(b, group, unit, within),
                                    .own = rows};
    const sw_tier tier = b->plan->slot[home.slot].tier;
    const bool gathers = in_place && !sw_plan_recalls_rows(b->plan, unit);
    const struct sw_what what = sw_build_output_of(unit - 1, micro);
    const int64_t bytes = rows ? sw_build_own_rows_bytes(b) : b->plan->spec.cost[unit - 1].output_bytes;
    struct sw_operand from = home, to;
    bool there = false;
    if (tier == SW_DEVICE && !gathers)
        return home;
    if (!rows && is_shared(b, unit))
        to = shared_place(b, unit, micro - within, within, &there);
    if (there)
        return to;
    if (tier == SW_NVME) {
        from = sw_build_ring(b, SLOT_INPUT_IN);
        from.own = rows;
        sw_build_transfer(b, home, from, what, micro, bytes);
    }
    if (rows || !is_shared(b, unit))
        to = sw_build_ring(b, SLOT_INPUT_BACK);
    struct sw_operand part = in_place ? sw_build_own_rows(b, to) : to;
    part.own = rows;
    if (tier != SW_DEVICE)
        sw_build_transfer(b, from, part, what, micro, bytes);
    if (!gathers)
        return part;
    sw_build_gather_input(b, unit, what, tier == SW_DEVICE ? home : to, to);
    return to;
}

/* The activations that a unit's backward pass reads: its input, which the embedding lacks, and the gradient at its
 * output. With sequence parallelism the input is this rank's rows, and the whole normalised input is read too. */
struct recalled {
    struct sw_operand input, normed, grad;
};

static struct recalled recall(struct sw_builder *b, const struct sw_group *group, int64_t unit, int64_t within,
                              int32_t weights, struct sw_operand *whole_grad) {
    const int64_t micro = group->first + within;
    const bool sequence = sw_plan_is_sequence_parallel(b->plan);
    struct recalled recalled = {.grad = output_grad_place(b, group, within)};
    if (sequence && whole_grad->slot >= 0)
        recalled.grad = *whole_grad;
    else if (sequence)
        recalled.grad = sw_build_gather_grad(b, unit, micro, recalled.grad);
    whole_grad->slot = -1;
    if (unit > 0)
        recalled.input = emit_recall(b, group, sw_plan_backward_input(b->plan, unit), within);
    if (unit > 0 && sequence)
        recalled.normed = sw_build_forward_norm(
            b, &(struct sw_norm_work){.unit = unit, .micro = micro, .input = recalled.input, .weights = weights});
    return recalled;
}

static void read_output_grad(struct sw_builder *b, int64_t unit, int64_t micro, struct sw_operand grad) {
    sw_build_read(b, grad, (struct sw_what){SW_CONTENT_BLOCK_OUTPUT_GRAD, unit, micro, 0, 0, 0});
}

/* Writes down the backward pass of one micro-batch. In a tensor group it leaves the gradient at the unit's norm, and
 * the norm comes later; where it is split, it leaves the gradient at the first product too, and the gradients of
 * weights come later. A unit that continues a sum leaves its part of the gradient at the norm beside the one at its
 * output. Returns the operands of the norm. */
static struct sw_norm_work emit_backward(struct sw_builder *b, const struct sw_group *group, int64_t unit,
                                         int64_t within, int32_t weights, struct sw_accumulator *acc,
                                         const struct recalled *recalled) {
    const int64_t micro = group->first + within;
    const bool apart = unit > 0 && sw_build_norm_is_apart(b, unit), splits = sw_plan_splits_backward(b->plan, unit);
    const struct sw_operand grad = output_grad_place(b, group, within);
    const int64_t kept = unit > 0 ? sw_plan_backward_input(b->plan, unit) : 0;
    struct sw_norm_work norm = {
        .unit = unit, .micro = micro, .input = recalled->input, .grad = grad, .weights = weights, .acc = acc};
    const struct sw_unit_cost *cost = &b->plan->spec.cost[unit];
    const sw_recompute again = b->plan->recompute[unit];
    struct sw_op *op = sw_build_op(b, SW_OP_BACKWARD, unit, micro);
    op->flops = (SW_BACKWARD_FLOPS + (again == SW_RECOMPUTE_UNIT ? 1 : 0)) * sw_build_forward_flops(b, unit) -
                (float)cost->frozen_flops -
                (splits ? (float)cost->last_product_flops + (float)cost->first_product_flops : 0.0F);
    sw_build_read_tokens(b, micro);
    if (unit > 0) {
        sw_build_read_weights(b, unit, weights);
        if (sw_plan_recalls_normed(b->plan, unit))
            sw_build_read_normed(b, unit, micro, recalled->normed);
        else if (!sw_plan_is_sequence_parallel(b->plan) && !sw_plan_recalls_rows(b->plan, unit))
            sw_build_read(b, norm.input, sw_build_output_of(kept - 1, micro));
        touch_intermediates(b, group, unit, within, again);
    }
    read_output_grad(b, unit, micro, recalled->grad);
    if (splits)
        sw_build_write_product_grad(b, unit, micro);
    if (apart) {
        norm.norm_grad = sw_build_write_norm_grad(b, unit, micro);
    } else if (unit > 0) {
        sw_build_write(b, grad, (struct sw_what){SW_CONTENT_BLOCK_OUTPUT_GRAD, unit - 1, micro, 0, 0, 0});
    }
    if (sw_plan_trains(b->plan, unit))
        sw_build_accumulate(b, unit, acc);
    sw_build_touch_work(b);
    if (apart)
        sw_build_reduce_norm_grad(b, &norm);
    return norm;
}

/* Writes down the gradients of the weights of a block's last or first product, of one micro-batch in a tensor group.
 * The last reads the gradient at the unit's output; the first that at its own result, and the normalised input. Those
 * of adapters read the unit's weights, too. */
static void emit_product(struct sw_builder *b, sw_op_kind kind, const struct sw_group *group, int64_t within,
                         const struct recalled *recalled, const struct sw_norm_work *norm) {
    const bool first = kind == SW_OP_BACKWARD_FIRST;
    const int64_t unit = norm->unit, micro = group->first + within;
    const struct sw_unit_cost *cost = &b->plan->spec.cost[unit];
    struct sw_op *op = sw_build_op(b, kind, unit, micro);
    op->flops = (float)(first ? cost->first_product_flops : cost->last_product_flops);
    touch_intermediates(b, group, unit, within, SW_RECOMPUTE_NOTHING);
    if (cost->adapted)
        sw_build_read_unit(b, norm->weights, (struct sw_what){SW_CONTENT_WEIGHTS, unit, 0, 0, b->state_age, 0});
    if (first && sw_plan_is_sequence_parallel(b->plan))
        sw_build_read_normed(b, unit, micro, recalled->normed);
    if (first)
        sw_build_read_product_grad(b, unit, micro);
    else
        read_output_grad(b, unit, micro, recalled->grad);
    sw_build_accumulate(b, unit, norm->acc);
    sw_build_touch_work(b);
}

/* Writes down what the ranks of a tensor group compute after the backward op of a micro-batch, while they exchange the
 * gradient at its norm: the norm of the micro-batch before, and the gradients of weights, unless the backward op has
 * computed these. If a group has one micro-batch, its norm runs between the gradients of the last and of the first
 * product, so that its result is gathered while the latter are computed. The norm of the last of several micro-batches
 * runs after both. The gradients of the last product read the gradient at the unit's output, which the norm replaces.
 */
static void emit_behind(struct sw_builder *b, const struct sw_group *group, int64_t within,
                        const struct recalled *recalled, const struct sw_norm_work *before,
                        const struct sw_norm_work *norm) {
    const bool splits = sw_plan_splits_backward(b->plan, norm->unit) && sw_plan_trains(b->plan, norm->unit);
    const bool last = within + 1 == group->count, alone = splits && group->count == 1;
    if (within > 0)
        sw_build_backward_norm(b, before);
    if (splits)
        emit_product(b, SW_OP_BACKWARD_LAST, group, within, recalled, norm);
    if (alone)
        sw_build_backward_norm(b, norm);
    if (splits)
        emit_product(b, SW_OP_BACKWARD_FIRST, group, within, recalled, norm);
    if (last && !alone)
        sw_build_backward_norm(b, norm);
}

/* A block and its experts, the unit behind, which a group shares out: their weights on the device, and what their
 * backward passes add to. */
struct shared_block {
    int64_t unit, experts;
    int32_t weights, experts_weights;
    struct sw_accumulator acc, experts_acc;
};

/* Writes down the gradients of this rank's experts, for the rows that `sender` has sent again, from those at all
 * outputs; and adds up the ranks' parts of the gradient at these rows, which norm->norm_grad becomes. */
static void emit_experts_gradients(struct sw_builder *b, int64_t sender, struct sw_operand sent,
                                   struct sw_operand grads, struct sw_norm_work *norm) {
    const int64_t experts = norm->unit, micro = norm->micro;
    struct sw_op *op = sw_build_op(b, SW_OP_BACKWARD_EXPERTS, experts, micro);
    op->flops =
        SW_BACKWARD_FLOPS * sw_build_forward_flops(b, experts) - (float)b->plan->spec.cost[experts].frozen_flops;
    sw_build_read_weights(b, experts, norm->weights);
    sw_build_read_normed(b, sender, micro, sent);
    sw_build_read(b, grads, (struct sw_what){SW_CONTENT_BLOCK_OUTPUT_GRAD, experts, micro, SW_VERSION_WHOLE, 0, 0});
    norm->norm_grad = sw_build_write_norm_grad(b, experts, micro);
    if (sw_plan_trains(b->plan, experts))
        sw_build_accumulate(b, experts, norm->acc);
    sw_build_touch_work(b);
    sw_build_reduce_norm_grad(b, norm);
}

/* Writes down the backward pass, up to their norm, of experts that a group of tensor groups shares out. */
static struct sw_norm_work emit_experts_apart(struct sw_builder *b, int64_t experts, int64_t micro, int32_t weights,
                                              struct sw_accumulator *acc, const struct recalled *recalled) {
    struct sw_norm_work norm = {.unit = experts,
                                .micro = micro,
                                .input = recalled->input,
                                .grad = recalled->grad,
                                .weights = weights,
                                .acc = acc};
    const struct sw_operand grads = sw_build_gather_grads(b, experts, micro, recalled->grad);
    const struct sw_operand sent = emit_sent_norm(b, SW_OP_RECALL_ROWS, experts, micro, weights, recalled->input);
    emit_experts_gradients(b, experts, sent, grads, &norm);
    return norm;
}

/* Writes down the experts' backward pass of one micro-batch, and returns what the block's needs: the rows are computed
 * again if need be and sent, and the ranks' parts of the gradients at them are added up. */
static struct sw_norm_work emit_experts_backward(struct sw_builder *b, const struct sw_group *group,
                                                 struct shared_block *block, int64_t within, struct sw_operand input) {
    const int64_t micro = group->first + within, kept = sw_plan_backward_input(b->plan, block->unit);
    const struct sw_operand grad = output_grad_place(b, group, within);
    const struct sw_operand grads = sw_build_gather_grads(b, block->experts, micro, grad);
    const sw_recompute again = b->plan->recompute[block->unit];
    struct sw_op *op = sw_build_op(b, SW_OP_RECALL_ROWS, block->unit, micro);
    op->flops = again == SW_RECOMPUTE_UNIT ? sw_build_forward_flops(b, block->unit) : 0.0F;
    sw_build_read_weights(b, block->unit, block->weights);
    sw_build_read_tokens(b, micro);
    sw_build_read(b, input, sw_build_output_of(kept - 1, micro));
    touch_intermediates(b, group, block->unit, within, again);
    const struct sw_operand sent = sw_build_write_sent(b, block->unit, micro);
    sw_build_touch_work(b);
    sw_build_gather_sent(b, block->unit, micro, sent);
    struct sw_norm_work norm = {
        .unit = block->experts, .micro = micro, .weights = block->experts_weights, .acc = &block->experts_acc};
    emit_experts_gradients(b, block->unit, sent, grads, &norm);
    return norm;
}

/* Writes down the backward pass of one micro-batch of a block and its experts, in the order of their forward pass
 * reversed. */
static void emit_shared_backward(struct sw_builder *b, const struct sw_group *group, struct shared_block *block,
                                 int64_t within) {
    const int64_t micro = group->first + within, kept = sw_plan_backward_input(b->plan, block->unit);
    const struct sw_operand grad = output_grad_place(b, group, within);
    const struct sw_operand input = emit_recall(b, group, kept, within);
    const struct sw_norm_work norm = emit_experts_backward(b, group, block, within, input);
    struct sw_op *op = sw_build_op(b, SW_OP_BACKWARD, block->unit, micro);
    op->flops = SW_BACKWARD_FLOPS * sw_build_forward_flops(b, block->unit) -
                (float)b->plan->spec.cost[block->unit].frozen_flops;
    sw_build_read_tokens(b, micro);
    sw_build_read_weights(b, block->unit, block->weights);
    sw_build_read(b, input, sw_build_output_of(kept - 1, micro));
    touch_intermediates(b, group, block->unit, within, SW_RECOMPUTE_NOTHING);
    read_output_grad(b, block->experts, micro, grad);
    sw_build_read(b, norm.norm_grad, (struct sw_what){SW_CONTENT_NORM_GRAD, norm.unit, micro, SW_VERSION_OWN, 0, 0});
    sw_build_write(b, grad, (struct sw_what){SW_CONTENT_BLOCK_OUTPUT_GRAD, block->unit - 1, micro, 0, 0, 0});
    if (sw_plan_trains(b->plan, block->unit))
        sw_build_accumulate(b, block->unit, &block->acc);
    sw_build_touch_work(b);
}

/* The norm of micro-batch m runs after the backward op of m+1, which overlaps the group's exchange. With sequence
 * parallelism the inputs of m+1 are gathered before the backward op of m, and the first gradient of the unit before is
 * gathered before the ranks exchange this unit's gradients. *whole_grad is that gradient; slot -1: there is none. */
static void emit_unit_backward(struct sw_builder *b, const struct sw_group *group, int64_t unit, int32_t weights,
                               struct sw_accumulator *acc, struct sw_operand *whole_grad) {
    const bool apart = unit > 0 && sw_build_norm_is_apart(b, unit);
    const bool ahead = sw_plan_is_sequence_parallel(b->plan);
    struct sw_norm_work norm[2] = {{0}, {0}};
    struct recalled recalled[2];
    for (int64_t w = 0; w < group->count; w++) {
        if (w == 0 || !ahead)
            recalled[w % 2] = recall(b, group, unit, w, weights, whole_grad);
        if (ahead && w + 1 < group->count)
            recalled[(w + 1) % 2] = recall(b, group, unit, w + 1, weights, whole_grad);
        norm[w % 2] = sw_plan_shares_experts(b->plan, unit)
                          ? emit_experts_apart(b, unit, group->first + w, weights, acc, &recalled[w % 2])
                          : emit_backward(b, group, unit, w, weights, acc, &recalled[w % 2]);
        if (apart)
            emit_behind(b, group, w, &recalled[w % 2], &norm[(w + 1) % 2], &norm[w % 2]);
    }
    if (apart && ahead && sw_plan_passes_back(b->plan, unit - 1))
        *whole_grad = sw_build_gather_grad(b, unit - 1, group->first, output_grad_place(b, group, 0));
}

/* Returns what the backward pass of a unit adds to; a tied table's is there since the head. */
static struct sw_accumulator begin_acc(struct sw_builder *b, const struct sw_group *group, int64_t unit,
                                       struct sw_accumulator table) {
    return sw_plan_trains(b->plan, unit) && !sw_build_is_table(b, unit)
               ? sw_build_begin_acc(b, unit, group, sw_build_adds(b, unit))
               : table;
}

/* Lets the next unit's weights go ahead of a unit's gradients and updates, which nothing waits for so soon; with
 * experts that a group shares out, those of both. */
static void fetch_before(struct sw_builder *b, int64_t unit) {
    if (unit <= 1 || !sw_plan_passes_back(b->plan, unit - 1) || !sw_plan_computes(b->plan, unit - 1))
        return;
    if (sw_plan_joins_block(b->plan, unit - 1))
        sw_build_fetch(b, unit - 2);
    sw_build_fetch(b, unit - 1);
}

/* Writes down the backward pass of a block and of its experts, which a group shares out. */
static void build_shared_backward(struct sw_builder *b, const struct sw_group *group, int64_t experts) {
    struct shared_block block = {.unit = experts - 1, .experts = experts};
    block.weights = sw_build_fetch(b, block.unit);
    block.experts_weights = sw_build_fetch(b, experts);
    block.experts_acc = begin_acc(b, group, experts, block.experts_acc);
    block.acc = begin_acc(b, group, block.unit, block.acc);
    for (int64_t w = 0; w < group->count; w++)
        emit_shared_backward(b, group, &block, w);
    fetch_before(b, block.unit);
    if (sw_plan_trains(b->plan, experts))
        sw_build_end_acc(b, experts, group, block.experts_acc);
    if (sw_plan_trains(b->plan, block.unit))
        sw_build_end_acc(b, block.unit, group, block.acc);
}

/* Neighbouring stages of a pipeline pass each other the outputs of a stage's last unit and the gradients at them. */

/* Writes down that a stage gives, or gets, an output or the gradient there. What is got is given elsewhere, so that it
 * counts no bytes. */
static void pass(struct sw_builder *b, sw_op_kind kind, struct sw_operand at, struct sw_what what) {
    struct sw_op *op = sw_build_op(b, kind, what.unit, what.index);
    op->content = what.content;
    if (kind == SW_OP_SEND) {
        op->bytes = b->plan->spec.cost[what.unit].output_bytes;
        sw_build_read(b, at, what);
    } else {
        sw_build_write(b, at, what);
    }
}

/* Returns where an input from another stage goes: to its home on the device, or where it waits for its forward pass. */
static struct sw_operand received_place(struct sw_builder *b, const struct sw_group *group, int64_t unit,
                                        int64_t within) {
    const int32_t slot = b->index->of_unit[SLOT_RECEIVED][unit];
    if (slot < 0)
        return output_place(b, group, unit - 1, within);
    return (struct sw_operand){.slot = slot,
                               .piece = sw_build_piece(b, group, sw_plan_received_pieces(b->plan, unit), within)};
}

void sw_build_receive_inputs(struct sw_builder *b, struct sw_group *group) {
    const int64_t unit = sw_plan_first_unit(b->plan, group->turn);
    for (int64_t w = 0; w < group->count; w++) {
        group->at[w] = received_place(b, group, unit, w);
        pass(b, SW_OP_RECEIVE, group->at[w], sw_build_output_of(unit - 1, group->first + w));
        if (group->train)
            emit_keep(b, group, unit - 1, w, group->at[w]);
    }
}

void sw_build_send_outputs(struct sw_builder *b, const struct sw_group *group) {
    const int64_t unit = sw_plan_end_unit(b->plan, group->turn) - 1;
    for (int64_t w = 0; w < group->count; w++)
        pass(b, SW_OP_SEND, group->at[w], sw_build_output_of(unit, group->first + w));
}

/* Passes the gradients at a unit's outputs, if there are any: in front of the first trained unit, where only stages
 * with turns have whole runs of units, no backward pass goes. */
static void pass_grads(struct sw_builder *b, sw_op_kind kind, const struct sw_group *group, int64_t unit) {
    if (!sw_plan_passes_back(b->plan, unit))
        return;
    for (int64_t w = 0; w < group->count; w++)
        pass(b, kind, output_grad_place(b, group, w),
             (struct sw_what){SW_CONTENT_BLOCK_OUTPUT_GRAD, unit, group->first + w, 0, 0, 0});
}

void sw_build_receive_grads(struct sw_builder *b, const struct sw_group *group) {
    pass_grads(b, SW_OP_RECEIVE, group, sw_plan_end_unit(b->plan, group->turn) - 1);
}

struct sw_accumulator sw_build_backward(struct sw_builder *b, struct sw_group *group) {
    const int64_t first = sw_plan_first_unit(b->plan, group->turn), head = sw_build_head_of(b);
    const int64_t end = sw_min_i64(sw_plan_end_unit(b->plan, group->turn), head);
    const bool ends = sw_plan_end_unit(b->plan, group->turn) > head, copies_table = sw_plan_copies_table(b->plan);
    struct sw_operand whole_grad = {.slot = -1};
    struct sw_accumulator table = {.slot = -1};
    if (ends)
        table = build_head(b, group);
    else if (first == 0 && copies_table)
        table = sw_build_begin_acc(b, 0, group, table_adds(b));
    if (first > 0 && first >= end) /* the head alone */
        pass_grads(b, SW_OP_SEND, group, first - 1);
    for (int64_t u = end - 1; u >= sw_max_i64(first, b->plan->first_trained); u--) {
        if (sw_plan_joins_block(b->plan, u)) {
            build_shared_backward(b, group, u--);
            continue;
        }
        const int32_t weights = u > 0 ? sw_build_fetch(b, u) : -1;
        struct sw_accumulator acc = begin_acc(b, group, u, table);
        emit_unit_backward(b, group, u, weights, &acc, &whole_grad);
        fetch_before(b, u);
        if (u > 0 && u == first) /* before the ranks of the stage exchange the unit's gradients */
            pass_grads(b, SW_OP_SEND, group, u - 1);
        if (sw_plan_trains(b->plan, u))
            sw_build_end_acc(b, u, group, acc);
    }
    return first > 0 && ends && copies_table ? table : (struct sw_accumulator){.slot = -1};
}
