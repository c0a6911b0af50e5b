/* Superblocks: commit records with their sums. Two in each file, written in turn, so that one is always whole. */
#include "core/checksum.h"
#include "io/queue/lock.h"
#include "io/store/store_private.h"

#include <string.h>

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

/* Visits the sums of a file's grains in the order of the table: a run of an area's sums at a time. */
typedef sw_status (*visit_sums)(sw_le64 *table, uint64_t *sums, int64_t count);

static sw_status each_sum_run(struct sw_store *store, int file, int generation, sw_le64 *table, visit_sums visit) {
    struct sw_area *area = &store->areas[SW_STORE_OPTIMIZER][generation];
    for (int64_t unit = 0; unit < store->unit_count; unit++) {
        const struct sw_extent *extent = &area->extents[unit];
        const int64_t end = extent->first_grain + extent->grains;
        struct sw_run run;
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

/* Reads one record of every file: a drive that cannot read one may have the other. */
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

/* Refuses a store that is read while its run trains and has no commit: not yet, or, with one generation, until the run
 * ends. */
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

/* Returns the step of a later commit that a damaged record may have held, or -1. The record's own numbers count only
 * where sequence and step agree, because one flipped bit cannot make both of a later record look earlier. */
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

/* Notes the records that are not as they were written. From the second commit on no slot is empty, but where a commit
 * was withdrawn. A later commit that had finished is lost where a file lacks it. */
static void note_bad_records(struct sw_store *store, const file_records *records, const struct commit_record *commit,
                             const struct sw_finished *finished) {
    const bool both_written = store->generations == SW_STORE_GENERATIONS && commit->sequence > 1;
    /* Beside the commit of one generation there is only what was withdrawn. */
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
            if (records[file][other].state == SLOT_WHOLE)
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

/* Reads and decodes all superblocks and marks. Sets *out_damaged where any of them is damaged. */
static sw_status read_records(struct sw_store *store, file_records *records, struct sw_finished *finished,
                              bool *out_damaged) {
    SW_TRY(sw_mark_read(store, finished));
    *out_damaged = finished->unsure;
    for (int slot = 0; slot < SW_STORE_SLOTS; slot++) {
        SW_TRY(read_slot(store, slot, records));
        for (int file = 0; file < store->file_count; file++)
            *out_damaged |= records[file][slot].state == SLOT_DAMAGED;
    }
    return SW_OK;
}

/* Returns the newest step of all records whose first page is this store's, whole or not; -1 where there is none. */
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
    /* Once more, like a grain: an error of the reading must not set a run back by a step. */
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
    /* The number of a commit that is lost is not given to another. */
    store->sequence = finished.sequence;
    return adopt(store, records, commit);
}
