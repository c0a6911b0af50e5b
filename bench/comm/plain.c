#include "bench/comm/plain.h"

#include <assert.h>
#include <mpi.h>

bool sw_comm_plain_is_there(void) {
    return true;
}

sw_status sw_comm_plain_exchange(int rank, int ranks, const char *own, char *all, int64_t share_bytes) {
    MPI_Request requests[2 * SW_COMM_PLAIN_RANKS];
    int count = 0;
    assert(ranks <= SW_COMM_PLAIN_RANKS && share_bytes <= INT32_MAX);
    for (int distance = 1; distance < ranks; distance++) {
        const int to = (rank + distance) % ranks, from = (rank + ranks - distance) % ranks;
        MPI_Irecv(all + from * share_bytes, (int)share_bytes, MPI_BYTE, from, 0, MPI_COMM_WORLD, &requests[count++]);
        MPI_Isend(own, (int)share_bytes, MPI_BYTE, to, 0, MPI_COMM_WORLD, &requests[count++]);
    }
    /* NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker): the loop has begun them */
    const int code = MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
    return code == MPI_SUCCESS ? SW_OK : sw_fail(SW_ERR_IO, "MPI cannot send and receive %d shares", ranks);
}
