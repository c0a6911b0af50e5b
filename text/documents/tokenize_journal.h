/* The file F.bin.journal beside a token file that is being written: how far the work has come, so that a call that was
 * cut off can go on. */
#ifndef SW_TEXT_DOCUMENTS_TOKENIZE_JOURNAL_H
#define SW_TEXT_DOCUMENTS_TOKENIZE_JOURNAL_H

#include "text/documents/text_reader.h"
#include "text/documents/token_writer.h"

struct sw_tokenize_journal {
    uint64_t rules, inputs; /* digests of all but the text, and of the names, sizes and times of its files */
    struct sw_text_position read;
    struct sw_token_position written;
    int64_t put, text_bytes; /* documents, and bytes of their text */
};

/* Replaces the journal of the token file `out`. `packed` is the packer's state, empty where there is none. */
sw_status sw_tokenize_journal_write(const char *out, const struct sw_tokenize_journal *journal, struct sw_text packed);
/* The most that a journal of this call may say. */
struct sw_tokenize_limits {
    int64_t files;
    size_t packed_bytes; /* of the packer's state */
};
/* Reads a journal. False: there is none, or it is damaged, of another version, or says what cannot be. */
bool sw_tokenize_journal_read(const char *out, struct sw_tokenize_limits limits, struct sw_tokenize_journal *journal,
                              struct sw_text_buffer *packed);
void sw_tokenize_journal_remove(const char *out);

#endif
