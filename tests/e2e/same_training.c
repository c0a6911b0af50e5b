#include "tests/e2e/same_bits.h"

#include "core/rng.h"
#include "core/size.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct sw_model_config same_config = {
    .family = "gpt2",
    .vocab = 515,
    .hidden = 80,
    .layers = 4,
    .heads = 2,
    .kv_heads = 2,
    .head_dim = 40,
    .ffn = 320,
    .max_positions = 32,
    .norm_epsilon = 1e-5,
    .init_std = 0.1,
    .activation = SW_GELU_TANH,
    .tied_embeddings = true,
};

const struct sw_model_config same_rotary_config = {
    .family = "qwen3",
    .vocab = 515,
    .hidden = 80,
    .layers = 3,
    .heads = 6,
    .kv_heads = 2,
    .head_dim = 18,
    .ffn = 200,
    .max_positions = 32,
    .norm_epsilon = 1e-6,
    .init_std = 0.035,
    .activation = SW_SILU,
    .norm = SW_NORM_RMS,
    .positions = SW_POSITIONS_ROTARY,
    .gated = true,
    .out_first = true,
    .qkv_bias = true,
    .projection_bias = true,
    .qk_norm = true,
    .window = 7,
    .full_layers = {1},
    .rope = {.theta = 100.0, .truncate = true},
};

const struct sw_model_config same_matrix_config = {
    .family = "gpt2",
    .vocab = 515,
    .hidden = 128,
    .layers = 2,
    .heads = 2,
    .kv_heads = 2,
    .head_dim = 64,
    .ffn = 256,
    .max_positions = 32,
    .norm_epsilon = 1e-5,
    .init_std = 0.012,
    .activation = SW_GELU_TANH,
    .tied_embeddings = true,
};

const struct sw_model_config same_expert_config = {
    .family = "qwen3_moe",
    .vocab = 515,
    .hidden = 80,
    .layers = 3,
    .heads = 4,
    .kv_heads = 2,
    .head_dim = 20,
    .max_positions = 32,
    .norm_epsilon = 1e-6,
    .init_std = 0.05,
    .activation = SW_SILU,
    .tied_embeddings = true,
    .norm = SW_NORM_RMS,
    .positions = SW_POSITIONS_ROTARY,
    .gated = true,
    .out_first = true,
    .qk_norm = true,
    .experts = 5,
    .chosen_experts = 2,
    .expert_ffn = 52,
    .normalises_chosen = true,
    .rope = {.theta = 100.0, .truncate = true},
};

static bool is_on_gpu(void) {
    const char *device = getenv("SW_TEST_DEVICE");
    return device != NULL && strcmp(device, "cuda") == 0;
}

double same_clip(void) {
    return is_on_gpu() ? 2.5 : 1.3;
}

/* A GPU, which may be emulated, takes one sequence at once, and two micro-batches a step: tests of kernels and of
 * parity have several sequences there, and plans of three micro-batches run on the CPU. */
struct harness_spec same_spec(sw_dtype type) {
    return (struct harness_spec){
        .config = &same_config,
        .shape = {.type = type, .batch = is_on_gpu() ? 1 : 2, .seq = 24},
        .micro_batches = is_on_gpu() ? 2 : 3,
        .place = "grads=device,optimizer=device",
        .chunk_grains = 2,
        .ring_chunks = 2,
        .compute_threads = 1,
        .update_threads = 1,
        .seed = SAME_SEED,
    };
}

void same_use_experts(struct harness_spec *spec) {
    spec->config = &same_expert_config;
    spec->shape.router_aux_loss = 0.05;
    spec->shape.router_z_loss = 0.002;
}

struct harness_spec same_narrow_spec(sw_dtype type, sw_optimizer_format format, sw_rounding rounding) {
    struct harness_spec spec = same_spec(type);
    spec.shape.optimizer = format;
    spec.rounding = rounding;
    return spec;
}

void same_free(struct same_trace *trace) {
    free(trace->records);
    free(trace->grads);
    *trace = (struct same_trace){0};
}

static void note(const struct harness *harness, struct same_trace *trace, int64_t step,
                 const struct sw_step_result *result) {
    trace->loss[step - 1] = result->loss_sum;
    trace->grad_norm[step - 1] = result->grad_norm;
    trace->skipped[step - 1] = result->skipped;
    if (harness->plan->spec.tally == 0)
        return;
    const struct sw_model_tally tally = sw_model_tally(harness->model, sw_engine_tally(harness->engine));
    trace->aux_loss[step - 1] = tally.aux_loss;
    trace->z_loss[step - 1] = tally.z_loss;
}

sw_status same_run(struct harness *harness, int64_t first, int64_t last, bool ahead, struct same_trace *trace) {
    struct sw_step_result result;
    int64_t begun = first - 1;
    for (int64_t step = first; step <= last; step++) {
        while (begun < last && begun < step + (ahead ? SW_ENGINE_STEPS_AHEAD - 1 : 0))
            SW_TRY(harness_begin(harness, ++begun, SAME_CLIP));
        SW_TRY(harness_wait(harness, &result));
        note(harness, trace, step, &result);
    }
    return SW_OK;
}

sw_status same_finish(struct harness *harness, struct same_trace *trace) {
    trace->grains = harness_grains(harness);
    trace->grain_bytes = harness_grain_bytes(harness);
    trace->records = malloc((size_t)(trace->grains * trace->grain_bytes));
    trace->grads = malloc((size_t)trace->grains * SW_GRAIN_ELEMS * sizeof *trace->grads);
    if (trace->records == NULL || trace->grads == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the test's copy of the state");
    memset(trace->records, SAME_NOT_HELD, (size_t)(trace->grains * trace->grain_bytes));
    memset(trace->grads, SAME_NOT_HELD, (size_t)trace->grains * SW_GRAIN_ELEMS * sizeof *trace->grads);
    SW_TRY(harness_read_grads(harness, trace->grads));
    SW_TRY(harness_evaluate(harness, &trace->evaluation));
    return harness_read_records(harness, trace->records);
}

sw_status same_train(const struct harness_spec *spec, bool ahead, struct same_trace *trace) {
    struct harness harness;
    *trace = (struct same_trace){0};
    SW_TRY(harness_open(spec, &harness));
    sw_status status = same_run(&harness, 1, SAME_STEPS, ahead, trace);
    if (status == SW_OK)
        status = same_finish(&harness, trace);
    harness_close(&harness);
    if (spec->directory != NULL)
        harness_remove_store(spec->directory);
    return status;
}

/* Returns the frozen grains of a rank alone that no store keeps. */
static int64_t frozen_in_memory(const struct harness *harness) {
    const struct sw_units *units = harness->plan->spec.units;
    int64_t grains = 0;
    for (int64_t u = 0; u < units->count; u++)
        if (harness->plan->placement[u].tier[SW_WEIGHTS] != SW_NVME)
            grains += units->unit[u].trained_grain;
    return grains;
}

sw_status same_train_in_parts(const struct harness_spec *spec, int64_t stop, struct same_trace *trace) {
    struct harness_spec resumed = *spec;
    struct harness harness;
    *trace = (struct same_trace){0};
    resumed.resume = true;
    SW_TRY(harness_open(spec, &harness));
    sw_status status = same_run(&harness, 1, stop, false, trace);
    if (status == SW_OK)
        status = sw_engine_save(harness.engine);
    harness_close(&harness);
    if (status == SW_OK)
        status = harness_open(&resumed, &harness);
    if (status != SW_OK)
        return status;
    status = harness.first_step == stop
                 ? same_run(&harness, stop + 1, SAME_STEPS, false, trace)
                 : sw_fail(SW_ERR_INTERNAL, "resumed after step %lld", (long long)harness.first_step);
    if (status == SW_OK && spec->comm == NULL && harness.frozen_loaded != frozen_in_memory(&harness))
        status = sw_fail(SW_ERR_INTERNAL, "a resume loaded %lld frozen grains, and %lld live in memory",
                         (long long)harness.frozen_loaded, (long long)frozen_in_memory(&harness));
    if (status == SW_OK)
        status = same_finish(&harness, trace);
    harness_close(&harness);
    harness_remove_store(spec->directory);
    return status;
}

/* By their bits: no two kinds of zero or of NaN are equal. */
static bool differ(const void *a, const void *b, size_t bytes) {
    return memcmp(a, b, bytes) != 0;
}

/* Compares what every rank knows of the steps. */
static const char *steps_difference(const struct same_trace *a, const struct same_trace *b) {
    if (differ(a->loss, b->loss, sizeof a->loss))
        return "losses";
    if (differ(a->grad_norm, b->grad_norm, sizeof a->grad_norm))
        return "gradient norms";
    if (differ(a->skipped, b->skipped, sizeof a->skipped))
        return "skipped steps";
    if (differ(a->aux_loss, b->aux_loss, sizeof a->aux_loss) || differ(a->z_loss, b->z_loss, sizeof a->z_loss))
        return "losses of routers";
    return NULL;
}

const char *same_difference(const struct same_trace *a, const struct same_trace *b) {
    const char *what = steps_difference(a, b);
    if (what != NULL)
        return what;
    if (a->grains != b->grains || a->grain_bytes != b->grain_bytes)
        return "sizes";
    if (differ(a->grads, b->grads, (size_t)a->grains * SW_GRAIN_ELEMS * sizeof *a->grads))
        return "gradients of the last step";
    if (differ(a->records, b->records, (size_t)(a->grains * a->grain_bytes)))
        return "masters or moments";
    if (differ(&a->evaluation, &b->evaluation, sizeof a->evaluation))
        return "weights (by the loss of a fixed batch)";
    return NULL;
}

/* Returns how many grains, of grain_floats each, both have and differ. Another stage or turn may have the others.
 * *both: how many both have. */
static int64_t differing(const float *expected, const float *found, int64_t grains, int64_t grain_floats,
                         int64_t *both) {
    unsigned char nothing[sizeof(float)];
    int64_t count = 0;
    memset(nothing, SAME_NOT_HELD, sizeof nothing);
    for (int64_t g = 0; g < grains; g++) {
        const float *a = expected + g * grain_floats, *b = found + g * grain_floats;
        if (!differ(a, nothing, sizeof nothing) || !differ(b, nothing, sizeof nothing))
            continue;
        ++*both;
        count += differ(a, b, (size_t)grain_floats * sizeof *a);
    }
    return count;
}

const char *same_shard_difference(const struct same_trace *expected, const struct same_trace *found,
                                  int64_t least_compared) {
    int64_t records = 0, grads = 0;
    const char *what = steps_difference(expected, found);
    if (what != NULL)
        return what;
    if (differing(expected->grads, found->grads, found->grains, SW_GRAIN_ELEMS, &grads) > 0)
        return "gradients of the last step";
    if (differing(expected->records, found->records, found->grains, found->grain_bytes / (int64_t)sizeof(float),
                  &records) > 0)
        return "masters or moments";
    if (differ(&expected->evaluation, &found->evaluation, sizeof found->evaluation))
        return "weights (by the loss of a fixed batch)";
    return grads < least_compared || records < least_compared ? "fewer grains than a shard has" : NULL;
}

enum { PLAN_STREAM = 4711 };

uint32_t same_draw(uint64_t *counter, uint32_t below) {
    return sw_rng(SAME_SEED, PLAN_STREAM, (*counter)++).word[0] % below;
}

/* "state=tier", or shares of two or three tiers. */
static void draw_state(uint64_t *counter, const char *state, char *text, size_t chars) {
    static const char *const tiers[] = {"device", "host", "nvme"};
    const uint32_t percent = 20 + same_draw(counter, 50), second = same_draw(counter, 30);
    switch (same_draw(counter, 5)) {
    case 0: snprintf(text, chars, "%s=device:%u%%/host:%u%%/nvme", state, percent, second); break;
    case 1: snprintf(text, chars, "%s=host:%u%%/nvme", state, percent); break;
    default: snprintf(text, chars, "%s=%s", state, tiers[same_draw(counter, 3)]); break;
    }
}

void same_draw_place(uint64_t *counter, char text[SAME_PLACE_CHARS]) {
    static const char *const states[] = {"weights", "grads", "optimizer", "acts"};
    size_t used = 0;
    for (int s = 0; s < 4; s++) {
        char item[64];
        draw_state(counter, states[s], item, sizeof item);
        /* Speculation needs the whole optimizer on NVMe, so that is drawn more often. */
        if (s == 2 && same_draw(counter, 2) == 0)
            snprintf(item, sizeof item, "optimizer=nvme");
        /* So are updates that may begin ahead of other units'. */
        else if (s == 2 && same_draw(counter, 2) == 0)
            snprintf(item, sizeof item, "optimizer=host");
        else if (s == 0 && same_draw(counter, 3) == 0)
            snprintf(item, sizeof item, "weights=device");
        used += (size_t)snprintf(text + used, SAME_PLACE_CHARS - used, "%s%s", s == 0 ? "" : ",", item);
    }
}
