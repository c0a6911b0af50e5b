/* Small files and folders, written whole or not at all. */
#ifndef SW_TRAIN_FILES_FILES_H
#define SW_TRAIN_FILES_FILES_H

#include "core/status.h"

#include <dirent.h>
#include <stddef.h>
#include <sys/types.h>

/* "folder/name". */
sw_status sw_path_join(char *out, size_t chars, const char *folder, const char *name);

/* Who may read a new file: its user alone, whatever the umask, or whom the umask allows. */
typedef enum { SW_FILE_PRIVATE, SW_FILE_SHARED } sw_file_readers;
/* Writes beside the path, flushes, renames. What lies beside it under that name goes, and no link is followed. */
sw_status sw_file_replace(const char *path, const char *text, size_t bytes, sw_file_readers readers);
/* Writes all bytes to an open file, which messages call `path`. */
sw_status sw_file_write_all(int file, const char *path, const char *text, size_t bytes);
/* Makes names that came or went in the folder of a file last, where the file system can. */
sw_status sw_file_flush_folder_of(const char *path);
/* Reads a whole regular file of text: zero-terminated, malloc'ed, at most limit bytes. */
sw_status sw_file_read_text(const char *path, size_t limit_bytes, char **out);
/* Does the same with a file that belongs to a folder of ours, and refuses a link in its place. */
sw_status sw_file_read_own_text(const char *path, size_t limit_bytes, char **out);
sw_status sw_file_copy(const char *from, const char *to);

/* Opens a folder to list it, as opendir does. */
DIR *sw_folder_list(const char *folder);
/* Fails where something other than an empty folder is at the path. `but` (NULL: none) is a name that may be in it. */
sw_status sw_folder_must_be_free(const char *folder, const char *but);
/* Makes the folder, which then survives a power loss, where it is not there (its parent must be). */
sw_status sw_folder_make(const char *folder, mode_t mode);
/* Does the same with a folder below one of ours, and refuses a link in its place. */
sw_status sw_folder_make_own(const char *folder, mode_t mode);
/* Makes a folder with this mode, and before it the parents that are missing, as the umask allows. *out_made
 * counts the folders made; a failure leaves none. */
sw_status sw_folder_make_with_parents(const char *folder, mode_t mode, int *out_made);
/* Removes that many folders again, from the folder upwards, and stops at the first that is not empty. */
void sw_folder_unmake(const char *folder, int made);
/* Removes the files of a folder but one. Folders and links in it are left, or go unfollowed. */
sw_status sw_folder_empty(const char *folder, const char *but);
/* Removes a folder of files, as far as it is there, so that it does not come back after a power loss. A link is
 * refused, and so are folders in it. */
sw_status sw_folder_remove(const char *folder);
/* Removes a folder unless something is in it, so that it does not come back after a power loss. */
void sw_folder_remove_empty(const char *folder);

#endif
