/* Writes a token file with its documents and mask, all or nothing, in spite of kills and power losses.
 *
 * Four files have to appear together, and no file system renames four names at once. So the order of renames makes
 * every intermediate state harmless: old tokens go first and new tokens come last, because documents and a mask without
 * tokens belong to nobody, but tokens with another file's mask would train wrongly.
 *
 * Work of hours is resumable. A position with the digest of each file so far is flushed now and then; a later writer
 * cuts the partial files to it and proves them by the digests. */
#include "text/documents/token_writer.h"

#include "core/files/files.h"
#include "core/log.h"
#include "core/status.h"
#include "io/queue/file.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { READ_BYTES = 1 << 20, DIGEST_CHARS = 16 };
enum { TOKENS, DOCUMENTS, MASK, PARTS, DIGESTS = PARTS, FILES };
static_assert((int)PARTS == (int)SW_TOKEN_FILES, "a digest of each");
static const char *const suffixes[FILES] = {[TOKENS] = "", [DOCUMENTS] = ".doc", [MASK] = ".mask", [DIGESTS] = ".xxh3"};
static const char no_digest[] = "none";

struct part {
    char path[PATH_MAX], partial[PATH_MAX], before[PATH_MAX];
    FILE *file; /* NULL: this file is not written */
    bool is_published;
    bool is_aside;      /* the file that had the path was moved to `before` */
    XXH3_state_t *hash; /* of what was written */
};

struct sw_token_writer {
    struct part part[FILES];
    int token_bytes;
    struct sw_token_position written; /* without its digests */
};

static sw_status fail_on(const struct part *part, int error) {
    return sw_fail(sw_file_write_error(error), "%s cannot be written: %s", part->path, strerror(error));
}

/* Opens the partial file, and keeps its content. */
static sw_status open_part(const char *path, const char *suffix, struct part *part) {
    struct stat info;
    const int chars = snprintf(part->path, sizeof part->path, "%s%s", path, suffix);
    const int more = snprintf(part->partial, sizeof part->partial, "%s%s.partial", path, suffix);
    const int most = snprintf(part->before, sizeof part->before, "%s%s.old.partial", path, suffix);
    if (chars < 0 || more < 0 || most < 0 || most >= (int)sizeof part->before)
        return sw_fail(SW_ERR_ARG, "the path of the token file is too long");
    const int fd = open(part->partial, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0)
        return fail_on(part, errno);
    part->hash = XXH3_createState();
    part->file = part->hash != NULL ? fdopen(fd, "r+b") : NULL;
    if (part->file != NULL)
        return SW_OK;
    /* An earlier call may have left a file with tokens, and another process may be writing one. */
    if (fstat(fd, &info) == 0 && info.st_size == 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
        unlink(part->partial);
    close(fd);
    return sw_fail(SW_ERR_NOMEM, "no memory to write tokens");
}

static void close_part(struct part *part) {
    if (part->file != NULL)
        fclose(part->file);
    XXH3_freeState(part->hash);
    part->file = NULL;
    part->hash = NULL;
}

/* Locks the tokens' partial file for this writer, if the file system has locks. *out_again is set if the opened file no
 * longer has the name, because its writer has finished. */
static sw_status lock(const struct part *part, bool *out_again) {
    struct stat opened, named;
    *out_again = false;
    if (flock(fileno(part->file), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return sw_fail(SW_ERR_BUSY, "another process is writing %s; wait for it, or write to another file", part->path);
    *out_again = fstat(fileno(part->file), &opened) != 0 || stat(part->partial, &named) != 0 ||
                 opened.st_ino != named.st_ino || opened.st_dev != named.st_dev;
    return SW_OK;
}

static sw_status open_locked(const char *path, struct part *part) {
    for (bool again = true; again;) {
        SW_TRY(open_part(path, "", part));
        const sw_status status = lock(part, &again);
        if (status != SW_OK || again)
            close_part(part);
        SW_TRY(status);
    }
    return SW_OK;
}

sw_status sw_token_writer_open(const char *path, const struct sw_token_files *files, struct sw_token_writer **out) {
    struct sw_token_writer *writer = calloc(1, sizeof *writer);
    if (writer == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to write tokens");
    writer->token_bytes = files->token_bytes;
    sw_status status = open_locked(path, &writer->part[TOKENS]);
    if (status == SW_OK)
        status = open_part(path, suffixes[MASK], &writer->part[MASK]);
    if (status == SW_OK && files->documents)
        status = open_part(path, suffixes[DOCUMENTS], &writer->part[DOCUMENTS]);
    if (status == SW_OK && files->digests)
        status = open_part(path, suffixes[DIGESTS], &writer->part[DIGESTS]);
    if (status != SW_OK) {
        sw_token_writer_close(writer, false);
        return status;
    }
    *out = writer;
    return SW_OK;
}

/* Updates the digest by a whole file. */
static sw_status hash_file(int fd, XXH3_state_t *hash, struct sw_long_work *work, int64_t *done) {
    char *bytes = malloc(READ_BYTES);
    sw_status status = bytes != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to check tokens");
    XXH3_64bits_reset(hash);
    for (off_t at = 0; status == SW_OK;) {
        const ssize_t count = pread(fd, bytes, READ_BYTES, at);
        if (count == 0)
            break;
        if (count < 0) {
            status = sw_fail(SW_ERR_IO, "tokens cannot be read: %s", strerror(errno));
            break;
        }
        XXH3_64bits_update(hash, bytes, (size_t)count);
        at += count;
        *done += count;
        status = sw_long_work_at(work, *done);
    }
    free(bytes);
    return status;
}

/* Cuts a partial file to `bytes` bytes, which must have this digest, and continues after them. */
static sw_status begin_part(const struct part *part, int64_t bytes, uint64_t digest) {
    struct stat info;
    int64_t done = 0;
    if (part->file == NULL)
        return SW_OK;
    if (fstat(fileno(part->file), &info) != 0)
        return fail_on(part, errno);
    if (info.st_size < bytes)
        return sw_fail(SW_ERR_CORRUPT, "%s is shorter than it was", part->partial);
    const bool cut = ftruncate(fileno(part->file), bytes) == 0 && fseeko(part->file, bytes, SEEK_SET) == 0;
    if (!cut)
        return fail_on(part, errno);
    struct sw_long_work checking = sw_long_work_begin("checking what was done", bytes);
    SW_TRY(hash_file(fileno(part->file), part->hash, &checking, &done));
    sw_long_work_end(&checking);
    if (bytes > 0 && XXH3_64bits_digest(part->hash) != digest)
        return sw_fail(SW_ERR_CORRUPT, "%s is not as it was written", part->partial);
    return SW_OK;
}

/* Tells whether a position is plausible: anyone may have written the journal it comes from. */
static bool is_possible(const struct sw_token_position *p) {
    return p->tokens >= 0 && p->tokens <= INT64_MAX / (int64_t)sizeof(uint64_t) && p->learnt >= 0 &&
           p->learnt <= p->tokens && p->masked >= 0 && p->masked <= p->tokens && p->documents >= 0 &&
           p->documents <= p->tokens;
}

sw_status sw_token_writer_begin(struct sw_token_writer *writer, const struct sw_token_position *position) {
    if (!is_possible(position))
        return sw_fail(SW_ERR_CORRUPT, "no token file has such counts");
    const int64_t bytes[PARTS] = {[TOKENS] = position->tokens * writer->token_bytes,
                                  [DOCUMENTS] = position->documents * (int64_t)sizeof(uint64_t),
                                  [MASK] = position->tokens};
    for (int i = 0; i < PARTS; i++)
        SW_TRY(begin_part(&writer->part[i], bytes[i], position->digest[i]));
    writer->written = *position;
    return SW_OK;
}

static sw_status flush_part(const struct part *part) {
    const bool is_written = part->file != NULL;
    return is_written && (fflush(part->file) != 0 || fdatasync(fileno(part->file)) != 0) ? fail_on(part, errno) : SW_OK;
}

sw_status sw_token_writer_flush(struct sw_token_writer *writer) {
    for (int i = 0; i < PARTS; i++)
        SW_TRY(flush_part(&writer->part[i]));
    return SW_OK;
}

static sw_status write_part(const struct part *part, const void *data, size_t bytes) {
    XXH3_64bits_update(part->hash, data, bytes);
    return fwrite(data, 1, bytes, part->file) == bytes ? SW_OK : fail_on(part, errno);
}

static sw_status write_tokens(const struct sw_token_writer *writer, const int32_t *id, size_t count) {
    enum { AT_ONCE = 4096 };
    uint16_t narrow[AT_ONCE];
    uint32_t wide[AT_ONCE];
    const bool is_narrow = writer->token_bytes == (int)sizeof narrow[0];
    for (size_t i = 0; i < count; i++) {
        assert(id[i] >= 0 && (!is_narrow || id[i] <= UINT16_MAX));
        narrow[i] = htole16((uint16_t)id[i]);
        wide[i] = htole32((uint32_t)id[i]);
    }
    return write_part(&writer->part[TOKENS], is_narrow ? (const void *)narrow : wide,
                      count * (size_t)writer->token_bytes);
}

static sw_status add(struct sw_token_writer *writer, const struct sw_token_list *tokens, struct sw_text loss,
                     bool continues) {
    enum { AT_ONCE = 4096 };
    const uint64_t begin = htole64((uint64_t)writer->written.tokens);
    assert(loss.bytes == tokens->count);
    if (tokens->count == 0)
        return SW_OK;
    SW_TRY(write_part(&writer->part[MASK], loss.data, loss.bytes));
    const struct part *documents = &writer->part[DOCUMENTS];
    const bool begins = !continues && (documents->file != NULL || writer->written.tokens == 0);
    for (size_t i = 0; i < loss.bytes; i++) {
        writer->written.masked += loss.data[i] != 1;
        writer->written.learnt += loss.data[i] != 0 && (i > 0 || !begins);
    }
    if (documents->file != NULL && !continues)
        SW_TRY(write_part(documents, &begin, sizeof begin));
    for (size_t at = 0; at < tokens->count; at += AT_ONCE)
        SW_TRY(write_tokens(writer, tokens->id + at, tokens->count - at < AT_ONCE ? tokens->count - at : AT_ONCE));
    writer->written.documents += !continues;
    writer->written.tokens += (int64_t)tokens->count;
    return SW_OK;
}

sw_status sw_token_writer_add(struct sw_token_writer *writer, const struct sw_token_list *tokens, struct sw_text loss) {
    return add(writer, tokens, loss, false);
}

sw_status sw_token_writer_add_more(struct sw_token_writer *writer, const struct sw_token_list *tokens,
                                   struct sw_text loss) {
    return add(writer, tokens, loss, true);
}

/* Gives the flushed file its name. */
static sw_status publish_part(struct part *part) {
    part->is_published = part->file != NULL && rename(part->partial, part->path) == 0;
    return part->file == NULL || part->is_published ? SW_OK : fail_on(part, errno);
}

static void discard(struct part *part) {
    if (part->file != NULL)
        unlink(part->partial);
    close_part(part);
}

sw_status sw_token_writer_refuse_mask(const struct sw_token_writer *writer) {
    const char *mask = writer->part[MASK].path;
    return access(mask, F_OK) != 0 ? SW_OK : sw_fail(SW_ERR_ARG, "%s belongs to other tokens; remove it first", mask);
}

/* Moves the file that has the path, if there is one, to another name. */
static sw_status set_aside(struct part *part) {
    struct stat info;
    if (part->file == NULL)
        return SW_OK;
    if (lstat(part->path, &info) == 0 && S_ISDIR(info.st_mode))
        return fail_on(part, EISDIR);
    part->is_aside = rename(part->path, part->before) == 0;
    return part->is_aside || errno == ENOENT ? SW_OK : fail_on(part, errno);
}

/* Moves old tokens aside, durably, and then what belongs to them. Until the new tokens have their name there are none,
 * so nobody can take documents and a mask for those of other tokens, whenever process or power end. */
static sw_status set_all_aside(struct sw_token_writer *writer) {
    struct part *tokens = &writer->part[TOKENS];
    SW_TRY(set_aside(tokens));
    if (!tokens->is_aside)
        return SW_OK;
    SW_TRY(sw_file_flush_folder_of(tokens->path));
    for (int i = DOCUMENTS; i < FILES; i++)
        SW_TRY(set_aside(&writer->part[i]));
    return SW_OK;
}

/* Writes the digests of the written files, one per line, or that there is no such file. */
static sw_status write_digests(struct sw_token_writer *writer) {
    FILE *to = writer->part[DIGESTS].file;
    if (to == NULL)
        return SW_OK;
    if (ftruncate(fileno(to), 0) != 0)
        return fail_on(&writer->part[DIGESTS], errno);
    for (int i = 0; i < PARTS; i++) {
        const struct part *part = &writer->part[i];
        if (part->file != NULL)
            fprintf(to, "%0*llx\n", DIGEST_CHARS, (unsigned long long)XXH3_64bits_digest(part->hash));
        else
            fprintf(to, "%s\n", no_digest);
    }
    return flush_part(&writer->part[DIGESTS]);
}

static sw_status publish_all(struct sw_token_writer *writer) {
    struct part *tokens = &writer->part[TOKENS];
    SW_TRY(set_all_aside(writer));
    for (int i = DOCUMENTS; i < FILES; i++)
        SW_TRY(publish_part(&writer->part[i]));
    SW_TRY(sw_file_flush_folder_of(tokens->path));
    SW_TRY(publish_part(tokens));
    return sw_file_flush_folder_of(tokens->path);
}

static bool take_name_back(struct part *part) {
    if (part->is_published && rename(part->path, part->partial) != 0 && unlink(part->path) != 0)
        return false;
    part->is_published = false;
    return true;
}

static bool put_back(const struct part *part) {
    return !part->is_aside || rename(part->before, part->path) == 0;
}

/* Undoes a failed publication. The old tokens come back last: documents and a mask without tokens belong to nobody. */
static void put_all_back(struct sw_token_writer *writer) {
    SW_HANDLES_ERRORS();
    struct part *tokens = &writer->part[TOKENS];
    if (!take_name_back(tokens))
        return;
    bool is_back = true;
    for (int i = DOCUMENTS; i < FILES; i++) {
        const bool is_free = take_name_back(&writer->part[i]);
        is_back &= put_back(&writer->part[i]) && (is_free || writer->part[i].is_aside);
    }
    is_back = is_back && sw_file_flush_folder_of(tokens->path) == SW_OK && put_back(tokens);
    if (!is_back && tokens->is_aside)
        sw_log_warn(
            "the tokens that %s had could not be put back; they are in %s: to have them again, take .old.partial off "
            "its name, and off those of the files beside it that end so",
            tokens->path, tokens->before);
}

/* Removes what this call, or one that was killed, moved aside. */
static void remove_before(const struct part *part) {
    if (part->file != NULL)
        (void)unlink(part->before);
}

sw_status sw_token_writer_publish(struct sw_token_writer *writer) {
    if (writer->written.masked == 0) {
        SW_TRY(sw_token_writer_refuse_mask(writer));
        discard(&writer->part[MASK]);
    }
    SW_TRY(sw_token_writer_flush(writer));
    SW_TRY(write_digests(writer));
    const sw_status status = publish_all(writer);
    if (status != SW_OK)
        put_all_back(writer);
    for (int i = 0; status == SW_OK && i < FILES; i++) {
        remove_before(&writer->part[i]);
        close_part(&writer->part[i]);
    }
    return status;
}

void sw_token_writer_close(struct sw_token_writer *writer, bool keeps) {
    void (*const end)(struct part *) = keeps ? close_part : discard;
    if (writer == NULL)
        return;
    for (int i = FILES - 1; i >= 0; i--) /* the tokens last: they hold the lock of all */
        end(&writer->part[i]);
    free(writer);
}

struct sw_token_position sw_token_writer_position(const struct sw_token_writer *writer) {
    struct sw_token_position position = writer->written;
    for (int i = 0; i < PARTS; i++)
        position.digest[i] = writer->part[i].file != NULL ? XXH3_64bits_digest(writer->part[i].hash) : 0;
    return position;
}

/* Reads the digests next to a token file, in hexadecimal. *out_whole: all of them are there. Returns false if there is
 * no such file. */
static bool read_digests(const char *path, char out[PARTS][DIGEST_CHARS + 1], bool *out_whole) {
    char name[PATH_MAX];
    int count = 0;
    if (snprintf(name, sizeof name, "%s%s", path, suffixes[DIGESTS]) >= (int)sizeof name)
        return false;
    const int fd = open(name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    FILE *file = fd >= 0 ? fdopen(fd, "r") : NULL;
    static_assert(DIGEST_CHARS == 16, "the format below has it");
    while (file != NULL && count < PARTS && fscanf(file, "%16s", out[count]) == 1)
        count++;
    *out_whole = count == PARTS;
    if (file != NULL)
        fclose(file);
    else if (fd >= 0)
        close(fd);
    return fd >= 0;
}

/* Compares a file with its digest, which may say that there is no file. *out_same: it is the file that was written. */
static sw_status check_part(const char *path, const char *wanted, struct sw_long_work *work, int64_t *done,
                            bool *out_same) {
    char found[DIGEST_CHARS + 1];
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    const bool is_there = fd >= 0 || errno != ENOENT;
    XXH3_state_t *hash = XXH3_createState();
    sw_status status = hash != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to check tokens");
    *out_same = fd < 0 && !is_there && strcmp(wanted, no_digest) == 0;
    if (status == SW_OK && fd >= 0) {
        status = hash_file(fd, hash, work, done);
        (void)snprintf(found, sizeof found, "%0*llx", DIGEST_CHARS, (unsigned long long)XXH3_64bits_digest(hash));
        *out_same = status == SW_OK && strcmp(wanted, found) == 0;
    }
    /* An unreadable file is not the one that was written. */
    if (status == SW_ERR_IO) {
        sw_error_clear();
        status = SW_OK;
    }
    XXH3_freeState(hash);
    if (fd >= 0)
        close(fd);
    return status;
}

sw_status sw_token_file_check(const char *path, sw_token_verdict *out) {
    char wanted[PARTS][DIGEST_CHARS + 1], name[PATH_MAX];
    struct stat info;
    int64_t done = 0;
    bool is_same = true;
    *out = SW_TOKENS_WITHOUT_DIGESTS;
    if (!read_digests(path, wanted, &is_same))
        return SW_OK;
    const int64_t bytes = stat(path, &info) == 0 ? info.st_size : 0;
    struct sw_long_work checking = sw_long_work_begin("checking tokens", bytes);
    for (int i = 0; is_same && i < PARTS; i++) {
        (void)snprintf(name, sizeof name, "%s%s", path, suffixes[i]);
        SW_TRY(check_part(name, wanted[i], &checking, &done, &is_same));
    }
    sw_long_work_end(&checking);
    *out = is_same ? SW_TOKENS_RIGHT : SW_TOKENS_DAMAGED;
    return SW_OK;
}

/* Packs documents into sequences of equal length, best fit first.
 *
 * Up to MOST_OPEN sequences are open at once. A document goes into the fullest one that has room, so little padding is
 * needed without sorting the data, which would need all of it in memory and would change its order. Only a document
 * longer than a sequence is split; cutting all documents where sequences end would lose the beginning of half of them.
 */

/* More open sequences need less padding but more memory. */
enum { MOST_OPEN = 64 };

/* A sequence being filled. */
struct sequence {
    struct sw_token_list tokens;
    struct sw_text_buffer loss;
    struct sw_token_list lengths; /* lengths of its documents, in tokens */
};

struct sw_packer {
    struct sw_token_writer *writer;
    size_t seq;
    int32_t padding;
    struct sequence sequence[MOST_OPEN];
    int open;
    int64_t split, padded;
    /* The end of a document that comes in parts: at most a sequence and a part. */
    struct sw_token_list pending;
    struct sw_text_buffer pending_loss;
    bool pending_split; /* its beginning is already in sequences */
};

sw_status sw_packer_open(struct sw_token_writer *writer, int64_t seq, int32_t padding, struct sw_packer **out) {
    struct sw_packer *packer = calloc(1, sizeof *packer);
    if (packer == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to pack documents");
    *packer = (struct sw_packer){.writer = writer, .seq = (size_t)seq, .padding = padding};
    *out = packer;
    return SW_OK;
}

void sw_packer_close(struct sw_packer *packer) {
    if (packer != NULL) {
        free(packer->pending.id);
        free(packer->pending_loss.data);
    }
    for (int i = 0; packer != NULL && i < MOST_OPEN; i++) {
        free(packer->sequence[i].tokens.id);
        free(packer->sequence[i].loss.data);
        free(packer->sequence[i].lengths.id);
    }
    free(packer);
}

/* `part`: the SW_MASK_... value of something that is not a whole document, else 0. */
static sw_status append(struct sequence *sequence, const struct sw_token_list *tokens, struct sw_text loss, char part) {
    const int32_t length = (int32_t)tokens->count;
    const size_t first = sequence->loss.bytes;
    SW_TRY(sw_token_list_append(&sequence->tokens, tokens->id, tokens->count));
    SW_TRY(sw_text_buffer_append(&sequence->loss, loss));
    if (part != 0)
        sequence->loss.data[first] = part;
    return sw_token_list_append(&sequence->lengths, &length, 1);
}

static sw_status fill_up(struct sw_packer *packer, struct sequence *sequence) {
    const size_t lacking = packer->seq - sequence->tokens.count;
    struct sw_token_list tokens = {0};
    struct sw_text_buffer loss = {0};
    if (lacking == 0)
        return SW_OK;
    sw_status status = sw_token_list_reserve(&tokens, lacking);
    if (status == SW_OK)
        status = sw_text_buffer_reserve(&loss, lacking);
    for (; status == SW_OK && tokens.count < lacking; tokens.count++, loss.bytes++) {
        tokens.id[tokens.count] = packer->padding;
        loss.data[loss.bytes] = 0;
    }
    if (status == SW_OK)
        status = append(sequence, &tokens, sw_text_of_buffer(&loss), SW_MASK_PADDING);
    packer->padded += (int64_t)lacking;
    free(tokens.id);
    free(loss.data);
    return status;
}

/* Fills up a sequence, writes it and empties it. */
static sw_status write_packed(struct sw_packer *packer, struct sequence *sequence) {
    SW_TRY(fill_up(packer, sequence));
    for (size_t i = 0, at = 0; packer->writer != NULL && i < sequence->lengths.count; i++) {
        const size_t length = (size_t)sequence->lengths.id[i];
        const struct sw_token_list tokens = {.id = sequence->tokens.id + at, .count = length};
        SW_TRY(sw_token_writer_add(packer->writer, &tokens, (struct sw_text){sequence->loss.data + at, length}));
        at += length;
    }
    sequence->tokens.count = sequence->loss.bytes = sequence->lengths.count = 0;
    return SW_OK;
}

/* Returns the fullest sequence with room for `tokens` tokens, or NULL. */
static struct sequence *find(struct sw_packer *packer, size_t tokens) {
    struct sequence *best = NULL;
    for (int i = 0; i < packer->open; i++) {
        struct sequence *sequence = &packer->sequence[i];
        if (packer->seq - sequence->tokens.count < tokens)
            continue;
        if (best == NULL || sequence->tokens.count > best->tokens.count)
            best = sequence;
    }
    return best;
}

static sw_status add_fitting(struct sw_packer *packer, const struct sw_token_list *tokens, struct sw_text loss,
                             char part) {
    struct sequence *sequence = find(packer, tokens->count);
    if (sequence == NULL && packer->open < MOST_OPEN)
        sequence = &packer->sequence[packer->open++];
    if (sequence == NULL) {
        sequence = find(packer, 0);
        SW_TRY(write_packed(packer, sequence));
    }
    return append(sequence, tokens, loss, part);
}

sw_status sw_packer_add(struct sw_packer *packer, const struct sw_token_list *tokens, struct sw_text loss) {
    const bool is_split = tokens->count > packer->seq;
    packer->split += is_split;
    for (size_t at = 0; at < tokens->count; at += packer->seq) {
        const size_t left = tokens->count - at, taken = left < packer->seq ? left : packer->seq;
        const struct sw_token_list part = {.id = tokens->id + at, .count = taken};
        const char which = (char)(at == 0 ? SW_MASK_SPLIT : SW_MASK_CONTINUES);
        SW_TRY(add_fitting(packer, &part, (struct sw_text){loss.data + at, taken}, (char)(is_split ? which : 0)));
    }
    return SW_OK;
}

sw_status sw_packer_add_alone(struct sw_packer *packer, const struct sw_token_list *tokens, struct sw_text loss) {
    assert(packer->open == 0 && tokens->count <= packer->seq);
    SW_TRY(append(&packer->sequence[0], tokens, loss, 0));
    return write_packed(packer, &packer->sequence[0]);
}

sw_status sw_packer_add_part(struct sw_packer *packer, const struct sw_token_list *tokens, struct sw_text loss,
                             bool ends) {
    struct sw_token_list *pending = &packer->pending;
    size_t at = 0;
    SW_TRY(sw_token_list_append(pending, tokens->id, tokens->count));
    SW_TRY(sw_text_buffer_append(&packer->pending_loss, loss));
    while (pending->count - at > (ends ? 0 : packer->seq)) {
        const size_t left = pending->count - at, taken = left < packer->seq ? left : packer->seq;
        const struct sw_token_list part = {.id = pending->id + at, .count = taken};
        const bool is_whole = ends && !packer->pending_split && taken == left;
        const char which = (char)(packer->pending_split ? SW_MASK_CONTINUES : SW_MASK_SPLIT);
        packer->split += !is_whole && !packer->pending_split;
        SW_TRY(add_fitting(packer, &part, (struct sw_text){packer->pending_loss.data + at, taken},
                           (char)(is_whole ? 0 : which)));
        packer->pending_split = true;
        at += taken;
    }
    pending->count -= at;
    packer->pending_loss.bytes = pending->count;
    if (pending->count > 0) {
        memmove(pending->id, pending->id + at, pending->count * sizeof *pending->id);
        memmove(packer->pending_loss.data, packer->pending_loss.data + at, pending->count);
    }
    packer->pending_split &= !ends;
    return SW_OK;
}

sw_status sw_packer_finish(struct sw_packer *packer) {
    static const char padding = SW_MASK_PADDING;
    const struct sw_token_list last = {.id = &packer->padding, .count = 1};
    for (int i = 0; i < packer->open; i++)
        SW_TRY(packer->sequence[i].tokens.count > 0 ? write_packed(packer, &packer->sequence[i]) : SW_OK);
    packer->padded++;
    if (packer->writer == NULL)
        return SW_OK;
    return sw_token_writer_add(packer->writer, &last, (struct sw_text){&padding, 1});
}

int64_t sw_packer_split(const struct sw_packer *packer) {
    return packer->split;
}

int64_t sw_packer_padding(const struct sw_packer *packer) {
    return packer->padded;
}

/* The saved state: split, padding and the number of open sequences; then for each sequence its numbers of tokens and
 * documents, the tokens, their losses, and the lengths of the documents. */
static sw_status save_sequence(const struct sequence *sequence, struct sw_text_buffer *out) {
    const int64_t counts[] = {(int64_t)sequence->tokens.count, (int64_t)sequence->lengths.count};
    const struct sw_text parts[] = {
        {(const char *)counts, sizeof counts},
        {(const char *)sequence->tokens.id, sequence->tokens.count * sizeof *sequence->tokens.id},
        {sequence->loss.data, sequence->loss.bytes},
        {(const char *)sequence->lengths.id, sequence->lengths.count * sizeof *sequence->lengths.id}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (parts[i].bytes > 0)
            SW_TRY(sw_text_buffer_append(out, parts[i]));
    return SW_OK;
}

sw_status sw_packer_save(const struct sw_packer *packer, struct sw_text_buffer *out) {
    const int64_t counts[] = {packer->split, packer->padded, packer->open};
    SW_TRY(sw_text_buffer_append(out, (struct sw_text){(const char *)counts, sizeof counts}));
    for (int i = 0; i < packer->open; i++)
        SW_TRY(save_sequence(&packer->sequence[i], out));
    return SW_OK;
}

/* Takes bytes from the beginning of a state. */
static sw_status take(struct sw_text *state, void *out, size_t bytes) {
    if (state->bytes < bytes)
        return sw_fail(SW_ERR_CORRUPT, "the state of packed documents is cut off");
    if (bytes > 0)
        memcpy(out, state->data, bytes);
    *state = (struct sw_text){state->data + bytes, state->bytes - bytes};
    return SW_OK;
}

static sw_status take_ids(struct sw_text *state, int64_t count, struct sw_token_list *out) {
    SW_TRY(sw_token_list_reserve(out, (size_t)count));
    SW_TRY(take(state, out->id, (size_t)count * sizeof *out->id));
    out->count = (size_t)count;
    return SW_OK;
}

static sw_status fail_damaged(void) {
    return sw_fail(SW_ERR_CORRUPT, "the state of packed documents is damaged");
}

/* Tells whether a sequence is valid: its documents fill it, and its tokens are in the vocabulary. */
static bool is_sequence(const struct sequence *sequence, int64_t vocab) {
    size_t sum = 0;
    for (size_t i = 0; i < sequence->lengths.count; i++) {
        const int32_t length = sequence->lengths.id[i];
        if (length < 1 || (size_t)length > sequence->tokens.count)
            return false;
        sum += (size_t)length;
    }
    for (size_t i = 0; i < sequence->tokens.count; i++) {
        const char loss = sequence->loss.data[i];
        if (sequence->tokens.id[i] < 0 || sequence->tokens.id[i] >= vocab ||
            (loss != 0 && loss != 1 && loss != SW_MASK_SPLIT && loss != SW_MASK_CONTINUES))
            return false;
    }
    return sum == sequence->tokens.count;
}

static sw_status restore_sequence(const struct sw_packer *packer, struct sequence *sequence, int64_t vocab,
                                  struct sw_text *state) {
    int64_t counts[2];
    SW_TRY(take(state, counts, sizeof counts));
    if (counts[0] < 0 || counts[0] > (int64_t)packer->seq || counts[1] < 0 || counts[1] > counts[0])
        return fail_damaged();
    SW_TRY(take_ids(state, counts[0], &sequence->tokens));
    SW_TRY(sw_text_buffer_reserve(&sequence->loss, (size_t)counts[0]));
    SW_TRY(take(state, sequence->loss.data, (size_t)counts[0]));
    sequence->loss.bytes = (size_t)counts[0];
    SW_TRY(take_ids(state, counts[1], &sequence->lengths));
    return is_sequence(sequence, vocab) ? SW_OK : fail_damaged();
}

sw_status sw_packer_restore(struct sw_packer *packer, int64_t vocab, struct sw_text state) {
    int64_t counts[3];
    SW_TRY(take(&state, counts, sizeof counts));
    if (counts[0] < 0 || counts[1] < 0 || counts[2] < 0 || counts[2] > MOST_OPEN)
        return fail_damaged();
    packer->split = counts[0];
    packer->padded = counts[1];
    packer->open = (int)counts[2];
    for (int i = 0; i < packer->open; i++)
        SW_TRY(restore_sequence(packer, &packer->sequence[i], vocab, &state));
    return state.bytes == 0 ? SW_OK : fail_damaged();
}

size_t sw_packer_most_bytes(const struct sw_packer *packer) {
    const size_t of_token = 2 * sizeof(int32_t) + 1, of_sequence = 2 * sizeof(int64_t) + packer->seq * of_token;
    return 3 * sizeof(int64_t) + MOST_OPEN * of_sequence;
}
