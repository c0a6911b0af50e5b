/* Requests: begun in order, driven forward by whoever waits, and the first error of them all. */
#include "core/ranks/comm.h"

#include "core/clock.h"
#include "core/ranks/comm_private.h"
#include "core/size.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* A waiting rank leaves its core to whoever computes on it: it looks often at first, then less. */
enum { POLLS_AT_ONCE = 200, PAUSE_NS = 50000 };

static void fail(struct sw_comm *comm, sw_status status) {
    if (comm->failed != SW_OK)
        return;
    comm->failed = status;
    snprintf(comm->failure, sizeof comm->failure, "%s", sw_error_message(status));
    if (comm->host->withdraw != NULL)
        comm->host->withdraw(comm->host_state);
}

static sw_status first_error(const struct sw_comm *comm) {
    return comm->failed == SW_OK ? SW_OK : sw_fail(comm->failed, "%s", comm->failure);
}

/* Begins a call. Asserts that no other thread is in one. */
static sw_status enter(struct sw_comm *comm) {
    const bool inside = atomic_exchange_explicit(&comm->inside, true, memory_order_acquire);
    assert(!inside);
    return first_error(comm);
}

static sw_status leave(struct sw_comm *comm, sw_status status) {
    if (status != SW_OK)
        fail(comm, status);
    atomic_store_explicit(&comm->inside, false, memory_order_release);
    return status;
}

sw_status sw_comm_new_request(struct sw_comm *comm, const char *what, int64_t index, bool on_host,
                              struct sw_comm_request **out) {
    struct sw_comm_request *request = &comm->requests[comm->begun % SW_COMM_REQUESTS];
    assert(!request->open);
    SW_TRY(first_error(comm));
    *request = (struct sw_comm_request){
        .comm = comm,
        .transport = on_host ? comm->host : comm->bulk,
        .transport_state = on_host ? comm->host_state : comm->bulk_state,
        .what = what,
        .index = index,
        .sequence = comm->begun,
        .bounds = request->bounds,
    };
    *out = request;
    return SW_OK;
}

static void count_sent(struct sw_comm *comm, const struct sw_comm_message *message) {
    const struct sw_comm_members *group = &comm->scope[SW_SCOPE_TENSOR];
    const int first = group->rank_of[0];
    if (message->peer == comm->place.rank)
        return;
    comm->sent_bytes += message->bytes;
    comm->sent_between_bytes += comm->node_of[message->peer] == comm->nodes.node ? 0 : message->bytes;
    comm->sent_tensor_bytes += message->peer >= first && message->peer < first + group->ranks ? message->bytes : 0;
}

static sw_status post_rounds(struct sw_comm_request *request, const struct sw_comm_phase *phase) {
    struct sw_comm *comm = request->comm;
    /* A round of a gather in two levels gives on what has come in the round before. */
    const int most = phase->node_ranks > 0 ? 1 : SW_COMM_GROUPS;
    while (request->posted < phase->rounds && request->posted - request->finished < most) {
        const int group = (int)(request->posted % SW_COMM_GROUPS);
        struct sw_comm_round *round = &comm->rounds[group];
        sw_comm_fill_round(comm, phase, request->posted, round);
        SW_TRY(phase->by_library ? request->transport->post_sums(request->transport_state, group, phase->type, round)
                                 : request->transport->post(request->transport_state, group, request->sequence, round));
        for (int i = 0; i < round->send_count; i++)
            count_sent(comm, &round->sends[i]);
        request->posted++;
    }
    return SW_OK;
}

/* Drives a request forward as far as it goes without waiting. */
static sw_status advance_request(struct sw_comm_request *request) {
    while (request->phase < request->phase_count) {
        const struct sw_comm_phase *phase = &request->phases[request->phase];
        SW_TRY(post_rounds(request, phase));
        if (request->finished == phase->rounds) {
            request->phase++;
            request->posted = request->finished = 0;
            continue;
        }
        bool done = false;
        SW_TRY(request->transport->done(request->transport_state, (int)(request->finished % SW_COMM_GROUPS), &done));
        if (!done)
            return SW_OK;
        SW_TRY(sw_comm_finish_round(request->comm, phase, request->finished));
        request->finished++;
        request->moved_ns = sw_now_ns();
        if (request->comm->observer.tick != NULL)
            request->comm->observer.tick(request->comm->observer.context);
    }
    request->given = true;
    return SW_OK;
}

static bool on_stream(const struct sw_comm_request *request) {
    return request->transport != request->comm->host;
}

static sw_status advance(struct sw_comm *comm) {
    while (comm->given < comm->begun) {
        const int slot = (int)(comm->given % SW_COMM_REQUESTS);
        struct sw_comm_request *request = &comm->requests[slot];
        if (on_stream(request))
            SW_TRY(comm->device.enter(comm->device.context));
        SW_TRY(sw_fail_while(advance_request(request), "the ranks do '%s %lld'", request->what,
                             (long long)request->index));
        if (!request->given)
            return SW_OK;
        if (on_stream(request))
            SW_TRY(comm->device.mark(comm->device.context, slot));
        comm->given++;
    }
    return SW_OK;
}

/* Writes what messages call a request: its own name, behind that of the scope where not all ranks do it together. */
static void name_request(const struct sw_comm_request *request, char out[SW_COMM_WHAT_CHARS]) {
    char scope[SW_COMM_SCOPE_CHARS];
    sw_comm_name_scope(request->comm, request->scope, scope);
    snprintf(out, SW_COMM_WHAT_CHARS, "%s%s%s", scope, scope[0] != '\0' ? ": " : "", request->what);
}

static sw_status give_up(const struct sw_comm_request *request, int64_t waited_ns) {
    struct sw_comm *comm = request->comm;
    const int group = (int)(request->finished % SW_COMM_GROUPS);
    char who[SW_COMM_NAME_CHARS] = "another rank";
    comm->absent =
        request->transport->awaited != NULL ? request->transport->awaited(request->transport_state, group) : -1;
    if (comm->absent >= 0)
        snprintf(who, sizeof who, "rank %d", comm->absent);
    char what[SW_COMM_WHAT_CHARS];
    name_request(request, what);
    return sw_fail(SW_ERR_STOPPED, "%s has not reached '%s' for %.1f s: it was stopped, or its earlier work is slow",
                   who, what, (double)waited_ns / 1e9);
}

/* Ends the wait for a rank that will never answer: by the observer's verdict or, where there is none, by the timeout.
 * Also returns the asynchronous errors of the bulk transport. */
static sw_status look_around(struct sw_comm_request *request) {
    struct sw_comm *comm = request->comm;
    if (comm->observer.verdict != NULL)
        SW_TRY(comm->observer.verdict(comm->observer.context));
    else if (comm->timeout_ns > 0 && sw_now_ns() - request->moved_ns > comm->timeout_ns)
        return give_up(request, sw_now_ns() - request->moved_ns);
    if (comm->host->poll != NULL)
        SW_TRY(comm->host->poll(comm->host_state));
    return comm->bulk != comm->host && comm->bulk->poll != NULL ? comm->bulk->poll(comm->bulk_state) : SW_OK;
}

/* Tells the observer of a request. One on a stream is told of when the host waits for it, or by whoever sees that the
 * device has begun it. */
static void tell_entered(const struct sw_comm_request *request) {
    struct sw_comm_left left = {.index = request->index};
    name_request(request, left.what);
    sw_comm_note_begun(request->comm, &left);
}

sw_status sw_comm_begin_request(struct sw_comm_request *request) {
    struct sw_comm *comm = request->comm;
    SW_TRY(enter(comm));
    for (int i = 0; i < request->phase_count; i++) {
        request->phases[i].members = &comm->scope[request->scope];
        sw_comm_plan_phase(comm, request->transport, &request->phases[i]);
    }
    request->open = true;
    request->moved_ns = sw_now_ns();
    comm->begun++;
    if (!on_stream(request))
        tell_entered(request);
    const sw_status status = leave(comm, advance(comm));
    request->open = status == SW_OK;
    return status;
}

static sw_status is_done(struct sw_comm_request *request, bool *out_done) {
    struct sw_comm *comm = request->comm;
    SW_TRY(advance(comm));
    *out_done = request->given;
    if (request->given && on_stream(request))
        SW_TRY(comm->device.reached(comm->device.context, (int)(request - comm->requests), out_done));
    return *out_done ? SW_OK : look_around(request);
}

/* Makes what progress can be made without waiting. */
static sw_status test(struct sw_comm_request *request, bool *out_done) {
    assert(request->open);
    struct sw_comm *comm = request->comm;
    *out_done = false;
    SW_TRY(enter(comm));
    const sw_status status = leave(comm, is_done(request, out_done));
    request->open = status == SW_OK && !*out_done;
    if (!request->open && comm->observer.leave != NULL && comm->given == comm->begun)
        comm->observer.leave(comm->observer.context);
    return status;
}

static void pause_between_polls(const struct sw_comm_request *request, int polls) {
    if (polls < POLLS_AT_ONCE)
        sched_yield();
    else if (request->transport->doze != NULL)
        request->transport->doze(request->transport_state);
    else
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
}

sw_status sw_comm_wait(struct sw_comm_request *request) {
    bool done = false;
    if (on_stream(request))
        tell_entered(request);
    for (int polls = 0; !done; polls++) {
        SW_TRY(test(request, &done));
        if (!done)
            pause_between_polls(request, polls);
    }
    return SW_OK;
}

void sw_comm_leave(struct sw_comm_request *request, struct sw_comm_left *out) {
    assert(request->open && request->given && on_stream(request));
    out->index = request->index;
    name_request(request, out->what);
    request->open = false;
}

void sw_comm_note_begun(const struct sw_comm *comm, const struct sw_comm_left *left) {
    if (comm->observer.enter != NULL)
        comm->observer.enter(comm->observer.context, left->what, left->index);
}

void sw_comm_note_ended(const struct sw_comm *comm) {
    if (comm->observer.leave != NULL)
        comm->observer.leave(comm->observer.context);
}

sw_status sw_comm_check(struct sw_comm *comm) {
    SW_TRY(first_error(comm));
    SW_TRY(enter(comm));
    sw_status status = comm->observer.verdict != NULL ? comm->observer.verdict(comm->observer.context) : SW_OK;
    if (status == SW_OK && comm->bulk->poll != NULL)
        status = comm->bulk->poll(comm->bulk_state);
    return leave(comm, status);
}

void sw_comm_withdraw(struct sw_comm *comm) {
    if (comm->bulk == comm->host || comm->bulk->withdraw == NULL)
        return;
    if (comm->failed == SW_OK) {
        comm->failed = SW_ERR_STOPPED;
        snprintf(comm->failure, sizeof comm->failure,
                 "the exchanges of GPUs' memory were ended, because this rank failed");
    }
    comm->bulk->withdraw(comm->bulk_state);
}

const struct sw_comm_identity *sw_comm_identity(const struct sw_comm *comm) {
    return &comm->place;
}

bool sw_comm_is_threads(const struct sw_comm *comm) {
    return comm->host->abandon != NULL;
}

bool sw_comm_abandon(struct sw_comm *comm, const char *message) {
    return sw_comm_is_threads(comm) && comm->host->abandon(comm->host_state, message);
}

const char *sw_comm_transport_name(const struct sw_comm *comm) {
    return comm->bulk->name;
}

int64_t sw_comm_sent_bytes(const struct sw_comm *comm) {
    return comm->sent_bytes;
}

int64_t sw_comm_sent_between_bytes(const struct sw_comm *comm) {
    return comm->sent_between_bytes;
}

int64_t sw_comm_sent_tensor_bytes(const struct sw_comm *comm) {
    return comm->sent_tensor_bytes;
}

void sw_comm_set_timeout(struct sw_comm *comm, int64_t timeout_ns) {
    comm->timeout_ns = timeout_ns;
}

int sw_comm_absent(const struct sw_comm *comm) {
    return comm->absent;
}

void sw_comm_set_observer(struct sw_comm *comm, const struct sw_comm_observer *observer) {
    comm->observer = *observer;
}
