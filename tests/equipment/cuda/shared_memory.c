#include "tests/equipment/cuda/shared_memory.h"

#include <stdlib.h>
#include <string.h>

enum {
    ALIGN_BYTES = 128,
    POISON = 0xff, /* NaN in every type */
    CANARY = 0xa5,
    CANARY_BYTES = 64
};

void *sw_shared_memory_find(const struct sw_shared_memory *shared, const void *key) {
    for (int i = 0; i < shared->count; i++) {
        if (shared->variables[i].key == key)
            return shared->variables[i].memory;
    }
    return NULL;
}

static void poison(const struct sw_shared_variable *variable) {
    memset(variable->memory, POISON, variable->bytes);
    memset(variable->memory + variable->bytes, CANARY, CANARY_BYTES);
}

void *sw_shared_memory_add(struct sw_shared_memory *shared, const void *key, size_t bytes, size_t most_bytes) {
    size_t all = bytes;
    for (int i = 0; i < shared->count; i++)
        all += shared->variables[i].bytes;
    void *memory = NULL;
    if (shared->count == SW_SHARED_MOST_VARIABLES || all > most_bytes ||
        posix_memalign(&memory, ALIGN_BYTES, bytes + CANARY_BYTES) != 0)
        return NULL;
    struct sw_shared_variable *variable = &shared->variables[shared->count++];
    *variable = (struct sw_shared_variable){.key = key, .memory = memory, .bytes = bytes};
    poison(variable);
    return memory;
}

void sw_shared_memory_poison(struct sw_shared_memory *shared) {
    for (int i = 0; i < shared->count; i++)
        poison(&shared->variables[i]);
}

bool sw_shared_memory_is_intact(const struct sw_shared_memory *shared) {
    bool intact = true;
    for (int i = 0; i < shared->count; i++) {
        const struct sw_shared_variable *variable = &shared->variables[i];
        for (size_t at = variable->bytes; at < variable->bytes + CANARY_BYTES; at++)
            intact = intact && (unsigned char)variable->memory[at] == CANARY;
    }
    return intact;
}

void sw_shared_memory_free(struct sw_shared_memory *shared) {
    for (int i = 0; i < shared->count; i++)
        free(shared->variables[i].memory);
    shared->count = 0;
}
