/* Computes the files of a new store and the bytes that each directory must have for them, before anything is touched.
 */
#include "io/queue/file.h"
#include "io/store/block.h"
#include "io/store/store_private.h"

#include <stdlib.h>
#include <string.h>

#define MAX_TOTAL_GRAINS (INT64_C(1) << 36)

static int64_t first_grain(const struct sw_store_spec *spec, int64_t unit) {
    return spec->unit_first != NULL ? spec->unit_first[unit] : 0;
}

static int64_t whole_grains(const struct sw_store_spec *spec, int64_t unit) {
    return spec->unit_whole_grains != NULL ? spec->unit_whole_grains[unit]
                                           : first_grain(spec, unit) + spec->unit_grains[unit];
}

static sw_status check_units(const struct sw_store_spec *spec) {
    int64_t total = 0;
    for (int64_t unit = 0; unit < spec->unit_count; unit++) {
        const int64_t first = first_grain(spec, unit), grains = spec->unit_grains[unit];
        const int64_t whole = whole_grains(spec, unit);
        if (grains < 0 || first < 0 || whole < 0 || whole > MAX_TOTAL_GRAINS - total)
            return sw_fail(SW_ERR_ARG, "unit %lld has %lld grains, which no store can hold", (long long)unit,
                           (long long)whole);
        if (first > whole || grains > whole - first)
            return sw_fail(SW_ERR_ARG, "a store cannot hold grains %lld to %lld of unit %lld, which has %lld",
                           (long long)first, (long long)(first + grains - 1), (long long)unit, (long long)whole);
        total += whole;
    }
    if (total == 0)
        return sw_fail(SW_ERR_ARG, "a store needs at least one grain to hold");
    return SW_OK;
}

/* Computes the sizes of all parts from what the store holds, and places its generations. */
static sw_status place_parts(struct sw_store *store, const struct sw_store_spec *spec) {
    struct sw_area *areas = store->areas[SW_STORE_OPTIMIZER];
    int64_t ends[SW_STORE_MAX_FILES] = {0};
    int64_t extents = 0;
    for (int64_t unit = 0; unit < store->unit_count; unit++)
        extents += spec->unit_grains[unit] > 0 ? store->generations : 0;
    store->label_bytes = sw_format_label_bytes(store->version, store->unit_count, extents);
    for (int generation = 0; generation < store->generations; generation++)
        SW_TRY(sw_area_init(&areas[generation], store->unit_count, store->file_count,
                            sw_optimizer_grain_bytes(store->optimizer)));
    /* A first placing tells how many grains each file gets, and so how long its superblocks are. */
    sw_area_place(&areas[0], spec->unit_first, spec->unit_grains, ends);
    for (int file = 0; file < store->file_count; file++) {
        struct sw_store_file *target = &store->files[file];
        target->super_bytes = sw_format_super_bytes(sw_area_grains_in(&areas[0], file));
        ends[file] = sw_super_offset(store, file, SW_STORE_SLOTS);
        if (target->super_bytes > SW_RING_MAX_REQUEST_BYTES || store->label_bytes > SW_FORMAT_MAX_LABEL_BYTES)
            return sw_fail(SW_ERR_ARG, "%s would hold too many grains for one file: give more directories",
                           target->path);
    }
    for (int generation = 0; generation < store->generations; generation++) {
        sw_area_place(&areas[generation], spec->unit_first, spec->unit_grains, ends);
        SW_TRY(sw_area_finish(&areas[generation]));
        for (int file = 0; file < store->file_count; file++)
            ends[file] += sw_format_apart_bytes(store->version);
    }
    for (int file = 0; file < store->file_count; file++)
        store->files[file].sealed_bytes = store->files[file].end_bytes = ends[file];
    return SW_OK;
}

/* Computes needed_bytes: the scratch goes behind the sealed part, in the order in which it will be added. */
static sw_status add_scratch_needs(struct sw_store *store, const struct sw_store_spec *spec) {
    int64_t ends[SW_STORE_MAX_FILES];
    for (int file = 0; file < store->file_count; file++)
        ends[file] = store->files[file].sealed_bytes;
    for (int i = 0; i < spec->scratch_count; i++) {
        struct sw_area area;
        const sw_status status =
            sw_area_init(&area, store->unit_count, store->file_count, spec->scratch[i].grain_bytes);
        if (status == SW_OK)
            sw_area_place(&area, spec->scratch[i].unit_first, spec->scratch[i].unit_grains, ends);
        sw_area_free(&area);
        SW_TRY(status);
    }
    for (int file = 0; file < store->file_count; file++)
        store->files[file].needed_bytes = ends[file];
    return SW_OK;
}

static sw_status check_limit(const struct sw_store_file *file, int64_t bytes) {
    char need[SW_SIZE_CHARS], most[SW_SIZE_CHARS];
    if (file->most_bytes == 0 || bytes <= file->most_bytes)
        return SW_OK;
    return sw_fail(
        SW_ERR_BUDGET,
        "the store needs %s (%lld bytes) in %s and may have %s there: allow it more, give it more directories, "
        "over which it is divided evenly, or place less on nvme",
        sw_format_size(bytes, need), (long long)bytes, file->directory, sw_format_size(file->most_bytes, most));
}

static sw_status check_limits(struct sw_store *store, const struct sw_store_spec *spec) {
    for (int file = 0; spec->most_bytes != NULL && file < store->file_count; file++) {
        store->files[file].most_bytes = spec->most_bytes[file];
        SW_TRY(check_limit(&store->files[file], store->files[file].needed_bytes));
    }
    return SW_OK;
}

sw_status sw_store_lay_out(struct sw_store *store, const struct sw_store_spec *spec) {
    SW_TRY(check_units(spec));
    char fresh[SW_STORE_ID_CHARS];
    if (spec->id == NULL)
        SW_TRY(sw_store_new_id(fresh));
    SW_TRY(sw_store_id_parse(spec->id != NULL ? spec->id : fresh, store->id));
    store->optimizer = spec->optimizer;
    store->version = spec->optimizer == SW_OPTIMIZER_FP32 ? SW_STORE_VERSION : SW_FORMAT_NARROW_VERSION;
    store->generations = spec->one_generation ? 1 : SW_STORE_GENERATIONS;
    sw_store_set_commit(store, -1, store->generations - 1, "");
    store->unit_count = spec->unit_count;
    store->unit_grains = calloc((size_t)spec->unit_count, sizeof *store->unit_grains);
    if (store->unit_grains == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for %lld units", (long long)spec->unit_count);
    for (int64_t unit = 0; unit < spec->unit_count; unit++)
        store->unit_grains[unit] = whole_grains(spec, unit);
    for (int file = 0; file < store->file_count; file++)
        SW_TRY(sw_store_set_file(store, file, spec->directories[file]));
    SW_TRY(place_parts(store, spec));
    SW_TRY(add_scratch_needs(store, spec));
    return check_limits(store, spec);
}

sw_status sw_store_extend(struct sw_store *store, int file, int64_t bytes) {
    const struct sw_store_file *target = &store->files[file];
    SW_TRY(check_limit(target, bytes));
    return target->is_device ? sw_block_check_room(target->path, target->device_bytes, bytes)
                             : sw_file_allocate(target->fd, target->path, bytes);
}

sw_status sw_store_need(const struct sw_store_spec *spec, int64_t *out_bytes) {
    struct sw_store *store;
    SW_TRY(sw_store_alloc(spec->directory_count, NULL, &store));
    const sw_status status = sw_store_lay_out(store, spec);
    for (int file = 0; file < spec->directory_count; file++)
        out_bytes[file] = store->files[file].needed_bytes;
    sw_store_free(store, false);
    return status;
}

sw_status sw_store_limit(struct sw_store *store, const char *directory, int64_t most_bytes) {
    for (int file = 0; file < store->file_count; file++) {
        struct sw_store_file *target = &store->files[file];
        if (strcmp(target->directory, directory) != 0)
            continue;
        target->most_bytes = most_bytes;
        return check_limit(target, target->end_bytes);
    }
    return sw_fail(SW_ERR_INTERNAL, "%s holds nothing of the store of %s", directory, store->files[0].path);
}
