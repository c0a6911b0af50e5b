/* Declarations that the files which make a plan share: slots by role, and the making of programs. */
#ifndef SW_OFFLOAD_PLAN_PLAN_PRIVATE_H
#define SW_OFFLOAD_PLAN_PLAN_PRIVATE_H

#include "offload/plan/plan.h"

enum { UNIT_SLOTS_MAX = 16 };

/* Bits of the version of weights, gradients and what a tensor group exchanges. OWN: only this rank's shard, or its
 * rows, are valid; the rest arrives with the gather. LOCAL: what this rank has computed, before ranks reduce it. */
enum { SW_VERSION_SPECULATIVE = 1, SW_VERSION_OWN = 2, SW_VERSION_LOCAL = 4 };

/* Pieces of the ring through which gradients are reduced: one is filled, one goes between the ranks, one leaves. */
enum { SW_BUCKETS = 3 };

/* Slot numbers by role; -1 where the plan needs no such slot. Arrays have one entry per unit. */
struct sw_plan_index {
    int32_t *arrays; /* the block that all arrays lie in */
    /* Homes of states, on whatever tier. An optimizer in two generations has the next slot too. */
    int32_t *weights, *grads, *optimizer;
    int32_t *secondary;                /* this rank's secondary shards of weights */
    int32_t *saved_optimizer;          /* where a commit keeps state of device or host, if not every step commits */
    int32_t *acc_shard;                /* device: accumulators of shards, where groups are reduced one by one */
    int32_t *acc;                      /* homes of accumulators between groups; -1: only the working one */
    int32_t *input;                    /* homes of kept inputs; pieces: micro-batches of a group */
    int32_t *cache;                    /* device: KV caches */
    int32_t *saved, *derived;          /* device: intermediates kept; pieces: micro-batches of a group */
    int32_t unit_slot[UNIT_SLOTS_MAX]; /* device: weights of units that live elsewhere */
    int32_t typed_slot;                /* device: weights of embedding or head that live elsewhere, where blocks' lie in
                                          8 bits and so fit no slot of theirs */
    int32_t rows, rows_ring;           /* gathered rows: host, of all micro-batches; device ring */
    int32_t table_slot;                /* device: a tied table that lives elsewhere, kept from embedding to head */
    int32_t saved_shared, derived_shared; /* device: intermediates that are computed again */
    int32_t output_ring;                  /* device: outputs between two units, whose home is elsewhere */
    int32_t input_back;                   /* device ring: kept inputs on their way to the backward pass */
    int32_t input_out, input_in;          /* host rings: kept inputs to and from NVMe */
    int32_t output_grad;                  /* device; pieces: micro-batches of a group */
    int32_t whole_grad;                   /* device ring: gradients of all rows, with sequence parallelism */
    int32_t norm_grad, softmax;           /* device rings: what a tensor group exchanges */
    int32_t product_grad;                 /* device: gradient at the result of a block's first product, in a group */
    int32_t normed;                       /* device ring: normalised inputs, with sequence parallelism */
    int32_t tokens, token_staging, work;
    int32_t work_acc[2];     /* device: accumulators being added to */
    int32_t table_acc;       /* device: accumulator of a tied table, from head to embedding */
    int32_t acc_out, acc_in; /* host rings: accumulators to and from NVMe */
    int32_t square_sums_device, square_sums_host, norm;
    int32_t buckets;        /* device ring: chunks of all ranks' shards, to be reduced */
    int32_t bucket_sums;    /* device ring: this rank's reduced chunks, in fp32 */
    int32_t quant_weights;  /* device: a unit's quantized weights, while ranks gather them */
    int32_t quant_buckets;  /* device ring: quantized chunks of all ranks' shards, to be exchanged */
    int32_t quant_parts;    /* device ring: the other ranks' quantized chunks of this rank's shard */
    int32_t node_sums;      /* device ring: a node's sums of the chunks of one number within their nodes, in fp32 */
    int32_t node_quant;     /* device ring: these, quantized, to be exchanged between nodes */
    int32_t node_parts;     /* device ring: the other nodes' of them for this rank */
    int32_t reduced;        /* device ring: this rank's reduced chunks of such, on their way home */
    int32_t staging;        /* device: memory that reductions pass through */
    int32_t summaries;      /* host: what every rank tells the others of a step */
    int32_t grads_down;     /* device ring: finished chunks on their way to the host */
    int32_t grads_out;      /* host ring: chunks on their way to NVMe */
    int32_t grads_in;       /* host ring: chunks for an update */
    int32_t grads_up;       /* device ring: chunks for an update on the device */
    int32_t optimizer_ring; /* host ring: optimizer state read, updated, written */
    int32_t optimizer_up;   /* device ring: optimizer state that passes through it for its update */
    int32_t weights_ring;   /* host ring: new weights on their way to device or NVMe */
    int32_t weights_in;     /* host ring: weights read from NVMe */
    int32_t weights_down;   /* device ring: new weights of an update on the device, on their way to the host */
};

/* Chunks of a ring that updates pass through which are kept free for chunks on their way back. */
enum { SW_RING_CHUNKS_BEHIND = 16 };

/* Returns the unit whose kept input a unit's backward pass reads: the unit itself where its input is kept. */
int64_t sw_plan_backward_input(const struct sw_plan *plan, int64_t unit);
/* Returns the grains of a unit's gradients and optimizer state on all ranks: none of a frozen unit. */
int64_t sw_plan_trained_grains(const struct sw_plan *plan, int64_t unit);
/* Tells whether each rank has but a shard of a state. */
bool sw_plan_is_sharded(const struct sw_plan *plan, sw_state state);
/* Returns the number of chunks of a whole unit. */
int64_t sw_plan_chunks(const struct sw_plan *plan, int64_t unit);
/* Tells whether weights are gathered from the ranks that have updated them. */
bool sw_plan_all_gathers_weights(const struct sw_plan *plan);
/* Tells whether a unit's whole weights live on the device. */
bool sw_plan_has_whole_on_device(const struct sw_plan *plan, int64_t unit);
/* Returns what memory of a tier holds of a unit's state: gradients that live on the device are whole before they are
 * reduced. */
struct sw_span sw_plan_kept(const struct sw_plan *plan, sw_state state, int64_t unit, sw_tier tier);

/* Returns this rank's shard of a unit, and the number of its chunks. */
struct sw_span sw_plan_shard(const struct sw_plan *plan, int64_t unit);
int64_t sw_plan_shard_chunks(const struct sw_plan *plan, int64_t unit);
/* Returns the grains that a bucket has before the chunk of a rank; with the number of all ranks, those of the bucket.
 */
int64_t sw_plan_bucket_grains(const struct sw_plan *plan, int64_t unit, int64_t number, int rank);
/* Returns the parts of a unit that a bucket holds, one after the other: the chunk of each rank, or the whole unit if
 * it has one bucket, so that a thousand ranks are one part. Behind the last it has no grains. */
struct sw_span sw_plan_bucket_run(const struct sw_plan *plan, int64_t unit, int64_t number, int64_t run);
/* Returns a chunk of a whole unit, or of this rank's secondary shard of it. */
struct sw_span sw_plan_unit_chunk(const struct sw_plan *plan, int64_t unit, int64_t chunk);
struct sw_span sw_plan_secondary_chunk(const struct sw_plan *plan, int64_t unit, int64_t chunk);
/* Returns this rank's secondary shard of a unit. */
struct sw_span sw_plan_secondary(const struct sw_plan *plan, int64_t unit);

/* Tells whether a unit's optimizer state passes through the device for its update. */
bool sw_plan_streams_optimizer(const struct sw_plan *plan, int64_t unit);
/* Tells whether a unit that lives elsewhere has the slot of embedding and head, rather than one of those of blocks. */
bool sw_plan_has_typed_slot(const struct sw_plan *plan, int64_t unit);
/* Tells whether the host gathers the embedding's rows that a step's tokens name, and only these go to the device. */
bool sw_plan_gathers_rows(const struct sw_plan *plan);
/* Tells whether a tied embedding's weights live elsewhere and have the table slot on the device. */
bool sw_plan_fetches_table(const struct sw_plan *plan);
/* Tells whether the plan has this program. */
bool sw_plan_has_program(const struct sw_plan *plan, sw_program_kind kind);

/* Returns a hash of all that outlines of one specification differ in, its chunk_grains, update_on_device and rises
 * being open; never 0. */
uint64_t sw_plan_hash(const struct sw_plan *plan);

/* Lays out all slots for plan->placement and plan->recompute and sets tier_bytes. Replaces an earlier layout. */
sw_status sw_plan_layout(struct sw_plan *plan);
/* Sets tier_bytes as sw_plan_layout does, without laying out slots where the peaks are known. */
sw_status sw_plan_measure(struct sw_plan *plan);

/* Tells whether the layout is within the budgets. */
bool sw_plan_fits(const struct sw_plan *plan);

/* Fills plan->placement, plan->recompute and the lengths of rings, within the budgets (place.c). SW_ERR_BUDGET says by
 * how much nothing fits. */
sw_status sw_plan_place(struct sw_plan *plan);

/* Tells whether two units differ in nothing that a layout depends on, so that what changes for one of them takes as
 * many bytes as for the other. */
bool sw_plan_units_are_alike(const struct sw_plan *plan, int64_t a, int64_t b);

/* Raises, in an order, what the request leaves open, as far as the budgets have room (rises.c). */
sw_status sw_plan_raise(struct sw_plan *plan, const struct sw_rise_order *order);
/* Tells whether an order holds nothing back. */
bool sw_plan_all_may_rise(const struct sw_rise_order *order);
/* Returns the share of the units, or of all changes to intermediates, that have risen as a rise would raise them. */
double sw_plan_risen_share(const struct sw_plan *plan, sw_rise rise);
/* Lowers what units compute again, from everything to as little as fits; of all changes this share at most. */
sw_status sw_plan_keep_intermediates(struct sw_plan *plan, double share);

/* Returns the role of an access in its op. */
sw_role sw_role_of(const struct sw_op *op, const struct sw_access *access);

/* Proves that every op has the operands that its kind needs, each in its role and exactly where the access says that
 * the content lies (check_operands.c). */
sw_status sw_program_check_operands(const struct sw_plan *plan, const struct sw_program *program);

/* Returns the bytes of a program's ops and accesses. */
static inline int64_t sw_program_bytes(const struct sw_program *program) {
    return program->op_count * (int64_t)sizeof *program->op + program->access_count * (int64_t)sizeof *program->access;
}
/* Emits the ops of a program with their accesses. SW_ERR_ARG beyond SW_PLAN_MOST_OPS or
 * SW_PLAN_MOST_BYTES. */
sw_status sw_plan_emit(const struct sw_plan *plan, sw_program_kind kind, struct sw_program *out);

/* Emits the ops of a program with their waits and keeps no accesses, of which it returns the number. */
sw_status sw_plan_emit_waits(const struct sw_plan *plan, sw_program_kind kind, struct sw_program *out,
                             int64_t *out_accesses);

/* Hands the ops of a program to `take` as they are emitted, some at a time, and keeps none. They have no waits. `take`
 * returns false where it wants no more. */
typedef bool (*sw_take_ops)(void *context, const struct sw_op *op, int32_t count);
sw_status sw_plan_emit_through(const struct sw_plan *plan, sw_program_kind kind, sw_take_ops take, void *context);

/* Returns the refusal of a plan beyond SW_PLAN_MOST_OPS or SW_PLAN_MOST_BYTES. */
sw_status sw_plan_refuse_ops(const struct sw_plan_spec *spec);

/* Derives the waits of a program from its accesses. */
sw_status sw_plan_derive_waits(const struct sw_plan *plan, struct sw_program *program);

/* Does the same op by op, so that no more accesses than one op's need be kept. The ops are added in order, all of them.
 * sw_hazards_end gives them their waits. The caller destroys the hazards, also after an error. */
struct sw_hazards;
sw_status sw_hazards_begin(const struct sw_plan *plan, struct sw_program *program, struct sw_hazards **out);
sw_status sw_hazards_add(struct sw_hazards *h, int32_t number, const struct sw_access *access, int32_t count);
sw_status sw_hazards_end(struct sw_hazards *h);
void sw_hazards_destroy(struct sw_hazards *h);

void sw_program_destroy(struct sw_program *program);

/* Proves one program by its accesses (check.c). */
sw_status sw_program_check(const struct sw_plan *plan, const struct sw_program *program, bool repeats);

/* Returns the bytes that this rank gives to others in the gather of an op. */
int64_t sw_plan_gathered_bytes(const struct sw_plan *plan, const struct sw_op *op);

#endif
