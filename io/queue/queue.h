/* The queue: whole transfers on top of a ring. It continues short transfers, retries transient errors a fixed number of
 * times, and reports all others with their offset. Only EINTR and EAGAIN are transient: before EIO the system has
 * already tried again, and after a failed flush another one proves nothing. Up to `depth` requests are under way. A
 * queue belongs to one thread. */
#ifndef SW_IO_QUEUE_QUEUE_H
#define SW_IO_QUEUE_QUEUE_H

#include "core/size.h"
#include "core/status.h"

#include <stdint.h>

/* A ring performs single reads, writes and flushes, and reports each result unjudged: short transfers and errors are
 * the queue's business. The only real ring is on io_uring; tests replace it. A ring belongs to one thread. */
enum {
    SW_RING_MAX_BUFFERS = 16,            /* memory regions to register */
    SW_RING_PIECE_BYTES = 1 << 30,       /* the kernel's limit for one registered buffer */
    SW_RING_MAX_REQUEST_BYTES = 1 << 30, /* the kernel's interface has 32 bits for lengths */
};

typedef enum { SW_RING_READ, SW_RING_WRITE, SW_RING_FLUSH } sw_ring_op;

struct sw_ring_request {
    sw_ring_op op;
    int file; /* index into the files given at open */
    int64_t offset_bytes, bytes;
    void *buf;
    uint64_t tag;
};

struct sw_ring_completion {
    uint64_t tag;
    int64_t result; /* bytes transferred, 0 for a flush, or a negative errno */
};

struct sw_ring;

struct sw_ring_ops {
    /* Adds a request to the batch. The queue never has more than `depth` under way. */
    void (*put)(struct sw_ring *ring, const struct sw_ring_request *request);
    /* Hands the batch to the system. With `wait`, returns when at least one request has completed. */
    sw_status (*submit)(struct sw_ring *ring, bool wait);
    /* Takes up to `max` completions that have arrived, without blocking. Returns how many. */
    int (*take)(struct sw_ring *ring, struct sw_ring_completion *out, int max);
    void (*close)(struct sw_ring *ring);
};

/* The first member of every kind of ring. */
struct sw_ring {
    const struct sw_ring_ops *ops;
};

struct sw_ring_buffer {
    void *base;
    int64_t bytes;
};

struct sw_ring_spec {
    const int *files; /* open descriptors; must outlive the ring */
    int file_count;
    const struct sw_ring_buffer *buffers; /* memory that most requests use */
    int buffer_count;
    int depth;
    bool *warned; /* set once the user was told that buffers could not be registered */
};

/* The type of a function that opens a ring. `context` is whatever was registered with it. */
typedef sw_status (*sw_ring_opener)(void *context, const struct sw_ring_spec *spec, struct sw_ring **out);

/* Opens the ring on io_uring. The context is unused. */
sw_status sw_ring_open_uring(void *context, const struct sw_ring_spec *spec, struct sw_ring **out);

enum {
    SW_QUEUE_RETRIES = 8, /* retries in a row of a request that was interrupted, got EAGAIN, or moved no page */
    SW_QUEUE_BLOCK_BYTES = 1 << 20, /* larger transfers are cut into requests of about this size */
    SW_QUEUE_MAX_DEPTH = 1024,
};

struct sw_queue;

struct sw_queue_result {
    uint64_t tag;
    int error;            /* 0, or the errno that ended the request; ENODATA: the file ended early */
    int64_t offset_bytes; /* where the request stopped: its end, or the first byte that was not transferred */
};

/* Allocates memory for transfers, aligned for direct I/O, and on huge pages if it is large enough. Its content is
 * undefined; free() frees it. */
sw_status sw_queue_alloc(int64_t bytes, void **out);

/* Opens a ring with `open_ring`, and owns it. */
sw_status sw_queue_open(sw_ring_opener open_ring, void *context, const struct sw_ring_spec *spec,
                        struct sw_queue **out);
/* Waits for the requests under way, and closes the ring too. */
void sw_queue_close(struct sw_queue *queue);

/* Returns how many requests may be put now. */
int sw_queue_room(const struct sw_queue *queue);
/* Returns how many requests were put and not yet reaped. */
int sw_queue_in_flight(const struct sw_queue *queue);

/* Adds a request of any length; there must be room. It starts with the next sw_queue_start or sw_queue_reap. */
void sw_queue_put(struct sw_queue *queue, const struct sw_ring_request *request);
sw_status sw_queue_start(struct sw_queue *queue);

/* Returns up to `max` finished requests. With `wait`, blocks until at least one has finished or nothing is in flight.
 */
sw_status sw_queue_reap(struct sw_queue *queue, bool wait, struct sw_queue_result *out, int max, int *out_count);

/* Runs one request from start to end and writes its result to *out_result. Nothing else may be in flight. */
sw_status sw_queue_run(struct sw_queue *queue, const struct sw_ring_request *request,
                       struct sw_queue_result *out_result);

#endif
