/* One line of a run's log (log.jsonl), as numbers. */
#ifndef SW_REPORT_LOG_LINE_H
#define SW_REPORT_LOG_LINE_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The numbers of a line that a report uses. Their names are in log_line.c, and in docs/json.md. */
enum {
    SW_LOG_STEP,
    SW_LOG_LOSS,
    SW_LOG_LOSS_TOKENS,
    SW_LOG_GRAD_NORM,
    SW_LOG_LR,
    SW_LOG_TOKENS,
    SW_LOG_SECONDS,
    SW_LOG_TOKENS_PER_SECOND,
    SW_LOG_MFU,
    SW_LOG_SKIPPED,
    SW_LOG_SAVED,
    SW_LOG_RANKS,
    SW_LOG_ZERO,
    SW_LOG_ETA_SECONDS,
    SW_LOG_LANES, /* the first of SW_LOG_LANE_COUNT */
    SW_LOG_LANE_COUNT = 7,
    SW_LOG_BYTES = SW_LOG_LANES + SW_LOG_LANE_COUNT,
    SW_LOG_BYTE_COUNT = 5,
    SW_LOG_PEAKS = SW_LOG_BYTES + SW_LOG_BYTE_COUNT,
    SW_LOG_PEAK_COUNT = 3,
    SW_LOG_VAL_LOSS = SW_LOG_PEAKS + SW_LOG_PEAK_COUNT,
    SW_LOG_VAL_TOKENS,
    SW_LOG_COLUMNS,
};

enum { SW_LOG_TIME_CHARS = 32 };

struct sw_log_line {
    double value[SW_LOG_COLUMNS]; /* NaN: none, null or beyond 1e100; booleans are 0 and 1 */
    bool is_sample;               /* the line has a text that the run wrote (samples.h) */
    char time[SW_LOG_TIME_CHARS]; /* UTC in ISO 8601, zero-terminated; empty: not known */
};

/* Returns the name of a column, such as "grad_norm" or, in a group, "compute". */
const char *sw_log_column_name(int column);

/* Reads the zero-terminated JSON object of a line. Members with other names are checked and left out. Returns false
 * where the text is no object of a log: it is no JSON, a number has another type, or it has no step. */
bool sw_log_line_parse(const char *text, struct sw_log_line *out);

#endif
