/* Element types, and bf16 conversion: round to nearest even, subnormals kept, NaN stays NaN. */
#ifndef SW_CORE_DTYPE_H
#define SW_CORE_DTYPE_H

#include <stdint.h>
#include <string.h>

typedef enum { SW_F32 = 0, SW_BF16 = 1, SW_F16 = 2 } sw_dtype;

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

#endif
