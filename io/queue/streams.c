#include "io/queue/streams.h"

#include "core/log.h"
#include "core/size.h"
#include "io/queue/file.h"
#include "io/queue/queue.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NO_FILE = -1 };

struct block {
    int file; /* NO_FILE: the block was never used */
    int64_t offset_bytes, bytes;
    int64_t first_use, last_use; /* first and last position that use the block */
    bool under_way;
    char *buf;
};

struct sw_read_ahead {
    const char *const *paths;
    const struct sw_file_identity *identities; /* one entry per path */
    int file, fd; /* the open file: its index in `paths` (NO_FILE: none), and its descriptor (-1: none) */
    int64_t file_bytes;
    bool direct;
    struct sw_queue *queue;
    struct block block[SW_READ_AHEAD_BLOCKS];
    char *buffer;
    int64_t floor; /* positions below this one have passed */
    int64_t read_bytes;
    bool warned;
};

sw_status sw_read_ahead_open(const char *const *paths, const struct sw_file_identity *identities,
                             struct sw_read_ahead **out) {
    void *buffer;
    SW_TRY(sw_queue_alloc((int64_t)SW_READ_AHEAD_BLOCKS * SW_READ_AHEAD_BLOCK_BYTES, &buffer));
    struct sw_read_ahead *self = calloc(1, sizeof *self);
    if (self == NULL) {
        free(buffer);
        return sw_fail(SW_ERR_NOMEM, "no memory to read %s ahead", paths[0]);
    }
    *self =
        (struct sw_read_ahead){.paths = paths, .identities = identities, .file = NO_FILE, .fd = -1, .buffer = buffer};
    for (int i = 0; i < SW_READ_AHEAD_BLOCKS; i++)
        self->block[i] = (struct block){
            .file = NO_FILE, .last_use = -1, .buf = self->buffer + (ptrdiff_t)i * SW_READ_AHEAD_BLOCK_BYTES};
    *out = self;
    return SW_OK;
}

static void leave_file(struct sw_read_ahead *self) {
    sw_queue_close(self->queue);
    self->queue = NULL;
    if (self->fd >= 0)
        close(self->fd);
    self->fd = -1;
    self->file = NO_FILE;
}

void sw_read_ahead_close(struct sw_read_ahead *self) {
    if (self == NULL)
        return;
    leave_file(self);
    free(self->buffer);
    free(self);
}

static sw_status enter_file(struct sw_read_ahead *self, int file) {
    const char *path = self->paths[file];
    leave_file(self);
    SW_TRY(sw_file_open_again(path, &self->identities[file], &self->fd));
    self->direct = sw_file_try_direct(self->fd);
    if (!self->direct && !self->warned && !sw_file_is_in_memory(self->fd))
        sw_log_info("%s is on a file system without direct I/O: it is read through the page cache", path);
    self->warned |= !self->direct;
    SW_TRY(sw_file_size(self->fd, path, &self->file_bytes));
    const struct sw_ring_spec spec = {
        .files = &self->fd, .file_count = 1, .depth = SW_READ_AHEAD_BLOCKS, .warned = &self->warned};
    SW_TRY(sw_queue_open(sw_ring_open_uring, NULL, &spec, &self->queue));
    self->file = file;
    return SW_OK;
}

static sw_status finish(struct sw_read_ahead *self, const struct sw_queue_result *result) {
    struct block *block = &self->block[result->tag];
    const char *path = self->paths[block->file];
    block->under_way = false;
    self->read_bytes += block->bytes;
    if (result->error != 0)
        block->file = NO_FILE;
    if (result->error == ENODATA)
        return sw_fail(SW_ERR_CORRUPT, "%s ends at %lld: it has been truncated", path, (long long)result->offset_bytes);
    if (result->error != 0)
        return sw_fail(SW_ERR_IO, "%s cannot be read at %lld: %s", path, (long long)result->offset_bytes,
                       strerror(result->error));
    return SW_OK;
}

static sw_status reap(struct sw_read_ahead *self, bool wait) {
    struct sw_queue_result results[SW_READ_AHEAD_BLOCKS];
    int count = 0;
    sw_status status = SW_OK;
    if (self->queue != NULL)
        SW_TRY(sw_queue_reap(self->queue, wait, results, SW_READ_AHEAD_BLOCKS, &count));
    for (int i = 0; i < count; i++) {
        const sw_status one = finish(self, &results[i]);
        status = status == SW_OK ? one : status;
    }
    return status;
}

static struct block *find(const struct sw_read_ahead *self, int file, int64_t offset_bytes) {
    for (int i = 0; i < SW_READ_AHEAD_BLOCKS; i++)
        if (self->block[i].file == file && self->block[i].offset_bytes == offset_bytes)
            return (struct block *)&self->block[i];
    return NULL;
}

/* Returns the block whose last use is longest past, or NULL if all are still needed. */
static struct block *find_free(struct sw_read_ahead *self) {
    struct block *oldest = NULL;
    for (int i = 0; i < SW_READ_AHEAD_BLOCKS; i++) {
        struct block *block = &self->block[i];
        if (block->last_use < self->floor && !block->under_way &&
            (oldest == NULL || block->last_use < oldest->last_use))
            oldest = block;
    }
    return oldest;
}

/* Drops the block from the page cache. A buffered read filled the cache with bytes that nobody reads again. */
static void forget(const struct sw_read_ahead *self, const struct block *block) {
    if (!self->direct && block->file == self->file)
        posix_fadvise(self->fd, block->offset_bytes, block->bytes, POSIX_FADV_DONTNEED);
}

/* Begins to read the block at this offset of the open file. Returns false if no block is free. */
static bool start(struct sw_read_ahead *self, int64_t offset_bytes, int64_t position) {
    const int64_t page = SW_BUFFER_ALIGN_BYTES;
    const int64_t left = (self->file_bytes - offset_bytes) / page * page;
    if (left <= 0)
        return true;
    struct block *block = find_free(self);
    if (block == NULL)
        return false;
    forget(self, block);
    *block = (struct block){.file = self->file,
                            .offset_bytes = offset_bytes,
                            .bytes = sw_min_i64(left, SW_READ_AHEAD_BLOCK_BYTES),
                            .first_use = position,
                            .last_use = position,
                            .under_way = true,
                            .buf = block->buf};
    sw_queue_put(self->queue, &(struct sw_ring_request){.op = SW_RING_READ,
                                                        .offset_bytes = offset_bytes,
                                                        .bytes = block->bytes,
                                                        .buf = block->buf,
                                                        .tag = (uint64_t)(block - self->block)});
    return true;
}

sw_status sw_read_ahead_announce(struct sw_read_ahead *self, int file, int64_t offset_bytes, int64_t bytes,
                                 int64_t position, bool *out_taken) {
    assert(file >= 0 && offset_bytes >= 0 && bytes >= 0 && position >= self->floor);
    *out_taken = true;
    int64_t at = offset_bytes / SW_READ_AHEAD_BLOCK_BYTES * SW_READ_AHEAD_BLOCK_BYTES;
    for (; at < offset_bytes + bytes && *out_taken; at += SW_READ_AHEAD_BLOCK_BYTES) {
        struct block *block = find(self, file, at);
        if (block != NULL) {
            block->last_use = sw_max_i64(block->last_use, position);
            continue;
        }
        if (file != self->file) {
            SW_TRY(reap(self, false));
            if (self->queue != NULL && sw_queue_in_flight(self->queue) > 0)
                *out_taken = false;
            else
                SW_TRY(enter_file(self, file));
        }
        *out_taken = *out_taken && start(self, at, position);
    }
    return SW_OK;
}

static bool is_awaited(const struct sw_read_ahead *self, int64_t end) {
    for (int i = 0; i < SW_READ_AHEAD_BLOCKS; i++)
        if (self->block[i].under_way && self->block[i].first_use < end)
            return true;
    return false;
}

void sw_read_ahead_pass(struct sw_read_ahead *self, int64_t position) {
    self->floor = position;
}

sw_status sw_read_ahead_await(struct sw_read_ahead *self, int64_t end) {
    SW_TRY(reap(self, false));
    while (is_awaited(self, end))
        SW_TRY(reap(self, true));
    return SW_OK;
}

const void *sw_read_ahead_look(const struct sw_read_ahead *self, int file, int64_t offset_bytes, int64_t *out_bytes) {
    const int64_t within = offset_bytes % SW_READ_AHEAD_BLOCK_BYTES;
    const struct block *block = find(self, file, offset_bytes - within);
    *out_bytes = block != NULL && !block->under_way ? block->bytes - within : 0;
    return *out_bytes > 0 ? block->buf + within : NULL;
}

int64_t sw_read_ahead_bytes(const struct sw_read_ahead *self) {
    return self->read_bytes;
}

struct sw_write_behind {
    int fd;
    const char *path;
    bool direct, warned;
    struct sw_queue *queue;
    char *buffer;
    bool under_way[SW_WRITE_BEHIND_BLOCKS];
    int current;
    int64_t put_bytes, file_bytes;
};

sw_status sw_write_behind_open(int fd, const char *path, int64_t bytes, struct sw_write_behind **out) {
    void *buffer;
    SW_TRY(sw_queue_alloc((int64_t)SW_WRITE_BEHIND_BLOCKS * SW_WRITE_BEHIND_BLOCK_BYTES, &buffer));
    struct sw_write_behind *self = calloc(1, sizeof *self);
    if (self == NULL) {
        free(buffer);
        return sw_fail(SW_ERR_NOMEM, "no memory to write %s", path);
    }
    *self = (struct sw_write_behind){
        .fd = fd, .path = path, .direct = sw_file_try_direct(fd), .buffer = buffer, .file_bytes = bytes};
    if (!self->direct && !sw_file_is_in_memory(fd))
        sw_log_info("%s is on a file system without direct I/O: it is written through the page cache", path);
    const struct sw_ring_spec spec = {
        .files = &self->fd, .file_count = 1, .depth = SW_WRITE_BEHIND_BLOCKS, .warned = &self->warned};
    sw_status status = sw_file_allocate(fd, path, bytes);
    if (status == SW_OK)
        status = sw_queue_open(sw_ring_open_uring, NULL, &spec, &self->queue);
    if (status != SW_OK) {
        sw_write_behind_close(self);
        return status;
    }
    *out = self;
    return SW_OK;
}

void sw_write_behind_close(struct sw_write_behind *self) {
    if (self == NULL)
        return;
    sw_queue_close(self->queue);
    free(self->buffer);
    free(self);
}

static char *block_at(const struct sw_write_behind *self, int block) {
    return self->buffer + (ptrdiff_t)block * SW_WRITE_BEHIND_BLOCK_BYTES;
}

void *sw_write_behind_block(struct sw_write_behind *self) {
    return block_at(self, self->current);
}

static sw_status reap_written(struct sw_write_behind *self) {
    struct sw_queue_result results[SW_WRITE_BEHIND_BLOCKS];
    int count;
    sw_status status = SW_OK;
    SW_TRY(sw_queue_reap(self->queue, true, results, SW_WRITE_BEHIND_BLOCKS, &count));
    for (int i = 0; i < count; i++) {
        const int error = results[i].error;
        self->under_way[results[i].tag] = false;
        if (error != 0)
            status = sw_fail(sw_file_write_error(error), "%s cannot be written at %lld: %s", self->path,
                             (long long)results[i].offset_bytes, strerror(error));
    }
    return status;
}

sw_status sw_write_behind_put(struct sw_write_behind *self, int64_t bytes) {
    assert(bytes > 0 && bytes <= SW_WRITE_BEHIND_BLOCK_BYTES && bytes <= self->file_bytes - self->put_bytes);
    assert(self->put_bytes % SW_WRITE_BEHIND_BLOCK_BYTES == 0);
    const int64_t whole = sw_round_up(bytes, SW_BUFFER_ALIGN_BYTES);
    char *block = block_at(self, self->current);
    memset(block + bytes, 0, (size_t)(whole - bytes));
    sw_queue_put(self->queue, &(struct sw_ring_request){.op = SW_RING_WRITE,
                                                        .offset_bytes = self->put_bytes,
                                                        .bytes = whole,
                                                        .buf = block,
                                                        .tag = (uint64_t)self->current});
    SW_TRY(sw_queue_start(self->queue));
    /* Starts to write the cached pages now, not when there are many. */
    if (!self->direct)
        sync_file_range(self->fd, 0, self->put_bytes, SYNC_FILE_RANGE_WRITE);
    self->put_bytes += bytes;
    self->under_way[self->current] = true;
    self->current = (self->current + 1) % SW_WRITE_BEHIND_BLOCKS;
    while (self->under_way[self->current])
        SW_TRY(reap_written(self));
    return SW_OK;
}

sw_status sw_write_behind_finish(struct sw_write_behind *self) {
    assert(self->put_bytes == self->file_bytes);
    while (sw_queue_in_flight(self->queue) > 0)
        SW_TRY(reap_written(self));
    if (ftruncate(self->fd, self->file_bytes) != 0)
        return sw_fail(SW_ERR_IO, "%s cannot be cut to %lld bytes: %s", self->path, (long long)self->file_bytes,
                       strerror(errno));
    return SW_OK;
}
