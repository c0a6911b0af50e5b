/* Searches where updates run: shares of both sides, and runs of neighbours. */
#include "core/size.h"
#include "offload/simulate/search_private.h"

/* The parts of which shares are tried, and the most runs of neighbours. */
enum { EVENLY = 8, MOST_RUNS = 32 };

void sw_search_stream_all(struct sw_search *s, bool streams) {
    sw_search_copy(s, &s->best, &s->next);
    for (int64_t u = 0; u < s->spec.units->count; u++)
        s->next.streams[u] = streams;
}

/* Tries each share of the parameters on the device, evenly spread over the units, as both sides then work at once. */
static sw_status try_shares(struct sw_search *s, int64_t most_ops) {
    sw_search_copy(s, &s->best, &s->next);
    for (int64_t share = 0; share <= EVENLY && s->ops < most_ops; share++) {
        int64_t grains = 0, there = 0;
        double step_s;
        for (int64_t u = 0; u < s->spec.units->count; u++) {
            const int64_t own = s->spec.units->unit[u].grains;
            grains += own;
            s->next.streams[u] = EVENLY * (2 * there + own) <= 2 * share * grains;
            there += s->next.streams[u] ? own : 0;
        }
        SW_TRY(sw_search_try(s, false, &step_s));
    }
    return SW_OK;
}

static void turn(struct sw_search *s, int64_t first, int64_t end) {
    for (int64_t u = first; u < end; u++)
        s->next.streams[u] = !s->next.streams[u];
}

/* Tries, from the best so far, runs of neighbours on the other side. */
static sw_status try_runs(struct sw_search *s, int64_t most_ops) {
    const int64_t units = s->spec.units->count;
    int64_t tried = 0;
    for (int64_t span = sw_div_up(units, 2);; span = sw_div_up(span, 2)) {
        for (int64_t first = 0; first < units && tried < MOST_RUNS && s->ops < most_ops; first += span, tried++) {
            double step_s;
            sw_search_copy(s, &s->best, &s->next);
            turn(s, first, sw_min_i64(units, first + span));
            SW_TRY(sw_search_try(s, false, &step_s));
        }
        if (span == 1)
            return SW_OK;
    }
}

sw_status sw_search_updates(struct sw_search *s) {
    const int64_t most_ops = sw_min_i64(s->most_ops, s->ops + SW_SEARCH_MOST_UPDATE_OPS);
    SW_TRY(try_shares(s, most_ops));
    return try_runs(s, most_ops);
}
