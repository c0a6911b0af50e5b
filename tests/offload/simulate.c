/* The simulator against times that can be computed by hand. */
#include "tests/equipment/must.h"

#include <math.h>

#include "core/size.h"
#include "offload/simulate/simulate.h"

enum { UNITS = 3 };
#define ROUNDING 1e-6

struct made_up {
    struct sw_rates rates;
    struct sw_unit_seconds units[UNITS];
};

static void point_at_units(struct made_up *m) {
    m->rates.units = m->units;
}

/* A model of three units of whole grains, by hand. */
static struct sw_units *make_three_units(int64_t grains) {
    struct sw_units *units;
    must(sw_units_create(UNITS, &units));
    for (int64_t u = 0; u < UNITS; u++)
        must(sw_unit_add_tensor(&units->unit[u], "tensor", 1, &(int64_t){grains * SW_GRAIN_ELEMS}, true));
    must(sw_units_seal(units));
    return units;
}

static struct sw_plan *plan_three_units(struct sw_units *units, const char *place) {
    static const struct sw_unit_cost all = {.output_bytes = 4096, .saved_bytes = 4096, .derived_bytes = 4096};
    const struct sw_unit_cost cost[UNITS] = {all, all, all};
    struct sw_plan_spec spec = {.units = units,
                                .type = SW_BF16,
                                .train = true,
                                .micro_batches = 2,
                                .group = 2,
                                .token_bytes = 4096,
                                .cost = cost,
                                .work_bytes = 4096,
                                .chunk_grains = 4,
                                .ring_chunks = 4,
                                .unit_slots = 2,
                                .budget_bytes = {INT64_MAX, INT64_MAX, 0}};
    struct sw_plan *plan;
    must(sw_placement_parse(place, &spec.place));
    must(sw_plan_create(&spec, &plan));
    return plan;
}

/* One core, a second a pass, 1 GB/s of everything: by hand. */
static void set_plain_machine(struct made_up *m) {
    const struct sw_rate rate = {.bytes_per_s = 1e9, .cores = 1.0};
    *m = (struct made_up){.rates = {.cores = 1.0,
                                    .compute_cores = 1.0,
                                    .upload = rate,
                                    .download = rate,
                                    .update = rate,
                                    .update_on_device = rate,
                                    .finish = rate,
                                    .zero = rate,
                                    .read = rate,
                                    .write = rate,
                                    .read_write_slowdown = 1.0}};
    for (int u = 0; u < UNITS; u++) {
        m->units[u] =
            (struct sw_unit_seconds){.forward_s = 1.0, .backward_s = 2.0, .recompute_s = 100.0, .derive_s = 10.0};
    }
    point_at_units(m);
}

static void assert_near(double found, double expected, double tolerance, const char *what) {
    if (!(fabs(found - expected) <= tolerance * expected))
        fail_msg("%s is %.9g instead of %.9g", what, found, expected);
}

/* Two micro-batches: two forward passes of 1 s, head and two backward passes of 2 s each, 16 s. Parameters: 24 grains,
 * 393,216. Of each, on the one core: 28 bytes of the update, 4 cleared, 6 finished; and 8,192 bytes of tokens, 8 of
 * sums a grain. */
static void everything_on_the_device(void **state) {
    (void)state;
    struct sw_units *units = make_three_units(8);
    struct sw_plan *plan = plan_three_units(units, "weights=device,grads=device,optimizer=device,acts=device");
    struct made_up m;
    struct sw_simulation s;
    set_plain_machine(&m);
    must(sw_simulate(plan, SW_PROGRAM_UPDATE, false, &m.rates, NULL, &s));
    assert_near(s.step_s, 16.0 + 393216e-9 * (28 + 4 + 6) + 8192e-9 + 24 * 8e-9, 1e-9, "the step");
    assert_string_equal(s.bottleneck, "cores");
    assert_near(s.bottleneck_share, 1.0, 1e-9, "the bottleneck's share");
    assert_near(s.cores_busy_s, s.step_s, 1e-9, "the cores' time");
    assert_true(s.drive_busy_s == 0.0);
    m.rates.compute_cores = 0.5; /* of one: nothing else is at once */
    must(sw_simulate(plan, SW_PROGRAM_UPDATE, false, &m.rates, NULL, &s));
    assert_string_equal(s.bottleneck, "compute");
    sw_plan_destroy(plan);
    sw_units_destroy(units);
}

/* A drive that is all that takes time: 24 grains of 196,608 bytes are read and written. */
static void the_drive_alone(void **state) {
    (void)state;
    struct sw_units *units = make_three_units(8);
    struct sw_plan *plan = plan_three_units(units, "weights=device,grads=device,optimizer=nvme,acts=device");
    const double both_s = 2 * 24 * 196608e-9;
    /* Slowdown, part of the other direction's rate, expected. */
    const struct {
        double slowdown, write_rate, step_s;
    } drives[] = {{1.0, 1e9, both_s / 2}, {2.0, 1e9, both_s}, {1.0, 1e15, both_s / 2}, {2.6, 1e15, both_s / 2}};
    for (size_t i = 0; i < sizeof drives / sizeof drives[0]; i++) {
        struct made_up m;
        struct sw_simulation s;
        const struct sw_rate fast = {.bytes_per_s = 1e15};
        set_plain_machine(&m);
        m.rates.upload = m.rates.download = m.rates.update = m.rates.finish = m.rates.zero = fast;
        m.rates.read_write_slowdown = drives[i].slowdown;
        m.rates.write.bytes_per_s = drives[i].write_rate;
        m.rates.read.cores = m.rates.write.cores = 0.0;
        for (int u = 0; u < UNITS; u++)
            m.units[u].forward_s = m.units[u].backward_s = 1e-9;
        must(sw_simulate(plan, SW_PROGRAM_UPDATE, false, &m.rates, NULL, &s));
        /* The ends of a step, where one direction waits for the first or last chunk of the other. */
        assert_near(s.step_s, drives[i].step_s, 2.0 * 4 / 24, "the step");
        assert_true(s.step_s >= drives[i].step_s * (1 - ROUNDING));
        assert_string_equal(s.bottleneck, "drive");
    }
    sw_plan_destroy(plan);
    sw_units_destroy(units);
}

/* A commit that takes longer than all else is the drive's. */
static void a_slow_commit(void **state) {
    (void)state;
    struct sw_units *units = make_three_units(8);
    struct sw_plan *plan = plan_three_units(units, "weights=device,grads=device,optimizer=nvme,acts=device");
    struct made_up m;
    struct sw_simulation s;
    set_plain_machine(&m);
    m.rates.commit_s = 1000.0;
    must(sw_simulate(plan, SW_PROGRAM_UPDATE, false, &m.rates, NULL, &s));
    assert_string_equal(s.bottleneck, "drive");
    assert_true(s.step_s >= 1000.0 && s.step_s < 1020.0);
    m.rates.commit_s = 1e300;
    assert_int_equal(sw_simulate(plan, SW_PROGRAM_UPDATE, false, &m.rates, NULL, &s), SW_ERR_ARG);
    m.rates.commit_s = 0.0;
    m.rates.read.bytes_per_s = 1e-310;
    assert_int_equal(sw_simulate(plan, SW_PROGRAM_UPDATE, false, &m.rates, NULL, &s), SW_ERR_ARG);
    sw_error_clear();
    sw_plan_destroy(plan);
    sw_units_destroy(units);
}

/* Everything stays in memory, and only what a save writes takes time: 24 grains of 196,608 bytes, and the commit. It
 * runs apart from the steps around it, unless every step carries one. */
static void a_save(void **state) {
    (void)state;
    struct sw_units *units = make_three_units(8);
    struct sw_plan *plan = plan_three_units(units, "weights=device,grads=device,optimizer=device:50%/host,acts=device");
    struct made_up m;
    struct sw_simulation plain;
    struct sw_save_price price;
    const struct sw_rate fast = {.bytes_per_s = 1e15};
    set_plain_machine(&m);
    m.rates.upload = m.rates.download = m.rates.update = m.rates.update_on_device = m.rates.finish = m.rates.zero =
        fast;
    m.rates.write = (struct sw_rate){.bytes_per_s = 1e6};
    m.rates.commit_s = 2.0;
    for (int u = 0; u < UNITS; u++)
        m.units[u].forward_s = m.units[u].backward_s = 1e-3;
    const double save_s = 24 * 196608e-6 + 2.0;
    must(sw_simulate(plan, SW_PROGRAM_UPDATE, false, &m.rates, NULL, &plain));
    assert_true(plain.step_s < 0.05);
    for (int every = 1; every <= 100; every += 99) {
        must(sw_predict_save(plan, &m.rates, every, &plain, &price));
        assert_near(price.step.step_s, save_s, 0.01, "the step");
        assert_near(price.cost_s, save_s, 0.01, "what it costs");
        assert_string_equal(price.step.bottleneck, "drive");
        assert_near(price.step.lane_busy_s[SW_LANE_WRITE], save_s, 0.01, "the write lane");
    }
    sw_plan_destroy(plan);
    sw_units_destroy(units);
}

/* A run of steps loses at its ends what steps in the middle overlap: here, what is read ahead beside the arithmetic of
 * the step before. */
static void the_ends_of_runs_of_steps(void **state) {
    (void)state;
    struct sw_units *units = make_three_units(8);
    struct sw_plan *plan = plan_three_units(units, "weights=host,grads=host,optimizer=host:50%/nvme,acts=device");
    struct made_up m;
    struct sw_simulation plain, six;
    struct sw_save_price price;
    set_plain_machine(&m);
    m.rates.cores = 8.0;
    m.rates.read.bytes_per_s = 1e5;
    m.rates.write.bytes_per_s = 1e7;
    m.rates.commit_s = 0.1;
    must(sw_simulate(plan, SW_PROGRAM_UPDATE, false, &m.rates, NULL, &plain));
    must(sw_simulate_apart(plan, SW_PROGRAM_UPDATE, SW_SIMULATE_MOST_STEPS, &m.rates, &six));
    const double ends_s = six.step_s - SW_SIMULATE_MOST_STEPS * plain.step_s;
    assert_true(ends_s > 0.01);
    assert_near(six.lane_busy_s[SW_LANE_READ], 6 * plain.lane_busy_s[SW_LANE_READ], 1e-6, "the reads");
    must(sw_predict_save(plan, &m.rates, 10, &plain, &price));
    assert_true(price.step.step_s > plain.step_s);
    assert_near(price.cost_s, price.step.step_s + ends_s - plain.step_s, 1e-6, "what a save costs");
    sw_plan_destroy(plan);
    sw_units_destroy(units);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_on_the_device),
        cmocka_unit_test(the_drive_alone),
        cmocka_unit_test(a_slow_commit),
        cmocka_unit_test(a_save),
        cmocka_unit_test(the_ends_of_runs_of_steps),
    };
    return cmocka_run_group_tests_name("offload simulate", tests, NULL, NULL);
}
