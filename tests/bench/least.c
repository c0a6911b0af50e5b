/* The least bytes of a step: against numbers computed by hand, and beneath what plans move, which is not much more. */
#include "bench/step/step.h"

#include "tests/equipment/support.h"

#include <stdio.h>
#include <string.h>

#include "core/rng.h"
#include "core/size.h"

enum { HIDDEN = 1024, UNITS = 6, BLOCK_GRAINS = 24, MICROS = 2, SEQ = 64, TOKENS = 2 * MICROS * SEQ };
enum { VOCAB = 1024, RANDOM_PLACEMENTS = 300, SEED = 1, PLACE_CHARS = 256 };
#define BOUNDARY_BYTES INT64_C(262144)
static const char *const tiers[SW_TIERS] = {"device", "host", "nvme"};

struct model {
    struct sw_units *units;
    struct sw_unit_cost cost[UNITS];
};

/* All tensors are whole grains, so that nothing is padding. Tables of words and of positions, blocks, a head. */
static void make_model_of(struct model *m, bool tied, bool shares_inputs, sw_optimizer_format optimizer) {
    *m = (struct model){0};
    support_expect_ok(sw_units_create(UNITS, &m->units), "units");
    support_expect_ok(sw_unit_add_tensor(&m->units->unit[0], "words", 2, (int64_t[]){VOCAB, HIDDEN}, true), "words");
    support_expect_ok(sw_unit_add_tensor(&m->units->unit[0], "positions", 2, (int64_t[]){SEQ, HIDDEN}, true),
                      "positions");
    for (int64_t u = 1; u < UNITS; u++) {
        const int64_t elems = (u + 1 < UNITS ? BLOCK_GRAINS : tied ? 1 : VOCAB / 16) * SW_GRAIN_ELEMS;
        support_expect_ok(sw_unit_add_tensor(&m->units->unit[u], "matrix", 1, &elems, true), "matrix");
        m->cost[u - 1].output_bytes = BOUNDARY_BYTES;
        m->cost[u].saved_bytes = m->cost[u].derived_bytes = BOUNDARY_BYTES;
    }
    m->cost[UNITS - 1].saved_bytes = m->cost[UNITS - 1].derived_bytes = 0;
    m->cost[3].shares_input = shares_inputs;
    m->units->tied = tied;
    m->units->optimizer = optimizer;
    support_expect_ok(sw_units_seal(m->units), "seal");
}

static void make_model(struct model *m, bool tied, bool shares_inputs) {
    make_model_of(m, tied, shares_inputs, SW_OPTIMIZER_FP32);
}

static struct sw_plan *make_plan(const struct model *m, const char *place, bool streams) {
    static const bool all[UNITS] = {true, true, true, true, true, true};
    struct sw_plan_spec spec = {.units = m->units,
                                .type = SW_BF16,
                                .train = true,
                                .micro_batches = MICROS,
                                .group = MICROS,
                                .token_bytes = 4096,
                                .cost = m->cost,
                                .work_bytes = 4096,
                                .gathered_bytes = 2 * (TOKENS / MICROS + SEQ) * HIDDEN,
                                .recompute = SW_RECOMPUTE_UNIT,
                                .chunk_grains = 4,
                                .ring_chunks = 4,
                                .unit_slots = 2,
                                .update_on_device = streams ? all : NULL,
                                .budget_bytes = {INT64_MAX, INT64_MAX, 0}};
    struct sw_plan *plan;
    support_expect_ok(sw_placement_parse(place, &spec.place), place);
    support_expect_ok(sw_plan_create(&spec, &plan), place);
    return plan;
}

/* Counts the bytes that each lane moves in a step, without the sums of squares. */
static void count_moved(const struct sw_plan *plan, bool speculated, int64_t out[SW_LANES]) {
    const struct sw_program *program = &plan->program[speculated ? SW_PROGRAM_REDO_SPECULATE : SW_PROGRAM_UPDATE];
    memset(out, 0, SW_LANES * sizeof *out);
    for (int32_t i = 0; i < program->op_count; i++)
        if (!program->op[i].redo && program->op[i].kind != SW_OP_DOWNLOAD_SQUARE_SUMS)
            out[program->op[i].lane] += program->op[i].bytes;
}

static void find_least(const struct model *m, const struct sw_plan *plan, bool speculated, int64_t out[SW_LANES]) {
    sw_least_bytes(&(struct sw_least_shape){.units = m->units,
                                            .placement = plan->placement,
                                            .update_on_device = plan->spec.update_on_device,
                                            .cost = m->cost,
                                            .type = SW_BF16,
                                            .micro_batches = MICROS,
                                            .tokens = TOKENS,
                                            .seq = SEQ,
                                            .speculated = speculated},
                   out);
}

/* Parameters of the model, its blocks' but the last's (where forward meets backward), and the embedding's. */
static const int64_t embedding = (VOCAB + SEQ) * HIDDEN, block = BLOCK_GRAINS * SW_GRAIN_ELEMS;
enum { BLOCKS = UNITS - 2, TWICE = BLOCKS - 1 };

struct by_hand {
    const char *place;
    bool speculated, untied, streams;
    /* Bytes a parameter of all units; of the blocks fetched twice; boundaries moved. In the order of lanes from upload.
     */
    int64_t all[SW_LANES - 1], twice[SW_LANES - 1], boundaries[SW_LANES - 1];
    int64_t embedding[SW_LANES - 1]; /* more, or less, of the embedding */
};

/* In bf16. Columns: upload, download, read, write, update. */
static const struct by_hand cases[] = {
    {.place = "weights=device,grads=device,optimizer=device,acts=device"},
    {.place = "weights=device,grads=device,optimizer=host,acts=device", .all = {2, 2, 0, 0, 28}},
    {.place = "weights=device,grads=host,optimizer=host,acts=device", .all = {2, 2, 0, 0, 28}},
    {.place = "weights=host,grads=host,optimizer=host,acts=device", .all = {2, 2, 0, 0, 28}, .twice = {2}},
    {.place = "weights=device,grads=device,optimizer=nvme,acts=device", .all = {2, 2, 12, 12, 28}},
    {.place = "weights=nvme,grads=device,optimizer=nvme,acts=device", .all = {2, 2, 12, 14, 28}, .twice = {2, 0, 2}},
    {.place = "weights=nvme,grads=device,optimizer=nvme,acts=device",
     .speculated = true,
     .all = {2, 2, 14, 14, 28},
     .twice = {2, 0, 2},
     .embedding = {0, 0, -2}},
    {.place = "weights=nvme,grads=nvme,optimizer=nvme,acts=device", .all = {2, 2, 14, 16, 28}, .twice = {2, 0, 2}},
    {.place = "weights=nvme,grads=nvme,optimizer=nvme,acts=device",
     .speculated = true,
     .all = {2, 2, 14, 16, 28},
     .twice = {2, 0, 2},
     .embedding = {0, 0, -2}},
    {.place = "weights=device,grads=host,optimizer=device,acts=device", .all = {2, 2}},
    {.place = "weights=device,grads=nvme,optimizer=device,acts=device", .all = {2, 2, 2, 2}},
    {.place = "weights=host,grads=device,optimizer=device,acts=device", .all = {0, 2}, .twice = {2}},
    {.place = "weights=nvme,grads=device,optimizer=device,acts=device", .all = {0, 2, 0, 2}, .twice = {2, 0, 2}},
    {.place = "weights=device,grads=device,optimizer=device,acts=host", .boundaries = {1, 1}},
    {.place = "weights=device,grads=device,optimizer=device,acts=nvme", .boundaries = {1, 1, 1, 1}},
    {.place = "weights=device,grads=device,optimizer=host,acts=device", .untied = true, .all = {2, 2, 0, 0, 28}},
    {.place = "weights=device,grads=device,optimizer=host,acts=device", .streams = true, .all = {12, 12}},
    {.place = "weights=device,grads=host,optimizer=host,acts=device", .streams = true, .all = {14, 14}},
    {.place = "weights=nvme,grads=nvme,optimizer=nvme,acts=device",
     .streams = true,
     .all = {14, 16, 14, 16},
     .twice = {2, 0, 2}},
    {.place = "weights=nvme,grads=nvme,optimizer=nvme,acts=device",
     .streams = true,
     .speculated = true,
     .all = {14, 16, 14, 16},
     .twice = {2, 0, 2},
     .embedding = {-2, 0, -2}},
};

static void numbers_by_hand(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct by_hand *c = &cases[i];
        struct model m;
        make_model(&m, !c->untied, false);
        struct sw_plan *plan = make_plan(&m, c->place, c->streams);
        const int64_t parameters = sw_units_parameters(m.units);
        int64_t least[SW_LANES];
        find_least(&m, plan, c->speculated, least);
        assert_true(least[SW_LANE_COMPUTE] == 0);
        for (int lane = SW_LANE_UPLOAD; lane < SW_LANES; lane++) {
            const int at = lane - SW_LANE_UPLOAD;
            const int64_t expected = c->all[at] * parameters + c->twice[at] * TWICE * block +
                                     c->boundaries[at] * BLOCKS * MICROS * BOUNDARY_BYTES +
                                     c->embedding[at] * embedding;
            if (least[lane] != expected)
                fail_msg("%s%s: %s moves at least %lld bytes, by hand %lld", c->place,
                         c->speculated ? ", speculated" : "", sw_lane_name((sw_lane)lane), (long long)least[lane],
                         (long long)expected);
        }
        sw_plan_destroy(plan);
        sw_units_destroy(m.units);
    }
}

/* Optimizer state on the drive moves by the bytes of its format, and the plan moves no more. */
static void narrow_state_moves_fewer_bytes(void **state) {
    static const int64_t grain_bytes[SW_OPTIMIZER_FORMATS] = {196608, 131072, 102400};
    (void)state;
    for (int format = 0; format < SW_OPTIMIZER_FORMATS; format++) {
        struct model m;
        int64_t least[SW_LANES], moved[SW_LANES];
        make_model_of(&m, true, false, (sw_optimizer_format)format);
        struct sw_plan *plan = make_plan(&m, "weights=device,grads=device,optimizer=nvme,acts=device", false);
        const int64_t grains = sw_units_parameters(m.units) / SW_GRAIN_ELEMS;
        find_least(&m, plan, false, least);
        count_moved(plan, false, moved);
        assert_int_equal(least[SW_LANE_READ], grains * grain_bytes[format]);
        assert_int_equal(least[SW_LANE_UPDATE], grains * 2 * (grain_bytes[format] + 2 * SW_GRAIN_ELEMS));
        for (int lane = SW_LANE_UPLOAD; lane < SW_LANES; lane++)
            assert_int_equal(moved[lane], least[lane]);
        sw_plan_destroy(plan);
        sw_units_destroy(m.units);
    }
}

/* An untied embedding away from the device uploads only the rows that the step's tokens can name, and the positions. */
static void rows_of_an_untied_embedding(void **state) {
    (void)state;
    struct model m;
    int64_t least[SW_LANES];
    make_model(&m, false, false);
    struct sw_plan *plan = make_plan(&m, "weights=host,grads=device,optimizer=host,acts=device", false);
    find_least(&m, plan, false, least);
    const int64_t rest = sw_units_parameters(m.units) - embedding;
    assert_int_equal(least[SW_LANE_UPLOAD], 2 * (rest + (TOKENS + SEQ) * HIDDEN) + 2 * TWICE * block);
    sw_plan_destroy(plan);
    sw_units_destroy(m.units);
}

/* Returns the bytes that a plan may move on a lane beyond the least. An untied embedding away from the device uploads
 * its rows even after an update on the device has made all of them, and uploads the positions again for each
 * micro-batch. Where the drive holds speculated weights, the plan reads the whole table to gather its rows. */
static int64_t known_excess(const struct model *m, const struct sw_plan *plan, bool speculated, sw_lane lane) {
    const struct sw_unit_placement *at = plan->placement;
    const bool upload = lane == SW_LANE_UPLOAD, read = lane == SW_LANE_READ;
    const bool streams = plan->spec.update_on_device[0] && at[0].tier[SW_OPTIMIZER] != SW_DEVICE;
    int64_t excess = 0;
    if (!m->units->tied && upload && at[0].tier[SW_WEIGHTS] != SW_DEVICE && streams && !speculated)
        excess += 2 * (TOKENS + SEQ) * HIDDEN;
    if (!m->units->tied && upload && at[0].tier[SW_WEIGHTS] != SW_DEVICE)
        excess += 2 * (MICROS - 1) * SEQ * HIDDEN;
    if (!m->units->tied && read && speculated && at[0].tier[SW_WEIGHTS] == SW_NVME)
        excess += 2 * (VOCAB - TOKENS) * HIDDEN;
    return excess;
}

static void compare(const struct model *m, const char *place, bool speculated, bool streams) {
    struct sw_plan *plan = make_plan(m, place, streams);
    int64_t least[SW_LANES], moved[SW_LANES];
    for (int lane = SW_LANE_UPLOAD; lane < SW_LANES && (!speculated || plan->commit_every_step); lane++) {
        find_least(m, plan, speculated, least);
        count_moved(plan, speculated, moved);
        const int64_t excess = known_excess(m, plan, speculated, (sw_lane)lane);
        if (moved[lane] < least[lane] || (double)(moved[lane] - excess) > 1.02 * (double)least[lane])
            fail_msg("%s%s%s%s%s: %s moves %lld bytes, at least %lld", place, m->units->tied ? ", tied" : "",
                     speculated ? ", speculated" : "", streams ? ", updated on the device" : "",
                     m->cost[3].shares_input ? ", inputs shared" : "", sw_lane_name((sw_lane)lane),
                     (long long)moved[lane], (long long)least[lane]);
    }
    sw_plan_destroy(plan);
}

/* Each state on each tier, updates on both sides, tied and not, with a shared input and without, speculated where that
 * can be. */
static void every_tier(void **state) {
    enum { WAYS = SW_TIERS * SW_TIERS * SW_TIERS * SW_TIERS, VARIANTS = 4 };
    (void)state;
    for (int variant = 0; variant < VARIANTS; variant++) {
        struct model m;
        make_model(&m, variant % 2, variant / 2);
        for (int way = 0; way < WAYS; way++) {
            char place[PLACE_CHARS];
            snprintf(place, sizeof place, "weights=%s,grads=%s,optimizer=%s,acts=%s", tiers[way / 27],
                     tiers[way / 9 % 3], tiers[way / 3 % 3], tiers[way % 3]);
            for (int way_of_update = 0; way_of_update < 4; way_of_update++)
                compare(&m, place, way_of_update % 2, way_of_update / 2);
        }
        sw_units_destroy(m.units);
    }
}

/* Draws shares of one state as they are written; the optimizer often all on NVMe, so that it may speculate. */
static int write_share(uint64_t seed, int state, char *out, size_t chars) {
    static const char *const names[] = {"weights", "grads", "optimizer", "acts"};
    const bool nvme = state == SW_OPTIMIZER && seed % 3 == 0;
    const double first = sw_rng_uniform(seed, 1, (uint64_t)state), second = sw_rng_uniform(seed, 2, (uint64_t)state);
    const int device = nvme ? 0 : (int)(first * 101), host = nvme ? 0 : (int)(second * (101 - device));
    return snprintf(out, chars, "%s=device:%d%%/host:%d%%/nvme,", names[state], device, host);
}

static void random_shares(void **state) {
    (void)state;
    for (uint64_t seed = SEED; seed < SEED + RANDOM_PLACEMENTS; seed++) {
        struct model m;
        char place[PLACE_CHARS];
        int used = 0;
        for (int s = 0; s < SW_STATES; s++)
            used += write_share(seed, s, place + used, sizeof place - (size_t)used);
        place[used - 1] = '\0';
        make_model(&m, seed % 2, seed / 2 % 2);
        compare(&m, place, false, seed / 4 % 2);
        compare(&m, place, true, seed / 4 % 2);
        sw_units_destroy(m.units);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_by_hand), cmocka_unit_test(narrow_state_moves_fewer_bytes),
        cmocka_unit_test(rows_of_an_untied_embedding), cmocka_unit_test(every_tier), cmocka_unit_test(random_shares)};
    return cmocka_run_group_tests_name("bench least", tests, NULL, NULL);
}
