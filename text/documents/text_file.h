/* A file read from beginning to end as UTF-8, packed (.gz, .zst) or not. */
#ifndef SW_TEXT_DOCUMENTS_TEXT_FILE_H
#define SW_TEXT_DOCUMENTS_TEXT_FILE_H

#include "core/status.h"
#include "text/buffer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How the bytes of text files become characters. A zeroed struct reads UTF-8 and refuses everything else. */
struct sw_text_coding {
    const char *encoding; /* a name that iconv knows, borrowed; NULL: UTF-8 */
    bool lossy;           /* replace what is invalid in the encoding by U+FFFD; false: it is an error */
};

/* Refuses the name of an encoding that this machine's C library does not know. NULL means UTF-8. */
sw_status sw_text_coding_check(const char *encoding);

/* Converts one file. */
struct sw_text_converter;

struct sw_text_piece {
    const char *in;
    size_t in_bytes;
    bool last; /* no bytes follow in the file */
    char *out;
    size_t room; /* size of `out`, at least SW_TEXT_PIECE_ROOM bytes */
};
enum { SW_TEXT_PIECE_ROOM = 16 };

struct sw_text_file;

/* Opens a file, or standard input for "-". Unpacks what begins as gzip (RFC 1952) or Zstandard (RFC 8878, if built with
 * it), or is named .zst. Borrows the path. The caller closes the file. */
sw_status sw_text_file_open(const char *path, const struct sw_text_coding *coding, struct sw_text_file **out);
void sw_text_file_close(struct sw_text_file *file);

/* Looks a few more characters ahead, before anything is read. *out is all text ahead, borrowed; it does not grow if the
 * text ends or 64 KiB are ahead. */
sw_status sw_text_file_peek(struct sw_text_file *file, struct sw_text *out);
/* Lets bytes through that are not UTF-8 (text_converter_pass). */
void sw_text_file_pass(struct sw_text_file *file);

/* Reads at most `bytes` bytes; *out_bytes is 0 at the end. Fails if a packed file is cut off or has something after its
 * end, or if the text is invalid in its encoding. */
sw_status sw_text_file_read(struct sw_text_file *file, char *out, size_t bytes, size_t *out_bytes);
/* Skips `bytes` bytes of text with `lines` line ends, before anything was read. */
sw_status sw_text_file_skip(struct sw_text_file *file, int64_t bytes, int64_t lines);
/* Returns how many bytes of the file on the drive were read. */
int64_t sw_text_file_offset(const struct sw_text_file *file);
/* Returns how many times U+FFFD replaced something. */
int64_t sw_text_file_replaced(const struct sw_text_file *file);
/* Returns the name for messages. */
const char *sw_text_file_name(const struct sw_text_file *file);

#endif
