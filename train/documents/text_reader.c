#include "train/documents/text_reader.h"

#include "core/json.h"
#include "core/log.h"
#include "train/documents/chat_json.h"
#include "train/documents/chat_template.h"
#include "train/documents/text_file.h"
#include "train/documents/text_inputs.h"
#include "train/files/files.h"
#include "train/text/utf8.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* A line of JSON that is longer is no document but a mistake, and would fill the memory. */
enum { CHUNK_BYTES = 1 << 16, MOST_LINE_BYTES = 64 << 20, MOST_SKIPS_SAID = 5 };

struct sw_text_reader {
    const char *const *files;
    int file_count, next_file;
    struct sw_text_rules rules;
    struct sw_text_file *file; /* NULL: none is open */
    const char *path;
    bool json;               /* its lines are JSON */
    char chunk[CHUNK_BYTES]; /* of the file, of which the bytes from chunk_at to chunk_end are still to be cut in lines
                              */
    size_t chunk_at, chunk_end;
    struct sw_text_buffer line; /* the one read last, with its end */
    bool too_long;              /* it has more than MOST_LINE_BYTES, and the rest was left out */
    int64_t line_number, skipped;
    int64_t replaced;            /* in the files that were closed */
    int64_t taken;               /* bytes of the open file that were cut in lines */
    struct sw_chat_style chat;   /* chosen when the first chat is read */
    bool chat_failed;            /* the model has no chat format */
    int64_t bytes, bytes_before; /* of all files, and of those before the open one, as they lie on the drive */
};

static sw_status check_file(const char *path, int64_t *bytes) {
    struct stat info;
    if (strcmp(path, SW_TEXT_STDIN) == 0)
        return SW_OK;
    if (stat(path, &info) != 0)
        return sw_fail(SW_ERR_ARG, "%s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return sw_fail(SW_ERR_ARG, "%s is not a regular file; name the files in it", path);
    if (sw_path_ends_in(path, ".json"))
        return sw_fail(SW_ERR_ARG, "%s: a list of JSON becomes lines by: jq -c '.[]' %s > %.*s.jsonl", path, path,
                       (int)(strlen(path) - strlen(".json")), path);
    if (!sw_text_is_readable(path))
        return sw_fail(SW_ERR_ARG, "%s: text files end in .txt, .md or .jsonl, or these with .gz or .zst", path);
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
    sw_text_file_close(reader->file);
    sw_chat_style_release(&reader->chat);
    free(reader->line.data);
    free(reader);
}

int64_t sw_text_reader_bytes(const struct sw_text_reader *reader) {
    return reader->bytes;
}

int64_t sw_text_reader_skipped(const struct sw_text_reader *reader) {
    return reader->skipped;
}

int64_t sw_text_reader_replaced(const struct sw_text_reader *reader) {
    return reader->replaced + (reader->file != NULL ? sw_text_file_replaced(reader->file) : 0);
}

const struct sw_chat_format *sw_text_reader_chat_format(const struct sw_text_reader *reader) {
    return reader->chat.format;
}

int64_t sw_text_reader_bytes_read(const struct sw_text_reader *reader) {
    return reader->bytes_before + (reader->file != NULL ? sw_text_file_offset(reader->file) : 0);
}

static sw_status fill_chunk(struct sw_text_reader *reader) {
    reader->chunk_at = 0;
    return sw_text_file_read(reader->file, reader->chunk, CHUNK_BYTES, &reader->chunk_end);
}

/* Reads the next line of the open file, with its end; *out_end is set where there is none. */
static sw_status read_line(struct sw_text_reader *reader, bool *out_end) {
    const size_t most = reader->json ? MOST_LINE_BYTES : SIZE_MAX;
    reader->line.bytes = 0;
    reader->too_long = false;
    for (bool whole = false; !whole;) {
        if (reader->chunk_at == reader->chunk_end)
            SW_TRY(fill_chunk(reader));
        const char *begin = reader->chunk + reader->chunk_at;
        const size_t left = reader->chunk_end - reader->chunk_at;
        const char *end = memchr(begin, '\n', left);
        const size_t taken = end == NULL ? left : (size_t)(end - begin) + 1;
        reader->too_long |= reader->line.bytes > most - taken;
        if (!reader->too_long)
            SW_TRY(sw_text_buffer_append(&reader->line, (struct sw_text){begin, taken}));
        reader->chunk_at += taken;
        reader->taken += (int64_t)taken;
        whole = end != NULL || left == 0;
    }
    *out_end = reader->line.bytes == 0;
    reader->line_number += !*out_end;
    return SW_OK;
}

static struct sw_text line_without_end(const struct sw_text_reader *reader) {
    struct sw_text line = sw_text_of_buffer(&reader->line);
    while (line.bytes > 0 && (line.data[line.bytes - 1] == '\n' || line.data[line.bytes - 1] == '\r'))
        line.bytes--;
    return line;
}

static bool is_blank(struct sw_text text) {
    for (size_t i = 0; i < text.bytes; i++)
        if (strchr(" \t\r\n", text.data[i]) == NULL || text.data[i] == 0)
            return false;
    return true;
}

static sw_status append_field(const struct sw_text_reader *reader, const json_t *object, const char *where,
                              struct sw_text_buffer *out) {
    const json_t *text = json_object_get(object, reader->rules.field);
    if (json_is_string(text))
        return sw_text_buffer_append(out, (struct sw_text){json_string_value(text), json_string_length(text)});
    if (json_object_get(object, "conversations") != NULL)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "%s has 'conversations'; chats are read as 'messages', each with 'role' and 'content'", where);
    return sw_fail(SW_ERR_ARG,
                   "%s has no text '%s', no 'messages' and no 'prompt' with 'completion'; --field names "
                   "the member that has the text",
                   where, reader->rules.field);
}

static sw_status choose_chat_format(struct sw_text_reader *reader) {
    const struct sw_text_rules *rules = &reader->rules;
    if (reader->chat.format != NULL)
        return SW_OK;
    reader->chat_failed = true;
    SW_TRY(sw_chat_style_open(rules->model, rules->chat_format, &reader->chat));
    SW_TRY(sw_chat_check_tokenizer(&reader->chat, rules->tokenizer));
    reader->chat_failed = false;
    return SW_OK;
}

static sw_status append_chat(struct sw_text_reader *reader, const json_t *object, const char *where,
                             struct sw_marked_text *out) {
    if (reader->rules.tokenizer == NULL)
        return sw_fail(SW_ERR_ARG, "%s is a chat, which needs a model with a tokenizer.json", where);
    SW_TRY(choose_chat_format(reader));
    return sw_chat_append_json(object, &reader->chat, reader->rules.all_loss, where, out);
}

static sw_status append_document(struct sw_text_reader *reader, const json_t *object, const char *where,
                                 struct sw_marked_text *out) {
    if (!json_is_object(object))
        return sw_fail(SW_ERR_ARG, "%s is a list; each line is an object, such as {\"messages\": [...]}", where);
    if (json_object_get(object, reader->rules.field) == NULL)
        switch (sw_json_document_of(object)) {
        case SW_JSON_CHAT: return append_chat(reader, object, where, out);
        case SW_JSON_COMPLETION: return sw_completion_append_json(object, reader->rules.all_loss, where, out);
        case SW_JSON_TEXT: break;
        }
    return append_field(reader, object, where, &out->text);
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

static sw_status append_json(struct sw_text_reader *reader, struct sw_text line, struct sw_marked_text *out) {
    char where[PATH_MAX + 32];
    (void)snprintf(where, sizeof where, "%s:%lld", reader->path, (long long)reader->line_number);
    if (reader->too_long)
        return sw_fail(SW_ERR_ARG, "%s is longer than %d MiB; a document of a .jsonl file is one line of at most that",
                       where, MOST_LINE_BYTES >> 20);
    json_t *object;
    SW_TRY(check_utf8(line, where));
    const struct sw_json_source source = {
        .text = line.data, .bytes = line.bytes, .name = where, .bad = SW_ERR_ARG, .kind = SW_JSON_DATA};
    SW_TRY(sw_json_decode(source, &object));
    const sw_status status = append_document(reader, object, where, out);
    json_decref(object);
    return status;
}

/* Leaves a line out that is wrong, and says why of the first few. */
static void skip_line(struct sw_text_reader *reader, sw_status status, struct sw_marked_text *out) {
    if (reader->skipped++ < MOST_SKIPS_SAID)
        sw_log_warn("left out: %s", sw_error_message(status));
    sw_error_clear();
    sw_marked_text_clear(out);
}

/* Reads one document of a file of text. *out_end: the file ended, perhaps behind a document. */
static sw_status read_text(struct sw_text_reader *reader, struct sw_text_buffer *out, bool *out_end) {
    const char *separator = reader->rules.separator;
    for (;;) {
        SW_TRY(read_line(reader, out_end));
        if (*out_end)
            return SW_OK;
        const struct sw_text line = line_without_end(reader);
        if (reader->rules.lines)
            return sw_text_buffer_append(out, line);
        if (separator != NULL && line.bytes == strlen(separator) && memcmp(line.data, separator, line.bytes) == 0)
            return SW_OK;
        SW_TRY(sw_text_buffer_append(out, sw_text_of_buffer(&reader->line)));
    }
}

static sw_status read_json(struct sw_text_reader *reader, struct sw_marked_text *out, bool *out_end) {
    SW_TRY(read_line(reader, out_end));
    const struct sw_text line = line_without_end(reader);
    if (*out_end || (!reader->too_long && is_blank(line)))
        return SW_OK;
    /* A model without a chat format fails every chat, so the first one ends the reading. */
    const sw_status status = append_json(reader, line, out);
    const bool is_bad = status == SW_ERR_ARG || status == SW_ERR_UNSUPPORTED;
    if (!is_bad || !reader->rules.skip_bad || reader->chat_failed)
        return status;
    skip_line(reader, status, out);
    return SW_OK;
}

static sw_status open_next(struct sw_text_reader *reader) {
    const char *path = reader->files[reader->next_file++];
    reader->line_number = reader->taken = 0;
    reader->chunk_at = reader->chunk_end = 0;
    SW_TRY(sw_text_file_open(path, &reader->rules.coding, &reader->file));
    reader->path = sw_text_file_name(reader->file);
    reader->json = sw_text_is_json(path);
    /* Standard input has lines of JSON where it begins with an object. */
    if (strcmp(path, SW_TEXT_STDIN) == 0)
        SW_TRY(sw_text_file_begins_with(reader->file, '{', &reader->json));
    if (reader->json)
        sw_text_file_pass(reader->file); /* each line is checked by itself, and may be left out */
    return SW_OK;
}

static void close_file(struct sw_text_reader *reader) {
    reader->bytes_before += sw_text_file_offset(reader->file);
    reader->replaced += sw_text_file_replaced(reader->file);
    sw_text_file_close(reader->file);
    reader->file = NULL;
}

sw_status sw_text_reader_next(struct sw_text_reader *reader, struct sw_marked_text *out, bool *out_end) {
    *out_end = false;
    sw_marked_text_clear(out);
    while (out->text.bytes == 0) {
        bool file_ended;
        if (reader->file == NULL && reader->next_file == reader->file_count) {
            *out_end = true;
            return SW_OK;
        }
        if (reader->file == NULL)
            SW_TRY(open_next(reader));
        SW_TRY(reader->json ? read_json(reader, out, &file_ended) : read_text(reader, &out->text, &file_ended));
        if (file_ended)
            close_file(reader);
    }
    return SW_OK;
}

struct sw_text_position sw_text_reader_position(const struct sw_text_reader *reader) {
    const bool is_open = reader->file != NULL;
    return (struct sw_text_position){.file = reader->next_file - (is_open ? 1 : 0),
                                     .offset = is_open ? reader->taken : 0,
                                     .line = is_open ? reader->line_number : 0,
                                     .skipped = reader->skipped,
                                     .replaced = reader->replaced,
                                     .has_chats = reader->chat.format != NULL};
}

sw_status sw_text_reader_go_to(struct sw_text_reader *reader, const struct sw_text_position *position) {
    reader->skipped = position->skipped;
    reader->replaced = position->replaced;
    if (position->has_chats)
        SW_TRY(choose_chat_format(reader));
    for (; reader->next_file < position->file && reader->next_file < reader->file_count; reader->next_file++)
        SW_TRY(check_file(reader->files[reader->next_file], &reader->bytes_before));
    if (reader->next_file == reader->file_count || position->line == 0)
        return SW_OK;
    SW_TRY(open_next(reader));
    reader->taken = position->offset;
    reader->line_number = position->line;
    return sw_text_file_skip(reader->file, position->offset, position->line);
}
