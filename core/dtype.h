/* Element types, and conversion to and from the 16-bit ones: round to nearest even, subnormals kept, NaN stays NaN. */
#ifndef SW_CORE_DTYPE_H
#define SW_CORE_DTYPE_H

#include <stdint.h>
#include <string.h>

typedef enum { SW_F32 = 0, SW_BF16 = 1, SW_F16 = 2, SW_DTYPES } sw_dtype;

typedef uint16_t sw_bf16;

static inline int64_t sw_dtype_bytes(sw_dtype type) {
    return type == SW_F32 ? 4 : 2;
}

static inline const char *sw_dtype_name(sw_dtype type) {
    return type == SW_F32 ? "fp32" : type == SW_BF16 ? "bf16" : "fp16";
}

static inline float sw_bf16_to_f32(sw_bf16 value) {
    const uint32_t bits = (uint32_t)value << 16;
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

static inline sw_bf16 sw_f32_to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t quiet_nan = (bits >> 16) | 0x40u;
    return (sw_bf16)((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
}

typedef uint16_t sw_f16;

/* Gives the same bits as the processors' conversion instructions, including for NaN. */
static inline float sw_f16_to_f32(sw_f16 value) {
    const uint32_t magnitude = value & 0x7fffu;
    const float subnormal = (float)magnitude * 0x1p-24f;
    uint32_t bits;
    memcpy(&bits, &subnormal, sizeof bits);
    if (magnitude >= 0x0400u) /* normal: the exponent's bias grows by 127 - 15 */
        bits = (magnitude << 13) + ((127u - 15u) << 23);
    if (magnitude >= 0x7c00u) /* infinity, or NaN made quiet */
        bits = 0x7f800000u | (magnitude > 0x7c00u ? 0x400000u : 0u) | (magnitude << 13);
    bits |= (uint32_t)(value & 0x8000u) << 16;
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

static inline sw_f16 sw_f32_to_f16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t half = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - ((127u - 15u) << 23)) >> 13;
    if (magnitude < 0x38800000u) {
        /* Below the smallest normal number: adding one half aligns the bits, and the addition rounds them. */
        float aligned;
        memcpy(&aligned, &magnitude, sizeof aligned);
        aligned += 0.5f;
        memcpy(&half, &aligned, sizeof half);
        half -= 0x3f000000u;
    }
    if (magnitude >= 0x477ff000u) /* rounds to 65536 or more */
        half = 0x7c00u;
    if (magnitude > 0x7f800000u)
        half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    return (sw_f16)(sign | half);
}

/* Reads one element of a tensor and widens it to fp32, or rounds an fp32 value and writes it. */
static inline float sw_dtype_load(sw_dtype type, const void *from, int64_t index) {
    if (type == SW_F32)
        return ((const float *)from)[index];
    const uint16_t bits = ((const uint16_t *)from)[index];
    return type == SW_BF16 ? sw_bf16_to_f32(bits) : sw_f16_to_f32(bits);
}

static inline void sw_dtype_store(sw_dtype type, void *to, int64_t index, float value) {
    if (type == SW_F32)
        ((float *)to)[index] = value;
    else
        ((uint16_t *)to)[index] = type == SW_BF16 ? sw_f32_to_bf16(value) : sw_f32_to_f16(value);
}

/* Round or widen `count` elements. The source of sw_dtype_widen may be unaligned: a file's tensors begin where its
 * header ends. */
void sw_dtype_round(sw_dtype type, const float *from, int64_t count, void *to);
void sw_dtype_widen(sw_dtype type, const void *from, int64_t count, float *to);

#endif
