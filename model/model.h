/* A model on a device: its units, the memory that its arithmetic needs, and the arithmetic itself, unit by unit. */
#ifndef SW_MODEL_MODEL_H
#define SW_MODEL_MODEL_H

#include "core/dtype.h"
#include "kernels/device.h"
#include "model/freeze.h"
#include "model/hf/config.h"
#include "model/tokens.h"
#include "offload/engine/engine.h"
#include "offload/plan/unit.h"

struct sw_model;

struct sw_model_shape {
    sw_dtype type;
    int64_t batch; /* sequences of a micro-batch */
    int64_t seq;
    /* Units per half of a block (attention, MLP), or per rank's part of a half. 0 or 1: not cut, and without a tensor
     * group the whole block is one unit. */
    int64_t tiles;
    /* Tensor parallelism: the size of the tensor group and this rank's number in it, which decide the part of each
     * matrix that the units have. 0 or 1 ranks: the units are whole. */
    int tensor_ranks, tensor_rank;
    /* Expert parallelism: the size of the group whose ranks share out the experts, and this rank's number in it. 0 or 1
     * ranks: each rank has all experts. Not together with a tensor group. */
    int expert_ranks, expert_rank;
    sw_optimizer_format optimizer; /* format of the units' optimizer state; with fp8 not SW_OPTIMIZER_FP32 */
    /* Products of blocks multiply 8-bit operands, and the weights of blocks are stored in 8 bits (struct sw_units).
     * Requires type SW_BF16. */
    bool fp8;
    /* Tokens that the KV cache holds; 0: no cache. With a cache the model computes only logits, of one sequence, in
     * passes of `seq` tokens or one token. */
    int64_t context;
    bool forward_only; /* no backward pass, so nothing is kept for one */
    /* Bytes of the largest tile of the head's logits and their gradient; 0: the device chooses. */
    int64_t head_tile_bytes;
    bool head_logits_apart; /* lays out the head's tiles and rows as on a GPU (model_shapes.c) */
    bool documents;         /* tokens come with the starts of documents; attention does not cross them */
    /* β of direct preference optimization (sw_preference in kernels/ops.h). The sequences of a micro-batch are pairs
     * then, chosen before rejected, so `batch` is even. 0: the loss is that of each token. */
    double dpo_beta;
    /* Factors of the router's losses, with experts (sw_tally_routing in kernels/ops.h); 0: the loss is not there. Where
     * one is not 0, `micro_batches` is the most that a step has. */
    double router_aux_loss, router_z_loss;
    int64_t micro_batches;
    struct sw_tuning tuning; /* what is trained (freeze.h); its texts are borrowed until the model is made */
};

/* Returns the units of a model, laid out for this optimizer state, with tensors named as transformers saves them. With
 * tiles > 1 a block is 2·tiles units: its attention cut by heads, then its MLP cut by columns of the inner layer. The
 * tensors that `tuning` freezes (freeze.h) are frozen, and those that it adds are there; NULL: all of the model is
 * trained. The caller destroys the units. */
sw_status sw_model_units(const struct sw_model_config *config, int64_t tiles, sw_optimizer_format optimizer,
                         const struct sw_tuning *tuning, struct sw_units **out);

/* Returns the units of one rank of a tensor group (Shoeybi et al., arXiv 1909.08053). The rank has some heads of each
 * attention and some columns of each MLP, each half in `tiles` units; some rows of the vocabulary in the embedding and
 * the output table; and some rows of the positions. Norms, and biases that follow a sum over the ranks, are whole
 * (`replicated` in struct sw_part). With more ranks than key-value heads, the weights of keys and values and the biases
 * of the same tensor are whole too. `tuning` is as for sw_model_units; lora.h says which part of an adapter a rank has.
 * Fails with SW_ERR_ARG if the model's sizes cannot be divided like this; the message names the nearest number of
 * ranks, or the numbers of tiles, that fit.
 *
 * With experts > 1 a group is of so many members that share out the experts. If members are ranks, they share out
 * nothing else: each has a run of experts whole, and all other tensors are replicated. A block is then two units: all
 * but router and experts, which all ranks of a job share as they do embedding and head, and these. With `joined` it is
 * one unit, as in runs of older versions: such units are only read. If members are tensor groups, of ranks / experts
 * neighbours, each rank has what it has in its tensor group, but of the experts only those of its member; router and
 * norm before the experts are in their unit. */
struct sw_model_group {
    int ranks, rank;
    int experts; /* 0 or 1: a tensor group */
    bool joined;
};
sw_status sw_model_group_units(const struct sw_model_config *config, const struct sw_model_group *group, int64_t tiles,
                               sw_optimizer_format optimizer, const struct sw_tuning *tuning, struct sw_units **out);
/* Returns the units of a rank of a tensor group. */
sw_status sw_model_rank_units(const struct sw_model_config *config, int ranks, int rank, int64_t tiles,
                              sw_optimizer_format optimizer, const struct sw_tuning *tuning, struct sw_units **out);
/* Lets each `experts` neighbouring experts of a block be a unit, behind one of the rest of the block; 0: blocks are one
 * unit. Fails if the model has no experts, or another number than these divide. */
sw_status sw_model_group_experts(struct sw_model_config *config, int64_t experts);
/* Returns the number of units that the experts of a block are; 0: they are in one unit with all of the block. */
int64_t sw_model_expert_units(const struct sw_model_config *config);
/* Tells whether each rank's part of every layer can be cut into this many tiles. The model must be divisible among
 * `ranks`. */
bool sw_model_tiles_fit(const struct sw_model_config *config, int ranks, int64_t tiles);

/* Prepares the model's arithmetic on a device, with every matrix product of these shapes. The device must outlive the
 * model. */
sw_status sw_model_create(const struct sw_model_config *config, const struct sw_model_shape *shape,
                          struct sw_device *device, struct sw_model **out);
void sw_model_destroy(struct sw_model *model);

const struct sw_units *sw_model_get_units(const struct sw_model *model);
/* Returns the units, whose tensors' decay and learning rate may be changed until there is a plan. */
struct sw_units *sw_model_tunable_units(struct sw_model *model);
const struct sw_model_config *sw_model_get_config(const struct sw_model *model);
sw_dtype sw_model_type(const struct sw_model *model);
struct sw_unit_ops sw_model_ops(struct sw_model *model);

/* Returns the parts of a micro-batch's tokens, which sw_engine_tokens gives as one array. */
struct sw_tokens sw_model_tokens(const struct sw_model *model, int32_t *tokens);

/* Returns the log-probabilities of a micro-batch's sequences by the reference model, one entry per sequence, which lie
 * behind the other parts of its tokens. NaN at a chosen sequence: there is no such pair.
 * NULL: the model does not train on pairs. */
double *sw_model_reference(const struct sw_model *model, int32_t *tokens);

/* The facts of a model that a plan needs, in bytes per micro-batch. The costs of units belong to the model and leave
 * floating-point operations out. */
struct sw_model_bytes {
    int64_t token, work;
    int64_t pair_sequences;          /* sequences of a micro-batch of pairs; 0: they are no pairs */
    int64_t tally;                   /* doubles (sw_model_tally); 0: the model keeps none */
    int64_t gathered;                /* only rows of the embedding; 0: the whole table is needed, because it is tied */
    const struct sw_unit_cost *cost; /* one entry per unit */
    /* For tensor groups: the gradient at the result of a block's first product (0: blocks are in tiles), one rank's
     * softmax record, and the rows of the hidden state. */
    int64_t product, softmax, rows;
    int64_t muon_gpu; /* scratch of Muon's updates on a GPU; 0: the device is a CPU, or there are none */
    int64_t sent;     /* rows of the hidden state that a rank gives to its expert group; 0: there is none */
};
struct sw_model_bytes sw_model_bytes(const struct sw_model *model);

/* The tally of a training step with experts, in doubles: for each layer the rows that went to each of its experts; then
 * the balance and the z-loss, summed over micro-batches, or 0 where they are not there. */
struct sw_model_tally {
    int64_t layers, experts;
    const double *routed; /* [layers, experts] */
    double aux_loss, z_loss;
};
struct sw_model_tally sw_model_tally(const struct sw_model *model, const double *tally);

/* A matrix product of training: its shape, and how often the whole model runs it for one micro-batch, without
 * recomputation. */
struct sw_model_product {
    const char *layer, *pass; /* such as "qkv" and "weight gradient" */
    bool head;
    struct sw_gemm shape;
    int64_t times;
};
enum { SW_MODEL_MAX_PRODUCTS = 24 };
/* Lists the matrix products of a training step and returns their number. */
int sw_model_products(const struct sw_model *model, struct sw_model_product out[SW_MODEL_MAX_PRODUCTS]);

/* Returns the number of parameters, of all `parameters` of a model, that one token goes through: all but those of the
 * experts that are not chosen, and of their adapters. units: those of the model, or of one rank; NULL: no adapters. */
int64_t sw_model_active_parameters(const struct sw_model_config *config, const struct sw_units *units,
                                   int64_t parameters);

/* Returns the floating-point operations of a training step per token, counted as usual: 6 for each parameter that
 * multiplies, of experts the chosen ones', and 6·layers·hidden·seq for causal attention, less with a window.
 * Recomputation is not counted. */
double sw_model_flops_per_token(const struct sw_model_config *config, int64_t seq);

/* Fills random weights as GPT-2 is initialised: normal with init_std, divided by sqrt(2·layers) for projections into
 * the residual; norms are 1 and biases 0. Values depend only on the seed, the tensor's name and the element. A
 * sw_fill_function whose context is a struct sw_model_init. */
struct sw_model_init {
    const struct sw_model_config *config;
    const struct sw_units *units;
    uint64_t seed;
};
sw_status sw_model_fill_random(void *context, int64_t unit, int64_t first, int64_t count, float *out);

#endif
