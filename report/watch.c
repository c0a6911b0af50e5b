/* A responder for one page, not a web server. It speaks as much HTTP/1.1 as a browser needs, and closes each connection
 * after its answer.
 *
 * All users of a machine can connect to its loopback address, so the page has a secret address, connections that send
 * nothing make room for those that do, and one user holds at most half of the connections. A general HTTP library would
 * add a dependency and more surface for a page that is read by one browser. */
#include "report/watch.h"

#include "core/clock.h"
#include "core/status.h"
#include "report/report.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    REQUEST_CHARS = 8192,
    HEAD_CHARS = 512,
    POLL_MS = 200,
    BACKLOG = 64,
    CONNECTIONS = 32,
    CONNECTIONS_OF_USER = 16
};
/* The longest time for a request to arrive, and for its answer to be sent. */
enum { TIMEOUT_MS = 3000 };
/* Making the page takes at most one part in this of the time; a reader reloads at most this often. */
enum { IDLE_PARTS = 20, LEAST_RELOAD_S = 3 };
enum { SECRET_BYTES = 16, SECRET_CHARS = 2 * SECRET_BYTES };

/* A connection, which first sends its request and then gets its answer. */
struct connection {
    int fd;        /* -1: free */
    uint32_t user; /* who made it (user_of) */
    int64_t deadline_ns;
    char request[REQUEST_CHARS]; /* zero-terminated */
    size_t request_chars;
    char *answer; /* NULL: the request is incomplete */
    size_t answer_bytes, sent_bytes;
};

struct server {
    const char *const *folders;
    int count;
    int socket;
    int port;
    char path[SECRET_CHARS + 3]; /* of the page: "/", the secret, "/" */
    int64_t make_ns;             /* how long making the page took last time */
    const volatile sig_atomic_t *stop;
    struct connection connections[CONNECTIONS];
};

struct answer {
    int code;
    const char *reason, *type;
    const char *body;
    size_t bytes;
};

static struct answer plain(int code, const char *reason, const char *text) {
    return (struct answer){
        .code = code, .reason = reason, .type = "text/plain; charset=utf-8", .body = text, .bytes = strlen(text)};
}

/* Returns whether the request names this address as its host. Otherwise a foreign page, whose name was made to resolve
 * to this machine, could read the answer. */
static bool is_for_us(const struct server *server, const char *request) {
    static const char *const names[] = {"127.0.0.1", "localhost"};
    const char *host = strcasestr(request, "\r\nhost:");
    if (host == NULL)
        return false;
    host += strlen("\r\nhost:");
    host += strspn(host, " \t");
    const size_t chars = strcspn(host, " \t\r\n");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char wanted[32];
        const int length = snprintf(wanted, sizeof wanted, "%s:%d", names[i], server->port);
        if (chars == (size_t)length && strncasecmp(host, wanted, chars) == 0)
            return true;
    }
    return false;
}

/* Makes the page, which the caller frees by *out_page. If that fails, the answer is the error's message. */
static struct answer answer_page(struct server *server, char **out_page) {
    const int64_t begin_ns = sw_now_ns();
    const int64_t reload_s = LEAST_RELOAD_S + IDLE_PARTS * server->make_ns / 1000000000;
    size_t bytes = 0;
    const sw_status status = sw_report_make(server->folders, server->count, reload_s, out_page, &bytes);
    server->make_ns = sw_now_ns() - begin_ns;
    if (status == SW_OK)
        return (struct answer){
            .code = 200, .reason = "OK", .type = "text/html; charset=utf-8", .body = *out_page, .bytes = bytes};
    *out_page = strdup(sw_error_message(status));
    sw_error_clear();
    return plain(500, "Internal Server Error", *out_page != NULL ? *out_page : "no memory");
}

/* Returns whether the request is for the page. Compares all characters, so that the time reveals nothing. */
static bool is_for_page(const struct server *server, const char *request) {
    const char *path = request + strlen("GET ");
    const size_t chars = strlen(server->path);
    if (strlen(path) < chars)
        return false;
    unsigned char differs = 0;
    for (size_t i = 0; i < chars; i++)
        differs |= (unsigned char)(path[i] ^ server->path[i]);
    return differs == 0 && strncmp(path + chars, " HTTP/1.", strlen(" HTTP/1.")) == 0;
}

/* Makes the answer to a connection's request. Returns false if there is no memory for it. */
static bool make_answer(struct server *server, struct connection *connection) {
    const char *request = connection->request;
    char head[HEAD_CHARS], *page = NULL;
    struct answer answer;
    if (!is_for_us(server, request))
        answer = plain(403, "Forbidden", "this report is served only to this machine\n");
    else if (strncmp(request, "GET ", 4) != 0)
        answer = plain(405, "Method Not Allowed", "only GET is answered\n");
    else if (!is_for_page(server, request))
        answer = plain(404, "Not Found", "the report is at the whole address that --watch printed\n");
    else
        answer = answer_page(server, &page);
    const int chars =
        snprintf(head, sizeof head,
                 "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nCache-Control: no-store\r\n"
                 "Content-Security-Policy: frame-ancestors 'none'\r\nX-Frame-Options: DENY\r\n"
                 "Referrer-Policy: no-referrer\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
                 answer.code, answer.reason, answer.type, answer.bytes);
    connection->answer_bytes = (size_t)chars + answer.bytes;
    connection->answer = malloc(connection->answer_bytes);
    if (connection->answer != NULL) {
        memcpy(connection->answer, head, (size_t)chars);
        memcpy(connection->answer + chars, answer.body, answer.bytes);
    }
    connection->deadline_ns = sw_now_ns() + TIMEOUT_MS * INT64_C(1000000);
    free(page);
    return connection->answer != NULL;
}

/* Reads more of a request, and answers it once its head is complete. Returns false if the connection is of no more use.
 */
static bool read_request(struct server *server, struct connection *connection) {
    char *end = connection->request + connection->request_chars;
    const ssize_t got = recv(connection->fd, end, REQUEST_CHARS - 1 - connection->request_chars, MSG_DONTWAIT);
    if (got < 0)
        return errno == EINTR || errno == EAGAIN;
    connection->request_chars += (size_t)got;
    end[got] = '\0';
    if (strstr(connection->request, "\r\n\r\n") != NULL)
        return make_answer(server, connection);
    return got > 0 && connection->request_chars < REQUEST_CHARS - 1;
}

/* Sends as much of the answer as the connection accepts. Returns false if all is sent or nothing can be. */
static bool send_answer(struct connection *connection) {
    const ssize_t put = send(connection->fd, connection->answer + connection->sent_bytes,
                             connection->answer_bytes - connection->sent_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put < 0)
        return errno == EINTR || errno == EAGAIN;
    connection->sent_bytes += (size_t)put;
    return connection->sent_bytes < connection->answer_bytes;
}

static void end_connection(struct connection *connection) {
    /* Closing a connection with unread bytes would discard the answer. */
    (void)shutdown(connection->fd, SHUT_WR);
    close(connection->fd);
    free(connection->answer);
    *connection = (struct connection){.fd = -1};
}

/* Returns the user who made the other end of a local connection. All users whom the kernel does not tell are one user,
 * UINT32_MAX. */
static uint32_t user_of(int fd) {
    struct {
        struct nlmsghdr head;
        struct inet_diag_req_v2 body;
    } question = {
        .head = {.nlmsg_len = sizeof question, .nlmsg_type = SOCK_DIAG_BY_FAMILY, .nlmsg_flags = NLM_F_REQUEST},
        .body = {.sdiag_family = AF_INET, .sdiag_protocol = IPPROTO_TCP, .idiag_states = UINT32_MAX}};
    struct {
        struct nlmsghdr head;
        struct inet_diag_msg body;
        char more[512];
    } told = {0};
    struct sockaddr_in own, other;
    socklen_t own_bytes = sizeof own, other_bytes = sizeof other;
    const int asked = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    bool is_told = asked >= 0 && getsockname(fd, (struct sockaddr *)&own, &own_bytes) == 0 &&
                   getpeername(fd, (struct sockaddr *)&other, &other_bytes) == 0;
    if (is_told) {
        struct inet_diag_sockid *id = &question.body.id;
        id->idiag_sport = other.sin_port;
        id->idiag_dport = own.sin_port;
        id->idiag_src[0] = other.sin_addr.s_addr;
        id->idiag_dst[0] = own.sin_addr.s_addr;
        id->idiag_cookie[0] = id->idiag_cookie[1] = INET_DIAG_NOCOOKIE;
        is_told = send(asked, &question, sizeof question, 0) == (ssize_t)sizeof question &&
                  recv(asked, &told, sizeof told, 0) >= (ssize_t)offsetof(typeof(told), more) &&
                  told.head.nlmsg_type == SOCK_DIAG_BY_FAMILY;
    }
    if (asked >= 0)
        close(asked);
    return is_told ? told.body.idiag_uid : UINT32_MAX;
}

/* Returns a free connection for a user. If there is none, or the user has as many as allowed, returns the one that
 * times out first: among all, or the user's, that have sent no complete request, or else among all of them. */
static struct connection *take_connection(struct server *server, uint32_t user) {
    struct connection *first = NULL, *free_one = NULL;
    int count = 0;
    for (int i = 0; i < CONNECTIONS; i++) {
        if (server->connections[i].fd < 0)
            free_one = &server->connections[i];
        else
            count += server->connections[i].user == user;
    }
    const bool has_all = count >= CONNECTIONS_OF_USER;
    if (!has_all && free_one != NULL)
        return free_one;
    for (int i = 0; i < CONNECTIONS; i++) {
        struct connection *each = &server->connections[i];
        if (each->fd < 0 || (has_all && each->user != user))
            continue;
        const bool is_idler = first == NULL || (each->answer == NULL && first->answer != NULL);
        const bool is_older = first != NULL && (each->answer == NULL) == (first->answer == NULL) &&
                              each->deadline_ns < first->deadline_ns;
        if (is_idler || is_older)
            first = each;
    }
    end_connection(first);
    return first;
}

static sw_status listen_on(struct server *server, int64_t port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    socklen_t bytes = sizeof address;
    const int yes = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    server->socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (server->socket < 0)
        return sw_fail(SW_ERR_IO, "no socket for --watch: %s", strerror(errno));
    (void)setsockopt(server->socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(server->socket, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(server->socket, BACKLOG) != 0 || getsockname(server->socket, (struct sockaddr *)&address, &bytes) != 0)
        return errno == EADDRINUSE
                   ? sw_fail(
                         SW_ERR_BUSY,
                         "--port %lld is in use by another program; choose another, or leave --port out for a free one",
                         (long long)port)
                   : sw_fail(SW_ERR_IO, "--port %lld cannot be served: %s", (long long)port, strerror(errno));
    server->port = ntohs(address.sin_port);
    return SW_OK;
}

/* Accepts one connection: waiting ones are served in between. */
static void accept_one(struct server *server) {
    const int fd = accept4(server->socket, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;
    const uint32_t user = user_of(fd);
    struct connection *connection = take_connection(server, user);
    connection->fd = fd;
    connection->user = user;
    connection->deadline_ns = sw_now_ns() + TIMEOUT_MS * INT64_C(1000000);
}

static void serve(struct server *server) {
    struct pollfd entries[CONNECTIONS + 1];
    while (!*server->stop) {
        for (int i = 0; i < CONNECTIONS; i++) {
            const struct connection *each = &server->connections[i];
            entries[i] = (struct pollfd){.fd = each->fd, .events = each->answer != NULL ? POLLOUT : POLLIN};
        }
        entries[CONNECTIONS] = (struct pollfd){.fd = server->socket, .events = POLLIN};
        const int ready = poll(entries, CONNECTIONS + 1, POLL_MS);
        for (int i = 0; i < CONNECTIONS; i++) {
            struct connection *each = &server->connections[i];
            bool stays = each->fd < 0 || sw_now_ns() < each->deadline_ns;
            if (ready > 0 && each->fd >= 0 && entries[i].revents != 0)
                stays = each->answer == NULL ? read_request(server, each) : send_answer(each);
            if (!stays)
                end_connection(each);
        }
        if (ready > 0 && entries[CONNECTIONS].revents != 0)
            accept_one(server);
    }
    for (int i = 0; i < CONNECTIONS; i++)
        if (server->connections[i].fd >= 0)
            end_connection(&server->connections[i]);
}

static sw_status choose_path(struct server *server) {
    unsigned char secret[SECRET_BYTES];
    if (getrandom(secret, sizeof secret, 0) != (ssize_t)sizeof secret)
        return sw_fail(SW_ERR_IO, "the system gives no random numbers for the address of --watch: %s", strerror(errno));
    server->path[0] = '/';
    for (int i = 0; i < SECRET_BYTES; i++)
        snprintf(server->path + 1 + 2 * i, 3, "%02x", secret[i]);
    server->path[SECRET_CHARS + 1] = '/';
    return SW_OK;
}

/* Serves the page on the port until the user stops it. */
static sw_status watch(struct server *server, int64_t port) {
    SW_TRY(choose_path(server));
    SW_TRY(listen_on(server, port));
    fprintf(stderr, "open http://127.0.0.1:%d%s in a browser; Ctrl-C ends\n", server->port, server->path);
    serve(server);
    return SW_OK;
}

sw_status sw_report_watch(const char *const *folders, int count, int64_t port, const volatile sig_atomic_t *stop) {
    struct server *server = calloc(1, sizeof *server);
    char *page = NULL;
    size_t bytes = 0;
    if (server == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for --watch");
    *server = (struct server){.folders = folders, .count = count, .socket = -1, .stop = stop};
    for (int i = 0; i < CONNECTIONS; i++)
        server->connections[i].fd = -1;
    /* Refuses a folder that is not a run at once, instead of in the browser. */
    sw_status status = sw_report_make(folders, count, LEAST_RELOAD_S, &page, &bytes);
    free(page);
    if (status == SW_OK)
        status = watch(server, port);
    if (server->socket >= 0)
        close(server->socket);
    free(server);
    return status;
}
