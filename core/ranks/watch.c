/* The watch of a rank: why a job must end, the thread that finds out, and what the rank calls.
 *
 * Collectives block inside MPI or NCCL, which know no timeout, so the watch has its own thread and its own sockets.
 * Rank 0 alone judges, by one picture of all ranks; verdicts reached by each rank for itself would name different
 * culprits. A rank is judged by progress, not by time in a call: while the last rank moves, those ahead of it may wait.
 *
 * A rank that was stopped (SIGSTOP, a sleeping machine) sees everybody else as silent. It notices its own late beat and
 * judges nobody for one timeout. */
#include "core/ranks/watch.h"

#include "core/clock.h"
#include "core/ranks/comm_private.h"
#include "core/ranks/watch_private.h"
#include "core/size.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Judges, from what the ranks have reported, whether and why a job must end. */

#define SECONDS(ns) ((double)(ns) / 1e9)

/* Writes the name of the note's sender: "rank 2 (process 123 on host, tensor group of ranks 2 and 3)". */
static void name_rank(const struct sw_note *note, char out[SW_WATCH_NAME_CHARS]) {
    snprintf(out, SW_WATCH_NAME_CHARS, "rank %d (process %lld on %s%s%s)", note->rank, (long long)note->process,
             note->host, note->group[0] != '\0' ? ", " : "", note->group);
}

static const struct sw_watch_lane *collective(const struct sw_watch_view *view) {
    return &view->note->lanes[SW_WATCH_COMM];
}

/* Returns the rank that is furthest among those inside a collective; -1: none is inside. */
static int furthest(const struct sw_watch_view *views, int ranks) {
    int best = -1;
    for (int rank = 0; rank < ranks; rank++)
        if (!views[rank].left && collective(&views[rank])->running_ns >= 0 &&
            (best < 0 || collective(&views[rank])->entered > collective(&views[best])->entered))
            best = rank;
    return best;
}

/* Returns the rank that waits in the first collective that this rank has not entered; -1: none. All ranks begin the
 * same collectives in the same order, so any rank that is further may be waiting only for that one. */
static int first_waiting(const struct sw_watch_view *views, int ranks, int rank) {
    int best = -1;
    for (int other = 0; other < ranks; other++)
        if (!views[other].left && collective(&views[other])->running_ns >= 0 &&
            collective(&views[other])->entered > collective(&views[rank])->entered &&
            (best < 0 || collective(&views[other])->entered < collective(&views[best])->entered))
            best = other;
    return best;
}

/* Returns the lane that has been longest in its current work; -1: all are idle. */
static int longest_lane(const struct sw_note *note, int lane_count) {
    int longest = -1;
    for (int lane = 0; lane < lane_count; lane++)
        if (note->lanes[lane].running_ns >= 0 &&
            (longest < 0 || note->lanes[lane].running_ns > note->lanes[longest].running_ns))
            longest = lane;
    return longest;
}

/* Describes what a rank was doing, and what the others wait for. */
static void place_of(const struct sw_watch_view *views, int ranks, int rank, const struct sw_watch_rule *rule,
                     char *out, size_t chars) {
    const struct sw_note *note = views[rank].note;
    const int waiting = rule->stages ? -1 : first_waiting(views, ranks, rank),
              lane = longest_lane(note, rule->lane_count);
    size_t used = 0;
    out[0] = '\0';
    if (waiting >= 0)
        used = (size_t)snprintf(out, chars, "; it has not entered '%s %lld', where rank %d waits",
                                collective(&views[waiting])->what, (long long)collective(&views[waiting])->index,
                                views[waiting].note->rank);
    if (lane >= 0 && used < chars)
        snprintf(out + used, chars - used, "; its lane %s was in '%s %lld'", rule->lanes[lane], note->lanes[lane].what,
                 (long long)note->lanes[lane].index);
}

static bool say(const struct sw_watch_view *views, int ranks, int rank, const struct sw_watch_rule *rule,
                const char *what, int64_t ns, char text[SW_WATCH_TEXT_CHARS]) {
    char name[SW_WATCH_NAME_CHARS], place[SW_WATCH_TEXT_CHARS / 2];
    name_rank(views[rank].note, name);
    place_of(views, ranks, rank, rule, place, sizeof place);
    snprintf(text, SW_WATCH_TEXT_CHARS, "%s %s for %.1f s%s", name, what, SECONDS(ns), place);
    return true;
}

void sw_watch_describe_death(const struct sw_watch_view *views, int ranks, int rank, const struct sw_watch_rule *rule,
                             char text[SW_WATCH_TEXT_CHARS]) {
    const struct sw_watch_lane *within = collective(&views[rank]);
    char name[SW_WATCH_NAME_CHARS], place[SW_WATCH_TEXT_CHARS / 2];
    name_rank(views[rank].note, name);
    if (within->running_ns >= 0)
        snprintf(place, sizeof place, " in '%s %lld'", within->what, (long long)within->index);
    else
        place_of(views, ranks, rank, rule, place, sizeof place);
    snprintf(text, SW_WATCH_TEXT_CHARS, "%s has died%s", name, place);
}

/* Describes a rank that is alive and may only be slow, with the remedy. */
static bool say_slow(const struct sw_watch_view *views, int ranks, int rank, const struct sw_watch_rule *rule,
                     char text[SW_WATCH_TEXT_CHARS]) {
    (void)say(views, ranks, rank, rule, "has done nothing", views[rank].still_ns, text);
    const size_t used = strlen(text);
    if (rule->remedy != NULL)
        snprintf(text + used, SW_WATCH_TEXT_CHARS - used, "; if that is only slow, %s", rule->remedy);
    return true;
}

static int64_t still_limit_ns(const struct sw_watch_view *view, const struct sw_watch_rule *rule) {
    return view->note->relaxed ? SW_WATCH_RELAXED_FACTOR * rule->timeout_ns : rule->timeout_ns;
}

/* Tells whether a rank is behind another that is behind itself: ranks of one node may wait for each other in a
 * collective that ranks of another node have not entered. Of two that are equally far, the one outside the collective
 * holds up the other. */
static bool is_further_behind(const struct sw_watch_view *view, const struct sw_watch_view *other) {
    const struct sw_watch_lane *own = collective(view), *others = collective(other);
    if (own->entered != others->entered)
        return own->entered < others->entered;
    return own->running_ns < 0 && others->running_ns >= 0;
}

/* Tells whether a rank holds up one that waits in a collective. By numbers of collectives, if all ranks begin the same;
 * else every rank does that is in none itself. */
static bool is_behind(const struct sw_watch_view *view, const struct sw_watch_view *waiting,
                      const struct sw_watch_rule *rule) {
    return rule->stages ? collective(view)->running_ns < 0 : collective(view)->entered < collective(waiting)->entered;
}

bool sw_watch_judge(const struct sw_watch_view *views, int ranks, const struct sw_watch_rule *rule,
                    char text[SW_WATCH_TEXT_CHARS]) {
    for (int rank = 0; rank < ranks; rank++)
        if (!views[rank].left && views[rank].silent_ns > rule->timeout_ns)
            return say(views, ranks, rank, rule, "has not answered", views[rank].silent_ns, text);
    const int waiting = furthest(views, ranks);
    if (waiting < 0 || collective(&views[waiting])->running_ns <= rule->timeout_ns)
        return false;
    bool all_still = true;
    int slow = -1;
    for (int rank = 0; rank < ranks; rank++) {
        const struct sw_watch_view *view = &views[rank];
        const bool behind = is_behind(view, &views[waiting], rule);
        const bool still = view->still_ns > still_limit_ns(view, rule);
        if (behind && view->left)
            return say(views, ranks, rank, rule, "has been gone", view->silent_ns, text);
        if (behind && (slow < 0 || is_further_behind(view, &views[slow])))
            slow = rank;
        all_still = all_still && !behind && still;
    }
    /* While the last rank moves, the ranks ahead may wait for it and stand still. */
    if (slow >= 0)
        return views[slow].still_ns > still_limit_ns(&views[slow], rule) && say_slow(views, ranks, slow, rule, text);
    if (all_still)
        snprintf(text, SW_WATCH_TEXT_CHARS,
                 "all %d ranks have waited in '%s %lld' for %.1f s and nothing moves: the network between them is at "
                 "fault",
                 ranks, collective(&views[waiting])->what, (long long)collective(&views[waiting])->index,
                 SECONDS(collective(&views[waiting])->running_ns));
    return all_still;
}

/* The watch's thread: it reports, listens and judges until there is a verdict or the rank is done. */

/* Beats within the time after which a rank counts as silent. */
enum { BEATS = 8 };
#define LEAST_BEAT_NS INT64_C(10000000)
#define MOST_BEAT_NS INT64_C(500000000)

/* Copies the current state of the lanes and the group's name into watch->own. */
static void snapshot(struct sw_watch *watch) {
    pthread_mutex_lock(&watch->lock);
    memcpy(watch->own.lanes, watch->now, sizeof watch->own.lanes);
    memcpy(watch->own.group, watch->group, sizeof watch->own.group);
    watch->own.relaxed = watch->relaxed;
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

/* A launcher ends all ranks when the first one exits. Without rank 0, rank 1 speaks for all, so the others give it time
 * to reach its verdict. */
static void let_rank_1_speak(const struct sw_watch *watch) {
    enum { BEATS_TO_SPEAK = 4 };
    if (watch->rank > 1)
        usleep((useconds_t)(BEATS_TO_SPEAK * beat_ns_of(watch) / 1000));
}

/* Returns whether this rank prints a verdict: rank 0 does or, if that is lost, rank 1. */
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

/* Fills watch->views. Rank 0 sees all ranks. The others hear only rank 0, and see only whether it is there. */
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
                                  .remedy = watch->spec.remedy,
                                  .stages = watch->comm->stages > 1};
}

static void lose(struct sw_watch *watch, struct sw_watch_peer *peer) {
    close(peer->socket);
    peer->socket = -1;
    if (peer->left)
        return;
    const struct sw_watch_rule rule = rule_of(watch);
    char text[SW_WATCH_TEXT_CHARS];
    snapshot(watch);
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
    snapshot(watch);
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

/* Notices, by a beat long overdue, that this rank was stopped. It then judges nobody for one timeout, because it may
 * learn only after its next beat what happened to the others. */
static void note_sleep(struct sw_watch *watch, int64_t due_ns) {
    const int64_t now_ns = sw_now_ns();
    if (now_ns - due_ns > watch->timeout_ns / 2)
        watch->mute_until_ns = now_ns + watch->timeout_ns;
}

/* Waits for a note, a wake-up or the next beat, and receives the notes. */
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

/* Keeps a delay of this process, which was stopped or whose machine slept, from counting against other ranks: hears
 * them out first. */
static void forgive(struct sw_watch *watch, int64_t late_ns) {
    for (int i = 0; late_ns > 0 && i < watch->peer_count; i++) {
        watch->peers[i].heard_ns += late_ns;
        watch->peers[i].moved_ns += late_ns;
    }
}

/* The main function of the watch's thread; `argument` is its struct sw_watch. */
static void *watch_run(void *argument) {
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

/* How long a failed rank waits for rank 0 to hear of it. */
enum { FAILURE_SECONDS = 2 };

static void release(struct sw_watch *watch) {
    for (int i = 0; watch->peers != NULL && i < watch->peer_count; i++)
        if (watch->peers[i].socket >= 0)
            close(watch->peers[i].socket);
    if (watch->wake >= 0)
        close(watch->wake);
    pthread_mutex_destroy(&watch->lock);
    pthread_cond_destroy(&watch->told);
    free(watch->peers);
    free(watch->views);
    free(watch->waits);
    free(watch);
}

static sw_status create(struct sw_comm *comm, const struct sw_watch_spec *spec, struct sw_watch **out) {
    const struct sw_comm_identity *identity = sw_comm_identity(comm);
    struct sw_watch *watch = calloc(1, sizeof *watch);
    if (watch == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the watch over the ranks");
    *watch = (struct sw_watch){.comm = comm,
                               .spec = *spec,
                               .lanes = {[SW_WATCH_COMM] = "comm"},
                               .lane_count = spec->lane_count + 1,
                               .rank = identity->rank,
                               .ranks = identity->ranks,
                               .peer_count = identity->rank == 0 ? identity->ranks - 1 : 1,
                               .timeout_ns = spec->rank_timeout_ns,
                               .wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    for (int lane = 0; lane < spec->lane_count; lane++)
        watch->lanes[lane + 1] = spec->lanes[lane];
    for (int lane = 0; lane < SW_WATCH_LANES; lane++)
        watch->now[lane].running_ns = -1;
    watch->own.rank = identity->rank;
    watch->own.process = getpid();
    memcpy(watch->own.host, identity->host, sizeof watch->own.host);
    pthread_mutex_init(&watch->lock, NULL);
    /* Setting the clock while ranks fail must neither end the wait nor prolong it. */
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&watch->told, &monotonic);
    pthread_condattr_destroy(&monotonic);
    watch->peers = calloc((size_t)watch->peer_count, sizeof *watch->peers);
    watch->views = calloc((size_t)watch->peer_count + 1, sizeof *watch->views);
    watch->waits = calloc((size_t)watch->peer_count + 1, sizeof *watch->waits);
    for (int i = 0; watch->peers != NULL && i < watch->peer_count; i++)
        watch->peers[i].socket = -1;
    if (watch->peers == NULL || watch->views == NULL || watch->waits == NULL || watch->wake < 0) {
        release(watch);
        return sw_fail(SW_ERR_NOMEM, "no memory for the watch over %d ranks", identity->ranks);
    }
    snapshot(watch);
    *out = watch;
    return SW_OK;
}

static sw_status start_thread(struct sw_watch *watch) {
    const int64_t now_ns = sw_now_ns();
    watch->own_moved_ns = now_ns;
    for (int i = 0; i < watch->peer_count; i++)
        watch->peers[i].heard_ns = watch->peers[i].moved_ns = now_ns;
    /* Leaves signals to the threads that expect them. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&watch->thread, NULL, watch_run, watch);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    watch->running = error == 0;
    return error == 0 ? SW_OK : sw_fail(SW_ERR_NOMEM, "cannot start the watch's thread: %s", strerror(error));
}

/* Takes the group's name here, on the thread that uses the comm: a job forms its groups after it opens its watch. */
static void on_enter(void *context, const char *what, int64_t index) {
    struct sw_watch *watch = context;
    char group[SW_COMM_SCOPE_CHARS] = "";
    const sw_comm_scope near =
        sw_comm_scope_ranks(watch->comm, SW_SCOPE_TENSOR) > 1 ? SW_SCOPE_TENSOR : SW_SCOPE_EXPERTS;
    if (sw_comm_scope_ranks(watch->comm, near) > 1)
        sw_comm_name_scope(watch->comm, near, group);
    pthread_mutex_lock(&watch->lock);
    memcpy(watch->group, group, sizeof watch->group);
    pthread_mutex_unlock(&watch->lock);
    sw_watch_enter(context, SW_WATCH_COMM, what, index);
}

static void on_tick(void *context) {
    sw_watch_tick(context, SW_WATCH_COMM);
}

static void on_leave(void *context) {
    sw_watch_leave(context, SW_WATCH_COMM);
}

/* Returns SW_OK, or SW_ERR_STOPPED with the reason why the job ends. */
static sw_status verdict(void *context) {
    const struct sw_watch *watch = context;
    return watch->judged ? sw_fail(SW_ERR_STOPPED, "%s", watch->verdict) : SW_OK;
}

sw_status sw_watch_open(struct sw_comm *comm, const struct sw_watch_spec *spec, struct sw_watch **out) {
    assert(spec->lane_count < SW_WATCH_LANES && spec->rank_timeout_ns > 0);
    *out = NULL;
    if (sw_comm_identity(comm)->ranks == 1)
        return SW_OK;
    if (sw_comm_is_threads(comm)) {
        sw_comm_set_timeout(comm, 0);
        return SW_OK;
    }
    struct sw_watch *watch = NULL;
    sw_comm_set_timeout(comm, spec->rank_timeout_ns);
    sw_status status = create(comm, spec, &watch);
    if (status == SW_OK)
        status = sw_watch_connect(watch);
    if (status == SW_OK)
        status = start_thread(watch);
    bool everywhere = status == SW_OK;
    const sw_status agreed = sw_comm_all_true(comm, "the watch is open", &everywhere);
    if (status == SW_OK && agreed != SW_OK)
        status = agreed;
    if (status == SW_OK && !everywhere)
        status = sw_fail(SW_ERR_STOPPED, "the watch over the ranks could not be opened on another rank");
    if (status != SW_OK) {
        sw_watch_close(watch);
        return status;
    }
    sw_comm_set_observer(
        comm, &(struct sw_comm_observer){
                  .context = watch, .enter = on_enter, .tick = on_tick, .leave = on_leave, .verdict = verdict});
    *out = watch;
    return SW_OK;
}

static void wake(struct sw_watch *watch) {
    const uint64_t one = 1;
    /* The write fails only if the counter is full, and then the thread is already awake. */
    (void)!write(watch->wake, &one, sizeof one);
}

void sw_watch_close(struct sw_watch *watch) {
    if (watch == NULL)
        return;
    sw_comm_set_observer(watch->comm, &(struct sw_comm_observer){0});
    if (watch->running) {
        pthread_mutex_lock(&watch->lock);
        watch->stopping = true;
        pthread_mutex_unlock(&watch->lock);
        wake(watch);
        pthread_join(watch->thread, NULL);
    }
    release(watch);
}

void sw_watch_set_timeout(struct sw_watch *watch, int64_t rank_timeout_ns) {
    assert(rank_timeout_ns > 0);
    if (watch != NULL)
        watch->timeout_ns = rank_timeout_ns;
}

void sw_watch_relax_timeout(struct sw_watch *watch, bool relaxed) {
    if (watch == NULL)
        return;
    pthread_mutex_lock(&watch->lock);
    watch->relaxed = relaxed;
    /* Counts as progress, so that earlier slowness of the collective does not count against the new timeout. */
    watch->now[SW_WATCH_COMM].ticks++;
    pthread_mutex_unlock(&watch->lock);
}

void sw_watch_enter(struct sw_watch *watch, int lane, const char *what, int64_t index) {
    if (watch == NULL)
        return;
    assert(lane >= 0 && lane < watch->lane_count);
    pthread_mutex_lock(&watch->lock);
    struct sw_watch_lane *now = &watch->now[lane];
    now->entered++;
    now->running_ns = sw_now_ns();
    now->index = index;
    snprintf(now->what, sizeof now->what, "%s", what);
    pthread_mutex_unlock(&watch->lock);
}

void sw_watch_tick(struct sw_watch *watch, int lane) {
    if (watch == NULL)
        return;
    pthread_mutex_lock(&watch->lock);
    watch->now[lane].ticks++;
    pthread_mutex_unlock(&watch->lock);
}

void sw_watch_leave(struct sw_watch *watch, int lane) {
    if (watch == NULL)
        return;
    pthread_mutex_lock(&watch->lock);
    watch->now[lane].running_ns = -1;
    watch->now[lane].ticks++;
    pthread_mutex_unlock(&watch->lock);
}

bool sw_watch_fail(struct sw_watch *watch, const char *message) {
    if (watch == NULL)
        return false;
    struct timespec deadline;
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += FAILURE_SECONDS;
    pthread_mutex_lock(&watch->lock);
    if (!watch->failing)
        snprintf(watch->failure, sizeof watch->failure, "rank %d: %s", watch->rank, message);
    watch->failing = true;
    wake(watch);
    int waited = 0;
    while (!watch->judged && waited != ETIMEDOUT)
        waited = pthread_cond_timedwait(&watch->told, &watch->lock, &deadline);
    pthread_mutex_unlock(&watch->lock);
    return watch->judged;
}
