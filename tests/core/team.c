/* Every job of a team is done once, by as many threads as there are, and finish returns when all are. */
#include "core/team.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { MOST_JOBS = 40, ROUNDS = 200 };

static _Atomic bool wrong_thread;

static void count_job(void *context, int64_t index, int thread) {
    _Atomic int *done = context;
    if (thread < 0 || thread >= done[MOST_JOBS + 1])
        wrong_thread = true;
    atomic_fetch_add(&done[index], 1);
}

static void every_job_is_done_once(void **state) {
    (void)state;
    for (int threads = 1; threads <= 5; threads++) {
        struct sw_team *team;
        assert_int_equal(sw_team_open(threads, &team), SW_OK);
        for (int round = 0; round < ROUNDS; round++) {
            _Atomic int done[MOST_JOBS + 2] = {[MOST_JOBS + 1] = threads};
            const int64_t jobs = round % (MOST_JOBS + 1);
            sw_team_begin(team, count_job, done, jobs);
            sw_team_finish(team);
            for (int64_t j = 0; j <= MOST_JOBS; j++)
                assert_int_equal(atomic_load(&done[j]), j < jobs ? 1 : 0);
        }
        sw_team_close(team);
        assert_false(wrong_thread);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_job_is_done_once)};
    return cmocka_run_group_tests_name("team", tests, NULL, NULL);
}
