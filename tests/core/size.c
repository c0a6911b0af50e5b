/* Sizes as people write them, and arithmetic that must not overflow. */
#include "core/size.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void sizes_that_people_write(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t bytes;
    } table[] = {
        {"0", 0},
        {"1", 1},
        {"4096", 4096},
        {"4096B", 4096},
        {"1K", 1024},
        {"1KiB", 1024},
        {"512MiB", 512 * SW_MIB},
        {"512M", 512 * SW_MIB},
        {"512mib", 512 * SW_MIB},
        {"24GiB", 24 * SW_GIB},
        {"24G", 24 * SW_GIB},
        {"1.5GiB", 3 * SW_GIB / 2},
        {"16Gi", 16 * SW_GIB},
        {"16 GiB", 16 * SW_GIB},
        {"16  gb", INT64_C(16000000000)},
        {"16GIB", 16 * SW_GIB},
        {"16ki", 16384},
        {"0.5K", 512},
        {"3kB", 3000},
        {"3KB", 3000},
        {"1.5MB", 1500000},
        {"20GB", INT64_C(20000000000)},
        {"20gb", INT64_C(20000000000)},
        {"2TB", INT64_C(2000000000000)},
        {"2TiB", 2048 * SW_GIB},
        {"1000000T", 1000000 * (1024 * SW_GIB)},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        int64_t bytes = -1;
        assert_int_equal(sw_parse_size(table[i].text, &bytes), SW_OK);
        assert_int_equal(bytes, table[i].bytes);
    }
}

static void garbage_is_refused_by_name(void **state) {
    (void)state;
    static const char *const table[] = {
        "",           " ",
        "-1",         "-1GiB",
        "+5",         " 5",
        "GiB",        "5 ",
        "5 5",        "5\tGiB",
        "5 G iB",     "5Bi",
        "5XB",        "5GiBs",
        "5.5.5G",     "1e",
        "12Q",        "nan",
        "inf",        "NaNG",
        ".5G",        "1,5G",
        "5;",         "0x",
        "G5",         "5K5",
        "--5",        "5iB",
        "1e99",       "1e999",
        "9e18K",      "8E",
        "1e19B",      "99999999999999999999",
        "8388608TiB", "9300000TB",
        "5bB",        "5KBi",
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        int64_t bytes = 77;
        sw_error_clear();
        assert_int_equal(sw_parse_size(table[i], &bytes), SW_ERR_ARG);
        assert_int_equal(bytes, 77);
        assert_non_null(strstr(sw_error_message(SW_ERR_ARG), table[i]));
    }
    sw_error_clear();
}

static void sums_and_products_say_when_they_overflow(void **state) {
    (void)state;
    int64_t out = 0;
    assert_true(sw_mul_i64(INT64_C(1) << 31, INT64_C(1) << 31, &out));
    assert_int_equal(out, INT64_C(1) << 62);
    assert_true(sw_mul_i64(0, INT64_MAX, &out));
    assert_int_equal(out, 0);
    assert_false(sw_mul_i64(INT64_C(1) << 32, INT64_C(1) << 31, &out));
    assert_false(sw_mul_i64(-1, 5, &out));
    assert_false(sw_mul_i64(5, -1, &out));
    assert_true(sw_add_i64(INT64_MAX - 1, 1, &out));
    assert_int_equal(out, INT64_MAX);
    assert_false(sw_add_i64(INT64_MAX, 1, &out));
    assert_false(sw_add_i64(-1, 5, &out));
    assert_false(sw_add_i64(5, -1, &out));
}

static void rounding_up(void **state) {
    (void)state;
    assert_int_equal(sw_round_up(0, 4096), 0);
    assert_int_equal(sw_round_up(1, 4096), 4096);
    assert_int_equal(sw_round_up(4096, 4096), 4096);
    assert_int_equal(sw_round_up(INT64_C(5) * SW_GIB + 1, 4096), INT64_C(5) * SW_GIB + 4096);
    assert_int_equal(sw_div_up(0, 3), 0);
    assert_int_equal(sw_div_up(7, 3), 3);
    assert_int_equal(sw_div_up(INT64_MAX, 2), INT64_C(1) << 62);
    assert_int_equal(sw_min_i64(INT64_MIN, 5), INT64_MIN);
    assert_int_equal(sw_max_i64(INT64_MIN, 5), 5);
}

static void sizes_are_printed_with_their_unit(void **state) {
    (void)state;
    static const struct {
        int64_t bytes;
        const char *text;
    } table[] = {
        {0, "0 B"},
        {1023, "1023 B"},
        {1024, "1.00 KiB"},
        {1536 * SW_MIB, "1.50 GiB"},
        {INT64_MAX, "8.00 EiB"},
        {-2 * SW_KIB, "-2.00 KiB"},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        char text[SW_SIZE_CHARS];
        assert_string_equal(sw_format_size(table[i].bytes, text), table[i].text);
    }
}

static void numbers_are_printed_as_people_read_them(void **state) {
    (void)state;
    char text[SW_COUNT_CHARS], time[SW_TIME_TEXT_CHARS];
    assert_string_equal(sw_format_count(1, "step", text), "1 step");
    assert_string_equal(sw_format_count(0, "step", text), "0 steps");
    assert_string_equal(sw_format_count(2, "step", text), "2 steps");
    const struct {
        int64_t count;
        const char *text;
    } large[] = {{999, "999"},
                 {1000, "1.00 thousand"},
                 {120576, "121 thousand"},
                 {999949, "1.00 million"},
                 {124439808, "124 million"},
                 {7615616512, "7.62 billion"},
                 {70553706496, "70.6 billion"},
                 {999600000000, "1.00 trillion"}};
    for (size_t i = 0; i < sizeof large / sizeof large[0]; i++)
        assert_string_equal(sw_format_large(large[i].count, text), large[i].text);
    const struct {
        double seconds;
        const char *text;
    } times[] = {{2.5e-6, "2.5 us"},    {0.9996e-3, "1 ms"}, {0.01634, "16.3 ms"}, {0.9996, "1.00 s"},
                 {9.996, "10.0 s"},     {60.61, "60.6 s"},   {599.0, "599 s"},     {600.0, "10 min 0 s"},
                 {12000, "3 h 20 min"}, {1e6, "11 d 13 h"}};
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++)
        assert_string_equal(sw_format_seconds(times[i].seconds, time), times[i].text);
    assert_string_equal(sw_format_duration(0.2, time), "1 s");
    assert_string_equal(sw_format_duration(131.0, time), "2 min 11 s");
    assert_string_equal(sw_format_rate(1067.4, text), "1067");
    assert_string_equal(sw_format_rate(45.04, text), "45.0");
    assert_string_equal(sw_format_rate(0.98412, text), "0.984");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_that_people_write),
        cmocka_unit_test(garbage_is_refused_by_name),
        cmocka_unit_test(sums_and_products_say_when_they_overflow),
        cmocka_unit_test(rounding_up),
        cmocka_unit_test(sizes_are_printed_with_their_unit),
        cmocka_unit_test(numbers_are_printed_as_people_read_them),
    };
    return cmocka_run_group_tests_name("size", tests, NULL, NULL);
}
