/* A hash table from 64-bit numbers to 64-bit numbers: merges by pairs of ids, and the edges of tries. Filled once, then
 * read by any number of threads. */
#ifndef SW_TEXT_NUMBER_MAP_H
#define SW_TEXT_NUMBER_MAP_H

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

/* The value that means "not found"; it cannot be stored. */
#define SW_NUMBER_NONE UINT64_MAX

struct sw_number_slot {
    uint64_t key, value; /* SW_NUMBER_NONE: the slot is empty */
};

/* A zeroed map is empty and may be read. */
struct sw_number_map {
    struct sw_number_slot *slot; /* `slots` entries, a power of two, at most half of them used */
    size_t slots, used;
};

/* Stores a value, or replaces the key's. */
sw_status sw_number_map_put(struct sw_number_map *map, uint64_t key, uint64_t value);
void sw_number_map_release(struct sw_number_map *map);

static inline size_t sw_number_hash(uint64_t key) {
    key ^= key >> 32;
    key *= 0x9E3779B97F4A7C15ULL; /* the golden ratio: Fibonacci hashing */
    return (size_t)(key >> 20 ^ key >> 41);
}

/* Returns the value of a key, or SW_NUMBER_NONE. */
static inline uint64_t sw_number_map_get(const struct sw_number_map *map, uint64_t key) {
    if (map->slots == 0)
        return SW_NUMBER_NONE;
    for (size_t at = sw_number_hash(key) & (map->slots - 1);; at = (at + 1) & (map->slots - 1)) {
        const struct sw_number_slot *slot = &map->slot[at];
        if (slot->value == SW_NUMBER_NONE || slot->key == key)
            return slot->value;
    }
}

#endif
