/* Chooses the next token from logits. */
#ifndef SW_RUN_INFERENCE_SAMPLER_H
#define SW_RUN_INFERENCE_SAMPLER_H

#include "core/status.h"

#include <stdint.h>

struct sw_sampler_spec {
    int64_t vocab;
    double temperature; /* divides the logits; 0: always choose the most likely token */
    int64_t top_k;      /* keep this many most likely tokens, and those equal to the last of them; 0: all */
    double top_p;       /* then keep the most likely tokens that together reach this share of the probability; 1: all */
    double min_p;       /* then keep tokens at least this share as probable as the most likely one; 0: all */
    uint64_t seed;
};

struct sw_sampler;
sw_status sw_sampler_create(const struct sw_sampler_spec *spec, struct sw_sampler **out);
void sw_sampler_destroy(struct sw_sampler *sampler);

/* Returns the token for a position of the text. The same logits, seed and position give the same token. */
int32_t sw_sampler_choose(struct sw_sampler *sampler, const float *logits, uint64_t position);

#endif
