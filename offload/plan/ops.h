/* The words of a plan: lanes, the kinds of ops, what pieces of memory contain, and the parts that they play in an op.
 *
 * A kind of op is one row of a table (ops.c). Whoever builds, prices, checks, runs or draws an op asks its row and has
 * no list of kinds of its own, so that a new kind needs a row, what emits it and what runs it. */
#ifndef SW_OFFLOAD_PLAN_OPS_H
#define SW_OFFLOAD_PLAN_OPS_H

#include <stdbool.h>

/* Ordered queues of work on one resource. Ops start in lane order. On a synchronous lane an op starts when the one
 * before it is done; on the I/O lanes (read, write) many are in flight, but they count as done in lane order. */
typedef enum __attribute__((packed)) {
    SW_LANE_COMPUTE,
    SW_LANE_UPLOAD,
    SW_LANE_DOWNLOAD,
    SW_LANE_READ,
    SW_LANE_WRITE,
    SW_LANE_UPDATE,
    SW_LANE_COMM, /* between ranks: on all ranks of a pipeline stage the same ops in the same order, some with nothing
                     to do; stages meet where they pass something on */
    SW_LANES
} sw_lane;
const char *sw_lane_name(sw_lane lane);
static inline bool sw_lane_is_io(sw_lane lane) {
    return lane == SW_LANE_READ || lane == SW_LANE_WRITE;
}
/* Tells whether the lane belongs to the device that computes, which may queue the lane's ops. */
static inline bool sw_lane_is_of_device(sw_lane lane) {
    return lane == SW_LANE_COMPUTE || lane == SW_LANE_UPLOAD || lane == SW_LANE_DOWNLOAD;
}

/* The work of an op. Work per chunk deals with a run of grains of one unit. */
typedef enum __attribute__((packed)) {
    SW_OP_UPLOAD_TOKENS,    /* copies the step's inputs and targets to the device */
    SW_OP_FORWARD,          /* runs a unit's forward pass of one micro-batch */
    SW_OP_FORWARD_NORM,     /* runs a unit's norm for the rows of this rank, before the forward or the backward pass */
    SW_OP_SEND_ROWS,        /* runs a block's forward pass up to the rows that an expert group gives to its experts */
    SW_OP_FORWARD_EXPERTS,  /* runs this rank's experts of a block for the rows of all ranks of the group */
    SW_OP_HEAD_LOGITS,      /* runs the head's part of the logits of one micro-batch, up to its part of the softmax */
    SW_OP_COMPUTE_LOSS,     /* runs the head's forward pass of one micro-batch, for an evaluation */
    SW_OP_COMPUTE_LOGITS,   /* runs the head's forward pass of one row, for inference */
    SW_OP_ZERO_ACCUMULATOR, /* sets a unit's gradient accumulator, or this rank's shard of it, to zero */
    SW_OP_FORWARD_BACKWARD_HEAD, /* runs the head's forward and backward pass of one micro-batch, fused */
    SW_OP_BACKWARD,              /* recomputes what the forward pass did not keep, then runs a unit's backward pass */
    SW_OP_RECALL_ROWS,           /* recomputes as SW_OP_BACKWARD, and sends the rows that went to experts again */
    SW_OP_BACKWARD_EXPERTS,      /* runs this rank's experts of a block backward for the rows of all ranks */
    SW_OP_BACKWARD_LAST,         /* computes the gradients of the weights and bias of a block's last product */
    SW_OP_BACKWARD_FIRST,        /* computes the gradients of the weights and bias of a block's first product */
    SW_OP_BACKWARD_NORM,         /* runs the backward pass of a unit's norm for the rows of this rank */
    SW_OP_ROUND_GRADIENTS,       /* rounds an accumulator's chunk to gradients, with their sums of squares */
    SW_OP_ROUND_OWN_GRADIENTS,   /* rounds this rank's part of the gradients, before ranks reduce them */
    SW_OP_REDUCE_GRADIENTS,      /* adds the ranks' gradients; each rank gets its shard */
    SW_OP_ADD_TO_ACCUMULATOR,    /* adds one chunk of reduced gradients to this rank's accumulator shard */
    SW_OP_QUANTIZE_GRADIENTS,    /* quantizes this rank's part of the gradients, before ranks exchange them */
    SW_OP_QUANTIZE_NODE_SUM,     /* quantizes a node's sums of gradients, before nodes exchange them */
    SW_OP_EXCHANGE_GRADIENTS,    /* gives each rank its part of the quantized gradients */
    SW_OP_DEQUANTIZE_GRADIENTS,  /* adds the ranks' quantized gradients to this rank's reduced ones */
    SW_OP_SUM_SQUARES,           /* sums the squares of a chunk of reduced gradients, by grain */
    SW_OP_ALL_GATHER,            /* gives every rank's shard of weights or gradients to all ranks */
    SW_OP_QUANTIZE_WEIGHTS,      /* quantizes this rank's shard of a unit's weights, before ranks gather them */
    SW_OP_DEQUANTIZE_WEIGHTS,    /* makes a unit's weights of what the ranks have gathered */
    SW_OP_KEEP_SECONDARY,        /* copies this rank's secondary shard of a unit that was gathered, on the device */
    SW_OP_REDUCE_TENSOR,         /* adds what a tensor group computed; each rank gets its rows */
    SW_OP_GATHER_TENSOR,         /* gives every rank's rows, or its part of the softmax, to the tensor group */
    SW_OP_SUM_REPLICATED,        /* adds the gradients of what each rank of a tensor group has whole */
    SW_OP_SEND,             /* gives a block's output to the next stage, or the gradient there to the stage before */
    SW_OP_RECEIVE,          /* gets what another stage has sent */
    SW_OP_SUM_TABLE,        /* adds up the accumulators of a tied table of the first and the last stage */
    SW_OP_EXCHANGE_SUMMARY, /* tells all ranks this rank's sums of squares, losses and requests */
    SW_OP_DOWNLOAD_SQUARE_SUMS, /* copies a unit's sums of squares to the host */
    SW_OP_COMPUTE_NORM,     /* computes the global norm and from it the clip coefficient, or that a value overflowed */
    SW_OP_UPDATE_ON_HOST,   /* updates a chunk's optimizer state, on the update lane */
    SW_OP_UPDATE_ON_DEVICE, /* updates a chunk's optimizer state, on the compute lane */
    SW_OP_TAKE_GRADIENTS,   /* asks the caller for a chunk's gradients, and may sum their squares by grain */
    SW_OP_GIVE_WEIGHTS,     /* gives a chunk's new weights to the caller */
    SW_OP_GATHER_ROWS,      /* copies, on the host, the embedding's rows that the step's tokens name */
    SW_OP_UPLOAD,           /* copies a piece from host to device; `content` says of what */
    SW_OP_DOWNLOAD,         /* copies a piece from device to host */
    SW_OP_READ,             /* reads a piece from NVMe */
    SW_OP_WRITE,            /* writes a piece to NVMe */
    SW_OP_COMMIT,           /* commits the store's generation that has been written */
    SW_OP_KINDS
} sw_op_kind;

/* The content of a piece. The comments name what the index of an access counts, beside its unit, and its version. */
typedef enum __attribute__((packed)) {
    SW_CONTENT_NONE,
    SW_CONTENT_TOKENS,            /* micro-batches */
    SW_CONTENT_WEIGHTS,           /* chunks */
    SW_CONTENT_BASE,              /* the quantized base of a unit: chunks of cells */
    SW_CONTENT_ROWS,              /* gathered rows of the embedding: micro-batches; version: chunks gathered from */
    SW_CONTENT_BLOCK_OUTPUT,      /* output of the unit, which is the next unit's input: micro-batches */
    SW_CONTENT_BLOCK_OUTPUT_GRAD, /* gradient at the unit's output: micro-batches */
    SW_CONTENT_NORMED,            /* output of the unit's norm, where a plan keeps it apart: micro-batches */
    SW_CONTENT_NORM_GRAD,         /* gradient at the output of the unit's norm: micro-batches */
    SW_CONTENT_PRODUCT_GRAD,      /* gradient at the result of the unit's first product: micro-batches */
    SW_CONTENT_SOFTMAX, /* per-row max, sum and target logit of each rank's part of the vocabulary; index: micro-batch
                         */
    SW_CONTENT_SAVED,   /* intermediates that the forward pass saves: micro-batches */
    SW_CONTENT_DERIVED, /* intermediates that follow from the saved ones and the input: micro-batches */
    SW_CONTENT_WORK,    /* scratch; nothing survives the op */
    SW_CONTENT_ACC,     /* gradient accumulator: chunks; version: micro-batches, or groups, added so far */
    SW_CONTENT_GRADS,   /* chunks */
    SW_CONTENT_BUCKET_SUM,    /* the sum of all ranks' gradients of a group, in fp32: chunks */
    SW_CONTENT_QUANT_WEIGHTS, /* quantized weights: chunks */
    SW_CONTENT_QUANT_GRADS,   /* quantized gradients of this rank, for all ranks: chunks */
    SW_CONTENT_QUANT_PARTS,   /* quantized gradients of the other ranks, for this one: chunks */
    SW_CONTENT_NODE_SUM,      /* sums of a node's gradients, for one rank of each node, in fp32: chunks */
    SW_CONTENT_NODE_QUANT,    /* these sums, quantized: chunks */
    SW_CONTENT_NODE_PARTS,    /* quantized sums of other nodes, for this rank: chunks */
    SW_CONTENT_SQUARE_SUMS,   /* units, the access itself having none; version: chunks summed so far */
    SW_CONTENT_NORM,          /* norm, clip coefficient and what the update needs of them */
    SW_CONTENT_OPTIMIZER,     /* master weights and moments: chunks */
    SW_CONTENT_ROUTING,       /* which units of experts have rows, for the host: micro-batches */
    SW_CONTENT_KV_CACHE,      /* keys and values of the tokens so far, of one unit */
    SW_CONTENT_COMMIT,        /* the fact that this rank has committed */
    SW_CONTENTS
} sw_content;
const char *sw_content_name(sw_content content);

/* The part that an operand plays in its op. */
typedef enum __attribute__((packed)) {
    SW_ROLE_NONE, /* the row only orders the op against others; the op uses no address of it */
    SW_ROLE_FROM,
    SW_ROLE_TO,
    SW_ROLE_TOKENS,
    SW_ROLE_WEIGHTS, /* weights of the op's unit */
    SW_ROLE_BASE,
    SW_ROLE_TABLE, /* weights of a tied embedding, which the head multiplies by */
    SW_ROLE_ROWS,
    SW_ROLE_INPUT,
    SW_ROLE_OUTPUT,
    SW_ROLE_SAVED,
    SW_ROLE_DERIVED,
    SW_ROLE_NORMED,
    SW_ROLE_OUTPUT_GRAD, /* backward replaces it by the gradient of its input */
    SW_ROLE_NORM_GRAD,
    SW_ROLE_PRODUCT_GRAD,
    SW_ROLE_SOFTMAX,
    SW_ROLE_ACC,
    SW_ROLE_TABLE_ACC,
    SW_ROLE_WORK,
    SW_ROLE_CACHE,
    SW_ROLE_ROUTING,
    SW_ROLE_GRADS,
    SW_ROLE_SQUARE_SUMS,
    SW_ROLE_OPTIMIZER,
    SW_ROLES
} sw_role;

/* The class of an op's price. The simulator has one formula for each. */
typedef enum __attribute__((packed)) {
    SW_PRICE_NOTHING, /* too little to count */
    SW_PRICE_UPLOAD,
    SW_PRICE_DOWNLOAD,
    SW_PRICE_READ,
    SW_PRICE_WRITE,
    SW_PRICE_COMMIT,
    SW_PRICE_MEMORY,               /* arithmetic so light that the op's bytes of memory traffic decide */
    SW_PRICE_ZERO,                 /* an op that only writes its grains, in fp32 */
    SW_PRICE_QUANTIZE_SUM,         /* memory traffic of sums in fp32 that are quantized */
    SW_PRICE_DEQUANTIZE_GRADIENTS, /* memory traffic of quantized gradients that are added */
    SW_PRICE_QUANTIZED_WEIGHTS,    /* memory traffic of weights, and of the same weights quantized */
    SW_PRICE_UPDATE_ON_HOST,
    SW_PRICE_UPDATE_ON_DEVICE,
    SW_PRICE_FORWARD, /* this and the next six: the measured time of the op's unit */
    SW_PRICE_BACKWARD,
    SW_PRICE_RECALL,
    SW_PRICE_LAST_PRODUCT,
    SW_PRICE_FIRST_PRODUCT,
    SW_PRICE_HEAD,
    SW_PRICE_LOSS,
    SW_PRICE_REDUCE,       /* among the ranks that share state */
    SW_PRICE_GATHER,       /* among the same ranks, or those of one node */
    SW_PRICE_EXCHANGE,     /* among the same ranks, within nodes or between them */
    SW_PRICE_GROUP_REDUCE, /* within a tensor group */
    SW_PRICE_GROUP_GATHER,
    SW_PRICE_PASS,    /* from stage to stage */
    SW_PRICE_SUMMARY, /* among all ranks of the job */
} sw_price;

/* The group of an op in a timeline: few enough that each can have a color. Passes of the model come first. */
typedef enum __attribute__((packed)) {
    SW_WORK_FORWARD,
    SW_WORK_BACKWARD,
    SW_WORK_HEAD,
    SW_WORK_UPDATE,
    SW_WORK_WEIGHTS,
    SW_WORK_GRADIENTS,
    SW_WORK_OPTIMIZER,
    SW_WORK_ACTIVATIONS,
    SW_WORK_COMMIT,
    SW_WORK_OTHER,
    SW_WORKS,
    SW_WORK_OF_CONTENT = SW_WORKS /* in a row of an op: the group of the op's content */
} sw_work;
const char *sw_work_name(sw_work work);

/* The ranks that an op of the comm lane is among: those that share a unit's state; a tensor group; an expert group;
 * those of an expert group that have the same number in their tensor groups; two of one number in their stages; or all
 * of the job. Rows of the table that say SW_AMONG_TENSOR mean any of the three kinds of groups, and sw_plan_among says
 * which. */
typedef enum __attribute__((packed)) {
    SW_AMONG_DATA,
    SW_AMONG_TENSOR,
    SW_AMONG_EXPERTS,
    SW_AMONG_SENDERS,
    SW_AMONG_LINK,
    SW_AMONG_JOB
} sw_among;

/* One kind of op. */
struct sw_op_row {
    const char *name; /* name in traces and messages: a literal */
    sw_lane lane;
    sw_price price;
    sw_work work;
    sw_among among; /* the ranks that exchange, for ops of the comm lane */
    bool gathers;   /* ends in a gather, which may go in two levels: within nodes and between them */
    bool of_host;   /* works on host memory, although its lane may belong to the device */
    bool transfers; /* moves one piece between two tiers; the op says which content */
    /* sw_role of each content that the op reads and writes, by sw_content; none: the access only orders the op. An op
     * that transfers has the roles from and to of whatever it moves. */
    unsigned char reads[SW_CONTENTS], writes[SW_CONTENTS];
    /* Bits of roles (1 << role). needs: without them the op cannot run, whatever its unit and plan. repeats: the op may
     * have several operands of them. The proof asks for both; what emits ops does not. */
    unsigned needs, repeats;
};
extern const struct sw_op_row sw_ops[SW_OP_KINDS];
const char *sw_op_name(sw_op_kind kind);

#endif
