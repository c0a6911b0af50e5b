/* The order in which pieces are used: recorded, and expected to come again.
 *
 * The history is the list of all uses. The place in it whose past is most like the present says how things go on: a
 * training step follows the step before, a token the token before, and an evaluation in between the last evaluation.
 * Nothing has to say where a pass begins. From that place the history is followed to its end, and then again, because
 * what lies between is one period. Before anything was seen twice, the next piece is the neighbour in the order of
 * registration, forward or backward. */
#include "library/stream_private.h"

#include <stdlib.h>
#include <string.h>

/* HISTORY_ENTRIES: more than a step of any model has. CONTEXT: uses that are compared to find the most alike past. */
enum { HISTORY_ENTRIES = 1 << 16, CONTEXT = 32 };

static bool alike(const struct stream_entry *a, const struct stream_entry *b) {
    return a->piece == b->piece && a->overwrites == b->overwrites;
}

/* Returns how many uses before and at two places are the same. */
static int64_t common_past(const spillway_stream *self, int64_t a, int64_t b) {
    int64_t count = 0;
    while (count < CONTEXT && a - count >= 0 && alike(&self->history[a - count], &self->history[b - count]))
        count++;
    return count;
}

/* Among places that are equally alike the latest wins. */
static int64_t find_match(const spillway_stream *self) {
    const int64_t last = self->history_count - 1;
    int64_t best = -1, best_count = 0;
    for (int64_t at = last - 1; at >= 0 && best_count < CONTEXT; at--) {
        const int64_t count = common_past(self, at, last);
        if (count > best_count) {
            best = at;
            best_count = count;
        }
    }
    return best;
}

/* Forgets the older half. */
static void make_room(spillway_stream *self) {
    const int64_t half = HISTORY_ENTRIES / 2;
    if (self->history_count < HISTORY_ENTRIES)
        return;
    memmove(self->history, self->history + half, (size_t)(self->history_count - half) * sizeof *self->history);
    self->history_count -= half;
    self->match = self->match >= half ? self->match - half : -1;
}

void sw_streamed_record(spillway_stream *self, int64_t piece, bool overwrites) {
    const struct stream_entry entry = {(int32_t)piece, overwrites};
    make_room(self);
    if (self->history_count == self->history_room) {
        const int64_t room = self->history_room == 0 ? 1024 : 2 * self->history_room;
        struct stream_entry *grown = realloc(self->history, (size_t)room * sizeof *grown);
        if (grown == NULL)
            return; /* Without a history nothing is read ahead, and all else works. */
        self->history = grown;
        self->history_room = room;
    }
    self->history[self->history_count++] = entry;
    if (self->match >= 0 && alike(&self->history[self->match + 1], &entry) && self->match + 1 < self->history_count - 1)
        self->match++;
    else
        self->match = find_match(self);
}

/* Guesses by the order of registration. */
static bool guess(const spillway_stream *self, int64_t ahead, struct stream_entry *out) {
    if (self->history_count == 0)
        return false;
    const int64_t piece = self->history[self->history_count - 1].piece;
    const int64_t next = self->direction == SPILLWAY_BACKWARD ? piece - ahead : piece + ahead;
    *out = (struct stream_entry){(int32_t)next, false};
    return piece < self->tensor_count && next >= 0 && next < self->tensor_count;
}

bool sw_streamed_expect(const spillway_stream *self, int64_t ahead, struct stream_entry *out) {
    if (self->match < 0)
        return guess(self, ahead, out);
    const int64_t period = self->history_count - 1 - self->match;
    if (ahead > period)
        return false;
    *out = self->history[self->match + ahead];
    return true;
}

void sw_streamed_look_ahead(spillway_stream *self) {
    struct stream_entry entry;
    self->mark++;
    for (int64_t ahead = 1; sw_streamed_expect(self, ahead, &entry); ahead++) {
        struct stream_piece *piece = &self->piece[entry.piece];
        if (piece->mark == self->mark)
            continue;
        piece->mark = self->mark;
        piece->next_use = entry.overwrites ? INT64_MAX : ahead;
    }
}
