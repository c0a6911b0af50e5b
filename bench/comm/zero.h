/* The results of `bench zero`: the bytes that a rank holds and sends at each stage of ZeRO, beside the papers'
 * formulas: with parts of ZeRO++ at stage 3, or, in tensor groups, with and without partitioned activations. */
#ifndef SW_BENCH_COMM_ZERO_H
#define SW_BENCH_COMM_ZERO_H

#include "core/ranks/comm.h"
#include "core/status.h"
#include "offload/plan/plan.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

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
    /* In tensor groups; else -1: */
    SW_ZERO_SENT_TENSOR, /* of what is sent, to ranks of the same tensor group */
    SW_ZERO_SENT_DATA,   /* of what is sent, to ranks of other groups */
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

/* The job that the formulas are about. */
struct sw_zero_job {
    double parameters;     /* of the whole model */
    double layers, hidden; /* blocks of the model, and elements of a token's hidden state */
    double tokens;         /* that a rank computes in a step */
    double type_bytes;     /* bytes of an element in the compute type */
    double tensor_ranks;   /* ranks of a tensor group; 1: each rank has whole layers */
    double data_ranks;     /* ranks that share the state of one part of the layers */
    bool recomputes;       /* with tensor groups: blocks are computed again in the backward pass */
};

struct sw_zero_stage {
    int stage;
    bool partitioned;               /* each rank of a tensor group keeps its rows of inputs alone */
    const char *name;               /* "3", "3 hpZ", "3 Pa" */
    int64_t bytes[SW_ZERO_FIGURES]; /* on the rank that has the most; its communicator counts the bytes sent */
    double formula_bytes[SW_ZERO_FIGURES];
    double ratio[SW_ZERO_FIGURES]; /* bytes over the formula's; NAN: that is 0, as a rank alone sends nothing */
    double deviation_percent[SW_ZERO_FIGURES]; /* 100 (ratio - 1); NAN as there */
    /* In tensor groups, else NAN: what the kept inputs take, and what goes within the group, by the paper's account of
     * one kept input for each block (zero_count.c). */
    double paper_acts_bytes, paper_tensor_bytes;
    /* The share that partitioned activations add to the bytes within the group, over these bytes without them: as
     * measured, by the formula, and by the paper's account. NAN in other rows. */
    double added_share, formula_added_share, paper_added_share;
    int64_t planned_bytes;         /* sent by the ops of a step, on the rank that sends the most */
    int64_t planned_between_bytes; /* of these to other nodes; -1: there is one node */
    double between_times; /* bytes between nodes over those of one gather of all weights: 3 at stage 3; NAN: one node */
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

/* Adds the bytes of a plan's slots to the figures of what they hold, or to the buffers. */
void sw_zero_count_held(const struct sw_plan *plan, struct sw_zero_stage *out);
/* Computes the formulas for a row whose stage is set. The plan says how ranks lie on nodes, and nothing else. */
void sw_zero_find_formulas(const struct sw_zero_job *job, const struct sw_plan *plan, struct sw_zero_stage *out);
/* Compares what the rank that has the most of each figure has with the formulas; `whole` is the row of the same stage
 * without partitioned activations. */
void sw_zero_compare(struct sw_zero_stage *stage, const struct sw_zero_stage *whole);

void sw_zero_print(const struct sw_zero_report *report);
sw_status sw_zero_print_json(const struct sw_zero_report *report);

#endif
