#include "text/documents/text_file.h"

#include "core/files/files.h"
#include "core/long_work.h"
#include "text/buffer.h"
#include "text/documents/text_inputs.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#if SW_HAVE_ZSTD
#include <zstd.h>
#endif

enum { WAIT_MS = 200, BLOCK_BYTES = 1 << 16, GZIP_WINDOW = 15 + 16 /* of zlib: a gzip member with its head and sum */ };

/* Bytes that were read ahead. */
struct block {
    char data[BLOCK_BYTES];
    size_t at, end;
};

struct sw_text_file {
    const char *name;
    int source;    /* descriptor; -1: not open */
    bool may_wait; /* the source is a pipe or a terminal */
    enum { PLAIN, GZIP, ZSTD } packing;
    bool within; /* a packed file: its packing has begun and has not ended */
    z_stream gzip;
#if SW_HAVE_ZSTD
    ZSTD_DStream *zstd;
#endif
    struct sw_text_converter *converter;
    int64_t offset;      /* bytes of the source that were read */
    struct block packed; /* as they lie on the drive */
    struct block raw;    /* unpacked, in the file's encoding */
    struct block text;   /* UTF-8 */
    bool raw_ended;
};

/* Waits until a pipe or terminal has something to read. The user may end the wait. */
static sw_status wait_for_input(const struct sw_text_file *file) {
    struct sw_long_work waiting = sw_long_work_begin("waiting for text", SW_LONG_WORK_SILENT);
    struct pollfd input = {.fd = file->source, .events = POLLIN};
    while (file->may_wait && poll(&input, 1, WAIT_MS) <= 0)
        SW_TRY(sw_long_work_at(&waiting, 0));
    return SW_OK;
}

/* Reads the next bytes of the source where none are left; at its end there are none. */
static sw_status fill_packed(struct sw_text_file *file) {
    struct block *packed = &file->packed;
    if (packed->at < packed->end)
        return SW_OK;
    packed->at = packed->end = 0;
    for (ssize_t got = 1; got != 0 && packed->end < BLOCK_BYTES;) {
        SW_TRY(wait_for_input(file));
        got = read(file->source, packed->data + packed->end, BLOCK_BYTES - packed->end);
        if (got < 0 && errno != EINTR && errno != EAGAIN)
            return sw_fail(SW_ERR_IO, "%s: %s", file->name, strerror(errno));
        packed->end += got > 0 ? (size_t)got : 0;
    }
    file->offset += (int64_t)packed->end;
    return SW_OK;
}

static struct sw_text left_of(const struct block *block) {
    return (struct sw_text){block->data + block->at, block->end - block->at};
}

static sw_status fail_cut_off(const struct sw_text_file *file) {
    return sw_fail(SW_ERR_IO, "%s: unexpected end of file: it was cut off; pack or copy it again", file->name);
}

/* --- Unpacking: each appends to `raw`, and nothing at the end --- */

static sw_status unpack_none(struct sw_text_file *file) {
    SW_TRY(fill_packed(file));
    const struct sw_text left = left_of(&file->packed);
    const size_t room = BLOCK_BYTES - file->raw.end, bytes = left.bytes < room ? left.bytes : room;
    memcpy(file->raw.data + file->raw.end, left.data, bytes);
    file->raw.end += bytes;
    file->packed.at += bytes;
    return SW_OK;
}

/* Begins the next member of a gzip file, behind zeros that fill a block up. Fails at anything else, which may be a
 * damaged member. */
static sw_status begin_member(struct sw_text_file *file) {
    while (file->packed.end > 0 && file->packed.data[file->packed.at] == 0) {
        file->packed.at++;
        SW_TRY(fill_packed(file));
    }
    if (file->packed.end == 0)
        return SW_OK;
    if (file->packed.data[file->packed.at] != '\x1f')
        return sw_fail(SW_ERR_IO, "%s: what follows its end is not gzip: it is damaged, or something was joined to it",
                       file->name);
    file->within = true;
    return inflateReset(&file->gzip) == Z_OK ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to unpack %s", file->name);
}

static sw_status unpack_gzip(struct sw_text_file *file) {
    const size_t before = file->raw.end;
    while (file->raw.end == before) {
        SW_TRY(fill_packed(file));
        if (file->packed.end == 0)
            return file->within ? fail_cut_off(file) : SW_OK;
        if (!file->within) {
            SW_TRY(begin_member(file));
            continue;
        }
        const struct sw_text left = left_of(&file->packed);
        file->gzip.next_in = (Bytef *)(uintptr_t)left.data;
        file->gzip.avail_in = (uInt)left.bytes;
        file->gzip.next_out = (Bytef *)file->raw.data + file->raw.end;
        file->gzip.avail_out = (uInt)(BLOCK_BYTES - file->raw.end);
        const int result = inflate(&file->gzip, Z_NO_FLUSH);
        file->packed.at = file->packed.end - file->gzip.avail_in;
        file->raw.end = BLOCK_BYTES - file->gzip.avail_out;
        file->within = result != Z_STREAM_END;
        if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR)
            return sw_fail(SW_ERR_IO, "%s: %s: it is damaged", file->name,
                           file->gzip.msg != NULL ? file->gzip.msg : "wrong gzip data");
    }
    return SW_OK;
}

#if SW_HAVE_ZSTD
static sw_status unpack_zstd(struct sw_text_file *file) {
    ZSTD_outBuffer output = {.dst = file->raw.data, .size = BLOCK_BYTES, .pos = file->raw.end};
    while (output.pos == file->raw.end) {
        SW_TRY(fill_packed(file));
        if (file->packed.end == 0)
            return file->within ? fail_cut_off(file) : SW_OK;
        ZSTD_inBuffer input = {.src = file->packed.data, .size = file->packed.end, .pos = file->packed.at};
        const size_t wanted = ZSTD_decompressStream(file->zstd, &output, &input);
        if (ZSTD_isError(wanted))
            return sw_fail(SW_ERR_IO, "%s: %s", file->name, ZSTD_getErrorName(wanted));
        file->packed.at = input.pos;
        file->within = wanted > 0;
    }
    file->raw.end = output.pos;
    return SW_OK;
}

static sw_status open_zstd(struct sw_text_file *file) {
    file->zstd = ZSTD_createDStream();
    return file->zstd != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to unpack %s", file->name);
}

static void close_zstd(struct sw_text_file *file) {
    ZSTD_freeDStream(file->zstd);
}
#else
static sw_status open_zstd(struct sw_text_file *file) {
    return sw_fail(SW_ERR_UNSUPPORTED, "%s: this program was built without zstd; unpack it: zstd -d %s", file->name,
                   file->name);
}

static sw_status unpack_zstd(struct sw_text_file *file) {
    return open_zstd(file);
}

static void close_zstd(struct sw_text_file *file) {
    (void)file;
}
#endif

/* --- The file --- */

/* Refuses what has no text or no end. Standard input and pipes are read as they come. */
static sw_status check_source(struct sw_text_file *file) {
    struct stat info, null;
    if (fstat(file->source, &info) != 0)
        return sw_fail(SW_ERR_ARG, "%s: %s", file->name, strerror(errno));
    if (S_ISDIR(info.st_mode))
        return sw_fail(SW_ERR_ARG, "%s: %s", file->name, strerror(EISDIR));
    const bool is_null = S_ISCHR(info.st_mode) && stat("/dev/null", &null) == 0 && info.st_rdev == null.st_rdev;
    if (S_ISBLK(info.st_mode) || (S_ISCHR(info.st_mode) && !is_null && isatty(file->source) == 0))
        return sw_fail(SW_ERR_ARG, "%s is a device and no file of text", file->name);
    file->may_wait = !S_ISREG(info.st_mode) && !is_null;
    return SW_OK;
}

/* Opens without waiting for the other end of a FIFO, so that the user can stop the program until it comes. */
static sw_status open_source(struct sw_text_file *file) {
    const bool is_stdin = strcmp(file->name, SW_TEXT_STDIN) == 0;
    file->source = is_stdin ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0)
                            : open(file->name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    const int error = errno;
    if (is_stdin)
        file->name = "standard input";
    return file->source >= 0 ? check_source(file) : sw_fail(SW_ERR_ARG, "%s: %s", file->name, strerror(error));
}

/* Finds out how the file is packed by its first bytes, and for Zstandard by its name too. */
static sw_status open_packing(struct sw_text_file *file) {
    SW_TRY(fill_packed(file));
    const struct sw_text head = left_of(&file->packed);
    const bool is_gzip = head.bytes >= 2 && memcmp(head.data, "\x1f\x8b", 2) == 0;
    const bool is_zstd = head.bytes >= 4 && memcmp(head.data, "\x28\xb5\x2f\xfd", 4) == 0;
    if (is_zstd || sw_path_ends_in(file->name, ".zst")) {
        file->packing = ZSTD;
        return open_zstd(file);
    }
    if (!is_gzip)
        return SW_OK;
    if (inflateInit2(&file->gzip, GZIP_WINDOW) != Z_OK)
        return sw_fail(SW_ERR_NOMEM, "no memory to unpack %s", file->name);
    file->packing = GZIP;
    return SW_OK;
}

sw_status sw_text_file_open(const char *path, const struct sw_text_coding *coding, struct sw_text_file **out) {
    struct sw_text_file *file = calloc(1, sizeof *file);
    if (file == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read %s", path);
    file->name = path;
    file->source = -1;
    sw_status status = open_source(file);
    if (status == SW_OK)
        status = open_packing(file);
    if (status == SW_OK)
        status = sw_text_converter_open(coding, file->name, &file->converter);
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
    if (file->packing == GZIP)
        inflateEnd(&file->gzip);
    if (file->packing == ZSTD)
        close_zstd(file);
    if (file->source >= 0)
        close(file->source);
    sw_text_converter_close(file->converter);
    free(file);
}

/* Unpacks more bytes behind those that are left. */
static sw_status fill_raw(struct sw_text_file *file) {
    struct block *raw = &file->raw;
    raw->end -= raw->at;
    memmove(raw->data, raw->data + raw->at, raw->end);
    raw->at = 0;
    const size_t before = raw->end;
    switch (file->packing) {
    case PLAIN: SW_TRY(unpack_none(file)); break;
    case GZIP: SW_TRY(unpack_gzip(file)); break;
    case ZSTD: SW_TRY(unpack_zstd(file)); break;
    }
    file->raw_ended = raw->end == before;
    return SW_OK;
}

/* Appends text to what is ahead, as much as fits in `room`; at the end nothing. */
static sw_status make_text(struct sw_text_file *file, size_t room) {
    struct block *text = &file->text;
    for (size_t made = 0; made == 0;) {
        size_t taken;
        if (file->raw.at == file->raw.end && !file->raw_ended)
            SW_TRY(fill_raw(file));
        const struct sw_text left = left_of(&file->raw);
        const struct sw_text_piece piece = {.in = left.data,
                                            .in_bytes = left.bytes,
                                            .last = file->raw_ended,
                                            .out = text->data + text->end,
                                            .room = room};
        SW_TRY(sw_text_convert(file->converter, &piece, &taken, &made));
        file->raw.at += taken;
        text->end += made;
        if (made > 0 || taken > 0)
            continue;
        if (file->raw_ended)
            break;
        SW_TRY(fill_raw(file));
    }
    return SW_OK;
}

/* Makes text where none is left; at the end there is none. */
static sw_status fill_text(struct sw_text_file *file) {
    if (file->text.at < file->text.end)
        return SW_OK;
    file->text.at = file->text.end = 0;
    return make_text(file, BLOCK_BYTES);
}

sw_status sw_text_file_peek(struct sw_text_file *file, struct sw_text *out) {
    const sw_status status =
        file->text.end + SW_TEXT_PIECE_ROOM <= BLOCK_BYTES ? make_text(file, SW_TEXT_PIECE_ROOM) : SW_OK;
    *out = left_of(&file->text);
    return status;
}

void sw_text_file_pass(struct sw_text_file *file) {
    sw_text_converter_pass(file->converter);
}

sw_status sw_text_file_read(struct sw_text_file *file, char *out, size_t bytes, size_t *out_bytes) {
    *out_bytes = 0;
    SW_TRY(fill_text(file));
    const struct sw_text left = left_of(&file->text);
    *out_bytes = left.bytes < bytes ? left.bytes : bytes;
    memcpy(out, left.data, *out_bytes);
    file->text.at += *out_bytes;
    return SW_OK;
}

/* Seeks in a file that is neither packed nor converted, of which something was read ahead. */
static sw_status seek(struct sw_text_file *file, int64_t bytes, int64_t lines) {
    const size_t ahead = left_of(&file->text).bytes + left_of(&file->raw).bytes + left_of(&file->packed).bytes;
    const int64_t offset = file->offset - (int64_t)ahead + bytes;
    if (lseek(file->source, (off_t)offset, SEEK_SET) < 0)
        return sw_fail(SW_ERR_IO, "%s: %s", file->name, strerror(errno));
    file->text.end = file->raw.end = file->packed.end = 0;
    file->text.at = file->raw.at = file->packed.at = 0;
    file->offset = offset;
    sw_text_converter_go_to(file->converter, offset, lines + 1);
    return SW_OK;
}

sw_status sw_text_file_skip(struct sw_text_file *file, int64_t bytes, int64_t lines) {
    struct sw_text ahead;
    SW_TRY(sw_text_file_peek(file, &ahead)); /* drops a byte order mark, which the bytes do not count */
    if (bytes > BLOCK_BYTES && file->packing == PLAIN && sw_text_converter_copies(file->converter))
        return seek(file, bytes, lines);
    while (bytes > 0 && file->text.at < file->text.end) {
        const struct sw_text left = left_of(&file->text);
        const size_t passed = (int64_t)left.bytes < bytes ? left.bytes : (size_t)bytes;
        file->text.at += passed;
        bytes -= (int64_t)passed;
        SW_TRY(fill_text(file));
    }
    return SW_OK;
}

int64_t sw_text_file_offset(const struct sw_text_file *file) {
    return file->offset;
}

int64_t sw_text_file_replaced(const struct sw_text_file *file) {
    return sw_text_converter_replaced(file->converter);
}

const char *sw_text_file_name(const struct sw_text_file *file) {
    return file->name;
}
