#include "core/size.h"
#include "run/data/data_internal.h"

#include <math.h>
#include <stdlib.h>

enum { BASELINE_MAX_VOCAB = 4096, PIECE_TOKENS = 16 * 1024 };

/* Counts of the training part, and a buffer for the tokens being counted. */
struct counts {
    int64_t vocab;
    uint32_t *single;  /* [vocab]: occurrences of a token */
    uint32_t *leading; /* [vocab]: occurrences of a token that another follows */
    uint32_t *pair;    /* [vocab][vocab]: occurrences of the second token right after the first */
    int64_t tokens;
    int32_t *piece; /* [PIECE_TOKENS] */
};

static void counts_free(struct counts *counts) {
    free(counts->single);
    free(counts->leading);
    free(counts->pair);
    free(counts->piece);
}

/* Allocates the counts. The caller frees them, even after a failure. */
static sw_status counts_allocate(struct counts *counts, int64_t vocab) {
    const size_t entries = (size_t)vocab;
    *counts = (struct counts){
        .vocab = vocab,
        .single = calloc(entries, sizeof *counts->single),
        .leading = calloc(entries, sizeof *counts->leading),
        .pair = calloc(entries * entries, sizeof *counts->pair),
        .piece = malloc(PIECE_TOKENS * sizeof *counts->piece),
    };
    if (counts->single != NULL && counts->leading != NULL && counts->pair != NULL && counts->piece != NULL)
        return SW_OK;
    return sw_fail(SW_ERR_NOMEM, "no memory to count the pairs of a vocabulary of %lld", (long long)vocab);
}

static sw_status count_training(struct counts *counts, const struct sw_data *data) {
    /* Counters of 32 bits halve the table. Text beyond their range would hardly change the models. */
    counts->tokens = sw_min_i64(data->train_tokens, UINT32_MAX);
    int32_t before = -1;
    for (int64_t first = 0; first < counts->tokens; first += PIECE_TOKENS) {
        const int64_t piece = sw_min_i64(PIECE_TOKENS, counts->tokens - first);
        SW_TRY(sw_token_stream_read(data->stream, first, piece, counts->piece));
        for (int64_t i = 0; i < piece; i++) {
            const int32_t token = counts->piece[i];
            counts->single[token]++;
            if (before >= 0) {
                counts->leading[before]++;
                counts->pair[(int64_t)before * counts->vocab + token]++;
            }
            before = token;
        }
    }
    return SW_OK;
}

static double unigram(const struct counts *counts, int32_t token) {
    return ((double)counts->single[token] + 1.0) / ((double)counts->tokens + (double)counts->vocab);
}

/* Add-one smoothing: one more pair is counted after every token, distributed like the unigram. */
static double bigram(const struct counts *counts, int32_t before, int32_t token) {
    const double pairs = (double)counts->pair[(int64_t)before * counts->vocab + token];
    return (pairs + unigram(counts, token)) / ((double)counts->leading[before] + 1.0);
}

/* Measures every token of the validation part except its first: the targets of a language model. */
static sw_status measure(const struct counts *counts, const struct sw_data *data, double *out_unigram_bits,
                         double *out_bigram_bits) {
    double unigram_sum = 0, bigram_sum = 0;
    int32_t before = -1;
    for (int64_t first = 0; first < data->validation_tokens; first += PIECE_TOKENS) {
        const int64_t piece = sw_min_i64(PIECE_TOKENS, data->validation_tokens - first);
        SW_TRY(sw_token_stream_read(sw_data_part_stream(data, SW_DATA_VALIDATION), data->validation_first + first,
                                    piece, counts->piece));
        for (int64_t i = 0; i < piece; i++) {
            const int32_t token = counts->piece[i];
            if (before >= 0) {
                unigram_sum -= log2(unigram(counts, token));
                bigram_sum -= log2(bigram(counts, before, token));
            }
            before = token;
        }
    }
    *out_unigram_bits = unigram_sum / (double)(data->validation_tokens - 1);
    *out_bigram_bits = bigram_sum / (double)(data->validation_tokens - 1);
    return SW_OK;
}

sw_status sw_data_baselines(struct sw_data *data, double *out_unigram_bits, double *out_bigram_bits) {
    if (data->vocab > BASELINE_MAX_VOCAB)
        return sw_fail(SW_ERR_UNSUPPORTED, "baselines are for vocabularies of up to %d entries; this one has %lld",
                       BASELINE_MAX_VOCAB, (long long)data->vocab);
    if (data->validation_tokens < 2)
        return sw_fail(SW_ERR_ARG, "baselines need validation data; give a part or a file of it");
    if (sw_token_stream_marked(data->stream) || sw_token_stream_marked(sw_data_part_stream(data, SW_DATA_VALIDATION)))
        return sw_fail(SW_ERR_UNSUPPORTED, "baselines count every token, but the data have a mask or documents");
    struct counts counts;
    sw_status status = counts_allocate(&counts, data->vocab);
    if (status == SW_OK)
        status = count_training(&counts, data);
    if (status == SW_OK)
        status = measure(&counts, data, out_unigram_bits, out_bigram_bits);
    counts_free(&counts);
    return status;
}
