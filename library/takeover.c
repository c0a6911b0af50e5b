/* Takes over a set of stores that another number of processes made, or processes that had other parts of the tensors:
 * new stores are filled, published in tensors.json (ranks.c), and the old ones removed. */
#include "core/size.h"
#include "library/library_private.h"
#include "offload/plan/shard.h"

#include <stdlib.h>
#include <string.h>

enum { FILL_GRAINS = 16, IO_DEPTH = 32 };

/* Copies the records of the grains that both stores have. */
static sw_status copy_grains(struct sw_store_lane *from, struct sw_store_lane *to, int generation, int64_t unit,
                             struct sw_span span, void *records) {
    for (int64_t g = span.first_grain; g < span.first_grain + span.grains; g += FILL_GRAINS) {
        struct sw_store_transfer transfer = {.kind = SW_STORE_OPTIMIZER,
                                             .generation = generation,
                                             .unit = unit,
                                             .first_grain = g,
                                             .grains = sw_min_i64(FILL_GRAINS, span.first_grain + span.grains - g),
                                             .buf = records};
        SW_TRY(sw_store_transfer(from, &transfer));
        transfer.write = true;
        transfer.generation = 0;
        SW_TRY(sw_store_transfer(to, &transfer));
    }
    return SW_OK;
}

static struct sw_span intersect(const struct sw_store *a, const struct sw_store *b, int64_t unit) {
    const int64_t first = sw_max_i64(sw_store_unit_first(a, unit), sw_store_unit_first(b, unit));
    const int64_t end = sw_min_i64(sw_store_unit_first(a, unit) + sw_store_unit_grains(a, unit),
                                   sw_store_unit_first(b, unit) + sw_store_unit_grains(b, unit));
    return (struct sw_span){.first_grain = first, .grains = sw_max_i64(0, end - first)};
}

static sw_status check_same(const struct sw_store *a, const struct sw_store *b) {
    bool same = sw_store_unit_count(a) == sw_store_unit_count(b) && sw_store_optimizer(a) == sw_store_optimizer(b);
    for (int64_t u = 0; same && u < sw_store_unit_count(a); u++)
        same = sw_store_unit_whole_grains(a, u) == sw_store_unit_whole_grains(b, u);
    return same ? SW_OK : sw_fail(SW_ERR_CORRUPT, "a store of another process is of other tensors");
}

/* Copies what an old store has of the new one's grains. */
static sw_status copy_from(const struct sw_store *old, struct sw_store_lane *from, const struct sw_store *store,
                           struct sw_store_lane *to, void *records) {
    SW_TRY(check_same(old, store));
    for (int64_t u = 0; u < sw_store_unit_count(store); u++)
        SW_TRY(copy_grains(from, to, sw_store_last_commit(old)->generation, u, intersect(old, store, u), records));
    return SW_OK;
}

/* Fills a new store from all stores of the set, at a step. meta: receives the text of that step's commit. */
static sw_status fill(const spillway *self, const struct store_set *set, int64_t step, struct sw_store *store,
                      char meta[SW_STORE_META_BYTES]) {
    struct sw_store_lane *to = NULL, *from = NULL;
    struct sw_store *old = NULL;
    void *records = NULL;
    sw_status status = SW_OK;
    const int64_t bytes = FILL_GRAINS * sw_optimizer_grain_bytes(self->units->optimizer);
    if (posix_memalign(&records, SW_BUFFER_ALIGN_BYTES, (size_t)bytes) != 0)
        return sw_fail(SW_ERR_NOMEM, "no memory to fill the store of process %d", self->rank);
    SW_TRY_GOTO(sw_store_lane_open(store, IO_DEPTH, &to), done);
    for (int rank = 0; rank < set->ranks; rank++) {
        SW_TRY_GOTO(sw_library_open_part(self, set, rank, step, &old), done);
        SW_TRY_GOTO(sw_store_lane_open(old, IO_DEPTH, &from), done);
        SW_TRY_GOTO(copy_from(old, from, store, to, records), done);
        memcpy(meta, sw_store_last_commit(old)->meta, SW_STORE_META_BYTES);
        sw_store_lane_close(from);
        sw_store_close(old);
        from = NULL;
        old = NULL;
    }
done:
    if (from != NULL)
        sw_store_lane_close(from);
    if (old != NULL)
        sw_store_close(old);
    if (to != NULL)
        sw_store_lane_close(to);
    free(records);
    return status;
}

/* Creates this process's store of the new set, with the state of the old one at its newest step. */
static sw_status make_from(spillway *self, const struct store_set *made, const struct store_record *old, int64_t step) {
    struct sw_store *store = NULL;
    char *meta = malloc(SW_STORE_META_BYTES);
    sw_status status = sw_library_agree(
        self, meta != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to change the processes of a store"), "memory");
    if (status == SW_OK)
        status = sw_library_create_store(self, made, &store);
    if (status == SW_OK) {
        status =
            old->converts ? sw_library_convert(self, old, step, store, meta) : fill(self, &old->set, step, store, meta);
        if (status == SW_OK)
            status = sw_store_commit(store, step, 0, meta);
        status = sw_library_agree(self, status, "taking over the stores of other processes");
    }
    if (store != NULL)
        sw_store_close(store);
    free(meta);
    return status;
}

sw_status sw_library_replace_set(spillway *self, struct store_record *record) {
    struct store_record next = *record;
    int64_t step;
    SW_TRY(sw_library_find_step(self, &record->set, &step));
    next.orphan.ranks = self->ranks;
    next.orphan.other = record->set.ranks == self->ranks && !record->set.other;
    SW_TRY(sw_library_new_id(self, next.orphan.id));
    SW_TRY(sw_library_share_record(self, &next));
    const struct store_set made = next.orphan;
    SW_TRY(make_from(self, &made, record, step));
    next.orphan = record->set;
    next.set = made;
    next.sharded = self->options.sharded != 0;
    next.listed = NULL;
    SW_TRY(sw_library_share_record(self, &next));
    SW_TRY(sw_library_remove_set(self, &next.orphan, SW_STORE_NEWEST));
    next.orphan = (struct store_set){0};
    record->set = next.set;
    return sw_library_share_record(self, &next);
}
