/* Chooses a token from logits, with the filters of transformers in their order.
 *
 * A full sort of 150,000 logits per token would cost more than the choice is worth, so the most likely tokens are taken
 * from a heap one by one, until the filters need no more. Random numbers depend on seed and position alone: the same
 * text goes on in the same way however it is cut into calls. */
#include "run/inference/sampler.h"

#include "core/rng.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

/* Keeps the random numbers of sampling apart from other uses of the seed. */
#define SAMPLER_STREAM UINT64_C(0x73616d706c657200)

struct candidate {
    float logit;
    int32_t token;
};

/* The tokens partially sorted by logit. Only the few most likely are ever asked for, so the others need no order. */
struct sw_sampler {
    struct sw_sampler_spec spec;
    struct candidate *candidate; /* a heap of `heap` tokens, followed by the most likely ones in rising order */
    int64_t heap;
};

sw_status sw_sampler_create(const struct sw_sampler_spec *spec, struct sw_sampler **out) {
    struct sw_sampler *sampler = calloc(1, sizeof *sampler);
    if (sampler != NULL) {
        sampler->spec = *spec;
        sampler->candidate = calloc((size_t)spec->vocab, sizeof *sampler->candidate);
    }
    if (sampler == NULL || sampler->candidate == NULL) {
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
    free(sampler);
}

/* Orders tokens by logit. Of equal logits the higher token counts as likelier, as in transformers, whose nucleus drops
 * the lower tokens first. */
static bool is_likelier(struct candidate a, struct candidate b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token > b.token;
}

static void sift_down(struct sw_sampler *sampler, int64_t at) {
    struct candidate *heap = sampler->candidate, moved = heap[at];
    for (int64_t child; (child = 2 * at + 1) < sampler->heap; at = child) {
        if (child + 1 < sampler->heap && is_likelier(heap[child + 1], heap[child]))
            child++;
        if (!is_likelier(heap[child], moved))
            break;
        heap[at] = heap[child];
    }
    heap[at] = moved;
}

static void fill(struct sw_sampler *sampler, const float *logits) {
    sampler->heap = sampler->spec.vocab;
    for (int64_t t = 0; t < sampler->heap; t++)
        sampler->candidate[t] = (struct candidate){.logit = logits[t], .token = (int32_t)t};
    for (int64_t at = sampler->heap / 2 - 1; at >= 0; at--)
        sift_down(sampler, at);
}

/* Returns the token of a rank. Rank 0 is the most likely. */
static struct candidate ranked(struct sw_sampler *sampler, int64_t rank) {
    const int64_t place = sampler->spec.vocab - 1 - rank;
    while (sampler->heap > place) {
        const struct candidate likeliest = sampler->candidate[0];
        sampler->candidate[0] = sampler->candidate[--sampler->heap];
        sift_down(sampler, 0);
        sampler->candidate[sampler->heap] = likeliest;
    }
    return sampler->candidate[place];
}

/* Returns a probability relative to that of the most likely token. */
static double weight_of(const struct sw_sampler *sampler, struct candidate candidate, float best) {
    return exp(((double)candidate.logit - (double)best) / sampler->spec.temperature);
}

/* Counts the tokens that top_k keeps: the most likely ones, and those whose logits equal that of the last. */
static int64_t count_top_k(struct sw_sampler *sampler) {
    const int64_t vocab = sampler->spec.vocab;
    int64_t count = sampler->spec.top_k;
    if (count == 0 || count >= vocab)
        return vocab;
    const float last = ranked(sampler, count - 1).logit;
    while (count < vocab && ranked(sampler, count).logit == last)
        count++;
    return count;
}

/* Counts the tokens of the nucleus, the smallest set of the `most` likeliest whose probability reaches top_p. */
static int64_t count_nucleus(struct sw_sampler *sampler, int64_t most, float best) {
    const bool all = most == sampler->spec.vocab;
    double total = 0.0, reached = 0.0;
    int64_t count = 0;
    for (int64_t i = 0; i < most; i++)
        total += weight_of(sampler, all ? sampler->candidate[i] : ranked(sampler, i), best);
    while (count < most && (count == 0 || reached < sampler->spec.top_p * total))
        reached += weight_of(sampler, ranked(sampler, count++), best);
    return count;
}

/* Counts those of the `most` likeliest tokens that are at least min_p as probable as the best one. */
static int64_t count_probable(struct sw_sampler *sampler, int64_t most, float best) {
    int64_t count = 1;
    while (count < most && weight_of(sampler, ranked(sampler, count), best) >= sampler->spec.min_p)
        count++;
    return count;
}

/* Returns the most likely token, of equal ones the first. */
static int32_t likeliest(const float *logits, int64_t vocab) {
    int64_t best = 0;
    for (int64_t t = 1; t < vocab; t++)
        best = logits[t] > logits[best] ? t : best;
    return (int32_t)best;
}

/* Filters in the order of transformers: temperature, top_k, top_p, min_p. Each filter sees the probabilities of the
 * tokens that the one before kept. */
int32_t sw_sampler_choose(struct sw_sampler *sampler, const float *logits, uint64_t position) {
    const struct sw_sampler_spec *spec = &sampler->spec;
    if (spec->temperature <= 0)
        return likeliest(logits, spec->vocab);
    fill(sampler, logits);
    const float best = ranked(sampler, 0).logit;
    int64_t kept = count_top_k(sampler);
    if (spec->top_p < 1)
        kept = count_nucleus(sampler, kept, best);
    if (spec->min_p > 0)
        kept = count_probable(sampler, kept, best);
    const bool all = kept == spec->vocab;
    double total = 0.0;
    for (int64_t i = 0; i < kept; i++)
        total += weight_of(sampler, all ? sampler->candidate[i] : ranked(sampler, i), best);
    double left = sw_rng_uniform(spec->seed, SAMPLER_STREAM, position) * total;
    for (int64_t i = 0; i < kept; i++) {
        left -= weight_of(sampler, ranked(sampler, i), best);
        if (left < 0)
            return ranked(sampler, i).token;
    }
    return ranked(sampler, kept - 1).token;
}
