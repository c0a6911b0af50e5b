/* Collectives over the ranks of a job: requests, scopes, phases, rounds, and host reductions.
 *
 * Every collective is built from point-to-point messages in rounds, on any transport. A reduction receives all
 * contributions to a slice and adds them in rank order, in fp32, with one rounding. A ring or a tree would move fewer
 * bytes at once, but its order of additions, and so the bits, would differ from slice to slice and from library to
 * library. Rounds bound the staging memory, whatever the size of a vector.
 *
 * The ranks of a scope begin its collectives in one order, so that counting them gives tags on which all agree, and a
 * request that is ahead waits. Progress is made by whoever waits; a progress thread would take a core from the update.
 */
#include "core/ranks/comm.h"

#include "core/clock.h"
#include "core/ranks/comm_private.h"
#include "core/size.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* Nodes, and the scopes of collectives that follow from them. */

/* Adds a rank to a scope. Call it in the order of ranks. */
static void join(const struct sw_comm *comm, struct sw_comm_members *members, int rank) {
    if (rank == comm->identity.rank)
        members->rank = members->ranks;
    members->rank_of[members->ranks++] = rank;
}

static void empty(struct sw_comm_members *members) {
    *members = (struct sw_comm_members){.rank_of = members->rank_of};
}

/* Counts the requests of all scopes anew whose ranks may have changed: their ranks may have begun unequally many. */
static void count_anew(struct sw_comm *comm) {
    for (int scope = SW_SCOPE_ALL + 1; scope < SW_SCOPES; scope++)
        comm->begun_in[scope] = 0;
}

/* Returns a rank's number within its node. */
static int number_in_node(const struct sw_comm *comm, int rank) {
    int number = 0;
    for (int before = 0; before < rank; before++)
        number += comm->node_of[before] == comm->node_of[rank];
    return number;
}

/* Finds the ranks of this node, and counts the nodes. */
static void find_node(struct sw_comm *comm) {
    struct sw_comm_members *node = &comm->scope[SW_SCOPE_NODE];
    struct sw_comm_nodes *nodes = &comm->nodes;
    *nodes = (struct sw_comm_nodes){.node = comm->node_of[comm->identity.rank]};
    empty(node);
    for (int rank = 0; rank < comm->identity.ranks; rank++) {
        nodes->nodes = comm->node_of[rank] >= nodes->nodes ? comm->node_of[rank] + 1 : nodes->nodes;
        if (comm->node_of[rank] == nodes->node)
            join(comm, node, rank);
    }
    nodes->rank = node->rank;
    nodes->ranks = node->ranks;
}

/* Finds the ranks with this rank's number in their nodes, and whether nodes are even: the last rank of each has the
 * last number that an even node has. */
static void find_across(struct sw_comm *comm) {
    struct sw_comm_members *across = &comm->scope[SW_SCOPE_ACROSS];
    struct sw_comm_nodes *nodes = &comm->nodes;
    assert(nodes->nodes > 0 && nodes->nodes <= comm->identity.ranks);
    const int share = comm->identity.ranks / nodes->nodes;
    nodes->even = nodes->in_order = share * nodes->nodes == comm->identity.ranks;
    empty(across);
    for (int rank = 0; rank < comm->identity.ranks; rank++) {
        const int number = number_in_node(comm, rank);
        nodes->even = nodes->even && number < share;
        nodes->in_order = nodes->in_order && comm->node_of[rank] == rank / share;
        if (number == nodes->rank)
            join(comm, across, rank);
    }
}

void sw_comm_set_node_ranks(struct sw_comm *comm, int node_ranks) {
    assert(comm->given == comm->begun && node_ranks >= 0);
    count_anew(comm);
    for (int rank = 0; rank < comm->identity.ranks; rank++)
        comm->node_of[rank] = node_ranks > 0 ? rank / node_ranks : comm->machine_of[rank];
    find_node(comm);
    assert(comm->scope[SW_SCOPE_NODE].ranks > 0);
    find_across(comm);
    sw_comm_set_part_ranks(comm, 0);
}

void sw_comm_set_part_ranks(struct sw_comm *comm, int part_ranks) {
    const struct sw_comm_members *node = &comm->scope[SW_SCOPE_NODE];
    struct sw_comm_members *part = &comm->scope[SW_SCOPE_PART];
    const int size = part_ranks > 0 ? part_ranks : node->ranks, first = node->rank / size * size;
    assert(comm->given == comm->begun && part_ranks >= 0);
    count_anew(comm);
    empty(part);
    for (int number = first; number < first + size && number < node->ranks; number++)
        join(comm, part, node->rank_of[number]);
}

/* Finds the ranks of this rank's group of so many neighbours, and those with its number in the groups of its stage. */
static void find_group(struct sw_comm *comm, int group_ranks, sw_comm_scope near, sw_comm_scope far) {
    const struct sw_comm_identity *self = &comm->identity;
    const int stage_ranks = self->ranks / comm->stages, first = self->rank / stage_ranks * stage_ranks;
    empty(&comm->scope[near]);
    empty(&comm->scope[far]);
    for (int rank = first; rank < first + stage_ranks; rank++) {
        if (rank / group_ranks == self->rank / group_ranks)
            join(comm, &comm->scope[near], rank);
        if (rank % group_ranks == self->rank % group_ranks)
            join(comm, &comm->scope[far], rank);
    }
}

static void find_groups(struct sw_comm *comm) {
    const int tensor_ranks = comm->tensor_ranks, expert_ranks = comm->expert_ranks;
    const int group_ranks = tensor_ranks * expert_ranks, own = comm->identity.rank;
    assert(comm->given == comm->begun && tensor_ranks > 0 && expert_ranks > 0 && comm->stages > 0);
    assert(comm->identity.ranks % (group_ranks * comm->stages) == 0);
    count_anew(comm);
    find_group(comm, tensor_ranks, SW_SCOPE_TENSOR, SW_SCOPE_DATA);
    find_group(comm, group_ranks, SW_SCOPE_EXPERTS, SW_SCOPE_REPLICAS);
    empty(&comm->scope[SW_SCOPE_SENDERS]);
    for (int number = 0; number < expert_ranks; number++)
        join(comm, &comm->scope[SW_SCOPE_SENDERS],
             own / group_ranks * group_ranks + number * tensor_ranks + own % tensor_ranks);
}

void sw_comm_set_groups(struct sw_comm *comm, int tensor_ranks, int expert_ranks) {
    comm->tensor_ranks = tensor_ranks;
    comm->expert_ranks = expert_ranks;
    find_groups(comm);
}

void sw_comm_set_stages(struct sw_comm *comm, int stages) {
    const int own = comm->identity.rank, stage_ranks = comm->identity.ranks / stages, stage = own / stage_ranks;
    const int number = own % stage_ranks, last = stages - 1;
    comm->stages = stages;
    find_groups(comm);
    for (int scope = SW_SCOPE_ENDS; scope <= SW_SCOPE_PREVIOUS; scope++)
        empty(&comm->scope[scope]);
    if (stage == last && last > 0)
        join(comm, &comm->scope[SW_SCOPE_ENDS], number);
    join(comm, &comm->scope[SW_SCOPE_ENDS], own);
    if (stage == 0 && last > 0)
        join(comm, &comm->scope[SW_SCOPE_ENDS], last * stage_ranks + number);
    join(comm, &comm->scope[SW_SCOPE_NEXT], own);
    if (last > 0)
        join(comm, &comm->scope[SW_SCOPE_NEXT], stage < last ? own + stage_ranks : number);
    if (last > 0)
        join(comm, &comm->scope[SW_SCOPE_PREVIOUS], stage > 0 ? own - stage_ranks : last * stage_ranks + number);
    join(comm, &comm->scope[SW_SCOPE_PREVIOUS], own);
}

/* Returns how many members each node has, if these are neighbours, more than one, and equally many on each of several
 * nodes; else 0. */
static int comm_node_members(const struct sw_comm *comm, const struct sw_comm_members *members) {
    const int *node_of = comm->node_of, *rank_of = members->rank_of, ranks = members->ranks;
    int each = 0;
    for (int number = 0; number < ranks; number++)
        each += node_of[rank_of[number]] == node_of[rank_of[0]];
    if (each < 2 || each == ranks || ranks % each != 0)
        return 0;
    for (int number = 0; number < ranks; number++) {
        const int node = node_of[rank_of[number]];
        const bool joins = number % each > 0, same = number > 0 && node == node_of[rank_of[number - 1]];
        if (joins != same)
            return 0;
    }
    return each;
}

const struct sw_comm_nodes *sw_comm_nodes(const struct sw_comm *comm) {
    return &comm->nodes;
}

int sw_comm_scope_ranks(const struct sw_comm *comm, sw_comm_scope scope) {
    return comm->scope[scope].ranks;
}

int sw_comm_scope_rank(const struct sw_comm *comm, sw_comm_scope scope) {
    return comm->scope[scope].rank;
}

/* Names the ranks of a group, whose numbers are evenly spaced: "ranks 2 and 3", "ranks 0, 4, ..., 12". */
static void name_group(const char *kind, const struct sw_comm_members *group, char out[SW_COMM_SCOPE_CHARS]) {
    const int *rank_of = group->rank_of, last = rank_of[group->ranks - 1];
    if (group->ranks == 1)
        snprintf(out, SW_COMM_SCOPE_CHARS, "%s group of rank %d", kind, last);
    else if (group->ranks == 2)
        snprintf(out, SW_COMM_SCOPE_CHARS, "%s group of ranks %d and %d", kind, rank_of[0], last);
    else if (rank_of[1] == rank_of[0] + 1)
        snprintf(out, SW_COMM_SCOPE_CHARS, "%s group of ranks %d to %d", kind, rank_of[0], last);
    else
        snprintf(out, SW_COMM_SCOPE_CHARS, "%s group of ranks %d, %d%s %d", kind, rank_of[0], rank_of[1],
                 group->ranks == 3 ? " and" : ", ...,", last);
}

void sw_comm_name_scope(const struct sw_comm *comm, sw_comm_scope scope, char out[SW_COMM_SCOPE_CHARS]) {
    const struct sw_comm_members *part = &comm->scope[SW_SCOPE_PART];
    out[0] = '\0';
    switch (scope) {
    case SW_SCOPE_NODE: snprintf(out, SW_COMM_SCOPE_CHARS, "node %d", comm->nodes.node); break;
    case SW_SCOPE_ACROSS: snprintf(out, SW_COMM_SCOPE_CHARS, "rank %d of each node", comm->nodes.rank); break;
    case SW_SCOPE_PART:
        snprintf(out, SW_COMM_SCOPE_CHARS, "ranks %d to %d", part->rank_of[0], part->rank_of[part->ranks - 1]);
        break;
    case SW_SCOPE_TENSOR: name_group("tensor", &comm->scope[scope], out); break;
    case SW_SCOPE_DATA:
        if (comm->scope[scope].ranks < comm->identity.ranks)
            name_group("data", &comm->scope[scope], out);
        break;
    case SW_SCOPE_EXPERTS:
    case SW_SCOPE_SENDERS: name_group("expert", &comm->scope[scope], out); break;
    case SW_SCOPE_REPLICAS:
        if (comm->scope[scope].ranks < comm->identity.ranks)
            name_group("data", &comm->scope[scope], out);
        break;
    case SW_SCOPE_ENDS: name_group("table", &comm->scope[scope], out); break;
    case SW_SCOPE_NEXT:
    case SW_SCOPE_PREVIOUS: name_group("pipeline", &comm->scope[scope], out); break;
    case SW_SCOPE_ALL:
    case SW_SCOPES: break;
    }
}

/* Adds the contributions of all ranks in fp32, in the order of the ranks, and rounds the sum once. */

/* A block's sums stay in the first-level cache. */
enum { BLOCK_ELEMS = 1024 };

static const char *contribution(const struct sw_comm_sum *sum, int rank) {
    if (rank == sum->rank)
        return sum->own;
    return (const char *)sum->others + (rank - (rank > sum->rank)) * sum->stride_bytes;
}

void sw_comm_sum_host(const struct sw_comm_sum *sum) {
    const int64_t bytes = sw_dtype_bytes(sum->type), to_bytes = sw_dtype_bytes(sum->to_type);
    float total[BLOCK_ELEMS], next[BLOCK_ELEMS];
    for (int64_t first = 0; first < sum->elems; first += BLOCK_ELEMS) {
        const int64_t count = sw_min_i64(sum->elems - first, BLOCK_ELEMS);
        sw_dtype_widen(sum->type, contribution(sum, 0) + first * bytes, count, total);
        for (int rank = 1; rank < sum->ranks; rank++) {
            sw_dtype_widen(sum->type, contribution(sum, rank) + first * bytes, count, next);
            for (int64_t i = 0; i < count; i++)
                total[i] += next[i];
        }
        sw_dtype_round(sum->to_type, total, count, (char *)sum->to + first * to_bytes);
    }
}

/* A waiting rank leaves its core to others: it polls often at first, then rarely. */
enum { POLLS_AT_ONCE = 200, PAUSE_NS = 50000, SAME_PAUSES = 64, MOST_DOUBLINGS = 5 };

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

/* Takes the comm's next request and sets its name and transport. Asserts that fewer than SW_COMM_REQUESTS are open. */
static sw_status comm_new_request(struct sw_comm *comm, const char *what, int64_t index, bool on_host,
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
        .bounds = request->bounds,
    };
    *out = request;
    return SW_OK;
}

/* Tells whether a rank is in another pipeline stage. There is one stage until sw_comm_set_stages. */
static bool is_in_other_stage(const struct sw_comm *comm, int rank) {
    const int stages = comm->stages > 1 ? comm->stages : 1, stage_ranks = comm->identity.ranks / stages;
    return rank / stage_ranks != comm->identity.rank / stage_ranks;
}

static void count_sent(struct sw_comm *comm, const struct sw_comm_message *message) {
    const struct sw_comm_members *group = &comm->scope[SW_SCOPE_TENSOR];
    const int first = group->rank_of[0];
    if (message->peer == comm->identity.rank)
        return;
    comm->sent_bytes += message->bytes;
    comm->sent_between_bytes += comm->node_of[message->peer] == comm->nodes.node ? 0 : message->bytes;
    comm->sent_tensor_bytes += message->peer >= first && message->peer < first + group->ranks ? message->bytes : 0;
    comm->sent_stages_bytes += is_in_other_stage(comm, message->peer) ? message->bytes : 0;
}

static void comm_fill_round(struct sw_comm *comm, const struct sw_comm_phase *phase, int64_t number,
                            struct sw_comm_round *round);

static sw_status post_rounds(struct sw_comm_request *request, const struct sw_comm_phase *phase) {
    struct sw_comm *comm = request->comm;
    /* A round of a two-level gather forwards what arrived in the round before. */
    const int most = phase->node_ranks > 0 ? 1 : SW_COMM_GROUPS;
    while (request->posted < phase->rounds && request->posted - request->finished < most) {
        const int group = (int)(request->posted % SW_COMM_GROUPS);
        struct sw_comm_round *round = &comm->rounds[group];
        comm_fill_round(comm, phase, request->posted, round);
        SW_TRY(phase->by_library ? request->transport->post_sums(request->transport_state, group, phase->type, round)
                                 : request->transport->post(request->transport_state, group, request->sequence, round));
        for (int i = 0; i < round->send_count; i++)
            count_sent(comm, &round->sends[i]);
        request->posted++;
    }
    return SW_OK;
}

static sw_status comm_finish_round(struct sw_comm *comm, const struct sw_comm_phase *phase, int64_t number);

/* Advances a request as far as possible without waiting. */
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
        SW_TRY(comm_finish_round(request->comm, phase, request->finished));
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

/* Writes the name of a request for messages: its own name, preceded by that of its scope if not all ranks take part. */
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

/* Ends the wait for a rank that will never answer: by the observer's verdict or, without an observer, by the timeout.
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

/* Tells the observer about a request. A request on a stream is reported when the host waits for it, or by whoever sees
 * that the device has begun it. */
static void tell_entered(const struct sw_comm_request *request) {
    struct sw_comm_left left = {.index = request->index};
    name_request(request, left.what);
    sw_comm_note_begun(request->comm, &left);
}

static void comm_plan_phase(const struct sw_comm *comm, const struct sw_comm_transport *transport,
                            struct sw_comm_phase *phase);

/* Tells whether a scope is the link from the last stage to the first. Two stages have it beside the other link. */
static bool is_back_link(const struct sw_comm *comm, sw_comm_scope scope) {
    const int stage = comm->identity.rank / (comm->identity.ranks / comm->stages);
    return (scope == SW_SCOPE_NEXT && stage + 1 == comm->stages) || (scope == SW_SCOPE_PREVIOUS && stage == 0);
}

/* Returns the tag of the next request of a scope. The two ranks of a link between stages count its passes alike: to one
 * of them the other is next, to the other it is previous. */
static int64_t tag_of(struct sw_comm *comm, sw_comm_scope scope) {
    sw_comm_scope named = scope;
    if (scope == SW_SCOPE_NEXT || scope == SW_SCOPE_PREVIOUS)
        named = is_back_link(comm, scope) ? SW_SCOPE_PREVIOUS : SW_SCOPE_NEXT;
    return comm->begun_in[scope]++ * SW_SCOPES + named;
}

/* Starts a request whose phases are filled in. */
static sw_status comm_begin_request(struct sw_comm_request *request) {
    struct sw_comm *comm = request->comm;
    SW_TRY(enter(comm));
    for (int i = 0; i < request->phase_count; i++) {
        request->phases[i].members = &comm->scope[request->scope];
        comm_plan_phase(comm, request->transport, &request->phases[i]);
    }
    request->open = true;
    request->moved_ns = sw_now_ns();
    request->sequence = tag_of(comm, request->scope);
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

/* Makes whatever progress is possible without waiting. */
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

/* Pauses double after every SAME_PAUSES without progress, so that a rank that waits for a slow one leaves it the
 * processor. A pause is at most a thirtieth of the wait before it. */
static long pause_ns(int pauses) {
    const int doublings = pauses / SAME_PAUSES;
    return (long)PAUSE_NS << (doublings < MOST_DOUBLINGS ? doublings : MOST_DOUBLINGS);
}

static void pause_between_polls(const struct sw_comm_request *request, int polls) {
    if (request->transport->doze != NULL)
        request->transport->doze(request->transport_state);
    else if (polls < POLLS_AT_ONCE)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = pause_ns(polls - POLLS_AT_ONCE)}, NULL);
}

sw_status sw_comm_wait(struct sw_comm_request *request) {
    bool done = false;
    if (on_stream(request))
        tell_entered(request);
    for (int polls = 0; !done; polls++) {
        const int64_t moved_ns = request->moved_ns;
        SW_TRY(test(request, &done));
        if (request->moved_ns != moved_ns)
            polls = 0;
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
    return &comm->identity;
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

int64_t sw_comm_sent_stages_bytes(const struct sw_comm *comm) {
    return comm->sent_stages_bytes;
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

/* Splits a phase into rounds: which bytes go from whom to whom at once. */

int64_t sw_comm_least_staging_bytes(int ranks) {
    return (int64_t)SW_COMM_GROUPS * sw_max_i64(ranks - 1, 1) * SW_COMM_PIECE_ELEMS * (int64_t)sizeof(float);
}

void sw_comm_even_bounds(int64_t elems, int64_t granule, int ranks, int64_t *bounds) {
    const int64_t granules = sw_div_up(elems, granule);
    const int64_t each = granules / ranks, rest = granules % ranks;
    for (int rank = 0; rank <= ranks; rank++)
        bounds[rank] = sw_min_i64((each * rank + sw_min_i64(rank, rest)) * granule, elems);
}

static int64_t share_units(const struct sw_comm_phase *phase, int rank) {
    return phase->bounds[rank + 1] - phase->bounds[rank];
}

/* Returns how many units of each rank's share one round of a reduction can move. The staging buffer receives a part of
 * the own slice from each other rank. */
static int64_t staged_units(const struct sw_comm *comm, const struct sw_comm_phase *phase) {
    const int64_t pieces = (int64_t)SW_COMM_GROUPS * (phase->members->ranks - 1);
    return comm->staging_bytes / pieces / phase->unit_bytes / SW_COMM_PIECE_ELEMS * SW_COMM_PIECE_ELEMS;
}

/* Returns whether the library may sum for these members. It sums over all ranks, and only in scopes that are all ranks
 * by definition; a node that happens to be the whole job keeps deterministic sums. */
static bool is_whole_job(const struct sw_comm *comm, const struct sw_comm_members *members) {
    return members == &comm->scope[SW_SCOPE_ALL] ||
           (members == &comm->scope[SW_SCOPE_DATA] && members->ranks == comm->identity.ranks);
}

/* Returns the number of rounds that move a part of each share: with two levels, one per node. */
static int64_t part_rounds(const struct sw_comm_phase *phase) {
    return phase->node_ranks > 0 ? phase->members->ranks / phase->node_ranks : 1;
}

/* Fills in round_units and rounds of a phase whose other fields are set. */
static void comm_plan_phase(const struct sw_comm *comm, const struct sw_comm_transport *transport,
                            struct sw_comm_phase *phase) {
    int64_t largest = 0;
    const int ranks = phase->members->ranks;
    for (int rank = 0; rank < ranks; rank++)
        largest = sw_max_i64(largest, share_units(phase, rank));
    phase->round_units = transport->most_message_bytes / phase->unit_bytes;
    if (phase->kind == SW_PHASE_REDUCE && ranks > 1)
        phase->round_units = sw_min_i64(phase->round_units, staged_units(comm, phase));
    assert(phase->round_units > 0);
    phase->by_library = comm->library_sums && ranks > 1 && phase->kind == SW_PHASE_REDUCE &&
                        is_whole_job(comm, phase->members) && phase->type == phase->to_type &&
                        transport->post_sums != NULL;
    phase->node_ranks =
        phase->kind == SW_PHASE_GATHER && !phase->straight ? comm_node_members(comm, phase->members) : 0;
    phase->rounds = sw_div_up(largest, phase->round_units) * part_rounds(phase);
}

/* The part of a rank's share that one round moves. */
struct part {
    int64_t first, units; /* offset and length within the whole vector */
};

static struct part part_of(const struct sw_comm_phase *phase, int64_t number, int rank) {
    const int64_t begin = phase->bounds[rank] + number * phase->round_units;
    const int64_t left = phase->bounds[rank + 1] - begin;
    return (struct part){.first = begin, .units = sw_max_i64(sw_min_i64(left, phase->round_units), 0)};
}

static char *staged(const struct sw_comm *comm, const struct sw_comm_phase *phase, int64_t number, int peer) {
    const int64_t piece_bytes = phase->round_units * phase->unit_bytes;
    const int64_t place = peer - (peer > phase->members->rank);
    return comm->staging + (number % SW_COMM_GROUPS * (phase->members->ranks - 1) + place) * piece_bytes;
}

static void add(struct sw_comm_message *messages, int *count, int peer, char *data, int64_t bytes) {
    if (bytes > 0)
        messages[(*count)++] = (struct sw_comm_message){.peer = peer, .data = data, .bytes = bytes};
}

/* Returns the part that this rank sends in a gather. Not const, because messages have one type for both directions; a
 * sent message is only read. */
static char *own_part(const struct sw_comm_phase *phase, struct part own) {
    const int64_t in_share = own.first - phase->bounds[phase->members->rank];
    return phase->own != NULL ? (char *)phase->own + in_share * phase->unit_bytes
                              : phase->data + own.first * phase->unit_bytes;
}

static char *reduced(const struct sw_comm_phase *phase, int64_t number) {
    return phase->to + number * phase->round_units * sw_dtype_bytes(phase->to_type);
}

/* Returns where a round of an exchange receives a peer's part for this rank. */
static char *taken_part(const struct sw_comm_phase *phase, int64_t number, int peer) {
    const int64_t place = peer - (peer > phase->members->rank);
    const int64_t units = place * share_units(phase, phase->members->rank) + number * phase->round_units;
    return phase->to + units * phase->unit_bytes;
}

/* Fills in a round of the library's sums. They are collectives, so all ranks must use the same order. */
static void fill_sums(struct sw_comm *comm, const struct sw_comm_phase *phase, int64_t number,
                      struct sw_comm_round *round) {
    for (int rank = 0; rank < comm->identity.ranks; rank++) {
        const struct part part = part_of(phase, number, rank);
        const int64_t bytes = part.units * phase->unit_bytes;
        add(round->sends, &round->send_count, rank, phase->data + part.first * phase->unit_bytes, bytes);
        if (rank == comm->identity.rank)
            add(round->receives, &round->receive_count, rank, reduced(phase, number), bytes);
    }
}

static void fill_messages(struct sw_comm *comm, const struct sw_comm_phase *phase, int64_t number,
                          struct sw_comm_round *round) {
    const int self = phase->members->rank, ranks = phase->members->ranks;
    const int *rank_of = phase->members->rank_of;
    const struct part own = part_of(phase, number, self);
    /* Each rank begins with its successor, so that not all send to the same one. */
    for (int distance = 1; distance < ranks; distance++) {
        const int to = (self + distance) % ranks, from = (self + ranks - distance) % ranks;
        const struct part theirs = part_of(phase, number, from), taken = part_of(phase, number, to);
        const int64_t unit = phase->unit_bytes;
        switch (phase->kind) {
        case SW_PHASE_GATHER:
            add(round->sends, &round->send_count, rank_of[to], own_part(phase, own), own.units * unit);
            add(round->receives, &round->receive_count, rank_of[from], phase->data + theirs.first * unit,
                theirs.units * unit);
            break;
        case SW_PHASE_SCATTER:
            if (self == phase->root)
                add(round->sends, &round->send_count, rank_of[to], phase->data + taken.first * unit,
                    taken.units * unit);
            if (from == phase->root)
                add(round->receives, &round->receive_count, rank_of[from], phase->data + own.first * unit,
                    own.units * unit);
            break;
        case SW_PHASE_EXCHANGE:
            add(round->sends, &round->send_count, rank_of[to], phase->data + taken.first * unit, taken.units * unit);
            add(round->receives, &round->receive_count, rank_of[from], taken_part(phase, number, from),
                own.units * unit);
            break;
        case SW_PHASE_REDUCE:
            add(round->sends, &round->send_count, rank_of[to], phase->data + taken.first * unit, taken.units * unit);
            add(round->receives, &round->receive_count, rank_of[from], staged(comm, phase, number, from),
                own.units * unit);
            break;
        }
    }
}

/* Fills in a round of a two-level gather. In round `away` of a part, a rank sends its own share to the rank with its
 * number `away` + 1 nodes further, and what came from `away` nodes back (at first its own share) to the others of its
 * node. So a share crosses to another node once, however many ranks that node has, while other shares move within
 * nodes. */
static void fill_levels(const struct sw_comm_phase *phase, int64_t number, struct sw_comm_round *round) {
    const int ranks = phase->members->ranks, self = phase->members->rank, *rank_of = phase->members->rank_of;
    const int each = phase->node_ranks, first = self / each * each, place = self % each;
    const int64_t part = number / part_rounds(phase), away = number % part_rounds(phase), unit = phase->unit_bytes;
    const int back = (int)(away * each), next = back + each;
    if (next < ranks) {
        const int to = (self + next) % ranks, from = (self + ranks - next) % ranks;
        const struct part own = part_of(phase, part, self), theirs = part_of(phase, part, from);
        add(round->sends, &round->send_count, rank_of[to], own_part(phase, own), own.units * unit);
        add(round->receives, &round->receive_count, rank_of[from], phase->data + theirs.first * unit,
            theirs.units * unit);
    }
    const struct part given = part_of(phase, part, (self + ranks - back) % ranks);
    char *data = away == 0 ? own_part(phase, given) : phase->data + given.first * unit;
    for (int distance = 1; distance < each; distance++) {
        const int to = first + (place + distance) % each, from = first + (place + each - distance) % each;
        const struct part taken = part_of(phase, part, (from + ranks - back) % ranks);
        add(round->sends, &round->send_count, rank_of[to], data, given.units * unit);
        add(round->receives, &round->receive_count, rank_of[from], phase->data + taken.first * unit,
            taken.units * unit);
    }
}

/* comm_fill_round lists the messages of a round. comm_finish_round does what remains once they have arrived, such as a
 * sum. */
static void comm_fill_round(struct sw_comm *comm, const struct sw_comm_phase *phase, int64_t number,
                            struct sw_comm_round *round) {
    round->send_count = round->receive_count = 0;
    if (phase->by_library)
        fill_sums(comm, phase, number, round);
    else if (phase->node_ranks > 0)
        fill_levels(phase, number, round);
    else
        fill_messages(comm, phase, number, round);
}

static sw_status copy_part(struct sw_comm *comm, const struct sw_comm_phase *phase, struct part own) {
    char *to = phase->data + own.first * phase->unit_bytes;
    const char *from = own_part(phase, own);
    const int64_t bytes = own.units * phase->unit_bytes;
    if (comm->device.copy != NULL)
        return comm->device.copy(comm->device.context, to, from, bytes);
    memcpy(to, from, (size_t)bytes);
    return SW_OK;
}

static sw_status sum_part(struct sw_comm *comm, const struct sw_comm_phase *phase, int64_t number, struct part own) {
    const struct sw_comm_sum sum = {
        .type = phase->type,
        .to_type = phase->to_type,
        .elems = own.units,
        .rank = phase->members->rank,
        .ranks = phase->members->ranks,
        .own = phase->data + own.first * phase->unit_bytes,
        /* The first other rank: rank 0, or rank 1 on rank 0. */
        .others = phase->members->ranks > 1 ? staged(comm, phase, number, phase->members->rank == 0) : NULL,
        .stride_bytes = phase->round_units * phase->unit_bytes,
        .to = reduced(phase, number),
    };
    if (comm->device.sum != NULL)
        return comm->device.sum(comm->device.context, &sum);
    sw_comm_sum_host(&sum);
    return SW_OK;
}

static sw_status comm_finish_round(struct sw_comm *comm, const struct sw_comm_phase *phase, int64_t number) {
    const struct part own = part_of(phase, number / part_rounds(phase), phase->members->rank);
    if (own.units == 0 || phase->kind == SW_PHASE_EXCHANGE || number % part_rounds(phase) > 0)
        return SW_OK;
    if (phase->kind == SW_PHASE_REDUCE)
        return phase->by_library ? SW_OK : sum_part(comm, phase, number, own);
    return phase->own != NULL ? copy_part(comm, phase, own) : SW_OK;
}

/* The collectives, as phases. */

/* The granule of a broadcast's shares: less is not worth a message. */
enum { BROADCAST_GRANULE_BYTES = 4096 };

sw_status sw_comm_all_gather(struct sw_comm *comm, const struct sw_comm_gather *gather, struct sw_comm_request **out) {
    struct sw_comm_request *request;
    SW_TRY(comm_new_request(comm, gather->what, gather->index, false, &request));
    request->scope = gather->scope;
    request->phases[0] = (struct sw_comm_phase){
        .kind = SW_PHASE_GATHER,
        .data = gather->data,
        .own = gather->own,
        .bounds = gather->bounds_bytes,
        .unit_bytes = 1,
    };
    request->phase_count = 1;
    *out = request;
    return comm_begin_request(request);
}

sw_status sw_comm_reduce_scatter(struct sw_comm *comm, const struct sw_comm_reduce *reduce,
                                 struct sw_comm_request **out) {
    assert(comm->identity.ranks == 1 || comm->staging != NULL);
    struct sw_comm_request *request;
    SW_TRY(comm_new_request(comm, reduce->what, reduce->index, false, &request));
    request->scope = reduce->scope;
    request->phases[0] = (struct sw_comm_phase){
        .kind = SW_PHASE_REDUCE,
        .data = (char *)reduce->from, /* only read */
        .bounds = reduce->bounds,
        .unit_bytes = sw_dtype_bytes(reduce->type),
        .to = reduce->to,
        .type = reduce->type,
        .to_type = reduce->to_type,
    };
    request->phase_count = 1;
    *out = request;
    return comm_begin_request(request);
}

sw_status sw_comm_exchange(struct sw_comm *comm, const struct sw_comm_exchange *exchange,
                           struct sw_comm_request **out) {
    struct sw_comm_request *request;
    SW_TRY(comm_new_request(comm, exchange->what, exchange->index, false, &request));
    request->scope = exchange->scope;
    request->phases[0] = (struct sw_comm_phase){
        .kind = SW_PHASE_EXCHANGE,
        .data = (char *)exchange->data, /* only read */
        .bounds = exchange->bounds_bytes,
        .unit_bytes = 1,
        .to = exchange->to,
    };
    request->phase_count = 1;
    *out = request;
    return comm_begin_request(request);
}

/* The two ranks of a link share out the bytes so that the one that receives has them all. */
sw_status sw_comm_pass(struct sw_comm *comm, const struct sw_comm_pass *pass, struct sw_comm_request **out) {
    struct sw_comm_request *request;
    const bool next = pass->scope == SW_SCOPE_NEXT;
    assert((next || pass->scope == SW_SCOPE_PREVIOUS) && comm->scope[pass->scope].ranks == 2);
    SW_TRY(comm_new_request(comm, pass->what, pass->index, false, &request));
    request->scope = pass->scope;
    const int receiver = next == pass->sends ? 1 : 0;
    request->bounds[0] = 0;
    request->bounds[1] = receiver == 0 ? pass->bytes : 0;
    request->bounds[2] = pass->bytes;
    request->phases[0] = (struct sw_comm_phase){
        .kind = SW_PHASE_SCATTER, .data = pass->data, .bounds = request->bounds, .unit_bytes = 1, .root = 1 - receiver};
    request->phase_count = 1;
    *out = request;
    return comm_begin_request(request);
}

sw_status sw_comm_broadcast(struct sw_comm *comm, const struct sw_comm_broadcast *broadcast,
                            struct sw_comm_request **out) {
    const int ranks = sw_comm_scope_ranks(comm, broadcast->scope);
    assert(broadcast->root >= 0 && broadcast->root < ranks);
    struct sw_comm_request *request;
    SW_TRY(comm_new_request(comm, broadcast->what, broadcast->index, broadcast->on_host, &request));
    request->scope = broadcast->scope;
    sw_comm_even_bounds(broadcast->bytes, BROADCAST_GRANULE_BYTES, ranks, request->bounds);
    /* Each rank receives a share and passes it to the others, so that the root does not send everything `ranks` times.
     */
    for (int i = 0; i < SW_COMM_PHASES; i++)
        request->phases[i] = (struct sw_comm_phase){.kind = i == 0 ? SW_PHASE_SCATTER : SW_PHASE_GATHER,
                                                    .data = broadcast->data,
                                                    .bounds = request->bounds,
                                                    .unit_bytes = 1,
                                                    .root = broadcast->root};
    request->phase_count = SW_COMM_PHASES;
    *out = request;
    return comm_begin_request(request);
}

/* Exchanges small values between all ranks through host memory. Every rank then computes the same from them. */

void sw_comm_tell(struct sw_comm *comm, const char *message) {
    if (comm->failed != SW_OK || comm->host->tell == NULL)
        return;
    comm->host->tell(comm->host_state, message);
    comm->failed = SW_ERR_STOPPED;
    snprintf(comm->failure, sizeof comm->failure, "%s", message);
}

sw_status sw_comm_share_records(struct sw_comm *comm, const char *what, void *records, int64_t record_bytes) {
    struct sw_comm_request *request;
    SW_TRY(comm_new_request(comm, what, 0, true, &request));
    for (int rank = 0; rank <= comm->identity.ranks; rank++)
        request->bounds[rank] = rank * record_bytes;
    request->phases[0] = (struct sw_comm_phase){
        .kind = SW_PHASE_GATHER, .data = records, .bounds = request->bounds, .unit_bytes = 1, .straight = true};
    request->phase_count = 1;
    SW_TRY(comm_begin_request(request));
    return sw_comm_wait(request);
}

/* Collects `bytes` bytes of every rank; those of rank r are at *out + r·bytes. */
static sw_status share(struct sw_comm *comm, const char *what, const void *own, size_t bytes, char **out) {
    assert(bytes <= SW_COMM_VALUES * sizeof(int64_t));
    *out = (char *)comm->records;
    memcpy(*out + (size_t)comm->identity.rank * bytes, own, bytes);
    return sw_comm_share_records(comm, what, *out, (int64_t)bytes);
}

sw_status sw_comm_barrier(struct sw_comm *comm, const char *what) {
    char *all;
    return share(comm, what, &(char){0}, 1, &all);
}

sw_status sw_comm_sum_doubles(struct sw_comm *comm, const char *what, double *values, int count) {
    char *all;
    SW_TRY(share(comm, what, values, (size_t)count * sizeof *values, &all));
    for (int i = 0; i < count; i++)
        values[i] = ((const double *)all)[i];
    for (int rank = 1; rank < comm->identity.ranks; rank++)
        for (int i = 0; i < count; i++)
            values[i] += ((const double *)all)[rank * count + i];
    return SW_OK;
}

sw_status sw_comm_max(struct sw_comm *comm, const char *what, int64_t *values, int count) {
    char *all;
    SW_TRY(share(comm, what, values, (size_t)count * sizeof *values, &all));
    for (int rank = 0; rank < comm->identity.ranks; rank++)
        for (int i = 0; i < count; i++)
            values[i] = sw_max_i64(values[i], ((const int64_t *)all)[rank * count + i]);
    return SW_OK;
}

sw_status sw_comm_all_true(struct sw_comm *comm, const char *what, bool *value) {
    int64_t wrong = !*value;
    SW_TRY(sw_comm_max(comm, what, &wrong, 1));
    *value = wrong == 0;
    return SW_OK;
}
