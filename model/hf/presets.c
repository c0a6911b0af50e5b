#include "model/hf/config.h"

/* A GPT-2: the family fixes everything but these dimensions. */
#define GPT2(vocab_, hidden_, layers_, heads_, positions_)                                                             \
    {                                                                                                                  \
        .family = "gpt2", .vocab = (vocab_), .hidden = (hidden_), .layers = (layers_), .heads = (heads_),              \
        .kv_heads = (heads_), .head_dim = (hidden_) / (heads_), .ffn = INT64_C(4) * (hidden_),                         \
        .max_positions = (positions_), .norm_epsilon = 1e-5, .init_std = 0.02, .activation = SW_GELU_TANH,             \
        .tied_embeddings = true,                                                                                       \
    }

/* The fields that Llama and Qwen share. head_dim divides the hidden size in all of these. */
#define LLAMA_LIKE(vocab_, hidden_, layers_, heads_, kv_heads_, ffn_, positions_)                                      \
    .vocab = (vocab_), .hidden = (hidden_), .layers = (layers_), .heads = (heads_), .kv_heads = (kv_heads_),           \
    .head_dim = (hidden_) / (heads_), .ffn = (ffn_), .max_positions = (positions_), .init_std = 0.02,                  \
    .activation = SW_SILU, .norm = SW_NORM_RMS, .positions = SW_POSITIONS_ROTARY, .gated = true, .out_first = true

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

enum { GPT2_VOCAB = 50257, BYTE_VOCAB = 256, LLAMA_VOCAB = 128256, QWEN_VOCAB = 151936, QWEN_LARGE_VOCAB = 152064 };

static const struct sw_preset presets[] = {
    {"gpt2-tiny", "0.1M parameters, bytes: for tests", GPT2(BYTE_VOCAB, 64, 2, 4, 64)},
    {"gpt2-demo", "4.9M parameters, bytes: the demo", GPT2(BYTE_VOCAB, 256, 6, 4, 256)},
    {"gpt2-124m", "124M parameters, GPT-2 small", GPT2(GPT2_VOCAB, 768, 12, 12, 1024)},
    {"gpt2-355m", "355M parameters, GPT-2 medium", GPT2(GPT2_VOCAB, 1024, 24, 16, 1024)},
    {"gpt2-774m", "774M parameters, GPT-2 large", GPT2(GPT2_VOCAB, 1280, 36, 20, 1024)},
    {"gpt2-1.3b", "1.21B parameters, bytes: the blocks of GPT-Neo 1.3B", GPT2(BYTE_VOCAB, 2048, 24, 16, 2048)},
    {"gpt2-1.5b", "1.56B parameters, GPT-2 XL", GPT2(GPT2_VOCAB, 1600, 48, 25, 1024)},
    {"llama-tiny",
     "0.1M parameters, bytes: for tests",
     {.family = "llama",
      LLAMA_LIKE(BYTE_VOCAB, 64, 2, 4, 2, 176, 64),
      .norm_epsilon = 1e-5,
      .rope = {.theta = 10000.0, .truncate = true}}},
    {"llama-1b", "1.24B parameters, Llama 3.2 1B", LLAMA(16, 2048, 32, 8192, 32.0, true)},
    {"llama-8b", "8.0B parameters, Llama 3.1 8B", LLAMA(32, 4096, 32, 14336, 8.0, false)},
    {"llama-70b", "70.6B parameters, Llama 3.1 70B", LLAMA(80, 8192, 64, 28672, 8.0, false)},
    {"qwen2.5-0.5b", "494M parameters, Qwen2.5 0.5B", QWEN2(QWEN_VOCAB, 896, 24, 14, 2, 4864, 32768, 1e-6, true)},
    {"qwen2.5-1.5b", "1.54B parameters, Qwen2.5 1.5B", QWEN2(QWEN_VOCAB, 1536, 28, 12, 2, 8960, 131072, 1e-6, true)},
    {"qwen2.5-3b", "3.09B parameters, Qwen2.5 3B", QWEN2(QWEN_VOCAB, 2048, 36, 16, 2, 11008, 32768, 1e-6, true)},
    {"qwen2.5-7b", "7.62B parameters, Qwen2.5 7B",
     QWEN2(QWEN_LARGE_VOCAB, 3584, 28, 28, 4, 18944, 131072, 1e-6, false)},
    {"qwen2.5-14b", "14.8B parameters, Qwen2.5 14B",
     QWEN2(QWEN_LARGE_VOCAB, 5120, 48, 40, 8, 13824, 131072, 1e-5, false)},
};
enum { PRESET_COUNT = sizeof presets / sizeof presets[0] };

const struct sw_preset *sw_preset_at(int index) {
    return index >= 0 && index < PRESET_COUNT ? &presets[index] : NULL;
}
