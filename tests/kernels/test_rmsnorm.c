/* Root-mean-square norms against the reference, and the reference against difference quotients. */
#include "tests/kernels/support.h"

#include <math.h>

/* Rows of x and of y have different gaps behind each set of rows; where both are multiples of 16 bytes, a GPU reads
 * vectors. */
static const struct {
    int64_t sets, groups, cols, x_gap, y_gap;
} sizes[] = {{1, 1, 1, 7, 3},    {5, 1, 15, 7, 3},   {3, 1, 16, 7, 3},     {67, 1, 65, 7, 3},
             {9, 3, 16, 7, 3},   {5, 4, 33, 7, 3},   {120, 1, 1031, 7, 3}, {201, 6, 128, 7, 3},
             {11, 2, 64, 16, 8}, {9, 1, 1024, 0, 0}, {3, 1, 2056, 8, 0}};
static const float EPSILON = 1e-5f;

struct sides {
    struct buffer y, rstd, dx, gamma_acc;
};

static struct sw_rmsnorm shape_of(size_t size) {
    const int64_t wide = sizes[size].groups * sizes[size].cols;
    return (struct sw_rmsnorm){.rows = sizes[size].sets * sizes[size].groups,
                               .cols = sizes[size].cols,
                               .groups = sizes[size].groups,
                               .x_stride = wide + sizes[size].x_gap,
                               .y_stride = wide + sizes[size].y_gap,
                               .epsilon = EPSILON,
                               .gamma_base = (float)(size % 2)};
}

static int64_t elems_of(const struct sw_rmsnorm *shape, int64_t stride) {
    return shape->rows / shape->groups * stride;
}

static struct sides run(struct sw_stream *stream, sw_dtype type, const struct sw_rmsnorm *shape, bool add) {
    const int64_t x_elems = elems_of(shape, shape->x_stride), y_elems = elems_of(shape, shape->y_stride);
    struct buffer x = buffer_random(type, x_elems, 1, 2.0f), gamma = buffer_random(type, shape->cols, 2, 1.0f);
    struct buffer dy = buffer_random(type, y_elems, 3, 1.0f);
    struct sides s = {.y = buffer_zeros(y_elems * sw_dtype_bytes(type)),
                      .rstd = buffer_make(shape->rows * 4),
                      .dx = add ? buffer_random(type, x_elems, 5, 1.0f) : buffer_zeros(x.bytes),
                      .gamma_acc = buffer_random(SW_F32, shape->cols, 6, 1.0f)};
    assert_ok(sw_rmsnorm_forward(stream, type, shape, x.data, gamma.data, s.y.data, s.rstd.data));
    assert_ok(sw_rmsnorm_backward(stream, type, shape, add, dy.data, x.data, gamma.data, s.rstd.data, s.dx.data,
                                  s.gamma_acc.data));
    buffer_free(&x);
    buffer_free(&gamma);
    buffer_free(&dy);
    return s;
}

static void free_sides(struct sides *s) {
    struct buffer *all[] = {&s->y, &s->rstd, &s->dx, &s->gamma_acc};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
}

/* Whole buffers, with the gaps, which no side may have written. */
static void compare(struct pair *pair, sw_dtype type, size_t size, bool add) {
    const struct sw_rmsnorm shape = shape_of(size);
    struct sides got = run(pair->stream, type, &shape, add), want = run(pair->ref, type, &shape, add);
    assert_close("rstd", pair, SW_F32, shape.rows, got.rstd.data, want.rstd.data, 1e-5f, 0.0f);
    assert_close("y", pair, type, elems_of(&shape, shape.y_stride), got.y.data, want.y.data, 1e-5f, 1e-5f);
    assert_close("dx", pair, type, elems_of(&shape, shape.x_stride), got.dx.data, want.dx.data, 1e-5f, 2e-5f);
    assert_close("gamma", pair, SW_F32, shape.cols, got.gamma_acc.data, want.gamma_acc.data, 1e-5f, 2e-4f);
    free_sides(&got);
    free_sides(&want);
}

static void compare_all(struct pair *pair) {
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (int i = 0; i < 2 * TEST_TYPES; i++)
            compare(pair, test_types[i % TEST_TYPES], s, i >= TEST_TYPES);
    }
}

static void against_reference(void **state) {
    (void)state;
    for_each_device(compare_all);
}

enum { COLS = 23 };

/* Returns the sum of w·rmsnorm(x) over one row, in double. */
static double weighted(const double *x, double gamma_base, const double *gamma, const double *w) {
    double squares = 0.0, sum = 0.0;
    for (int64_t i = 0; i < COLS; i++)
        squares += x[i] * x[i] / COLS;
    for (int64_t i = 0; i < COLS; i++)
        sum += w[i] * x[i] / sqrt(squares + EPSILON) * (gamma_base + gamma[i]);
    return sum;
}

static double quotient(const double *x, double gamma_base, const double *gamma, const double *w, double *at) {
    const double step = 1e-5, middle = *at;
    *at = middle + step;
    const double above = weighted(x, gamma_base, gamma, w);
    *at = middle - step;
    const double below = weighted(x, gamma_base, gamma, w);
    *at = middle;
    return (above - below) / (2.0 * step);
}

static void check_gradients(float base) {
    const struct sw_rmsnorm shape = {.rows = 1,
                                     .cols = COLS,
                                     .groups = 1,
                                     .x_stride = COLS,
                                     .y_stride = COLS,
                                     .epsilon = EPSILON,
                                     .gamma_base = base};
    struct sw_device *device = NULL;
    struct sw_stream *stream = NULL;
    assert_ok(sw_device_open("ref", 1, &device));
    assert_ok(sw_stream_open(device, &stream));
    struct buffer inputs[] = {buffer_random(SW_F32, COLS, 11, 1.0f), buffer_random(SW_F32, COLS, 12, 1.0f),
                              buffer_random(SW_F32, COLS, 13, 1.0f)};
    float y[COLS], rstd, dx[COLS], gamma_acc[COLS] = {0};
    double x[COLS], gamma[COLS], w[COLS], total = 0.0;
    for (int64_t i = 0; i < COLS; i++) {
        x[i] = ((float *)inputs[0].data)[i];
        gamma[i] = ((float *)inputs[1].data)[i];
        w[i] = ((float *)inputs[2].data)[i];
    }
    assert_ok(sw_rmsnorm_forward(stream, SW_F32, &shape, inputs[0].data, inputs[1].data, y, &rstd));
    assert_ok(sw_rmsnorm_backward(stream, SW_F32, &shape, false, inputs[2].data, inputs[0].data, inputs[1].data, &rstd,
                                  dx, gamma_acc));
    for (int64_t i = 0; i < COLS; i++)
        total += w[i] * y[i];
    assert_near("y", 0, total, weighted(x, base, gamma, w), 1e-5);
    for (int64_t i = 0; i < COLS; i++) {
        assert_near("dx", i, dx[i], quotient(x, base, gamma, w, &x[i]), 1e-5);
        assert_near("gamma", i, gamma_acc[i], quotient(x, base, gamma, w, &gamma[i]), 1e-5);
    }
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++)
        buffer_free(&inputs[i]);
    sw_stream_close(stream);
    sw_device_close(device);
}

static void gradients_of_reference(void **state) {
    (void)state;
    check_gradients(0.0f);
    check_gradients(1.0f);
}

static struct sides run_on(int threads, sw_dtype type, size_t size) {
    struct sw_device *device = NULL;
    struct sw_stream *stream = NULL;
    const struct sw_rmsnorm shape = shape_of(size);
    assert_ok(sw_device_open("cpu", threads, &device));
    assert_ok(sw_stream_open(device, &stream));
    const struct sides s = run(stream, type, &shape, true);
    sw_stream_close(stream);
    sw_device_close(device);
    return s;
}

static void same_bits_for_any_threads(void **state) {
    (void)state;
    for (int i = 0; i < 2 * TEST_TYPES; i++) {
        const size_t size = sizeof sizes / sizeof sizes[0] - 1 - (size_t)(i / TEST_TYPES);
        struct sides one = run_on(1, test_types[i % TEST_TYPES], size);
        for (int threads = 2; threads <= 4; threads++) {
            struct sides many = run_on(threads, test_types[i % TEST_TYPES], size);
            assert_memory_equal(one.y.data, many.y.data, (size_t)one.y.bytes);
            assert_memory_equal(one.dx.data, many.dx.data, (size_t)one.dx.bytes);
            assert_memory_equal(one.gamma_acc.data, many.gamma_acc.data, (size_t)one.gamma_acc.bytes);
            free_sides(&many);
        }
        free_sides(&one);
    }
}

int main(void) {
    const struct CMUnitTest on_devices[] = {cmocka_unit_test(against_reference)};
    const struct CMUnitTest others[] = {cmocka_unit_test(gradients_of_reference),
                                        cmocka_unit_test(same_bits_for_any_threads)};
    return RUN_TESTS(on_devices, others);
}
