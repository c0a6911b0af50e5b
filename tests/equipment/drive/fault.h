/* Drives that fail, for tests: the fault-injecting ring to put in the place of the real one (sw_store_create_on).
 *
 * What the files hold is kept in memory, once as it lasts and once as it is read: a write is volatile until a flush
 * that was begun after the write's completion had been seen. The real files lend only their names and sizes. Requests
 * complete one at a time in an order that follows from the seed, like all else. One thread. */
#ifndef SW_TESTS_EQUIPMENT_DRIVE_FAULT_H
#define SW_TESTS_EQUIPMENT_DRIVE_FAULT_H

#include "io/queue/queue.h"

#include <stdbool.h>

typedef enum {
    SW_FAULT_ERROR,     /* the request does nothing and ends with `error` */
    SW_FAULT_SHORT,     /* it moves only the front part of its bytes */
    SW_FAULT_DELAY,     /* it completes after all that are under way with it */
    SW_FAULT_FLIP_READ, /* a bit is wrong in what a read returns */
    SW_FAULT_FLIP_DISK, /* a bit is wrong in what a write leaves */
    SW_FAULT_STALE,     /* a write is said to be done, and the old bytes stay */
    SW_FAULT_MISDIRECT, /* a write lands at another place of the file */
    SW_FAULT_DROP,      /* a flush fails, and what it was to make last is gone */
    SW_FAULT_NO_FLUSH,  /* a flush is said to be done, and nothing lasts by it */
    SW_FAULT_KINDS
} sw_fault_kind;

/* Strikes requests [first, first + count) of the op, counted over all files since the disk was made. */
struct sw_fault {
    sw_fault_kind kind;
    sw_ring_op op;
    int64_t first, count;
    int error; /* positive */
};

/* How everything ends at once: the process dies and what it had handed over lands or not, but no cache is lost; or the
 * power fails, and each write that was not made to last is dropped, torn between sectors, or kept. Sectors that were
 * torn may be unreadable until they are written again, and what lies up to 64 KiB beside a write may be lost with it.
 */
typedef enum { SW_FAULT_KILL, SW_FAULT_POWER } sw_fault_end;

struct sw_fault_disk;

sw_status sw_fault_disk_create(uint64_t seed, int sector_bytes, struct sw_fault_disk **out);
void sw_fault_disk_destroy(struct sw_fault_disk *disk);

/* An sw_ring_opener; the context is the disk. Files are known by their paths. */
sw_status sw_fault_ring_open(void *disk, const struct sw_ring_spec *spec, struct sw_ring **out);

/* Sets the fault that is to come; the one before is forgotten. NULL: none. */
void sw_fault_set(struct sw_fault_disk *disk, const struct sw_fault *fault);
/* How many requests of the op there have been, and how many of all have been struck. */
int64_t sw_fault_requests(const struct sw_fault_disk *disk, sw_ring_op op);
int64_t sw_fault_struck(const struct sw_fault_disk *disk);

/* Events are the handing over of a request, its execution, and the report of that. At this many, all ends. */
int64_t sw_fault_events(const struct sw_fault_disk *disk);
void sw_fault_end_at(struct sw_fault_disk *disk, int64_t event, sw_fault_end how);
bool sw_fault_ended(const struct sw_fault_disk *disk);
/* The names of files are lost with the power until this is said: the directories have been flushed. */
void sw_fault_names_last(struct sw_fault_disk *disk);

/* After the end: decides what is left, and puts files with their names and sizes where the dead process had them. Rings
 * must have been closed. */
sw_status sw_fault_restart(struct sw_fault_disk *disk);

/* Flips a bit of what a file holds. */
void sw_fault_flip(struct sw_fault_disk *disk, const char *path, int64_t offset_bytes);

#endif
