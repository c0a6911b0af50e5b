/* Finds the time in which ranks exchange data in a step, and the part of it behind arithmetic. */
#include "bench/step/step.h"
#include "run/trace_file.h"

/* Simulates the plan by these rates. The first step does not count, because no step ran ahead of it. */
static sw_status predict(const struct sw_plan *plan, const struct sw_rates *rates, struct sw_step_exchange *out) {
    struct sw_simulation simulation;
    struct sw_trace *trace;
    SW_TRY(sw_trace_create(plan, SW_TRACE_OPS, "spillway, predicted", &trace));
    sw_status status = sw_simulate(plan, SW_PROGRAM_UPDATE, false, rates, trace, &simulation);
    if (status == SW_OK)
        status = sw_overlap_find(trace, 1, sw_trace_programs(trace), &out->overlap);
    out->step_s = simulation.step_s;
    sw_trace_destroy(trace);
    return status;
}

sw_status sw_step_find_exchange(struct sw_step_bench *b) {
    struct sw_step_exchange *placed = &b->exchange[SW_STEP_COMM_PLACED];
    struct sw_rates more = b->planned.rates.rates;
    if (sw_ranks_comm(&b->ranks) == NULL)
        return SW_OK;
    placed->step_s = b->median_s[SW_STEP_PLACED];
    SW_TRY(sw_overlap_find(sw_engine_trace(b->placed.engine), b->traced_from, b->traced_to, &placed->overlap));
    SW_TRY(predict(b->planned.plan, &more, &b->exchange[SW_STEP_COMM_PREDICTED]));
    more.cores = (double)b->planned.settings.threads + 1.0;
    return predict(b->planned.plan, &more, &b->exchange[SW_STEP_COMM_ONE_CORE_MORE]);
}
