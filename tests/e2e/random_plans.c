/* Random plans, executed: whatever the placement of the four states, the shares, the chunks, rings and slots, with
 * updates speculated or not, a training gives the bits of the same training with everything on the device. */
#include "tests/e2e/same_bits.h"
#include "tests/equipment/must.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS_EACH = 12, TILED_RUNS = 4, UNTIED_RUNS = 6, NARROW_RUNS = 6, TUNED_RUNS = 3, MUON_RUNS = 4, TILES = 5 };

static void run_one(const struct same_trace *reference, const struct harness_spec *base, const char *directory,
                    uint64_t *counter) {
    char place[SAME_PLACE_CHARS];
    struct same_trace trace;
    struct harness_spec spec = *base;
    same_draw_place(counter, place);
    spec.place = place;
    spec.directory = directory;
    spec.recompute = (sw_recompute)same_draw(counter, SW_RECOMPUTES);
    spec.chunk_grains = 1 + same_draw(counter, 4);
    spec.ring_chunks = 1 + same_draw(counter, 4);
    spec.unit_slots = 2 + same_draw(counter, 3);
    spec.speculation = (sw_speculation)same_draw(counter, 3);
    spec.one_generation = same_draw(counter, 4) == 0;
    /* None, all, or those of a random pattern. */
    const uint64_t patterns[] = {0, UINT64_MAX, same_draw(counter, UINT32_MAX)};
    spec.update_on_device = patterns[same_draw(counter, 3)];
    const bool ahead = same_draw(counter, 2) == 1;
    must(same_train(&spec, ahead, &trace));
    const char *difference = same_difference(reference, &trace);
    if (difference != NULL)
        fail_msg(
            "%s, updates on the device %#llx, %lld tiles, groups of %lld, chunks of %lld, rings of %lld, %lld unit "
            "slots, speculation %d, %d generations: %s differ",
            place, (unsigned long long)spec.update_on_device, (long long)spec.shape.tiles, (long long)spec.group,
            (long long)spec.chunk_grains, (long long)spec.ring_chunks, (long long)spec.unit_slots,
            (int)spec.speculation, spec.one_generation ? 1 : 2, difference);
    same_free(&trace);
}

/* Groups of one to three micro-batches in whole blocks; some plans in tiles, whose boundaries are of two sizes; and
 * with an embedding that is not tied, of which only rows go to the device; optimizer state in every
 * format; gradients in 8 bits; weights and products in 8 bits; units that are frozen in part or whole; and adapters. */
static const struct {
    int64_t tiles, group;
    int runs;
    bool untied;
    sw_optimizer_format optimizer;
    sw_rounding rounding;
    sw_grads_format grads;
    bool fp8; /* in bf16 alone */
    struct sw_tuning tuning;
} series[] = {
    {1, 1, RUNS_EACH, false, SW_OPTIMIZER_FP32, SW_ROUND_NEAREST, SW_GRADS_TYPED, false, {0}},
    {1, 2, RUNS_EACH, false, SW_OPTIMIZER_FP32, SW_ROUND_NEAREST, SW_GRADS_TYPED, false, {0}},
    {1, 3, RUNS_EACH, false, SW_OPTIMIZER_FP32, SW_ROUND_NEAREST, SW_GRADS_TYPED, false, {0}},
    {TILES, 2, TILED_RUNS, false, SW_OPTIMIZER_FP32, SW_ROUND_NEAREST, SW_GRADS_TYPED, false, {0}},
    {TILES, 3, TILED_RUNS, false, SW_OPTIMIZER_FP32, SW_ROUND_NEAREST, SW_GRADS_TYPED, false, {0}},
    {1, 2, UNTIED_RUNS, true, SW_OPTIMIZER_FP32, SW_ROUND_NEAREST, SW_GRADS_TYPED, false, {0}},
    {1, 3, UNTIED_RUNS, true, SW_OPTIMIZER_FP32, SW_ROUND_NEAREST, SW_GRADS_TYPED, false, {0}},
    {1, 2, NARROW_RUNS, false, SW_OPTIMIZER_8BIT, SW_ROUND_STOCHASTIC, SW_GRADS_TYPED, false, {0}},
    {1, 3, NARROW_RUNS, true, SW_OPTIMIZER_8BIT, SW_ROUND_NEAREST, SW_GRADS_TYPED, false, {0}},
    {TILES, 2, NARROW_RUNS, false, SW_OPTIMIZER_BF16, SW_ROUND_STOCHASTIC, SW_GRADS_TYPED, false, {0}},
    {1, 1, NARROW_RUNS, false, SW_OPTIMIZER_BF16, SW_ROUND_NEAREST, SW_GRADS_TYPED, false, {0}},
    {1, 2, NARROW_RUNS, false, SW_OPTIMIZER_FP32, SW_ROUND_NEAREST, SW_GRADS_8BIT, false, {0}},
    {1, 3, NARROW_RUNS, true, SW_OPTIMIZER_8BIT, SW_ROUND_STOCHASTIC, SW_GRADS_8BIT, false, {0}},
    {1, 1, NARROW_RUNS, true, SW_OPTIMIZER_FP32_APART, SW_ROUND_NEAREST, SW_GRADS_TYPED, true, {0}},
    {1, 2, NARROW_RUNS, false, SW_OPTIMIZER_FP32_APART, SW_ROUND_NEAREST, SW_GRADS_TYPED, true, {0}},
    {TILES, 3, NARROW_RUNS, false, SW_OPTIMIZER_FP32_APART, SW_ROUND_NEAREST, SW_GRADS_8BIT, true, {0}},
    {1, 2, NARROW_RUNS, true, SW_OPTIMIZER_8BIT, SW_ROUND_STOCHASTIC, SW_GRADS_TYPED, true, {0}},
    {1, 2, MUON_RUNS, false, SW_OPTIMIZER_MUON, SW_ROUND_STOCHASTIC, SW_GRADS_TYPED, false, {0}},
    {1, 2, MUON_RUNS, false, SW_OPTIMIZER_MUON_8BIT, SW_ROUND_STOCHASTIC, SW_GRADS_TYPED, false, {0}},
    {1,
     3,
     MUON_RUNS,
     true,
     SW_OPTIMIZER_MUON,
     SW_ROUND_NEAREST,
     SW_GRADS_8BIT,
     false,
     {.optimizer_for = "*.mlp.*=muon"}},
    {1,
     1,
     TUNED_RUNS,
     false,
     SW_OPTIMIZER_MUON_BF16,
     SW_ROUND_STOCHASTIC,
     SW_GRADS_TYPED,
     false,
     {.freeze = "*.mlp.*"}},
    {1, 2, TUNED_RUNS, false, SW_OPTIMIZER_FP32, SW_ROUND_NEAREST, SW_GRADS_TYPED, false, {.freeze = "*.mlp.*,*ln_1*"}},
    {1,
     1,
     TUNED_RUNS,
     true,
     SW_OPTIMIZER_8BIT,
     SW_ROUND_STOCHASTIC,
     SW_GRADS_TYPED,
     false,
     {.freeze = "*attn*,blocks:1"}},
    {TILES, 3, TUNED_RUNS, false, SW_OPTIMIZER_BF16, SW_ROUND_STOCHASTIC, SW_GRADS_TYPED, false, {.freeze = "*attn*"}},
    {1, 3, TUNED_RUNS, true, SW_OPTIMIZER_FP32, SW_ROUND_NEAREST, SW_GRADS_8BIT, false, {.lora = {.rank = 4}}},
    {1, 2, TUNED_RUNS, false, SW_OPTIMIZER_8BIT, SW_ROUND_STOCHASTIC, SW_GRADS_TYPED, false, {.lora = {.rank = 3}}},
};

/* Runs one in `part` of each series' plans. */
static void run_all(sw_dtype type, int part, const char *directory) {
    uint64_t counter = (uint64_t)type << 32;
    struct sw_model_config untied = same_config, tiled = same_config;
    untied.tied_embeddings = false;
    tiled.heads = tiled.kv_heads = TILES;
    tiled.head_dim = tiled.hidden / TILES;
    int runs = 0, steps = 0, skipped = 0;
    for (size_t i = 0; i < sizeof series / sizeof series[0]; i++) {
        struct harness_spec spec = same_narrow_spec(type, series[i].optimizer, series[i].rounding);
        struct same_trace reference;
        if (series[i].fp8 && type != SW_BF16)
            continue;
        spec.shape.fp8 = series[i].fp8;
        spec.shape.tuning = series[i].tuning;
        spec.group = series[i].group;
        spec.grads = series[i].grads;
        spec.shape.tiles = series[i].tiles;
        if (series[i].untied)
            spec.config = &untied;
        else if (series[i].tiles > 1)
            spec.config = &tiled;
        spec.loss_scale = type == SW_F16 ? 8 * SW_FP16_INITIAL_SCALE : 0.0;
        must(same_train(&spec, false, &reference));
        for (int s = 0; s < SAME_STEPS; s++, steps++)
            skipped += reference.skipped[s];
        const int wanted = (series[i].runs + part - 1) / part;
        for (int r = 0; r < wanted; r++, runs++)
            run_one(&reference, &spec, directory, &counter);
        same_free(&reference);
    }
    if (type == SW_F16)
        assert_true(skipped > 0 && skipped < steps);
    printf("# %s: %d random plans executed with equal bits, %d of %d steps skipped\n", sw_dtype_name(type), runs,
           skipped, steps);
}

static void random_plans_give_the_same_bits_in_fp32(void **state) {
    run_all(SW_F32, 2, *state);
}

static void random_plans_give_the_same_bits_in_bf16(void **state) {
    run_all(SW_BF16, 1, *state);
}

/* The first loss scales overflow, so the first steps are skipped. That is all that fp16 adds. */
static void random_plans_give_the_same_bits_in_fp16(void **state) {
    run_all(SW_F16, 3, *state);
}

#define in_directory(test) cmocka_unit_test_setup_teardown(test, harness_make_directory, harness_remove_directory)

int main(void) {
    const struct CMUnitTest tests[] = {
        in_directory(random_plans_give_the_same_bits_in_fp32),
        in_directory(random_plans_give_the_same_bits_in_bf16),
        in_directory(random_plans_give_the_same_bits_in_fp16),
    };
    return cmocka_run_group_tests_name("e2e random plans", tests, NULL, NULL);
}
