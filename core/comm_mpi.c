/* MPI: the transport of host memory, and what the others begin with. Whoever owns the comm makes its calls, one thread
 * at a time, which is not always the one that began MPI. */
#include "core/comm_private.h"
#include "core/size.h"

#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

/* MPI counts in int. */
#define MOST_MESSAGE_BYTES SW_GIB
static_assert(MOST_MESSAGE_BYTES <= INT32_MAX, "a message's bytes must fit in MPI's count");
/* The standard promises tags up to 32767. */
enum { TAGS = 32768 };

struct mpi {
    MPI_Comm world;
    int ranks;
    MPI_Request *requests[SW_COMM_GROUPS]; /* sends and receives of a round */
    int count[SW_COMM_GROUPS];
};

static sw_status check(int code, const char *what) {
    if (code == MPI_SUCCESS)
        return SW_OK;
    char text[MPI_MAX_ERROR_STRING] = "unknown error";
    int chars;
    MPI_Error_string(code, text, &chars);
    return sw_fail(SW_ERR_IO, "MPI cannot %s: %s", what, text);
}

static sw_status post(void *state, int group, int64_t sequence, const struct sw_comm_round *round) {
    struct mpi *mpi = state;
    /* A rank that does something else at this point is one that never answers, and not one whose bytes are taken for
     * others. */
    const int tag = (int)(sequence % TAGS);
    mpi->count[group] = 0;
    for (int i = 0; i < round->receive_count; i++) {
        const struct sw_comm_message *message = &round->receives[i];
        SW_TRY(check(MPI_Irecv(message->data, (int)message->bytes, MPI_BYTE, message->peer, tag, mpi->world,
                               &mpi->requests[group][mpi->count[group]++]),
                     "receive"));
    }
    for (int i = 0; i < round->send_count; i++) {
        const struct sw_comm_message *message = &round->sends[i];
        SW_TRY(check(MPI_Isend(message->data, (int)message->bytes, MPI_BYTE, message->peer, tag, mpi->world,
                               &mpi->requests[group][mpi->count[group]++]),
                     "send"));
    }
    return SW_OK;
}

static sw_status done(void *state, int group, bool *out_done) {
    struct mpi *mpi = state;
    int finished = 0;
    SW_TRY(check(MPI_Testall(mpi->count[group], mpi->requests[group], &finished, MPI_STATUSES_IGNORE), "transfer"));
    *out_done = finished != 0;
    return SW_OK;
}

static void close_mpi(void *state, bool orderly) {
    struct mpi *mpi = state;
    /* With a rank that has failed, MPI_Finalize may wait for ever. The launcher ends what ends without it. */
    if (orderly) {
        MPI_Comm_free(&mpi->world);
        MPI_Finalize();
    }
    for (int group = 0; group < SW_COMM_GROUPS; group++)
        free(mpi->requests[group]);
    free(mpi);
}

static const struct sw_comm_transport transport = {
    .name = "MPI", .most_message_bytes = MOST_MESSAGE_BYTES, .post = post, .done = done, .close = close_mpi};

static sw_status begin(struct mpi *mpi, int *out_rank) {
    int provided = MPI_THREAD_SINGLE;
    /* MPI writes to ranks that have died, and what kills a rank then should be what is known of the death. */
    signal(SIGPIPE, SIG_IGN);
    SW_TRY(check(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided), "begin"));
    if (provided < MPI_THREAD_SERIALIZED)
        return sw_fail(SW_ERR_UNSUPPORTED, "this MPI can only be called by the thread that began it; one that provides "
                                           "MPI_THREAD_SERIALIZED is needed");
    SW_TRY(check(MPI_Comm_dup(MPI_COMM_WORLD, &mpi->world), "make a communicator"));
    SW_TRY(check(MPI_Comm_set_errhandler(mpi->world, MPI_ERRORS_RETURN), "report errors"));
    SW_TRY(check(MPI_Comm_rank(mpi->world, out_rank), "tell the rank"));
    SW_TRY(check(MPI_Comm_size(mpi->world, &mpi->ranks), "tell the number of ranks"));
    for (int group = 0; group < SW_COMM_GROUPS; group++) {
        mpi->requests[group] = calloc((size_t)mpi->ranks * 2, sizeof(MPI_Request));
        if (mpi->requests[group] == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory for the messages of %d ranks", mpi->ranks);
    }
    return SW_OK;
}

sw_status sw_comm_mpi_open(int *out_rank, int *out_ranks, const struct sw_comm_transport **out, void **out_state) {
    struct mpi *mpi = calloc(1, sizeof *mpi);
    if (mpi == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for MPI's messages");
    const sw_status status = begin(mpi, out_rank);
    if (status != SW_OK) {
        close_mpi(mpi, false);
        return status;
    }
    *out_ranks = mpi->ranks;
    *out = &transport;
    *out_state = mpi;
    return SW_OK;
}
