/* The order of the read lane where an update's records and gradients both come from NVMe. */
#include "offload/plan/plan_private.h"

#include "tests/equipment/must.h"

/* A chunk's gradients may only just have been written: in a lane that reads in order, the records of the chunks behind
 * it must not wait for them. */
static void records_are_read_ahead_of_gradients(void **state) {
    (void)state;
    enum { UNITS = 3, GRAINS = 40, RING = 32 };
    struct sw_units *units = NULL;
    must(sw_units_create(UNITS, &units));
    for (int64_t u = 0; u < UNITS; u++)
        must(sw_unit_add_tensor(&units->unit[u], "tensor", 1, &(int64_t){GRAINS * SW_GRAIN_ELEMS}, true));
    must(sw_units_seal(units));
    struct sw_plan_spec spec = {
        .units = units,
        .type = SW_BF16,
        .train = true,
        .micro_batches = 1,
        .group = 1,
        .token_bytes = 8,
        .cost = (const struct sw_unit_cost[UNITS]){{.output_bytes = 8, .saved_bytes = 8},
                                                   {.output_bytes = 8, .saved_bytes = 8},
                                                   {.output_bytes = 8, .saved_bytes = 8}},
        .work_bytes = 8,
        .chunk_grains = 1,
        .ring_chunks = RING,
        .unit_slots = 2,
        .budget_bytes = {[SW_DEVICE] = INT64_MAX, [SW_HOST] = INT64_MAX},
        .place.share = {[SW_WEIGHTS][SW_DEVICE] = 1.0,
                        [SW_GRADS][SW_NVME] = 1.0,
                        [SW_OPTIMIZER][SW_NVME] = 1.0,
                        [SW_ACTS][SW_DEVICE] = 1.0},
    };
    struct sw_plan *plan = NULL;
    must(sw_plan_create(&spec, &plan));
    must(sw_plan_check(plan));
    const struct sw_program *program = &plan->program[SW_PROGRAM_UPDATE];
    int32_t records = 0;
    while (program->op[program->lane_op[SW_LANE_READ][records]].content == SW_CONTENT_OPTIMIZER)
        records++;
    assert_int_equal(records, RING - SW_RING_CHUNKS_BEHIND);
    sw_plan_destroy(plan);
    sw_units_destroy(units);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_are_read_ahead_of_gradients),
    };
    return cmocka_run_group_tests_name("offload read ahead", tests, NULL, NULL);
}
