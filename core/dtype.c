/* One loop per type, so that the compiler vectorises it. fp16 has too many branches for that, but processors have
 * instructions with the same result. */
#include "core/dtype.h"
#include "core/machine.h"

#include <stdbool.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

static inline uint16_t half_at(const void *from, int64_t index) {
    uint16_t half;
    memcpy(&half, (const char *)from + index * (int64_t)sizeof half, sizeof half);
    return half;
}

#if defined(__x86_64__)
enum { LANES = 8 };

/* Returns whether the processor converts fp16, as every one with AVX2 does. */
static bool has_f16_instructions(void) {
    return sw_isa_of_process() >= SW_ISA_AVX2;
}

/* Rounds the elements that fill whole vectors, and returns how many that are. */
__attribute__((target("avx2,f16c"))) static int64_t round_f16_vectors(const float *from, int64_t count, uint16_t *to) {
    int64_t done = 0;
    for (; count - done >= LANES; done += LANES)
        _mm_storeu_si128((__m128i_u *)(to + done),
                         _mm256_cvtps_ph(_mm256_loadu_ps(from + done), _MM_FROUND_TO_NEAREST_INT));
    return done;
}

__attribute__((target("avx2,f16c"))) static int64_t widen_f16_vectors(const void *from, int64_t count, float *to) {
    const char *bytes = from;
    int64_t done = 0;
    for (; count - done >= LANES; done += LANES)
        _mm256_storeu_ps(
            to + done, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i_u *)(bytes + done * (int64_t)sizeof(uint16_t)))));
    return done;
}
#else
static bool has_f16_instructions(void) {
    return false;
}

static int64_t round_f16_vectors(const float *from, int64_t count, uint16_t *to) {
    (void)from, (void)count, (void)to;
    return 0;
}

static int64_t widen_f16_vectors(const void *from, int64_t count, float *to) {
    (void)from, (void)count, (void)to;
    return 0;
}
#endif

static void round_f16(const float *from, int64_t count, uint16_t *to) {
    for (int64_t i = has_f16_instructions() ? round_f16_vectors(from, count, to) : 0; i < count; i++)
        to[i] = sw_f32_to_f16(from[i]);
}

static void widen_f16(const void *from, int64_t count, float *to) {
    for (int64_t i = has_f16_instructions() ? widen_f16_vectors(from, count, to) : 0; i < count; i++)
        to[i] = sw_f16_to_f32(half_at(from, i));
}

void sw_dtype_round(sw_dtype type, const float *from, int64_t count, void *to) {
    uint16_t *half = to;
    if (type == SW_F32)
        memcpy(to, from, (size_t)count * sizeof *from);
    else if (type == SW_F16)
        round_f16(from, count, half);
    else
        for (int64_t i = 0; i < count; i++)
            half[i] = sw_f32_to_bf16(from[i]);
}

void sw_dtype_widen(sw_dtype type, const void *from, int64_t count, float *to) {
    if (type == SW_F32)
        memcpy(to, from, (size_t)count * sizeof *to);
    else if (type == SW_F16)
        widen_f16(from, count, to);
    else
        for (int64_t i = 0; i < count; i++)
            to[i] = sw_bf16_to_f32(half_at(from, i));
}
