/* Rounds accumulators to gradients where they live, and makes new weights from gradients.
 *
 * Muon: a tensor names its update (struct sw_tensor), and its unit lays the matrices that Muon updates before all else
 * that is trained, in grains whose records hold one momentum. Their update needs them whole. So shards cut no matrix
 * (sw_unit_shard), chunks are never smaller than these grains of a shard, and chunk 0 of a rank's optimizer state of a
 * unit has all of its matrices: placement, transfers, order, speculation, redo and commit are those of AdamW. The
 * update op hands the grains before sw_unit.adamw_grain to Muon and the rest of its chunk to AdamW. It has scratch for
 * the iteration: on the device behind the work area of the passes, on the host in a slot of its own. A GPU has all
 * updates of units with such matrices (struct sw_plan_spec). The chunks cost memory, which budgets count: rings have
 * room for whole units. */
#include "core/size.h"
#include "offload/plan/builder.h"

/* Brings weights to the device. */

/* Returns which units a kind of slots holds. */
static struct sw_unit_ring *ring_of_unit(struct sw_builder *b, int64_t unit) {
    return &b->unit_ring[sw_plan_joins_block(b->plan, unit)];
}

/* Takes a device slot for a unit that lives elsewhere. */
static int32_t build_unit_slot(struct sw_builder *b, int64_t unit) {
    if (unit == 0 && sw_plan_fetches_table(b->plan)) {
        b->table_held = true;
        return b->index->slot[SLOT_TABLE];
    }
    if (sw_plan_has_typed_slot(b->plan, unit)) {
        b->typed_slot_holds = unit;
        return b->index->slot[SLOT_TYPED_WEIGHTS];
    }
    struct sw_unit_ring *ring = ring_of_unit(b, unit);
    const int32_t k = ring->next++ % (int32_t)b->plan->spec.unit_slots;
    ring->holds[k] = unit;
    return sw_build_first_slot(b, unit) + k;
}

/* Returns the device slot that already has a unit's weights of this step; -1: none has. */
static int32_t held(struct sw_builder *b, int64_t unit) {
    if (sw_plan_has_whole_on_device(b->plan, unit))
        return b->index->of_unit[sw_plan_typed(b->plan, unit).grains > 0 ? SLOT_WEIGHTS : SLOT_BASE][unit];
    if (unit == 0 && sw_plan_fetches_table(b->plan))
        return b->table_held ? b->index->slot[SLOT_TABLE] : -1;
    if (b->typed_slot_holds == unit)
        return b->index->slot[SLOT_TYPED_WEIGHTS];
    for (int32_t k = 0; k < (int32_t)b->plan->spec.unit_slots; k++)
        if (ring_of_unit(b, unit)->holds[k] == unit)
            return sw_build_first_slot(b, unit) + k;
    return -1;
}

/* Gathers the rows of all micro-batches from a chunk of weights on the host. */
static void build_gather(struct sw_builder *b, const struct sw_chunk *chunk, struct sw_operand weights,
                         struct sw_what what) {
    sw_build_chunk_op(b, SW_OP_GATHER_ROWS, chunk);
    sw_build_read(b, weights, what);
    for (int64_t m = 0; m < b->plan->spec.micro_batches; m++) {
        const struct sw_operand rows = {.slot = b->index->slot[SLOT_ROWS], .piece = m};
        if (chunk->number > 0)
            sw_build_read(b, rows, (struct sw_what){SW_CONTENT_ROWS, 0, m, chunk->number, 0, 0});
        sw_build_write(b, rows, (struct sw_what){SW_CONTENT_ROWS, 0, m, chunk->number + 1, 0, 0});
    }
    b->rows_held = true;
}

struct sw_operand sw_build_rows(struct sw_builder *b, int64_t micro) {
    const struct sw_operand to = sw_build_ring(b, SLOT_ROWS_RING);
    const struct sw_what what = {SW_CONTENT_ROWS, 0, micro, sw_plan_chunks(b->plan, 0), 0, 0};
    sw_build_transfer(b, (struct sw_operand){.slot = b->index->slot[SLOT_ROWS], .piece = micro}, to, what, micro,
                      b->plan->spec.gathered_bytes);
    return to;
}

/* Returns where a chunk of weights, or of a base, is on the host: where it lives, or staged from NVMe. */
static struct sw_operand fetch_to_host(struct sw_builder *b, const struct sw_chunk *chunk, struct sw_what what) {
    const int32_t slot = what.content == SW_CONTENT_BASE
                             ? sw_plan_base_home(b->plan, chunk->unit)
                             : sw_plan_weights_home(b->plan, chunk->unit, chunk->at.first_grain);
    const struct sw_operand home = {.slot = slot, .piece = SW_BY_GRAINS};
    if (b->plan->slot[slot].tier != SW_NVME)
        return home;
    const struct sw_operand staging = sw_build_ring(b, SLOT_WEIGHTS_IN);
    sw_build_move(b, &home, &staging, &what, chunk,
                  chunk->at.grains * sw_plan_grain_bytes(b->plan, what.content, chunk->unit));
    return staging;
}

static void gather_all(struct sw_builder *b) {
    const int64_t chunks = b->rows_held ? 0 : sw_plan_chunks(b->plan, 0);
    for (int64_t c = 0; c < chunks; c++) {
        const struct sw_chunk chunk = sw_build_chunk(b, SW_WEIGHTS, 0, c);
        const struct sw_what what = {SW_CONTENT_WEIGHTS, 0, c, 0, b->state_age, 0};
        build_gather(b, &chunk, fetch_to_host(b, &chunk, what), what);
    }
}

/* Moves a chunk of this rank's weights of a unit, or of its base, to a device slot. */
static void fetch_chunk(struct sw_builder *b, const struct sw_chunk *chunk, struct sw_what what, int32_t slot) {
    const bool own = sw_plan_is_sharded(b->plan, chunk->unit, SW_WEIGHTS);
    const struct sw_operand to = {.slot = slot, .piece = SW_BY_GRAINS, .own = own};
    const struct sw_operand from = fetch_to_host(b, chunk, what);
    sw_build_move(b, &from, &to, &what, chunk,
                  chunk->at.grains * sw_plan_grain_bytes(b->plan, what.content, chunk->unit));
}

/* Moves this rank's weights of a unit that are frozen although the unit is trained, and its base, to the device, if
 * they are not there; shards become whole. The base has a slot beside that of the weights. */
static void fetch_frozen(struct sw_builder *b, int64_t unit, int32_t slot) {
    const bool is_there = b->plan->placement[unit].tier[SW_WEIGHTS] == SW_DEVICE;
    for (int64_t c = 0; !is_there && c < sw_plan_own_frozen_chunks(b->plan, unit); c++) {
        const struct sw_chunk chunk = {unit, c, sw_plan_own_frozen_chunk(b->plan, unit, c)};
        fetch_chunk(b, &chunk, (struct sw_what){SW_CONTENT_WEIGHTS, unit, c, 0, b->state_age, 0}, slot);
    }
    for (int64_t c = 0; !is_there && c < sw_plan_base_chunks(b->plan, unit); c++) {
        const struct sw_chunk chunk = {unit, c, sw_plan_base_chunk(b->plan, unit, c)};
        fetch_chunk(b, &chunk, (struct sw_what){.content = SW_CONTENT_BASE, .unit = unit, .index = c},
                    sw_build_base_slot(b, unit, slot));
    }
    if (sw_plan_is_sharded(b->plan, unit, SW_WEIGHTS))
        sw_build_gather_frozen(b, unit, is_there, slot);
}

/* Moves this rank's weights of a unit to the device, if they are not there; shards become whole. */
static void fetch(struct sw_builder *b, int64_t unit, int32_t slot) {
    if (sw_build_has_secondary(b, unit)) {
        sw_build_gather_secondary(b, unit, slot);
        return;
    }
    const bool sharded = sw_plan_is_sharded(b->plan, unit, SW_WEIGHTS);
    const bool is_there = b->plan->placement[unit].tier[SW_WEIGHTS] == SW_DEVICE;
    const int64_t frozen = sw_plan_frozen_chunks(b->plan, unit), first = sharded ? 0 : frozen;
    const int64_t chunks = is_there ? 0 : sw_plan_state_chunks(b->plan, SW_WEIGHTS, unit);
    fetch_frozen(b, unit, slot);
    for (int64_t c = first; c < chunks; c++) {
        const struct sw_chunk chunk = sw_build_chunk(b, SW_WEIGHTS, unit, c);
        fetch_chunk(b, &chunk, (struct sw_what){SW_CONTENT_WEIGHTS, unit, frozen - first + c, 0, b->state_age, 0},
                    slot);
    }
    if (sharded)
        sw_build_all_gather(b, unit, is_there ? b->index->of_unit[SLOT_WEIGHTS][unit] : slot, slot);
}

int32_t sw_build_fetch(struct sw_builder *b, int64_t unit) {
    if (unit == 0 && sw_plan_gathers_rows(b->plan)) {
        gather_all(b);
        return -1;
    }
    int32_t slot = held(b, unit);
    if (slot >= 0)
        return slot;
    slot = build_unit_slot(b, unit);
    fetch(b, unit, slot);
    return slot;
}

/* The end of a step: its norm, its commit, and what the ranks tell each other of it. */

/* Version of square sums: those of all ranks are there. */
enum { VERSION_SHARED = -1 };

/* The square sums of a unit on the host: of this rank, or, once they are shared, of all. */
static struct sw_what sums_of(const struct sw_builder *b, int64_t unit, bool shared) {
    return (struct sw_what){.content = SW_CONTENT_SQUARE_SUMS,
                            .unit = -1,
                            .index = unit,
                            .version = shared ? VERSION_SHARED : sw_plan_shard_chunks(b->plan, unit)};
}

void sw_build_norm(struct sw_builder *b) {
    const bool shared = sw_plan_job_ranks(b->plan) > 1;
    sw_build_op(b, SW_OP_COMPUTE_NORM, -1, -1);
    for (int64_t u = b->plan->first_trained; u < b->plan->spec.units->count; u++)
        if (sw_plan_trained_anywhere(b->plan, u).grains > 0)
            sw_build_read(b, (struct sw_operand){.slot = b->index->slot[SLOT_SQUARE_SUMS_HOST], .piece = u},
                          sums_of(b, u, shared));
    sw_build_write(b, (struct sw_operand){.slot = b->index->slot[SLOT_NORM]},
                   (struct sw_what){SW_CONTENT_NORM, -1, 0, 0, 0, 0});
}

/* Reading every grain of what is committed orders the commit after its writes. With two generations, a
 * resume would take the other one until the commit is done, so reading that too keeps the writes of the next step
 * behind the commit. */
static void read_committed(struct sw_builder *b) {
    for (int64_t u = 0; u < b->plan->spec.units->count; u++) {
        const struct sw_span at = sw_plan_span(b->plan, SW_OPTIMIZER, u);
        struct sw_what what = {SW_CONTENT_OPTIMIZER, u, 0, 0, 0, SW_GENERATION_NONE};
        if (at.grains == 0)
            continue;
        if (!b->plan->commit_every_step) {
            const int32_t apart = b->index->of_unit[SLOT_SAVED_OPTIMIZER][u];
            sw_build_read_grains(b, apart >= 0 ? apart : b->index->of_unit[SLOT_OPTIMIZER][u], at, what);
            continue;
        }
        what.generation = SW_GENERATION_COMMITTED;
        sw_build_read_grains(b, b->index->of_unit[SLOT_OPTIMIZER][u], at, what);
        what.generation = SW_GENERATION_OTHER;
        what.age = 1;
        sw_build_read_grains(b, b->index->of_unit[SLOT_OPTIMIZER][u], at, what);
    }
}

/* The norm holds the position that the commit records. */
void sw_build_commit(struct sw_builder *b) {
    sw_build_op(b, SW_OP_COMMIT, -1, -1);
    sw_build_read_norm(b);
    read_committed(b);
    if (sw_plan_job_ranks(b->plan) > 1)
        sw_build_write(b, (struct sw_operand){.slot = b->index->slot[SLOT_SUMMARIES]},
                       (struct sw_what){.content = SW_CONTENT_COMMIT, .unit = -1});
    b->commits = true;
}

/* A step counts as committed when all ranks have it: until they know that of each other, nothing overwrites the one
 * before. */
void sw_build_exchange_summary(struct sw_builder *b, bool sums) {
    struct sw_op *op = sw_build_op(b, SW_OP_EXCHANGE_SUMMARY, -1, -1);
    const struct sw_operand shared = {.slot = b->index->slot[SLOT_SUMMARIES]},
                            work = {.slot = b->index->slot[SLOT_WORK]};
    op->content = sums ? SW_CONTENT_SQUARE_SUMS : SW_CONTENT_NONE;
    op->bytes = (sw_plan_job_ranks(b->plan) - 1) * sw_plan_summary_bytes(b->plan, sums);
    if (b->commits) {
        sw_build_read(b, shared, (struct sw_what){.content = SW_CONTENT_COMMIT, .unit = -1});
        read_committed(b);
    }
    for (int64_t u = b->plan->first_trained; sums && u < b->plan->spec.units->count; u++) {
        const struct sw_operand at = {.slot = b->index->slot[SLOT_SQUARE_SUMS_HOST], .piece = u};
        if (sw_plan_trained_anywhere(b->plan, u).grains == 0)
            continue;
        if (sw_plan_trains(b->plan, u) && sw_plan_shard_chunks(b->plan, u) > 0)
            sw_build_read(b, at, sums_of(b, u, false));
        sw_build_write(b, at, sums_of(b, u, true));
    }
    /* The op that used the work area last has left the losses. */
    if (b->works)
        sw_build_read(b, work, (struct sw_what){.content = SW_CONTENT_WORK, .unit = -1});
}

/* Versions of optimizer state and weights: a speculative update's results may yet be replaced. */
enum { VERSION_FINAL = 0, VERSION_SPECULATIVE = SW_VERSION_SPECULATIVE };

/* One chunk's update: of the step before (or its redo) or, speculating, of this step. */
struct chunk_update {
    struct sw_chunk chunk;
    bool speculative;
    struct sw_operand grads; /* the chunk's gradients, on the side where the update runs */
    int32_t slot;            /* device slot that its weights also go to; -1: none */
    bool gathered;           /* the step's rows are taken from its weights */
};

static sw_tier tier_of(const struct sw_builder *b, sw_state state, int64_t unit) {
    return b->plan->placement[unit].tier[state];
}

static struct sw_what grads_what(const struct sw_chunk *chunk, int age) {
    return (struct sw_what){SW_CONTENT_GRADS, chunk->unit, chunk->number, 0, age, SW_GENERATION_NONE};
}

/* Returns the chunk's optimizer state before the update, or after it. In two generations, an update reads the other and
 * writes the one that this step commits; a speculative one reads that and writes the other. In one, it is in place. */
static struct sw_what optimizer_what(const struct sw_builder *b, const struct chunk_update *u, bool after) {
    const bool two = b->plan->commit_every_step;
    const bool committed = u->speculative != after;
    struct sw_what what = {SW_CONTENT_OPTIMIZER, u->chunk.unit, u->chunk.number, VERSION_FINAL, 0, SW_GENERATION_NONE};
    if (two)
        what.generation = committed ? SW_GENERATION_COMMITTED : SW_GENERATION_OTHER;
    if (u->speculative && after)
        what.version = VERSION_SPECULATIVE;
    if (!after)
        what.age = u->speculative ? b->state_age : 1;
    return what;
}

/* The chunks of weights that an update makes come after the frozen ones. */
static struct sw_what weights_what(const struct sw_builder *b, const struct chunk_update *u) {
    return (struct sw_what){.content = SW_CONTENT_WEIGHTS,
                            .unit = u->chunk.unit,
                            .index = sw_plan_frozen_chunks(b->plan, u->chunk.unit) + u->chunk.number,
                            .version = u->speculative ? VERSION_SPECULATIVE : VERSION_FINAL};
}

/* Tells whether gradients pass through a ring: they live on NVMe, or on the device while their update runs on the host.
 */
static bool grads_pass(const struct sw_builder *b, int64_t unit) {
    const sw_tier tier = tier_of(b, SW_GRADS, unit);
    if (b->plan->spec.update_only)
        return false;
    return tier == SW_NVME || (tier == SW_DEVICE && !sw_plan_updates_on_device(b->plan, unit));
}

static struct sw_operand home_of(int32_t slot) {
    return (struct sw_operand){.slot = slot, .piece = SW_BY_GRAINS};
}

static struct sw_operand bring_grads(struct sw_builder *b, const struct sw_chunk *chunk, int age) {
    const struct sw_operand home = home_of(b->index->of_unit[SLOT_GRADS][chunk->unit]),
                            to = sw_build_ring(b, SLOT_GRADS_IN);
    const struct sw_what what = grads_what(chunk, age);
    sw_build_move(b, &home, &to, &what, chunk, sw_build_grads_bytes(b, chunk));
    return to;
}

/* Takes a chunk's gradients from the caller, and returns where they are. sums: also sums their squares, chunk after
 * chunk. */
static struct sw_operand take_grads(struct sw_builder *b, const struct sw_chunk *chunk, bool sums) {
    const struct sw_operand to = sw_build_ring(b, SLOT_GRADS_IN);
    struct sw_op *op = sw_build_chunk_op(b, SW_OP_TAKE_GRADIENTS, chunk);
    op->bytes = sw_build_grads_bytes(b, chunk);
    sw_build_write(b, to, grads_what(chunk, 0));
    if (sums)
        sw_build_write(b, (struct sw_operand){.slot = b->index->slot[SLOT_SQUARE_SUMS_HOST], .piece = chunk->unit},
                       (struct sw_what){SW_CONTENT_SQUARE_SUMS, -1, chunk->unit, chunk->number + 1, 0, 0});
    return to;
}

void sw_build_sums_of_caller(struct sw_builder *b) {
    for (int64_t u = 0; u < b->plan->spec.units->count; u++)
        for (int64_t c = 0; c < sw_plan_state_chunks(b->plan, SW_GRADS, u); c++) {
            const struct sw_chunk chunk = sw_build_chunk(b, SW_GRADS, u, c);
            take_grads(b, &chunk, true);
        }
}

static struct sw_operand bring_optimizer(struct sw_builder *b, const struct chunk_update *u) {
    const struct sw_operand home = home_of(b->index->of_unit[SLOT_OPTIMIZER][u->chunk.unit]),
                            to = sw_build_ring(b, SLOT_OPTIMIZER_RING);
    const struct sw_what what = optimizer_what(b, u, false);
    sw_build_move(b, &home, &to, &what, &u->chunk, sw_plan_records_bytes(b->plan, u->chunk.unit, u->chunk.at));
    return to;
}

static bool passes(const struct sw_builder *b, sw_state state, int64_t unit) {
    return state == SW_GRADS ? grads_pass(b, unit) : tier_of(b, SW_OPTIMIZER, unit) == SW_NVME;
}

static int32_t ring_of(const struct sw_builder *b, sw_state state) {
    return state == SW_GRADS ? b->index->slot[SLOT_GRADS_IN] : b->index->slot[SLOT_OPTIMIZER_RING];
}

/* Returns how many chunks are brought ahead of their updates. The rest of the ring is for those on their way back, so
 * that bringing one, and what the lane has behind it, does not wait for the newest write. A program that saves
 * optimizer state of other tiers takes pieces of the ring in between, so there each chunk is brought when its turn has
 * come. */
static int64_t chunks_ahead(const struct sw_builder *b, sw_state state) {
    const int64_t ring = b->plan->slot[ring_of(b, state)].pieces;
    const bool in_turn = b->saves && state == SW_OPTIMIZER;
    return in_turn ? 1 : sw_max_i64(1, ring - sw_min_i64(SW_RING_CHUNKS_BEHIND, ring / 2));
}

static bool find_next(const struct sw_builder *b, sw_state state, struct sw_read_ahead *ahead) {
    while (ahead->unit < b->plan->spec.units->count) {
        if (passes(b, state, ahead->unit) && ahead->chunk < sw_plan_state_chunks(b->plan, SW_OPTIMIZER, ahead->unit))
            return true;
        ahead->unit++;
        ahead->chunk = 0;
    }
    return false;
}

/* Brings chunks of a state into its ring for the updates to come. */
static void bring_ahead(struct sw_builder *b, sw_state state) {
    struct sw_read_ahead *ahead = &b->ahead[state];
    const int64_t most = chunks_ahead(b, state);
    while (ahead->brought - ahead->taken < most && find_next(b, state, ahead)) {
        const struct chunk_update u = {.chunk = sw_build_chunk(b, SW_OPTIMIZER, ahead->unit, ahead->chunk++)};
        const struct sw_operand at = state == SW_GRADS ? bring_grads(b, &u.chunk, 1) : bring_optimizer(b, &u);
        if (ahead->brought++ == ahead->taken)
            ahead->first_piece = (int32_t)at.piece;
    }
}

static struct sw_operand take(struct sw_builder *b, sw_state state) {
    struct sw_read_ahead *ahead = &b->ahead[state];
    const struct sw_operand at = {.slot = ring_of(b, state), .piece = ahead->first_piece};
    ahead->first_piece = (ahead->first_piece + 1) % (int32_t)b->plan->slot[at.slot].pieces;
    ahead->taken++;
    return at;
}

/* Returns where the update finds a chunk's gradients, which the step before made, or the caller has. */
static struct sw_operand grads_of_update(struct sw_builder *b, const struct sw_chunk *chunk) {
    const int64_t unit = chunk->unit;
    if (b->plan->spec.update_only)
        return take_grads(b, chunk, false);
    const struct sw_operand at = grads_pass(b, unit) ? take(b, SW_GRADS) : home_of(b->index->of_unit[SLOT_GRADS][unit]);
    if (!sw_plan_updates_on_device(b->plan, unit) || tier_of(b, SW_GRADS, unit) == SW_DEVICE)
        return at;
    const struct sw_operand staging = sw_build_ring(b, SLOT_GRADS_UP);
    const struct sw_what what = grads_what(chunk, 1);
    sw_build_move(b, &at, &staging, &what, chunk, sw_build_grads_bytes(b, chunk));
    return staging;
}

static void update_op(struct sw_builder *b, const struct chunk_update *u, bool on_device, struct sw_operand records,
                      struct sw_operand weights) {
    struct sw_op *op = sw_build_chunk_op(b, on_device ? SW_OP_UPDATE_ON_DEVICE : SW_OP_UPDATE_ON_HOST, &u->chunk);
    struct sw_what before = optimizer_what(b, u, false), after = optimizer_what(b, u, true);
    before.generation = after.generation = SW_GENERATION_NONE; /* the state is in memory here */
    op->bytes = 2 * sw_plan_records_bytes(b->plan, op->unit, u->chunk.at) + sw_build_grads_bytes(b, &u->chunk) +
                sw_build_weights_bytes(b, &u->chunk);
    op->speculates = u->speculative;
    /* One that speculates counts the steps that were applied by it, and the norm of its own step comes after. */
    sw_build_read_norm(b);
    const bool now = u->speculative || b->plan->spec.update_only;
    sw_build_read(b, u->grads, grads_what(&u->chunk, now ? 0 : 1));
    sw_build_read(b, records, before);
    sw_build_write(b, records, after);
    sw_build_write(b, weights, weights_what(b, u));
    const struct sw_span muon = {op->first_grain, sw_plan_muon_grains(b->plan, op->unit, u->chunk.at)};
    if (muon.grains == 0)
        return;
    int64_t matrices;
    const struct sw_muon_tensor *first = sw_unit_muon_in(&b->plan->spec.units->unit[op->unit], muon, &matrices);
    op->flops =
        (float)(b->plan->spec.muon_gpu_bytes > 0 ? sw_muon_gpu_flops(first, matrices) : sw_muon_flops(first, matrices));
    const struct sw_operand scratch = {.slot = b->index->slot[on_device ? SLOT_WORK : SLOT_UPDATE_WORK]};
    sw_build_write(b, scratch, (struct sw_what){.content = SW_CONTENT_WORK, .unit = -1});
}

/* Shards become whole weights in their home on the device, or in a device slot from which they then go home. */
static bool joins_at_home(const struct sw_builder *b, int64_t unit) {
    return sw_plan_keeps_whole_weights(b->plan, unit) && tier_of(b, SW_WEIGHTS, unit) == SW_DEVICE;
}

static bool joins_away(const struct sw_builder *b, int64_t unit) {
    return sw_plan_keeps_whole_weights(b->plan, unit) && tier_of(b, SW_WEIGHTS, unit) != SW_DEVICE;
}

/* Returns where the trained weights of a unit live. */
static struct sw_operand home_of_weights(const struct sw_builder *b, int64_t unit) {
    return (struct sw_operand){
        .slot = b->index->of_unit[SLOT_WEIGHTS][unit], .piece = SW_BY_GRAINS, .own = joins_at_home(b, unit)};
}

static struct sw_operand slot_of_weights(const struct sw_builder *b, int64_t unit, int32_t slot) {
    return (struct sw_operand){.slot = slot, .piece = SW_BY_GRAINS, .own = sw_plan_all_gathers_weights(b->plan, unit)};
}

static void give_weights(struct sw_builder *b, const struct chunk_update *u, struct sw_operand made) {
    struct sw_op *op = sw_build_chunk_op(b, SW_OP_GIVE_WEIGHTS, &u->chunk);
    op->bytes = sw_build_weights_bytes(b, &u->chunk);
    sw_build_read(b, made, weights_what(b, u));
}

/* Moves new weights from where the update left them to where they live and to the device slot that waits for them. */
static void spread_weights(struct sw_builder *b, const struct chunk_update *u, struct sw_operand made) {
    const int64_t unit = u->chunk.unit;
    const struct sw_operand home = home_of_weights(b, unit);
    const struct sw_what what = weights_what(b, u);
    const int64_t bytes = sw_build_weights_bytes(b, &u->chunk);
    const sw_tier made_in = b->plan->slot[made.slot].tier, home_tier = b->plan->slot[home.slot].tier;
    const bool goes_home = !joins_away(b, unit);
    struct sw_operand on_host = made;
    if (made_in == SW_DEVICE && home_tier != SW_DEVICE && goes_home) {
        on_host = home_tier == SW_HOST ? home : sw_build_ring(b, SLOT_WEIGHTS_RING);
        sw_build_move(b, &made, &on_host, &what, &u->chunk, bytes);
    }
    if (made_in == SW_HOST && home_tier == SW_DEVICE)
        sw_build_move(b, &made, &home, &what, &u->chunk, bytes);
    if (u->gathered)
        build_gather(b, &u->chunk, on_host, what);
    if (made_in == SW_HOST && home_tier != SW_DEVICE && u->slot >= 0) {
        const struct sw_operand on_device = slot_of_weights(b, unit, u->slot);
        sw_build_move(b, &on_host, &on_device, &what, &u->chunk, bytes);
    }
    if (home_tier == SW_NVME && goes_home)
        sw_build_move(b, &on_host, &home, &what, &u->chunk, bytes);
}

/* Returns where an update writes its new weights. */
static struct sw_operand weights_target(struct sw_builder *b, const struct chunk_update *u, bool on_device) {
    if (b->plan->spec.update_only)
        return sw_build_ring(b, SLOT_WEIGHTS_RING);
    const struct sw_operand home = home_of_weights(b, u->chunk.unit);
    const sw_tier tier = b->plan->slot[home.slot].tier;
    if (!on_device)
        return tier == SW_HOST && !joins_away(b, u->chunk.unit) ? home : sw_build_ring(b, SLOT_WEIGHTS_RING);
    if (tier == SW_DEVICE)
        return home;
    return u->slot >= 0 ? slot_of_weights(b, u->chunk.unit, u->slot) : sw_build_ring(b, SLOT_WEIGHTS_DOWN);
}

static void save_optimizer(struct sw_builder *b, const struct chunk_update *u, struct sw_operand home,
                           int64_t optimizer_bytes) {
    const struct sw_what what = optimizer_what(b, u, true);
    struct sw_operand from = home;
    if (tier_of(b, SW_OPTIMIZER, u->chunk.unit) == SW_DEVICE) {
        from = sw_build_ring(b, SLOT_OPTIMIZER_RING);
        sw_build_move(b, &home, &from, &what, &u->chunk, optimizer_bytes);
    }
    const struct sw_operand saved = home_of(b->index->of_unit[SLOT_SAVED_OPTIMIZER][u->chunk.unit]);
    sw_build_move(b, &from, &saved, &what, &u->chunk, optimizer_bytes);
}

static void update_chunk(struct sw_builder *b, const struct chunk_update *u) {
    const int64_t unit = u->chunk.unit;
    const sw_tier tier = tier_of(b, SW_OPTIMIZER, unit);
    const bool on_device = sw_plan_updates_on_device(b->plan, unit), streams = sw_plan_streams_optimizer(b->plan, unit);
    const struct sw_operand home = home_of(b->index->of_unit[SLOT_OPTIMIZER][unit]);
    const int64_t optimizer_bytes = sw_plan_records_bytes(b->plan, unit, u->chunk.at);
    struct sw_operand records = home;
    if (tier == SW_NVME)
        records = u->speculative ? bring_optimizer(b, u) : take(b, SW_OPTIMIZER);
    const struct sw_operand at = streams ? sw_build_ring(b, SLOT_OPTIMIZER_UP) : records;
    const struct sw_what before = optimizer_what(b, u, false), after = optimizer_what(b, u, true);
    if (streams)
        sw_build_move(b, &records, &at, &before, &u->chunk, optimizer_bytes);
    const struct sw_operand weights = weights_target(b, u, on_device);
    update_op(b, u, on_device, at, weights);
    if (b->plan->spec.update_only)
        give_weights(b, u, weights);
    else
        spread_weights(b, u, weights);
    if (streams)
        sw_build_move(b, &at, &records, &after, &u->chunk, optimizer_bytes);
    if (tier == SW_NVME)
        sw_build_move(b, &records, &home, &after, &u->chunk, optimizer_bytes);
    else if (b->saves)
        save_optimizer(b, u, home, optimizer_bytes);
}

bool sw_build_update_is_apart(const struct sw_builder *b, int64_t unit) {
    return tier_of(b, SW_WEIGHTS, unit) == SW_DEVICE && !passes(b, SW_OPTIMIZER, unit) && !passes(b, SW_GRADS, unit);
}

struct sw_unit_update sw_build_update_begin(struct sw_builder *b, int64_t unit, sw_waiting waiting, bool feed) {
    const bool redo = waiting == SW_WAITING_REDO;
    const bool lives_elsewhere = tier_of(b, SW_WEIGHTS, unit) != SW_DEVICE, joins = joins_away(b, unit);
    /* After a speculation most steps redo nothing, so the forward pass fetches weights from where they live; but for a
     * tied table, which has a slot of its own, where the speculation has left them. */
    const bool gathers = unit == 0 && sw_plan_gathers_rows(b->plan);
    const bool feeds = feed && lives_elsewhere && !gathers && (!redo || (unit == 0 && sw_plan_fetches_table(b->plan)));
    const int32_t slot = feeds || joins ? build_unit_slot(b, unit) : -1;
    if (slot >= 0 && feed)
        fetch_frozen(b, unit, slot);
    return (struct sw_unit_update){.unit = unit,
                                   .begun = true,
                                   .chunks = sw_plan_state_chunks(b->plan, SW_OPTIMIZER, unit),
                                   .redo = redo,
                                   .gathers = gathers && feed && !redo,
                                   .slot = slot};
}

void sw_build_update_to(struct sw_builder *b, struct sw_unit_update *update, int64_t end) {
    const int64_t unit = update->unit;
    b->redo = update->redo;
    for (; update->next < end; update->next++) {
        struct chunk_update u = {.chunk = sw_build_chunk(b, SW_OPTIMIZER, unit, update->next),
                                 .slot = update->slot,
                                 .gathered = update->gathers};
        /* Optimizer state comes first: the gradients of the step before may not all be there yet. */
        if (passes(b, SW_OPTIMIZER, unit))
            bring_ahead(b, SW_OPTIMIZER);
        if (passes(b, SW_GRADS, unit))
            bring_ahead(b, SW_GRADS);
        u.grads = grads_of_update(b, &u.chunk);
        update_chunk(b, &u);
    }
    b->redo = false;
}

/* Makes whole what all ranks have updated. */
void sw_build_update_end(struct sw_builder *b, const struct sw_unit_update *update) {
    const int64_t unit = update->unit;
    if (joins_at_home(b, unit))
        sw_build_all_gather(b, unit, b->index->of_unit[SLOT_WEIGHTS][unit], b->index->of_unit[SLOT_WEIGHTS][unit]);
    else if (update->slot >= 0 && sw_plan_all_gathers_weights(b->plan, unit))
        sw_build_all_gather(b, unit, update->slot, update->slot);
    const int64_t chunks = joins_away(b, unit) ? sw_plan_state_chunks(b->plan, SW_WEIGHTS, unit) : 0;
    for (int64_t c = sw_plan_frozen_chunks(b->plan, unit); c < chunks; c++) {
        const struct sw_chunk chunk = sw_build_chunk(b, SW_WEIGHTS, unit, c);
        const struct sw_operand home = home_of_weights(b, unit), at = home_of(update->slot);
        const struct sw_what what = {.content = SW_CONTENT_WEIGHTS, .unit = unit, .index = c};
        const int64_t bytes = sw_build_weights_bytes(b, &chunk);
        const bool nvme = b->plan->slot[home.slot].tier == SW_NVME;
        const struct sw_operand on_host = nvme ? sw_build_ring(b, SLOT_WEIGHTS_RING) : home;
        sw_build_move(b, &at, &on_host, &what, &chunk, bytes);
        if (nvme)
            sw_build_move(b, &on_host, &home, &what, &chunk, bytes);
    }
}

/* Returns where an update finds the chunk; slot -1: it is on the device, and the update runs on the host. */
static struct sw_operand round_chunk(struct sw_builder *b, const struct sw_chunk *chunk, int32_t acc, int64_t version) {
    const int64_t unit = chunk->unit;
    const sw_tier tier = tier_of(b, SW_GRADS, unit);
    const struct sw_operand home = home_of(b->index->of_unit[SLOT_GRADS][unit]);
    const struct sw_operand on_device = tier == SW_DEVICE ? home : sw_build_ring(b, SLOT_GRADS_DOWN);
    const struct sw_what grads = grads_what(chunk, 0);
    const int64_t bytes = sw_build_grads_bytes(b, chunk);
    struct sw_op *op = sw_build_chunk_op(b, SW_OP_ROUND_GRADIENTS, chunk);
    op->bytes = op->grains * SW_GRAIN_ELEMS * (int64_t)sizeof(float) + bytes;
    sw_build_read(b, home_of(acc), (struct sw_what){SW_CONTENT_ACC, unit, chunk->number, version, 0, 0});
    sw_build_write(b, on_device, grads);
    sw_build_note_square_sums(b, unit, chunk->number);
    const bool updated_there = sw_plan_updates_on_device(b->plan, unit);
    if (tier == SW_DEVICE)
        return updated_there ? on_device : (struct sw_operand){.slot = -1};
    const struct sw_operand on_host = tier == SW_HOST ? home : sw_build_ring(b, SLOT_GRADS_OUT);
    sw_build_move(b, &on_device, &on_host, &grads, chunk, bytes);
    if (tier == SW_NVME)
        sw_build_move(b, &on_host, &home, &grads, chunk, bytes);
    return updated_there ? on_device : on_host;
}

static void round_alone(struct sw_builder *b, int64_t unit, int32_t acc, int64_t version, bool speculate) {
    const int64_t chunks = sw_plan_state_chunks(b->plan, SW_GRADS, unit);
    for (int64_t c = 0; c < chunks; c++) {
        struct chunk_update u = {.chunk = sw_build_chunk(b, SW_GRADS, unit, c), .speculative = true};
        u.slot = unit == 0 && sw_plan_fetches_table(b->plan) ? b->index->slot[SLOT_TABLE] : -1;
        u.grads = round_chunk(b, &u.chunk, acc, version);
        if (!speculate)
            continue;
        if (u.grads.slot < 0)
            u.grads = bring_grads(b, &u.chunk, 0);
        update_chunk(b, &u);
    }
}

/* Rounds a finished gradient and moves it to where gradients live and, if `speculate`, into the update at once. */
static void build_round_gradients(struct sw_builder *b, int64_t unit, int32_t acc, int64_t version, bool speculate) {
    if (sw_plan_unit_ranks(b->plan, unit) > 1 && !sw_plan_reduces_groups(b->plan, unit)) {
        sw_build_reduce(b, unit, acc, version);
        return;
    }
    round_alone(b, unit, acc, version, speculate);
    sw_build_download_square_sums(b, unit);
}

/* The accumulators that the backward pass adds to: zeroed or brought at the start of a group of micro-batches, and at
 * its end rounded, reduced, or taken back to where they live. */

static struct sw_what acc_of(int64_t unit, int64_t index, int64_t version) {
    return (struct sw_what){SW_CONTENT_ACC, unit, index, version, 0, 0};
}

bool sw_build_is_table(const struct sw_builder *b, int64_t unit) {
    return unit == 0 && b->plan->spec.units->tied;
}

static void emit_acc_transfer(struct sw_builder *b, int64_t unit, struct sw_accumulator acc, bool in) {
    const int32_t home = b->index->of_unit[SLOT_ACC][unit];
    const bool nvme = b->plan->slot[home].tier == SW_NVME;
    const int64_t chunks = sw_plan_trained_chunks(b->plan, unit);
    for (int64_t c = 0; c < chunks; c++) {
        const struct sw_chunk chunk = {unit, c, sw_plan_trained_chunk(b->plan, unit, c)};
        const int64_t bytes = chunk.at.grains * SW_GRAIN_ELEMS * (int64_t)sizeof(float);
        const struct sw_what what = acc_of(unit, c, acc.version);
        const struct sw_operand on_device = {.slot = acc.slot, .piece = SW_BY_GRAINS};
        const struct sw_operand at_home = {.slot = home, .piece = SW_BY_GRAINS};
        const struct sw_operand on_host = nvme ? sw_build_ring(b, in ? SLOT_ACC_IN : SLOT_ACC_OUT) : at_home;
        if (in && nvme)
            sw_build_move(b, &at_home, &on_host, &what, &chunk, bytes);
        sw_build_move(b, in ? &on_host : &on_device, in ? &on_device : &on_host, &what, &chunk, bytes);
        if (!in && nvme)
            sw_build_move(b, &on_host, &at_home, &what, &chunk, bytes);
    }
}

/* Takes one of the accumulators that units take turns with: the other one, if there are two. */
static int32_t work_acc(struct sw_builder *b, int64_t unit) {
    const bool experts = sw_plan_joins_block(b->plan, unit);
    const int first = experts ? SLOT_EXPERTS_ACC : SLOT_WORK_ACC;
    return b->index->slot[first + (b->index->slot[first + 1] < 0 ? 0 : b->work_acc_next[experts]++ % 2)];
}

struct sw_accumulator sw_build_begin_acc(struct sw_builder *b, int64_t unit, const struct sw_group *group,
                                         int per_micro) {
    const int32_t home = b->index->of_unit[SLOT_ACC][unit];
    const bool on_device = home >= 0 && b->plan->slot[home].tier == SW_DEVICE;
    const bool anew = group->first == 0 || sw_plan_reduces_groups(b->plan, unit);
    struct sw_accumulator acc = {.slot = home, .version = anew ? 0 : per_micro * group->first};
    if (sw_build_is_table(b, unit))
        acc.slot = b->index->slot[SLOT_TABLE_ACC];
    else if (!on_device)
        acc.slot = work_acc(b, unit);
    if (anew) {
        struct sw_op *op = sw_build_op(b, SW_OP_ZERO_ACCUMULATOR, unit, -1);
        op->first_grain = sw_plan_trained(b->plan, unit).first_grain;
        op->grains = sw_plan_trained_grains(b->plan, unit);
        sw_build_write_unit(b, acc.slot, acc_of(unit, 0, 0));
    } else if (!on_device && !sw_build_is_table(b, unit)) {
        emit_acc_transfer(b, unit, acc, true);
    }
    return acc;
}

void sw_build_accumulate(struct sw_builder *b, int64_t unit, struct sw_accumulator *acc) {
    struct sw_what what = acc_of(unit, 0, acc->version);
    sw_build_access_unit(b, false, acc->slot, &what);
    what.version = ++acc->version;
    sw_build_access_unit(b, true, acc->slot, &what);
}

/* Adds up what the ranks of a group have of the gradients of replicated tensors, of which each has the part of its
 * rows, heads or experts, before anything else becomes of them: afterwards all ranks have the same. */
static void sum_replicated(struct sw_builder *b, int64_t unit, struct sw_accumulator *acc) {
    const sw_among among = sw_plan_replicated_among(b->plan, unit);
    const struct sw_span own = sw_plan_replicated_of(b->plan, unit, sw_plan_member(b->plan, among));
    const int64_t elems = sw_plan_replicated_elems(b->plan, unit);
    if (sw_plan_members(b->plan, among) == 1 || elems == 0)
        return;
    struct sw_op *op = sw_build_op(b, SW_OP_SUM_REPLICATED, unit, -1);
    op->bytes = (elems - own.grains) * (int64_t)sizeof(float) + sw_plan_gathered_bytes(b->plan, op);
    sw_build_accumulate(b, unit, acc);
}

/* Adds up what the first and the last stage have of a tied table's gradient: afterwards both have the same. */
static void sum_table(struct sw_builder *b, struct sw_accumulator *acc) {
    struct sw_op *op = sw_build_op(b, SW_OP_SUM_TABLE, 0, -1);
    op->bytes = sw_plan_trained_grains(b->plan, 0) * sw_plan_grain_bytes(b->plan, SW_CONTENT_ACC, 0);
    sw_build_accumulate(b, 0, acc);
}

void sw_build_end_acc(struct sw_builder *b, int64_t unit, const struct sw_group *group, struct sw_accumulator acc) {
    const int32_t home = b->index->of_unit[SLOT_ACC][unit];
    const bool last = group->first + group->count == b->plan->spec.micro_batches;
    if (last || sw_plan_reduces_groups(b->plan, unit))
        sum_replicated(b, unit, &acc);
    if (last && unit == 0 && sw_plan_copies_table(b->plan))
        sum_table(b, &acc);
    if (sw_plan_reduces_groups(b->plan, unit)) {
        const int64_t before = group->first / sw_plan_group(b->plan);
        sw_build_reduce_group(b, unit, acc.slot, acc.version, before);
        if (last)
            build_round_gradients(b, unit, b->index->of_unit[SLOT_ACC_SHARD][unit], before + 1, false);
        return;
    }
    if (last)
        build_round_gradients(b, unit, acc.slot, acc.version, group->speculate);
    else if (!sw_build_is_table(b, unit) && b->plan->slot[home].tier != SW_DEVICE)
        emit_acc_transfer(b, unit, acc, false);
}
