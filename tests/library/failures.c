/* Errors in one of several processes, here threads that gather by shared memory: in each kind of call, the others
 * return what that process says, and the store goes on. And processes that end between calls, which only `gather` knows
 * of. */
#include "tests/library/support.h"

#include <pthread.h>
#include <unistd.h>

enum { PROCESSES = 3, FAILING = 1, MESSAGE_CHARS = 1024 };
#define ON_HOST (INT64_C(256) << 20)
/* The state lives on the drive alone. */
#define ON_DRIVE(sharded) ((INT64_C(3328) + ((sharded) ? 1024 : 2048) * PROCESSES) << 10)

/* The call in which process FAILING fails, or before which it ends. */
enum call { STEP, WAIT, TENSOR, SAVE, READ, CLOSE, AGREE, CALLS };
enum way { LOSES_ITS_FILE, ENDS };

struct job {
    const char *store;
    enum call call;
    enum way way;
    bool sharded, goes_on; /* goes_on: nothing fails */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int arrived;
    int64_t meetings;
    bool ended; /* a process has ended without a word */
    void *data[PROCESSES];
    struct process {
        struct job *job;
        int rank, status;
        int64_t from_step;
        struct model model;
        char message[MESSAGE_CHARS];
    } process[PROCESSES];
};

/* Waits for all processes. Returns false if one has ended. */
static bool meet(struct job *job) {
    pthread_mutex_lock(&job->mutex);
    const int64_t number = job->meetings;
    if (++job->arrived == PROCESSES) {
        job->arrived = 0;
        job->meetings++;
        pthread_cond_broadcast(&job->changed);
    }
    while (job->meetings == number && !job->ended)
        pthread_cond_wait(&job->changed, &job->mutex);
    const bool met = job->meetings > number;
    pthread_mutex_unlock(&job->mutex);
    return met;
}

static int gather(void *context, void *data, const uint64_t *bounds) {
    struct process *self = context;
    struct job *job = self->job;
    job->data[self->rank] = data;
    if (!meet(job))
        return 7;
    for (int i = 0; i < PROCESSES; i++)
        if (i != self->rank)
            memcpy((char *)data + bounds[i], (const char *)job->data[i] + bounds[i], bounds[i + 1] - bounds[i]);
    return meet(job) ? 0 : 7;
}

static int open_store(struct process *self, spillway **out) {
    const int64_t bytes = self->job->call == SAVE ? ON_HOST : ON_DRIVE(self->job->sharded);
    struct spillway_options options = library_options(self->job->store, bytes);
    options.save_every = 2;
    options.rank = self->rank;
    options.ranks = PROCESSES;
    options.gather = gather;
    options.gather_context = self;
    options.sharded = self->job->sharded;
    int status = spillway_create(&options, out);
    for (int t = 0; t < TENSORS && status == SPILLWAY_OK; t++) {
        const struct spillway_tensor tensor = model_tensor(&self->model, t);
        status = spillway_add(*out, &tensor, NULL);
    }
    return status == SPILLWAY_OK ? spillway_open(*out) : status;
}

static int begin_step(struct process *self, spillway *store, bool whole) {
    struct spillway_rates rates = SPILLWAY_RATES_INIT;
    model_gradients(&self->model, 1);
    model_hand_in(&self->model, store, SPILLWAY_SET);
    return whole ? spillway_step(store, &rates, NULL) : spillway_step_start(store, &rates, NULL);
}

static void place_of(const struct process *self, char path[SUPPORT_PATH_CHARS]) {
    snprintf(path, SUPPORT_PATH_CHARS, "%.*s/rank-%d-of-%d/store.spillway", SUPPORT_PATH_CHARS - 64, self->job->store,
             self->rank, PROCESSES);
}

/* Keeps a copy of this process's file, and takes its content, or for a save its name. */
static void lose_file(const struct process *self) {
    char path[SUPPORT_PATH_CHARS], command[3 * SUPPORT_PATH_CHARS];
    place_of(self, path);
    snprintf(command, sizeof command, "cp '%s' '%s.kept'", path, path);
    assert_int_equal(system(command), 0);
    if (self->job->call == SAVE) {
        assert_int_equal(unlink(path), 0);
        assert_int_equal(mkdir(path, 0700), 0);
    } else {
        assert_int_equal(truncate(path, 0), 0);
    }
}

static void give_file_back(const struct process *self) {
    char path[SUPPORT_PATH_CHARS], kept[SUPPORT_PATH_CHARS + 8];
    place_of(self, path);
    snprintf(kept, sizeof kept, "%s.kept", path);
    if (access(kept, F_OK) != 0)
        return;
    rmdir(path);
    assert_int_equal(rename(kept, path), 0);
}

/* Makes the call. Processes but the failing one make the same. */
static int make_call(struct process *self, spillway *store) {
    float value;
    int status;
    switch (self->job->call) {
    case STEP: return begin_step(self, store, true);
    case WAIT:
        status = begin_step(self, store, false);
        return status == SPILLWAY_OK ? spillway_wait(store, NULL) : status;
    case TENSOR:
        status = begin_step(self, store, false);
        if (status == SPILLWAY_OK)
            status = spillway_wait_tensor(store, TENSORS - 1);
        return status == SPILLWAY_OK ? spillway_wait(store, NULL) : status;
    case SAVE: return spillway_save(store);
    case READ: return spillway_read(store, 4, SPILLWAY_MASTER, MOST_ELEMS / 2, 1, &value);
    case CLOSE: return begin_step(self, store, false);
    case AGREE:
    case CALLS: break;
    }
    const bool has_problem = self->rank == FAILING && self->job->way == LOSES_ITS_FILE;
    return spillway_agree(store, has_problem ? "the gradient of 'half' is sparse" : NULL, NULL, 0);
}

static void *run_process(void *context) {
    struct process *self = context;
    struct job *job = self->job;
    spillway *store = NULL;
    const bool fails = self->rank == FAILING && !job->goes_on;
    self->status = open_store(self, &store);
    self->from_step = spillway_last_step(store);
    if (self->status == SPILLWAY_OK)
        self->status = begin_step(self, store, true);
    if (self->status == SPILLWAY_OK && fails && job->way == ENDS) {
        pthread_mutex_lock(&job->mutex);
        job->ended = true;
        pthread_cond_broadcast(&job->changed);
        pthread_mutex_unlock(&job->mutex);
    } else if (self->status == SPILLWAY_OK && !job->goes_on) {
        if (fails && job->call != AGREE)
            lose_file(self);
        self->status = make_call(self, store);
    }
    snprintf(self->message, sizeof self->message, "%s", spillway_error(store));
    spillway_close(store);
    return NULL;
}

static void run_job(struct job *job) {
    pthread_t thread[PROCESSES];
    assert_int_equal(pthread_mutex_init(&job->mutex, NULL), 0);
    assert_int_equal(pthread_cond_init(&job->changed, NULL), 0);
    for (int rank = 0; rank < PROCESSES; rank++) {
        job->process[rank] = (struct process){.job = job, .rank = rank, .model = model_make()};
        assert_int_equal(pthread_create(&thread[rank], NULL, run_process, &job->process[rank]), 0);
    }
    for (int rank = 0; rank < PROCESSES; rank++) {
        assert_int_equal(pthread_join(thread[rank], NULL), 0);
        model_free(&job->process[rank].model);
        give_file_back(&job->process[rank]);
    }
    pthread_cond_destroy(&job->changed);
    pthread_mutex_destroy(&job->mutex);
}

/* All processes but the failing one have a status, and a message with these words. */
static void expect_others(const struct job *job, int status, const char *words) {
    for (int rank = 0; rank < PROCESSES; rank++) {
        const struct process *self = &job->process[rank];
        if (rank != FAILING && (self->status != status || strstr(self->message, words) == NULL))
            fail_msg("call %d, process %d: status %d (%s), not %d with '%s'", (int)job->call, rank, self->status,
                     self->message, status, words);
    }
}

/* The same processes go on from the step that all had committed. */
static void expect_to_go_on(struct job *job, int64_t from_step) {
    struct job next = {.store = job->store, .call = job->call, .sharded = job->sharded, .goes_on = true};
    run_job(&next);
    for (int rank = 0; rank < PROCESSES; rank++) {
        if (next.process[rank].status != SPILLWAY_OK)
            fail_msg("after call %d, process %d: %s", (int)job->call, rank, next.process[rank].message);
        assert_int_equal(next.process[rank].from_step, from_step);
    }
}

static void all_hear_of_a_failure(void **state) {
    char path[SUPPORT_PATH_CHARS];
    for (int sharded = 0; sharded < 2; sharded++)
        for (int call = 0; call < CALLS; call++) {
            struct job job = {.store = library_store(state, path), .call = (enum call)call, .sharded = sharded != 0};
            run_job(&job);
            const struct process *failing = &job.process[FAILING];
            /* The next call of the store would tell the others; a close only ends the step. */
            if (call == AGREE)
                expect_others(&job, SPILLWAY_ERROR_ARGUMENT, "process 1 failed: the gradient of 'half' is sparse");
            else if (call != CLOSE)
                expect_others(&job, SPILLWAY_ERROR_PEER, "process 1 failed: ");
            if (call != CLOSE && failing->status == SPILLWAY_OK)
                fail_msg("call %d did not fail", call);
            assert_null(strstr(failing->message, "process 1 failed"));
            expect_to_go_on(&job, call == SAVE ? 0 : 1);
            library_remove_stores(state);
        }
}

static void all_hear_of_an_end(void **state) {
    char path[SUPPORT_PATH_CHARS];
    for (int call = 0; call < CALLS; call++) {
        struct job job = {.store = library_store(state, path), .call = (enum call)call, .way = ENDS};
        run_job(&job);
        expect_others(&job, SPILLWAY_ERROR_PEER, "gather has returned 7");
        expect_to_go_on(&job, call == SAVE ? 0 : 1);
        library_remove_stores(state);
    }
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, support_make_folder, support_remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(all_hear_of_a_failure),
        IN_FOLDER(all_hear_of_an_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
