/* Weights are handed out when their bytes have arrived and were checked, never before. */
#include "tests/io/store_support.h"

#include "core/size.h"
#include "run/folder/state.h"

#include <stdlib.h>
#include <string.h>

enum { STORES = 2, GRAINS = 20, HALF = GRAINS / STORES, SEEDS = 20 };

/* A drive that gives the first grain of each request for grains a wrong bit. Unless it is damaged, it does so once: the
 * grain is right when it was found bad and read again. */
struct careless {
    struct fake_ring_script script;
    bool read[2 * GRAINS], damaged;
};

static int64_t carry_out(struct fake_ring_script *script, const int *files, const struct sw_ring_request *request) {
    struct careless *self = script->context;
    const int64_t result = fake_ring_do(files, request);
    const int64_t place = request->offset_bytes / SW_OPTIMIZER_GRAIN_BYTES;
    if (request->op == SW_RING_READ && request->bytes % SW_OPTIMIZER_GRAIN_BYTES == 0 && !self->read[place]) {
        self->read[place] = !self->damaged;
        ((unsigned char *)request->buf)[0] ^= 1;
    }
    return result;
}

/* Makes the store of a rank, which has one half of a unit, at step 1. */
static struct sw_store *make_store(const struct store_directories *directories, int rank, struct careless *careless) {
    const int64_t whole = GRAINS, held = HALF, first = (int64_t)rank * HALF;
    const struct sw_store_spec spec = {.directories = directories->path,
                                       .directory_count = 1,
                                       .unit_grains = &held,
                                       .unit_first = &first,
                                       .unit_whole_grains = &whole,
                                       .unit_count = 1,
                                       .allow_buffered = true};
    struct sw_store *store;
    struct sw_store_lane *lane;
    char *buf = io_buffer(held * SW_OPTIMIZER_GRAIN_BYTES);
    CHECK_OK(sw_store_create(&spec, NULL, NULL, &store));
    CHECK_OK(sw_store_lane_open(store, STORE_DEPTH, &lane));
    for (int64_t g = 0; g < held; g++)
        fill_grain(buf + g * SW_OPTIMIZER_GRAIN_BYTES, SW_OPTIMIZER_GRAIN_BYTES, 0, first + g, 1);
    CHECK_OK(sw_store_transfer(
        lane, &(struct sw_store_transfer){.write = true, .first_grain = first, .grains = held, .buf = buf, .step = 1}));
    CHECK_OK(sw_store_commit(store, 1, 0, "{}"));
    sw_store_lane_close(lane);
    sw_store_close(store);
    free(buf);
    *careless = (struct careless){.script = {.carry_out = carry_out, .context = careless, .seed = test_seed}};
    return reopen_store_on(directories, &careless->script);
}

/* A box spans both stores, and what is prepared spans several boxes. */
static void no_weight_is_used_before_it_was_checked(void **state) {
    struct sw_unit unit = {
        .grains = GRAINS, .wide_grain = GRAINS, .replicated_grain = GRAINS, .elems = GRAINS * (int64_t)SW_GRAIN_ELEMS};
    const struct sw_units units = {.unit = &unit, .count = 1};
    float *weights = malloc((size_t)unit.elems * sizeof *weights), *wanted = io_buffer(SW_OPTIMIZER_GRAIN_BYTES);
    for (test_seed = 1; test_seed <= SEEDS; test_seed++) {
        struct careless careless[STORES];
        struct sw_open_stores stores = {.count = STORES, .store = calloc(STORES, sizeof(struct sw_store *))};
        struct sw_state_reader *reader;
        struct sw_load load;
        for (int rank = 0; rank < STORES; rank++) {
            char name[16] = {(char)('a' + rank), (char)('a' + test_seed)};
            const struct store_directories directories = make_store_directories(new_subdirectory(*state, name), 1);
            stores.store[rank] = make_store(&directories, rank, &careless[rank]);
        }
        CHECK_OK(sw_state_take_stores(&stores, &units, 1, &reader));
        CHECK_OK(sw_state_load(reader, &units, &load));
        CHECK_OK(load.prepare(load.context, 0, 0, unit.elems));
        CHECK_OK(load.fill(load.context, 0, 0, unit.elems, weights));
        for (int64_t grain = 0; grain < GRAINS; grain++) {
            fill_grain(wanted, SW_OPTIMIZER_GRAIN_BYTES, 0, grain, 1);
            CHECK(memcmp(weights + grain * SW_GRAIN_ELEMS, wanted, SW_GRAIN_ELEMS * sizeof *weights) == 0);
        }
        sw_state_close(reader);
    }
    free(weights);
    free(wanted);
}

/* Opens a reader of the first stores of a unit that two of them have. */
static struct sw_state_reader *open_some(const char *folder, const struct sw_units *units, int count,
                                         struct careless careless[STORES]) {
    struct sw_open_stores stores = {.count = count, .store = calloc((size_t)count, sizeof(struct sw_store *))};
    struct sw_state_reader *reader;
    for (int rank = 0; rank < count; rank++) {
        char name[8] = {(char)('a' + rank)};
        const struct store_directories directories = make_store_directories(new_subdirectory(folder, name), 1);
        stores.store[rank] = make_store(&directories, rank, &careless[rank]);
    }
    CHECK_OK(sw_state_take_stores(&stores, units, 1, &reader));
    return reader;
}

static void damage_and_what_is_missing_are_refused(void **state) {
    struct sw_unit unit = {
        .grains = GRAINS, .wide_grain = GRAINS, .replicated_grain = GRAINS, .elems = GRAINS * (int64_t)SW_GRAIN_ELEMS};
    const struct sw_units units = {.unit = &unit, .count = 1};
    char *records = malloc(2 * (size_t)SW_OPTIMIZER_GRAIN_BYTES);
    for (int damaged = 0; damaged < 2; damaged++) {
        struct careless careless[STORES];
        char name[8] = {(char)('m' + damaged)};
        struct sw_state_reader *reader =
            open_some(new_subdirectory(*state, name), &units, damaged ? STORES : 1, careless);
        struct sw_load load;
        CHECK_OK(sw_state_load(reader, &units, &load));
        careless[0].damaged = damaged;
        const sw_status status = load.prepare(load.context, 0, 0, unit.elems);
        CHECK_FAILS(status, SW_ERR_CORRUPT, damaged ? "wrong checksum, read twice" : "has grain 10 of unit 0");
        if (!damaged)
            CHECK_FAILS(sw_state_records(reader, 0, 0, HALF - 1, 2, records), SW_ERR_CORRUPT, "has grain 10 of unit 0");
        sw_state_close(reader);
    }
    free(records);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(no_weight_is_used_before_it_was_checked, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(damage_and_what_is_missing_are_refused, make_directory, remove_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
