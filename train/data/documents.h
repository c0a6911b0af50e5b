/* F.doc beside a token file F: where each document of it begins, in tokens, as little-endian uint64 that rise from 0.
 */
#ifndef SW_TRAIN_DATA_DOCUMENTS_H
#define SW_TRAIN_DATA_DOCUMENTS_H

#include "train/data/data_file.h"

struct sw_documents {
    struct sw_data_file file;
    int64_t count; /* 0: there is no such file */
};

/* Opens and reads all of it: the first document begins at 0, each other after the one before, none beyond the tokens.
 * The caller closes it, also after a failure. */
sw_status sw_documents_open(const char *path, int64_t tokens, struct sw_documents *out);
void sw_documents_close(struct sw_documents *documents);

/* marks[i] = mark where a document begins at the token first + i; others are left alone. */
sw_status sw_documents_mark(const struct sw_documents *documents, int64_t first, int64_t count, uint8_t mark,
                            uint8_t *marks);

#endif
