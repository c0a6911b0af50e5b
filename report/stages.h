/* One step of a pipeline as text: when each stage computed which group of micro-batches, and for how long stages
 * waited. */
#ifndef SW_REPORT_STAGES_H
#define SW_REPORT_STAGES_H

#include "report/curves.h"

/* Writes the name of the file, in the run's folder, of the timeline that a stage keeps; without a pipeline there is
 * stage 0. Returns `out`. */
enum { SW_TIMELINE_NAME_CHARS = 40 };
const char *sw_timeline_name(int stage, char out[SW_TIMELINE_NAME_CHARS]);

/* Describes the pipeline of a run, within 80 columns; *out is NULL if its last steps were without one. The shares are
 * those of the log's steps after `after_step`; the picture is left out if a stage has kept no timeline of the same
 * step. The caller frees *out. */
sw_status sw_stages_describe(const char *folder, const struct sw_curves *curves, int64_t after_step, char **out);

#endif
