/* The product of queries, keys and values of a rank that shares its key-value head with others of its tensor group. The
 * unit has the weights of all keys and values, because the group keeps them alike on all ranks (model_units.c). The
 * rank collects the rows that it computes with as one matrix, and adds the gradient of that matrix to these rows. */
#include "model/model_private.h"

/* The tensors of queries, keys and values, in the order of their pieces in the unit. */
enum { QKV_PIECES = 3 };

/* Rows of one of these that this rank computes with. A row is that of a weight, or an element of a bias. */
struct own_rows {
    int64_t first;     /* in the rank's part of the tensor */
    int64_t collected; /* in the matrix that has queries, keys and values */
    int64_t rows;
};

/* As many neighbouring ranks as there are for each key-value head share it. A bias of queries is on all ranks, a weight
 * is not. */
static struct own_rows own_rows_of(const struct sw_model *model, enum sw_block_tensor tensor, int piece) {
    const struct widths *w = &model->widths;
    const int64_t kv_head = model->cut.rank / (model->cut.ranks / model->config.kv_heads);
    if (piece == 0)
        return (struct own_rows){.first = tensor == QKV_BIAS ? model->cut.rank * w->q : 0, .rows = w->q};
    return (struct own_rows){.first = kv_head * w->kv, .collected = w->q + (piece - 1) * w->kv, .rows = w->kv};
}

/* Returns the unit's number of the first of the three tensors, or -1 where this rank need not collect them. */
static int first_piece(const struct sw_model *model, const struct sw_unit_call *call, enum sw_block_tensor tensor) {
    return sw_cut_copies_kv(&model->config, &model->cut) ? sw_block_tensor_in(model, call->unit, tensor) : -1;
}

static sw_status collect(const struct sw_model *model, const struct sw_unit_call *call, enum sw_block_tensor tensor,
                         int64_t row_elems, char *to) {
    const int64_t bytes = row_elems * sw_dtype_bytes(model->shape.type);
    const int first = first_piece(model, call, tensor);
    for (int piece = 0; first >= 0 && piece < QKV_PIECES; piece++) {
        const struct own_rows own = own_rows_of(model, tensor, piece);
        const int64_t elem = model->units->unit[call->unit].tensor[first + piece].offset + own.first * row_elems;
        const char *from = (const char *)tensor_at(model, call, first + piece) + own.first * bytes;
        if (sw_units_packs(model->units, call->unit) && tensor == QKV_WEIGHT)
            SW_TRY(sw_unpack_weights(call->stream, .type = model->shape.type, .first_elem = elem,
                                     .elems = own.rows * row_elems, .weights = call->weights,
                                     .to = to + own.collected * bytes));
        else
            SW_TRY(sw_copy_on_device(call->stream, to + own.collected * bytes, from, own.rows * bytes));
    }
    return SW_OK;
}

sw_status sw_collect_qkv(const struct sw_model *model, const struct sw_unit_call *call) {
    SW_TRY(collect(model, call, QKV_WEIGHT, model->config.hidden, area_at(call->work, model->work.own_qkv)));
    return collect(model, call, QKV_BIAS, 1, area_at(call->work, model->work.own_qkv_bias));
}

static sw_status zero_acc(const struct sw_model *model, const struct sw_unit_call *call, enum sw_block_tensor tensor,
                          int64_t row_elems, float *acc) {
    const int64_t bytes = model->widths.qkv * row_elems * (int64_t)sizeof *acc;
    return first_piece(model, call, tensor) < 0 ? SW_OK : sw_zero(call->stream, acc, bytes);
}

sw_status sw_zero_qkv_acc(const struct sw_model *model, const struct sw_unit_call *call) {
    SW_TRY(zero_acc(model, call, QKV_WEIGHT, model->config.hidden, area_at(call->work, model->work.own_qkv_acc)));
    return zero_acc(model, call, QKV_BIAS, 1, area_at(call->work, model->work.own_qkv_bias_acc));
}

static sw_status add_acc(const struct sw_model *model, const struct sw_unit_call *call, enum sw_block_tensor tensor,
                         int64_t row_elems, const float *from) {
    const int first = first_piece(model, call, tensor);
    for (int piece = 0; first >= 0 && piece < QKV_PIECES; piece++) {
        const struct own_rows own = own_rows_of(model, tensor, piece);
        float *acc = acc_at(model, call, first + piece) + own.first * row_elems;
        SW_TRY(sw_add(call->stream, .type = SW_F32, .elems = own.rows * row_elems, .a = acc,
                      .b = from + own.collected * row_elems, .y = acc));
    }
    return SW_OK;
}

sw_status sw_add_qkv_acc(const struct sw_model *model, const struct sw_unit_call *call) {
    SW_TRY(add_acc(model, call, QKV_WEIGHT, model->config.hidden, area_at(call->work, model->work.own_qkv_acc)));
    return add_acc(model, call, QKV_BIAS, 1, area_at(call->work, model->work.own_qkv_bias_acc));
}
