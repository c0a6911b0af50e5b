/* The types of 8 bits against their definition, by real numbers: a code stands for mantissa · 2^exponent, and a number
 * becomes the nearest, ties to the even code. */
#include "core/fp8.h"
#include "core/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { CODES = 256, SIGN = 0x80 };

/* A type by the numbers of its paper. */
struct type {
    sw_fp8 which;
    int mantissa_bits, bias;
    int most_code; /* of the greatest number */
    double most;
};
static const struct type types[] = {{SW_FP8_E4M3, 3, 7, 0x7e, 448.0}, {SW_FP8_E5M2, 2, 15, 0x7b, 57344.0}};
enum { TYPES = sizeof types / sizeof types[0] };

static double magnitude_of(const struct type *type, int code) {
    const int one = 1 << type->mantissa_bits, fraction = code % one, exponent = code / one;
    return exponent == 0 ? ldexp(fraction, 1 - type->bias - type->mantissa_bits)
                         : ldexp(one + fraction, exponent - type->bias - type->mantissa_bits);
}

/* Returns the code of a finite number, by trying all. */
static int nearest(const struct type *type, double value) {
    int best = 0;
    for (int code = 1; code <= type->most_code; code++) {
        const double away = fabs(magnitude_of(type, code) - fabs(value));
        const double best_away = fabs(magnitude_of(type, best) - fabs(value));
        if (away < best_away || (away == best_away && code % 2 == 0))
            best = code;
    }
    return best | (signbit(value) ? SIGN : 0);
}

static void codes_are_the_numbers_of_the_paper(void **state) {
    (void)state;
    for (int t = 0; t < TYPES; t++) {
        assert_true(magnitude_of(&types[t], types[t].most_code) == types[t].most);
        for (int code = 0; code < CODES; code++) {
            const int magnitude = code & ~SIGN;
            const float value = sw_fp8_value(types[t].which, (uint8_t)code);
            if (magnitude > types[t].most_code) {
                assert_true(types[t].which == SW_FP8_E5M2 && magnitude == 0x7c ? isinf(value) : isnan(value));
                continue;
            }
            assert_true(fabs((double)value) == magnitude_of(&types[t], magnitude));
            assert_int_equal(signbit(value) != 0, code >= SIGN);
            assert_int_equal(sw_fp8_code(types[t].which, value), code);
        }
    }
}

static void ties_go_to_even_and_their_neighbours_do_not(void **state) {
    (void)state;
    for (int t = 0; t < TYPES; t++) {
        for (int code = 0; code < types[t].most_code; code++) {
            const float tie = (float)((magnitude_of(&types[t], code) + magnitude_of(&types[t], code + 1)) / 2.0);
            assert_int_equal(sw_fp8_code(types[t].which, tie), code + code % 2);
            assert_int_equal(sw_fp8_code(types[t].which, -tie), SIGN | (code + code % 2));
            assert_int_equal(sw_fp8_code(types[t].which, nextafterf(tie, 0.0f)), code);
            assert_int_equal(sw_fp8_code(types[t].which, nextafterf(tie, INFINITY)), code + 1);
        }
    }
}

static void random_numbers_round_to_the_nearest(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 1 << 14; i++) {
        const struct sw_rng_block random = sw_rng(13, 0, i);
        for (int t = 0; t < TYPES; t++) {
            const float value = ldexpf((float)(int32_t)random.word[0], (int)(random.word[1] % 40) - 51);
            assert_int_equal(sw_fp8_code(types[t].which, value), nearest(&types[t], (double)value));
        }
    }
}

static void what_is_too_large_becomes_the_greatest_and_nan_stays(void **state) {
    (void)state;
    for (int t = 0; t < TYPES; t++) {
        assert_int_equal(sw_fp8_code(types[t].which, 3e38f), types[t].most_code);
        assert_int_equal(sw_fp8_code(types[t].which, -1e6f), SIGN | types[t].most_code);
        assert_int_equal(sw_fp8_code(types[t].which, NAN) & ~SIGN, SW_FP8_NAN);
        assert_int_equal(sw_fp8_code(types[t].which, -INFINITY) & ~SIGN, SW_FP8_NAN);
    }
}

static void scales_are_the_least_powers_of_two_that_fit(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 1 << 12; i++) {
        const struct sw_rng_block random = sw_rng(17, 0, i);
        const float largest = ldexpf(1.0f + (float)(random.word[0] >> 9) * 0x1p-23f, (int)(random.word[1] % 200) - 90);
        for (int t = 0; t < TYPES; t++) {
            float inverse;
            const float scale = sw_fp8_scale(types[t].which, sw_fp8_bits(largest), &inverse);
            assert_true(scale * inverse == 1.0f);
            if (scale > sw_fp8_power(SW_FP8_LEAST_EXPONENT))
                assert_true((double)largest * (double)inverse > types[t].most / 2.0);
            assert_true((double)largest * (double)inverse <= types[t].most);
        }
    }
    float inverse;
    assert_true(isnan(sw_fp8_scale(SW_FP8_E4M3, sw_fp8_bits(INFINITY), &inverse)) && isnan(inverse));
    assert_true(sw_fp8_scale(SW_FP8_E5M2, 0, &inverse) == sw_fp8_power(SW_FP8_LEAST_EXPONENT));
}

/* Makes the codes of a grain's first elements and returns the scale that they say. */
static float grain_of(const float *values, int count, uint8_t *codes) {
    uint32_t largest = 0;
    for (int i = 0; i < count; i++) {
        const uint32_t bits = sw_fp8_bits(values[i]) & 0x7fffffffu;
        largest = bits > largest ? bits : largest;
    }
    for (int i = 0; i < count; i++)
        codes[i] = sw_fp8_grain_code(sw_fp8_scale_byte(largest), i, values[i]);
    return sw_fp8_grain_scale(codes);
}

static void a_grain_holds_its_scale(void **state) {
    enum { COUNT = 16 };
    (void)state;
    for (int exponent = -126; exponent <= 127; exponent++) {
        float values[COUNT];
        uint8_t codes[COUNT];
        for (int i = 0; i < COUNT; i++)
            values[i] = ldexpf((float)(i % 2 == 0 ? 1 : -1) * (1.0f + (float)i / COUNT), exponent);
        const float scale = grain_of(values, COUNT, codes);
        float inverse;
        assert_true(scale == sw_fp8_scale(SW_FP8_E4M3, sw_fp8_bits(fabsf(values[COUNT - 1])), &inverse));
        for (int i = 0; i < COUNT && exponent >= -90; i++) {
            const double got = (double)sw_fp8_value(SW_FP8_E4M3, codes[i]) * (double)scale, want = (double)values[i];
            /* Half a step of 1/8 or, where the lowest bit is the scale's, one and a half; the greatest code may not
             * become NaN's. */
            assert_true(fabs(got - want) <= fabs(want) * (i < SW_FP8_EXPONENT_CODES ? 3.0 / 16 : 1.0 / 16));
        }
    }
}

static void a_grain_that_is_not_finite_is_nan(void **state) {
    float values[SW_FP8_EXPONENT_CODES] = {1.0f, -INFINITY, 2.0f};
    uint8_t codes[SW_FP8_EXPONENT_CODES];
    (void)state;
    assert_true(isnan(grain_of(values, SW_FP8_EXPONENT_CODES, codes)));
    for (int i = 0; i < SW_FP8_EXPONENT_CODES; i++)
        assert_true(isnan(sw_fp8_value(SW_FP8_E4M3, codes[i])));
    /* The greatest number does not look like NaN where it holds a bit of the scale. */
    for (int i = 0; i < SW_FP8_EXPONENT_CODES; i++)
        values[i] = 448.0f;
    assert_true(grain_of(values, SW_FP8_EXPONENT_CODES, codes) == 1.0f);
    for (int i = 0; i < SW_FP8_EXPONENT_CODES; i++)
        assert_true(sw_fp8_value(SW_FP8_E4M3, codes[i]) >= 416.0f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_are_the_numbers_of_the_paper),
        cmocka_unit_test(ties_go_to_even_and_their_neighbours_do_not),
        cmocka_unit_test(random_numbers_round_to_the_nearest),
        cmocka_unit_test(what_is_too_large_becomes_the_greatest_and_nan_stays),
        cmocka_unit_test(scales_are_the_least_powers_of_two_that_fit),
        cmocka_unit_test(a_grain_holds_its_scale),
        cmocka_unit_test(a_grain_that_is_not_finite_is_nan),
    };
    return cmocka_run_group_tests_name("core/fp8", tests, NULL, NULL);
}
