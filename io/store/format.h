/* The bytes of a store file, version 3. All numbers are little-endian.
 *
 *   label         struct sw_label_header, the whole grains of every unit (u64 each), struct sw_label_extent of all
 *                 that is sealed
 *   second label  the same bytes, at sw_format_copy_offset
 *   mark          struct sw_mark in a page of its own
 *   superblock 0  struct sw_super_header in a page of its own, SW_STORE_META_BYTES of text, then a u64 sum for each
 *   superblock 1  grain of the committed generation in this file, in the order of units and grains
 *   generation 0  the extents of one generation
 *   generation 1  and of the other
 *   scratch       not described: laid out again by each process
 *
 * Each part begins at a multiple of SW_FORMAT_PAGE_BYTES. A sum is an XXH3-64 of everything that follows it in
 * the part; a mark's sum covers the rest of the mark.
 *
 * A drive that loses power within a write may also lose neighbouring bytes, up to SW_FORMAT_APART_BYTES away. Parts
 * that are written at different times are that far apart, so a write endangers only its own part.
 *
 * In version 6 records have two sizes and follow each other without padding (struct sw_records); the label has both
 * sizes, and each extent says how many of its grains have the first. A part of an extent ends with a page.
 *
 * Version 2 has no second label and nothing between its parts, and the mark is the last page of the label, whose sum
 * ends before it. A store keeps the version that it was made with. */
#ifndef SW_IO_STORE_FORMAT_H
#define SW_IO_STORE_FORMAT_H

#include "core/size.h"
#include "core/status.h"
#include "io/store/store.h"

#include <assert.h>
#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SW_FORMAT_PAGE_BYTES = 4096,
    SW_FORMAT_MARK_BYTES = SW_FORMAT_PAGE_BYTES,
    SW_FORMAT_APART_BYTES = 64 << 10,
    SW_FORMAT_DENSE_VERSION = 2,  /* the version whose parts follow each other without gaps */
    SW_FORMAT_NARROW_VERSION = 4, /* the version of a store whose optimizer state is not all fp32 */
    SW_FORMAT_MUON_VERSION = 5,   /* the same, of a store whose matrices have Muon's momentum instead of two moments */
    SW_FORMAT_PACKED_VERSION = 6, /* the same, with records that are packed (struct sw_records) */
    SW_FORMAT_ID_BYTES = 16,
    SW_FORMAT_MAGIC_BYTES = 8,
    SW_FORMAT_SUM_FROM = 16, /* a checksum covers everything after magic and checksum */
    SW_FORMAT_MAX_LABEL_BYTES = 64 << 20,
};

#define SW_LABEL_MAGIC "SPILLWAY"
#define SW_SUPER_MAGIC "SWCOMMIT"
#define SW_MARK_MAGIC "SWFINISH"

/* A little-endian number of the file; the wrapper keeps it from being used unconverted. */
typedef struct {
    uint32_t raw;
} sw_le32;

typedef struct {
    uint64_t raw;
} sw_le64;

static inline sw_le32 sw_le32_of(uint32_t value) {
    return (sw_le32){htole32(value)};
}

static inline sw_le64 sw_le64_of(int64_t value) {
    return (sw_le64){htole64((uint64_t)value)};
}

static inline sw_le64 sw_le64_of_sum(uint64_t value) {
    return (sw_le64){htole64(value)};
}

static inline uint32_t sw_from_le32(sw_le32 value) {
    return le32toh(value.raw);
}

/* Converts to a size. A number that does not fit becomes negative, which every check refuses. */
static inline int64_t sw_from_le64(sw_le64 value) {
    return (int64_t)le64toh(value.raw);
}

static inline uint64_t sw_sum_from_le64(sw_le64 value) {
    return le64toh(value.raw);
}

struct sw_label_header {
    char magic[SW_FORMAT_MAGIC_BYTES];
    sw_le64 sum;
    sw_le32 version, file_index, file_count, generations;
    uint8_t store_id[SW_FORMAT_ID_BYTES]; /* random; the same in every file of the store */
    sw_le64 label_bytes, super_bytes;     /* label_bytes: of one label; super_bytes: of one superblock */
    sw_le64 sealed_bytes;                 /* length of the file up to the end of its extents */
    sw_le64 unit_count, extent_count;
    sw_le64 grain_bytes; /* bytes of a grain's optimizer record; 0 in versions 2 and 3, whose state is fp32 */
    sw_le64 muon_bytes;  /* bytes of a record of a grain that Muon updates; 0 before version 6 */
    sw_le64 reserved[3];
};
static_assert(sizeof(struct sw_label_header) == 128, "on-disk layout");
static_assert(offsetof(struct sw_label_header, version) == SW_FORMAT_SUM_FROM, "on-disk layout");

/* A run of a unit's grains. Stripes of stripe_grains go round the files of the store, beginning with first_file. This
 * file's share is contiguous and begins at offset_bytes. Grains that a store does not own are in none of its extents.
 */
struct sw_label_extent {
    sw_le32 kind, generation;
    sw_le64 unit, first_grain, grains, grain_bytes, offset_bytes;
    sw_le32 first_file, stripe_grains;
    sw_le64 muon_grains; /* the first of these grains, which Muon updates; 0 before version 6 */
};
static_assert(sizeof(struct sw_label_extent) == 64, "on-disk layout");

struct sw_super_header {
    char magic[SW_FORMAT_MAGIC_BYTES];
    sw_le64 sum;
    sw_le32 version, file_index, generation, reserved_word;
    uint8_t store_id[SW_FORMAT_ID_BYTES];
    sw_le64 sequence; /* number of the attempt to commit, from 1; never reused */
    sw_le64 step, sum_count, meta_bytes;
    sw_le64 reserved[6];
};
static_assert(sizeof(struct sw_super_header) == 128, "on-disk layout");
static_assert(offsetof(struct sw_super_header, version) == SW_FORMAT_SUM_FROM, "on-disk layout");

/* The last commit that finished. It fits one sector, so a drive writes all of it or nothing. */
struct sw_mark {
    char magic[SW_FORMAT_MAGIC_BYTES];
    sw_le64 sum;
    uint8_t store_id[SW_FORMAT_ID_BYTES];
    sw_le64 sequence, step;
};
static_assert(sizeof(struct sw_mark) == 48, "on-disk layout");
static_assert(offsetof(struct sw_mark, store_id) == SW_FORMAT_SUM_FROM, "on-disk layout");

#define SW_SUPER_META_OFFSET ((int64_t)SW_FORMAT_PAGE_BYTES)
#define SW_SUPER_SUMS_OFFSET (SW_SUPER_META_OFFSET + SW_STORE_META_BYTES)
static_assert(SW_STORE_META_BYTES % SW_FORMAT_PAGE_BYTES == 0, "the sums begin at a page");
static_assert(SW_FORMAT_PAGE_BYTES % SW_BUFFER_ALIGN_BYTES == 0, "parts must allow direct I/O");

static inline int64_t sw_format_super_bytes(int64_t sum_count) {
    return sw_round_up(SW_SUPER_SUMS_OFFSET + sum_count * (int64_t)sizeof(sw_le64), SW_FORMAT_PAGE_BYTES);
}

/* Returns the bytes between two parts. */
static inline int64_t sw_format_apart_bytes(int version) {
    return version == SW_FORMAT_DENSE_VERSION ? 0 : SW_FORMAT_APART_BYTES;
}

static inline int64_t sw_format_label_bytes(int version, int64_t unit_count, int64_t extent_count) {
    return sw_round_up((int64_t)sizeof(struct sw_label_header) + unit_count * (int64_t)sizeof(sw_le64) +
                           extent_count * (int64_t)sizeof(struct sw_label_extent),
                       SW_FORMAT_PAGE_BYTES) +
           (version == SW_FORMAT_DENSE_VERSION ? SW_FORMAT_MARK_BYTES : 0);
}

/* Returns where the second label begins: at a power of two, so that it can be found if the first label, which has the
 * length, is unreadable. */
#define SW_FORMAT_FIRST_COPY_OFFSET (INT64_C(2) * SW_FORMAT_APART_BYTES)
#define SW_FORMAT_LAST_COPY_OFFSET (INT64_C(2) * SW_FORMAT_MAX_LABEL_BYTES)
static inline int64_t sw_format_copy_offset(int64_t label_bytes) {
    int64_t offset_bytes = SW_FORMAT_FIRST_COPY_OFFSET;
    while (offset_bytes < SW_FORMAT_LAST_COPY_OFFSET && offset_bytes - SW_FORMAT_APART_BYTES < label_bytes)
        offset_bytes *= 2;
    return offset_bytes;
}
static_assert(SW_FORMAT_MAX_LABEL_BYTES + SW_FORMAT_APART_BYTES <= SW_FORMAT_LAST_COPY_OFFSET, "each copy is found");

static inline int64_t sw_format_mark_offset(int version, int64_t label_bytes) {
    return version == SW_FORMAT_DENSE_VERSION
               ? label_bytes - SW_FORMAT_MARK_BYTES
               : sw_format_copy_offset(label_bytes) + label_bytes + SW_FORMAT_APART_BYTES;
}

/* Returns where a superblock begins. The slot after the last is where the extents begin. */
static inline int64_t sw_format_super_offset(int version, int64_t label_bytes, int64_t super_bytes, int slot) {
    const int64_t apart_bytes = sw_format_apart_bytes(version);
    return sw_format_mark_offset(version, label_bytes) + SW_FORMAT_MARK_BYTES + apart_bytes +
           slot * (super_bytes + apart_bytes);
}

/* Where grains are. Each kind and generation has an area: a run of grains of each unit, striped over the store's files.
 */

/* A stripe has about this many bytes, in whole grains: large enough for a drive, small enough that one chunk keeps
 * several drives busy. */
enum { SW_LAYOUT_STRIPE_BYTES = 768 << 10 };

struct sw_extent {
    int64_t first_grain, grains; /* of the unit; grains 0: the area has none of it */
    int64_t first_sum;           /* index of first_grain's checksum in the area's sums */
    int64_t stripe_grains;
    int first_file;
    int64_t muon_grains; /* the first ones, whose records have muon_bytes */
};

struct sw_area {
    int file_count;
    int64_t unit_count, grain_bytes, grains; /* of all units */
    int64_t muon_bytes;                      /* bytes of a record of Muon's grains */
    int64_t group;                           /* grains at whose multiples, from an extent's first, transfers begin */
    struct sw_extent *extents;               /* one per unit */
    int64_t *offsets; /* [unit * file_count + file]: where the file's share of the extent begins */
    uint64_t *sums;   /* checksums, one per grain, in unit order */
};

/* Makes an area without grains. The caller frees it, even after a failure. */
sw_status sw_area_init(struct sw_area *area, int64_t unit_count, int file_count, int64_t grain_bytes);
/* Makes an area of the optimizer's records. */
sw_status sw_area_init_records(struct sw_area *area, int64_t unit_count, int file_count, sw_optimizer_format format);
void sw_area_free(struct sw_area *area);

/* Grains [first[u], first[u] + grains[u]) of each unit u, of which Muon updates the first muon[u]. `first` and `muon`
 * may be NULL: all 0. */
struct sw_held_grains {
    const int64_t *first, *grains, *muon;
};

/* Places grains at ends[file] of every file, and moves the ends on. */
void sw_area_place(struct sw_area *area, struct sw_held_grains held, int64_t ends[]);

/* Counts the grains and allocates their checksums, all unknown. Every extent must be set. */
sw_status sw_area_finish(struct sw_area *area);

/* Returns how the records of a unit lie in an area. Grains count from the extent's first. */
static inline struct sw_records sw_area_records(const struct sw_area *area, int64_t unit) {
    return (struct sw_records){.muon_grains = area->extents[unit].muon_grains,
                               .muon_bytes = area->muon_bytes,
                               .grain_bytes = area->grain_bytes};
}
/* Returns how many bytes the record of grain `to` begins behind that of grain `from` in a transfer's memory. */
int64_t sw_area_distance(const struct sw_area *area, int64_t unit, int64_t from, int64_t to);
/* Returns the bytes of a grain's record. */
int64_t sw_area_record_bytes(const struct sw_area *area, int64_t unit, int64_t grain);
/* Returns the bytes of the records of a run of grains, up to the end of its last page. */
int64_t sw_area_run_bytes(const struct sw_area *area, int64_t unit, int64_t first, int64_t grains);
/* Returns whether a transfer may have these grains, which the extent holds: they begin and end at a page. */
bool sw_area_may_move(const struct sw_area *area, int64_t unit, int64_t first, int64_t grains);

/* Returns the bytes of a unit in the file. */
int64_t sw_area_file_bytes(const struct sw_area *area, int64_t unit, int file);
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
