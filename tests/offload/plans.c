#include "tests/offload/plans.h"

#include "core/rng.h"
#include "core/size.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PLANS_STREAM = 5,
    PARTS_SEED = 1 << 20,
    BASE_SEED = 1 << 21,
    GROUP_SEED = 1 << 22,
    SPANS_SEED = 1 << 23,
    TRAINED_SEED = 3 << 20,
    EXPERTS_SEED = 5 << 20,
    APART_SEED = 7 << 20,
    MATRICES_SEED = 9 << 20
};

int64_t plans_draw(struct plans_random *random, int64_t least, int64_t most) {
    const double uniform = sw_rng_uniform(random->seed, PLANS_STREAM, random->counter++);
    return least + (int64_t)(uniform * (double)(most - least + 1));
}

static void require(sw_status status) {
    if (status != SW_OK) {
        fprintf(stderr, "%s\n", sw_error_message(status));
        abort();
    }
}

static void add_tensors(struct plans_random *random, struct sw_unit *unit, int64_t most_grains) {
    const int64_t tensors = plans_draw(random, 1, 4);
    int64_t left = plans_draw(random, 1, most_grains * SW_GRAIN_ELEMS);
    for (int64_t t = 0; t < tensors && left > SW_TENSOR_ALIGN_ELEMS; t++) {
        const int64_t elems = t + 1 == tensors ? left : plans_draw(random, 1, left);
        char name[SW_TENSOR_NAME_CHARS];
        snprintf(name, sizeof name, "tensor %lld", (long long)t);
        require(sw_unit_add_tensor(unit, name, 1, &elems, t % 2 == 0));
        left -= sw_round_up(elems, SW_TENSOR_ALIGN_ELEMS);
    }
    if (unit->tensor_count == 0)
        require(sw_unit_add_tensor(unit, "tensor", 1, &(int64_t){1}, false));
}

/* Automatic, all on one tier, or shares in whole percents. */
static void draw_place(struct plans_random *random, bool nvme, bool *out_automatic, double share[SW_TIERS]) {
    enum { AUTOMATIC = SW_TIERS, SHARES };
    const int64_t choice = plans_draw(random, 0, SHARES);
    const int64_t device = plans_draw(random, 0, 100), host = nvme ? plans_draw(random, 0, 100 - device) : 100 - device;
    *out_automatic = choice == AUTOMATIC || (choice == SW_NVME && !nvme);
    for (int t = 0; t < SW_TIERS; t++)
        share[t] = t == (int)choice ? 1.0 : 0.0;
    if (choice != SHARES)
        return;
    share[SW_DEVICE] = (double)device / 100.0;
    share[SW_HOST] = (double)host / 100.0;
    share[SW_NVME] = 1.0 - share[SW_DEVICE] - share[SW_HOST];
    if (device + host == 100)
        share[SW_NVME] = 0.0;
}

/* Draws the parts of a specification that only passes without training have: KV caches of some units, and a scratch
 * store. */
static void draw_inference(struct plans_random *random, struct sw_plan_spec *spec) {
    spec->scratch_store = plans_draw(random, 0, 1) == 1;
    const bool caches = plans_draw(random, 0, 2) > 0;
    for (int64_t u = 0; u + 1 < spec->units->count; u++) {
        const int64_t bytes = plans_draw(random, 0, 1) * plans_draw(random, 1, 1 << 20);
        random->cost[u].cache_bytes = caches ? bytes : 0;
    }
}

/* Updates on the device of all units, of some, or in half of the plans of none but those that live there. */
static const bool *draw_streams(struct plans_random *random, int64_t units) {
    const int64_t choice = plans_draw(random, 0, 3);
    for (int64_t u = 0; u < units; u++)
        random->update_on_device[u] = choice == 0 || plans_draw(random, 0, 1) == 1;
    return choice < 2 ? random->update_on_device : NULL;
}

/* In an eighth of the plans some leading units are frozen. */
static void draw_frozen(struct plans_random *random, struct sw_units *units, const struct sw_plan_spec *spec) {
    if (!spec->train || plans_draw(random, 0, 7) > 0)
        return;
    for (int64_t u = plans_draw(random, 1, units->count - 1) - 1; u >= 0; u--)
        units->unit[u].trained_grain = units->unit[u].grains;
}

/* Freezes about half of the units in part or whole, but not all of unit `trained`. */
static void freeze_parts(struct plans_random *random, struct sw_units *units, int64_t trained) {
    for (int64_t u = 0; u < units->count; u++) {
        struct sw_unit *unit = &units->unit[u];
        const int64_t most = unit->grains - (u == trained);
        unit->trained_grain = plans_draw(random, 0, 1) == 0 ? plans_draw(random, 0, most) : 0;
        if (plans_draw(random, 0, 7) == 0 && u != trained)
            unit->trained_grain = unit->grains;
    }
}

/* In a twelfth of the plans about half of the units are frozen in part or whole, above trained ones too. */
static void draw_parts(const struct plans_random *random, struct sw_units *units, const struct sw_plan_spec *spec) {
    struct plans_random parts = {.seed = random->seed + PARTS_SEED};
    const int64_t trained = plans_draw(&parts, 0, units->count - 1);
    if (spec->train && !units->fp8 && plans_draw(&parts, 0, 11) == 0)
        freeze_parts(&parts, units, trained);
}

/* Quantizes some or all frozen grains of blocks. */
static void quantize_blocks(struct plans_random *random, struct sw_units *units) {
    units->base = (sw_base_format)plans_draw(random, SW_BASE_INT8, SW_BASE_MXFP4);
    for (int64_t u = 1; u + 1 < units->count; u++) {
        struct sw_unit *unit = &units->unit[u];
        unit->base_grains =
            plans_draw(random, 0, 3) == 0 ? unit->trained_grain : plans_draw(random, 0, unit->trained_grain);
    }
}

/* In a tenth of the plans blocks have a base. Without training all units are frozen. */
static void draw_base(const struct plans_random *random, struct sw_units *units, const struct sw_plan_spec *spec) {
    struct plans_random base = {.seed = random->seed + BASE_SEED};
    if (units->fp8 || plans_draw(&base, 0, 9) > 0)
        return;
    for (int64_t u = 1; !spec->train && u + 1 < units->count; u++)
        units->unit[u].trained_grain = units->unit[u].grains;
    quantize_blocks(&base, units);
}

void plans_draw_spans(const struct plans_random *random, struct sw_units *units) {
    struct plans_random spans = {.seed = random->seed + SPANS_SEED};
    plans_train_all(units);
    units->fp8 = false;
    freeze_parts(&spans, units, plans_draw(&spans, 0, units->count - 1));
    if (plans_draw(&spans, 0, 1) == 1)
        quantize_blocks(&spans, units);
}

/* Fills some of a unit's first grains with matrices, which begin where the ones before end. */
static void draw_matrices(struct plans_random *random, struct sw_unit *unit) {
    enum { MOST_MATRICES = 6 };
    int64_t elem = unit->trained_grain * SW_GRAIN_ELEMS;
    const int64_t end = elem + plans_draw(random, 0, unit->grains - unit->trained_grain) * SW_GRAIN_ELEMS;
    unit->muon = calloc(MOST_MATRICES, sizeof *unit->muon);
    if (unit->muon == NULL)
        abort();
    for (unit->muon_count = 0; unit->muon_count < MOST_MATRICES && elem < end; unit->muon_count++) {
        const int64_t rows = plans_draw(random, 1, (end - elem) / SW_TENSOR_ALIGN_ELEMS);
        unit->muon[unit->muon_count] = (struct sw_muon_tensor){
            .first_elem = elem, .outputs = rows, .inputs = SW_TENSOR_ALIGN_ELEMS, .parts = 1, .part_end = {rows}};
        elem += rows * SW_TENSOR_ALIGN_ELEMS;
    }
    unit->adamw_grain = sw_div_up(elem, SW_GRAIN_ELEMS);
}

void plans_draw_matrices(const struct plans_random *random, struct sw_units *units) {
    static const sw_optimizer_format formats[] = {SW_OPTIMIZER_MUON, SW_OPTIMIZER_MUON_BF16, SW_OPTIMIZER_MUON_8BIT};
    struct plans_random matrices = {.seed = random->seed + MATRICES_SEED};
    units->optimizer = formats[plans_draw(&matrices, 0, 2)];
    for (int64_t u = 1; u + 1 < units->count; u++)
        draw_matrices(&matrices, &units->unit[u]);
}

void plans_drop_base(struct sw_units *units) {
    units->base = SW_BASE_TYPED;
    for (int64_t u = 0; u < units->count; u++)
        units->unit[u].base_grains = 0;
}

void plans_train_all(struct sw_units *units) {
    plans_drop_base(units);
    for (int64_t u = 0; u < units->count; u++)
        units->unit[u].trained_grain = 0;
}

/* Makes the costs of a unit those of a block without its experts (`index` 0), or of a unit of its experts, which
 * continues the block and, from the second on, shares the input of the one before. */
static void cost_experts(struct plans_random *experts, int64_t index, struct sw_unit_cost *cost) {
    cost->routing_bytes = index == 0 ? plans_draw(experts, 1, 1 << 10) : 0;
    cost->continues = cost->routed = index > 0;
    cost->shares_input = index > 1;
}

/* In a fifth of the plans the blocks are mixtures whose experts are units. In a third of these, most units of experts
 * are frozen. */
static void draw_experts(struct plans_random *random, struct sw_units *units, const struct sw_plan_spec *spec) {
    struct plans_random experts = {.seed = random->seed + EXPERTS_SEED};
    if (units->count < 5 || plans_draw(&experts, 0, 4) > 0)
        return;
    const int64_t block = 1 + plans_draw(&experts, 1, units->count - 3);
    const bool freezes = spec->train && plans_draw(&experts, 0, 2) == 0;
    for (int64_t u = 1; u + 1 < units->count; u++) {
        const int64_t index = (u - 1) % block;
        cost_experts(&experts, index, &random->cost[u]);
        if (freezes && index > 0 && plans_draw(&experts, 0, 3) > 0)
            units->unit[u].trained_grain = units->unit[u].grains;
    }
    if (freezes) /* something is trained, whatever was frozen before */
        units->unit[units->count - 1].trained_grain = units->unit[units->count - 1].base_grains = 0;
}

struct sw_plan_spec plans_random_spec(struct plans_random *random, int64_t most_units, int64_t most_grains,
                                      struct sw_units **out_units) {
    if (most_units > PLANS_MOST_UNITS)
        abort();
    require(sw_units_create(plans_draw(random, 3, most_units), out_units));
    struct sw_units *units = *out_units;
    for (int64_t u = 0; u < units->count; u++)
        add_tensors(random, &units->unit[u], most_grains);
    units->tied = plans_draw(random, 0, 1) == 1;
    require(sw_units_seal(units));
    for (int64_t u = 0; u < units->count; u++) {
        random->cost[u].output_bytes = plans_draw(random, 1, 1 << 20);
        random->cost[u].saved_bytes = plans_draw(random, 1, 1 << 22);
        random->cost[u].derived_bytes = plans_draw(random, 0, 2) > 0 ? plans_draw(random, 1, 1 << 22) : 0;
        random->cost[u].shares_input = u > 1 && plans_draw(random, 0, 3) == 0;
    }
    struct sw_plan_spec spec = {
        .units = units,
        .type = plans_draw(random, 0, 1) == 0 ? SW_F32 : SW_BF16,
        .train = plans_draw(random, 0, 31) > 0,
        .micro_batches = plans_draw(random, 1, 6),
        .token_bytes = 8 * plans_draw(random, 1, 4096),
        .cost = random->cost,
        .work_bytes = plans_draw(random, 1, 1 << 22),
        .gathered_bytes = plans_draw(random, 0, 1) * plans_draw(random, 1, 1 << 20),
        .recompute_auto = plans_draw(random, 0, 1) == 1,
        .recompute = (sw_recompute)plans_draw(random, 0, SW_RECOMPUTES - 1),
        .chunk_grains = plans_draw(random, 1, 3),
        .ring_chunks = plans_draw(random, 1, 4),
        .ring_auto = plans_draw(random, 0, 3) == 0,
        .unit_slots = plans_draw(random, 2, 4),
        .budget_bytes = {[SW_DEVICE] = INT64_MAX, [SW_HOST] = INT64_MAX},
    };
    spec.group = plans_draw(random, 0, 2) > 0 ? plans_draw(random, 1, spec.micro_batches) : spec.micro_batches;
    if (!spec.train)
        draw_inference(random, &spec);
    for (int s = 0; s < SW_STATES; s++)
        draw_place(random, spec.train || spec.scratch_store, &spec.place.automatic[s], spec.place.share[s]);
    /* The plans with two generations are the ones that speculate. */
    if (plans_draw(random, 0, 3) == 0 && spec.train) {
        spec.place.automatic[SW_OPTIMIZER] = false;
        spec.place.share[SW_OPTIMIZER][SW_DEVICE] = spec.place.share[SW_OPTIMIZER][SW_HOST] = 0.0;
        spec.place.share[SW_OPTIMIZER][SW_NVME] = 1.0;
    }
    spec.one_generation = plans_draw(random, 0, 7) == 0;
    spec.update_on_device = draw_streams(random, units->count);
    draw_frozen(random, units, &spec);
    units->fp8 = spec.type == SW_BF16 && plans_draw(random, 0, 1) == 1;
    draw_parts(random, units, &spec);
    draw_base(random, units, &spec);
    draw_experts(random, units, &spec);
    spec.place.trained = (sw_tier)plans_draw(&(struct plans_random){.seed = random->seed + TRAINED_SEED}, 0, SW_NVME);
    return spec;
}

/* Where backward passes are not split, blocks may have tiles, whose outputs also carry what the group has in common.
 * From the third tile on they may share the input of the one before. */
static void draw_tiles(struct plans_random *random, struct sw_plan_spec *spec) {
    const int64_t count = spec->units->count, some = spec->tensor.product_bytes > 0 ? 0 : plans_draw(random, 0, 2);
    for (int64_t u = 0; u < count; u++) {
        random->cost[u].continues = u > 1 && u + 1 < count && plans_draw(random, 0, 2) < some;
        random->cost[u].shares_input =
            random->cost[u].continues && random->cost[u - 1].continues && plans_draw(random, 0, 2) > 0;
        if (random->cost[u].continues)
            random->cost[u - 1].output_bytes += 64 + random->cost[0].output_bytes;
    }
}

void plans_drop_caches(struct plans_random *random) {
    for (int64_t u = 0; u < PLANS_MOST_UNITS; u++)
        random->cost[u].cache_bytes = 0;
}

/* In a third of the plans about half of a group's units are frozen in part, up to what every rank has, or whole; in
 * half of these, some or all frozen grains of blocks are quantized. */
static void draw_group_parts(struct plans_random *random, struct sw_units *units) {
    struct plans_random parts = {.seed = random->seed + GROUP_SEED};
    const int64_t trained = plans_draw(&parts, 0, units->count - 1);
    if (units->fp8 || plans_draw(&parts, 0, 2) > 0)
        return;
    const bool based = plans_draw(&parts, 0, 1) == 0;
    units->base = based ? SW_BASE_NF4 : SW_BASE_TYPED;
    for (int64_t u = 0; u < units->count; u++) {
        struct sw_unit *unit = &units->unit[u];
        const int64_t most = sw_min_i64(unit->replicated_grain, unit->grains - (u == trained));
        unit->trained_grain = plans_draw(&parts, 0, 1) == 0 ? plans_draw(&parts, 0, most) : 0;
        if (plans_draw(&parts, 0, 3) == 0 && u != trained)
            unit->trained_grain = unit->grains;
        /* Norms are no part of a base. */
        const int64_t most_based = sw_min_i64(unit->trained_grain, unit->grains - 1);
        unit->base_grains = based && u > 0 && u + 1 < units->count ? plans_draw(&parts, 0, most_based) : 0;
        random->cost[u].adapted = plans_draw(&parts, 0, 1) == 0;
    }
}

void plans_draw_tensor(struct plans_random *random, int most, struct sw_units *units, struct sw_plan_spec *spec) {
    spec->train = true;
    spec->scratch_store = false;
    plans_train_all(units);
    plans_drop_caches(random);
    spec->gathered_bytes = 0;
    spec->gather = spec->reduce = SW_QUANT_NONE;
    spec->grads = SW_GRADS_TYPED;
    spec->secondary_ranks = spec->reduce_nodes = 0;
    spec->tensor = (struct sw_plan_tensor){.ranks = (int)plans_draw(random, 2, most), .softmax_bytes = 64};
    spec->tensor.partition_inputs = plans_draw(random, 0, 1) == 1;
    spec->tensor.sequence = plans_draw(random, 0, 1) == 1;
    spec->tensor.product_bytes = spec->tensor.sequence || plans_draw(random, 0, 1) == 1 ? 4096 : 0;
    spec->tensor.rows = plans_draw(random, spec->tensor.ranks, 3 * spec->tensor.ranks);
    const int64_t row_bytes = 16 * plans_draw(random, 1, 500);
    for (int64_t u = 0; u < units->count; u++) {
        struct sw_unit *unit = &units->unit[u];
        random->cost[u].output_bytes = u + 1 < units->count ? spec->tensor.rows * row_bytes : 0;
        unit->replicated_grain = unit->grains - plans_draw(random, 0, unit->grains > 2 ? 2 : 0);
        unit->replicated_elems = (unit->grains - unit->replicated_grain) * SW_GRAIN_ELEMS;
    }
    draw_tiles(random, spec);
    draw_group_parts(random, units);
}

bool plans_draw_experts(struct plans_random *random, int most, struct sw_units *units, struct sw_plan_spec *spec) {
    enum { RESIDUAL_BYTES = 64 };
    plans_draw_tensor(random, most, units, spec);
    const bool pairs = units->count % 2 == 0;
    const bool apart = pairs && plans_draw(&(struct plans_random){.seed = random->seed + APART_SEED}, 0, 1) == 1;
    if (pairs)
        spec->experts = (struct sw_plan_experts){.ranks = spec->tensor.ranks, .rows = spec->tensor.rows};
    spec->tensor.ranks = 2;
    spec->tensor.sequence = false;
    if (!apart)
        spec->tensor = (struct sw_plan_tensor){0};
    for (int64_t u = 0; u < units->count; u++) {
        struct sw_unit_cost *cost = &random->cost[u];
        struct sw_unit *unit = &units->unit[u];
        unit->shared_out = pairs && u > 0 && u + 1 < units->count && u % 2 == 0;
        cost->shares_input = unit->shared_out && !apart;
        cost->continues = false;
        cost->output_bytes = u + 1 < units->count ? random->cost[0].output_bytes : 0;
        cost->saved_bytes = unit->shared_out ? 0 : sw_max_i64(cost->saved_bytes, RESIDUAL_BYTES);
        cost->derived_bytes = unit->shared_out ? 0 : cost->derived_bytes;
        if (unit->shared_out || apart)
            continue;
        unit->replicated_grain = unit->grains;
        unit->replicated_elems = 0;
    }
    return pairs;
}

static void give_up(uint64_t seed, const char *what) {
    fprintf(stderr, "seed %llu: %s: %s\n", (unsigned long long)seed, what, sw_error_message(SW_ERR_BUDGET));
    abort();
}

void plans_read_needs(struct sw_plan_spec *spec, bool named[SW_NVME], uint64_t seed) {
    static const char *const flags[SW_NVME] = {"--device-memory ", "--host-memory "};
    const char *message = sw_error_message(SW_ERR_BUDGET);
    for (int t = SW_DEVICE; t < SW_NVME; t++) {
        const char *flag = strstr(message, flags[t]);
        char size[SW_SIZE_CHARS];
        int64_t needed;
        named[t] = flag != NULL;
        if (!named[t])
            continue;
        if (sscanf(flag + strlen(flags[t]), "%31s", size) != 1)
            give_up(seed, "the refusal names no size");
        require(sw_parse_size(size, &needed));
        if (needed <= spec->budget_bytes[t])
            give_up(seed, "asks for what is there");
        spec->budget_bytes[t] = needed;
    }
    if (!named[SW_DEVICE] && !named[SW_HOST])
        give_up(seed, "the refusal names no budget");
    sw_error_clear();
}

static void *duplicate(const void *from, size_t bytes) {
    void *copy = malloc(bytes + 1);
    if (copy == NULL)
        abort();
    if (bytes > 0)
        memcpy(copy, from, bytes);
    return copy;
}

void plans_copy_make(const struct sw_plan *from, struct plans_copy *out) {
    out->plan = *from;
    out->plan.slot = duplicate(from->slot, (size_t)from->slot_count * sizeof *from->slot);
    for (int p = 0; p < SW_PROGRAMS; p++) {
        const struct sw_program *program = &from->program[p];
        struct sw_program *copy = &out->plan.program[p];
        copy->op = duplicate(program->op, (size_t)program->op_count * sizeof *program->op);
        copy->access = duplicate(program->access, (size_t)program->access_count * sizeof *program->access);
        copy->wait = duplicate(program->wait, (size_t)program->wait_count * sizeof *program->wait);
        for (int lane = 0; lane < SW_LANES; lane++)
            copy->lane_op[lane] =
                duplicate(program->lane_op[lane], (size_t)program->lane_count[lane] * sizeof *program->lane_op[lane]);
    }
}

void plans_copy_free(struct plans_copy *copy) {
    for (int p = 0; p < SW_PROGRAMS; p++)
        sw_program_destroy(&copy->plan.program[p]);
    free(copy->plan.slot);
}

/* Ranks of a job, by their numbers in it, which fill nodes one after the other. */
struct among {
    int first, count, step;
};

/* Returns the ranks that an op of the comm lane is among, by what the groups' sizes say. */
static struct among ranks_of(const struct sw_plan *plan, const struct sw_op *op) {
    const int tensor = plan->spec.tensor.ranks > 1 ? plan->spec.tensor.ranks : 1;
    const int all = tensor * (plan->spec.experts.ranks > 1 ? plan->spec.experts.ranks : 1);
    const int own = sw_plan_job_rank(plan), job = all * (plan->spec.ranks > 1 ? plan->spec.ranks : 1);
    const bool in_group =
        op->kind == SW_OP_REDUCE_TENSOR || op->kind == SW_OP_GATHER_TENSOR || op->kind == SW_OP_SUM_REPLICATED;
    if (op->kind == SW_OP_EXCHANGE_SUMMARY)
        return (struct among){0, job, 1};
    const int group = plan->spec.units->unit[op->unit].shared_out ? all : tensor;
    if (!in_group)
        return (struct among){own % group, job / group, group};
    if (op->sends)
        return (struct among){own / all * all + own % tensor, all / tensor, tensor};
    const int near = op->kind == SW_OP_GATHER_TENSOR ? tensor : group;
    return (struct among){own / near * near, near, 1};
}

/* Returns the share that this rank gives in the gather of an op. */
static int64_t gathered_share(const struct sw_plan *plan, const struct sw_op *op, int ranks, int number) {
    const struct sw_plan_tensor *tensor = &plan->spec.tensor;
    if (op->kind == SW_OP_SUM_REPLICATED)
        return 4 * sw_shard(plan->spec.units->unit[op->unit].replicated_elems, ranks, number).grains;
    if (op->kind == SW_OP_GATHER_TENSOR)
        return op->content == SW_CONTENT_SOFTMAX ? tensor->softmax_bytes
               : op->sends                       ? plan->spec.experts.rows * sw_plan_row_bytes(plan)
                           : sw_shard(tensor->rows, ranks, number).grains * sw_plan_row_bytes(plan);
    const struct sw_unit *unit = &plan->spec.units->unit[op->unit];
    if (op->content == SW_CONTENT_BASE)
        return 32768 * sw_shard(sw_units_base_cells(plan->spec.units, op->unit), ranks, number).grains;
    if (op->frozen)
        return sw_shard(unit->trained_grain - unit->base_grains, ranks, number).grains *
               sw_plan_grain_bytes(plan, op->content, op->unit);
    const struct sw_span at =
        op->bucket ? sw_plan_shard_chunk(plan, op->unit, number, op->chunk) : sw_plan_shard_of(plan, op->unit, number);
    return at.grains * sw_plan_grain_bytes(plan, op->content, op->unit);
}

int64_t plans_bytes_apart(const struct sw_plan *plan, const struct sw_op *op, int node_ranks) {
    const struct among among = ranks_of(plan, op);
    const int own = sw_plan_job_rank(plan), ranks = among.count;
    int apart = 0;
    for (int i = 0; i < ranks; i++)
        apart += (among.first + i * among.step) / node_ranks != own / node_ranks;
    if (ranks == 1)
        return 0;
    if (op->kind != SW_OP_ALL_GATHER && op->kind != SW_OP_GATHER_TENSOR && op->kind != SW_OP_SUM_REPLICATED)
        return op->bytes * apart / (ranks - 1);
    const int64_t share = gathered_share(plan, op, ranks, (own - among.first) / among.step);
    const int64_t once = share * (apart / (ranks - apart)); /* nodes have as many of the ranks each */
    if (op->kind != SW_OP_SUM_REPLICATED)
        return once;
    const int64_t all = 4 * plan->spec.units->unit[op->unit].replicated_elems;
    return once + (all - share) * apart / (ranks - 1);
}

/* Tells whether two ops are of one kind, move as many bytes and wait for the same. */
static bool have_same_waits(const struct sw_program *a, const struct sw_op *of_a, const struct sw_program *b,
                            const struct sw_op *of_b) {
    return of_a->kind == of_b->kind && of_a->bytes == of_b->bytes && of_a->wait_count == of_b->wait_count &&
           memcmp(&a->wait[of_a->first_wait], &b->wait[of_b->first_wait], (size_t)of_a->wait_count * sizeof *a->wait) ==
               0;
}

bool plans_have_same_waits(const struct sw_plan *plan, sw_program_kind kind) {
    const struct sw_program *whole = &plan->program[kind];
    struct sw_emit_room room = {0};
    const struct sw_program *program = &room.program;
    int64_t accesses = 0;
    bool same = true;
    /* The second time the memory of the first serves again. */
    for (int times = 0; times < 2 && same; times++) {
        same = sw_plan_emit_waits(plan, kind, &room, &accesses) == SW_OK && accesses == whole->access_count &&
               program->op_count == whole->op_count;
        for (int32_t i = 0; i < whole->op_count && same; i++)
            same = have_same_waits(program, &program->op[i], whole, &whole->op[i]);
    }
    sw_emit_room_destroy(&room);
    return same;
}
