/* Choosing a placement within the budgets, and making the plan for it. */
#include "offload/plan.h"

#include "core/size.h"
#include "offload/plan_private.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const lane_names[SW_LANES] = {"compute", "upload", "download", "read", "write", "update"};
static const char *const op_names[SW_OP_KINDS] = {
    "upload-tokens",
    "forward",
    "loss",
    "logits",
    "zero",
    "head",
    "backward",
    "finish",
    "download-sums",
    "download-grads",
    "write-grads",
    "norm",
    "read-grads",
    "upload-grads",
    "read-optimizer",
    "update",
    "update-on-device",
    "upload-weights",
    "write-optimizer",
    "commit",
};

const char *sw_lane_name(sw_lane lane) {
    return lane_names[lane];
}

bool sw_lane_is_io(sw_lane lane) {
    return lane == SW_LANE_READ || lane == SW_LANE_WRITE;
}

const char *sw_op_name(sw_op_kind kind) {
    return op_names[kind];
}

int64_t sw_plan_chunks(const struct sw_plan *plan, int64_t unit) {
    return sw_div_up(plan->spec.units->unit[unit].grains, plan->spec.chunk_grains);
}

int64_t sw_plan_chunk_grains(const struct sw_plan *plan, int64_t unit, int64_t chunk) {
    const int64_t grains = plan->spec.units->unit[unit].grains;
    return sw_min_i64(plan->spec.chunk_grains, grains - chunk * plan->spec.chunk_grains);
}

int32_t sw_plan_resident(const struct sw_plan *plan, sw_state state, int64_t unit) {
    const int32_t *const slots[SW_STATES] = {
        [SW_WEIGHTS] = plan->index->weights, [SW_GRADS] = plan->index->grads, [SW_OPTIMIZER] = plan->index->optimizer};
    if (slots[state] == NULL || plan->placement[unit].tier[state] == SW_NVME)
        return -1;
    return slots[state][unit];
}

static bool fits(const struct sw_plan *plan) {
    return plan->tier_bytes[SW_DEVICE] <= plan->spec.budget_bytes[SW_DEVICE] &&
           plan->tier_bytes[SW_HOST] <= plan->spec.budget_bytes[SW_HOST];
}

static void place_state(struct sw_plan *plan, sw_state state, sw_tier tier) {
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        plan->placement[u].tier[state] = plan->spec.place.automatic[state] ? tier : plan->spec.place.tier[state];
}

static sw_status try_uniform(struct sw_plan *plan, sw_tier grads, sw_tier optimizer, bool recompute, bool *out_fits) {
    place_state(plan, SW_WEIGHTS, SW_DEVICE);
    place_state(plan, SW_ACTS, SW_DEVICE);
    place_state(plan, SW_GRADS, grads);
    place_state(plan, SW_OPTIMIZER, optimizer);
    plan->recompute = recompute;
    SW_TRY(sw_plan_layout(plan));
    *out_fits = fits(plan);
    return SW_OK;
}

/* Moves a state up from NVMe, unit by unit in forward order, as far as the budgets allow: to the device, else to the
 * host. */
static sw_status raise_state(struct sw_plan *plan, sw_state state) {
    for (int64_t u = 0; plan->spec.place.automatic[state] && u < plan->spec.units->count; u++) {
        for (int tier = SW_DEVICE; tier <= SW_NVME; tier++) {
            plan->placement[u].tier[state] = (sw_tier)tier;
            SW_TRY(sw_plan_layout(plan));
            if (fits(plan))
                break;
        }
    }
    return SW_OK;
}

/* A size as a flag takes it, rounded up, so that what the message asks for is enough. */
static const char *format_need(int64_t bytes, char buffer[SW_SIZE_CHARS]) {
    const bool small = bytes < 64 * SW_MIB;
    snprintf(buffer, SW_SIZE_CHARS, "%lld%s", (long long)sw_div_up(bytes, small ? SW_KIB : SW_MIB),
             small ? "KiB" : "MiB");
    return buffer;
}

static sw_status refuse_budget(const struct sw_plan *plan) {
    char need[2][SW_SIZE_CHARS], have[2][SW_SIZE_CHARS];
    return sw_fail(
        SW_ERR_BUDGET,
        "the model does not fit: this placement needs at least --device-memory %s (the budget is %s) and "
        "--host-memory %s (the budget is %s)",
        format_need(plan->tier_bytes[SW_DEVICE], need[0]), sw_format_size(plan->spec.budget_bytes[SW_DEVICE], have[0]),
        format_need(plan->tier_bytes[SW_HOST], need[1]), sw_format_size(plan->spec.budget_bytes[SW_HOST], have[1]));
}

/* Everything as near to the compute as it fits. Gradients gain more than the optimizer a byte, so they rise first. */
static sw_status place(struct sw_plan *plan) {
    static const sw_tier uniform[][2] = {{SW_DEVICE, SW_DEVICE}, {SW_DEVICE, SW_HOST}, {SW_HOST, SW_HOST}};
    const bool automatic = plan->spec.recompute_auto;
    bool fit = false;
    for (size_t i = 0; i < sizeof uniform / sizeof uniform[0]; i++) {
        for (int recompute = 0; recompute < 2; recompute++) {
            if (!automatic && (recompute == 1) != plan->spec.recompute)
                continue;
            SW_TRY(try_uniform(plan, uniform[i][0], uniform[i][1], recompute == 1, &fit));
            if (fit)
                return SW_OK;
        }
    }
    SW_TRY(try_uniform(plan, SW_NVME, SW_NVME, automatic || plan->spec.recompute, &fit));
    if (!fit)
        return refuse_budget(plan);
    SW_TRY(raise_state(plan, SW_GRADS));
    return raise_state(plan, SW_OPTIMIZER);
}

static sw_status make_programs(struct sw_plan *plan) {
    plan->commit_every_step = plan->spec.train;
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        if (plan->placement[u].tier[SW_OPTIMIZER] != SW_NVME)
            plan->commit_every_step = false;
    for (int p = plan->spec.train ? SW_PROGRAM_TRAIN : SW_PROGRAM_LOSS; p < SW_PROGRAMS; p++) {
        SW_TRY(sw_plan_emit(plan, (sw_program_kind)p, &plan->program[p]));
        SW_TRY(sw_plan_derive_waits(plan, &plan->program[p]));
    }
    return SW_OK;
}

sw_status sw_plan_create(const struct sw_plan_spec *spec, struct sw_plan **out) {
    assert(spec->units->count >= 3 && spec->micro_batches >= 1 && spec->chunk_grains >= 1 && spec->ring_chunks >= 1);
    sw_status status = SW_OK;
    struct sw_plan *plan = calloc(1, sizeof *plan);
    if (plan == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a plan");
    plan->spec = *spec;
    plan->placement = calloc((size_t)spec->units->count, sizeof *plan->placement);
    plan->index = calloc(1, sizeof *plan->index);
    if (plan->placement == NULL || plan->index == NULL) {
        status = sw_fail(SW_ERR_NOMEM, "no memory for a plan");
        goto fail;
    }
    SW_TRY_GOTO(place(plan), fail);
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
        free(plan->index->boundary);
        free(plan->index->saved);
    }
    free(plan->index);
    free(plan->slot);
    free(plan->placement);
    free(plan);
}
