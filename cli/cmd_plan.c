#include "cli/answer_text.h"
#include "cli/cmd_ranks.h"
#include "cli/commands.h"
#include "cli/plan_sizes.h"
#include "cli/plan_text.h"
#include "core/log.h"
#include "core/number.h"
#include "core/size.h"
#include "job/new_store.h"
#include "job/plan_advice.h"
#include "job/planned.h"
#include "job/settings/room.h"
#include "job/what_if.h"
#include "report/timeline_svg.h"
#include "run/agreement.h"
#include "run/data/data_pass.h"
#include "run/folder/source.h"
#include "run/steplog_text.h"
#include "run/trace_file.h"

#include <jansson.h>
#include <malloc.h>
#include <math.h>
#include <stdio.h>

/* Writes the predicted timeline, of speculated steps unless --speculate never: most steps are not clipped. */
static sw_status write_trace(struct sw_planned *p) {
    const bool speculates = p->prediction.may_speculate && p->settings.speculate != SW_SPECULATE_NEVER;
    struct sw_simulation simulation;
    struct sw_trace *trace;
    SW_TRY(sw_trace_create(p->plan, SW_TRACE_OPS, "spillway, predicted", &trace));
    sw_status status = sw_simulate(p->plan, speculates ? SW_PROGRAM_REDO_SPECULATE : SW_PROGRAM_UPDATE, false,
                                   &p->rates.rates, trace, &simulation);
    if (status == SW_OK)
        status = sw_trace_file_write(p->settings.trace, trace);
    if (status == SW_OK)
        sw_log_info("the trace %s holds %lld predicted steps", p->settings.trace, (long long)sw_trace_steps(trace));
    sw_trace_destroy(trace);
    return status;
}

/* Draws the timeline of a step, with updates under the next forward pass. */
static sw_status write_svg(const struct sw_planned *p) {
    enum { TITLE_CHARS = 512 };
    char title[TITLE_CHARS], time[SW_TIME_TEXT_CHARS];
    struct sw_forecast forecast;
    sw_status status = sw_forecast_make(p->plan, &p->rates.rates, &p->settings.save_every, &forecast);
    if (status == SW_OK && forecast.timeline == NULL)
        status = sw_fail(SW_ERR_ARG, "a step has too many operations for --svg; use larger --chunk-grains");
    snprintf(title, sizeof title, "%s: a step takes %s, predicted", p->settings.model,
             sw_format_seconds(forecast.step.step_s, time));
    if (status == SW_OK)
        status = sw_timeline_svg_write(p->settings.svg, forecast.timeline, title);
    sw_forecast_release(&forecast);
    return status;
}

static json_t *lanes_json(const struct sw_plan *plan) {
    const struct sw_program *program = &plan->program[SW_PROGRAM_UPDATE];
    json_t *lanes = json_object();
    for (int lane = 0; lane < SW_LANES; lane++) {
        json_int_t bytes = 0;
        for (int32_t i = 0; i < program->lane_count[lane]; i++)
            bytes += program->op[program->lane_op[lane][i]].bytes;
        json_object_set_new(lanes, sw_lane_name((sw_lane)lane),
                            json_pack("{s:i, s:I}", "ops", program->lane_count[lane], "bytes", bytes));
    }
    return lanes;
}

/* Frozen units have neither gradients nor optimizer state. */
static bool has_state(const struct sw_plan *plan, sw_state state, int64_t unit) {
    return sw_plan_trains(plan, unit) || (state != SW_GRADS && state != SW_OPTIMIZER);
}

static json_t *placement_json(const struct sw_plan *plan) {
    json_t *placement = json_object();
    for (int state = SW_WEIGHTS; state < SW_STATES; state++) {
        json_t *tiers = json_array();
        for (int64_t u = 0; u < plan->spec.units->count; u++)
            json_array_append_new(tiers, has_state(plan, (sw_state)state, u)
                                             ? json_string(sw_tier_name(plan->placement[u].tier[state]))
                                             : json_null());
        json_object_set_new(placement, sw_state_name((sw_state)state), tiers);
    }
    return placement;
}

static json_t *updates_json(const struct sw_plan *plan) {
    json_t *sides = json_array();
    for (int64_t u = 0; u < plan->spec.units->count; u++) {
        const sw_tier side = sw_plan_updates_on_device(plan, u) ? SW_DEVICE : SW_HOST;
        json_array_append_new(sides, sw_plan_trains(plan, u) ? json_string(sw_tier_name(side)) : json_null());
    }
    return sides;
}

static json_t *recompute_json(const struct sw_plan *plan) {
    json_t *levels = json_array();
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        json_array_append_new(levels, json_string(sw_recompute_name(plan->recompute[u])));
    return levels;
}

static json_t *simulation_json(const struct sw_simulation *s, int64_t tokens) {
    json_t *lanes = json_object();
    for (int lane = 0; lane < SW_LANES; lane++)
        json_object_set_new(lanes, sw_lane_name((sw_lane)lane), json_real(s->lane_busy_s[lane]));
    return json_pack("{s:f, s:f, s:s, s:f, s:o}", "step_s", s->step_s, "tokens_per_second", (double)tokens / s->step_s,
                     "bottleneck", s->bottleneck, "bottleneck_share", s->bottleneck_share, "lane_busy_s", lanes);
}

static json_t *prediction_json(const struct sw_planned *p) {
    const struct sw_prediction *prediction = &p->prediction;
    json_t *object = json_pack("{s:o}", "plain", simulation_json(&prediction->plain, p->settings.batch_tokens));
    if (prediction->may_speculate) {
        json_object_set_new(object, "speculated", simulation_json(&prediction->speculated, p->settings.batch_tokens));
        json_object_set_new(object, "redone", simulation_json(&prediction->redone, p->settings.batch_tokens));
    }
    if (p->slow_s > 0.0)
        json_object_set_new(object, "bounds", json_pack("{s:f, s:f}", "fast_s", p->fast_s, "slow_s", p->slow_s));
    if (p->may_save)
        json_object_set_new(object, "saving", simulation_json(&p->save.step, p->settings.batch_tokens));
    return object;
}

/* Returns null for a number that is not finite. */
static json_t *real_or_null(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *unfrozen_json(const struct sw_unfrozen *u) {
    if (!u->fits)
        return json_null();
    return json_pack("{s:o, s:{s:I, s:I}, s:I, s:I}", "step_s", real_or_null(u->step_s), "peak_bytes", "device",
                     (json_int_t)u->peak_bytes[SW_DEVICE], "host", (json_int_t)u->peak_bytes[SW_HOST], "disk_bytes",
                     (json_int_t)u->disk_bytes, "step_bytes", (json_int_t)u->step_write_bytes);
}

static json_t *frozen_json(const struct sw_planned *p) {
    if (p->plan->spec.frozen_units == 0)
        return json_null();
    return json_pack("{s:I, s:I, s:I, s:o}", "units", (json_int_t)p->plan->spec.frozen_units, "parameters",
                     (json_int_t)sw_units_first_parameters(p->plan->spec.units, p->plan->spec.frozen_units), "bytes",
                     (json_int_t)sw_plan_frozen_bytes(p->plan), "without", unfrozen_json(&p->unfrozen));
}

static json_t *update_prices_json(const struct sw_planned *p) {
    const struct sw_update_prices *prices = &p->prices.update;
    if (!prices->known)
        return json_null();
    return json_pack("{s:f, s:f, s:o}", "chosen_s", prices->chosen_s, "host_s", prices->host_s, "device_s",
                     real_or_null(prices->device_s));
}

static json_t *placement_prices_json(const struct sw_planned *p) {
    const struct sw_placement_price *price = &p->prices.placement;
    if (!price->known)
        return json_null();
    return json_pack("{s:o, s:f, s:I, s:I}", "usual_s", real_or_null(price->usual_s), "chosen_s", price->chosen_s,
                     "tried", (json_int_t)price->tried, "simulated", (json_int_t)price->simulated);
}

/* Returns one entry for each group size that was priced; the first is all micro-batches. */
static json_t *order_prices_json(const struct sw_planned *p) {
    json_t *orders = json_array();
    for (int i = 0; i < p->prices.orders; i++)
        json_array_append_new(orders, json_pack("{s:I, s:o, s:o, s:o}", "group", (json_int_t)p->prices.order[i].group,
                                                "step_s", real_or_null(p->prices.order[i].step_s), "least_s",
                                                real_or_null(p->prices.order[i].bound_s), "chosen_s",
                                                real_or_null(p->prices.order[i].chosen_s)));
    return orders;
}

/* Returns null for this machine, whose nodes are not known. */
static json_t *nodes_json(const struct sw_planned *p) {
    const int64_t ranks = sw_settings_ranks(&p->settings), nodes = p->settings.nodes;
    if (p->settings.machine == NULL)
        return json_null();
    const double tokens_per_s = (double)p->settings.batch_tokens / p->prediction.plain.step_s / (double)ranks;
    const json_int_t of_node = ranks / nodes;
    return json_pack("{s:I, s:f, s:f, s:I, s:I}", "count", (json_int_t)nodes, "rank_tokens_per_second", tokens_per_s,
                     "rank_model_flops_per_second", tokens_per_s * sw_planned_token_flops(p), "node_host_bytes",
                     of_node * p->plan->tier_bytes[SW_HOST], "node_disk_bytes", of_node * sw_plan_disk_bytes(p->plan));
}

/* Returns the tensor groups, or null where each rank has whole layers. */
static json_t *tensor_json(const struct sw_planned *p) {
    const struct sw_settings *settings = &p->settings;
    const int64_t nodes = sw_settings_tensor_nodes(settings);
    if (sw_settings_tensor_ranks(settings) == 1)
        return json_null();
    return json_pack("{s:I, s:I, s:o, s:o}", "ranks", (json_int_t)sw_settings_tensor_ranks(settings), "groups",
                     (json_int_t)sw_settings_data_ranks(settings), "nodes",
                     nodes > 0 ? json_integer(nodes) : json_null(), "within_node_step_s",
                     p->groups_in_nodes_s > 0.0 ? json_real(p->groups_in_nodes_s) : json_null());
}

/* Returns what --tensor auto compared, or null where the size of groups was given. */
static json_t *tensor_choice_json(const struct sw_tensor_prices *prices) {
    if (prices->count == 0)
        return json_null();
    json_t *sizes = json_array();
    for (int i = 0; i < prices->count; i++) {
        const struct sw_tensor_price *price = &prices->size[i];
        const bool fits = isfinite(price->step_s);
        json_array_append_new(
            sizes, json_pack("{s:I, s:o, s:s?, s:s?, s:o}", "ranks", (json_int_t)price->ranks, "step_s",
                             real_or_null(price->step_s), "bottleneck", price->bottleneck, "refused",
                             fits ? NULL : price->refused, "peak_bytes",
                             fits ? json_pack("{s:I, s:I}", "device", (json_int_t)price->peak_bytes[SW_DEVICE], "host",
                                              (json_int_t)price->peak_bytes[SW_HOST])
                                  : json_null()));
    }
    return sizes;
}

/* Returns the secondary shards of weights, or null. */
static json_t *secondary_json(const struct sw_plan *plan) {
    if (plan->spec.secondary_ranks < 2)
        return json_null();
    return json_pack("{s:i, s:s, s:I}", "ranks", plan->spec.secondary_ranks, "tier", sw_tier_name(plan->secondary_tier),
                     "bytes", (json_int_t)sw_plan_secondary_bytes(plan));
}

/* Returns the bytes that the rank gives to others in a step. */
static json_t *sent_json(const struct sw_plan *plan) {
    const struct sw_plan_sent sent = sw_plan_sent_bytes(plan);
    return json_pack("{s:I, s:I}", "bytes", (json_int_t)sent.bytes, "between_bytes", (json_int_t)sent.between_bytes);
}

static json_t *saves_json(const struct sw_planned *p) {
    if (!p->may_save)
        return json_null();
    return json_pack("{s:I, s:f, s:f}", "every_steps", (json_int_t)p->writes.save_every, "cost_s", p->save.cost_s,
                     "share", sw_planned_save_share(p));
}

/* Returns null without --data. */
static json_t *data_json(const struct sw_planned *p) {
    const struct sw_settings *s = &p->settings;
    if (p->data.tokens == 0)
        return json_null();
    return json_pack("{s:I, s:o, s:f, s:I, s:I, s:f}", "tokens", (json_int_t)p->data.tokens, "estimated_from_bytes",
                     p->data.sample_bytes > 0 ? json_integer(p->data.sample_bytes) : json_null(), "epochs",
                     sw_data_pass_epochs(&p->data, s), "steps", (json_int_t)s->steps, "run_tokens",
                     (json_int_t)(s->steps * s->batch_tokens), "run_s", sw_planned_run_s(p));
}

static json_t *writes_json(const struct sw_planned *p) {
    const struct sw_settings *s = &p->settings;
    const double thousand = sw_writes_per_thousand(&p->writes), all = sw_writes_of_run(&p->writes, s->steps);
    return json_pack("{s:I, s:I, s:I, s:I, s:f, s:I, s:f, s:o, s:o, s:o}", "start_bytes",
                     (json_int_t)p->writes.start_bytes, "step_bytes", (json_int_t)p->writes.step_bytes, "save_bytes",
                     (json_int_t)p->writes.save_bytes, "save_every", (json_int_t)p->writes.save_every,
                     "bytes_per_1000_steps", thousand, "steps", (json_int_t)s->steps, "run_bytes", all, "endurance_tb",
                     s->endurance > 0.0 ? json_real(s->endurance) : json_null(), "share_per_1000_steps",
                     real_or_null(sw_writes_share(thousand, s->endurance)), "run_share",
                     real_or_null(sw_writes_share(all, s->endurance)));
}

/* helps: NULL if nothing was tried. */
static json_t *helps_json(const struct sw_helps *helps) {
    if (helps == NULL)
        return json_null();
    json_t *rows = json_array();
    for (int i = 0; i < helps->count; i++) {
        const struct sw_what_if *help = &helps->row[i];
        const bool known = help->fits && isfinite(help->tokens_per_s);
        json_array_append_new(rows, json_pack("{s:s, s:b, s:o, s:o, s:o}", "what", help->what, "fits", help->fits,
                                              "step_s", known ? json_real(help->step.step_s) : json_null(),
                                              "tokens_per_second", known ? json_real(help->tokens_per_s) : json_null(),
                                              "bottleneck", known ? json_string(help->step.bottleneck) : json_null()));
    }
    return rows;
}

static json_t *quantized_json(const struct sw_plan *plan) {
    const bool weights = sw_plan_quantizes_weights(plan), grads = sw_plan_quantizes_grads(plan);
    if (!weights && !grads)
        return json_null();
    return json_pack("{s:s?, s:s?, s:i}", "gather", weights ? sw_quant_name(plan->spec.gather) : NULL, "reduce",
                     grads ? sw_quant_name(plan->spec.reduce) : NULL, "reduce_nodes", sw_plan_reduce_nodes(plan));
}

static sw_status print_json(const struct sw_planned *p, const struct sw_helps *helps) {
    const struct sw_plan *plan = p->plan;
    json_t *root = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:s, s:o, s:b, s:I, s:I, s:{s:I, s:I, s:I}, s:o, s:o, s:I, s:o, s:o, s:o, s:i, s:i, "
        "s:o, "
        "s:o, s:o}",
        "model", p->settings.model, "parameters",
        (json_int_t)sw_settings_parameters(&p->settings, sw_model_get_units(p->model)), "batch_tokens",
        (json_int_t)p->settings.batch_tokens, "micro_batch", (json_int_t)p->settings.micro_batch, "seq",
        (json_int_t)p->settings.seq, "precision", sw_settings_precision_name(&p->settings), "recompute",
        recompute_json(plan), "commit_every_step", plan->commit_every_step, "store_bytes",
        (json_int_t)sw_plan_store_bytes(plan), "disk_bytes", (json_int_t)sw_plan_disk_bytes(plan), "peak_bytes",
        "device", (json_int_t)plan->tier_bytes[SW_DEVICE], "host", (json_int_t)plan->tier_bytes[SW_HOST], "nvme",
        (json_int_t)plan->tier_bytes[SW_NVME], "placement", placement_json(plan), "updates", updates_json(plan),
        "group", (json_int_t)plan->spec.group, "order_prices", order_prices_json(p), "update_prices",
        update_prices_json(p), "lanes", lanes_json(plan), "ops", plan->program[SW_PROGRAM_UPDATE].op_count, "waits",
        plan->program[SW_PROGRAM_UPDATE].wait_count, "predicted", prediction_json(p), "saves", saves_json(p), "writes",
        writes_json(p));
    json_object_set_new(root, "optimizer_state",
                        json_string(sw_optimizer_format_name(sw_optimizer_records(plan->spec.units->optimizer))));
    json_object_set_new(root, "grads_state", json_string(plan->spec.grads == SW_GRADS_8BIT ? "8bit" : "compute"));
    json_object_set_new(root, "placement_prices", placement_prices_json(p));
    json_object_set_new(root, "frozen", frozen_json(p));
    json_object_set_new(root, "ranks", json_integer(sw_settings_ranks(&p->settings)));
    json_object_set_new(root, "zero",
                        sw_settings_data_ranks(&p->settings) > 1 ? json_integer(p->plan->spec.zero) : json_null());
    json_object_set_new(root, "tensor", tensor_json(p));
    json_object_set_new(root, "tensor_choice", tensor_choice_json(&p->tensor_prices));
    json_object_set_new(root, "nodes", nodes_json(p));
    json_object_set_new(root, "secondary", secondary_json(p->plan));
    json_object_set_new(root, "quantized", quantized_json(p->plan));
    json_object_set_new(root, "sent", sent_json(p->plan));
    json_object_set_new(root, "data", data_json(p));
    json_object_set_new(root, "would_help", helps_json(helps));
    return sw_command_print_json(root);
}

/* Refuses, as training would, a plan for which this machine has not the memory or the drives. A machine that is
 * described by --machine or --rates is not this one, and --smallest-machine asks which machine it takes. */
static sw_status check_here(const struct sw_planned *p) {
    const struct sw_device_info info = sw_devices_info(&p->devices);
    const struct sw_plan_drives where = {.settings = &p->settings, .places = &p->places};
    const struct sw_model_shape shape = sw_planned_shape(p);
    if (p->settings.machine != NULL || p->settings.rates != NULL || p->settings.smallest_machine)
        return SW_OK;
    SW_TRY(sw_room_check(p->plan, &info, &p->settings));
    return sw_plan_check_drives(p->plan, &where, p->model, &shape, p->devices.compute);
}

/* Warns of what the run would do to its drives, and of state that slows it down. */
static sw_status warn(const struct sw_planned *p) {
    double narrow_s;
    sw_answer_warn_writes(&p->settings, p->plan, &p->writes, p->settings.steps);
    SW_TRY(sw_what_if_narrow(p, &narrow_s));
    sw_answer_warn_state(p->prediction.plain.step_s, narrow_s);
    return SW_OK;
}

static sw_status run(struct sw_planned *p, int argc, char **argv) {
    if (p->settings.trace != NULL)
        SW_TRY(sw_trace_file_check(p->settings.trace));
    if (p->settings.svg != NULL)
        SW_TRY(sw_timeline_svg_check(p->settings.svg));
    if (!p->settings.init)
        SW_TRY(sw_ranks_agree_on_error(p->ranks, sw_source_check_weights(p->settings.model)));
    SW_TRY(sw_planned_make(p));
    SW_TRY(sw_ranks_agree_on_error(p->ranks,
                                   sw_new_store_check(&(struct sw_new_store){.plan = p->plan, .places = &p->places})));
    /* A plan that does not fit is refused before this machine is measured for it. */
    SW_TRY(sw_ranks_agree_on_error(p->ranks, check_here(p)));
    SW_TRY(sw_planned_predict(p));
    SW_TRY(sw_ranks_agree_on_error(p->ranks, check_here(p)));
    if (sw_ranks_rank(p->ranks) > 0)
        return SW_OK;
    if (p->data.tokens > 0)
        sw_answer_warn_epochs(sw_data_pass_epochs(&p->data, &p->settings), p->settings.steps);
    sw_answer_warn_groups(&p->settings, p->prediction.plain.step_s, p->groups_in_nodes_s);
    if (!p->settings.smallest_machine)
        SW_TRY(warn(p));
    if (p->settings.trace != NULL)
        SW_TRY(write_trace(p));
    if (p->settings.svg != NULL)
        SW_TRY(write_svg(p));
    if (p->settings.smallest_machine)
        return sw_plan_print_smallest(p);
    const bool tries = p->settings.explain && sw_what_helps_is_quick(p);
    struct sw_helps helps;
    if (p->settings.json) {
        if (tries)
            SW_TRY(sw_what_helps(p, &helps));
        return print_json(p, tries ? &helps : NULL);
    }
    sw_plan_answer_print(p, argc, argv);
    if (!p->settings.explain)
        return SW_OK;
    sw_plan_explain(p);
    if (tries)
        SW_TRY(sw_what_helps(p, &helps));
    sw_plan_print_helps(p, tries ? &helps : NULL);
    return SW_OK;
}

/* Refuses a plan for other ranks than those that were started, which measure as many as they are. */
static sw_status check_ranks(const struct sw_planned *p) {
    const int count = sw_ranks_count(p->ranks);
    if (count > 1 && sw_settings_ranks(&p->settings) > 1 && sw_settings_ranks(&p->settings) != count)
        return sw_fail(SW_ERR_USAGE, "--ranks %lld is not the %d ranks that were started; leave it out, or start one",
                       (long long)sw_settings_ranks(&p->settings), count);
    return sw_agree_on_settings(p->ranks, &p->settings);
}

/* Each model is planned for one rank, as no ranks are asked to plan and measure together for every model. */
static sw_status find_largest(const struct sw_planned *p) {
    if (sw_ranks_count(p->ranks) > 1)
        return sw_fail(SW_ERR_USAGE, "--largest plans on one rank; start it without mpirun");
    return sw_plan_print_largest(&p->settings);
}

/* A search makes and drops programs of some MiB by the hundred. Memory that stays with the process for the next one
 * spares the kernel from clearing it again each time, which took a sixth of a search. */
static void keep_memory(void) {
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, 512 << 20);
}

int sw_command_plan(int argc, char **argv) {
    struct sw_ranks ranks;
    struct sw_planned p = {.ranks = &ranks, .measure_data = sw_data_pass_measure};
    int code;
    keep_memory();
    if (!sw_command_begin(&ranks, "plan", &code))
        return code;
    if (sw_command_parse_ranks(&ranks, &sw_plan_command, argc, argv, &p.settings, &code)) {
        p.settings.memory_named[SW_DEVICE] = p.settings.device_memory != SW_OPTION_AUTO;
        p.settings.memory_named[SW_HOST] = p.settings.host_memory != SW_OPTION_AUTO;
        sw_status status = check_ranks(&p);
        if (status == SW_OK)
            status = p.settings.largest != 0 ? find_largest(&p) : run(&p, argc, argv);
        code = status == SW_OK ? SW_EXIT_DONE : sw_command_fail_ranks(&ranks, status);
        sw_planned_release(&p);
    }
    sw_options_release(&sw_plan_command, &p.settings);
    sw_command_end(&ranks, code);
    return code;
}
