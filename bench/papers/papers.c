/* `spillway bench papers`: what papers print, by our planner and our simulator. Nothing is measured. */
#include "bench/papers/papers.h"

#include "bench/options.h"
#include "bench/report.h"
#include "core/size.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Compares our numbers with those of papers. */

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

bool sw_paper_within(const struct sw_paper_column *column, const struct sw_paper_number *number) {
    const double deviation = paper_deviation(number);
    return paper_equation_holds(number) && deviation >= column->low && deviation <= column->high;
}

int sw_paper_count_outside(const struct sw_paper_table *table) {
    int outside = 0;
    for (int r = 0; r < table->rows; r++)
        for (int c = 0; c < table->columns; c++)
            outside += !sw_paper_within(&table->column[c], &table->row[r].number[c]);
    return outside;
}

/* A table of a paper's numbers beside ours, for people and for programs. */

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
            else if (!sw_paper_within(&table->column[c], number))
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

/* Prints a table on standard output, and returns one as an object, which the caller releases. */
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

static json_t *number_json(const struct sw_paper_column *column, const struct sw_paper_number *number) {
    json_t *object = json_pack("{s:s, s:s?, s:f, s:f, s:f, s:f, s:f, s:b}", "column", column->heading, "printed",
                               number->printed, "paper", paper_value(number), "ours", number->ours, "deviation",
                               paper_deviation(number), "least_deviation", column->low, "most_deviation", column->high,
                               "within", sw_paper_within(column, number));
    if (number->slow > 0.0)
        object = sw_bench_join(object, json_pack("{s:f, s:f}", "low", number->slow, "high", number->fast));
    return object;
}

static json_t *paper_json(const struct sw_paper_table *table) {
    json_t *rows = json_array();
    for (int r = 0; r < table->rows; r++) {
        json_t *numbers = json_array();
        for (int c = 0; c < table->columns; c++)
            json_array_append_new(numbers, number_json(&table->column[c], &table->row[r].number[c]));
        json_array_append_new(rows, json_pack("{s:s, s:o}", "name", table->row[r].name, "numbers", numbers));
    }
    return json_pack("{s:s, s:s, s:s, s:s, s:o}", "name", table->name, "title", table->title, "source", table->source,
                     "unit", table->unit, "rows", rows);
}

static sw_status (*const makers[])(struct sw_paper_table *out) = {
    sw_paper_zero_memory,      sw_paper_zero_largest,       sw_paper_zero_traffic,        sw_paper_infinity_memory,
    sw_paper_infinity_working, sw_paper_infinity_intensity, sw_paper_infinity_efficiency, sw_paper_least_bytes,
};
enum { MAKERS = sizeof makers / sizeof makers[0] };

/* Prints the table, or adds it to a list, and counts the numbers outside their bounds. */
static sw_status report(const struct sw_paper_table *table, json_t *list, int *outside) {
    *outside += sw_paper_count_outside(table);
    if (list == NULL)
        paper_print(table);
    else if (json_array_append_new(list, paper_json(table)) != 0)
        return sw_fail(SW_ERR_NOMEM, "no memory for the report");
    return SW_OK;
}

static sw_status (*const predictors[])(const char *machines, struct sw_paper_table *out) = {sw_paper_runs,
                                                                                            sw_paper_ratios};
enum { PREDICTORS = sizeof predictors / sizeof predictors[0] };

static sw_status make_all(const char *machines, json_t *list, int *outside) {
    struct sw_paper_table table;
    for (int m = 0; m < MAKERS; m++) {
        SW_TRY(makers[m](&table));
        SW_TRY(report(&table, list, outside));
    }
    for (int p = 0; machines != NULL && p < PREDICTORS; p++) {
        SW_TRY(predictors[p](machines, &table));
        SW_TRY(report(&table, list, outside));
    }
    return SW_OK;
}

sw_status sw_bench_papers(const void *given_options) {
    const struct sw_bench_options *given = given_options;
    json_t *list = given->settings.json ? json_array() : NULL;
    int outside = 0;
    if (list == NULL)
        printf("Numbers of papers, and ours by the planner and the simulator. Computed: nothing\n"
               "here was measured. Under each table, the bound of each column's deviation.\n");
    sw_status status = make_all(given->machines, list, &outside);
    if (status == SW_OK && list != NULL)
        status =
            sw_bench_print_json(json_pack("{s:s, s:O, s:i}", "bench", "papers", "tables", list, "outside", outside));
    json_decref(list);
    if (status == SW_OK && outside > 0)
        return sw_fail(SW_ERR_INTERNAL, "%d numbers deviate from their papers by more than their bounds", outside);
    return status;
}
