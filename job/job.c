/* Opens a job, prices it, and finds the plan of a training start.
 *
 * Ranks make the same decisions by one of two means: each computes them from equal inputs, or rank 0 computes them and
 * spreads the result. Inputs that may differ (memory, drives, rates) are agreed on first. After each part the ranks
 * agree on errors, because a rank that fails alone would leave the others waiting in the next collective.
 *
 * A plan stays an outline, placement and slots only, until it is chosen. Completing and checking every candidate would
 * cost most of the time and prove plans that are thrown away.
 *
 * Without rates a start keeps its default plan: a failed measurement costs a prediction, never a run. */
#include "job/job.h"

#include "core/log.h"
#include "core/size.h"
#include "core/status.h"
#include "job/machine/gpu_trust.h"
#include "job/settings/pipeline.h"
#include "job/settings/schedule.h"
#include "job/sizes.h"
#include "job/what_if.h"
#include "model/hf/in_place.h"
#include "offload/simulate/outline_price.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Seconds that a rank may work without a sign if no flag says it. Measuring its rates takes longest. */
enum { RANK_TIMEOUT_S = 120 };

/* Starts the watch of the ranks, and writes this rank's identity and its share of the cores into the settings. */
static sw_status begin_ranks(struct sw_job *job) {
    struct sw_settings *settings = job->settings;
    int64_t cores;
    if (sw_ranks_comm(job->ranks) == NULL)
        return SW_OK;
    sw_settings_take_ranks(settings, job->ranks);
    SW_TRY(sw_settings_group_ranks(settings, job->ranks));
    SW_TRY(sw_ranks_begin_watch(job->ranks, settings->rank_timeout > 0 ? settings->rank_timeout : RANK_TIMEOUT_S));
    SW_TRY(sw_ranks_cores(job->ranks, &cores));
    if (settings->threads == SW_OPTION_AUTO)
        settings->threads = cores;
    return sw_ranks_least(job->ranks, &settings->threads, 1);
}

/* Opens the described devices with their memory. */
static sw_status open_described(struct sw_job *job) {
    struct sw_settings *settings = job->settings;
    job->is_described = true;
    SW_TRY(sw_profile_fit_nodes(&job->profile, settings->machine, sw_settings_ranks(settings), &settings->nodes));
    SW_TRY(sw_profile_open_devices(&job->profile, &job->devices));
    SW_TRY(sw_settings_prepare_device(settings, job->devices.compute));
    const struct sw_device_info info = sw_devices_info(&job->devices);
    sw_settings_resolve_memory(settings, &info, job->profile.host_bytes);
    return SW_OK;
}

static sw_status open_devices(struct sw_job *job, const struct sw_job_spec *spec) {
    const char *machine = job->settings->machine;
    if (spec->machine != NULL)
        job->profile = *spec->machine;
    else if (machine != NULL)
        SW_TRY(sw_profile_describe(machine, SW_MACHINE_EXPECTED, &job->profile));
    if (spec->machine != NULL || machine != NULL)
        return open_described(job);
    SW_TRY(sw_settings_open_devices(job->settings, &job->devices));
    if (spec->products == NULL)
        return SW_OK;
    SW_TRY(sw_gpu_verdict_require(&job->devices));
    return sw_algorithms_begin(job->devices.compute, spec->products);
}

/* Opens the devices, and resolves all settings except the steps, which may depend on the data. */
static sw_status open_inputs(struct sw_job *job, const struct sw_job_spec *spec) {
    if (spec->config != NULL)
        job->config = *spec->config;
    else
        SW_TRY(sw_config_load(job->settings->model, &job->config));
    SW_TRY(sw_job_group_experts(job));
    SW_TRY(sw_settings_check(job->settings));
    SW_TRY(sw_as_usage(sw_settings_check_tensor_ranks(job->settings)));
    if (spec->folder != NULL)
        SW_TRY(sw_job_place(job, spec->folder));
    SW_TRY(open_devices(job, spec));
    const struct sw_device_info info = sw_devices_info(&job->devices);
    sw_ranks_keep_to_node(job->ranks, info.bus);
    return sw_settings_resolve(job->settings, &job->config, &info);
}

static sw_status agree_on(struct sw_job *job, const char *config) {
    const char *device = sw_devices_info(&job->devices).name;
    const struct sw_comm_claim claims[] = {
        {.what = "model", .remedy = "give all ranks the same one", .value = config, .bytes = (int64_t)strlen(config)},
        {.what = "precision",
         .remedy = "name one by --precision",
         .value = &job->settings->precision,
         .bytes = sizeof job->settings->precision},
        {.what = "kind of device", .remedy = "name one by --device", .value = device, .bytes = (int64_t)strlen(device)},
    };
    return sw_ranks_agree(job->ranks, claims, sizeof claims / sizeof claims[0]);
}

/* Fails unless all ranks have the same resolved settings, model and kind of device. Budgets become the smallest of any
 * rank. */
static sw_status agree_on_inputs(struct sw_job *job) {
    char *text = NULL;
    if (sw_ranks_comm(job->ranks) == NULL)
        return SW_OK;
    SW_TRY(sw_ranks_agree_on_error(job->ranks, sw_config_to_json(&job->config, &text)));
    const sw_status status = agree_on(job, text);
    free(text);
    SW_TRY(status);
    int64_t budgets[] = {job->settings->device_memory, job->settings->host_memory};
    SW_TRY(sw_ranks_least(job->ranks, budgets, 2));
    job->settings->device_memory = budgets[0];
    job->settings->host_memory = budgets[1];
    return SW_OK;
}

static sw_status make_model(struct sw_job *job) {
    const struct sw_model_shape shape = sw_job_shape(job);
    SW_TRY(sw_model_create(&job->config, &shape, job->devices.compute, &job->model));
    sw_job_mark_in_place(job);
    return sw_tensor_rates_apply(job->settings, sw_model_tunable_units(job->model));
}

/* Makes the model on all ranks. For training, rank 0 first chooses the algorithms of its matrix products, and the
 * others take the same. */
static sw_status make_models(struct sw_job *job, struct sw_algorithm_record *products) {
    struct sw_ranks *ranks = job->ranks;
    if (products == NULL || job->forward_only) {
        SW_TRY(sw_ranks_agree_on_error(ranks, make_model(job)));
        sw_algorithms_keep(job->devices.compute);
        return SW_OK;
    }
    SW_TRY(sw_ranks_first(ranks, make_model(job)));
    SW_TRY(sw_algorithms_agree(ranks, job->devices.compute, products));
    return sw_ranks_agree_on_error(ranks, job->model == NULL ? make_model(job) : SW_OK);
}

/* Decides whether frozen weights are read in place: all ranks do, or none. */
static sw_status choose_in_place(struct sw_job *job, const struct sw_job_spec *spec) {
    if (!sw_tuning_freezes(&job->settings->tuning) || job->forward_only)
        return SW_OK;
    int64_t all =
        spec->base != NULL && !job->is_described && sw_in_place_is_on(spec->base, job->places.path, job->places.count);
    SW_TRY(sw_ranks_least(job->ranks, &all, 1));
    if (all)
        job->in_place = strdup(spec->base);
    return all && job->in_place == NULL ? sw_fail(SW_ERR_NOMEM, "no memory for the model's folder") : SW_OK;
}

/* Tells whether something holds on any rank. Only stages of a pipeline have plans that differ. */
static sw_status holds_on_any(const struct sw_job *job, bool here, bool *out) {
    int64_t on_none = !here;
    if (sw_settings_stages(job->settings) > 1)
        SW_TRY(sw_ranks_least(job->ranks, &on_none, 1));
    *out = on_none == 0;
    return SW_OK;
}

/* Leaves it to saves when to commit if a stage of the pipeline has optimizer state that is not on NVMe: all stages
 * commit at the same steps. */
static sw_status commit_alike(struct sw_job *job) {
    const bool commits = job->plan->commit_every_step;
    sw_status status = SW_OK;
    if (sw_settings_stages(job->settings) == 1)
        return SW_OK;
    SW_TRY(holds_on_any(job, !commits, &job->settings->stages_save));
    if (commits && job->settings->stages_save) {
        sw_plan_destroy(job->plan);
        job->plan = NULL;
        status = sw_plan_fit(job->settings, job->model, &job->plan);
    }
    return sw_ranks_agree_on_error(job->ranks, status);
}

/* Settings leave at most one size open. */
static sw_status choose_open_size(struct sw_job *job) {
    if (sw_tensor_is_open(job->settings))
        return sw_tensor_choose(job);
    return sw_pipeline_is_open(job->settings) ? sw_pipeline_choose(job) : sw_expert_group_choose(job);
}

sw_status sw_job_open(const struct sw_job_spec *spec, struct sw_job *out) {
    struct sw_ranks *ranks = spec->ranks;
    *out = (struct sw_job){.settings = spec->settings,
                           .ranks = ranks,
                           .documents = spec->documents,
                           .forward_only = spec->forward_only,
                           .context = spec->context,
                           .measures = spec->measures};
    SW_TRY(begin_ranks(out));
    SW_TRY(sw_ranks_agree_on_error(ranks, sw_price_memory_create(&out->memory)));
    SW_TRY(sw_ranks_agree_on_error(ranks, open_inputs(out, spec)));
    SW_TRY(spec->open_data != NULL ? spec->open_data(spec->caller, out)
                                   : sw_ranks_agree_on_error(ranks, sw_settings_resolve_steps(spec->settings, 0)));
    if (!spec->unplanned)
        sw_job_lower_micro_batch(out);
    SW_TRY(spec->agree != NULL ? spec->agree(spec->caller, out) : agree_on_inputs(out));
    SW_TRY(sw_ranks_use_gpu(ranks, &out->devices));
    SW_TRY(choose_in_place(out, spec));
    if (sw_tensor_is_open(spec->settings) || sw_pipeline_is_open(spec->settings) ||
        sw_expert_group_is_open(spec->settings)) {
        SW_TRY(choose_open_size(out));
        if (spec->regroup != NULL)
            SW_TRY(spec->regroup(spec->caller, out));
        if (out->plan != NULL)
            return commit_alike(out);
    }
    SW_TRY(make_models(out, spec->products));
    if (spec->unplanned)
        return SW_OK;
    SW_TRY(sw_ranks_agree_on_error(ranks, sw_job_fit_or_advise(out)));
    return commit_alike(out);
}

/* Prices the job's model by the profile on rank 0, and gives the rates to all ranks. */
static sw_status take_rates(struct sw_job *job) {
    struct sw_ranks *ranks = job->ranks;
    SW_TRY(sw_ranks_first(ranks, sw_job_count_rates(job)));
    const sw_status status = sw_rates_spread(ranks, sw_model_get_units(job->model)->count, &job->rates);
    if (status != SW_OK)
        sw_rates_release(&job->rates);
    return status;
}

/* Measures this machine, or takes its profile. drives: include the rates of the drives. */
static sw_status find_here(struct sw_job *job, const struct sw_rates_target *target, bool drives) {
    if (job->measures)
        return sw_rates_measure(target, drives, &job->rates);
    SW_TRY(sw_job_find_profile(job, &(struct sw_profile_need){.drives = drives}));
    return take_rates(job);
}

/* A plan with nothing on NVMe needs the drives' rates only to predict the cost of saves, so a failure to measure them
 * is no error. */
static sw_status find_rates_here(struct sw_job *job, const struct sw_rates_target *target) {
    const bool uses = sw_plan_uses_nvme(job->plan), saves = sw_plan_saves(job->plan);
    const sw_status status = find_here(job, target, uses || saves);
    if (status == SW_OK || status == SW_ERR_STOPPED || uses || !saves)
        return status;
    sw_log_warn("the time of a save is not predicted, as the drives cannot be measured: %s", sw_error_message(status));
    sw_ranks_forget_error(job->ranks);
    return find_here(job, target, false);
}

static sw_status find_rates(struct sw_job *job, const struct sw_rates_target *target) {
    if (job->is_described)
        return sw_job_count_rates(job);
    return job->settings->rates != NULL ? sw_rates_load(job->settings->rates, target, &job->rates)
                                        : find_rates_here(job, target);
}

/* Measures what no profile gives, on all ranks at once so that each measures its share of the cores, and gives all the
 * rates of rank 0. */
static sw_status find_rates_together(struct sw_job *job, const struct sw_rates_target *target) {
    struct sw_rates *rates = &job->rates.rates;
    int64_t cores;
    const bool finds = sw_ranks_rank(job->ranks) == 0 || job->settings->rates == NULL;
    SW_TRY(sw_ranks_agree_on_error(job->ranks, finds ? find_rates(job, target) : SW_OK));
    if (sw_ranks_rank(job->ranks) > 0)
        sw_rates_release(&job->rates);
    SW_TRY(sw_rates_spread(job->ranks, job->plan->spec.units->count, &job->rates));
    SW_TRY(sw_rates_measure_ranks(job->ranks, &job->devices, sw_settings_type(job->settings), rates));
    sw_rates_fit_nodes(job->settings, rates);
    SW_TRY(sw_ranks_cores(job->ranks, &cores));
    rates->cores = (double)cores;
    return SW_OK;
}

/* Tells whether this machine's profile gives the rates. It may do so for several ranks as for one. */
static bool takes_profile(const struct sw_job *job) {
    return !job->measures && !job->is_described && job->settings->rates == NULL;
}

sw_status sw_job_keep_rates(const struct sw_job *job) {
    const struct sw_rates_target target = sw_job_target(job);
    const bool keeps = job->settings->rates != NULL && sw_ranks_rank(job->ranks) == 0;
    return keeps ? sw_rates_keep(job->settings->rates, &target, &job->rates) : SW_OK;
}

double sw_job_epochs(const struct sw_job *job) {
    const struct sw_settings *settings = job->settings;
    return (double)settings->steps * (double)(settings->batch_tokens / settings->seq) / (double)job->data.windows;
}

double sw_job_save_share(const struct sw_job *job) {
    const struct sw_job_price *price = &job->price;
    return price->save.cost_s / ((double)price->writes.save_every * price->prediction.plain.step_s);
}

double sw_job_run_s(const struct sw_job *job) {
    const struct sw_job_price *price = &job->price;
    const bool saves = price->may_save && price->writes.save_every > 0;
    const double saves_s = saves ? price->save.cost_s / (double)price->writes.save_every : 0.0;
    return (double)job->settings->steps * (price->prediction.plain.step_s + saves_s);
}

double sw_job_token_flops(const struct sw_job *job) {
    const struct sw_units *units = sw_model_get_units(job->model);
    return 6.0 * (double)sw_model_active_parameters(&job->config, units, sw_settings_parameters(job->settings, units));
}

/* Predicts the step of the plan on the described machine, with all of its assumed numbers at one bound. */
static sw_status predict_bound(const struct sw_job *job, sw_machine_bound bound, double *out_step_s) {
    struct sw_profile machine;
    struct sw_machine_rates rates;
    struct sw_simulation step;
    SW_TRY(sw_profile_describe(job->settings->machine, bound, &machine));
    SW_TRY(sw_profile_price(&machine, job->settings, &job->config, &rates));
    const sw_status status = sw_simulate(job->plan, SW_PROGRAM_UPDATE, false, &rates.rates, NULL, &step);
    if (status == SW_OK)
        *out_step_s = step.step_s;
    sw_rates_release(&rates);
    return status;
}

/* Simulating a plan of more ops takes seconds, more than the bounds are worth. */
#define MOST_BOUNDED_OPS 1000000

static sw_status predict_bounds(struct sw_job *job) {
    if (job->settings->machine == NULL || job->plan->program[SW_PROGRAM_UPDATE].op_count > MOST_BOUNDED_OPS)
        return SW_OK;
    sw_status status = predict_bound(job, SW_MACHINE_FAST, &job->price.fast_s);
    if (status == SW_OK)
        status = predict_bound(job, SW_MACHINE_SLOW, &job->price.slow_s);
    if (status != SW_ERR_ARG)
        return status;
    /* A bound at which no step can be timed says nothing, so only the expected step is shown. */
    job->price.fast_s = job->price.slow_s = 0.0;
    sw_error_clear();
    return SW_OK;
}

/* Predicts the step of the same plan as if each tensor group were within one node, to show what crossing nodes costs.
 */
static sw_status predict_groups_in_nodes(struct sw_job *job) {
    struct sw_node_ranks nodes = sw_rates_node_ranks(job->settings);
    struct sw_rates described = job->profile.rates, rates = job->rates.rates;
    struct sw_plan plan = *job->plan;
    struct sw_simulation step;
    if (!job->is_described || sw_settings_tensor_nodes(job->settings) < 2)
        return SW_OK;
    nodes.tensor_node_ranks = nodes.tensor_ranks;
    sw_rates_over_nodes(&job->profile.node, &nodes, &described);
    rates.in_group = described.in_group;
    plan.spec.tensor.node_ranks = 0;
    SW_TRY(sw_simulate(&plan, SW_PROGRAM_UPDATE, false, &rates, NULL, &step));
    job->price.groups_in_nodes_s = step.step_s;
    return SW_OK;
}

static sw_status predict_unfrozen(struct sw_job *unfrozen, struct sw_unfrozen *out) {
    const struct sw_rates *rates = &unfrozen->rates.rates;
    struct sw_prediction prediction;
    SW_TRY(sw_job_choose(unfrozen, SW_SEARCH_OPS));
    SW_TRY(sw_settings_complete_plan(unfrozen->plan));
    out->step_s = NAN;
    if (sw_rates_know_drives(rates) || !sw_plan_uses_nvme(unfrozen->plan)) {
        SW_TRY(sw_predict(unfrozen->plan, rates, &prediction));
        out->step_s = prediction.plain.step_s;
    }
    out->fits = true;
    for (int tier = SW_DEVICE; tier < SW_NVME; tier++)
        out->peak_bytes[tier] = unfrozen->plan->tier_bytes[tier];
    out->disk_bytes = sw_plan_disk_bytes(unfrozen->plan);
    out->step_write_bytes = sw_writes_of(unfrozen->plan, 0).step_bytes;
    return SW_OK;
}

/* Plans the same training with every unit trained, to show what freezing saves. */
static sw_status compare_with_unfrozen(struct sw_job *job) {
    struct sw_job_change change = {.settings = *job->settings};
    struct sw_job unfrozen;
    if (!sw_tuning_freezes(&job->settings->tuning))
        return SW_OK;
    change.settings.tuning = (struct sw_tuning){0};
    sw_status status = sw_job_with(job, &change, &unfrozen);
    if (status == SW_OK)
        status = predict_unfrozen(&unfrozen, &job->price.unfrozen);
    sw_job_release(&unfrozen);
    if (status != SW_ERR_BUDGET)
        return status;
    sw_error_clear();
    return SW_OK;
}

sw_status sw_job_predict(struct sw_job *job) {
    const struct sw_rates *rates = &job->rates.rates;
    struct sw_job_price *price = &job->price;
    const struct sw_rates_target target = sw_job_target(job);
    const bool together = sw_ranks_comm(job->ranks) != NULL && !takes_profile(job);
    if (job->rates.units == NULL) {
        SW_TRY(together ? find_rates_together(job, &target) : find_rates(job, &target));
        SW_TRY(sw_job_choose(job, SW_SEARCH_OPS));
    }
    SW_TRY(sw_settings_complete_plan(job->plan));
    SW_TRY(sw_predict(job->plan, rates, &price->prediction));
    SW_TRY(predict_bounds(job));
    SW_TRY(predict_groups_in_nodes(job));
    const struct sw_simulation *step = &price->prediction.plain;
    price->writes = sw_writes_of(job->plan, sw_writes_save_steps(&job->settings->save_every, step->step_s));
    price->may_save = price->writes.save_every > 0 && rates->write.bytes_per_s > 0.0;
    if (price->may_save)
        SW_TRY(sw_predict_save(job->plan, rates, price->writes.save_every, step, &price->save));
    return compare_with_unfrozen(job);
}

/* Finds the rates of a start; the profile is the one for the run's folder. open: a rank's plan has open choices, so
 * rates that are not kept are measured. uses_nvme: a rank's plan does. */
static sw_status find_at_start(struct sw_job *job, const char *folder, bool open, bool uses_nvme) {
    const struct sw_profile_need need = {.drives = !open || uses_nvme,
                                         .only_kept = !open,
                                         .why = ", to choose where state lives and updates run; it is kept"};
    SW_TRY(sw_ranks_agree_on_error(job->ranks, sw_job_place(job, folder)));
    SW_TRY(sw_job_find_profile(job, &need));
    return job->profile.known ? take_rates(job) : SW_OK;
}

/* Continues without rates if they cannot be found. Whatever is wrong stops the start later, or costs only the
 * prediction. */
static sw_status find_if_possible(struct sw_job *job, const char *folder, bool open) {
    bool uses_nvme;
    SW_TRY(holds_on_any(job, sw_plan_uses_nvme(job->plan), &uses_nvme));
    const sw_status status = find_at_start(job, folder, open, uses_nvme);
    if (status == SW_OK)
        return SW_OK;
    if (status == SW_ERR_STOPPED)
        return sw_fail(SW_ERR_STOPPED, "stopped while measuring this machine");
    if (open && sw_ranks_rank(job->ranks) == 0)
        sw_log_warn("keeping the default plan: measuring this machine failed: %s", sw_error_message(status));
    sw_ranks_forget_error(job->ranks);
    return SW_OK;
}

static void log_choice(const struct sw_plan *plan, const struct sw_search_prices *prices) {
    int64_t on_device = 0;
    char chosen[SW_TIME_TEXT_CHARS], other[SW_TIME_TEXT_CHARS];
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        on_device += sw_plan_updates_on_device(plan, u);
    for (int i = 0; i < prices->orders; i++)
        if (prices->order[i].group == plan->spec.group)
            sw_log_info("order: %lld of %lld micro-batches pass through a unit before the next; predicted step %s",
                        (long long)plan->spec.group, (long long)plan->spec.micro_batches,
                        sw_format_seconds(fmin(prices->order[i].step_s, prices->order[i].chosen_s), chosen));
    if (prices->placement.known && prices->placement.chosen_s < prices->placement.usual_s)
        sw_log_info("placement: predicted step %s, %s as usual", sw_format_seconds(prices->placement.chosen_s, chosen),
                    sw_format_seconds(prices->placement.usual_s, other));
    if (prices->update.known)
        sw_log_info("updates of %lld of %lld units run on the device: predicted step %s, %s with all on the host",
                    (long long)on_device, (long long)plan->spec.units->count,
                    sw_format_seconds(prices->update.chosen_s, chosen),
                    sw_format_seconds(prices->update.host_s, other));
}

static bool rates_are_enough(const struct sw_job *job) {
    return job->rates.units != NULL && (!sw_plan_uses_nvme(job->plan) || sw_rates_know_drives(&job->rates.rates));
}

/* Finds rates and makes the open choices by them: on all ranks if choices are open on any. */
static sw_status choose_at_start(struct sw_job *job, const char *folder) {
    bool open, lacks_rates;
    SW_TRY(holds_on_any(job, sw_plan_choice_is_open(job->settings, &job->devices, job->plan), &open));
    SW_TRY(find_if_possible(job, folder, open));
    SW_TRY(holds_on_any(job, !rates_are_enough(job), &lacks_rates));
    if (!open || lacks_rates)
        return SW_OK;
    SW_TRY(sw_ranks_agree_on_error(job->ranks, sw_job_choose(job, SW_SEARCH_OPS)));
    log_choice(job->plan, &job->price.choices);
    return commit_alike(job);
}

/* Makes the plan with chunks twice as large, in the order that was chosen. */
static sw_status double_chunks(struct sw_job *job) {
    sw_plan_destroy(job->plan);
    job->plan = NULL;
    job->settings->chunk_grains *= 2;
    return sw_settings_outline(job->settings, job->model, NULL, &job->plan);
}

/* Chunks are not stored, so a resume whose plan has too many ops takes larger ones, the same on all ranks. */
static sw_status complete(struct sw_job *job) {
    struct sw_settings *settings = job->settings;
    const int64_t given = settings->chunk_grains;
    for (;;) {
        const sw_status status = sw_settings_complete_plan(job->plan);
        int64_t holds = status != SW_ERR_ARG;
        SW_TRY(sw_ranks_least(job->ranks, &holds, 1));
        if (holds == 1 || !settings->chunk_may_grow || settings->chunk_grains > SW_MOST_CHUNK_GRAINS / 2) {
            if (status == SW_OK && settings->chunk_grains > given)
                sw_log_info("chunks have %lld grains, as chunks of %lld make more operations than a plan may have",
                            (long long)settings->chunk_grains, (long long)given);
            return sw_ranks_agree_on_error(job->ranks, status);
        }
        sw_error_clear();
        SW_TRY(sw_ranks_agree_on_error(job->ranks, double_chunks(job)));
    }
}

/* Predicts on rank 0 the plan's steps, and whether narrower state would help. A run can do without the forecast. */
static void forecast(struct sw_job *job, struct sw_forecast *out) {
    SW_HANDLES_ERRORS();
    if (sw_ranks_rank(job->ranks) != 0 || !rates_are_enough(job))
        return;
    sw_status status = sw_forecast_make(job->plan, &job->rates.rates, &job->settings->save_every, out);
    job->price.prediction.plain = out->step;
    if (status == SW_OK)
        status = sw_what_if_narrow(job, &out->narrow_step_s);
    out->source = job->profile.source;
    if (status == SW_OK)
        return;
    sw_log_warn("the step time is not predicted: %s", sw_error_message(status));
    sw_forecast_release(out);
}

sw_status sw_job_start(struct sw_job *job, const char *folder, struct sw_forecast *out) {
    *out = (struct sw_forecast){0};
    SW_TRY(choose_at_start(job, folder));
    SW_TRY(complete(job));
    forecast(job, out);
    return SW_OK;
}
