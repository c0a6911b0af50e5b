#include "offload/simulate/simulate.h"

#include "core/size.h"

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

/* The part of an op that rounding may leave when it has ended. */
#define NEGLIGIBLE 1e-9

/* The most cores that a measurement of one busy thread may count. */
#define ONE_CORE 1.05

/* The price of an op by itself: its time, and the resources that it uses meanwhile. */
struct price {
    double seconds;
    double cores; /* part of all cores, from 0 to 1 */
    bool drive;   /* keeps the drive busy */
    bool moves;   /* moves bytes to or from the drive, in the way of those that go the other way */
    bool skipped; /* a redo that is not needed */
};

/* The price of an op depends on this as well as on the op. */
struct pricing {
    const struct sw_plan *plan;
    const struct sw_rates *rates;
    bool redone; /* redo ops run */
};

/* An op in the order of its lane. A step runs several times and an op has one of two prices, so both are known before.
 */
struct timed_op {
    double seconds[2]; /* time by itself, handover included: on a lane that was busy before, and on one that was idle */
    double cores;
    int32_t first_wait;
    int8_t wait_count;
    bool drive, moves, skipped;
};

struct lane_state {
    const struct timed_op *op; /* the lane's ops of one step, `count` of them */
    int64_t count;
    int64_t next, next_step; /* position and step of the op to start */
    int64_t end, end_step;   /* position and step of the op to end: all before it are done */
    int64_t ends;            /* ops that have ended, over all steps */
    int64_t awaited_ends;    /* where `next` waits for another lane: the ends there that it waits for */
    double ready_s;          /* when the lane may take the next op */
    double started_s;        /* when the running op began */
};

/* Seconds since the beginning: the clock, and the busy times of lanes, cores and drive. */
struct totals {
    double now, cores, drive, lane[SW_LANES];
};

/* The most ops using cores at a time in an event that may be repeated. */
enum { MOST_ON_CORES = 3 };

/* Time that passed until an op ended, and the lanes that were running, with whether one kept the drive busy. */
struct event {
    double passes_s;
    double cores_s[MOST_ON_CORES]; /* core-seconds of each of the on_cores ops that used cores, in the order of lanes */
    unsigned running;
    int8_t on_cores;
    int8_t steps; /* steps that were done when the op had ended */
    bool drive;
};

/* A simulation when it has ended so many steps, counted from that step, but for the times that it has summed up. */
struct snapshot {
    int64_t events; /* events before it; -1: there is no snapshot */
    int64_t next[SW_LANES], next_step[SW_LANES], end[SW_LANES], end_step[SW_LANES];
    double left_s[SW_LANES];
    unsigned running, idle; /* idle: lanes that have waited before they begin an op now */
};

/* The marks of a step at which snapshots are compared with those of the step before. */
enum { MARKS = 33, MARKS_WITHIN = MARKS - 1 };

/* Lanes are bits of the sets. An op that may not start is looked at again only when the event that it waits for has
 * happened: `awaiting` and `held` say which lanes that concerns. */
struct simulator {
    const struct sw_program *program;
    const struct sw_rates *rates;
    struct sw_op_times *times[STEPS]; /* NULL: not traced */
    int64_t steps, first, last;       /* steps in all; the answer is about those after `first`, up to `last` */
    int64_t steps_done;
    double bubble_s; /* of a step: a stage waits while one group of micro-batches passes all others */
    struct totals total, before, after; /* totals so far, and at both ends of the steps that answer */
    struct lane_state lane[SW_LANES];
    double left_s[SW_LANES];       /* seconds that the running op still takes at full speed; infinite: none runs */
    double negligible_s[SW_LANES]; /* rest of an op that counts as rounding: the op has ended */
    unsigned active;               /* lanes that have ops, as most programs leave some without */
    unsigned running;              /* lanes whose op before `next` runs */
    double cores[SW_LANES];        /* part of all cores that the running op uses */
    unsigned on_cores, moving;     /* running lanes whose op uses cores, or moves bytes to or from the drive */
    unsigned on_drive;             /* running lanes whose op keeps the drive busy */
    unsigned due;                  /* lanes whose next op may be ready */
    unsigned held;                 /* lanes whose next op belongs to a step that may not begin yet */
    unsigned awaiting[SW_LANES];   /* lanes whose next op waits for an end on this lane */
    struct event *event;           /* a ring of the last events, one for each op; NULL: none are kept */
    int64_t events;                /* events so far, counted from 1 on */
    int32_t newest;                /* place of the last event in the ring */
    int64_t not_kept;              /* the last event that does not repeat; 0: none */
    int marker;                    /* lane with the most ops, by which marks are set */
    int64_t next_mark;             /* the ends of that lane at the next mark */
    struct snapshot mark[MARKS];   /* the newest of each mark of a step; the last: of the end of a step */
};

static unsigned bit_of(int lane) {
    return 1U << lane;
}

/* Takes the lowest lane out of a set that has one. */
static int take_lane(unsigned *set) {
    const int lane = __builtin_ctz(*set);
    *set &= *set - 1;
    return lane;
}

/* Returns the part of all cores, at most 1: an op that runs by itself is no slower than it was measured. */
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

/* Returns the rates among the ranks that share a unit's state. */
static const struct sw_scope_rates *rates_of_sharers(const struct sw_plan *plan, const struct sw_rates *rates,
                                                     const struct sw_op *op) {
    return sw_plan_unit_ranks(plan, op->unit) > sw_plan_ranks(plan) ? &rates->among_sharers : &rates->among_data;
}

/* Returns the rates of an exchange in a group. */
static const struct sw_scope_rates *rates_of_group(const struct sw_plan *plan, const struct sw_rates *rates,
                                                   const struct sw_op *op) {
    return sw_plan_among(plan, op) == SW_AMONG_TENSOR ? &rates->in_group : &rates->in_experts;
}

/* Returns the larger number, like fmax without NAN, inlined: a simulation spends its time here. */
static inline double greater(double a, double b) {
    return a > b ? a : b;
}

static struct price of_compute(const struct sw_rates *rates, double seconds) {
    return (struct price){.seconds = seconds, .cores = part_of_cores(rates->compute_cores, rates->cores)};
}

/* Returns the bytes that an op reads and writes to add the quantized gradients of several ranks, or of nodes, up. The
 * bytes that such an op counts on the comm lane are those that ranks exchange. */
static double added_bytes(const struct sw_plan *plan, const struct sw_op *op) {
    const int64_t typed = sw_plan_typed_bytes(plan, 1), wide = SW_GRAIN_ELEMS * (int64_t)sizeof(float);
    const int64_t record = sw_quant_grain_bytes(plan->spec.reduce);
    const int ranks = op->level == SW_LEVEL_ACROSS ? sw_plan_reduce_nodes(plan) : sw_plan_reduce_node_ranks(plan);
    return (double)(op->grains * (ranks * record + (op->wide || op->level == SW_LEVEL_NODE ? wide : typed)));
}

/* Returns the bytes of an op's grains in fp32 and as quantized gradients, or in the compute type and as quantized
 * weights. */
static double quantized_sum_bytes(const struct sw_plan *plan, const struct sw_op *op) {
    return (double)(op->grains * (SW_GRAIN_ELEMS * (int64_t)sizeof(float) + sw_quant_grain_bytes(plan->spec.reduce)));
}

static double quantized_weights_bytes(const struct sw_plan *plan, const struct sw_op *op) {
    return (double)(op->grains * (sw_quant_grain_bytes(plan->spec.gather) + sw_plan_typed_bytes(plan, 1)));
}

/* Prices an exchange by the slower of the links within nodes (the scope's rates) and between nodes. latency_s: latency
 * of an exchange that leaves the node. */
static struct price of_levels(const struct pricing *s, const struct sw_op *op, const struct sw_scope_rates *within,
                              enum collective kind, double latency_s) {
    const double network_bytes_per_s = s->rates->between_bytes_per_s;
    const double between = network_bytes_per_s > 0.0 ? (double)sw_plan_between_bytes(s->plan, op) : 0.0;
    struct price price = of_scope(s->rates, within, kind, (double)op->bytes - between);
    if (between > 0.0)
        price.seconds = latency_s + greater(price.seconds - within->latency_s, between / network_bytes_per_s);
    return price;
}

static struct price of_group(const struct pricing *s, const struct sw_op *op, enum collective kind) {
    const struct sw_scope_rates *rates = rates_of_group(s->plan, s->rates, op);
    return of_levels(s, op, rates, kind, rates->latency_s);
}

/* Returns the time of the iterations of Muon in an update, by the cores or on a GPU, which multiplies as in passes. */
static double muon_s(const struct pricing *s, const struct sw_op *op, bool by_cores) {
    const double measured = by_cores ? s->rates->muon.bytes_per_s / SW_MUON_FLOP_BYTES : 0.0;
    const double forward_s = s->rates->units[op->unit].forward_s;
    const double of_passes = forward_s > 0.0 ? s->plan->spec.cost[op->unit].forward_flops / forward_s : 0.0;
    const double flops_per_s = measured > 0.0 ? measured : of_passes;
    return flops_per_s > 0.0 ? op->flops / flops_per_s : 0.0;
}

/* Prices an update by the rate of its state's form. If that rate is not known, a parameter takes as long as in fp32:
 * narrow state saves traffic and costs arithmetic. */
static struct price of_adamw(const struct pricing *s, const struct sw_op *op, bool by_cores,
                             const struct sw_rate *fp32) {
    const struct sw_rate narrow[SW_OPTIMIZER_FORMATS] = {
        [SW_OPTIMIZER_BF16] = s->rates->update_bf16, [SW_OPTIMIZER_8BIT] = s->rates->update_8bit};
    const struct sw_rate *own = &narrow[sw_optimizer_records(s->plan->spec.units->optimizer)];
    const int64_t saved = sw_optimizer_grain_bytes(SW_OPTIMIZER_FP32) - sw_plan_optimizer_bytes(s->plan, 1);
    if (by_cores && own->bytes_per_s > 0.0)
        return of_rate(*own, (double)op->bytes, s->rates->cores);
    return of_rate(*fp32, (double)(op->bytes + 2 * op->grains * saved), s->rates->cores);
}

static struct price of_update(const struct pricing *s, const struct sw_op *op, bool by_cores,
                              const struct sw_rate *fp32) {
    struct price price = of_adamw(s, op, by_cores, fp32);
    if (op->flops > 0.0f) {
        price.seconds += muon_s(s, op, by_cores);
        if (by_cores)
            price.cores = part_of_cores(s->rates->cores, s->rates->cores);
    }
    return price;
}

/* A norm's forward pass goes over memory about so often: its input and its output. */
enum { NORM_PASSES = 2 };

/* Returns the time of a pass of a block or the head whose measured time includes its norm. With sequence parallelism
 * the norm is an op of its own, so its pass over all rows is taken off. */
static double without_norm_s(const struct sw_plan *plan, const struct sw_rates *rates, double seconds) {
    const double norm_bytes = NORM_PASSES * (double)plan->spec.cost[0].output_bytes;
    return sw_plan_is_sequence_parallel(plan) ? fmax(0.0, seconds - norm_bytes / rates->finish.bytes_per_s) : seconds;
}

/* A backward pass takes about as long as so many forward passes. */
enum { BACKWARD_PASSES = 2 };

/* Returns the share of a unit's measured backward pass that frozen tensors save: their products have no gradient of
 * weights. */
static double frozen_share(const struct sw_plan *plan, const struct sw_rates *rates, int64_t unit) {
    const struct sw_unit_cost *cost = &plan->spec.cost[unit];
    return cost->forward_flops > 0.0 && !rates->frozen_left_out
               ? cost->frozen_flops / (BACKWARD_PASSES * cost->forward_flops)
               : 0.0;
}

/* Returns the time of what the backward pass of a unit computes again. */
static double again_s(const struct sw_plan *plan, const struct sw_rates *rates, int64_t unit) {
    const double seconds[SW_RECOMPUTES] = {
        [SW_RECOMPUTE_DERIVED] = rates->units[unit].derive_s, [SW_RECOMPUTE_UNIT] = rates->units[unit].recompute_s};
    return without_norm_s(plan, rates, seconds[plan->recompute[unit]]);
}

/* Returns the time of a backward op, which may leave two products to ops of their own. A block whose experts a group
 * shares out has computed again what it needs before it sent its rows. */
static double backward_s(const struct sw_plan *plan, const struct sw_rates *rates, int64_t unit) {
    const bool splits = sw_plan_splits_backward(plan, unit);
    const double products_s = splits ? rates->units[unit].last_product_s + rates->units[unit].first_product_s : 0.0;
    const double frozen = frozen_share(plan, rates, unit);
    return fmax(0.0, (1.0 - frozen) * rates->units[unit].backward_s - products_s) +
           (sw_plan_sends_rows(plan, unit) ? 0.0 : again_s(plan, rates, unit));
}

/* Returns the time of the head, forward and backward. Beyond the forward pass it has two products of equal size, of
 * which a frozen table needs one. */
static double head_s(const struct sw_plan *plan, const struct sw_rates *rates, int64_t head) {
    const bool frozen = plan->spec.units->tied ? !sw_plan_trains(plan, 0) : plan->spec.cost[head].frozen_flops > 0.0;
    return frozen && !rates->frozen_left_out ? 0.5 * (rates->units[head].forward_s + rates->units[head].backward_s)
                                             : rates->units[head].backward_s;
}

/* Prices a pass of a unit by the measured time of its arithmetic. The loss of a tensor group is left by its logits. */
static struct price of_unit(const struct pricing *s, const struct sw_op *op) {
    const struct sw_rates *r = s->rates;
    /* Experts by themselves do no more than to normalise the rows that they send. */
    if ((op->kind == SW_OP_SEND_ROWS || op->kind == SW_OP_RECALL_ROWS) && !sw_plan_sends_rows(s->plan, op->unit))
        return of_rate(r->finish, (double)op->bytes, r->cores);
    switch (sw_ops[op->kind].price) {
    case SW_PRICE_BACKWARD: return of_compute(r, backward_s(s->plan, r, op->unit));
    case SW_PRICE_RECALL: return of_compute(r, again_s(s->plan, r, op->unit));
    case SW_PRICE_LAST_PRODUCT: return of_compute(r, r->units[op->unit].last_product_s);
    case SW_PRICE_FIRST_PRODUCT: return of_compute(r, r->units[op->unit].first_product_s);
    case SW_PRICE_HEAD: return of_compute(r, without_norm_s(s->plan, r, head_s(s->plan, r, op->unit)));
    case SW_PRICE_LOSS: return of_compute(r, sw_plan_tensor_ranks(s->plan) > 1 ? 0.0 : r->units[op->unit].forward_s);
    default:
        return of_compute(r, op->unit == 0 ? r->units[0].forward_s
                                           : without_norm_s(s->plan, r, r->units[op->unit].forward_s));
    }
}

/* Returns the bytes that a stage gets, which are counted where they are given. */
static double passed_bytes(const struct sw_plan *plan, const struct sw_op *op) {
    return op->kind == SW_OP_RECEIVE ? (double)plan->spec.cost[op->unit].output_bytes : 0.0;
}

static struct price price_of(const struct pricing *s, const struct sw_op *op, bool lane_was_idle) {
    const struct sw_rates *r = s->rates;
    const double bytes = (double)op->bytes;
    if (op->redo && !s->redone)
        return (struct price){.skipped = true};
    switch (sw_ops[op->kind].price) {
    case SW_PRICE_UPLOAD: return of_rate(r->upload, bytes, r->cores);
    case SW_PRICE_DOWNLOAD: return of_rate(r->download, bytes, r->cores);
    case SW_PRICE_READ: return of_drive(r, r->read, bytes, lane_was_idle);
    case SW_PRICE_WRITE: return of_drive(r, r->write, bytes, lane_was_idle);
    case SW_PRICE_COMMIT: return (struct price){.seconds = r->commit_s, .drive = true};
    case SW_PRICE_MEMORY: return of_rate(r->finish, bytes, r->cores);
    case SW_PRICE_ZERO:
        return of_rate(r->zero, (double)(op->grains * SW_GRAIN_ELEMS * (int64_t)sizeof(float)), r->cores);
    case SW_PRICE_QUANTIZE_SUM: return of_rate(r->finish, quantized_sum_bytes(s->plan, op), r->cores);
    case SW_PRICE_DEQUANTIZE_GRADIENTS: return of_rate(r->finish, added_bytes(s->plan, op), r->cores);
    case SW_PRICE_QUANTIZED_WEIGHTS: return of_rate(r->finish, quantized_weights_bytes(s->plan, op), r->cores);
    case SW_PRICE_UPDATE_ON_HOST: return of_update(s, op, true, &r->update);
    case SW_PRICE_UPDATE_ON_DEVICE: return of_update(s, op, r->compute_cores > 0.0, &r->update_on_device);
    case SW_PRICE_FORWARD:
    case SW_PRICE_BACKWARD:
    case SW_PRICE_RECALL:
    case SW_PRICE_LAST_PRODUCT:
    case SW_PRICE_FIRST_PRODUCT:
    case SW_PRICE_HEAD:
    case SW_PRICE_LOSS: return of_unit(s, op);
    case SW_PRICE_REDUCE: return of_scope(r, rates_of_sharers(s->plan, r, op), REDUCES, bytes);
    case SW_PRICE_GATHER:
        return of_scope(r, op->secondary ? &r->in_node : rates_of_sharers(s->plan, r, op), GATHERS, bytes);
    case SW_PRICE_EXCHANGE: return of_levels(s, op, &r->in_node, GATHERS, r->comm_latency_s);
    case SW_PRICE_GROUP_REDUCE: return of_group(s, op, REDUCES);
    case SW_PRICE_GROUP_GATHER: return of_group(s, op, GATHERS);
    case SW_PRICE_PASS: return of_comm(r, r->gather, greater(bytes, passed_bytes(s->plan, op)));
    case SW_PRICE_SUMMARY: return of_comm(r, r->gather, bytes);
    case SW_PRICE_NOTHING: break;
    }
    return (struct price){0};
}

/* Returns the time of an op beyond its work; waiting never makes it less. I/O is queued ahead, which hides its
 * handover. Exchanges run on the device too, except the summary, which is in host memory. */
static double handover_s(const struct sw_rates *rates, const struct sw_op *op, bool waited) {
    const bool gpu = rates->compute_cores <= 0.0, exchange = op->lane == SW_LANE_COMM;
    const bool of_device = sw_lane_is_of_device(op->lane) || (exchange && !sw_ops[op->kind].of_host);
    const double least_s = gpu && !of_device ? 0.0 : rates->queued_op_s;
    if (sw_lane_is_io(op->lane))
        return 0.0;
    return waited && !(gpu && of_device) ? greater(least_s, rates->op_s) : least_s;
}

static struct timed_op time_op(const struct pricing *pricing, const struct sw_op *op) {
    const struct price price = price_of(pricing, op, false);
    struct timed_op timed = {.seconds = {price.seconds, price_of(pricing, op, true).seconds},
                             .cores = price.cores,
                             .first_wait = op->first_wait,
                             .wait_count = op->wait_count,
                             .drive = price.drive,
                             .moves = price.moves,
                             .skipped = price.skipped};
    for (int idle = 0; idle < 2 && !price.skipped; idle++)
        timed.seconds[idle] += handover_s(pricing->rates, op, idle == 1);
    return timed;
}

/* Prices of the last ops: many ops differ only in members that do not affect the price. */
enum { RECENT_PRICES = 64 };
struct recent_prices {
    const struct sw_op *op[RECENT_PRICES];
    struct timed_op timed[RECENT_PRICES];
};

/* Tells whether ops have the same price. The number of a chunk matters only between nodes. */
static bool are_alike(const struct sw_op *a, const struct sw_op *b) {
    return a->kind == b->kind && a->unit == b->unit && a->bytes == b->bytes && a->grains == b->grains &&
           a->content == b->content && a->redo == b->redo && a->wide == b->wide && a->bucket == b->bucket &&
           a->level == b->level && a->secondary == b->secondary && a->lane == b->lane &&
           (a->chunk == b->chunk || a->lane != SW_LANE_COMM);
}

/* Returns the times of one of many ops (time_op); an op like a recent one is not priced again. */
static struct timed_op time_next(const struct pricing *pricing, const struct sw_op *op, struct recent_prices *recent) {
    const unsigned at = ((unsigned)op->kind * 5 + (unsigned)op->unit * 3 + (unsigned)op->grains) % RECENT_PRICES;
    if (recent->op[at] == NULL || !are_alike(recent->op[at], op))
        recent->timed[at] = time_op(pricing, op);
    recent->op[at] = op;
    struct timed_op timed = recent->timed[at];
    timed.first_wait = op->first_wait;
    timed.wait_count = op->wait_count;
    return timed;
}

double sw_simulate_op(const struct sw_plan *plan, const struct sw_rates *rates, const struct sw_op *op) {
    return time_op(&(struct pricing){.plan = plan, .rates = rates}, op).seconds[0];
}

/* Returns the number of steps that may have begun. */
static int64_t steps_begun(const struct simulator *s) {
    return sw_min_i64(s->steps, s->steps_done + STEPS_IN_FLIGHT);
}

/* Tells whether a lane's next op may start. If not, notes the event that it waits for. */
static bool ready(struct simulator *s, int which) {
    struct lane_state *lane = &s->lane[which];
    if (lane->next_step >= steps_begun(s)) {
        s->held |= bit_of(which);
        return false;
    }
    const struct timed_op *op = &lane->op[lane->next];
    for (int32_t w = 0; w < op->wait_count; w++) {
        const struct sw_wait *wait = &s->program->wait[op->first_wait + w];
        const int64_t target_step = lane->next_step - wait->steps_back;
        const int64_t ends = target_step * s->lane[wait->lane].count + wait->position + 1;
        if (target_step < 0 || s->lane[wait->lane].ends >= ends)
            continue;
        lane->awaited_ends = ends;
        s->awaiting[wait->lane] |= bit_of(which);
        return false;
    }
    return true;
}

/* Notes that so many steps are done, and keeps the totals at both ends of the steps that answer. */
static void note_done(struct simulator *s, int64_t done) {
    if (s->steps_done < s->first && done >= s->first)
        s->before = s->total;
    if (s->steps_done < s->last && done >= s->last)
        s->after = s->total;
    s->steps_done = done;
}

static void note_steps(struct simulator *s) {
    int64_t done = s->steps;
    for (unsigned set = s->active; set != 0;)
        done = sw_min_i64(done, s->lane[take_lane(&set)].end_step);
    if (done == s->steps_done)
        return;
    if (s->event != NULL && s->events > 0)
        s->event[s->newest].steps += (int8_t)(done - s->steps_done);
    note_done(s, done);
    s->due |= s->held;
    s->held = 0;
}

static int64_t ns_of(double seconds) {
    return (int64_t)llround(seconds * 1e9);
}

static void begin_op(struct simulator *s, int which) {
    struct lane_state *lane = &s->lane[which];
    const struct timed_op *op = &lane->op[lane->next];
    s->left_s[which] = op->seconds[s->total.now > lane->ready_s];
    s->negligible_s[which] = NEGLIGIBLE * s->left_s[which];
    lane->started_s = s->total.now;
    s->running |= bit_of(which);
    s->cores[which] = op->cores;
    s->on_cores |= op->cores > 0.0 ? bit_of(which) : 0;
    s->moving |= op->moves ? bit_of(which) : 0;
    s->on_drive |= op->drive ? bit_of(which) : 0;
    if (++lane->next == lane->count) {
        lane->next = 0;
        lane->next_step++;
    }
}

/* Tells whether a running op has ended. The difference of two infinite times is not a number, so an op of infinite time
 * never ends. */
static bool has_ended(const struct simulator *s, int which) {
    return s->left_s[which] - s->negligible_s[which] <= 0.0;
}

static void end_op(struct simulator *s, int which) {
    struct lane_state *lane = &s->lane[which];
    if (s->times[lane->end_step] != NULL && !lane->op[lane->end].skipped)
        s->times[lane->end_step][s->program->lane_op[which][lane->end]] =
            (struct sw_op_times){.start_ns = ns_of(lane->started_s), .end_ns = ns_of(s->total.now)};
    s->left_s[which] = INFINITY;
    s->running &= ~bit_of(which);
    s->on_cores &= ~bit_of(which);
    s->moving &= ~bit_of(which);
    s->on_drive &= ~bit_of(which);
    lane->ready_s = s->total.now;
    lane->ends++;
    s->due |= bit_of(which);
    for (unsigned set = s->awaiting[which]; set != 0;) {
        const int other = take_lane(&set);
        if (lane->ends < s->lane[other].awaited_ends)
            continue;
        s->awaiting[which] &= ~bit_of(other);
        s->due |= bit_of(other);
    }
    if (++lane->end == lane->count) {
        lane->end = 0;
        lane->end_step++;
        note_steps(s);
    }
}

/* Factors by which ops are slowed down: for want of cores, and by reads and writes that share the drive. */
struct crowding {
    double cores, drive;
};

/* Returns by which factor the running ops take longer for want of cores. Ops that share work out evenly over several
 * cores end with their last thread, so one thread of another op in the way of one of theirs delays them as a whole. */
static double crowding_of_cores(const struct simulator *s) {
    double wide = 0.0, narrow = 0.0, narrowest_way = 0.0;
    for (unsigned set = s->on_cores; set != 0;) {
        const double part = s->cores[take_lane(&set)];
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
    const bool several_move = (s->moving & (s->moving - 1)) != 0;
    return (struct crowding){.cores = crowding_of_cores(s),
                             .drive = several_move ? greater(1.0, s->rates->read_write_slowdown) : 1.0};
}

static double slowdown_of(const struct simulator *s, int which, struct crowding crowding) {
    return greater(s->on_cores & bit_of(which) ? crowding.cores : 1.0,
                   s->moving & bit_of(which) ? crowding.drive : 1.0);
}

/* Remembers an event that may come again in the next step. */
static void note_event(struct simulator *s, struct event event) {
    if (s->event == NULL)
        return;
    s->events++;
    s->newest = s->newest + 1 < s->program->op_count ? s->newest + 1 : 0;
    s->event[s->newest] = event;
    if (event.on_cores > MOST_ON_CORES)
        s->not_kept = s->events;
}

/* Lets `passes_s` pass for a running op that needs `alone_s` of it by itself. */
static inline void pass(struct simulator *s, int which, double passes_s, double alone_s, struct event *event) {
    if (s->on_cores & bit_of(which)) {
        const double cores_s = alone_s * s->cores[which] * s->rates->cores;
        s->total.cores += cores_s;
        if (event->on_cores < MOST_ON_CORES)
            event->cores_s[event->on_cores] = cores_s;
        event->on_cores++;
    }
    s->total.lane[which] += passes_s;
    s->left_s[which] -= alone_s;
}

/* Lets time pass until the first running op ends, where none is slowed down. */
static double pass_at_full_speed(struct simulator *s, struct event *event) {
    double passes_s = INFINITY;
    for (unsigned set = s->running; set != 0;) {
        const double left_s = s->left_s[take_lane(&set)];
        passes_s = left_s < passes_s ? left_s : passes_s;
    }
    for (unsigned set = s->running; set != 0;)
        pass(s, take_lane(&set), passes_s, passes_s, event);
    return passes_s;
}

static double pass_slowly(struct simulator *s, struct crowding crowding, struct event *event) {
    double slowdown[SW_LANES], passes_s = INFINITY;
    for (unsigned set = s->running; set != 0;) {
        const int which = take_lane(&set);
        slowdown[which] = slowdown_of(s, which, crowding);
        const double ends_s = s->left_s[which] * slowdown[which];
        passes_s = ends_s < passes_s ? ends_s : passes_s;
    }
    for (unsigned set = s->running; set != 0;) {
        const int which = take_lane(&set);
        pass(s, which, passes_s, slowdown[which] > 1.0 ? passes_s / slowdown[which] : passes_s, event);
    }
    return passes_s;
}

/* Lets time pass until the first running op ends. */
static void advance(struct simulator *s) {
    const struct crowding crowding = measure_crowding(s);
    struct event event = {.running = s->running, .drive = s->on_drive != 0};
    event.passes_s =
        crowding.cores > 1.0 || crowding.drive > 1.0 ? pass_slowly(s, crowding, &event) : pass_at_full_speed(s, &event);
    s->total.now += event.passes_s;
    s->total.drive += event.drive ? event.passes_s : 0.0;
    note_event(s, event);
}

/* Ends ops that have ended and starts ops that may start, until nothing changes. */
static void settle(struct simulator *s) {
    for (unsigned set = s->running; set != 0;) {
        const int which = take_lane(&set);
        if (has_ended(s, which))
            end_op(s, which);
    }
    while (s->due != 0) {
        const int which = take_lane(&s->due);
        if (!ready(s, which))
            continue;
        begin_op(s, which);
        if (has_ended(s, which))
            end_op(s, which);
    }
}

/* Names the busiest resource: a lane, the drive that two lanes share, or the cores, if several lanes together keep them
 * busier than any lane is. */
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
    out->bubble_s = (double)(s->last - s->first) * s->bubble_s;
    out->step_s += out->bubble_s;
    name_bottleneck(s, out);
}

static struct snapshot take_snapshot(const struct simulator *s) {
    struct snapshot shot = {.events = s->events, .running = s->running};
    for (unsigned set = s->active; set != 0;) {
        const int which = take_lane(&set);
        const struct lane_state *lane = &s->lane[which];
        shot.next[which] = lane->next;
        shot.next_step[which] = lane->next_step - s->steps_done;
        shot.end[which] = lane->end;
        shot.end_step[which] = lane->end_step - s->steps_done;
        shot.left_s[which] = s->left_s[which];
        shot.idle |= lane->ready_s < s->total.now ? bit_of(which) & ~s->running : 0;
    }
    return shot;
}

static bool are_same(const struct snapshot *a, const struct snapshot *b) {
    bool same = a->running == b->running && a->idle == b->idle;
    for (int which = 0; which < SW_LANES && same; which++)
        same = a->next[which] == b->next[which] && a->next_step[which] == b->next_step[which] &&
               a->end[which] == b->end[which] && a->end_step[which] == b->end_step[which] &&
               a->left_s[which] == b->left_s[which];
    return same;
}

/* Adds an event's times to totals. A lane that did not run has zero added, which takes less time than to ask whether it
 * ran. */
static inline void add_event(const struct event *event, struct totals *total) {
    const double passes_s[] = {0.0, event->passes_s};
    total->now += event->passes_s;
    for (int k = 0; k < event->on_cores; k++)
        total->cores += event->cores_s[k];
    total->drive += passes_s[event->drive];
    for (int which = 0; which < SW_LANES; which++)
        total->lane[which] += passes_s[event->running >> which & 1];
}

/* Repeats the last events, so many of them, until all steps that answer are done. Times are summed in the same order as
 * if ops were started and ended, and so have the same bits. */
static void repeat_events(struct simulator *s, int64_t count) {
    struct totals total = s->total;
    const int32_t kept = s->program->op_count;
    const int32_t before = s->newest - (int32_t)count, behind = before < 0 ? before + kept : before;
    while (s->steps_done < s->last) {
        int32_t at = behind;
        for (int64_t i = 0; i < count && s->steps_done < s->last; i++) {
            at = at + 1 < kept ? at + 1 : 0;
            add_event(&s->event[at], &total);
            if (s->event[at].steps > 0) {
                s->total = total;
                note_done(s, s->steps_done + s->event[at].steps);
            }
        }
    }
}

/* Called at a mark: if the simulation is as it was at this mark of the step before, it repeats the events since then.
 *
 * In the first step ops do not wait for the steps before it, and in the second not for those before the first. All ops
 * of earlier steps are done at a mark, and a lane is at most one step ahead of the steps that are done, so that these
 * waits hold up no op behind a mark of later steps either. */
static void compare_mark(struct simulator *s, int which) {
    const struct snapshot now = take_snapshot(s), *before = &s->mark[which];
    const int64_t since = s->events - before->events;
    if (before->events >= s->not_kept && since > 0 && since <= s->program->op_count && are_same(&now, before))
        repeat_events(s, since);
    s->mark[which] = now;
}

/* Compares the marks that the simulation has come to: the end of a step, or one within a step. The latter count only
 * where no lane is behind in the step before. */
static void compare_marks(struct simulator *s, bool step_is_done) {
    const struct lane_state *lane = &s->lane[s->marker];
    const int64_t stride = sw_div_up(lane->count, MARKS_WITHIN);
    if (step_is_done)
        compare_mark(s, MARKS_WITHIN);
    if (lane->ends < s->next_mark)
        return;
    if (lane->end_step == s->steps_done)
        compare_mark(s, (int)(lane->end / stride));
    s->next_mark = lane->ends + stride - lane->end % stride;
}

/* Prices the ops, each of which goes to its place in its lane. Returns the time of the busiest lane. */
static double time_ops(struct simulator *s, const struct pricing *pricing, struct timed_op *const to[SW_LANES]) {
    const struct sw_program *program = s->program;
    struct recent_prices recent = {0};
    double busy_s[SW_LANES] = {0.0}, passes_s = 0.0; /* passes_s: computing micro-batches */
    double busiest_s = 0.0;
    for (const struct sw_op *op = program->op; op < program->op + program->op_count; op++) {
        struct timed_op *at = &to[op->lane][op->position];
        *at = time_next(pricing, op, &recent);
        busy_s[op->lane] += at->seconds[0];
        passes_s += op->lane == SW_LANE_COMPUTE && op->micro >= 0 ? at->seconds[0] : 0.0;
    }
    for (int which = 0; which < SW_LANES; which++)
        busiest_s = greater(busiest_s, busy_s[which]);
    s->bubble_s = (double)(sw_plan_stages(pricing->plan) - 1) * passes_s /
                  (double)(sw_plan_groups(pricing->plan) * sw_plan_turns(pricing->plan));
    return busiest_s;
}

/* Makes room for the entries of an array of which nothing is kept. */
static bool make_room(void **array, int32_t *capacity, int32_t wanted, size_t size) {
    if (*array != NULL && *capacity >= wanted)
        return true;
    free(*array);
    *array = malloc((size_t)wanted * size);
    *capacity = *array != NULL ? wanted : 0;
    return *array != NULL;
}

void sw_simulate_room_destroy(struct sw_simulate_room *room) {
    free(room->ops);
    free(room->events);
    *room = (struct sw_simulate_room){0};
}

/* Sets up the lanes, activates those with ops, and returns the time of the busiest. */
static sw_status begin(struct simulator *s, const struct pricing *pricing, struct sw_simulate_room *room,
                       double *out_busiest_s) {
    const struct sw_program *program = s->program;
    const int32_t most = program->op_count + 1;
    struct timed_op *to[SW_LANES];
    *out_busiest_s = 0.0;
    s->rates = pricing->rates;
    if (!make_room(&room->ops, &room->op_capacity, most, sizeof **to))
        return sw_fail(SW_ERR_NOMEM, "no memory to simulate a plan");
    struct timed_op *at = room->ops;
    for (int which = 0; which < SW_LANES; which++) {
        const int32_t count = program->lane_count[which];
        to[which] = at;
        s->lane[which] = (struct lane_state){.op = at, .count = count};
        s->left_s[which] = INFINITY;
        s->active |= count > 0 ? bit_of(which) : 0;
        s->marker = count > s->lane[s->marker].count ? which : s->marker;
        at += count;
    }
    *out_busiest_s = time_ops(s, pricing, to);
    s->due = s->active;
    for (int mark = 0; mark < MARKS; mark++)
        s->mark[mark].events = -1;
    /* The last steps of all are followed by none, and so differ from those before. */
    if (s->last < s->steps && s->times[0] == NULL &&
        make_room(&room->events, &room->event_capacity, most, sizeof *s->event))
        s->event = room->events;
    return SW_OK;
}

/* Runs the steps and sums up those that answer. Those after them are begun, as they take their share, but ended only
 * for a trace. */
static sw_status run(struct simulator *s, struct sw_simulation *out) {
    const int64_t ends = s->times[s->steps - 1] != NULL ? s->steps : s->last;
    int64_t noted = 0;
    while (settle(s), s->steps_done < ends) {
        if (s->event != NULL && (s->steps_done != noted || s->lane[s->marker].ends >= s->next_mark)) {
            compare_marks(s, s->steps_done != noted);
            noted = s->steps_done;
            if (noted >= ends)
                break;
        }
        if (s->running == 0)
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

static sw_status simulate(struct simulator *s, const struct pricing *pricing, struct sw_simulation *out) {
    struct sw_simulate_room room = {0};
    double busiest_s;
    sw_status status = begin(s, pricing, &room, &busiest_s);
    if (status == SW_OK)
        status = run(s, out);
    sw_simulate_room_destroy(&room);
    return status;
}

sw_status sw_simulate(const struct sw_plan *plan, sw_program_kind kind, bool redone, const struct sw_rates *rates,
                      struct sw_trace *trace, struct sw_simulation *out) {
    assert(sw_program_repeats(kind) && plan->program[kind].op_count > 0);
    const struct pricing pricing = {.plan = plan, .rates = rates, .redone = redone};
    struct simulator s = {.program = &plan->program[kind], .steps = STEPS, .first = ANSWER - 1, .last = ANSWER};
    for (int64_t step = 0; step < STEPS; step++)
        s.times[step] = sw_trace_begin(trace, kind, step + 1, 0);
    return simulate(&s, &pricing, out);
}

sw_status sw_simulate_program(const struct sw_plan *plan, const struct sw_program *program,
                              const struct sw_rates *rates, double enough_s, struct sw_simulate_room *room,
                              double *out_busiest_s, struct sw_simulation *out) {
    const struct pricing pricing = {.plan = plan, .rates = rates};
    struct simulator s = {.program = program, .steps = STEPS, .first = ANSWER - 1, .last = ANSWER};
    *out = (struct sw_simulation){.step_s = INFINITY};
    SW_TRY(begin(&s, &pricing, room, out_busiest_s));
    return *out_busiest_s < enough_s ? run(&s, out) : SW_OK;
}

sw_status sw_simulate_apart(const struct sw_plan *plan, sw_program_kind kind, int64_t steps,
                            const struct sw_rates *rates, struct sw_simulation *out) {
    assert(plan->program[kind].op_count > 0 && steps >= 1 && steps <= STEPS);
    assert(steps == 1 || sw_program_repeats(kind));
    const struct pricing pricing = {.plan = plan, .rates = rates};
    struct simulator s = {.program = &plan->program[kind], .steps = steps, .last = steps};
    return simulate(&s, &pricing, out);
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
