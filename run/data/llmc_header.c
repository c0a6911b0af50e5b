#include "run/data/llmc_header.h"

#include <stddef.h>

enum { HEADER_INTS = 256, HEADER_BYTES = HEADER_INTS * sizeof(int32_t) };

/* The kinds of files with such a header. */
static const struct kind {
    int32_t magic, version;
    int width_bytes; /* 0: the file has no stream of tokens */
    const char *what;
} kinds[] = {
    {20240520, 1, 2, "uint16 tokens of GPT-2"},
    {20240801, 7, 4, "uint32 tokens of Llama 3"},
    {20240522, 1, 0, "questions with several answers"},
};

static const struct kind *find(int32_t magic) {
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (kinds[i].magic == magic)
            return &kinds[i];
    return NULL;
}

sw_status sw_llmc_header_read(const struct sw_data_file *file, struct sw_llmc_header *out) {
    int32_t header[3]; /* magic number, version, count */
    *out = (struct sw_llmc_header){0};
    if (file->bytes < (int64_t)sizeof header)
        return SW_OK;
    SW_TRY(sw_data_file_read(file, 0, sizeof header, header));
    const struct kind *kind = find(header[0]);
    if (kind == NULL)
        return SW_OK;
    if (kind->width_bytes == 0)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "the data file %s begins with llm.c's header for %s, which are no tokens to "
                       "train on; give a file of tokens",
                       file->path, kind->what);
    if (header[1] != kind->version)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "the data file %s begins with llm.c's header for %s of version %d, but this program reads "
                       "version %d; write it anew with a llm.c of that version",
                       file->path, kind->what, header[1], kind->version);
    const int64_t wanted = HEADER_BYTES + (int64_t)header[2] * kind->width_bytes;
    if (header[2] < 0 || file->bytes != wanted)
        return sw_fail(SW_ERR_ARG,
                       "the data file %s has %lld bytes, but llm.c's header says %d tokens, which are %lld bytes with "
                       "it; the file is cut off or damaged, so write it anew",
                       file->path, (long long)file->bytes, header[2], (long long)wanted);
    *out = (struct sw_llmc_header){.bytes = HEADER_BYTES, .width_bytes = kind->width_bytes};
    return SW_OK;
}
