/* Steps in which tensors have no gradient: they are left out, as a store of one tensor would be that never saw the
 * step. */
#include "tests/library/reference.h"

#include <math.h>

enum { STEPS = 14, OVERFLOWING_STEP = 6, LARGE = 4 };
#define ON_HOST (INT64_C(256) << 20)
#define ON_DRIVE (INT64_C(4) << 20)

/* Tells whether a tensor has a gradient in a step; none has one in step 9. */
static bool has_gradient(int t, int64_t step) {
    const uint32_t word = (uint32_t)(step * 31 + t * 17 + 5) * 2654435761u;
    return step != 9 && (word >> 20) % 3 != 0;
}

static struct spillway_rates unclipped(int64_t step) {
    struct spillway_rates rates = rates_of(step);
    rates.clip = 0.0;
    return rates;
}

/* The state of a tensor, in fp32. */
static float *read_all(spillway *self, int64_t index, int64_t count) {
    float *all = calloc((size_t)(STATE_PARTS * count), sizeof *all);
    assert_non_null(all);
    for (int part = 0; part < STATE_PARTS; part++)
        library_must(spillway_read(self, index, part, 0, count, all + part * count), self, "read");
    return all;
}

/* Makes the gradients of a step, of which one overflows in one step. */
static void make_gradients(struct model *m, int64_t step) {
    model_gradients(m, step);
    if (step == OVERFLOWING_STEP)
        ((float *)m->gradients[LARGE])[11] = INFINITY;
}

/* Trains all tensors, and returns the steps of the last one that was checked. again: a new process for each step. */
static void train_together(struct model *m, const struct spillway_options *options, bool again, float *state[TENSORS],
                           int64_t steps[TENSORS]) {
    spillway *self = model_open(m, options);
    for (int64_t step = 1; step <= STEPS; step++) {
        const struct spillway_rates rates = unclipped(step);
        struct spillway_result result = SPILLWAY_RESULT_INIT;
        float *before[TENSORS] = {NULL};
        make_gradients(m, step);
        for (int t = 0; t < TENSORS; t++)
            if (has_gradient(t, step) || (step == OVERFLOWING_STEP && t == LARGE))
                library_must(spillway_gradient(self, t, (int)m->type[t], m->gradients[t], SPILLWAY_SET), self,
                             "gradient");
            else
                before[t] = read_all(self, t, m->count[t]);
        library_must(spillway_step(self, &rates, &result), self, "step");
        assert_int_equal(result.skipped, step == OVERFLOWING_STEP);
        for (int t = 0; t < TENSORS; t++) {
            float *after = before[t] != NULL ? read_all(self, t, m->count[t]) : NULL;
            if (after != NULL)
                assert_memory_equal(before[t], after, (size_t)(STATE_PARTS * m->count[t]) * sizeof *after);
            free(before[t]);
            free(after);
        }
        if (again) {
            spillway_close(self);
            self = model_open(m, options);
        }
    }
    for (int t = 0; t < TENSORS; t++) {
        state[t] = read_all(self, t, m->count[t]);
        steps[t] = spillway_tensor_steps(self, t);
    }
    assert_int_equal(spillway_applied_steps(self), STEPS - 1);
    assert_int_equal(spillway_tensor_steps(self, TENSORS), -1);
    spillway_close(self);
}

/* Trains a tensor alone, in the steps in which it has a gradient, and compares. */
static void expect_alone(void **state, struct spillway_options options, int t, const float *want, int64_t steps) {
    struct model m = model_make();
    struct spillway_tensor tensor = model_tensor(&m, t);
    spillway *self = NULL;
    library_remove_store(state);
    options.missing_gradients = SPILLWAY_MISSING_ERROR;
    options.host_memory_bytes = ON_HOST;
    library_must(spillway_create(&options, &self), NULL, "create");
    library_must(spillway_add(self, &tensor, NULL), self, "add");
    library_must(spillway_open(self), self, "open");
    for (int64_t step = 1; step <= STEPS; step++) {
        const struct spillway_rates rates = unclipped(step);
        model_gradients(&m, step);
        if (step == OVERFLOWING_STEP || !has_gradient(t, step))
            continue;
        library_must(spillway_gradient(self, 0, tensor.type, m.gradients[t], SPILLWAY_SET), self, "gradient");
        library_must(spillway_step(self, &rates, NULL), self, "step");
    }
    assert_int_equal(spillway_applied_steps(self), steps);
    float *found = read_all(self, 0, m.count[t]);
    assert_memory_equal(found, want, (size_t)(STATE_PARTS * m.count[t]) * sizeof *found);
    free(found);
    spillway_close(self);
    model_free(&m);
}

static void left_out(void **state, int format, int64_t host_bytes, bool again) {
    char path[SUPPORT_PATH_CHARS];
    struct model m = model_make();
    float *all[TENSORS];
    int64_t steps[TENSORS];
    struct spillway_options options = library_options(library_store(state, path), host_bytes);
    options.missing_gradients = SPILLWAY_MISSING_SKIP;
    options.state = format;
    train_together(&m, &options, again, all, steps);
    for (int t = 0; t < TENSORS; t++) {
        expect_alone(state, options, t, all[t], steps[t]);
        assert_true(steps[t] < STEPS - 1);
        free(all[t]);
    }
    library_remove_store(state);
    model_free(&m);
}

static void tensors_without_a_gradient_are_left_out(void **state) {
    for (int format = SPILLWAY_STATE_FP32; format <= SPILLWAY_STATE_8BIT; format++) {
        left_out(state, format, ON_HOST, false);
        left_out(state, format, ON_DRIVE, true);
    }
}

/* Steps without any gradient count, and change nothing. */
static void nothing_happens_without_gradients(void **state) {
    char path[SUPPORT_PATH_CHARS];
    struct model m = model_make(), other = model_make();
    struct spillway_options options = library_options(library_store(state, path), ON_DRIVE);
    const struct spillway_rates rates = rates_of(1);
    struct spillway_result result = SPILLWAY_RESULT_INIT;
    options.missing_gradients = SPILLWAY_MISSING_SKIP;
    spillway *self = model_open(&m, &options);
    library_must(spillway_step(self, &rates, &result), self, "step");
    assert_int_equal(result.applied_steps, 1);
    assert_true(result.grad_norm == 0.0);
    for (int t = 0; t < TENSORS; t++) {
        assert_int_equal(spillway_tensor_steps(self, t), 0);
        assert_memory_equal(m.weights[t], other.weights[t], (size_t)(m.count[t] * sw_dtype_bytes(m.type[t])));
    }
    spillway_close(self);
    model_free(&m);
    model_free(&other);
}

/* State of tensors with different counts goes into another store, which goes on as the first one. */
static void counts_can_be_replaced(void **state) {
    char path[SUPPORT_PATH_CHARS];
    struct model m = model_make();
    int64_t steps[TENSORS] = {3, 0, 1, 2, 5, 4, INT64_C(40000000)};
    struct spillway_options options = library_options(library_store(state, path), ON_DRIVE);
    struct spillway_state given = SPILLWAY_STATE_INIT;
    spillway *self = model_open(&m, &options);
    given.step = given.applied_steps = INT64_C(50000000);
    given.tensor_steps = steps;
    library_must(spillway_write(self, &given), self, "write");
    for (int again = 0; again < 2; again++) {
        for (int t = 0; t < TENSORS; t++)
            assert_int_equal(spillway_tensor_steps(self, t), steps[t]);
        spillway_close(self);
        self = model_open(&m, &options);
    }
    steps[1] = given.applied_steps + 1;
    assert_int_equal(spillway_write(self, &given), SPILLWAY_ERROR_ARGUMENT);
    assert_non_null(strstr(spillway_error(self), "'seven' with 50000001 steps"));
    spillway_close(self);
    model_free(&m);
}

int main(void) {
#define IN_FOLDER(function) cmocka_unit_test_setup_teardown(function, support_make_folder, library_remove_folder)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(tensors_without_a_gradient_are_left_out),
        IN_FOLDER(nothing_happens_without_gradients),
        IN_FOLDER(counts_can_be_replaced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
