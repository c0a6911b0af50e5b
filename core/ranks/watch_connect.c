/* How the ranks' watches find each other: rank 0 listens, the comm tells the others where. */
#include "core/clock.h"
#include "core/ranks/watch_private.h"
#include "core/size.h"
#include "core/system_file.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum {
    ADDRESSES = 16,
    CONNECT_MS = 2000, /* to connect to one address */
    ANSWER_MS = 5000,  /* for the first note of whoever has connected */
    ALL_MS = 30000,    /* for all ranks to connect */
    STRANGERS = 64,    /* connections that have said nothing yet */
};

/* Where rank 0 listens; numeric addresses. */
struct offer {
    uint64_t token[SW_WATCH_TOKENS];
    char addresses[ADDRESSES][INET6_ADDRSTRLEN];
    int32_t count, port;
    char boot[SW_COMM_NAME_CHARS];
};

static void read_boot(char *out, size_t chars) {
    (void)sw_system_line("", out, chars, "/proc/sys/kernel/random/boot_id");
}

static bool is_loopback(const char *address) {
    return strcmp(address, "::1") == 0 || strncmp(address, "127.", 4) == 0;
}

static void list_addresses(struct offer *offer, int family) {
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) != 0)
        return;
    for (const struct ifaddrs *one = all; one != NULL && offer->count < ADDRESSES; one = one->ifa_next) {
        if (one->ifa_addr == NULL || one->ifa_addr->sa_family != family || !(one->ifa_flags & IFF_UP))
            continue;
        const size_t bytes = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
        char *text = offer->addresses[offer->count];
        /* Addresses of one link need its name, which differs from machine to machine. */
        if (getnameinfo(one->ifa_addr, (socklen_t)bytes, text, INET6_ADDRSTRLEN, NULL, 0, NI_NUMERICHOST) == 0 &&
            strchr(text, '%') == NULL)
            offer->count++;
    }
    freeifaddrs(all);
}

/* Returns a socket that is bound to a port of the loopback address, which no other machine can reach, or -1. */
static int bind_loopback(void) {
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (made >= 0 && bind(made, (struct sockaddr *)&four, sizeof four) == 0)
        return made;
    if (made >= 0)
        close(made);
    return -1;
}

/* Returns a socket that is bound to a port of every address, of both kinds where there are both, or -1. */
static int bind_all(void) {
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT};
    struct sockaddr_in four = {.sin_family = AF_INET};
    int made = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (made >= 0) {
        setsockopt(made, IPPROTO_IPV6, IPV6_V6ONLY, &(int){0}, sizeof(int));
        if (bind(made, (struct sockaddr *)&six, sizeof six) == 0)
            return made;
        close(made);
    }
    made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (made >= 0 && bind(made, (struct sockaddr *)&four, sizeof four) == 0)
        return made;
    if (made >= 0)
        close(made);
    return -1;
}

/* Listens for the other ranks. `together`: all ranks share one loopback address. */
static sw_status begin_listening(int ranks, bool together, struct offer *offer, int *out) {
    struct sockaddr_in6 address;
    socklen_t bytes = sizeof address;
    int listener = together ? bind_loopback() : -1;
    const bool is_loopback_only = listener >= 0;
    if (listener < 0)
        listener = bind_all();
    /* The port stands at one place in addresses of both kinds. */
    static_assert(offsetof(struct sockaddr_in6, sin6_port) == offsetof(struct sockaddr_in, sin_port), "ports differ");
    if (listener < 0 || listen(listener, ranks) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &bytes) != 0) {
        const int error = errno;
        if (listener >= 0)
            close(listener);
        return sw_fail(SW_ERR_IO, "rank 0 cannot listen for the other ranks' watches: %s", strerror(error));
    }
    offer->port = ntohs(address.sin6_port);
    if (is_loopback_only) {
        snprintf(offer->addresses[offer->count++], INET6_ADDRSTRLEN, "127.0.0.1");
    } else {
        list_addresses(offer, AF_INET);
        list_addresses(offer, AF_INET6);
    }
    read_boot(offer->boot, sizeof offer->boot);
    *out = listener;
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

/* Connections whose first note has not come. Anyone may have made them. */
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

/* Reads what a connection has sent. Once its first note is there, it becomes a rank's, or is closed. */
static void hear(struct sw_watch *watch, struct sw_watch_peer *peer, int64_t until_ns, int *connected) {
    const int got = sw_watch_receive(watch, peer);
    if (got == 0 && sw_now_ns() < until_ns)
        return;
    const struct sw_note *note = &peer->incoming;
    const bool is_rank =
        got == 1 && note->kind == SW_NOTE_HELLO && note->rank > 0 && watch->peers[note->rank - 1].socket < 0;
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
static void accept_ranks(struct sw_watch *watch, int listener, struct strangers *strangers) {
    enum { TURN_MS = 100 };
    const int64_t deadline_ns = sw_now_ns() + ALL_MS * INT64_C(1000000);
    struct pollfd waits[STRANGERS + 1];
    int connected = 0;
    while (connected < watch->peer_count && sw_now_ns() < deadline_ns) {
        for (int i = 0; i < STRANGERS; i++)
            waits[i] = (struct pollfd){.fd = strangers->peer[i].socket, .events = POLLIN};
        waits[STRANGERS] = (struct pollfd){.fd = listener, .events = POLLIN};
        (void)poll(waits, STRANGERS + 1, TURN_MS);
        for (int i = 0; i < STRANGERS; i++)
            if (strangers->peer[i].socket >= 0)
                hear(watch, &strangers->peer[i], strangers->until_ns[i], &connected);
        if (waits[STRANGERS].revents != 0)
            accept_one(strangers, listener);
    }
}

sw_status sw_watch_accept(struct sw_watch *watch, int listener) {
    struct strangers *strangers = malloc(sizeof *strangers);
    if (strangers == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to connect the ranks' watches");
    for (int i = 0; i < STRANGERS; i++)
        strangers->peer[i].socket = -1;
    accept_ranks(watch, listener, strangers);
    for (int i = 0; i < STRANGERS; i++)
        if (strangers->peer[i].socket >= 0)
            close(strangers->peer[i].socket);
    free(strangers);
    for (int i = 0; i < watch->peer_count; i++)
        if (watch->peers[i].socket < 0)
            return sw_fail(
                SW_ERR_IO,
                "rank %d has not connected to rank 0's watch within %d s; the hosts of a job must be able to "
                "reach each other by TCP",
                i + 1, ALL_MS / 1000);
    return SW_OK;
}

/* Returns a connection to the address, made within the time, or -1. */
static int connect_within(const char *address, int port, int ms) {
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    struct addrinfo *found = NULL;
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    if (getaddrinfo(address, service, &hints, &found) != 0)
        return -1;
    int made = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int error = 0;
    socklen_t bytes = sizeof error;
    if (made >= 0 && connect(made, found->ai_addr, found->ai_addrlen) != 0) {
        struct pollfd wait = {.fd = made, .events = POLLOUT};
        if (errno != EINPROGRESS || poll(&wait, 1, ms) <= 0 ||
            getsockopt(made, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0 || error != 0) {
            close(made);
            made = -1;
        }
    }
    freeaddrinfo(found);
    return made;
}

static sw_status connect_to_first(struct sw_watch *watch, const struct offer *offer) {
    char boot[SW_COMM_NAME_CHARS];
    read_boot(boot, sizeof boot);
    struct sw_watch_peer *peer = &watch->peers[0];
    for (int i = 0; i < offer->count; i++) {
        if (is_loopback(offer->addresses[i]) && strncmp(boot, offer->boot, sizeof boot) != 0)
            continue;
        peer->socket = connect_within(offer->addresses[i], offer->port, CONNECT_MS);
        if (peer->socket < 0)
            continue;
        setsockopt(peer->socket, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        sw_watch_send(watch, peer, SW_NOTE_HELLO, NULL);
        peer->incoming_bytes = 0;
        if (receive_within(watch, peer, ANSWER_MS) && peer->incoming.kind == SW_NOTE_WELCOME) {
            peer->last = peer->incoming;
            return SW_OK;
        }
        close(peer->socket);
        peer->socket = -1;
    }
    return sw_fail(SW_ERR_IO,
                   "rank %d on %s cannot reach rank 0's watch at port %d of %s%s; the hosts of a job must be "
                   "able to reach each other by TCP",
                   watch->rank, watch->own.host, offer->port,
                   offer->count > 0 ? offer->addresses[offer->count - 1] : "?",
                   offer->count > 1 ? " or its other addresses" : "");
}

/* The network that a process sees: on one machine, containers may have several. */
struct network {
    char boot[SW_COMM_NAME_CHARS], name[SW_COMM_NAME_CHARS];
};

/* Finds whether all ranks see rank 0's loopback address. */
static sw_status find_together(struct sw_watch *watch, bool *out) {
    struct network own = {0}, first;
    struct sw_comm_request *request;
    read_boot(own.boot, sizeof own.boot);
    *out = readlink("/proc/self/ns/net", own.name, sizeof own.name - 1) > 0 && own.boot[0] != '\0';
    first = own;
    SW_TRY(sw_comm_broadcast(
        watch->comm, &(struct sw_comm_broadcast){.what = "rank 0's network", .data = &first, .bytes = sizeof first},
        &request));
    SW_TRY(sw_comm_wait(request));
    *out = *out && memcmp(&first, &own, sizeof own) == 0;
    return sw_comm_all_true(watch->comm, "the ranks share a network", out);
}

sw_status sw_watch_connect(struct sw_watch *watch) {
    bool together;
    struct offer offer = {0};
    int listener = -1;
    struct sw_comm_request *request;
    sw_status status = SW_OK, listening = SW_OK;
    SW_TRY(find_together(watch, &together));
    if (watch->rank == 0) {
        if (getrandom(offer.token, sizeof offer.token, 0) != (ssize_t)sizeof offer.token)
            return sw_fail(SW_ERR_IO, "the system gives no random numbers: %s", strerror(errno));
        listening = begin_listening(watch->ranks, together, &offer, &listener);
    }
    /* Where rank 0 cannot listen, the others are told no address, and fail too. */
    SW_TRY_GOTO(sw_comm_broadcast(
                    watch->comm,
                    &(struct sw_comm_broadcast){.what = "the watch's address", .data = &offer, .bytes = sizeof offer},
                    &request),
                done);
    SW_TRY_GOTO(sw_comm_wait(request), done);
    memcpy(watch->own.token, offer.token, sizeof offer.token);
    if (watch->rank == 0)
        status = listening == SW_OK ? sw_watch_accept(watch, listener) : listening;
    else
        status = connect_to_first(watch, &offer);
done:
    if (listener >= 0)
        close(listener);
    return status;
}
