/* Adds scratch areas: room after the sealed part of the files, for state that is never committed. */
#include "io/store/store_private.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

sw_status sw_store_add_scratch(struct sw_store *store, const struct sw_store_scratch *scratch) {
    assert(scratch->kind > SW_STORE_OPTIMIZER && scratch->kind < SW_STORE_KINDS);
    assert(scratch->grain_bytes > 0 && scratch->grain_bytes % SW_FORMAT_PAGE_BYTES == 0);
    struct sw_area *area = &store->areas[scratch->kind][0];
    assert(area->extents == NULL && atomic_load(&store->open_lanes) == 0);
    SW_TRY(sw_area_init(area, store->unit_count, store->file_count, scratch->grain_bytes));
    int64_t ends[SW_STORE_MAX_FILES];
    for (int file = 0; file < store->file_count; file++)
        ends[file] = store->files[file].end_bytes;
    sw_area_place(area, scratch->unit_first, scratch->unit_grains, ends);
    SW_TRY(sw_area_finish(area));
    for (int file = 0; file < store->file_count; file++) {
        struct sw_store_file *target = &store->files[file];
        SW_TRY(sw_store_extend(store, file, ends[file]));
        target->end_bytes = ends[file];
    }
    return SW_OK;
}
