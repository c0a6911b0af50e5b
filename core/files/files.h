/* Reads and writes small files and folders. Whatever is written is complete or absent, even after a power loss. */
#ifndef SW_CORE_FILES_FILES_H
#define SW_CORE_FILES_FILES_H

#include "core/status.h"

#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

/* Writes "folder/name" to out, which has room for `chars` characters. */
sw_status sw_path_join(char *out, size_t chars, const char *folder, const char *name);

/* Tells whether a path ends in a text such as ".bin". */
bool sw_path_ends_in(const char *path, const char *ending);

/* Returns the absolute path of a file, or of a pattern (* ? [); the caller frees it. NULL: the name is neither. */
char *sw_path_absolute(const char *name);

/* Who may read a new file. PRIVATE: only its owner, whatever the umask. SHARED: everyone whom the umask allows. */
typedef enum { SW_FILE_PRIVATE, SW_FILE_SHARED } sw_file_readers;
/* Replaces a file: writes PATH.partial, flushes it and renames it. Removes an older PATH.partial and follows no link.
 */
sw_status sw_file_replace(const char *path, const char *text, size_t bytes, sw_file_readers readers);
/* Writes all bytes to an open file, which messages call `path`. */
sw_status sw_file_write_all(int file, const char *path, const char *text, size_t bytes);
/* Flushes the folder that holds a path, if the file system can, so that names added or removed there survive a power
 * loss. */
sw_status sw_file_flush_folder_of(const char *path);
/* Reads a whole regular text file. The caller frees the text. Refuses more than limit_bytes, and zero bytes. */
sw_status sw_file_read_text(const char *path, size_t limit_bytes, char **out);
/* Does the same, but refuses a link and accepts zero bytes, which a power loss may leave. For folders that only this
 * program writes. */
sw_status sw_file_read_own_text(const char *path, size_t limit_bytes, char **out);
/* Copies a regular file and flushes the copy. SHARED: nobody may read it who may not read the original. */
sw_status sw_file_copy(const char *from, const char *to, sw_file_readers readers);

/* Ends a stream of open_memstream, and returns whether its text is complete. Without memory for the end of the text,
 * the C library closes the stream successfully and sets the text to NULL. */
bool sw_text_stream_end(FILE *stream, char *const *text);

/* Opens a folder to list it, as opendir does. */
DIR *sw_folder_list(const char *folder);
/* Fails unless the path is free: nothing exists there, or an empty folder. The folder may hold the name `but` (NULL:
 * none). */
sw_status sw_folder_must_be_free(const char *folder, const char *but);
/* Makes a folder, unless it exists, so that it survives a power loss. Its parent must exist. */
sw_status sw_folder_make(const char *folder, mode_t mode);
/* Does the same, but refuses a link. For folders inside those that only this program writes. */
sw_status sw_folder_make_own(const char *folder, mode_t mode);
/* Makes a folder with this mode, and missing parents with the mode that the umask gives. *out_made: number of folders
 * made; a failure leaves none. */
sw_status sw_folder_make_with_parents(const char *folder, mode_t mode, int *out_made);
/* Removes `made` folders, from this one upwards. Stops at the first that is not empty. */
void sw_folder_unmake(const char *folder, int made);
/* Removes the files of a folder, except `but` (NULL: none). Leaves folders in it, and follows no links. */
sw_status sw_folder_empty(const char *folder, const char *but);
/* Removes a folder with its files, if it exists, so that it does not come back after a power loss. Refuses a link, and
 * a folder with folders in it. */
sw_status sw_folder_remove(const char *folder);
/* Removes a folder if it exists and is empty, so that it does not come back after a power loss. */
sw_status sw_folder_remove_empty(const char *folder);

/* Describes what a failed download left in place of a model's file, by the file's first bytes: "a git-lfs pointer ..."
 * or "a page of HTML ...", with what to do. NULL: neither. */
const char *sw_download_fault(const char *begin, size_t bytes);

/* Marks a grain whose checksum this process does not know. sw_checksum never returns it. */
#define SW_CHECKSUM_UNKNOWN UINT64_C(0)

/* Returns the XXH3-64 of the bytes, by the widest vector instructions that the CPU has. Any thread may call it. */
uint64_t sw_checksum(const void *data, int64_t bytes);
/* The checksum of bytes that come piece by piece: that of sw_checksum for all of them together. One belongs to one
 * thread at a time. Returns NULL if there is no memory; sw_running_sum_free frees it. */
struct sw_running_sum;
struct sw_running_sum *sw_running_sum_new(void);
void sw_running_sum_free(struct sw_running_sum *sum);
/* Forgets all bytes. */
void sw_running_sum_begin(struct sw_running_sum *sum);
void sw_running_sum_add(struct sw_running_sum *sum, const void *data, int64_t bytes);
uint64_t sw_running_sum_get(const struct sw_running_sum *sum);

#endif
