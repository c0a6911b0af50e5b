#include "bench/io/discards.h"

#include "core/clock.h"
#include "core/log.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define QUIET_NS INT64_C(300000000)
#define LATEST_NS INT64_C(60000000000)
enum { LOOK_EVERY_US = 20000, STAT_CHARS = 512, PATH_CHARS = 64 };

/* The columns of the kernel's Documentation/block/stat.rst, from 0. */
enum { READS_DONE = 0, WRITES_DONE = 4, IN_FLIGHT = 8, DISCARDS_DONE = 11, COLUMNS };

bool sw_drive_counts_parse(const char *stat_line, struct sw_drive_counts *out) {
    int64_t column[COLUMNS] = {0};
    int count = 0, used = 0;
    while (count < COLUMNS && sscanf(stat_line, "%" SCNd64 "%n", &column[count], &used) == 1) {
        stat_line += used;
        count++;
    }
    *out = (struct sw_drive_counts){.transfers = column[READS_DONE] + column[WRITES_DONE],
                                    .discards = column[DISCARDS_DONE],
                                    .in_flight = column[IN_FLIGHT]};
    return count == COLUMNS;
}

bool sw_drive_discarded(const struct sw_drive_counts *before, const struct sw_drive_counts *now) {
    return now->discards != before->discards || (now->in_flight > 0 && now->transfers == before->transfers);
}

static bool look(dev_t device, struct sw_drive_counts *out) {
    char path[PATH_CHARS], text[STAT_CHARS];
    snprintf(path, sizeof path, "/sys/dev/block/%u:%u/stat", major(device), minor(device));
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return false;
    const bool known = fgets(text, sizeof text, file) != NULL && sw_drive_counts_parse(text, out);
    fclose(file);
    return known;
}

/* Deletions are discarded once the journal has them, hence syncfs. Errors are left to the measurement, which reports
 * them. */
static bool settle_journal(const char *directory, dev_t *out_device) {
    struct stat info;
    const int fd = open(directory, O_RDONLY | O_CLOEXEC);
    const bool found = fd >= 0 && fstat(fd, &info) == 0 && !S_ISBLK(info.st_mode) && syncfs(fd) == 0;
    if (found)
        *out_device = info.st_dev;
    if (fd >= 0)
        close(fd);
    return found;
}

static void wait_for(const char *directory) {
    dev_t device;
    struct sw_drive_counts before, now;
    if (!settle_journal(directory, &device) || !look(device, &before))
        return;
    const int64_t start_ns = sw_now_ns();
    for (int64_t last_ns = start_ns; sw_now_ns() - last_ns < QUIET_NS;) {
        usleep(LOOK_EVERY_US);
        if (!look(device, &now))
            return;
        if (sw_drive_discarded(&before, &now))
            last_ns = sw_now_ns();
        before = now;
        if (last_ns - start_ns > LATEST_NS) {
            sw_log_info("the drive of %s is still discarding deleted files: what is measured on it suffers", directory);
            return;
        }
    }
}

void sw_discards_wait(const char *const *directories, int count) {
    for (int i = 0; i < count; i++)
        wait_for(directories[i]);
}
