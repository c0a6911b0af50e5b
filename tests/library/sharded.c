/* Tensors of which each process has a part, here processes as threads that gather by shared memory: another number of
 * processes, other parts, or whole tensors go on with the same state; failures of each exchange; and refusals. */
#include "tests/library/reference.h"

#include <dirent.h>
#include <pthread.h>

enum { MOST_PROCESSES = 4, BLOCK = 256, WIDE_ELEMS = 8192, MESSAGE_CHARS = 512 };
#define ON_HOST (INT64_C(256) << 20)
/* Room for the rings, but not for a process's state of all tensors. */
#define ON_DRIVE (INT64_C(7) << 20)

/* How tensors are cut: as torch.chunk cuts rows of one element, in reverse order of the processes, all in process 0, or
 * at multiples of a block. WHOLE: each process has all of them. */
enum cut { WHOLE, EVEN, REVERSED, FIRST_ONLY, BLOCKS, CUTS };

static void cut_of(enum cut cut, int64_t whole, int ranks, int rank, int64_t *first, int64_t *count) {
    int64_t each = (whole + ranks - 1) / ranks;
    if (cut == BLOCKS)
        each = sw_round_up(each, BLOCK);
    if (cut == REVERSED)
        rank = ranks - 1 - rank;
    *first = sw_min_i64(whole, each * rank);
    *count = sw_min_i64(whole, each * (rank + 1)) - *first;
    if (cut == FIRST_ONLY || cut == WHOLE) {
        *first = cut == WHOLE || rank == 0 ? 0 : whole;
        *count = cut == WHOLE || rank == 0 ? whole : 0;
    }
}

struct job {
    int ranks;
    enum cut cut;
    int state;
    const char *store;
    int64_t memory_bytes; /* 0: enough for all */
    int64_t steps;        /* the last step that it runs */
    int64_t fails_at;     /* the gather, counted from 0, that fails on all processes; -1: none */
    bool without_place;   /* whole_count is not told */
    int64_t lacks;        /* elements that the last process's part of the last tensor lacks */
    bool reordered;       /* tensors are registered in the opposite order */
    void *data[MOST_PROCESSES];
    pthread_barrier_t barrier;
    float *state_of[STATE_PARTS][TENSORS]; /* of whole tensors, from all processes */
    struct process {
        struct job *job;
        int rank, status;
        int64_t gathers, from_step, steps_of[TENSORS];
        struct model model;
        char message[MESSAGE_CHARS];
    } process[MOST_PROCESSES];
};

static int gather(void *context, void *data, const uint64_t *bounds) {
    struct process *self = context;
    struct job *job = self->job;
    library_gather(&job->barrier, job->data, job->ranks, self->rank, data, bounds);
    return self->gathers++ == job->fails_at ? 5 : 0;
}

static int tensor_at(const struct job *job, int i) {
    return job->reordered ? TENSORS - 1 - i : i;
}

static int describe(struct process *self, spillway **out) {
    const struct job *job = self->job;
    struct spillway_options options = library_options(job->store, job->memory_bytes > 0 ? job->memory_bytes : ON_HOST);
    options.state = job->state;
    options.rank = job->ranks > 1 ? self->rank : 0;
    options.ranks = job->ranks;
    options.gather = gather;
    options.gather_context = self;
    options.sharded = job->cut != WHOLE;
    options.missing_gradients = SPILLWAY_MISSING_SKIP;
    int status = spillway_create(&options, out);
    for (int i = 0; i < TENSORS && status == SPILLWAY_OK; i++) {
        const int t = tensor_at(job, i);
        struct spillway_tensor tensor = model_tensor(&self->model, t);
        int64_t first;
        cut_of(job->cut, self->model.count[t], job->ranks, self->rank, &first, &tensor.count);
        tensor.weights = (char *)tensor.weights + first * sw_dtype_bytes(self->model.type[t]);
        tensor.whole_count = job->without_place ? 0 : self->model.count[t];
        tensor.first = job->without_place ? 0 : first;
        if (i == TENSORS - 1 && self->rank == job->ranks - 1)
            tensor.count -= job->lacks;
        status = spillway_add(*out, &tensor, NULL);
    }
    return status;
}

/* Each step but the first leaves out one tensor. */
static bool is_left_out(int t, int64_t step) {
    return step > 1 && (t + step) % 3 == 0;
}

static int train(struct process *self, spillway *store) {
    int status = SPILLWAY_OK;
    while (status == SPILLWAY_OK && spillway_last_step(store) < self->job->steps) {
        const int64_t step = spillway_last_step(store) + 1;
        struct spillway_rates rates = rates_of(step);
        rates.clip = 0.0; /* the norm's last bit depends on the parts */
        model_gradients(&self->model, step);
        for (int i = 0; i < TENSORS && status == SPILLWAY_OK; i++) {
            const int t = tensor_at(self->job, i);
            int64_t first, count;
            cut_of(self->job->cut, self->model.count[t], self->job->ranks, self->rank, &first, &count);
            if (count > 0 && !is_left_out(t, step))
                status = spillway_gradient(
                    store, i, (int)self->model.type[t],
                    (char *)self->model.gradients[t] + first * sw_dtype_bytes(self->model.type[t]), SPILLWAY_SET);
        }
        if (status == SPILLWAY_OK)
            status = spillway_step(store, &rates, NULL);
    }
    return status;
}

static int read_state(struct process *self, spillway *store) {
    int status = SPILLWAY_OK;
    for (int i = 0; i < TENSORS; i++) {
        const int t = tensor_at(self->job, i);
        int64_t first, count;
        cut_of(self->job->cut, self->model.count[t], self->job->ranks, self->rank, &first, &count);
        self->steps_of[t] = spillway_tensor_steps(store, i);
        for (int part = 0; part < STATE_PARTS && status == SPILLWAY_OK; part++) {
            float *out = calloc((size_t)count + 1, sizeof *out);
            assert_non_null(out);
            status = spillway_read(store, i, part, 0, count, out);
            if (self->job->cut != WHOLE || self->rank == 0)
                memcpy(self->job->state_of[part][t] + first, out, (size_t)count * sizeof *out);
            free(out);
        }
    }
    return status;
}

static void *run_process(void *context) {
    struct process *self = context;
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
    snprintf(self->message, sizeof self->message, "%s", spillway_error(store));
    spillway_close(store);
    return NULL;
}

static void run_job(struct job *job) {
    pthread_t thread[MOST_PROCESSES];
    assert_int_equal(pthread_barrier_init(&job->barrier, NULL, (unsigned)job->ranks), 0);
    for (int rank = 0; rank < job->ranks; rank++)
        job->process[rank] = (struct process){.job = job, .rank = rank, .model = model_make()};
    for (int part = 0; part < STATE_PARTS; part++)
        for (int t = 0; t < TENSORS; t++) {
            job->state_of[part][t] = calloc((size_t)job->process[0].model.count[t], sizeof(float));
            assert_non_null(job->state_of[part][t]);
        }
    for (int rank = 0; rank < job->ranks; rank++)
        assert_int_equal(pthread_create(&thread[rank], NULL, run_process, &job->process[rank]), 0);
    for (int rank = 0; rank < job->ranks; rank++)
        assert_int_equal(pthread_join(thread[rank], NULL), 0);
    pthread_barrier_destroy(&job->barrier);
}

static void free_job(struct job *job) {
    for (int rank = 0; rank < job->ranks; rank++)
        model_free(&job->process[rank].model);
    for (int part = 0; part < STATE_PARTS; part++)
        for (int t = 0; t < TENSORS; t++)
            free(job->state_of[part][t]);
}

static void expect_well(const struct job *job, int64_t from_step) {
    for (int rank = 0; rank < job->ranks; rank++) {
        const struct process *self = &job->process[rank];
        if (self->status != SPILLWAY_OK)
            fail_msg("process %d of %d, cut %d: status %d (%s)", rank, job->ranks, (int)job->cut, self->status,
                     self->message);
        assert_int_equal(self->from_step, from_step);
    }
}

static void remove_stores(void *const *state) {
    static const char *const names[] = {"alone/store.spillway", "alone/tensors.json", "alone/store.lock", "alone"};
    char path[SUPPORT_PATH_CHARS];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        remove(support_path(state, names[i], path));
    library_remove_stores(state);
}

/* The steps of one process, in which nothing is ever converted. */
static void run_alone(struct job *alone, void *const *state, int64_t from_step, int64_t steps) {
    char path[SUPPORT_PATH_CHARS];
    *alone = (struct job){
        .ranks = 1, .cut = WHOLE, .store = support_path(state, "alone", path), .steps = steps, .fails_at = -1};
    run_job(alone);
    expect_well(alone, from_step);
}

/* Compares state, weights, and each tensor's count of steps with those of one process. */
static void expect_same(const struct job *job, const struct job *alone) {
    for (int t = 0; t < TENSORS; t++) {
        const int64_t whole = alone->process[0].model.count[t], bytes = sw_dtype_bytes(alone->process[0].model.type[t]);
        for (int part = 0; part < STATE_PARTS; part++)
            if (memcmp(job->state_of[part][t], alone->state_of[part][t], (size_t)whole * sizeof(float)) != 0)
                fail_msg("part %d of '%s' differs after %d processes with cut %d", part, job->process[0].model.name[t],
                         job->ranks, (int)job->cut);
        for (int rank = 0; rank < job->ranks; rank++) {
            int64_t first, count;
            cut_of(job->cut, whole, job->ranks, rank, &first, &count);
            assert_memory_equal((char *)job->process[rank].model.weights[t] + first * bytes,
                                (char *)alone->process[0].model.weights[t] + first * bytes, (size_t)(count * bytes));
            assert_int_equal(job->process[rank].steps_of[t], alone->process[0].steps_of[t]);
        }
    }
}

static int count_folders(const char *store) {
    int count = 0;
    DIR *folder = opendir(store);
    assert_non_null(folder);
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;)
        count += strncmp(entry->d_name, "rank-", 5) == 0;
    closedir(folder);
    return count;
}

/* One store: by other numbers of processes, with other parts, with whole tensors and back. */
static void any_processes_go_on(void **state) {
    static const struct {
        int ranks;
        enum cut cut;
        bool reordered;
    } runs[] = {{3, EVEN, false}, {2, EVEN, true},       {2, BLOCKS, false}, {1, WHOLE, true}, {4, REVERSED, true},
                {4, EVEN, false}, {4, WHOLE, true},      {3, BLOCKS, true},  {1, EVEN, false}, {1, WHOLE, false},
                {2, WHOLE, true}, {4, FIRST_ONLY, true}, {3, WHOLE, false},  {3, EVEN, true},  {3, EVEN, true}};
    char path[SUPPORT_PATH_CHARS];
    for (int i = 0; i < (int)(sizeof runs / sizeof runs[0]); i++) {
        struct job alone, job = {.ranks = runs[i].ranks,
                                 .cut = runs[i].cut,
                                 .reordered = runs[i].reordered,
                                 .store = library_store(state, path),
                                 .steps = i + 1,
                                 .fails_at = -1};
        run_job(&job);
        expect_well(&job, i);
        run_alone(&alone, state, i, i + 1);
        expect_same(&job, &alone);
        /* Nothing is left of the set before. */
        assert_true(count_folders(job.store) == job.ranks || (job.ranks == 1 && count_folders(job.store) == 0));
        free_job(&job);
        free_job(&alone);
    }
    remove_stores(state);
}

/* Every exchange of a change of the parts fails once. Whatever processes come next find the state whole. */
static void a_failed_change_loses_nothing(void **state) {
    static const struct {
        int ranks;
        enum cut cut;
    } next[] = {{2, EVEN}, {3, BLOCKS}, {1, WHOLE}, {2, WHOLE}};
    char path[SUPPORT_PATH_CHARS];
    int64_t failures = 0;
    bool ended = false;
    struct job alone;
    run_alone(&alone, state, 0, 2);
    for (int64_t at = 0; !ended; at++) {
        struct job first = {.ranks = 3, .cut = EVEN, .store = library_store(state, path), .steps = 1, .fails_at = -1};
        run_job(&first);
        expect_well(&first, 0);
        free_job(&first);
        struct job fails = first;
        fails.ranks = 2;
        fails.cut = at % 2 == 0 ? BLOCKS : WHOLE;
        fails.fails_at = at;
        run_job(&fails);
        ended = fails.process[0].from_step == 1 && fails.process[0].status == SPILLWAY_OK;
        for (int rank = 0; rank < 2 && !ended; rank++)
            assert_int_equal(fails.process[rank].status, SPILLWAY_ERROR_PEER);
        failures += !ended;
        free_job(&fails);
        struct job last = first;
        last.ranks = next[at % 4].ranks;
        last.cut = next[at % 4].cut;
        last.steps = 2;
        run_job(&last);
        expect_well(&last, 1);
        expect_same(&last, &alone);
        free_job(&last);
        library_remove_stores(state);
    }
    free_job(&alone);
    remove_stores(state);
    assert_true(failures > 8);
}

/* The elements that share a scale with element i of a tensor; `wide`: none do, and moments are fp32. */
struct block {
    int64_t begin, end;
    bool wide;
};

static struct block block_of(const struct job *job, int64_t whole, int64_t i) {
    int64_t first = 0, count = 0;
    for (int rank = 0; rank < job->ranks; rank++) {
        cut_of(job->cut, whole, job->ranks, rank, &first, &count);
        if (i >= first && i < first + count)
            break;
    }
    const int64_t begin = first + (i - first) / BLOCK * BLOCK;
    return (struct block){begin, sw_min_i64(begin + BLOCK, first + count), count <= WIDE_ELEMS};
}

static bool keeps_bits(const struct job *was, const struct job *is, int64_t whole, int64_t i) {
    const struct block old = block_of(was, whole, i), new = block_of(is, whole, i);
    if (new.wide || old.wide)
        return new.wide;
    return was->state == SPILLWAY_STATE_BF16 || (old.begin == new.begin &&old.end == new.end);
}

/* Returns the largest magnitude. The largest codes of 8 bits are 0.014 of it apart. */
static float largest(const float *values, int64_t count) {
    float most = 0.0f;
    for (int64_t i = 0; i < count; i++)
        most = fmaxf(most, fabsf(values[i]));
    return most;
}

/* Narrow moments keep their bits where spillway.h says so, and the others are rounded once more. */
static void narrow_state_keeps_its_bits(void **state) {
    static const enum cut cuts[] = {WHOLE, EVEN, BLOCKS, REVERSED, FIRST_ONLY, BLOCKS, WHOLE};
    char path[SUPPORT_PATH_CHARS];
    for (int format = SPILLWAY_STATE_BF16; format <= SPILLWAY_STATE_8BIT; format++) {
        struct job was = {
            .ranks = 1, .cut = WHOLE, .state = format, .store = library_store(state, path), .steps = 3, .fails_at = -1};
        int64_t kept = 0, rounded = 0;
        run_job(&was);
        expect_well(&was, 0);
        for (int i = 1; i < (int)(sizeof cuts / sizeof cuts[0]); i++) {
            struct job is = {
                .ranks = 1 + i % 3, .cut = cuts[i], .state = format, .store = was.store, .steps = 3, .fails_at = -1};
            run_job(&is);
            expect_well(&is, 3);
            for (int t = 0; t < TENSORS; t++) {
                const int64_t whole = was.process[0].model.count[t];
                assert_memory_equal(was.state_of[SPILLWAY_MASTER][t], is.state_of[SPILLWAY_MASTER][t],
                                    (size_t)whole * sizeof(float));
                for (int part = SPILLWAY_FIRST_MOMENT; part <= SPILLWAY_SECOND_MOMENT; part++) {
                    const float bound = 0.008f * largest(was.state_of[part][t], whole);
                    for (int64_t e = 0; e < whole; e++) {
                        const float old = was.state_of[part][t][e], new = is.state_of[part][t][e];
                        const bool keeps = keeps_bits(&was, &is, whole, e);
                        kept += keeps;
                        rounded += !keeps;
                        if (keeps ? memcmp(&old, &new, sizeof old) != 0 : fabsf(old - new) > bound)
                            fail_msg("format %d, change %d: moment %d of '%s' was %g and is %g at %lld", format, i,
                                     part, was.process[0].model.name[t], (double)old, (double)new, (long long)e);
                    }
                }
            }
            free_job(&was);
            was = is;
        }
        assert_true(kept > 100000 && rounded > 100);
        free_job(&was);
        library_remove_stores(state);
    }
}

/* Runs a job that must be refused by all of its processes. */
static void expect_refusal(struct job *job, const char *words) {
    run_job(job);
    for (int rank = 0; rank < job->ranks; rank++)
        if (job->process[rank].status != SPILLWAY_ERROR_ARGUMENT || strstr(job->process[rank].message, words) == NULL)
            fail_msg("process %d: status %d (%s), not '%s'", rank, job->process[rank].status,
                     job->process[rank].message, words);
    free_job(job);
}

/* The state of one process does not fit, and the others have little or none: all commit each step, as if alone. */
static void uneven_parts_commit_alike(void **state) {
    static const enum cut cuts[] = {FIRST_ONLY, EVEN, FIRST_ONLY};
    char path[SUPPORT_PATH_CHARS];
    struct job alone, job = {.ranks = 3, .store = library_store(state, path), .memory_bytes = ON_DRIVE, .fails_at = -1};
    for (int i = 0; i < (int)(sizeof cuts / sizeof cuts[0]); i++) {
        job.cut = cuts[i];
        job.steps = i + 1;
        run_job(&job);
        expect_well(&job, i);
        run_alone(&alone, state, i, i + 1);
        expect_same(&job, &alone);
        free_job(&job);
        free_job(&alone);
    }
    remove_stores(state);
}

static void parts_are_checked(void **state) {
    char path[SUPPORT_PATH_CHARS];
    struct job job = {.ranks = 2, .cut = EVEN, .store = library_store(state, path), .steps = 1, .fails_at = -1};
    job.lacks = 1;
    expect_refusal(&job, "the parts that 2 processes have of 'fp16.weight' are not the 40000 elements");
    job.lacks = 0;
    run_job(&job);
    expect_well(&job, 0);
    free_job(&job);
    job.without_place = true;
    job.ranks = 3;
    expect_refusal(&job, "'one' is in other parts than in");
    job.ranks = 2;
    job.steps = 2;
    run_job(&job);
    expect_well(&job, 1);
    free_job(&job);
    library_remove_stores(state);
    /* A store whose parts have no places is that of its processes. */
    job.steps = 1;
    run_job(&job);
    expect_well(&job, 0);
    free_job(&job);
    job.without_place = false;
    job.ranks = 3;
    expect_refusal(&job, "the store does not say where its parts lie");
    job.ranks = 1;
    job.cut = WHOLE;
    expect_refusal(&job, "open the store with the 2 processes");
    job.ranks = 2;
    job.cut = EVEN;
    job.steps = 2;
    run_job(&job);
    expect_well(&job, 1);
    free_job(&job);
    library_remove_stores(state);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, support_make_folder, support_remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(any_processes_go_on),         IN_FOLDER(a_failed_change_loses_nothing),
        IN_FOLDER(narrow_state_keeps_its_bits), IN_FOLDER(uneven_parts_commit_alike),
        IN_FOLDER(parts_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
