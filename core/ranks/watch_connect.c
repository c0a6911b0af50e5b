/* How the ranks' watches find each other: rank 0 listens, the comm tells the others where. */
#include "core/clock.h"
#include "core/error_scope.h"
#include "core/log.h"
#include "core/ranks/watch_private.h"
#include "core/size.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    CONNECT_MS = 2000, /* to connect to one address */
    ANSWER_MS = 5000,  /* for the first note of whoever has connected */
    ALL_MS = 30000,    /* for all ranks to connect */
    USED_MS = 10000,   /* at most, for all to connect by the addresses that seemed to lead to rank 0 */
    STRANGERS = 64,    /* connections that have said nothing yet */
};

/* The addresses at which rank 0 listens, as it tells the others. */
struct offer {
    struct sw_watch_token key;
    int64_t ms; /* so long */
    sw_watch_reach reach;
    int32_t count;
    struct in6_addr addresses[SW_WATCH_ADDRESSES];
    uint16_t ports[SW_WATCH_ADDRESSES];
};

static void close_listeners(struct sw_watch_listeners *listeners) {
    for (int i = 0; i < listeners->count; i++)
        close(listeners->sockets[i]);
    listeners->count = 0;
}

/* Listens on an address, by a port that the system chooses. Returns the port, or -1, and errno says why. */
static int listen_on(const struct in6_addr *address, int ranks, struct sw_watch_listeners *listeners) {
    struct sockaddr_storage at;
    socklen_t bytes = sw_watch_socket_address(address, 0, &at);
    const int made = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (made < 0)
        return -1;
    /* The unspecified address of IPv6 stands for those of IPv4, too. */
    if (at.ss_family == AF_INET6)
        setsockopt(made, IPPROTO_IPV6, IPV6_V6ONLY, &(int){0}, sizeof(int));
    /* The port stands at one place in addresses of both kinds. */
    static_assert(offsetof(struct sockaddr_in6, sin6_port) == offsetof(struct sockaddr_in, sin_port), "ports differ");
    if (bind(made, (struct sockaddr *)&at, bytes) == 0 && listen(made, ranks) == 0 &&
        getsockname(made, (struct sockaddr *)&at, &bytes) == 0) {
        listeners->sockets[listeners->count++] = made;
        return ntohs(((struct sockaddr_in6 *)&at)->sin6_port);
    }
    const int error = errno;
    close(made);
    errno = error;
    return -1;
}

static void add_address(struct offer *offer, const struct in6_addr *address, int port) {
    offer->addresses[offer->count] = *address;
    offer->ports[offer->count++] = (uint16_t)port;
}

/* Listens on the loopback address, which no other machine can reach, or on the addresses that are used. Returns false
 * where that does not work for one of them. */
static bool listen_narrowly(const struct sw_watch *watch, const struct sw_watch_network *own, const bool *used,
                            struct offer *offer, struct sw_watch_listeners *out) {
    static const struct in6_addr loopback = {.s6_addr = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1}};
    for (int i = 0; i < own->count || offer->reach == SW_REACH_LOOPBACK; i++) {
        const struct in6_addr *address = offer->reach == SW_REACH_LOOPBACK ? &loopback : &own->addresses[i];
        if (offer->reach == SW_REACH_USED && !used[i])
            continue;
        const int port = listen_on(address, watch->ranks, out);
        if (port < 0)
            return false;
        add_address(offer, address, port);
        if (offer->reach == SW_REACH_LOOPBACK)
            break;
    }
    return true;
}

/* Listens for the other ranks as offer->reach says, else on every address, and fills the offer. */
static sw_status begin_listening(const struct sw_watch *watch, const struct sw_watch_network *own, const bool *used,
                                 struct offer *offer, struct sw_watch_listeners *out) {
    static const struct in6_addr any_four = {.s6_addr = {[10] = 0xff, [11] = 0xff}};
    offer->count = 0;
    offer->ms = offer->reach == SW_REACH_USED ? sw_min_i64(USED_MS, watch->spec.rank_timeout_ns / INT64_C(1000000) / 2)
                                              : ALL_MS;
    if (offer->reach != SW_REACH_ALL && listen_narrowly(watch, own, used, offer, out))
        return SW_OK;
    close_listeners(out);
    offer->count = 0;
    offer->reach = SW_REACH_ALL;
    offer->ms = ALL_MS;
    int port = listen_on(&in6addr_any, watch->ranks, out);
    if (port < 0)
        port = listen_on(&any_four, watch->ranks, out);
    if (port < 0)
        return sw_fail(SW_ERR_IO, "rank 0 cannot listen for the other ranks' watches: %s", strerror(errno));
    for (int i = 0; i < own->count; i++)
        add_address(offer, &own->addresses[i], port);
    return SW_OK;
}

/* Receives the next note of a connection that may be anyone's. Returns false where none comes in time. */
static bool receive_within(const struct sw_watch *watch, struct sw_watch_peer *peer, int64_t ms) {
    const int64_t deadline_ns = sw_now_ns() + ms * 1000000;
    int got = 0;
    for (int64_t left_ns = deadline_ns - sw_now_ns(); got == 0 && left_ns > 0; left_ns = deadline_ns - sw_now_ns()) {
        struct pollfd wait = {.fd = peer->socket, .events = POLLIN};
        if (poll(&wait, 1, (int)(left_ns / 1000000) + 1) > 0)
            got = sw_watch_receive(watch, peer);
    }
    return got == 1;
}

/* Connections that have not proved to be a rank's. Anyone may have made them. */
struct strangers {
    struct sw_watch_peer peer[STRANGERS]; /* socket -1: free */
    int64_t until_ns[STRANGERS];
};

/* Accepts one connection. Where too many have said nothing, the one that has been silent longest makes room. */
static void accept_one(struct strangers *strangers, int listener) {
    const int made = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    int at = 0;
    if (made < 0)
        return;
    for (int i = 1; i < STRANGERS && strangers->peer[at].socket >= 0; i++)
        if (strangers->peer[i].socket < 0 || strangers->until_ns[i] < strangers->until_ns[at])
            at = i;
    if (strangers->peer[at].socket >= 0)
        close(strangers->peer[at].socket);
    strangers->peer[at] = (struct sw_watch_peer){.socket = made};
    strangers->until_ns[at] = sw_now_ns() + ANSWER_MS * INT64_C(1000000);
}

/* Proves to a connection that this is rank 0, and asks it for its proof. */
static bool challenge(const struct sw_watch *watch, struct sw_watch_peer *peer) {
    SW_HANDLES_ERRORS();
    struct sw_watch_token nonce;
    const struct sw_note *hello = &peer->incoming;
    if (hello->kind != SW_NOTE_HELLO || sw_watch_token_make(&nonce) != SW_OK)
        return false;
    peer->nonce = nonce;
    peer->token = sw_watch_prove(&watch->key, SW_PROOF_OF_FIRST, &hello->nonce, &nonce);
    sw_watch_send(watch, peer, SW_NOTE_CHALLENGE, NULL);
    peer->token = sw_watch_prove(&watch->key, SW_PROOF_OF_CONNECTION, &hello->nonce, &nonce);
    peer->nonce = (struct sw_watch_token){0};
    return peer->greeted = true;
}

/* Reads what a connection has sent. Once it has proved to be a rank's, it becomes that; one that fails to is closed. */
static void hear(struct sw_watch *watch, struct sw_watch_peer *peer, int64_t until_ns, int *connected) {
    const int got = sw_watch_receive(watch, peer);
    if (got == 0 && sw_now_ns() < until_ns)
        return;
    if (got == 1 && !peer->greeted && challenge(watch, peer))
        return;
    const struct sw_note *note = &peer->incoming;
    const bool is_rank =
        got == 1 && note->kind == SW_NOTE_PROOF && note->rank > 0 && watch->peers[note->rank - 1].socket < 0;
    if (is_rank) {
        setsockopt(peer->socket, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        peer->rank = note->rank;
        peer->last = *note;
        watch->peers[peer->rank - 1] = *peer;
        sw_watch_send(watch, &watch->peers[peer->rank - 1], SW_NOTE_WELCOME, NULL);
        ++*connected;
    } else {
        close(peer->socket);
    }
    peer->socket = -1;
}

/* Accepts connections and hears them beside each other, so that a stranger who says nothing delays no rank. */
static void accept_ranks(struct sw_watch *watch, const struct sw_watch_listeners *listeners, int64_t ms,
                         struct strangers *strangers) {
    enum { TURN_MS = 100 };
    const int64_t deadline_ns = sw_now_ns() + ms * INT64_C(1000000);
    struct pollfd waits[STRANGERS + SW_WATCH_ADDRESSES];
    int connected = 0;
    while (connected < watch->peer_count && sw_now_ns() < deadline_ns) {
        for (int i = 0; i < STRANGERS; i++)
            waits[i] = (struct pollfd){.fd = strangers->peer[i].socket, .events = POLLIN};
        for (int i = 0; i < listeners->count; i++)
            waits[STRANGERS + i] = (struct pollfd){.fd = listeners->sockets[i], .events = POLLIN};
        (void)poll(waits, (nfds_t)(STRANGERS + listeners->count), TURN_MS);
        for (int i = 0; i < STRANGERS; i++)
            if (strangers->peer[i].socket >= 0)
                hear(watch, &strangers->peer[i], strangers->until_ns[i], &connected);
        for (int i = 0; i < listeners->count; i++)
            if (waits[STRANGERS + i].revents != 0)
                accept_one(strangers, listeners->sockets[i]);
    }
}

sw_status sw_watch_accept(struct sw_watch *watch, const struct sw_watch_listeners *listeners, int64_t ms) {
    struct strangers *strangers = malloc(sizeof *strangers);
    if (strangers == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to connect the ranks' watches");
    for (int i = 0; i < STRANGERS; i++)
        strangers->peer[i].socket = -1;
    accept_ranks(watch, listeners, ms, strangers);
    for (int i = 0; i < STRANGERS; i++)
        if (strangers->peer[i].socket >= 0)
            close(strangers->peer[i].socket);
    free(strangers);
    for (int i = 0; i < watch->peer_count; i++)
        if (watch->peers[i].socket < 0)
            return sw_fail(
                SW_ERR_IO,
                "rank %d has not connected to rank 0's watch within %.3g s; the hosts of a job must be able to "
                "reach each other by TCP",
                i + 1, (double)ms / 1e3);
    return SW_OK;
}

/* Returns a connection to the address, made within the time, or -1. */
static int connect_within(const struct in6_addr *address, int port, int64_t ms) {
    struct sockaddr_storage to;
    const socklen_t to_bytes = sw_watch_socket_address(address, port, &to);
    const int made = socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int error = 0;
    socklen_t bytes = sizeof error;
    if (made >= 0 && connect(made, (struct sockaddr *)&to, to_bytes) != 0) {
        struct pollfd wait = {.fd = made, .events = POLLOUT};
        if (errno != EINPROGRESS || poll(&wait, 1, (int)ms) <= 0 ||
            getsockopt(made, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0 || error != 0) {
            close(made);
            return -1;
        }
    }
    return made;
}

/* Returns the lesser of `ms` and the time until the deadline, at least 0. */
static int64_t ms_until(int64_t deadline_ns, int64_t ms) {
    return sw_max_i64(0, sw_min_i64(ms, (deadline_ns - sw_now_ns()) / 1000000));
}

bool sw_watch_greet(const struct sw_watch *watch, struct sw_watch_peer *peer, int64_t ms) {
    SW_HANDLES_ERRORS();
    const int64_t deadline_ns = sw_now_ns() + ms * INT64_C(1000000);
    struct sw_watch_token nonce;
    if (sw_watch_token_make(&nonce) != SW_OK)
        return false;
    *peer = (struct sw_watch_peer){.socket = peer->socket, .nonce = nonce};
    sw_watch_send(watch, peer, SW_NOTE_HELLO, NULL);
    if (!receive_within(watch, peer, ms) || peer->incoming.kind != SW_NOTE_CHALLENGE)
        return false;
    const struct sw_watch_token of_first = peer->incoming.nonce;
    const struct sw_watch_token proof = sw_watch_prove(&watch->key, SW_PROOF_OF_FIRST, &nonce, &of_first);
    if (memcmp(&proof, &peer->incoming.token, sizeof proof) != 0)
        return false;
    peer->token = sw_watch_prove(&watch->key, SW_PROOF_OF_CONNECTION, &nonce, &of_first);
    peer->nonce = (struct sw_watch_token){0};
    peer->greeted = true;
    sw_watch_send(watch, peer, SW_NOTE_PROOF, NULL);
    return receive_within(watch, peer, ms_until(deadline_ns, ms)) && peer->incoming.kind == SW_NOTE_WELCOME;
}

static sw_status connect_to_first(struct sw_watch *watch, const struct offer *offer, bool may_share) {
    struct sw_watch_peer *peer = &watch->peers[0];
    const int64_t deadline_ns = sw_now_ns() + offer->ms * INT64_C(1000000);
    char last[INET6_ADDRSTRLEN] = "?";
    int port = 0;
    for (int i = 0; i < offer->count && ms_until(deadline_ns, 1) > 0; i++) {
        const struct in6_addr *address = &offer->addresses[i];
        if (sw_watch_is_loopback(address) && !may_share)
            continue;
        port = offer->ports[i];
        sw_watch_show_address(address, last);
        peer->socket = connect_within(address, port, ms_until(deadline_ns, CONNECT_MS));
        if (peer->socket < 0)
            continue;
        setsockopt(peer->socket, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        if (sw_watch_greet(watch, peer, ms_until(deadline_ns, ANSWER_MS))) {
            peer->last = peer->incoming;
            return SW_OK;
        }
        close(peer->socket);
        peer->socket = -1;
    }
    return sw_fail(SW_ERR_IO,
                   "rank %d on %s cannot reach rank 0's watch at port %d of %s%s; the hosts of a job must be "
                   "able to reach each other by TCP",
                   watch->rank, watch->own.host, port, last, offer->count > 1 ? " or its other addresses" : "");
}

static sw_status broadcast(const struct sw_watch *watch, const char *what, void *data, size_t bytes) {
    struct sw_comm_request *request;
    SW_TRY(sw_comm_broadcast(
        watch->comm, &(struct sw_comm_broadcast){.what = what, .data = data, .bytes = (int64_t)bytes}, &request));
    return sw_comm_wait(request);
}

/* Gives rank 0 the answers of the others; `all` receives them, in the order of the ranks. */
static sw_status gather_answers(const struct sw_watch *watch, const struct sw_watch_answer *own,
                                struct sw_watch_answer *all, int64_t *bounds) {
    struct sw_comm_request *request;
    bounds[0] = 0;
    for (int rank = 1; rank <= watch->ranks; rank++)
        bounds[rank] = (int64_t)sizeof *own;
    SW_TRY(sw_comm_exchange(watch->comm,
                            &(struct sw_comm_exchange){
                                .what = "addresses of rank 0 in use", .data = own, .bounds_bytes = bounds, .to = all},
                            &request));
    return sw_comm_wait(request);
}

/* Connects once, as offer->reach says where rank 0 has set it. */
static sw_status connect_once(struct sw_watch *watch, const struct sw_watch_network *first, const bool *used,
                              bool may_share, struct offer *offer) {
    struct sw_watch_listeners listeners = {0};
    const sw_status listening = watch->rank == 0 ? begin_listening(watch, first, used, offer, &listeners) : SW_OK;
    /* Where rank 0 cannot listen, the others are told no address, and fail too. */
    sw_status status = broadcast(watch, "the watch's address", offer, sizeof *offer);
    watch->key = offer->key;
    if (status == SW_OK && watch->rank > 0)
        status = connect_to_first(watch, offer, may_share);
    else if (status == SW_OK)
        status = listening == SW_OK ? sw_watch_accept(watch, &listeners, offer->ms) : listening;
    close_listeners(&listeners);
    return status;
}

static void disconnect(struct sw_watch *watch) {
    for (int i = 0; i < watch->peer_count; i++) {
        if (watch->peers[i].socket >= 0)
            close(watch->peers[i].socket);
        watch->peers[i] = (struct sw_watch_peer){.socket = -1};
    }
}

/* Connects by the addresses that are used; what they are follows from the kernels' routes, and those may be wrong, or a
 * firewall may stand between. Then rank 0 listens on all. */
static sw_status connect_all(struct sw_watch *watch, const struct sw_watch_network *first, const bool *used,
                             bool may_share, struct offer *offer) {
    sw_status status = connect_once(watch, first, used, may_share, offer);
    if (offer->reach != SW_REACH_USED)
        return status;
    bool everywhere = status == SW_OK;
    SW_TRY(sw_comm_all_true(watch->comm, "rank 0 is reached", &everywhere));
    if (everywhere)
        return SW_OK;
    if (watch->rank == 0)
        sw_log_warn(
            "not every rank has reached rank 0 within %.3g s by the addresses that routes name, so it listens on "
            "all of its addresses until every rank has connected; if a firewall stands between the ranks, allow "
            "them TCP",
            (double)offer->ms / 1e3);
    sw_error_clear();
    disconnect(watch);
    offer->reach = SW_REACH_ALL;
    return connect_once(watch, first, used, may_share, offer);
}

sw_status sw_watch_connect(struct sw_watch *watch) {
    struct sw_watch_network own, first;
    struct sw_watch_answer answer;
    struct offer offer = {0};
    bool used[SW_WATCH_ADDRESSES] = {0};
    struct sw_watch_answer *answers = calloc((size_t)(watch->rank == 0 ? watch->peer_count : 1), sizeof *answers);
    int64_t *bounds = calloc((size_t)watch->ranks + 1, sizeof *bounds);
    sw_status status = SW_OK;
    if (answers == NULL || bounds == NULL)
        SW_TRY_GOTO(sw_fail(SW_ERR_NOMEM, "no memory to connect the ranks' watches"), done);
    if (watch->rank == 0)
        SW_TRY_GOTO(sw_watch_token_make(&offer.key), done);
    sw_watch_read_network(&own);
    first = own;
    SW_TRY_GOTO(broadcast(watch, "rank 0's network", &first, sizeof first), done);
    sw_watch_answer(&first, &own, &answer);
    SW_TRY_GOTO(gather_answers(watch, &answer, answers, bounds), done);
    if (watch->rank == 0)
        offer.reach = sw_watch_choose(&own, answers, watch->peer_count, used);
    status = connect_all(watch, &first, used, sw_watch_same_network(&first, &own), &offer);
done:
    free(answers);
    free(bounds);
    return status;
}
