/* Budgets that hold no plan are refused with the least that does: what the refusal names works, keeps a budget that
 * suffices, and nearly nothing less works. A model of many units is placed in little time. */
#include "tests/equipment/must.h"
#include "tests/offload/plans.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "core/size.h"

/* Units of few grains are so small that sizes are named to the KiB. */
enum { SEED = 1, LEAST_MODELS = 1000, NAMED_MODELS = 4000, MOST_UNITS = 16, MOST_GRAINS = 24, FEW_GRAINS = 8 };

/* A page less than a refusal names, on either tier, is refused again: with rings no larger than a unit, nothing needs
 * less than everything on NVMe, or of tiny models all on the device. */
static void the_named_sizes_are_the_least(void **state) {
    (void)state;
    for (uint64_t seed = SEED; seed < SEED + LEAST_MODELS; seed++) {
        struct plans_random random = {.seed = seed};
        struct sw_units *units;
        struct sw_plan *plan;
        struct sw_plan_spec spec = plans_random_spec(&random, MOST_UNITS, FEW_GRAINS, &units);
        spec.chunk_grains = spec.ring_chunks = 1;
        spec.work_bytes = SW_KIB;
        for (int64_t u = 0; u < units->count; u++)
            random.cost[u].output_bytes = random.cost[u].saved_bytes = random.cost[u].derived_bytes = SW_KIB;
        spec.budget_bytes[SW_DEVICE] = spec.budget_bytes[SW_HOST] = 1;
        assert_int_equal(sw_plan_create(&spec, &plan), SW_ERR_BUDGET);
        bool named[SW_NVME];
        plans_read_needs(&spec, named, seed);
        assert_true(named[SW_DEVICE] && named[SW_HOST]);
        must_seeded(sw_plan_create(&spec, &plan), seed);
        sw_plan_destroy(plan);
        for (int t = SW_DEVICE; t <= SW_HOST; t++) {
            struct sw_plan_spec less = spec;
            less.budget_bytes[t] -= SW_BUFFER_ALIGN_BYTES;
            if (sw_plan_create(&less, &plan) != SW_ERR_BUDGET)
                fail_msg("seed %llu: a page less of the %s tier was enough too", (unsigned long long)seed,
                         sw_tier_name((sw_tier)t));
            sw_error_clear();
        }
        sw_units_destroy(units);
    }
}

static bool is_refused(const struct sw_plan_spec *spec, uint64_t seed) {
    struct sw_plan *plan;
    const sw_status status = sw_plan_create(spec, &plan);
    if (status == SW_OK)
        sw_plan_destroy(plan);
    else if (status != SW_ERR_BUDGET)
        must_seeded(status, seed);
    sw_error_clear();
    return status != SW_OK;
}

/* Budgets from far too small to ample, each for itself: a part of what everything on the device takes there, and of
 * what everything on the host takes there. */
static void draw_any_budgets(struct plans_random *random, struct sw_plan_spec *spec) {
    const struct sw_units *units = spec->units;
    int64_t grains = 0, activation_bytes = 0;
    for (int64_t u = 0; u < units->count; u++) {
        grains += units->unit[u].grains;
        activation_bytes += spec->cost[u].output_bytes + spec->cost[u].saved_bytes + spec->cost[u].derived_bytes;
    }
    const int64_t state_bytes = grains * (SW_OPTIMIZER_GRAIN_BYTES + 3 * SW_GRAIN_ELEMS * (int64_t)sizeof(float)) +
                                activation_bytes * spec->micro_batches + spec->work_bytes;
    for (int t = SW_DEVICE; t < SW_NVME; t++)
        spec->budget_bytes[t] = state_bytes / 1000 * (int64_t)pow(10.0, (double)plans_draw(random, 0, 350) / 100.0) +
                                plans_draw(random, 1, SW_MIB);
}

/* A twentieth less of one named budget is refused again, and one named beside another cannot be spared however large
 * that one is. */
static void check_least(const struct sw_plan_spec *spec, const int64_t given[SW_NVME], const bool named[SW_NVME],
                        uint64_t seed) {
    for (int t = SW_DEVICE; t < SW_NVME; t++) {
        struct sw_plan_spec less = *spec;
        less.budget_bytes[t] -= less.budget_bytes[t] / 20;
        if (named[t] && !is_refused(&less, seed))
            fail_msg("seed %llu: 5%% less than was named of the %s tier was enough too", (unsigned long long)seed,
                     sw_tier_name((sw_tier)t));
        struct sw_plan_spec other = *spec;
        other.budget_bytes[t] = given[t];
        other.budget_bytes[SW_HOST - t] = INT64_MAX;
        if (named[SW_DEVICE] && named[SW_HOST] && !is_refused(&other, seed))
            fail_msg("seed %llu: the budget of the %s tier need not have been named", (unsigned long long)seed,
                     sw_tier_name((sw_tier)t));
    }
}

static void named_budgets_work_and_nearly_nothing_less_does(void **state) {
    (void)state;
    int both = 0, one[SW_NVME] = {0};
    for (uint64_t seed = SEED; seed < SEED + NAMED_MODELS; seed++) {
        struct plans_random random = {.seed = seed};
        struct sw_units *units;
        struct sw_plan *plan;
        struct sw_plan_spec spec = plans_random_spec(&random, MOST_UNITS, MOST_GRAINS, &units);
        draw_any_budgets(&random, &spec);
        const int64_t given[SW_NVME] = {spec.budget_bytes[SW_DEVICE], spec.budget_bytes[SW_HOST]};
        if (sw_plan_create(&spec, &plan) == SW_OK) {
            sw_plan_destroy(plan);
        } else {
            bool named[SW_NVME];
            plans_read_needs(&spec, named, seed);
            must_seeded(sw_plan_create(&spec, &plan), seed);
            must_seeded(sw_plan_check(plan), seed);
            sw_plan_destroy(plan);
            check_least(&spec, given, named, seed);
            both += named[SW_DEVICE] && named[SW_HOST];
            one[SW_DEVICE] += !named[SW_HOST];
            one[SW_HOST] += !named[SW_DEVICE];
        }
        sw_units_destroy(units);
    }
    printf("# of %d models, %d refusals named both budgets, %d the device's alone, %d the host's alone\n", NAMED_MODELS,
           both, one[SW_DEVICE], one[SW_HOST]);
    assert_true(both > NAMED_MODELS / 50 && one[SW_DEVICE] > NAMED_MODELS / 50 && one[SW_HOST] > NAMED_MODELS / 50);
}

/* Blocks cut into tiles make many units, of a few kinds that alternate. */
enum { TILES = 8, FEW_UNITS = 256, FACTOR = 8, TIMES = 3 };
/* Between the factor itself, with which one layout grows, and its square. */
#define MOST_GROWTH (2.5 * FACTOR)

/* The least seconds of the processor in which a model of so many units is placed, where budgets hold half of what all
 * of it takes. */
static double seconds_to_place(int64_t count) {
    struct sw_units *units;
    struct sw_plan *plan;
    double least_s = INFINITY;
    must_seeded(sw_units_create(count, &units), SEED);
    struct sw_unit_cost *cost = malloc((size_t)count * sizeof *cost);
    assert_non_null(cost);
    for (int64_t u = 0; u < count; u++) {
        const int64_t elems = (1 + u / TILES % 2) * SW_GRAIN_ELEMS;
        must_seeded(sw_unit_add_tensor(&units->unit[u], "tensor", 1, &elems, true), SEED);
        cost[u] = (struct sw_unit_cost){.output_bytes = SW_KIB, .saved_bytes = SW_KIB, .derived_bytes = SW_KIB};
    }
    must_seeded(sw_units_seal(units), SEED);
    struct sw_plan_spec spec = {.units = units,
                                .type = SW_BF16,
                                .train = true,
                                .micro_batches = 1,
                                .group = 1,
                                .token_bytes = SW_KIB,
                                .cost = cost,
                                .work_bytes = SW_KIB,
                                .recompute_auto = true,
                                .chunk_grains = 1,
                                .ring_chunks = 1,
                                .unit_slots = 2,
                                .budget_bytes = {[SW_DEVICE] = INT64_MAX, [SW_HOST] = INT64_MAX}};
    must_seeded(sw_placement_parse("auto", &spec.place), SEED);
    must_seeded(sw_plan_outline(&spec, &plan), SEED);
    for (int t = SW_DEVICE; t <= SW_HOST; t++)
        spec.budget_bytes[t] = plan->tier_bytes[SW_DEVICE] / 3;
    sw_plan_destroy(plan);
    for (int i = 0; i < TIMES; i++) {
        const clock_t before = clock();
        must_seeded(sw_plan_outline(&spec, &plan), SEED);
        least_s = fmin(least_s, (double)(clock() - before) / CLOCKS_PER_SEC);
        sw_plan_destroy(plan);
    }
    free(cost);
    sw_units_destroy(units);
    return least_s;
}

static void time_to_place_grows_with_the_units(void **state) {
    (void)state;
    const double few_s = seconds_to_place(FEW_UNITS), many_s = seconds_to_place(FACTOR * FEW_UNITS);
    printf("# placing %d units takes %.1f ms, %d times as many %.1f ms\n", FEW_UNITS, 1e3 * few_s, FACTOR,
           1e3 * many_s);
    assert_true(many_s < MOST_GROWTH * few_s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_named_sizes_are_the_least),
        cmocka_unit_test(named_budgets_work_and_nearly_nothing_less_does),
        cmocka_unit_test(time_to_place_grows_with_the_units),
    };
    return cmocka_run_group_tests_name("offload budgets", tests, NULL, NULL);
}
