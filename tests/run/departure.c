/* When a run's steps have departed from their prediction: a drive that has become ten times slower, steps that agree,
 * and a machine that is busy for a moment. */
#include "tests/equipment/support.h"

#include "run/departure.h"

#include <string.h>

enum { MANY_STEPS = 200 };

/* Steps of a second, of which the drive reads for 0.9 s. Speculated ones take 0.8 s. */
static const struct sw_forecast forecast = {
    .step = {.step_s = 1.0, .lane_busy_s = {[SW_LANE_COMPUTE] = 0.5, [SW_LANE_READ] = 0.9, [SW_LANE_WRITE] = 0.2}},
    .least_s = 0.8,
    .most_s = 1.0};

/* Steps that are all alike. factor: by which the lane `slow` takes longer than predicted. */
struct steps {
    int count;
    double seconds;
    sw_lane slow;
    double factor;
};

/* Returns the number of the step that was found to depart, from 1; 0: none was. */
static int note(struct sw_departure *departure, const struct sw_forecast *by, struct steps steps,
                struct sw_departed *out) {
    double lane_s[SW_LANES];
    memcpy(lane_s, by->step.lane_busy_s, sizeof lane_s);
    lane_s[steps.slow] *= steps.factor;
    for (int i = 1; i <= steps.count; i++)
        if (sw_departure_note(departure, by, steps.seconds, lane_s, out))
            return i;
    return 0;
}

static void a_drive_ten_times_slower(void **state) {
    (void)state;
    struct sw_departure departure = {0};
    struct sw_departed found;
    const struct steps slow = {.count = MANY_STEPS, .seconds = 9.2, .slow = SW_LANE_READ, .factor = 10.0};
    assert_int_equal(note(&departure, &forecast, slow, &found), 10);
    assert_int_equal(found.lane, SW_LANE_READ);
    assert_true(found.measured_s == 9.2 && found.predicted_s == 1.0);
    assert_true(found.lane_measured_s == 9.0 && found.lane_predicted_s == 0.9);
    /* It is said once. */
    assert_int_equal(note(&departure, &forecast, slow, &found), 0);
}

static void a_drive_ten_times_faster(void **state) {
    (void)state;
    struct sw_departure departure = {0};
    struct sw_departed found;
    const struct steps fast = {.count = MANY_STEPS, .seconds = 0.6, .slow = SW_LANE_READ, .factor = 0.1};
    assert_true(note(&departure, &forecast, fast, &found) > 0);
    assert_int_equal(found.lane, SW_LANE_READ);
}

static void steps_that_agree(void **state) {
    (void)state;
    struct sw_departed found;
    static const double near[] = {0.65, 0.8, 1.0, 1.24};
    for (size_t i = 0; i < sizeof near / sizeof near[0]; i++) {
        struct sw_departure departure = {0};
        const struct steps steps = {.count = MANY_STEPS, .seconds = near[i], .factor = 1.0};
        if (note(&departure, &forecast, steps, &found) != 0)
            fail_msg("steps of %g s depart", near[i]);
    }
}

/* A median of five steps hides two slow ones, and one slow block is followed by a good one. */
static void a_busy_moment(void **state) {
    (void)state;
    struct sw_departure departure = {0};
    struct sw_departed found;
    const struct steps good = {.count = 3, .seconds = 1.0, .factor = 1.0},
                       slow = {.count = 2, .seconds = 50.0, .factor = 1.0};
    for (int i = 0; i < MANY_STEPS; i++) {
        assert_int_equal(note(&departure, &forecast, good, &found), 0);
        assert_int_equal(note(&departure, &forecast, slow, &found), 0);
    }
    const struct steps good_block = {.count = 5, .seconds = 1.0, .factor = 1.0};
    const struct steps slow_block = {.count = 5, .seconds = 50.0, .factor = 1.0};
    for (int i = 0; i < MANY_STEPS; i++) {
        assert_int_equal(note(&departure, &forecast, good_block, &found), 0);
        assert_int_equal(note(&departure, &forecast, slow_block, &found), 0);
    }
}

/* Many short steps are a moment, too: ten of 20 ms are over in a fifth of a second. */
static void short_steps(void **state) {
    (void)state;
    struct sw_forecast by = forecast;
    struct sw_departure departure = {0};
    struct sw_departed found;
    by.least_s = by.most_s = by.step.step_s = 0.002;
    const struct steps slow = {.count = 4 * MANY_STEPS, .seconds = 0.02, .factor = 1.0};
    const int at = note(&departure, &by, slow, &found);
    assert_true(at > MANY_STEPS - 5 && at < MANY_STEPS + 5);
    /* More steps than a block keeps. */
    departure = (struct sw_departure){0};
    by.least_s = by.most_s = by.step.step_s = 0.0001;
    assert_true(note(&departure, &by, (struct steps){.count = 10000, .seconds = 0.001, .factor = 1.0}, &found) > 3990);
    assert_true(found.measured_s == 0.001);
}

static void without_a_prediction(void **state) {
    (void)state;
    struct sw_departure departure = {0};
    struct sw_departed found;
    const struct steps steps = {.count = MANY_STEPS, .seconds = 5.0, .factor = 1.0};
    assert_int_equal(note(&departure, &(struct sw_forecast){0}, steps, &found), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_drive_ten_times_slower),
        cmocka_unit_test(a_drive_ten_times_faster),
        cmocka_unit_test(steps_that_agree),
        cmocka_unit_test(a_busy_moment),
        cmocka_unit_test(short_steps),
        cmocka_unit_test(without_a_prediction),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
