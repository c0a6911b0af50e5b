/* The products of warpgroups on the emulated machine. A product takes place when its threads wait for it, from what
 * shared memory and registers hold then, by its descriptors as the PTX ISA defines them. What a GPU would leave
 * undefined is an error: to read what copies have not brought or no fence has shown to products, registers that no
 * fence has shown, descriptors off the swizzle's pattern, warps of a warpgroup that start different products. */
#ifndef SW_TESTS_EQUIPMENT_CUDA_WARPGROUP_H
#define SW_TESTS_EQUIPMENT_CUDA_WARPGROUP_H

#include "core/dtype.h"
#include "tests/equipment/cuda/shared_memory.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A thread's share of one product, C[64, columns] += A[64,16]·B[16, columns]. */
struct sw_emulation_product {
    sw_dtype type;
    int columns;
    bool add;                /* the product is added to the sums that are there */
    bool columns_of_b;       /* B's columns lie side by side, not its rows */
    const uint32_t *a_words; /* the thread's part of A; NULL: A is in shared memory */
    uint64_t a, b;           /* descriptors */
    float *sums;
    int commit;
};

/* Entry points for kernels. A wait leaves the newest `newest` commits under way. Tests leave out the call at a line as
 * they do a barrier's; without a wait the sums of its products are NaN, as nobody knows what a GPU would have there. */
void sw_emulation_product_start(const struct sw_emulation_product *product);
void sw_emulation_products_fence(const char *file, int line);
void sw_emulation_products_commit(void);
void sw_emulation_products_wait(int newest, const char *file, int line);
void sw_emulation_fence_copies(const char *file, int line);
/* Returns the address by which descriptors name a byte of the block's dynamic shared memory. */
uint32_t sw_emulation_shared_address(const void *shared);

enum { SW_EMULATION_MOST_PRODUCTS = 64, SW_EMULATION_GRANULE_BYTES = 16, SW_EMULATION_GROUP_WARPS = 4 };

/* A thread's products under way, and how often it has shown its copies to products. */
struct sw_products {
    struct sw_emulation_product *under_way;
    int count, commits;
    bool registers_shown;
    uint32_t fences;
};

/* The thread that copied to 16 bytes of dynamic shared memory; they are shown once that thread has more fences than
 * `arrived`. */
struct sw_granule {
    uint16_t writer; /* 0: nobody, otherwise a thread's number and 1 */
    uint32_t arrived;
};

/* The state of a block: granules by address, and what each warp has started, as a count and a digest. */
struct sw_product_block {
    char *shared;
    size_t shared_bytes;
    struct sw_granule granules[SW_SHARED_MOST_BYTES / SW_EMULATION_GRANULE_BYTES];
    uint64_t started[1024 / 32];
};

/* Hooks that the machine calls: at a block's begin and end (NULL or an error), and for copies of the running thread. */
void sw_products_begin(struct sw_product_block *block, char *shared, size_t shared_bytes);
const char *sw_products_end(const struct sw_product_block *block, int warps);
void sw_products_copy(struct sw_product_block *block, const void *to, size_t bytes, int thread, uint32_t arrived);
void sw_products_reset(struct sw_products *products);

/* Facts about the running thread, from the machine. */
struct sw_products *sw_emulation_own_products(int thread);
struct sw_product_block *sw_emulation_product_block(void);
int sw_emulation_thread(void);
bool sw_emulation_leaves_out(const char *file, int line);

#ifdef __cplusplus
}
#endif
#endif
