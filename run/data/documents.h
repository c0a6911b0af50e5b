/* The file F.doc beside a token file F lists where each document begins, in tokens: little-endian uint64 that rise from
 * 0.
 */
#ifndef SW_RUN_DATA_DOCUMENTS_H
#define SW_RUN_DATA_DOCUMENTS_H

#include "run/data/data_file.h"

struct sw_documents {
    struct sw_data_file file;
    int64_t count; /* 0: there is no such file */
};

/* Opens F.doc at `path` and checks all of it: the first document begins at 0, each other after the one before, and none
 * beyond `tokens`. The caller closes `out`, also after a failure. */
sw_status sw_documents_open(const char *path, int64_t tokens, struct sw_documents *out);
void sw_documents_close(struct sw_documents *documents);

/* Sets marks[i] to `mark` where a document begins at token first + i, for i in [0, count); other entries stay. */
sw_status sw_documents_mark(const struct sw_documents *documents, int64_t first, int64_t count, uint8_t mark,
                            uint8_t *marks);

#endif
