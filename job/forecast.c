#include "job/forecast.h"

#include "core/files/files.h"
#include "job/rates.h"
#include "job/store.h"
#include "offload/engine/trace.h"
#include "offload/simulate/outline_price.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Programs with more ops get only the prediction of a plain step. A timeline needs the times of all simulated steps,
 * and a start must not wait for more predictions. */
enum { MOST_OPS = (1 << 20) / SW_SIMULATE_MOST_STEPS };

/* Writes the timeline of the second to last step, which has neighbours on both sides. */
static sw_status write_timeline(const struct sw_plan *plan, const struct sw_trace *trace, char **out) {
    enum { NUMBER = SW_SIMULATE_MOST_STEPS - 2 };
    size_t bytes;
    FILE *to = open_memstream(out, &bytes);
    if (to == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a timeline");
    sw_timeline_write(plan, sw_trace_program(trace, NUMBER), sw_trace_times(trace, NUMBER), to);
    return sw_text_stream_end(to, out) ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory for a timeline");
}

/* Predicts steps that speculate, and saves. */
static sw_status predict_others(const struct sw_plan *plan, const struct sw_rates *rates,
                                const struct sw_option_every *save_every, struct sw_forecast *out) {
    const struct sw_writes writes = sw_writes_of(plan, sw_writes_save_steps(save_every, out->step.step_s));
    struct sw_simulation speculated = out->step, redone = out->step;
    struct sw_save_price save = {0};
    if (sw_plan_may_speculate(plan)) {
        SW_TRY(sw_simulate(plan, SW_PROGRAM_REDO_SPECULATE, false, rates, NULL, &speculated));
        SW_TRY(sw_simulate(plan, SW_PROGRAM_REDO_SPECULATE, true, rates, NULL, &redone));
    }
    if (writes.save_every > 0 && sw_rates_know_drives(rates))
        SW_TRY(sw_predict_save(plan, rates, writes.save_every, &out->step, &save));
    out->least_s = fmin(out->step.step_s, speculated.step_s);
    out->most_s = fmax(out->step.step_s, redone.step_s);
    out->save_s = save.cost_s;
    return SW_OK;
}

sw_status sw_forecast_make(const struct sw_plan *plan, const struct sw_rates *rates,
                           const struct sw_option_every *save_every, struct sw_forecast *out) {
    const int64_t ops = plan->program[SW_PROGRAM_UPDATE].op_count;
    struct sw_trace *trace = NULL;
    *out = (struct sw_forecast){0};
    if (ops > 0 && ops <= MOST_OPS)
        SW_TRY(sw_trace_create(plan, SW_SIMULATE_MOST_STEPS * ops, "predicted", &trace));
    sw_status status = sw_simulate(plan, SW_PROGRAM_UPDATE, false, rates, trace, &out->step);
    if (status == SW_OK && trace != NULL)
        status = write_timeline(plan, trace, &out->timeline);
    if (status == SW_OK && ops <= MOST_OPS)
        status = predict_others(plan, rates, save_every, out);
    sw_trace_destroy(trace);
    return status;
}

void sw_forecast_release(struct sw_forecast *forecast) {
    free(forecast->timeline);
    *forecast = (struct sw_forecast){0};
}

static json_t *lane_bytes(const struct sw_plan *plan, sw_lane lane) {
    return json_integer(sw_outline_lane_bytes(plan, lane));
}

json_t *sw_forecast_to_json(const struct sw_forecast *forecast, const struct sw_plan *plan, int64_t first_step,
                            int64_t step_tokens) {
    const bool known = forecast->step.step_s > 0.0;
    json_t *lanes = known ? json_object() : json_null();
    for (int lane = 0; known && lane < SW_LANES; lane++)
        json_object_set_new(lanes, sw_lane_name((sw_lane)lane), json_real(forecast->step.lane_busy_s[lane]));
    return json_pack("{s:I, s:o, s:o, s:o, s:{s:o, s:o, s:o, s:o, s:o}, s:{s:I, s:I, s:I}}", "first_step",
                     (json_int_t)first_step, "step_seconds", known ? json_real(forecast->step.step_s) : json_null(),
                     "tokens_per_second", known ? json_real((double)step_tokens / forecast->step.step_s) : json_null(),
                     "lanes", lanes, "bytes", "nvme_read", lane_bytes(plan, SW_LANE_READ), "nvme_write",
                     lane_bytes(plan, SW_LANE_WRITE), "upload", lane_bytes(plan, SW_LANE_UPLOAD), "download",
                     lane_bytes(plan, SW_LANE_DOWNLOAD), "comm", lane_bytes(plan, SW_LANE_COMM), "peak", "device",
                     (json_int_t)plan->tier_bytes[SW_DEVICE], "host", (json_int_t)plan->tier_bytes[SW_HOST], "nvme",
                     (json_int_t)sw_plan_store_bytes(plan));
}
