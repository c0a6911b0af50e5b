/* Numbers in 8 bits: every device has the reference's codes, scales and weights, and products in 8 bits are those of
 * what the codes stand for. */
#include "tests/kernels/support.h"

#include "core/fp8.h"
#include "core/rng.h"
#include "core/size.h"
#include "kernels/products.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const sw_fp8 fp8_types[] = {SW_FP8_E4M3, SW_FP8_E5M2};
enum { FP8_TYPES = sizeof fp8_types / sizeof fp8_types[0] };

/* The tensors that are encoded: of numbers of one magnitude, of many magnitudes, of zeros, enormous, and not finite. */
enum kind { ORDINARY, MIXED, ZEROS, TINY, ENORMOUS, INFINITE, NOT_A_NUMBER, KINDS };

static float drawn(enum kind kind, float normal, int64_t i) {
    switch (kind) {
    case MIXED: return ldexpf(normal, -(int)(i % 40));
    case ZEROS: return i % 2 == 0 ? 0.0f : -0.0f;
    case TINY: return ldexpf(normal, -120);
    case ENORMOUS: return i % 3 == 0 ? copysignf(65504.0f, normal) : normal * 1000.0f;
    case INFINITE: return i == 5 ? -INFINITY : normal;
    case NOT_A_NUMBER: return i == 3 ? NAN : normal;
    default: return normal;
    }
}

static struct buffer tensor_of(enum kind kind, sw_dtype type, int64_t elems) {
    struct buffer normals = buffer_random(SW_F32, elems, 1, 1.0f), made = buffer_make(elems * sw_dtype_bytes(type));
    for (int64_t i = 0; i < elems; i++)
        set_element(type, made.data, i, drawn(kind, ((float *)normals.data)[i], i));
    buffer_free(&normals);
    return made;
}

/* Checks codes and their scale by the contract, in double. */
static void check_codes(sw_fp8 as, sw_dtype type, int64_t elems, const void *from, const uint8_t *codes, float scale) {
    const double most = as == SW_FP8_E4M3 ? 448.0 : 57344.0, step = as == SW_FP8_E4M3 ? 0x1p-4 : 0x1p-3;
    const double least = as == SW_FP8_E4M3 ? 0x1p-10 : 0x1p-17; /* half of the least subnormal number */
    for (int64_t i = 0; i < elems; i++) {
        const double value = (double)element(type, from, i), got = (double)sw_fp8_value(as, codes[i]) * (double)scale;
        if (isnan(scale)) {
            assert_true(isnan(got));
            continue;
        }
        assert_true(fabs(value) <= most * (double)scale);
        assert_true(fabs(got - value) <= fmax(step * fabs(value), least * (double)scale));
    }
}

static void encode_once(struct pair *pair, sw_fp8 as, sw_dtype type, enum kind kind, int64_t rows, int64_t cols) {
    const int64_t elems = rows * cols;
    struct buffer from = tensor_of(kind, type, elems), scale = buffer_make(SW_FP8_SCALE_BYTES);
    struct buffer want = buffer_make(elems), got = buffer_make(elems), want_scale = buffer_make(SW_FP8_SCALE_BYTES);
    assert_ok(sw_encode_fp8(pair->ref, .type = type, .as = as, .rows = rows, .cols = cols, .from = from.data,
                            .codes = want.data, .scale = want_scale.data));
    check_codes(as, type, elems, from.data, want.data, *(float *)want_scale.data);
    assert_ok(sw_encode_fp8(pair->stream, .type = type, .as = as, .rows = rows, .cols = cols, .from = from.data,
                            .codes = got.data, .scale = scale.data));
    assert_same_bits("codes", pair, elems, got.data, want.data);
    assert_same_bits("a scale", pair, sizeof(float), scale.data, want_scale.data);
    struct buffer turned = buffer_make(elems), values = buffer_make(elems * sw_dtype_bytes(type)),
                  want_values = buffer_make(values.bytes);
    assert_ok(sw_encode_fp8(pair->stream, .type = type, .as = as, .rows = rows, .cols = cols, .transpose = true,
                            .from = from.data, .codes = turned.data, .scale = scale.data));
    for (int64_t i = 0; i < elems; i++)
        assert_int_equal(((uint8_t *)turned.data)[i % cols * rows + i / cols], ((uint8_t *)want.data)[i]);
    assert_ok(sw_decode_fp8(pair->ref, type, as, elems, want.data, want_scale.data, want_values.data));
    assert_ok(sw_decode_fp8(pair->stream, type, as, elems, got.data, scale.data, values.data));
    if (kind < INFINITE)
        assert_same_bits("decoded numbers", pair, values.bytes, values.data, want_values.data);
    for (int64_t i = 0; kind >= INFINITE && i < elems; i++)
        assert_true(isnan(element(type, values.data, i)));
    struct buffer *all[] = {&from, &scale, &want, &got, &want_scale, &turned, &values, &want_values};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
}

static void encode_all(struct pair *pair) {
    /* Whole tiles and vectors, and parts of them; many blocks. */
    static const int64_t sides[][2] = {{64, 128}, {3, 5}, {67, 130}, {1, 40001}};
    for (int a = 0; a < FP8_TYPES; a++)
        for (int kind = 0; kind < KINDS; kind++)
            encode_once(pair, fp8_types[a], SW_BF16, (enum kind)kind, sides[kind % 4][0], sides[kind % 4][1]);
    for (int t = 0; t < TEST_TYPES; t++)
        for (size_t s = 0; s < sizeof sides / sizeof sides[0]; s++)
            encode_once(pair, fp8_types[s % 2], test_types[t], ORDINARY, sides[s][0], sides[s][1]);
}

static void codes_have_the_references_bits(void **state) {
    (void)state;
    for_each_device(encode_all);
}

/* Codes that no encoder makes too: infinities of e5m2 and every NaN. */
static void decode_every_code(struct pair *pair) {
    enum { CODES = 256 };
    struct buffer codes = buffer_make(CODES), scale = buffer_make(SW_FP8_SCALE_BYTES);
    for (int i = 0; i < CODES; i++)
        ((uint8_t *)codes.data)[i] = (uint8_t)i;
    *(float *)scale.data = 0x1p-3f;
    for (int a = 0; a < FP8_TYPES; a++) {
        struct buffer want = buffer_make(CODES * (int64_t)sizeof(float)), got = buffer_make(want.bytes);
        assert_ok(sw_decode_fp8(pair->ref, SW_F32, fp8_types[a], CODES, codes.data, scale.data, want.data));
        assert_ok(sw_decode_fp8(pair->stream, SW_F32, fp8_types[a], CODES, codes.data, scale.data, got.data));
        for (int i = 0; i < CODES; i++) {
            const float expected = ((float *)want.data)[i], found = ((float *)got.data)[i];
            assert_true(isnan(expected) ? isnan(found) : memcmp(&expected, &found, sizeof found) == 0);
        }
        buffer_free(&want);
        buffer_free(&got);
    }
    buffer_free(&codes);
    buffer_free(&scale);
}

static void every_code_has_the_references_number(void **state) {
    (void)state;
    for_each_device(decode_every_code);
}

enum { GRAINS = 5, WIDE = 4, FIRST = 2 }; /* of a unit of two grains more, of which the last is wide */

/* Makes records of random masters: of one magnitude, of zeros, of many magnitudes, not finite, and a wide grain. */
static struct buffer records_of(sw_optimizer_format format) {
    const int64_t bytes = sw_optimizer_grain_bytes(format);
    struct buffer records = buffer_zeros(GRAINS * bytes);
    for (int64_t g = 0; g < GRAINS; g++) {
        static const enum kind kinds[GRAINS] = {ORDINARY, ZEROS, MIXED, INFINITE, ORDINARY};
        struct buffer masters = tensor_of(kinds[g], SW_F32, SW_GRAIN_ELEMS);
        memcpy((char *)records.data + g * bytes, masters.data,
               (size_t)(g == WIDE ? SW_WIDE_GRAIN_ELEMS : SW_GRAIN_ELEMS) * sizeof(float));
        buffer_free(&masters);
    }
    return records;
}

/* Checks the weights of plain grains against their masters. */
static void check_packed(const struct buffer *records, sw_optimizer_format format, const uint8_t *weights) {
    for (int64_t g = 0; g < WIDE; g++) {
        const float *master =
            (const float *)(const void *)((char *)records->data + g * sw_optimizer_grain_bytes(format));
        const uint8_t *codes = weights + g * SW_GRAIN_ELEMS;
        const double scale = (double)sw_fp8_grain_scale(codes);
        for (int64_t i = 0; i < SW_GRAIN_ELEMS; i++) {
            const double want = (double)master[i], got = (double)sw_fp8_value(SW_FP8_E4M3, codes[i]) * scale;
            const double steps = i < SW_FP8_EXPONENT_CODES ? 3.0 : 1.0;
            if (isnan(scale))
                assert_true(isnan(got));
            else
                assert_true(fabs(got - want) <= steps * fmax(0x1p-4 * fabs(want), 0x1p-10 * scale));
        }
        assert_int_equal(isnan(scale), g == 3);
    }
}

static void unpack_range(struct pair *pair, const struct buffer *weights, sw_dtype type, int64_t first, int64_t elems) {
    struct buffer got = buffer_make(elems * sw_dtype_bytes(type)), want = buffer_make(got.bytes);
    assert_ok(sw_unpack_weights(pair->ref, type, first, elems, weights->data, want.data));
    assert_ok(sw_unpack_weights(pair->stream, type, first, elems, weights->data, got.data));
    assert_same_bits("unpacked weights", pair, got.bytes, got.data, want.data);
    for (int64_t i = 0; i < elems; i++) {
        const uint8_t *codes = weights->data, *grain = codes + (first + i) / SW_GRAIN_ELEMS * SW_GRAIN_ELEMS;
        const float value = sw_fp8_value(SW_FP8_E4M3, codes[first + i]) * sw_fp8_grain_scale(grain);
        assert_true(element(type, want.data, i) == value);
    }
    buffer_free(&got);
    buffer_free(&want);
}

static void pack_all(struct pair *pair) {
    static const sw_optimizer_format formats[] = {SW_OPTIMIZER_FP32_APART, SW_OPTIMIZER_8BIT};
    for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
        struct buffer records = records_of(formats[f]);
        struct buffer got = buffer_make(GRAINS * (int64_t)SW_GRAIN_ELEMS), want = buffer_make(got.bytes);
        struct sw_stream *const streams[] = {pair->ref, pair->stream};
        for (int s = 0; s < 2; s++)
            assert_ok(sw_pack_weights(streams[s], .type = SW_BF16, .first_elem = FIRST * (int64_t)SW_GRAIN_ELEMS,
                                      .grains = GRAINS, .wide_elem = (FIRST + WIDE) * (int64_t)SW_GRAIN_ELEMS,
                                      .format = formats[f], .records = records.data,
                                      .weights = s == 0 ? want.data : got.data));
        assert_same_bits("packed weights", pair, got.bytes, got.data, want.data);
        check_packed(&records, formats[f], got.data);
        const float *wide =
            (const float *)(const void *)((char *)records.data + WIDE * sw_optimizer_grain_bytes(formats[f]));
        for (int64_t i = 0; i < SW_WIDE_GRAIN_ELEMS; i++)
            assert_int_equal(((sw_bf16 *)((uint8_t *)got.data + WIDE * SW_GRAIN_ELEMS))[i], sw_f32_to_bf16(wide[i]));
        unpack_range(pair, &got, SW_BF16, 0, 3 * (int64_t)SW_GRAIN_ELEMS);
        unpack_range(pair, &got, SW_BF16, SW_GRAIN_ELEMS - 64, 640);
        unpack_range(pair, &got, SW_F32, 2 * (int64_t)SW_GRAIN_ELEMS - 5, 27);
        struct buffer *all[] = {&records, &got, &want};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            buffer_free(all[i]);
    }
}

static void weights_have_the_references_bits(void **state) {
    (void)state;
    for_each_device(pack_all);
}

/* Rounds a tensor to 8 bits and back, on the reference. */
static void round_to(struct pair *pair, sw_fp8 as, int64_t elems, struct buffer *tensor) {
    struct buffer codes = buffer_make(elems), scale = buffer_make(SW_FP8_SCALE_BYTES);
    assert_ok(sw_encode_fp8(pair->ref, .type = SW_BF16, .as = as, .rows = 1, .cols = elems, .from = tensor->data,
                            .codes = codes.data, .scale = scale.data));
    assert_ok(sw_decode_fp8(pair->ref, SW_BF16, as, elems, codes.data, scale.data, tensor->data));
    buffer_free(&codes);
    buffer_free(&scale);
}

static void multiply(struct pair *pair, struct sw_device *device, struct sw_stream *stream, const struct sw_gemm *s,
                     const struct buffer *operands, void *c) {
    int64_t scratch_bytes;
    assert_ok(sw_device_prepare_gemm(device, s, &scratch_bytes));
    struct buffer scratch = buffer_make(scratch_bytes + SW_BUFFER_ALIGN_BYTES);
    char *at = (char *)scratch.data + (-(uintptr_t)scratch.data & (SW_BUFFER_ALIGN_BYTES - 1));
    assert_ok(sw_gemm_add(stream, s, operands[0].data, operands[1].data, s->bias ? operands[2].data : NULL,
                          s->addend ? operands[3].data : NULL, c, at));
    assert_ok(sw_stream_synchronize(stream));
    buffer_free(&scratch);
    (void)pair;
}

/* Compares a product in 8 bits with the reference's of rounded operands. */
static void multiply_once(struct pair *pair, struct sw_gemm s) {
    struct buffer of[4] = {buffer_random(s.in, s.m * s.k, 1, 0.7f), buffer_random(s.in, s.k * s.n, 2, 3.0f),
                           buffer_random(s.in, s.n, 3, 1.0f), buffer_random(s.out, s.m * s.n, 4, 1.0f)};
    struct buffer got = buffer_random(s.out, s.m * s.n, 5, 1.0f), want = buffer_copy(&got);
    multiply(pair, pair->device, pair->stream, &s, of, got.data);
    round_to(pair, s.a_as, s.m * s.k, &of[0]);
    round_to(pair, s.b_as, s.k * s.n, &of[1]);
    struct sw_gemm rounded = s;
    rounded.a_as = rounded.b_as = SW_FP8_NONE;
    multiply(pair, pair->ref_device, pair->ref, &rounded, of, want.data);
    /* A device may round the product before it adds the addend. */
    const float sums = 2e-5f * 2.1f * sqrtf((float)s.k), addend = s.addend ? 0x1p-4f : 0.0f;
    assert_close("a product in 8 bits", pair, s.out, s.m * s.n, got.data, want.data, 1e-5f, sums + addend);
    for (int i = 0; i < 4; i++)
        buffer_free(&of[i]);
    buffer_free(&got);
    buffer_free(&want);
}

static void multiply_all(struct pair *pair) {
    assert_ok(sw_device_use_fp8(pair->device));
    const struct sw_gemm kinds[] = {
        {.transpose_b = true, .bias = true, .in = SW_BF16, .out = SW_BF16, .a_as = SW_FP8_E4M3, .b_as = SW_FP8_E4M3},
        {.addend = true, .in = SW_BF16, .out = SW_BF16, .a_as = SW_FP8_E4M3, .b_as = SW_FP8_E4M3},
        {.in = SW_BF16, .out = SW_BF16, .a_as = SW_FP8_E5M2, .b_as = SW_FP8_E4M3},
        {.transpose_a = true,
         .accumulate = true,
         .in = SW_BF16,
         .out = SW_F32,
         .a_as = SW_FP8_E5M2,
         .b_as = SW_FP8_E4M3},
        {.transpose_a = true,
         .accumulate = true,
         .in = SW_BF16,
         .out = SW_F32,
         .a_as = SW_FP8_E4M3,
         .b_as = SW_FP8_E5M2},
    };
    /* Sides that GPUs multiply codes of, sides that they do not, and one row. */
    static const int64_t sides[][3] = {{48, 96, 80}, {33, 20, 50}, {1, 64, 32}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        for (size_t s = 0; s < sizeof sides / sizeof sides[0]; s++) {
            struct sw_gemm shape = kinds[i];
            shape.m = sides[s][0];
            shape.n = sides[s][1];
            shape.k = sides[s][2];
            multiply_once(pair, shape);
        }
}

static void products_are_those_of_what_codes_stand_for(void **state) {
    (void)state;
    for_each_device(multiply_all);
}

/* A NaN in an operand shows in the whole product, so that the step is skipped. */
static void what_is_not_finite_stays_so(void **state) {
    enum { SIDE = 32 };
    const struct sw_gemm s = {
        .m = SIDE, .n = SIDE, .k = SIDE, .in = SW_BF16, .out = SW_BF16, .a_as = SW_FP8_E5M2, .b_as = SW_FP8_E4M3};
    struct sw_device *device;
    struct sw_stream *stream;
    (void)state;
    assert_ok(sw_device_open("cpu", 1, &device));
    assert_ok(sw_stream_open(device, &stream));
    struct buffer of[4] = {buffer_random(s.in, SIDE * SIDE, 1, 1.0f), buffer_random(s.in, SIDE * SIDE, 2, 1.0f)};
    struct buffer c = buffer_make(SIDE * SIDE * 2);
    set_element(s.in, of[0].data, 7, INFINITY);
    multiply(NULL, device, stream, &s, of, c.data);
    for (int64_t i = 0; i < SIDE * SIDE; i++)
        assert_true(isnan(element(s.out, c.data, i)));
    struct buffer *all[] = {&of[0], &of[1], &c};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
    sw_stream_close(stream);
    sw_device_close(device);
}

int main(void) {
    const struct CMUnitTest on_devices[] = {
        cmocka_unit_test(codes_have_the_references_bits),
        cmocka_unit_test(every_code_has_the_references_number),
        cmocka_unit_test(weights_have_the_references_bits),
        cmocka_unit_test(products_are_those_of_what_codes_stand_for),
    };
    const struct CMUnitTest others[] = {cmocka_unit_test(what_is_not_finite_stays_so)};
    return RUN_TESTS(on_devices, others);
}
