/* The pieces of a text file that documents are made of, one after the other: its lines, or its values of JSON. */
#ifndef SW_TEXT_DOCUMENTS_TEXT_PIECES_H
#define SW_TEXT_DOCUMENTS_TEXT_PIECES_H

#include "text/buffer.h"
#include "text/documents/text_file.h"

/* Forms of a file. What a file of JSON has is seen at its beginning: [ begins one list, { alone in a line values that
 * are spread over lines, and anything else lines of one value each. */
typedef enum {
    SW_TEXT_PLAIN = 1, /* lines of text, with their ends */
    SW_TEXT_JSON_LINES,
    SW_TEXT_JSON_VALUES,
    SW_TEXT_JSON_LIST
} sw_text_form;

/* A value of JSON that is longer is no document but a mistake, and would fill the memory. */
enum { SW_TEXT_MOST_JSON_BYTES = 64 << 20 };

struct sw_text_pieces;

/* Opens a file (text_file.h). A name that says JSON (text_inputs.h) is that; standard input and pipes are JSON where
 * they begin as objects, or as a list of objects or strings. The caller closes the pieces. */
sw_status sw_text_pieces_open(const char *path, const struct sw_text_coding *coding, struct sw_text_pieces **out);
void sw_text_pieces_close(struct sw_text_pieces *pieces);

struct sw_text_piece_read {
    struct sw_text text; /* borrowed until the next call; no piece of JSON is blank */
    int64_t line;        /* where it begins, from 1 */
    bool unended;        /* plain text: the line goes on, as it is longer than a part that is read at once */
    bool too_long;       /* JSON of more than SW_TEXT_MOST_JSON_BYTES, whose text was left out */
};
/* Reads the next piece; *out_end is set where there is none. SW_ERR_CORRUPT: a list is broken between its values. */
sw_status sw_text_pieces_next(struct sw_text_pieces *pieces, struct sw_text_piece_read *out, bool *out_end);

/* Where the next piece begins. A zeroed struct is the beginning of a file. */
struct sw_text_pieces_position {
    int64_t offset; /* bytes of text that were read */
    int64_t lines;  /* ends of lines among them */
    int64_t form;   /* 0: nothing was read */
};
struct sw_text_pieces_position sw_text_pieces_position(const struct sw_text_pieces *pieces);
/* Goes to a position, before anything is read. */
sw_status sw_text_pieces_go_to(struct sw_text_pieces *pieces, const struct sw_text_pieces_position *position);

sw_text_form sw_text_pieces_form(const struct sw_text_pieces *pieces);
/* The file that is read (text_file.h). */
struct sw_text_file *sw_text_pieces_file(struct sw_text_pieces *pieces);

#endif
