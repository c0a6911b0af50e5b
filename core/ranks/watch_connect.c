/* How the ranks' watches find each other: rank 0 listens, and the comm tells the others where.
 *
 * The connections carry the order to end the job, so a stranger must not be able to make one: both ends prove by
 * SipHash that they know a key that only the comm has carried. The key itself is never sent over these sockets.
 *
 * Rank 0 listens only on addresses by which the kernels say that it reaches the others, the loopback if all share a
 * machine. An open port on every address of a login node would invite strangers; it is the last resort, for networks
 * that the routes describe wrongly. */
#include "core/clock.h"
#include "core/log.h"
#include "core/machine.h"
#include "core/ranks/watch_private.h"
#include "core/size.h"
#include "core/status.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

/* Sends and receives notes over a connection, and proves to the other end that this one knows the job's key. */

static uint64_t rotate(uint64_t word, int bits) {
    return word << bits | word >> (64 - bits);
}

static void mix(uint64_t v[4], int rounds) {
    for (; rounds > 0; rounds--) {
        v[0] += v[1];
        v[2] += v[3];
        v[1] = rotate(v[1], 13) ^ v[0];
        v[3] = rotate(v[3], 16) ^ v[2];
        v[0] = rotate(v[0], 32) + v[3];
        v[2] += v[1];
        v[1] = rotate(v[1], 17) ^ v[2];
        v[3] = rotate(v[3], 21) ^ v[0];
        v[2] = rotate(v[2], 32);
    }
}

/* SipHash-2-4 (Aumasson and Bernstein, 2012) of words in this machine's byte order, since all ranks run the same
 * program. */
uint64_t sw_watch_siphash(const struct sw_watch_token *key, const uint64_t *words, int count) {
    const uint64_t k0 = key->half[0], k1 = key->half[1];
    uint64_t v[] = {k0 ^ 0x736f6d6570736575, k1 ^ 0x646f72616e646f6d, k0 ^ 0x6c7967656e657261, k1 ^ 0x7465646279746573};
    for (int i = 0; i <= count; i++) {
        const uint64_t word = i < count ? words[i] : (uint64_t)count * sizeof *words << 56;
        v[3] ^= word;
        mix(v, 2);
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    mix(v, 4);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* Returns a proof for the nonces of a rank and of rank 0: SipHash-2-4 of both with the key, which it does not reveal.
 */
static struct sw_watch_token watch_prove(const struct sw_watch_token *key, sw_watch_proof proof,
                                         const struct sw_watch_token *of_rank, const struct sw_watch_token *of_first) {
    struct sw_watch_token out;
    for (uint64_t half = 0; half < 2; half++) {
        const uint64_t words[] = {2 * (uint64_t)proof + half, of_rank->half[0], of_rank->half[1], of_first->half[0],
                                  of_first->half[1]};
        out.half[half] = sw_watch_siphash(key, words, sizeof words / sizeof words[0]);
    }
    return out;
}

/* Makes a nonce. */
static sw_status watch_token_make(struct sw_watch_token *out) {
    return getrandom(out, sizeof *out, 0) == (ssize_t)sizeof *out
               ? SW_OK
               : sw_fail(SW_ERR_IO, "the system gives no random numbers: %s", strerror(errno));
}

void sw_watch_send(const struct sw_watch *watch, struct sw_watch_peer *peer, sw_note_kind kind, const char *text) {
    if (peer->socket < 0)
        return;
    struct sw_note note = watch->own;
    note.kind = kind;
    note.token = peer->token;
    note.nonce = peer->nonce;
    memset(note.text, 0, sizeof note.text);
    if (text != NULL)
        memcpy(note.text, text, strnlen(text, sizeof note.text - 1));
    const ssize_t sent = send(peer->socket, &note, sizeof note, MSG_NOSIGNAL | MSG_DONTWAIT);
    /* After half a note, the following ones would be misread. */
    if (sent >= 0 && sent < (ssize_t)sizeof note)
        shutdown(peer->socket, SHUT_WR);
}

/* Returns whether a note, which comes from outside, can be printed and compared. */
static bool is_sound(const struct sw_watch *watch, const struct sw_watch_peer *peer) {
    const struct sw_note *note = &peer->incoming;
    const uint64_t differs = (note->token.half[0] ^ peer->token.half[0]) | (note->token.half[1] ^ peer->token.half[1]);
    if (peer->greeted ? differs != 0 : note->kind > SW_NOTE_CHALLENGE)
        return false;
    if (note->kind < 0 || note->kind >= SW_NOTE_KINDS || note->rank < 0 || note->rank >= watch->ranks)
        return false;
    for (int lane = 0; lane < SW_WATCH_LANES; lane++)
        if (memchr(note->lanes[lane].what, '\0', SW_WATCH_WHAT_CHARS) == NULL)
            return false;
    return memchr(note->host, '\0', sizeof note->host) != NULL &&
           memchr(note->group, '\0', sizeof note->group) != NULL && memchr(note->text, '\0', sizeof note->text) != NULL;
}

int sw_watch_receive(const struct sw_watch *watch, struct sw_watch_peer *peer) {
    char *at = (char *)&peer->incoming;
    const ssize_t got =
        recv(peer->socket, at + peer->incoming_bytes, sizeof peer->incoming - peer->incoming_bytes, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (got <= 0)
        return -1;
    peer->incoming_bytes += (size_t)got;
    if (peer->incoming_bytes < sizeof peer->incoming)
        return 0;
    peer->incoming_bytes = 0;
    return is_sound(watch, peer) ? 1 : -1;
}

/* The addresses by which the other ranks reach rank 0. Both sides ask only their kernels, which send nothing. */

enum { MAPPED_BITS = 96 /* bits before an IPv4 address */ };

static struct in6_addr mapped(struct in_addr four) {
    struct in6_addr six = {.s6_addr = {[10] = 0xff, [11] = 0xff}};
    memcpy(&six.s6_addr[12], &four, sizeof four);
    return six;
}

static struct in6_addr address_of(const struct sockaddr *from) {
    if (from->sa_family == AF_INET)
        return mapped(((const struct sockaddr_in *)(const void *)from)->sin_addr);
    return ((const struct sockaddr_in6 *)(const void *)from)->sin6_addr;
}

/* Writes the address with a port as sockets take it, and returns its bytes. */
static socklen_t watch_socket_address(const struct in6_addr *address, int port, struct sockaddr_storage *out) {
    *out = (struct sockaddr_storage){0};
    if (!IN6_IS_ADDR_V4MAPPED(address)) {
        struct sockaddr_in6 *six = (struct sockaddr_in6 *)out;
        *six =
            (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port), .sin6_addr = *address};
        return sizeof *six;
    }
    struct sockaddr_in *four = (struct sockaddr_in *)out;
    *four = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    memcpy(&four->sin_addr, &address->s6_addr[12], sizeof four->sin_addr);
    return sizeof *four;
}

static void watch_show_address(const struct in6_addr *address, char out[INET6_ADDRSTRLEN]) {
    const bool four = IN6_IS_ADDR_V4MAPPED(address);
    if (inet_ntop(four ? AF_INET : AF_INET6, &address->s6_addr[four ? 12 : 0], out, INET6_ADDRSTRLEN) == NULL)
        snprintf(out, INET6_ADDRSTRLEN, "?");
}

static bool watch_is_loopback(const struct in6_addr *address) {
    return IN6_IS_ADDR_LOOPBACK(address) || (IN6_IS_ADDR_V4MAPPED(address) && address->s6_addr[12] == 127);
}

static int prefix_bits(const struct sockaddr *mask, int family) {
    if (mask == NULL)
        return CHAR_BIT * (int)sizeof(struct in6_addr);
    struct in6_addr bits;
    if (family == AF_INET)
        bits = mapped(((const struct sockaddr_in *)(const void *)mask)->sin_addr);
    else
        bits = ((const struct sockaddr_in6 *)(const void *)mask)->sin6_addr;
    int count = family == AF_INET ? MAPPED_BITS : 0;
    while (count < CHAR_BIT * (int)sizeof bits && (bits.s6_addr[count / 8] >> (7 - count % 8) & 1))
        count++;
    return count;
}

static bool share_bits(const struct in6_addr *one, const struct in6_addr *other, int bits) {
    for (int i = 0; i < bits; i++)
        if ((one->s6_addr[i / 8] ^ other->s6_addr[i / 8]) >> (7 - i % 8) & 1)
            return false;
    return true;
}

/* Tells whether an item of Open MPI's lists (an interface's name, or "ADDRESS/BITS") matches this address. */
static bool item_has(char *item, const char *interface, const struct in6_addr *address) {
    char *slash = strchr(item, '/');
    if (slash == NULL)
        return strcmp(item, interface) == 0;
    *slash = '\0';
    struct in_addr four;
    struct in6_addr six;
    int bits = atoi(slash + 1);
    if (inet_pton(AF_INET, item, &four) == 1) {
        six = mapped(four);
        bits += MAPPED_BITS;
    } else if (inet_pton(AF_INET6, item, &six) != 1) {
        return false;
    }
    return bits >= 0 && bits <= CHAR_BIT * (int)sizeof six && share_bits(&six, address, bits);
}

static bool list_has(const char *list, const char *interface, const struct in6_addr *address) {
    char items[1024], *rest = NULL;
    snprintf(items, sizeof items, "%s", list);
    for (char *item = strtok_r(items, ",", &rest); item != NULL; item = strtok_r(NULL, ",", &rest))
        if (item_has(item, interface, address))
            return true;
    return false;
}

/* Tells whether the user wants MPI to use this address: mpirun passes --mca to the ranks in these variables. */
static bool is_preferred(const char *interface, const struct in6_addr *address) {
    const char *include = getenv("OMPI_MCA_btl_tcp_if_include"), *exclude = getenv("OMPI_MCA_btl_tcp_if_exclude");
    if (include != NULL && include[0] != '\0')
        return list_has(include, interface, address);
    return exclude == NULL || !list_has(exclude, interface, address);
}

static void list_addresses(struct sw_watch_network *network, const struct ifaddrs *all, int family) {
    for (const struct ifaddrs *one = all; one != NULL && network->count < SW_WATCH_ADDRESSES; one = one->ifa_next) {
        if (one->ifa_addr == NULL || one->ifa_addr->sa_family != family || !(one->ifa_flags & IFF_UP))
            continue;
        const struct in6_addr address = address_of(one->ifa_addr);
        /* Skips link-local addresses: they need an interface's name, which differs from machine to machine. */
        if (IN6_IS_ADDR_LINKLOCAL(&address))
            continue;
        network->preferred[network->count] = is_preferred(one->ifa_name, &address);
        network->prefix_bits[network->count] = (uint8_t)prefix_bits(one->ifa_netmask, family);
        network->addresses[network->count++] = address;
    }
}

static void watch_read_network(struct sw_watch_network *out) {
    struct ifaddrs *all = NULL;
    *out = (struct sw_watch_network){0};
    (void)sw_system_line("", out->boot, sizeof out->boot, "/proc/sys/kernel/random/boot_id");
    if (readlink("/proc/self/ns/net", out->name, sizeof out->name - 1) < 0)
        out->name[0] = '\0';
    if (getifaddrs(&all) != 0)
        return;
    list_addresses(out, all, AF_INET);
    list_addresses(out, all, AF_INET6);
    freeifaddrs(all);
}

/* Returns the address's index in the network's list, or -1. */
static int find(const struct sw_watch_network *network, const struct in6_addr *address) {
    for (int i = 0; i < network->count; i++)
        if (IN6_ARE_ADDR_EQUAL(&network->addresses[i], address))
            return i;
    return -1;
}

/* Returns the own address from which this process's kernel would send to `to`, or the unspecified address. */
static struct in6_addr source_towards(const struct in6_addr *to) {
    enum { ANY_PORT = 9 };
    struct sockaddr_storage address;
    socklen_t bytes = watch_socket_address(to, ANY_PORT, &address);
    struct in6_addr source = IN6ADDR_ANY_INIT;
    const int made = socket(address.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (made < 0)
        return source;
    if (connect(made, (struct sockaddr *)&address, bytes) == 0) {
        bytes = sizeof address;
        if (getsockname(made, (struct sockaddr *)&address, &bytes) == 0)
            source = address_of((struct sockaddr *)&address);
    }
    close(made);
    return source;
}

static bool watch_same_network(const struct sw_watch_network *one, const struct sw_watch_network *other) {
    return memcmp(one->boot, other->boot, sizeof one->boot) == 0 &&
           memcmp(one->name, other->name, sizeof one->name) == 0;
}

/* Tells whether the address is on a link of this network, by the prefix of `source`, one of the network's addresses. */
static bool is_near(const struct sw_watch_network *own, const struct in6_addr *source, const struct in6_addr *address) {
    const int at = find(own, source);
    return at >= 0 && share_bits(source, address, own->prefix_bits[at]);
}

/* Fills in the answer of a rank, whose network is `own`, to the network of rank 0. */
static void fill_answer(const struct sw_watch_network *first, const struct sw_watch_network *own,
                        struct sw_watch_answer *out) {
    enum { REACHED = 1, NEAR = 2, PREFERRED = 4 };
    int merit[SW_WATCH_ADDRESSES] = {0}, best = 0;
    *out = (struct sw_watch_answer){.shares =
                                        own->boot[0] != '\0' && own->name[0] != '\0' && watch_same_network(first, own)};
    for (int i = 0; i < first->count && !out->shares; i++) {
        const struct in6_addr *address = &first->addresses[i];
        /* An address that this machine also has, such as that of a container bridge, does not lead to rank 0. */
        if (watch_is_loopback(address) || find(own, address) >= 0)
            continue;
        out->sources[i] = source_towards(address);
        if (!IN6_IS_ADDR_UNSPECIFIED(&out->sources[i]))
            merit[i] =
                REACHED + (is_near(own, &out->sources[i], address) ? NEAR : 0) + (first->preferred[i] ? PREFERRED : 0);
        best = merit[i] > best ? merit[i] : best;
    }
    for (int i = 0; i < first->count; i++)
        if (merit[i] < best)
            out->sources[i] = in6addr_any;
}

/* Marks the addresses of rank 0 by which this rank reaches it and is reached from there. Returns false if there is
 * none. */
static bool mark_used(const struct sw_watch_network *own, const struct sw_watch_answer *answer, bool *used) {
    bool found = false;
    struct in6_addr asked = IN6ADDR_ANY_INIT, back = IN6ADDR_ANY_INIT;
    for (int i = 0; i < own->count; i++) {
        const struct in6_addr *source = &answer->sources[i];
        if (IN6_IS_ADDR_UNSPECIFIED(source))
            continue;
        /* Most ranks reach all addresses from a single one of theirs, and thousands of ranks may have answered. */
        if (!IN6_ARE_ADDR_EQUAL(source, &asked))
            back = source_towards(source);
        asked = *source;
        if (!IN6_ARE_ADDR_EQUAL(&back, &own->addresses[i]))
            continue;
        used[i] = found = true;
    }
    return found;
}

/* Finds, on rank 0, how the `count` ranks that have answered reach it. `used` must be all false; marks are valid with
 * SW_REACH_USED. */
static sw_watch_reach watch_choose(const struct sw_watch_network *own, const struct sw_watch_answer *answers, int count,
                                   bool used[SW_WATCH_ADDRESSES]) {
    bool all_share = true;
    for (int i = 0; i < count; i++) {
        all_share = all_share && answers[i].shares;
        /* Ranks of one machine are neighbours and give the same answer: the kernel is asked once for all of them. */
        if (answers[i].shares || (i > 0 && memcmp(&answers[i], &answers[i - 1], sizeof *answers) == 0))
            continue;
        if (!mark_used(own, &answers[i], used))
            return SW_REACH_ALL;
    }
    return all_share ? SW_REACH_LOOPBACK : SW_REACH_USED;
}

enum {
    CONNECT_MS = 2000, /* to connect to one address */
    ANSWER_MS = 5000,  /* for the first note on a new connection */
    ALL_MS = 30000,    /* for all ranks to connect */
    USED_MS = 10000,   /* at most, for all to connect by the addresses that seemed to lead to rank 0 */
    STRANGERS = 64,    /* connections that have not said anything yet */
};

/* The addresses at which rank 0 listens, as told to the others. */
struct offer {
    struct sw_watch_token key;
    int64_t ms; /* time limit */
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

/* Listens on an address, on a port that the system chooses. Returns the port, or -1 with errno. */
static int listen_on(const struct in6_addr *address, int ranks, struct sw_watch_listeners *listeners) {
    struct sockaddr_storage at;
    socklen_t bytes = watch_socket_address(address, 0, &at);
    const int made = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (made < 0)
        return -1;
    /* The unspecified IPv6 address includes those of IPv4. */
    if (at.ss_family == AF_INET6)
        setsockopt(made, IPPROTO_IPV6, IPV6_V6ONLY, &(int){0}, sizeof(int));
    /* The port is at the same offset in addresses of both kinds. */
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

/* Listens on the loopback address, which no other machine can reach, or on the used addresses. Returns false if one of
 * them fails. */
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

/* Listens for the other ranks as offer->reach says, or else on every address, and fills the offer. */
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

/* Receives the next note of a connection that may be anyone's. Returns false if none comes in time. */
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

/* Accepts one connection. If too many have said nothing, the one silent longest is closed to make room. */
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
    if (hello->kind != SW_NOTE_HELLO || watch_token_make(&nonce) != SW_OK)
        return false;
    peer->nonce = nonce;
    peer->token = watch_prove(&watch->key, SW_PROOF_OF_FIRST, &hello->nonce, &nonce);
    sw_watch_send(watch, peer, SW_NOTE_CHALLENGE, NULL);
    peer->token = watch_prove(&watch->key, SW_PROOF_OF_CONNECTION, &hello->nonce, &nonce);
    peer->nonce = (struct sw_watch_token){0};
    return peer->greeted = true;
}

/* Reads what a connection has sent. A connection that proves to be a rank's becomes that rank's; one that fails to is
 * closed. */
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

/* Accepts connections and hears them concurrently, so that a silent stranger delays no rank. */
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
    const socklen_t to_bytes = watch_socket_address(address, port, &to);
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
    if (watch_token_make(&nonce) != SW_OK)
        return false;
    *peer = (struct sw_watch_peer){.socket = peer->socket, .nonce = nonce};
    sw_watch_send(watch, peer, SW_NOTE_HELLO, NULL);
    if (!receive_within(watch, peer, ms) || peer->incoming.kind != SW_NOTE_CHALLENGE)
        return false;
    const struct sw_watch_token of_first = peer->incoming.nonce;
    const struct sw_watch_token proof = watch_prove(&watch->key, SW_PROOF_OF_FIRST, &nonce, &of_first);
    if (memcmp(&proof, &peer->incoming.token, sizeof proof) != 0)
        return false;
    peer->token = watch_prove(&watch->key, SW_PROOF_OF_CONNECTION, &nonce, &of_first);
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
        if (watch_is_loopback(address) && !may_share)
            continue;
        port = offer->ports[i];
        watch_show_address(address, last);
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

/* Collects the answers of the other ranks on rank 0; `all` receives them in rank order. */
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

/* Connects once, as offer->reach says; rank 0 has set it. */
static sw_status connect_once(struct sw_watch *watch, const struct sw_watch_network *first, const bool *used,
                              bool may_share, struct offer *offer) {
    struct sw_watch_listeners listeners = {0};
    const sw_status listening = watch->rank == 0 ? begin_listening(watch, first, used, offer, &listeners) : SW_OK;
    /* If rank 0 cannot listen, the others get no address and fail too. */
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

/* Connects by the used addresses. They follow from the kernels' routes, which may be wrong, and a firewall may
 * intervene; rank 0 then listens on all addresses. */
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
        SW_TRY_GOTO(watch_token_make(&offer.key), done);
    watch_read_network(&own);
    first = own;
    SW_TRY_GOTO(broadcast(watch, "rank 0's network", &first, sizeof first), done);
    fill_answer(&first, &own, &answer);
    SW_TRY_GOTO(gather_answers(watch, &answer, answers, bounds), done);
    if (watch->rank == 0)
        offer.reach = watch_choose(&own, answers, watch->peer_count, used);
    status = connect_all(watch, &first, used, watch_same_network(&first, &own), &offer);
done:
    free(answers);
    free(bounds);
    return status;
}
