/* Transfers between memory and a file, by the queue of the store. A thread of each handle runs them, in the order of
 * their submission as far as anybody can tell: a transfer starts while others run unless they share pages of the file
 * or memory, and one of them changes these. Direct I/O needs an aligned memory, offset and length: memory that is not
 * aligned as the drive needs it passes through blocks of aligned memory, and bytes before the first and behind the last
 * whole page through the page cache, whose pages the system keeps coherent with direct I/O. */
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
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* ROOM: transfers that wait or run; RUNNING: that run. BLOCKS: the most of aligned memory. WINDOW: blocks of a transfer
 * from the first that is under way to the last. */
enum {
    DEFAULT_DEPTH = 32,
    PAGE = SW_BUFFER_ALIGN_BYTES,
    ROOM = 64,
    RUNNING = 32,
    BLOCKS = 64,
    WINDOW = SW_QUEUE_MAX_DEPTH,
    TAG_BLOCK_BITS = 48
};
static_assert(PAGE == 4096, "spillway.h tells callers what is aligned");
#define BLOCK_BYTES ((int64_t)SW_QUEUE_BLOCK_BYTES)

struct transfer {
    bool write, verify;
    int64_t offset, bytes;
    char *memory;
    uint64_t *checksum; /* receives that of the bytes; with `verify`: the one that they must have. NULL: none */
};

/* A transfer that runs. Its whole pages, at [first, last) of the file, are cut into `count` blocks, which are put in
 * order and come back in any: blocks [back, put) are under way, but for those of which `is_back[block % WINDOW]` tells
 * that they came before block `back`. */
struct running {
    struct transfer transfer;
    bool ended;
    int attempts;
    int64_t first, last;
    bool copies; /* the memory is not aligned */
    int64_t count, put, back;
    bool is_back[WINDOW];
    int8_t stage[WINDOW]; /* numbers of the blocks of aligned memory, where it copies */
    struct sw_running_sum *sum;
};

struct spillway_io {
    pid_t owner;
    char path[LIBRARY_PATH_CHARS];
    struct spillway_io_options options;
    int direct, cached;   /* descriptors of the same file, with and without direct I/O */
    int64_t memory_align; /* bytes that the drive needs */
    char *blocks; /* [min(depth, BLOCKS)] of BLOCK_BYTES, for memory that is not aligned; untouched ones take none */
    int8_t free_block[BLOCKS];
    int free_blocks;
    struct running running[RUNNING]; /* transfers [done, started), each at its number modulo RUNNING; the thread's */
    int64_t started;
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    /* Protected by the mutex. Transfers [done, submitted) wait or run, each at its number modulo ROOM. */
    struct transfer transfer[ROOM];
    int64_t submitted, done;
    bool closing;
    sw_status failure; /* of the first transfer that failed; the thread alone sets it */
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

static void add_to_sum(const struct running *r, const char *memory, int64_t bytes) {
    if (r->transfer.checksum != NULL)
        sw_running_sum_add(r->sum, memory, bytes);
}

/* Transfers a few bytes through the page cache. */
static sw_status run_cached(const spillway_io *self, const struct running *r, int64_t offset, int64_t bytes) {
    const struct transfer *t = &r->transfer;
    char *memory = t->memory + (offset - t->offset);
    for (int64_t at = 0, moved; at < bytes; at += moved) {
        moved = t->write ? pwrite(self->cached, memory + at, (size_t)(bytes - at), offset + at)
                         : pread(self->cached, memory + at, (size_t)(bytes - at), offset + at);
        if (moved < 0 && errno == EINTR)
            moved = 0;
        else if (moved <= 0)
            return fail_transfer(self, t, moved < 0 ? errno : ENODATA, offset + at);
    }
    add_to_sum(r, memory, bytes);
    return SW_OK;
}

static char *memory_of(const struct running *r, int64_t block) {
    return r->transfer.memory + (r->first - r->transfer.offset) + block * BLOCK_BYTES;
}

static int64_t bytes_of(const struct running *r, int64_t block) {
    return sw_min_i64(BLOCK_BYTES, r->last - r->first - block * BLOCK_BYTES);
}

/* Copies past the processor's caches, which a block would only pass through: memcpy reads the lines of its destination
 * before it writes them, and so takes half as long again. */
static void copy(char *to, const char *from, int64_t bytes) {
    int64_t at = 0;
#if defined(__SSE2__)
    enum { LANE = sizeof(__m128i), LANES = 4 };
    at = sw_min_i64(bytes, (int64_t)(-(uintptr_t)to % LANE));
    memcpy(to, from, (size_t)at);
    for (; bytes - at >= LANES * LANE; at += LANES * LANE) {
        __m128i lane[LANES];
        for (int i = 0; i < LANES; i++)
            lane[i] = _mm_loadu_si128((const __m128i *)(from + at) + i);
        for (int i = 0; i < LANES; i++)
            _mm_stream_si128((__m128i *)(to + at) + i, lane[i]);
    }
    _mm_sfence();
#endif
    memcpy(to + at, from + at, (size_t)(bytes - at));
}

/* Puts the next block. One that was copied starts at once, so that the drive works during the copy of the next. */
static sw_status put_block(spillway_io *self, struct sw_queue *queue, struct running *r) {
    const int64_t block = r->put++, bytes = bytes_of(r, block);
    const bool write = r->transfer.write;
    char *memory = memory_of(r, block);
    if (write)
        add_to_sum(r, memory, bytes);
    if (r->copies) {
        const int8_t stage = r->stage[block % WINDOW] = self->free_block[--self->free_blocks];
        memory = self->blocks + stage * BLOCK_BYTES;
        if (write)
            copy(memory, memory_of(r, block), bytes);
    }
    r->is_back[block % WINDOW] = false;
    sw_queue_put(queue, &(const struct sw_ring_request){.op = write ? SW_RING_WRITE : SW_RING_READ,
                                                        .offset_bytes = r->first + block * BLOCK_BYTES,
                                                        .bytes = bytes,
                                                        .buf = memory,
                                                        .tag = (uint64_t)(r - self->running) << TAG_BLOCK_BITS |
                                                               (uint64_t)block});
    return r->copies ? sw_queue_start(queue) : SW_OK;
}

static bool may_put(const spillway_io *self, struct sw_queue *queue, const struct running *r) {
    return !r->ended && r->put < r->count && r->put - r->back < WINDOW && sw_queue_room(queue) > 0 &&
           (!r->copies || self->free_blocks > 0);
}

/* Puts as many blocks as there is room for, those of earlier transfers first. */
static sw_status put_blocks(spillway_io *self, struct sw_queue *queue) {
    for (int64_t n = self->done; n < self->started; n++)
        while (may_put(self, queue, &self->running[n % RUNNING]))
            SW_TRY(put_block(self, queue, &self->running[n % RUNNING]));
    return SW_OK;
}

/* Waits for one block, or takes one that is back. *failure receives that of the drive. */
static sw_status take_block(spillway_io *self, struct sw_queue *queue, sw_status *failure) {
    struct sw_queue_result result;
    int found;
    SW_TRY(sw_queue_reap(queue, true, &result, 1, &found));
    struct running *r = &self->running[result.tag >> TAG_BLOCK_BITS];
    const int64_t block = (int64_t)(result.tag & ((UINT64_C(1) << TAG_BLOCK_BITS) - 1));
    if (result.error != 0 && self->failure == SW_OK)
        *failure = fail_transfer(self, &r->transfer, result.error, result.offset_bytes);
    if (r->copies) {
        const int8_t stage = r->stage[block % WINDOW];
        if (result.error == 0 && !r->transfer.write)
            copy(memory_of(r, block), self->blocks + stage * BLOCK_BYTES, bytes_of(r, block));
        self->free_block[self->free_blocks++] = stage;
    }
    r->is_back[block % WINDOW] = true;
    for (; r->back < r->put && r->is_back[r->back % WINDOW]; r->back++)
        if (!r->transfer.write)
            add_to_sum(r, memory_of(r, r->back), bytes_of(r, r->back));
    return SW_OK;
}

static bool overlap(int64_t a, int64_t a_end, int64_t b, int64_t b_end) {
    return a < b_end && b < a_end;
}

/* Tells whether a transfer writes parts of pages, through the page cache. */
static bool writes_parts(const struct transfer *t) {
    return t->write && (t->offset % PAGE != 0 || (t->offset + t->bytes) % PAGE != 0);
}

/* Tells whether the order of two transfers matters. Writes through the page cache keep apart from direct ones, because
 * the kernel drops what it caches of a direct write's pages, and reports EIO if that is dirty; pages near them may be
 * cached as one with them. */
static bool depend(const struct transfer *a, const struct transfer *b) {
    const int64_t a_memory = (int64_t)(intptr_t)a->memory, b_memory = (int64_t)(intptr_t)b->memory;
    const bool same_pages = overlap(a->offset / PAGE, sw_div_up(a->offset + a->bytes, PAGE), b->offset / PAGE,
                                    sw_div_up(b->offset + b->bytes, PAGE));
    const bool same_memory = overlap(a_memory, a_memory + a->bytes, b_memory, b_memory + b->bytes);
    return (same_pages && (a->write || b->write)) || (same_memory && !(a->write && b->write)) ||
           (a->write && b->write && (writes_parts(a) || writes_parts(b))) ||
           (a->checksum != NULL && a->checksum == b->checksum);
}

/* Tells whether a transfer reads behind the end that the file has now: an earlier write may move the end. */
static bool reads_behind_end(const spillway_io *self, const struct transfer *t) {
    struct stat now;
    return !t->write && (fstat(self->cached, &now) != 0 || t->offset + t->bytes > now.st_size);
}

static bool may_start(const spillway_io *self, const struct transfer *t) {
    const bool behind_end = reads_behind_end(self, t);
    for (int64_t n = self->done; n < self->started; n++) {
        const struct running *r = &self->running[n % RUNNING];
        if (!r->ended && (depend(&r->transfer, t) || (behind_end && r->transfer.write)))
            return false;
    }
    return self->started - self->done < RUNNING;
}

static sw_status begin_transfer(spillway_io *self, struct running *r) {
    const struct transfer *t = &r->transfer;
    const int64_t end = t->offset + t->bytes;
    r->first = sw_min_i64(end, sw_round_up(t->offset, PAGE));
    r->last = sw_max_i64(r->first, end / PAGE * PAGE);
    r->count = sw_div_up(r->last - r->first, BLOCK_BYTES);
    r->copies = (uintptr_t)memory_of(r, 0) % (uintptr_t)self->memory_align != 0;
    r->put = r->back = 0;
    r->attempts++;
    sw_running_sum_begin(r->sum);
    return r->first > t->offset ? run_cached(self, r, t->offset, r->first - t->offset) : SW_OK;
}

/* Ends a transfer whose blocks are back. Bytes with a wrong checksum are read once more: the first time may have gone
 * wrong on the way. */
static sw_status end_transfer(spillway_io *self, struct running *r) {
    const struct transfer *t = &r->transfer;
    const int64_t end = t->offset + t->bytes;
    if (end > r->last)
        SW_TRY(run_cached(self, r, r->last, end - r->last));
    const uint64_t sum = t->checksum != NULL ? sw_running_sum_get(r->sum) : 0;
    if (t->verify && sum != *t->checksum && r->attempts == 1)
        return begin_transfer(self, r);
    if (t->verify && sum != *t->checksum)
        return sw_fail(SW_ERR_CORRUPT,
                       "%s: the %lld bytes from byte %lld on have the checksum %016" PRIx64 ", and %016" PRIx64
                       " is expected: they were changed or damaged since they were written",
                       self->path, (long long)t->bytes, (long long)t->offset, sum, *t->checksum);
    if (t->checksum != NULL)
        *t->checksum = sum;
    r->ended = true;
    return SW_OK;
}

/* Starts transfers that were submitted, up to the first one that has to wait. */
static sw_status start_transfers(spillway_io *self, int64_t submitted) {
    for (; self->started < submitted && may_start(self, &self->transfer[self->started % ROOM]); self->started++) {
        struct running *r = &self->running[self->started % RUNNING];
        r->transfer = self->transfer[self->started % ROOM];
        r->ended = false;
        r->attempts = 0;
        r->count = r->put = r->back = 0;
        if (self->failure == SW_OK)
            SW_TRY(begin_transfer(self, r));
    }
    return SW_OK;
}

/* Ends transfers of which nothing is under way, after a failure also those that are not whole. */
static sw_status end_transfers(spillway_io *self) {
    for (int64_t n = self->done; n < self->started; n++) {
        struct running *r = &self->running[n % RUNNING];
        if (r->ended || r->back < r->put)
            continue;
        if (self->failure != SW_OK)
            r->ended = true;
        else if (r->back == r->count)
            SW_TRY(end_transfer(self, r));
    }
    return SW_OK;
}

/* Keeps the first failure. */
static void keep_failure(spillway_io *self, sw_status status) {
    if (status == SW_OK || self->failure != SW_OK)
        return;
    pthread_mutex_lock(&self->mutex);
    self->failure = status;
    snprintf(self->text, sizeof self->text, "%s", sw_error_message(status));
    pthread_mutex_unlock(&self->mutex);
}

/* Does what can be done now, and waits for at most one block. After a failure nothing more is put, and what is under
 * way is waited for, because the caller may free its memory then. An error that is returned is one of the queue itself.
 */
static sw_status advance(spillway_io *self, struct sw_queue *queue, int64_t submitted) {
    sw_status failure = SW_OK;
    keep_failure(self, start_transfers(self, submitted));
    if (self->failure == SW_OK)
        SW_TRY(put_blocks(self, queue));
    if (sw_queue_in_flight(queue) > 0)
        SW_TRY(take_block(self, queue, &failure));
    keep_failure(self, failure);
    keep_failure(self, end_transfers(self));
    return SW_OK;
}

/* Counts the transfers that are done, in order. The mutex is held. */
static void count_done(spillway_io *self, bool all) {
    const int64_t before = self->done;
    self->done = all ? self->submitted : self->done;
    while (self->done < self->started && self->running[self->done % RUNNING].ended)
        self->done++;
    if (self->done > before)
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
        const int64_t submitted = self->submitted;
        pthread_mutex_unlock(&self->mutex);
        if (status == SW_OK)
            status = advance(self, queue, submitted);
        keep_failure(self, status);
        pthread_mutex_lock(&self->mutex);
        count_done(self, status != SW_OK);
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
    const int count = (int)sw_min_i64(self->options.depth, BLOCKS);
    SW_TRY(sw_queue_alloc(count * BLOCK_BYTES, &blocks));
    self->blocks = blocks;
    for (int i = 0; i < count; i++)
        self->free_block[self->free_blocks++] = (int8_t)i;
    for (int i = 0; i < RUNNING; i++) {
        self->running[i].sum = sw_running_sum_new();
        if (self->running[i].sum == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory for a file's handle");
    }
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
    for (int i = 0; i < RUNNING; i++)
        sw_running_sum_free(self->running[i].sum);
    free(self->blocks);
    free(self);
}
