/* The comparer of papers' numbers: bounds on both sides, and printed numbers beside equations. */
#include "bench/papers/papers.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const struct sw_paper_column column = {.heading = "GB", .low = -0.02, .high = 0.05};

static bool within(const char *printed, double paper, double ours) {
    return sw_paper_within(&column, &(struct sw_paper_number){.printed = printed, .paper = paper, .ours = ours});
}

static void deviations_beyond_either_side_are_found(void **state) {
    (void)state;
    assert_true(within(NULL, 100.0, 98.1));
    assert_true(within(NULL, 100.0, 104.9));
    assert_false(within(NULL, 100.0, 97.9));
    assert_false(within(NULL, 100.0, 105.1));
    assert_false(within(NULL, 100.0, NAN));
}

static void a_number_without_an_equation_is_the_printed_one(void **state) {
    (void)state;
    assert_true(within("13.8", 0.0, 13.8));
    assert_false(within("13.8", 0.0, 13.0));
}

static void an_equation_must_give_what_is_printed(void **state) {
    (void)state;
    assert_true(within("0.47", 0.46875, 0.46875));
    assert_true(within("4187", 4187.5, 4187.5)); /* cut and not rounded */
    assert_false(within("0.47", 0.45, 0.45));
    assert_false(within("4187", 4189.0, 4189.0));
}

/* One planted deviation among numbers that are right. */
static void numbers_outside_are_counted(void **state) {
    (void)state;
    struct sw_paper_table table = {.column = {column, column}, .columns = 2, .rows = 2};
    for (int r = 0; r < table.rows; r++)
        for (int c = 0; c < table.columns; c++)
            table.row[r].number[c] = (struct sw_paper_number){.paper = 10.0, .ours = 10.1};
    assert_int_equal(sw_paper_count_outside(&table), 0);
    table.row[1].number[0].ours = 11.0;
    assert_int_equal(sw_paper_count_outside(&table), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(deviations_beyond_either_side_are_found),
                                       cmocka_unit_test(a_number_without_an_equation_is_the_printed_one),
                                       cmocka_unit_test(an_equation_must_give_what_is_printed),
                                       cmocka_unit_test(numbers_outside_are_counted)};
    return cmocka_run_group_tests_name("papers", tests, NULL, NULL);
}
