/* Frozen tensors keep their weights, and what is trained above or beside them has the same bits wherever its state
 * lives: tied and not, placed everywhere, in groups, speculated, with intermediates computed again, stopped and
 * resumed. Adapters have the gradients that follow from those of the matrices that they change, and with dropout those
 * by which the loss changes. */
#include "tests/e2e/same_bits.h"
#include "tests/equipment/must.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/size.h"

enum {
    PLACE_CHARS = 128,
    FROZEN_UNITS = 3,
    STOPPED_STEP = 3,
    MOST_UNITS = 16,
    TEXT_CHARS = 64,
    FEW = 4,
    MOST_DRAWS = 63
};
/* The first FROZEN_UNITS units. */
#define LEADING "embedding,blocks:0-1"

/* Watches the passes of units: each forward pass must have the frozen weights of the first one, and no backward pass
 * may go below the first trained unit. The harness leaves no context to wrapped ops, so there is one watch. Weights are
 * looked at only on the CPU: an asynchronous device has them when the pass runs, not when it is called. */
static struct {
    struct sw_unit_ops ops;
    int64_t frozen_bytes[MOST_UNITS], first_trained;
    char *first[MOST_UNITS]; /* each unit's frozen weights as its first forward pass saw them */
    int64_t forward_calls, changed, backward_calls;
    int64_t micro_batches;
    uint64_t drawn[2]; /* bit n: the forward, or the backward pass of a block had the number n of struct sw_unit_call */
    int64_t wrong_draws;
} watch;

/* A number must be that of this micro-batch in some step, or 0. */
static void watch_draw(const struct sw_unit_call *call, bool backward) {
    const bool right = call->draw == 0 || (int64_t)(call->draw - 1) % watch.micro_batches == call->micro;
    watch.wrong_draws += !right || call->draw > MOST_DRAWS || call->seed != SAME_SEED;
    watch.drawn[backward] |= UINT64_C(1) << call->draw % (MOST_DRAWS + 1);
}

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
    watch_draw(call, false);
    return watch.ops.forward(context, call);
}

static sw_status watched_backward(void *context, const struct sw_unit_call *call) {
    watch.backward_calls += call->unit < watch.first_trained;
    watch_draw(call, true);
    return watch.ops.backward(context, call);
}

static void wrap(void *context, struct sw_unit_ops *ops) {
    const struct sw_units *units = sw_model_get_units(ops->context);
    (void)context;
    watch.ops = *ops;
    watch.micro_batches = same_spec(SW_F32).micro_batches;
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
    const uint64_t trained = (UINT64_C(2) << SAME_STEPS * watch.micro_batches) - 2;
    if (watch.wrong_draws > 0 || (watch.drawn[0] & ~trained) > 1 || (watch.drawn[1] & ~trained) != 0)
        fail_msg("%s: %lld passes drew by another number than their micro-batch's", what, (long long)watch.wrong_draws);
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

/* The first steps of trainings of all tensors, by type, tied tables and narrow state, each made once. */
static struct first_step whole_steps[2][2][2];

static const struct first_step *whole_step_of(sw_dtype type, bool tied, sw_optimizer_format optimizer) {
    struct first_step *step = &whole_steps[type == SW_BF16][tied][optimizer == SW_OPTIMIZER_8BIT];
    struct harness_spec spec = frozen_spec(type, tied);
    spec.shape.tuning.freeze = NULL;
    spec.shape.optimizer = optimizer;
    spec.wrap = NULL;
    if (step->grads == NULL)
        *step = run_first_step(&spec);
    return step;
}

static int free_whole_steps(void **state) {
    struct first_step *steps = &whole_steps[0][0][0];
    (void)state;
    for (size_t i = 0; i < sizeof whole_steps / sizeof *steps; i++)
        free(steps[i].grads);
    return 0;
}

static void trained_units_have_the_gradients_of_a_whole_training(void **state) {
    (void)state;
    for (int variant = 0; variant < 4; variant++) {
        struct harness_spec spec = frozen_spec(variant % 2 == 0 ? SW_F32 : SW_BF16, variant / 2 == 0);
        const struct first_step some = run_first_step(&spec);
        end_watch("first step");
        const struct first_step *all = whole_step_of(spec.shape.type, variant / 2 == 0, SW_OPTIMIZER_FP32);
        const int64_t first = all->first_trained * SW_GRAIN_ELEMS;
        assert_true(some.loss == all->loss);
        assert_memory_equal(some.grads + first, all->grads + first,
                            (size_t)((all->grains - all->first_trained) * SW_GRAIN_ELEMS) * sizeof(float));
        assert_memory_not_equal(some.grads, all->grads, (size_t)first * sizeof(float)); /* frozen ones have none */
        free(some.grads);
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
        const struct first_step *all = whole_step_of(spec.shape.type, variant / 2 % 2 == 0, spec.shape.optimizer);
        assert_true(some.loss == all->loss);
        int64_t compared = 0;
        for (int64_t u = 0; u < parts->count; u++)
            for (int64_t t = 0; t < parts->unit[u].tensor_count; t++) {
                const struct sw_tensor *tensor = &parts->unit[u].tensor[t];
                if (tensor->frozen)
                    continue;
                assert_memory_equal(grads_of(&some, parts, u, t), grads_of(all, whole, u, t),
                                    (size_t)tensor->elems * sizeof(float));
                compared++;
            }
        assert_true(compared > 0);
        sw_units_destroy(parts);
        sw_units_destroy(whole);
        free(some.grads);
    }
}

/* Weights of a model with adapters whose A and B are random, or of the model without adapters, to whose matrices they
 * were added. */
struct adapted {
    struct sw_model_init base;
    struct sw_units *units, *with; /* those that are filled, and those with adapters */
    struct sw_lora lora;
    const struct sw_tensor *moved; /* a tensor of an adapter to which distance·direction is added; NULL: none */
    const float *direction;
    double distance;
};

/* Returns an element of an adapter's tensor, as if it had been trained for long. */
static double adapter_value(const char *module, const char *end, int64_t at) {
    const char *expert = strstr(module, ".experts.");
    const uint64_t stream = 31 * strlen(module) + (uint64_t)module[strlen(module) - 1] +
                            (end[sizeof ".lora_" - 1] == 'A') +
                            (expert == NULL ? 0 : 977 * (uint64_t)expert[sizeof ".experts." - 1]);
    const uint64_t mixed = ((uint64_t)at + stream * 7919) * UINT64_C(0x9e3779b97f4a7c15);
    return (float)(0.2 * (double)(mixed >> 40) / 0x1p24 - 0.1);
}

/* Copies the name of a tensor without its end. Returns false if it ends in another way. */
static bool module_of(const char *name, const char *end, char module[SW_TENSOR_NAME_CHARS]) {
    const size_t length = strlen(name), tail = strlen(end);
    if (length < tail || strcmp(name + length - tail, end) != 0)
        return false;
    snprintf(module, SW_TENSOR_NAME_CHARS, "%.*s", (int)(length - tail), name);
    return true;
}

static const struct sw_tensor *find_tensor(const struct sw_units *units, const char *module, const char *end) {
    char name[SW_TENSOR_NAME_CHARS];
    for (int64_t u = 0; u < units->count; u++)
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++)
            if (module_of(units->unit[u].tensor[t].name, end, name) && strcmp(name, module) == 0)
                return &units->unit[u].tensor[t];
    return NULL;
}

struct adapted_fill {
    const struct adapted *model;
    const struct sw_unit *unit;
    float *out;
};

/* Fills a tensor of an adapter, or adds an adapter to a matrix of a model without adapters. */
static sw_status fill_adapted_run(void *context, int64_t t, int64_t whole, int64_t run, int64_t at) {
    const struct adapted_fill *fill = context;
    const struct adapted *model = fill->model;
    const struct sw_tensor *tensor = &fill->unit->tensor[t];
    char module[SW_TENSOR_NAME_CHARS];
    for (int end = 0; end < 2; end++)
        if (module_of(tensor->name, end == 0 ? SW_LORA_A : SW_LORA_B, module)) {
            for (int64_t i = 0; i < run; i++) {
                const double more = tensor == model->moved ? model->distance * model->direction[whole + i] : 0.0;
                fill->out[at + i] = (float)(adapter_value(module, end == 0 ? SW_LORA_A : SW_LORA_B, whole + i) + more);
            }
            return SW_OK;
        }
    if (model->units == model->with || !module_of(tensor->name, ".weight", module) ||
        find_tensor(model->with, module, SW_LORA_A) == NULL)
        return SW_OK;
    const int64_t cols = tensor->dim[1], rank = model->lora.rank;
    const int64_t inputs = tensor->dim[model->base.config->out_first ? 1 : 0];
    for (int64_t i = 0; i < run; i++) {
        const int64_t row = (whole + i) / cols, col = (whole + i) % cols;
        const int64_t in = model->base.config->out_first ? col : row, out = model->base.config->out_first ? row : col;
        double sum = 0.0;
        for (int64_t r = 0; r < rank; r++)
            sum += adapter_value(module, SW_LORA_B, out * rank + r) * adapter_value(module, SW_LORA_A, r * inputs + in);
        fill->out[at + i] += (float)(sw_lora_scale(&model->lora) * sum);
    }
    return SW_OK;
}

static sw_status fill_adapted(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    struct adapted *model = context;
    struct adapted_fill fill = {.model = model, .unit = &model->units->unit[unit], .out = out};
    model->base.units = model->units;
    must(sw_model_fill_random(&model->base, unit, first, count, out));
    return sw_unit_walk(fill.unit, first, count, fill_adapted_run, &fill);
}

/* Lets a training begin with trained adapters. */
static void fill_with_adapters(struct harness_spec *spec, struct adapted *out) {
    *out = (struct adapted){.base = {.config = spec->config, .seed = SAME_SEED}, .lora = spec->shape.tuning.lora};
    must(sw_model_units(spec->config, 1, spec->shape.optimizer, &spec->shape.tuning, &out->with));
    out->units = out->with;
    spec->fill = fill_adapted;
    spec->fill_context = out;
}

/* Compares the gradient of an adapter's tensor with what follows from dW of the matrix that it was added to:
 * dA = scale·Bᵀ·dW and dB = scale·dW·Aᵀ, with W as [outputs, inputs]. */
static void compare_adapter(const struct adapted *model, const struct sw_tensor *tensor, const float *found,
                            const struct sw_tensor *base, const float *base_grad) {
    char module[SW_TENSOR_NAME_CHARS];
    const bool is_a = module_of(tensor->name, SW_LORA_A, module), out_first = model->base.config->out_first;
    const int64_t rank = model->lora.rank, inputs = base->dim[out_first ? 1 : 0],
                  outputs = base->dim[out_first ? 0 : 1];
    double error = 0.0, norm = 0.0;
    assert_true(is_a || module_of(tensor->name, SW_LORA_B, module));
    for (int64_t i = 0; i < tensor->elems; i++) {
        const int64_t r = is_a ? i / inputs : i % rank, fixed = is_a ? i % inputs : i / rank;
        double sum = 0.0;
        for (int64_t k = 0; k < (is_a ? outputs : inputs); k++) {
            const int64_t out = is_a ? k : fixed, in = is_a ? fixed : k;
            sum += (double)base_grad[out_first ? out * inputs + in : in * outputs + out] *
                   (is_a ? adapter_value(module, SW_LORA_B, out * rank + r)
                         : adapter_value(module, SW_LORA_A, r * inputs + in));
        }
        sum *= sw_lora_scale(&model->lora);
        error += (sum - (double)found[i]) * (sum - (double)found[i]);
        norm += sum * sum;
    }
    assert_true(norm > 0.0);
    if (sqrt(error / norm) > 1e-4)
        fail_msg("the gradient of %s is off by %g of its norm", tensor->name, sqrt(error / norm));
}

static void adapters_have_the_gradients_of_their_matrices(void **state) {
    static const struct sw_lora loras[] = {{.rank = 3},
                                           {.rank = 8, .alpha = 4.0, .targets = "attention"},
                                           {.rank = 4, .rank_stabilized = true, .targets = "mlp"},
                                           {.rank = 3}};
    (void)state;
    for (int variant = 0; variant < 8; variant++) {
        struct harness_spec spec = frozen_spec(SW_F32, variant % 2 == 0);
        struct adapted model;
        spec.wrap = NULL;
        if (variant >= 6) /* those of experts see the rows of their own experts */
            same_use_experts(&spec);
        spec.shape.tuning = (struct sw_tuning){.lora = loras[variant / 2]};
        spec.shape.tuning.lora.targets = variant == 7 ? "*.experts.[02].*,up_proj" : spec.shape.tuning.lora.targets;
        fill_with_adapters(&spec, &model);
        const struct first_step some = run_first_step(&spec);
        struct sw_units *whole;
        must(sw_model_units(spec.config, 1, spec.shape.optimizer, NULL, &whole));
        spec.shape.tuning = (struct sw_tuning){0};
        model.units = whole;
        const struct first_step all = run_first_step(&spec);
        assert_true(fabs(some.loss - all.loss) < 1e-5 * all.loss);
        int64_t compared = 0;
        for (int64_t u = 0; u < whole->count; u++)
            for (int64_t t = 0; t < model.with->unit[u].tensor_count; t++) {
                const struct sw_tensor *tensor = &model.with->unit[u].tensor[t];
                char module[SW_TENSOR_NAME_CHARS];
                assert_true(tensor->frozen != tensor->added);
                if (tensor->frozen)
                    continue;
                assert_true(module_of(tensor->name, SW_LORA_A, module) || module_of(tensor->name, SW_LORA_B, module));
                const struct sw_tensor *base = find_tensor(whole, module, ".weight");
                assert_non_null(base);
                compare_adapter(&model, tensor, grads_of(&some, model.with, u, t), base,
                                grads_of(&all, whole, u, base - whole->unit[u].tensor));
                compared++;
            }
        assert_true(compared > 0);
        sw_units_destroy(whole);
        sw_units_destroy(model.with);
        free(some.grads);
        free(all.grads);
    }
}

/* Returns the mean loss of a first step that begins with a tensor moved along a direction. */
static double loss_beside(struct harness_spec spec, const struct sw_tensor *tensor, const float *direction,
                          double distance) {
    struct adapted *model = spec.fill_context;
    model->moved = tensor;
    model->direction = direction;
    model->distance = distance;
    const struct first_step step = run_first_step(&spec);
    model->moved = NULL;
    free(step.grads);
    return step.loss / (double)(spec.micro_batches * spec.shape.batch * spec.shape.seq);
}

/* The loss changes along a gradient by the gradient's norm. A mask that differs between the passes would turn the
 * gradient away. */
static void compare_slope(const struct harness_spec *spec, const struct sw_tensor *tensor, const float *gradient) {
    const double step = 2e-2;
    float *direction = malloc((size_t)tensor->elems * sizeof *direction);
    double norm = 0.0;
    assert_non_null(direction);
    for (int64_t i = 0; i < tensor->elems; i++)
        norm += (double)gradient[i] * (double)gradient[i];
    norm = sqrt(norm);
    assert_true(norm > 0.0);
    for (int64_t i = 0; i < tensor->elems; i++)
        direction[i] = (float)((double)gradient[i] / norm);
    const double slope =
        (loss_beside(*spec, tensor, direction, step) - loss_beside(*spec, tensor, direction, -step)) / (2.0 * step);
    free(direction);
    if (!(fabs(slope / norm - 1.0) < 1e-2))
        fail_msg("the gradient of %s has the norm %g, and the loss the slope %g", tensor->name, norm, slope);
}

/* In the first block the gradients have come through the masks of all others. */
static void adapters_with_dropout_have_the_slopes_of_the_loss(void **state) {
    (void)state;
    for (int variant = 0; variant < 2; variant++) {
        struct harness_spec spec = frozen_spec(SW_F32, variant == 0);
        struct adapted model;
        int64_t compared = 0;
        spec.wrap = NULL;
        spec.shape.tuning = (struct sw_tuning){.lora = {.rank = 4, .dropout = 0.5}};
        fill_with_adapters(&spec, &model);
        const struct first_step step = run_first_step(&spec);
        const struct sw_unit *block = &model.with->unit[1];
        for (int64_t t = 0; t < block->tensor_count; t++)
            if (block->tensor[t].added) {
                compare_slope(&spec, &block->tensor[t], grads_of(&step, model.with, 1, t));
                compared++;
            }
        assert_true(compared >= 8);
        spec.shape.tuning.lora.dropout = 0.0;
        const struct first_step whole = run_first_step(&spec);
        assert_true(whole.loss != step.loss);
        sw_units_destroy(model.with);
        free(step.grads);
        free(whole.grads);
    }
}

/* The loss of a fixed batch has no dropout, and micro-batches of steps have the numbers from 1 on. */
static void dropout_is_of_training_alone(void **state) {
    (void)state;
    double loss[2];
    for (int dropped = 0; dropped < 2; dropped++) {
        struct harness_spec spec = frozen_spec(SW_F32, true);
        struct adapted model;
        struct harness harness;
        spec.wrap = NULL;
        spec.shape.tuning = (struct sw_tuning){.lora = {.rank = 4, .dropout = dropped == 0 ? 0.0 : 0.5}};
        fill_with_adapters(&spec, &model);
        must(harness_open(&spec, &harness));
        must(harness_evaluate(&harness, &loss[dropped]));
        harness_close(&harness);
        sw_units_destroy(model.with);
    }
    assert_true(loss[0] == loss[1]);
}

/* Every placement of weights, gradients and optimizer, and with it groups, chunks, recomputation, updates on the
 * device, speculation and steps begun ahead in turn. stride: 1 for all placements, FEW for some. */
static void compare_placements(sw_dtype type, sw_optimizer_format optimizer, bool tied, struct sw_tuning tuning,
                               int stride, const char *directory) {
    enum { PLACES = SW_TIERS * SW_TIERS * SW_TIERS };
    struct harness_spec spec = frozen_spec(type, tied);
    struct same_trace reference[2], trace;
    struct adapted adapted = {0};
    spec.shape.tuning = tuning;
    spec.shape.optimizer = optimizer;
    if (tuning.lora.rank > 0)
        fill_with_adapters(&spec, &adapted);
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
        snprintf(place, sizeof place, "weights=%s,grads=%s,optimizer=%s,acts=%s%s", sw_tier_name((sw_tier)tier[0]),
                 sw_tier_name((sw_tier)tier[1]), sw_tier_name((sw_tier)tier[2]),
                 sw_tier_name((sw_tier)((tier[0] + tier[1] + tier[2]) % SW_TIERS)),
                 variant % 5 < 3 ? "" : ",trained=nvme");
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
    sw_units_destroy(adapted.with);
}

static void placements_give_the_same_bits_untied(void **state) {
    compare_placements(SW_F32, SW_OPTIMIZER_FP32, false, (struct sw_tuning){.freeze = LEADING}, 1, *state);
}

static void placements_give_the_same_bits_tied_with_narrow_state(void **state) {
    compare_placements(SW_BF16, SW_OPTIMIZER_8BIT, true, (struct sw_tuning){.freeze = LEADING}, 1, *state);
}

static void placements_give_the_same_bits_with_frozen_tensors(void **state) {
    compare_placements(SW_F32, SW_OPTIMIZER_FP32, false, (struct sw_tuning){.freeze = "*.mlp.*,*norm*,blocks:2"}, FEW,
                       *state);
}

static void placements_give_the_same_bits_with_frozen_tensors_tied_with_narrow_state(void **state) {
    compare_placements(SW_BF16, SW_OPTIMIZER_8BIT, true, (struct sw_tuning){.freeze = "*wpe*,*attn*,blocks:1"}, FEW,
                       *state);
}

static void placements_give_the_same_bits_with_adapters(void **state) {
    compare_placements(SW_F32, SW_OPTIMIZER_FP32, false, (struct sw_tuning){.lora = {.rank = 4}}, FEW, *state);
}

static void placements_give_the_same_bits_with_dropout(void **state) {
    compare_placements(SW_BF16, SW_OPTIMIZER_FP32, false, (struct sw_tuning){.lora = {.rank = 4, .dropout = 0.2}}, FEW,
                       *state);
}

static void placements_give_the_same_bits_with_adapters_tied_with_narrow_state(void **state) {
    compare_placements(SW_BF16, SW_OPTIMIZER_8BIT, true,
                       (struct sw_tuning){.lora = {.rank = 8, .targets = "attention", .modules_to_save = "mlp.c_fc"}},
                       FEW, *state);
}

static void a_resumed_training_gives_the_same_bits(void **state) {
    static const char *const places[] = {"grads=nvme,optimizer=nvme", "weights=nvme,grads=host,optimizer=host",
                                         "grads=device,optimizer=device"};
    for (int variant = 0; variant < 9; variant++) {
        struct harness_spec spec = frozen_spec(SW_BF16, variant % 2 == 1);
        struct same_trace whole, parts;
        spec.shape.tuning.freeze = variant < 3 ? LEADING : "*.mlp.*,blocks:2";
        struct adapted adapted = {0};
        spec.shape.optimizer = (sw_optimizer_format)(variant % SW_OPTIMIZER_FORMATS);
        if (variant >= 6) {
            spec.shape.tuning = (struct sw_tuning){.lora = {.rank = 2, .dropout = variant == 6 ? 0.0 : 0.5}};
            fill_with_adapters(&spec, &adapted);
        }
        spec.rounding = SW_ROUND_STOCHASTIC;
        must(same_train(&spec, false, &whole));
        spec.place = places[variant / 2 % 3];
        spec.directory = *state;
        must(same_train_in_parts(&spec, STOPPED_STEP, &parts));
        must_equal(&whole, &parts, spec.place);
        same_free(&whole);
        same_free(&parts);
        end_watch(spec.place);
        sw_units_destroy(adapted.with);
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
        cmocka_unit_test(adapters_have_the_gradients_of_their_matrices),
        cmocka_unit_test(adapters_with_dropout_have_the_slopes_of_the_loss),
        cmocka_unit_test(dropout_is_of_training_alone),
        cmocka_unit_test_setup_teardown(placements_give_the_same_bits_with_dropout, harness_make_directory,
                                        harness_remove_directory),
        cmocka_unit_test_setup_teardown(placements_give_the_same_bits_with_adapters, harness_make_directory,
                                        harness_remove_directory),
        cmocka_unit_test_setup_teardown(placements_give_the_same_bits_with_adapters_tied_with_narrow_state,
                                        harness_make_directory, harness_remove_directory),
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
    return cmocka_run_group_tests(tests, NULL, free_whole_steps);
}
