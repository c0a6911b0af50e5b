/* Rounding to the 16-bit types and back, and the end of a gradient: its rounded values and the sums of squares by
 * grain. */
#include "tests/kernels/support.h"

#include "core/size.h"

#include <math.h>
#include <string.h>

enum { GRAINS = 5, ELEMS = GRAINS * SW_GRAIN_ELEMS };

/* The nearest bf16 by search among the two neighbours, ties to even: independent of the code's bit arithmetic. */
static float nearest_bf16(float value) {
    if (isnan(value) || isinf(value) || value == 0.0f)
        return value;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t below_bits = bits & 0xffff0000u;
    const bool odd = (below_bits >> 16) & 1u;
    float below, above;
    memcpy(&below, &below_bits, sizeof below);
    const uint32_t above_bits = below_bits + 0x10000u;
    memcpy(&above, &above_bits, sizeof above);
    /* Above the greatest finite value the next step would be 2^128. */
    const double above_value = isinf(above) ? copysign(0x1p128, value) : above;
    const double down = fabs((double)value - below), up = fabs(above_value - value);
    return down < up || (down == up && !odd) ? below : above;
}

/* Every kind of number: subnormals, ties, the edge of overflow, both signs, NaN and infinity. */
static struct buffer edge_cases(int64_t elems) {
    static const uint32_t highs[] = {0x0000, 0x0001, 0x007f, 0x0080, 0x3f80, 0x3f81, 0x7f7e, 0x7f7f, 0x4000, 0x7f80};
    static const uint32_t lows[] = {0x0000, 0x0001, 0x7fff, 0x8000, 0x8001, 0xffff};
    struct buffer buffer = buffer_random(SW_F32, elems, 9, 1.0f);
    int64_t at = 0;
    for (size_t h = 0; h < sizeof highs / sizeof highs[0]; h++) {
        for (size_t l = 0; l < sizeof lows / sizeof lows[0]; l++) {
            for (uint32_t sign = 0; sign < 2; sign++, at++) {
                const uint32_t bits = sign << 31 | highs[h] << 16 | lows[l];
                memcpy((float *)buffer.data + at, &bits, sizeof bits);
            }
        }
    }
    assert_true(at <= elems);
    return buffer;
}

static void casts(struct pair *pair) {
    static const int64_t sizes[] = {120, 121, 127, 511, 512, 513, 20011};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        struct buffer from = edge_cases(sizes[s]), to = buffer_make(sizes[s] * 2), same = buffer_make(sizes[s] * 4);
        assert_ok(sw_cast_from_f32(pair->stream, .type = SW_BF16, .elems = sizes[s], .from = from.data, .to = to.data));
        assert_ok(
            sw_cast_from_f32(pair->stream, .type = SW_F32, .elems = sizes[s], .from = from.data, .to = same.data));
        assert_same_bits("an fp32 cast", pair, from.bytes, same.data, from.data);
        for (int64_t i = 0; i < sizes[s]; i++) {
            const float want = nearest_bf16(((float *)from.data)[i]), got = element(SW_BF16, to.data, i);
            if (isnan(want))
                assert_true(isnan(got));
            else
                assert_memory_equal(&got, &want, sizeof got);
        }
        buffer_free(&from);
        buffer_free(&to);
        buffer_free(&same);
    }
}

/* The rows of a run are cast, and all others are neither read nor written. */
static void cast_of_a_run(struct pair *pair) {
    static const int64_t shapes[][2] = {{9, 7}, {40, 16}, {300, 129}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        const int64_t rows = shapes[s][0], cols = shapes[s][1], elems = rows * cols;
        for (int round = 0; round < 4; round++) {
            const int64_t first = round == 0 ? 0 : rows / 3, end = round == 1 ? first : rows - rows / (2 + round);
            struct buffer from = buffer_random(SW_F32, elems, 5, 1.0f), to = buffer_make(elems * 2);
            struct buffer ends = buffer_make(2 * (int64_t)sizeof(int32_t)), want = buffer_make(elems * 2);
            ((int32_t *)ends.data)[0] = (int32_t)first;
            ((int32_t *)ends.data)[1] = (int32_t)end;
            for (int64_t i = 0; i < elems; i++)
                if (i < first * cols || i >= end * cols)
                    ((float *)from.data)[i] = NAN;
            memset(to.data, 0xa5, (size_t)to.bytes);
            memset(want.data, 0xa5, (size_t)want.bytes);
            const float scale = round == 2 ? 1.0f : 0.7f;
            for (int64_t i = first * cols; i < end * cols; i++)
                sw_dtype_store(SW_BF16, want.data, i, scale * ((float *)from.data)[i]);
            const int32_t *of = ends.data;
            assert_ok(sw_cast_from_f32(pair->stream, .type = SW_BF16, .elems = elems, .from = from.data, .to = to.data,
                                       .run = {of, of + 1, end - first}, .cols = cols, .scale = scale));
            assert_same_bits("a cast of a run", pair, to.bytes, to.data, want.data);
            struct buffer *const all[] = {&from, &to, &ends, &want};
            for (size_t b = 0; b < sizeof all / sizeof all[0]; b++)
                buffer_free(all[b]);
        }
    }
}

static void rounding(void **state) {
    (void)state;
    for_each_device(casts);
    for_each_device(cast_of_a_run);
}

/* The nearest fp16, ties to even, as a multiple of the spacing where the value lies. */
static double nearest_f16(double value) {
    enum { LEAST_EXPONENT = -14, FRACTION_BITS = 10 };
    if (value == 0.0 || isnan(value) || isinf(value))
        return value;
    const int exponent = ilogb(value) < LEAST_EXPONENT ? LEAST_EXPONENT : ilogb(value);
    const double spacing = ldexp(1.0, exponent - FRACTION_BITS), rounded = rint(value / spacing) * spacing;
    return fabs(rounded) < 65536.0 ? rounded : copysign(INFINITY, value);
}

/* Numbers at the edges of fp16 and their neighbours, then random ones of every size. */
static struct buffer f16_edge_cases(int64_t elems) {
    static const float edges[] = {0.0f,         0x1p-25f,        0x1.8p-24f, 0x1p-24f,        0x1p-14f,
                                  0x1.ffcp-15f, 1.0f + 0x1p-11f, 65504.0f,   65520.0f,        65536.0f,
                                  3e38f,        1e-45f,          INFINITY,   1.0f + 0x3p-11f, 0x1.8p-25f};
    struct buffer buffer = buffer_random(SW_F32, elems, 10, 1.0f);
    float *values = buffer.data;
    for (int64_t i = 0; i < elems; i++)
        values[i] = ldexpf(values[i], (int)(i % 48) - 28);
    int64_t at = 0;
    for (size_t i = 0; i < sizeof edges / sizeof edges[0]; i++) {
        const float near[] = {nextafterf(edges[i], -INFINITY), edges[i], nextafterf(edges[i], INFINITY)};
        for (int j = 0; j < 6; j++)
            values[at++] = j < 3 ? near[j] : -near[j - 3];
    }
    static const uint32_t nans[] = {0x7fc00000, 0xffffffff, 0x7f800001, 0xff812345};
    memcpy(values + at, nans, sizeof nans);
    assert_true(at + 4 <= elems);
    return buffer;
}

/* A GPU makes every NaN the same one. */
static bool any_nan(const struct pair *pair) {
    return !sw_device_info(pair->device).host_memory;
}

static void f16_casts(struct pair *pair) {
    static const int64_t sizes[] = {94, 95, 511, 513, 20011};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        struct buffer from = f16_edge_cases(sizes[s]), to = buffer_make(sizes[s] * 2);
        assert_ok(sw_cast_from_f32(pair->stream, .type = SW_F16, .elems = sizes[s], .from = from.data, .to = to.data));
        for (int64_t i = 0; i < sizes[s]; i++) {
            const float value = ((float *)from.data)[i];
            if (isnan(value) && any_nan(pair)) {
                assert_true(isnan(element(SW_F16, to.data, i)));
                continue;
            }
            assert_int_equal(((sw_f16 *)to.data)[i], sw_f32_to_f16(value));
            if (!isnan(value))
                assert_true((double)element(SW_F16, to.data, i) == nearest_f16(value));
        }
        buffer_free(&from);
        buffer_free(&to);
    }
}

static void rounding_to_f16(void **state) {
    (void)state;
    for_each_device(f16_casts);
}

static void assert_same_floats(const struct pair *pair, int64_t elems, const float *got, const float *want) {
    for (int64_t i = 0; i < elems; i++)
        if (!any_nan(pair) || !isnan(got[i]) || !isnan(want[i]))
            assert_same_bits("a widened pattern", pair, sizeof *got, &got[i], &want[i]);
}

/* Every pattern of both types, NaN's payload included, at two alignments. */
static void widen_all(struct pair *pair) {
    enum { PATTERNS = 0x10000 };
    static const sw_dtype types[] = {SW_BF16, SW_F16};
    for (int t = 0; t < 2; t++) {
        for (int shift = 0; shift < 2; shift++) {
            struct buffer from = buffer_make((PATTERNS + shift) * 2), to = buffer_make(PATTERNS * 4);
            struct buffer want = buffer_make(PATTERNS * 4);
            uint16_t *patterns = (uint16_t *)from.data + shift;
            for (int64_t i = 0; i < PATTERNS; i++) {
                patterns[i] = (uint16_t)i;
                const float value = types[t] == SW_BF16 ? sw_bf16_to_f32((sw_bf16)i) : sw_f16_to_f32((sw_f16)i);
                memcpy((float *)want.data + i, &value, sizeof value);
            }
            assert_ok(sw_cast_to_f32(pair->stream, types[t], PATTERNS, patterns, to.data));
            assert_same_floats(pair, PATTERNS, to.data, want.data);
            buffer_free(&from);
            buffer_free(&to);
            buffer_free(&want);
        }
    }
}

static void widening(void **state) {
    (void)state;
    for_each_device(widen_all);
}

/* The contract's order by another route: partial p is a sum over p, p+256, ..., and the tree is a recursion. */
static double tree(const double *partial, int first, int stride, int count) {
    if (count == 1)
        return partial[first];
    return tree(partial, first, 2 * stride, count / 2) + tree(partial, first + stride, 2 * stride, count / 2);
}

static double grain_sum(sw_dtype type, const void *grads, int64_t grain) {
    enum { PARTIALS = 256 };
    double partial[PARTIALS] = {0};
    for (int p = 0; p < PARTIALS; p++) {
        for (int64_t i = p; i < SW_GRAIN_ELEMS; i += PARTIALS) {
            const double value = element(type, grads, grain * SW_GRAIN_ELEMS + i);
            partial[p] = fma(value, value, partial[p]);
        }
    }
    return tree(partial, 0, 1, PARTIALS);
}

static void assert_same_elements(const struct pair *pair, sw_dtype type, int64_t elems, const void *got,
                                 const void *want) {
    const int64_t size = sw_dtype_bytes(type);
    for (int64_t i = 0; i < elems; i++)
        if (!any_nan(pair) || !isnan(element(type, got, i)) || !isnan(element(type, want, i)))
            assert_same_bits("a rounded gradient", pair, size, (const char *)got + i * size,
                             (const char *)want + i * size);
}

static void finish(struct pair *pair, sw_dtype type) {
    struct buffer acc = buffer_random(SW_F32, ELEMS, 1, 3.0f);
    struct buffer got = buffer_make(ELEMS * sw_dtype_bytes(type)), want = buffer_make(got.bytes);
    struct buffer got_sums = buffer_make(GRAINS * 8), want_sums = buffer_make(GRAINS * 8);
    ((float *)acc.data)[SW_GRAIN_ELEMS + 1] = 3e38f; /* its square fits a double only */
    ((float *)acc.data)[3 * SW_GRAIN_ELEMS + 77] = NAN;
    assert_ok(sw_finish_gradient(pair->stream, .type = type, .elems = ELEMS, .acc = acc.data, .grads = got.data,
                                 .sums = got_sums.data));
    assert_ok(sw_finish_gradient(pair->ref, .type = type, .elems = ELEMS, .acc = acc.data, .grads = want.data,
                                 .sums = want_sums.data));
    assert_same_elements(pair, type, ELEMS, got.data, want.data);
    for (int64_t grain = 0; grain < GRAINS; grain++) {
        const double sum = ((double *)got_sums.data)[grain], direct = grain_sum(type, got.data, grain);
        if (grain == 3) {
            assert_true(isnan(sum) && isnan(((double *)want_sums.data)[grain]));
            continue;
        }
        assert_same_bits("a grain's sum", pair, 8, &sum, &((double *)want_sums.data)[grain]);
        assert_same_bits("a grain's sum, taken directly", pair, 8, &sum, &direct);
    }
    struct buffer *all[] = {&acc, &got, &want, &got_sums, &want_sums};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
}

static void finish_types(struct pair *pair) {
    for (int t = 0; t < TEST_TYPES; t++)
        finish(pair, test_types[t]);
}

static void finish_gradient(void **state) {
    (void)state;
    for_each_device(finish_types);
}

/* Kept in 8 bits: records of plain quantization, pages of zeros behind them, and the sums of what they stand for. A
 * block with a NaN makes its grain's sum NaN, a block of zeros stays zeros. */
static void finish_in_8_bits(struct pair *pair) {
    const int64_t record_bytes = sw_quant_grain_bytes(SW_QUANT_INT8);
    struct buffer acc = buffer_random(SW_F32, ELEMS, 1, 3.0f), plain = buffer_make(record_bytes);
    struct buffer got = buffer_make(GRAINS * SW_GRADS_8BIT_GRAIN_BYTES), want = buffer_make(got.bytes);
    struct buffer got_sums = buffer_make(GRAINS * 8), want_sums = buffer_make(GRAINS * 8);
    struct buffer values = buffer_make(SW_GRAIN_ELEMS * 4);
    float *elems = acc.data;
    elems[SW_GRAIN_ELEMS + 1] = 3e38f; /* its square fits a double only */
    elems[3 * SW_GRAIN_ELEMS + 77] = NAN;
    memset(elems + SW_QUANT_BLOCK_ELEMS, 0, SW_QUANT_BLOCK_ELEMS * sizeof *elems);
    elems[2 * SW_QUANT_BLOCK_ELEMS] = 1e-42f;
    memset(got.data, 0x5a, (size_t)got.bytes);
    assert_ok(sw_finish_gradient(pair->stream, .type = SW_BF16, .elems = ELEMS, .acc = acc.data, .grads = got.data,
                                 .sums = got_sums.data, .format = SW_GRADS_8BIT));
    assert_ok(sw_finish_gradient(pair->ref, .type = SW_BF16, .elems = ELEMS, .acc = acc.data, .grads = want.data,
                                 .sums = want_sums.data, .format = SW_GRADS_8BIT));
    assert_same_bits("gradients in 8 bits", pair, got.bytes, got.data, want.data);
    for (int64_t grain = 0; grain < GRAINS; grain++) {
        const char *record = (const char *)got.data + grain * SW_GRADS_8BIT_GRAIN_BYTES;
        const double sum = ((double *)got_sums.data)[grain];
        assert_ok(sw_quantize(pair->ref, SW_F32, SW_QUANT_INT8, 1, elems + grain * SW_GRAIN_ELEMS, plain.data));
        assert_same_bits("a record in 8 bits", pair, record_bytes, record, plain.data);
        for (int64_t i = record_bytes; i < SW_GRADS_8BIT_GRAIN_BYTES; i++)
            assert_int_equal(record[i], 0);
        for (int64_t i = 0; i < SW_GRAIN_ELEMS; i++)
            ((float *)values.data)[i] = sw_grads_8bit_at(got.data, grain * SW_GRAIN_ELEMS + i);
        const double direct = grain_sum(SW_F32, values.data, 0);
        assert_int_equal(isnan(sum), grain == 3);
        if (grain != 3)
            assert_same_bits("a grain's sum in 8 bits, taken directly", pair, 8, &sum, &direct);
    }
    struct buffer *all[] = {&acc, &plain, &got, &want, &got_sums, &want_sums, &values};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
}

static void finish_gradient_in_8_bits(void **state) {
    (void)state;
    for_each_device(finish_in_8_bits);
}

/* Grains of a kind each, and then ordinary ones. */
enum { ORDINARY, BF16_SUBNORMAL, F16_SUBNORMAL, F16_OVERFLOW, NOT_A_NUMBER, KINDS };

static struct buffer grains_of_all_kinds(int64_t grains) {
    struct buffer acc = buffer_random(SW_F32, grains * SW_GRAIN_ELEMS, 2, 1.0f);
    float *values = acc.data;
    for (int64_t i = 0; i < grains * SW_GRAIN_ELEMS; i++) {
        if (i / SW_GRAIN_ELEMS == BF16_SUBNORMAL)
            values[i] = ldexpf(values[i], -130);
        if (i / SW_GRAIN_ELEMS == F16_SUBNORMAL)
            values[i] = ldexpf(values[i], -20);
    }
    if (grains > F16_OVERFLOW)
        values[F16_OVERFLOW * SW_GRAIN_ELEMS + 16383] = -65520.0f;
    if (grains > NOT_A_NUMBER)
        values[NOT_A_NUMBER * SW_GRAIN_ELEMS + 300] = NAN;
    return acc;
}

static void assert_kinds(sw_dtype type, int64_t grains, const double *sums) {
    for (int64_t grain = 0; grain < grains; grain++) {
        if (grain == NOT_A_NUMBER)
            assert_true(isnan(sums[grain]));
        else if (grain == F16_OVERFLOW && type == SW_F16)
            assert_true(isinf(sums[grain]));
        else if (grain == BF16_SUBNORMAL && type == SW_F16)
            assert_true(sums[grain] == 0.0);
        else
            assert_true(sums[grain] > 0.0 && isfinite(sums[grain]));
    }
}

/* Rounded and summed apart: what doing both at once gives. */
static void halves(struct pair *pair, sw_dtype type, int64_t grains) {
    const int64_t elems = grains * SW_GRAIN_ELEMS;
    struct buffer acc = grains_of_all_kinds(grains);
    struct buffer got = buffer_make(elems * sw_dtype_bytes(type)), want = buffer_make(got.bytes);
    struct buffer got_sums = buffer_make(grains * 8), want_sums = buffer_make(grains * 8);
    assert_ok(sw_finish_gradient(pair->ref, .type = type, .elems = elems, .acc = acc.data, .grads = want.data,
                                 .sums = want_sums.data));
    assert_ok(sw_round_gradient(pair->stream, .type = type, .elems = elems, .from = acc.data, .to = got.data));
    assert_same_elements(pair, type, elems, got.data, want.data);
    assert_ok(sw_square_sums(pair->stream, type, elems, got.data, got_sums.data));
    assert_kinds(type, grains, got_sums.data);
    for (int64_t grain = 0; grain < grains; grain++) {
        const double sum = ((double *)got_sums.data)[grain], direct = grain_sum(type, got.data, grain);
        if (grain == NOT_A_NUMBER)
            continue;
        assert_same_bits("a given grain's sum", pair, 8, &sum, &((double *)want_sums.data)[grain]);
        assert_same_bits("a given grain's sum, taken directly", pair, 8, &sum, &direct);
    }
    struct buffer *all[] = {&acc, &got, &want, &got_sums, &want_sums};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
}

static void halves_of_types(struct pair *pair) {
    static const int64_t grains[] = {1, KINDS, 9};
    for (int t = 0; t < TEST_TYPES; t++)
        for (size_t g = 0; g < sizeof grains / sizeof grains[0]; g++)
            halves(pair, test_types[t], grains[g]);
}

static void finish_in_halves(void **state) {
    (void)state;
    for_each_device(halves_of_types);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rounding),
                                       cmocka_unit_test(rounding_to_f16),
                                       cmocka_unit_test(widening),
                                       cmocka_unit_test(finish_gradient),
                                       cmocka_unit_test(finish_gradient_in_8_bits),
                                       cmocka_unit_test(finish_in_halves)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
