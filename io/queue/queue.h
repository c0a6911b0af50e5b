/* The queue: whole transfers on top of a ring. It continues short transfers from where they stopped, retries what is
 * transient a stated number of times, and reports the rest with its place. Only EINTR and EAGAIN are transient: the
 * system has tried again itself before it says EIO, and after a flush that failed another one proves nothing. Up to
 * `depth` requests are under way; it belongs to one thread. */
#ifndef SW_IO_QUEUE_QUEUE_H
#define SW_IO_QUEUE_QUEUE_H

#include "io/queue/ring.h"

enum {
    SW_QUEUE_RETRIES = 8,           /* in a row, of a request that was interrupted, got EAGAIN, or moved no page */
    SW_QUEUE_BLOCK_BYTES = 1 << 20, /* larger transfers are cut into requests of about this size */
    SW_QUEUE_MAX_DEPTH = 1024,
};

struct sw_queue;

struct sw_queue_result {
    uint64_t tag;
    int error;            /* 0, or the errno that ended the request; ENODATA where the file ended early */
    int64_t offset_bytes; /* where the request stopped: its end, or the first byte not transferred */
};

/* Takes memory to transfer from and to, aligned for direct I/O and on huge pages where it fills one. Its content is
 * undefined; free() frees it. */
sw_status sw_queue_alloc(int64_t bytes, void **out);

/* Opens a ring with the opener and takes it over. */
sw_status sw_queue_open(sw_ring_opener open_ring, void *context, const struct sw_ring_spec *spec,
                        struct sw_queue **out);
/* Waits for the requests that are under way, and closes the ring too. */
void sw_queue_close(struct sw_queue *queue);

/* Returns how many requests may be put now. */
int sw_queue_room(const struct sw_queue *queue);
/* Returns how many requests were put and are not yet reaped. */
int sw_queue_in_flight(const struct sw_queue *queue);

/* Adds a request of any length; there must be room. It starts with the next sw_queue_start or sw_queue_reap. */
void sw_queue_put(struct sw_queue *queue, const struct sw_ring_request *request);
sw_status sw_queue_start(struct sw_queue *queue);

/* Returns up to max finished requests; with wait, blocks until at least one is or nothing is in flight. */
sw_status sw_queue_reap(struct sw_queue *queue, bool wait, struct sw_queue_result *out, int max, int *out_count);

/* Runs one request from start to end and writes its result to *out_result. Nothing else may be in flight. */
sw_status sw_queue_run(struct sw_queue *queue, const struct sw_ring_request *request,
                       struct sw_queue_result *out_result);

#endif
