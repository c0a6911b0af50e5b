/* Loading leaves the same state wherever it lives: masters as given, moments of zero, all of it committed as step 0; it
 * writes no zeros twice, and of several errors names the first. */
#include "tests/equipment/must.h"
#include "tests/offload/toy.h"

#include <stdlib.h>
#include <string.h>

#include "core/size.h"

enum { BAD_UNIT = 1, FIRST_BAD_GRAIN = 2, LAST_BAD_GRAIN = 4 };

static float master_at(int64_t unit, int64_t elem, float base) {
    return base + (float)(unit * 65536 + elem % 65521) / 8.0f;
}

static sw_status fill(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    const float *base = context;
    for (int64_t i = 0; i < count; i++)
        out[i] = master_at(unit, first + i, *base);
    return SW_OK;
}

static sw_status fill_some(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    const int64_t grain = first / SW_GRAIN_ELEMS;
    if (unit == BAD_UNIT && (grain == FIRST_BAD_GRAIN || grain == LAST_BAD_GRAIN))
        return sw_fail(SW_ERR_ARG, "grain %lld is bad", (long long)grain);
    return fill(context, unit, first, count, out);
}

static void open_toy(const char *place, const char *directory, struct toy *out) {
    const struct toy_spec spec = {.place = place,
                                  .directory = directory,
                                  .chunk_grains = 2,
                                  .ring_chunks = 2,
                                  .group = TOY_MICROS,
                                  .unit_slots = 2,
                                  .head_grains = 1,
                                  .host_threads = 3};
    must(toy_open(&spec, out));
}

static int64_t grains_of(const struct toy *toy) {
    int64_t grains = 0;
    for (int u = 0; u < TOY_UNITS; u++)
        grains += toy->units->unit[u].grains;
    return grains;
}

static void check_record(const float *record, int64_t unit, int64_t grain, float base) {
    static const float zeros[2 * SW_GRAIN_ELEMS];
    for (int64_t i = 0; i < SW_GRAIN_ELEMS; i++)
        if (record[i] != master_at(unit, grain * SW_GRAIN_ELEMS + i, base))
            fail_msg("unit %lld, grain %lld, element %lld is %g", (long long)unit, (long long)grain, (long long)i,
                     (double)record[i]);
    assert_memory_equal(record + SW_GRAIN_ELEMS, zeros, sizeof zeros);
}

/* As the engine gives the state, and as the store has it committed. */
static void check_state(struct toy *toy, float base) {
    float *record = aligned_alloc(SW_BUFFER_ALIGN_BYTES, SW_OPTIMIZER_GRAIN_BYTES);
    const struct sw_store_commit *commit = sw_store_last_commit(toy->store);
    struct sw_store_lane *lane;
    assert_non_null(record);
    assert_int_equal(commit->step, 0);
    must(sw_store_lane_open(toy->store, 1, &lane));
    for (int64_t u = 0; u < TOY_UNITS; u++)
        for (int64_t g = 0; g < toy->units->unit[u].grains; g++) {
            must(sw_engine_read_optimizer(toy->engine, u, g, 1, record));
            check_record(record, u, g, base);
            memset(record, 1, SW_OPTIMIZER_GRAIN_BYTES);
            must(sw_store_transfer(
                lane, &(struct sw_store_transfer){
                          .generation = commit->generation, .unit = u, .first_grain = g, .grains = 1, .buf = record}));
            check_record(record, u, g, base);
        }
    sw_store_lane_close(lane);
    free(record);
}

static int64_t load(struct toy *toy, float base) {
    const struct sw_load from = {.fill = fill, .context = &base};
    const int64_t before = sw_store_counters(toy->store).write_bytes;
    must(sw_engine_load(toy->engine, &from));
    return sw_store_counters(toy->store).write_bytes - before;
}

/* Opening the toy has loaded once, into one generation: the next goes into the other, and a third one back. */
static void the_same_state_everywhere(void **state) {
    static const char *const places[] = {"weights=nvme,grads=nvme,optimizer=nvme,acts=nvme",
                                         "optimizer=nvme,weights=host", "optimizer=host,grads=host,weights=host",
                                         "weights=device,grads=device,optimizer=device",
                                         "optimizer=device:30%/host:40%/nvme,weights=device:30%/host:40%/nvme"};
    for (size_t p = 0; p < sizeof places / sizeof places[0]; p++) {
        struct toy toy;
        open_toy(places[p], *state, &toy);
        const int64_t records = grains_of(&toy) * SW_OPTIMIZER_GRAIN_BYTES;
        const int64_t first = load(&toy, 0.5f);
        check_state(&toy, 0.5f);
        const int64_t second = load(&toy, -3.0f);
        check_state(&toy, -3.0f);
        assert_true(first >= records / SW_OPTIMIZER_VECTORS && first < records);
        assert_int_equal(second - first, records - records / SW_OPTIMIZER_VECTORS);
        toy_close(&toy);
        toy_remove_store(*state);
    }
}

static void the_first_error_is_named(void **state) {
    float base = 1.0f;
    struct toy toy;
    open_toy("optimizer=nvme", *state, &toy);
    const struct sw_load from = {.fill = fill_some, .context = &base};
    assert_int_equal(sw_engine_load(toy.engine, &from), SW_ERR_ARG);
    assert_string_equal(sw_error_message(SW_ERR_ARG), "grain 2 is bad");
    sw_error_clear();
    assert_int_equal(sw_store_last_commit(toy.store)->step, 0); /* of opening the toy */
    toy_close(&toy);
    toy_remove_store(*state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_same_state_everywhere, toy_make_directory, toy_remove_directory),
        cmocka_unit_test_setup_teardown(the_first_error_is_named, toy_make_directory, toy_remove_directory),
    };
    return cmocka_run_group_tests_name("load", tests, NULL, NULL);
}
