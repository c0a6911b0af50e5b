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
 * Tiles of a half share the factors that are not cut: A of its first product, B of its last. The first tile has them
 * and hands copies on behind the normalised input, so each tile multiplies by what it has, and the device holds no
 * other tile's weights for it. In the backward pass, from the last tile to the first, each adds its part of their
 * gradients to fp32 sums that lie there behind the gradient at the normalised input; the first adds the sums to its
 * accumulators. Handing on x·Aᵀ instead would need fewer flops, but B of the last product would then need the sum over
 * all tiles, which no earlier tile's backward pass has.
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
    const struct sw_tensor *a = &model->units->unit[adapter->a.unit].tensor[adapter->a.tensor];
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

/* Every shared factor has as many elements: rank times the hidden size. */
static int64_t shared_elems(const struct sw_model *model) {
    return sw_round_up(model->shape.tuning.lora.rank * model->config.hidden, SW_TENSOR_ALIGN_ELEMS);
}

int64_t sw_adapters_handed_offset(const struct sw_model *model) {
    return 2 * sw_norm_offset(model);
}

/* Returns the most factors that a half's tiles share: A of each piece of the first matrix, and B of the last. */
static int most_shared(const struct sw_model *model, const struct sw_tile *tile) {
    const bool mlp = tile->kind == MLP_FIRST || tile->kind == MLP_NEXT;
    return sw_block_pieces(&model->config, mlp ? UP_WEIGHT : QKV_WEIGHT) + 1;
}

int64_t sw_adapters_handed_bytes(const struct sw_model *model, const struct sw_tile *tile) {
    const bool shares = model->adapter != NULL && model->cut.tiles > 1 && !tile->last;
    return shares ? most_shared(model, tile) * shared_elems(model) * (int64_t)sizeof(float) : 0;
}

/* Returns where the later tiles sum the gradient of a factor that they share. */
static float *handed_acc_at(const struct sw_model *model, const struct sw_unit_call *call,
                            const struct sw_factor *factor) {
    return (float *)area_at(call->grad, sw_adapters_handed_offset(model)) + factor->place * shared_elems(model);
}

/* Return the address of a factor, and of its accumulator. */
static const void *factor_at(const struct sw_model *model, const struct sw_unit_call *call,
                             const struct sw_factor *factor) {
    const char *handed = area_at((void *)(uintptr_t)call->in, sw_adapters_handed_offset(model));
    if (factor->unit == call->unit)
        return tensor_at(model, call, factor->tensor);
    return handed + factor->place * shared_elems(model) * sw_dtype_bytes(model->shape.type);
}

static float *factor_acc_at(const struct sw_model *model, const struct sw_unit_call *call,
                            const struct sw_factor *factor) {
    return factor->unit == call->unit ? acc_at(model, call, factor->tensor) : handed_acc_at(model, call, factor);
}

/* Return the address of the rows of B that the rank multiplies by, and of their accumulator. */
static const void *b_at(const struct sw_model *model, const struct sw_unit_call *call,
                        const struct sw_adapter *adapter) {
    return (const char *)factor_at(model, call, &adapter->b) + adapter->b_first * sw_dtype_bytes(model->shape.type);
}

static float *b_acc_at(const struct sw_model *model, const struct sw_unit_call *call,
                       const struct sw_adapter *adapter) {
    return factor_acc_at(model, call, &adapter->b) + adapter->b_first;
}

/* Adds dh·A, the gradient at an adapter's input, to dx. */
static sw_status add_input_gradient(const struct sw_model *model, const struct sw_unit_call *call,
                                    const struct sw_adapter *adapter, const struct sw_gemm *shape, const void *dh,
                                    void *dx) {
    void *gradient = shape->accumulate ? dx : area_at(call->work, model->work.adapter_input);
    SW_TRY(sw_gemm(call->stream, shape, dh, factor_at(model, call, &adapter->a), NULL, gradient,
                   area_at(call->work, model->work.scratch)));
    if (shape->accumulate)
        return SW_OK;
    if (call->draw > 0)
        SW_TRY(drop(model, call, adapter, gradient, gradient));
    return sw_add(call->stream, .type = model->shape.type, .elems = shape->m * shape->n, .a = gradient, .b = dx,
                  .y = dx);
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
        SW_TRY(scaled(model, call, &p.down, input, factor_at(model, call, &adapter->a), &h));
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
        SW_TRY(scaled(model, call, &p.down, input, factor_at(model, call, &adapter->a), &h));
        SW_TRY(sw_gemm(call->stream, &p.b_gradient, dy_piece, h, NULL, b_acc_at(model, call, adapter), scratch));
        SW_TRY(scaled(model, call, &p.up_back, dy_piece, b_at(model, call, adapter), &dh));
        SW_TRY(sw_gemm(call->stream, &p.a_gradient, dh, input, NULL, factor_acc_at(model, call, &adapter->a), scratch));
    }
    return SW_OK;
}

/* Does something for each factor that a tile's adapters share with those of other tiles. */
typedef sw_status (*shared_function)(const struct sw_model *model, const struct sw_unit_call *call,
                                     const struct sw_factor *factor);
static sw_status for_shared(const struct sw_model *model, const struct sw_unit_call *call, shared_function function) {
    for (int linear = 0; linear < LINEARS; linear++)
        for (int piece = 0; piece < SW_MOST_PIECES; piece++) {
            const struct sw_adapter *adapter = adapter_of(model, call->unit, (enum linear_name)linear, piece);
            if (adapter != NULL && adapter->a.shared)
                SW_TRY(function(model, call, &adapter->a));
            if (adapter != NULL && adapter->b.shared)
                SW_TRY(function(model, call, &adapter->b));
        }
    return SW_OK;
}

static int64_t factor_elems(const struct sw_model *model, const struct sw_factor *factor) {
    return model->units->unit[factor->unit].tensor[factor->tensor].elems;
}

static sw_status hand_on_factor(const struct sw_model *model, const struct sw_unit_call *call,
                                const struct sw_factor *factor) {
    const int64_t typed = sw_dtype_bytes(model->shape.type);
    char *to = area_at(call->out, sw_adapters_handed_offset(model) + factor->place * shared_elems(model) * typed);
    return sw_copy_on_device(call->stream, to, factor_at(model, call, factor), factor_elems(model, factor) * typed);
}

static sw_status zero_handed_acc(const struct sw_model *model, const struct sw_unit_call *call,
                                 const struct sw_factor *factor) {
    return sw_zero(call->stream, factor_acc_at(model, call, factor),
                   factor_elems(model, factor) * (int64_t)sizeof(float));
}

static sw_status add_handed_acc(const struct sw_model *model, const struct sw_unit_call *call,
                                const struct sw_factor *factor) {
    float *acc = acc_at(model, call, factor->tensor);
    return sw_add(call->stream, .type = SW_F32, .elems = factor_elems(model, factor), .a = acc,
                  .b = handed_acc_at(model, call, factor), .y = acc);
}

sw_status sw_adapters_hand_on(const struct sw_model *model, const struct sw_unit_call *call) {
    return for_shared(model, call, hand_on_factor);
}

sw_status sw_adapters_begin_backward(const struct sw_model *model, const struct sw_unit_call *call) {
    return sw_tile_of(&model->cut, call->unit).last ? for_shared(model, call, zero_handed_acc) : SW_OK;
}

sw_status sw_adapters_end_backward(const struct sw_model *model, const struct sw_unit_call *call) {
    return sw_tile_of(&model->cut, call->unit).first ? for_shared(model, call, add_handed_acc) : SW_OK;
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

/* Finds a factor of the adapter beside a piece of a matrix: in the unit, or, if the tiles of the half share it, in the
 * first of these. Returns false if there is no adapter. */
static bool find_factor(const struct sw_model *model, int64_t u, enum linear_name linear, int piece, const char *matrix,
                        bool is_a, struct sw_factor *out) {
    const bool shared = model->cut.tiles > 1 && is_a == !is_behind_sum(linear);
    const struct sw_tile tile = sw_tile_of(&model->cut, u);
    *out = (struct sw_factor){
        .unit = shared ? u - tile.index : u, .shared = shared, .place = is_a ? piece : most_shared(model, &tile) - 1};
    out->tensor = sw_lora_factor(&model->units->unit[out->unit], matrix, is_a ? SW_LORA_A : SW_LORA_B);
    return out->tensor >= 0;
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
        struct sw_adapter adapter = {.col = own.collected, .cols = own.rows, .b_first = own.first * rank};
        col += own.rows;
        if (!find_factor(model, u, linear, piece, base->name, true, &adapter.a) ||
            !find_factor(model, u, linear, piece, base->name, false, &adapter.b))
            continue;
        adapter.stream = sw_lora_stream(&model->units->unit[adapter.a.unit].tensor[adapter.a.tensor]);
        model->adapter[(u * LINEARS + linear) * SW_MOST_PIECES + piece] = adapter;
        if (gpu && own.collected * typed % PIECE_ALIGN_BYTES != 0)
            return sw_fail(SW_ERR_UNSUPPORTED,
                           "the result of %s begins at column %lld, and a GPU multiplies from multiples of %lld on; "
                           "leave it out of --lora-targets",
                           base->name, (long long)own.collected, (long long)(PIECE_ALIGN_BYTES / typed));
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
