/* Declarations shared by the store's files. */
#ifndef SW_IO_STORE_STORE_PRIVATE_H
#define SW_IO_STORE_STORE_PRIVATE_H

#include "io/queue/queue.h"
#include "io/store/format.h"
#include "io/store/store.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { SW_STORE_SLOTS = 2 }; /* superblocks per file */

struct sw_store_file {
    char *directory, *path; /* owned; for a block device both are its path */
    int fd;
    bool is_device;       /* a block device, used directly */
    bool label_damaged;   /* the first label is damaged, and the second was read */
    int64_t device_bytes; /* the block device's size */
    int64_t sealed_bytes; /* length of what the label describes */
    int64_t end_bytes;    /* length with the scratch that follows */
    int64_t needed_bytes; /* for a new file: length with all scratch that will be added */
    int64_t most_bytes;   /* limit of the file's length; 0: none */
    int64_t super_bytes;  /* of one superblock */
    unsigned char *mark;  /* owned: the mark's page */
    unsigned char *super; /* owned: both superblocks, as on disk or as last tried */
    int committed_slot;   /* the slot with the last commit; the other is written next */
};

/* Files of others that hold grains of SW_STORE_IN_PLACE. */
struct sw_borrowed {
    struct sw_store_files files;
    int64_t *first_piece; /* owned: one entry per unit, its first piece; then the number of all pieces */
    int64_t *page_bytes;  /* owned: one entry per file, the bytes of its whole pages */
    char *tails;          /* owned: one page per file, with what follows its whole pages */
    char *rooms;
    int64_t room_bytes;
};

/* A read of a run of bytes that is in one file of others, through a room. */
struct sw_borrowed_read {
    int64_t at_bytes, bytes; /* the run, from the start of the unit's grain 0 */
    int file;
    int64_t offset_bytes;             /* of the run in the file */
    int64_t first_bytes, moved_bytes; /* the whole pages that are read; no pages where the tail has all of the run */
};

struct sw_store {
    uint8_t id[SW_FORMAT_ID_BYTES];
    int file_count;
    struct sw_store_file files[SW_STORE_MAX_FILES];
    int version;                   /* of the format; a store keeps its version */
    sw_optimizer_format optimizer; /* of the optimizer's grains */
    int generations;
    int64_t label_bytes; /* of one label */
    int64_t unit_count;
    int64_t *unit_grains;                                       /* per unit: grains of the whole unit */
    struct sw_area areas[SW_STORE_KINDS][SW_STORE_GENERATIONS]; /* scratch uses only generation 0 */
    struct sw_borrowed borrowed;                                /* without files: nothing is read in place */

    struct sw_store_commit commit;
    struct sw_store_bad_record bad_records[SW_STORE_MAX_FILES]; /* at most one of a file's two */
    int bad_record_count;
    bool mark_damaged;          /* a mark was damaged at the opening: the next commit writes it again first */
    sw_store_kind last_scratch; /* the kind of scratch added last; SW_STORE_OPTIMIZER: none */
    int64_t sequence;           /* number of the last attempt to commit */
    int64_t committed_sequence;
    int64_t newest_record; /* step; see sw_store_newest_record */
    /* Copies of the commit's step and generation for lanes, whose messages need them while a commit may run. */
    _Atomic int64_t committed_step;
    _Atomic int committed_generation;
    _Atomic int64_t previous_step; /* as sw_store_previous_step */

    sw_ring_opener open_ring;
    void *ring_context;
    struct sw_queue *queue; /* the owner's queue: creation, superblocks, flushes */
    struct sw_ring_buffer buffers[SW_RING_MAX_BUFFERS];
    int buffer_count;
    bool warned;       /* the user was told that buffers were not registered */
    bool trimmed;      /* scratch of an earlier process was cut off the files' ends */
    bool created;      /* this process made the store and has not committed to it */
    bool filled;       /* creation has begun to write */
    uint64_t zero_sum; /* checksum of the grains that creation filled; SW_CHECKSUM_UNKNOWN in a store that was opened */
    bool unnamed;      /* its files have no names to remove */
    bool read_only;    /* nothing is locked or written; another process may commit to it */
    bool kept_valid;   /* the pages of SW_STORE_KEPT_SUMS hold sums of this layout's frozen grains */
    uint64_t kept_from;         /* what these were made from, if kept_valid */
    _Atomic bool kept_complete; /* the pages hold the sums of all frozen grains, as they are known here */
    _Atomic bool kept_lost;     /* a frozen grain turned out to be damaged */
    /* A commit ended with an error. The written data may be lost even if another flush succeeds, and either step may be
     * the last one on the drives. Both generations must stay unchanged until the store is opened again. */
    _Atomic bool unsure;
    _Atomic bool behind;    /* the store was opened at a commit that is not its last */
    _Atomic int open_lanes; /* lanes opened and not yet closed */
    _Atomic int64_t read_bytes, write_bytes;
};

/* Opens the rings of a store. Tests replace io_uring by rings that fail. */
struct sw_ring_source {
    sw_ring_opener open;
    void *context;
};
sw_status sw_store_create_on(const struct sw_ring_source *rings, const struct sw_store_spec *spec,
                             sw_store_progress progress, void *context, struct sw_store **out);
sw_status sw_store_open_on(const struct sw_ring_source *rings, const char *const *directories, int directory_count,
                           bool allow_buffered, int64_t most_step, struct sw_store **out);

/* Refuses with SW_ERR_OVERTAKEN a store open for reading whose run has gone on since the opening: what was read may be
 * part of a later step. */
sw_status sw_store_check_current(const struct sw_store *store);

/* Allocates an empty store, to be filled by create or open. rings NULL: io_uring. */
sw_status sw_store_alloc(int file_count, const struct sw_ring_source *rings, struct sw_store **out);
sw_status sw_store_set_file(struct sw_store *store, int file, const char *directory);

/* Closes and frees. With `remove`, also unlinks the open files and wipes the devices that were written to. */
void sw_store_free(struct sw_store *store, bool remove);

sw_status sw_store_open_queue(struct sw_store *store, int depth, struct sw_queue **out);

/* Performs `count` requests on the owner's queue, all at once, and waits for them. */
sw_status sw_store_run(struct sw_store *store, const struct sw_ring_request *requests, int count);
/* Does the same for `count` reads, some of which may fail because the drive no longer has their bytes, as with sectors
 * that were being written when the power failed. Zeroes their buffers, and sets out_errors[i] to the errno of each, 0
 * if it was read. */
sw_status sw_store_read_damaged(struct sw_store *store, const struct sw_ring_request *requests, int count,
                                int *out_errors);
sw_status sw_store_flush(struct sw_store *store); /* fdatasync on every file */

/* Refuses to change a generation that is committed, or any generation of a store that is unsure. */
sw_status sw_store_check_writable(const struct sw_store *store, int generation);

/* Reports what a failed request means, and returns its status. */
sw_status sw_store_io_error(const struct sw_store *store, int file, sw_ring_op op,
                            const struct sw_queue_result *result);

/* Makes void, durably, what an earlier process kept, unless sw_store_take_kept has taken it over. Called before
 * anything is written over it. */
sw_status sw_store_void_kept(struct sw_store *store);
/* Tells whether grains of this kind are kept. */
bool sw_store_keeps(sw_store_kind kind);
/* Notes that a kept grain is damaged. The lane that read it calls this. */
void sw_store_lose_kept(struct sw_store *store, sw_store_kind kind, int64_t unit, int64_t grain);
/* Writes what was noted so, durably, if it can be written: the next process then writes these grains again. */
void sw_store_note_lost(struct sw_store *store);

/* Returns the path of a file of a ring's: the store's come first, then those that it borrows. */
const char *sw_store_path(const struct sw_store *store, int file);

/* Finds the first run of bytes from at_bytes on and before end_bytes that one read brings. Returns false if the rest is
 * zeros. */
bool sw_borrowed_next(const struct sw_store *store, int64_t unit, int64_t at_bytes, int64_t end_bytes,
                      struct sw_borrowed_read *out);
/* Copies bytes of a read from its room, or from the file's tail; at_bytes as in the read. */
void sw_borrowed_copy(const struct sw_store *store, const struct sw_borrowed_read *read, const void *room,
                      int64_t at_bytes, int64_t bytes, void *to);
/* Zeroes those bytes of a transfer that no piece has. */
void sw_borrowed_zero(const struct sw_store *store, const struct sw_store_transfer *transfer);
/* Returns the first grain of a transfer whose checksum is wrong among those that more than one read brought, or -1. */
int64_t sw_borrowed_check(const struct sw_store *store, const struct sw_store_transfer *transfer);
/* Tells whether a grain that was read in place has its checksum. */
bool sw_borrowed_is_right(const struct sw_store *store, int64_t unit, int64_t grain, const void *bytes);
/* Fails for a grain that is not what the run began with, and names its tensors. */
sw_status sw_borrowed_refuse(const struct sw_store *store, const struct sw_store_transfer *transfer, int64_t grain);

/* Allocates memory as sw_queue_alloc does, and zeroes it. */
sw_status sw_store_alloc_aligned(int64_t bytes, void **out);

/* Returns whether all bytes are zero. bytes > 0. */
bool sw_store_is_zero(const void *data, int64_t bytes);

/* Adds to the bytes that the store has read or written. A flush counts as none. */
void sw_store_count(struct sw_store *store, sw_ring_op op, int64_t bytes);

void sw_label_encode(const struct sw_store *store, int file, void *label);
/* Reads one file's label on the owner's queue, the second if the first is damaged, and checks it as far as one file
 * allows. */
sw_status sw_label_read(struct sw_store *store, int file, void **out_label);
/* Writes each file's damaged first label again. labels: those of all files, in order. A label that cannot be written
 * stays damaged, with a warning. */
void sw_label_mend(struct sw_store *store, void *const *labels);
const uint8_t *sw_label_store_id(const void *label);
int sw_label_file_index(const void *label);
int sw_label_file_count(const void *label);
/* Takes the layout from the labels of all files, in the order of their indices. */
sw_status sw_label_apply(struct sw_store *store, void *const *labels);

/* Returns the offset of a file's superblock. The slot after the last is where the extents begin. */
int64_t sw_super_offset(const struct sw_store *store, int file, int slot);
/* Returns a request that reads or writes a file's superblock from or to its buffer. */
struct sw_ring_request sw_super_request(const struct sw_store *store, sw_ring_op op, int file, int slot);
/* Writes the record, with the checksums of the generation, into the buffer of the slot that is not committed. */
sw_status sw_super_encode(struct sw_store *store, int file, int64_t step, int generation, const char *meta);
/* Allocates the buffers for the superblocks and marks of all files. */
sw_status sw_super_alloc(struct sw_store *store);
/* Reads the superblocks of every file, and takes the newest commit up to this step that all files have. */
sw_status sw_super_load(struct sw_store *store, int64_t most_step);

/* The last commit known to have finished. */
struct sw_finished {
    int64_t sequence, step; /* 0 and -1: none */
    bool unsure;            /* a mark is damaged */
};
/* Marks the commit of this sequence. */
sw_status sw_mark_write(struct sw_store *store, int64_t sequence, int64_t step);

/* Parses an identity. Refuses any other text with SW_ERR_CORRUPT. */
sw_status sw_store_id_parse(const char *text, uint8_t out[SW_FORMAT_ID_BYTES]);
/* Sets the last commit. */
void sw_store_set_commit(struct sw_store *store, int64_t step, int generation, const char *meta);

#endif
