#include "model/hf/scale.h"

#include "core/size.h"

#include <string.h>

/* The switches that Mistral and Qwen3 share with Llama. */
#define LLAMA_LIKE                                                                                                     \
    .init_std = 0.02, .activation = SW_SILU, .norm = SW_NORM_RMS, .positions = SW_POSITIONS_ROTARY, .gated = true,     \
    .out_first = true

/* The families that have no preset. */
static const struct sw_preset others[] = {{"mistral-7b",
                                           "7.25B parameters, Mistral 7B v0.3",
                                           {.family = "mistral",
                                            LLAMA_LIKE,
                                            .vocab = 32768,
                                            .hidden = 4096,
                                            .layers = 32,
                                            .heads = 32,
                                            .kv_heads = 8,
                                            .head_dim = 128,
                                            .ffn = 14336,
                                            .max_positions = 32768,
                                            .norm_epsilon = 1e-5,
                                            .rope = {.theta = 1000000.0, .truncate = true}}},
                                          {"qwen3-32b",
                                           "32.8B parameters, Qwen3 32B",
                                           {.family = "qwen3",
                                            LLAMA_LIKE,
                                            .vocab = 151936,
                                            .hidden = 5120,
                                            .layers = 64,
                                            .heads = 64,
                                            .kv_heads = 8,
                                            .head_dim = 128,
                                            .ffn = 25600,
                                            .max_positions = 40960,
                                            .norm_epsilon = 1e-6,
                                            .qk_norm = true,
                                            .rope = {.theta = 1000000.0, .truncate = true}}}};

/* The largest model of each family; those that are no presets are in `others`. */
static const char *const largest[] = {"gpt2-1.5b", "llama-70b", "mistral-7b", "qwen2.5-14b", "qwen3-32b"};

const struct sw_preset *sw_proportions_at(int index) {
    if (index < 0 || index >= (int)(sizeof largest / sizeof largest[0]))
        return NULL;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strcmp(others[i].name, largest[index]) == 0)
            return &others[i];
    int preset = 0;
    while (strcmp(sw_preset_at(preset)->name, largest[index]) != 0)
        preset++;
    return sw_preset_at(preset);
}

sw_status sw_config_scale(const struct sw_model_config *base, int64_t layers, struct sw_model_config *out) {
    enum { FFN_MULTIPLE = 64 };
    const int64_t group = base->heads / base->kv_heads;
    if (layers < 1 || layers > SW_CONFIG_MAX_LAYERS)
        return sw_fail(SW_ERR_ARG, "a model has 1 to %d layers", SW_CONFIG_MAX_LAYERS);
    *out = *base;
    out->layers = layers;
    out->kv_heads = sw_max_i64(1, (2 * base->kv_heads * layers + base->layers) / (2 * base->layers));
    out->heads = out->kv_heads * group;
    out->hidden = base->hidden * out->heads / base->heads;
    out->ffn = sw_div_up(base->ffn * out->hidden, base->hidden * FFN_MULTIPLE) * FFN_MULTIPLE;
    if (sw_max_i64(sw_max_i64(out->hidden, out->ffn), out->heads * out->head_dim) > SW_CONFIG_MAX_WIDTH)
        return sw_fail(SW_ERR_ARG, "a model of %lld layers would be wider than %lld", (long long)layers,
                       (long long)SW_CONFIG_MAX_WIDTH);
    return SW_OK;
}
