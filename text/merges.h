/* The merges of byte pair encoding, by rank. */
#ifndef SW_TEXT_MERGES_H
#define SW_TEXT_MERGES_H

#include "text/buffer.h"
#include "text/vocabulary.h"

#include <stdbool.h>
#include <stdint.h>

struct sw_merges;

/* Reads the array `merges` of a tokenizer.json: "left right" or ["left", "right"], the first of them of rank 0. */
sw_status sw_merges_create(const struct sw_large_member *list, const struct sw_vocabulary *vocabulary,
                           struct sw_merges **out);
void sw_merges_destroy(struct sw_merges *merges);

/* Memory of one thread that grows to what the longest piece needed. A zeroed struct is empty. */
struct sw_merge_scratch {
    struct sw_merge_symbol *symbol;
    size_t symbols;
    uint64_t *heap; /* of rank and position */
    size_t heap_used, heap_room;
};
void sw_merge_scratch_release(struct sw_merge_scratch *scratch);

/* Joins symbols in place until no merge applies. At most 2^30 of them. */
sw_status sw_merges_apply(const struct sw_merges *merges, struct sw_merge_scratch *scratch,
                          struct sw_token_list *symbols);

/* Tells whether no merge makes a token in which this character follows another one. */
bool sw_merges_never_join_before(const struct sw_merges *merges, const struct sw_vocabulary *vocabulary,
                                 struct sw_text character);

#endif
