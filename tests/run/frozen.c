/* The checksums of frozen weights that a start takes while it loads them. */
#include "tests/equipment/support.h"

#include "run/folder/frozen.h"

enum { GRAINS = 2 };

static float value;

static sw_status fill(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    (void)context;
    (void)unit;
    (void)first;
    for (int64_t i = 0; i < count; i++)
        out[i] = value;
    return SW_OK;
}

/* A model's folder may change while it is read, and each rank may load other grains. */
static void test_a_start_takes_each_grain_once(void **state) {
    const char *folder = ((struct support_folder *)*state)->path;
    struct sw_unit unit = {.grains = GRAINS, .trained_grain = GRAINS, .wide_grain = GRAINS};
    const struct sw_units units = {.unit = &unit, .count = 1};
    struct sw_frozen *frozen;
    struct sw_load load;
    float *out = malloc(GRAINS * SW_GRAIN_ELEMS * sizeof *out);
    assert_non_null(out);
    value = 1.0f;
    support_expect_ok(sw_frozen_begin("model", &units, &frozen), "beginning");
    support_expect_ok(sw_frozen_load(frozen, &(struct sw_load){.fill = fill}, &load), "the load");
    support_expect_ok(load.fill(load.context, 0, 0, SW_GRAIN_ELEMS, out), "the first grain");
    support_expect_ok(load.fill(load.context, 0, 0, SW_GRAIN_ELEMS, out), "the first grain again");
    support_expect_failure(sw_frozen_finish(frozen, folder, NULL), SW_ERR_INTERNAL, "grain 1", "a grain too few");
    value = 2.0f;
    support_expect_failure(load.fill(load.context, 0, 0, SW_GRAIN_ELEMS, out), SW_ERR_CORRUPT,
                           "model changed while they were loaded", "other weights");
    support_expect_ok(load.fill(load.context, 0, SW_GRAIN_ELEMS, SW_GRAIN_ELEMS, out), "the second grain");
    support_expect_ok(sw_frozen_finish(frozen, folder, NULL), "the end");
    assert_true(sw_frozen_digest(frozen) != 0);
    sw_frozen_close(frozen);
    free(out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_start_takes_each_grain_once, support_make_folder, support_remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
