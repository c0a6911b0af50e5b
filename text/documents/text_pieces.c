#include "text/documents/text_pieces.h"

#include "text/documents/text_file.h"
#include "text/documents/text_inputs.h"

#include <stdlib.h>
#include <string.h>

/* A line of plain text is read in parts of LINE_BYTES. */
enum { CHUNK_BYTES = 1 << 16, LINE_BYTES = 1 << 20 };

struct sw_text_pieces {
    struct sw_text_file *file;
    sw_text_form form;
    char chunk[CHUNK_BYTES]; /* the bytes from chunk_at to chunk_end are still to be cut */
    size_t chunk_at, chunk_end;
    struct sw_text_buffer piece;
    bool too_long, ended; /* ended: a list was closed, or its file is over */
    bool unended;         /* the piece is a part of a line, which goes on */
    struct sw_text_pieces_position at;
};

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* The first character that is no space, and the first behind it in its line; 0: there is none. */
struct beginning {
    char first, second;
    bool alone; /* the first has its line to itself */
};

/* Looks at a beginning; false asks for more text. */
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

sw_status sw_text_pieces_open(const char *path, const struct sw_text_coding *coding, struct sw_text_pieces **out) {
    struct sw_text_pieces *pieces = calloc(1, sizeof *pieces);
    if (pieces == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read %s", path);
    sw_status status = sw_text_file_open(path, coding, &pieces->file);
    if (status == SW_OK)
        status = find_form(pieces, path);
    if (status != SW_OK) {
        sw_text_pieces_close(pieces);
        return status;
    }
    if (pieces->form != SW_TEXT_PLAIN)
        sw_text_file_pass(pieces->file); /* each value is checked by itself, and may be left out */
    *out = pieces;
    return SW_OK;
}

void sw_text_pieces_close(struct sw_text_pieces *pieces) {
    if (pieces == NULL)
        return;
    sw_text_file_close(pieces->file);
    free(pieces->piece.data);
    free(pieces);
}

/* Makes sure that a byte is ahead, but at the file's end. */
static sw_status fill(struct sw_text_pieces *pieces, bool *out_end) {
    if (pieces->chunk_at == pieces->chunk_end) {
        pieces->chunk_at = 0;
        SW_TRY(sw_text_file_read(pieces->file, pieces->chunk, CHUNK_BYTES, &pieces->chunk_end));
    }
    *out_end = pieces->chunk_at == pieces->chunk_end;
    return SW_OK;
}

/* Takes bytes from the chunk, and keeps them as a part of the piece. */
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

/* Passes over spaces. *out is the character ahead, which is not taken; 0: the file ends. */
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

/* How far a value of JSON is. */
struct cut {
    int64_t levels;
    bool in_string, escaped;
};
typedef enum { GOES_ON, ENDS_BEHIND, ENDS_BEFORE } cut_end;

/* Takes in one more character of a value, and tells whether the value ends with it or was over before it. */
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

/* Passes what stands between two values of a list. *out_end: the list is over. */
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

sw_status sw_text_pieces_next(struct sw_text_pieces *pieces, struct sw_text_piece_read *out, bool *out_end) {
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

struct sw_text_pieces_position sw_text_pieces_position(const struct sw_text_pieces *pieces) {
    return pieces->at;
}

sw_status sw_text_pieces_go_to(struct sw_text_pieces *pieces, const struct sw_text_pieces_position *position) {
    if (position->form == 0)
        return SW_OK;
    pieces->form = (sw_text_form)position->form;
    pieces->at = *position;
    return sw_text_file_skip(pieces->file, position->offset, position->lines);
}

sw_text_form sw_text_pieces_form(const struct sw_text_pieces *pieces) {
    return pieces->form;
}

struct sw_text_file *sw_text_pieces_file(struct sw_text_pieces *pieces) {
    return pieces->file;
}
