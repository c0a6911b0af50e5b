/* The planner chooses what a unit recomputes for its backward pass: only what the device has no room to keep, and first
 * what is cheapest to recompute. */
#include "tests/equipment/must.h"
#include "tests/offload/plans.h"

#include <string.h>

#include "core/size.h"

enum { MODELS = 300, MOST_UNITS = 8, MOST_GRAINS = 4, SEED = 1 };

static int64_t device_bytes(struct sw_plan_spec spec, sw_recompute level, uint64_t seed) {
    struct sw_plan *plan;
    spec.recompute_auto = false;
    spec.recompute = level;
    spec.budget_bytes[SW_DEVICE] = INT64_MAX;
    must_seeded(sw_plan_create(&spec, &plan), seed);
    const int64_t bytes = plan->tier_bytes[SW_DEVICE];
    sw_plan_destroy(plan);
    return bytes;
}

/* Only intermediates are left to the plan. */
static struct sw_plan_spec fixed_spec(struct plans_random *random, struct sw_units **units) {
    struct sw_plan_spec spec = plans_random_spec(random, MOST_UNITS, MOST_GRAINS, units);
    spec.train = true;
    spec.ring_auto = false;
    spec.recompute_auto = true;
    must_seeded(sw_placement_parse("weights=host,grads=host,optimizer=host,acts=host", &spec.place), random->seed);
    return spec;
}

/* Tells whether the plan would fit if a unit computed less again. */
static bool has_room(struct sw_plan *plan, int64_t unit, sw_recompute level, uint64_t seed) {
    const sw_recompute before = plan->recompute[unit];
    plan->recompute[unit] = level;
    must_seeded(sw_plan_layout(plan), seed);
    const bool fits = sw_plan_fits(plan);
    plan->recompute[unit] = before;
    must_seeded(sw_plan_layout(plan), seed);
    return fits;
}

static void no_room_is_left(void **state) {
    (void)state;
    int units_at[SW_RECOMPUTES] = {0};
    for (uint64_t seed = SEED; seed < SEED + MODELS; seed++) {
        struct plans_random random = {.seed = seed};
        struct sw_units *units;
        struct sw_plan *plan;
        struct sw_plan_spec spec = fixed_spec(&random, &units);
        const int64_t least = device_bytes(spec, SW_RECOMPUTE_UNIT, seed);
        const int64_t most = sw_max_i64(least, device_bytes(spec, SW_RECOMPUTE_NOTHING, seed));
        spec.budget_bytes[SW_DEVICE] = plans_draw(&random, least, most);
        must_seeded(sw_plan_create(&spec, &plan), seed);
        must_seeded(sw_plan_check(plan), seed);
        for (int64_t u = 1; u + 1 < units->count; u++) {
            units_at[plan->recompute[u]]++;
            for (int level = 0; level < (int)plan->recompute[u]; level++)
                if (has_room(plan, u, (sw_recompute)level, seed))
                    fail_msg("seed %llu: unit %lld computes %s again, and %s would do", (unsigned long long)seed,
                             (long long)u, sw_recompute_name(plan->recompute[u]),
                             sw_recompute_name((sw_recompute)level));
        }
        sw_plan_destroy(plan);
        sw_units_destroy(units);
    }
    for (int level = 0; level < SW_RECOMPUTES; level++)
        assert_true(units_at[level] > MODELS / 10);
}

/* Five units in the middle, and a budget with room for some pages more than the least. */
enum { UNITS = 7, PAGE = SW_BUFFER_ALIGN_BYTES };
struct sizes {
    int64_t saved[UNITS], derived[UNITS];
    double flops[UNITS];
};

static void expect(const struct sizes *sizes, int64_t pages, const char *expected) {
    struct sw_unit_cost cost[UNITS];
    struct sw_units *units;
    struct sw_plan *plan;
    must_seeded(sw_units_create(UNITS, &units), 0);
    for (int64_t u = 0; u < UNITS; u++) {
        cost[u] = (struct sw_unit_cost){.output_bytes = u + 1 < UNITS ? 8 : 0,
                                        .saved_bytes = sizes->saved[u],
                                        .derived_bytes = sizes->derived[u],
                                        .forward_flops = sizes->flops[u]};
        must_seeded(sw_unit_add_tensor(&units->unit[u], "tensor", 1, &(int64_t){SW_GRAIN_ELEMS}, true), 0);
    }
    must_seeded(sw_units_seal(units), 0);
    struct sw_plan_spec spec = {
        .units = units,
        .type = SW_BF16,
        .train = true,
        .micro_batches = 3,
        .group = 1,
        .token_bytes = 8,
        .cost = cost,
        .work_bytes = 8,
        .recompute_auto = true,
        .chunk_grains = 1,
        .ring_chunks = 2,
        .unit_slots = 2,
        .budget_bytes = {[SW_DEVICE] = INT64_MAX, [SW_HOST] = INT64_MAX},
    };
    must_seeded(sw_placement_parse("weights=host,grads=host,optimizer=host,acts=host", &spec.place), 0);
    spec.budget_bytes[SW_DEVICE] = device_bytes(spec, SW_RECOMPUTE_UNIT, 0) + pages * PAGE;
    must_seeded(sw_plan_create(&spec, &plan), 0);
    char found[UNITS] = {0};
    for (int64_t u = 1; u + 1 < UNITS; u++)
        found[u - 1] = sw_recompute_name(plan->recompute[u])[0];
    if (strcmp(found, expected) != 0)
        fail_msg("with %lld pages %s are computed again, not %s (none, derived, all)", (long long)pages, found,
                 expected);
    sw_plan_destroy(plan);
    sw_units_destroy(units);
}

/* Products are dearer than what is derived, until the last page; later units go first where all are alike. */
static void units_alike_keep_products_first(void **state) {
    (void)state;
    const struct sizes sizes = {.saved = {0, PAGE, PAGE, PAGE, PAGE, PAGE},
                                .derived = {0, PAGE, PAGE, PAGE, PAGE, PAGE},
                                .flops = {0, 1e9, 1e9, 1e9, 1e9, 1e9}};
    expect(&sizes, 0, "aaaaa");
    expect(&sizes, 2, "aaadd");
    /* The last of them needs no slot to share. */
    expect(&sizes, 4, "ddddd");
    expect(&sizes, 6, "dddnn");
    expect(&sizes, 8, "nnnnn");
}

/* Among units that differ, the intermediates that take the longest for their bytes are kept. */
static void the_dearest_is_kept_first(void **state) {
    (void)state;
    const struct sizes sizes = {.saved = {0, PAGE, 4 * PAGE, PAGE, PAGE, 4 * PAGE},
                                .derived = {0, PAGE, PAGE, PAGE, PAGE, PAGE},
                                .flops = {0, 1e7, 1e10, 1e9, 1e8, 1e6}};
    expect(&sizes, 4, "adaaa");
    expect(&sizes, 5, "addaa");
    expect(&sizes, 6, "addda");
    /* The slot that two shared is not needed by the last alone. */
    expect(&sizes, 7, "ddddd");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_room_is_left),
        cmocka_unit_test(units_alike_keep_products_first),
        cmocka_unit_test(the_dearest_is_kept_first),
    };
    return cmocka_run_group_tests_name("offload intermediates", tests, NULL, NULL);
}
