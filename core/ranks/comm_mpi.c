/* MPI: the transport of host memory, by which the ranks also find each other. One thread at a time calls it, not always
 * the one that initialised MPI. */
#include "core/ranks/comm_private.h"
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

enum { TYPES = SW_F16 + 1 };

/* An element type of MPI, and its sum. */
struct addition {
    MPI_Datatype type;
    MPI_Op sum;
};

struct mpi {
    MPI_Comm world;
    struct addition additions[TYPES];
    int ranks;
    MPI_Request *requests[SW_COMM_GROUPS]; /* sends and receives of a round */
    int *peers[SW_COMM_GROUPS];            /* the source or destination rank of each */
    int count[SW_COMM_GROUPS];             /* their number */
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
    /* With a tag, a rank that does something else at this point never answers, instead of having its bytes taken for
     * others. */
    const int tag = (int)(sequence % TAGS);
    mpi->count[group] = 0;
    for (int i = 0; i < round->receive_count; i++) {
        const struct sw_comm_message *message = &round->receives[i];
        mpi->peers[group][mpi->count[group]] = message->peer;
        SW_TRY(check(MPI_Irecv(message->data, (int)message->bytes, MPI_BYTE, message->peer, tag, mpi->world,
                               &mpi->requests[group][mpi->count[group]++]),
                     "receive"));
    }
    for (int i = 0; i < round->send_count; i++) {
        const struct sw_comm_message *message = &round->sends[i];
        mpi->peers[group][mpi->count[group]] = message->peer;
        SW_TRY(check(MPI_Isend(message->data, (int)message->bytes, MPI_BYTE, message->peer, tag, mpi->world,
                               &mpi->requests[group][mpi->count[group]++]),
                     "send"));
    }
    return SW_OK;
}

/* Adds vectors of 16-bit floats, which MPI does not know. */
static void add_vectors(sw_dtype type, const void *in, void *in_out, int64_t elems) {
    for (int64_t i = 0; i < elems; i++)
        sw_dtype_store(type, in_out, i, sw_dtype_load(type, in_out, i) + sw_dtype_load(type, in, i));
}

/* NOLINTBEGIN(readability-non-const-parameter): MPI's own type of such a function. */
static void add_bf16(void *in, void *in_out, int *elems, MPI_Datatype *type) {
    (void)type;
    add_vectors(SW_BF16, in, in_out, *elems);
}

static void add_f16(void *in, void *in_out, int *elems, MPI_Datatype *type) {
    (void)type;
    add_vectors(SW_F16, in, in_out, *elems);
}
/* NOLINTEND(readability-non-const-parameter) */

static sw_status make_addition(MPI_User_function *add, struct addition *out) {
    SW_TRY(check(MPI_Type_contiguous(sizeof(uint16_t), MPI_BYTE, &out->type), "make a type"));
    SW_TRY(check(MPI_Type_commit(&out->type), "make a type"));
    return check(MPI_Op_create(add, true, &out->sum), "make a sum");
}

/* In a vector that is reduced in place, the own contribution is where the sum will be. */
static sw_status post_sums(void *state, int group, sw_dtype type, const struct sw_comm_round *round) {
    struct mpi *mpi = state;
    const struct addition *addition = &mpi->additions[type];
    mpi->count[group] = 0;
    for (int i = 0; i < round->send_count; i++) {
        const struct sw_comm_message *send = &round->sends[i];
        mpi->peers[group][mpi->count[group]] = send->peer;
        void *to = round->receive_count > 0 && round->receives[0].peer == send->peer ? round->receives[0].data : NULL;
        SW_TRY(check(MPI_Ireduce(to == send->data ? MPI_IN_PLACE : send->data, to,
                                 (int)(send->bytes / sw_dtype_bytes(type)), addition->type, addition->sum, send->peer,
                                 mpi->world, &mpi->requests[group][mpi->count[group]++]),
                     "reduce"));
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

static int awaited(void *state, int group) {
    const struct mpi *mpi = state;
    for (int i = 0; i < mpi->count[group]; i++) {
        int finished = 1;
        if (MPI_Request_get_status(mpi->requests[group][i], &finished, MPI_STATUS_IGNORE) == MPI_SUCCESS && !finished)
            return mpi->peers[group][i];
    }
    return -1;
}

static void close_mpi(void *state, bool orderly) {
    struct mpi *mpi = state;
    /* After a rank has failed, MPI_Finalize may wait for ever. The launcher ends what exits without it. */
    if (orderly) {
        for (int type = SW_BF16; type < TYPES; type++) {
            MPI_Op_free(&mpi->additions[type].sum);
            MPI_Type_free(&mpi->additions[type].type);
        }
        MPI_Comm_free(&mpi->world);
        MPI_Finalize();
    }
    for (int group = 0; group < SW_COMM_GROUPS; group++) {
        free(mpi->requests[group]);
        free(mpi->peers[group]);
    }
    free(mpi);
}

static const struct sw_comm_transport transport = {.name = "MPI",
                                                   .most_message_bytes = MOST_MESSAGE_BYTES,
                                                   .post = post,
                                                   .post_sums = post_sums,
                                                   .done = done,
                                                   .awaited = awaited,
                                                   .close = close_mpi};

static sw_status begin(struct mpi *mpi, int *out_rank) {
    int provided = MPI_THREAD_SINGLE;
    /* MPI writes to ranks that have died. That should fail with what is known of the death, not with a signal. */
    signal(SIGPIPE, SIG_IGN);
    SW_TRY(check(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided), "begin"));
    if (provided < MPI_THREAD_SERIALIZED)
        return sw_fail(SW_ERR_UNSUPPORTED, "this MPI can only be called by the thread that began it; one that provides "
                                           "MPI_THREAD_SERIALIZED is needed");
    SW_TRY(check(MPI_Comm_dup(MPI_COMM_WORLD, &mpi->world), "make a communicator"));
    SW_TRY(check(MPI_Comm_set_errhandler(mpi->world, MPI_ERRORS_RETURN), "report errors"));
    SW_TRY(check(MPI_Comm_rank(mpi->world, out_rank), "tell the rank"));
    SW_TRY(check(MPI_Comm_size(mpi->world, &mpi->ranks), "tell the number of ranks"));
    mpi->additions[SW_F32] = (struct addition){.type = MPI_FLOAT, .sum = MPI_SUM};
    SW_TRY(make_addition(add_bf16, &mpi->additions[SW_BF16]));
    SW_TRY(make_addition(add_f16, &mpi->additions[SW_F16]));
    for (int group = 0; group < SW_COMM_GROUPS; group++) {
        mpi->requests[group] = calloc((size_t)mpi->ranks * 2, sizeof(MPI_Request));
        mpi->peers[group] = calloc((size_t)mpi->ranks * 2, sizeof(int));
        if (mpi->requests[group] == NULL || mpi->peers[group] == NULL)
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
