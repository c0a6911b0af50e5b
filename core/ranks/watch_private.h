/* Declarations that the files of the watch share: the note that ranks send each other, who is connected, and the
 * judgement. */
#ifndef SW_CORE_RANKS_WATCH_PRIVATE_H
#define SW_CORE_RANKS_WATCH_PRIVATE_H

#include "core/ranks/comm_private.h"
#include "core/ranks/watch.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

enum { SW_WATCH_WHAT_CHARS = 64, SW_WATCH_NAME_CHARS = 192, SW_WATCH_TOKENS = 2 };

/* The latest work that a lane has begun. */
struct sw_watch_lane {
    uint64_t entered;   /* pieces of work begun so far */
    uint64_t ticks;     /* signs of progress so far */
    int64_t running_ns; /* how long the lane has been in the latest; -1: it is in none */
    int64_t index;
    char what[SW_WATCH_WHAT_CHARS];
};

typedef enum {
    SW_NOTE_HELLO,   /* to rank 0: who connects */
    SW_NOTE_WELCOME, /* its answer */
    SW_NOTE_BEAT,    /* alive, and the lanes */
    SW_NOTE_FAILED,  /* to rank 0: text */
    SW_NOTE_VERDICT, /* from rank 0: text */
    SW_NOTE_BYE,     /* ended as it should */
    SW_NOTE_KINDS
} sw_note_kind;

/* All notes have one size and, as all ranks run one program, one layout. */
struct sw_note {
    uint64_t token[SW_WATCH_TOKENS]; /* names the job, so that a stranger's connection is not taken for a rank's */
    int32_t kind;
    int32_t rank;
    int64_t process;
    int32_t patient; /* others give this rank more time (sw_watch_relax_timeout) */
    struct sw_watch_lane lanes[SW_WATCH_LANES];
    char host[SW_COMM_NAME_CHARS];
    char group[SW_COMM_SCOPE_CHARS]; /* the name of this rank's tensor group; empty: there are no groups */
    char text[SW_WATCH_TEXT_CHARS];
};

/* The other end of a connection. */
struct sw_watch_peer {
    int socket;
    int rank;
    bool left;        /* the rank ended as it should */
    int64_t heard_ns; /* when its last note came */
    int64_t moved_ns; /* when its lanes were last seen to move */
    struct sw_note last;
    struct sw_note incoming;
    size_t incoming_bytes;
};

/* The facts about one rank by which it is judged. */
struct sw_watch_view {
    bool left;
    int64_t silent_ns, still_ns; /* since its last note, since its lanes moved */
    const struct sw_note *note;
};

/* The rule by which ranks are judged. */
struct sw_watch_rule {
    const char *const *lanes; /* names, the comm's first */
    int lane_count;
    int64_t timeout_ns;
    const char *remedy; /* as struct sw_watch_spec has it */
};
/* Returns true if the job must end by these facts about its ranks, and then writes the reason into `text`. */
bool sw_watch_judge(const struct sw_watch_view *views, int ranks, const struct sw_watch_rule *rule,
                    char text[SW_WATCH_TEXT_CHARS]);
/* Writes why the job must end where `rank`, an index of views, has died: its name, and what it was last seen to do. */
void sw_watch_describe_death(const struct sw_watch_view *views, int ranks, int rank, const struct sw_watch_rule *rule,
                             char text[SW_WATCH_TEXT_CHARS]);

struct sw_watch {
    struct sw_comm *comm;
    struct sw_watch_spec spec;
    const char *lanes[SW_WATCH_LANES];
    int lane_count; /* with the comm's */
    int rank, ranks;
    struct sw_note own;
    struct sw_watch_peer *peers; /* rank 0: all others, in order; others: rank 0 */
    int peer_count;
    struct sw_watch_view *views; /* one a peer, then this rank's */
    struct pollfd *waits;        /* one a peer, then wake's */
    int64_t own_moved_ns;
    /* This rank prints no verdict before this time: it was stopped for so long that others may have judged it. */
    int64_t mute_until_ns;
    int wake; /* an eventfd: there is a failure to tell, or the end */
    pthread_t thread;
    bool running;
    pthread_mutex_t lock; /* of all that follows */
    pthread_cond_t told;
    struct sw_watch_lane now[SW_WATCH_LANES]; /* running_ns: since when */
    char group[SW_COMM_SCOPE_CHARS];          /* as struct sw_note has it */
    bool patient;
    char failure[SW_WATCH_TEXT_CHARS];
    bool failing, stopping;
    char verdict[SW_WATCH_TEXT_CHARS];
    _Atomic bool judged;
    _Atomic int64_t timeout_ns;
};

/* Connects all ranks and fills watch->peers. Ranks that share a loopback address are reached by that alone. */
sw_status sw_watch_connect(struct sw_watch *watch);
/* Rank 0: accepts the other ranks' connections and fills watch->peers. Other connections hold up none of them. */
sw_status sw_watch_accept(struct sw_watch *watch, int listener);
/* Sends a note without ever waiting. A peer that takes no bytes is later found silent. */
void sw_watch_send(const struct sw_watch *watch, struct sw_watch_peer *peer, sw_note_kind kind, const char *text);
/* Reads the bytes that a peer has sent. Returns 1 if a whole note is in peer->incoming, 0 if not yet, -1 if the
 * connection has ended. */
int sw_watch_receive(const struct sw_watch *watch, struct sw_watch_peer *peer);
/* The main function of the watch's thread; `argument` is its struct sw_watch. */
void *sw_watch_run(void *argument);
/* Copies the present state of the lanes and the group's name into watch->own. */
void sw_watch_snapshot(struct sw_watch *watch);

#endif
