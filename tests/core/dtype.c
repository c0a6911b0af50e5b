/* Conversion to the 16-bit types, against the definition: the nearest number, ties to the even one. */
#include "core/dtype.h"
#include "core/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { BF16_INFINITY = 0x7f80, BF16_SIGN = 0x8000, BF16_QUIET = 0x40, BF16_VALUES = 0x10000 };

static float float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* A bf16's magnitude as a real number; infinity counts as the number after the largest finite one. */
static double magnitude_of(uint32_t bf16_bits) {
    if (bf16_bits == BF16_INFINITY)
        return ldexp(1.0, 128);
    const int exponent = (int)(bf16_bits >> 7), fraction = (int)(bf16_bits & 0x7f);
    return exponent == 0 ? ldexp(fraction, -133) : ldexp(128 + fraction, exponent - 134);
}

/* The nearest bf16 of a number that is not NaN, found from the magnitudes of its two neighbours. */
static sw_bf16 nearest_bf16(uint32_t float_bits) {
    const uint32_t sign = float_bits >> 31 ? BF16_SIGN : 0;
    const uint32_t below = (float_bits & 0x7fffffffu) >> 16;
    if (below == BF16_INFINITY)
        return (sw_bf16)(sign | BF16_INFINITY);
    const double magnitude = fabs((double)float_of_bits(float_bits));
    const double to_below = magnitude - magnitude_of(below), to_above = magnitude_of(below + 1) - magnitude;
    const bool up = to_above < to_below || (to_above == to_below && below % 2 == 1);
    return (sw_bf16)(sign | (below + up));
}

static void every_bf16_comes_back(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < BF16_VALUES; bits++) {
        const float wide = sw_bf16_to_f32((sw_bf16)bits);
        const bool is_nan = (bits & ~(uint32_t)BF16_SIGN) > BF16_INFINITY;
        assert_int_equal(isnan(wide) != 0, is_nan);
        assert_int_equal(sw_f32_to_bf16(wide), is_nan ? bits | BF16_QUIET : bits);
        if (!is_nan && bits < BF16_INFINITY)
            assert_true((double)wide == magnitude_of(bits));
    }
}

static void ties_go_to_even_and_their_neighbours_do_not(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < BF16_INFINITY; bits++) {
        const uint32_t tie = bits << 16 | 0x8000;
        assert_int_equal(sw_f32_to_bf16(float_of_bits(tie)), bits + bits % 2);
        assert_int_equal(sw_f32_to_bf16(float_of_bits(tie - 1)), bits);
        assert_int_equal(sw_f32_to_bf16(float_of_bits(tie + 1)), bits + 1);
        assert_int_equal(sw_f32_to_bf16(-float_of_bits(tie + 1)), BF16_SIGN | (bits + 1));
    }
}

static void random_numbers_round_to_the_nearest(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 1 << 20; i++) {
        const uint32_t bits = sw_rng(11, 0, i).word[0];
        if (isnan(float_of_bits(bits)))
            continue;
        assert_int_equal(sw_f32_to_bf16(float_of_bits(bits)), nearest_bf16(bits));
    }
}

static void nan_stays_nan(void **state) {
    (void)state;
    static const uint32_t payloads[] = {0x7f800001, 0x7fffffff, 0x7fc00000, 0xff800001, 0xffffffff, 0x7f80ffff};
    for (size_t i = 0; i < sizeof payloads / sizeof payloads[0]; i++) {
        const sw_bf16 narrow = sw_f32_to_bf16(float_of_bits(payloads[i]));
        assert_true(isnan(sw_bf16_to_f32(narrow)));
        assert_int_equal(narrow >> 15, payloads[i] >> 31);
    }
}

enum { F16_INFINITY = 0x7c00, F16_QUIET = 0x200, F16_VALUES = 0x10000 };

/* A finite fp16's magnitude as a real number; infinity counts as the number after the largest finite one. */
static double f16_magnitude(uint32_t bits) {
    const int exponent = (int)(bits >> 10), fraction = (int)(bits & 0x3ff);
    return exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);
}

/* By bisection among all magnitudes in order: knows nothing of fp32's bits. */
static sw_f16 nearest_f16(float value) {
    const double magnitude = fabs((double)value);
    uint32_t below = 0, above = F16_INFINITY;
    if (magnitude >= f16_magnitude(F16_INFINITY))
        return (sw_f16)((signbit(value) ? 0x8000 : 0) | F16_INFINITY);
    while (above - below > 1) {
        const uint32_t middle = (below + above) / 2;
        if (f16_magnitude(middle) <= magnitude)
            below = middle;
        else
            above = middle;
    }
    const double down = magnitude - f16_magnitude(below), up = f16_magnitude(above) - magnitude;
    const bool rounds_up = up < down || (up == down && below % 2 == 1);
    return (sw_f16)((signbit(value) ? 0x8000 : 0) | (rounds_up ? above : below));
}

static void every_f16_comes_back(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < F16_VALUES; bits++) {
        const float wide = sw_f16_to_f32((sw_f16)bits);
        const uint32_t magnitude = bits & 0x7fff;
        assert_int_equal(isnan(wide) != 0, magnitude > F16_INFINITY);
        assert_int_equal(signbit(wide) != 0, bits >> 15);
        assert_int_equal(sw_f32_to_f16(wide), magnitude > F16_INFINITY ? bits | F16_QUIET : bits);
        if (magnitude < F16_INFINITY)
            assert_true(fabs((double)wide) == f16_magnitude(magnitude));
        else if (magnitude == F16_INFINITY)
            assert_true(isinf(wide));
    }
}

static void f16_ties_go_to_even_and_their_neighbours_do_not(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < F16_INFINITY; bits++) {
        const float tie = (float)((f16_magnitude(bits) + f16_magnitude(bits + 1)) / 2.0);
        assert_int_equal(sw_f32_to_f16(tie), bits + bits % 2);
        assert_int_equal(sw_f32_to_f16(nextafterf(tie, 0.0f)), bits);
        assert_int_equal(sw_f32_to_f16(nextafterf(tie, INFINITY)), bits + 1);
        assert_int_equal(sw_f32_to_f16(-nextafterf(tie, INFINITY)), 0x8000 | (bits + 1));
    }
}

static void random_numbers_round_to_the_nearest_f16(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 1 << 20; i++) {
        /* Exponents from below the least subnormal number to past the greatest. */
        const uint32_t draw = sw_rng(12, 0, i).word[0], exponent = 100 + (draw >> 23) % 46;
        const uint32_t bits = (draw & 0x80000000u) | exponent << 23 | (sw_rng(12, 1, i).word[0] & 0x7fffff);
        assert_int_equal(sw_f32_to_f16(float_of_bits(bits)), nearest_f16(float_of_bits(bits)));
    }
}

static void extremes_of_f16(void **state) {
    (void)state;
    static const uint32_t nans[] = {0x7f800001, 0x7fffffff, 0x7fc00000, 0xff800001, 0xffffffff};
    for (size_t i = 0; i < sizeof nans / sizeof nans[0]; i++) {
        const sw_f16 narrow = sw_f32_to_f16(float_of_bits(nans[i]));
        assert_true(isnan(sw_f16_to_f32(narrow)));
        assert_int_equal(narrow >> 15, nans[i] >> 31);
    }
    assert_int_equal(sw_f32_to_f16(INFINITY), F16_INFINITY);
    assert_int_equal(sw_f32_to_f16(-3e38f), 0x8000 | F16_INFINITY);
    assert_int_equal(sw_f32_to_f16(-1e-45f), 0x8000);
}

static void elements_of_every_type(void **state) {
    (void)state;
    static const sw_dtype types[] = {SW_F32, SW_BF16, SW_F16};
    static const float want[] = {1.0f + 0x1p-12f, 1.0f, 1.0f}, finer[] = {1.0f + 0x1p-10f, 1.0f, 1.0f + 0x1p-10f};
    for (int t = 0; t < 3; t++) {
        float data[4] = {0};
        sw_dtype_store(types[t], data, 1, 1.0f + 0x1p-12f);
        sw_dtype_store(types[t], data, 2, 1.0f + 0x1p-10f);
        assert_true(sw_dtype_load(types[t], data, 0) == 0.0f);
        assert_true(sw_dtype_load(types[t], data, 1) == want[t]);
        assert_true(sw_dtype_load(types[t], data, 2) == finer[t]);
        assert_true(sw_dtype_load(types[t], data, 3) == 0.0f);
    }
}

/* At an odd address, as elements of a file may be. */
static void many_elements_are_as_single_ones(void **state) {
    (void)state;
    enum { COUNT = 1037 };
    static const sw_dtype types[] = {SW_F32, SW_BF16, SW_F16};
    float values[COUNT], back[COUNT];
    float rounded[COUNT];
    char moved[sizeof rounded + 1];
    for (int i = 0; i < COUNT; i++)
        values[i] = ldexpf(1.0f + (float)i / 777.0f, i % 60 - 30) * (i % 2 == 0 ? 1.0f : -1.0f);
    for (int t = 0; t < 3; t++) {
        const size_t bytes = COUNT * (size_t)sw_dtype_bytes(types[t]);
        sw_dtype_round(types[t], values, COUNT, rounded);
        memcpy(moved + 1, rounded, bytes);
        sw_dtype_widen(types[t], moved + 1, COUNT, back);
        for (int i = 0; i < COUNT; i++) {
            float one[1];
            sw_dtype_store(types[t], one, 0, values[i]);
            if (sw_dtype_load(types[t], rounded, i) != sw_dtype_load(types[t], one, 0) ||
                back[i] != sw_dtype_load(types[t], one, 0))
                fail_msg("%s: element %d, %g, becomes %g", sw_dtype_name(types[t]), i, (double)values[i],
                         (double)back[i]);
        }
    }
}

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Every fp16, and fp32 bits of all kinds, in runs that end between whole vectors. */
static void runs_of_f16_have_the_bits_of_single_ones(void **state) {
    (void)state;
    enum { RUN = 1021, RUNS = 1024 };
    static sw_f16 all[F16_VALUES];
    static float wide[F16_VALUES];
    float values[RUN];
    sw_f16 rounded[RUN];
    for (uint32_t bits = 0; bits < F16_VALUES; bits++)
        all[bits] = (sw_f16)bits;
    sw_dtype_widen(SW_F16, all, F16_VALUES, wide);
    for (uint32_t bits = 0; bits < F16_VALUES; bits++) {
        const float one = sw_f16_to_f32((sw_f16)bits);
        if (bits_of(wide[bits]) != bits_of(one))
            fail_msg("fp16 %04x widens to %a, alone to %a", bits, (double)wide[bits], (double)one);
    }
    for (uint64_t run = 0; run < RUNS; run++) {
        for (uint64_t i = 0; i < RUN; i++) {
            const uint32_t draw = sw_rng(13, run, i).word[0];
            /* Every other one near the range of fp16, where rounding has its edges. */
            values[i] = float_of_bits(i % 2 == 0 ? draw : (draw & 0x807fffffu) | (100 + (draw >> 23 & 63)) << 23);
        }
        sw_dtype_round(SW_F16, values, RUN, rounded);
        for (int i = 0; i < RUN; i++)
            if (rounded[i] != sw_f32_to_f16(values[i]))
                fail_msg("%a rounds to %04x, alone to %04x", (double)values[i], rounded[i], sw_f32_to_f16(values[i]));
    }
}

static void sizes_and_names(void **state) {
    (void)state;
    assert_int_equal(sw_dtype_bytes(SW_F32), 4);
    assert_int_equal(sw_dtype_bytes(SW_BF16), 2);
    assert_int_equal(sw_dtype_bytes(SW_F16), 2);
    assert_string_equal(sw_dtype_name(SW_F32), "fp32");
    assert_string_equal(sw_dtype_name(SW_BF16), "bf16");
    assert_string_equal(sw_dtype_name(SW_F16), "fp16");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_bf16_comes_back),
        cmocka_unit_test(ties_go_to_even_and_their_neighbours_do_not),
        cmocka_unit_test(random_numbers_round_to_the_nearest),
        cmocka_unit_test(nan_stays_nan),
        cmocka_unit_test(every_f16_comes_back),
        cmocka_unit_test(f16_ties_go_to_even_and_their_neighbours_do_not),
        cmocka_unit_test(random_numbers_round_to_the_nearest_f16),
        cmocka_unit_test(extremes_of_f16),
        cmocka_unit_test(elements_of_every_type),
        cmocka_unit_test(many_elements_are_as_single_ones),
        cmocka_unit_test(runs_of_f16_have_the_bits_of_single_ones),
        cmocka_unit_test(sizes_and_names),
    };
    return cmocka_run_group_tests_name("dtype", tests, NULL, NULL);
}
