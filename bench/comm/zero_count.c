/* Counts the bytes that a plan's memory holds, and the bytes that formulas give: ZeRO's (arXiv 1910.02054, table 1 and
 * sections 7 and 8), and ZeRO++'s (arXiv 2306.10209, sections 3 and 4) for shards of finite numbers of ranks and nodes.
 *
 * The formulas know the model's shapes and the numbers of ranks, and nothing of grains, alignment or buffers. P are the
 * parameters of the whole model, w the bytes of an element in the compute type, N the ranks of a tensor group, D the
 * ranks that share the state of one part; N D are the ranks of the job. A rank holds, in bytes:
 *   weights      w P / N, at stage 3 over D
 *   gradients    w P / N, at stages 2 and 3 over D
 *   optimizer    12 P / N, at stages 1 to 3 over D
 *   activations  C M, with partitioned activations (Pa) over N
 * M = w t h are the bytes of the hidden state of the t tokens that a rank computes in a step, L the blocks, and C the
 * inputs that are kept: L, and 2 L in tensor groups, where attention and MLP are units of their own.
 *
 * A rank sends in a step, in bytes:
 *   data ranks    (D-1)/D w P / N, times 2, at stage 3 times 3 (section 7)
 *   tensor group  (N-1)/N M (2 A + G)
 * An all-reduce moves twice its message and an all-gather moves it once (section 8). A are the all-reduces: two in each
 * block's forward pass and two in its backward pass (Shoeybi et al., arXiv 1909.08053, section 3), one of the
 * embedding's output and one of the gradient at the head's input. G are the all-gathers of Pa: one for each kept input
 * where blocks are computed again in the backward pass, else none.
 *
 * Section 8 counts 12 M for a block, and 13 M with Pa: it keeps one input for each block, so that two all-reduces more
 * belong to the recomputation. Here a half block is computed again from its own kept input, which needs no other rank:
 * 8 M, and 10 M with Pa, for twice the kept inputs. */
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

static bool is_kept_input(const struct sw_plan *plan, int32_t slot) {
    const int64_t unit = plan->slot[slot].unit;
    return unit >= 0 && sw_plan_kept_input(plan, unit) == slot;
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
        if (is_kept_input(plan, s)) {
            out->bytes[SW_ZERO_HELD_ACTS] += slot->bytes;
            continue;
        }
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

/* Splits what is sent into what stays in the node and what leaves it, where there are no tensor groups. In a reduction
 * of W bytes among n ranks, L of them in a node, a rank gives W/n to each other rank: (n-L)/n W to other nodes. In a
 * gather it gives W/n to one rank of each of the n/L-1 other nodes, and W/L to each of the L-1 others in its own. With
 * secondary shards the gather of the backward pass is of W/L to each of these. A reduction in two levels gives them
 * W/L, and then W/n to one rank of each other node. */
static void find_nodes_formulas(const struct sw_plan *plan, double typed_bytes, struct sw_zero_stage *out) {
    const double ranks = plan->spec.ranks, node = plan->spec.node_ranks;
    const bool secondary = plan->spec.secondary_ranks > 1;
    const double gather = quantized(plan, plan->spec.gather), reduce = quantized(plan, plan->spec.reduce);
    const double gathers = plan->spec.zero >= SW_ZERO_WEIGHTS && !secondary ? 2.0 : 1.0;
    const bool two_levels = sw_plan_reduce_nodes(plan) > 1;
    const double gathered_bytes = typed_bytes * gathers * gather, reduced_bytes = typed_bytes * reduce;
    const double node_share = (node - 1.0) / node, nodes_share = (ranks / node - 1.0) / ranks;
    double *formula = out->formula_bytes;
    formula[SW_ZERO_INSIDE] = formula[SW_ZERO_BETWEEN] = formula[SW_ZERO_HELD_SECONDARY] = NAN;
    if (node == 0.0 || node >= ranks || sw_plan_tensor_ranks(plan) > 1)
        return;
    formula[SW_ZERO_BETWEEN] = gathered_bytes * nodes_share;
    formula[SW_ZERO_INSIDE] = gathered_bytes * node_share;
    formula[SW_ZERO_BETWEEN] += reduced_bytes * (two_levels ? nodes_share : (ranks - node) / ranks);
    formula[SW_ZERO_INSIDE] += reduced_bytes * (two_levels ? node_share : (node - 1.0) / ranks);
    if (secondary) {
        formula[SW_ZERO_INSIDE] += typed_bytes * node_share;
        formula[SW_ZERO_HELD_SECONDARY] = typed_bytes / node;
    }
    formula[SW_ZERO_SENT] = formula[SW_ZERO_INSIDE] + formula[SW_ZERO_BETWEEN];
}

/* The all-reduces of a tensor group within a block, and outside of blocks. */
enum { BLOCK_SUMS = 4, OTHER_SUMS = 2 };
/* The paper's account of a block: hidden states moved without and with partitioned activations. */
enum { PAPER_BLOCK = 12, PAPER_BLOCK_PARTITIONED = 13 };

/* Returns the inputs of a block that are kept for the backward pass. */
static double block_inputs(const struct sw_zero_job *job) {
    return job->tensor_ranks > 1.0 ? 2.0 : 1.0;
}

static double hidden_bytes(const struct sw_zero_job *job) {
    return job->type_bytes * job->tokens * job->hidden;
}

/* Returns the bytes that a rank sends within its tensor group. */
static double tensor_bytes(const struct sw_zero_job *job, bool partitioned) {
    const double sums = BLOCK_SUMS * job->layers + OTHER_SUMS;
    const double gathers = partitioned && job->recomputes ? block_inputs(job) * job->layers : 0.0;
    return (1.0 - 1.0 / job->tensor_ranks) * hidden_bytes(job) * (2.0 * sums + gathers);
}

static void find_tensor_formulas(const struct sw_zero_job *job, struct sw_zero_stage *out) {
    const double paper_block = out->partitioned ? PAPER_BLOCK_PARTITIONED : PAPER_BLOCK;
    double *formula = out->formula_bytes;
    out->paper_acts_bytes = out->paper_tensor_bytes = NAN;
    out->formula_added_share = out->paper_added_share = NAN;
    formula[SW_ZERO_SENT_TENSOR] = formula[SW_ZERO_SENT_DATA] = NAN;
    if (job->tensor_ranks == 1.0)
        return;
    formula[SW_ZERO_SENT_DATA] = formula[SW_ZERO_SENT];
    formula[SW_ZERO_SENT_TENSOR] = tensor_bytes(job, out->partitioned);
    formula[SW_ZERO_SENT] += formula[SW_ZERO_SENT_TENSOR];
    out->paper_acts_bytes = formula[SW_ZERO_HELD_ACTS] / block_inputs(job);
    out->paper_tensor_bytes = (1.0 - 1.0 / job->tensor_ranks) * hidden_bytes(job) * paper_block * job->layers;
    if (!out->partitioned)
        return;
    out->formula_added_share = tensor_bytes(job, true) / tensor_bytes(job, false) - 1.0;
    out->paper_added_share = (double)PAPER_BLOCK_PARTITIONED / PAPER_BLOCK - 1.0;
}

void sw_zero_find_formulas(const struct sw_zero_job *job, const struct sw_plan *plan, struct sw_zero_stage *out) {
    const int zero = out->stage;
    const double ranks = job->data_ranks, parameters = job->parameters / job->tensor_ranks;
    const double typed_bytes = parameters * job->type_bytes;
    double *formula = out->formula_bytes;
    formula[SW_ZERO_HELD_WEIGHTS] = zero >= SW_ZERO_WEIGHTS ? typed_bytes / ranks : typed_bytes;
    formula[SW_ZERO_HELD_GRADS] = zero >= SW_ZERO_GRADS ? typed_bytes / ranks : typed_bytes;
    formula[SW_ZERO_HELD_OPTIMIZER] = parameters * OPTIMIZER_BYTES / (zero >= SW_ZERO_OPTIMIZER ? ranks : 1.0);
    formula[SW_ZERO_HELD] =
        formula[SW_ZERO_HELD_WEIGHTS] + formula[SW_ZERO_HELD_GRADS] + formula[SW_ZERO_HELD_OPTIMIZER];
    formula[SW_ZERO_HELD_ACTS] =
        block_inputs(job) * job->layers * hidden_bytes(job) / (out->partitioned ? job->tensor_ranks : 1.0);
    formula[SW_ZERO_SENT] = (zero >= SW_ZERO_WEIGHTS ? 3.0 : 2.0) * typed_bytes * (ranks - 1.0) / ranks;
    find_tensor_formulas(job, out);
    find_nodes_formulas(plan, typed_bytes, out);
}

void sw_zero_compare(struct sw_zero_stage *stage, const struct sw_zero_stage *whole) {
    for (int f = 0; f < SW_ZERO_FIGURES; f++) {
        stage->ratio[f] = stage->formula_bytes[f] > 0.0 ? (double)stage->bytes[f] / stage->formula_bytes[f] : NAN;
        stage->deviation_percent[f] = 100.0 * (stage->ratio[f] - 1.0);
    }
    stage->added_share =
        stage->partitioned ? (double)stage->bytes[SW_ZERO_SENT_TENSOR] / (double)whole->bytes[SW_ZERO_SENT_TENSOR] - 1.0
                           : NAN;
}
