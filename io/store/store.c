#include "core/confine.h"
#include "core/files/files.h"
#include "core/log.h"
#include "core/size.h"
#include "io/queue/file.h"
#include "io/store/block.h"
#include "io/store/store_private.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

sw_status sw_area_init(struct sw_area *area, int64_t unit_count, int file_count, int64_t grain_bytes) {
    *area = (struct sw_area){.file_count = file_count,
                             .unit_count = unit_count,
                             .grain_bytes = grain_bytes,
                             .muon_bytes = grain_bytes,
                             .group = 1};
    area->extents = calloc((size_t)unit_count, sizeof *area->extents);
    area->offsets = calloc((size_t)unit_count * (size_t)file_count, sizeof *area->offsets);
    if (area->extents == NULL || area->offsets == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the layout of %lld units", (long long)unit_count);
    return SW_OK;
}

sw_status sw_area_init_records(struct sw_area *area, int64_t unit_count, int file_count, sw_optimizer_format format) {
    SW_TRY(sw_area_init(area, unit_count, file_count, sw_optimizer_grain_bytes(format)));
    area->muon_bytes = sw_optimizer_muon_bytes(format);
    area->group = sw_records_group(format);
    return SW_OK;
}

void sw_area_free(struct sw_area *area) {
    free(area->extents);
    free(area->offsets);
    free(area->sums);
    *area = (struct sw_area){0};
}

int64_t sw_area_distance(const struct sw_area *area, int64_t unit, int64_t from, int64_t to) {
    const struct sw_records records = sw_area_records(area, unit);
    const int64_t first = area->extents[unit].first_grain;
    return sw_record_at(&records, to - first) - sw_record_at(&records, from - first);
}

int64_t sw_area_record_bytes(const struct sw_area *area, int64_t unit, int64_t grain) {
    const struct sw_records records = sw_area_records(area, unit);
    return sw_record_bytes(&records, grain - area->extents[unit].first_grain);
}

int64_t sw_area_run_bytes(const struct sw_area *area, int64_t unit, int64_t first, int64_t grains) {
    const struct sw_records records = sw_area_records(area, unit);
    return sw_records_bytes(&records, first - area->extents[unit].first_grain, grains);
}

bool sw_area_may_move(const struct sw_area *area, int64_t unit, int64_t first, int64_t grains) {
    const struct sw_extent *extent = &area->extents[unit];
    const int64_t begin = first - extent->first_grain, end = begin + grains;
    return begin % area->group == 0 && (end % area->group == 0 || end == extent->grains);
}

/* Returns the bytes of the first `count` stripes of a file. The stripe in which Muon's grains end has records of both
 * sizes, those before it have Muon's. */
static int64_t stripes_bytes(const struct sw_area *area, int64_t unit, int file, int64_t count) {
    const struct sw_extent *extent = &area->extents[unit];
    const struct sw_records records = sw_area_records(area, unit);
    const int64_t stripe = extent->stripe_grains, border = records.muon_grains / stripe;
    const int64_t first = (file - extent->first_file + area->file_count) % area->file_count;
    const int64_t before = border > first ? sw_min_i64(count, sw_div_up(border - first, area->file_count)) : 0;
    const bool has_border = before < count && first + before * area->file_count == border;
    const int64_t mixed =
        has_border ? sw_record_at(&records, (border + 1) * stripe) - sw_record_at(&records, border * stripe) : 0;
    return stripe * (before * records.muon_bytes + (count - before - has_border) * records.grain_bytes) + mixed;
}

int64_t sw_area_file_bytes(const struct sw_area *area, int64_t unit, int file) {
    const struct sw_extent *extent = &area->extents[unit];
    const int64_t grains = sw_extent_grains_in(extent, area->file_count, file);
    const int64_t whole = grains / extent->stripe_grains, rest = grains % extent->stripe_grains;
    return stripes_bytes(area, unit, file, whole) +
           (rest > 0 ? sw_area_run_bytes(area, unit, extent->first_grain + extent->grains - rest, rest) : 0);
}

void sw_area_place(struct sw_area *area, struct sw_held_grains held, int64_t ends[]) {
    const int64_t stripe_grains = sw_round_up(sw_max_i64(1, SW_LAYOUT_STRIPE_BYTES / area->grain_bytes), area->group);
    for (int64_t unit = 0; unit < area->unit_count; unit++) {
        struct sw_extent *extent = &area->extents[unit];
        /* Units begin on different files, so that many small ones are spread evenly too. */
        *extent = (struct sw_extent){.first_grain = held.first != NULL ? held.first[unit] : 0,
                                     .grains = held.grains[unit],
                                     .muon_grains = held.muon != NULL ? held.muon[unit] : 0,
                                     .stripe_grains = stripe_grains,
                                     .first_file = (int)(unit % area->file_count)};
        for (int file = 0; file < area->file_count; file++) {
            area->offsets[unit * area->file_count + file] = ends[file];
            ends[file] += sw_area_file_bytes(area, unit, file);
        }
    }
}

sw_status sw_area_finish(struct sw_area *area) {
    area->grains = 0;
    for (int64_t unit = 0; unit < area->unit_count; unit++) {
        area->extents[unit].first_sum = area->grains;
        area->grains += area->extents[unit].grains;
    }
    static_assert(SW_CHECKSUM_UNKNOWN == 0, "calloc makes every sum unknown");
    area->sums = calloc((size_t)area->grains + 1, sizeof *area->sums);
    if (area->sums == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the checksums of %lld grains", (long long)area->grains);
    return SW_OK;
}

int64_t sw_extent_grains_in(const struct sw_extent *extent, int file_count, int file) {
    if (extent->grains == 0)
        return 0;
    const int64_t stripes = sw_div_up(extent->grains, extent->stripe_grains);
    const int64_t first = (file - extent->first_file + file_count) % file_count;
    if (first >= stripes)
        return 0;
    const int64_t mine = (stripes - 1 - first) / file_count + 1;
    const bool has_last = (stripes - 1 - first) % file_count == 0;
    const int64_t missing = has_last ? stripes * extent->stripe_grains - extent->grains : 0;
    return mine * extent->stripe_grains - missing;
}

int64_t sw_area_grains_in(const struct sw_area *area, int file) {
    int64_t grains = 0;
    for (int64_t unit = 0; unit < area->unit_count; unit++)
        grains += sw_extent_grains_in(&area->extents[unit], area->file_count, file);
    return grains;
}

struct sw_file_run sw_area_run(const struct sw_area *area, int64_t unit, int64_t grain, int64_t max) {
    const struct sw_extent *extent = &area->extents[unit];
    assert(sw_extent_holds(extent, grain, 1) && max > 0);
    const int64_t at = grain - extent->first_grain;
    const int64_t stripe = at / extent->stripe_grains;
    const int64_t within = at % extent->stripe_grains;
    const int file = (int)((stripe + extent->first_file) % area->file_count);
    const int64_t begin = extent->first_grain + stripe * extent->stripe_grains;
    const int64_t before_bytes = area->file_count == 1 ? sw_area_distance(area, unit, extent->first_grain, grain)
                                                       : stripes_bytes(area, unit, file, stripe / area->file_count) +
                                                             sw_area_distance(area, unit, begin, grain);
    /* With one file, stripes are neighbours, and a run may cross them. */
    const int64_t to_end = extent->grains - at;
    const int64_t to_stripe_end = area->file_count == 1 ? to_end : extent->stripe_grains - within;
    return (struct sw_file_run){
        .file = file,
        .offset_bytes = area->offsets[unit * area->file_count + file] + before_bytes,
        .grains = sw_min_i64(max, sw_min_i64(to_end, to_stripe_end)),
    };
}

uint64_t *sw_area_sums(const struct sw_area *area, int64_t unit, int64_t grain) {
    const struct sw_extent *extent = &area->extents[unit];
    return area->sums + extent->first_sum + (grain - extent->first_grain);
}

sw_status sw_store_alloc(int file_count, const struct sw_ring_source *rings, struct sw_store **out) {
    if (file_count < 1 || file_count > SW_STORE_MAX_FILES)
        return sw_fail(SW_ERR_ARG, "a store has 1 to %d directories, not %d", SW_STORE_MAX_FILES, file_count);
    struct sw_store *store = calloc(1, sizeof *store);
    if (store == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a store");
    store->file_count = file_count;
    store->version = SW_STORE_VERSION;
    store->open_ring = rings != NULL ? rings->open : sw_ring_open_uring;
    store->ring_context = rings != NULL ? rings->context : NULL;
    for (int file = 0; file < file_count; file++)
        store->files[file] = (struct sw_store_file){.fd = -1, .committed_slot = 1};
    sw_store_set_commit(store, -1, 1, "");
    atomic_store(&store->previous_step, -1);
    *out = store;
    return SW_OK;
}

sw_status sw_store_set_file(struct sw_store *store, int file, const char *directory) {
    struct sw_store_file *target = &store->files[file];
    target->directory = strdup(directory);
    SW_TRY(sw_block_find(directory, &target->is_device));
    target->path = target->is_device ? strdup(directory) : sw_file_path(directory, SW_STORE_FILE_NAME);
    if (target->directory == NULL || target->path == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the name of a store file");
    return SW_OK;
}

static void remove_file(const struct sw_store *store, const struct sw_store_file *target) {
    if (!target->is_device && !store->unnamed)
        sw_path_unlink(target->path);
    if (target->is_device && store->filled && sw_block_wipe(target->fd, target->path, target->device_bytes) != SW_OK)
        sw_log_warn("%s still holds what a start that failed wrote to it", target->path);
}

void sw_store_free(struct sw_store *store, bool remove) {
    assert(atomic_load(&store->open_lanes) == 0);
    sw_queue_close(store->queue);
    for (int file = 0; file < store->file_count; file++) {
        struct sw_store_file *target = &store->files[file];
        if (remove && target->fd >= 0)
            remove_file(store, target);
        if (target->fd >= 0)
            sw_file_close(target->fd);
        free(target->directory);
        free(target->path);
        free(target->super);
        free(target->mark);
    }
    for (int kind = 0; kind < SW_STORE_KINDS; kind++)
        for (int generation = 0; generation < SW_STORE_GENERATIONS; generation++)
            sw_area_free(&store->areas[kind][generation]);
    free(store->borrowed.first_piece);
    free(store->borrowed.page_bytes);
    free(store->borrowed.tails);
    free(store->unit_grains);
    free(store);
}

void sw_store_discard(struct sw_store *store) {
    if (store != NULL)
        sw_store_free(store, store->created);
}

void sw_store_set_commit(struct sw_store *store, int64_t step, int generation, const char *meta) {
    store->commit.step = step;
    store->commit.generation = generation;
    snprintf(store->commit.meta, sizeof store->commit.meta, "%s", meta);
    atomic_store(&store->committed_step, step);
    atomic_store(&store->committed_generation, generation);
}

sw_status sw_store_check_writable(const struct sw_store *store, int generation) {
    if (store->read_only)
        return sw_fail(SW_ERR_INTERNAL, "%s was opened to be read only", store->files[0].path);
    if (atomic_load(&store->committed_step) >= 0 && atomic_load(&store->committed_generation) == generation)
        return sw_fail(SW_ERR_INTERNAL, "generation %d of %s is committed and cannot be written to", generation,
                       store->files[0].path);
    if (atomic_load(&store->behind))
        return sw_fail(SW_ERR_INTERNAL,
                       "%s was opened at step %lld and has a later commit, which must be removed first",
                       store->files[0].path, (long long)atomic_load(&store->committed_step));
    return !atomic_load(&store->unsure)
               ? SW_OK
               : sw_fail(SW_ERR_IO,
                         "a commit to %s failed part of the way: open the store again, which tells what it holds",
                         store->files[0].path);
}

/* Calls `act` for each file that has a name. Block devices have none that could be removed. */
static sw_status each_name(const struct sw_store *store, sw_status (*act)(int fd, const char *path)) {
    for (int file = 0; file < store->file_count && !store->unnamed; file++)
        if (!store->files[file].is_device)
            SW_TRY(act(store->files[file].fd, store->files[file].path));
    return SW_OK;
}

sw_status sw_store_keep_names(const struct sw_store *store) {
    return each_name(store, sw_name_keep);
}

sw_status sw_store_put_back_names(const struct sw_store *store) {
    return each_name(store, sw_name_put_back);
}

int64_t sw_store_unit_count(const struct sw_store *store) {
    return store->unit_count;
}

/* Returns the run of the unit's grains that the store holds, the same in both generations. */
static const struct sw_extent *held(const struct sw_store *store, int64_t unit) {
    assert(unit >= 0 && unit < store->unit_count);
    return &store->areas[SW_STORE_OPTIMIZER][0].extents[unit];
}

int64_t sw_store_unit_first(const struct sw_store *store, int64_t unit) {
    return held(store, unit)->first_grain;
}

int64_t sw_store_unit_grains(const struct sw_store *store, int64_t unit) {
    return held(store, unit)->grains;
}

int64_t sw_store_unit_whole_grains(const struct sw_store *store, int64_t unit) {
    assert(unit >= 0 && unit < store->unit_count);
    return store->unit_grains[unit];
}

struct sw_records sw_store_records(const struct sw_store *store, int64_t unit) {
    assert(unit >= 0 && unit < store->unit_count);
    return sw_area_records(&store->areas[SW_STORE_OPTIMIZER][0], unit);
}

int64_t sw_store_generation_bytes(const struct sw_store *store) {
    int64_t bytes = 0;
    for (int64_t unit = 0; unit < store->unit_count; unit++) {
        const struct sw_records records = sw_store_records(store, unit);
        bytes += sw_records_bytes(&records, 0, sw_store_unit_grains(store, unit));
    }
    return bytes;
}

sw_optimizer_format sw_store_optimizer(const struct sw_store *store) {
    return store->optimizer;
}

int sw_store_generations(const struct sw_store *store) {
    return store->generations;
}

int64_t sw_store_file_bytes(const struct sw_store *store) {
    int64_t bytes = 0;
    for (int file = 0; file < store->file_count; file++)
        bytes += store->files[file].end_bytes;
    return bytes;
}

const struct sw_store_commit *sw_store_last_commit(const struct sw_store *store) {
    return &store->commit;
}

bool sw_store_is_behind(const struct sw_store *store) {
    return atomic_load(&store->behind);
}

int64_t sw_store_previous_step(const struct sw_store *store) {
    return atomic_load(&store->previous_step);
}

int64_t sw_store_newest_record(const struct sw_store *store) {
    return store->newest_record;
}

int sw_store_bad_records(const struct sw_store *store, const struct sw_store_bad_record **out) {
    *out = store->bad_records;
    return store->bad_record_count;
}

struct sw_store_counters sw_store_counters(const struct sw_store *store) {
    return (struct sw_store_counters){
        .read_bytes = atomic_load_explicit(&store->read_bytes, memory_order_relaxed),
        .write_bytes = atomic_load_explicit(&store->write_bytes, memory_order_relaxed),
    };
}

sw_status sw_store_add_buffer(struct sw_store *store, void *base, int64_t bytes) {
    assert((uintptr_t)base % SW_BUFFER_ALIGN_BYTES == 0 && bytes > 0 && atomic_load(&store->open_lanes) == 0);
    if (store->buffer_count == SW_RING_MAX_BUFFERS)
        return sw_fail(SW_ERR_INTERNAL, "a store takes at most %d regions of memory", SW_RING_MAX_BUFFERS);
    store->buffers[store->buffer_count++] = (struct sw_ring_buffer){.base = base, .bytes = bytes};
    return SW_OK;
}
