/* When a drive's rate counts as fallen and as settled, by series of drives that are known. */
#include "bench/io/sustain.h"
#include "core/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { LIMIT_S = 300, NEVER = -1 };
#define FAST 3e9
#define SLOW 0.6e9

/* The rate of a drive in a second of its writing. */
typedef double (*drive)(int second);

static double steady(int second) {
    (void)second;
    return FAST;
}

static double falls_late(int second) {
    return second < 40 ? FAST : SLOW;
}

/* Its cache is full within the first window. */
static double falls_at_once(int second) {
    return second < 3 ? FAST : SLOW;
}

static double falls_slowly(int second) {
    return fmax(SLOW, FAST * exp(-0.04 * second));
}

/* Slow for longer than a window, and then slower still. */
static double falls_twice(int second) {
    return second < 20 ? FAST : second < 35 ? 0.5 * FAST : SLOW;
}

static double falls_with_noise(int second) {
    return falls_late(second) * (1.0 + 0.05 * (double)sw_rng_normal(7, 0, (uint64_t)second));
}

/* Cleans up now and then, but is as fast as before. */
static double stalls(int second) {
    return second % 30 == 29 ? 0.3 * FAST : FAST;
}

/* Writes in bursts that a window holds many of. */
static double swings(int second) {
    return second < 20 ? FAST : SLOW * (second % 2 == 0 ? 1.8 : 0.2);
}

/* The second at which the bench would stop writing, or NEVER. */
static int stop_of(drive rate, int tick_s, struct sw_io_samples *samples) {
    int64_t bytes = 0;
    assert_int_equal(sw_io_samples_open(LIMIT_S, 0.0, samples), SW_OK);
    for (int second = 0; second < LIMIT_S; second++) {
        bytes += (int64_t)rate(second);
        if ((second + 1) % tick_s != 0)
            continue;
        sw_io_samples_add(samples, second + 1.0, bytes);
        if (sw_io_samples_fall(samples) >= 0 && sw_io_samples_settled(samples))
            return second + 1;
    }
    return NEVER;
}

static void drives_that_fall_settle_at_their_slow_rate(void **state) {
    (void)state;
    static const struct {
        drive rate;
        int fall_s, stops_by_s;
        double tolerance;
    } table[] = {{falls_late, 40, 60, 1e-6},  {falls_at_once, 3, 23, 1e-6},      {falls_slowly, 0, 70, 0.05},
                 {falls_twice, 20, 55, 1e-6}, {falls_with_noise, 40, 100, 0.06}, {swings, 20, 40, 1e-6}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct sw_io_samples samples;
        const int stop = stop_of(table[i].rate, 1, &samples);
        assert_in_range(stop, 2 * SW_IO_WINDOW, table[i].stops_by_s);
        assert_true(fabs(sw_io_samples_last(&samples) / SLOW - 1.0) <= table[i].tolerance);
        if (table[i].fall_s > 0)
            assert_int_equal(sw_io_samples_fall(&samples), table[i].fall_s);
        sw_io_samples_close(&samples);
    }
}

static void drives_that_do_not_fall_are_written_to_the_end(void **state) {
    (void)state;
    static const drive table[] = {steady, stalls};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct sw_io_samples samples;
        assert_int_equal(stop_of(table[i], 1, &samples), NEVER);
        assert_int_equal(sw_io_samples_fall(&samples), -1);
        sw_io_samples_close(&samples);
    }
}

/* Nothing is said of less than two windows, whatever they show. */
static void two_windows_are_the_least(void **state) {
    (void)state;
    struct sw_io_samples samples;
    assert_int_equal(sw_io_samples_open(LIMIT_S, 0.0, &samples), SW_OK);
    int64_t bytes = 0;
    for (int second = 0; second < 2 * SW_IO_WINDOW - 1; second++) {
        bytes += (int64_t)falls_at_once(second);
        sw_io_samples_add(&samples, second + 1.0, bytes);
        assert_false(sw_io_samples_settled(&samples));
        assert_int_equal(sw_io_samples_fall(&samples), -1);
    }
    sw_io_samples_close(&samples);
}

/* A drive that answers only every few seconds has samples that long, of the right rate. */
static void late_answers_make_long_samples(void **state) {
    (void)state;
    struct sw_io_samples samples;
    const int stop = stop_of(falls_late, 3, &samples);
    assert_in_range(stop, 3 * 2 * SW_IO_WINDOW, 110);
    assert_true(fabs(sw_io_samples_last(&samples) / SLOW - 1.0) <= 1e-6);
    assert_true(fabs(samples.bytes_per_s[0] / FAST - 1.0) <= 1e-6);
    sw_io_samples_close(&samples);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(drives_that_fall_settle_at_their_slow_rate),
                                       cmocka_unit_test(drives_that_do_not_fall_are_written_to_the_end),
                                       cmocka_unit_test(two_windows_are_the_least),
                                       cmocka_unit_test(late_answers_make_long_samples)};
    return cmocka_run_group_tests_name("settling", tests, NULL, NULL);
}
