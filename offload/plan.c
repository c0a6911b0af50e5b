/* Choosing a placement within the budgets, and making the plan for it. */
#include "offload/plan.h"

#include "core/size.h"
#include "offload/plan_private.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NEED_CHARS = 3 * SW_SIZE_CHARS };

static const char *const lane_names[SW_LANES] = {"compute", "upload", "download", "read", "write", "update", "comm"};
static const char *const op_names[SW_OP_KINDS] = {
    [SW_OP_UPLOAD_TOKENS] = "tokens",
    [SW_OP_FORWARD] = "forward",
    [SW_OP_LOSS] = "loss",
    [SW_OP_LOGITS] = "logits",
    [SW_OP_ZERO] = "zero",
    [SW_OP_HEAD] = "head",
    [SW_OP_BACKWARD] = "backward",
    [SW_OP_FINISH] = "finish",
    [SW_OP_ROUND] = "round",
    [SW_OP_REDUCE] = "reduce",
    [SW_OP_ADD] = "add",
    [SW_OP_SQUARE_SUMS] = "square sums",
    [SW_OP_ALL_GATHER] = "all-gather",
    [SW_OP_SHARE] = "share",
    [SW_OP_DOWNLOAD_SUMS] = "sums",
    [SW_OP_NORM] = "norm",
    [SW_OP_UPDATE] = "update",
    [SW_OP_UPDATE_ON_DEVICE] = "update on device",
    [SW_OP_GATHER] = "gather",
    [SW_OP_UPLOAD] = "upload",
    [SW_OP_DOWNLOAD] = "download",
    [SW_OP_READ] = "read",
    [SW_OP_WRITE] = "write",
    [SW_OP_COMMIT] = "commit",
};

const char *sw_lane_name(sw_lane lane) {
    return lane_names[lane];
}

bool sw_lane_is_io(sw_lane lane) {
    return lane == SW_LANE_READ || lane == SW_LANE_WRITE;
}

bool sw_lane_is_of_device(sw_lane lane) {
    return lane == SW_LANE_COMPUTE || lane == SW_LANE_UPLOAD || lane == SW_LANE_DOWNLOAD;
}

const char *sw_recompute_name(sw_recompute level) {
    static const char *const names[SW_RECOMPUTES] = {"none", "derived", "all"};
    return names[level];
}

const char *sw_op_name(sw_op_kind kind) {
    return op_names[kind];
}

bool sw_plan_keeps_input(const struct sw_plan *plan, int64_t unit) {
    const bool inner = unit > 0 && unit + 1 < plan->spec.units->count;
    return inner && (plan->spec.shares_input == NULL || !plan->spec.shares_input[unit]);
}

int64_t sw_plan_backward_input(const struct sw_plan *plan, int64_t unit) {
    while (!sw_plan_keeps_input(plan, unit))
        unit--;
    return unit;
}

int64_t sw_plan_input_pages(const struct sw_plan *plan, int64_t unit) {
    return sw_div_up(plan->spec.boundary_bytes[unit - 1], SW_BUFFER_ALIGN_BYTES);
}

bool sw_plan_updates_on_device(const struct sw_plan *plan, int64_t unit) {
    return plan->placement[unit].tier[SW_OPTIMIZER] == SW_DEVICE || plan->streams_update[unit];
}

bool sw_plan_streams(const struct sw_plan *plan, int64_t unit) {
    return plan->placement[unit].tier[SW_OPTIMIZER] != SW_DEVICE && plan->streams_update[unit];
}

int32_t sw_plan_resident(const struct sw_plan *plan, sw_state state, int64_t unit) {
    const int32_t *const slots[SW_STATES] = {
        [SW_WEIGHTS] = plan->index->weights, [SW_GRADS] = plan->index->grads, [SW_OPTIMIZER] = plan->index->optimizer};
    if (slots[state] == NULL || plan->placement[unit].tier[state] == SW_NVME)
        return -1;
    return slots[state][unit];
}

bool sw_plan_fits(const struct sw_plan *plan) {
    return plan->tier_bytes[SW_DEVICE] <= plan->spec.budget_bytes[SW_DEVICE] &&
           plan->tier_bytes[SW_HOST] <= plan->spec.budget_bytes[SW_HOST];
}

/* Bytes of a unit's state, for shares. */
static int64_t state_bytes(const struct sw_plan *plan, sw_state state, int64_t unit) {
    if (state == SW_ACTS)
        return sw_plan_keeps_input(plan, unit) ? plan->spec.boundary_bytes[unit - 1] : 0;
    return plan->spec.units->unit[unit].grains;
}

/* A state as the request says; where it leaves the choice, all on one tier. */
static void place_state(struct sw_plan *plan, sw_state state, sw_tier automatic) {
    const struct sw_placement_request *request = &plan->spec.place;
    int64_t total = 0, before = 0;
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        total += state_bytes(plan, state, u);
    for (int64_t u = 0; u < plan->spec.units->count; u++) {
        const int64_t bytes = state_bytes(plan, state, u);
        plan->placement[u].tier[state] = request->automatic[state] ? automatic
                                         : total == 0              ? SW_DEVICE
                                                      : sw_placement_of(request->share[state], before, bytes, total);
        before += bytes;
    }
}

/* Puts the states that the request leaves open on these tiers, each whole. */
static sw_status try_uniform(struct sw_plan *plan, const sw_tier automatic[SW_STATES], sw_recompute recompute,
                             bool *out_fits) {
    for (int state = 0; state < SW_STATES; state++)
        place_state(plan, (sw_state)state, automatic[state]);
    for (int64_t u = 1; u + 1 < plan->spec.units->count; u++)
        plan->recompute[u] = recompute;
    SW_TRY(sw_plan_layout(plan));
    *out_fits = sw_plan_fits(plan);
    return SW_OK;
}

/* Moves the automatic ones of two states of each unit to a tier, in forward order, where the budgets allow it. */
static sw_status raise_states(struct sw_plan *plan, sw_state first, sw_state second, sw_tier tier) {
    const bool automatic[] = {plan->spec.place.automatic[first], plan->spec.place.automatic[second]};
    for (int64_t u = 0; (automatic[0] || automatic[1]) && u < plan->spec.units->count; u++) {
        const struct sw_unit_placement before = plan->placement[u];
        if (automatic[0] && tier < before.tier[first])
            plan->placement[u].tier[first] = tier;
        if (automatic[1] && tier < before.tier[second])
            plan->placement[u].tier[second] = tier;
        SW_TRY(sw_plan_layout(plan));
        if (!sw_plan_fits(plan))
            plan->placement[u] = before;
    }
    return sw_plan_layout(plan);
}

/* Sizes are named in these units, rounded up, so that what the message asks for is enough. */
static int64_t unit_of_size(int64_t bytes) {
    return bytes < 64 * SW_MIB ? SW_KIB : SW_MIB;
}

/* What a placement needs, where both budgets or one of them is short of it. */
struct need {
    int64_t bytes[SW_NVME]; /* of device and host */
    int64_t missing_bytes[SW_NVME];
    int short_budgets; /* 0: none known yet */
};

/* Keeps the lesser of two needs: the one that asks for a change of fewer budgets, then for fewer bytes. */
static void keep_lesser(struct need *least, const struct sw_plan *plan) {
    struct need need = {0};
    for (int tier = SW_DEVICE; tier < SW_NVME; tier++) {
        const int64_t bytes = plan->tier_bytes[tier], budget = plan->spec.budget_bytes[tier];
        need.bytes[tier] = sw_round_up(bytes, unit_of_size(bytes));
        need.missing_bytes[tier] = bytes <= budget ? 0 : need.bytes[tier] - budget;
        need.short_budgets += need.missing_bytes[tier] > 0;
    }
    const int64_t missing = need.missing_bytes[SW_DEVICE] + need.missing_bytes[SW_HOST];
    const int64_t least_missing = least->missing_bytes[SW_DEVICE] + least->missing_bytes[SW_HOST];
    if (least->short_budgets == 0 || need.short_budgets < least->short_budgets ||
        (need.short_budgets == least->short_budgets && missing < least_missing))
        *least = need;
}

/* "--host-memory 96MiB (the budget is 64 MiB)", or nothing for a budget that suffices. */
static void describe_need(const struct sw_plan *plan, const struct need *need, sw_tier tier, char text[NEED_CHARS]) {
    static const char *const flags[SW_NVME] = {"--device-memory", "--host-memory"};
    const int64_t bytes = need->bytes[tier], unit = unit_of_size(bytes);
    char budget[SW_SIZE_CHARS];
    text[0] = '\0';
    if (need->missing_bytes[tier] > 0)
        snprintf(text, NEED_CHARS, "%s %lld%s (the budget is %s)", flags[tier], (long long)(bytes / unit),
                 unit == SW_KIB ? "KiB" : "MiB", sw_format_size(plan->spec.budget_bytes[tier], budget));
}

static sw_status refuse_budget(const struct sw_plan *plan, const struct need *need) {
    if (plan->spec.lack != NULL)
        *plan->spec.lack = (struct sw_plan_lack){
            .short_budgets = need->short_budgets,
            .missing_bytes = need->missing_bytes[SW_DEVICE] + need->missing_bytes[SW_HOST],
        };
    char device[NEED_CHARS], host[NEED_CHARS];
    describe_need(plan, need, SW_DEVICE, device);
    describe_need(plan, need, SW_HOST, host);
    return sw_fail(SW_ERR_BUDGET, "the model does not fit: this placement needs at least %s%s%s", device,
                   need->short_budgets == SW_NVME ? " and " : "", host);
}

/* Every way to put the open states each on one tier, from the fastest to the slowest. Near the least budgets these
 * differ by more than what they hold: a ring may be larger than a small unit, and a state that is all on the device
 * needs none. Leaves the first that fits in the plan; where none does, names the least that would. */
static sw_status search_uniform(struct sw_plan *plan, sw_recompute recompute, sw_tier lowest) {
    struct need least = {0};
    const int tiers = (int)lowest + 1;
    for (int way = 0; way < tiers * tiers * tiers * tiers; way++) {
        const sw_tier automatic[SW_STATES] = {
            [SW_WEIGHTS] = (sw_tier)(way / (tiers * tiers * tiers)),
            [SW_ACTS] = (sw_tier)(way / (tiers * tiers) % tiers),
            [SW_GRADS] = (sw_tier)(way / tiers % tiers),
            [SW_OPTIMIZER] = (sw_tier)(way % tiers),
        };
        bool fit;
        SW_TRY(try_uniform(plan, automatic, recompute, &fit));
        if (fit)
            return SW_OK;
        keep_lesser(&least, plan);
    }
    return refuse_budget(plan, &least);
}

/* The forward pass waits for the updates of the embedding and the first block, whose gradients came last: with rings as
 * long as they are, their records are read under the backward pass, and written when the forward pass has begun. */
static int64_t most_ring_chunks(const struct sw_plan *plan) {
    const int64_t awaited = sw_plan_buckets(plan, 0) + sw_plan_buckets(plan, 1);
    int64_t all = 0;
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        all += sw_plan_buckets(plan, u);
    const int64_t useful = sw_max_i64(SW_RING_CHUNKS_USEFUL, awaited + SW_RING_CHUNKS_BEHIND);
    return sw_min_i64(all, sw_min_i64(SW_RING_CHUNKS_MOST, useful));
}

/* Chunks that stream through the device between two micro-batches: with room for these, the link need not wait for the
 * arithmetic. */
static int64_t most_stream_chunks(const struct sw_plan *plan) {
    int64_t most = 0;
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        if (plan->spec.train && sw_plan_streams(plan, u))
            most = sw_max_i64(most, sw_div_up(sw_plan_chunks(plan, u), sw_plan_group(plan)) + SW_DEVICE_RING_CHUNKS);
    return sw_min_i64(SW_RING_CHUNKS_MOST, most);
}

/* Doubles the chunks of rings while the budgets have room. */
static sw_status grow_rings(struct sw_plan *plan, int64_t *chunks, int64_t most) {
    while (plan->spec.ring_auto && *chunks < most) {
        const int64_t before = *chunks;
        *chunks = sw_min_i64(2 * before, most);
        SW_TRY(sw_plan_layout(plan));
        if (sw_plan_fits(plan))
            continue;
        *chunks = before;
        break;
    }
    return sw_plan_layout(plan);
}

/* Everything on the device if it fits. Else everything as low as it may go, and then up again, first what saves the
 * most traffic for its bytes: weights (fetched twice for each group of micro-batches), the accumulators that lie
 * between groups (there and back for each), boundaries (once each way), then intermediates instead of recomputation,
 * then gradients with their optimizer; what the device cannot take goes to the host in the same order. */
static sw_status place(struct sw_plan *plan) {
    const bool choose = plan->spec.recompute_auto;
    const sw_recompute least = choose ? SW_RECOMPUTE_NOTHING : plan->spec.recompute;
    const sw_recompute most = choose ? SW_RECOMPUTE_UNIT : plan->spec.recompute;
    const sw_tier lowest = plan->spec.train || plan->spec.scratch_store ? SW_NVME : SW_HOST;
    const sw_tier highest_all[SW_STATES] = {SW_DEVICE, SW_DEVICE, SW_DEVICE, SW_DEVICE};
    const sw_tier lowest_all[SW_STATES] = {lowest, lowest, lowest, lowest};
    bool fit;
    SW_TRY(try_uniform(plan, highest_all, least, &fit));
    if (fit)
        return SW_OK;
    SW_TRY(try_uniform(plan, lowest_all, most, &fit));
    if (!fit)
        SW_TRY(search_uniform(plan, most, lowest));
    SW_TRY(raise_states(plan, SW_WEIGHTS, SW_WEIGHTS, SW_DEVICE));
    if (sw_plan_groups(plan) > 1)
        SW_TRY(raise_states(plan, SW_GRADS, SW_GRADS, SW_DEVICE));
    SW_TRY(raise_states(plan, SW_ACTS, SW_ACTS, SW_DEVICE));
    if (choose)
        SW_TRY(sw_plan_keep_intermediates(plan));
    SW_TRY(raise_states(plan, SW_GRADS, SW_OPTIMIZER, SW_DEVICE));
    SW_TRY(raise_states(plan, SW_WEIGHTS, SW_WEIGHTS, SW_HOST));
    SW_TRY(raise_states(plan, SW_ACTS, SW_ACTS, SW_HOST));
    SW_TRY(raise_states(plan, SW_GRADS, SW_GRADS, SW_HOST));
    return raise_states(plan, SW_OPTIMIZER, SW_OPTIMIZER, SW_HOST);
}

bool sw_program_repeats(sw_program_kind kind) {
    return kind == SW_PROGRAM_UPDATE || kind == SW_PROGRAM_UPDATE_SAVE || kind == SW_PROGRAM_REDO_SPECULATE ||
           kind == SW_PROGRAM_LOSS || kind == SW_PROGRAM_LOGITS;
}

/* Ranks speculate on nothing: whether it pays is each one's own measurement. */
bool sw_plan_may_speculate(const struct sw_plan *plan) {
    return plan->commit_every_step && sw_plan_ranks(plan) == 1;
}

static bool has_program(const struct sw_plan *plan, sw_program_kind kind) {
    switch (kind) {
    case SW_PROGRAM_LOSS:
    case SW_PROGRAM_LOGITS: return true;
    case SW_PROGRAM_START:
    case SW_PROGRAM_UPDATE:
    case SW_PROGRAM_FLUSH_UPDATE: return plan->spec.train;
    case SW_PROGRAM_UPDATE_SAVE: return sw_plan_saves(plan);
    default: return sw_plan_may_speculate(plan);
    }
}

static sw_status make_programs(struct sw_plan *plan) {
    for (int p = 0; p < SW_PROGRAMS; p++) {
        if (!has_program(plan, (sw_program_kind)p))
            continue;
        SW_TRY(sw_plan_emit(plan, (sw_program_kind)p, &plan->program[p]));
        SW_TRY(sw_plan_derive_waits(plan, &plan->program[p]));
    }
    return SW_OK;
}

sw_status sw_plan_create(const struct sw_plan_spec *spec, struct sw_plan **out) {
    assert(spec->units->count >= 3 && spec->micro_batches >= 1 && spec->chunk_grains >= 1 && spec->ring_chunks >= 1);
    assert(spec->shares_input == NULL || !spec->shares_input[1]);
    assert(spec->group >= 1 && spec->unit_slots >= 2 && spec->unit_slots <= UNIT_SLOTS_MAX);
    if (!spec->train && !spec->scratch_store && !spec->place.automatic[SW_WEIGHTS] &&
        spec->place.share[SW_WEIGHTS][SW_NVME] > 0.0)
        return sw_fail(
            SW_ERR_UNSUPPORTED,
            "without training, weights live on the device or the host, not on nvme where no store is for them");
    assert(spec->ranks >= 0 && spec->rank >= 0 && (spec->rank < spec->ranks || spec->ranks == 0));
    assert(spec->zero >= SW_ZERO_NONE && spec->zero <= SW_ZERO_WEIGHTS && (spec->train || spec->ranks <= 1));
    sw_status status = SW_OK;
    struct sw_plan *plan = calloc(1, sizeof *plan);
    if (plan == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a plan");
    plan->spec = *spec;
    plan->placement = calloc((size_t)spec->units->count, sizeof *plan->placement);
    plan->recompute = calloc((size_t)spec->units->count, sizeof *plan->recompute);
    plan->streams_update = calloc((size_t)spec->units->count, sizeof *plan->streams_update);
    plan->index = calloc(1, sizeof *plan->index);
    if (plan->placement == NULL || plan->recompute == NULL || plan->streams_update == NULL || plan->index == NULL) {
        status = sw_fail(SW_ERR_NOMEM, "no memory for a plan");
        goto fail;
    }
    if (spec->streams_update != NULL)
        memcpy(plan->streams_update, spec->streams_update, (size_t)spec->units->count * sizeof *plan->streams_update);
    plan->spec.streams_update = NULL;
    plan->stream_chunks = sw_min_i64(spec->ring_chunks, SW_DEVICE_RING_CHUNKS);
    SW_TRY_GOTO(place(plan), fail);
    /* What is left of the host's budget goes to its rings: the drive can then work ahead of the arithmetic. */
    SW_TRY_GOTO(grow_rings(plan, &plan->spec.ring_chunks, most_ring_chunks(plan)), fail);
    SW_TRY_GOTO(grow_rings(plan, &plan->stream_chunks, most_stream_chunks(plan)), fail);
    SW_TRY_GOTO(make_programs(plan), fail);
    *out = plan;
    return SW_OK;
fail:
    sw_plan_destroy(plan);
    return status;
}

void sw_plan_destroy(struct sw_plan *plan) {
    if (plan == NULL)
        return;
    for (int p = 0; p < SW_PROGRAMS; p++)
        sw_program_destroy(&plan->program[p]);
    if (plan->index != NULL) {
        free(plan->index->weights);
        free(plan->index->grads);
        free(plan->index->optimizer);
        free(plan->index->saved_optimizer);
        free(plan->index->acc);
        free(plan->index->acc_shard);
        free(plan->index->boundary);
        free(plan->index->saved);
        free(plan->index->derived);
        free(plan->index->cache);
    }
    free(plan->index);
    free(plan->slot);
    free(plan->recompute);
    free(plan->streams_update);
    free(plan->placement);
    free(plan);
}
