/* Models of a family in any size: the proportions of one of its models, with other layers. */
#ifndef SW_MODEL_HF_SCALE_H
#define SW_MODEL_HF_SCALE_H

#include "model/hf/config.h"

/* Returns the model that has a family's proportions, by its index; NULL after the last family. A preset where there is
 * one: the family's largest. */
const struct sw_preset *sw_proportions_at(int index);

/* Makes a model of `layers` layers that is as wide for its depth as `base`: the heads grow with the layers, in whole
 * groups of those that share keys and values, and the hidden size and the inner layer of the MLP grow with the heads.
 * A head's size, the vocabulary and the positions stay. Fails with SW_ERR_ARG where the model would be beyond the
 * limits of config.h. */
sw_status sw_config_scale(const struct sw_model_config *base, int64_t layers, struct sw_model_config *out);

#endif
