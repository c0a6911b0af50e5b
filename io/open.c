/* Opening a store: files in any order and place, believed only as far as they check. */
#include "io/block.h"
#include "io/file.h"
#include "io/store_private.h"

#include <stdlib.h>
#include <string.h>

static sw_status read_labels(struct sw_store *store, const char *const *directories, bool allow_buffered,
                             void *labels[]) {
    for (int i = 0; i < store->file_count; i++) {
        SW_TRY(sw_store_set_file(store, i, directories[i]));
        struct sw_store_file *target = &store->files[i];
        SW_TRY(target->is_device ? sw_block_open(target->path, &target->fd, &target->device_bytes)
                                 : sw_file_open(target->path, allow_buffered, &target->fd));
    }
    SW_TRY(sw_store_open_queue(store, SW_STORE_MAX_FILES, &store->queue));
    for (int i = 0; i < store->file_count; i++)
        SW_TRY(sw_label_read(store, i, &labels[i]));
    return SW_OK;
}

/* Puts files and labels in the order of their indices, which the queue follows. */
static sw_status sort_files(struct sw_store *store, void *labels[]) {
    const char *first_path = store->files[0].path;
    const int needed = sw_label_file_count(labels[0]);
    if (needed != store->file_count)
        return sw_fail(SW_ERR_ARG,
                       "the store of %s is striped over %d directories, and %d were given: give all of them",
                       first_path, needed, store->file_count);
    struct sw_store_file files[SW_STORE_MAX_FILES];
    void *sorted[SW_STORE_MAX_FILES] = {NULL};
    memcpy(files, store->files, sizeof files);
    for (int i = 0; i < store->file_count; i++) {
        const int index = sw_label_file_index(labels[i]);
        if (memcmp(sw_label_store_id(labels[i]), sw_label_store_id(labels[0]), SW_FORMAT_ID_BYTES) != 0 ||
            sw_label_file_count(labels[i]) != needed)
            return sw_fail(SW_ERR_ARG, "%s and %s belong to different stores", first_path, files[i].path);
        if (sorted[index] != NULL)
            return sw_fail(SW_ERR_ARG, "%s is a copy of another file of the same store", files[i].path);
        sorted[index] = labels[i];
    }
    for (int i = 0; i < store->file_count; i++)
        store->files[sw_label_file_index(labels[i])] = files[i];
    memcpy(labels, sorted, (size_t)store->file_count * sizeof *labels);
    sw_queue_close(store->queue);
    store->queue = NULL;
    return sw_store_open_queue(store, SW_STORE_MAX_FILES, &store->queue);
}

static sw_status load(struct sw_store *store, const char *const *directories, bool allow_buffered, int64_t most_step,
                      void *labels[]) {
    SW_TRY(read_labels(store, directories, allow_buffered, labels));
    SW_TRY(sort_files(store, labels));
    SW_TRY(sw_label_apply(store, labels));
    SW_TRY(sw_super_alloc(store));
    SW_TRY(sw_super_load(store, most_step));
    /* What was read may so far be in a drive's cache only, after a process that died within its commit. It must last
     * before the generation that it replaces is written to. */
    return sw_store_flush(store);
}

sw_status sw_store_open_on(const struct sw_ring_source *rings, const char *const *directories, int directory_count,
                           bool allow_buffered, int64_t most_step, struct sw_store **out) {
    SW_TRY(sw_file_check_distinct(directories, directory_count));
    struct sw_store *store;
    SW_TRY(sw_store_alloc(directory_count, rings, &store));
    void *labels[SW_STORE_MAX_FILES] = {NULL};
    const sw_status status = load(store, directories, allow_buffered, most_step, labels);
    for (int i = 0; i < directory_count; i++)
        free(labels[i]);
    if (status != SW_OK) {
        sw_store_free(store, false);
        return status;
    }
    *out = store;
    return SW_OK;
}

sw_status sw_store_open(const char *const *directories, int directory_count, bool allow_buffered, int64_t most_step,
                        struct sw_store **out) {
    const struct sw_ring_source rings = {.open = sw_ring_open_uring};
    return sw_store_open_on(&rings, directories, directory_count, allow_buffered, most_step, out);
}
