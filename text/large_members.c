#include "text/large_members.h"

#include "core/json.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* A part ends with the element that makes it this long. */
enum { PART_BYTES = 1 << 16 };

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static const char *pass_space(const char *at, const char *end) {
    while (at < end && is_space(*at))
        at++;
    return at;
}

/* Returns the place behind a string, of which `at` is the first quote. */
static const char *pass_string(const char *at, const char *end) {
    for (at++; at < end && *at != '"'; at++)
        if (*at == '\\' && at + 1 < end)
            at++;
    return at < end ? at + 1 : end;
}

/* Returns the place of the bracket that closes the one at `at`, or the end of the text. */
static const char *find_close(const char *at, const char *end) {
    for (int64_t levels = 0; at < end; at++) {
        if (*at == '"')
            at = pass_string(at, end) - 1;
        else if (*at == '{' || *at == '[')
            levels++;
        else if ((*at == '}' || *at == ']') && --levels == 0)
            return at;
    }
    return end;
}

static int lines_of(struct sw_text text) {
    int lines = 0;
    for (size_t i = 0; i < text.bytes; i++)
        lines += text.data[i] == '\n';
    return lines;
}

/* The place of a scan within a text. */
struct scan {
    struct sw_text text;
    const char *at, *copied; /* the text before `copied` is in the rest */
    int64_t levels;
    bool in_model; /* in the object `model` of the outermost object, but in none of its values */
    const char *path;
    struct sw_large_members *out;
    struct sw_text_buffer *rest;
};

/* Takes the inside of the value at `at` out of the text. */
static sw_status cut(struct scan *scan, struct sw_large_member *member) {
    const char *end = scan->text.data + scan->text.bytes, *inside = scan->at + 1;
    const char *close = find_close(scan->at, end);
    const struct sw_text text = {inside, (size_t)(close - inside)};
    const struct sw_text before = {scan->text.data, (size_t)(inside - scan->text.data)};
    *member = (struct sw_large_member){.text = text,
                                       .line = 1 + lines_of(before),
                                       .path = scan->path,
                                       .begin = *scan->at,
                                       .end = *scan->at == '{' ? '}' : ']'};
    const int lines = lines_of(text);
    SW_TRY(sw_text_buffer_append(scan->rest, (struct sw_text){scan->copied, (size_t)(inside - scan->copied)}));
    SW_TRY(sw_text_buffer_reserve(scan->rest, (size_t)lines));
    memset(scan->rest->data + scan->rest->bytes, '\n', (size_t)lines);
    scan->rest->bytes += (size_t)lines;
    scan->at = scan->copied = close;
    scan->levels++;
    return SW_OK;
}

/* Passes a string and, where it is a name that is looked for, its value. */
static sw_status pass_name(struct scan *scan) {
    const char *end = scan->text.data + scan->text.bytes, *name = scan->at + 1;
    scan->at = pass_string(scan->at, end);
    const size_t chars = (size_t)(scan->at - name);
    const char *colon = pass_space(scan->at, end), *value = colon < end ? pass_space(colon + 1, end) : end;
    if (value == end || *colon != ':')
        return SW_OK;
    const bool is_model = scan->levels == 1 && chars == 6 && memcmp(name, "model\"", chars) == 0 && *value == '{';
    const bool is_vocab = scan->in_model && chars == 6 && memcmp(name, "vocab\"", chars) == 0 && *value == '{';
    const bool is_merges = scan->in_model && chars == 7 && memcmp(name, "merges\"", chars) == 0 && *value == '[';
    scan->at = value;
    if (is_vocab && scan->out->vocab.text.data == NULL)
        return cut(scan, &scan->out->vocab);
    if (is_merges && scan->out->merges.text.data == NULL)
        return cut(scan, &scan->out->merges);
    if (is_model) {
        scan->in_model = true;
        scan->levels++;
        scan->at++;
    }
    return SW_OK;
}

sw_status sw_large_members_cut(struct sw_text text, const char *path, struct sw_large_members *out,
                               struct sw_text_buffer *rest) {
    const char *end = text.data + text.bytes;
    struct scan scan = {.text = text, .at = text.data, .copied = text.data, .path = path, .out = out, .rest = rest};
    *out = (struct sw_large_members){.vocab = {.path = path}, .merges = {.path = path}};
    while (scan.at < end) {
        const char c = *scan.at;
        if (c == '"') {
            SW_TRY(pass_name(&scan));
            continue;
        }
        /* The contents of the model's own members are passed as a whole. */
        if (scan.in_model && (c == '{' || c == '[') && scan.levels == 2) {
            scan.at = find_close(scan.at, end);
            scan.at += scan.at < end;
            continue;
        }
        scan.levels += (c == '{' || c == '[') - (c == '}' || c == ']');
        scan.in_model &= scan.levels >= 2;
        scan.at++;
    }
    return sw_text_buffer_append(rest, (struct sw_text){scan.copied, (size_t)(end - scan.copied)});
}

/* Returns the end of the next part: a comma between elements, or the end of the text. */
static const char *end_of_part(const char *begin, const char *end) {
    const char *at = begin;
    for (int64_t levels = 0; at < end; at++) {
        if (*at == '"')
            at = pass_string(at, end) - 1;
        else if (*at == '{' || *at == '[')
            levels++;
        else if (*at == '}' || *at == ']')
            levels--;
        else if (*at == ',' && levels == 0 && at - begin >= PART_BYTES)
            break;
    }
    return at < end ? at : end;
}

static sw_status read_part(const struct sw_large_member *member, struct sw_text text, int line,
                           struct sw_text_buffer *buffer, json_t **out) {
    buffer->bytes = 0;
    SW_TRY(sw_text_buffer_append(buffer, (struct sw_text){&member->begin, 1}));
    SW_TRY(sw_text_buffer_append(buffer, text));
    SW_TRY(sw_text_buffer_append(buffer, (struct sw_text){&member->end, 1}));
    return sw_json_decode((struct sw_json_source){.text = buffer->data,
                                                  .bytes = buffer->bytes,
                                                  .name = member->path,
                                                  .bad = SW_ERR_ARG,
                                                  .kind = SW_JSON_TEXTS,
                                                  .lines_before = line - 1},
                          out);
}

sw_status sw_large_member_read(const struct sw_large_member *member,
                               sw_status (*take)(void *context, const json_t *part), void *context) {
    const char *at = member->text.data, *end = at + member->text.bytes;
    struct sw_text_buffer buffer = {0};
    sw_status status = SW_OK;
    int line = member->line;
    while (status == SW_OK && at < end) {
        const char *part_end = end_of_part(at, end);
        /* A comma that nothing follows is no end of a part, but an error. */
        const bool is_last = part_end == end || pass_space(part_end + 1, end) == end;
        const struct sw_text text = {at, (size_t)((is_last ? end : part_end) - at)};
        json_t *part = NULL;
        status = read_part(member, text, line, &buffer, &part);
        if (status == SW_OK)
            status = take(context, part);
        json_decref(part);
        line += lines_of(text);
        at = is_last ? end : part_end + 1;
    }
    free(buffer.data);
    return status;
}
