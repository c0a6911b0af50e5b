/* Elementary functions without branches or tables, which the compiler turns into vector code. Relative errors are below
 * 3e-7. The coefficients were fitted for this project by weighted least squares towards the least greatest error. */
#ifndef SW_KERNELS_CPU_VECTOR_MATH_H
#define SW_KERNELS_CPU_VECTOR_MATH_H

#include <stdint.h>
#include <string.h>

/* Without the instruction a fused multiply-add is a slow call, and here nothing depends on its single rounding. */
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define SW_HAVE_FMA 1
#else
#define SW_HAVE_FMA 0
#endif

static inline float sw_fma_fast(float a, float b, float c) {
    return SW_HAVE_FMA ? __builtin_fmaf(a, b, c) : a * b + c;
}

#define SW_EXP_LOWEST (-87.3f) /* below, the result would be subnormal: 0 instead */
#define SW_EXP_HIGHEST 88.7f   /* above, fp32 overflows: the result stays at exp(88.7) */
#define SW_LOG2_E 0x1.715476p+0f
#define SW_LN2_HIGH 0x1.62e400p-1f /* few bits, so that its products with small integers are exact */
#define SW_LN2_LOW 0x1.7f7d1cp-20f
#define SW_ROUND_TO_INTEGER 0x1.8p+23f /* added and taken away, it leaves the nearest integer */

/* exp(x) = 2^n·exp(r), |r| <= ln(2)/2. NaN stays NaN. */
static inline float sw_exp(float x) {
    const float capped = x > SW_EXP_HIGHEST ? SW_EXP_HIGHEST : x;
    const float shifted = sw_fma_fast(capped, SW_LOG2_E, SW_ROUND_TO_INTEGER);
    const float n = shifted - SW_ROUND_TO_INTEGER;
    const float r = sw_fma_fast(n, -SW_LN2_LOW, sw_fma_fast(n, -SW_LN2_HIGH, capped));
    float p = 0.0013836737f;
    p = sw_fma_fast(p, r, 0.008374899f);
    p = sw_fma_fast(p, r, 0.041668233f);
    p = sw_fma_fast(p, r, 0.1666642f);
    p = sw_fma_fast(p, r, 0.4999999f);
    p = sw_fma_fast(p, r, 1.0f);
    p = sw_fma_fast(p, r, 1.0f);
    uint32_t shifted_bits, p_bits;
    memcpy(&shifted_bits, &shifted, sizeof shifted_bits);
    memcpy(&p_bits, &p, sizeof p_bits);
    /* The integer n is in the low bits of shifted; p is near 1, so its exponent has room for n. */
    p_bits += shifted_bits << 23;
    float result;
    memcpy(&result, &p_bits, sizeof result);
    result = x != x ? x : result;
    return x < SW_EXP_LOWEST ? 0.0f : result;
}

static inline float sw_sigmoid(float x) {
    return 1.0f / (1.0f + sw_exp(-x));
}

/* erfc(x)·exp(x²) for x >= 0, as a polynomial in 1/(1 + 0.4·x). */
static inline float sw_erfc_scaled(float x) {
    const float t = 1.0f / sw_fma_fast(0.4f, x, 1.0f);
    float p = 0.0286955996f;
    p = sw_fma_fast(p, t, -0.0747481071f);
    p = sw_fma_fast(p, t, -0.0636884624f);
    p = sw_fma_fast(p, t, 0.27579123f);
    p = sw_fma_fast(p, t, -0.0685692981f);
    p = sw_fma_fast(p, t, 0.26863897f);
    p = sw_fma_fast(p, t, 0.177415893f);
    p = sw_fma_fast(p, t, 0.231355232f);
    p = sw_fma_fast(p, t, 0.225082567f);
    return sw_fma_fast(p, t, 2.64056375e-05f);
}

#endif
