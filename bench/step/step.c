/* `spillway bench step`: a training step as placed, in turn with the same step wholly resident and with its own I/O
 * alone. */
#include "bench/step/step.h"
#include "bench/commands.h"
#include "bench/step/speed.h"
#include "cli/cmd_ranks.h"
#include "core/log.h"
#include "core/machine.h"
#include "core/size.h"
#include "job/planned_ranks.h"
#include "job/settings_plan.h"
#include "offload/simulate/measure.h"
#include "run/agreement.h"
#include "run/trace_file.h"

#include <stdlib.h>
#include <unistd.h>

enum { WARM_UP_STEPS = 1, MOST_STEPS = 10000, MOST_ROUNDS = 3 };
static_assert((int)SW_CONTENDER_MAX_STEPS >= MOST_ROUNDS * MOST_STEPS, "--steps and --rounds allow so many");

/* Share of a GPU's memory that both contenders may take. Kernels and libraries need the rest. */
#define GPU_SHARE 0.97

/* Returns whether the resident and the placed contender, which run in turn, fit into memory together, with those of all
 * ranks of this machine. */
static bool both_fit(const struct sw_step_bench *b, const struct sw_machine *machine) {
    const int64_t *resident = b->resident_plan->tier_bytes, *placed = b->planned.plan->tier_bytes;
    const struct sw_device_info info = sw_devices_info(&b->planned.devices);
    const int64_t device_bytes = resident[SW_DEVICE] + placed[SW_DEVICE];
    const int64_t host_bytes = resident[SW_HOST] + placed[SW_HOST];
    const int64_t share_bytes = machine->available_bytes / sw_ranks_local_count(&b->ranks);
    if (info.host_memory)
        return device_bytes + host_bytes <= share_bytes;
    return device_bytes <= (int64_t)(GPU_SHARE * (double)info.memory_bytes) && host_bytes <= share_bytes;
}

static void say_what_does_not_fit(const struct sw_step_bench *b, const struct sw_machine *machine) {
    const struct sw_device_info info = sw_devices_info(&b->planned.devices);
    const int64_t *resident = b->resident_plan->tier_bytes, *placed = b->planned.plan->tier_bytes;
    const int64_t need_bytes =
        resident[SW_DEVICE] + placed[SW_DEVICE] + (info.host_memory ? resident[SW_HOST] + placed[SW_HOST] : 0);
    char need[SW_SIZE_CHARS], have[SW_SIZE_CHARS];
    sw_log_warn("the resident step is not measured: both together take %s of %smemory and %s are available",
                sw_format_size(need_bytes, need), info.host_memory ? "" : "the GPU's ",
                sw_format_size(info.host_memory ? machine->available_bytes : info.memory_bytes, have));
}

/* Plans the step that offloading is measured against: everything on the device, nothing computed twice. Ranks run it
 * together or not at all. */
static sw_status plan_resident(struct sw_step_bench *b) {
    static char everything_there[] = "weights=device,grads=device,optimizer=device,acts=device";
    struct sw_machine machine;
    b->resident_settings = b->planned.settings;
    b->resident_settings.place = everything_there;
    b->resident_settings.trace = NULL;
    b->resident_settings.recompute = SW_OPTION_RECOMPUTE_NONE;
    b->resident_settings.device_memory = b->resident_settings.host_memory = INT64_MAX / 2;
    SW_TRY(sw_ranks_agree_on_error(&b->ranks,
                                   sw_settings_plan(&b->resident_settings, b->planned.model, &b->resident_plan)));
    SW_TRY(sw_machine_read(&machine));
    int64_t fits = both_fit(b, &machine);
    SW_TRY(sw_ranks_least(&b->ranks, &fits, 1));
    if (fits)
        return SW_OK;
    if (sw_ranks_rank(&b->ranks) == 0)
        say_what_does_not_fit(b, &machine);
    sw_plan_destroy(b->resident_plan);
    b->resident_plan = NULL;
    return SW_OK;
}

/* Chooses for --speculate auto what the prediction says is faster. No step is clipped in this bench. */
static void choose_speculation(struct sw_step_bench *b) {
    const struct sw_prediction *p = &b->planned.prediction;
    const int asked = b->planned.settings.speculate;
    b->speculates = p->may_speculate && (asked == SW_SPECULATE_ALWAYS ||
                                         (asked == SW_SPECULATE_AUTO && p->speculated.step_s < p->plain.step_s));
}

static sw_status open_contenders(struct sw_step_bench *b) {
    const struct sw_contender_spec placed = {.settings = &b->planned.settings,
                                             .model = b->planned.model,
                                             .devices = &b->planned.devices,
                                             .plan = b->planned.plan,
                                             .places = &b->planned.places,
                                             .speculation = b->speculates ? SW_SPECULATE_ALWAYS : SW_SPECULATE_NEVER,
                                             .traced =
                                                 b->planned.settings.trace != NULL || sw_ranks_comm(&b->ranks) != NULL,
                                             .ranks = &b->ranks};
    const struct sw_contender_spec resident = {.settings = &b->resident_settings,
                                               .model = b->planned.model,
                                               .devices = &b->planned.devices,
                                               .plan = b->resident_plan,
                                               .speculation = SW_SPECULATE_NEVER,
                                               .ranks = &b->ranks};
    SW_TRY(sw_contender_open(&placed, &b->placed));
    return b->resident_plan == NULL ? SW_OK : sw_contender_open(&resident, &b->resident);
}

static sw_status allocate_times(struct sw_step_bench *b) {
    for (int k = 0; k < SW_STEP_KINDS; k++) {
        b->times[k].seconds = calloc(SW_CONTENDER_MAX_STEPS, sizeof *b->times[k].seconds);
        if (b->times[k].seconds == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory for the times of steps");
    }
    return SW_OK;
}

static int64_t traced_programs(const struct sw_step_bench *b) {
    return b->placed.spec.traced ? sw_trace_programs(sw_engine_trace(b->placed.engine)) : 0;
}

static sw_status run_placed(struct sw_step_bench *b, int64_t steps) {
    const int64_t before = traced_programs(b);
    SW_TRY(sw_contender_run(&b->placed, steps, &b->times[SW_STEP_PLACED]));
    const int64_t after = traced_programs(b);
    if (after == before)
        return SW_OK;
    b->traced_from = before;
    b->traced_to = after;
    return SW_OK;
}

static sw_status run_round(struct sw_step_bench *b, int64_t steps) {
    if (b->resident_plan != NULL)
        SW_TRY(sw_contender_run(&b->resident, steps, &b->times[SW_STEP_RESIDENT]));
    SW_TRY(run_placed(b, steps));
    if (b->placed.store == NULL)
        return SW_OK;
    sw_engine_replay_io(b->placed.engine, true);
    const sw_status status = sw_contender_run(&b->placed, steps, &b->times[SW_STEP_IO_ALONE]);
    sw_engine_replay_io(b->placed.engine, false);
    return status;
}

static sw_status measure(struct sw_step_bench *b) {
    SW_TRY(allocate_times(b));
    SW_TRY(run_round(b, WARM_UP_STEPS));
    for (int k = 0; k < SW_STEP_KINDS; k++)
        b->times[k].count = 0;
    for (int round = 0; round < b->planned.settings.rounds; round++)
        SW_TRY(run_round(b, b->planned.settings.steps));
    for (int k = 0; k < SW_STEP_KINDS; k++)
        if (b->times[k].count > 0)
            b->median_s[k] = sw_median(b->times[k].seconds, b->times[k].count);
    return SW_OK;
}

/* Finds the least bytes of a rank alone. Those of ranks that share state are not known. */
static void find_least(struct sw_step_bench *b) {
    const struct sw_settings *settings = &b->planned.settings;
    const struct sw_least_shape shape = {
        .units = sw_model_get_units(b->planned.model),
        .placement = b->planned.plan->placement,
        .update_on_device = b->planned.plan->spec.update_on_device,
        .output_bytes = sw_model_bytes(b->planned.model).output,
        .shares_input = sw_model_bytes(b->planned.model).shares_input,
        .type = sw_settings_type(settings),
        .grads = (sw_grads_format)settings->grads_state,
        .micro_batches = sw_settings_micro_batches(settings),
        .tokens = settings->batch_tokens,
        .seq = settings->seq,
        .speculated = b->speculates,
    };
    if (sw_ranks_comm(&b->ranks) == NULL)
        sw_least_bytes(&shape, b->least);
}

static sw_status write_trace(struct sw_step_bench *b) {
    if (b->planned.settings.trace == NULL || sw_ranks_rank(&b->ranks) > 0)
        return SW_OK;
    return sw_trace_file_write(b->planned.settings.trace, sw_engine_trace(b->placed.engine));
}

static sw_status check_trace(const struct sw_step_bench *b) {
    return b->planned.settings.trace == NULL ? SW_OK : sw_trace_file_check(b->planned.settings.trace);
}

/* Opens the model and makes the plan. All ranks make the same plan, each for its own shard. */
static sw_status plan(struct sw_step_bench *b) {
    struct sw_planned *planned = &b->planned;
    planned->ranks = &b->ranks;
    planned->measures = true;
    SW_TRY(sw_agree_on_settings(&b->ranks, &planned->settings));
    SW_TRY(sw_planned_begin_ranks(&b->ranks, &planned->settings));
    SW_TRY(sw_ranks_agree_on_error(&b->ranks, sw_planned_open(planned)));
    SW_TRY(sw_planned_agree(&b->ranks, &planned->settings, &planned->config, &planned->devices));
    return sw_ranks_agree_on_error(&b->ranks, sw_plan_fit(&planned->settings, planned->model, &planned->plan));
}

static sw_status predict(struct sw_step_bench *b) {
    struct sw_planned *planned = &b->planned;
    const char *rates = planned->settings.rates;
    const bool kept = rates != NULL && access(rates, F_OK) == 0, says = !planned->settings.json;
    if (says && !kept)
        sw_log_info("measuring this machine for the prediction; %s keeps what is measured",
                    rates != NULL ? rates : "--rates FILE");
    SW_TRY(sw_planned_predict(planned));
    if (says && kept)
        sw_log_info("predicted by the rates kept in %s; remove it to measure this machine again", rates);
    return SW_OK;
}

static sw_status run(struct sw_step_bench *b) {
    SW_TRY(sw_ranks_first(&b->ranks, check_trace(b)));
    SW_TRY(plan(b));
    SW_TRY(predict(b));
    SW_TRY(plan_resident(b));
    SW_TRY(sw_ranks_agree_on_error(&b->ranks, sw_step_measure_products(b)));
    choose_speculation(b);
    find_least(b);
    SW_TRY(open_contenders(b));
    sw_ranks_relax_timeout(&b->ranks, false);
    SW_TRY(measure(b));
    SW_TRY(sw_engine_settle(b->placed.engine));
    SW_TRY(write_trace(b));
    SW_TRY(sw_step_find_exchange(b));
    if (sw_ranks_rank(&b->ranks) > 0)
        return SW_OK;
    if (b->planned.settings.json)
        return sw_step_bench_json(b);
    sw_step_bench_print(b);
    return SW_OK;
}

static void close_bench(struct sw_step_bench *b) {
    sw_contender_close(&b->placed);
    sw_contender_close(&b->resident);
    sw_plan_destroy(b->resident_plan);
    for (int k = 0; k < SW_STEP_KINDS; k++)
        free(b->times[k].seconds);
    sw_planned_release(&b->planned);
}

int sw_bench_step(int argc, char **argv) {
    struct sw_step_bench b = {0};
    int code;
    if (sw_command_begin(&b.ranks, sw_bench_step_command.command, &code)) {
        if (sw_command_parse_ranks(&b.ranks, &sw_bench_step_command, argc, argv, &b.planned.settings, &code)) {
            const sw_status status = run(&b);
            code = status == SW_OK ? SW_EXIT_DONE : sw_command_fail_ranks(&b.ranks, status);
            close_bench(&b);
        }
        sw_command_end(&b.ranks, code);
    }
    sw_options_release(&sw_bench_step_command, &b.planned.settings);
    return code;
}
