/* Units: tensors at aligned offsets, padding to whole grains, decay runs that cover every element, sizes that do not
 * overflow. */
#include "offload/unit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

static void must(sw_status status) {
    if (status != SW_OK)
        fail_msg("%s", sw_error_message(status));
}

static void add(struct sw_unit *unit, const char *name, int64_t rows, int64_t cols, bool decay) {
    must(sw_unit_add_tensor(unit, name, cols > 0 ? 2 : 1, (int64_t[]){rows, cols}, decay));
}

static void tensors_are_aligned_and_units_end_with_a_grain(void **state) {
    (void)state;
    struct sw_units *units;
    must(sw_units_create(3, &units));
    add(&units->unit[0], "table", 100, 7, true);
    add(&units->unit[0], "positions", 65, 0, false);
    add(&units->unit[1], "whole", SW_GRAIN_ELEMS, 0, false);
    add(&units->unit[2], "one", 1, 0, true);
    add(&units->unit[2], "much", SW_GRAIN_ELEMS, 2, true);
    must(sw_units_seal(units));
    assert_int_equal(units->unit[0].tensor[0].offset, 0);
    assert_int_equal(units->unit[0].tensor[0].elems, 700);
    assert_int_equal(units->unit[0].tensor[1].offset, 704);
    assert_int_equal(units->unit[0].elems, SW_GRAIN_ELEMS);
    assert_int_equal(units->unit[0].grains, 1);
    assert_int_equal(units->unit[1].grains, 1);
    assert_int_equal(units->unit[2].tensor[1].offset, SW_TENSOR_ALIGN_ELEMS);
    assert_int_equal(units->unit[2].grains, 3);
    assert_int_equal(units->unit[2].elems, 3 * SW_GRAIN_ELEMS);
    assert_int_equal(sw_units_parameters(units), 700 + 65 + SW_GRAIN_ELEMS + 1 + 2 * SW_GRAIN_ELEMS);
    sw_units_destroy(units);
}

/* The decay of an element, looked up in the runs. */
static bool decays(const struct sw_unit *unit, int64_t element) {
    for (int64_t r = 0; r < unit->run_count; r++)
        if (element < unit->run[r].end)
            return unit->run[r].decay;
    fail_msg("element %lld lies in no run", (long long)element);
    return false;
}

static void decay_runs_agree_with_the_tensors(void **state) {
    (void)state;
    static const bool decay[] = {true, true, false, false, true, false};
    enum { TENSORS = sizeof decay / sizeof decay[0] };
    struct sw_units *units;
    must(sw_units_create(3, &units));
    for (int u = 0; u < 3; u++)
        for (int t = 0; t < TENSORS - u; t++)
            add(&units->unit[u], "tensor", 1000 * (t + 1) + u, 0, decay[t]);
    must(sw_units_seal(units));
    for (int u = 0; u < 3; u++) {
        const struct sw_unit *unit = &units->unit[u];
        for (int64_t t = 0; t < unit->tensor_count; t++) {
            assert_int_equal(decays(unit, unit->tensor[t].offset), unit->tensor[t].decay);
            assert_int_equal(decays(unit, unit->tensor[t].offset + unit->tensor[t].elems - 1), unit->tensor[t].decay);
        }
        assert_int_equal(unit->run[unit->run_count - 1].end, unit->elems);
        for (int64_t r = 1; r < unit->run_count; r++) {
            assert_true(unit->run[r].end > unit->run[r - 1].end);
            assert_true(unit->run[r].decay != unit->run[r - 1].decay);
        }
    }
    assert_int_equal(units->unit[0].run_count, 4);
    sw_units_destroy(units);
}

static void sizes_that_overflow_are_refused(void **state) {
    (void)state;
    static const struct {
        int dims;
        int64_t dim[SW_TENSOR_MAX_DIMS];
    } wrong[] = {
        {2, {INT64_MAX, 2}},
        {4, {INT64_C(1) << 31, INT64_C(1) << 31, INT64_C(1) << 31, 2}},
        {1, {INT64_MAX / 2}},
        {1, {-1}},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct sw_units *units;
        must(sw_units_create(3, &units));
        assert_int_equal(sw_unit_add_tensor(&units->unit[0], "huge", wrong[i].dims, wrong[i].dim, true), SW_ERR_ARG);
        assert_non_null(strstr(sw_error_message(SW_ERR_ARG), "huge"));
        sw_error_clear();
        sw_units_destroy(units);
    }
    /* Each fits, both together do not. */
    struct sw_units *units;
    must(sw_units_create(3, &units));
    const int64_t half = INT64_MAX / 100;
    must(sw_unit_add_tensor(&units->unit[0], "first", 1, &half, true));
    assert_int_equal(sw_unit_add_tensor(&units->unit[0], "second", 1, &half, true), SW_ERR_ARG);
    sw_error_clear();
    sw_units_destroy(units);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_aligned_and_units_end_with_a_grain),
        cmocka_unit_test(decay_runs_agree_with_the_tensors),
        cmocka_unit_test(sizes_that_overflow_are_refused),
    };
    return cmocka_run_group_tests_name("offload unit", tests, NULL, NULL);
}
