#include "offload/simulate.h"

#include "core/size.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Steps simulated, and those in flight at once as the training loop begins them. The last step's length is the answer:
 * the pipeline is full by then. */
enum { STEPS = 6, STEPS_IN_FLIGHT = 2 };
static_assert((int)STEPS > (int)STEPS_IN_FLIGHT + 1, "the first steps fill the pipeline");

typedef enum { CORES, DRIVE, RESOURCES } resource;

/* An op alone: its seconds, and the part of each resource that it uses meanwhile. */
struct price {
    double seconds;
    double use[RESOURCES];
    bool skipped; /* a redo that is not needed */
};

struct lane_state {
    int64_t number;     /* next op to start, over all steps */
    int64_t done;       /* likewise */
    bool running;       /* op number - 1 */
    double left;        /* of it, from 1 to 0 */
    struct price price; /* of it */
    double ready_s;     /* when the lane may take the next op */
    double started_s;   /* of the running op */
    double busy_s, last_step_busy_s;
};

struct simulator {
    const struct sw_plan *plan;
    const struct sw_program *program;
    const struct sw_rates *rates;
    bool redone;
    struct sw_trace *trace;
    struct sw_op_times *times[STEPS]; /* NULL: not traced */
    double now_s;
    double step_end_s[STEPS];
    int64_t steps_done;
    double cores_busy_s, drive_busy_s;     /* since the beginning */
    double cores_before_s, drive_before_s; /* at the beginning of the last step */
    struct lane_state lane[SW_LANES];
};

static const struct sw_op *op_of(const struct simulator *s, sw_lane lane, int64_t number) {
    return &s->program->op[s->program->lane_op[lane][number % s->program->lane_count[lane]]];
}

static struct price of_rate(struct sw_rate rate, double bytes, double all_cores) {
    struct price price = {.seconds = bytes / rate.bytes_per_s};
    price.use[CORES] = rate.cores / all_cores;
    return price;
}

static struct price of_drive(const struct sw_rates *rates, struct sw_rate rate, double bytes, bool lane_was_idle) {
    struct price price = of_rate(rate, bytes, rates->cores);
    /* Two lanes at once want this much of the drive together as makes each slower by the measured factor. */
    price.use[DRIVE] = fmax(0.5, 0.5 * rates->read_write_slowdown);
    if (lane_was_idle)
        price.seconds += rates->io_latency_s;
    return price;
}

static struct price of_compute(const struct sw_rates *rates, double seconds) {
    struct price price = {.seconds = seconds};
    price.use[CORES] = rates->compute_cores / rates->cores;
    return price;
}

static struct price of_backward(const struct simulator *s, const struct sw_op *op) {
    const bool again = op->unit > 0 && s->plan->recompute[op->unit];
    return of_compute(s->rates, s->rates->backward_s[op->unit] + (again ? s->rates->recompute_s[op->unit] : 0.0));
}

static struct price price_of(const struct simulator *s, const struct sw_op *op, bool lane_was_idle) {
    const struct sw_rates *r = s->rates;
    const double bytes = (double)op->bytes;
    if (op->redo && !s->redone)
        return (struct price){.skipped = true};
    switch (op->kind) {
    case SW_OP_UPLOAD_TOKENS:
    case SW_OP_UPLOAD: return of_rate(r->upload, bytes, r->cores);
    case SW_OP_DOWNLOAD_SUMS:
    case SW_OP_DOWNLOAD: return of_rate(r->download, bytes, r->cores);
    case SW_OP_READ: return of_drive(r, r->read, bytes, lane_was_idle);
    case SW_OP_WRITE: return of_drive(r, r->write, bytes, lane_was_idle);
    case SW_OP_UPDATE: return of_rate(r->update, bytes, r->cores);
    case SW_OP_UPDATE_ON_DEVICE: return of_rate(r->update_on_device, bytes, r->cores);
    case SW_OP_FINISH: return of_rate(r->finish, bytes, r->cores);
    case SW_OP_ZERO:
        return of_rate(r->zero, (double)s->plan->spec.units->unit[op->unit].elems * (double)sizeof(float), r->cores);
    case SW_OP_FORWARD: return of_compute(r, r->forward_s[op->unit]);
    case SW_OP_LOSS:
    case SW_OP_LOGITS: return of_compute(r, r->forward_s[op->unit]);
    case SW_OP_HEAD: return of_compute(r, r->backward_s[op->unit]);
    case SW_OP_BACKWARD: return of_backward(s, op);
    case SW_OP_COMMIT: return (struct price){.seconds = r->commit_s};
    default: return (struct price){0}; /* the norm: a sum over grains */
    }
}

/* The first step that may not have begun. */
static int64_t steps_begun(const struct simulator *s) {
    return sw_min_i64(STEPS, s->steps_done + STEPS_IN_FLIGHT);
}

static bool ready(const struct simulator *s, sw_lane which) {
    const struct lane_state *lane = &s->lane[which];
    const int32_t per_step = s->program->lane_count[which];
    if (per_step == 0 || lane->running || lane->number / per_step >= steps_begun(s))
        return false;
    const int64_t step = lane->number / per_step;
    const struct sw_op *op = op_of(s, which, lane->number);
    for (int32_t w = 0; w < op->wait_count; w++) {
        const struct sw_wait *wait = &s->program->wait[op->first_wait + w];
        const int64_t target_step = step - wait->steps_back;
        if (target_step >= 0 &&
            s->lane[wait->lane].done <= target_step * s->program->lane_count[wait->lane] + wait->position)
            return false;
    }
    return true;
}

static void note_steps(struct simulator *s) {
    int64_t done = STEPS;
    for (int which = 0; which < SW_LANES; which++)
        if (s->program->lane_count[which] > 0)
            done = sw_min_i64(done, s->lane[which].done / s->program->lane_count[which]);
    while (s->steps_done < done) {
        s->step_end_s[s->steps_done++] = s->now_s;
        if (s->steps_done != STEPS - 1)
            continue;
        s->cores_before_s = s->cores_busy_s;
        s->drive_before_s = s->drive_busy_s;
        for (int which = 0; which < SW_LANES; which++)
            s->lane[which].last_step_busy_s = s->lane[which].busy_s;
    }
}

static int64_t ns_of(double seconds) {
    return (int64_t)llround(seconds * 1e9);
}

static void begin_op(struct simulator *s, sw_lane which) {
    struct lane_state *lane = &s->lane[which];
    const bool idle = s->now_s > lane->ready_s;
    lane->price = price_of(s, op_of(s, which, lane->number), idle);
    lane->running = true;
    lane->left = 1.0;
    lane->started_s = s->now_s;
    /* Handing over to a sleeping thread takes time; transfers are queued, so theirs goes unseen. */
    if (!sw_lane_is_io(which) && !lane->price.skipped)
        lane->price.seconds += s->rates->op_s;
    lane->number++;
}

static void end_op(struct simulator *s, sw_lane which) {
    struct lane_state *lane = &s->lane[which];
    const int64_t step = lane->done / s->program->lane_count[which];
    const int32_t number = s->program->lane_op[which][lane->done % s->program->lane_count[which]];
    if (s->times[step] != NULL && !lane->price.skipped)
        s->times[step][number] = (struct sw_op_times){ns_of(lane->started_s), ns_of(s->now_s)};
    lane->running = false;
    lane->ready_s = s->now_s;
    lane->done++;
}

/* How much slower than alone ops run that use a resource: more than 1 where they want more of it than there is. */
static void measure_crowding(const struct simulator *s, double crowding[RESOURCES]) {
    for (int r = 0; r < RESOURCES; r++) {
        double wanted = 0.0;
        for (int which = 0; which < SW_LANES; which++)
            wanted += s->lane[which].running ? s->lane[which].price.use[r] : 0.0;
        crowding[r] = fmax(1.0, wanted);
    }
}

static double slowdown_of(const struct lane_state *lane, const double crowding[RESOURCES]) {
    double slowdown = 1.0;
    for (int r = 0; r < RESOURCES; r++)
        if (lane->price.use[r] > 0.0)
            slowdown = fmax(slowdown, crowding[r]);
    return slowdown;
}

/* Lets time pass until the first running op ends. */
static void advance(struct simulator *s) {
    double crowding[RESOURCES], passes_s = INFINITY;
    measure_crowding(s, crowding);
    for (int which = 0; which < SW_LANES; which++) {
        const struct lane_state *lane = &s->lane[which];
        if (lane->running)
            passes_s = fmin(passes_s, lane->left * lane->price.seconds * slowdown_of(lane, crowding));
    }
    s->now_s += passes_s;
    bool drive = false;
    for (int which = 0; which < SW_LANES; which++) {
        struct lane_state *lane = &s->lane[which];
        if (!lane->running)
            continue;
        const double takes_s = lane->price.seconds * slowdown_of(lane, crowding);
        const double part = takes_s > 0.0 ? passes_s / takes_s : 1.0;
        s->cores_busy_s += part * lane->price.seconds * lane->price.use[CORES] * s->rates->cores;
        drive |= lane->price.use[DRIVE] > 0.0;
        lane->busy_s += passes_s;
        lane->left -= part;
    }
    s->drive_busy_s += drive ? passes_s : 0.0;
}

/* Starts what may start, ends what has ended, until nothing changes any more. */
static bool settle(struct simulator *s) {
    /* What rounding leaves of an op that has ended. */
    const double nothing = 1e-9;
    bool any = false, changed = true;
    while (changed) {
        changed = false;
        for (int which = 0; which < SW_LANES; which++) {
            struct lane_state *lane = &s->lane[which];
            if (lane->running && (lane->left <= nothing || lane->price.seconds <= 0.0)) {
                end_op(s, (sw_lane)which);
                changed = true;
            }
            if (ready(s, (sw_lane)which)) {
                begin_op(s, (sw_lane)which);
                changed = true;
            }
        }
        note_steps(s);
        any |= changed;
    }
    return any;
}

/* The busiest: a lane, the drive that two lanes share, or the cores, where several lanes together keep them busier than
 * any of them is. */
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

static void conclude(const struct simulator *s, struct sw_simulation *out) {
    *out = (struct sw_simulation){.step_s = s->step_end_s[STEPS - 1] - s->step_end_s[STEPS - 2],
                                  .cores_busy_s = s->cores_busy_s - s->cores_before_s,
                                  .drive_busy_s = s->drive_busy_s - s->drive_before_s};
    for (int which = 0; which < SW_LANES; which++)
        out->lane_busy_s[which] = s->lane[which].busy_s - s->lane[which].last_step_busy_s;
    name_bottleneck(s, out);
}

sw_status sw_simulate(const struct sw_plan *plan, sw_program_kind kind, bool redone, const struct sw_rates *rates,
                      struct sw_trace *trace, struct sw_simulation *out) {
    assert(sw_program_repeats(kind) && plan->program[kind].op_count > 0);
    struct simulator s = {
        .plan = plan, .program = &plan->program[kind], .rates = rates, .redone = redone, .trace = trace};
    for (int64_t step = 0; step < STEPS; step++)
        s.times[step] = sw_trace_begin(trace, kind, step + 1, 0);
    while (settle(&s), s.steps_done < STEPS) {
        bool running = false;
        for (int which = 0; which < SW_LANES; which++)
            running |= s.lane[which].running;
        if (!running)
            return sw_fail(SW_ERR_INTERNAL, "the simulated plan stands still after %lld steps",
                           (long long)s.steps_done);
        advance(&s);
    }
    conclude(&s, out);
    return SW_OK;
}

sw_status sw_predict(const struct sw_plan *plan, const struct sw_rates *rates, struct sw_prediction *out) {
    *out = (struct sw_prediction){.may_speculate = plan->commit_every_step};
    SW_TRY(sw_simulate(plan, SW_PROGRAM_UPDATE, false, rates, NULL, &out->plain));
    if (!out->may_speculate)
        return SW_OK;
    SW_TRY(sw_simulate(plan, SW_PROGRAM_REDO_SPECULATE, false, rates, NULL, &out->speculated));
    return sw_simulate(plan, SW_PROGRAM_REDO_SPECULATE, true, rates, NULL, &out->redone);
}
