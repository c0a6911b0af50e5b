/* The tokens of sequences, for one micro-batch or a part of it: [batch, seq] each. */
#ifndef SW_TRAIN_MODEL_TOKENS_H
#define SW_TRAIN_MODEL_TOKENS_H

#include <stddef.h>
#include <stdint.h>

struct sw_tokens {
    int32_t *inputs;
    int32_t *targets;        /* -1: no loss */
    int32_t *document_start; /* of each input, the place in its sequence where its document begins, 0 where that is
                                before; NULL: not wanted */
};

/* From a token on. */
static inline struct sw_tokens sw_tokens_from(struct sw_tokens tokens, int64_t first) {
    return (struct sw_tokens){
        .inputs = tokens.inputs + first,
        .targets = tokens.targets + first,
        .document_start = tokens.document_start == NULL ? NULL : tokens.document_start + first,
    };
}

#endif
