#include "core/team.h"

#include "core/log.h"
#include "core/thread.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A thread of a team, other than the one that calls sw_team_finish. */
struct helper {
    pthread_t thread;
    struct sw_team *team;
    int number;
};

struct sw_team {
    pthread_mutex_t mutex; /* guards all members that change */
    pthread_cond_t begun, done;
    struct helper *helper;
    int helper_count;
    sw_team_job job;
    void *context;
    int64_t next, finished, count;
    bool closing;
    cpu_set_t cores; /* where the threads may run */
    int kept_free;   /* the core that helpers avoid; -1: none */
};

/* If every core is busy, because another program uses one too, the system wakes a helper on the core of the thread that
 * wakes it, and the two share that core. So helpers avoid that core while the thread works. In large teams one core
 * counts for less than the system calls that this takes. */
enum { NO_CORE = -1, MOST_HELPERS_KEPT_AWAY = 15 };

static void keep_away(struct sw_team *team, int core) {
    cpu_set_t allowed = team->cores;
    if (core == team->kept_free || team->helper_count > MOST_HELPERS_KEPT_AWAY ||
        CPU_COUNT(&team->cores) <= team->helper_count)
        return;
    if (core != NO_CORE)
        CPU_CLR(core, &allowed);
    for (int i = 0; i < team->helper_count; i++)
        pthread_setaffinity_np(team->helper[i].thread, sizeof allowed, &allowed);
    team->kept_free = core;
}

/* Needs the mutex, and releases it during the job. */
static void do_next(struct sw_team *team, int thread) {
    const int64_t index = team->next++;
    pthread_mutex_unlock(&team->mutex);
    team->job(team->context, index, thread);
    pthread_mutex_lock(&team->mutex);
    if (++team->finished == team->count)
        pthread_cond_signal(&team->done);
}

static void *help(void *argument) {
    const struct helper *self = argument;
    struct sw_team *team = self->team;
    pthread_mutex_lock(&team->mutex);
    while (!team->closing) {
        if (team->next < team->count)
            do_next(team, self->number);
        else
            pthread_cond_wait(&team->begun, &team->mutex);
    }
    pthread_mutex_unlock(&team->mutex);
    return NULL;
}

sw_status sw_team_open(int threads, struct sw_team **out) {
    assert(threads >= 1);
    struct sw_team *team = calloc(1, sizeof *team);
    struct helper *helper = calloc((size_t)threads, sizeof *helper);
    if (team == NULL || helper == NULL) {
        free(team);
        free(helper);
        return sw_fail(SW_ERR_NOMEM, "no memory for %d threads", threads);
    }
    *team = (struct sw_team){.helper = helper, .kept_free = NO_CORE};
    if (sched_getaffinity(0, sizeof team->cores, &team->cores) != 0)
        CPU_ZERO(&team->cores);
    pthread_mutex_init(&team->mutex, NULL);
    pthread_cond_init(&team->begun, NULL);
    pthread_cond_init(&team->done, NULL);
    while (team->helper_count < threads - 1) {
        struct helper *next = &helper[team->helper_count];
        *next = (struct helper){.team = team, .number = team->helper_count + 1};
        const int error = sw_thread_start(&next->thread, help, next);
        if (error != 0) {
            sw_team_close(team);
            return sw_fail(SW_ERR_NOMEM, "cannot start a thread: %s", strerror(error));
        }
        team->helper_count++;
    }
    *out = team;
    return SW_OK;
}

void sw_team_close(struct sw_team *team) {
    if (team == NULL)
        return;
    pthread_mutex_lock(&team->mutex);
    assert(team->finished == team->count);
    team->closing = true;
    pthread_cond_broadcast(&team->begun);
    pthread_mutex_unlock(&team->mutex);
    for (int i = 0; i < team->helper_count; i++)
        pthread_join(team->helper[i].thread, NULL);
    pthread_cond_destroy(&team->done);
    pthread_cond_destroy(&team->begun);
    pthread_mutex_destroy(&team->mutex);
    free(team->helper);
    free(team);
}

void sw_team_begin(struct sw_team *team, sw_team_job job, void *context, int64_t count) {
    keep_away(team, sched_getcpu());
    pthread_mutex_lock(&team->mutex);
    assert(team->finished == team->count);
    team->job = job;
    team->context = context;
    team->next = team->finished = 0;
    team->count = count;
    pthread_cond_broadcast(&team->begun);
    pthread_mutex_unlock(&team->mutex);
}

void sw_team_finish(struct sw_team *team) {
    pthread_mutex_lock(&team->mutex);
    while (team->next < team->count)
        do_next(team, 0);
    if (team->finished < team->count)
        keep_away(team, NO_CORE);
    while (team->finished < team->count)
        pthread_cond_wait(&team->done, &team->mutex);
    pthread_mutex_unlock(&team->mutex);
}

enum { MESSAGE_CHARS = 512 };

/* The call on the other thread. Its error message is copied, because messages belong to the thread that failed. */
struct beside {
    sw_status (*run)(void *context);
    void *context;
    int rank; /* for the log */
    sw_status status;
    char message[MESSAGE_CHARS];
};

static void *run_beside(void *argument) {
    struct beside *beside = argument;
    sw_log_set_rank(beside->rank);
    beside->status = beside->run(beside->context);
    if (beside->status != SW_OK)
        snprintf(beside->message, sizeof beside->message, "%s", sw_error_message(beside->status));
    return NULL;
}

sw_status sw_run_both(sw_status (*run)(void *context), void *own, void *other) {
    struct beside beside = {.run = run, .context = other, .rank = sw_log_rank()};
    pthread_t thread;
    if (pthread_create(&thread, NULL, run_beside, &beside) != 0)
        return sw_fail(SW_ERR_NOMEM, "cannot start a thread to measure two things at once");
    const sw_status status = run(own);
    pthread_join(thread, NULL);
    return status == SW_OK && beside.status != SW_OK ? sw_fail(beside.status, "%s", beside.message) : status;
}
