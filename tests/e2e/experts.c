/* Mixtures of experts in whole trainings: the same bits at every place and with every recomputation, with frozen
 * experts too, in whole blocks and with experts that are units; the same gradients and losses with units of every size;
 * one expert for each token trains as a dense model does; and experts without rows are only decayed. */
#include "tests/e2e/same_bits.h"
#include "tests/equipment/must.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "core/size.h"

enum {
    RANDOM_RUNS = 12,
    UNIT_RUNS = 24,
    PLACE_CHARS = 160,
    PLACES = 1,
    UNIT_PLACES = 2,
    JOINED_PLACES = 3,
    SHARED_PLACES = 4
}; /* PLACES: random streams */

/* Trainings of the same numbers: with all experts, with frozen experts, whose matrices lie apart, and adapters, also of
 * experts, beside a quantized base too. */
static const struct {
    sw_dtype type;
    sw_optimizer_format optimizer;
    struct sw_tuning tuning;
} trainings[] = {{SW_F32, SW_OPTIMIZER_FP32, {0}},
                 {SW_BF16, SW_OPTIMIZER_8BIT, {0}},
                 {SW_F32, SW_OPTIMIZER_FP32, {.freeze = "*.experts.[13].*,*.mlp.gate.*"}},
                 {SW_BF16, SW_OPTIMIZER_FP32, {.freeze = "*down_proj*,blocks:1"}},
                 {SW_F32, SW_OPTIMIZER_FP32, {.lora = {.rank = 4, .targets = "attention"}}},
                 {SW_F32, SW_OPTIMIZER_FP32, {.lora = {.rank = 4}}},
                 {SW_BF16, SW_OPTIMIZER_8BIT, {.lora = {.rank = 3, .targets = "experts"}, .base = SW_BASE_NF4}}};
enum { TRAININGS = sizeof trainings / sizeof trainings[0] };

struct draws {
    uint64_t stream, counter;
};

static int64_t draw(struct draws *draws, int64_t below) {
    return (int64_t)(sw_rng(SAME_SEED, draws->stream, draws->counter++).word[0] % (uint64_t)below);
}

static const char *draw_place(struct draws *draws, char text[PLACE_CHARS]) {
    const char *const tiers[4] = {
        sw_tier_name((sw_tier)draw(draws, SW_TIERS)), sw_tier_name((sw_tier)draw(draws, SW_TIERS)),
        sw_tier_name((sw_tier)draw(draws, SW_TIERS)), sw_tier_name((sw_tier)draw(draws, SW_TIERS))};
    snprintf(text, PLACE_CHARS, "weights=%s,grads=%s,optimizer=%s,acts=%s", tiers[0], tiers[1], tiers[2], tiers[3]);
    return text;
}

static const float *tensor_in(const float *all, const struct sw_units *units, int64_t unit, int64_t grain_floats,
                              const struct sw_tensor *tensor, int64_t elem) {
    int64_t grain = 0;
    for (int64_t u = 0; u < unit; u++)
        grain += units->unit[u].grains;
    const int64_t at = tensor->offset + elem;
    return all + (grain + at / SW_GRAIN_ELEMS) * grain_floats + at % SW_GRAIN_ELEMS;
}

/* Trains at random places, and compares with a training on the device. */
static void train_at_places(const struct harness_spec *base, const struct same_trace *reference, int runs,
                            const char *directory, struct draws *draws) {
    for (int r = 0; r < runs; r++) {
        struct harness_spec spec = *base;
        struct same_trace trace;
        char place[PLACE_CHARS];
        spec.place = draw_place(draws, place);
        spec.directory = directory;
        spec.recompute = (sw_recompute)(r % SW_RECOMPUTES);
        spec.chunk_grains = 1 + draw(draws, 4);
        spec.ring_chunks = 1 + draw(draws, 4);
        spec.unit_slots = 2 + draw(draws, 3);
        spec.compute_threads = 1 + r % 2;
        spec.update_on_device = draw(draws, 2) == 1 ? UINT64_MAX : 0;
        spec.speculation = (sw_speculation)draw(draws, 3);
        spec.one_generation = draw(draws, 4) == 0;
        must(same_train(&spec, draw(draws, 2) == 1, &trace));
        must_equal(reference, &trace, place);
        same_free(&trace);
    }
}

static void every_place_gives_the_same_bits(void **state) {
    struct draws draws = {.stream = PLACES};
    double loss = 0;
    for (int t = 0; t < TRAININGS; t++) {
        struct harness_spec base = same_narrow_spec(trainings[t].type, trainings[t].optimizer, SW_ROUND_NEAREST);
        struct same_trace reference;
        same_use_experts(&base);
        base.shape.tuning = trainings[t].tuning;
        must(same_train(&base, false, &reference));
        for (int s = 0; s < SAME_STEPS; s++)
            assert_true(reference.aux_loss[s] > 0 && reference.z_loss[s] > 0 && isfinite(reference.loss[s]) &&
                        reference.grad_norm[s] > 0 && !reference.skipped[s]);
        if (t == 0)
            loss = reference.loss[0];
        else if (trainings[t].type == trainings[0].type && trainings[t].tuning.freeze != NULL)
            assert_true(reference.loss[0] == loss); /* frozen experts lie elsewhere, and compute the same */
        train_at_places(&base, &reference, RANDOM_RUNS, *state, &draws);
        same_free(&reference);
    }
    printf("# %d random places and recomputations of %d trainings with equal bits\n", RANDOM_RUNS * TRAININGS,
           TRAININGS);
}

/* Six experts, whose units may be of four sizes. Three for each token, so that the order of a sum shows. */
static struct sw_model_config grouped_config(int64_t group) {
    struct sw_model_config config = same_expert_config;
    config.experts = 6;
    config.chosen_experts = 3;
    must(sw_model_group_experts(&config, group));
    return config;
}

/* The same with a shared expert beside them. */
static struct sw_model_config shared_config(int64_t group) {
    struct sw_model_config config = grouped_config(group);
    strcpy(config.family, "qwen2_moe");
    config.qk_norm = false;
    config.qkv_bias = true;
    config.ffn = 40;
    return config;
}

/* The mixture with sinks, biases and experts that are joined. */
static struct sw_model_config joined_config(int64_t group) {
    struct sw_model_config config = grouped_config(group);
    strcpy(config.family, "gpt_oss");
    config.qk_norm = false;
    config.qkv_bias = config.projection_bias = config.joined_experts = true;
    config.window = 7;
    config.full_layers[0] = 2;
    return config;
}

/* Trains one step, which leaves its gradients, and compares every gradient with that of a whole block. */
static void compare_gradients(sw_dtype type, const struct sw_tuning *tuning, int64_t group,
                              struct sw_model_config (*config_of)(int64_t group)) {
    const struct sw_model_config configs[] = {config_of(0), config_of(group)};
    struct sw_units *units[2];
    struct same_trace trace[2];
    for (int i = 0; i < 2; i++) {
        struct harness_spec spec = same_spec(type);
        struct harness harness;
        same_use_experts(&spec);
        spec.config = &configs[i];
        spec.shape.tuning = *tuning;
        spec.recompute = group % 2 == 1 ? SW_RECOMPUTE_UNIT : SW_RECOMPUTE_DERIVED;
        memset(&trace[i], 0, sizeof trace[i]);
        must(sw_model_units(spec.config, 1, SW_OPTIMIZER_FP32, tuning, &units[i]));
        must(harness_open(&spec, &harness));
        must(same_run(&harness, 1, 1, false, &trace[i]));
        must(same_finish(&harness, &trace[i]));
        harness_close(&harness);
    }
    assert_true(trace[0].aux_loss[0] > 0 && trace[0].aux_loss[0] == trace[1].aux_loss[0]);
    if (trace[0].loss[0] != trace[1].loss[0])
        fail_msg("units of %lld experts: a loss of %.17g, not %.17g", (long long)group, trace[1].loss[0],
                 trace[0].loss[0]);
    for (int64_t u = 0, whole = 0; u < units[1]->count; u++) {
        const struct sw_unit *unit = &units[1]->unit[u];
        while (sw_unit_find(&units[0]->unit[whole], unit->tensor[0].name) == NULL)
            whole++;
        for (int64_t t = 0; t < unit->tensor_count; t++) {
            const struct sw_tensor *tensor = &unit->tensor[t],
                                   *same = sw_unit_find(&units[0]->unit[whole], tensor->name);
            assert_non_null(same);
            for (int64_t e = 0; !tensor->frozen && e < tensor->elems; e++) {
                int64_t run;
                const int64_t at = sw_tensor_to_whole(tensor, e, &run);
                const double found = *tensor_in(trace[1].grads, units[1], u, SW_GRAIN_ELEMS, tensor, e);
                const double wanted = *tensor_in(trace[0].grads, units[0], whole, SW_GRAIN_ELEMS, same, at);
                if (found != wanted)
                    fail_msg("units of %lld experts: another gradient of element %lld of %s, %g and not %g",
                             (long long)group, (long long)at, tensor->name, found, wanted);
            }
        }
    }
    for (int i = 0; i < 2; i++) {
        same_free(&trace[i]);
        sw_units_destroy(units[i]);
    }
}

static void experts_that_are_units_have_the_same_gradients(void **state) {
    static const struct sw_tuning all = {0}, lora = {.lora = {.rank = 4}};
    static const int64_t groups[] = {1, 2, 3, 6};
    (void)state;
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++) {
        compare_gradients(SW_F32, &all, groups[i], grouped_config);
        compare_gradients(SW_BF16, i % 2 == 0 ? &all : &lora, groups[i], grouped_config);
        compare_gradients(SW_BF16, i % 2 == 0 ? &lora : &all, groups[i], shared_config);
        compare_gradients(i % 2 == 0 ? SW_BF16 : SW_F32, i < 2 ? &all : &lora, groups[i], joined_config);
    }
}

/* Some tensors of a unit frozen, whole units frozen, and narrow states, in groups of one to three micro-batches. */
static void experts_that_are_units_have_the_same_bits_everywhere(void **state) {
    static const int64_t groups[TRAININGS] = {1, 2, 3, 1, 2, 2, 0};
    struct draws draws = {.stream = UNIT_PLACES};
    for (int t = 0; t < TRAININGS; t++) {
        const struct sw_model_config config = grouped_config(groups[t]);
        struct harness_spec base = same_narrow_spec(trainings[t].type, trainings[t].optimizer, SW_ROUND_NEAREST);
        struct same_trace reference;
        same_use_experts(&base);
        base.config = &config;
        base.shape.tuning = trainings[t].tuning;
        base.group = 1 + t % 3;
        must(same_train(&base, false, &reference));
        train_at_places(&base, &reference, t == 0 ? UNIT_RUNS : RANDOM_RUNS / 2, *state, &draws);
        same_free(&reference);
    }
}

/* All trained, in fp32 and in bf16 with narrow state; the gates and the second block frozen; adapters, of experts too,
 * beside a base in 4 bits, of which some experts at a time are unpacked. In whole blocks, and beside units of experts.
 */
static void joined_experts_have_the_same_bits_everywhere(void **state) {
    static const struct {
        int64_t group;
        struct sw_tuning tuning;
    } variants[] = {
        {0, {0}},
        {2, {0}},
        {3, {.freeze = "*.gate_up_proj*,blocks:1"}},
        {0, {.lora = {.rank = 4, .targets = "attention,down_proj"}, .base = SW_BASE_NF4}},
        {2, {.lora = {.rank = 3}, .base = SW_BASE_INT8}},
    };
    struct draws draws = {.stream = JOINED_PLACES};
    for (size_t v = 0; v < sizeof variants / sizeof variants[0]; v++) {
        const struct sw_model_config config = joined_config(variants[v].group);
        struct harness_spec base = v == 1 ? same_narrow_spec(SW_BF16, SW_OPTIMIZER_8BIT, SW_ROUND_NEAREST)
                                          : same_spec(v == 2 ? SW_BF16 : SW_F32);
        struct same_trace reference;
        same_use_experts(&base);
        base.config = &config;
        base.shape.tuning = variants[v].tuning;
        must(same_train(&base, false, &reference));
        assert_true(isfinite(reference.loss[0]) && reference.grad_norm[0] > 0);
        train_at_places(&base, &reference, RANDOM_RUNS / 4, *state, &draws);
        same_free(&reference);
    }
}

/* Trained, and frozen in 4 bits beside adapters; in whole blocks, and beside units of experts. */
static void a_shared_expert_gives_the_same_bits_everywhere(void **state) {
    struct draws draws = {.stream = SHARED_PLACES};
    for (int variant = 0; variant < 4; variant++) {
        const bool adapts = variant % 2 == 1;
        const struct sw_model_config config = shared_config(variant < 2 ? 0 : 2);
        struct harness_spec base = same_spec(adapts ? SW_BF16 : SW_F32);
        struct same_trace reference;
        same_use_experts(&base);
        base.config = &config;
        if (adapts)
            base.shape.tuning = (struct sw_tuning){.lora = {.rank = 2}, .base = SW_BASE_NF4};
        must(same_train(&base, false, &reference));
        train_at_places(&base, &reference, RANDOM_RUNS / 3, *state, &draws);
        same_free(&reference);
    }
}

static void resume_with(const struct sw_model_config *config, const char *directory) {
    struct harness_spec spec = same_spec(SW_BF16);
    struct same_trace whole, parts;
    same_use_experts(&spec);
    spec.config = config;
    spec.place = "weights=nvme,grads=nvme,optimizer=nvme,acts=nvme";
    spec.directory = directory;
    must(same_train(&spec, false, &whole));
    must(same_train_in_parts(&spec, SAME_STEPS / 2, &parts));
    must_equal(&whole, &parts, "in parts");
    same_free(&whole);
    same_free(&parts);
}

static void a_resumed_training_gives_the_same_bits(void **state) {
    const struct sw_model_config grouped = grouped_config(2), joined = joined_config(3);
    resume_with(&same_expert_config, *state);
    resume_with(&joined, *state);
    resume_with(&grouped, *state);
}

/* A mixture whose router is zero: equal logits choose the experts with the smallest indices for every token. */
static struct sw_model_config idle_config(int64_t chosen) {
    struct sw_model_config config = same_expert_config;
    strcpy(config.family, "mixtral");
    config.qk_norm = false;
    config.chosen_experts = chosen;
    return config;
}

/* Fills the mixture, and a dense model with the values of expert 0. */
struct filling {
    const struct sw_units *mixture, *units;
    struct sw_model_init init;
};

static float *mixture_unit(const struct filling *filling, int64_t unit) {
    const struct sw_unit *of = &filling->mixture->unit[unit];
    float *values = malloc((size_t)of->elems * sizeof *values);
    assert_non_null(values);
    must(sw_model_fill_random((void *)&filling->init, unit, 0, of->elems, values));
    for (int64_t t = 0; t < of->tensor_count; t++)
        if (strstr(of->tensor[t].name, ".gate.weight") != NULL)
            memset(values + of->tensor[t].offset, 0, (size_t)of->tensor[t].elems * sizeof *values);
    return values;
}

/* Returns the tensor of a mixture's unit that a dense model calls `name`. */
static const struct sw_tensor *counterpart(const struct sw_unit *unit, const char *name) {
    static const char *const pairs[][2] = {{"mlp.gate_proj", "w1"}, {"mlp.up_proj", "w3"}, {"mlp.down_proj", "w2"}};
    char other[SW_TENSOR_NAME_CHARS];
    snprintf(other, sizeof other, "%s", name);
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        const char *at = strstr(name, pairs[i][0]);
        if (at != NULL)
            snprintf(other, sizeof other, "%.*sblock_sparse_moe.experts.0.%s.weight", (int)(at - name), name,
                     pairs[i][1]);
    }
    const struct sw_tensor *tensor = sw_unit_find(unit, other);
    assert_non_null(tensor);
    return tensor;
}

static sw_status fill(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    const struct filling *filling = context;
    const struct sw_unit *to = &filling->units->unit[unit];
    float *from = mixture_unit(filling, unit), *values = calloc((size_t)to->elems, sizeof *values);
    assert_non_null(values);
    for (int64_t t = 0; t < to->tensor_count; t++) {
        const struct sw_tensor *source = filling->units == filling->mixture
                                             ? &to->tensor[t]
                                             : counterpart(&filling->mixture->unit[unit], to->tensor[t].name);
        assert_int_equal(source->elems, to->tensor[t].elems);
        memcpy(values + to->tensor[t].offset, from + source->offset, (size_t)source->elems * sizeof *values);
    }
    memcpy(out, values + first, (size_t)count * sizeof *out);
    free(values);
    free(from);
    return SW_OK;
}

/* Trains, and keeps the grads of the last step and the records. The caller frees the trace. */
static void train_filled(const struct sw_model_config *config, const struct sw_units *mixture,
                         const struct sw_model_config *mixture_config, const char *freeze, struct same_trace *trace,
                         struct sw_units **out_units) {
    struct filling filling = {.mixture = mixture,
                              .init = {.config = mixture_config, .units = mixture, .seed = SAME_SEED}};
    struct harness_spec spec = same_spec(SW_F32);
    spec.shape.tuning.freeze = freeze;
    must(sw_model_units(config, 1, SW_OPTIMIZER_FP32, &spec.shape.tuning, out_units));
    filling.units = config == mixture_config ? mixture : *out_units;
    spec.config = config;
    spec.fill = fill;
    spec.fill_context = &filling;
    must(same_train(&spec, false, trace));
}

static double distance(const struct same_trace *a, const struct sw_units *a_units, const struct sw_tensor *of_a,
                       const struct same_trace *b, const struct sw_units *b_units, const struct sw_tensor *of_b,
                       int64_t unit) {
    double squares = 0, all = 0;
    for (int64_t e = 0; e < of_a->elems; e++) {
        const double x = *tensor_in(a->grads, a_units, unit, SW_GRAIN_ELEMS, of_a, e);
        const double y = *tensor_in(b->grads, b_units, unit, SW_GRAIN_ELEMS, of_b, e);
        squares += (x - y) * (x - y);
        all += x * x;
    }
    return sqrt(squares / all);
}

/* With one expert for each token, whose weight is then 1, and all tokens on expert 0, everything is as in a dense model
 * with the weights of that expert. */
static void one_expert_trains_as_a_dense_model(void **state) {
    (void)state;
    const struct sw_model_config mixture = idle_config(1);
    struct sw_model_config dense = mixture;
    struct sw_units *units, *dense_units, *again;
    struct same_trace found, wanted;
    strcpy(dense.family, "llama");
    dense.ffn = dense.expert_ffn;
    dense.experts = dense.chosen_experts = dense.expert_ffn = 0;
    must(sw_model_units(&mixture, 1, SW_OPTIMIZER_FP32, NULL, &units));
    train_filled(&mixture, units, &mixture, NULL, &found, &again);
    train_filled(&dense, units, &mixture, NULL, &wanted, &dense_units);
    for (int s = 0; s < SAME_STEPS; s++)
        if (!(fabs(found.loss[s] / wanted.loss[s] - 1.0) < 1e-6))
            fail_msg("step %d: the mixture has a loss of %.9g, the dense model %.9g", s + 1, found.loss[s],
                     wanted.loss[s]);
    for (int64_t u = 0; u < units->count; u++)
        for (int64_t t = 0; t < dense_units->unit[u].tensor_count; t++) {
            const struct sw_tensor *tensor = &dense_units->unit[u].tensor[t];
            const double error =
                distance(&wanted, dense_units, tensor, &found, units, counterpart(&units->unit[u], tensor->name), u);
            if (!(error < 1e-4))
                fail_msg("%s: the gradient is off by %g of its norm", tensor->name, error);
        }
    same_free(&found);
    same_free(&wanted);
    sw_units_destroy(units);
    sw_units_destroy(again);
    sw_units_destroy(dense_units);
}

/* All tokens choose experts 0 and 1, in every step, as the router is frozen. The others have no gradient at all, and
 * AdamW decays their weights and leaves their moments zero. */
static void experts_without_rows_are_only_decayed(void **state) {
    (void)state;
    const struct sw_model_config config = idle_config(2);
    const struct sw_tuning tuning = {.freeze = "*.gate.weight"};
    const int64_t record = (int64_t)SW_OPTIMIZER_VECTORS * SW_GRAIN_ELEMS;
    struct sw_units *units, *again;
    struct same_trace trace;
    double kept = 1.0;
    must(sw_model_units(&config, 1, SW_OPTIMIZER_FP32, &tuning, &units));
    train_filled(&config, units, &config, tuning.freeze, &trace, &again);
    for (int s = 1; s <= SAME_STEPS; s++)
        kept *= 1.0 - harness_adamw(s).lr * harness_adamw(s).weight_decay;
    const struct filling filling = {.mixture = units, .init = {.config = &config, .units = units, .seed = SAME_SEED}};
    int idle = 0, busy = 0;
    for (int64_t u = 1; u + 1 < units->count; u++) {
        float *initial = mixture_unit(&filling, u);
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++) {
            const struct sw_tensor *tensor = &units->unit[u].tensor[t];
            const char *at = strstr(tensor->name, ".experts.");
            const bool is_idle = at != NULL && atoi(at + strlen(".experts.")) >= config.chosen_experts;
            bool moved = false;
            for (int64_t e = 0; at != NULL && e < tensor->elems; e++) {
                const float *master = tensor_in(trace.records, units, u, record, tensor, e);
                const double expected = kept * initial[tensor->offset + e];
                moved |= *tensor_in(trace.grads, units, u, SW_GRAIN_ELEMS, tensor, e) != 0.0f ||
                         master[SW_GRAIN_ELEMS] != 0.0f || master[INT64_C(2) * SW_GRAIN_ELEMS] != 0.0f ||
                         !(fabs(*master - expected) <= 1e-6 * fabs(expected));
            }
            if (at != NULL && moved == is_idle)
                fail_msg("%s %s", tensor->name, moved ? "moved" : "did not move");
            idle += is_idle;
            busy += at != NULL && !is_idle;
        }
        free(initial);
    }
    assert_true(kept < 1.0 && idle == 3 * 3 * 3 && busy == 3 * 2 * 3);
    same_free(&trace);
    sw_units_destroy(units);
    sw_units_destroy(again);
}

#define in_directory(test) cmocka_unit_test_setup_teardown(test, harness_make_directory, harness_remove_directory)

int main(void) {
    const struct CMUnitTest tests[] = {
        in_directory(every_place_gives_the_same_bits),
        in_directory(joined_experts_have_the_same_bits_everywhere),
        in_directory(experts_that_are_units_have_the_same_bits_everywhere),
        cmocka_unit_test(experts_that_are_units_have_the_same_gradients),
        in_directory(a_shared_expert_gives_the_same_bits_everywhere),
        in_directory(a_resumed_training_gives_the_same_bits),
        cmocka_unit_test(one_expert_trains_as_a_dense_model),
        cmocka_unit_test(experts_without_rows_are_only_decayed),
    };
    return cmocka_run_group_tests_name("experts", tests, NULL, NULL);
}
