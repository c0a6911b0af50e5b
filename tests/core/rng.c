/* The random numbers are the published generator's, the permutations are permutations, and the distributions have the
 * moments that they should have. Everything is a function of fixed seeds, so that nothing here can fail by chance. */
#include "core/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SAMPLES = 1 << 20 };

/* The known answers that Philox4x32-10's authors publish: counter words, key words, output words. */
static void philox_known_answers(void **state) {
    (void)state;
    static const struct {
        uint64_t counter, stream, seed;
        uint32_t word[4];
    } table[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x85a308d3243f6a88, 0x0370734413198a2e, 0x299f31d0a4093822, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        const struct sw_rng_block block = sw_rng(table[i].seed, table[i].stream, table[i].counter);
        assert_memory_equal(block.word, table[i].word, sizeof block.word);
    }
}

static void check_permutation(uint64_t seed, uint64_t stream, uint64_t count) {
    bool *seen = calloc(count, sizeof *seen);
    assert_non_null(seen);
    for (uint64_t index = 0; index < count; index++) {
        const uint64_t value = sw_rng_permute(seed, stream, index, count);
        if (value >= count || seen[value])
            fail_msg("seed %llu stream %llu count %llu: index %llu goes to %llu, which is %s", (unsigned long long)seed,
                     (unsigned long long)stream, (unsigned long long)count, (unsigned long long)index,
                     (unsigned long long)value, value >= count ? "outside" : "taken");
        seen[value] = true;
    }
    free(seen);
}

static void permutations_are_bijections(void **state) {
    (void)state;
    for (uint64_t count = 1; count <= 300; count++)
        check_permutation(count * 7919, count, count);
    for (uint64_t power = 512; power <= 65536; power *= 2) {
        check_permutation(1, 0, power - 1);
        check_permutation(1, 0, power);
        check_permutation(1, 0, power + 1);
    }
    check_permutation(UINT64_MAX, UINT64_MAX, 100003);
}

static void permutations_of_huge_counts_stay_inside(void **state) {
    (void)state;
    static const uint64_t counts[] = {(UINT64_C(1) << 32) + 1, UINT64_C(1) << 60, (UINT64_C(1) << 60) - 1};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        for (uint64_t index = 0; index < 1000; index++) {
            const uint64_t value = sw_rng_permute(42, 0, index, counts[i]);
            assert_true(value < counts[i]);
            assert_true(value != sw_rng_permute(42, 0, index + 1, counts[i]));
        }
}

/* A random permutation leaves about one index where it is, and two random permutations agree at about one index. */
static void permutations_depend_on_seed_and_stream(void **state) {
    (void)state;
    enum { COUNT = 10000 };
    int fixed = 0, same_seed = 0, same_stream = 0;
    for (uint64_t index = 0; index < COUNT; index++) {
        const uint64_t value = sw_rng_permute(1, 1, index, COUNT);
        fixed += value == index;
        same_seed += value == sw_rng_permute(1, 2, index, COUNT);
        same_stream += value == sw_rng_permute(2, 1, index, COUNT);
    }
    assert_true(fixed < 10 && same_seed < 10 && same_stream < 10);
}

static void assert_near(const char *what, double value, double expected, double tolerance) {
    if (!(fabs(value - expected) <= tolerance))
        fail_msg("%s is %.6g instead of %.6g (within %.2g)", what, value, expected, tolerance);
}

static void uniform_numbers_fill_the_interval(void **state) {
    (void)state;
    enum { BINS = 64 };
    double sum = 0, squares = 0, neighbours = 0, previous = 0.5, chi_square = 0;
    int bins[BINS] = {0};
    for (uint64_t i = 0; i < SAMPLES; i++) {
        const double value = sw_rng_uniform(3, 5, i);
        assert_true(value >= 0 && value < 1);
        bins[(int)(value * BINS)]++;
        sum += value;
        squares += value * value;
        neighbours += (value - 0.5) * (previous - 0.5);
        previous = value;
    }
    const double mean = sum / SAMPLES, expected_in_bin = (double)SAMPLES / BINS;
    for (int bin = 0; bin < BINS; bin++)
        chi_square += (bins[bin] - expected_in_bin) * (bins[bin] - expected_in_bin) / expected_in_bin;
    /* Four standard deviations of each statistic. */
    assert_near("the mean", mean, 0.5, 4 * sqrt(1.0 / 12 / SAMPLES));
    assert_near("the variance", squares / SAMPLES - mean * mean, 1.0 / 12, 4 * sqrt(1.0 / 180 / SAMPLES));
    assert_near("the covariance of neighbours", neighbours / SAMPLES, 0, 4 * (1.0 / 12) / sqrt(SAMPLES));
    assert_near("chi square of the bins", chi_square, BINS - 1, 4 * sqrt(2.0 * (BINS - 1)));
}

static void normal_numbers_have_normal_moments(void **state) {
    (void)state;
    double power[5] = {0}, beyond_two = 0, streams = 0;
    for (uint64_t i = 0; i < SAMPLES; i++) {
        const double value = (double)sw_rng_normal(3, 5, i);
        assert_true(isfinite(value));
        double term = 1;
        for (int exponent = 0; exponent < 5; exponent++) {
            power[exponent] += term / SAMPLES;
            term *= value;
        }
        beyond_two += fabs(value) > 2 ? 1.0 / SAMPLES : 0;
        streams += value * (double)sw_rng_normal(3, 6, i) / SAMPLES;
    }
    const double deviation = 4 / sqrt(SAMPLES);
    assert_near("the mean", power[1], 0, deviation);
    assert_near("the variance", power[2], 1, deviation * sqrt(2));
    assert_near("the third moment", power[3], 0, deviation * sqrt(15));
    assert_near("the fourth moment", power[4], 3, deviation * sqrt(96));
    assert_near("the share beyond two deviations", beyond_two, 0.0455003, deviation * sqrt(0.0455 * 0.9545));
    assert_near("the covariance of two streams", streams, 0, deviation);
}

/* Many at once have the bits of one at a time, wherever they begin and end. */
static void many_normals_are_the_single_ones(void **state) {
    (void)state;
    enum { COUNT = 1 << 20, ENDS = 130 };
    static float many[COUNT];
    const struct {
        uint64_t seed, stream, counter;
    } starts[] = {{1, 2, 0}, {UINT64_C(0x123456789abcdef), UINT64_MAX, 77}, {0, 0, UINT32_MAX - 1000}};
    for (size_t s = 0; s < sizeof starts / sizeof starts[0]; s++) {
        sw_rng_normals(starts[s].seed, starts[s].stream, starts[s].counter, COUNT, many);
        for (uint64_t i = 0; i < COUNT; i++) {
            const float one = sw_rng_normal(starts[s].seed, starts[s].stream, starts[s].counter + i);
            if (!(one == many[i]) || signbit(one) != signbit(many[i]))
                fail_msg("normal %llu of start %zu is %a and not %a", (unsigned long long)i, s, (double)many[i],
                         (double)one);
        }
    }
    for (int64_t count = 0; count < ENDS; count++) {
        many[count] = 7.0f;
        sw_rng_normals(5, 6, 7, count, many);
        assert_true(many[count] == 7.0f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_known_answers),
        cmocka_unit_test(permutations_are_bijections),
        cmocka_unit_test(permutations_of_huge_counts_stay_inside),
        cmocka_unit_test(permutations_depend_on_seed_and_stream),
        cmocka_unit_test(uniform_numbers_fill_the_interval),
        cmocka_unit_test(normal_numbers_have_normal_moments),
        cmocka_unit_test(many_normals_are_the_single_ones),
    };
    return cmocka_run_group_tests_name("rng", tests, NULL, NULL);
}
