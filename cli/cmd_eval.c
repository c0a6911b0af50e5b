#include "cli/commands.h"
#include "cli/read_options.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/machine.h"
#include "core/size.h"
#include "run/data/data.h"
#include "run/data/text_data.h"
#include "run/inference/inference.h"
#include "run/samples.h"
#include "text/documents/text_reader.h"
#include "text/model_text.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { AUTO_SEQ = 1024, AUTO_PASS_TOKENS = 4096 };

struct evaluator {
    const struct sw_read_options *given;
    struct sw_ranks *ranks;
    int tensor_ranks;
    struct sw_source *source;
    struct sw_data *data;
    struct sw_inference inference;
    struct sw_model_text text; /* zeroed if there is no tokenizer */
    int64_t seq, batch;
};

struct measured {
    double loss, seconds;
    int64_t tokens, bytes; /* predicted tokens, and bytes of their text; 0: unknown */
};

static sw_status resolve_seq(struct evaluator *e) {
    const int64_t positions = sw_source_config(e->source)->max_positions;
    e->seq = e->given->seq == SW_OPTION_AUTO ? sw_min_i64(AUTO_SEQ, positions) : e->given->seq;
    if (e->seq > positions)
        return sw_fail(SW_ERR_ARG, "--seq %lld is longer than the model's %lld positions", (long long)e->seq,
                       (long long)positions);
    return SW_OK;
}

/* Opens the data before the weights are loaded, which takes longer. makes: tokenizes text that has no tokens yet. */
static sw_status open_data(struct evaluator *e, bool makes) {
    char made[PATH_MAX];
    const char *folder = sw_source_folder(e->source), *data = e->given->data;
    const int64_t threads = e->given->inference.threads;
    if (sw_model_text_is_there(folder))
        SW_TRY(sw_model_text_open(folder, &e->text));
    struct sw_text_data_spec text = {.model = folder,
                                     .chat_format = e->given->chat_format,
                                     .field = e->given->field,
                                     .skip_bad = e->given->skip_bad,
                                     .bos = e->given->bos,
                                     .coding = {.encoding = e->given->encoding, .lossy = e->given->lossy},
                                     .all_loss = e->given->loss == SW_LOSS_ALL,
                                     .seq = e->seq,
                                     .threads = threads > 0 ? (int)threads : sw_machine_cores(),
                                     .may_make = makes};
    if (e->text.tokenizer != NULL && sw_text_data_is(data, sw_source_config(e->source)->vocab)) {
        text.bos = sw_read_bos(e->given, e->source);
        SW_TRY(sw_text_data_find(&text, &data, 1, made));
        data = made;
    } else {
        SW_TRY(sw_text_data_refuse_flags(&text, data));
    }
    const struct sw_data_spec spec = {.format = {.type = e->given->token_type, .flag = "--token-type"},
                                      .vocab = sw_source_config(e->source)->vocab,
                                      .seq = e->seq,
                                      .validation_file = data};
    return sw_data_open(&spec, &e->data);
}

static sw_status open_model(struct evaluator *e) {
    const int64_t windows = sw_data_validation_windows(e->data);
    e->batch = e->given->micro_batch != SW_OPTION_AUTO ? e->given->micro_batch
                                                       : sw_max_i64(1, sw_min_i64(windows, AUTO_PASS_TOKENS / e->seq));
    const struct sw_inference_spec spec = {.source = e->source,
                                           .ranks = e->ranks,
                                           .tensor_ranks = e->tensor_ranks,
                                           .options = &e->given->inference,
                                           .batch = e->batch,
                                           .seq = e->seq,
                                           .documents = sw_data_has_documents(e->data)};
    return sw_inference_open(&spec, &e->inference);
}

/* Counts the bytes of the first targets with a loss. Special tokens have none. */
static sw_status count_bytes(struct evaluator *e, int64_t tokens, struct sw_tokens window, int64_t *out) {
    struct sw_text_decoder *decoder;
    struct sw_text_buffer text = {0};
    SW_TRY(sw_text_decoder_create(e->text.tokenizer, true, &decoder));
    sw_status status = SW_OK;
    for (int64_t w = 0; status == SW_OK && tokens > 0 && w < sw_data_validation_windows(e->data); w++) {
        status = sw_data_validation_window(e->data, w, window);
        for (int64_t t = 0; status == SW_OK && tokens > 0 && t < e->seq; t++) {
            if (window.targets[t] < 0)
                continue;
            status = sw_text_decode(decoder, window.targets[t], &text);
            *out += (int64_t)text.bytes;
            text.bytes = 0;
            tokens--;
        }
    }
    sw_text_decoder_destroy(decoder);
    free(text.data);
    return status;
}

static sw_status measure_bytes(struct evaluator *e, struct measured *m) {
    m->bytes = e->text.tokenizer == NULL && sw_token_stream_is_bytes(e->given->data) ? m->tokens : 0;
    if (e->text.tokenizer == NULL)
        return SW_OK;
    int32_t *tokens = calloc((size_t)e->seq * 3, sizeof *tokens);
    if (tokens == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a sequence of %lld tokens", (long long)e->seq);
    const struct sw_tokens window = {
        .inputs = tokens, .targets = tokens + e->seq, .document_start = tokens + 2 * e->seq};
    const sw_status status = count_bytes(e, m->tokens, window, &m->bytes);
    free(tokens);
    return status;
}

static sw_status print_result(const struct evaluator *e, const struct measured *m) {
    const double perplexity = exp(m->loss), bits = m->loss / M_LN2, rate = (double)m->tokens / m->seconds;
    const double a_byte = m->bytes > 0 ? bits * (double)m->tokens / (double)m->bytes : NAN;
    char text[SW_DATA_TEXT_CHARS];
    sw_log_info("%s: %s", e->given->data, sw_data_text(e->data, text));
    if (!e->given->json) {
        printf("loss %.6f  perplexity %.4f  %.4f bits a token  ", m->loss, perplexity, bits);
        if (m->bytes > 0)
            printf("%.4f bits a byte  ", a_byte);
        printf("(%s in windows of %lld, %.1f s, %.0f tokens/s)\n", SW_COUNT(m->tokens, "token"), (long long)e->seq,
               m->seconds, rate);
        return SW_OK;
    }
    json_t *root =
        json_pack("{s:f, s:f, s:f, s:o, s:I, s:I, s:f, s:f}", "loss", m->loss, "perplexity", perplexity,
                  "bits_per_token", bits, "bits_per_byte", m->bytes > 0 ? json_real(a_byte) : json_null(), "tokens",
                  (json_int_t)m->tokens, "seq", (json_int_t)e->seq, "seconds", m->seconds, "tokens_per_second", rate);
    return sw_command_print_json(root);
}

static sw_status measure(struct evaluator *e, struct measured *out) {
    const struct sw_evaluation evaluation = {
        .engine = e->inference.engine,
        .model = e->inference.job.model,
        .data = e->data,
        .batch = e->batch,
        .seq = e->seq,
        .micro_batches = 1,
        .ranks = e->ranks,
        .tensor_ranks = e->tensor_ranks,
        .max_tokens = e->given->most_tokens == SW_OPTION_AUTO ? INT64_MAX : e->given->most_tokens};
    const int64_t start_ns = sw_now_ns();
    struct sw_evaluated found;
    SW_TRY(sw_evaluate(&evaluation, &found));
    out->loss = found.loss;
    out->tokens = found.tokens;
    out->seconds = (double)(sw_now_ns() - start_ns) / 1e9;
    /* A perplexity that overflows is as useless as NaN, and JSON cannot hold it. */
    if (!isfinite(out->loss) || !isfinite(exp(out->loss)))
        return sw_fail(SW_ERR_ARG,
                       "the loss over %s of %s is %g, too large for a perplexity: the model's weights have "
                       "diverged; use an earlier export",
                       SW_COUNT(out->tokens, "token"), e->given->data, out->loss);
    return SW_OK;
}

static sw_status open_source(struct evaluator *e) {
    SW_TRY(sw_source_open_any(e->given->from, &(struct sw_run_moved){&e->given->nvme, e->given->model},
                              e->given->adapter, &e->source));
    return resolve_seq(e);
}

/* Rank 0 makes tokens of text; the other ranks find them in the cache. */
static sw_status open_tokens(struct evaluator *e) {
    const bool first = sw_ranks_rank(e->ranks) == 0;
    SW_TRY(sw_ranks_first(e->ranks, open_data(e, true)));
    return sw_ranks_agree_on_error(e->ranks, first ? SW_OK : open_data(e, false));
}

static sw_status open_all(void *context) {
    struct evaluator *e = context;
    sw_ranks_forget_error(e->ranks); /* the error of the previous attempt */
    SW_TRY(sw_ranks_agree_on_error(e->ranks, open_source(e)));
    SW_TRY(sw_read_same_step(e->ranks, e->source));
    SW_TRY(open_tokens(e));
    return open_model(e);
}

static void close_all(void *context) {
    struct evaluator *e = context;
    sw_inference_close(&e->inference);
    sw_data_close(e->data);
    sw_source_close(e->source);
    sw_model_text_close(&e->text);
    *e = (struct evaluator){.given = e->given, .ranks = e->ranks, .tensor_ranks = e->tensor_ranks};
}

/* Refuses a number of tokens if groups of ranks divide the windows. */
static sw_status check_tokens(const struct evaluator *e) {
    const int count = sw_ranks_count(e->ranks);
    return e->given->most_tokens == SW_OPTION_AUTO || count == e->tensor_ranks
               ? SW_OK
               : sw_fail(SW_ERR_USAGE,
                         "--tokens counts from the first window, and %d ranks share the windows out; leave it out, or "
                         "give --tensor %d",
                         count, count);
}

static sw_status evaluate(struct evaluator *e) {
    struct measured measured = {0};
    SW_TRY(sw_ranks_agree_on_error(e->ranks, sw_read_groups(e->ranks, &e->given->inference, 1, &e->tensor_ranks)));
    SW_TRY(sw_ranks_agree_on_error(e->ranks, check_tokens(e)));
    SW_TRY(sw_command_read_run(open_all, close_all, e));
    SW_TRY(measure(e, &measured));
    if (sw_ranks_rank(e->ranks) > 0)
        return SW_OK;
    SW_TRY(measure_bytes(e, &measured));
    return print_result(e, &measured);
}

static sw_status run(struct sw_ranks *ranks, const struct sw_read_options *given) {
    struct evaluator e = {.given = given, .ranks = ranks};
    const sw_status status = evaluate(&e);
    close_all(&e);
    return status;
}

int sw_command_eval(int argc, char **argv) {
    return sw_read_on_ranks(&sw_eval_command, argc, argv, run);
}
