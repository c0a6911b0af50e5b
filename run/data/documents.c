#include "run/data/documents.h"

#include "core/size.h"

#include <inttypes.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "document starts are read as they lie on disk");

enum { START_BYTES = sizeof(uint64_t), PIECE_STARTS = 1024 };

/* A run of the file's entries. */
struct piece {
    int64_t first, count;
    uint64_t start[PIECE_STARTS];
};

static sw_status read_piece(const struct sw_documents *documents, int64_t first, struct piece *out) {
    out->first = first;
    out->count = sw_min_i64(PIECE_STARTS, documents->count - first);
    return sw_data_file_read(&documents->file, first * START_BYTES, out->count * START_BYTES, out->start);
}

/* Documents are counted from 1 in messages. */
static sw_status check_start(const char *path, int64_t tokens, int64_t number, uint64_t before, uint64_t start) {
    if (number == 1 && start != 0)
        return sw_fail(SW_ERR_ARG, "%s.doc: the first document begins at token %" PRIu64 "; it must begin at 0", path,
                       start);
    if (number > 1 && start <= before)
        return sw_fail(SW_ERR_ARG,
                       "%s.doc: document %lld begins at token %" PRIu64 ", and the one before it at %" PRIu64
                       "; starts must rise",
                       path, (long long)number, start, before);
    if (start >= (uint64_t)tokens)
        return sw_fail(SW_ERR_ARG,
                       "%s.doc: document %lld begins at token %" PRIu64
                       ", beyond the %lld tokens of %s; make both from "
                       "the same text",
                       path, (long long)number, start, (long long)tokens, path);
    return SW_OK;
}

static sw_status check_all(const struct sw_documents *documents, int64_t tokens) {
    uint64_t before = 0;
    for (int64_t first = 0; first < documents->count; first += PIECE_STARTS) {
        struct piece piece;
        SW_TRY(read_piece(documents, first, &piece));
        for (int64_t i = 0; i < piece.count; i++) {
            SW_TRY(check_start(documents->file.path, tokens, first + i + 1, before, piece.start[i]));
            before = piece.start[i];
        }
    }
    return SW_OK;
}

sw_status sw_documents_open(const char *path, int64_t tokens, struct sw_documents *out) {
    out->count = 0;
    SW_TRY(sw_data_file_open(path, ".doc", &out->file));
    if (!sw_data_file_is_there(&out->file))
        return SW_OK;
    if (out->file.bytes == 0 || out->file.bytes % START_BYTES != 0)
        return sw_fail(SW_ERR_ARG, "%s.doc has %lld bytes; it must hold %d bytes for each document's start, and one",
                       path, (long long)out->file.bytes, START_BYTES);
    out->count = out->file.bytes / START_BYTES;
    return check_all(out, tokens);
}

void sw_documents_close(struct sw_documents *documents) {
    sw_data_file_close(&documents->file);
}

/* The first document that begins at a token or after it. */
static sw_status find(const struct sw_documents *documents, int64_t token, int64_t *out) {
    int64_t low = 0, high = documents->count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        uint64_t start;
        SW_TRY(sw_data_file_read(&documents->file, middle * START_BYTES, START_BYTES, &start));
        if (start < (uint64_t)token)
            low = middle + 1;
        else
            high = middle;
    }
    *out = low;
    return SW_OK;
}

sw_status sw_documents_mark(const struct sw_documents *documents, int64_t first, int64_t count, uint8_t mark,
                            uint8_t *marks) {
    int64_t next;
    SW_TRY(find(documents, first, &next));
    for (; next < documents->count; next += PIECE_STARTS) {
        struct piece piece;
        SW_TRY(read_piece(documents, next, &piece));
        for (int64_t i = 0; i < piece.count; i++) {
            const uint64_t at = piece.start[i] - (uint64_t)first;
            if (at >= (uint64_t)count)
                return SW_OK;
            marks[at] = mark;
        }
    }
    return SW_OK;
}
