#include "io/queue/queue.h"

#include "core/size.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { TAKE_BATCH = 64, RETRY_PAUSE_US = 200, HUGE_PAGE_BYTES = 2 << 20 };

struct entry {
    struct sw_ring_request request; /* what is left of it */
    uint64_t tag;                   /* the caller's; the ring's is the entry's index */
    int attempts;
};

struct sw_queue {
    struct sw_ring *ring;
    struct entry *entries;
    int *free_entries; /* a stack */
    int free_count, depth;
};

sw_status sw_queue_alloc(int64_t bytes, void **out) {
    const bool huge = bytes >= HUGE_PAGE_BYTES;
    char text[SW_SIZE_CHARS];
    *out = NULL;
    if (posix_memalign(out, huge ? HUGE_PAGE_BYTES : SW_BUFFER_ALIGN_BYTES, (size_t)bytes) != 0)
        return sw_fail(SW_ERR_NOMEM, "no memory for %s of I/O buffers", sw_format_size(bytes, text));
    /* A drive takes few large pieces faster than hundreds of small pages. The advice may fail. */
    if (huge)
        madvise(*out, (size_t)bytes, MADV_HUGEPAGE);
    return SW_OK;
}

sw_status sw_queue_open(sw_ring_opener open_ring, void *context, const struct sw_ring_spec *spec,
                        struct sw_queue **out) {
    assert(spec->depth > 0 && spec->depth <= SW_QUEUE_MAX_DEPTH);
    struct sw_queue *queue = calloc(1, sizeof *queue);
    struct entry *entries = calloc((size_t)spec->depth, sizeof *entries);
    int *free_entries = calloc((size_t)spec->depth, sizeof *free_entries);
    sw_status status = SW_ERR_NOMEM;
    if (queue == NULL || entries == NULL || free_entries == NULL) {
        sw_fail(status, "no memory for an I/O queue of %d requests", spec->depth);
        goto failed;
    }
    *queue = (struct sw_queue){
        .entries = entries, .free_entries = free_entries, .free_count = spec->depth, .depth = spec->depth};
    for (int i = 0; i < spec->depth; i++)
        free_entries[i] = spec->depth - 1 - i;
    SW_TRY_GOTO(open_ring(context, spec, &queue->ring), failed);
    *out = queue;
    return SW_OK;
failed:
    free(entries);
    free(free_entries);
    free(queue);
    return status;
}

void sw_queue_close(struct sw_queue *queue) {
    if (queue == NULL)
        return;
    struct sw_queue_result results[TAKE_BATCH];
    int count;
    while (sw_queue_in_flight(queue) > 0 && sw_queue_reap(queue, true, results, TAKE_BATCH, &count) == SW_OK)
        continue;
    queue->ring->ops->close(queue->ring);
    free(queue->entries);
    free(queue->free_entries);
    free(queue);
}

int sw_queue_room(const struct sw_queue *queue) {
    return queue->free_count;
}

int sw_queue_in_flight(const struct sw_queue *queue) {
    return queue->depth - queue->free_count;
}

/* Hands over the bytes left of a request, at most as many as a ring takes; the others follow as after a short transfer.
 */
static void put_rest(struct sw_queue *queue, const struct entry *entry) {
    struct sw_ring_request request = entry->request;
    request.bytes = sw_min_i64(request.bytes, SW_RING_MAX_REQUEST_BYTES);
    queue->ring->ops->put(queue->ring, &request);
}

void sw_queue_put(struct sw_queue *queue, const struct sw_ring_request *request) {
    assert(queue->free_count > 0);
    const int index = queue->free_entries[--queue->free_count];
    struct entry *entry = &queue->entries[index];
    *entry = (struct entry){.request = *request, .tag = request->tag};
    entry->request.tag = (uint64_t)index;
    put_rest(queue, entry);
}

sw_status sw_queue_start(struct sw_queue *queue) {
    return queue->ring->ops->submit(queue->ring, false);
}

static bool try_again(struct sw_queue *queue, struct entry *entry) {
    if (entry->attempts >= SW_QUEUE_RETRIES)
        return false;
    entry->attempts++;
    usleep((useconds_t)(RETRY_PAUSE_US * entry->attempts));
    put_rest(queue, entry);
    return true;
}

/* Continues a short transfer at the last aligned offset that it reached, because direct I/O can start nowhere else. */
static bool continue_short(struct sw_queue *queue, struct entry *entry, int64_t moved) {
    struct sw_ring_request *request = &entry->request;
    const int64_t whole = moved / SW_BUFFER_ALIGN_BYTES * SW_BUFFER_ALIGN_BYTES;
    if (whole == 0)
        return try_again(queue, entry);
    entry->attempts = 0;
    request->offset_bytes += whole;
    request->bytes -= whole;
    request->buf = (char *)request->buf + whole;
    put_rest(queue, entry);
    return true;
}

/* Returns whether the request is over, and writes its errno, 0 for none, to *out_error. */
static bool judge(struct sw_queue *queue, struct entry *entry, int64_t result, int *out_error) {
    const struct sw_ring_request *request = &entry->request;
    *out_error = 0;
    if (result == -EINTR || result == -EAGAIN) {
        *out_error = (int)-result;
        return !try_again(queue, entry);
    }
    if (result < 0) {
        *out_error = (int)-result;
        return true;
    }
    if (request->op == SW_RING_FLUSH || result == request->bytes)
        return true;
    *out_error = request->op == SW_RING_READ ? ENODATA : EIO;
    return result > request->bytes || !continue_short(queue, entry, result);
}

static int take(struct sw_queue *queue, struct sw_queue_result *out, int max) {
    struct sw_ring_completion completions[TAKE_BATCH];
    const int batch = max < TAKE_BATCH ? max : TAKE_BATCH;
    const int taken = queue->ring->ops->take(queue->ring, completions, batch);
    int count = 0;
    for (int i = 0; i < taken; i++) {
        const int index = (int)completions[i].tag;
        assert(index >= 0 && index < queue->depth);
        struct entry *entry = &queue->entries[index];
        int error;
        if (!judge(queue, entry, completions[i].result, &error))
            continue;
        const int64_t end = entry->request.offset_bytes + (error == 0 ? entry->request.bytes : 0);
        out[count++] = (struct sw_queue_result){.tag = entry->tag, .error = error, .offset_bytes = end};
        queue->free_entries[queue->free_count++] = index;
    }
    return count;
}

sw_status sw_queue_reap(struct sw_queue *queue, bool wait, struct sw_queue_result *out, int max, int *out_count) {
    *out_count = 0;
    if (sw_queue_in_flight(queue) == 0 || max <= 0)
        return SW_OK;
    do {
        SW_TRY(queue->ring->ops->submit(queue->ring, wait));
        *out_count = take(queue, out, max);
    } while (wait && *out_count == 0);
    return SW_OK;
}

sw_status sw_queue_run(struct sw_queue *queue, const struct sw_ring_request *request,
                       struct sw_queue_result *out_result) {
    assert(sw_queue_in_flight(queue) == 0);
    int count;
    sw_queue_put(queue, request);
    return sw_queue_reap(queue, true, out_result, 1, &count);
}
