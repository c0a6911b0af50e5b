/* fp16 as files store it: conversion to and from fp32, round to nearest even, subnormals and NaN kept. */
#ifndef SW_IO_HALF_H
#define SW_IO_HALF_H

#include <stdint.h>
#include <string.h>

typedef uint16_t sw_f16;

static inline float sw_f16_to_f32(sw_f16 value) {
    const uint32_t sign = (uint32_t)(value & 0x8000u) << 16;
    const uint32_t exponent = (value >> 10) & 0x1fu;
    const uint32_t fraction = value & 0x3ffu;
    float out;
    if (exponent == 0) {
        out = (float)fraction * 0x1p-24f;
        return sign != 0 ? -out : out;
    }
    const uint32_t wide = exponent == 0x1fu ? 0xffu : exponent + (127 - 15);
    const uint32_t bits = sign | wide << 23 | fraction << 13;
    memcpy(&out, &bits, sizeof out);
    return out;
}

static inline sw_f16 sw_f32_to_f16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (sw_f16)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x477ff000u) /* rounds to 65536 or more */
        return (sw_f16)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) {
        /* Below the least normal number: adding one half aligns the bits and rounds them as the processor does. */
        float small;
        memcpy(&small, &magnitude, sizeof small);
        small += 0.5f;
        uint32_t aligned;
        memcpy(&aligned, &small, sizeof aligned);
        return (sw_f16)(sign | (aligned - 0x3f000000u));
    }
    const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return (sw_f16)(sign | ((rounded - ((127u - 15u) << 23)) >> 13));
}

#endif
