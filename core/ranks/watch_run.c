/* The watch's thread: tells, listens, judges, until there is a verdict or the rank is done. */
#include "core/clock.h"
#include "core/ranks/watch_private.h"
#include "core/size.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The number of beats in the time after which a rank counts as silent. */
enum { BEATS = 8 };
#define LEAST_BEAT_NS INT64_C(10000000)
#define MOST_BEAT_NS INT64_C(500000000)

void sw_watch_snapshot(struct sw_watch *watch) {
    pthread_mutex_lock(&watch->lock);
    memcpy(watch->own.lanes, watch->now, sizeof watch->own.lanes);
    memcpy(watch->own.group, watch->group, sizeof watch->own.group);
    watch->own.patient = watch->patient;
    pthread_mutex_unlock(&watch->lock);
    const int64_t now_ns = sw_now_ns();
    for (int lane = 0; lane < SW_WATCH_LANES; lane++)
        if (watch->own.lanes[lane].running_ns >= 0)
            watch->own.lanes[lane].running_ns = now_ns - watch->own.lanes[lane].running_ns;
}

static int64_t beat_ns_of(const struct sw_watch *watch) {
    return sw_max_i64(sw_min_i64(watch->timeout_ns / BEATS, MOST_BEAT_NS), LEAST_BEAT_NS);
}

/* Sets the verdict; the first one holds. Rank 0 tells the others before its own rank hears of it. */
static void judge_as(struct sw_watch *watch, const char *text, bool print) {
    if (watch->judged)
        return;
    for (int i = 0; watch->rank == 0 && i < watch->peer_count; i++)
        sw_watch_send(watch, &watch->peers[i], SW_NOTE_VERDICT, text);
    pthread_mutex_lock(&watch->lock);
    snprintf(watch->verdict, sizeof watch->verdict, "%s", text);
    watch->judged = true;
    pthread_cond_broadcast(&watch->told);
    pthread_mutex_unlock(&watch->lock);
    watch->spec.ended(watch->spec.context, watch->verdict, print);
}

/* A launcher ends all ranks when the first one ends. Without rank 0, rank 1 speaks for all, so the others give it the
 * time to come to its verdict. */
static void let_rank_1_speak(const struct sw_watch *watch) {
    enum { BEATS_TO_SPEAK = 4 };
    if (watch->rank > 1)
        usleep((useconds_t)(BEATS_TO_SPEAK * beat_ns_of(watch) / 1000));
}

/* Returns whether this rank prints a verdict: rank 0 does, or, where that is lost, rank 1. */
static bool prints(const struct sw_watch *watch) {
    return sw_now_ns() >= watch->mute_until_ns && (watch->rank == 0 || watch->rank == 1);
}

static bool lanes_moved(const struct sw_note *before, const struct sw_note *after) {
    for (int lane = 0; lane < SW_WATCH_LANES; lane++)
        if (before->lanes[lane].entered != after->lanes[lane].entered ||
            before->lanes[lane].ticks != after->lanes[lane].ticks)
            return true;
    return false;
}

static void hear(struct sw_watch *watch, struct sw_watch_peer *peer) {
    const struct sw_note *note = &peer->incoming;
    peer->heard_ns = sw_now_ns();
    if (lanes_moved(&peer->last, note))
        peer->moved_ns = peer->heard_ns;
    peer->last = *note;
    switch ((sw_note_kind)note->kind) {
    case SW_NOTE_BYE: peer->left = true; break;
    case SW_NOTE_FAILED:
    case SW_NOTE_VERDICT: judge_as(watch, note->text, watch->rank == 0); break;
    case SW_NOTE_BEAT:
    case SW_NOTE_HELLO:
    case SW_NOTE_CHALLENGE:
    case SW_NOTE_PROOF:
    case SW_NOTE_WELCOME:
    case SW_NOTE_KINDS: break;
    }
}

static struct sw_watch_view view_of(const struct sw_watch_peer *peer, int64_t now_ns) {
    return (struct sw_watch_view){.left = peer->left,
                                  .silent_ns = now_ns - peer->heard_ns,
                                  .still_ns = now_ns - peer->moved_ns,
                                  .note = &peer->last};
}

/* Fills watch->views. Rank 0 sees all. The others hear only rank 0, and see only whether it is there. */
static void look(struct sw_watch *watch, int64_t now_ns) {
    const int64_t own_still_ns = watch->rank == 0 ? now_ns - watch->own_moved_ns : 0;
    for (int i = 0; i < watch->peer_count; i++) {
        watch->views[i] = view_of(&watch->peers[i], now_ns);
        watch->views[i].still_ns = watch->rank == 0 ? watch->views[i].still_ns : 0;
    }
    watch->views[watch->peer_count] = (struct sw_watch_view){.still_ns = own_still_ns, .note = &watch->own};
}

static struct sw_watch_rule rule_of(const struct sw_watch *watch) {
    return (struct sw_watch_rule){.lanes = watch->lanes,
                                  .lane_count = watch->lane_count,
                                  .timeout_ns = watch->timeout_ns,
                                  .remedy = watch->spec.remedy};
}

static void lose(struct sw_watch *watch, struct sw_watch_peer *peer) {
    close(peer->socket);
    peer->socket = -1;
    if (peer->left)
        return;
    const struct sw_watch_rule rule = rule_of(watch);
    char text[SW_WATCH_TEXT_CHARS];
    sw_watch_snapshot(watch);
    look(watch, sw_now_ns());
    sw_watch_describe_death(watch->views, watch->peer_count + 1, (int)(peer - watch->peers), &rule, text);
    let_rank_1_speak(watch);
    judge_as(watch, text, prints(watch));
}

static void listen_to(struct sw_watch *watch, struct sw_watch_peer *peer) {
    int got = 1;
    while (got == 1 && !watch->judged && peer->socket >= 0) {
        got = sw_watch_receive(watch, peer);
        if (got == 1)
            hear(watch, peer);
        else if (got < 0)
            lose(watch, peer);
    }
}

static void judge(struct sw_watch *watch, int64_t now_ns) {
    const struct sw_watch_rule rule = rule_of(watch);
    char text[SW_WATCH_TEXT_CHARS];
    look(watch, now_ns);
    if (!sw_watch_judge(watch->views, watch->peer_count + 1, &rule, text))
        return;
    let_rank_1_speak(watch);
    judge_as(watch, text, prints(watch));
}

static void beat(struct sw_watch *watch, int64_t now_ns) {
    const struct sw_note before = watch->own;
    sw_watch_snapshot(watch);
    if (lanes_moved(&before, &watch->own))
        watch->own_moved_ns = now_ns;
    for (int i = 0; i < watch->peer_count; i++)
        sw_watch_send(watch, &watch->peers[i], SW_NOTE_BEAT, NULL);
}

/* Handles the requests of this rank's own threads. Returns whether the watch goes on. */
static bool attend(struct sw_watch *watch) {
    uint64_t count;
    (void)!read(watch->wake, &count, sizeof count);
    pthread_mutex_lock(&watch->lock);
    const bool failing = watch->failing, stopping = watch->stopping;
    pthread_mutex_unlock(&watch->lock);
    if (failing && watch->rank == 0)
        judge_as(watch, watch->failure, true);
    else if (failing)
        sw_watch_send(watch, &watch->peers[0], SW_NOTE_FAILED, watch->failure);
    return !stopping;
}

/* Notices that this rank was stopped, by a beat that comes long after it was due. This rank then
 * judges nobody for one timeout, because it may learn only after its next beat what became of the others. */
static void note_sleep(struct sw_watch *watch, int64_t due_ns) {
    const int64_t now_ns = sw_now_ns();
    if (now_ns - due_ns > watch->timeout_ns / 2)
        watch->mute_until_ns = now_ns + watch->timeout_ns;
}

/* Waits until a note or a wake comes or the next beat is due, and hears the notes. */
static void wait_for_notes(struct sw_watch *watch, int64_t until_ns) {
    struct pollfd *waits = watch->waits;
    for (int i = 0; i < watch->peer_count; i++)
        waits[i] = (struct pollfd){.fd = watch->peers[i].socket, .events = POLLIN};
    waits[watch->peer_count] = (struct pollfd){.fd = watch->wake, .events = POLLIN};
    const int64_t left_ns = sw_max_i64(until_ns - sw_now_ns(), 0);
    if (poll(waits, (nfds_t)watch->peer_count + 1, (int)sw_div_up(left_ns, 1000000)) < 0)
        waits[watch->peer_count].revents = 0;
    note_sleep(watch, until_ns);
    for (int i = 0; i < watch->peer_count && !watch->judged; i++)
        if (waits[i].revents != 0)
            listen_to(watch, &watch->peers[i]);
}

/* Counts a delay of this process, which was stopped or whose machine slept, to no other rank: it hears them out first.
 */
static void forgive(struct sw_watch *watch, int64_t late_ns) {
    for (int i = 0; late_ns > 0 && i < watch->peer_count; i++) {
        watch->peers[i].heard_ns += late_ns;
        watch->peers[i].moved_ns += late_ns;
    }
}

void *sw_watch_run(void *argument) {
    struct sw_watch *watch = argument;
    int64_t next_ns = watch->own_moved_ns; /* when the thread was asked for, which may have been long ago */
    bool on = true;
    while (on && !watch->judged) {
        wait_for_notes(watch, next_ns);
        if (watch->waits[watch->peer_count].revents != 0 && !watch->judged)
            on = attend(watch);
        const int64_t now_ns = sw_now_ns();
        if (now_ns < next_ns || !on || watch->judged)
            continue;
        const int64_t beat_ns = beat_ns_of(watch);
        note_sleep(watch, next_ns);
        forgive(watch, now_ns - next_ns - beat_ns);
        beat(watch, now_ns);
        judge(watch, now_ns);
        next_ns = now_ns + beat_ns;
    }
    for (int i = 0; !watch->judged && i < watch->peer_count; i++)
        sw_watch_send(watch, &watch->peers[i], SW_NOTE_BYE, NULL);
    return NULL;
}
