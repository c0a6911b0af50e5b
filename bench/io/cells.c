/* Facts for passes of all kinds: names of ways, shares of the bytes that may be written, and the caption of pictures.
 */
#include "bench/io/io.h"

#include "core/size.h"
#include "train/cli/drives.h"

#include <stdio.h>
#include <time.h>

const char *sw_io_way_name(sw_io_way way) {
    static const char *const names[SW_IO_WAYS] = {
        [SW_IO_READ] = "read", [SW_IO_WRITE] = "write", [SW_IO_BOTH] = "both"};
    return names[way];
}

bool sw_io_fits(const struct sw_io_bench *bench, int64_t block_bytes, int depth) {
    return block_bytes * depth <= bench->target.file_bytes * bench->target.count &&
           block_bytes <= bench->target.file_bytes && block_bytes * depth <= SW_IO_MOST_IN_FLIGHT_BYTES;
}

int64_t sw_io_share(const struct sw_io_bench *bench, double seconds) {
    return (int64_t)((double)bench->planned_write_bytes * seconds / bench->planned_write_s);
}

void sw_io_caption(const struct sw_io_target *target, char *text, size_t chars) {
    struct sw_mount mount;
    struct sw_drives drives;
    char day[sizeof "2026-01-01"] = "";
    struct tm parts;
    const time_t now = time(NULL);
    sw_drives_of_folder("", target->paths[0], &mount, &drives);
    if (localtime_r(&now, &parts) != NULL)
        strftime(day, sizeof day, "%Y-%m-%d", &parts);
    const struct sw_drive *drive = drives.count > 0 ? &drives.drive[0] : NULL;
    char *whole = realpath(target->paths[0], NULL);
    snprintf(text, chars, "%s%s%s%s%s%s%s%s, %s", whole != NULL ? whole : target->paths[0], drive != NULL ? ": " : "",
             drive != NULL ? drive->name : "", drive != NULL && drive->model[0] != '\0' ? " " : "",
             drive != NULL ? drive->model : "", target->count + drives.count > 2 ? " and others" : "",
             mount.type[0] != '\0' ? ", " : "", mount.type, day);
    free(whole);
}
