#include "run/data/token_counts.h"

#include "core/number.h"
#include "run/data/token_stream.h"

#include <stdio.h>

void sw_token_counts_add(struct sw_token_counts *counts, const uint8_t *marks, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const bool begins = (marks[i] & SW_TOKEN_BEGINS_DOCUMENT) != 0;
        if (begins)
            counts->is_padding = (marks[i] & SW_TOKEN_PADDING) != 0;
        counts->documents += begins && (marks[i] & (SW_TOKEN_PADDING | SW_TOKEN_CONTINUES)) == 0;
        counts->split += (marks[i] & SW_TOKEN_SPLIT) != 0;
        counts->padding += counts->is_padding;
        counts->learnt += marks[i] == SW_TOKEN_LEARNT;
    }
    counts->tokens += count;
}

const char *sw_token_counts_text(const struct sw_token_counts *counts, char *text, size_t chars) {
    /* The first token is never a target. */
    const double percent = 100.0 / (double)(counts->tokens > 1 ? counts->tokens - 1 : 1);
    char documents[48] = "", split[48] = "", padding[48] = "";
    if (counts->documents > 0)
        snprintf(documents, sizeof documents, " in %s", SW_COUNT(counts->documents, "document"));
    if (counts->split > 0)
        snprintf(split, sizeof split, ", %s split", SW_COUNT(counts->split, "document"));
    if (counts->padding > 0)
        snprintf(padding, sizeof padding, ", %.3g%% padding", percent * (double)counts->padding);
    snprintf(text, chars, "%s%s, %.3g%% of them with a loss%s%s", SW_COUNT(counts->tokens, "token"), documents,
             percent * (double)counts->learnt, padding, split);
    return text;
}
