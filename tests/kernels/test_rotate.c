/* Rotary positions against the reference, the reference against complex numbers, and there and back. */
#include "tests/kernels/support.h"

#include <complex.h>
#include <math.h>
#include <string.h>

static const struct {
    int64_t batch, seq, heads, dim, gap;
} sizes[] = {{1, 1, 1, 2, 0}, {2, 5, 3, 6, 5}, {1, 9, 2, 32, 0}, {2, 70, 5, 34, 9}, {1, 130, 4, 128, 64}};

static struct sw_rotation shape_of(size_t size, bool back) {
    return (struct sw_rotation){.batch = sizes[size].batch,
                                .seq = sizes[size].seq,
                                .heads = sizes[size].heads,
                                .head_dim = sizes[size].dim,
                                .stride = sizes[size].heads * sizes[size].dim + sizes[size].gap,
                                .back = back};
}

static double angle_of(const struct sw_rotation *shape, int64_t token, int64_t i) {
    return (double)token * pow(100.0, -2.0 * (double)i / (double)shape->head_dim);
}

static struct buffer table_of(const struct sw_rotation *shape) {
    struct buffer table = buffer_make(shape->seq * shape->head_dim * 4);
    const int64_t half = shape->head_dim / 2;
    for (int64_t t = 0; t < shape->seq; t++) {
        for (int64_t i = 0; i < half; i++) {
            ((float *)table.data)[t * shape->head_dim + i] = (float)cos(angle_of(shape, t, i));
            ((float *)table.data)[t * shape->head_dim + half + i] = (float)sin(angle_of(shape, t, i));
        }
    }
    return table;
}

/* A whole buffer, with what lies between the rows, which must stay. */
static struct buffer turned(struct sw_stream *stream, sw_dtype type, const struct sw_rotation *shape) {
    struct buffer table = table_of(shape);
    struct buffer x = buffer_random(type, shape->batch * shape->seq * shape->stride, 1, 1.0f);
    assert_ok(sw_rotate(stream, type, shape, table.data, x.data));
    buffer_free(&table);
    return x;
}

static void compare_all(struct pair *pair) {
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (int i = 0; i < 2 * TEST_TYPES; i++) {
            const struct sw_rotation shape = shape_of(s, i >= TEST_TYPES);
            const sw_dtype type = test_types[i % TEST_TYPES];
            struct buffer got = turned(pair->stream, type, &shape), want = turned(pair->ref, type, &shape);
            assert_close("a rotation", pair, type, want.bytes / sw_dtype_bytes(type), got.data, want.data, 1e-6f,
                         1e-6f);
            buffer_free(&got);
            buffer_free(&want);
        }
    }
}

static void against_reference(void **state) {
    (void)state;
    for_each_device(compare_all);
}

/* A pair of elements is a complex number that is multiplied by exp(i·angle); elements between the rows stay. */
static void reference_turns_pairs(void **state) {
    (void)state;
    struct sw_device *device = NULL;
    struct sw_stream *stream = NULL;
    assert_ok(sw_device_open("ref", 1, &device));
    assert_ok(sw_stream_open(device, &stream));
    for (int back = 0; back < 2; back++) {
        const struct sw_rotation shape = shape_of(1, back);
        const int64_t rows = shape.batch * shape.seq, half = shape.head_dim / 2;
        struct buffer before = buffer_random(SW_F32, rows * shape.stride, 1, 1.0f),
                      after = turned(stream, SW_F32, &shape);
        const float *x = before.data, *y = after.data;
        for (int64_t e = 0; e < rows * shape.stride; e++) {
            const int64_t col = e % shape.stride, i = col % shape.head_dim;
            if (col >= shape.heads * shape.head_dim) {
                assert_true(x[e] == y[e]);
            } else if (i < half) {
                const double angle = angle_of(&shape, e / shape.stride % shape.seq, i);
                const double complex want = (x[e] + x[e + half] * I) * cexp(I * (back ? -angle : angle));
                assert_near("the first of a pair", e, y[e], creal(want), 1e-6);
                assert_near("the second of a pair", e, y[e + half], cimag(want), 1e-6);
            }
        }
        buffer_free(&before);
        buffer_free(&after);
    }
    sw_stream_close(stream);
    sw_device_close(device);
}

int main(void) {
    const struct CMUnitTest on_devices[] = {cmocka_unit_test(against_reference)};
    const struct CMUnitTest others[] = {cmocka_unit_test(reference_turns_pairs)};
    return RUN_TESTS(on_devices, others);
}
