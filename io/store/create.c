/* Makes a store. Everything that can be refused is refused before the first byte is written.
 *
 * All bytes are written once with zeros, although the space is reserved: on a file system with unwritten extents the
 * first write of a block changes metadata, which would slow down the first steps and could still fail for lack of
 * space. Zeros are also the first moments, so loading a model writes only masters and weights.
 *
 * The label comes first without its magic and gets it last. A file that has the magic is complete, one without it was
 * being made and may be removed. */
#include "core/confine.h"
#include "core/files/files.h"
#include "io/queue/file.h"
#include "io/store/block.h"
#include "io/store/store_private.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
        if (spec->unit_muon_grains != NULL &&
            (spec->unit_muon_grains[unit] < 0 || spec->unit_muon_grains[unit] > grains))
            return sw_fail(SW_ERR_ARG, "a store cannot hold %lld grains of Muon in %lld of unit %lld",
                           (long long)spec->unit_muon_grains[unit], (long long)grains, (long long)unit);
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
    const struct sw_held_grains held = {.first = spec->unit_first,
                                        .grains = spec->unit_grains,
                                        .muon =
                                            sw_optimizer_is_packed(spec->optimizer) ? spec->unit_muon_grains : NULL};
    for (int64_t unit = 0; unit < store->unit_count; unit++)
        extents += spec->unit_grains[unit] > 0 ? store->generations : 0;
    store->label_bytes = sw_format_label_bytes(store->version, store->unit_count, extents);
    for (int generation = 0; generation < store->generations; generation++)
        SW_TRY(sw_area_init_records(&areas[generation], store->unit_count, store->file_count, store->optimizer));
    /* The first placing only counts each file's grains, which decide how long its superblocks are. */
    sw_area_place(&areas[0], held, ends);
    for (int file = 0; file < store->file_count; file++) {
        struct sw_store_file *target = &store->files[file];
        target->super_bytes = sw_format_super_bytes(sw_area_grains_in(&areas[0], file));
        ends[file] = sw_super_offset(store, file, SW_STORE_SLOTS);
        if (target->super_bytes > SW_RING_MAX_REQUEST_BYTES || store->label_bytes > SW_FORMAT_MAX_LABEL_BYTES)
            return sw_fail(SW_ERR_ARG, "%s would hold too many grains for one file: give more directories",
                           target->path);
    }
    for (int generation = 0; generation < store->generations; generation++) {
        sw_area_place(&areas[generation], held, ends);
        SW_TRY(sw_area_finish(&areas[generation]));
        for (int file = 0; file < store->file_count; file++)
            ends[file] += sw_format_apart_bytes(store->version);
    }
    for (int file = 0; file < store->file_count; file++)
        store->files[file].sealed_bytes = store->files[file].end_bytes = ends[file];
    return SW_OK;
}

/* Leaves a gap before a kind of scratch, if one that is written at other times ends there. `before` is that kind;
 * SW_STORE_OPTIMIZER: none. Kept grains are written at the same times. Their checksums, which only they follow, are
 * written at others. */
static void leave_gap(const struct sw_store *store, sw_store_kind before, sw_store_kind kind, int64_t ends[]) {
    for (int file = 0; before != SW_STORE_OPTIMIZER && file < store->file_count; file++)
        ends[file] += sw_store_keeps(before) != sw_store_keeps(kind) ? SW_FORMAT_APART_BYTES : 0;
}

static struct sw_held_grains held_of(const struct sw_store_scratch *scratch) {
    return (struct sw_held_grains){.first = scratch->unit_first, .grains = scratch->unit_grains};
}

/* Computes needed_bytes: scratch follows the sealed part, in the order in which it will be added. */
static sw_status add_scratch_needs(struct sw_store *store, const struct sw_store_spec *spec) {
    int64_t ends[SW_STORE_MAX_FILES];
    for (int file = 0; file < store->file_count; file++)
        ends[file] = store->files[file].sealed_bytes;
    sw_store_kind before = SW_STORE_OPTIMIZER;
    for (int i = 0; i < spec->scratch_count; i++) {
        struct sw_area area;
        if (spec->scratch[i].kind == SW_STORE_IN_PLACE)
            continue;
        leave_gap(store, before, spec->scratch[i].kind, ends);
        before = spec->scratch[i].kind;
        const sw_status status =
            sw_area_init(&area, store->unit_count, store->file_count, spec->scratch[i].grain_bytes);
        if (status == SW_OK)
            sw_area_place(&area, held_of(&spec->scratch[i]), ends);
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
    SW_TRY(sw_store_new_id(fresh));
    SW_TRY(sw_store_id_parse(spec->id != NULL ? spec->id : fresh, store->id));
    store->optimizer = spec->optimizer;
    store->version = SW_FORMAT_NARROW_VERSION;
    if (spec->optimizer == SW_OPTIMIZER_FP32)
        store->version = SW_STORE_VERSION;
    else if (sw_optimizer_has_muon(spec->optimizer))
        store->version = sw_optimizer_is_packed(spec->optimizer) ? SW_FORMAT_PACKED_VERSION : SW_FORMAT_MUON_VERSION;
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

/* Makes the file at least this long; a device must already be. Refuses to exceed the limit. */
static sw_status store_extend(struct sw_store *store, int file, int64_t bytes) {
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
        SW_TRY(store_extend(store, file, store->files[file].needed_bytes));
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
        const uint64_t muon_sum = sw_checksum(zeros, area->muon_bytes);
        for (int64_t unit = 0; unit < area->unit_count; unit++)
            for (int64_t grain = 0; grain < area->extents[unit].grains; grain++)
                area->sums[area->extents[unit].first_sum + grain] =
                    grain < area->extents[unit].muon_grains ? muon_sum : store->zero_sum;
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

/* Adds scratch areas: room after the sealed part of the files, for state that is never committed. */

/* Gives grains that are read in place their numbers, and no offsets. */
static sw_status place_nowhere(struct sw_area *area, const struct sw_store_scratch *scratch) {
    for (int64_t unit = 0; unit < area->unit_count; unit++)
        area->extents[unit] =
            (struct sw_extent){.first_grain = scratch->unit_first != NULL ? scratch->unit_first[unit] : 0,
                               .grains = scratch->unit_grains[unit],
                               .stripe_grains = 1};
    return sw_area_finish(area);
}

sw_status sw_store_add_scratch(struct sw_store *store, const struct sw_store_scratch *scratch) {
    assert(scratch->kind > SW_STORE_OPTIMIZER && scratch->kind < SW_STORE_KINDS);
    assert(scratch->grain_bytes > 0 && scratch->grain_bytes % SW_FORMAT_PAGE_BYTES == 0);
    struct sw_area *area = &store->areas[scratch->kind][0];
    assert(area->extents == NULL && atomic_load(&store->open_lanes) == 0);
    SW_TRY(sw_area_init(area, store->unit_count, store->file_count, scratch->grain_bytes));
    if (scratch->kind == SW_STORE_IN_PLACE)
        return place_nowhere(area, scratch);
    int64_t ends[SW_STORE_MAX_FILES];
    for (int file = 0; file < store->file_count; file++)
        ends[file] = store->files[file].end_bytes;
    leave_gap(store, store->last_scratch, scratch->kind, ends);
    store->last_scratch = scratch->kind;
    sw_area_place(area, held_of(scratch), ends);
    SW_TRY(sw_area_finish(area));
    for (int file = 0; file < store->file_count; file++) {
        struct sw_store_file *target = &store->files[file];
        SW_TRY(store_extend(store, file, ends[file]));
        target->end_bytes = ends[file];
    }
    return SW_OK;
}

/* Removes a store by its identity, never by its path alone: another store may be there now. */

bool sw_store_is_at(const char *place) {
    char *path = sw_block_is_one(place) ? strdup(place) : sw_file_path(place, SW_STORE_FILE_NAME);
    const bool found = path != NULL && sw_path_exists(path);
    free(path);
    return found;
}

static const struct sw_label_header zeros;

struct removal {
    const char *path; /* of the file or device */
    uint8_t id[SW_FORMAT_ID_BYTES];
    int64_t most_step; /* newest step that may be lost */
    bool zeros_count;  /* whether zeros at the front mean a store that was being made */
    bool removed;      /* the name has been removed */
};

/* Returns whether this is the label of the store, or its label without the magic, which creation writes first. */
static bool is_label_of(const struct sw_label_header *front, const uint8_t id[SW_FORMAT_ID_BYTES]) {
    const bool may_be_label = memcmp(front->magic, zeros.magic, SW_FORMAT_MAGIC_BYTES) == 0 ||
                              memcmp(front->magic, SW_LABEL_MAGIC, SW_FORMAT_MAGIC_BYTES) == 0;
    return may_be_label && memcmp(front->store_id, id, SW_FORMAT_ID_BYTES) == 0;
}

/* Reads the label, or its copy if the file begins with zeros: a store that lost its first label still belongs to
 * someone. */
static sw_status read_front(int fd, const char *path, void *page, struct sw_label_header *out) {
    if (pread(fd, page, SW_FORMAT_PAGE_BYTES, 0) < 0)
        return sw_fail(SW_ERR_IO, "%s cannot be read: %s", path, strerror(errno));
    memcpy(out, page, sizeof *out);
    bool found = memcmp(out, &zeros, sizeof zeros) != 0;
    for (int64_t offset_bytes = SW_FORMAT_FIRST_COPY_OFFSET; !found && offset_bytes <= SW_FORMAT_LAST_COPY_OFFSET;
         offset_bytes *= 2) {
        found = pread(fd, page, SW_FORMAT_PAGE_BYTES, offset_bytes) == SW_FORMAT_PAGE_BYTES &&
                memcmp(page, SW_LABEL_MAGIC, SW_FORMAT_MAGIC_BYTES) == 0;
        if (found)
            memcpy(out, page, sizeof *out);
    }
    return SW_OK;
}

/* Finds out whether the store may be removed: it is all zeros, if those count, or it has this id. A store with a later
 * step is refused, whoever says that it is not needed. */
static sw_status look(int fd, const struct removal *removal, bool *out) {
    const char *path = removal->path;
    struct sw_label_header front = {0};
    void *page;
    *out = false;
    SW_TRY(sw_store_alloc_aligned(SW_FORMAT_PAGE_BYTES, &page));
    sw_status status = read_front(fd, path, page, &front);
    const bool whole = memcmp(front.magic, SW_LABEL_MAGIC, SW_FORMAT_MAGIC_BYTES) == 0;
    const int64_t label_bytes = sw_from_le64(front.label_bytes), super_bytes = sw_from_le64(front.super_bytes);
    *out = status == SW_OK &&
           (is_label_of(&front, removal->id) || (removal->zeros_count && memcmp(&front, &zeros, sizeof zeros) == 0));
    if (status == SW_OK && *out && whole &&
        (label_bytes < 0 || label_bytes > SW_FORMAT_MAX_LABEL_BYTES || super_bytes < 0 ||
         super_bytes > SW_RING_MAX_REQUEST_BYTES))
        status = sw_fail(SW_ERR_CORRUPT, "%s has a damaged label: its sizes are impossible; inspect it yourself", path);
    for (int slot = 0; status == SW_OK && *out && whole && slot < SW_STORE_SLOTS; slot++) {
        struct sw_super_header super;
        const int64_t offset_bytes =
            sw_format_super_offset((int)sw_from_le32(front.version), label_bytes, super_bytes, slot);
        status = sw_file_read(fd, path, offset_bytes, page, SW_FORMAT_PAGE_BYTES);
        memcpy(&super, page, sizeof super);
        if (status == SW_OK && memcmp(super.magic, SW_SUPER_MAGIC, SW_FORMAT_MAGIC_BYTES) == 0 &&
            memcmp(super.store_id, removal->id, SW_FORMAT_ID_BYTES) == 0 &&
            sw_from_le64(super.step) > removal->most_step)
            status = sw_fail(SW_ERR_ARG,
                             "%s is not removed, as it holds step %lld, and only step %lld was to be given up: resume "
                             "its run, or remove it yourself",
                             path, (long long)sw_from_le64(super.step), (long long)removal->most_step);
    }
    free(page);
    return status;
}

/* Examines the file without a lock, because it may be another store in use. Sets *out if there is something to remove.
 */
static sw_status look_at(const struct removal *removal, bool *out) {
    *out = false;
    const int fd = sw_path_open(removal->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0)
        return errno == ENOENT || errno == ENOTDIR
                   ? SW_OK
                   : sw_fail(SW_ERR_IO, "%s cannot be removed: %s", removal->path, strerror(errno));
    const sw_status status = look(fd, removal, out);
    close(fd);
    return status;
}

/* Tells whether the path still leads to the open file. While this process waited for the lock, another one may have
 * removed the file and made its own under that name. */
static sw_status find_still_at(int fd, const char *path, bool *out) {
    struct stat held, named;
    *out = false;
    if (fstat(fd, &held) != 0 || sw_path_lstat(path, &named) != 0)
        return errno == ENOENT ? SW_OK : sw_fail(SW_ERR_IO, "%s cannot be removed: %s", path, strerror(errno));
    *out = held.st_dev == named.st_dev && held.st_ino == named.st_ino;
    return SW_OK;
}

static sw_status remove_held(int fd, struct removal *removal) {
    bool found, is_still_there;
    SW_TRY(sw_lock_take(fd, removal->path));
    SW_TRY(look(fd, removal, &found));
    if (!found)
        return SW_OK;
    SW_TRY(find_still_at(fd, removal->path, &is_still_there));
    if (!is_still_there)
        return SW_OK;
    removal->removed = sw_path_unlink(removal->path) == 0;
    if (removal->removed || errno == ENOENT)
        return SW_OK;
    return sw_fail(SW_ERR_IO, "%s cannot be removed: %s", removal->path, strerror(errno));
}

static sw_status remove_one(struct removal *removal) {
    struct stat info;
    const int fd = sw_path_open(removal->path, O_RDWR | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0)
        return errno == ENOENT ? SW_OK : sw_fail(SW_ERR_IO, "%s cannot be removed: %s", removal->path, strerror(errno));
    sw_status status = remove_held(fd, removal);
    if (status != SW_OK && fstat(fd, &info) == 0 && info.st_nlink == 0) {
        sw_error_clear();
        status = SW_OK;
    }
    close(fd);
    return status;
}

static sw_status wipe_device(const struct removal *removal) {
    int64_t bytes;
    int fd;
    bool found;
    SW_TRY(sw_block_open(removal->path, &fd, &bytes));
    sw_status status = look(fd, removal, &found);
    if (status == SW_OK && found)
        status = sw_block_wipe(fd, removal->path, bytes);
    sw_file_close(fd);
    return status;
}

sw_status sw_store_remove(const char *place, const char *id, int64_t most_step) {
    struct removal removal = {.most_step = most_step};
    SW_TRY(sw_store_id_parse(id, removal.id));
    /* A file of this name that begins with zeros belongs to nobody: its space was being reserved. Zeros at the front of
     * a device mean nothing, as file systems begin with them too. */
    bool is_device = false;
    SW_TRY(sw_block_find(place, &is_device));
    removal.zeros_count = !is_device;
    char *path = is_device ? strdup(place) : sw_file_path(place, SW_STORE_FILE_NAME);
    if (path == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the name of a store");
    removal.path = path;
    bool found;
    sw_status status = look_at(&removal, &found);
    if (status == SW_OK && found)
        status = is_device ? wipe_device(&removal) : remove_one(&removal);
    /* Whoever lists this store will forget it next. On its own drive the name might return after a power loss. */
    if (status == SW_OK && removal.removed)
        status = sw_file_sync_directory(place);
    /* Another rank may have removed the folder, once it was empty. That rank flushes the parent folder. */
    if (status != SW_OK && removal.removed && !sw_path_exists(place)) {
        sw_error_clear();
        status = SW_OK;
    }
    free(path);
    return status;
}
