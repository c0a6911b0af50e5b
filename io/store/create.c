/* Makes a store: everything that can be refused is refused before the first byte is written. */
#include "core/checksum.h"
#include "io/queue/file.h"
#include "io/store/block.h"
#include "io/store/store_private.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

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

/* The labels come first without their magic, and whole when that and all else lasts: a drive may stop between any two
 * sectors, and what has the magic was finished. */
static sw_status seal(struct sw_store *store) {
    SW_TRY(write_labels(store, false));
    SW_TRY(write_labels(store, true));
    for (int file = 0; file < store->file_count; file++)
        if (!store->files[file].is_device)
            SW_TRY(sw_file_sync_directory(store->files[file].directory));
    return SW_OK;
}

/* Sets the sums of all grains, which hold zeros now. */
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
    /* The block of zeros stands for a grain's optimizer state too. */
    assert(sw_optimizer_grain_bytes(store->optimizer) <= SW_QUEUE_BLOCK_BYTES);
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
                             sw_store_progress progress, void *context, struct sw_store **out) {
    SW_TRY(sw_file_check_distinct(spec->directories, spec->directory_count));
    struct sw_store *store;
    sw_status status;
    SW_TRY(sw_store_alloc(spec->directory_count, rings, &store));
    store->created = true;
    store->unnamed = spec->unnamed;
    SW_TRY_GOTO(sw_store_lay_out(store, spec), failed);
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
