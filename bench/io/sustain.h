/* Waiting for a drive's discards: a deleted file's space is given back to the drive for seconds after, at a cost to
 * whatever is measured meanwhile. */
#ifndef SW_BENCH_IO_SUSTAIN_H
#define SW_BENCH_IO_SUSTAIN_H

#include <stdbool.h>
#include <stdint.h>

/* Counts from a line of /sys/dev/block/MAJOR:MINOR/stat. */
struct sw_drive_counts {
    int64_t transfers; /* reads and writes that are done */
    int64_t discards;  /* done */
    int64_t in_flight; /* of all kinds */
};

/* Returns false for a line without discards, as kernels before 4.18 have it. */
bool sw_drive_counts_parse(const char *stat_line, struct sw_drive_counts *out);

/* Returns whether the drive worked on discards between two looks: some were done, or requests are in flight and no
 * transfer was done. */
bool sw_drive_discarded(const struct sw_drive_counts *before, const struct sw_drive_counts *now);

/* Makes deletions reach the drives of the directories, and waits until each has discarded nothing for a while, at most
 * a minute. A drive that cannot be asked is not waited for. */
void sw_discards_wait(const char *const *directories, int count);

#endif
