/* A model on a device: its units, the memory that its arithmetic needs, and the arithmetic itself, unit by unit. */
#ifndef SW_TRAIN_MODEL_MODEL_H
#define SW_TRAIN_MODEL_MODEL_H

#include "core/dtype.h"
#include "kernels/device.h"
#include "offload/engine/engine.h"
#include "offload/plan/unit.h"
#include "train/hf/config.h"
#include "train/model/tokens.h"

struct sw_model;

struct sw_model_shape {
    sw_dtype type;
    int64_t batch; /* sequences of a micro-batch */
    int64_t seq;
    int64_t tiles; /* units that each half of a block is cut into; 0 and 1: a block is one unit */
    /* Where it is not 0, logits alone are computed: of one sequence of up to so many tokens, in passes of `seq` or one
     * token, which keep their keys and values for each other. */
    int64_t context;
    bool forward_only;       /* nothing goes backward */
    int64_t head_tile_bytes; /* largest tile of the head's logits and their gradient; 0: as fits its arithmetic */
    bool head_logits_apart;  /* the head's tiles are laid out as on a GPU (head_tiles.c) */
    bool documents;          /* sequences are packed: their tokens come with where documents begin */
};

/* The units of a model, tensors named as transformers saves them. With tiles > 1 a block is 2·tiles units: its
 * attention by heads, then its MLP by columns of the inner layer. The caller destroys them. */
sw_status sw_model_units(const struct sw_model_config *config, int64_t tiles, struct sw_units **out);

/* Makes the model's arithmetic ready on a device, which must outlive it: every matrix product of these shapes is
 * prepared. */
sw_status sw_model_create(const struct sw_model_config *config, const struct sw_model_shape *shape,
                          struct sw_device *device, struct sw_model **out);
void sw_model_destroy(struct sw_model *model);

const struct sw_units *sw_model_get_units(const struct sw_model *model);
const struct sw_model_config *sw_model_get_config(const struct sw_model *model);
sw_dtype sw_model_type(const struct sw_model *model);
struct sw_unit_ops sw_model_ops(struct sw_model *model);

/* The parts of a micro-batch's tokens, as sw_engine_tokens has them. */
struct sw_tokens sw_model_tokens(const struct sw_model *model, int32_t *tokens);

/* What a plan needs to know: bytes, of each unit boundary, saved, derived and cache, and whose input the backward pass
 * shares; valid as long as the model. */
struct sw_model_bytes {
    int64_t token, work, gathered; /* gathered: 0 where a tied table must be whole */
    const int64_t *boundary, *saved, *derived, *cache;
    const bool *shares_input;
};
struct sw_model_bytes sw_model_bytes(const struct sw_model *model);

/* A matrix product of training: its shape, and how often one micro-batch runs it forward and backward in the whole
 * model, recomputation not counted. */
struct sw_model_product {
    const char *layer, *pass; /* "qkv", "weight gradient" */
    bool head;
    struct sw_gemm shape;
    int64_t times;
};
enum { SW_MODEL_MAX_PRODUCTS = 24 };
/* Lists them and returns how many there are. */
int sw_model_products(const struct sw_model *model, struct sw_model_product out[SW_MODEL_MAX_PRODUCTS]);

/* Floating-point operations of a training step a token, as the field counts them: 6 a parameter that multiplies, and
 * 6·layers·hidden·seq for causal attention, less where it has a window; recomputation is not counted. */
double sw_model_flops_per_token(const struct sw_model_config *config, int64_t seq);

/* Fresh weights as GPT-2 is initialised: normal with init_std, projections into the residual over sqrt(2·layers), norms
 * 1, biases 0. A sw_fill_function; context is a struct sw_model_init. Values depend on seed and place only. */
struct sw_model_init {
    const struct sw_model_config *config;
    const struct sw_units *units;
    uint64_t seed;
};
sw_status sw_model_fill_random(void *context, int64_t unit, int64_t first, int64_t count, float *out);

#endif
