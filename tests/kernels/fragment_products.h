/* One product of the matrix fragments, [16,16]·[16,16], by each of the ways that kernels have. */
#ifndef SW_TESTS_KERNELS_FRAGMENT_PRODUCTS_H
#define SW_TESTS_KERNELS_FRAGMENT_PRODUCTS_H

#ifdef __cplusplus
extern "C" {
#endif

enum { FRAGMENT_SIDE = 16, FRAGMENT_ELEMS = FRAGMENT_SIDE * FRAGMENT_SIDE };
typedef enum { PRODUCT_BF16, PRODUCT_F16, PRODUCT_F32, PRODUCT_SHUFFLES } fragment_product;

/* c = a·bᵀ where rows_of_b, and a·b where not, all row-major. */
void fragment_multiply(fragment_product how, int rows_of_b, const float *a, const float *b, float *c);

#ifdef __cplusplus
}
#endif
#endif
