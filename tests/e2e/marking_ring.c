#include "tests/e2e/marking_ring.h"

#include "io/store/store_private.h"

#include <stdlib.h>

enum { FLUSH_TAG_BIT = 62 }; /* tags of the queue are small numbers */

struct marking_ring {
    struct sw_ring base;
    struct sw_ring *real;
    struct marks *marks;
};

static struct marking_ring *as_marking(struct sw_ring *ring) {
    return (struct marking_ring *)ring;
}

static void marking_put(struct sw_ring *ring, const struct sw_ring_request *request) {
    struct marking_ring *self = as_marking(ring);
    struct marks *marks = self->marks;
    struct sw_ring_request passed = *request;
    int committed = MARK_COMMITTED;
    const int64_t at = request->offset_bytes;
    if (request->op == SW_RING_WRITE && at >= marks->grains_from && at < marks->grains_to)
        atomic_compare_exchange_strong(&marks->state, &committed, MARK_WRITING);
    else if (request->op == SW_RING_WRITE && at >= marks->supers_from && at < marks->grains_from)
        atomic_store(&marks->state, MARK_RECORDING);
    else if (request->op == SW_RING_FLUSH)
        passed.tag |= UINT64_C(1) << FLUSH_TAG_BIT;
    self->real->ops->put(self->real, &passed);
}

static sw_status marking_submit(struct sw_ring *ring, bool wait) {
    struct sw_ring *real = as_marking(ring)->real;
    return real->ops->submit(real, wait);
}

static int marking_take(struct sw_ring *ring, struct sw_ring_completion *out, int max) {
    struct marking_ring *self = as_marking(ring);
    const int count = self->real->ops->take(self->real, out, max);
    for (int i = 0; i < count; i++) {
        if ((out[i].tag >> FLUSH_TAG_BIT & 1) == 0)
            continue;
        out[i].tag &= ~(UINT64_C(1) << FLUSH_TAG_BIT);
        if (atomic_load(&self->marks->state) != MARK_RECORDING)
            continue;
        atomic_store(&self->marks->state, MARK_COMMITTED);
        atomic_fetch_add(&self->marks->commits, 1);
    }
    return count;
}

static void marking_close(struct sw_ring *ring) {
    struct marking_ring *self = as_marking(ring);
    self->real->ops->close(self->real);
    free(self);
}

static const struct sw_ring_ops marking_ops = {
    .put = marking_put,
    .submit = marking_submit,
    .take = marking_take,
    .close = marking_close,
};

static sw_status open_marking(void *marks, const struct sw_ring_spec *spec, struct sw_ring **out) {
    struct marking_ring *self = calloc(1, sizeof *self);
    if (self == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a ring");
    self->base.ops = &marking_ops;
    self->marks = marks;
    const sw_status status = sw_ring_open_uring(NULL, spec, &self->real);
    if (status != SW_OK) {
        free(self);
        return status;
    }
    *out = &self->base;
    return SW_OK;
}

sw_status mark_store(void *context, struct sw_store *store) {
    struct marks *marks = context;
    marks->supers_from = sw_super_offset(store, 0, 0);
    marks->grains_from = sw_super_offset(store, 0, SW_STORE_SLOTS);
    marks->grains_to = store->files[0].sealed_bytes;
    store->open_ring = open_marking;
    store->ring_context = marks;
    sw_queue_close(store->queue);
    store->queue = NULL;
    return sw_store_open_queue(store, SW_STORE_MAX_FILES, &store->queue);
}
