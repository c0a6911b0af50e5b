#include "train/config_gpt2.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

static const char *activation_text(sw_activation activation) {
    for (size_t i = 0; i < SW_GPT2_ACTIVATIONS; i++) {
        if (sw_gpt2_activations[i].activation == activation)
            return sw_gpt2_activations[i].name;
    }
    return NULL;
}

/* The fewest digits that give both numbers back, so that 1e-05 is not written with its rounding error. */
static size_t exact_digits(double a, double b) {
    size_t digits = 6;
    for (; digits < 17; digits++) {
        char text_a[32], text_b[32];
        snprintf(text_a, sizeof text_a, "%.*g", (int)digits, a);
        snprintf(text_b, sizeof text_b, "%.*g", (int)digits, b);
        if (strtod(text_a, NULL) == a && strtod(text_b, NULL) == b)
            break;
    }
    return digits;
}

sw_status sw_config_to_json(const struct sw_model_config *config, char **out) {
    /* Only GPT-2's own vocabulary has an end of text; elsewhere null keeps transformers from using its default. */
    const bool has_end = config->vocab == SW_GPT2_VOCAB;
    json_t *root =
        json_pack("{s:s, s:[s], s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:f, s:f, s:b, s:b, s:f, s:f, s:f, s:o, s:o}",
                  "model_type", "gpt2", "architectures", SW_GPT2_ARCHITECTURE, "vocab_size", (json_int_t)config->vocab,
                  "n_positions", (json_int_t)config->max_positions, "n_embd", (json_int_t)config->hidden, "n_layer",
                  (json_int_t)config->layers, "n_head", (json_int_t)config->heads, "n_inner", (json_int_t)config->ffn,
                  "activation_function", activation_text(config->activation), "layer_norm_epsilon",
                  config->norm_epsilon, "initializer_range", config->init_std, "tie_word_embeddings",
                  (int)config->tied_embeddings, "scale_attn_weights", 1, "resid_pdrop", 0.0, "embd_pdrop", 0.0,
                  "attn_pdrop", 0.0, "bos_token_id", has_end ? json_integer(SW_GPT2_END_OF_TEXT) : json_null(),
                  "eos_token_id", has_end ? json_integer(SW_GPT2_END_OF_TEXT) : json_null());
    if (root == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to write a config.json");
    *out = json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(exact_digits(config->norm_epsilon, config->init_std)));
    json_decref(root);
    return *out != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to write a config.json");
}
