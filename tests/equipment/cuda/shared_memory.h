/* The shared memory of a block: variables by key, NaN at the block's begin, with bytes behind each that show writes
 * beyond it. */
#ifndef SW_TESTS_EQUIPMENT_CUDA_SHARED_MEMORY_H
#define SW_TESTS_EQUIPMENT_CUDA_SHARED_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

enum {
    SW_SHARED_MOST_VARIABLES = 16,
    SW_SHARED_MOST_BYTES = 227 * 1024 /* the shared memory of a block on the GPU that has the most of it */
};

struct sw_shared_variable {
    const void *key;
    char *memory;
    size_t bytes;
};
struct sw_shared_memory {
    struct sw_shared_variable variables[SW_SHARED_MOST_VARIABLES];
    int count;
};

/* Returns the variable of a key, or NULL. */
void *sw_shared_memory_find(const struct sw_shared_memory *shared, const void *key);
/* Adds a variable. Returns NULL where a block, which may have most_bytes, may have no more. */
void *sw_shared_memory_add(struct sw_shared_memory *shared, const void *key, size_t bytes, size_t most_bytes);
void sw_shared_memory_poison(struct sw_shared_memory *shared);
bool sw_shared_memory_is_intact(const struct sw_shared_memory *shared);
void sw_shared_memory_free(struct sw_shared_memory *shared);

#endif
