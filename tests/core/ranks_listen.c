/* Notes at which addresses a job's watches listen: this program's own listen() and connect() stand before the C
 * library's. */
#include "core/ranks/watch.h"
#include "tests/core/ranks.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>

static _Atomic bool connecting; /* the watches are, and MPI is not */
static _Atomic int refusals;    /* how many connections are still refused */

int listen(int fd, int backlog) {
    struct sockaddr_storage at = {0};
    socklen_t bytes = sizeof at;
    char text[INET6_ADDRSTRLEN] = "";
    if (connecting && getsockname(fd, (struct sockaddr *)&at, &bytes) == 0) {
        const void *address = at.ss_family == AF_INET ? (void *)&((struct sockaddr_in *)&at)->sin_addr
                                                      : (void *)&((struct sockaddr_in6 *)&at)->sin6_addr;
        fprintf(stderr, "listens on %s\n", inet_ntop(at.ss_family, address, text, sizeof text));
    }
    return (int)syscall(SYS_listen, fd, backlog);
}

/* A firewall on the way of the first connections. Those of datagrams only ask for a route. */
int connect(int fd, __CONST_SOCKADDR_ARG to, socklen_t bytes) {
    int kind = 0;
    socklen_t kind_bytes = sizeof kind;
    if (connecting && getsockopt(fd, SOL_SOCKET, SO_TYPE, &kind, &kind_bytes) == 0 && kind == SOCK_STREAM &&
        refusals-- > 0) {
        errno = ECONNREFUSED;
        return -1;
    }
    return (int)syscall(SYS_connect, fd, to.__sockaddr__, bytes);
}

void ranks_show_listeners(struct sw_comm *comm, int refused_rank, int refused) {
    const struct sw_watch_spec spec = {.rank_timeout_ns = INT64_C(4000000000)};
    struct sw_watch *watch = NULL;
    refusals = sw_comm_identity(comm)->rank == refused_rank ? refused : 0;
    connecting = true;
    RANKS_REQUIRE(sw_watch_open(comm, &spec, &watch) == SW_OK, "watch");
    connecting = false;
    RANKS_REQUIRE(sw_comm_barrier(comm, "all are connected") == SW_OK, "barrier");
    sw_watch_close(watch);
}
