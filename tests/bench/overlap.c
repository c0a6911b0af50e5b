/* The part of the ranks' exchange that is hidden, against courses made by hand. */
#include "bench/step/step.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "core/size.h"

enum { UNITS = 4, GRAINS = 8, STEPS = 2, ROOM = 1 << 14 };
#define STEP_NS INT64_C(1000000000)

struct course {
    struct sw_units *units;
    struct sw_plan *plan;
    struct sw_trace *trace;
    struct sw_op_times *times[STEPS];
};

static void must(sw_status status) {
    if (status != SW_OK)
        fail_msg("%s", sw_error_message(status));
}

static void make_plan(struct course *c) {
    static const struct sw_unit_cost all = {.output_bytes = 4096, .saved_bytes = 4096, .derived_bytes = 4096};
    const struct sw_unit_cost cost[UNITS] = {all, all, all, all};
    struct sw_plan_spec spec = {.units = c->units,
                                .type = SW_BF16,
                                .ranks = 2,
                                .zero = SW_ZERO_WEIGHTS,
                                .train = true,
                                .micro_batches = 1,
                                .group = 1,
                                .token_bytes = 4096,
                                .cost = cost,
                                .work_bytes = 4096,
                                .chunk_grains = 4,
                                .ring_chunks = 4,
                                .unit_slots = 2,
                                .budget_bytes = {INT64_MAX, INT64_MAX, 0}};
    must(sw_placement_parse("weights=device,grads=device,optimizer=device,acts=device", &spec.place));
    must(sw_plan_create(&spec, &c->plan));
}

static int make_course(void **state) {
    static struct course course;
    course = (struct course){0};
    must(sw_units_create(UNITS, &course.units));
    for (int64_t u = 0; u < UNITS; u++)
        must(sw_unit_add_tensor(&course.units->unit[u], "tensor", 1, &(int64_t){GRAINS * SW_GRAIN_ELEMS}, true));
    must(sw_units_seal(course.units));
    make_plan(&course);
    must(sw_trace_create(course.plan, ROOM, "made by hand", &course.trace));
    for (int s = 0; s < STEPS; s++) {
        course.times[s] = sw_trace_begin(course.trace, SW_PROGRAM_UPDATE, s + 1, s * STEP_NS);
        assert_non_null(course.times[s]);
    }
    *state = &course;
    return 0;
}

static int end_course(void **state) {
    const struct course *course = *state;
    sw_trace_destroy(course->trace);
    sw_plan_destroy(course->plan);
    sw_units_destroy(course->units);
    return 0;
}

/* Op `position` of a lane in a step, from and to so many milliseconds after the step's beginning. */
static void ran(const struct course *c, int step, sw_lane lane, int position, int64_t from_ms, int64_t to_ms) {
    const struct sw_program *program = &c->plan->program[SW_PROGRAM_UPDATE];
    assert_true(position < program->lane_count[lane]);
    c->times[step][program->lane_op[lane][position]] = (struct sw_op_times){
        .start_ns = step * STEP_NS + from_ms * 1000000, .end_ns = step * STEP_NS + to_ms * 1000000};
}

static void expect(const struct course *c, int64_t first, int64_t end, double comm_ms, double hidden_ms) {
    struct sw_overlap found;
    must(sw_overlap_find(c->trace, first, end, &found));
    assert_true(fabs(found.comm_s - comm_ms * 1e-3) < 1e-9);
    assert_true(fabs(found.hidden_s - hidden_ms * 1e-3) < 1e-9);
}

static void nothing_ran(void **state) {
    expect(*state, 0, STEPS, 0, 0);
    expect(*state, 1, 1, 0, 0);
}

static void parts_of_ops_are_hidden(void **state) {
    const struct course *c = *state;
    ran(c, 0, SW_LANE_COMPUTE, 0, 0, 10);
    ran(c, 0, SW_LANE_COMPUTE, 1, 10, 20);
    ran(c, 0, SW_LANE_COMPUTE, 2, 30, 40);
    ran(c, 0, SW_LANE_COMM, 0, 5, 15);  /* wholly, behind two */
    ran(c, 0, SW_LANE_COMM, 1, 15, 35); /* its ends */
    ran(c, 0, SW_LANE_COMM, 2, 50, 60); /* not */
    expect(c, 0, 1, 40, 20);
    expect(c, 0, STEPS, 20, 10);
    expect(c, 1, STEPS, 0, 0);
}

/* The exchange at the end of a step hides behind the next one's arithmetic, which may not be among the steps that
 * are asked for. */
static void steps_overlap(void **state) {
    const struct course *c = *state;
    ran(c, 0, SW_LANE_COMM, 0, 990, 1030);
    ran(c, 1, SW_LANE_COMPUTE, 0, 5, 20);
    expect(c, 0, 1, 40, 15);
    expect(c, 1, 2, 0, 0);
}

int main(void) {
#define EACH(test) cmocka_unit_test_setup_teardown(test, make_course, end_course)
    const struct CMUnitTest tests[] = {EACH(nothing_ran), EACH(parts_of_ops_are_hidden), EACH(steps_overlap)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
