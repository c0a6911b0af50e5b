/* Reads the small text files of the kernel under /proc and /sys. */
#ifndef SW_CORE_SYSTEM_FILE_H
#define SW_CORE_SYSTEM_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The longest path of such a file. */
enum { SW_SYSTEM_PATH_CHARS = 4608 };

/* Writes the first line of the file at root + path, without its end, into out. Returns false, with an empty text, where
 * the file cannot be read: a container need not have /proc or /sys. root: "" for this machine, or a folder that holds a
 * copy of another's. path: a format, as of printf. errno says why the file could not be read; 0: it could. */
__attribute__((format(printf, 4, 5))) bool sw_system_line(const char *root, char *out, size_t chars, const char *path,
                                                          ...);

/* Returns the number that begins this line, or -1 where there is none or it is negative. errno is as above. */
__attribute__((format(printf, 2, 3))) int64_t sw_system_number(const char *root, const char *path, ...);

#endif
