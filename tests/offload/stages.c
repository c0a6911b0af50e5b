/* Plans of all stages of a pipeline, random as the others, interleaved or not: each is proven by the checker, what
 * stages send and receive meets in one order, none waits for ever, all units are updated, and no stage keeps more than
 * the schedule says. */
#include "core/size.h"
#include "offload/plan/plan.h"
#include "offload/plan/plan_private.h"
#include "tests/equipment/must.h"
#include "tests/offload/plans.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MODELS = 600,
    MOST_UNITS = 11,
    MOST_GRAINS = 12,
    MOST_STAGES = 6,
    MOST_TURNS = 4,
    MOST_DATA_RANKS = 3,
    SEED = 1
};

struct stages {
    int count;
    struct sw_plan *plan[MOST_STAGES]; /* of one rank of each stage */
    int at[MOST_STAGES];               /* the next op of its comm lane */
    sw_program_kind program;
};

static const struct sw_op *next_op(const struct stages *s, int stage) {
    const struct sw_program *program = &s->plan[stage]->program[s->program];
    return s->at[stage] < program->lane_count[SW_LANE_COMM] ? &program->op[program->lane_op[SW_LANE_COMM][s->at[stage]]]
                                                            : NULL;
}

/* Returns the stage that an op's counterpart is in; -1: it is among the ranks of a stage, or of all. The last stage
 * gives outputs to the first, for its next turn. */
static int counterpart(const struct stages *s, int stage, const struct sw_op *op) {
    if (op->kind == SW_OP_SUM_TABLE)
        return stage == 0 ? s->count - 1 : 0;
    if (op->kind != SW_OP_SEND && op->kind != SW_OP_RECEIVE)
        return -1;
    const int next = (op->kind == SW_OP_SEND) == (op->content == SW_CONTENT_BLOCK_OUTPUT) ? 1 : s->count - 1;
    return (stage + next) % s->count;
}

static bool meet(const struct sw_op *one, const struct sw_op *other) {
    const bool table = one->kind == SW_OP_SUM_TABLE && other->kind == SW_OP_SUM_TABLE;
    const bool pass = (one->kind == SW_OP_SEND && other->kind == SW_OP_RECEIVE) ||
                      (one->kind == SW_OP_RECEIVE && other->kind == SW_OP_SEND);
    return table || (pass && one->content == other->content && one->unit == other->unit && one->micro == other->micro);
}

/* Advances each stage whose next op is alone, or meets that of the stage it is for. Returns whether any did. All ranks
 * of a stage have one order, so that an op among them never waits. */
static bool advance(struct stages *s, uint64_t seed) {
    bool moved = false;
    for (int stage = 0; stage < s->count; stage++) {
        const struct sw_op *op = next_op(s, stage);
        if (op == NULL || sw_ops[op->kind].among == SW_AMONG_JOB)
            continue;
        const int with = counterpart(s, stage, op);
        if (with < 0) {
            s->at[stage]++;
            moved = true;
            continue;
        }
        const struct sw_op *other = next_op(s, with);
        if (other == NULL || counterpart(s, with, other) != stage)
            continue;
        if (!meet(op, other))
            fail_msg("seed %llu: stage %d does '%s' of unit %d micro %d, and stage %d '%s' of unit %d micro %d",
                     (unsigned long long)seed, stage, sw_op_name(op->kind), op->unit, op->micro, with,
                     sw_op_name(other->kind), other->unit, other->micro);
        s->at[stage]++;
        s->at[with]++;
        moved = true;
    }
    return moved;
}

/* All stages come to the exchange with all ranks, which is the last of a program. */
static void check_meetings(struct stages *s, sw_program_kind kind, uint64_t seed) {
    s->program = kind;
    memset(s->at, 0, sizeof s->at);
    while (advance(s, seed))
        ;
    for (int stage = 0; stage < s->count; stage++) {
        const struct sw_op *op = next_op(s, stage);
        if (op == NULL || sw_ops[op->kind].among != SW_AMONG_JOB)
            fail_msg("seed %llu: stage %d of %d waits for ever in '%s' of unit %d micro %d", (unsigned long long)seed,
                     stage, s->count, op == NULL ? "nothing" : sw_op_name(op->kind), op == NULL ? -1 : op->unit,
                     op == NULL ? -1 : op->micro);
        s->at[stage]++;
        assert_null(next_op(s, stage));
    }
}

/* Each grain is updated in one stage, but for a tied table's, which two have; each micro-batch of a unit is computed in
 * one stage. */
static void check_work(const struct stages *s, uint64_t seed) {
    const struct sw_units *units = s->plan[0]->spec.units;
    for (int64_t u = 0; u < units->count; u++) {
        int64_t updated = 0, forward = 0, backward = 0;
        for (int stage = 0; stage < s->count; stage++) {
            const struct sw_program *program = &s->plan[stage]->program[SW_PROGRAM_UPDATE];
            for (int32_t i = 0; i < program->op_count; i++) {
                const struct sw_op *op = &program->op[i];
                const bool updates = op->kind == SW_OP_UPDATE_ON_HOST || op->kind == SW_OP_UPDATE_ON_DEVICE;
                updated += updates && op->unit == u ? op->grains : 0;
                forward += op->kind == SW_OP_FORWARD && op->unit == u;
                backward += (op->kind == SW_OP_BACKWARD || op->kind == SW_OP_FORWARD_BACKWARD_HEAD) && op->unit == u;
            }
        }
        const struct sw_plan *there = s->plan[sw_plan_stage_of(s->plan[0], u)];
        const int64_t own = sw_plan_trains(there, u) ? sw_plan_shard(there, u).grains : 0;
        const int64_t each = there->spec.zero == SW_ZERO_NONE ? sw_plan_trained(there, u).grains : own;
        const bool head = u + 1 == units->count;
        const int64_t micros = s->plan[0]->spec.micro_batches;
        if (updated != each * (u == 0 && units->tied ? 2 : 1) || forward != (head ? 0 : micros) ||
            backward != (head || sw_plan_passes_back(there, u) ? micros : 0))
            fail_msg("seed %llu: unit %lld has %lld grains updated, %lld forward and %lld backward passes",
                     (unsigned long long)seed, (long long)u, (long long)updated, (long long)forward,
                     (long long)backward);
    }
}

/* Returns the most groups of which a stage keeps what the backward pass of a turn needs. Without further turns they are
 * as many as stages are from it to the last one. With them, a stage runs so many forward passes before the first
 * backward pass, and a group's backward pass comes by more or fewer passes later by its turn; of this run of passes the
 * turn has its part. Rounds that differ by a group add one for each other turn. */
static int64_t most_in_flight(const struct sw_plan *plan, int turn) {
    const int64_t behind = sw_plan_stages(plan) - 1 - plan->spec.pipeline.stage, groups = sw_plan_groups(plan);
    const int64_t rounds = sw_max_i64(1, groups / sw_plan_stages(plan)), round = sw_div_up(groups, rounds);
    const int64_t turns = sw_plan_turns(plan), ahead = sw_min_i64(turns * groups, 2 * behind + (turns - 1) * round);
    const int64_t passes = ahead + (turns - 1 - 2 * turn) * round + 1;
    const int64_t part = passes / (turns * round) * round + sw_min_i64(round, passes % (turns * round));
    return sw_min_i64(groups, turns == 1 ? behind + 1 : part + (groups % rounds > 0 ? turns - 1 : 0));
}

static void check_memory(const struct stages *s) {
    for (int stage = 0; stage < s->count; stage++) {
        const struct sw_plan *plan = s->plan[stage];
        const int64_t group = sw_plan_group(plan), groups = sw_plan_groups(plan);
        for (int32_t i = 0; i < plan->slot_count; i++) {
            const struct sw_slot *slot = &plan->slot[i];
            if (slot->unit < 0)
                continue;
            assert_true(sw_plan_holds(plan, slot->unit));
            const int turn = sw_plan_turn_of(plan, slot->unit);
            const bool received = turn >= 0 && slot->unit > 0 && slot->unit == sw_plan_first_unit(plan, turn);
            const int64_t most = turn >= 0 ? most_in_flight(plan, turn) : 0, pieces = slot->pieces / group;
            const int64_t arriving = received ? sw_min_i64(2, sw_plan_turns(plan)) : 0;
            if (i == plan->index->of_unit[SLOT_INPUT][slot->unit])
                assert_in_range(pieces, 1, sw_min_i64(groups, most + arriving));
            if (i == plan->index->of_unit[SLOT_INPUT][slot->unit] && sw_plan_turns(plan) == 1)
                assert_int_equal(pieces, sw_min_i64(groups, most + arriving));
            if (i == plan->index->of_unit[SLOT_SAVED][slot->unit])
                assert_in_range(pieces, sw_plan_turns(plan) == 1 ? most : 1, most);
        }
    }
}

static int least(int64_t a, int64_t b) {
    return (int)sw_min_i64(a, b);
}

static void draw_bounds(struct plans_random *random, struct sw_plan_spec *spec) {
    const int units = (int)spec->units->count, groups = (int)sw_div_up(spec->micro_batches, spec->group);
    const int most = least(units, MOST_STAGES), most_interleaved = least(least(units / 2, groups), MOST_STAGES);
    const bool interleaves = plans_draw(random, 0, 1) == 0 && most_interleaved >= 2;
    const int stages = (int)plans_draw(random, 2, interleaves ? most_interleaved : most);
    const int turns = interleaves ? (int)plans_draw(random, 2, least(units / stages, MOST_TURNS)) : 1;
    const int count = stages * turns;
    spec->pipeline.stages = stages;
    spec->pipeline.turns = turns;
    for (int k = 1; k < count; k++)
        spec->pipeline.bound[k] = (int32_t)plans_draw(random, spec->pipeline.bound[k - 1] + 1, units - count + k);
    spec->pipeline.bound[count] = units;
}

static struct sw_plan_spec draw_spec(struct plans_random *random, struct sw_units **units) {
    struct sw_plan_spec spec = plans_random_spec(random, MOST_UNITS, MOST_GRAINS, units);
    const bool tensor = plans_draw(random, 0, 2) == 0;
    plans_draw_tensor(random, MOST_DATA_RANKS, *units, &spec);
    spec.tensor.sequence = spec.tensor.partition_inputs = false;
    if (!tensor)
        spec.tensor = (struct sw_plan_tensor){0};
    const bool freezes = plans_draw(random, 0, 2) == 0;
    if (!freezes)
        plans_train_all(*units);
    else if (!tensor)
        plans_draw_spans(random, *units);
    (*units)->fp8 = false;
    for (int64_t u = 0; u < (*units)->count; u++) {
        random->cost[u].shares_input = random->cost[u].continues = random->cost[u].adapted = false;
        random->cost[u].output_bytes = u + 1 < (*units)->count ? random->cost[0].output_bytes : 0;
        if (!tensor) {
            (*units)->unit[u].replicated_grain = (*units)->unit[u].grains;
            (*units)->unit[u].replicated_elems = 0;
        }
    }
    spec.micro_batches = plans_draw(random, 1, 9);
    spec.group = plans_draw(random, 0, 2) > 0 ? 1 : plans_draw(random, 1, spec.micro_batches);
    spec.ranks = (int)plans_draw(random, 1, MOST_DATA_RANKS);
    spec.rank = (int)plans_draw(random, 0, spec.ranks - 1);
    spec.zero = (int)plans_draw(random, SW_ZERO_NONE, SW_ZERO_WEIGHTS);
    draw_bounds(random, &spec);
    for (int s = 0; s < spec.pipeline.stages; s++) {
        struct sw_unit *unit = &(*units)->unit[spec.pipeline.bound[s]];
        if (!sw_stage_trains(&spec.pipeline, s, *units))
            unit->trained_grain = unit->base_grains = 0;
    }
    return spec;
}

/* How many of the models have what. */
struct drawn {
    int tied, tensor, interleaved, frozen;
};

static void try_random_model(uint64_t seed, struct drawn *drawn) {
    struct plans_random random = {.seed = seed};
    struct sw_units *units;
    struct sw_plan_spec spec = draw_spec(&random, &units);
    struct stages s = {.count = spec.pipeline.stages};
    for (spec.pipeline.stage = 0; spec.pipeline.stage < s.count; spec.pipeline.stage++) {
        struct sw_plan **plan = &s.plan[spec.pipeline.stage];
        must(sw_plan_create(&spec, plan));
        if (sw_plan_check(*plan) != SW_OK)
            fail_msg("seed %llu, stage %d of %d: %s", (unsigned long long)seed, spec.pipeline.stage, s.count,
                     sw_error_message(SW_ERR_INTERNAL));
        assert_true(plans_have_same_waits(*plan, SW_PROGRAM_UPDATE));
    }
    check_meetings(&s, SW_PROGRAM_START, seed);
    check_meetings(&s, SW_PROGRAM_UPDATE, seed);
    check_meetings(&s, SW_PROGRAM_LOSS, seed);
    check_work(&s, seed);
    check_memory(&s);
    drawn->tied += units->tied;
    drawn->tensor += spec.tensor.ranks > 1;
    drawn->interleaved += spec.pipeline.turns > 1;
    bool any = false;
    for (int64_t u = 0; u < units->count; u++)
        any |= units->unit[u].trained_grain > 0;
    drawn->frozen += any;
    for (int stage = 0; stage < s.count; stage++)
        sw_plan_destroy(s.plan[stage]);
    sw_units_destroy(units);
}

static void plans_of_stages_fit_together(void **state) {
    (void)state;
    struct drawn drawn = {0};
    for (uint64_t seed = SEED; seed < SEED + MODELS; seed++)
        try_random_model(seed, &drawn);
    printf("# %d of %d models are tied, %d have tensor groups, %d interleave stages, %d have frozen weights\n",
           drawn.tied, MODELS, drawn.tensor, drawn.interleaved, drawn.frozen);
    assert_true(drawn.tied > MODELS / 3 && drawn.tensor > MODELS / 5 && drawn.interleaved > MODELS / 5 &&
                drawn.frozen > MODELS / 8);
}

/* A stage has each pass once, a forward pass before its backward pass, and before either what it needs of others. */
static void check_schedule(int stages, int turns, int groups, int stage) {
    const struct sw_plan_pipeline pipeline = {.stages = stages, .stage = stage, .turns = turns};
    const int64_t total = (int64_t)turns * groups, ends = stage + 1 == stages ? groups : 0;
    unsigned char *seen = calloc((size_t)total, 1); /* bits: events */
    struct sw_stage_schedule *schedule;
    assert_non_null(seen);
    must(sw_stage_schedule_create(&pipeline, groups, &schedule));
    assert_int_equal(schedule->count, 4 * total - (stage == 0 ? groups : 0) - ends);
    for (int64_t i = 0; i < schedule->count; i++) {
        const struct sw_stage_event *event = &schedule->event[i];
        unsigned char *at = &seen[event->turn * groups + event->group];
        const bool first = stage + event->turn == 0, last = stage + 1 == stages && event->turn + 1 == turns;
        const unsigned needs[SW_STAGE_EVENTS] = {[SW_STAGE_GETS_GRADS] = 1U << SW_STAGE_FORWARD,
                                                 [SW_STAGE_FORWARD] = first ? 0 : 1U << SW_STAGE_GETS_OUTPUTS,
                                                 [SW_STAGE_BACKWARD] =
                                                     1U << SW_STAGE_FORWARD | (last ? 0 : 1U << SW_STAGE_GETS_GRADS)};
        assert_int_equal(*at & (1U << event->kind), 0);
        assert_int_equal(*at & needs[event->kind], needs[event->kind]);
        assert_in_range(event->grads, 0, schedule->grads - 1);
        *at |= (unsigned char)(1U << event->kind);
    }
    free(seen);
    sw_stage_schedule_destroy(schedule);
}

/* Schedules of all small numbers exist: each stage has all passes and gets what these need before them. */
static void schedules_of_all_sizes_exist(void **state) {
    enum { STAGES = 8, TURNS = 4, ROUNDS = 4 };
    (void)state;
    for (int stages = 2; stages <= STAGES; stages++)
        for (int turns = 1; turns <= TURNS; turns++)
            for (int groups = turns == 1 ? 1 : stages; groups <= ROUNDS * stages + 1; groups++)
                for (int stage = 0; stage < stages; stage++)
                    check_schedule(stages, turns, groups, stage);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(plans_of_stages_fit_together),
                                       cmocka_unit_test(schedules_of_all_sizes_exist)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
