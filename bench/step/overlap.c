#include "bench/step/overlap.h"

#include "core/size.h"

#include <stdlib.h>

/* Times of a lane's ops, in the order of their starts. */
struct course {
    struct sw_op_times *times;
    int64_t count;
};

static int by_start(const void *a, const void *b) {
    const struct sw_op_times *left = a, *right = b;
    return (left->start_ns > right->start_ns) - (left->start_ns < right->start_ns);
}

/* Takes a lane's ops of some programs, which run one after the other, in the order of their starts: a trace has them in
 * the order of their program. */
static sw_status take_lane(const struct sw_trace *trace, sw_lane lane, int64_t first, int64_t end, struct course *out) {
    int64_t room = 1;
    for (int64_t p = first; p < end; p++)
        room += sw_trace_program(trace, p)->lane_count[lane];
    out->count = 0;
    out->times = calloc((size_t)room, sizeof *out->times);
    if (out->times == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the times of %lld ops", (long long)room);
    for (int64_t p = first; p < end; p++) {
        const struct sw_program *program = sw_trace_program(trace, p);
        const struct sw_op_times *times = sw_trace_times(trace, p);
        for (int32_t i = 0; i < program->lane_count[lane]; i++) {
            const struct sw_op_times *op = &times[program->lane_op[lane][i]];
            if (op->start_ns != SW_TRACE_NOT_RUN && op->end_ns != SW_TRACE_NOT_RUN)
                out->times[out->count++] = *op;
        }
    }
    qsort(out->times, (size_t)out->count, sizeof *out->times, by_start);
    return SW_OK;
}

static int64_t common_ns(const struct course *a, const struct course *b) {
    int64_t common = 0;
    for (int64_t i = 0, j = 0; i < a->count && j < b->count;) {
        const struct sw_op_times *left = &a->times[i], *right = &b->times[j];
        common += sw_max_i64(0, sw_min_i64(left->end_ns, right->end_ns) - sw_max_i64(left->start_ns, right->start_ns));
        if (left->end_ns < right->end_ns)
            i++;
        else
            j++;
    }
    return common;
}

sw_status sw_overlap_find(const struct sw_trace *trace, int64_t first, int64_t end, struct sw_overlap *out) {
    struct course comm = {0}, compute = {0};
    int64_t comm_ns = 0;
    sw_status status;
    *out = (struct sw_overlap){0};
    SW_TRY_GOTO(take_lane(trace, SW_LANE_COMM, first, end, &comm), end);
    SW_TRY_GOTO(take_lane(trace, SW_LANE_COMPUTE, 0, sw_trace_programs(trace), &compute), end);
    for (int64_t i = 0; i < comm.count; i++)
        comm_ns += comm.times[i].end_ns - comm.times[i].start_ns;
    if (end > first) {
        out->comm_s = (double)comm_ns * 1e-9 / (double)(end - first);
        out->hidden_s = (double)common_ns(&comm, &compute) * 1e-9 / (double)(end - first);
    }
end:
    free(comm.times);
    free(compute.times);
    return status;
}
