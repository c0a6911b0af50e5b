/* This file stands in place of plain.c in a build without MPI. */
#include "bench/comm/plain.h"

bool sw_comm_plain_is_there(void) {
    return false;
}

sw_status sw_comm_plain_exchange(int rank, int ranks, const char *own, char *all, int64_t share_bytes) {
    (void)rank, (void)ranks, (void)own, (void)all, (void)share_bytes;
    return sw_fail(SW_ERR_UNSUPPORTED, "this program was built without MPI");
}
