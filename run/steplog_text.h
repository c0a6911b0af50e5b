/* Formats the lines of the log. */
#ifndef SW_RUN_STEPLOG_TEXT_H
#define SW_RUN_STEPLOG_TEXT_H

#include "run/steplog.h"

/* Room for the longest line; a static assertion beside the writer checks it. */
enum { SW_STEPLOG_LINE_CHARS = 2048 };

/* Write a line without its end into buffer and return its length. */
int sw_step_to_json(const struct sw_step_record *record, char buffer[SW_STEPLOG_LINE_CHARS]);
int sw_eval_to_json(const struct sw_eval_record *record, char buffer[SW_STEPLOG_LINE_CHARS]);
int sw_export_to_json(int64_t step, int64_t time_s, double seconds, char buffer[SW_STEPLOG_LINE_CHARS]);
int sw_step_to_text(const struct sw_step_record *record, int64_t total_steps, char buffer[SW_STEPLOG_LINE_CHARS]);
int sw_eval_to_text(const struct sw_eval_record *record, char buffer[SW_STEPLOG_LINE_CHARS]);

/* Writes a time in UTC to the second, as in RFC 3339. Returns buffer, or NULL where the time is 0 (not known). */
enum { SW_TIME_CHARS = 32 };
const char *sw_time_to_text(int64_t time_s, char buffer[SW_TIME_CHARS]);

#endif
