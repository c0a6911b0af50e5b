/* kill -9 at random instants loses nothing: the store opens at the last step that was reported done, or a later one,
 * with exactly the bits that an uninterrupted training has there, and goes on to the same end. */
#include "tests/e2e/same_bits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/rng.h"
#include "core/size.h"

enum { STEPS = 30, KILLS = 20, SEED = 3, CHILD_FAILED = 9 };
/* Every fourth child starts anew and is killed early, so that creation is interrupted too; the others some time after
 * some steps. */
enum { EARLY_ROUNDS = 4, EARLY_DELAY_MS = 150, MOST_STEPS_ALIVE = 8, MOST_DELAY_MS = 40 };
#define CLIP 1.0

/* What a step leaves, and what the child reports of it. */
struct mark {
    int64_t step;
    double loss_sum, grad_norm;
};
struct reference {
    struct mark mark[STEPS + 1];
    uint64_t digest[STEPS + 1]; /* of all records after the step */
};

static void must(sw_status status) {
    if (status != SW_OK)
        fail_msg("%s", sw_error_message(status));
}

static struct harness_spec crash_spec(const char *directory, bool resume) {
    struct harness_spec spec = same_spec(SW_BF16);
    /* Speculating, so that kills also hit updates that are redone. */
    spec.speculation = SW_SPECULATE_ALWAYS;
    spec.place = directory == NULL ? "grads=device,optimizer=device" : "weights=nvme,grads=nvme,optimizer=nvme";
    spec.directory = directory;
    spec.resume = resume;
    return spec;
}

static uint64_t digest_state(struct harness *harness) {
    const int64_t bytes = harness_grains(harness) * SW_RECORD_BYTES;
    uint64_t digest = UINT64_C(14695981039346656037);
    float *records = malloc((size_t)bytes);
    assert_non_null(records);
    must(harness_read_records(harness, records));
    for (int64_t i = 0; i < bytes / (int64_t)sizeof(uint32_t); i++) {
        uint32_t word;
        memcpy(&word, records + i, sizeof word);
        digest = (digest ^ word) * UINT64_C(1099511628211);
    }
    free(records);
    return digest;
}

static void train_uninterrupted(struct reference *reference) {
    struct harness harness;
    const struct harness_spec spec = crash_spec(NULL, false);
    must(harness_open(&spec, &harness));
    reference->digest[0] = digest_state(&harness);
    for (int64_t step = 1; step <= STEPS; step++) {
        struct sw_step_result result;
        must(harness_begin(&harness, step, CLIP));
        must(harness_wait(&harness, &result));
        reference->mark[step] = (struct mark){step, result.loss_sum, result.grad_norm};
        reference->digest[step] = digest_state(&harness);
    }
    harness_close(&harness);
}

/* The child: trains to the end and writes a mark for each step that is done. */
static sw_status train_marking(const char *directory, bool resume, int marks) {
    struct harness harness;
    const struct harness_spec spec = crash_spec(directory, resume);
    SW_TRY(harness_open(&spec, &harness));
    int64_t begun = harness.first_step;
    for (int64_t step = harness.first_step + 1; step <= STEPS; step++) {
        struct sw_step_result result;
        while (begun < STEPS && begun <= step)
            SW_TRY(harness_begin(&harness, ++begun, CLIP));
        SW_TRY(harness_wait(&harness, &result));
        const struct mark mark = {step, result.loss_sum, result.grad_norm};
        if (write(marks, &mark, sizeof mark) != (ssize_t)sizeof mark)
            return sw_fail(SW_ERR_IO, "the parent does not listen");
    }
    SW_TRY(sw_engine_save(harness.engine));
    harness_close(&harness);
    return SW_OK;
}

static int child_main(const char *directory, bool resume) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const sw_status status = train_marking(directory, resume, STDOUT_FILENO);
    if (status != SW_OK)
        fprintf(stderr, "child: %s\n", sw_error_message(status));
    return status == SW_OK ? 0 : CHILD_FAILED;
}

/* A fresh process, because threads do not survive a fork. */
static pid_t start_child(const char *directory, bool resume, int *out_marks) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        execl("/proc/self/exe", "crash", resume ? "resume" : "create", directory, (char *)NULL);
        _exit(CHILD_FAILED);
    }
    close(ends[1]);
    *out_marks = ends[0];
    return child;
}

static bool same_mark(const struct mark *a, const struct mark *b) {
    return a->step == b->step && a->loss_sum == b->loss_sum && a->grad_norm == b->grad_norm;
}

/* Reads up to `most` marks, compares them with the uninterrupted training's, and gives the last step. */
static int64_t read_marks(const struct reference *reference, int marks, int64_t most, int64_t last) {
    struct mark mark;
    for (int64_t m = 0; m < most && read(marks, &mark, sizeof mark) == (ssize_t)sizeof mark; m++) {
        if (mark.step < 1 || mark.step > STEPS || !same_mark(&mark, &reference->mark[mark.step]))
            fail_msg("step %lld after a resume is not that of the uninterrupted training", (long long)mark.step);
        last = mark.step;
    }
    return last;
}

/* Kills the child, unless it has ended by itself. Gives true where it was killed. */
static bool kill_child(pid_t child, int64_t delay_ms) {
    int status;
    poll(NULL, 0, (int)delay_ms);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
        fail_msg("the child failed (seed %d)", SEED);
    return WIFSIGNALED(status);
}

/* Opens what the child left. -1 where it had not yet committed anything. */
static int64_t check_store(const struct reference *reference, const char *directory, int64_t last_done) {
    struct harness harness;
    const struct harness_spec spec = crash_spec(directory, true);
    const sw_status status = harness_open(&spec, &harness);
    if (status != SW_OK && last_done >= 0)
        fail_msg("after step %lld: %s", (long long)last_done, sw_error_message(status));
    sw_error_clear();
    if (status != SW_OK)
        return -1;
    const int64_t step = harness.first_step;
    /* A step is committed under the one after it. */
    if (step < last_done - 1 || step > last_done + SW_ENGINE_STEPS_AHEAD)
        fail_msg("step %lld was done, and the store is at step %lld", (long long)last_done, (long long)step);
    if (digest_state(&harness) != reference->digest[step])
        fail_msg("the state of step %lld is not that of the uninterrupted training", (long long)step);
    harness_close(&harness);
    return step;
}

struct tally {
    int kills, before_commit, in_training, further;
};

static int64_t draw(int round, int which, int64_t most) {
    return (int64_t)(sw_rng_uniform(SEED, (uint64_t)which, (uint64_t)round) * (double)(most + 1));
}

/* One child, killed after a while, and the store that it leaves. Gives the step to go on from, -1 for anew. */
static int64_t one_round(const struct reference *reference, const char *directory, int round, int64_t from,
                         struct tally *tally) {
    int marks;
    const bool early = round % EARLY_ROUNDS == 0;
    if (early)
        from = -1;
    if (from < 0)
        harness_remove_store(directory);
    const pid_t child = start_child(directory, from >= 0, &marks);
    int64_t done = read_marks(reference, marks, early ? 0 : draw(round, 0, MOST_STEPS_ALIVE), from);
    const bool killed = kill_child(child, draw(round, 1, early ? EARLY_DELAY_MS : MOST_DELAY_MS));
    done = read_marks(reference, marks, STEPS, done);
    close(marks);
    const int64_t step = check_store(reference, directory, done);
    tally->kills += killed;
    tally->before_commit += step < 0;
    tally->in_training += killed && done > from;
    tally->further += done >= 0 && step > done;
    return killed ? step : -1;
}

static void finish_training(const struct reference *reference, const char *directory, int64_t from) {
    int marks, status;
    if (from < 0)
        harness_remove_store(directory);
    const pid_t child = start_child(directory, from >= 0, &marks);
    assert_int_equal(read_marks(reference, marks, STEPS, from), STEPS);
    close(marks);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(check_store(reference, directory, STEPS), STEPS);
}

static void killed_trainings_resume_with_the_same_bits(void **state) {
    struct reference *reference = calloc(1, sizeof *reference);
    struct tally tally = {0};
    train_uninterrupted(reference);
    int64_t step = -1;
    for (int round = 0; tally.kills < KILLS; round++)
        step = one_round(reference, *state, round, step, &tally);
    printf("# %d kills: %d before the first commit, %d after steps of their own, %d with a step committed that had not "
           "been "
           "reported\n",
           tally.kills, tally.before_commit, tally.in_training, tally.further);
    assert_true(tally.in_training > 0);
    finish_training(reference, *state, step);
    free(reference);
}

int main(int argc, char **argv) {
    if (argc == 3)
        return child_main(argv[2], strcmp(argv[1], "resume") == 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(killed_trainings_resume_with_the_same_bits, harness_make_directory,
                                        harness_remove_directory),
    };
    return cmocka_run_group_tests_name("e2e crash", tests, NULL, NULL);
}
