/* Data that are changed in place while a run uses them: a run of days must not learn from half of an old file and half
 * of a new one. The times of the files are looked at with every window; where they are new, the blocks that the window
 * lies in are read again and compared with what they were, so that a file which was only touched goes on. Blocks that
 * an earlier process read are compared once. */
#include "core/size.h"
#include "run/data/data_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

enum { TIME_CHARS = 32 };

struct sw_token_stream *sw_data_part_stream(const struct sw_data *data, sw_data_part part) {
    return part == SW_DATA_VALIDATION && data->validation_stream != NULL ? data->validation_stream : data->stream;
}

sw_status sw_data_digests_alloc(struct sw_data_digests *digests, int64_t first, int64_t end) {
    digests->first = first;
    digests->end = end;
    digests->block = calloc((size_t)sw_div_up(end - first, SW_DATA_BLOCK) + 1, sizeof *digests->block);
    return digests->block != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory for the digests of the data");
}

void sw_data_digests_free(struct sw_data *data) {
    struct sw_data_digests *const of[] = {data->token_digests, data->mark_digests};
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++)
        for (int part = 0; part < SW_DATA_PARTS; part++) {
            free(of[i][part].block);
            free(of[i][part].unread);
            of[i][part] = (struct sw_data_digests){0};
        }
}

/* Tells whether a block of the range was never read by this process. */
static bool has_unread(const struct sw_data_digests *digests, int64_t first, int64_t count) {
    if (digests->unread == NULL)
        return false;
    const int64_t from = (first - digests->first) / SW_DATA_BLOCK,
                  last = (first + count - 1 - digests->first) / SW_DATA_BLOCK;
    return memchr(digests->unread + from, 1, (size_t)(last - from + 1)) != NULL;
}

/* Returns SW_ERR_CORRUPT with the place of the first block that is not what it was. */
static sw_status check_blocks(struct sw_data *data, struct sw_token_stream *stream,
                              const struct sw_data_digests *digests, bool marks, int64_t first, int64_t count,
                              int64_t *out_changed) {
    const int64_t last = (first + count - 1 - digests->first) / SW_DATA_BLOCK;
    for (int64_t b = (first - digests->first) / SW_DATA_BLOCK; b <= last; b++) {
        const int64_t start = digests->first + b * SW_DATA_BLOCK;
        const int64_t length = sw_min_i64(SW_DATA_BLOCK, digests->end - start);
        const size_t bytes = (size_t)length * (marks ? sizeof *data->marks : sizeof *data->block);
        if (marks)
            SW_TRY(sw_token_stream_read_marks(stream, start, length, (uint8_t *)data->block));
        else
            SW_TRY(sw_token_stream_read(stream, start, length, data->block));
        *out_changed = start;
        if (XXH3_64bits(data->block, bytes) != digests->block[b])
            return SW_ERR_CORRUPT;
        if (digests->unread != NULL)
            digests->unread[b] = 0;
    }
    return SW_OK;
}

static const char *text_of_time(const struct timespec *time, char text[TIME_CHARS]) {
    struct tm parts;
    if (gmtime_r(&time->tv_sec, &parts) == NULL || strftime(text, TIME_CHARS, "%Y-%m-%d %H:%M:%S UTC", &parts) == 0)
        snprintf(text, TIME_CHARS, "at an unknown time");
    return text;
}

/* Says that a block is not what an earlier process read, although its files have the same times. */
static sw_status explain_silent(const struct sw_token_stream *stream, bool marks, int64_t block) {
    const struct sw_token_place place = sw_token_stream_place(stream, block);
    return sw_fail(
        SW_ERR_ARG,
        "the data file %s%s reads differently from token %lld on than when it was first read, though its time "
        "of writing is the same: its drive may be failing; restore it and resume, or `touch` it and start a "
        "new run",
        place.file, marks ? ".mask or .doc" : "", (long long)place.index);
}

static sw_status explain(const struct sw_token_stream *stream, const struct sw_data_file *now, int64_t block) {
    char time[TIME_CHARS];
    const struct sw_token_place place = sw_token_stream_place(stream, block);
    return sw_fail(SW_ERR_ARG,
                   "the data file %s%s was changed while it was in use (it has %lld bytes, written %s): what it says "
                   "from token %lld of %s on is not what the run began with; restore it and resume, or start a new run",
                   now->path, now->suffix, (long long)now->bytes, text_of_time(&now->written, time),
                   (long long)place.index, place.file);
}

sw_status sw_data_check_unchanged(struct sw_data *data, sw_data_part part, int64_t first, int64_t count) {
    struct sw_token_stream *stream = sw_data_part_stream(data, part);
    struct sw_data_file now;
    int64_t block = first;
    const bool own_stream = part == SW_DATA_VALIDATION && data->validation_stream != NULL;
    const struct sw_data_digests *tokens = &data->token_digests[own_stream ? SW_DATA_VALIDATION : SW_DATA_TRAINING];
    const struct sw_data_digests *marks = &data->mark_digests[part];
    const bool is_read = !has_unread(tokens, first, count) && !has_unread(marks, first + 1, count - 1);
    const bool is_changed = sw_token_stream_changed(stream, first, count, &now);
    if (!is_changed && is_read)
        return SW_OK;
    sw_status status = check_blocks(data, stream, tokens, false, first, count, &block);
    const bool tokens_are_right = status == SW_OK;
    if (tokens_are_right && marks->block != NULL)
        status = check_blocks(data, stream, marks, true, first + 1, count - 1, &block);
    if (status != SW_ERR_CORRUPT)
        return status;
    return is_changed ? explain(stream, &now, block) : explain_silent(stream, tokens_are_right, block);
}

sw_status sw_data_check_digest(const struct sw_data *data, uint64_t digest) {
    char time[TIME_CHARS];
    if (data->digest == digest)
        return SW_OK;
    const struct sw_data_file *newest =
        sw_token_stream_newest_file(data->stream != NULL ? data->stream : data->validation_stream);
    if (data->stream != NULL && data->validation_stream != NULL) {
        const struct sw_data_file *other = sw_token_stream_newest_file(data->validation_stream);
        newest = other->written.tv_sec > newest->written.tv_sec ? other : newest;
    }
    return sw_fail(
        SW_ERR_ARG,
        "the data files are not those that the run began with: the newest is %s%s, of %lld bytes and written "
        "%s; restore them, or start a new run",
        newest->path, newest->suffix, (long long)newest->bytes, text_of_time(&newest->written, time));
}
