/* Times of ops: kept by size, asked for sizes between and beyond them, and taken from a device without a trace in what
 * it computes. */
#include "kernels/described.h"
#include "tests/kernels/support.h"

#include <math.h>
#include <string.h>

static struct sw_op_size product(int64_t m, int64_t n, int64_t k) {
    return sw_op_size_of_product(&(struct sw_gemm){.m = m, .n = n, .k = k, .in = SW_BF16, .out = SW_BF16});
}

static void add(struct sw_op_times *times, struct sw_op_size size, double seconds) {
    assert_ok(sw_op_times_add(times, &size, seconds));
}

static double rate_of(struct sw_op_times *times, struct sw_op_size size) {
    return size.work / sw_op_times_find(times, &size);
}

static void sizes_that_were_timed(void **state) {
    (void)state;
    struct sw_op_times *times;
    const struct sw_op_size size = product(64, 128, 256), other = product(64, 128, 512);
    assert_ok(sw_op_times_create(&times));
    assert_true(sw_op_times_find(times, &size) == 0.0);
    /* The median counts, so that other work on the machine does not while it lasts. */
    const double samples[] = {5e-3, 2e-3, 1e-3, 2e-3, 7e-3};
    for (size_t i = 0; i < sizeof samples / sizeof samples[0]; i++)
        add(times, size, samples[i]);
    add(times, other, 1.0);
    assert_int_equal(sw_op_times_count(times), 2);
    assert_true(fabs(sw_op_times_find(times, &size) / 2e-3 - 1.0) < 1e-9);
    assert_true(fabs(sw_op_times_find(times, &other) / 1.0 - 1.0) < 1e-9);
    assert_true(fabs(sw_op_times_best_rate(times, SW_TIMED_PRODUCT) / (size.work / 2e-3) - 1.0) < 1e-9);
    assert_true(sw_op_times_best_rate(times, SW_TIMED_ZERO) == 0.0);
    sw_op_times_destroy(times);
}

static void sizes_between_and_beyond(void **state) {
    (void)state;
    struct sw_op_times *times;
    assert_ok(sw_op_times_create(&times));
    const struct sw_op_size small = product(64, 64, 64), large = product(4096, 4096, 4096);
    add(times, small, small.work / 1e9);
    add(times, large, large.work / 1e11);
    const double nearly_small = rate_of(times, product(100, 64, 64)), middle = rate_of(times, product(512, 512, 512));
    assert_true(nearly_small > 1e9 && nearly_small < middle && middle < 1e11);
    assert_true(fabs(rate_of(times, product(INT64_C(1) << 24, 8192, 8192)) / 1e11 - 1.0) < 0.2);
    /* Another op and an op that lies otherwise are other ops. */
    assert_true(sw_op_times_find(times, &(struct sw_op_size){.op = SW_TIMED_ZERO, .work = 64.0}) == 0.0);
    struct sw_op_size turned = small;
    turned.kind = 1;
    add(times, turned, small.work / 1e8);
    assert_true(fabs(rate_of(times, turned) / 1e8 - 1.0) < 1e-6 && fabs(rate_of(times, small) / 1e9 - 1.0) < 1e-6);
    sw_op_times_destroy(times);
}

static void names(void **state) {
    (void)state;
    for (int op = 0; op < SW_TIMED_OPS; op++)
        assert_int_equal(sw_timed_op_named(sw_timed_op_name(op)), op);
    assert_int_equal(sw_timed_op_named("no such op"), -1);
    assert_int_equal(sw_timed_op_named(NULL), -1);
}

enum { SIDE = 96 };

static void fill(float *to, int64_t elems) {
    for (int64_t i = 0; i < elems; i++)
        to[i] = (float)(i % 13 - 6);
}

/* A product, a sum and a copy. */
static void compute(struct sw_device *device, float *to) {
    const int64_t elems = (int64_t)SIDE * SIDE, bytes = elems * (int64_t)sizeof(float);
    const struct sw_gemm shape = {.m = SIDE, .n = SIDE, .k = SIDE, .in = SW_F32, .out = SW_F32};
    struct sw_memory *memory;
    struct sw_stream *stream;
    int64_t scratch_bytes;
    assert_ok(sw_device_prepare_gemm(device, &shape, &scratch_bytes));
    assert_ok(sw_memory_open(device, "test", SW_MEMORY_DEVICE, 4 * bytes + scratch_bytes, &memory));
    assert_ok(sw_stream_open(device, &stream));
    float *a = sw_memory_base(memory), *b = a + elems, *c = b + elems, *d = c + elems;
    fill(a, elems);
    fill(b, elems);
    assert_ok(sw_gemm(stream, &shape, a, b, NULL, c, scratch_bytes > 0 ? d + elems : NULL));
    assert_ok(sw_add(stream, SW_F32, elems, a, c, b));
    assert_ok(sw_copy_on_device(stream, d, b, bytes));
    assert_ok(sw_zero(stream, a, bytes));
    assert_ok(sw_stream_synchronize(stream));
    memcpy(to, d, (size_t)bytes);
    sw_stream_close(stream);
    sw_memory_close(memory);
}

static void timing_changes_nothing(void **state) {
    (void)state;
    static float plain[SIDE * SIDE], timed[SIDE * SIDE];
    struct sw_device *device;
    struct sw_op_times *times;
    assert_ok(sw_device_open("cpu", 1, &device));
    assert_ok(sw_op_times_create(&times));
    compute(device, plain);
    assert_int_equal(sw_op_times_count(times), 0);
    sw_device_time_ops(device, times);
    compute(device, timed);
    sw_device_time_ops(device, NULL);
    assert_memory_equal(plain, timed, sizeof plain);
    assert_int_equal(sw_op_times_count(times), 4);
    compute(device, timed);
    assert_int_equal(sw_op_times_count(times), 4);
    sw_device_close(device);
    sw_op_times_destroy(times);
}

/* A described device with a table counts its times, and not its rates. */
static void counted_by_the_table(void **state) {
    (void)state;
    struct sw_op_times *times;
    struct sw_device *device;
    struct sw_stream *stream;
    struct sw_memory *memory;
    int64_t scratch_bytes;
    const struct sw_gemm shape = {.m = SIDE, .n = SIDE, .k = SIDE, .in = SW_BF16, .out = SW_BF16};
    assert_ok(sw_op_times_create(&times));
    add(times, sw_op_size_of_product(&shape), 3.0);
    const struct sw_device_description what = {
        .name = "made up", .memory_bytes_per_s = 1e6, .product_flops_per_s = {1e3, 1e3, 1e3}, .times = times};
    assert_ok(sw_device_open_described(&what, &device));
    assert_ok(sw_device_prepare_gemm(device, &shape, &scratch_bytes));
    assert_ok(sw_stream_open(device, &stream));
    assert_ok(sw_memory_open(device, "test", SW_MEMORY_DEVICE, 1 << 20, &memory));
    char *base = sw_memory_base(memory);
    assert_ok(sw_gemm(stream, &shape, base, base + 65536, NULL, base + 131072, base + 262144));
    assert_true(fabs(sw_device_counted_s(device) - 3.0) < 1e-9);
    assert_ok(sw_zero(stream, base, 1000000));
    assert_true(fabs(sw_device_counted_s(device) - 4.0) < 1e-9);
    sw_memory_close(memory);
    sw_stream_close(stream);
    sw_device_close(device);
    sw_op_times_destroy(times);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_that_were_timed),  cmocka_unit_test(sizes_between_and_beyond), cmocka_unit_test(names),
        cmocka_unit_test(timing_changes_nothing), cmocka_unit_test(counted_by_the_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
