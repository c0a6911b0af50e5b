/* Computes the logits after the last token of a growing text, from its new tokens and the KV cache. */
#ifndef SW_RUN_INFERENCE_DECODER_H
#define SW_RUN_INFERENCE_DECODER_H

#include "core/status.h"
#include "run/inference/inference.h"

#include <stdint.h>

struct sw_decoder {
    struct sw_inference inference;
    int64_t context, pass_tokens; /* tokens that the cache holds, and that one pass computes */
    int64_t first, kept;          /* tokens [first, first + kept) of the text have their keys and values in the cache */
};

struct sw_decoder_spec {
    struct sw_source *source; /* must outlive the decoder */
    struct sw_ranks *ranks;   /* one tensor group, whose ranks call alike; NULL: a process alone */
    const struct sw_inference_options *options;
    int64_t prompt_tokens, most_tokens; /* length of the text at the start, and at most */
};

/* Opens a decoder into *out, which must be zero. The caller closes it, also after a failure. */
sw_status sw_decoder_open(const struct sw_decoder_spec *spec, struct sw_decoder *out);
void sw_decoder_close(struct sw_decoder *decoder);

/* Returns how many of the last tokens stay in the context when a text outgrows it: half of the positions, so that this
 * happens seldom. */
int64_t sw_decoder_left(int64_t positions);

/* Computes the logits after the last of `length` tokens. A later call may not have fewer. If the text has outgrown the
 * model's positions, only its last tokens stay, and their keys are computed anew, because positions count from the
 * first token of the context. */
sw_status sw_decoder_logits(struct sw_decoder *decoder, const int32_t *text, int64_t length, float *logits);

#endif
