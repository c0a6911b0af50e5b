/* A block whose experts are units. The first unit is the block without them: it routes, and hands on what the experts
 * need. Each of the others has a run of experts, and adds its part to a sum that passes through all of them.
 *
 * The results of a token's experts are added in the order of experts, and their gradients at the normalised input in
 * the reverse order with the router's part last. The sums pass from unit to unit in fp32, so they have the bits of a
 * block that is one unit. */
#include "model/model_private.h"

static sw_status copy_handed(const struct sw_unit_call *call, int64_t at, const void *from, int64_t bytes) {
    return sw_copy_on_device(call->stream, area_at(call->out, at), from, bytes);
}

sw_status sw_routed_forward(struct sw_model *model, const struct sw_unit_call *call) {
    const struct saved s = sw_saved_of(model, call);
    const struct sw_handed_layout at = sw_handed_layout(model);
    const int64_t number_bytes = (int64_t)sizeof(int32_t), pairs_bytes = sw_experts_pairs(model) * number_bytes;
    const int64_t hidden_bytes = model->rows * model->config.hidden * sw_dtype_bytes(model->shape.type);
    const void *sum;
    SW_TRY(sw_block_fill_attention(model, call, &s));
    SW_TRY(sw_shared_forward(model, call, s.norm2_out, s.residual, &s, area_at(call->work, model->work.shared_rows),
                             &sum));
    SW_TRY(sw_experts_route(model, call, s.norm2_out, &s));
    SW_TRY(sw_experts_count(model, call, &s));
    if (call->routing != NULL)
        SW_TRY(
            sw_copy_to_host(call->stream, call->routing, s.expert_offset, (model->config.experts + 1) * number_bytes));
    SW_TRY(copy_handed(call, at.normed, s.norm2_out, hidden_bytes));
    SW_TRY(copy_handed(call, at.weight, s.expert_weight, pairs_bytes));
    SW_TRY(copy_handed(call, at.offset, s.expert_offset, (model->config.experts + 1) * number_bytes));
    SW_TRY(copy_handed(call, at.source, s.expert_source, pairs_bytes));
    SW_TRY(copy_handed(call, at.place, s.expert_place, pairs_bytes));
    return copy_handed(call, at.sum, sum, hidden_bytes);
}

sw_status sw_routed_recompute(struct sw_model *model, const struct sw_unit_call *call) {
    const struct saved s = sw_saved_of(model, call);
    if (call->recompute == SW_RECOMPUTE_DERIVED)
        return sw_block_fill_derived(model, call, &s);
    SW_TRY(sw_block_fill_attention(model, call, &s));
    SW_TRY(sw_shared_recompute(model, call, s.norm2_out, &s));
    return sw_experts_route(model, call, s.norm2_out, &s);
}

/* Adds the router's part to the sum of the experts' parts. */
sw_status sw_routed_backward(struct sw_model *model, const struct sw_unit_call *call) {
    const struct saved s = sw_saved_of(model, call);
    const struct sw_handed_layout at = sw_handed_layout(model);
    void *dn = area_at(call->work, model->work.narrow);
    SW_TRY(sw_shared_backward(model, call, s.norm2_out, &s));
    SW_TRY(sw_experts_router_backward(model, call, s.norm2_out, &s, area_at(call->grad, at.weight), dn));
    SW_TRY(sw_unpermute_rows(call->stream, .type = model->shape.type, .rows = model->rows, .cols = model->config.hidden,
                             .place = s.expert_place, .x = dn, .addend = dn, .y = dn,
                             .before = area_at(call->grad, at.sum), .falling = true));
    return sw_block_attention_backward(model, call, &s, dn);
}

/* Returns the addresses of what some experts use: their own intermediates, and the routing that their block handed on.
 */
static struct saved handed_of(const struct sw_model *model, const struct sw_unit_call *call) {
    const struct sw_handed_layout at = sw_handed_layout(model);
    struct saved s = sw_saved_of(model, call);
    char *in = (char *)call->in;
    s.norm2_out = in + at.normed;
    s.expert_weight = (float *)(void *)(in + at.weight);
    s.expert_offset = (int32_t *)(void *)(in + at.offset);
    s.expert_source = (int32_t *)(void *)(in + at.source);
    s.expert_place = (int32_t *)(void *)(in + at.place);
    return s;
}

sw_status sw_expert_unit_recompute(struct sw_model *model, const struct sw_unit_call *call) {
    const struct saved s = handed_of(model, call);
    return call->recompute == SW_RECOMPUTE_DERIVED ? SW_OK : sw_experts_up_products(model, call, s.norm2_out, &s);
}

sw_status sw_expert_unit_forward(struct sw_model *model, const struct sw_unit_call *call) {
    const struct saved s = handed_of(model, call);
    const struct sw_handed_layout at = sw_handed_layout(model);
    const struct sw_tile tile = sw_tile_of(&model->cut, call->unit);
    const bool begins = tile.index == 1;
    const char *sum = (const char *)call->in + at.sum;
    void *rows;
    SW_TRY(sw_experts_up_products(model, call, s.norm2_out, &s));
    SW_TRY(sw_experts_results(model, call, &s, &rows));
    SW_TRY(sw_unpermute_rows(call->stream, .type = model->shape.type, .rows = model->rows, .cols = model->config.hidden,
                             .chosen = model->config.chosen_experts, .place = s.expert_place, .x = rows,
                             .addend = begins ? sum : NULL, .before = begins ? NULL : (const float *)(const void *)sum,
                             .y = tile.last ? call->out : NULL, .after = tile.last ? NULL : area_at(call->out, at.sum),
                             .run = sw_experts_places(model, call, &s)));
    return tile.last ? SW_OK : copy_handed(call, 0, call->in, at.sum);
}

sw_status sw_expert_unit_backward(struct sw_model *model, const struct sw_unit_call *call) {
    const struct saved s = handed_of(model, call);
    const struct sw_handed_layout at = sw_handed_layout(model);
    float *sum = area_at(call->grad, at.sum);
    void *rows;
    SW_TRY(sw_experts_part_backward(model, call, s.norm2_out, &s, area_at(call->grad, at.weight), &rows));
    return sw_unpermute_rows(call->stream, .type = model->shape.type, .rows = model->rows, .cols = model->config.hidden,
                             .chosen = model->config.chosen_experts, .place = s.expert_place, .x = rows,
                             .before = sw_tile_of(&model->cut, call->unit).last ? NULL : sum, .after = sum,
                             .run = sw_experts_places(model, call, &s), .falling = true);
}
