/* Products of small matrices that stay in cache: what attention is made of. */
#ifndef SW_KERNELS_CPU_SMALL_PRODUCT_H
#define SW_KERNELS_CPU_SMALL_PRODUCT_H

#include "kernels/cpu/isa.h"

#include <stdbool.h>
#include <stdint.h>

/* The part of a product that is needed, where a triangle of zeros or of unwanted results is known. */
typedef enum {
    SW_PART_ALL,
    SW_PART_COLUMNS_FROM_ROW, /* only C[i][j] with j >= i; others may keep what they held */
    SW_PART_TERMS_FROM_ROW,   /* A[i][k] is zero for k < i */
    SW_PART_TERMS_UP_TO_ROW   /* A[i][k] is zero for k > i */
} sw_part;

enum {
    SW_SMALL_PRODUCT_ROWS = 8,    /* m is rounded up to this: A and C have that many rows */
    SW_SMALL_PRODUCT_COLUMNS = 16 /* n is a multiple of this */
};

/* C[m,n] = or += A[m,k]·B[k,n] in fp32. A and B are words: fp32 numbers; or `pairs` of bf16 numbers, two terms each,
 * and k is even. The word of A[i][k] is a[i·a_row + t·a_term] and that of B[k][j] is b[t·b_row + j], with t = k, or k/2
 * of pairs. Rows of C are contiguous. */
struct sw_small_product {
    int64_t m, n, k;
    bool pairs;
    const void *a;
    int64_t a_row, a_term;
    const void *b;
    int64_t b_row;
    float *c;
    int64_t c_row;
    bool accumulate;
    sw_part part;
};

void SW_ISA_NAME(sw_small_product)(const struct sw_small_product *product);

#endif
