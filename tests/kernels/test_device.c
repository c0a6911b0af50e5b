/* Opening devices, and refusing. */
#include "tests/kernels/support.h"

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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
