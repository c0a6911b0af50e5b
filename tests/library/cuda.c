/* Weights and gradients in the memory of an emulated GPU, whose streams are late by chance: the bits of host pointers,
 * for every type, size, way of handing in, way of waiting, and number of processes; and what is refused. */
#include "tests/equipment/cuda/driver.h"
#include "tests/equipment/cuda/runtime.h"
#include "tests/library/support.h"

#include <math.h>
#include <pthread.h>
#include <stdalign.h>
#include <xxhash.h>

enum { PARTS = 3, SIZES = 8, STEPS = 7, NAN_STEP = 3, MICRO = 3, MOST_PROCESSES = 2, SPOILT = 0xee };
#define ON_HOST (INT64_C(256) << 20)
/* A budget in which much of the state lives on the drive: besides rings there is the GPU's staging memory. */
#define ON_DRIVE (INT64_C(14) << 20)
#define DELAY_NS 200000

/* One element, less and more than a vector, a grain and its neighbours, and more than two chunks of staging memory. */
static const struct size {
    const char *name;
    int64_t count;
    int type, gradient_type;
} sizes[SIZES] = {
    {"one", 1, SPILLWAY_F32, SPILLWAY_F32},          {"seven", 7, SPILLWAY_BF16, SPILLWAY_BF16},
    {"grain", 16384, SPILLWAY_F32, SPILLWAY_F32},    {"half", 33, SPILLWAY_F16, SPILLWAY_F16},
    {"large", 600001, SPILLWAY_BF16, SPILLWAY_BF16}, {"large.fp32", 300007, SPILLWAY_F32, SPILLWAY_BF16},
    {"beside", 16385, SPILLWAY_F16, SPILLWAY_F32},   {"last", 3, SPILLWAY_F32, SPILLWAY_F16},
};

/* A way to run. The masks have a bit for each tensor whose weights or gradients are in device memory. */
struct way {
    unsigned weights_on_cuda, gradients_on_cuda;
    int64_t host_memory_bytes;
    int state, threads;
    bool adds, overlaps;
    int ranks; /* 0: alone */
};

/* The results of a run that must not depend on the way. */
struct outcome {
    double norm[STEPS + 1];
    uint64_t weights[STEPS + 1][SIZES], state[PARTS][SIZES];
};

/* Tensors in host and device memory, and the caller's stream. */
struct job;
struct run {
    struct job *job;
    int rank;
    const struct way *way;
    CUcontext context;
    CUstream stream;
    spillway *self;
    char *host[SIZES], *gradient[SIZES], *old[SIZES]; /* pinned; host: copies of the weights */
    CUdeviceptr weights[SIZES], gradients[SIZES];
    struct outcome outcome;
};

/* Processes, here threads, that gather by shared memory. */
struct job {
    int ranks;
    void *data[MOST_PROCESSES];
    pthread_barrier_t barrier;
    struct run run[MOST_PROCESSES];
    const char *store;
};

static void cuda_must(CUresult result, const char *what) {
    if (result != CUDA_SUCCESS)
        fail_msg("%s: error %d of the driver", what, result);
}

static int64_t bytes_of(int t, int type) {
    return sizes[t].count * sw_dtype_bytes((sw_dtype)type);
}

static bool has(unsigned mask, int t) {
    return (mask >> t & 1) != 0;
}

static void *pinned(int64_t bytes) {
    void *memory = NULL;
    cuda_must(cuMemHostAlloc(&memory, (size_t)bytes, 0), "pinned memory");
    memset(memory, SPOILT, (size_t)bytes);
    return memory;
}

/* Begins with the thread's context set, as a program of CUDA has it. */
static void make_tensors(struct run *run) {
    cuda_must(cuInit(0), "init");
    cuda_must(cuDevicePrimaryCtxRetain(&run->context, 0), "context");
    cuda_must(cuCtxPushCurrent_v2(run->context), "context");
    cuda_must(cuStreamCreate(&run->stream, 0), "stream");
    for (int t = 0; t < SIZES; t++) {
        const int64_t bytes = sizes[t].count * (int64_t)sizeof(float);
        run->host[t] = pinned(bytes);
        run->gradient[t] = pinned(bytes);
        run->old[t] = pinned(bytes);
        cuda_must(cuMemAlloc_v2(&run->weights[t], (size_t)bytes), "device memory");
        cuda_must(cuMemAlloc_v2(&run->gradients[t], (size_t)bytes), "device memory");
        for (int64_t i = 0; i < sizes[t].count; i++)
            sw_dtype_store((sw_dtype)sizes[t].type, run->host[t], i, (float)((i * 37 + t * 11) % 101 - 50) * 0.02f);
        if (has(run->way->weights_on_cuda, t))
            cuda_must(
                cuMemcpyHtoDAsync_v2(run->weights[t], run->host[t], (size_t)bytes_of(t, sizes[t].type), run->stream),
                "weights");
    }
}

static void free_tensors(struct run *run) {
    for (int t = 0; t < SIZES; t++) {
        cuMemFreeHost(run->host[t]);
        cuMemFreeHost(run->gradient[t]);
        cuMemFreeHost(run->old[t]);
        cuMemFree_v2(run->weights[t]);
        cuMemFree_v2(run->gradients[t]);
    }
    cuStreamDestroy_v2(run->stream);
    cuCtxPopCurrent_v2(&run->context);
}

/* Copies the weights to host memory, if they are in device memory. */
static void download(struct run *run, int t, char *to) {
    if (!has(run->way->weights_on_cuda, t))
        return;
    cuda_must(cuMemcpyDtoHAsync_v2(to, run->weights[t], (size_t)bytes_of(t, sizes[t].type), run->stream), "weights");
    if (to == run->host[t])
        cuda_must(cuStreamSynchronize(run->stream), "weights");
}

static int gather(void *context, void *data, const uint64_t *bounds) {
    struct run *self = context;
    struct job *job = self->job;
    library_gather(&job->barrier, job->data, job->ranks, self->rank, data, bounds);
    return 0;
}

static void open_run(struct run *run) {
    const struct way *way = run->way;
    struct spillway_options options = library_options(run->job->store, way->host_memory_bytes);
    options.state = way->state;
    options.threads = way->threads;
    options.accumulate = way->adds;
    options.save_every = 2;
    options.rank = run->rank;
    options.ranks = way->ranks;
    options.gather = gather;
    options.gather_context = run;
    library_must(spillway_create(&options, &run->self), NULL, "create");
    if (way->weights_on_cuda != 0 || way->gradients_on_cuda != 0)
        library_must(spillway_use_cuda(run->self, 0, run->stream), run->self, "use_cuda");
    for (int t = 0; t < SIZES; t++) {
        struct spillway_tensor tensor = SPILLWAY_TENSOR_INIT;
        const bool on_cuda = has(way->weights_on_cuda, t);
        tensor.name = sizes[t].name;
        tensor.type = sizes[t].type + (on_cuda ? SPILLWAY_CUDA : 0);
        tensor.count = sizes[t].count;
        tensor.weights = on_cuda ? (void *)(uintptr_t)run->weights[t] : run->host[t];
        library_must(spillway_add(run->self, &tensor, NULL), run->self, "add");
    }
    library_must(spillway_open(run->self), run->self, "open");
}

/* Hands in a gradient that depends on the weights. The stream makes those in device memory, later. */
static void hand_in(struct run *run, int t, int64_t step, int micro) {
    const int type = sizes[t].gradient_type, how = run->way->adds ? SPILLWAY_ADD : SPILLWAY_SET;
    for (int64_t i = 0; i < sizes[t].count; i++) {
        const uint32_t word = (uint32_t)(step * 7919 + micro * 611953 + t * 104729 + i * 31) * 2654435761u;
        const float noise = (float)(word >> 8) * 0x1p-24f - 0.5f;
        sw_dtype_store((sw_dtype)type, run->gradient[t], i,
                       0.01f * noise + 0.002f * sw_dtype_load((sw_dtype)sizes[t].type, run->host[t], i));
    }
    if (step == NAN_STEP && t == 4)
        sw_dtype_store((sw_dtype)type, run->gradient[t], sizes[t].count - 1, NAN);
    if (!has(run->way->gradients_on_cuda, t)) {
        library_must(spillway_gradient(run->self, t, type, run->gradient[t], how), run->self, "gradient");
        return;
    }
    const CUdeviceptr to = run->gradients[t];
    cuda_must(cuMemcpyHtoDAsync_v2(to, run->gradient[t], (size_t)bytes_of(t, type), run->stream), "gradient");
    library_must(spillway_gradient(run->self, t, type + SPILLWAY_CUDA, (void *)(uintptr_t)to, how), run->self,
                 "gradient");
    /* An added gradient is not read any more. */
    if (run->way->adds)
        memset(run->gradient[t], SPOILT, (size_t)bytes_of(t, type));
}

/* The library has put back the context that the thread had. */
static void expect_context(const struct run *run) {
    CUcontext current = NULL;
    cuda_must(cuCtxPopCurrent_v2(&current), "context");
    assert_ptr_equal(current, run->context);
    cuda_must(cuCtxPushCurrent_v2(current), "context");
}

static void step(struct run *run, int64_t number) {
    static _Thread_local uint64_t before[SIZES];
    struct spillway_rates rates = SPILLWAY_RATES_INIT;
    struct spillway_result result = SPILLWAY_RESULT_INIT;
    rates.clip = number % 3 == 0 ? 0.0 : 0.5;
    for (int micro = 0; micro < (run->way->adds ? MICRO : 1); micro++)
        for (int t = 0; t < SIZES; t++)
            hand_in(run, t, number, micro);
    /* A backward pass that still reads the old weights. */
    for (int t = 0; t < SIZES; t++) {
        before[t] = XXH3_64bits(run->host[t], (size_t)bytes_of(t, sizes[t].type));
        download(run, t, run->old[t]);
    }
    library_must(run->way->overlaps ? spillway_step_start(run->self, &rates, &result)
                                    : spillway_step(run->self, &rates, &result),
                 run->self, "step");
    run->outcome.norm[number] = result.skipped != 0 ? -1.0 : result.grad_norm;
    for (int i = 0; i < SIZES; i++) {
        const int t = run->way->overlaps ? (int)((number + i) % SIZES) : i;
        if (run->way->overlaps)
            library_must(spillway_wait_tensor(run->self, t), run->self, "wait for a tensor");
        download(run, t, run->host[t]);
        run->outcome.weights[number][t] = XXH3_64bits(run->host[t], (size_t)bytes_of(t, sizes[t].type));
        if (has(run->way->weights_on_cuda, t))
            assert_int_equal(XXH3_64bits(run->old[t], (size_t)bytes_of(t, sizes[t].type)), before[t]);
    }
    library_must(spillway_wait(run->self, &result), run->self, "wait");
    expect_context(run);
}

static void read_state(struct run *run) {
    for (int part = 0; part < PARTS; part++)
        for (int t = 0; t < SIZES; t++) {
            float *values = calloc((size_t)sizes[t].count, sizeof *values);
            assert_non_null(values);
            library_must(spillway_read(run->self, t, part, 0, sizes[t].count, values), run->self, "read");
            run->outcome.state[part][t] = XXH3_64bits(values, (size_t)sizes[t].count * sizeof *values);
            free(values);
        }
}

/* Closes in the middle, spoils the weights, and opens again, which brings them back. */
static void reopen(struct run *run) {
    uint64_t want[SIZES];
    library_must(spillway_save(run->self), run->self, "save");
    spillway_close(run->self);
    for (int t = 0; t < SIZES; t++) {
        const int64_t bytes = bytes_of(t, sizes[t].type);
        want[t] = XXH3_64bits(run->host[t], (size_t)bytes);
        memset(run->host[t], SPOILT, (size_t)bytes);
        if (has(run->way->weights_on_cuda, t))
            cuda_must(cuMemcpyHtoDAsync_v2(run->weights[t], run->host[t], (size_t)bytes, run->stream), "spoiling");
    }
    open_run(run);
    for (int t = 0; t < SIZES; t++) {
        download(run, t, run->host[t]);
        assert_int_equal(XXH3_64bits(run->host[t], (size_t)bytes_of(t, sizes[t].type)), want[t]);
    }
}

static void *train(void *argument) {
    struct run *run = argument;
    make_tensors(run);
    open_run(run);
    for (int64_t number = 1; number <= STEPS; number++) {
        step(run, number);
        if (number == STEPS / 2)
            reopen(run);
    }
    read_state(run);
    spillway_close(run->self);
    free_tensors(run);
    return NULL;
}

/* Runs all processes of a way on a new store. */
static void train_all(void **state, const struct way *way, struct job *job) {
    char path[SUPPORT_PATH_CHARS];
    pthread_t thread[MOST_PROCESSES];
    *job = (struct job){.ranks = way->ranks > 0 ? way->ranks : 1, .store = library_store(state, path)};
    pthread_barrier_init(&job->barrier, NULL, (unsigned)job->ranks);
    for (int rank = 0; rank < job->ranks; rank++)
        job->run[rank] = (struct run){.job = job, .rank = rank, .way = way};
    if (job->ranks == 1)
        train(&job->run[0]);
    for (int rank = 0; job->ranks > 1 && rank < job->ranks; rank++)
        assert_int_equal(pthread_create(&thread[rank], NULL, train, &job->run[rank]), 0);
    for (int rank = 0; job->ranks > 1 && rank < job->ranks; rank++)
        pthread_join(thread[rank], NULL);
    pthread_barrier_destroy(&job->barrier);
    library_remove_stores(state);
}

static void expect_alike(const struct outcome *got, const struct outcome *want) {
    for (int64_t number = 1; number <= STEPS; number++) {
        assert_memory_equal(&got->norm[number], &want->norm[number], sizeof(double));
        for (int t = 0; t < SIZES; t++)
            if (got->weights[number][t] != want->weights[number][t])
                fail_msg("step %lld: the weights of '%s' differ from those of host pointers", (long long)number,
                         sizes[t].name);
    }
    for (int part = 0; part < PARTS; part++)
        for (int t = 0; t < SIZES; t++)
            if (got->state[part][t] != want->state[part][t])
                fail_msg("part %d of the state of '%s' differs from that of host pointers", part, sizes[t].name);
}

/* Compares a way with the same one by host pointers in one process. */
static void expect_bits_of_host_pointers(void **state, const struct way *way) {
    static struct job job, plain;
    struct way host = *way;
    host.weights_on_cuda = host.gradients_on_cuda = 0;
    host.ranks = 0;
    host.overlaps = false;
    host.threads = 1;
    train_all(state, &host, &plain);
    assert_true(plain.run[0].outcome.norm[NAN_STEP] == -1.0 && plain.run[0].outcome.norm[1] > 0.5);
    sw_emulation_set_delays(DELAY_NS, 7);
    train_all(state, way, &job);
    sw_emulation_set_delays(0, 0);
    for (int rank = 0; rank < job.ranks; rank++)
        expect_alike(&job.run[rank].outcome, &plain.run[0].outcome);
    assert_int_equal(sw_emulation_pinned_bytes(), 0);
}

enum { ALL = (1 << SIZES) - 1, SOME = 0x5a, OTHERS = 0x3c };

static void has_the_bits_of_host_pointers_in_host_memory(void **state) {
    expect_bits_of_host_pointers(state, &(struct way){ALL, ALL, ON_HOST, .threads = 2});
}

static void has_the_bits_of_host_pointers_on_the_drive(void **state) {
    expect_bits_of_host_pointers(state, &(struct way){ALL, ALL, ON_DRIVE, SPILLWAY_STATE_8BIT, .threads = 1});
}

static void tensors_may_be_on_both_sides(void **state) {
    expect_bits_of_host_pointers(state, &(struct way){SOME, OTHERS, ON_HOST, SPILLWAY_STATE_BF16, .threads = 1});
    expect_bits_of_host_pointers(state, &(struct way){0, ALL, ON_DRIVE, .threads = 1});
    expect_bits_of_host_pointers(state, &(struct way){ALL, 0, ON_HOST, .threads = 1});
}

static void gradients_add_up(void **state) {
    expect_bits_of_host_pointers(state, &(struct way){ALL, ALL, ON_HOST, .threads = 1, .adds = true});
    expect_bits_of_host_pointers(state,
                                 &(struct way){SOME, OTHERS, ON_HOST, .threads = 1, .adds = true, .overlaps = true});
}

static void steps_may_return_early(void **state) {
    expect_bits_of_host_pointers(state, &(struct way){ALL, ALL, ON_HOST, .threads = 1, .overlaps = true});
    expect_bits_of_host_pointers(state, &(struct way){ALL, ALL, ON_DRIVE, .threads = 1, .overlaps = true});
}

static void processes_share_a_store(void **state) {
    expect_bits_of_host_pointers(state, &(struct way){ALL, ALL, ON_HOST, .threads = 1, .ranks = 2});
    expect_bits_of_host_pointers(state, &(struct way){SOME, ALL, ON_DRIVE, .threads = 1, .ranks = 2, .overlaps = true});
}

/* One process, opened, of all tensors in device memory. */
static void open_one(void **state, struct job *job, const struct way *way, char path[SUPPORT_PATH_CHARS]) {
    *job = (struct job){.ranks = 1, .store = library_store(state, path)};
    job->run[0] = (struct run){.job = job, .way = way};
    make_tensors(&job->run[0]);
    open_run(&job->run[0]);
}

static void state_from_elsewhere_reaches_the_device(void **state) {
    static const struct way way = {ALL, ALL, ON_HOST, .threads = 1};
    static struct job job;
    char path[SUPPORT_PATH_CHARS];
    struct spillway_state given = SPILLWAY_STATE_INIT;
    float *masters[SIZES];
    open_one(state, &job, &way, path);
    struct run *run = &job.run[0];
    for (int t = 0; t < SIZES; t++) {
        masters[t] = calloc((size_t)sizes[t].count, sizeof *masters[t]);
        assert_non_null(masters[t]);
        for (int64_t i = 0; i < sizes[t].count; i++)
            masters[t][i] = (float)(i % 17) * 0.25f;
    }
    given.master = (const float *const *)masters;
    /* The stream still reads the old weights. */
    sw_emulation_set_delays(DELAY_NS, 3);
    for (int t = 0; t < SIZES; t++)
        download(run, t, run->old[t]);
    library_must(spillway_write(run->self, &given), run->self, "write");
    sw_emulation_set_delays(0, 0);
    for (int t = 0; t < SIZES; t++) {
        assert_memory_equal(run->old[t], run->host[t], (size_t)bytes_of(t, sizes[t].type));
        download(run, t, run->host[t]);
        for (int64_t i = 0; i < sizes[t].count; i++)
            assert_true(sw_dtype_load((sw_dtype)sizes[t].type, run->host[t], i) == masters[t][i]);
        free(masters[t]);
    }
    spillway_close(run->self);
    free_tensors(run);
    library_remove_stores(state);
}

/* The staging memory is part of the budget and of what the library says that it takes. */
static void staging_memory_counts(void **state) {
    enum { STAGING_BYTES = 9 << 19 };
    static const struct way on_cuda = {ALL, ALL, ON_HOST, .threads = 1}, on_host = {0, 0, ON_HOST, .threads = 1};
    static struct job job;
    char path[SUPPORT_PATH_CHARS];
    int64_t bytes[2];
    for (int i = 0; i < 2; i++) {
        struct spillway_usage usage = SPILLWAY_USAGE_INIT;
        open_one(state, &job, i == 0 ? &on_host : &on_cuda, path);
        const size_t pinned_bytes = sw_emulation_pinned_bytes();
        library_must(spillway_get_usage(job.run[0].self, &usage), job.run[0].self, "usage");
        bytes[i] = usage.host_bytes;
        spillway_close(job.run[0].self);
        assert_int_equal(pinned_bytes - sw_emulation_pinned_bytes(), i == 0 ? 0 : STAGING_BYTES);
        free_tensors(&job.run[0]);
        library_remove_stores(state);
    }
    assert_int_equal(bytes[1] - bytes[0], STAGING_BYTES);
}

static void expect_refusal(int status, const spillway *self, int want, const char *words) {
    if (status != want || strstr(spillway_error(self), words) == NULL)
        fail_msg("status %d (%s), expected %d with \"%s\"", status, spillway_error(self), want, words);
}

static int try_add(spillway *self, int type, void *weights) {
    struct spillway_tensor tensor = SPILLWAY_TENSOR_INIT;
    tensor.name = "w";
    tensor.type = type;
    tensor.count = 1;
    tensor.weights = weights;
    return spillway_add(self, &tensor, NULL);
}

static void wrong_pointers_are_refused(void **state) {
    char path[SUPPORT_PATH_CHARS];
    alignas(4) char on_host[4] = {0};
    spillway *self = NULL;
    CUcontext context;
    CUdeviceptr here, there;
    struct sw_emulation_gpu gpu = sw_emulation_default_gpu;
    gpu.gpus = 2;
    sw_emulation_set_gpu(&gpu);
    for (int device = 0; device < 2; device++) {
        cuda_must(cuDevicePrimaryCtxRetain(&context, device), "context");
        cuda_must(cuCtxPushCurrent_v2(context), "context");
        cuda_must(cuMemAlloc_v2(device == 0 ? &here : &there, 4), "memory");
        cuda_must(cuCtxPopCurrent_v2(&context), "context");
    }
    const struct spillway_options options = library_options(library_store(state, path), ON_HOST);
    library_must(spillway_create(&options, &self), NULL, "create");
    void *const own = (void *)(uintptr_t)here, *const other = (void *)(uintptr_t)there;
    expect_refusal(try_add(self, SPILLWAY_F32 + SPILLWAY_CUDA, own), self, SPILLWAY_ERROR_ARGUMENT,
                   "spillway_use_cuda");
    expect_refusal(spillway_use_cuda(self, 2, NULL), self, SPILLWAY_ERROR_ARGUMENT, "no CUDA device 2");
    expect_refusal(spillway_use_cuda(self, -1, NULL), self, SPILLWAY_ERROR_ARGUMENT, "no CUDA device -1");
    library_must(spillway_use_cuda(self, 0, NULL), self, "use_cuda");
    expect_refusal(spillway_use_cuda(self, 1, NULL), self, SPILLWAY_ERROR_ARGUMENT, "uses CUDA device 0");
    expect_refusal(try_add(self, SPILLWAY_F32 + SPILLWAY_CUDA, on_host), self, SPILLWAY_ERROR_ARGUMENT,
                   "the weights of 'w' are not in the memory of a CUDA device");
    expect_refusal(try_add(self, SPILLWAY_F32 + SPILLWAY_CUDA, other), self, SPILLWAY_ERROR_ARGUMENT,
                   "the weights of 'w' are on CUDA device 1");
    expect_refusal(try_add(self, 3 + SPILLWAY_CUDA, own), self, SPILLWAY_ERROR_ARGUMENT, "type 3 of 'w'");
    expect_refusal(try_add(self, 2 * SPILLWAY_CUDA, own), self, SPILLWAY_ERROR_ARGUMENT, "type 32 of 'w'");
    library_must(try_add(self, SPILLWAY_F32 + SPILLWAY_CUDA, own), self, "add");
    library_must(spillway_open(self), self, "open");
    expect_refusal(spillway_gradient(self, 0, SPILLWAY_F32 + SPILLWAY_CUDA, on_host, SPILLWAY_SET), self,
                   SPILLWAY_ERROR_ARGUMENT, "the gradients of 'w' are not in the memory");
    expect_refusal(spillway_gradient(self, 0, SPILLWAY_F32 + SPILLWAY_CUDA, other, SPILLWAY_SET), self,
                   SPILLWAY_ERROR_ARGUMENT, "the gradients of 'w' are on CUDA device 1");
    library_must(spillway_use_cuda(self, 0, NULL), self, "another stream");
    library_must(spillway_gradient(self, 0, SPILLWAY_F32 + SPILLWAY_CUDA, own, SPILLWAY_SET), self, "gradient");
    spillway_close(self);
    library_remove_stores(state);
}

static void a_store_that_opened_without_a_gpu_has_none(void **state) {
    char path[SUPPORT_PATH_CHARS];
    float weight = 0.0f;
    spillway *self = NULL;
    const struct spillway_options options = library_options(library_store(state, path), ON_HOST);
    library_must(spillway_create(&options, &self), NULL, "create");
    library_must(try_add(self, SPILLWAY_F32, &weight), self, "add");
    library_must(spillway_open(self), self, "open");
    expect_refusal(spillway_use_cuda(self, 0, NULL), self, SPILLWAY_ERROR_ARGUMENT, "before spillway_open");
    expect_refusal(spillway_gradient(self, 0, SPILLWAY_F32 + SPILLWAY_CUDA, &weight, SPILLWAY_SET), self,
                   SPILLWAY_ERROR_ARGUMENT, "spillway_use_cuda");
    spillway_close(self);
    library_remove_stores(state);
}

static void a_machine_without_a_gpu_is_refused(void **state) {
    char path[SUPPORT_PATH_CHARS];
    spillway *self = NULL;
    struct sw_emulation_gpu gpu = sw_emulation_default_gpu;
    const struct spillway_options options = library_options(library_store(state, path), ON_HOST);
    library_must(spillway_create(&options, &self), NULL, "create");
    gpu.gpus = 0;
    gpu.start = cudaErrorNoDevice;
    sw_emulation_set_gpu(&gpu);
    expect_refusal(spillway_use_cuda(self, 0, NULL), self, SPILLWAY_ERROR_UNSUPPORTED, "no GPU of NVIDIA");
    sw_emulation_set_gpu(&sw_emulation_default_gpu);
    spillway_close(self);
}

static void memory_that_cannot_be_pinned_is_refused(void **state) {
    char path[SUPPORT_PATH_CHARS];
    CUdeviceptr memory;
    CUcontext context;
    spillway *self = NULL;
    struct sw_emulation_gpu gpu = sw_emulation_default_gpu;
    gpu.pinnable_bytes = 1 << 20;
    sw_emulation_set_gpu(&gpu);
    cuda_must(cuDevicePrimaryCtxRetain(&context, 0), "context");
    cuda_must(cuCtxPushCurrent_v2(context), "context");
    cuda_must(cuMemAlloc_v2(&memory, 4), "memory");
    const struct spillway_options options = library_options(library_store(state, path), ON_HOST);
    library_must(spillway_create(&options, &self), NULL, "create");
    library_must(spillway_use_cuda(self, 0, NULL), self, "use_cuda");
    library_must(try_add(self, SPILLWAY_F32 + SPILLWAY_CUDA, (void *)(uintptr_t)memory), self, "add");
    expect_refusal(spillway_open(self), self, SPILLWAY_ERROR_MEMORY, "pinning staging memory for the GPU");
    spillway_close(self);
    cuMemFree_v2(memory);
    cuda_must(cuCtxPopCurrent_v2(&context), "context");
    sw_emulation_set_gpu(&sw_emulation_default_gpu);
    library_remove_stores(state);
}

/* The last test: the emulated GPU stays broken. */
static void an_error_of_the_gpu_ends_the_handle(void **state) {
    static const struct way way = {ALL, ALL, ON_HOST, .threads = 1};
    static struct job job;
    char path[SUPPORT_PATH_CHARS];
    const struct spillway_rates rates = SPILLWAY_RATES_INIT;
    open_one(state, &job, &way, path);
    struct run *run = &job.run[0];
    for (int t = 0; t < SIZES; t++)
        hand_in(run, t, 1, 0);
    sw_emulation_break("a kernel of the caller went wrong");
    expect_refusal(spillway_step(run->self, &rates, NULL), run->self, SPILLWAY_ERROR_DEVICE, "CUDA: ");
    expect_refusal(spillway_wait(run->self, NULL), run->self, SPILLWAY_ERROR_ARGUMENT, "can only be closed");
    spillway_close(run->self);
    library_remove_stores(state);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, support_make_folder, library_remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(has_the_bits_of_host_pointers_in_host_memory),
        IN_FOLDER(has_the_bits_of_host_pointers_on_the_drive),
        IN_FOLDER(tensors_may_be_on_both_sides),
        IN_FOLDER(gradients_add_up),
        IN_FOLDER(steps_may_return_early),
        IN_FOLDER(processes_share_a_store),
        IN_FOLDER(state_from_elsewhere_reaches_the_device),
        IN_FOLDER(staging_memory_counts),
        IN_FOLDER(wrong_pointers_are_refused),
        IN_FOLDER(a_store_that_opened_without_a_gpu_has_none),
        IN_FOLDER(a_machine_without_a_gpu_is_refused),
        IN_FOLDER(memory_that_cannot_be_pinned_is_refused),
        IN_FOLDER(an_error_of_the_gpu_ends_the_handle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
