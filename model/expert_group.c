/* Expert parallelism (Lepikhin et al., arXiv 2006.16668): the ranks of a group share out the experts of each block, and
 * give each other the rows of their micro-batches.
 *
 * All ranks get all rows: the plan gathers the normalised inputs first, and afterwards adds up the ranks' results in
 * the order of ranks. So it moves the same bytes whatever the routing, and needs no counts of rows from the device.
 * docs/ranks.md says what an exchange of the chosen rows alone would save.
 *
 * A rank computes with the rows of one rank at a time, so its areas are bounded by the pairs of one micro-batch even if
 * all tokens of all ranks choose one expert. It routes each row as that row's own rank would, because a router is small
 * beside experts. Routing and results of products are computed again in the backward pass.
 *
 * In the backward pass a rank computes the share of its own experts. The gradients at the router and at the normalised
 * input are linear in the gradient at the experts' weights, so the ranks' shares add up to the whole.
 *
 * If the members of a group are tensor groups, a rank has some columns of each of its member's experts, and its results
 * and gradients are shares of these, too. One sum over all ranks of the group adds both kinds up. The unit of experts
 * then has their norm: it normalises its input for what it sends, and the plan runs the norm's backward pass. */
#include "model/model_private.h"

static int64_t sent_bytes(const struct sw_model *model) {
    return model->rows * model->config.hidden * sw_dtype_bytes(model->shape.type);
}

/* Returns the rows of one rank in an area with those of all. */
static void *rows_of(const struct sw_model *model, const void *area, int rank) {
    return (char *)(uintptr_t)area + rank * sent_bytes(model);
}

/* Returns the intermediates of the experts for the rows of one rank, in the work area. */
static struct saved routed(const struct sw_model *model, const struct sw_unit_call *call) {
    const struct saved_layout *at = &model->work.routed;
    return (struct saved){
        .router_logits = area_at(call->work, at->router_logits),
        .expert_chosen = area_at(call->work, at->expert_chosen),
        .expert_weight = area_at(call->work, at->expert_weight),
        .expert_offset = area_at(call->work, at->expert_offset),
        .expert_source = area_at(call->work, at->expert_source),
        .expert_place = area_at(call->work, at->expert_place),
        .expert_up = area_at(call->work, at->expert_up),
    };
}

/* Returns the sum that the block before its experts has for its own rows, for a call of these: the residual, with the
 * result of a shared expert. */
static const void *block_sum(const struct sw_model *model, const struct sw_unit_call *call) {
    struct sw_unit_call block = *call;
    block.unit--;
    const struct saved s = sw_saved_of(model, &block);
    return sw_config_has_shared_expert(&model->config) ? s.shared_sum : s.residual;
}

/* Tells whether the units of experts have their norm: the members of the group are tensor groups. */
static bool has_norm(const struct sw_model *model) {
    return model->cut.ranks > 1;
}

/* Normalises all rows of the input into this member's place among those of all. */
static sw_status send_normed(const struct sw_model *model, const struct sw_unit_call *call) {
    return sw_norm_forward(model, call, NORM2_SCALE, call->in, rows_of(model, call->out, model->cut.expert_rank),
                           area_at(call->work, model->work.norm_mean), area_at(call->work, model->work.norm_rstd));
}

static sw_status send_rows(const struct sw_model *model, const struct sw_unit_call *call) {
    return sw_copy_on_device(call->stream, rows_of(model, call->out, model->cut.expert_rank),
                             sw_saved_of(model, call).norm2_out, sent_bytes(model));
}

sw_status sw_group_send(struct sw_model *model, const struct sw_unit_call *call) {
    if (has_norm(model))
        return send_normed(model, call);
    const struct saved s = sw_saved_of(model, call);
    const void *sum;
    SW_TRY(sw_block_fill_attention(model, call, &s));
    SW_TRY(sw_shared_forward(model, call, s.norm2_out, s.residual, &s, s.shared_sum, &sum));
    return send_rows(model, call);
}

sw_status sw_group_recompute(struct sw_model *model, const struct sw_unit_call *call) {
    const struct saved s = sw_saved_of(model, call);
    if (call->recompute == SW_RECOMPUTE_DERIVED)
        return sw_block_fill_derived(model, call, &s);
    SW_TRY(sw_block_fill_attention(model, call, &s));
    return sw_shared_recompute(model, call, s.norm2_out, &s);
}

sw_status sw_group_recall(struct sw_model *model, const struct sw_unit_call *call) {
    if (has_norm(model))
        return send_normed(model, call);
    if (call->recompute != SW_RECOMPUTE_NOTHING)
        SW_TRY(sw_group_recompute(model, call));
    return send_rows(model, call);
}

/* Returns the call for the rows of one rank. `draw` is 0 for the rows of other ranks: only their own rank tallies their
 * routing and adds the gradients of the router's losses. */
static struct sw_unit_call call_for(const struct sw_model *model, const struct sw_unit_call *call, int rank) {
    struct sw_unit_call rows = *call;
    if (rank != model->cut.expert_rank)
        rows.draw = 0;
    return rows;
}

/* A rank adds the residual of its own rows, and the result of a shared expert. */
sw_status sw_group_forward(struct sw_model *model, const struct sw_unit_call *call) {
    const struct saved s = routed(model, call);
    for (int rank = 0; rank < model->cut.expert_ranks; rank++) {
        struct sw_unit_call rows = call_for(model, call, rank);
        rows.out = rows_of(model, call->out, rank);
        const bool own = rank == model->cut.expert_rank;
        const void *addend = own && !has_norm(model) ? block_sum(model, call) : NULL;
        SW_TRY(sw_experts_forward(model, &rows, rows_of(model, call->normed, rank), addend, &s));
        if (own && has_norm(model))
            SW_TRY(sw_rank_add_own_rows(model, &rows));
    }
    return SW_OK;
}

sw_status sw_group_backward(struct sw_model *model, const struct sw_unit_call *call) {
    const struct saved s = routed(model, call);
    const int64_t weights_bytes = sw_experts_pairs(model) * (int64_t)sizeof(float);
    for (int rank = 0; rank < model->cut.expert_ranks; rank++) {
        struct sw_unit_call rows = call_for(model, call, rank);
        const void *n = rows_of(model, call->normed, rank);
        rows.grad = rows_of(model, call->grad, rank);
        SW_TRY(sw_experts_up(model, &rows, n, &s));
        /* The weights of other ranks' experts have no gradient here. */
        SW_TRY(sw_zero(call->stream, area_at(call->work, model->work.expert_weight_grad), weights_bytes));
        SW_TRY(sw_experts_backward(model, &rows, n, &s, rows_of(model, call->norm_grad, rank)));
    }
    return SW_OK;
}

sw_status sw_group_backward_rest(struct sw_model *model, const struct sw_unit_call *call) {
    const struct saved s = sw_saved_of(model, call);
    void *dn = area_at(call->work, model->work.narrow);
    if (!sw_config_has_shared_expert(&model->config))
        return sw_block_attention_backward(model, call, &s, call->norm_grad);
    SW_TRY(sw_shared_backward(model, call, s.norm2_out, &s));
    SW_TRY(sw_add(call->stream, .type = model->shape.type, .elems = model->rows * model->config.hidden,
                  .a = call->norm_grad, .b = area_at(call->work, model->work.shared_rows), .y = dn));
    return sw_block_attention_backward(model, call, &s, dn);
}
