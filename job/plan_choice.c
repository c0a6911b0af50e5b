#include "job/plan_choice.h"

#include "core/log.h"
#include "job/planned.h"
#include "job/settings_plan.h"

#include <math.h>

/* With several ranks the order is by layer: all ranks would have to find the same groups too large and the same prices.
 */
static bool order_is_open(const struct sw_settings *settings) {
    return sw_settings_order_is_auto(settings) && sw_settings_ranks(settings) == 1 &&
           sw_settings_micro_batches(settings) > 1;
}

/* Lists the group sizes to try: all micro-batches, and the powers of four below. Returns their number. */
static int groups_of(int64_t micros, int64_t out[SW_SEARCH_MOST_GROUPS]) {
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

/* Compares like keep_lesser of the plan: first the number of budgets that are too small, then the missing bytes. */
static bool lacks_less(const struct sw_plan_lack *a, const struct sw_plan_lack *b) {
    return a->short_budgets != b->short_budgets ? a->short_budgets < b->short_budgets
                                                : a->missing_bytes < b->missing_bytes;
}

/* If no group fits, the error is that of the group that lacks least. */
sw_status sw_plan_fit(struct sw_settings *settings, const struct sw_model *model, struct sw_plan **out) {
    int64_t group[SW_SEARCH_MOST_GROUPS] = {0}, nearest = 0;
    struct sw_plan_lack lack, least = {.short_budgets = INT32_MAX};
    if (!order_is_open(settings))
        return sw_settings_outline(settings, model, NULL, out);
    const int count = groups_of(sw_settings_micro_batches(settings), group);
    for (int i = 0; i < count; i++) {
        settings->group = group[i];
        const sw_status status = sw_settings_outline(settings, model, &lack, out);
        if (status != SW_ERR_BUDGET)
            return status;
        sw_error_clear();
        if (lacks_less(&lack, &least)) {
            least = lack;
            nearest = group[i];
        }
    }
    settings->group = nearest;
    return sw_settings_outline(settings, model, NULL, out);
}

/* The largest chunks that are tried are so many times as large as those that settings resolve to. */
enum { MOST_CHUNK_FACTOR = 4 };

static bool update_is_open(const struct sw_settings *settings, const struct sw_plan *plan) {
    return settings->update == SW_UPDATE_AUTO && sw_plan_has_update_choice(plan);
}

bool sw_plan_choice_is_open(const struct sw_settings *settings, const struct sw_devices *devices,
                            const struct sw_plan *plan) {
    const bool may_pay = !sw_device_info(devices->compute).host_memory || settings->rates != NULL;
    const bool any = order_is_open(settings) || update_is_open(settings, plan) || sw_plan_has_placement_choice(plan);
    return may_pay && any;
}

sw_status sw_plan_choose(struct sw_settings *settings, const struct sw_model *model, const struct sw_rates *rates,
                         int64_t most_ops, struct sw_search_prices *out_prices, struct sw_plan **plan) {
    struct sw_search_open open = {.updates = update_is_open(settings, *plan),
                                  .placement = true,
                                  .most_ops = most_ops,
                                  .chunk_factor = settings->auto_chunk_grains > 0 ? MOST_CHUNK_FACTOR : 1};
    while (open.chunk_factor > 1 && settings->chunk_grains > SW_MOST_CHUNK_GRAINS / open.chunk_factor)
        open.chunk_factor /= 2;
    struct sw_plan *chosen;
    if (order_is_open(settings))
        open.groups = groups_of(sw_settings_micro_batches(settings), open.group);
    SW_TRY(sw_settings_search(settings, model, &open, rates, out_prices, &chosen));
    sw_plan_destroy(*plan);
    *plan = chosen;
    if (open.groups > 0)
        settings->group = chosen->spec.group;
    settings->chunk_grains = chosen->spec.chunk_grains;
    return SW_OK;
}
