/* Declarations that the reader and the writer of adapters share. */
#ifndef SW_MODEL_PEFT_PRIVATE_H
#define SW_MODEL_PEFT_PRIVATE_H

#include "model/model_private.h"
#include "model/peft.h"
#include "offload/plan/unit.h"

#include <jansson.h>
#include <stdbool.h>

#define SW_PEFT_PREFIX "base_model.model."

/* PEFT adapts a module with a matrix, or a parameter that has the matrices of all experts of a layer. */
typedef enum { SW_PEFT_MODULE, SW_PEFT_PARAMETER } sw_peft_kind;

/* Tells whether a tensor may have an adapter of that kind: it is a block's, and no adapter itself. */
bool sw_peft_may_adapt(sw_peft_kind kind, const struct sw_units *units, int64_t unit, const struct sw_tensor *tensor);

/* PEFT wraps the module of the experts once for each of its parameters that it adapts. The tensors of the outer adapter
 * are called after the module, and those of the inner one have this part in their names. If both parameters of gpt-oss
 * are adapted, that of gate and up is the inner one. */
#define SW_PEFT_INNER ".base_layer"

/* Lists what is adapted of one kind, as shortly as PEFT can tell it from the others: by its last part, by its name
 * within the block, or by its whole name. `has` says whether something of that name (sw_lora_adapted) is adapted. The
 * caller releases the list; NULL: there is no memory. */
json_t *sw_peft_targets(sw_peft_kind kind, const struct sw_units *units, const struct sw_model_config *config,
                        bool (*has)(const void *context, const char *module), const void *context);

/* Returns element `elem` of a tensor B of the adapters of all experts, [experts, outputs, rank], as PEFT has it:
 * [outputs, rank, experts]. */
static inline int64_t sw_peft_b_elem(const struct sw_tensor *b, int64_t elem) {
    const int64_t of_expert = b->dim[1] * b->dim[2];
    return elem % of_expert * b->dim[0] + elem / of_expert;
}

#endif
