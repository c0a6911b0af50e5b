#include "model/rope.h"

#include <math.h>

/* Rounds the frequency to fp32 as torch does, because an angle's error is the frequency's error times the position. */
static double base_frequency(const struct sw_model_config *config, int64_t i) {
    const float power = (float)(2 * i) / (float)config->head_dim;
    return 1.0f / (float)pow(config->rope.theta, power);
}

/* Divides low frequencies by the factor, keeps high ones, and mixes both in between, as Llama 3.1 does. */
static double llama3_frequency(const struct sw_rope *rope, double frequency) {
    const double wavelength = 2.0 * M_PI / frequency, original = (double)rope->original_positions;
    if (wavelength < original / rope->high_freq_factor)
        return frequency;
    if (wavelength > original / rope->low_freq_factor)
        return frequency / rope->factor;
    const double smooth =
        (original / wavelength - rope->low_freq_factor) / (rope->high_freq_factor - rope->low_freq_factor);
    return (1.0 - smooth) * frequency / rope->factor + smooth * frequency;
}

/* Returns the index of the frequency that turns this many times over the original positions. */
static double index_of_turns(const struct sw_model_config *config, double turns) {
    const double original = (double)config->rope.original_positions;
    return (double)config->head_dim * log(original / (turns * 2.0 * M_PI)) / (2.0 * log(config->rope.theta));
}

static double yarn_frequency(const struct sw_model_config *config, int64_t i, double frequency) {
    const struct sw_rope *rope = &config->rope;
    double low = index_of_turns(config, rope->beta_fast), high = index_of_turns(config, rope->beta_slow);
    if (rope->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0.0);
    high = fmin(high, (double)(config->head_dim - 1));
    const double width = low == high ? 0.001 : high - low;
    const double slowed = fmin(fmax(((double)i - low) / width, 0.0), 1.0);
    return slowed * frequency / rope->factor + (1.0 - slowed) * frequency;
}

static double frequency_of(const struct sw_model_config *config, int64_t i) {
    const double frequency = base_frequency(config, i);
    switch (config->rope.kind) {
    case SW_ROPE_LINEAR: return frequency / config->rope.factor;
    case SW_ROPE_LLAMA3: return llama3_frequency(&config->rope, frequency);
    case SW_ROPE_YARN: return yarn_frequency(config, i, frequency);
    default: return frequency;
    }
}

static double yarn_scale(double factor, double strength) {
    return factor <= 1.0 ? 1.0 : 0.1 * strength * log(factor) + 1.0;
}

/* Returns the factor by which YaRN scales cosines and sines, so that attention over long texts stays sharp. */
static double amplitude_of(const struct sw_rope *rope) {
    if (rope->kind != SW_ROPE_YARN)
        return 1.0;
    if (rope->attention_factor != 0.0)
        return rope->attention_factor;
    if (rope->mscale != 0.0 && rope->mscale_all_dim != 0.0)
        return yarn_scale(rope->factor, rope->mscale) / yarn_scale(rope->factor, rope->mscale_all_dim);
    return yarn_scale(rope->factor, 1.0);
}

void sw_rope_table(const struct sw_model_config *config, int64_t seq, float *table) {
    const int64_t half = config->head_dim / 2;
    const double amplitude = amplitude_of(&config->rope);
    for (int64_t i = 0; i < half; i++) {
        const float frequency = (float)frequency_of(config, i);
        for (int64_t t = 0; t < seq; t++) {
            const double angle = frequency * (float)t; /* rounded to fp32 before it is widened */
            table[t * config->head_dim + i] = (float)(cos(angle) * amplitude);
            table[t * config->head_dim + half + i] = (float)(sin(angle) * amplitude);
        }
    }
}
