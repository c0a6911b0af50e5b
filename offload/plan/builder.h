/* The builder writes down the ops of a program one after the other, each with what it reads and writes. */
#ifndef SW_OFFLOAD_PLAN_BUILDER_H
#define SW_OFFLOAD_PLAN_BUILDER_H

#include "offload/plan/plan_private.h"

struct sw_builder;

/* A piece of a slot, or the part of it that begins offset_bytes in. */
enum { SW_BY_GRAINS = -1 }; /* in place of a piece's number: the pieces that hold the op's grains */
struct sw_operand {
    int32_t slot;
    int64_t piece;
    int64_t offset_bytes;
    int64_t bytes; /* 0: the bytes of the op's grains, or, where it has none, the rest of the piece */
    bool own;      /* only this rank's shard is, or becomes, valid; the rest arrives with the all-gather */
};

/* A chunk of a unit's state, by its number among the chunks that this rank has. */
struct sw_chunk {
    int64_t unit, number;
    struct sw_span at;
};
struct sw_chunk sw_build_chunk(const struct sw_builder *b, sw_state state, int64_t unit, int64_t number);

/* The content that a piece holds, or is given. */
struct sw_what {
    sw_content content;
    int64_t unit, index, version;
    int age;
    sw_generation generation;
};

/* Chunks of a state that are brought into its ring, in the order of the updates, before these take them. */
struct sw_read_ahead {
    int64_t unit, chunk;    /* the next chunk to be brought; unit is the count of units when all are */
    int64_t brought, taken; /* chunks so far */
    int32_t first_piece;    /* piece of the next chunk to be taken */
};

/* Device slots that units which live elsewhere take in turn. */
struct sw_unit_ring {
    int32_t next;
    int64_t holds[UNIT_SLOTS_MAX]; /* unit, or -1 */
};

/* The pieces of a slot that hold all that a unit has of a content. */
struct sw_whole {
    int32_t slot, unit;
    sw_content content;
    int32_t first, count;
};
enum { SW_WHOLES = 16 };

struct sw_builder {
    const struct sw_plan *plan;
    const struct sw_plan_index *index;
    struct sw_program *program;
    int32_t op_capacity, access_capacity;
    int64_t most_bytes; /* bytes of ops and accesses that the plan's other programs leave for this one */
    int32_t ring_next[SLOT_KINDS];
    struct sw_unit_ring unit_ring[2]; /* of the units' slots, and of those of experts that a group shares out */
    int64_t typed_slot_holds;         /* unit, or -1 */
    bool table_held;                  /* the table slot has this step's weights */
    bool rows_held;                   /* rows of the embedding are gathered */
    int64_t secondary_units; /* units before this one have had their forward pass, and their secondary shards kept */
    int work_acc_next[2];    /* of all units, and of experts that a group shares out */
    int64_t routing_unit;    /* unit whose routing decides which units of experts are fetched; -1: all are */
    /* The block input that several units share, once it is back on the device. shared_unit keeps it (-1: none);
     * shared_first is the group's first micro-batch; shared_count micro-batches are back; shared_piece is the first
     * one's piece in the ring of outputs. */
    int64_t shared_unit, shared_first, shared_count;
    int32_t shared_piece;
    int64_t sums_unit; /* unit whose shard is reduced and has no square sums yet; -1: none */
    struct sw_read_ahead ahead[SW_STATES];
    int state_age;    /* age of the weights and optimizer state computed with: 0 made in this step, 1 before */
    bool saves;       /* optimizer state that lives on device or host also goes to NVMe */
    bool commits;     /* a commit has been written down */
    bool works;       /* an op that uses the work area has been written down */
    bool redo;        /* ops that are being written down belong to a redo */
    sw_take_ops take; /* takes ops and their accesses away as they become many; NULL: all are kept */
    void *take_context;
    bool enough; /* `take` wants no more */
    /* Where these are given, they get the accesses of each op, and of its accesses none is kept. NULL: all are kept,
     * with their roles and addresses. */
    struct sw_hazards *hazards;
    int64_t passed_accesses;          /* accesses that they got, or would have got (sw_build_in_order) */
    struct sw_whole whole[SW_WHOLES]; /* found before, by slot: each micro-batch asks for the same ones again */
    struct sw_op dropped; /* receives ops once memory ran out, which the status says, or once there are enough */
    sw_status status;
};

/* Hands the ops that were written down since the last time to `take`. */
void sw_build_hand_on(struct sw_builder *b);
/* Hands the accesses of the last op to the hazards, if these are given. */
void sw_build_pass_accesses(struct sw_builder *b);
/* Writes down an op, to which accesses are then added. The pointer is valid until the next op. unit, micro: -1 for
 * none.
 */
struct sw_op *sw_build_op(struct sw_builder *b, sw_op_kind kind, int64_t unit, int64_t micro);
struct sw_op *sw_build_chunk_op(struct sw_builder *b, sw_op_kind kind, const struct sw_chunk *chunk);
/* Adds an access to the last op: to one piece, or to those that hold the op's grains. */
void sw_build_any_access(struct sw_builder *b, bool write, const struct sw_operand *place, const struct sw_what *what);
/* Adds to the last op an access that hazards alone get, which need no more of one than this. Returns false, and adds
 * nothing, where all of an access is kept, or there is no room. */
static inline bool sw_build_passed(struct sw_builder *b, bool write, int32_t slot, int64_t first, int32_t count,
                                   sw_generation generation) {
    struct sw_program *program = b->program;
    if (b->hazards == NULL || b->status != SW_OK || program->access_count == b->access_capacity)
        return false;
    struct sw_access *access = &program->access[program->access_count++];
    access->slot = slot;
    access->first = (int32_t)first;
    access->count = count;
    access->write = write;
    access->generation = generation;
    return true;
}
/* As sw_build_any_access, inline for accesses to one piece that hazards alone get: a search makes a hundred million of
 * them. Only the other way takes the address of `place` and `what`, so that they need not be in memory. */
static inline void sw_build_access(struct sw_builder *b, bool write, struct sw_operand place, struct sw_what what) {
    if (place.piece == SW_BY_GRAINS || !sw_build_passed(b, write, place.slot, place.piece, 1, what.generation)) {
        const struct sw_operand at = place;
        const struct sw_what held = what;
        sw_build_any_access(b, write, &at, &held);
    }
}
/* Adds an access to one piece of a slot that only ops of the compute lane use. They run in their order anyway, so
 * hazards need not see it. */
static inline void sw_build_in_order(struct sw_builder *b, bool write, struct sw_operand place, struct sw_what what) {
    if (b->hazards != NULL)
        b->passed_accesses++;
    else
        sw_build_access(b, write, place, what);
}
/* Adds an access to the pieces that hold these grains of a unit's state. */
void sw_build_access_grains(struct sw_builder *b, bool write, int32_t slot, struct sw_span at,
                            const struct sw_what *what);
/* Adds to the last op that it reads, or writes, one piece. */
static inline void sw_build_read(struct sw_builder *b, struct sw_operand place, struct sw_what what) {
    sw_build_access(b, false, place, what);
}
static inline void sw_build_write(struct sw_builder *b, struct sw_operand place, struct sw_what what) {
    sw_build_access(b, true, place, what);
}
/* Adds to the last op that it reads, or writes, the pieces that hold these grains of a unit's state. */
static inline void sw_build_read_grains(struct sw_builder *b, int32_t slot, struct sw_span at, struct sw_what what) {
    sw_build_access_grains(b, false, slot, at, &what);
}
static inline void sw_build_write_grains(struct sw_builder *b, int32_t slot, struct sw_span at, struct sw_what what) {
    sw_build_access_grains(b, true, slot, at, &what);
}
/* Adds to the last op that it reads, or writes, all that a unit has of a content. */
void sw_build_access_unit(struct sw_builder *b, bool write, int32_t slot, const struct sw_what *what);
static inline void sw_build_read_unit(struct sw_builder *b, int32_t slot, struct sw_what what) {
    sw_build_access_unit(b, false, slot, &what);
}
static inline void sw_build_write_unit(struct sw_builder *b, int32_t slot, struct sw_what what) {
    sw_build_access_unit(b, true, slot, &what);
}

/* Takes the next piece of a ring. */
struct sw_operand sw_build_ring(struct sw_builder *b, enum sw_slot_kind ring);

/* Moves a piece, of a micro-batch or a chunk, between two tiers: kind and lane follow from the tiers. */
void sw_build_transfer(struct sw_builder *b, struct sw_operand from, struct sw_operand to, struct sw_what what,
                       int64_t micro, int64_t bytes);
void sw_build_move(struct sw_builder *b, const struct sw_operand *from, const struct sw_operand *to,
                   const struct sw_what *what, const struct sw_chunk *chunk, int64_t bytes);

/* Returns the bytes of a chunk's rounded gradients as they are kept. */
int64_t sw_build_grads_bytes(const struct sw_builder *b, const struct sw_chunk *chunk);
/* Returns the bytes of a chunk in the compute type. */
int64_t sw_build_typed_bytes(const struct sw_builder *b, const struct sw_chunk *chunk);
/* Returns the bytes of a chunk's weights, as they lie and cross links. */
int64_t sw_build_weights_bytes(const struct sw_builder *b, const struct sw_chunk *chunk);

/* Makes a unit's weights ready on the device and returns their slot: where they live, where they still are, or fetched
 * (update.c). */
int32_t sw_build_fetch(struct sw_builder *b, int64_t unit);
/* Returns the first of the slots that a unit which lives elsewhere takes in turn with others. */
int32_t sw_build_first_slot(const struct sw_builder *b, int64_t unit);
/* Returns the device slot of a unit's base, by that which sw_build_fetch returned. */
int32_t sw_build_base_slot(const struct sw_builder *b, int64_t unit, int32_t slot);
/* Copies a micro-batch's gathered rows of the embedding to the device and returns where they are. The embedding has
 * been fetched. */
struct sw_operand sw_build_rows(struct sw_builder *b, int64_t micro);

/* The update of a unit with the gradients of the step before, or its redo, which is written down in parts. */
struct sw_unit_update {
    bool begun;
    int64_t unit, chunks, next; /* chunks: in all; next: the first that is not written down yet */
    bool redo, gathers;         /* gathers: rows are gathered from its new weights */
    int32_t slot;               /* device slot that its new weights also go to; -1: none */
};
/* Tells whether a unit's update may begin before other units' updates: it takes no piece of a ring that these take in
 * their turn, and no device slot for its weights. */
bool sw_build_update_is_apart(const struct sw_builder *b, int64_t unit);
/* Begins the update of a unit. feed: its new weights also go to where sw_build_fetch will find them. */
struct sw_unit_update sw_build_update_begin(struct sw_builder *b, int64_t unit, sw_waiting waiting, bool feed);
/* Writes down the chunks before `end`. */
void sw_build_update_to(struct sw_builder *b, struct sw_unit_update *update, int64_t end);
/* Ends an update after its last chunk: where each rank has updated its shard, all get the whole. */
void sw_build_update_end(struct sw_builder *b, const struct sw_unit_update *update);
void sw_build_commit(struct sw_builder *b);

/* A group of micro-batches on its way through the units. */
struct sw_group {
    int64_t number, first, count; /* its number, first micro-batch, and micro-batches */
    int turn;                     /* in which its stage of a pipeline has it now */
    int64_t grads;                /* the first of its pieces of gradients at outputs */
    struct sw_operand *at;        /* one per micro-batch: where its block input is on the device */
    bool train;                   /* block inputs are kept for the backward pass */
    bool caches;                  /* units read and extend their KV caches */
    bool speculate;               /* finished gradients go into the update at once */
    /* The update of the next unit that streams through the device. Its chunks are written down between the
     * micro-batches of the units before it, so that the compute lane need not wait for the link, nor the link for
     * updates on the host. */
    struct sw_unit_update ahead;
};

/* The functions below say what forward, head and backward ops have in common: the last unit; the floating-point
 * operations of a unit's forward pass, of which a backward pass has SW_BACKWARD_FLOPS times as many; the output of a
 * unit; and, added to the last op, that it reads tokens or a unit's weights, or uses the work area. */
enum { SW_BACKWARD_FLOPS = 2 };
int64_t sw_build_head_of(const struct sw_builder *b);
float sw_build_forward_flops(const struct sw_builder *b, int64_t unit);
struct sw_what sw_build_output_of(int64_t unit, int64_t micro);
void sw_build_read_tokens(struct sw_builder *b, int64_t micro);
void sw_build_read_weights(struct sw_builder *b, int64_t unit, int32_t slot);
void sw_build_touch_work(struct sw_builder *b);

/* An accumulator in use: its slot on the device, and what was added so far (update.c). */
struct sw_accumulator {
    int32_t slot;
    int64_t version;
};
/* Returns the accumulator of a unit for a group: zeroed for the first, else as the group before left it. Each
 * micro-batch adds `per_micro` times (to a tied table twice, once by the head). */
struct sw_accumulator sw_build_begin_acc(struct sw_builder *b, int64_t unit, const struct sw_group *group,
                                         int per_micro);
void sw_build_end_acc(struct sw_builder *b, int64_t unit, const struct sw_group *group, struct sw_accumulator acc);
/* Adds to the last op that it adds to an accumulator. */
void sw_build_accumulate(struct sw_builder *b, int64_t unit, struct sw_accumulator *acc);
/* Tells whether a unit is a tied table, whose accumulator begins with the head. */
bool sw_build_is_table(const struct sw_builder *b, int64_t unit);

/* The backward pass of a unit's norm, which in a tensor group is an op of its own (tensor.c): its input and where its
 * gradient is, the gradient at the unit's output, and what it adds to. */
struct sw_norm_work {
    int64_t unit, micro;
    struct sw_operand input, norm_grad, grad;
    int32_t weights;
    struct sw_accumulator *acc;
};
/* Tells whether a unit has its norm's backward pass in an op of its own: in a tensor group, unless it continues a sum
 * that another began. Not for the embedding. */
bool sw_build_norm_is_apart(const struct sw_builder *b, int64_t unit);
/* Returns how often a micro-batch adds to a unit's accumulator; that of a tied table also gets the head's. */
int sw_build_adds(const struct sw_builder *b, int64_t unit);
/* Makes a unit's output whole, to which each rank of a group has added its part. Without a group it is, and where the
 * next unit continues the sum it stays this rank's. Where the next unit's input is kept partitioned on the device, this
 * rank's rows go there. */
void sw_build_sum_output(struct sw_builder *b, const struct sw_group *group, int64_t unit, int64_t within,
                         struct sw_operand at);
/* Adds the parts of a unit's output up, each rank its rows, which go to a piece of their own. */
void sw_build_sum_rows(struct sw_builder *b, int64_t unit, int64_t micro, struct sw_operand parts,
                       struct sw_operand rows);
/* Takes a piece for this rank's part of a unit's output. */
struct sw_operand sw_build_parts(struct sw_builder *b);
/* Normalises this rank's rows of a unit's input and gathers those of all ranks. Returns where they are. */
struct sw_operand sw_build_forward_norm(struct sw_builder *b, const struct sw_norm_work *norm);
/* Gathers the rows of the gradient at a unit's output, where a rank has its own alone. Returns where they all are. */
struct sw_operand sw_build_gather_grad(struct sw_builder *b, int64_t unit, int64_t micro, struct sw_operand rows);
/* Adds to the last op that it reads a unit's normalised input. */
void sw_build_read_normed(struct sw_builder *b, int64_t unit, int64_t micro, struct sw_operand normed);
/* In an expert group: adds to the last op that it writes the rows that this rank sends, and returns where; gathers
 * those of all ranks; adds up the ranks' parts of all outputs, each rank its rows, into a unit's output; and gathers
 * the gradients at the outputs of all ranks, whose version is SW_VERSION_WHOLE. */
struct sw_operand sw_build_write_sent(struct sw_builder *b, int64_t unit, int64_t micro);
void sw_build_gather_sent(struct sw_builder *b, int64_t unit, int64_t micro, struct sw_operand sent);
void sw_build_sum_parts(struct sw_builder *b, int64_t unit, int64_t micro, struct sw_operand parts,
                        struct sw_operand out);
struct sw_operand sw_build_gather_grads(struct sw_builder *b, int64_t unit, int64_t micro, struct sw_operand own);
/* The same addition where the group is of tensor groups: each rank gets its rows of its tensor group's outputs, and the
 * tensor group gathers these to `out`. */
void sw_build_sum_experts(struct sw_builder *b, const struct sw_group *group, int64_t unit, int64_t within,
                          struct sw_operand parts, struct sw_operand out);
/* Returns this rank's rows of a piece, and their bytes. */
struct sw_operand sw_build_own_rows(const struct sw_builder *b, struct sw_operand at);
int64_t sw_build_own_rows_bytes(const struct sw_builder *b);
/* Gathers a partitioned input, of which this rank's rows are in a place of their own or in that piece. */
void sw_build_gather_input(struct sw_builder *b, int64_t unit, struct sw_what input, struct sw_operand rows,
                           struct sw_operand to);
/* Adds to the last op that it writes this rank's part of what the softmax needs, gives that to the group, and returns
 * where all parts are. */
struct sw_operand sw_build_share_softmax(struct sw_builder *b, int64_t micro);
/* Adds to the last op that it writes, or reads, the gradient at the result of a block's first product. */
void sw_build_write_product_grad(struct sw_builder *b, int64_t unit, int64_t micro);
void sw_build_read_product_grad(struct sw_builder *b, int64_t unit, int64_t micro);
/* Adds to the last op that it writes its part of the gradient at a norm, and returns where. */
struct sw_operand sw_build_write_norm_grad(struct sw_builder *b, int64_t unit, int64_t micro);
/* Adds the parts of that gradient up, each rank its rows; then the norm's backward pass for these, and a gather. */
void sw_build_reduce_norm_grad(struct sw_builder *b, const struct sw_norm_work *norm);
void sw_build_backward_norm(struct sw_builder *b, const struct sw_norm_work *norm);

/* Copies the tokens of so many micro-batches to the device. */
void sw_build_tokens(struct sw_builder *b, int64_t micros);
/* Return the piece, of so many, and of a slot of kept inputs, that a micro-batch of a group has: stages keep the inputs
 * and intermediates of several groups, which take turns in as many runs of pieces. */
static inline int64_t sw_build_piece(const struct sw_builder *b, const struct sw_group *group, int64_t pieces,
                                     int64_t within) {
    return group->number % (pieces / sw_plan_group(b->plan)) * sw_plan_group(b->plan) + within;
}
static inline int64_t sw_build_input_piece(const struct sw_builder *b, const struct sw_group *group, int64_t unit,
                                           int64_t within) {
    return sw_build_piece(b, group, sw_plan_input_pieces(b->plan, unit), within);
}
/* Get a group's inputs from the stage before, give its outputs to the next, and get the gradients at these. */
void sw_build_receive_inputs(struct sw_builder *b, struct sw_group *group);
void sw_build_send_outputs(struct sw_builder *b, const struct sw_group *group);
void sw_build_receive_grads(struct sw_builder *b, const struct sw_group *group);
/* Runs one unit's forward pass of each micro-batch of a group. */
void sw_build_forward(struct sw_builder *b, struct sw_group *group, int64_t unit);
/* Runs the head, fused, and then the backward pass of the other units in reverse order. Gradients go home with the last
 * group. In a pipeline a stage runs those of the group's turn, and gives the stage before the gradients at its inputs.
 * Returns the accumulator of a tied table that the last stage adds to; slot -1: there is none, or it is ended here. */
struct sw_accumulator sw_build_backward(struct sw_builder *b, struct sw_group *group);
/* Runs the head's forward pass of a group, as an op of `kind`: the loss or the logits. */
void sw_build_inference_head(struct sw_builder *b, const struct sw_group *group, sw_op_kind kind);

void sw_build_norm(struct sw_builder *b);
/* Takes all gradients from the caller, for the sums of their squares (update.c). */
void sw_build_sums_of_caller(struct sw_builder *b);
/* Adds to the last op that it writes the square sums of a chunk of gradients. */
void sw_build_note_square_sums(struct sw_builder *b, int64_t unit, int64_t chunk);
/* Copies the square sums of a unit to the host. */
void sw_build_download_square_sums(struct sw_builder *b, int64_t unit);

/* Reduces the ranks' gradients of a unit to this rank's shard of their sum (exchange.c). */
void sw_build_reduce(struct sw_builder *b, int64_t unit, int32_t acc, int64_t version);
/* Sums the squares of the shard that was reduced last, if that is not written down yet. */
void sw_build_sums_of_shard(struct sw_builder *b);
/* Reduces the gradients of one group and adds them to the accumulator of this rank's shard. */
void sw_build_reduce_group(struct sw_builder *b, int64_t unit, int32_t acc, int64_t version, int64_t groups_before);
/* Gathers the ranks' shards of a unit's weights, this rank's from slot `from`, into the whole unit in slot `to`; both
 * may be the same. */
void sw_build_all_gather(struct sw_builder *b, int64_t unit, int32_t from, int32_t to);
/* Gathers the ranks' shards of a unit's frozen weights, if the unit is trained, and of its base, into its device slots.
 * at_home: this rank's shards live on the device; else they are in these slots. */
void sw_build_gather_frozen(struct sw_builder *b, int64_t unit, bool at_home, int32_t slot);
/* Keeps this rank's secondary shard of a unit, which a device slot has whole, where a later gather is to find it
 * (exchange.c). The units of a program come in their order; those that come again change nothing. */
void sw_build_keep_secondary(struct sw_builder *b, int64_t unit, int32_t slot);
/* Tells whether a unit's secondary shard is kept by now. */
bool sw_build_has_secondary(const struct sw_builder *b, int64_t unit);
/* Gathers the secondary shards of a unit into a device slot. */
void sw_build_gather_secondary(struct sw_builder *b, int64_t unit, int32_t slot);
/* Tells all ranks what each knows of the step (update.c), square sums included or not, once the step is committed where
 * it commits. */
void sw_build_exchange_summary(struct sw_builder *b, bool sums);

/* Adds to the last op that it reads the norm of the step before, which decides about redoing. */
void sw_build_read_norm(struct sw_builder *b);

#endif
