/* Reads grains in place, from files that are not the store's.
 *
 * A checkpoint's tensors begin at any byte of its files, and a unit's at multiples of 128 bytes. Direct I/O moves whole
 * pages, so each read brings the pages of a run of bytes into a room, from which the lane copies it to its place. The
 * last bytes of a file fill no page: they are read once, through the page cache, and kept.
 *
 * The files belong to someone else, who may change them at any time. So only bytes whose checksums are those of the
 * run's beginning are used, as with the store's own grains. */
#include "core/files/files.h"
#include "core/size.h"
#include "io/queue/file.h"
#include "io/store/store_private.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PAGE_BYTES = SW_BUFFER_ALIGN_BYTES, NAME_CHARS = 640 };

int64_t sw_store_room_bytes(int64_t transfer_bytes) {
    return sw_round_up(sw_min_i64(transfer_bytes, SW_QUEUE_BLOCK_BYTES), PAGE_BYTES) + PAGE_BYTES;
}

static sw_status read_tail(struct sw_borrowed *self, int file) {
    const char *path = self->files.paths[file];
    int64_t bytes;
    SW_TRY(sw_file_size(self->files.fds[file], path, &bytes));
    self->page_bytes[file] = bytes / PAGE_BYTES * PAGE_BYTES;
    for (int64_t i = 0; i < self->files.piece_count; i++) {
        const struct sw_store_piece *piece = &self->files.pieces[i];
        if (piece->file == file && piece->offset_bytes + piece->bytes > bytes)
            return sw_fail(SW_ERR_CORRUPT, "%s ends at %lld, within '%s': it has been truncated", path,
                           (long long)bytes, piece->name);
    }
    if (bytes == self->page_bytes[file])
        return SW_OK;
    /* The page cache gives the bytes after the last whole page, whatever the descriptor in use may read. */
    int fd;
    SW_TRY(sw_file_open_to_read(path, &fd));
    const sw_status status = sw_file_read(fd, path, self->page_bytes[file], self->tails + (ptrdiff_t)file * PAGE_BYTES,
                                          bytes - self->page_bytes[file]);
    close(fd);
    return status;
}

static void index_pieces(const struct sw_store *store, struct sw_borrowed *self) {
    int64_t piece = 0;
    for (int64_t unit = 0; unit <= store->unit_count; unit++) {
        while (piece < self->files.piece_count && self->files.pieces[piece].unit < unit)
            piece++;
        self->first_piece[unit] = piece;
    }
}

sw_status sw_store_borrow(struct sw_store *store, const struct sw_store_files *files, void *rooms, int64_t room_bytes) {
    struct sw_borrowed *self = &store->borrowed;
    assert(self->files.count == 0 && files->count > 0 && atomic_load(&store->open_lanes) == 0);
    assert(store->areas[SW_STORE_IN_PLACE][0].extents != NULL && (uintptr_t)rooms % PAGE_BYTES == 0);
    assert(room_bytes >= sw_store_room_bytes(store->areas[SW_STORE_IN_PLACE][0].grain_bytes));
    *self = (struct sw_borrowed){.files = *files, .rooms = rooms, .room_bytes = room_bytes};
    self->first_piece = calloc((size_t)store->unit_count + 1, sizeof *self->first_piece);
    self->page_bytes = calloc((size_t)files->count, sizeof *self->page_bytes);
    self->tails = calloc((size_t)files->count, PAGE_BYTES);
    if (self->first_piece == NULL || self->page_bytes == NULL || self->tails == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read frozen weights in place");
    index_pieces(store, self);
    for (int file = 0; file < files->count; file++)
        SW_TRY(read_tail(self, file));
    return SW_OK;
}

/* Returns the first piece of a unit that ends behind this byte; NULL: there is none. */
static const struct sw_store_piece *find_piece(const struct sw_borrowed *self, int64_t unit, int64_t at_bytes) {
    int64_t from = self->first_piece[unit], to = self->first_piece[unit + 1];
    while (from < to) {
        const int64_t middle = from + (to - from) / 2;
        const struct sw_store_piece *piece = &self->files.pieces[middle];
        if (piece->at_bytes + piece->bytes > at_bytes)
            to = middle;
        else
            from = middle + 1;
    }
    return from < self->first_piece[unit + 1] ? &self->files.pieces[from] : NULL;
}

static int64_t grain_bytes_of(const struct sw_store *store) {
    return store->areas[SW_STORE_IN_PLACE][0].grain_bytes;
}

/* A read ends where a grain does, unless its piece ends before, so that it brings as many whole grains as it can. */
bool sw_borrowed_next(const struct sw_store *store, int64_t unit, int64_t at_bytes, int64_t end_bytes,
                      struct sw_borrowed_read *out) {
    const struct sw_borrowed *self = &store->borrowed;
    const int64_t grain_bytes = grain_bytes_of(store);
    const int64_t most_bytes = (self->room_bytes - PAGE_BYTES) / grain_bytes * grain_bytes;
    const struct sw_store_piece *piece = find_piece(self, unit, at_bytes);
    const int64_t first = piece != NULL ? sw_max_i64(at_bytes, piece->at_bytes) : end_bytes;
    if (first >= end_bytes)
        return false;
    const int64_t end = sw_min_i64(sw_min_i64(end_bytes, piece->at_bytes + piece->bytes),
                                   first / grain_bytes * grain_bytes + most_bytes);
    const int64_t offset = piece->offset_bytes + first - piece->at_bytes, page = offset / PAGE_BYTES * PAGE_BYTES;
    const int64_t pages_end = sw_min_i64(sw_round_up(offset + end - first, PAGE_BYTES), self->page_bytes[piece->file]);
    *out = (struct sw_borrowed_read){.at_bytes = first,
                                     .bytes = end - first,
                                     .file = piece->file,
                                     .offset_bytes = offset,
                                     .first_bytes = page,
                                     .moved_bytes = sw_max_i64(0, pages_end - page)};
    return true;
}

void sw_borrowed_copy(const struct sw_store *store, const struct sw_borrowed_read *read, const void *room,
                      int64_t at_bytes, int64_t bytes, void *to) {
    const struct sw_borrowed *self = &store->borrowed;
    const int64_t offset = read->offset_bytes + at_bytes - read->at_bytes;
    const int64_t in_room = sw_min_i64(bytes, sw_max_i64(0, read->first_bytes + read->moved_bytes - offset));
    if (in_room > 0)
        memcpy(to, (const char *)room + (offset - read->first_bytes), (size_t)in_room);
    if (in_room < bytes)
        memcpy((char *)to + in_room,
               self->tails + (ptrdiff_t)read->file * PAGE_BYTES + (offset + in_room - self->page_bytes[read->file]),
               (size_t)(bytes - in_room));
}

void sw_borrowed_zero(const struct sw_store *store, const struct sw_store_transfer *transfer) {
    const int64_t first = transfer->first_grain * grain_bytes_of(store);
    const int64_t end = first + transfer->grains * grain_bytes_of(store);
    struct sw_borrowed_read read;
    int64_t at = first;
    while (sw_borrowed_next(store, transfer->unit, at, end, &read)) {
        memset((char *)transfer->buf + (at - first), 0, (size_t)(read.at_bytes - at));
        at = read.at_bytes + read.bytes;
    }
    memset((char *)transfer->buf + (at - first), 0, (size_t)(end - at));
}

bool sw_borrowed_is_right(const struct sw_store *store, int64_t unit, int64_t grain, const void *bytes) {
    return sw_checksum(bytes, grain_bytes_of(store)) == *sw_area_sums(&store->areas[SW_STORE_IN_PLACE][0], unit, grain);
}

int64_t sw_borrowed_check(const struct sw_store *store, const struct sw_store_transfer *transfer) {
    const int64_t grain_bytes = grain_bytes_of(store), last = transfer->first_grain + transfer->grains;
    struct sw_borrowed_read read;
    int64_t grain = transfer->first_grain;
    for (int64_t at = grain * grain_bytes; grain < last;) {
        /* The grains of a read that it has whole were checked when it arrived. */
        const bool found = sw_borrowed_next(store, transfer->unit, at, last * grain_bytes, &read);
        const int64_t whole = found ? sw_div_up(read.at_bytes, grain_bytes) : last;
        for (; grain < whole; grain++)
            if (!sw_borrowed_is_right(store, transfer->unit, grain,
                                      (const char *)transfer->buf + (grain - transfer->first_grain) * grain_bytes))
                return grain;
        at = found ? read.at_bytes + read.bytes : last * grain_bytes;
        grain = sw_max_i64(grain, at / grain_bytes);
    }
    return -1;
}

/* Writes which tensors have bytes of a grain, and returns their file: "the tensor 'a'". */
static const char *name_tensors(const struct sw_store *store, int64_t unit, int64_t grain, char text[NAME_CHARS]) {
    const struct sw_borrowed *self = &store->borrowed;
    const int64_t at = grain * grain_bytes_of(store), end = at + grain_bytes_of(store);
    const struct sw_store_piece *first = find_piece(self, unit, at), *last = first;
    assert(first != NULL && first->at_bytes < end);
    while (last + 1 < self->files.pieces + self->first_piece[unit + 1] && last[1].at_bytes < end)
        last++;
    if (strcmp(first->name, last->name) == 0)
        snprintf(text, NAME_CHARS, "the tensor '%s'", first->name);
    else
        snprintf(text, NAME_CHARS, "one of the tensors from '%s' to '%s'", first->name, last->name);
    return self->files.paths[first->file];
}

sw_status sw_borrowed_refuse(const struct sw_store *store, const struct sw_store_transfer *transfer, int64_t grain) {
    char name[NAME_CHARS];
    const char *path = name_tensors(store, transfer->unit, grain, name);
    if (*sw_area_sums(&store->areas[SW_STORE_IN_PLACE][0], transfer->unit, grain) == SW_CHECKSUM_UNKNOWN)
        return sw_fail(SW_ERR_INTERNAL, "%s in %s was read before its checksums were known", name, path);
    return sw_fail(SW_ERR_CORRUPT,
                   "%s in %s has changed since the run began (grain %lld of unit %lld, step %lld): the run reads its "
                   "frozen weights from there; put the file back, or name a whole copy of the model by --model DIR",
                   name, path, (long long)grain, (long long)transfer->unit, (long long)transfer->step);
}
