/* Checkpoints that keep the matrices of all experts of a layer in two tensors, as transformers does in memory:
 * "mlp.experts.gate_up_proj" [experts, 2·inner, hidden], where an expert's gates come before its values, and
 * "mlp.experts.down_proj" [experts, hidden, inner]. */
#ifndef SW_MODEL_HF_JOINED_EXPERTS_H
#define SW_MODEL_HF_JOINED_EXPERTS_H

#include "offload/plan/unit.h"

#include <stdbool.h>
#include <stdint.h>

/* Where a tensor of the model lies in such a checkpoint. */
struct sw_joined_tensor {
    char name[SW_TENSOR_NAME_CHARS];
    int64_t parts; /* parts of the joined tensor that an expert has; 0: the tensor is whole under that name */
    int64_t part;  /* number of the tensor's part, counted over all experts */
};

/* Tells whether a tensor of this name may lie in a joined one, or have another name beside joined ones. */
bool sw_joined_tensor_of(const char *name, struct sw_joined_tensor *out);
/* Forms of the names that families give to their experts. */
enum { SW_EXPERT_FORMS = 2 };
/* Writes the name, in one form, of the first tensor of the model that lies in a joined one; false: `joined` is not the
 * name of a joined tensor. */
bool sw_joined_tensor_first(const char *joined, int form, char out[SW_TENSOR_NAME_CHARS]);

#endif
