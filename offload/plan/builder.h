/* How the ops of a program are written down: one after the other, each with what it reads and writes. */
#ifndef SW_OFFLOAD_PLAN_BUILDER_H
#define SW_OFFLOAD_PLAN_BUILDER_H

#include "offload/plan/plan_private.h"

struct sw_builder;

enum sw_ring {
    RING_GRADS_DOWN,
    RING_GRADS_OUT,
    RING_GRADS_IN,
    RING_GRADS_UP,
    RING_OPTIMIZER,
    RING_OPTIMIZER_UP,
    RING_WEIGHTS,
    RING_WEIGHTS_IN,
    RING_WEIGHTS_DOWN,
    RING_ROWS,
    RING_OUTPUT,
    RING_INPUT_BACK,
    RING_INPUT_OUT,
    RING_INPUT_IN,
    RING_ACC_OUT,
    RING_ACC_IN,
    RING_BUCKETS,
    RING_BUCKET_SUMS,
    RINGS
};

/* A piece of a slot, or the part of it that begins offset_bytes in. */
enum { SW_BY_GRAINS = -1 }; /* in place of a piece: those that hold the op's grains */
struct sw_operand {
    int32_t slot;
    int64_t piece;
    int64_t offset_bytes;
    int64_t bytes; /* 0: those of the op's grains, or, where it has none, the rest of the piece */
    bool own;      /* it gets, or has, this rank's part of what the ranks make whole */
};

/* A chunk of a unit's state, by its number among the chunks that this rank has. */
struct sw_chunk {
    int64_t unit, number;
    struct sw_span at;
};
struct sw_chunk sw_build_chunk(const struct sw_builder *b, sw_state state, int64_t unit, int64_t number);

/* What a piece holds, or is given. */
struct sw_what {
    sw_content content;
    int64_t unit, index, stage;
    int age;
    sw_generation generation;
};

/* What the updates need of a state, chunk by chunk in their order, brought into its ring before they come to it. */
struct sw_read_ahead {
    int64_t unit, chunk; /* the next to be brought; unit: count of units when all are */
    int64_t brought, taken;
    int32_t first_piece; /* of the next to be taken */
};

struct sw_builder {
    const struct sw_plan *plan;
    const struct sw_plan_index *index;
    struct sw_program *program;
    int32_t op_capacity, access_capacity;
    int64_t most_bytes; /* that this program may have beside the plan's other ones */
    int32_t ring_next[RINGS];
    int32_t unit_slot_next;
    int64_t unit_slot_holds[UNIT_SLOTS_MAX]; /* unit, or -1 */
    bool table_held;                         /* the table slot has this step's weights */
    bool rows_held;                          /* rows of the embedding are gathered */
    int work_acc_next;
    int64_t sums_unit; /* whose shard is reduced and has no sums of squares yet, or -1 */
    struct sw_read_ahead ahead[SW_STATES];
    int state_age;    /* of weights and records that this program computes with: made in this step, or before */
    bool saves;       /* records that live on device or host also go to NVMe */
    bool commits;     /* a commit has been written down */
    bool works;       /* something that uses the work area has */
    bool redo;        /* ops being written down belong to a redo */
    sw_take_ops take; /* takes the ops and their accesses away as they become many; NULL: all are kept */
    void *take_context;
    bool enough;          /* `take` wants no more */
    struct sw_op dropped; /* receives ops once memory ran out, which the status says, or once there are enough */
    sw_status status;
};

/* Hands the ops that were written down since the last time to `take`. */
void sw_build_hand_on(struct sw_builder *b);
struct sw_op *sw_build_op(struct sw_builder *b, sw_op_kind kind, sw_lane lane, int64_t unit, int64_t micro);
struct sw_op *sw_build_chunk_op(struct sw_builder *b, sw_op_kind kind, sw_lane lane, const struct sw_chunk *chunk);
/* Adds to the last op that it reads, or writes, one piece. */
void sw_build_read(struct sw_builder *b, struct sw_operand place, struct sw_what what);
void sw_build_write(struct sw_builder *b, struct sw_operand place, struct sw_what what);
/* Like these two, of the pieces that hold these grains of a unit's state. */
void sw_build_read_grains(struct sw_builder *b, int32_t slot, struct sw_span at, struct sw_what what);
void sw_build_write_grains(struct sw_builder *b, int32_t slot, struct sw_span at, struct sw_what what);
/* Like these two, of all chunks of a unit. */
void sw_build_read_unit(struct sw_builder *b, int32_t slot, struct sw_what what);
void sw_build_write_unit(struct sw_builder *b, int32_t slot, struct sw_what what);

/* Takes the next piece of a ring. */
struct sw_operand sw_build_ring(struct sw_builder *b, enum sw_ring ring);

/* Moves a piece, of a micro-batch or a chunk, between two tiers: kind and lane follow from the tiers. */
void sw_build_transfer(struct sw_builder *b, struct sw_operand from, struct sw_operand to, struct sw_what what,
                       int64_t micro, int64_t bytes);
void sw_build_move(struct sw_builder *b, struct sw_operand from, struct sw_operand to, struct sw_what what,
                   const struct sw_chunk *chunk, int64_t bytes);

/* Returns the bytes of a chunk in the compute type. */
int64_t sw_build_typed_bytes(const struct sw_builder *b, const struct sw_chunk *chunk);

/* Makes a unit's weights ready on the device and returns their slot: where they live, where they still are, or fetched
 * (fetch.c). */
int32_t sw_build_fetch(struct sw_builder *b, int64_t unit);
/* The rows that a micro-batch needs of an embedding that is gathered, on the device; they have been fetched. */
struct sw_operand sw_build_rows(struct sw_builder *b, int64_t micro);
/* Gathers them, of all micro-batches, from a chunk of weights on the host. */
void sw_build_gather(struct sw_builder *b, const struct sw_chunk *chunk, struct sw_operand weights,
                     struct sw_what what);
/* Takes a device slot for a unit that lives elsewhere. */
int32_t sw_build_unit_slot(struct sw_builder *b, int64_t unit);

/* The update of a unit with the gradients of the step before, or its redo, which is written down in parts. */
struct sw_unit_update {
    bool begun;
    int64_t unit, chunks, next; /* in all, and the first that is not written down yet */
    bool redo, gathers;         /* rows are gathered from its new weights */
    int32_t slot;               /* device slot that its new weights also go to, or -1 */
};
/* Tells whether a unit's update may begin before other units' updates: it takes no piece of a ring that these take in
 * their turn, and no device slot for its weights. */
bool sw_build_update_is_apart(const struct sw_builder *b, int64_t unit);
/* feed: its new weights also go to where sw_build_fetch will find them. */
struct sw_unit_update sw_build_update_begin(struct sw_builder *b, int64_t unit, sw_waiting waiting, bool feed);
/* Writes down the chunks before `end`. */
void sw_build_update_to(struct sw_builder *b, struct sw_unit_update *update, int64_t end);
/* After the last one: where each rank has updated its shard, all get the whole. */
void sw_build_update_end(struct sw_builder *b, const struct sw_unit_update *update);
void sw_build_commit(struct sw_builder *b);

/* A group of micro-batches on its way through the units. */
struct sw_group {
    int64_t first, count;
    struct sw_operand *at; /* one per micro-batch: where its block input is on the device */
    bool train;            /* block inputs are kept for the backward pass */
    bool caches;           /* units read and extend their KV caches */
    bool speculate;        /* finished gradients go into the update at once */
    /* The update of the next unit that streams through the device. Its chunks are written down between the
     * micro-batches of the units before it, so that the compute lane need not wait for the link, nor the link for
     * updates on the host. */
    struct sw_unit_update ahead;
};

/* Copies the tokens of so many micro-batches to the device. */
void sw_build_tokens(struct sw_builder *b, int64_t micros);
/* Runs one unit's forward pass of each micro-batch of a group. */
void sw_build_forward(struct sw_builder *b, struct sw_group *group, int64_t unit);
/* Runs the head, fused, and then the backward pass of the other units in reverse order. Gradients go home with the last
 * group. */
void sw_build_backward(struct sw_builder *b, struct sw_group *group);
/* Runs the head's forward pass of a group, as an op of `kind`: the loss or the logits. */
void sw_build_inference_head(struct sw_builder *b, const struct sw_group *group, sw_op_kind kind);

/* A finished gradient goes to where gradients live and, where the program speculates, into the update at once. */
void sw_build_round_gradients(struct sw_builder *b, int64_t unit, int32_t acc, int64_t stage, bool speculate);
void sw_build_norm(struct sw_builder *b);
/* Adds to the last op that it leaves the square sums of a chunk of gradients. */
void sw_build_note_square_sums(struct sw_builder *b, int64_t unit, int64_t chunk);
/* Copies the square sums of a unit to the host. */
void sw_build_download_square_sums(struct sw_builder *b, int64_t unit);

/* Between ranks (exchange.c): each rank's own gradients become the shard of their sum; the shards in a slot of this
 * rank become the whole unit in another, or in the same; what is known of the step goes to all, once it is committed
 * where it commits. */
void sw_build_reduce(struct sw_builder *b, int64_t unit, int32_t acc, int64_t stage);
/* Takes the square sums of the shard that was reduced last, if nobody has. */
void sw_build_sums_of_shard(struct sw_builder *b);
/* The same of one group's, added to the accumulator of the shard. */
void sw_build_reduce_group(struct sw_builder *b, int64_t unit, int32_t acc, int64_t stage, int64_t groups_before);
void sw_build_all_gather(struct sw_builder *b, int64_t unit, int32_t from, int32_t to);
void sw_build_exchange_summary(struct sw_builder *b, bool sums);

/* The last access of the norm: what the step before found, which decides about redoing. */
void sw_build_read_norm(struct sw_builder *b);

#endif
