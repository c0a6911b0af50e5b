/* Declarations that the files of the model share: offsets of intermediates in the saved and work areas, and products.
 */
#ifndef SW_MODEL_MODEL_PRIVATE_H
#define SW_MODEL_MODEL_PRIVATE_H

#include "core/size.h"
#include "model/hf/family.h"
#include "model/model.h"

#include <string.h>

enum embedding_tensor { TOKEN_TABLE, POSITION_TABLE };

/* Kinds of units between embedding and head: a block; the first or a later tile of one of its halves; where experts are
 * units, a block without its experts, or some of these; or, where an expert group shares out the experts, a block
 * without router and experts, or these. If that group is of tensor groups, the units are halves: the first tile of the
 * attention, and experts with their norm. Each kind has a range of the block's tensors. */
enum block_kind {
    BLOCK_WHOLE,
    ATTENTION_FIRST,
    ATTENTION_NEXT,
    MLP_FIRST,
    MLP_NEXT,
    BLOCK_ROUTED,
    EXPERT_GROUP,
    SHARED_BLOCK,
    SHARED_EXPERTS,
    SHARED_MLP,
    BLOCK_KINDS
};
struct sw_block_range {
    int first, end;
};
struct sw_block_range sw_block_range(enum block_kind kind);

struct sw_tile {
    enum block_kind kind;
    int64_t layer, index;
    bool first, last; /* the first and last tile of its half, or unit of its block; a single one is both */
};
/* How blocks are cut into units: each half among `ranks` ranks of a tensor group, and this rank's part into `tiles`
 * tiles. With both 1 a block is one unit; but where each of expert_ranks ranks has some experts it is two, unless they
 * are joined. */
struct sw_cut {
    int64_t tiles;
    int ranks, rank;
    int64_t expert_units; /* units that the experts of a block are; 0: they are in one unit with all of the block */
    int expert_ranks, expert_rank; /* 0 or 1 ranks, or tensor groups: all experts */
    bool joined;                   /* experts that ranks share out are in one unit with their block */
};
/* Returns the number of parts of a half: the tiles of all ranks, rank after rank. */
static inline int64_t sw_cut_parts(const struct sw_cut *cut) {
    return cut->ranks * cut->tiles;
}
struct sw_tile sw_tile_of(const struct sw_cut *cut, int64_t unit);
/* Tells whether experts that ranks share out are units of their own. */
static inline bool sw_cut_shares_out(const struct sw_cut *cut) {
    return cut->expert_ranks > 1 && !cut->joined;
}
/* Tells whether a tensor group has more ranks than the model has key-value heads. Every rank then has the projections
 * of all keys and values, and computes with the one head that its queries attend to. The part of such a rank is one
 * tile. */
static inline bool sw_cut_copies_kv(const struct sw_model_config *config, const struct sw_cut *cut) {
    return config->kv_heads % sw_cut_parts(cut) != 0;
}

/* Byte offsets of a unit's intermediates: those of the saved area, then those of the derived area, which need no matrix
 * product to compute again. */
struct saved_layout {
    int64_t qkv, log_sum_exp, attention_out, residual, up;
    /* With experts: the router's logits, the experts of each row and their weights, the order of the pairs of a row and
     * an expert, and the results of the experts' up products. */
    int64_t router_logits, expert_chosen, expert_weight, expert_offset, expert_source, expert_place, expert_up;
    /* With a shared expert: the logits of its gate, and the routing to it that these are (block.c); where an expert
     * group shares out the others, also the sum of the residual and its result. */
    int64_t shared_logits, shared_chosen, shared_weight, shared_offset, shared_source, shared_place, shared_sum;
    int64_t attention_result, mlp_result; /* with norms of results: what they normalise */
    int64_t attention_result_rstd, mlp_result_rstd;
    int64_t saved_bytes;
    int64_t q_rstd, k_rstd, heads, activated, norm1_mean, norm1_rstd, norm1_out, norm2_mean, norm2_rstd, norm2_out;
    int64_t derived_bytes;
    int64_t unnormed_bytes; /* size of the derived area without the norms, which come last */
};

/* Byte offsets in the work area, which blocks and the head use in turn. */
struct work_layout {
    int64_t wide;   /* the gradient at the result of a block's first product (sw_product_bytes); the plan has it where
                       backward passes are split */
    int64_t narrow; /* rows × the larger of hidden and query */
    int64_t inner;  /* rows × inner layer, if it is gated */
    int64_t heads;  /* rows × (query + key), if they are normalised */
    struct saved_layout routed; /* with an expert group: the routing and results of one rank's rows */
    /* With experts, whose pairs are rows × chosen_experts: pairs × hidden; twice pairs × inner layer; and the gradient
     * at the weights, fp32. */
    int64_t expert_rows, expert_inner, expert_inner_grad, expert_weight_grad;
    /* With a shared expert: rows × hidden, the residual with its result, or its part of the gradient at the normalised
     * input; rows × inner layer, the scaled activated values; and the gradients at the weights of its routing, fp32,
     * and at its logits. */
    int64_t shared_rows, shared_inner, shared_weight_grad, shared_logits_grad;
    /* If key-value heads are copied: the collected weights and biases of this rank's queries, keys and values, and
     * their fp32 gradients. */
    int64_t own_qkv, own_qkv_bias, own_qkv_acc, own_qkv_bias_acc;
    int64_t matrix;   /* one unpacked matrix, or those of some experts, if weights are stored in 8 bits or a base is
                         quantized */
    int64_t rotation; /* the tables of rotary positions */
    /* With a norm of the embedding: rows × hidden, its result or the gradient at that, and its statistics. */
    int64_t embedding_normed, embedding_mean, embedding_rstd;
    int64_t result_grad; /* with norms of results: rows × hidden, the gradient at a result */
    /* With experts, in training: the tally, and the scratch of its op. With losses of the router, for each micro-batch
     * of a step: the rows that all layers send to each expert, and the sums of their probabilities. */
    int64_t tally, tally_scratch, router_counts, router_sums;
    int64_t scratch;  /* memory for matrix products and attention */
    int64_t unwanted; /* if tensors are frozen: receives the gradients of a norm that has none, fp32 */
    int64_t norm_out, norm_mean, norm_rstd, norm_grad; /* head: rows × hidden, or rows */
    int64_t adapter_sums, adapter; /* with adapters: rows, or pairs if experts have some, × rank, fp32; and the same in
                                      the compute type */
    int64_t adapter_input;         /* with dropout: rows × the widest input of an adapter */
    int64_t logits;                /* head: one tile's logits_rows */
    int64_t logits_grad, losses;   /* head: one tile; one tile's rows, or all rows of pairs */
    int64_t loss;                  /* head: the sum of all rows' losses, or each sequence's, fp64 */
    int64_t row_scale;             /* head with pairs: all rows */
    int64_t largest, sums, target_logits; /* head with a cut vocabulary: rows of a tile, or all of pairs */
    int64_t hidden_grad;                  /* head with a cut vocabulary: rows of a tile × hidden, fp32 */
    int64_t bytes;
};

/* A linear layer of a block: y = x·W + b (forward_plain: without b), dx = dy·Wᵀ, dW += xᵀ·dy. If W is stored [out, in]:
 * y = x·Wᵀ + b, dx = dy·W, dW += dyᵀ·x. forward_continued is forward_plain with an addend, for the later tiles of a
 * tensor rank; the first tile has nothing to add. */
struct linear {
    struct sw_gemm forward, forward_plain, forward_continued, input_gradient, weight_gradient;
};
enum linear_name { LINEAR_QKV, LINEAR_PROJECTION, LINEAR_UP, LINEAR_DOWN, LINEARS };
/* Returns the matrix of a block's product. */
static inline enum sw_block_tensor sw_weight_of(enum linear_name name) {
    return name == LINEAR_QKV          ? QKV_WEIGHT
           : name == LINEAR_PROJECTION ? PROJECTION_WEIGHT
           : name == LINEAR_UP         ? UP_WEIGHT
                                       : DOWN_WEIGHT;
}

/* Tells whether a product is the last of its half; the ranks of a tensor group add up its results. */
static inline bool is_behind_sum(enum linear_name name) {
    return name == LINEAR_DOWN || name == LINEAR_PROJECTION;
}

/* The head's tiles: `rows` hidden rows and `cols` columns of the vocabulary; the last tile of each may be smaller. If
 * the vocabulary is not cut, a tile has all of it and keeps the gradient of the logits for all its rows, but the logits
 * of only `logits_rows` rows at a time. Rows of logits and of their gradient are a multiple of `cols_multiple` elements
 * apart (sw_head_stride). */
struct head_tiles {
    int64_t rows, cols;
    int64_t logits_rows;
    int64_t cols_multiple;
    bool cut;
};
/* Returns the distance in elements between rows of a tile's logits, and of their gradient. The gap after the columns of
 * a row is never read or written. */
int64_t sw_head_stride(const struct sw_model *model, int64_t cols);

/* The matrix products of a tile of the head: logits = h·Tᵀ, dh = dlogits·T, dT += dlogitsᵀ·h. If the vocabulary is cut,
 * dh is a sum over its tiles, in fp32. */
struct head_products {
    struct sw_gemm logits, input_gradient, table_gradient;
};

/* Columns of a tile's activations: queries; keys, as many as values; all three together; the inner layer; the result of
 * the up product, which is twice as wide in a gated MLP; the inner layer of an expert. */
struct widths {
    int64_t q, kv, qkv, ffn, up, expert_ffn;
};

/* A factor of an adapter. The tiles of a half share a factor that is not cut (adapter.c). */
struct sw_factor {
    int64_t unit; /* the unit that has the tensor: the adapter's own, or the first tile of its half */
    int tensor;   /* its index in that unit */
    bool shared;  /* a later tile uses the copy that is handed on, at this place */
    int place;
};

/* The adapter of a piece of a product's matrix, and the columns of the product's result that the piece has. cols 0:
 * there is none. */
struct sw_adapter {
    struct sw_factor a, b;
    int64_t col, cols;
    int64_t b_first; /* first element of B that the rank multiplies by */
    uint64_t stream; /* of its dropout's random words, in micro-batch 0 */
};

/* The tensors of the adapter beside a matrix of an expert, in the unit that has the expert. 0: there is none, as the
 * tensors of the model come first in a unit. */
struct sw_expert_factors {
    int a, b;
};

struct sw_model {
    struct sw_model_config config;
    struct sw_model_shape shape;
    struct sw_device *device;
    struct sw_units *units;
    int64_t rows; /* batch · seq */
    struct sw_cut cut;
    struct sw_span vocab;          /* rows of the vocabulary that this rank's units have */
    struct widths widths;          /* columns of a tile's activations */
    struct sw_attention attention; /* the attention of a tile, without the window, which depends on the layer */
    float *rotation;               /* the tables of rotary positions, one after the other; NULL: none */
    struct sw_model *of_one; /* the model for passes of one token, which borrows this one's rotation; NULL: none */
    struct head_tiles head;
    struct saved_layout saved[BLOCK_KINDS];
    struct work_layout work;
    struct linear linear[LINEARS]; /* the products of a tile */
    struct linear router;          /* with experts: the product that gives the router's logits */
    struct sw_routing routing;
    struct linear shared_gate; /* with a shared expert: the product that gives the logit of its gate */
    struct sw_routing shared_routing;
    struct sw_adapter *adapter; /* SW_MOST_PIECES of each of the LINEARS of each unit; NULL: there are none */
    struct sw_expert_factors *expert_factors; /* [layers, experts, EXPERT_MATRICES]; NULL: no expert has an adapter */
    int64_t scratch_bytes;
    int64_t muon_gpu_bytes;    /* of struct sw_model_bytes */
    struct sw_unit_cost *cost; /* one entry per unit */
};

/* Parts of a micro-batch's tokens, one after the other. Without documents there is no TOKEN_DOCUMENT_START. */
enum token_part { TOKEN_INPUTS, TOKEN_TARGETS, TOKEN_DOCUMENT_START, TOKEN_PARTS };

static inline int64_t sw_token_parts(const struct sw_model *model) {
    return model->shape.documents ? TOKEN_PARTS : TOKEN_DOCUMENT_START;
}

/* Tells whether the sequences of a micro-batch are pairs, and returns where the log-probabilities of the reference
 * model lie in its tokens, in bytes. */
static inline bool sw_has_pairs(const struct sw_model *model) {
    return model->shape.dpo_beta > 0.0;
}

static inline int64_t sw_reference_offset(const struct sw_model *model) {
    return sw_token_parts(model) * model->rows * (int64_t)sizeof(int32_t);
}

static inline const int32_t *sw_token_part(const struct sw_model *model, const struct sw_unit_call *call,
                                           enum token_part part) {
    return part < sw_token_parts(model) ? call->tokens + part * model->rows : NULL;
}

/* Tells whether a tensor lies in the base of its unit. */
static inline bool is_in_base(const struct sw_model *model, int64_t unit, int tensor) {
    const struct sw_unit *of = &model->units->unit[unit];
    return of->tensor[tensor].offset < of->base_grains * SW_GRAIN_ELEMS;
}

/* Return the address of a tensor in the unit's weights, and in its fp32 accumulator. In a unit stored in 8 bits only
 * the tensors of wide grains have the compute type and can be used in place, and in a unit with a base those behind it;
 * sw_block_matrix unpacks the others. */
static inline const void *tensor_at(const struct sw_model *model, const struct sw_unit_call *call, int tensor) {
    const int64_t offset = model->units->unit[call->unit].tensor[tensor].offset;
    const int64_t typed = sw_dtype_bytes(model->shape.type), grain = offset / SW_GRAIN_ELEMS;
    if (sw_units_packs(model->units, call->unit))
        return (const char *)call->weights + grain * SW_GRAIN_ELEMS + offset % SW_GRAIN_ELEMS * typed;
    return (const char *)call->weights + (offset - model->units->unit[call->unit].base_grains * SW_GRAIN_ELEMS) * typed;
}

/* Returns NULL for a frozen tensor, which has no gradient. */
static inline float *acc_at(const struct sw_model *model, const struct sw_unit_call *call, int tensor) {
    const struct sw_unit *unit = &model->units->unit[call->unit];
    if (call->acc == NULL || unit->tensor[tensor].frozen)
        return NULL;
    return call->acc + unit->tensor[tensor].offset - unit->trained_grain * SW_GRAIN_ELEMS;
}

/* Returns the accumulator of a norm's scale or bias. The backward pass of a frozen norm adds to memory that nothing
 * reads. */
static inline float *norm_acc_at(const struct sw_model *model, const struct sw_unit_call *call, int tensor) {
    float *acc = acc_at(model, call, tensor);
    return acc != NULL ? acc : (float *)((char *)call->work + model->work.unwanted);
}

/* Returns the index of a block's tensor in a unit, which may have only some of them; -1: the unit does not have it. */
int sw_block_tensor_in(const struct sw_model *model, int64_t unit, enum sw_block_tensor tensor);

/* Returns an address in an area, or NULL if the unit does not use the area. */
static inline void *area_at(void *area, int64_t offset_bytes) {
    return area == NULL ? NULL : (char *)area + offset_bytes;
}

/* Prepares the products, the attention and the areas for the model's shapes. The units must exist. */
sw_status sw_model_prepare(struct sw_model *model);
/* Returns what a unit costs, without its floating-point operations. */
struct sw_unit_cost sw_model_unit_cost(const struct sw_model *model, int64_t unit);
struct head_products sw_head_products(const struct sw_model *model, int64_t rows, int64_t cols);

/* Returns the offset of the normalised input in what one tile of a half hands to the next: first the residual with the
 * sum so far, then the half's normalised input; in the backward pass the gradients of both. The backward pass of a tile
 * needs only the normalised input, which is the same for all tiles, so only the first tile's output is kept. */
enum { AREA_ALIGN_BYTES = 128 };
static inline int64_t sw_norm_offset(const struct sw_model *model) {
    return sw_round_up(model->rows * model->config.hidden * sw_dtype_bytes(model->shape.type), AREA_ALIGN_BYTES);
}

/* Returns the largest number of keys that a query may see, its own included. */
static inline int64_t sw_most_keys(const struct sw_model *model) {
    return model->shape.context > 0 ? model->shape.context : model->shape.seq;
}

/* Returns the offset of the values in a unit's KV cache: the keys of all positions come first, heads side by side, then
 * the values in the same layout. */
int64_t sw_cache_values_offset(const struct sw_model *model);

/* The rows of a piece of queries, keys and values that a rank which copies key-value heads computes with. A row of a
 * weight is a matrix row; a row of a bias is one element. */
struct sw_own_rows {
    int64_t first;     /* first row, within this rank's part of the tensor */
    int64_t collected; /* first row within the collected matrix of queries, keys and values */
    int64_t rows;
};

/* Returns the rows of a piece that this rank needs. kv_heads is smaller than the number of ranks, so neighbouring ranks
 * share each key-value head. The bias of queries is whole on every rank, their weight is cut. */
struct sw_own_rows sw_own_rows_of(const struct sw_model *model, enum sw_block_tensor tensor, int piece);

/* The experts of a unit: all of the block's, or a run of them. */
struct sw_expert_run {
    int64_t first, count;
};
struct sw_expert_run sw_experts_in(const struct sw_model_config *config, const struct sw_cut *cut, int64_t unit);

/* Byte offsets in what the units of a block hand on where experts are units. Forward: the normalised input, the
 * routing, and the sum of the residual and the experts' results. The block without its experts hands the residual on,
 * in the compute type; later sums are fp32, until the last unit writes the block's output at 0. The backward pass of
 * all experts reads the normalised input and the routing, so only the first output of a block is kept. Backward: the
 * gradient at the block's output, which no expert changes, the gradient at the weights, and the sum of that at the
 * normalised input, fp32. */
struct sw_handed_layout {
    int64_t normed, weight, offset, source, place, sum;
    int64_t routed_bytes; /* with the residual */
    int64_t bytes;        /* with a sum */
};
struct sw_handed_layout sw_handed_layout(const struct sw_model *model);

/* The addresses of a unit's intermediates (struct saved_layout). */
struct saved {
    float *norm1_mean, *norm1_rstd, *q_rstd, *k_rstd, *log_sum_exp, *norm2_mean, *norm2_rstd;
    char *norm1_out, *qkv, *heads, *attention_out, *residual, *norm2_out, *up, *activated;
    char *attention_result, *mlp_result, *router_logits, *expert_up;
    float *attention_result_rstd, *mlp_result_rstd;
    int32_t *expert_chosen, *expert_offset, *expert_source, *expert_place;
    float *expert_weight;
    char *shared_logits, *shared_sum;
    int32_t *shared_chosen, *shared_offset, *shared_source, *shared_place;
    float *shared_weight;
};
struct saved sw_saved_of(const struct sw_model *model, const struct sw_unit_call *call);

/* A norm over rows of the hidden size: LayerNorm or RMSNorm, by configuration. Only a LayerNorm has means and biases.
 */
struct sw_norm_call {
    int64_t rows;
    const void *scale, *bias;
    float *scale_acc, *bias_acc; /* accumulators of the gradients, in the backward pass */
    float *mean, *rstd;
};
sw_status sw_model_norm_forward(const struct sw_model *model, struct sw_stream *stream, const struct sw_norm_call *norm,
                                const void *x, void *y);
sw_status sw_model_norm_backward(const struct sw_model *model, struct sw_stream *stream,
                                 const struct sw_norm_call *norm, const void *dy, const void *x, bool add_to_dx,
                                 void *dx);

/* Returns in *out the matrix of a block's product in the compute type: in the unit's weights, as collected, or unpacked
 * into the work area, where the next call overwrites it. */
sw_status sw_block_matrix(const struct sw_model *model, const struct sw_unit_call *call, enum sw_block_tensor weight,
                          const void **out);

static inline bool sw_name_ends_with(const char *name, const char *end) {
    const size_t length = strlen(name), tail = strlen(end);
    return tail <= length && strcmp(name + length - tail, end) == 0;
}

/* Prepares a matrix product, and makes room for its scratch memory. */
static inline sw_status sw_model_prepare_product(struct sw_model *model, const struct sw_gemm *shape) {
    int64_t bytes;
    SW_TRY(sw_device_prepare_gemm(model->device, shape, &bytes));
    model->scratch_bytes = sw_max_i64(model->scratch_bytes, bytes);
    return SW_OK;
}

/* Lists the adapters of all units and prepares their products, after those of the blocks. */
sw_status sw_adapters_prepare(struct sw_model *model);
/* Returns the columns of the widest input that an adapter has. */
int64_t sw_adapters_widest_input(const struct sw_model *model);
/* Add what the adapters of a product add: to its result y, to the gradient dx at its input, and to the gradients of
 * their own tensors. Where there are none they do nothing. */
sw_status sw_adapter_forward(const struct sw_model *model, const struct sw_unit_call *call, enum linear_name name,
                             const void *x, void *y);
sw_status sw_adapter_input_gradient(const struct sw_model *model, const struct sw_unit_call *call,
                                    enum linear_name name, const void *dy, void *dx);
sw_status sw_adapter_weight_gradient(const struct sw_model *model, const struct sw_unit_call *call,
                                     enum linear_name name, const void *x, const void *dy);

/* List the adapters of experts and prepare their products; and add what those beside a matrix of the unit's experts
 * add, as above. x and dx are the sorted rows at the matrix's inputs, y and dy those at its results. matrix:
 * EXPERT_GATE, with which EXPERT_UP is joined, or EXPERT_DOWN. */
sw_status sw_expert_adapters_prepare(struct sw_model *model);
sw_status sw_expert_adapters_forward(const struct sw_model *model, const struct sw_unit_call *call,
                                     const struct saved *s, enum sw_expert_matrix matrix, const void *x, void *y);
sw_status sw_expert_adapters_input_gradient(const struct sw_model *model, const struct sw_unit_call *call,
                                            const struct saved *s, enum sw_expert_matrix matrix, const void *dy,
                                            void *dx);
sw_status sw_expert_adapters_weight_gradient(const struct sw_model *model, const struct sw_unit_call *call,
                                             const struct saved *s, enum sw_expert_matrix matrix, const void *x,
                                             const void *dy);

/* Return the bytes that a tile of a half hands on for the adapters of the next, and where they begin in its output. */
int64_t sw_adapters_handed_bytes(const struct sw_model *model, const struct sw_tile *tile);
int64_t sw_adapters_handed_offset(const struct sw_model *model);
/* Hand on what the next tile's adapters share with this one's, unless it is the last of its half. Begin and end the
 * backward pass of a tile, around which the gradients of what is shared are summed. Without adapters, and in halves
 * that are not cut, they do nothing. */
sw_status sw_adapters_hand_on(const struct sw_model *model, const struct sw_unit_call *call);
sw_status sw_adapters_begin_backward(const struct sw_model *model, const struct sw_unit_call *call);
sw_status sw_adapters_end_backward(const struct sw_model *model, const struct sw_unit_call *call);

/* Helpers that a block and its tiles share. */
sw_status sw_norm_forward(const struct sw_model *model, const struct sw_unit_call *call, enum sw_block_tensor scale,
                          const void *x, void *y, float *mean, float *rstd);
/* Compute a half from its normalised input to the input of its last product (attention output, activated values). */
sw_status sw_attend_forward(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                            const struct saved *s);
sw_status sw_mlp_forward(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                         const struct saved *s);
/* Recomputes only the derived intermediates of the attention, which need no matrix product. */
sw_status sw_attend_derive(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s);
/* Computes a linear layer. addend: the residual to add to the result; NULL: none. */
sw_status sw_linear_forward(const struct sw_model *model, const struct sw_unit_call *call, enum linear_name name,
                            enum sw_block_tensor weight, const void *x, const void *addend, void *y);
/* Compute a half's backward pass in three parts, which a tensor group runs as ops of their own so that exchanges
 * overlap. The first goes from call->grad, at the half's output, to the gradient at the result of the half's first
 * product and to dn, at its normalised input. The other two add the gradients of the last and of the first product's
 * weights. If the call recomputes intermediates, the first part also makes the MLP's activated values, which the second
 * reads. */
sw_status sw_attend_input_gradient(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s,
                                   void *product_grad, void *dn);
sw_status sw_attend_last_product(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s);
sw_status sw_attend_first_product(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                                  const void *product_grad);
sw_status sw_mlp_input_gradient(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s,
                                void *product_grad, void *dn);
sw_status sw_mlp_last_product(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s);
sw_status sw_mlp_first_product(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                               const void *product_grad);
/* Compute the shared expert of a mixture from its normalised input n: *out, the addend that the experts' results are
 * added to, which is the residual (NULL: 0), and with a shared expert its sum with that one's result, in `sum`; what
 * its backward pass needs; and from call->grad its part of the gradient at n, which is left in the work area, and the
 * gradients of its weights. Without a shared expert they do nothing else. */
sw_status sw_shared_forward(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                            const void *residual, const struct saved *s, void *sum, const void **out);
sw_status sw_shared_recompute(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                              const struct saved *s);
sw_status sw_shared_backward(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                             const struct saved *s);
/* Compute the three parts of that backward pass for a tensor group, like sw_mlp_input_gradient and those after it. Each
 * rank has a part of the gradient at the gate's logits, and so of all that follows from it. */
sw_status sw_shared_input_gradient(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s,
                                   void *product_grad);
sw_status sw_shared_last_product(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s);
sw_status sw_shared_first_product(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                                  const void *product_grad);
/* Compute all three parts. The gradient at the first product's result is in the work area. */
sw_status sw_attend_backward(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                             const struct saved *s, void *dn);
sw_status sw_mlp_backward(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                          const struct saved *s, void *dn);

/* Prepares the products of experts, if the model has some. */
sw_status sw_experts_prepare(struct sw_model *model);
/* Returns the number of pairs of a row and one of its experts. */
static inline int64_t sw_experts_pairs(const struct sw_model *model) {
    return model->rows * model->config.chosen_experts;
}
/* Returns the pairs of this many experts under even routing, which prices assume. */
static inline int64_t sw_experts_likely_rows(const struct sw_model *model, int64_t experts) {
    return sw_div_up(sw_experts_pairs(model) * experts, model->config.experts);
}
/* Returns the offset of the gradient at the router's logits in that at the results of the first products: those of the
 * experts come first. */
static inline int64_t sw_router_grad_offset(const struct sw_model *model) {
    return sw_round_up(sw_experts_pairs(model) * 2 * model->widths.expert_ffn * sw_dtype_bytes(model->shape.type),
                       AREA_ALIGN_BYTES);
}
/* Return the offsets of a tensor group's gradients at the result of a shared expert's first product, and at the logits
 * of its gate, in the gradient at the results of the first products: those of the router's logits come first. */
static inline int64_t sw_shared_grad_offset(const struct sw_model *model) {
    return sw_router_grad_offset(model) +
           sw_round_up(model->rows * model->config.experts * sw_dtype_bytes(model->shape.type), AREA_ALIGN_BYTES);
}
static inline int64_t sw_shared_logits_grad_offset(const struct sw_model *model) {
    return sw_shared_grad_offset(model) +
           sw_round_up(model->rows * model->widths.up * sw_dtype_bytes(model->shape.type), AREA_ALIGN_BYTES);
}
/* Compute the MLP of a mixture of experts. The first goes from the normalised input to the results of the up products;
 * the second to call->out, with `addend`, the residual, unless it is NULL; the third from call->grad, at the output, to
 * dn, at the normalised input, and adds the gradients of all weights. */
sw_status sw_experts_up(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                        const struct saved *s);
sw_status sw_experts_forward(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                             const void *addend, const struct saved *s);
sw_status sw_experts_backward(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                              const struct saved *s, void *dn);
/* Compute the three parts of the third for a tensor group, like sw_mlp_input_gradient and those after it. The router's
 * matrix belongs to the first products. Each rank has a part of the gradient at the weights, and so of all that follows
 * from it: the group's sums are whole. */
sw_status sw_experts_input_gradient(const struct sw_model *model, const struct sw_unit_call *call,
                                    const struct saved *s, void *product_grad, void *dn);
sw_status sw_experts_last_product(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s);
sw_status sw_experts_first_product(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                                   const struct saved *s, const void *product_grad);

/* The passes of a block without its experts, and of a unit of experts. */
sw_status sw_routed_forward(struct sw_model *model, const struct sw_unit_call *call);
sw_status sw_routed_recompute(struct sw_model *model, const struct sw_unit_call *call);
sw_status sw_routed_backward(struct sw_model *model, const struct sw_unit_call *call);
sw_status sw_expert_unit_forward(struct sw_model *model, const struct sw_unit_call *call);
sw_status sw_expert_unit_recompute(struct sw_model *model, const struct sw_unit_call *call);
sw_status sw_expert_unit_backward(struct sw_model *model, const struct sw_unit_call *call);

/* Computes the routing of the normalised input `n`. */
sw_status sw_experts_route(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                           const struct saved *s);
/* Computes the results of the up products of the unit's experts. */
sw_status sw_experts_up_products(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                                 const struct saved *s);
/* Continues to the results of the down products: *out, in the work area, at the places of the unit's pairs. */
sw_status sw_experts_results(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s,
                             void **out);
/* Goes from call->grad to the gradient at the weights of the unit's pairs and to that at the normalised input: *out, in
 * the work area, at the places of these pairs. Adds the gradients of the experts' matrices. */
sw_status sw_experts_part_backward(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                                   const struct saved *s, float *weight_grad, void **out);
/* Goes from the gradient at the weights of all pairs to the router's part of dn. Adds the gradient of its matrix. */
sw_status sw_experts_router_backward(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                                     const struct saved *s, const float *weight_grad, void *dn);
/* Returns the places of the pairs of a unit's experts. */
struct sw_row_run sw_experts_places(const struct sw_model *model, const struct sw_unit_call *call,
                                    const struct saved *s);
/* Adds the layer's routing to the tally. Only the forward pass of training does it, so that a routing that is computed
 * again is not counted again. */
sw_status sw_experts_count(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s);
/* Returns the elements of the experts' matrices that are unpacked from a quantized base at once. */
int64_t sw_experts_unpacked_elems(const struct sw_model *model);
/* Returns the doubles of a step's tally; 0: the model keeps none. */
int64_t sw_experts_tally(const struct sw_model *model);
/* Tells whether the router has a loss of its own. */
bool sw_experts_have_loss(const struct sw_model *model);

/* Replaces the input of the first layer, which is the embedding's rows, by these rows normalised: all of them and this
 * rank's own, as far as the call has them. Other units keep theirs. */
sw_status sw_enter_first_layer(const struct sw_model *model, const struct sw_unit_call *call, struct sw_unit_call *own);
/* Turns the gradient at `rows` normalised rows into that at the rows of the embedding, `in`, in the first layer, and
 * adds the gradients of the norm. */
sw_status sw_leave_first_layer(const struct sw_model *model, const struct sw_unit_call *call, const void *in,
                               int64_t rows, void *grad);

/* Adds the residual of this rank's own rows to a half's output, of which it may not have the others. */
sw_status sw_rank_add_own_rows(const struct sw_model *model, const struct sw_unit_call *call);

/* The passes of a block whose experts the ranks of a group share out (engine.h). */
sw_status sw_group_send(struct sw_model *model, const struct sw_unit_call *call);
sw_status sw_group_forward(struct sw_model *model, const struct sw_unit_call *call);
sw_status sw_group_recall(struct sw_model *model, const struct sw_unit_call *call);
sw_status sw_group_backward(struct sw_model *model, const struct sw_unit_call *call);
sw_status sw_group_backward_rest(struct sw_model *model, const struct sw_unit_call *call);
sw_status sw_group_recompute(struct sw_model *model, const struct sw_unit_call *call);

/* Tells whether a block's backward pass leaves the gradients of its products' weights to calls of their own. */
bool sw_model_splits_backward(const struct sw_model *model);
/* Returns the bytes of the gradient at the result of a block's first product. */
int64_t sw_product_bytes(const struct sw_model *model);
/* Returns the bytes of it that the plan has, for units whose backward pass is split; 0: there are none. */
int64_t sw_split_product_bytes(const struct sw_model *model);

/* Compute a block up to its MLP's normalised input. The second computes again only what needs no matrix product. */
sw_status sw_block_fill_attention(struct sw_model *model, const struct sw_unit_call *call, const struct saved *s);
sw_status sw_block_fill_derived(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s);
/* Computes the backward pass of a block from dn, the gradient at its MLP's normalised input. dn may be the `narrow`
 * work area. */
sw_status sw_block_attention_backward(struct sw_model *model, const struct sw_unit_call *call, const struct saved *s,
                                      const void *dn);
sw_status sw_tile_forward(struct sw_model *model, const struct sw_unit_call *call);
sw_status sw_tile_recompute(struct sw_model *model, const struct sw_unit_call *call);
sw_status sw_tile_backward(struct sw_model *model, const struct sw_unit_call *call);
sw_status sw_block_forward(struct sw_model *model, const struct sw_unit_call *call);
sw_status sw_block_recompute(struct sw_model *model, const struct sw_unit_call *call);
sw_status sw_block_backward(struct sw_model *model, const struct sw_unit_call *call);
sw_status sw_embedding_unit_forward(struct sw_model *model, const struct sw_unit_call *call);
/* Byte offsets of the embedding rows gathered for a micro-batch: the token table's rows in the order of the tokens (at
 * 0), the rows of positions 0 to seq - 1, and the numbers of the gathered token rows, by which they are looked up like
 * rows of a whole table. */
struct gathered_layout {
    int64_t positions, numbers;
    int64_t bytes;
};
struct gathered_layout sw_gathered_layout(const struct sw_model *model);
void sw_embedding_gather(struct sw_model *model, const struct sw_gather_call *call);
sw_status sw_embedding_unit_backward(struct sw_model *model, const struct sw_unit_call *call);
/* A tile of the head's rows: their inputs and gradients, and the areas that all tiles share. */
struct head_tile {
    int64_t first, rows;
    const int32_t *targets;
    const void *hidden;
    void *norm_grad, *scratch;
    const char *table;
    float *table_acc, *logits, *losses, *largest, *sums, *target_logits, *hidden_grad;
    const float *row_scale; /* NULL: all rows count alike */
    void *logits_grad;
};
/* Returns the tile that begins at a row. */
struct head_tile sw_head_tile_at(const struct sw_model *model, const struct sw_unit_call *call, int64_t first,
                                 bool train);
/* Compute the logits of columns [col, col + cols) of this rank's output table, and, from the gradient of these logits,
 * the gradients of the hidden rows and, unless the table is frozen, of these columns. */
sw_status sw_head_tile_logits(const struct sw_model *model, const struct sw_unit_call *call, const struct head_tile *t,
                              int64_t col, int64_t cols);
sw_status sw_head_tile_gradients(const struct sw_model *model, const struct sw_unit_call *call,
                                 const struct head_tile *t, int64_t col, int64_t cols);
/* Compute the sums of all sequences of pairs from the losses of all rows, and in training the scales of these rows; and
 * copy the sums to where the call wants its losses. */
sw_status sw_head_preference(const struct sw_model *model, const struct sw_unit_call *call, bool train);
sw_status sw_head_pair_losses(const struct sw_model *model, const struct sw_unit_call *call);
/* Returns the columns of the tile that begins at `col`. */
int64_t sw_head_cols_at(const struct sw_model *model, int64_t col);
/* Return a norm without its input and outputs: the final norm, or the norm of a half of a block. */
struct sw_norm_call sw_final_norm_call(const struct sw_model *model, const struct sw_unit_call *call, int64_t rows);
struct sw_norm_call sw_block_norm_call(const struct sw_model *model, const struct sw_unit_call *call,
                                       enum sw_block_tensor scale);
/* Sets the accumulators of a norm. */
void sw_final_norm_accumulate(const struct sw_model *model, const struct sw_unit_call *call, struct sw_norm_call *norm);
void sw_block_norm_accumulate(const struct sw_model *model, const struct sw_unit_call *call, enum sw_block_tensor scale,
                              struct sw_norm_call *norm);
/* Normalises the first `rows` rows of `in` for the head, into the work area. */
sw_status sw_final_norm(struct sw_model *model, const struct sw_unit_call *call, int64_t rows, const void *in);
sw_status sw_head_train(struct sw_model *model, const struct sw_unit_call *call);
sw_status sw_head_loss(struct sw_model *model, const struct sw_unit_call *call);
sw_status sw_head_logits(struct sw_model *model, const struct sw_unit_call *call);

/* Return the bytes of one table of rotary positions and of all, and the number of the table that a layer uses. */
int64_t sw_rope_table_bytes(const struct sw_model *model);
int64_t sw_rope_bytes(const struct sw_model *model);
int sw_rope_table_of(const struct sw_model_config *config, int64_t layer);
/* Fills the table that sw_rotate reads: for each of `seq` positions the cosines and then the sines of head_dim/2
 * angles, scaled as the configuration says. */
void sw_rope_table(const struct sw_model_config *config, int64_t seq, float *table);

#endif
