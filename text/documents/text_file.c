/* Reads a text file, packed or not, in any encoding, as a stream of UTF-8.
 *
 * Three buffers in a row: packed bytes, raw bytes in the file's encoding, text. Each stage runs only when the next is
 * empty, so memory is constant and a pipe is read as it comes. Text is never guessed beyond byte order marks: a wrong
 * guess would train on garbage, so bytes that are not of the encoding are an error with their place. */
#include "text/documents/text_file.h"

#include "core/files/files.h"
#include "core/log.h"
#include "text/buffer.h"
#include "text/documents/text_inputs.h"
#include "text/unicode.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <iconv.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum { NAME_CHARS = 64, SNIFFED_BYTES = 4096, MOST_ZEROS = 3 };
static const struct sw_text replacement = {"\xEF\xBF\xBD", 3}, mark = {"\xEF\xBB\xBF", 3};
static const iconv_t no_iconv = (iconv_t)-1;

struct sw_text_converter {
    struct sw_text_coding coding;
    const char *name;
    iconv_t iconv;      /* no_iconv: the text is UTF-8 */
    size_t unit;        /* bytes of the encoding's smallest character */
    bool passes, begun; /* passes: let bytes through that are not UTF-8; begun: the file's first bytes were examined */
    bool flushed;       /* iconv has given everything it held back */
    bool may_be_mark;   /* nothing was produced yet, so U+FEFF would be a byte order mark */
    int64_t taken, line, replaced; /* taken: bytes of the file; line: line of the next byte, from 1 */
};

static bool is_utf8(const char *encoding) {
    return encoding == NULL || strcasecmp(encoding, "utf-8") == 0 || strcasecmp(encoding, "utf8") == 0;
}

static iconv_t open_one(const char *encoding, bool writes) {
    return writes ? iconv_open(encoding, "UTF-8") : iconv_open("UTF-8", encoding);
}

/* Opens iconv by the given name, or as the C library may spell it: "latin-1" is its LATIN1. `writes`: converts from
 * UTF-8 to the encoding instead. */
static iconv_t open_iconv(const char *encoding, bool writes) {
    char bare[NAME_CHARS];
    size_t chars = 0;
    /* A slash would begin options for iconv. */
    if (strlen(encoding) >= NAME_CHARS || strchr(encoding, '/') != NULL || encoding[0] == '\0')
        return no_iconv;
    const iconv_t as_given = open_one(encoding, writes);
    if (as_given != no_iconv)
        return as_given;
    for (const char *at = encoding; *at != '\0'; at++)
        if (isalnum((unsigned char)*at))
            bare[chars++] = (char)toupper((unsigned char)*at);
    bare[chars] = '\0';
    return chars > 0 ? open_one(bare, writes) : no_iconv;
}

static sw_status refuse_encoding(const char *encoding) {
    return sw_fail(SW_ERR_ARG, "--encoding %s: this machine knows no encoding of this name; `iconv -l` lists them",
                   encoding);
}

sw_status sw_text_coding_check(const char *encoding) {
    if (is_utf8(encoding))
        return SW_OK;
    const iconv_t opened = open_iconv(encoding, false);
    if (opened == no_iconv)
        return refuse_encoding(encoding);
    iconv_close(opened);
    return SW_OK;
}

/* Returns the bytes of an encoding's smallest character: the difference between "AA" and "A", whatever begins both. */
static size_t unit_of(const char *encoding) {
    const iconv_t opened = open_iconv(encoding, true);
    size_t left[2] = {0};
    for (size_t chars = 1; opened != no_iconv && chars <= 2; chars++) {
        char text[] = "AA", out[NAME_CHARS], *from = text, *to = out;
        size_t bytes = chars;
        left[chars - 1] = sizeof out;
        (void)iconv(opened, NULL, NULL, NULL, NULL);
        (void)iconv(opened, &from, &bytes, &to, &left[chars - 1]);
    }
    if (opened != no_iconv)
        iconv_close(opened);
    return left[0] > left[1] ? left[0] - left[1] : 1;
}

/* Opens a converter. `name` is the file's, for messages; borrowed. The caller closes the converter. */
static sw_status text_converter_open(const struct sw_text_coding *coding, const char *name,
                                     struct sw_text_converter **out) {
    struct sw_text_converter *converter = calloc(1, sizeof *converter);
    if (converter == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read %s", name);
    *converter = (struct sw_text_converter){
        .coding = *coding, .name = name, .iconv = no_iconv, .unit = 1, .may_be_mark = true, .line = 1};
    if (!is_utf8(coding->encoding)) {
        converter->iconv = open_iconv(coding->encoding, false);
        converter->unit = unit_of(coding->encoding);
        if (converter->iconv == no_iconv) {
            free(converter);
            return refuse_encoding(coding->encoding);
        }
    }
    *out = converter;
    return SW_OK;
}

static void text_converter_close(struct sw_text_converter *converter) {
    if (converter == NULL)
        return;
    if (converter->iconv != no_iconv)
        iconv_close(converter->iconv);
    free(converter);
}

static bool text_converter_copies(const struct sw_text_converter *converter);

/* Lets bytes through that are not UTF-8, for a caller that refuses them line by line. Has no effect with another
 * encoding, or if the coding is lossy. */
static void text_converter_pass(struct sw_text_converter *converter) {
    converter->passes = text_converter_copies(converter);
}

/* Refuses UTF-16 and UTF-32: with a byte order mark, or without one if a third of the bytes is zero. */
static sw_status look_at_beginning(struct sw_text_converter *converter, struct sw_text text) {
    const char *wide = NULL;
    size_t zeros = 0;
    converter->begun = true;
    SW_TRY(text.bytes > 0 ? sw_text_refuse_foreign(converter->name, text) : SW_OK);
    if (!text_converter_copies(converter))
        return SW_OK;
    if (text.bytes >= 4 && (memcmp(text.data, "\xFF\xFE\0\0", 4) == 0 || memcmp(text.data, "\0\0\xFE\xFF", 4) == 0))
        wide = "utf-32";
    else if (text.bytes >= 2 && (memcmp(text.data, "\xFF\xFE", 2) == 0 || memcmp(text.data, "\xFE\xFF", 2) == 0))
        wide = "utf-16";
    if (wide != NULL)
        return sw_fail(SW_ERR_ARG, "%s begins with the byte order mark of %s; --encoding %s reads it", converter->name,
                       wide, wide);
    const size_t looked = text.bytes < SNIFFED_BYTES ? text.bytes : SNIFFED_BYTES;
    for (size_t i = 0; i < looked; i++)
        zeros += text.data[i] == 0;
    if (zeros * MOST_ZEROS <= looked)
        return SW_OK;
    return sw_fail(SW_ERR_ARG,
                   "%s has %zu zero bytes among its first %zu, so it is no UTF-8 text; --encoding utf-16le or utf-16be "
                   "reads UTF-16 without a byte order mark",
                   converter->name, zeros, looked);
}

/* Refuses the sequence at the beginning of `text`. */
static sw_status refuse(const struct sw_text_converter *converter, struct sw_text text, bool cut) {
    const struct sw_text_converter *c = converter;
    const char *encoding = c->iconv != no_iconv ? c->coding.encoding : "UTF-8";
    const char *way = c->iconv != no_iconv
                          ? "name another --encoding, or replace such bytes by U+FFFD with --lossy"
                          : "say what it is, such as --encoding latin-1 or gbk, or replace such bytes by U+FFFD with "
                            "--lossy";
    return sw_fail(SW_ERR_ARG, "%s is not %s: %s 0x%02X at byte %lld, in line %lld; %s", c->name, encoding,
                   cut ? "it ends within a character that begins with" : "there is", (unsigned char)text.data[0],
                   (long long)c->taken, (long long)c->line, way);
}

/* A piece being converted. */
struct made {
    struct sw_text in; /* not converted yet */
    const char *begin;
    char *out;
    size_t room;
};

static void take(struct sw_text_converter *converter, struct made *made, size_t bytes) {
    made->in = (struct sw_text){made->in.data + bytes, made->in.bytes - bytes};
    converter->taken += (int64_t)bytes;
}

/* Notes what was produced at `out`, counts its lines for messages, and drops a byte order mark. */
static void put(struct sw_text_converter *converter, struct made *made, size_t bytes) {
    if (bytes == 0)
        return;
    if (converter->may_be_mark && bytes >= mark.bytes && memcmp(made->out, mark.data, mark.bytes) == 0) {
        bytes -= mark.bytes;
        memmove(made->out, made->out + mark.bytes, bytes);
    }
    converter->may_be_mark = false;
    for (const char *at = made->out, *end = made->out + bytes; (at = memchr(at, '\n', (size_t)(end - at))) != NULL;
         at++)
        converter->line++;
    made->out += bytes;
    made->room -= bytes;
}

/* Replaces bytes that are invalid in the encoding. */
static void replace(struct sw_text_converter *converter, struct made *made, size_t bytes) {
    memcpy(made->out, replacement.data, replacement.bytes);
    put(converter, made, replacement.bytes);
    take(converter, made, bytes < made->in.bytes ? bytes : made->in.bytes);
    converter->replaced++;
}

/* Returns how many bytes, at most `most`, end with a whole character. */
static size_t whole_bytes(struct sw_text text, size_t most) {
    return text.bytes <= most ? text.bytes : sw_utf8_valid_bytes((struct sw_text){text.data, most});
}

static sw_status copy_utf8(struct sw_text_converter *converter, struct made *made, bool last) {
    const bool passes = converter->passes;
    while (made->in.bytes > 0 && made->room >= replacement.bytes + 1) {
        const size_t all = passes ? made->in.bytes : sw_utf8_valid_bytes(made->in);
        const size_t fits = passes && all > made->room ? made->room : all;
        const size_t bytes = passes ? fits : whole_bytes((struct sw_text){made->in.data, all}, made->room);
        if (bytes > 0) {
            memcpy(made->out, made->in.data, bytes);
            take(converter, made, bytes);
            put(converter, made, bytes);
            continue;
        }
        const struct sw_utf8_sequence next = sw_utf8_read(made->in);
        if (next.kind == SW_UTF8_WHOLE || (next.kind == SW_UTF8_CUT && !last))
            break;
        if (!converter->coding.lossy)
            return made->out > made->begin ? SW_OK : refuse(converter, made->in, next.kind == SW_UTF8_CUT);
        replace(converter, made, next.bytes);
    }
    return SW_OK;
}

/* Calls iconv; with `flush` without input, to get what it holds back. Returns the errno of its failure, or 0. */
static int run_iconv(struct sw_text_converter *converter, struct made *made, bool flush) {
    char *in = (char *)(uintptr_t)made->in.data, *out = made->out;
    size_t in_left = made->in.bytes, room = made->room;
    const size_t result = iconv(converter->iconv, flush ? NULL : &in, flush ? NULL : &in_left, &out, &room);
    const int error = result == (size_t)-1 ? errno : 0;
    take(converter, made, made->in.bytes - in_left);
    put(converter, made, made->room - room);
    return error;
}

static sw_status convert_other(struct sw_text_converter *converter, struct made *made, bool last) {
    while (made->in.bytes > 0 && made->room >= replacement.bytes + 1) {
        const int error = run_iconv(converter, made, false);
        if (error == E2BIG || (error == EINVAL && !last))
            break;
        if (error == 0)
            continue;
        if (!converter->coding.lossy)
            return made->out > made->begin ? SW_OK : refuse(converter, made->in, error == EINVAL);
        replace(converter, made, error == EINVAL ? made->in.bytes : converter->unit);
    }
    if (last && made->in.bytes == 0 && !converter->flushed)
        converter->flushed = run_iconv(converter, made, true) != E2BIG;
    return SW_OK;
}

/* Converts as much of a piece as fits. The caller gives what was not taken again, followed by more. If nothing is taken
 * and nothing made, more bytes are needed. Drops a byte order mark at the file's beginning. At something invalid in the
 * encoding, fails with its position once all text before it was made. */
static sw_status text_convert(struct sw_text_converter *converter, const struct sw_text_piece *piece, size_t *out_taken,
                              size_t *out_made) {
    struct made made = {{piece->in, piece->in_bytes}, piece->out, piece->out, piece->room};
    *out_taken = *out_made = 0;
    if (!converter->begun)
        SW_TRY(look_at_beginning(converter, made.in));
    SW_TRY(converter->iconv == no_iconv ? copy_utf8(converter, &made, piece->last)
                                        : convert_other(converter, &made, piece->last));
    *out_taken = piece->in_bytes - made.in.bytes;
    *out_made = (size_t)(made.out - piece->out);
    return SW_OK;
}

/* Tells whether text comes out as its bytes went in, except for a byte order mark. */
static bool text_converter_copies(const struct sw_text_converter *converter) {
    return converter->iconv == no_iconv && !converter->coding.lossy;
}

/* Sets the byte of the file, and the line, at which the next piece begins. */
static void text_converter_go_to(struct sw_text_converter *converter, int64_t byte, int64_t line) {
    converter->taken = byte;
    converter->line = line;
}

/* Returns how many times U+FFFD replaced something. */
static int64_t text_converter_replaced(const struct sw_text_converter *converter) {
    return converter->replaced;
}

#if SW_HAVE_ZSTD
#include <zstd.h>
#endif

enum {
    WAIT_MS = 200,
    BLOCK_BYTES = 1 << 16,
    GZIP_WINDOW = 15 + 16 /* of zlib: a gzip member with header and checksum */
};

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
    bool within; /* a packed file: within a compressed stream */
    z_stream gzip;
#if SW_HAVE_ZSTD
    ZSTD_DStream *zstd;
#endif
    struct sw_text_converter *converter;
    int64_t offset;      /* bytes of the source that were read */
    struct block packed; /* as in the file */
    struct block raw;    /* unpacked, in the file's encoding */
    struct block text;   /* UTF-8 */
    bool raw_ended;
};

/* Waits until a pipe or terminal has something to read. The user may stop the wait. */
static sw_status wait_for_input(const struct sw_text_file *file) {
    struct sw_long_work waiting = sw_long_work_begin("waiting for text", SW_LONG_WORK_SILENT);
    struct pollfd input = {.fd = file->source, .events = POLLIN};
    while (file->may_wait && poll(&input, 1, WAIT_MS) <= 0)
        SW_TRY(sw_long_work_at(&waiting, 0));
    return SW_OK;
}

/* Reads the source's next bytes if none are left. At its end there are none. */
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

/* Begins the next member of a gzip file, skipping zeros that fill up a block. Fails at anything else, which may be a
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

/* Refuses sources without text or without an end. Standard input and pipes are read as they come. */
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

/* Opens without waiting for the other end of a FIFO, so that the user can stop the program while it waits. */
static sw_status open_source(struct sw_text_file *file) {
    const bool is_stdin = strcmp(file->name, SW_TEXT_STDIN) == 0;
    file->source = is_stdin ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0)
                            : open(file->name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    const int error = errno;
    if (is_stdin)
        file->name = "standard input";
    return file->source >= 0 ? check_source(file) : sw_fail(SW_ERR_ARG, "%s: %s", file->name, strerror(error));
}

/* Finds out how the file is packed by its first bytes, for Zstandard also by its name. */
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
        status = text_converter_open(coding, file->name, &file->converter);
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
    text_converter_close(file->converter);
    free(file);
}

/* Appends more unpacked bytes. */
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

/* Appends text, as much as fits in `room`; at the end nothing. */
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
        SW_TRY(text_convert(file->converter, &piece, &taken, &made));
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

/* Makes text if none is left. At the end there is none. */
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
    text_converter_pass(file->converter);
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

/* Seeks in a file that is neither packed nor converted, and from which something was read ahead. */
static sw_status seek(struct sw_text_file *file, int64_t bytes, int64_t lines) {
    const size_t ahead = left_of(&file->text).bytes + left_of(&file->raw).bytes + left_of(&file->packed).bytes;
    const int64_t offset = file->offset - (int64_t)ahead + bytes;
    if (lseek(file->source, (off_t)offset, SEEK_SET) < 0)
        return sw_fail(SW_ERR_IO, "%s: %s", file->name, strerror(errno));
    file->text.end = file->raw.end = file->packed.end = 0;
    file->text.at = file->raw.at = file->packed.at = 0;
    file->offset = offset;
    text_converter_go_to(file->converter, offset, lines + 1);
    return SW_OK;
}

sw_status sw_text_file_skip(struct sw_text_file *file, int64_t bytes, int64_t lines) {
    struct sw_text ahead;
    SW_TRY(sw_text_file_peek(file, &ahead)); /* drops a byte order mark, which `bytes` does not count */
    if (bytes > BLOCK_BYTES && file->packing == PLAIN && text_converter_copies(file->converter))
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
    return text_converter_replaced(file->converter);
}

const char *sw_text_file_name(const struct sw_text_file *file) {
    return file->name;
}
