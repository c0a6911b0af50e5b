/* Making a store: everything that can be refused is refused before the first byte is written. */
#include "io/block.h"
#include "io/checksum.h"
#include "io/file.h"
#include "io/store_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { OWNER_DEPTH = SW_STORE_MAX_FILES };
#define MAX_TOTAL_GRAINS (INT64_C(1) << 36)

static sw_status check_spec(const struct sw_store_spec *spec) {
    if (spec->directory_count < 1 || spec->directory_count > SW_STORE_MAX_FILES)
        return sw_fail(SW_ERR_ARG, "a store takes 1 to %d directories, not %d", SW_STORE_MAX_FILES,
                       spec->directory_count);
    int64_t total = 0;
    for (int64_t unit = 0; unit < spec->unit_count; unit++) {
        if (spec->unit_grains[unit] < 0 || spec->unit_grains[unit] > MAX_TOTAL_GRAINS - total)
            return sw_fail(SW_ERR_ARG, "unit %lld has %lld grains, which no store can hold", (long long)unit,
                           (long long)spec->unit_grains[unit]);
        total += spec->unit_grains[unit];
    }
    if (total == 0)
        return sw_fail(SW_ERR_ARG, "a store needs at least one grain to hold");
    return SW_OK;
}

static sw_status new_id(uint8_t id[SW_FORMAT_ID_BYTES]) {
    if (getrandom(id, SW_FORMAT_ID_BYTES, 0) != SW_FORMAT_ID_BYTES)
        return sw_fail(SW_ERR_IO, "the system gave no random bytes: %s", strerror(errno));
    return SW_OK;
}

/* Sizes of the label and of everything else from unit_grains; both generations placed. */
static sw_status place_parts(struct sw_store *store) {
    struct sw_area *areas = store->areas[SW_STORE_OPTIMIZER];
    int64_t ends[SW_STORE_MAX_FILES] = {0};
    int64_t extents = 0;
    for (int64_t unit = 0; unit < store->unit_count; unit++)
        extents += store->unit_grains[unit] > 0 ? store->generations : 0;
    store->label_bytes = sw_format_label_bytes(store->unit_count, extents);
    for (int generation = 0; generation < store->generations; generation++)
        SW_TRY(sw_area_init(&areas[generation], store->unit_count, store->file_count, SW_RECORD_BYTES));
    /* A first placing tells how many grains each file gets, and so how long its superblocks are. */
    sw_area_place(&areas[0], store->unit_grains, ends);
    for (int file = 0; file < store->file_count; file++) {
        struct sw_store_file *target = &store->files[file];
        target->super_bytes = sw_format_super_bytes(sw_area_grains_in(&areas[0], file));
        ends[file] = store->label_bytes + SW_STORE_SLOTS * target->super_bytes;
        if (target->super_bytes > SW_RING_MAX_REQUEST_BYTES || store->label_bytes > SW_FORMAT_MAX_LABEL_BYTES)
            return sw_fail(SW_ERR_ARG, "%s would hold too many grains for one file: give more directories",
                           target->path);
    }
    for (int generation = 0; generation < store->generations; generation++) {
        sw_area_place(&areas[generation], store->unit_grains, ends);
        SW_TRY(sw_area_finish(&areas[generation]));
    }
    for (int file = 0; file < store->file_count; file++)
        store->files[file].sealed_bytes = store->files[file].end_bytes = ends[file];
    return SW_OK;
}

static sw_status lay_out(struct sw_store *store, const struct sw_store_spec *spec) {
    SW_TRY(new_id(store->id));
    store->generations = spec->one_generation ? 1 : SW_STORE_GENERATIONS;
    sw_store_set_commit(store, -1, store->generations - 1, "");
    store->unit_count = spec->unit_count;
    store->unit_grains = calloc((size_t)spec->unit_count, sizeof *store->unit_grains);
    if (store->unit_grains == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for %lld units", (long long)spec->unit_count);
    memcpy(store->unit_grains, spec->unit_grains, (size_t)spec->unit_count * sizeof *store->unit_grains);
    for (int file = 0; file < store->file_count; file++)
        SW_TRY(sw_store_set_file(store, file, spec->directories[file]));
    return place_parts(store);
}

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
        bytes[count++] = target->sealed_bytes;
    }
    SW_TRY(sw_file_check_space(directories, bytes, count));
    for (int file = 0; file < store->file_count; file++) {
        struct sw_store_file *target = &store->files[file];
        SW_TRY(sw_store_extend(store, file, target->sealed_bytes));
        SW_TRY(sw_store_alloc_aligned(SW_STORE_SLOTS * target->super_bytes, (void **)&target->super));
    }
    return SW_OK;
}

/* Where the next request of zeros goes: files in turn, so that all drives work at once. */
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

static sw_status write_zeros(struct sw_store *store, void *zeros, void (*progress)(void *, int64_t, int64_t),
                             void *context) {
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
        if (progress != NULL)
            progress(context, sw_max_i64(0, done), total);
    } while (more || sw_queue_in_flight(store->queue) > 0);
    return SW_OK;
}

static sw_status write_labels(struct sw_store *store, bool whole) {
    for (int file = 0; file < store->file_count; file++) {
        void *label;
        SW_TRY(sw_store_alloc_aligned(store->label_bytes, &label));
        sw_label_encode(store, file, label);
        if (!whole)
            memset(label, 0, SW_FORMAT_MAGIC_BYTES);
        const struct sw_ring_request request = {
            .op = SW_RING_WRITE, .file = file, .bytes = store->label_bytes, .buf = label};
        const sw_status status = sw_store_run(store, &request, 1);
        free(label);
        SW_TRY(status);
    }
    return sw_store_flush(store);
}

/* The label comes first without its magic, and whole when that and all else lasts: a drive may stop between any two
 * sectors, and what has the magic was finished. */
static sw_status seal(struct sw_store *store) {
    SW_TRY(write_labels(store, false));
    SW_TRY(write_labels(store, true));
    for (int file = 0; file < store->file_count; file++)
        if (!store->files[file].is_device)
            SW_TRY(sw_file_sync_directory(store->files[file].directory));
    return SW_OK;
}

/* Every grain holds zeros now, so that its sum is known. */
static void set_zero_sums(struct sw_store *store, const void *zeros) {
    store->zero_sum = sw_checksum(zeros, SW_RECORD_BYTES);
    for (int generation = 0; generation < store->generations; generation++) {
        struct sw_area *area = &store->areas[SW_STORE_OPTIMIZER][generation];
        for (int64_t grain = 0; grain < area->grains; grain++)
            area->sums[grain] = store->zero_sum;
    }
}

static sw_status fill(struct sw_store *store, void (*progress)(void *, int64_t, int64_t), void *context) {
    static_assert(SW_RECORD_BYTES <= SW_QUEUE_BLOCK_BYTES, "a block of zeros stands for a record too");
    void *zeros;
    SW_TRY(sw_store_alloc_aligned(SW_QUEUE_BLOCK_BYTES, &zeros));
    store->filled = true;
    sw_status status = write_zeros(store, zeros, progress, context);
    set_zero_sums(store, zeros);
    /* Requests under way after a failure still read the zeros. */
    if (status != SW_OK) {
        sw_queue_close(store->queue);
        store->queue = NULL;
    }
    free(zeros);
    return status;
}

sw_status sw_store_create_on(const struct sw_ring_source *rings, const struct sw_store_spec *spec,
                             void (*progress)(void *, int64_t, int64_t), void *context, struct sw_store **out) {
    SW_TRY(check_spec(spec));
    SW_TRY(sw_file_check_distinct(spec->directories, spec->directory_count));
    struct sw_store *store;
    sw_status status;
    SW_TRY(sw_store_alloc(spec->directory_count, rings, &store));
    store->created = true;
    store->unnamed = spec->unnamed;
    SW_TRY_GOTO(lay_out(store, spec), failed);
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

sw_status sw_store_create(const struct sw_store_spec *spec, void (*progress)(void *, int64_t, int64_t), void *context,
                          struct sw_store **out) {
    const struct sw_ring_source rings = {.open = sw_ring_open_uring};
    return sw_store_create_on(&rings, spec, progress, context, out);
}
