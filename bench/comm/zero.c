/* `spillway bench zero`: a model trained at each stage of ZeRO, on several nodes also with ZeRO++, in tensor groups
 * with and without partitioned activations, and in the stages of a pipeline; and what a rank holds and sends meanwhile.
 * Run by mpirun. */
#include "bench/options.h"
#include "bench/report.h"
#include "bench/step/step.h"
#include "cli/commands.h"
#include "core/ranks/comm.h"
#include "core/size.h"
#include "core/status.h"
#include "job/job.h"
#include "job/settings/pipeline.h"
#include "offload/plan/plan.h"
#include "run/trainer.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The results of `bench zero`: the bytes that a rank holds and sends at each stage of ZeRO, against the papers'
 * formulas: with parts of ZeRO++ at stage 3, or, in tensor groups, with and without partitioned activations. */
enum { SW_ZERO_STAGES = SW_ZERO_WEIGHTS + 1, SW_ZERO_BUFFERS = 32 };
/* Rows: the stages, then stage 3 with secondary shards (hpZ), with weights gathered as int8 (qwZ), with gradients
 * reduced as int4 (qgZ), and with all three. */
enum { SW_ZERO_HPZ = SW_ZERO_STAGES, SW_ZERO_QWZ, SW_ZERO_QGZ, SW_ZERO_PLUS, SW_ZERO_ROWS };
/* Rows of a job with tensor groups: the stages, then the stages again with partitioned activations (ZeRO-R's Pa). */
enum { SW_ZERO_TENSOR_ROWS = 2 * SW_ZERO_STAGES, SW_ZERO_MOST_ROWS = SW_ZERO_ROWS };
static_assert((int)SW_ZERO_TENSOR_ROWS <= (int)SW_ZERO_MOST_ROWS, "both kinds of rows have room");

typedef enum {
    SW_ZERO_HELD_WEIGHTS,
    SW_ZERO_HELD_GRADS,
    SW_ZERO_HELD_OPTIMIZER,
    SW_ZERO_HELD,      /* all three */
    SW_ZERO_HELD_ACTS, /* inputs of blocks that are kept for the backward pass */
    SW_ZERO_SENT,      /* a step */
    /* In tensor groups, or in a pipeline; else -1: */
    SW_ZERO_SENT_TENSOR, /* of what is sent, to ranks of the same tensor group; -1 without groups */
    SW_ZERO_SENT_DATA,   /* of what is sent, to ranks of other groups in the same pipeline stage */
    SW_ZERO_SENT_STAGES, /* of what is sent, to ranks of other pipeline stages; -1 without a pipeline */
    /* Where there are several nodes, of as many ranks each; else -1: */
    SW_ZERO_INSIDE,         /* of what is sent, to ranks of the same node */
    SW_ZERO_BETWEEN,        /* of what is sent, to ranks of other nodes */
    SW_ZERO_HELD_SECONDARY, /* secondary shards; -1 without them */
    SW_ZERO_FIGURES
} sw_zero_figure;

/* Bytes of all slots of one name in a tier. They hold no state. */
struct sw_zero_buffer {
    const char *name;
    sw_tier tier;
    int64_t bytes;
};

/* A pipeline stage of the job, or all of it. */
struct sw_zero_part {
    double parameters; /* of the layers that it computes, and of a copy of a tied table */
    double layers;     /* blocks */
    double ends;       /* of the embedding and the head, how many it has */
    double borders;    /* neighbouring stages: 0 to 2 */
    double in_flight;  /* micro-batches whose inputs it keeps at once */
    double table;      /* parameters of the unit of a tied table, which it adds up with another stage; else 0 */
};

/* The job that the formulas are about. */
struct sw_zero_job {
    double parameters;    /* of the whole model */
    double hidden;        /* elements of a token's hidden state */
    double tokens;        /* of a micro-batch */
    double micro_batches; /* that a rank computes in a step */
    double type_bytes;    /* bytes of an element in the compute type */
    double tensor_ranks;  /* ranks of a tensor group; 1: each rank has whole layers */
    double data_ranks;    /* ranks that share the state of one part of the layers */
    int stages;           /* of a pipeline; 1: each rank computes all layers */
    struct sw_zero_part part[SW_MOST_STAGES];
    bool recomputes; /* with tensor groups: blocks are computed again in the backward pass */
};

struct sw_zero_stage {
    int stage;
    bool partitioned;               /* each rank of a tensor group keeps only its rows of inputs */
    const char *name;               /* "3", "3 hpZ", "3 Pa" */
    int64_t bytes[SW_ZERO_FIGURES]; /* on the rank that has the most; its communicator counts the bytes sent */
    double formula_bytes[SW_ZERO_FIGURES];
    double ratio[SW_ZERO_FIGURES];             /* bytes over the formula's; NAN: the formula gives 0 */
    double deviation_percent[SW_ZERO_FIGURES]; /* 100 (ratio - 1); NAN as there */
    /* In tensor groups, else NAN: what the kept inputs take, and what goes within the group, by the paper's account of
     * one kept input for each block (zero.c). */
    double paper_acts_bytes, paper_tensor_bytes;
    /* The share that partitioned activations add to the bytes within the group, over these bytes without them: as
     * measured, by the formula, and by the paper's account. NAN in other rows. */
    double added_share, formula_added_share, paper_added_share;
    int64_t planned_bytes;         /* sent by the ops of a step, on the rank that sends the most */
    int64_t planned_between_bytes; /* of these to other nodes; -1: there is one node */
    double between_times;          /* bytes between nodes over those of one gather of all weights; NAN: one node */
    struct sw_zero_buffer buffer[SW_ZERO_BUFFERS]; /* this rank's */
    int buffers;
};

struct sw_zero_report {
    const struct sw_comm *comm;
    const char *device, *model;
    sw_dtype type;
    struct sw_zero_job job;
    struct sw_zero_stage stage[SW_ZERO_MOST_ROWS];
    int rows; /* SW_ZERO_TENSOR_ROWS with tensor groups; else SW_ZERO_ROWS, or SW_ZERO_STAGES where nodes have one rank,
               * or there is one node, or they are uneven */
};

/* Counts the bytes that a plan's memory holds, and the bytes that formulas give: ZeRO's (arXiv 1910.02054, table 1 and
 * sections 7 and 8), and ZeRO++'s (arXiv 2306.10209, sections 3 and 4) for shards of finite numbers of ranks and nodes.
 *
 * The formulas know the model's shapes and the numbers of ranks, and nothing of grains, alignment or buffers. P are the
 * parameters of the whole model, w the bytes of an element in the compute type, N the ranks of a tensor group, D the
 * ranks that share the state of one part; N D are the ranks of the job, or of a pipeline stage. A rank holds, in bytes:
 *   weights      w P / N, at stage 3 over D
 *   gradients    w P / N, at stages 2 and 3 over D
 *   optimizer    12 P / N, at stages 1 to 3 over D
 *   activations  C M, with partitioned activations (Pa) over N
 * M = w t h are the bytes of the hidden state of the t tokens of a micro-batch, of which a rank computes m in a step,
 * one without a pipeline. L are the blocks, and C the inputs that are kept: L, and 2 L in tensor groups, where
 * attention and MLP are units of their own.
 *
 * A rank sends in a step, in bytes:
 *   data ranks    (D-1)/D w P / N, times 2, at stage 3 times 3 (section 7)
 *   tensor group  (N-1)/N m M (2 A + G)
 * An all-reduce moves twice its message and an all-gather moves it once (section 8). A are the all-reduces: two in each
 * block's forward pass and two in its backward pass (Shoeybi et al., arXiv 1909.08053, section 3), one of the
 * embedding's output and one of the gradient at the head's input. G are the all-gathers of Pa: one for each kept input
 * where blocks are computed again in the backward pass, else none.
 *
 * Section 8 counts 12 M for a block, and 13 M with Pa: it keeps one input for each block, so that two all-reduces more
 * belong to the recomputation. Here a half block is computed again from its own kept input, which needs no other rank:
 * 8 M, and 10 M with Pa, for twice the kept inputs.
 *
 * In a pipeline (Narayanan et al., arXiv 2104.04473, section 2.2) P and L are those of one stage. Stage s of p keeps C
 * M of min(m, p - s) micro-batches, which is the bound of 1F1B. Its ranks send m M to each neighbouring stage: outputs
 * forward, or the gradients at them back, so that 2 m M cross each border. If the table is tied, the first and the last
 * stage each have it, and send each other 4 bytes for each of its elements, over N. Data ranks reduce gradients once
 * a step, because each adds up its own micro-batches first: 4 P / N bytes of fp32 sums at every ZeRO stage, which are
 * no state and not among the figures. At stage 3 they gather weights twice for each micro-batch: data ranks (D-1)/D w P
 * / N, times 2, at stage 3 times 2 m + 1. Every figure is the largest that a stage has. */

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
    stage->buffer[at].bytes += sw_slot_bytes(slot);
}

/* Adds the bytes of a plan's slots to the figures of what they hold, or to the buffers. */
static void zero_count_held(const struct sw_plan *plan, struct sw_zero_stage *out) {
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
        out->bytes[figure] += sw_slot_bytes(slot);
        out->bytes[SW_ZERO_HELD] += sw_slot_bytes(slot);
    }
}

/* Returns the bytes of a gather, or a reduction, over those in the compute type. A quantized block has an fp32 scale.
 */
static double quantized(const struct sw_plan *plan, sw_quant quant) {
    const double typed = SW_GRAIN_ELEMS * (double)sw_dtype_bytes(plan->spec.type);
    return quant == SW_QUANT_NONE ? 1.0 : (double)sw_quant_grain_bytes(quant) / typed;
}

/* Tells whether ranks have parts of layers, or some of the layers. */
static bool is_in_parts(const struct sw_plan *plan) {
    return sw_plan_tensor_ranks(plan) > 1 || sw_plan_stages(plan) > 1;
}

/* Splits what is sent into what stays in the node and what leaves it, where each rank has all layers. In a reduction
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
    if (node == 0.0 || node >= ranks || is_in_parts(plan))
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

/* The all-reduces of a tensor group within a block; embedding and head have one each. */
enum { BLOCK_SUMS = 4 };
/* The paper's account of a block: hidden states moved without and with partitioned activations. */
enum { PAPER_BLOCK = 12, PAPER_BLOCK_PARTITIONED = 13 };

/* Returns the inputs of a block that are kept for the backward pass. */
static double block_inputs(const struct sw_zero_job *job) {
    return job->tensor_ranks > 1.0 ? 2.0 : 1.0;
}

static double hidden_bytes(const struct sw_zero_job *job) {
    return job->type_bytes * job->tokens * job->hidden;
}

/* Returns the bytes that a rank of a part sends within its tensor group. */
static double tensor_bytes(const struct sw_zero_job *job, const struct sw_zero_part *part, bool partitioned) {
    const double sums = BLOCK_SUMS * part->layers + part->ends;
    const double gathers = partitioned && job->recomputes ? block_inputs(job) * part->layers : 0.0;
    return (1.0 - 1.0 / job->tensor_ranks) * job->micro_batches * hidden_bytes(job) * (2.0 * sums + gathers);
}

/* The paper's account is of jobs without a pipeline. */
static void find_paper_formulas(const struct sw_zero_job *job, struct sw_zero_stage *out) {
    const double paper_block = out->partitioned ? PAPER_BLOCK_PARTITIONED : PAPER_BLOCK;
    const struct sw_zero_part *all = &job->part[0];
    out->paper_acts_bytes = out->paper_tensor_bytes = NAN;
    out->formula_added_share = out->paper_added_share = NAN;
    if (job->tensor_ranks == 1.0 || job->stages > 1)
        return;
    out->paper_acts_bytes = out->formula_bytes[SW_ZERO_HELD_ACTS] / block_inputs(job);
    out->paper_tensor_bytes = (1.0 - 1.0 / job->tensor_ranks) * hidden_bytes(job) * paper_block * all->layers;
    if (!out->partitioned)
        return;
    out->formula_added_share = tensor_bytes(job, all, true) / tensor_bytes(job, all, false) - 1.0;
    out->paper_added_share = (double)PAPER_BLOCK_PARTITIONED / PAPER_BLOCK - 1.0;
}

/* Returns how often a step reduces gradients and gathers weights. */
static double exchanges_of(const struct sw_zero_job *job, int zero) {
    return 1.0 + (zero >= SW_ZERO_WEIGHTS ? 2.0 * job->micro_batches : 1.0);
}

/* Computes the formulas of a rank of one part. */
static void find_part_formulas(const struct sw_zero_job *job, const struct sw_zero_part *part,
                               const struct sw_zero_stage *row, double formula[SW_ZERO_FIGURES]) {
    const int zero = row->stage;
    const double ranks = job->data_ranks, parameters = part->parameters / job->tensor_ranks;
    const double typed_bytes = parameters * job->type_bytes;
    formula[SW_ZERO_HELD_WEIGHTS] = zero >= SW_ZERO_WEIGHTS ? typed_bytes / ranks : typed_bytes;
    formula[SW_ZERO_HELD_GRADS] = zero >= SW_ZERO_GRADS ? typed_bytes / ranks : typed_bytes;
    formula[SW_ZERO_HELD_OPTIMIZER] = parameters * OPTIMIZER_BYTES / (zero >= SW_ZERO_OPTIMIZER ? ranks : 1.0);
    formula[SW_ZERO_HELD] =
        formula[SW_ZERO_HELD_WEIGHTS] + formula[SW_ZERO_HELD_GRADS] + formula[SW_ZERO_HELD_OPTIMIZER];
    formula[SW_ZERO_HELD_ACTS] = part->in_flight * block_inputs(job) * part->layers * hidden_bytes(job) /
                                 (row->partitioned ? job->tensor_ranks : 1.0);
    formula[SW_ZERO_SENT_DATA] = exchanges_of(job, zero) * typed_bytes * (ranks - 1.0) / ranks;
    formula[SW_ZERO_SENT_TENSOR] = tensor_bytes(job, part, row->partitioned);
    formula[SW_ZERO_SENT_STAGES] = part->borders * job->micro_batches * hidden_bytes(job) +
                                   part->table / job->tensor_ranks * (double)sizeof(float);
    formula[SW_ZERO_SENT] = formula[SW_ZERO_SENT_DATA] + formula[SW_ZERO_SENT_TENSOR] + formula[SW_ZERO_SENT_STAGES];
}

/* Computes the formulas for a row whose stage is set. Of the plan only the ranks of each node count. */
static void zero_find_formulas(const struct sw_zero_job *job, const struct sw_plan *plan, struct sw_zero_stage *out) {
    double *formula = out->formula_bytes;
    for (int s = 0; s < job->stages; s++) {
        double part[SW_ZERO_FIGURES] = {0};
        find_part_formulas(job, &job->part[s], out, part);
        for (int f = 0; f < SW_ZERO_FIGURES; f++)
            formula[f] = fmax(formula[f], part[f]);
    }
    if (!is_in_parts(plan))
        formula[SW_ZERO_SENT_DATA] = NAN;
    if (job->tensor_ranks == 1.0)
        formula[SW_ZERO_SENT_TENSOR] = NAN;
    if (job->stages == 1)
        formula[SW_ZERO_SENT_STAGES] = NAN;
    find_paper_formulas(job, out);
    find_nodes_formulas(plan, job->parameters * job->type_bytes, out);
}

/* Compares what the rank that has the most of each figure has with the formulas; `whole` is the row of the same stage
 * without partitioned activations. */
static void zero_compare(struct sw_zero_stage *stage, const struct sw_zero_stage *whole) {
    for (int f = 0; f < SW_ZERO_FIGURES; f++) {
        stage->ratio[f] = stage->formula_bytes[f] > 0.0 ? (double)stage->bytes[f] / stage->formula_bytes[f] : NAN;
        stage->deviation_percent[f] = 100.0 * (stage->ratio[f] - 1.0);
    }
    stage->added_share =
        stage->partitioned ? (double)stage->bytes[SW_ZERO_SENT_TENSOR] / (double)whole->bytes[SW_ZERO_SENT_TENSOR] - 1.0
                           : NAN;
}

/* The report of `bench zero`, for people and for programs. */

#define ROW struct sw_zero_stage
#define MB .scale = 1e-6, .digits = 2
#define FIGURE_OF(name_, heading_, at, nullable_)                                                                      \
    {.name = name_ ".bytes", .heading = (heading_), SW_AT(SW_FIELD_COUNT, bytes[at]), MB},                             \
        {.name = name_ ".formula_bytes", .heading = "formula", SW_AT(SW_FIELD_REAL, formula_bytes[at]), MB},           \
        {.name = name_ ".ratio", SW_AT(SW_FIELD_REAL, ratio[at]), .nullable = (nullable_)}, {                          \
        .name = name_ ".deviation_percent", .heading = "% off", SW_AT(SW_FIELD_REAL, deviation_percent[at]),           \
        .digits = 2, .nullable = (nullable_)                                                                           \
    }
#define FIGURE(name_, heading_, at) FIGURE_OF(name_, heading_, at, true)
/* A figure that not all jobs have. */
#define SOME_FIGURE(name_, heading_, at) FIGURE_OF(name_, heading_, at, false)
#define PAPER_FIELD(name_, member)                                                                                     \
    { .name = (name_), .heading = "paper", SW_AT(SW_FIELD_REAL, member), MB }
#define SHARE_FIELD(name_, heading_, member)                                                                           \
    { .name = (name_), .heading = (heading_), SW_AT(SW_FIELD_REAL, member), .scale = 100.0, .digits = 1 }
static const struct sw_bench_field fields[] = {
    {.name = "stage", SW_AT(SW_FIELD_INT, stage)},
    {.name = "name", .heading = "stage", SW_AT(SW_FIELD_TEXT, name), .key = true},
    FIGURE("weights", "weights", SW_ZERO_HELD_WEIGHTS),
    FIGURE("grads", "grads", SW_ZERO_HELD_GRADS),
    FIGURE("optimizer", "optimizer", SW_ZERO_HELD_OPTIMIZER),
    FIGURE("states", "states", SW_ZERO_HELD),
    FIGURE("acts", "acts", SW_ZERO_HELD_ACTS),
    PAPER_FIELD("acts.paper_bytes", paper_acts_bytes),
    FIGURE("sent", "sent", SW_ZERO_SENT),
    SOME_FIGURE("tensor_sent", "tensor", SW_ZERO_SENT_TENSOR),
    PAPER_FIELD("tensor_sent.paper_bytes", paper_tensor_bytes),
    SOME_FIGURE("data_sent", "data", SW_ZERO_SENT_DATA),
    SOME_FIGURE("pipeline_sent", "pipeline", SW_ZERO_SENT_STAGES),
    SHARE_FIELD("partition.added_share", "Pa adds %", added_share),
    SHARE_FIELD("partition.formula_share", "formula", formula_added_share),
    SHARE_FIELD("partition.paper_share", "paper", paper_added_share),
    {.name = "planned_sent_bytes", SW_AT(SW_FIELD_COUNT, planned_bytes)},
    SOME_FIGURE("secondary", "secondary", SW_ZERO_HELD_SECONDARY),
    SOME_FIGURE("inside", "inside", SW_ZERO_INSIDE),
    SOME_FIGURE("between", "between", SW_ZERO_BETWEEN),
    {.name = "planned_between_bytes", .heading = "planned", SW_AT(SW_FIELD_COUNT, planned_between_bytes), MB},
    {.name = "between_times", .heading = "times W", SW_AT(SW_FIELD_REAL, between_times), .digits = 2},
};

static void print_buffers(const struct sw_zero_stage *stage, sw_tier tier) {
    int64_t all = 0;
    for (int i = 0; i < stage->buffers; i++)
        all += stage->buffer[i].tier == tier ? stage->buffer[i].bytes : 0;
    printf("  %s, no state: %.2f MB\n", sw_tier_name(tier), (double)all * 1e-6);
    for (int i = 0; i < stage->buffers; i++)
        if (stage->buffer[i].tier == tier && stage->buffer[i].bytes > 0)
            printf("    %s %.2f\n", stage->buffer[i].name, (double)stage->buffer[i].bytes * 1e-6);
}

static void zero_print(const struct sw_zero_report *report) {
    const struct sw_comm_identity *identity = sw_comm_identity(report->comm);
    const int nodes = sw_comm_nodes(report->comm)->nodes;
    printf("%s, %.2f million parameters, %s, %d ranks on %d %s%s by %s,\n%s; everything on the device\n"
           "MB that a rank holds and sends a step, what formulas give, and the deviation\n"
           "acts: kept inputs of blocks\n",
           report->model, report->job.parameters * 1e-6, sw_dtype_name(report->type), identity->ranks, nodes,
           nodes == identity->nodes ? "machine" : "node", nodes == 1 ? "" : "s", sw_comm_transport_name(report->comm),
           report->device);
    if (report->job.stages > 1)
        printf("pipeline of %d stages, %.0f micro-batches, %.0f data ranks, tensor groups of %.0f:\n"
               "each figure is of the stage that has the most; tensor, data, pipeline: what is\n"
               "sent within a tensor group, to the stage's other groups, and to other stages\n",
               report->job.stages, report->job.micro_batches, report->job.data_ranks, report->job.tensor_ranks);
    else if (report->job.tensor_ranks > 1.0)
        printf("tensor groups of %.0f ranks: %.0f\n"
               "tensor, data: what is sent within a group and to other groups; Pa: each rank\n"
               "keeps only its rows of inputs; paper: its account of one kept input a block\n",
               report->job.tensor_ranks, report->job.data_ranks);
    else if (nodes > 1)
        puts("inside, between: what is sent within a node and to other nodes; times W: between\nnodes, over one gather "
             "of "
             "all weights");
    sw_table_print(SW_TABLE(fields, report->stage, report->rows));
    for (int row = 0; row < report->rows; row++) {
        printf("stage %s\n", report->stage[row].name);
        print_buffers(&report->stage[row], SW_DEVICE);
        print_buffers(&report->stage[row], SW_HOST);
    }
}

static json_t *buffers_json(const struct sw_zero_stage *stage, sw_tier tier) {
    json_t *object = json_object();
    for (int i = 0; i < stage->buffers; i++)
        if (stage->buffer[i].tier == tier)
            json_object_set_new(object, stage->buffer[i].name, json_integer(stage->buffer[i].bytes));
    return object;
}

static json_t *row_json(const struct sw_zero_report *report, int row) {
    const struct sw_zero_stage *stage = &report->stage[row];
    return sw_bench_join(sw_table_row_json(SW_TABLE(fields, report->stage, report->rows), row),
                         json_pack("{s:{s:o, s:o}}", "buffers", "device", buffers_json(stage, SW_DEVICE), "host",
                                   buffers_json(stage, SW_HOST)));
}

static sw_status zero_print_json(const struct sw_zero_report *report) {
    const struct sw_comm_identity *identity = sw_comm_identity(report->comm);
    json_t *stages = json_array(), *plus = json_array(), *partitioned = json_array();
    for (int row = 0; row < report->rows; row++) {
        json_t *more = report->stage[row].partitioned ? partitioned : plus;
        json_array_append_new(row < SW_ZERO_STAGES ? stages : more, row_json(report, row));
    }
    return sw_command_print_json(
        json_pack("{s:s, s:s, s:s, s:s, s:I, s:i, s:i, s:i, s:i, s:s, s:o, s:o, s:o}", "bench", "zero", "device",
                  report->device, "model", report->model, "precision", sw_dtype_name(report->type), "parameters",
                  (json_int_t)report->job.parameters, "ranks", identity->ranks, "tensor", (int)report->job.tensor_ranks,
                  "pipeline", report->job.stages, "nodes", sw_comm_nodes(report->comm)->nodes, "transport",
                  sw_comm_transport_name(report->comm), "stages", stages, "plus", plus, "partitioned", partitioned));
}

/* One step of one micro-batch is enough: the bytes held and sent do not depend on how much is computed. A pipeline
 * needs one for each stage, and has twice as many, so that stages keep the inputs of fewer than there are. */
enum { STEPS = 1, SEQ = 16 };
/* Tensor groups exchange the hidden state of every token. The sums of what every rank has of norms, 16 bytes a block
 * and element of the hidden state, are one part in TENSOR_SEQ of that. */
enum { TENSOR_SEQ = 128 };
/* Stages exchange hidden states too, and the square sums and losses of a step. */
enum { PIPELINE_SEQ = 128, STAGE_MICRO_BATCHES = 2 };
/* On several nodes there are so many times the blocks: of what ranks send within a node with ZeRO++, the units that are
 * gathered once are a larger part. */
enum { NODES_LAYERS_TIMES = 3 };

/* Every unit fills all but a hundredth of a multiple of 8 grains, so that up to 8 ranks have equal shards with little
 * padding. There are many blocks: stage 3 gathers embedding, head and last block once a step, all others twice. */
static const struct sw_model_config made = {
    .family = "llama",
    .vocab = 1016,
    .hidden = 128,
    .layers = 32,
    .heads = 2,
    .kv_heads = 2,
    .head_dim = 64,
    .ffn = 508,
    .norm_epsilon = 1e-5,
    .init_std = 0.02,
    .activation = SW_SILU,
    .norm = SW_NORM_RMS,
    .positions = SW_POSITIONS_ROTARY,
    .gated = true,
    .out_first = true,
    .rope = {.theta = 10000.0, .truncate = true},
};

/* Changes the made model for tensor groups of 2 or 4 ranks. On each rank, the matrices of the halves of a block fill 75
 * and 99 grains, and the norm of a half takes one grain more. On up to 4 data ranks, norms and uneven shards add at
 * most 1.4%. */
enum { GROUP_RANK_HIDDEN = 256 };
static void widen_for_groups(struct sw_model_config *config, int64_t tensor_ranks) {
    config->vocab = 448;
    config->hidden = GROUP_RANK_HIDDEN * tensor_ranks;
    config->layers = 8;
    config->heads = 16;
    config->kv_heads = 4;
    config->head_dim = 120;
    config->ffn = 2112;
}

struct zero_bench {
    const struct sw_bench_options *given;
    struct sw_ranks *ranks;
    struct sw_settings settings;
    struct sw_model_config config;
    struct sw_job job; /* has no plan: each row varies it */
    struct sw_zero_report report;
};

static bool has_groups(const struct zero_bench *b) {
    return sw_settings_tensor_ranks(&b->settings) > 1;
}

static bool is_made(const struct zero_bench *b) {
    return strcmp(b->given->settings.model, SW_BENCH_MADE_MODEL) == 0;
}

/* Returns the tokens of a sequence. */
static int64_t seq_of(const struct zero_bench *b) {
    if (has_groups(b))
        return TENSOR_SEQ;
    return sw_settings_stages(&b->settings) > 1 ? PIPELINE_SEQ : SEQ;
}

static sw_status choose_model(struct zero_bench *b) {
    b->config = made;
    if (!is_made(b))
        return sw_config_load(b->given->settings.model, &b->config);
    if (has_groups(b))
        widen_for_groups(&b->config, sw_settings_tensor_ranks(&b->settings));
    b->config.max_positions = seq_of(b);
    return SW_OK;
}

/* The paper's activations are those of a training that computes blocks again (section 6.1). */
static int recompute_of(const struct zero_bench *b) {
    const int given = b->given->settings.recompute;
    return given == SW_OPTION_RECOMPUTE_AUTO && has_groups(b) ? SW_OPTION_RECOMPUTE_ALL : given;
}

static sw_status choose_settings(struct zero_bench *b) {
    struct sw_settings *settings = &b->settings;
    SW_TRY(sw_options_defaults(&sw_bench_step_command, settings));
    free(settings->place);
    settings->place = strdup("weights=device,grads=device,optimizer=device,acts=device");
    if (settings->place == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the settings");
    settings->precision = b->given->settings.precision;
    settings->device = b->given->settings.device;
    settings->threads = b->given->settings.threads;
    settings->ranks_per_node = b->given->settings.ranks_per_node;
    settings->ring_chunks = SW_RING_CHUNKS; /* or rings take what memory has left */
    settings->tensor = b->given->settings.tensor;
    settings->pipeline = b->given->settings.pipeline;
    SW_TRY(sw_settings_set_split("auto", settings));
    SW_TRY(choose_model(b));
    settings->recompute = recompute_of(b);
    settings->seq = sw_min_i64(seq_of(b), b->config.max_positions);
    settings->micro_batch = 1;
    const int64_t stages = sw_settings_stages(settings), micro_batches = stages > 1 ? STAGE_MICRO_BATCHES * stages : 1;
    const int64_t data_ranks = sw_ranks_count(b->ranks) / sw_settings_tensor_ranks(settings) / stages;
    settings->batch_tokens = settings->seq * micro_batches * sw_max_i64(1, data_ranks);
    return SW_OK;
}

/* Returns the rows that this job can run. Those of ZeRO++ need whole layers, all on one rank, and several even nodes of
 * several ranks; partitioned activations do not work with a pipeline. */
static int rows_of(const struct zero_bench *b) {
    if (sw_settings_stages(&b->settings) > 1)
        return SW_ZERO_STAGES;
    if (has_groups(b))
        return SW_ZERO_TENSOR_ROWS;
    const struct sw_comm_nodes *nodes = sw_comm_nodes(b->ranks->comm);
    return nodes->even && nodes->nodes > 1 && nodes->ranks > 1 ? SW_ZERO_ROWS : SW_ZERO_STAGES;
}

/* Finds the rows, and the blocks that a made model has for them, once the ranks know their nodes. */
static void choose_rows(struct zero_bench *b) {
    sw_settings_take_ranks(&b->settings, b->ranks);
    b->report.rows = rows_of(b);
    if (b->report.rows == SW_ZERO_ROWS && !has_groups(b) && is_made(b))
        b->config.layers *= NODES_LAYERS_TIMES;
}

/* The communicator's counters: all that this rank has sent, and what of it went to other nodes, within its tensor group
 * and to other pipeline stages. */
struct sent {
    int64_t bytes, between_bytes, tensor_bytes, stages_bytes;
};

static struct sent sent_so_far(const struct zero_bench *b) {
    const struct sw_comm *comm = b->ranks->comm;
    return (struct sent){sw_comm_sent_bytes(comm), sw_comm_sent_between_bytes(comm), sw_comm_sent_tensor_bytes(comm),
                         sw_comm_sent_stages_bytes(comm)};
}

static struct sent sent_since(const struct zero_bench *b, struct sent before) {
    const struct sent now = sent_so_far(b);
    return (struct sent){now.bytes - before.bytes, now.between_bytes - before.between_bytes,
                         now.tensor_bytes - before.tensor_bytes, now.stages_bytes - before.stages_bytes};
}

/* Notes what the communicator has counted in so many steps. */
static void note_sent(struct sw_zero_stage *out, const struct sw_plan *plan, struct sent sent, int64_t steps) {
    const int node_ranks = plan->spec.node_ranks;
    const bool groups = sw_plan_tensor_ranks(plan) > 1, stages = sw_plan_stages(plan) > 1;
    const bool nodes = node_ranks > 0 && node_ranks < plan->spec.ranks && !is_in_parts(plan);
    const int64_t tensor_bytes = groups ? sent.tensor_bytes : 0;
    out->bytes[SW_ZERO_SENT] = sent.bytes / steps;
    out->bytes[SW_ZERO_SENT_TENSOR] = groups ? tensor_bytes / steps : -1;
    out->bytes[SW_ZERO_SENT_DATA] = is_in_parts(plan) ? (sent.bytes - tensor_bytes - sent.stages_bytes) / steps : -1;
    out->bytes[SW_ZERO_SENT_STAGES] = stages ? sent.stages_bytes / steps : -1;
    out->bytes[SW_ZERO_BETWEEN] = nodes ? sent.between_bytes / steps : -1;
    out->bytes[SW_ZERO_INSIDE] = nodes ? (sent.bytes - sent.between_bytes) / steps : -1;
    out->planned_between_bytes = nodes ? sw_plan_sent_bytes(plan).between_bytes : -1;
}

/* Gives every weight the same value: bytes do not depend on it, and to draw random ones takes as long as the step. */
static sw_status fill_alike(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    (void)context, (void)unit, (void)first;
    for (int64_t i = 0; i < count; i++)
        out[i] = 0.01f;
    return SW_OK;
}

/* Counts the bytes that are sent in whole steps: from a moment when nothing is on its way until the last step's update
 * has ended. */
static sw_status train(struct zero_bench *b, const struct sw_job *row, struct sw_zero_stage *out) {
    const struct sw_load alike = {.fill = fill_alike};
    const struct sw_contender_spec spec = {.job = row, .speculation = SW_SPECULATE_NEVER, .load = &alike};
    double seconds[STEPS];
    struct sw_step_times times = {.seconds = seconds};
    struct sw_contender contender;
    sw_status status;
    SW_TRY(sw_contender_open(&spec, &contender));
    const struct sent before = sent_so_far(b);
    SW_TRY_GOTO(sw_contender_run(&contender, STEPS, &times), end);
    SW_TRY_GOTO(sw_engine_settle(contender.engine), end);
    note_sent(out, row->plan, sent_since(b, before), contender.step);
    out->planned_bytes = times.last.lane_bytes[SW_LANE_COMM];
end:
    sw_contender_close(&contender);
    return status;
}

/* Takes the figures of the rank that holds and sends the most, and compares them with the formulas. */
static sw_status take_most(struct zero_bench *b, struct sw_zero_stage *stage) {
    if (sw_ranks_comm(b->ranks) != NULL) {
        SW_TRY(sw_comm_max(b->ranks->comm, "figures", stage->bytes, SW_ZERO_FIGURES));
        SW_TRY(sw_comm_max(b->ranks->comm, "figures", &stage->planned_bytes, 1));
        SW_TRY(sw_comm_max(b->ranks->comm, "figures", &stage->planned_between_bytes, 1));
    }
    const struct sw_comm_nodes *nodes = sw_comm_nodes(b->ranks->comm);
    const double weights = b->report.stage[SW_ZERO_NONE].formula_bytes[SW_ZERO_HELD_WEIGHTS];
    stage->between_times = stage->bytes[SW_ZERO_BETWEEN] < 0
                               ? NAN
                               : (double)stage->bytes[SW_ZERO_BETWEEN] / (weights * (1.0 - 1.0 / nodes->nodes));
    zero_compare(stage, &b->report.stage[stage->stage]);
    return SW_OK;
}

/* The settings of a row of the report. */
struct row {
    const char *name;
    int zero, gather, reduce, partition;
    const char *secondary; /* --zero-secondary */
};

static const struct row rows[SW_ZERO_ROWS] = {
    {.name = "0", .zero = SW_ZERO_NONE, .secondary = SW_NO_SECONDARY},
    {.name = "1", .zero = SW_ZERO_OPTIMIZER, .secondary = SW_NO_SECONDARY},
    {.name = "2", .zero = SW_ZERO_GRADS, .secondary = SW_NO_SECONDARY},
    {.name = "3", .zero = SW_ZERO_WEIGHTS, .secondary = SW_NO_SECONDARY},
    [SW_ZERO_HPZ] = {.name = "3 hpZ", .zero = SW_ZERO_WEIGHTS, .secondary = "node"},
    [SW_ZERO_QWZ] = {.name = "3 qwZ", .zero = SW_ZERO_WEIGHTS, .gather = SW_GATHER_INT8, .secondary = SW_NO_SECONDARY},
    [SW_ZERO_QGZ] = {.name = "3 qgZ", .zero = SW_ZERO_WEIGHTS, .reduce = SW_REDUCE_INT4, .secondary = SW_NO_SECONDARY},
    [SW_ZERO_PLUS] = {.name = "3 all",
                      .zero = SW_ZERO_WEIGHTS,
                      .gather = SW_GATHER_INT8,
                      .reduce = SW_REDUCE_INT4,
                      .secondary = "node"},
};

/* The rows of a job with tensor groups. */
#define GROUP_ROW(name_, zero_, partition_)                                                                            \
    { .name = (name_), .zero = (zero_), .partition = (partition_), .secondary = SW_NO_SECONDARY }
static const struct row group_rows[SW_ZERO_TENSOR_ROWS] = {
    GROUP_ROW("0", SW_ZERO_NONE, SW_PARTITION_NO),      GROUP_ROW("1", SW_ZERO_OPTIMIZER, SW_PARTITION_NO),
    GROUP_ROW("2", SW_ZERO_GRADS, SW_PARTITION_NO),     GROUP_ROW("3", SW_ZERO_WEIGHTS, SW_PARTITION_NO),
    GROUP_ROW("0 Pa", SW_ZERO_NONE, SW_PARTITION_YES),  GROUP_ROW("1 Pa", SW_ZERO_OPTIMIZER, SW_PARTITION_YES),
    GROUP_ROW("2 Pa", SW_ZERO_GRADS, SW_PARTITION_YES), GROUP_ROW("3 Pa", SW_ZERO_WEIGHTS, SW_PARTITION_YES),
};

static struct sw_job_change change_to(const struct zero_bench *b, const struct row *row) {
    struct sw_job_change change = sw_job_same(&b->job);
    change.settings.zero = row->zero;
    change.settings.gather = row->gather;
    change.settings.reduce = row->reduce;
    change.settings.partition = row->partition;
    change.settings.zero_secondary = (char *)row->secondary;
    return change;
}

static sw_status plan_row(struct zero_bench *b, const struct row *row, struct sw_job *out) {
    const struct sw_job_change change = change_to(b, row);
    SW_TRY(sw_job_with(&b->job, &change, out));
    return sw_settings_complete_plan(out->plan);
}

static sw_status measure_row(struct zero_bench *b, int number) {
    sw_ranks_relax_timeout(b->ranks, false);
    const struct row *row = has_groups(b) ? &group_rows[number] : &rows[number];
    struct sw_zero_stage *stage = &b->report.stage[number];
    struct sw_job job;
    stage->stage = row->zero;
    stage->name = row->name;
    stage->partitioned = b->report.rows == SW_ZERO_TENSOR_ROWS && row->partition == SW_PARTITION_YES;
    sw_status status = sw_ranks_agree_on_error(b->ranks, plan_row(b, row, &job));
    if (status == SW_OK) {
        zero_count_held(job.plan, stage);
        zero_find_formulas(&b->report.job, job.plan, stage);
        status = train(b, &job, stage);
    }
    sw_job_release(&job);
    SW_TRY(status);
    return take_most(b, stage);
}

/* Describes stage s of the job's pipeline, or the whole job. */
static struct sw_zero_part part_of(const struct zero_bench *b, int s) {
    const struct sw_settings *settings = &b->settings;
    const struct sw_units *units = sw_model_get_units(b->job.model);
    const struct sw_plan_pipeline pipeline = sw_settings_pipeline(settings, units->count);
    const int64_t stages = sw_settings_stages(settings), micro_batches = sw_settings_micro_batches(settings);
    const bool first = s == 0, last = s + 1 == stages, copies = units->tied && stages > 1;
    const int64_t table = copies ? sw_settings_parameters_of(settings, units, 0, 1) : 0;
    const int64_t parameters =
        stages == 1 ? sw_settings_parameters(settings, units)
                    : sw_settings_parameters_of(settings, units, pipeline.bound[s], pipeline.bound[s + 1]);
    return (struct sw_zero_part){.parameters = (double)(parameters + (last ? table : 0)),
                                 .layers =
                                     (double)(stages == 1 ? b->config.layers : sw_settings_layers_of(settings, s)),
                                 .ends = (double)first + (double)last,
                                 .borders = (double)!first + (double)!last,
                                 .in_flight = (double)sw_min_i64(micro_batches, stages - s),
                                 .table = first || last ? (double)table : 0.0};
}

static struct sw_zero_job job_of(const struct zero_bench *b) {
    const struct sw_settings *settings = &b->settings;
    struct sw_zero_job job = {.parameters = (double)sw_settings_parameters(settings, sw_model_get_units(b->job.model)),
                              .hidden = (double)b->config.hidden,
                              .tokens = (double)(settings->micro_batch * settings->seq),
                              .micro_batches = (double)sw_settings_micro_batches(settings),
                              .type_bytes = (double)sw_dtype_bytes(sw_settings_type(settings)),
                              .tensor_ranks = (double)sw_settings_tensor_ranks(settings),
                              .data_ranks = (double)sw_settings_data_ranks(settings),
                              .stages = (int)sw_settings_stages(settings),
                              .recomputes = settings->recompute == SW_OPTION_RECOMPUTE_ALL};
    for (int s = 0; s < job.stages; s++)
        job.part[s] = part_of(b, s);
    return job;
}

static sw_status run(struct zero_bench *b) {
    SW_TRY(sw_ranks_agree_on_error(b->ranks, choose_settings(b)));
    choose_rows(b);
    SW_TRY(sw_job_open(
        &(struct sw_job_spec){
            .settings = &b->settings, .ranks = b->ranks, .config = &b->config, .folder = ".", .unplanned = true},
        &b->job));
    b->report.job = job_of(b);
    for (int number = 0; number < b->report.rows; number++)
        SW_TRY(measure_row(b, number));
    b->report.comm = b->ranks->comm;
    b->report.device = sw_devices_info(&b->job.devices).name;
    b->report.model = b->given->settings.model;
    b->report.type = sw_settings_type(&b->settings);
    if (sw_ranks_rank(b->ranks) > 0)
        return SW_OK;
    if (b->given->settings.json)
        return zero_print_json(&b->report);
    zero_print(&b->report);
    return SW_OK;
}

static void close_bench(struct zero_bench *b) {
    sw_job_release(&b->job);
    sw_options_release(&sw_bench_step_command, &b->settings);
}

int sw_bench_zero(int argc, char **argv) {
    const struct sw_command_line *line = &sw_bench_zero_line;
    struct sw_bench_options given = {0};
    struct sw_ranks ranks;
    struct zero_bench bench = {.given = &given, .ranks = &ranks};
    int code;
    if (sw_command_begin(&ranks, line->command, &code)) {
        if (sw_command_parse_ranks(&ranks, line, argc, argv, &given, &code)) {
            const sw_status status = run(&bench);
            code = status == SW_OK ? SW_EXIT_DONE : sw_command_fail_ranks(&ranks, status);
        }
        close_bench(&bench);
        sw_command_end(&ranks, code);
    }
    sw_options_release(line, &given);
    return code;
}
