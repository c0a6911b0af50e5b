/* The collectives, as the phases that they are made of. */
#include "core/ranks/comm_private.h"
#include "core/size.h"

/* The granule of a broadcast's shares: nothing smaller is worth a message of its own. */
enum { BROADCAST_GRANULE_BYTES = 4096 };

sw_status sw_comm_all_gather(struct sw_comm *comm, const struct sw_comm_gather *gather, struct sw_comm_request **out) {
    struct sw_comm_request *request;
    SW_TRY(sw_comm_new_request(comm, gather->what, gather->index, false, &request));
    request->scope = gather->scope;
    request->phases[0] = (struct sw_comm_phase){
        .kind = SW_PHASE_GATHER,
        .data = gather->data,
        .own = gather->own,
        .bounds = gather->bounds_bytes,
        .unit_bytes = 1,
    };
    request->phase_count = 1;
    *out = request;
    return sw_comm_begin_request(request);
}

sw_status sw_comm_reduce_scatter(struct sw_comm *comm, const struct sw_comm_reduce *reduce,
                                 struct sw_comm_request **out) {
    assert(comm->place.ranks == 1 || comm->staging != NULL);
    struct sw_comm_request *request;
    SW_TRY(sw_comm_new_request(comm, reduce->what, reduce->index, false, &request));
    request->scope = reduce->scope;
    request->phases[0] = (struct sw_comm_phase){
        .kind = SW_PHASE_REDUCE,
        .data = (char *)reduce->from, /* only read */
        .bounds = reduce->bounds,
        .unit_bytes = sw_dtype_bytes(reduce->type),
        .to = reduce->to,
        .type = reduce->type,
        .to_type = reduce->to_type,
    };
    request->phase_count = 1;
    *out = request;
    return sw_comm_begin_request(request);
}

sw_status sw_comm_exchange(struct sw_comm *comm, const struct sw_comm_exchange *exchange,
                           struct sw_comm_request **out) {
    struct sw_comm_request *request;
    SW_TRY(sw_comm_new_request(comm, exchange->what, exchange->index, false, &request));
    request->scope = exchange->scope;
    request->phases[0] = (struct sw_comm_phase){
        .kind = SW_PHASE_EXCHANGE,
        .data = (char *)exchange->data, /* only read */
        .bounds = exchange->bounds_bytes,
        .unit_bytes = 1,
        .to = exchange->to,
    };
    request->phase_count = 1;
    *out = request;
    return sw_comm_begin_request(request);
}

sw_status sw_comm_broadcast(struct sw_comm *comm, const struct sw_comm_broadcast *broadcast,
                            struct sw_comm_request **out) {
    const int ranks = sw_comm_scope_ranks(comm, broadcast->scope);
    assert(broadcast->root >= 0 && broadcast->root < ranks);
    struct sw_comm_request *request;
    SW_TRY(sw_comm_new_request(comm, broadcast->what, broadcast->index, broadcast->on_host, &request));
    request->scope = broadcast->scope;
    sw_comm_even_bounds(broadcast->bytes, BROADCAST_GRANULE_BYTES, ranks, request->bounds);
    /* Each rank gets a share and gives it to the others, so that the root does not send everything ranks times. */
    for (int i = 0; i < SW_COMM_PHASES; i++)
        request->phases[i] = (struct sw_comm_phase){.kind = i == 0 ? SW_PHASE_SCATTER : SW_PHASE_GATHER,
                                                    .data = broadcast->data,
                                                    .bounds = request->bounds,
                                                    .unit_bytes = 1,
                                                    .root = broadcast->root};
    request->phase_count = SW_COMM_PHASES;
    *out = request;
    return sw_comm_begin_request(request);
}
