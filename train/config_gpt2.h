/* What reading and writing a GPT-2 config.json have in common. */
#ifndef SW_TRAIN_CONFIG_GPT2_H
#define SW_TRAIN_CONFIG_GPT2_H

#include "train/config.h"

#define SW_GPT2_ARCHITECTURE "GPT2LMHeadModel"
enum { SW_GPT2_FFN_FACTOR = 4, SW_GPT2_VOCAB = 50257, SW_GPT2_END_OF_TEXT = 50256 };

struct sw_gpt2_activation {
    const char *name;
    sw_activation activation;
};
/* The first of an activation is the one written. */
static const struct sw_gpt2_activation sw_gpt2_activations[] = {
    {"gelu_new", SW_GELU_TANH}, {"gelu_pytorch_tanh", SW_GELU_TANH}, {"gelu_fast", SW_GELU_TANH}, {"gelu", SW_GELU_ERF},
    {"relu", SW_RELU},
};
enum { SW_GPT2_ACTIVATIONS = sizeof sw_gpt2_activations / sizeof sw_gpt2_activations[0] };

#endif
