/* The forms of optimizer state: the bytes of records, which are part of the on-disk format, and names. */
#include "core/optimizer_format.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/size.h"

static void bytes_of_records(void **state) {
    (void)state;
    assert_int_equal(sw_optimizer_grain_bytes(SW_OPTIMIZER_FP32), 196608);
    assert_int_equal(sw_optimizer_grain_bytes(SW_OPTIMIZER_BF16), 131072);
    assert_int_equal(sw_optimizer_grain_bytes(SW_OPTIMIZER_8BIT), 102400);
    for (int format = 0; format < SW_OPTIMIZER_FORMATS; format++)
        assert_int_equal(sw_optimizer_grain_bytes((sw_optimizer_format)format) % SW_BUFFER_ALIGN_BYTES, 0);
}

static void names(void **state) {
    (void)state;
    assert_string_equal(sw_optimizer_format_name(SW_OPTIMIZER_FP32), "fp32");
    assert_string_equal(sw_optimizer_format_name(SW_OPTIMIZER_BF16), "bf16");
    assert_string_equal(sw_optimizer_format_name(SW_OPTIMIZER_8BIT), "8bit");
    assert_string_equal(sw_rounding_name(SW_ROUND_NEAREST), "nearest");
    assert_string_equal(sw_rounding_name(SW_ROUND_STOCHASTIC), "stochastic");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bytes_of_records), cmocka_unit_test(names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
