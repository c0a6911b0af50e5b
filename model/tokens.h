/* The tokens of one micro-batch or a part of it. Each array is [batch, seq] and is borrowed. */
#ifndef SW_MODEL_TOKENS_H
#define SW_MODEL_TOKENS_H

#include <stddef.h>
#include <stdint.h>

struct sw_tokens {
    int32_t *inputs;
    int32_t *targets;        /* -1: no loss for this token */
    int32_t *document_start; /* position in the sequence at which the token's document begins; 0: it begins before the
                                sequence. NULL: documents are not kept apart */
};

/* Returns the tokens from index `first` on. */
static inline struct sw_tokens sw_tokens_from(struct sw_tokens tokens, int64_t first) {
    return (struct sw_tokens){
        .inputs = tokens.inputs + first,
        .targets = tokens.targets + first,
        .document_start = tokens.document_start == NULL ? NULL : tokens.document_start + first,
    };
}

#endif
