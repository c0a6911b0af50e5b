/* Ranks: which process of a job this one is, and what its processes exchange.
 *
 * A rank alone needs no launcher. Under mpirun or srun the ranks find each other by MPI, which then also moves their
 * bytes; sw_comm_use_nccl lets NCCL move those of device memory. Ranks may also be threads of one process
 * (sw_comm_run_threads), which need neither. Collectives are begun in one order on all ranks, and done in that order; a
 * request is waited for, or left to a GPU. Unless they say otherwise, all calls on a comm belong to one thread at a
 * time, that of the `comm` lane once there is one. Nothing is allocated after sw_comm_open: sums pass through a staging
 * memory of constant size.
 *
 * Sums are the design's, but for sw_comm_use_library_reduction: slices are exchanged all-to-all and added in fp32 in
 * the order of the ranks, then rounded once. So the bits do not depend on timing, on the staging or on the transport.
 *
 * The first error ends the comm: every later call returns it. Where a watch was opened (watch.h), the failure of
 * another rank is such an error too. */
#ifndef SW_CORE_RANKS_COMM_H
#define SW_CORE_RANKS_COMM_H

#include "core/dtype.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

struct sw_comm;
struct sw_comm_request;

enum {
    SW_COMM_REQUESTS = 16, /* the most requests that may be begun and not yet waited for */
    SW_COMM_VALUES = 16,   /* the most values of one host reduction */
    SW_COMM_NAME_CHARS = 64,
    SW_COMM_WHAT_CHARS = 128, /* the most characters of a collective's name in messages, its scope included */
};

/* Opens the comm, once in a rank and on all ranks. Alone (no launcher, or a job of one) it touches neither MPI nor
 * the network. */
sw_status sw_comm_open(struct sw_comm **out);
/* Runs `run` on so many threads, each of which is a rank of one job, and returns once all have returned. sw_comm_open
 * in such a thread opens the comm of its rank. Fails where a thread cannot be started. */
sw_status sw_comm_run_threads(int ranks, void (*run)(void *context, int rank), void *context);
/* Tells whether the ranks are threads of this process, so that no rank can die without the others. */
bool sw_comm_is_threads(const struct sw_comm *comm);
/* Ends the waits of the other ranks with the message of this rank's failure, where the ranks are threads. Returns true
 * on the first rank that fails, which is to print its message, and false on all others. */
bool sw_comm_abandon(struct sw_comm *comm, const char *message);
/* Closes the comm. All ranks call it, when no request is under way. After an error it does not wait for the others. */
void sw_comm_close(struct sw_comm *comm);

/* Sets how long a call waits for ranks that do not answer while no watch would notice them; then the comm fails. 0
 * means for ever. The timeout starts as one minute. */
void sw_comm_set_timeout(struct sw_comm *comm, int64_t timeout_ns);
/* Returns the rank that a call has given up on, or -1. */
int sw_comm_absent(const struct sw_comm *comm);

struct sw_comm_identity {
    int rank, ranks;
    int local_rank, local_ranks; /* among the ranks of this machine */
    int node, nodes; /* this rank's machine, and how many there are; numbered in the order of their first ranks */
    char host[SW_COMM_NAME_CHARS];
};
const struct sw_comm_identity *sw_comm_identity(const struct sw_comm *comm);
/* Returns the name of the transport: "self", "threads", "MPI" or "NCCL". */
const char *sw_comm_transport_name(const struct sw_comm *comm);
/* Returns the bytes of payload that this rank has given to others, retransmissions not counted. A library's reduction
 * counts as one contribution to each share. */
int64_t sw_comm_sent_bytes(const struct sw_comm *comm);
/* Returns those of these bytes that went to ranks of other nodes. */
int64_t sw_comm_sent_between_bytes(const struct sw_comm *comm);
/* Returns those of these bytes that went to ranks of this rank's tensor group. */
int64_t sw_comm_sent_tensor_bytes(const struct sw_comm *comm);

/* How the ranks lie on nodes. A node is a machine of sw_comm_identity, unless sw_comm_set_node_ranks says otherwise. */
struct sw_comm_nodes {
    int node, nodes; /* this rank's node, and how many there are; numbered in the order of their first ranks */
    int rank, ranks; /* this rank's number within its node, and the node's ranks */
    bool even;       /* every node has as many ranks */
    bool in_order;   /* and these are neighbours: node 0 has the first ranks, node 1 the next */
};
const struct sw_comm_nodes *sw_comm_nodes(const struct sw_comm *comm);
/* Takes every node_ranks ranks in their order for a node, so that one machine can stand for several; 0: machines are
 * nodes. Cores and GPUs still are the machine's. All ranks call it alike, on an idle comm. */
void sw_comm_set_node_ranks(struct sw_comm *comm, int node_ranks);
/* Cuts nodes into parts of so many ranks, in their order: those of SW_SCOPE_PART. 0: a part is a node. All ranks call
 * it alike, on an idle comm. */
void sw_comm_set_part_ranks(struct sw_comm *comm, int part_ranks);
/* Cuts the job into groups of so many neighbouring ranks, which tensor parallelism gives the parts of each layer: those
 * of SW_SCOPE_TENSOR. tensor_ranks divides the number of ranks; sw_comm_open leaves it at 1. All ranks call it alike,
 * on an idle comm. */
void sw_comm_set_tensor_ranks(struct sw_comm *comm, int tensor_ranks);

/* The ranks that a collective is over. All ranks of the job begin it at once, each with the others of its own scope.
 * Whatever has one entry a rank has one for each rank of the scope, in their order. */
typedef enum {
    SW_SCOPE_ALL,    /* all ranks */
    SW_SCOPE_NODE,   /* the ranks of this rank's node */
    SW_SCOPE_ACROSS, /* one rank of each node: those with this rank's number in its node; nodes are even */
    SW_SCOPE_PART,   /* the ranks of this rank's part of its node */
    SW_SCOPE_TENSOR, /* the ranks of this rank's group of neighbours; without tensor parallelism this rank alone */
    SW_SCOPE_DATA,   /* one rank of each group: those with this rank's number in its group; without groups all ranks */
    SW_SCOPES
} sw_comm_scope;
/* Return the number of ranks in a scope of this rank, and this rank's number among them. */
int sw_comm_scope_ranks(const struct sw_comm *comm, sw_comm_scope scope);
int sw_comm_scope_rank(const struct sw_comm *comm, sw_comm_scope scope);

/* Gives the memory through which reductions pass, which they need. The caller keeps it until it gives other memory or
 * nothing is reduced any more. Ranks may give unequal sizes, of which the least is used; all call this at once. */
sw_status sw_comm_use_staging(struct sw_comm *comm, void *staging, int64_t bytes);
/* Returns the least bytes of staging that so many ranks can reduce through. */
int64_t sw_comm_least_staging_bytes(int ranks);

/* Chooses, from the next reduction on, the library's own sums (MPI's or NCCL's) where the two types are equal. The
 * order of its additions and the rounding in between are its own too, so that bits then depend on the library, its
 * version and the number of ranks, and need not be the same in two runs. All ranks choose alike. A rank alone has no
 * library. Beside the staging, which still sets the size of a round, the library takes memory as it likes. */
void sw_comm_use_library_reduction(struct sw_comm *comm, bool use);

/* Contributions of all ranks to a part of a slice, to be added in fp32 in the order of the ranks and rounded once. This
 * rank's own lies by itself; those of the others, in their order, are stride_bytes apart. */
struct sw_comm_sum {
    sw_dtype type, to_type;
    int64_t elems;
    int rank, ranks;
    int64_t stride_bytes;
    const void *own;
    const void *others;
    void *to; /* may be `own` where the types are equal */
};

/* The GPU of this rank, for NCCL. Functions work on the stream and return at once. */
struct sw_comm_device {
    void *context;
    void *stream; /* a cudaStream_t, used for nothing else while a request is open */
    /* Makes this the calling thread's GPU: NCCL works on the thread's own, and would take memory of another. */
    sw_status (*enter)(void *context);
    sw_status (*sum)(void *context, const struct sw_comm_sum *sum);
    sw_status (*copy)(void *context, void *to, const void *from, int64_t bytes);
    /* Note the stream's work so far under a number below SW_COMM_REQUESTS, and ask whether that work is done. */
    sw_status (*mark)(void *context, int number);
    sw_status (*reached)(void *context, int number, bool *out_reached);
};
/* Lets the collectives below take memory of that GPU from now on; the staging too is then given anew. All ranks call it
 * at once, on an idle comm, the GPU being the thread's current one. SW_ERR_UNSUPPORTED where the build or machine has
 * no NCCL. */
sw_status sw_comm_use_nccl(struct sw_comm *comm, const struct sw_comm_device *device);
/* Writes the version and the file of the NCCL that GPUs would be joined by. SW_ERR_UNSUPPORTED where there is none. */
sw_status sw_comm_nccl_name(char *out, size_t chars);

/* Writes where the shares of a vector begin into bounds[ranks + 1]: rank r's is bounds[r] to bounds[r+1], in whole
 * granules, as even as they can be. */
void sw_comm_even_bounds(int64_t elems, int64_t granule, int ranks, int64_t *bounds);

/* Each collective takes a struct whose `what` (a literal) and `index` name it in messages about ranks that hang. The
 * caller keeps the memory that the struct points to until the request is done. *out is set where SW_OK comes back. */

/* Copies every rank's share to every rank. Where each of several nodes has as many neighbouring ranks of the scope, and
 * several, a share goes to one rank of each other node, which gives it to the others there; elsewhere every rank sends
 * its share to every other. */
struct sw_comm_gather {
    const char *what;
    int64_t index;
    void *data;
    const void *own;             /* this rank's share, which is copied into data; NULL: it is there already */
    const int64_t *bounds_bytes; /* ranks + 1 */
    sw_comm_scope scope;         /* "every rank" is every rank of it */
};
sw_status sw_comm_all_gather(struct sw_comm *comm, const struct sw_comm_gather *gather, struct sw_comm_request **out);

/* Sums all ranks' vectors; each rank gets its share of the sum. */
struct sw_comm_reduce {
    const char *what;
    int64_t index;
    const void *from;
    const int64_t *bounds; /* ranks + 1, in elements; from bounds[0] = 0 */
    void *to;              /* receives this rank's share; may be its place in `from` where the types are equal */
    sw_dtype type, to_type;
    sw_comm_scope scope; /* "all ranks" are those of it; the library sums only over all ranks of the job */
};
sw_status sw_comm_reduce_scatter(struct sw_comm *comm, const struct sw_comm_reduce *reduce,
                                 struct sw_comm_request **out);

/* Gives every rank its part of this rank's bytes, and takes the parts that the others have for this rank. */
struct sw_comm_exchange {
    const char *what;
    int64_t index;
    const void *data;            /* the parts for all ranks, in their order */
    const int64_t *bounds_bytes; /* ranks + 1: where each part begins, the same on all ranks */
    void *to;                    /* receives the others' parts for this rank, one after the other in their order */
    sw_comm_scope scope;         /* "every rank" is every rank of it */
};
sw_status sw_comm_exchange(struct sw_comm *comm, const struct sw_comm_exchange *exchange, struct sw_comm_request **out);

/* Copies the root's bytes to all ranks. */
struct sw_comm_broadcast {
    const char *what;
    int64_t index;
    void *data;
    int64_t bytes;
    int root;
    bool on_host;        /* the data are host memory, whatever moves the rest */
    sw_comm_scope scope; /* "all ranks" are those of it, and the root is a number among them */
};
sw_status sw_comm_broadcast(struct sw_comm *comm, const struct sw_comm_broadcast *broadcast,
                            struct sw_comm_request **out);

/* Waits until the request is done, and drives those begun before it forward. A request that is done, or failed, is
 * gone.
 */
sw_status sw_comm_wait(struct sw_comm_request *request);

/* The name of a collective that was left to the device, for messages. */
struct sw_comm_left {
    char what[SW_COMM_WHAT_CHARS];
    int64_t index;
};
/* Leaves a request to the GPU of sw_comm_use_nccl instead of waiting for it: all of its work is on that GPU's stream,
 * and work that the stream is given from now on begins behind it. The request is gone. The device's owner notices when
 * the stream gets there, and calls sw_comm_check until then. */
void sw_comm_leave(struct sw_comm_request *request, struct sw_comm_left *out);
/* Tell the watch, on any thread, that the device has begun a collective that was left to it, and that it has ended the
 * last one that it began. All ranks tell of the same collectives in the same order. */
void sw_comm_note_begun(const struct sw_comm *comm, const struct sw_comm_left *left);
void sw_comm_note_ended(const struct sw_comm *comm);
/* Returns the watch's verdict, or an error that the GPU's collectives have met. Does not wait. */
sw_status sw_comm_check(struct sw_comm *comm);
/* Ends the GPU's collectives that are under way, so that whoever waits behind them goes on; their results are
 * worthless, and the comm has failed. Does nothing where no GPU's memory is exchanged. */
void sw_comm_withdraw(struct sw_comm *comm);

/* The calls below exchange host memory, whatever moves the rest, and return when that is done. `what` is as above. */
/* Waits until every rank has called it. */
sw_status sw_comm_barrier(struct sw_comm *comm, const char *what);
/* Sums each value over the ranks, in the order of the ranks, or takes its maximum. `count` is at most SW_COMM_VALUES.
 */
sw_status sw_comm_sum_doubles(struct sw_comm *comm, const char *what, double *values, int count);
sw_status sw_comm_max(struct sw_comm *comm, const char *what, int64_t *values, int count);
/* Sets *value to whether it is true on every rank. */
sw_status sw_comm_all_true(struct sw_comm *comm, const char *what, bool *value);
/* Copies every rank's record to every rank: records[rank], each of record_bytes. This rank's own is in its place. */
sw_status sw_comm_share_records(struct sw_comm *comm, const char *what, void *records, int64_t record_bytes);

/* A value that every rank states at the start, so that a job that was started wrongly is refused before it begins. */
typedef enum {
    SW_CLAIM_EQUAL,    /* all ranks have the same: the program, the configuration, the data */
    SW_CLAIM_DISTINCT, /* no two ranks have the same: a directory, a GPU of one machine (sw_comm_identity's node) */
} sw_claim_kind;
struct sw_comm_claim {
    sw_claim_kind kind;
    const char *what;   /* "program", "directory" */
    const char *shown;  /* the value as the user knows it; NULL: it is not shown */
    const char *remedy; /* "give each rank a directory of its own" */
    const void *value;  /* what is compared; NULL: this rank has none, which no other has either */
    int64_t bytes;
};
/* Checks the claims of all ranks, which state as many in one order. Every rank returns the same SW_ERR_ARG, which names
 * the ranks that are wrong; printing it is up to rank 0. */
sw_status sw_comm_agree(struct sw_comm *comm, const struct sw_comm_claim *claims, int count);
/* Computes a digest of the running program's file. */
enum { SW_COMM_DIGEST_BYTES = 16 };
sw_status sw_comm_program_digest(unsigned char out[SW_COMM_DIGEST_BYTES]);

#endif
