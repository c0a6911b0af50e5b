#include "job/profile_rates.h"

#include <string.h>

static sw_status price(const struct sw_rates_target *target, const struct sw_profile *profile,
                       struct sw_profile_rates *out) {
    const bool prices = sw_ranks_rank(target->ranks) == 0;
    SW_TRY(sw_ranks_agree_on_error(target->ranks, prices ? sw_profile_price(profile, target, &out->rates) : SW_OK));
    return sw_rates_spread(target->ranks, sw_model_get_units(target->model)->count, &out->rates);
}

sw_status sw_profile_rates(const struct sw_rates_target *target, const struct sw_profile_need *need,
                           struct sw_profile_rates *out) {
    struct sw_profile profile;
    *out = (struct sw_profile_rates){0};
    SW_TRY(sw_profile_find(target, need, &profile));
    const sw_status status = profile.known ? price(target, &profile, out) : SW_OK;
    if (status != SW_OK)
        sw_rates_release(&out->rates);
    out->known = profile.known;
    out->source.doubted = profile.doubted;
    memcpy(out->source.machine_path, profile.path, sizeof profile.path);
    memcpy(out->source.drives_path, profile.drives_path, sizeof profile.drives_path);
    sw_profile_release(&profile);
    return status;
}
