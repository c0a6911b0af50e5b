#include "offload/simulate/simulate.h"

#include "core/size.h"
#include "offload/simulate/unit_price.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The steps simulated, and those in flight at once as in the training loop. The answer is the length of the last step
 * but one: the pipeline is full by then, and the step after it still takes its share. */
enum { STEPS = 6, STEPS_IN_FLIGHT = 2, ANSWER = STEPS - 1 };
static_assert((int)ANSWER > (int)STEPS_IN_FLIGHT + 1, "the first steps fill the pipeline");
static_assert((int)STEPS == (int)SW_SIMULATE_MOST_STEPS, "times of all steps have room");

/* The longest time simulated: rates that lead beyond it are mistaken, and times must fit a trace. */
#define LONGEST_S 1e9

/* The most cores that a measurement of one busy thread may count. */
#define ONE_CORE 1.05

/* The price of an op alone: its time, and what it uses meanwhile. */
struct price {
    double seconds;
    double cores; /* part of all cores, from 0 to 1 */
    bool drive;   /* keeps the drive busy */
    bool moves;   /* moves bytes to or from the drive, in the way of those that go the other way */
    bool skipped; /* a redo that is not needed */
};

/* An op of a lane: its number over all steps, its step, and its position in the lane. All three are kept, since
 * dividing would take most of a simulation's time. */
struct cursor {
    int64_t number, step;
    int32_t position;
};

struct lane_state {
    struct cursor next;   /* op to start */
    struct cursor end;    /* op to end: all before it are done */
    bool running;         /* the op before `next` runs */
    double left_s;        /* seconds that the running op still takes alone */
    double slowdown;      /* by which it takes longer now */
    struct price price;   /* price of the running op */
    double ready_s;       /* when the lane may take the next op */
    double started_s;     /* of the running op */
    sw_lane awaited;      /* the lane that `next` was last seen to wait for, ... */
    int64_t awaited_ends; /* ... until it has ended so many ops */
};

/* Seconds since the beginning: the clock, and what was busy for how long. */
struct totals {
    double now, cores, drive, lane[SW_LANES];
};

struct simulator {
    const struct sw_plan *plan;
    const struct sw_program *program;
    const struct sw_rates *rates;
    bool redone;                      /* redo ops run */
    struct sw_op_times *times[STEPS]; /* NULL: not traced */
    int64_t steps, first, last;       /* steps in all; the answer is about those after `first`, up to `last` */
    int64_t steps_done;
    struct totals total, before, after; /* totals so far, and at both ends of the steps that answer */
    struct lane_state lane[SW_LANES];
    int active[SW_LANES], actives; /* the lanes that have ops, as most programs leave some without */
};

static const struct sw_op *next_op(const struct simulator *s, sw_lane lane) {
    return &s->program->op[s->program->lane_op[lane][s->lane[lane].next.position]];
}

static void move_on(const struct simulator *s, sw_lane lane, struct cursor *cursor) {
    cursor->number++;
    cursor->position++;
    if (cursor->position == s->program->lane_count[lane]) {
        cursor->position = 0;
        cursor->step++;
    }
}

/* Returns the part of all cores, at most 1: no op is slower alone than when it was measured alone. */
static double part_of_cores(double cores, double all_cores) {
    return fmin(1.0, cores / all_cores);
}

static struct price of_rate(struct sw_rate rate, double bytes, double all_cores) {
    return (struct price){.seconds = bytes / rate.bytes_per_s, .cores = part_of_cores(rate.cores, all_cores)};
}

static struct price of_drive(const struct sw_rates *rates, struct sw_rate rate, double bytes, bool lane_was_idle) {
    struct price price = of_rate(rate, bytes, rates->cores);
    price.drive = price.moves = true;
    if (lane_was_idle)
        price.seconds += rates->io_latency_s;
    return price;
}

static struct price of_comm(const struct sw_rates *rates, struct sw_rate rate, double bytes) {
    struct price price = of_rate(rate, bytes, rates->cores);
    price.seconds += rates->comm_latency_s;
    return price;
}

/* The two kinds of collectives that have rates. */
enum collective { GATHERS, REDUCES };

/* Prices a collective among some ranks of the job, whose links may be faster than those between others. */
static struct price of_scope(const struct sw_rates *rates, const struct sw_scope_rates *scope, enum collective kind,
                             double bytes) {
    if (scope->gather.bytes_per_s <= 0.0)
        return of_comm(rates, kind == REDUCES ? rates->reduce : rates->gather, bytes);
    struct price price = of_rate(kind == REDUCES ? scope->reduce : scope->gather, bytes, rates->cores);
    price.seconds += scope->latency_s;
    return price;
}

/* Does the same as fmax for what is a number, inlined: a simulation spends its time in these. */
static inline double greater(double a, double b) {
    return a > b ? a : b;
}

static struct price of_compute(const struct sw_rates *rates, double seconds) {
    return (struct price){.seconds = seconds, .cores = part_of_cores(rates->compute_cores, rates->cores)};
}

/* Returns the bytes that an op reads and writes to quantize, or to add what was quantized. Those that it counts on the
 * comm lane are what ranks exchange. */
static double quantized_bytes(const struct sw_plan *plan, const struct sw_op *op) {
    const int64_t typed = sw_plan_typed_bytes(plan, 1), wide = SW_GRAIN_ELEMS * (int64_t)sizeof(float);
    const int64_t record = sw_quant_grain_bytes(plan->spec.reduce);
    const bool across = op->level == SW_LEVEL_ACROSS;
    const int ranks = across ? sw_plan_reduce_nodes(plan) : sw_plan_reduce_node_ranks(plan);
    switch (op->kind) {
    case SW_OP_QUANTIZE_GRADIENTS: return across ? (double)(op->grains * (wide + record)) : (double)op->bytes;
    case SW_OP_DEQUANTIZE_GRADIENTS:
        return (double)(op->grains * (ranks * record + (op->wide || op->level == SW_LEVEL_NODE ? wide : typed)));
    default: return (double)(op->grains * (sw_quant_grain_bytes(plan->spec.gather) + typed));
    }
}

/* Prices an exchange by the slower of the links within nodes, whose rates are those of a scope, and between them.
 * latency_s: of an exchange that leaves the node. */
static struct price of_levels(const struct simulator *s, const struct sw_op *op, const struct sw_scope_rates *within,
                              enum collective kind, double latency_s) {
    const double network_bytes_per_s = s->rates->between_bytes_per_s;
    const double between = network_bytes_per_s > 0.0 ? (double)sw_plan_between_bytes(s->plan, op) : 0.0;
    struct price price = of_scope(s->rates, within, kind, (double)op->bytes - between);
    if (between > 0.0)
        price.seconds = latency_s + greater(price.seconds - within->latency_s, between / network_bytes_per_s);
    return price;
}

/* Prices an update by the rate of its state's form. Where that is not known, a parameter takes as long as in fp32:
 * narrow state saves traffic and costs arithmetic. */
static struct price of_update(const struct simulator *s, const struct sw_op *op, bool by_cores,
                              const struct sw_rate *fp32) {
    const struct sw_rate narrow[SW_OPTIMIZER_FORMATS] = {
        [SW_OPTIMIZER_BF16] = s->rates->update_bf16, [SW_OPTIMIZER_8BIT] = s->rates->update_8bit};
    const struct sw_rate *own = &narrow[sw_optimizer_records(s->plan->spec.units->optimizer)];
    const int64_t saved = sw_optimizer_grain_bytes(SW_OPTIMIZER_FP32) - sw_plan_optimizer_bytes(s->plan, 1);
    if (by_cores && own->bytes_per_s > 0.0)
        return of_rate(*own, (double)op->bytes, s->rates->cores);
    return of_rate(*fp32, (double)(op->bytes + 2 * op->grains * saved), s->rates->cores);
}

static struct price price_of(const struct simulator *s, const struct sw_op *op, bool lane_was_idle) {
    const struct sw_rates *r = s->rates;
    const double bytes = (double)op->bytes;
    if (op->redo && !s->redone)
        return (struct price){.skipped = true};
    switch (op->kind) {
    case SW_OP_UPLOAD_TOKENS:
    case SW_OP_UPLOAD: return of_rate(r->upload, bytes, r->cores);
    case SW_OP_DOWNLOAD_SQUARE_SUMS:
    case SW_OP_DOWNLOAD: return of_rate(r->download, bytes, r->cores);
    case SW_OP_READ: return of_drive(r, r->read, bytes, lane_was_idle);
    case SW_OP_WRITE: return of_drive(r, r->write, bytes, lane_was_idle);
    case SW_OP_UPDATE_ON_HOST: return of_update(s, op, true, &r->update);
    case SW_OP_UPDATE_ON_DEVICE: return of_update(s, op, r->compute_cores > 0.0, &r->update_on_device);
    case SW_OP_ROUND_GRADIENTS:
    case SW_OP_ROUND_OWN_GRADIENTS:
    case SW_OP_ADD_TO_ACCUMULATOR:
    case SW_OP_KEEP_SECONDARY:
    case SW_OP_FORWARD_NORM:
    case SW_OP_BACKWARD_NORM:
    case SW_OP_SUM_SQUARES: return of_rate(r->finish, bytes, r->cores);
    case SW_OP_QUANTIZE_GRADIENTS:
    case SW_OP_QUANTIZE_WEIGHTS:
    case SW_OP_DEQUANTIZE_GRADIENTS:
    case SW_OP_DEQUANTIZE_WEIGHTS: return of_rate(r->finish, quantized_bytes(s->plan, op), r->cores);
    case SW_OP_REDUCE_TENSOR:
    case SW_OP_SUM_REPLICATED: return of_levels(s, op, &r->in_group, REDUCES, r->in_group.latency_s);
    case SW_OP_GATHER_TENSOR: return of_levels(s, op, &r->in_group, GATHERS, r->in_group.latency_s);
    case SW_OP_REDUCE_GRADIENTS: return of_scope(r, &r->among_data, REDUCES, bytes);
    case SW_OP_ALL_GATHER: return of_scope(r, op->secondary ? &r->in_node : &r->among_data, GATHERS, bytes);
    case SW_OP_EXCHANGE_GRADIENTS: return of_levels(s, op, &r->in_node, GATHERS, r->comm_latency_s);
    case SW_OP_EXCHANGE_SUMMARY: return of_comm(r, r->gather, bytes);
    case SW_OP_ZERO_ACCUMULATOR:
        return of_rate(r->zero, (double)(op->grains * SW_GRAIN_ELEMS * (int64_t)sizeof(float)), r->cores);
    case SW_OP_FORWARD:
    case SW_OP_HEAD_LOGITS:
    case SW_OP_COMPUTE_LOSS:
    case SW_OP_COMPUTE_LOGITS:
    case SW_OP_FORWARD_BACKWARD_HEAD:
    case SW_OP_BACKWARD_LAST:
    case SW_OP_BACKWARD_FIRST:
    case SW_OP_BACKWARD: return of_compute(r, sw_unit_op_s(s->plan, r, op));
    case SW_OP_COMMIT: return (struct price){.seconds = r->commit_s, .drive = true};
    default: return (struct price){0}; /* the norm is only a sum over grains */
    }
}

/* Returns the number of steps that may have begun. */
static int64_t steps_begun(const struct simulator *s) {
    return sw_min_i64(s->steps, s->steps_done + STEPS_IN_FLIGHT);
}

static bool ready(struct simulator *s, sw_lane which) {
    struct lane_state *lane = &s->lane[which];
    if (lane->running || s->program->lane_count[which] == 0 || s->lane[lane->awaited].end.number < lane->awaited_ends ||
        lane->next.step >= steps_begun(s))
        return false;
    const struct sw_op *op = next_op(s, which);
    for (int32_t w = 0; w < op->wait_count; w++) {
        const struct sw_wait *wait = &s->program->wait[op->first_wait + w];
        const int64_t target_step = lane->next.step - wait->steps_back;
        const int64_t ends = target_step * s->program->lane_count[wait->lane] + wait->position + 1;
        if (target_step < 0 || s->lane[wait->lane].end.number >= ends)
            continue;
        lane->awaited = wait->lane;
        lane->awaited_ends = ends;
        return false;
    }
    return true;
}

static void note_steps(struct simulator *s) {
    int64_t done = s->steps;
    for (int i = 0; i < s->actives; i++)
        done = sw_min_i64(done, s->lane[s->active[i]].end.step);
    if (s->steps_done < s->first && done >= s->first)
        s->before = s->total;
    if (s->steps_done < s->last && done >= s->last)
        s->after = s->total;
    s->steps_done = done;
}

static int64_t ns_of(double seconds) {
    return (int64_t)llround(seconds * 1e9);
}

/* Returns what an op takes beside its work; never less where it waited. I/O is queued ahead, so that its handover goes
 * unseen. Exchanges are of the device too, but for the summary, which is of host memory. */
static double handover_s(const struct sw_rates *rates, const struct sw_op *op, bool waited) {
    const bool gpu = rates->compute_cores <= 0.0, exchange = op->lane == SW_LANE_COMM;
    const bool of_device = sw_lane_is_of_device(op->lane) || (exchange && op->kind != SW_OP_EXCHANGE_SUMMARY);
    const double least_s = gpu && !of_device ? 0.0 : rates->queued_op_s;
    if (sw_lane_is_io(op->lane))
        return 0.0;
    return waited && !(gpu && of_device) ? greater(least_s, rates->op_s) : least_s;
}

static void begin_op(struct simulator *s, sw_lane which) {
    struct lane_state *lane = &s->lane[which];
    const struct sw_op *op = next_op(s, which);
    const bool idle = s->total.now > lane->ready_s;
    lane->price = price_of(s, op, idle);
    lane->running = true;
    lane->started_s = s->total.now;
    if (!lane->price.skipped)
        lane->price.seconds += handover_s(s->rates, op, idle);
    lane->left_s = lane->price.seconds;
    move_on(s, which, &lane->next);
}

double sw_simulate_op(const struct sw_plan *plan, const struct sw_rates *rates, const struct sw_op *op) {
    const struct simulator s = {.plan = plan, .rates = rates};
    const struct price price = price_of(&s, op, false);
    return price.skipped ? 0.0 : price.seconds + handover_s(rates, op, false);
}

static void end_op(struct simulator *s, sw_lane which) {
    struct lane_state *lane = &s->lane[which];
    const int32_t number = s->program->lane_op[which][lane->end.position];
    if (s->times[lane->end.step] != NULL && !lane->price.skipped)
        s->times[lane->end.step][number] =
            (struct sw_op_times){.start_ns = ns_of(lane->started_s), .end_ns = ns_of(s->total.now)};
    lane->running = false;
    lane->ready_s = s->total.now;
    move_on(s, which, &lane->end);
    if (lane->end.position == 0)
        note_steps(s);
}

/* Factors by which ops are slower than alone, for want of cores and where reads and writes share the drive. */
struct crowding {
    double cores, drive;
};

/* Returns by which factor the running ops take longer for want of cores. Ops that share work out evenly over several
 * cores end with their last thread, so one thread of another op in the way of one of theirs delays them as a whole. */
static double crowding_of_cores(const struct simulator *s) {
    double wide = 0.0, narrow = 0.0, narrowest_way = 0.0;
    for (int i = 0; i < s->actives; i++) {
        const int which = s->active[i];
        const double part = s->lane[which].running ? s->lane[which].price.cores : 0.0;
        const double cores = part * s->rates->cores;
        if (cores > ONE_CORE) {
            wide += part;
        } else {
            narrow += part;
            narrowest_way = greater(narrowest_way, cores);
        }
    }
    if (wide + narrow <= 1.0)
        return 1.0;
    return wide > 0.0 ? wide + greater(narrow, narrowest_way) : wide + narrow;
}

static struct crowding measure_crowding(const struct simulator *s) {
    int moving = 0;
    for (int i = 0; i < s->actives; i++)
        moving += s->lane[s->active[i]].running && s->lane[s->active[i]].price.moves;
    return (struct crowding){.cores = crowding_of_cores(s),
                             .drive = moving > 1 ? greater(1.0, s->rates->read_write_slowdown) : 1.0};
}

static double slowdown_of(const struct lane_state *lane, struct crowding crowding) {
    return greater(lane->price.cores > 0.0 ? crowding.cores : 1.0, lane->price.moves ? crowding.drive : 1.0);
}

/* Lets time pass until the first running op ends. */
static void advance(struct simulator *s) {
    const struct crowding crowding = measure_crowding(s);
    double passes_s = INFINITY;
    for (int i = 0; i < s->actives; i++) {
        const int which = s->active[i];
        struct lane_state *lane = &s->lane[which];
        if (!lane->running)
            continue;
        lane->slowdown = slowdown_of(lane, crowding);
        const double ends_s = lane->left_s * lane->slowdown;
        passes_s = ends_s < passes_s ? ends_s : passes_s;
    }
    s->total.now += passes_s;
    bool drive = false;
    for (int i = 0; i < s->actives; i++) {
        const int which = s->active[i];
        struct lane_state *lane = &s->lane[which];
        if (!lane->running)
            continue;
        const double alone_s = lane->slowdown > 1.0 ? passes_s / lane->slowdown : passes_s;
        s->total.cores += alone_s * lane->price.cores * s->rates->cores;
        drive |= lane->price.drive;
        s->total.lane[which] += passes_s;
        lane->left_s -= alone_s;
    }
    s->total.drive += drive ? passes_s : 0.0;
}

/* Starts ops that may start and ends ops that have ended, until nothing changes. Returns whether anything did. */
static bool settle(struct simulator *s) {
    /* Rounding leaves so much of an op that has ended. */
    const double nothing = 1e-9;
    bool any = false, changed = true;
    while (changed) {
        changed = false;
        for (int i = 0; i < s->actives; i++) {
            const int which = s->active[i];
            struct lane_state *lane = &s->lane[which];
            /* The difference of two infinite times is not a number, so an op of infinite time never ends. */
            if (lane->running && lane->left_s - nothing * lane->price.seconds <= 0.0) {
                end_op(s, (sw_lane)which);
                changed = true;
            }
            if (ready(s, (sw_lane)which)) {
                begin_op(s, (sw_lane)which);
                changed = true;
            }
        }
        any |= changed;
    }
    return any;
}

/* Names what is busiest: a lane, the drive that two lanes share, or the cores, where several lanes together keep them
 * busier than any of them is. */
static void name_bottleneck(const struct simulator *s, struct sw_simulation *out) {
    out->bottleneck = "drive";
    double most_s = out->drive_busy_s;
    for (int which = 0; which < SW_LANES; which++)
        if (!sw_lane_is_io((sw_lane)which) && out->lane_busy_s[which] > most_s) {
            most_s = out->lane_busy_s[which];
            out->bottleneck = sw_lane_name((sw_lane)which);
        }
    if (out->cores_busy_s / s->rates->cores > most_s) {
        most_s = out->cores_busy_s / s->rates->cores;
        out->bottleneck = "cores";
    }
    out->bottleneck_share = most_s / out->step_s;
}

static void sum_up(const struct simulator *s, struct sw_simulation *out) {
    *out = (struct sw_simulation){.step_s = s->after.now - s->before.now,
                                  .cores_busy_s = s->after.cores - s->before.cores,
                                  .drive_busy_s = s->after.drive - s->before.drive};
    for (int which = 0; which < SW_LANES; which++)
        out->lane_busy_s[which] = s->after.lane[which] - s->before.lane[which];
    name_bottleneck(s, out);
}

static void find_active(struct simulator *s) {
    s->actives = 0;
    for (int which = 0; which < SW_LANES; which++)
        if (s->program->lane_count[which] > 0)
            s->active[s->actives++] = which;
}

/* Runs the steps and sums up those that answer. Those after them are begun, as they take their share, but ended only
 * for a trace. */
static sw_status run(struct simulator *s, struct sw_simulation *out) {
    const int64_t ends = s->times[s->steps - 1] != NULL ? s->steps : s->last;
    find_active(s);
    while (settle(s), s->steps_done < ends) {
        bool running = false;
        for (int i = 0; i < s->actives; i++)
            running |= s->lane[s->active[i]].running;
        if (!running)
            return sw_fail(SW_ERR_INTERNAL, "the simulated plan stands still after %lld steps",
                           (long long)s->steps_done);
        advance(s);
        if (!(s->total.now < LONGEST_S))
            return sw_fail(SW_ERR_ARG, "by these rates %lld steps take more than %.0e seconds", (long long)s->steps,
                           LONGEST_S);
    }
    sum_up(s, out);
    return SW_OK;
}

sw_status sw_simulate(const struct sw_plan *plan, sw_program_kind kind, bool redone, const struct sw_rates *rates,
                      struct sw_trace *trace, struct sw_simulation *out) {
    assert(sw_program_repeats(kind) && plan->program[kind].op_count > 0);
    struct simulator s = {.plan = plan,
                          .program = &plan->program[kind],
                          .rates = rates,
                          .redone = redone,
                          .steps = STEPS,
                          .first = ANSWER - 1,
                          .last = ANSWER};
    for (int64_t step = 0; step < STEPS; step++)
        s.times[step] = sw_trace_begin(trace, kind, step + 1, 0);
    return run(&s, out);
}

sw_status sw_simulate_program(const struct sw_plan *plan, const struct sw_program *program,
                              const struct sw_rates *rates, struct sw_simulation *out) {
    struct simulator s = {
        .plan = plan, .program = program, .rates = rates, .steps = STEPS, .first = ANSWER - 1, .last = ANSWER};
    return run(&s, out);
}

sw_status sw_simulate_apart(const struct sw_plan *plan, sw_program_kind kind, int64_t steps,
                            const struct sw_rates *rates, struct sw_simulation *out) {
    assert(plan->program[kind].op_count > 0 && steps >= 1 && steps <= STEPS);
    assert(steps == 1 || sw_program_repeats(kind));
    struct simulator s = {.plan = plan, .program = &plan->program[kind], .rates = rates, .steps = steps, .last = steps};
    return run(&s, out);
}

sw_status sw_predict(const struct sw_plan *plan, const struct sw_rates *rates, struct sw_prediction *out) {
    *out = (struct sw_prediction){.may_speculate = sw_plan_may_speculate(plan)};
    SW_TRY(sw_simulate(plan, SW_PROGRAM_UPDATE, false, rates, NULL, &out->plain));
    if (!out->may_speculate)
        return SW_OK;
    SW_TRY(sw_simulate(plan, SW_PROGRAM_REDO_SPECULATE, false, rates, NULL, &out->speculated));
    return sw_simulate(plan, SW_PROGRAM_REDO_SPECULATE, true, rates, NULL, &out->redone);
}

/* Prices a save. Lanes have nothing left to do when a step with another program begins, so a step with a save runs
 * apart, and the steps before and after it are the ends of runs of steps, which take longer than as many steps in the
 * middle. */
sw_status sw_predict_save(const struct sw_plan *plan, const struct sw_rates *rates, int64_t every,
                          const struct sw_simulation *plain, struct sw_save_price *out) {
    struct sw_simulation run_of_steps;
    *out = (struct sw_save_price){0};
    if (every == 1) {
        SW_TRY(sw_simulate(plan, SW_PROGRAM_UPDATE_SAVE, false, rates, NULL, &out->step));
        out->cost_s = fmax(0.0, out->step.step_s - plain->step_s);
        return SW_OK;
    }
    SW_TRY(sw_simulate_apart(plan, SW_PROGRAM_UPDATE_SAVE, 1, rates, &out->step));
    SW_TRY(sw_simulate_apart(plan, SW_PROGRAM_UPDATE, STEPS, rates, &run_of_steps));
    const double ends_s = fmax(0.0, run_of_steps.step_s - STEPS * plain->step_s);
    out->cost_s = fmax(0.0, out->step.step_s + ends_s - plain->step_s);
    return SW_OK;
}
