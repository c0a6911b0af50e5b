#include "offload/simulate/measure_comm.h"

#include "core/clock.h"
#include "core/size.h"
#include "offload/simulate/measure.h"

#include <stdlib.h>

enum { ROUNDS = 3, MOST_TIMES = 200 };
#define WORKING_BYTES (32 * SW_MIB)

int64_t sw_measure_comm_times(int64_t bytes) {
    return sw_max_i64(1, sw_min_i64(WORKING_BYTES / bytes, MOST_TIMES));
}

static sw_status run_round(struct sw_comm *comm, sw_status (*run)(void *context), void *context, int64_t times,
                           struct sw_together *out) {
    enum { TIME, CPU_TIME, VALUES };
    SW_TRY(sw_comm_barrier(comm, "measurement"));
    const int64_t start_ns = sw_now_ns();
    const double start_cpu_s = sw_cpu_seconds();
    for (int64_t i = 0; i < times; i++)
        SW_TRY(run(context));
    int64_t most[VALUES] = {
        [TIME] = sw_now_ns() - start_ns, [CPU_TIME] = (int64_t)((sw_cpu_seconds() - start_cpu_s) * 1e9)};
    SW_TRY(sw_comm_max(comm, "measurement", most, VALUES));
    *out = (struct sw_together){.seconds = (double)most[TIME] * 1e-9 / (double)times,
                                .cores = (double)most[CPU_TIME] / (double)most[TIME]};
    return SW_OK;
}

sw_status sw_measure_together(struct sw_comm *comm, sw_status (*run)(void *context), void *context, int64_t times,
                              struct sw_together *out) {
    struct sw_together next;
    for (int round = -1; round < ROUNDS; round++) {
        SW_TRY(run_round(comm, run, context, times, &next));
        if (round <= 0 || next.seconds < out->seconds)
            *out = next;
    }
    return SW_OK;
}

struct sw_measure_comm {
    struct sw_comm *comm;
    sw_dtype type;
    int64_t most_bytes;
    sw_comm_scope scope;
    bool queues;          /* a device does collectives on its own */
    int64_t times, begun; /* collectives of a round, and those begun so far */
    struct sw_memory *vector, *share;
    int64_t *bounds, *bounds_bytes; /* where each rank's part begins, in elements and in bytes */
};

sw_status sw_measure_comm_open(struct sw_comm *comm, struct sw_device *device, sw_dtype type, int64_t most_bytes,
                               struct sw_measure_comm **out) {
    const size_t bounds = (size_t)sw_comm_identity(comm)->ranks + 1;
    sw_status status;
    struct sw_measure_comm *measure = calloc(1, sizeof *measure);
    if (measure == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to measure the ranks' collectives");
    *measure = (struct sw_measure_comm){
        .comm = comm, .type = type, .most_bytes = most_bytes, .queues = sw_device_info(device).asynchronous};
    measure->bounds = calloc(2 * bounds, sizeof *measure->bounds);
    if (measure->bounds == NULL)
        SW_TRY_GOTO(sw_fail(SW_ERR_NOMEM, "no memory to measure the ranks' collectives"), failed);
    measure->bounds_bytes = measure->bounds + bounds;
    SW_TRY_GOTO(sw_memory_open(device, "measurement", SW_MEMORY_DEVICE, most_bytes, &measure->vector), failed);
    SW_TRY_GOTO(sw_memory_open(device, "measurement", SW_MEMORY_DEVICE, most_bytes, &measure->share), failed);
    *out = measure;
    return SW_OK;
failed:
    sw_measure_comm_close(measure);
    return status;
}

void sw_measure_comm_close(struct sw_measure_comm *measure) {
    if (measure == NULL)
        return;
    sw_memory_close(measure->vector);
    sw_memory_close(measure->share);
    free(measure->bounds);
    free(measure);
}

/* Ends a collective as the engine does: collectives of a device follow each other without the host, which waits for the
 * last of a round. */
static sw_status end_collective(struct sw_measure_comm *measure, struct sw_comm_request *request) {
    struct sw_comm_left left;
    if (++measure->begun % measure->times == 0 || !measure->queues)
        return sw_comm_wait(request);
    sw_comm_leave(request, &left);
    return SW_OK;
}

static sw_status gather(void *context) {
    struct sw_measure_comm *measure = context;
    struct sw_comm_request *request;
    const struct sw_comm_gather gather = {.what = "measured gather",
                                          .data = sw_memory_base(measure->vector),
                                          .own = sw_memory_base(measure->share),
                                          .bounds_bytes = measure->bounds_bytes,
                                          .scope = measure->scope};
    SW_TRY(sw_comm_all_gather(measure->comm, &gather, &request));
    return end_collective(measure, request);
}

static sw_status reduce(void *context) {
    struct sw_measure_comm *measure = context;
    struct sw_comm_request *request;
    const struct sw_comm_reduce reduce = {.what = "measured reduction",
                                          .from = sw_memory_base(measure->vector),
                                          .bounds = measure->bounds,
                                          .to = sw_memory_base(measure->share),
                                          .type = measure->type,
                                          .to_type = measure->type,
                                          .scope = measure->scope};
    SW_TRY(sw_comm_reduce_scatter(measure->comm, &reduce, &request));
    return end_collective(measure, request);
}

static void set_bounds(struct sw_measure_comm *measure, int64_t bytes) {
    const int64_t elem_bytes = sw_dtype_bytes(measure->type);
    const int ranks = sw_comm_scope_ranks(measure->comm, measure->scope);
    assert(bytes > 0 && bytes <= measure->most_bytes);
    sw_comm_even_bounds(bytes / elem_bytes, 1, ranks, measure->bounds);
    for (int rank = 0; rank <= ranks; rank++)
        measure->bounds_bytes[rank] = measure->bounds[rank] * elem_bytes;
}

/* Returns the bytes of a rank's share. The first is the largest, the last the smallest. */
static int64_t share_bytes(const struct sw_measure_comm *measure, int rank) {
    return measure->bounds_bytes[rank + 1] - measure->bounds_bytes[rank];
}

static sw_status measure_rounds(struct sw_measure_comm *measure, sw_status (*run)(void *context), int64_t times,
                                struct sw_together *out) {
    measure->times = times;
    measure->begun = 0;
    return sw_measure_together(measure->comm, run, measure, times, out);
}

static sw_status rate_of(struct sw_measure_comm *measure, sw_status (*run)(void *context), int64_t bytes,
                         int64_t given_bytes, struct sw_rate *out) {
    struct sw_together together;
    SW_TRY(measure_rounds(measure, run, sw_measure_comm_times(bytes), &together));
    *out = (struct sw_rate){.bytes_per_s = (double)given_bytes / together.seconds, .cores = together.cores};
    return SW_OK;
}

sw_status sw_measure_gather(struct sw_measure_comm *measure, int64_t bytes, struct sw_rate *out) {
    const int ranks = sw_comm_scope_ranks(measure->comm, measure->scope);
    set_bounds(measure, bytes);
    return rate_of(measure, gather, bytes, share_bytes(measure, 0) * (ranks - 1), out);
}

sw_status sw_measure_reduce(struct sw_measure_comm *measure, int64_t bytes, struct sw_rate *out) {
    const int ranks = sw_comm_scope_ranks(measure->comm, measure->scope);
    set_bounds(measure, bytes);
    return rate_of(measure, reduce, bytes, measure->bounds_bytes[ranks] - share_bytes(measure, ranks - 1), out);
}

/* Measures the collectives of a scope, which the ranks of all scopes run at once. */
static sw_status measure_scope(struct sw_measure_comm *measure, sw_comm_scope scope, struct sw_scope_rates *out) {
    struct sw_together least;
    measure->scope = scope;
    SW_TRY(sw_measure_gather(measure, WORKING_BYTES, &out->gather));
    SW_TRY(sw_measure_reduce(measure, WORKING_BYTES, &out->reduce));
    set_bounds(measure, sw_comm_scope_ranks(measure->comm, scope) * sw_dtype_bytes(measure->type));
    SW_TRY(measure_rounds(measure, gather, MOST_TIMES, &least));
    out->latency_s = least.seconds;
    return SW_OK;
}

/* Tells whether there are nodes with several ranks each, which the rates of groups need. */
static bool has_nodes(const struct sw_comm_nodes *nodes) {
    return nodes->nodes > 1 && nodes->ranks > 1 && nodes->even && nodes->in_order;
}

sw_status sw_measure_comm_rates(struct sw_comm *comm, struct sw_device *device, sw_dtype type, struct sw_rates *rates) {
    struct sw_measure_comm *measure = NULL;
    struct sw_scope_rates all;
    sw_status status;
    rates->in_node = (struct sw_scope_rates){0};
    if (sw_comm_identity(comm)->ranks == 1)
        return SW_OK;
    SW_TRY(sw_measure_comm_open(comm, device, type, WORKING_BYTES, &measure));
    SW_TRY_GOTO(measure_scope(measure, SW_SCOPE_ALL, &all), end);
    rates->gather = all.gather;
    rates->reduce = all.reduce;
    rates->comm_latency_s = all.latency_s;
    if (has_nodes(sw_comm_nodes(comm)))
        SW_TRY_GOTO(measure_scope(measure, SW_SCOPE_NODE, &rates->in_node), end);
end:
    sw_measure_comm_close(measure);
    return status;
}
