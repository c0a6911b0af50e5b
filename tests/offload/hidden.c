/* Plans of tensor groups: what the ranks compute while they exchange gradients. */
#include "tests/offload/plans.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/size.h"
#include "offload/plan/plan_private.h"

enum { SEEDS = 400, MOST_UNITS = 6, MOST_GRAINS = 8, MOST_RANKS = 4 };

/* Returns the op of a kind of a unit's micro-batch on a lane, or NULL. */
static const struct sw_op *find_op(const struct sw_program *program, sw_lane lane, sw_op_kind kind,
                                   const struct sw_op *of) {
    for (int32_t i = 0; i < program->lane_count[lane]; i++) {
        const struct sw_op *op = &program->op[program->lane_op[lane][i]];
        if (op->kind == kind && op->unit == of->unit && op->micro == of->micro)
            return op;
    }
    return NULL;
}

/* Tells whether an op of the compute lane may run while the op at a position of the comm lane is under way: no op up to
 * it on its lane, behind `from`, waits for that one or a later one. */
static bool runs_beside(const struct sw_program *program, const struct sw_op *from, const struct sw_op *op,
                        int32_t exchange) {
    for (int32_t i = from->position + 1; i <= op->position; i++) {
        const struct sw_op *at = &program->op[program->lane_op[SW_LANE_COMPUTE][i]];
        for (int32_t w = at->first_wait; w < at->first_wait + at->wait_count; w++)
            if (program->wait[w].lane == SW_LANE_COMM && program->wait[w].steps_back == 0 &&
                program->wait[w].position >= exchange)
                return false;
    }
    return from->position < op->position;
}

/* The gradient at a block's norm is added up while the gradients of weights are computed, if the block has some; that
 * at the input of the only micro-batch of a group is gathered meanwhile, too. */
static void check_hidden_exchanges(const struct sw_plan *plan, uint64_t seed) {
    const struct sw_program *program = &plan->program[SW_PROGRAM_UPDATE];
    const int64_t group = sw_plan_group(plan), micros = plan->spec.micro_batches;
    for (int32_t i = 0; i < program->lane_count[SW_LANE_COMM]; i++) {
        const struct sw_op *op = &program->op[program->lane_op[SW_LANE_COMM][i]];
        if (op->kind != SW_OP_REDUCE_TENSOR || op->content != SW_CONTENT_NORM_GRAD ||
            !sw_plan_splits_backward(plan, op->unit) || !sw_plan_trains(plan, op->unit))
            continue;
        const struct sw_op *last = find_op(program, SW_LANE_COMPUTE, SW_OP_BACKWARD_LAST, op);
        const struct sw_op *first = find_op(program, SW_LANE_COMPUTE, SW_OP_BACKWARD_FIRST, op);
        const struct sw_op *backward = find_op(program, SW_LANE_COMPUTE, SW_OP_BACKWARD, op);
        const struct sw_op *norm = find_op(program, SW_LANE_COMPUTE, SW_OP_BACKWARD_NORM, op);
        const bool alone = sw_min_i64(group, micros - op->micro / group * group) == 1;
        if (last == NULL || first == NULL || !runs_beside(program, backward, last, op->position) ||
            norm->position < last->position || (!alone && norm->position < first->position) ||
            (alone && !runs_beside(program, norm, first, op->position + 1)))
            fail_msg("seed %llu: nothing hides the exchanges of unit %d and micro-batch %d", (unsigned long long)seed,
                     op->unit, op->micro);
    }
}

static bool reads(const struct sw_program *program, const struct sw_op *op, sw_content content) {
    for (int32_t a = op->first_access; a < op->first_access + op->access_count; a++)
        if (!program->access[a].write && program->access[a].content == content)
            return true;
    return false;
}

/* With sequence parallelism the normalised input is gathered under the backward op, unless that computes products
 * again. */
static void check_gathers_under_backward(const struct sw_plan *plan, uint64_t seed) {
    const struct sw_program *program = &plan->program[SW_PROGRAM_UPDATE];
    for (int32_t i = 0; i < program->op_count; i++) {
        const struct sw_op *op = &program->op[i];
        const bool needs = plan->spec.tensor.sequence && op->unit > 0 && plan->recompute[op->unit] == SW_RECOMPUTE_UNIT;
        if (op->kind == SW_OP_BACKWARD && reads(program, op, SW_CONTENT_NORMED) != needs)
            fail_msg("seed %llu: the backward op of unit %d waits for its normalised input without need, or lacks it",
                     (unsigned long long)seed, op->unit);
    }
}

/* Checks a random plan, and counts those with split backward passes by groups of one micro-batch and of several. */
static void try_random_group(uint64_t seed, int made[2]) {
    struct plans_random random = {.seed = seed};
    struct sw_units *units;
    struct sw_plan *plan;
    struct sw_plan_spec spec = plans_random_spec(&random, MOST_UNITS, MOST_GRAINS, &units);
    plans_draw_tensor(&random, MOST_RANKS, units, &spec);
    spec.ranks = (int)plans_draw(&random, 1, MOST_RANKS);
    spec.zero = (int)plans_draw(&random, SW_ZERO_NONE, SW_ZERO_WEIGHTS);
    if (sw_plan_create(&spec, &plan) == SW_OK) {
        check_hidden_exchanges(plan, seed);
        check_gathers_under_backward(plan, seed);
        made[sw_plan_group(plan) > 1] += sw_plan_splits_backward(plan, 1);
        sw_plan_destroy(plan);
    } else {
        sw_error_clear();
    }
    sw_units_destroy(units);
}

static void exchanges_run_beside_the_gradients_of_weights(void **state) {
    (void)state;
    int made[2] = {0};
    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        try_random_group(seed, made);
    assert_true(made[false] > SEEDS / 20 && made[true] > SEEDS / 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(exchanges_run_beside_the_gradients_of_weights)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
