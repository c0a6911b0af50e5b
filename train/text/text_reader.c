#include "train/text/text_reader.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

enum { CHUNK_BYTES = 1 << 16 };

struct sw_text_reader {
    const char *const *files;
    int file_count, next_file;
    struct sw_text_rules rules;
    gzFile file; /* reads files that are not packed too; NULL: none is open */
    const char *path;
    char chunk[CHUNK_BYTES]; /* of the file, of which the bytes from chunk_at to chunk_end are still to be cut in lines
                              */
    size_t chunk_at, chunk_end;
    struct sw_text_buffer line; /* the one read last, with its end */
    int64_t line_number;
    int64_t bytes, bytes_before; /* of all files, and of those before the open one, as they lie on the drive */
};

static bool ends_in(const char *path, const char *ending) {
    const size_t chars = strlen(path), ending_chars = strlen(ending);
    return chars > ending_chars && strcmp(path + chars - ending_chars, ending) == 0;
}

static bool is_text(const char *path) {
    return ends_in(path, ".txt") || ends_in(path, ".md") || ends_in(path, ".txt.gz") || ends_in(path, ".md.gz");
}

static bool is_json(const char *path) {
    return ends_in(path, ".jsonl") || ends_in(path, ".jsonl.gz");
}

static sw_status check_file(const char *path, int64_t *bytes) {
    struct stat info;
    if (stat(path, &info) != 0)
        return sw_fail(SW_ERR_ARG, "%s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return sw_fail(SW_ERR_ARG, "%s is not a regular file; name the files in it", path);
    if (!is_text(path) && !is_json(path))
        return sw_fail(SW_ERR_ARG, "%s: text files end in .txt, .md or .jsonl, or these with .gz", path);
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
        gzclose(reader->file);
    free(reader->line.data);
    free(reader);
}

int64_t sw_text_reader_bytes(const struct sw_text_reader *reader) {
    return reader->bytes;
}

int64_t sw_text_reader_bytes_read(const struct sw_text_reader *reader) {
    return reader->bytes_before + (reader->file != NULL ? (int64_t)gzoffset(reader->file) : 0);
}

/* Takes a byte order mark off the first line. Text of 16 bits begins with another one. */
static sw_status take_mark(struct sw_text_reader *reader) {
    struct sw_text_buffer *line = &reader->line;
    if (line->bytes >= 2 && (memcmp(line->data, "\xFF\xFE", 2) == 0 || memcmp(line->data, "\xFE\xFF", 2) == 0))
        return sw_fail(SW_ERR_ARG, "%s is UTF-16; write it as UTF-8: iconv -f UTF-16 -t UTF-8", reader->path);
    if (line->bytes >= 3 && memcmp(line->data, "\xEF\xBB\xBF", 3) == 0) {
        line->bytes -= 3;
        memmove(line->data, line->data + 3, line->bytes);
    }
    return SW_OK;
}

static sw_status fail_reading(const struct sw_text_reader *reader) {
    int error;
    const char *message = gzerror(reader->file, &error);
    if (error == Z_ERRNO)
        return sw_fail(SW_ERR_IO, "%s: %s", reader->path, strerror(errno));
    return sw_fail(SW_ERR_IO, "%s", message); /* zlib begins it with the path */
}

static sw_status fill_chunk(struct sw_text_reader *reader) {
    const int bytes = gzread(reader->file, reader->chunk, CHUNK_BYTES);
    int error;
    reader->chunk_at = 0;
    reader->chunk_end = bytes > 0 ? (size_t)bytes : 0;
    (void)gzerror(reader->file, &error); /* where packed data are cut off, only this shows it */
    return bytes < 0 || error == Z_BUF_ERROR ? fail_reading(reader) : SW_OK;
}

/* Reads the next line of the open file, with its end; *out_end is set where there is none. */
static sw_status read_line(struct sw_text_reader *reader, bool *out_end) {
    reader->line.bytes = 0;
    for (bool whole = false; !whole;) {
        if (reader->chunk_at == reader->chunk_end)
            SW_TRY(fill_chunk(reader));
        const char *begin = reader->chunk + reader->chunk_at;
        const size_t left = reader->chunk_end - reader->chunk_at;
        const char *end = memchr(begin, '\n', left);
        const size_t taken = end == NULL ? left : (size_t)(end - begin) + 1;
        SW_TRY(sw_text_buffer_append(&reader->line, (struct sw_text){begin, taken}));
        reader->chunk_at += taken;
        whole = end != NULL || left == 0;
    }
    *out_end = reader->line.bytes == 0;
    return !*out_end && ++reader->line_number == 1 ? take_mark(reader) : SW_OK;
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
        SW_TRY(sw_text_buffer_append(out, sw_text_of_buffer(&reader->line)));
    }
}

static sw_status read_json(struct sw_text_reader *reader, struct sw_text_buffer *out, bool *out_end) {
    SW_TRY(read_line(reader, out_end));
    const struct sw_text line = line_without_end(reader);
    if (*out_end || is_blank(line))
        return SW_OK;
    return append_json(reader, line, out);
}

static sw_status open_next(struct sw_text_reader *reader) {
    reader->path = reader->files[reader->next_file++];
    reader->line_number = 0;
    reader->chunk_at = reader->chunk_end = 0;
    reader->file = gzopen(reader->path, "rbe");
    return reader->file != NULL ? SW_OK : sw_fail(SW_ERR_ARG, "%s: %s", reader->path, strerror(errno));
}

static void close_file(struct sw_text_reader *reader) {
    reader->bytes_before += (int64_t)gzoffset(reader->file);
    gzclose(reader->file);
    reader->file = NULL;
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
        SW_TRY(is_json(reader->path) ? read_json(reader, out, &file_ended) : read_text(reader, out, &file_ended));
        if (file_ended)
            close_file(reader);
    }
    return SW_OK;
}
