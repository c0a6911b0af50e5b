/* Keeps the checksums of frozen grains, which are written once, so that a later process need not write them again.
 *
 * The grains lie where the scratch of the processes lies, and only their checksums say what is there. They are put down
 * when the grains are durable, in pages that come first in the scratch, wherever the rest of it is. So each process
 * finds the pages, and makes them void before it may write anything else over the grains. */
#include "core/files/files.h"
#include "io/store/store_private.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define KEPT_MAGIC "SWKEPT\0"

/* The pages' first bytes. The sums follow in the next page, kind by kind, in the order of units and grains. */
struct kept_header {
    char magic[SW_FORMAT_MAGIC_BYTES];
    sw_le64 sum; /* of everything behind it in the pages */
    uint8_t store_id[SW_FORMAT_ID_BYTES];
    sw_le64 made_from; /* the caller's digest of what the grains were made from */
    sw_le64 layout;    /* digest of the places of the grains */
    sw_le64 sum_count;
};
static_assert(sizeof(struct kept_header) == 56, "on-disk layout");

static const sw_store_kind kinds[] = {SW_STORE_BASE, SW_STORE_FROZEN, SW_STORE_IN_PLACE};
enum { KINDS = sizeof kinds / sizeof kinds[0], REQUEST_PAGES = 16384 };
static_assert((int64_t)REQUEST_PAGES * SW_FORMAT_PAGE_BYTES <= SW_RING_MAX_REQUEST_BYTES, "one request takes them");

bool sw_store_keeps(sw_store_kind kind) {
    return kind == SW_STORE_BASE || kind == SW_STORE_FROZEN || kind == SW_STORE_IN_PLACE;
}

int64_t sw_store_kept_pages(int64_t grains) {
    return 1 + sw_div_up(grains * (int64_t)sizeof(sw_le64), SW_FORMAT_PAGE_BYTES);
}

static struct sw_area *pages_of(struct sw_store *store) {
    return &store->areas[SW_STORE_KEPT_SUMS][0];
}

static int64_t kept_grains(const struct sw_store *store) {
    int64_t grains = 0;
    for (int k = 0; k < KINDS; k++)
        grains += store->areas[kinds[k]][0].grains;
    return grains;
}

/* Returns a digest of the places of all kept grains. */
static uint64_t layout_of(const struct sw_store *store) {
    uint64_t digest = 0;
    for (int k = 0; k < KINDS; k++) {
        const struct sw_area *area = &store->areas[kinds[k]][0];
        for (int64_t unit = 0; area->extents != NULL && unit < area->unit_count; unit++) {
            const struct sw_extent *extent = &area->extents[unit];
            const int64_t parts[] = {(int64_t)digest,     kinds[k],       area->grain_bytes,
                                     extent->first_grain, extent->grains, extent->stripe_grains,
                                     extent->first_file};
            /* Grains that are read in place have no offsets: the area has zeros there. */
            const uint64_t both[] = {sw_checksum(parts, sizeof parts),
                                     sw_checksum(area->offsets + unit * area->file_count,
                                                 area->file_count * (int64_t)sizeof *area->offsets)};
            digest = sw_checksum(both, sizeof both);
        }
    }
    return digest;
}

/* Allocates room for the pages; the caller frees it. */
static sw_status alloc_pages(struct sw_store *store, void **out) {
    assert(pages_of(store)->grains == sw_store_kept_pages(kept_grains(store)));
    return sw_store_alloc_aligned(pages_of(store)->grains * SW_FORMAT_PAGE_BYTES, out);
}

/* Reads or writes all pages. Those that the drive has lost are read as zeros. */
static sw_status transfer_pages(struct sw_store *store, sw_ring_op op, char *pages) {
    const struct sw_area *area = pages_of(store);
    for (int64_t page = 0, count; page < area->grains; page += count) {
        const struct sw_file_run run = sw_area_run(area, 0, page, sw_min_i64(REQUEST_PAGES, area->grains - page));
        const struct sw_ring_request request = {.op = op,
                                                .file = run.file,
                                                .offset_bytes = run.offset_bytes,
                                                .bytes = run.grains * SW_FORMAT_PAGE_BYTES,
                                                .buf = pages + page * SW_FORMAT_PAGE_BYTES};
        int error;
        SW_TRY(op == SW_RING_READ ? sw_store_read_damaged(store, &request, 1, &error)
                                  : sw_store_run(store, &request, 1));
        count = run.grains;
    }
    return SW_OK;
}

static uint64_t sum_of(const struct sw_store *store, const char *pages) {
    const int64_t bytes = store->areas[SW_STORE_KEPT_SUMS][0].grains * SW_FORMAT_PAGE_BYTES;
    return sw_checksum(pages + SW_FORMAT_SUM_FROM, bytes - SW_FORMAT_SUM_FROM);
}

static struct kept_header header_of(const struct sw_store *store, uint64_t made_from) {
    struct kept_header header = {.made_from = sw_le64_of_sum(made_from),
                                 .layout = sw_le64_of_sum(layout_of(store)),
                                 .sum_count = sw_le64_of(kept_grains(store))};
    memcpy(header.magic, KEPT_MAGIC, SW_FORMAT_MAGIC_BYTES);
    memcpy(header.store_id, store->id, SW_FORMAT_ID_BYTES);
    return header;
}

/* Takes the sums from pages that are whole and belong to this layout and `made_from`. */
static void take_sums(struct sw_store *store, const char *pages, uint64_t made_from) {
    struct kept_header expected = header_of(store, made_from);
    expected.sum = sw_le64_of_sum(sum_of(store, pages));
    if (memcmp(pages, &expected, sizeof expected) != 0)
        return;
    const sw_le64 *from = (const sw_le64 *)(const void *)(pages + SW_FORMAT_PAGE_BYTES);
    bool complete = true;
    for (int k = 0; k < KINDS; k++) {
        struct sw_area *area = &store->areas[kinds[k]][0];
        for (int64_t grain = 0; grain < area->grains; grain++) {
            area->sums[grain] = sw_sum_from_le64(*from++);
            complete &= area->sums[grain] != SW_CHECKSUM_UNKNOWN;
        }
    }
    store->kept_from = made_from;
    store->kept_valid = true;
    atomic_store(&store->kept_complete, complete);
}

sw_status sw_store_take_kept(struct sw_store *store, uint64_t made_from) {
    void *pages;
    assert(atomic_load(&store->open_lanes) == 0);
    if (store->created || kept_grains(store) == 0)
        return SW_OK;
    assert(sw_area_run(pages_of(store), 0, 0, 1).offset_bytes == store->files[0].sealed_bytes);
    SW_TRY(alloc_pages(store, &pages));
    const sw_status status = transfer_pages(store, SW_RING_READ, pages);
    take_sums(store, pages, made_from);
    free(pages);
    return status;
}

bool sw_store_has(const struct sw_store *store, sw_store_kind kind, int64_t unit, int64_t first_grain, int64_t grains) {
    const struct sw_area *area = &store->areas[kind][0];
    if (area->extents == NULL || !sw_extent_holds(&area->extents[unit], first_grain, grains))
        return false;
    const uint64_t *sums = sw_area_sums(area, unit, first_grain);
    for (int64_t i = 0; i < grains; i++)
        if (sums[i] == SW_CHECKSUM_UNKNOWN)
            return false;
    return true;
}

/* Writes the pages durably, after the grains. */
static sw_status write_durably(struct sw_store *store, uint64_t made_from, char *pages) {
    struct kept_header header = header_of(store, made_from);
    sw_le64 *to = (sw_le64 *)(void *)(pages + SW_FORMAT_PAGE_BYTES);
    for (int k = 0; k < KINDS; k++)
        for (int64_t grain = 0; grain < store->areas[kinds[k]][0].grains; grain++)
            *to++ = sw_le64_of_sum(store->areas[kinds[k]][0].sums[grain]);
    memcpy(pages, &header, sizeof header);
    header.sum = sw_le64_of_sum(sum_of(store, pages));
    memcpy(pages, &header, sizeof header);
    SW_TRY(sw_store_flush(store));
    SW_TRY(transfer_pages(store, SW_RING_WRITE, pages));
    return sw_store_flush(store);
}

sw_status sw_store_keep(struct sw_store *store, uint64_t made_from) {
    void *pages;
    assert(!store->read_only);
    if (kept_grains(store) == 0 || (store->kept_valid && atomic_load(&store->kept_complete)))
        return SW_OK;
    SW_TRY(alloc_pages(store, &pages));
    const sw_status status = write_durably(store, made_from, pages);
    free(pages);
    SW_TRY(sw_fail_while(status, "keeping the checksums of the frozen weights"));
    store->kept_from = made_from;
    store->kept_valid = true;
    atomic_store(&store->kept_complete, true);
    return SW_OK;
}

sw_status sw_store_void_kept(struct sw_store *store) {
    struct sw_ring_request request = {
        .op = SW_RING_READ, .offset_bytes = store->files[0].sealed_bytes, .bytes = SW_FORMAT_PAGE_BYTES};
    struct sw_queue_result result;
    if (store->created || store->kept_valid)
        return SW_OK;
    SW_TRY(sw_store_alloc_aligned(SW_FORMAT_PAGE_BYTES, &request.buf));
    sw_status status = sw_queue_run(store->queue, &request, &result);
    /* The file may end there. If the page cannot be read now but could later, its checksums would not fit the grains.
     */
    if (status == SW_OK && result.error == 0 && memcmp(request.buf, KEPT_MAGIC, SW_FORMAT_MAGIC_BYTES) == 0) {
        memset(request.buf, 0, SW_FORMAT_PAGE_BYTES);
        request.op = SW_RING_WRITE;
        status = sw_store_run(store, &request, 1);
        if (status == SW_OK)
            status = sw_store_flush(store);
    }
    free(request.buf);
    return status;
}

void sw_store_lose_kept(struct sw_store *store, sw_store_kind kind, int64_t unit, int64_t grain) {
    *sw_area_sums(&store->areas[kind][0], unit, grain) = SW_CHECKSUM_UNKNOWN;
    atomic_store(&store->kept_lost, true);
}

void sw_store_note_lost(struct sw_store *store) {
    SW_HANDLES_ERRORS();
    if (!atomic_load(&store->kept_lost) || !store->kept_valid || !atomic_load(&store->kept_complete))
        return;
    atomic_store(&store->kept_complete, false);
    /* If it fails, the next process finds the same damage. */
    (void)sw_store_keep(store, store->kept_from);
}
