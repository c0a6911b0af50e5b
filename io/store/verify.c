/* Reads every committed grain and continues past bad ones. Several runs of grains are under way, and are judged in
 * order. */
#include "core/files/files.h"
#include "io/store/store_private.h"

#include <errno.h>
#include <stdlib.h>

enum { VERIFY_RUNS = 8, VERIFY_RUN_GRAINS = 16 };

/* Grains that one request reads. */
struct verify_run {
    struct sw_file_run at;
    int64_t unit, first_grain;
    char *buf;
    int error;
    bool done;
};

struct verify {
    struct sw_store *store;
    const struct sw_store_verifier *verifier;
    struct sw_queue *queue;
    struct sw_area *area;
    struct verify_run run[VERIFY_RUNS]; /* indexed by the run's number modulo VERIFY_RUNS */
    int64_t started, judged;            /* number of runs so far */
    int64_t unit, grain;                /* the next grain to read, counted from the unit's first */
    int64_t grains_done, bad;
};

/* Begins to read the next run. Returns false if there is none. */
static bool start_next(struct verify *self) {
    struct sw_area *area = self->area;
    while (self->unit < area->unit_count && self->grain >= area->extents[self->unit].grains) {
        self->unit++;
        self->grain = 0;
    }
    if (self->unit == area->unit_count)
        return false;
    const struct sw_extent *extent = &area->extents[self->unit];
    const int64_t slot = self->started % VERIFY_RUNS, first = extent->first_grain + self->grain;
    struct verify_run *run = &self->run[slot];
    *run = (struct verify_run){
        .at = sw_area_run(area, self->unit, first, sw_min_i64(VERIFY_RUN_GRAINS, extent->grains - self->grain)),
        .unit = self->unit,
        .first_grain = first,
        .buf = run->buf,
    };
    sw_queue_put(self->queue, &(struct sw_ring_request){.op = SW_RING_READ,
                                                        .file = run->at.file,
                                                        .offset_bytes = run->at.offset_bytes,
                                                        .bytes = run->at.grains * area->grain_bytes,
                                                        .buf = run->buf,
                                                        .tag = (uint64_t)slot});
    self->grain += run->at.grains;
    self->started++;
    return true;
}

static bool is_right(const struct verify *self, const struct verify_run *run, int64_t grain) {
    const char *bytes = run->buf + grain * self->area->grain_bytes;
    return sw_checksum(bytes, self->area->grain_bytes) ==
           *sw_area_sums(self->area, run->unit, run->first_grain + grain);
}

/* Reads one grain of a run again, by itself. */
static sw_status check_again(struct verify *self, const struct verify_run *run, int64_t grain) {
    const int64_t grain_bytes = self->area->grain_bytes;
    const struct sw_ring_request request = {.op = SW_RING_READ,
                                            .file = run->at.file,
                                            .offset_bytes = run->at.offset_bytes + grain * grain_bytes,
                                            .bytes = grain_bytes,
                                            .buf = run->buf + grain * grain_bytes};
    struct sw_queue_result result;
    SW_TRY(sw_queue_run(self->store->queue, &request, &result));
    if (result.error == 0 && is_right(self, run, grain))
        return SW_OK;
    SW_TRY(sw_store_check_current(self->store));
    self->bad++;
    const struct sw_store_bad_grain bad = {.unit = run->unit,
                                           .grain = run->first_grain + grain,
                                           .path = self->store->files[run->at.file].path,
                                           .offset_bytes = request.offset_bytes,
                                           .error = result.error};
    if (self->verifier->bad != NULL)
        self->verifier->bad(self->verifier->context, &bad);
    return SW_OK;
}

static sw_status judge(struct verify *self, const struct verify_run *run) {
    for (int64_t g = 0; g < run->at.grains; g++)
        if (run->error != 0 || !is_right(self, run, g))
            SW_TRY(check_again(self, run, g));
    self->judged++;
    self->grains_done += run->at.grains;
    if (self->verifier->progress != NULL)
        self->verifier->progress(self->verifier->context, self->grains_done * self->area->grain_bytes,
                                 self->area->grains * self->area->grain_bytes);
    return SW_OK;
}

static sw_status read_all(struct verify *self) {
    while (self->started - self->judged < VERIFY_RUNS && start_next(self))
        continue;
    while (self->judged < self->started) {
        struct sw_queue_result results[VERIFY_RUNS];
        int count;
        SW_TRY(sw_queue_reap(self->queue, true, results, VERIFY_RUNS, &count));
        for (int i = 0; i < count; i++) {
            self->run[results[i].tag].error = results[i].error;
            self->run[results[i].tag].done = true;
        }
        while (self->judged < self->started && self->run[self->judged % VERIFY_RUNS].done) {
            struct verify_run *run = &self->run[self->judged % VERIFY_RUNS];
            SW_TRY(judge(self, run));
            run->done = false;
            start_next(self);
        }
    }
    return SW_OK;
}

sw_status sw_store_verify(struct sw_store *store, const struct sw_store_verifier *verifier, int64_t *out_grains,
                          int64_t *out_bad) {
    static const struct sw_store_verifier silent = {0};
    struct verify self = {.store = store, .verifier = verifier != NULL ? verifier : &silent};
    void *buf;
    *out_grains = *out_bad = 0;
    if (store->commit.step < 0)
        return sw_fail(SW_ERR_ARG, "%s has no commit to verify", store->files[0].path);
    self.area = &store->areas[SW_STORE_OPTIMIZER][store->commit.generation];
    const int64_t run_bytes = VERIFY_RUN_GRAINS * self.area->grain_bytes;
    SW_TRY(sw_store_alloc_aligned(VERIFY_RUNS * run_bytes, &buf));
    for (int i = 0; i < VERIFY_RUNS; i++)
        self.run[i].buf = (char *)buf + i * run_bytes;
    sw_status status = sw_store_open_queue(store, VERIFY_RUNS, &self.queue);
    if (status == SW_OK)
        status = read_all(&self);
    sw_queue_close(self.queue);
    free(buf);
    *out_grains = self.grains_done;
    *out_bad = self.bad;
    return status;
}
