/* The parts of a report that all benches share: rates of contenders by round, the device, the JSON object. */
#ifndef SW_BENCH_REPORT_H
#define SW_BENCH_REPORT_H

#include "core/status.h"
#include "job/machine/devices.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SW_BENCH_MAX_ROUNDS = 99, SW_BENCH_MAX_CONTENDERS = 8 };

/* Rates of contenders that ran in turn, by contender and round. */
struct sw_bench_rounds {
    int rounds;
    double rate[SW_BENCH_MAX_CONTENDERS][SW_BENCH_MAX_ROUNDS];
};
double sw_bench_median(const struct sw_bench_rounds *rounds, int who);
/* Returns the median of the rounds' own ratios of `who` to `to`: other load of the machine hits both alike. */
double sw_bench_ratio(const struct sw_bench_rounds *rounds, int who, int to);

/* The 95% interval of that median: it contains the median of 19 of 20 repetitions (a percentile bootstrap over the
 * rounds). */
struct sw_bench_interval {
    double low, high;
};
struct sw_bench_interval sw_bench_ratio_interval(const struct sw_bench_rounds *rounds, int who, int to);

/* Opens the device that --device and --threads name. threads may be SW_OPTION_AUTO. */
sw_status sw_bench_open_devices(int which, int64_t threads, struct sw_devices *out);

/* Adds the members of the second object to the first and returns it. Takes both over; NULL, in and out, is a lack of
 * memory. */
json_t *sw_bench_join(json_t *first, json_t *second);

/* The tables of a bench's report. One list of fields describes a row: the columns that people read, 80 wide, and the
 * members of the JSON object both come from it. */
typedef enum {
    SW_FIELD_TEXT,   /* const char *; NULL: absent */
    SW_FIELD_FLAG,   /* bool; in a column "yes" or "no" */
    SW_FIELD_INT,    /* int */
    SW_FIELD_COUNT,  /* int64_t; negative: absent */
    SW_FIELD_SIZE,   /* int64_t, bytes; negative: absent; in a column "64KiB" */
    SW_FIELD_REAL,   /* double; NAN: absent */
    SW_FIELD_MEDIAN, /* struct sw_bench_rounds: the median of `who`; absent if its first rate is NAN */
    SW_FIELD_RATIO,  /* struct sw_bench_rounds: the median of the ratios of `who` to `to`; absent as a median is */
} sw_field_kind;

struct sw_bench_field {
    const char
        *name; /* the JSON member; a dot begins a level: "upload.bytes_per_s". NULL: the field is only a column */
    const char *heading; /* heading of the column. NULL: the field is only in JSON */
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

/* Prints headings and rows on standard output. Columns that do not fit into 80 follow below, after the keys. A column
 * without a value in any row is left out. */
void sw_table_print(const struct sw_bench_table *table);

/* Returns a row as an object, or NULL for lack of memory. The caller releases it, as all JSON below. */
json_t *sw_table_row_json(const struct sw_bench_table *table, int row);
/* Returns a list of all rows. */
json_t *sw_table_json(const struct sw_bench_table *table);
/* Returns an object of all rows, each under the text of its first field, which its own object then lacks. */
json_t *sw_table_named_json(const struct sw_bench_table *table);

#endif
