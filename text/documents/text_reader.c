#include "text/documents/text_reader.h"

#include "core/files/files.h"
#include "core/files/json_file.h"
#include "core/files/model_files.h"
#include "core/json.h"
#include "core/log.h"
#include "core/size.h"
#include "text/documents/json_document.h"
#include "text/documents/text_file.h"
#include "text/documents/text_inputs.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A line of plain text is read in parts of LINE_BYTES. */
enum { CHUNK_BYTES = 1 << 16, LINE_BYTES = 1 << 20 };

struct sw_text_pieces {
    struct sw_text_file *file;
    sw_text_form form;
    char chunk[CHUNK_BYTES]; /* bytes [chunk_at, chunk_end) are still to be cut */
    size_t chunk_at, chunk_end;
    struct sw_text_buffer piece;
    bool too_long, ended; /* ended: a list was closed, or its file has ended */
    bool unended;         /* the piece is part of a line that continues */
    struct sw_text_pieces_position at;
};

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* The first character that is not a space, and the next one in its line; 0: there is none. */
struct beginning {
    char first, second;
    bool alone; /* the first has its line to itself */
};

/* Examines a beginning. Returns false if it needs more text. */
static bool look_at(struct sw_text text, struct beginning *out) {
    size_t i = 0;
    while (i < text.bytes && is_space(text.data[i]))
        i++;
    *out = (struct beginning){0};
    if (i == text.bytes)
        return false;
    out->first = text.data[i++];
    if (out->first != '{' && out->first != '[')
        return true;
    for (; i < text.bytes && is_space(text.data[i]); i++)
        out->alone |= text.data[i] == '\n';
    out->second = i < text.bytes ? text.data[i] : 0;
    return out->second != 0;
}

static sw_status find_beginning(struct sw_text_file *file, struct beginning *out) {
    struct sw_text ahead = {0};
    for (size_t before = 0;; before = ahead.bytes) {
        SW_TRY(sw_text_file_peek(file, &ahead));
        if (look_at(ahead, out) || ahead.bytes == before)
            return SW_OK;
    }
}

static sw_text_form form_of(struct beginning b, bool is_json) {
    if (b.first == '[' && (is_json || b.second == '{' || b.second == '"'))
        return SW_TEXT_JSON_LIST;
    if (b.first == '{')
        return b.alone ? SW_TEXT_JSON_VALUES : SW_TEXT_JSON_LINES;
    return is_json ? SW_TEXT_JSON_LINES : SW_TEXT_PLAIN;
}

static sw_status find_form(struct sw_text_pieces *pieces, const char *path) {
    struct beginning beginning;
    pieces->form = SW_TEXT_PLAIN;
    if (!sw_text_is_json(path) && sw_text_is_readable(path))
        return SW_OK;
    SW_TRY(find_beginning(pieces->file, &beginning));
    pieces->form = form_of(beginning, sw_text_is_json(path));
    return SW_OK;
}

static void text_pieces_close(struct sw_text_pieces *pieces);

/* Opens a file (text_file.h). A JSON name (text_inputs.h) decides; standard input and pipes are JSON if they begin like
 * objects, or like a list of objects or strings. The caller closes the pieces. */
static sw_status text_pieces_open(const char *path, const struct sw_text_coding *coding, struct sw_text_pieces **out) {
    struct sw_text_pieces *pieces = calloc(1, sizeof *pieces);
    if (pieces == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read %s", path);
    sw_status status = sw_text_file_open(path, coding, &pieces->file);
    if (status == SW_OK)
        status = find_form(pieces, path);
    if (status != SW_OK) {
        text_pieces_close(pieces);
        return status;
    }
    if (pieces->form != SW_TEXT_PLAIN)
        sw_text_file_pass(pieces->file); /* each value is checked by itself, and may be left out */
    *out = pieces;
    return SW_OK;
}

static void text_pieces_close(struct sw_text_pieces *pieces) {
    if (pieces == NULL)
        return;
    sw_text_file_close(pieces->file);
    free(pieces->piece.data);
    free(pieces);
}

/* Makes sure that a byte is ahead, unless the file has ended. */
static sw_status fill(struct sw_text_pieces *pieces, bool *out_end) {
    if (pieces->chunk_at == pieces->chunk_end) {
        pieces->chunk_at = 0;
        SW_TRY(sw_text_file_read(pieces->file, pieces->chunk, CHUNK_BYTES, &pieces->chunk_end));
    }
    *out_end = pieces->chunk_at == pieces->chunk_end;
    return SW_OK;
}

/* Takes bytes from the chunk, as part of the piece. */
static sw_status take(struct sw_text_pieces *pieces, size_t bytes) {
    const size_t most = pieces->form == SW_TEXT_PLAIN ? SIZE_MAX : SW_TEXT_MOST_JSON_BYTES;
    const char *begin = pieces->chunk + pieces->chunk_at;
    pieces->too_long |= pieces->piece.bytes > most - bytes;
    pieces->chunk_at += bytes;
    pieces->at.offset += (int64_t)bytes;
    return pieces->too_long ? SW_OK : sw_text_buffer_append(&pieces->piece, (struct sw_text){begin, bytes});
}

/* Reads the next line, with its end. */
static sw_status read_line(struct sw_text_pieces *pieces, bool *out_end) {
    bool has_end = false;
    const size_t most = pieces->form == SW_TEXT_PLAIN ? LINE_BYTES : SIZE_MAX;
    SW_TRY(fill(pieces, out_end));
    pieces->unended = false;
    for (bool end = *out_end; !end && !has_end && !pieces->unended;) {
        const char *begin = pieces->chunk + pieces->chunk_at;
        const size_t left = pieces->chunk_end - pieces->chunk_at;
        const char *line_end = memchr(begin, '\n', left);
        has_end = line_end != NULL;
        SW_TRY(take(pieces, has_end ? (size_t)(line_end - begin) + 1 : left));
        SW_TRY(fill(pieces, &end));
        pieces->unended = !has_end && !end && pieces->piece.bytes >= most;
    }
    pieces->at.lines += !*out_end && !pieces->unended;
    return SW_OK;
}

static bool is_blank(struct sw_text text) {
    for (size_t i = 0; i < text.bytes; i++)
        if (!is_space(text.data[i]))
            return false;
    return true;
}

/* Reads the next line that is not blank. */
static sw_status read_json_line(struct sw_text_pieces *pieces, bool *out_end) {
    do {
        pieces->piece.bytes = 0;
        SW_TRY(read_line(pieces, out_end));
    } while (!*out_end && !pieces->too_long && is_blank(sw_text_of_buffer(&pieces->piece)));
    return SW_OK;
}

/* Skips spaces. *out is the next character, which is not taken; 0: the file ends. */
static sw_status next_character(struct sw_text_pieces *pieces, char *out) {
    for (bool end;; pieces->chunk_at++, pieces->at.offset++) {
        SW_TRY(fill(pieces, &end));
        *out = end ? '\0' : pieces->chunk[pieces->chunk_at];
        if (end || !is_space(*out))
            return SW_OK;
        pieces->at.lines += *out == '\n';
    }
}

static void pass(struct sw_text_pieces *pieces) {
    pieces->chunk_at++;
    pieces->at.offset++;
}

/* The state of scanning a JSON value. */
struct cut {
    int64_t levels;
    bool in_string, escaped;
};
typedef enum { GOES_ON, ENDS_BEHIND, ENDS_BEFORE } cut_end;

/* Scans one more character. Returns whether the value ends with it, or had ended before it. */
static cut_end cut_at(struct cut *cut, char c) {
    if (cut->in_string) {
        cut->in_string = cut->escaped || c != '"';
        cut->escaped = !cut->escaped && c == '\\';
        return cut->in_string || cut->levels > 0 ? GOES_ON : ENDS_BEHIND;
    }
    if (c == '"') {
        cut->in_string = true;
    } else if (c == '{' || c == '[') {
        cut->levels++;
    } else if (c == '}' || c == ']') {
        if (cut->levels == 0)
            return ENDS_BEFORE;
        return --cut->levels == 0 ? ENDS_BEHIND : GOES_ON;
    } else if (cut->levels == 0 && (is_space(c) || c == ',')) {
        return ENDS_BEFORE;
    }
    return GOES_ON;
}

static sw_status read_value(struct sw_text_pieces *pieces) {
    struct cut cut = {0};
    cut_end found = GOES_ON;
    for (bool end = false; !end && found == GOES_ON;) {
        const char *begin = pieces->chunk + pieces->chunk_at;
        const size_t left = pieces->chunk_end - pieces->chunk_at;
        size_t bytes = 0;
        while (bytes < left && (found = cut_at(&cut, begin[bytes])) == GOES_ON)
            pieces->at.lines += begin[bytes++] == '\n';
        SW_TRY(take(pieces, bytes + (found == ENDS_BEHIND)));
        SW_TRY(fill(pieces, &end));
    }
    return SW_OK;
}

static sw_status fail_list(struct sw_text_pieces *pieces, const char *what) {
    return sw_fail(SW_ERR_CORRUPT, "%s:%lld: %s", sw_text_file_name(pieces->file), (long long)pieces->at.lines + 1,
                   what);
}

/* Skips what separates two values of a list. *out_end: the list has ended. */
static sw_status pass_between(struct sw_text_pieces *pieces, bool is_first, bool *out_end) {
    char next;
    SW_TRY(next_character(pieces, &next));
    *out_end = next == ']';
    if (*out_end) {
        pass(pieces);
        SW_TRY(next_character(pieces, &next));
        return next == '\0' ? SW_OK
                            : fail_list(pieces, "something follows the list; a file of JSON is one list, or an object "
                                                "after the other");
    }
    if (is_first && next != '\0')
        return SW_OK;
    if (next != ',')
        return fail_list(pieces, next == '\0' ? "the file ends within its list: it was cut off"
                                              : "the list has no comma between two values");
    pass(pieces);
    return SW_OK;
}

static sw_status read_list(struct sw_text_pieces *pieces, bool *out_end) {
    const bool is_first = pieces->at.offset == 0;
    char next;
    *out_end = pieces->ended;
    if (pieces->ended)
        return SW_OK;
    if (is_first) {
        SW_TRY(next_character(pieces, &next));
        pass(pieces);
    }
    SW_TRY(pass_between(pieces, is_first, out_end));
    pieces->ended = *out_end;
    if (*out_end)
        return SW_OK;
    SW_TRY(next_character(pieces, &next));
    if (next == '\0' || next == ',' || next == ']' || next == '}')
        return fail_list(pieces, next == '\0' ? "the file ends within its list: it was cut off"
                                              : "the list lacks a value between two commas or at its end");
    return SW_OK;
}

static sw_status read_values(struct sw_text_pieces *pieces, bool *out_end) {
    char next;
    SW_TRY(next_character(pieces, &next));
    *out_end = next == '\0';
    return next == ',' || next == ']' || next == '}'
               ? fail_list(pieces, "an object is expected; a file of JSON is one list, or an object after the other")
               : SW_OK;
}

/* Reads the next piece; *out_end is set if there is none. SW_ERR_CORRUPT: a list is broken between its values. */
static sw_status text_pieces_next(struct sw_text_pieces *pieces, struct sw_text_piece_read *out, bool *out_end) {
    const bool by_value = pieces->form == SW_TEXT_JSON_LIST || pieces->form == SW_TEXT_JSON_VALUES;
    pieces->piece.bytes = 0;
    pieces->too_long = false;
    if (by_value) {
        SW_TRY(pieces->form == SW_TEXT_JSON_LIST ? read_list(pieces, out_end) : read_values(pieces, out_end));
        out->line = pieces->at.lines + 1;
        if (!*out_end)
            SW_TRY(read_value(pieces));
    } else {
        SW_TRY(pieces->form == SW_TEXT_PLAIN ? read_line(pieces, out_end) : read_json_line(pieces, out_end));
        out->line = pieces->at.lines;
    }
    pieces->at.form = pieces->form;
    out->text = sw_text_of_buffer(&pieces->piece);
    out->too_long = pieces->too_long;
    out->unended = pieces->unended;
    return SW_OK;
}

/* Goes to a position, before anything is read. */
static sw_status text_pieces_go_to(struct sw_text_pieces *pieces, const struct sw_text_pieces_position *position) {
    if (position->form == 0)
        return SW_OK;
    pieces->form = (sw_text_form)position->form;
    pieces->at = *position;
    return sw_text_file_skip(pieces->file, position->offset, position->lines);
}

static sw_text_form text_pieces_form(const struct sw_text_pieces *pieces) {
    return pieces->form;
}

/* Returns the file being read (text_file.h). */
static struct sw_text_file *text_pieces_file(struct sw_text_pieces *pieces) {
    return pieces->file;
}

enum { MOST_SKIPS_SAID = 5, MOST_CONFIG_BYTES = 64 << 20, PART_BYTES = 1 << 20 };

struct sw_text_reader {
    const char *const *files;
    int file_count, next_file;
    struct sw_text_rules rules;
    struct sw_text_pieces *pieces; /* of the open file; NULL: none */
    const char *path;
    int64_t skipped;
    int64_t empty;             /* documents without text, and empty files */
    int64_t crlf_files;        /* text files with lines that end in CR LF; one of them is reported */
    bool crlf;                 /* the open file has such lines */
    int64_t replaced;          /* in files already closed */
    struct sw_chat_style chat; /* chosen when the first chat is read */
    bool chat_failed;          /* the model has no chat format */
    enum { NOT_LOOKED, NO_TEMPLATE, HAS_TEMPLATE } template;
    struct sw_marked_text rejected; /* pairs: the document after the one that was read last */
    bool has_rejected;
    struct sw_json_passed passed; /* members of objects that were passed over */
    struct sw_text_buffer rest;   /* of the document, after the part that was read last */
    bool within;                  /* more of a document follows */
    int64_t bytes, bytes_before;  /* size of all files, and of those before the open one, on the drive */
};

static sw_status check_file(const char *path, int64_t *bytes) {
    struct stat info;
    if (strcmp(path, SW_TEXT_STDIN) == 0)
        return SW_OK;
    if (stat(path, &info) != 0) {
        const int error = errno;
        SW_TRY(error == ENOENT ? sw_hub_refuse_data(path) : SW_OK);
        return sw_fail(SW_ERR_ARG, "%s: %s", path, strerror(error));
    }
    if (S_ISFIFO(info.st_mode))
        return SW_OK;
    if (!S_ISREG(info.st_mode))
        return sw_fail(SW_ERR_ARG, "%s is not a regular file; name the files in it", path);
    if (!sw_text_is_readable(path))
        SW_TRY(sw_text_refuse_foreign(path, (struct sw_text){0}));
    if (!sw_text_is_readable(path))
        return sw_fail(SW_ERR_ARG, "%s: text files end in .txt, .md, .jsonl or .json, or these with .gz or .zst", path);
    *bytes += info.st_size;
    return SW_OK;
}

sw_status sw_text_reader_open(const char *const *files, int file_count, const struct sw_text_rules *rules,
                              struct sw_text_reader **out) {
    struct sw_text_reader *reader = calloc(1, sizeof *reader);
    if (reader == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read text");
    *reader = (struct sw_text_reader){.files = files, .file_count = file_count, .rules = *rules};
    for (int i = 0; i < file_count; i++) {
        const sw_status status = check_file(files[i], &reader->bytes);
        if (status != SW_OK) {
            sw_text_reader_close(reader);
            return status;
        }
    }
    *out = reader;
    return SW_OK;
}

void sw_text_reader_close(struct sw_text_reader *reader) {
    if (reader == NULL)
        return;
    text_pieces_close(reader->pieces);
    sw_chat_style_release(&reader->chat);
    sw_json_passed_release(&reader->passed);
    sw_marked_text_release(&reader->rejected);
    free(reader->rest.data);
    free(reader);
}

int64_t sw_text_reader_bytes(const struct sw_text_reader *reader) {
    return reader->bytes;
}

int64_t sw_text_reader_skipped(const struct sw_text_reader *reader) {
    return reader->skipped;
}

int64_t sw_text_reader_replaced(const struct sw_text_reader *reader) {
    return reader->replaced + (reader->pieces != NULL ? sw_text_file_replaced(text_pieces_file(reader->pieces)) : 0);
}

void sw_text_reader_say_passed(const struct sw_text_reader *reader) {
    sw_json_passed_say(&reader->passed);
    if (reader->empty > 0)
        sw_log_warn("%s without text %s left out", SW_COUNT(reader->empty, "document"),
                    reader->empty == 1 ? "was" : "were");
    if (reader->crlf_files > 0)
        sw_log_info("lines of %s of text end in CR LF, and both are learnt; dos2unix removes the CR",
                    SW_COUNT(reader->crlf_files, "file"));
    if (reader->template == NO_TEMPLATE)
        sw_log_info("lines with 'instruction' are written in Alpaca's prompt, as the model has no chat template");
}

const struct sw_chat_style *sw_text_reader_chat_style(const struct sw_text_reader *reader) {
    return reader->chat.parsed != NULL ? &reader->chat : NULL;
}

int64_t sw_text_reader_bytes_read(const struct sw_text_reader *reader) {
    return reader->bytes_before + (reader->pieces != NULL ? sw_text_file_offset(text_pieces_file(reader->pieces)) : 0);
}

static struct sw_text without_end(struct sw_text line) {
    while (line.bytes > 0 && (line.data[line.bytes - 1] == '\n' || line.data[line.bytes - 1] == '\r'))
        line.bytes--;
    return line;
}

static sw_status choose_chat_style(struct sw_text_reader *reader) {
    const struct sw_text_rules *rules = &reader->rules;
    if (reader->chat.parsed != NULL)
        return SW_OK;
    reader->chat_failed = true;
    SW_TRY(sw_chat_style_open(rules->model, rules->chat_format, rules->tokenizer, &reader->chat));
    reader->chat_failed = false;
    return SW_OK;
}

/* Checks once whether the model's folder has a chat template. */
static sw_status look_for_template(struct sw_text_reader *reader) {
    char path[PATH_MAX];
    json_t *config;
    bool is_there;
    if (reader->template != NOT_LOOKED)
        return SW_OK;
    reader->template = NO_TEMPLATE;
    SW_TRY(sw_model_file_find(reader->rules.model, "chat_template.jinja", path, &is_there));
    if (is_there)
        reader->template = HAS_TEMPLATE;
    SW_TRY(sw_model_file_find(reader->rules.model, "tokenizer_config.json", path, &is_there));
    if (!is_there)
        return SW_OK;
    SW_TRY(sw_json_read_file(path, MOST_CONFIG_BYTES, SW_ERR_ARG, &config));
    if (sw_json_member(config, "chat_template") != NULL)
        reader->template = HAS_TEMPLATE;
    json_decref(config);
    return SW_OK;
}

static sw_status chat_style(void *context, const char *where, bool needed, const struct sw_chat_style **out) {
    struct sw_text_reader *reader = context;
    const bool has_tokenizer = reader->rules.tokenizer != NULL;
    *out = NULL;
    if (!has_tokenizer)
        return needed ? sw_fail(SW_ERR_ARG, "%s is a chat, which needs a model with a tokenizer.json", where) : SW_OK;
    if (!needed && reader->chat.parsed == NULL && strcmp(reader->rules.chat_format, "auto") == 0) {
        SW_TRY(look_for_template(reader));
        if (reader->template == NO_TEMPLATE)
            return SW_OK;
    }
    SW_TRY(choose_chat_style(reader));
    *out = &reader->chat;
    return SW_OK;
}

static sw_status check_utf8(struct sw_text line, const char *where) {
    const size_t valid = sw_utf8_valid_bytes(line);
    if (valid == line.bytes)
        return SW_OK;
    return sw_fail(SW_ERR_ARG,
                   "%s is not UTF-8: there is 0x%02X at byte %zu of the line; say what it is, such as --encoding "
                   "latin-1 or gbk, or replace such bytes by U+FFFD with --lossy",
                   where, (unsigned char)line.data[valid], valid);
}

/* Appends the document of an object, or both documents of a pair: the second is kept for the next call. */
static sw_status append_object(struct sw_text_reader *reader, const json_t *object, const char *where,
                               struct sw_marked_text *out) {
    struct sw_json_rules rules = {
        .field = reader->rules.field, .all_loss = reader->rules.all_loss, .chat_style = chat_style, .context = reader};
    if (!reader->rules.pairs)
        return sw_json_append_document(object, &rules, where, &reader->passed, out);
    rules.pair = SW_JSON_CHOSEN;
    SW_TRY(sw_json_append_document(object, &rules, where, &reader->passed, out));
    rules.pair = SW_JSON_REJECTED;
    sw_marked_text_clear(&reader->rejected);
    SW_TRY(sw_json_append_document(object, &rules, where, &reader->passed, &reader->rejected));
    reader->has_rejected = out->chosen = true;
    return SW_OK;
}

static sw_status append_json(struct sw_text_reader *reader, const struct sw_text_piece_read *piece,
                             struct sw_marked_text *out) {
    char where[PATH_MAX + 32];
    (void)snprintf(where, sizeof where, "%s:%lld", reader->path, (long long)piece->line);
    if (piece->too_long)
        return sw_fail(SW_ERR_ARG, "%s is longer than %d MiB, which is the most that a document of JSON may have",
                       where, SW_TEXT_MOST_JSON_BYTES >> 20);
    SW_TRY(check_utf8(piece->text, where));
    json_t *object;
    const struct sw_json_source source = {
        .text = piece->text.data, .bytes = piece->text.bytes, .name = where, .bad = SW_ERR_ARG, .kind = SW_JSON_DATA};
    SW_TRY(sw_json_decode(source, &object));
    const sw_status status = append_object(reader, object, where, out);
    json_decref(object);
    out->line = reader->rejected.line = piece->line;
    return status;
}

void sw_text_reader_leave_out(struct sw_text_reader *reader, sw_status status) {
    if (reader->skipped++ < MOST_SKIPS_SAID)
        sw_log_warn("left out: %s", sw_error_message(status));
    sw_error_clear();
}

/* Leaves out a line that is wrong. Logs the reason for the first few. */
static void skip_line(struct sw_text_reader *reader, sw_status status, struct sw_marked_text *out) {
    sw_text_reader_leave_out(reader, status);
    sw_marked_text_clear(out);
}

/* Tells whether a line ends in CR LF. */
static bool ends_in_crlf(struct sw_text line) {
    return line.bytes >= 2 && memcmp(line.data + line.bytes - 2, "\r\n", 2) == 0;
}

/* Refuses a document that is too long, with the command that divides it. The token file that the command makes is data
 * for every other command. */
static sw_status fail_long(const struct sw_text_reader *reader) {
    const struct sw_text_rules *rules = &reader->rules;
    const int most_mib = SW_TEXT_MOST_PART_BYTES >> 20;
    const char *why = rules->parts != SW_TEXT_WHOLE ? " without a space or the end of a line between words" : "";
    if (rules->lines)
        return sw_fail(SW_ERR_ARG,
                       "%s has a line of more than %d MiB%s, which is the most of a document; divide the line",
                       reader->path, most_mib, why);
    return sw_fail(SW_ERR_ARG,
                   "%s has a document of more than %d MiB%s, which is the most; divide it with `spillway tokenize "
                   "--model %s --data %s --lines --out lines.bin`, or with --separator LINE in the place of --lines, "
                   "and give train or eval lines.bin in its place",
                   reader->path, most_mib, why, rules->model, reader->files[reader->next_file - 1]);
}

/* Cuts what was read of a document; the rest stays for the next part. `from`: no cut is before it. *out_cut: a place to
 * cut was found. */
static sw_status cut_part(struct sw_text_reader *reader, size_t from, struct sw_text_buffer *out, bool *out_cut) {
    const struct sw_text_cut at = sw_text_cut(sw_text_of_buffer(out), reader->rules.parts, from);
    *out_cut = at.end > 0;
    if (!*out_cut)
        return out->bytes > SW_TEXT_MOST_PART_BYTES ? fail_long(reader) : SW_OK;
    SW_TRY(sw_text_buffer_append(&reader->rest, (struct sw_text){out->data + at.begin, out->bytes - at.begin}));
    out->bytes = at.end;
    return SW_OK;
}

/* Tells whether a piece is a line that ends a document. */
static bool is_separator(const struct sw_text_reader *reader, const struct sw_text_piece_read *piece) {
    const char *separator = reader->rules.separator;
    const struct sw_text line = without_end(piece->text);
    return separator != NULL && line.bytes == strlen(separator) && memcmp(line.data, separator, line.bytes) == 0;
}

/* Reads a document, or a part of one, of a text file, after what is left of the part before. *out_end: the file ended,
 * perhaps after a document. */
static sw_status read_text(struct sw_text_reader *reader, struct sw_text_buffer *out, bool *out_end) {
    size_t searched = 0;
    bool begins_line = reader->rest.bytes == 0 || reader->rest.data[reader->rest.bytes - 1] == '\n';
    SW_TRY(sw_text_buffer_append(out, sw_text_of_buffer(&reader->rest)));
    reader->rest.bytes = 0;
    reader->within = false;
    for (;;) {
        struct sw_text_piece_read piece;
        SW_TRY(text_pieces_next(reader->pieces, &piece, out_end));
        if (*out_end)
            return SW_OK;
        reader->crlf |= !reader->rules.lines && ends_in_crlf(piece.text);
        if (!reader->rules.lines && begins_line && !piece.unended && is_separator(reader, &piece))
            return SW_OK;
        begins_line = !piece.unended;
        SW_TRY(sw_text_buffer_append(out, piece.text));
        if (reader->rules.lines && !piece.unended) {
            out->bytes = without_end(sw_text_of_buffer(out)).bytes;
            return SW_OK;
        }
        if (reader->rules.most_text_bytes > 0 && out->bytes >= reader->rules.most_text_bytes)
            return SW_OK;
        if (out->bytes - searched < PART_BYTES)
            continue;
        SW_TRY(cut_part(reader, searched, out, &reader->within));
        if (reader->within)
            return SW_OK;
        searched = out->bytes;
    }
}

static sw_status read_json(struct sw_text_reader *reader, struct sw_marked_text *out, bool *out_end) {
    struct sw_text_piece_read piece;
    SW_TRY(text_pieces_next(reader->pieces, &piece, out_end));
    if (*out_end)
        return SW_OK;
    /* Without a chat format every chat fails, so the first one ends the reading. */
    const sw_status status = append_json(reader, &piece, out);
    const bool is_bad = status == SW_ERR_ARG || status == SW_ERR_UNSUPPORTED;
    reader->empty += status == SW_OK && out->text.bytes == 0;
    if (!is_bad || !reader->rules.skip_bad || reader->chat_failed)
        return status;
    skip_line(reader, status, out);
    return SW_OK;
}

static sw_status open_next(struct sw_text_reader *reader) {
    const char *path = reader->files[reader->next_file++];
    SW_TRY(text_pieces_open(path, &reader->rules.coding, &reader->pieces));
    reader->path = sw_text_file_name(text_pieces_file(reader->pieces));
    return SW_OK;
}

static void close_file(struct sw_text_reader *reader) {
    const struct sw_text_file *file = text_pieces_file(reader->pieces);
    reader->empty += sw_text_file_offset(file) == 0;
    reader->crlf_files += reader->crlf;
    reader->crlf = false;
    reader->bytes_before += sw_text_file_offset(file);
    reader->replaced += sw_text_file_replaced(file);
    text_pieces_close(reader->pieces);
    reader->pieces = NULL;
}

sw_status sw_text_reader_next(struct sw_text_reader *reader, struct sw_marked_text *out, bool *out_end) {
    *out_end = false;
    sw_marked_text_clear(out);
    if (reader->has_rejected) {
        const struct sw_marked_text emptied = *out;
        *out = reader->rejected;
        reader->rejected = emptied;
        reader->has_rejected = false;
        out->from = reader->path;
        return SW_OK;
    }
    while (out->text.bytes == 0) {
        bool file_ended;
        if (reader->pieces == NULL && reader->next_file == reader->file_count) {
            *out_end = true;
            return SW_OK;
        }
        if (reader->pieces == NULL)
            SW_TRY(open_next(reader));
        const bool is_plain = text_pieces_form(reader->pieces) == SW_TEXT_PLAIN;
        if (is_plain && reader->rules.pairs)
            return sw_fail(SW_ERR_ARG, "%s is plain text; --dpo needs pairs in .jsonl or .json files", reader->path);
        out->continues = reader->within;
        SW_TRY(is_plain ? read_text(reader, &out->text, &file_ended) : read_json(reader, out, &file_ended));
        out->goes_on = reader->within;
        out->from = reader->path;
        if (is_plain && out->text.bytes > 0 && !out->continues && is_blank(sw_text_of_buffer(&out->text))) {
            reader->empty++;
            sw_marked_text_clear(out);
        }
        if (file_ended)
            close_file(reader);
    }
    return SW_OK;
}

struct sw_text_position sw_text_reader_position(const struct sw_text_reader *reader) {
    const bool is_open = reader->pieces != NULL;
    const struct sw_text_pieces_position nowhere = {0};
    return (struct sw_text_position){.file = reader->next_file - (is_open ? 1 : 0),
                                     .within = is_open ? reader->pieces->at : nowhere,
                                     .skipped = reader->skipped,
                                     .replaced = reader->replaced,
                                     .empty = reader->empty,
                                     .beside = reader->passed.beside,
                                     .has_chats = reader->chat.parsed != NULL};
}

sw_status sw_text_reader_go_to(struct sw_text_reader *reader, const struct sw_text_position *position) {
    reader->skipped = position->skipped;
    reader->replaced = position->replaced;
    reader->empty = position->empty;
    reader->passed.beside = position->beside;
    if (position->has_chats)
        SW_TRY(choose_chat_style(reader));
    for (; reader->next_file < position->file && reader->next_file < reader->file_count; reader->next_file++)
        SW_TRY(check_file(reader->files[reader->next_file], &reader->bytes_before));
    if (reader->next_file == reader->file_count || position->within.form == 0)
        return SW_OK;
    SW_TRY(open_next(reader));
    return text_pieces_go_to(reader->pieces, &position->within);
}
