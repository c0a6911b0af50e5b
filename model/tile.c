/* A tile of one half of a block, forward and backward: some heads of the attention, or some columns of the MLP's inner
 * layer. Each adds its share to the residual, so that the device holds the weights of one tile at a time. The first
 * tile also computes the half's normalised input and hands it on; in the backward pass the gradient there is summed on
 * the way back to the first tile, which then runs the norm's backward. */
#include "model/model_private.h"

struct tile_call {
    struct sw_tile tile;
    bool mlp;
    struct saved s;
    const void *n; /* the half's normalised input */
    void *norm_out;
    float *mean, *rstd;
};

static struct tile_call describe(const struct sw_model *model, const struct sw_unit_call *call) {
    struct tile_call t = {.tile = sw_tile_of(&model->cut, call->unit), .s = sw_saved_of(model, call)};
    t.mlp = t.tile.kind == MLP_FIRST || t.tile.kind == MLP_NEXT;
    t.norm_out = t.mlp ? t.s.norm2_out : t.s.norm1_out;
    t.mean = t.mlp ? t.s.norm2_mean : t.s.norm1_mean;
    t.rstd = t.mlp ? t.s.norm2_rstd : t.s.norm1_rstd;
    t.n = t.tile.first ? t.norm_out : (const char *)call->in + sw_norm_offset(model);
    return t;
}

static int64_t hidden_elems(const struct sw_model *model) {
    return model->rows * model->config.hidden;
}

static sw_status fill_norm(const struct sw_model *model, const struct sw_unit_call *call, const struct tile_call *t) {
    const enum sw_block_tensor scale = t->mlp ? NORM2_SCALE : NORM1_SCALE;
    return t->tile.first ? sw_norm_forward(model, call, scale, call->in, t->norm_out, t->mean, t->rstd) : SW_OK;
}

sw_status sw_tile_recompute(struct sw_model *model, const struct sw_unit_call *call) {
    const struct tile_call t = describe(model, call);
    SW_TRY(fill_norm(model, call, &t));
    if (call->recompute == SW_RECOMPUTE_DERIVED)
        return t.mlp ? SW_OK : sw_attend_derive(model, call, &t.s);
    return t.mlp ? sw_linear_forward(model, call, LINEAR_UP, UP_WEIGHT, t.n, NULL, t.s.up)
                 : sw_attend_forward(model, call, t.n, &t.s);
}

sw_status sw_tile_forward(struct sw_model *model, const struct sw_unit_call *call) {
    const struct tile_call t = describe(model, call);
    SW_TRY(fill_norm(model, call, &t));
    SW_TRY(t.mlp ? sw_mlp_forward(model, call, t.n, &t.s) : sw_attend_forward(model, call, t.n, &t.s));
    SW_TRY(t.mlp ? sw_linear_forward(model, call, LINEAR_DOWN, DOWN_WEIGHT, t.s.activated, call->in, call->out)
                 : sw_linear_forward(model, call, LINEAR_PROJECTION, PROJECTION_WEIGHT, t.s.attention_out, call->in,
                                     call->out));
    return t.tile.last ? SW_OK
                       : sw_copy_on_device(call->stream, area_at(call->out, sw_norm_offset(model)), t.n,
                                           hidden_elems(model) * sw_dtype_bytes(model->shape.type));
}

sw_status sw_tile_backward(struct sw_model *model, const struct sw_unit_call *call) {
    const struct tile_call t = describe(model, call);
    void *narrow = area_at(call->work, model->work.narrow);
    void *norm_grad = area_at(call->grad, sw_norm_offset(model));
    void *dn = t.tile.last ? norm_grad : narrow; /* the backward pass begins with the last tile */
    SW_TRY(t.mlp ? sw_mlp_backward(model, call, t.n, &t.s, dn) : sw_attend_backward(model, call, t.n, &t.s, dn));
    if (!t.tile.last)
        SW_TRY(sw_add(call->stream, model->shape.type, hidden_elems(model), norm_grad, narrow, norm_grad));
    return t.tile.first
               ? sw_norm_backward(model, call, t.mlp ? NORM2_SCALE : NORM1_SCALE, norm_grad, call->in, t.mean, t.rstd)
               : SW_OK;
}
