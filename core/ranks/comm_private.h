/* Declarations shared by the files of comm. A collective is one or two phases; a phase is a number of rounds; a round
 * is a set of messages under way at once and then, in reductions, a sum. Transports only move messages. */
#ifndef SW_CORE_RANKS_COMM_PRIVATE_H
#define SW_CORE_RANKS_COMM_PRIVATE_H

#include "core/ranks/comm.h"

#include <stdatomic.h>

/* An observer is told of collectives, and asked for a verdict while one waits. Its functions run on the thread that
 * uses the comm. */
struct sw_comm_observer {
    void *context;
    void (*enter)(void *context, const char *what, int64_t index); /* a collective begins */
    void (*tick)(void *context);                                   /* it has made progress */
    void (*leave)(void *context);                                  /* none is under way any more */
    sw_status (*verdict)(void *context); /* SW_OK while all ranks are well; an error ends the wait */
};

struct sw_comm_message {
    int peer;
    void *data;
    int64_t bytes;
};

/* Rounds under way at once, so that one is summed while the next is moved. */
enum { SW_COMM_GROUPS = 2 };

/* The messages of one round, in both directions. */
struct sw_comm_round {
    struct sw_comm_message *sends, *receives; /* each array has room for one message per peer */
    int send_count, receive_count;
};

struct sw_comm_transport {
    const char *name;
    int64_t most_message_bytes;
    /* Starts all messages of a round. Messages between two ranks arrive in the order in which they were posted.
     * sequence: the tag of the collective, equal on the ranks that take part in it. */
    sw_status (*post)(void *state, int group, int64_t sequence, const struct sw_comm_round *round);
    /* Sets *out_done if all messages of the group's round are done. On a stream, true means that later work on the
     * stream runs after them. */
    sw_status (*done)(void *state, int group, bool *out_done);
    /* Starts the library's own sums of a round. Each send is this rank's contribution to its peer's share, the own
     * share included; the own share is received, if there is one. NULL: the transport has no sums. */
    sw_status (*post_sums)(void *state, int group, sw_dtype type, const struct sw_comm_round *round);
    /* Returns a rank with messages of the round that have not arrived, or -1. NULL: the transport cannot tell. */
    int (*awaited)(void *state, int group);
    /* Returns errors that belong to no message of a round: asynchronous errors of the library, and failures of ranks
     * that are threads. NULL: there are none. */
    sw_status (*poll)(void *state);
    /* Waits a moment, or until messages may have arrived since the last call of `done`. NULL: the transport cannot
     * tell, and the comm polls, then sleeps. */
    void (*doze)(void *state);
    /* Cancels the messages under way, so that their memory may be freed and the device continues. Called once the comm
     * has failed. NULL: the process ends, and the messages with it. */
    void (*withdraw)(void *state);
    /* Implements sw_comm_abandon. NULL: the ranks are not threads. */
    bool (*abandon)(void *state, const char *message);
    /* Implements sw_comm_tell. NULL: nothing is told. */
    void (*tell)(void *state, const char *message);
    /* Closes the transport. `orderly`: no rank has failed. */
    void (*close)(void *state, bool orderly);
};

/* Fills in who is who for a thread of sw_comm_run_threads. Returns false in any other thread. */
bool sw_comm_threads_open(int *out_rank, int *out_ranks, const struct sw_comm_transport **out, void **out_state);
/* Initialises MPI and fills in who is who. SW_ERR_UNSUPPORTED: built without MPI. */
sw_status sw_comm_mpi_open(int *out_rank, int *out_ranks, const struct sw_comm_transport **out, void **out_state);
/* Opens the transport of sw_comm_open_caller. */
sw_status sw_comm_caller_open(const struct sw_comm_caller *caller, const struct sw_comm_transport **out,
                              void **out_state);
/* `id` starts as zeros; on rank 0 it becomes what the others need. All ranks then call open with rank 0's. */
enum { SW_COMM_NCCL_ID_BYTES = 128 };
sw_status sw_comm_nccl_id(void *id);
sw_status sw_comm_nccl_open(const void *id, int rank, int ranks, void *stream, const struct sw_comm_transport **out,
                            void **out_state);

/* The ranks of a scope. */
struct sw_comm_members {
    int rank, ranks; /* this rank's number among them, and their number */
    int *rank_of;    /* the ranks, indexed by these numbers */
};

typedef enum { SW_PHASE_GATHER, SW_PHASE_SCATTER, SW_PHASE_REDUCE, SW_PHASE_EXCHANGE } sw_comm_phase_kind;

struct sw_comm_phase {
    sw_comm_phase_kind kind;
    const struct sw_comm_members *members; /* "ranks" below are numbers among these */
    char *data;            /* gather, scatter: the whole vector; reduce, exchange: this rank's contribution */
    const char *own;       /* gather: this rank's share, if it is not in data; NULL: it is */
    const int64_t *bounds; /* ranks + 1 entries, in units of unit_bytes */
    int64_t unit_bytes;
    int root; /* scatter */
    char *to; /* reduce: this rank's share; exchange: the others' parts, each as long as the own share */
    sw_dtype type, to_type;
    bool by_library;     /* reduce: the transport's own sum */
    bool straight;       /* gather: always in one level, because few bytes are not worth two */
    int node_ranks;      /* gather in two levels: members per node, which are neighbours; 0: one level */
    int64_t round_units; /* the most units of each share that a round moves */
    int64_t rounds;
};

enum { SW_COMM_PHASES = 2 };

struct sw_comm_request {
    struct sw_comm *comm;
    const struct sw_comm_transport *transport;
    void *transport_state;
    const char *what;
    int64_t index;
    sw_comm_scope scope;
    struct sw_comm_phase phases[SW_COMM_PHASES];
    int phase_count, phase;
    int64_t posted, finished; /* rounds of the phase that were posted, and that are finished */
    int64_t moved_ns;         /* when the request began or its last round was done, by sw_now_ns */
    int64_t sequence;         /* a tag that its ranks have in common (tag_of) */
    int64_t *bounds;          /* ranks + 1 entries, for requests whose bounds the comm computes */
    bool open, given;
};

struct sw_comm {
    struct sw_comm_identity identity;
    const struct sw_comm_transport *host, *bulk; /* equal unless NCCL moves device memory */
    void *host_state, *bulk_state;
    struct sw_comm_device device; /* of `bulk`, if it is NCCL */
    struct sw_comm_request requests[SW_COMM_REQUESTS];
    /* Requests so far; a request's slot is its number modulo SW_COMM_REQUESTS. given: fully posted. */
    int64_t begun, given;
    int64_t begun_in[SW_SCOPES];    /* requests of each scope so far, since its ranks were last set */
    int tensor_ranks, expert_ranks; /* as set by sw_comm_set_groups */
    _Atomic int stages;             /* as set by sw_comm_set_stages; the watch reads it */
    struct sw_comm_round rounds[SW_COMM_GROUPS];
    struct sw_comm_message *messages;
    int64_t *bounds;
    bool library_sums;
    char *staging;
    int64_t staging_bytes;
    int64_t *records; /* host reductions: SW_COMM_VALUES per rank */
    int64_t sent_bytes, sent_between_bytes, sent_tensor_bytes, sent_stages_bytes;
    int *machine_of, *node_of; /* each rank's machine and node */
    struct sw_comm_nodes nodes;
    struct sw_comm_members scope[SW_SCOPES];
    struct sw_comm_observer observer; /* its functions are NULL if there is none */
    int64_t timeout_ns;
    int absent;
    sw_status failed;
    char failure[512];
    _Atomic bool inside; /* a thread is in a call */
};

enum { SW_COMM_SCOPE_CHARS = 64 };
/* Writes the name of this rank's scope for messages, such as "node 1". */
void sw_comm_name_scope(const struct sw_comm *comm, sw_comm_scope scope, char out[SW_COMM_SCOPE_CHARS]);

/* Sums on the host as struct sw_comm_sum describes. */
void sw_comm_sum_host(const struct sw_comm_sum *sum);

/* Copies and sets the observer. One of zeros removes it. */
void sw_comm_set_observer(struct sw_comm *comm, const struct sw_comm_observer *observer);

#endif
