/* The levels of a frozen base's formats against their publications. */
#include "core/base_format.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

/* Returns the number that a standard normal number is below with a probability. */
static double quantile(double probability) {
    double low = -10.0, high = 10.0;
    for (int i = 0; i < 100; i++) {
        const double middle = (low + high) / 2.0;
        if (erfc(-middle / sqrt(2.0)) / 2.0 < probability)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The levels are quantiles at equal distances from one half to an offset, eight above 0 and seven below, over the
 * largest (create_normal_map of bitsandbytes' functional.py). */
static void levels_are_quantiles(void **state) {
    const double offset = 0.9677083, largest = quantile(offset);
    (void)state;
    for (int code = 0; code < SW_NF4_LEVELS; code++) {
        const int from_zero = code - SW_NF4_ZERO, parts = from_zero < 0 ? 7 : 8;
        const double level = quantile(0.5 + (offset - 0.5) * abs(from_zero) / parts) / largest;
        assert_true(fabs((double)sw_nf4_level(code) - copysign(level, from_zero)) < 1e-6);
    }
    assert_true(sw_nf4_level(SW_NF4_ZERO) == 0.0f);
}

static int ascending(const void *a, const void *b) {
    const double first = *(const double *)a, second = *(const double *)b;
    return (first > second) - (first < second);
}

/* Makes the levels of scales as create_dynamic_map of bitsandbytes' functional.py does: for each of seven decades the
 * midpoints of twice as many parts as before, with both signs; 0; and 1. */
static void make_dynamic_map(double map[SW_NF4_SCALE_LEVELS]) {
    int count = 0;
    for (int decade = 0; decade < 7; decade++) {
        const int parts = 1 << decade;
        for (int part = 0; part < parts; part++) {
            const double middle = 0.1 + 0.9 * (part + 0.5) / parts;
            map[count++] = pow(10.0, decade - 6) * middle;
            map[count++] = -pow(10.0, decade - 6) * middle;
        }
    }
    map[count++] = 0.0;
    map[count++] = 1.0;
    assert_int_equal(count, SW_NF4_SCALE_LEVELS);
    qsort(map, SW_NF4_SCALE_LEVELS, sizeof map[0], ascending);
}

static void levels_of_scales_are_the_dynamic_type(void **state) {
    double map[SW_NF4_SCALE_LEVELS];
    (void)state;
    make_dynamic_map(map);
    for (int code = 0; code < SW_NF4_SCALE_LEVELS; code++)
        assert_true(fabs((double)sw_nf4_scale_level(code) - map[code]) <= 0x1p-24 * fabs(map[code]) * 1.0001);
    assert_true(sw_nf4_scale_level(SW_NF4_SCALE_ZERO) == 0.0f && sw_nf4_scale_level(SW_NF4_SCALE_ONE) == 1.0f);
}

static void scales_stay_in_their_range(void **state) {
    (void)state;
    assert_true(sw_nf4_scale(0.5f, 2.0f, 3.0f) == 4.0f);
    assert_true(sw_nf4_scale(-1.0f, 2.0f, 1.0f) == 0.0f);
    assert_true(sw_nf4_scale(1.0f, FLT_MAX, FLT_MAX) == FLT_MAX);
    assert_true(isnan(sw_nf4_scale(0.0f, NAN, NAN)));
}

/* Section 3 of the paper: double quantization takes 8/64 + 32/(64·256) bits for each element. The record adds the
 * offset and zeros. */
static void records_take_the_bits_of_the_paper(void **state) {
    const struct sw_nf4_record record = {0};
    const double scales = (double)(sizeof record.scale_codes + sizeof record.spread) * 8.0 / SW_GRAIN_ELEMS;
    (void)state;
    assert_true(fabs(scales - (8.0 / 64.0 + 32.0 / (64.0 * 256.0))) < 1e-12);
    assert_int_equal(sw_base_grain_bytes(SW_BASE_NF4), 8512);
    assert_int_equal(sw_base_grain_bytes(SW_BASE_INT8), 16640);
}

/* Section 5.3.3 of the specification of the formats: the numbers of e2m1 and of e8m0. */
static void mxfp4_has_the_numbers_of_its_specification(void **state) {
    static const float magnitudes[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    (void)state;
    for (int code = 0; code < SW_MXFP4_LEVELS; code++) {
        const float level = sw_mxfp4_level(code);
        assert_true(fabsf(level) == magnitudes[code % 8] && (signbit(level) != 0) == (code >= 8));
    }
    for (unsigned byte = 0; byte < (unsigned)SW_MXFP4_SCALE_NAN; byte++)
        assert_true(sw_mxfp4_scale(byte) == ldexpf(1.0f, (int)byte - 127));
    assert_true(isnan(sw_mxfp4_scale(SW_MXFP4_SCALE_NAN)));
}

static void stored_formats_keep_the_bytes_of_a_checkpoint(void **state) {
    (void)state;
    assert_int_equal(sw_base_grain_bytes(SW_BASE_FP8), SW_GRAIN_ELEMS + SW_GRAIN_ELEMS / 128 * 4);
    assert_int_equal(sw_base_grain_bytes(SW_BASE_MXFP4), SW_GRAIN_ELEMS / 2 + SW_GRAIN_ELEMS / 32);
    assert_int_equal(sw_base_stored_elems(SW_BASE_FP8), 128);
    assert_int_equal(sw_base_stored_elems(SW_BASE_MXFP4), 32);
    assert_int_equal(sw_base_stored_elems(SW_BASE_NF4), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_are_quantiles),
        cmocka_unit_test(levels_of_scales_are_the_dynamic_type),
        cmocka_unit_test(scales_stay_in_their_range),
        cmocka_unit_test(records_take_the_bits_of_the_paper),
        cmocka_unit_test(mxfp4_has_the_numbers_of_its_specification),
        cmocka_unit_test(stored_formats_keep_the_bytes_of_a_checkpoint),
    };
    return cmocka_run_group_tests_name("core/base_format", tests, NULL, NULL);
}
