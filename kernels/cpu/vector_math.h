/* Elementary functions on vectors, without branches or tables. Relative errors are below 3e-7. The coefficients were
 * fitted for this project by weighted least squares, to minimise the largest error. */
#ifndef SW_KERNELS_CPU_VECTOR_MATH_H
#define SW_KERNELS_CPU_VECTOR_MATH_H

#include "kernels/cpu/vector.h"

#define SW_LOG2_E 0x1.715476p+0f
#define SW_LN2 0.693147181f
#define SW_LN2_HIGH 0x1.62e400p-1f /* few bits, so that its products with small integers are exact */
#define SW_LN2_LOW 0x1.7f7d1cp-20f

/* 2^r for |r| <= 1/2, in pairs of terms, so that few depend on each other. */
SW_INLINE sw_vec sw_vec_exp2_near_0(sw_vec r) {
    const sw_vec r2 = r * r;
    const sw_vec low = sw_vec_fma(r, sw_vec_splat(0.693147182f), sw_vec_splat(1.0f));
    const sw_vec middle = sw_vec_fma(r, sw_vec_splat(0.0555032864f), sw_vec_splat(0.240226462f));
    const sw_vec high = sw_vec_fma(r, sw_vec_splat(0.00134000648f), sw_vec_splat(0.00961849093f));
    const sw_vec top = sw_vec_fma(r2, sw_vec_splat(0.000153456916f), high);
    return sw_vec_fma(r2, sw_vec_fma(r2, top, middle), low);
}

/* The parts of an exponential: a range outside which the result is 0 or constant, the nearest integer n, and 2^n·p for
 * p near 1. NaN passes through all three. */
#if defined(__AVX512F__)
#define SW_EXP2_LOWEST (-160.0f) /* the result is 0 */
#define SW_EXP2_HIGHEST 128.5f   /* the result is infinity */

SW_INLINE sw_vec sw_vec_round(sw_vec z) {
    return _mm512_roundscale_ps(z, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

SW_INLINE sw_vec sw_vec_scale_exp2(sw_vec p, sw_vec n) {
    return _mm512_scalef_ps(p, n);
}
#else
#define SW_EXP2_LOWEST (-126.0f)       /* below, the result would be subnormal: 0 instead */
#define SW_EXP2_HIGHEST 127.49f        /* above, fp32 overflows */
#define SW_ROUND_TO_INTEGER 0x1.8p+23f /* added and taken away, it leaves the nearest integer */

SW_INLINE sw_vec sw_vec_round(sw_vec z) {
    return (z + SW_ROUND_TO_INTEGER) - SW_ROUND_TO_INTEGER;
}

SW_INLINE sw_vec sw_vec_scale_exp2(sw_vec p, sw_vec n) {
    /* The sum has the integer n in its low bits. p's exponent has room for it, except at the lowest n. */
    const sw_vec scaled = (sw_vec)((sw_vec_bits)p + ((sw_vec_bits)(n + SW_ROUND_TO_INTEGER) << 23));
    const sw_vec number = sw_vec_select((sw_vec_bits)(n <= SW_EXP2_LOWEST), (sw_vec){0}, scaled);
    return sw_vec_select(sw_vec_is_nan(n), n, number);
}
#endif

/* 2^z. Cheaper than exp if z comes from a product that can include log2(e). */
SW_INLINE sw_vec sw_vec_exp2(sw_vec z) {
    const sw_vec bounded = sw_vec_within(SW_EXP2_LOWEST, z, SW_EXP2_HIGHEST), n = sw_vec_round(bounded);
    return sw_vec_scale_exp2(sw_vec_exp2_near_0(bounded - n), n);
}

/* exp(x), precise where rounding x·log2(e) would not be: the remainder is taken before the change of base. */
SW_INLINE sw_vec sw_vec_exp(sw_vec x) {
    const sw_vec bounded = sw_vec_within(SW_EXP2_LOWEST * SW_LN2, x, SW_EXP2_HIGHEST * SW_LN2);
    const sw_vec n = sw_vec_round(bounded * SW_LOG2_E);
    const sw_vec rest = sw_vec_fma(n, sw_vec_splat(-SW_LN2_LOW), sw_vec_fma(n, sw_vec_splat(-SW_LN2_HIGH), bounded));
    return sw_vec_scale_exp2(sw_vec_exp2_near_0(rest * SW_LOG2_E), n);
}

SW_INLINE sw_vec sw_vec_abs(sw_vec x) {
    return (sw_vec)((sw_vec_bits)x & 0x7fffffffu);
}

/* erfc(x)·exp(x²) for x >= 0, as a polynomial in 1/(1 + 0.4·x). */
SW_INLINE sw_vec sw_vec_erfc_scaled(sw_vec x) {
    const sw_vec t = 1.0f / sw_vec_fma(sw_vec_splat(0.4f), x, sw_vec_splat(1.0f));
    sw_vec p = sw_vec_splat(0.0286955996f);
    p = sw_vec_fma(p, t, sw_vec_splat(-0.0747481071f));
    p = sw_vec_fma(p, t, sw_vec_splat(-0.0636884624f));
    p = sw_vec_fma(p, t, sw_vec_splat(0.27579123f));
    p = sw_vec_fma(p, t, sw_vec_splat(-0.0685692981f));
    p = sw_vec_fma(p, t, sw_vec_splat(0.26863897f));
    p = sw_vec_fma(p, t, sw_vec_splat(0.177415893f));
    p = sw_vec_fma(p, t, sw_vec_splat(0.231355232f));
    p = sw_vec_fma(p, t, sw_vec_splat(0.225082567f));
    return sw_vec_fma(p, t, sw_vec_splat(2.64056375e-05f));
}

#endif
