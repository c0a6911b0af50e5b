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
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum {
    ADDRESSES = 16,
    CONNECT_MS = 2000, /* to connect to one address */
    ANSWER_MS = 5000,  /* for the first note of whoever has connected */
    ALL_MS = 30000,    /* for all ranks to connect */
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

static sw_status begin_listening(int ranks, struct offer *offer, int *out) {
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT};
    struct sockaddr_in four = {.sin_family = AF_INET};
    socklen_t bytes = sizeof six;
    bool bound = false;
    /* Both kinds of address where there are both. */
    int listener = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener >= 0) {
        setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &(int){0}, sizeof(int));
        bound = bind(listener, (struct sockaddr *)&six, sizeof six) == 0;
    }
    if (!bound) {
        if (listener >= 0)
            close(listener);
        listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        bound = listener >= 0 && bind(listener, (struct sockaddr *)&four, sizeof four) == 0;
    }
    /* The port stands at one place in both. */
    static_assert(offsetof(struct sockaddr_in6, sin6_port) == offsetof(struct sockaddr_in, sin_port), "ports differ");
    if (!bound || listen(listener, ranks) != 0 || getsockname(listener, (struct sockaddr *)&six, &bytes) != 0) {
        const int error = errno;
        if (listener >= 0)
            close(listener);
        return sw_fail(SW_ERR_IO, "rank 0 cannot listen for the other ranks' watches: %s", strerror(error));
    }
    offer->port = ntohs(six.sin6_port);
    list_addresses(offer, AF_INET);
    list_addresses(offer, AF_INET6);
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

/* Accepts one connection, and closes it where it is a stranger's and not a rank's. */
static void accept_one(struct sw_watch *watch, int listener, int *connected) {
    struct sw_watch_peer peer = {.socket = accept4(listener, NULL, NULL, SOCK_CLOEXEC)};
    if (peer.socket < 0)
        return;
    const bool rank = receive_within(watch, &peer, ANSWER_MS) && peer.incoming.kind == SW_NOTE_HELLO &&
                      peer.incoming.rank > 0 && watch->peers[peer.incoming.rank - 1].socket < 0;
    if (!rank) {
        close(peer.socket);
        return;
    }
    setsockopt(peer.socket, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    peer.rank = peer.incoming.rank;
    peer.last = peer.incoming;
    watch->peers[peer.rank - 1] = peer;
    sw_watch_send(watch, &watch->peers[peer.rank - 1], SW_NOTE_WELCOME, NULL);
    ++*connected;
}

static sw_status accept_all(struct sw_watch *watch, int listener) {
    const int64_t deadline_ns = sw_now_ns() + ALL_MS * INT64_C(1000000);
    int connected = 0;
    while (connected < watch->peer_count && sw_now_ns() < deadline_ns) {
        struct pollfd wait = {.fd = listener, .events = POLLIN};
        if (poll(&wait, 1, CONNECT_MS) > 0)
            accept_one(watch, listener, &connected);
    }
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

sw_status sw_watch_connect(struct sw_watch *watch) {
    struct offer offer = {0};
    int listener = -1;
    struct sw_comm_request *request;
    sw_status status = SW_OK, listening = SW_OK;
    if (watch->rank == 0) {
        if (getrandom(offer.token, sizeof offer.token, 0) != (ssize_t)sizeof offer.token)
            return sw_fail(SW_ERR_IO, "the system gives no random numbers: %s", strerror(errno));
        listening = begin_listening(watch->ranks, &offer, &listener);
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
        status = listening == SW_OK ? accept_all(watch, listener) : listening;
    else
        status = connect_to_first(watch, &offer);
done:
    if (listener >= 0)
        close(listener);
    return status;
}
