#include "train/sampler.h"

#include "core/rng.h"

#include <math.h>
#include <stdlib.h>

/* Keeps sampling apart from the other uses of a seed. */
#define SAMPLER_STREAM UINT64_C(0x73616d706c657200)

struct candidate {
    float logit;
    int32_t token;
};

struct sw_sampler {
    struct sw_sampler_spec spec;
    struct candidate *candidate;
    double *weight;
};

sw_status sw_sampler_create(const struct sw_sampler_spec *spec, struct sw_sampler **out) {
    struct sw_sampler *sampler = calloc(1, sizeof *sampler);
    if (sampler != NULL) {
        sampler->spec = *spec;
        sampler->candidate = calloc((size_t)spec->vocab, sizeof *sampler->candidate);
        sampler->weight = calloc((size_t)spec->vocab, sizeof *sampler->weight);
    }
    if (sampler == NULL || sampler->candidate == NULL || sampler->weight == NULL) {
        sw_sampler_destroy(sampler);
        return sw_fail(SW_ERR_NOMEM, "no memory to sample from %lld tokens", (long long)spec->vocab);
    }
    *out = sampler;
    return SW_OK;
}

void sw_sampler_destroy(struct sw_sampler *sampler) {
    if (sampler == NULL)
        return;
    free(sampler->candidate);
    free(sampler->weight);
    free(sampler);
}

/* Most likely first; equal ones by token, so that the order is a function of the logits. */
static int by_logit(const void *left, const void *right) {
    const struct candidate *a = left, *b = right;
    if (a->logit != b->logit)
        return a->logit > b->logit ? -1 : 1;
    return (a->token > b->token) - (a->token < b->token);
}

int32_t sw_sampler_choose(struct sw_sampler *sampler, const float *logits, uint64_t place) {
    const struct sw_sampler_spec *spec = &sampler->spec;
    for (int64_t t = 0; t < spec->vocab; t++)
        sampler->candidate[t] = (struct candidate){.logit = logits[t], .token = (int32_t)t};
    qsort(sampler->candidate, (size_t)spec->vocab, sizeof *sampler->candidate, by_logit);
    if (spec->temperature <= 0)
        return sampler->candidate[0].token;
    int64_t kept = spec->top_k > 0 && spec->top_k < spec->vocab ? spec->top_k : spec->vocab;
    double total = 0.0;
    for (int64_t i = 0; i < kept; i++) {
        const double below_best = (double)sampler->candidate[i].logit - (double)sampler->candidate[0].logit;
        sampler->weight[i] = exp(below_best / spec->temperature);
        total += sampler->weight[i];
    }
    /* The smallest set of most likely tokens whose probability reaches top_p. */
    double nucleus = 0.0;
    for (int64_t i = 0; i < kept; i++) {
        nucleus += sampler->weight[i];
        if (nucleus >= spec->top_p * total)
            kept = i + 1;
    }
    double left = sw_rng_uniform(spec->seed, SAMPLER_STREAM, place) * nucleus;
    for (int64_t i = 0; i < kept; i++) {
        left -= sampler->weight[i];
        if (left < 0)
            return sampler->candidate[i].token;
    }
    return sampler->candidate[kept - 1].token;
}
