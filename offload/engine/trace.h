/* The trace records when each op of a run's first programs ran, and writes the times as a Chrome trace, which Perfetto
 * reads too.
 *
 * All memory is taken before the first step. Each op of a program has its own entry, so lanes write without locks. The
 * first program that does not fit whole is left out, and so are all later ones. */
#ifndef SW_OFFLOAD_ENGINE_TRACE_H
#define SW_OFFLOAD_ENGINE_TRACE_H

#include "offload/plan/plan.h"

struct sw_trace;

/* When an op started and ended. On an I/O lane: when it was submitted, and when the lane noticed its completion. An op
 * that was skipped (a needless redo) keeps SW_TRACE_NOT_RUN. */
struct sw_op_times {
    int64_t start_ns, end_ns;
    bool host_wait; /* the op reached the GPU only after the host had seen earlier work end */
};
enum { SW_TRACE_NOT_RUN = -1 };

/* Creates a trace with room for `ops` ops. The plan must outlive it. process: the name that viewers show, a literal.
 * The caller destroys the trace. */
sw_status sw_trace_create(const struct sw_plan *plan, int64_t ops, const char *process, struct sw_trace **out);
void sw_trace_destroy(struct sw_trace *trace);

/* Returns the memory for the times of a program's ops, one entry per op; NULL: they are not kept. trace may be NULL.
 * Only training programs are kept, since an evaluation would leave no room for steps. */
struct sw_op_times *sw_trace_begin(struct sw_trace *trace, sw_program_kind kind, int64_t step, int64_t now_ns);

/* Returns the number of programs kept, flushes included, and program `number`, from 0. */
int64_t sw_trace_programs(const struct sw_trace *trace);
const struct sw_program *sw_trace_program(const struct sw_trace *trace, int64_t number);
/* Returns the step of program `number`. */
int64_t sw_trace_step(const struct sw_trace *trace, int64_t number);
/* Returns the times of program `number`, one entry per op. */
const struct sw_op_times *sw_trace_times(const struct sw_trace *trace, int64_t number);

/* Returns the number of the first program from `step` on that can follow itself, as in the middle of a run; -1: none.
 */
int64_t sw_trace_find_steady(const struct sw_trace *trace, int64_t step);

/* Returns the number of training steps that the trace holds. */
int64_t sw_trace_steps(const struct sw_trace *trace);

/* Writes all recorded programs; no lane may be running. A lane whose ops overlap gets more than one row. Errors stay on
 * the file (ferror). */
void sw_trace_write(const struct sw_trace *trace, FILE *out);

/* The most spans of a lane; all lanes together have less than 2,000. */
enum { SW_TIMELINE_LANE_SPANS = 220 };

/* Writes the timeline of one program as a JSON object with the fields
 * - "seconds": from the first start to the last end;
 * - "ops": the number of ops that ran; "units": the number of the model's units;
 * - "lanes": an object with one array of spans per lane, such as "read".
 *
 * A span is [start_us, duration_us, "what", first unit, last unit, ops, bytes]; unit -1: the ops have no unit. Spans of
 * a lane do not overlap. Neighbours too short to be seen become one span, named for the longest. Errors stay on the
 * file (ferror). */
void sw_timeline_write(const struct sw_plan *plan, const struct sw_program *program, const struct sw_op_times *times,
                       FILE *out);

/* The most spans of a stage's line. */
enum { SW_STAGE_SPANS = 1200 };

/* The work of a stage's span, and its name in "spans". */
typedef enum {
    SW_STAGE_WORK_FORWARD = 0,
    SW_STAGE_WORK_BACKWARD,
    SW_STAGE_WORK_OTHER,
    SW_STAGE_WORK_WAIT,
    SW_STAGE_WORKS
} sw_stage_work;
const char *sw_stage_work_name(sw_stage_work work);

/* Writes what a stage of a pipeline did in one program, as a JSON object with the fields
 * - "stage", "stages", "interleave", "groups", "formula": its number, the number of stages, of the turns of each, and
 * of groups of micro-batches, and sw_plan_equal_bubble;
 * - "busy_seconds": of its compute lane;
 * - "spans": [start_us, duration_us, "what", group, turn], in order of time and not overlapping: what is "forward" or
 *   "backward", a group's pass in a turn; "other", work of no group and turn (-1); or "wait", in which the compute lane
 *   had nothing to run while the comm lane passed bytes to or from another stage, or told the others its sums.
 *
 * Times count from the end of the step's summary, which all ranks reach together, so that they are negative, and those
 * of stages on machines with other clocks can be compared. Spans too short to be seen are left out. */
void sw_stage_write(const struct sw_plan *plan, const struct sw_program *program, const struct sw_op_times *times,
                    FILE *out);

#endif
