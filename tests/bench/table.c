/* Tables of reports: columns within 80, absent values, and the members of the JSON objects. */
#include "bench/report.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

enum { OURS, OTHER, MISSING };

struct row {
    const char *name;
    int64_t bytes;
    double real;
    struct sw_bench_rounds rounds;
};

#define ROW struct row
static const struct sw_bench_field fields[] = {
    {.name = "name", .heading = "", SW_AT(SW_FIELD_TEXT, name), .key = true},
    {.name = "bytes", .heading = "size", SW_AT(SW_FIELD_SIZE, bytes)},
    {.name = "real", .heading = "seconds", SW_AT(SW_FIELD_REAL, real), .digits = 1},
    {.name = "null", SW_AT(SW_FIELD_REAL, real), .nullable = true},
    {.name = "way.rate", .heading = "GB/s", SW_MEDIAN(rounds, OURS), SW_GIGA, .digits = 2},
    {.name = "way.of_other", .heading = "to other", SW_RATIO(rounds, OURS, OTHER), .digits = 2, .has_interval = true},
    {.name = "missing", .heading = "missing", SW_MEDIAN(rounds, MISSING)},
    {.name = "of_missing", SW_RATIO(rounds, OURS, MISSING)},
};
static const struct row rows[] = {
    {"first", 65536, 1.25, {.rounds = 1, .rate = {[OURS] = {3e9}, [OTHER] = {2e9}, [MISSING] = {NAN}}}},
    {"second", -1, NAN, {.rounds = 1, .rate = {[OURS] = {1e9}, [OTHER] = {2e9}, [MISSING] = {NAN}}}},
};

/* Returns the text that a table prints. */
static char *printed(const struct sw_bench_table *table, char *text, size_t chars) {
    fflush(stdout);
    const int out = dup(STDOUT_FILENO), file = memfd_create("printed", 0);
    assert_true(file >= 0 && out >= 0 && dup2(file, STDOUT_FILENO) >= 0);
    sw_table_print(table);
    fflush(stdout);
    assert_true(dup2(out, STDOUT_FILENO) >= 0);
    const ssize_t length = pread(file, text, chars - 1, 0);
    assert_true(length >= 0);
    text[length] = '\0';
    close(out);
    close(file);
    return text;
}

static void columns_are_as_wide_as_their_cells(void **state) {
    (void)state;
    char text[1024];
    assert_string_equal(printed(SW_TABLE(fields, rows, 2), text, sizeof text),
                        "             size  seconds  GB/s          to other\n"
                        "first   64.00 KiB      1.2  3.00  1.50 (1.50-1.50)\n"
                        "second          -        -  1.00  0.50 (0.50-0.50)\n");
}

static void wide_tables_go_on_below_behind_their_keys(void **state) {
    (void)state;
    static const struct sw_bench_field wide[] = {
        {.heading = "key", SW_AT(SW_FIELD_TEXT, name), .key = true},
        {.heading = "a heading of thirty-two characters", SW_AT(SW_FIELD_TEXT, name)},
        {.heading = "a second of thirty-one characters", SW_AT(SW_FIELD_TEXT, name)},
        {.heading = "third", SW_AT(SW_FIELD_TEXT, name)},
    };
    char text[1024], *line = printed(SW_TABLE(wide, rows, 1), text, sizeof text);
    assert_non_null(strstr(text, "\nkey    third\nfirst  first\n"));
    for (line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n"))
        assert_true(strlen(line) <= 80);
}

static void wrong(json_t *found, const char *expected) {
    json_t *object = json_loads(expected, JSON_DECODE_ANY, NULL);
    if (!json_equal(found, object)) {
        char *text = json_dumps(found, JSON_ENCODE_ANY);
        fail_msg("%s instead of %s", text, expected);
    }
    json_decref(found);
    json_decref(object);
}

static void members_have_levels_and_may_be_absent(void **state) {
    (void)state;
    const struct sw_bench_table *table = SW_TABLE(fields, rows, 2);
    wrong(sw_table_row_json(table, 0),
          "{\"name\": \"first\", \"bytes\": 65536, \"real\": 1.25, \"null\": 1.25, \"way\": "
          "{\"rate\": 3e9, \"of_other\": 1.5, \"of_other_interval\": [1.5, 1.5]}}");
    wrong(sw_table_row_json(table, 1), "{\"name\": \"second\", \"null\": null, \"way\": {\"rate\": 1e9, \"of_other\": "
                                       "0.5, \"of_other_interval\": [0.5, 0.5]}}");
    json_t *list = sw_table_json(table), *named = sw_table_named_json(table);
    assert_int_equal(json_array_size(list), 2);
    assert_non_null(json_object_get(json_object_get(named, "second"), "way"));
    assert_null(json_object_get(json_object_get(named, "second"), "name"));
    json_decref(list);
    json_decref(named);
}

static void joining_takes_over_both(void **state) {
    (void)state;
    wrong(sw_bench_join(json_pack("{s:i}", "a", 1), json_pack("{s:i}", "b", 2)), "{\"a\": 1, \"b\": 2}");
    assert_null(sw_bench_join(json_object(), NULL));
    assert_null(sw_bench_join(NULL, json_object()));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(columns_are_as_wide_as_their_cells),
                                       cmocka_unit_test(wide_tables_go_on_below_behind_their_keys),
                                       cmocka_unit_test(members_have_levels_and_may_be_absent),
                                       cmocka_unit_test(joining_takes_over_both)};
    return cmocka_run_group_tests_name("table", tests, NULL, NULL);
}
