/* Every plan for random models, chunks, placements and budgets passes the checker and a second opinion, keeps its
 * budgets, and does each piece of work once. A budget that is too small is refused with sizes that then work. */
#include "tests/equipment/must.h"
#include "tests/offload/oracle.h"
#include "tests/offload/plans.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/size.h"

/* Models, two plans each. */
enum {
    MODELS = 2500,
    PLANS = 2 * MODELS,
    JUDGED_EVERY = 25,
    MOST_UNITS = 16,
    MOST_GRAINS = 26,
    SEED = 1,
    LEAST_MEDIAN_OPS = 500
};

/* How often a program does a kind of op with a content, and the bytes that this moves. */
struct work {
    int64_t ops[SW_OP_KINDS][SW_CONTENTS], bytes[SW_OP_KINDS][SW_CONTENTS];
};

static void add_work(struct work *work, sw_op_kind kind, sw_content content, int64_t ops, int64_t bytes) {
    work->ops[kind][content] += ops;
    work->bytes[kind][content] += bytes;
}

static bool is_transfer(sw_op_kind kind) {
    return kind == SW_OP_UPLOAD || kind == SW_OP_DOWNLOAD || kind == SW_OP_READ || kind == SW_OP_WRITE;
}

static struct work count_work(const struct sw_program *program) {
    struct work work = {0};
    for (int32_t i = 0; i < program->op_count; i++) {
        const struct sw_op *op = &program->op[i];
        add_work(&work, op->kind, op->content, 1, is_transfer(op->kind) ? op->bytes : 0);
    }
    return work;
}

/* The work that the placement makes necessary, counted without the plan. */
struct need {
    const struct sw_plan *plan;
    struct work work;
    int64_t slot[UNIT_SLOTS_MAX]; /* unit in each device slot, or -1 */
    int64_t next_slot;
    int64_t typed; /* unit in the slot of embedding and head, where the weights of blocks are narrow; -1: none */
    bool table;    /* a tied table is on the device */
    bool rows;     /* those of an embedding that is not tied are gathered */
};

static sw_tier tier_of(const struct need *need, sw_state state, int64_t unit) {
    return need->plan->placement[unit].tier[state];
}

static int64_t grains_of(const struct sw_plan *plan, int64_t unit) {
    return plan->spec.units->unit[unit].grains;
}

/* The grains of a unit that training leaves alone. */
static int64_t frozen_of(const struct sw_plan *plan, int64_t unit) {
    return plan->spec.units->unit[unit].trained_grain;
}

static bool is_trained(const struct sw_plan *plan, int64_t unit) {
    return frozen_of(plan, unit) < grains_of(plan, unit);
}

/* The backward pass ends at the first unit that training changes. */
static int64_t last_backward(const struct sw_plan *plan) {
    int64_t unit = 0;
    while (!is_trained(plan, unit))
        unit++;
    return unit;
}

/* `times` over: chunks of so many neighbouring grains, with so many bytes for each grain. */
static void need_grains(struct need *need, sw_op_kind kind, sw_content content, int64_t grains, int64_t grain_bytes,
                        int64_t times) {
    add_work(&need->work, kind, content, times * sw_div_up(grains, need->plan->spec.chunk_grains),
             times * grains * grain_bytes);
}

/* The grains of a unit that are quantized, and the cells of 32 KiB that their records fill. */
static int64_t based_of(const struct sw_plan *plan, int64_t unit) {
    return plan->spec.units->unit[unit].base_grains;
}

static int64_t cells_of(const struct sw_plan *plan, int64_t unit) {
    static const int64_t records[] = {
        [SW_BASE_INT8] = 16640, [SW_BASE_NF4] = 8512, [SW_BASE_FP8] = 16896, [SW_BASE_MXFP4] = 8704};
    const int64_t record = records[plan->spec.units->base];
    return (based_of(plan, unit) * record + 32767) / 32768;
}

static void need_frozen(struct need *need, sw_op_kind kind, sw_content content, int64_t unit, int64_t grain_bytes,
                        int64_t times) {
    need_grains(need, kind, content, frozen_of(need->plan, unit) - based_of(need->plan, unit), grain_bytes, times);
}

static void need_trained(struct need *need, sw_op_kind kind, sw_content content, int64_t unit, int64_t grain_bytes,
                         int64_t times) {
    need_grains(need, kind, content, grains_of(need->plan, unit) - frozen_of(need->plan, unit), grain_bytes, times);
}

/* All chunks of a unit: no chunk has grains of both spans. */
static void need_unit(struct need *need, sw_op_kind kind, sw_content content, int64_t unit, int64_t grain_bytes,
                      int64_t times) {
    need_frozen(need, kind, content, unit, grain_bytes, times);
    need_trained(need, kind, content, unit, grain_bytes, times);
}

static int64_t typed_grain(const struct need *need) {
    return SW_GRAIN_ELEMS * sw_dtype_bytes(need->plan->spec.type);
}

static bool narrow_blocks(const struct need *need) {
    return need->plan->spec.units->fp8 || need->plan->spec.units->base != SW_BASE_TYPED;
}

/* The whole base of a unit goes to the device. */
static void need_base(struct need *need, int64_t unit, bool nvme) {
    need_grains(need, SW_OP_UPLOAD, SW_CONTENT_BASE, cells_of(need->plan, unit), 32768, 1);
    need_grains(need, SW_OP_READ, SW_CONTENT_BASE, cells_of(need->plan, unit), 32768, nvme);
}

static bool has_bytes(const struct need *need, int64_t unit) {
    const struct sw_units *units = need->plan->spec.units;
    return units->fp8 && unit > 0 && unit + 1 < units->count;
}

static int64_t weights_grain(const struct need *need, int64_t unit) {
    return has_bytes(need, unit) ? SW_GRAIN_ELEMS : typed_grain(need);
}

/* A unit that lives elsewhere takes the slot whose unit came first; the tied table has one of its own, and embedding
 * and head share one where they are not as blocks are. */
static void occupy(struct need *need, int64_t unit) {
    if (unit == 0 && need->plan->spec.units->tied)
        need->table = true;
    else if (narrow_blocks(need) && (unit == 0 || unit + 1 == need->plan->spec.units->count))
        need->typed = unit;
    else
        need->slot[need->next_slot++ % need->plan->spec.unit_slots] = unit;
}

static bool is_on_device(const struct need *need, int64_t unit) {
    if (unit == 0 && need->plan->spec.units->tied)
        return need->table;
    if (need->typed == unit)
        return true;
    for (int64_t k = 0; k < need->plan->spec.unit_slots; k++)
        if (need->slot[k] == unit)
            return true;
    return false;
}

/* Only rows of the embedding leave the host, where all micro-batches together need less than the whole, unless the
 * device makes the whole. */
static bool gathers(const struct need *need) {
    const struct sw_plan_spec *spec = &need->plan->spec;
    const bool made_on_device = is_trained(need->plan, 0) && tier_of(need, SW_OPTIMIZER, 0) == SW_DEVICE;
    const bool parted = is_trained(need->plan, 0) && frozen_of(need->plan, 0) > 0;
    const int64_t all_bytes = spec->micro_batches * spec->gathered_bytes;
    return all_bytes > 0 && !spec->units->tied && tier_of(need, SW_WEIGHTS, 0) != SW_DEVICE && !made_on_device &&
           !parted && all_bytes <= spec->units->unit[0].elems * sw_dtype_bytes(spec->type);
}

/* Trained weights beside frozen ones on NVMe live there if the request says so, or leaves it open and the host has no
 * room. */
static bool trained_on_nvme(const struct need *need, int64_t unit) {
    const struct sw_plan *plan = need->plan;
    const sw_tier wanted = plan->spec.place.trained;
    if (wanted != SW_DEVICE)
        assert_int_equal(plan->trained_tier, wanted);
    else if (plan->spec.budget_bytes[SW_HOST] == INT64_MAX && plan->spec.budget_bytes[SW_DEVICE] == INT64_MAX)
        assert_int_equal(plan->trained_tier, SW_HOST);
    return tier_of(need, SW_WEIGHTS, unit) == SW_NVME && (frozen_of(plan, unit) == 0 || plan->trained_tier == SW_NVME);
}

static void need_weights(struct need *need, int64_t unit) {
    const sw_tier tier = tier_of(need, SW_WEIGHTS, unit);
    if (unit == 0 && gathers(need)) {
        if (!need->rows) {
            need_unit(need, SW_OP_GATHER_ROWS, SW_CONTENT_NONE, unit, 0, 1);
            need_unit(need, SW_OP_READ, SW_CONTENT_WEIGHTS, unit, weights_grain(need, unit), tier == SW_NVME);
        }
        need->rows = true;
        return;
    }
    if (tier == SW_DEVICE || is_on_device(need, unit))
        return;
    occupy(need, unit);
    need_unit(need, SW_OP_UPLOAD, SW_CONTENT_WEIGHTS, unit, weights_grain(need, unit), 1);
    need_frozen(need, SW_OP_READ, SW_CONTENT_WEIGHTS, unit, weights_grain(need, unit), tier == SW_NVME);
    need_trained(need, SW_OP_READ, SW_CONTENT_WEIGHTS, unit, weights_grain(need, unit), trained_on_nvme(need, unit));
    need_base(need, unit, tier == SW_NVME);
}

static void need_update(struct need *need, int64_t unit) {
    const sw_tier weights = tier_of(need, SW_WEIGHTS, unit), grads = tier_of(need, SW_GRADS, unit);
    const sw_tier optimizer = tier_of(need, SW_OPTIMIZER, unit);
    const bool streams = optimizer != SW_DEVICE && need->plan->spec.update_on_device[unit];
    const bool here = optimizer == SW_DEVICE || streams;
    const int64_t typed = typed_grain(need);
    need_trained(need, here ? SW_OP_UPDATE_ON_DEVICE : SW_OP_UPDATE_ON_HOST, SW_CONTENT_NONE, unit, 0, 1);
    need_trained(need, SW_OP_READ, SW_CONTENT_OPTIMIZER, unit, SW_OPTIMIZER_GRAIN_BYTES, optimizer == SW_NVME);
    need_trained(need, SW_OP_WRITE, SW_CONTENT_OPTIMIZER, unit, SW_OPTIMIZER_GRAIN_BYTES, optimizer == SW_NVME);
    need_trained(need, SW_OP_UPLOAD, SW_CONTENT_OPTIMIZER, unit, SW_OPTIMIZER_GRAIN_BYTES, streams);
    need_trained(need, SW_OP_DOWNLOAD, SW_CONTENT_OPTIMIZER, unit, SW_OPTIMIZER_GRAIN_BYTES, streams);
    need_trained(need, SW_OP_READ, SW_CONTENT_GRADS, unit, typed, grads == SW_NVME);
    need_trained(need, SW_OP_UPLOAD, SW_CONTENT_GRADS, unit, typed, here && grads != SW_DEVICE);
    need_trained(need, SW_OP_DOWNLOAD, SW_CONTENT_GRADS, unit, typed, !here && grads == SW_DEVICE);
    const bool gathered = unit == 0 && gathers(need);
    need_unit(need, SW_OP_GATHER_ROWS, SW_CONTENT_NONE, unit, 0, gathered);
    need->rows |= gathered;
    const int64_t made = weights_grain(need, unit);
    need_trained(need, SW_OP_UPLOAD, SW_CONTENT_WEIGHTS, unit, made, !here && !gathered);
    need_trained(need, SW_OP_DOWNLOAD, SW_CONTENT_WEIGHTS, unit, made, here && weights != SW_DEVICE);
    need_trained(need, SW_OP_WRITE, SW_CONTENT_WEIGHTS, unit, made, trained_on_nvme(need, unit));
    if (weights == SW_DEVICE || gathered)
        return;
    occupy(need, unit);
    need_frozen(need, SW_OP_UPLOAD, SW_CONTENT_WEIGHTS, unit, made, 1);
    need_frozen(need, SW_OP_READ, SW_CONTENT_WEIGHTS, unit, made, weights == SW_NVME);
    need_base(need, unit, weights == SW_NVME);
}

static void need_gradients(struct need *need, int64_t unit, int64_t groups) {
    const sw_tier tier = tier_of(need, SW_GRADS, unit), between = need->plan->placement[unit].accumulator;
    const bool away = tier != SW_DEVICE, table = unit == 0 && need->plan->spec.units->tied;
    const int64_t grain = SW_GRAIN_ELEMS * (int64_t)sizeof(float);
    const int64_t times = between != SW_DEVICE && !table ? groups - 1 : 0;
    add_work(&need->work, SW_OP_ZERO_ACCUMULATOR, SW_CONTENT_NONE, 1, 0);
    add_work(&need->work, SW_OP_DOWNLOAD_SQUARE_SUMS, SW_CONTENT_NONE, 1, 0);
    need_trained(need, SW_OP_ROUND_GRADIENTS, SW_CONTENT_NONE, unit, 0, 1);
    need_trained(need, SW_OP_DOWNLOAD, SW_CONTENT_GRADS, unit, typed_grain(need), away);
    need_trained(need, SW_OP_WRITE, SW_CONTENT_GRADS, unit, typed_grain(need), tier == SW_NVME);
    need_trained(need, SW_OP_DOWNLOAD, SW_CONTENT_ACC, unit, grain, times);
    need_trained(need, SW_OP_UPLOAD, SW_CONTENT_ACC, unit, grain, times);
    need_trained(need, SW_OP_WRITE, SW_CONTENT_ACC, unit, grain, between == SW_NVME ? times : 0);
    need_trained(need, SW_OP_READ, SW_CONTENT_ACC, unit, grain, between == SW_NVME ? times : 0);
}

/* A block's inputs: away after the forward pass, back for the backward pass, and again for each block behind it that
 * shares them. */
static void need_boundaries(struct need *need, int64_t unit) {
    const struct sw_plan_spec *spec = &need->plan->spec;
    const sw_tier tier = tier_of(need, SW_ACTS, unit);
    const int64_t micros = spec->micro_batches, bytes = micros * spec->cost[unit - 1].output_bytes;
    const int64_t away = tier != SW_DEVICE, nvme = tier == SW_NVME;
    int64_t readers = 1;
    if (spec->cost[unit].shares_input)
        return;
    while (unit + readers < spec->units->count - 1 && spec->cost[unit + readers].shares_input)
        readers++;
    const int64_t below = sw_max_i64(0, last_backward(need->plan) - unit); /* readers that have no backward pass */
    if (below >= readers)
        return;
    add_work(&need->work, SW_OP_DOWNLOAD, SW_CONTENT_BLOCK_OUTPUT, away * micros, away * bytes);
    add_work(&need->work, SW_OP_UPLOAD, SW_CONTENT_BLOCK_OUTPUT, away * micros, away * bytes);
    add_work(&need->work, SW_OP_WRITE, SW_CONTENT_BLOCK_OUTPUT, nvme * micros, nvme * bytes);
    add_work(&need->work, SW_OP_READ, SW_CONTENT_BLOCK_OUTPUT, nvme * micros, nvme * bytes);
}

static void need_group(struct need *need, bool updates) {
    const int64_t head = need->plan->spec.units->count - 1;
    for (int64_t u = 0; u <= head; u++) {
        if (updates && is_trained(need->plan, u))
            need_update(need, u);
        need_weights(need, u);
    }
    if (need->plan->spec.units->tied)
        need_weights(need, 0);
    for (int64_t u = head - 1; u > 0 && u >= last_backward(need->plan); u--)
        need_weights(need, u);
}

static struct work needed_work(const struct sw_plan *plan) {
    const int64_t units = plan->spec.units->count, micros = plan->spec.micro_batches;
    const int64_t groups = sw_div_up(micros, sw_min_i64(plan->spec.group, micros));
    struct need need = {.plan = plan, .typed = -1};
    bool commits = !plan->spec.one_generation;
    memset(need.slot, -1, sizeof need.slot);
    for (int64_t g = 0; g < groups; g++)
        need_group(&need, g == 0);
    for (int64_t u = 0; u < units; u++) {
        if (u > 0 && u + 1 < units)
            need_boundaries(&need, u);
        if (!is_trained(plan, u))
            continue;
        need_gradients(&need, u, groups);
        commits &= tier_of(&need, SW_OPTIMIZER, u) == SW_NVME;
    }
    add_work(&need.work, SW_OP_UPLOAD_TOKENS, SW_CONTENT_NONE, 1, 0);
    add_work(&need.work, SW_OP_UPLOAD, SW_CONTENT_ROWS, need.rows * micros,
             need.rows * micros * plan->spec.gathered_bytes);
    add_work(&need.work, SW_OP_FORWARD, SW_CONTENT_NONE, (units - 1) * micros, 0);
    add_work(&need.work, SW_OP_BACKWARD, SW_CONTENT_NONE,
             (units - 1 - sw_min_i64(units - 1, last_backward(plan))) * micros, 0);
    add_work(&need.work, SW_OP_FORWARD_BACKWARD_HEAD, SW_CONTENT_NONE, micros, 0);
    add_work(&need.work, SW_OP_COMPUTE_NORM, SW_CONTENT_NONE, 1, 0);
    add_work(&need.work, SW_OP_COMMIT, SW_CONTENT_NONE, commits, 0);
    return need.work;
}

static void check_work(const struct sw_plan *plan, uint64_t seed) {
    const struct work found = count_work(&plan->program[SW_PROGRAM_UPDATE]), needed = needed_work(plan);
    for (int k = 0; k < SW_OP_KINDS; k++)
        for (int c = 0; c < SW_CONTENTS; c++)
            if (found.ops[k][c] != needed.ops[k][c] || found.bytes[k][c] != needed.bytes[k][c])
                fail_msg("seed %llu: %lld ops %s of content %d with %lld bytes, expected %lld with %lld",
                         (unsigned long long)seed, (long long)found.ops[k][c], sw_op_name((sw_op_kind)k), c,
                         (long long)found.bytes[k][c], (long long)needed.ops[k][c], (long long)needed.bytes[k][c]);
}

/* Blocks keep their inputs for the backward pass, but those that have none and share theirs with no block that does. */
static bool keeps_input(const struct sw_plan *plan, int64_t unit) {
    int64_t last = unit;
    if (unit == 0 || unit + 1 == plan->spec.units->count || plan->spec.cost[unit].shares_input)
        return false;
    while (last + 2 < plan->spec.units->count && plan->spec.cost[last + 1].shares_input)
        last++;
    return last >= last_backward(plan);
}

/* Where a state's shares put a unit: boundaries belong to the blocks that read them, all else is as large as the
 * unit, or as the bytes of its weights where some are quantized. */
static sw_tier requested_tier(const struct sw_plan *plan, sw_state state, int64_t unit) {
    const struct sw_units *units = plan->spec.units;
    int64_t before = 0, total = 0, own = 0;
    for (int64_t u = 0; u < units->count; u++) {
        int64_t size = units->unit[u].grains - (state == SW_WEIGHTS ? 0 : frozen_of(plan, u));
        if (state == SW_WEIGHTS && units->base != SW_BASE_TYPED)
            size = (size - based_of(plan, u)) * SW_GRAIN_ELEMS * sw_dtype_bytes(plan->spec.type) +
                   cells_of(plan, u) * 32768;
        if (state == SW_ACTS)
            size = keeps_input(plan, u) ? plan->spec.cost[u - 1].output_bytes : 0;
        before += u < unit ? size : 0;
        own = u == unit ? size : own;
        total += size;
    }
    return sw_placement_of(plan->spec.place.share[state], before, own, total);
}

static bool has_state(const struct sw_plan *plan, sw_state state, int64_t unit) {
    if (state == SW_ACTS)
        return !plan->spec.train || unit >= last_backward(plan);
    return state == SW_WEIGHTS || is_trained(plan, unit);
}

/* The plan does what the user asked for. Frozen units have nothing to be placed but weights. */
static void check_request(const struct sw_plan *plan, uint64_t seed) {
    for (int64_t u = 1; u + 1 < plan->spec.units->count; u++)
        for (int s = 0; s < SW_STATES; s++)
            if (has_state(plan, (sw_state)s, u) && !plan->spec.place.automatic[s] &&
                plan->placement[u].tier[s] != requested_tier(plan, (sw_state)s, u))
                fail_msg("seed %llu: unit %lld has its %s elsewhere", (unsigned long long)seed, (long long)u,
                         sw_state_name((sw_state)s));
    for (int64_t u = 0; u < plan->spec.units->count; u++) {
        if (!is_trained(plan, u))
            continue;
        const sw_tier grads = plan->placement[u].tier[SW_GRADS], between = plan->placement[u].accumulator;
        if (between > grads || (between < grads && !plan->spec.place.automatic[SW_GRADS]))
            fail_msg("seed %llu: unit %lld has its accumulator elsewhere", (unsigned long long)seed, (long long)u);
    }
    for (int64_t u = 1; !plan->spec.recompute_auto && u + 1 < plan->spec.units->count; u++)
        if (u >= last_backward(plan) && plan->recompute[u] != plan->spec.recompute)
            fail_msg("seed %llu: recompute was not obeyed", (unsigned long long)seed);
}

/* Bytes of what an access holds, where units have it in sizes of their own. */
static int64_t content_bytes(const struct sw_plan *plan, const struct sw_access *access) {
    switch (access->content) {
    case SW_CONTENT_BLOCK_OUTPUT:
    case SW_CONTENT_BLOCK_OUTPUT_GRAD: return plan->spec.cost[access->unit].output_bytes;
    case SW_CONTENT_SAVED: return plan->spec.cost[access->unit].saved_bytes;
    case SW_CONTENT_DERIVED: return plan->spec.cost[access->unit].derived_bytes;
    case SW_CONTENT_KV_CACHE: return plan->spec.cost[access->unit].cache_bytes;
    default: return 0;
    }
}

/* Units differ in what they hand on and keep, and every piece has room for what it gets, even in whole pages. */
static void check_room(const struct sw_plan *plan, uint64_t seed) {
    for (int p = 0; p < SW_PROGRAMS; p++) {
        const struct sw_program *program = &plan->program[p];
        for (int32_t a = 0; a < program->access_count; a++) {
            const struct sw_access *access = &program->access[a];
            const struct sw_slot *slot = &plan->slot[access->slot];
            const int64_t bytes = sw_round_up(content_bytes(plan, access), SW_BUFFER_ALIGN_BYTES);
            if (slot->tier != SW_NVME && slot->piece_bytes < bytes)
                fail_msg("seed %llu: a piece of the slot %s has %lld bytes for %lld", (unsigned long long)seed,
                         slot->name, (long long)slot->piece_bytes, (long long)bytes);
        }
    }
}

/* Every unit that has a cache finds it and leaves it, once a pass that gives logits; a loss needs none. */
static void check_caches(const struct sw_plan *plan, uint64_t seed) {
    for (int64_t u = 0; u < plan->spec.units->count; u++) {
        const bool has = plan->spec.cost[u].cache_bytes > 0;
        int touches[SW_PROGRAMS] = {0};
        for (int p = 0; p < SW_PROGRAMS; p++)
            for (int32_t a = 0; a < plan->program[p].access_count; a++)
                touches[p] +=
                    plan->program[p].access[a].content == SW_CONTENT_KV_CACHE && plan->program[p].access[a].unit == u;
        if (touches[SW_PROGRAM_LOGITS] != 2 * has || touches[SW_PROGRAM_LOSS] != 0)
            fail_msg("seed %llu: unit %lld touches its cache %d times for logits, %d for a loss",
                     (unsigned long long)seed, (long long)u, touches[SW_PROGRAM_LOGITS], touches[SW_PROGRAM_LOSS]);
    }
}

/* Every update comes after the norm of the step before, even where it speculates: it counts the steps applied. */
static void check_norms(const struct sw_plan *plan, uint64_t seed) {
    for (int p = 0; p < SW_PROGRAMS; p++)
        for (int32_t i = 0; i < plan->program[p].op_count; i++) {
            const struct sw_op *op = &plan->program[p].op[i];
            bool reads = op->kind != SW_OP_UPDATE_ON_HOST && op->kind != SW_OP_UPDATE_ON_DEVICE;
            for (int32_t a = op->first_access; a < op->first_access + op->access_count; a++)
                reads |= plan->program[p].access[a].content == SW_CONTENT_NORM && plan->program[p].access[a].age == 1;
            if (!reads)
                fail_msg("seed %llu: an update in program %d does not read the norm", (unsigned long long)seed, p);
        }
}

static void check_plan(const struct sw_plan *plan, uint64_t seed, bool judged) {
    must_seeded(sw_plan_check(plan), seed);
    check_request(plan, seed);
    check_room(plan, seed);
    check_caches(plan, seed);
    check_norms(plan, seed);
    if (plan->spec.train)
        check_work(plan, seed);
    for (int p = 0; (judged || !plan->spec.train) && p < SW_PROGRAMS; p++) {
        const char *wrong = plan->program[p].op_count > 0 ? oracle_judge(plan, (sw_program_kind)p) : NULL;
        if (wrong != NULL)
            fail_msg("seed %llu: the second opinion finds %s in program %d", (unsigned long long)seed, wrong, p);
    }
    const char *wrong = oracle_judge_memory(plan);
    if (wrong != NULL)
        fail_msg("seed %llu: the second opinion finds %s", (unsigned long long)seed, wrong);
}

/* Budgets around what the plan without limits took, so that some fit, some move state away, and some are refused. */
static void draw_budgets(struct plans_random *random, const struct sw_plan *unlimited, struct sw_plan_spec *spec) {
    for (int t = SW_DEVICE; t <= SW_HOST; t++)
        spec->budget_bytes[t] = unlimited->tier_bytes[t] * plans_draw(random, 60, 110) / 100 +
                                plans_draw(random, 0, 40) * SW_OPTIMIZER_GRAIN_BYTES * (t == SW_HOST);
}

struct tally {
    int models, plans, refused, mixed, commits, streams, above, ahead, parted;
    int32_t ops[PLANS]; /* of the program that trains step after step */
};

/* Gives false where the budgets were refused and had to be raised to what the refusal named. */
static bool plan_within(struct sw_plan_spec *spec, struct sw_plan **out, uint64_t seed) {
    const sw_status status = sw_plan_create(spec, out);
    if (status == SW_OK)
        return true;
    if (status != SW_ERR_BUDGET)
        must_seeded(status, seed);
    bool named[SW_NVME];
    plans_read_needs(spec, named, seed);
    must_seeded(sw_plan_create(spec, out), seed);
    return false;
}

static bool is_mixed(const struct sw_plan *plan) {
    for (int64_t u = 1; u < plan->spec.units->count; u++)
        if (memcmp(&plan->placement[u], &plan->placement[0], sizeof plan->placement[0]) != 0)
            return true;
    return false;
}

/* Tells whether the optimizer state of some unit passes through the device. */
static bool streams_any(const struct sw_plan *plan) {
    for (int64_t u = 0; plan->spec.train && u < plan->spec.units->count; u++)
        if (plan->spec.update_on_device[u] && plan->placement[u].tier[SW_OPTIMIZER] != SW_DEVICE)
            return true;
    return false;
}

/* Tells whether an accumulator lies between groups on a tier above its gradients. */
static bool has_accumulator_above(const struct sw_plan *plan) {
    const bool groups = plan->spec.train && plan->spec.group < plan->spec.micro_batches;
    for (int64_t u = 0; groups && u < plan->spec.units->count; u++)
        if (plan->placement[u].accumulator < plan->placement[u].tier[SW_GRADS])
            return true;
    return false;
}

/* Tells whether an update on the device begins before those of units that are computed before it. */
static bool begins_ahead(const struct sw_plan *plan) {
    const struct sw_program *program = &plan->program[SW_PROGRAM_UPDATE];
    int64_t forward = -1;
    for (int32_t i = 0; plan->spec.train && i < program->op_count; i++) {
        const struct sw_op *op = &program->op[i];
        if (op->kind == SW_OP_FORWARD && op->unit > forward)
            forward = op->unit;
        if (op->kind == SW_OP_UPDATE_ON_DEVICE && op->unit > forward + 2)
            return true;
    }
    return false;
}

/* Tells whether some unit has both frozen and trained grains. */
static bool has_parts(const struct sw_plan *plan) {
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        if (frozen_of(plan, u) > 0 && is_trained(plan, u))
            return true;
    return false;
}

static void count_plan(struct tally *tally, const struct sw_plan *plan) {
    tally->ops[tally->plans++] = plan->program[plan->spec.train ? SW_PROGRAM_UPDATE : SW_PROGRAM_LOSS].op_count;
    tally->mixed += is_mixed(plan);
    tally->commits += plan->commit_every_step;
    tally->streams += streams_any(plan);
    tally->above += has_accumulator_above(plan);
    tally->ahead += begins_ahead(plan);
    tally->parted += has_parts(plan);
}

static void try_random_model(uint64_t seed, struct tally *tally) {
    struct plans_random random = {.seed = seed};
    struct sw_units *units;
    struct sw_plan *unlimited, *plan;
    struct sw_plan_spec spec = plans_random_spec(&random, MOST_UNITS, MOST_GRAINS, &units);
    const bool judged = tally->models++ % JUDGED_EVERY == 0;
    must_seeded(sw_plan_create(&spec, &unlimited), seed);
    check_plan(unlimited, seed, judged);
    count_plan(tally, unlimited);
    draw_budgets(&random, unlimited, &spec);
    tally->refused += !plan_within(&spec, &plan, seed);
    check_plan(plan, seed, judged);
    count_plan(tally, plan);
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
    while (tally->models < MODELS)
        try_random_model(SEED + (uint64_t)tally->models, tally);
    qsort(tally->ops, PLANS, sizeof tally->ops[0], ascending);
    printf("# %d plans: median %d ops in a training step, most %d; %d with units placed differently, %d that commit "
           "every step, %d that update on the device what lives elsewhere, %d of them ahead of other units; %d with "
           "accumulators above their gradients; %d with units that are frozen in part; %d budgets refused, each with "
           "sizes that then worked\n",
           tally->plans, tally->ops[PLANS / 2], tally->ops[PLANS - 1], tally->mixed, tally->commits, tally->streams,
           tally->ahead, tally->above, tally->parted, tally->refused);
    assert_true(tally->ops[PLANS / 2] >= LEAST_MEDIAN_OPS);
    assert_true(tally->refused > MODELS / 50 && tally->mixed > PLANS / 50 && tally->commits > PLANS / 50);
    assert_true(tally->streams > PLANS / 10 && tally->parted > PLANS / 50);
    assert_true(tally->ahead > PLANS / 100 && tally->above > PLANS / 100);
    free(tally);
}

/* Without training nothing makes room for weights in a store. */

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_plans_are_sound)};
    return cmocka_run_group_tests_name("offload plan", tests, NULL, NULL);
}
