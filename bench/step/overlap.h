/* The time in which ranks exchange data, and the part of it behind arithmetic, from a trace that was measured or
 * predicted. */
#ifndef SW_BENCH_STEP_OVERLAP_H
#define SW_BENCH_STEP_OVERLAP_H

#include "core/status.h"
#include "offload/engine/trace.h"

struct sw_overlap {
    double comm_s;   /* seconds per step in which the comm lane is busy, its waits for other ranks included */
    double hidden_s; /* the seconds of these in which the compute lane is busy too */
};

/* Finds both times for the programs [first, end) of a trace, each of which is a step. No lane may run meanwhile. */
sw_status sw_overlap_find(const struct sw_trace *trace, int64_t first, int64_t end, struct sw_overlap *out);

#endif
