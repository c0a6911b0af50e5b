/* kill -9 at random instants loses nothing: the store opens at the last step that was committed, or a later one, with
 * exactly the bits that an uninterrupted training has there, and goes on to the same end.
 *
 * Children are forked from a process that computes nothing itself, because threads do not survive a fork.
 * SW_CRASH_KILLS in the environment asks for more kills, SW_TEST_SEED for others. */
#include "tests/e2e/crash_child.h"
#include "tests/e2e/harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/rng.h"

enum { KILLS_EVERY_STEP = 220, KILLS_SAVED = 110, KILLS_NARROW = 60, KILLS_FROZEN = 60, SEED = 3 };
/* As many as this part of the kills must lie between a step's first write and its commit, and one before the store is
 * open. Where they do not, as on busy cores, there are more kills, up to so many times as many. */
enum { WITHIN_A_STEP_DIVISOR = 3, MOST_KILLS_FACTOR = 8 };
/* Every fourth child is killed soon, in its creation or opening; the others after some steps. */
enum { EARLY_ROUNDS = 4, EARLY_DELAY_US = 25000, MOST_STEPS_ALIVE = 5, MOST_DELAY_US = 9000, POLL_US = 100 };
#define ROUND_LIMIT_NS INT64_C(600000000000)

struct tally {
    int kills, opening, within_a_step, recording, runs;
};

static uint64_t seed(void) {
    const char *given = getenv("SW_TEST_SEED");
    return given != NULL ? strtoull(given, NULL, 10) : SEED;
}

static int kills_of(int least) {
    const char *given = getenv("SW_CRASH_KILLS");
    const int asked = given != NULL ? atoi(given) : 0;
    return asked > least ? asked : least;
}

static int64_t draw(uint64_t *counter, int64_t most) {
    return (int64_t)(sw_rng_uniform(seed(), 0, (*counter)++) * (double)(most + 1));
}

static struct crash_shared *share(void) {
    struct crash_shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    return shared;
}

static void forget_store(struct crash_shared *shared) {
    shared->lives = false;
    atomic_store(&shared->done, -1);
    atomic_store(&shared->saved, -1);
}

static pid_t start(const struct crash_case *crash, struct crash_shared *shared) {
    atomic_store(&shared->opened, -1);
    atomic_store(&shared->marks.state, MARK_COMMITTED);
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(crash == NULL ? crash_train_uninterrupted(shared) : crash_train(crash, shared));
    return child;
}

static bool has_ended(pid_t child, struct crash_shared *shared, int options, int *out_status) {
    const pid_t found = waitpid(child, out_status, options);
    assert_true(found == child || found == 0);
    if (found == child && WIFEXITED(*out_status) && WEXITSTATUS(*out_status) != 0)
        fail_msg("%s (seed %llu)", shared->text, (unsigned long long)seed());
    return found == child;
}

/* Waits until the child has come as far as it is to live. Gives whether it ended before. */
static bool ends_before(pid_t child, struct crash_shared *shared, int64_t steps, int *out_status) {
    const int64_t until_ns = sw_now_ns() + ROUND_LIMIT_NS;
    while (!has_ended(child, shared, WNOHANG, out_status)) {
        const int64_t opened = atomic_load(&shared->opened);
        if (opened >= 0 && atomic_load(&shared->done) >= opened + steps)
            return false;
        if (sw_now_ns() > until_ns) {
            kill(child, SIGKILL);
            fail_msg("a child made no progress (seed %llu)", (unsigned long long)seed());
        }
        usleep(POLL_US);
    }
    return true;
}

/* One child and its death. Gives whether it came to its end instead. */
static bool one_round(const struct crash_case *crash, struct crash_shared *shared, uint64_t *counter,
                      struct tally *tally) {
    int status;
    const bool early = draw(counter, EARLY_ROUNDS - 1) == 0;
    const int64_t steps = draw(counter, MOST_STEPS_ALIVE);
    const pid_t child = start(crash, shared);
    bool ended = !early && ends_before(child, shared, steps, &status);
    if (!ended) {
        usleep((useconds_t)draw(counter, early ? EARLY_DELAY_US : MOST_DELAY_US));
        kill(child, SIGKILL);
        has_ended(child, shared, 0, &status);
        ended = WIFEXITED(status);
    }
    const int state = atomic_load(&shared->marks.state);
    tally->kills += !ended;
    tally->runs += ended;
    tally->opening += !ended && atomic_load(&shared->opened) < 0;
    tally->within_a_step += !ended && atomic_load(&shared->opened) >= 0 && state != MARK_COMMITTED;
    tally->recording += !ended && state == MARK_RECORDING;
    return ended;
}

static bool are_enough(const struct tally *tally, int kills) {
    return tally->kills >= kills && tally->within_a_step >= kills / WITHIN_A_STEP_DIVISOR && tally->opening > 0;
}

/* One store after the other is trained to its end through many deaths. */
static void kill_often(const char *name, const struct crash_case *crash, int kills) {
    struct crash_shared *shared = share();
    struct tally tally = {0};
    uint64_t counter = 0;
    int status;
    shared->optimizer = crash->optimizer;
    shared->freeze = crash->freeze;
    assert_true(has_ended(start(NULL, shared), shared, 0, &status));
    forget_store(shared);
    while (!are_enough(&tally, kills) && tally.kills < MOST_KILLS_FACTOR * kills)
        if (one_round(crash, shared, &counter, &tally)) {
            harness_remove_store(crash->directory);
            forget_store(shared);
        }
    assert_true(has_ended(start(crash, shared), shared, 0, &status));
    printf(
        "# %s: %d kills, %d of them before the store was open, %d between a step's first write and its commit (%d of "
        "these within the commit's record); %d runs came to their end\n",
        name, tally.kills, tally.opening, tally.within_a_step, tally.recording, tally.runs + 1);
    assert_true(are_enough(&tally, kills));
    munmap(shared, sizeof *shared);
}

static void kills_lose_nothing_where_every_step_commits(void **state) {
    const struct crash_case crash = {.place = "weights=nvme,grads=nvme,optimizer=nvme", .directory = *state};
    kill_often("every step commits", &crash, kills_of(KILLS_EVERY_STEP));
}

static void kills_lose_nothing_since_the_last_save(void **state) {
    const struct crash_case crash = {
        .place = "grads=host:50%/nvme,optimizer=device:30%/host:30%/nvme", .directory = *state, .save_every = 3};
    kill_often("mixed placement, a save every three steps", &crash, kills_of(KILLS_SAVED));
}

static void kills_lose_nothing_of_narrow_state(void **state) {
    const struct crash_case crash = {
        .place = "weights=nvme,grads=nvme,optimizer=nvme", .directory = *state, .optimizer = SW_OPTIMIZER_8BIT};
    kill_often("8-bit optimizer state", &crash, kills_of(KILLS_NARROW));
}

/* The units of the blocks have a frozen and a trained span each; the embedding is trained, and tied to the head. */
static void kills_lose_nothing_of_partly_frozen_units(void **state) {
    struct crash_case crash = {
        .place = "weights=nvme,grads=nvme,optimizer=nvme", .directory = *state, .freeze = "*.mlp.*,*ln_1*"};
    kill_often("units that are frozen in part", &crash, kills_of(KILLS_FROZEN));
    crash.place = "weights=host,grads=host:50%/nvme,optimizer=device:30%/host:30%/nvme";
    crash.save_every = 3;
    crash.optimizer = SW_OPTIMIZER_8BIT;
    harness_remove_store(*state);
    kill_often("units that are frozen in part, saves and 8-bit state", &crash, kills_of(KILLS_FROZEN));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(kills_lose_nothing_where_every_step_commits, harness_make_directory,
                                        harness_remove_directory),
        cmocka_unit_test_setup_teardown(kills_lose_nothing_since_the_last_save, harness_make_directory,
                                        harness_remove_directory),
        cmocka_unit_test_setup_teardown(kills_lose_nothing_of_narrow_state, harness_make_directory,
                                        harness_remove_directory),
        cmocka_unit_test_setup_teardown(kills_lose_nothing_of_partly_frozen_units, harness_make_directory,
                                        harness_remove_directory),
    };
    return cmocka_run_group_tests_name("e2e crash", tests, NULL, NULL);
}
