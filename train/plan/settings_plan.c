/* Makes the plan that settings ask for. */
#include "train/plan/settings_plan.h"

#include "core/machine.h"
#include "train/devices/gpu_verdict.h"

#include <math.h>
#include <stdlib.h>

enum { UNIT_SLOTS = 2 };
/* The part of a step that stage 3 must save. */
#define STAGE_LEAST_SAVED 0.005

/* Floating-point operations for one micro-batch, as in struct sw_plan_spec. Each array has one entry per unit. */
enum { UNIT_FLOPS_ARRAYS = 3 };
struct unit_flops {
    double *forward, *last_product, *first_product;
};

/* Returns the elements of a tensor that multiply each token: none of a vector. */
static double multiplying(const struct sw_tensor *tensor) {
    const struct sw_part *part = &tensor->part;
    return tensor->dims > 1 ? (double)((part->used_rows > 0 ? part->used_rows : part->rows) * part->cols) : 0.0;
}

/* Counts the floating-point operations of a unit's forward pass for one micro-batch: two for each token and parameter
 * that multiplies, and for causal attention two for each element of the hidden state and position. The embedding
 * multiplies nothing. With tiles or in a tensor group a block has two halves, of which the first attends, each unit
 * with its part of the heads. Of a half of a block, the last matrix is the last product, and the others are the first.
 */
static void count_flops(const struct sw_units *units, int64_t unit, const struct sw_settings *settings,
                        struct unit_flops *out) {
    const struct sw_tensor *table = &units->unit[0].tensor[0];
    const bool head = unit + 1 == units->count;
    const double rows = (double)(settings->micro_batch * settings->seq);
    double all = head && units->tied ? (double)table->elems : 0.0, last = 0.0;
    for (int64_t t = 0; t < units->unit[unit].tensor_count; t++) {
        const double elems = multiplying(&units->unit[unit].tensor[t]);
        all += elems;
        last = elems > 0.0 ? elems : last;
    }
    const int64_t parts = settings->tiles * sw_settings_tensor_ranks(settings);
    const bool attends = !head && (parts == 1 || (unit - 1) / settings->tiles % 2 == 0);
    const double attention = attends ? (double)table->dim[1] / (double)parts * (double)settings->seq : 0.0;
    out->forward[unit] = unit == 0 ? 0.0 : 2.0 * (all + attention) * rows;
    out->last_product[unit] = 2.0 * last * rows;
    out->first_product[unit] = 2.0 * (all - last) * rows;
}

/* The choices to search, and the rates; a NULL pointer means that the settings decide. */
struct pricing {
    const struct sw_search_open *open;
    const struct sw_rates *rates;
    struct sw_search_prices *prices;
};

/* Makes the outline, with the floating-point operations of each unit for its ops. */
static sw_status outline_plan(const struct sw_plan_spec *given, const struct sw_settings *settings,
                              const struct pricing *pricing, struct sw_plan **out) {
    const int64_t count = given->units->count;
    struct sw_plan_spec spec = *given;
    double *flops = calloc(UNIT_FLOPS_ARRAYS * (size_t)count, sizeof *flops);
    bool *streams = calloc((size_t)count, sizeof *streams);
    sw_status status = SW_OK;
    if (flops == NULL || streams == NULL)
        SW_TRY_GOTO(sw_fail(SW_ERR_NOMEM, "no memory for the plan"), end);
    struct unit_flops of = {.forward = flops, .last_product = flops + count, .first_product = flops + 2 * count};
    for (int64_t u = 0; u < count; u++) {
        count_flops(spec.units, u, settings, &of);
        streams[u] = settings->update == SW_UPDATE_DEVICE;
    }
    spec.forward_flops = of.forward;
    spec.last_product_flops = of.last_product;
    spec.first_product_flops = of.first_product;
    spec.update_on_device = streams;
    status = pricing == NULL ? sw_plan_outline(&spec, out)
                             : sw_plan_search(&spec, pricing->open, pricing->rates, pricing->prices, out);
end:
    free(flops);
    free(streams);
    return status;
}

/* Tells whether an outline lacks room on the device for what the backward pass reads: inputs that may live anywhere are
 * elsewhere, or intermediates are computed again. */
static bool lacks_room(const struct sw_plan *plan) {
    for (int64_t u = 1; u + 1 < plan->spec.units->count; u++)
        if ((plan->spec.place.automatic[SW_ACTS] && plan->placement[u].tier[SW_ACTS] != SW_DEVICE) ||
            (plan->spec.recompute_auto && plan->recompute[u] != SW_RECOMPUTE_NOTHING))
            return true;
    return false;
}

/* Tells whether the settings leave open what a rank keeps of inputs. */
static bool is_open(const struct sw_settings *settings) {
    return settings->sequence != SW_SEQUENCE_YES && settings->partition == SW_PARTITION_AUTO;
}

/* Chooses whether a rank of a tensor group keeps inputs whole or its rows, by sequence parallelism unless that or tiles
 * exclude it, where that is open: whole where they leave the devices room for everything, because rows are gathered
 * once more; else rows if that is faster by the prices, or, without prices, in any case. The ranks of a group have the
 * same sizes and so decide alike. */
static sw_status outline_rows(const struct sw_plan_spec *given, const struct sw_settings *settings,
                              const int64_t *unnormed_bytes, const struct pricing *pricing, struct sw_plan **out) {
    struct sw_plan_spec spec = *given;
    struct sw_search_prices prices;
    const struct pricing other =
        pricing == NULL ? (struct pricing){0} : (struct pricing){pricing->open, pricing->rates, &prices};
    struct sw_plan *whole = NULL, *rows = NULL;
    sw_status status = outline_plan(given, settings, pricing, &whole);
    if (spec.tensor.ranks < 2 || !is_open(settings) ||
        (status == SW_OK ? !lacks_room(whole) : status != SW_ERR_BUDGET)) {
        *out = whole;
        return status;
    }
    spec.tensor.sequence = settings->sequence == SW_SEQUENCE_AUTO && settings->tiles == 1;
    spec.tensor.partition_inputs = true;
    if (spec.tensor.sequence)
        spec.derived_bytes = unnormed_bytes;
    sw_error_clear();
    const sw_status second = outline_plan(&spec, settings, pricing == NULL ? NULL : &other, &rows);
    if (second == SW_ERR_BUDGET && status == SW_OK) {
        sw_error_clear();
    } else if (second != SW_OK) {
        sw_plan_destroy(whole);
        return second;
    }
    const bool faster =
        pricing == NULL || status != SW_OK || prices.placement.chosen_s < pricing->prices->placement.chosen_s;
    const bool takes_rows = second == SW_OK && faster;
    if (takes_rows && pricing != NULL)
        *pricing->prices = prices;
    sw_plan_destroy(takes_rows ? whole : rows);
    *out = takes_rows ? rows : whole;
    return SW_OK;
}

/* The inputs are partitioned, and norms run on a rank's rows, where that is asked for; where it is left open, the
 * outline decides. */
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

/* A data rank, and the ZeRO stage to plan it with. */
struct share {
    int rank, stage;
};

static sw_status plan_share(const struct sw_settings *settings, const struct sw_model *model, struct share share,
                            const struct pricing *pricing, struct sw_plan_lack *out_lack, struct sw_plan **out) {
    const struct sw_model_bytes bytes = sw_model_bytes(model);
    struct sw_plan_spec spec = {
        .lack = out_lack,
        .units = sw_model_get_units(model),
        .ranks = (int)sw_settings_data_ranks(settings),
        .rank = share.rank,
        .tensor = tensor_of(settings, &bytes),
        .zero = share.stage,
        .gather = sw_settings_gather(settings),
        .reduce = sw_settings_reduce(settings),
        .reduce_nodes = sw_settings_tensor_ranks(settings) > 1 ? 0 : sw_settings_reduce_nodes(settings),
        .node_ranks = sw_settings_data_node_ranks(settings),
        .fills_nodes = sw_settings_fills_nodes(settings),
        .grads = (sw_grads_format)settings->grads_state,
        .type = sw_settings_type(settings),
        .train = true,
        .micro_batches = sw_settings_micro_batches(settings),
        .unit_slots = UNIT_SLOTS,
        .token_bytes = bytes.token,
        .output_bytes = bytes.output,
        .saved_bytes = bytes.saved,
        .derived_bytes = settings->sequence == SW_SEQUENCE_YES ? bytes.unnormed : bytes.derived,
        .shares_input = bytes.shares_input,
        .continues = bytes.continues,
        .work_bytes = bytes.work,
        .gathered_bytes = bytes.gathered,
        .recompute_auto = settings->recompute == SW_OPTION_RECOMPUTE_AUTO,
        .recompute = settings->recompute == SW_OPTION_RECOMPUTE_ALL ? SW_RECOMPUTE_UNIT : SW_RECOMPUTE_NOTHING,
        .one_generation = settings->durability == SW_DURABILITY_NONE,
        .chunk_grains = settings->chunk_grains,
        .ring_chunks = settings->ring_chunks == SW_OPTION_AUTO ? SW_RING_CHUNKS : settings->ring_chunks,
        .ring_auto = settings->ring_chunks == SW_OPTION_AUTO,
        .budget_bytes = {[SW_DEVICE] = settings->device_memory, [SW_HOST] = settings->host_memory},
    };
    SW_TRY(sw_settings_group(settings, &spec.group));
    SW_TRY(sw_as_usage(sw_settings_secondary(settings, &spec.secondary_ranks)));
    if (spec.secondary_ranks > 0)
        spec.secondary_rank = (int)settings->node_rank % spec.secondary_ranks;
    SW_TRY(sw_settings_frozen_units(settings, sw_model_get_config(model), &spec.frozen_units));
    SW_TRY(sw_placement_parse(settings->place, &spec.place));
    return outline_rows(&spec, settings, bytes.unnormed, pricing, out);
}

/* Refuses to quantize what a job of this stage does not exchange, or does not keep. */
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

/* Chooses the ZeRO stage where no prices do. Quantized weights are gathered in stage 3 alone. Stage 3 otherwise saves
 * only memory where every device can hold all weights, so 2 is preferred. All ranks must choose alike, so each looks at
 * rank 0, whose shards are the largest. */
static sw_status choose_stage(const struct sw_settings *settings, const struct sw_model *model, int *out) {
    const bool open = settings->zero == SW_OPTION_AUTO;
    *out = open ? SW_ZERO_NONE : (int)settings->zero;
    if (open && sw_settings_gather(settings) != SW_QUANT_NONE)
        *out = SW_ZERO_WEIGHTS;
    if (!open || sw_settings_data_ranks(settings) == 1 || *out == SW_ZERO_WEIGHTS)
        return SW_OK;
    struct sw_plan *plan = NULL;
    const sw_status status = plan_share(settings, model, (struct share){.stage = SW_ZERO_GRADS}, NULL, NULL, &plan);
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

/* Searches with stages 2 and 3, which give the same bits, and takes the faster plan. Stage 3 gathers more, so it must
 * save something. */
static sw_status search_stages(const struct sw_settings *settings, const struct sw_model *model,
                               const struct pricing *pricing, struct sw_plan **out) {
    struct sw_search_open open = *pricing->open;
    struct sw_plan *best = NULL;
    open.most_ops /= 2;
    for (int stage = SW_ZERO_GRADS; stage <= SW_ZERO_WEIGHTS; stage++) {
        const struct share share = {.rank = (int)sw_settings_data_rank(settings), .stage = stage};
        struct sw_search_prices prices;
        struct sw_plan *plan = NULL;
        const struct pricing half = {&open, pricing->rates, &prices};
        const sw_status status = plan_share(settings, model, share, &half, NULL, &plan);
        const double most_s = best == NULL ? INFINITY : pricing->prices->placement.chosen_s * (1.0 - STAGE_LEAST_SAVED);
        if (status == SW_ERR_BUDGET && (best != NULL || stage < SW_ZERO_WEIGHTS)) {
            sw_error_clear();
        } else if (status != SW_OK) {
            sw_plan_destroy(best);
            return status;
        } else if (best == NULL || prices.placement.chosen_s < most_s) {
            sw_plan_destroy(best);
            best = plan;
            *pricing->prices = prices;
        } else {
            sw_plan_destroy(plan);
        }
    }
    *out = best;
    return SW_OK;
}

static sw_status make_outline(const struct sw_settings *settings, const struct sw_model *model,
                              const struct pricing *pricing, struct sw_plan_lack *out_lack, struct sw_plan **out) {
    struct share share = {.rank = (int)sw_settings_data_rank(settings)};
    if (pricing != NULL && settings->zero == SW_OPTION_AUTO && sw_settings_data_ranks(settings) > 1 &&
        sw_settings_gather(settings) == SW_QUANT_NONE)
        return search_stages(settings, model, pricing, out);
    SW_TRY(choose_stage(settings, model, &share.stage));
    SW_TRY(sw_as_usage(check_quantized(settings, share.stage)));
    return plan_share(settings, model, share, pricing, out_lack, out);
}

sw_status sw_settings_outline(const struct sw_settings *settings, const struct sw_model *model,
                              struct sw_plan_lack *out_lack, struct sw_plan **out) {
    return make_outline(settings, model, NULL, out_lack, out);
}

sw_status sw_settings_search(const struct sw_settings *settings, const struct sw_model *model,
                             const struct sw_search_open *open, const struct sw_rates *rates,
                             struct sw_search_prices *out_prices, struct sw_plan **out) {
    return make_outline(settings, model, &(struct pricing){open, rates, out_prices}, NULL, out);
}

sw_status sw_settings_complete_plan(struct sw_plan *plan) {
    SW_TRY(sw_plan_complete(plan));
    return sw_plan_check(plan);
}

sw_status sw_settings_plan(const struct sw_settings *settings, const struct sw_model *model, struct sw_plan **out) {
    struct sw_plan *plan;
    SW_TRY(sw_settings_outline(settings, model, NULL, &plan));
    const sw_status status = sw_settings_complete_plan(plan);
    if (status == SW_OK)
        *out = plan;
    else
        sw_plan_destroy(plan);
    return status;
}

sw_status sw_settings_open_devices(const struct sw_settings *settings, struct sw_devices *out) {
    const int threads = settings->threads == SW_OPTION_AUTO ? sw_machine_cores() : (int)settings->threads;
    SW_TRY(sw_devices_open((sw_device_choice)settings->device, threads, (int)settings->local_rank, out));
    SW_TRY(sw_settings_prepare_device(settings, out->compute));
    return sw_gpu_as_in_training(out);
}
