/* Labels and superblocks: what a file holds, and commit records with their checksums.
 *
 * A file has two superblocks, written in turn, so one is always whole. A damaged record alone does not say whether a
 * commit was interrupted, which costs nothing, or had finished and rotted, which costs a step. The mark tells: a
 * damaged record with a number the mark has seen had finished. Where the mark is damaged too, the loss is reported as
 * unsure; a wrong all-clear would be worse than a warning.
 *
 * Everything read is checked before it is used, and what fails is read a second time: an error of the reading must not
 * set a run back by a step. */
#include "core/files/files.h"
#include "core/log.h"
#include "core/status.h"
#include "io/queue/file.h"
#include "io/store/store_private.h"

#include <stdlib.h>
#include <string.h>

/* The mark: which commit was the last to finish. It is written once a record is durable in every file, so that a record
 * that is damaged later can be told from one that was never completed. The mark itself is not flushed: the next
 * commit's first flush does that, and a mark lost with the power only makes less known. */

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

static sw_status mark_read(struct sw_store *store, struct sw_finished *out) {
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

/* The label: what a store file holds and where. Everything read from it is checked before it is used. */

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

/* Returns a label's checksum. In the dense version the label ends in the mark, which is written later and not covered.
 */
static uint64_t sum_of_label(const void *label, int64_t label_bytes) {
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
                .muon_grains = sw_le64_of(extent->muon_grains),
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
            sw_le64_of(store->version >= SW_FORMAT_NARROW_VERSION ? sw_optimizer_grain_bytes(store->optimizer) : 0),
        .muon_bytes =
            sw_le64_of(store->version >= SW_FORMAT_PACKED_VERSION ? sw_optimizer_muon_bytes(store->optimizer) : 0),
    };
    memcpy(header->magic, SW_LABEL_MAGIC, SW_FORMAT_MAGIC_BYTES);
    memcpy(header->store_id, store->id, SW_FORMAT_ID_BYTES);
    sw_le64 *units = (sw_le64 *)(header + 1);
    for (int64_t unit = 0; unit < store->unit_count; unit++)
        units[unit] = sw_le64_of(store->unit_grains[unit]);
    header->extent_count =
        sw_le64_of(encode_extents(store, file, (struct sw_label_extent *)(units + store->unit_count)));
    header->sum = sw_le64_of_sum(sum_of_label(label, store->label_bytes));
}

/* Checks the header from its first page, before anything is allocated by its numbers. */
static sw_status check_header(const struct sw_label_header *header, const char *path, int64_t file_bytes) {
    if (memcmp(header->magic, SW_LABEL_MAGIC, SW_FORMAT_MAGIC_BYTES) != 0)
        return sw_fail(SW_ERR_CORRUPT,
                       "%s is not a store, or its creation was interrupted: nothing can be resumed from "
                       "it",
                       path);
    const int version = version_of(header);
    if (version < SW_FORMAT_DENSE_VERSION || version > SW_FORMAT_PACKED_VERSION)
        return sw_fail(SW_ERR_UNSUPPORTED, "%s is a store of version %u, and this program knows versions %d to %d",
                       path, sw_from_le32(header->version), SW_FORMAT_DENSE_VERSION, SW_FORMAT_PACKED_VERSION);
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
        sum_of_label(label, label_bytes) != sw_sum_from_le64(header_of(label)->sum)) {
        status = sw_fail(SW_ERR_CORRUPT, "%s has a damaged label: its checksum is wrong", path);
        goto failed;
    }
    *out_label = label;
    return SW_OK;
failed:
    free(label);
    return status;
}

/* Searches for a whole second label at each offset where one may begin. If none is found, the error of the first stays.
 */
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

/* A wrong label, like a wrong grain, is read a second time before it counts as damaged. */
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
           a->first_file == b->first_file && a->muon_grains == b->muon_grains;
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
        .muon_grains = store->version >= SW_FORMAT_PACKED_VERSION ? sw_from_le64(from->muon_grains) : 0,
    };
    if (extent.first_grain < 0 || extent.grains < 1 || extent.grains > store->unit_grains[unit] ||
        extent.first_grain > store->unit_grains[unit] - extent.grains || extent.stripe_grains < 1 ||
        extent.stripe_grains > MAX_STRIPE_GRAINS || extent.first_file >= store->file_count || extent.muon_grains < 0 ||
        extent.muon_grains > extent.grains || extent.stripe_grains % area->group != 0)
        return bad_extent(path, index, "exceeds its unit");
    struct sw_extent *known = &area->extents[unit];
    int64_t *offset = &area->offsets[unit * area->file_count + file];
    if (*offset != 0)
        return bad_extent(path, index, "repeats a unit");
    if (file > 0 && !same_extent(known, &extent))
        return bad_extent(path, index, "differs from that in the store's other files");
    *known = extent;
    *offset = sw_from_le64(from->offset_bytes);
    const int64_t bytes = sw_area_file_bytes(area, unit, file);
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

/* Tells whether stores of a version may have a format. */
static bool is_of_version(sw_optimizer_format format, int version) {
    if (version == SW_FORMAT_NARROW_VERSION)
        return format != SW_OPTIMIZER_FP32 && !sw_optimizer_has_muon(format);
    return sw_optimizer_has_muon(format) && sw_optimizer_is_packed(format) == (version == SW_FORMAT_PACKED_VERSION);
}

static sw_status take_format(struct sw_store *store, const void *label) {
    const int64_t grain_bytes = sw_from_le64(header_of(label)->grain_bytes);
    const bool packed = store->version == SW_FORMAT_PACKED_VERSION;
    const int64_t muon_bytes = packed ? sw_from_le64(header_of(label)->muon_bytes) : grain_bytes;
    store->optimizer = SW_OPTIMIZER_FP32;
    if (store->version < SW_FORMAT_NARROW_VERSION)
        return SW_OK;
    for (sw_optimizer_format format = 0; format < SW_OPTIMIZER_LAYOUTS; format++)
        if (is_of_version(format, store->version) && sw_optimizer_grain_bytes(format) == grain_bytes &&
            sw_optimizer_muon_bytes(format) == muon_bytes)
            store->optimizer = format;
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
        SW_TRY(sw_area_init_records(&areas[generation], store->unit_count, store->file_count, store->optimizer));
    const size_t units_bytes = (size_t)store->unit_count * sizeof(sw_le64);
    for (int file = 0; file < store->file_count; file++) {
        const struct sw_label_header *header = header_of(labels[file]);
        if (version_of(header) != store->version || sw_from_le64(header->label_bytes) != store->label_bytes ||
            sw_from_le32(header->generations) != (uint32_t)store->generations ||
            sw_from_le64(header->unit_count) != store->unit_count ||
            sw_from_le64(header->extent_count) != sw_from_le64(header_of(labels[0])->extent_count) ||
            sw_from_le64(header->grain_bytes) != sw_from_le64(header_of(labels[0])->grain_bytes) ||
            sw_from_le64(header->muon_bytes) != sw_from_le64(header_of(labels[0])->muon_bytes) ||
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

typedef enum { SLOT_EMPTY, SLOT_DAMAGED, SLOT_WHOLE } slot_state;

struct commit_record {
    slot_state state;
    int64_t sequence, step;
    int generation;
    const char *meta;
    int error; /* errno of reading the record; 0: it was read */
};

int64_t sw_super_offset(const struct sw_store *store, int file, int slot) {
    return sw_format_super_offset(store->version, store->label_bytes, store->files[file].super_bytes, slot);
}

static unsigned char *slot_buffer(const struct sw_store *store, int file, int slot) {
    return store->files[file].super + slot * store->files[file].super_bytes;
}

struct sw_ring_request sw_super_request(const struct sw_store *store, sw_ring_op op, int file, int slot) {
    return (struct sw_ring_request){
        .op = op,
        .file = file,
        .offset_bytes = sw_super_offset(store, file, slot),
        .bytes = store->files[file].super_bytes,
        .buf = slot_buffer(store, file, slot),
    };
}

static uint64_t sum_of(const unsigned char *super, int64_t super_bytes) {
    return sw_checksum(super + SW_FORMAT_SUM_FROM, super_bytes - SW_FORMAT_SUM_FROM);
}

/* Visits the checksums of a file's grains in the order of the table, one run of an area's sums at a time. */
typedef sw_status (*visit_sums)(sw_le64 *table, uint64_t *sums, int64_t count);

static sw_status each_sum_run(struct sw_store *store, int file, int generation, sw_le64 *table, visit_sums visit) {
    struct sw_area *area = &store->areas[SW_STORE_OPTIMIZER][generation];
    for (int64_t unit = 0; unit < store->unit_count; unit++) {
        const struct sw_extent *extent = &area->extents[unit];
        const int64_t end = extent->first_grain + extent->grains;
        struct sw_file_run run;
        for (int64_t grain = extent->first_grain; grain < end; grain += run.grains) {
            run = sw_area_run(area, unit, grain, end - grain);
            if (run.file != file)
                continue;
            const sw_status status = visit(table, sw_area_sums(area, unit, grain), run.grains);
            if (status != SW_OK)
                return sw_fail(status, "unit %lld has grains from %lld on that were never written in generation %d",
                               (long long)unit, (long long)grain, generation);
            table += run.grains;
        }
    }
    return SW_OK;
}

static sw_status put_sums(sw_le64 *table, uint64_t *sums, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        if (sums[i] == SW_CHECKSUM_UNKNOWN)
            return SW_ERR_INTERNAL;
        table[i] = sw_le64_of_sum(sums[i]);
    }
    return SW_OK;
}

static sw_status get_sums(sw_le64 *table, uint64_t *sums, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        sums[i] = sw_sum_from_le64(table[i]);
    return SW_OK;
}

static sw_le64 *table_of(unsigned char *super) {
    return (sw_le64 *)(super + SW_SUPER_SUMS_OFFSET);
}

sw_status sw_super_encode(struct sw_store *store, int file, int64_t step, int generation, const char *meta) {
    struct sw_store_file *target = &store->files[file];
    unsigned char *super = slot_buffer(store, file, 1 - target->committed_slot);
    memset(super, 0, (size_t)target->super_bytes);
    SW_TRY(each_sum_run(store, file, generation, table_of(super), put_sums));
    const size_t meta_bytes = strlen(meta);
    memcpy(super + SW_SUPER_META_OFFSET, meta, meta_bytes);
    struct sw_super_header *header = (struct sw_super_header *)super;
    *header = (struct sw_super_header){
        .version = sw_le32_of((uint32_t)store->version),
        .file_index = sw_le32_of((uint32_t)file),
        .generation = sw_le32_of((uint32_t)generation),
        .sequence = sw_le64_of(store->sequence),
        .step = sw_le64_of(step),
        .sum_count = sw_le64_of(sw_area_grains_in(&store->areas[SW_STORE_OPTIMIZER][generation], file)),
        .meta_bytes = sw_le64_of((int64_t)meta_bytes),
    };
    memcpy(header->magic, SW_SUPER_MAGIC, SW_FORMAT_MAGIC_BYTES);
    memcpy(header->store_id, store->id, SW_FORMAT_ID_BYTES);
    header->sum = sw_le64_of_sum(sum_of(super, target->super_bytes));
    return SW_OK;
}

static struct commit_record decode(const struct sw_store *store, int file, int slot) {
    const unsigned char *super = slot_buffer(store, file, slot);
    const int64_t super_bytes = store->files[file].super_bytes;
    const struct sw_super_header *header = (const struct sw_super_header *)super;
    if (sw_store_is_zero(super, super_bytes))
        return (struct commit_record){.state = SLOT_EMPTY};
    const struct commit_record record = {
        .state = SLOT_WHOLE,
        .sequence = sw_from_le64(header->sequence),
        .step = sw_from_le64(header->step),
        .generation = (int)(sw_from_le32(header->generation) & INT32_MAX),
        .meta = (const char *)super + SW_SUPER_META_OFFSET,
    };
    const bool whole =
        memcmp(header->magic, SW_SUPER_MAGIC, SW_FORMAT_MAGIC_BYTES) == 0 &&
        sum_of(super, super_bytes) == sw_sum_from_le64(header->sum) &&
        sw_from_le32(header->version) == (uint32_t)store->version &&
        sw_from_le32(header->file_index) == (uint32_t)file &&
        memcmp(header->store_id, store->id, SW_FORMAT_ID_BYTES) == 0 && record.generation < store->generations &&
        sw_from_le64(header->sum_count) == sw_area_grains_in(&store->areas[SW_STORE_OPTIMIZER][0], file) &&
        record.sequence > 0 && record.step >= 0 && memchr(record.meta, '\0', SW_STORE_META_BYTES) != NULL;
    return whole ? record : (struct commit_record){.state = SLOT_DAMAGED};
}

typedef struct commit_record file_records[SW_STORE_SLOTS];

/* Reads one record of every file. A drive that cannot read one may still have the other. */
static sw_status read_slot(struct sw_store *store, int slot, file_records *records) {
    struct sw_ring_request requests[SW_STORE_MAX_FILES];
    int errors[SW_STORE_MAX_FILES];
    for (int file = 0; file < store->file_count; file++)
        requests[file] = sw_super_request(store, SW_RING_READ, file, slot);
    SW_TRY(sw_store_read_damaged(store, requests, store->file_count, errors));
    for (int file = 0; file < store->file_count; file++)
        records[file][slot] = errors[file] == 0 ? decode(store, file, slot)
                                                : (struct commit_record){.state = SLOT_DAMAGED, .error = errors[file]};
    return SW_OK;
}

/* Returns the slot of a file's records that holds this commit, or -1. */
static int slot_with(const struct commit_record records[SW_STORE_SLOTS], int64_t sequence) {
    for (int slot = 0; slot < SW_STORE_SLOTS; slot++)
        if (records[slot].state == SLOT_WHOLE && records[slot].sequence == sequence)
            return slot;
    return -1;
}

static const struct commit_record *newest_common(const struct sw_store *store, const file_records *records,
                                                 int64_t most_step) {
    const struct commit_record *newest = NULL;
    for (int slot = 0; slot < SW_STORE_SLOTS; slot++) {
        const struct commit_record *candidate = &records[0][slot];
        bool common = candidate->state == SLOT_WHOLE && candidate->step <= most_step;
        for (int file = 1; common && file < store->file_count; file++)
            common = slot_with(records[file], candidate->sequence) >= 0;
        if (common && (newest == NULL || candidate->sequence > newest->sequence))
            newest = candidate;
    }
    return newest;
}

static sw_status explain_lost(const struct sw_store *store, int file, const struct commit_record *records) {
    for (int slot = 0; slot < SW_STORE_SLOTS; slot++)
        if (records[slot].error != 0)
            return sw_fail(SW_ERR_IO,
                           "%s has lost both of its superblocks: no commit can be read from it, and one of them cannot "
                           "be read at offset %lld: %s",
                           store->files[file].path, (long long)sw_super_offset(store, file, slot),
                           strerror(records[slot].error));
    return sw_fail(SW_ERR_CORRUPT, "%s has lost both of its superblocks: no commit can be read from it",
                   store->files[file].path);
}

/* Refuses a store that is read during training and has no commit: not yet, or, with one generation, until the run ends.
 */
static sw_status explain_early(const struct sw_store *store) {
    return sw_fail(SW_ERR_BUSY, "%s is being trained and has no commit yet%s: wait for %s, or stop it",
                   store->files[0].path,
                   store->generations == 1 ? ", as --durability none makes one only when a run ends" : "",
                   store->generations == 1 ? "its run to end" : "the first one");
}

static sw_status explain_none(const struct sw_store *store, const file_records *records,
                              const struct sw_finished *finished) {
    bool first_unfinished = true, damaged = false;
    for (int file = 0; file < store->file_count; file++) {
        first_unfinished = first_unfinished && records[file][1].state == SLOT_EMPTY;
        damaged = damaged || records[file][0].state == SLOT_DAMAGED || records[file][1].state == SLOT_DAMAGED;
    }
    if (store->read_only && (store->generations == 1 || first_unfinished) && sw_lock_is_held(store->files[0].fd))
        return explain_early(store);
    if (store->generations == 1)
        return sw_fail(damaged ? SW_ERR_CORRUPT : SW_ERR_ARG,
                       "%s was kept with --durability none and its run did not end cleanly%s: its state is lost, and "
                       "the run must be started again",
                       store->files[0].path, damaged ? ", or the record of that end has been damaged since" : "");
    if (first_unfinished && finished->sequence > 0)
        return sw_fail(SW_ERR_CORRUPT, "%s has lost the record of its only commit (step %lld), which had finished",
                       store->files[0].path, (long long)finished->step);
    if (first_unfinished)
        return sw_fail(damaged ? SW_ERR_CORRUPT : SW_ERR_ARG,
                       "%s has no finished commit: its run ended before its first one%s, and must be started again",
                       store->files[0].path, damaged ? ", or the record of that has been damaged since" : "");
    for (int file = 0; file < store->file_count; file++)
        if (records[file][0].state != SLOT_WHOLE && records[file][1].state != SLOT_WHOLE)
            return explain_lost(store, file, records[file]);
    return sw_fail(SW_ERR_CORRUPT, "the files of the store of %s have no commit in common", store->files[0].path);
}

/* Returns the step of a commit that is later than this one and whole in some file, or -1. */
static int64_t later_step(const struct sw_store *store, const file_records *records,
                          const struct commit_record *commit) {
    for (int file = 0; file < store->file_count; file++)
        for (int slot = 0; slot < SW_STORE_SLOTS; slot++)
            if (records[file][slot].state == SLOT_WHOLE && records[file][slot].sequence > commit->sequence)
                return records[file][slot].step;
    return -1;
}

/* Returns the step of a later commit that a damaged record may have held, or -1. The record's own numbers count only if
 * sequence and step agree: one flipped bit cannot make both look earlier. */
static int64_t step_of(const struct sw_store *store, const file_records *records, int file, int slot,
                       const struct commit_record *commit) {
    const struct sw_super_header *header = (const struct sw_super_header *)slot_buffer(store, file, slot);
    const int64_t sequence = sw_from_le64(header->sequence), step = sw_from_le64(header->step);
    const bool readable = memcmp(header->magic, SW_SUPER_MAGIC, SW_FORMAT_MAGIC_BYTES) == 0;
    if (readable && sequence > 0 && sequence < commit->sequence && step <= commit->step)
        return -1;
    return readable && sequence > commit->sequence && step > commit->step ? step : later_step(store, records, commit);
}

static void note(struct sw_store *store, int file, int slot, sw_store_loss loss, int64_t step) {
    store->bad_records[store->bad_record_count++] =
        (struct sw_store_bad_record){.path = store->files[file].path,
                                     .offset_bytes = sw_super_offset(store, file, slot),
                                     .loss = loss,
                                     .step = step};
}

/* Notes the damaged records. From the second commit on no slot is empty, except after a withdrawal. A later commit that
 * had finished is lost if a file lacks it. */
static void note_bad_records(struct sw_store *store, const file_records *records, const struct commit_record *commit,
                             const struct sw_finished *finished) {
    const bool both_written = store->generations == SW_STORE_GENERATIONS && commit->sequence > 1;
    /* With one generation, the other slot holds only a withdrawn commit. */
    const bool unsure = finished->unsure && store->generations == SW_STORE_GENERATIONS;
    for (int file = 0; file < store->file_count; file++) {
        if (finished->sequence > commit->sequence && slot_with(records[file], finished->sequence) < 0) {
            note(store, file, 1 - slot_with(records[file], commit->sequence), SW_STORE_RECORD_LOST, finished->step);
            continue;
        }
        for (int slot = 0; slot < SW_STORE_SLOTS; slot++) {
            const slot_state state = records[file][slot].state;
            if (state == SLOT_DAMAGED || (state == SLOT_EMPTY && both_written))
                note(store, file, slot, unsure ? SW_STORE_RECORD_UNSURE : SW_STORE_RECORD_HARMLESS,
                     step_of(store, records, file, slot, commit));
        }
    }
}

static sw_status adopt(struct sw_store *store, const file_records *records, const struct commit_record *commit) {
    for (int file = 0; file < store->file_count; file++) {
        const int slot = slot_with(records[file], commit->sequence);
        const struct commit_record *here = &records[file][slot];
        if (here->step != commit->step || here->generation != commit->generation ||
            strcmp(here->meta, commit->meta) != 0)
            return sw_fail(SW_ERR_CORRUPT, "%s and %s tell of different commits under the same number",
                           store->files[0].path, store->files[file].path);
        store->files[file].committed_slot = slot;
        SW_TRY(each_sum_run(store, file, commit->generation, table_of(slot_buffer(store, file, slot)), get_sums));
        for (int other = 0; other < SW_STORE_SLOTS; other++)
            store->sequence = sw_max_i64(store->sequence, records[file][other].sequence);
    }
    store->committed_sequence = commit->sequence;
    sw_store_set_commit(store, commit->step, commit->generation, commit->meta);
    return SW_OK;
}

sw_status sw_super_alloc(struct sw_store *store) {
    for (int file = 0; file < store->file_count; file++) {
        struct sw_store_file *target = &store->files[file];
        SW_TRY(sw_store_alloc_aligned(SW_FORMAT_MARK_BYTES, (void **)&target->mark));
        SW_TRY(sw_store_alloc_aligned(SW_STORE_SLOTS * target->super_bytes, (void **)&target->super));
    }
    return SW_OK;
}

/* Reads and decodes all superblocks and marks. Sets *out_damaged if any is damaged. */
static sw_status read_records(struct sw_store *store, file_records *records, struct sw_finished *finished,
                              bool *out_damaged) {
    SW_TRY(mark_read(store, finished));
    *out_damaged = finished->unsure;
    for (int slot = 0; slot < SW_STORE_SLOTS; slot++) {
        SW_TRY(read_slot(store, slot, records));
        for (int file = 0; file < store->file_count; file++)
            *out_damaged |= records[file][slot].state == SLOT_DAMAGED;
    }
    return SW_OK;
}

/* Returns the newest step of all records whose first page belongs to this store, whole or not; -1: none. */
static int64_t newest_record(const struct sw_store *store) {
    int64_t newest = -1;
    for (int file = 0; file < store->file_count; file++)
        for (int slot = 0; slot < SW_STORE_SLOTS; slot++) {
            const struct sw_super_header *header = (const struct sw_super_header *)slot_buffer(store, file, slot);
            if (memcmp(header->magic, SW_SUPER_MAGIC, SW_FORMAT_MAGIC_BYTES) == 0 &&
                memcmp(header->store_id, store->id, SW_FORMAT_ID_BYTES) == 0)
                newest = sw_max_i64(newest, sw_from_le64(header->step));
        }
    return newest;
}

sw_status sw_super_load(struct sw_store *store, int64_t most_step) {
    file_records records[SW_STORE_MAX_FILES] = {0};
    struct sw_finished finished;
    bool damaged;
    SW_TRY(read_records(store, records, &finished, &damaged));
    /* Reads a second time: an error of the reading must not set a run back by a step. */
    if (damaged)
        SW_TRY(read_records(store, records, &finished, &damaged));
    store->newest_record = newest_record(store);
    const struct commit_record *newest = newest_common(store, records, INT64_MAX);
    if (newest == NULL)
        return explain_none(store, records, &finished);
    const struct commit_record *commit = newest_common(store, records, most_step);
    if (commit == NULL)
        return sw_fail(SW_ERR_ARG, "%s has no commit up to step %lld: its last one is step %lld", store->files[0].path,
                       (long long)most_step, (long long)newest->step);
    store->mark_damaged = finished.unsure;
    atomic_store(&store->behind, commit->sequence < newest->sequence);
    const struct commit_record *previous = newest_common(store, records, commit->step - 1);
    if (previous != NULL && previous->generation != commit->generation)
        atomic_store(&store->previous_step, previous->step);
    note_bad_records(store, records, commit, &finished);
    /* The number of a lost commit is not given to another. */
    store->sequence = finished.sequence;
    return adopt(store, records, commit);
}
