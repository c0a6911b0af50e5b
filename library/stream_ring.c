/* The ring: which pieces are in memory.
 *
 * All pieces have addresses for good, in ranges that begin as a mapping of the file. The ring is a memfd of granules. A
 * piece that is read goes to free granules, which are then mapped over its addresses; a piece that leaves gets the
 * file's pages back. Both hold the same bytes, so whoever reads an address at any time reads the right ones, also a
 * tensor that autograd has saved, a view, or a use that nobody has announced: that one goes through the page cache,
 * slower, and nothing else changes. The drive transfers from and to the ring's own mapping, whose pages are registered
 * with io_uring. Its page tables are emptied after use, so that a page is mapped once.
 *
 * Belady (1966): the piece to give up is the one whose next use is farthest. Pieces are read ahead in the order of
 * their next uses, and give up nothing that is used sooner (Cao, Felten, Karlin & Li, SIGMETRICS 1995). Pieces that
 * were read ahead take a part of the ring at most, unless more is free: in a forward pass that comes again and
 * again, all others then stay, and are not read again. */
#include "core/clock.h"
#include "library/stream_private.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

sw_status sw_streamed_check(const spillway_stream *self) {
    return self->status == SW_OK ? SW_OK : sw_fail(self->status, "%s", self->message);
}

void sw_streamed_queue(struct stream_fifo *fifo, int64_t room, int64_t piece) {
    fifo->piece[(fifo->first + fifo->count++) % room] = piece;
}

/* EARLY_BYTES: what a fast drive reads until the lane and the reader have been woken a few times. */
enum { EARLY_BYTES = 64 << 20, EARLY_SHARE = 4, MOST_EARLY_SHARE = 2 };

/* Returns how much of the ring pieces may take that nobody has used since they were read. */
static int64_t most_early(const spillway_stream *self) {
    const int64_t enough = sw_max_i64(EARLY_BYTES / self->granule_bytes, self->granules / EARLY_SHARE);
    return sw_min_i64(enough, self->granules / MOST_EARLY_SHARE);
}

static int64_t page_bytes(const struct stream_piece *piece) {
    return sw_round_up(piece->bytes, SW_BUFFER_ALIGN_BYTES);
}

static sw_status map(char *at, int64_t bytes, int file, int64_t offset, const char *name) {
    if (mmap(at, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, (off_t)offset) == at)
        return SW_OK;
    return sw_fail(SW_ERR_NOMEM,
                   "the memory of '%s' cannot be mapped: %s (vm.max_map_count limits how many parts there are)", name,
                   strerror(errno));
}

sw_status sw_streamed_map_granules(const spillway_stream *self, const struct stream_piece *piece) {
    for (int64_t g = 0, next; g < piece->granules; g = next) {
        next = g + 1;
        while (next < piece->granules && piece->granule[next] == piece->granule[next - 1] + 1)
            next++;
        const int64_t at = g * self->granule_bytes;
        const int64_t bytes = sw_min_i64(next * self->granule_bytes, page_bytes(piece)) - at;
        SW_TRY(map(piece->address + at, bytes, self->memory, piece->granule[g] * self->granule_bytes, piece->name));
    }
    return SW_OK;
}

uint64_t sw_streamed_sample(const struct stream_piece *piece) {
    uint64_t digest = 0, word;
    for (int64_t at = 0; at + (int64_t)sizeof word <= piece->bytes; at += SW_BUFFER_ALIGN_BYTES) {
        memcpy(&word, piece->address + at, sizeof word);
        digest = (digest ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        digest ^= digest >> 29;
    }
    return digest;
}

/* A piece that was read ahead is used, or leaves. */
static void note_use(spillway_stream *self, struct stream_piece *piece) {
    self->early_granules -= piece->early ? piece->granules : 0;
    piece->early = false;
}

/* A mapping of the GPU that could not be changed ends the stream: nobody knows where the address leads. */
static sw_status keep_failure(spillway_stream *self, sw_status status) {
    if (status == SW_OK || self->status != SW_OK)
        return status;
    self->status = status;
    snprintf(self->message, sizeof self->message, "%s", sw_error_message(status));
    return status;
}

/* Lets a piece that the file has leave the ring. Its changes, of which nobody has told, would be lost in silence. */
static sw_status evict(spillway_stream *self, struct stream_piece *piece) {
    if (self->cuda != NULL && piece->state == STREAM_PRESENT)
        SW_TRY(keep_failure(self, sw_streamed_cuda_map(self, piece, false)));
    if (self->cuda == NULL && piece->sample != sw_streamed_sample(piece))
        return sw_fail(SW_ERR_ARG, "'%s' was changed in memory without spillway_stream_changed", piece->name);
    if (self->cuda == NULL)
        SW_TRY(map(piece->address, page_bytes(piece), self->file, piece->file_at, piece->name));
    for (int64_t g = 0; g < piece->granules; g++)
        self->taken[piece->granule[g]] = false;
    self->free_granules += piece->granules;
    note_use(self, piece);
    piece->state = STREAM_ABSENT;
    return SW_OK;
}

/* `soft`: also pieces of the last backward needs. */
static bool may_leave(const spillway_stream *self, const struct stream_piece *piece, bool soft) {
    return (piece->state == STREAM_PRESENT || piece->state == STREAM_LANDED) && !piece->small && piece->holds == 0 &&
           !piece->changed && !piece->writing &&
           (soft || piece->backward_at < 0 || piece->backward_at + 2 <= self->backward_calls);
}

static int64_t next_use(const spillway_stream *self, const struct stream_piece *piece) {
    return piece->mark == self->mark ? piece->next_use : INT64_MAX;
}

/* Makes granules free for a piece by giving up pieces that are used later than `ahead` uses from now. *made: there are
 * enough. */
static sw_status make_room(spillway_stream *self, const struct stream_piece *piece, int64_t ahead, bool soft,
                           bool *made) {
    while (self->free_granules < piece->granules) {
        struct stream_piece *last = NULL;
        for (int64_t p = 0; p < self->piece_count; p++) {
            struct stream_piece *other = &self->piece[p];
            if (may_leave(self, other, soft) && (last == NULL || next_use(self, other) > next_use(self, last)))
                last = other;
        }
        *made = last != NULL && next_use(self, last) > ahead;
        if (!*made)
            return SW_OK;
        SW_TRY(evict(self, last));
    }
    *made = true;
    return SW_OK;
}

/* Takes free granules, neighbours if it can be. */
static void take_granules(spillway_stream *self, struct stream_piece *piece) {
    for (int64_t g = 0; g < piece->granules; g++) {
        while (self->taken[self->cursor])
            self->cursor = (self->cursor + 1) % self->granules;
        self->taken[self->cursor] = true;
        piece->granule[g] = (int32_t)self->cursor;
        self->cursor = (self->cursor + 1) % self->granules;
    }
    self->free_granules -= piece->granules;
}

/* Gives a piece its granules, and begins to read it, or maps it at once if there is nothing to be read. */
static sw_status bring(spillway_stream *self, int64_t number, enum stream_use use) {
    struct stream_piece *piece = &self->piece[number];
    take_granules(self, piece);
    if (use != STREAM_OVERWRITE && piece->filled) {
        piece->state = STREAM_READING;
        piece->next_put = piece->under_way = 0;
        sw_streamed_queue(&self->reads, self->piece_count, number);
        pthread_cond_signal(&self->work);
        return SW_OK;
    }
    SW_TRY(sw_streamed_map_granules(self, piece));
    if (use != STREAM_OVERWRITE)
        memset(piece->address, 0, (size_t)piece->bytes);
    piece->sample = sw_streamed_sample(piece);
    piece->state = STREAM_PRESENT;
    return SW_OK;
}

sw_status sw_streamed_read_ahead(spillway_stream *self) {
    struct stream_entry entry;
    int64_t granules = 0;
    bool made;
    sw_streamed_look_ahead(self);
    for (int64_t ahead = 1; !self->stopping && granules < self->granules && sw_streamed_expect(self, ahead, &entry);
         ahead++) {
        struct stream_piece *piece = &self->piece[entry.piece];
        granules += piece->granules;
        if (entry.overwrites || piece->small || piece->state != STREAM_ABSENT || !piece->filled)
            continue;
        if (self->early_granules > 0 && self->early_granules + piece->granules > most_early(self) &&
            self->free_granules < piece->granules)
            break;
        SW_TRY(make_room(self, piece, ahead, false, &made));
        if (!made)
            break;
        SW_TRY(bring(self, entry.piece, STREAM_READ));
        piece->early = true;
        self->early_granules += piece->granules;
    }
    return SW_OK;
}

/* Returns whether the lane has work that may make room. */
static bool is_busy(const spillway_stream *self) {
    for (int64_t p = 0; p < self->piece_count; p++)
        if (self->piece[p].state == STREAM_READING || self->piece[p].changed || self->piece[p].writing)
            return true;
    return false;
}

static sw_status refuse_room(const spillway_stream *self, const struct stream_piece *wanted) {
    int64_t held = 0, bytes = wanted->granules;
    const char *name = NULL;
    char needed[SW_SIZE_CHARS], has[SW_SIZE_CHARS];
    for (int64_t p = 0; p < self->piece_count; p++)
        if (self->piece[p].holds > 0 && &self->piece[p] != wanted && self->piece[p].granules > 0) {
            held++;
            bytes += self->piece[p].granules;
            name = self->piece[p].name;
        }
    return sw_fail(
        SW_ERR_BUDGET,
        "there is no room for '%s' while %lld other tensors are in use, such as '%s': together they take %s, and "
        "memory_bytes leaves %s",
        wanted->name, (long long)held, name != NULL ? name : wanted->name,
        sw_format_size(bytes * self->granule_bytes, needed), sw_format_size(self->ring_bytes, has));
}

/* Brings a piece that is held into memory, and waits for it. */
static sw_status await(spillway_stream *self, int64_t number, enum stream_use use) {
    struct stream_piece *piece = &self->piece[number];
    bool soft = false, made;
    while (piece->state != STREAM_PRESENT) {
        SW_TRY(sw_streamed_check(self));
        if (piece->state == STREAM_LANDED) {
            SW_TRY(keep_failure(self, sw_streamed_cuda_map(self, piece, true)));
            piece->state = STREAM_PRESENT;
            break;
        }
        made = piece->state != STREAM_ABSENT;
        if (!made) {
            SW_TRY(make_room(self, piece, 0, soft, &made));
            if (made)
                SW_TRY(bring(self, number, use));
        }
        if (piece->state == STREAM_PRESENT)
            break;
        if (!made && !is_busy(self)) {
            if (soft)
                return refuse_room(self, piece);
            soft = true;
            continue;
        }
        pthread_cond_wait(&self->progress, &self->lock);
    }
    return SW_OK;
}

static sw_status await_all(spillway_stream *self, const int64_t *pieces, int64_t count, enum stream_use use) {
    bool made;
    /* All reads are under way before the first is waited for. */
    sw_streamed_look_ahead(self);
    for (int64_t i = 0; i < count; i++) {
        struct stream_piece *piece = &self->piece[pieces[i]];
        if (piece->state != STREAM_ABSENT)
            continue;
        SW_TRY(make_room(self, piece, 0, false, &made));
        if (made)
            SW_TRY(bring(self, pieces[i], use));
    }
    SW_TRY(sw_streamed_read_ahead(self));
    for (int64_t i = 0; i < count; i++)
        SW_TRY(await(self, pieces[i], use));
    return sw_streamed_check(self);
}

static sw_status await_writes(spillway_stream *self, const int64_t *pieces, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        while (self->piece[pieces[i]].writing || self->piece[pieces[i]].changed) {
            SW_TRY(sw_streamed_check(self));
            pthread_cond_wait(&self->progress, &self->lock);
        }
    return SW_OK;
}

static void let_go(spillway_stream *self, const int64_t *pieces, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        self->piece[pieces[i]].holds--;
}

sw_status sw_streamed_hold(spillway_stream *self, const int64_t *pieces, int64_t count, enum stream_use use,
                           int direction) {
    bool waits = false;
    pthread_mutex_lock(&self->lock);
    self->direction = direction;
    const int64_t backward_at = direction == SPILLWAY_BACKWARD ? self->backward_calls++ : -1;
    for (int64_t i = 0; i < count; i++) {
        struct stream_piece *piece = &self->piece[pieces[i]];
        piece->holds++;
        note_use(self, piece);
        piece->backward_at = sw_max_i64(piece->backward_at, backward_at);
        if (piece->small)
            continue;
        sw_streamed_record(self, pieces[i], use == STREAM_OVERWRITE);
        const bool is_there = piece->state == STREAM_PRESENT || piece->state == STREAM_LANDED;
        waits |= !is_there;
        self->used.needs++;
        self->used.waits += !is_there && piece->filled && use != STREAM_OVERWRITE;
    }
    const int64_t begin = waits ? sw_now_ns() : 0;
    sw_status status = await_all(self, pieces, count, use);
    if (status == SW_OK && use != STREAM_READ)
        status = await_writes(self, pieces, count);
    self->used.wait_seconds += waits ? (double)(sw_now_ns() - begin) * 1e-9 : 0.0;
    if (status != SW_OK || direction == SPILLWAY_BACKWARD)
        let_go(self, pieces, count);
    pthread_mutex_unlock(&self->lock);
    return status;
}

/* A piece that is being written may be changed: what the file then has is of both contents, and is written again. */
static void mark_changed(spillway_stream *self, int64_t number) {
    struct stream_piece *piece = &self->piece[number];
    piece->filled = true;
    if (piece->small || piece->changed)
        return;
    piece->changed = true;
    if (!piece->writing) {
        sw_streamed_queue(&self->writes, self->piece_count, number);
        pthread_cond_signal(&self->work);
    }
}

static sw_status check_held(const spillway_stream *self, int64_t number) {
    return self->piece[number].holds > 0
               ? SW_OK
               : sw_fail(SW_ERR_ARG, "'%s' is done or changed without having been needed", self->piece[number].name);
}

sw_status sw_streamed_release(spillway_stream *self, const int64_t *pieces, int64_t count, bool changed) {
    sw_status status = SW_OK;
    pthread_mutex_lock(&self->lock);
    for (int64_t i = 0; i < count && status == SW_OK; i++)
        status = check_held(self, pieces[i]);
    for (int64_t i = 0; changed && i < count && status == SW_OK; i++)
        mark_changed(self, pieces[i]);
    if (status == SW_OK)
        let_go(self, pieces, count);
    if (status == SW_OK)
        status = sw_streamed_read_ahead(self);
    pthread_cond_broadcast(&self->progress);
    pthread_mutex_unlock(&self->lock);
    return status;
}

sw_status sw_streamed_take_changes(spillway_stream *self, const int64_t *pieces, int64_t count) {
    sw_status status = SW_OK;
    pthread_mutex_lock(&self->lock);
    for (int64_t i = 0; i < count && status == SW_OK; i++)
        status = check_held(self, pieces[i]);
    for (int64_t i = 0; i < count && status == SW_OK && self->cuda == NULL; i++)
        mark_changed(self, pieces[i]);
    if (status == SW_OK && self->cuda != NULL)
        status = sw_streamed_cuda_take_changes(self, pieces, count);
    pthread_mutex_unlock(&self->lock);
    return status;
}

/* Pieces that were read, or are being read, have the bytes of before. */
static sw_status drop_all(spillway_stream *self) {
    for (int64_t p = 0; p < self->piece_count; p++) {
        struct stream_piece *piece = &self->piece[p];
        while (piece->state == STREAM_READING) {
            SW_TRY(sw_streamed_check(self));
            pthread_cond_wait(&self->progress, &self->lock);
        }
        if (!piece->small && piece->state != STREAM_ABSENT)
            SW_TRY(evict(self, piece));
    }
    return sw_streamed_check(self);
}

sw_status sw_streamed_renew(spillway_stream *self) {
    pthread_mutex_lock(&self->lock);
    sw_status status = drop_all(self);
    if (status == SW_OK)
        status = keep_failure(self, sw_streamed_cuda_renew_small(self));
    if (status == SW_OK)
        status = sw_streamed_read_ahead(self);
    pthread_mutex_unlock(&self->lock);
    return status;
}
