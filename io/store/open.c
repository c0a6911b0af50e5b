/* Opens a store from its files, given in any order. They are believed only as far as their checksums go.
 *
 * A step is open only if every file has its whole record; the newest such step wins. So files need no common
 * transaction: a crash between the records of two files leaves the older step whole in all of them.
 *
 * Reading while a run trains takes no lock, because a lock would make the run wait or fail. The reader notices from the
 * records that it was overtaken, and opens again. */
#include "io/queue/file.h"
#include "io/store/block.h"
#include "io/store/store_private.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* Makes, writes and parses identities of stores. */

static_assert(SW_STORE_ID_CHARS == 2 * SW_FORMAT_ID_BYTES + 1, "two digits a byte");

static void write_id(const uint8_t id[SW_FORMAT_ID_BYTES], char text[SW_STORE_ID_CHARS]) {
    for (int i = 0; i < SW_FORMAT_ID_BYTES; i++)
        snprintf(text + (ptrdiff_t)(2 * i), 3, "%02x", id[i]);
}

const char *sw_store_id(const struct sw_store *store, char text[SW_STORE_ID_CHARS]) {
    write_id(store->id, text);
    return text;
}

sw_status sw_store_new_id(char text[SW_STORE_ID_CHARS]) {
    uint8_t id[SW_FORMAT_ID_BYTES];
    if (getrandom(id, sizeof id, 0) != (ssize_t)sizeof id)
        return sw_fail(SW_ERR_IO, "the system gave no random bytes: %s", strerror(errno));
    write_id(id, text);
    return SW_OK;
}

sw_status sw_store_id_parse(const char *text, uint8_t out[SW_FORMAT_ID_BYTES]) {
    bool right = strlen(text) == SW_STORE_ID_CHARS - 1;
    for (int i = 0; right && i < SW_FORMAT_ID_BYTES; i++)
        right = sscanf(text + (ptrdiff_t)(2 * i), "%2hhx", &out[i]) == 1;
    return right ? SW_OK : sw_fail(SW_ERR_CORRUPT, "'%s' is not the identity of a store", text);
}

#define MOST_SEQUENCE (INT64_C(1) << 62)

struct opening {
    bool read_only, allow_buffered;
    int64_t most_step;
};

static sw_status open_file(const struct sw_store *store, bool allow_buffered, struct sw_store_file *target) {
    if (store->read_only)
        return target->is_device ? sw_block_open_unlocked(target->path, &target->fd, &target->device_bytes)
                                 : sw_file_open_unlocked(target->path, &target->fd);
    return target->is_device ? sw_block_open(target->path, &target->fd, &target->device_bytes)
                             : sw_file_open(target->path, allow_buffered, &target->fd);
}

static sw_status read_labels(struct sw_store *store, const char *const *directories, bool allow_buffered,
                             void *labels[]) {
    for (int i = 0; i < store->file_count; i++) {
        SW_TRY(sw_store_set_file(store, i, directories[i]));
        SW_TRY(open_file(store, allow_buffered, &store->files[i]));
    }
    SW_TRY(sw_store_open_queue(store, SW_STORE_MAX_FILES, &store->queue));
    for (int i = 0; i < store->file_count; i++)
        SW_TRY(sw_label_read(store, i, &labels[i]));
    return SW_OK;
}

/* Sorts files and labels by their indices, an order that the queue relies on. */
static sw_status sort_files(struct sw_store *store, void *labels[]) {
    const char *first_path = store->files[0].path;
    const int needed = sw_label_file_count(labels[0]);
    if (needed != store->file_count)
        return sw_fail(SW_ERR_ARG, "the store of %s is striped over %d director%s, and %d %s given: give %s",
                       first_path, needed, needed == 1 ? "y" : "ies", store->file_count,
                       store->file_count == 1 ? "was" : "were", needed == 1 ? "that one" : "all of them");
    struct sw_store_file files[SW_STORE_MAX_FILES];
    void *sorted[SW_STORE_MAX_FILES] = {NULL};
    memcpy(files, store->files, sizeof files);
    for (int i = 0; i < store->file_count; i++) {
        const int index = sw_label_file_index(labels[i]);
        if (memcmp(sw_label_store_id(labels[i]), sw_label_store_id(labels[0]), SW_FORMAT_ID_BYTES) != 0 ||
            sw_label_file_count(labels[i]) != needed)
            return sw_fail(SW_ERR_ARG, "%s and %s belong to different stores", first_path, files[i].path);
        if (sorted[index] != NULL)
            return sw_fail(SW_ERR_ARG, "%s is a copy of another file of the same store", files[i].path);
        sorted[index] = labels[i];
    }
    for (int i = 0; i < store->file_count; i++)
        store->files[sw_label_file_index(labels[i])] = files[i];
    memcpy(labels, sorted, (size_t)store->file_count * sizeof *labels);
    sw_queue_close(store->queue);
    store->queue = NULL;
    return sw_store_open_queue(store, SW_STORE_MAX_FILES, &store->queue);
}

/* Refuses a number of the last commit that no training reaches: the next one might overflow. */
static sw_status check_sequence(const struct sw_store *store) {
    if (store->sequence <= MOST_SEQUENCE)
        return SW_OK;
    return sw_fail(SW_ERR_CORRUPT,
                   "%s numbers its last commit %lld, which no training reaches, and cannot take another: export its "
                   "weights, which are whole if verify says so, and begin a new run from them",
                   store->files[0].path, (long long)store->sequence);
}

static sw_status load(struct sw_store *store, const char *const *directories, const struct opening *opening,
                      void *labels[]) {
    SW_TRY(read_labels(store, directories, opening->allow_buffered, labels));
    SW_TRY(sort_files(store, labels));
    SW_TRY(sw_label_apply(store, labels));
    SW_TRY(sw_super_alloc(store));
    SW_TRY(sw_super_load(store, opening->most_step));
    if (store->read_only)
        return SW_OK;
    SW_TRY(check_sequence(store));
    /* If the writing process died within its commit, the record that was read may so far be only in a drive's cache. It
     * must be durable before the generation that it replaces is overwritten. */
    SW_TRY(sw_store_flush(store));
    sw_label_mend(store, labels);
    return SW_OK;
}

static sw_status open_on(const struct sw_ring_source *rings, const char *const *directories, int directory_count,
                         const struct opening *opening, struct sw_store **out) {
    SW_TRY(sw_file_check_distinct(directories, directory_count));
    struct sw_store *store;
    SW_TRY(sw_store_alloc(directory_count, rings, &store));
    store->read_only = store->trimmed = opening->read_only;
    void *labels[SW_STORE_MAX_FILES] = {NULL};
    const sw_status status = load(store, directories, opening, labels);
    for (int i = 0; i < directory_count; i++)
        free(labels[i]);
    if (status != SW_OK) {
        sw_store_free(store, false);
        return status;
    }
    *out = store;
    return SW_OK;
}

sw_status sw_store_open_on(const struct sw_ring_source *rings, const char *const *directories, int directory_count,
                           bool allow_buffered, int64_t most_step, struct sw_store **out) {
    const struct opening opening = {.allow_buffered = allow_buffered, .most_step = most_step};
    return open_on(rings, directories, directory_count, &opening, out);
}

sw_status sw_store_open(const char *const *directories, int directory_count, bool allow_buffered, int64_t most_step,
                        struct sw_store **out) {
    return sw_store_open_on(NULL, directories, directory_count, allow_buffered, most_step, out);
}

sw_status sw_store_open_to_read(const char *const *directories, int directory_count, int64_t most_step,
                                struct sw_store **out) {
    const struct opening opening = {.read_only = true, .most_step = most_step};
    return open_on(NULL, directories, directory_count, &opening, out);
}

void sw_store_close(struct sw_store *store) {
    if (store == NULL)
        return;
    sw_store_note_lost(store);
    sw_store_free(store, false);
}

/* Tells whether a file's records differ from those at the opening: the commit being read is gone, or there is a later
 * one than before. An unreadable record proves nothing. */
static bool is_changed(const struct sw_store *store, int file, void *page) {
    const struct sw_store_file *target = &store->files[file];
    bool changed = false;
    for (int slot = 0; slot < SW_STORE_SLOTS; slot++) {
        if (pread(target->fd, page, SW_FORMAT_PAGE_BYTES, sw_super_offset(store, file, slot)) != SW_FORMAT_PAGE_BYTES)
            continue;
        const int64_t sequence = sw_from_le64(((const struct sw_super_header *)page)->sequence);
        changed |= slot == target->committed_slot ? sequence != store->committed_sequence : sequence > store->sequence;
    }
    return changed;
}

sw_status sw_store_check_current(const struct sw_store *store) {
    void *page;
    if (!store->read_only)
        return SW_OK;
    SW_TRY(sw_store_alloc_aligned(SW_FORMAT_PAGE_BYTES, &page));
    /* If a later commit already existed, the run may be writing the one after it. */
    bool changed = atomic_load(&store->behind) && sw_lock_is_held(store->files[0].fd);
    for (int file = 0; file < store->file_count; file++)
        changed |= is_changed(store, file, page);
    free(page);
    return !changed ? SW_OK
                    : sw_fail(SW_ERR_OVERTAKEN,
                              "step %lld in %s was written over while it was read, as its run trains on: try again, or "
                              "stop the run first",
                              (long long)store->commit.step, store->files[0].path);
}

/* Commits: makes data durable first, then the record that points to it.
 *
 * Two flushes per commit are the minimum without trusting the drive: the first orders data before the record, the
 * second ends the commit before the old generation may be overwritten. A journal would write every record twice; here
 * the two generations already are what a journal would protect.
 *
 * The mark of a finished commit is written unflushed and becomes durable with the next commit's first flush. It saves a
 * third flush: losing it only makes a damaged record's meaning unsure.
 *
 * After an error nobody knows what the drives hold, so both generations stay untouched until the store is opened again.
 */

/* Writes, in every file, the record that is not the committed one. */
static sw_status write_supers(struct sw_store *store) {
    struct sw_ring_request requests[SW_STORE_MAX_FILES];
    for (int file = 0; file < store->file_count; file++)
        requests[file] = sw_super_request(store, SW_RING_WRITE, file, 1 - store->files[file].committed_slot);
    return sw_store_run(store, requests, store->file_count);
}

static void exchange_slots(struct sw_store *store) {
    for (int file = 0; file < store->file_count; file++)
        store->files[file].committed_slot = 1 - store->files[file].committed_slot;
}

/* Returns the status of a change to the records. After an error it is unknown which records the drives hold. */
static sw_status settle(struct sw_store *store, sw_status status) {
    if (status != SW_OK)
        atomic_store(&store->unsure, true);
    return status;
}

static sw_status write_durably(struct sw_store *store, int64_t step) {
    /* Without a mark, a record torn by a power loss could not be told from one whose commit had finished. */
    if (store->mark_damaged && store->commit.step >= 0)
        SW_TRY(sw_mark_write(store, store->committed_sequence, store->commit.step));
    SW_TRY(sw_store_flush(store));
    store->created = false;
    store->mark_damaged = false;
    SW_TRY(write_supers(store));
    SW_TRY(sw_store_flush(store));
    return sw_mark_write(store, store->sequence, step);
}

sw_status sw_store_commit(struct sw_store *store, int64_t step, int generation, const char *meta) {
    if (step < 0 || generation < 0 || generation >= store->generations)
        return sw_fail(SW_ERR_INTERNAL, "step %lld of generation %d cannot be committed", (long long)step, generation);
    if (strlen(meta) >= SW_STORE_META_BYTES)
        return sw_fail(SW_ERR_INTERNAL, "the text of a commit has %zu bytes, more than %d", strlen(meta),
                       SW_STORE_META_BYTES - 1);
    SW_TRY(sw_store_check_writable(store, generation));
    /* A number is used once, even if its commit fails: two attempts must never look alike. */
    store->sequence++;
    for (int file = 0; file < store->file_count; file++)
        SW_TRY(sw_super_encode(store, file, step, generation, meta));
    SW_TRY(sw_fail_while(settle(store, write_durably(store, step)), "committing step %lld (optimizer, generation %d)",
                         (long long)step, generation));
    exchange_slots(store);
    store->committed_sequence = store->sequence;
    atomic_store(&store->previous_step, store->commit.step);
    sw_store_set_commit(store, step, generation, meta);
    return SW_OK;
}

sw_status sw_store_withdraw(struct sw_store *store) {
    if (store->generations != 1)
        return sw_fail(SW_ERR_INTERNAL, "the commit of a store of two generations cannot be withdrawn");
    if (store->commit.step < 0)
        return SW_OK;
    for (int file = 0; file < store->file_count; file++)
        memset(store->files[file].super, 0, (size_t)(SW_STORE_SLOTS * store->files[file].super_bytes));
    sw_status status = SW_OK;
    for (int slot = 0; slot < SW_STORE_SLOTS && status == SW_OK; slot++) {
        status = write_supers(store);
        exchange_slots(store);
    }
    if (status == SW_OK)
        status = sw_store_flush(store);
    SW_TRY(sw_fail_while(settle(store, status), "withdrawing the commit of step %lld", (long long)store->commit.step));
    sw_store_set_commit(store, -1, 0, "");
    return SW_OK;
}

/* Removes the commits after the one at which the store was opened. The mark goes first: it may name an earlier commit
 * than the records do, but never one that does not exist. */
static sw_status remove_later(struct sw_store *store) {
    SW_TRY(sw_mark_write(store, store->committed_sequence, store->commit.step));
    SW_TRY(sw_store_flush(store));
    for (int file = 0; file < store->file_count; file++) {
        const struct sw_store_file *target = &store->files[file];
        memcpy(target->super + (1 - target->committed_slot) * target->super_bytes,
               target->super + target->committed_slot * target->super_bytes, (size_t)target->super_bytes);
    }
    SW_TRY(write_supers(store));
    return sw_store_flush(store);
}

sw_status sw_store_go_back(struct sw_store *store) {
    if (!atomic_load(&store->behind))
        return SW_OK;
    assert(!store->read_only);
    SW_TRY(sw_fail_while(settle(store, remove_later(store)), "going back to the commit of step %lld",
                         (long long)store->commit.step));
    atomic_store(&store->behind, false);
    return SW_OK;
}
