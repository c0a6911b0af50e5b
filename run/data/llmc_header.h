/* The header of token files that the scripts of llm.c write (dev/data/data_common.py of github.com/karpathy/llm.c): 256
 * int32, of which the first three are a magic number, a version and the count of the tokens behind the header. */
#ifndef SW_RUN_DATA_LLMC_HEADER_H
#define SW_RUN_DATA_LLMC_HEADER_H

#include "run/data/data_file.h"

struct sw_llmc_header {
    int64_t bytes;   /* of the header; 0: the file has none, and nothing else is set */
    int width_bytes; /* of a token */
};

/* Recognizes the header by its magic number. Refuses a version that is not known, and a count that does not fit the
 * file's size. */
sw_status sw_llmc_header_read(const struct sw_data_file *file, struct sw_llmc_header *out);

#endif
