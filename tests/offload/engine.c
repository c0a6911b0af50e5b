/* The engine calls a unit's arithmetic in the planned order with the right operands, overlaps steps, and ends with the
 * first failure of any lane. */
#include "tests/offload/toy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/size.h"
#include "kernels/device_ops.h"

enum { STEPS = 5, HANG_SECONDS = 120, PLACE_CHARS = 64 };

static void must(sw_status status) {
    if (status != SW_OK)
        fail_msg("%s", sw_error_message(status));
}

static struct toy_spec toy_spec(const char *place, const char *directory) {
    return (struct toy_spec){
        .place = place, .directory = directory, .chunk_grains = 2, .ring_chunks = 2, .head_grains = 1};
}

static void check_calls(const struct toy *toy) {
    if (toy->wrong[0] != '\0')
        fail_msg("%s", toy->wrong);
}

/* Every backward call adds 1 to the first element; a tied table gets 1 of each head call too. */
static void check_gradients(struct toy *toy) {
    double squares = 0;
    for (int64_t u = 0; u < TOY_UNITS; u++) {
        const int64_t elems = toy->units->unit[u].elems;
        float *grads = malloc((size_t)elems * sizeof *grads);
        must(sw_engine_read_grads(toy->engine, u, 0, toy->units->unit[u].grains, grads));
        const float expected = (float)(u == 0 && toy->spec.tied ? 2 * TOY_MICROS : TOY_MICROS);
        squares += (double)expected * (double)expected;
        assert_true(grads[0] == expected);
        for (int64_t e = 1; e < elems; e++)
            assert_true(grads[e] == 0.0f);
        free(grads);
    }
    struct sw_step_result result;
    must(toy_begin(toy, SW_PROGRAM_TRAIN, STEPS + 1, NULL));
    must(sw_engine_wait(toy->engine, &result));
    assert_true(result.grad_norm == sqrt(squares));
}

static void train(struct toy *toy, bool ahead) {
    struct sw_step_result result;
    int64_t begun = 0;
    for (int64_t step = 1; step <= STEPS; step++) {
        while (begun < STEPS && begun < step + (ahead ? 1 : 0))
            must(toy_begin(toy, SW_PROGRAM_TRAIN, ++begun, NULL));
        must(sw_engine_wait(toy->engine, &result));
        assert_int_equal(result.step, step);
        assert_int_equal(result.applied_steps, step);
        assert_false(result.skipped);
        double losses = 0;
        for (int64_t m = 0; m < TOY_MICROS; m++)
            losses += (double)(step + m);
        assert_true(result.loss_sum == losses);
    }
}

/* Evaluation after an odd number of steps too: its tokens are where the next training step's would have been. */
static void evaluate(struct toy *toy) {
    struct sw_step_result result;
    float logits[1];
    for (int64_t step = 1001; step <= 1003; step++) {
        double expected = 0;
        for (int64_t m = 0; m < TOY_MICROS; m++)
            expected += (double)(step + m);
        must(toy_begin(toy, SW_PROGRAM_LOSS, step, NULL));
        must(sw_engine_wait(toy->engine, &result));
        assert_true(result.loss_sum == expected);
        check_calls(toy);
    }
    must(toy_begin(toy, SW_PROGRAM_LOGITS, -7, logits));
    must(sw_engine_wait(toy->engine, &result));
    assert_true(logits[0] == -7.0f);
}

static void calls_have_the_right_order_and_operands(void **state) {
    for (int variant = 0; variant < 2 * SW_TIERS * SW_TIERS; variant++) {
        char place[PLACE_CHARS];
        struct toy toy;
        snprintf(place, sizeof place, "grads=%s,optimizer=%s", sw_tier_name((sw_tier)(variant / 2 / SW_TIERS)),
                 sw_tier_name((sw_tier)(variant / 2 % SW_TIERS)));
        struct toy_spec spec = toy_spec(place, *state);
        spec.tied = variant % 2 == 1;
        must(toy_open(&spec, &toy));
        train(&toy, variant % 4 < 2);
        check_calls(&toy);
        check_gradients(&toy);
        evaluate(&toy);
        check_calls(&toy);
        toy_close(&toy);
        toy_remove_store(*state);
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
        must(toy_begin(&toy, SW_PROGRAM_TRAIN, step, NULL));
        must(sw_engine_wait(toy.engine, &result));
        assert_int_equal(result.lane_bytes[SW_LANE_READ],
                         (3 + 5 + 2 + 180) * (SW_RECORD_BYTES + SW_GRAIN_ELEMS * (int64_t)sizeof(float)));
    }
    check_calls(&toy);
    toy_close(&toy);
}

struct failure {
    struct toy_place at;
    const char *says;
};

/* Every kind of call, in the first step and a later one, with and without a step begun ahead. */
static void the_first_failure_ends_all_lanes(void **state) {
    static const struct failure failures[] = {
        {{TOY_FORWARD, 1, 0, 0}, "running forward of unit 0 in step 1"},
        {{TOY_FORWARD, 3, 2, 1}, "running forward of unit 2 in step 3"},
        {{TOY_HEAD, 2, 3, 0}, "running head of unit 3 in step 2"},
        {{TOY_BACKWARD, 1, 1, 1}, "running backward of unit 1 in step 1"},
        {{TOY_BACKWARD, 4, 0, 0}, "running backward of unit 0 in step 4"},
        {{TOY_DESCRIBE, 2, 0, 0}, "running commit"},
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
            while (begun < STEPS && begun <= waited + (int64_t)(f % 2))
                must(toy_begin(&toy, SW_PROGRAM_TRAIN, ++begun, NULL));
            status = sw_engine_wait(toy.engine, &result);
            waited += status == SW_OK;
        }
        assert_int_equal(status, SW_ERR_IO);
        /* A step begun ahead may fail before the one before it has been waited for. */
        assert_true(waited <= failure->at.step - 1 && waited >= failure->at.step - 1 - (int64_t)(f % 2));
        const char *message = sw_error_message(status);
        if (strstr(message, "on purpose") == NULL || strstr(message, failure->says) == NULL)
            fail_msg("'%s' does not say '%s'", message, failure->says);
        sw_error_clear();
        toy_close(&toy);
        toy_remove_store(*state);
    }
}

/* A host device whose update of the last unit does not end before the next step's forward has begun. */
struct held_update {
    struct toy toy;
    sw_status (*update)(struct sw_stream *stream, sw_dtype type, const struct sw_adamw *adamw, int64_t first_elem,
                        int64_t grains, const struct sw_decay_run *runs, int64_t run_count, const void *grads,
                        float *records, void *weights);
    bool armed, came;
};

static sw_status hold_update(struct sw_stream *stream, sw_dtype type, const struct sw_adamw *adamw, int64_t first_elem,
                             int64_t grains, const struct sw_decay_run *runs, int64_t run_count, const void *grads,
                             float *records, void *weights) {
    struct held_update *held = stream->device->backend;
    const bool last_unit = runs == held->toy.units->unit[TOY_UNITS - 1].run;
    if (held->armed && last_unit && adamw->step == 1)
        held->came = toy_await_forward(&held->toy, 2, 0);
    return held->update(stream, type, adamw, first_elem, grains, runs, run_count, grads, records, weights);
}

static void the_next_forward_starts_under_the_update(void **state) {
    (void)state;
    struct held_update *held = calloc(1, sizeof *held);
    struct sw_step_result result;
    const struct toy_spec spec = toy_spec("grads=host,optimizer=host", NULL);
    must(toy_open(&spec, &held->toy));
    assert_null(held->toy.host->backend);
    held->toy.host->backend = held;
    held->update = held->toy.host->ops.update_adamw;
    held->toy.host->ops.update_adamw = hold_update;
    held->armed = true;
    must(toy_begin(&held->toy, SW_PROGRAM_TRAIN, 1, NULL));
    must(toy_begin(&held->toy, SW_PROGRAM_TRAIN, 2, NULL));
    must(sw_engine_wait(held->toy.engine, &result));
    must(sw_engine_wait(held->toy.engine, &result));
    if (!held->came)
        fail_msg("the forward of step 2 waited for the update of the last unit in step 1");
    check_calls(&held->toy);
    held->toy.host->backend = NULL;
    toy_close(&held->toy);
    free(held);
}

static int begin_the_watch(void **state) {
    (void)state;
    alarm(HANG_SECONDS);
    return 0;
}

#define in_directory(test) cmocka_unit_test_setup_teardown(test, toy_make_directory, toy_remove_directory)

int main(void) {
    const struct CMUnitTest tests[] = {
        in_directory(calls_have_the_right_order_and_operands),
        in_directory(many_chunks_pass_the_window),
        in_directory(the_first_failure_ends_all_lanes),
        cmocka_unit_test(the_next_forward_starts_under_the_update),
    };
    return cmocka_run_group_tests_name("offload engine", tests, begin_the_watch, NULL);
}
