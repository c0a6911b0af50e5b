/* Sends and receives notes over a connection. */
#include "core/ranks/watch_private.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void sw_watch_send(const struct sw_watch *watch, struct sw_watch_peer *peer, sw_note_kind kind, const char *text) {
    if (peer->socket < 0)
        return;
    struct sw_note note = watch->own;
    note.kind = kind;
    memset(note.text, 0, sizeof note.text);
    if (text != NULL)
        memcpy(note.text, text, strnlen(text, sizeof note.text - 1));
    const ssize_t sent = send(peer->socket, &note, sizeof note, MSG_NOSIGNAL | MSG_DONTWAIT);
    /* Half a note would make nonsense of those behind it. */
    if (sent >= 0 && sent < (ssize_t)sizeof note)
        shutdown(peer->socket, SHUT_WR);
}

/* Returns whether a note, which comes from outside, can be printed and compared. */
static bool is_sound(const struct sw_watch *watch, const struct sw_note *note) {
    if (memcmp(note->token, watch->own.token, sizeof note->token) != 0)
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
    return is_sound(watch, &peer->incoming) ? 1 : -1;
}
