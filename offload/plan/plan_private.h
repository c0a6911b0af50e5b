/* Declarations that the files which make a plan share: slots by role, and the making of programs. */
#ifndef SW_OFFLOAD_PLAN_PLAN_PRIVATE_H
#define SW_OFFLOAD_PLAN_PLAN_PRIVATE_H

#include "offload/plan/plan.h"

enum { UNIT_SLOTS_MAX = 16 };

/* Bits of the version of weights, gradients and what a tensor group exchanges. OWN: only this rank's shard, or its
 * rows, are valid; the rest arrives with the gather. LOCAL: what this rank has computed, before ranks reduce it.
 * WHOLE: gradients gathered from all ranks of an expert group. */
enum { SW_VERSION_SPECULATIVE = 1, SW_VERSION_OWN = 2, SW_VERSION_LOCAL = 4, SW_VERSION_WHOLE = 8 };

/* Pieces of the ring through which gradients are reduced: one is filled, one goes between the ranks, one leaves. */
enum { SW_BUCKETS = 3 };

/* The kinds of slots. layout.c has a row for each. */
enum sw_slot_kind {
    /* Each unit has its own slots of these kinds. The first five are homes of states, on whatever tier; an optimizer
     * in two generations has the next slot too. */
    SLOT_WEIGHTS,
    SLOT_FROZEN, /* on the tier of the unit's weights: the frozen ones whose home is not that of the trained ones */
    SLOT_BASE,   /* on the tier of the unit's weights */
    SLOT_GRADS,
    SLOT_OPTIMIZER,
    SLOT_SECONDARY,       /* this rank's secondary shards of weights */
    SLOT_SAVED_OPTIMIZER, /* where a commit keeps state of device or host, if not every step commits */
    SLOT_ACC_SHARD,       /* device: accumulators of shards, where groups are reduced one by one */
    SLOT_ACC,             /* homes of accumulators between groups; none: only the working one */
    SLOT_INPUT,           /* homes of kept inputs; pieces: micro-batches of a group */
    SLOT_CACHE,           /* device: KV caches */
    SLOT_RECEIVED,        /* device: inputs from the stage before whose home is elsewhere */
    SLOT_SAVED,           /* device: intermediates kept; pieces: micro-batches of a group */
    SLOT_DERIVED,
    SLOT_UNIT_KINDS,
    /* A plan has one slot of these kinds. */
    SLOT_UNIT_WEIGHTS = SLOT_UNIT_KINDS, /* device: weights of units that live elsewhere, the first of unit_slots */
    SLOT_UNIT_BASE,       /* device: bases of units that live elsewhere, each beside a slot of weights of a unit */
    SLOT_EXPERTS_WEIGHTS, /* device: as SLOT_UNIT_WEIGHTS, of experts that a group shares out */
    SLOT_EXPERTS_BASE,    /* device: as SLOT_UNIT_BASE, beside these */
    SLOT_TYPED_WEIGHTS, /* device: weights of embedding or head that live elsewhere, where blocks' are narrow and so fit
                           no slot of theirs */
    SLOT_TABLE,         /* device: a tied table that lives elsewhere, kept from embedding to head */
    SLOT_ROWS,          /* host: gathered rows of all micro-batches */
    SLOT_ROWS_RING,     /* device ring: gathered rows */
    SLOT_SAVED_SHARED,  /* device: intermediates that are computed again */
    SLOT_DERIVED_SHARED,
    SLOT_OUTPUT_RING,  /* device: outputs between two units, whose home is elsewhere */
    SLOT_INPUT_BACK,   /* device ring: kept inputs on their way to the backward pass */
    SLOT_INPUT_OUT,    /* host ring: kept inputs to NVMe */
    SLOT_INPUT_IN,     /* host ring: kept inputs from NVMe */
    SLOT_OUTPUT_GRAD,  /* device; pieces: micro-batches of a group */
    SLOT_WHOLE_GRAD,   /* device ring: gradients of all rows, with sequence parallelism */
    SLOT_NORM_GRAD,    /* device ring: parts of the gradient at a norm, which a tensor group exchanges */
    SLOT_SOFTMAX,      /* device ring: per-row max, sum and target logit of each rank's part of the vocabulary */
    SLOT_PRODUCT_GRAD, /* device: gradient at the result of a block's first product, in a group */
    SLOT_NORMED,       /* device ring: normalised inputs, with sequence parallelism */
    SLOT_TOKENS,
    SLOT_TOKEN_STAGING, /* host: tokens of two steps */
    SLOT_WORK,
    SLOT_WORK_ACC, /* device: the accumulator being added to, and another that is on its way meanwhile */
    SLOT_OTHER_WORK_ACC,
    SLOT_EXPERTS_ACC, /* device: as SLOT_WORK_ACC, of experts that a group shares out, beside that of their block */
    SLOT_OTHER_EXPERTS_ACC,
    SLOT_TABLE_ACC,   /* device: accumulator of a tied table, from head to embedding */
    SLOT_ACC_OUT,     /* host ring: accumulators to NVMe */
    SLOT_ACC_IN,      /* host ring: accumulators from NVMe */
    SLOT_UPDATE_WORK, /* host: scratch of Muon's updates there */
    SLOT_SQUARE_SUMS_DEVICE,
    SLOT_SQUARE_SUMS_HOST,
    SLOT_NORM,
    SLOT_BUCKETS,        /* device ring: chunks of all ranks' shards, to be reduced */
    SLOT_BUCKET_SUMS,    /* device ring: this rank's reduced chunks, in fp32 */
    SLOT_QUANT_WEIGHTS,  /* device: quantized weights of a unit, gathered */
    SLOT_QUANT_BUCKETS,  /* device ring: quantized chunks of all ranks' shards, to be exchanged */
    SLOT_QUANT_PARTS,    /* device ring: the other ranks' quantized chunks of this rank's shard */
    SLOT_NODE_SUMS,      /* device ring: a node's sums of the chunks of one number within their nodes, in fp32 */
    SLOT_NODE_QUANT,     /* device ring: a node's sums, quantized, to be exchanged between nodes */
    SLOT_NODE_PARTS,     /* device ring: quantized partial sums received from the other nodes */
    SLOT_REDUCED,        /* device ring: reduced chunks owned by this rank, waiting for download */
    SLOT_STAGING,        /* device: memory that reductions pass through */
    SLOT_SUMMARIES,      /* host: the summaries of a step of all ranks */
    SLOT_GRADS_DOWN,     /* device ring: finished chunks on their way to the host */
    SLOT_GRADS_OUT,      /* host ring: chunks on their way to NVMe */
    SLOT_GRADS_IN,       /* host ring: chunks for an update */
    SLOT_GRADS_UP,       /* device ring: chunks for an update on the device */
    SLOT_OPTIMIZER_RING, /* host ring: optimizer state read, updated, written */
    SLOT_OPTIMIZER_UP,   /* device ring: optimizer state that passes through it for its update */
    SLOT_WEIGHTS_RING,   /* host ring: new weights on their way to device or NVMe */
    SLOT_WEIGHTS_IN,     /* host ring: weights read from NVMe */
    SLOT_ROUTING,        /* host: which units of experts have rows, in inference with weights away from the device */
    SLOT_IN_PLACE,       /* host: pages of the model's own files, on their way to that ring */
    SLOT_WEIGHTS_DOWN,   /* device ring: new weights of an update on the device, on their way to the host */
    SLOT_KINDS
};

/* Slot numbers by kind; -1 where the plan needs no such slot. */
struct sw_plan_index {
    int32_t *arrays;                   /* the block that all arrays of of_unit lie in */
    int32_t *of_unit[SLOT_UNIT_KINDS]; /* one entry per unit */
    int32_t slot[SLOT_KINDS];          /* slots of the kinds from SLOT_UNIT_KINDS on */
};

/* The order of a stage of a pipeline (stages.c): what it gets from other stages, and its passes, each of a group of
 * micro-batches in a turn. A pass gives its outputs or gradients to the stage that needs them before the next event. */
typedef enum {
    SW_STAGE_GETS_OUTPUTS,
    SW_STAGE_GETS_GRADS,
    SW_STAGE_FORWARD,
    SW_STAGE_BACKWARD,
    SW_STAGE_EVENTS
} sw_stage_event_kind;

struct sw_stage_event {
    sw_stage_event_kind kind;
    int32_t turn, group;
    int32_t grads; /* of gradients and backward passes: where the group's gradients at outputs are, by groups */
};

/* How many groups a turn has at once: with inputs here, between their forward and their backward pass, and between the
 * arrival of inputs and the end of the forward pass. */
struct sw_stage_turn {
    int64_t inputs, in_flight, received;
};

struct sw_stage_schedule {
    struct sw_stage_event *event;
    int64_t count;
    struct sw_stage_turn *turn;
    int64_t grads; /* groups that have gradients at outputs here at once */
};
/* Makes the schedule of a stage, for so many groups. The caller destroys it, also after an error. */
sw_status sw_stage_schedule_create(const struct sw_plan_pipeline *pipeline, int64_t groups,
                                   struct sw_stage_schedule **out);
void sw_stage_schedule_destroy(struct sw_stage_schedule *schedule);
/* Returns the pieces of the slot where a unit's inputs arrive from another stage; 0: none do. */
int64_t sw_plan_received_pieces(const struct sw_plan *plan, int64_t unit);

/* Chunks of a ring that updates pass through which are kept free for chunks on their way back. */
enum { SW_RING_CHUNKS_BEHIND = 16 };

/* Returns the unit whose kept input a unit's backward pass reads: the unit itself where its input is kept. */
int64_t sw_plan_backward_input(const struct sw_plan *plan, int64_t unit);
/* Returns the frozen weights of a unit that is trained; of another unit, no grains. */
static inline struct sw_span sw_plan_frozen(const struct sw_plan *plan, int64_t unit) {
    const struct sw_unit *u = &plan->spec.units->unit[unit];
    const int64_t grains = sw_plan_trains(plan, unit) ? u->trained_grain - u->base_grains : 0;
    return (struct sw_span){.first_grain = u->base_grains, .grains = grains};
}
/* Returns the number of a unit's trained grains. */
static inline int64_t sw_plan_trained_grains(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_trained(plan, unit).grains;
}
/* Returns how many grains the weights of a unit begin behind the start of a slot that holds them whole. A unit's first
 * weights are those behind its base. */
static inline int64_t sw_plan_lead_grains(const struct sw_plan *plan, int64_t unit) {
    const int64_t frozen = sw_plan_frozen(plan, unit).grains;
    return frozen == 0 ? 0 : sw_round_up(frozen, plan->spec.chunk_grains) - frozen;
}
/* Returns the number of chunks of a unit's whole weights, and of its trained span. */
int64_t sw_plan_chunks(const struct sw_plan *plan, int64_t unit);
int64_t sw_plan_trained_chunks(const struct sw_plan *plan, int64_t unit);
/* Tells whether a unit's weights are gathered from the ranks that have updated them. */
bool sw_plan_all_gathers_weights(const struct sw_plan *plan, int64_t unit);
/* Tells whether the ranks gather a unit's weights quantized: not those of a unit with both spans or a base. */
bool sw_plan_gathers_quantized(const struct sw_plan *plan, int64_t unit);
/* Tells whether a unit's whole weights live on the device. */
static inline bool sw_plan_has_whole_on_device(const struct sw_plan *plan, int64_t unit) {
    return plan->placement[unit].tier[SW_WEIGHTS] == SW_DEVICE && !sw_plan_is_sharded(plan, unit, SW_WEIGHTS);
}
/* Returns what memory of a tier holds of a unit's state: gradients that live on the device are whole before they are
 * reduced. */
struct sw_span sw_plan_kept(const struct sw_plan *plan, sw_state state, int64_t unit, sw_tier tier);

/* Returns what the ranks share out of a unit as its shards: its trained span; of a frozen unit, its weights. */
static inline struct sw_span sw_plan_shared(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_trains(plan, unit) ? sw_plan_trained(plan, unit) : sw_plan_typed(plan, unit);
}
/* Returns the number of chunks of these that this rank has, and one of them. */
int64_t sw_plan_own_frozen_chunks(const struct sw_plan *plan, int64_t unit);
struct sw_span sw_plan_own_frozen_chunk(const struct sw_plan *plan, int64_t unit, int64_t chunk);
/* Tells whether a unit's frozen and trained weights have a home each: as shards, or because their tiers differ. */
bool sw_plan_splits_weights(const struct sw_plan *plan, int64_t unit);
/* Returns this rank's shard of a unit's trained span, or of a frozen unit, and the number of its chunks. */
struct sw_span sw_plan_shard(const struct sw_plan *plan, int64_t unit);
int64_t sw_plan_shard_chunks(const struct sw_plan *plan, int64_t unit);
/* Returns the grains of the largest shard of such a unit. */
int64_t sw_plan_most_shard_grains(const struct sw_plan *plan, int64_t unit);
/* Returns the grains that a bucket has before the chunk of a rank; with the number of all ranks, those of the bucket.
 */
int64_t sw_plan_bucket_grains(const struct sw_plan *plan, int64_t unit, int64_t number, int rank);
/* Returns the parts of a unit that a bucket holds, one after the other: the chunk of each rank that has one, or the
 * whole unit if it has one bucket, so that a thousand ranks are one part. Behind the last it has no grains. */
struct sw_span sw_plan_bucket_run(const struct sw_plan *plan, int64_t unit, int64_t number, int64_t run);
/* Returns a chunk of a unit's whole weights, of its trained span, or of this rank's secondary shard of it. */
struct sw_span sw_plan_unit_chunk(const struct sw_plan *plan, int64_t unit, int64_t chunk);
/* Returns the number of cells of a unit's base, 0 where this rank's stage does not have the unit; of the chunks that
 * this rank has of it, and the cells of one. */
int64_t sw_plan_base_cells(const struct sw_plan *plan, int64_t unit);
int64_t sw_plan_base_chunks(const struct sw_plan *plan, int64_t unit);
struct sw_span sw_plan_base_chunk(const struct sw_plan *plan, int64_t unit, int64_t chunk);
struct sw_span sw_plan_trained_chunk(const struct sw_plan *plan, int64_t unit, int64_t chunk);
struct sw_span sw_plan_secondary_chunk(const struct sw_plan *plan, int64_t unit, int64_t chunk);
/* Returns this rank's secondary shard of a unit. */
struct sw_span sw_plan_secondary(const struct sw_plan *plan, int64_t unit);

/* Tells whether a unit's optimizer state passes through the device for its update. */
static inline bool sw_plan_streams_optimizer(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_updates_on_device(plan, unit) && plan->placement[unit].tier[SW_OPTIMIZER] != SW_DEVICE;
}
/* Tells whether a unit that lives elsewhere has the slot of embedding and head, rather than one of those of blocks. */
bool sw_plan_has_typed_slot(const struct sw_plan *plan, int64_t unit);
/* Tells whether the host gathers the embedding's rows that a step's tokens name, and only these go to the device. */
bool sw_plan_gathers_rows(const struct sw_plan *plan);
/* Tells whether a tied embedding's weights live elsewhere and have the table slot on the device. */
bool sw_plan_fetches_table(const struct sw_plan *plan);
/* Tells whether the plan has this program. */
bool sw_plan_has_program(const struct sw_plan *plan, sw_program_kind kind);

/* Returns the least that the records of any rank's part of a unit save (sw_records_saved). */
int64_t sw_plan_least_saved_bytes(const struct sw_plan *plan, int64_t unit);

/* Returns the bytes of grains of a slot that holds grain after grain; `first` counts from the slot's first. */
struct sw_extent_bytes {
    int64_t offset_bytes, bytes;
};
static inline struct sw_extent_bytes sw_slot_grains(const struct sw_slot *slot, int64_t first, int64_t grains) {
    const int64_t begin = first == 0 ? slot->lead_bytes : first * slot->grain_bytes;
    return (struct sw_extent_bytes){begin, (first + grains) * slot->grain_bytes - begin};
}

/* Returns a hash of all that outlines of one specification differ in, its chunk_grains, update_on_device and rises
 * being open; never 0. */
uint64_t sw_plan_hash(const struct sw_plan *plan);

/* Lays out all slots for plan->placement and plan->recompute and sets tier_bytes. Replaces an earlier layout. */
sw_status sw_plan_layout(struct sw_plan *plan);
/* Sets tier_bytes as sw_plan_layout does, and lays out no slots. */
sw_status sw_plan_measure(struct sw_plan *plan);

/* Tells whether the layout is within the budgets. */
bool sw_plan_fits(const struct sw_plan *plan);

/* Fills plan->placement, plan->recompute and the lengths of rings, within the budgets (place.c). SW_ERR_BUDGET says by
 * how much nothing fits. */
sw_status sw_plan_place(struct sw_plan *plan);

/* Tells whether two units differ in nothing that a layout depends on, so that what changes for one of them takes as
 * many bytes as for the other. */
bool sw_plan_units_are_alike(const struct sw_plan *plan, int64_t a, int64_t b);

/* Returns the share of the units, or of all changes to intermediates, that have risen as a rise would raise them. */
double sw_plan_risen_share(const struct sw_plan *plan, sw_rise rise);

/* Returns the role of an access in its op. */
sw_role sw_role_of(const struct sw_op *op, const struct sw_access *access);

/* Returns the bytes of a program's ops and accesses. */
static inline int64_t sw_program_bytes(const struct sw_program *program) {
    return program->op_count * (int64_t)sizeof *program->op + program->access_count * (int64_t)sizeof *program->access;
}
/* Emits the ops of a program with their accesses. SW_ERR_ARG beyond SW_PLAN_MOST_OPS or
 * SW_PLAN_MOST_BYTES. */
sw_status sw_plan_emit(const struct sw_plan *plan, sw_program_kind kind, struct sw_program *out);

/* Memory in which programs are emitted one after the other, each in place of the one before: the system would take up
 * to a third of a search's time to give fresh pages to each. It begins as zeros. */
struct sw_hazards;
struct sw_emit_room {
    struct sw_program program; /* the last one; it has no index of lanes, and the hazards own its waits */
    int32_t op_capacity, access_capacity;
    struct sw_hazards *hazards; /* NULL: nothing was emitted yet */
};
/* Emits the ops of a program with their waits and keeps no accesses, of which it returns the number. */
sw_status sw_plan_emit_waits(const struct sw_plan *plan, sw_program_kind kind, struct sw_emit_room *room,
                             int64_t *out_accesses);
/* Frees what the room holds, after which it is as at its beginning. */
void sw_emit_room_destroy(struct sw_emit_room *room);

/* Hands the ops of a program to `take` as they are emitted, some at a time, and keeps none. They have no waits. `take`
 * returns false where it wants no more. */
typedef bool (*sw_take_ops)(void *context, const struct sw_op *op, int32_t count);
sw_status sw_plan_emit_through(const struct sw_plan *plan, sw_program_kind kind, sw_take_ops take, void *context);

/* Returns the refusal of a plan beyond SW_PLAN_MOST_OPS or SW_PLAN_MOST_BYTES. */
sw_status sw_plan_refuse_ops(const struct sw_plan_spec *spec);

/* Derives the waits of a program from its accesses. */
sw_status sw_plan_derive_waits(const struct sw_plan *plan, struct sw_program *program);

/* Derive waits op by op, so that no more accesses than one op's need be kept. The ops are added in order, all of them.
 * *hazards: NULL, or those of a program before, whose memory then serves again. The caller destroys them, also after an
 * error. */
sw_status sw_hazards_begin(const struct sw_plan *plan, struct sw_program *program, struct sw_hazards **hazards);
sw_status sw_hazards_add(struct sw_hazards *h, int32_t number, const struct sw_access *access, int32_t count);
/* Gives the program an array of waits of its own, those of one op after those of the op before. */
sw_status sw_hazards_end(struct sw_hazards *h);
/* Gives the program the array of the hazards, which has gaps. The program must not free it. */
sw_status sw_hazards_lend(struct sw_hazards *h);
void sw_hazards_destroy(struct sw_hazards *h);

void sw_program_destroy(struct sw_program *program);

/* Proves one program by its accesses (check.c). */
sw_status sw_program_check(const struct sw_plan *plan, const struct sw_program *program, bool repeats);

/* Returns the bytes that this rank gives to others in the gather of an op. */
int64_t sw_plan_gathered_bytes(const struct sw_plan *plan, const struct sw_op *op);

#endif
