/* Counts the bytes that a plan's memory holds, and the bytes that formulas give: ZeRO's (table 1 and section 7), and
 * ZeRO++'s (arXiv 2306.10209, sections 3 and 4) for shards of finite numbers of ranks and nodes. */
#include "bench/comm/zero.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* The optimizer state of a parameter: fp32 master and two moments. */
enum { OPTIMIZER_BYTES = 12 };

/* Returns the figure that a slot's content belongs to, or SW_ZERO_FIGURES for none. */
static sw_zero_figure figure_of(const struct sw_slot *slot) {
    if (!slot->resident)
        return SW_ZERO_FIGURES;
    switch (slot->content) {
    case SW_CONTENT_WEIGHTS: return SW_ZERO_HELD_WEIGHTS;
    case SW_CONTENT_GRADS: return SW_ZERO_HELD_GRADS;
    case SW_CONTENT_OPTIMIZER: return SW_ZERO_HELD_OPTIMIZER;
    default: return SW_ZERO_FIGURES;
    }
}

static void add_buffer(struct sw_zero_stage *stage, const struct sw_slot *slot) {
    int at = 0;
    while (at < stage->buffers &&
           (stage->buffer[at].tier != slot->tier || strcmp(stage->buffer[at].name, slot->name) != 0))
        at++;
    if (at == stage->buffers) {
        assert(stage->buffers < SW_ZERO_BUFFERS);
        stage->buffer[stage->buffers++] = (struct sw_zero_buffer){.name = slot->name, .tier = slot->tier};
    }
    stage->buffer[at].bytes += slot->bytes;
}

void sw_zero_count_held(const struct sw_plan *plan, struct sw_zero_stage *out) {
    out->bytes[SW_ZERO_HELD_SECONDARY] = plan->spec.secondary_ranks > 1 ? sw_plan_secondary_bytes(plan) : -1;
    for (int32_t s = 0; s < plan->slot_count; s++) {
        const struct sw_slot *slot = &plan->slot[s];
        const sw_zero_figure figure = figure_of(slot);
        if (slot->tier == SW_NVME)
            continue;
        if (figure == SW_ZERO_FIGURES) {
            add_buffer(out, slot);
            continue;
        }
        out->bytes[figure] += slot->bytes;
        out->bytes[SW_ZERO_HELD] += slot->bytes;
    }
}

/* Returns the bytes of a gather, or a reduction, over those in the compute type. A quantized block has an fp32 scale.
 */
static double quantized(const struct sw_plan *plan, sw_quant quant) {
    const double typed = SW_GRAIN_ELEMS * (double)sw_dtype_bytes(plan->spec.type);
    return quant == SW_QUANT_NONE ? 1.0 : (double)sw_quant_grain_bytes(quant) / typed;
}

/* Splits what is sent into what stays in the node and what leaves it. In a gather or a reduction of W bytes among n
 * ranks, L of them in a node, a rank gives W/n to each other rank: (n-L)/n W to other nodes. With secondary shards the
 * gather of the backward pass is of W/L to each of the L-1 others in the node. A reduction in two levels gives W/L to
 * each of these, and then W/n to one rank of each of the n/L-1 other nodes. */
static void find_nodes_formulas(const struct sw_plan *plan, double typed_bytes, struct sw_zero_stage *out) {
    const double ranks = plan->spec.ranks, node = plan->spec.node_ranks;
    const bool secondary = plan->spec.secondary_ranks > 1;
    const double gather = quantized(plan, plan->spec.gather), reduce = quantized(plan, plan->spec.reduce);
    const double gathers = plan->spec.zero >= SW_ZERO_WEIGHTS && !secondary ? 2.0 : 1.0;
    const bool two_levels = sw_plan_reduce_nodes(plan) > 1;
    const double among_all_bytes = typed_bytes * (gathers * gather + (two_levels ? 0.0 : reduce));
    double *formula = out->formula_bytes;
    formula[SW_ZERO_INSIDE] = formula[SW_ZERO_BETWEEN] = formula[SW_ZERO_HELD_SECONDARY] = NAN;
    if (node == 0.0 || node >= ranks)
        return;
    formula[SW_ZERO_BETWEEN] = among_all_bytes * (ranks - node) / ranks;
    formula[SW_ZERO_INSIDE] = among_all_bytes * (node - 1.0) / ranks;
    if (two_levels) {
        formula[SW_ZERO_INSIDE] += reduce * typed_bytes * (node - 1.0) / node;
        formula[SW_ZERO_BETWEEN] += reduce * typed_bytes * (ranks / node - 1.0) / ranks;
    }
    if (secondary) {
        formula[SW_ZERO_INSIDE] += typed_bytes * (node - 1.0) / node;
        formula[SW_ZERO_HELD_SECONDARY] = typed_bytes / node;
    }
    formula[SW_ZERO_SENT] = formula[SW_ZERO_INSIDE] + formula[SW_ZERO_BETWEEN];
}

void sw_zero_find_formulas(const struct sw_plan *plan, struct sw_zero_stage *out) {
    const int zero = plan->spec.zero;
    const double ranks = plan->spec.ranks > 1 ? plan->spec.ranks : 1;
    const double parameters = (double)sw_units_parameters(plan->spec.units);
    const double typed_bytes = parameters * (double)sw_dtype_bytes(plan->spec.type);
    double *formula = out->formula_bytes;
    formula[SW_ZERO_HELD_WEIGHTS] = zero >= SW_ZERO_WEIGHTS ? typed_bytes / ranks : typed_bytes;
    formula[SW_ZERO_HELD_GRADS] = zero >= SW_ZERO_GRADS ? typed_bytes / ranks : typed_bytes;
    formula[SW_ZERO_HELD_OPTIMIZER] = parameters * OPTIMIZER_BYTES / (zero >= SW_ZERO_OPTIMIZER ? ranks : 1.0);
    formula[SW_ZERO_HELD] =
        formula[SW_ZERO_HELD_WEIGHTS] + formula[SW_ZERO_HELD_GRADS] + formula[SW_ZERO_HELD_OPTIMIZER];
    formula[SW_ZERO_SENT] = (zero >= SW_ZERO_WEIGHTS ? 3.0 : 2.0) * typed_bytes * (ranks - 1.0) / ranks;
    find_nodes_formulas(plan, typed_bytes, out);
}
