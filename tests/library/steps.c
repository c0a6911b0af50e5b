/* Steps of the library: the bits of the reference and of the engine that trains, for every placement and thread count.
 */
#include "tests/library/reference.h"
#include "tests/offload/toy.h"

#include <math.h>

enum { STEPS = 50, NAN_STEP = 17, FACTORS_STEP = 25, CHANGED = 4, COMMITTED_STEP = 3, MANY = 2500 };
#define ALL_ON_HOST (INT64_C(256) << 20)

static void change_factors(struct model *m, spillway *self, struct reference *r) {
    m->lr_scale[CHANGED] = 0.25;
    m->decays[CHANGED] = false;
    library_must(spillway_set_factors(self, CHANGED, 0.25, 0), self, "factors");
    set_runs(r, m);
}

/* Trains side by side with the reference. One gradient is not finite in one step. */
static void follow_reference(void **state, int64_t host_memory_bytes, int threads, bool on_drive) {
    char path[SUPPORT_PATH_CHARS];
    struct model m = model_make();
    struct reference r = reference_open(&m);
    struct spillway_options options = library_options(library_store(state, path), host_memory_bytes);
    options.threads = threads;
    options.save_every = 20;
    spillway *self = model_open(&m, &options);
    for (int64_t step = 1; step <= STEPS; step++) {
        struct spillway_rates rates = rates_of(step);
        struct spillway_result result = SPILLWAY_RESULT_INIT;
        model_gradients(&m, step);
        if (step == NAN_STEP)
            ((float *)m.gradients[CHANGED])[MOST_ELEMS - 1] = NAN;
        if (step == FACTORS_STEP)
            change_factors(&m, self, &r);
        const double norm = reference_step(&r, &m, &rates);
        model_hand_in(&m, self, SPILLWAY_SET);
        library_must(spillway_step(self, &rates, &result), self, "step");
        assert_int_equal(result.step, step);
        assert_int_equal(result.skipped, step == NAN_STEP);
        assert_int_equal(result.applied_steps, r.applied);
        assert_int_equal(result.committed, on_drive || step % 20 == 0);
        if (step != NAN_STEP && memcmp(&result.grad_norm, &norm, sizeof norm) != 0)
            fail_msg("step %lld: norm %.17g, expected %.17g", (long long)step, result.grad_norm, norm);
        expect_weights(&r, &m, step);
    }
    for (int part = 0; part < STATE_PARTS; part++)
        expect_state(&r, &m, self, part);
    spillway_close(self);
    reference_close(&r);
    model_free(&m);
}

static void has_the_bits_of_the_reference_in_host_memory(void **state) {
    follow_reference(state, ALL_ON_HOST, 2, false);
}

static void has_the_bits_of_the_reference_on_the_drive(void **state) {
    follow_reference(state, INT64_C(4) << 20, 1, true);
}

/* Makes the state of a store after some steps: all tensors' weights and moments. `again`: the store is closed and
 * opened after each step. */
static float *train_for(void **state, int64_t host_memory_bytes, int format, bool again, int64_t *out_elems) {
    char path[SUPPORT_PATH_CHARS];
    struct model m = model_make();
    struct spillway_options options = library_options(library_store(state, path), host_memory_bytes);
    options.state = format;
    spillway *self = model_open(&m, &options);
    for (int64_t step = 1; step <= STEPS / 5; step++) {
        const struct spillway_rates rates = rates_of(step);
        model_gradients(&m, step);
        model_hand_in(&m, self, SPILLWAY_SET);
        library_must(spillway_step(self, &rates, NULL), self, "step");
        if (again) {
            spillway_close(self);
            self = model_open(&m, &options);
        }
    }
    int64_t elems = 0;
    float *all = calloc(STATE_PARTS * TENSORS * (size_t)MOST_ELEMS, sizeof *all);
    assert_non_null(all);
    for (int t = 0; t < TENSORS; t++)
        for (int part = 0; part < STATE_PARTS; part++, elems += m.count[t])
            library_must(spillway_read(self, t, part, 0, m.count[t], all + elems), self, "read");
    spillway_close(self);
    library_remove_store(state);
    model_free(&m);
    *out_elems = elems;
    return all;
}

static void narrow_state_has_the_same_bits_everywhere_and_after_a_resume(void **state) {
    float *moments[2] = {NULL, NULL};
    for (int format = SPILLWAY_STATE_BF16; format <= SPILLWAY_STATE_8BIT; format++) {
        int64_t elems[2];
        float *host = train_for(state, ALL_ON_HOST, format, false, &elems[0]);
        float *drive = train_for(state, INT64_C(4) << 20, format, true, &elems[1]);
        assert_int_equal(elems[0], elems[1]);
        assert_memory_equal(host, drive, (size_t)elems[0] * sizeof *host);
        free(drive);
        moments[format - SPILLWAY_STATE_BF16] = host;
    }
    /* The formats differ, so the comparison above has compared narrow state. */
    assert_memory_not_equal(moments[0], moments[1], STATE_PARTS * MOST_ELEMS * sizeof(float));
    free(moments[0]);
    free(moments[1]);
}

/* Adding up gives what a sum in fp32, in the same order, gives. */
static void gradients_add_up(void **state) {
    enum { MICROS = 3 };
    char path[SUPPORT_PATH_CHARS];
    struct model m = model_make(), sums = model_make();
    struct reference r = reference_open(&m);
    struct spillway_options options = library_options(library_store(state, path), ALL_ON_HOST);
    options.accumulate = 1;
    spillway *self = model_open(&m, &options);
    for (int t = 0; t < TENSORS; t++)
        sums.type[t] = SW_F32;
    for (int64_t step = 1; step <= 4; step++) {
        const struct spillway_rates rates = rates_of(step);
        for (int micro = 0; micro < MICROS; micro++) {
            model_gradients(&m, step * MICROS + micro);
            model_hand_in(&m, self, SPILLWAY_ADD);
            for (int t = 0; t < TENSORS; t++)
                for (int64_t i = 0; i < m.count[t]; i++) {
                    const float value = sw_dtype_load(m.type[t], m.gradients[t], i);
                    float *sum = (float *)sums.gradients[t] + i;
                    *sum = micro == 0 ? value : *sum + value;
                }
        }
        reference_step(&r, &sums, &rates);
        library_must(spillway_step(self, &rates, NULL), self, "step");
        expect_weights(&r, &m, step);
    }
    spillway_close(self);
    reference_close(&r);
    model_free(&m);
    model_free(&sums);
}

/* The engine of training, with a model of its own, and the library, given that model's gradients, update alike. */
static void has_the_bits_of_the_engine(void **state) {
    static const char *const names[TOY_UNITS] = {"a", "b", "c", "d"};
    const struct toy_spec spec = {.place = "grads=host,optimizer=host",
                                  .chunk_grains = 2,
                                  .ring_chunks = 2,
                                  .group = TOY_MICROS,
                                  .unit_slots = 2,
                                  .clip_every = 3,
                                  .head_grains = 1};
    char path[SUPPORT_PATH_CHARS];
    struct toy toy;
    support_expect_ok(toy_open(&spec, &toy), "toy");
    const struct spillway_options options = library_options(library_store(state, path), ALL_ON_HOST);
    spillway *self = NULL;
    library_must(spillway_create(&options, &self), NULL, "create");
    float *weights[TOY_UNITS], *grads[TOY_UNITS];
    int64_t grains[TOY_UNITS];
    const int64_t record_elems = STATE_PARTS * SW_GRAIN_ELEMS;
    float *records = calloc(16 * (size_t)record_elems, sizeof *records);
    assert_non_null(records);
    for (int u = 0; u < TOY_UNITS; u++) {
        struct spillway_tensor tensor = SPILLWAY_TENSOR_INIT;
        grains[u] = toy.units->unit[u].grains;
        weights[u] = calloc((size_t)toy.units->unit[u].elems, sizeof *weights[u]);
        grads[u] = calloc((size_t)toy.units->unit[u].elems, sizeof *grads[u]);
        support_expect_ok(sw_engine_read_optimizer(toy.engine, u, 0, grains[u], records), "masters");
        for (int64_t g = 0; g < grains[u]; g++)
            memcpy(weights[u] + g * SW_GRAIN_ELEMS, records + g * record_elems, SW_GRAIN_ELEMS * sizeof(float));
        tensor.name = names[u];
        tensor.count = toy.units->unit[u].elems;
        tensor.weights = weights[u];
        library_must(spillway_add(self, &tensor, NULL), self, "add");
    }
    library_must(spillway_open(self), self, "open");
    for (int64_t step = 1; step <= STEPS; step++) {
        struct sw_step_result result;
        struct spillway_rates rates = SPILLWAY_RATES_INIT;
        rates.lr = 0.125;
        rates.beta1 = rates.beta2 = 0.5;
        rates.weight_decay = 0.0;
        rates.clip = step % spec.clip_every == 0 ? 0.5 : 0.0;
        support_expect_ok(toy_begin(&toy, SW_STEP_TRAIN, step, NULL), "toy's step");
        support_expect_ok(toy_wait(&toy, &result), "toy's step");
        for (int u = 0; u < TOY_UNITS; u++) {
            support_expect_ok(sw_engine_read_grads(toy.engine, u, 0, grains[u], grads[u]), "gradients");
            library_must(spillway_gradient(self, u, SPILLWAY_F32, grads[u], SPILLWAY_SET), self, "gradient");
        }
        library_must(spillway_step(self, &rates, NULL), self, "step");
        for (int u = 0; u < TOY_UNITS; u++) {
            support_expect_ok(sw_engine_read_optimizer(toy.engine, u, 0, grains[u], records), "masters");
            for (int64_t g = 0; g < grains[u]; g++)
                assert_memory_equal(weights[u] + g * SW_GRAIN_ELEMS, records + g * record_elems,
                                    SW_GRAIN_ELEMS * sizeof(float));
        }
    }
    spillway_close(self);
    toy_close(&toy);
    for (int u = 0; u < TOY_UNITS; u++) {
        free(weights[u]);
        free(grads[u]);
    }
    free(records);
}

/* Hands in the gradients of a model whose tensors were registered in this order (NULL: their own), and runs the step.
 */
static void step_in_order(const struct model *m, spillway *self, const int *order, int64_t step) {
    struct spillway_rates rates = rates_of(step);
    rates.note = step == COMMITTED_STEP ? "read up to \"line 3\"\n\xc3\xa9" : "another";
    for (int i = 0; i < TENSORS; i++) {
        const int t = order != NULL ? order[i] : i;
        library_must(spillway_gradient(self, i, (int)m->type[t], m->gradients[t], SPILLWAY_SET), self, "gradient");
    }
    library_must(spillway_step(self, &rates, NULL), self, "step");
}

/* A step is committed and another one not, the handle closed without a save, and opened in another order with other
 * weights in memory. It goes on with the bits of the reference, which was not interrupted, also for changed factors. */
static void resumes_in_any_order(void **state) {
    static const int other[TENSORS] = {6, 2, 0, 1, 5, 4, 3};
    char path[SUPPORT_PATH_CHARS];
    struct model m = model_make();
    struct reference r = reference_open(&m);
    struct spillway_options options = library_options(library_store(state, path), ALL_ON_HOST);
    options.save_every = COMMITTED_STEP;
    spillway *self = model_open(&m, &options);
    for (int64_t step = 1; step <= COMMITTED_STEP + 1; step++) {
        const struct spillway_rates rates = rates_of(step);
        if (step == 2)
            change_factors(&m, self, &r);
        model_gradients(&m, step);
        if (step <= COMMITTED_STEP)
            reference_step(&r, &m, &rates);
        step_in_order(&m, self, NULL, step);
    }
    spillway_close(self);
    for (int t = 0; t < TENSORS; t++)
        memset(m.weights[t], 0xee, (size_t)(m.count[t] * sw_dtype_bytes(m.type[t])));
    options.host_memory_bytes = 8 << 20;
    self = model_describe(&m, &options, other);
    library_must(spillway_open(self), self, "open again");
    assert_int_equal(spillway_last_step(self), COMMITTED_STEP);
    assert_string_equal(spillway_note(self), "read up to \"line 3\"\n\xc3\xa9");
    expect_weights(&r, &m, COMMITTED_STEP);
    for (int64_t step = COMMITTED_STEP + 1; step <= 2 * COMMITTED_STEP; step++) {
        const struct spillway_rates rates = rates_of(step);
        model_gradients(&m, step);
        reference_step(&r, &m, &rates);
        step_in_order(&m, self, other, step);
        expect_weights(&r, &m, step);
    }
    spillway_close(self);
    reference_close(&r);
    model_free(&m);
}

/* Opens a store of many tensors of one element, in this order or the other way round. */
static spillway *open_many(const struct spillway_options *options, float *weights, bool backwards) {
    char name[SPILLWAY_NAME_CHARS];
    spillway *self = NULL;
    library_must(spillway_create(options, &self), NULL, "create");
    for (int i = 0; i < MANY; i++) {
        struct spillway_tensor tensor = SPILLWAY_TENSOR_INIT;
        const int t = backwards ? MANY - 1 - i : i;
        snprintf(name, sizeof name, "tensor %d", t);
        tensor.name = name;
        tensor.count = 1;
        tensor.weights = &weights[t];
        tensor.lr_scale = 1.0 + t % 2;
        library_must(spillway_add(self, &tensor, NULL), self, "add");
    }
    library_must(spillway_open(self), self, "open");
    return self;
}

/* More tensors than a unit takes, each with factors of its own: a first step moves a weight by its rate. */
static void many_tensors_take_several_units(void **state) {
    char path[SUPPORT_PATH_CHARS];
    static float weights[MANY], gradient = 1.0f;
    struct spillway_rates rates = SPILLWAY_RATES_INIT;
    const struct spillway_options options = library_options(library_store(state, path), ALL_ON_HOST);
    spillway *self = open_many(&options, weights, false);
    rates.lr = 0.25;
    for (int t = 0; t < MANY; t++) {
        library_must(spillway_set_factors(self, t, 1.0 + t % 3, 0), self, "factors");
        library_must(spillway_gradient(self, t, SPILLWAY_F32, &gradient, SPILLWAY_SET), self, "gradient");
    }
    library_must(spillway_step(self, &rates, NULL), self, "step");
    spillway_close(self);
    memset(weights, 0, sizeof weights);
    spillway_close(open_many(&options, weights, true));
    for (int t = 0; t < MANY; t++)
        assert_true(fabsf(weights[t] + 0.25f * (float)(1 + t % 3)) < 1e-6f);
}

/* Reading all of a tensor's state reads its part of the drive once, and not once for each part of a chunk. */
static void a_read_reads_the_drive_once(void **state) {
    enum { GRAINS = 64 };
    char path[SUPPORT_PATH_CHARS];
    const int64_t count = GRAINS * SW_GRAIN_ELEMS;
    const struct spillway_options options = library_options(library_store(state, path), INT64_C(10) << 20);
    struct spillway_usage before = SPILLWAY_USAGE_INIT, after = SPILLWAY_USAGE_INIT;
    struct spillway_tensor tensor = SPILLWAY_TENSOR_INIT;
    float *weights = calloc((size_t)count, sizeof *weights), *out = calloc((size_t)count, sizeof *out);
    spillway *self = NULL;
    assert_true(weights != NULL && out != NULL);
    for (int64_t i = 0; i < count; i++)
        weights[i] = (float)i;
    tensor.name = "w";
    tensor.count = count;
    tensor.weights = weights;
    library_must(spillway_create(&options, &self), NULL, "create");
    library_must(spillway_add(self, &tensor, NULL), self, "add");
    library_must(spillway_open(self), self, "open");
    library_must(spillway_get_usage(self, &before), self, "usage");
    assert_int_equal(before.state_host_bytes, 0);
    library_must(spillway_read(self, 0, SPILLWAY_MASTER, 1, count - 2, out), self, "read");
    library_must(spillway_get_usage(self, &after), self, "usage");
    assert_memory_equal(out, weights + 1, (size_t)(count - 2) * sizeof *out);
    assert_true(after.read_bytes > before.read_bytes && after.read_bytes - before.read_bytes <= before.state_bytes);
    spillway_close(self);
    free(weights);
    free(out);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, support_make_folder, library_remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(has_the_bits_of_the_reference_in_host_memory),
        IN_FOLDER(has_the_bits_of_the_reference_on_the_drive),
        IN_FOLDER(narrow_state_has_the_same_bits_everywhere_and_after_a_resume),
        IN_FOLDER(gradients_add_up),
        IN_FOLDER(has_the_bits_of_the_engine),
        IN_FOLDER(resumes_in_any_order),
        IN_FOLDER(many_tensors_take_several_units),
        IN_FOLDER(a_read_reads_the_drive_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
