/* LoRA: low-rank adapters, which are trained, beside matrices of the model, which are frozen (Hu et al., arXiv
 * 2106.09685).
 *
 * Beside a matrix W of a block, an adapter has A [rank, inputs] and B [outputs, rank], and the product is
 * y = W·x + scale·B·A·x; in training steps with dropout A multiplies a part of x. They are tensors of the block's unit,
 * named as PEFT names them, without its prefix: the base tensor's name with ".lora_A.weight" and ".lora_B.weight" in
 * place of ".weight". A checkpoint of the model does not have them (`added` of struct sw_tensor). A matrix that a
 * checkpoint keeps in pieces (queries, keys and values; gates and values of the inner layer) has an adapter for each,
 * and so has each matrix of an expert. Beside a tensor of the matrices of all experts of a layer, A is [experts, rank,
 * inputs] and B [experts, outputs, rank].
 */
#ifndef SW_MODEL_LORA_H
#define SW_MODEL_LORA_H

#include "core/status.h"
#include "model/hf/config.h"
#include "offload/engine/engine.h"
#include "offload/plan/unit.h"

#include <stdbool.h>
#include <stdint.h>

#define SW_LORA_A ".lora_A.weight"
#define SW_LORA_B ".lora_B.weight"

struct sw_lora {
    int64_t rank;         /* 0: there are no adapters */
    double alpha;         /* the scale is alpha / rank; 0: 2·rank */
    bool rank_stabilized; /* the scale is alpha / sqrt(rank) (rsLoRA, arXiv 2312.03732) */
    double dropout;       /* the fraction of each adapter's input that a training step drops: at least 0, below 1 */
    /* The matrices that get an adapter: SW_LORA_ALL, SW_LORA_ATTENTION, SW_LORA_MLP, SW_LORA_EXPERTS, or modules, with
     * commas between them: names or their last parts, as in q_proj,v_proj, or patterns of whole names (fnmatch). NULL:
     * SW_LORA_ALL. Of a mixture, the first has those of all experts, as the last two do, and never the router. */
    const char *targets;
    /* Tensors of the model that are trained as well, named in the same way, as in lm_head; NULL: none. */
    const char *modules_to_save;
};
#define SW_LORA_ALL "all"
#define SW_LORA_ATTENTION "attention"
#define SW_LORA_MLP "mlp"
#define SW_LORA_EXPERTS "experts"

enum { SW_LORA_MOST_RANK = 1024 };

/* Returns the factor of B·A. */
double sw_lora_scale(const struct sw_lora *lora);

/* Refuses texts that name nothing in any model, and other members without a rank. */
sw_status sw_lora_check(const struct sw_lora *lora);

/* Adds the adapters' tensors to the blocks of units that are not sealed, and freezes all other tensors but
 * modules_to_save. Beside a matrix whose outputs are cut among the ranks of a tensor group (`group`; Shoeybi et al.,
 * arXiv 1909.08053) and their tiles, the rows of B are cut, and every rank has A; beside one whose inputs are cut, the
 * columns of A are cut, and every rank has B. Of a rank's tiles the first of each half has what is not cut. Refuses
 * names that no matrix or tensor of the model has. */
sw_status sw_lora_add(const struct sw_lora *lora, const struct sw_model_config *config, bool group, int64_t tiles,
                      struct sw_units *units);

/* Writes the name of a tensor's module: all but its last part. */
void sw_lora_module(const char *tensor, char module[SW_TENSOR_NAME_CHARS]);
/* Writes the common beginning of the names of the adapter beside a matrix: the matrix's name without ".weight". A
 * tensor that has the matrices of all experts of a layer has no such ending, and its module has several of them. */
void sw_lora_adapted(const char *matrix, char adapted[SW_TENSOR_NAME_CHARS]);
/* Returns the index in a unit of a factor (SW_LORA_A or SW_LORA_B) of the adapter beside a matrix of this name; -1: the
 * unit does not have it. */
int sw_lora_factor(const struct sw_unit *unit, const char *matrix, const char *factor);

/* Returns the stream of core/rng.h from which the first values of a tensor A are drawn. */
uint64_t sw_lora_stream(const struct sw_tensor *tensor);

/* Fills tensors that are no adapters from `base`, and initialises the adapters as PEFT does: A uniform in
 * ±1/sqrt(inputs) (Kaiming's, with a = sqrt(5)), B zero. Values of A depend only on the seed, the tensor's name and the
 * element. */
struct sw_lora_init {
    const struct sw_units *units;
    uint64_t seed;
    struct sw_load base;
};
/* Returns the filled weights. `init` must live as long. */
struct sw_load sw_lora_load(struct sw_lora_init *init);

#endif
