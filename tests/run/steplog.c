/* log.jsonl: its fields, numbers that are not finite, and what a resumed run finds. */
#include "run/steplog.h"
#include "tests/equipment/support.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/stat.h>

static struct sw_step_record record_of(int64_t step) {
    return (struct sw_step_record){
        .step = step,
        .time_s = 1795378826,
        .loss = 1.0 / 3.0 + (double)step,
        .loss_tokens = 4000,
        .grad_norm = 0.1,
        .lr = 3e-4,
        .tokens = 4096,
        .seconds = 2.0,
        .tokens_per_second = 2048,
        .mfu = NAN,
        .eta_seconds = 130.2,
        .lanes = {.compute = 1.9, .read = 0.5, .update = 0.25},
        .bytes = {.nvme_read = INT64_MAX, .nvme_write = 2, .upload = 3, .download = 4},
        .peak = {.device = 5, .host = 6, .nvme = 7},
    };
}

/* The names of an object's fields, in order. */
static void assert_fields(json_t *object, const char *expected) {
    char names[512] = "";
    const char *name = NULL;
    json_t *value = NULL;
    json_object_foreach(object, name, value) {
        strncat(names, name, sizeof names - strlen(names) - 2);
        strcat(names, " ");
    }
    assert_string_equal(names, expected);
}

static void test_step_fields(void **state) {
    (void)state;
    char text[SW_STEPLOG_LINE_CHARS];
    const struct sw_step_record record = record_of(12);
    const int length = sw_step_to_json(&record, text);
    assert_int_equal(length, strlen(text));
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(root);
    assert_fields(root,
                  "step time loss loss_tokens grad_norm clipped clipped_share lr tokens seconds tokens_per_second mfu "
                  "skipped saved ranks zero "
                  "eta_seconds lanes bytes peak ");
    assert_fields(json_object_get(root, "lanes"), "compute upload download read write update comm ");
    assert_fields(json_object_get(root, "bytes"), "nvme_read nvme_write upload download comm ");
    assert_fields(json_object_get(root, "peak"), "device host nvme ");
    assert_true(json_number_value(json_object_get(root, "loss")) == record.loss); /* To the last bit. */
    assert_true(json_is_null(json_object_get(root, "mfu")));
    assert_string_equal(json_string_value(json_object_get(root, "time")), "2026-11-22T20:20:26Z");
    assert_true(json_is_false(json_object_get(root, "skipped")));
    assert_true(json_number_value(json_object_get(json_object_get(root, "lanes"), "read")) == 0.5);
    assert_true(json_integer_value(json_object_get(json_object_get(root, "bytes"), "nvme_read")) == INT64_MAX);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(root, "peak"), "nvme")), 7);
    assert_non_null(strstr(text, "\"lr\":0.0003,")); /* Not 0.00029999999999999997. */
    json_decref(root);
}

/* The fields of experts come before those of pairs, each without the other. */
static void test_optional_fields(void **state) {
    (void)state;
    for (int i = 1; i < 4; i++) {
        char text[SW_STEPLOG_LINE_CHARS];
        struct sw_step_record record = record_of(12);
        record.experts.load = i & 1 ? 1.5 : 0.0;
        record.experts.idle = 3;
        record.experts.aux_loss = NAN;
        record.rewards.pairs = i & 2;
        record.pipeline.stages = i & 1;
        sw_step_to_json(&record, text);
        json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL), *experts = json_object_get(root, "experts");
        assert_non_null(root);
        assert_true((experts != NULL) == ((i & 1) != 0));
        assert_true((json_object_get(root, "rewards") != NULL) == ((i & 2) != 0));
        assert_true((json_object_get(root, "pipeline") != NULL) == ((i & 1) != 0));
        if (experts != NULL) {
            assert_fields(experts, "load idle aux_loss z_loss ");
            assert_int_equal(json_integer_value(json_object_get(experts, "idle")), 3);
            assert_true(json_is_null(json_object_get(experts, "aux_loss")));
        }
        json_decref(root);
    }
}

static void test_longest_line_fits(void **state) {
    (void)state;
    char text[SW_STEPLOG_LINE_CHARS];
    struct sw_step_record record;
    /* -1.2345678901234567e-300 and the least integer everywhere. */
    double longest = -1.2345678901234567e-300;
    record = record_of(INT64_MIN);
    record.loss = record.grad_norm = record.lr = record.seconds = record.tokens_per_second = longest;
    record.mfu = record.eta_seconds = record.clipped_share = longest;
    record.lanes.compute = record.lanes.upload = record.lanes.download = record.lanes.read = longest;
    record.lanes.write = record.lanes.update = record.lanes.comm = longest;
    record.bytes.nvme_read = record.bytes.nvme_write = record.bytes.upload = record.bytes.download = INT64_MIN;
    record.experts.load = -longest;
    record.experts.aux_loss = record.experts.z_loss = longest;
    record.experts.idle = record.pipeline.groups = record.pipeline.interleave = INT64_MIN;
    record.pipeline.stages = record.rewards.pairs = INT64_MAX;
    record.pipeline.idle = record.pipeline.most_idle = record.pipeline.formula = longest;
    record.bytes.comm = record.peak.device = record.peak.host = record.peak.nvme = record.tokens = INT64_MIN;
    sw_step_to_json(&record, text);
    json_t *root = json_loads(text, 0, NULL);
    assert_non_null(root);
    json_decref(root);
    record.loss = record.seconds = -1.7e308;
    assert_true(sw_step_to_text(&record, INT64_MIN, text) < SW_STEPLOG_LINE_CHARS);
}

static void test_not_finite(void **state) {
    (void)state;
    char text[SW_STEPLOG_LINE_CHARS];
    struct sw_step_record record = record_of(1);
    record.loss = NAN;
    record.grad_norm = INFINITY;
    record.skipped = true;
    sw_step_to_json(&record, text);
    json_t *root = json_loads(text, 0, NULL);
    assert_non_null(root);
    assert_true(json_is_null(json_object_get(root, "loss")));
    assert_true(json_is_null(json_object_get(root, "grad_norm")));
    assert_true(json_is_true(json_object_get(root, "skipped")));
    json_decref(root);
    sw_step_to_text(&record, 10, text);
    assert_non_null(strstr(text, "skipped"));
}

static void test_text(void **state) {
    (void)state;
    char text[SW_STEPLOG_LINE_CHARS];
    const struct sw_step_record record = record_of(12);
    sw_step_to_text(&record, 300, text);
    assert_string_equal(text, "step 12/300  loss 12.3333  norm 0.1  lr 3.00e-04  2048 tokens/s  left 2 min  compute 95%"
                              "  read 25%  update 12%");
    struct sw_step_record empty = record;
    empty.loss = NAN;
    empty.loss_tokens = 0;
    sw_step_to_text(&empty, 300, text);
    assert_non_null(strstr(text, "step 12/300  loss -  norm"));
    struct sw_step_record over = record;
    over.lanes.compute = 2.54; /* It began under the end of the step before. */
    sw_step_to_text(&over, 300, text);
    assert_non_null(strstr(text, "compute 100%"));
    const struct sw_eval_record evaluation = {.step = 12, .val_loss = log(2.0) * 3, .val_tokens = 99, .seconds = 0.25};
    sw_eval_to_text(&evaluation, text);
    assert_string_equal(text, "step 12  validation loss 2.0794 (3.0000 bits a token, 99 tokens) in 0.25 s");
}

/* Writes steps first..last with an evaluation after every fifth, as a run would. */
static void run_steps(const char *path, int64_t resumed, int64_t last) {
    struct sw_steplog *log = NULL;
    support_expect_ok(sw_steplog_open(path, resumed, last, &log), "open");
    for (int64_t step = resumed + 1; step <= last; step++) {
        support_expect_ok(sw_steplog_step(log, record_of(step)), "step");
        if (step % 5 == 0)
            support_expect_ok(
                sw_steplog_evaluation(log, (struct sw_eval_record){.step = step, .val_loss = 1.5, .val_tokens = 1000}),
                "evaluation");
    }
    support_expect_ok(sw_steplog_close(log), "close");
}

/* Every step from 1 to last once and in order, and the evaluation after every fifth. */
static void assert_whole(const char *path, int64_t last) {
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char text[SW_STEPLOG_LINE_CHARS];
    for (int64_t step = 1; step <= last; step++) {
        for (int evaluation = 0; evaluation <= (step % 5 == 0); evaluation++) {
            assert_non_null(fgets(text, sizeof text, file));
            json_t *root = json_loads(text, 0, NULL);
            assert_non_null(root);
            assert_int_equal(json_integer_value(json_object_get(root, "step")), step);
            assert_int_equal(json_object_get(root, "val_loss") != NULL, evaluation);
            if (evaluation)
                assert_fields(root, "step time val_loss val_tokens val_seconds ");
            json_decref(root);
        }
    }
    assert_null(fgets(text, sizeof text, file));
    fclose(file);
}

static void append(const char *path, const char *text) {
    FILE *file = fopen(path, "a");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static void test_resume(void **state) {
    char path[SUPPORT_PATH_CHARS];
    support_path(state, "log.jsonl", path);
    run_steps(path, 0, 12);
    assert_whole(path, 12);
    run_steps(path, 10, 17); /* Steps 11 and 12 were not committed. */
    assert_whole(path, 17);
    append(path, "{\"step\":18,\"loss\":"); /* Killed while writing. */
    run_steps(path, 17, 20);
    assert_whole(path, 20);
    append(path, "\n{\"step\":\"?\"}\n{\"step\":19}\n"); /* Damaged in the middle. */
    run_steps(path, 20, 21);
    assert_whole(path, 21);
    run_steps(path, 0, 3); /* Begun again. */
    assert_whole(path, 3);
    assert_int_equal(truncate(path, 0), 0);
    run_steps(path, 0, 2);
    assert_whole(path, 2);
}

/* The share of clipped steps counts the last hundred, those before a resume too. */
static void test_clipped_share(void **state) {
    char path[SUPPORT_PATH_CHARS], text[SW_STEPLOG_LINE_CHARS];
    support_path(state, "log.jsonl", path);
    for (int64_t step = 1; step <= 130; step++) {
        struct sw_steplog *log = NULL;
        struct sw_step_record record = record_of(step);
        record.clipped = step <= 20 || step > 120;
        support_expect_ok(sw_steplog_open(path, step - 1, 130, &log), "open");
        support_expect_ok(sw_steplog_step(log, record), "step");
        support_expect_ok(sw_steplog_close(log), "close");
    }
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    for (int64_t step = 1; step <= 130; step++) {
        assert_non_null(fgets(text, sizeof text, file));
        json_t *root = json_loads(text, 0, NULL);
        const int64_t first = step > 100 ? step - 99 : 1;
        const int64_t clipped = (first <= 20 ? (step < 20 ? step : 20) - first + 1 : 0) + (step > 120 ? step - 120 : 0);
        const double share = (double)clipped / (double)(step - first + 1);
        assert_true(json_is_true(json_object_get(root, "clipped")) == (step <= 20 || step > 120));
        assert_true(json_number_value(json_object_get(root, "clipped_share")) == share);
        json_decref(root);
    }
    fclose(file);
}

static void test_folder_missing(void **state) {
    char path[SUPPORT_PATH_CHARS];
    struct sw_steplog *log = NULL;
    support_expect_failure(sw_steplog_open(support_path(state, "no/log.jsonl", path), 0, 1, &log), SW_ERR_IO,
                           "cannot be opened for writing", "no folder");
    assert_null(log);
}

static void test_write_fails(void **state) {
    char path[SUPPORT_PATH_CHARS];
    struct sw_steplog *log = NULL;
    struct rlimit before;
    support_expect_ok(sw_steplog_open(support_path(state, "log.jsonl", path), 0, 1, &log), "open");
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    const struct rlimit small = {.rlim_cur = 100, .rlim_max = before.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    const sw_status status = sw_steplog_step(log, record_of(1));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    support_expect_failure(status, SW_ERR_SPACE, "cannot be written", "file size limit");
    support_expect_ok(sw_steplog_close(log), "close");
    run_steps(path, 0, 1); /* The torn line is gone. */
    assert_whole(path, 1);
}

/* In the place of the C library's. */
static int flushes, flush_error;

int fdatasync(int fildes) {
    struct stat info;
    errno = flush_error;
    flushes += fstat(fildes, &info) == 0 && info.st_size > 0;
    return flush_error == 0 ? 0 : -1;
}

static int folder_error;

int fsync(int fd) {
    (void)fd;
    errno = folder_error;
    return folder_error == 0 ? 0 : -1;
}

/* The name of a new log lasts too, where the file system can. */
static void test_folder_flush(void **state) {
    char path[SUPPORT_PATH_CHARS];
    struct sw_steplog *log = NULL;
    support_path(state, "log.jsonl", path);
    folder_error = EIO;
    support_expect_failure(sw_steplog_open(path, 0, 3, &log), SW_ERR_IO, "cannot be flushed", "a folder that fails");
    assert_int_equal(unlink(path), 0);
    folder_error = EINVAL;
    support_expect_ok(sw_steplog_open(path, 0, 3, &log), "a file system that flushes no folders");
    folder_error = 0;
    support_expect_ok(sw_steplog_close(log), "close");
}

static void test_flush(void **state) {
    char path[SUPPORT_PATH_CHARS];
    struct sw_steplog *log = NULL;
    support_path(state, "log.jsonl", path);
    support_expect_ok(sw_steplog_flush(path), "no log yet");
    support_expect_ok(sw_steplog_open(path, 0, 3, &log), "open");
    support_expect_ok(sw_steplog_step(log, record_of(1)), "step");
    flushes = 0;
    support_expect_ok(sw_steplog_flush(path), "flush");
    assert_int_equal(flushes, 1);
    flush_error = EIO;
    support_expect_failure(sw_steplog_flush(path), SW_ERR_IO, "cannot be flushed", "a drive that fails");
    support_expect_failure(sw_steplog_close(log), SW_ERR_IO, "cannot be flushed", "a drive that fails at the end");
    flush_error = 0;
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, support_make_folder, support_remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_step_fields),
        cmocka_unit_test(test_optional_fields),
        cmocka_unit_test(test_longest_line_fits),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_text),
        IN_FOLDER(test_resume),
        IN_FOLDER(test_clipped_share),
        IN_FOLDER(test_folder_missing),
        IN_FOLDER(test_write_fails),
        IN_FOLDER(test_flush),
        IN_FOLDER(test_folder_flush),
    };
    return cmocka_run_group_tests_name("steplog", tests, NULL, NULL);
}
