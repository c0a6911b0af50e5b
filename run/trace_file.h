/* Writes the file of --trace: under another name in the same folder, then renamed, so that it is complete or absent. */
#ifndef SW_RUN_TRACE_FILE_H
#define SW_RUN_TRACE_FILE_H

#include "core/status.h"
#include "offload/engine/trace.h"
#include "offload/plan/plan.h"

#include <stdint.h>

/* Ops that a trace holds: 16 MiB, which is the first steps of a model of billions of parameters in a file that viewers
 * can open. */
enum { SW_TRACE_OPS = 1 << 20 };

/* Checks before the work that nothing exists at the path and that a file can be made there. */
sw_status sw_trace_file_check(const char *path);

sw_status sw_trace_file_write(const char *path, const struct sw_trace *trace);

/* A timeline that is yet to be written. Its memory is taken before the first step: a step allocates nothing. */
struct sw_timeline_file;

/* The first and last step of this start, and the timeline that its plan predicts (NULL: none). */
struct sw_timeline_spec {
    const struct sw_plan *plan;
    const char *predicted;
    int64_t first_step, last_step;
};

/* *out is NULL if the start makes no steps, or steps of too many ops. The caller closes the file; the plan outlives it.
 */
sw_status sw_timeline_file_open(const struct sw_timeline_spec *spec, struct sw_timeline_file **out);
void sw_timeline_file_close(struct sw_timeline_file *file);

/* Return the first step whose timeline may be kept, and the ops of the longest such step. For NULL both return 0. */
int64_t sw_timeline_file_step(const struct sw_timeline_file *file);
int64_t sw_timeline_file_ops(const struct sw_timeline_file *file);

/* Writes the file into the run's folder once the trace has the step and `step` has ended; does nothing afterwards. A
 * failure is only a warning. */
void sw_timeline_file_after(struct sw_timeline_file *file, const char *folder, const struct sw_trace *trace,
                            int64_t step);

#endif
