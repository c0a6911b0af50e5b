/* The mark: which commit was the last to finish. It is written once a record is durable in every file, so that a record
 * that is damaged later can be told from one that was never completed. The mark itself is not flushed: the next
 * commit's first flush does that, and a mark lost with the power only makes less known. */
#include "core/files/files.h"
#include "io/store/store_private.h"

#include <string.h>

static uint64_t mark_sum(const struct sw_mark *mark) {
    return sw_checksum((const char *)mark + SW_FORMAT_SUM_FROM, (int64_t)sizeof *mark - SW_FORMAT_SUM_FROM);
}

static void prepare(const struct sw_store *store, sw_ring_op op, struct sw_ring_request *out) {
    for (int file = 0; file < store->file_count; file++)
        out[file] = (struct sw_ring_request){
            .op = op,
            .file = file,
            .offset_bytes = sw_format_mark_offset(store->version, store->label_bytes),
            .bytes = SW_FORMAT_MARK_BYTES,
            .buf = store->files[file].mark,
        };
}

sw_status sw_mark_write(struct sw_store *store, int64_t sequence, int64_t step) {
    struct sw_mark mark = {.sequence = sw_le64_of(sequence), .step = sw_le64_of(step)};
    memcpy(mark.magic, SW_MARK_MAGIC, SW_FORMAT_MAGIC_BYTES);
    memcpy(mark.store_id, store->id, SW_FORMAT_ID_BYTES);
    mark.sum = sw_le64_of_sum(mark_sum(&mark));
    for (int file = 0; file < store->file_count; file++) {
        memset(store->files[file].mark, 0, SW_FORMAT_MARK_BYTES);
        memcpy(store->files[file].mark, &mark, sizeof mark);
    }
    struct sw_ring_request requests[SW_STORE_MAX_FILES];
    prepare(store, SW_RING_WRITE, requests);
    return sw_store_run(store, requests, store->file_count);
}

static void take(const struct sw_store *store, const unsigned char *page, struct sw_finished *out) {
    const struct sw_mark *mark = (const struct sw_mark *)page;
    const int64_t sequence = sw_from_le64(mark->sequence), step = sw_from_le64(mark->step);
    if (sw_store_is_zero(page, SW_FORMAT_MARK_BYTES))
        return;
    if (memcmp(mark->magic, SW_MARK_MAGIC, SW_FORMAT_MAGIC_BYTES) != 0 ||
        memcmp(mark->store_id, store->id, SW_FORMAT_ID_BYTES) != 0 || mark_sum(mark) != sw_sum_from_le64(mark->sum) ||
        sequence < 1 || step < 0)
        out->unsure = true;
    else if (sequence > out->sequence) {
        out->sequence = sequence;
        out->step = step;
    }
}

sw_status sw_mark_read(struct sw_store *store, struct sw_finished *out) {
    struct sw_ring_request requests[SW_STORE_MAX_FILES];
    int errors[SW_STORE_MAX_FILES];
    *out = (struct sw_finished){.step = -1};
    prepare(store, SW_RING_READ, requests);
    SW_TRY(sw_store_read_damaged(store, requests, store->file_count, errors));
    for (int file = 0; file < store->file_count; file++)
        if (errors[file] == 0)
            take(store, store->files[file].mark, out);
        else
            out->unsure = true;
    return SW_OK;
}
