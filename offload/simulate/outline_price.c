#include "offload/simulate/outline_price.h"

#include "core/size.h"
#include "core/status.h"
#include "offload/plan/plan_private.h"

#include <math.h>
#include <stdlib.h>

/* The most ops that all programs of a plan have together, in ops of one step. */
enum { STEPS_OF_PROGRAMS = 4, STEPS_WITH_SPECULATION = 10 };
/* The accesses of a usual op. Ops of many ranks have more accesses and take longer in proportion, so they count as
 * several. */
enum { ACCESSES_OF_OP = 4 };
/* The op count at which a bound gives up: such a plan has far too many ops, and going on takes seconds. */
enum { MOST_BOUNDED = SW_PLAN_MOST_OPS / 2 };

struct bounding {
    const struct sw_plan *plan;
    const struct sw_rates *rates;
    struct sw_step_bound enough;
    double lane_s[SW_LANES];
    int64_t ops;
    bool slower;
};

static struct sw_step_bound bound_of(const struct bounding *b) {
    struct sw_step_bound bound = {.ops = b->ops};
    for (int lane = 0; lane < SW_LANES; lane++) {
        bound.step_s = fmax(bound.step_s, b->lane_s[lane]);
        if (lane != SW_LANE_UPDATE)
            bound.others_s = fmax(bound.others_s, b->lane_s[lane]);
    }
    return bound;
}

static bool take(void *context, const struct sw_op *op, int32_t count) {
    struct bounding *b = context;
    for (int32_t i = 0; i < count; i++)
        b->lane_s[op[i].lane] += sw_simulate_op(b->plan, b->rates, &op[i]);
    b->ops += count;
    const struct sw_step_bound bound = bound_of(b);
    b->slower = bound.step_s >= b->enough.step_s || bound.others_s >= b->enough.others_s;
    return !b->slower && b->ops < MOST_BOUNDED;
}

sw_status sw_outline_bound(const struct sw_plan *plan, const struct sw_rates *rates, struct sw_step_bound enough,
                           struct sw_step_bound *out, bool *out_slower) {
    struct bounding b = {.plan = plan, .rates = rates, .enough = enough};
    const sw_status status = sw_plan_emit_through(plan, SW_PROGRAM_UPDATE, take, &b);
    *out = bound_of(&b);
    *out_slower = b.slower;
    return status;
}

struct counting {
    sw_lane lane;
    int64_t bytes;
};

static bool count_bytes(void *context, const struct sw_op *op, int32_t count) {
    struct counting *counting = context;
    for (int32_t i = 0; i < count; i++)
        counting->bytes += op[i].lane == counting->lane ? op[i].bytes : 0;
    return true;
}

int64_t sw_outline_lane_bytes(const struct sw_plan *plan, sw_lane lane) {
    SW_HANDLES_ERRORS(); /* without memory to make all ops, those that were made count */
    const struct sw_program *program = &plan->program[SW_PROGRAM_UPDATE];
    struct counting counting = {.lane = lane};
    if (program->op_count > 0)
        (void)count_bytes(&counting, program->op, program->op_count);
    else
        (void)sw_plan_emit_through(plan, SW_PROGRAM_UPDATE, count_bytes, &counting);
    return counting.bytes;
}

bool sw_outline_is_too_long(const struct sw_plan *plan, int64_t ops) {
    return ops > SW_PLAN_MOST_OPS / (sw_plan_may_speculate(plan) ? STEPS_WITH_SPECULATION : STEPS_OF_PROGRAMS);
}

sw_status sw_outline_simulate(const struct sw_plan *plan, const struct sw_rates *rates, double enough_s,
                              struct sw_outline_price *out) {
    struct sw_program program = {0};
    int64_t accesses;
    *out = (struct sw_outline_price){.step.step_s = INFINITY};
    sw_status status = sw_plan_emit_waits(plan, SW_PROGRAM_UPDATE, &program, &accesses);
    out->ops = sw_max_i64(program.op_count, accesses / ACCESSES_OF_OP);
    if (status == SW_ERR_ARG) { /* too many ops, or too many bytes of them */
        sw_error_clear();
        status = SW_OK;
        out->least_s = INFINITY;
        out->ops = SW_PLAN_MOST_OPS;
    } else if (status == SW_OK) {
        if (sw_outline_is_too_long(plan, program.op_count))
            enough_s = 0.0;
        status = sw_simulate_program(plan, &program, rates, enough_s, &out->least_s, &out->step);
        out->simulated = status == SW_OK && isfinite(out->step.step_s);
    }
    sw_program_destroy(&program);
    return status;
}
