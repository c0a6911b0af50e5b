/* The lines of the log as text. */
#ifndef SW_TRAIN_RUN_STEPLOG_TEXT_H
#define SW_TRAIN_RUN_STEPLOG_TEXT_H

#include "train/run/steplog.h"

/* Room for every field at its longest; a static assertion beside the writer holds it to that. */
enum { SW_STEPLOG_LINE_CHARS = 2048 };

/* Each writes a line without its end into buffer and returns the line's length. */
int sw_step_to_json(const struct sw_step_record *record, char buffer[SW_STEPLOG_LINE_CHARS]);
int sw_eval_to_json(const struct sw_eval_record *record, char buffer[SW_STEPLOG_LINE_CHARS]);
int sw_step_to_text(const struct sw_step_record *record, int64_t total_steps, char buffer[SW_STEPLOG_LINE_CHARS]);
int sw_eval_to_text(const struct sw_eval_record *record, char buffer[SW_STEPLOG_LINE_CHARS]);

/* Time left, as people write it: "15s", "2m05s", "1h30m", "3d04h". Returns buffer. */
enum { SW_DURATION_CHARS = 32 };
const char *sw_duration_to_text(double seconds, char buffer[SW_DURATION_CHARS]);

#endif
