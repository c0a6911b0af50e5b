/* The store: optimizer state and scratch state on NVMe, crash-safe.
 *
 * A store has one file ("store.spillway") in each directory, or uses whole block devices; grains are striped over them.
 * A file begins with a label (magic, version, identity, the extents of everything it holds, XXH3 of all of it), written
 * once at creation and a second time after it, and with the mark of the last commit that finished. Two superblocks
 * follow, each a commit record with a checksum per grain and one of its own; then two generations of the optimizer's
 * grain records; then scratch areas for state that is never committed (gradients), laid out again whenever the store is
 * opened. Parts are so far apart that a write cut short by a power loss damages no other part. Stores of version 2 can
 * be opened too. A store whose optimizer state is narrow has version 4, and its labels say so. Records with Muon's
 * momentum have version 5 or, packed, 6: a transfer of these begins and ends at multiples of SW_RECORD_GROUP grains
 * from the first that the store has of the unit, or ends with them, and its buffer has room up to the end of a page.
 *
 * A store may also have one generation. Its commit marks a clean end, and is withdrawn before the grains change again.
 *
 * A commit makes one generation the truth: all writes complete, fdatasync on every file, the record into the older
 * superblock of every file, fdatasync again. Opening takes the newest step that every file has committed.
 *
 * Grains are addressed by kind, unit and index in the whole unit (and generation), never by file or rank. If several
 * ranks share the units, a store holds only a run of each unit's grains. Buffers are aligned to SW_BUFFER_ALIGN_BYTES.
 *
 * Threads: a lane belongs to one thread. Several lanes may run at once on one store as long as no two of them transfer
 * the same grain. All other calls belong to the thread that owns the store and need idle lanes, except sw_store_commit,
 * which may run while other lanes read. */
#ifndef SW_IO_STORE_STORE_H
#define SW_IO_STORE_STORE_H

#include "core/optimizer_format.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

/* The name of a store's file in each of its directories. */
#define SW_STORE_FILE_NAME "store.spillway"

enum { SW_STORE_GENERATIONS = 2, SW_STORE_MAX_FILES = 64, SW_STORE_META_BYTES = 16384, SW_STORE_VERSION = 3 };

typedef enum {
    SW_STORE_OPTIMIZER = 0, /* committed, two generations; all other kinds are scratch */
    SW_STORE_GRADS = 1,
    SW_STORE_WEIGHTS = 2,
    SW_STORE_ACTS = 3, /* a unit's inputs, micro-batch by micro-batch */
    SW_STORE_ACCUMULATORS = 4,
    SW_STORE_BASE = 5,      /* a unit's quantized base, cell by cell */
    SW_STORE_FROZEN = 6,    /* weights that training does not change, where SW_STORE_WEIGHTS are those that it does */
    SW_STORE_KEPT_SUMS = 7, /* checksums of the two above (sw_store_keep), in unit 0: pages of 4096 bytes */
    SW_STORE_IN_PLACE = 8,  /* frozen weights in files of others, which the store reads there (sw_store_borrow) */
    SW_STORE_KINDS = 9
} sw_store_kind;

struct sw_store;
struct sw_store_lane;

/* Grains of a kind that is never committed: unit_grains[unit] grains of grain_bytes (a multiple of 4096) from
 * unit_first[unit] on (NULL: from 0). 0: the unit has none. */
struct sw_store_scratch {
    sw_store_kind kind;
    const int64_t *unit_first, *unit_grains;
    int64_t grain_bytes;
};

struct sw_store_spec {
    const char *const
        *directories; /* existing and writable, one file is made in each; or block devices, used directly */
    int directory_count;
    const int64_t *unit_grains; /* per unit: the grains held here, from unit_first[unit] on (NULL: from 0); may be 0 */
    const int64_t *unit_first;
    const int64_t *unit_whole_grains; /* per unit: the grains of the whole unit, wherever held; NULL: the unit ends with
                                         those held here */
    const int64_t *unit_muon_grains;  /* per unit: how many of the grains held here, the first ones, have a momentum;
                                         NULL:  none. Only packed formats need it */
    int64_t unit_count;
    sw_optimizer_format optimizer; /* format of the optimizer's grains, which decides their bytes */
    /* Scratch areas to be added, in this order; their space is reserved with the rest. */
    const struct sw_store_scratch *scratch;
    int scratch_count;
    const int64_t *most_bytes;   /* per directory: the bytes that the store may take, 0: any number; NULL: no limits */
    bool allow_buffered;         /* accept a file system without O_DIRECT, with a warning */
    bool one_generation;         /* half the space, but only a clean end can be resumed (sw_store_withdraw) */
    bool unnamed;                /* files without names, which end with the store or the process: for measuring */
    bool allow_overwrite_device; /* accept block devices that hold something */
    const char *id;              /* identity of the store, from sw_store_new_id; NULL: a new one */
};

/* Called with the bytes done and the total. Returning false ends the work with SW_ERR_STOPPED. */
typedef bool (*sw_store_progress)(void *context, int64_t done, int64_t total);

/* Creates the files with mode 0600, reserves all their space, fills them with zeros and flushes them. Commits nothing.
 * progress may be NULL.
 *
 * Refuses before anything is made: more than a directory may take (SW_ERR_BUDGET), existing files, read-only
 * directories, file systems without O_DIRECT unless allowed, and block devices that are in use or, unless allowed, hold
 * something. Refuses before anything is written: a file system without the space (SW_ERR_SPACE, with the directory, the
 * bytes needed and available). After a failure no file is left, and a device that was written to has zeros at its ends.
 */
sw_status sw_store_create(const struct sw_store_spec *spec, sw_store_progress progress, void *context,
                          struct sw_store **out);

/* Writes the bytes that creation would take in each directory into out_bytes[directory_count]; changes nothing. A store
 * is divided evenly over its directories, so that all drives work at once: the directory with the smallest limit
 * decides. Refuses what exceeds most_bytes. */
sw_status sw_store_need(const struct sw_store_spec *spec, int64_t *out_bytes);

/* Opens the files in these directories (in any order) at the last commit whose step is at most most_step. Locks them.
 * SW_ERR_BUSY: another process has them. SW_ERR_CORRUPT: the message says what is wrong. A store whose creation never
 * reached a commit is refused as such.
 *
 * Stores of ranks that commit together may be one commit apart after a crash; each has the older one until its owner
 * begins to overwrite it. If there is a later commit than the one opened at, the grains can only be read until
 * sw_store_go_back has removed it. */
#define SW_STORE_NEWEST INT64_MAX
sw_status sw_store_open(const char *const *directories, int directory_count, bool allow_buffered, int64_t most_step,
                        struct sw_store **out);
/* Opens the files for reading only. Locks, writes and flushes nothing, so a read-only file system will do, and another
 * process may train on. Once that process has committed the next step, it overwrites the generation being read. Reads
 * that meet this fail with SW_ERR_OVERTAKEN: close the store and open it again. */
sw_status sw_store_open_to_read(const char *const *directories, int directory_count, int64_t most_step,
                                struct sw_store **out);
/* Removes every commit after the one that the store was opened at, durably. Does nothing if there is none. */
sw_status sw_store_go_back(struct sw_store *store);
/* Returns whether there is a later commit than the one that the store was opened at. */
bool sw_store_is_behind(const struct sw_store *store);
void sw_store_close(struct sw_store *store);

/* Deletes the files of a store that this process created and has not committed to (failed start-up). Closes it. */
void sw_store_discard(struct sw_store *store);

/* Returns whether `place` is a block device, or a directory with a store's file. */
bool sw_store_is_at(const char *place);

/* Returns the identity given at creation. Moved and copied files keep it. */
enum { SW_STORE_ID_CHARS = 33 };
const char *sw_store_id(const struct sw_store *store, char text[SW_STORE_ID_CHARS]);
/* Makes an identity that no store has. */
sw_status sw_store_new_id(char text[SW_STORE_ID_CHARS]);

/* Removes the store of this identity, or whatever its unfinished creation left, from a directory or block device.
 * Another store there stays, and an empty place is no error. SW_ERR_BUSY: a process has the store. SW_ERR_ARG: it holds
 * a later step than most_step, so its owner has gone on with it. A removed store does not come back after a power loss.
 */
sw_status sw_store_remove(const char *place, const char *id, int64_t most_step);

/* Returns how the records of a unit's grains lie in a transfer and in the files. Grains count from the first held here.
 */
struct sw_records sw_store_records(const struct sw_store *store, int64_t unit);
/* Returns the bytes of one generation. */
int64_t sw_store_generation_bytes(const struct sw_store *store);
/* Return the number of units, and for a unit the first grain held here, the grains held here, and the grains of the
 * whole unit. */
int64_t sw_store_unit_count(const struct sw_store *store);
int64_t sw_store_unit_first(const struct sw_store *store, int64_t unit);
int64_t sw_store_unit_grains(const struct sw_store *store, int64_t unit);
int64_t sw_store_unit_whole_grains(const struct sw_store *store, int64_t unit);
int sw_store_generations(const struct sw_store *store);
/* Returns the format of the optimizer's grains. */
sw_optimizer_format sw_store_optimizer(const struct sw_store *store);
/* Returns the bytes of all files, scratch included. */
int64_t sw_store_file_bytes(const struct sw_store *store);

/* The last commit. Before the first one, the step is -1 and the generation the last one. meta is the caller's text
 * (JSON), which the store does not read. */
struct sw_store_commit {
    int64_t step;
    int generation;
    char meta[SW_STORE_META_BYTES]; /* zero-terminated */
};
const struct sw_store_commit *sw_store_last_commit(const struct sw_store *store);

/* Returns the step of the commit before the last, if nothing was written to its generation since the last commit or
 * since the opening; else -1. An earlier process may have written to it: sw_store_open at this step and sw_store_verify
 * tell. */
int64_t sw_store_previous_step(const struct sw_store *store);

/* Returns the newest step of any commit record when the store was opened, including an unfinished commit; pass it to
 * sw_store_remove to confirm what is lost. -1: no record had a step. */
int64_t sw_store_newest_record(const struct sw_store *store);

/* The meaning of a commit record that was damaged at the opening, even in a second reading. The last commit is whole in
 * any case. */
typedef enum {
    SW_STORE_RECORD_HARMLESS, /* of a commit that never finished, as a death within it leaves, or of an earlier commit
                               */
    SW_STORE_RECORD_LOST,     /* of a later commit that had finished: it has been damaged since */
    SW_STORE_RECORD_UNSURE,   /* one of the two above; what would tell is damaged too */
} sw_store_loss;
struct sw_store_bad_record {
    const char *path;
    int64_t offset_bytes;
    sw_store_loss loss;
    int64_t step; /* the step that is or may be lost, later than the last commit; -1: unknown */
};
/* Returns the number of damaged records, and in *out the store's own array of them. */
int sw_store_bad_records(const struct sw_store *store, const struct sw_store_bad_record **out);

/* Makes sure that each file's path still leads to the file (io/queue/file.h). Call it from the thread that owns the
 * store. */
sw_status sw_store_keep_names(const struct sw_store *store);
/* Does the same after the last commit, and puts durable copies in place of files that were removed. */
sw_status sw_store_put_back_names(const struct sw_store *store);

/* Limits the bytes, scratch included, that an opened store may take in one of its directories. SW_ERR_BUDGET: the store
 * already takes more. */
sw_status sw_store_limit(struct sw_store *store, const char *directory, int64_t most_bytes);

/* Reserves space for scratch grains of a kind. Refuses what exceeds a limit or the free space. Call it once per kind
 * after create or open, before any lane is opened. */
sw_status sw_store_add_scratch(struct sw_store *store, const struct sw_store_scratch *scratch);

/* Grains of SW_STORE_BASE and SW_STORE_FROZEN are written once, and kept: they are still there for the next process
 * that opens the store and adds the same grains of these kinds. SW_STORE_KEPT_SUMS then is the first scratch added, and
 * those kinds follow it; its sw_store_kept_pages are for all of their grains. Of SW_STORE_IN_PLACE the store keeps only
 * the checksums: such grains take no space, and writing them moves nothing. */

/* Returns the grains of SW_STORE_KEPT_SUMS for so many kept grains. */
int64_t sw_store_kept_pages(int64_t grains);
/* Takes over what an earlier process kept, if it lies where this one's grains lie and was made from the same:
 * `made_from` is the caller's digest of that. Whatever is not taken over becomes void before anything is written.
 * Called after the last sw_store_add_scratch and before any lane is opened. */
sw_status sw_store_take_kept(struct sw_store *store, uint64_t made_from);
/* Tells whether grains of a scratch kind were written by this process, or by an earlier one and are not known to be
 * damaged. */
bool sw_store_has(const struct sw_store *store, sw_store_kind kind, int64_t unit, int64_t first_grain, int64_t grains);
/* Keeps all grains of these kinds, which have been written and reaped: makes them durable, then their checksums. Does
 * nothing if they are kept already, or there are none. Needs idle lanes. A kept grain that a lane finds damaged later
 * is noted when the store is closed, and the next process does not have it. */
sw_status sw_store_keep(struct sw_store *store, uint64_t made_from);

/* Bytes of a unit's grains that are in a file of others. */
struct sw_store_piece {
    int64_t unit, at_bytes; /* where they begin, from the start of the unit's grain 0 */
    int64_t bytes;
    int file; /* number of the file */
    int64_t offset_bytes;
    const char *name; /* of the tensor, for messages */
};

/* Files with grains of SW_STORE_IN_PLACE. The caller keeps all arrays, and the files open, as long as the store. */
struct sw_store_files {
    const char *const *paths;
    const int *fds; /* with or without direct I/O, open for reading */
    int count;
    const struct sw_store_piece *pieces; /* in the order of units and their bytes. What no piece has is zero */
    int64_t piece_count;
};

/* Reads of SW_STORE_IN_PLACE that are under way at once, and the memory that each passes through. */
enum { SW_STORE_IN_PLACE_READS = 32 };
/* Returns the bytes of that memory for a transfer of so many bytes of whole grains. */
int64_t sw_store_room_bytes(int64_t transfer_bytes);
/* Lets the store read SW_STORE_IN_PLACE from these files. `rooms` has SW_STORE_IN_PLACE_READS times room_bytes, aligned
 * as a buffer; each takes at least a grain. Called after the last sw_store_add_scratch and before any lane is opened;
 * one lane at most then reads this kind. SW_ERR_CORRUPT: a file ends before its pieces do. */
sw_status sw_store_borrow(struct sw_store *store, const struct sw_store_files *files, void *rooms, int64_t room_bytes);

/* Registers memory that lanes will transfer from and to with their rings, if system limits allow it, which is faster.
 * Call it before any lane is opened; the caller keeps the memory until the lanes are closed. Huge pages (2 MiB aligned,
 * MADV_HUGEPAGE) can double the rate of reads. */
sw_status sw_store_add_buffer(struct sw_store *store, void *base, int64_t bytes);

/* One transfer of `grains` consecutive grains between the store and buf, in disk layout (records, or grains of
 * scratch). */
struct sw_store_transfer {
    bool write;
    sw_store_kind kind;
    int generation; /* 0 for scratch */
    int64_t unit, first_grain, grains;
    void *buf;
    int64_t step; /* for messages */
    uint64_t tag; /* returned by reap */
    /* Writes only: every grain of buf is zero from this byte on, a multiple of SW_BUFFER_ALIGN_BYTES; 0 promises
     * nothing. Grains still as created already have those zeros on the drive, so they are not written again. */
    int64_t zeros_from_bytes;
};

/* Opens a lane with at most `depth` block requests in flight, for example 32. */
sw_status sw_store_lane_open(struct sw_store *store, int depth, struct sw_store_lane **out);
void sw_store_lane_close(struct sw_store_lane *lane); /* waits for transfers in flight */

/* Queues a transfer. The committed generation cannot be written. Writes compute the XXH3 of every grain now; the buffer
 * must not change until the transfer is reaped. Never blocks: requests beyond the depth are kept and submitted later.
 * At most SW_STORE_LANE_TRANSFERS may be outstanding (SW_ERR_BUSY beyond). SW_OK means that the transfer will be
 * reaped, an error that it never will. */
enum { SW_STORE_LANE_TRANSFERS = 256 };
sw_status sw_store_submit(struct sw_store_lane *lane, const struct sw_store_transfer *transfer);

/* Makes progress, and returns up to `max` tags of finished transfers, in the order of completion. With `wait`, blocks
 * until at least one has finished; returns none at once if nothing is outstanding. Reads are checked against the
 * recorded checksums. A grain that fails is read again once; then SW_ERR_CORRUPT names it, and says whether the other
 * generation is the committed one. */
sw_status sw_store_reap(struct sw_store_lane *lane, bool wait, uint64_t *tags, int max, int *out_count);
/* Returns how many transfers were submitted and not yet reaped. */
int sw_store_outstanding(const struct sw_store_lane *lane);

/* Runs one transfer on the lane from start to end. */
sw_status sw_store_transfer(struct sw_store_lane *lane, const struct sw_store_transfer *transfer);

/* Makes `generation` of the optimizer's grains the committed state of `step`. The caller guarantees that every grain of
 * that generation has been written and reaped. Durable when it returns. After an error the step may or may not be
 * committed; the optimizer's grains can then only be read until the store is opened again. */
sw_status sw_store_commit(struct sw_store *store, int64_t step, int generation, const char *meta);

/* Withdraws the commit of a store with one generation, durably, so that its grains may be overwritten. The store cannot
 * be opened until the next commit. Does nothing if nothing is committed. */
sw_status sw_store_withdraw(struct sw_store *store);

/* Bytes transferred by all lanes since the opening, superblocks included. */
struct sw_store_counters {
    int64_t read_bytes, write_bytes;
};
struct sw_store_counters sw_store_counters(const struct sw_store *store);

/* A grain of the last commit that is lost: it cannot be read (error is an errno), or its checksum is wrong (error is
 * 0). */
struct sw_store_bad_grain {
    int64_t unit, grain;
    const char *path;
    int64_t offset_bytes;
    int error;
    const char *tensor; /* a tensor that has elements of the grain; NULL: the file is a store */
};

/* Functions that receive the findings of a verification, grain by grain in order. Members may be NULL. */
struct sw_store_verifier {
    void (*bad)(void *context, const struct sw_store_bad_grain *grain);
    void (*progress)(void *context, int64_t done_bytes, int64_t total_bytes);
    void *context;
};

/* Reads every committed grain and checks every checksum, a second time if the first fails. *out_grains: their number.
 * *out_bad: the number of bad ones, which are no error of the call. verifier may be NULL. */
sw_status sw_store_verify(struct sw_store *store, const struct sw_store_verifier *verifier, int64_t *out_grains,
                          int64_t *out_bad);

#endif
