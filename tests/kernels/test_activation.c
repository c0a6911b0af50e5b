/* Activations, their slopes, and sums of tensors. */
#include "tests/kernels/support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const int64_t sizes[] = {1, 15, 16, 17, 63, 65, 511, 512, 513, 20011};
static const sw_activation kinds[] = {SW_GELU_TANH, SW_GELU_ERF, SW_RELU, SW_SILU};

/* Random values, and at the front those where formulas break. */
static struct buffer inputs(sw_dtype type, int64_t elems) {
    static const float special[] = {0.0f,  -0.0f, 1e-30f, -1e-30f, 5.0f, -5.0f,
                                    -9.5f, 12.0f, -40.0f, 40.0f,   1e4f, -1e4f};
    struct buffer x = buffer_random(type, elems, 1, 2.0f);
    for (size_t i = 0; i < sizeof special / sizeof special[0] && (int64_t)i < elems; i++)
        set_element(type, x.data, elems - 1 - (int64_t)i, special[i]);
    return x;
}

/* The backward pass that writes the activated values too gives the bits of the two passes. */
static void expect_both(const char *what, const struct pair *pair, const struct buffer *dx,
                        const struct buffer *want_dx, const struct buffer *activated, const struct buffer *want) {
    char label[64];
    snprintf(label, sizeof label, "%s beside the activated values", what);
    assert_same_bits(label, pair, want_dx->bytes, dx->data, want_dx->data);
    snprintf(label, sizeof label, "activated values beside %s", what);
    assert_same_bits(label, pair, want->bytes, activated->data, want->data);
}

static void make_both(struct pair *pair, struct sw_stream *stream, sw_dtype type, sw_activation which,
                      const struct buffer *x, const struct buffer *dy) {
    const int64_t elems = x->bytes / sw_dtype_bytes(type);
    struct buffer y = buffer_make(x->bytes), dx = buffer_make(x->bytes), activated = buffer_make(x->bytes),
                  in_place = buffer_copy(dy);
    assert_ok(sw_activation_forward(stream, type, which, elems, x->data, y.data));
    assert_ok(sw_activation_backward(stream, type, which, elems, x->data, dy->data, dx.data, NULL));
    assert_ok(
        sw_activation_backward(stream, type, which, elems, x->data, in_place.data, in_place.data, activated.data));
    expect_both("a gradient in place", pair, &in_place, &dx, &activated, &y);
    struct buffer *all[] = {&y, &dx, &activated, &in_place};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
}

static void make_both_gated(struct pair *pair, struct sw_stream *stream, sw_dtype type, sw_activation which,
                            int64_t rows, const struct buffer *x, const struct buffer *dy) {
    const int64_t cols = dy->bytes / sw_dtype_bytes(type) / rows;
    struct buffer y = buffer_make(dy->bytes), dx = buffer_make(x->bytes), dx_beside = buffer_make(x->bytes),
                  activated = buffer_make(dy->bytes);
    assert_ok(sw_gated_forward(stream, type, which, rows, cols, x->data, y.data, SW_ALL_ROWS));
    assert_ok(sw_gated_backward(stream, type, which, rows, cols, x->data, dy->data, dx.data, NULL, SW_ALL_ROWS));
    assert_ok(sw_gated_backward(stream, type, which, rows, cols, x->data, dy->data, dx_beside.data, activated.data,
                                SW_ALL_ROWS));
    expect_both("gated gradients", pair, &dx_beside, &dx, &activated, &y);
    struct buffer *all[] = {&y, &dx, &dx_beside, &activated};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
}

static void compare(struct pair *pair, sw_dtype type, sw_activation which, int64_t elems) {
    const float rtol = 2e-6f, atol = 1e-6f;
    struct buffer x = inputs(type, elems), dy = buffer_random(type, elems, 2, 1.0f);
    struct buffer got = buffer_make(x.bytes), want = buffer_make(x.bytes);
    assert_ok(sw_activation_forward(pair->stream, type, which, elems, x.data, got.data));
    assert_ok(sw_activation_forward(pair->ref, type, which, elems, x.data, want.data));
    assert_close("an activation", pair, type, elems, got.data, want.data, rtol, atol);
    assert_ok(sw_activation_backward(pair->stream, type, which, elems, x.data, dy.data, got.data, NULL));
    assert_ok(sw_activation_backward(pair->ref, type, which, elems, x.data, dy.data, want.data, NULL));
    assert_close("an activation's gradient", pair, type, elems, got.data, want.data, rtol, 4.0f * atol);
    make_both(pair, pair->stream, type, which, &x, &dy);
    make_both(pair, pair->ref, type, which, &x, &dy);
    assert_ok(sw_activation_backward(pair->stream, type, which, elems, x.data, dy.data, dy.data, NULL));
    assert_same_bits("a gradient in place", pair, dy.bytes, dy.data, got.data);
    buffer_free(&x);
    buffer_free(&dy);
    buffer_free(&got);
    buffer_free(&want);
}

static void compare_all(struct pair *pair) {
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
            for (int t = 0; t < TEST_TYPES; t++)
                compare(pair, test_types[t], kinds[k], sizes[s]);
        }
    }
}

static void against_reference(void **state) {
    (void)state;
    for_each_device(compare_all);
}

/* The textbook forms, not those of the code under test. */
static double textbook(sw_activation which, double x) {
    if (which == SW_RELU)
        return fmax(x, 0.0);
    if (which == SW_SILU)
        return 0.5 * x * (1.0 + tanh(0.5 * x));
    if (which == SW_GELU_ERF)
        return 0.5 * x * (1.0 + erf(x / sqrt(2.0)));
    return 0.5 * x * (1.0 + tanh(sqrt(2.0 / M_PI) * (x + 0.044715 * pow(x, 3.0))));
}

static void slopes_of_reference(void **state) {
    (void)state;
    struct sw_device *device = NULL;
    struct sw_stream *stream = NULL;
    assert_ok(sw_device_open("ref", 1, &device));
    assert_ok(sw_stream_open(device, &stream));
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        for (int64_t i = 0; i < 401; i++) {
            const float x = -6.0f + 0.03f * (float)i + 0.001f, one = 1.0f;
            float y = NAN, dx = NAN;
            assert_ok(sw_activation_forward(stream, SW_F32, kinds[k], 1, &x, &y));
            assert_ok(sw_activation_backward(stream, SW_F32, kinds[k], 1, &x, &one, &dx, NULL));
            const double step = 1e-5, above = textbook(kinds[k], x + step), below = textbook(kinds[k], x - step);
            assert_near("an activation", i, y, textbook(kinds[k], x), 1e-7);
            assert_near("a slope", i, dx, (above - below) / (2.0 * step), 1e-6);
        }
    }
    sw_stream_close(stream);
    sw_device_close(device);
}

static void compare_gated(struct pair *pair, sw_dtype type, sw_activation which, int64_t rows, int64_t cols) {
    const float rtol = 4e-6f, atol = 2e-6f;
    struct buffer x = inputs(type, 2 * rows * cols), dy = buffer_random(type, rows * cols, 2, 1.0f);
    struct buffer got = buffer_make(dy.bytes), want = buffer_make(dy.bytes);
    struct buffer got_dx = buffer_make(x.bytes), want_dx = buffer_make(x.bytes);
    assert_ok(sw_gated_forward(pair->stream, type, which, rows, cols, x.data, got.data, SW_ALL_ROWS));
    assert_ok(sw_gated_forward(pair->ref, type, which, rows, cols, x.data, want.data, SW_ALL_ROWS));
    assert_close("a gated activation", pair, type, rows * cols, got.data, want.data, rtol, atol);
    assert_ok(
        sw_gated_backward(pair->stream, type, which, rows, cols, x.data, dy.data, got_dx.data, NULL, SW_ALL_ROWS));
    assert_ok(sw_gated_backward(pair->ref, type, which, rows, cols, x.data, dy.data, want_dx.data, NULL, SW_ALL_ROWS));
    make_both_gated(pair, pair->stream, type, which, rows, &x, &dy);
    make_both_gated(pair, pair->ref, type, which, rows, &x, &dy);
    assert_close("its gradient", pair, type, 2 * rows * cols, got_dx.data, want_dx.data, rtol, 4.0f * atol);
    struct buffer *all[] = {&x, &dy, &got, &want, &got_dx, &want_dx};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
}

static void gated_sizes(struct pair *pair) {
    static const int64_t cols[] = {1, 15, 16, 33, 511, 513, 1100};
    for (size_t c = 0; c < sizeof cols / sizeof cols[0]; c++) {
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
            for (int t = 0; t < TEST_TYPES; t++)
                compare_gated(pair, test_types[t], kinds[k], 17, cols[c]);
        }
    }
}

static void gated_against_reference(void **state) {
    (void)state;
    for_each_device(gated_sizes);
}

/* One gate and one value beside each other, as a row of one column has them. */
static void gated_slopes_of_reference(void **state) {
    (void)state;
    struct sw_device *device = NULL;
    struct sw_stream *stream = NULL;
    assert_ok(sw_device_open("ref", 1, &device));
    assert_ok(sw_stream_open(device, &stream));
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        for (int64_t i = 0; i < 101; i++) {
            const float x[2] = {-5.0f + 0.1f * (float)i + 0.001f, 1.5f - 0.02f * (float)i}, dy = 0.7f;
            float y = NAN, dx[2];
            assert_ok(sw_gated_forward(stream, SW_F32, kinds[k], 1, 1, x, &y, SW_ALL_ROWS));
            assert_ok(sw_gated_backward(stream, SW_F32, kinds[k], 1, 1, x, &dy, dx, NULL, SW_ALL_ROWS));
            const double step = 1e-5, middle = textbook(kinds[k], x[0]);
            const double slope = (textbook(kinds[k], x[0] + step) - textbook(kinds[k], x[0] - step)) / (2.0 * step);
            assert_near("a gated activation", i, y, middle * x[1], 1e-6);
            assert_near("a gate's gradient", i, dx[0], dy * slope * x[1], 2e-6);
            assert_near("a value's gradient", i, dx[1], dy * middle, 1e-6);
        }
    }
    sw_stream_close(stream);
    sw_device_close(device);
}

static void nan_spreads(struct pair *pair) {
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        const float values[3] = {1.0f, NAN, 2.0f};
        struct buffer x = buffer_of(values, sizeof values), results = buffer_make(sizeof values);
        const float *y = results.data;
        assert_ok(sw_activation_forward(pair->stream, SW_F32, kinds[k], 3, x.data, results.data));
        assert_true(isnan(y[1]) && !isnan(y[0]) && !isnan(y[2]));
        buffer_free(&x);
        buffer_free(&results);
    }
}

static void nan_is_kept(void **state) {
    (void)state;
    for_each_device(nan_spreads);
}

static void add_sizes(struct pair *pair) {
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (int t = 0; t < TEST_TYPES; t++) {
            const sw_dtype type = test_types[t];
            struct buffer a = buffer_random(type, sizes[s], 3, 1.0f), b = buffer_random(type, sizes[s], 4, 1.0f);
            struct buffer got = buffer_make(a.bytes), want = buffer_make(a.bytes);
            assert_ok(sw_add(pair->stream, type, sizes[s], a.data, b.data, got.data));
            assert_ok(sw_add(pair->ref, type, sizes[s], a.data, b.data, want.data));
            assert_same_bits("a sum", pair, a.bytes, got.data, want.data);
            assert_ok(sw_add(pair->stream, type, sizes[s], a.data, b.data, b.data));
            assert_same_bits("a sum in place of b", pair, a.bytes, b.data, want.data);
            buffer_free(&a);
            buffer_free(&b);
            buffer_free(&got);
            buffer_free(&want);
        }
    }
}

static void add(void **state) {
    (void)state;
    for_each_device(add_sizes);
}

int main(void) {
    const struct CMUnitTest on_devices[] = {cmocka_unit_test(against_reference),
                                            cmocka_unit_test(gated_against_reference), cmocka_unit_test(nan_is_kept),
                                            cmocka_unit_test(add)};
    const struct CMUnitTest others[] = {cmocka_unit_test(slopes_of_reference),
                                        cmocka_unit_test(gated_slopes_of_reference)};
    return RUN_TESTS(on_devices, others);
}
