/* The two 8-bit types in which `--precision fp8` multiplies (Micikevicius et al., arXiv 2209.05433): e4m3 for weights
 * and activations, with 3 bits of mantissa, no infinity and a largest number of 448; and e5m2 for gradients, with 2
 * bits of mantissa and 57344. Numbers are rounded to nearest, ties to even, with subnormals. A number above the largest
 * becomes the largest; an infinity or a NaN becomes NaN.
 *
 * A tensor is multiplied by its scale's reciprocal before it is rounded; its codes stand for their numbers times the
 * scale. The scale is the smallest power of two for which the tensor's largest magnitude does not exceed the type's
 * largest number, so scaling itself rounds nothing. An operand's scale follows from its own values when it is used. The
 * paper leaves the choice open, and many trainers take maxima of earlier steps. With the operand's own maximum the bits
 * depend only on the values, and no scale has to be committed, resumed or exchanged. A tensor with an infinity or a NaN
 * gets the scale NaN and NaN codes, so that a step with such a gradient is skipped.
 *
 * The weights of a block are stored and transferred in e4m3, one byte each. Each grain has its own scale, so that a
 * grain can be made, moved and checked by itself. A grain has no spare byte for it, so bit i of the scale's byte
 * replaces the lowest bit of the grain's code i, for the first eight codes. */
#ifndef SW_CORE_FP8_H
#define SW_CORE_FP8_H

#include <stdint.h>
#include <string.h>

typedef enum { SW_FP8_NONE = 0, SW_FP8_E4M3, SW_FP8_E5M2 } sw_fp8;

/* Kernels call these functions too, and CUDA's compiler must be told so. */
#ifdef __CUDACC__
#define SW_FP8_INLINE static __host__ __device__ __forceinline__
#else
#define SW_FP8_INLINE static inline
#endif

enum {
    SW_FP8_NAN = 0x7f,            /* the code of NaN in both types */
    SW_FP8_LEAST_EXPONENT = -100, /* of a scale: above it, all numbers that scales meet stay normal in bf16 */
    SW_FP8_MOST_EXPONENT = 120,
    SW_FP8_EXPONENT_CODES = 8,  /* codes of a grain that hold a bit of its scale */
    SW_FP8_EXPONENT_BYTE = 101, /* the byte of scale 1; NaN has all bits set */
    SW_FP8_EXPONENT_NAN = 0xff,
    SW_FP8_PARTS =
        256, /* parts of a tensor for which a device may keep the largest magnitude while it encodes the tensor */
};

SW_FP8_INLINE uint32_t sw_fp8_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

SW_FP8_INLINE float sw_fp8_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Returns the code of a scaled number. */
SW_FP8_INLINE uint8_t sw_fp8_code(sw_fp8 type, float value) {
    const int wide = type == SW_FP8_E4M3, shift = wide ? 20 : 21; /* bits cut off a float's mantissa */
    const uint32_t bias = wide ? 127u - 7u : 127u - 15u;          /* by which a float's exponent is larger */
    const uint32_t most = wide ? 0x43e00000u : 0x47600000u;       /* the largest number, as a float */
    const uint32_t bits = sw_fp8_bits(value), sign = (bits >> 24) & 0x80u, magnitude = bits & 0x7fffffffu;
    const uint32_t size = magnitude < most ? magnitude : most;
    const uint32_t normal = (size + (1u << (shift - 1)) - 1u + ((size >> shift) & 1u)) >> shift;
    /* Below the smallest normal number: adding a power of two aligns the bits, and the addition rounds them. */
    const float aligning = wide ? 0x1p14f : 0x1p7f;
    const uint32_t subnormal = sw_fp8_bits(sw_fp8_float(size) + aligning) - sw_fp8_bits(aligning);
    const uint32_t code = size < ((bias + 1u) << 23) ? subnormal : normal - (bias << (23 - shift));
    return (uint8_t)(sign | (magnitude >= 0x7f800000u ? (uint32_t)SW_FP8_NAN : code));
}

/* Returns the number that a code stands for, without a scale. */
SW_FP8_INLINE float sw_fp8_value(sw_fp8 type, uint8_t code) {
    const int wide = type == SW_FP8_E4M3, shift = wide ? 20 : 21;
    const uint32_t magnitude = code & 0x7fu, sign = (uint32_t)(code & 0x80u) << 24;
    const uint32_t bias = wide ? 127u - 7u : 127u - 15u, infinite = wide ? 0x7fu : 0x7cu;
    const float subnormal = (float)magnitude * (wide ? 0x1p-9f : 0x1p-16f);
    uint32_t bits = magnitude >> (23 - shift) == 0 ? sw_fp8_bits(subnormal) : (magnitude << shift) + (bias << 23);
    if (magnitude >= infinite)
        bits = !wide && magnitude == infinite ? 0x7f800000u : 0x7fc00000u;
    return sw_fp8_float(bits | sign);
}

/* Returns the exponent of the scale for a finite largest magnitude, given as the bits of a float. */
SW_FP8_INLINE int sw_fp8_exponent(sw_fp8 type, uint32_t largest_bits) {
    const int exponent = (int)(largest_bits >> 23) - 127, most = type == SW_FP8_E4M3 ? 8 : 15;
    const int scale =
        exponent - most + ((largest_bits & 0x7fffffu) > 0x600000u); /* both largest numbers are 1.75·2^most */
    return scale < SW_FP8_LEAST_EXPONENT  ? SW_FP8_LEAST_EXPONENT
           : scale > SW_FP8_MOST_EXPONENT ? SW_FP8_MOST_EXPONENT
                                          : scale;
}

/* Returns the power of two with this exponent: a scale or its reciprocal. */
SW_FP8_INLINE float sw_fp8_power(int exponent) {
    return sw_fp8_float((uint32_t)(exponent + 127) << 23);
}

/* Returns the scale of a tensor by the bits of its largest magnitude, and its reciprocal. */
SW_FP8_INLINE float sw_fp8_scale(sw_fp8 type, uint32_t largest_bits, float *out_inverse) {
    if (largest_bits >= 0x7f800000u) {
        *out_inverse = sw_fp8_float(0x7fc00000u);
        return *out_inverse;
    }
    const int exponent = sw_fp8_exponent(type, largest_bits);
    *out_inverse = sw_fp8_power(-exponent);
    return sw_fp8_power(exponent);
}

/* Returns the byte of a grain's scale by the bits of its largest magnitude. */
SW_FP8_INLINE unsigned sw_fp8_scale_byte(uint32_t largest_bits) {
    return largest_bits >= 0x7f800000u ? (unsigned)SW_FP8_EXPONENT_NAN
                                       : (unsigned)(sw_fp8_exponent(SW_FP8_E4M3, largest_bits) + SW_FP8_EXPONENT_BYTE);
}

/* Returns the code of element `at` of a grain whose scale has this byte, including the bit of the byte that it holds. A
 * number whose code would become that of NaN gets the next smaller one. */
SW_FP8_INLINE uint8_t sw_fp8_grain_code(unsigned scale_byte, int64_t at, float value) {
    if (scale_byte == (unsigned)SW_FP8_EXPONENT_NAN)
        return SW_FP8_NAN;
    const float inverse = sw_fp8_power(SW_FP8_EXPONENT_BYTE - (int)scale_byte);
    const unsigned code = sw_fp8_code(SW_FP8_E4M3, value * inverse);
    if (at >= SW_FP8_EXPONENT_CODES)
        return (uint8_t)code;
    const unsigned marked = (code & 0xfeu) | ((scale_byte >> at) & 1u);
    return (uint8_t)((marked & 0x7fu) == (unsigned)SW_FP8_NAN ? marked - 2u : marked);
}

/* Returns the scale of a grain of weights. */
SW_FP8_INLINE float sw_fp8_grain_scale(const uint8_t *codes) {
    unsigned byte = 0;
    for (int i = 0; i < SW_FP8_EXPONENT_CODES; i++)
        byte |= (codes[i] & 1u) << i;
    return byte == (unsigned)SW_FP8_EXPONENT_NAN ? sw_fp8_float(0x7fc00000u)
                                                 : sw_fp8_power((int)byte - SW_FP8_EXPONENT_BYTE);
}

#endif
