/* A table of a paper's numbers beside ours, for people and for programs. */
#include "bench/papers/papers.h"
#include "bench/table.h"
#include "core/size.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

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
            format_number(sw_paper_value(number), width, cells->of[2 * c]);
        format_number(number->ours, CELL_WIDTH, cells->of[2 * c + 1]);
        out->text[2 * c] = cells->of[2 * c];
        out->text[2 * c + 1] = cells->of[2 * c + 1];
        out->percent[c] = PERCENT * sw_paper_deviation(number);
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
            if (!sw_paper_equation_holds(number))
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

void sw_paper_print(const struct sw_paper_table *table) {
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
                               number->printed, "paper", sw_paper_value(number), "ours", number->ours, "deviation",
                               sw_paper_deviation(number), "least_deviation", column->low, "most_deviation",
                               column->high, "within", sw_paper_within(column, number));
    if (number->slow > 0.0)
        object = sw_bench_join(object, json_pack("{s:f, s:f}", "low", number->slow, "high", number->fast));
    return object;
}

json_t *sw_paper_json(const struct sw_paper_table *table) {
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
