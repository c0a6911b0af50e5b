#include "model/hf/config.h"

#include "core/files/files.h"
#include "core/files/model_files.h"
#include "core/json.h"
#include "core/log.h"
#include "core/size.h"
#include "model/hf/family.h"
#include "model/hf/folder_contents.h"
#include "model/hf/quantized.h"

#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A GPT-2: the family fixes everything but these dimensions. */
#define GPT2(vocab_, hidden_, layers_, heads_, positions_)                                                             \
    {                                                                                                                  \
        .family = "gpt2", .vocab = (vocab_), .hidden = (hidden_), .layers = (layers_), .heads = (heads_),              \
        .kv_heads = (heads_), .head_dim = (hidden_) / (heads_), .ffn = INT64_C(4) * (hidden_),                         \
        .max_positions = (positions_), .norm_epsilon = 1e-5, .init_std = 0.02, .activation = SW_GELU_TANH,             \
        .tied_embeddings = true,                                                                                       \
    }

/* The switches that Llama, Mistral and Qwen share. */
#define LLAMA_SWITCHES                                                                                                 \
    .init_std = 0.02, .activation = SW_SILU, .norm = SW_NORM_RMS, .positions = SW_POSITIONS_ROTARY, .gated = true,     \
    .out_first = true

/* The fields that Llama and Qwen share. The hidden size is a multiple of head_dim in all of these. */
#define LLAMA_LIKE(vocab_, hidden_, layers_, heads_, kv_heads_, ffn_, positions_)                                      \
    LLAMA_SWITCHES, .vocab = (vocab_), .hidden = (hidden_), .layers = (layers_), .heads = (heads_),                    \
                    .kv_heads = (kv_heads_), .head_dim = (hidden_) / (heads_), .ffn = (ffn_),                          \
                    .max_positions = (positions_)

/* Llama 3: frequencies stretched from 8,192 positions. */
#define LLAMA(layers_, hidden_, heads_, ffn_, factor_, tied_)                                                          \
    {                                                                                                                  \
        .family = "llama", LLAMA_LIKE(LLAMA_VOCAB, hidden_, layers_, heads_, 8, ffn_, 131072), .norm_epsilon = 1e-5,   \
        .tied_embeddings = (tied_),                                                                                    \
        .rope = {.kind = SW_ROPE_LLAMA3,                                                                               \
                 .theta = 500000.0,                                                                                    \
                 .factor = (factor_),                                                                                  \
                 .low_freq_factor = 1.0,                                                                               \
                 .high_freq_factor = 4.0,                                                                              \
                 .original_positions = 8192,                                                                           \
                 .truncate = true},                                                                                    \
    }

#define QWEN2(vocab_, hidden_, layers_, heads_, kv_heads_, ffn_, positions_, epsilon_, tied_)                          \
    {                                                                                                                  \
        .family = "qwen2", LLAMA_LIKE(vocab_, hidden_, layers_, heads_, kv_heads_, ffn_, positions_),                  \
        .norm_epsilon = (epsilon_), .tied_embeddings = (tied_), .qkv_bias = true,                                      \
        .rope = {.theta = 1000000.0, .truncate = true},                                                                \
    }

/* Gemma 3, the model of text. Every sixth layer attends to all tokens. */
#define EVERY_SIXTH UINT64_C(0x0820820820820820)
#define GEMMA3(vocab_, hidden_, layers_, heads_, kv_heads_, head_dim_, ffn_, window_, query_width_, ...)               \
    {                                                                                                                  \
        .family = "gemma3_text", .vocab = (vocab_), .hidden = (hidden_), .layers = (layers_), .heads = (heads_),       \
        .kv_heads = (kv_heads_), .head_dim = (head_dim_), .ffn = (ffn_), .norm_epsilon = 1e-6, .init_std = 0.02,       \
        .activation = SW_GELU_TANH, .norm = SW_NORM_RMS, .positions = SW_POSITIONS_ROTARY, .gated = true,              \
        .out_first = true, .tied_embeddings = true, .qk_norm = true, .norm_of_results = true, .norm_from_one = true,   \
        .scaled_embedding = true, .window = (window_), .window_theta = 10000.0, .query_width = (query_width_),         \
        .full_layers = {EVERY_SIXTH & ((UINT64_C(1) << (layers_)) - 1)}, __VA_ARGS__                                   \
    }
#define GEMMA3_SHORT .max_positions = 32768, .rope = {.theta = 1000000.0, .truncate = true}
#define GEMMA3_LONG                                                                                                    \
    .max_positions = 131072, .rope = {.kind = SW_ROPE_LINEAR, .theta = 1000000.0, .factor = 8.0, .truncate = true}

/* Qwen2-MoE: a shared expert beside the others, and biases of queries, keys and values. */
#define QWEN2_MOE(hidden_, layers_, heads_, kv_heads_, shared_, positions_, ...)                                       \
    {                                                                                                                  \
        .family = "qwen2_moe", LLAMA_SWITCHES, .vocab = QWEN_VOCAB, .hidden = (hidden_), .layers = (layers_),          \
        .heads = (heads_), .kv_heads = (kv_heads_), .head_dim = 128, .ffn = (shared_), .max_positions = (positions_),  \
        .norm_epsilon = 1e-6, .qkv_bias = true, .router_aux_loss = 0.001,                                              \
        .rope = {.theta = 1000000.0, .truncate = true}, __VA_ARGS__                                                    \
    }
/* Mixtral: two of eight experts for each token. */
#define MIXTRAL(hidden_, layers_, heads_, ffn_, positions_)                                                            \
    {                                                                                                                  \
        .family = "mixtral", LLAMA_LIKE(32000, hidden_, layers_, heads_, 8, 0, positions_), .norm_epsilon = 1e-5,      \
        .experts = 8, .chosen_experts = 2, .expert_ffn = (ffn_), .normalises_chosen = true, .router_aux_loss = 0.001,  \
        .rope = {.theta = 1000000.0, .truncate = true},                                                                \
    }

/* gpt-oss: every second layer attends to all tokens, the others to a window. */
#define EVERY_SECOND UINT64_C(0xaaaaaaaaaaaaaaaa)
#define GPT_OSS(layers_, experts_)                                                                                     \
    {                                                                                                                  \
        .family = "gpt_oss", LLAMA_SWITCHES, .vocab = 201088, .hidden = 2880, .layers = (layers_), .heads = 64,        \
        .kv_heads = 8, .head_dim = 64, .max_positions = 131072, .norm_epsilon = 1e-5, .qkv_bias = true,                \
        .projection_bias = true, .experts = (experts_), .chosen_experts = 4, .expert_ffn = 2880,                       \
        .joined_experts = true, .normalises_chosen = true, .router_aux_loss = 0.9, .window = 128,                      \
        .full_layers = {EVERY_SECOND & ((UINT64_C(1) << (layers_)) - 1)},                                              \
        .rope = {.kind = SW_ROPE_YARN,                                                                                 \
                 .theta = 150000.0,                                                                                    \
                 .factor = 32.0,                                                                                       \
                 .beta_fast = 32.0,                                                                                    \
                 .beta_slow = 1.0,                                                                                     \
                 .original_positions = 4096},                                                                          \
    }

/* BLOOM: a norm behind the embedding, and biases of attention by distance, which no length ends. */
#define BLOOM(hidden_, layers_, heads_)                                                                                \
    {                                                                                                                  \
        .family = "bloom", .vocab = BLOOM_VOCAB, .hidden = (hidden_), .layers = (layers_), .heads = (heads_),          \
        .kv_heads = (heads_), .head_dim = (hidden_) / (heads_), .ffn = INT64_C(4) * (hidden_),                         \
        .max_positions = SW_CONFIG_MAX_POSITIONS, .norm_epsilon = 1e-5, .init_std = 0.02, .activation = SW_GELU_TANH,  \
        .tied_embeddings = true, .positions = SW_POSITIONS_ALIBI, .out_first = true, .embedding_norm = true,           \
        .qkv_by_head = true,                                                                                           \
    }

enum { BLOOM_VOCAB = 250880 };
enum { GEMMA3_TEXT_VOCAB = 262144, GEMMA3_VOCAB = 262208 };
enum { GPT2_VOCAB = 50257, BYTE_VOCAB = 256, LLAMA_VOCAB = 128256, QWEN_VOCAB = 151936, QWEN_LARGE_VOCAB = 152064 };

static const struct sw_preset presets[] = {
    {"gpt2-tiny", "0.1M parameters, bytes: for tests", GPT2(BYTE_VOCAB, 64, 2, 4, 64)},
    {"gpt2-demo", "4.9M parameters, bytes: the demo", GPT2(BYTE_VOCAB, 256, 6, 4, 256)},
    {"gpt2-124m", "124M parameters, GPT-2 small", GPT2(GPT2_VOCAB, 768, 12, 12, 1024)},
    {"gpt2-355m", "355M parameters, GPT-2 medium", GPT2(GPT2_VOCAB, 1024, 24, 16, 1024)},
    {"gpt2-774m", "774M parameters, GPT-2 large", GPT2(GPT2_VOCAB, 1280, 36, 20, 1024)},
    {"gpt2-1.3b", "1.21B parameters, bytes: the blocks of GPT-Neo 1.3B", GPT2(BYTE_VOCAB, 2048, 24, 16, 2048)},
    {"gpt2-1.5b", "1.56B parameters, GPT-2 XL", GPT2(GPT2_VOCAB, 1600, 48, 25, 1024)},
    {"megatron-8.3b", "8.31B parameters, the blocks of Megatron-LM 8.3B", GPT2(GPT2_VOCAB, 3072, 72, 24, 1024)},
    {"turing-nlg-17b", "17.2B parameters, the blocks of Turing-NLG", GPT2(GPT2_VOCAB, 4256, 78, 28, 1024)},
    {"gpt3-175b", "175B parameters, the blocks of GPT-3, all with full attention",
     GPT2(GPT2_VOCAB, 12288, 96, 96, 2048)},
    {"mt-nlg-530b", "530B parameters, the blocks of Megatron-Turing NLG", GPT2(GPT2_VOCAB, 20480, 105, 128, 2048)},
    {"llama-tiny",
     "0.1M parameters, bytes: for tests",
     {.family = "llama",
      LLAMA_LIKE(BYTE_VOCAB, 64, 2, 4, 2, 176, 64),
      .norm_epsilon = 1e-5,
      .rope = {.theta = 10000.0, .truncate = true}}},
    {"llama-1b", "1.24B parameters, Llama 3.2 1B", LLAMA(16, 2048, 32, 8192, 32.0, true)},
    {"llama-8b", "8.0B parameters, Llama 3.1 8B", LLAMA(32, 4096, 32, 14336, 8.0, false)},
    {"llama-65b",
     "65.3B parameters, LLaMA 65B",
     {.family = "llama",
      LLAMA_LIKE(32000, 8192, 80, 64, 64, 22016, 2048),
      .norm_epsilon = 1e-5,
      .rope = {.theta = 10000.0, .truncate = true}}},
    {"llama-70b", "70.6B parameters, Llama 3.1 70B", LLAMA(80, 8192, 64, 28672, 8.0, false)},
    {"qwen2.5-0.5b", "494M parameters, Qwen2.5 0.5B", QWEN2(QWEN_VOCAB, 896, 24, 14, 2, 4864, 32768, 1e-6, true)},
    {"qwen2.5-1.5b", "1.54B parameters, Qwen2.5 1.5B", QWEN2(QWEN_VOCAB, 1536, 28, 12, 2, 8960, 131072, 1e-6, true)},
    {"qwen2.5-3b", "3.09B parameters, Qwen2.5 3B", QWEN2(QWEN_VOCAB, 2048, 36, 16, 2, 11008, 32768, 1e-6, true)},
    {"qwen2.5-7b", "7.62B parameters, Qwen2.5 7B",
     QWEN2(QWEN_LARGE_VOCAB, 3584, 28, 28, 4, 18944, 131072, 1e-6, false)},
    {"qwen2.5-14b", "14.8B parameters, Qwen2.5 14B",
     QWEN2(QWEN_LARGE_VOCAB, 5120, 48, 40, 8, 13824, 131072, 1e-5, false)},
    {"phi-4",
     "14.7B parameters, Phi-4",
     {.family = "phi3",
      LLAMA_LIKE(100352, 5120, 40, 40, 10, 17920, 16384),
      .norm_epsilon = 1e-5,
      .rope = {.theta = 250000.0, .truncate = true}}},
    {"gemma3-270m", "268M parameters, Gemma 3 270M",
     GEMMA3(GEMMA3_TEXT_VOCAB, 640, 18, 4, 1, 256, 2048, 512, 256, GEMMA3_SHORT)},
    {"gemma3-1b", "1.0B parameters, Gemma 3 1B",
     GEMMA3(GEMMA3_TEXT_VOCAB, 1152, 26, 4, 1, 256, 6912, 512, 256, GEMMA3_SHORT)},
    {"gemma3-4b", "3.9B parameters, the text model of Gemma 3 4B",
     GEMMA3(GEMMA3_VOCAB, 2560, 34, 8, 4, 256, 10240, 1024, 256, GEMMA3_LONG)},
    {"gemma3-12b", "11.8B parameters, the text model of Gemma 3 12B",
     GEMMA3(GEMMA3_VOCAB, 3840, 48, 16, 8, 256, 15360, 1024, 256, GEMMA3_LONG)},
    {"gemma3-27b", "27.0B parameters, the text model of Gemma 3 27B",
     GEMMA3(GEMMA3_VOCAB, 5376, 62, 32, 16, 128, 21504, 1024, 168, GEMMA3_LONG)},
    {"mixtral-8x7b", "46.7B parameters, 12.9B of them for each token, Mixtral 8x7B",
     MIXTRAL(4096, 32, 32, 14336, 32768)},
    {"mixtral-8x22b", "141B parameters, 39.2B of them for each token, Mixtral 8x22B",
     MIXTRAL(6144, 56, 48, 16384, 65536)},
    {"qwen3-30b-a3b",
     "30.5B parameters, 3.35B of them for each token, Qwen3 30B",
     {.family = "qwen3_moe",
      LLAMA_SWITCHES,
      .vocab = QWEN_VOCAB,
      .hidden = 2048,
      .layers = 48,
      .heads = 32,
      .kv_heads = 4,
      .head_dim = 128,
      .max_positions = 40960,
      .norm_epsilon = 1e-6,
      .qk_norm = true,
      .experts = 128,
      .chosen_experts = 8,
      .router_aux_loss = 0.001,
      .expert_ffn = 768,
      .normalises_chosen = true,
      .rope = {.theta = 1000000.0, .truncate = true}}},
    {"qwen1.5-moe-a2.7b", "14.3B parameters, 2.69B of them for each token, Qwen1.5",
     QWEN2_MOE(2048, 24, 16, 16, 5632, 8192, .experts = 60, .chosen_experts = 4, .expert_ffn = 1408)},
    {"qwen2-57b-a14b", "57.4B parameters, 14.2B of them for each token, Qwen2 57B",
     QWEN2_MOE(3584, 28, 28, 4, 20480, 131072, .experts = 64, .chosen_experts = 8, .expert_ffn = 2560)},
    {"bloom-560m", "559M parameters, BLOOM 560M", BLOOM(1024, 24, 16)},
    {"bloom-1b1", "1.07B parameters, BLOOM 1.1B", BLOOM(1536, 24, 16)},
    {"bloom-1b7", "1.72B parameters, BLOOM 1.7B", BLOOM(2048, 24, 16)},
    {"bloom-3b", "3.00B parameters, BLOOM 3B", BLOOM(2560, 30, 32)},
    {"bloom-7b1", "7.07B parameters, BLOOM 7.1B", BLOOM(4096, 30, 32)},
    {"bloom-176b", "176B parameters, BLOOM", BLOOM(14336, 70, 112)},
    {"gpt-oss-20b", "20.9B parameters, 4.19B of them for each token, gpt-oss 20B", GPT_OSS(24, 32)},
    {"gpt-oss-120b", "117B parameters, 5.71B of them for each token, gpt-oss 120B", GPT_OSS(36, 128)},
};
enum { PRESET_COUNT = sizeof presets / sizeof presets[0] };

const struct sw_preset *sw_preset_at(int index) {
    return index >= 0 && index < PRESET_COUNT ? &presets[index] : NULL;
}

/* Parses config.json by the tables of its family. */

/* Refuses what no family supports: weights quantized in other ways than the two that can be read, and multimodal
 * models, whose language model is nested in config.json. */
static sw_status refuse_other_kinds(const json_t *root, const char *origin) {
    const json_t *text = sw_config_field_of(root, "text_config"), *type = sw_config_field_of(root, "model_type");
    struct sw_quantization quantization;
    SW_TRY(sw_quantization_read(root, origin, &quantization));
    if (text == NULL)
        return SW_OK;
    const char *outer = json_string_value(type), *inner = json_string_value(json_object_get(text, "model_type"));
    return sw_fail(
        SW_ERR_UNSUPPORTED,
        "%s describes a model of more than text ('%.40s'), whose language model ('%.40s') is in 'text_config': save "
        "only the language model with save_pretrained(), and give that folder; supported: %s",
        origin, outer != NULL ? outer : "", inner != NULL ? inner : "", sw_family_names());
}

/* Tells whether an architecture reads its input by an encoder, as T5 does: its blocks attend to another text, and its
 * data are pairs of texts. */
static bool has_encoder(const char *type) {
    static const char *const types[] = {"t5", "mt5", "umt5", "longt5", "switch_transformers", "bart", "mbart", NULL};
    for (int i = 0; types[i] != NULL; i++)
        if (strcmp(type, types[i]) == 0)
            return true;
    return false;
}

static sw_status find_family(const json_t *root, const char *origin, const struct sw_family **out) {
    const json_t *type = sw_config_field_of(root, "model_type");
    char shown[SW_SHOWN_CHARS];
    if (type == NULL)
        return sw_fail(SW_ERR_ARG, "%s has no 'model_type'; supported: %s", origin, sw_family_names());
    if (!json_is_string(type))
        return sw_fail(SW_ERR_ARG, "%s: 'model_type' is %s; it must be a name, supported: %s", origin,
                       sw_config_show(type, shown), sw_family_names());
    *out = sw_family_find(json_string_value(type));
    if (*out == NULL && has_encoder(json_string_value(type)))
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "%s: '%.40s' has an encoder beside its decoder, and only models of a decoder alone are "
                       "supported: %s",
                       origin, json_string_value(type), sw_family_names());
    if (*out == NULL)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "%s: the architecture '%.40s' is not supported by this version; supported: %s", origin,
                       json_string_value(type), sw_family_names());
    const json_t *architectures = sw_config_field_of(root, "architectures");
    if (architectures == NULL)
        return SW_OK;
    if (json_array_size(architectures) != 1 || !json_is_string(json_array_get(architectures, 0)) ||
        strcmp(json_string_value(json_array_get(architectures, 0)), (*out)->architecture) != 0)
        return sw_fail(SW_ERR_UNSUPPORTED, "%s: 'architectures' is %s; supported: [\"%s\"]", origin,
                       sw_config_show(architectures, shown), (*out)->architecture);
    return SW_OK;
}

/* Names of dropout rates. Training has no dropout, and a log line says so if a rate is above 0. */
static const char *const dropout_fields[] = {"attention_dropout", "resid_pdrop",    "embd_pdrop",
                                             "attn_pdrop",        "hidden_dropout", NULL};

/* Fields that conversion scripts, quantizers and web runtimes leave in the file. A log line says that they have no
 * effect. */
static const char *const passed_over_fields[] = {
    "is_llama_config", "max_sequence_length", "transformers.js_config", "unsloth_fixed", "unsloth_version", NULL,
};

/* Fields that never change what is trained. */
static const char *const harmless_fields[] = {
    "_name_or_path",
    "transformers_version",
    "torch_dtype",
    "dtype",
    "use_cache",
    "gradient_checkpointing",
    "task_specific_params",
    "finetuning_task",
    "problem_type",
    "id2label",
    "label2id",
    "num_labels",
    "_num_labels",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "sep_token_id",
    "decoder_start_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "suppress_tokens",
    "begin_suppress_tokens",
    "bad_words_ids",
    "tokenizer_class",
    "prefix",
    "is_decoder",
    "chunk_size_feed_forward",
    "torchscript",
    "use_bfloat16",
    "tf_legacy_loss",
    "return_dict",
    "return_dict_in_generate",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "max_length",
    "min_length",
    "do_sample",
    "early_stopping",
    "num_beams",
    "num_beam_groups",
    "diversity_penalty",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    "repetition_penalty",
    "length_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "num_return_sequences",
    "remove_invalid_values",
    "exponential_decay_length_penalty",
    "attn_implementation",
    "_attn_implementation",
    "_attn_implementation_autoset",
    NULL,
};

static bool name_in(const char *name, const char *const *names) {
    for (; *names != NULL; names++)
        if (strcmp(name, *names) == 0)
            return true;
    return false;
}

static bool is_known(const struct sw_family *family, const char *name) {
    static const char *const read_here[] = {"model_type", "architectures", "quantization_config", NULL};
    for (const struct sw_config_field *field = family->fields; field->name != NULL; field++)
        if (strcmp(name, field->name) == 0)
            return true;
    for (const struct sw_config_fixed *field = family->fixed; field->name != NULL; field++)
        if (strcmp(name, field->name) == 0)
            return true;
    return (family->activation_field != NULL && strcmp(name, family->activation_field) == 0) ||
           name_in(name, read_here) || name_in(name, family->special) || name_in(name, family->harmless) ||
           name_in(name, harmless_fields) || name_in(name, passed_over_fields) || name_in(name, dropout_fields);
}

/* Logs fields that have no effect here: a user may expect one. */
static void say_passed_over(json_t *root, const char *origin) {
    const char *name = NULL;
    json_t *value = NULL;
    char names[256] = "";
    size_t used = 0;
    json_object_foreach(root, name, value) {
        const bool dropout = name_in(name, dropout_fields) && json_number_value(value) != 0.0;
        if ((dropout || name_in(name, passed_over_fields)) && used < sizeof names)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s%s", used > 0 ? ", " : "", name,
                                     dropout ? " (training has no dropout)" : "");
    }
    if (used > 0)
        sw_log_info("%s: these fields have no effect here: %s", origin, names);
}

static sw_status refuse_unknown(const struct sw_family *family, json_t *root, const char *origin) {
    const char *name = NULL;
    json_t *value = NULL;
    json_object_foreach(root, name, value) {
        if (!json_is_null(value) && !is_known(family, name))
            return sw_fail(SW_ERR_UNSUPPORTED,
                           "%s: the field '%.60s' is not known for %s; remove it if it does not change the model",
                           origin, name, family->name);
    }
    return SW_OK;
}

static bool all_full_attention(const json_t *types) {
    bool full = json_is_array(types);
    for (size_t i = 0; full && i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));
        full = type != NULL && strcmp(type, "full_attention") == 0;
    }
    return full;
}

static bool is_allowed(const struct sw_config_fixed *field, const json_t *value) {
    switch (field->allowed) {
    case SW_ONLY_TRUE: return json_is_true(value);
    case SW_ONLY_FALSE: return json_is_false(value);
    case SW_ONLY_ZERO: return json_is_number(value) && json_number_value(value) == 0.0;
    case SW_ONLY_ONE: return json_number_value(value) == 1.0;
    case SW_ONLY_FULL_ATTENTION: return all_full_attention(value);
    case SW_ONLY_EMPTY: break;
    }
    return (json_is_object(value) && json_object_size(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0);
}

static sw_status refuse_fixed(const struct sw_family *family, const json_t *root, const char *origin) {
    static const char *const wanted[] = {
        [SW_ONLY_TRUE] = "true",
        [SW_ONLY_FALSE] = "false",
        [SW_ONLY_EMPTY] = "absent or empty",
        [SW_ONLY_ZERO] = "0",
        [SW_ONLY_ONE] = "1",
        [SW_ONLY_FULL_ATTENTION] = "\"full_attention\" for each layer",
    };
    for (const struct sw_config_fixed *field = family->fixed; field->name != NULL; field++) {
        const json_t *value = sw_config_field_of(root, field->name);
        if (value == NULL)
            continue;
        char shown[SW_SHOWN_CHARS];
        if (!is_allowed(field, value))
            return sw_fail(SW_ERR_UNSUPPORTED, "%s: '%s' is %s, which is not supported; it must be %s", origin,
                           field->name, sw_config_show(value, shown), wanted[field->allowed]);
    }
    return SW_OK;
}

static sw_status read_activation(const struct sw_family *family, const json_t *root, const char *origin,
                                 struct sw_model_config *out) {
    const json_t *value = family->activation_field == NULL ? NULL : sw_config_field_of(root, family->activation_field);
    char shown[SW_SHOWN_CHARS], known[128] = "";
    size_t used = 0;
    if (value == NULL)
        return SW_OK;
    for (const struct sw_config_activation *a = family->activations; a->name != NULL; a++) {
        if (json_is_string(value) && strcmp(json_string_value(value), a->name) == 0) {
            out->activation = a->activation;
            return SW_OK;
        }
        if (used < sizeof known)
            used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", used > 0 ? ", " : "", a->name);
    }
    return sw_fail(SW_ERR_UNSUPPORTED, "%s: '%s' is %s; supported: %s", origin, family->activation_field,
                   sw_config_show(value, shown), known);
}

static sw_status parse_root(json_t *root, const char *origin, struct sw_model_config *out) {
    const struct sw_family *family = NULL;
    if (!json_is_object(root))
        return sw_fail(SW_ERR_ARG, "%s is not a model's configuration: it must be a JSON object", origin);
    SW_TRY(refuse_other_kinds(root, origin));
    SW_TRY(find_family(root, origin, &family));
    SW_TRY(refuse_unknown(family, root, origin));
    SW_TRY(refuse_fixed(family, root, origin));
    struct sw_model_config config = family->defaults;
    SW_TRY(sw_config_read_fields(family->fields, root, origin, family->title, &config));
    SW_TRY(read_activation(family, root, origin, &config));
    SW_TRY(family->derive(family, root, origin, &config));
    if (config.head_dim > SW_ATTENTION_MAX_HEAD_DIM)
        return sw_fail(SW_ERR_UNSUPPORTED, "%s: a head has %lld elements; supported are at most %d", origin,
                       (long long)config.head_dim, SW_ATTENTION_MAX_HEAD_DIM);
    say_passed_over(root, origin);
    *out = config;
    return SW_OK;
}

sw_status sw_config_parse(const char *text, const char *origin, struct sw_model_config *out) {
    json_t *root;
    const struct sw_json_source source = {.text = text, .bytes = strlen(text), .name = origin, .bad = SW_ERR_ARG};
    if (sw_download_fault(text, strlen(text)) != NULL)
        return sw_fail(SW_ERR_ARG, "%s is %s", origin, sw_download_fault(text, strlen(text)));
    SW_TRY(sw_json_decode(source, &root));
    const sw_status status = parse_root(root, origin, out);
    json_decref(root);
    return status;
}

enum { LEAST_DIGITS = 6, MOST_DIGITS = 17 };

static bool is_exact(double value, int digits) {
    char text[32];
    snprintf(text, sizeof text, "%.*g", digits, value);
    return strtod(text, NULL) == value;
}

/* Returns the fewest digits, at least `digits`, from which all numbers can be read back, so that 1e-05 is written
 * without its rounding error. */
static int exact_digits(json_t *value, int digits) {
    const char *name = NULL;
    json_t *inner = NULL;
    if (json_is_real(value)) {
        while (digits < MOST_DIGITS && !is_exact(json_real_value(value), digits))
            digits++;
    } else if (json_is_object(value)) {
        json_object_foreach(value, name, inner) digits = exact_digits(inner, digits);
    }
    for (size_t i = 0; i < json_array_size(value); i++)
        digits = exact_digits(json_array_get(value, i), digits);
    return digits;
}

char *sw_config_dump(json_t *root) {
    return sw_json_text(root, JSON_INDENT(2) | JSON_REAL_PRECISION(exact_digits(root, LEAST_DIGITS)));
}

static const char *activation_text(const struct sw_family *family, sw_activation activation) {
    const struct sw_config_activation *known = family->activations;
    while (known->name != NULL && known->activation != activation)
        known++;
    return known->name;
}

static int write_activation(json_t *root, const struct sw_family *family, const struct sw_model_config *config) {
    return family->activation_field == NULL
               ? 0
               : json_object_set_new(root, family->activation_field,
                                     json_string(activation_text(family, config->activation)));
}

sw_status sw_config_to_json(const struct sw_model_config *config, char **out) {
    const struct sw_family *family = sw_family_find(config->family);
    assert(family != NULL);
    json_t *root = json_pack("{s:s, s:[s]}", "model_type", family->name, "architectures", family->architecture);
    const bool failed = root == NULL || write_activation(root, family, config) != 0 ||
                        sw_config_write_fields(root, family->fields, config) != 0 || family->write(root, config) != 0;
    *out = failed ? NULL : sw_config_dump(root);
    json_decref(root);
    return *out != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to write a config.json");
}

/* A config.json has a few KiB; label maps can make it larger. */
#define CONFIG_LIMIT_BYTES ((size_t)1 << 24)

static sw_status load_file(const char *path, struct sw_model_config *out) {
    char *text;
    SW_TRY(sw_file_read_text(path, CONFIG_LIMIT_BYTES, &text));
    const sw_status status = sw_config_parse(text, path, out);
    free(text);
    return status;
}

static const struct sw_preset *find_preset(const char *name) {
    const struct sw_preset *preset = NULL;
    for (int i = 0; (preset = sw_preset_at(i)) != NULL; i++) {
        if (strcmp(preset->name, name) == 0)
            return preset;
    }
    return NULL;
}

static sw_status fail_unknown_model(const char *model) {
    char names[1024] = "";
    size_t used = 0;
    const struct sw_preset *preset = NULL;
    SW_TRY(sw_hub_refuse_name(model));
    for (int i = 0; (preset = sw_preset_at(i)) != NULL && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? ", " : "", preset->name);
    return sw_fail(SW_ERR_ARG, "the model '%s' is neither a folder or file on this machine nor a preset (%s)", model,
                   names);
}

sw_status sw_config_load(const char *model, struct sw_model_config *out) {
    struct stat info;
    const bool exists = stat(model, &info) == 0;
    const bool is_folder = exists && S_ISDIR(info.st_mode);
    if (exists && !is_folder)
        return load_file(model, out);
    if (is_folder) {
        char path[PATH_MAX];
        bool has_config;
        SW_TRY(sw_model_file_find(model, "config.json", path, &has_config));
        if (has_config)
            return load_file(path, out);
    }
    /* A folder without a config.json does not hide the preset of the same name. */
    const struct sw_preset *preset = find_preset(model);
    if (preset == NULL)
        return is_folder ? sw_folder_fail_without(model, "config.json") : fail_unknown_model(model);
    *out = preset->config;
    return SW_OK;
}

/* Models of the families that have no preset. */
static const struct sw_preset others[] = {{"mistral-7b",
                                           "7.25B parameters, Mistral 7B v0.3",
                                           {.family = "mistral",
                                            LLAMA_SWITCHES,
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
                                            LLAMA_SWITCHES,
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

/* The largest model of each family; those without a preset are in `others`. Phi-3 is not here, as its proportions are
 * about those of Qwen2.5. */
static const char *const largest[] = {"gpt2-1.5b", "llama-70b",     "mistral-7b",   "qwen2.5-14b",
                                      "qwen3-32b", "mixtral-8x22b", "qwen3-30b-a3b"};

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
    out->expert_ffn = sw_div_up(base->expert_ffn * out->hidden, base->hidden * FFN_MULTIPLE) * FFN_MULTIPLE;
    const int64_t inner = sw_max_i64(out->ffn, out->expert_ffn);
    if (sw_max_i64(sw_max_i64(out->hidden, inner), out->heads * out->head_dim) > SW_CONFIG_MAX_WIDTH)
        return sw_fail(SW_ERR_ARG, "a model of %lld layers would be wider than %lld", (long long)layers,
                       (long long)SW_CONFIG_MAX_WIDTH);
    return SW_OK;
}
