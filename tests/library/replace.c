/* Replacing the state of a store: by that of another store, of another step, and by values that are refused. */
#include "tests/library/support.h"

#include <math.h>

enum { PARTS = 3, STEPS = 6, SKIPPED_STEP = 3, LATER_STEPS = 4 };
#define ON_HOST (INT64_C(256) << 20)
#define ON_DRIVE (INT64_C(4) << 20)

/* All state of a model. */
struct values {
    float *part[PARTS][TENSORS];
};

static struct values values_make(const struct model *m) {
    struct values v;
    for (int part = 0; part < PARTS; part++)
        for (int t = 0; t < TENSORS; t++) {
            v.part[part][t] = calloc((size_t)m->count[t], sizeof(float));
            assert_non_null(v.part[part][t]);
        }
    return v;
}

static void values_free(struct values *v) {
    for (int part = 0; part < PARTS; part++)
        for (int t = 0; t < TENSORS; t++)
            free(v->part[part][t]);
}

static void values_read(const struct model *m, spillway *self, struct values *out) {
    for (int part = 0; part < PARTS; part++)
        for (int t = 0; t < TENSORS; t++)
            library_must(spillway_read(self, t, part, 0, m->count[t], out->part[part][t]), self, "read");
}

static struct spillway_state state_of(const struct values *v) {
    struct spillway_state state = SPILLWAY_STATE_INIT;
    state.master = (const float *const *)v->part[SPILLWAY_MASTER];
    state.first_moment = (const float *const *)v->part[SPILLWAY_FIRST_MOMENT];
    state.second_moment = (const float *const *)v->part[SPILLWAY_SECOND_MOMENT];
    state.step = STEPS;
    state.applied_steps = STEPS - 1;
    state.note = "from elsewhere";
    return state;
}

static void train(struct model *m, spillway *self, int64_t first, int64_t last) {
    for (int64_t step = first; step <= last; step++) {
        struct spillway_rates rates = SPILLWAY_RATES_INIT;
        struct spillway_result result = SPILLWAY_RESULT_INIT;
        rates.clip = 0.5;
        rates.note = "trained";
        model_gradients(m, step);
        if (step == SKIPPED_STEP)
            ((float *)m->gradients[0])[0] = NAN;
        model_hand_in(m, self, SPILLWAY_SET);
        library_must(spillway_step(self, &rates, &result), self, "step");
        assert_int_equal(result.step, step);
    }
}

static void expect_alike(const struct model *m, const struct model *other) {
    for (int t = 0; t < TENSORS; t++)
        assert_memory_equal(m->weights[t], other->weights[t], (size_t)(m->count[t] * sw_dtype_bytes(m->type[t])));
}

/* Fills the weights with what no step makes, so that only the library can have written what is found there later. */
static void spoil(struct model *m) {
    for (int t = 0; t < TENSORS; t++)
        memset(m->weights[t], 0x11, (size_t)(m->count[t] * sw_dtype_bytes(m->type[t])));
}

/* Trains a store, and gives its state to another one, which has trained other steps and lives elsewhere. Both go on
 * with the same bits, also after the other is closed right then. */
static void goes_on_with(void **state, int format, int64_t host_bytes, int64_t other_host_bytes) {
    char path[SUPPORT_PATH_CHARS];
    struct model m = model_make(), other = model_make();
    struct spillway_options options = library_options(library_store(state, path), host_bytes);
    options.state = format;
    spillway *self = model_open(&m, &options);
    train(&m, self, 1, STEPS);
    struct values values = values_make(&m);
    values_read(&m, self, &values);
    assert_int_equal(spillway_applied_steps(self), STEPS - 1);
    train(&m, self, STEPS + 1, STEPS + LATER_STEPS);
    spillway_close(self);
    library_remove_store(state);

    options.host_memory_bytes = (uint64_t)other_host_bytes;
    self = model_open(&other, &options);
    train(&other, self, 1, STEPS + LATER_STEPS);
    const struct spillway_state given = state_of(&values);
    library_must(spillway_write(self, &given), self, "write");
    assert_int_equal(spillway_last_step(self), STEPS);
    spillway_close(self);
    spoil(&other);
    self = model_open(&other, &options);
    assert_int_equal(spillway_last_step(self), STEPS);
    assert_int_equal(spillway_applied_steps(self), STEPS - 1);
    assert_string_equal(spillway_note(self), "from elsewhere");
    library_must(spillway_write(self, &given), self, "write again");
    train(&other, self, STEPS + 1, STEPS + LATER_STEPS);
    expect_alike(&m, &other);
    spillway_close(self);
    library_remove_store(state);
    values_free(&values);
    model_free(&m);
    model_free(&other);
}

static void another_store_goes_on_with_the_same_bits(void **state) {
    for (int format = SPILLWAY_STATE_FP32; format <= SPILLWAY_STATE_8BIT; format++) {
        goes_on_with(state, format, ON_DRIVE, ON_HOST);
        goes_on_with(state, format, ON_HOST, ON_DRIVE);
    }
}

static void expect_same_values(const struct model *m, const struct values *v, const struct values *other) {
    for (int part = 0; part < PARTS; part++)
        for (int t = 0; t < TENSORS; t++)
            assert_memory_equal(v->part[part][t], other->part[part][t], (size_t)m->count[t] * sizeof(float));
}

/* Step 0 has moments of zeros only. */
static void what_was_read_keeps_its_bits(void **state) {
    for (int format = SPILLWAY_STATE_FP32; format <= SPILLWAY_STATE_8BIT; format++) {
        char path[SUPPORT_PATH_CHARS];
        struct model m = model_make();
        struct spillway_options options = library_options(library_store(state, path), ON_DRIVE);
        options.state = format;
        spillway *self = model_open(&m, &options);
        struct values before = values_make(&m), after = values_make(&m);
        for (int64_t step = 0; step <= 2; step++) {
            struct spillway_state given = state_of(&before);
            train(&m, self, sw_max_i64(1, step), step);
            values_read(&m, self, &before);
            given.step = given.applied_steps = step;
            library_must(spillway_write(self, &given), self, "write");
            values_read(&m, self, &after);
            expect_same_values(&m, &before, &after);
        }
        spillway_close(self);
        library_remove_store(state);
        values_free(&before);
        values_free(&after);
        model_free(&m);
    }
}

/* A part, or a tensor, that is not given stays as it is. */
static void keeps_what_is_not_given(void **state) {
    char path[SUPPORT_PATH_CHARS];
    struct model m = model_make();
    struct spillway_options options = library_options(library_store(state, path), ON_HOST);
    spillway *self = model_open(&m, &options);
    train(&m, self, 1, STEPS);
    struct values before = values_make(&m), after = values_make(&m);
    values_read(&m, self, &before);
    float one = 0.25f;
    const float *masters[TENSORS] = {&one};
    struct spillway_state given = SPILLWAY_STATE_INIT;
    given.master = masters;
    given.step = STEPS;
    given.applied_steps = STEPS - 1;
    library_must(spillway_write(self, &given), self, "write");
    values_read(&m, self, &after);
    assert_true(after.part[SPILLWAY_MASTER][0][0] == one && ((float *)m.weights[0])[0] == one);
    after.part[SPILLWAY_MASTER][0][0] = before.part[SPILLWAY_MASTER][0][0];
    expect_same_values(&m, &before, &after);
    spillway_close(self);
    values_free(&before);
    values_free(&after);
    model_free(&m);
}

static void expect_refused(spillway *self, const struct spillway_state *given, const char *words) {
    assert_int_equal(spillway_write(self, given), SPILLWAY_ERROR_ARGUMENT);
    if (strstr(spillway_error(self), words) == NULL)
        fail_msg("'%s' does not say '%s'", spillway_error(self), words);
}

static void refuses_values_that_no_step_makes(void **state) {
    char path[SUPPORT_PATH_CHARS];
    struct model m = model_make(), other = model_make();
    struct spillway_options options = library_options(library_store(state, path), ON_DRIVE);
    spillway *self = model_open(&m, &options);
    train(&m, self, 1, 2);
    struct values values = values_make(&m);
    values_read(&m, self, &values);
    struct spillway_state given = state_of(&values);
    values.part[SPILLWAY_MASTER][4][MOST_ELEMS - 1] = NAN;
    expect_refused(self, &given, "element 100002 of the master of 'large.weight' is nan");
    values.part[SPILLWAY_MASTER][4][MOST_ELEMS - 1] = 0.0f;
    values.part[SPILLWAY_SECOND_MOMENT][1][6] = -1.0f;
    expect_refused(self, &given, "element 6 of the second moment of 'seven' is -1");
    values.part[SPILLWAY_SECOND_MOMENT][1][6] = 0.0f;
    given.applied_steps = STEPS + 1;
    expect_refused(self, &given, "is not a state");
    given.applied_steps = -1;
    expect_refused(self, &given, "is not a state");
    given.applied_steps = 1;
    given.step = INT64_MAX;
    expect_refused(self, &given, "at most 2^53");
    given.step = STEPS;
    given.note = "\xff";
    expect_refused(self, &given, "not UTF-8");
    given.size = 3;
    expect_refused(self, &given, "SPILLWAY_STATE_INIT");
    assert_int_equal(spillway_applied_steps(self), 2);
    assert_int_equal(spillway_applied_steps(NULL), -1);
    /* Nothing has changed, and the handle is of use. */
    train(&m, self, 3, 5);
    spillway_close(self);
    library_remove_store(state);
    self = model_describe(&other, &options, NULL);
    expect_refused(self, &given, "is not open yet");
    library_must(spillway_open(self), self, "open");
    train(&other, self, 1, 5);
    expect_alike(&m, &other);
    spillway_close(self);
    values_free(&values);
    model_free(&m);
    model_free(&other);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, support_make_folder, library_remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(another_store_goes_on_with_the_same_bits),
        IN_FOLDER(what_was_read_keeps_its_bits),
        IN_FOLDER(keeps_what_is_not_given),
        IN_FOLDER(refuses_values_that_no_step_makes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
