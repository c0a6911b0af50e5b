#include "run/data/kept_scan.h"

#include "core/error_scope.h"
#include "core/files/cache.h"
#include "core/files/files.h"
#include "core/size.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Reading fewer tokens than these takes no longer than looking for what was kept. */
enum { FEWEST_TOKENS = 4 << 20 };
/* A file that was written within this time of its opening may be written again without another time, since file systems
 * count times in ticks of up to two seconds. */
enum { TICK_S = 3 };
enum { DAY_S = 24 * 60 * 60, MOST_UNUSED_S = 30 * DAY_S, RANGES = 2 * SW_DATA_PARTS };
#define KIND "scan"
#define ENDING "bin"

/* The front of the file. The block digests of each range follow, and behind them the XXH3 of all that stands before it.
 */
struct front {
    char name[8]; /* "SWSCAN1\0" */
    XXH128_hash_t key;
    uint64_t digest;
    struct {
        int64_t tokens, learnt, documents, split, padding, is_padding;
    } counts[SW_DATA_PARTS];
    struct {
        int64_t first, end; /* end 0: the range was not read */
    } range[RANGES];
};
static const char front_name[8] = "SWSCAN1";

static struct sw_data_digests *range_of(struct sw_data *data, int range) {
    return range < SW_DATA_PARTS ? &data->token_digests[range] : &data->mark_digests[range - SW_DATA_PARTS];
}

static int64_t blocks_of(int64_t first, int64_t end) {
    return sw_div_up(end - first, SW_DATA_BLOCK);
}

/* Computes the key of the data's scan. False: there is no memory for it. */
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

/* Reads a whole file of the cache. The caller frees the result; NULL: there is none that can be read. */
static char *read_kept(const char *path, size_t *out_bytes) {
    struct stat info;
    char *content = NULL;
    size_t done = 0;
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0)
        return NULL;
    if (fstat(file, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0)
        content = malloc((size_t)info.st_size);
    while (content != NULL && done < (size_t)info.st_size) {
        const ssize_t got = read(file, content + done, (size_t)info.st_size - done);
        if (got <= 0)
            break;
        done += (size_t)got;
    }
    close(file);
    *out_bytes = done;
    return content;
}

/* Tells whether a file is whole, of this key, and as long as its ranges say. */
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

/* Takes over the block digests behind the front. */
static sw_status take_ranges(struct sw_data *data, const struct front *front, const char *blocks) {
    for (int i = 0; i < RANGES; i++) {
        const int64_t first = front->range[i].first, end = front->range[i].end;
        if (end == 0)
            continue;
        struct sw_data_digests *digests = range_of(data, i);
        const size_t bytes = (size_t)blocks_of(first, end) * sizeof *digests->block;
        SW_TRY(sw_data_digests_alloc(digests, first, end));
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

bool sw_kept_scan_load(struct sw_data *data) {
    SW_HANDLES_ERRORS();
    char path[PATH_MAX];
    XXH128_hash_t key;
    struct front front;
    size_t bytes = 0;
    char *content = NULL;
    if (tokens_of(data) >= FEWEST_TOKENS && key_of(data, &key) && path_of(&key, path))
        content = read_kept(path, &bytes);
    const bool is_kept = content != NULL && is_sound(content, bytes, &key, &front) &&
                         take_ranges(data, &front, content + sizeof front) == SW_OK;
    free(content);
    if (!is_kept) {
        sw_data_digests_free(data);
        return false;
    }
    take_counts(data, &front);
    (void)utimensat(AT_FDCWD, path, NULL, 0);
    return true;
}

/* Tells whether a write to a file could still go unseen by its times, or went on during the scan. */
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

/* Removes scans that were not used for long from the folder that holds `path`. */
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

/* Writes the whole file into memory. The caller frees it; NULL: there is no memory. */
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

void sw_kept_scan_save(struct sw_data *data) {
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
