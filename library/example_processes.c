/* Fits two tensors in several processes that share a store: `example_processes STORE STEPS PROCESSES [WEIGHTS]`. Kill
 * all of them at any time and start it again, with another number of processes if you like. WEIGHTS: a file for the
 * final weights, from each process's own memory one after the other, which are alike.
 *
 * The processes are forked before anything is opened, and gather by memory that they share. Processes that something
 * else started, perhaps on several machines, would give MPI_Allgatherv as `gather` instead.
 *
 *     cc example_processes.c $(pkg-config --cflags --libs spillway) -o example_processes -pthread */
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <spillway.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TENSORS = 2, COUNT = 200000, MOST_PROCESSES = 8, SLOT_BYTES = 1 << 18 };

/* Memory of all processes. Each has a slot, through which its part goes piece by piece. */
struct shared {
    pthread_barrier_t barrier;
    char slot[MOST_PROCESSES][SLOT_BYTES];
};

struct process {
    int rank, processes;
    struct shared *shared;
};

static float weights[TENSORS][COUNT], gradients[TENSORS][COUNT];

/* Returns the bytes of a part in its piece that begins at byte `at`. */
static size_t piece_of(const uint64_t *bounds, int rank, uint64_t at) {
    const uint64_t bytes = bounds[rank + 1] - bounds[rank], left = at < bytes ? bytes - at : 0;
    return left < SLOT_BYTES ? (size_t)left : SLOT_BYTES;
}

static int gather(void *context, void *data, const uint64_t *bounds) {
    const struct process *self = context;
    struct shared *shared = self->shared;
    uint64_t longest = 0;
    for (int rank = 0; rank < self->processes; rank++)
        if (bounds[rank + 1] - bounds[rank] > longest)
            longest = bounds[rank + 1] - bounds[rank];
    for (uint64_t at = 0; at < longest; at += SLOT_BYTES) {
        memcpy(shared->slot[self->rank], (char *)data + bounds[self->rank] + at, piece_of(bounds, self->rank, at));
        pthread_barrier_wait(&shared->barrier);
        for (int rank = 0; rank < self->processes; rank++)
            if (rank != self->rank)
                memcpy((char *)data + bounds[rank] + at, shared->slot[rank], piece_of(bounds, rank, at));
        pthread_barrier_wait(&shared->barrier);
    }
    return 0;
}

/* The gradient of half the squared distance to a target that wobbles from step to step. All processes have the mean
 * over all of them, which a program with batches of its own would compute by an all-reduce. */
static void compute_gradients(int64_t step) {
    for (int t = 0; t < TENSORS; t++)
        for (int i = 0; i < COUNT; i++)
            gradients[t][i] = weights[t][i] - (float)(i % 100) * 0.01f - (float)((i + 7 * step) % 13 - 6) * 0.02f;
}

static int open_store(const struct process *self, const char *folder, spillway **store) {
    static const char *const names[TENSORS] = {"first", "second"};
    struct spillway_options options = SPILLWAY_OPTIONS_INIT;
    options.store = folder;
    options.host_memory_bytes = UINT64_C(64) << 20;
    options.save_every = 2;
    options.threads = 1;
    options.allow_buffered = 1;
    options.rank = self->rank;
    options.ranks = self->processes;
    options.gather = gather;
    options.gather_context = (void *)self;
    int status = spillway_create(&options, store);
    for (int t = 0; t < TENSORS && status == SPILLWAY_OK; t++) {
        struct spillway_tensor tensor = SPILLWAY_TENSOR_INIT;
        tensor.name = names[t];
        tensor.type = SPILLWAY_F32;
        tensor.count = COUNT;
        tensor.weights = weights[t];
        status = spillway_add(*store, &tensor, NULL);
    }
    return status == SPILLWAY_OK ? spillway_open(*store) : status;
}

static int train(const struct process *self, spillway *store, int64_t steps) {
    struct spillway_rates rates = SPILLWAY_RATES_INIT;
    struct spillway_result result = SPILLWAY_RESULT_INIT;
    int status = SPILLWAY_OK;
    rates.lr = 0.01;
    rates.clip = 1.0;
    while (status == SPILLWAY_OK && spillway_last_step(store) < steps) {
        compute_gradients(spillway_last_step(store) + 1);
        for (int t = 0; t < TENSORS && status == SPILLWAY_OK; t++)
            status = spillway_gradient(store, t, SPILLWAY_F32, gradients[t], SPILLWAY_SET);
        if (status == SPILLWAY_OK)
            status = spillway_step(store, &rates, &result);
        if (status == SPILLWAY_OK && self->rank == 0) {
            printf("step %" PRId64 " norm %.6f%s\n", result.step, result.grad_norm,
                   result.committed ? " committed" : "");
            fflush(stdout);
        }
    }
    return status == SPILLWAY_OK ? spillway_save(store) : status;
}

/* Appends the weights to a file, one process after the other. */
static int write_weights(const struct process *self, const char *path) {
    int written = 1;
    for (int rank = 0; rank < self->processes; rank++) {
        FILE *file = rank == self->rank ? fopen(path, rank == 0 ? "wb" : "ab") : NULL;
        if (rank == self->rank)
            written = file != NULL && fwrite(weights, sizeof weights, 1, file) == 1;
        if (file != NULL && fclose(file) != 0)
            written = 0;
        pthread_barrier_wait(&self->shared->barrier);
    }
    if (!written)
        perror(path);
    return !written;
}

static int run_process(const struct process *self, int argc, char **argv) {
    spillway *store = NULL;
    int status = open_store(self, argv[1], &store);
    if (status == SPILLWAY_OK && self->rank == 0) {
        printf("from step %" PRId64 "\n", spillway_last_step(store));
        fflush(stdout);
    }
    if (status == SPILLWAY_OK)
        status = train(self, store, strtoll(argv[2], NULL, 10));
    if (status != SPILLWAY_OK)
        fprintf(stderr, "process %d: %s (%s)\n", self->rank, spillway_error(store), spillway_status_name(status));
    spillway_close(store);
    return status != SPILLWAY_OK || (argc > 4 && write_weights(self, argv[4]));
}

/* Waits for all processes. When one fails, the others would wait for it in `gather`, so they end with it. */
static int wait_for_all(const pid_t *child, int processes) {
    int failed = 0, status;
    for (int ended = 0; ended < processes; ended++) {
        if (wait(&status) < 0 || status == 0)
            continue;
        for (int rank = 0; rank < processes && !failed; rank++)
            kill(child[rank], SIGKILL);
        failed = 1;
    }
    return failed;
}

int main(int argc, char **argv) {
    const int processes = argc == 4 || argc == 5 ? atoi(argv[3]) : 0;
    pid_t child[MOST_PROCESSES];
    pthread_barrierattr_t attributes;
    if (processes < 1 || processes > MOST_PROCESSES) {
        fprintf(stderr, "usage: %s STORE STEPS PROCESSES [WEIGHTS]\n", argv[0]);
        return 2;
    }
    struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || pthread_barrierattr_init(&attributes) != 0 ||
        pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) != 0 ||
        pthread_barrier_init(&shared->barrier, &attributes, (unsigned)processes) != 0) {
        perror("shared memory");
        return 1;
    }
    for (int rank = 0; rank < processes; rank++) {
        const struct process self = {rank, processes, shared};
        child[rank] = fork();
        if (child[rank] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            exit(run_process(&self, argc, argv));
        }
        if (child[rank] < 0) {
            perror("fork");
            return 1;
        }
    }
    return wait_for_all(child, processes);
}
