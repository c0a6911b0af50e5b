/* Samples during training, by the training engine.
 *
 * A training plan keeps no KV cache, so each token is the forward pass of a whole micro-batch whose first sequence
 * holds the text. Attention is causal: whatever follows the text does not change its logits. A second plan with a cache
 * would be faster per token, but would take memory from training for a few prompts.
 *
 * Prompts are continued greedily, so samples of two steps differ by the weights only. */
#include "run/samples.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/size.h"
#include "run/inference/inference.h"
#include "text/documents/chat_template.h"
#include "text/model_text.h"
#include "text/unicode.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Evaluates as many windows at a time as a training step has sequences. */

/* Returns how many targets of a window count, at most `limit`, and sets the ones beyond it to -1, so that they do not
 * count. */
static int64_t count_targets(int32_t *targets, int64_t seq, int64_t limit) {
    int64_t counted = 0;
    for (int64_t t = 0; t < seq; t++) {
        if (counted == limit)
            targets[t] = -1;
        counted += targets[t] >= 0;
    }
    return counted;
}

void sw_evaluation_clear(struct sw_tokens window, int64_t seq) {
    memset(window.inputs, 0, (size_t)seq * sizeof *window.inputs);
    memset(window.targets, -1, (size_t)seq * sizeof *window.targets);
    if (window.document_start != NULL)
        memset(window.document_start, 0, (size_t)seq * sizeof *window.document_start);
}

/* Fills the tokens of one pass. Windows beyond the end get no targets. Returns in *out_tokens the number of targets
 * that count. */
static sw_status fill_pass(const struct sw_evaluation *e, int64_t first_window, int64_t limit, int64_t *out_tokens) {
    const int64_t windows = sw_data_validation_windows(e->data);
    *out_tokens = 0;
    for (int64_t m = 0; m < e->micro_batches; m++) {
        int32_t *const staged = sw_engine_tokens(e->engine, m);
        const struct sw_tokens tokens = sw_model_tokens(e->model, staged);
        double *reference = sw_model_reference(e->model, staged);
        for (int64_t b = 0; b < e->batch; b++) {
            const int64_t window = first_window + m * e->batch + b;
            const struct sw_tokens at = sw_tokens_from(tokens, b * e->seq);
            if (reference != NULL)
                reference[b] = window < windows ? e->reference[window] : (double)NAN;
            if (window < windows)
                SW_TRY(sw_data_validation_window(e->data, window, at));
            else
                sw_evaluation_clear(at, e->seq);
            *out_tokens += count_targets(at.targets, e->seq, limit - *out_tokens);
        }
    }
    return SW_OK;
}

struct sw_rewards sw_rewards_of(const double pair_sums[SW_PAIR_SUMS], int64_t pairs) {
    const double share = pairs > 0 ? 1.0 / (double)pairs : 0.0;
    struct sw_rewards rewards = {.pairs = pairs,
                                 .chosen = share * pair_sums[SW_PAIR_CHOSEN],
                                 .rejected = share * pair_sums[SW_PAIR_REJECTED],
                                 .accuracy = share * pair_sums[SW_PAIR_RIGHT]};
    rewards.margin = rewards.chosen - rewards.rejected;
    return rewards;
}

sw_status sw_evaluate(const struct sw_evaluation *e, struct sw_evaluated *out) {
    assert(e->max_tokens > 0);
    const int64_t windows = sw_data_validation_windows(e->data), tensor_ranks = sw_max_i64(1, e->tensor_ranks);
    const int64_t alike = tensor_ranks * sw_max_i64(1, e->stages); /* ranks that read the same data */
    const int64_t ranks = sw_ranks_count(e->ranks) / alike;
    const int64_t per_rank = e->batch * e->micro_batches;
    const int64_t own = per_rank * (sw_ranks_rank(e->ranks) / tensor_ranks % ranks);
    /* Counts all tokens that are read, unless tokens with a loss have a limit: then it counts those. */
    const bool limited = e->max_tokens < INT64_MAX;
    struct sw_long_work progress = sw_long_work_begin("evaluating", sw_min_i64(e->max_tokens, windows * e->seq));
    double sums[SW_PAIR_SUMS] = {0.0};
    int64_t tokens = 0;
    progress.unit = "tokens";
    assert(ranks == 1 || e->max_tokens == INT64_MAX);
    SW_TRY(sw_engine_settle(e->engine));
    for (int64_t first = 0; first < windows && tokens < e->max_tokens; first += per_rank * ranks) {
        int64_t pass_tokens;
        struct sw_step_result result;
        /* Either all ranks run the pass or none does. */
        SW_TRY(sw_ranks_agree_on_error(e->ranks, fill_pass(e, first + own, e->max_tokens - tokens, &pass_tokens)));
        const struct sw_step_input input = {.kind = SW_STEP_LOSS, .loss_tokens = pass_tokens};
        SW_TRY(sw_engine_begin(e->engine, &input));
        SW_TRY(sw_engine_wait(e->engine, &result));
        for (int i = 0; i < SW_PAIR_SUMS; i++)
            sums[i] += result.pair_sums[i];
        tokens += pass_tokens;
        const int64_t read = sw_min_i64(windows, first + per_rank * ranks) * e->seq;
        SW_TRY(sw_long_work_at(&progress, limited ? tokens * ranks : read));
    }
    sw_long_work_end(&progress);
    SW_TRY(sw_ranks_sum(e->ranks, &tokens));
    tokens /= alike;
    const int64_t pairs = e->reference != NULL ? windows / 2 : 0, counted = pairs > 0 ? pairs : tokens;
    *out = (struct sw_evaluated){.loss = counted > 0 ? sums[SW_PAIR_LOSS] / (double)counted : (double)NAN,
                                 .tokens = tokens,
                                 .rewards = sw_rewards_of(sums, pairs)};
    return SW_OK;
}

enum { BYTE_VOCAB = 256 };

struct sw_samples {
    int64_t vocab, seq, batch, most_tokens;
    int bos;                         /* SW_BOS_... */
    int count;                       /* prompts */
    const char *const *prompt;       /* `count` prompts, borrowed from the settings */
    struct sw_token_list *tokens;    /* the prompts' tokens, one entry per prompt */
    struct sw_text_buffer *said;     /* their continuations, one entry per prompt */
    struct sw_sample_record *record; /* their records for the log, one entry per prompt */
    struct sw_token_list text;       /* the text that grows; has room for `seq` tokens */
    struct sw_model_text model;      /* without a tokenizer, each byte is a token */
    struct sw_text_encoder *encoder;
    struct sw_text_decoder *decoder;
    struct sw_sampler *sampler;
    int32_t end_of_turn; /* token, or -1 if the prompts are not turns of a chat */
    float *logits;       /* [vocab] */
};

static sw_status encode_bytes(const char *prompt, struct sw_token_list *out) {
    for (const char *byte = prompt; *byte != '\0'; byte++)
        SW_TRY(sw_token_list_append(out, &(int32_t){(unsigned char)*byte}, 1));
    return SW_OK;
}

static sw_status encode_turn(const struct sw_samples *samples, const struct sw_chat_style *chat, struct sw_text prompt,
                             struct sw_token_list *out) {
    struct sw_marked_text marked = {0};
    struct sw_text_buffer loss = {0};
    const struct sw_chat_turn turn = {SW_CHAT_USER, prompt};
    sw_status status = sw_chat_render(chat, &turn, 1, (struct sw_chat_rendering){.opens_reply = true}, &marked);
    if (status == SW_OK)
        status = sw_marked_text_encode(samples->encoder, &marked, false, out, &loss);
    sw_marked_text_release(&marked);
    free(loss.data);
    return status;
}

static sw_status encode(const struct sw_samples *samples, const struct sw_chat_style *chat, const char *prompt,
                        struct sw_token_list *out) {
    const struct sw_text text = {prompt, strlen(prompt)};
    if (samples->encoder == NULL)
        return encode_bytes(prompt, out);
    if (chat->parsed != NULL)
        return encode_turn(samples, chat, text, out);
    return sw_prompt_encode(samples->encoder, &samples->model, samples->bos, text, out);
}

/* Opens the chat style of the model's folder. If spillway does not know one there, prompts stay plain text. A file that
 * cannot be read now is an error: the same run would otherwise say something else another time. */
static sw_status open_chat(struct sw_samples *samples, const struct sw_trainer *trainer, struct sw_chat_style *chat) {
    const char *format = trainer->run.settings.chat_format;
    const sw_status status = sw_chat_style_open(trainer->model_folder, format, samples->model.tokenizer, chat);
    if (status == SW_ERR_IO || status == SW_ERR_NOMEM)
        return status;
    if (status == SW_OK) {
        samples->end_of_turn = sw_tokenizer_find(samples->model.tokenizer, chat->end_of_turn);
    } else {
        sw_log_info("samples go on with their prompts as plain text, not as turns of a chat: %s",
                    sw_error_message(status));
        sw_error_clear();
    }
    return SW_OK;
}

static sw_status open_tokenizer(struct sw_samples *samples, const struct sw_trainer *trainer) {
    const char *folder = trainer->model_folder;
    assert(samples != NULL);
    if (!sw_model_text_is_there(folder))
        return samples->vocab == BYTE_VOCAB
                   ? SW_OK
                   : sw_fail(SW_ERR_ARG,
                             "--sample-every needs a tokenizer, but %s has no tokenizer.json; put the "
                             "model's there, or leave samples out by --sample-every 0",
                             folder != NULL ? folder : trainer->run.settings.model);
    SW_TRY(sw_model_text_open(folder, &samples->model));
    SW_TRY(sw_text_encoder_create(samples->model.tokenizer, &samples->encoder));
    return sw_text_decoder_create(samples->model.tokenizer, true, &samples->decoder);
}

static sw_status encode_prompts(struct sw_samples *samples, const struct sw_chat_style *chat) {
    for (int i = 0; i < samples->count; i++) {
        SW_TRY(encode(samples, chat, samples->prompt[i], &samples->tokens[i]));
        const int64_t tokens = (int64_t)samples->tokens[i].count;
        if (tokens == 0 || tokens >= samples->seq)
            return sw_fail(
                SW_ERR_ARG,
                "--sample-prompt '%.40s' has %lld tokens; give 1 to %lld, so that --seq %lld leaves room after them",
                samples->prompt[i], (long long)tokens, (long long)samples->seq - 1, (long long)samples->seq);
    }
    return SW_OK;
}

static sw_status open_prompts(struct sw_samples *samples, const struct sw_trainer *trainer) {
    struct sw_chat_style chat = {0};
    SW_TRY(open_tokenizer(samples, trainer));
    sw_status status = SW_OK;
    if (samples->encoder != NULL && sw_data_has_masks(trainer->data))
        status = open_chat(samples, trainer, &chat);
    if (status == SW_OK)
        status = encode_prompts(samples, &chat);
    sw_chat_style_release(&chat);
    return status;
}

/* Gives all ranks the tokens of a prompt; the first tensor group computes with them. */
static sw_status spread_tokens(struct sw_ranks *ranks, struct sw_token_list *tokens) {
    size_t count = tokens->count;
    SW_TRY(sw_ranks_spread(ranks, "prompt", &count, sizeof count));
    SW_TRY(sw_ranks_agree_on_error(ranks, sw_token_list_reserve(tokens, count)));
    tokens->count = count;
    return sw_ranks_spread(ranks, "prompt", tokens->id, (int64_t)(count * sizeof *tokens->id));
}

static sw_status allocate(struct sw_samples *samples) {
    samples->logits = calloc((size_t)samples->vocab, sizeof *samples->logits);
    samples->tokens = calloc((size_t)samples->count, sizeof *samples->tokens);
    samples->said = calloc((size_t)samples->count, sizeof *samples->said);
    samples->record = calloc((size_t)samples->count, sizeof *samples->record);
    if (samples->logits == NULL || samples->tokens == NULL || samples->said == NULL || samples->record == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for samples");
    SW_TRY(sw_token_list_reserve(&samples->text, (size_t)samples->seq));
    return sw_sampler_create(&(struct sw_sampler_spec){.vocab = samples->vocab, .temperature = 0.0, .top_p = 1.0},
                             &samples->sampler);
}

sw_status sw_samples_open(const struct sw_trainer *trainer, struct sw_samples **out) {
    static const char *const usual[] = {SW_SAMPLE_PROMPT};
    const struct sw_settings *settings = &trainer->run.settings;
    const struct sw_option_list *given = &settings->sample_prompt;
    *out = NULL;
    if (settings->sample_every == 0)
        return SW_OK;
    struct sw_samples *samples = calloc(1, sizeof *samples);
    if (samples != NULL)
        *samples = (struct sw_samples){.vocab = trainer->run.config.vocab,
                                       .seq = settings->seq,
                                       .bos = settings->bos,
                                       .batch = settings->micro_batch,
                                       .most_tokens = settings->sample_tokens,
                                       .count = given->count > 0 ? given->count : 1,
                                       .prompt = given->count > 0 ? (const char *const *)given->items : usual,
                                       .end_of_turn = -1};
    sw_status status = samples != NULL ? allocate(samples) : sw_fail(SW_ERR_NOMEM, "no memory for samples");
    status = sw_ranks_agree_on_error(trainer->ranks, status);
    if (status == SW_OK)
        status = sw_ranks_first(trainer->ranks, open_prompts(samples, trainer));
    assert(status != SW_OK || samples != NULL);
    for (int i = 0; status == SW_OK && i < samples->count; i++)
        status = spread_tokens(trainer->ranks, &samples->tokens[i]);
    if (status != SW_OK)
        sw_samples_close(samples);
    else
        *out = samples;
    return status;
}

void sw_samples_close(struct sw_samples *samples) {
    if (samples == NULL)
        return;
    for (int i = 0; samples->tokens != NULL && i < samples->count; i++)
        free(samples->tokens[i].id);
    for (int i = 0; samples->said != NULL && i < samples->count; i++)
        free(samples->said[i].data);
    free(samples->tokens);
    free(samples->said);
    free(samples->record);
    free(samples->text.id);
    free(samples->logits);
    sw_sampler_destroy(samples->sampler);
    sw_text_decoder_destroy(samples->decoder);
    sw_text_encoder_destroy(samples->encoder);
    sw_model_text_close(&samples->model);
    free(samples);
}

/* Computes the logits after the last token of the text, the same on all ranks of the first tensor group. */
static sw_status compute_logits(struct sw_samples *samples, struct sw_trainer *trainer) {
    const struct sw_tokens tokens = sw_model_tokens(trainer->job.model, sw_engine_tokens(trainer->engine, 0));
    const struct sw_token_list *text = &samples->text;
    const size_t rows = (size_t)(samples->batch * samples->seq);
    memset(tokens.inputs, 0, rows * sizeof *tokens.inputs);
    memset(tokens.targets, -1, rows * sizeof *tokens.targets);
    if (tokens.document_start != NULL)
        memset(tokens.document_start, 0, rows * sizeof *tokens.document_start);
    memcpy(tokens.inputs, text->id, text->count * sizeof *text->id);
    const struct sw_step_input input = {
        .kind = SW_STEP_LOGITS, .loss_tokens = 1, .row = (int64_t)text->count - 1, .logits = samples->logits};
    struct sw_step_result result;
    SW_TRY(sw_engine_begin(trainer->engine, &input));
    SW_TRY(sw_engine_wait(trainer->engine, &result));
    return sw_logits_share(trainer->ranks, (int)sw_settings_tensor_ranks(&trainer->run.settings), samples->vocab,
                           samples->logits);
}

/* Returns the most likely token, or -1 if it ends the text or the weights have diverged. */
static int32_t choose(const struct sw_samples *samples) {
    for (int64_t i = 0; i < samples->vocab; i++)
        if (!isfinite(samples->logits[i]))
            return -1;
    const int32_t token = sw_sampler_choose(samples->sampler, samples->logits, samples->text.count);
    return sw_model_text_ends(&samples->model, token) || token == samples->end_of_turn ? -1 : token;
}

/* Lets the text grow by up to `most_tokens`. Before each pass rank 0 decides whether there is one; after the last it
 * spreads the chosen token (-1: none). *out_stopped: a stop request ended the text. */
static sw_status grow(struct sw_samples *samples, struct sw_trainer *trainer, bool *out_stopped) {
    enum { PASS, ENDED, STOPPED };
    struct {
        int32_t next, token;
    } told = {PASS, -1};
    const bool chooses = sw_ranks_rank(trainer->ranks) == 0;
    for (int64_t n = 0;; n++) {
        if (n == samples->most_tokens || (int64_t)samples->text.count == samples->seq)
            told.next = ENDED;
        if (*trainer->stop)
            told.next = STOPPED;
        SW_TRY(sw_ranks_spread(trainer->ranks, "whether a sample goes on", &told, sizeof told));
        if (!chooses && told.token >= 0)
            SW_TRY(sw_token_list_append(&samples->text, &told.token, 1));
        *out_stopped = told.next == STOPPED;
        if (told.next != PASS)
            return SW_OK;
        SW_TRY(compute_logits(samples, trainer));
        told.token = chooses ? choose(samples) : -1;
        told.next = chooses && told.token < 0 ? ENDED : PASS;
        if (told.token >= 0)
            SW_TRY(sw_token_list_append(&samples->text, &told.token, 1));
    }
}

/* Writes the text of tokens into *out, as UTF-8. */
static sw_status decode(const struct sw_samples *samples, const int32_t *token, size_t count,
                        struct sw_text_buffer *out) {
    struct sw_text_buffer bytes = {0};
    sw_status status = SW_OK;
    for (size_t i = 0; status == SW_OK && i < count; i++)
        status = samples->decoder != NULL
                     ? sw_text_decode(samples->decoder, token[i], &bytes)
                     : sw_text_buffer_append(&bytes, (struct sw_text){(const char[]){(char)token[i]}, 1});
    if (status == SW_OK && samples->decoder != NULL)
        status = sw_text_decode_end(samples->decoder, &bytes);
    out->bytes = 0;
    if (status == SW_OK)
        status = sw_utf8_append_repaired(sw_text_of_buffer(&bytes), out, NULL);
    free(bytes.data);
    return status;
}

static sw_status sample(struct sw_samples *samples, struct sw_trainer *trainer, int i, bool *out_stopped) {
    const int64_t begin_ns = sw_now_ns();
    const struct sw_token_list *prompt = &samples->tokens[i];
    samples->text.count = 0;
    SW_TRY(sw_token_list_append(&samples->text, prompt->id, prompt->count));
    SW_TRY(grow(samples, trainer, out_stopped));
    const size_t grown = samples->text.count - prompt->count;
    SW_TRY(sw_ranks_first(trainer->ranks, decode(samples, samples->text.id + prompt->count, grown, &samples->said[i])));
    samples->record[i] = (struct sw_sample_record){.prompt = {samples->prompt[i], strlen(samples->prompt[i])},
                                                   .text = sw_text_of_buffer(&samples->said[i]),
                                                   .seconds = (double)(sw_now_ns() - begin_ns) * 1e-9};
    return SW_OK;
}

sw_status sw_samples_write(struct sw_samples *samples, struct sw_trainer *trainer, struct sw_steplog *log,
                           int64_t step) {
    bool stopped = false;
    SW_TRY(sw_engine_settle(trainer->engine));
    for (int i = 0; i < samples->count && !stopped; i++)
        SW_TRY(sample(samples, trainer, i, &stopped));
    return stopped ? SW_OK : sw_steplog_samples(log, step, samples->record, samples->count);
}
