#include "train/config.h"

/* The GPT-2 family fixes everything but these dimensions. */
#define GPT2(vocab_, hidden_, layers_, heads_, positions_)                                                             \
    {                                                                                                                  \
        .family = "gpt2", .vocab = (vocab_), .hidden = (hidden_), .layers = (layers_), .heads = (heads_),              \
        .kv_heads = (heads_), .head_dim = (hidden_) / (heads_), .ffn = INT64_C(4) * (hidden_),                         \
        .max_positions = (positions_), .norm_epsilon = 1e-5, .init_std = 0.02, .activation = SW_GELU_TANH,             \
        .tied_embeddings = true,                                                                                       \
    }

enum { GPT2_VOCAB = 50257, BYTE_VOCAB = 256 };

static const struct sw_preset presets[] = {
    {"gpt2-tiny", "0.1M parameters, bytes: for tests", GPT2(BYTE_VOCAB, 64, 2, 4, 64)},
    {"gpt2-demo", "4.9M parameters, bytes: the demo", GPT2(BYTE_VOCAB, 256, 6, 4, 256)},
    {"gpt2-124m", "124M parameters, GPT-2 small", GPT2(GPT2_VOCAB, 768, 12, 12, 1024)},
    {"gpt2-355m", "355M parameters, GPT-2 medium", GPT2(GPT2_VOCAB, 1024, 24, 16, 1024)},
    {"gpt2-774m", "774M parameters, GPT-2 large", GPT2(GPT2_VOCAB, 1280, 36, 20, 1024)},
    {"gpt2-1.3b", "1.2B parameters, bytes: larger than small machines", GPT2(BYTE_VOCAB, 2048, 24, 16, 2048)},
    {"gpt2-1.5b", "1.56B parameters, GPT-2 XL", GPT2(GPT2_VOCAB, 1600, 48, 25, 1024)},
};
enum { PRESET_COUNT = sizeof presets / sizeof presets[0] };

const struct sw_preset *sw_preset_at(int index) {
    return index >= 0 && index < PRESET_COUNT ? &presets[index] : NULL;
}
