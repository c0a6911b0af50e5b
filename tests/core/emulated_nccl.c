/* NCCL's functions as far as the comm uses them, between processes of one machine. Loaded in NCCL's place. Without a
 * stream, the memory is the host's and a group is done when it ends. With a stream, the memory is of a GPU, emulated in
 * the program that loads this, and a group is work of that stream, as NCCL's kernels are: it begins when the stream
 * gets there, lands late by chance, and waits without end for a rank that never comes, until the communicator is
 * aborted.
 *
 * In the environment, SW_EMULATED_NCCL has some of these words, with a comma between:
 *   wrong      bytes that arrive last are another's
 *   late       groups end up to MOST_LATE_US late, drawn from SW_TEST_SEED
 *   early      groups do not wait for what the stream was told to wait for
 *   unawaited  nothing waits for groups that was told to
 *   errs       the group of number ERRING_GROUP, and all after it, never end, and the error is told asynchronously
 *   refuses    groups after that number cannot be started
 * SW_EMULATED_NCCL_FAILS names a function that fails, and SW_EMULATED_NCCL_ONE_RANK_A_GPU refuses ranks that share one,
 * as NCCL does. */
#include "core/dtype.h"
#include "tests/core/emulated_nccl_wires.h"
#include "tests/equipment/cuda/runtime.h"

#include <nccl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* NOLINTBEGIN(readability-inconsistent-declaration-parameter-name): NVIDIA's header has other names. */

/* The header's have no prototype in C. */
ncclResult_t ncclGroupStart(void); /* NOLINT(readability-redundant-declaration) */
ncclResult_t ncclGroupEnd(void);   /* NOLINT(readability-redundant-declaration) */

/* A program without a GPU does not have these functions and does not call them. */
#pragma weak cudaGetDevice
#pragma weak sw_emulation_give
#pragma weak sw_emulation_forget_waits

enum { MOST_MESSAGES = 64, MOST_SUMS = 8, NAME_BYTES = 16, FILLER = 0x17, ERRING_GROUP = 26 };
enum { MOST_LATE_US = 20000, IDLE_US = 1000, SPOILT_BYTES = 8, NAME_CHARS = 2 * NAME_BYTES + 1 };

struct ncclComm {
    int rank, ranks;
    struct sw_wires *wires;
    unsigned drawn;        /* state of the delays' draws */
    int64_t groups;        /* started so far */
    _Atomic int under_way; /* groups given to a stream that have not ended */
    _Atomic bool aborted;
    _Atomic ncclResult_t error;
};

/* A sum of all ranks' vectors, which this rank receives. */
struct sum {
    const void *own;
    void *to;
    int64_t elems;
    sw_dtype type;
    int first_message; /* those of the other ranks, in their order */
};

struct group {
    struct ncclComm *comm;
    cudaStream_t stream; /* NULL: its memory is the host's */
    struct sw_wire_message messages[MOST_MESSAGES];
    void *to[MOST_MESSAGES]; /* where a message that came goes at last; NULL: it is part of a sum, or is sent */
    struct sum sums[MOST_SUMS];
    int count, sum_count;
    int64_t number;
};

static struct group *open_group;
static int gpu_number; /* of the rank's GPU */

static bool is_to_fail(const char *function) {
    const char *failing = getenv("SW_EMULATED_NCCL_FAILS");
    return failing != NULL && strcmp(failing, function) == 0;
}

static bool is_told(const char *word) {
    const char *told = getenv("SW_EMULATED_NCCL");
    return told != NULL && strstr(told, word) != NULL;
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
    memset(id, FILLER, sizeof *id);
    return getentropy(id, NAME_BYTES) == 0 ? ncclSuccess : ncclSystemError;
}

/* Writes the name of a group of ranks, which is random. Returns false for what ncclGetUniqueId has not made. */
static bool take_name(const ncclUniqueId *id, char out[NAME_CHARS]) {
    for (size_t i = NAME_BYTES; i < sizeof *id; i++)
        if (id->internal[i] != FILLER)
            return false;
    for (size_t i = 0; i < NAME_BYTES; i++)
        snprintf(out + 2 * i, 3, "%02x", (unsigned char)id->internal[i]);
    return true;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank) {
    char name[NAME_CHARS];
    const char *seed = getenv("SW_TEST_SEED");
    if (!take_name(&id, name))
        return ncclInvalidArgument;
    if (getenv("SW_EMULATED_NCCL_ONE_RANK_A_GPU") != NULL)
        return ncclInvalidUsage;
    struct ncclComm *made = calloc(1, sizeof *made);
    struct sw_wires *wires = made == NULL ? NULL : sw_wires_open(name, rank, ranks);
    if (wires == NULL) {
        free(made);
        return ncclSystemError;
    }
    made->rank = rank;
    made->ranks = ranks;
    made->wires = wires;
    made->drawn = (unsigned)(seed != NULL ? strtoul(seed, NULL, 10) : 1) + (unsigned)rank;
    gpu_number = current();
    *comm = made;
    return ncclSuccess;
}

/* Work that the streams still have of a communicator is waited for. */
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    while (atomic_load(&comm->under_way) > 0)
        usleep(IDLE_US);
    sw_wires_close(comm->wires);
    free(comm);
    return ncclSuccess;
}

/* NCCL only notes an abort within a group, and by then the communicator is gone for what is in the group. */
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    if (open_group != NULL) {
        fputs("ncclCommAbort inside an open group\n", stderr);
        abort();
    }
    atomic_store(&comm->aborted, true);
    return ncclCommDestroy(comm);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
    *error = comm != NULL ? atomic_load(&comm->error) : ncclInvalidArgument;
    return ncclSuccess;
}

ncclResult_t ncclGroupStart(void) {
    if (open_group != NULL)
        return ncclInvalidUsage;
    open_group = calloc(1, sizeof *open_group);
    if (open_group == NULL)
        return ncclSystemError;
    return current() == gpu_number ? ncclSuccess : ncclInvalidUsage;
}

/* Adds a message. One that comes lies in memory of its own until the group ends. */
static ncclResult_t add(ncclComm_t comm, void *data, void *to, size_t bytes, int peer, bool receives,
                        cudaStream_t stream) {
    struct group *group = open_group;
    if (group == NULL || group->count == MOST_MESSAGES || bytes == 0 || peer >= comm->ranks)
        return ncclInvalidUsage;
    group->comm = comm;
    group->stream = stream;
    group->to[group->count] = to;
    group->messages[group->count++] = (struct sw_wire_message){
        .data = receives ? malloc(bytes) : data, .bytes = bytes, .peer = peer, .receives = receives};
    return group->messages[group->count - 1].data == NULL ? ncclSystemError : ncclSuccess;
}

ncclResult_t ncclSend(const void *data, size_t elems, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    if (is_to_fail("ncclSend"))
        return ncclRemoteError;
    return type == ncclInt8 ? add(comm, (void *)data, NULL, elems, peer, false, stream) : ncclInvalidArgument;
}

ncclResult_t ncclRecv(void *data, size_t elems, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    return type == ncclInt8 ? add(comm, NULL, data, elems, peer, true, stream) : ncclInvalidArgument;
}

static sw_dtype type_of(ncclDataType_t type) {
    return type == ncclFloat32 ? SW_F32 : type == ncclBfloat16 ? SW_BF16 : SW_F16;
}

ncclResult_t ncclReduce(const void *from, void *to, size_t elems, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
    const sw_dtype own = type_of(type);
    const size_t bytes = elems * (size_t)sw_dtype_bytes(own);
    struct group *group = open_group;
    if (is_to_fail("ncclReduce"))
        return ncclRemoteError;
    if (op != ncclSum || group == NULL || group->sum_count == MOST_SUMS)
        return ncclInvalidArgument;
    if (root != comm->rank)
        return add(comm, (void *)from, NULL, bytes, root, false, stream);
    group->sums[group->sum_count++] =
        (struct sum){.own = from, .to = to, .elems = (int64_t)elems, .type = own, .first_message = group->count};
    ncclResult_t result = ncclSuccess;
    for (int rank = 0; rank < comm->ranks && result == ncclSuccess; rank++)
        if (rank != root)
            result = add(comm, NULL, NULL, bytes, rank, true, stream);
    return result;
}

/* Sums from the last rank to the first, rounding each time, as no order is promised. The result may take the place of
 * this rank's own vector. */
static void finish_sum(const struct group *group, const struct sum *sum) {
    const int rank = group->comm->rank, ranks = group->comm->ranks;
    for (int64_t i = 0; i < sum->elems; i++) {
        uint32_t rounded = 0;
        for (int other = ranks - 1; other >= 0; other--) {
            const int came = sum->first_message + other - (other > rank);
            const void *from = other == rank ? sum->own : group->messages[came].data;
            const float before = other == ranks - 1 ? 0.0f : sw_dtype_load(sum->type, &rounded, 0);
            sw_dtype_store(sum->type, &rounded, 0, before + sw_dtype_load(sum->type, from, i));
        }
        sw_dtype_store(sum->type, sum->to, i, sw_dtype_load(sum->type, &rounded, 0));
    }
}

static void spoil(struct sw_wire_message *message) {
    if (is_told("wrong") && message->bytes >= SPOILT_BYTES)
        memset(message->data + message->bytes - SPOILT_BYTES, 0, SPOILT_BYTES);
}

/* Writes what has come to where it belongs, late where that is told: who has not waited then finds what was there. */
static void land(struct group *group) {
    if (is_told("late") && group->stream != NULL)
        usleep((useconds_t)(rand_r(&group->comm->drawn) % MOST_LATE_US));
    for (int i = 0; i < group->count; i++) {
        if (group->to[i] == NULL)
            continue;
        spoil(&group->messages[i]);
        memcpy(group->to[i], group->messages[i].data, group->messages[i].bytes);
    }
    for (int i = 0; i < group->sum_count; i++)
        finish_sum(group, &group->sums[i]);
}

static void free_group(struct group *group) {
    for (int i = 0; i < group->count; i++)
        if (group->messages[i].receives)
            free(group->messages[i].data);
    free(group);
}

static ncclResult_t move(struct group *group) {
    struct ncclComm *comm = group->comm;
    if (is_told("errs") && group->number >= ERRING_GROUP) {
        atomic_store(&comm->error, ncclSystemError);
        return ncclSystemError;
    }
    if (sw_wires_move(comm->wires, group->messages, group->count, &comm->aborted) != SW_WIRES_DONE)
        return ncclRemoteError;
    land(group);
    return ncclSuccess;
}

/* The group as work of a stream. A kernel of NCCL that misses a message spins until the abort. */
static void run_on_stream(void *argument) {
    struct group *group = argument;
    struct ncclComm *comm = group->comm;
    if (move(group) != ncclSuccess)
        while (!atomic_load(&comm->aborted))
            usleep(IDLE_US);
    free_group(group);
    atomic_fetch_sub(&comm->under_way, 1);
}

/* A group in which something failed starts nothing. */
ncclResult_t ncclGroupEnd(void) {
    struct group *group = open_group;
    open_group = NULL;
    if (group == NULL)
        return ncclInvalidUsage;
    if (is_to_fail("ncclSend") || is_to_fail("ncclReduce") || group->count == 0) {
        const bool empty = group->count == 0;
        free_group(group);
        return empty ? ncclSuccess : ncclInvalidUsage;
    }
    group->number = group->comm->groups++;
    if (is_told("refuses") && group->number > ERRING_GROUP) {
        free_group(group);
        return ncclRemoteError;
    }
    if (group->stream == NULL) {
        const ncclResult_t result = move(group);
        free_group(group);
        return result;
    }
    sw_emulation_forget_waits(group->stream, is_told("early"), is_told("unawaited"));
    atomic_fetch_add(&group->comm->under_way, 1);
    sw_emulation_give(group->stream, run_on_stream, group);
    return ncclSuccess;
}
/* NOLINTEND(readability-inconsistent-declaration-parameter-name) */
