#include "job/planned.h"

#include "core/log.h"
#include "job/machine/algorithms.h"
#include "job/plan_advice.h"
#include "job/planned_ranks.h"

#include <math.h>

/* Opens this machine's devices, or the described ones with their memory. */
static sw_status open_devices(struct sw_planned *p) {
    if (p->settings.machine == NULL)
        return sw_settings_open_devices(&p->settings, &p->devices);
    SW_TRY(sw_described_machine_read(p->settings.machine, SW_MACHINE_EXPECTED, &p->described));
    SW_TRY(sw_described_machine_nodes(&p->described, p->settings.machine, sw_settings_ranks(&p->settings),
                                      &p->settings.nodes));
    SW_TRY(sw_described_machine_devices(&p->described, &p->devices));
    SW_TRY(sw_settings_prepare_device(&p->settings, p->devices.compute));
    const struct sw_device_info info = sw_devices_info(&p->devices);
    sw_settings_resolve_memory(&p->settings, &info, p->described.host_bytes);
    return SW_OK;
}

struct sw_model_shape sw_planned_shape(const struct sw_planned *p) {
    return (struct sw_model_shape){.type = sw_settings_type(&p->settings),
                                   .batch = p->settings.micro_batch,
                                   .seq = p->settings.seq,
                                   .tiles = p->settings.tiles,
                                   .tensor_ranks = (int)sw_settings_tensor_ranks(&p->settings),
                                   .tensor_rank = (int)sw_settings_tensor_rank(&p->settings),
                                   .optimizer = sw_settings_optimizer(&p->settings),
                                   .fp8 = sw_settings_fp8(&p->settings)};
}

/* Resolves the settings and opens the devices. */
static sw_status open_inputs(struct sw_planned *p) {
    SW_TRY(sw_config_load(p->settings.model, &p->config));
    SW_TRY(sw_settings_check(&p->settings));
    SW_TRY(sw_as_usage(sw_settings_check_tensor_ranks(&p->settings)));
    const struct sw_store_owner owner = sw_settings_owner(&p->settings);
    SW_TRY(sw_places_of(&p->settings.nvme, ".", &owner, &p->places));
    SW_TRY(open_devices(p));
    const struct sw_device_info info = sw_devices_info(&p->devices);
    SW_TRY(sw_settings_resolve(&p->settings, &p->config, &info));
    if (p->settings.data.count > 0)
        SW_TRY(p->measure_data(&p->settings, p->config.vocab, &p->data));
    return sw_settings_resolve_steps(&p->settings, p->data.windows);
}

static sw_status make_model(struct sw_planned *p) {
    const struct sw_model_shape given = sw_planned_shape(p);
    sw_plan_lower_micro_batch(&p->settings, &p->config, &given, p->devices.compute);
    const struct sw_model_shape shape = sw_planned_shape(p);
    SW_TRY(sw_model_create(&p->config, &shape, p->devices.compute, &p->model));
    sw_algorithms_keep(p->devices.compute);
    return SW_OK;
}

sw_status sw_planned_open(struct sw_planned *p) {
    SW_TRY(open_inputs(p));
    return make_model(p);
}

/* Chooses the size of tensor groups where it is open. */
static sw_status choose_groups(struct sw_planned *p) {
    const struct sw_tensor_question question = {.settings = &p->settings,
                                                .config = &p->config,
                                                .devices = &p->devices,
                                                .machine = p->settings.machine != NULL ? &p->described : NULL,
                                                .folder = ".",
                                                .ranks = p->ranks};
    return sw_tensor_is_open(&p->settings) ? sw_tensor_choose(&question, &p->tensor_prices) : SW_OK;
}

static sw_status fit(struct sw_planned *p) {
    const struct sw_model_shape shape = sw_planned_shape(p);
    return sw_plan_fit_or_advise(&p->settings, p->model, &shape, p->devices.compute, &p->plan);
}

/* Does on this rank what makes the plan, and compares with the others what all must have alike. */
static sw_status make_together(struct sw_planned *p) {
    SW_TRY(sw_planned_begin_ranks(p->ranks, &p->settings));
    SW_TRY(sw_ranks_agree_on_error(p->ranks, open_inputs(p)));
    sw_ranks_keep_to_node(p->ranks, sw_devices_info(&p->devices).bus);
    SW_TRY(sw_planned_agree(p->ranks, &p->settings, &p->config, &p->devices));
    SW_TRY(choose_groups(p));
    SW_TRY(sw_ranks_agree_on_error(p->ranks, make_model(p)));
    return sw_ranks_agree_on_error(p->ranks, fit(p));
}

sw_status sw_planned_make(struct sw_planned *p) {
    if (sw_ranks_comm(p->ranks) != NULL)
        return make_together(p);
    SW_TRY(open_inputs(p));
    SW_TRY(choose_groups(p));
    SW_TRY(make_model(p));
    return fit(p);
}

/* Measures this machine, or takes its profile. drives: with the rates of the drives. */
static sw_status find_here(struct sw_planned *p, const struct sw_rates_target *target, bool drives) {
    struct sw_profile_rates found;
    if (p->measures)
        return sw_rates_measure(target, drives, &p->rates);
    SW_TRY(sw_profile_rates(target, &(struct sw_profile_need){.drives = drives}, &found));
    p->rates = found.rates;
    p->source = found.source;
    return SW_OK;
}

/* A plan with nothing on NVMe needs the drives' rates only to predict what saves cost, so it does without them if they
 * cannot be measured. */
static sw_status find_rates_here(struct sw_planned *p, const struct sw_rates_target *target) {
    const bool uses = sw_plan_uses_nvme(p->plan), saves = sw_plan_saves(p->plan);
    const sw_status status = find_here(p, target, uses || saves);
    if (status == SW_OK || status == SW_ERR_STOPPED || uses || !saves)
        return status;
    sw_log_warn("the time of a save is not predicted, as the drives cannot be measured: %s", sw_error_message(status));
    sw_ranks_forget_error(p->ranks);
    return find_here(p, target, false);
}

static sw_status find_rates(struct sw_planned *p, const struct sw_rates_target *target) {
    if (p->settings.machine != NULL)
        return sw_described_machine_rates(&p->described, &p->settings, p->model, p->devices.compute, &p->rates);
    return p->settings.rates != NULL ? sw_rates_load(p->settings.rates, target, &p->rates) : find_rates_here(p, target);
}

/* Finds rates that no profile gives on all ranks at once, so that each measures its share of the cores, and gives all
 * the rates of rank 0. */
static sw_status find_rates_together(struct sw_planned *p, const struct sw_rates_target *target) {
    struct sw_rates *rates = &p->rates.rates;
    int64_t cores;
    const bool finds = sw_ranks_rank(p->ranks) == 0 || p->settings.rates == NULL;
    SW_TRY(sw_ranks_agree_on_error(p->ranks, finds ? find_rates(p, target) : SW_OK));
    if (sw_ranks_rank(p->ranks) > 0)
        sw_rates_release(&p->rates);
    SW_TRY(sw_rates_spread(p->ranks, p->plan->spec.units->count, &p->rates));
    SW_TRY(sw_rates_measure_ranks(p->ranks, &p->devices, sw_settings_type(&p->settings), rates));
    sw_rates_fit_nodes(&p->settings, rates);
    SW_TRY(sw_ranks_cores(p->ranks, &cores));
    rates->cores = (double)cores;
    return SW_OK;
}

static struct sw_rates_target target_of(const struct sw_planned *p) {
    return (struct sw_rates_target){.settings = &p->settings,
                                    .model = p->model,
                                    .devices = &p->devices,
                                    .ring_chunks = p->plan != NULL ? p->plan->spec.ring_chunks : 0,
                                    .directories = p->places.path,
                                    .directory_count = p->places.count,
                                    .ranks = p->measures ? NULL : p->ranks};
}

/* Tells whether this machine's profile gives the rates, to ranks as to a process alone. */
static bool takes_profile(const struct sw_planned *p) {
    return !p->measures && p->settings.machine == NULL && p->settings.rates == NULL;
}

sw_status sw_planned_keep_rates(const struct sw_planned *p) {
    const struct sw_rates_target target = target_of(p);
    const bool keeps = p->settings.rates != NULL && sw_ranks_rank(p->ranks) == 0;
    return keeps ? sw_rates_keep(p->settings.rates, &target, &p->rates) : SW_OK;
}

double sw_planned_save_share(const struct sw_planned *p) {
    return p->save.cost_s / ((double)p->writes.save_every * p->prediction.plain.step_s);
}

double sw_planned_run_s(const struct sw_planned *p) {
    const bool saves = p->may_save && p->writes.save_every > 0;
    const double saves_s = saves ? p->save.cost_s / (double)p->writes.save_every : 0.0;
    return (double)p->settings.steps * (p->prediction.plain.step_s + saves_s);
}

double sw_planned_token_flops(const struct sw_planned *p) {
    return 6.0 * (double)sw_settings_parameters(&p->settings, sw_model_get_units(p->model));
}

sw_status sw_planned_profile(const struct sw_planned *p, const struct sw_profile_need *need, struct sw_profile *out) {
    const struct sw_rates_target target = target_of(p);
    return sw_profile_find(&target, need, out);
}

/* Predicts the plan's step on the described machine with all of its assumed numbers at one bound. */
static sw_status predict_bound(const struct sw_planned *p, sw_machine_bound bound, double *out_step_s) {
    const struct sw_model_shape shape = sw_planned_shape(p);
    struct sw_described_machine machine;
    struct sw_machine_rates rates = {0};
    struct sw_simulation step;
    struct sw_device *device = NULL;
    struct sw_model *model = NULL;
    SW_TRY(sw_described_machine_read(p->settings.machine, bound, &machine));
    sw_status status = sw_device_open_described(&machine.device, &device);
    if (status == SW_OK)
        status = sw_settings_prepare_device(&p->settings, device);
    if (status == SW_OK)
        status = sw_model_create(&p->config, &shape, device, &model);
    if (status == SW_OK)
        status = sw_described_machine_rates(&machine, &p->settings, model, device, &rates);
    if (status == SW_OK)
        status = sw_simulate(p->plan, SW_PROGRAM_UPDATE, false, &rates.rates, NULL, &step);
    if (status == SW_OK)
        *out_step_s = step.step_s;
    sw_rates_release(&rates);
    sw_model_destroy(model);
    sw_device_close(device);
    return status;
}

/* A plan of more operations takes seconds to simulate, which the bounds are not worth. */
#define MOST_BOUNDED_OPS 1000000

static sw_status predict_bounds(struct sw_planned *p) {
    if (p->settings.machine == NULL || p->plan->program[SW_PROGRAM_UPDATE].op_count > MOST_BOUNDED_OPS)
        return SW_OK;
    sw_status status = predict_bound(p, SW_MACHINE_FAST, &p->fast_s);
    if (status == SW_OK)
        status = predict_bound(p, SW_MACHINE_SLOW, &p->slow_s);
    if (status != SW_ERR_ARG)
        return status;
    /* A bound so far off that no step can be timed says nothing, and the expected step stands alone. */
    p->fast_s = p->slow_s = 0.0;
    sw_error_clear();
    return SW_OK;
}

/* Predicts the step of the same plan as if each tensor group lay within one node, to show what its nodes cost. */
static sw_status predict_groups_in_nodes(struct sw_planned *p) {
    struct sw_node_ranks job = sw_described_node_ranks(&p->settings);
    struct sw_rates described = p->described.rates, rates = p->rates.rates;
    struct sw_plan plan = *p->plan;
    struct sw_simulation step;
    if (p->settings.machine == NULL || sw_settings_tensor_nodes(&p->settings) < 2)
        return SW_OK;
    job.tensor_node_ranks = job.tensor_ranks;
    sw_rates_over_nodes(&p->described.node, &job, &described);
    rates.in_group = described.in_group;
    plan.spec.tensor.node_ranks = 0;
    SW_TRY(sw_simulate(&plan, SW_PROGRAM_UPDATE, false, &rates, NULL, &step));
    p->groups_in_nodes_s = step.step_s;
    return SW_OK;
}

static sw_status predict_unfrozen(struct sw_planned *p, struct sw_settings *settings, struct sw_plan **plan) {
    struct sw_unfrozen *out = &p->unfrozen;
    struct sw_search_prices prices;
    struct sw_prediction prediction;
    if (sw_plan_choice_is_open(settings, &p->devices, *plan))
        SW_TRY(sw_plan_choose(settings, p->model, &p->rates.rates, SW_SEARCH_OPS, &prices, plan));
    SW_TRY(sw_settings_complete_plan(*plan));
    out->step_s = NAN;
    if (sw_rates_know_drives(&p->rates.rates) || !sw_plan_uses_nvme(*plan)) {
        SW_TRY(sw_predict(*plan, &p->rates.rates, &prediction));
        out->step_s = prediction.plain.step_s;
    }
    out->fits = true;
    for (int tier = SW_DEVICE; tier < SW_NVME; tier++)
        out->peak_bytes[tier] = (*plan)->tier_bytes[tier];
    out->disk_bytes = sw_plan_disk_bytes(*plan);
    out->step_write_bytes = sw_writes_of(*plan, 0).step_bytes;
    return SW_OK;
}

/* Plans the same training with every unit trained, to show what --freeze saves. */
static sw_status compare_with_unfrozen(struct sw_planned *p) {
    struct sw_settings settings = p->settings; /* only borrows its texts */
    struct sw_plan *plan = NULL;
    if (p->plan->spec.frozen_units == 0)
        return SW_OK;
    settings.freeze = NULL;
    sw_status status = sw_settings_outline(&settings, p->model, NULL, &plan);
    if (status == SW_OK)
        status = predict_unfrozen(p, &settings, &plan);
    sw_plan_destroy(plan);
    if (status != SW_ERR_BUDGET)
        return status;
    sw_error_clear();
    return SW_OK;
}

sw_status sw_planned_predict(struct sw_planned *p) {
    const struct sw_rates_target target = target_of(p);
    const bool together = sw_ranks_comm(p->ranks) != NULL && !takes_profile(p);
    SW_TRY(together ? find_rates_together(p, &target) : find_rates(p, &target));
    if (sw_plan_choice_is_open(&p->settings, &p->devices, p->plan))
        SW_TRY(sw_plan_choose(&p->settings, p->model, &p->rates.rates, SW_SEARCH_OPS, &p->prices, &p->plan));
    SW_TRY(sw_settings_complete_plan(p->plan));
    SW_TRY(sw_predict(p->plan, &p->rates.rates, &p->prediction));
    SW_TRY(predict_bounds(p));
    SW_TRY(predict_groups_in_nodes(p));
    p->writes = sw_writes_of(p->plan, sw_writes_save_steps(&p->settings.save_every, p->prediction.plain.step_s));
    p->may_save = p->writes.save_every > 0 && p->rates.rates.write.bytes_per_s > 0.0;
    if (p->may_save)
        SW_TRY(sw_predict_save(p->plan, &p->rates.rates, p->writes.save_every, &p->prediction.plain, &p->save));
    return compare_with_unfrozen(p);
}

void sw_planned_release(struct sw_planned *p) {
    sw_places_release(&p->places);
    sw_rates_release(&p->rates);
    sw_plan_destroy(p->plan);
    sw_model_destroy(p->model);
    if (!sw_ranks_hold(p->ranks, &p->devices))
        sw_devices_close(&p->devices);
}
