/* Refusals of the library: their words, and that they lose nothing. */
#include "tests/library/support.h"

#include <math.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

#define HOST (INT64_C(64) << 20)

static void expect(int got, const spillway *self, int status, const char *words) {
    if (got != status || strstr(spillway_error(self), words) == NULL)
        fail_msg("status %d (%s), expected %d with \"%s\"", got, spillway_error(self), status, words);
}

static void options_are_checked(void **state) {
    char path[SUPPORT_PATH_CHARS];
    spillway *self;
    struct spillway_options options = library_options(library_store(state, path), HOST);
    options.size--;
    expect(spillway_create(&options, &self), NULL, SPILLWAY_ERROR_ARGUMENT, "SPILLWAY_OPTIONS_INIT");
    assert_null(self);
    options = library_options("", HOST);
    expect(spillway_create(&options, &self), NULL, SPILLWAY_ERROR_ARGUMENT, "`store`");
    options = library_options(path, 0);
    expect(spillway_create(&options, &self), NULL, SPILLWAY_ERROR_ARGUMENT, "host_memory_bytes");
    options = library_options(path, HOST);
    options.state = 3;
    expect(spillway_create(&options, &self), NULL, SPILLWAY_ERROR_ARGUMENT, "state 3");
    options = library_options(path, HOST);
    options.threads = -1;
    expect(spillway_create(&options, &self), NULL, SPILLWAY_ERROR_ARGUMENT, "threads");
    spillway_close(NULL);
}

static void tensors_are_checked(void **state) {
    char path[SUPPORT_PATH_CHARS];
    float weights[2] = {1.0f, 2.0f};
    const struct spillway_options options = library_options(library_store(state, path), HOST);
    struct spillway_tensor good = SPILLWAY_TENSOR_INIT, bad;
    spillway *self;
    library_must(spillway_create(&options, &self), NULL, "create");
    good.name = "w";
    good.count = 2;
    good.weights = weights;
    expect(spillway_open(self), self, SPILLWAY_ERROR_ARGUMENT, "no tensor");
    bad = good;
    bad.name = "a\nb";
    expect(spillway_add(self, &bad, NULL), self, SPILLWAY_ERROR_ARGUMENT, "name");
    bad = good;
    bad.count = 0;
    expect(spillway_add(self, &bad, NULL), self, SPILLWAY_ERROR_ARGUMENT, "'w' has 0 elements");
    bad = good;
    bad.type = 7;
    expect(spillway_add(self, &bad, NULL), self, SPILLWAY_ERROR_ARGUMENT, "type 7");
    bad = good;
    bad.weights = (char *)weights + 1;
    expect(spillway_add(self, &bad, NULL), self, SPILLWAY_ERROR_ARGUMENT, "aligned");
    bad = good;
    bad.lr_scale = -1.0;
    expect(spillway_add(self, &bad, NULL), self, SPILLWAY_ERROR_ARGUMENT, "lr_scale");
    expect(spillway_step(self, NULL, NULL), self, SPILLWAY_ERROR_ARGUMENT, "not open");
    library_must(spillway_add(self, &good, NULL), self, "add");
    library_must(spillway_add(self, &good, NULL), self, "add");
    expect(spillway_open(self), self, SPILLWAY_ERROR_ARGUMENT, "two tensors");
    spillway_close(self);
}

static void steps_are_checked(void **state) {
    char path[SUPPORT_PATH_CHARS], note[SPILLWAY_NOTE_CHARS + 1];
    struct model m = model_make();
    const struct spillway_options options = library_options(library_store(state, path), HOST);
    spillway *self = model_open(&m, &options);
    const struct spillway_rates good = SPILLWAY_RATES_INIT;
    struct spillway_rates bad = good;
    float out;
    model_gradients(&m, 1);
    expect(spillway_step(self, &good, NULL), self, SPILLWAY_ERROR_ARGUMENT, "'one' has no gradient in step 1");
    model_hand_in(&m, self, SPILLWAY_SET);
    bad.beta2 = 1.0;
    expect(spillway_step(self, &bad, NULL), self, SPILLWAY_ERROR_ARGUMENT, "beta2");
    bad = good;
    bad.lr = NAN;
    expect(spillway_step(self, &bad, NULL), self, SPILLWAY_ERROR_ARGUMENT, "lr");
    memset(note, 'x', SPILLWAY_NOTE_CHARS);
    note[SPILLWAY_NOTE_CHARS] = '\0';
    bad = good;
    bad.note = note;
    expect(spillway_step(self, &bad, NULL), self, SPILLWAY_ERROR_ARGUMENT, "note");
    memset(note, 1, SPILLWAY_NOTE_CHARS - 1);
    note[SPILLWAY_NOTE_CHARS - 1] = '\0';
    expect(spillway_step(self, &bad, NULL), self, SPILLWAY_ERROR_ARGUMENT, "as JSON");
    bad.note = "\xff";
    expect(spillway_step(self, &bad, NULL), self, SPILLWAY_ERROR_ARGUMENT, "UTF-8");
    expect(spillway_gradient(self, TENSORS, SPILLWAY_F32, m.gradients[0], SPILLWAY_SET), self, SPILLWAY_ERROR_ARGUMENT,
           "no tensor 7");
    expect(spillway_gradient(self, 0, SPILLWAY_F32, NULL, SPILLWAY_SET), self, SPILLWAY_ERROR_ARGUMENT, "NULL");
    expect(spillway_gradient(self, 0, SPILLWAY_F32, m.gradients[0], SPILLWAY_ADD), self, SPILLWAY_ERROR_ARGUMENT,
           "accumulate");
    expect(spillway_read(self, 0, 3, 0, 1, &out), self, SPILLWAY_ERROR_ARGUMENT, "SPILLWAY_MASTER");
    expect(spillway_read(self, 0, SPILLWAY_MASTER, 1, 1, &out), self, SPILLWAY_ERROR_ARGUMENT, "no 1 elements from 1");
    /* None of that has spoilt the store, or lost the gradients. */
    library_must(spillway_step(self, &good, NULL), self, "step");
    expect(spillway_step(self, &good, NULL), self, SPILLWAY_ERROR_ARGUMENT, "no gradient in step 2");
    spillway_close(self);
    model_free(&m);
}

static void zeros_stand_for_missing_gradients(void **state) {
    char path[SUPPORT_PATH_CHARS];
    struct model m = model_make();
    struct spillway_options options = library_options(library_store(state, path), HOST);
    const struct spillway_rates rates = SPILLWAY_RATES_INIT;
    options.zero_missing_gradients = 1;
    spillway *self = model_open(&m, &options);
    const float before = *(const float *)m.weights[0];
    library_must(spillway_step(self, &rates, NULL), self, "step");
    /* A gradient of zero leaves the decay. */
    assert_true(*(const float *)m.weights[0] == before * (float)(1.0 - rates.lr * rates.weight_decay));
    spillway_close(self);
    model_free(&m);
}

/* Opens the store with a model, and expects a refusal; the store stays as it is. */
static void expect_refusal(const struct model *m, int64_t count, const struct spillway_options *options, int status,
                           const char *words) {
    spillway *self = NULL;
    library_must(spillway_create(options, &self), NULL, "create");
    for (int t = 0; t < count; t++) {
        const struct spillway_tensor tensor = model_tensor(m, t);
        library_must(spillway_add(self, &tensor, NULL), self, "add");
    }
    expect(spillway_open(self), self, status, words);
    spillway_close(self);
}

static void other_tensors_are_refused_by_name(void **state) {
    char path[SUPPORT_PATH_CHARS];
    struct model m = model_make();
    struct spillway_options options = library_options(library_store(state, path), HOST);
    struct model changed = m;
    spillway *self = model_open(&m, &options);
    expect_refusal(&m, TENSORS, &options, SPILLWAY_ERROR_BUSY, "in use");
    spillway_close(self);
    changed.name[2] = "new name";
    expect_refusal(&changed, TENSORS, &options, SPILLWAY_ERROR_ARGUMENT, "'grain' and none of the name 'new name'");
    changed = m;
    changed.count[1] = 6;
    expect_refusal(&changed, TENSORS, &options, SPILLWAY_ERROR_ARGUMENT, "'seven' has 6 elements, and 7 in");
    expect_refusal(&m, TENSORS - 1, &options, SPILLWAY_ERROR_ARGUMENT, "the state of a tensor 'fp16.weight' of 40000");
    self = model_describe(&m, &options, NULL);
    struct spillway_tensor more = model_tensor(&m, 0);
    more.name = "more";
    library_must(spillway_add(self, &more, NULL), self, "add");
    expect(spillway_open(self), self, SPILLWAY_ERROR_ARGUMENT, "no tensor 'more': it was added");
    spillway_close(self);
    options.state = SPILLWAY_STATE_8BIT;
    expect_refusal(&m, TENSORS, &options, SPILLWAY_ERROR_ARGUMENT, "its state in fp32, and state 8bit was asked for");
    options.state = SPILLWAY_STATE_FP32;
    options.host_memory_bytes = 1 << 16;
    expect_refusal(&m, TENSORS, &options, SPILLWAY_ERROR_BUDGET, "host_memory of 64.00 KiB is too small");
    options.accumulate = 1;
    expect_refusal(&m, TENSORS, &options, SPILLWAY_ERROR_BUDGET, "host_memory of 64.00 KiB is too small");
    options.accumulate = 0;
    options.host_memory_bytes = HOST;
    self = model_open(&m, &options);
    assert_int_equal(spillway_last_step(self), 0);
    spillway_close(self);
    model_free(&m);
}

static void other_folders_are_refused(void **state) {
    char path[SUPPORT_PATH_CHARS], file[SUPPORT_PATH_CHARS];
    struct model m = model_make();
    struct spillway_options options = library_options(library_store(state, path), HOST);
    assert_int_equal(mkdir(path, 0700), 0);
    support_write(state, "store/other", "x", 1, file);
    expect_refusal(&m, TENSORS, &options, SPILLWAY_ERROR_ARGUMENT, "not empty");
    unlink(file);
    support_write(state, "store/tensors.json", "{", 1, file);
    expect_refusal(&m, TENSORS, &options, SPILLWAY_ERROR_CORRUPT, "tensors.json");
    unlink(file);
    options.store = support_path(state, "none/store", file);
    expect_refusal(&m, TENSORS, &options, SPILLWAY_ERROR_IO, "none/store");
    model_free(&m);
}

/* The drive has no room: nothing is left, and a smaller store can be made there. */
static void a_full_drive_is_an_error(void **state) {
    char path[SUPPORT_PATH_CHARS];
    struct statvfs drive;
    struct model m = model_make();
    struct spillway_options options = library_options(library_store(state, path), HOST);
    assert_int_equal(statvfs(((struct support_folder *)*state)->path, &drive), 0);
    const int64_t free_bytes = (int64_t)drive.f_bavail * (int64_t)drive.f_frsize;
    struct spillway_tensor huge = SPILLWAY_TENSOR_INIT;
    huge.name = "huge";
    huge.count = free_bytes / 12;
    huge.weights = mmap(NULL, (size_t)huge.count * sizeof(float), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (huge.weights == MAP_FAILED)
        skip();
    spillway *self = NULL;
    library_must(spillway_create(&options, &self), NULL, "create");
    library_must(spillway_add(self, &huge, NULL), self, "add");
    expect(spillway_open(self), self, SPILLWAY_ERROR_SPACE, "store");
    expect(spillway_open(self), self, SPILLWAY_ERROR_ARGUMENT, "can only be closed");
    spillway_close(self);
    munmap(huge.weights, (size_t)huge.count * sizeof(float));
    self = model_open(&m, &options);
    spillway_close(self);
    model_free(&m);
}

/* A child process has the handle, and not the threads behind it. */
static void a_fork_is_refused(void **state) {
    char path[SUPPORT_PATH_CHARS];
    struct model m = model_make();
    const struct spillway_options options = library_options(library_store(state, path), HOST);
    const struct spillway_rates rates = SPILLWAY_RATES_INIT;
    spillway *self = model_open(&m, &options);
    int status;
    model_gradients(&m, 1);
    model_hand_in(&m, self, SPILLWAY_SET);
    const pid_t child = fork();
    if (child == 0) {
        const bool refused = spillway_step(self, &rates, NULL) == SPILLWAY_ERROR_ARGUMENT &&
                             strstr(spillway_error(self), "fork") != NULL;
        spillway_close(self);
        _exit(refused ? 0 : 1);
    }
    assert_true(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    library_must(spillway_step(self, &rates, NULL), self, "step");
    spillway_close(self);
    model_free(&m);
}

static void count_line(void *context, int is_warning, const char *line) {
    (void)line;
    *(int *)context += is_warning != 0;
}

/* A store whose label is damaged is mended with a warning, which goes to the listener and not to standard error. */
static void messages_go_to_the_listener(void **state) {
    char path[SUPPORT_PATH_CHARS], file[SUPPORT_PATH_CHARS];
    struct model m = model_make();
    const struct spillway_options options = library_options(library_store(state, path), HOST);
    int warnings = 0;
    spillway_close(model_open(&m, &options));
    FILE *store = fopen(support_path(state, "store/store.spillway", file), "r+b");
    assert_non_null(store);
    assert_int_equal(fseek(store, 40, SEEK_SET), 0);
    assert_int_equal(fputc(0xff, store), 0xff);
    assert_int_equal(fclose(store), 0);
    spillway_set_log(count_line, &warnings);
    spillway_close(model_open(&m, &options));
    spillway_set_log(NULL, NULL);
    assert_true(warnings > 0);
    model_free(&m);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, support_make_folder, library_remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(options_are_checked),
        IN_FOLDER(tensors_are_checked),
        IN_FOLDER(steps_are_checked),
        IN_FOLDER(zeros_stand_for_missing_gradients),
        IN_FOLDER(other_tensors_are_refused_by_name),
        IN_FOLDER(other_folders_are_refused),
        IN_FOLDER(a_full_drive_is_an_error),
        IN_FOLDER(a_fork_is_refused),
        IN_FOLDER(messages_go_to_the_listener),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
