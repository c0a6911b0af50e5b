/* The label: what a store file holds and where. Everything read from it is checked before it is used. */
#include "core/checksum.h"
#include "core/log.h"
#include "io/queue/file.h"
#include "io/store/store_private.h"

#include "core/error_scope.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_STRIPE_GRAINS = 1 << 20 };
#define MAX_UNIT_GRAINS (INT64_C(1) << 40)

static const struct sw_label_header *header_of(const void *label) {
    return label;
}

static const sw_le64 *units_of(const void *label) {
    return (const sw_le64 *)(header_of(label) + 1);
}

static const struct sw_label_extent *extents_of(const void *label) {
    return (const struct sw_label_extent *)(units_of(label) + sw_from_le64(header_of(label)->unit_count));
}

static int version_of(const void *label) {
    return (int)(sw_from_le32(header_of(label)->version) & INT32_MAX);
}

/* Returns a label's sum. In the dense version the label ends in the mark, which is written later and not covered. */
static uint64_t sum_of(const void *label, int64_t label_bytes) {
    const int64_t later_bytes = version_of(label) == SW_FORMAT_DENSE_VERSION ? SW_FORMAT_MARK_BYTES : 0;
    return sw_checksum((const char *)label + SW_FORMAT_SUM_FROM, label_bytes - later_bytes - SW_FORMAT_SUM_FROM);
}

const uint8_t *sw_label_store_id(const void *label) {
    return header_of(label)->store_id;
}

int sw_label_file_index(const void *label) {
    return (int)sw_from_le32(header_of(label)->file_index);
}

int sw_label_file_count(const void *label) {
    return (int)sw_from_le32(header_of(label)->file_count);
}

static int64_t encode_extents(const struct sw_store *store, int file, struct sw_label_extent *out) {
    int64_t count = 0;
    for (int generation = 0; generation < store->generations; generation++) {
        const struct sw_area *area = &store->areas[SW_STORE_OPTIMIZER][generation];
        for (int64_t unit = 0; unit < store->unit_count; unit++) {
            const struct sw_extent *extent = &area->extents[unit];
            if (extent->grains == 0)
                continue;
            out[count++] = (struct sw_label_extent){
                .kind = sw_le32_of(SW_STORE_OPTIMIZER),
                .generation = sw_le32_of((uint32_t)generation),
                .unit = sw_le64_of(unit),
                .first_grain = sw_le64_of(extent->first_grain),
                .grains = sw_le64_of(extent->grains),
                .grain_bytes = sw_le64_of(area->grain_bytes),
                .offset_bytes = sw_le64_of(area->offsets[unit * area->file_count + file]),
                .first_file = sw_le32_of((uint32_t)extent->first_file),
                .stripe_grains = sw_le32_of((uint32_t)extent->stripe_grains),
            };
        }
    }
    return count;
}

void sw_label_encode(const struct sw_store *store, int file, void *label) {
    memset(label, 0, (size_t)store->label_bytes);
    struct sw_label_header *header = label;
    *header = (struct sw_label_header){
        .version = sw_le32_of((uint32_t)store->version),
        .file_index = sw_le32_of((uint32_t)file),
        .file_count = sw_le32_of((uint32_t)store->file_count),
        .generations = sw_le32_of((uint32_t)store->generations),
        .label_bytes = sw_le64_of(store->label_bytes),
        .super_bytes = sw_le64_of(store->files[file].super_bytes),
        .sealed_bytes = sw_le64_of(store->files[file].sealed_bytes),
        .unit_count = sw_le64_of(store->unit_count),
        .grain_bytes =
            sw_le64_of(store->version == SW_FORMAT_NARROW_VERSION ? sw_optimizer_grain_bytes(store->optimizer) : 0),
    };
    memcpy(header->magic, SW_LABEL_MAGIC, SW_FORMAT_MAGIC_BYTES);
    memcpy(header->store_id, store->id, SW_FORMAT_ID_BYTES);
    sw_le64 *units = (sw_le64 *)(header + 1);
    for (int64_t unit = 0; unit < store->unit_count; unit++)
        units[unit] = sw_le64_of(store->unit_grains[unit]);
    header->extent_count =
        sw_le64_of(encode_extents(store, file, (struct sw_label_extent *)(units + store->unit_count)));
    header->sum = sw_le64_of_sum(sum_of(label, store->label_bytes));
}

/* Judges the header from its first page, before anything is allocated by what it says. */
static sw_status check_header(const struct sw_label_header *header, const char *path, int64_t file_bytes) {
    if (memcmp(header->magic, SW_LABEL_MAGIC, SW_FORMAT_MAGIC_BYTES) != 0)
        return sw_fail(SW_ERR_CORRUPT,
                       "%s is not a store, or its creation was interrupted: nothing can be resumed from "
                       "it",
                       path);
    const int version = version_of(header);
    if (version < SW_FORMAT_DENSE_VERSION || version > SW_FORMAT_NARROW_VERSION)
        return sw_fail(SW_ERR_UNSUPPORTED, "%s is a store of version %u, and this program knows versions %d to %d",
                       path, sw_from_le32(header->version), SW_FORMAT_DENSE_VERSION, SW_FORMAT_NARROW_VERSION);
    const int64_t label_bytes = sw_from_le64(header->label_bytes);
    const int64_t super_bytes = sw_from_le64(header->super_bytes);
    const int64_t sealed_bytes = sw_from_le64(header->sealed_bytes);
    const int64_t units = sw_from_le64(header->unit_count), extents = sw_from_le64(header->extent_count);
    if (label_bytes < SW_FORMAT_PAGE_BYTES || label_bytes > SW_FORMAT_MAX_LABEL_BYTES ||
        label_bytes % SW_FORMAT_PAGE_BYTES != 0 || units < 1 || units > label_bytes || extents < 0 ||
        extents > label_bytes || sw_format_label_bytes(version, units, extents) != label_bytes)
        return sw_fail(SW_ERR_CORRUPT, "%s has a damaged label: its sizes contradict each other", path);
    if (sealed_bytes < 0 || sealed_bytes > file_bytes)
        return sw_fail(SW_ERR_CORRUPT, "%s has %lld bytes and should have %lld: it has been truncated", path,
                       (long long)file_bytes, (long long)sealed_bytes);
    if (super_bytes < sw_format_super_bytes(0) || super_bytes > SW_RING_MAX_REQUEST_BYTES ||
        super_bytes % SW_FORMAT_PAGE_BYTES != 0 ||
        sw_format_super_offset(version, label_bytes, super_bytes, SW_STORE_SLOTS) > sealed_bytes)
        return sw_fail(SW_ERR_CORRUPT, "%s has a damaged label: its superblocks do not fit", path);
    const uint32_t files = sw_from_le32(header->file_count), generations = sw_from_le32(header->generations);
    if (files < 1 || files > SW_STORE_MAX_FILES || sw_from_le32(header->file_index) >= files || generations < 1 ||
        generations > SW_STORE_GENERATIONS)
        return sw_fail(SW_ERR_CORRUPT, "%s has a damaged label: its counts of files or generations are impossible",
                       path);
    return SW_OK;
}

/* Reads the beginning of a label. */
static sw_status read_front(struct sw_store *store, int file, int64_t offset_bytes, void *out, int64_t bytes) {
    const struct sw_ring_request request = {
        .op = SW_RING_READ, .file = file, .offset_bytes = offset_bytes, .bytes = bytes, .buf = out};
    int error;
    SW_TRY(sw_store_read_damaged(store, &request, 1, &error));
    return error == 0 ? SW_OK
                      : sw_fail(SW_ERR_IO,
                                "%s has a damaged label, which cannot be read at offset %lld (%s): its drive is "
                                "failing, or its creation was interrupted",
                                store->files[file].path, (long long)offset_bytes, strerror(error));
}

static sw_status read_once(struct sw_store *store, int file, int64_t offset_bytes, int64_t file_bytes,
                           void **out_label) {
    const char *path = store->files[file].path;
    void *label = NULL;
    sw_status status;
    SW_TRY(sw_store_alloc_aligned(SW_FORMAT_PAGE_BYTES, &label));
    SW_TRY_GOTO(read_front(store, file, offset_bytes, label, SW_FORMAT_PAGE_BYTES), failed);
    SW_TRY_GOTO(check_header(label, path, file_bytes), failed);
    const int64_t label_bytes = sw_from_le64(header_of(label)->label_bytes);
    free(label);
    label = NULL;
    SW_TRY_GOTO(sw_store_alloc_aligned(label_bytes, &label), failed);
    SW_TRY_GOTO(read_front(store, file, offset_bytes, label, label_bytes), failed);
    SW_TRY_GOTO(check_header(label, path, file_bytes), failed);
    if (sw_from_le64(header_of(label)->label_bytes) != label_bytes ||
        sum_of(label, label_bytes) != sw_sum_from_le64(header_of(label)->sum)) {
        status = sw_fail(SW_ERR_CORRUPT, "%s has a damaged label: its checksum is wrong", path);
        goto failed;
    }
    *out_label = label;
    return SW_OK;
failed:
    free(label);
    return status;
}

/* Looks for a whole second label where one may begin. The error of the first stays where none is found. */
static bool find_copy(struct sw_store *store, int file, int64_t file_bytes, void **out_label) {
    for (int64_t offset_bytes = SW_FORMAT_FIRST_COPY_OFFSET;
         offset_bytes <= SW_FORMAT_LAST_COPY_OFFSET && offset_bytes + SW_FORMAT_PAGE_BYTES <= file_bytes;
         offset_bytes *= 2) {
        if (read_once(store, file, offset_bytes, file_bytes, out_label) != SW_OK)
            continue;
        if (version_of(*out_label) != SW_FORMAT_DENSE_VERSION &&
            sw_format_copy_offset(sw_from_le64(header_of(*out_label)->label_bytes)) == offset_bytes)
            return true;
        free(*out_label);
        *out_label = NULL;
    }
    return false;
}

/* Like a grain, a label that is wrong is read a second time before it is believed to be. */
sw_status sw_label_read(struct sw_store *store, int file, void **out_label) {
    const char *path = store->files[file].path;
    int64_t file_bytes = store->files[file].device_bytes;
    if (!store->files[file].is_device)
        SW_TRY(sw_file_size(store->files[file].fd, path, &file_bytes));
    if (file_bytes < SW_FORMAT_PAGE_BYTES)
        return sw_fail(SW_ERR_CORRUPT,
                       "%s has %lld bytes, less than a label: it has been truncated, or its creation was interrupted",
                       path, (long long)file_bytes);
    sw_status status = read_once(store, file, 0, file_bytes, out_label);
    if (status == SW_OK || status == SW_ERR_NOMEM)
        return status;
    sw_error_clear();
    status = read_once(store, file, 0, file_bytes, out_label);
    if (status == SW_OK || !find_copy(store, file, file_bytes, out_label))
        return status;
    sw_error_clear();
    sw_log_warn("%s: the label at its beginning is damaged, and the copy of it is used: the drive may be failing",
                path);
    store->files[file].label_damaged = true;
    return SW_OK;
}

static sw_status write_again(struct sw_store *store, int file, void *label) {
    const struct sw_ring_request request = {
        .op = SW_RING_WRITE, .file = file, .bytes = store->label_bytes, .buf = label};
    SW_TRY(sw_store_run(store, &request, 1));
    return sw_store_flush(store);
}

void sw_label_mend(struct sw_store *store, void *const *labels) {
    for (int file = 0; file < store->file_count; file++) {
        if (!store->files[file].label_damaged)
            continue;
        SW_HANDLES_ERRORS();
        const sw_status status = write_again(store, file, labels[file]);
        if (status == SW_OK)
            sw_log_info("%s: the label at its beginning was written again from the copy", store->files[file].path);
        else
            sw_log_warn("the damaged label stays as it is: %s", sw_error_message(status));
    }
}

static sw_status bad_extent(const char *path, int64_t index, const char *what) {
    return sw_fail(SW_ERR_CORRUPT, "%s has a damaged label: extent %lld %s", path, (long long)index, what);
}

static bool same_extent(const struct sw_extent *a, const struct sw_extent *b) {
    return a->first_grain == b->first_grain && a->grains == b->grains && a->stripe_grains == b->stripe_grains &&
           a->first_file == b->first_file;
}

/* Takes an extent, or compares it with the one that an earlier file gave for the same unit. */
static sw_status apply_extent(struct sw_store *store, int file, const struct sw_label_extent *from, int64_t index) {
    const char *path = store->files[file].path;
    const uint32_t generation = sw_from_le32(from->generation);
    const int64_t unit = sw_from_le64(from->unit);
    if (sw_from_le32(from->kind) != SW_STORE_OPTIMIZER || generation >= (uint32_t)store->generations || unit < 0 ||
        unit >= store->unit_count || sw_from_le64(from->grain_bytes) != sw_optimizer_grain_bytes(store->optimizer))
        return bad_extent(path, index, "is of an unknown kind");
    struct sw_area *area = &store->areas[SW_STORE_OPTIMIZER][generation];
    const struct sw_extent extent = {
        .first_grain = sw_from_le64(from->first_grain),
        .grains = sw_from_le64(from->grains),
        .stripe_grains = sw_from_le32(from->stripe_grains),
        .first_file = (int)(sw_from_le32(from->first_file) & INT32_MAX),
    };
    if (extent.first_grain < 0 || extent.grains < 1 || extent.grains > store->unit_grains[unit] ||
        extent.first_grain > store->unit_grains[unit] - extent.grains || extent.stripe_grains < 1 ||
        extent.stripe_grains > MAX_STRIPE_GRAINS || extent.first_file >= store->file_count)
        return bad_extent(path, index, "exceeds its unit");
    struct sw_extent *known = &area->extents[unit];
    int64_t *offset = &area->offsets[unit * area->file_count + file];
    if (*offset != 0)
        return bad_extent(path, index, "repeats a unit");
    if (file > 0 && !same_extent(known, &extent))
        return bad_extent(path, index, "differs from that in the store's other files");
    *known = extent;
    *offset = sw_from_le64(from->offset_bytes);
    const int64_t bytes = sw_extent_grains_in(&extent, store->file_count, file) * area->grain_bytes;
    struct sw_store_file *target = &store->files[file];
    if (*offset < target->end_bytes || *offset % SW_FORMAT_PAGE_BYTES != 0 || *offset > target->sealed_bytes ||
        bytes > target->sealed_bytes - *offset)
        return bad_extent(path, index, "lies outside the file or over another");
    target->end_bytes = *offset + bytes;
    return SW_OK;
}

static sw_status apply_file(struct sw_store *store, int file, const void *label) {
    const struct sw_label_header *header = header_of(label);
    struct sw_store_file *target = &store->files[file];
    target->super_bytes = sw_from_le64(header->super_bytes);
    target->sealed_bytes = sw_from_le64(header->sealed_bytes);
    target->end_bytes = sw_super_offset(store, file, SW_STORE_SLOTS);
    const int64_t count = sw_from_le64(header->extent_count);
    for (int64_t i = 0; i < count; i++)
        SW_TRY(apply_extent(store, file, &extents_of(label)[i], i));
    target->end_bytes = target->sealed_bytes;
    const struct sw_area *areas = store->areas[SW_STORE_OPTIMIZER];
    const int64_t grains = sw_area_grains_in(&areas[0], file);
    if (grains != sw_area_grains_in(&areas[store->generations - 1], file) ||
        target->super_bytes != sw_format_super_bytes(grains))
        return sw_fail(SW_ERR_CORRUPT, "%s has a damaged label: its generations or superblocks have unequal sizes",
                       target->path);
    return SW_OK;
}

static sw_status take_format(struct sw_store *store, const void *label) {
    const int64_t grain_bytes = sw_from_le64(header_of(label)->grain_bytes);
    store->optimizer = SW_OPTIMIZER_FP32;
    if (store->version != SW_FORMAT_NARROW_VERSION)
        return SW_OK;
    for (int format = SW_OPTIMIZER_BF16; format < SW_OPTIMIZER_LAYOUTS; format++)
        if (sw_optimizer_grain_bytes((sw_optimizer_format)format) == grain_bytes)
            store->optimizer = (sw_optimizer_format)format;
    return store->optimizer != SW_OPTIMIZER_FP32
               ? SW_OK
               : sw_fail(SW_ERR_UNSUPPORTED,
                         "%s holds optimizer state of %lld bytes a grain, a format that this program does not know",
                         store->files[0].path, (long long)grain_bytes);
}

static sw_status take_units(struct sw_store *store, const void *label) {
    const struct sw_label_header *header = header_of(label);
    store->version = version_of(header);
    store->label_bytes = sw_from_le64(header->label_bytes);
    store->generations = (int)sw_from_le32(header->generations);
    store->unit_count = sw_from_le64(header->unit_count);
    memcpy(store->id, header->store_id, SW_FORMAT_ID_BYTES);
    SW_TRY(take_format(store, label));
    store->unit_grains = calloc((size_t)store->unit_count, sizeof *store->unit_grains);
    if (store->unit_grains == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for %lld units", (long long)store->unit_count);
    for (int64_t unit = 0; unit < store->unit_count; unit++) {
        store->unit_grains[unit] = sw_from_le64(units_of(label)[unit]);
        if (store->unit_grains[unit] < 0 || store->unit_grains[unit] > MAX_UNIT_GRAINS)
            return sw_fail(SW_ERR_CORRUPT, "%s has a damaged label: unit %lld has %lld grains", store->files[0].path,
                           (long long)unit, (long long)store->unit_grains[unit]);
    }
    return SW_OK;
}

sw_status sw_label_apply(struct sw_store *store, void *const *labels) {
    SW_TRY(take_units(store, labels[0]));
    struct sw_area *areas = store->areas[SW_STORE_OPTIMIZER];
    for (int generation = 0; generation < store->generations; generation++)
        SW_TRY(sw_area_init(&areas[generation], store->unit_count, store->file_count,
                            sw_optimizer_grain_bytes(store->optimizer)));
    const size_t units_bytes = (size_t)store->unit_count * sizeof(sw_le64);
    for (int file = 0; file < store->file_count; file++) {
        const struct sw_label_header *header = header_of(labels[file]);
        if (version_of(header) != store->version || sw_from_le64(header->label_bytes) != store->label_bytes ||
            sw_from_le32(header->generations) != (uint32_t)store->generations ||
            sw_from_le64(header->unit_count) != store->unit_count ||
            sw_from_le64(header->extent_count) != sw_from_le64(header_of(labels[0])->extent_count) ||
            sw_from_le64(header->grain_bytes) != sw_from_le64(header_of(labels[0])->grain_bytes) ||
            memcmp(units_of(labels[file]), units_of(labels[0]), units_bytes) != 0)
            return sw_fail(SW_ERR_CORRUPT, "%s and %s describe different models under the same identity",
                           store->files[0].path, store->files[file].path);
        SW_TRY(apply_file(store, file, labels[file]));
    }
    for (int64_t unit = 0; unit < store->unit_count; unit++)
        if (!same_extent(&areas[0].extents[unit], &areas[store->generations - 1].extents[unit]))
            return sw_fail(SW_ERR_CORRUPT, "%s has a damaged label: its generations hold different grains of unit %lld",
                           store->files[0].path, (long long)unit);
    for (int generation = 0; generation < store->generations; generation++)
        SW_TRY(sw_area_finish(&areas[generation]));
    return SW_OK;
}
