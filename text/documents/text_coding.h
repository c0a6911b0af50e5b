/* Text of any encoding as UTF-8, a piece at a time. */
#ifndef SW_TEXT_DOCUMENTS_TEXT_CODING_H
#define SW_TEXT_DOCUMENTS_TEXT_CODING_H

#include "core/status.h"

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

/* `name` is the file's, for messages; borrowed. The caller closes the converter. */
sw_status sw_text_converter_open(const struct sw_text_coding *coding, const char *name, struct sw_text_converter **out);
void sw_text_converter_close(struct sw_text_converter *converter);
/* Lets bytes that are not UTF-8 pass, for a caller that refuses them line by line. Changes nothing where the coding
 * names another encoding, or is lossy. */
void sw_text_converter_pass(struct sw_text_converter *converter);

struct sw_text_piece {
    const char *in;
    size_t in_bytes;
    bool last; /* no bytes follow in the file */
    char *out;
    size_t room; /* of `out`, at least SW_TEXT_PIECE_ROOM bytes */
};
enum { SW_TEXT_PIECE_ROOM = 16 };

/* Converts as much of a piece as fits; what was not taken is given again in front of what follows. Nothing taken and
 * nothing made asks for more bytes. A byte order mark at the file's beginning is dropped. Fails with the place of what
 * the encoding does not have, once all before it was made. */
sw_status sw_text_convert(struct sw_text_converter *converter, const struct sw_text_piece *piece, size_t *out_taken,
                          size_t *out_made);
/* Tells whether text comes out as its bytes went in, but for a byte order mark. */
bool sw_text_converter_copies(const struct sw_text_converter *converter);
/* Notes at which byte of the file, and in which line, the next piece begins. */
void sw_text_converter_go_to(struct sw_text_converter *converter, int64_t byte, int64_t line);
/* Returns how often U+FFFD was put in the place of something. */
int64_t sw_text_converter_replaced(const struct sw_text_converter *converter);

#endif
