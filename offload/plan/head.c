/* The head: its forward pass for evaluations and inference, and fused with its backward pass in training. In a tensor
 * group each rank has a part of the vocabulary, and the ranks tell each other what the softmax needs of it. */
#include "offload/plan/builder.h"

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
static void norm_ahead(struct sw_builder *b, struct head_work *h, int64_t within) {
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
    norm_ahead(b, &h, 0);
    for (int64_t w = 0; w < group->count; w++) {
        const bool shares = kind == SW_OP_COMPUTE_LOSS; /* each rank's part of the logits is wanted as it is */
        norm_ahead(b, &h, w + 1);
        const struct sw_operand softmax = shares ? emit_logits(b, &h, w) : (struct sw_operand){.slot = -1};
        struct sw_op *op = sw_build_op(b, kind, head, group->first + w);
        op->flops = softmax.slot < 0 ? sw_build_forward_flops(b, head) : 0;
        read_head(b, &h, w);
        read_softmax(b, group->first + w, softmax);
    }
}

/* Writes down the head of one micro-batch: the loss and its gradients. In a tensor group the norm comes later, and the
 * logits are computed again. Returns what the norm needs. */
static struct sw_norm_work emit_micro(struct sw_builder *b, struct head_work *h, int64_t within,
                                      struct sw_operand softmax) {
    const int64_t head = sw_build_head_of(b), micro = h->group->first + within;
    const struct sw_operand grad = {.slot = b->index->slot[SLOT_OUTPUT_GRAD], .piece = within};
    struct sw_norm_work norm = {.unit = head, .micro = micro, .grad = grad, .weights = h->weights, .acc = &h->own};
    struct sw_op *op = sw_build_op(b, SW_OP_FORWARD_BACKWARD_HEAD, head, micro);
    op->flops = (1 + SW_BACKWARD_FLOPS - (h->tied && !h->trains_table ? 1 : 0)) * sw_build_forward_flops(b, head);
    read_head(b, h, within);
    sw_build_read_norm(b); /* it decides the loss scale */
    read_softmax(b, micro, softmax);
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

/* Writes down the head of all micro-batches of a group. In a tensor group the logits of one, the gradients of that
 * before and the norm of that before it follow each other, so that exchanges hide behind what comes between. */
static void emit_micros(struct sw_builder *b, struct head_work *h) {
    const bool apart = sw_plan_tensor_ranks(b->plan) > 1;
    const int64_t count = h->group->count, behind = apart ? 2 : 0;
    struct sw_operand softmax[2] = {{.slot = -1}, {.slot = -1}};
    struct sw_norm_work norm[2] = {{0}, {0}};
    norm_ahead(b, h, 0);
    for (int64_t w = 0; w < count + behind; w++) {
        norm_ahead(b, h, w + 1);
        if (w < count)
            softmax[w % 2] = emit_logits(b, h, w);
        const int64_t gradients = apart ? w - 1 : w;
        if (gradients >= 0 && gradients < count)
            norm[gradients % 2] = emit_micro(b, h, gradients, softmax[gradients % 2]);
        if (apart && w >= 2)
            sw_build_backward_norm(b, &norm[w % 2]);
    }
}

struct sw_accumulator sw_build_head(struct sw_builder *b, struct sw_group *group) {
    const int64_t head = sw_build_head_of(b);
    struct head_work h = {.group = group, .tied = b->plan->spec.units->tied};
    h.trains_table = h.tied && sw_plan_trains(b->plan, 0);
    if (h.trains_table)
        h.table = sw_build_begin_acc(b, 0, group, 2);
    h.own = sw_build_begin_acc(b, head, group, sw_build_adds(b, head));
    h.weights = sw_build_fetch(b, head);
    h.table_slot = h.tied ? sw_build_fetch(b, 0) : -1;
    if (sw_plan_keeps_secondary(b->plan, head))
        sw_build_keep_secondary(b, head, h.weights);
    emit_micros(b, &h);
    sw_build_end_acc(b, head, group, h.own);
    return h.table;
}
