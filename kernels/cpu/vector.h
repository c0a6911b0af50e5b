/* Vectors as wide as the instruction set, in the compiler's own vector types; the fused multiply-add has to be asked
 * for by name. */
#ifndef SW_KERNELS_CPU_VECTOR_H
#define SW_KERNELS_CPU_VECTOR_H

#include <stdint.h>

#if defined(__AVX512F__) || defined(__FMA__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
enum { SW_LANES = 16 };
#elif defined(__AVX__)
enum { SW_LANES = 8 };
#else
enum { SW_LANES = 4 };
#endif

typedef float sw_vec __attribute__((vector_size(SW_LANES * sizeof(float))));
typedef float sw_vec_unaligned __attribute__((vector_size(SW_LANES * sizeof(float)), aligned(4), may_alias));

static inline sw_vec sw_vec_load(const float *from) {
    return *(const sw_vec_unaligned *)from;
}

static inline void sw_vec_store(float *to, sw_vec value) {
    *(sw_vec_unaligned *)to = value;
}

static inline sw_vec sw_vec_splat(float value) {
    return value - (sw_vec){0};
}

static inline sw_vec sw_vec_fma(sw_vec a, sw_vec b, sw_vec c) {
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
    return _mm256_fmadd_ps(a, b, c);
#else
    return a * b + c;
#endif
}

#endif
