/* Refusals of the library: their words, and that they lose nothing. */
#include "core/machine.h"
#include "tests/library/support.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
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
    options.host_memory_bytes = UINT64_MAX;
    expect(spillway_create(&options, &self), NULL, SPILLWAY_ERROR_ARGUMENT, "which is no amount of memory");
    options = library_options(path, HOST);
    options.state = 3;
    expect(spillway_create(&options, &self), NULL, SPILLWAY_ERROR_ARGUMENT, "state 3");
    options = library_options(path, HOST);
    options.threads = -1;
    expect(spillway_create(&options, &self), NULL, SPILLWAY_ERROR_ARGUMENT, "threads");
    expect(spillway_create(&options, NULL), NULL, SPILLWAY_ERROR_ARGUMENT, "out is NULL");
    expect(spillway_create(NULL, &self), NULL, SPILLWAY_ERROR_ARGUMENT, "SPILLWAY_OPTIONS_INIT");
    expect(spillway_open(NULL), NULL, SPILLWAY_ERROR_ARGUMENT, "the handle is NULL");
    expect(spillway_step(NULL, NULL, NULL), NULL, SPILLWAY_ERROR_ARGUMENT, "the handle is NULL");
    assert_int_equal(spillway_last_step(NULL), -1);
    assert_string_equal(spillway_note(NULL), "");
    spillway_close(NULL);
}

/* Programs that were built with a later header have longer structs. What they do not ask for is no reason to refuse. */
static void structs_of_later_versions_are_taken(void **state) {
    char path[SUPPORT_PATH_CHARS];
    struct model m = model_make();
    struct {
        struct spillway_options options;
        uint64_t more;
    } later = {library_options(library_store(state, path), HOST), 0};
    struct {
        struct spillway_result result;
        uint64_t more;
    } result = {SPILLWAY_RESULT_INIT, 7};
    const struct spillway_rates rates = SPILLWAY_RATES_INIT;
    spillway *self;
    later.options.size = sizeof later;
    result.result.size = sizeof result;
    later.more = 1;
    expect(spillway_create(&later.options, &self), NULL, SPILLWAY_ERROR_ARGUMENT, "a member of a later version is set");
    later.more = 0;
    later.options.threads = 1 << 30;
    self = model_open(&m, &later.options);
    model_gradients(&m, 1);
    model_hand_in(&m, self, SPILLWAY_SET);
    library_must(spillway_step(self, &rates, &result.result), self, "step");
    assert_int_equal(result.result.size, sizeof result);
    assert_int_equal(result.result.step, 1);
    assert_int_equal(result.more, 7);
    result.result.size = sizeof result.result - 8;
    expect(spillway_step(self, &rates, &result.result), self, SPILLWAY_ERROR_ARGUMENT, "SPILLWAY_RESULT_INIT");
    spillway_close(self);
    model_free(&m);
}

/* Jansson's allocator is that of the whole process. */
static void the_allocator_of_json_stays(void **state) {
    json_malloc_t allocate;
    json_free_t release;
    (void)state;
    json_get_alloc_funcs(&allocate, &release);
    assert_true(allocate == malloc && release == free);
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
    bad.name = "a\xff";
    expect(spillway_add(self, &bad, NULL), self, SPILLWAY_ERROR_ARGUMENT, "is not UTF-8");
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
    bad.eps = 0.0;
    expect(spillway_step(self, &bad, NULL), self, SPILLWAY_ERROR_ARGUMENT, "eps");
    bad = good;
    bad.lr = 1e30;
    library_must(spillway_set_factors(self, 4, 1e30, 1), self, "factors");
    expect(spillway_step(self, &bad, NULL), self, SPILLWAY_ERROR_ARGUMENT, "lr_scale 1e+30 of 'large.weight'");
    library_must(spillway_set_factors(self, 4, 1.0, 1), self, "factors");
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
    options.missing_gradients = SPILLWAY_MISSING_ZERO;
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
    expect_refusal(&m, TENSORS, &options, SPILLWAY_ERROR_BUSY, "already open in this process");
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
    expect_refusal(&m, TENSORS, &options, SPILLWAY_ERROR_BUDGET, "host_memory_bytes, 64.00 KiB, is too small");
    options.host_memory_bytes = HOST;
    self = model_open(&m, &options);
    assert_int_equal(spillway_last_step(self), 0);
    spillway_close(self);
    model_free(&m);
}

/* Returns the bytes that a refusal asks for. */
static double needed_bytes(const spillway *self) {
    double number;
    char unit;
    const char *at = strstr(spillway_error(self), "at least ");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "at least %lf %ciB", &number, &unit), 2);
    return number * (unit == 'K' ? 0x1p10 : 0x1p20);
}

/* The refusal asks for what it takes, also where the sums of gradients alone exceed what is allowed. */
static void a_refused_budget_says_what_is_needed(void **state) {
    char path[SUPPORT_PATH_CHARS];
    struct model m = model_make();
    struct spillway_options options = library_options(library_store(state, path), 1 << 16);
    options.accumulate = 1;
    spillway *self = model_describe(&m, &options, NULL);
    expect(spillway_open(self), self, SPILLWAY_ERROR_BUDGET, "host_memory_bytes, 64.00 KiB, is too small");
    const double needed = needed_bytes(self);
    spillway_close(self);
    options.host_memory_bytes = (uint64_t)(0.98 * needed);
    expect_refusal(&m, TENSORS, &options, SPILLWAY_ERROR_BUDGET, "is too small");
    options.host_memory_bytes = (uint64_t)(1.02 * needed);
    spillway_close(model_open(&m, &options));
    model_free(&m);
}

/* Describes a tensor whose weights nobody reads, since the store is refused before. */
static spillway *describe_large(const struct spillway_options *options, int64_t count) {
    static float weight;
    struct spillway_tensor tensor = SPILLWAY_TENSOR_INIT;
    spillway *self;
    tensor.name = "large";
    tensor.count = count;
    tensor.weights = &weight;
    library_must(spillway_create(options, &self), NULL, "create");
    library_must(spillway_add(self, &tensor, NULL), self, "add");
    return self;
}

/* Sums of gradients that take more than half of the free memory, of which nothing is touched, make the library tell how
 * much it may take. */
static void a_budget_left_open_is_half_of_what_is_free(void **state) {
    char path[SUPPORT_PATH_CHARS], unit;
    double gib;
    struct sw_machine machine;
    struct spillway_options options = library_options(library_store(state, path), 0);
    options.accumulate = 1;
    assert_int_equal(sw_machine_read_memory(&machine), SW_OK);
    spillway *self = describe_large(&options, machine.available_bytes * 3 / 4 / (int64_t)sizeof(float));
    expect(spillway_open(self), self, SPILLWAY_ERROR_BUDGET, "host_memory_bytes, ");
    assert_int_equal(sscanf(strstr(spillway_error(self), "bytes, ") + 7, "%lf %ciB", &gib, &unit), 2);
    assert_int_equal(unit, 'G');
    assert_true(fabs(gib * 0x1p30 / (double)machine.available_bytes - 0.5) < 0.2);
    spillway_close(self);
}

/* The system would end a process that takes more than there is. */
static void more_memory_than_the_machine_has_is_refused(void **state) {
    char path[SUPPORT_PATH_CHARS];
    struct sw_machine machine;
    assert_int_equal(sw_machine_read_memory(&machine), SW_OK);
    const struct spillway_options options = library_options(library_store(state, path), INT64_C(1) << 59);
    spillway *self = describe_large(&options, machine.physical_bytes / 11);
    expect(spillway_open(self), self, SPILLWAY_ERROR_BUDGET, "and this machine allows ");
    spillway_close(self);
}

static void too_many_tensors_are_refused(void **state) {
    enum { MANY = 30000 };
    char path[SUPPORT_PATH_CHARS], name[SPILLWAY_NAME_CHARS];
    static float weight;
    const struct spillway_options options = library_options(library_store(state, path), HOST);
    spillway *self = NULL;
    library_must(spillway_create(&options, &self), NULL, "create");
    for (int t = 0; t < MANY; t++) {
        struct spillway_tensor tensor = SPILLWAY_TENSOR_INIT;
        snprintf(name, sizeof name, "%0250d", t);
        tensor.name = name;
        tensor.count = 1;
        tensor.weights = &weight;
        library_must(spillway_add(self, &tensor, NULL), self, "add");
    }
    expect(spillway_open(self), self, SPILLWAY_ERROR_ARGUMENT, "30000 tensors are too many");
    spillway_close(self);
}

static void other_folders_are_refused(void **state) {
    char path[SUPPORT_PATH_CHARS], file[SUPPORT_PATH_CHARS];
    struct model m = model_make();
    struct spillway_options options = library_options(library_store(state, path), HOST);
    assert_int_equal(mkdir(path, 0700), 0);
    support_write(state, "store/other", "x", 1, file);
    expect_refusal(&m, TENSORS, &options, SPILLWAY_ERROR_ARGUMENT, "not empty");
    unlink(file);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    support_write(state, "store/tensors.json", "{", 1, file);
    expect_refusal(&m, TENSORS, &options, SPILLWAY_ERROR_CORRUPT, "tensors.json");
    unlink(file);
    options.store = support_path(state, "none/store", file);
    expect_refusal(&m, TENSORS, &options, SPILLWAY_ERROR_IO, "none/store");
    model_free(&m);
}

/* A process that died within the first write of tensors.json leaves its lock and a partial file. */
static void what_a_death_leaves_is_no_obstacle(void **state) {
    char path[SUPPORT_PATH_CHARS], file[SUPPORT_PATH_CHARS];
    struct model m = model_make();
    const struct spillway_options options = library_options(library_store(state, path), HOST);
    assert_int_equal(mkdir(path, 0700), 0);
    support_write(state, "store/store.lock", "", 0, file);
    support_write(state, "store/tensors.json.partial", "{", 1, file);
    spillway_close(model_open(&m, &options));
    assert_int_equal(access(file, F_OK), -1);
    model_free(&m);
}

/* After a failure the folder has the lock's file alone. */
static void expect_nothing_left(void *const *state) {
    char path[SUPPORT_PATH_CHARS];
    assert_int_equal(unlink(support_path(state, "store/store.lock", path)), 0);
    if (rmdir(library_store(state, path)) != 0)
        fail_msg("%s: %s", path, strerror(errno));
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
    expect_nothing_left(state);
    munmap(huge.weights, (size_t)huge.count * sizeof(float));
    self = model_open(&m, &options);
    spillway_close(self);
    model_free(&m);
}

/* A limit on the size of files is an error, and not the end of the process, which SIGXFSZ would be. */
static void a_limit_on_files_is_an_error(void **state) {
    char path[SUPPORT_PATH_CHARS];
    struct model m = model_make();
    const struct spillway_options options = library_options(library_store(state, path), HOST);
    struct rlimit before, small;
    sigset_t pending;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 1 << 16;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    spillway *self = model_describe(&m, &options, NULL);
    const int status = spillway_open(self);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    expect(status, self, SPILLWAY_ERROR_SPACE, "too large");
    sigpending(&pending);
    assert_false(sigismember(&pending, SIGXFSZ));
    spillway_close(self);
    expect_nothing_left(state);
    model_free(&m);
}

/* A step whose store lost its name is not reported as committed, and closing gives it the name back. */
static void a_removed_store_is_no_commit(void **state) {
    char path[SUPPORT_PATH_CHARS], file[SUPPORT_PATH_CHARS];
    struct model m = model_make();
    const struct spillway_options options = library_options(library_store(state, path), HOST);
    const struct spillway_rates rates = SPILLWAY_RATES_INIT;
    spillway *self = model_open(&m, &options);
    model_gradients(&m, 1);
    model_hand_in(&m, self, SPILLWAY_SET);
    assert_int_equal(unlink(support_path(state, "store/store.spillway", file)), 0);
    expect(spillway_step(self, &rates, NULL), self, SPILLWAY_ERROR_IO, "store.spillway");
    spillway_close(self);
    self = model_open(&m, &options);
    assert_int_equal(spillway_last_step(self), 1);
    spillway_close(self);
    model_free(&m);
}

/* The program changes its directory while a store of a relative path is open. */
static void a_relative_path_stays_right(void **state) {
    char path[SUPPORT_PATH_CHARS], *before = getcwd(NULL, 0);
    struct model m = model_make();
    const struct spillway_options options = library_options("store", HOST);
    const struct spillway_rates rates = SPILLWAY_RATES_INIT;
    assert_non_null(before);
    assert_int_equal(chdir(((struct support_folder *)*state)->path), 0);
    spillway *self = model_open(&m, &options);
    assert_int_equal(chdir(before), 0);
    model_gradients(&m, 1);
    model_hand_in(&m, self, SPILLWAY_SET);
    library_must(spillway_step(self, &rates, NULL), self, "step");
    spillway_close(self);
    const struct spillway_options absolute = library_options(library_store(state, path), HOST);
    self = model_open(&m, &absolute);
    assert_int_equal(spillway_last_step(self), 1);
    spillway_close(self);
    free(before);
    model_free(&m);
}

/* A child process that lives on, such as a loader of data, does not keep its parent from opening the store again. */
static void a_child_does_not_keep_the_store(void **state) {
    char path[SUPPORT_PATH_CHARS], byte;
    struct model m = model_make();
    const struct spillway_options options = library_options(library_store(state, path), HOST);
    int ends[2], status;
    spillway *self = model_open(&m, &options);
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        close(ends[1]);
        _exit((int)read(ends[0], &byte, 1));
    }
    close(ends[0]);
    spillway_close(self);
    spillway_close(model_open(&m, &options));
    close(ends[1]);
    assert_true(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
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
    const int damaged = fgetc(store) ^ 0xff;
    assert_int_equal(fseek(store, 40, SEEK_SET), 0);
    assert_int_equal(fputc(damaged, store), damaged);
    assert_int_equal(fclose(store), 0);
    spillway_set_log(count_line, &warnings);
    spillway_close(model_open(&m, &options));
    spillway_set_log(NULL, NULL);
    assert_true(warnings > 0);
    model_free(&m);
}

/* The record of a commit is damaged after the commit: the step before it is opened, and the listener hears of the loss.
 */
static void a_lost_commit_is_told(void **state) {
    static const char record[] = "{\"step\":2";
    char path[SUPPORT_PATH_CHARS], file[SUPPORT_PATH_CHARS];
    struct model m = model_make();
    struct stat info;
    const struct spillway_options options = library_options(library_store(state, path), HOST);
    const struct spillway_rates rates = SPILLWAY_RATES_INIT;
    int warnings = 0;
    spillway *self = model_open(&m, &options);
    for (int64_t step = 1; step <= 2; step++) {
        model_gradients(&m, step);
        model_hand_in(&m, self, SPILLWAY_SET);
        library_must(spillway_step(self, &rates, NULL), self, "step");
    }
    spillway_close(self);
    const int fd = open(support_path(state, "store/store.spillway", file), O_RDWR);
    assert_int_equal(fstat(fd, &info), 0);
    char *bytes = mmap(NULL, (size_t)info.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(bytes != MAP_FAILED);
    char *at = memmem(bytes, (size_t)info.st_size, record, strlen(record));
    assert_non_null(at);
    at[strlen(record) - 1] = '3';
    munmap(bytes, (size_t)info.st_size);
    close(fd);
    spillway_set_log(count_line, &warnings);
    self = model_open(&m, &options);
    spillway_set_log(NULL, NULL);
    assert_int_equal(spillway_last_step(self), 1);
    assert_int_equal(warnings, 1);
    spillway_close(self);
    model_free(&m);
}

/* A store whose tensors lie elsewhere than they would be put now is refused, and not read as other tensors. */
static void another_layout_is_refused(void **state) {
    char path[SUPPORT_PATH_CHARS], file[SUPPORT_PATH_CHARS];
    struct model m = model_make();
    const struct spillway_options options = library_options(library_store(state, path), HOST);
    spillway_close(model_open(&m, &options));
    json_t *record = json_load_file(support_path(state, "store/tensors.json", file), 0, NULL);
    json_t *entry = json_array_get(json_object_get(record, "tensors"), 1);
    assert_non_null(entry);
    assert_int_equal(json_object_del(record, "checksum"), 0);
    assert_int_equal(json_object_set_new(entry, "offset", json_integer(1)), 0);
    assert_int_equal(json_dump_file(record, file, JSON_INDENT(2)), 0);
    json_decref(record);
    expect_refusal(&m, TENSORS, &options, SPILLWAY_ERROR_UNSUPPORTED, "the state of 'seven' lies elsewhere");
    model_free(&m);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, support_make_folder, library_remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(options_are_checked),
        IN_FOLDER(structs_of_later_versions_are_taken),
        cmocka_unit_test(the_allocator_of_json_stays),
        IN_FOLDER(tensors_are_checked),
        IN_FOLDER(steps_are_checked),
        IN_FOLDER(zeros_stand_for_missing_gradients),
        IN_FOLDER(other_tensors_are_refused_by_name),
        IN_FOLDER(a_refused_budget_says_what_is_needed),
        IN_FOLDER(a_budget_left_open_is_half_of_what_is_free),
        IN_FOLDER(more_memory_than_the_machine_has_is_refused),
        IN_FOLDER(too_many_tensors_are_refused),
        IN_FOLDER(other_folders_are_refused),
        IN_FOLDER(what_a_death_leaves_is_no_obstacle),
        IN_FOLDER(a_full_drive_is_an_error),
        IN_FOLDER(a_limit_on_files_is_an_error),
        IN_FOLDER(a_removed_store_is_no_commit),
        IN_FOLDER(a_relative_path_stays_right),
        IN_FOLDER(a_child_does_not_keep_the_store),
        IN_FOLDER(a_fork_is_refused),
        IN_FOLDER(messages_go_to_the_listener),
        IN_FOLDER(a_lost_commit_is_told),
        IN_FOLDER(another_layout_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
