#include "io/store/layout.h"

#include "core/files/files.h"
#include "core/size.h"

#include <assert.h>
#include <stdlib.h>

sw_status sw_area_init(struct sw_area *area, int64_t unit_count, int file_count, int64_t grain_bytes) {
    *area = (struct sw_area){.file_count = file_count, .unit_count = unit_count, .grain_bytes = grain_bytes};
    area->extents = calloc((size_t)unit_count, sizeof *area->extents);
    area->offsets = calloc((size_t)unit_count * (size_t)file_count, sizeof *area->offsets);
    if (area->extents == NULL || area->offsets == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the layout of %lld units", (long long)unit_count);
    return SW_OK;
}

void sw_area_free(struct sw_area *area) {
    free(area->extents);
    free(area->offsets);
    free(area->sums);
    *area = (struct sw_area){0};
}

void sw_area_place(struct sw_area *area, const int64_t *unit_first, const int64_t *unit_grains, int64_t ends[]) {
    const int64_t stripe_grains = sw_max_i64(1, SW_LAYOUT_STRIPE_BYTES / area->grain_bytes);
    for (int64_t unit = 0; unit < area->unit_count; unit++) {
        struct sw_extent *extent = &area->extents[unit];
        /* Units begin on different files, so that many small ones are spread evenly too. */
        *extent = (struct sw_extent){.first_grain = unit_first != NULL ? unit_first[unit] : 0,
                                     .grains = unit_grains[unit],
                                     .stripe_grains = stripe_grains,
                                     .first_file = (int)(unit % area->file_count)};
        for (int file = 0; file < area->file_count; file++) {
            area->offsets[unit * area->file_count + file] = ends[file];
            ends[file] += sw_extent_grains_in(extent, area->file_count, file) * area->grain_bytes;
        }
    }
}

sw_status sw_area_finish(struct sw_area *area) {
    area->grains = 0;
    for (int64_t unit = 0; unit < area->unit_count; unit++) {
        area->extents[unit].first_sum = area->grains;
        area->grains += area->extents[unit].grains;
    }
    static_assert(SW_CHECKSUM_UNKNOWN == 0, "calloc makes every sum unknown");
    area->sums = calloc((size_t)area->grains + 1, sizeof *area->sums);
    if (area->sums == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the checksums of %lld grains", (long long)area->grains);
    return SW_OK;
}

int64_t sw_extent_grains_in(const struct sw_extent *extent, int file_count, int file) {
    if (extent->grains == 0)
        return 0;
    const int64_t stripes = sw_div_up(extent->grains, extent->stripe_grains);
    const int64_t first = (file - extent->first_file + file_count) % file_count;
    if (first >= stripes)
        return 0;
    const int64_t mine = (stripes - 1 - first) / file_count + 1;
    const bool has_last = (stripes - 1 - first) % file_count == 0;
    const int64_t missing = has_last ? stripes * extent->stripe_grains - extent->grains : 0;
    return mine * extent->stripe_grains - missing;
}

int64_t sw_area_grains_in(const struct sw_area *area, int file) {
    int64_t grains = 0;
    for (int64_t unit = 0; unit < area->unit_count; unit++)
        grains += sw_extent_grains_in(&area->extents[unit], area->file_count, file);
    return grains;
}

struct sw_file_run sw_area_run(const struct sw_area *area, int64_t unit, int64_t grain, int64_t max) {
    const struct sw_extent *extent = &area->extents[unit];
    assert(sw_extent_holds(extent, grain, 1) && max > 0);
    const int64_t at = grain - extent->first_grain;
    const int64_t stripe = at / extent->stripe_grains;
    const int64_t within = at % extent->stripe_grains;
    const int file = (int)((stripe + extent->first_file) % area->file_count);
    const int64_t local = stripe / area->file_count * extent->stripe_grains + within;
    /* With one file, stripes are neighbours, and a run may cross them. */
    const int64_t to_end = extent->grains - at;
    const int64_t to_stripe_end = area->file_count == 1 ? to_end : extent->stripe_grains - within;
    return (struct sw_file_run){
        .file = file,
        .offset_bytes = area->offsets[unit * area->file_count + file] + local * area->grain_bytes,
        .grains = sw_min_i64(max, sw_min_i64(to_end, to_stripe_end)),
    };
}

uint64_t *sw_area_sums(const struct sw_area *area, int64_t unit, int64_t grain) {
    const struct sw_extent *extent = &area->extents[unit];
    return area->sums + extent->first_sum + (grain - extent->first_grain);
}
