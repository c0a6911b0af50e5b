#include "kernels/gemm_cache.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { SW_GEMM_CACHE_FIRST_CAPACITY = 32 };

/* The fields of a shape as a comparable row. Padding in the struct, and the way in which a stride without gaps is
 * given, do not matter. */
struct gemm_key {
    int64_t field[14];
};

static struct gemm_key key_of(const struct sw_gemm *shape) {
    return (struct gemm_key){{shape->m, shape->n, shape->k, shape->transpose_a, shape->transpose_b, shape->bias,
                              shape->accumulate, shape->addend, (int64_t)shape->in, (int64_t)shape->out,
                              sw_gemm_a_stride(shape), sw_gemm_c_stride(shape), (int64_t)shape->a_as,
                              (int64_t)shape->b_as}};
}

static int compare(const struct sw_gemm *a, const struct sw_gemm *b) {
    const struct gemm_key x = key_of(a), y = key_of(b);
    for (size_t i = 0; i < sizeof x.field / sizeof x.field[0]; i++) {
        if (x.field[i] != y.field[i])
            return x.field[i] < y.field[i] ? -1 : 1;
    }
    return 0;
}

bool sw_gemm_same(const struct sw_gemm *a, const struct sw_gemm *b) {
    return compare(a, b) == 0;
}

/* Returns the index of the first entry that is not less than the shape. */
static int64_t lower_bound(const struct sw_gemm_cache *cache, const struct sw_gemm *shape) {
    int64_t low = 0, high = cache->count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (compare(&cache->entries[middle]->shape, shape) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct sw_gemm_entry *sw_gemm_cache_find(const struct sw_gemm_cache *cache, const struct sw_gemm *shape) {
    const int64_t at = lower_bound(cache, shape);
    if (at == cache->count || compare(&cache->entries[at]->shape, shape) != 0)
        return NULL;
    return cache->entries[at];
}

static sw_status grow(struct sw_gemm_cache *cache) {
    const int64_t capacity = cache->capacity == 0 ? SW_GEMM_CACHE_FIRST_CAPACITY : 2 * cache->capacity;
    struct sw_gemm_entry **entries = realloc(cache->entries, (size_t)capacity * sizeof *entries);
    if (entries == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the table of matrix products");
    cache->entries = entries;
    cache->capacity = capacity;
    return SW_OK;
}

sw_status sw_gemm_cache_add(struct sw_gemm_cache *cache, const struct sw_gemm *shape, struct sw_gemm_entry **out) {
    assert(sw_gemm_cache_find(cache, shape) == NULL);
    if (cache->count == cache->capacity)
        SW_TRY(grow(cache));
    struct sw_gemm_entry *entry = calloc(1, sizeof *entry);
    if (entry == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the table of matrix products");
    entry->shape = *shape;
    const int64_t at = lower_bound(cache, shape);
    memmove(cache->entries + at + 1, cache->entries + at, (size_t)(cache->count - at) * sizeof(struct sw_gemm_entry *));
    cache->entries[at] = entry;
    cache->count++;
    *out = entry;
    return SW_OK;
}

void sw_gemm_cache_remove(struct sw_gemm_cache *cache, struct sw_gemm_entry *entry) {
    const int64_t at = lower_bound(cache, &entry->shape);
    assert(at < cache->count && cache->entries[at] == entry);
    cache->count--;
    memmove(cache->entries + at, cache->entries + at + 1, (size_t)(cache->count - at) * sizeof(struct sw_gemm_entry *));
    free(entry);
}

void sw_gemm_cache_free(struct sw_gemm_cache *cache) {
    for (int64_t i = 0; i < cache->count; i++)
        free(cache->entries[i]);
    free(cache->entries);
    *cache = (struct sw_gemm_cache){0};
}
