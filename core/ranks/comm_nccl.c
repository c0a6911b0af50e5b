/* NCCL: the transport of GPU memory. It is loaded when GPUs are joined, so that a machine without it can do everything
 * else. A round is a group of sends and receives on the caller's stream; the next round's group runs after it, so
 * nothing here waits. */
#include "core/library.h"
#include "core/ranks/comm_private.h"
#include "core/size.h"

#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_MESSAGE_BYTES SW_GIB
static_assert(sizeof(ncclUniqueId) == SW_COMM_NCCL_ID_BYTES, "NCCL's name of a group of ranks");

/* A version number is decimal: 2 28 09. */
enum { NCCL_PER_MAJOR = 10000, NCCL_PER_MINOR = 100 };

/* Applies a macro to each function of the library that is used, by its name without nccl. */
#define FUNCTIONS(EACH)                                                                                                \
    EACH(GetErrorString)                                                                                               \
    EACH(GetVersion)                                                                                                   \
    EACH(GetUniqueId)                                                                                                  \
    EACH(CommInitRank)                                                                                                 \
    EACH(CommDestroy)                                                                                                  \
    EACH(CommAbort)                                                                                                    \
    EACH(CommGetAsyncError)                                                                                            \
    EACH(GroupStart)                                                                                                   \
    EACH(GroupEnd)                                                                                                     \
    EACH(Send)                                                                                                         \
    EACH(Recv)                                                                                                         \
    EACH(Reduce)

#define MEMBER(name) __typeof__(nccl##name) *name; /* NOLINT(bugprone-macro-parentheses): a declaration */
#define ENTRY(name) {"nccl" #name, (void **)&library.name},
static struct {
    struct sw_library loaded;
    FUNCTIONS(MEMBER)
} library = {.loaded = SW_LIBRARY_INIT};

static sw_status require_library(void) {
    static const struct sw_library_function functions[] = {FUNCTIONS(ENTRY)};
    static const char *const names[] = {SW_NCCL_NAME, NULL};
    const char *failure = sw_library_load(
        &library.loaded, &(struct sw_library_need){.names = names,
                                                   .built_path = SW_NCCL_PATH,
                                                   .functions = functions,
                                                   .function_count = sizeof functions / sizeof functions[0]});
    if (failure == NULL)
        return SW_OK;
    return sw_fail(SW_ERR_UNSUPPORTED,
                   "NCCL cannot be loaded (%s); install it (%s) or its Python wheel, name its folder in "
                   "LD_LIBRARY_PATH, or use --device cpu",
                   failure, SW_NCCL_NAME);
}

static sw_status check(ncclResult_t result, const char *what) {
    if (result == ncclSuccess)
        return SW_OK;
    return sw_fail(SW_ERR_DEVICE, "NCCL cannot %s: %s", what, library.GetErrorString(result));
}

struct nccl {
    ncclComm_t comm; /* NULL: aborted */
    cudaStream_t stream;
};

static sw_status post_messages(struct nccl *nccl, const struct sw_comm_round *round) {
    for (int i = 0; i < round->receive_count; i++) {
        const struct sw_comm_message *message = &round->receives[i];
        SW_TRY(check(
            library.Recv(message->data, (size_t)message->bytes, ncclInt8, message->peer, nccl->comm, nccl->stream),
            "receive"));
    }
    for (int i = 0; i < round->send_count; i++) {
        const struct sw_comm_message *message = &round->sends[i];
        SW_TRY(check(
            library.Send(message->data, (size_t)message->bytes, ncclInt8, message->peer, nccl->comm, nccl->stream),
            "send"));
    }
    return SW_OK;
}

/* Ends an open group, even if adding to it failed: NCCL counts open groups per thread, and would only note an abort
 * within one. Reports the first error. */
static sw_status end_group(sw_status status) {
    const ncclResult_t ended = library.GroupEnd();
    return status == SW_OK ? check(ended, "start a round") : status;
}

static sw_status post(void *state, int group, int64_t sequence, const struct sw_comm_round *round) {
    (void)group, (void)sequence;
    struct nccl *nccl = state;
    SW_TRY(check(library.GroupStart(), "begin a round"));
    return end_group(post_messages(nccl, round));
}

static sw_status reduce(struct nccl *nccl, sw_dtype type, const struct sw_comm_round *round) {
    static const ncclDataType_t types[] = {[SW_F32] = ncclFloat32, [SW_BF16] = ncclBfloat16, [SW_F16] = ncclFloat16};
    for (int i = 0; i < round->send_count; i++) {
        const struct sw_comm_message *send = &round->sends[i];
        void *to = round->receive_count > 0 && round->receives[0].peer == send->peer ? round->receives[0].data : NULL;
        SW_TRY(check(library.Reduce(send->data, to, (size_t)(send->bytes / sw_dtype_bytes(type)), types[type], ncclSum,
                                    send->peer, nccl->comm, nccl->stream),
                     "reduce"));
    }
    return SW_OK;
}

/* NCCL's reduce-scatter wants shares of equal size, which these are not. A group of reductions does the same. */
static sw_status post_sums(void *state, int group, sw_dtype type, const struct sw_comm_round *round) {
    (void)group;
    struct nccl *nccl = state;
    SW_TRY(check(library.GroupStart(), "begin a round"));
    return end_group(reduce(nccl, type, round));
}

/* A round counts as done at once: later work on the stream begins when its messages have arrived. */
static sw_status done(void *state, int group, bool *out_done) {
    (void)state, (void)group;
    *out_done = true;
    return SW_OK;
}

static sw_status poll_errors(void *state) {
    const struct nccl *nccl = state;
    ncclResult_t error = ncclSuccess;
    SW_TRY(check(library.CommGetAsyncError(nccl->comm, &error), "say how it is"));
    return error == ncclInProgress ? SW_OK : check(error, "go on");
}

/* Also ends kernels that wait for messages of other ranks, and with them the work queued after them. */
static void abort_nccl(void *state) {
    struct nccl *nccl = state;
    if (nccl->comm != NULL)
        library.CommAbort(nccl->comm);
    nccl->comm = NULL;
}

static void close_nccl(void *state, bool orderly) {
    struct nccl *nccl = state;
    /* Destroying waits for the other ranks. */
    if (orderly)
        library.CommDestroy(nccl->comm);
    else
        abort_nccl(nccl);
    free(nccl);
}

static const struct sw_comm_transport transport = {.name = "NCCL",
                                                   .most_message_bytes = MOST_MESSAGE_BYTES,
                                                   .post = post,
                                                   .post_sums = post_sums,
                                                   .done = done,
                                                   .poll = poll_errors,
                                                   .withdraw = abort_nccl,
                                                   .close = close_nccl};

sw_status sw_comm_nccl_name(char *out, size_t chars) {
    int version = 0;
    SW_TRY(require_library());
    SW_TRY(check(library.GetVersion(&version), "say its version"));
    snprintf(out, chars, "NCCL %d.%d.%d (%s)", version / NCCL_PER_MAJOR, version % NCCL_PER_MAJOR / NCCL_PER_MINOR,
             version % NCCL_PER_MINOR, library.loaded.path);
    return SW_OK;
}

/* NCCL has no error of its own for ranks that share a GPU. */
static sw_status check_joined(ncclResult_t result) {
    if (result != ncclInvalidUsage)
        return check(result, "join the ranks' GPUs");
    return sw_fail(
        SW_ERR_UNSUPPORTED,
        "NCCL cannot join the ranks' GPUs: %s, as it says where two ranks share a GPU; start at most as many "
        "ranks on a machine as it has GPUs, without --allow-shared-gpu, or use --device cpu",
        library.GetErrorString(result));
}

sw_status sw_comm_nccl_id(void *id) {
    SW_TRY(require_library());
    return check(library.GetUniqueId(id), "name the group of ranks");
}

sw_status sw_comm_nccl_open(const void *id, int rank, int ranks, void *stream, const struct sw_comm_transport **out,
                            void **out_state) {
    SW_TRY(require_library());
    struct nccl *nccl = calloc(1, sizeof *nccl);
    if (nccl == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for NCCL's messages");
    nccl->stream = stream;
    ncclUniqueId name;
    memcpy(&name, id, sizeof name);
    const sw_status status = check_joined(library.CommInitRank(&nccl->comm, ranks, name, rank));
    if (status != SW_OK) {
        free(nccl);
        return status;
    }
    *out = &transport;
    *out_state = nccl;
    return SW_OK;
}
