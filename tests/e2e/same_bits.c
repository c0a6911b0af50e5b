/* Placement never changes the result: one training with gradients and optimizer on every tier, with updates on the host
 * and on the device, with and without recompute of some or all of the intermediates, with steps overlapped or not, with
 * the update on any number of threads, stopped and resumed, gives the same bits. */
#include "tests/e2e/same_bits.h"
#include "tests/equipment/must.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/size.h"

enum { PLACE_CHARS = 64, INFINITE_STEP = 2 };

static const char *place_text(char text[PLACE_CHARS], int grads, int optimizer) {
    snprintf(text, PLACE_CHARS, "grads=%s,optimizer=%s", sw_tier_name((sw_tier)grads),
             sw_tier_name((sw_tier)optimizer));
    return text;
}

/* The training must be one: finite losses that fall, clipped and unclipped steps, moments that are not zero. */
static void check_reference(const struct same_trace *trace) {
    bool clipped = false, unclipped = false;
    for (int s = 0; s < SAME_STEPS; s++) {
        assert_true(isfinite(trace->loss[s]) && isfinite(trace->grad_norm[s]) && !trace->skipped[s]);
        clipped |= trace->grad_norm[s] > SAME_CLIP;
        unclipped |= trace->grad_norm[s] < SAME_CLIP;
    }
    if (!clipped || !unclipped)
        fail_msg("the gradient norms, from %g to %g, do not lie on both sides of the clip", trace->grad_norm[0],
                 trace->grad_norm[SAME_STEPS - 1]);
    for (int stream = 1; stream < SW_OPTIMIZER_VECTORS; stream++)
        assert_true(trace->records[(int64_t)stream * SW_GRAIN_ELEMS] != 0.0f);
}

/* Everything on the device, no store. */
static struct same_trace reference_of(const struct harness_spec *spec) {
    struct same_trace trace;
    must(same_train(spec, false, &trace));
    return trace;
}

static struct same_trace reference_training(sw_dtype type) {
    const struct harness_spec spec = same_spec(type);
    return reference_of(&spec);
}

/* Which variants are run: all; every fifth; or one of the two at each pair of tiers, either in turn. */
typedef enum { ALL_VARIANTS, EVERY_FIFTH, ONE_OF_EACH_PAIR } chosen_variants;

static bool is_chosen(chosen_variants chosen, int variant) {
    switch (chosen) {
    case EVERY_FIFTH: return variant % 5 == 0;
    case ONE_OF_EACH_PAIR: return variant % 2 == variant / 2 % 2;
    default: return true;
    }
}

static void compare_placements(const struct harness_spec *base, const char *directory, chosen_variants chosen) {
    const sw_dtype type = base->shape.type;
    struct same_trace reference = reference_of(base), trace;
    check_reference(&reference);
    int runs = 0;
    for (int variant = 0; variant < SW_TIERS * SW_TIERS * 2; variant++) {
        char place[PLACE_CHARS], what[2 * PLACE_CHARS];
        if (!is_chosen(chosen, variant))
            continue;
        const int grads = variant / 2 / SW_TIERS, optimizer = variant / 2 % SW_TIERS;
        struct harness_spec spec = *base;
        /* Two of the three ways at each place, each of them at each tier. */
        spec.recompute = (sw_recompute)((variant % 2 + grads + optimizer) % SW_RECOMPUTES);
        spec.place = place_text(place, grads, optimizer);
        spec.ring_chunks = 1 + variant % 3;
        spec.compute_threads = spec.update_threads = 1 + variant / 2 % 2;
        /* Chunks of several sizes, and steps begun ahead in half of the runs. */
        spec.chunk_grains = 1 + variant % 4;
        const bool ahead = variant / 2 % 2 == 1;
        snprintf(what, sizeof what, "%s, %s computed again%s, chunks of %lld", place, sw_recompute_name(spec.recompute),
                 ahead ? ", ahead" : "", (long long)spec.chunk_grains);
        spec.directory = grads == SW_NVME || optimizer == SW_NVME ? directory : NULL;
        must(same_train(&spec, ahead, &trace));
        must_equal(&reference, &trace, what);
        same_free(&trace);
        runs++;
    }
    printf("# %s: %d runs with equal losses, norms, gradients, masters, m, v and weights (%lld grains, %d steps)\n",
           sw_dtype_name(type), runs, (long long)reference.grains, SAME_STEPS);
    same_free(&reference);
}

static void placements_give_the_same_bits_in_fp32(void **state) {
    const struct harness_spec spec = same_spec(SW_F32);
    compare_placements(&spec, *state, ALL_VARIANTS);
}

static void placements_give_the_same_bits_in_bf16(void **state) {
    const struct harness_spec spec = same_spec(SW_BF16);
    compare_placements(&spec, *state, ALL_VARIANTS);
}

/* Few enough for a slow device. */
static void some_placements_give_the_same_bits_in_bf16(void **state) {
    const struct harness_spec spec = same_spec(SW_BF16);
    compare_placements(&spec, *state, ONE_OF_EACH_PAIR);
}

/* Every narrow format, with both ways of rounding. */
static const struct {
    sw_optimizer_format format;
    sw_rounding rounding;
} narrow[] = {{SW_OPTIMIZER_BF16, SW_ROUND_NEAREST},
              {SW_OPTIMIZER_BF16, SW_ROUND_STOCHASTIC},
              {SW_OPTIMIZER_8BIT, SW_ROUND_NEAREST},
              {SW_OPTIMIZER_8BIT, SW_ROUND_STOCHASTIC}};
enum { NARROW = sizeof narrow / sizeof narrow[0] };

static void placements_give_the_same_bits_with_narrow_state(void **state) {
    for (int i = 0; i < NARROW; i++) {
        const struct harness_spec spec = same_narrow_spec(SW_BF16, narrow[i].format, narrow[i].rounding);
        compare_placements(&spec, *state, EVERY_FIFTH);
    }
}

static void placements_give_the_same_bits_with_gradients_in_8_bits(void **state) {
    struct harness_spec spec = same_spec(SW_BF16);
    spec.grads = SW_GRADS_8BIT;
    compare_placements(&spec, *state, ALL_VARIANTS);
}

/* Formats and roundings are different trainings, of which all have other bits. */
static void every_narrow_state_is_another_training(void **state) {
    struct same_trace trace[NARROW];
    (void)state;
    for (int i = 0; i < NARROW; i++) {
        const struct harness_spec spec = same_narrow_spec(SW_BF16, narrow[i].format, narrow[i].rounding);
        trace[i] = reference_of(&spec);
        for (int other = 0; other < i; other++)
            assert_non_null(same_difference(&trace[i], &trace[other]));
    }
    for (int i = 0; i < NARROW; i++)
        same_free(&trace[i]);
}

/* Updates on the device of every unit, or of every second one, wherever the three states live, speculated where they
 * can be and clipped in some steps. One in `every` of the variants is run. */
static void compare_updates_on_the_device(const struct harness_spec *base, const char *directory, int every) {
    static const char *const optimizers[] = {"host", "nvme", "device:30%/host:30%/nvme"};
    static const uint64_t streams[] = {UINT64_MAX, 0x5555555555555555};
    struct same_trace reference = reference_of(base), trace;
    int runs = 0;
    for (int variant = 0; variant < SW_TIERS * SW_TIERS * 2; variant += every, runs++) {
        char place[2 * PLACE_CHARS];
        struct harness_spec spec = *base;
        const int grads = variant / 2 / SW_TIERS, optimizer = variant / 2 % SW_TIERS;
        spec.update_on_device = streams[variant % 2];
        snprintf(place, sizeof place, "weights=%s,grads=%s,optimizer=%s",
                 sw_tier_name((sw_tier)((grads + optimizer + variant % 2) % SW_TIERS)), sw_tier_name((sw_tier)grads),
                 optimizers[optimizer]);
        spec.place = place;
        spec.ring_chunks = 1 + variant % 4;
        spec.speculation = variant % 4 < 2 ? SW_SPECULATE_ALWAYS : SW_SPECULATE_NEVER;
        spec.directory = directory;
        must(same_train(&spec, variant % 3 > 0, &trace));
        must_equal(&reference, &trace, place);
        same_free(&trace);
    }
    printf("# %s: %d runs with equal bits\n", sw_dtype_name(base->shape.type), runs);
    same_free(&reference);
}

static void updates_on_the_device_give_the_same_bits_in_fp32(void **state) {
    const struct harness_spec spec = same_spec(SW_F32);
    compare_updates_on_the_device(&spec, *state, 3);
}

static void updates_on_the_device_give_the_same_bits_in_bf16(void **state) {
    const struct harness_spec spec = same_spec(SW_BF16);
    compare_updates_on_the_device(&spec, *state, 1);
}

/* Few enough for a slow device. */
static void some_device_updates_give_the_same_bits_in_bf16(void **state) {
    const struct harness_spec spec = same_spec(SW_BF16);
    compare_updates_on_the_device(&spec, *state, 5);
}

/* By Muon, on a GPU of all units with such matrices, and on the CPU of those that are told to. */
static void some_updates_by_muon_give_the_same_bits(void **state) {
    struct harness_spec spec = same_narrow_spec(SW_BF16, SW_OPTIMIZER_MUON, SW_ROUND_NEAREST);
    spec.config = &same_matrix_config;
    compare_updates_on_the_device(&spec, *state, 7);
}

/* How many units a plan has at each level of recompute. */
static void count_levels(const struct sw_plan *plan, int64_t levels[SW_RECOMPUTES]) {
    for (int64_t u = 1; u + 1 < plan->spec.units->count; u++)
        levels[plan->recompute[u]]++;
}

/* Budgets from where everything is computed again to where nothing is, by batch and by layer: units of one plan
 * differ. */
static void what_fits_is_kept_with_the_same_bits(void **state) {
    (void)state;
    enum { BUDGETS = 6 };
    for (int64_t group = 1; group <= 2; group++) {
        struct harness_spec spec = same_spec(SW_BF16);
        struct same_trace reference, trace;
        int64_t bytes[2], levels[SW_RECOMPUTES] = {0};
        spec.config = &same_rotary_config;
        spec.place = "weights=host,grads=host,optimizer=host,acts=host";
        spec.group = group;
        must(same_train(&spec, false, &reference));
        for (int least = 0; least < 2; least++) {
            struct harness harness;
            spec.recompute = least == 0 ? SW_RECOMPUTE_UNIT : SW_RECOMPUTE_NOTHING;
            must(harness_open(&spec, &harness));
            bytes[least] = harness.plan->tier_bytes[SW_DEVICE];
            harness_close(&harness);
        }
        for (int b = 0; b < BUDGETS; b++) {
            struct harness harness;
            spec.device_bytes = bytes[0] + (bytes[1] - bytes[0]) * b / (BUDGETS - 1);
            must(harness_open(&spec, &harness));
            count_levels(harness.plan, levels);
            harness_close(&harness);
            must(same_train(&spec, true, &trace));
            must_equal(&reference, &trace, "another budget");
            same_free(&trace);
        }
        printf("# groups of %lld: %lld units kept everything, %lld all but what is derived, %lld nothing\n",
               (long long)group, (long long)levels[SW_RECOMPUTE_NOTHING], (long long)levels[SW_RECOMPUTE_DERIVED],
               (long long)levels[SW_RECOMPUTE_UNIT]);
        for (int level = 0; level < SW_RECOMPUTES; level++)
            assert_true(levels[level] > 1);
        same_free(&reference);
    }
}

/* Budgets with more and more room for accumulators between groups, which then lie above their gradients. */
static void accumulators_above_their_gradients_have_the_same_bits(void **state) {
    enum { BUDGETS = 8 };
    static const char *const places[] = {"weights=host,grads=host,optimizer=host,acts=host",
                                         "weights=host,grads=device,optimizer=host,acts=host",
                                         "weights=host,optimizer=host,acts=host"};
    struct harness_spec spec = same_spec(SW_BF16);
    int64_t bytes[2], above = 0;
    (void)state;
    spec.group = 1; /* with a tied table another group adds in another order */
    struct same_trace reference = reference_of(&spec), trace;
    for (int p = 0; p < 2; p++) {
        struct harness harness;
        spec.place = places[p];
        must(harness_open(&spec, &harness));
        bytes[p] = harness.plan->tier_bytes[SW_DEVICE];
        harness_close(&harness);
    }
    spec.place = places[2];
    for (int b = 0; b < BUDGETS; b++) {
        struct harness harness;
        spec.device_bytes = bytes[0] + (bytes[1] - bytes[0]) * b / (BUDGETS - 1);
        must(harness_open(&spec, &harness));
        for (int64_t u = 0; u < harness.plan->spec.units->count; u++)
            above += harness.plan->placement[u].accumulator < harness.plan->placement[u].tier[SW_GRADS];
        harness_close(&harness);
        must(same_train(&spec, true, &trace));
        must_equal(&reference, &trace, "another budget");
        same_free(&trace);
    }
    printf("# %lld accumulators lay above their gradients\n", (long long)above);
    assert_true(above > BUDGETS / 2);
    same_free(&reference);
}

static void update_threads_give_the_same_bits(void **state) {
    static const char *const places[] = {"grads=device,optimizer=host", "grads=nvme,optimizer=nvme"};
    struct same_trace reference = reference_training(SW_BF16), trace;
    for (int p = 0; p < 2; p++) {
        for (int threads = 1; threads <= 3; threads++) {
            char what[2 * PLACE_CHARS];
            struct harness_spec spec = same_spec(SW_BF16);
            spec.place = places[p];
            spec.update_threads = threads;
            spec.directory = p == 1 ? *state : NULL;
            must(same_train(&spec, true, &trace));
            snprintf(what, sizeof what, "%s with %d update threads", places[p], threads);
            must_equal(&reference, &trace, what);
            same_free(&trace);
        }
    }
    same_free(&reference);
}

static void another_description_has_the_same_bits_too(void **state) {
    static const char *const places[] = {"weights=nvme,grads=nvme,optimizer=nvme,acts=nvme",
                                         "weights=host,grads=device,optimizer=host,acts=host",
                                         "weights=nvme,grads=host,optimizer=nvme"};
    for (int t = 0; t < 2; t++) {
        struct harness_spec spec = same_spec(t == 0 ? SW_F32 : SW_BF16);
        struct same_trace reference, trace;
        spec.config = &same_rotary_config;
        must(same_train(&spec, false, &reference));
        for (int s = 0; s < SAME_STEPS; s++)
            assert_true(isfinite(reference.loss[s]) && reference.grad_norm[s] > 0 && !reference.skipped[s]);
        for (int p = 0; p < 3; p++) {
            spec.place = places[p];
            spec.recompute = (sw_recompute)p;
            spec.group = p;
            spec.directory = *state;
            must(same_train(&spec, true, &trace));
            must_equal(&reference, &trace, places[p]);
            same_free(&trace);
        }
        same_free(&reference);
    }
}

/* A comparison that cannot fail proves nothing. */
static void other_trainings_give_other_bits(void **state) {
    (void)state;
    struct same_trace reference = reference_training(SW_F32), trace;
    struct harness_spec spec = same_spec(SW_F32);
    spec.seed++;
    must(same_train(&spec, false, &trace));
    assert_non_null(same_difference(&reference, &trace));
    same_free(&trace);
    spec = same_spec(SW_BF16);
    must(same_train(&spec, false, &trace));
    assert_non_null(same_difference(&reference, &trace));
    same_free(&trace);
    same_free(&reference);
}

/* Trains in one store, closing everything after each of the stops; each part has its own placement, and updates on the
 * device of no unit, of all, or of every second one. */
static void train_in_parts(const struct harness_spec *base, const char *const places[], const int stops[], int parts,
                           struct same_trace *trace) {
    static const uint64_t streams[] = {0, UINT64_MAX, 0x5555555555555555};
    *trace = (struct same_trace){0};
    for (int part = 0; part < parts; part++) {
        struct harness harness;
        struct harness_spec spec = *base;
        spec.place = places[part];
        spec.resume = part > 0;
        spec.recompute = (sw_recompute)(part % SW_RECOMPUTES);
        spec.update_on_device = streams[part];
        must(harness_open(&spec, &harness));
        assert_int_equal(harness.first_step, part == 0 ? 0 : stops[part - 1]);
        must(same_run(&harness, harness.first_step + 1, stops[part], part % 2 == 0, trace));
        must(sw_engine_save(harness.engine));
        if (part == parts - 1)
            must(same_finish(&harness, trace));
        harness_close(&harness);
    }
    harness_remove_store(base->directory);
}

static void resume_everywhere(const struct harness_spec *base, const char *directory, bool one_generation) {
    static const int stops[] = {2, 3, SAME_STEPS};
    static const char *const places[][3] = {
        {"optimizer=nvme,grads=nvme", "optimizer=nvme,grads=nvme", "optimizer=nvme,grads=nvme"},
        {"optimizer=nvme,grads=host", "optimizer=nvme,grads=device", "optimizer=nvme,grads=nvme"},
        {"optimizer=host,grads=host", "optimizer=host,grads=nvme", "optimizer=host,grads=host"},
        {"optimizer=device,grads=device", "optimizer=device,grads=host", "optimizer=device,grads=nvme"},
        {"optimizer=nvme,grads=nvme", "optimizer=device,grads=nvme", "optimizer=host,grads=device"},
        {"optimizer=host,grads=device", "optimizer=nvme,grads=host", "optimizer=device,grads=device"},
    };
    struct same_trace reference = reference_of(base), trace;
    struct harness_spec spec = *base;
    spec.directory = directory;
    spec.one_generation = one_generation;
    for (size_t p = 0; p < sizeof places / sizeof places[0]; p++) {
        train_in_parts(&spec, places[p], stops, 3, &trace);
        must_equal(&reference, &trace, places[p][0]);
        same_free(&trace);
    }
    same_free(&reference);
}

static void a_resumed_training_gives_the_same_bits(void **state) {
    for (int type = SW_F32; type <= SW_BF16; type++) {
        const struct harness_spec spec = same_spec((sw_dtype)type);
        resume_everywhere(&spec, *state, false);
    }
}

static void a_resumed_training_with_narrow_state_gives_the_same_bits(void **state) {
    for (int i = 1; i < NARROW; i += 2) {
        const struct harness_spec spec = same_narrow_spec(SW_BF16, narrow[i].format, narrow[i].rounding);
        resume_everywhere(&spec, *state, i > 1);
    }
}

static void a_clean_end_of_one_generation_resumes_with_the_same_bits(void **state) {
    const struct harness_spec spec = same_spec(SW_BF16);
    resume_everywhere(&spec, *state, true);
}

static sw_status read_state(struct harness *harness, float **out) {
    *out = malloc((size_t)(harness_grains(harness) * SW_OPTIMIZER_GRAIN_BYTES));
    if (*out == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the test's copy of the state");
    return harness_read_records(harness, *out);
}

/* Steps up to, with and after the one whose gradient is infinite. */
static void run_skipping(const struct harness_spec *spec, struct same_trace *trace) {
    struct harness harness;
    float *before, *after;
    must(harness_open(spec, &harness));
    must(same_run(&harness, 1, INFINITE_STEP - 1, false, trace));
    must(read_state(&harness, &before));
    must(same_run(&harness, INFINITE_STEP, INFINITE_STEP, false, trace));
    must(read_state(&harness, &after));
    assert_true(trace->skipped[INFINITE_STEP - 1]);
    assert_false(isfinite(trace->grad_norm[INFINITE_STEP - 1]));
    assert_memory_equal(before, after, (size_t)(harness_grains(&harness) * SW_OPTIMIZER_GRAIN_BYTES));
    free(before);
    free(after);
    struct sw_step_result result;
    must(harness_begin(&harness, INFINITE_STEP + 1, SAME_CLIP));
    must(harness_wait(&harness, &result));
    assert_false(result.skipped);
    assert_int_equal(result.applied_steps, INFINITE_STEP);
    assert_int_equal(result.skipped_steps, 1);
    must(same_run(&harness, INFINITE_STEP + 2, SAME_STEPS, true, trace));
    must(same_finish(&harness, trace));
    harness_close(&harness);
}

static void a_step_that_is_not_finite_is_skipped_everywhere(void **state) {
    const char *directory = *state;
    struct same_trace reference = {0};
    for (int variant = 0; variant < 2 * SW_TIERS * SW_TIERS; variant++) {
        char place[PLACE_CHARS];
        struct same_trace trace = {0};
        struct harness_spec spec = same_spec(SW_BF16);
        spec.place = place_text(place, variant / 2 / SW_TIERS, variant / 2 % SW_TIERS);
        spec.update_on_device = variant % 2 == 1 ? UINT64_MAX : 0;
        spec.infinite_step = INFINITE_STEP;
        spec.directory = directory;
        run_skipping(&spec, &trace);
        harness_remove_store(directory);
        if (variant == 0) {
            reference = trace;
            continue;
        }
        must_equal(&reference, &trace, place);
        same_free(&trace);
    }
    same_free(&reference);
}

static sw_status fill_huge(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    (void)context;
    for (int64_t i = 0; i < count; i++)
        out[i] =
            unit == same_config.layers + 1 && first + i < same_config.hidden ? 3e38f : (float)((first + i) % 7 - 3);
    return SW_OK;
}

/* Every step overflows from the first one on: nothing may ever change. */
static void weights_that_overflow_never_change(void **state) {
    const char *directory = *state;
    for (int variant = 0; variant < SW_TIERS * SW_TIERS; variant++) {
        char place[PLACE_CHARS];
        struct harness harness;
        struct same_trace trace;
        float *before, *after;
        struct harness_spec spec = same_spec(variant % 2 == 0 ? SW_F32 : SW_BF16);
        spec.place = place_text(place, variant / SW_TIERS, variant % SW_TIERS);
        spec.fill = fill_huge;
        spec.directory = directory;
        must(harness_open(&spec, &harness));
        must(read_state(&harness, &before));
        must(same_run(&harness, 1, 3, true, &trace));
        must(read_state(&harness, &after));
        assert_true(trace.skipped[0] && trace.skipped[1] && trace.skipped[2]);
        assert_memory_equal(before, after, (size_t)(harness_grains(&harness) * SW_OPTIMIZER_GRAIN_BYTES));
        free(before);
        free(after);
        harness_close(&harness);
        harness_remove_store(directory);
    }
}

/* In fp16 enough good steps in a row double the loss scale, and one that overflows halves it, down to 1; both begin to
 * count anew. */
static void the_loss_scale_follows_good_and_bad_steps(void **state) {
    static const struct {
        double first;
        int64_t good_steps, infinite_step;
        double scale[SAME_STEPS + 1];
        int64_t good[SAME_STEPS + 1];
    } cases[] = {
        {1024, SW_SCALE_STEPS - 2, 0, {1024, 1024, 2048, 2048, 2048}, {0, SW_SCALE_STEPS - 1, 0, 1, 2}},
        {1024, SW_SCALE_STEPS - 2, 2, {1024, 1024, 512, 512, 512}, {0, SW_SCALE_STEPS - 1, 0, 1, 2}},
        {1, 5, 1, {1, 1, 1, 1, 1}, {0, 0, 1, 2, 3}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct harness_spec spec = same_spec(SW_F16);
        struct harness harness;
        spec.loss_scale = cases[i].first;
        spec.good_steps = cases[i].good_steps;
        spec.infinite_step = cases[i].infinite_step;
        must(harness_open(&spec, &harness));
        for (int64_t step = 1; step <= SAME_STEPS; step++) {
            struct sw_step_result result;
            must(harness_begin(&harness, step, SAME_CLIP));
            must(harness_wait(&harness, &result));
            assert_int_equal(result.skipped, step == cases[i].infinite_step);
            assert_true(result.loss_scale == cases[i].scale[step - 1]);
            assert_true(result.next_scale.scale == cases[i].scale[step]);
            assert_int_equal(result.next_scale.good_steps, cases[i].good[step]);
        }
        harness_close(&harness);
    }
}

/* Gradients above the limit are multiplied by limit / (norm + 1e-6), as torch.nn.utils.clip_grad_norm_ has it: the
 * first moments of the first step are a share of them, to the last bit. */
static void clipping_divides_as_pytorch_does(void **state) {
    (void)state;
    const double limit = 0.5;
    const struct harness_spec spec = same_spec(SW_F32);
    struct harness harness;
    struct sw_step_result result;
    struct same_trace trace = {0};
    must(harness_open(&spec, &harness));
    must(harness_begin(&harness, 1, limit));
    must(harness_wait(&harness, &result));
    must(same_finish(&harness, &trace));
    assert_true(result.grad_norm > limit);
    const float scale = (float)(limit / (result.grad_norm + 1e-6)), share = (float)(1.0 - harness_adamw(1).beta1);
    for (int64_t i = 0; i < trace.grains * SW_GRAIN_ELEMS; i++) {
        const int64_t grain = i / SW_GRAIN_ELEMS, first_m = (SW_OPTIMIZER_VECTORS * grain + 1) * SW_GRAIN_ELEMS;
        assert_true(trace.records[first_m + i % SW_GRAIN_ELEMS] == share * (trace.grads[i] * scale));
    }
    same_free(&trace);
    harness_close(&harness);
}

#define in_directory(test) cmocka_unit_test_setup_teardown(test, harness_make_directory, harness_remove_directory)

int main(void) {
    const struct CMUnitTest tests[] = {
        in_directory(placements_give_the_same_bits_in_fp32),
        in_directory(placements_give_the_same_bits_in_bf16),
        in_directory(some_placements_give_the_same_bits_in_bf16),
        in_directory(updates_on_the_device_give_the_same_bits_in_fp32),
        in_directory(updates_on_the_device_give_the_same_bits_in_bf16),
        in_directory(some_device_updates_give_the_same_bits_in_bf16),
        in_directory(some_updates_by_muon_give_the_same_bits),
        in_directory(another_description_has_the_same_bits_too),
        cmocka_unit_test(what_fits_is_kept_with_the_same_bits),
        cmocka_unit_test(accumulators_above_their_gradients_have_the_same_bits),
        in_directory(update_threads_give_the_same_bits),
        cmocka_unit_test(other_trainings_give_other_bits),
        in_directory(a_resumed_training_gives_the_same_bits),
        in_directory(placements_give_the_same_bits_with_narrow_state),
        in_directory(a_resumed_training_with_narrow_state_gives_the_same_bits),
        in_directory(placements_give_the_same_bits_with_gradients_in_8_bits),
        cmocka_unit_test(every_narrow_state_is_another_training),
        in_directory(a_clean_end_of_one_generation_resumes_with_the_same_bits),
        in_directory(a_step_that_is_not_finite_is_skipped_everywhere),
        in_directory(weights_that_overflow_never_change),
        cmocka_unit_test(the_loss_scale_follows_good_and_bad_steps),
        cmocka_unit_test(clipping_divides_as_pytorch_does),
    };
    return cmocka_run_group_tests_name("e2e same bits", tests, NULL, NULL);
}
