#include "train/documents/token_writer.h"

#include "io/queue/file.h"
#include "train/files/files.h"

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

struct part {
    char path[PATH_MAX], partial[PATH_MAX];
    FILE *file; /* NULL: not written */
};

struct sw_token_writer {
    struct part tokens, documents, mask;
    int token_bytes;
    struct sw_token_position written;
};

static sw_status fail_on(const struct part *part, int error) {
    return sw_fail(sw_file_write_error(error), "%s cannot be written: %s", part->path, strerror(error));
}

/* Opens the partial file, and keeps what is in it. */
static sw_status open_part(const char *path, const char *suffix, struct part *part) {
    const int chars = snprintf(part->path, sizeof part->path, "%s%s", path, suffix);
    const int more = snprintf(part->partial, sizeof part->partial, "%s%s.partial", path, suffix);
    if (chars < 0 || more < 0 || more >= (int)sizeof part->partial)
        return sw_fail(SW_ERR_ARG, "the path of the token file is too long");
    const int fd = open(part->partial, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0)
        return fail_on(part, errno);
    part->file = fdopen(fd, "wb");
    if (part->file != NULL)
        return SW_OK;
    close(fd);
    return sw_fail(SW_ERR_NOMEM, "no memory to write tokens");
}

static void close_part(struct part *part) {
    if (part->file != NULL)
        fclose(part->file);
    part->file = NULL;
}

/* Locks the tokens' partial file for this writer alone, where the file system has locks. *out_again is set where the
 * file that was opened no longer has the name, as its writer has finished since. */
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

sw_status sw_token_writer_open(const char *path, int token_bytes, bool documents, struct sw_token_writer **out) {
    struct sw_token_writer *writer = calloc(1, sizeof *writer);
    if (writer == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to write tokens");
    writer->token_bytes = token_bytes;
    sw_status status = open_locked(path, &writer->tokens);
    if (status == SW_OK)
        status = open_part(path, ".mask", &writer->mask);
    if (status == SW_OK && documents)
        status = open_part(path, ".doc", &writer->documents);
    if (status != SW_OK) {
        sw_token_writer_close(writer, false);
        return status;
    }
    *out = writer;
    return SW_OK;
}

/* Cuts a partial file to so many bytes, and goes on behind them. */
static sw_status begin_part(const struct part *part, int64_t bytes) {
    struct stat info;
    if (part->file == NULL)
        return SW_OK;
    if (fstat(fileno(part->file), &info) != 0)
        return fail_on(part, errno);
    if (info.st_size < bytes)
        return sw_fail(SW_ERR_CORRUPT, "%s is shorter than it was", part->partial);
    const bool cut = ftruncate(fileno(part->file), bytes) == 0 && fseeko(part->file, bytes, SEEK_SET) == 0;
    return cut ? SW_OK : fail_on(part, errno);
}

sw_status sw_token_writer_begin(struct sw_token_writer *writer, const struct sw_token_position *position) {
    SW_TRY(begin_part(&writer->tokens, position->tokens * writer->token_bytes));
    SW_TRY(begin_part(&writer->mask, position->tokens));
    SW_TRY(begin_part(&writer->documents, position->documents * (int64_t)sizeof(uint64_t)));
    writer->written = *position;
    return SW_OK;
}

sw_status sw_token_writer_flush(struct sw_token_writer *writer) {
    const struct part *parts[] = {&writer->tokens, &writer->mask, &writer->documents};
    for (int i = 0; i < 3; i++)
        if (parts[i]->file != NULL && (fflush(parts[i]->file) != 0 || fdatasync(fileno(parts[i]->file)) != 0))
            return fail_on(parts[i], errno);
    return SW_OK;
}

static sw_status write_part(const struct part *part, const void *data, size_t bytes) {
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
    return write_part(&writer->tokens, is_narrow ? (const void *)narrow : wide, count * (size_t)writer->token_bytes);
}

sw_status sw_token_writer_add(struct sw_token_writer *writer, const struct sw_token_list *tokens, struct sw_text loss) {
    enum { AT_ONCE = 4096 };
    const uint64_t begin = htole64((uint64_t)writer->written.tokens);
    assert(loss.bytes == tokens->count);
    if (tokens->count == 0)
        return SW_OK;
    SW_TRY(write_part(&writer->mask, loss.data, loss.bytes));
    const bool begins = writer->documents.file != NULL || writer->written.tokens == 0;
    for (size_t i = 0; i < loss.bytes; i++) {
        writer->written.masked += loss.data[i] != 1;
        writer->written.learnt += loss.data[i] != 0 && (i > 0 || !begins);
    }
    if (writer->documents.file != NULL)
        SW_TRY(write_part(&writer->documents, &begin, sizeof begin));
    for (size_t at = 0; at < tokens->count; at += AT_ONCE)
        SW_TRY(write_tokens(writer, tokens->id + at, tokens->count - at < AT_ONCE ? tokens->count - at : AT_ONCE));
    writer->written.documents++;
    writer->written.tokens += (int64_t)tokens->count;
    return SW_OK;
}

/* Gives the file, which was flushed, its name before its lock ends with it. */
static sw_status publish_part(struct part *part) {
    if (part->file == NULL)
        return SW_OK;
    const bool done = rename(part->partial, part->path) == 0;
    const int why = errno;
    if (done)
        close_part(part);
    return done ? SW_OK : fail_on(part, why);
}

static void discard(struct part *part) {
    if (part->file != NULL)
        unlink(part->partial);
    close_part(part);
}

sw_status sw_token_writer_refuse_mask(const struct sw_token_writer *writer) {
    if (access(writer->mask.path, F_OK) != 0)
        return SW_OK;
    return sw_fail(SW_ERR_ARG, "%s belongs to other tokens; remove it first", writer->mask.path);
}

/* Removes tokens of before, durably: until the new ones have their name there are none, so that no one takes documents
 * and a mask for those of other tokens, whenever the process or the power is cut off. */
static sw_status remove_before(const struct part *tokens) {
    if (unlink(tokens->path) == 0)
        return sw_file_flush_folder_of(tokens->path);
    return errno == ENOENT ? SW_OK : fail_on(tokens, errno);
}

sw_status sw_token_writer_publish(struct sw_token_writer *writer) {
    if (writer->written.masked == 0) {
        SW_TRY(sw_token_writer_refuse_mask(writer));
        discard(&writer->mask);
    }
    SW_TRY(sw_token_writer_flush(writer));
    SW_TRY(remove_before(&writer->tokens));
    SW_TRY(publish_part(&writer->mask));
    SW_TRY(publish_part(&writer->documents));
    SW_TRY(sw_file_flush_folder_of(writer->tokens.path));
    SW_TRY(publish_part(&writer->tokens));
    return sw_file_flush_folder_of(writer->tokens.path);
}

void sw_token_writer_close(struct sw_token_writer *writer, bool keeps) {
    void (*const end)(struct part *) = keeps ? close_part : discard;
    if (writer == NULL)
        return;
    end(&writer->mask);
    end(&writer->documents);
    end(&writer->tokens); /* last: its lock is that of all */
    free(writer);
}

struct sw_token_position sw_token_writer_position(const struct sw_token_writer *writer) {
    return writer->written;
}
