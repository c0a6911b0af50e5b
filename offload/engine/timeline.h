/* The timeline of one step, coarse enough for a page: when each lane worked, and on what. */
#ifndef SW_OFFLOAD_ENGINE_TIMELINE_H
#define SW_OFFLOAD_ENGINE_TIMELINE_H

#include "offload/engine/trace.h"

/* The most spans of a lane; all lanes together have less than 2,000. */
enum { SW_TIMELINE_LANE_SPANS = 220 };

/* Writes the ops of a program that ran as a JSON object:
 *     {"seconds": from the first start to the last end, "ops": how many ran, "units": of the model, "lanes": {"read":
 * [SPAN, ...], ...}} A span is [start_us, duration_us, "what", first unit, last unit, ops, bytes]; unit -1: ops of no
 * unit. Spans of a lane do not overlap. Neighbours that are too short to be seen are one span, named for the longer of
 * them. Errors stay on the file. */
void sw_timeline_write(const struct sw_plan *plan, const struct sw_program *program, const struct sw_op_times *times,
                       FILE *out);

#endif
