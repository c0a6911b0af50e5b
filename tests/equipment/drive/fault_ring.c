/* Rings on a disk that fails. */
#include "io/store/store.h"
#include "tests/equipment/drive/fault_private.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct under_way {
    struct sw_ring_request request;
    int64_t put_at; /* event */
    bool struck, executed;
    struct sw_fault_write *write; /* what it left, once executed; NULL: nothing volatile */
    int64_t result;
};

struct sw_fault_ring {
    struct sw_ring base;
    struct sw_fault_ring *next;
    struct sw_fault_disk *disk;
    int files[SW_STORE_MAX_FILES]; /* of the disk, by the ring's index */
    struct under_way *requests;
    int count, depth;
    bool must_complete; /* the owner waits */
};

static struct sw_fault_ring *as_fault_ring(struct sw_ring *ring) {
    return (struct sw_fault_ring *)ring;
}

static struct sw_fault_file *file_of(struct sw_fault_ring *ring, const struct sw_ring_request *request) {
    return &ring->disk->file[ring->files[request->file]];
}

void sw_fault_end_ring(struct sw_fault_disk *disk, struct sw_fault_ring *ring) {
    for (int i = 0; i < ring->count; i++) {
        struct under_way *r = &ring->requests[i];
        const bool lands = disk->end == SW_FAULT_POWER || sw_fault_draw(disk, 2) == 0;
        if (r->request.op == SW_RING_WRITE && !r->executed && lands)
            (void)sw_fault_write(disk, file_of(ring, &r->request), r->request.offset_bytes, r->request.buf,
                                 r->request.bytes);
        r->executed = true;
        r->write = NULL;
        r->result = -EIO;
    }
}

/* Counts an event. Gives whether the disk still works after it. */
static bool event(struct sw_fault_disk *disk) {
    if (disk->ended)
        return false;
    disk->events++;
    if (disk->events != disk->end_at)
        return true;
    disk->ended = true;
    for (struct sw_fault_ring *ring = disk->rings; ring != NULL; ring = ring->next)
        sw_fault_end_ring(disk, ring);
    return false;
}

static bool strikes(struct sw_fault_disk *disk, const struct sw_ring_request *request) {
    const int64_t number = disk->requests[request->op]++;
    const struct sw_fault *fault = &disk->fault;
    const bool hit =
        disk->has_fault && fault->op == request->op && number >= fault->first && number - fault->first < fault->count;
    disk->struck += hit;
    return hit;
}

static void fault_put(struct sw_ring *ring, const struct sw_ring_request *request) {
    struct sw_fault_ring *self = as_fault_ring(ring);
    assert(self->count < self->depth);
    struct under_way *r = &self->requests[self->count++];
    *r = (struct under_way){.request = *request, .struck = strikes(self->disk, request)};
    if (self->disk->ended) {
        r->executed = true;
        r->result = -EIO;
        return;
    }
    r->put_at = self->disk->events;
    event(self->disk);
}

static sw_status fault_submit(struct sw_ring *ring, bool wait) {
    struct sw_fault_ring *self = as_fault_ring(ring);
    /* A real ring would wait for ever. */
    assert(!wait || self->count > 0);
    self->must_complete = wait;
    return SW_OK;
}

static int64_t random_bit_of(struct sw_fault_disk *disk, int64_t bytes, unsigned char *out_mask) {
    *out_mask = (unsigned char)(1u << sw_fault_draw(disk, 8));
    return sw_fault_draw(disk, bytes);
}

static int64_t do_read(struct sw_fault_ring *ring, struct under_way *r, int64_t bytes, bool flip) {
    const struct sw_fault_file *file = file_of(ring, &r->request);
    bytes = sw_max_i64(0, sw_min_i64(bytes, file->bytes - r->request.offset_bytes));
    if (sw_fault_is_bad(ring->disk, file, r->request.offset_bytes, bytes))
        return -EIO;
    memcpy(r->request.buf, file->current + r->request.offset_bytes, (size_t)bytes);
    unsigned char mask;
    if (flip && bytes > 0) {
        const int64_t at = random_bit_of(ring->disk, bytes, &mask);
        ((unsigned char *)r->request.buf)[at] ^= mask;
    }
    return bytes;
}

static int64_t do_write(struct sw_fault_ring *ring, struct under_way *r, int64_t bytes, bool flip) {
    struct sw_fault_file *file = file_of(ring, &r->request);
    r->write = sw_fault_write(ring->disk, file, r->request.offset_bytes, r->request.buf, bytes);
    if (r->write == NULL)
        return -ENOMEM;
    unsigned char mask;
    if (flip) {
        const int64_t at = random_bit_of(ring->disk, bytes, &mask);
        r->write->data[at] ^= mask;
        file->current[r->request.offset_bytes + at] ^= mask;
    }
    return bytes;
}

/* Leaves the bytes at another place of the file. */
static int64_t misdirect(struct sw_fault_ring *ring, struct under_way *r) {
    struct sw_fault_file *file = file_of(ring, &r->request);
    const int64_t places = (file->bytes - r->request.bytes) / SW_BUFFER_ALIGN_BYTES + 1;
    const int64_t offset_bytes = sw_fault_draw(ring->disk, places) * SW_BUFFER_ALIGN_BYTES;
    r->write = sw_fault_write(ring->disk, file, offset_bytes, r->request.buf, r->request.bytes);
    return r->write != NULL ? r->request.bytes : -ENOMEM;
}

static int64_t flush(struct sw_fault_ring *ring, const struct under_way *r, const struct sw_fault *fault) {
    struct sw_fault_file *file = file_of(ring, &r->request);
    if (fault != NULL && fault->kind == SW_FAULT_DROP) {
        sw_fault_drop(ring->disk, file, r->put_at);
        return -EIO;
    }
    if (fault == NULL || fault->kind != SW_FAULT_NO_FLUSH)
        sw_fault_flush(ring->disk, file, r->put_at);
    return 0;
}

/* A short transfer moves at least one unit at which direct I/O can stop. */
static int64_t short_bytes(struct sw_fault_disk *disk, int64_t bytes) {
    const int64_t units = bytes / disk->sector_bytes;
    return units > 1 ? disk->sector_bytes * (1 + sw_fault_draw(disk, units - 1)) : bytes;
}

static int64_t execute(struct sw_fault_ring *ring, struct under_way *r) {
    const struct sw_fault *fault = r->struck ? &ring->disk->fault : NULL;
    if (fault != NULL && fault->kind == SW_FAULT_ERROR)
        return -fault->error;
    if (r->request.op == SW_RING_FLUSH)
        return flush(ring, r, fault);
    if (fault != NULL && fault->kind == SW_FAULT_STALE)
        return r->request.bytes;
    if (fault != NULL && fault->kind == SW_FAULT_MISDIRECT)
        return misdirect(ring, r);
    const bool cut = fault != NULL && fault->kind == SW_FAULT_SHORT;
    const int64_t bytes = cut ? short_bytes(ring->disk, r->request.bytes) : r->request.bytes;
    return r->request.op == SW_RING_READ ? do_read(ring, r, bytes, fault != NULL && fault->kind == SW_FAULT_FLIP_READ)
                                         : do_write(ring, r, bytes, fault != NULL && fault->kind == SW_FAULT_FLIP_DISK);
}

/* Any that is under way; one that is delayed only when no other is. */
static struct under_way *choose(struct sw_fault_ring *ring) {
    const int first = (int)sw_fault_draw(ring->disk, ring->count);
    for (int i = 0; i < ring->count; i++) {
        struct under_way *r = &ring->requests[(first + i) % ring->count];
        if (!r->struck || ring->disk->fault.kind != SW_FAULT_DELAY)
            return r;
    }
    return &ring->requests[first];
}

static int fault_take(struct sw_ring *ring, struct sw_ring_completion *out, int max) {
    struct sw_fault_ring *self = as_fault_ring(ring);
    struct sw_fault_disk *disk = self->disk;
    if (max < 1 || self->count == 0 || (!self->must_complete && sw_fault_draw(disk, 2) == 0))
        return 0;
    struct under_way *r = choose(self);
    if (!r->executed) {
        r->result = execute(self, r);
        r->executed = true;
        event(disk);
    }
    event(disk);
    if (r->write != NULL)
        r->write->seen_at = disk->events;
    out[0] = (struct sw_ring_completion){.tag = r->request.tag, .result = r->result};
    *r = self->requests[--self->count];
    self->must_complete = false;
    return 1;
}

static void fault_close(struct sw_ring *ring) {
    struct sw_fault_ring *self = as_fault_ring(ring);
    struct sw_fault_ring **at = &self->disk->rings;
    while (*at != self)
        at = &(*at)->next;
    *at = self->next;
    free(self->requests);
    free(self);
}

static const struct sw_ring_ops fault_ops = {
    .put = fault_put,
    .submit = fault_submit,
    .take = fault_take,
    .close = fault_close,
};

sw_status sw_fault_ring_open(void *disk, const struct sw_ring_spec *spec, struct sw_ring **out) {
    struct sw_fault_ring *self = calloc(1, sizeof *self);
    struct under_way *requests = calloc((size_t)spec->depth, sizeof *requests);
    if (self == NULL || requests == NULL) {
        free(self);
        free(requests);
        return sw_fail(SW_ERR_NOMEM, "no memory for a failing ring");
    }
    *self = (struct sw_fault_ring){.base.ops = &fault_ops, .disk = disk, .requests = requests, .depth = spec->depth};
    sw_status status = SW_OK;
    for (int f = 0; f < spec->file_count && status == SW_OK; f++)
        status = sw_fault_find_file(self->disk, spec->files[f], &self->files[f]);
    if (status != SW_OK) {
        free(requests);
        free(self);
        return status;
    }
    self->next = self->disk->rings;
    self->disk->rings = self;
    *out = &self->base;
    return SW_OK;
}
