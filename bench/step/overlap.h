/* How much of what ranks exchange is hidden behind arithmetic, from the times of a trace, measured or predicted. */
#ifndef SW_BENCH_STEP_OVERLAP_H
#define SW_BENCH_STEP_OVERLAP_H

#include "core/status.h"
#include "offload/engine/trace.h"

struct sw_overlap {
    double comm_s;   /* of a step: something is exchanged, or waits for other ranks */
    double hidden_s; /* of that: something is computed meanwhile */
};

/* Of the programs [first, end) that the trace holds, each a step. No lane runs. */
sw_status sw_overlap_find(const struct sw_trace *trace, int64_t first, int64_t end, struct sw_overlap *out);

#endif
