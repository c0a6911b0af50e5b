/* Performs requests and waits for them, and allocates the memory that they use. */
#include "io/queue/file.h"
#include "io/store/store_private.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

sw_status sw_store_alloc_aligned(int64_t bytes, void **out) {
    SW_TRY(sw_queue_alloc(bytes, out));
    memset(*out, 0, (size_t)bytes);
    return SW_OK;
}

bool sw_store_is_zero(const void *data, int64_t bytes) {
    const unsigned char *first = data;
    return first[0] == 0 && memcmp(first, first + 1, (size_t)bytes - 1) == 0;
}

const char *sw_store_path(const struct sw_store *store, int file) {
    return file < store->file_count ? store->files[file].path : store->borrowed.files.paths[file - store->file_count];
}

sw_status sw_store_open_queue(struct sw_store *store, int depth, struct sw_queue **out) {
    const int borrowed = store->borrowed.files.count;
    int *files = malloc((size_t)(store->file_count + borrowed) * sizeof *files);
    if (files == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for an I/O queue");
    for (int file = 0; file < store->file_count; file++)
        files[file] = store->files[file].fd;
    for (int file = 0; file < borrowed; file++)
        files[store->file_count + file] = store->borrowed.files.fds[file];
    const struct sw_ring_spec spec = {
        .files = files,
        .file_count = store->file_count + borrowed,
        .buffers = store->buffers,
        .buffer_count = store->buffer_count,
        .depth = depth,
        .warned = &store->warned,
    };
    const sw_status status = sw_queue_open(store->open_ring, store->ring_context, &spec, out);
    free(files);
    return status;
}

sw_status sw_store_io_error(const struct sw_store *store, int file, sw_ring_op op,
                            const struct sw_queue_result *result) {
    const sw_status status = sw_file_write_error(result->error);
    const char *reason =
        result->error == ENODATA ? "its sectors are lost, or the file ends there" : strerror(result->error);
    if (op == SW_RING_FLUSH)
        return sw_fail(status, "%s cannot be flushed: %s", sw_store_path(store, file), reason);
    return sw_fail(status, "%s cannot be %s at offset %lld: %s", sw_store_path(store, file),
                   op == SW_RING_READ ? "read" : "written", (long long)result->offset_bytes, reason);
}

void sw_store_count(struct sw_store *store, sw_ring_op op, int64_t bytes) {
    if (op == SW_RING_READ)
        atomic_fetch_add_explicit(&store->read_bytes, bytes, memory_order_relaxed);
    else
        atomic_fetch_add_explicit(&store->write_bytes, bytes, memory_order_relaxed);
}

/* Performs the requests and waits for all of them, even if one fails, because they use the caller's memory. */
static sw_status run_all(struct sw_store *store, const struct sw_ring_request *requests, int count,
                         struct sw_queue_result *out) {
    assert(count <= sw_queue_room(store->queue) && count <= SW_STORE_MAX_FILES);
    for (int i = 0; i < count; i++) {
        struct sw_ring_request request = requests[i];
        request.tag = (uint64_t)i;
        sw_queue_put(store->queue, &request);
    }
    while (sw_queue_in_flight(store->queue) > 0) {
        struct sw_queue_result results[SW_STORE_MAX_FILES];
        int done;
        SW_TRY(sw_queue_reap(store->queue, true, results, SW_STORE_MAX_FILES, &done));
        for (int i = 0; i < done; i++) {
            const struct sw_ring_request *request = &requests[results[i].tag];
            sw_store_count(store, request->op, request->bytes);
            out[results[i].tag] = results[i];
        }
    }
    return SW_OK;
}

sw_status sw_store_run(struct sw_store *store, const struct sw_ring_request *requests, int count) {
    struct sw_queue_result results[SW_STORE_MAX_FILES] = {{0}};
    sw_status status = run_all(store, requests, count, results);
    for (int i = 0; i < count && status == SW_OK; i++)
        if (results[i].error != 0)
            status = sw_store_io_error(store, requests[i].file, requests[i].op, &results[i]);
    return status;
}

/* Returns whether a drive or file system uses this error for sectors whose bytes are gone. */
static bool is_damage(int error) {
    return error == EIO || error == ENODATA || error == EILSEQ;
}

sw_status sw_store_read_damaged(struct sw_store *store, const struct sw_ring_request *requests, int count,
                                int *out_errors) {
    struct sw_queue_result results[SW_STORE_MAX_FILES] = {{0}};
    SW_TRY(run_all(store, requests, count, results));
    for (int i = 0; i < count; i++) {
        out_errors[i] = results[i].error;
        if (is_damage(results[i].error))
            memset(requests[i].buf, 0, (size_t)requests[i].bytes);
        else if (results[i].error != 0)
            return sw_store_io_error(store, requests[i].file, requests[i].op, &results[i]);
    }
    return SW_OK;
}

sw_status sw_store_flush(struct sw_store *store) {
    struct sw_ring_request requests[SW_STORE_MAX_FILES];
    for (int file = 0; file < store->file_count; file++)
        requests[file] = (struct sw_ring_request){.op = SW_RING_FLUSH, .file = file};
    return sw_store_run(store, requests, store->file_count);
}
