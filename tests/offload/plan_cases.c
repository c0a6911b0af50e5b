/* Single cases of plans: what a plan owns, refuses and prints, and a wait that no plan of a model needs. */
#include "core/ranks/comm.h"
#include "offload/plan/shard.h"
#include "tests/equipment/must.h"
#include "tests/offload/oracle.h"
#include "tests/offload/plans.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_UNITS = 16, FEW_GRAINS = 8, SEED = 1 };

static void inference_refuses_weights_on_nvme(void **state) {
    (void)state;
    struct plans_random random = {.seed = SEED};
    struct sw_units *units;
    struct sw_plan *plan;
    struct sw_plan_spec spec = plans_random_spec(&random, MOST_UNITS, FEW_GRAINS, &units);
    spec.train = spec.scratch_store = false;
    must_seeded(sw_placement_parse("weights=device:50%/nvme", &spec.place), SEED);
    assert_int_equal(sw_plan_create(&spec, &plan), SW_ERR_UNSUPPORTED);
    assert_non_null(strstr(sw_error_message(SW_ERR_UNSUPPORTED), "not on nvme"));
    sw_error_clear();
    sw_units_destroy(units);
}

/* One generation is written in each step and the other is left alone, so a generation is written again two steps later,
 * while the drive may still have the earlier write in flight. No plan of a model does that: each step reads what the
 * one before wrote. */
static void waits_reach_two_steps_back(void **state) {
    (void)state;
    struct sw_slot generations[] = {{.name = "first", .tier = SW_NVME, .pieces = 1},
                                    {.name = "second", .tier = SW_NVME, .pieces = 1, .first_piece = 1}};
    struct sw_plan plan = {.slot = generations, .slot_count = 2, .piece_count = 2};
    struct sw_access access = {
        .count = 1, .content = SW_CONTENT_OPTIMIZER, .write = true, .generation = SW_GENERATION_COMMITTED};
    struct sw_op op = {.kind = SW_OP_WRITE, .lane = SW_LANE_WRITE, .access_count = 1};
    int32_t first = 0;
    struct sw_program program = {.op = &op,
                                 .op_count = 1,
                                 .access = &access,
                                 .access_count = 1,
                                 .lane_op = {[SW_LANE_WRITE] = &first},
                                 .lane_count = {[SW_LANE_WRITE] = 1}};
    must_seeded(sw_plan_derive_waits(&plan, &program), SEED);
    assert_int_equal(op.wait_count, 1);
    assert_int_equal(program.wait[0].lane, SW_LANE_WRITE);
    assert_int_equal(program.wait[0].steps_back, 2);
    must_seeded(sw_program_check(&plan, &program, true), SEED);
    op.wait_count = 0;
    assert_int_equal(sw_program_check(&plan, &program, true), SW_ERR_INTERNAL);
    assert_non_null(strstr(sw_error_message(SW_ERR_INTERNAL), "without waiting for its last write"));
    sw_error_clear();
    free(program.wait);
}

/* The memory of reductions holds one round of the largest unit's shares, or is as large as messages need. */
static void reductions_of_small_models_take_little_memory(void **state) {
    (void)state;
    int small = 0;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        struct plans_random random = {.seed = seed};
        struct sw_units *units;
        struct sw_plan *plan;
        struct sw_plan_spec spec = plans_random_spec(&random, PLANS_MOST_UNITS, 4, &units);
        if (seed % 2 == 0)
            plans_draw_tensor(&random, 4, units, &spec);
        must_seeded(sw_plan_outline(&spec, &plan), seed);
        const int32_t slot = sw_plan_buffer(plan, SW_BUFFER_REDUCTIONS);
        const int ranks = sw_plan_job_ranks(plan);
        assert_int_equal(slot >= 0, ranks > 1);
        const int64_t bytes = slot >= 0 ? plan->slot[slot].bytes : 0, most = sw_plan_staging_bytes(ranks);
        assert_true(bytes <= most);
        for (int64_t u = 0; slot >= 0 && u < units->count; u++) {
            const int64_t elems =
                sw_shard_most_grains(units->unit[u].grains, sw_plan_unit_ranks(plan, u)) * SW_GRAIN_ELEMS;
            assert_true(bytes == most || bytes / sw_comm_least_staging_bytes(ranks) * SW_COMM_PIECE_ELEMS >= elems);
        }
        small += slot >= 0 && bytes < most;
        sw_plan_destroy(plan);
        sw_units_destroy(units);
    }
    assert_true(small > 0);
}

/* The arrays that a plan was made from may change or go once it is outlined. */
static void plans_own_their_spec(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct plans_random random = {.seed = seed};
        struct sw_units *units;
        struct sw_plan *plan, *other;
        const struct sw_plan_spec spec = plans_random_spec(&random, PLANS_MOST_UNITS, 4, &units);
        assert_int_equal(sw_plan_create(&spec, &plan), SW_OK);
        assert_int_equal(sw_plan_outline(&spec, &other), SW_OK);
        for (int64_t u = 0; u < units->count; u++) {
            random.cost[u].output_bytes = random.cost[u].saved_bytes = random.cost[u].derived_bytes = -1;
            random.cost[u].shares_input = !random.cost[u].shares_input;
        }
        assert_int_equal(sw_plan_complete(other), SW_OK);
        assert_int_equal(sw_plan_check(other), SW_OK);
        for (int p = 0; p < SW_PROGRAMS; p++) {
            assert_int_equal(plan->program[p].op_count, other->program[p].op_count);
            for (int32_t i = 0; i < plan->program[p].op_count; i++)
                assert_int_equal(plan->program[p].op[i].bytes, other->program[p].op[i].bytes);
        }
        sw_plan_destroy(plan);
        sw_plan_destroy(other);
        sw_units_destroy(units);
    }
}

enum { TERMINAL_COLUMNS = 80, PRINTED_PLANS = 40, PRINTED_CHARS = 16384 };

static void check_width(char *text, uint64_t seed) {
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n"))
        if (strlen(line) > TERMINAL_COLUMNS)
            fail_msg("seed %llu prints %zu columns: %s", (unsigned long long)seed, strlen(line), line);
}

static void a_printed_plan_fits_a_terminal(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= PRINTED_PLANS; seed++) {
        struct plans_random random = {.seed = seed};
        struct sw_units *units;
        struct sw_plan *plan;
        char text[PRINTED_CHARS] = "";
        const struct sw_plan_spec spec = plans_random_spec(&random, PLANS_MOST_UNITS, 4, &units);
        must_seeded(sw_plan_create(&spec, &plan), seed);
        FILE *out = fmemopen(text, sizeof text, "w");
        assert_non_null(out);
        sw_plan_print(plan, out);
        fclose(out);
        assert_non_null(strstr(text, "placement"));
        check_width(text, seed);
        sw_plan_destroy(plan);
        sw_units_destroy(units);
    }
}

static unsigned roles_of(const unsigned char roles[SW_CONTENTS]) {
    unsigned bits = 0;
    for (int c = 0; c < SW_CONTENTS; c++)
        bits |= roles[c] != SW_ROLE_NONE ? 1U << roles[c] : 0;
    return bits;
}

/* Every op has a row and a name of its own, and needs no role that its row does not give. */
static void every_op_is_a_row(void **state) {
    (void)state;
    for (int k = 0; k < SW_OP_KINDS; k++) {
        const struct sw_op_row *row = &sw_ops[k];
        const unsigned moved = 1U << SW_ROLE_FROM | 1U << SW_ROLE_TO;
        const unsigned given = row->transfers ? moved : roles_of(row->reads) | roles_of(row->writes);
        assert_non_null(row->name);
        for (int other = 0; other < k; other++)
            assert_string_not_equal(row->name, sw_ops[other].name);
        if (((row->needs | row->repeats) & ~given) != 0)
            fail_msg("%s needs or repeats a role that it never has", row->name);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_own_their_spec),
        cmocka_unit_test(reductions_of_small_models_take_little_memory),
        cmocka_unit_test(a_printed_plan_fits_a_terminal),
        cmocka_unit_test(every_op_is_a_row),
        cmocka_unit_test(inference_refuses_weights_on_nvme),
        cmocka_unit_test(waits_reach_two_steps_back),
    };
    return cmocka_run_group_tests_name("offload plan cases", tests, NULL, NULL);
}
