/* Searches what rises first, and how far: from the best so far, changes of one thing at a time, until none is cheaper.
 */
#include "core/size.h"
#include "offload/plan/plan_private.h"
#include "offload/simulate/search_private.h"

#include <string.h>

/* The parts of a share that pairs of changes give up. */
enum { PARTS = 2 };

/* Moves a rise forward to another position. */
static void promote(struct sw_rise_order *order, int from, int to) {
    const sw_rise rise = order->rise[from];
    memmove(&order->rise[to + 1], &order->rise[to], (size_t)(from - to) * sizeof order->rise[0]);
    order->rise[to] = rise;
}

/* Tries the best with one change, and tells whether it is better. */
static sw_status try_next(struct sw_search *s, bool *out_better) {
    const double before_s = s->best_s;
    double step_s;
    SW_TRY(sw_search_try(s, false, &step_s));
    *out_better |= s->best_s < before_s;
    return SW_OK;
}

static bool may_go_on(const struct sw_search *s) {
    return s->ops < s->most_ops;
}

/* Tries each rise with less and with more units. */
static sw_status try_shares(struct sw_search *s, bool *out_better) {
    const double unit = 1.0 / (double)s->spec.units->count;
    for (int rise = 0; rise < SW_RISES; rise++) {
        const double share = sw_plan_risen_share(s->plan, (sw_rise)rise);
        const double tried[] = {1.0, 0.0, share / 2, share - unit, share + unit};
        for (size_t i = 0; i < sizeof tried / sizeof tried[0] && may_go_on(s); i++) {
            if (tried[i] < 0.0 || tried[i] > 1.0)
                continue;
            sw_search_copy(s, &s->best, &s->next);
            s->next.rises.share[rise] = tried[i];
            SW_TRY(try_next(s, out_better));
        }
    }
    return SW_OK;
}

/* Tries each rise earlier than it is. */
static sw_status try_orders(struct sw_search *s, bool *out_better) {
    for (int from = 1; from < SW_RISES; from++)
        for (int to = 0; to < from && may_go_on(s); to++) {
            sw_search_copy(s, &s->best, &s->next);
            promote(&s->next.rises, from, to);
            SW_TRY(try_next(s, out_better));
        }
    return SW_OK;
}

/* Tries to give the room of some units of one rise to another, which alone may gain nothing. */
static sw_status try_pairs(struct sw_search *s, bool *out_better) {
    for (int less = 0; less < SW_RISES; less++)
        for (int first = 0; first < SW_RISES; first++)
            for (int parts = 0; parts < PARTS && may_go_on(s); parts++) {
                if (s->best.rises.rise[first] == (sw_rise)less)
                    continue;
                sw_search_copy(s, &s->best, &s->next);
                s->next.rises.share[less] = sw_plan_risen_share(s->plan, (sw_rise)less) * parts / PARTS;
                s->next.rises.share[s->next.rises.rise[first]] = 1.0;
                promote(&s->next.rises, first, 0);
                SW_TRY(try_next(s, out_better));
            }
    return SW_OK;
}

sw_status sw_search_placement(struct sw_search *s, struct sw_climb how) {
    bool better = true;
    while (better && may_go_on(s)) {
        better = false;
        if (how.orders_first)
            SW_TRY(try_orders(s, &better));
        SW_TRY(try_shares(s, &better));
        if (!how.orders_first)
            SW_TRY(try_orders(s, &better));
        if (!better && how.pairs)
            SW_TRY(try_pairs(s, &better));
    }
    return SW_OK;
}
