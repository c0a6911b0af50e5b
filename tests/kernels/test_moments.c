/* The reference's moments in bf16 and 8 bits: the numbers of all codes as the paper defines them, and what rounding
 * promises, from drawn and from extreme values. Other implementations are compared with the reference in
 * test_update.c. */
#include "tests/kernels/support.h"

#include "core/rng.h"
#include "kernels/moments.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { BLOCK = SW_MOMENT_BLOCK_ELEMS, CODES = 256, LAST_M = 128, LAST_V = 255 };

/* A record of one grain, of which the tests use the first block. */
struct narrow {
    struct buffer memory;
    struct sw_record_parts parts;
    sw_optimizer_format format;
};

static struct narrow make_narrow(sw_optimizer_format format) {
    struct narrow narrow = {.memory = buffer_zeros(sw_optimizer_grain_bytes(format)), .format = format};
    narrow.parts = sw_record_parts(format, false, narrow.memory.data);
    return narrow;
}

static struct sw_moment_rounding rounding_of(sw_rounding rounding, uint64_t seed) {
    return (struct sw_moment_rounding){.rounding = rounding, .seed = seed, .unit = 3, .step = 7};
}

static void round_trip(const struct narrow *narrow, const struct sw_moment_rounding *how, const float *m,
                       const float *v, float *out_m, float *out_v) {
    sw_moments_round(narrow->format, how, 0, m, v, &narrow->parts);
    sw_moments_widen(narrow->format, &narrow->parts, 0, out_m, out_v);
}

/* The number of a code of v, or of the `code`-th of m from 0.0 up: the middles of equal parts of a decade, as
 * bitsandbytes' create_dynamic_map makes them, of which the first decade has `first_parts`. */
static double paper_number(int code, int first_parts, int last) {
    if (code == 0 || code == last)
        return code == 0 ? 0.0 : 1.0;
    int parts = first_parts, before = 1;
    double power = 1e-6;
    for (; code >= before + parts; parts *= 2, power *= 10.0)
        before += parts;
    const double part = 0.9 / parts;
    return power * (0.1 + part * (code - before) + part / 2.0);
}

static double number_m(int steps) {
    return steps < 0 ? -paper_number(-steps, 1, LAST_M) : paper_number(steps, 1, LAST_M);
}

static double number_v(int code) {
    return paper_number(code, 2, LAST_V);
}

static void numbers_of_codes(void **state) {
    (void)state;
    struct narrow narrow = make_narrow(SW_OPTIMIZER_8BIT);
    float m[BLOCK], v[BLOCK];
    for (int code = 0; code < CODES; code++)
        narrow.parts.m[code] = narrow.parts.v[code] = (char)code;
    narrow.parts.m_scale[0] = narrow.parts.v_scale[0] = 1.0f;
    sw_moments_widen(SW_OPTIMIZER_8BIT, &narrow.parts, 0, m, v);
    for (int code = 0; code < CODES; code++) {
        const double want_m = number_m(code <= LAST_M ? code : code - CODES), want_v = number_v(code);
        assert_true(fabs(m[code] - want_m) <= 0x1p-23 * fabs(want_m));
        assert_true(fabs(v[code] - want_v) <= 0x1p-23 * want_v);
    }
    assert_true(m[0] == 0.0f && v[0] == 0.0f && m[LAST_M] == 1.0f && v[LAST_V] == 1.0f);
    buffer_free(&narrow.memory);
}

/* A stored number rounds to itself, for nearest, whatever its scale. */
static void numbers_round_to_themselves(void **state) {
    (void)state;
    static const float scales[] = {1.0f, 3.7e-5f, 1e30f, FLT_MAX, 1e-30f, FLT_MIN};
    struct narrow narrow = make_narrow(SW_OPTIMIZER_8BIT);
    const struct sw_moment_rounding how = rounding_of(SW_ROUND_NEAREST, 0);
    for (size_t s = 0; s < sizeof scales / sizeof scales[0]; s++) {
        float m[BLOCK], v[BLOCK];
        const bool exact = scales[s] * 1e-8f >= FLT_MIN; /* denormal numbers fall together */
        for (int code = 0; code < CODES; code++)
            narrow.parts.m[code] = narrow.parts.v[code] = (char)code;
        narrow.parts.m_scale[0] = narrow.parts.v_scale[0] = scales[s];
        sw_moments_widen(SW_OPTIMIZER_8BIT, &narrow.parts, 0, m, v);
        sw_moments_round(SW_OPTIMIZER_8BIT, &how, 0, m, v, &narrow.parts);
        assert_true(narrow.parts.m_scale[0] == scales[s] && narrow.parts.v_scale[0] == scales[s]);
        for (int code = 0; code < CODES && exact; code++) {
            assert_int_equal((uint8_t)narrow.parts.m[code], code);
            assert_int_equal((uint8_t)narrow.parts.v[code], code);
        }
    }
    buffer_free(&narrow.memory);
}

/* Fills a block with magnitudes from 1 down to below the least number, each as likely in every decade, and the scale.
 */
static void draw_block(uint64_t stream, float scale, float m[BLOCK], float v[BLOCK]) {
    for (int i = 0; i < BLOCK; i++) {
        const double exponent = -7.5 * sw_rng_uniform(test_seed(), stream, (uint64_t)i);
        const double sign = sw_rng(test_seed(), stream, (uint64_t)i + BLOCK).word[0] & 1 ? 1.0 : -1.0;
        v[i] = (float)pow(10.0, exponent) * scale;
        m[i] = (float)sign * v[i];
    }
    m[0] = v[0] = scale;
}

/* Returns the largest code whose number is not above y. */
static int code_below(double (*number)(int), int first, int last, double y) {
    while (first < last && number(first + 1) <= y)
        first++;
    return first;
}

/* Fails unless `got` is one of the two numbers around y; nearest: the one that is nearer, but for an error of fp32. */
static void check_neighbour(double (*number)(int), int first, int last, double y, double got, bool nearest) {
    const int code = code_below(number, first, last, y);
    const double low = number(code), high = number(code < last ? code + 1 : last), error = 1e-6 * fabs(y) + 1e-12;
    assert_true(fabs(got - low) <= error || fabs(got - high) <= error);
    if (nearest)
        assert_true(fabs(got - y) <= fmin(fabs(low - y), fabs(high - y)) + 1e-5 * (high - low) + 2.0 * error);
}

static void rounds_to_neighbours(void **state) {
    (void)state;
    struct narrow narrow = make_narrow(SW_OPTIMIZER_8BIT);
    for (uint64_t draw = 0; draw < 100; draw++) {
        const float scale = powf(10.0f, (float)(draw % 21) - 10.0f);
        const struct sw_moment_rounding how = rounding_of(draw % 2 ? SW_ROUND_NEAREST : SW_ROUND_STOCHASTIC, draw);
        float m[BLOCK], v[BLOCK], got_m[BLOCK], got_v[BLOCK];
        draw_block(draw, scale, m, v);
        round_trip(&narrow, &how, m, v, got_m, got_v);
        for (int i = 0; i < BLOCK; i++) {
            const bool nearest = how.rounding == SW_ROUND_NEAREST, least = v[i] < 0.325e-6f * scale;
            check_neighbour(number_m, -127, LAST_M, m[i] / scale, got_m[i] / scale, nearest);
            check_neighbour(number_v, 0, LAST_V, v[i] / scale, got_v[i] / scale, nearest && !least);
            assert_true(got_v[i] > 0.0f);
        }
    }
    buffer_free(&narrow.memory);
}

/* The mean over many seeds is the value, within six deviations of the mean. A v below the least number and an m below
 * the last negative number have one neighbour only. */
static void stochastic_rounding_is_unbiased(void **state) {
    (void)state;
    enum { SEEDS = 4000 };
    static const sw_optimizer_format formats[] = {SW_OPTIMIZER_8BIT, SW_OPTIMIZER_BF16};
    for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
        struct narrow narrow = make_narrow(formats[f]);
        float m[BLOCK], v[BLOCK], got_m[BLOCK], got_v[BLOCK];
        double sum_m[BLOCK] = {0}, sum_v[BLOCK] = {0}, squares_m[BLOCK] = {0}, squares_v[BLOCK] = {0};
        draw_block(77, 1.0f, m, v);
        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            const struct sw_moment_rounding how = rounding_of(SW_ROUND_STOCHASTIC, seed);
            round_trip(&narrow, &how, m, v, got_m, got_v);
            for (int i = 0; i < BLOCK; i++) {
                sum_m[i] += got_m[i] - m[i];
                sum_v[i] += got_v[i] - v[i];
                squares_m[i] += pow(got_m[i] - m[i], 2.0);
                squares_v[i] += pow(got_v[i] - v[i], 2.0);
            }
        }
        for (int i = 0; i < BLOCK; i++) {
            const double grid = 4.0 * 0x1p-16; /* the random numbers' own steps */
            if (m[i] > -0.99f)
                assert_true(fabs(sum_m[i]) <= 6.0 * sqrt(squares_m[i]) + SEEDS * grid * fabs((double)m[i]));
            if (v[i] > 0.33e-6f)
                assert_true(fabs(sum_v[i]) <= 6.0 * sqrt(squares_v[i]) + SEEDS * grid * v[i]);
        }
        buffer_free(&narrow.memory);
    }
}

/* The random words of elements are their own: neighbours, steps, units and seeds round apart. */
static void random_words_differ(void **state) {
    (void)state;
    struct narrow narrow = make_narrow(SW_OPTIMIZER_8BIT);
    float m[BLOCK], v[BLOCK], first_m[BLOCK], first_v[BLOCK], got_m[BLOCK], got_v[BLOCK];
    for (int i = 0; i < BLOCK; i++)
        m[i] = v[i] = i == 0 ? 1.0f : (float)((number_m(100) + number_m(101)) / 2.0);
    struct sw_moment_rounding how = rounding_of(SW_ROUND_STOCHASTIC, 1);
    round_trip(&narrow, &how, m, v, first_m, first_v);
    for (int which = 0; which < 4; which++) {
        how = rounding_of(SW_ROUND_STOCHASTIC, 1);
        how.seed += which == 0;
        how.unit += which == 1;
        how.step += which == 2;
        how.first_elem += which == 3 ? BLOCK : 0;
        round_trip(&narrow, &how, m, v, got_m, got_v);
        int moved = 0, up = 0;
        for (int i = 1; i < BLOCK; i++) {
            moved += got_m[i] != first_m[i];
            up += got_m[i] > m[i];
        }
        assert_in_range(moved, BLOCK / 4, 3 * BLOCK / 4);
        assert_in_range(up, BLOCK / 4, 3 * BLOCK / 4);
    }
    buffer_free(&narrow.memory);
}

/* Every value gives finite moments, zeros stay zeros, and a v above zero stays above. */
static void extreme_values(void **state) {
    (void)state;
    static const float values[] = {INFINITY, 1e30f, FLT_MAX, FLT_MIN, 1e-40f, 1.4e-45f, 1.0f, 3e38f, 1e-38f};
    static const sw_optimizer_format formats[] = {SW_OPTIMIZER_8BIT, SW_OPTIMIZER_BF16};
    enum { VALUES = sizeof values / sizeof values[0] };
    for (int f = 0; f < 2; f++) {
        struct narrow narrow = make_narrow(formats[f]);
        for (int which = 0; which < 4 * VALUES; which++) {
            const struct sw_moment_rounding how = rounding_of(which % 2 ? SW_ROUND_NEAREST : SW_ROUND_STOCHASTIC, 9);
            const bool alone = which / 2 % 2;
            float m[BLOCK] = {0}, v[BLOCK] = {0}, got_m[BLOCK], got_v[BLOCK];
            for (int i = 0; i < BLOCK; i++)
                if (i % 3 != 0 && (!alone || i == 1)) {
                    v[i] = i % 2 ? values[which / 4] : 1e-3f * values[which / 4];
                    m[i] = i % 5 ? v[i] : -v[i];
                }
            round_trip(&narrow, &how, m, v, got_m, got_v);
            for (int i = 0; i < BLOCK; i++) {
                assert_true(isfinite(got_m[i]) && isfinite(got_v[i]));
                assert_true((v[i] > 0.0f) == (got_v[i] > 0.0f) && (m[i] != 0.0f || got_m[i] == 0.0f));
                assert_true(got_m[i] == 0.0f || signbit(got_m[i]) == signbit(m[i]));
            }
            if (formats[f] == SW_OPTIMIZER_8BIT)
                assert_true(got_v[1] == fmaxf(fminf(v[1], FLT_MAX), FLT_MIN) || v[1] < FLT_MIN);
        }
        buffer_free(&narrow.memory);
    }
}

/* A block of zeros has scales and codes 0, so that padding stays zeros, byte for byte. */
static void zeros_stay_zeros(void **state) {
    (void)state;
    for (int format = SW_OPTIMIZER_FP32; format < SW_OPTIMIZER_FORMATS; format++) {
        struct buffer zeros = buffer_zeros(sw_optimizer_grain_bytes(format));
        struct buffer record = buffer_make(zeros.bytes);
        struct buffer fp32 = buffer_zeros(sw_optimizer_grain_bytes(SW_OPTIMIZER_FP32));
        for (int wide = 0; wide < (format == SW_OPTIMIZER_FP32 ? 1 : 2); wide++) {
            const struct sw_moment_rounding how = rounding_of(SW_ROUND_STOCHASTIC, 2);
            sw_record_from_fp32((sw_optimizer_format)format, wide != 0, &how, fp32.data, record.data);
            assert_memory_equal(record.data, zeros.data, (size_t)zeros.bytes);
            sw_record_to_fp32((sw_optimizer_format)format, wide != 0, record.data, fp32.data);
            for (int64_t i = 0; i < fp32.bytes / 4; i++)
                assert_true(((float *)fp32.data)[i] == 0.0f);
        }
        buffer_free(&zeros);
        buffer_free(&record);
        buffer_free(&fp32);
    }
}

/* Masters pass every format unchanged, and so do the moments of wide grains. */
static void conversions_keep_masters(void **state) {
    (void)state;
    const int64_t bytes = sw_optimizer_grain_bytes(SW_OPTIMIZER_FP32);
    struct buffer from = buffer_random(SW_F32, bytes / 4, 5, 1.0f), back = buffer_make(bytes);
    float *all = from.data;
    for (int64_t i = 0; i < SW_GRAIN_ELEMS; i++)
        all[2 * SW_GRAIN_ELEMS + i] *= all[2 * SW_GRAIN_ELEMS + i];
    for (int format = SW_OPTIMIZER_FP32; format < SW_OPTIMIZER_FORMATS; format++) {
        for (int wide = 0; wide < (format == SW_OPTIMIZER_FP32 ? 1 : 2); wide++) {
            struct buffer record = buffer_make(sw_optimizer_grain_bytes((sw_optimizer_format)format));
            const struct sw_moment_rounding how = rounding_of(SW_ROUND_NEAREST, 0);
            const int64_t elems = wide ? SW_WIDE_GRAIN_ELEMS : SW_GRAIN_ELEMS;
            sw_record_from_fp32((sw_optimizer_format)format, wide != 0, &how, from.data, record.data);
            sw_record_to_fp32((sw_optimizer_format)format, wide != 0, record.data, back.data);
            const bool exact = wide || format == SW_OPTIMIZER_FP32;
            for (int vector = 0; vector < SW_OPTIMIZER_VECTORS; vector++)
                for (int64_t i = 0; i < elems; i++) {
                    const float want = all[vector * SW_GRAIN_ELEMS + i];
                    const float got = ((float *)back.data)[vector * SW_GRAIN_ELEMS + i];
                    const float error = exact || vector == 0 ? 0.0f : 0.02f * fabsf(want) + 0.1f;
                    assert_true(fabsf(got - want) <= error);
                }
            buffer_free(&record);
        }
    }
    buffer_free(&from);
    buffer_free(&back);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_of_codes),     cmocka_unit_test(numbers_round_to_themselves),
        cmocka_unit_test(rounds_to_neighbours), cmocka_unit_test(stochastic_rounding_is_unbiased),
        cmocka_unit_test(random_words_differ),  cmocka_unit_test(extreme_values),
        cmocka_unit_test(zeros_stay_zeros),     cmocka_unit_test(conversions_keep_masters)};
    return run_tests_of(tests, 0, tests, sizeof tests / sizeof tests[0]);
}
