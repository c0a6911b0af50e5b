#include "train/plan/plan_start.h"

#include "core/log.h"
#include "train/plan/profile.h"
#include "train/plan/settings_plan.h"
#include "train/settings/places.h"

#include <math.h>

/* Takes the rates of this machine's profile. Several ranks, which share the machine's cores, measure instead. */
static sw_status find(const struct sw_rates_target *target, const struct sw_profile_need *need,
                      struct sw_machine_rates *out, bool *out_known) {
    struct sw_profile profile;
    if (sw_ranks_comm(target->ranks) != NULL) {
        *out_known = !need->only_kept;
        return *out_known ? sw_rates_measure(target, need->drives, out) : SW_OK;
    }
    SW_TRY(sw_profile_find(target, need, &profile));
    *out_known = profile.known;
    const sw_status status = profile.known ? sw_profile_price(&profile, target, out) : SW_OK;
    sw_profile_release(&profile);
    return status;
}

/* Finds rates on rank 0. open: rates that are not kept are measured. */
static sw_status find_first(const struct sw_plan_start *start, const struct sw_plan *plan, bool open,
                            struct sw_machine_rates *out, bool *out_known) {
    const struct sw_profile_need need = {.drives = !open || sw_plan_uses_nvme(plan),
                                         .only_kept = !open,
                                         .why = ", to choose where state lives and updates run; it is kept"};
    const struct sw_store_owner owner = sw_settings_owner(start->settings);
    struct sw_places places;
    SW_TRY(sw_places_of(&start->settings->nvme, start->folder, &owner, &places));
    const struct sw_rates_target target = {.settings = start->settings,
                                           .model = start->model,
                                           .devices = start->devices,
                                           .ring_chunks = plan->spec.ring_chunks,
                                           .directories = places.path,
                                           .directory_count = places.count,
                                           .ranks = start->ranks};
    const sw_status status = find(&target, &need, out, out_known);
    sw_places_release(&places);
    return status;
}

static void log_choice(const struct sw_plan *plan, const struct sw_search_prices *prices) {
    int64_t on_device = 0;
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        on_device += sw_plan_updates_on_device(plan, u);
    for (int i = 0; i < prices->orders; i++)
        if (prices->order[i].group == plan->spec.group)
            sw_log_info("order: %lld of %lld micro-batches pass through a unit before the next; predicted step %.3g s",
                        (long long)plan->spec.group, (long long)plan->spec.micro_batches,
                        fmin(prices->order[i].step_s, prices->order[i].chosen_s));
    if (prices->placement.known && prices->placement.chosen_s < prices->placement.usual_s)
        sw_log_info("placement: predicted step %.3g s, %.3g s as usual", prices->placement.chosen_s,
                    prices->placement.usual_s);
    if (prices->update.known)
        sw_log_info(
            "updates of %lld of %lld units run on the device: predicted step %.3g s, %.3g s with all on the host",
            (long long)on_device, (long long)plan->spec.units->count, prices->update.chosen_s, prices->update.host_s);
}

/* Finds rates on rank 0 and gives them, or the fact that there are none, to all ranks. */
static sw_status find_for_all(const struct sw_plan_start *start, const struct sw_plan *plan, bool open,
                              struct sw_machine_rates *out, bool *out_known) {
    struct sw_ranks *ranks = start->ranks;
    bool stopped = false;
    *out_known = false;
    if (sw_ranks_rank(ranks) == 0) {
        sw_ranks_enter(ranks, "measuring", 0);
        const sw_status status = find_first(start, plan, open, out, out_known);
        sw_ranks_leave(ranks);
        *out_known = *out_known && status == SW_OK;
        stopped = status == SW_ERR_STOPPED;
        /* Where nothing is open, what is wrong here stops the start later, or costs it the prediction alone. */
        if (status != SW_OK && !stopped && open)
            sw_log_warn("keeping the default plan: measuring this machine failed: %s", sw_error_message(status));
        sw_error_clear();
    }
    SW_TRY(sw_ranks_agree_on_error(ranks,
                                   stopped ? sw_fail(SW_ERR_STOPPED, "stopped while measuring this machine") : SW_OK));
    SW_TRY(sw_ranks_spread(ranks, "whether there are rates", out_known, sizeof *out_known));
    if (!*out_known)
        return SW_OK;
    SW_TRY(sw_rates_spread(ranks, plan->spec.units->count, out));
    return sw_rates_measure_ranks(ranks, start->devices, sw_settings_type(start->settings), &out->rates);
}

/* Finds rates, which the caller releases, and chooses by them what is open. */
static sw_status choose_at_start(const struct sw_plan_start *start, struct sw_plan **plan,
                                 struct sw_machine_rates *rates, bool *out_known) {
    const bool open = sw_plan_choice_is_open(start->settings, start->devices, *plan);
    struct sw_search_prices prices;
    SW_TRY(find_for_all(start, *plan, open, rates, out_known));
    if (!*out_known || !open || (sw_plan_uses_nvme(*plan) && !sw_rates_know_drives(&rates->rates)))
        return SW_OK;
    SW_TRY(sw_ranks_agree_on_error(start->ranks,
                                   sw_plan_choose(start->settings, start->model, &rates->rates, &prices, plan)));
    log_choice(*plan, &prices);
    return SW_OK;
}

/* The plan of chunks twice as large, in the order that was chosen. */
static sw_status double_chunks(struct sw_settings *settings, const struct sw_model *model, struct sw_plan **plan) {
    sw_plan_destroy(*plan);
    *plan = NULL;
    settings->chunk_grains *= 2;
    return sw_settings_outline(settings, model, NULL, plan);
}

/* Chunks are no part of what a run has stored, so a resume whose plan has too many ops takes larger ones, on all ranks
 * the same. */
static sw_status complete(struct sw_settings *settings, const struct sw_model *model, struct sw_ranks *ranks,
                          struct sw_plan **plan) {
    const int64_t given = settings->chunk_grains;
    for (;;) {
        const sw_status status = sw_settings_complete_plan(*plan);
        int64_t holds = status != SW_ERR_ARG;
        SW_TRY(sw_ranks_least(ranks, &holds, 1));
        if (holds == 1 || !settings->chunk_may_grow || settings->chunk_grains > SW_MOST_CHUNK_GRAINS / 2) {
            if (status == SW_OK && settings->chunk_grains > given)
                sw_log_info("chunks have %lld grains, as chunks of %lld make more operations than a plan may have",
                            (long long)settings->chunk_grains, (long long)given);
            return sw_ranks_agree_on_error(ranks, status);
        }
        sw_error_clear();
        SW_TRY(sw_ranks_agree_on_error(ranks, double_chunks(settings, model, plan)));
    }
}

/* Predicts the plan's steps on rank 0. A run can do without. */
static void forecast(const struct sw_plan_start *start, const struct sw_plan *plan, const struct sw_rates *rates,
                     struct sw_forecast *out) {
    const struct sw_option_every *save_every = &start->settings->save_every;
    const sw_status status = sw_ranks_rank(start->ranks) == 0 ? sw_forecast_make(plan, rates, save_every, out) : SW_OK;
    if (status == SW_OK)
        return;
    sw_log_warn("the step time is not predicted: %s", sw_error_message(status));
    sw_error_clear();
    sw_forecast_release(out);
}

sw_status sw_plan_choose_at_start(const struct sw_plan_start *start, struct sw_plan **plan, struct sw_forecast *out) {
    struct sw_machine_rates rates = {0};
    bool known;
    *out = (struct sw_forecast){0};
    sw_status status = choose_at_start(start, plan, &rates, &known);
    if (status == SW_OK)
        status = complete(start->settings, start->model, start->ranks, plan);
    if (status == SW_OK && known && (sw_rates_know_drives(&rates.rates) || !sw_plan_uses_nvme(*plan)))
        forecast(start, *plan, &rates.rates, out);
    sw_rates_release(&rates);
    return status;
}
