/* A file that is read from its beginning, packed (.gz, .zst) or not. */
#ifndef SW_TRAIN_DOCUMENTS_TEXT_FILE_H
#define SW_TRAIN_DOCUMENTS_TEXT_FILE_H

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

struct sw_text_file;

/* Opens a file, or standard input for "-". What begins as gzip is unpacked, and a name that ends in .zst is read as
 * Zstandard (RFC 8878), if the program was built with it. The path is borrowed. The caller closes the file. */
sw_status sw_text_file_open(const char *path, struct sw_text_file **out);
void sw_text_file_close(struct sw_text_file *file);

/* Reads at most so many bytes; *out_bytes is 0 at the end. A packed file that is cut off is an error. */
sw_status sw_text_file_read(struct sw_text_file *file, char *out, size_t bytes, size_t *out_bytes);
/* Passes over so many bytes, of a file of which nothing was read yet. */
sw_status sw_text_file_skip(struct sw_text_file *file, int64_t bytes);
/* Returns how much of the file, as it lies on the drive, was read. */
int64_t sw_text_file_offset(const struct sw_text_file *file);
/* Returns the name for messages. */
const char *sw_text_file_name(const struct sw_text_file *file);

#endif
