/* A frozen base: every device has the reference's bits for grains of every kind. In int8 and nf4 errors are bounded by
 * the distances of levels, and the values are those of bitsandbytes' published scheme; in fp8 and mxfp4 they are those
 * of the specifications. This file works both out by itself. */
#include "tests/kernels/support.h"

#include "core/base_format.h"
#include "core/rng.h"
#include "core/size.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = SW_NF4_BLOCK_ELEMS, BLOCKS = SW_NF4_GRAIN_BLOCKS };
static const sw_base_format formats[] = {SW_BASE_INT8, SW_BASE_NF4};
enum { FORMATS = sizeof formats / sizeof formats[0] };
/* Formats that only checkpoints have. */
static const sw_base_format stored[] = {SW_BASE_FP8, SW_BASE_MXFP4};

/* The grains of a unit, one of each kind. */
enum kind {
    ORDINARY,
    TWO_TENSORS, /* two tensors of different deviations, and the zeros behind the second */
    MIXED,       /* blocks of many magnitudes */
    ZEROS,
    SUBNORMAL, /* blocks around the least normal number */
    ENORMOUS,  /* blocks of the largest numbers */
    EQUAL,     /* all blocks have the same largest magnitude */
    FEW_SMALL, /* the same, with a few blocks far below the mean */
    LEAST,     /* blocks of the least normal numbers, whose differences are not normal */
    TIES,      /* halfway between two levels */
    INFINITE,
    NOT_A_NUMBER,
    KINDS
};
enum { ELEMS = KINDS * SW_GRAIN_ELEMS };

static float drawn(enum kind kind, float normal, int64_t at) {
    const int64_t block = at / BLOCK;
    const int level = (int)(at % (SW_NF4_LEVELS - 1));
    switch (kind) {
    case TWO_TENSORS: return at > 15000 ? 0.0f : (at < 9024 ? 0.02f : 0.05f) * normal;
    case MIXED: return ldexpf(normal, (int)(block % 60) - 30);
    case ZEROS: return at % 2 == 0 ? 0.0f : -0.0f;
    case SUBNORMAL: return ldexpf(normal, -(int)(block % 24) - 122);
    case ENORMOUS: return at % 5 == 0 ? copysignf(FLT_MAX, normal) : normal * 1e37f * (float)(block % 8);
    case EQUAL: return at % BLOCK == 9 ? 0.75f : fminf(fmaxf(normal * 0.2f, -0.7f), 0.7f);
    case FEW_SMALL: return (block % 50 == 7 ? 1e-3f : 1.0f) * (at % BLOCK == 9 ? -0.75f : 0.5f * sinf(normal));
    case LEAST: return (at % BLOCK == 9 ? 1.0f : sinf(normal)) * FLT_MIN * (1.0f + (float)(block % 3) * 0x1p-4f);
    case TIES: return at % BLOCK == 20 ? 1.0f : (sw_nf4_level(level) + sw_nf4_level(level + 1)) * 0.5f;
    case INFINITE: return at == 12345 ? -INFINITY : normal;
    case NOT_A_NUMBER: return at == 3 ? NAN : normal;
    default: return 0.02f * normal;
    }
}

/* Makes a unit of a type; what the type cannot hold is drawn as its largest number. */
static struct buffer unit_of_all_kinds(sw_dtype type) {
    struct buffer normals = buffer_random(SW_F32, ELEMS, 1, 1.0f), made = buffer_make(ELEMS * sw_dtype_bytes(type));
    const float most = type == SW_F16 ? 65504.0f : type == SW_BF16 ? 0x1.fep127f : FLT_MAX;
    for (int64_t i = 0; i < ELEMS; i++) {
        float value = drawn((enum kind)(i / SW_GRAIN_ELEMS), ((float *)normals.data)[i], i % SW_GRAIN_ELEMS);
        if (isfinite(value) && fabsf(value) > most)
            value = copysignf(most, value);
        set_element(type, made.data, i, value);
    }
    buffer_free(&normals);
    return made;
}

static struct buffer records_of(struct sw_stream *stream, sw_base_format format, sw_dtype type, int64_t grains,
                                const void *from) {
    struct buffer records = buffer_make(grains * sw_base_grain_bytes(format));
    assert_ok(sw_quantize_base(stream, type, format, grains, from, records.data));
    return records;
}

/* Returns the values of whole grains as fp32. */
static struct buffer values_of(struct sw_stream *stream, sw_base_format format, int64_t grains,
                               const struct buffer *records) {
    struct buffer values = buffer_make(grains * SW_GRAIN_ELEMS * (int64_t)sizeof(float));
    assert_ok(sw_dequantize_base(stream, SW_F32, format, 0, grains * SW_GRAIN_ELEMS, records->data, values.data));
    return values;
}

static void quantize_all(struct pair *pair) {
    if (!sw_device_info(pair->device).host_memory)
        return;
    for (int f = 0; f < FORMATS; f++)
        for (int t = 0; t < TEST_TYPES; t++) {
            struct buffer from = unit_of_all_kinds(test_types[t]);
            struct buffer want = records_of(pair->ref, formats[f], test_types[t], KINDS, from.data);
            struct buffer got = records_of(pair->stream, formats[f], test_types[t], KINDS, from.data);
            assert_same_bits("records", pair, got.bytes, got.data, want.data);
            struct buffer *all[] = {&from, &want, &got};
            for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
                buffer_free(all[i]);
        }
}

static void records_have_the_references_bits(void **state) {
    (void)state;
    for_each_device(quantize_all);
}

static void dequantize_range(struct pair *pair, sw_base_format format, const struct buffer *records, sw_dtype type,
                             int64_t first, int64_t elems) {
    struct buffer got = buffer_make(elems * sw_dtype_bytes(type)), want = buffer_make(got.bytes);
    assert_ok(sw_dequantize_base(pair->ref, type, format, first, elems, records->data, want.data));
    assert_ok(sw_dequantize_base(pair->stream, type, format, first, elems, records->data, got.data));
    assert_same_bits("values", pair, got.bytes, got.data, want.data);
    buffer_free(&got);
    buffer_free(&want);
}

/* Makes records of a format that only checkpoints have: each code beside each of its neighbours, among scales of every
 * magnitude, zeros, infinities and NaN. */
static struct buffer stored_records(sw_base_format format) {
    static const float specials[] = {0.0f, -0.0f, 1.0f, -0x1p-149f, 0x1.8p-130f, FLT_MIN, FLT_MAX, INFINITY, NAN};
    enum { SPECIALS = sizeof specials / sizeof specials[0] };
    struct buffer records = buffer_random(SW_F32, KINDS * sw_base_grain_bytes(format) / 4, 5, 1.0f);
    for (int g = 0; g < KINDS; g++) {
        char *bytes = (char *)records.data + g * sw_base_grain_bytes(format);
        struct sw_fp8_record *fp8 = (struct sw_fp8_record *)(void *)bytes;
        struct sw_mxfp4_record *mxfp4 = (struct sw_mxfp4_record *)(void *)bytes;
        for (int i = 0; format == SW_BASE_FP8 && i < SW_GRAIN_ELEMS; i++)
            fp8->codes[i] = (uint8_t)(i % 2 == 0 ? i / 2 : g + i / 512);
        for (int b = 0; format == SW_BASE_FP8 && b < SW_FP8_BASE_BLOCKS; b++)
            fp8->scales[b] =
                b % 16 < SPECIALS ? specials[b % 16] : ldexpf(1.0f + (float)b * 0x1.1p-7f, b * 2 - 128 + g);
        for (int i = 0; format == SW_BASE_MXFP4 && i < SW_GRAIN_ELEMS / 2; i++)
            mxfp4->codes[i] = (uint8_t)(i + g);
        for (int b = 0; format == SW_BASE_MXFP4 && b < SW_MXFP4_BLOCKS; b++)
            mxfp4->scales[b] = (uint8_t)(b + 7 * g);
    }
    return records;
}

/* All elements; parts of blocks; a matrix over the end of a grain; addresses that no vector begins at; one element. */
static void dequantize_format(struct pair *pair, sw_base_format format, const struct buffer *records) {
    for (int t = 0; t < TEST_TYPES; t++)
        dequantize_range(pair, format, records, test_types[t], 0, ELEMS);
    dequantize_range(pair, format, records, SW_BF16, SW_GRAIN_ELEMS - 64, 8192 + 640);
    dequantize_range(pair, format, records, SW_F16, 8, 20);
    dequantize_range(pair, format, records, SW_BF16, 2 * (int64_t)SW_GRAIN_ELEMS - 5, 8203);
    dequantize_range(pair, format, records, SW_F32, 61, 6);
    dequantize_range(pair, format, records, SW_F16, 8 * (int64_t)SW_GRAIN_ELEMS - 3, 4000);
    dequantize_range(pair, format, records, SW_F32, ELEMS - 1, 1);
}

static void dequantize_all(struct pair *pair) {
    for (int f = 0; f < FORMATS; f++) {
        struct buffer from = unit_of_all_kinds(SW_F32);
        struct buffer records = records_of(pair->ref, formats[f], SW_F32, KINDS, from.data);
        dequantize_format(pair, formats[f], &records);
        buffer_free(&from);
        buffer_free(&records);
    }
    for (size_t f = 0; f < sizeof stored / sizeof stored[0]; f++) {
        struct buffer records = stored_records(stored[f]);
        dequantize_format(pair, stored[f], &records);
        buffer_free(&records);
    }
}

static void values_have_the_references_bits(void **state) {
    (void)state;
    for_each_device(dequantize_all);
}

/* A stream of the reference, for what concerns the formats alone. */
struct reference {
    struct sw_device *device;
    struct sw_stream *stream;
};

static struct reference open_reference(void) {
    struct reference reference;
    assert_ok(sw_device_open("ref", 1, &reference.device));
    assert_ok(sw_stream_open(reference.device, &reference.stream));
    return reference;
}

static void close_reference(struct reference *reference) {
    sw_stream_close(reference->stream);
    sw_device_close(reference->device);
}

/* Returns the number of an e4m3 code by the fields of its bits (Micikevicius et al., arXiv 2209.05433, table 1). */
static double e4m3(uint8_t code) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const double magnitude = exponent == 0 ? ldexp(mantissa, -9) : ldexp(8 + mantissa, exponent - 10);
    return (code & 0x7f) == 0x7f ? NAN : (code & 0x80) != 0 ? -magnitude : magnitude;
}

/* Returns the number of an e2m1 code by the fields of its bits. */
static double e2m1(int code) {
    const int exponent = code >> 1 & 3, mantissa = code & 1;
    const double magnitude = exponent == 0 ? 0.5 * mantissa : ldexp(2 + mantissa, exponent - 2);
    return (code & 8) != 0 ? -magnitude : magnitude;
}

/* Each product is worked out in double, which holds it exactly, and rounded once. */
static void stored_values_are_those_of_the_specifications(void **state) {
    struct reference reference = open_reference();
    (void)state;
    for (int f = 0; f < 2; f++) {
        struct buffer records = stored_records(stored[f]);
        struct buffer values = values_of(reference.stream, stored[f], KINDS, &records);
        for (int64_t i = 0; i < ELEMS; i++) {
            const char *bytes = (char *)records.data + i / SW_GRAIN_ELEMS * sw_base_grain_bytes(stored[f]);
            const struct sw_fp8_record *fp8 = (const struct sw_fp8_record *)(const void *)bytes;
            const struct sw_mxfp4_record *mxfp4 = (const struct sw_mxfp4_record *)(const void *)bytes;
            const int64_t at = i % SW_GRAIN_ELEMS;
            const uint8_t byte = stored[f] == SW_BASE_FP8 ? fp8->codes[at] : mxfp4->codes[at / 2];
            const double number = stored[f] == SW_BASE_FP8 ? e4m3(byte) : e2m1(byte >> at % 2 * 4 & 15);
            const uint8_t power = mxfp4->scales[at / 32 % SW_MXFP4_BLOCKS];
            const double scale = stored[f] == SW_BASE_FP8 ? (double)fp8->scales[at / 128]
                                 : power == 255           ? NAN
                                                          : ldexp(1.0, power - 127);
            const float want = (float)(number * scale), got = ((float *)values.data)[i];
            uint32_t bits, want_bits;
            memcpy(&bits, &got, sizeof bits);
            memcpy(&want_bits, &want, sizeof want_bits);
            assert_int_equal(bits, isnan(want) ? SW_QUANT_NAN_BITS : want_bits);
        }
        buffer_free(&records);
        buffer_free(&values);
    }
    close_reference(&reference);
}

static double largest_of(const float *values, int64_t count) {
    double largest = 0.0;
    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, fabs((double)values[i]));
    return largest;
}

/* Half a step of the codes, and the roundings of the scale, its reciprocal and the product. */
static void check_int8(const float *from, const float *values) {
    for (int64_t b = 0; b < SW_QUANT_GRAIN_BLOCKS; b++) {
        const float *block = from + b * SW_QUANT_BLOCK_ELEMS, *got = values + b * SW_QUANT_BLOCK_ELEMS;
        const double step = largest_of(block, SW_QUANT_BLOCK_ELEMS) / SW_QUANT_INT8_MOST;
        for (int64_t i = 0; i < SW_QUANT_BLOCK_ELEMS; i++)
            assert_true(fabs((double)got[i] - (double)block[i]) <= (step < FLT_MIN ? 127.0 : 0.5001) * step);
    }
}

/* Half the distance of the outermost levels times the scale, and half the largest distance of the levels of scales
 * times the spread, which no scale differs from their mean by more than. Blocks of zeros stay so. */
static void check_nf4(const float *from, const float *values) {
    double scales[BLOCKS], mean = 0.0, spread = 0.0;
    for (int64_t b = 0; b < BLOCKS; b++) {
        scales[b] = largest_of(from + b * BLOCK, BLOCK);
        mean += scales[b] / BLOCKS;
    }
    for (int64_t b = 0; b < BLOCKS; b++)
        spread = fmax(spread, fabs(scales[b] - mean));
    for (int64_t i = 0; i < SW_GRAIN_ELEMS; i++) {
        const double scale = scales[i / BLOCK], away = fabs((double)values[i] - (double)from[i]);
        assert_true(away <= 0.152 * scale + 0.00704 * spread + FLT_MIN);
        if (scale == 0.0)
            assert_true(values[i] == 0.0f && !signbit(values[i]));
    }
}

static void errors_are_bounded(void **state) {
    struct reference reference = open_reference();
    struct buffer from = unit_of_all_kinds(SW_F32);
    (void)state;
    for (int f = 0; f < FORMATS; f++) {
        struct buffer records = records_of(reference.stream, formats[f], SW_F32, KINDS, from.data);
        struct buffer values = values_of(reference.stream, formats[f], KINDS, &records);
        for (int kind = 0; kind < INFINITE; kind++) {
            const int64_t at = kind * (int64_t)SW_GRAIN_ELEMS;
            (formats[f] == SW_BASE_INT8 ? check_int8 : check_nf4)((float *)from.data + at, (float *)values.data + at);
        }
        /* int8 loses the block, nf4 the grain. */
        const int64_t lost = formats[f] == SW_BASE_INT8 ? SW_QUANT_BLOCK_ELEMS : SW_GRAIN_ELEMS;
        for (int kind = INFINITE; kind < KINDS; kind++)
            for (int64_t i = 0; i < SW_GRAIN_ELEMS; i++) {
                const int64_t hit = kind == INFINITE ? 12345 : 3;
                assert_int_equal(isnan(((float *)values.data)[kind * (int64_t)SW_GRAIN_ELEMS + i]) != 0,
                                 i / lost == hit / lost);
            }
        buffer_free(&records);
        buffer_free(&values);
    }
    buffer_free(&from);
    close_reference(&reference);
}

/* bitsandbytes' scheme, in its own order of operations: dQuantizeNF4 of its kernels, and quantize_4bit with
 * compress_statistics, create_dynamic_map and int8_vectorwise_quant of its functional.py and backends. */

/* The thresholds of dQuantizeNF4, and the levels that stand for its codes. */
static const float bnb_thresholds[] = {
    -0.8480964004993439f,  -0.6106329262256622f,   -0.4599952697753906f, -0.33967943489551544f, -0.23460740596055984f,
    -0.13791173323988914f, -0.045525018125772476f, 0.03979014977812767f, 0.1202552504837513f,   0.2035212516784668f,
    0.2920137718319893f,   0.3893125355243683f,    0.5016634166240692f,  0.6427869200706482f,   0.8614784181118011f};
static const float bnb_levels[] = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

static void bnb_dynamic_map(float map[SW_NF4_SCALE_LEVELS]) {
    int count = 0;
    for (int exponent = 0; exponent < 7; exponent++) {
        const int items = 1 << exponent;
        for (int i = 0; i < items; i++) {
            const float low = 0.1f + 0.9f / (float)items * (float)i, high = 0.1f + 0.9f / (float)items * (float)(i + 1);
            map[count++] = (float)(pow(10.0, exponent - 6) * (double)((low + high) / 2.0f));
            map[count] = -map[count - 1];
            count++;
        }
    }
    map[count++] = 0.0f;
    map[count] = 1.0f;
}

/* Returns the nearest number of the map. */
static float bnb_nearest(const float *map, float value) {
    float nearest = map[0];
    for (int i = 1; i < SW_NF4_SCALE_LEVELS; i++)
        if (fabsf(value - map[i]) < fabsf(value - nearest))
            nearest = map[i];
    return nearest;
}

/* Quantizes and dequantizes scales of a whole tensor. */
static void bnb_nest(float *scales, int64_t count) {
    float map[SW_NF4_SCALE_LEVELS], offset = 0.0f;
    bnb_dynamic_map(map);
    for (int64_t b = 0; b < count; b++)
        offset += scales[b];
    offset /= (float)count;
    for (int64_t first = 0; first < count; first += 256) {
        float largest = 0.0f;
        for (int64_t b = first; b < first + 256; b++)
            largest = fmaxf(largest, fabsf(scales[b] - offset));
        for (int64_t b = first; b < first + 256; b++)
            scales[b] = bnb_nearest(map, (scales[b] - offset) * (1.0f / largest)) * largest + offset;
    }
}

static struct buffer bnb_nf4(const float *from, int64_t elems) {
    struct buffer values = buffer_make(elems * (int64_t)sizeof(float));
    float *scales = calloc((size_t)(elems / BLOCK), sizeof *scales), *value = values.data;
    assert_non_null(scales);
    for (int64_t b = 0; b < elems / BLOCK; b++) {
        scales[b] = (float)largest_of(from + b * BLOCK, BLOCK);
        for (int64_t i = b * BLOCK; i < (b + 1) * BLOCK; i++) {
            const float scaled = from[i] * (1.0f / scales[b]);
            int code = 0;
            while (code < 15 && scaled > bnb_thresholds[code])
                code++;
            value[i] = bnb_levels[code];
        }
    }
    bnb_nest(scales, elems / BLOCK);
    for (int64_t i = 0; i < elems; i++)
        value[i] *= scales[i / BLOCK];
    free(scales);
    return values;
}

/* Its int8, whose rows are as long as our blocks. */
static struct buffer bnb_int8(const float *from, int64_t elems) {
    struct buffer values = buffer_make(elems * (int64_t)sizeof(float));
    for (int64_t i = 0; i < elems; i++) {
        const int64_t row = i / SW_QUANT_BLOCK_ELEMS * SW_QUANT_BLOCK_ELEMS;
        const float largest = (float)largest_of(from + row, SW_QUANT_BLOCK_ELEMS);
        ((float *)values.data)[i] = rintf(from[i] * (127.0f / largest)) * largest * 7.874015718698502e-3f;
    }
    return values;
}

/* The seed is constant: one of the schemes may round a number halfway between two levels up, the other down. */
static struct buffer weights_of(int64_t elems) {
    struct buffer weights = buffer_make(elems * (int64_t)sizeof(float));
    sw_rng_normals(7, 43, 0, elems, weights.data);
    for (int64_t i = 0; i < elems; i++)
        ((float *)weights.data)[i] *= 0.02f;
    return weights;
}

/* In a tensor of one grain every value is bitsandbytes'. */
static void values_are_those_of_bitsandbytes(void **state) {
    struct reference reference = open_reference();
    struct buffer from = weights_of(SW_GRAIN_ELEMS);
    (void)state;
    for (int f = 0; f < FORMATS; f++) {
        struct buffer records = records_of(reference.stream, formats[f], SW_F32, 1, from.data);
        struct buffer values = values_of(reference.stream, formats[f], 1, &records);
        struct buffer theirs = (formats[f] == SW_BASE_INT8 ? bnb_int8 : bnb_nf4)(from.data, SW_GRAIN_ELEMS);
        const float *got = values.data, *want = theirs.data;
        for (int64_t i = 0; i < SW_GRAIN_ELEMS; i++)
            assert_true(fabsf(got[i] - want[i]) <= 1e-5f * fabsf(want[i]));
        struct buffer *all[] = {&records, &values, &theirs};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            buffer_free(all[i]);
    }
    buffer_free(&from);
    close_reference(&reference);
}

/* Returns the root mean square of the differences. */
static double distance(const float *a, const float *b, int64_t elems) {
    double sum = 0.0;
    for (int64_t i = 0; i < elems; i++)
        sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sqrt(sum / (double)elems);
}

/* In a larger tensor each grain has an offset of its own. Scales then round to other neighbours, but the error of the
 * weights is the same. */
static void errors_are_those_of_bitsandbytes(void **state) {
    enum { GRAINS = 32 };
    const int64_t elems = GRAINS * (int64_t)SW_GRAIN_ELEMS;
    struct reference reference = open_reference();
    struct buffer from = weights_of(elems);
    struct buffer records = records_of(reference.stream, SW_BASE_NF4, SW_F32, GRAINS, from.data);
    struct buffer values = values_of(reference.stream, SW_BASE_NF4, GRAINS, &records);
    struct buffer theirs = bnb_nf4(from.data, elems);
    const double ours = distance(values.data, from.data, elems), bnb = distance(theirs.data, from.data, elems);
    (void)state;
    print_message("# error over deviation: %.6f, of bitsandbytes' scheme %.6f, between the two %.6f\n", ours / 0.02,
                  bnb / 0.02, distance(values.data, theirs.data, elems) / 0.02);
    assert_true(fabs(ours / bnb - 1.0) < 1e-3);
    struct buffer *all[] = {&from, &records, &values, &theirs};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
    close_reference(&reference);
}

int main(void) {
    const struct CMUnitTest on_devices[] = {
        cmocka_unit_test(records_have_the_references_bits),
        cmocka_unit_test(values_have_the_references_bits),
    };
    const struct CMUnitTest others[] = {
        cmocka_unit_test(stored_values_are_those_of_the_specifications),
        cmocka_unit_test(errors_are_bounded),
        cmocka_unit_test(values_are_those_of_bitsandbytes),
        cmocka_unit_test(errors_are_those_of_bitsandbytes),
    };
    return RUN_TESTS(on_devices, others);
}
