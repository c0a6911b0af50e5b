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

/* Packed records are the least that their content takes, and groups of them begin at pages in every run. */
static void packed_records_have_no_padding(void **state) {
    (void)state;
    static const struct {
        sw_optimizer_format format;
        int64_t muon, other;
    } formats[] = {{SW_OPTIMIZER_MUON_BF16, 6 * 16384, 6 * 16384 + 2 * 64 * 4},
                   {SW_OPTIMIZER_MUON_8BIT, 5 * 16384 + 64 * 4, 6 * 16384 + 2 * 64 * 4}};
    for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++)
        for (int64_t muon = 0; muon < 3 * SW_RECORD_GROUP; muon++) {
            const struct sw_records records = sw_records(formats[f].format, muon);
            int64_t end = 0;
            assert_int_equal(records.muon_bytes, formats[f].muon);
            assert_int_equal(records.grain_bytes, formats[f].other);
            for (int64_t grain = 0; grain < 4 * SW_RECORD_GROUP; grain++) {
                const int64_t at = sw_record_at(&records, grain);
                assert_true(at >= end && at - end < SW_BUFFER_ALIGN_BYTES && (at == end || grain == muon));
                assert_true(grain % SW_RECORD_GROUP != 0 || at % SW_BUFFER_ALIGN_BYTES == 0);
                end = at + sw_record_bytes(&records, grain);
                const int64_t bytes = sw_records_bytes(&records, 0, grain + 1);
                assert_true(bytes % SW_BUFFER_ALIGN_BYTES == 0 && bytes >= end &&
                            bytes < end + 2 * SW_BUFFER_ALIGN_BYTES);
            }
        }
}

/* Formats that older versions wrote keep their records, of one size. */
static void other_records_have_one_size(void **state) {
    (void)state;
    for (sw_optimizer_format format = 0; format < SW_OPTIMIZER_MUON_BF16; format++) {
        const struct sw_records records = sw_records(format, 3);
        for (int64_t grain = 0; grain < 9; grain++)
            assert_int_equal(sw_record_at(&records, grain), grain * sw_optimizer_grain_bytes(format));
    }
    assert_int_equal(sw_optimizer_grain_bytes(SW_OPTIMIZER_MUON), 131072);
    assert_int_equal(sw_optimizer_grain_bytes(SW_OPTIMIZER_MUON_BF16_PADDED), 102400);
}

static void names(void **state) {
    (void)state;
    assert_string_equal(sw_optimizer_format_name(SW_OPTIMIZER_FP32), "fp32");
    assert_string_equal(sw_optimizer_format_name(SW_OPTIMIZER_BF16), "bf16");
    assert_string_equal(sw_optimizer_format_name(SW_OPTIMIZER_8BIT), "8bit");
    assert_string_equal(sw_optimizer_format_name(SW_OPTIMIZER_MUON_BF16_PADDED), "muon-bf16");
    assert_string_equal(sw_optimizer_format_name(SW_OPTIMIZER_MUON_BF16), "muon-bf16-packed");
    assert_string_equal(sw_optimizer_shown_name(SW_OPTIMIZER_MUON_BF16), "muon-bf16");
    assert_string_equal(sw_optimizer_shown_name(SW_OPTIMIZER_MUON_8BIT), "muon-8bit");
    assert_string_equal(sw_optimizer_shown_name(SW_OPTIMIZER_FP32_APART), "fp32");
    assert_string_equal(sw_rounding_name(SW_ROUND_NEAREST), "nearest");
    assert_string_equal(sw_rounding_name(SW_ROUND_STOCHASTIC), "stochastic");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bytes_of_records),
                                       cmocka_unit_test(packed_records_have_no_padding),
                                       cmocka_unit_test(other_records_have_one_size), cmocka_unit_test(names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
