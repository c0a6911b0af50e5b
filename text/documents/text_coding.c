#include "text/documents/text_coding.h"

#include "text/documents/text_inputs.h"
#include "text/utf8.h"

#include <ctype.h>
#include <errno.h>
#include <iconv.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { NAME_CHARS = 64, SNIFFED_BYTES = 4096, MOST_ZEROS = 3 };
static const struct sw_text replacement = {"\xEF\xBF\xBD", 3}, mark = {"\xEF\xBB\xBF", 3};
static const iconv_t no_iconv = (iconv_t)-1;

struct sw_text_converter {
    struct sw_text_coding coding;
    const char *name;
    iconv_t iconv;                 /* no_iconv: the text is UTF-8 */
    size_t unit;                   /* bytes of the encoding's smallest character */
    bool passes, begun;            /* bytes that are not UTF-8 pass; the file's first bytes were looked at */
    bool flushed;                  /* iconv has given what it held back */
    bool may_be_mark;              /* nothing was made yet, so that U+FEFF would be a byte order mark */
    int64_t taken, line, replaced; /* bytes of the file; line that the next byte is in, from 1 */
};

static bool is_utf8(const char *encoding) {
    return encoding == NULL || strcasecmp(encoding, "utf-8") == 0 || strcasecmp(encoding, "utf8") == 0;
}

static iconv_t open_one(const char *encoding, bool writes) {
    return writes ? iconv_open(encoding, "UTF-8") : iconv_open("UTF-8", encoding);
}

/* Opens iconv by the name as it was given, or as the C library may spell it: "latin-1" is its LATIN1. `writes`: UTF-8
 * becomes the encoding, in place of the other direction. */
static iconv_t open_iconv(const char *encoding, bool writes) {
    char bare[NAME_CHARS];
    size_t chars = 0;
    /* A slash would begin iconv's own wishes for what it cannot convert. */
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

/* Returns the bytes of an encoding's smallest character: so many more has "AA" than "A", whatever begins both. */
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

sw_status sw_text_converter_open(const struct sw_text_coding *coding, const char *name,
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

void sw_text_converter_close(struct sw_text_converter *converter) {
    if (converter == NULL)
        return;
    if (converter->iconv != no_iconv)
        iconv_close(converter->iconv);
    free(converter);
}

void sw_text_converter_pass(struct sw_text_converter *converter) {
    converter->passes = sw_text_converter_copies(converter);
}

/* Refuses UTF-16 and UTF-32, with a byte order mark or, where a third of the bytes is zero, without one. */
static sw_status look_at_beginning(struct sw_text_converter *converter, struct sw_text text) {
    const char *wide = NULL;
    size_t zeros = 0;
    converter->begun = true;
    SW_TRY(text.bytes > 0 ? sw_text_refuse_foreign(converter->name, text) : SW_OK);
    if (!sw_text_converter_copies(converter))
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

/* Refuses the sequence that `text` begins with. */
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

/* A piece that is being converted. */
struct made {
    struct sw_text in; /* the rest */
    const char *begin;
    char *out;
    size_t room;
};

static void take(struct sw_text_converter *converter, struct made *made, size_t bytes) {
    made->in = (struct sw_text){made->in.data + bytes, made->in.bytes - bytes};
    converter->taken += (int64_t)bytes;
}

/* Notes what was made at `out`, which counts the lines for messages, and drops a byte order mark. */
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

/* Replaces so many bytes that the encoding does not have. */
static void replace(struct sw_text_converter *converter, struct made *made, size_t bytes) {
    memcpy(made->out, replacement.data, replacement.bytes);
    put(converter, made, replacement.bytes);
    take(converter, made, bytes < made->in.bytes ? bytes : made->in.bytes);
    converter->replaced++;
}

/* Returns so many of the bytes at most, without the beginning of a character at their end. */
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

/* Calls iconv, without input to get what it holds back. Returns the errno of its failure, or 0. */
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

sw_status sw_text_convert(struct sw_text_converter *converter, const struct sw_text_piece *piece, size_t *out_taken,
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

bool sw_text_converter_copies(const struct sw_text_converter *converter) {
    return converter->iconv == no_iconv && !converter->coding.lossy;
}

void sw_text_converter_go_to(struct sw_text_converter *converter, int64_t byte, int64_t line) {
    converter->taken = byte;
    converter->line = line;
}

int64_t sw_text_converter_replaced(const struct sw_text_converter *converter) {
    return converter->replaced;
}
