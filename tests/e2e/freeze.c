/* Frozen units keep their weights, and what is trained above them has the same bits wherever its state lives: tied and
 * not, placed everywhere, in groups, speculated, with intermediates computed again, stopped and resumed. */
#include "tests/e2e/same_bits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/size.h"

enum { PLACE_CHARS = 128, FROZEN_UNITS = 3, STOPPED_STEP = 3, MOST_UNITS = 16, TEXT_CHARS = 64, FEW = 4 };
/* The first FROZEN_UNITS units. */
#define LEADING "embedding,blocks:0-1"

static void must(sw_status status) {
    if (status != SW_OK)
        fail_msg("%s", sw_error_message(status));
}

static void must_equal(const struct same_trace *expected, const struct same_trace *found, const char *what) {
    const char *difference = same_difference(expected, found);
    if (difference != NULL)
        fail_msg("%s: %s differ (seed %d)", what, difference, SAME_SEED);
}

/* Watches the passes of units: each forward pass must have the frozen weights of the first one, and no backward pass
 * may go below the first trained unit. The harness leaves no context to wrapped ops, so there is one watch. Weights are
 * looked at only on the CPU: an asynchronous device has them when the pass runs, not when it is called. */
static struct {
    struct sw_unit_ops ops;
    int64_t frozen_bytes[MOST_UNITS], first_trained;
    char *first[MOST_UNITS]; /* each unit's frozen weights as its first forward pass saw them */
    int64_t forward_calls, changed, backward_calls;
} watch;

static sw_status watched_forward(void *context, const struct sw_unit_call *call) {
    if (watch.frozen_bytes[call->unit] > 0 && call->weights != NULL && getenv("SW_TEST_DEVICE") == NULL) {
        const size_t bytes = (size_t)watch.frozen_bytes[call->unit];
        char **first = &watch.first[call->unit];
        if (*first == NULL) {
            *first = malloc(bytes);
            assert_non_null(*first);
            memcpy(*first, call->weights, bytes);
        }
        watch.changed += memcmp(*first, call->weights, bytes) != 0;
        watch.forward_calls++;
    }
    return watch.ops.forward(context, call);
}

static sw_status watched_backward(void *context, const struct sw_unit_call *call) {
    watch.backward_calls += call->unit < watch.first_trained;
    return watch.ops.backward(context, call);
}

static void wrap(void *context, struct sw_unit_ops *ops) {
    const struct sw_units *units = sw_model_get_units(ops->context);
    (void)context;
    watch.ops = *ops;
    assert_true(units->count <= MOST_UNITS);
    for (int64_t u = units->count - 1; u >= 0; u--) {
        const struct sw_unit *unit = &units->unit[u];
        watch.frozen_bytes[u] = unit->trained_grain * SW_GRAIN_ELEMS * sw_dtype_bytes(sw_model_type(ops->context));
        watch.first_trained = unit->trained_grain < unit->grains ? u : watch.first_trained;
    }
    ops->forward = watched_forward;
    ops->backward = watched_backward;
}

static void end_watch(const char *what) {
    if (watch.changed > 0 || watch.backward_calls > 0)
        fail_msg("%s: %lld of %lld forward passes of frozen units had other weights, and %lld backward passes ran",
                 what, (long long)watch.changed, (long long)watch.forward_calls, (long long)watch.backward_calls);
    assert_true(watch.forward_calls > 0 || getenv("SW_TEST_DEVICE") != NULL);
    for (int u = 0; u < MOST_UNITS; u++)
        free(watch.first[u]);
    memset(&watch, 0, sizeof watch);
}

static struct harness_spec frozen_spec(sw_dtype type, bool tied) {
    struct harness_spec spec = same_spec(type);
    spec.config = tied ? &same_config : &same_rotary_config;
    spec.shape.tuning.freeze = LEADING;
    spec.wrap = wrap;
    return spec;
}

/* The gradients and the loss of a first step. */
struct first_step {
    double loss;
    int64_t first_trained; /* grains of the frozen units */
    int64_t grains;
    float *grads;
};

static struct first_step run_first_step(const struct harness_spec *spec) {
    struct harness harness;
    struct sw_step_result result;
    struct first_step out = {0};
    must(harness_open(spec, &harness));
    const struct sw_units *units = sw_model_get_units(harness.model);
    must(harness_begin(&harness, 1, SAME_CLIP));
    must(harness_wait(&harness, &result));
    out.loss = result.loss_sum;
    out.grains = harness_grains(&harness);
    for (int u = 0; u < FROZEN_UNITS; u++)
        out.first_trained += units->unit[u].grains;
    out.grads = calloc((size_t)out.grains * SW_GRAIN_ELEMS, sizeof *out.grads);
    assert_non_null(out.grads);
    must(harness_read_grads(&harness, out.grads));
    harness_close(&harness);
    return out;
}

static void trained_units_have_the_gradients_of_a_whole_training(void **state) {
    (void)state;
    for (int variant = 0; variant < 4; variant++) {
        struct harness_spec spec = frozen_spec(variant % 2 == 0 ? SW_F32 : SW_BF16, variant / 2 == 0);
        const struct first_step some = run_first_step(&spec);
        end_watch("first step");
        spec.shape.tuning.freeze = NULL;
        spec.wrap = NULL;
        const struct first_step all = run_first_step(&spec);
        const int64_t first = all.first_trained * SW_GRAIN_ELEMS;
        assert_true(some.loss == all.loss);
        assert_memory_equal(some.grads + first, all.grads + first,
                            (size_t)((all.grains - all.first_trained) * SW_GRAIN_ELEMS) * sizeof(float));
        assert_memory_not_equal(some.grads, all.grads, (size_t)first * sizeof(float)); /* frozen ones have none */
        free(some.grads);
        free(all.grads);
    }
}

/* Returns the gradients of a tensor of a first step. */
static const float *grads_of(const struct first_step *step, const struct sw_units *units, int64_t unit, int64_t t) {
    int64_t grains = 0;
    for (int64_t u = 0; u < unit; u++)
        grains += units->unit[u].grains;
    return step->grads + grains * SW_GRAIN_ELEMS + units->unit[unit].tensor[t].offset;
}

/* Wherever a trained tensor lies, its gradient is that of a training of all tensors. */
static void trained_tensors_have_the_gradients_of_a_whole_training(void **state) {
    /* A pattern for the tied model and one for the other. The fifth row freezes the head whole. */
    static const char *const patterns[][2] = {
        {"*.mlp.*", "*.mlp.*"},
        {"*attn*", "*attn*"},
        {"blocks:2", "blocks:2"},
        {"*.ln_*", "*norm*"},
        {"*ln_f*,*.mlp.*weight", "*lm_head*,model.norm*,*.mlp.*weight"},
        {"embedding,*.mlp.*", "embedding,*.mlp.*"},
    };
    (void)state;
    for (int variant = 0; variant < 24; variant++) {
        struct harness_spec spec = frozen_spec(variant % 2 == 0 ? SW_F32 : SW_BF16, variant / 2 % 2 == 0);
        struct sw_units *parts, *whole;
        spec.shape.tuning.freeze = patterns[variant / 4][variant / 2 % 2];
        spec.shape.optimizer = variant % 3 == 0 ? SW_OPTIMIZER_8BIT : SW_OPTIMIZER_FP32;
        const struct first_step some = run_first_step(&spec);
        end_watch(spec.shape.tuning.freeze);
        must(sw_model_units(spec.config, 1, spec.shape.optimizer, &spec.shape.tuning, &parts));
        must(sw_model_units(spec.config, 1, spec.shape.optimizer, NULL, &whole));
        spec.shape.tuning.freeze = NULL;
        spec.wrap = NULL;
        const struct first_step all = run_first_step(&spec);
        assert_true(some.loss == all.loss);
        int64_t compared = 0;
        for (int64_t u = 0; u < parts->count; u++)
            for (int64_t t = 0; t < parts->unit[u].tensor_count; t++) {
                const struct sw_tensor *tensor = &parts->unit[u].tensor[t];
                if (tensor->frozen)
                    continue;
                assert_memory_equal(grads_of(&some, parts, u, t), grads_of(&all, whole, u, t),
                                    (size_t)tensor->elems * sizeof(float));
                compared++;
            }
        assert_true(compared > 0);
        sw_units_destroy(parts);
        sw_units_destroy(whole);
        free(some.grads);
        free(all.grads);
    }
}

/* Every placement of weights, gradients and optimizer, and with it groups, chunks, recomputation, updates on the
 * device, speculation and steps begun ahead in turn. stride: 1 for all placements, FEW for some. */
static void compare_placements(sw_dtype type, sw_optimizer_format optimizer, bool tied, const char *freeze, int stride,
                               const char *directory) {
    enum { PLACES = SW_TIERS * SW_TIERS * SW_TIERS };
    struct harness_spec spec = frozen_spec(type, tied);
    struct same_trace reference[2], trace;
    spec.shape.tuning.freeze = freeze;
    spec.shape.optimizer = optimizer;
    spec.rounding = SW_ROUND_STOCHASTIC;
    for (int grouped = 0; grouped < 2; grouped++) {
        spec.group = grouped;
        must(same_train(&spec, false, &reference[grouped]));
        end_watch("on the device");
    }
    for (int variant = 0; variant < PLACES; variant += stride) {
        char place[PLACE_CHARS];
        const int tier[] = {variant % SW_TIERS, variant / SW_TIERS % SW_TIERS, variant / SW_TIERS / SW_TIERS};
        const int grouped = (tier[0] + tier[1]) % 2;
        snprintf(place, sizeof place, "weights=%s,grads=%s,optimizer=%s,acts=%s", sw_tier_name((sw_tier)tier[0]),
                 sw_tier_name((sw_tier)tier[1]), sw_tier_name((sw_tier)tier[2]),
                 sw_tier_name((sw_tier)((tier[0] + tier[1] + tier[2]) % SW_TIERS)));
        spec.place = place;
        spec.directory = directory;
        spec.group = grouped;
        spec.recompute = (sw_recompute)(variant % SW_RECOMPUTES);
        spec.chunk_grains = 1 + variant % 4;
        spec.update_on_device = variant % 4 == 3 ? UINT64_MAX : 0;
        spec.speculation = variant % 2 == 0 ? SW_SPECULATE_ALWAYS : SW_SPECULATE_NEVER;
        must(same_train(&spec, variant % 5 > 1, &trace));
        must_equal(&reference[grouped], &trace, place);
        same_free(&trace);
        end_watch(place);
    }
    same_free(&reference[0]);
    same_free(&reference[1]);
}

static void placements_give_the_same_bits_untied(void **state) {
    compare_placements(SW_F32, SW_OPTIMIZER_FP32, false, LEADING, 1, *state);
}

static void placements_give_the_same_bits_tied_with_narrow_state(void **state) {
    compare_placements(SW_BF16, SW_OPTIMIZER_8BIT, true, LEADING, 1, *state);
}

static void placements_give_the_same_bits_with_frozen_tensors(void **state) {
    compare_placements(SW_F32, SW_OPTIMIZER_FP32, false, "*.mlp.*,*norm*,blocks:2", FEW, *state);
}

static void placements_give_the_same_bits_with_frozen_tensors_tied_with_narrow_state(void **state) {
    compare_placements(SW_BF16, SW_OPTIMIZER_8BIT, true, "*wpe*,*attn*,blocks:1", FEW, *state);
}

static void a_resumed_training_gives_the_same_bits(void **state) {
    static const char *const places[] = {"grads=nvme,optimizer=nvme", "weights=nvme,grads=host,optimizer=host",
                                         "grads=device,optimizer=device"};
    for (int variant = 0; variant < 6; variant++) {
        struct harness_spec spec = frozen_spec(SW_BF16, variant % 2 == 1);
        struct same_trace whole, parts = {0};
        spec.shape.tuning.freeze = variant < 3 ? LEADING : "*.mlp.*,blocks:2";
        struct harness harness;
        spec.shape.optimizer = (sw_optimizer_format)(variant % SW_OPTIMIZER_FORMATS);
        spec.rounding = SW_ROUND_STOCHASTIC;
        must(same_train(&spec, false, &whole));
        spec.place = places[variant / 2];
        spec.directory = *state;
        must(harness_open(&spec, &harness));
        must(same_run(&harness, 1, STOPPED_STEP, false, &parts));
        must(sw_engine_save(harness.engine));
        harness_close(&harness);
        spec.resume = true;
        must(harness_open(&spec, &harness));
        assert_int_equal(harness.first_step, STOPPED_STEP);
        must(same_run(&harness, STOPPED_STEP + 1, SAME_STEPS, false, &parts));
        must(same_finish(&harness, &parts));
        harness_close(&harness);
        harness_remove_store(*state);
        must_equal(&whole, &parts, spec.place);
        same_free(&whole);
        same_free(&parts);
        end_watch(spec.place);
    }
}

/* The head alone may be trained, and the embedding alone frozen. */
static void any_number_of_leading_units_may_be_frozen(void **state) {
    for (int tied = 0; tied < 2; tied++) {
        struct harness_spec spec = frozen_spec(SW_BF16, tied == 1);
        char all[TEXT_CHARS];
        const char *const texts[] = {"embedding", all};
        snprintf(all, sizeof all, "embedding,blocks:0-%lld", (long long)spec.config->layers - 1);
        spec.wrap = NULL;
        for (int n = 0; n < 2; n++) {
            struct same_trace reference, trace;
            spec.shape.tuning.freeze = texts[n];
            spec.directory = NULL;
            spec.place = "grads=device,optimizer=device";
            must(same_train(&spec, false, &reference));
            spec.directory = *state;
            spec.place = "weights=nvme,grads=nvme,optimizer=nvme,acts=nvme";
            must(same_train(&spec, true, &trace));
            must_equal(&reference, &trace, n == 0 ? "the embedding alone" : "all but the head");
            same_free(&reference);
            same_free(&trace);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trained_units_have_the_gradients_of_a_whole_training),
        cmocka_unit_test(trained_tensors_have_the_gradients_of_a_whole_training),
        cmocka_unit_test_setup_teardown(placements_give_the_same_bits_untied, harness_make_directory,
                                        harness_remove_directory),
        cmocka_unit_test_setup_teardown(placements_give_the_same_bits_tied_with_narrow_state, harness_make_directory,
                                        harness_remove_directory),
        cmocka_unit_test_setup_teardown(placements_give_the_same_bits_with_frozen_tensors, harness_make_directory,
                                        harness_remove_directory),
        cmocka_unit_test_setup_teardown(placements_give_the_same_bits_with_frozen_tensors_tied_with_narrow_state,
                                        harness_make_directory, harness_remove_directory),
        cmocka_unit_test_setup_teardown(a_resumed_training_gives_the_same_bits, harness_make_directory,
                                        harness_remove_directory),
        cmocka_unit_test_setup_teardown(any_number_of_leading_units_may_be_frozen, harness_make_directory,
                                        harness_remove_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
