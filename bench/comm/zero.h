/* The results of `bench zero`: the bytes that a rank holds and sends at each stage of ZeRO, and at stage 3 with each
 * part of ZeRO++, beside the papers' formulas. */
#ifndef SW_BENCH_COMM_ZERO_H
#define SW_BENCH_COMM_ZERO_H

#include "core/ranks/comm.h"
#include "core/status.h"
#include "offload/plan/plan.h"

#include <stdint.h>

enum { SW_ZERO_STAGES = SW_ZERO_WEIGHTS + 1, SW_ZERO_BUFFERS = 32 };
/* Rows: the stages, then stage 3 with secondary shards (hpZ), with weights gathered as int8 (qwZ), with gradients
 * reduced as int4 (qgZ), and with all three. */
enum { SW_ZERO_HPZ = SW_ZERO_STAGES, SW_ZERO_QWZ, SW_ZERO_QGZ, SW_ZERO_PLUS, SW_ZERO_ROWS };

typedef enum {
    SW_ZERO_HELD_WEIGHTS,
    SW_ZERO_HELD_GRADS,
    SW_ZERO_HELD_OPTIMIZER,
    SW_ZERO_HELD, /* all three */
    SW_ZERO_SENT, /* a step */
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

struct sw_zero_stage {
    int stage;
    const char *name;               /* "3", "3 hpZ" */
    int64_t bytes[SW_ZERO_FIGURES]; /* on the rank that has the most; its communicator counts the bytes sent */
    double formula_bytes[SW_ZERO_FIGURES];
    double ratio[SW_ZERO_FIGURES]; /* bytes over the formula's; NAN: that is 0, as a rank alone sends nothing */
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
    int64_t parameters;
    struct sw_zero_stage stage[SW_ZERO_ROWS];
    int rows; /* SW_ZERO_STAGES where nodes have one rank, or there is one node, or they are uneven */
};

/* Adds the bytes of a plan's slots to the figures of what they hold, or to the buffers. */
void sw_zero_count_held(const struct sw_plan *plan, struct sw_zero_stage *out);
void sw_zero_find_formulas(const struct sw_plan *plan, struct sw_zero_stage *out);

void sw_zero_print(const struct sw_zero_report *report);
sw_status sw_zero_print_json(const struct sw_zero_report *report);

#endif
