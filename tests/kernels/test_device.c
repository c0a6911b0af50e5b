/* Opening, refusing, copies. */
#include "tests/kernels/support.h"

#include <string.h>

static void names(void **state) {
    (void)state;
    struct sw_device *device = NULL;
    assert_ok(sw_device_open("cpu", 2, &device));
    const struct sw_device_info info = sw_device_info(device);
    assert_string_equal(info.name, "cpu");
    assert_int_equal(info.threads, 2);
    assert_true(info.host_memory);
    sw_device_close(device);
    assert_ok(sw_device_open("cpu", 0, &device));
    assert_true(sw_device_info(device).threads >= 1);
    sw_device_close(device);
    static const char *const unknown[] = {"gpu", "", "cpu:", "cpu:avx9000", "CPU"};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        assert_int_equal(sw_device_open(unknown[i], 0, &device), SW_ERR_UNSUPPORTED);
        assert_null(device);
        sw_error_clear();
    }
    assert_int_equal(sw_device_open("cpu", -1, &device), SW_ERR_ARG);
    sw_error_clear();
}

static void copies_bytes(struct pair *pair) {
    enum { BYTES = 1000003 };
    struct buffer from = buffer_random(SW_F32, BYTES / 4 + 1, 1, 1.0f);
    struct buffer on = buffer_make(BYTES), other = buffer_make(BYTES), back = buffer_make(BYTES);
    assert_ok(sw_copy_to_device(pair->stream, on.data, from.data, BYTES));
    assert_ok(sw_copy_on_device(pair->stream, other.data, on.data, BYTES));
    assert_ok(sw_copy_to_host(pair->stream, back.data, other.data, BYTES));
    assert_ok(sw_stream_synchronize(pair->stream));
    assert_same_bits("a copy", pair, BYTES, back.data, from.data);
    assert_ok(sw_zero(pair->stream, on.data, BYTES));
    assert_ok(sw_stream_synchronize(pair->stream));
    for (int64_t i = 0; i < BYTES; i++)
        assert_int_equal(((char *)on.data)[i], 0);
    assert_ok(sw_copy_to_host(pair->stream, NULL, NULL, 0));
    buffer_free(&from);
    buffer_free(&on);
    buffer_free(&other);
    buffer_free(&back);
}

static void copies(void **state) {
    (void)state;
    for_each_device(copies_bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(names), cmocka_unit_test(copies)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
