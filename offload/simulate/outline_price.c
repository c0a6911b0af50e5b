#include "offload/simulate/outline_price.h"

#include "core/size.h"
#include "core/status.h"
#include "offload/plan/plan_private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* The most ops that all programs of a plan have together, in ops of one step. */
enum { STEPS_OF_PROGRAMS = 4, STEPS_WITH_SPECULATION = 10 };
/* The accesses of a usual op. Ops of many ranks have more accesses and take longer in proportion, so they count as
 * several. */
enum { ACCESSES_OF_OP = 4 };
/* The op count at which a bound gives up: such a plan has far too many ops, and going on takes seconds. */
enum { MOST_BOUNDED = SW_PLAN_MOST_OPS / 2 };

struct bounding {
    const struct sw_plan *plan;
    const struct sw_rates *rates;
    struct sw_step_bound enough;
    double lane_s[SW_LANES];
    int64_t ops;
    bool slower;
};

static struct sw_step_bound bound_of(const struct bounding *b) {
    struct sw_step_bound bound = {.ops = b->ops};
    for (int lane = 0; lane < SW_LANES; lane++) {
        bound.step_s = fmax(bound.step_s, b->lane_s[lane]);
        if (lane != SW_LANE_UPDATE)
            bound.others_s = fmax(bound.others_s, b->lane_s[lane]);
    }
    return bound;
}

static bool take(void *context, const struct sw_op *op, int32_t count) {
    struct bounding *b = context;
    for (int32_t i = 0; i < count; i++)
        b->lane_s[op[i].lane] += sw_simulate_op(b->plan, b->rates, &op[i]);
    b->ops += count;
    const struct sw_step_bound bound = bound_of(b);
    b->slower = bound.step_s >= b->enough.step_s || bound.others_s >= b->enough.others_s;
    return !b->slower && b->ops < MOST_BOUNDED;
}

sw_status sw_outline_bound(const struct sw_plan *plan, const struct sw_rates *rates, struct sw_step_bound enough,
                           struct sw_step_bound *out, bool *out_slower) {
    struct bounding b = {.plan = plan, .rates = rates, .enough = enough};
    const sw_status status = sw_plan_emit_through(plan, SW_PROGRAM_UPDATE, take, &b);
    *out = bound_of(&b);
    *out_slower = b.slower;
    return status;
}

struct counting {
    sw_lane lane;
    int64_t bytes;
};

static bool count_bytes(void *context, const struct sw_op *op, int32_t count) {
    struct counting *counting = context;
    for (int32_t i = 0; i < count; i++)
        counting->bytes += op[i].lane == counting->lane ? op[i].bytes : 0;
    return true;
}

int64_t sw_outline_lane_bytes(const struct sw_plan *plan, sw_lane lane) {
    SW_HANDLES_ERRORS(); /* without memory to make all ops, those that were made count */
    const struct sw_program *program = &plan->program[SW_PROGRAM_UPDATE];
    struct counting counting = {.lane = lane};
    if (program->op_count > 0)
        (void)count_bytes(&counting, program->op, program->op_count);
    else
        (void)sw_plan_emit_through(plan, SW_PROGRAM_UPDATE, count_bytes, &counting);
    return counting.bytes;
}

bool sw_outline_is_too_long(const struct sw_plan *plan, int64_t ops) {
    return ops > SW_PLAN_MOST_OPS / (sw_plan_may_speculate(plan) ? STEPS_WITH_SPECULATION : STEPS_OF_PROGRAMS);
}

/* Steps that are remembered: more than all searches of a job simulate. */
enum { MEMORY_CAPACITY = 1 << 14, MEMORY_MOST = MEMORY_CAPACITY / 2 };

struct known_step {
    bool taken;
    XXH128_hash_t key;
    struct sw_outline_price price;
};

/* The room for one program and its simulation. */
struct room {
    struct sw_emit_room emit;
    struct sw_simulate_room simulate;
};

static void room_destroy(struct room *room) {
    sw_emit_room_destroy(&room->emit);
    sw_simulate_room_destroy(&room->simulate);
}

struct sw_price_memory {
    struct known_step known[MEMORY_CAPACITY];
    int count;
    struct room room;
};

sw_status sw_price_memory_create(struct sw_price_memory **out) {
    *out = calloc(1, sizeof **out);
    return *out != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to price plans");
}

void sw_price_memory_drop_room(struct sw_price_memory *memory) {
    if (memory != NULL)
        room_destroy(&memory->room);
}

void sw_price_memory_destroy(struct sw_price_memory *memory) {
    sw_price_memory_drop_room(memory);
    free(memory);
}

static void add(XXH128_hash_t *hash, const void *bytes, size_t count) {
    const XXH128_hash_t both[2] = {*hash, XXH3_128bits(bytes, count)};
    *hash = XXH3_128bits(both, sizeof both);
}

/* Hashes the specification. Pointers are left out: the caller hashes their contents. Budgets are left out: the outline
 * has what they decided. */
static void add_spec(XXH128_hash_t *hash, const struct sw_plan *plan) {
    struct sw_plan_spec spec;
    memcpy(&spec, &plan->spec, sizeof spec);
    spec.lack = NULL;
    spec.units = NULL;
    spec.cost = NULL;
    spec.update_on_device = NULL;
    spec.rises = NULL;
    spec.peaks = NULL;
    memset(spec.budget_bytes, 0, sizeof spec.budget_bytes);
    add(hash, &spec, sizeof spec);
}

static void add_units(XXH128_hash_t *hash, const struct sw_units *given) {
    struct sw_units units;
    memcpy(&units, given, sizeof units);
    units.unit = NULL;
    add(hash, &units, sizeof units);
    for (int64_t u = 0; u < units.count; u++) {
        struct sw_unit unit;
        memcpy(&unit, &given->unit[u], sizeof unit);
        unit.tensor = NULL;
        unit.run = NULL;
        add(hash, &unit, sizeof unit);
    }
}

static void add_rates(XXH128_hash_t *hash, const struct sw_rates *given, size_t units) {
    struct sw_rates rates;
    memcpy(&rates, given, sizeof rates);
    rates.units = NULL;
    add(hash, &rates, sizeof rates);
    add(hash, given->units, units * sizeof *given->units);
}

/* Returns a hash of all that the price of an outline's step depends on. Structures are hashed whole, so that a new
 * member is never forgotten; bytes between members may differ, which only keeps a step from being known again. */
static XXH128_hash_t key_of(const struct sw_plan *plan, const struct sw_rates *rates) {
    const size_t units = (size_t)plan->spec.units->count;
    const int64_t own[] = {plan->stream_chunks, plan->secondary_tier, plan->trained_tier, plan->commit_every_step,
                           plan->first_trained};
    XXH128_hash_t hash = {0};
    add_spec(&hash, plan);
    add_units(&hash, plan->spec.units);
    add_rates(&hash, rates, units);
    add(&hash, own, sizeof own);
    add(&hash, plan->spec.cost, units * sizeof *plan->spec.cost);
    add(&hash, plan->spec.update_on_device, units * sizeof *plan->spec.update_on_device);
    add(&hash, plan->placement, units * sizeof *plan->placement);
    add(&hash, plan->recompute, units * sizeof *plan->recompute);
    return hash;
}

/* Returns the entry of a step, which is free if the step is not known; NULL if no more are remembered. */
static struct known_step *find_known(struct sw_price_memory *memory, XXH128_hash_t key) {
    struct known_step *at = &memory->known[key.low64 % MEMORY_CAPACITY];
    while (at->taken && !XXH128_isEqual(at->key, key))
        at = at == &memory->known[MEMORY_CAPACITY - 1] ? memory->known : at + 1;
    return at->taken || memory->count < MEMORY_MOST ? at : NULL;
}

static sw_status simulate(const struct sw_plan *plan, const struct sw_rates *rates, double enough_s, struct room *room,
                          struct sw_outline_price *out) {
    const struct sw_program *program = &room->emit.program;
    int64_t accesses;
    *out = (struct sw_outline_price){.step.step_s = INFINITY};
    sw_status status = sw_plan_emit_waits(plan, SW_PROGRAM_UPDATE, &room->emit, &accesses);
    out->ops = sw_max_i64(program->op_count, accesses / ACCESSES_OF_OP);
    if (status == SW_ERR_ARG) { /* too many ops, or too many bytes of them */
        sw_error_clear();
        status = SW_OK;
        out->least_s = INFINITY;
        out->ops = SW_PLAN_MOST_OPS;
    } else if (status == SW_OK) {
        if (sw_outline_is_too_long(plan, program->op_count))
            enough_s = 0.0;
        status = sw_simulate_program(plan, program, rates, enough_s, &room->simulate, &out->least_s, &out->step);
        out->simulated = status == SW_OK && isfinite(out->step.step_s);
    }
    return status;
}

/* Returns the remembered price, or simulates and remembers it. A simulation that stopped early is repeated if enough_s
 * is larger now. */
static sw_status recall(struct known_step *known, const struct sw_plan *plan, const struct sw_rates *rates,
                        double enough_s, struct room *room, struct sw_outline_price *out) {
    if (!known->taken || (!known->price.simulated && known->price.least_s < enough_s))
        SW_TRY(simulate(plan, rates, enough_s, room, &known->price));
    *out = known->price;
    if (out->simulated && !(out->least_s < enough_s)) {
        out->simulated = false;
        out->step = (struct sw_simulation){.step_s = INFINITY};
    }
    return SW_OK;
}

sw_status sw_outline_simulate(const struct sw_plan *plan, const struct sw_rates *rates, double enough_s,
                              struct sw_price_memory *memory, struct sw_outline_price *out) {
    const XXH128_hash_t key = memory != NULL ? key_of(plan, rates) : (XXH128_hash_t){0};
    struct known_step *known = memory != NULL ? find_known(memory, key) : NULL;
    if (known == NULL) {
        struct room own = {0};
        const sw_status status = simulate(plan, rates, enough_s, memory != NULL ? &memory->room : &own, out);
        room_destroy(&own);
        return status;
    }
    SW_TRY(recall(known, plan, rates, enough_s, &memory->room, out));
    memory->count += !known->taken;
    known->taken = true;
    known->key = key;
    return SW_OK;
}
