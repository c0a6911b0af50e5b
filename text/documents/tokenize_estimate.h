/* How many tokens text has, from its beginning, without writing them. */
#ifndef SW_TEXT_DOCUMENTS_TOKENIZE_ESTIMATE_H
#define SW_TEXT_DOCUMENTS_TOKENIZE_ESTIMATE_H

#include "text/documents/tokenize_files.h"

struct sw_token_estimate {
    int64_t tokens;     /* with padding, where documents are packed */
    int64_t read_bytes; /* bytes of the files that the estimate is from; 0: all were read, so the tokens are counted */
};

/* Encodes the first few hundred KiB of the files, and takes the rest to have as many tokens a byte. Of the
 * specification, end, out, joined and threads are not heeded: documents end as by "auto". */
sw_status sw_tokenize_estimate(const struct sw_tokenize_spec *spec, struct sw_token_estimate *out);

#endif
