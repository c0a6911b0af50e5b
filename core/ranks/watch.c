/* The watch as its rank sees it: opening, the lanes' counters, failures and verdicts. */
#include "core/ranks/watch.h"

#include "core/clock.h"
#include "core/ranks/comm_private.h"
#include "core/ranks/watch_private.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* How long a failed rank waits for rank 0 to have heard of it. */
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
    const struct sw_comm_identity *place = sw_comm_identity(comm);
    struct sw_watch *watch = calloc(1, sizeof *watch);
    if (watch == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the watch over the ranks");
    *watch = (struct sw_watch){.comm = comm,
                               .spec = *spec,
                               .lanes = {[SW_WATCH_COMM] = "comm"},
                               .lane_count = spec->lane_count + 1,
                               .rank = place->rank,
                               .ranks = place->ranks,
                               .peer_count = place->rank == 0 ? place->ranks - 1 : 1,
                               .timeout_ns = spec->rank_timeout_ns,
                               .wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    for (int lane = 0; lane < spec->lane_count; lane++)
        watch->lanes[lane + 1] = spec->lanes[lane];
    for (int lane = 0; lane < SW_WATCH_LANES; lane++)
        watch->now[lane].running_ns = -1;
    watch->own.rank = place->rank;
    watch->own.process = getpid();
    memcpy(watch->own.host, place->host, sizeof watch->own.host);
    pthread_mutex_init(&watch->lock, NULL);
    /* A clock that is set while ranks fail must not end the wait, nor prolong it. */
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
        return sw_fail(SW_ERR_NOMEM, "no memory for the watch over %d ranks", place->ranks);
    }
    sw_watch_snapshot(watch);
    *out = watch;
    return SW_OK;
}

static sw_status start_thread(struct sw_watch *watch) {
    const int64_t now_ns = sw_now_ns();
    watch->own_moved_ns = now_ns;
    for (int i = 0; i < watch->peer_count; i++)
        watch->peers[i].heard_ns = watch->peers[i].moved_ns = now_ns;
    /* Signals are for the threads that expect them. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&watch->thread, NULL, sw_watch_run, watch);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    watch->running = error == 0;
    return error == 0 ? SW_OK : sw_fail(SW_ERR_NOMEM, "cannot start the watch's thread: %s", strerror(error));
}

/* Takes the group's name here, on the thread that uses the comm: a job forms its groups after its watch is open. */
static void on_enter(void *context, const char *what, int64_t index) {
    struct sw_watch *watch = context;
    char group[SW_COMM_SCOPE_CHARS] = "";
    if (sw_comm_scope_ranks(watch->comm, SW_SCOPE_TENSOR) > 1)
        sw_comm_name_scope(watch->comm, SW_SCOPE_TENSOR, group);
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
    /* The write fails only where the counter is full, and the thread awake already. */
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

void sw_watch_relax_timeout(struct sw_watch *watch, bool patient) {
    if (watch == NULL)
        return;
    pthread_mutex_lock(&watch->lock);
    watch->patient = patient;
    /* The tick counts as progress, so that earlier slowness of the collective does not count against the new timeout.
     */
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
