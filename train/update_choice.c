#include "train/update_choice.h"

#include "core/log.h"
#include "train/places.h"
#include "train/planned.h"

#include <math.h>

bool sw_update_choice_is_open(const struct sw_settings *settings, const struct sw_devices *devices,
                              const struct sw_plan *plan) {
    const bool may_pay = !sw_device_info(devices->compute).host_memory || settings->rates != NULL;
    return settings->update == SW_UPDATE_AUTO && may_pay && sw_plan_has_update_choice(plan);
}

sw_status sw_update_choose(const struct sw_settings *settings, const struct sw_model *model,
                           const struct sw_rates *rates, struct sw_update_prices *out_prices, struct sw_plan **plan) {
    struct sw_plan *chosen;
    SW_TRY(sw_trainer_plan_by_price(settings, model, rates, out_prices, &chosen));
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

static void log_choice(const struct sw_plan *plan, const struct sw_update_prices *prices) {
    int64_t on_device = 0;
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        on_device += sw_plan_updates_on_device(plan, u);
    sw_log_info("updates of %lld of %lld units run on the device: %.3f s a step predicted, %.3f s with the host's "
                "updates there",
                (long long)on_device, (long long)plan->spec.units->count, prices->chosen_s, prices->host_s);
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
            sw_log_warn("updates run on the host, as they are not priced: %s", sw_error_message(status));
        sw_error_clear();
    }
    SW_TRY(sw_ranks_spread(ranks, "whether there are rates", out_known, sizeof *out_known));
    if (!*out_known)
        return SW_OK;
    SW_TRY(sw_rates_spread(ranks, plan->spec.units->count, out));
    return sw_rates_measure_ranks(ranks, devices, sw_settings_type(settings), &out->rates);
}

sw_status sw_update_choose_at_start(const struct sw_settings *settings, struct sw_model *model,
                                    const struct sw_devices *devices, const char *folder, struct sw_ranks *ranks,
                                    struct sw_plan **plan) {
    struct sw_machine_rates rates = {0};
    struct sw_update_prices prices;
    bool known;
    if (!sw_update_choice_is_open(settings, devices, *plan))
        return SW_OK;
    sw_log_info("measuring this machine for where updates run; --update host or device leaves that out");
    sw_status status = measure_for_all(ranks, settings, model, devices, folder, *plan, &rates, &known);
    if (status == SW_OK && known)
        status = sw_ranks_gate(ranks, sw_update_choose(settings, model, &rates.rates, &prices, plan));
    sw_rates_release(&rates);
    SW_TRY(status);
    if (known)
        log_choice(*plan, &prices);
    return SW_OK;
}
