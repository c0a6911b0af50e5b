/* Streams: every tensor has its bytes at every time, the order of uses is learned, and a store that writes through a
 * stream has the bits of one that does not. */
#include "library/stream_private.h"
#include "tests/library/support.h"

#include <sys/wait.h>

enum { PARTS = 9, PASSES = 4, STEPS = 6, BUDGET = 3 << 20, CYCLE = 8, HOST = 16 << 20 };

/* A byte, a page and one more, small ones, a block, more than one, and some that do not fit together. */
static const int64_t part_bytes[PARTS] = {1, 4097, 65536, 65537, 1 << 20, 1234567, 700001, 2 << 20, 999999};

static void must(int status, const char *what) {
    if (status != SPILLWAY_OK)
        fail_msg("%s: %s (%s)", what, spillway_error(NULL), spillway_status_name(status));
}

static spillway_stream *describe(void *const *state, uint64_t memory_bytes) {
    const struct support_folder *folder = *state;
    struct spillway_stream_options options = SPILLWAY_STREAM_OPTIONS_INIT;
    spillway_stream *self;
    options.folder = folder->path;
    options.memory_bytes = memory_bytes;
    options.allow_buffered = 1;
    must(spillway_stream_create(&options, &self), "create");
    return self;
}

static char byte_of(int64_t part, int64_t at, int version) {
    return (char)((uint64_t)(at * 31 + part * 17 + version * 101 + at / 4096) % 251);
}

static void fill(spillway_stream *self, int64_t part, int version) {
    char *address = spillway_stream_address(self, part);
    must(spillway_stream_need(self, &part, 1, SPILLWAY_CHANGE), "need");
    for (int64_t at = 0; at < part_bytes[part]; at++)
        address[at] = byte_of(part, at, version);
    must(spillway_stream_changed(self, &part, 1), "changed");
    must(spillway_stream_done(self, &part, 1), "done");
}

static void expect_bytes(const spillway_stream *self, int64_t part, int version) {
    const char *address = spillway_stream_address(self, part);
    for (int64_t at = 0; at < part_bytes[part]; at++)
        if (address[at] != byte_of(part, at, version))
            fail_msg("byte %lld of tensor %lld is wrong", (long long)at, (long long)part);
}

static spillway_stream *open_filled(void *const *state) {
    spillway_stream *self = describe(state, BUDGET);
    for (int64_t part = 0, index; part < PARTS; part++) {
        must(spillway_stream_add(self, "part", part_bytes[part], &index), "add");
        assert_int_equal(index, part);
    }
    must(spillway_stream_open(self), "open");
    for (int64_t part = 0; part < PARTS; part++)
        fill(self, part, 0);
    return self;
}

static void tensors_have_their_bytes_in_any_order(void **state) {
    struct spillway_stream_usage usage = SPILLWAY_STREAM_USAGE_INIT;
    spillway_stream *self = open_filled(state);
    uint32_t word = 1;
    for (int64_t i = 0; i < PASSES * PARTS; i++) {
        const int64_t forward = i % PARTS, backward = PARTS - 1 - forward;
        must(spillway_stream_need(self, &forward, 1, SPILLWAY_FORWARD), "need");
        expect_bytes(self, forward, 0);
        must(spillway_stream_done(self, &forward, 1), "done");
        must(spillway_stream_need(self, &backward, 1, SPILLWAY_BACKWARD), "need");
        expect_bytes(self, backward, 0);
        word = word * 1664525u + 1013904223u;
        /* Nobody has announced this one. */
        expect_bytes(self, (int64_t)(word >> 16) % PARTS, 0);
    }
    must(spillway_stream_get_usage(self, &usage), "usage");
    assert_true(usage.memory_bytes <= BUDGET && usage.drive_bytes >= usage.tensor_bytes - BUDGET);
    assert_true(usage.read_bytes > 0 && usage.waits <= usage.needs);
    must(spillway_stream_close(self, 0), "close");
}

static void changes_are_kept(void **state) {
    spillway_stream *self = open_filled(state);
    for (int version = 1; version < PASSES; version++)
        for (int64_t part = 0; part < PARTS; part++)
            fill(self, part, version);
    for (int64_t part = 0; part < PARTS; part++) {
        must(spillway_stream_need(self, &part, 1, SPILLWAY_FORWARD), "need");
        expect_bytes(self, part, PASSES - 1);
        must(spillway_stream_done(self, &part, 1), "done");
    }
    /* The memory belongs to the process from then on; these addresses tell the leak sanitizer. */
    static const char *kept[PARTS];
    for (int64_t part = 0; part < PARTS; part++)
        kept[part] = spillway_stream_address(self, part);
    must(spillway_stream_close(self, 1), "close");
    for (int64_t part = 0; part < PARTS; part++)
        for (int64_t at = 0; at < part_bytes[part]; at++)
            assert_int_equal(kept[part][at], byte_of(part, at, PASSES - 1));
}

static void expect_refusal(int status, int expected, const char *words) {
    if (status != expected || strstr(spillway_error(NULL), words) == NULL)
        fail_msg("%s (%s) instead of '%s'", spillway_error(NULL), spillway_status_name(status), words);
}

static void mistakes_are_refused(void **state) {
    const int64_t both[] = {7, 5}, none = PARTS, last = 7;
    int64_t index;
    spillway_stream *self = describe(state, 1 << 20);
    expect_refusal(spillway_stream_open(self), SPILLWAY_ERROR_ARGUMENT, "no tensor is registered");
    expect_refusal(spillway_stream_add(self, "empty", 0, &index), SPILLWAY_ERROR_ARGUMENT, "'empty' has 0 bytes");
    must(spillway_stream_add(self, "large", 2 << 20, &index), "add");
    expect_refusal(spillway_stream_open(self), SPILLWAY_ERROR_BUDGET, "the largest tensor alone takes 2");
    expect_refusal(spillway_stream_need(self, &index, 1, SPILLWAY_FORWARD), SPILLWAY_ERROR_ARGUMENT, "is not open yet");
    must(spillway_stream_close(self, 0), "close");
    self = open_filled(state);
    expect_refusal(spillway_stream_need(self, &none, 1, SPILLWAY_FORWARD), SPILLWAY_ERROR_ARGUMENT, "no tensor 9");
    expect_refusal(spillway_stream_need(self, &last, 1, 3), SPILLWAY_ERROR_ARGUMENT, "3 is not one of");
    expect_refusal(spillway_stream_done(self, &last, 1), SPILLWAY_ERROR_ARGUMENT, "without having been needed");
    expect_refusal(spillway_stream_changed(self, &last, 1), SPILLWAY_ERROR_ARGUMENT, "without having been needed");
    expect_refusal(spillway_stream_need(self, both, 2, SPILLWAY_FORWARD), SPILLWAY_ERROR_BUDGET, "no room for 'part'");
    must(spillway_stream_need(self, both, 1, SPILLWAY_FORWARD), "need");
    expect_bytes(self, both[0], 0);
    const pid_t child = fork();
    int status;
    if (child == 0) {
        const int refused = spillway_stream_need(self, both, 1, SPILLWAY_FORWARD);
        _exit(refused == SPILLWAY_ERROR_ARGUMENT && strstr(spillway_error(NULL), "fork") != NULL &&
                      spillway_stream_close(self, 0) == SPILLWAY_OK
                  ? 0
                  : 1);
    }
    assert_true(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    must(spillway_stream_close(self, 0), "close");
    must(spillway_stream_close(NULL, 0), "close");
}

/* Uses tensors until the library says that one of them is not what it was. */
static int use_all(spillway_stream *self) {
    int status = SPILLWAY_OK;
    for (int64_t part = 3; part < 2 * PARTS && status == SPILLWAY_OK; part++) {
        const int64_t wrapped = part % PARTS;
        status = spillway_stream_need(self, &wrapped, 1, SPILLWAY_FORWARD);
        if (status == SPILLWAY_OK)
            status = spillway_stream_done(self, &wrapped, 1);
    }
    return status;
}

/* Waits until the lane has nothing to do. */
static void let_it_rest(spillway_stream *self) {
    for (bool busy = true; busy; usleep(1000)) {
        busy = false;
        pthread_mutex_lock(&self->lock);
        for (int64_t p = 0; p < self->piece_count; p++)
            busy |= self->piece[p].changed || self->piece[p].writing || self->piece[p].state == STREAM_READING;
        pthread_mutex_unlock(&self->lock);
    }
}

static void changes_that_nobody_told_are_found(void **state) {
    for (enum stream_state where = STREAM_ABSENT; where <= STREAM_PRESENT; where += STREAM_PRESENT - STREAM_ABSENT) {
        spillway_stream *self = open_filled(state);
        int64_t part = 3;
        let_it_rest(self);
        while (part < PARTS - 1 && self->piece[part].state != where)
            part++;
        assert_int_equal(self->piece[part].state, where);
        memset(spillway_stream_address(self, part), 1, (size_t)part_bytes[part]);
        expect_refusal(use_all(self), where == STREAM_ABSENT ? SPILLWAY_ERROR_CORRUPT : SPILLWAY_ERROR_ARGUMENT,
                       "without spillway_stream_changed");
        must(spillway_stream_close(self, 0), "close");
    }
}

/* The history alone: what comes next after a forward and a backward pass, again and again, with an evaluation between.
 */
static void the_order_is_learned(void **state) {
    static const int64_t training[] = {0, 1, 2, 3, 3, 2, 1, 0};
    spillway_stream *self = describe(state, BUDGET);
    struct stream_entry next;
    self->tensor_count = 4;
    sw_streamed_record(self, 0, false);
    assert_true(sw_streamed_expect(self, 2, &next) && next.piece == 2);
    assert_false(sw_streamed_expect(self, 4, &next));
    for (int64_t i = 1; i < 3 * CYCLE; i++)
        sw_streamed_record(self, training[i % CYCLE], false);
    for (int64_t i = 0; i < 2 * CYCLE; i++) {
        for (int64_t ahead = 1; ahead <= CYCLE; ahead++)
            assert_true(sw_streamed_expect(self, ahead, &next) && next.piece == training[(i + ahead - 1) % CYCLE]);
        sw_streamed_record(self, training[i % CYCLE], false);
    }
    for (int64_t i = 0; i < 4; i++)
        sw_streamed_record(self, i, false);
    sw_streamed_record(self, 0, false); /* a forward pass without a backward one */
    sw_streamed_record(self, 1, false);
    assert_true(sw_streamed_expect(self, 1, &next) && next.piece == 2 && !next.overwrites);
    must(spillway_stream_close(self, 0), "close");
}

/* Moves the model's weights to a stream. */
static spillway_stream *stream_model(void *const *state, struct model *m, int64_t memory_bytes) {
    spillway_stream *self = describe(state, (uint64_t)memory_bytes);
    for (int t = 0; t < TENSORS; t++)
        must(spillway_stream_add(self, m->name[t], m->count[t] * sw_dtype_bytes(m->type[t]), NULL), "add");
    must(spillway_stream_open(self), "open");
    for (int64_t t = 0; t < TENSORS; t++) {
        must(spillway_stream_need(self, &t, 1, SPILLWAY_CHANGE), "need");
        memcpy(spillway_stream_address(self, t), m->weights[t], (size_t)(m->count[t] * sw_dtype_bytes(m->type[t])));
        must(spillway_stream_changed(self, &t, 1), "changed");
        must(spillway_stream_done(self, &t, 1), "done");
        free(m->weights[t]);
        m->weights[t] = spillway_stream_address(self, t);
    }
    return self;
}

static spillway *open_streamed(const struct model *m, spillway_stream *stream, const struct spillway_options *options) {
    spillway *self = model_describe(m, options, NULL);
    library_must(spillway_use_stream(self, stream), self, "use");
    library_must(spillway_open(self), self, "open");
    return self;
}

static void take_steps(struct model *m, spillway *self, int64_t first) {
    struct spillway_rates rates = SPILLWAY_RATES_INIT;
    rates.clip = 0.5;
    for (int64_t step = first; step < first + STEPS; step++) {
        for (int micro = 0; micro < 2; micro++) {
            model_gradients(m, 2 * step + micro);
            model_hand_in(m, self, SPILLWAY_ADD);
        }
        library_must(spillway_step(self, &rates, NULL), self, "step");
    }
}

/* Also after a resume, in which the store writes the weights of the last commit. */
static void a_store_has_the_same_bits(void **state) {
    char path[SUPPORT_PATH_CHARS];
    struct model plain = model_make(), streamed = model_make();
    struct spillway_options options = library_options(library_store(state, path), HOST);
    options.accumulate = 1;
    spillway *self = model_open(&plain, &options);
    take_steps(&plain, self, 0);
    take_steps(&plain, self, STEPS);
    spillway_close(self);
    library_remove_store(state);
    /* Room for the largest tensor with its gradient, and no more. */
    spillway_stream *stream = stream_model(state, &streamed, 1 << 20);
    self = open_streamed(&streamed, stream, &options);
    take_steps(&streamed, self, 0);
    library_must(spillway_save(self), self, "save");
    expect_refusal(spillway_stream_close(stream, 0), SPILLWAY_ERROR_BUSY, "a store still writes");
    model_gradients(&streamed, 2 * STEPS);
    model_hand_in(&streamed, self, SPILLWAY_ADD);
    assert_int_equal(spillway_step_start(self, &(struct spillway_rates)SPILLWAY_RATES_INIT, NULL),
                     SPILLWAY_ERROR_ARGUMENT);
    assert_non_null(strstr(spillway_error(self), "stream"));
    library_must(spillway_forget_gradients(self), self, "forget");
    spillway_close(self);
    for (int64_t t = 0; t < TENSORS; t++) {
        must(spillway_stream_need(stream, &t, 1, SPILLWAY_CHANGE), "need");
        memset(streamed.weights[t], 0, (size_t)streamed.count[t]);
        must(spillway_stream_changed(stream, &t, 1), "changed");
        must(spillway_stream_done(stream, &t, 1), "done");
    }
    self = open_streamed(&streamed, stream, &options);
    take_steps(&streamed, self, STEPS);
    for (int t = 0; t < TENSORS; t++)
        assert_memory_equal(streamed.weights[t], plain.weights[t],
                            (size_t)(plain.count[t] * sw_dtype_bytes(plain.type[t])));
    spillway_close(self);
    must(spillway_stream_close(stream, 0), "close");
    for (int t = 0; t < TENSORS; t++)
        streamed.weights[t] = NULL;
    model_free(&plain);
    model_free(&streamed);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, support_make_folder, library_remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(tensors_have_their_bytes_in_any_order),
        IN_FOLDER(changes_are_kept),
        IN_FOLDER(mistakes_are_refused),
        IN_FOLDER(changes_that_nobody_told_are_found),
        IN_FOLDER(the_order_is_learned),
        IN_FOLDER(a_store_has_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
