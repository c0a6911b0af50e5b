/* The simulator on random plans and made-up machines: between bounds that hold for any, and in the order that the plan
 * asks for. */
#include "tests/equipment/must.h"
#include "tests/offload/made_up.h"
#include "tests/offload/plans.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/size.h"
#include "offload/simulate/outline_price.h"
#include "offload/simulate/search.h"
#include "offload/simulate/simulate.h"

enum { MODELS = 400, MOST_UNITS = 8, MOST_GRAINS = 12, SEED = 1, TRACED_STEPS = 6, IN_FLIGHT = 2 };
#define ROUNDING 1e-6
/* By how much longer a step may be than one with all updates on the device, for which it is not worth to go there. */
#define WORTH 1.006

static struct sw_plan_spec draw_spec(struct plans_random *random, struct sw_units **units) {
    struct sw_plan_spec spec = plans_random_spec(random, MOST_UNITS, MOST_GRAINS, units);
    spec.train = true;
    return spec;
}

/* Returns the seconds of recomputation before a unit's backward pass; 0 where it recomputes nothing. */
static double again_s(const struct sw_plan *plan, const struct sw_rates *r, int32_t unit) {
    if (plan->recompute[unit] == SW_RECOMPUTE_NOTHING)
        return 0.0;
    return plan->recompute[unit] == SW_RECOMPUTE_UNIT ? r->units[unit].recompute_s : r->units[unit].derive_s;
}

/* Returns the seconds that an op takes alone. An I/O lane's latency and the waking of a lane's thread are left out:
 * whether they count depends on what went before. */
static double alone_s(const struct sw_plan *plan, const struct sw_rates *r, const struct sw_op *op) {
    const double bytes = (double)op->bytes;
    const bool queued = op->lane == SW_LANE_COMPUTE || op->lane == SW_LANE_UPLOAD || op->lane == SW_LANE_DOWNLOAD;
    const bool of_cpu = r->compute_cores > 0.0 && !sw_lane_is_io(op->lane);
    const double handover_s = !sw_lane_is_io(op->lane) && (queued || of_cpu) ? r->queued_op_s : 0.0;
    double s = 0.0;
    if (op->kind == SW_OP_COMMIT)
        s = r->commit_s;
    else if (op->lane == SW_LANE_READ)
        s = bytes / r->read.bytes_per_s;
    else if (op->lane == SW_LANE_WRITE)
        s = bytes / r->write.bytes_per_s;
    else if (op->lane == SW_LANE_UPLOAD || op->kind == SW_OP_UPLOAD_TOKENS)
        s = bytes / r->upload.bytes_per_s;
    else if (op->lane == SW_LANE_DOWNLOAD)
        s = bytes / r->download.bytes_per_s;
    else if (op->kind == SW_OP_UPDATE_ON_HOST)
        s = bytes / r->update.bytes_per_s;
    else if (op->kind == SW_OP_UPDATE_ON_DEVICE)
        s = bytes / r->update_on_device.bytes_per_s;
    else if (op->kind == SW_OP_ROUND_GRADIENTS)
        s = bytes / r->finish.bytes_per_s;
    else if (op->kind == SW_OP_ZERO_ACCUMULATOR)
        s = 4.0 * (double)(op->grains * SW_GRAIN_ELEMS) / r->zero.bytes_per_s;
    else if (op->kind == SW_OP_FORWARD)
        s = r->units[op->unit].forward_s;
    else if (op->kind == SW_OP_FORWARD_BACKWARD_HEAD && plan->spec.units->tied && !sw_plan_trains(plan, 0))
        s = 0.5 * r->units[op->unit].forward_s + 0.5 * r->units[op->unit].backward_s; /* without the table's gradient */
    else if (op->kind == SW_OP_FORWARD_BACKWARD_HEAD)
        s = r->units[op->unit].backward_s;
    else if (op->kind == SW_OP_BACKWARD)
        s = r->units[op->unit].backward_s + again_s(plan, r, op->unit);
    return s + handover_s;
}

static double lane_s(const struct sw_plan *plan, sw_program_kind kind, bool redone, const struct sw_rates *rates,
                     sw_lane lane) {
    const struct sw_program *program = &plan->program[kind];
    double sum = 0.0;
    for (int32_t i = 0; i < program->op_count; i++)
        if (program->op[i].lane == lane && (redone || !program->op[i].redo))
            sum += alone_s(plan, rates, &program->op[i]);
    return sum;
}

/* Runs a check on each of many random plans and machines, for each program that a prediction simulates. */
struct scene {
    uint64_t seed;
    struct plans_random *random;
    const struct sw_plan *plan;
    struct made_up machine;
    sw_program_kind kind;
    bool redone;
};
typedef void (*scene_check)(struct scene *scene, void *context);

static void for_each_scene(int64_t models, scene_check check, void *context) {
    for (uint64_t seed = SEED; seed < SEED + (uint64_t)models; seed++) {
        struct plans_random random = {.seed = seed};
        struct sw_units *units;
        struct sw_plan *plan;
        struct sw_plan_spec spec = draw_spec(&random, &units);
        must_seeded(sw_plan_create(&spec, &plan), seed);
        struct scene scene = {.seed = seed, .random = &random, .plan = plan, .kind = SW_PROGRAM_UPDATE};
        made_up_draw(&random, &scene.machine);
        made_up_point_at_units(&scene.machine);
        check(&scene, context);
        for (int redone = 0; plan->commit_every_step && redone < 2; redone++) {
            scene.kind = SW_PROGRAM_REDO_SPECULATE;
            scene.redone = redone;
            check(&scene, context);
        }
        sw_plan_destroy(plan);
        sw_units_destroy(units);
    }
}

static struct sw_simulation simulate(const struct scene *scene) {
    struct sw_simulation s;
    must_seeded(sw_simulate(scene->plan, scene->kind, scene->redone, &scene->machine.rates, NULL, &s), scene->seed);
    return s;
}

/* At least what each lane and resource needs, at most everything one after the other: two at once are together never
 * slower than in turn. */
static void check_bounds(struct scene *scene, void *context) {
    (void)context;
    const struct sw_rates *rates = &scene->machine.rates;
    const struct sw_simulation s = simulate(scene);
    double all_s = 0.0, drive_s = 0.0;
    for (int lane = 0; lane < SW_LANES; lane++) {
        const double work_s = lane_s(scene->plan, scene->kind, scene->redone, rates, (sw_lane)lane);
        const double wait_s = sw_lane_is_io((sw_lane)lane) ? rates->io_latency_s : rates->op_s;
        all_s += work_s + scene->plan->program[scene->kind].lane_count[lane] * wait_s;
        drive_s += sw_lane_is_io((sw_lane)lane) ? work_s : 0.0;
        if (s.step_s < work_s * (1 - ROUNDING) || s.lane_busy_s[lane] < work_s * (1 - ROUNDING) ||
            s.lane_busy_s[lane] > s.step_s * (1 + ROUNDING))
            fail_msg("seed %llu: %s works for %g s and is busy for %g s of a step of %g s",
                     (unsigned long long)scene->seed, sw_lane_name((sw_lane)lane), work_s, s.lane_busy_s[lane],
                     s.step_s);
    }
    if (s.step_s > all_s * (1 + ROUNDING) || s.step_s * rates->cores < s.cores_busy_s * (1 - ROUNDING) ||
        s.step_s < s.drive_busy_s * (1 - ROUNDING) || s.drive_busy_s < 0.5 * drive_s * (1 - ROUNDING))
        fail_msg("seed %llu: a step of %g s; all work %g s, %g core seconds on %g cores, drive busy for %g s",
                 (unsigned long long)scene->seed, s.step_s, all_s, s.cores_busy_s, rates->cores, s.drive_busy_s);
    assert_true(s.bottleneck_share > 0.0 && s.bottleneck_share <= 1 + ROUNDING);
}

static void within_bounds(void **state) {
    (void)state;
    for_each_scene(MODELS, check_bounds, NULL);
}

/* One core that everything takes whole, no I/O and no handing over: a step is the sum of its ops. */
static void check_sum(struct scene *scene, void *context) {
    int64_t *checked = context;
    struct sw_rates *r = &scene->machine.rates;
    struct sw_rate *const moves[] = {&r->upload, &r->download, &r->update, &r->update_on_device, &r->finish, &r->zero};
    double all_s = 0.0;
    if (scene->plan->program[scene->kind].lane_count[SW_LANE_READ] +
            scene->plan->program[scene->kind].lane_count[SW_LANE_WRITE] >
        0)
        return;
    for (size_t i = 0; i < sizeof moves / sizeof moves[0]; i++)
        moves[i]->cores = 1.0;
    r->cores = r->compute_cores = 1.0;
    r->op_s = r->queued_op_s = 0.0;
    for (int lane = 0; lane < SW_LANES; lane++)
        all_s += lane_s(scene->plan, scene->kind, scene->redone, r, (sw_lane)lane);
    const struct sw_simulation s = simulate(scene);
    if (fabs(s.step_s - all_s) > ROUNDING * all_s)
        fail_msg("seed %llu: a step on one core takes %.9g s instead of %.9g s", (unsigned long long)scene->seed,
                 s.step_s, all_s);
    ++*checked;
}

static void one_core_takes_the_sum(void **state) {
    (void)state;
    int64_t checked = 0;
    for_each_scene(MODELS, check_sum, &checked);
    assert_true(checked > MODELS / 20);
}

static void scale(struct made_up *m, double factor) {
    struct sw_rates *r = &m->rates;
    struct sw_rate *const moves[] = {&r->upload, &r->download, &r->update, &r->update_on_device,
                                     &r->finish, &r->zero,     &r->read,   &r->write};
    double *const seconds[] = {&r->io_latency_s, &r->commit_s, &r->op_s, &r->queued_op_s};
    for (size_t i = 0; i < sizeof moves / sizeof moves[0]; i++)
        moves[i]->bytes_per_s *= factor;
    for (size_t i = 0; i < sizeof seconds / sizeof seconds[0]; i++)
        *seconds[i] /= factor;
    for (int u = 0; u < PLANS_MOST_UNITS; u++) {
        m->units[u].forward_s /= factor;
        m->units[u].backward_s /= factor;
        m->units[u].recompute_s /= factor;
        m->units[u].derive_s /= factor;
        m->units[u].last_product_s /= factor;
        m->units[u].first_product_s /= factor;
    }
}

/* A machine that is faster at everything, by a power of two so that nothing is rounded. */
static void check_scaling(struct scene *scene, void *context) {
    (void)context;
    const double step_s = simulate(scene).step_s;
    scale(&scene->machine, 8.0);
    const double faster_s = simulate(scene).step_s;
    if (faster_s * 8.0 != step_s)
        fail_msg("seed %llu: eight times as fast, a step of %.17g s takes %.17g s", (unsigned long long)scene->seed,
                 step_s, faster_s);
}

static void scales_with_the_machine(void **state) {
    (void)state;
    for_each_scene(MODELS, check_scaling, NULL);
}

/* One thing made faster. Lanes start what is ready without looking ahead, so that a step may get longer by it, rarely
 * and by little; the test says how often and how much. */
struct monotony {
    int64_t cases, longer;
    double worst, sum_before, sum_after;
};

static void check_monotony(struct scene *scene, void *context) {
    struct monotony *found = context;
    struct made_up faster = scene->machine, before = scene->machine;
    struct sw_rates *r = &faster.rates;
    struct sw_rate *const moves[] = {&r->upload, &r->download, &r->update, &r->update_on_device,
                                     &r->finish, &r->zero,     &r->read,   &r->write};
    enum { MOVES = sizeof moves / sizeof moves[0] };
    const int64_t which = plans_draw(scene->random, 0, MOVES + 3);
    const double step_s = simulate(scene).step_s;
    if (which < MOVES)
        moves[which]->bytes_per_s *= 2.0;
    else if (which == MOVES)
        r->read_write_slowdown = 1.0;
    else if (which == MOVES + 1)
        r->commit_s = r->io_latency_s = 0.0;
    for (int u = 0; which > MOVES + 1 && u < PLANS_MOST_UNITS; u++)
        *(which == MOVES + 2 ? &faster.units[u].forward_s : &faster.units[u].backward_s) *= 0.5;
    scene->machine = faster;
    made_up_point_at_units(&scene->machine);
    const double faster_s = simulate(scene).step_s;
    scene->machine = before;
    made_up_point_at_units(&scene->machine);
    found->cases++;
    found->longer += faster_s > step_s * (1 + ROUNDING);
    found->worst = fmax(found->worst, faster_s / step_s - 1.0);
    found->sum_before += 1.0;
    found->sum_after += faster_s / step_s;
}

static void faster_parts_make_no_slower_steps(void **state) {
    (void)state;
    struct monotony found = {0};
    for_each_scene(MODELS, check_monotony, &found);
    printf("# of %lld machines with one part faster, %lld are slower, by %.2f%% at most; on average %.1f%% faster\n",
           (long long)found.cases, (long long)found.longer, 100.0 * found.worst,
           100.0 * (1.0 - found.sum_after / found.sum_before));
    assert_true(found.sum_after < found.sum_before && found.worst < 0.1 && found.longer * 10 < found.cases);
}

static int64_t end_of(const struct sw_program *program, const struct sw_op_times *times) {
    int64_t end_ns = 0;
    for (int32_t i = 0; i < program->op_count; i++)
        end_ns = sw_max_i64(end_ns, times[i].end_ns);
    return end_ns;
}

/* Every op starts when the one before it in its lane and all that it waits for have ended, and no step begins before
 * the one two before it has ended. What was skipped is over at once. */
static void check_times(const struct scene *scene, const struct sw_trace *trace, int64_t step) {
    const struct sw_program *program = &scene->plan->program[scene->kind];
    const struct sw_op_times *times = sw_trace_times(trace, step);
    const int64_t free_ns = step < IN_FLIGHT ? 0 : end_of(program, sw_trace_times(trace, step - IN_FLIGHT));
    for (int32_t i = 0; i < program->op_count; i++) {
        const struct sw_op *op = &program->op[i];
        const bool skipped = op->redo && !scene->redone;
        if (skipped != (times[i].start_ns == SW_TRACE_NOT_RUN) || times[i].end_ns < times[i].start_ns)
            fail_msg("seed %llu: op %d ran wrongly", (unsigned long long)scene->seed, (int)i);
        if (skipped)
            continue;
        const int32_t before = op->position > 0 ? program->lane_op[op->lane][op->position - 1] : i;
        if (before != i && times[before].end_ns > times[i].start_ns)
            fail_msg("seed %llu: op %d begins before its lane is free", (unsigned long long)scene->seed, (int)i);
        for (int32_t w = 0; w < op->wait_count; w++) {
            const struct sw_wait *wait = &program->wait[op->first_wait + w];
            if (step < wait->steps_back)
                continue;
            const int32_t awaited = program->lane_op[wait->lane][wait->position];
            if (sw_trace_times(trace, step - wait->steps_back)[awaited].end_ns > times[i].start_ns)
                fail_msg("seed %llu: op %d does not wait", (unsigned long long)scene->seed, (int)i);
        }
        if (times[i].start_ns < free_ns)
            fail_msg("seed %llu: step %lld begins too early", (unsigned long long)scene->seed, (long long)step);
    }
}

static void check_trace(struct scene *scene, void *context) {
    int64_t *waits = context;
    struct sw_trace *trace;
    struct sw_simulation s;
    const int64_t ops = TRACED_STEPS * (int64_t)scene->plan->program[scene->kind].op_count;
    must_seeded(sw_trace_create(scene->plan, ops, "test", &trace), scene->seed);
    must_seeded(sw_simulate(scene->plan, scene->kind, scene->redone, &scene->machine.rates, trace, &s), scene->seed);
    assert_true(sw_trace_steps(trace) >= IN_FLIGHT + 2);
    for (int64_t step = 0; step < sw_trace_steps(trace); step++)
        check_times(scene, trace, step);
    *waits += scene->plan->program[scene->kind].wait_count;
    sw_trace_destroy(trace);
}

static void obeys_the_plan(void **state) {
    (void)state;
    int64_t waits = 0;
    for_each_scene(MODELS / 4, check_trace, &waits);
    assert_true(waits > 1000);
}

/* Without a trace, a step that begins as the one before it did is not simulated again but summed up. Steps are alike to
 * the bit where no op slows another down. */
static void check_repeated(struct scene *scene, void *context) {
    (void)context;
    struct sw_trace *trace;
    struct sw_simulation traced;
    scene->machine.rates.cores *= 1024.0;
    scene->machine.rates.read_write_slowdown = 1.0;
    const int64_t ops = TRACED_STEPS * (int64_t)scene->plan->program[scene->kind].op_count;
    must_seeded(sw_trace_create(scene->plan, ops, "test", &trace), scene->seed);
    must_seeded(sw_simulate(scene->plan, scene->kind, scene->redone, &scene->machine.rates, trace, &traced),
                scene->seed);
    const struct sw_simulation s = simulate(scene);
    if (memcmp(s.lane_busy_s, traced.lane_busy_s, sizeof s.lane_busy_s) != 0 || s.step_s != traced.step_s ||
        s.cores_busy_s != traced.cores_busy_s || s.drive_busy_s != traced.drive_busy_s)
        fail_msg("seed %llu: a step of %.17g s takes %.17g s where it is not traced", (unsigned long long)scene->seed,
                 traced.step_s, s.step_s);
    sw_trace_destroy(trace);
}

static void repeated_steps_sum_up_to_the_same_bits(void **state) {
    (void)state;
    for_each_scene(MODELS, check_repeated, NULL);
}

static void check_waits(struct scene *scene, void *context) {
    (void)context;
    if (!plans_have_same_waits(scene->plan, scene->kind))
        fail_msg("seed %llu: waits differ", (unsigned long long)scene->seed);
}

static void plans_that_are_compared_have_the_waits_of_those_that_run(void **state) {
    (void)state;
    for_each_scene(MODELS, check_waits, NULL);
}

/* Every program that repeats ends, on any machine; a prediction has what the plan has. */
static void predicts_every_plan(void **state) {
    (void)state;
    enum { PLANS = 1500 };
    for (uint64_t seed = SEED; seed < SEED + PLANS; seed++) {
        struct plans_random random = {.seed = seed};
        struct sw_units *units;
        struct sw_plan *plan;
        struct sw_plan_spec spec = plans_random_spec(&random, MOST_UNITS, MOST_GRAINS, &units);
        struct made_up m;
        struct sw_simulation s;
        struct sw_prediction p;
        must_seeded(sw_plan_create(&spec, &plan), seed);
        made_up_draw(&random, &m);
        must_seeded(sw_simulate(plan, SW_PROGRAM_LOSS, false, &m.rates, NULL, &s), seed);
        must_seeded(sw_simulate(plan, SW_PROGRAM_LOGITS, false, &m.rates, NULL, &s), seed);
        if (spec.train) {
            must_seeded(sw_predict(plan, &m.rates, &p), seed);
            assert_int_equal(p.may_speculate, plan->commit_every_step);
            assert_true(p.plain.step_s > 0.0 && (p.speculated.step_s > 0.0) == p.may_speculate &&
                        (p.redone.step_s > 0.0) == p.may_speculate);
            assert_true(!p.may_speculate || p.redone.cores_busy_s >= p.speculated.cores_busy_s * (1 - ROUNDING));
        }
        sw_plan_destroy(plan);
        sw_units_destroy(units);
    }
}

/* Budgets that hold the plan with updates on the host, and often little more. */
static void draw_budgets(struct plans_random *random, struct sw_plan_spec *spec) {
    struct sw_plan *on_host;
    spec->update_on_device = NULL;
    must_seeded(sw_plan_create(spec, &on_host), random->seed);
    for (int t = SW_DEVICE; t <= SW_HOST; t++)
        spec->budget_bytes[t] = on_host->tier_bytes[t] + plans_draw(random, 0, 3) * SW_OPTIMIZER_GRAIN_BYTES;
    sw_plan_destroy(on_host);
}

/* Sums over all models, to see that each side is sometimes the cheaper one. */
struct chosen {
    int host, device, mixed, no_choice, no_room;
};

static void count_choice(const struct sw_plan *plan, const struct sw_update_prices *prices, struct chosen *chosen) {
    int64_t open = 0, streams = 0;
    for (int64_t u = 0; u < plan->spec.units->count; u++) {
        open += plan->placement[u].tier[SW_OPTIMIZER] != SW_DEVICE;
        streams += plan->placement[u].tier[SW_OPTIMIZER] != SW_DEVICE && plan->spec.update_on_device[u];
    }
    chosen->no_choice += !prices->known;
    chosen->no_room += prices->known && isinf(prices->device_s);
    chosen->host += prices->known && streams == 0;
    chosen->device += prices->known && streams == open;
    chosen->mixed += streams > 0 && streams < open;
}

/* The bound counts the ops of the program that is simulated, whose steps take no less. */
static void check_bound(const struct sw_plan *plan, const struct made_up *m, const struct sw_simulation *simulated,
                        uint64_t seed) {
    const struct sw_step_bound enough = {.step_s = INFINITY, .others_s = INFINITY};
    struct sw_step_bound bound;
    bool slower;
    must_seeded(sw_outline_bound(plan, &m->rates, enough, &bound, &slower), seed);
    if (slower || bound.ops != plan->program[SW_PROGRAM_UPDATE].op_count || bound.others_s > bound.step_s ||
        bound.step_s > (1.0 + ROUNDING) * simulated->step_s)
        fail_msg("seed %llu: %lld ops take at least %g s, simulated %g s", (unsigned long long)seed,
                 (long long)bound.ops, bound.step_s, simulated->step_s);
}

/* The chosen plan is sound and within the budgets. Its simulated step takes as long as its price says, no longer than
 * with all updates on the host, and at most WORTH times as long as with all of them on the device. */
static void updates_run_where_they_are_cheapest(void **state) {
    (void)state;
    struct chosen chosen = {0};
    for (uint64_t seed = SEED; seed < SEED + MODELS; seed++) {
        struct plans_random random = {.seed = seed};
        struct sw_units *units;
        struct sw_plan *plan;
        struct made_up m;
        struct sw_simulation s;
        struct sw_search_prices found;
        struct sw_plan_spec spec = draw_spec(&random, &units);
        made_up_draw(&random, &m);
        made_up_point_at_units(&m);
        draw_budgets(&random, &spec);
        must_seeded(sw_plan_search(&spec, &(struct sw_search_open){.most_ops = SW_SEARCH_OPS, .updates = true},
                                   &m.rates, &found, &plan),
                    seed);
        const struct sw_update_prices prices = found.update;
        must_seeded(sw_plan_complete(plan), seed);
        must_seeded(sw_plan_check(plan), seed);
        must_seeded(sw_simulate(plan, SW_PROGRAM_UPDATE, false, &m.rates, NULL, &s), seed);
        check_bound(plan, &m, &s, seed);
        if (prices.known != sw_plan_has_update_choice(plan) ||
            (prices.known && (prices.chosen_s != s.step_s || prices.chosen_s > prices.host_s ||
                              prices.chosen_s > WORTH * prices.device_s)))
            fail_msg("seed %llu: %g s of %g on the host and %g on the device, simulated %g", (unsigned long long)seed,
                     prices.chosen_s, prices.host_s, prices.device_s, s.step_s);
        count_choice(plan, &prices, &chosen);
        sw_plan_destroy(plan);
        sw_units_destroy(units);
    }
    printf("# of %d machines, %d update on the host, %d on the device, %d on both; %d have no choice, %d no room for "
           "all chunks\n",
           MODELS, chosen.host, chosen.device, chosen.mixed, chosen.no_choice, chosen.no_room);
    assert_true(chosen.host > 0 && chosen.device > 0 && chosen.mixed > 0 && chosen.no_choice > 0 && chosen.no_room > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(within_bounds),
        cmocka_unit_test(one_core_takes_the_sum),
        cmocka_unit_test(scales_with_the_machine),
        cmocka_unit_test(faster_parts_make_no_slower_steps),
        cmocka_unit_test(plans_that_are_compared_have_the_waits_of_those_that_run),
        cmocka_unit_test(obeys_the_plan),
        cmocka_unit_test(repeated_steps_sum_up_to_the_same_bits),
        cmocka_unit_test(predicts_every_plan),
        cmocka_unit_test(updates_run_where_they_are_cheapest),
    };
    return cmocka_run_group_tests_name("offload simulate_random", tests, NULL, NULL);
}
