/* Several processes on one store, here as threads that gather by shared memory: the bits of one process, whatever their
 * number, which a resume may change; a process that is a step ahead; and failures of each exchange. */
#include "tests/library/reference.h"

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_PROCESSES = 4, STEPS = 6, MESSAGE_CHARS = 512 };
#define ON_HOST (INT64_C(256) << 20)
/* A budget in which the state lives on the drive alone. */
#define ON_DRIVE(ranks) ((INT64_C(3328) + 2048 * (ranks)) << 10)

/* A job of processes, and the memory by which they gather. */
struct job {
    int ranks;
    const char *store, *other_store; /* other_store: of the last process; NULL: the same */
    int64_t host_memory_bytes;
    int64_t steps; /* the last step that it runs */
    bool overlaps;
    int64_t fails_at; /* the gather, counted from 0, that fails on all processes; -1: none */
    void *data[MOST_PROCESSES];
    pthread_barrier_t barrier;
    struct process {
        struct job *job;
        int rank, status;
        int64_t gathers, from_step;
        struct model model;
        double norm[STEPS + 1];
        float *state[STATE_PARTS][TENSORS];
        bool committed;
        int64_t on_host; /* bytes of the state in host memory */
        char message[MESSAGE_CHARS];
    } process[MOST_PROCESSES];
};

static int gather(void *context, void *data, const uint64_t *bounds) {
    struct process *self = context;
    struct job *job = self->job;
    library_gather(&job->barrier, job->data, job->ranks, self->rank, data, bounds);
    return self->gathers++ == job->fails_at ? 5 : 0;
}

static struct spillway_options options_of(const struct job *job, struct process *self) {
    const bool other = job->other_store != NULL && self->rank + 1 == job->ranks;
    struct spillway_options options = library_options(other ? job->other_store : job->store, job->host_memory_bytes);
    options.rank = self->rank;
    options.ranks = job->ranks;
    options.gather = gather;
    options.gather_context = self;
    options.save_every = 2;
    return options;
}

static int describe(struct process *self, spillway **out) {
    const struct spillway_options options = options_of(self->job, self);
    int status = spillway_create(&options, out);
    for (int t = 0; t < TENSORS && status == SPILLWAY_OK; t++) {
        const struct spillway_tensor tensor = model_tensor(&self->model, t);
        status = spillway_add(*out, &tensor, NULL);
    }
    return status;
}

static int train(struct process *self, spillway *store) {
    int status = SPILLWAY_OK;
    struct spillway_result result = SPILLWAY_RESULT_INIT;
    while (status == SPILLWAY_OK && spillway_last_step(store) < self->job->steps) {
        const int64_t step = spillway_last_step(store) + 1;
        const struct spillway_rates rates = rates_of(step);
        model_gradients(&self->model, step);
        for (int t = 0; t < TENSORS && status == SPILLWAY_OK; t++)
            status = spillway_gradient(store, t, (int)self->model.type[t], self->model.gradients[t], SPILLWAY_SET);
        if (status == SPILLWAY_OK && self->job->overlaps) {
            status = spillway_step_start(store, &rates, NULL);
            if (status == SPILLWAY_OK && step % 2 == 0)
                status = spillway_wait_tensor(store, (int64_t)(step % TENSORS));
            if (status == SPILLWAY_OK)
                status = spillway_wait(store, &result);
        } else if (status == SPILLWAY_OK) {
            status = spillway_step(store, &rates, &result);
        }
        self->norm[step] = result.grad_norm;
        self->committed = result.committed != 0;
    }
    return status;
}

static int read_state(struct process *self, spillway *store) {
    int status = SPILLWAY_OK;
    for (int part = 0; part < STATE_PARTS; part++)
        for (int t = 0; t < TENSORS && status == SPILLWAY_OK; t++)
            status = spillway_read(store, t, part, 0, self->model.count[t], self->state[part][t]);
    return status;
}

static void *run_process(void *context) {
    struct process *self = context;
    struct spillway_usage usage = SPILLWAY_USAGE_INIT;
    spillway *store = NULL;
    self->status = describe(self, &store);
    if (self->status == SPILLWAY_OK)
        self->status = spillway_open(store);
    self->from_step = spillway_last_step(store);
    if (self->status == SPILLWAY_OK)
        self->status = train(self, store);
    if (self->status == SPILLWAY_OK)
        self->status = spillway_save(store);
    if (self->status == SPILLWAY_OK)
        self->status = read_state(self, store);
    if (self->status == SPILLWAY_OK)
        self->status = spillway_get_usage(store, &usage);
    self->on_host = usage.state_host_bytes;
    snprintf(self->message, sizeof self->message, "%s", spillway_error(store));
    spillway_close(store);
    return NULL;
}

/* Runs the processes of a job. Each begins with weights of its own, which only process 0 shares with the reference: a
 * store takes its own from each process. */
static void run_job(struct job *job) {
    pthread_t thread[MOST_PROCESSES];
    assert_int_equal(pthread_barrier_init(&job->barrier, NULL, (unsigned)job->ranks), 0);
    for (int rank = 0; rank < job->ranks; rank++) {
        struct process *self = &job->process[rank];
        *self = (struct process){.job = job, .rank = rank, .model = model_make()};
        for (int part = 0; part < STATE_PARTS; part++)
            for (int t = 0; t < TENSORS; t++) {
                self->state[part][t] = calloc((size_t)self->model.count[t], sizeof(float));
                assert_non_null(self->state[part][t]);
            }
        assert_int_equal(pthread_create(&thread[rank], NULL, run_process, self), 0);
    }
    for (int rank = 0; rank < job->ranks; rank++)
        assert_int_equal(pthread_join(thread[rank], NULL), 0);
    pthread_barrier_destroy(&job->barrier);
}

static void free_job(struct job *job) {
    for (int rank = 0; rank < job->ranks; rank++) {
        for (int part = 0; part < STATE_PARTS; part++)
            for (int t = 0; t < TENSORS; t++)
                free(job->process[rank].state[part][t]);
        model_free(&job->process[rank].model);
    }
}

static void expect_well(const struct job *job) {
    for (int rank = 0; rank < job->ranks; rank++)
        if (job->process[rank].status != SPILLWAY_OK)
            fail_msg("process %d of %d: status %d (%s)", rank, job->ranks, job->process[rank].status,
                     job->process[rank].message);
}

/* Runs a job, from a step on, beside the reference, and compares all processes' weights, norms and state with it. */
static void run_beside(struct job *job, struct reference *r, struct model *m, int64_t from_step) {
    double norm[STEPS + 1];
    run_job(job);
    expect_well(job);
    for (int64_t step = from_step + 1; step <= job->steps; step++) {
        const struct spillway_rates rates = rates_of(step);
        model_gradients(m, step);
        norm[step] = reference_step(r, m, &rates);
        for (int t = 0; t < TENSORS; t++)
            for (int64_t i = 0; i < m->count[t]; i++)
                sw_dtype_store(m->type[t], m->weights[t], i, r->weights[r->offset[t] + i]);
    }
    for (int rank = 0; rank < job->ranks; rank++) {
        const struct process *self = &job->process[rank];
        assert_int_equal(self->from_step, from_step);
        expect_weights(r, &self->model, job->steps);
        for (int64_t step = from_step + 1; step <= job->steps; step++)
            assert_memory_equal(&self->norm[step], &norm[step], sizeof norm[step]);
        for (int part = 0; part < STATE_PARTS; part++)
            for (int t = 0; t < TENSORS; t++)
                expect_part(r, m, t, part, self->state[part][t]);
    }
    free_job(job);
}

static void has_the_bits_of_one_process(void **state) {
    char path[SUPPORT_PATH_CHARS];
    for (int ranks = 2; ranks <= MOST_PROCESSES; ranks++)
        for (int on_drive = 0; on_drive < 2; on_drive++) {
            struct model m = model_make();
            struct reference r = reference_open(&m);
            struct job job = {.ranks = ranks,
                              .store = library_store(state, path),
                              .host_memory_bytes = on_drive ? ON_DRIVE(ranks) : ON_HOST,
                              .steps = STEPS,
                              .overlaps = ranks == 3,
                              .fails_at = -1};
            run_beside(&job, &r, &m, 0);
            for (int rank = 0; rank < ranks; rank++)
                assert_true((job.process[rank].on_host == 0) == (on_drive != 0) && job.process[rank].committed);
            reference_close(&r);
            model_free(&m);
            library_remove_stores(state);
        }
}

/* One store, opened by another number of processes again and again. */
static void another_number_goes_on(void **state) {
    static const int numbers[] = {2, 3, 1, 4, 2, 2};
    enum { LEFT_OPEN = 4 }; /* the one whose budget is half of what is free */
    char path[SUPPORT_PATH_CHARS], other[SUPPORT_PATH_CHARS];
    struct model m = model_make();
    struct reference r = reference_open(&m);
    for (int i = 0; i < (int)(sizeof numbers / sizeof numbers[0]); i++) {
        struct job job = {.ranks = numbers[i],
                          .store = library_store(state, path),
                          .host_memory_bytes = i == LEFT_OPEN ? 0
                                               : i % 2 == 0   ? ON_HOST
                                                              : ON_DRIVE(numbers[i]),
                          .steps = i + 1,
                          .fails_at = -1};
        run_beside(&job, &r, &m, i);
        /* Nothing is left of the set before. */
        for (int before = 0; before < i; before++)
            if (numbers[before] != numbers[i]) {
                char name[64];
                snprintf(name, sizeof name, "store/rank-0-of-%d", numbers[before]);
                const char *left = numbers[before] == 1 ? "store/store.spillway" : name;
                assert_int_equal(access(support_path(state, left, other), F_OK), -1);
            }
    }
    reference_close(&r);
    model_free(&m);
    library_remove_stores(state);
}

/* Every exchange of a change from two processes to three fails once. Whatever number of processes comes next finds the
 * state whole. */
static void a_failed_change_loses_nothing(void **state) {
    char path[SUPPORT_PATH_CHARS];
    const char *store = library_store(state, path);
    bool ended = false;
    int64_t failures = 0;
    for (int64_t at = 0; !ended; at++) {
        struct model m = model_make();
        struct reference r = reference_open(&m);
        struct job two = {.ranks = 2, .store = store, .host_memory_bytes = ON_HOST, .steps = 2, .fails_at = -1};
        run_beside(&two, &r, &m, 0);
        struct job three = {.ranks = 3, .store = store, .host_memory_bytes = ON_HOST, .steps = 2, .fails_at = at};
        run_job(&three);
        ended = three.process[0].from_step == 2;
        for (int rank = 0; rank < 3 && !ended; rank++)
            if (three.process[rank].status != SPILLWAY_ERROR_PEER ||
                strstr(three.process[rank].message, "gather has returned 5") == NULL)
                fail_msg("exchange %lld, process %d: status %d (%s)", (long long)at, rank, three.process[rank].status,
                         three.process[rank].message);
        failures += !ended;
        free_job(&three);
        struct job next = {.ranks = at % 3 == 0 ? 3 : (int)(at % 3),
                           .store = store,
                           .host_memory_bytes = ON_HOST,
                           .steps = 3,
                           .fails_at = -1};
        run_beside(&next, &r, &m, 2);
        reference_close(&r);
        model_free(&m);
        library_remove_stores(state);
    }
    assert_true(failures > 8);
}

static void copy_file(const char *from, const char *to) {
    char command[2 * SUPPORT_PATH_CHARS + 16];
    snprintf(command, sizeof command, "cp '%s' '%s'", from, to);
    assert_int_equal(system(command), 0);
}

/* A crash may leave one process's store a step behind: all go on from there. */
static void the_newest_common_step_is_opened(void **state) {
    char path[SUPPORT_PATH_CHARS], of_one[SUPPORT_PATH_CHARS], kept[SUPPORT_PATH_CHARS];
    struct model m = model_make(), n = model_make();
    struct reference r = reference_open(&m), s = reference_open(&n);
    struct job job = {
        .ranks = 2, .store = library_store(state, path), .host_memory_bytes = ON_DRIVE(2), .steps = 2, .fails_at = -1};
    run_beside(&job, &r, &m, 0);
    assert_int_equal(job.process[0].on_host, 0);
    support_path(state, "store/rank-1-of-2/store.spillway", of_one);
    copy_file(of_one, support_path(state, "kept", kept));
    job.steps = 3;
    run_beside(&job, &r, &m, 2);
    copy_file(kept, of_one);
    unlink(kept);
    job.steps = 2;
    run_job(&job);
    expect_well(&job);
    assert_int_equal(job.process[0].from_step, 2);
    free_job(&job);
    job.steps = 5;
    for (int64_t step = 1; step <= 2; step++) {
        const struct spillway_rates rates = rates_of(step);
        model_gradients(&n, step);
        reference_step(&s, &n, &rates);
        for (int t = 0; t < TENSORS; t++)
            for (int64_t i = 0; i < n.count[t]; i++)
                sw_dtype_store(n.type[t], n.weights[t], i, s.weights[s.offset[t] + i]);
    }
    run_beside(&job, &s, &n, 2);
    reference_close(&r);
    reference_close(&s);
    model_free(&m);
    model_free(&n);
    library_remove_stores(state);
}

static void processes_are_checked(void **state) {
    char path[SUPPORT_PATH_CHARS];
    spillway *self;
    struct spillway_options options = library_options(library_store(state, path), ON_HOST);
    options.ranks = 2;
    assert_int_equal(spillway_create(&options, &self), SPILLWAY_ERROR_ARGUMENT);
    assert_non_null(strstr(spillway_error(NULL), "`gather` is not set"));
    options.gather = gather;
    options.rank = 2;
    assert_int_equal(spillway_create(&options, &self), SPILLWAY_ERROR_ARGUMENT);
    assert_non_null(strstr(spillway_error(NULL), "rank 2 is not the number of one of 2 processes"));
    options.ranks = 0;
    assert_int_equal(spillway_create(&options, &self), SPILLWAY_ERROR_ARGUMENT);
}

/* A thread that opens a store that differs from the other's, or steps without a gradient. */
static void *differ(void *context) {
    struct process *self = context;
    spillway *store = NULL;
    struct spillway_options options = options_of(self->job, self);
    const struct spillway_rates rates = SPILLWAY_RATES_INIT;
    const bool other_options = self->job->steps == 0;
    options.save_every += other_options && self->rank == 1;
    self->status = spillway_create(&options, &store);
    for (int t = 0; t < TENSORS && self->status == SPILLWAY_OK; t++) {
        const struct spillway_tensor tensor = model_tensor(&self->model, t);
        self->status = spillway_add(store, &tensor, NULL);
    }
    if (self->status == SPILLWAY_OK)
        self->status = spillway_open(store);
    for (int attempt = 0; attempt < 2 && !other_options && (self->status == SPILLWAY_OK || attempt > 0); attempt++) {
        model_gradients(&self->model, 1);
        for (int t = 0; t < TENSORS; t++)
            if (attempt > 0 || self->rank == 0 || t != 2)
                (void)spillway_gradient(store, t, (int)self->model.type[t], self->model.gradients[t], SPILLWAY_SET);
        self->status = spillway_step(store, &rates, NULL);
        if (attempt == 0) {
            snprintf(self->message, sizeof self->message, "%s", spillway_error(store));
            self->norm[0] = self->status;
        }
    }
    if (other_options)
        snprintf(self->message, sizeof self->message, "%s", spillway_error(store));
    spillway_close(store);
    return NULL;
}

static void differ_in(struct job *job) {
    pthread_t thread[2];
    assert_int_equal(pthread_barrier_init(&job->barrier, NULL, 2), 0);
    for (int rank = 0; rank < 2; rank++) {
        job->process[rank] = (struct process){.job = job, .rank = rank, .model = model_make()};
        assert_int_equal(pthread_create(&thread[rank], NULL, differ, &job->process[rank]), 0);
    }
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(pthread_join(thread[rank], NULL), 0);
        model_free(&job->process[rank].model);
    }
    pthread_barrier_destroy(&job->barrier);
}

/* Differences are refused in all processes, and what one refuses changes nothing in the others. */
/* As on machines whose folders have one name, and are not one folder. */
static void folders_that_are_not_shared_are_refused(void **state) {
    char path[SUPPORT_PATH_CHARS], other[SUPPORT_PATH_CHARS];
    struct job job = {.ranks = 2, .store = library_store(state, path), .host_memory_bytes = ON_HOST, .fails_at = -1};
    snprintf(other, sizeof other, "%.*s-2", (int)(sizeof other - 3), path);
    job.other_store = other;
    assert_int_equal(mkdir(other, 0700), 0);
    run_job(&job);
    assert_int_equal(job.process[1].status, SPILLWAY_ERROR_ARGUMENT);
    assert_non_null(strstr(job.process[1].message, "process 1 does not find the"));
    free_job(&job);
    job.other_store = NULL;
    job.steps = 1;
    run_job(&job);
    assert_int_equal(job.process[1].status, SPILLWAY_OK);
    free_job(&job);
    job.other_store = other;
    run_job(&job);
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(job.process[rank].status, SPILLWAY_ERROR_ARGUMENT);
        assert_non_null(strstr(job.process[rank].message, "rank 1 has another store in its folder than rank 0"));
    }
    free_job(&job);
    assert_int_equal(rmdir(other), 0);
    library_remove_stores(state);
}

static void differences_are_refused(void **state) {
    char path[SUPPORT_PATH_CHARS];
    struct job job = {.ranks = 2, .store = library_store(state, path), .host_memory_bytes = ON_HOST, .fails_at = -1};
    differ_in(&job);
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(job.process[rank].status, SPILLWAY_ERROR_ARGUMENT);
        assert_non_null(strstr(job.process[rank].message, "rank 1 has another set of options than rank 0"));
    }
    job.steps = 1;
    differ_in(&job);
    assert_non_null(strstr(job.process[1].message, "'grain' has no gradient in step 1"));
    assert_non_null(strstr(job.process[0].message, "process 1 failed: 'grain' has no gradient in step 1"));
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal((int)job.process[rank].norm[0], SPILLWAY_ERROR_ARGUMENT);
        assert_int_equal(job.process[rank].status, SPILLWAY_OK);
    }
    library_remove_stores(state);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, support_make_folder, support_remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(has_the_bits_of_one_process),
        IN_FOLDER(another_number_goes_on),
        IN_FOLDER(a_failed_change_loses_nothing),
        IN_FOLDER(the_newest_common_step_is_opened),
        IN_FOLDER(processes_are_checked),
        IN_FOLDER(differences_are_refused),
        IN_FOLDER(folders_that_are_not_shared_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
