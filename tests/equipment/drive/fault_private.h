/* Declarations that the disk and the rings of the fault injection share. */
#ifndef SW_TESTS_EQUIPMENT_DRIVE_FAULT_PRIVATE_H
#define SW_TESTS_EQUIPMENT_DRIVE_FAULT_PRIVATE_H

#include "tests/equipment/drive/fault.h"

enum { SW_FAULT_MAX_FILES = 8 };

/* A write that is not yet sure to last. */
struct sw_fault_write {
    struct sw_fault_write *next; /* in the order of execution */
    int64_t offset_bytes, bytes;
    int64_t seen_at; /* event at which its completion was reported; 0: not yet */
    unsigned char data[];
};

struct sw_fault_file {
    char *path;
    int64_t bytes;
    unsigned char *lasting, *current;
    unsigned char *lasting_bad, *current_bad; /* a flag for each of the disk's sectors: it cannot be read */
    struct sw_fault_write *first, *last;
    bool size_lasts;
};

struct sw_fault_ring;

struct sw_fault_disk {
    uint64_t seed, draws;
    int sector_bytes;
    int file_count;
    struct sw_fault_file file[SW_FAULT_MAX_FILES];
    struct sw_fault_ring *rings; /* those that are open */
    struct sw_fault fault;
    bool has_fault;
    int64_t requests[SW_RING_FLUSH + 1], struck;
    int64_t events, end_at; /* 0: no end */
    sw_fault_end end;
    bool ended, names_last;
};

/* At random from the disk's seed, in [0, limit). */
int64_t sw_fault_draw(struct sw_fault_disk *disk, int64_t limit);

/* The file behind a descriptor, taken in when it is new and grown where it has grown. */
sw_status sw_fault_find_file(struct sw_fault_disk *disk, int fd, int *out);

/* Executes a write, volatile; NULL when there is no memory. */
struct sw_fault_write *sw_fault_write(struct sw_fault_disk *disk, struct sw_fault_file *file, int64_t offset_bytes,
                                      const void *data, int64_t bytes);
/* Makes the writes last that had been seen before the event, or forgets them. */
void sw_fault_flush(struct sw_fault_disk *disk, struct sw_fault_file *file, int64_t event);
void sw_fault_drop(struct sw_fault_disk *disk, struct sw_fault_file *file, int64_t event);
/* Returns whether the range has a sector that cannot be read. */
bool sw_fault_is_bad(const struct sw_fault_disk *disk, const struct sw_fault_file *file, int64_t offset_bytes,
                     int64_t bytes);

/* Ends a ring's requests under way when the process dies or the power fails. Where only the process dies, each write is
 * executed wholly or not at all. Where the power fails, all writes are executed, and the power loss then decides which
 * of their bytes stay. */
void sw_fault_end_ring(struct sw_fault_disk *disk, struct sw_fault_ring *ring);

#endif
