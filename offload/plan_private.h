/* What the files that make a plan share: slots by role, and how programs are built. */
#ifndef SW_OFFLOAD_PLAN_PRIVATE_H
#define SW_OFFLOAD_PLAN_PRIVATE_H

#include "offload/plan.h"

/* Slot numbers by role; -1 where the plan needs no such slot. Per-unit arrays have units->count entries. */
struct sw_plan_index {
    int32_t *weights, *grads, *optimizer; /* where they live, NVMe included */
    int32_t *boundary;                    /* pieces: micro-batches */
    int32_t *saved;                       /* pieces: micro-batches; NULL entries are -1 */
    int32_t saved_shared;                 /* recompute: one piece for all */
    int32_t boundary_grad;                /* pieces: micro-batches */
    int32_t tokens, token_stage, work;
    int32_t acc, table_acc;
    int32_t sums_device, sums_host, norm;
    int32_t grads_down;     /* device ring: finished chunks on their way to the host */
    int32_t grads_out;      /* host ring: chunks on their way to NVMe */
    int32_t grads_in;       /* host ring: chunks for an update */
    int32_t grads_up;       /* device ring: chunks for an update on the device */
    int32_t optimizer_ring; /* host ring: records read, updated, written */
    int32_t weights_ring;   /* host ring: new weights on their way to the device */
};

/* Lays out all slots for plan->placement and plan->recompute and sets tier_bytes. Replaces an earlier layout. */
sw_status sw_plan_layout(struct sw_plan *plan);

/* Emits the ops of a program with their accesses. */
sw_status sw_plan_emit(const struct sw_plan *plan, sw_program_kind kind, struct sw_program *out);

/* Derives the waits of a program from its accesses. */
sw_status sw_plan_derive_waits(const struct sw_plan *plan, struct sw_program *program);

void sw_program_destroy(struct sw_program *program);

/* Proves one program (check.c). */
sw_status sw_program_check(const struct sw_plan *plan, const struct sw_program *program);

#endif
