/* The learning rate at its boundaries, against values worked out by hand. */
#include "job/settings/schedule.h"
#include "tests/equipment/support.h"

#include <math.h>

#define COUNT(table) (sizeof(table) / sizeof(table)[0])

struct point {
    int64_t step;
    double lr;
};

static void check_points(const struct sw_schedule *schedule, const struct point *points, size_t count) {
    support_expect_ok(sw_schedule_check(schedule), "check");
    for (size_t i = 0; i < count; i++) {
        const double lr = sw_schedule_lr(schedule, points[i].step);
        if (fabs(lr - points[i].lr) > 1e-12)
            fail_msg("schedule %d: step %lld has %.17g, expected %.17g", (int)schedule->kind, (long long)points[i].step,
                     lr, points[i].lr);
    }
}

static void test_constant(void **state) {
    (void)state;
    const struct sw_schedule schedule = {
        .kind = SW_SCHEDULE_CONSTANT, .lr = 0.5, .min_lr = 0.1, .warmup_steps = 5, .steps = 20};
    const struct point points[] = {{1, 0.1}, {2, 0.2}, {4, 0.4}, {5, 0.5}, {6, 0.5}, {20, 0.5}, {21, 0.5}, {1000, 0.5}};
    check_points(&schedule, points, COUNT(points));
}

static void test_linear(void **state) {
    (void)state;
    const struct sw_schedule schedule = {
        .kind = SW_SCHEDULE_LINEAR, .lr = 1.0, .min_lr = 0.2, .warmup_steps = 4, .steps = 11};
    const struct point points[] = {{1, 0.25}, {4, 1.0}, {5, 0.9}, {8, 0.6}, {11, 0.3}, {12, 0.2}, {13, 0.2}, {99, 0.2}};
    check_points(&schedule, points, COUNT(points));
}

static void test_cosine(void **state) {
    (void)state;
    const struct sw_schedule schedule = {
        .kind = SW_SCHEDULE_COSINE, .lr = 2.0, .min_lr = 1.0, .warmup_steps = 2, .steps = 13};
    /* A third of the way: cos(60°) = 1/2; half: 0; two thirds: -1/2. */
    const struct point points[] = {{1, 1.0}, {2, 2.0}, {6, 1.75}, {8, 1.5}, {10, 1.25}, {14, 1.0}, {15, 1.0}};
    check_points(&schedule, points, COUNT(points));
}

static void test_wsd(void **state) {
    (void)state;
    const struct sw_schedule schedule = {
        .kind = SW_SCHEDULE_WSD, .lr = 1.0, .min_lr = 0.0, .warmup_steps = 2, .steps = 19, .decay_steps = 4};
    const struct point points[] = {{1, 0.5},  {2, 1.0},  {3, 1.0},  {15, 1.0}, {16, 0.8},
                                   {17, 0.6}, {19, 0.2}, {20, 0.0}, {21, 0.0}};
    check_points(&schedule, points, COUNT(points));
}

/* Runs that began when the last step of a schedule had min_lr go on so. */
static void test_min_at_last(void **state) {
    (void)state;
    const struct sw_schedule linear = {
        .kind = SW_SCHEDULE_LINEAR, .lr = 1.0, .min_lr = 0.2, .warmup_steps = 4, .steps = 12, .min_at_last = true};
    check_points(&linear, (const struct point[]){{4, 1.0}, {5, 0.9}, {8, 0.6}, {11, 0.3}, {12, 0.2}, {13, 0.2}}, 6);
    const struct sw_schedule wsd = {
        .kind = SW_SCHEDULE_WSD, .lr = 1.0, .warmup_steps = 2, .steps = 20, .decay_steps = 5, .min_at_last = true};
    check_points(&wsd, (const struct point[]){{15, 1.0}, {16, 0.8}, {19, 0.2}, {20, 0.0}, {21, 0.0}}, 5);
}

/* Without warm-up: the ten steps of torch.optim.lr_scheduler.CosineAnnealingLR(T_max=10, eta_min=0.1) by its documented
 * formula, and of transformers' get_linear_schedule_with_warmup(num_training_steps=10). */
static void test_like_pytorch(void **state) {
    (void)state;
    const struct sw_schedule cosine = {.kind = SW_SCHEDULE_COSINE, .lr = 1.0, .min_lr = 0.1, .steps = 10};
    check_points(&cosine, (const struct point[]){{1, 1.0}, {2, 0.977975432332819}, {6, 0.55}, {10, 0.122024567667181}},
                 4);
    const struct sw_schedule linear = {.kind = SW_SCHEDULE_LINEAR, .lr = 1.0, .steps = 10};
    check_points(&linear, (const struct point[]){{1, 1.0}, {2, 0.9}, {6, 0.5}, {10, 0.1}}, 4);
}

static void test_extremes(void **state) {
    (void)state;
    /* Without warm-up the first step has the full rate, and the one after the last the least. */
    const struct sw_schedule no_warmup = {.kind = SW_SCHEDULE_COSINE, .lr = 1.0, .min_lr = 0.5, .steps = 2};
    check_points(&no_warmup, (const struct point[]){{1, 1.0}, {2, 0.75}, {3, 0.5}, {4, 0.5}}, 4);
    const struct sw_schedule one_step = {.kind = SW_SCHEDULE_LINEAR, .lr = 1.0, .min_lr = 0.5, .steps = 1};
    check_points(&one_step, (const struct point[]){{1, 1.0}, {2, 0.5}}, 2);
    const struct sw_schedule all_warmup = {.kind = SW_SCHEDULE_LINEAR, .lr = 1.0, .warmup_steps = 4, .steps = 4};
    check_points(&all_warmup, (const struct point[]){{1, 0.25}, {4, 1.0}, {5, 0.0}}, 3);
    const struct sw_schedule no_stable = {
        .kind = SW_SCHEDULE_WSD, .lr = 1.0, .warmup_steps = 2, .steps = 3, .decay_steps = 1};
    check_points(&no_stable, (const struct point[]){{2, 1.0}, {3, 0.5}, {4, 0.0}}, 3);
}

static void test_never_rises_after_warmup(void **state) {
    (void)state;
    for (int kind = SW_SCHEDULE_CONSTANT; kind <= SW_SCHEDULE_WSD; kind++) {
        const struct sw_schedule schedule = {.kind = (sw_schedule_kind)kind,
                                             .lr = 3e-4,
                                             .min_lr = 3e-5,
                                             .warmup_steps = 17,
                                             .steps = 301,
                                             .decay_steps = 100};
        double before = 0;
        for (int64_t step = 1; step <= 400; step++) {
            const double lr = sw_schedule_lr(&schedule, step);
            assert_true(step <= 17 ? lr > before : lr <= before);
            assert_true(lr > 0 && lr <= schedule.lr);
            before = lr;
        }
    }
}

static void test_bad(void **state) {
    (void)state;
    const struct sw_schedule good = {
        .kind = SW_SCHEDULE_WSD, .lr = 1.0, .min_lr = 0.1, .warmup_steps = 4, .steps = 10, .decay_steps = 6};
    support_expect_ok(sw_schedule_check(&good), "good");
    struct sw_schedule bad = good;
    bad.steps = 0;
    support_expect_failure(sw_schedule_check(&bad), SW_ERR_ARG, "0 steps", "no steps");
    bad = good;
    bad.min_lr = 1.5;
    support_expect_failure(sw_schedule_check(&bad), SW_ERR_ARG, "above the learning rate", "min above");
    bad.min_lr = -0.1;
    support_expect_failure(sw_schedule_check(&bad), SW_ERR_ARG, "at least 0", "negative min");
    bad = good;
    bad.lr = NAN;
    support_expect_failure(sw_schedule_check(&bad), SW_ERR_ARG, "learning rate is", "nan");
    bad = good;
    bad.warmup_steps = 11;
    support_expect_failure(sw_schedule_check(&bad), SW_ERR_ARG, "warm-up of 11", "long warm-up");
    bad = good;
    bad.decay_steps = 7;
    support_expect_failure(sw_schedule_check(&bad), SW_ERR_ARG, "decay of 7", "long decay");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_constant),    cmocka_unit_test(test_linear),
        cmocka_unit_test(test_cosine),      cmocka_unit_test(test_wsd),
        cmocka_unit_test(test_min_at_last), cmocka_unit_test(test_like_pytorch),
        cmocka_unit_test(test_extremes),    cmocka_unit_test(test_never_rises_after_warmup),
        cmocka_unit_test(test_bad),
    };
    return cmocka_run_group_tests_name("schedule", tests, NULL, NULL);
}
