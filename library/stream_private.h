/* The inside of a stream, which its files share. */
#ifndef SW_LIBRARY_STREAM_PRIVATE_H
#define SW_LIBRARY_STREAM_PRIVATE_H

#include "core/size.h"
#include "core/status.h"
#include "io/queue/queue.h"
#include "library/library_private.h"

#include <pthread.h>
#include <stdio.h>

/* STREAM_BLOCK_BYTES: what one request moves at most, and one checksum covers. STREAM_DEPTH: requests under way. */
enum { STREAM_BLOCK_BYTES = 1 << 20, STREAM_DEPTH = 32 };

/* Where the bytes of a piece are. */
enum stream_state {
    STREAM_ABSENT,  /* in the file alone */
    STREAM_READING, /* granules are assigned, and reads are under way */
    STREAM_LANDED,  /* on a GPU: the granules have the bytes, and its address does not lead to them yet */
    STREAM_PRESENT, /* its address leads to its granules */
};

/* How a need uses a piece. STREAM_CHANGE and STREAM_OVERWRITE wait until earlier changes are in the file, because the
 * lane reads what it writes. STREAM_OVERWRITE: all bytes will be written before the release, so none are read. */
enum stream_use { STREAM_READ, STREAM_CHANGE, STREAM_OVERWRITE };

/* Bytes that move as one: the weights of a tensor, or its gradient. */
struct stream_piece {
    char *name;
    int64_t bytes, file_at; /* file_at: offset in the file, a multiple of the page */
    char *address;          /* of the piece for good */
    char *host;             /* of the host's copy of a piece on a GPU, whose file_at is its offset from the first */
    bool small;             /* lives in memory for good, and has no place in the file */
    int64_t gradient;       /* number of the piece of the tensor's gradient; -1: none */
    int64_t granules;
    int32_t *granule; /* [granules], of the ring; valid unless absent */
    enum stream_state state;
    int64_t holds;               /* who uses it now */
    int64_t backward_at;         /* number of the last backward need that used it; -1: none */
    bool filled;                 /* the file has it, or will have it: `changed` or `writing` is set */
    bool early;                  /* was read ahead, and not used yet */
    bool changed, writing;       /* to be written; being written, so it may be read and not be changed */
    uint64_t sample;             /* of the bytes as the file has them, while present */
    uint64_t *sum;               /* XXH3 of each block, as last written */
    int64_t next_put, under_way; /* bytes whose requests were put; requests that are under way */
    int error;                   /* errno of a request */
    bool again;                  /* read a second time, because a sum was wrong */
    int64_t mark, next_use;      /* next_use: uses from now to its next one, if `mark` is that of the last look ahead */
};

/* A use of a piece, as the history keeps it. */
struct stream_entry {
    int32_t piece;
    bool overwrites;
};

/* A queue of pieces that wait for their transfer. */
struct stream_fifo {
    int64_t *piece;
    int64_t first, count;
};

struct spillway_stream {
    pid_t owner;
    char folder[LIBRARY_PATH_CHARS];
    struct spillway_stream_options options; /* `folder` is NULL: see above */
    bool open;
    int64_t users;                                 /* stores that use the stream */
    struct stream_piece *piece;                    /* [piece_room] */
    int64_t piece_room, piece_count, tensor_count; /* pieces beyond the tensors are gradients */

    int file, memory; /* descriptors: the file, and the ring's memory (memfd); -1: none */
    char *ring;       /* the ring's memory, as the drive transfers from and to it */
    int64_t ring_bytes, granule_bytes, granules, free_granules, early_granules, small_bytes, file_bytes;
    bool *taken;    /* [granules] */
    int64_t cursor; /* granule at which the search for a free one goes on */
    struct sw_queue *queue;
    bool warned;
    struct stream_cuda *cuda; /* the GPU (stream_cuda.c), and there is no file then; NULL: tensors are in host memory */

    /* All below, and the pieces, belong to who holds the lock. */
    pthread_mutex_t lock;
    pthread_cond_t work, progress;
    pthread_t lane;
    bool lane_runs, stopping;
    struct stream_fifo reads, writes;
    sw_status status; /* the first failure of the lane, and its message */
    char message[LIBRARY_ERROR_CHARS];

    struct stream_entry *history; /* [history_room] */
    int64_t history_count, history_room;
    int64_t match; /* an earlier place of the history's end; -1: none */
    int direction; /* of the last need */
    int64_t mark, backward_calls;
    struct spillway_stream_usage used;
};

/* Records a use, and finds where the history has been like this before (stream_order.c). */
void sw_streamed_record(spillway_stream *self, int64_t piece, bool overwrites);
/* Returns the use that is expected `ahead` uses from now, from 1 on; false: nothing is expected there. */
bool sw_streamed_expect(const spillway_stream *self, int64_t ahead, struct stream_entry *out);
/* Sets next_use of all pieces that are expected to be used. An overwriting use needs no bytes that are there now. */
void sw_streamed_look_ahead(spillway_stream *self);

/* Appends a piece to a queue that has room for `room`. */
void sw_streamed_queue(struct stream_fifo *fifo, int64_t room, int64_t piece);
/* Returns the failure of the lane, if it failed. */
sw_status sw_streamed_check(const spillway_stream *self);
/* Returns a digest of a word of each page: a change of most of a tensor shows, at little cost. */
uint64_t sw_streamed_sample(const struct stream_piece *piece);
/* Maps a piece's granules over its addresses. */
sw_status sw_streamed_map_granules(const spillway_stream *self, const struct stream_piece *piece);
/* Empties the page tables of the ring's own mapping; the bytes stay. */
void sw_streamed_empty_tables(const spillway_stream *self, const struct stream_piece *piece);
/* Begins to read what comes next, as far as there is room. The caller holds the lock. */
sw_status sw_streamed_read_ahead(spillway_stream *self);

/* Makes the file's and the ring's memory of an opened stream, and starts its lane (stream_ring.c). */
sw_status sw_streamed_start(spillway_stream *self);
/* Gives `count` new pieces from `first` on their places in the file and their addresses. */
sw_status sw_streamed_place(spillway_stream *self, int64_t first, int64_t count);
/* Waits for all writes and ends the lane. */
void sw_streamed_stop(spillway_stream *self);
/* Takes down memory and file. keep: addresses stay readable. */
void sw_streamed_take_down(spillway_stream *self, bool keep);
/* Brings pieces into memory and holds them until they are released. backward: keeps them only until the second backward
 * need after this one. */
sw_status sw_streamed_hold(spillway_stream *self, const int64_t *pieces, int64_t count, enum stream_use use,
                           int direction);
/* Releases held pieces. changed: they will be written to the file. SW_ERR_ARG: one of them is not held. */
sw_status sw_streamed_release(spillway_stream *self, const int64_t *pieces, int64_t count, bool changed);
/* Takes over what the caller has written to the addresses of held pieces. */
sw_status sw_streamed_take_changes(spillway_stream *self, const int64_t *pieces, int64_t count);

/* Tensors on a GPU (stream_cuda.c). Who calls one of these that changes mappings holds the lock. */
struct CUstream_st;

/* Chooses the GPU of a new stream, and returns of which bytes its memory is a multiple. */
sw_status sw_streamed_cuda_create(spillway_stream *self, int number);
int64_t sw_streamed_cuda_unit(const spillway_stream *self);
/* Makes the memory of an opened stream, and starts its lane; the end of all that, as sw_streamed_take_down. */
sw_status sw_streamed_cuda_start(spillway_stream *self);
void sw_streamed_cuda_take_down(spillway_stream *self, bool keep);
/* Takes note of a stream of CUDA that has work of the caller. */
sw_status sw_streamed_cuda_name(spillway_stream *self, struct CUstream_st *stream);
/* Lets the addresses of a piece lead to its granules (ring), or to the host's copy, once the caller's work is done. */
sw_status sw_streamed_cuda_map(const spillway_stream *self, const struct stream_piece *piece, bool ring);
/* Copies what the caller's work has written to held pieces to the host. */
sw_status sw_streamed_cuda_take_changes(spillway_stream *self, const int64_t *pieces, int64_t count);
/* Waits for the caller's work, after which nothing reads the host's copies but who is told to. */
sw_status sw_streamed_cuda_drain(spillway_stream *self);
/* Copies the small tensors from the host's copies to the GPU. */
sw_status sw_streamed_cuda_renew_small(spillway_stream *self);

/* For the store (step.c, transfer.c). */

/* Lets the GPU read what the store has written to the host's copies. Nobody holds a tensor. */
sw_status sw_streamed_renew(spillway_stream *self);

/* Returns in *out the tensor whose weights are at this address, -1 if the stream has nothing there. */
sw_status sw_streamed_find(const spillway_stream *self, const char *name, const void *address, int64_t bytes,
                           int64_t *out);
/* Adds a piece of so many bytes for the gradient of each of these tensors that has none; see stream_piece.gradient. */
sw_status sw_streamed_add_gradients(spillway_stream *self, const int64_t *tensors, const int64_t *bytes, int64_t count);
/* Keeps the first failure for whoever waits, which is told. */
static inline void sw_streamed_fail(spillway_stream *self, sw_status status) {
    if (status == SW_OK)
        return;
    if (self->status == SW_OK) {
        self->status = status;
        snprintf(self->message, sizeof self->message, "%s", sw_error_message(status));
    }
    sw_error_clear();
    pthread_cond_broadcast(&self->progress);
}

static inline char *sw_streamed_address(const spillway_stream *self, int64_t piece) {
    return self->piece[piece].address;
}

#endif
