/* Windows of training and validation data: their order, the digests that notice a change, and what an earlier reading
 * found.
 *
 * Window k of the data is tokens [k·seq, (k+1)·seq], so neighbours share one token, and every token of a window but its
 * first is a target once an epoch. The order is a keyed permutation of the window's number (sw_rng_permute), a new key
 * each epoch. It needs no shuffled list in memory and no state in a checkpoint: the position of a step alone gives its
 * windows, so a resume on other ranks reads the same ones.
 *
 * Windows ignore documents; packed token files make sequences end where windows do (text/documents/token_writer.h).
 *
 * All tokens are read once at the opening, so a token outside the vocabulary fails before the first step, not after
 * days. Large data keep the result of that reading in the user's cache, by the identity and times of their files. */
#include "run/data/data.h"

#include "core/files/cache.h"
#include "core/files/files.h"
#include "core/rng.h"
#include "core/size.h"
#include "core/status.h"
#include "run/data/token_stream.h"

#include <assert.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

/* Tokens, or marks, per read when all of them are read; also the size of a digest's block. */
enum { SW_DATA_BLOCK = 64 * 1024 };

/* Fingerprint of a range of a stream's tokens, or of their marks, from its first reading: a digest per block. */
struct sw_data_digests {
    int64_t first, end; /* the range, in tokens */
    uint64_t *block;    /* owned, one digest per block; NULL: nothing was read */
    /* Owned, one byte per block: 1 until this process has read and compared it; NULL: it has read all. */
    uint8_t *unread;
};

/* The training part and the validation part of the data. */
typedef enum { SW_DATA_TRAINING, SW_DATA_VALIDATION, SW_DATA_PARTS } sw_data_part;

struct sw_data {
    /* Training data, and validation data that are a part of them; NULL: neither exists. */
    struct sw_token_stream *stream;
    /* Validation data in a file of their own; NULL: they are a part of `stream`. */
    struct sw_token_stream *validation_stream;
    int64_t vocab, seq;
    uint64_t seed;
    bool pairs; /* of windows */
    int64_t train_tokens;
    int64_t validation_first; /* first token, in its stream */
    int64_t validation_tokens;
    uint64_t digest;
    /* Indexed like the streams: of `stream`, and of validation_stream. */
    struct sw_data_digests token_digests[SW_DATA_PARTS];
    struct sw_data_digests mark_digests[SW_DATA_PARTS];
    struct sw_token_counts counts[SW_DATA_PARTS];
    int32_t *window; /* buffer of seq + 1 tokens */
    uint8_t *marks;  /* buffer of seq marks, for the targets */
    int32_t *block;  /* buffer of SW_DATA_BLOCK tokens */
};

/* Scanning fewer tokens than this takes no longer than looking for a kept scan. */
enum { FEWEST_TOKENS = 4 << 20 };
/* File systems round times to as much as two seconds. A file written within this time before its opening may be written
 * again without getting another time. */
enum { TICK_S = 3 };
enum { DAY_S = 24 * 60 * 60, MOST_UNUSED_S = 30 * DAY_S, RANGES = 2 * SW_DATA_PARTS };
#define KIND "scan"
#define ENDING "bin"

/* The front of the file. The block digests of each range follow, then the XXH3 of everything before it. */
struct front {
    char name[8]; /* "SWSCAN1\0" */
    XXH128_hash_t key;
    uint64_t digest;
    struct {
        int64_t tokens, learnt, documents, split, padding, is_padding;
    } counts[SW_DATA_PARTS];
    struct {
        int64_t first, end; /* tokens of the range; end 0: the range was not read */
    } range[RANGES];
};
static const char front_name[8] = "SWSCAN1";

static struct sw_data_digests *range_of(struct sw_data *data, int range) {
    return range < SW_DATA_PARTS ? &data->token_digests[range] : &data->mark_digests[range - SW_DATA_PARTS];
}

static int64_t blocks_of(int64_t first, int64_t end) {
    return sw_div_up(end - first, SW_DATA_BLOCK);
}

/* Computes the key of the data's scan. Returns false if there is no memory for it. */
static bool key_of(const struct sw_data *data, XXH128_hash_t *out) {
    const struct sw_token_stream *streams[] = {data->stream, data->validation_stream};
    const int64_t division[] = {data->train_tokens, data->validation_first, data->validation_tokens, SW_DATA_BLOCK};
    XXH3_state_t *hash = XXH3_createState();
    if (hash == NULL)
        return false;
    XXH3_128bits_reset(hash);
    XXH3_128bits_update(hash, division, sizeof division);
    for (size_t i = 0; i < sizeof streams / sizeof streams[0]; i++) {
        const bool is_there = streams[i] != NULL;
        XXH3_128bits_update(hash, &is_there, sizeof is_there);
        if (is_there)
            sw_token_stream_hash_identity(streams[i], hash);
    }
    *out = XXH3_128bits_digest(hash);
    XXH3_freeState(hash);
    return true;
}

static int64_t tokens_of(const struct sw_data *data) {
    return (data->stream != NULL ? sw_token_stream_tokens(data->stream) : 0) +
           (data->validation_stream != NULL ? sw_token_stream_tokens(data->validation_stream) : 0);
}

/* Tells whether a kept scan is complete, has this key, and is as long as its ranges say. */
static bool is_sound(const char *content, size_t bytes, const XXH128_hash_t *key, struct front *out) {
    uint64_t sum;
    size_t blocks = 0;
    if (bytes < sizeof *out + sizeof sum)
        return false;
    memcpy(out, content, sizeof *out);
    memcpy(&sum, content + bytes - sizeof sum, sizeof sum);
    if (memcmp(out->name, front_name, sizeof front_name) != 0 || !XXH128_isEqual(out->key, *key) ||
        XXH3_64bits(content, bytes - sizeof sum) != sum)
        return false;
    for (int i = 0; i < RANGES; i++)
        if (out->range[i].end > 0)
            blocks += (size_t)blocks_of(out->range[i].first, out->range[i].end);
    return bytes == sizeof *out + blocks * sizeof(uint64_t) + sizeof sum;
}

static sw_status data_digests_alloc(struct sw_data_digests *digests, int64_t first, int64_t end);

/* Adopts the block digests that follow the front. */
static sw_status take_ranges(struct sw_data *data, const struct front *front, const char *blocks) {
    for (int i = 0; i < RANGES; i++) {
        const int64_t first = front->range[i].first, end = front->range[i].end;
        if (end == 0)
            continue;
        struct sw_data_digests *digests = range_of(data, i);
        const size_t bytes = (size_t)blocks_of(first, end) * sizeof *digests->block;
        SW_TRY(data_digests_alloc(digests, first, end));
        digests->unread = malloc((size_t)blocks_of(first, end) + 1);
        if (digests->unread == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory for the digests of the data");
        memset(digests->unread, 1, (size_t)blocks_of(first, end) + 1);
        memcpy(digests->block, blocks, bytes);
        blocks += bytes;
    }
    return SW_OK;
}

static void take_counts(struct sw_data *data, const struct front *front) {
    for (int i = 0; i < SW_DATA_PARTS; i++)
        data->counts[i] = (struct sw_token_counts){
            .tokens = front->counts[i].tokens,
            .learnt = front->counts[i].learnt,
            .documents = front->counts[i].documents,
            .split = front->counts[i].split,
            .padding = front->counts[i].padding,
            .is_padding = front->counts[i].is_padding != 0,
        };
    data->digest = front->digest;
}

static bool path_of(const XXH128_hash_t *key, char path[PATH_MAX]) {
    return sw_cache_file(KIND, key->low64, ENDING, path, PATH_MAX) == SW_OK;
}

static void data_digests_free(struct sw_data *data);

/* Fills in the digest, the counts and the block digests from a kept scan of an earlier opening. The streams must be
 * open and divided. Returns false if there is none; the caller then scans. */
static bool kept_scan_load(struct sw_data *data) {
    SW_HANDLES_ERRORS();
    char path[PATH_MAX];
    XXH128_hash_t key;
    struct front front;
    size_t bytes = 0;
    char *content = NULL;
    if (tokens_of(data) >= FEWEST_TOKENS && key_of(data, &key) && path_of(&key, path))
        content = sw_cache_read_file(path, &bytes);
    const bool is_kept = content != NULL && is_sound(content, bytes, &key, &front) &&
                         take_ranges(data, &front, content + sizeof front) == SW_OK;
    free(content);
    if (!is_kept) {
        data_digests_free(data);
        return false;
    }
    take_counts(data, &front);
    (void)utimensat(AT_FDCWD, path, NULL, 0);
    return true;
}

/* Tells whether a file was written during the scan, or so recently that another write might not change its times. */
static bool is_in_flux(const struct sw_data *data) {
    const struct sw_token_stream *streams[] = {data->stream, data->validation_stream};
    struct sw_data_file changed;
    for (size_t i = 0; i < sizeof streams / sizeof streams[0]; i++) {
        if (streams[i] == NULL)
            continue;
        if (sw_token_stream_newest_file(streams[i])->written.tv_sec + TICK_S >= time(NULL) ||
            sw_token_stream_changed(streams[i], 0, sw_token_stream_tokens(streams[i]), &changed))
            return true;
    }
    return false;
}

/* Removes scans that were not used for a long time from the folder that holds `path`. */
static void remove_old(const char *path) {
    char folder[PATH_MAX];
    struct stat info;
    memccpy(folder, path, '\0', sizeof folder);
    *strrchr(folder, '/') = '\0';
    DIR *list = opendir(folder);
    for (const struct dirent *entry; list != NULL && (entry = readdir(list)) != NULL;)
        if (strncmp(entry->d_name, KIND "-", sizeof KIND) == 0 &&
            fstatat(dirfd(list), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
            time(NULL) - info.st_mtime > MOST_UNUSED_S)
            (void)unlinkat(dirfd(list), entry->d_name, 0);
    if (list != NULL)
        closedir(list);
}

static void fill_front(const struct sw_data *data, const XXH128_hash_t *key, struct front *out) {
    memset(out, 0, sizeof *out);
    memcpy(out->name, front_name, sizeof front_name);
    out->key = *key;
    out->digest = data->digest;
    for (int i = 0; i < SW_DATA_PARTS; i++) {
        const struct sw_token_counts *counts = &data->counts[i];
        out->counts[i].tokens = counts->tokens;
        out->counts[i].learnt = counts->learnt;
        out->counts[i].documents = counts->documents;
        out->counts[i].split = counts->split;
        out->counts[i].padding = counts->padding;
        out->counts[i].is_padding = counts->is_padding;
    }
}

/* Builds the content of the kept scan. The caller frees it; NULL: there is no memory. */
static char *make_content(struct sw_data *data, const XXH128_hash_t *key, size_t *out_bytes) {
    struct front front;
    size_t bytes = sizeof front, at = sizeof front;
    fill_front(data, key, &front);
    for (int i = 0; i < RANGES; i++) {
        const struct sw_data_digests *digests = range_of(data, i);
        if (digests->block == NULL)
            continue;
        front.range[i].first = digests->first;
        front.range[i].end = digests->end;
        bytes += (size_t)blocks_of(digests->first, digests->end) * sizeof *digests->block;
    }
    char *content = malloc(bytes + sizeof(uint64_t));
    if (content == NULL)
        return NULL;
    memcpy(content, &front, sizeof front);
    for (int i = 0; i < RANGES; i++) {
        const struct sw_data_digests *digests = range_of(data, i);
        if (digests->block == NULL)
            continue;
        const size_t part = (size_t)blocks_of(digests->first, digests->end) * sizeof *digests->block;
        memcpy(content + at, digests->block, part);
        at += part;
    }
    const uint64_t sum = XXH3_64bits(content, bytes);
    memcpy(content + bytes, &sum, sizeof sum);
    *out_bytes = bytes + sizeof sum;
    return content;
}

/* Keeps the scan of these data for later openings. Does nothing if they are small, or if a file was written so recently
 * that a later write might get the same time. Removes scans that were not used for 30 days. A cache that cannot be
 * written is no error. */
static void kept_scan_save(struct sw_data *data) {
    SW_HANDLES_ERRORS();
    char path[PATH_MAX];
    XXH128_hash_t key;
    size_t bytes = 0;
    if (tokens_of(data) < FEWEST_TOKENS || is_in_flux(data))
        return;
    char *content = key_of(data, &key) && path_of(&key, path) ? make_content(data, &key, &bytes) : NULL;
    if (content != NULL && sw_cache_replace(path, content, bytes) == SW_OK)
        remove_old(path);
    free(content);
}

/* The companion files F.mask and F.doc of a data file F: what they say, and which of them a run remembers. Data moved
 * without them are another task: losses count where none belong, and documents see each other. */

/* The training files, then the validation file. */
static int count_files(const struct sw_data *data) {
    return (data->stream != NULL ? sw_token_stream_files(data->stream) : 0) +
           (data->validation_stream != NULL ? sw_token_stream_files(data->validation_stream) : 0);
}

static struct sw_token_beside beside_of(const struct sw_data *data, int i) {
    const int trained = data->stream != NULL ? sw_token_stream_files(data->stream) : 0;
    return i < trained ? sw_token_stream_beside(data->stream, i)
                       : sw_token_stream_beside(data->validation_stream, i - trained);
}

bool sw_data_has_masks(const struct sw_data *data) {
    for (int i = 0; i < count_files(data); i++)
        if (beside_of(data, i).mask)
            return true;
    return false;
}

static const char *name_of(const struct sw_token_beside *beside) {
    if (beside->mask)
        return beside->documents ? "mask,doc" : "mask";
    return beside->documents ? "doc" : "";
}

sw_status sw_data_beside(const struct sw_data *data, struct sw_option_list *out) {
    for (int i = 0; i < count_files(data); i++) {
        const struct sw_token_beside beside = beside_of(data, i);
        SW_TRY(sw_option_list_add(out, name_of(&beside)));
    }
    return SW_OK;
}

static sw_status check_one(const char *file, const char *suffix, bool before, bool now) {
    if (before && !now)
        return sw_fail(SW_ERR_ARG, "%s.%s, which the run began with, is not there: put it beside %s again", file,
                       suffix, file);
    if (!before && now)
        return sw_fail(SW_ERR_ARG, "the run began without %s.%s, which is there now: move it away, or start a new run",
                       file, suffix);
    return SW_OK;
}

sw_status sw_data_check_beside(const struct sw_data *data, const struct sw_option_list *before) {
    for (int i = 0; i < before->count && i < count_files(data); i++) {
        const struct sw_token_beside beside = beside_of(data, i);
        const char *names = before->items[i];
        SW_TRY(check_one(beside.file, "mask", strstr(names, "mask") != NULL, beside.mask));
        SW_TRY(check_one(beside.file, "doc", strstr(names, "doc") != NULL, beside.documents));
    }
    return SW_OK;
}

static const char *last_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* Appends as much as fits. */
#define APPEND(text, ...)                                                                                              \
    do {                                                                                                               \
        const size_t used_ = strlen(text);                                                                             \
        snprintf((text) + used_, SW_DATA_TEXT_CHARS - used_, __VA_ARGS__);                                             \
    } while (0)

static void add_beside(const struct sw_data *data, char text[SW_DATA_TEXT_CHARS]) {
    int found = 0;
    for (int i = 0; i < count_files(data); i++) {
        const struct sw_token_beside beside = beside_of(data, i);
        const char *name = last_name(beside.file);
        if (beside.mask)
            APPEND(text, "%s %s.mask", found++ == 0 ? "; beside them" : ",", name);
        if (beside.documents)
            APPEND(text, "%s %s.doc", found++ == 0 ? "; beside them" : ",", name);
    }
    if (found == 0)
        APPEND(text, "; no .mask and no .doc beside them");
}

const char *sw_data_text(const struct sw_data *data, char text[SW_DATA_TEXT_CHARS]) {
    const sw_data_part part = data->stream != NULL ? SW_DATA_TRAINING : SW_DATA_VALIDATION;
    sw_token_counts_text(&data->counts[part], text, SW_DATA_TEXT_CHARS);
    add_beside(data, text);
    return text;
}

int64_t sw_data_train_windows(const struct sw_data *data) {
    return (data->train_tokens - 1) / data->seq;
}

/* Notices data that are changed in place while a run uses them: a run of days must not learn from half of an old file
 * and half of a new one. Each window compares the files' times with those at the opening. If they differ, the blocks of
 * the window are read again and compared with their digests, so that a file that was only touched goes on. Blocks that
 * only an earlier process has read are compared once. */

enum { TIME_CHARS = 32 };

static struct sw_token_stream *data_part_stream(const struct sw_data *data, sw_data_part part) {
    return part == SW_DATA_VALIDATION && data->validation_stream != NULL ? data->validation_stream : data->stream;
}

static sw_status data_digests_alloc(struct sw_data_digests *digests, int64_t first, int64_t end) {
    digests->first = first;
    digests->end = end;
    digests->block = calloc((size_t)sw_div_up(end - first, SW_DATA_BLOCK) + 1, sizeof *digests->block);
    return digests->block != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory for the digests of the data");
}

/* Frees all digests of the data. */
static void data_digests_free(struct sw_data *data) {
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

/* Returns SW_ERR_CORRUPT, and in *out_changed the first token of the first changed block. */
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

/* Fails for a block that differs from what an earlier process read although its files have the same times. */
static sw_status explain_silent(const struct sw_token_stream *stream, bool marks, int64_t block) {
    const struct sw_token_location at = sw_token_stream_locate(stream, block);
    return sw_fail(
        SW_ERR_ARG,
        "the data file %s%s reads differently from token %lld on than when it was first read, though its time "
        "of writing is the same: its drive may be failing; restore it and resume, or `touch` it and start a "
        "new run",
        at.file, marks ? ".mask or .doc" : "", (long long)at.index);
}

static sw_status explain(const struct sw_token_stream *stream, const struct sw_data_file *now, int64_t block) {
    char time[TIME_CHARS];
    const struct sw_token_location at = sw_token_stream_locate(stream, block);
    return sw_fail(SW_ERR_ARG,
                   "the data file %s%s was changed while it was in use (it has %lld bytes, written %s): what it says "
                   "from token %lld of %s on is not what the run began with; restore it and resume, or start a new run",
                   now->path, now->suffix, (long long)now->bytes, text_of_time(&now->written, time),
                   (long long)at.index, at.file);
}

/* Refuses a range of a part, and the marks after its first token, if the blocks that hold the range have changed since
 * they were first read. Reads only blocks of files that were changed after the opening, and blocks that this process
 * has not read before (data.h). */
static sw_status data_check_unchanged(struct sw_data *data, sw_data_part part, int64_t first, int64_t count) {
    struct sw_token_stream *stream = data_part_stream(data, part);
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

#define VALIDATION_MAX_PERCENT 50.0

/* Separates the order of windows from every other use of the same seed. The epoch is added. */
#define DATA_RNG_STREAM (UINT64_C(0x64617461) << 32)

static sw_status check_spec(const struct sw_data_spec *spec) {
    assert(spec->vocab >= 1 && spec->vocab <= INT32_MAX);
    if (spec->seq < 1 || spec->seq > INT32_MAX)
        return sw_fail(SW_ERR_ARG, "a sequence of %lld tokens is not possible; give at least 1", (long long)spec->seq);
    if (!(spec->validation_percent >= 0 && spec->validation_percent <= VALIDATION_MAX_PERCENT))
        return sw_fail(SW_ERR_ARG, "a validation part of %g%% is not possible; give 0%% to %g%%",
                       spec->validation_percent, VALIDATION_MAX_PERCENT);
    if (spec->validation_file != NULL && spec->validation_percent > 0)
        return sw_fail(SW_ERR_ARG, "validation is a file (%s) and a part (%g%%) of the data; give one of them",
                       spec->validation_file, spec->validation_percent);
    return SW_OK;
}

/* Tells whether sequences hold whole documents (text/documents/token_writer.h). One token then follows the last
 * sequence, as its last target, and is a document of its own. */
static sw_status is_packed(const struct sw_data *data, int64_t tokens, bool *out) {
    uint8_t mark = 0;
    if (tokens > data->seq && tokens % data->seq == 1 && sw_token_stream_has_documents(data->stream))
        SW_TRY(sw_token_stream_read_marks(data->stream, tokens - 1, 1, &mark));
    *out = (mark & SW_TOKEN_BEGINS_DOCUMENT) != 0;
    return SW_OK;
}

/* Makes the last part of the stream the validation part. If documents are packed, that part has whole sequences, at
 * least one, so that both parts keep their documents whole; the token between the parts, which has no loss, belongs to
 * both. */
static sw_status divide(struct sw_data *data, int64_t tokens, double percent) {
    bool packed = false;
    data->validation_tokens = (int64_t)((double)tokens * percent / 100.0);
    data->train_tokens = tokens - data->validation_tokens;
    data->validation_first = data->train_tokens;
    if (percent > 0)
        SW_TRY(is_packed(data, tokens, &packed));
    const int64_t grain = data->pairs ? 2 : 1;
    if (!packed)
        return SW_OK;
    const int64_t sequences = sw_max_i64(grain, data->validation_tokens / data->seq / grain * grain);
    data->validation_tokens = sequences * data->seq + 1;
    data->validation_first = tokens - data->validation_tokens;
    data->train_tokens = data->validation_first + 1;
    return SW_OK;
}

static sw_status open_streams(struct sw_data *data, const struct sw_data_spec *spec) {
    const bool evaluates_only = spec->file_count == 0 && spec->validation_file != NULL;
    if (!evaluates_only)
        SW_TRY(sw_token_stream_open(spec->files, spec->file_count, spec->vocab, spec->format, &data->stream));
    const int64_t tokens = evaluates_only ? 0 : sw_token_stream_tokens(data->stream);
    if (spec->validation_file != NULL) {
        SW_TRY(sw_token_stream_open(&spec->validation_file, 1, spec->vocab, spec->format, &data->validation_stream));
        data->validation_tokens = sw_token_stream_tokens(data->validation_stream);
        data->train_tokens = tokens;
        return SW_OK;
    }
    return divide(data, tokens, spec->validation_percent);
}

static sw_status check_lengths(const struct sw_data *data, const struct sw_data_spec *spec) {
    const bool wants_validation = spec->validation_file != NULL || spec->validation_percent > 0;
    const struct {
        const char *name;
        int64_t tokens;
        bool wanted;
    } parts[] = {{"training", data->train_tokens, data->stream != NULL},
                 {"validation", data->validation_tokens, wants_validation}};
    for (int i = 0; i < 2; i++) {
        if (parts[i].wanted && parts[i].tokens < data->seq + 1)
            return sw_fail(SW_ERR_ARG,
                           "the %s data holds %s, but a sequence of %lld needs %lld; give more data or a "
                           "shorter sequence",
                           parts[i].name, SW_COUNT(parts[i].tokens, "token"), (long long)data->seq,
                           (long long)data->seq + 1);
    }
    return SW_OK;
}

static sw_status scan_stream(struct sw_data *data, struct sw_token_stream *stream, struct sw_data_digests *digests,
                             XXH3_state_t *hash) {
    const int64_t tokens = sw_token_stream_tokens(stream);
    SW_TRY(data_digests_alloc(digests, 0, tokens));
    for (int64_t first = 0; first < tokens; first += SW_DATA_BLOCK) {
        const int64_t count = sw_min_i64(SW_DATA_BLOCK, tokens - first);
        const size_t bytes = (size_t)count * sizeof *data->block;
        SW_TRY(sw_token_stream_read(stream, first, count, data->block));
        XXH3_64bits_update(hash, data->block, bytes);
        digests->block[first / SW_DATA_BLOCK] = XXH3_64bits(data->block, bytes);
    }
    return SW_OK;
}

/* A part of a stream's tokens. */
struct part {
    const char *name;
    int64_t first, tokens;
    int64_t shared; /* tokens at its end that belong to the next part too */
};

/* Counts the marks of a part's first token. It is no window's target, and the others are counted below. */
static sw_status count_first(struct sw_token_stream *stream, int64_t first, struct sw_token_counts *counts) {
    uint8_t mark;
    SW_TRY(sw_token_stream_read_marks(stream, first, 1, &mark));
    mark &= (uint8_t)~SW_TOKEN_LEARNT;
    sw_token_counts_add(counts, &mark, 1);
    /* A document that began before the part counts too. */
    counts->documents += sw_token_stream_has_documents(stream) && mark == 0;
    return SW_OK;
}

static sw_status scan_marks_of(struct sw_data *data, sw_data_part index, const struct part *part, XXH3_state_t *hash) {
    struct sw_data_digests *digests = &data->mark_digests[index];
    uint8_t *buffer = (uint8_t *)data->block;
    const int64_t start = part->first + 1, end = part->first + part->tokens;
    struct sw_token_stream *stream = data_part_stream(data, index);
    struct sw_token_counts *counts = &data->counts[index];
    *counts = (struct sw_token_counts){0};
    SW_TRY(data_digests_alloc(digests, start, end));
    SW_TRY(count_first(stream, part->first, counts));
    for (int64_t first = start; first < end; first += SW_DATA_BLOCK) {
        const int64_t count = sw_min_i64(SW_DATA_BLOCK, end - first);
        SW_TRY(sw_token_stream_read_marks(stream, first, count, buffer));
        digests->block[(first - start) / SW_DATA_BLOCK] = XXH3_64bits(buffer, (size_t)count);
        /* A token of two parts begins the first document of the second. */
        sw_token_counts_add(counts, buffer, first + count == end ? count - part->shared : count);
        for (int64_t i = 0; i < count; i++)
            buffer[i] &= SW_TOKEN_LEARNT | SW_TOKEN_BEGINS_DOCUMENT;
        XXH3_64bits_update(hash, buffer, (size_t)count);
    }
    counts->tokens = part->tokens;
    return counts->learnt > 0 ? SW_OK
                              : sw_fail(SW_ERR_ARG,
                                        "masks and documents leave no token of the %s data with a loss; set some to 1, "
                                        "after the first token of a document",
                                        part->name);
}

static sw_status scan_marks(struct sw_data *data, XXH3_state_t *hash) {
    const bool shares = data->validation_stream == NULL && data->validation_tokens > 0;
    const struct part parts[SW_DATA_PARTS] = {
        {"training", 0, data->train_tokens, shares ? data->train_tokens - data->validation_first : 0},
        {"validation", data->validation_first, data->validation_tokens, 0}};
    for (int i = 0; i < SW_DATA_PARTS; i++) {
        data->counts[i].tokens = parts[i].tokens;
        data->counts[i].learnt = sw_max_i64(0, parts[i].tokens - 1);
        if (parts[i].tokens > 1 && sw_token_stream_marked(data_part_stream(data, (sw_data_part)i)))
            SW_TRY(scan_marks_of(data, (sw_data_part)i, &parts[i], hash));
    }
    return SW_OK;
}

/* Checks every token, and takes the digest of all of them and of the first validation token. */
static sw_status scan_all(struct sw_data *data) {
    XXH3_state_t *hash = XXH3_createState();
    sw_status status = SW_OK;
    if (hash == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read the data");
    XXH3_64bits_reset(hash);
    if (data->stream != NULL)
        SW_TRY_GOTO(scan_stream(data, data->stream, &data->token_digests[SW_DATA_TRAINING], hash), done);
    if (data->validation_stream != NULL)
        SW_TRY_GOTO(scan_stream(data, data->validation_stream, &data->token_digests[SW_DATA_VALIDATION], hash), done);
    SW_TRY_GOTO(scan_marks(data, hash), done);
    const int64_t lengths[] = {data->train_tokens, data->validation_tokens};
    XXH3_64bits_update(hash, lengths, sizeof lengths);
    data->digest = XXH3_64bits_digest(hash);
done:
    XXH3_freeState(hash);
    return status;
}

/* Adopts what an earlier opening of the same files found, or reads all of them. */
static sw_status scan(struct sw_data *data) {
    data->block = malloc(SW_DATA_BLOCK * sizeof *data->block);
    if (data->block == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read the data");
    if (kept_scan_load(data))
        return SW_OK;
    SW_TRY(scan_all(data));
    kept_scan_save(data);
    return SW_OK;
}

static sw_status check_pairs(const struct sw_data *data) {
    if (data->pairs && data->stream != NULL)
        SW_TRY(sw_token_stream_check_pairs(data->stream, data->seq));
    return data->pairs && data->validation_stream != NULL
               ? sw_token_stream_check_pairs(data->validation_stream, data->seq)
               : SW_OK;
}

sw_status sw_data_open(const struct sw_data_spec *spec, struct sw_data **out) {
    SW_TRY(check_spec(spec));
    struct sw_data *data = calloc(1, sizeof *data);
    if (data == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to open the data");
    data->vocab = spec->vocab;
    data->seq = spec->seq;
    data->seed = spec->seed;
    data->pairs = spec->pairs;
    sw_status status = SW_OK;
    SW_TRY_GOTO(open_streams(data, spec), failed);
    SW_TRY_GOTO(check_lengths(data, spec), failed);
    SW_TRY_GOTO(scan(data), failed);
    SW_TRY_GOTO(check_pairs(data), failed);
    data->window = malloc(((size_t)data->seq + 1) * sizeof *data->window);
    data->marks = malloc((size_t)data->seq);
    if (data->window == NULL || data->marks == NULL) {
        status = sw_fail(SW_ERR_NOMEM, "no memory for a window of %lld tokens", (long long)data->seq);
        goto failed;
    }
    *out = data;
    return SW_OK;
failed:
    sw_data_close(data);
    return status;
}

sw_status sw_data_count_train_tokens(const struct sw_data_spec *spec, int64_t *out) {
    struct sw_data data = {.vocab = spec->vocab, .seq = spec->seq, .pairs = spec->pairs};
    SW_TRY(check_spec(spec));
    sw_status status = open_streams(&data, spec);
    if (status == SW_OK)
        status = check_lengths(&data, spec);
    *out = data.train_tokens;
    sw_token_stream_close(data.stream);
    sw_token_stream_close(data.validation_stream);
    return status;
}

void sw_data_close(struct sw_data *data) {
    if (data == NULL)
        return;
    sw_token_stream_close(data->stream);
    sw_token_stream_close(data->validation_stream);
    free(data->window);
    free(data->marks);
    free(data->block);
    data_digests_free(data);
    free(data);
}

int64_t sw_data_train_tokens(const struct sw_data *data) {
    return data->train_tokens;
}

int64_t sw_data_validation_tokens(const struct sw_data *data) {
    return data->validation_tokens;
}

int64_t sw_data_validation_windows(const struct sw_data *data) {
    return data->validation_tokens > 1 ? sw_div_up(data->validation_tokens - 1, data->seq) : 0;
}

bool sw_data_has_documents(const struct sw_data *data) {
    return (data->stream != NULL && sw_token_stream_has_documents(data->stream)) ||
           (data->validation_stream != NULL && sw_token_stream_has_documents(data->validation_stream));
}

uint64_t sw_data_digest(const struct sw_data *data) {
    return data->digest;
}

/* Finds the window's document starts from the marks of its targets, which are those of the inputs after the first. */
static void find_starts(const uint8_t *marks, int64_t count, int32_t *starts) {
    starts[0] = 0;
    for (int64_t i = 1; i < count; i++)
        starts[i] = (marks[i - 1] & SW_TOKEN_BEGINS_DOCUMENT) != 0 ? (int32_t)i : starts[i - 1];
}

/* Reads `count` inputs starting at a token, and the targets that follow them. */
static sw_status read_window(struct sw_data *data, sw_data_part part, int64_t first, int64_t count,
                             struct sw_tokens out) {
    struct sw_token_stream *stream = data_part_stream(data, part);
    const sw_status status = sw_token_stream_read(stream, first, count + 1, data->window);
    if (status == SW_ERR_ARG)
        return sw_fail_while(status, "reading data that were right when they were opened, and were changed since");
    SW_TRY(status);
    memcpy(out.inputs, data->window, (size_t)count * sizeof *out.inputs);
    memcpy(out.targets, data->window + 1, (size_t)count * sizeof *out.targets);
    if (out.document_start != NULL)
        memset(out.document_start, 0, (size_t)count * sizeof *out.document_start);
    if (sw_token_stream_marked(stream)) {
        SW_TRY(sw_token_stream_read_marks(stream, first + 1, count, data->marks));
        for (int64_t i = 0; i < count; i++)
            if (data->marks[i] != SW_TOKEN_LEARNT)
                out.targets[i] = -1;
        if (out.document_start != NULL)
            find_starts(data->marks, count, out.document_start);
    }
    /* Checks after the read, so that a change during the read is seen. */
    return data_check_unchanged(data, part, first, count + 1);
}

int64_t sw_data_train_number(const struct sw_data *data, uint64_t position) {
    assert(data->stream != NULL);
    const uint64_t grain = data->pairs ? 2 : 1, place = position / grain;
    const uint64_t places = (uint64_t)sw_data_train_windows(data) / grain;
    const uint64_t epoch = place / places;
    return (int64_t)(grain * sw_rng_permute(data->seed, DATA_RNG_STREAM + epoch, place % places, places) +
                     position % grain);
}

/* Returns the first token of the window at a position of the endless training stream. */
static int64_t first_token(const struct sw_data *data, uint64_t position) {
    return sw_data_train_number(data, position) * data->seq;
}

sw_status sw_data_numbered_window(struct sw_data *data, int64_t number, struct sw_tokens out) {
    assert(number >= 0 && number < sw_data_train_windows(data));
    return read_window(data, SW_DATA_TRAINING, number * data->seq, data->seq, out);
}

sw_status sw_data_train_window(struct sw_data *data, uint64_t position, struct sw_tokens out) {
    return read_window(data, SW_DATA_TRAINING, first_token(data, position), data->seq, out);
}

sw_status sw_data_train_targets(struct sw_data *data, uint64_t position, int64_t *out) {
    *out = data->seq;
    if (!sw_token_stream_marked(data->stream))
        return SW_OK;
    SW_TRY(sw_token_stream_read_marks(data->stream, first_token(data, position) + 1, data->seq, data->marks));
    *out = 0;
    for (int64_t i = 0; i < data->seq; i++)
        *out += data->marks[i] == SW_TOKEN_LEARNT;
    return SW_OK;
}

sw_status sw_data_validation_window(struct sw_data *data, int64_t window, struct sw_tokens out) {
    assert(window >= 0 && window < sw_data_validation_windows(data));
    const int64_t first = window * data->seq;
    const int64_t count = sw_min_i64(data->seq, data->validation_tokens - 1 - first);
    SW_TRY(read_window(data, SW_DATA_VALIDATION, data->validation_first + first, count, out));
    for (int64_t i = count; i < data->seq; i++) {
        out.inputs[i] = 0;
        out.targets[i] = -1;
        if (out.document_start != NULL)
            out.document_start[i] = out.document_start[i - 1];
    }
    return SW_OK;
}

/* Tells whether a block has a loss for a token. */
static sw_status block_learns(struct sw_data *data, int64_t first, int64_t count, int32_t token, bool *out) {
    uint8_t *marks = malloc((size_t)count);
    sw_status status = marks != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to read the data");
    if (status == SW_OK)
        status = sw_token_stream_read(data->stream, first, count, data->block);
    if (status == SW_OK)
        status = sw_token_stream_read_marks(data->stream, first, count, marks);
    for (int64_t i = 0; status == SW_OK && i < count && !*out; i++)
        *out = data->block[i] == token && (marks[i] & SW_TOKEN_LEARNT) != 0;
    free(marks);
    return status;
}

sw_status sw_data_learns(struct sw_data *data, int32_t token, bool *out) {
    const int64_t blocks = sw_div_up(data->train_tokens, SW_DATA_BLOCK);
    const int64_t stride = sw_div_up(blocks, SW_DATA_LOOKED_BLOCKS);
    *out = false;
    for (int64_t b = 0; b < blocks && !*out; b += stride) {
        const int64_t first = b * SW_DATA_BLOCK;
        SW_TRY(block_learns(data, first, sw_min_i64(SW_DATA_BLOCK, data->train_tokens - first), token, out));
    }
    return SW_OK;
}

enum { BASELINE_MAX_VOCAB = 4096, PIECE_TOKENS = 16 * 1024 };

/* Counts of the training part, and a buffer for the tokens being counted. */
struct counts {
    int64_t vocab;
    uint32_t *single;  /* [vocab]: occurrences of a token */
    uint32_t *leading; /* [vocab]: occurrences of a token that another follows */
    uint32_t *pair;    /* [vocab][vocab]: occurrences of the second token right after the first */
    int64_t tokens;
    int32_t *piece; /* [PIECE_TOKENS] */
};

static void counts_free(struct counts *counts) {
    free(counts->single);
    free(counts->leading);
    free(counts->pair);
    free(counts->piece);
}

/* Allocates the counts. The caller frees them, even after a failure. */
static sw_status counts_allocate(struct counts *counts, int64_t vocab) {
    const size_t entries = (size_t)vocab;
    *counts = (struct counts){
        .vocab = vocab,
        .single = calloc(entries, sizeof *counts->single),
        .leading = calloc(entries, sizeof *counts->leading),
        .pair = calloc(entries * entries, sizeof *counts->pair),
        .piece = malloc(PIECE_TOKENS * sizeof *counts->piece),
    };
    if (counts->single != NULL && counts->leading != NULL && counts->pair != NULL && counts->piece != NULL)
        return SW_OK;
    return sw_fail(SW_ERR_NOMEM, "no memory to count the pairs of a vocabulary of %lld", (long long)vocab);
}

static sw_status count_training(struct counts *counts, const struct sw_data *data) {
    /* Counters of 32 bits halve the table. Text beyond their range would hardly change the models. */
    counts->tokens = sw_min_i64(data->train_tokens, UINT32_MAX);
    int32_t before = -1;
    for (int64_t first = 0; first < counts->tokens; first += PIECE_TOKENS) {
        const int64_t piece = sw_min_i64(PIECE_TOKENS, counts->tokens - first);
        SW_TRY(sw_token_stream_read(data->stream, first, piece, counts->piece));
        for (int64_t i = 0; i < piece; i++) {
            const int32_t token = counts->piece[i];
            counts->single[token]++;
            if (before >= 0) {
                counts->leading[before]++;
                counts->pair[(int64_t)before * counts->vocab + token]++;
            }
            before = token;
        }
    }
    return SW_OK;
}

static double unigram(const struct counts *counts, int32_t token) {
    return ((double)counts->single[token] + 1.0) / ((double)counts->tokens + (double)counts->vocab);
}

/* Add-one smoothing: one more pair is counted after every token, distributed like the unigram. */
static double bigram(const struct counts *counts, int32_t before, int32_t token) {
    const double pairs = (double)counts->pair[(int64_t)before * counts->vocab + token];
    return (pairs + unigram(counts, token)) / ((double)counts->leading[before] + 1.0);
}

/* Measures every token of the validation part except its first: the targets of a language model. */
static sw_status measure(const struct counts *counts, const struct sw_data *data, double *out_unigram_bits,
                         double *out_bigram_bits) {
    double unigram_sum = 0, bigram_sum = 0;
    int32_t before = -1;
    for (int64_t first = 0; first < data->validation_tokens; first += PIECE_TOKENS) {
        const int64_t piece = sw_min_i64(PIECE_TOKENS, data->validation_tokens - first);
        SW_TRY(sw_token_stream_read(data_part_stream(data, SW_DATA_VALIDATION), data->validation_first + first, piece,
                                    counts->piece));
        for (int64_t i = 0; i < piece; i++) {
            const int32_t token = counts->piece[i];
            if (before >= 0) {
                unigram_sum -= log2(unigram(counts, token));
                bigram_sum -= log2(bigram(counts, before, token));
            }
            before = token;
        }
    }
    *out_unigram_bits = unigram_sum / (double)(data->validation_tokens - 1);
    *out_bigram_bits = bigram_sum / (double)(data->validation_tokens - 1);
    return SW_OK;
}

sw_status sw_data_baselines(struct sw_data *data, double *out_unigram_bits, double *out_bigram_bits) {
    if (data->vocab > BASELINE_MAX_VOCAB)
        return sw_fail(SW_ERR_UNSUPPORTED, "baselines are for vocabularies of up to %d entries; this one has %lld",
                       BASELINE_MAX_VOCAB, (long long)data->vocab);
    if (data->validation_tokens < 2)
        return sw_fail(SW_ERR_ARG, "baselines need validation data; give a part or a file of it");
    if (sw_token_stream_marked(data->stream) || sw_token_stream_marked(data_part_stream(data, SW_DATA_VALIDATION)))
        return sw_fail(SW_ERR_UNSUPPORTED, "baselines count every token, but the data have a mask or documents");
    struct counts counts;
    sw_status status = counts_allocate(&counts, data->vocab);
    if (status == SW_OK)
        status = count_training(&counts, data);
    if (status == SW_OK)
        status = measure(&counts, data, out_unigram_bits, out_bigram_bits);
    counts_free(&counts);
    return status;
}
