/* The results of `bench zero`: the bytes that a rank holds and sends at each stage of ZeRO, beside the paper's
 * formulas. */
#ifndef SW_BENCH_COMM_ZERO_H
#define SW_BENCH_COMM_ZERO_H

#include "core/ranks/comm.h"
#include "core/status.h"
#include "offload/plan/plan.h"

#include <stdint.h>

enum { SW_ZERO_STAGES = SW_ZERO_WEIGHTS + 1, SW_ZERO_BUFFERS = 32 };

typedef enum {
    SW_ZERO_HELD_WEIGHTS,
    SW_ZERO_HELD_GRADS,
    SW_ZERO_HELD_OPTIMIZER,
    SW_ZERO_HELD, /* all three */
    SW_ZERO_SENT, /* a step */
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
    int64_t bytes[SW_ZERO_FIGURES]; /* on the rank that has the most; its communicator counts the bytes sent */
    double formula_bytes[SW_ZERO_FIGURES];
    double ratio[SW_ZERO_FIGURES]; /* bytes over the formula's; NAN: that is 0, as a rank alone sends nothing */
    int64_t planned_bytes;         /* sent by the ops of a step, on the rank that sends the most */
    struct sw_zero_buffer buffer[SW_ZERO_BUFFERS]; /* this rank's */
    int buffers;
};

struct sw_zero_report {
    const struct sw_comm *comm;
    const char *device, *model;
    sw_dtype type;
    int64_t parameters;
    struct sw_zero_stage stage[SW_ZERO_STAGES];
};

/* Adds the bytes of a plan's slots to the figures of what they hold, or to the buffers. */
void sw_zero_count_held(const struct sw_plan *plan, struct sw_zero_stage *out);
void sw_zero_find_formulas(const struct sw_plan *plan, struct sw_zero_stage *out);

void sw_zero_print(const struct sw_zero_report *report);
sw_status sw_zero_print_json(const struct sw_zero_report *report);

#endif
