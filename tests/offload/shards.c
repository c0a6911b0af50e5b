/* Plans for several ranks, random as the others: each rank's is proven by the checker, all ranks do the same between
 * them in the same order, decide alike within the same budgets, and together update every grain once. */
#include "core/size.h"
#include "offload/plan/plan.h"
#include "offload/plan/plan_private.h"
#include "offload/simulate/search.h"
#include "offload/simulate/simulate.h"
#include "tests/equipment/must.h"
#include "tests/offload/oracle.h"
#include "tests/offload/plans.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MODELS = 1500,
    MOST_UNITS = 8,
    MOST_GRAINS = 20,
    MOST_RANKS = 5,
    JUDGED_EVERY = 50,
    PRICED_EVERY = 10,
    SPANS_EVERY = 4,
    SEED = 1
};

static bool same_between_ranks(const struct sw_op *a, const struct sw_op *b) {
    return a->kind == b->kind && a->content == b->content && a->unit == b->unit && a->chunk == b->chunk &&
           a->micro == b->micro && a->bucket == b->bucket && a->secondary == b->secondary && a->frozen == b->frozen;
}

/* Collectives that wait for each other on different ranks would stand still if they came in different orders. */
static void check_same_order(struct sw_plan *const *plan, int ranks, uint64_t seed) {
    for (int p = 0; p < SW_PROGRAMS; p++) {
        const struct sw_program *first = &plan[0]->program[p];
        for (int r = 1; r < ranks; r++) {
            const struct sw_program *other = &plan[r]->program[p];
            if (first->lane_count[SW_LANE_COMM] != other->lane_count[SW_LANE_COMM])
                fail_msg("seed %llu: rank %d has another number of ops between ranks", (unsigned long long)seed, r);
            for (int32_t i = 0; i < first->lane_count[SW_LANE_COMM]; i++)
                if (!same_between_ranks(&first->op[first->lane_op[SW_LANE_COMM][i]],
                                        &other->op[other->lane_op[SW_LANE_COMM][i]]))
                    fail_msg("seed %llu: rank %d has another op %d between ranks", (unsigned long long)seed, r, i);
        }
    }
}

static void check_same_decisions(struct sw_plan *const *plan, int ranks, uint64_t seed) {
    for (int r = 1; r < ranks; r++) {
        const size_t units = (size_t)plan[0]->spec.units->count;
        if (memcmp(plan[0]->placement, plan[r]->placement, units * sizeof *plan[0]->placement) != 0 ||
            memcmp(plan[0]->recompute, plan[r]->recompute, units * sizeof *plan[0]->recompute) != 0 ||
            memcmp(plan[0]->tier_bytes, plan[r]->tier_bytes, SW_NVME * sizeof plan[0]->tier_bytes[0]) != 0)
            fail_msg("seed %llu: rank %d decides otherwise than rank 0", (unsigned long long)seed, r);
    }
}

/* The grains of a unit that training leaves alone, in front of the others. */
static int64_t frozen_of(const struct sw_plan *plan, int64_t unit) {
    return plan->spec.units->unit[unit].trained_grain;
}

/* Tells whether a unit has frozen grains beside trained ones, or a base: its spans are gathered one by one, exactly as
 * they lie. */
static bool has_parts(const struct sw_plan *plan, int64_t unit) {
    const struct sw_unit *u = &plan->spec.units->unit[unit];
    return u->base_grains > 0 || (u->trained_grain > 0 && u->trained_grain < u->grains);
}

/* Which units are looked at: all, or in jobs with expert groups those that all ranks share, or experts. */
typedef bool (*of_units)(const struct sw_unit *unit);

static bool any_unit(const struct sw_unit *unit) {
    (void)unit;
    return true;
}

static bool of_all_ranks(const struct sw_unit *unit) {
    return !unit->shared_out;
}

static bool of_experts(const struct sw_unit *unit) {
    return unit->shared_out;
}

/* How often the ranks update each grain of a unit, in a step. */
static void check_updates(struct sw_plan *const *plan, int ranks, of_units of, uint64_t seed) {
    const struct sw_units *units = plan[0]->spec.units;
    const int all = plan[0]->spec.zero == SW_ZERO_NONE ? ranks : 1;
    for (int64_t u = 0; u < units->count; u++) {
        if (!of(&units->unit[u]))
            continue;
        int times[MOST_GRAINS * 4] = {0};
        assert_true(units->unit[u].grains <= MOST_GRAINS * 4);
        for (int r = 0; r < ranks; r++) {
            const struct sw_program *program = &plan[r]->program[SW_PROGRAM_UPDATE];
            for (int32_t i = 0; i < program->op_count; i++) {
                const struct sw_op *op = &program->op[i];
                const bool updates = op->kind == SW_OP_UPDATE_ON_HOST || op->kind == SW_OP_UPDATE_ON_DEVICE;
                for (int64_t g = 0; updates && op->unit == u && g < op->grains; g++)
                    times[op->first_grain + g]++;
            }
        }
        for (int64_t g = 0; g < units->unit[u].grains; g++)
            if (times[g] != (g < frozen_of(plan[0], u) ? 0 : all))
                fail_msg("seed %llu: grain %lld of unit %lld is updated %d times", (unsigned long long)seed,
                         (long long)g, (long long)u, times[g]);
    }
}

/* Every matrix of Muon lies whole in one update. */
static void check_matrices(struct sw_plan *const *plan, int ranks, uint64_t seed) {
    for (int r = 0; r < ranks; r++) {
        const struct sw_program *program = &plan[r]->program[SW_PROGRAM_UPDATE];
        for (int32_t i = 0; i < program->op_count; i++) {
            const struct sw_op *op = &program->op[i];
            const bool updates = op->kind == SW_OP_UPDATE_ON_HOST || op->kind == SW_OP_UPDATE_ON_DEVICE;
            const struct sw_unit *unit = updates ? &plan[r]->spec.units->unit[op->unit] : NULL;
            const int64_t first = op->first_grain * SW_GRAIN_ELEMS, end = first + op->grains * SW_GRAIN_ELEMS;
            for (int64_t m = 0; updates && m < unit->muon_count; m++) {
                const int64_t at = unit->muon[m].first_elem, behind = at + unit->muon[m].outputs * unit->muon[m].inputs;
                if (at < end && behind > first && (at < first || behind > end))
                    fail_msg("seed %llu: rank %d updates a part of matrix %lld of unit %lld", (unsigned long long)seed,
                             r, (long long)m, (long long)op->unit);
            }
        }
    }
}

/* Bytes that all ranks send for the gathers of a unit, and for one gather among all. */
struct gathers {
    int64_t among_all, in_parts, once;
    int64_t unit_bytes; /* as its weights lie, as which secondary shards are kept */
};

/* With secondary shards only the first gather of a step is among all ranks; those of a part of P ranks send (P-1) times
 * the unit in each part. */
static void check_secondary(const struct sw_plan *plan, int64_t unit, struct gathers sent, uint64_t seed) {
    const int64_t parts = plan->spec.secondary_ranks > 1 ? plan->spec.secondary_ranks : 1;
    const int64_t part_bytes = plan->spec.ranks / parts * (parts - 1) * sent.unit_bytes;
    const bool kept = sw_plan_keeps_secondary(plan, unit);
    /* Where slots are many and units few, slots may hold a unit until the step ends. */
    const bool again = plan->spec.unit_slots == 2 && plan->spec.units->count > 5;
    if (kept ? sent.among_all != sent.once || (again && sent.in_parts == 0) || sent.in_parts % part_bytes != 0
             : sent.in_parts != 0)
        fail_msg("seed %llu: of unit %lld %lld bytes are gathered among all ranks and %lld within parts of %lld",
                 (unsigned long long)seed, (long long)unit, (long long)sent.among_all, (long long)sent.in_parts,
                 (long long)parts);
}

/* Returns the bytes of the slots that a unit has for its weights, or its base, where they live. */
static int64_t home_bytes(const struct sw_plan *plan, int64_t unit, sw_content content) {
    int64_t bytes = 0;
    for (int32_t s = 0; s < plan->slot_count; s++) {
        const struct sw_slot *slot = &plan->slot[s];
        const bool table = s == plan->index->slot[SLOT_TABLE]; /* a copy of weights that live elsewhere */
        bytes += slot->resident && slot->content == content && slot->unit == unit && !table ? slot->bytes : 0;
    }
    return bytes;
}

/* A grain of a base takes its elements in 8 or 4 bits, and scales (core/base_format.h). */
static const int64_t record_bytes[] = {
    [SW_BASE_INT8] = 16640, [SW_BASE_NF4] = 8512, [SW_BASE_FP8] = 16896, [SW_BASE_MXFP4] = 8704};

/* In stage 3 every rank has room for an even share of each span of a unit, rounded up, and else for all of them. */
static void check_homes(const struct sw_plan *plan, int sharers, int64_t unit, int64_t grain_bytes, uint64_t seed) {
    const struct sw_units *units = plan->spec.units;
    const struct sw_unit *u = &units->unit[unit];
    const int64_t ranks = plan->spec.zero == SW_ZERO_WEIGHTS ? sharers : 1, before = ranks - 1;
    const int64_t trained = u->grains - u->trained_grain, frozen = u->trained_grain - u->base_grains;
    const int64_t record = record_bytes[units->base];
    const int64_t cells = (u->base_grains * record + 32767) / 32768;
    /* Whole weights may begin some grains behind the start, so that spans have chunks of their own. */
    const int64_t lead = ranks == 1 && trained > 0 ? sw_plan_lead_grains(plan, unit) : 0;
    int64_t most = (trained + before) / ranks;
    for (int r = 0; r < ranks && u->muon_count > 0; r++)
        most = sw_max_i64(most, sw_unit_shard(u, unit, (int)ranks, r).grains);
    const int64_t grains = most + (frozen + before) / ranks + lead;
    const int64_t base = (cells + before) / ranks * 32768;
    if (home_bytes(plan, unit, SW_CONTENT_WEIGHTS) != grains * grain_bytes ||
        home_bytes(plan, unit, SW_CONTENT_BASE) != base)
        fail_msg("seed %llu: unit %lld has room for %lld bytes of weights and %lld of its base, not %lld and %lld",
                 (unsigned long long)seed, (long long)unit, (long long)home_bytes(plan, unit, SW_CONTENT_WEIGHTS),
                 (long long)home_bytes(plan, unit, SW_CONTENT_BASE), (long long)(grains * grain_bytes),
                 (long long)base);
}

/* A unit's frozen weights beside trained ones, and its base, are gathered as often as its other weights, in stage 3. A
 * span without bytes is not gathered. */
static void check_frozen_traffic(struct sw_plan *const *plan, int ranks, int64_t unit, int64_t grain_bytes,
                                 int64_t times, uint64_t seed) {
    const struct sw_units *units = plan[0]->spec.units;
    const struct sw_unit *u = &units->unit[unit];
    const int64_t record = record_bytes[units->base];
    const int64_t frozen = u->trained_grain < u->grains ? u->trained_grain - u->base_grains : 0;
    const int64_t expected[2] = {(ranks - 1) * times * frozen * grain_bytes,
                                 (ranks - 1) * times * ((u->base_grains * record + 32767) / 32768) * 32768};
    int64_t found[2] = {0};
    for (int r = 0; r < ranks; r++) {
        const struct sw_program *program = &plan[r]->program[SW_PROGRAM_UPDATE];
        for (int32_t i = 0; i < program->op_count; i++) {
            const struct sw_op *op = &program->op[i];
            const bool gathers = op->kind == SW_OP_ALL_GATHER && op->unit == unit;
            found[0] += gathers && op->frozen ? op->bytes : 0;
            found[1] += gathers && op->content == SW_CONTENT_BASE ? op->bytes : 0;
        }
    }
    if (found[0] != expected[0] || found[1] != expected[1])
        fail_msg("seed %llu: of unit %lld %lld bytes of frozen weights and %lld of its base are gathered, not %lld and "
                 "%lld",
                 (unsigned long long)seed, (long long)unit, (long long)found[0], (long long)found[1],
                 (long long)expected[0], (long long)expected[1]);
}

/* Returns how often a unit is gathered: by the ops that make its spans whole on rank 0. */
static int64_t times_gathered(const struct sw_plan *plan, int64_t unit) {
    const struct sw_program *program = &plan->program[SW_PROGRAM_UPDATE];
    int64_t times[3] = {0};
    for (int32_t i = 0; i < program->op_count; i++) {
        const struct sw_op *op = &program->op[i];
        if (op->kind == SW_OP_ALL_GATHER && op->unit == unit && op->content != SW_CONTENT_GRADS && !op->secondary)
            times[op->content == SW_CONTENT_BASE ? 2 : op->frozen]++;
    }
    return times[0] > 0 ? times[0] : times[2];
}

/* Every trained unit's gradient is reduced once, or once a group; what all ranks send for it is (N-1) times its bytes,
 * and as much again where something whole comes of it. Only frozen weights that are sharded travel. */
static void check_traffic(struct sw_plan *const *plan, int ranks, of_units of, uint64_t seed) {
    const struct sw_plan_spec *spec = &plan[0]->spec;
    const struct sw_units *units = spec->units;
    const int64_t typed = SW_GRAIN_ELEMS * sw_dtype_bytes(spec->type);
    const bool quant_grads = spec->zero >= SW_ZERO_OPTIMIZER && spec->reduce != SW_QUANT_NONE;
    const int64_t grads_bytes = !quant_grads ? typed : spec->reduce == SW_QUANT_INT8 ? 16384 + 256 : 8192 + 256;
    for (int64_t u = 0; u < units->count; u++) {
        if (!of(&units->unit[u]))
            continue;
        const int64_t lying = units->fp8 && u > 0 && u + 1 < units->count ? SW_GRAIN_ELEMS : typed;
        const bool trained = frozen_of(plan[0], u) < units->unit[u].grains;
        const bool whole = spec->zero < SW_ZERO_WEIGHTS;
        const bool quant_weights = !whole && !has_parts(plan[0], u) && spec->gather != SW_QUANT_NONE;
        /* Stage 0 gathers gradients. */
        const int64_t weights_bytes = quant_weights ? 16384 + 256 : spec->zero == SW_ZERO_NONE ? typed : lying;
        int64_t reduced = 0, gathered = 0, in_parts = 0, across = 0;
        for (int r = 0; r < ranks; r++) {
            const struct sw_program *program = &plan[r]->program[SW_PROGRAM_UPDATE];
            for (int32_t i = 0; i < program->op_count; i++) {
                const struct sw_op *op = &program->op[i];
                const bool reduces = op->kind == SW_OP_REDUCE_GRADIENTS || op->kind == SW_OP_EXCHANGE_GRADIENTS;
                across += reduces && op->unit == u && op->level == SW_LEVEL_ACROSS ? op->bytes : 0;
                assert_true(!reduces || (op->kind == SW_OP_EXCHANGE_GRADIENTS) == quant_grads);
                reduced += reduces && op->unit == u ? op->bytes : 0;
                const bool apart = op->frozen || op->content == SW_CONTENT_BASE;
                const bool gathers = op->kind == SW_OP_ALL_GATHER && op->unit == u && !apart;
                gathered += gathers && !op->secondary ? op->bytes : 0;
                in_parts += gathers && op->secondary ? op->bytes : 0;
            }
        }
        const int64_t shared = units->unit[u].grains - (trained ? frozen_of(plan[0], u) : units->unit[u].base_grains);
        const int64_t grains = (ranks - 1) * shared;
        const int64_t once = grains * weights_bytes, once_reduced = grains * grads_bytes;
        const int64_t groups = sw_plan_reduces_groups(plan[0], u) ? sw_plan_groups(plan[0]) : 1;
        const int64_t times = trained ? groups : 0;
        const bool shards =
            whole || once == 0 ? gathered == (trained ? once : 0) : gathered % once == 0 && gathered > 0;
        if (reduced != times * once_reduced || !shards)
            fail_msg("seed %llu: of unit %lld %lld bytes are reduced and %lld gathered, not %lld",
                     (unsigned long long)seed, (long long)u, (long long)reduced, (long long)gathered, (long long)once);
        check_homes(plan[0], ranks, u, lying, seed);
        check_frozen_traffic(plan, ranks, u, lying, whole ? 0 : times_gathered(plan[0], u), seed);
        if (!whole && times_gathered(plan[0], u) == 0)
            fail_msg("seed %llu: unit %lld is never gathered", (unsigned long long)seed, (long long)u);
        /* Between nodes, a rank's chunk is given to it once by each other node. */
        const int64_t nodes = sw_plan_reduce_nodes(plan[0]);
        if (across != times * (nodes - 1) * shared * grads_bytes)
            fail_msg("seed %llu: of unit %lld %lld bytes are exchanged between %lld nodes", (unsigned long long)seed,
                     (long long)u, (long long)across, (long long)nodes);
        check_secondary(plan[0], u, (struct gathers){gathered, in_parts, once, units->unit[u].grains * lying}, seed);
    }
}

static const struct sw_unit_seconds no_time[MOST_UNITS] = {0};

static struct sw_rates make_rates(void) {
    const struct sw_rate fast = {.bytes_per_s = 1e12, .cores = 1.0};
    return (struct sw_rates){.cores = 16.0,
                             .compute_cores = 1.0,
                             .upload = fast,
                             .download = fast,
                             .update = fast,
                             .update_on_device = fast,
                             .finish = fast,
                             .zero = fast,
                             .read = fast,
                             .write = fast,
                             .read_write_slowdown = 1.0,
                             .gather = {.bytes_per_s = 2e9},
                             .reduce = {.bytes_per_s = 1e9},
                             .comm_latency_s = 1e-3,
                             .units = no_time};
}

/* Returns the time of an op of the comm lane that gives nothing to other ranks: that of the memory it passes over. */
static double quantizing_s(const struct sw_plan *plan, const struct sw_op *op) {
    const double typed = (double)(SW_GRAIN_ELEMS * sw_dtype_bytes(plan->spec.type)), grains = (double)op->grains;
    const bool in_node = op->level == SW_LEVEL_NODE, across = op->level == SW_LEVEL_ACROSS;
    const int nodes = sw_plan_reduce_nodes(plan), ranks = across ? nodes : plan->spec.ranks / nodes;
    const double record = plan->spec.reduce == SW_QUANT_INT8 ? 16384 + 256 : 8192 + 256;
    switch (op->kind) {
    case SW_OP_QUANTIZE_WEIGHTS:
    case SW_OP_DEQUANTIZE_WEIGHTS: return grains * (16384 + 256 + typed) / 1e12;
    case SW_OP_DEQUANTIZE_GRADIENTS:
        return grains * (ranks * record + (op->wide || in_node ? 4.0 * SW_GRAIN_ELEMS : typed)) / 1e12;
    case SW_OP_QUANTIZE_NODE_SUM: return grains * (4.0 * SW_GRAIN_ELEMS + record) / 1e12;
    default: return -1.0;
    }
}

static bool is_sum(sw_op_kind kind) {
    return kind == SW_OP_REDUCE_GRADIENTS || kind == SW_OP_REDUCE_TENSOR || kind == SW_OP_SUM_REPLICATED;
}

/* The comm lane takes what its bytes take, and the latency of each op. */
static void check_time(const struct sw_plan *plan, uint64_t seed) {
    const struct sw_rates rates = make_rates();
    const struct sw_program *program = &plan->program[SW_PROGRAM_UPDATE];
    struct sw_simulation found;
    double expected_s = 0.0;
    for (int32_t i = 0; i < program->lane_count[SW_LANE_COMM]; i++) {
        const struct sw_op *op = &program->op[program->lane_op[SW_LANE_COMM][i]];
        const double local_s = quantizing_s(plan, op);
        if (local_s >= 0.0)
            expected_s += local_s;
        else
            expected_s += 1e-3 + (double)op->bytes / (is_sum(op->kind) ? 1e9 : 2e9);
    }
    must_seeded(sw_simulate(plan, SW_PROGRAM_UPDATE, false, &rates, NULL, &found), seed);
    if (fabs(found.lane_busy_s[SW_LANE_COMM] - expected_s) > 1e-6 * expected_s || found.step_s < 0.999 * expected_s)
        fail_msg("seed %llu: the comm lane is busy for %g s of %g s, not %g s", (unsigned long long)seed,
                 found.lane_busy_s[SW_LANE_COMM], found.step_s, expected_s);
}

/* Proves the plans one by one. */
static void check_each(struct sw_plan *const *plan, int ranks, uint64_t seed, bool judged) {
    for (int r = 0; r < ranks; r++) {
        must_seeded(sw_plan_check(plan[r]), seed);
        for (int p = 0; judged && p < SW_PROGRAMS; p++) {
            const char *wrong = plan[r]->program[p].op_count > 0 ? oracle_judge(plan[r], (sw_program_kind)p) : NULL;
            if (wrong != NULL)
                fail_msg("seed %llu: the second opinion finds %s in program %d of rank %d", (unsigned long long)seed,
                         wrong, p, r);
            if (plan[r]->program[p].op_count > 0 && !plans_have_same_waits(plan[r], (sw_program_kind)p))
                fail_msg("seed %llu: waits of program %d of rank %d differ if no accesses are kept",
                         (unsigned long long)seed, p, r);
        }
        const char *wrong = oracle_judge_memory(plan[r]);
        if (wrong != NULL)
            fail_msg("seed %llu: the second opinion finds %s", (unsigned long long)seed, wrong);
    }
    check_same_order(plan, ranks, seed);
    check_same_decisions(plan, ranks, seed);
    check_time(plan[0], seed);
}

static void check_plans(struct sw_plan *const *plan, int ranks, uint64_t seed, bool judged) {
    check_each(plan, ranks, seed, judged);
    check_updates(plan, ranks, any_unit, seed);
    check_matrices(plan, ranks, seed);
    if (ranks > 1)
        check_traffic(plan, ranks, any_unit, seed);
}

static bool make_plans(struct sw_plan_spec *spec, struct sw_plan **plan, uint64_t seed) {
    bool made = true;
    for (spec->rank = 0; spec->rank < spec->ranks; spec->rank++) {
        spec->secondary_rank = spec->secondary_ranks > 1 ? spec->rank % spec->secondary_ranks : 0;
        const sw_status status = sw_plan_create(spec, &plan[spec->rank]);
        if (status != SW_OK && status != SW_ERR_BUDGET)
            must_seeded(status, seed);
        if (spec->rank > 0 && (status == SW_OK) != made)
            fail_msg("seed %llu: rank %d refuses what rank 0 takes, or takes what it refuses", (unsigned long long)seed,
                     spec->rank);
        made = status == SW_OK;
        if (!made)
            sw_error_clear();
    }
    return made;
}

/* By rates at which it pays to update some units on the device, and some on the host. */
static bool make_priced_plans(struct sw_plan_spec *spec, struct sw_plan **plan, uint64_t seed) {
    struct sw_rates rates = make_rates();
    struct sw_search_prices prices;
    const struct sw_search_open everything = {.most_ops = SW_SEARCH_OPS, .updates = true, .placement = true};
    rates.update.bytes_per_s = rates.upload.bytes_per_s = rates.download.bytes_per_s = 2e10;
    for (spec->rank = 0; spec->rank < spec->ranks; spec->rank++) {
        spec->secondary_rank = spec->secondary_ranks > 1 ? spec->rank % spec->secondary_ranks : 0;
        const sw_status status = sw_plan_search(spec, &everything, &rates, &prices, &plan[spec->rank]);
        if (status == SW_ERR_BUDGET && spec->rank == 0) {
            sw_error_clear();
            return false;
        }
        must_seeded(status, seed);
        must_seeded(sw_plan_complete(plan[spec->rank]), seed);
    }
    return true;
}

static void release(struct sw_plan **plan, int ranks) {
    for (int r = 0; r < ranks; r++)
        sw_plan_destroy(plan[r]);
}

static void count_secondary(const struct sw_plan *plan, int tally[6]) {
    tally[SW_ZERO_WEIGHTS + 1 + plan->secondary_tier] += plan->spec.secondary_ranks > 1;
}

/* States that must be on the device leave no room for secondary shards there. */
static void try_beside_device(struct sw_plan_spec *spec, uint64_t seed, int tally[6]) {
    struct sw_plan *plan[MOST_RANKS];
    struct sw_plan_spec tight = *spec;
    for (int state = 0; state < SW_STATES; state++) {
        tight.place.automatic[state] = false;
        for (int tier = 0; tier < SW_TIERS; tier++)
            tight.place.share[state][tier] = tier == SW_DEVICE ? 1.0 : 0.0;
    }
    tight.recompute_auto = false;
    tight.budget_bytes[SW_DEVICE] = tight.budget_bytes[SW_HOST] = INT64_C(1) << 50;
    if (!make_plans(&tight, plan, seed))
        return;
    tight.budget_bytes[SW_DEVICE] = plan[0]->tier_bytes[SW_DEVICE] - 1;
    release(plan, tight.ranks);
    if (!make_plans(&tight, plan, seed))
        return;
    check_plans(plan, tight.ranks, seed, seed % JUDGED_EVERY == 0);
    count_secondary(plan[0], tally);
    release(plan, tight.ranks);
}

static void try_random_model(uint64_t seed, int tally[6], int *based) {
    struct plans_random random = {.seed = seed};
    struct sw_units *units;
    struct sw_plan *plan[MOST_RANKS];
    struct sw_plan_spec spec = plans_random_spec(&random, MOST_UNITS, MOST_GRAINS, &units);
    spec.train = true;
    spec.scratch_store = false;
    plans_drop_caches(&random);
    spec.ranks = (int)plans_draw(&random, 2, MOST_RANKS);
    spec.zero = (int)plans_draw(&random, SW_ZERO_NONE, SW_ZERO_WEIGHTS);
    spec.gather = seed % 2 == 0 && !units->fp8 ? SW_QUANT_INT8 : SW_QUANT_NONE;
    spec.reduce = (sw_quant)(seed % 3);
    if (spec.zero == SW_ZERO_WEIGHTS && plans_draw(&random, 0, 1) == 1) {
        spec.secondary_ranks = (int)plans_draw(&random, 2, spec.ranks);
        spec.ranks -= spec.ranks % spec.secondary_ranks;
    }
    if (spec.ranks == 4 && plans_draw(&random, 0, 1) == 1)
        spec.reduce_nodes = 2;
    if (seed % SPANS_EVERY == 0)
        plans_draw_spans(&random, units);
    if (seed % SPANS_EVERY == 1)
        plans_draw_matrices(&random, units);
    if (make_plans(&spec, plan, seed)) {
        check_plans(plan, spec.ranks, seed, seed % JUDGED_EVERY == 0);
        for (int t = SW_DEVICE; t <= SW_HOST; t++)
            spec.budget_bytes[t] = plan[0]->tier_bytes[t] * plans_draw(&random, 60, 110) / 100;
        tally[spec.zero]++;
        *based += spec.zero == SW_ZERO_WEIGHTS && sw_units_base_grains(units) > 0;
        count_secondary(plan[0], tally);
        release(plan, spec.ranks);
        if (make_plans(&spec, plan, seed)) {
            check_plans(plan, spec.ranks, seed, spec.secondary_ranks > 1 && seed % JUDGED_EVERY == 0);
            count_secondary(plan[0], tally);
            release(plan, spec.ranks);
        }
        if (spec.secondary_ranks > 1)
            try_beside_device(&spec, seed, tally);
        if (seed % PRICED_EVERY == 0 && make_priced_plans(&spec, plan, seed)) {
            check_plans(plan, spec.ranks, seed, false);
            release(plan, spec.ranks);
        }
    }
    sw_units_destroy(units);
}

/* Returns the bytes that all ranks of a group give to each other in ops of a kind that deal in a content. */
static int64_t given(struct sw_plan *const *plan, int ranks, sw_op_kind kind, sw_content content) {
    int64_t bytes = 0;
    for (int r = 0; r < ranks; r++) {
        const struct sw_program *program = &plan[r]->program[SW_PROGRAM_UPDATE];
        for (int32_t i = 0; i < program->op_count; i++)
            bytes += program->op[i].kind == kind && program->op[i].content == content ? program->op[i].bytes : 0;
    }
    return bytes;
}

/* Returns how many of a plan's units from `first` on, the embedding excepted, begin a sum of their group. */
static int64_t sums_from(const struct sw_plan_spec *spec, int64_t first) {
    int64_t sums = 0;
    for (int64_t u = sw_max_i64(first, 1); u < spec->units->count; u++)
        sums += !spec->cost[u].continues;
    return sums;
}

/* A unit's results are added up once a micro-batch, forward and backward, and gathered as often: (N-1) times its
 * bytes each. With sequence parallelism the normalised inputs are gathered in their place. Units that continue a sum
 * are added up with the one that began it. The backward pass ends at the first unit that is trained, which gathers no
 * gradient at its input. */
static void check_group_traffic(struct sw_plan *const *plan, uint64_t seed) {
    const struct sw_plan_spec *spec = &plan[0]->spec;
    const int64_t others = spec->tensor.ranks - 1, units = spec->units->count - 1, last = plan[0]->first_trained;
    const int64_t each = others * spec->micro_batches * spec->cost[0].output_bytes;
    const int64_t once = each * sums_from(spec, 1);
    const int64_t softmax = others * spec->tensor.ranks * spec->micro_batches * spec->tensor.softmax_bytes;
    /* Partitioned inputs, of all units but the embedding and the head and what continues a sum, are gathered once more:
     * normalised, or where the unit is computed again. */
    const bool sequence = spec->tensor.sequence;
    int64_t recalled = 0;
    for (int64_t u = sw_max_i64(last, 1); (sequence || spec->tensor.partition_inputs) && u < units; u++)
        if (!spec->cost[u].continues && (sequence || plan[0]->recompute[u] != SW_RECOMPUTE_NOTHING))
            recalled += each;
    const int64_t outputs = sequence ? 0 : once + recalled, normed = sequence ? once + recalled : 0;
    const int n = spec->tensor.ranks;
    if (given(plan, n, SW_OP_REDUCE_TENSOR, SW_CONTENT_BLOCK_OUTPUT) != once ||
        given(plan, n, SW_OP_GATHER_TENSOR, SW_CONTENT_BLOCK_OUTPUT) != outputs ||
        given(plan, n, SW_OP_GATHER_TENSOR, SW_CONTENT_NORMED) != normed ||
        given(plan, n, SW_OP_REDUCE_TENSOR, SW_CONTENT_NORM_GRAD) != each * sums_from(spec, last) ||
        given(plan, n, SW_OP_GATHER_TENSOR, SW_CONTENT_BLOCK_OUTPUT_GRAD) != each * sums_from(spec, last + 1) ||
        given(plan, n, SW_OP_GATHER_TENSOR, SW_CONTENT_SOFTMAX) != softmax)
        fail_msg("seed %llu: a group of %d exchanges other bytes than its units have", (unsigned long long)seed, n);
}

/* The bytes of each op of the comm lane that leave the node are those for the ranks of its scope on other nodes. */
static void check_group_nodes(const struct sw_plan *given, int node, uint64_t seed) {
    const int group = sw_plan_group_ranks(given), tensor = sw_plan_tensor_ranks(given), job = sw_plan_job_ranks(given);
    if (job % node != 0 || (group % node != 0 && node % group != 0) || (tensor % node != 0 && node % tensor != 0))
        return;
    struct sw_plan plan = *given;
    plan.spec.tensor.node_ranks = node < tensor ? node : tensor;
    plan.spec.experts.node_ranks = node < group ? node : group;
    plan.spec.node_ranks = node < group ? 1 : node / group;
    plan.spec.fills_nodes = true;
    const struct sw_program *program = &plan.program[SW_PROGRAM_UPDATE];
    int64_t between = 0;
    for (int32_t i = 0; i < program->lane_count[SW_LANE_COMM]; i++) {
        const struct sw_op *op = &program->op[program->lane_op[SW_LANE_COMM][i]];
        const int64_t expected = plans_bytes_apart(&plan, op, node), found = sw_plan_between_bytes(&plan, op);
        between += found;
        if (found != expected)
            fail_msg(
                "seed %llu: on nodes of %d, of %lld bytes of '%s' in groups of %d %lld go to other nodes, not %lld",
                (unsigned long long)seed, node, (long long)op->bytes, sw_op_name(op->kind), group, (long long)found,
                (long long)expected);
    }
    assert_int_equal(between, sw_plan_sent_bytes(&plan).between_bytes);
    assert_true(node < job ? between > 0 : between == 0);
}

/* Plans of all ranks of a job with groups: those of one number in their groups share state, and all exchange in one
 * order and decide alike. */
static void try_random_groups(uint64_t seed, int *made) {
    struct plans_random random = {.seed = seed};
    struct sw_units *units;
    struct sw_plan *of_number[MOST_RANKS], *of_group[MOST_RANKS];
    struct sw_plan_spec spec = plans_random_spec(&random, MOST_UNITS, MOST_GRAINS, &units);
    plans_draw_tensor(&random, MOST_RANKS, units, &spec);
    spec.ranks = (int)plans_draw(&random, 1, MOST_RANKS);
    spec.zero = (int)plans_draw(&random, SW_ZERO_NONE, SW_ZERO_WEIGHTS);
    const int data_rank = (int)plans_draw(&random, 0, spec.ranks - 1);
    bool fits = true;
    for (spec.tensor.rank = 0; fits && spec.tensor.rank < spec.tensor.ranks; spec.tensor.rank++) {
        fits = make_plans(&spec, of_number, seed);
        if (!fits)
            break;
        check_plans(of_number, spec.ranks, seed, seed % JUDGED_EVERY == 0);
        for (int r = 0; r < spec.ranks; r++)
            if (r != data_rank)
                sw_plan_destroy(of_number[r]);
        of_group[spec.tensor.rank] = of_number[data_rank];
    }
    if (fits) {
        check_same_order(of_group, spec.tensor.ranks, seed);
        check_same_decisions(of_group, spec.tensor.ranks, seed);
        check_group_traffic(of_group, seed);
        for (int node = 1; node <= spec.ranks * spec.tensor.ranks; node++)
            check_group_nodes(of_group[seed % (uint64_t)spec.tensor.ranks], node, seed);
        release(of_group, spec.tensor.ranks);
        (*made)++;
    }
    sw_units_destroy(units);
}

/* Bytes that the ranks of an expert group give to each other in a step. */
struct expert_traffic {
    int64_t rows_gathered, outputs_reduced, outputs_gathered, grads_gathered, norm_grads_reduced;
};

/* The rows that go to experts are gathered forward and backward, and the gradients at what they become; that and the
 * gradients at the rows are added up. A rank gives each other member its micro-batch's rows, and each other rank its
 * part of that rank's. Tensor groups exchange as they do without experts, within each. */
static struct expert_traffic expected_traffic(const struct sw_plan *plan) {
    const struct sw_plan_spec *spec = &plan->spec;
    const int64_t n = spec->experts.ranks, t = sw_plan_tensor_ranks(plan), first = plan->first_trained;
    const int64_t rows = spec->micro_batches * spec->cost[0].output_bytes;
    const int64_t sent = n * t * (n - 1) * rows, summed = n * (n * t - 1) * rows, in_tensor = n * (t - 1) * rows;
    struct expert_traffic sum = {0};
    for (int64_t u = 0; u < spec->units->count; u++) {
        const bool experts = spec->units->unit[u].shared_out, head = u + 1 == spec->units->count, back = u >= first;
        const bool again = spec->tensor.partition_inputs && u > 0 && !head && back &&
                           (experts || plan->recompute[u] != SW_RECOMPUTE_NOTHING);
        sum.rows_gathered += experts ? sent * (1 + back) : 0;
        sum.outputs_reduced += head ? 0 : experts ? summed : in_tensor;
        sum.outputs_gathered += (head ? 0 : in_tensor) + (again ? in_tensor : 0);
        sum.grads_gathered += (experts && back ? sent : 0) + (u > first ? in_tensor : 0);
        sum.norm_grads_reduced += u == 0 || !back ? 0 : experts ? summed : in_tensor;
    }
    return sum;
}

/* plan: those of one expert group. */
static void check_expert_traffic(struct sw_plan *const *plan, uint64_t seed) {
    const int n = sw_plan_group_ranks(plan[0]);
    const struct expert_traffic sum = expected_traffic(plan[0]);
    if (given(plan, n, SW_OP_GATHER_TENSOR, SW_CONTENT_NORMED) != sum.rows_gathered ||
        given(plan, n, SW_OP_REDUCE_TENSOR, SW_CONTENT_BLOCK_OUTPUT) != sum.outputs_reduced ||
        given(plan, n, SW_OP_GATHER_TENSOR, SW_CONTENT_BLOCK_OUTPUT) != sum.outputs_gathered ||
        given(plan, n, SW_OP_GATHER_TENSOR, SW_CONTENT_BLOCK_OUTPUT_GRAD) != sum.grads_gathered ||
        given(plan, n, SW_OP_REDUCE_TENSOR, SW_CONTENT_NORM_GRAD) != sum.norm_grads_reduced)
        fail_msg("seed %llu: an expert group of %d exchanges other bytes than its rows have", (unsigned long long)seed,
                 n);
}

/* Makes the plans of all ranks of a job with expert groups, in the order of ranks. Those with one number in their
 * groups share experts. */
static bool make_expert_plans(struct sw_plan_spec *spec, struct sw_plan **all, uint64_t seed) {
    struct sw_plan *of_number[MOST_RANKS];
    const int tensor = spec->tensor.ranks > 1 ? spec->tensor.ranks : 1, group = spec->experts.ranks * tensor;
    for (int number = 0; number < group; number++) {
        spec->experts.rank = number / tensor;
        spec->tensor.rank = number % tensor;
        if (!make_plans(spec, of_number, seed))
            return false;
        check_updates(of_number, spec->ranks, of_experts, seed);
        if (spec->ranks > 1)
            check_traffic(of_number, spec->ranks, of_experts, seed);
        for (int r = 0; r < spec->ranks; r++)
            all[r * group + number] = of_number[r];
    }
    return true;
}

/* Plans of all ranks of a job whose groups share out experts fit together in the same ways: one rank of each tensor
 * group shares the units without experts, and those of one number in their groups share experts. */
static void try_random_experts(uint64_t seed, int *made, int *of_tensor_groups) {
    struct plans_random random = {.seed = seed};
    struct sw_units *units;
    struct sw_plan *all[2 * MOST_RANKS * MOST_RANKS], *sharers[MOST_RANKS * MOST_RANKS];
    struct sw_plan_spec spec = plans_random_spec(&random, MOST_UNITS, MOST_GRAINS, &units);
    bool fits = plans_draw_experts(&random, MOST_RANKS, units, &spec);
    spec.ranks = (int)plans_draw(&random, 1, MOST_RANKS);
    spec.zero = (int)plans_draw(&random, SW_ZERO_NONE, SW_ZERO_WEIGHTS);
    if (fits && make_expert_plans(&spec, all, seed)) {
        const int tensor = sw_plan_tensor_ranks(all[0]), ranks = sw_plan_job_ranks(all[0]);
        check_each(all, ranks, seed, seed % JUDGED_EVERY == 0);
        for (int number = 0; number < tensor; number++) {
            for (int r = 0; r < ranks / tensor; r++)
                sharers[r] = all[r * tensor + number];
            check_updates(sharers, ranks / tensor, of_all_ranks, seed);
            check_traffic(sharers, ranks / tensor, of_all_ranks, seed);
        }
        check_expert_traffic(all, seed);
        for (int node = 1; node <= ranks; node++)
            check_group_nodes(all[seed % (uint64_t)ranks], node, seed);
        release(all, ranks);
        (*made)++;
        *of_tensor_groups += tensor > 1;
    }
    sw_units_destroy(units);
}

static void plans_of_expert_groups_fit_together(void **state) {
    (void)state;
    int made = 0, of_tensor_groups = 0;
    for (uint64_t seed = SEED; seed < SEED + MODELS / 8; seed++)
        try_random_experts(seed, &made, &of_tensor_groups);
    assert_true(made > MODELS / 20); /* half of the models have as many units as blocks of two */
    assert_true(of_tensor_groups > made / 3 && of_tensor_groups < made * 2 / 3);
}

static void plans_of_groups_fit_together(void **state) {
    (void)state;
    int made = 0;
    for (uint64_t seed = SEED; seed < SEED + MODELS / 3; seed++)
        try_random_groups(seed, &made);
    assert_true(made > MODELS / 4);
}

static void plans_of_ranks_fit_together(void **state) {
    (void)state;
    int tally[6] = {0}, based = 0;
    for (uint64_t seed = SEED; seed < SEED + MODELS; seed++)
        try_random_model(seed, tally, &based);
    printf("# plans of 2 to %d ranks: %d, %d, %d and %d models at stages 0 to 3\n", MOST_RANKS, tally[0], tally[1],
           tally[2], tally[3]);
    printf("# %d with secondary shards on the device and %d on the host\n", tally[4], tally[5]);
    printf("# %d at stage 3 with a quantized base\n", based);
    assert_true(tally[4] > MODELS / 20 && tally[5] > 10 && based > MODELS / 60);
    for (int zero = 0; zero < 4; zero++)
        assert_true(tally[zero] > MODELS / 8);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(plans_of_ranks_fit_together),
                                       cmocka_unit_test(plans_of_groups_fit_together),
                                       cmocka_unit_test(plans_of_expert_groups_fit_together)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
