/* When the ops of a training step ran, kept for the first programs of a run and written as a Chrome trace (Perfetto
 * reads it too).
 *
 * Room is taken whole before the first step. A program has a place for each of its ops, so that lanes write without
 * locks; a program that does not fit in whole is left out, and so is all after it. */
#ifndef SW_OFFLOAD_ENGINE_TRACE_H
#define SW_OFFLOAD_ENGINE_TRACE_H

#include "offload/plan/plan.h"

struct sw_trace;

/* From the start of an op to its end; on an I/O lane from its submission to the lane's noticing its completion. An op
 * that was skipped (a redo without need) keeps SW_TRACE_NOT_RUN. */
struct sw_op_times {
    int64_t start_ns, end_ns;
};
enum { SW_TRACE_NOT_RUN = -1 };

/* Room for this many ops. The plan must outlive the trace. process: how viewers name it, a literal. */
sw_status sw_trace_create(const struct sw_plan *plan, int64_t ops, const char *process, struct sw_trace **out);
void sw_trace_destroy(struct sw_trace *trace);

/* Where the times of a program's ops go, by their number in the program; NULL: not kept. trace may be NULL. Only
 * programs of training are kept: an evaluation would leave no room for steps. */
struct sw_op_times *sw_trace_begin(struct sw_trace *trace, sw_program_kind kind, int64_t step, int64_t now_ns);

/* Programs that are kept, flushes with them, and which the `number`-th is, from 0. */
int64_t sw_trace_programs(const struct sw_trace *trace);
const struct sw_program *sw_trace_program(const struct sw_trace *trace, int64_t number);
/* Its times. */
const struct sw_op_times *sw_trace_times(const struct sw_trace *trace, int64_t number);

/* Training steps that the trace holds. */
int64_t sw_trace_steps(const struct sw_trace *trace);

/* All that is kept, when no lane runs. A lane whose ops overlap has further rows. Errors stay on the file. */
void sw_trace_write(const struct sw_trace *trace, FILE *out);

#endif
