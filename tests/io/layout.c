/* Addresses of grains, against a layout made the slow way. */
#include "tests/io/support.h"

#include "core/size.h"
#include "io/store/format.h"

#include <stdlib.h>
#include <string.h>

enum { SEEDS = 200, MAX_UNITS = 9, MAX_FILES = 5, MAX_UNIT_GRAINS = 70 };

struct place {
    int file;
    int64_t offset_bytes;
};

/* Deals the stripes of a unit out to the files one by one. */
static void deal(const struct sw_area *area, int64_t unit, int64_t ends[], struct place *places) {
    const struct sw_extent *extent = &area->extents[unit];
    const struct sw_records records = sw_area_records(area, unit);
    for (int64_t first = 0; first < extent->grains; first += extent->stripe_grains) {
        const int64_t end = sw_min_i64(first + extent->stripe_grains, extent->grains);
        const int file = (int)((extent->first_file + first / extent->stripe_grains) % area->file_count);
        for (int64_t grain = first; grain < end; grain++)
            places[grain] =
                (struct place){file, ends[file] + sw_record_at(&records, grain) - sw_record_at(&records, first)};
        ends[file] += sw_records_bytes(&records, first, end - first);
    }
}

static void check_unit(const struct sw_area *area, int64_t unit, const struct place *places) {
    const struct sw_extent *extent = &area->extents[unit];
    int64_t in_file[MAX_FILES] = {0};
    for (int64_t grain = 0; grain < extent->grains; grain++) {
        const int64_t in_unit = extent->first_grain + grain;
        const struct sw_file_run run = sw_area_run(area, unit, in_unit, MAX_UNIT_GRAINS);
        CHECK(run.file == places[grain].file && run.offset_bytes == places[grain].offset_bytes);
        CHECK(run.grains >= 1 && run.grains <= extent->grains - grain);
        for (int64_t i = 0; i < run.grains; i++)
            CHECK(places[grain + i].file == run.file &&
                  places[grain + i].offset_bytes ==
                      run.offset_bytes + sw_area_distance(area, unit, in_unit, in_unit + i));
        CHECK(sw_area_run(area, unit, in_unit, 1).grains == 1);
        in_file[run.file]++;
    }
    for (int file = 0; file < area->file_count; file++)
        CHECK(sw_extent_grains_in(extent, area->file_count, file) == in_file[file]);
}

static void places_grains_as_dealt(void **state) {
    (void)state;
    for (test_seed = 1; test_seed <= SEEDS; test_seed++) {
        uint64_t draws = 0;
        const int files = 1 + (int)random_below(&draws, MAX_FILES);
        const int64_t units = 1 + random_below(&draws, MAX_UNITS);
        const int64_t grain_bytes = 4096 * (1 + random_below(&draws, 60));
        static const sw_optimizer_format packed[] = {SW_OPTIMIZER_MUON_BF16, SW_OPTIMIZER_MUON_8BIT};
        int64_t unit_muon[MAX_UNITS] = {0};
        int64_t unit_first[MAX_UNITS], unit_grains[MAX_UNITS], ends[MAX_FILES], slow_ends[MAX_FILES], total = 0;
        for (int64_t unit = 0; unit < units; unit++) {
            unit_first[unit] = random_below(&draws, MAX_UNIT_GRAINS);
            total += unit_grains[unit] = random_below(&draws, 4) == 0 ? 0 : random_below(&draws, MAX_UNIT_GRAINS);
            unit_muon[unit] = random_below(&draws, unit_grains[unit] + 1);
        }
        for (int file = 0; file < files; file++)
            slow_ends[file] = ends[file] = 4096 * (1 + random_below(&draws, 9));
        struct sw_area area;
        if (test_seed % 3 == 0)
            CHECK_OK(sw_area_init(&area, units, files, grain_bytes));
        else
            CHECK_OK(sw_area_init_records(&area, units, files, packed[test_seed % 3 - 1]));
        sw_area_place(&area,
                      (struct sw_held_grains){
                          .first = unit_first, .grains = unit_grains, .muon = test_seed % 3 == 0 ? NULL : unit_muon},
                      ends);
        CHECK_OK(sw_area_finish(&area));
        CHECK(area.grains == total);
        for (int64_t unit = 0; unit < units; unit++) {
            struct place places[MAX_UNIT_GRAINS];
            deal(&area, unit, slow_ends, places);
            check_unit(&area, unit, places);
        }
        CHECK(memcmp(ends, slow_ends, (size_t)files * sizeof *ends) == 0);
        sw_area_free(&area);
    }
}

/* A store of about 4 TB: no 32-bit number survives it. */
static void reaches_far_past_four_gib(void **state) {
    (void)state;
    enum { FILES = 2 };
    const int64_t unit_grains[] = {10, INT64_C(20) << 20};
    int64_t ends[FILES] = {8192, 8192};
    struct sw_area area;
    CHECK_OK(sw_area_init(&area, 2, FILES, SW_OPTIMIZER_GRAIN_BYTES));
    sw_area_place(&area, (struct sw_held_grains){.grains = unit_grains}, ends);
    CHECK(ends[0] + ends[1] == 2 * 8192 + (unit_grains[0] + unit_grains[1]) * SW_OPTIMIZER_GRAIN_BYTES);
    const int64_t last = unit_grains[1] - 1;
    const struct sw_file_run run = sw_area_run(&area, 1, last, 1);
    CHECK(run.offset_bytes + SW_OPTIMIZER_GRAIN_BYTES == ends[run.file] && run.offset_bytes > INT64_C(1) << 40);
    sw_area_free(&area);
}

static void spreads_stripes_evenly(void **state) {
    (void)state;
    enum { FILES = 4, UNITS = 40 };
    int64_t unit_grains[UNITS], ends[FILES] = {0};
    for (int unit = 0; unit < UNITS; unit++)
        unit_grains[unit] = 3; /* less than a stripe each */
    struct sw_area area;
    CHECK_OK(sw_area_init(&area, UNITS, FILES, SW_OPTIMIZER_GRAIN_BYTES));
    sw_area_place(&area, (struct sw_held_grains){.grains = unit_grains}, ends);
    for (int file = 0; file < FILES; file++)
        CHECK(ends[file] == UNITS / FILES * 3 * SW_OPTIMIZER_GRAIN_BYTES);
    sw_area_free(&area);
}

static void knows_what_an_extent_holds(void **state) {
    (void)state;
    const struct sw_extent extent = {.first_grain = 5, .grains = 10};
    CHECK(sw_extent_holds(&extent, 5, 10) && sw_extent_holds(&extent, 14, 1));
    CHECK(!sw_extent_holds(&extent, 4, 1) && !sw_extent_holds(&extent, 15, 1) && !sw_extent_holds(&extent, 14, 2));
    CHECK(!sw_extent_holds(&extent, 5, 0) && !sw_extent_holds(&extent, 5, INT64_MAX));
    CHECK(!sw_extent_holds(&extent, INT64_MAX, 1) && !sw_extent_holds(&extent, -1, 1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places_grains_as_dealt),
        cmocka_unit_test(reaches_far_past_four_gib),
        cmocka_unit_test(spreads_stripes_evenly),
        cmocka_unit_test(knows_what_an_extent_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
