#include "train/documents/text_file.h"

#include "train/documents/text_inputs.h"
#include "train/files/files.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#if SW_HAVE_ZSTD
#include <zstd.h>
#endif

enum { PACKED_BYTES = 1 << 16, SKIP_BYTES = 1 << 16 };

struct sw_text_file {
    const char *name;
    gzFile gzip; /* reads files that are not packed too; NULL: the file is Zstandard's */
#if SW_HAVE_ZSTD
    FILE *packed;
    ZSTD_DStream *stream;
    ZSTD_inBuffer input;
    size_t wanted; /* 0: a frame has ended */
    char buffer[PACKED_BYTES];
#endif
};

#if SW_HAVE_ZSTD
static sw_status open_zstd(struct sw_text_file *file) {
    file->packed = fopen(file->name, "rbe");
    if (file->packed == NULL)
        return sw_fail(SW_ERR_ARG, "%s: %s", file->name, strerror(errno));
    file->stream = ZSTD_createDStream();
    file->input.src = file->buffer;
    return file->stream != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to unpack %s", file->name);
}

static void close_zstd(struct sw_text_file *file) {
    ZSTD_freeDStream(file->stream);
    if (file->packed != NULL)
        fclose(file->packed);
}

/* Fills the empty input. At the file's end, *out_end is set, and a frame must have ended too. */
static sw_status fill_input(struct sw_text_file *file, bool *out_end) {
    file->input.size = fread(file->buffer, 1, PACKED_BYTES, file->packed);
    file->input.pos = 0;
    *out_end = file->input.size == 0;
    if (ferror(file->packed))
        return sw_fail(SW_ERR_IO, "%s: %s", file->name, strerror(errno));
    return *out_end && file->wanted > 0 ? sw_fail(SW_ERR_IO, "%s: unexpected end of file", file->name) : SW_OK;
}

static sw_status read_zstd(struct sw_text_file *file, char *out, size_t bytes, size_t *out_bytes) {
    ZSTD_outBuffer output = {.dst = out, .size = bytes};
    for (bool end = false; output.pos == 0 && !end;) {
        if (file->input.pos == file->input.size)
            SW_TRY(fill_input(file, &end));
        if (end)
            break;
        file->wanted = ZSTD_decompressStream(file->stream, &output, &file->input);
        if (ZSTD_isError(file->wanted))
            return sw_fail(SW_ERR_IO, "%s: %s", file->name, ZSTD_getErrorName(file->wanted));
    }
    *out_bytes = output.pos;
    return SW_OK;
}

static int64_t offset_of_zstd(const struct sw_text_file *file) {
    return (int64_t)ftello(file->packed);
}
#else
static sw_status open_zstd(struct sw_text_file *file) {
    return sw_fail(SW_ERR_UNSUPPORTED, "%s: this program was built without zstd; unpack it: zstd -d %s", file->name,
                   file->name);
}

static void close_zstd(struct sw_text_file *file) {
    (void)file;
}

static sw_status read_zstd(struct sw_text_file *file, char *out, size_t bytes, size_t *out_bytes) {
    (void)file, (void)out, (void)bytes;
    *out_bytes = 0;
    return SW_OK;
}

static int64_t offset_of_zstd(const struct sw_text_file *file) {
    (void)file;
    return 0;
}
#endif

static sw_status open_gzip(struct sw_text_file *file) {
    if (strcmp(file->name, SW_TEXT_STDIN) != 0) {
        file->gzip = gzopen(file->name, "rbe");
        return file->gzip != NULL ? SW_OK : sw_fail(SW_ERR_ARG, "%s: %s", file->name, strerror(errno));
    }
    const int fd = dup(STDIN_FILENO);
    file->name = "standard input";
    file->gzip = fd >= 0 ? gzdopen(fd, "rb") : NULL;
    return file->gzip != NULL ? SW_OK : sw_fail(SW_ERR_IO, "standard input cannot be read: %s", strerror(errno));
}

sw_status sw_text_file_open(const char *path, struct sw_text_file **out) {
    struct sw_text_file *file = calloc(1, sizeof *file);
    if (file == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read %s", path);
    file->name = path;
    const sw_status status = sw_path_ends_in(path, ".zst") ? open_zstd(file) : open_gzip(file);
    if (status != SW_OK) {
        sw_text_file_close(file);
        return status;
    }
    *out = file;
    return SW_OK;
}

void sw_text_file_close(struct sw_text_file *file) {
    if (file == NULL)
        return;
    if (file->gzip != NULL)
        gzclose(file->gzip);
    else
        close_zstd(file);
    free(file);
}

static sw_status fail_reading(const struct sw_text_file *file) {
    int error;
    const char *message = gzerror(file->gzip, &error);
    if (error == Z_ERRNO)
        return sw_fail(SW_ERR_IO, "%s: %s", file->name, strerror(errno));
    return sw_fail(SW_ERR_IO, "%s", message); /* zlib begins it with the path */
}

sw_status sw_text_file_read(struct sw_text_file *file, char *out, size_t bytes, size_t *out_bytes) {
    int error;
    if (file->gzip == NULL)
        return read_zstd(file, out, bytes, out_bytes);
    const int count = gzread(file->gzip, out, (unsigned)bytes);
    *out_bytes = count > 0 ? (size_t)count : 0;
    (void)gzerror(file->gzip, &error); /* where packed data are cut off, only this shows it */
    return count < 0 || error == Z_BUF_ERROR ? fail_reading(file) : SW_OK;
}

sw_status sw_text_file_skip(struct sw_text_file *file, int64_t bytes) {
    char passed[SKIP_BYTES];
    size_t count = 1;
    /* After gzdirect, zlib knows that a file is not packed, and seeks in it instead of reading. */
    if (file->gzip != NULL && gzdirect(file->gzip))
        return gzseek(file->gzip, (z_off_t)bytes, SEEK_SET) == (z_off_t)bytes ? SW_OK : fail_reading(file);
    for (; bytes > 0 && count > 0; bytes -= (int64_t)count)
        SW_TRY(sw_text_file_read(file, passed, bytes < SKIP_BYTES ? (size_t)bytes : SKIP_BYTES, &count));
    return SW_OK;
}

int64_t sw_text_file_offset(const struct sw_text_file *file) {
    return file->gzip != NULL ? (int64_t)gzoffset(file->gzip) : offset_of_zstd(file);
}

const char *sw_text_file_name(const struct sw_text_file *file) {
    return file->name;
}
