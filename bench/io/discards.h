/* Waiting for a drive's discards: a deleted file's space is given back to the drive for seconds after, at a cost to
 * whatever is measured meanwhile. */
#ifndef SW_BENCH_IO_DISCARDS_H
#define SW_BENCH_IO_DISCARDS_H

#include <stdbool.h>
#include <stdint.h>

/* What a line of /sys/dev/block/MAJOR:MINOR/stat counts. */
struct sw_drive_counts {
    int64_t transfers; /* done: reads and writes */
    int64_t discards;  /* done */
    int64_t in_flight; /* of all kinds */
};

/* False: it has no discards, as with kernels before 4.18. */
bool sw_drive_counts_parse(const char *stat_line, struct sw_drive_counts *out);

/* Whether the drive was at work on discards between two looks: some were done, or something long keeps all else up. */
bool sw_drive_discarded(const struct sw_drive_counts *before, const struct sw_drive_counts *now);

/* Makes deletions reach the drives of the directories, and waits until each has discarded nothing for a while, at most
 * a minute. A drive that cannot be asked is not waited for. */
void sw_discards_wait(const char *const *directories, int count);

#endif
