/* In the place of comm_mpi.c where MPI was not found. */
#include "core/ranks/comm_private.h"

sw_status sw_comm_mpi_open(int *out_rank, int *out_ranks, const struct sw_comm_transport **out, void **out_state) {
    (void)out_rank, (void)out_ranks, (void)out, (void)out_state;
    return sw_fail(SW_ERR_UNSUPPORTED, "this is one of several ranks, and spillway was built without MPI; install it "
                                       "(Debian: libopenmpi-dev) and build again, or start one process");
}
