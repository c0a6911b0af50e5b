/* The queue: whole transfers on top of a ring. It continues short transfers, retries transient errors a fixed number of
 * times, and reports all others with their offset. Only EINTR and EAGAIN are transient: before EIO the system has
 * already tried again, and after a failed flush another one proves nothing. Up to `depth` requests are under way. A
 * queue belongs to one thread. */
#ifndef SW_IO_QUEUE_QUEUE_H
#define SW_IO_QUEUE_QUEUE_H

#include "io/queue/ring.h"

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
