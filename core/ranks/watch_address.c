/* The addresses of rank 0 by which the other ranks reach it. Both sides ask their kernels, which send nothing for that.
 */
#include "core/ranks/watch_private.h"
#include "core/system_file.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAPPED_BITS = 96 /* before the bits of an IPv4 address */ };

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

socklen_t sw_watch_socket_address(const struct in6_addr *address, int port, struct sockaddr_storage *out) {
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

void sw_watch_show_address(const struct in6_addr *address, char out[INET6_ADDRSTRLEN]) {
    const bool four = IN6_IS_ADDR_V4MAPPED(address);
    if (inet_ntop(four ? AF_INET : AF_INET6, &address->s6_addr[four ? 12 : 0], out, INET6_ADDRSTRLEN) == NULL)
        snprintf(out, INET6_ADDRSTRLEN, "?");
}

bool sw_watch_is_loopback(const struct in6_addr *address) {
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

/* Tells whether an item of Open MPI's lists, an interface's name or "ADDRESS/BITS", has this address. */
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

/* Tells whether the user has MPI use this address: mpirun hands --mca on to the ranks in these variables. */
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
        /* Addresses of one link need its name, which differs from machine to machine. */
        if (IN6_IS_ADDR_LINKLOCAL(&address))
            continue;
        network->preferred[network->count] = is_preferred(one->ifa_name, &address);
        network->prefix_bits[network->count] = (uint8_t)prefix_bits(one->ifa_netmask, family);
        network->addresses[network->count++] = address;
    }
}

void sw_watch_read_network(struct sw_watch_network *out) {
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

/* Returns where in the network's list the address is, or -1. */
static int find(const struct sw_watch_network *network, const struct in6_addr *address) {
    for (int i = 0; i < network->count; i++)
        if (IN6_ARE_ADDR_EQUAL(&network->addresses[i], address))
            return i;
    return -1;
}

/* Returns the address of this process's own from which its kernel would send to `to`, or the unspecified one. */
static struct in6_addr source_towards(const struct in6_addr *to) {
    enum { ANY_PORT = 9 };
    struct sockaddr_storage address;
    socklen_t bytes = sw_watch_socket_address(to, ANY_PORT, &address);
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

/* Tells whether the address is on a link of this network, by the prefix of `source`, which is one of its own. */
static bool is_near(const struct sw_watch_network *own, const struct in6_addr *source, const struct in6_addr *address) {
    const int at = find(own, source);
    return at >= 0 && share_bits(source, address, own->prefix_bits[at]);
}

void sw_watch_answer(const struct sw_watch_network *first, const struct sw_watch_network *own,
                     struct sw_watch_answer *out) {
    enum { REACHED = 1, NEAR = 2, PREFERRED = 4 };
    int merit[SW_WATCH_ADDRESSES] = {0}, best = 0;
    *out = (struct sw_watch_answer){.shares = own->boot[0] != '\0' && own->name[0] != '\0' &&
                                              sw_watch_same_network(first, own)};
    for (int i = 0; i < first->count && !out->shares; i++) {
        const struct in6_addr *address = &first->addresses[i];
        /* An address that this machine has itself, such as that of a container bridge, does not lead to rank 0. */
        if (sw_watch_is_loopback(address) || find(own, address) >= 0)
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

bool sw_watch_same_network(const struct sw_watch_network *one, const struct sw_watch_network *other) {
    return memcmp(one->boot, other->boot, sizeof one->boot) == 0 &&
           memcmp(one->name, other->name, sizeof one->name) == 0;
}

/* Marks the addresses of rank 0 by which this rank reaches it and is reached from there. Returns false if none is. */
static bool mark_used(const struct sw_watch_network *own, const struct sw_watch_answer *answer, bool *used) {
    bool found = false;
    struct in6_addr asked = IN6ADDR_ANY_INIT, back = IN6ADDR_ANY_INIT;
    for (int i = 0; i < own->count; i++) {
        const struct in6_addr *source = &answer->sources[i];
        if (IN6_IS_ADDR_UNSPECIFIED(source))
            continue;
        /* Most ranks reach all addresses from one of theirs, and thousands of ranks may have answered. */
        if (!IN6_ARE_ADDR_EQUAL(source, &asked))
            back = source_towards(source);
        asked = *source;
        if (!IN6_ARE_ADDR_EQUAL(&back, &own->addresses[i]))
            continue;
        used[i] = found = true;
    }
    return found;
}

sw_watch_reach sw_watch_choose(const struct sw_watch_network *own, const struct sw_watch_answer *answers, int count,
                               bool used[SW_WATCH_ADDRESSES]) {
    bool all_share = true;
    for (int i = 0; i < count; i++) {
        all_share = all_share && answers[i].shares;
        /* Ranks of one machine follow each other and give one answer: the kernel is asked once for all of them. */
        if (answers[i].shares || (i > 0 && memcmp(&answers[i], &answers[i - 1], sizeof *answers) == 0))
            continue;
        if (!mark_used(own, &answers[i], used))
            return SW_REACH_ALL;
    }
    return all_share ? SW_REACH_LOOPBACK : SW_REACH_USED;
}
