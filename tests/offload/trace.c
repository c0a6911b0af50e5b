/* The times that a trace keeps, and the form in which it writes them, on a plan of a handful of ops made by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "offload/engine/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEP_OPS = 3, FLUSH_OPS = 1 };

/* Two reads that may overlap, then a forward pass. */
static struct sw_op step_ops[STEP_OPS] = {
    {.kind = SW_OP_READ,
     .lane = SW_LANE_READ,
     .content = SW_CONTENT_OPTIMIZER,
     .unit = 1,
     .micro = -1,
     .chunk = 7,
     .bytes = 4000},
    {.kind = SW_OP_READ,
     .lane = SW_LANE_READ,
     .content = SW_CONTENT_GRADS,
     .unit = 0,
     .micro = -1,
     .chunk = 0,
     .bytes = 10},
    {.kind = SW_OP_FORWARD, .lane = SW_LANE_COMPUTE, .unit = 2, .micro = 1, .chunk = -1, .flops = 5000.0},
};
static struct sw_op flush_ops[FLUSH_OPS] = {
    {.kind = SW_OP_UPDATE_ON_HOST, .lane = SW_LANE_UPDATE, .redo = true, .unit = 2, .micro = -1, .chunk = 0},
};
static int32_t numbers[STEP_OPS] = {0, 1, 2};

struct fixture {
    struct sw_units units;
    struct sw_plan plan;
    struct sw_trace *trace;
};

static void open_trace(struct fixture *f, int64_t ops) {
    *f = (struct fixture){.units.count = 4};
    f->plan.spec.units = &f->units;
    f->plan.program[SW_PROGRAM_UPDATE] = f->plan.program[SW_PROGRAM_LOSS] =
        (struct sw_program){.op = step_ops,
                            .op_count = STEP_OPS,
                            .lane_op = {[SW_LANE_READ] = numbers, [SW_LANE_COMPUTE] = numbers + 2},
                            .lane_count = {[SW_LANE_READ] = 2, [SW_LANE_COMPUTE] = 1}};
    f->plan.program[SW_PROGRAM_FLUSH_REDO] = (struct sw_program){.op = flush_ops,
                                                                 .op_count = FLUSH_OPS,
                                                                 .lane_op = {[SW_LANE_UPDATE] = numbers},
                                                                 .lane_count = {[SW_LANE_UPDATE] = 1}};
    assert_int_equal(sw_trace_create(&f->plan, ops, "test", &f->trace), SW_OK);
}

/* Returns a file's text and closes it. The caller frees the text. */
static char *text_of(FILE *file) {
    const size_t bytes = (size_t)ftell(file);
    char *text = calloc(bytes + 1, 1);
    assert_non_null(text);
    rewind(file);
    assert_int_equal(fread(text, 1, bytes, file), bytes);
    fclose(file);
    return text;
}

static char *written(const struct sw_trace *trace) {
    FILE *file = tmpfile();
    assert_non_null(file);
    sw_trace_write(trace, file);
    return text_of(file);
}

static int64_t count_of(const char *text, const char *part) {
    int64_t count = 0;
    for (const char *at = strstr(text, part); at != NULL; at = strstr(at + 1, part))
        count++;
    return count;
}

static void test_names_times_and_rates(void **state) {
    (void)state;
    struct fixture f;
    open_trace(&f, 8);
    struct sw_op_times *times = sw_trace_begin(f.trace, SW_PROGRAM_UPDATE, 3, 1000000);
    times[0] = (struct sw_op_times){.start_ns = 1002000, .end_ns = 1004000};
    times[1] = (struct sw_op_times){.start_ns = 1003000, .end_ns = 1004005};
    times[2] = (struct sw_op_times){.start_ns = 1004000, .end_ns = 1005000, .host_wait = true};
    char *text = written(f.trace);
    static const char *const lines[] = {
        "{\"ph\":\"X\",\"name\":\"read optimizer block 0 c7\",\"cat\":\"read\",\"pid\":1,\"tid\":769,\"ts\":2.000,"
        "\"dur\":2.000,\"args\":{\"step\":3,\"program\":\"step\",\"unit\":1,\"chunk\":7,\"bytes\":4000,"
        "\"GB/s\":2.000}}",
        "\"name\":\"read gradients embedding c0\",\"cat\":\"read\",\"pid\":1,\"tid\":770,\"ts\":3.000,\"dur\":1.005,",
        ("\"name\":\"forward block 1 m1\",\"cat\":\"compute\",\"pid\":1,\"tid\":1,\"ts\":4.000,\"dur\":1.000,"
         "\"args\":{\"step\":3,\"program\":\"step\",\"unit\":2,\"micro\":1,\"host_wait\":true,\"GFLOP/s\":5.000}}"),
        "\"tid\":770,\"args\":{\"name\":\"read (2)\"}",
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        if (strstr(text, lines[i]) == NULL)
            fail_msg("the trace lacks %s:\n%s", lines[i], text);
    free(text);
    sw_trace_destroy(f.trace);
}

/* Rows are used again once they are free, over programs too. */
static void test_rows_are_reused(void **state) {
    (void)state;
    struct fixture f;
    open_trace(&f, 8);
    for (int64_t step = 1; step <= 2; step++) {
        struct sw_op_times *times = sw_trace_begin(f.trace, SW_PROGRAM_UPDATE, step, 0);
        times[0] = (struct sw_op_times){.start_ns = 100 * step, .end_ns = 100 * step + 10};
        times[1] = (struct sw_op_times){.start_ns = 100 * step + 10, .end_ns = 100 * step + 20};
    }
    char *text = written(f.trace);
    assert_int_equal(count_of(text, "\"cat\":\"read\""), 4);
    assert_int_equal(count_of(text, "\"thread_name\""), 1);
    free(text);
    sw_trace_destroy(f.trace);
}

static void test_only_what_ran(void **state) {
    (void)state;
    struct fixture f;
    open_trace(&f, 8);
    assert_null(sw_trace_begin(f.trace, SW_PROGRAM_LOSS, 1, 0));
    assert_non_null(sw_trace_begin(f.trace, SW_PROGRAM_FLUSH_REDO, 1, 0));
    struct sw_op_times *times = sw_trace_begin(f.trace, SW_PROGRAM_UPDATE, 2, 0);
    times[2] = (struct sw_op_times){.start_ns = 5, .end_ns = 6};
    char *text = written(f.trace);
    assert_int_equal(count_of(text, "\"ph\":\"X\""), 1);
    assert_int_equal(count_of(text, "redo"), 0);
    assert_int_equal(sw_trace_steps(f.trace), 1);
    free(text);
    sw_trace_destroy(f.trace);
}

/* Programs are kept whole or not; after the first that is not, nothing is, so that there are no holes. */
static void test_keeps_whole_programs_until_full(void **state) {
    (void)state;
    for (int64_t ops = 1; ops <= 3 * STEP_OPS; ops++) {
        struct fixture f;
        open_trace(&f, ops);
        for (int64_t step = 1; step <= 5; step++) {
            struct sw_op_times *times = sw_trace_begin(f.trace, SW_PROGRAM_UPDATE, step, 0);
            assert_int_equal(times != NULL, step <= ops / STEP_OPS);
            for (int i = 0; times != NULL && i < STEP_OPS; i++)
                times[i] = (struct sw_op_times){.start_ns = step, .end_ns = step};
        }
        assert_null(sw_trace_begin(f.trace, SW_PROGRAM_FLUSH_REDO, 5, 0));
        assert_int_equal(sw_trace_steps(f.trace), ops / STEP_OPS);
        char *text = written(f.trace);
        assert_int_equal(count_of(text, "\"ph\":\"X\""), ops / STEP_OPS * STEP_OPS);
        free(text);
        sw_trace_destroy(f.trace);
    }
}

/* --- Timelines ---------------------------------------------------------------------------------------------------- */

static char *timeline_of(const struct sw_plan *plan, const struct sw_program *program,
                         const struct sw_op_times *times) {
    FILE *file = tmpfile();
    assert_non_null(file);
    sw_timeline_write(plan, program, times, file);
    return text_of(file);
}

/* Reads that overlap follow each other, what did not run is left out, and time zero is the first start. */
static void test_timeline_of_a_step(void **state) {
    (void)state;
    struct fixture f;
    open_trace(&f, 8);
    struct sw_op_times times[STEP_OPS] = {{.start_ns = 1002000, .end_ns = 1004000},
                                          {.start_ns = 1003000, .end_ns = 1004005},
                                          {.start_ns = 1004000, .end_ns = 1005000}};
    char *text = timeline_of(&f.plan, &f.plan.program[SW_PROGRAM_UPDATE], times);
    assert_string_equal(
        text,
        "{\"seconds\":0.000003000,\"ops\":3,\"units\":4,\"lanes\":{"
        "\"compute\":[[2.0,1.0,\"forward\",2,2,1,0]],\"upload\":[],\"download\":[],"
        "\"read\":[[0.0,2.0,\"optimizer\",1,1,1,4000],[2.0,0.0,\"gradients\",0,0,1,10]],\"write\":[],\"update\":[],"
        "\"comm\":[]}}");
    free(text);
    times[2] = (struct sw_op_times){.start_ns = SW_TRACE_NOT_RUN, .end_ns = SW_TRACE_NOT_RUN};
    text = timeline_of(&f.plan, &f.plan.program[SW_PROGRAM_UPDATE], times);
    assert_int_equal(count_of(text, "forward"), 0);
    free(text);
    sw_trace_destroy(f.trace);
}

/* However many ops a lane has, its spans are few, in order, apart from each other, and hold all ops and bytes. */
static void test_timelines_are_bounded(void **state) {
    (void)state;
    enum { OPS = 20000 };
    static struct sw_op ops[OPS];
    static int32_t order[OPS];
    static struct sw_op_times times[OPS];
    struct fixture f;
    open_trace(&f, 8);
    for (int32_t i = 0; i < OPS; i++) {
        ops[i] = (struct sw_op){.kind = SW_OP_READ,
                                .lane = SW_LANE_READ,
                                .content = i % 3 == 0 ? SW_CONTENT_WEIGHTS : SW_CONTENT_OPTIMIZER,
                                .unit = i / 100,
                                .bytes = 3};
        order[i] = i;
        times[i] = (struct sw_op_times){.start_ns = i * 1000 + i % 7 * 50, .end_ns = i * 1000 + 900 + i % 5 * 1000};
    }
    const struct sw_program program = {
        .op = ops, .op_count = OPS, .lane_op = {[SW_LANE_READ] = order}, .lane_count = {[SW_LANE_READ] = OPS}};
    char *text = timeline_of(&f.plan, &program, times);
    const char *at = strstr(text, "\"read\":[");
    assert_non_null(at);
    at += strlen("\"read\":[");
    double end_us = -1.0;
    long long all_ops = 0, all_bytes = 0;
    int spans = 0, read = 0;
    for (; *at == '[' || *at == ','; spans++) {
        double start_us, duration_us;
        int first, last;
        long long here, bytes;
        assert_int_equal(sscanf(at + (*at == ','), "[%lf,%lf,\"%*[a-z]\",%d,%d,%lld,%lld]%n", &start_us, &duration_us,
                                &first, &last, &here, &bytes, &read),
                         6);
        at += read + (*at == ',');
        assert_true(start_us >= end_us - 0.11 && duration_us >= 0.0 && first <= last);
        end_us = start_us + duration_us;
        all_ops += here;
        all_bytes += bytes;
    }
    assert_true(spans > SW_TIMELINE_LANE_SPANS / 4 && spans <= SW_TIMELINE_LANE_SPANS);
    assert_int_equal(all_ops, OPS);
    assert_int_equal(all_bytes, 3 * OPS);
    free(text);
    sw_trace_destroy(f.trace);
}

/* --- Stages of a pipeline ------------------------------------------------------------------------------------------
 */

/* The first of two stages: two forward passes, both backward passes, each of which waits for the other stage, and what
 * both add to the norm. */
enum { STAGE_OPS = 7 };
static struct sw_op stage_ops[STAGE_OPS] = {
    {.kind = SW_OP_FORWARD, .lane = SW_LANE_COMPUTE, .unit = 0, .micro = 0},
    {.kind = SW_OP_FORWARD, .lane = SW_LANE_COMPUTE, .unit = 0, .micro = 1},
    {.kind = SW_OP_RECEIVE, .lane = SW_LANE_COMM, .unit = 0, .micro = 0, .content = SW_CONTENT_BLOCK_OUTPUT_GRAD},
    {.kind = SW_OP_BACKWARD, .lane = SW_LANE_COMPUTE, .unit = 0, .micro = 0},
    {.kind = SW_OP_RECEIVE, .lane = SW_LANE_COMM, .unit = 0, .micro = 1, .content = SW_CONTENT_BLOCK_OUTPUT_GRAD},
    {.kind = SW_OP_BACKWARD, .lane = SW_LANE_COMPUTE, .unit = 0, .micro = 1},
    {.kind = SW_OP_EXCHANGE_SUMMARY, .lane = SW_LANE_COMM, .unit = -1, .micro = -1},
};
static int32_t stage_compute[] = {0, 1, 3, 5}, stage_comm[] = {2, 4, 6};

static char *stage_of(const struct fixture *f, const struct sw_op_times *times) {
    const struct sw_program program = {
        .op = stage_ops,
        .op_count = STAGE_OPS,
        .lane_op = {[SW_LANE_COMPUTE] = stage_compute, [SW_LANE_COMM] = stage_comm},
        .lane_count = {[SW_LANE_COMPUTE] = sizeof stage_compute / sizeof stage_compute[0],
                       [SW_LANE_COMM] = sizeof stage_comm / sizeof stage_comm[0]}};
    FILE *file = tmpfile();
    assert_non_null(file);
    sw_stage_write(&f->plan, &program, times, file);
    return text_of(file);
}

/* The first receipt begins while a pass still runs, and ends a while before the backward pass begins: only what is
 * between passes and within the receipt is a wait. The second is over before its pass could begin. */
static void test_a_stage_waits_for_another(void **state) {
    (void)state;
    struct fixture f;
    open_trace(&f, 8);
    f.plan.spec.pipeline.stages = 2;
    f.plan.spec.pipeline.bound[1] = 1;
    f.plan.spec.micro_batches = 2;
    f.plan.spec.group = 1;
    const struct sw_op_times times[STAGE_OPS] = {
        {.start_ns = 1000000, .end_ns = 1010000}, {.start_ns = 1010000, .end_ns = 1020000},
        {.start_ns = 1015000, .end_ns = 1034000}, {.start_ns = 1036000, .end_ns = 1056000},
        {.start_ns = 1040000, .end_ns = 1050000}, {.start_ns = 1056000, .end_ns = 1076000},
        {.start_ns = 1077000, .end_ns = 1080000},
    };
    char *text = stage_of(&f, times);
    assert_string_equal(text, "{\"stage\":0,\"stages\":2,\"interleave\":1,\"groups\":2,\"formula\":0.333333,"
                              "\"busy_seconds\":0.000060000,\"spans\":[[-80.0,10.0,\"forward\",0,0],"
                              "[-70.0,10.0,\"forward\",1,0],[-60.0,14.0,\"wait\",-1,-1],[-44.0,20.0,\"backward\",0,0],"
                              "[-24.0,20.0,\"backward\",1,0],[-3.0,3.0,\"wait\",-1,-1]]}");
    free(text);
    sw_trace_destroy(f.trace);
}

static void test_finds_a_step_that_can_follow_itself(void **state) {
    (void)state;
    struct fixture f;
    open_trace(&f, 3 * STEP_OPS);
    sw_trace_begin(f.trace, SW_PROGRAM_FLUSH_REDO, 4, 0);
    assert_int_equal(sw_trace_find_steady(f.trace, 1), -1);
    sw_trace_begin(f.trace, SW_PROGRAM_UPDATE, 5, 0);
    sw_trace_begin(f.trace, SW_PROGRAM_UPDATE, 6, 0);
    assert_int_equal(sw_trace_find_steady(f.trace, 1), 1);
    assert_int_equal(sw_trace_step(f.trace, sw_trace_find_steady(f.trace, 6)), 6);
    assert_int_equal(sw_trace_find_steady(f.trace, 7), -1);
    sw_trace_destroy(f.trace);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_times_and_rates),
        cmocka_unit_test(test_rows_are_reused),
        cmocka_unit_test(test_only_what_ran),
        cmocka_unit_test(test_timeline_of_a_step),
        cmocka_unit_test(test_timelines_are_bounded),
        cmocka_unit_test(test_a_stage_waits_for_another),
        cmocka_unit_test(test_finds_a_step_that_can_follow_itself),
        cmocka_unit_test(test_keeps_whole_programs_until_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
