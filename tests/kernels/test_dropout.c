/* Dropout: every device has the reference's bits, and the reference keeps the fraction that the rate says. */
#include "tests/kernels/support.h"

#include "core/rng.h"

#include <math.h>
#include <string.h>

static const int64_t sizes[] = {1, 3, 15, 16, 17, 63, 65, 511, 513, 20011};
static const double rates[] = {0.0, 0.05, 0.5, 0.999, 1.0 - 0x1p-40};
enum { SIZES = sizeof sizes / sizeof sizes[0], RATES = sizeof rates / sizeof rates[0] };
/* A seed and a stream that use all of their bits. */
#define SEED UINT64_C(0xfedcba9876543210)
#define STREAM UINT64_C(0x8badf00ddeadbeef)

/* A GPU gives a NaN that it multiplies a payload of its own. */
static void take_nan(const struct pair *pair, sw_dtype type, struct buffer *got, const struct buffer *want,
                     int64_t at) {
    if (!sw_device_info(pair->device).host_memory && isnan(element(type, want->data, at)) &&
        isnan(element(type, got->data, at)))
        memcpy((char *)got->data + at * sw_dtype_bytes(type), (const char *)want->data + at * sw_dtype_bytes(type),
               (size_t)sw_dtype_bytes(type));
}

static void compare(struct pair *pair, sw_dtype type, int64_t elems, double rate) {
    struct buffer x = buffer_random(type, elems, 1, 2.0f), got = buffer_make(x.bytes), want = buffer_make(x.bytes);
    set_element(type, x.data, elems / 2, NAN);
    set_element(type, x.data, elems - 1, -INFINITY);
    assert_ok(sw_dropout(pair->stream, type, elems, rate, SEED, STREAM, x.data, .y = got.data));
    assert_ok(sw_dropout(pair->ref, type, elems, rate, SEED, STREAM, x.data, .y = want.data));
    take_nan(pair, type, &got, &want, elems / 2);
    assert_same_bits("dropout", pair, x.bytes, got.data, want.data);
    assert_ok(sw_dropout(pair->stream, type, elems, rate, SEED, STREAM, x.data, .y = x.data));
    take_nan(pair, type, &x, &want, elems / 2);
    assert_same_bits("dropout in place", pair, x.bytes, x.data, want.data);
    struct buffer *all[] = {&x, &got, &want};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
}

/* Compares parts of a matrix: each has the elements of the whole. The widths are multiples of a counter's words, of
 * vectors, or of neither. */
static void compare_parts(struct pair *pair, sw_dtype type, int64_t width, int parts) {
    enum { ROWS = 37 };
    const int64_t cols = width / parts, typed = sw_dtype_bytes(type);
    struct buffer x = buffer_random(type, ROWS * width, 1, 2.0f), want = buffer_make(x.bytes);
    struct buffer part = buffer_make(ROWS * cols * typed), got = buffer_make(part.bytes),
                  right = buffer_make(part.bytes);
    assert_ok(sw_dropout(pair->ref, type, ROWS * width, 0.5, SEED, STREAM, x.data, .y = want.data));
    for (int p = 0; p < parts; p++) {
        for (int64_t row = 0; row < ROWS; row++) {
            const int64_t from = (row * width + p * cols) * typed, to = row * cols * typed;
            memcpy((char *)part.data + to, (const char *)x.data + from, (size_t)(cols * typed));
            memcpy((char *)right.data + to, (const char *)want.data + from, (size_t)(cols * typed));
        }
        assert_ok(sw_dropout(pair->stream, type, ROWS * cols, 0.5, SEED, STREAM, part.data, got.data, .cols = cols,
                             .first_col = p * cols, .width = width));
        assert_same_bits("dropout of a part", pair, part.bytes, got.data, right.data);
    }
    struct buffer *all[] = {&x, &want, &part, &got, &right};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
}

static void compare_all(struct pair *pair) {
    static const int64_t widths[] = {1, 9, 12, 44, 64, 256, 1026, 4096};
    for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++)
        for (int t = 0; t < TEST_TYPES; t++)
            for (int parts = 1; parts <= 4 && parts <= widths[w]; parts++)
                if (widths[w] % parts == 0)
                    compare_parts(pair, test_types[t], widths[w], parts);
    for (int s = 0; s < SIZES; s++)
        for (int r = 0; r < RATES; r++)
            for (int t = 0; t < TEST_TYPES; t++)
                compare(pair, test_types[t], sizes[s], rates[r]);
}

static void devices_have_the_references_bits(void **state) {
    (void)state;
    for_each_device(compare_all);
}

/* Drops ones, and checks each result against the definition. Returns how many are kept. */
static int64_t drop_ones(struct sw_stream *stream, double rate, uint64_t seed, uint64_t at, int64_t elems) {
    const float kept_value = (float)(1.0 / (1.0 - rate));
    struct buffer x = buffer_make(elems * (int64_t)sizeof(float)), y = buffer_make(x.bytes);
    int64_t kept = 0;
    for (int64_t i = 0; i < elems; i++)
        set_element(SW_F32, x.data, i, 1.0f);
    assert_ok(sw_dropout(stream, SW_F32, elems, rate, seed, at, x.data, .y = y.data));
    for (int64_t i = 0; i < elems; i++) {
        const double word = (double)sw_rng(seed, at, (uint64_t)i / 4).word[i % 4];
        const bool is_kept = word >= floor(rate * 4294967296.0);
        assert_true(element(SW_F32, y.data, i) == (is_kept ? kept_value : 0.0f));
        kept += is_kept;
    }
    buffer_free(&x);
    buffer_free(&y);
    return kept;
}

/* The number of kept elements is binomial: six deviations are exceeded once in 5e8 seeds. */
static void rates_are_kept(void **state) {
    enum { ELEMS = 1 << 18 };
    struct sw_device *device = NULL;
    struct sw_stream *stream = NULL;
    (void)state;
    assert_ok(sw_device_open("ref", 1, &device));
    assert_ok(sw_stream_open(device, &stream));
    for (int r = 0; r < RATES; r++)
        for (uint64_t at = 0; at < 3; at++) {
            const double mean = ELEMS * (1.0 - rates[r]), deviation = sqrt(mean * rates[r]);
            const int64_t kept = drop_ones(stream, rates[r], test_seed(), at, ELEMS);
            assert_true(fabs((double)kept - mean) <= 6.0 * deviation + (rates[r] > 0.9999 ? 1.0 : 0.0));
        }
    sw_stream_close(stream);
    sw_device_close(device);
}

int main(void) {
    const struct CMUnitTest on_devices[] = {cmocka_unit_test(devices_have_the_references_bits)};
    const struct CMUnitTest others[] = {cmocka_unit_test(rates_are_kept)};
    return RUN_TESTS(on_devices, others);
}
