/* Stores of packed records, Muon's grains with records of another size than the others: every grain comes back by any
 * transfer that begins and ends at pages, others are refused, and a byte that changed is found by its grain. */
#include "tests/io/store_support.h"

#include "core/size.h"
#include "io/store/store_private.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { UNITS = 5, MOST_GRAINS = 75 };
static const int64_t firsts[UNITS] = {3, 0, 0, 7, 0}, counts[UNITS] = {70, 20, 0, 33, 5},
                     wholes[UNITS] = {75, 20, 4, 40, 5}, muons[UNITS] = {37, 20, 0, 0, 2};
static const sw_optimizer_format formats[] = {SW_OPTIMIZER_MUON_BF16, SW_OPTIMIZER_MUON_8BIT};

static struct sw_store_spec spec_of(const struct store_directories *directories, sw_optimizer_format format) {
    return (struct sw_store_spec){.directories = directories->path,
                                  .directory_count = directories->count,
                                  .unit_first = firsts,
                                  .unit_grains = counts,
                                  .unit_whole_grains = wholes,
                                  .unit_muon_grains = muons,
                                  .unit_count = UNITS,
                                  .optimizer = format,
                                  .allow_buffered = true};
}

/* Moves every grain in transfers of `step` grains, and compares what was read. */
static void move(struct sw_store *store, bool write, int generation, int64_t step, int64_t version) {
    struct sw_store_lane *lane;
    char *buf = io_buffer(MOST_GRAINS * SW_OPTIMIZER_GRAIN_BYTES), *wanted = io_buffer(SW_OPTIMIZER_GRAIN_BYTES);
    CHECK_OK(sw_store_lane_open(store, STORE_DEPTH, &lane));
    for (int64_t unit = 0; unit < UNITS; unit++)
        for (int64_t first = 0; first < counts[unit]; first += step) {
            const struct sw_records records = sw_store_records(store, unit);
            const struct sw_store_transfer transfer = {.write = write,
                                                       .generation = generation,
                                                       .unit = unit,
                                                       .first_grain = firsts[unit] + first,
                                                       .grains = sw_min_i64(step, counts[unit] - first),
                                                       .buf = buf,
                                                       .step = version};
            for (int64_t g = first; write && g < first + transfer.grains; g++)
                fill_grain(buf + sw_record_at(&records, g) - sw_record_at(&records, first),
                           sw_record_bytes(&records, g), unit, g, version);
            CHECK_OK(sw_store_transfer(lane, &transfer));
            for (int64_t g = first; g < first + transfer.grains; g++) {
                fill_grain(wanted, SW_OPTIMIZER_GRAIN_BYTES, unit, g, version);
                CHECK(memcmp(wanted, buf + sw_record_at(&records, g) - sw_record_at(&records, first),
                             (size_t)sw_record_bytes(&records, g)) == 0);
            }
        }
    sw_store_lane_close(lane);
    free(wanted);
    free(buf);
}

static void check_whole(struct sw_store *store, int64_t expected_bad) {
    int64_t grains, bad;
    CHECK_OK(sw_store_verify(store, NULL, &grains, &bad));
    CHECK(grains == 70 + 20 + 33 + 5 && bad == expected_bad);
}

/* Whatever the number of files, and in transfers of any size. */
static void grains_come_back(void **state) {
    for (int count = 1; count <= STORE_MAX_DIRECTORIES; count++)
        for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
            char name[3] = {(char)('a' + count), (char)('a' + f)};
            const struct store_directories directories = make_store_directories(new_subdirectory(*state, name), count);
            const struct sw_store_spec spec = spec_of(&directories, formats[f]);
            struct sw_store *store = NULL;
            CHECK_OK(sw_store_create(&spec, NULL, NULL, &store));
            CHECK(store->version == SW_FORMAT_PACKED_VERSION);
            move(store, true, 0, SW_RECORD_GROUP, 1);
            CHECK_OK(sw_store_commit(store, 1, 0, "{}"));
            move(store, true, 1, MOST_GRAINS, 2);
            check_whole(store, 0);
            CHECK_OK(sw_store_commit(store, 2, 1, "{}"));
            sw_store_close(store);
            store = reopen_store(&directories);
            CHECK(sw_store_optimizer(store) == formats[f] && sw_store_last_commit(store)->step == 2);
            for (int64_t step = SW_RECORD_GROUP; step < MOST_GRAINS + SW_RECORD_GROUP; step += SW_RECORD_GROUP)
                move(store, false, 1, step, 2);
            check_whole(store, 0);
            sw_store_close(store);
        }
}

/* The files hold the records and little else: labels, superblocks, and a page or two for a unit. */
static void files_have_no_padding(void **state) {
    for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
        char name[2] = {(char)('a' + f)};
        const struct store_directories directories = make_store_directories(new_subdirectory(*state, name), 1);
        const struct sw_store_spec spec = spec_of(&directories, formats[f]);
        struct sw_store *store = NULL;
        struct stat info;
        int64_t bytes = 0, need;
        CHECK_OK(sw_store_need(&spec, &need));
        CHECK_OK(sw_store_create(&spec, NULL, NULL, &store));
        for (int64_t unit = 0; unit < UNITS; unit++)
            bytes += muons[unit] * sw_optimizer_muon_bytes(formats[f]) +
                     (counts[unit] - muons[unit]) * sw_optimizer_grain_bytes(formats[f]);
        const int64_t held = sw_store_generation_bytes(store);
        CHECK(held >= bytes && held <= bytes + UNITS * 2 * SW_BUFFER_ALIGN_BYTES);
        CHECK(stat(store_file(&directories, 0), &info) == 0 && info.st_size == need && need < 2 * held + SW_MIB);
        sw_store_close(store);
    }
}

/* A transfer that begins or ends within a page would change what lies beside it. */
static void transfers_begin_and_end_at_pages(void **state) {
    const struct store_directories directories = make_store_directories(*state, 1);
    const struct sw_store_spec spec = spec_of(&directories, SW_OPTIMIZER_MUON_8BIT);
    static const int64_t bad[][2] = {{1, 16}, {0, 17}, {8, 8}, {17, 53}, {0, 71}};
    struct sw_store *store = NULL;
    char *buf = io_buffer(MOST_GRAINS * SW_OPTIMIZER_GRAIN_BYTES);
    CHECK_OK(sw_store_create(&spec, NULL, NULL, &store));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct sw_store_lane *lane;
        CHECK_OK(sw_store_lane_open(store, STORE_DEPTH, &lane));
        const struct sw_store_transfer transfer = {
            .write = true, .first_grain = firsts[0] + bad[i][0], .grains = bad[i][1], .buf = buf};
        CHECK_FAILS(sw_store_transfer(lane, &transfer), SW_ERR_INTERNAL, "the store has no grains");
        sw_store_lane_close(lane);
    }
    free(buf);
    sw_store_discard(store);
}

struct found {
    int64_t unit, grain;
};

static void note(void *context, const struct sw_store_bad_grain *grain) {
    *(struct found *)context = (struct found){grain->unit, grain->grain};
}

/* A byte in any grain's record is that grain's, and no other grain is called bad. */
static void a_changed_byte_is_found(void **state) {
    const struct store_directories directories = make_store_directories(*state, 2);
    const struct sw_store_spec spec = spec_of(&directories, SW_OPTIMIZER_MUON_8BIT);
    struct sw_store *store = NULL;
    CHECK_OK(sw_store_create(&spec, NULL, NULL, &store));
    move(store, true, 0, MOST_GRAINS, 1);
    CHECK_OK(sw_store_commit(store, 1, 0, "{}"));
    static const int64_t places[][2] = {{0, 0}, {0, 36}, {0, 37}, {0, 69}, {1, 19}, {3, 32}, {4, 2}};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        const int64_t unit = places[i][0], grain = firsts[unit] + places[i][1];
        const struct sw_file_run run = sw_area_run(&store->areas[SW_STORE_OPTIMIZER][0], unit, grain, 1);
        const int64_t last =
            run.offset_bytes + sw_area_record_bytes(&store->areas[SW_STORE_OPTIMIZER][0], unit, grain) - 1;
        struct found found = {-1, -1};
        const struct sw_store_verifier verifier = {.bad = note, .context = &found};
        int64_t grains, bad;
        flip_bit(store_file(&directories, run.file), last);
        CHECK_OK(sw_store_verify(store, &verifier, &grains, &bad));
        CHECK(bad == 1 && found.unit == unit && found.grain == grain);
        flip_bit(store_file(&directories, run.file), last);
    }
    check_whole(store, 0);
    sw_store_close(store);
}

/* Stores that older versions made have records of one size, which their version says. */
static void older_formats_still_open(void **state) {
    static const sw_optimizer_format older[] = {SW_OPTIMIZER_MUON, SW_OPTIMIZER_MUON_BF16_PADDED};
    for (size_t f = 0; f < sizeof older / sizeof older[0]; f++) {
        char name[2] = {(char)('a' + f)};
        const struct store_directories directories = make_store_directories(new_subdirectory(*state, name), 1);
        const struct sw_store_spec spec = spec_of(&directories, older[f]);
        struct sw_store *store = NULL;
        CHECK_OK(sw_store_create(&spec, NULL, NULL, &store));
        CHECK(store->version == SW_FORMAT_MUON_VERSION && sw_store_records(store, 0).muon_grains == 0);
        move(store, true, 0, 1, 1);
        CHECK_OK(sw_store_commit(store, 1, 0, "{}"));
        sw_store_close(store);
        store = reopen_store(&directories);
        CHECK(sw_store_optimizer(store) == older[f]);
        move(store, false, 0, 7, 1);
        sw_store_close(store);
    }
}

#define TEST_OF(name) cmocka_unit_test_setup_teardown(name, make_directory, remove_directory)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST_OF(grains_come_back),        TEST_OF(files_have_no_padding),    TEST_OF(transfers_begin_and_end_at_pages),
        TEST_OF(a_changed_byte_is_found), TEST_OF(older_formats_still_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
