/* A ring performs single reads, writes and flushes, and reports each result unjudged: short transfers and errors are
 * the queue's business. The only real ring is on io_uring; tests replace it. A ring belongs to one thread. */
#ifndef SW_IO_QUEUE_RING_H
#define SW_IO_QUEUE_RING_H

#include "core/size.h"
#include "core/status.h"

#include <stdint.h>

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

#endif
