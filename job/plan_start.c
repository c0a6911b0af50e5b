#include "job/plan_start.h"

#include "core/error_scope.h"
#include "core/log.h"
#include "core/number.h"
#include "job/profile.h"
#include "job/settings/places.h"
#include "job/settings_plan.h"
#include "job/what_if.h"

#include <math.h>
#include <string.h>

/* Finds rates. open: something is open, so rates that are not kept are measured. */
static sw_status find(const struct sw_plan_start *start, const struct sw_plan *plan, bool open,
                      struct sw_profile_rates *out) {
    const struct sw_profile_need need = {.drives = !open || sw_plan_uses_nvme(plan),
                                         .only_kept = !open,
                                         .why = ", to choose where state lives and updates run; it is kept"};
    const struct sw_store_owner owner = sw_settings_owner(start->settings);
    struct sw_places places;
    SW_TRY(sw_ranks_agree_on_error(start->ranks, sw_places_of(&start->settings->nvme, start->folder, &owner, &places)));
    const struct sw_rates_target target = {.settings = start->settings,
                                           .model = start->model,
                                           .devices = start->devices,
                                           .ring_chunks = plan->spec.ring_chunks,
                                           .directories = places.path,
                                           .directory_count = places.count,
                                           .ranks = start->ranks};
    const sw_status status = sw_profile_rates(&target, &need, out);
    sw_places_release(&places);
    return status;
}

/* Does without rates where they cannot be found: if nothing is open, what is wrong stops the start later, or costs it
 * the prediction alone. */
static sw_status find_if_possible(const struct sw_plan_start *start, const struct sw_plan *plan, bool open,
                                  struct sw_profile_rates *out) {
    const sw_status status = find(start, plan, open, out);
    if (status == SW_OK)
        return SW_OK;
    if (status == SW_ERR_STOPPED)
        return sw_fail(SW_ERR_STOPPED, "stopped while measuring this machine");
    if (open && sw_ranks_rank(start->ranks) == 0)
        sw_log_warn("keeping the default plan: measuring this machine failed: %s", sw_error_message(status));
    sw_ranks_forget_error(start->ranks);
    out->known = false;
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

/* Finds rates and chooses by them what is open. */
static sw_status choose_at_start(const struct sw_plan_start *start, struct sw_plan **plan,
                                 struct sw_profile_rates *found) {
    const bool open = sw_plan_choice_is_open(start->settings, start->devices, *plan);
    struct sw_search_prices prices;
    SW_TRY(find_if_possible(start, *plan, open, found));
    if (!found->known || !open || (sw_plan_uses_nvme(*plan) && !sw_rates_know_drives(&found->rates.rates)))
        return SW_OK;
    SW_TRY(sw_ranks_agree_on_error(start->ranks, sw_plan_choose(start->settings, start->model, &found->rates.rates,
                                                                SW_SEARCH_OPS, &prices, plan)));
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

/* Predicts whether narrower state would help, as plan does. */
static sw_status forecast_narrow(const struct sw_plan_start *start, struct sw_plan *plan,
                                 const struct sw_profile_rates *found, struct sw_forecast *out) {
    const struct sw_planned planned = {.settings = *start->settings,
                                       .config = *sw_model_get_config(start->model),
                                       .devices = *start->devices,
                                       .model = start->model,
                                       .plan = plan,
                                       .rates = found->rates,
                                       .prediction.plain = out->step};
    return sw_what_if_narrow(&planned, &out->narrow_step_s);
}

/* Predicts the plan's steps on rank 0. A run can do without. */
static void forecast(const struct sw_plan_start *start, struct sw_plan *plan, const struct sw_profile_rates *found,
                     struct sw_forecast *out) {
    SW_HANDLES_ERRORS();
    const struct sw_rates *rates = &found->rates.rates;
    if (sw_ranks_rank(start->ranks) != 0 || !found->known || (sw_plan_uses_nvme(plan) && !sw_rates_know_drives(rates)))
        return;
    sw_status status = sw_forecast_make(plan, rates, &start->settings->save_every, out);
    if (status == SW_OK)
        status = forecast_narrow(start, plan, found, out);
    out->source = found->source;
    if (status == SW_OK)
        return;
    sw_log_warn("the step time is not predicted: %s", sw_error_message(status));
    sw_forecast_release(out);
}

sw_status sw_plan_choose_at_start(const struct sw_plan_start *start, struct sw_plan **plan, struct sw_forecast *out) {
    struct sw_profile_rates found = {0};
    *out = (struct sw_forecast){0};
    sw_status status = choose_at_start(start, plan, &found);
    if (status == SW_OK)
        status = complete(start->settings, start->model, start->ranks, plan);
    if (status == SW_OK)
        forecast(start, *plan, &found, out);
    sw_rates_release(&found.rates);
    return status;
}
