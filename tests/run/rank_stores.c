/* A rank of a job that keeps a store, without the training, or with `threads N` in front all N of them as threads. The
 * other arguments: what to do with the run's folder, and on what step. Every element of the state follows from its
 * unit, its index there and the step; in a job of a model (SW_TEST_TENSOR, SW_TEST_EXPERTS), from its tensor, its index
 * in the whole tensor and the step. SW_TEST_JOINED: expert groups are those of older versions. Rank 0 prints what came
 * of it. */
#include "core/size.h"
#include "model/hf/config.h"
#include "model/model.h"
#include "offload/plan/shard.h"
#include "run/folder/run.h"
#include "run/folder/state.h"
#include "run/stores/start.h"
#include "run/stores/store_set.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { UNITS = 4, IO_DEPTH = 8 };
/* The units of a job without a model. */
static const int64_t unit_grains[UNITS] = {11, 1, 0, 6};
static _Thread_local struct sw_unit unit_list[UNITS];
static _Thread_local struct sw_units grains_alone;

/* The state of a rank, which is a thread. */
static _Thread_local struct {
    struct sw_ranks ranks;
    struct sw_run run;
    const char *folder;
    bool whole;
    int tensor_ranks; /* 0: the job has no model */
    int expert_ranks; /* size of expert groups; 0 or 1: none */
    bool joined;
    const char *model;
    struct sw_units *units;
} job;

/* Calls that change what is on the drive, or only those that change names there. The one that is due kills the process
 * before it. */
static atomic_long calls_until_death;
static bool only_names_count;

static void count_call(bool changes_names) {
    if (!changes_names && only_names_count)
        return;
    if (atomic_load(&calls_until_death) > 0 && atomic_fetch_sub(&calls_until_death, 1) == 1)
        kill(getpid(), SIGKILL);
}

struct io_uring;
int io_uring_submit(struct io_uring *ring);
int io_uring_submit_and_wait(struct io_uring *ring, unsigned wait_nr);
typedef int submit_function(struct io_uring *ring);
typedef int submit_wait_function(struct io_uring *ring, unsigned wait_nr);
typedef int removal_function(int folder, const char *path, int flags);
typedef int folder_function(int folder, const char *path, mode_t mode);
typedef int paths_function(int from_folder, const char *from, int to_folder, const char *to);
#define REAL(type, name) ((type *)dlsym(RTLD_NEXT, name))

int io_uring_submit(struct io_uring *ring) {
    count_call(false);
    return REAL(submit_function, "io_uring_submit")(ring);
}

int io_uring_submit_and_wait(struct io_uring *ring, unsigned wait_nr) {
    count_call(false);
    return REAL(submit_wait_function, "io_uring_submit_and_wait")(ring, wait_nr);
}

/* NOLINTBEGIN(readability-inconsistent-declaration-parameter-name): the C library's headers have other names. */
int unlinkat(int folder, const char *path, int flags) {
    count_call(true);
    return REAL(removal_function, "unlinkat")(folder, path, flags);
}

int mkdirat(int folder, const char *path, mode_t mode) {
    count_call(true);
    return REAL(folder_function, "mkdirat")(folder, path, mode);
}

int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    count_call(true);
    return REAL(paths_function, "renameat")(from_folder, from, to_folder, to);
}
/* NOLINTEND(readability-inconsistent-declaration-parameter-name) */

static int rank(void) {
    return sw_ranks_rank(&job.ranks);
}

static void require(sw_status status) {
    if (status == SW_OK)
        return;
    /* Facts that all ranks have alike are said once. */
    if (!job.ranks.told || rank() == 0)
        fprintf(stderr, "refused: %s\n", sw_error_message(status));
    (void)sw_comm_barrier(job.ranks.comm, "refusal");
    _exit(1);
}

static void check(bool holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "rank %d: %s\n", rank(), what);
        _exit(1);
    }
}

static int64_t tensor_ranks(void) {
    return sw_max_i64(1, job.tensor_ranks);
}

/* Returns how many parts of a unit the ranks have, each of which some of them share. */
static int64_t parts_of(int64_t unit) {
    if (job.expert_ranks > 1)
        return job.joined || job.units->unit[unit].shared_out ? job.expert_ranks : 1;
    return tensor_ranks();
}

static void take_units(void) {
    const struct sw_model_group experts = {.ranks = job.expert_ranks,
                                           .rank = rank() % (int)sw_max_i64(1, job.expert_ranks),
                                           .experts = job.expert_ranks,
                                           .joined = job.joined};
    if (job.expert_ranks > 1)
        require(sw_model_group_units(&job.run.config, &experts, 1, SW_OPTIMIZER_FP32, NULL, &job.units));
    else if (job.tensor_ranks > 1)
        require(sw_model_rank_units(&job.run.config, job.tensor_ranks, rank() % job.tensor_ranks,
                                    job.run.settings.tiles, SW_OPTIMIZER_FP32, NULL, &job.units));
    else if (job.tensor_ranks == 1)
        require(sw_model_units(&job.run.config, job.run.settings.tiles, SW_OPTIMIZER_FP32, NULL, &job.units));
    else
        job.units = &grains_alone;
    grains_alone = (struct sw_units){.unit = unit_list, .count = UNITS};
    for (int64_t unit = 0; job.tensor_ranks == 0 && unit < UNITS; unit++)
        unit_list[unit] = (struct sw_unit){
            .grains = unit_grains[unit], .wide_grain = unit_grains[unit], .replicated_grain = unit_grains[unit]};
}

/* Returns what a vector of the state has of an element of a whole tensor. */
static float value_of(const char *tensor, int64_t vector, int64_t elem, int64_t step) {
    int64_t name = 0;
    for (const char *c = tensor; *c != '\0'; c++)
        name = (name * 31 + *c) % 9973;
    return (float)((name * 131 + vector * 5 + step * 7 + elem * 17) % 99991);
}

/* A run of elements of a tensor, in the grain that is filled. */
struct filling {
    const struct sw_unit *unit;
    float *record;
    int64_t step;
};

static sw_status fill_run(void *context, int64_t tensor, int64_t whole, int64_t run, int64_t at) {
    const struct filling *filling = context;
    for (int64_t vector = 0; vector < SW_OPTIMIZER_VECTORS; vector++)
        for (int64_t i = 0; i < run; i++)
            filling->record[vector * SW_GRAIN_ELEMS + at + i] =
                value_of(filling->unit->tensor[tensor].name, vector, whole + i, filling->step);
    return SW_OK;
}

static void fill(float *record, int64_t unit, int64_t grain, int64_t step) {
    const int64_t elems = (int64_t)SW_OPTIMIZER_VECTORS * SW_GRAIN_ELEMS;
    struct filling filling = {.unit = &job.units->unit[unit], .record = record, .step = step};
    if (job.tensor_ranks > 0) {
        memset(record, 0, (size_t)elems * sizeof *record);
        require(sw_unit_walk(filling.unit, grain * SW_GRAIN_ELEMS, SW_GRAIN_ELEMS, fill_run, &filling));
        return;
    }
    for (int64_t i = 0; i < elems; i++)
        record[i] = (float)((unit * 131 + grain * 17 + step * 7 + i) % 9973);
}

static sw_status make(void *context, const struct sw_places *places, const char *id, struct sw_store **out) {
    (void)context;
    enum { MOST_UNITS = 64 };
    int64_t first[MOST_UNITS], grains[MOST_UNITS], all[MOST_UNITS];
    check(job.units->count <= MOST_UNITS, "the model has too many units");
    for (int unit = 0; unit < job.units->count; unit++) {
        all[unit] = job.units->unit[unit].grains;
        const int64_t sharers = sw_ranks_count(&job.ranks) / parts_of(unit);
        const struct sw_span span = job.whole ? (struct sw_span){.grains = all[unit]}
                                              : sw_shard(all[unit], (int)sharers, (int)(rank() / parts_of(unit)));
        first[unit] = span.first_grain;
        grains[unit] = span.grains;
    }
    const struct sw_store_spec spec = {.directories = places->path,
                                       .directory_count = places->count,
                                       .most_bytes = places->most_bytes,
                                       .unit_first = first,
                                       .unit_grains = grains,
                                       .unit_whole_grains = all,
                                       .unit_count = job.units->count,
                                       .id = id,
                                       .allow_buffered = true};
    return sw_store_create(&spec, NULL, NULL, out);
}

static struct sw_store_set stores(void) {
    return (struct sw_store_set){.ranks = &job.ranks,
                                 .folder = job.folder,
                                 .run = &job.run,
                                 .previous = getenv("SW_TEST_PREVIOUS") != NULL,
                                 .make = make};
}

/* Writes all that the store has in a generation, or compares it. */
static void pass(struct sw_store *store, bool write, int generation, int64_t step) {
    struct sw_store_lane *lane;
    char *record = aligned_alloc(SW_BUFFER_ALIGN_BYTES, SW_OPTIMIZER_GRAIN_BYTES);
    char *wanted = aligned_alloc(SW_BUFFER_ALIGN_BYTES, SW_OPTIMIZER_GRAIN_BYTES);
    require(sw_store_lane_open(store, IO_DEPTH, &lane));
    for (int64_t unit = 0; unit < job.units->count; unit++)
        for (int64_t g = 0; g < sw_store_unit_grains(store, unit); g++) {
            const int64_t grain = sw_store_unit_first(store, unit) + g;
            fill((float *)(void *)wanted, unit, grain, step);
            require(sw_store_transfer(lane, &(struct sw_store_transfer){.write = write,
                                                                        .generation = generation,
                                                                        .unit = unit,
                                                                        .first_grain = grain,
                                                                        .grains = 1,
                                                                        .buf = write ? wanted : record,
                                                                        .step = step}));
            check(write || memcmp(record, wanted, SW_OPTIMIZER_GRAIN_BYTES) == 0, "a grain is not as it was written");
        }
    sw_store_lane_close(lane);
    free(record);
    free(wanted);
}

static void commit(struct sw_store *store, int64_t step) {
    char meta[64];
    const int generation = 1 - sw_store_last_commit(store)->generation;
    snprintf(meta, sizeof meta, "{\"step\": %lld}", (long long)step);
    pass(store, true, generation, step);
    require(sw_store_commit(store, step, generation, meta));
}

static void take_settings(const char *nvme) {
    struct sw_settings *settings = &job.run.settings;
    settings->allow_buffered = true;
    settings->ranks = sw_ranks_count(&job.ranks);
    settings->rank = rank();
    settings->local_rank = sw_ranks_local_rank(&job.ranks);
    settings->zero = job.whole ? 0 : 2;
    settings->tensor = tensor_ranks();
    settings->experts = sw_max_i64(1, job.expert_ranks);
    /* A rank's parts have tiles where they can be cut into some. Whole layers keep those of the run. */
    if (job.tensor_ranks > 1)
        settings->tiles = sw_model_tiles_fit(&job.run.config, job.tensor_ranks, 2) ? 2 : 1;
    take_units();
    if (nvme == NULL)
        return;
    sw_option_list_release(&settings->nvme);
    char *names = strdup(nvme), *more;
    for (char *name = strtok_r(names, ",", &more); name != NULL; name = strtok_r(NULL, ",", &more))
        require(sw_option_list_add(&settings->nvme, name));
    free(names);
}

/* Creates a run as a train does: first removes what a start that was cut off has left. A train commits step 0. */
static void begin(int64_t step, const char *nvme) {
    struct sw_store_set all = stores();
    struct sw_store *store = NULL;
    require(sw_ranks_first(&job.ranks, sw_start_check(job.folder)));
    require(sw_options_defaults(&sw_train_command, &job.run.settings));
    job.run.settings.model = strdup(job.model);
    require(sw_option_list_add(&job.run.settings.data, "data.bin"));
    require(sw_config_load(job.model, &job.run.config));
    take_settings(nvme);
    require(sw_start_clear(&job.ranks, job.folder));
    require(sw_store_set_places_agree(&all));
    const sw_status status = sw_store_set_begin(&all, &store);
    if (status != SW_OK)
        sw_store_set_withdraw(&all, store);
    require(status);
    require(sw_ranks_first(&job.ranks, sw_run_write(job.folder, &job.run)));
    commit(store, step);
    require(sw_store_set_publish(&all));
    sw_store_close(store);
}

/* Opens as a resume does, and has every byte compared. Gives the step. */
static struct sw_store *resume(const char *nvme) {
    struct sw_store_set all = stores();
    struct sw_store *store = NULL;
    require(sw_ranks_agree_on_error(&job.ranks, sw_run_read(job.folder, &job.run)));
    take_settings(nvme);
    require(sw_store_set_open(&all, &store));
    require(sw_ranks_first(&job.ranks, sw_run_write(job.folder, &job.run)));
    const struct sw_store_commit *found = sw_store_last_commit(store);
    pass(store, false, found->generation, found->step);
    int64_t grains, bad;
    require(sw_store_verify(store, NULL, &grains, &bad));
    check(bad == 0, "a sum is wrong");
    if (rank() == 0)
        printf("step %lld: %s\n", (long long)found->step, found->meta);
    return store;
}

/* All write the next step, and only the first so many ranks commit it. */
static void commit_some(int committing) {
    struct sw_store *store = resume(NULL);
    const int64_t step = sw_store_last_commit(store)->step + 1;
    if (rank() < committing)
        commit(store, step);
    else
        pass(store, true, 1 - sw_store_last_commit(store)->generation, step);
    sw_store_close(store);
}

/* Reads every tensor whole, by its name, and compares all parts of its state. */
static void read_tensors(struct sw_state_reader *state, int64_t step) {
    struct sw_units *units;
    require(sw_model_units(&job.run.config, 1, SW_OPTIMIZER_FP32, NULL, &units));
    for (int64_t unit = 0; unit < units->count; unit++)
        for (int64_t t = 0; t < units->unit[unit].tensor_count; t++) {
            const struct sw_tensor *tensor = &units->unit[unit].tensor[t];
            const int64_t elems = sw_tensor_whole_elems(tensor);
            float *got = malloc((size_t)(SW_STATE_PARTS * elems) * sizeof *got);
            float *const parts[] = {got, got + elems, got + 2 * elems};
            require(sw_state_read(state, tensor->name, 0, elems, parts));
            for (int64_t e = 0; e < SW_STATE_PARTS * elems; e++)
                check(got[e] == value_of(tensor->name, e / elems, e % elems, step),
                      "an element is not as it was written");
            free(got);
        }
    sw_units_destroy(units);
}

/* Reads the records of all grains, some at a time. */
static void read_records(struct sw_state_reader *state, int64_t step) {
    enum { AT_ONCE = 4 };
    const size_t bytes = SW_OPTIMIZER_GRAIN_BYTES;
    char *got = malloc(AT_ONCE * bytes), *wanted = malloc(bytes);
    for (int64_t unit = 0; unit < UNITS; unit++)
        for (int64_t first = 0; first < unit_grains[unit]; first += AT_ONCE) {
            const int64_t count = sw_min_i64(AT_ONCE, unit_grains[unit] - first);
            require(sw_state_records(state, 0, unit, first, count, got));
            for (int64_t g = 0; g < count; g++) {
                fill((float *)(void *)wanted, unit, first + g, step);
                check(memcmp(got + (size_t)g * bytes, wanted, bytes) == 0, "a grain is not as it was written");
            }
        }
    free(got);
    free(wanted);
}

/* One process reads the state of all ranks. */
static void read_all(int64_t step) {
    struct sw_state_reader *state;
    const struct sw_state_spec spec = {.folder = job.folder, .run = &job.run, .step = SW_STORE_NEWEST};
    require(sw_run_read(job.folder, &job.run));
    take_units();
    require(sw_state_open_stores(&spec, &state));
    if (job.tensor_ranks > 0)
        read_tensors(state, step);
    else
        read_records(state, step);
    check(sw_state_commit(state)->step == step, "the state is of another step");
    sw_state_close(state);
}

struct arguments {
    int count;
    char **word;
};

/* Has the calls of the rank that the environment names counted. */
static void take_death(void) {
    const char *death = getenv("SW_TEST_DEATH");
    long dying = -1, calls = 0;
    char kind = 'a';
    if (death == NULL || sscanf(death, "%ld:%ld%c", &dying, &calls, &kind) < 2 || dying != rank())
        return;
    only_names_count = kind == 'n';
    atomic_store(&calls_until_death, calls);
}

static void act(const char *what, int64_t number, const char *nvme) {
    if (strcmp(what, "begin") == 0)
        begin(number, nvme);
    else if (strcmp(what, "resume") == 0)
        sw_store_close(resume(nvme));
    else if (strcmp(what, "commit") == 0)
        commit_some((int)number);
    else if (strcmp(what, "read") == 0)
        read_all(number);
    else
        check(false, "there is no such action");
}

static void run(void *context, int number) {
    const struct arguments *arguments = context;
    const char *model = getenv("SW_TEST_MODEL"), *tensor = getenv("SW_TEST_TENSOR"),
               *experts = getenv("SW_TEST_EXPERTS");
    (void)number;
    job.folder = arguments->word[1];
    job.whole = getenv("SW_TEST_WHOLE") != NULL;
    job.model = model != NULL ? model : "gpt2-tiny";
    job.expert_ranks = experts != NULL ? atoi(experts) : 0;
    job.joined = getenv("SW_TEST_JOINED") != NULL;
    job.tensor_ranks = tensor != NULL ? atoi(tensor) : experts != NULL;
    if (sw_comm_open(&job.ranks.comm) != SW_OK)
        _exit(1);
    take_death();
    act(arguments->word[0], arguments->count > 2 ? atoll(arguments->word[2]) : 0, getenv("SW_TEST_NVME"));
    sw_run_release(&job.run);
    if (job.tensor_ranks > 0)
        sw_units_destroy(job.units);
    require(sw_comm_barrier(job.ranks.comm, "end"));
    if (rank() == 0)
        puts("ok");
    sw_comm_close(job.ranks.comm);
}

int main(int argc, char **argv) {
    struct arguments arguments = {.count = argc - 1, .word = argv + 1};
    const bool threads = argc > 2 && strcmp(argv[1], "threads") == 0;
    if (threads) {
        arguments.count -= 2;
        arguments.word += 2;
    }
    if (arguments.count < 2)
        return 2;
    if (!threads)
        run(&arguments, 0);
    else if (atoi(argv[2]) < 1 || sw_comm_run_threads(atoi(argv[2]), run, &arguments) != SW_OK)
        return 2;
    return 0;
}
