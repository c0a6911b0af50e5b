/* The prepared matrix products: a shape, its scratch, and the device's data for it. */
#ifndef SW_KERNELS_PRODUCTS_H
#define SW_KERNELS_PRODUCTS_H

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

/* Returns the entry of a shape; NULL: the shape was not prepared. */
struct sw_gemm_entry *sw_gemm_cache_find(const struct sw_gemm_cache *cache, const struct sw_gemm *shape);

/* Adds a shape that the cache lacks. The cache owns *out. */
sw_status sw_gemm_cache_add(struct sw_gemm_cache *cache, const struct sw_gemm *shape, struct sw_gemm_entry **out);

/* Removes and frees an entry that was just added. */
void sw_gemm_cache_remove(struct sw_gemm_cache *cache, struct sw_gemm_entry *entry);

void sw_gemm_cache_free(struct sw_gemm_cache *cache);

/* The algorithms of a library's matrix products. An algorithm decides the bits of the result, so it is measured once,
 * kept and used again. A device without such a choice (the CPU) keeps nothing. */
enum { SW_ALGORITHM_WORDS = 8, SW_ALGORITHM_FIELDS = 9 };

struct sw_gemm_algorithm {
    struct sw_gemm shape;
    bool tf32;
    int64_t workspace_bytes;
    uint64_t word[SW_ALGORITHM_WORDS];  /* the library's own representation, valid for its version only */
    int64_t field[SW_ALGORITHM_FIELDS]; /* the algorithm for a reader, named by sw_algorithm_field_names */
};
extern const char *const sw_algorithm_field_names[SW_ALGORITHM_FIELDS];

struct sw_gemm_algorithms {
    struct sw_gemm_algorithm *item; /* from malloc; NULL if count is 0 */
    int64_t count;
};
void sw_gemm_algorithms_release(struct sw_gemm_algorithms *list);
/* Returns the algorithm of a shape; NULL: the list has none. */
struct sw_gemm_algorithm *sw_gemm_algorithms_find(const struct sw_gemm_algorithms *list, const struct sw_gemm *shape,
                                                  bool tf32);
/* Adds an algorithm, or replaces the one of the same shape. */
sw_status sw_gemm_algorithms_put(struct sw_gemm_algorithms *list, const struct sw_gemm_algorithm *algorithm);

/* Chooses the algorithms of the products that are prepared from now on; call it before the first. Shapes in the list,
 * which is copied, get its algorithms if the library accepts them. Other shapes get the cheapest of the library's
 * suggestions, found by measuring if `measure` is set, else the first. */
sw_status sw_device_use_algorithms(struct sw_device *device, const struct sw_gemm_algorithms *list, bool measure);
/* Fills `out` with the algorithms of all prepared products; the caller releases it. *out_refused: how many algorithms
 * of the given list the library rejected. */
sw_status sw_device_algorithms(const struct sw_device *device, struct sw_gemm_algorithms *out, int64_t *out_refused);

/* Products in 8 bits on devices that have none, or not with these sides: the operands are encoded, and a product of the
 * operands' type multiplies the values of the codes. 8-bit numbers and their scales are exact in bf16, so these
 * products are the reference for those that multiply codes. */

/* The bytes of sw_encode_fp8's scale. */
#define SW_FP8_SCALE_BYTES ((1 + SW_FP8_PARTS) * (int64_t)sizeof(float))

struct sw_gemm_operands {
    const void *a, *b, *bias, *addend;
    void *c, *scratch;
};

/* cuBLASLt multiplies codes only where each side of the product is a multiple of this. */
enum { SW_FP8_SIDE_MULTIPLE = 16 };

/* Tells whether a product is of 8-bit operands and the device does not multiply their codes. */
bool sw_fp8_is_apart(const struct sw_device *device, const struct sw_gemm *shape);
/* Return the product of rounded operands that must be prepared, and the scratch of a call, given what that product
 * takes. */
struct sw_gemm sw_fp8_rounded(const struct sw_gemm *shape);
int64_t sw_fp8_scratch_bytes(const struct sw_gemm *shape, int64_t rounded_bytes);
/* Runs such a product. */
sw_status sw_fp8_multiply(struct sw_stream *stream, struct sw_gemm_entry *entry, const struct sw_gemm_operands *at);

#endif
