/* Ratios of contenders that ran in turn, and the intervals that chance leaves around them. */
#include "bench/report.h"
#include "core/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { LEFT, RIGHT, ROUNDS = 25, TRIALS = 200 };

/* Rounds in which the drive itself becomes faster and slower, and each contender's luck adds to that. */
static void run_rounds(uint64_t trial, double true_ratio, double noise, int rounds, struct sw_bench_rounds *out) {
    *out = (struct sw_bench_rounds){.rounds = rounds};
    for (int i = 0; i < rounds; i++) {
        const double drift = exp((double)sw_rng_normal(1, trial, (uint64_t)i));
        out->rate[LEFT][i] = true_ratio * drift * exp(noise * (double)sw_rng_normal(2, trial, (uint64_t)i));
        out->rate[RIGHT][i] = drift * exp(noise * (double)sw_rng_normal(3, trial, (uint64_t)i));
    }
}

static void one_round_is_its_own_interval(void **state) {
    (void)state;
    struct sw_bench_rounds rounds = {.rounds = 1, .rate = {[LEFT] = {3.0}, [RIGHT] = {4.0}}};
    const struct sw_bench_interval interval = sw_bench_ratio_interval(&rounds, LEFT, RIGHT);
    assert_true(interval.low == 0.75 && interval.high == 0.75);
}

static void drift_leaves_no_width(void **state) {
    (void)state;
    struct sw_bench_rounds rounds;
    run_rounds(0, 0.97, 0.0, ROUNDS, &rounds);
    const struct sw_bench_interval interval = sw_bench_ratio_interval(&rounds, LEFT, RIGHT);
    assert_true(fabs(interval.low - 0.97) < 1e-12 && fabs(interval.high - 0.97) < 1e-12);
}

/* A percentile interval of a median holds the truth about as often as it says; never of 200 trials fewer than 180. */
static void intervals_hold_the_truth(void **state) {
    (void)state;
    int held = 0, holds_the_median = 0;
    for (uint64_t trial = 0; trial < TRIALS; trial++) {
        struct sw_bench_rounds rounds;
        run_rounds(trial, 1.1, 0.2, ROUNDS, &rounds);
        const struct sw_bench_interval interval = sw_bench_ratio_interval(&rounds, LEFT, RIGHT);
        const double median = sw_bench_ratio(&rounds, LEFT, RIGHT);
        held += interval.low <= 1.1 && 1.1 <= interval.high;
        holds_the_median += interval.low <= median && median <= interval.high;
    }
    assert_int_equal(holds_the_median, TRIALS);
    assert_in_range(held, 180, 199);
}

static void more_rounds_make_it_narrower(void **state) {
    (void)state;
    double width[2] = {0.0, 0.0};
    for (uint64_t trial = 0; trial < TRIALS; trial++)
        for (int i = 0; i < 2; i++) {
            struct sw_bench_rounds rounds;
            run_rounds(trial, 1.0, 0.2, i == 0 ? 9 : 81, &rounds);
            const struct sw_bench_interval interval = sw_bench_ratio_interval(&rounds, LEFT, RIGHT);
            width[i] += interval.high - interval.low;
        }
    assert_true(width[1] < 0.5 * width[0]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_round_is_its_own_interval), cmocka_unit_test(drift_leaves_no_width),
        cmocka_unit_test(intervals_hold_the_truth), cmocka_unit_test(more_rounds_make_it_narrower)};
    return cmocka_run_group_tests_name("rounds", tests, NULL, NULL);
}
