/* The tables that papers print, recomputed by the planner and the simulator: each number deviates by no more than its
 * column's bound, and the papers' equations give what they print. Nothing is measured. The program prints the tables
 * (docs/evidence/papers.md). */
#include "tests/bench/papers.h"

#include "bench/report.h"
#include "core/size.h"
#include "tests/equipment/support.h"

#include <math.h>

/* Returns the paper's number: that of its equation, or the printed one. */
static double paper_value(const struct sw_paper_number *number) {
    return number->paper != 0.0 || number->printed == NULL ? number->paper : strtod(number->printed, NULL);
}

/* Returns ours / paper - 1. */
static double paper_deviation(const struct sw_paper_number *number) {
    return number->ours / paper_value(number) - 1.0;
}

/* Tells whether the equation gives what the paper prints, to one unit of the last digit: papers round and cut. */
static bool paper_equation_holds(const struct sw_paper_number *number) {
    if (number->printed == NULL || number->paper == 0.0)
        return true;
    const char *point = strchr(number->printed, '.');
    const double unit = point == NULL ? 1.0 : pow(10.0, -(double)strlen(point + 1));
    return fabs(number->paper - strtod(number->printed, NULL)) <= unit;
}

/* Tells whether the equation holds and ours deviates from it by no more than the column's bound. */
static bool paper_within(const struct sw_paper_column *column, const struct sw_paper_number *number) {
    const double deviation = paper_deviation(number);
    return paper_equation_holds(number) && deviation >= column->low && deviation <= column->high;
}

/* Returns the numbers of a table that are not within their bounds. */
static int paper_count_outside(const struct sw_paper_table *table) {
    int outside = 0;
    for (int r = 0; r < table->rows; r++)
        for (int c = 0; c < table->columns; c++)
            outside += !paper_within(&table->column[c], &table->row[r].number[c]);
    return outside;
}

/* Prints a table of a paper's numbers beside ours. */

#define PERCENT 100.0
enum { WIDTH = 80, SOURCE_CHARS = 256, CELL_CHARS = 24, CELL_WIDTH = 6, FIELDS = 3 + 3 * SW_PAPER_COLUMNS };

/* A row as text: of each column the paper's number, ours and the deviation. */
struct line {
    const char *name;
    const char *text[2 * SW_PAPER_COLUMNS];
    double percent[SW_PAPER_COLUMNS];
    double slow, fast; /* of the first column; NAN: not known */
};
struct cells {
    char of[2 * SW_PAPER_COLUMNS][CELL_CHARS];
};

/* Writes a number at the right of its cell with four digits, or all digits before the point where those are more. */
static void format_number(double value, int width, char cell[CELL_CHARS]) {
    const int digits = value > 0.0 ? 3 - (int)floor(log10(value)) : 0;
    snprintf(cell, CELL_CHARS, "%*.*f", width, digits > 0 ? digits : 0, value);
}

static void fill_line(const struct sw_paper_table *table, const struct sw_paper_row *row, struct cells *cells,
                      struct line *out) {
    const struct sw_paper_number *first = &row->number[0];
    out->name = row->name;
    out->slow = first->slow > 0.0 ? first->slow : NAN;
    out->fast = first->fast > 0.0 ? first->fast : NAN;
    for (int64_t c = 0; c < table->columns; c++) {
        const struct sw_paper_number *number = &row->number[c];
        const int width = (int)sw_max_i64(CELL_WIDTH, (int64_t)strlen(table->column[c].heading));
        if (number->printed != NULL)
            snprintf(cells->of[2 * c], CELL_CHARS, "%*s", width, number->printed);
        else
            format_number(paper_value(number), width, cells->of[2 * c]);
        format_number(number->ours, CELL_WIDTH, cells->of[2 * c + 1]);
        out->text[2 * c] = cells->of[2 * c];
        out->text[2 * c + 1] = cells->of[2 * c + 1];
        out->percent[c] = PERCENT * paper_deviation(number);
    }
}

#define ROW struct line
static void print_rows(const struct sw_paper_table *table) {
    struct sw_bench_field fields[FIELDS] = {{.heading = "", SW_AT(SW_FIELD_TEXT, name), .key = true}};
    struct line lines[SW_PAPER_ROWS];
    const int last = 1 + 3 * table->columns;
    struct cells cells[SW_PAPER_ROWS];
    for (int c = 0; c < table->columns; c++) {
        struct sw_bench_field *field = &fields[1 + 3 * c];
        field[0] = (struct sw_bench_field){.heading = table->column[c].heading, SW_AT(SW_FIELD_TEXT, text[2 * c])};
        field[1] = (struct sw_bench_field){.heading = "  ours", SW_AT(SW_FIELD_TEXT, text[2 * c + 1])};
        field[2] = (struct sw_bench_field){.heading = "%", SW_AT(SW_FIELD_REAL, percent[c]), .digits = 1};
    }
    fields[last] = (struct sw_bench_field){.heading = "low", SW_AT(SW_FIELD_REAL, slow)};
    fields[last + 1] = (struct sw_bench_field){.heading = "high", SW_AT(SW_FIELD_REAL, fast)};
    for (int r = 0; r < table->rows; r++)
        fill_line(table, &table->row[r], &cells[r], &lines[r]);
    sw_table_print(&(struct sw_bench_table){.fields = fields,
                                            .field_count = last + 2,
                                            .rows = lines,
                                            .row_count = table->rows,
                                            .row_bytes = sizeof lines[0]});
}

static void print_outside(const struct sw_paper_table *table) {
    for (int r = 0; r < table->rows; r++)
        for (int c = 0; c < table->columns; c++) {
            const struct sw_paper_number *number = &table->row[r].number[c];
            if (!paper_equation_holds(number))
                printf("  %s, %s: the equation gives %g\n", table->row[r].name, table->column[c].heading,
                       number->paper);
            else if (!paper_within(&table->column[c], number))
                printf("  %s, %s: OUTSIDE of its bound\n", table->row[r].name, table->column[c].heading);
        }
}

/* Prints words in lines of WIDTH; `at` characters of the first line are taken, and the other lines are indented. */
static void print_words(const char *text, int at, int indent) {
    while (*text != '\0') {
        const int length = (int)strcspn(text, " ");
        const bool fits = at + 1 + length <= WIDTH;
        printf("%s%*s%.*s", fits ? "" : "\n", fits ? at > 0 : indent, "", length, text);
        at = (fits ? at + (at > 0) : indent) + length;
        text += length + (text[length] == ' ');
    }
    putchar('\n');
}

static void print_bound(const struct sw_paper_column *column) {
    const int at = printf("  %s: %+.1f%% to %+.1f%%", column->heading, PERCENT * column->low, PERCENT * column->high);
    if (column->reason != NULL)
        printf(":");
    print_words(column->reason != NULL ? column->reason : "", at + 1, 4);
}

static void paper_print(const struct sw_paper_table *table) {
    char source[SOURCE_CHARS];
    snprintf(source, sizeof source, "%s; %s", table->source, table->unit);
    putchar('\n');
    print_words(table->title, 0, 0);
    print_words(source, 0, 0);
    print_rows(table);
    for (int c = 0; c < table->columns; c++)
        print_bound(&table->column[c]);
    print_outside(table);
}

/* The comparer itself: bounds on both sides, and printed numbers beside equations. */

static const struct sw_paper_column column = {.heading = "GB", .low = -0.02, .high = 0.05};

static bool within(const char *printed, double paper, double ours) {
    return paper_within(&column, &(struct sw_paper_number){.printed = printed, .paper = paper, .ours = ours});
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
    assert_int_equal(paper_count_outside(&table), 0);
    table.row[1].number[0].ours = 11.0;
    assert_int_equal(paper_count_outside(&table), 1);
}

/* The tables, with as many rows and columns as they have. */
static const struct {
    sw_status (*make)(struct sw_paper_table *out);
    int rows, columns;
} tables[] = {
    {sw_paper_zero_memory, 18, 3},
    {sw_paper_zero_largest, 4, 1},
    {sw_paper_zero_traffic, 4, 1},
    {sw_paper_infinity_memory, 5, 2},
    {sw_paper_infinity_working, 5, 3},
    {sw_paper_infinity_intensity, 3, 3},
    {sw_paper_infinity_efficiency, 3, 1},
    {sw_paper_least_bytes, 10, 2},
    {sw_paper_runs, 7, 1},
    {sw_paper_ratios, 2, 1},
};

static void check_table(const struct sw_paper_table *table, int rows, int columns) {
    assert_int_equal(table->rows, rows);
    assert_int_equal(table->columns, columns);
    for (int r = 0; r < rows; r++) {
        const struct sw_paper_number *first = &table->row[r].number[0];
        for (int other = 0; other < r; other++)
            assert_string_not_equal(table->row[r].name, table->row[other].name);
        assert_true(first->slow == 0.0 || (first->slow <= first->ours && first->ours <= first->fast));
    }
    assert_int_equal(paper_count_outside(table), 0);
}

static void every_number_is_within_its_bound(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        struct sw_paper_table table;
        support_expect_ok(tables[i].make(&table), "a table");
        paper_print(&table);
        check_table(&table, tables[i].rows, tables[i].columns);
    }
}

/* Counts the paper's formulas once more, apart from the code that fills the table. */
static void memory_by_stage_is_beside_the_formulas_of_zero(void **state) {
    (void)state;
    static const double parameters[] = {7.5e9, 128e9, 1e12}, ranks[] = {1, 4, 16, 64, 256, 1024};
    enum { RANKS = sizeof ranks / sizeof ranks[0] };
    struct sw_paper_table table;
    support_expect_ok(sw_paper_zero_memory(&table), "a table");
    for (int r = 0; r < table.rows; r++) {
        const double size = parameters[r / RANKS] * 1e-9, n = ranks[r % RANKS];
        const struct sw_paper_number *number = table.row[r].number;
        assert_true(fabs(number[0].paper / (size * (4.0 + 12.0 / n)) - 1.0) < 1e-9);
        assert_true(fabs(number[1].paper / (size * (2.0 + 14.0 / n)) - 1.0) < 1e-9);
        assert_true(fabs(number[2].paper / (size * 16.0 / n) - 1.0) < 1e-9);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(deviations_beyond_either_side_are_found),
                                       cmocka_unit_test(a_number_without_an_equation_is_the_printed_one),
                                       cmocka_unit_test(an_equation_must_give_what_is_printed),
                                       cmocka_unit_test(numbers_outside_are_counted),
                                       cmocka_unit_test(every_number_is_within_its_bound),
                                       cmocka_unit_test(memory_by_stage_is_beside_the_formulas_of_zero)};
    return cmocka_run_group_tests_name("papers", tests, NULL, NULL);
}
