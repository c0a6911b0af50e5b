/* Counts of what a range of tokens holds, as users count: a document that was split is one, and what fills sequences up
 * is none. */
#ifndef SW_RUN_DATA_TOKEN_COUNTS_H
#define SW_RUN_DATA_TOKEN_COUNTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sw_token_counts {
    int64_t tokens, learnt; /* learnt: with a loss */
    int64_t documents;      /* 0: no file says where they begin */
    int64_t split;          /* of the documents: longer than a sequence (packer.h) */
    int64_t padding;        /* tokens that fill sequences up */
    bool is_padding;        /* the last token that was added is padding */
};

/* Adds tokens by their marks (token_stream.h). */
void sw_token_counts_add(struct sw_token_counts *counts, const uint8_t *marks, int64_t count);

/* Writes and returns a description such as "40000 tokens in 12 documents, 87.3% of them with a loss, 4.1% padding, 2
 * documents split". */
const char *sw_token_counts_text(const struct sw_token_counts *counts, char *text, size_t chars);

#endif
