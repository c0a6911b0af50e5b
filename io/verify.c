/* Reads every committed grain; the lane checks the sums. */
#include "io/store_private.h"

#include <stdlib.h>

enum { VERIFY_DEPTH = 32, VERIFY_CHUNKS = 8, VERIFY_CHUNK_GRAINS = 16 };

struct verify {
    struct sw_store *store;
    struct sw_store_lane *lane;
    char *chunks;
    int64_t unit, grain; /* the next one to read */
};

/* Starts the reading of the next chunk into a free buffer. Returns whether there was one. */
static sw_status start_next(struct verify *self, int chunk, bool *out_started) {
    const int generation = self->store->commit.generation;
    const struct sw_area *area = &self->store->areas[SW_STORE_OPTIMIZER][generation];
    *out_started = false;
    while (self->unit < area->unit_count && self->grain >= area->extents[self->unit].grains) {
        self->unit++;
        self->grain = 0;
    }
    if (self->unit == area->unit_count)
        return SW_OK;
    const struct sw_extent *extent = &area->extents[self->unit];
    const struct sw_store_transfer transfer = {
        .kind = SW_STORE_OPTIMIZER,
        .generation = generation,
        .unit = self->unit,
        .first_grain = extent->first_grain + self->grain,
        .grains = sw_min_i64(VERIFY_CHUNK_GRAINS, extent->grains - self->grain),
        .buf = self->chunks + (int64_t)chunk * VERIFY_CHUNK_GRAINS * area->grain_bytes,
        .step = self->store->commit.step,
        .tag = (uint64_t)chunk,
    };
    self->grain += transfer.grains;
    *out_started = true;
    return sw_store_submit(self->lane, &transfer);
}

static sw_status read_all(struct verify *self, void (*progress)(void *, int64_t, int64_t), void *context) {
    const int64_t total =
        self->store->areas[SW_STORE_OPTIMIZER][self->store->commit.generation].grains * SW_RECORD_BYTES;
    const int64_t before = sw_store_counters(self->store).read_bytes;
    bool started = true;
    for (int chunk = 0; chunk < VERIFY_CHUNKS && started; chunk++)
        SW_TRY(start_next(self, chunk, &started));
    while (sw_store_outstanding(self->lane) > 0) {
        uint64_t tags[VERIFY_CHUNKS];
        int count;
        SW_TRY(sw_store_reap(self->lane, true, tags, VERIFY_CHUNKS, &count));
        for (int i = 0; i < count; i++)
            SW_TRY(start_next(self, (int)tags[i], &started));
        if (progress != NULL)
            progress(context, sw_min_i64(total, sw_store_counters(self->store).read_bytes - before), total);
    }
    return SW_OK;
}

sw_status sw_store_verify(struct sw_store *store, void (*progress)(void *, int64_t, int64_t), void *context,
                          int64_t *out_grains) {
    *out_grains = 0;
    if (store->commit.step < 0)
        return sw_fail(SW_ERR_ARG, "%s has no commit to verify", store->files[0].path);
    struct verify self = {.store = store};
    void *chunks;
    SW_TRY(sw_store_alloc_aligned((int64_t)VERIFY_CHUNKS * VERIFY_CHUNK_GRAINS * SW_RECORD_BYTES, &chunks));
    self.chunks = chunks;
    sw_status status = sw_store_lane_open(store, VERIFY_DEPTH, &self.lane);
    if (status == SW_OK)
        status = read_all(&self, progress, context);
    sw_store_lane_close(self.lane);
    free(chunks);
    if (status == SW_OK)
        *out_grains = store->areas[SW_STORE_OPTIMIZER][store->commit.generation].grains;
    return status;
}
