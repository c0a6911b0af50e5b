/* The search beside exhaustive ones, on small random models and machines: its step is never more than a little longer
 * than that of the best of all placements whose units rise in forward order, of all sides of updates, and of all groups
 * of micro-batches. */
#include "tests/equipment/must.h"
#include "tests/offload/made_up.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/simulate/outline_price.h"
#include "offload/simulate/search.h"

enum { MODELS = 24, COMPARED = 14, MOST_UNITS = 3, MOST_GRAINS = 24, SEED = 1, SHARES_OF_ROOM = 8 };
/* By how much a step may be longer than that of the best of all placements. */
#define MOST_LONGER 0.03

/* Sets every state's place, as a user would. */
static void place_all(struct sw_plan_spec *spec, sw_tier tier) {
    for (int state = 0; state < SW_STATES; state++) {
        spec->place.automatic[state] = false;
        for (int t = 0; t < SW_TIERS; t++)
            spec->place.share[state][t] = t == (int)tier ? 1.0 : 0.0;
    }
}

/* Returns the bytes of a tier that a plan with all states on one tier takes. */
static int64_t bytes_of_all(struct sw_plan_spec spec, sw_tier tier, sw_tier of, uint64_t seed) {
    struct sw_plan *plan;
    place_all(&spec, tier);
    spec.recompute_auto = false;
    spec.recompute = tier == SW_DEVICE ? SW_RECOMPUTE_NOTHING : SW_RECOMPUTE_UNIT;
    must_seeded(sw_plan_outline(&spec, &plan), seed);
    const int64_t bytes = plan->tier_bytes[of];
    sw_plan_destroy(plan);
    return bytes;
}

/* Budgets between the least that work and those that hold everything. */
static void draw_budgets(struct plans_random *random, struct sw_plan_spec *spec) {
    for (int tier = SW_DEVICE; tier < SW_NVME; tier++) {
        const int64_t least = bytes_of_all(*spec, SW_NVME, (sw_tier)tier, random->seed);
        const int64_t most = bytes_of_all(*spec, (sw_tier)tier, (sw_tier)tier, random->seed);
        const int64_t room = most > least ? most - least : 0;
        spec->budget_bytes[tier] = least + room * plans_draw(random, 0, SHARES_OF_ROOM) / SHARES_OF_ROOM;
    }
}

/* A training on one rank of which everything is open, and nothing depends on more than the placement. */
static struct sw_plan_spec draw_spec(struct plans_random *random, struct sw_units **units) {
    struct sw_plan_spec spec = plans_random_spec(random, MOST_UNITS, MOST_GRAINS, units);
    spec.train = true;
    spec.scratch_store = false;
    plans_drop_caches(random);
    spec.recompute_auto = true;
    spec.ring_auto = false;
    spec.update_on_device = NULL;
    plans_train_all(*units);
    draw_budgets(random, &spec);
    for (int state = 0; state < SW_STATES; state++)
        spec.place.automatic[state] = true;
    return spec;
}

/* The search over all placements. A step that takes as long as best_s is not simulated to its end. */
struct every {
    const struct sw_rates *rates;
    struct sw_plan *plan; /* an outline that is placed anew for each */
    double best_s;
    uint64_t seed;
};

static void price(struct every *e) {
    struct sw_outline_price found;
    must_seeded(sw_plan_layout(e->plan), e->seed);
    if (!sw_plan_fits(e->plan))
        return;
    must_seeded(sw_outline_simulate(e->plan, e->rates, e->best_s, NULL, &found), e->seed);
    if (found.step.step_s < e->best_s)
        e->best_s = found.step.step_s;
}

static void place_accumulators(struct every *e) {
    const int64_t units = e->plan->spec.units->count;
    const bool between = sw_plan_groups(e->plan) > 1;
    for (int on_device = 0; on_device <= (between ? 1 : 0); on_device++) {
        for (int64_t u = 0; u < units; u++)
            e->plan->placement[u].accumulator = on_device ? SW_DEVICE : e->plan->placement[u].tier[SW_GRADS];
        price(e);
    }
}

/* All levels of the blocks that compute their intermediates again. */
static void recompute_from(struct every *e, int64_t unit) {
    if (unit + 1 == e->plan->spec.units->count) {
        place_accumulators(e);
        return;
    }
    for (int level = 0; level < SW_RECOMPUTES; level++) {
        e->plan->recompute[unit] = (sw_recompute)level;
        recompute_from(e, unit + 1);
    }
}

/* The first `device` units of a state on the device, the next `host` on the host, the others on NVMe. */
static void place_from(struct every *e, int state) {
    const int64_t units = e->plan->spec.units->count;
    if (state == SW_STATES) {
        recompute_from(e, 1);
        return;
    }
    for (int64_t device = 0; device <= units; device++)
        for (int64_t host = 0; device + host <= units; host++) {
            for (int64_t u = 0; u < units; u++)
                e->plan->placement[u].tier[state] = u < device ? SW_DEVICE : u < device + host ? SW_HOST : SW_NVME;
            place_from(e, state + 1);
        }
}

/* All placements with every update on the host, and with every update on the device. */
static void search_every(struct every *e) {
    const int64_t units = e->plan->spec.units->count;
    bool streams[PLANS_MOST_UNITS];
    const bool *const own = e->plan->spec.update_on_device;
    e->plan->spec.update_on_device = streams;
    for (int side = 0; side < 2; side++) {
        for (int64_t u = 0; u < units; u++)
            streams[u] = side == 1;
        place_from(e, 0);
    }
    e->plan->spec.update_on_device = own;
}

/* A case, the times of the usual placement and of the one that was found, and the least step that makes the latter too
 * long; 0: there is none. */
struct found {
    uint64_t seed;
    double usual_s, found_s, shorter_s;
};

/* The plan that was found is sound, within the budgets, and takes as long as its price says. */
static void check_plan(struct sw_plan *plan, const struct sw_rates *rates, const struct sw_search_prices *prices,
                       uint64_t seed) {
    struct sw_simulation step;
    must_seeded(sw_plan_complete(plan), seed);
    must_seeded(sw_plan_check(plan), seed);
    must_seeded(sw_simulate(plan, SW_PROGRAM_UPDATE, false, rates, NULL, &step), seed);
    if (step.step_s != prices->placement.chosen_s || prices->placement.chosen_s > prices->placement.usual_s)
        fail_msg("seed %llu: %g s by its price, %g s simulated, %g s as usual", (unsigned long long)seed,
                 prices->placement.chosen_s, step.step_s, prices->placement.usual_s);
}

static struct found search_one(uint64_t seed) {
    struct plans_random random = {.seed = seed};
    struct sw_units *units;
    struct made_up m;
    struct sw_search_prices prices;
    struct sw_plan *plan;
    const struct sw_search_open open = {.most_ops = SW_SEARCH_OPS, .updates = true, .placement = true};
    struct sw_plan_spec spec = draw_spec(&random, &units);
    made_up_draw(&random, &m);
    made_up_point_at_units(&m);
    must_seeded(sw_plan_search(&spec, &open, &m.rates, &prices, &plan), seed);
    check_plan(plan, &m.rates, &prices, seed);
    sw_plan_destroy(plan);
    /* Only steps matter that are shorter than what was found by more than is allowed. */
    const double short_s = prices.placement.chosen_s / (1.0 + MOST_LONGER);
    struct every every = {.rates = &m.rates, .best_s = short_s, .seed = seed};
    must_seeded(sw_plan_outline(&spec, &every.plan), seed);
    search_every(&every);
    sw_plan_destroy(every.plan);
    sw_units_destroy(units);
    return (struct found){.seed = seed,
                          .usual_s = prices.placement.usual_s,
                          .found_s = prices.placement.chosen_s,
                          .shorter_s = every.best_s < short_s ? every.best_s : 0.0};
}

static void near_the_best_of_all(void **state) {
    (void)state;
    const char *more = getenv("SW_TEST_SEEDS");
    const int64_t models = more != NULL ? strtoll(more, NULL, 10) : COMPARED;
    int64_t worse = 0, usual_worse = 0;
    for (int64_t i = 0; i < models; i++) {
        const struct found f = search_one(SEED + (uint64_t)i);
        worse += f.shorter_s > 0.0;
        usual_worse += f.usual_s > (1.0 + MOST_LONGER) * f.found_s;
        if (f.shorter_s > 0.0)
            printf("# seed %llu: found %g s, best %g s, usual %g s\n", (unsigned long long)f.seed, f.found_s,
                   f.shorter_s, f.usual_s);
    }
    printf(
        "# of %lld machines, the search is more than %.0f%% above the best of all on %lld, the usual placement above "
        "the search on %lld\n",
        (long long)models, 100.0 * MOST_LONGER, (long long)worse, (long long)usual_worse);
    assert_int_equal(worse, 0);
    assert_true(usual_worse > 0);
}

/* Draws an order of rises and their shares. */
static struct sw_rise_order draw_rises(struct plans_random *random) {
    struct sw_rise_order rises = sw_rises_usual;
    for (int i = SW_RISES - 1; i > 0; i--) {
        const int64_t other = plans_draw(random, 0, i);
        const sw_rise rise = rises.rise[i];
        rises.rise[i] = rises.rise[other];
        rises.rise[other] = rise;
    }
    for (int rise = 0; rise < SW_RISES; rise++)
        rises.share[rise] = (double)plans_draw(random, 0, 2) / 2.0;
    return rises;
}

/* Outlines a plan; NULL: it does not fit. */
static struct sw_plan *outline(const struct sw_plan_spec *spec, uint64_t seed) {
    struct sw_plan *plan;
    const sw_status status = sw_plan_outline(spec, &plan);
    if (status == SW_ERR_BUDGET) {
        sw_error_clear();
        return NULL;
    }
    must_seeded(status, seed);
    return plan;
}

/* A search remembers the peaks of layouts: outlines are those that are laid out each time. */
static void remembered_layouts_change_no_outline(void **state) {
    (void)state;
    enum { OUTLINES = 40 };
    int64_t compared = 0;
    for (uint64_t seed = SEED; seed < SEED + MODELS; seed++) {
        struct plans_random random = {.seed = seed};
        struct sw_units *units;
        struct sw_plan_spec laid_out = draw_spec(&random, &units), remembered = laid_out;
        must_seeded(sw_layout_peaks_create(&remembered.peaks), seed);
        for (int i = 0; i < OUTLINES; i++) {
            const struct sw_rise_order rises = draw_rises(&random);
            laid_out.rises = remembered.rises = &rises;
            struct sw_plan *expected = outline(&laid_out, seed), *found = outline(&remembered, seed);
            if ((expected == NULL) != (found == NULL) ||
                (found != NULL && (sw_plan_hash(found) != sw_plan_hash(expected) ||
                                   found->commit_every_step != expected->commit_every_step ||
                                   memcmp(found->tier_bytes, expected->tier_bytes, sizeof found->tier_bytes) != 0)))
                fail_msg("seed %llu: outline %d differs where layouts are remembered", (unsigned long long)seed, i);
            compared += found != NULL;
            sw_plan_destroy(expected);
            sw_plan_destroy(found);
        }
        sw_layout_peaks_destroy(remembered.peaks);
        sw_units_destroy(units);
    }
    assert_true(compared > MODELS * OUTLINES / 4);
}

/* The answer of a search. */
struct answer {
    uint64_t plan;
    struct sw_search_prices prices;
};

static struct answer search_with(const struct sw_plan_spec *spec, const struct sw_rates *rates, int64_t most_ops,
                                 struct sw_price_memory *memory, uint64_t seed) {
    const struct sw_search_open open = {.most_ops = most_ops,
                                        .group = {spec->micro_batches, 1},
                                        .groups = spec->micro_batches > 1 ? 2 : 1,
                                        .updates = true,
                                        .placement = true,
                                        .chunk_factor = 2,
                                        .memory = memory};
    struct answer answer;
    struct sw_plan *plan;
    must_seeded(sw_plan_search(spec, &open, rates, &answer.prices, &plan), seed);
    answer.plan = sw_plan_hash(plan);
    sw_plan_destroy(plan);
    return answer;
}

static bool same_group(const struct sw_group_price *a, const struct sw_group_price *b) {
    return a->step_s == b->step_s && a->least_s == b->least_s && a->bound_s == b->bound_s &&
           a->chosen_s == b->chosen_s && a->searched == b->searched && a->too_long == b->too_long;
}

static bool same_answer(const struct answer *a, const struct answer *b) {
    const struct sw_placement_price *x = &a->prices.placement, *y = &b->prices.placement;
    bool same = a->plan == b->plan && x->usual_s == y->usual_s && x->chosen_s == y->chosen_s && x->tried == y->tried &&
                x->simulated == y->simulated && a->prices.update.host_s == b->prices.update.host_s &&
                a->prices.update.device_s == b->prices.update.device_s &&
                a->prices.update.chosen_s == b->prices.update.chosen_s && a->prices.orders == b->prices.orders;
    for (int i = 0; i < a->prices.orders && same; i++)
        same = same_group(&a->prices.order[i], &b->prices.order[i]);
    return same;
}

/* Searches share the prices of steps: of other budgets, other machines and other models too. Each finds what it finds
 * without them, in as many trials. */
static void remembered_prices_change_no_search(void **state) {
    (void)state;
    enum { MODELS_PRICED = 6, MACHINES = 2 };
    static const int64_t most_ops[] = {100000, 400000, 400000};
    struct sw_price_memory *memory;
    must_seeded(sw_price_memory_create(&memory), 0);
    for (uint64_t seed = SEED; seed < SEED + MODELS_PRICED; seed++) {
        struct plans_random random = {.seed = seed};
        struct sw_units *units;
        struct made_up m;
        struct sw_plan_spec spec = draw_spec(&random, &units);
        for (int machine = 0; machine < MACHINES; machine++) {
            made_up_draw(&random, &m);
            made_up_point_at_units(&m);
            for (size_t i = 0; i < sizeof most_ops / sizeof most_ops[0]; i++) {
                const struct answer alone = search_with(&spec, &m.rates, most_ops[i], NULL, seed);
                const struct answer shared = search_with(&spec, &m.rates, most_ops[i], memory, seed);
                if (!same_answer(&alone, &shared))
                    fail_msg("seed %llu: search %d on machine %d differs where prices are remembered",
                             (unsigned long long)seed, (int)i, machine);
                spec.budget_bytes[SW_HOST] += i == 1 ? spec.budget_bytes[SW_HOST] / 2 : 0;
            }
        }
        sw_units_destroy(units);
    }
    sw_price_memory_destroy(memory);
}

/* A mixture of sides, or another group, has to save as much of a step to be taken, and a little that rounding may take.
 */
#define LEAST_SAVED 0.006

/* Returns the step of the usual placement with each update on one of two sides, where set bits of `sides` are units on
 * the device; infinite: it does not fit. */
static double price_sides(struct sw_plan_spec spec, const struct sw_rates *rates, int64_t sides, uint64_t seed) {
    bool streams[PLANS_MOST_UNITS];
    struct sw_outline_price found;
    for (int64_t u = 0; u < spec.units->count; u++)
        streams[u] = (sides >> u & 1) != 0;
    spec.update_on_device = streams;
    struct sw_plan *plan = outline(&spec, seed);
    if (plan == NULL)
        return INFINITY;
    must_seeded(sw_outline_simulate(plan, rates, INFINITY, NULL, &found), seed);
    sw_plan_destroy(plan);
    return found.step.step_s;
}

/* How often a mixture of sides is much faster than both uniform ones, and how often the search missed the best. */
struct sides_tally {
    int64_t mixed, missed;
};

/* Searches the sides of updates only, beside all sides there are. A device's side that wastes memory has no price. */
static void compare_sides(const struct sw_plan_spec *spec, const struct sw_rates *rates, uint64_t seed,
                          struct sides_tally *tally) {
    const struct sw_search_open open = {.most_ops = SW_SEARCH_OPS, .updates = true};
    const int64_t last = ((int64_t)1 << spec->units->count) - 1;
    struct sw_search_prices prices;
    struct sw_plan *plan;
    must_seeded(sw_plan_search(spec, &open, rates, &prices, &plan), seed);
    sw_plan_destroy(plan);
    if (!prices.update.known)
        return;
    const double host_s = price_sides(*spec, rates, 0, seed), device_s = price_sides(*spec, rates, last, seed);
    const double uniform_s = fmin(host_s, device_s);
    double best_s = uniform_s;
    for (int64_t sides = 1; sides < last; sides++)
        best_s = fmin(best_s, price_sides(*spec, rates, sides, seed));
    tally->mixed += uniform_s > (1.0 + MOST_LONGER) * best_s;
    tally->missed += prices.update.chosen_s > (1.0 + LEAST_SAVED) * best_s;
    if (prices.update.host_s != host_s || (isfinite(prices.update.device_s) && prices.update.device_s != device_s) ||
        prices.update.chosen_s < best_s ||
        prices.update.chosen_s > (1.0 + LEAST_SAVED) * fmin(host_s, prices.update.device_s))
        fail_msg("seed %llu: host %g s, device %g s, found %g s; by each side %g s, %g s, best %g s",
                 (unsigned long long)seed, prices.update.host_s, prices.update.device_s, prices.update.chosen_s, host_s,
                 device_s, best_s);
}

/* Where a mixture is much faster, the search finds the best one, but for one in ten: it turns runs of neighbours. */
static void sides_are_the_best_of_all(void **state) {
    (void)state;
    enum { SIDED = 300, MACHINES = 3, OF_MIXED = 10 };
    struct sides_tally tally = {0};
    for (uint64_t seed = SEED; seed < SEED + SIDED; seed++) {
        struct plans_random random = {.seed = seed};
        struct sw_units *units;
        struct made_up m;
        const struct sw_plan_spec spec = draw_spec(&random, &units);
        for (int machine = 0; machine < MACHINES; machine++) {
            made_up_draw(&random, &m);
            made_up_point_at_units(&m);
            compare_sides(&spec, &m.rates, seed, &tally);
        }
        sw_units_destroy(units);
    }
    printf("# a mixture of sides is the fastest by far on %lld machines, the search missed the best on %lld\n",
           (long long)tally.mixed, (long long)tally.missed);
    assert_true(tally.mixed > 0 && OF_MIXED * tally.missed <= tally.mixed);
}

/* A search among groups finds in each that it searches what a search of that group finds, and takes the best. A group
 * whose usual plan is much slower than another's is not searched, though it may be the best. */
static void the_best_group_is_taken(void **state) {
    (void)state;
    enum { OPS = 400000, GROUPED = 72, MISSED = 4 };
    int64_t compared = 0, other = 0, missed = 0;
    for (uint64_t seed = SEED; seed < SEED + GROUPED; seed++) {
        struct plans_random random = {.seed = seed};
        struct sw_units *units;
        struct made_up m;
        struct sw_plan_spec spec = draw_spec(&random, &units);
        made_up_draw(&random, &m);
        made_up_point_at_units(&m);
        const struct answer all = search_with(&spec, &m.rates, OPS, NULL, seed);
        for (int i = 0; i < all.prices.orders; i++) {
            const struct sw_group_price *price = &all.prices.order[i];
            const struct sw_search_open open = {.most_ops = OPS, .updates = true, .placement = true, .chunk_factor = 2};
            struct sw_search_prices own;
            struct sw_plan *plan = NULL;
            spec.group = price->group;
            const sw_status status = sw_plan_search(&spec, &open, &m.rates, &own, &plan);
            sw_plan_destroy(plan);
            if (status == SW_ERR_BUDGET) {
                sw_error_clear();
                continue;
            }
            must_seeded(status, seed);
            if (price->searched && price->chosen_s != own.placement.chosen_s)
                fail_msg("seed %llu: groups of %lld take %g s, %g s by themselves, %g s were found",
                         (unsigned long long)seed, (long long)price->group, price->chosen_s, own.placement.chosen_s,
                         all.prices.placement.chosen_s);
            compared++;
            missed += all.prices.placement.chosen_s * (1.0 - LEAST_SAVED) > own.placement.chosen_s;
            other += own.placement.chosen_s > all.prices.placement.chosen_s * (1.0 + MOST_LONGER);
        }
        sw_units_destroy(units);
    }
    printf("# of %lld groups %lld are much slower than the one found, %lld are faster\n", (long long)compared,
           (long long)other, (long long)missed);
    assert_true(compared > GROUPED && other > 0 && missed <= MISSED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(remembered_layouts_change_no_outline),
        cmocka_unit_test(remembered_prices_change_no_search),
        cmocka_unit_test(sides_are_the_best_of_all),
        cmocka_unit_test(the_best_group_is_taken),
        cmocka_unit_test(near_the_best_of_all),
    };
    return cmocka_run_group_tests_name("offload search", tests, NULL, NULL);
}
