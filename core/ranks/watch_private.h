/* Declarations shared by the watch's files: the notes that ranks send each other, the connections, and the judgement.
 */
#ifndef SW_CORE_RANKS_WATCH_PRIVATE_H
#define SW_CORE_RANKS_WATCH_PRIVATE_H

#include "core/ranks/comm_private.h"
#include "core/ranks/watch.h"

#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

enum { SW_WATCH_WHAT_CHARS = 64, SW_WATCH_NAME_CHARS = 192, SW_WATCH_ADDRESSES = 32 };

/* A number that nobody can guess. */
struct sw_watch_token {
    uint64_t half[2];
};

/* The latest work that a lane has begun. */
struct sw_watch_lane {
    uint64_t entered;   /* pieces of work begun so far */
    uint64_t ticks;     /* signs of progress so far */
    int64_t running_ns; /* how long the lane has been in it; -1: it is idle */
    int64_t index;
    char what[SW_WATCH_WHAT_CHARS];
};

typedef enum {
    SW_NOTE_HELLO,     /* to rank 0: who connects, with a nonce */
    SW_NOTE_CHALLENGE, /* rank 0's answer: its own nonce, and the proof that it knows the job's key */
    SW_NOTE_PROOF,     /* to rank 0: the proof that the rank knows the key too */
    SW_NOTE_WELCOME,   /* rank 0's answer to the proof */
    SW_NOTE_BEAT,      /* sign of life, with the state of the lanes */
    SW_NOTE_FAILED,    /* to rank 0: text */
    SW_NOTE_VERDICT,   /* from rank 0: text */
    SW_NOTE_BYE,       /* the rank ends normally */
    SW_NOTE_KINDS
} sw_note_kind;

/* Notes have one size and, as all ranks run the same program, one layout. */
struct sw_note {
    struct sw_watch_token token; /* a proof (SW_PROOF_...), so that a stranger's note is not taken for a rank's */
    struct sw_watch_token nonce; /* in the first two notes */
    int32_t kind;
    int32_t rank;
    int64_t process;
    int32_t relaxed; /* the rank gets more time (sw_watch_relax_timeout) */
    struct sw_watch_lane lanes[SW_WATCH_LANES];
    char host[SW_COMM_NAME_CHARS];
    char group[SW_COMM_SCOPE_CHARS]; /* name of this rank's tensor group; empty: there are no groups */
    char text[SW_WATCH_TEXT_CHARS];
};

/* The other end of a connection. */
struct sw_watch_peer {
    int socket;
    int rank;
    bool greeted;                       /* both nonces are known: incoming notes must have this connection's token */
    struct sw_watch_token token, nonce; /* of the notes to be sent */
    bool left;                          /* the rank ended normally */
    int64_t heard_ns;                   /* when its last note arrived */
    int64_t moved_ns;                   /* when its lanes were last seen to make progress */
    struct sw_note last;
    struct sw_note incoming;
    size_t incoming_bytes;
};

/* The facts about one rank by which it is judged. */
struct sw_watch_view {
    bool left;
    int64_t silent_ns, still_ns; /* time since its last note; time since its lanes made progress */
    const struct sw_note *note;
};

/* The rule by which ranks are judged. */
struct sw_watch_rule {
    const char *const *lanes; /* names, the comm's lane first */
    int lane_count;
    int64_t timeout_ns;
    const char *remedy; /* as in struct sw_watch_spec */
    bool stages;        /* ranks pass each other bytes, each as often as its stage of a pipeline has to */
};
/* Returns true if the job must end by these facts about its ranks, and then writes the reason into `text`. */
bool sw_watch_judge(const struct sw_watch_view *views, int ranks, const struct sw_watch_rule *rule,
                    char text[SW_WATCH_TEXT_CHARS]);
/* Writes why the job must end because `rank`, an index of views, has died: its name, and what it was last doing. */
void sw_watch_describe_death(const struct sw_watch_view *views, int ranks, int rank, const struct sw_watch_rule *rule,
                             char text[SW_WATCH_TEXT_CHARS]);

struct sw_watch {
    struct sw_comm *comm;
    struct sw_watch_spec spec;
    const char *lanes[SW_WATCH_LANES];
    int lane_count; /* including the comm's */
    int rank, ranks;
    struct sw_watch_token key; /* key of the job; never sent */
    struct sw_note own;
    struct sw_watch_peer *peers; /* rank 0: all other ranks, in rank order; other ranks: rank 0 */
    int peer_count;
    struct sw_watch_view *views; /* one per peer, then this rank's */
    struct pollfd *waits;        /* one per peer, then that of `wake` */
    int64_t own_moved_ns;
    /* This rank prints no verdict before this time: it was stopped for so long that others may have judged it. */
    int64_t mute_until_ns;
    int wake; /* an eventfd, signalled for a failure to report, or the end */
    pthread_t thread;
    bool running;
    pthread_mutex_t lock; /* guards the members below */
    pthread_cond_t told;
    struct sw_watch_lane now[SW_WATCH_LANES]; /* running_ns: since when */
    char group[SW_COMM_SCOPE_CHARS];          /* as in struct sw_note */
    bool relaxed;
    char failure[SW_WATCH_TEXT_CHARS];
    bool failing, stopping;
    char verdict[SW_WATCH_TEXT_CHARS];
    _Atomic bool judged;
    _Atomic int64_t timeout_ns;
};

/* The network that a process sees; containers on one machine may see several. Addresses are in IPv6 form, with those of
 * IPv4 mapped into it; link-local ones are left out. */
struct sw_watch_network {
    char boot[SW_COMM_NAME_CHARS],
        name[SW_COMM_NAME_CHARS]; /* identities of the machine and of the network namespace; empty: unknown */
    int32_t count;
    struct in6_addr addresses[SW_WATCH_ADDRESSES];
    bool preferred[SW_WATCH_ADDRESSES];      /* the user's settings have MPI use it, or there are no such settings */
    uint8_t prefix_bits[SW_WATCH_ADDRESSES]; /* how many bits the addresses of one link share */
};
/* A rank's answer to the addresses of rank 0. */
struct sw_watch_answer {
    int32_t shares; /* 1: the rank sees the network of rank 0 */
    /* For each of rank 0's addresses the rank's own address from which it would reach it. Unspecified: it would not, or
     * another address suits better (one that MPI is to use, or one on a link that both have). */
    struct in6_addr sources[SW_WATCH_ADDRESSES];
};
typedef enum {
    SW_REACH_LOOPBACK, /* all ranks see one network */
    SW_REACH_USED,     /* the marked addresses lead to and from every other rank */
    SW_REACH_ALL,      /* for some rank no such addresses were found */
} sw_watch_reach;

/* Sockets that listen for one job. */
struct sw_watch_listeners {
    int count;
    int sockets[SW_WATCH_ADDRESSES];
};

/* Connects all ranks and fills watch->peers. Rank 0 listens only on the addresses by which the others reach it; that is
 * the loopback address if all see one network. If no such address is known for some rank, or some rank has not
 * connected in time, rank 0 listens on all. */
sw_status sw_watch_connect(struct sw_watch *watch);
/* Rank 0: accepts the other ranks' connections within the time and fills watch->peers. Other connections delay none of
 * them. */
sw_status sw_watch_accept(struct sw_watch *watch, const struct sw_watch_listeners *listeners, int64_t ms);
/* The two proofs: rank 0 proves that it knows the key; both ends prove it by the token of their connection. */
typedef enum { SW_PROOF_OF_FIRST, SW_PROOF_OF_CONNECTION } sw_watch_proof;
uint64_t sw_watch_siphash(const struct sw_watch_token *key, const uint64_t *words, int count);
/* Proves to the process at an address that this is a rank of the job, once that process has proved to be rank 0.
 * Returns whether it has welcomed this rank in time. */
bool sw_watch_greet(const struct sw_watch *watch, struct sw_watch_peer *peer, int64_t ms);
/* Sends a note and never waits. A peer that accepts no bytes will be found silent. */
void sw_watch_send(const struct sw_watch *watch, struct sw_watch_peer *peer, sw_note_kind kind, const char *text);
/* Reads the bytes that a peer has sent. Returns 1 if a whole note is in peer->incoming, 0 if not yet, -1 if the
 * connection has ended. */
int sw_watch_receive(const struct sw_watch *watch, struct sw_watch_peer *peer);

#endif
