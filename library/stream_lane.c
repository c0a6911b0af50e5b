/* The lane: a thread that reads and writes pieces, with many requests under way, and checks what it reads. Reads go
 * first: somebody waits for them. The sum of a block is taken when it is written, and compared when it is read; a piece
 * that differs is read again once. */
#include "core/files/files.h"
#include "core/thread.h"
#include "io/queue/file.h"
#include "library/stream_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { REAPED_AT_ONCE = 64 };

static int64_t page_bytes(const struct stream_piece *piece) {
    return sw_round_up(piece->bytes, SW_BUFFER_ALIGN_BYTES);
}

static void drop_first(struct stream_fifo *fifo, int64_t room) {
    fifo->first = (fifo->first + 1) % room;
    fifo->count--;
}

void sw_streamed_empty_tables(const spillway_stream *self, const struct stream_piece *piece) {
    for (int64_t g = 0; g < piece->granules; g++)
        madvise(self->ring + piece->granule[g] * self->granule_bytes, (size_t)self->granule_bytes, MADV_DONTNEED);
}

/* Puts the next request of a piece: bytes that are neighbours in the ring. */
static void put_next(spillway_stream *self, int64_t number, sw_ring_op op) {
    struct stream_piece *piece = &self->piece[number];
    const int64_t at = piece->next_put, granule = at / self->granule_bytes, within = at % self->granule_bytes;
    int64_t end = (granule + 1) * self->granule_bytes;
    for (int64_t g = granule + 1; g < piece->granules && piece->granule[g] == piece->granule[g - 1] + 1; g++)
        end += self->granule_bytes;
    end = sw_min_i64(sw_min_i64(end, page_bytes(piece)), at + STREAM_BLOCK_BYTES);
    const struct sw_ring_request request = {.op = op,
                                            .offset_bytes = piece->file_at + at,
                                            .bytes = end - at,
                                            .buf = self->ring + piece->granule[granule] * self->granule_bytes + within,
                                            .tag = (uint64_t)number};
    sw_queue_put(self->queue, &request);
    piece->next_put = end;
    piece->under_way++;
    *(op == SW_RING_READ ? &self->used.read_bytes : &self->used.written_bytes) += end - at;
}

static void take_sums(struct stream_piece *piece) {
    piece->sample = sw_streamed_sample(piece);
    for (int64_t at = 0, b = 0; at < piece->bytes; at += STREAM_BLOCK_BYTES, b++)
        piece->sum[b] = sw_checksum(piece->address + at, sw_min_i64(STREAM_BLOCK_BYTES, piece->bytes - at));
}

static bool sums_agree(const struct stream_piece *piece) {
    for (int64_t at = 0, b = 0; at < piece->bytes; at += STREAM_BLOCK_BYTES, b++)
        if (piece->sum[b] != sw_checksum(piece->address + at, sw_min_i64(STREAM_BLOCK_BYTES, piece->bytes - at)))
            return false;
    return true;
}

/* Puts requests while there is room for them. Sums are taken without the lock. */
static void put_all(spillway_stream *self) {
    while (sw_queue_room(self->queue) > 0 && (self->reads.count > 0 || self->writes.count > 0)) {
        const bool reads = self->reads.count > 0;
        struct stream_fifo *fifo = reads ? &self->reads : &self->writes;
        const int64_t number = fifo->piece[fifo->first];
        struct stream_piece *piece = &self->piece[number];
        if (!reads && !piece->writing) {
            piece->writing = true;
            piece->changed = false;
            piece->next_put = piece->under_way = 0;
            pthread_mutex_unlock(&self->lock);
            take_sums(piece);
            pthread_mutex_lock(&self->lock);
            continue;
        }
        put_next(self, number, reads ? SW_RING_READ : SW_RING_WRITE);
        if (piece->next_put == page_bytes(piece))
            drop_first(fifo, self->piece_count);
    }
}

static sw_status fail_transfer(const spillway_stream *self, const struct stream_piece *piece) {
    const int error = piece->error == ENODATA ? EIO : piece->error;
    return sw_fail(piece->writing ? sw_file_write_error(error) : SW_ERR_IO, "'%s' cannot be %s its file in %s: %s",
                   piece->name, piece->writing ? "written to" : "read from", self->folder, strerror(error));
}

/* Maps a piece that was read, and checks it. It is still READING, so nobody uses it, and the lock is not held. */
static sw_status finish_read(const spillway_stream *self, struct stream_piece *piece, bool *agrees) {
    sw_streamed_empty_tables(self, piece);
    SW_TRY(sw_streamed_map_granules(self, piece));
    *agrees = sums_agree(piece);
    piece->sample = sw_streamed_sample(piece);
    return SW_OK;
}

static sw_status refuse_sum(const spillway_stream *self, const struct stream_piece *piece) {
    return sw_fail(
        SW_ERR_CORRUPT,
        "'%s' is not what was written to its file in %s: the drive damaged it, or the program changed the tensor "
        "without spillway_stream_changed",
        piece->name, self->folder);
}

static void finish(spillway_stream *self, int64_t number) {
    struct stream_piece *piece = &self->piece[number];
    bool agrees = true;
    piece->next_put = 0;
    if (piece->error != 0) {
        sw_streamed_fail(self, fail_transfer(self, piece));
        return;
    }
    if (piece->writing) {
        piece->writing = false;
        sw_streamed_empty_tables(self, piece);
        if (piece->changed)
            sw_streamed_queue(&self->writes, self->piece_count, number);
    } else {
        pthread_mutex_unlock(&self->lock);
        const sw_status status = finish_read(self, piece, &agrees);
        pthread_mutex_lock(&self->lock);
        if (status == SW_OK && !agrees && !piece->again) {
            piece->again = true;
            sw_streamed_queue(&self->reads, self->piece_count, number);
            return;
        }
        if (status != SW_OK || !agrees) {
            sw_streamed_fail(self, status == SW_OK ? refuse_sum(self, piece) : status);
            return;
        }
        piece->again = false;
        piece->state = STREAM_PRESENT;
    }
    sw_streamed_fail(self, sw_streamed_read_ahead(self));
    pthread_cond_broadcast(&self->progress);
}

static void take_results(spillway_stream *self, const struct sw_queue_result *results, int count) {
    for (int i = 0; i < count; i++) {
        struct stream_piece *piece = &self->piece[results[i].tag];
        piece->under_way--;
        if (results[i].error != 0)
            piece->error = results[i].error;
    }
    put_all(self);
    for (int i = 0; i < count; i++) {
        const struct stream_piece *piece = &self->piece[results[i].tag];
        if (piece->under_way == 0 && piece->next_put == page_bytes(piece) &&
            (piece->writing || piece->state == STREAM_READING))
            finish(self, (int64_t)results[i].tag);
    }
}

static void *run_lane(void *argument) {
    spillway_stream *self = argument;
    struct sw_queue_result results[REAPED_AT_ONCE];
    int count;
    pthread_mutex_lock(&self->lock);
    for (;;) {
        if (self->status == SW_OK)
            put_all(self);
        if (sw_queue_in_flight(self->queue) == 0) {
            if (self->stopping)
                break;
            pthread_cond_wait(&self->work, &self->lock);
            continue;
        }
        pthread_mutex_unlock(&self->lock);
        const sw_status status = sw_queue_reap(self->queue, true, results, REAPED_AT_ONCE, &count);
        pthread_mutex_lock(&self->lock);
        sw_streamed_fail(self, status);
        if (status != SW_OK)
            break;
        take_results(self, results, count);
    }
    pthread_mutex_unlock(&self->lock);
    return NULL;
}

/* Starting and stopping. */

static sw_status open_memory(spillway_stream *self) {
    char text[SW_SIZE_CHARS];
    self->memory = memfd_create("spillway", MFD_CLOEXEC);
    if (self->memory < 0 || ftruncate(self->memory, (off_t)self->ring_bytes) != 0 ||
        fallocate(self->memory, 0, 0, (off_t)self->ring_bytes) != 0)
        return sw_fail(SW_ERR_NOMEM, "the system refuses %s of memory: %s", sw_format_size(self->ring_bytes, text),
                       strerror(errno));
    char *ring = mmap(NULL, (size_t)self->ring_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, self->memory, 0);
    if (ring == MAP_FAILED)
        return sw_fail(SW_ERR_NOMEM, "%s of memory cannot be mapped: %s", sw_format_size(self->ring_bytes, text),
                       strerror(errno));
    self->ring = ring;
    return SW_OK;
}

sw_status sw_streamed_start(spillway_stream *self) {
    SW_TRY(sw_file_create_unnamed(self->folder, self->options.allow_buffered != 0, &self->file));
    if (self->granules > 0) {
        SW_TRY(open_memory(self));
        self->taken = calloc((size_t)self->granules, sizeof *self->taken);
        if (self->taken == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory for a stream");
    }
    self->free_granules = self->granules;
    SW_TRY(sw_streamed_place(self, 0, self->piece_count));
    const struct sw_ring_buffer buffer = {self->ring, self->ring_bytes};
    const struct sw_ring_spec spec = {.files = &self->file,
                                      .file_count = 1,
                                      .buffers = &buffer,
                                      .buffer_count = self->ring != NULL ? 1 : 0,
                                      .depth = STREAM_DEPTH,
                                      .warned = &self->warned};
    SW_TRY(sw_queue_open(sw_ring_open_uring, NULL, &spec, &self->queue));
    if (self->ring != NULL)
        madvise(self->ring, (size_t)self->ring_bytes, MADV_DONTNEED);
    if (sw_thread_start(&self->lane, run_lane, self) != 0)
        return sw_fail(SW_ERR_NOMEM, "the system refuses a thread");
    self->lane_runs = true;
    return SW_OK;
}

/* Grows a queue, whose pieces begin at its start afterwards. */
static sw_status grow(struct stream_fifo *fifo, int64_t room, int64_t old_room) {
    int64_t *grown = malloc((size_t)room * sizeof *grown);
    if (grown == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a stream");
    for (int64_t i = 0; i < fifo->count; i++)
        grown[i] = fifo->piece[(fifo->first + i) % old_room];
    free(fifo->piece);
    fifo->piece = grown;
    fifo->first = 0;
    return SW_OK;
}

static sw_status make_lists(spillway_stream *self, struct stream_piece *piece) {
    piece->sum = calloc((size_t)sw_div_up(piece->bytes, STREAM_BLOCK_BYTES), sizeof *piece->sum);
    piece->granules = piece->small ? 0 : sw_div_up(piece->bytes, self->granule_bytes);
    piece->granule = calloc((size_t)piece->granules + 1, sizeof *piece->granule);
    return piece->sum != NULL && piece->granule != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory for a stream");
}

sw_status sw_streamed_place(spillway_stream *self, int64_t first, int64_t count) {
    const int64_t begin = self->file_bytes;
    int64_t end = begin;
    char *base = NULL;
    SW_TRY(grow(&self->reads, first + count, sw_max_i64(1, first)));
    SW_TRY(grow(&self->writes, first + count, sw_max_i64(1, first)));
    for (int64_t p = first; p < first + count; p++) {
        SW_TRY(make_lists(self, &self->piece[p]));
        self->piece[p].file_at = end;
        end += self->piece[p].small ? 0 : page_bytes(&self->piece[p]);
    }
    if (end > begin) {
        const char *folder = self->folder;
        const int64_t bytes = end - begin;
        SW_TRY(sw_file_check_space(&folder, &bytes, 1));
        SW_TRY(sw_file_allocate(self->file, self->folder, end));
        base = mmap(NULL, (size_t)(end - begin), PROT_READ | PROT_WRITE, MAP_SHARED, self->file, (off_t)begin);
        if (base == MAP_FAILED)
            return sw_fail(SW_ERR_UNSUPPORTED, "a file in %s cannot be mapped: %s", self->folder, strerror(errno));
    }
    self->file_bytes = end;
    for (int64_t p = first; p < first + count; p++) {
        struct stream_piece *piece = &self->piece[p];
        piece->address = piece->small ? aligned_alloc(SW_BUFFER_ALIGN_BYTES, (size_t)page_bytes(piece))
                                      : base + (piece->file_at - begin);
        if (piece->address == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory for '%s'", piece->name);
        if (piece->small)
            memset(piece->address, 0, (size_t)page_bytes(piece));
        piece->state = piece->small ? STREAM_PRESENT : STREAM_ABSENT;
    }
    return SW_OK;
}

void sw_streamed_stop(spillway_stream *self) {
    if (!self->lane_runs)
        return;
    pthread_mutex_lock(&self->lock);
    self->stopping = true;
    pthread_cond_signal(&self->work);
    pthread_mutex_unlock(&self->lock);
    pthread_join(self->lane, NULL);
    self->lane_runs = false;
}

/* Bytes that the file lacks after a failure stay in the ring's memory. */
static void give_back(const spillway_stream *self, struct stream_piece *piece, bool keep) {
    const bool written = !piece->changed && !piece->writing;
    if (piece->address == NULL || (keep && (piece->small || !written)))
        return;
    if (piece->small)
        free(piece->address);
    else if (!keep)
        munmap(piece->address, (size_t)page_bytes(piece));
    else if (piece->state != STREAM_ABSENT)
        (void)mmap(piece->address, (size_t)page_bytes(piece), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                   self->file, (off_t)piece->file_at);
}

void sw_streamed_take_down(spillway_stream *self, bool keep) {
    sw_queue_close(self->queue);
    for (int64_t p = 0; p < self->piece_count; p++) {
        give_back(self, &self->piece[p], keep);
        free(self->piece[p].sum);
        free(self->piece[p].granule);
    }
    if (self->ring != NULL)
        munmap(self->ring, (size_t)self->ring_bytes);
    if (self->memory >= 0)
        close(self->memory);
    if (self->file >= 0)
        close(self->file);
    free(self->taken);
    free(self->reads.piece);
    free(self->writes.piece);
    free(self->history);
}
