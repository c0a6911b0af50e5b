/* When updates are speculated: never while steps clip, then whichever way has been the faster. */
#include "offload/engine/pace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Runs steps whose times depend on the way chosen, and counts the speculated ones. */
static int run(struct sw_pace *pace, int steps, double plain_s, double speculated_s) {
    int speculated = 0;
    for (int i = 0; i < steps; i++) {
        const bool way = sw_pace_speculates(pace);
        sw_pace_note_clip(pace, false);
        sw_pace_note_step(pace, way, way ? speculated_s : plain_s);
        speculated += way;
    }
    return speculated;
}

static void waits_for_steps_without_clips(void **state) {
    (void)state;
    struct sw_pace pace;
    sw_pace_start(&pace);
    assert_false(sw_pace_speculates(&pace));
    for (int i = 0; i < SW_PACE_STEPS_SEEN - SW_PACE_WRONG_AT_MOST; i++) {
        assert_false(sw_pace_speculates(&pace));
        sw_pace_note_clip(&pace, false);
    }
    assert_true(sw_pace_speculates(&pace));
}

static void clips_end_it(void **state) {
    (void)state;
    struct sw_pace pace;
    sw_pace_start(&pace);
    run(&pace, 100, 2.0, 1.0);
    assert_true(sw_pace_speculates(&pace));
    for (int i = 0; i <= SW_PACE_WRONG_AT_MOST; i++)
        sw_pace_note_clip(&pace, true);
    assert_false(sw_pace_speculates(&pace));
}

static void the_faster_way_goes_on(void **state) {
    (void)state;
    struct sw_pace pace;
    sw_pace_start(&pace);
    run(&pace, 20, 2.0, 1.0);
    assert_int_equal(run(&pace, 100, 2.0, 1.0), 100);
    sw_pace_start(&pace);
    run(&pace, 20, 1.0, 2.0);
    assert_int_equal(run(&pace, 100, 1.0, 2.0), 0);
}

/* The slower way gets a trial in every SW_PACE_RETRY_STEPS steps, and takes over when it has become the faster one. */
static void the_slower_way_is_tried_again(void **state) {
    (void)state;
    enum { CYCLES = 3 };
    struct sw_pace pace;
    sw_pace_start(&pace);
    run(&pace, 20, 1.0, 2.0);
    const int tried = run(&pace, CYCLES * (SW_PACE_RETRY_STEPS + SW_PACE_TRIAL_STEPS), 1.0, 2.0);
    assert_in_range(tried, (CYCLES - 1) * SW_PACE_TRIAL_STEPS, (CYCLES + 1) * SW_PACE_TRIAL_STEPS);
    run(&pace, SW_PACE_RETRY_STEPS + SW_PACE_TRIAL_STEPS, 1.0, 0.5);
    assert_true(sw_pace_speculates(&pace));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waits_for_steps_without_clips),
        cmocka_unit_test(clips_end_it),
        cmocka_unit_test(the_faster_way_goes_on),
        cmocka_unit_test(the_slower_way_is_tried_again),
    };
    return cmocka_run_group_tests_name("offload pace", tests, NULL, NULL);
}
