#include "train/text/text_reader.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct sw_text_reader {
    const char *const *files;
    int file_count, next_file;
    struct sw_text_rules rules;
    FILE *file; /* NULL: none is open */
    const char *path;
    int64_t line_number;
    char *line; /* the one read last, from getline */
    size_t line_room;
    ssize_t line_bytes;
    int64_t bytes, bytes_read;
};

static bool ends_in(const char *path, const char *ending) {
    const size_t chars = strlen(path), ending_chars = strlen(ending);
    return chars > ending_chars && strcmp(path + chars - ending_chars, ending) == 0;
}

static sw_status check_file(const char *path, int64_t *bytes) {
    struct stat info;
    if (stat(path, &info) != 0)
        return sw_fail(SW_ERR_ARG, "%s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return sw_fail(SW_ERR_ARG, "%s is not a regular file; name the files in it", path);
    if (ends_in(path, ".gz") || ends_in(path, ".zst"))
        return sw_fail(SW_ERR_UNSUPPORTED, "%s is compressed; unpack it first", path);
    if (!ends_in(path, ".txt") && !ends_in(path, ".md") && !ends_in(path, ".jsonl"))
        return sw_fail(SW_ERR_ARG, "%s: text files end in .txt, .md or .jsonl", path);
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
    if (reader->file != NULL)
        fclose(reader->file);
    free(reader->line);
    free(reader);
}

int64_t sw_text_reader_bytes(const struct sw_text_reader *reader) {
    return reader->bytes;
}

int64_t sw_text_reader_bytes_read(const struct sw_text_reader *reader) {
    return reader->bytes_read;
}

/* Takes a byte order mark off the first line. Text of 16 bits begins with another one. */
static sw_status take_mark(struct sw_text_reader *reader) {
    const unsigned char *line = (const unsigned char *)reader->line;
    const bool two = reader->line_bytes >= 2;
    if (two && ((line[0] == 0xFF && line[1] == 0xFE) || (line[0] == 0xFE && line[1] == 0xFF)))
        return sw_fail(SW_ERR_ARG, "%s is UTF-16; write it as UTF-8: iconv -f UTF-16 -t UTF-8", reader->path);
    if (reader->line_bytes >= 3 && memcmp(line, "\xEF\xBB\xBF", 3) == 0) {
        reader->line_bytes -= 3;
        memmove(reader->line, reader->line + 3, (size_t)reader->line_bytes);
    }
    return SW_OK;
}

/* Reads the next line of the open file, with its end; *out_end is set where there is none. */
static sw_status read_line(struct sw_text_reader *reader, bool *out_end) {
    errno = 0;
    reader->line_bytes = getline(&reader->line, &reader->line_room, reader->file);
    *out_end = reader->line_bytes < 0;
    if (*out_end) {
        if (ferror(reader->file) || errno == ENOMEM)
            return sw_fail(errno == ENOMEM ? SW_ERR_NOMEM : SW_ERR_IO, "%s cannot be read: %s", reader->path,
                           strerror(errno));
        return SW_OK;
    }
    reader->bytes_read += reader->line_bytes;
    return ++reader->line_number == 1 ? take_mark(reader) : SW_OK;
}

static struct sw_text line_without_end(const struct sw_text_reader *reader) {
    struct sw_text line = {reader->line, (size_t)reader->line_bytes};
    while (line.bytes > 0 && (line.data[line.bytes - 1] == '\n' || line.data[line.bytes - 1] == '\r'))
        line.bytes--;
    return line;
}

static sw_status append_field(const struct sw_text_reader *reader, const json_t *object, struct sw_text_buffer *out) {
    const json_t *text = json_object_get(object, reader->rules.field);
    if (json_is_string(text))
        return sw_text_buffer_append(out, (struct sw_text){json_string_value(text), json_string_length(text)});
    if (json_object_get(object, "messages") != NULL)
        return sw_fail(SW_ERR_UNSUPPORTED, "%s:%lld has 'messages', and this version does not make text of chats",
                       reader->path, (long long)reader->line_number);
    return sw_fail(SW_ERR_ARG, "%s:%lld has no text '%s'; --field names the member that has it", reader->path,
                   (long long)reader->line_number, reader->rules.field);
}

static sw_status append_json(const struct sw_text_reader *reader, struct sw_text line, struct sw_text_buffer *out) {
    json_error_t error;
    json_t *object = json_loadb(line.data, line.bytes, JSON_ALLOW_NUL, &error);
    if (object == NULL)
        return sw_fail(SW_ERR_ARG, "%s:%lld is not JSON: %s", reader->path, (long long)reader->line_number, error.text);
    const sw_status status = append_field(reader, object, out);
    json_decref(object);
    return status;
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
        SW_TRY(sw_text_buffer_append(out, (struct sw_text){reader->line, (size_t)reader->line_bytes}));
    }
}

static sw_status read_json(struct sw_text_reader *reader, struct sw_text_buffer *out, bool *out_end) {
    SW_TRY(read_line(reader, out_end));
    const struct sw_text line = line_without_end(reader);
    if (*out_end || strspn(reader->line, " \t\r\n") >= line.bytes)
        return SW_OK;
    return append_json(reader, line, out);
}

static sw_status open_next(struct sw_text_reader *reader) {
    reader->path = reader->files[reader->next_file++];
    reader->line_number = 0;
    reader->file = fopen(reader->path, "rbe");
    return reader->file != NULL ? SW_OK : sw_fail(SW_ERR_ARG, "%s: %s", reader->path, strerror(errno));
}

sw_status sw_text_reader_next(struct sw_text_reader *reader, struct sw_text_buffer *out, bool *out_end) {
    *out_end = false;
    out->bytes = 0;
    while (out->bytes == 0) {
        bool file_ended;
        if (reader->file == NULL && reader->next_file == reader->file_count) {
            *out_end = true;
            return SW_OK;
        }
        if (reader->file == NULL)
            SW_TRY(open_next(reader));
        SW_TRY(ends_in(reader->path, ".jsonl") ? read_json(reader, out, &file_ended)
                                               : read_text(reader, out, &file_ended));
        if (file_ended) {
            fclose(reader->file);
            reader->file = NULL;
        }
    }
    return SW_OK;
}
