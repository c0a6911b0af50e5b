/* Ranks that are threads of one process. A message is copied once, straight from the sender's memory into the
 * receiver's, by whichever of the two comes second. So a rank that computes holds up nobody who waits for bytes it has
 * already posted. One lock guards all of a party's state; no copy holds it.
 *
 * No such rank can die by itself, so no watch is needed: a rank that fails tells the party (sw_comm_abandon), and a
 * rank that ends has left it. Either ends the waits of the others. */
#include "core/ranks/comm_private.h"
#include "core/size.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FAILURE_CHARS = 512, NOBODY = -1, PAUSE_NS = 1000000, NS_PER_S = 1000000000 };

/* IDLE: there is no message. POSTED: it waits for its peer. MOVING: one of the two copies it, so its memory must stay.
 * DONE: it has been copied, and the rank that posted it has not looked yet. */
enum post_state { IDLE, POSTED, MOVING, DONE };

/* One end of a message. It meets the end of its peer that has the same group and sequence. */
struct post {
    enum post_state state;
    int64_t sequence, bytes;
    void *data;
};

struct party {
    pthread_mutex_t lock;
    int ranks;
    struct seat *seats;
    struct post *sends, *receives; /* indexed [rank][peer][group] */
    int failed_rank;               /* the first rank that failed, or NOBODY */
    char failure[FAILURE_CHARS];   /* its message, which names the rank */
    void (*run)(void *context, int rank);
    void *context;
};

/* A rank's membership of its party. */
struct seat {
    struct party *party;
    pthread_t thread;
    int rank;
    bool left;            /* it posts nothing any more */
    atomic_bool told;     /* there is news, and nobody has been woken for it */
    uint64_t news;        /* copies of its messages that have ended, and ranks that have failed or left */
    uint64_t seen;        /* the news that its last look at messages found */
    pthread_cond_t moved; /* signalled when there is news */
};

static _Thread_local struct seat *own_seat; /* NULL: not a thread of sw_comm_run_threads */

static struct post *post_of(const struct party *party, struct post *posts, int rank, int peer, int group) {
    return &posts[((size_t)rank * (size_t)party->ranks + (size_t)peer) * SW_COMM_GROUPS + (size_t)group];
}

/* Notes news for a rank. Needs the lock. */
static void tell(struct seat *seat) {
    seat->news++;
    atomic_store(&seat->told, true);
}

static void tell_all(const struct party *party) {
    for (int rank = 0; rank < party->ranks; rank++)
        tell(&party->seats[rank]);
}

/* Releases the lock, and then wakes the ranks for which there is news: they would otherwise wake only to wait for the
 * lock. */
static void release_lock(struct party *party) {
    pthread_mutex_unlock(&party->lock);
    for (int rank = 0; rank < party->ranks; rank++)
        if (atomic_exchange(&party->seats[rank].told, false))
            pthread_cond_broadcast(&party->seats[rank].moved);
}

/* Copies a message whose two ends have come. Needs the lock, and releases it during the copy. */
static void move(struct party *party, int from, int to, int group) {
    struct post *send = post_of(party, party->sends, from, to, group);
    struct post *receive = post_of(party, party->receives, to, from, group);
    if (send->state != POSTED || receive->state != POSTED || send->sequence != receive->sequence)
        return;
    assert(send->bytes == receive->bytes);
    send->state = receive->state = MOVING;
    release_lock(party);
    memcpy(receive->data, send->data, (size_t)send->bytes);
    pthread_mutex_lock(&party->lock);
    send->state = receive->state = DONE;
    tell(&party->seats[from]);
    tell(&party->seats[to]);
}

/* Copies what has come for this rank and from it. Needs the lock. */
static void move_all(const struct seat *seat, int group) {
    for (int peer = 0; peer < seat->party->ranks; peer++) {
        move(seat->party, peer, seat->rank, group);
        move(seat->party, seat->rank, peer, group);
    }
}

static void post_message(struct post *post, int64_t sequence, const struct sw_comm_message *message) {
    assert(post->state == IDLE);
    *post = (struct post){.state = POSTED, .sequence = sequence, .bytes = message->bytes, .data = message->data};
}

static sw_status post(void *state, int group, int64_t sequence, const struct sw_comm_round *round) {
    struct seat *seat = state;
    struct party *party = seat->party;
    pthread_mutex_lock(&party->lock);
    for (int i = 0; i < round->receive_count; i++)
        post_message(post_of(party, party->receives, seat->rank, round->receives[i].peer, group), sequence,
                     &round->receives[i]);
    for (int i = 0; i < round->send_count; i++)
        post_message(post_of(party, party->sends, seat->rank, round->sends[i].peer, group), sequence, &round->sends[i]);
    move_all(seat, group);
    release_lock(party);
    return SW_OK;
}

/* Returns a rank whose message has not been copied, or NOBODY. Needs the lock. */
static int unmoved_peer(const struct seat *seat, int group) {
    struct party *party = seat->party;
    for (int peer = 0; peer < party->ranks; peer++) {
        const enum post_state received = post_of(party, party->receives, seat->rank, peer, group)->state;
        const enum post_state sent = post_of(party, party->sends, seat->rank, peer, group)->state;
        if (received == POSTED || received == MOVING || sent == POSTED || sent == MOVING)
            return peer;
    }
    return NOBODY;
}

static void forget(const struct seat *seat, int group) {
    struct party *party = seat->party;
    for (int peer = 0; peer < party->ranks; peer++) {
        post_of(party, party->receives, seat->rank, peer, group)->state = IDLE;
        post_of(party, party->sends, seat->rank, peer, group)->state = IDLE;
    }
}

static sw_status done(void *state, int group, bool *out_done) {
    struct seat *seat = state;
    pthread_mutex_lock(&seat->party->lock);
    move_all(seat, group);
    seat->seen = seat->news;
    *out_done = unmoved_peer(seat, group) == NOBODY;
    if (*out_done)
        forget(seat, group);
    release_lock(seat->party);
    return SW_OK;
}

static int awaited(void *state, int group) {
    struct seat *seat = state;
    pthread_mutex_lock(&seat->party->lock);
    const int peer = unmoved_peer(seat, group);
    pthread_mutex_unlock(&seat->party->lock);
    return peer;
}

/* Returns a rank that this one waits for although it has left, or NOBODY. Needs the lock. */
static int missed_peer(const struct seat *seat) {
    for (int group = 0; group < SW_COMM_GROUPS; group++) {
        for (int peer = 0; peer < seat->party->ranks; peer++) {
            struct party *party = seat->party;
            if (party->seats[peer].left && (post_of(party, party->receives, seat->rank, peer, group)->state == POSTED ||
                                            post_of(party, party->sends, seat->rank, peer, group)->state == POSTED))
                return peer;
        }
    }
    return NOBODY;
}

/* Sleeps until there is news that the last look at messages did not find. If another thread of the rank has looked
 * since, that costs one pause at most. */
static void doze(void *state) {
    struct seat *seat = state;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += PAUSE_NS;
    if (until.tv_nsec >= NS_PER_S) {
        until.tv_nsec -= NS_PER_S;
        until.tv_sec++;
    }
    pthread_mutex_lock(&seat->party->lock);
    if (seat->seen == seat->news)
        pthread_cond_timedwait(&seat->moved, &seat->party->lock, &until);
    pthread_mutex_unlock(&seat->party->lock);
}

static sw_status poll(void *state) {
    struct seat *seat = state;
    struct party *party = seat->party;
    char failure[FAILURE_CHARS] = "";
    pthread_mutex_lock(&party->lock);
    const int missed = missed_peer(seat);
    if (party->failed_rank != NOBODY)
        memcpy(failure, party->failure, sizeof failure);
    else if (missed != NOBODY)
        snprintf(failure, sizeof failure, "rank %d has ended without an answer", missed);
    pthread_mutex_unlock(&party->lock);
    return failure[0] != '\0' ? sw_fail(SW_ERR_STOPPED, "%s", failure) : SW_OK;
}

/* Waits for a copy of this rank's memory that another rank has begun: the memory may be freed afterwards. */
static void withdraw(void *state) {
    struct seat *seat = state;
    struct party *party = seat->party;
    pthread_mutex_lock(&party->lock);
    for (int group = 0; group < SW_COMM_GROUPS; group++) {
        for (int peer = 0; peer < party->ranks; peer++) {
            const struct post *const ends[] = {post_of(party, party->receives, seat->rank, peer, group),
                                               post_of(party, party->sends, seat->rank, peer, group)};
            while (ends[0]->state == MOVING || ends[1]->state == MOVING)
                pthread_cond_wait(&seat->moved, &party->lock);
        }
        forget(seat, group);
    }
    pthread_mutex_unlock(&party->lock);
}

static bool abandon(void *state, const char *message) {
    struct seat *seat = state;
    struct party *party = seat->party;
    pthread_mutex_lock(&party->lock);
    const bool first = party->failed_rank == NOBODY;
    if (first) {
        party->failed_rank = seat->rank;
        snprintf(party->failure, sizeof party->failure, "rank %d: %s", seat->rank, message);
        tell_all(party);
    }
    release_lock(party);
    return first;
}

static void leave(void *state, bool orderly) {
    struct seat *seat = state;
    (void)orderly;
    withdraw(seat);
    pthread_mutex_lock(&seat->party->lock);
    seat->left = true;
    tell_all(seat->party);
    release_lock(seat->party);
}

static const struct sw_comm_transport transport = {.name = "threads",
                                                   .most_message_bytes = SW_GIB,
                                                   .post = post,
                                                   .done = done,
                                                   .awaited = awaited,
                                                   .poll = poll,
                                                   .doze = doze,
                                                   .withdraw = withdraw,
                                                   .abandon = abandon,
                                                   .close = leave};

bool sw_comm_threads_open(int *out_rank, int *out_ranks, const struct sw_comm_transport **out, void **out_state) {
    if (own_seat == NULL)
        return false;
    *out_rank = own_seat->rank;
    *out_ranks = own_seat->party->ranks;
    *out = &transport;
    *out_state = own_seat;
    return true;
}

static void release(struct party *party) {
    for (int rank = 0; party->seats != NULL && rank < party->ranks; rank++)
        pthread_cond_destroy(&party->seats[rank].moved);
    pthread_mutex_destroy(&party->lock);
    free(party->seats);
    free(party->sends);
    free(party->receives);
}

static void *run_seat(void *argument) {
    own_seat = argument;
    own_seat->party->run(own_seat->party->context, own_seat->rank);
    /* Others may wait for a rank that never opened its comm, or never closed it. */
    leave(own_seat, true);
    own_seat = NULL;
    return NULL;
}

/* Starts the ranks' threads and waits for them. If one cannot be started, those already running end by themselves,
 * because they wait for a rank that has left. */
static sw_status run_party(struct party *party) {
    int started = 0, error = 0;
    while (started < party->ranks && error == 0) {
        struct seat *seat = &party->seats[started];
        error = pthread_create(&seat->thread, NULL, run_seat, seat);
        started += error == 0;
    }
    pthread_mutex_lock(&party->lock);
    for (int rank = started; rank < party->ranks; rank++)
        party->seats[rank].left = true;
    pthread_mutex_unlock(&party->lock);
    for (int rank = 0; rank < started; rank++)
        pthread_join(party->seats[rank].thread, NULL);
    return error == 0 ? SW_OK
                      : sw_fail(SW_ERR_NOMEM, "cannot start the thread of rank %d: %s", started, strerror(error));
}

static void seat_ranks(struct party *party) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    for (int rank = 0; rank < party->ranks; rank++) {
        party->seats[rank] = (struct seat){.party = party, .rank = rank};
        pthread_cond_init(&party->seats[rank].moved, &monotonic);
    }
    pthread_condattr_destroy(&monotonic);
}

sw_status sw_comm_run_threads(int ranks, void (*run)(void *context, int rank), void *context) {
    const size_t ends = (size_t)ranks * (size_t)ranks * SW_COMM_GROUPS;
    struct party party = {.ranks = ranks, .run = run, .context = context, .failed_rank = NOBODY};
    assert(ranks >= 1);
    pthread_mutex_init(&party.lock, NULL);
    party.seats = calloc((size_t)ranks, sizeof *party.seats);
    party.sends = calloc(ends, sizeof *party.sends);
    party.receives = calloc(ends, sizeof *party.receives);
    if (party.seats != NULL)
        seat_ranks(&party);
    if (party.seats == NULL || party.sends == NULL || party.receives == NULL) {
        release(&party);
        return sw_fail(SW_ERR_NOMEM, "no memory for %d ranks", ranks);
    }
    const sw_status status = run_party(&party);
    release(&party);
    return status;
}
