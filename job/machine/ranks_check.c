/* Checks NCCL: runs the collectives of training on small buffers whose results every rank knows. */
#include "core/size.h"
#include "job/machine/ranks.h"

#include <assert.h>
#include <stdlib.h>

/* Shares are unequal and not multiples of any block size. */
enum { SHARE_ELEMS = 1000, ODD_ELEMS = 13, VALUES = 7 };

/* Returns an element of a rank: a small whole number, so that sums are exact in every type and order. */
static float value_of(int rank, int64_t i) {
    return (float)((rank + 1) * (1 + i % VALUES));
}

struct check {
    struct sw_comm *comm;
    struct sw_stream *stream;
    int rank, ranks;
    int64_t *bounds, *bounds_bytes; /* ranks + 1 entries each: where each rank's share begins */
    int64_t elems;                  /* total number of elements */
    float *host;
    char *device; /* two vectors of `elems` fp32 values, then the staging memory */
};

static sw_status to_device(const struct check *c, float *device) {
    SW_TRY(sw_copy_to_device(c->stream, device, c->host, c->elems * (int64_t)sizeof *c->host));
    return sw_stream_synchronize(c->stream);
}

static sw_status to_host(const struct check *c, const float *device) {
    SW_TRY(sw_stream_synchronize(c->stream));
    SW_TRY(sw_copy_to_host(c->stream, c->host, device, c->elems * (int64_t)sizeof *c->host));
    return sw_stream_synchronize(c->stream);
}

static sw_status wrong(const struct check *c, const char *collective, int64_t i, float want) {
    return sw_fail(
        SW_ERR_DEVICE,
        "NCCL's %s over these %d GPUs gives wrong results (element %lld is %g and should be %g): try another "
        "version of NCCL, or NCCL_P2P_DISABLE=1, and report it",
        collective, c->ranks, (long long)i, (double)c->host[i], (double)want);
}

static int owner_of(const struct check *c, int64_t i) {
    int rank = 0;
    while (i >= c->bounds[rank + 1])
        rank++;
    return rank;
}

static sw_status check_gather(struct check *c) {
    struct sw_comm_request *request;
    float *data = (float *)(void *)c->device;
    for (int64_t i = 0; i < c->elems; i++)
        c->host[i] = owner_of(c, i) == c->rank ? value_of(c->rank, i) : -1.0f;
    SW_TRY(to_device(c, data));
    SW_TRY(sw_comm_all_gather(
        c->comm, &(struct sw_comm_gather){.what = "test of NCCL", .data = data, .bounds_bytes = c->bounds_bytes},
        &request));
    SW_TRY(sw_comm_wait(request));
    SW_TRY(to_host(c, data));
    for (int64_t i = 0; i < c->elems; i++)
        if (c->host[i] != value_of(owner_of(c, i), i))
            return wrong(c, "all-gather", i, value_of(owner_of(c, i), i));
    return SW_OK;
}

static sw_status check_reduce(struct check *c) {
    struct sw_comm_request *request;
    float *from = (float *)(void *)c->device, *to = from + c->elems;
    for (int64_t i = 0; i < c->elems; i++)
        c->host[i] = value_of(c->rank, i);
    SW_TRY(to_device(c, from));
    SW_TRY(sw_comm_reduce_scatter(c->comm,
                                  &(struct sw_comm_reduce){.what = "test of NCCL",
                                                           .from = from,
                                                           .bounds = c->bounds,
                                                           .to = to + c->bounds[c->rank],
                                                           .type = SW_F32,
                                                           .to_type = SW_F32},
                                  &request));
    SW_TRY(sw_comm_wait(request));
    SW_TRY(to_host(c, to));
    const int sum_of_ranks = c->ranks * (c->ranks + 1) / 2;
    for (int64_t i = c->bounds[c->rank]; i < c->bounds[c->rank + 1]; i++)
        if (c->host[i] != (float)sum_of_ranks * value_of(0, i))
            return wrong(c, "reduce-scatter", i, (float)sum_of_ranks * value_of(0, i));
    return SW_OK;
}

static sw_status check_broadcast(struct check *c) {
    struct sw_comm_request *request;
    const int root = c->ranks - 1;
    float *data = (float *)(void *)c->device;
    for (int64_t i = 0; i < c->elems; i++)
        c->host[i] = value_of(c->rank, i);
    SW_TRY(to_device(c, data));
    SW_TRY(sw_comm_broadcast(
        c->comm,
        &(struct sw_comm_broadcast){
            .what = "test of NCCL", .data = data, .bytes = c->elems * (int64_t)sizeof *data, .root = root},
        &request));
    SW_TRY(sw_comm_wait(request));
    SW_TRY(to_host(c, data));
    for (int64_t i = 0; i < c->elems; i++)
        if (c->host[i] != value_of(root, i))
            return wrong(c, "broadcast", i, value_of(root, i));
    return SW_OK;
}

/* Agrees after each check, so that no rank waits for one that failed. */
static sw_status check_all(struct sw_ranks *ranks, struct check *c) {
    SW_TRY(sw_ranks_agree_on_error(ranks, check_gather(c)));
    SW_TRY(sw_ranks_agree_on_error(ranks, check_reduce(c)));
    return sw_ranks_agree_on_error(ranks, check_broadcast(c));
}

static void divide(struct check *c) {
    for (int rank = 0; rank <= c->ranks; rank++) {
        c->bounds[rank] = rank * (int64_t)SHARE_ELEMS + (int64_t)ODD_ELEMS * rank * rank;
        c->bounds_bytes[rank] = c->bounds[rank] * (int64_t)sizeof *c->host;
    }
    c->elems = c->bounds[c->ranks];
}

sw_status sw_ranks_check_gpu(struct sw_ranks *ranks, const struct sw_devices *devices) {
    struct sw_memory *memory = NULL;
    struct check c = {
        .comm = ranks->comm, .stream = ranks->gpu.stream, .rank = sw_ranks_rank(ranks), .ranks = sw_ranks_count(ranks)};
    const int64_t staging_bytes = sw_comm_least_staging_bytes(c.ranks);
    sw_status status = SW_OK;
    c.bounds = calloc(2 * ((size_t)c.ranks + 1), sizeof *c.bounds);
    if (c.bounds == NULL)
        SW_TRY_GOTO(sw_ranks_agree_on_error(ranks, sw_fail(SW_ERR_NOMEM, "no memory to test NCCL")), end);
    assert(c.bounds != NULL); /* missing memory was agreed on by all ranks */
    c.bounds_bytes = c.bounds + c.ranks + 1;
    divide(&c);
    const int64_t vectors_bytes = sw_round_up(2 * c.elems * (int64_t)sizeof *c.host, SW_BUFFER_ALIGN_BYTES);
    c.host = malloc((size_t)c.elems * sizeof *c.host);
    status = c.host == NULL ? sw_fail(SW_ERR_NOMEM, "no memory to test NCCL")
                            : sw_memory_open(devices->compute, "test of NCCL", SW_MEMORY_DEVICE,
                                             vectors_bytes + staging_bytes, &memory);
    SW_TRY_GOTO(sw_ranks_agree_on_error(ranks, status), end);
    assert(c.host != NULL);
    c.device = sw_memory_base(memory);
    SW_TRY_GOTO(sw_comm_use_staging(ranks->comm, c.device + vectors_bytes, staging_bytes), end);
    status = check_all(ranks, &c);
end:
    sw_memory_close(memory);
    free(c.host);
    free(c.bounds);
    return status;
}
