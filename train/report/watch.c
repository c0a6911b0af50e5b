/* A responder for one page, not a web server. It speaks HTTP/1.1 as far as a browser needs for that, closes each
 * connection behind its answer, and answers one at a time. */
#include "train/report/watch.h"

#include "core/clock.h"
#include "core/status.h"
#include "train/report/report.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum { REQUEST_CHARS = 8192, HEAD_CHARS = 256, POLL_MS = 200, BACKLOG = 16 };
/* The most time that a request may take to come, and its answer to go. */
enum { PATIENCE_MS = 3000 };
/* Making the page takes at most one part in this of the time, and a reader reloads at most this often. */
enum { IDLE_PARTS = 20, LEAST_RELOAD_S = 3 };

struct server {
    const char *const *folders;
    int count;
    int socket;
    int port;
    int64_t make_ns; /* how long making the page took last time */
    const volatile sig_atomic_t *stop;
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

/* Returns milliseconds until the deadline; 0: it has passed, or the user asked to stop. */
static int left_ms(const struct server *server, int64_t deadline_ns) {
    const int64_t left = (deadline_ns - sw_now_ns()) / 1000000;
    return *server->stop || left <= 0 ? 0 : (int)left;
}

static bool wait_for(const struct server *server, int fd, short events, int64_t deadline_ns) {
    struct pollfd entry = {.fd = fd, .events = events};
    for (int ms; (ms = left_ms(server, deadline_ns)) > 0;)
        if (poll(&entry, 1, ms < POLL_MS ? ms : POLL_MS) > 0)
            return true;
    return false;
}

/* Reads a request's head, zero-terminated. Returns false if it does not come whole and in time. */
static bool read_request(const struct server *server, int fd, char request[REQUEST_CHARS]) {
    const int64_t deadline_ns = sw_now_ns() + PATIENCE_MS * INT64_C(1000000);
    size_t chars = 0;
    request[0] = 0;
    while (strstr(request, "\r\n\r\n") == NULL) {
        if (chars == REQUEST_CHARS - 1 || !wait_for(server, fd, POLLIN, deadline_ns))
            return false;
        const ssize_t got = recv(fd, request + chars, REQUEST_CHARS - 1 - chars, MSG_DONTWAIT);
        if (got < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (got <= 0)
            return false;
        chars += (size_t)got;
        request[chars] = 0;
    }
    return true;
}

static void send_all(const struct server *server, int fd, const char *text, size_t bytes) {
    const int64_t deadline_ns = sw_now_ns() + PATIENCE_MS * INT64_C(1000000);
    for (size_t done = 0; done < bytes;) {
        if (!wait_for(server, fd, POLLOUT, deadline_ns))
            return;
        const ssize_t put = send(fd, text + done, bytes - done, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (put < 0 && errno != EINTR && errno != EAGAIN)
            return;
        done += put > 0 ? (size_t)put : 0;
    }
}

/* Returns whether the request names this address as its host. A foreign page, whose name has been made to lead to this
 * machine, would otherwise be allowed to read the answer. */
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

/* Makes the page, which the caller frees by *out_page; where that fails, the answer is the error's message. */
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

static void answer_request(struct server *server, int fd) {
    char request[REQUEST_CHARS], head[HEAD_CHARS];
    char *page = NULL;
    struct answer answer;
    if (!read_request(server, fd, request))
        return;
    if (!is_for_us(server, request))
        answer = plain(403, "Forbidden", "this report is served to this machine alone\n");
    else if (strncmp(request, "GET ", 4) != 0)
        answer = plain(405, "Method Not Allowed", "only GET is answered\n");
    else if (strncmp(request, "GET / HTTP/1.", 13) != 0)
        answer = plain(404, "Not Found", "there is only /\n");
    else
        answer = answer_page(server, &page);
    const int chars =
        snprintf(head, sizeof head,
                 "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nCache-Control: no-store\r\n"
                 "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
                 answer.code, answer.reason, answer.type, answer.bytes);
    send_all(server, fd, head, (size_t)chars);
    send_all(server, fd, answer.body, answer.bytes);
    free(page);
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

static void serve(struct server *server) {
    struct pollfd entry = {.fd = server->socket, .events = POLLIN};
    while (!*server->stop) {
        if (poll(&entry, 1, POLL_MS) <= 0)
            continue;
        const int fd = accept4(server->socket, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            continue;
        answer_request(server, fd);
        /* Closing a connection with unread bytes would take the answer from the reader. */
        (void)shutdown(fd, SHUT_WR);
        close(fd);
    }
}

sw_status sw_report_watch(const char *const *folders, int count, int64_t port, const volatile sig_atomic_t *stop) {
    struct server server = {.folders = folders, .count = count, .socket = -1, .stop = stop};
    char *page = NULL;
    size_t bytes = 0;
    /* A folder that is no run is refused at once, and not in the browser. */
    sw_status status = sw_report_make(folders, count, LEAST_RELOAD_S, &page, &bytes);
    free(page);
    if (status == SW_OK)
        status = listen_on(&server, port);
    if (status == SW_OK) {
        fprintf(stderr, "open http://127.0.0.1:%d/ in a browser; Ctrl-C ends\n", server.port);
        serve(&server);
    }
    if (server.socket >= 0)
        close(server.socket);
    return status;
}
