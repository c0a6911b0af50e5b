/* The prepared matrix products: a shape, its scratch, and the device's data for it. */
#ifndef SW_KERNELS_GEMM_CACHE_H
#define SW_KERNELS_GEMM_CACHE_H

#include "core/size.h"
#include "kernels/device.h"

/* The scratch that a product on a GPU may take: as much as Hopper's best algorithms want. */
#define SW_GPU_GEMM_SCRATCH_BYTES (32 * SW_MIB)

struct sw_gemm_entry {
    struct sw_gemm shape;
    int64_t scratch_bytes; /* device memory that a call needs */
    void *prepared;        /* the device's data, which its release_gemm frees; NULL: none */
};

/* The prepared products, sorted by shape. An entry never moves. */
struct sw_gemm_cache {
    struct sw_gemm_entry **entries;
    int64_t count, capacity;
};

/* Returns whether two shapes are equal. */
bool sw_gemm_same(const struct sw_gemm *a, const struct sw_gemm *b);

/* Returns the entry of a shape; NULL: the shape was not prepared. */
struct sw_gemm_entry *sw_gemm_cache_find(const struct sw_gemm_cache *cache, const struct sw_gemm *shape);

/* Adds a shape that the cache lacks. The cache owns *out. */
sw_status sw_gemm_cache_add(struct sw_gemm_cache *cache, const struct sw_gemm *shape, struct sw_gemm_entry **out);

/* Removes and frees an entry that was just added. */
void sw_gemm_cache_remove(struct sw_gemm_cache *cache, struct sw_gemm_entry *entry);

void sw_gemm_cache_free(struct sw_gemm_cache *cache);

#endif
