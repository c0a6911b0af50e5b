/* A file that is read from its beginning, packed (.gz, .zst) or not, as UTF-8. */
#ifndef SW_TEXT_DOCUMENTS_TEXT_FILE_H
#define SW_TEXT_DOCUMENTS_TEXT_FILE_H

#include "core/status.h"
#include "text/buffer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How the bytes of text files become characters. A zeroed struct reads UTF-8 and refuses all else. */
struct sw_text_coding {
    const char *encoding; /* a name that iconv knows; NULL: UTF-8. Borrowed */
    bool lossy;           /* what the encoding does not have becomes U+FFFD; else it is an error */
};

/* Refuses the name of an encoding that this machine's C library does not know. NULL is UTF-8. */
sw_status sw_text_coding_check(const char *encoding);

/* Converts one file. */
struct sw_text_converter;

struct sw_text_piece {
    const char *in;
    size_t in_bytes;
    bool last; /* no bytes follow in the file */
    char *out;
    size_t room; /* of `out`, at least SW_TEXT_PIECE_ROOM bytes */
};
enum { SW_TEXT_PIECE_ROOM = 16 };

struct sw_text_file;

/* Opens a file, or standard input for "-". What begins as gzip (RFC 1952) or Zstandard (RFC 8878), or has a name that
 * ends in .zst, is unpacked; Zstandard, if the program was built with it. The path is borrowed. The caller closes the
 * file. */
sw_status sw_text_file_open(const char *path, const struct sw_text_coding *coding, struct sw_text_file **out);
void sw_text_file_close(struct sw_text_file *file);

/* Looks a few more characters ahead, before anything is read. *out is all text that is ahead, and no longer than before
 * where the text ends, or 64 KiB are ahead. Borrowed. */
sw_status sw_text_file_peek(struct sw_text_file *file, struct sw_text *out);
/* Lets bytes that are not UTF-8 pass (sw_text_converter_pass). */
void sw_text_file_pass(struct sw_text_file *file);

/* Reads at most so many bytes; *out_bytes is 0 at the end. Fails where a packed file is cut off, or goes on behind its
 * end, and where the text is not of its encoding. */
sw_status sw_text_file_read(struct sw_text_file *file, char *out, size_t bytes, size_t *out_bytes);
/* Passes over so many bytes of text, with so many lines, of a file of which nothing was read yet. */
sw_status sw_text_file_skip(struct sw_text_file *file, int64_t bytes, int64_t lines);
/* Returns how much of the file, as it lies on the drive, was read. */
int64_t sw_text_file_offset(const struct sw_text_file *file);
/* Returns how often U+FFFD was put in the place of something. */
int64_t sw_text_file_replaced(const struct sw_text_file *file);
/* Returns the name for messages. */
const char *sw_text_file_name(const struct sw_text_file *file);

#endif
