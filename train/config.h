/* What a model is: read from a Hugging Face config.json, or a preset by name. */
#ifndef SW_TRAIN_CONFIG_H
#define SW_TRAIN_CONFIG_H

#include "core/status.h"
#include "kernels/device.h"

#include <stdbool.h>
#include <stdint.h>

enum { SW_CONFIG_NAME_CHARS = 64 };

/* Limits that keep every later size computation inside 64 bits. */
#define SW_CONFIG_MAX_LAYERS 4096
#define SW_CONFIG_MAX_WIDTH (INT64_C(1) << 20)
#define SW_CONFIG_MAX_VOCAB (INT64_C(1) << 24)
#define SW_CONFIG_MAX_POSITIONS (INT64_C(1) << 22)

struct sw_model_config {
    char family[SW_CONFIG_NAME_CHARS]; /* "gpt2" */
    int64_t vocab, hidden, layers, heads, kv_heads, head_dim, ffn, max_positions;
    double norm_epsilon;
    double init_std;
    sw_activation activation;
    bool tied_embeddings;
};

/* model: a folder that holds config.json, a config.json itself, or a preset's name. Every field of config.json is used,
 * known to be harmless, or refused by name. */
sw_status sw_config_load(const char *model, struct sw_model_config *out);
/* Parses the text of a config.json; origin names it in messages. */
sw_status sw_config_parse(const char *text, const char *origin, struct sw_model_config *out);
/* The config.json that transformers loads, malloc'ed; the caller frees it. */
sw_status sw_config_to_json(const struct sw_model_config *config, char **out);

struct sw_preset {
    const char *name;
    const char *what; /* one line for --help */
    struct sw_model_config config;
};
/* NULL after the last. */
const struct sw_preset *sw_preset_at(int index);

#endif
