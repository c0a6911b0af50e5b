/* Small files and folders, written whole or not at all. */
#ifndef SW_TRAIN_FILES_H
#define SW_TRAIN_FILES_H

#include "core/status.h"

#include <stddef.h>
#include <sys/types.h>

/* "folder/name". */
sw_status sw_path_join(char *out, size_t chars, const char *folder, const char *name);

/* Writes beside the path, flushes, renames. */
sw_status sw_file_replace(const char *path, const char *text, size_t bytes);
/* Makes names that came or went in the folder of a file last, where the file system can. */
void sw_file_flush_folder_of(const char *path);
/* The whole file, zero-terminated, malloc'ed, at most limit bytes. */
sw_status sw_file_read_text(const char *path, size_t limit_bytes, char **out);
sw_status sw_file_copy(const char *from, const char *to);

/* Fails where something other than an empty folder is at the path. */
sw_status sw_folder_must_be_free(const char *folder);
/* Makes it where it is not there (its parent must be). */
sw_status sw_folder_make(const char *folder, mode_t mode);
/* Removes a folder of plain files, as far as it is there; errors are ignored. */
void sw_folder_remove(const char *folder);

#endif
