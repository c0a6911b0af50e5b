/* The angles of rotary positions. */
#ifndef SW_MODEL_ROPE_H
#define SW_MODEL_ROPE_H

#include "model/hf/config.h"

/* Fills the table that sw_rotate reads: for each of `seq` positions the cosines and then the sines of head_dim/2
 * angles, scaled as the configuration says. */
void sw_rope_table(const struct sw_model_config *config, int64_t seq, float *table);

#endif
