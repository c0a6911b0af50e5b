/* A text that grows: the logits after its last token, computed from the tokens that are new. */
#ifndef SW_TRAIN_RUN_DECODER_H
#define SW_TRAIN_RUN_DECODER_H

#include "core/status.h"
#include "train/run/inference.h"

#include <stdint.h>

struct sw_decoder {
    struct sw_inference inference;
    int64_t context, pass_tokens;
    int64_t first, kept; /* tokens [first, first + kept) of the text have their keys and values in the cache */
};

struct sw_decoder_spec {
    struct sw_source *source; /* must outlive it */
    const struct sw_inference_options *options;
    int64_t prompt_tokens, most_tokens; /* of the text: at the start, and in the end */
};

/* Fills out, which must be zero. It is closed in any case, also after a failure. */
sw_status sw_decoder_open(const struct sw_decoder_spec *spec, struct sw_decoder *out);
void sw_decoder_close(struct sw_decoder *decoder);

/* Tokens that are left of a text that outgrew so many positions: half of them, so that this happens seldom. */
int64_t sw_decoder_left(int64_t positions);

/* Logits after the last of `length` tokens, of a text of which no less was given before. Where it has outgrown the
 * model's positions, what came before the last of it is forgotten, and that is computed anew: positions count from its
 * first token, so that no key can be kept. */
sw_status sw_decoder_logits(struct sw_decoder *decoder, const int32_t *text, int64_t length, float *logits);

#endif
