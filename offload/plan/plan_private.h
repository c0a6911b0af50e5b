/* What the files that make a plan share: slots by role, and how programs are built. */
#ifndef SW_OFFLOAD_PLAN_PLAN_PRIVATE_H
#define SW_OFFLOAD_PLAN_PLAN_PRIVATE_H

#include "offload/plan/plan.h"

enum { UNIT_SLOTS_MAX = 16 };

/* A bit of the stage of weights and gradients: of what will be whole, this rank's shard is there. */
enum { SW_STAGE_SPECULATIVE = 1, SW_STAGE_OWN = 2 };

/* Pieces of the ring through which gradients are reduced: one is filled, one goes between the ranks, one leaves. */
enum { SW_BUCKETS = 3 };

/* Slot numbers by role; -1 where the plan needs no such slot. Per-unit arrays have units->count entries. */
struct sw_plan_index {
    int32_t *weights, *grads,
        *optimizer;           /* homes, on whatever tier; an optimizer in two generations has the next slot too */
    int32_t *saved_optimizer; /* where a commit keeps records that live on device or host, if not every step commits */
    int32_t *acc_shard;       /* device: accumulators of shards, where groups are reduced one by one */
    int32_t *acc;             /* homes of accumulators between groups; -1: only the working one */
    int32_t *boundary;        /* homes of each unit's inputs; pieces: micro-batches of a group */
    int32_t *cache;           /* what passes leave for those after them */
    int32_t *saved, *derived; /* intermediates kept; pieces: micro-batches of a group */
    int32_t unit_slot[UNIT_SLOTS_MAX];    /* device: weights of units that live elsewhere */
    int32_t rows, rows_ring;              /* host, of all micro-batches; device ring: gathered rows of the embedding */
    int32_t table_slot;                   /* device: a tied table that lives elsewhere, kept from embedding to head */
    int32_t saved_shared, derived_shared; /* device: intermediates that are computed again */
    int32_t boundary_ring;                /* device: boundaries whose home is elsewhere, between two units */
    int32_t boundary_back;                /* device ring: boundaries on their way to the backward pass */
    int32_t boundary_out, boundary_in;    /* host rings: boundaries to and from NVMe */
    int32_t boundary_grad;                /* device; pieces: micro-batches of a group */
    int32_t tokens, token_stage, work;
    int32_t work_acc[2];     /* device: accumulators being added to */
    int32_t table_acc;       /* device: of a tied table, from head to embedding */
    int32_t acc_out, acc_in; /* host rings: accumulators to and from NVMe */
    int32_t sums_device, sums_host, norm;
    int32_t buckets;        /* device ring: chunks of all ranks' shards, to be reduced */
    int32_t bucket_sums;    /* device ring: what this rank's chunks of them add up to, in fp32 */
    int32_t staging;        /* device: through which reductions pass */
    int32_t shared;         /* host: records of all ranks */
    int32_t grads_down;     /* device ring: finished chunks on their way to the host */
    int32_t grads_out;      /* host ring: chunks on their way to NVMe */
    int32_t grads_in;       /* host ring: chunks for an update */
    int32_t grads_up;       /* device ring: chunks for an update on the device */
    int32_t optimizer_ring; /* host ring: records read, updated, written */
    int32_t optimizer_up;   /* device ring: records that pass through it for their update */
    int32_t weights_ring;   /* host ring: new weights on their way to device or NVMe */
    int32_t weights_in;     /* host ring: weights read from NVMe */
    int32_t weights_down;   /* device ring: new weights of an update on the device, on their way to the host */
};

/* Micro-batches of the largest group, and number of groups. */
int64_t sw_plan_group(const struct sw_plan *plan);
int64_t sw_plan_groups(const struct sw_plan *plan);

/* At least 1. */
int sw_plan_ranks(const struct sw_plan *plan);
/* Whether ranks have but a shard of a state. */
bool sw_plan_is_sharded(const struct sw_plan *plan, sw_state state);
/* Whether weights are gathered from the ranks that have updated them, and whether then each keeps the whole. */
bool sw_plan_gathers_weights(const struct sw_plan *plan);
bool sw_plan_joins_weights(const struct sw_plan *plan);
/* Whether each group's gradients are reduced by themselves, so that no rank keeps accumulators of more than its shard
 * from group to group. The sums then differ by their order from those of ranks that add up their groups first. */
bool sw_plan_reduces_groups(const struct sw_plan *plan);
/* Whether a unit's whole weights live on the device. */
bool sw_plan_is_whole_there(const struct sw_plan *plan, int64_t unit);
/* What memory of a tier holds of a unit's state: gradients that live on the device are whole before they are reduced.
 */
struct sw_span sw_plan_kept(const struct sw_plan *plan, sw_state state, int64_t unit, sw_tier tier);

/* Bytes of grains in the compute type. */
int64_t sw_plan_typed_bytes(const struct sw_plan *plan, int64_t grains);
/* A rank's shard of a unit. */
struct sw_span sw_plan_shard_of(const struct sw_plan *plan, int64_t unit, int rank);
/* This rank's shard of a unit; its chunks, and those of any rank. A bucket has the chunk of one number of all ranks. */
struct sw_span sw_plan_shard(const struct sw_plan *plan, int64_t unit);
int64_t sw_plan_shard_chunks(const struct sw_plan *plan, int64_t unit);
struct sw_span sw_plan_shard_chunk(const struct sw_plan *plan, int64_t unit, int rank, int64_t chunk);
int64_t sw_plan_buckets(const struct sw_plan *plan, int64_t unit);
/* Chunk of a whole unit. */
struct sw_span sw_plan_unit_chunk(const struct sw_plan *plan, int64_t unit, int64_t chunk);

/* The record that each rank shares: its losses, its wishes and, unit by unit, the sums of squares of its shard, in
 * doubles; and its bytes. */
enum { SW_SHARE_LOSS, SW_SHARE_WISHES, SW_SHARE_SUMS };
int64_t sw_plan_share_bytes(const struct sw_plan *plan, bool sums);

/* Whether a unit's records pass through the device for their update. */
bool sw_plan_streams(const struct sw_plan *plan, int64_t unit);

/* Whether rows of the embedding are gathered on the host. */
bool sw_plan_gathers(const struct sw_plan *plan);

/* Whether the embedding's weights have the table slot. */
bool sw_plan_table_streams(const struct sw_plan *plan);

/* Lays out all slots for plan->placement and plan->recompute and sets tier_bytes. Replaces an earlier layout. */
sw_status sw_plan_layout(struct sw_plan *plan);

/* Whether the layout is within the budgets. */
bool sw_plan_fits(const struct sw_plan *plan);

/* Fills plan->placement, plan->recompute and the lengths of rings, within the budgets (place.c). SW_ERR_BUDGET says by
 * how much nothing fits. */
sw_status sw_plan_place(struct sw_plan *plan);

/* Tells whether two units differ in nothing that a layout depends on, so that what changes for one of them takes as
 * many bytes as for the other. */
bool sw_plan_units_are_alike(const struct sw_plan *plan, int64_t a, int64_t b);

/* From everything computed again to as little of it as fits. */
sw_status sw_plan_keep_intermediates(struct sw_plan *plan);

/* The role of an access in its op. */
sw_role sw_role_of(const struct sw_op *op, const struct sw_access *access);
/* Bytes of one grain of a content in memory where only this content lies; 0: the content is not counted in grains. */
int64_t sw_plan_grain_bytes(const struct sw_plan *plan, sw_content content);

/* Proves that every op has the operands that its kind needs, each in its role and exactly where the access says that
 * the content lies (check_operands.c). */
sw_status sw_program_check_operands(const struct sw_plan *plan, const struct sw_program *program);

/* Emits the ops of a program with their accesses. SW_ERR_ARG beyond SW_PLAN_MOST_OPS. */
sw_status sw_plan_emit(const struct sw_plan *plan, sw_program_kind kind, struct sw_program *out);

/* Hands the ops of a program to `take` as they are emitted, some at a time, and keeps none. They have no waits. `take`
 * returns false where it wants no more. */
typedef bool (*sw_take_ops)(void *context, const struct sw_op *op, int32_t count);
sw_status sw_plan_emit_through(const struct sw_plan *plan, sw_program_kind kind, sw_take_ops take, void *context);

/* The refusal of a plan of more than SW_PLAN_MOST_OPS. */
sw_status sw_plan_refuse_ops(const struct sw_plan_spec *spec);

/* Derives the waits of a program from its accesses. */
sw_status sw_plan_derive_waits(const struct sw_plan *plan, struct sw_program *program);

void sw_program_destroy(struct sw_program *program);

/* Proves one program (check.c). */
sw_status sw_program_check(const struct sw_plan *plan, const struct sw_program *program, bool repeats);

#endif
