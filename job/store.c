/* Makes the store that a plan needs, with its scratch area, in the places of --nvme, and counts what a run writes to
 * its drives. */
#include "job/store.h"

#include "core/files/files.h"
#include "core/size.h"
#include "io/queue/file.h"
#include "io/store/block.h"
#include "job/rates.h"
#include "offload/engine/scratch.h"
#include "offload/engine/trace.h"
#include "offload/simulate/outline_price.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct making {
    struct sw_store_spec spec;
    struct sw_scratch scratch;
    int64_t *first, *grains, *whole, *muon; /* one entry per unit; `first` owns the memory of all four */
};

static void release(struct making *making) {
    sw_scratch_release(&making->scratch);
    free(making->first);
}

static sw_status describe(const struct sw_new_store *wanted, struct making *out) {
    const struct sw_units *units = wanted->plan->spec.units;
    *out = (struct making){.first = calloc(4 * (size_t)units->count, sizeof *out->first)};
    if (out->first == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the store's layout");
    out->grains = out->first + units->count;
    out->whole = out->grains + units->count;
    out->muon = out->whole + units->count;
    for (int64_t u = 0; u < units->count; u++) {
        const struct sw_span span = sw_plan_span(wanted->plan, SW_OPTIMIZER, u);
        out->first[u] = span.first_grain;
        out->grains[u] = span.grains;
        out->whole[u] = units->unit[u].grains;
        out->muon[u] = sw_plan_records(wanted->plan, u).muon_grains;
    }
    const sw_status status = sw_scratch_of(wanted->plan, &out->scratch);
    if (status != SW_OK)
        release(out);
    out->spec = (struct sw_store_spec){.directories = wanted->places->path,
                                       .directory_count = wanted->places->count,
                                       .most_bytes = wanted->places->most_bytes,
                                       .unit_grains = out->grains,
                                       .unit_first = out->first,
                                       .unit_whole_grains = out->whole,
                                       .unit_muon_grains = out->muon,
                                       .unit_count = units->count,
                                       .optimizer = units->optimizer,
                                       .scratch = out->scratch.kind,
                                       .scratch_count = out->scratch.count,
                                       .id = wanted->id,
                                       .one_generation = wanted->plan->spec.one_generation,
                                       .allow_buffered = wanted->allow_buffered,
                                       .allow_overwrite_device = wanted->allow_overwrite_device,
                                       .unnamed = wanted->unnamed};
    return status;
}

sw_status sw_new_store_check(const struct sw_new_store *wanted) {
    struct making making;
    int64_t bytes[SW_STORE_MAX_FILES];
    SW_TRY(describe(wanted, &making));
    const sw_status status = sw_store_need(&making.spec, bytes);
    release(&making);
    return status;
}

/* Checks the directories of a store. Block devices are checked when the store is made, which opens them. */
static sw_status look_at_drives(const struct sw_new_store *wanted, const struct sw_drive_look *look,
                                const int64_t *bytes) {
    const char *directories[SW_STORE_MAX_FILES];
    int64_t need[SW_STORE_MAX_FILES];
    int count = 0;
    SW_TRY(sw_file_check_distinct(wanted->places->path, wanted->places->count));
    for (int i = 0; i < wanted->places->count; i++) {
        bool is_device;
        SW_TRY(sw_block_find(wanted->places->path[i], &is_device));
        if (is_device)
            continue;
        if (look->named)
            SW_TRY(sw_file_check_place(wanted->places->path[i], wanted->allow_buffered));
        directories[count] = wanted->places->path[i];
        need[count++] = bytes[i] * sw_max_i64(1, look->ranks);
    }
    return sw_file_check_space(directories, need, count);
}

sw_status sw_new_store_check_drives(const struct sw_new_store *wanted, const struct sw_drive_look *look) {
    struct making making;
    int64_t bytes[SW_STORE_MAX_FILES];
    SW_TRY(describe(wanted, &making));
    const sw_status status = sw_store_need(&making.spec, bytes);
    release(&making);
    return status == SW_OK ? look_at_drives(wanted, look, bytes) : status;
}

sw_status sw_new_store_create(const struct sw_new_store *wanted, sw_store_progress progress, void *context,
                              struct sw_store **out) {
    struct making making;
    SW_TRY(describe(wanted, &making));
    const sw_status status = sw_store_create(&making.spec, progress, context, out);
    release(&making);
    return status;
}

#define TERABYTE 1e12
enum { THOUSAND = 1000 };

/* Returns the bytes of optimizer state that is not on NVMe. */
static int64_t records_elsewhere_bytes(const struct sw_plan *plan) {
    int64_t bytes = 0;
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        if (plan->placement[u].tier[SW_OPTIMIZER] != SW_NVME)
            bytes += sw_plan_state_bytes(plan, u);
    return bytes;
}

/* Returns the grains of a unit's trained weights that this rank keeps on NVMe. */
static int64_t trained_grains(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_tier_of_trained(plan, unit) == SW_NVME ? sw_plan_own_trained(plan, unit).grains : 0;
}

static int64_t weights_bytes(const struct sw_plan *plan) {
    int64_t bytes = 0;
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        if (plan->placement[u].tier[SW_WEIGHTS] == SW_NVME)
            bytes += sw_plan_weights_bytes(plan, u, sw_plan_own_frozen(plan, u).grains + trained_grains(plan, u)) +
                     sw_plan_base_span(plan, u).grains * SW_BASE_CELL_BYTES;
    return bytes - sw_plan_in_place_bytes(plan);
}

/* Loading writes only masters and weights: the first moments are the store's zeros. Packed records are written whole.
 */
int64_t sw_writes_of_loading(const struct sw_plan *plan) {
    int64_t bytes = weights_bytes(plan);
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        bytes += sw_optimizer_is_packed(plan->spec.units->optimizer)
                     ? sw_plan_state_bytes(plan, u)
                     : sw_plan_span(plan, SW_OPTIMIZER, u).grains * SW_GRAIN_ELEMS * (int64_t)sizeof(float);
    return bytes;
}

int64_t sw_writes_save_steps(const struct sw_option_every *every, double step_s) {
    if (every->seconds == 0 || step_s <= 0.0)
        return every->steps;
    const int64_t by_time = (int64_t)fmax(1.0, ceil((double)every->seconds / step_s));
    return every->steps > 0 ? sw_min_i64(every->steps, by_time) : by_time;
}

struct sw_writes sw_writes_of(const struct sw_plan *plan, int64_t save_every) {
    const bool saves = !plan->commit_every_step && !plan->spec.one_generation;
    return (struct sw_writes){
        .start_bytes = sw_plan_store_bytes(plan) + sw_writes_of_loading(plan),
        .step_bytes = sw_outline_lane_bytes(plan, SW_LANE_WRITE),
        .save_bytes = plan->commit_every_step ? 0 : records_elsewhere_bytes(plan),
        .save_every = saves ? save_every : 0,
    };
}

double sw_writes_per_thousand(const struct sw_writes *writes) {
    const double saves = writes->save_every > 0 ? (double)THOUSAND / (double)writes->save_every : 0.0;
    return THOUSAND * (double)writes->step_bytes + saves * (double)writes->save_bytes;
}

/* Counts the final save too. */
double sw_writes_of_run(const struct sw_writes *writes, int64_t steps) {
    const int64_t saves = 1 + (writes->save_every > 0 ? (steps - 1) / writes->save_every : 0);
    return (double)writes->start_bytes + (double)steps * (double)writes->step_bytes +
           (double)saves * (double)writes->save_bytes;
}

double sw_writes_share(double bytes, double endurance_tb) {
    return endurance_tb > 0.0 ? bytes / (endurance_tb * TERABYTE) : (double)NAN;
}

const char *sw_writes_text(double bytes, char text[SW_WRITES_CHARS]) {
    static const struct {
        double bytes;
        const char *name;
    } units[] = {{1e12, "TB"}, {1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}, {1.0, "bytes"}};
    size_t i = 0;
    while (i + 1 < sizeof units / sizeof units[0] && bytes < units[i].bytes)
        i++;
    const double number = bytes / units[i].bytes;
    const int digits = units[i].bytes == 1.0 ? 0 : number < 10.0 ? 2 : number < 100.0 ? 1 : 0;
    snprintf(text, SW_WRITES_CHARS, "%.*f %s", digits, number, units[i].name);
    return text;
}

const char *sw_writes_share_text(double bytes, double endurance_tb, char text[SW_WRITES_SHARE_CHARS]) {
    char size[SW_WRITES_CHARS];
    sw_writes_text(bytes, size);
    if (endurance_tb > 0.0)
        snprintf(text, SW_WRITES_SHARE_CHARS, "%s (%.3g%% of the rated %g TB)", size,
                 100.0 * sw_writes_share(bytes, endurance_tb), endurance_tb);
    else
        snprintf(text, SW_WRITES_SHARE_CHARS, "%s", size);
    return text;
}

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
