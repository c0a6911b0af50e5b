/* Layer normalisation against the reference, and the reference against difference quotients. */
#include "tests/kernels/support.h"

#include <math.h>

/* A GPU reads rows of 16, 768 and 2,048 columns by vectors, the last ones by more threads. */
static const int64_t row_counts[] = {1, 5, 67}, col_counts[] = {1, 2, 15, 16, 17, 63, 65, 511, 513, 768, 1031, 2048};
static const float EPSILON = 1e-5f;

struct sides {
    struct buffer y, mean, rstd, dx, gamma_acc, beta_acc;
};

static void run(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t cols, bool add, const void *x,
                const void *gamma, const void *beta, const void *dy, struct sides *s) {
    assert_ok(
        sw_layernorm_forward(stream, type, rows, cols, EPSILON, x, gamma, beta, s->y.data, s->mean.data, s->rstd.data));
    assert_ok(sw_layernorm_backward(stream, type, rows, cols, add, dy, x, gamma, s->mean.data, s->rstd.data, s->dx.data,
                                    s->gamma_acc.data, s->beta_acc.data));
}

static struct sides make_sides(sw_dtype type, int64_t rows, int64_t cols, bool add) {
    const int64_t bytes = rows * cols * sw_dtype_bytes(type);
    return (struct sides){.y = buffer_make(bytes),
                          .mean = buffer_make(rows * 4),
                          .rstd = buffer_make(rows * 4),
                          .dx = add ? buffer_random(type, rows * cols, 5, 1.0f) : buffer_make(bytes),
                          .gamma_acc = buffer_random(SW_F32, cols, 6, 1.0f),
                          .beta_acc = buffer_random(SW_F32, cols, 7, 1.0f)};
}

static void free_sides(struct sides *s) {
    struct buffer *all[] = {&s->y, &s->mean, &s->rstd, &s->dx, &s->gamma_acc, &s->beta_acc};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
}

static void compare(struct pair *pair, sw_dtype type, int64_t rows, int64_t cols, bool add) {
    struct buffer x = buffer_random(type, rows * cols, 1, 2.0f), gamma = buffer_random(type, cols, 2, 1.0f);
    struct buffer beta = buffer_random(type, cols, 3, 1.0f), dy = buffer_random(type, rows * cols, 4, 1.0f);
    struct sides got = make_sides(type, rows, cols, add), want = make_sides(type, rows, cols, add);
    run(pair->stream, type, rows, cols, add, x.data, gamma.data, beta.data, dy.data, &got);
    run(pair->ref, type, rows, cols, add, x.data, gamma.data, beta.data, dy.data, &want);
    /* With one column x is its own mean, and rstd is 1/sqrt(epsilon): what is left of dx is rounding times that. */
    const float dx_atol = cols == 1 ? 2e-4f : 2e-5f * (cols == 2 ? 100.0f : 1.0f);
    assert_close("mean", pair, SW_F32, rows, got.mean.data, want.mean.data, 1e-6f, 1e-6f);
    assert_close("rstd", pair, SW_F32, rows, got.rstd.data, want.rstd.data, 1e-5f, 0.0f);
    assert_close("y", pair, type, rows * cols, got.y.data, want.y.data, 1e-5f, 1e-5f);
    assert_close("dx", pair, type, rows * cols, got.dx.data, want.dx.data, 1e-5f, dx_atol);
    assert_close("gamma", pair, SW_F32, cols, got.gamma_acc.data, want.gamma_acc.data, 1e-5f, 1e-4f);
    assert_close("beta", pair, SW_F32, cols, got.beta_acc.data, want.beta_acc.data, 0.0f, 0.0f);
    free_sides(&got);
    free_sides(&want);
    buffer_free(&x);
    buffer_free(&gamma);
    buffer_free(&beta);
    buffer_free(&dy);
}

static void compare_all(struct pair *pair) {
    for (size_t r = 0; r < sizeof row_counts / sizeof row_counts[0]; r++) {
        for (size_t c = 0; c < sizeof col_counts / sizeof col_counts[0]; c++) {
            for (int i = 0; i < 2 * TEST_TYPES; i++)
                compare(pair, test_types[i % TEST_TYPES], row_counts[r], col_counts[c], i >= TEST_TYPES);
        }
    }
}

static void against_reference(void **state) {
    (void)state;
    for_each_device(compare_all);
}

/* The sum and its norm in one pass are what the two ops give, on every device, also where the sum is put in place. */
static void compare_sum(struct pair *pair, sw_dtype type, int64_t rows, int64_t cols, bool layer, bool in_place) {
    const float base = in_place ? 1.0f : 0.0f;
    const struct sw_rmsnorm shape = {.rows = rows,
                                     .cols = cols,
                                     .groups = 1,
                                     .x_stride = cols,
                                     .y_stride = cols,
                                     .epsilon = EPSILON,
                                     .gamma_base = base};
    struct buffer a = buffer_random(type, rows * cols, 21, 1.0f), b = buffer_random(type, rows * cols, 22, 1.0f);
    struct buffer gamma = buffer_random(type, cols, 23, 1.0f), beta = buffer_random(type, cols, 24, 1.0f);
    struct buffer sum = buffer_make(a.bytes), placed = in_place ? buffer_copy(&b) : buffer_make(a.bytes);
    struct sides got = make_sides(type, rows, cols, false), want = make_sides(type, rows, cols, false);
    assert_ok(sw_add(pair->stream, type, rows * cols, a.data, b.data, sum.data));
    assert_ok(layer
                  ? sw_layernorm_forward(pair->stream, type, rows, cols, EPSILON, sum.data, gamma.data, beta.data,
                                         want.y.data, want.mean.data, want.rstd.data)
                  : sw_rmsnorm_forward(pair->stream, type, &shape, sum.data, gamma.data, want.y.data, want.rstd.data));
    assert_ok(sw_add_norm_forward(pair->stream, type, rows, cols, EPSILON, a.data, in_place ? placed.data : b.data,
                                  placed.data, gamma.data, layer ? beta.data : NULL, got.y.data,
                                  layer ? got.mean.data : NULL, got.rstd.data, .gamma_base = layer ? 0.0f : base));
    assert_same_bits("sum", pair, sum.bytes, placed.data, sum.data);
    assert_same_bits("norm of a sum", pair, got.y.bytes, got.y.data, want.y.data);
    assert_same_bits("rstd of a sum", pair, got.rstd.bytes, got.rstd.data, want.rstd.data);
    if (layer)
        assert_same_bits("mean of a sum", pair, got.mean.bytes, got.mean.data, want.mean.data);
    struct buffer *all[] = {&a, &b, &gamma, &beta, &sum, &placed};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
    free_sides(&got);
    free_sides(&want);
}

static void compare_sums(struct pair *pair) {
    for (size_t r = 0; r < sizeof row_counts / sizeof row_counts[0]; r++) {
        for (size_t c = 0; c < sizeof col_counts / sizeof col_counts[0]; c++) {
            for (int i = 0; i < 2 * TEST_TYPES; i++)
                compare_sum(pair, test_types[i % TEST_TYPES], row_counts[r], col_counts[c], i < TEST_TYPES,
                            (r + c) % 2 == 0);
        }
    }
}

static void a_sum_and_its_norm(void **state) {
    (void)state;
    for_each_device(compare_sums);
}

/* sum of w·layernorm(x) over one row, in double. */
static double weighted(int64_t cols, const double *x, const double *gamma, const double *beta, const double *w) {
    double mean = 0.0, variance = 0.0, sum = 0.0;
    for (int64_t i = 0; i < cols; i++)
        mean += x[i] / (double)cols;
    for (int64_t i = 0; i < cols; i++)
        variance += (x[i] - mean) * (x[i] - mean) / (double)cols;
    for (int64_t i = 0; i < cols; i++)
        sum += w[i] * ((x[i] - mean) / sqrt(variance + EPSILON) * gamma[i] + beta[i]);
    return sum;
}

static double quotient(int64_t cols, double *x, double *gamma, double *beta, const double *w, double *at) {
    const double step = 1e-5, middle = *at;
    *at = middle + step;
    const double above = weighted(cols, x, gamma, beta, w);
    *at = middle - step;
    const double below = weighted(cols, x, gamma, beta, w);
    *at = middle;
    return (above - below) / (2.0 * step);
}

static void gradients_of_reference(void **state) {
    (void)state;
    enum { COLS = 23 };
    struct sw_device *device = NULL;
    struct sw_stream *stream = NULL;
    assert_ok(sw_device_open("ref", 1, &device));
    assert_ok(sw_stream_open(device, &stream));
    struct buffer x = buffer_random(SW_F32, COLS, 11, 1.0f), gamma = buffer_random(SW_F32, COLS, 12, 1.0f);
    struct buffer beta = buffer_random(SW_F32, COLS, 13, 1.0f), dy = buffer_random(SW_F32, COLS, 14, 1.0f);
    struct sides s = make_sides(SW_F32, 1, COLS, false);
    for (int64_t i = 0; i < COLS; i++)
        ((float *)s.gamma_acc.data)[i] = ((float *)s.beta_acc.data)[i] = 0.0f;
    run(stream, SW_F32, 1, COLS, false, x.data, gamma.data, beta.data, dy.data, &s);
    double dx[COLS], dgamma[COLS], dbeta[COLS], w[COLS];
    for (int64_t i = 0; i < COLS; i++) {
        dx[i] = ((float *)x.data)[i];
        dgamma[i] = ((float *)gamma.data)[i];
        dbeta[i] = ((float *)beta.data)[i];
        w[i] = ((float *)dy.data)[i];
    }
    for (int64_t i = 0; i < COLS; i++) {
        assert_near("dx", i, ((float *)s.dx.data)[i], quotient(COLS, dx, dgamma, dbeta, w, &dx[i]), 1e-5);
        assert_near("gamma", i, ((float *)s.gamma_acc.data)[i], quotient(COLS, dx, dgamma, dbeta, w, &dgamma[i]), 1e-5);
        assert_near("beta", i, ((float *)s.beta_acc.data)[i], quotient(COLS, dx, dgamma, dbeta, w, &dbeta[i]), 1e-5);
    }
    free_sides(&s);
    struct buffer *all[] = {&x, &gamma, &beta, &dy};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
    sw_stream_close(stream);
    sw_device_close(device);
}

static void run_on(int threads, sw_dtype type, int64_t rows, int64_t cols, struct sides *s) {
    struct sw_device *device = NULL;
    struct sw_stream *stream = NULL;
    assert_ok(sw_device_open("cpu", threads, &device));
    assert_ok(sw_stream_open(device, &stream));
    struct buffer x = buffer_random(type, rows * cols, 1, 2.0f), gamma = buffer_random(type, cols, 2, 1.0f);
    struct buffer beta = buffer_random(type, cols, 3, 1.0f), dy = buffer_random(type, rows * cols, 4, 1.0f);
    *s = make_sides(type, rows, cols, true);
    run(stream, type, rows, cols, true, x.data, gamma.data, beta.data, dy.data, s);
    struct buffer *all[] = {&x, &gamma, &beta, &dy};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        buffer_free(all[i]);
    sw_stream_close(stream);
    sw_device_close(device);
}

/* Threads decide how many rows are taken at once, never the order in which they are added. */
static void same_bits_for_any_threads(void **state) {
    (void)state;
    enum { ROWS = 601, COLS = 1031 };
    for (int t = 0; t < TEST_TYPES; t++) {
        struct sides one, many;
        run_on(1, test_types[t], ROWS, COLS, &one);
        for (int threads = 2; threads <= 4; threads++) {
            run_on(threads, test_types[t], ROWS, COLS, &many);
            assert_memory_equal(one.y.data, many.y.data, (size_t)one.y.bytes);
            assert_memory_equal(one.dx.data, many.dx.data, (size_t)one.dx.bytes);
            assert_memory_equal(one.gamma_acc.data, many.gamma_acc.data, (size_t)one.gamma_acc.bytes);
            assert_memory_equal(one.beta_acc.data, many.beta_acc.data, (size_t)one.beta_acc.bytes);
            free_sides(&many);
        }
        free_sides(&one);
    }
}

int main(void) {
    const struct CMUnitTest on_devices[] = {cmocka_unit_test(against_reference), cmocka_unit_test(a_sum_and_its_norm)};
    const struct CMUnitTest others[] = {cmocka_unit_test(gradients_of_reference),
                                        cmocka_unit_test(same_bits_for_any_threads)};
    return RUN_TESTS(on_devices, others);
}
