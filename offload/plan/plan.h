/* The plan: one training step as a static list of ops on lanes, with their waits and slots. It is made before the first
 * step, checked, printed, and then obeyed by the executor. It is cyclic: waits may refer to the step before.
 *
 * Memory is a set of slots, each a run of equal pieces at a fixed place of a tier. Ops declare which pieces they read
 * and write, and which content they expect and leave there; waits are derived from that (hazard.c), and proven by a
 * different algorithm (check.c). */
#ifndef SW_OFFLOAD_PLAN_PLAN_H
#define SW_OFFLOAD_PLAN_PLAN_H

#include "core/dtype.h"
#include "core/quant.h"
#include "core/size.h"
#include "core/status.h"
#include "offload/plan/ops.h"
#include "offload/plan/placement.h"
#include "offload/plan/shard.h"
#include "offload/plan/unit.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* The ranks that exchange quantized gradients: all at once, or first those of a node and then, with their sums, those
 * of one number within their nodes. */
typedef enum __attribute__((packed)) { SW_LEVEL_ALL, SW_LEVEL_NODE, SW_LEVEL_ACROSS } sw_level;

struct sw_slot {
    const char *name; /* a literal: "weights", "optimizer ring" */
    sw_tier tier;
    int32_t unit;       /* whose resident or kept input it is, or -1 */
    bool resident;      /* holds its content from step to step, from before the first one */
    sw_content content; /* content of a resident; else meaningless */
    int64_t offset;     /* bytes from the start of the tier's arena; on NVMe meaningless */
    /* Where the slot holds a unit's state, grain after grain: its first grain, and the bytes of each. The pieces are
     * the chunks from that grain on, and an op that names grains means these. grain_bytes is 0 where pieces stand
     * alone. */
    int64_t first_grain, grain_bytes;
    /* Bytes between `offset` and the slot's first record, which are not the slot's memory: above 0 if the first records
     * are smaller than grain_bytes (struct sw_records). All else counts as if records had one size. */
    int64_t lead_bytes;
    int64_t piece_bytes; /* every piece begins a multiple of this after offset */
    int64_t bytes;       /* the last piece may be shorter */
    int32_t pieces;
    int32_t first_piece; /* number of its first piece among all pieces of the plan */
    int32_t first_index; /* index of the content of its first piece, where it holds grain after grain */
};

/* Returns the memory that a slot takes. */
static inline int64_t sw_slot_bytes(const struct sw_slot *slot) {
    return slot->bytes - slot->lead_bytes;
}

/* Which of two generations, in neighbouring slots, an access means: the one that this step commits, or the other, which
 * the step reads before its commit and writes speculatively after. */
typedef enum __attribute__((packed)) { SW_GENERATION_NONE, SW_GENERATION_COMMITTED, SW_GENERATION_OTHER } sw_generation;

/* One row for the proof and for the engine.
 *
 * The proof reads it as an access: pieces [first, first+count) of a slot hold, or receive, content of (unit, index
 * first_index + i), as of `age` steps ago. The engine reads it as an operand: bytes [offset_bytes, offset_bytes+bytes)
 * of the slot, which lie within these pieces, are what the op uses as `role`. */
struct sw_access {
    int32_t slot, first, count;
    int32_t unit;
    int32_t first_index;
    int32_t version;
    int64_t offset_bytes : 48; /* from the start of the slot */
    sw_content content;
    sw_role role;
    int64_t bytes : 48;
    int8_t age; /* 0: made in this step, 1: in the step before */
    bool write : 1;
    sw_generation generation : 2;
};
static_assert(sizeof(struct sw_access) == 40, "a plan has millions of them");

/* The slot of an access in a step: generations swap roles from step to step. */
static inline int32_t sw_access_slot(const struct sw_access *access, int64_t step) {
    if (access->generation == SW_GENERATION_NONE)
        return access->slot;
    return access->slot + (int32_t)((step + (access->generation == SW_GENERATION_OTHER)) & 1);
}

/* Done when op `position` of `lane` in the step `steps_back` before this one is done. */
struct sw_wait {
    int32_t position : 24;
    sw_lane lane : 4;
    int8_t steps_back : 4;
};
static_assert(sizeof(struct sw_wait) == 4, "a plan has millions of them");

struct sw_op {
    sw_op_kind kind;
    sw_lane lane;
    sw_content content;          /* content that a transfer moves */
    bool redo : 1;               /* runs only if the speculation of the step before was wrong */
    bool speculates : 1;         /* an update that assumes that nothing is clipped or skipped */
    bool wide : 1;               /* a sum of the ranks' gradients in fp32 */
    bool bucket : 1;             /* works on chunk number `chunk` of every rank's shard, one after the other */
    sw_level level : 2;          /* ranks that exchange, for an op on quantized gradients */
    bool secondary : 1;          /* a gather of secondary shards, among the ranks of a part of a node */
    bool frozen : 1;             /* a gather of the frozen weights of a unit that is trained */
    bool routed : 1;             /* runs only if the routing gives its unit rows (struct sw_unit_cost) */
    bool sends : 1;              /* a gather of what the members of an expert group send each other */
    int8_t wait_count;           /* number of waits from first_wait on; at most one for each lane */
    int32_t unit;                /* or -1 */
    int32_t micro;               /* or -1 */
    int32_t chunk;               /* or -1 */
    int32_t position;            /* in its lane */
    int64_t first_grain, grains; /* grains of a chunk op */
    int64_t bytes;               /* moved over the lane's resource */
    float flops;                 /* floating-point operations of a compute op */
    int32_t first_access, access_count;
    int32_t first_wait;
};

/* A plan with more ops in all its programs, or with more bytes of ops and accesses, is refused, so that the plan and
 * its proof stay within 1 GiB. Most ops move chunks and take about 200 bytes; those that compute have more accesses. */
enum { SW_PLAN_MOST_OPS = 4500000, SW_PLAN_MOST_BYTES = 768 << 20 };
static_assert((int)SW_PLAN_MOST_OPS < 1 << 23, "a wait's position has 24 bits");

/* A list of ops over the plan's slots. */
struct sw_program {
    struct sw_op *op;
    int32_t op_count;
    struct sw_access *access;
    int32_t access_count;
    struct sw_wait *wait;
    int32_t wait_count;
    int32_t *lane_op[SW_LANES]; /* op numbers by lane, in order */
    int32_t lane_count[SW_LANES];
};

/* A training step's gradients become weights under the forward pass of the step after it, unit by unit. Where the whole
 * optimizer is on NVMe, in two generations, the update may instead start during the backward pass, speculating that
 * nothing is clipped or skipped; the step after it then redoes it from the old generation if that was wrong. So a
 * step's program depends on what it finds waiting (nothing, an update, a redo) and on whether it speculates. */
typedef enum {
    SW_PROGRAM_START,
    SW_PROGRAM_UPDATE,
    SW_PROGRAM_UPDATE_SAVE, /* commits what it updates, where not every step does */
    SW_PROGRAM_REDO,
    SW_PROGRAM_START_SPECULATE,
    SW_PROGRAM_UPDATE_SPECULATE,
    SW_PROGRAM_REDO_SPECULATE,
    SW_PROGRAM_FLUSH_UPDATE, /* the waiting update or redo, without a training step */
    SW_PROGRAM_FLUSH_REDO,
    SW_PROGRAM_LOSS,
    SW_PROGRAM_LOGITS,
    SW_PROGRAMS
} sw_program_kind;

/* The update that the step before left, as a program finds it. */
typedef enum { SW_WAITING_NOTHING, SW_WAITING_UPDATE, SW_WAITING_REDO } sw_waiting;

/* Which intermediates of a unit the backward pass computes again, as the forward pass does not keep them. */
typedef enum {
    SW_RECOMPUTE_NOTHING,
    SW_RECOMPUTE_DERIVED, /* intermediates that follow from the saved ones and the input without a matrix product */
    SW_RECOMPUTE_UNIT,    /* all, from the input */
    SW_RECOMPUTES
} sw_recompute;
const char *sw_recompute_name(sw_recompute level);

/* Tells whether a program can follow itself, step after step. */
bool sw_program_repeats(sw_program_kind kind);

/* A device's rings only hide the end of a copy from the start of the next. The host's carry what the drive is ahead of
 * the arithmetic, or behind it. */
enum { SW_DEVICE_RING_CHUNKS = 8, SW_RING_CHUNKS = 8, SW_RING_CHUNKS_USEFUL = 64, SW_RING_CHUNKS_MOST = 256 };

/* ZeRO stages (Rajbhandari et al. 2020, table 1 and section 5): each stage shards one state more among the ranks. */
enum { SW_ZERO_NONE, SW_ZERO_OPTIMIZER, SW_ZERO_GRADS, SW_ZERO_WEIGHTS };

/* The tensor group of a rank (Shoeybi et al., arXiv 1909.08053): ranks that compute the same micro-batches, each with
 * its part of every unit's matrices. A unit's sum is reduced to the rows of each rank and gathered again, so that
 * every rank has all of it (the order of sums is that of the ranks). Norms and the biases behind a sum are on
 * every rank. */
struct sw_plan_tensor {
    int ranks, rank;       /* 0 or 1 ranks: there is no group */
    int node_ranks;        /* the fewest ranks that the group has on a node; 0: all of it is on one node */
    int64_t rows;          /* rows of a micro-batch, which the ranks share out (sw_shard); at least as many as ranks */
    int64_t softmax_bytes; /* per-row max, sum and target logit that a rank sends for a micro-batch */
    int64_t product_bytes; /* gradient at the result of a block's first product, for a micro-batch; 0: backward passes
                              are not split, as those of halves in tiles, or the plan does not train */
    /* Each rank keeps its rows of the inputs that are kept for the backward pass, on whatever tier, and the group
     * gathers those of units that are computed again: ZeRO-R's Pa, and Pa+cpu where they are not on the device
     * (Rajbhandari et al. 2020, section 6.1). */
    bool partition_inputs;
    /* Sequence parallelism (Korthikanti et al., arXiv 2205.05198): a rank has but its rows of what units add up to, and
     * keeps them for the backward pass. It normalises these rows, and the group gathers the normalised input of every
     * unit, in both passes. */
    bool sequence;
};

/* The expert group of a rank (Lepikhin et al., arXiv 2006.16668): ranks that share out the experts of each block, each
 * with micro-batches of its own. The experts are units of their own, behind those of their blocks, and the ranks of
 * different groups that have the same ones share their state; all ranks of the job share that of the other units. The
 * rows that go to experts are gathered, and what the ranks' experts make of them is reduced to each rank's rows.
 *
 * Together with tensor groups, these share out the experts: an expert group is `ranks` neighbouring tensor groups, and
 * each rank has its part of its tensor group's experts. The units of experts then have the norm before the experts, and
 * are computed by themselves. Ranks with the same number in their tensor groups share the state of the other units. */
struct sw_plan_experts {
    int ranks, rank; /* members of the group: ranks, or tensor groups; 0 or 1: there is no group */
    int node_ranks;  /* the fewest ranks that the group has on a node; 0: all of it is on one node */
    int64_t rows;    /* rows of each member's micro-batch */
};

/* The pipeline of a job (Huang et al., arXiv 1811.06965): its ranks are stages of as many ranks each, and each stage
 * computes a run of units. A stage gives its last output to the next, and gets the gradient there back. Ranks with the
 * same number in their stages have the same micro-batches. Groups of micro-batches go through the stages as in
 * PipeDream-flush (Narayanan et al., arXiv 2006.09503): a stage begins with one group for each stage behind it, and
 * then takes a forward and a backward pass in turn, so that it keeps the inputs of no more groups than stages are from
 * it to the last one. Each stage trains some of its weights.
 *
 * Interleaved (Narayanan et al., arXiv 2104.04473), a stage has several runs of units, its turns: the model is cut into
 * stages · turns virtual stages, and number k of these is turn k / stages of stage k % stages, so that the last stage
 * gives its outputs to the first, for the next turn. There are at least as many groups as stages (stages.c).
 *
 * If the table is tied, the last stage has the embedding's state too, and the first and the last stage add up their
 * accumulators of it, so that both make the same update. */
enum { SW_MOST_STAGES = 64, SW_MOST_VIRTUAL_STAGES = 192 };
struct sw_plan_pipeline {
    int stages, stage; /* 0 or 1 stages: each rank computes all units */
    int turns;         /* runs of units that each stage has; 0 or 1: one */
    /* Virtual stage k computes units [bound[k], bound[k + 1]); of no meaning without stages. */
    int32_t bound[SW_MOST_VIRTUAL_STAGES + 1];
};

/* By how much the budgets are too small for the placement that comes nearest to them. */
struct sw_plan_lack {
    int short_budgets;     /* budgets that are too small: 1 or 2 */
    int64_t missing_bytes; /* bytes that both budgets lack together */
};

/* The costs of a unit: bytes and floating-point operations of one micro-batch. */
struct sw_unit_cost {
    int64_t output_bytes;   /* the unit's output; 0 for the head */
    int64_t saved_bytes;    /* intermediates that a block's forward pass saves; 0 for embedding and head */
    int64_t derived_bytes;  /* intermediates that follow from the saved ones and the block's input */
    int64_t unnormed_bytes; /* derived_bytes without the norm, which sequence parallelism keeps elsewhere */
    int64_t routing_bytes;  /* bytes by which inference tells the host which `routed` units have rows; 0: none */
    int64_t cache_bytes;    /* KV cache, on the device, whatever the micro-batch; 0: the unit keeps none */
    double forward_flops;   /* 0: there are none, or they are not known */
    double last_product_flops, first_product_flops; /* forward_flops of a block's products, in tensor groups */
    double frozen_flops; /* forward_flops of products by frozen tensors, which have no gradient */
    bool shares_input;   /* the backward pass reads the same input as that of the unit before, so its own is not kept */
    bool continues;      /* the answer of sw_plan_continues */
    bool routed;         /* without rows the forward pass reads no weights, so inference need not fetch them */
    bool adapted;        /* the gradients of a block's weights are computed from some of its weights: adapters' */
};

/* Everything that a plan depends on. Bytes are per rank. The plans of a job's ranks differ in nothing but
 * `rank`, `tensor.rank`, `experts.rank` and `pipeline.stage`. A plan copies all arrays, so that the caller may free or
 * change them afterwards; only `units` must outlive the plan. */
struct sw_plan_spec {
    struct sw_plan_lack *lack;    /* receives by how much SW_ERR_BUDGET was missed; NULL: nobody asks */
    const struct sw_units *units; /* borrowed: must outlive the plan */
    /* The ranks that share state, without groups those of the training job, and with expert groups those that have the
     * same experts; and this one's number among them. ranks 0: this rank is alone. */
    int ranks, rank;
    /* A job with groups has ranks · experts.ranks · tensor.ranks ranks, those of a tensor group neighbours, and these
     * groups neighbours in an expert group. They exchange neither weights nor gradients quantized. */
    struct sw_plan_tensor tensor;
    struct sw_plan_experts experts;
    /* Stages each have ranks · tensor.ranks ranks, which follow each other, and no expert groups. They exchange neither
     * weights nor gradients quantized, and keep whole inputs. */
    struct sw_plan_pipeline pipeline;
    int zero; /* ZeRO stage, SW_ZERO_*; without training SW_ZERO_NONE */
    /* How ranks exchange weights and gradients (core/quant.h); SW_QUANT_NONE: in the compute type. Weights are only
     * quantized in stage 3, gradients from stage 1 on. A rank alone quantizes nothing. */
    sw_quant gather, reduce;
    sw_grads_format grads; /* the form of rounded gradients; SW_GRADS_8BIT is for a rank alone */
    /* Nodes, of neighbouring ranks, over which quantized gradients are reduced in two levels; 0 or 1: in one level. */
    int reduce_nodes;
    /* The secondary shard of weights (ZeRO++'s hpZ, Wang et al., arXiv 2306.10209, section 4.2): once a step has
     * gathered a unit, each rank of a part of a node keeps its share of it, and later gathers of the step are among
     * these ranks. secondary_ranks: the ranks of a part, 0 or 1 for none; secondary_rank: this one's number there. */
    int secondary_ranks, secondary_rank;
    int node_ranks;   /* ranks of each node, by which bytes between nodes are counted; 0: all are on one */
    bool fills_nodes; /* in order, groups and nodes holding each other wholly: sw_comm_all_gather has two levels */
    sw_dtype type;    /* compute precision */
    bool train;       /* false: weights only, programs loss and logits */
    /* The caller has the weights and the gradients: the plan keeps neither and has no passes. Its training steps are
     * SW_PROGRAM_START, which takes the gradients for their norm, and SW_PROGRAM_FLUSH_UPDATE, which takes them chunk
     * by chunk, updates on the host, and gives the new weights back. Units may be fewer than 3. Of several ranks, in
     * stage SW_ZERO_WEIGHTS, each takes and gives its shard, and the caller exchanges gradients and weights. */
    bool update_only;
    bool scratch_store; /* without training: weights may live on NVMe, in a store that holds nothing else */
    int64_t micro_batches;
    int64_t group;          /* micro-batches that go through a unit before the next unit; all of them: by layer */
    int64_t token_bytes;    /* inputs, targets and masks of one micro-batch */
    int64_t pair_sequences; /* sequences of a micro-batch of pairs, each with a loss of its own; 0: they are no pairs */
    int64_t tally; /* doubles that the head hands to the host, sums over a step's micro-batches (sw_engine_tally) */
    const struct sw_unit_cost *cost; /* one entry per unit */
    int64_t work_bytes;              /* scratch of the compute lane */
    /* Scratch of Muon's updates on a GPU. They run there wherever the state lives, so that all placements have the same
     * bits, and records pass through as update_on_device says. 0: the device is a CPU, and they run where others do. */
    int64_t muon_gpu_bytes;
    /* Bytes of the embedding's rows that one micro-batch's tokens name, gathered on the host; 0: the model cannot
     * gather them. Where the embedding is not tied, lives elsewhere than on the device, and the rows of all
     * micro-batches are less than the whole, only the rows go to the device. */
    int64_t gathered_bytes;
    bool recompute_auto;    /* keep the intermediates of as many blocks as fit */
    sw_recompute recompute; /* the level of all blocks where recompute_auto is false */
    /* update_on_device[u]: run unit u's update on the device although its optimizer state lives on host or NVMe; state
     * and gradients pass through in chunks. NULL: no such unit. */
    const bool *update_on_device;
    bool one_generation;   /* the store keeps one generation of the optimizer, and only a clean end commits */
    bool commits_by_saves; /* steps commit only by saves, even with the whole optimizer on NVMe */
    int64_t chunk_grains;  /* a plan raises them to sw_plan_most_muon_grains, and rings have fewer */
    int64_t ring_chunks;   /* pieces of each staging ring; device rings have SW_DEVICE_RING_CHUNKS at most */
    bool ring_auto;        /* rings on the host, and those that updates pass through on the device, grow towards
                            * SW_RING_CHUNKS_MOST where the budget has room */
    int64_t unit_slots;    /* device slots for the weights of units that live elsewhere, at least 2 */
    int64_t budget_bytes[SW_TIERS]; /* device and host; nvme is not limited here */
    struct sw_placement_request place;
    const struct sw_rise_order *rises; /* the order of rises where `place` is open; NULL: the usual. Not kept */
    /* Peaks of the layouts that outlines tried. Outlines whose specifications differ only in chunk_grains,
     * the rank's numbers, update_on_device and rises may share them and are made faster. NULL: shared with none. Not
     * kept */
    struct sw_layout_peaks *peaks;
};

struct sw_plan {
    struct sw_plan_spec spec;
    sw_recompute *recompute; /* level of each unit; SW_RECOMPUTE_NOTHING for embedding and head */
    void *spec_arrays;       /* the arrays that `spec` points to; its update_on_device is never NULL */
    int64_t stream_chunks;   /* pieces of the device's rings that updates pass through */
    sw_tier secondary_tier;  /* where secondary shards are kept: the device, or else the host */
    sw_tier trained_tier;    /* home of trained weights whose units keep their frozen weights on NVMe */
    bool commit_every_step;  /* the whole optimizer is on NVMe, in two generations, unless spec.commits_by_saves */
    int64_t first_trained;   /* the first unit that training changes; 0 without training */
    struct sw_unit_placement *placement; /* one entry per unit */
    struct sw_slot *slot;
    int32_t slot_count;
    int32_t piece_count;
    int64_t tier_bytes[SW_TIERS]; /* exact peaks */
    struct sw_program program[SW_PROGRAMS];
    struct sw_plan_index *index;        /* private: slot numbers by role */
    struct sw_stage_schedule *schedule; /* private: the order of a stage's passes; NULL: there are no stages */
};

/* Makes a plan: chooses the placement within the budgets and writes the programs. The caller destroys the plan.
 * SW_ERR_BUDGET: nothing fits; the message names the least budget that works. */
sw_status sw_plan_create(const struct sw_plan_spec *spec, struct sw_plan **out);

/* The two halves of sw_plan_create. An outline is a plan without programs, some kilobytes per unit: placement, slots
 * and peaks, of which several can be compared. sw_plan_complete makes its programs; SW_ERR_ARG where they have more
 * than SW_PLAN_MOST_OPS or SW_PLAN_MOST_BYTES, SW_OK at once where it has them. */
sw_status sw_plan_outline(const struct sw_plan_spec *spec, struct sw_plan **out);
sw_status sw_plan_complete(struct sw_plan *plan);
void sw_plan_destroy(struct sw_plan *plan);

/* Makes room for peaks that outlines share. */
sw_status sw_layout_peaks_create(struct sw_layout_peaks **out);
void sw_layout_peaks_destroy(struct sw_layout_peaks *peaks);

/* Proves a plan: every read finds the content that it expects and every conflicting pair of accesses is ordered, over
 * three unrolled steps; no deadlock; slots do not overlap; peaks within budgets. SW_ERR_INTERNAL names the first
 * violation. */
sw_status sw_plan_check(const struct sw_plan *plan);

/* Prints a readable table of tiers, placement and lanes. */
void sw_plan_print(const struct sw_plan *plan, FILE *out);

/* The functions below ask about a plan and change nothing (predicates.c). */

/* Returns the group of an op in a timeline. */
sw_work sw_op_work(const struct sw_op *op);
/* Returns the number of ranks that share state, at least 1. */
static inline int sw_plan_ranks(const struct sw_plan *plan) {
    return plan->spec.ranks > 1 ? plan->spec.ranks : 1;
}
/* Returns the number of pipeline stages, at least 1; the turns of each; and the units [first, end) that this rank's
 * stage computes in a turn. */
static inline int sw_plan_stages(const struct sw_plan *plan) {
    return plan->spec.pipeline.stages > 1 ? plan->spec.pipeline.stages : 1;
}
static inline int sw_plan_turns(const struct sw_plan *plan) {
    return sw_plan_stages(plan) > 1 && plan->spec.pipeline.turns > 1 ? plan->spec.pipeline.turns : 1;
}
static inline int64_t sw_plan_first_unit(const struct sw_plan *plan, int turn) {
    const struct sw_plan_pipeline *pipeline = &plan->spec.pipeline;
    return sw_plan_stages(plan) > 1 ? pipeline->bound[turn * pipeline->stages + pipeline->stage] : 0;
}
static inline int64_t sw_plan_end_unit(const struct sw_plan *plan, int turn) {
    const struct sw_plan_pipeline *pipeline = &plan->spec.pipeline;
    return sw_plan_stages(plan) > 1 ? pipeline->bound[turn * pipeline->stages + pipeline->stage + 1]
                                    : plan->spec.units->count;
}
/* Returns the turn in which this rank's stage computes a unit, or -1 where another stage does. */
static inline int sw_plan_turn_of(const struct sw_plan *plan, int64_t unit) {
    for (int turn = 0; turn < sw_plan_turns(plan); turn++)
        if (unit >= sw_plan_first_unit(plan, turn) && unit < sw_plan_end_unit(plan, turn))
            return turn;
    return -1;
}
static inline bool sw_plan_computes(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_stages(plan) == 1 || sw_plan_turn_of(plan, unit) >= 0;
}
/* Tells whether this rank's stage has the state of a unit: of those that it computes and, in the last stage, of a tied
 * embedding. */
static inline bool sw_plan_holds(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_computes(plan, unit) ||
           (unit == 0 && plan->spec.units->tied && plan->spec.pipeline.stage + 1 == plan->spec.pipeline.stages);
}
/* Returns the trained span of a unit of any stage; no grains where the unit is frozen. */
static inline struct sw_span sw_plan_trained_anywhere(const struct sw_plan *plan, int64_t unit) {
    const struct sw_unit *u = &plan->spec.units->unit[unit];
    return u->trained_grain < u->grains
               ? (struct sw_span){.first_grain = u->trained_grain, .grains = u->grains - u->trained_grain}
               : (struct sw_span){0};
}
/* Tells whether training changes weights of a unit here: this rank's stage has it, and not all of it is frozen. */
static inline bool sw_plan_trains(const struct sw_plan *plan, int64_t unit) {
    const struct sw_unit *u = &plan->spec.units->unit[unit];
    return u->trained_grain < u->grains && sw_plan_holds(plan, unit);
}
/* Returns the grains of a unit that training changes here: its trained span, or no grains of a frozen unit or of one
 * that this rank's stage does not have. */
static inline struct sw_span sw_plan_trained(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_holds(plan, unit) ? sw_plan_trained_anywhere(plan, unit) : (struct sw_span){0};
}
/* Tells whether the backward pass goes through a unit: training changes the unit or one before it. */
static inline bool sw_plan_passes_back(const struct sw_plan *plan, int64_t unit) {
    return unit >= plan->first_trained;
}
/* Returns the grains of a unit that are not in its base: those of its weights. No grains where this rank's stage does
 * not have the unit. */
static inline struct sw_span sw_plan_typed(const struct sw_plan *plan, int64_t unit) {
    const struct sw_unit *u = &plan->spec.units->unit[unit];
    if (!sw_plan_holds(plan, unit))
        return (struct sw_span){0};
    return (struct sw_span){.first_grain = u->base_grains, .grains = u->grains - u->base_grains};
}
/* Returns the number of chunks in front of a unit's weights that are frozen although the unit is trained. */
int64_t sw_plan_frozen_chunks(const struct sw_plan *plan, int64_t unit);
/* Tells whether a chunk of a unit's weights is frozen, by the index of its content. */
bool sw_plan_chunk_is_frozen(const struct sw_plan *plan, int64_t unit, int64_t index);
/* Returns the grain of a unit that the start of a slot stands for, as the slot holds this content of the unit. Weights
 * of a unit with both spans begin some grains behind the start, so that no piece holds grains of both. */
int64_t sw_plan_slot_grain(const struct sw_plan *plan, int32_t slot, sw_content content, int64_t unit);
/* Returns the micro-batches of the largest group, and the number of groups. */
static inline int64_t sw_plan_group(const struct sw_plan *plan) {
    return sw_min_i64(plan->spec.group, plan->spec.micro_batches);
}
static inline int64_t sw_plan_groups(const struct sw_plan *plan) {
    return sw_div_up(plan->spec.micro_batches, sw_plan_group(plan));
}
/* Returns the number of ranks that share a unit's state, at least 1, and this one's number among them: those of
 * sw_plan_ranks, or in a job with expert groups, for a unit without experts, one rank of each tensor group. */
static inline int sw_plan_unit_ranks(const struct sw_plan *plan, int64_t unit) {
    const int groups =
        plan->spec.experts.ranks > 1 && !plan->spec.units->unit[unit].shared_out ? plan->spec.experts.ranks : 1;
    return sw_plan_ranks(plan) * groups;
}
int sw_plan_unit_rank(const struct sw_plan *plan, int64_t unit);
/* Tells whether each rank has but a shard of a unit's state. */
static inline bool sw_plan_is_sharded(const struct sw_plan *plan, int64_t unit, sw_state state) {
    static const int from_stage[SW_STATES] = {[SW_WEIGHTS] = SW_ZERO_WEIGHTS,
                                              [SW_GRADS] = SW_ZERO_OPTIMIZER,
                                              [SW_OPTIMIZER] = SW_ZERO_OPTIMIZER,
                                              [SW_ACTS] = SW_ZERO_WEIGHTS + 1};
    return sw_plan_unit_ranks(plan, unit) > 1 && plan->spec.zero >= from_stage[state];
}
/* Tells whether each rank updates its shard of a unit's weights, gathers the others' and keeps the whole. */
bool sw_plan_keeps_whole_weights(const struct sw_plan *plan, int64_t unit);
/* Tells whether each group's gradients of a unit are reduced by themselves, so that no rank keeps accumulators of more
 * than its shard from group to group. The sums then differ by their order from those of ranks that add up their groups
 * first. The ranks of a pipeline, which always has several groups, add these up first at every ZeRO stage, so that all
 * ZeRO stages have the same sums, and exchange them once a step. */
bool sw_plan_reduces_groups(const struct sw_plan *plan, int64_t unit);
/* Tells whether ranks gather quantized weights, and whether they exchange quantized gradients. */
bool sw_plan_quantizes_weights(const struct sw_plan *plan);
bool sw_plan_quantizes_grads(const struct sw_plan *plan);
/* Tells whether a unit's update runs on the device: its optimizer lives there, or update_on_device says so. */
static inline bool sw_plan_updates_on_device(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_trains(plan, unit) &&
           (plan->placement[unit].tier[SW_OPTIMIZER] == SW_DEVICE || plan->spec.update_on_device[unit]);
}
/* Tells whether a unit's update runs on a GPU because of its matrices of Muon. */
static inline bool sw_plan_updates_muon_on_gpu(const struct sw_plan *plan, int64_t unit) {
    return plan->spec.muon_gpu_bytes > 0 && sw_unit_has_muon(&plan->spec.units->unit[unit]);
}
/* Returns how many grains of a span of a unit, its first ones, Muon updates. */
int64_t sw_plan_muon_grains(const struct sw_plan *plan, int64_t unit, struct sw_span at);
/* Returns the most grains of a unit that Muon updates on one rank, which are one chunk. */
int64_t sw_plan_most_muon_grains(const struct sw_plan *plan);
/* Tells whether some steps carry a save, and not all commit. */
bool sw_plan_saves(const struct sw_plan *plan);
/* Tells whether any state of any unit lives on NVMe. */
bool sw_plan_uses_nvme(const struct sw_plan *plan);
/* Tells whether the plan has programs whose updates start in the backward pass. */
bool sw_plan_may_speculate(const struct sw_plan *plan);
/* Tells whether a unit's input is kept for the backward pass. */
bool sw_plan_keeps_input(const struct sw_plan *plan, int64_t unit);
/* Returns the bytes that are kept of one micro-batch's input of a unit, on the rank that keeps most, and the pages of
 * SW_BUFFER_ALIGN_BYTES that these take: the grains in which the store keeps them. */
int64_t sw_plan_input_bytes(const struct sw_plan *plan, int64_t unit);
int64_t sw_plan_input_pages(const struct sw_plan *plan, int64_t unit);

/* Returns the ranks of a tensor group, at least 1; those of the whole job; and this one's number in the job. */
static inline int sw_plan_tensor_ranks(const struct sw_plan *plan) {
    return plan->spec.tensor.ranks > 1 ? plan->spec.tensor.ranks : 1;
}
int sw_plan_job_ranks(const struct sw_plan *plan);
int sw_plan_job_rank(const struct sw_plan *plan);
/* Returns the ranks of a pipeline stage, which are all ranks where there is one; and the stage that computes a unit. */
static inline int sw_plan_stage_ranks(const struct sw_plan *plan) {
    return sw_plan_job_ranks(plan) / sw_plan_stages(plan);
}
int sw_plan_stage_of(const struct sw_plan *plan, int64_t unit);
/* Tells whether a stage trains any of its units; the last one has a tied table, too. */
bool sw_stage_trains(const struct sw_plan_pipeline *pipeline, int stage, const struct sw_units *units);
/* Returns the most groups of micro-batches of which this rank's stage keeps what a unit's backward pass needs, 1
 * without stages; and the pieces of the slot that keeps a unit's inputs, one for each micro-batch of these groups and,
 * of a unit that gets them from the stage before, of those that come meanwhile. */
int64_t sw_plan_groups_in_flight(const struct sw_plan *plan, int64_t unit);
int64_t sw_plan_input_pieces(const struct sw_plan *plan, int64_t unit);
/* Tells whether the first and the last stage each train a tied table, and this rank is in one of them. */
bool sw_plan_copies_table(const struct sw_plan *plan);
/* Returns the members of an expert group, at least 1; its ranks, of which a tensor group without experts is one
 * member; and this one's number among these. */
static inline int sw_plan_expert_ranks(const struct sw_plan *plan) {
    return plan->spec.experts.ranks > 1 ? plan->spec.experts.ranks : 1;
}
static inline int sw_plan_group_ranks(const struct sw_plan *plan) {
    return sw_plan_expert_ranks(plan) * sw_plan_tensor_ranks(plan);
}
int sw_plan_group_rank(const struct sw_plan *plan);
/* Tells whether a unit has experts that ranks share out; whether these are computed together with their block, the
 * unit before; and whether a unit is such a block. */
bool sw_plan_shares_experts(const struct sw_plan *plan, int64_t unit);
bool sw_plan_joins_block(const struct sw_plan *plan, int64_t unit);
bool sw_plan_sends_rows(const struct sw_plan *plan, int64_t unit);
/* Returns the ranks that an op of the comm lane is among. */
sw_among sw_plan_among(const struct sw_plan *plan, const struct sw_op *op);
/* Returns the number of ranks that exchange the rows of an op, or its replicated elements, and this one's number. */
int sw_plan_members(const struct sw_plan *plan, sw_among among);
int sw_plan_member(const struct sw_plan *plan, sw_among among);
/* Returns the rows of a micro-batch. */
int64_t sw_plan_micro_rows(const struct sw_plan *plan);
/* Returns the rows that a rank of a group reduces or gathers: of one micro-batch in a tensor group, of a micro-batch of
 * each member in an expert group. */
struct sw_span sw_plan_rows_of(const struct sw_plan *plan, sw_among among, int number);
/* Returns this rank's rows of its tensor group's micro-batch; without tensor groups they are all. */
struct sw_span sw_plan_own_rows(const struct sw_plan *plan);
/* Returns the elements of a unit that every rank of a group has, at the unit's end, and those of them that a rank of
 * the group adds up, counted from the first of them. */
int64_t sw_plan_replicated_elems(const struct sw_plan *plan, int64_t unit);
struct sw_span sw_plan_replicated_of(const struct sw_plan *plan, int64_t unit, int number);
/* Returns the ranks of the group that has these elements. */
sw_among sw_plan_replicated_among(const struct sw_plan *plan, int64_t unit);
/* Tells whether a unit of a tensor group continues the sum that the unit before began. A rank's output of the latter is
 * its own and is not exchanged: the group adds the sums up behind the last unit that continues them, and in the
 * backward pass the gradient at their norm, at the unit that began them, which alone has the norm. */
static inline bool sw_plan_continues(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_tensor_ranks(plan) > 1 && plan->spec.cost[unit].continues;
}
/* Tells whether each rank of a tensor group normalises its rows alone; then it also keeps no others. */
static inline bool sw_plan_is_sequence_parallel(const struct sw_plan *plan) {
    return sw_plan_tensor_ranks(plan) > 1 && plan->spec.tensor.sequence;
}
/* Tells whether each rank of a tensor group keeps only its rows of some unit's input, or of this unit's. A unit that
 * continues a sum keeps its input whole, because the input is the rank's own. */
static inline bool sw_plan_partitions_inputs(const struct sw_plan *plan) {
    return sw_plan_is_sequence_parallel(plan) || (sw_plan_tensor_ranks(plan) > 1 && plan->spec.tensor.partition_inputs);
}
static inline bool sw_plan_partitions_input(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_partitions_inputs(plan) && !sw_plan_continues(plan, unit);
}
/* Tells whether a unit's backward pass needs no more of a partitioned input than this rank's rows, for the norm, where
 * that comes after it: nothing of the unit is computed again. The group then does not gather the input. */
bool sw_plan_recalls_rows(const struct sw_plan *plan, int64_t unit);
/* Tells whether the backward pass of a unit leaves the gradients of its products' weights to ops of their own, beside
 * which the group exchanges the gradient at its norm: a block's in a group, if it is not in tiles and has no experts
 * that ranks share out. */
static inline bool sw_plan_splits_backward(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_tensor_ranks(plan) > 1 && plan->spec.tensor.product_bytes > 0 && unit > 0 &&
           unit + 1 < plan->spec.units->count && !plan->spec.units->unit[unit].shared_out;
}
/* Tells whether a unit's backward op needs the normalised input, which with sequence parallelism the plan keeps apart:
 * its matrix products are computed again. Else only the gradient of the first product's weights does. */
bool sw_plan_recalls_normed(const struct sw_plan *plan, int64_t unit);
/* Returns the bytes of a row of a micro-batch, of which every unit's output has as many; in a tensor group. */
int64_t sw_plan_row_bytes(const struct sw_plan *plan);

/* Returns the slot that holds a unit's gradients or optimizer state where they live, or -1 where that is NVMe. */
int32_t sw_plan_resident(const struct sw_plan *plan, sw_state state, int64_t unit);
/* Returns the tier where the trained weights of a unit live: that of the frozen ones, or plan->trained_tier. */
sw_tier sw_plan_tier_of_trained(const struct sw_plan *plan, int64_t unit);
/* Returns the number of units whose frozen weights live on NVMe and whose trained ones live on plan->trained_tier. */
int64_t sw_plan_units_beside(const struct sw_plan *plan);
/* Returns the slot, on whatever tier, that holds a grain of this rank's weights of a unit where they live. */
int32_t sw_plan_weights_home(const struct sw_plan *plan, int64_t unit, int64_t grain);
/* Returns the slot that holds a unit's base where it lives, or -1 where the unit has none. */
int32_t sw_plan_base_home(const struct sw_plan *plan, int64_t unit);
/* Returns the slot that keeps a unit's inputs for the backward pass, or -1 where they are not kept. */
int32_t sw_plan_kept_input(const struct sw_plan *plan, int64_t unit);
/* Slots that the engine also uses outside of ops. */
typedef enum {
    SW_BUFFER_TOKENS,     /* host: tokens of two steps; pieces: micro-batches of the one, then of the other */
    SW_BUFFER_WORK,       /* device: scratch of the compute lane */
    SW_BUFFER_REDUCTIONS, /* device: what reductions between ranks pass through */
    SW_BUFFER_SUMMARIES,  /* host: what every rank tells the others of a step */
    SW_BUFFER_OPTIMIZER,  /* host ring: optimizer state */
    SW_BUFFER_WEIGHTS,    /* host ring: weights */
    SW_BUFFER_ROUTING,    /* host: which units of experts have rows */
    SW_BUFFER_IN_PLACE,   /* host: pages of the model's own files, SW_STORE_IN_PLACE_READS pieces */
    SW_BUFFERS
} sw_buffer;
/* Returns the slot of a buffer, or -1 where the plan needs none: of a rank alone the two between ranks; the routing if
 * it decides nothing; the last if no weights are read in place. */
int32_t sw_plan_buffer(const struct sw_plan *plan, sw_buffer which);

/* Returns when what is trained is committed, in words. */
const char *sw_plan_commits(const struct sw_plan *plan);
/* Returns the bytes of this rank's optimizer in its store, in all generations and wherever the state lives. */
int64_t sw_plan_store_bytes(const struct sw_plan *plan);
/* Tells whether a unit's frozen weights are on NVMe and are read there from the model's own files, so that the store
 * has no copy of them; and returns the bytes of all such weights that this rank reads. */
bool sw_plan_reads_in_place(const struct sw_plan *plan, int64_t unit);
int64_t sw_plan_in_place_bytes(const struct sw_plan *plan);
/* Returns the bytes that this rank's store takes on its drives: these, and what is placed on NVMe beside the optimizer.
 * Labels and superblocks are left out: less than a mebibyte and a thousandth of the rest. */
int64_t sw_plan_disk_bytes(const struct sw_plan *plan);
/* Returns the memory through which reductions between so many ranks pass: enough that their messages are large. A
 * plan's slot is smaller if its largest reduction fits in less. */
int64_t sw_plan_staging_bytes(int ranks);
/* Returns the bytes of a unit's grain where only this content lies; 0: the content is not counted in grains. */
int64_t sw_plan_grain_bytes(const struct sw_plan *plan, sw_content content, int64_t unit);
/* Return the bytes of grains in the compute type, of a unit's weights as they lie and cross links, and of records. */
static inline int64_t sw_plan_typed_bytes(const struct sw_plan *plan, int64_t grains) {
    return grains * SW_GRAIN_ELEMS * sw_dtype_bytes(plan->spec.type);
}
int64_t sw_plan_weights_bytes(const struct sw_plan *plan, int64_t unit, int64_t grains);
int64_t sw_plan_optimizer_bytes(const struct sw_plan *plan, int64_t grains); /* none of them Muon's, if packed */

/* Returns how the records of what this rank has of a unit lie. */
struct sw_records sw_plan_records(const struct sw_plan *plan, int64_t unit);
/* Returns the bytes of the records of some of these grains, which begin and end with chunks. */
int64_t sw_plan_records_bytes(const struct sw_plan *plan, int64_t unit, struct sw_span at);
/* Returns the bytes that a content of some grains takes in a slot that holds nothing else. */
int64_t sw_plan_content_bytes(const struct sw_plan *plan, sw_content content, int64_t unit, struct sw_span at);
/* Returns how many bytes the record of grain `to` begins behind that of grain `from`. */
int64_t sw_plan_record_distance(const struct sw_plan *plan, int64_t unit, int64_t from, int64_t to);
/* Returns the bytes of this rank's optimizer state of a unit. */
int64_t sw_plan_state_bytes(const struct sw_plan *plan, int64_t unit);
/* Returns the bytes of the largest chunk of records on any rank. */
int64_t sw_plan_most_chunk_bytes(const struct sw_plan *plan);

/* Returns what this rank has of a unit's state: all of it, or its shard; of gradients, those that are reduced.
 * Gradients and optimizer state are those of the trained span, and so are sharded weights of a unit that is trained. */
struct sw_span sw_plan_span(const struct sw_plan *plan, sw_state state, int64_t unit);
/* Returns this rank's shard of the frozen weights of a unit that is trained; no grains where weights are not sharded,
 * or the unit has no such weights. */
struct sw_span sw_plan_frozen_shard(const struct sw_plan *plan, int64_t unit);
/* Returns the cells of a unit's base that this rank has: all of them, or its shard. */
struct sw_span sw_plan_base_span(const struct sw_plan *plan, int64_t unit);
/* Return the weights of a unit, behind its base, that this rank has: those that training does not change, and those
 * that it does. */
struct sw_span sw_plan_own_frozen(const struct sw_plan *plan, int64_t unit);
struct sw_span sw_plan_own_trained(const struct sw_plan *plan, int64_t unit);
/* Returns the number of chunks of what this rank has of a state, and the grains of one. */
int64_t sw_plan_state_chunks(const struct sw_plan *plan, sw_state state, int64_t unit);
struct sw_span sw_plan_state_chunk(const struct sw_plan *plan, sw_state state, int64_t unit, int64_t chunk);
/* Returns a rank's shard of a unit's trained span, or of a frozen unit, and a chunk of it, which may have no grains. */
struct sw_span sw_plan_shard_of(const struct sw_plan *plan, int64_t unit, int rank);
/* Returns that shard also of a unit that this rank's stage does not have: then of a rank of the unit's stage. */
struct sw_span sw_plan_shard_anywhere(const struct sw_plan *plan, int64_t unit, int rank);
struct sw_span sw_plan_shard_chunk(const struct sw_plan *plan, int64_t unit, int rank, int64_t chunk);
/* Returns the rank whose shard has a grain; for a grain that these units have not, some rank or none. */
int sw_plan_owner_of(const struct sw_plan *plan, int64_t unit, int64_t grain);
/* Returns what a rank gives to the others in a gather, or gets in a reduction: of a base in cells, else in grains. */
struct sw_span sw_plan_share_of(const struct sw_plan *plan, const struct sw_op *op, int rank);
/* Tells whether a step keeps a unit's secondary shard, because it gathers the unit again. */
bool sw_plan_keeps_secondary(const struct sw_plan *plan, int64_t unit);
/* Returns the secondary shard of the rank of a number within its part of a node. */
struct sw_span sw_plan_secondary_of(const struct sw_plan *plan, int64_t unit, int number);
/* Returns the bytes of this rank's secondary shards. */
int64_t sw_plan_secondary_bytes(const struct sw_plan *plan);
/* Returns the bytes that this rank gives to others in a training step, and those of them that go to ranks of other
 * nodes (node_ranks of the spec). */
struct sw_plan_sent {
    int64_t bytes, between_bytes;
};
struct sw_plan_sent sw_plan_sent_bytes(const struct sw_plan *plan);
/* Returns those bytes of an op of the comm lane that this rank gives to ranks of other nodes. */
int64_t sw_plan_between_bytes(const struct sw_plan *plan, const struct sw_op *op);
/* Returns the number of nodes over which quantized gradients are reduced in two levels, 1 for one level, and the ranks
 * of each. */
int sw_plan_reduce_nodes(const struct sw_plan *plan);
int sw_plan_reduce_node_ranks(const struct sw_plan *plan);
/* Quantized chunks lie in a bucket by their rank's number in its node and then by node, so that those which a node adds
 * up for one rank of each node are neighbours: its part. sw_plan_part_grains returns the grains of the part of a
 * number, sw_plan_part_before those before it. */
int64_t sw_plan_part_grains(const struct sw_plan *plan, int64_t unit, int64_t bucket, int number);
int64_t sw_plan_part_before(const struct sw_plan *plan, int64_t unit, int64_t bucket, int number);
/* Returns the grains before a node's chunk in the part that has this rank's. */
int64_t sw_plan_node_before(const struct sw_plan *plan, int64_t unit, int64_t bucket, int node);
/* Returns the number of a unit's buckets: one has the chunk of one number of every rank's shard. */
int64_t sw_plan_buckets(const struct sw_plan *plan, int64_t unit);

/* The sums of a step over its pairs (arXiv 2305.18290): their losses, the rewards of their chosen and of
 * their rejected sequences, and how many pairs have the higher reward at the chosen one. */
enum { SW_PAIR_LOSS, SW_PAIR_CHOSEN, SW_PAIR_REJECTED, SW_PAIR_RIGHT, SW_PAIR_SUMS };

/* Returns the sums of losses that the head hands to the host for one micro-batch. */
int64_t sw_plan_losses(const struct sw_plan *plan);

/* The summary of a step that ranks exchange, in doubles: its losses, its requests and, unit by unit, the sums of
 * squares of its shard; then the tally, in a plan for pairs their sums but the first, and in a pipeline the seconds for
 * which the rank's compute lane has been busy in this step. sw_plan_summary_bytes returns the bytes of it, with the
 * sums of squares or without. */
enum { SW_SUMMARY_LOSS, SW_SUMMARY_REQUESTS, SW_SUMMARY_SQUARE_SUMS };
int64_t sw_plan_summary_bytes(const struct sw_plan *plan, bool sums);

/* Returns the share of a step in which the stages of a pipeline wait, (p - 1) / (v m + p - 1) of p stages with v turns
 * and m groups of micro-batches, if stages take equally long and do nothing but compute (Narayanan et al., arXiv
 * 2104.04473). */
double sw_plan_equal_bubble(const struct sw_plan *plan);

#endif
