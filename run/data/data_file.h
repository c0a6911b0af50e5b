/* A data file, or a companion file: its name and a suffix. Files are read, not mapped: resident memory stays small
 * however large the data, and a file that shrinks is an error that can be reported instead of a signal. */
#ifndef SW_RUN_DATA_DATA_FILE_H
#define SW_RUN_DATA_DATA_FILE_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

struct sw_data_file {
    const char *path;   /* path of the data file; borrowed, must outlive this */
    const char *suffix; /* suffix of a companion file, "" for the data file; borrowed, must outlive this */
    int fd;             /* -1: there is no such file */
    int64_t bytes;
    uint64_t device, inode;           /* identify the file on this machine */
    struct timespec written, altered; /* times of its last write and last change, as of the opening */
};

/* Opens a file and, if the file system can, takes a shared lock on it, so that tokens in use are not removed from the
 * cache (text_data.h). A data file must exist, a companion file need not. The caller closes it, even after a failure. A
 * closed file is SW_DATA_FILE_CLOSED; zeroed memory is not. */
#define SW_DATA_FILE_CLOSED ((struct sw_data_file){.fd = -1})
sw_status sw_data_file_open(const char *path, const char *suffix, struct sw_data_file *out);
void sw_data_file_close(struct sw_data_file *file);

static inline bool sw_data_file_is_there(const struct sw_data_file *file) {
    return file->fd >= 0;
}

/* Tells whether a file's size or times differ from those at its opening. A file that does not exist has not changed.
 * *out describes the file as it is now. */
bool sw_data_file_changed(const struct sw_data_file *file, struct sw_data_file *out);

/* Reads all of the bytes, or fails. */
sw_status sw_data_file_read(const struct sw_data_file *file, int64_t offset_bytes, int64_t bytes, void *out);

#endif
