/* Ranks: which process of a job this one is, and how its processes exchange data.
 *
 * A single process needs no launcher. Under mpirun or srun the ranks find each other by MPI, which then also moves
 * their bytes; with sw_comm_use_nccl, NCCL moves those in device memory. Ranks may also be threads of one process
 * (sw_comm_run_threads), which need neither. The ranks of a scope begin its collectives in the same order, and a rank
 * performs its own in the order in which it begins them; a request is waited for, or left to a GPU. Unless stated
 * otherwise, all calls on a comm belong to one thread at a time, that of the `comm` lane once it exists. Nothing is
 * allocated after sw_comm_open: sums pass through staging memory of constant size.
 *
 * Unless sw_comm_use_library_reduction is on, sums are deterministic: slices are exchanged all-to-all, added in fp32 in
 * rank order, and rounded once. The bits do not depend on timing, staging or transport.
 *
 * The first error ends the comm: every later call returns it. If a watch was opened (watch.h), the failure of another
 * rank is such an error too. */
#ifndef SW_CORE_RANKS_COMM_H
#define SW_CORE_RANKS_COMM_H

#include "core/dtype.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

struct sw_comm;
struct sw_comm_request;

enum {
    SW_COMM_REQUESTS = 16, /* the most requests begun and not yet waited for */
    SW_COMM_VALUES = 16,   /* the most values of one host reduction */
    SW_COMM_NAME_CHARS = 64,
    SW_COMM_WHAT_CHARS = 128, /* the longest name of a collective in messages, with its scope */
};

/* Opens the comm, once per rank and on all ranks. A single process (no launcher, or a job of one rank) touches neither
 * MPI nor the network. */
sw_status sw_comm_open(struct sw_comm **out);

/* Processes of a program that is not spillway, which moves bytes between them by a function of its own. */
struct sw_comm_caller {
    int rank, ranks;
    /* Copies every rank's part to every rank: rank r's is data[bounds[r]] to data[bounds[r + 1]], and this rank's own
     * is there. Each rank calls it with the same bounds. Returns 0, or anything else for a failure. */
    int (*gather)(void *context, void *data, const uint64_t *bounds);
    void *context;
};
/* Opens the comm over such processes, whatever started them, and treats them as ranks of one machine. Only
 * sw_comm_all_gather and the calls below it that exchange host memory are possible. */
sw_status sw_comm_open_caller(const struct sw_comm_caller *caller, struct sw_comm **out);
/* Returns the bytes of memory that such a comm takes for what passes. */
int64_t sw_comm_caller_bytes(int ranks);
/* Runs `run` on `ranks` threads, each of which is a rank of one job, and returns once all have returned. In such a
 * thread, sw_comm_open opens the comm of its rank. Fails if a thread cannot be started. */
sw_status sw_comm_run_threads(int ranks, void (*run)(void *context, int rank), void *context);
/* Tells whether the ranks are threads of this process, so that no rank can die without the others. */
bool sw_comm_is_threads(const struct sw_comm *comm);
/* If ranks are threads, ends the waits of the other ranks with this rank's failure message. Returns true on the first
 * rank that fails, which must print its message, and false on all others. */
bool sw_comm_abandon(struct sw_comm *comm, const char *message);
/* Tells the other ranks of sw_comm_open_caller that this one has failed: their next collective, whichever it is, or the
 * one that waits for this rank, returns SW_ERR_STOPPED with the message. Returns once they are in it, or the exchange
 * has failed. The comm has failed then. Does nothing if it had. No request is under way. */
void sw_comm_tell(struct sw_comm *comm, const char *message);
/* Closes the comm. All ranks call it, with no request under way. After an error it does not wait for the others. */
void sw_comm_close(struct sw_comm *comm);

/* Sets how long a call waits for ranks that do not answer if no watch would notice; then the comm fails. 0: for ever.
 * Initially one minute. */
void sw_comm_set_timeout(struct sw_comm *comm, int64_t timeout_ns);
/* Returns the rank that a call has given up on, or -1. */
int sw_comm_absent(const struct sw_comm *comm);

struct sw_comm_identity {
    int rank, ranks;
    int local_rank, local_ranks; /* number among the ranks of this machine, and their count */
    int node, nodes; /* this rank's machine, and the number of machines, numbered in the order of their first ranks */
    char host[SW_COMM_NAME_CHARS];
};
const struct sw_comm_identity *sw_comm_identity(const struct sw_comm *comm);
/* Returns the name of the transport: "self", "threads", "MPI" or "NCCL". */
const char *sw_comm_transport_name(const struct sw_comm *comm);
/* Returns the bytes of payload that this rank has sent, without retransmissions. A library's reduction counts as one
 * contribution to each share. */
int64_t sw_comm_sent_bytes(const struct sw_comm *comm);
/* Returns how many of these bytes went to ranks of other nodes. */
int64_t sw_comm_sent_between_bytes(const struct sw_comm *comm);
/* Returns how many of these bytes went to ranks of this rank's tensor group. */
int64_t sw_comm_sent_tensor_bytes(const struct sw_comm *comm);
/* Returns how many of these bytes went to ranks of other pipeline stages. */
int64_t sw_comm_sent_stages_bytes(const struct sw_comm *comm);

/* How ranks are distributed over nodes. A node is a machine (sw_comm_identity), unless sw_comm_set_node_ranks says
 * otherwise. */
struct sw_comm_nodes {
    int node, nodes; /* this rank's node, and the number of nodes, numbered in the order of their first ranks */
    int rank, ranks; /* this rank's number within its node, and the node's number of ranks */
    bool even;       /* every node has the same number of ranks */
    bool in_order;   /* and they are neighbours: node 0 has the first ranks, node 1 the next */
};
const struct sw_comm_nodes *sw_comm_nodes(const struct sw_comm *comm);
/* Treats every node_ranks consecutive ranks as a node, so that one machine can stand for several; 0: machines are
 * nodes. Cores and GPUs still belong to the machine. All ranks make the same call, on an idle comm. */
void sw_comm_set_node_ranks(struct sw_comm *comm, int node_ranks);
/* Cuts nodes into parts of part_ranks consecutive ranks, for SW_SCOPE_PART. 0: a part is a node. All ranks make the
 * same call, on an idle comm. */
void sw_comm_set_part_ranks(struct sw_comm *comm, int part_ranks);
/* Cuts the job into tensor groups of tensor_ranks neighbouring ranks, and into expert groups of expert_ranks
 * neighbouring tensor groups. The product of both must divide the number of ranks; sw_comm_open sets both to 1. All
 * ranks make the same call, on an idle comm. */
void sw_comm_set_groups(struct sw_comm *comm, int tensor_ranks, int expert_ranks);
/* Cuts the job into pipeline stages of as many consecutive ranks each; `stages` must divide the number of ranks, and
 * the groups of sw_comm_set_groups must divide a stage. sw_comm_open sets 1. Groups, and the ranks that have one number
 * in their groups, are then those of one stage. All ranks make the same call, on an idle comm. */
void sw_comm_set_stages(struct sw_comm *comm, int stages);

/* The ranks that take part in a collective. The ranks of one scope begin the same collectives of that scope in the same
 * order. Arrays with one entry per rank have one per rank of the scope, in rank order. */
typedef enum {
    SW_SCOPE_ALL,      /* all ranks */
    SW_SCOPE_NODE,     /* the ranks of this rank's node */
    SW_SCOPE_ACROSS,   /* one rank of each node: those with this rank's number in its node; nodes must be even */
    SW_SCOPE_PART,     /* the ranks of this rank's part of its node */
    SW_SCOPE_TENSOR,   /* the ranks of this rank's tensor group; without tensor parallelism only this rank */
    SW_SCOPE_DATA,     /* one rank of each tensor group: those with this rank's number in its group; without groups all
                          ranks */
    SW_SCOPE_EXPERTS,  /* the ranks of this rank's expert group; without groups only this rank */
    SW_SCOPE_SENDERS,  /* those ranks of its expert group that are in SW_SCOPE_DATA */
    SW_SCOPE_REPLICAS, /* one rank of each expert group: those with this rank's number in its group; without groups all
                          ranks */
    SW_SCOPE_ENDS,     /* this rank's number in the first and in the last stage; in other stages only this rank */
    SW_SCOPE_NEXT,     /* this rank and the one with its number in the next stage; the first is next to the last */
    SW_SCOPE_PREVIOUS, /* the one with its number in the stage before, and this rank; one stage has no neighbours */
    SW_SCOPES
} sw_comm_scope;
/* Return the number of ranks in a scope of this rank, and this rank's number among them. */
int sw_comm_scope_ranks(const struct sw_comm *comm, sw_comm_scope scope);
int sw_comm_scope_rank(const struct sw_comm *comm, sw_comm_scope scope);

/* Sets the memory through which reductions pass, which they require. The caller keeps it until it sets other memory or
 * nothing is reduced any more. Ranks may give different sizes; the smallest is used. All ranks call it together. */
sw_status sw_comm_use_staging(struct sw_comm *comm, void *staging, int64_t bytes);
/* Slices are cut at multiples of this many elements, so that their parts stay aligned. */
enum { SW_COMM_PIECE_ELEMS = 64 };
/* Returns the smallest staging through which `ranks` ranks can reduce: one round moves SW_COMM_PIECE_ELEMS elements of
 * each rank's share. n times as much moves n times as many. */
int64_t sw_comm_least_staging_bytes(int ranks);

/* Chooses, from the next reduction on, the library's own sums (MPI's or NCCL's) if the two types are equal. The library
 * chooses the order of additions and the rounding in between, so the bits depend on the library, its version and the
 * number of ranks, and may differ between two runs. All ranks must choose the same. A single process has no library.
 * The staging still sets the size of a round; the library takes further memory as it likes. */
void sw_comm_use_library_reduction(struct sw_comm *comm, bool use);

/* Contributions of all ranks to a part of a slice, to be added in fp32 in rank order and rounded once. This rank's own
 * contribution is separate; those of the others, in rank order, are stride_bytes apart. */
struct sw_comm_sum {
    sw_dtype type, to_type;
    int64_t elems;
    int rank, ranks;
    int64_t stride_bytes;
    const void *own;
    const void *others;
    void *to; /* may be `own` if the types are equal */
};

/* The GPU of this rank, for NCCL. Functions queue work on the stream and return at once. */
struct sw_comm_device {
    void *context;
    void *stream; /* a cudaStream_t, used for nothing else while a request is open */
    /* Makes this the calling thread's current GPU: NCCL works on the current one, and would take memory on another. */
    sw_status (*enter)(void *context);
    sw_status (*sum)(void *context, const struct sw_comm_sum *sum);
    sw_status (*copy)(void *context, void *to, const void *from, int64_t bytes);
    /* Record the stream's work so far under a number below SW_COMM_REQUESTS; ask whether that work is done. */
    sw_status (*mark)(void *context, int number);
    sw_status (*reached)(void *context, int number, bool *out_reached);
};
/* Lets the collectives below take memory of that GPU from now on. The staging must then be set again. All ranks call it
 * together, on an idle comm, with the GPU current on the thread. SW_ERR_UNSUPPORTED: the build or machine has no NCCL.
 */
sw_status sw_comm_use_nccl(struct sw_comm *comm, const struct sw_comm_device *device);
/* Writes the version and the file of the NCCL that would join GPUs. SW_ERR_UNSUPPORTED: there is none. */
sw_status sw_comm_nccl_name(char *out, size_t chars);

/* Writes where the shares of a vector begin into bounds[ranks + 1]: rank r's share is bounds[r] to bounds[r+1], in
 * whole granules, as even as possible. */
void sw_comm_even_bounds(int64_t elems, int64_t granule, int ranks, int64_t *bounds);

/* Each collective takes a struct whose `what` (a literal) and `index` name it in messages about ranks that hang. The
 * caller keeps the memory that the struct points to until the request is done. *out is set if SW_OK is returned. */

/* Copies every rank's share to every rank. If the scope has equally many neighbouring ranks, more than one, on each of
 * several nodes, a share goes to one rank of each other node, which passes it on there. Otherwise every rank sends its
 * share to every other. */
struct sw_comm_gather {
    const char *what;
    int64_t index;
    void *data;
    const void *own;             /* this rank's share, to be copied into data; NULL: it is already there */
    const int64_t *bounds_bytes; /* ranks + 1 entries */
    sw_comm_scope scope;         /* "every rank" means every rank of the scope */
};
sw_status sw_comm_all_gather(struct sw_comm *comm, const struct sw_comm_gather *gather, struct sw_comm_request **out);

/* Sums all ranks' vectors; each rank gets its share of the sum. */
struct sw_comm_reduce {
    const char *what;
    int64_t index;
    const void *from;
    const int64_t *bounds; /* ranks + 1 entries, in elements, beginning with 0 */
    void *to;              /* receives this rank's share; may be its place in `from` if the types are equal */
    sw_dtype type, to_type;
    sw_comm_scope scope; /* "all ranks" means those of the scope; the library sums only over all ranks of the job */
};
sw_status sw_comm_reduce_scatter(struct sw_comm *comm, const struct sw_comm_reduce *reduce,
                                 struct sw_comm_request **out);

/* Sends every rank its part of this rank's bytes, and receives the other ranks' parts for this one. */
struct sw_comm_exchange {
    const char *what;
    int64_t index;
    const void *data;            /* the parts for all ranks, in rank order */
    const int64_t *bounds_bytes; /* ranks + 1 entries: where each part begins, equal on all ranks */
    void *to;                    /* receives the others' parts for this rank, one after the other in rank order */
    sw_comm_scope scope;         /* "every rank" means every rank of the scope */
};
sw_status sw_comm_exchange(struct sw_comm *comm, const struct sw_comm_exchange *exchange, struct sw_comm_request **out);

/* Passes bytes between this rank and the one with its number in a neighbouring stage. The two call it in the same order
 * among their passes, one of them to send and the other to receive. */
struct sw_comm_pass {
    const char *what;
    int64_t index;
    void *data; /* what is sent, or where it is received */
    int64_t bytes;
    sw_comm_scope scope; /* SW_SCOPE_NEXT or SW_SCOPE_PREVIOUS */
    bool sends;
};
sw_status sw_comm_pass(struct sw_comm *comm, const struct sw_comm_pass *pass, struct sw_comm_request **out);

/* Copies the root's bytes to all ranks. */
struct sw_comm_broadcast {
    const char *what;
    int64_t index;
    void *data;
    int64_t bytes;
    int root;
    bool on_host;        /* the data are in host memory, whatever transport moves the rest */
    sw_comm_scope scope; /* "all ranks" means those of the scope, and the root is a number among them */
};
sw_status sw_comm_broadcast(struct sw_comm *comm, const struct sw_comm_broadcast *broadcast,
                            struct sw_comm_request **out);

/* Waits until the request is done, and advances those begun before it. A request that is done, or has failed, no longer
 * exists. */
sw_status sw_comm_wait(struct sw_comm_request *request);

/* The name of a collective that was left to the device, for messages. */
struct sw_comm_left {
    char what[SW_COMM_WHAT_CHARS];
    int64_t index;
};
/* Leaves a request to the GPU of sw_comm_use_nccl instead of waiting for it: all of its work is on that GPU's stream,
 * and later work on the stream runs after it. The request no longer exists. The device's owner notices when the stream
 * gets there, and calls sw_comm_check until then. */
void sw_comm_leave(struct sw_comm_request *request, struct sw_comm_left *out);
/* Tell the watch, from any thread, that the device has begun a collective that was left to it, and that it has ended
 * the last one it began. All ranks report the same collectives in the same order. */
void sw_comm_note_begun(const struct sw_comm *comm, const struct sw_comm_left *left);
void sw_comm_note_ended(const struct sw_comm *comm);
/* Returns the watch's verdict, or an error of the GPU's collectives. Does not wait. */
sw_status sw_comm_check(struct sw_comm *comm);
/* Aborts the GPU's collectives that are under way, so that whatever waits after them continues. Their results are
 * worthless, and the comm has failed. Does nothing if no GPU memory is exchanged. */
void sw_comm_withdraw(struct sw_comm *comm);

/* The calls below exchange host memory, whatever transport moves the rest, and return when it is done. `what` is as
 * above. */
/* Waits until every rank has called it. */
sw_status sw_comm_barrier(struct sw_comm *comm, const char *what);
/* Sum each value over the ranks, in rank order, or take its maximum. `count` is at most SW_COMM_VALUES. */
sw_status sw_comm_sum_doubles(struct sw_comm *comm, const char *what, double *values, int count);
sw_status sw_comm_max(struct sw_comm *comm, const char *what, int64_t *values, int count);
/* Sets *value to whether it is true on every rank. */
sw_status sw_comm_all_true(struct sw_comm *comm, const char *what, bool *value);
/* Copies every rank's record to every rank: records[rank], each of record_bytes. This rank's record must be in its
 * place. */
sw_status sw_comm_share_records(struct sw_comm *comm, const char *what, void *records, int64_t record_bytes);

/* A value that every rank states at the start, so that a job that was started wrongly is refused. */
typedef enum {
    SW_CLAIM_EQUAL,    /* all ranks have the same: the program, the configuration, the data */
    SW_CLAIM_DISTINCT, /* no two ranks have the same: a directory, a GPU of one machine (sw_comm_identity's node) */
} sw_claim_kind;
struct sw_comm_claim {
    sw_claim_kind kind;
    const char *what;   /* "program", "directory" */
    const char *shown;  /* the value as the user knows it; NULL: not shown */
    const char *remedy; /* "give each rank a directory of its own" */
    const void *value;  /* what is compared; NULL: this rank has none, which equals no other value */
    int64_t bytes;
};
/* Checks the claims of all ranks, which state equally many in one order. Every rank returns the same SW_ERR_ARG, which
 * names the ranks that are wrong; rank 0 prints it. */
sw_status sw_comm_agree(struct sw_comm *comm, const struct sw_comm_claim *claims, int count);
/* Computes a digest of the running program's file. */
enum { SW_COMM_DIGEST_BYTES = 16 };
sw_status sw_comm_program_digest(unsigned char out[SW_COMM_DIGEST_BYTES]);

#endif
