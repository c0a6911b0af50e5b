#include "text/documents/tokenize_journal.h"

#include "core/error_scope.h"
#include "core/files/files.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* The file: this head, the packer's state, and the XXH3 of both. It is read on the machine that wrote it, so numbers
 * are as they lie in memory. */
struct head {
    char magic[8];
    struct sw_tokenize_journal journal;
};
static const char magic[sizeof(((struct head *)0)->magic)] = "SWTOKJ4";
enum { DIGEST_BYTES = sizeof(uint64_t) };
/* The bound is far beyond any file, and sums of such counts stay in range. */
#define MOST_COUNT (INT64_C(1) << 56)

static bool name_of(const char *out, char path[PATH_MAX]) {
    return snprintf(path, PATH_MAX, "%s.journal", out) < PATH_MAX;
}

sw_status sw_tokenize_journal_write(const char *out, const struct sw_tokenize_journal *journal, struct sw_text packed) {
    struct sw_text_buffer text = {0};
    struct head head = {.journal = *journal};
    char path[PATH_MAX];
    memcpy(head.magic, magic, sizeof magic);
    if (!name_of(out, path))
        return sw_fail(SW_ERR_ARG, "the path of the token file is too long");
    sw_status status = sw_text_buffer_append(&text, (struct sw_text){(const char *)&head, sizeof head});
    if (status == SW_OK && packed.bytes > 0)
        status = sw_text_buffer_append(&text, packed);
    if (status == SW_OK) {
        const uint64_t digest = XXH3_64bits(text.data, text.bytes);
        status = sw_text_buffer_append(&text, (struct sw_text){(const char *)&digest, sizeof digest});
    }
    if (status == SW_OK)
        status = sw_file_replace(path, text.data, text.bytes, SW_FILE_SHARED);
    free(text.data);
    return status;
}

static bool read_all(int fd, size_t most_bytes, struct sw_text_buffer *out) {
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size > (off_t)most_bytes ||
        sw_text_buffer_reserve(out, (size_t)info.st_size) != SW_OK)
        return false;
    for (ssize_t count = 1; count > 0 && out->bytes < (size_t)info.st_size; out->bytes += (size_t)count) {
        count = read(fd, out->data + out->bytes, (size_t)info.st_size - out->bytes);
        if (count < 0)
            return false;
    }
    return out->bytes == (size_t)info.st_size;
}

static bool is_whole(const struct sw_text_buffer *text) {
    uint64_t digest;
    if (text->bytes < sizeof(struct head) + DIGEST_BYTES || memcmp(text->data, magic, sizeof magic) != 0)
        return false;
    memcpy(&digest, text->data + text->bytes - DIGEST_BYTES, sizeof digest);
    return XXH3_64bits(text->data, text->bytes - DIGEST_BYTES) == digest;
}

/* Tells whether a journal may be one of these files. Anyone may have written it who may write beside the token file, so
 * its digest alone is no reason to believe it; what it says of the token file is checked by the token writer. */
static bool is_possible(const struct sw_tokenize_journal *journal, int64_t files) {
    const struct sw_text_position *read = &journal->read;
    const struct sw_text_pieces_position *within = &read->within;
    const int64_t counts[] = {within->lines, read->skipped, read->empty, read->replaced, read->beside, journal->put};
    bool is_possible = read->file >= 0 && read->file <= files && within->form >= 0 &&
                       within->form <= SW_TEXT_JSON_LIST && within->offset >= 0 && within->offset <= MOST_COUNT &&
                       (within->form > 0 || within->offset == 0) && within->lines <= within->offset &&
                       (read->has_chats == 0 || read->has_chats == 1) && journal->text_bytes >= 0 &&
                       journal->text_bytes <= MOST_COUNT;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        is_possible &= counts[i] >= 0 && counts[i] <= MOST_COUNT;
    return is_possible;
}

bool sw_tokenize_journal_read(const char *out, struct sw_tokenize_limits limits, struct sw_tokenize_journal *journal,
                              struct sw_text_buffer *packed) {
    SW_HANDLES_ERRORS();
    struct sw_text_buffer text = {0};
    struct head head;
    char path[PATH_MAX];
    const int fd = name_of(out, path) ? open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : -1;
    const size_t most_bytes = sizeof head + limits.packed_bytes + DIGEST_BYTES;
    bool found = fd >= 0 && read_all(fd, most_bytes, &text) && is_whole(&text);
    if (found) {
        memcpy(&head, text.data, sizeof head);
        *journal = head.journal;
        const struct sw_text rest = {text.data + sizeof head, text.bytes - sizeof head - DIGEST_BYTES};
        found = is_possible(journal, limits.files) && sw_text_buffer_append(packed, rest) == SW_OK;
    }
    if (fd >= 0)
        close(fd);
    free(text.data);
    return found;
}

void sw_tokenize_journal_remove(const char *out) {
    char path[PATH_MAX];
    if (name_of(out, path))
        (void)unlink(path);
}
