/* The engine calls a unit's arithmetic in the planned order with the right operands, ends in the same state wherever it
 * lives and however it is ordered, overlaps steps, and ends with the first failure of any lane. */
#include "tests/equipment/must.h"
#include "tests/offload/toy.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/size.h"
#include "kernels/device_ops.h"

enum { STEPS = 5, PLACE_CHARS = 96 };

static struct toy_spec toy_spec(const char *place, const char *directory) {
    return (struct toy_spec){.place = place,
                             .directory = directory,
                             .chunk_grains = 2,
                             .ring_chunks = 2,
                             .group = TOY_MICROS,
                             .unit_slots = 2,
                             .head_grains = 1};
}

static void check_calls(const struct toy *toy) {
    if (toy->wrong[0] != '\0')
        fail_msg("%s", toy->wrong);
}

/* Checks the last training step. Every backward and head call adds 1 to the first element; a tied table gets 1 of each
 * head call too. */
static void check_gradients(struct toy *toy, double grad_norm) {
    double squares = 0;
    for (int64_t u = 0; u < TOY_UNITS; u++) {
        const int64_t elems = toy->units->unit[u].elems;
        float *grads = malloc((size_t)elems * sizeof *grads);
        assert_non_null(grads);
        must(sw_engine_read_grads(toy->engine, u, 0, toy->units->unit[u].grains, grads));
        assert_true(grads[0] == (float)(u == 0 && toy->spec.tied ? 2 * TOY_MICROS : TOY_MICROS));
        for (int64_t e = 0; e < elems; e++)
            squares += (double)grads[e] * (double)grads[e];
        free(grads);
    }
    assert_true(fabs(grad_norm - sqrt(squares)) <= 1e-9 * grad_norm);
}

static void check_result(const struct toy *toy, const struct sw_step_result *result, int64_t step, int64_t applied) {
    const bool wrong = toy_clips(toy, step) || toy_overflows(toy, step);
    double losses = 0;
    for (int64_t m = 0; m < TOY_MICROS; m++)
        losses += (double)(step + m);
    assert_int_equal(result->step, step);
    assert_int_equal(result->applied_steps, applied);
    assert_int_equal(result->skipped_steps, step - applied);
    assert_int_equal(result->skipped, toy_overflows(toy, step));
    assert_true(result->loss_sum == losses);
    if (toy->spec.speculation != SW_SPECULATE_AUTO)
        assert_int_equal(result->redone,
                         wrong && toy->spec.speculation == SW_SPECULATE_ALWAYS && toy->plan->commit_every_step);
}

/* Returns the last step's gradient norm. */
static double train(struct toy *toy, int64_t steps, bool ahead) {
    struct sw_step_result result = {0};
    int64_t begun = 0, applied = 0;
    for (int64_t step = 1; step <= steps; step++) {
        while (begun < steps && begun < step + (ahead ? 1 : 0))
            must(toy_begin(toy, SW_STEP_TRAIN, ++begun, NULL));
        must(toy_wait(toy, &result));
        applied += !toy_overflows(toy, step);
        check_result(toy, &result, step, applied);
    }
    return result.grad_norm;
}

/* Evaluation after an odd number of steps too: its tokens are where the next training step's would have been. */
static void evaluate(struct toy *toy) {
    struct sw_step_result result;
    float logits[1];
    for (int64_t step = 1001; step <= 1003; step++) {
        double expected = 0;
        for (int64_t m = 0; m < TOY_MICROS; m++)
            expected += (double)(step + m);
        must(toy_begin(toy, SW_STEP_LOSS, step, NULL));
        must(toy_wait(toy, &result));
        assert_true(result.loss_sum == expected);
        check_calls(toy);
    }
    must(toy_begin(toy, SW_STEP_LOGITS, -7, logits));
    must(toy_wait(toy, &result));
    assert_true(logits[0] == -7.0f);
}

/* Masters and moments of all units, which the caller frees. */
static float *read_state(struct toy *toy, size_t *out_bytes) {
    size_t records = 0, at = 0;
    for (int64_t u = 0; u < TOY_UNITS; u++)
        records += (size_t)toy->units->unit[u].grains;
    char *state = malloc(records * SW_OPTIMIZER_GRAIN_BYTES);
    assert_non_null(state);
    for (int64_t u = 0; u < TOY_UNITS; u++) {
        const int64_t grains = toy->units->unit[u].grains;
        must(sw_engine_read_optimizer(toy->engine, u, 0, grains, (float *)(state + at * SW_OPTIMIZER_GRAIN_BYTES)));
        at += (size_t)grains;
    }
    *out_bytes = records * SW_OPTIMIZER_GRAIN_BYTES;
    return (float *)state;
}

/* The state after some steps with everything on the device, one micro-batch after the other. The caller frees it. */
static float *train_on_device(struct toy_spec spec, int64_t steps, size_t *out_bytes) {
    struct toy toy;
    spec.place = "weights=device,grads=device,optimizer=device,acts=device";
    spec.directory = NULL;
    spec.group = 1;
    spec.recompute = SW_RECOMPUTE_NOTHING;
    spec.speculation = SW_SPECULATE_NEVER;
    must(toy_open(&spec, &toy));
    train(&toy, steps, false);
    check_calls(&toy);
    float *state = read_state(&toy, out_bytes);
    toy_close(&toy);
    return state;
}

/* A run on the device alone, by what its state depends on. */
struct arithmetic {
    int64_t steps, clip_every, overflow_every;
    bool tied, shares_input;
    float *state;
    size_t bytes;
};

static bool is_of(const struct arithmetic *run, const struct toy_spec *spec, int64_t steps) {
    return run->steps == steps && run->clip_every == spec->clip_every && run->overflow_every == spec->overflow_every &&
           run->tied == spec->tied && run->shares_input == spec->shares_input;
}

/* The run on the device alone with which one of `spec` is compared: all runs of equal arithmetic share it. The test's
 * process keeps it. */
static const struct arithmetic *run_on_device(const struct toy_spec *spec, int64_t steps) {
    enum { MOST_RUNS = 16 };
    static struct arithmetic runs[MOST_RUNS];
    int r = 0;
    while (r < MOST_RUNS && runs[r].state != NULL && !is_of(&runs[r], spec, steps))
        r++;
    assert_true(r < MOST_RUNS);
    if (runs[r].state == NULL) {
        runs[r] = (struct arithmetic){.steps = steps,
                                      .clip_every = spec->clip_every,
                                      .overflow_every = spec->overflow_every,
                                      .tied = spec->tied,
                                      .shares_input = spec->shares_input};
        runs[r].state = train_on_device(*spec, steps, &runs[r].bytes);
    }
    return &runs[r];
}

static void check_state(struct toy *toy, int64_t steps, const char *what) {
    const struct arithmetic *expected = run_on_device(&toy->spec, steps);
    size_t bytes;
    float *state = read_state(toy, &bytes);
    assert_int_equal(bytes, expected->bytes);
    if (memcmp(state, expected->state, bytes) != 0)
        fail_msg("with %s the state is not that of a run on the device alone", what);
    free(state);
}

/* All 81 placements, and with them groups, speculation, a tied table, recomputation and a step begun ahead in turn. */
static void calls_have_the_right_order_and_operands(void **state) {
    enum { PLACES = SW_TIERS * SW_TIERS * SW_TIERS * SW_TIERS };
    for (int variant = 0; variant < PLACES; variant++) {
        char place[PLACE_CHARS];
        struct toy toy;
        int tier[SW_STATES], digits = variant;
        for (int s = 0; s < SW_STATES; s++, digits /= SW_TIERS)
            tier[s] = digits % SW_TIERS;
        snprintf(place, sizeof place, "weights=%s,grads=%s,optimizer=%s,acts=%s",
                 sw_tier_name((sw_tier)tier[SW_WEIGHTS]), sw_tier_name((sw_tier)tier[SW_GRADS]),
                 sw_tier_name((sw_tier)tier[SW_OPTIMIZER]), sw_tier_name((sw_tier)tier[SW_ACTS]));
        struct toy_spec spec = toy_spec(place, *state);
        /* Sums that depend on no tier alone. */
        spec.tied = variant % 2 == 1;
        spec.recompute = (sw_recompute)((variant / 4 + tier[2]) % SW_RECOMPUTES);
        spec.group = 1 + (tier[0] + tier[1] + tier[2]) % TOY_MICROS;
        spec.unit_slots = 2 + (tier[1] + 2 * tier[2] + tier[3]) % 3;
        spec.shares_input = (tier[0] + tier[3]) % 2 == 1;
        spec.speculation = (sw_speculation)((tier[0] + 2 * tier[1] + tier[3]) % 3);
        spec.update_on_device = (unsigned)(tier[0] + tier[1] + 2 * tier[2] + variant) * 5 % (1 << TOY_UNITS);
        must(toy_open(&spec, &toy));
        check_gradients(&toy, train(&toy, STEPS, variant / 2 % 2 == 1));
        check_calls(&toy);
        check_state(&toy, STEPS, place);
        evaluate(&toy);
        check_calls(&toy);
        toy_close(&toy);
        toy_remove_store(*state);
    }
}

/* Units of one state on all tiers. */
static void shares_give_the_same_state(void **state) {
    static const char *const places[] = {
        "weights=device:40%/host:30%/nvme,optimizer=device:30%/host:40%/nvme",
        "grads=device:30%/host:40%/nvme,optimizer=host:40%/nvme,acts=device:50%/nvme",
        "weights=host:50%/nvme,grads=device:50%/nvme,optimizer=device:50%/nvme,acts=host:50%/nvme",
        "weights=device:50%/nvme,grads=host:50%/nvme,optimizer=nvme,acts=device:50%/host",
    };
    for (size_t p = 0; p < sizeof places / sizeof places[0]; p++) {
        for (int64_t group = 1; group <= TOY_MICROS; group++) {
            struct toy toy;
            struct toy_spec spec = toy_spec(places[p], *state);
            spec.group = group;
            spec.speculation = SW_SPECULATE_ALWAYS;
            spec.clip_every = 2;
            must(toy_open(&spec, &toy));
            train(&toy, STEPS, true);
            check_calls(&toy);
            check_state(&toy, STEPS, places[p]);
            toy_close(&toy);
            toy_remove_store(*state);
        }
    }
}

/* Clips and overflows, alone, together and in a row; a step begun ahead or not; weights near and far. */
static void speculation_changes_no_bit(void **state) {
    enum { LONG = 9 };
    static const int64_t every[][2] = {{0, 0}, {1, 0}, {3, 0}, {0, 3}, {2, 3}, {0, 1}};
    static const char *const places[] = {"grads=host,optimizer=nvme", "weights=nvme,grads=nvme,optimizer=nvme",
                                         "weights=host,grads=device,optimizer=nvme"};
    for (size_t e = 0; e < sizeof every / sizeof every[0]; e++) {
        for (size_t variant = 0; variant < 3 * 3; variant++) {
            struct toy toy;
            struct toy_spec spec = toy_spec(places[variant / 3], *state);
            spec.speculation = (sw_speculation)(variant % 3);
            /* On the device those of no unit, or, in turn, of all or of every second one. */
            static const unsigned streams[] = {0xf, 0x5, 0xa};
            spec.update_on_device = (e + variant) % 2 == 0 ? 0 : streams[e % 3];
            spec.clip_every = every[e][0];
            spec.overflow_every = every[e][1];
            must(toy_open(&spec, &toy));
            train(&toy, LONG, (e / 2 + variant / 2) % 2 == 1);
            check_calls(&toy);
            check_state(&toy, LONG, spec.place);
            toy_close(&toy);
            toy_remove_store(*state);
        }
    }
}

/* More transfers at once than a lane keeps outstanding. */
static void many_chunks_pass_the_window(void **state) {
    struct toy toy;
    struct sw_step_result result;
    struct toy_spec spec = toy_spec("grads=nvme,optimizer=nvme", *state);
    spec.chunk_grains = 1;
    spec.ring_chunks = 160;
    spec.head_grains = 180;
    must(toy_open(&spec, &toy));
    for (int64_t step = 1; step <= 3; step++) {
        must(toy_begin(&toy, SW_STEP_TRAIN, step, NULL));
        must(toy_wait(&toy, &result));
        /* The first step has no update to apply. */
        const int64_t grains = step == 1 ? 0 : 3 + 5 + 2 + 180;
        assert_int_equal(result.lane_bytes[SW_LANE_READ],
                         grains * (SW_OPTIMIZER_GRAIN_BYTES + SW_GRAIN_ELEMS * (int64_t)sizeof(float)));
    }
    check_calls(&toy);
    toy_close(&toy);
}

/* The text of a commit comes from the caller, who sees the step before: until then there is no commit. */
static void a_commit_waits_for_its_text(void **state) {
    enum { PAUSE_US = 100000 };
    struct toy toy;
    struct sw_step_result result;
    const struct toy_spec spec = toy_spec("grads=nvme,optimizer=nvme", *state);
    must(toy_open(&spec, &toy));
    must(toy_begin(&toy, SW_STEP_TRAIN, 1, NULL));
    must(toy_begin(&toy, SW_STEP_TRAIN, 2, NULL));
    must(sw_engine_wait(toy.engine, &result));
    usleep(PAUSE_US);
    assert_int_equal(sw_store_last_commit(toy.store)->step, 0);
    toy_describe(&toy, 1);
    must(toy_wait(&toy, &result));
    assert_int_equal(sw_store_last_commit(toy.store)->step, 1);
    assert_string_equal(sw_store_last_commit(toy.store)->meta, "step 1");
    toy_close(&toy);
}

struct failure {
    struct toy_place at;
    int64_t runs_in; /* step whose program makes the call */
    const char *says;
};

/* Every kind of call, in the first step and a later one, with and without a step begun ahead. */
static void the_first_failure_ends_all_lanes(void **state) {
    static const struct failure failures[] = {
        {{TOY_FORWARD, 1, 0, 0}, 1, "running forward of unit 0 in step 1"},
        {{TOY_FORWARD, 3, 2, 1}, 3, "running forward of unit 2 in step 3"},
        {{TOY_HEAD, 2, 3, 0}, 2, "running forward and backward of unit 3 in step 2"},
        {{TOY_BACKWARD, 1, 1, 1}, 1, "running backward of unit 1 in step 1"},
        {{TOY_BACKWARD, 4, 0, 0}, 4, "running backward of unit 0 in step 4"},
    };
    for (size_t f = 0; f < 2 * sizeof failures / sizeof failures[0]; f++) {
        const struct failure *failure = &failures[f / 2];
        struct toy toy;
        struct sw_step_result result;
        struct toy_spec spec = toy_spec("grads=nvme,optimizer=nvme", *state);
        spec.fail = failure->at;
        must(toy_open(&spec, &toy));
        sw_status status = SW_OK;
        int64_t begun = 0, waited = 0;
        while (status == SW_OK && waited < STEPS) {
            /* To begin a step with another program waits for what was begun before, so that may show here already. */
            while (status == SW_OK && begun < STEPS && begun <= waited + (int64_t)(f % 2))
                status = toy_begin(&toy, SW_STEP_TRAIN, ++begun, NULL);
            if (status == SW_OK)
                status = toy_wait(&toy, &result);
            waited += status == SW_OK;
        }
        assert_int_equal(status, SW_ERR_IO);
        /* A step begun ahead may fail before the one before it has been waited for. */
        assert_true(waited <= failure->runs_in - 1 && waited >= failure->runs_in - 1 - (int64_t)(f % 2));
        const char *message = sw_error_message(status);
        if (strstr(message, "on purpose") == NULL || strstr(message, failure->says) == NULL)
            fail_msg("'%s' does not say '%s'", message, failure->says);
        sw_error_clear();
        toy_close(&toy);
        toy_remove_store(*state);
    }
}

/* A host device whose update of the last unit does not end before the next step's forward has reached that unit. */
struct held_update {
    struct toy toy;
    sw_status (*update)(struct sw_stream *stream, const void *args);
    bool came;
};

static sw_status hold_update(struct sw_stream *stream, const void *args) {
    const struct sw_update_adamw *op = args;
    struct held_update *held = stream->device->backend;
    const bool last_unit = op->runs == held->toy.units->unit[TOY_UNITS - 1].run;
    if (last_unit && op->adamw->step == 1)
        held->came = toy_await_forward(&held->toy, 2, TOY_UNITS - 2);
    return held->update(stream, args);
}

static void train_under_a_held_update(const char *place) {
    struct held_update *held = calloc(1, sizeof *held);
    struct sw_step_result result;
    const struct toy_spec spec = toy_spec(place, NULL);
    must(toy_open(&spec, &held->toy));
    assert_null(held->toy.host->backend);
    held->toy.host->backend = held;
    held->update = held->toy.host->ops.op[SW_DEVICE_UPDATE_ADAMW];
    held->toy.host->ops.op[SW_DEVICE_UPDATE_ADAMW] = hold_update;
    must(toy_begin(&held->toy, SW_STEP_TRAIN, 1, NULL));
    must(toy_begin(&held->toy, SW_STEP_TRAIN, 2, NULL));
    must(toy_wait(&held->toy, &result));
    must(toy_wait(&held->toy, &result));
    if (!held->came)
        fail_msg("with %s the forward of step 2 waited for the update of the last unit", place);
    check_calls(&held->toy);
    held->toy.host->backend = NULL;
    toy_close(&held->toy);
    free(held);
}

static void the_next_forward_runs_under_the_update(void **state) {
    (void)state;
    train_under_a_held_update("weights=device,grads=host,optimizer=host");
    train_under_a_held_update("weights=host,grads=host,optimizer=host");
}

#define in_directory(test) cmocka_unit_test_setup_teardown(test, toy_make_directory, toy_remove_directory)

int main(void) {
    const struct CMUnitTest tests[] = {
        in_directory(calls_have_the_right_order_and_operands),
        in_directory(shares_give_the_same_state),
        in_directory(speculation_changes_no_bit),
        in_directory(many_chunks_pass_the_window),
        in_directory(a_commit_waits_for_its_text),
        in_directory(the_first_failure_ends_all_lanes),
        cmocka_unit_test(the_next_forward_runs_under_the_update),
    };
    return cmocka_run_group_tests_name("offload engine", tests, NULL, NULL);
}
