/* Writes the folder of an export.
 *
 * The folder is written under another name and renamed when it is whole and flushed, so no program ever loads half an
 * export. A mark file, written first and removed last, tells the remains of an earlier export from a folder of the
 * user; its lock keeps two exports apart. Without the mark nothing is removed. */
#include "model/hf/export_folder.h"

#include "core/confine.h"
#include "core/files/files.h"
#include "io/queue/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_CHARS = 4096 };
/* The name of the file that marks an unfinished export. */
#define MARK "spillway.partial"

static sw_status find_empty(const char *folder, bool *out) {
    DIR *directory = sw_folder_list(folder);
    int names = 0;
    if (directory == NULL)
        return sw_fail(SW_ERR_IO, "the folder %s cannot be read: %s", folder, strerror(errno));
    while (readdir(directory) != NULL)
        names++;
    closedir(directory);
    *out = names == 2; /* "." and ".." */
    return SW_OK;
}

/* Removes the mark last: the next export removes only folders that have one. */
static void remove_partial(const char *partial) {
    SW_HANDLES_ERRORS();
    if (sw_folder_empty(partial, MARK) == SW_OK)
        (void)sw_folder_remove(partial);
}

/* Makes the folder of an unfinished export, with its mark and lock, or takes over the one that an earlier export left.
 * Refuses anything else of this name. */
static sw_status take_partial(const char *partial, int *out_mark) {
    char path[PATH_CHARS];
    struct stat info;
    SW_TRY(sw_path_join(path, sizeof path, partial, MARK));
    bool empty = false;
    sw_status status = sw_folder_make_own(partial, 0755);
    if (status == SW_OK)
        status = find_empty(partial, &empty);
    const int flags = empty ? O_RDWR | O_CREAT | O_EXCL : O_RDWR;
    if (status == SW_OK)
        *out_mark = sw_path_open(path, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (*out_mark < 0 && empty && errno != EEXIST)
        status = sw_fail(sw_file_write_error(errno), "%s cannot be made: %s", path, strerror(errno));
    if (status != SW_OK) {
        (void)sw_path_rmdir(partial); /* fails if the folder is not empty, which is right */
        return status;
    }
    if (*out_mark < 0 || fstat(*out_mark, &info) != 0 || !S_ISREG(info.st_mode))
        return sw_fail(SW_ERR_ARG, "%s is in the way, and is not what an unfinished export has left: move it away",
                       partial);
    status = sw_lock_take(*out_mark, partial);
    if (status != SW_OK && status != SW_ERR_IO)
        return status;
    /* A file system without locks is no reason to refuse an export. */
    sw_error_clear();
    /* The mark must be on the drive before anything else is in the folder. */
    status = sw_file_flush_folder_of(path);
    if (status != SW_OK)
        remove_partial(partial);
    return status;
}

/* Gives the export its final name. Flushes names before and after the change. Removes the mark last: under its final
 * name the folder is complete with or without a mark, but a FOLDER.partial without one could never be removed. */
static sw_status finish_partial(const char *partial, const char *folder) {
    char path[PATH_CHARS];
    SW_TRY(sw_path_join(path, sizeof path, partial, MARK));
    SW_TRY(sw_file_flush_folder_of(path));
    if (sw_path_rename(partial, folder) != 0)
        return sw_fail(SW_ERR_IO, "cannot rename %s to %s: %s", partial, folder, strerror(errno));
    const sw_status flushed = sw_file_flush_folder_of(partial);
    SW_TRY(sw_path_join(path, sizeof path, folder, MARK));
    sw_path_unlink(path);
    SW_TRY(flushed);
    return sw_file_flush_folder_of(path);
}

sw_status sw_export_folder_write(const char *folder, sw_status (*fill)(void *context, const char *partial),
                                 void *context) {
    char partial[PATH_CHARS];
    int mark = -1;
    SW_TRY(sw_folder_must_be_free(folder, NULL));
    size_t length = strlen(folder);
    while (length > 1 && folder[length - 1] == '/')
        length--;
    if ((size_t)snprintf(partial, sizeof partial, "%.*s.partial", (int)length, folder) >= sizeof partial)
        return sw_fail(SW_ERR_ARG, "the path %s is too long", folder);
    sw_status status = take_partial(partial, &mark);
    if (status == SW_OK) {
        status = sw_folder_empty(partial, MARK);
        if (status == SW_OK)
            status = fill(context, partial);
        if (status == SW_OK)
            status = finish_partial(partial, folder);
        if (status != SW_OK)
            remove_partial(partial);
    }
    if (mark >= 0)
        close(mark);
    return status;
}
