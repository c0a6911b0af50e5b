/* Exchanges small values between all ranks by host memory: every rank then computes the same from them. */
#include "core/ranks/comm_private.h"
#include "core/size.h"

#include <string.h>

sw_status sw_comm_share_records(struct sw_comm *comm, const char *what, void *records, int64_t record_bytes) {
    struct sw_comm_request *request;
    SW_TRY(sw_comm_new_request(comm, what, 0, true, &request));
    for (int rank = 0; rank <= comm->place.ranks; rank++)
        request->bounds[rank] = rank * record_bytes;
    request->phases[0] = (struct sw_comm_phase){
        .kind = SW_PHASE_GATHER, .data = records, .bounds = request->bounds, .unit_bytes = 1, .straight = true};
    request->phase_count = 1;
    SW_TRY(sw_comm_begin_request(request));
    return sw_comm_wait(request);
}

/* Shares `bytes` of every rank and gives those of rank r at *out + r·bytes. */
static sw_status share(struct sw_comm *comm, const char *what, const void *own, size_t bytes, char **out) {
    assert(bytes <= SW_COMM_VALUES * sizeof(int64_t));
    *out = (char *)comm->records;
    memcpy(*out + (size_t)comm->place.rank * bytes, own, bytes);
    return sw_comm_share_records(comm, what, *out, (int64_t)bytes);
}

sw_status sw_comm_barrier(struct sw_comm *comm, const char *what) {
    char *all;
    return share(comm, what, &(char){0}, 1, &all);
}

sw_status sw_comm_sum_doubles(struct sw_comm *comm, const char *what, double *values, int count) {
    char *all;
    SW_TRY(share(comm, what, values, (size_t)count * sizeof *values, &all));
    for (int i = 0; i < count; i++)
        values[i] = ((const double *)all)[i];
    for (int rank = 1; rank < comm->place.ranks; rank++)
        for (int i = 0; i < count; i++)
            values[i] += ((const double *)all)[rank * count + i];
    return SW_OK;
}

sw_status sw_comm_max(struct sw_comm *comm, const char *what, int64_t *values, int count) {
    char *all;
    SW_TRY(share(comm, what, values, (size_t)count * sizeof *values, &all));
    for (int rank = 0; rank < comm->place.ranks; rank++)
        for (int i = 0; i < count; i++)
            values[i] = sw_max_i64(values[i], ((const int64_t *)all)[rank * count + i]);
    return SW_OK;
}

sw_status sw_comm_all_true(struct sw_comm *comm, const char *what, bool *value) {
    int64_t wrong = !*value;
    SW_TRY(sw_comm_max(comm, what, &wrong, 1));
    *value = wrong == 0;
    return SW_OK;
}
