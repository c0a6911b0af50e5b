/* The checker can fail: plans with one thing changed are refused, unless the second opinion proves the change harmless.
 */
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

enum {
    MODELS = 400,
    TRIES = 12,
    MOST_UNITS = 5,
    MOST_GRAINS = 4,
    SEED = 1000,
    LEAST_CAUGHT = 1000,
    JUDGED_EVERY = 8,
    RANKED_MODELS = 60,
    MOST_RANKS = 4
};

struct mutation {
    const char *name;
    /* Changes one thing; false where this plan has nothing to change. */
    bool (*apply)(struct plans_random *random, struct sw_plan *plan, struct sw_program *program);
};

static struct sw_access *draw_access(struct plans_random *random, struct sw_program *program) {
    return &program->access[plans_draw(random, 0, program->access_count - 1)];
}

static struct sw_op *draw_waiting(struct plans_random *random, struct sw_program *program) {
    for (int tries = 0; tries < 100; tries++) {
        struct sw_op *op = &program->op[plans_draw(random, 0, program->op_count - 1)];
        if (op->wait_count > 0)
            return op;
    }
    return NULL;
}

static bool drop_wait(struct plans_random *random, struct sw_plan *plan, struct sw_program *program) {
    (void)plan;
    struct sw_op *op = draw_waiting(random, program);
    if (op == NULL)
        return false;
    const int64_t dropped = op->first_wait + plans_draw(random, 0, op->wait_count - 1);
    program->wait[dropped] = program->wait[op->first_wait];
    op->first_wait++;
    op->wait_count--;
    return true;
}

/* The op waits for the one before in its lane, or for the same in the step before. */
static bool weaken_wait(struct plans_random *random, struct sw_plan *plan, struct sw_program *program) {
    (void)plan;
    struct sw_op *op = draw_waiting(random, program);
    if (op == NULL)
        return false;
    struct sw_wait *wait = &program->wait[op->first_wait + plans_draw(random, 0, op->wait_count - 1)];
    if (wait->position > 0 && plans_draw(random, 0, 1) == 0)
        wait->position--;
    else
        wait->steps_back++;
    return true;
}

static bool change_slot(struct plans_random *random, struct sw_plan *plan, struct sw_program *program) {
    struct sw_access *access = draw_access(random, program);
    const int32_t slot = (int32_t)plans_draw(random, 0, plan->slot_count - 1);
    if (slot == access->slot)
        return false;
    access->slot = slot;
    return true;
}

static bool change_piece(struct plans_random *random, struct sw_plan *plan, struct sw_program *program) {
    struct sw_access *access = draw_access(random, program);
    const int32_t first = (int32_t)plans_draw(random, 0, plan->slot[access->slot].pieces);
    if (first == access->first)
        return false;
    access->first = first;
    return true;
}

static bool change_content(struct plans_random *random, struct sw_plan *plan, struct sw_program *program) {
    (void)plan;
    struct sw_access *access = draw_access(random, program);
    int32_t *const fields[] = {&access->first_index, &access->unit, &access->version};
    const int64_t field = plans_draw(random, 0, 3);
    if (field == 3)
        access->age++;
    else
        *fields[field] += 1;
    return true;
}

/* A generation for the other. */
static bool change_generation(struct plans_random *random, struct sw_plan *plan, struct sw_program *program) {
    for (int tries = 0; plan->commit_every_step && tries < 100; tries++) {
        struct sw_access *access = draw_access(random, program);
        if (access->generation == SW_GENERATION_NONE)
            continue;
        const bool committed = access->generation == SW_GENERATION_COMMITTED;
        access->generation = committed ? SW_GENERATION_OTHER : SW_GENERATION_COMMITTED;
        return true;
    }
    return false;
}

static bool swap_ops(struct plans_random *random, struct sw_plan *plan, struct sw_program *program) {
    (void)plan;
    const int64_t lane = plans_draw(random, 0, SW_LANES - 1);
    if (program->lane_count[lane] < 2)
        return false;
    const int64_t a = plans_draw(random, 0, program->lane_count[lane] - 2);
    const int64_t b = plans_draw(random, a + 1, sw_min_i64(a + 3, program->lane_count[lane] - 1));
    int32_t *const ops = program->lane_op[lane];
    const int32_t op = ops[a];
    ops[a] = ops[b];
    ops[b] = op;
    return true;
}

static bool shrink_slot(struct plans_random *random, struct sw_plan *plan, struct sw_program *program) {
    (void)program;
    struct sw_slot *slot = &plan->slot[plans_draw(random, 0, plan->slot_count - 1)];
    if (slot->pieces < 2)
        return false;
    slot->pieces--;
    slot->bytes = slot->pieces * slot->piece_bytes;
    return true;
}

static bool move_slot(struct plans_random *random, struct sw_plan *plan, struct sw_program *program) {
    (void)program;
    struct sw_slot *slot = &plan->slot[plans_draw(random, 0, plan->slot_count - 1)];
    slot->offset += plans_draw(random, 0, 1) == 0 ? -SW_BUFFER_ALIGN_BYTES : SW_BUFFER_ALIGN_BYTES;
    return true;
}

static bool shrink_budget(struct plans_random *random, struct sw_plan *plan, struct sw_program *program) {
    (void)program;
    const int64_t tier = plans_draw(random, SW_DEVICE, SW_HOST);
    plan->spec.budget_bytes[tier] = plan->tier_bytes[tier] + plans_draw(random, -2, 1);
    return true;
}

static const struct mutation mutations[] = {
    {"a wait dropped", drop_wait},
    {"a wait weakened", weaken_wait},
    {"a slot changed", change_slot},
    {"a piece changed", change_piece},
    {"a content changed", change_content},
    {"a generation changed", change_generation},
    {"ops swapped", swap_ops},
    {"a slot shrunk", shrink_slot},
    {"a slot moved", move_slot},
    {"a budget shrunk", shrink_budget},
};
enum { MUTATIONS = sizeof mutations / sizeof mutations[0] };

struct tally {
    int tried, caught, harmless;
    int judged, agreed; /* of those caught, by the second opinion */
};

static const char *second_opinion(const struct sw_plan *plan) {
    const char *wrong = oracle_judge_memory(plan);
    for (int p = 0; p < SW_PROGRAMS && wrong == NULL; p++)
        if (plan->program[p].op_count > 0)
            wrong = oracle_judge(plan, (sw_program_kind)p);
    return wrong;
}

/* Draws one of the programs that a run repeats each step. */
static sw_program_kind draw_program(struct plans_random *random, const struct sw_plan *plan) {
    if (!plan->spec.train)
        return SW_PROGRAM_LOSS;
    return plan->commit_every_step && plans_draw(random, 0, 1) == 1 ? SW_PROGRAM_REDO_SPECULATE : SW_PROGRAM_UPDATE;
}

static void try_mutation(struct plans_random *random, const struct sw_plan *plan, const struct mutation *mutation,
                         struct tally *tally) {
    struct plans_copy copy;
    plans_copy_make(plan, &copy);
    const sw_program_kind kind = draw_program(random, plan);
    if (mutation->apply(random, &copy.plan, &copy.plan.program[kind])) {
        tally->tried++;
        const bool caught = sw_plan_check(&copy.plan) != SW_OK;
        sw_error_clear();
        const char *wrong = caught ? NULL : second_opinion(&copy.plan);
        if (wrong != NULL)
            fail_msg("seed %llu: %s was not caught; the second opinion finds %s", (unsigned long long)random->seed,
                     mutation->name, wrong);
        if (caught && tally->caught % JUDGED_EVERY == 0) {
            tally->judged++;
            tally->agreed += second_opinion(&copy.plan) != NULL;
        }
        tally->caught += caught;
        tally->harmless += !caught;
    }
    plans_copy_free(&copy);
}

static void mutations_are_caught_or_harmless(void **state) {
    (void)state;
    struct tally tally[MUTATIONS] = {0};
    for (uint64_t seed = SEED; seed < SEED + MODELS; seed++) {
        struct plans_random random = {.seed = seed};
        struct sw_units *units;
        struct sw_plan *plan;
        const struct sw_plan_spec spec = plans_random_spec(&random, MOST_UNITS, MOST_GRAINS, &units);
        if (sw_plan_create(&spec, &plan) != SW_OK)
            fail_msg("seed %llu: %s", (unsigned long long)seed, sw_error_message(SW_ERR_BUDGET));
        for (int m = 0; m < MUTATIONS * TRIES; m++)
            try_mutation(&random, plan, &mutations[m % MUTATIONS], &tally[m % MUTATIONS]);
        sw_plan_destroy(plan);
        sw_units_destroy(units);
    }
    for (int m = 0; m < MUTATIONS; m++) {
        printf("# %s: %d tried, %d caught (of %d the second opinion refuses %d), %d proven harmless\n",
               mutations[m].name, tally[m].tried, tally[m].caught, tally[m].judged, tally[m].agreed, tally[m].harmless);
        assert_true(tally[m].caught >= LEAST_CAUGHT);
    }
}

/* Selects which accesses to the sums of a group's gradients are changed. */
typedef enum { WRITES, READS, ALL, CONFUSIONS } confusion;

/* Calls them gradients; false where there are none. */
static bool confuse(struct sw_plan *plan, confusion which) {
    bool found = false;
    for (int p = 0; p < SW_PROGRAMS; p++)
        for (int32_t a = 0; a < plan->program[p].access_count; a++) {
            struct sw_access *access = &plan->program[p].access[a];
            if (access->content != SW_CONTENT_BUCKET_SUM || (which != ALL && access->write != (which == WRITES)))
                continue;
            access->content = SW_CONTENT_GRADS;
            found = true;
        }
    return found;
}

/* The gradients of a bucket, before they are summed, in place of their sum. */
static bool add_unsummed(struct sw_plan *plan) {
    bool found = false;
    for (int p = 0; p < SW_PROGRAMS; p++) {
        const struct sw_program *program = &plan->program[p];
        const struct sw_access *bucket = NULL;
        for (int32_t i = 0; i < program->op_count; i++) {
            const struct sw_op *op = &program->op[i];
            struct sw_access *first = &program->access[op->first_access];
            if (op->kind == SW_OP_REDUCE_GRADIENTS && op->wide)
                bucket = first;
            if (op->kind != SW_OP_ADD_TO_ACCUMULATOR || bucket == NULL)
                continue;
            *first = *bucket;
            found = true;
        }
    }
    return found;
}

static void check_refused(const struct sw_plan *plan, confusion which, int *refused) {
    struct plans_copy copy;
    plans_copy_make(plan, &copy);
    if (which < CONFUSIONS ? confuse(&copy.plan, which) : add_unsummed(&copy.plan)) {
        assert_int_not_equal(sw_plan_check(&copy.plan), SW_OK);
        sw_error_clear();
        ++*refused;
    }
    plans_copy_free(&copy);
}

/* Gives half of the plans of stage 3 secondary shards. */
static void draw_secondary(struct plans_random *random, struct sw_plan_spec *spec) {
    if (spec->zero < SW_ZERO_WEIGHTS || plans_draw(random, 0, 1) == 0)
        return;
    spec->secondary_ranks = (int)plans_draw(random, 2, spec->ranks);
    spec->ranks -= spec->ranks % spec->secondary_ranks;
    spec->secondary_rank = spec->rank % spec->secondary_ranks;
}

/* Lets half of the plans exchange quantized weights and gradients, in two levels where there are two nodes. */
static void draw_quantized(struct plans_random *random, struct sw_plan_spec *spec) {
    if (plans_draw(random, 0, 1) == 0)
        return;
    spec->gather = spec->units->fp8 ? SW_QUANT_NONE : SW_QUANT_INT8;
    spec->reduce = plans_draw(random, 0, 1) == 0 ? SW_QUANT_INT8 : SW_QUANT_INT4;
    spec->reduce_nodes = spec->ranks % 2 == 0 && spec->ranks > 2 ? 2 : 0;
}

static void sums_of_ranks_are_not_taken_for_gradients(void **state) {
    (void)state;
    int refused = 0;
    for (uint64_t seed = SEED; seed < SEED + RANKED_MODELS; seed++) {
        struct plans_random random = {.seed = seed};
        struct sw_units *units;
        struct sw_plan *plan;
        struct sw_plan_spec spec = plans_random_spec(&random, MOST_UNITS, MOST_GRAINS, &units);
        spec.train = true;
        spec.scratch_store = false;
        plans_drop_caches(&random);
        spec.group = 1;
        spec.micro_batches = sw_max_i64(spec.micro_batches, 2);
        spec.ranks = (int)plans_draw(&random, 2, MOST_RANKS);
        spec.zero = (int)plans_draw(&random, SW_ZERO_GRADS, SW_ZERO_WEIGHTS);
        draw_secondary(&random, &spec);
        draw_quantized(&random, &spec);
        if (sw_plan_create(&spec, &plan) == SW_OK) {
            for (int which = WRITES; which <= CONFUSIONS; which++)
                check_refused(plan, (confusion)which, &refused);
            sw_plan_destroy(plan);
        }
        sw_error_clear();
        sw_units_destroy(units);
    }
    printf("# %d plans of several ranks refused\n", refused);
    assert_true(refused >= RANKED_MODELS);
}

/* Changes one thing of an operand that the engine uses; false: the row is none. */
static bool alter_operand(struct plans_random *random, struct sw_access *operand) {
    if (operand->role == SW_ROLE_NONE)
        return false;
    switch (plans_draw(random, 0, 3)) {
    case 0: operand->offset_bytes += plans_draw(random, 0, 1) == 0 ? -8 : 8; break;
    case 1: operand->bytes += plans_draw(random, 0, 1) == 0 ? -8 : 8; break;
    case 2: operand->offset_bytes += SW_GRAIN_ELEMS * (int64_t)sizeof(float); break;
    default: operand->role = operand->role == SW_ROLE_FROM ? SW_ROLE_TO : SW_ROLE_FROM;
    }
    return true;
}

static int try_operands(struct plans_random *random, const struct sw_plan *plan) {
    int refused = 0;
    for (int p = 0; p < SW_PROGRAMS; p++) {
        const int32_t count = plan->program[p].access_count;
        for (int tries = 0; count > 0 && tries < TRIES; tries++) {
            struct plans_copy copy;
            plans_copy_make(plan, &copy);
            if (alter_operand(random, &copy.plan.program[p].access[plans_draw(random, 0, count - 1)])) {
                assert_int_not_equal(sw_plan_check(&copy.plan), SW_OK);
                sw_error_clear();
                refused++;
            }
            plans_copy_free(&copy);
        }
    }
    return refused;
}

static void altered_operands_are_refused(void **state) {
    (void)state;
    int refused = 0;
    for (uint64_t seed = SEED; seed < SEED + RANKED_MODELS; seed++) {
        struct plans_random random = {.seed = seed};
        struct sw_units *units;
        struct sw_plan *plan;
        struct sw_plan_spec spec = plans_random_spec(&random, MOST_UNITS, MOST_GRAINS, &units);
        if (spec.train && plans_draw(&random, 0, 1) == 1) {
            spec.ranks = (int)plans_draw(&random, 2, MOST_RANKS);
            spec.zero = (int)plans_draw(&random, SW_ZERO_NONE, SW_ZERO_WEIGHTS);
            draw_secondary(&random, &spec);
            draw_quantized(&random, &spec);
        }
        if (seed % 3 == 0)
            plans_draw_tensor(&random, MOST_RANKS, units, &spec);
        else if (seed % 3 == 1)
            plans_draw_experts(&random, MOST_RANKS, units, &spec);
        if (sw_plan_create(&spec, &plan) == SW_OK) {
            refused += try_operands(&random, plan);
            sw_plan_destroy(plan);
        }
        sw_error_clear();
        sw_units_destroy(units);
    }
    printf("# %d altered operands refused\n", refused);
    assert_true(refused >= LEAST_CAUGHT);
}

/* Lets an update of trained grains write its new weights one piece before them: onto frozen ones. Returns how many
 * updates of a plan's programs were changed. */
static int write_onto_frozen(struct sw_plan *plan, bool with_grains) {
    int changed = 0;
    for (int p = 0; p < SW_PROGRAMS; p++)
        for (int32_t i = 0; i < plan->program[p].op_count; i++) {
            struct sw_op *op = &plan->program[p].op[i];
            const bool updates = op->kind == SW_OP_UPDATE_ON_HOST || op->kind == SW_OP_UPDATE_ON_DEVICE;
            if (!updates || op->chunk > 0 || sw_plan_trained(plan, op->unit).first_grain == 0)
                continue;
            op->first_grain -= with_grains;
            changed += with_grains;
            for (int32_t a = op->first_access; a < op->first_access + op->access_count && !with_grains; a++) {
                struct sw_access *access = &plan->program[p].access[a];
                if (access->content != SW_CONTENT_WEIGHTS || plan->slot[access->slot].grain_bytes == 0)
                    continue;
                access->first--;
                access->first_index--;
                access->offset_bytes -= plan->slot[access->slot].piece_bytes;
                changed++;
            }
        }
    return changed;
}

static void updates_of_frozen_grains_are_refused(void **state) {
    (void)state;
    int refused = 0;
    for (uint64_t seed = SEED; seed < SEED + RANKED_MODELS; seed++) {
        struct plans_random random = {.seed = seed};
        struct sw_units *units;
        struct sw_plan *plan;
        struct sw_plan_spec spec = plans_random_spec(&random, MOST_UNITS, MOST_GRAINS, &units);
        spec.train = true;
        spec.scratch_store = false;
        plans_drop_caches(&random);
        plans_drop_base(units);
        units->fp8 = false;
        for (int64_t u = 0; u < units->count; u++)
            units->unit[u].trained_grain = units->unit[u].grains / 2;
        if (sw_plan_create(&spec, &plan) != SW_OK)
            fail_msg("seed %llu: %s", (unsigned long long)seed, sw_error_message(SW_ERR_BUDGET));
        assert_int_equal(sw_plan_check(plan), SW_OK);
        for (int which = 0; which < 2; which++) {
            struct plans_copy copy;
            plans_copy_make(plan, &copy);
            if (write_onto_frozen(&copy.plan, which == 1) > 0) {
                assert_int_not_equal(sw_plan_check(&copy.plan), SW_OK);
                sw_error_clear();
                refused++;
            }
            plans_copy_free(&copy);
        }
        sw_plan_destroy(plan);
        sw_units_destroy(units);
    }
    printf("# %d plans whose updates write frozen weights refused\n", refused);
    assert_true(refused >= RANKED_MODELS);
}

/* Lets a gather of frozen weights take the trained ones for its own, or the other way round. Returns whether the op was
 * changed. */
static bool take_another_span(const struct sw_plan *plan, struct sw_op *op) {
    const bool spans = op->kind == SW_OP_ALL_GATHER && op->content == SW_CONTENT_WEIGHTS;
    if (!spans || sw_plan_frozen(plan, op->unit).grains == 0)
        return false;
    op->frozen = !op->frozen;
    return true;
}

/* Leaves a gather out: a later op takes a shard for the whole. */
static bool leave_out(struct sw_op *op) {
    const bool spans = op->kind == SW_OP_ALL_GATHER && (op->frozen || op->content == SW_CONTENT_BASE);
    if (spans)
        op->access_count = 0;
    return spans;
}

static void gathers_of_other_spans_are_refused(void **state) {
    (void)state;
    int refused[2] = {0};
    for (uint64_t seed = SEED; seed < SEED + RANKED_MODELS; seed++) {
        struct plans_random random = {.seed = seed};
        struct sw_units *units;
        struct sw_plan *plan;
        struct sw_plan_spec spec = plans_random_spec(&random, MOST_UNITS, MOST_GRAINS, &units);
        spec.train = true;
        spec.scratch_store = false;
        plans_drop_caches(&random);
        plans_draw_spans(&random, units);
        spec.ranks = (int)plans_draw(&random, 2, MOST_RANKS);
        spec.rank = (int)plans_draw(&random, 0, spec.ranks - 1);
        spec.zero = SW_ZERO_WEIGHTS;
        if (sw_plan_create(&spec, &plan) != SW_OK)
            fail_msg("seed %llu: %s", (unsigned long long)seed, sw_error_message(SW_ERR_BUDGET));
        assert_int_equal(sw_plan_check(plan), SW_OK);
        const struct sw_program *program = &plan->program[SW_PROGRAM_UPDATE];
        for (int32_t i = 0; i < program->op_count; i++)
            for (int which = 0; which < 2; which++) {
                struct sw_op *op = &program->op[i];
                const struct sw_op before = *op;
                if (which == 0 ? take_another_span(plan, op) : leave_out(op)) {
                    if (sw_plan_check(plan) == SW_OK)
                        fail_msg("seed %llu: op %d is taken with %s", (unsigned long long)seed, i,
                                 which == 0 ? "another span" : "no operands");
                    sw_error_clear();
                    refused[which]++;
                }
                *op = before;
            }
        sw_plan_destroy(plan);
        sw_units_destroy(units);
    }
    printf("# %d gathers of another span and %d that were left out refused\n", refused[0], refused[1]);
    assert_true(refused[0] >= RANKED_MODELS && refused[1] >= RANKED_MODELS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_of_ranks_are_not_taken_for_gradients),
        cmocka_unit_test(altered_operands_are_refused),
        cmocka_unit_test(updates_of_frozen_grains_are_refused),
        cmocka_unit_test(gathers_of_other_spans_are_refused),
        cmocka_unit_test(mutations_are_caught_or_harmless),
    };
    return cmocka_run_group_tests_name("offload mutations", tests, NULL, NULL);
}
