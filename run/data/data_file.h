/* A file of data, or one beside it under its name and a suffix. Read rather than mapped: resident memory stays small
 * however large the data, and a file that shrinks is an error that can be reported. */
#ifndef SW_RUN_DATA_DATA_FILE_H
#define SW_RUN_DATA_DATA_FILE_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

struct sw_data_file {
    const char *path;   /* of the data; must outlive this */
    const char *suffix; /* "" of the data themselves; likewise */
    int fd;             /* -1: there is no such file */
    int64_t bytes;
    uint64_t device, inode;           /* which file this is, among all of this machine */
    struct timespec written, altered; /* the times of its last writing and last change, as of the opening */
};

/* Opens a file and, if the file system can, locks it as shared: tokens in use are not removed from the cache
 * (text_data.h). Data must be there, what is beside them need not. The caller closes it, also after a failure; zeroed
 * memory is not a closed file, SW_DATA_FILE_CLOSED is. */
#define SW_DATA_FILE_CLOSED ((struct sw_data_file){.fd = -1})
sw_status sw_data_file_open(const char *path, const char *suffix, struct sw_data_file *out);
void sw_data_file_close(struct sw_data_file *file);

static inline bool sw_data_file_is_there(const struct sw_data_file *file) {
    return file->fd >= 0;
}

/* Tells whether a file's size or times differ from those of its opening. A file that is not there has not changed.
 * *out describes it as it is now. */
bool sw_data_file_changed(const struct sw_data_file *file, struct sw_data_file *out);

/* All of the bytes, or an error. */
sw_status sw_data_file_read(const struct sw_data_file *file, int64_t offset_bytes, int64_t bytes, void *out);

#endif
