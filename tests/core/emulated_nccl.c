/* NCCL's functions as far as the comm uses them, over MPI: a group's messages are done when the group ends. Loaded in
 * NCCL's place. With a stream, the memory is of a GPU, emulated in the program that loads this: what is sent is taken
 * behind the stream's work so far, and what is received is given to the stream. Of the environment,
 * SW_EMULATED_NCCL_FAILS names a function that fails, and SW_EMULATED_NCCL_ONE_RANK_A_GPU refuses ranks that share one,
 * as NCCL does. */
#include "core/dtype.h"

#include <mpi.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* NOLINTBEGIN(readability-inconsistent-declaration-parameter-name): NVIDIA's header has other names. */

/* The header's have no prototype in C. */
ncclResult_t ncclGroupStart(void); /* NOLINT(readability-redundant-declaration) */
ncclResult_t ncclGroupEnd(void);   /* NOLINT(readability-redundant-declaration) */

/* A program without a GPU does not have these functions and does not call them. */
#pragma weak cudaMemcpyAsync
#pragma weak cudaGetDevice

enum { MOST_MESSAGES = 64, TAG = 77 };

struct ncclComm {
    int ranks;
};

struct message {
    void *data, *host; /* the same but for a GPU's */
    size_t bytes;
    int peer;
    int receives;
};

static struct message messages[MOST_MESSAGES];
static int count;
static cudaStream_t gpu; /* of the group; NULL: its memory is the host's */
static int number;       /* of the rank's GPU */
static int is_open;      /* a group */

static int is_to_fail(const char *function) {
    const char *failing = getenv("SW_EMULATED_NCCL_FAILS");
    return failing != NULL && strcmp(failing, function) == 0;
}

/* The calling thread's GPU. NCCL comes back to it, and by that takes memory of it. */
static int current(void) {
    int device = 0;
    if (cudaGetDevice != NULL)
        cudaGetDevice(&device);
    return device;
}

const char *ncclGetErrorString(ncclResult_t result) {
    return result == ncclSuccess ? "no error" : "an emulated error";
}

ncclResult_t ncclGetVersion(int *version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    memset(id, 0x17, sizeof *id);
    return ncclSuccess;
}

/* Only with rank 0's name. */
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank) {
    ncclUniqueId expected;
    memset(&expected, 0x17, sizeof expected);
    int actual = -1;
    MPI_Comm_rank(MPI_COMM_WORLD, &actual);
    if (memcmp(&id, &expected, sizeof id) != 0 || rank != actual)
        return ncclInvalidArgument;
    if (getenv("SW_EMULATED_NCCL_ONE_RANK_A_GPU") != NULL)
        return ncclInvalidUsage;
    *comm = malloc(sizeof **comm);
    if (*comm == NULL)
        return ncclSystemError;
    (*comm)->ranks = ranks;
    number = current();
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    free(comm);
    return ncclSuccess;
}

/* NCCL only notes an abort within a group, and by then the communicator is gone for what is in the group. */
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    if (is_open) {
        fputs("ncclCommAbort inside an open group\n", stderr);
        abort();
    }
    return ncclCommDestroy(comm);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
    *error = comm != NULL ? ncclSuccess : ncclInvalidArgument;
    return ncclSuccess;
}

ncclResult_t ncclGroupStart(void) {
    if (is_open)
        return ncclInvalidUsage;
    is_open = 1;
    count = 0;
    gpu = NULL;
    return current() == number ? ncclSuccess : ncclInvalidUsage;
}

static ncclResult_t add(void *data, size_t bytes, int peer, int receives, cudaStream_t stream) {
    if (count == MOST_MESSAGES || bytes == 0)
        return ncclInvalidUsage;
    gpu = stream;
    messages[count++] = (struct message){.data = data,
                                         .host = stream == NULL ? data : malloc(bytes),
                                         .bytes = bytes,
                                         .peer = peer,
                                         .receives = receives};
    return messages[count - 1].host == NULL ? ncclSystemError : ncclSuccess;
}

/* The host's memory is not pinned, so that the copies wait as they must. */
static void copy(struct message *message, enum cudaMemcpyKind kind) {
    const int receives = kind == cudaMemcpyHostToDevice;
    if (message->receives == receives)
        cudaMemcpyAsync(receives ? message->data : message->host, receives ? message->host : message->data,
                        message->bytes, kind, gpu);
}

ncclResult_t ncclSend(const void *data, size_t elems, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    if (is_to_fail("ncclSend"))
        return ncclRemoteError;
    return type == ncclInt8 && peer < comm->ranks ? add((void *)data, elems, peer, 0, stream) : ncclInvalidArgument;
}

ncclResult_t ncclRecv(void *data, size_t elems, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    return type == ncclInt8 && peer < comm->ranks ? add(data, elems, peer, 1, stream) : ncclInvalidArgument;
}

static sw_dtype type_of(ncclDataType_t type) {
    return type == ncclFloat32 ? SW_F32 : type == ncclBfloat16 ? SW_BF16 : SW_F16;
}

/* Sums host memory at once, from the last rank to the first, rounding each time, as no order is promised. */
ncclResult_t ncclReduce(const void *from, void *to, size_t elems, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
    int rank = -1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const sw_dtype own = type_of(type);
    const int64_t bytes = (int64_t)elems * sw_dtype_bytes(own);
    if (is_to_fail("ncclReduce"))
        return ncclRemoteError;
    if (op != ncclSum || stream != NULL)
        return ncclInvalidArgument;
    char *all = malloc((size_t)(bytes * comm->ranks));
    if (all == NULL)
        return ncclSystemError;
    MPI_Gather(from, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, root, MPI_COMM_WORLD);
    for (int64_t i = 0; rank == root && i < (int64_t)elems; i++) {
        sw_dtype_store(own, to, i, sw_dtype_load(own, all + (comm->ranks - 1) * bytes, i));
        for (int other = comm->ranks - 2; other >= 0; other--)
            sw_dtype_store(own, to, i, sw_dtype_load(own, to, i) + sw_dtype_load(own, all + other * bytes, i));
    }
    free(all);
    return ncclSuccess;
}

/* SW_EMULATED_NCCL=wrong: what arrives last of a message is another's. */
static void spoil(struct message *message) {
    enum { SPOILT_BYTES = 8 };
    const char *given = getenv("SW_EMULATED_NCCL");
    if (given != NULL && strcmp(given, "wrong") == 0 && message->receives && message->bytes >= SPOILT_BYTES)
        memset((char *)message->host + message->bytes - SPOILT_BYTES, 0, SPOILT_BYTES);
}

/* A group in which something failed starts nothing. */
ncclResult_t ncclGroupEnd(void) {
    MPI_Request requests[MOST_MESSAGES];
    is_open = 0;
    if (is_to_fail("ncclSend") || is_to_fail("ncclReduce"))
        return ncclInvalidUsage;
    for (int i = 0; i < count && gpu != NULL; i++)
        copy(&messages[i], cudaMemcpyDeviceToHost);
    for (int i = 0; i < count; i++) {
        const struct message *message = &messages[i];
        if (message->receives)
            MPI_Irecv(message->host, (int)message->bytes, MPI_BYTE, message->peer, TAG, MPI_COMM_WORLD, &requests[i]);
        else
            MPI_Isend(message->host, (int)message->bytes, MPI_BYTE, message->peer, TAG, MPI_COMM_WORLD, &requests[i]);
    }
    /* NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker): the loop has begun them */
    const int code = MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
    for (int i = 0; i < count && gpu != NULL; i++) {
        spoil(&messages[i]);
        copy(&messages[i], cudaMemcpyHostToDevice);
        free(messages[i].host);
    }
    return code == MPI_SUCCESS ? ncclSuccess : ncclSystemError;
}
/* NOLINTEND(readability-inconsistent-declaration-parameter-name) */
