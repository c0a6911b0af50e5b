#include "tests/core/emulated_nccl_wires.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { MOST_RANKS = 64, RETRIES = 60000, RETRY_US = 1000, POLL_MS = 5 };

struct sw_wires {
    int rank, ranks;
    int socket[MOST_RANKS]; /* by peer; -1: none, as for the rank itself */
};

/* Names without a file vanish with the processes that have them. */
static struct sockaddr_un address_of(const char *name, int rank) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "emulated-nccl-%s-%d", name, rank);
    return address;
}

static int listen_as(const char *name, int rank) {
    const struct sockaddr_un address = address_of(name, rank);
    const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener >= 0 && bind(listener, (const struct sockaddr *)&address, sizeof address) == 0 &&
        listen(listener, MOST_RANKS) == 0)
        return listener;
    close(listener);
    return -1;
}

/* Waits for the other rank to listen. */
static int connect_to(const char *name, int peer, int rank) {
    const struct sockaddr_un address = address_of(name, peer);
    for (int i = 0; i < RETRIES; i++) {
        const int wire = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (wire >= 0 && connect(wire, (const struct sockaddr *)&address, sizeof address) == 0 &&
            send(wire, &rank, sizeof rank, MSG_NOSIGNAL) == (ssize_t)sizeof rank)
            return wire;
        close(wire);
        usleep(RETRY_US);
    }
    return -1;
}

static bool accept_one(struct sw_wires *wires, int listener) {
    int peer = -1;
    const int wire = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (wire < 0)
        return false;
    if (recv(wire, &peer, sizeof peer, MSG_WAITALL) != (ssize_t)sizeof peer || peer <= wires->rank ||
        peer >= wires->ranks || wires->socket[peer] >= 0) {
        close(wire);
        return false;
    }
    wires->socket[peer] = wire;
    return true;
}

struct sw_wires *sw_wires_open(const char *name, int rank, int ranks) {
    struct sw_wires *wires = calloc(1, sizeof *wires);
    const int listener = listen_as(name, rank);
    bool joined = wires != NULL && listener >= 0 && ranks <= MOST_RANKS;
    if (wires == NULL)
        return NULL;
    *wires = (struct sw_wires){.rank = rank, .ranks = ranks};
    memset(wires->socket, -1, sizeof wires->socket);
    for (int peer = 0; joined && peer < rank; peer++) {
        wires->socket[peer] = connect_to(name, peer, rank);
        joined = wires->socket[peer] >= 0;
    }
    for (int later = rank + 1; joined && later < ranks; later++)
        joined = accept_one(wires, listener);
    close(listener);
    if (joined)
        return wires;
    sw_wires_close(wires);
    return NULL;
}

void sw_wires_close(struct sw_wires *wires) {
    for (int peer = 0; peer < MOST_RANKS; peer++)
        if (wires->socket[peer] >= 0)
            close(wires->socket[peer]);
    free(wires);
}

/* Moves as much of a message as goes at once. Returns false where the other rank is gone. */
static bool move_some(const struct sw_wires *wires, struct sw_wire_message *message) {
    const int wire = wires->socket[message->peer];
    while (message->moved < message->bytes) {
        char *at = message->data + message->moved;
        const size_t left = message->bytes - message->moved;
        const ssize_t moved =
            message->receives ? recv(wire, at, left, MSG_DONTWAIT) : send(wire, at, left, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (moved < 0 && (errno == EAGAIN || errno == EINTR))
            return true;
        if (moved <= 0)
            return false;
        message->moved += (size_t)moved;
    }
    return true;
}

/* Tells whether an earlier message of the same pair and way is still under way. */
static bool is_behind(const struct sw_wire_message *messages, int number) {
    for (int i = 0; i < number; i++)
        if (messages[i].peer == messages[number].peer && messages[i].receives == messages[number].receives &&
            messages[i].moved < messages[i].bytes)
            return true;
    return false;
}

sw_wires_outcome sw_wires_move(struct sw_wires *wires, struct sw_wire_message *messages, int count,
                               const _Atomic bool *end) {
    while (!atomic_load(end)) {
        struct pollfd waits[2 * MOST_RANKS];
        nfds_t wait_count = 0;
        for (int i = 0; i < count; i++) {
            if (messages[i].moved == messages[i].bytes || is_behind(messages, i))
                continue;
            if (!move_some(wires, &messages[i]))
                return SW_WIRES_LOST;
            if (messages[i].moved < messages[i].bytes)
                waits[wait_count++] = (struct pollfd){.fd = wires->socket[messages[i].peer],
                                                      .events = messages[i].receives ? POLLIN : POLLOUT};
        }
        if (wait_count == 0)
            return SW_WIRES_DONE;
        poll(waits, wait_count, POLL_MS);
    }
    return SW_WIRES_ENDED;
}
