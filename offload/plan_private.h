/* What the files that make a plan share: slots by role, and how programs are built. */
#ifndef SW_OFFLOAD_PLAN_PRIVATE_H
#define SW_OFFLOAD_PLAN_PRIVATE_H

#include "offload/plan.h"

enum { UNIT_SLOTS_MAX = 16 };

/* Slot numbers by role; -1 where the plan needs no such slot. Per-unit arrays have units->count entries. */
struct sw_plan_index {
    int32_t *weights, *grads,
        *optimizer;           /* homes, on whatever tier; an optimizer in two generations has the next slot too */
    int32_t *saved_optimizer; /* where a commit keeps records that live on device or host, if not every step commits */
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

/* Whether a unit's records pass through the device for their update. */
bool sw_plan_streams(const struct sw_plan *plan, int64_t unit);

/* Whether rows of the embedding are gathered on the host. */
bool sw_plan_gathers(const struct sw_plan *plan);

/* Whether some steps commit, and not all. */
bool sw_plan_saves(const struct sw_plan *plan);

/* Whether the embedding's weights have the table slot. */
bool sw_plan_table_streams(const struct sw_plan *plan);

/* Lays out all slots for plan->placement and plan->recompute and sets tier_bytes. Replaces an earlier layout. */
sw_status sw_plan_layout(struct sw_plan *plan);

/* Whether the layout is within the budgets. */
bool sw_plan_fits(const struct sw_plan *plan);

/* From everything computed again to as little of it as fits. */
sw_status sw_plan_keep_intermediates(struct sw_plan *plan);

/* Emits the ops of a program with their accesses. */
sw_status sw_plan_emit(const struct sw_plan *plan, sw_program_kind kind, struct sw_program *out);

/* Derives the waits of a program from its accesses. */
sw_status sw_plan_derive_waits(const struct sw_plan *plan, struct sw_program *program);

void sw_program_destroy(struct sw_program *program);

/* Proves one program (check.c). */
sw_status sw_program_check(const struct sw_plan *plan, const struct sw_program *program, bool repeats);

#endif
