/* Where grains are. Each kind and generation has an area: a run of grains of each unit, striped over the store's files.
 */
#ifndef SW_IO_STORE_LAYOUT_H
#define SW_IO_STORE_LAYOUT_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

/* A stripe has about this many bytes, in whole grains: large enough for a drive, small enough that one chunk keeps
 * several drives busy. */
enum { SW_LAYOUT_STRIPE_BYTES = 768 << 10 };

struct sw_extent {
    int64_t first_grain, grains; /* of the unit; grains 0: the area has none of it */
    int64_t first_sum;           /* index of first_grain's checksum in the area's sums */
    int64_t stripe_grains;
    int first_file;
};

struct sw_area {
    int file_count;
    int64_t unit_count, grain_bytes, grains; /* of all units */
    struct sw_extent *extents;               /* one per unit */
    int64_t *offsets; /* [unit * file_count + file]: where the file's share of the extent begins */
    uint64_t *sums;   /* checksums, one per grain, in unit order */
};

/* Makes an area without grains. The caller frees it, even after a failure. */
sw_status sw_area_init(struct sw_area *area, int64_t unit_count, int file_count, int64_t grain_bytes);
void sw_area_free(struct sw_area *area);

/* Places grains [unit_first[u], unit_first[u] + unit_grains[u]) of each unit at ends[file] of every file, and moves the
 * ends on. unit_first may be NULL: all 0. */
void sw_area_place(struct sw_area *area, const int64_t *unit_first, const int64_t *unit_grains, int64_t ends[]);

/* Counts the grains and allocates their checksums, all unknown. Every extent must be set. */
sw_status sw_area_finish(struct sw_area *area);

/* Return how many of the extent's, or of the area's, grains are in the file. */
int64_t sw_extent_grains_in(const struct sw_extent *extent, int file_count, int file);
int64_t sw_area_grains_in(const struct sw_area *area, int file);

/* Returns whether the extent holds all of these grains. */
static inline bool sw_extent_holds(const struct sw_extent *extent, int64_t first, int64_t grains) {
    return first >= extent->first_grain && grains > 0 && grains <= extent->grains &&
           first - extent->first_grain <= extent->grains - grains;
}

/* A run of grains that is contiguous in one file. */
struct sw_file_run {
    int file;
    int64_t offset_bytes, grains;
};

/* Returns the longest run that begins with the grain, of at most `max` grains. The extent must hold the grain. */
struct sw_file_run sw_area_run(const struct sw_area *area, int64_t unit, int64_t grain, int64_t max);

/* Returns the checksum of this grain. Those of the unit's next grains follow it. */
uint64_t *sw_area_sums(const struct sw_area *area, int64_t unit, int64_t grain);

#endif
