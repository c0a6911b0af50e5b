/* Rearranges B of a product in bf16 into the layout that oneDNN multiplies fastest. oneDNN does the same inside a
 * product, but again for every piece. */
#ifndef SW_KERNELS_CPU_PACK_H
#define SW_KERNELS_CPU_PACK_H

#include <stdbool.h>
#include <stdint.h>

enum {
    SW_PACK_COLS = 64, /* columns of a panel; n is a multiple */
    SW_PACK_TERMS = 32 /* k is a multiple */
};

/* B and its packed copy of as many elements. Panel i of the copy has columns i · SW_PACK_COLS to (i + 1) · SW_PACK_COLS
 * of B, in oneDNN's layout BA16a64b2a: [k/2][columns] pairs of successive terms. */
struct sw_pack {
    bool transposed; /* B is stored as [n][k]; otherwise as [k][n] */
    int64_t k;
    const uint16_t *from;
    int64_t from_stride; /* elements from one stored row to the next */
    uint16_t *to;
};

#endif
