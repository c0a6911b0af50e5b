/* Block quantization: the form in which ranks may exchange weights and gradients (ZeRO++, Wang et al. 2023,
 * sections 3.1 and 3.3), and in which gradients may wait for their update. Symmetric integers with one fp32 scale per
 * block of 256 elements of a unit's vector.
 *
 * The scale of a block is its largest magnitude / 127 (int8) or / 7 (int4), but at most the value that keeps 127 (or 7)
 * scales finite. A code is the element times the scale's rounded reciprocal, rounded to the nearest integer, ties to
 * even; the element becomes code times scale. If the scale would not be a normal number (a block of zeros, or of
 * magnitudes below 127 · 1.2e-38), it is 0 and the block becomes zeros. A block with an infinity or a NaN has the scale
 * NaN and becomes NaN, so that a step with such a gradient is skipped and such weights stay an error.
 *
 * A grain's record is its codes, one after the other, then its scales. Of two int4 codes in a byte, the first has the
 * lower half. */
#ifndef SW_CORE_QUANT_H
#define SW_CORE_QUANT_H

#include "core/size.h"

typedef enum { SW_QUANT_NONE = 0, SW_QUANT_INT8, SW_QUANT_INT4 } sw_quant;

enum {
    SW_QUANT_BLOCK_ELEMS = 256,
    SW_QUANT_GRAIN_BLOCKS = SW_GRAIN_ELEMS / SW_QUANT_BLOCK_ELEMS,
    SW_QUANT_INT8_MOST = 127, /* the largest code */
    SW_QUANT_INT4_MOST = 7,
};
#define SW_QUANT_NAN_BITS 0x7fc00000u  /* the scale of a block that is not finite */
#define SW_QUANT_LEAST_SCALE 0x1p-126f /* the smallest normal number */
/* The largest scales whose product with the largest code is finite. */
#define SW_QUANT_INT8_MOST_SCALE 0x1.020406p+121f
#define SW_QUANT_INT4_MOST_SCALE 0x1.249248p+125f

/* The form of gradients between rounding and update: numbers of the compute type, or int8 records, each followed by
 * zeros up to whole pages, as drives transfer them. */
typedef enum { SW_GRADS_TYPED = 0, SW_GRADS_8BIT, SW_GRADS_FORMATS } sw_grads_format;
#define SW_GRADS_8BIT_GRAIN_BYTES INT64_C(20480)

static inline const char *sw_quant_name(sw_quant quant) {
    return quant == SW_QUANT_INT8 ? "int8" : quant == SW_QUANT_INT4 ? "int4" : "none";
}

/* Returns the bytes of a grain's codes; its scales follow. */
static inline int64_t sw_quant_code_bytes(sw_quant quant) {
    return quant == SW_QUANT_INT4 ? SW_GRAIN_ELEMS / 2 : SW_GRAIN_ELEMS;
}

/* Returns the bytes of a grain's record: a multiple of 64. */
static inline int64_t sw_quant_grain_bytes(sw_quant quant) {
    return sw_quant_code_bytes(quant) + SW_QUANT_GRAIN_BLOCKS * (int64_t)sizeof(float);
}
static_assert(SW_GRADS_8BIT_GRAIN_BYTES ==
                  (SW_GRAIN_ELEMS + SW_QUANT_GRAIN_BLOCKS * INT64_C(4) + SW_BUFFER_ALIGN_BYTES - 1) /
                      SW_BUFFER_ALIGN_BYTES * SW_BUFFER_ALIGN_BYTES,
              "a kept gradient's record fills whole pages");

/* Returns the value of element `at` of gradients kept in 8 bits. */
static inline float sw_grads_8bit_at(const void *grads, int64_t at) {
    const char *record = (const char *)grads + at / SW_GRAIN_ELEMS * SW_GRADS_8BIT_GRAIN_BYTES;
    const float *scales = (const float *)(const void *)(record + SW_GRAIN_ELEMS);
    const int64_t elem = at % SW_GRAIN_ELEMS;
    return (float)(signed char)record[elem] * scales[elem / SW_QUANT_BLOCK_ELEMS];
}

/* Returns the bytes of a grain of kept gradients. type_bytes: bytes per element of the compute type. */
static inline int64_t sw_grads_grain_bytes(sw_grads_format format, int64_t type_bytes) {
    return format == SW_GRADS_8BIT ? SW_GRADS_8BIT_GRAIN_BYTES : SW_GRAIN_ELEMS * type_bytes;
}

#endif
