#include "io/queue/write_behind.h"

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

static sw_status reap(struct sw_write_behind *self) {
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
        SW_TRY(reap(self));
    return SW_OK;
}

sw_status sw_write_behind_finish(struct sw_write_behind *self) {
    assert(self->put_bytes == self->file_bytes);
    while (sw_queue_in_flight(self->queue) > 0)
        SW_TRY(reap(self));
    if (ftruncate(self->fd, self->file_bytes) != 0)
        return sw_fail(SW_ERR_IO, "%s cannot be cut to %lld bytes: %s", self->path, (long long)self->file_bytes,
                       strerror(errno));
    return SW_OK;
}
