#include "train/plan_choice.h"

#include "core/log.h"
#include "offload/simulate.h"
#include "train/places.h"
#include "train/planned.h"

#include <math.h>

/* Several ranks' plans would have to fail and to be priced alike, so theirs are by layer. */
static bool order_is_open(const struct sw_settings *settings) {
    return sw_settings_order_is_auto(settings) && sw_settings_ranks(settings) == 1 &&
           sw_settings_micro_batches(settings) > 1;
}

/* All micro-batches, and powers of four below. Returns how many groups there are. */
static int groups_of(int64_t micros, int64_t out[SW_CHOICE_MOST_GROUPS]) {
    enum { FACTOR = 4 };
    int count = 0;
    int64_t power = 1;
    while (power <= micros / FACTOR)
        power *= FACTOR;
    for (out[count++] = micros; power > 0; power /= FACTOR)
        if (power < micros)
            out[count++] = power;
    return count;
}

/* As keep_lesser of the plan's: a change of fewer budgets, then of fewer bytes. */
static bool lacks_less(const struct sw_plan_lack *a, const struct sw_plan_lack *b) {
    return a->short_budgets != b->short_budgets ? a->short_budgets < b->short_budgets
                                                : a->missing_bytes < b->missing_bytes;
}

/* Where no group fits, the message is of the one that is nearest to it. */
sw_status sw_plan_fit(struct sw_settings *settings, const struct sw_model *model, struct sw_plan **out) {
    int64_t group[SW_CHOICE_MOST_GROUPS] = {0}, nearest = 0;
    struct sw_plan_lack lack, least = {.short_budgets = INT32_MAX};
    if (!order_is_open(settings))
        return sw_trainer_plan(settings, model, NULL, out);
    const int count = groups_of(sw_settings_micro_batches(settings), group);
    for (int i = 0; i < count; i++) {
        settings->group = group[i];
        const sw_status status = sw_trainer_plan(settings, model, &lack, out);
        if (status != SW_ERR_BUDGET)
            return status;
        sw_error_clear();
        if (lacks_less(&lack, &least)) {
            least = lack;
            nearest = group[i];
        }
    }
    settings->group = nearest;
    return sw_trainer_plan(settings, model, NULL, out);
}

/* What a change must save to be worth it: less than this is within what rates are known to. */
#define LEAST_SAVED 0.005

/* The step of a group's plan, which takes the place of the best where it is faster; infinite where it does not fit, or
 * takes drives that nobody measured. */
static sw_status try_group(struct sw_settings *settings, const struct sw_model *model, const struct sw_rates *rates,
                           double *out_s, double *best_s, struct sw_plan **best) {
    struct sw_plan *plan;
    struct sw_simulation step;
    *out_s = INFINITY;
    sw_status status = sw_trainer_plan(settings, model, NULL, &plan);
    if (status == SW_ERR_BUDGET) {
        sw_error_clear();
        return SW_OK;
    }
    SW_TRY(status);
    const bool priced = rates->read.bytes_per_s > 0.0 || !sw_plan_uses_nvme(plan);
    if (priced)
        status = sw_simulate(plan, SW_PROGRAM_UPDATE, false, rates, NULL, &step);
    if (priced && status == SW_OK)
        *out_s = step.step_s;
    if (!(*out_s < *best_s * (1.0 - LEAST_SAVED))) {
        sw_plan_destroy(plan);
        return status;
    }
    sw_plan_destroy(*best);
    *best = plan;
    *best_s = *out_s;
    return SW_OK;
}

static sw_status choose_order(struct sw_settings *settings, const struct sw_model *model, const struct sw_rates *rates,
                              struct sw_plan_prices *prices, struct sw_plan **plan) {
    int64_t group[SW_CHOICE_MOST_GROUPS] = {0}, best = settings->group;
    double best_s = INFINITY;
    prices->orders = groups_of(sw_settings_micro_batches(settings), group);
    for (int i = 0; i < prices->orders; i++) {
        const double before_s = best_s;
        settings->group = prices->order[i].group = group[i];
        SW_TRY(try_group(settings, model, rates, &prices->order[i].step_s, &best_s, plan));
        best = best_s < before_s ? group[i] : best;
    }
    settings->group = best;
    return SW_OK;
}

static bool update_is_open(const struct sw_settings *settings, const struct sw_plan *plan) {
    return settings->update == SW_UPDATE_AUTO && sw_plan_has_update_choice(plan);
}

bool sw_plan_choice_is_open(const struct sw_settings *settings, const struct sw_devices *devices,
                            const struct sw_plan *plan) {
    const bool may_pay = !sw_device_info(devices->compute).host_memory || settings->rates != NULL;
    return may_pay && (order_is_open(settings) || update_is_open(settings, plan));
}

sw_status sw_plan_choose(struct sw_settings *settings, const struct sw_model *model, const struct sw_rates *rates,
                         struct sw_plan_prices *out_prices, struct sw_plan **plan) {
    *out_prices = (struct sw_plan_prices){0};
    if (order_is_open(settings))
        SW_TRY(choose_order(settings, model, rates, out_prices, plan));
    if (!update_is_open(settings, *plan))
        return SW_OK;
    struct sw_plan *chosen;
    SW_TRY(sw_trainer_plan_by_price(settings, model, rates, &out_prices->update, &chosen));
    sw_plan_destroy(*plan);
    *plan = chosen;
    return SW_OK;
}

static sw_status measure(const struct sw_settings *settings, struct sw_model *model, const struct sw_devices *devices,
                         const char *folder, struct sw_ranks *ranks, const struct sw_plan *plan,
                         struct sw_machine_rates *out) {
    struct sw_places places;
    const struct sw_store_owner owner = sw_settings_owner(settings);
    SW_TRY(sw_places_of(&settings->nvme, folder, &owner, &places));
    const struct sw_rates_target target = {.settings = settings,
                                           .model = model,
                                           .devices = devices,
                                           .ring_chunks = plan->spec.ring_chunks,
                                           .directories = places.path,
                                           .directory_count = places.count,
                                           .ranks = ranks};
    const sw_status status = sw_rates_measure(&target, sw_plan_uses_nvme(plan), out);
    sw_places_release(&places);
    return status;
}

static void log_choice(const struct sw_plan *plan, const struct sw_plan_prices *prices) {
    int64_t on_device = 0;
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        on_device += sw_plan_updates_on_device(plan, u);
    for (int i = 0; i < prices->orders; i++)
        if (prices->order[i].group == plan->spec.group)
            sw_log_info("micro-batches go through a unit in groups of %lld of %lld: %.3f s a step predicted",
                        (long long)plan->spec.group, (long long)plan->spec.micro_batches, prices->order[i].step_s);
    if (prices->update.known)
        sw_log_info("updates of %lld of %lld units run on the device: %.3f s a step predicted, %.3f s with the host's "
                    "updates there",
                    (long long)on_device, (long long)plan->spec.units->count, prices->update.chosen_s,
                    prices->update.host_s);
}

/* Whatever rank 0 finds, all know. */
static sw_status measure_for_all(struct sw_ranks *ranks, const struct sw_settings *settings, struct sw_model *model,
                                 const struct sw_devices *devices, const char *folder, const struct sw_plan *plan,
                                 struct sw_machine_rates *out, bool *out_known) {
    *out_known = true;
    if (sw_ranks_rank(ranks) == 0) {
        sw_ranks_enter(ranks, "measuring", 0);
        const sw_status status = measure(settings, model, devices, folder, ranks, plan, out);
        sw_ranks_leave(ranks);
        *out_known = status == SW_OK;
        if (status != SW_OK)
            sw_log_warn("the plan stays as it was made, as nothing is priced: %s", sw_error_message(status));
        sw_error_clear();
    }
    SW_TRY(sw_ranks_spread(ranks, "whether there are rates", out_known, sizeof *out_known));
    if (!*out_known)
        return SW_OK;
    SW_TRY(sw_rates_spread(ranks, plan->spec.units->count, out));
    return sw_rates_measure_ranks(ranks, devices, sw_settings_type(settings), &out->rates);
}

sw_status sw_plan_choose_at_start(struct sw_settings *settings, struct sw_model *model,
                                  const struct sw_devices *devices, const char *folder, struct sw_ranks *ranks,
                                  struct sw_plan **plan) {
    struct sw_machine_rates rates = {0};
    struct sw_plan_prices prices;
    bool known;
    if (!sw_plan_choice_is_open(settings, devices, *plan))
        return SW_OK;
    sw_log_info("measuring this machine for what --order and --update leave open; naming both leaves that out");
    sw_status status = measure_for_all(ranks, settings, model, devices, folder, *plan, &rates, &known);
    if (status == SW_OK && known)
        status = sw_ranks_gate(ranks, sw_plan_choose(settings, model, &rates.rates, &prices, plan));
    sw_rates_release(&rates);
    SW_TRY(status);
    if (known)
        log_choice(*plan, &prices);
    return SW_OK;
}
