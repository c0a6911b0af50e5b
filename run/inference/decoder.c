#include "run/inference/decoder.h"

#include "core/size.h"
#include "run/inference/logits.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Prompt tokens of one pass: enough to be bound by arithmetic, few enough to need little memory between layers. */
enum { PASS_TOKENS = 512 };

int64_t sw_decoder_left(int64_t positions) {
    return sw_max_i64(1, positions / 2);
}

sw_status sw_decoder_open(const struct sw_decoder_spec *spec, struct sw_decoder *out) {
    out->context = sw_min_i64(sw_source_config(spec->source)->max_positions, spec->most_tokens);
    const bool outgrows = spec->most_tokens > out->context;
    out->pass_tokens = sw_min_i64(PASS_TOKENS, outgrows ? sw_decoder_left(out->context) : spec->prompt_tokens);
    /* The ranks of a group share out the rows of a pass. */
    out->pass_tokens = sw_max_i64(out->pass_tokens, sw_min_i64(sw_ranks_count(spec->ranks), out->context));
    const struct sw_inference_spec inference = {.source = spec->source,
                                                .ranks = spec->ranks,
                                                .tensor_ranks = sw_ranks_count(spec->ranks),
                                                .options = spec->options,
                                                .batch = 1,
                                                .seq = out->pass_tokens,
                                                .context = out->context};
    return sw_inference_open(&inference, &out->inference);
}

void sw_decoder_close(struct sw_decoder *decoder) {
    sw_inference_close(&decoder->inference);
}

/* Runs one pass of `count` tokens, which adds the keys and values of `used` tokens after the first `past` to the cache.
 * The rest of the pass is padding: no token attends to it, and the next pass overwrites it. */
static sw_status pass(struct sw_decoder *decoder, const int32_t *tokens, int64_t past, int64_t used, int64_t count,
                      float *logits) {
    struct sw_engine *engine = decoder->inference.engine;
    int32_t *to = sw_engine_tokens(engine, 0);
    const struct sw_step_input input = {
        .kind = SW_STEP_LOGITS, .loss_tokens = 1, .row = used - 1, .past = past, .count = count, .logits = logits};
    struct sw_step_result result;
    memcpy(to, tokens + past, (size_t)used * sizeof *tokens);
    memset(to + used, 0, (size_t)(count - used) * sizeof *tokens);
    SW_TRY(sw_engine_begin(engine, &input));
    SW_TRY(sw_engine_wait(engine, &result));
    decoder->kept = past + used;
    return SW_OK;
}

sw_status sw_decoder_logits(struct sw_decoder *decoder, const int32_t *text, int64_t length, float *logits) {
    const bool begins = decoder->kept == 0;
    assert(length > decoder->first + decoder->kept);
    if (length - decoder->first > decoder->context) {
        decoder->first = length - (begins ? decoder->context : sw_decoder_left(decoder->context));
        decoder->kept = 0;
    }
    const int32_t *tokens = text + decoder->first;
    const int64_t seen = length - decoder->first;
    while (decoder->kept < seen) {
        /* The last pass of a prompt is full too, so it starts at tokens of the pass before and computes them again. */
        const int64_t count = seen - decoder->kept == 1 ? 1 : decoder->pass_tokens;
        const int64_t past = sw_max_i64(0, sw_min_i64(decoder->kept, seen - count));
        SW_TRY(pass(decoder, tokens, past, sw_min_i64(count, seen - past), count, logits));
    }
    struct sw_ranks *ranks = decoder->inference.ranks;
    return sw_logits_share(ranks, sw_ranks_count(ranks), sw_model_get_config(decoder->inference.model)->vocab, logits);
}
