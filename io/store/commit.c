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
#include "io/store/store_private.h"

#include <assert.h>
#include <string.h>

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
    assert(!store->read_only);
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
