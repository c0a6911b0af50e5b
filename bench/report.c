#include "bench/report.h"

#include "core/log.h"
#include "core/machine.h"
#include "core/rng.h"
#include "core/size.h"
#include "job/machine/gpu_trust.h"
#include "job/settings/options.h"
#include "offload/simulate/measure.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* OUTSIDE resampled medians are left out at either end: the fortieth part of them. */
enum { RESAMPLES = 2000, OUTSIDE = RESAMPLES / 40 };

double sw_bench_median(const struct sw_bench_rounds *rounds, int who) {
    double sorted[SW_BENCH_MAX_ROUNDS];
    memcpy(sorted, rounds->rate[who], sizeof sorted);
    return sw_median(sorted, rounds->rounds);
}

static void take_ratios(const struct sw_bench_rounds *rounds, int who, int to, double ratio[SW_BENCH_MAX_ROUNDS]) {
    for (int i = 0; i < rounds->rounds; i++)
        ratio[i] = rounds->rate[who][i] / rounds->rate[to][i];
}

double sw_bench_ratio(const struct sw_bench_rounds *rounds, int who, int to) {
    double ratio[SW_BENCH_MAX_ROUNDS];
    take_ratios(rounds, who, to, ratio);
    return sw_median(ratio, rounds->rounds);
}

static int compare_doubles(const void *a, const void *b) {
    const double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

/* The draws are always the same, so that every report of the same rates shows the same interval. */
struct sw_bench_interval sw_bench_ratio_interval(const struct sw_bench_rounds *rounds, int who, int to) {
    double ratio[SW_BENCH_MAX_ROUNDS], drawn[SW_BENCH_MAX_ROUNDS], medians[RESAMPLES];
    take_ratios(rounds, who, to, ratio);
    for (int sample = 0; sample < RESAMPLES; sample++) {
        for (int i = 0; i < rounds->rounds; i++)
            drawn[i] = ratio[sw_rng(0, (uint64_t)sample, (uint64_t)i).word[0] % (uint32_t)rounds->rounds];
        medians[sample] = sw_median(drawn, rounds->rounds);
    }
    qsort(medians, RESAMPLES, sizeof medians[0], compare_doubles);
    return (struct sw_bench_interval){medians[OUTSIDE], medians[RESAMPLES - 1 - OUTSIDE]};
}

sw_status sw_bench_open_devices(int which, int64_t threads, struct sw_devices *out) {
    SW_TRY(sw_devices_open((sw_device_choice)which, threads == SW_OPTION_AUTO ? sw_machine_cores() : (int)threads, 0,
                           out));
    return sw_gpu_as_in_training(out);
}

json_t *sw_bench_join(json_t *first, json_t *second) {
    const bool joined = first != NULL && second != NULL && json_object_update(first, second) == 0;
    json_decref(second);
    if (joined)
        return first;
    json_decref(first);
    return NULL;
}

enum { GAP = 2, CELL_CHARS = 64, NAME_CHARS = 96 };

#define ABSENT "-"

static const void *value_of(const struct sw_bench_table *table, const struct sw_bench_field *field, int row) {
    return (const char *)table->rows + (size_t)row * table->row_bytes + field->offset;
}

/* Returns the value of a kind that has one as a number; NAN: it is absent. */
static double number_of(const struct sw_bench_field *field, const void *value) {
    const struct sw_bench_rounds *rounds = value;
    switch (field->kind) {
    case SW_FIELD_INT: return *(const int *)value;
    case SW_FIELD_COUNT:
    case SW_FIELD_SIZE: return *(const int64_t *)value < 0 ? NAN : (double)*(const int64_t *)value;
    case SW_FIELD_REAL: return *(const double *)value;
    case SW_FIELD_MEDIAN: return isnan(rounds->rate[field->who][0]) ? NAN : sw_bench_median(rounds, field->who);
    case SW_FIELD_RATIO:
        return isnan(rounds->rate[field->who][0]) || isnan(rounds->rate[field->to][0])
                   ? NAN
                   : sw_bench_ratio(rounds, field->who, field->to);
    default: return NAN;
    }
}

static void format_cell(const struct sw_bench_field *field, const void *value, char cell[CELL_CHARS]) {
    const double scale = field->scale != 0.0 ? field->scale : 1.0, number = number_of(field, value);
    char size[SW_SIZE_CHARS];
    const char *text = field->kind == SW_FIELD_TEXT ? *(const char *const *)value : NULL;
    if (field->kind == SW_FIELD_FLAG)
        text = *(const bool *)value ? "yes" : "no";
    if (field->kind == SW_FIELD_SIZE && !isnan(number))
        text = sw_format_size(*(const int64_t *)value, size);
    if (text != NULL)
        snprintf(cell, CELL_CHARS, "%s", text);
    else if (isnan(number))
        snprintf(cell, CELL_CHARS, ABSENT);
    else
        snprintf(cell, CELL_CHARS, "%.*f", field->digits, number * scale);
    if (!field->has_interval || isnan(number))
        return;
    const struct sw_bench_interval interval = sw_bench_ratio_interval(value, field->who, field->to);
    const size_t used = strlen(cell);
    snprintf(cell + used, CELL_CHARS - used, " (%.*f-%.*f)", field->digits, interval.low, field->digits, interval.high);
}

/* Returns the width of a column; 0: it is not printed, because it has no heading, or no value in any row. */
static int width_of(const struct sw_bench_table *table, const struct sw_bench_field *field) {
    size_t width = field->heading != NULL ? strlen(field->heading) : 0;
    bool shown = false;
    char cell[CELL_CHARS];
    for (int row = 0; field->heading != NULL && row < table->row_count; row++) {
        format_cell(field, value_of(table, field, row), cell);
        width = strlen(cell) > width ? strlen(cell) : width;
        shown |= strcmp(cell, ABSENT) != 0;
    }
    return shown ? (int)width : 0;
}

/* Text stands at the left of its column, numbers at the right. `first`: the line begins with this column. */
static void print_cell(const struct sw_bench_table *table, const struct sw_bench_field *field, int row, bool first) {
    const int width = width_of(table, field);
    char cell[CELL_CHARS];
    if (row < 0)
        snprintf(cell, sizeof cell, "%s", field->heading);
    else
        format_cell(field, value_of(table, field, row), cell);
    printf("%*s%*s", first ? 0 : GAP, "", field->kind == SW_FIELD_TEXT ? -width : width, cell);
}

/* Prints the keys and the fields of [from, end). Row -1 is the headings. */
static void print_line(const struct sw_bench_table *table, int from, int end, int row) {
    bool first = true;
    for (int i = 0; i < end; i++) {
        const struct sw_bench_field *field = &table->fields[i];
        if (width_of(table, field) == 0 || (i < from && !field->key))
            continue;
        print_cell(table, field, row, first);
        first = false;
    }
    putchar('\n');
}

/* Returns the end of the run of fields from `from` that fits on a line with the keys: at least one field. */
static int part_end(const struct sw_bench_table *table, int from) {
    int used = -GAP;
    for (int i = 0; i < table->field_count; i++) {
        const int width = width_of(table, &table->fields[i]);
        if (width == 0 || (i < from && !table->fields[i].key))
            continue;
        used += width + GAP;
        if (i > from && used > sw_log_columns(stdout))
            return i;
    }
    return table->field_count;
}

void sw_table_print(const struct sw_bench_table *table) {
    for (int from = 0, end; from < table->field_count; from = end) {
        end = part_end(table, from);
        for (int row = -1; row < table->row_count; row++)
            print_line(table, from, end, row);
    }
}

static json_t *value_json(const struct sw_bench_field *field, const void *value) {
    const double number = number_of(field, value);
    const char *text = field->kind == SW_FIELD_TEXT ? *(const char *const *)value : NULL;
    if (field->kind == SW_FIELD_FLAG)
        return json_boolean(*(const bool *)value);
    if (text != NULL)
        return json_string(text);
    if (isnan(number))
        return json_null();
    const bool whole = field->kind == SW_FIELD_INT || field->kind == SW_FIELD_COUNT || field->kind == SW_FIELD_SIZE;
    return whole ? json_integer((json_int_t)number) : json_real(number);
}

/* Adds a value under a name whose dots begin levels. Takes the value over. */
static int put(json_t *object, const char *name, json_t *value) {
    const char *dot = strchr(name, '.');
    char level[NAME_CHARS];
    if (dot == NULL)
        return json_object_set_new(object, name, value);
    assert(dot - name < NAME_CHARS);
    snprintf(level, sizeof level, "%.*s", (int)(dot - name), name);
    if (json_object_get(object, level) == NULL)
        json_object_set_new(object, level, json_object());
    return put(json_object_get(object, level), dot + 1, value);
}

static int put_field(json_t *object, const struct sw_bench_field *field, const void *value) {
    json_t *json = value_json(field, value);
    if (json_is_null(json) && !field->nullable)
        return 0;
    const bool known = !json_is_null(json);
    char name[NAME_CHARS];
    if (put(object, field->name, json) != 0)
        return -1;
    if (!field->has_interval || !known)
        return 0;
    const struct sw_bench_interval interval = sw_bench_ratio_interval(value, field->who, field->to);
    snprintf(name, sizeof name, "%s_interval", field->name);
    return put(object, name, json_pack("[f, f]", interval.low, interval.high));
}

static json_t *fields_json(const struct sw_bench_table *table, int from, int row) {
    json_t *object = json_object();
    for (int i = from; i < table->field_count && object != NULL; i++) {
        const struct sw_bench_field *field = &table->fields[i];
        if (field->name != NULL && put_field(object, field, value_of(table, field, row)) != 0) {
            json_decref(object);
            return NULL;
        }
    }
    return object;
}

json_t *sw_table_row_json(const struct sw_bench_table *table, int row) {
    return fields_json(table, 0, row);
}

json_t *sw_table_json(const struct sw_bench_table *table) {
    json_t *list = json_array();
    for (int row = 0; row < table->row_count; row++)
        if (json_array_append_new(list, sw_table_row_json(table, row)) != 0) {
            json_decref(list);
            return NULL;
        }
    return list;
}

json_t *sw_table_named_json(const struct sw_bench_table *table) {
    json_t *object = json_object();
    for (int row = 0; row < table->row_count; row++) {
        const char *name = *(const char *const *)value_of(table, &table->fields[0], row);
        if (json_object_set_new(object, name, fields_json(table, 1, row)) != 0) {
            json_decref(object);
            return NULL;
        }
    }
    return object;
}
