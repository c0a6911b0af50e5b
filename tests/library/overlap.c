/* Steps that return early: the same bits as whole steps, whatever is waited for and when; errors and closing meanwhile.
 */
#include "tests/library/reference.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { STEPS = 16, LARGE = 4 };
#define ALL_ON_HOST (INT64_C(256) << 20)
#define ALL_ON_DRIVE (INT64_C(4) << 20)

/* Overwrites a gradient that must not be read any more. */
static void spoil_gradient(struct model *m, int t) {
    for (int64_t i = 0; i < m->count[t]; i++)
        sw_dtype_store(m->type[t], m->gradients[t], i, NAN);
}

/* Waits for the tensors one by one, from the one of this number on, and compares each at once. */
static void wait_one_by_one(struct model *m, const struct reference *r, spillway *self, int64_t step) {
    for (int i = 0; i < TENSORS; i++) {
        const int t = (int)((step + i) % TENSORS);
        library_must(spillway_wait_tensor(self, t), self, "wait for a tensor");
        expect_weights_of(r, m, t, step);
        spoil_gradient(m, t);
    }
}

static void follow_reference(void **state, int64_t host_memory_bytes, bool on_drive) {
    char path[SUPPORT_PATH_CHARS];
    struct model m = model_make();
    struct reference r = reference_open(&m);
    struct spillway_options options = library_options(library_store(state, path), host_memory_bytes);
    struct spillway_result result = SPILLWAY_RESULT_INIT;
    options.save_every = 4;
    spillway *self = model_open(&m, &options);
    library_must(spillway_wait(self, &result), self, "wait");
    assert_int_equal(result.step, 0);
    for (int64_t step = 1; step <= STEPS; step++) {
        const struct spillway_rates rates = rates_of(step);
        model_gradients(&m, step);
        const double norm = reference_step(&r, &m, &rates);
        model_hand_in(&m, self, SPILLWAY_SET);
        library_must(spillway_step_start(self, &rates, &result), self, "start");
        assert_memory_equal(&result.grad_norm, &norm, sizeof norm);
        assert_int_equal(result.step, step);
        assert_int_equal(result.committed, 0);
        assert_int_equal(spillway_last_step(self), step);
        /* Without the waits the next step does the rest. */
        if (step % 3 != 0 || step == STEPS)
            wait_one_by_one(&m, &r, self, step);
        if (step % 3 == 1)
            continue;
        library_must(spillway_wait(self, &result), self, "wait");
        assert_int_equal(result.step, step);
        assert_int_equal(result.committed, on_drive || step % 4 == 0);
        expect_weights(&r, &m, step);
    }
    for (int part = 0; part < STATE_PARTS; part++)
        expect_state(&r, &m, self, part);
    spillway_close(self);
    reference_close(&r);
    model_free(&m);
}

static void has_the_bits_of_whole_steps_in_host_memory(void **state) {
    follow_reference(state, ALL_ON_HOST, false);
}

static void has_the_bits_of_whole_steps_on_the_drive(void **state) {
    follow_reference(state, ALL_ON_DRIVE, true);
}

/* Gradients that do not depend on weights, which change meanwhile. */
static void fill_gradients(struct model *m, int64_t step) {
    for (int t = 0; t < TENSORS; t++)
        for (int64_t i = 0; i < m->count[t]; i++)
            sw_dtype_store(m->type[t], m->gradients[t], i, (float)((step * 7 + i) % 13 - 6) * 0.01f);
}

/* The gradients of the next step are added up while the step before still reads its sums. */
static void gradients_add_up_meanwhile(void **state) {
    char path[SUPPORT_PATH_CHARS];
    struct model m = model_make();
    struct reference r = reference_open(&m);
    struct spillway_options options = library_options(library_store(state, path), INT64_C(8) << 20);
    options.accumulate = 1;
    spillway *self = model_open(&m, &options);
    for (int64_t step = 1; step <= STEPS; step++) {
        const struct spillway_rates rates = rates_of(step);
        fill_gradients(&m, step);
        model_hand_in(&m, self, SPILLWAY_ADD);
        reference_step(&r, &m, &rates);
        library_must(spillway_step_start(self, &rates, NULL), self, "start");
    }
    library_must(spillway_wait(self, NULL), self, "wait");
    expect_weights(&r, &m, STEPS);
    spillway_close(self);
    reference_close(&r);
    model_free(&m);
}

/* Starts step `step` of a new handle's model. */
static void start_step(struct model *m, spillway *self, int64_t step) {
    const struct spillway_rates rates = rates_of(step);
    model_gradients(m, step);
    model_hand_in(m, self, SPILLWAY_SET);
    library_must(spillway_step_start(self, &rates, NULL), self, "start");
}

/* A handle that is closed in the middle of a step commits it, if each step is committed. */
static void closing_finishes_a_step(void **state) {
    for (int on_host = 0; on_host < 2; on_host++) {
        char path[SUPPORT_PATH_CHARS];
        struct model m = model_make();
        struct reference r = reference_open(&m);
        struct spillway_options options =
            library_options(library_store(state, path), on_host ? ALL_ON_HOST : ALL_ON_DRIVE);
        const struct spillway_rates rates = rates_of(1);
        options.save_every = 2;
        spillway *self = model_open(&m, &options);
        start_step(&m, self, 1);
        spillway_close(self);
        reference_step(&r, &m, &rates);
        expect_weights(&r, &m, 1);
        self = model_open(&m, &options);
        assert_int_equal(spillway_last_step(self), on_host ? 0 : 1);
        spillway_close(self);
        library_remove_store(state);
        reference_close(&r);
        model_free(&m);
    }
}

/* Calls that need the whole step wait for it. */
static void other_calls_wait(void **state) {
    char path[SUPPORT_PATH_CHARS];
    struct model m = model_make();
    struct reference r = reference_open(&m);
    const struct spillway_options options = library_options(library_store(state, path), ALL_ON_DRIVE);
    struct spillway_usage usage = SPILLWAY_USAGE_INIT;
    spillway *self = model_open(&m, &options);
    for (int64_t step = 1; step <= 4; step++) {
        const struct spillway_rates rates = rates_of(step);
        start_step(&m, self, step);
        reference_step(&r, &m, &rates);
        if (step == 1)
            library_must(spillway_save(self), self, "save");
        if (step == 2)
            library_must(spillway_get_usage(self, &usage), self, "usage");
        if (step == 3)
            library_must(spillway_set_factors(self, 0, 0.5, 1), self, "factors");
        if (step == 4)
            expect_state(&r, &m, self, SPILLWAY_MASTER);
        expect_weights(&r, &m, step);
        if (step == 3)
            library_must(spillway_set_factors(self, 0, 1.0, 1), self, "factors");
    }
    assert_int_equal(spillway_wait_tensor(self, TENSORS), SPILLWAY_ERROR_ARGUMENT);
    assert_int_equal(spillway_wait_tensor(self, -1), SPILLWAY_ERROR_ARGUMENT);
    spillway_close(self);
    reference_close(&r);
    model_free(&m);
}

/* Changes one bit of the large tensor's state on the drive, and does so again to undo it. */
static void flip_a_bit(void *const *state, const float *masters) {
    char file[SUPPORT_PATH_CHARS];
    struct stat info;
    const int fd = open(support_path(state, "store/store.spillway", file), O_RDWR);
    assert_int_equal(fstat(fd, &info), 0);
    char *bytes = mmap(NULL, (size_t)info.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(bytes != MAP_FAILED);
    char *at = memmem(bytes, (size_t)info.st_size, masters + 1, 64 * sizeof *masters);
    assert_non_null(at);
    at[-(ptrdiff_t)sizeof *masters] ^= 1;
    assert_int_equal(msync(bytes, (size_t)info.st_size, MS_SYNC), 0);
    munmap(bytes, (size_t)info.st_size);
    close(fd);
}

/* A drive that gives wrong bytes in the middle of a step: the start knows nothing, a wait does, and the next process
 * finds the step before. */
static void an_error_shows_at_a_wait(void **state) {
    for (int which = 0; which < 4; which++) {
        char path[SUPPORT_PATH_CHARS];
        struct model m = model_make();
        const struct spillway_options options = library_options(library_store(state, path), ALL_ON_DRIVE);
        float *masters = calloc(MOST_ELEMS, sizeof *masters);
        assert_non_null(masters);
        spillway *self = model_open(&m, &options);
        memcpy(masters, m.weights[LARGE], MOST_ELEMS * sizeof *masters);
        flip_a_bit(state, masters);
        start_step(&m, self, 1);
        const int status = which == 0   ? spillway_wait(self, NULL)
                           : which == 1 ? spillway_wait_tensor(self, LARGE)
                           : which == 2 ? spillway_save(self)
                                        : spillway_set_factors(self, 0, 0.25, 0);
        if (status != SPILLWAY_ERROR_CORRUPT || strstr(spillway_error(self), "checksum") == NULL)
            fail_msg("wait %d: status %d (%s)", which, status, spillway_error(self));
        assert_int_equal(spillway_wait(self, NULL), SPILLWAY_ERROR_ARGUMENT);
        assert_non_null(strstr(spillway_error(self), "can only be closed"));
        spillway_close(self);
        flip_a_bit(state, masters);
        self = model_open(&m, &options);
        assert_int_equal(spillway_last_step(self), 0);
        assert_memory_equal(masters, m.weights[LARGE], MOST_ELEMS * sizeof *masters);
        spillway_close(self);
        library_remove_store(state);
        free(masters);
        model_free(&m);
    }
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, support_make_folder, library_remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(has_the_bits_of_whole_steps_in_host_memory),
        IN_FOLDER(has_the_bits_of_whole_steps_on_the_drive),
        IN_FOLDER(gradients_add_up_meanwhile),
        IN_FOLDER(closing_finishes_a_step),
        IN_FOLDER(other_calls_wait),
        IN_FOLDER(an_error_shows_at_a_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
