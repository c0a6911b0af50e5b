/* Block quantization of one block, with the bits of ref/quant.c. */
#ifndef SW_KERNELS_CPU_QUANT_H
#define SW_KERNELS_CPU_QUANT_H

#include "core/quant.h"
#include "kernels/cpu/lanes.h"

#define SW_INFINITY_BITS 0x7f800000u
/* Adding this to a number below 2^22 rounds it to an integer, ties to even, in the low bits. */
#define SW_QUANT_ROUNDING 0x1.8p23f

typedef int32_t sw_vec_int __attribute__((vector_size(SW_LANES * sizeof(int32_t))));
typedef int8_t sw_vec_code __attribute__((vector_size(SW_LANES)));
typedef int8_t sw_vec_code_unaligned __attribute__((vector_size(SW_LANES), aligned(1), may_alias));

SW_INLINE float sw_quant_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Returns the bits of the largest magnitude, or those of a NaN if there is one: without sign, floats sort like their
 * bits. elems: a multiple of SW_LANES. */
SW_INLINE uint32_t sw_quant_largest(const float *values, int elems) {
    sw_vec_int most = {0};
    for (int i = 0; i < elems; i += SW_LANES) {
        const sw_vec_int bits = (sw_vec_int)sw_vec_load(values + i) & 0x7fffffff, more = bits > most;
        most = (bits & more) | (most & ~more);
    }
    int32_t largest = 0;
    for (int i = 0; i < SW_LANES; i++)
        largest = most[i] > largest ? most[i] : largest;
    return (uint32_t)largest;
}

/* Returns the scale, and in *out_inverse its reciprocal, which is 0 if all codes are 0. */
SW_INLINE float sw_quant_scale(const sw_quant quant, const float *values, float *out_inverse) {
    const bool narrow = quant == SW_QUANT_INT4;
    const float most_scale = narrow ? SW_QUANT_INT4_MOST_SCALE : SW_QUANT_INT8_MOST_SCALE;
    const uint32_t largest = sw_quant_largest(values, SW_QUANT_BLOCK_ELEMS);
    const float scale = sw_quant_float(largest) / (narrow ? (float)SW_QUANT_INT4_MOST : (float)SW_QUANT_INT8_MOST);
    *out_inverse = 0.0f;
    if (largest >= SW_INFINITY_BITS)
        return sw_quant_float(SW_QUANT_NAN_BITS);
    if (scale < SW_QUANT_LEAST_SCALE)
        return 0.0f;
    const float capped = scale < most_scale ? scale : most_scale;
    *out_inverse = 1.0f / capped;
    return capped;
}

SW_INLINE void sw_quant_codes(const float *values, float inverse, int8_t *code) {
    if (inverse == 0.0f) {
        memset(code, 0, SW_QUANT_BLOCK_ELEMS);
        return;
    }
    for (int i = 0; i < SW_QUANT_BLOCK_ELEMS; i += SW_LANES) {
        const sw_vec rounded = sw_vec_load(values + i) * inverse + SW_QUANT_ROUNDING;
        const sw_vec_int whole = (sw_vec_int)rounded - (sw_vec_int)sw_vec_splat(SW_QUANT_ROUNDING);
        *(sw_vec_code_unaligned *)(code + i) = __builtin_convertvector(whole, sw_vec_code);
    }
}

/* Returns the values of a vector of codes. */
SW_INLINE sw_vec sw_quant_values(const int8_t *code, float scale) {
    const sw_vec_code codes = *(const sw_vec_code_unaligned *)code;
    return __builtin_convertvector(__builtin_convertvector(codes, sw_vec_int), sw_vec) * scale;
}

/* Adds the values of a record's block to the sum, or, if first, sets the sum to them. */
SW_INLINE void sw_quant_add(const int8_t *code, float scale, const bool first, float *sum) {
    for (int i = 0; i < SW_QUANT_BLOCK_ELEMS; i += SW_LANES) {
        const sw_vec value = sw_quant_values(code + i, scale);
        sw_vec_store(sum + i, first ? value : sw_vec_load(sum + i) + value);
    }
}

#endif
