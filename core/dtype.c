/* A loop for each type, so that the compiler makes vector code of it. */
#include "core/dtype.h"

void sw_dtype_round(sw_dtype type, const float *from, int64_t count, void *to) {
    uint16_t *half = to;
    if (type == SW_F32)
        memcpy(to, from, (size_t)count * sizeof *from);
    else if (type == SW_BF16)
        for (int64_t i = 0; i < count; i++)
            half[i] = sw_f32_to_bf16(from[i]);
    else
        for (int64_t i = 0; i < count; i++)
            half[i] = sw_f32_to_f16(from[i]);
}

static inline uint16_t half_at(const void *from, int64_t index) {
    uint16_t half;
    memcpy(&half, (const char *)from + index * (int64_t)sizeof half, sizeof half);
    return half;
}

void sw_dtype_widen(sw_dtype type, const void *from, int64_t count, float *to) {
    if (type == SW_F32)
        memcpy(to, from, (size_t)count * sizeof *to);
    else if (type == SW_BF16)
        for (int64_t i = 0; i < count; i++)
            to[i] = sw_bf16_to_f32(half_at(from, i));
    else
        for (int64_t i = 0; i < count; i++)
            to[i] = sw_f16_to_f32(half_at(from, i));
}
