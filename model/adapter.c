/* The products of adapters. Beside y = x·Wᵀ an adapter adds (scale·x·Aᵀ)·Bᵀ to the columns of y that its piece has. Its
 * gradients are dB += dyᵀ·(scale·x·Aᵀ), dA += dhᵀ·x and dx += dh·A with dh = scale·dy·B.
 *
 * Each piece of a matrix has products of its own, as it is a module of its own in PEFT. Products that all pieces share
 * would read the input once, but their results would begin at any multiple of the rank, and a GPU's products want
 * aligned operands.
 *
 * With dropout each adapter has an input of its own, x with some elements zero and the others scaled, made in the work
 * area for each product that reads it. The gradient at it is made there too, masked by the same random words, and added
 * to dx.
 *
 * The result of A is not kept for the backward pass. To compute it again costs rank / outputs of the product beside it,
 * which is less than the memory is worth. */
#include "model/lora.h"
#include "model/model_private.h"

#include <stdlib.h>

struct products {
    struct sw_gemm down, up;           /* x·Aᵀ and ·Bᵀ */
    struct sw_gemm down_back, up_back; /* dh·A and dy·B */
    struct sw_gemm a_gradient, b_gradient;
};

static struct products products_of(const struct sw_model *model, enum linear_name name,
                                   const struct sw_adapter *adapter) {
    const sw_dtype type = model->shape.type;
    const struct sw_gemm *base = &model->linear[name].forward;
    const int64_t rows = model->rows, rank = model->shape.tuning.lora.rank, in = base->k, out = adapter->cols;
    return (struct products){
        .down = {.m = rows, .n = rank, .k = in, .transpose_b = true, .in = type, .out = SW_F32},
        .up = {.m = rows,
               .n = out,
               .k = rank,
               .transpose_b = true,
               .accumulate = true,
               .in = type,
               .out = type,
               .c_stride = base->n},
        .down_back = {.m = rows,
                      .n = in,
                      .k = rank,
                      .accumulate = model->shape.tuning.lora.dropout == 0.0,
                      .in = type,
                      .out = type},
        .up_back = {.m = rows, .n = rank, .k = out, .in = type, .out = SW_F32, .a_stride = base->n},
        .a_gradient =
            {.m = rank, .n = in, .k = rows, .transpose_a = true, .accumulate = true, .in = type, .out = SW_F32},
        .b_gradient = {.m = out,
                       .n = rank,
                       .k = rows,
                       .transpose_a = true,
                       .accumulate = true,
                       .in = type,
                       .out = SW_F32,
                       .a_stride = base->n},
    };
}

/* Returns the adapter of a piece of a product's matrix, or NULL. */
static const struct sw_adapter *adapter_of(const struct sw_model *model, int64_t unit, enum linear_name name,
                                           int piece) {
    const struct sw_adapter *adapter =
        model->adapter == NULL ? NULL : &model->adapter[(unit * LINEARS + name) * SW_MOST_PIECES + piece];
    return adapter == NULL || adapter->cols == 0 ? NULL : adapter;
}

/* Writes scale·product of A and B into the work area, in the compute type, and returns it. */
static sw_status scaled(const struct sw_model *model, const struct sw_unit_call *call, const struct sw_gemm *shape,
                        const void *a, const void *b, const void **out) {
    float *sums = area_at(call->work, model->work.adapter_sums);
    void *typed = area_at(call->work, model->work.adapter);
    SW_TRY(sw_gemm(call->stream, shape, a, b, NULL, sums, area_at(call->work, model->work.scratch)));
    *out = typed;
    return sw_cast_from_f32(call->stream, .type = model->shape.type, .elems = shape->m * shape->n, .from = sums,
                            .to = typed, .scale = (float)sw_lora_scale(&model->shape.tuning.lora));
}

/* Drops elements of an adapter's input, or of the gradient at it: the same ones whichever rank of a tensor group has
 * them. Each adapter and micro-batch has a stream, and that of A's first values is none of them, as `draw` is not 0. */
static sw_status drop(const struct sw_model *model, const struct sw_unit_call *call, const struct sw_adapter *adapter,
                      const void *x, void *y) {
    const struct sw_tensor *a = &model->units->unit[call->unit].tensor[adapter->a];
    const int64_t cols = a->part.cols;
    return sw_dropout(call->stream, .type = model->shape.type, .elems = model->rows * cols,
                      .rate = model->shape.tuning.lora.dropout, .seed = call->seed,
                      .stream = adapter->stream ^ call->draw, .x = x, .y = y, .cols = cols,
                      .first_col = a->part.first_col, .width = a->dim[1]);
}

/* Returns in *out what an adapter's A multiplies: x, or in a training step with dropout what is left of it. */
static sw_status input_of(const struct sw_model *model, const struct sw_unit_call *call,
                          const struct sw_adapter *adapter, const void *x, const void **out) {
    void *dropped = area_at(call->work, model->work.adapter_input);
    *out = x;
    if (model->shape.tuning.lora.dropout == 0.0 || call->draw == 0)
        return SW_OK;
    *out = dropped;
    return drop(model, call, adapter, x, dropped);
}

/* Adds dh·A, the gradient at an adapter's input, to dx. */
static sw_status add_input_gradient(const struct sw_model *model, const struct sw_unit_call *call,
                                    const struct sw_adapter *adapter, const struct sw_gemm *shape, const void *dh,
                                    void *dx) {
    void *gradient = shape->accumulate ? dx : area_at(call->work, model->work.adapter_input);
    SW_TRY(sw_gemm(call->stream, shape, dh, tensor_at(model, call, adapter->a), NULL, gradient,
                   area_at(call->work, model->work.scratch)));
    if (shape->accumulate)
        return SW_OK;
    if (call->draw > 0)
        SW_TRY(drop(model, call, adapter, gradient, gradient));
    return sw_add(call->stream, .type = model->shape.type, .elems = shape->m * shape->n, .a = gradient, .b = dx,
                  .y = dx);
}

/* Return the addresses of an adapter's B, and of its accumulator. */
static const void *b_at(const struct sw_model *model, const struct sw_unit_call *call,
                        const struct sw_adapter *adapter) {
    return (const char *)tensor_at(model, call, adapter->b) + adapter->b_first * sw_dtype_bytes(model->shape.type);
}

static float *b_acc_at(const struct sw_model *model, const struct sw_unit_call *call,
                       const struct sw_adapter *adapter) {
    return acc_at(model, call, adapter->b) + adapter->b_first;
}

/* Returns the address of a piece's columns in the rows of a product's result. */
static char *columns(const struct sw_model *model, const struct sw_adapter *adapter, const void *rows) {
    return (char *)rows + adapter->col * sw_dtype_bytes(model->shape.type);
}

sw_status sw_adapter_forward(const struct sw_model *model, const struct sw_unit_call *call, enum linear_name name,
                             const void *x, void *y) {
    const struct sw_adapter *adapter;
    for (int piece = 0; piece < SW_MOST_PIECES; piece++) {
        const void *h, *input;
        if ((adapter = adapter_of(model, call->unit, name, piece)) == NULL)
            continue;
        const struct products p = products_of(model, name, adapter);
        SW_TRY(input_of(model, call, adapter, x, &input));
        SW_TRY(scaled(model, call, &p.down, input, tensor_at(model, call, adapter->a), &h));
        SW_TRY(sw_gemm(call->stream, &p.up, h, b_at(model, call, adapter), NULL, columns(model, adapter, y),
                       area_at(call->work, model->work.scratch)));
    }
    return SW_OK;
}

sw_status sw_adapter_input_gradient(const struct sw_model *model, const struct sw_unit_call *call,
                                    enum linear_name name, const void *dy, void *dx) {
    const struct sw_adapter *adapter;
    for (int piece = 0; piece < SW_MOST_PIECES; piece++) {
        const void *dh;
        if ((adapter = adapter_of(model, call->unit, name, piece)) == NULL)
            continue;
        const struct products p = products_of(model, name, adapter);
        SW_TRY(scaled(model, call, &p.up_back, columns(model, adapter, dy), b_at(model, call, adapter), &dh));
        SW_TRY(add_input_gradient(model, call, adapter, &p.down_back, dh, dx));
    }
    return SW_OK;
}

sw_status sw_adapter_weight_gradient(const struct sw_model *model, const struct sw_unit_call *call,
                                     enum linear_name name, const void *x, const void *dy) {
    void *scratch = area_at(call->work, model->work.scratch);
    const struct sw_adapter *adapter;
    for (int piece = 0; piece < SW_MOST_PIECES; piece++) {
        const void *h, *dh, *input;
        if ((adapter = adapter_of(model, call->unit, name, piece)) == NULL)
            continue;
        const struct products p = products_of(model, name, adapter);
        const char *dy_piece = columns(model, adapter, dy);
        SW_TRY(input_of(model, call, adapter, x, &input));
        SW_TRY(scaled(model, call, &p.down, input, tensor_at(model, call, adapter->a), &h));
        SW_TRY(sw_gemm(call->stream, &p.b_gradient, dy_piece, h, NULL, b_acc_at(model, call, adapter), scratch));
        SW_TRY(scaled(model, call, &p.up_back, dy_piece, b_at(model, call, adapter), &dh));
        SW_TRY(sw_gemm(call->stream, &p.a_gradient, dh, input, NULL, acc_at(model, call, adapter->a), scratch));
    }
    return SW_OK;
}

/* A GPU's products take operands that begin at such multiples. */
enum { PIECE_ALIGN_BYTES = 64 };

/* Returns the columns of a product's result that a piece of its matrix has, and the first row of the piece that the
 * rank computes with. before: the columns of the pieces before it. */
static struct sw_own_rows columns_of(const struct sw_model *model, enum linear_name linear, int piece,
                                     const struct sw_tensor *base, int64_t before) {
    if (linear == LINEAR_QKV && sw_cut_copies_kv(&model->config, &model->cut))
        return sw_own_rows_of(model, QKV_WEIGHT, piece);
    return (struct sw_own_rows){.collected = before,
                                .rows = model->config.out_first ? base->part.rows : base->part.cols};
}

/* Lists the adapters of a product of a block, of whose matrix the unit has the pieces from tensor `first` on. */
static sw_status list_product(struct sw_model *model, int64_t u, enum linear_name linear, int first) {
    const bool gpu = !sw_device_info(model->device).host_memory;
    const int64_t typed = sw_dtype_bytes(model->shape.type), rank = model->shape.tuning.lora.rank;
    const struct sw_unit *unit = &model->units->unit[u];
    int64_t col = 0;
    for (int piece = 0; piece < sw_block_pieces(&model->config, sw_weight_of(linear)); piece++) {
        const struct sw_tensor *base = &unit->tensor[first + piece];
        const struct sw_own_rows own = columns_of(model, linear, piece, base, col);
        const int64_t a = sw_lora_of(unit, first + piece);
        if (a >= 0)
            model->adapter[(u * LINEARS + linear) * SW_MOST_PIECES + piece] =
                (struct sw_adapter){.a = (int)a,
                                    .b = (int)a + 1,
                                    .col = own.collected,
                                    .cols = own.rows,
                                    .b_first = own.first * rank,
                                    .stream = sw_lora_stream(&unit->tensor[a])};
        if (a >= 0 && gpu && own.collected * typed % PIECE_ALIGN_BYTES != 0)
            return sw_fail(SW_ERR_UNSUPPORTED,
                           "the result of %s begins at column %lld, and a GPU multiplies from multiples of %lld on; "
                           "leave it out of --lora-targets",
                           base->name, (long long)own.collected, (long long)(PIECE_ALIGN_BYTES / typed));
        col += own.rows;
    }
    return SW_OK;
}

/* Lists the adapters of a block, or of a half of one. */
static sw_status list_block(struct sw_model *model, int64_t u) {
    for (int linear = 0; linear < LINEARS; linear++) {
        const int first = sw_block_tensor_in(model, u, sw_weight_of((enum linear_name)linear));
        if (first >= 0)
            SW_TRY(list_product(model, u, (enum linear_name)linear, first));
    }
    return SW_OK;
}

int64_t sw_adapters_widest_input(const struct sw_model *model) {
    int64_t widest = 0;
    for (int64_t i = 0; i < model->units->count * LINEARS * SW_MOST_PIECES; i++)
        if (model->adapter[i].cols > 0)
            widest = sw_max_i64(widest, model->linear[i / SW_MOST_PIECES % LINEARS].forward.k);
    return widest;
}

static sw_status prepare_adapter(struct sw_model *model, enum linear_name name, const struct sw_adapter *adapter) {
    const struct products p = products_of(model, name, adapter);
    const struct sw_gemm *shapes[] = {&p.down, &p.up, &p.down_back, &p.up_back, &p.a_gradient, &p.b_gradient};
    const int count = model->shape.forward_only ? 2 : (int)(sizeof shapes / sizeof shapes[0]);
    for (int i = 0; i < count; i++)
        SW_TRY(sw_model_prepare_product(model, shapes[i]));
    return SW_OK;
}

sw_status sw_adapters_prepare(struct sw_model *model) {
    const int64_t blocks = model->units->count;
    if (model->shape.tuning.lora.rank == 0)
        return SW_OK;
    model->adapter = calloc((size_t)(blocks * LINEARS * SW_MOST_PIECES), sizeof *model->adapter);
    if (model->adapter == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the adapters");
    for (int64_t u = 1; u + 1 < blocks; u++) {
        SW_TRY(list_block(model, u));
        for (int linear = 0; linear < LINEARS; linear++)
            for (int piece = 0; piece < SW_MOST_PIECES; piece++) {
                const struct sw_adapter *adapter = adapter_of(model, u, (enum linear_name)linear, piece);
                if (adapter != NULL)
                    SW_TRY(prepare_adapter(model, (enum linear_name)linear, adapter));
            }
    }
    return SW_OK;
}
