/* Every plan for random models, chunks, placements and budgets passes the checker and a second opinion, keeps its
 * budgets, and does each piece of work once. A budget that is too small is refused with sizes that then work. */
#include "tests/offload/oracle.h"
#include "tests/offload/plans.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/size.h"

enum { PLANS = 4000, JUDGED_EVERY = 40, MOST_UNITS = 12, MOST_GRAINS = 12, SEED = 1 };

static void must(sw_status status, uint64_t seed) {
    if (status != SW_OK)
        fail_msg("seed %llu: %s", (unsigned long long)seed, sw_error_message(status));
}

static int64_t count_ops(const struct sw_program *program, sw_op_kind kind, int64_t *out_bytes) {
    int64_t count = 0;
    *out_bytes = 0;
    for (int32_t i = 0; i < program->op_count; i++) {
        if (program->op[i].kind != kind)
            continue;
        count++;
        *out_bytes += program->op[i].bytes;
    }
    return count;
}

static void expect_ops(const struct sw_plan *plan, sw_op_kind kind, int64_t expected, int64_t expected_bytes,
                       uint64_t seed) {
    int64_t bytes;
    const int64_t count = count_ops(&plan->program[SW_PROGRAM_TRAIN], kind, &bytes);
    if (count != expected || (expected_bytes >= 0 && bytes != expected_bytes))
        fail_msg("seed %llu: %lld ops %s of %lld bytes, expected %lld of %lld", (unsigned long long)seed,
                 (long long)count, sw_op_name(kind), (long long)bytes, (long long)expected, (long long)expected_bytes);
}

/* Counted from the placement, not from the plan: each chunk moves over each link that it must cross, once. */
static void check_work(const struct sw_plan *plan, uint64_t seed) {
    const struct sw_units *units = plan->spec.units;
    const int64_t typed = SW_GRAIN_ELEMS * sw_dtype_bytes(plan->spec.type);
    int64_t chunks = 0, on_device = 0, off_device = 0, nvme = 0, off_grains = 0, nvme_grains = 0;
    int64_t written = 0, written_grains = 0;
    for (int64_t u = 0; u < units->count; u++) {
        const int64_t unit_chunks = sw_div_up(units->unit[u].grains, plan->spec.chunk_grains);
        const sw_tier grads = plan->placement[u].tier[SW_GRADS], optimizer = plan->placement[u].tier[SW_OPTIMIZER];
        chunks += unit_chunks;
        on_device += optimizer == SW_DEVICE ? unit_chunks : 0;
        off_device += optimizer != SW_DEVICE ? unit_chunks : 0;
        off_grains += optimizer != SW_DEVICE ? units->unit[u].grains : 0;
        nvme += optimizer == SW_NVME ? unit_chunks : 0;
        nvme_grains += optimizer == SW_NVME ? units->unit[u].grains : 0;
        written += grads == SW_NVME ? unit_chunks : 0;
        written_grains += grads == SW_NVME ? units->unit[u].grains : 0;
    }
    const int64_t micros = plan->spec.micro_batches;
    expect_ops(plan, SW_OP_FORWARD, (units->count - 1) * micros, -1, seed);
    expect_ops(plan, SW_OP_BACKWARD, (units->count - 1) * micros, -1, seed);
    expect_ops(plan, SW_OP_HEAD, micros, -1, seed);
    expect_ops(plan, SW_OP_ZERO, units->count, -1, seed);
    expect_ops(plan, SW_OP_FINISH, chunks, -1, seed);
    expect_ops(plan, SW_OP_UPDATE_ON_DEVICE, on_device, -1, seed);
    expect_ops(plan, SW_OP_UPDATE, off_device, -1, seed);
    expect_ops(plan, SW_OP_UPLOAD_WEIGHTS, off_device, off_grains * typed, seed);
    expect_ops(plan, SW_OP_READ_OPTIMIZER, nvme, nvme_grains * SW_RECORD_BYTES, seed);
    expect_ops(plan, SW_OP_WRITE_OPTIMIZER, nvme, nvme_grains * SW_RECORD_BYTES, seed);
    expect_ops(plan, SW_OP_WRITE_GRADS, written, written_grains * typed, seed);
    expect_ops(plan, SW_OP_READ_GRADS, written, written_grains * typed, seed);
    expect_ops(plan, SW_OP_COMMIT, nvme == chunks ? 1 : 0, -1, seed);
}

/* What the user asked for is what the plan does. */
static void check_request(const struct sw_plan *plan, uint64_t seed) {
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        for (int s = 0; s < SW_STATES; s++)
            if (!plan->spec.place.automatic[s] && plan->placement[u].tier[s] != plan->spec.place.tier[s])
                fail_msg("seed %llu: unit %lld has its %s elsewhere", (unsigned long long)seed, (long long)u,
                         sw_state_name((sw_state)s));
    if (!plan->spec.recompute_auto && plan->recompute != plan->spec.recompute)
        fail_msg("seed %llu: recompute was not obeyed", (unsigned long long)seed);
}

static void check_plan(const struct sw_plan *plan, uint64_t seed, bool judged) {
    must(sw_plan_check(plan), seed);
    check_request(plan, seed);
    if (plan->spec.train)
        check_work(plan, seed);
    for (int p = 0; judged && p < SW_PROGRAMS; p++) {
        const char *wrong = plan->program[p].op_count > 0 ? oracle_judge(plan, &plan->program[p]) : NULL;
        if (wrong != NULL)
            fail_msg("seed %llu: the second opinion finds %s", (unsigned long long)seed, wrong);
    }
    const char *wrong = oracle_judge_memory(plan);
    if (wrong != NULL)
        fail_msg("seed %llu: the second opinion finds %s", (unsigned long long)seed, wrong);
}

/* The sizes that a refusal names. */
static void read_needs(struct sw_plan_spec *spec, uint64_t seed) {
    const char *message = sw_error_message(SW_ERR_BUDGET);
    char device[SW_SIZE_CHARS], host[SW_SIZE_CHARS];
    const char *device_flag = strstr(message, "--device-memory "), *host_flag = strstr(message, "--host-memory ");
    if (device_flag == NULL || host_flag == NULL || sscanf(device_flag, "--device-memory %31s", device) != 1 ||
        sscanf(host_flag, "--host-memory %31s", host) != 1)
        fail_msg("seed %llu: the refusal names no sizes: %s", (unsigned long long)seed, message);
    int64_t needed[2];
    must(sw_parse_size(device, &needed[SW_DEVICE]), seed);
    must(sw_parse_size(host, &needed[SW_HOST]), seed);
    if (needed[SW_DEVICE] <= spec->budget_bytes[SW_DEVICE] && needed[SW_HOST] <= spec->budget_bytes[SW_HOST])
        fail_msg("seed %llu: refused although what it asks for is there: %s", (unsigned long long)seed, message);
    spec->budget_bytes[SW_DEVICE] = needed[SW_DEVICE];
    spec->budget_bytes[SW_HOST] = needed[SW_HOST];
    sw_error_clear();
}

/* Budgets around what the plan without limits took, so that some fit, some move state away, and some are refused. */
static void draw_budgets(struct plans_random *random, const struct sw_plan *unlimited, struct sw_plan_spec *spec) {
    for (int t = SW_DEVICE; t <= SW_HOST; t++)
        spec->budget_bytes[t] = unlimited->tier_bytes[t] * plans_draw(random, 60, 110) / 100 +
                                plans_draw(random, 0, 40) * SW_RECORD_BYTES * (t == SW_HOST);
}

struct tally {
    int plans, refused, mixed, commits;
    int32_t ops[PLANS];
};

/* Gives false where the budgets were refused and had to be raised to what the refusal named. */
static bool plan_within(struct sw_plan_spec *spec, struct sw_plan **out, uint64_t seed) {
    const sw_status status = sw_plan_create(spec, out);
    if (status == SW_OK)
        return true;
    if (status != SW_ERR_BUDGET)
        must(status, seed);
    read_needs(spec, seed);
    must(sw_plan_create(spec, out), seed);
    return false;
}

static bool is_mixed(const struct sw_plan *plan) {
    for (int64_t u = 1; u < plan->spec.units->count; u++)
        if (memcmp(&plan->placement[u], &plan->placement[0], sizeof plan->placement[0]) != 0)
            return true;
    return false;
}

static void try_random_model(uint64_t seed, struct tally *tally) {
    struct plans_random random = {.seed = seed};
    struct sw_units *units;
    struct sw_plan *unlimited, *plan;
    struct sw_plan_spec spec = plans_random_spec(&random, MOST_UNITS, MOST_GRAINS, &units);
    const bool judged = tally->plans % JUDGED_EVERY == 0;
    must(sw_plan_create(&spec, &unlimited), seed);
    check_plan(unlimited, seed, judged);
    draw_budgets(&random, unlimited, &spec);
    tally->refused += !plan_within(&spec, &plan, seed);
    check_plan(plan, seed, judged);
    tally->mixed += is_mixed(plan);
    tally->commits += plan->commit_every_step;
    tally->ops[tally->plans++] = plan->program[spec.train ? SW_PROGRAM_TRAIN : SW_PROGRAM_LOSS].op_count;
    sw_plan_destroy(plan);
    sw_plan_destroy(unlimited);
    sw_units_destroy(units);
}

static int ascending(const void *left, const void *right) {
    return *(const int32_t *)left - *(const int32_t *)right;
}

static void random_plans_are_sound(void **state) {
    (void)state;
    struct tally *tally = calloc(1, sizeof *tally);
    assert_non_null(tally);
    while (tally->plans < PLANS)
        try_random_model(SEED + (uint64_t)tally->plans, tally);
    qsort(tally->ops, PLANS, sizeof tally->ops[0], ascending);
    printf("# %d models, 2 plans each: median %d ops, most %d; %d with units placed differently, %d that commit every "
           "step; "
           "%d budgets refused, each with sizes that then worked\n",
           tally->plans, tally->ops[PLANS / 2], tally->ops[PLANS - 1], tally->mixed, tally->commits, tally->refused);
    assert_true(tally->refused > PLANS / 50 && tally->mixed > PLANS / 50 && tally->commits > PLANS / 50);
    free(tally);
}

/* A page less than a refusal names, on either tier, is refused again: with rings no larger than a unit, everything on
 * NVMe is the least that there is. */
static void the_named_sizes_are_the_least(void **state) {
    (void)state;
    for (uint64_t seed = SEED; seed < SEED + 200; seed++) {
        struct plans_random random = {.seed = seed};
        struct sw_units *units;
        struct sw_plan *plan;
        struct sw_plan_spec spec = plans_random_spec(&random, MOST_UNITS, MOST_GRAINS, &units);
        spec.chunk_grains = spec.ring_chunks = 1;
        spec.saved_bytes = spec.work_bytes = SW_KIB; /* small, so that the sizes are named to the KiB */
        spec.budget_bytes[SW_DEVICE] = spec.budget_bytes[SW_HOST] = 1;
        assert_int_equal(sw_plan_create(&spec, &plan), SW_ERR_BUDGET);
        read_needs(&spec, seed);
        must(sw_plan_create(&spec, &plan), seed);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_plans_are_sound),
        cmocka_unit_test(the_named_sizes_are_the_least),
    };
    return cmocka_run_group_tests_name("offload plan", tests, NULL, NULL);
}
