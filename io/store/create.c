/* Makes a store. Everything that can be refused is refused before the first byte is written.
 *
 * All bytes are written once with zeros, although the space is reserved: on a file system with unwritten extents the
 * first write of a block changes metadata, which would slow down the first steps and could still fail for lack of
 * space. Zeros are also the first moments, so loading a model writes only masters and weights.
 *
 * The label comes first without its magic and gets it last. A file that has the magic is complete, one without it was
 * being made and may be removed. */
#include "core/files/files.h"
#include "io/queue/file.h"
#include "io/store/block.h"
#include "io/store/store_private.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Computes the files of a new store and the bytes that each directory must have for them, before anything is changed.
 */

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
    /* The first placing only counts each file's grains, which decide how long its superblocks are. */
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

/* Computes needed_bytes: scratch follows the sealed part, in the order in which it will be added. */
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

/* Sets the identity, sizes and layout of a new store, and what it needs with all its scratch. Refuses what exceeds a
 * limit. */
static sw_status store_lay_out(struct sw_store *store, const struct sw_store_spec *spec) {
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
    const sw_status status = store_lay_out(store, spec);
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

enum { OWNER_DEPTH = SW_STORE_MAX_FILES };

static sw_status take_device(struct sw_store_file *target, const struct sw_store_spec *spec) {
    if (spec->unnamed)
        return sw_fail(SW_ERR_ARG,
                       "%s is a block device, which a measurement would overwrite: name a directory on such a drive",
                       target->path);
    SW_TRY(sw_block_open(target->path, &target->fd, &target->device_bytes));
    return spec->allow_overwrite_device ? SW_OK : sw_block_check_unused(target->fd, target->path, target->device_bytes);
}

static sw_status take_file(struct sw_store_file *target, const struct sw_store_spec *spec) {
    if (target->is_device)
        return take_device(target, spec);
    if (spec->unnamed)
        return sw_file_create_unnamed(target->directory, spec->allow_buffered, &target->fd);
    return sw_file_create(target->directory, target->path, spec->allow_buffered, &target->fd);
}

static sw_status make_files(struct sw_store *store, const struct sw_store_spec *spec) {
    const char *directories[SW_STORE_MAX_FILES];
    int64_t bytes[SW_STORE_MAX_FILES];
    int count = 0;
    for (int file = 0; file < store->file_count; file++) {
        struct sw_store_file *target = &store->files[file];
        SW_TRY(take_file(target, spec));
        if (target->is_device)
            continue;
        directories[count] = target->directory;
        bytes[count++] = target->needed_bytes;
    }
    SW_TRY(sw_file_check_space(directories, bytes, count));
    for (int file = 0; file < store->file_count; file++)
        SW_TRY(sw_store_extend(store, file, store->files[file].needed_bytes));
    return sw_super_alloc(store);
}

/* Position of the next request of zeros. Files take turns, so that all drives work at once. */
struct zero_cursor {
    int64_t at[SW_STORE_MAX_FILES];
    int next;
};

static bool next_zeros(const struct sw_store *store, struct zero_cursor *cursor, struct sw_ring_request *request) {
    for (int i = 0; i < store->file_count; i++) {
        const int file = (cursor->next + i) % store->file_count;
        const int64_t left = store->files[file].sealed_bytes - cursor->at[file];
        if (left == 0)
            continue;
        request->op = SW_RING_WRITE;
        request->file = file;
        request->offset_bytes = cursor->at[file];
        request->bytes = sw_min_i64(left, SW_QUEUE_BLOCK_BYTES);
        request->tag = (uint64_t)file;
        cursor->at[file] += request->bytes;
        cursor->next = file + 1;
        return true;
    }
    return false;
}

static sw_status write_zeros(struct sw_store *store, void *zeros, sw_store_progress progress, void *context) {
    struct zero_cursor cursor = {0};
    struct sw_ring_request request = {.buf = zeros};
    const int64_t total = sw_store_file_bytes(store);
    bool more = true;
    do {
        while (sw_queue_room(store->queue) > 0 && (more = next_zeros(store, &cursor, &request)))
            sw_queue_put(store->queue, &request);
        struct sw_queue_result results[OWNER_DEPTH];
        int count;
        SW_TRY(sw_queue_reap(store->queue, true, results, OWNER_DEPTH, &count));
        for (int i = 0; i < count; i++)
            if (results[i].error != 0)
                return sw_store_io_error(store, (int)results[i].tag, SW_RING_WRITE, &results[i]);
        int64_t done = -sw_queue_in_flight(store->queue) * (int64_t)SW_QUEUE_BLOCK_BYTES;
        for (int file = 0; file < store->file_count; file++)
            done += cursor.at[file];
        if (progress != NULL && !progress(context, sw_max_i64(0, done), total))
            return sw_fail(SW_ERR_STOPPED, "the making of the store in %s was stopped, and it was removed",
                           store->files[0].directory);
    } while (more || sw_queue_in_flight(store->queue) > 0);
    return SW_OK;
}

static sw_status write_label(struct sw_store *store, int file, void *label, bool whole) {
    const int64_t offsets[] = {0, sw_format_copy_offset(store->label_bytes)};
    sw_label_encode(store, file, label);
    if (!whole)
        memset(label, 0, SW_FORMAT_MAGIC_BYTES);
    for (int copy = 0; copy < 2; copy++)
        SW_TRY(sw_store_run(store,
                            &(struct sw_ring_request){.op = SW_RING_WRITE,
                                                      .file = file,
                                                      .offset_bytes = offsets[copy],
                                                      .bytes = store->label_bytes,
                                                      .buf = label},
                            1));
    return SW_OK;
}

static sw_status write_labels(struct sw_store *store, bool whole) {
    for (int file = 0; file < store->file_count; file++) {
        void *label;
        SW_TRY(sw_store_alloc_aligned(store->label_bytes, &label));
        const sw_status status = write_label(store, file, label, whole);
        free(label);
        SW_TRY(status);
    }
    return sw_store_flush(store);
}

/* Writes the labels first without their magic, and completes them when everything else is durable: a drive may stop
 * between any two sectors, and a file with the magic is complete. */
static sw_status seal(struct sw_store *store) {
    SW_TRY(write_labels(store, false));
    SW_TRY(write_labels(store, true));
    for (int file = 0; file < store->file_count; file++)
        if (!store->files[file].is_device)
            SW_TRY(sw_file_sync_directory(store->files[file].directory));
    return SW_OK;
}

/* Sets the checksums of all grains, which are zero now. */
static void set_zero_sums(struct sw_store *store, const void *zeros) {
    store->zero_sum = sw_checksum(zeros, sw_optimizer_grain_bytes(store->optimizer));
    for (int generation = 0; generation < store->generations; generation++) {
        struct sw_area *area = &store->areas[SW_STORE_OPTIMIZER][generation];
        for (int64_t grain = 0; grain < area->grains; grain++)
            area->sums[grain] = store->zero_sum;
    }
}

static sw_status fill(struct sw_store *store, sw_store_progress progress, void *context) {
    void *zeros;
    /* The block of zeros also serves as a grain's optimizer state. */
    assert(sw_optimizer_grain_bytes(store->optimizer) <= SW_QUEUE_BLOCK_BYTES);
    SW_TRY(sw_store_alloc_aligned(SW_QUEUE_BLOCK_BYTES, &zeros));
    store->filled = true;
    sw_status status = write_zeros(store, zeros, progress, context);
    set_zero_sums(store, zeros);
    /* After a failure, requests under way still read the zeros. */
    if (status != SW_OK) {
        sw_queue_close(store->queue);
        store->queue = NULL;
    }
    free(zeros);
    return status;
}

sw_status sw_store_create_on(const struct sw_ring_source *rings, const struct sw_store_spec *spec,
                             sw_store_progress progress, void *context, struct sw_store **out) {
    SW_TRY(sw_file_check_distinct(spec->directories, spec->directory_count));
    struct sw_store *store;
    sw_status status;
    SW_TRY(sw_store_alloc(spec->directory_count, rings, &store));
    store->created = true;
    store->unnamed = spec->unnamed;
    SW_TRY_GOTO(store_lay_out(store, spec), failed);
    SW_TRY_GOTO(make_files(store, spec), failed);
    SW_TRY_GOTO(sw_store_open_queue(store, OWNER_DEPTH, &store->queue), failed);
    SW_TRY_GOTO(fill(store, progress, context), failed);
    SW_TRY_GOTO(seal(store), failed);
    atomic_store(&store->write_bytes, 0);
    *out = store;
    return SW_OK;
failed:
    sw_store_free(store, true);
    return status;
}

sw_status sw_store_create(const struct sw_store_spec *spec, sw_store_progress progress, void *context,
                          struct sw_store **out) {
    return sw_store_create_on(NULL, spec, progress, context, out);
}
