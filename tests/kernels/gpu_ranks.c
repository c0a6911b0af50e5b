/* A rank of a test job whose ranks exchange the memory of emulated GPUs, by an emulated NCCL: what a GPU gives to the
 * comm, and in which order its stream does it. Prints "ok" on rank 0 where every collective gave the host's bits. */
#include "core/ranks/comm_private.h"
#include "core/rng.h"
#include "core/size.h"
#include "kernels/device.h"
#include "tests/equipment/cuda/runtime.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ELEMS = 6000, MOST_RANKS = 8, AT_ONCE = 3, TYPES = 3, DELAY_NS = 200000, STAGING_TIMES = 5 };

static void require(sw_status status) {
    if (status == SW_OK)
        return;
    fprintf(stderr, "%s\n", sw_error_message(status));
    exit(1);
}

/* The GPU's memory, of which each collective has a vector and a share. */
struct gpu {
    struct sw_device *device;
    struct sw_stream *stream;
    struct sw_memory *memory, *staging;
    struct sw_comm_device comm;
};

struct work {
    int number;
    bool gathers;
    sw_dtype type, to_type;
    int64_t elems, bounds[MOST_RANKS + 1], bounds_bytes[MOST_RANKS + 1];
    char *vector, *share; /* on the GPU */
    struct sw_comm_request *request;
};

static struct gpu open_gpu(struct sw_comm *comm, uint64_t seed) {
    struct gpu gpu = {0};
    const int64_t staging_bytes = sw_comm_least_staging_bytes(sw_comm_identity(comm)->ranks) * STAGING_TIMES;
    const struct sw_comm_identity *place = sw_comm_identity(comm);
    struct sw_emulation_gpu machine = sw_emulation_default_gpu;
    char name[sizeof "cuda:" + 10];
    machine.gpus = place->ranks;
    sw_emulation_set_gpu(&machine);
    sw_emulation_set_delays(DELAY_NS, seed + (uint64_t)place->rank);
    snprintf(name, sizeof name, "cuda:%u", (unsigned)place->rank);
    require(sw_device_open(name, 0, &gpu.device));
    require(sw_stream_open(gpu.device, &gpu.stream));
    require(
        sw_memory_open(gpu.device, "vectors", SW_MEMORY_DEVICE, AT_ONCE * 2 * MOST_ELEMS * sizeof(float), &gpu.memory));
    require(sw_memory_open(gpu.device, "staging", SW_MEMORY_DEVICE, staging_bytes, &gpu.staging));
    require(sw_device_comm_open(gpu.stream, &gpu.comm));
    require(sw_comm_use_nccl(comm, &gpu.comm));
    require(sw_comm_use_staging(comm, sw_memory_base(gpu.staging), staging_bytes));
    return gpu;
}

static void close_gpu(struct gpu *gpu) {
    sw_device_comm_close(&gpu->comm);
    sw_stream_close(gpu->stream);
    sw_memory_close(gpu->staging);
    sw_memory_close(gpu->memory);
    sw_device_close(gpu->device);
}

/* Makes a rank's values, of many magnitudes. */
static void fill(const struct work *work, uint64_t seed, int rank, char *out) {
    for (int64_t i = 0; i < work->elems; i++) {
        const struct sw_rng_block block = sw_rng(seed + (uint64_t)work->number, (uint64_t)rank, (uint64_t)i);
        const float value = ldexpf((float)(int32_t)block.word[0] * 0x1p-31f, (int)(block.word[1] % 17) - 8);
        sw_dtype_store(work->type, out, i, value);
    }
}

static struct work draw_work(const struct gpu *gpu, int ranks, uint64_t seed, int number) {
    const struct sw_rng_block drawn = sw_rng(seed, 1, (uint64_t)number);
    char *memory = sw_memory_base(gpu->memory);
    const int64_t room = MOST_ELEMS * (int64_t)sizeof(float), place = number % AT_ONCE;
    struct work work = {.number = number,
                        .gathers = drawn.word[0] % 3 == 0,
                        .type = drawn.word[1] % TYPES,
                        .to_type = drawn.word[2] % TYPES,
                        .elems = drawn.word[3] % MOST_ELEMS,
                        .vector = memory + 2 * place * room,
                        .share = memory + (2 * place + 1) * room};
    sw_comm_even_bounds(work.elems, 1 + drawn.word[0] % 2 * 63, ranks, work.bounds);
    for (int rank = 0; rank <= ranks; rank++)
        work.bounds_bytes[rank] = work.bounds[rank] * sw_dtype_bytes(work.type);
    return work;
}

/* Threads begin with the first of several GPUs as their own. */
static void be_another_thread(void) {
    require(cudaSetDevice(0) == cudaSuccess ? SW_OK : SW_ERR_DEVICE);
}

/* The host's bytes are taken before the call returns, as they are not pinned. */
static void begin(struct sw_comm *comm, const struct gpu *gpu, struct work *work, uint64_t seed, char *host) {
    const int rank = sw_comm_identity(comm)->rank;
    const int64_t bytes = sw_dtype_bytes(work->type);
    fill(work, seed, rank, host);
    if (work->gathers) {
        const int64_t first = work->bounds[rank], count = work->bounds[rank + 1] - first;
        require(sw_copy_to_device(gpu->stream, work->share, host + first * bytes, count * bytes));
        be_another_thread();
        require(sw_comm_all_gather(comm,
                                   &(struct sw_comm_gather){.what = "gather",
                                                            .index = work->number,
                                                            .data = work->vector,
                                                            .own = work->share,
                                                            .bounds_bytes = work->bounds_bytes},
                                   &work->request));
        return;
    }
    require(sw_copy_to_device(gpu->stream, work->vector, host, work->elems * bytes));
    be_another_thread();
    require(sw_comm_reduce_scatter(comm,
                                   &(struct sw_comm_reduce){.what = "reduce",
                                                            .index = work->number,
                                                            .from = work->vector,
                                                            .bounds = work->bounds,
                                                            .to = work->share,
                                                            .type = work->type,
                                                            .to_type = work->to_type},
                                   &work->request));
}

/* Makes the share or the whole from what every rank has. Returns the bytes. */
static int64_t truth(const struct work *work, int rank, int ranks, uint64_t seed, char *all, char *out) {
    const int64_t bytes = sw_dtype_bytes(work->type), stride = MOST_ELEMS * (int64_t)sizeof(float);
    for (int other = 0; other < ranks; other++)
        fill(work, seed, other, all + other * stride);
    if (work->gathers) {
        for (int other = 0; other < ranks; other++)
            memcpy(out + work->bounds_bytes[other], all + other * stride + work->bounds_bytes[other],
                   (size_t)(work->bounds_bytes[other + 1] - work->bounds_bytes[other]));
        return work->elems * bytes;
    }
    const int64_t first = work->bounds[rank], count = work->bounds[rank + 1] - first;
    sw_comm_sum_host(&(struct sw_comm_sum){.type = work->type,
                                           .to_type = work->to_type,
                                           .elems = count,
                                           .rank = 0,
                                           .ranks = ranks,
                                           .own = all + first * bytes,
                                           .others = all + stride + first * bytes,
                                           .stride_bytes = stride,
                                           .to = out});
    return count * sw_dtype_bytes(work->to_type);
}

/* Looks by another stream, which sees what was done before the request was said to be. */
static void check(struct sw_comm *comm, const struct gpu *gpu, const struct work *work, uint64_t seed) {
    static char all[MOST_RANKS * MOST_ELEMS * sizeof(float)], want[MOST_ELEMS * sizeof(float)], got[sizeof want];
    const int rank = sw_comm_identity(comm)->rank;
    const int64_t bytes = truth(work, rank, sw_comm_identity(comm)->ranks, seed, all, want);
    struct sw_stream *other = NULL;
    require(sw_stream_open(gpu->device, &other));
    require(sw_copy_to_host(other, got, work->gathers ? work->vector : work->share, bytes));
    require(sw_stream_synchronize(other));
    sw_stream_close(other);
    if (memcmp(got, want, (size_t)bytes) == 0)
        return;
    fprintf(stderr, "rank %d: %s %d of %lld elements, %s to %s, has other bits (seed %llu)\n", rank,
            work->gathers ? "gather" : "reduction", work->number, (long long)work->elems, sw_dtype_name(work->type),
            sw_dtype_name(work->to_type), (unsigned long long)seed);
    exit(1);
}

int main(int argc, char **argv) {
    const uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    const int cases = argc > 2 ? atoi(argv[2]) : 1;
    static char host[MOST_ELEMS * sizeof(float)];
    struct sw_comm *comm = NULL;
    require(sw_comm_open(&comm));
    struct gpu gpu = open_gpu(comm, seed);
    for (int first = 0; first < cases; first += AT_ONCE) {
        struct work works[AT_ONCE];
        for (int i = 0; i < AT_ONCE; i++) {
            works[i] = draw_work(&gpu, sw_comm_identity(comm)->ranks, seed, first + i);
            begin(comm, &gpu, &works[i], seed, host);
        }
        for (int i = 0; i < AT_ONCE; i++) {
            require(sw_comm_wait(works[i].request));
            check(comm, &gpu, &works[i], seed);
        }
    }
    require(sw_comm_barrier(comm, "the end"));
    if (sw_comm_identity(comm)->rank == 0)
        puts("ok");
    sw_comm_close(comm);
    close_gpu(&gpu);
    return 0;
}
