/* Merges adapters into their matrices: W + scale·B·A, for programs and exports that know no adapters. */
#ifndef SW_MODEL_MERGE_H
#define SW_MODEL_MERGE_H

#include "core/status.h"
#include "model/hf/config.h"
#include "model/lora.h"
#include "offload/engine/engine.h"
#include "offload/plan/unit.h"

struct sw_merge;

/* The units with adapters and their weights, which must outlive the merge. */
struct sw_merge_spec {
    const struct sw_model_config *config;
    const struct sw_lora *lora;
    const struct sw_units *units;
    struct sw_load load;
};

/* Opens a merge. Holds the adapters of one block at a time. The caller closes it. */
sw_status sw_merge_open(const struct sw_merge_spec *spec, struct sw_merge **out);
void sw_merge_close(struct sw_merge *merge);

/* Return the units of the model without adapters, and their weights, valid until the merge is closed. Sums are in
 * fp32. */
const struct sw_units *sw_merge_units(const struct sw_merge *merge);
struct sw_load sw_merge_load(struct sw_merge *merge);

#endif
