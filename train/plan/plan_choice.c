#include "train/plan/plan_choice.h"

#include "offload/simulate/outline_price.h"
#include "train/plan/settings_plan.h"

#include <math.h>

/* With several ranks the order is by layer: all ranks would have to find the same groups too large and the same prices.
 */
static bool order_is_open(const struct sw_settings *settings) {
    return sw_settings_order_is_auto(settings) && sw_settings_ranks(settings) == 1 &&
           sw_settings_micro_batches(settings) > 1;
}

/* Lists the group sizes to try: all micro-batches, and the powers of four below. Returns their number. */
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

/* Compares like keep_lesser of the plan: first the number of budgets that are too small, then the missing bytes. */
static bool lacks_less(const struct sw_plan_lack *a, const struct sw_plan_lack *b) {
    return a->short_budgets != b->short_budgets ? a->short_budgets < b->short_budgets
                                                : a->missing_bytes < b->missing_bytes;
}

/* If no group fits, the error is that of the group that lacks least. */
sw_status sw_plan_fit(struct sw_settings *settings, const struct sw_model *model, struct sw_plan **out) {
    int64_t group[SW_CHOICE_MOST_GROUPS] = {0}, nearest = 0;
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

/* The share of the step that a change must save: less is within the error of the rates. */
#define LEAST_SAVED 0.005

/* A group that is slower than the best by more than this share is not searched for cheaper places of its updates. */
#define MOST_MADE_UP 0.08

/* The cheapest plan so far, and the groups that it is compared with. */
struct choice {
    struct sw_settings *settings; /* its group is set to the one that is tried */
    const struct sw_model *model;
    const struct sw_rates *rates;
    struct sw_group_price *price; /* `count` entries */
    int count, best;
    double best_s;
    double nearest_s; /* the least step_s of all groups, with updates on the host */
    struct sw_plan **plan;
};

/* Returns the busiest time of the other lanes, which moving updates does not shorten. */
static double busiest_other_lane(const struct sw_simulation *step) {
    double most = 0.0;
    for (int lane = 0; lane < SW_LANES; lane++)
        if (lane != SW_LANE_UPDATE)
            most = fmax(most, step->lane_busy_s[lane]);
    return most;
}

/* Tells whether a group can neither be the cheapest with updates on the host nor be worth the search for cheaper places
 * (next_to_search), because one lane alone takes too long, or its plan would have too many ops. */
static sw_status rule_out(const struct choice *c, const struct sw_plan *plan, struct sw_group_price *price, bool *out) {
    const struct sw_step_bound enough = {.step_s = c->best_s * (1.0 + MOST_MADE_UP),
                                         .others_s = c->best_s * (1.0 - LEAST_SAVED)};
    struct sw_step_bound bound;
    SW_TRY(sw_outline_bound(plan, c->rates, enough, &bound, out));
    price->too_long = !*out && sw_outline_is_too_long(plan, bound.ops);
    if (*out)
        price->bound_s = bound.step_s;
    *out = *out || price->too_long;
    return SW_OK;
}

static sw_status price_plan(const struct choice *c, const struct sw_plan *plan, struct sw_group_price *price) {
    struct sw_simulation step;
    int64_t ops;
    bool ruled_out;
    if (sw_plan_uses_nvme(plan) && !(c->rates->read.bytes_per_s > 0.0))
        return SW_OK;
    SW_TRY(rule_out(c, plan, price, &ruled_out));
    if (ruled_out)
        return SW_OK;
    SW_TRY(sw_outline_simulate(plan, c->rates, &step, &ops));
    price->step_s = step.step_s;
    price->least_s = busiest_other_lane(&step);
    return SW_OK;
}

static void take_plan(struct choice *c, int group, double step_s, struct sw_plan *plan) {
    sw_plan_destroy(*c->plan);
    *c->plan = plan;
    c->best = group;
    c->best_s = step_s;
}

/* Prices a group, and takes its plan if it is faster than the best. */
static sw_status try_group(struct choice *c, int group) {
    struct sw_group_price *price = &c->price[group];
    struct sw_plan *plan;
    c->settings->group = price->group;
    sw_status status = sw_settings_outline(c->settings, c->model, NULL, &plan);
    if (status == SW_ERR_BUDGET) {
        sw_error_clear();
        return SW_OK;
    }
    SW_TRY(status);
    status = price_plan(c, plan, price);
    if (status == SW_OK && price->step_s < c->best_s * (1.0 - LEAST_SAVED))
        take_plan(c, group, price->step_s, plan);
    else
        sw_plan_destroy(plan);
    return status;
}

static sw_status choose_order(struct choice *c) {
    int64_t group[SW_CHOICE_MOST_GROUPS] = {0};
    c->count = groups_of(sw_settings_micro_batches(c->settings), group);
    for (int i = 0; i < c->count; i++) {
        c->price[i] = (struct sw_group_price){
            .group = group[i], .step_s = INFINITY, .least_s = INFINITY, .bound_s = INFINITY, .chosen_s = INFINITY};
        SW_TRY(try_group(c, i));
    }
    return SW_OK;
}

/* Returns the next group to search: the best one first, then those that may become faster, least lower bound first; -1
 * after the last. */
static int next_to_search(const struct choice *c) {
    int next = -1;
    if (!c->price[c->best].searched)
        return c->best;
    for (int i = 0; i < c->count; i++)
        if (!c->price[i].searched && c->price[i].least_s < c->best_s * (1.0 - LEAST_SAVED) &&
            c->price[i].step_s < c->nearest_s * (1.0 + MOST_MADE_UP) &&
            (next < 0 || c->price[i].least_s < c->price[next].least_s))
            next = i;
    return next;
}

/* Searches where updates run, for each group that may gain by it. */
static sw_status choose_updates(struct choice *c, struct sw_update_prices *out) {
    c->nearest_s = c->best_s;
    for (int i = next_to_search(c); i >= 0; i = next_to_search(c)) {
        struct sw_update_prices prices;
        struct sw_plan *plan;
        c->price[i].searched = true;
        c->settings->group = c->price[i].group;
        SW_TRY(sw_settings_outline_by_price(c->settings, c->model, c->rates, &prices, &plan));
        const double step_s = prices.known ? prices.chosen_s : prices.host_s;
        c->price[i].chosen_s = step_s;
        if (i != c->best && step_s >= c->best_s * (1.0 - LEAST_SAVED)) {
            sw_plan_destroy(plan);
            continue;
        }
        take_plan(c, i, step_s, plan);
        *out = prices;
    }
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
    *out_prices = (struct sw_plan_prices){.order[0].group = settings->group};
    struct choice c = {.settings = settings,
                       .model = model,
                       .rates = rates,
                       .price = out_prices->order,
                       .count = 1,
                       .best_s = INFINITY,
                       .plan = plan};
    const bool open = order_is_open(settings);
    sw_status status = open ? choose_order(&c) : SW_OK;
    if (status == SW_OK && update_is_open(settings, *plan))
        status = choose_updates(&c, &out_prices->update);
    out_prices->orders = open ? c.count : 0;
    settings->group = c.price[c.best].group;
    return status;
}
