/* Block quantization: every device has the reference's bits, the error of an element is bounded by its block's scale,
 * and blocks of zeros, of very small, enormous and non-finite numbers become what core/quant.h says. */
#include "tests/kernels/support.h"

#include "core/quant.h"
#include "core/rng.h"
#include "core/size.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const sw_quant quants[] = {SW_QUANT_INT8, SW_QUANT_INT4};
enum { QUANTS = sizeof quants / sizeof quants[0], GRAINS = 3, ELEMS = GRAINS * SW_GRAIN_ELEMS, MOST_RANKS = 5 };
enum { BLOCK = SW_QUANT_BLOCK_ELEMS, BLOCKS = ELEMS / BLOCK };

static int most_code(sw_quant quant) {
    return quant == SW_QUANT_INT4 ? SW_QUANT_INT4_MOST : SW_QUANT_INT8_MOST;
}

static int code_at(sw_quant quant, const void *records, int64_t elem) {
    const signed char *record = (const signed char *)records + elem / SW_GRAIN_ELEMS * sw_quant_grain_bytes(quant);
    const int64_t at = elem % SW_GRAIN_ELEMS;
    if (quant == SW_QUANT_INT8)
        return record[at];
    const int half = at % 2 == 0 ? record[at / 2] & 15 : (unsigned char)record[at / 2] / 16;
    return half > 7 ? half - 16 : half;
}

static float scale_at(sw_quant quant, const void *records, int64_t elem) {
    const char *record = (const char *)records + elem / SW_GRAIN_ELEMS * sw_quant_grain_bytes(quant);
    float scale;
    memcpy(&scale, record + sw_quant_code_bytes(quant) + elem % SW_GRAIN_ELEMS / BLOCK * (int64_t)sizeof scale,
           sizeof scale);
    return scale;
}

/* Blocks of every kind, in turn. */
enum kind {
    ORDINARY,
    ZEROS,
    DENORMAL,
    SMALL,    /* the scale is the least normal number or just below */
    ENORMOUS, /* the largest finite numbers */
    MIXED,    /* of many magnitudes */
    TIES,     /* halfway between two codes */
    INFINITE,
    NOT_A_NUMBER,
    KINDS
};

static float drawn(enum kind kind, float normal, int64_t i, uint64_t word) {
    switch (kind) {
    case ZEROS: return i % 2 == 0 ? 0.0f : -0.0f;
    case DENORMAL: return ldexpf(normal, -135);
    case SMALL: return (i == 7 ? (float)(word % 2 == 0 ? 127 : 7) : 0.25f * normal) * nextafterf(FLT_MIN, word % 4 < 2);
    case ENORMOUS: return i % 3 == 0 ? copysignf(FLT_MAX, normal) : normal * 1e37f;
    case MIXED: return ldexpf(normal, (int)(word % 60) - 30);
    case TIES: return i == 0 ? 127.0f : (float)(int)(word % 127) + 0.5f - 63.0f;
    case INFINITE: return i == 200 ? -INFINITY : normal;
    case NOT_A_NUMBER: return i == 3 ? NAN : normal;
    default: return normal;
    }
}

static enum kind kind_of(int64_t block) {
    return (enum kind)(block % KINDS);
}

/* Makes elements of a type; what it cannot hold is drawn as its largest number. */
static struct buffer blocks_of_all_kinds(sw_dtype type, uint64_t stream) {
    struct buffer normals = buffer_random(SW_F32, ELEMS, stream, 1.0f);
    struct buffer made = buffer_make(ELEMS * sw_dtype_bytes(type));
    for (int64_t i = 0; i < ELEMS; i++) {
        const enum kind kind = kind_of(i / BLOCK);
        const uint64_t word = sw_rng(test_seed(), stream, (uint64_t)i).word[0];
        float value = drawn(kind, ((float *)normals.data)[i], i % BLOCK, word);
        const float most = type == SW_F16 ? 65504.0f : type == SW_BF16 ? 0x1.fep127f : FLT_MAX;
        if (isfinite(value) && fabsf(value) > most)
            value = copysignf(most, value);
        set_element(type, made.data, i, value);
    }
    buffer_free(&normals);
    return made;
}

/* Checks a block against the contract, worked out in double. */
static void check_block(sw_quant quant, sw_dtype type, const void *from, const void *records, int64_t block) {
    double largest = 0.0;
    bool finite = true;
    for (int64_t i = block * BLOCK; i < (block + 1) * BLOCK; i++) {
        finite = finite && isfinite(element(type, from, i));
        largest = fmax(largest, fabs((double)element(type, from, i)));
    }
    const float scale = scale_at(quant, records, block * BLOCK);
    assert_int_equal(isnan(scale), !finite);
    const bool zero = (float)largest / (float)most_code(quant) < FLT_MIN;
    if (finite)
        assert_true(zero ? scale == 0.0f : scale > 0.0f);
    for (int64_t i = block * BLOCK; i < (block + 1) * BLOCK; i++) {
        const int code = code_at(quant, records, i);
        assert_true(abs(code) <= most_code(quant) && (scale > 0.0f || code == 0));
        assert_true(!finite || isfinite((float)code * scale));
        /* Half a step, and the roundings of the scale, its reciprocal and the product. */
        if (scale > 0.0f)
            assert_true(fabs((double)element(type, from, i) - code * (double)scale) <=
                        (double)scale * (0.5 + 4e-7 * most_code(quant)));
    }
}

static void quantize_type(struct pair *pair, sw_quant quant, sw_dtype type) {
    struct buffer from = blocks_of_all_kinds(type, 1);
    struct buffer got = buffer_make(GRAINS * sw_quant_grain_bytes(quant)), want = buffer_make(got.bytes);
    assert_ok(sw_quantize(pair->ref, type, quant, GRAINS, from.data, want.data));
    assert_ok(sw_quantize(pair->stream, type, quant, GRAINS, from.data, got.data));
    assert_same_bits("quantized grains", pair, got.bytes, got.data, want.data);
    for (int64_t block = 0; block < BLOCKS; block++)
        check_block(quant, type, from.data, got.data, block);
    struct buffer *all[] = {&from, &got, &want};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
}

static void quantize_types(struct pair *pair) {
    for (int q = 0; q < QUANTS; q++)
        for (int t = 0; t < TEST_TYPES; t++)
            quantize_type(pair, quants[q], test_types[t]);
}

static void quantization(void **state) {
    (void)state;
    for_each_device(quantize_types);
}

/* Returns the sum that the contract asks for, from the records alone. */
static float sum_at(sw_quant quant, const struct buffer *records, int ranks, int64_t elem) {
    float sum = 0.0f;
    for (int rank = 0; rank < ranks; rank++) {
        const float value = (float)code_at(quant, records[rank].data, elem) * scale_at(quant, records[rank].data, elem);
        sum = rank == 0 ? value : sum + value;
    }
    return sum;
}

static void dequantize_once(struct pair *pair, sw_quant quant, sw_dtype type, int rank, int ranks) {
    const int64_t bytes = GRAINS * sw_quant_grain_bytes(quant), stride = bytes + 64;
    struct buffer records[MOST_RANKS];
    struct buffer others = buffer_make(sw_max_i64(ranks - 1, 1) * stride);
    struct buffer got = buffer_make(ELEMS * sw_dtype_bytes(type));
    for (int r = 0; r < ranks; r++) {
        struct buffer from = blocks_of_all_kinds(SW_F32, (uint64_t)r + 1);
        records[r] = buffer_make(bytes);
        assert_ok(sw_quantize(pair->ref, SW_F32, quant, GRAINS, from.data, records[r].data));
        if (r != rank)
            memcpy((char *)others.data + (r - (r > rank)) * stride, records[r].data, (size_t)bytes);
        buffer_free(&from);
    }
    assert_ok(sw_dequantize(pair->stream, .type = type, .quant = quant, .grains = GRAINS, .rank = rank, .ranks = ranks,
                            .stride_bytes = stride, .own = records[rank].data, .others = ranks > 1 ? others.data : NULL,
                            .to = got.data));
    for (int64_t i = 0; i < ELEMS; i++) {
        const float sum = sum_at(quant, records, ranks, i), value = element(type, got.data, i);
        float want = sum;
        if (type != SW_F32) {
            uint16_t rounded;
            sw_dtype_store(type, &rounded, 0, sum);
            want = sw_dtype_load(type, &rounded, 0);
        }
        if (isnan(want) ? !isnan(value) : memcmp(&want, &value, sizeof want) != 0)
            fail_msg("%s: %s of rank %d of %d: element %lld is %a and not %a", pair->label, sw_quant_name(quant), rank,
                     ranks, (long long)i, (double)value, (double)want);
        if (kind_of(i / BLOCK) == INFINITE || kind_of(i / BLOCK) == NOT_A_NUMBER)
            assert_true(isnan(value));
    }
    for (int r = 0; r < ranks; r++)
        buffer_free(&records[r]);
    buffer_free(&others);
    buffer_free(&got);
}

static void dequantize_ranks(struct pair *pair) {
    for (int q = 0; q < QUANTS; q++)
        for (int t = 0; t < TEST_TYPES; t++)
            for (int ranks = 1; ranks <= MOST_RANKS; ranks += 2)
                dequantize_once(pair, quants[q], test_types[t], ranks / 2, ranks);
}

static void sums_over_ranks(void **state) {
    (void)state;
    for_each_device(dequantize_ranks);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(quantization), cmocka_unit_test(sums_over_ranks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
