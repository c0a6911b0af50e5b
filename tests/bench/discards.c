/* The kernel's counts of a drive's discards are read, and a drive that cannot be asked is not waited for. */
#include "bench/io/drive.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const char line[] = "  101  2 3 4  205 6 7 8  9 10 11  5000000000 13 14 15  116 17\n";

static void transfers_and_discards_are_counted(void **state) {
    (void)state;
    struct sw_drive_counts found;
    assert_true(sw_drive_counts_parse(line, &found));
    assert_int_equal(found.transfers, 306);
    assert_int_equal(found.in_flight, 9);
    assert_int_equal(found.discards, INT64_C(5000000000));
}

static void older_kernels_and_other_text_have_none(void **state) {
    (void)state;
    struct sw_drive_counts found;
    assert_false(sw_drive_counts_parse("1 2 3 4 5 6 7 8 9 10 11\n", &found));
    assert_false(sw_drive_counts_parse("1 2 3 4 5 6 7 8 9 10 11 none\n", &found));
    assert_false(sw_drive_counts_parse("", &found));
}

static void a_drive_that_works_for_others_is_not_discarding(void **state) {
    (void)state;
    const struct sw_drive_counts before = {.transfers = 10, .discards = 3};
    const struct sw_drive_counts idle = before, busy = {.transfers = 11, .discards = 3, .in_flight = 2},
                                 held_up = {.transfers = 10, .discards = 3, .in_flight = 2},
                                 discarded = {.transfers = 11, .discards = 4};
    assert_false(sw_drive_discarded(&before, &idle));
    assert_false(sw_drive_discarded(&before, &busy));
    assert_true(sw_drive_discarded(&before, &held_up));
    assert_true(sw_drive_discarded(&before, &discarded));
}

static void what_is_no_drive_is_not_waited_for(void **state) {
    (void)state;
    const char *const directories[] = {"/proc", "/there/is/none", "/dev/null"};
    sw_discards_wait(directories, 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transfers_and_discards_are_counted),
        cmocka_unit_test(older_kernels_and_other_text_have_none),
        cmocka_unit_test(a_drive_that_works_for_others_is_not_discarding),
        cmocka_unit_test(what_is_no_drive_is_not_waited_for),
    };
    return cmocka_run_group_tests_name("discards", tests, NULL, NULL);
}
