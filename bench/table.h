/* The tables of a bench's report. One list of fields describes a row: the columns that people read, 80 wide, and the
 * members of the JSON object both come from it. */
#ifndef SW_BENCH_TABLE_H
#define SW_BENCH_TABLE_H

#include "bench/report.h"

#include <stdbool.h>
#include <stddef.h>

typedef enum {
    SW_FIELD_TEXT,   /* const char *; NULL: absent */
    SW_FIELD_FLAG,   /* bool; in a column "yes" or "no" */
    SW_FIELD_INT,    /* int */
    SW_FIELD_COUNT,  /* int64_t; negative: absent */
    SW_FIELD_SIZE,   /* int64_t, bytes; negative: absent; in a column "64KiB" */
    SW_FIELD_REAL,   /* double; NAN: absent */
    SW_FIELD_MEDIAN, /* struct sw_bench_rounds: the median of `who`; absent where its first rate is NAN */
    SW_FIELD_RATIO,  /* struct sw_bench_rounds: the median of the ratios of `who` to `to`; absent as a median is */
} sw_field_kind;

struct sw_bench_field {
    const char
        *name; /* the JSON member; a dot begins a level: "upload.bytes_per_s". NULL: the field is a column alone */
    const char *heading; /* heading of the column. NULL: the field is in JSON alone */
    sw_field_kind kind;
    size_t offset;     /* bytes from the row to the value */
    int who, to;       /* contenders of a median or a ratio */
    double scale;      /* a column shows the value times this; 0: times 1 */
    int digits;        /* digits after the point, in a column */
    bool key;          /* the column begins each part of a table that is too wide for one */
    bool nullable;     /* an absent value is null in JSON; without this flag it has no member */
    bool has_interval; /* a ratio's 95% interval follows it, in JSON as `name`_interval, a list of two */
};

/* Borrows all that it points to. */
struct sw_bench_table {
    const struct sw_bench_field *fields;
    int field_count;
    const void *rows;
    int row_count;
    size_t row_bytes;
};
/* The kind and the offset of a field, in a file that defines ROW as the type of its rows. */
#define SW_AT(kind_, member) .kind = (kind_), .offset = offsetof(ROW, member)
#define SW_MEDIAN(member, who_) SW_AT(SW_FIELD_MEDIAN, member), .who = (who_)
#define SW_RATIO(member, who_, to_) SW_AT(SW_FIELD_RATIO, member), .who = (who_), .to = (to_)
#define SW_GIGA .scale = 1e-9
/* Fields of a row whose member `rounds` has the rates: a rate, shown in units of 1e9 a second, and a ratio. */
#define SW_RATE_FIELD(name_, heading_, who_, digits_)                                                                  \
    { .name = (name_), .heading = (heading_), SW_MEDIAN(rounds, who_), SW_GIGA, .digits = (digits_) }
#define SW_RATIO_FIELD(name_, heading_, who_, to_)                                                                     \
    { .name = (name_), .heading = (heading_), SW_RATIO(rounds, who_, to_), .digits = 2 }

#define SW_TABLE(fields_, rows_, count_)                                                                               \
    (&(struct sw_bench_table){.fields = (fields_),                                                                     \
                              .field_count = (int)(sizeof(fields_) / sizeof(fields_)[0]),                              \
                              .rows = (rows_),                                                                         \
                              .row_count = (int)(count_),                                                              \
                              .row_bytes = sizeof *(rows_)})

/* Prints headings and rows on standard output. Columns that do not fit into 80 follow below, behind the keys. A column
 * without a value in any row is left out. */
void sw_table_print(const struct sw_bench_table *table);

/* Returns a row as an object, or NULL for lack of memory. The caller releases it, as all JSON below. */
json_t *sw_table_row_json(const struct sw_bench_table *table, int row);
/* Returns a list of all rows. */
json_t *sw_table_json(const struct sw_bench_table *table);
/* Returns an object of all rows, each under the text of its first field, which its own object then lacks. */
json_t *sw_table_named_json(const struct sw_bench_table *table);

#endif
