#include "text/number_map.h"

#include <assert.h>
#include <stdlib.h>

enum { FIRST_SLOTS = 64 };

static struct sw_number_slot *slot_of(const struct sw_number_map *map, uint64_t key) {
    size_t at = sw_number_hash(key) & (map->slots - 1);
    while (map->slot[at].value != SW_NUMBER_NONE && map->slot[at].key != key)
        at = (at + 1) & (map->slots - 1);
    return &map->slot[at];
}

static sw_status grow(struct sw_number_map *map) {
    struct sw_number_map larger = {.slots = map->slots == 0 ? FIRST_SLOTS : 2 * map->slots, .used = map->used};
    larger.slot = calloc(larger.slots, sizeof *larger.slot);
    if (larger.slot == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a table of %zu entries", larger.slots);
    for (size_t i = 0; i < larger.slots; i++)
        larger.slot[i].value = SW_NUMBER_NONE;
    for (size_t i = 0; i < map->slots; i++)
        if (map->slot[i].value != SW_NUMBER_NONE)
            *slot_of(&larger, map->slot[i].key) = map->slot[i];
    free(map->slot);
    *map = larger;
    return SW_OK;
}

sw_status sw_number_map_put(struct sw_number_map *map, uint64_t key, uint64_t value) {
    assert(value != SW_NUMBER_NONE);
    if (2 * (map->used + 1) > map->slots)
        SW_TRY(grow(map));
    struct sw_number_slot *slot = slot_of(map, key);
    map->used += slot->value == SW_NUMBER_NONE;
    *slot = (struct sw_number_slot){.key = key, .value = value};
    return SW_OK;
}

void sw_number_map_release(struct sw_number_map *map) {
    free(map->slot);
    *map = (struct sw_number_map){0};
}
