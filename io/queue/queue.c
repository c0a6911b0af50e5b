/* The io_uring ring, and the queue of whole transfers on top of it.
 *
 * The ring does one request and reports the kernel's answer as it is; everything that needs judgement (short transfers,
 * retries, what is an error) is in the queue. Tests replace the ring by one that fails, delays or tears, so the
 * judgement is tested without a faulty drive.
 *
 * Large transfers are cut into blocks, since a drive works on many requests of a megabyte faster than on one huge one,
 * and a short transfer then costs little. Registered buffers save the kernel from pinning pages per request; a system
 * that refuses to register them works as well, only slower. */
#include "io/queue/queue.h"

#include "core/log.h"
#include "core/size.h"

#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { SUBMIT_RETRIES = 1000 };

/* A new ring's memory may have the addresses of one that another thread has closed. liburing maps and unmaps it by
 * itself, so the thread sanitizer is told that the one happened before the other. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
void __tsan_acquire(void *address);
void __tsan_release(void *address);
static char ring_memory;
#define BEGIN_RING_MEMORY() __tsan_acquire(&ring_memory)
#define END_RING_MEMORY() __tsan_release(&ring_memory)
#endif
#endif
#ifndef BEGIN_RING_MEMORY
#define BEGIN_RING_MEMORY() ((void)0)
#define END_RING_MEMORY() ((void)0)
#endif

struct uring {
    struct sw_ring base;
    struct io_uring ring;
    struct sw_ring_buffer buffers[SW_RING_MAX_BUFFERS];
    int first_piece[SW_RING_MAX_BUFFERS]; /* index of each region's first registered piece */
    int buffer_count;                     /* 0: nothing is registered */
};

static struct uring *as_uring(struct sw_ring *ring) {
    return (struct uring *)ring;
}

/* Returns the index of the registered piece that holds all of the request's memory, or -1. */
static int registered_piece(const struct uring *self, const struct sw_ring_request *request) {
    const uintptr_t from = (uintptr_t)request->buf;
    for (int i = 0; i < self->buffer_count; i++) {
        const uintptr_t base = (uintptr_t)self->buffers[i].base;
        const uintptr_t end = base + (uintptr_t)self->buffers[i].bytes;
        if (from < base || from + (uintptr_t)request->bytes > end)
            continue;
        const uintptr_t piece = (from - base) / SW_RING_PIECE_BYTES;
        const uintptr_t last = (from + (uintptr_t)request->bytes - 1 - base) / SW_RING_PIECE_BYTES;
        return piece == last ? self->first_piece[i] + (int)piece : -1;
    }
    return -1;
}

static void uring_put(struct sw_ring *ring, const struct sw_ring_request *request) {
    struct uring *self = as_uring(ring);
    struct io_uring_sqe *sqe = io_uring_get_sqe(&self->ring);
    assert(sqe != NULL && request->bytes >= 0 && request->bytes <= SW_RING_MAX_REQUEST_BYTES);
    const unsigned bytes = (unsigned)request->bytes;
    const uint64_t offset = (uint64_t)request->offset_bytes;
    const int piece = request->op == SW_RING_FLUSH ? -1 : registered_piece(self, request);
    if (request->op == SW_RING_FLUSH)
        io_uring_prep_fsync(sqe, request->file, IORING_FSYNC_DATASYNC);
    else if (request->op == SW_RING_READ && piece >= 0)
        io_uring_prep_read_fixed(sqe, request->file, request->buf, bytes, offset, piece);
    else if (request->op == SW_RING_READ)
        io_uring_prep_read(sqe, request->file, request->buf, bytes, offset);
    else if (piece >= 0)
        io_uring_prep_write_fixed(sqe, request->file, request->buf, bytes, offset, piece);
    else
        io_uring_prep_write(sqe, request->file, request->buf, bytes, offset);
    sqe->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data64(sqe, request->tag);
}

static bool is_transient(int error) {
    return error == -EINTR || error == -EAGAIN || error == -EBUSY;
}

/* Submits until the ring is empty: the kernel may take only some of the requests. */
static sw_status uring_submit(struct sw_ring *ring, bool wait) {
    struct uring *self = as_uring(ring);
    for (int attempt = 0; attempt < SUBMIT_RETRIES; attempt++) {
        const bool ready = io_uring_cq_ready(&self->ring) > 0;
        const int result = wait && !ready ? io_uring_submit_and_wait(&self->ring, 1) : io_uring_submit(&self->ring);
        if (result < 0 && !is_transient(result))
            return sw_fail(SW_ERR_IO, "io_uring refused a batch of requests: %s", strerror(-result));
        if (result == -EINTR)
            attempt = 0;
        /* The kernel wants its completions to be taken before it accepts more. */
        if (result == -EBUSY && io_uring_cq_ready(&self->ring) > 0)
            return SW_OK;
        if (result >= 0 && io_uring_sq_ready(&self->ring) == 0 && (!wait || io_uring_cq_ready(&self->ring) > 0))
            return SW_OK;
    }
    return sw_fail(SW_ERR_IO, "io_uring did not accept a batch of requests after %d attempts", SUBMIT_RETRIES);
}

static int uring_take(struct sw_ring *ring, struct sw_ring_completion *out, int max) {
    struct uring *self = as_uring(ring);
    int count = 0;
    struct io_uring_cqe *cqe;
    while (count < max && io_uring_peek_cqe(&self->ring, &cqe) == 0) {
        out[count++] = (struct sw_ring_completion){.tag = cqe->user_data, .result = cqe->res};
        io_uring_cqe_seen(&self->ring, cqe);
    }
    return count;
}

static void uring_close(struct sw_ring *ring) {
    struct uring *self = as_uring(ring);
    END_RING_MEMORY();
    io_uring_queue_exit(&self->ring);
    free(self);
}

static const struct sw_ring_ops uring_ops = {
    .put = uring_put,
    .submit = uring_submit,
    .take = uring_take,
    .close = uring_close,
};

static void warn_unregistered(const struct sw_ring_spec *spec, int error) {
    if (spec->warned == NULL || *spec->warned)
        return;
    *spec->warned = true;
    int64_t bytes = 0;
    for (int i = 0; i < spec->buffer_count; i++)
        bytes += spec->buffers[i].bytes;
    struct rlimit limit = {0};
    getrlimit(RLIMIT_MEMLOCK, &limit);
    const int64_t limit_bytes = (int64_t)(limit.rlim_cur > INT64_MAX ? INT64_MAX : limit.rlim_cur);
    char need[SW_SIZE_CHARS], have[SW_SIZE_CHARS];
    sw_log_info(
        "io_uring did not register %s of buffers (%s; the memlock limit is %s): direct I/O goes on unregistered, "
        "at some more CPU time; 'ulimit -l unlimited' or LimitMEMLOCK=infinity lifts it",
        sw_format_size(bytes, need), strerror(error), sw_format_size(limit_bytes, have));
}

/* Registers memory in pieces, either all or none. A failure is no error: unregistered requests work as well. */
static void register_buffers(struct uring *self, const struct sw_ring_spec *spec) {
    int pieces = 0;
    for (int i = 0; i < spec->buffer_count; i++)
        pieces += (int)sw_div_up(spec->buffers[i].bytes, SW_RING_PIECE_BYTES);
    if (pieces == 0)
        return;
    struct iovec *list = calloc((size_t)pieces, sizeof *list);
    int used = 0;
    for (int i = 0; list != NULL && i < spec->buffer_count; i++) {
        const struct sw_ring_buffer *buffer = &spec->buffers[i];
        self->buffers[i] = *buffer;
        self->first_piece[i] = used;
        for (int64_t at = 0; at < buffer->bytes; at += SW_RING_PIECE_BYTES)
            list[used++] = (struct iovec){.iov_base = (char *)buffer->base + at,
                                          .iov_len = (size_t)sw_min_i64(buffer->bytes - at, SW_RING_PIECE_BYTES)};
    }
    const int result = list != NULL ? io_uring_register_buffers(&self->ring, list, (unsigned)used) : -ENOMEM;
    free(list);
    if (result == 0)
        self->buffer_count = spec->buffer_count;
    else
        warn_unregistered(spec, -result);
}

static sw_status explain_refusal(int error) {
    if (error == ENOSYS || error == EPERM || error == EACCES)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "io_uring is not allowed here (%s): set the sysctl kernel.io_uring_disabled to 0, or, in a "
                       "container, let its seccomp profile allow io_uring_setup",
                       strerror(error));
    if (error == ENOMEM)
        return sw_fail(SW_ERR_NOMEM, "io_uring got no memory for its ring: raise the memlock limit ('ulimit -l') or "
                                     "free some memory");
    return sw_fail(SW_ERR_IO, "io_uring could not be set up: %s", strerror(error));
}

/* Opens a ring whose completions do not interrupt its owner. Kernels before 5.19 do not know the flags for that. */
static int set_up(struct io_uring *ring, unsigned depth) {
    int result = io_uring_queue_init(depth, ring, IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG);
    if (result == -EINVAL)
        result = io_uring_queue_init(depth, ring, 0);
    BEGIN_RING_MEMORY();
    return result;
}

sw_status sw_ring_open_uring(void *context, const struct sw_ring_spec *spec, struct sw_ring **out) {
    (void)context;
    assert(spec->depth > 0 && spec->buffer_count <= SW_RING_MAX_BUFFERS);
    struct uring *self = calloc(1, sizeof *self);
    if (self == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for an I/O ring");
    self->base.ops = &uring_ops;
    int result = set_up(&self->ring, (unsigned)spec->depth);
    if (result < 0) {
        free(self);
        return explain_refusal(-result);
    }
    result = io_uring_register_files(&self->ring, spec->files, (unsigned)spec->file_count);
    if (result < 0) {
        uring_close(&self->base);
        return sw_fail(SW_ERR_IO, "io_uring could not register %d files: %s", spec->file_count, strerror(-result));
    }
    register_buffers(self, spec);
    *out = &self->base;
    return SW_OK;
}

enum { TAKE_BATCH = 64, RETRY_PAUSE_US = 200, HUGE_PAGE_BYTES = 2 << 20 };

struct entry {
    struct sw_ring_request request; /* the rest of it */
    uint64_t tag;                   /* the caller's tag; the ring's tag is the entry's index */
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
    /* A drive handles a few large pieces faster than hundreds of small pages. The advice may fail. */
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

/* Puts the rest of a request into the ring, at most as many bytes as a ring takes. More follow as after a short
 * transfer. */
static void put_rest(struct sw_queue *queue, const struct entry *entry) {
    struct sw_ring_request request = entry->request;
    request.bytes = sw_min_i64(request.bytes, SW_RING_MAX_REQUEST_BYTES);
    queue->ring->ops->put(queue->ring, &request);
}

void sw_queue_put(struct sw_queue *queue, const struct sw_ring_request *request) {
    assert(queue->free_count > 0 && request->file >= 0 && request->offset_bytes >= 0 && request->bytes >= 0);
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

/* Continues a short transfer at the last aligned offset that it reached: direct I/O can start nowhere else. */
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

/* Returns whether the request is over. *out_error is its errno, 0 for none. */
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
