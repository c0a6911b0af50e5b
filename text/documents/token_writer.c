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
