/* Grains that are in files of others are read there whatever the places of their bytes: across files, pages and pieces,
 * with gaps, up to the last byte of a file. The store takes no space for them. A wrong byte is read again, and then
 * refused by the name of its tensor. */
#include "io/store/store_private.h"
#include "tests/io/store_support.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { GRAIN_BYTES = 8192, GRAINS = 24, UNITS = STORE_UNITS, FILES = 2, MOST_PIECES = 400, SEEDS = 60 };
static const int64_t unit_grains[UNITS] = {GRAINS, 0, 5, 1};

/* Units whose bytes are spread over two files, and what a reader must find. */
struct lent {
    struct store_directories directories;
    struct sw_store_piece piece[MOST_PIECES];
    char names[MOST_PIECES][16];
    int64_t piece_count;
    const char *path[FILES];
    int fd[FILES];
    char *content[FILES], *expected[UNITS], *rooms, *buf;
    int64_t file_bytes[FILES], room_bytes;
};

/* Draws pieces of some hundred bytes or many grains, at any byte of a file; a few bytes between them are zero. */
static void draw_unit(struct lent *self, int64_t unit, uint64_t *draws) {
    const int64_t bytes = unit_grains[unit] * GRAIN_BYTES;
    for (int64_t at = 128 * random_below(draws, 3); at < bytes && self->piece_count < MOST_PIECES;) {
        const int64_t most = random_below(draws, 3) == 0 ? 12 * GRAIN_BYTES : 700;
        const int file = (int)random_below(draws, FILES);
        struct sw_store_piece *piece = &self->piece[self->piece_count];
        snprintf(self->names[self->piece_count], sizeof *self->names, "t%d", (int)self->piece_count);
        self->file_bytes[file] += random_below(draws, 5000);
        *piece = (struct sw_store_piece){.unit = unit,
                                         .at_bytes = at,
                                         .bytes = sw_min_i64(1 + random_below(draws, most), bytes - at),
                                         .file = file,
                                         .offset_bytes = self->file_bytes[file],
                                         .name = self->names[self->piece_count]};
        self->piece_count++;
        self->file_bytes[file] += piece->bytes;
        at += sw_round_up(piece->bytes, 128) + 128 * random_below(draws, 2);
    }
}

static void write_files(struct lent *self, const char *folder, uint64_t *draws) {
    for (int file = 0; file < FILES; file++) {
        self->path[file] = in_directory(folder, file == 0 ? "first" : "second");
        self->content[file] = malloc((size_t)self->file_bytes[file] + 1);
        for (int64_t i = 0; i < self->file_bytes[file]; i++)
            self->content[file][i] = (char)(1 + random_below(draws, 255));
        write_file(self->path[file], self->content[file], self->file_bytes[file]);
        self->fd[file] = open(self->path[file], O_RDONLY | O_CLOEXEC);
        CHECK(self->fd[file] >= 0);
    }
    for (int64_t unit = 0; unit < UNITS; unit++)
        self->expected[unit] = calloc((size_t)unit_grains[unit] + 1, GRAIN_BYTES);
    for (int64_t i = 0; i < self->piece_count; i++)
        memcpy(self->expected[self->piece[i].unit] + self->piece[i].at_bytes,
               self->content[self->piece[i].file] + self->piece[i].offset_bytes, (size_t)self->piece[i].bytes);
}

static void begin(struct lent *self, const char *folder) {
    uint64_t draws = test_seed * 1000;
    *self = (struct lent){.directories = make_store_directories(folder, 1)};
    for (int64_t unit = 0; unit < UNITS; unit++)
        draw_unit(self, unit, &draws);
    write_files(self, folder, &draws);
    self->room_bytes = sw_store_room_bytes((1 + random_below(&draws, 5)) * GRAIN_BYTES);
    self->rooms = io_buffer(SW_STORE_IN_PLACE_READS * self->room_bytes);
    self->buf = io_buffer(GRAINS * GRAIN_BYTES);
}

static void end(struct lent *self) {
    for (int file = 0; file < FILES; file++) {
        close(self->fd[file]);
        free(self->content[file]);
    }
    for (int64_t unit = 0; unit < UNITS; unit++)
        free(self->expected[unit]);
    free(self->rooms);
    free(self->buf);
}

/* Adds the grains to an open store, and lends it the files. */
static sw_status lend(struct lent *self, struct sw_store *store) {
    int64_t pages[UNITS] = {sw_store_kept_pages(GRAINS + 5 + 1)};
    const struct sw_store_scratch scratch[] = {
        {.kind = SW_STORE_KEPT_SUMS, .unit_grains = pages, .grain_bytes = SW_BUFFER_ALIGN_BYTES},
        {.kind = SW_STORE_IN_PLACE, .unit_grains = unit_grains, .grain_bytes = GRAIN_BYTES}};
    const struct sw_store_files files = {
        .paths = self->path, .fds = self->fd, .count = FILES, .pieces = self->piece, .piece_count = self->piece_count};
    const int64_t before = sw_store_file_bytes(store);
    for (int i = 0; i < 2; i++)
        SW_TRY(sw_store_add_scratch(store, &scratch[i]));
    CHECK(sw_store_file_bytes(store) - before < 4 * SW_BUFFER_ALIGN_BYTES);
    return sw_store_borrow(store, &files, self->rooms, self->room_bytes);
}

static struct sw_store_transfer of_unit(const struct lent *self, int64_t unit, int64_t first, int64_t grains) {
    return (struct sw_store_transfer){.kind = SW_STORE_IN_PLACE,
                                      .unit = unit,
                                      .first_grain = first,
                                      .grains = grains,
                                      .buf = self->buf + first * GRAIN_BYTES,
                                      .step = 7};
}

/* Gives the store the checksums of all grains, as loading does. */
static void know_sums(struct lent *self, struct sw_store_lane *lane) {
    for (int64_t unit = 0; unit < UNITS; unit++) {
        struct sw_store_transfer write = of_unit(self, unit, 0, unit_grains[unit]);
        write.write = true;
        memcpy(self->buf, self->expected[unit], (size_t)(unit_grains[unit] * GRAIN_BYTES));
        if (unit_grains[unit] > 0)
            CHECK_OK(sw_store_transfer(lane, &write));
    }
}

/* Reads the units in transfers of some grains, several at once. */
static sw_status read_all(struct lent *self, struct sw_store_lane *lane, uint64_t *draws) {
    for (int64_t unit = 0; unit < UNITS; unit++) {
        memset(self->buf, 0x5a, GRAINS * GRAIN_BYTES);
        for (int64_t first = 0, grains; first < unit_grains[unit]; first += grains) {
            grains = sw_min_i64(1 + random_below(draws, 9), unit_grains[unit] - first);
            const struct sw_store_transfer read = of_unit(self, unit, first, grains);
            SW_TRY(sw_store_submit(lane, &read));
        }
        while (sw_store_outstanding(lane) > 0) {
            uint64_t tags[4];
            int count;
            SW_TRY(sw_store_reap(lane, true, tags, 4, &count));
        }
        CHECK(memcmp(self->buf, self->expected[unit], (size_t)(unit_grains[unit] * GRAIN_BYTES)) == 0);
    }
    return SW_OK;
}

static void any_places_are_read(void **state) {
    for (test_seed = 1; test_seed <= SEEDS; test_seed++) {
        struct lent self;
        struct sw_store_lane *lane;
        uint64_t draws = test_seed;
        char name[16];
        snprintf(name, sizeof name, "seed%d", (int)test_seed);
        begin(&self, new_subdirectory(*state, name));
        struct sw_store *store = create_store(&self.directories);
        CHECK_OK(lend(&self, store));
        CHECK_OK(sw_store_lane_open(store, 1 + (int)random_below(&draws, STORE_DEPTH), &lane));
        know_sums(&self, lane);
        CHECK(sw_store_has(store, SW_STORE_IN_PLACE, 0, 0, GRAINS));
        CHECK_OK(read_all(&self, lane, &draws));
        sw_store_lane_close(lane);
        sw_store_discard(store);
        end(&self);
    }
}

/* Spoils the bytes of requests of the files that are lent: the first `wrong` ones. */
struct spoiler {
    struct fake_ring_script script;
    int wrong, seen, files;
};

static int64_t spoil(struct fake_ring_script *script, const int *files, const struct sw_ring_request *request) {
    struct spoiler *self = script->context;
    const int64_t result = fake_ring_do(files, request);
    const bool is_lent = request->op == SW_RING_READ && request->file >= self->files;
    if (is_lent && self->seen++ < self->wrong)
        ((char *)request->buf)[request->bytes / 2] ^= 1;
    return result;
}

static void a_wrong_byte_is_read_again_and_refused(void **state) {
    struct lent self;
    test_seed = 3;
    begin(&self, *state);
    struct sw_store *store = create_store(&self.directories);
    write_generation(store, 0, 1);
    CHECK_OK(sw_store_commit(store, 1, 0, ""));
    sw_store_close(store);
    for (int wrong = 0; wrong < 2; wrong++) {
        struct spoiler spoiler = {.script = {.carry_out = spoil}, .wrong = wrong, .files = 1};
        spoiler.script.context = &spoiler;
        uint64_t draws = 5;
        struct sw_store_lane *lane;
        store = reopen_store_on(&self.directories, &spoiler.script);
        CHECK_OK(lend(&self, store));
        CHECK_OK(sw_store_lane_open(store, STORE_DEPTH, &lane));
        know_sums(&self, lane);
        CHECK_OK(read_all(&self, lane, &draws));
        sw_store_lane_close(lane);
        sw_store_close(store);
    }
    /* A byte that stays wrong, whatever tensor it belongs to. */
    store = reopen_store(&self.directories);
    CHECK_OK(lend(&self, store));
    for (int64_t i = 0; i < self.piece_count; i++) {
        const struct sw_store_piece *piece = &self.piece[i];
        struct sw_store_lane *lane;
        uint64_t draws = 5;
        const bool is_in_tail =
            piece->offset_bytes >= self.file_bytes[piece->file] / SW_BUFFER_ALIGN_BYTES * SW_BUFFER_ALIGN_BYTES;
        CHECK_OK(sw_store_lane_open(store, STORE_DEPTH, &lane));
        know_sums(&self, lane);
        flip_bit(self.path[piece->file], piece->offset_bytes);
        if (is_in_tail) /* which was read before */
            CHECK_OK(read_all(&self, lane, &draws));
        else
            CHECK_FAILS(read_all(&self, lane, &draws), SW_ERR_CORRUPT, "has changed since the run began");
        flip_bit(self.path[piece->file], piece->offset_bytes);
        sw_store_lane_close(lane);
    }
    sw_store_close(store);
    end(&self);
}

static void checksums_are_kept_for_the_next_process(void **state) {
    struct lent self;
    struct sw_store_lane *lane;
    uint64_t draws = 5;
    test_seed = 4;
    begin(&self, *state);
    struct sw_store *store = create_store(&self.directories);
    write_generation(store, 0, 1);
    CHECK_OK(sw_store_commit(store, 1, 0, ""));
    CHECK_OK(lend(&self, store));
    CHECK_OK(sw_store_lane_open(store, STORE_DEPTH, &lane));
    know_sums(&self, lane);
    sw_store_lane_close(lane);
    CHECK_OK(sw_store_keep(store, 9));
    sw_store_close(store);
    for (uint64_t from = 9; from < 11; from++) {
        store = reopen_store(&self.directories);
        CHECK_OK(lend(&self, store));
        CHECK_OK(sw_store_take_kept(store, from));
        CHECK(sw_store_has(store, SW_STORE_IN_PLACE, 0, 0, GRAINS) == (from == 9));
        CHECK_OK(sw_store_lane_open(store, STORE_DEPTH, &lane));
        if (from == 9)
            CHECK_OK(read_all(&self, lane, &draws));
        else
            CHECK_FAILS(read_all(&self, lane, &draws), SW_ERR_INTERNAL, "before its checksums were known");
        sw_store_lane_close(lane);
        sw_store_close(store);
    }
    end(&self);
}

static void files_that_end_too_early_are_refused(void **state) {
    struct lent self;
    test_seed = 5;
    begin(&self, *state);
    struct sw_store *store = create_store(&self.directories);
    const struct sw_store_piece *last = &self.piece[self.piece_count - 1];
    CHECK(truncate(self.path[last->file], last->offset_bytes + last->bytes - 1) == 0);
    CHECK_FAILS(lend(&self, store), SW_ERR_CORRUPT, last->name);
    sw_store_discard(store);
    end(&self);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(any_places_are_read, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(a_wrong_byte_is_read_again_and_refused, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(checksums_are_kept_for_the_next_process, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(files_that_end_too_early_are_refused, make_directory, remove_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
