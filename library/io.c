/* Transfers between memory and a file, by the queue of the store. A thread of each handle runs them one after the
 * other, with many requests of a transfer under way. Direct I/O needs an aligned memory, offset and length: memory that
 * is not aligned as the drive needs it passes through blocks of aligned memory, and bytes before the first and behind
 * the last whole page through the page cache, whose pages the system keeps coherent with direct I/O. */
#include "core/files/files.h"
#include "core/size.h"
#include "io/queue/file.h"
#include "io/queue/queue.h"
#include "library/library_private.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* BLOCKS: of aligned memory. WINDOW: blocks from the first that is under way to the last. */
enum { DEFAULT_DEPTH = 32, PAGE = SW_BUFFER_ALIGN_BYTES, ROOM = 64, BLOCKS = 16, WINDOW = SW_QUEUE_MAX_DEPTH };
static_assert(PAGE == 4096, "spillway.h tells callers what is aligned");
#define BLOCK_BYTES ((int64_t)SW_QUEUE_BLOCK_BYTES)

struct transfer {
    bool write, verify;
    int64_t offset, bytes;
    char *memory;
    uint64_t *checksum; /* receives that of the bytes; with `verify`: the one that they must have. NULL: none */
};

struct spillway_io {
    pid_t owner;
    char path[LIBRARY_PATH_CHARS];
    struct spillway_io_options options;
    int direct, cached;   /* descriptors of the same file, with and without direct I/O */
    int64_t memory_align; /* bytes that the drive needs */
    char *blocks;         /* [BLOCKS] of BLOCK_BYTES, for memory that is not aligned */
    struct sw_running_sum *sum;
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    /* Protected by the mutex. Transfers [done, submitted) wait or run, each at its number modulo ROOM. */
    struct transfer transfer[ROOM];
    int64_t submitted, done;
    bool closing;
    sw_status failure; /* of the first transfer that failed */
    char text[LIBRARY_ERROR_CHARS];
};

static sw_status fail_transfer(const spillway_io *self, const struct transfer *t, int error, int64_t at) {
    const sw_status status = t->write ? sw_file_write_error(error) : SW_ERR_IO;
    if (error == ENODATA)
        return sw_fail(status, "%s ends at byte %lld, before byte %lld that was to be read", self->path, (long long)at,
                       (long long)(t->offset + t->bytes));
    return sw_fail(status, "%s cannot be %s at byte %lld: %s", self->path, t->write ? "written" : "read", (long long)at,
                   strerror(error));
}

static void add_to_sum(const spillway_io *self, const struct transfer *t, const char *memory, int64_t bytes) {
    if (t->checksum != NULL)
        sw_running_sum_add(self->sum, memory, bytes);
}

/* Transfers a few bytes through the page cache. */
static sw_status run_cached(const spillway_io *self, const struct transfer *whole, int64_t offset, int64_t bytes) {
    char *memory = whole->memory + (offset - whole->offset);
    for (int64_t at = 0, moved; at < bytes; at += moved) {
        moved = whole->write ? pwrite(self->cached, memory + at, (size_t)(bytes - at), offset + at)
                             : pread(self->cached, memory + at, (size_t)(bytes - at), offset + at);
        if (moved < 0 && errno == EINTR)
            moved = 0;
        else if (moved <= 0)
            return fail_transfer(self, whole, moved < 0 ? errno : ENODATA, offset + at);
    }
    add_to_sum(self, whole, memory, bytes);
    return SW_OK;
}

/* The whole pages [offset, offset + bytes) of a transfer, block by block. Blocks are put in order, and come back in
 * any: [back, put) are under way, but for those of which `is_back[block % WINDOW]` tells that they came before block
 * `back`.
 */
struct pages {
    const struct transfer *whole;
    int64_t offset, bytes;
    bool copies; /* the memory is not aligned */
    int64_t put, back;
    bool is_back[WINDOW];
    sw_status failure; /* the first */
};

static char *memory_of(const struct pages *p, int64_t block) {
    return p->whole->memory + (p->offset - p->whole->offset) + block * BLOCK_BYTES;
}

static int64_t bytes_of(const struct pages *p, int64_t block) {
    return sw_min_i64(BLOCK_BYTES, p->bytes - block * BLOCK_BYTES);
}

/* Puts the next block. One that was copied starts at once, so that the drive works during the copy of the next. */
static sw_status put_block(spillway_io *self, struct sw_queue *queue, struct pages *p) {
    const int64_t block = p->put++, bytes = bytes_of(p, block);
    char *memory = p->copies ? self->blocks + block % BLOCKS * BLOCK_BYTES : memory_of(p, block);
    if (p->copies && p->whole->write)
        memcpy(memory, memory_of(p, block), (size_t)bytes);
    if (p->whole->write)
        add_to_sum(self, p->whole, memory, bytes);
    p->is_back[block % WINDOW] = false;
    sw_queue_put(queue, &(const struct sw_ring_request){.op = p->whole->write ? SW_RING_WRITE : SW_RING_READ,
                                                        .offset_bytes = p->offset + block * BLOCK_BYTES,
                                                        .bytes = bytes,
                                                        .buf = memory,
                                                        .tag = (uint64_t)block});
    return p->copies ? sw_queue_start(queue) : SW_OK;
}

/* Waits for one block, or takes it if it is back. Keeps the first failure. */
static sw_status take_block(spillway_io *self, struct sw_queue *queue, struct pages *p) {
    struct sw_queue_result result;
    int found;
    SW_TRY(sw_queue_reap(queue, true, &result, 1, &found));
    const int64_t block = (int64_t)result.tag;
    p->is_back[block % WINDOW] = true;
    if (result.error != 0 && p->failure == SW_OK)
        p->failure = fail_transfer(self, p->whole, result.error, result.offset_bytes);
    else if (result.error == 0 && p->copies && !p->whole->write)
        memcpy(memory_of(p, block), self->blocks + block % BLOCKS * BLOCK_BYTES, (size_t)bytes_of(p, block));
    for (; p->back < p->put && p->is_back[p->back % WINDOW]; p->back++)
        if (!p->whole->write && p->failure == SW_OK)
            add_to_sum(self, p->whole, memory_of(p, p->back), bytes_of(p, p->back));
    return SW_OK;
}

/* Blocks go round in the aligned memory: a block waits for all up to that BLOCKS before it. After a failure nothing
 * more is put, and what is under way is waited for, because the caller may free its memory then. */
static sw_status run_pages(spillway_io *self, struct sw_queue *queue, struct pages *p) {
    const int64_t count = sw_div_up(p->bytes, BLOCK_BYTES), window = p->copies ? BLOCKS : WINDOW;
    do {
        while (p->failure == SW_OK && p->put < count && sw_queue_room(queue) > 0 && p->put - p->back < window)
            SW_TRY(put_block(self, queue, p));
        SW_TRY(take_block(self, queue, p));
    } while (sw_queue_in_flight(queue) > 0 || (p->failure == SW_OK && p->put < count));
    return p->failure;
}

static sw_status run_once(spillway_io *self, struct sw_queue *queue, const struct transfer *t) {
    const int64_t end = t->offset + t->bytes;
    const int64_t first = sw_min_i64(end, sw_round_up(t->offset, PAGE)), last = sw_max_i64(first, end / PAGE * PAGE);
    struct pages pages = {.whole = t,
                          .offset = first,
                          .bytes = last - first,
                          .copies = (uintptr_t)(t->memory + (first - t->offset)) % (uintptr_t)self->memory_align != 0};
    sw_running_sum_begin(self->sum);
    if (first > t->offset)
        SW_TRY(run_cached(self, t, t->offset, first - t->offset));
    if (last > first)
        SW_TRY(run_pages(self, queue, &pages));
    return end > last ? run_cached(self, t, last, end - last) : SW_OK;
}

/* Bytes with a wrong checksum are read once more: the first time may have gone wrong on the way. */
static sw_status run(spillway_io *self, struct sw_queue *queue, const struct transfer *t) {
    uint64_t sum = 0;
    for (int attempt = 0; attempt < (t->verify ? 2 : 1); attempt++) {
        SW_TRY(run_once(self, queue, t));
        sum = sw_running_sum_get(self->sum);
        if (t->verify && sum == *t->checksum)
            return SW_OK;
    }
    if (t->verify)
        return sw_fail(SW_ERR_CORRUPT,
                       "%s: the %lld bytes from byte %lld on have the checksum %016" PRIx64 ", and %016" PRIx64
                       " is expected: they were changed or damaged since they were written",
                       self->path, (long long)t->bytes, (long long)t->offset, sum, *t->checksum);
    if (t->checksum != NULL)
        *t->checksum = sum;
    return SW_OK;
}

static void end_transfer(spillway_io *self, sw_status status) {
    if (status != SW_OK) {
        self->failure = status;
        snprintf(self->text, sizeof self->text, "%s", sw_error_message(status));
    }
    self->done++;
    pthread_cond_broadcast(&self->changed);
}

/* Runs transfers until the handle is closed. After a failure it skips them. */
static void *work(void *context) {
    spillway_io *self = context;
    struct sw_queue *queue = NULL;
    bool warned = true;
    const struct sw_ring_spec spec = {
        .files = &self->direct, .file_count = 1, .depth = self->options.depth, .warned = &warned};
    sw_status status = sw_queue_open(sw_ring_open_uring, NULL, &spec, &queue);
    pthread_mutex_lock(&self->mutex);
    while (!self->closing || self->done < self->submitted) {
        if (self->done == self->submitted) {
            pthread_cond_wait(&self->changed, &self->mutex);
            continue;
        }
        const struct transfer transfer = self->transfer[self->done % ROOM];
        const bool failed = self->failure != SW_OK;
        pthread_mutex_unlock(&self->mutex);
        if (status == SW_OK && !failed)
            status = run(self, queue, &transfer);
        pthread_mutex_lock(&self->mutex);
        end_transfer(self, failed ? SW_OK : status);
    }
    pthread_mutex_unlock(&self->mutex);
    if (queue != NULL)
        sw_queue_close(queue);
    return NULL;
}

/* Opens the two descriptors. A file that is made gets the rights of the process's umask, like any file of a user. */
static sw_status open_files(spillway_io *self) {
    const int flags = (self->options.write != 0 ? O_RDWR : O_RDONLY) | O_CLOEXEC;
    struct stat found;
    /* A FIFO must not wait for its other end, and a transfer must wait, so only the first open is not to block. */
    self->cached = open(self->path, flags | O_NONBLOCK | (self->options.write != 0 ? O_CREAT : 0), 0666);
    if (self->cached < 0)
        return sw_fail(errno == ENOSPC || errno == EDQUOT ? SW_ERR_SPACE : SW_ERR_IO, "%s cannot be opened: %s",
                       self->path, strerror(errno));
    if (fstat(self->cached, &found) != 0 || !S_ISREG(found.st_mode))
        return sw_fail(SW_ERR_ARG, "%s is not a file", self->path);
    fcntl(self->cached, F_SETFL, fcntl(self->cached, F_GETFL) & ~O_NONBLOCK);
    self->direct = open(self->path, flags);
    if (self->direct < 0)
        return sw_fail(SW_ERR_IO, "%s cannot be opened: %s", self->path, strerror(errno));
    if (!sw_file_try_direct(self->direct) && self->options.allow_buffered == 0)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "%s lies on a file system without direct I/O: name another one, or accept the page cache with "
                       "allow_buffered",
                       self->path);
    self->memory_align = sw_file_memory_alignment(self->direct);
    return SW_OK;
}

static sw_status start(spillway_io *self) {
    void *blocks;
    SW_TRY(open_files(self));
    SW_TRY(sw_queue_alloc(BLOCKS * BLOCK_BYTES, &blocks));
    self->blocks = blocks;
    self->sum = sw_running_sum_new();
    if (self->sum == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a file's handle");
    const struct sw_library_signals signals = sw_library_block_signals(true);
    const int error = pthread_create(&self->thread, NULL, work, self);
    sw_library_allow_signals(&signals);
    self->has_thread = error == 0;
    return error == 0 ? SW_OK : sw_fail(SW_ERR_NOMEM, "no thread for transfers of %s: %s", self->path, strerror(error));
}

static sw_status check_options(const char *path, const struct spillway_io_options *options) {
    if (path == NULL || path[0] == '\0' || strlen(path) >= LIBRARY_PATH_CHARS)
        return sw_fail(SW_ERR_ARG, "the path of the file is missing or too long");
    if (options->depth < 0 || options->depth > SW_QUEUE_MAX_DEPTH)
        return sw_fail(SW_ERR_ARG, "depth is %d, and must be from 1 to %d, or 0 for %d", options->depth,
                       SW_QUEUE_MAX_DEPTH, DEFAULT_DEPTH);
    return SW_OK;
}

static sw_status open_io(const char *path, const struct spillway_io_options *given, spillway_io **out) {
    struct spillway_io_options options = SPILLWAY_IO_OPTIONS_INIT;
    if (out == NULL)
        return sw_fail(SW_ERR_ARG, "there is nowhere to return the handle: out is NULL");
    *out = NULL;
    SW_TRY(sw_library_take_struct(&options, sizeof options, given, "the options", "SPILLWAY_IO_OPTIONS_INIT"));
    SW_TRY(check_options(path, &options));
    spillway_io *self = calloc(1, sizeof *self);
    if (self == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a file's handle");
    snprintf(self->path, sizeof self->path, "%s", path);
    self->options = options;
    self->options.depth = options.depth > 0 ? options.depth : DEFAULT_DEPTH;
    self->owner = getpid();
    self->direct = self->cached = -1;
    pthread_mutex_init(&self->mutex, NULL);
    pthread_cond_init(&self->changed, NULL);
    const sw_status status = start(self);
    if (status == SW_OK)
        *out = self;
    else {
        SW_HANDLES_ERRORS();
        spillway_io_close(self);
    }
    return status;
}

int spillway_io_open(const char *path, const struct spillway_io_options *options, spillway_io **out) {
    sw_error_clear();
    return sw_library_end(NULL, open_io(path, options, out), false);
}

/* Refuses no handle, and one of another process. */
static sw_status begin(const spillway_io *self) {
    sw_error_clear();
    if (self == NULL)
        return sw_fail(SW_ERR_ARG, "the handle of the file is NULL: spillway_io_open makes one");
    return self->owner == getpid()
               ? SW_OK
               : sw_fail(SW_ERR_ARG,
                         "this process is a fork of the one that opened %s, whose thread it lacks: open it again",
                         self->path);
}

static sw_status check_transfer(const spillway_io *self, const struct transfer *t, int how) {
    if (how != SPILLWAY_IO_READ && how != SPILLWAY_IO_WRITE && how != SPILLWAY_IO_VERIFY)
        return sw_fail(SW_ERR_ARG, "%d is none of SPILLWAY_IO_READ, SPILLWAY_IO_WRITE and SPILLWAY_IO_VERIFY", how);
    if (t->verify && t->checksum == NULL)
        return sw_fail(SW_ERR_ARG, "SPILLWAY_IO_VERIFY needs the checksum that the bytes must have");
    if (t->write && self->options.write == 0)
        return sw_fail(SW_ERR_ARG, "%s is open for reading: set `write` in its options", self->path);
    if (t->memory == NULL || t->bytes < 1 || t->offset < 0 || t->offset > INT64_MAX - t->bytes - PAGE)
        return sw_fail(SW_ERR_ARG, "%lld bytes at byte %lld of %s are no range, or the memory is NULL",
                       (long long)t->bytes, (long long)t->offset, self->path);
    return SW_OK;
}

/* Returns the failure of the handle's transfers. Needs the mutex. */
static sw_status failure_of(const spillway_io *self) {
    return self->failure == SW_OK ? SW_OK : sw_fail(self->failure, "%s", self->text);
}

/* Waits until so many transfers are done. */
static sw_status wait_for(spillway_io *self, int64_t count) {
    pthread_mutex_lock(&self->mutex);
    while (self->done < count)
        pthread_cond_wait(&self->changed, &self->mutex);
    const sw_status status = failure_of(self);
    pthread_mutex_unlock(&self->mutex);
    return status;
}

static sw_status submit(spillway_io *self, const struct transfer *transfer, int how, int64_t *out_number) {
    SW_TRY(begin(self));
    SW_TRY(check_transfer(self, transfer, how));
    SW_TRY(wait_for(self, self->submitted - ROOM + 1));
    pthread_mutex_lock(&self->mutex);
    self->transfer[self->submitted % ROOM] = *transfer;
    if (out_number != NULL)
        *out_number = self->submitted;
    self->submitted++;
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->mutex);
    return SW_OK;
}

int spillway_io_submit_checked(spillway_io *self, int how, int64_t offset_bytes, void *memory, int64_t bytes,
                               uint64_t *checksum, int64_t *out_number) {
    const struct transfer transfer = {.write = how == SPILLWAY_IO_WRITE,
                                      .verify = how == SPILLWAY_IO_VERIFY,
                                      .offset = offset_bytes,
                                      .bytes = bytes,
                                      .memory = memory,
                                      .checksum = checksum};
    return sw_library_end(NULL, submit(self, &transfer, how, out_number), false);
}

int spillway_io_submit(spillway_io *self, int how, int64_t offset_bytes, void *memory, int64_t bytes,
                       int64_t *out_number) {
    return spillway_io_submit_checked(self, how, offset_bytes, memory, bytes, NULL, out_number);
}

uint64_t spillway_checksum(const void *memory, int64_t bytes) {
    return sw_checksum(memory, bytes);
}

static sw_status wait_io(spillway_io *self, int64_t number) {
    SW_TRY(begin(self));
    if (number < -1 || number >= self->submitted)
        return sw_fail(SW_ERR_ARG, "there is no transfer %lld of %s: %lld were submitted", (long long)number,
                       self->path, (long long)self->submitted);
    return wait_for(self, number == -1 ? self->submitted : number + 1);
}

int spillway_io_wait(spillway_io *self, int64_t number) {
    return sw_library_end(NULL, wait_io(self, number), false);
}

static sw_status flush(spillway_io *self) {
    SW_TRY(wait_io(self, -1));
    return fdatasync(self->cached) == 0
               ? SW_OK
               : sw_fail(sw_file_write_error(errno), "%s cannot be made durable: %s", self->path, strerror(errno));
}

int spillway_io_flush(spillway_io *self) {
    return sw_library_end(NULL, flush(self), false);
}

static sw_status size_of(spillway_io *self, int64_t *out_bytes) {
    SW_TRY(wait_io(self, -1));
    return sw_file_size(self->cached, self->path, out_bytes);
}

int spillway_io_size(spillway_io *self, int64_t *out_bytes) {
    return sw_library_end(NULL, size_of(self, out_bytes), false);
}

void spillway_io_close(spillway_io *self) {
    if (self == NULL || self->owner != getpid())
        return;
    pthread_mutex_lock(&self->mutex);
    self->closing = true;
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->mutex);
    if (self->has_thread)
        pthread_join(self->thread, NULL);
    if (self->direct >= 0)
        close(self->direct);
    if (self->cached >= 0)
        close(self->cached);
    pthread_cond_destroy(&self->changed);
    pthread_mutex_destroy(&self->mutex);
    sw_running_sum_free(self->sum);
    free(self->blocks);
    free(self);
}
