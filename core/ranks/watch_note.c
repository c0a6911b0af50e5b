/* Sends and receives notes over a connection, and proves to its other end that this one knows the key of the job. */
#include "core/ranks/watch_private.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

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

/* SipHash-2-4 (Aumasson and Bernstein, 2012) of words in the order of this machine, as all ranks run one program. */
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

struct sw_watch_token sw_watch_prove(const struct sw_watch_token *key, sw_watch_proof proof,
                                     const struct sw_watch_token *of_rank, const struct sw_watch_token *of_first) {
    struct sw_watch_token out;
    for (uint64_t half = 0; half < 2; half++) {
        const uint64_t words[] = {2 * (uint64_t)proof + half, of_rank->half[0], of_rank->half[1], of_first->half[0],
                                  of_first->half[1]};
        out.half[half] = sw_watch_siphash(key, words, sizeof words / sizeof words[0]);
    }
    return out;
}

sw_status sw_watch_token_make(struct sw_watch_token *out) {
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
    /* Half a note would make nonsense of those behind it. */
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
