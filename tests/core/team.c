/* Every job of a team is done once, by as many threads as there are, and finish returns when all are. Of two things at
 * once both run, and the error that is kept is one's own. */
#include "core/team.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

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

struct task {
    bool ran;
    const char *failure; /* NULL: none */
};

static sw_status run(void *context) {
    struct task *task = context;
    task->ran = true;
    return task->failure != NULL ? sw_fail(SW_ERR_IO, "%s", task->failure) : SW_OK;
}

static void expect_both(const char *own_failure, const char *other_failure, const char *kept) {
    struct task own = {.failure = own_failure}, other = {.failure = other_failure};
    const sw_status status = sw_run_both(run, &own, &other);
    assert_true(own.ran && other.ran);
    assert_int_equal(status, kept != NULL ? SW_ERR_IO : SW_OK);
    if (kept != NULL)
        assert_non_null(strstr(sw_error_message(status), kept));
    sw_error_clear();
}

static void errors_are_kept(void **state) {
    (void)state;
    expect_both(NULL, NULL, NULL);
    expect_both("own broke", NULL, "own broke");
    expect_both(NULL, "other broke", "other broke");
    expect_both("own broke", "other broke", "own broke");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_job_is_done_once), cmocka_unit_test(errors_are_kept)};
    return cmocka_run_group_tests_name("team", tests, NULL, NULL);
}
