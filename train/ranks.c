/* What commands do where a launcher has started several of them. */
#include "train/ranks.h"

#include "core/comm.h"
#include "train/commands.h"

static sw_status refuse(struct sw_comm *comm) {
    const struct sw_comm_place *place = sw_comm_place(comm);
    if (place->ranks == 1)
        return SW_OK;
    /* Nobody ends before all are here: a launcher ends the others of a rank that failed. */
    SW_TRY(sw_comm_barrier(comm, "refusal"));
    return sw_fail(
        SW_ERR_UNSUPPORTED,
        "%d ranks were started, and sharing the work among ranks is planned, not there yet; start one process, "
        "without mpirun or srun",
        place->ranks);
}

bool sw_command_is_alone(const char *command, int *out_exit) {
    struct sw_comm *comm = NULL;
    sw_status status = sw_comm_open(&comm);
    int rank = 0;
    if (status == SW_OK) {
        rank = sw_comm_place(comm)->rank;
        status = refuse(comm);
    }
    sw_comm_close(comm);
    if (status != SW_OK && rank == 0)
        sw_command_fail(command, status);
    *out_exit = SW_EXIT_FAILED;
    return status == SW_OK;
}
