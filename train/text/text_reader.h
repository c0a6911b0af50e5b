/* Documents out of text files, one after the other, in memory for the longest of them. */
#ifndef SW_TRAIN_TEXT_TEXT_READER_H
#define SW_TRAIN_TEXT_TEXT_READER_H

#include "train/text/buffer.h"

#include <stdbool.h>
#include <stdint.h>

struct sw_text_reader;

/* How files become documents. A .txt or .md file is one document, unless a separator or `lines` divides it; each line
 * of a .jsonl file is one. Each may be packed (.gz). */
struct sw_text_rules {
    const char *separator; /* lines that are just this divide a file; NULL: none do */
    bool lines;            /* each line of a file is a document */
    const char *field;     /* of a .jsonl line's object, that has the text */
};

/* Checks that all files are there and of a known kind. Borrows the names and the rules. The caller closes the reader.
 */
sw_status sw_text_reader_open(const char *const *files, int file_count, const struct sw_text_rules *rules,
                              struct sw_text_reader **out);
void sw_text_reader_close(struct sw_text_reader *reader);

/* Replaces *out by the next document that is not empty, without a byte order mark; *out_end is set where there is none.
 * Errors name the file, and the line where one is wrong. */
sw_status sw_text_reader_next(struct sw_text_reader *reader, struct sw_text_buffer *out, bool *out_end);

int64_t sw_text_reader_bytes(const struct sw_text_reader *reader);      /* of all files */
int64_t sw_text_reader_bytes_read(const struct sw_text_reader *reader); /* so far */

#endif
