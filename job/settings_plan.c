/* Makes the plan that settings ask for, and chooses by rates what they leave open.
 *
 * Without rates, choices follow rules: ZeRO stage 2 if every device can hold all weights, whole inputs if the device
 * has room for everything, the largest group that fits. With rates, every open combination of stage and kept rows is a
 * variant. Variants are priced by their usual plan, and searched in the order of that price until no other can win: a
 * full search of each would take several times as long.
 *
 * All ranks must choose alike without exchanging prices of every candidate, so each looks at rank 0's shards, which are
 * the largest. */
#include "job/settings_plan.h"

#include "core/machine.h"
#include "job/machine/gpu_trust.h"
#include "job/settings/pipeline.h"
#include "model/hf/family.h"

#include <math.h>
#include <stdlib.h>

enum { UNIT_SLOTS = 2 };
/* The share of a step that stage 3 must save to be chosen. */
#define STAGE_LEAST_SAVED 0.005
/* The largest share of a step that a search has been seen to save, compared with the plan it begins with. */
#define MOST_SEARCH_SAVES 0.3

struct sw_model_shape sw_settings_shape(const struct sw_settings *settings) {
    const bool has_router_loss = settings->router_aux_loss != 0.0 || settings->router_z_loss != 0.0;
    return (struct sw_model_shape){.type = sw_settings_type(settings),
                                   .batch = settings->micro_batch,
                                   .seq = settings->seq,
                                   .tiles = settings->tiles,
                                   .tensor_ranks = (int)sw_settings_tensor_ranks(settings),
                                   .tensor_rank = (int)sw_settings_tensor_rank(settings),
                                   .expert_ranks = (int)sw_settings_expert_ranks(settings),
                                   .expert_rank = (int)sw_settings_expert_rank(settings),
                                   .optimizer = sw_settings_optimizer(settings),
                                   .tuning = settings->tuning,
                                   .dpo_beta = settings->dpo ? settings->dpo_beta : 0.0,
                                   .micro_batches = has_router_loss ? sw_settings_micro_batches(settings) : 0,
                                   .router_aux_loss = settings->router_aux_loss,
                                   .router_z_loss = settings->router_z_loss,
                                   .fp8 = sw_settings_fp8(settings)};
}

/* The job whose plan is made. */
struct subject {
    const struct sw_settings *settings;
    const struct sw_model *model;
};

/* Returns the share of a micro-batch's tokens that go through a matrix of an expert, if the router sends equally many
 * to each expert. */
static double expert_share(const struct subject *of) {
    const struct sw_model_config *config = sw_model_get_config(of->model);
    return (double)config->chosen_experts / (double)config->experts;
}

/* Tells whether a tensor multiplies tokens: vectors and biases of experts, which are rows of a matrix, are added. */
static bool is_matrix(const struct sw_tensor *tensor) {
    return tensor->dims > 1 && tensor->decay;
}

/* Returns the elements of a unit's tensor that multiply each token of a micro-batch on average. The router and the
 * experts of a rank of an expert group get the tokens of all its members. */
static double multiplying(const struct subject *of, const struct sw_unit *unit, const struct sw_tensor *tensor) {
    const struct sw_part *part = &tensor->part;
    const double members = unit->shared_out ? (double)sw_settings_expert_ranks(of->settings) : 1.0;
    const double all = members * (double)((part->used_rows > 0 ? part->used_rows : part->rows) * part->cols);
    if (!is_matrix(tensor))
        return 0.0;
    return sw_expert_matrix_of(sw_model_get_config(of->model), tensor->name) < 0 ? all : all * expert_share(of);
}

/* Returns the last of the model's matrices in a unit; -1: it has none. */
static int64_t last_matrix(const struct sw_unit *unit) {
    for (int64_t t = unit->tensor_count - 1; t >= 0; t--)
        if (is_matrix(&unit->tensor[t]) && !unit->tensor[t].added)
            return t;
    return -1;
}

/* Tells whether a tensor belongs to the last product of its unit: the unit's last matrix, the last matrix of each of
 * its experts, and the adapters of these. */
static bool is_in_last_product(const struct subject *of, const struct sw_unit *unit, int64_t tensor) {
    const int64_t matrix = last_matrix(unit);
    if (matrix < 0)
        return false;
    const int expert = sw_expert_matrix_of(sw_model_get_config(of->model), unit->tensor[tensor].name);
    if (expert >= 0)
        return expert == EXPERT_DOWN;
    const char *name = unit->tensor[matrix].name;
    return tensor == matrix || tensor == sw_lora_factor(unit, name, SW_LORA_A) ||
           tensor == sw_lora_factor(unit, name, SW_LORA_B);
}

/* Counts the floating-point operations of a unit's forward pass for one micro-batch: two for each token and parameter
 * that multiplies it, and for causal attention two for each element of the hidden state and position. Of experts, the
 * chosen ones count. The embedding multiplies nothing. With tiles or in a tensor group a block is two halves, each unit
 * with its part of the heads; only the first half attends, and no unit of experts does. Products of frozen tensors are
 * neither the first nor the last product. */
static void count_flops(const struct subject *of, const struct sw_units *units, int64_t unit,
                        struct sw_unit_cost *out) {
    const struct sw_settings *settings = of->settings;
    const struct sw_tensor *table = &units->unit[0].tensor[0];
    const bool head = unit + 1 == units->count;
    const double rows = (double)(settings->micro_batch * settings->seq);
    double all = head && units->tied ? (double)table->elems : 0.0, last = 0.0, frozen = 0.0;
    const struct sw_unit *here = &units->unit[unit];
    for (int64_t t = 0; t < here->tensor_count; t++) {
        const double elems = multiplying(of, here, &here->tensor[t]);
        const bool is_frozen = here->tensor[t].frozen;
        all += elems;
        last += !is_frozen && is_in_last_product(of, here, t) ? elems : 0.0;
        frozen += is_frozen ? elems : 0.0;
    }
    const int64_t parts = settings->tiles * sw_settings_tensor_ranks(settings);
    const bool attends = !head && (parts == 1 ? !out->continues : (unit - 1) / settings->tiles % 2 == 0);
    const double attention = attends ? (double)table->dim[1] / (double)parts * (double)settings->seq : 0.0;
    out->forward_flops = unit == 0 ? 0.0 : 2.0 * (all + attention) * rows;
    out->last_product_flops = 2.0 * last * rows;
    out->first_product_flops = 2.0 * (all - frozen - last) * rows;
    out->frozen_flops = 2.0 * frozen * rows;
}

/* The choices to search, and the rates. A NULL pointer means that the settings decide. */
struct pricing {
    const struct sw_search_open *open;
    const struct sw_rates *rates;
    struct sw_search_prices *prices;
};

/* Makes the outline, with the floating-point operations of each unit's ops. */
static sw_status outline_plan(const struct sw_plan_spec *given, const struct subject *of, const struct pricing *pricing,
                              struct sw_plan **out) {
    const struct sw_settings *settings = of->settings;
    const int64_t count = given->units->count;
    struct sw_plan_spec spec = *given;
    struct sw_unit_cost *cost = calloc((size_t)count, sizeof *cost);
    bool *streams = calloc((size_t)count, sizeof *streams);
    sw_status status = SW_OK;
    if (cost == NULL || streams == NULL)
        SW_TRY_GOTO(sw_fail(SW_ERR_NOMEM, "no memory for the plan"), end);
    for (int64_t u = 0; u < count; u++) {
        cost[u] = given->cost[u];
        if (settings->sequence == SW_SEQUENCE_YES || spec.tensor.sequence)
            cost[u].derived_bytes = cost[u].unnormed_bytes;
        count_flops(of, spec.units, u, &cost[u]);
        streams[u] = settings->update == SW_UPDATE_DEVICE;
    }
    spec.cost = cost;
    spec.update_on_device = streams;
    status = pricing == NULL ? sw_plan_outline(&spec, out)
                             : sw_plan_search(&spec, pricing->open, pricing->rates, pricing->prices, out);
end:
    free(cost);
    free(streams);
    return status;
}

/* Tells whether an outline lacks device memory for what the backward pass reads: inputs are elsewhere although they may
 * be anywhere, or intermediates are computed again. */
static bool lacks_room(const struct sw_plan *plan) {
    for (int64_t u = 1; u + 1 < plan->spec.units->count; u++)
        if ((plan->spec.place.automatic[SW_ACTS] && plan->placement[u].tier[SW_ACTS] != SW_DEVICE) ||
            (plan->spec.recompute_auto && plan->recompute[u] != SW_RECOMPUTE_NOTHING))
            return true;
    return false;
}

/* Tells whether the settings leave open what a rank keeps of inputs. */
static bool is_open(const struct sw_settings *settings) {
    return settings->sequence != SW_SEQUENCE_YES && settings->partition == SW_PARTITION_AUTO &&
           sw_settings_stages(settings) == 1;
}

/* Tells whether prices may decide between whole inputs and rows. */
static bool may_keep_rows(const struct sw_settings *settings, const struct sw_plan_spec *base) {
    return base->tensor.ranks > 1 && is_open(settings);
}

/* Returns the specification of a plan whose ranks keep rows, by sequence parallelism unless the settings, tiles or
 * expert groups exclude it. */
static struct sw_plan_spec with_rows(const struct sw_plan_spec *base, const struct sw_settings *settings) {
    struct sw_plan_spec spec = *base;
    spec.tensor.sequence =
        settings->sequence == SW_SEQUENCE_AUTO && settings->tiles == 1 && !sw_settings_shares_experts(settings);
    spec.tensor.partition_inputs = true;
    return spec;
}

/* Makes an outline without prices. Ranks keep whole inputs if the devices then have room for everything, because rows
 * are gathered once more; else rows, if they fit. The ranks of a group have the same sizes and so decide alike. */
static sw_status outline_base(const struct sw_plan_spec *base, const struct subject *of, struct sw_plan **out) {
    const struct sw_settings *settings = of->settings;
    sw_status status = outline_plan(base, of, NULL, out);
    if (!may_keep_rows(settings, base) || (status == SW_OK ? !lacks_room(*out) : status != SW_ERR_BUDGET))
        return status;
    const struct sw_plan_spec spec = with_rows(base, settings);
    struct sw_plan *whole = status == SW_OK ? *out : NULL;
    sw_error_clear();
    status = outline_plan(&spec, of, NULL, out);
    if (status == SW_ERR_BUDGET && whole != NULL) {
        sw_error_clear();
        *out = whole;
        return SW_OK;
    }
    sw_plan_destroy(whole);
    return status;
}

/* Partitions the inputs, and runs norms on a rank's rows, if the settings say so. If they leave it open, the outline
 * decides. */
static struct sw_plan_tensor tensor_of(const struct sw_settings *settings, const struct sw_model_bytes *bytes) {
    if (sw_settings_tensor_ranks(settings) == 1)
        return (struct sw_plan_tensor){0};
    return (struct sw_plan_tensor){.ranks = (int)sw_settings_tensor_ranks(settings),
                                   .rank = (int)sw_settings_tensor_rank(settings),
                                   .node_ranks = sw_settings_tensor_node_ranks(settings),
                                   .rows = bytes->rows,
                                   .softmax_bytes = bytes->softmax,
                                   .product_bytes = bytes->product,
                                   .partition_inputs = settings->partition == SW_PARTITION_YES,
                                   .sequence = settings->sequence == SW_SEQUENCE_YES};
}

static struct sw_plan_experts experts_of(const struct sw_settings *settings, const struct sw_model_bytes *bytes) {
    if (!sw_settings_shares_experts(settings))
        return (struct sw_plan_experts){0};
    return (struct sw_plan_experts){.ranks = (int)sw_settings_expert_ranks(settings),
                                    .rank = (int)sw_settings_expert_rank(settings),
                                    .node_ranks = sw_settings_part_node_ranks(settings),
                                    .rows = bytes->sent};
}

/* A rank of those that share state, and the ZeRO stage of its plan. */
struct share {
    int rank, stage;
};

static sw_status begin_plan(const struct sw_settings *settings, const struct sw_model *model, struct share share,
                            struct sw_plan_lack *out_lack, struct sw_plan_spec *out) {
    const struct sw_model_bytes bytes = sw_model_bytes(model);
    SW_TRY(sw_as_usage(sw_settings_check_trained(settings, sw_model_get_units(model))));
    struct sw_plan_spec spec = {
        .lack = out_lack,
        .units = sw_model_get_units(model),
        .ranks = (int)sw_settings_state_ranks(settings),
        .rank = share.rank,
        .tensor = tensor_of(settings, &bytes),
        .experts = experts_of(settings, &bytes),
        .pipeline = sw_settings_pipeline(settings, sw_model_get_units(model)->count),
        .zero = share.stage,
        .gather = sw_settings_gather(settings),
        .reduce = sw_settings_reduce(settings),
        /* Neither groups nor stages reduce quantized gradients, and their ranks need not fill nodes. */
        .reduce_nodes = sw_settings_part_ranks(settings) > 1 || sw_settings_stages(settings) > 1
                            ? 0
                            : sw_settings_reduce_nodes(settings),
        .node_ranks = sw_settings_data_node_ranks(settings),
        .fills_nodes = sw_settings_fills_nodes(settings),
        .grads = (sw_grads_format)settings->grads_state,
        .type = sw_settings_type(settings),
        .train = true,
        .micro_batches = sw_settings_micro_batches(settings),
        .unit_slots = UNIT_SLOTS,
        .token_bytes = bytes.token,
        .pair_sequences = bytes.pair_sequences,
        .tally = bytes.tally,
        .cost = bytes.cost,
        .work_bytes = bytes.work,
        .muon_gpu_bytes = bytes.muon_gpu,
        .gathered_bytes = sw_settings_stages(settings) > 1 ? 0 : bytes.gathered,
        .recompute_auto = settings->recompute == SW_OPTION_RECOMPUTE_AUTO,
        .recompute = settings->recompute == SW_OPTION_RECOMPUTE_ALL ? SW_RECOMPUTE_UNIT : SW_RECOMPUTE_NOTHING,
        .one_generation = settings->durability == SW_DURABILITY_NONE,
        .commits_by_saves = settings->stages_save,
        .chunk_grains = settings->chunk_grains,
        .ring_chunks = settings->ring_chunks == SW_OPTION_AUTO ? SW_RING_CHUNKS : settings->ring_chunks,
        .ring_auto = settings->ring_chunks == SW_OPTION_AUTO,
        .budget_bytes = {[SW_DEVICE] = settings->device_memory, [SW_HOST] = settings->host_memory},
    };
    SW_TRY(sw_settings_group(settings, &spec.group));
    SW_TRY(sw_as_usage(sw_settings_secondary(settings, &spec.secondary_ranks)));
    if (spec.secondary_ranks > 0)
        spec.secondary_rank = (int)settings->node_rank % spec.secondary_ranks;
    SW_TRY(sw_placement_parse(settings->place, &spec.place));
    *out = spec;
    return SW_OK;
}

static sw_status outline_share(const struct sw_settings *settings, const struct sw_model *model, struct share share,
                               struct sw_plan_lack *out_lack, struct sw_plan **out) {
    struct sw_plan_spec base;
    SW_TRY(begin_plan(settings, model, share, out_lack, &base));
    return outline_base(&base, &(struct subject){settings, model}, out);
}

/* Refuses to quantize what a job of this stage does not exchange or keep. */
static sw_status check_quantized(const struct sw_settings *settings, int stage) {
    const sw_quant gather = sw_settings_gather(settings), reduce = sw_settings_reduce(settings);
    SW_TRY(sw_settings_check_quantized(settings));
    if (gather != SW_QUANT_NONE && stage < SW_ZERO_WEIGHTS)
        return sw_fail(SW_ERR_ARG,
                       "--gather %s quantizes the weights that ranks gather with --zero 3, and the stage is %d; give "
                       "--zero 3 or --gather exact",
                       sw_quant_name(gather), stage);
    if (reduce != SW_QUANT_NONE && stage < SW_ZERO_OPTIMIZER)
        return sw_fail(SW_ERR_ARG,
                       "--reduce %s is for gradients of which each rank keeps the sum of its shard, --zero 1 to 3; "
                       "give one of these or --reduce ordered",
                       sw_quant_name(reduce));
    return SW_OK;
}

/* Chooses the ZeRO stage without prices. Only stage 3 gathers quantized weights. Otherwise stage 3 saves nothing but
 * memory if every device can hold all weights, so 2 is preferred. All ranks must choose alike, so each looks at rank 0,
 * whose shards are the largest. */
static sw_status choose_stage(const struct sw_settings *settings, const struct sw_model *model, int *out) {
    const bool open = settings->zero == SW_OPTION_AUTO;
    *out = open ? SW_ZERO_NONE : (int)settings->zero;
    if (open && sw_settings_gather(settings) != SW_QUANT_NONE)
        *out = SW_ZERO_WEIGHTS;
    if (!open || sw_settings_most_state_ranks(settings) == 1 || *out == SW_ZERO_WEIGHTS)
        return SW_OK;
    /* Ranks add up their gradients whole, so that 2 saves little, and 3 gathers weights twice for each micro-batch. */
    if (sw_settings_stages(settings) > 1) {
        *out = SW_ZERO_OPTIMIZER;
        return SW_OK;
    }
    struct sw_plan *plan = NULL;
    const sw_status status = outline_share(settings, model, (struct share){.stage = SW_ZERO_GRADS}, NULL, &plan);
    *out = SW_ZERO_GRADS;
    for (int64_t u = 0; status == SW_OK && u < plan->spec.units->count; u++)
        if (plan->placement[u].tier[SW_WEIGHTS] != SW_DEVICE)
            *out = SW_ZERO_WEIGHTS;
    sw_plan_destroy(plan);
    if (status != SW_ERR_BUDGET)
        return status;
    sw_error_clear();
    *out = SW_ZERO_WEIGHTS;
    return SW_OK;
}

/* One of several ways to run a job that give the same bits: its stage, and whether ranks of a tensor group keep rows.
 */
struct variant {
    struct sw_plan_spec base;
    bool rows, searched;
    struct sw_plan *plan;           /* the usual plan, or the one that a search found; NULL: none fits */
    struct sw_search_prices prices; /* of `plan` */
};

/* The variants of a job: for each stage the one that keeps whole inputs and, if that is open, the one with rows. */
enum { MOST_VARIANTS = 4 };
struct variants {
    struct variant variant[MOST_VARIANTS];
    int count, forms; /* all variants; variants per stage */
    bool searched;    /* at least one was searched */
    double least_s;   /* predicted seconds of the fastest one searched */
};

static double step_of(const struct variant *v) {
    return v->prices.placement.chosen_s;
}

static sw_status list_variants(const struct sw_settings *settings, const struct sw_model *model, const int *stages,
                               int stage_count, struct variants *out) {
    *out = (struct variants){.least_s = INFINITY};
    for (int i = 0; i < stage_count; i++) {
        struct sw_plan_spec base;
        const struct share share = {.rank = (int)sw_settings_state_rank(settings), .stage = stages[i]};
        SW_TRY(begin_plan(settings, model, share, NULL, &base));
        out->forms = may_keep_rows(settings, &base) ? 2 : 1;
        for (int form = 0; form < out->forms; form++)
            out->variant[out->count++] = (struct variant){.base = base, .rows = form > 0};
    }
    return SW_OK;
}

static sw_status search_variant(struct variant *v, const struct subject *of, const struct sw_search_open *open,
                                const struct sw_rates *rates) {
    const struct pricing pricing = {open, rates, &v->prices};
    const struct sw_plan_spec spec = v->rows ? with_rows(&v->base, of->settings) : v->base;
    sw_plan_destroy(v->plan);
    v->plan = NULL;
    return outline_plan(&spec, of, &pricing, &v->plan);
}

/* Prices the usual plan of each variant. Fails only if none fits, with the error of the last one. */
static sw_status price_variants(struct variants *all, const struct subject *of, const struct pricing *pricing) {
    struct sw_search_open first = *pricing->open;
    bool any = false;
    first.most_ops = 0;
    for (int i = 0; i < all->count; i++) {
        const sw_status status = search_variant(&all->variant[i], of, &first, pricing->rates);
        const bool last = i + 1 == all->count;
        any |= status == SW_OK;
        if (status != SW_OK && (status != SW_ERR_BUDGET || (last && !any)))
            return status;
        sw_error_clear();
    }
    return SW_OK;
}

/* Tells whether a variant leaves the devices so much room that keeping rows gains nothing. */
static bool has_room(const struct variant *whole) {
    return whole->searched && !lacks_room(whole->plan);
}

/* Returns the variant to search next, NULL after the last: the one whose usual plan is fastest, unless a search could
 * hardly make it faster than the best one found. A single variant has no usual plan: its search tells whether it fits.
 */
static struct variant *next_variant(struct variants *all) {
    struct variant *next = NULL;
    for (int i = 0; i < all->count; i++) {
        struct variant *v = &all->variant[i];
        const bool hopeless = all->searched && !(step_of(v) * (1.0 - MOST_SEARCH_SAVES) < all->least_s);
        const bool fits = all->count == 1 || v->plan != NULL;
        if (fits && !v->searched && !hopeless && !(v->rows && has_room(v - 1)) &&
            (next == NULL || step_of(v) < step_of(next)))
            next = v;
    }
    return next;
}

static sw_status search_variants(struct variants *all, const struct subject *of, const struct pricing *pricing) {
    struct sw_search_open open = *pricing->open;
    open.most_ops /= all->count / all->forms;
    for (struct variant *v = next_variant(all); v != NULL; v = next_variant(all)) {
        SW_TRY(search_variant(v, of, &open, pricing->rates));
        v->searched = all->searched = true;
        all->least_s = fmin(all->least_s, step_of(v));
    }
    return SW_OK;
}

/* Tells whether a variant was searched and its step is at least `part` shorter than another's, which may be NULL. */
static bool saves(const struct variant *v, double part, const struct variant *other) {
    return v->searched && (other == NULL || !other->searched || step_of(v) < step_of(other) * (1.0 - part));
}

/* Returns the fastest variant that was searched. Rows replace whole inputs only if those lack room. Stage 3, which
 * gathers more, must save something. */
static struct variant *fastest(struct variants *all) {
    struct variant *best = NULL;
    for (int i = 0; i < all->count; i += all->forms) {
        struct variant *v = &all->variant[i];
        if (all->forms > 1 && !has_room(v) && saves(v + 1, 0.0, v))
            v++;
        if (saves(v, STAGE_LEAST_SAVED, best))
            best = v;
    }
    return best;
}

/* Searches all stages and forms that are open, and takes the fastest plan. */
static sw_status search(const struct sw_settings *settings, const struct sw_model *model, const int *stages,
                        int stage_count, const struct pricing *pricing, struct sw_plan **out) {
    const struct subject of = {settings, model};
    struct variants all;
    sw_status status = list_variants(settings, model, stages, stage_count, &all);
    if (status == SW_OK && all.count > 1)
        status = price_variants(&all, &of, pricing);
    if (status == SW_OK)
        status = search_variants(&all, &of, pricing);
    if (status == SW_OK) {
        struct variant *best = fastest(&all);
        *pricing->prices = best->prices;
        *out = best->plan;
        best->plan = NULL;
    }
    for (int i = 0; i < all.count; i++)
        sw_plan_destroy(all.variant[i].plan);
    return status;
}

static sw_status make_outline(const struct sw_settings *settings, const struct sw_model *model,
                              const struct pricing *pricing, struct sw_plan_lack *out_lack, struct sw_plan **out) {
    static const int open[] = {SW_ZERO_GRADS, SW_ZERO_WEIGHTS};
    struct share share = {.rank = (int)sw_settings_state_rank(settings)};
    if (pricing != NULL && settings->zero == SW_OPTION_AUTO && sw_settings_most_state_ranks(settings) > 1 &&
        sw_settings_stages(settings) == 1 && sw_settings_gather(settings) == SW_QUANT_NONE)
        return search(settings, model, open, sizeof open / sizeof open[0], pricing, out);
    SW_TRY(choose_stage(settings, model, &share.stage));
    SW_TRY(sw_as_usage(check_quantized(settings, share.stage)));
    return pricing != NULL ? search(settings, model, &share.stage, 1, pricing, out)
                           : outline_share(settings, model, share, out_lack, out);
}

sw_status sw_settings_outline(const struct sw_settings *settings, const struct sw_model *model,
                              struct sw_plan_lack *out_lack, struct sw_plan **out) {
    return make_outline(settings, model, NULL, out_lack, out);
}

sw_status sw_settings_complete_plan(struct sw_plan *plan) {
    SW_TRY(sw_plan_complete(plan));
    return sw_plan_check(plan);
}

/* With several ranks the order is by layer: otherwise all ranks would have to find the same groups too large, and the
 * same prices. */
static bool order_is_open(const struct sw_settings *settings) {
    return sw_settings_order_is_auto(settings) && sw_settings_ranks(settings) == 1 &&
           sw_settings_micro_batches(settings) > 1;
}

/* Lists the group sizes to try: all micro-batches, and the powers of four below that number. Returns how many there
 * are. */
static int groups_of(int64_t micros, int64_t out[SW_SEARCH_MOST_GROUPS]) {
    enum { FACTOR = 4 };
    int count = 0;
    int64_t power = 1;
    while (power <= micros / FACTOR)
        power *= FACTOR;
    for (out[count++] = micros; power > 0; power /= FACTOR)
        if (power < micros)
            out[count++] = power;
    return count;
}

/* Compares like keep_lesser of the plan: first the number of budgets that are too small, then the missing bytes. */
static bool lacks_less(const struct sw_plan_lack *a, const struct sw_plan_lack *b) {
    return a->short_budgets != b->short_budgets ? a->short_budgets < b->short_budgets
                                                : a->missing_bytes < b->missing_bytes;
}

/* If no group fits, returns the error of the group that lacks least. */
sw_status sw_plan_fit(struct sw_settings *settings, const struct sw_model *model, struct sw_plan **out) {
    int64_t group[SW_SEARCH_MOST_GROUPS] = {0}, nearest = 0;
    struct sw_plan_lack lack, least = {.short_budgets = INT32_MAX};
    if (!order_is_open(settings))
        return sw_settings_outline(settings, model, NULL, out);
    const int count = groups_of(sw_settings_micro_batches(settings), group);
    for (int i = 0; i < count; i++) {
        settings->group = group[i];
        const sw_status status = sw_settings_outline(settings, model, &lack, out);
        if (status != SW_ERR_BUDGET)
            return status;
        sw_error_clear();
        if (lacks_less(&lack, &least)) {
            least = lack;
            nearest = group[i];
        }
    }
    settings->group = nearest;
    return sw_settings_outline(settings, model, NULL, out);
}

/* The largest chunks that are tried, as a multiple of the size that settings resolve to. */
enum { MOST_CHUNK_FACTOR = 4 };

static bool update_is_open(const struct sw_settings *settings, const struct sw_plan *plan) {
    return settings->update == SW_UPDATE_AUTO && sw_plan_has_update_choice(plan);
}

bool sw_plan_choice_is_open(const struct sw_settings *settings, const struct sw_devices *devices,
                            const struct sw_plan *plan) {
    const bool may_pay = !sw_device_info(devices->compute).host_memory || settings->rates != NULL;
    const bool any = order_is_open(settings) || update_is_open(settings, plan) || sw_plan_has_placement_choice(plan);
    return may_pay && any;
}

sw_status sw_plan_choose(struct sw_settings *settings, const struct sw_model *model, const struct sw_rates *rates,
                         int64_t most_ops, struct sw_price_memory *memory, struct sw_search_prices *out_prices,
                         struct sw_plan **plan) {
    struct sw_search_open open = {.updates = update_is_open(settings, *plan),
                                  .placement = true,
                                  .most_ops = most_ops,
                                  .chunk_factor = settings->auto_chunk_grains > 0 ? MOST_CHUNK_FACTOR : 1,
                                  .memory = memory};
    while (open.chunk_factor > 1 && settings->chunk_grains > SW_MOST_CHUNK_GRAINS / open.chunk_factor)
        open.chunk_factor /= 2;
    struct sw_plan *chosen;
    if (order_is_open(settings))
        open.groups = groups_of(sw_settings_micro_batches(settings), open.group);
    SW_TRY(make_outline(settings, model, &(struct pricing){&open, rates, out_prices}, NULL, &chosen));
    sw_plan_destroy(*plan);
    *plan = chosen;
    if (open.groups > 0)
        settings->group = chosen->spec.group;
    settings->chunk_grains = chosen->spec.chunk_grains;
    return SW_OK;
}

sw_status sw_settings_open_devices(const struct sw_settings *settings, struct sw_devices *out) {
    const int threads = settings->threads == SW_OPTION_AUTO ? sw_machine_cores() : (int)settings->threads;
    SW_TRY(sw_devices_open((sw_device_choice)settings->device, threads, (int)settings->local_rank, out));
    SW_TRY(sw_settings_prepare_device(settings, out->compute));
    return sw_gpu_as_in_training(out);
}
