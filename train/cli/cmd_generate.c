#include "core/clock.h"
#include "core/log.h"
#include "train/cli/commands.h"
#include "train/cli/read_options.h"
#include "train/data/token_stream.h"
#include "train/folder/source.h"
#include "train/run/decoder.h"
#include "train/run/sampler.h"
#include "train/text/model_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTE_VOCAB = 256 };

struct generator {
    const struct sw_read_options *options;
    struct sw_source *source;
    struct sw_decoder decoder;
    struct sw_sampler *sampler;
    int32_t *text; /* prompt and what was written */
    int64_t length, prompt_length;
    float *logits;
    struct sw_model_text model; /* without a tokenizer, the model's tokens are bytes, or are read and written as ids */
    struct sw_text_decoder *writing;
    struct sw_text_buffer written; /* text that is not printed yet */
};

static sw_status read_prompt_file(struct generator *g, const char *path, int64_t vocab) {
    struct sw_token_stream *stream;
    SW_TRY(sw_token_stream_open(&path, 1, vocab, (struct sw_token_format){.type = SW_TOKENS_AUTO}, &stream));
    g->prompt_length = sw_token_stream_tokens(stream);
    g->text = calloc((size_t)(g->prompt_length + g->options->max_tokens), sizeof *g->text);
    const sw_status status = g->text == NULL ? sw_fail(SW_ERR_NOMEM, "no memory for the prompt")
                                             : sw_token_stream_read(stream, 0, g->prompt_length, g->text);
    sw_token_stream_close(stream);
    return status;
}

static sw_status encode_prompt(const struct generator *g, struct sw_token_list *out) {
    const struct sw_text prompt = {g->options->prompt, strlen(g->options->prompt)};
    const struct sw_encode_options how = {.parse_special = true, .add_special = true};
    struct sw_text_encoder *encoder;
    SW_TRY(sw_text_encoder_create(g->model.tokenizer, &encoder));
    const sw_status status = sw_text_encode(encoder, prompt, how, out);
    sw_text_encoder_destroy(encoder);
    return status;
}

static sw_status take_bytes(const struct generator *g, struct sw_token_list *out) {
    for (const char *byte = g->options->prompt; *byte != 0; byte++)
        SW_TRY(sw_token_list_append(out, &(int32_t){(unsigned char)*byte}, 1));
    return SW_OK;
}

static sw_status read_prompt(struct generator *g) {
    const int64_t vocab = sw_source_config(g->source)->vocab;
    const char *folder = sw_source_folder(g->source);
    if (sw_model_text_is_there(folder))
        SW_TRY(sw_model_text_open(folder, &g->model));
    if (g->model.tokenizer != NULL)
        SW_TRY(sw_text_decoder_create(g->model.tokenizer, true, &g->writing));
    if (g->options->prompt_file != NULL)
        return read_prompt_file(g, g->options->prompt_file, vocab);
    if (g->model.tokenizer == NULL && vocab != BYTE_VOCAB)
        return sw_fail(SW_ERR_ARG,
                       "%s has no tokenizer.json to read --prompt with; give the prompt's ids with --tokens",
                       folder != NULL ? folder : g->options->from);
    struct sw_token_list prompt = {0};
    sw_status status = g->model.tokenizer != NULL ? encode_prompt(g, &prompt) : take_bytes(g, &prompt);
    if (status == SW_OK && prompt.count == 0)
        status = sw_fail(SW_ERR_ARG, "the prompt is empty; give at least one character");
    if (status == SW_OK)
        status = sw_token_list_reserve(&prompt, (size_t)g->options->max_tokens);
    if (status != SW_OK) {
        free(prompt.id);
        return status;
    }
    g->text = prompt.id;
    g->prompt_length = (int64_t)prompt.count;
    return SW_OK;
}

static sw_status open_model(struct generator *g) {
    const struct sw_decoder_spec spec = {.source = g->source,
                                         .options = &g->options->inference,
                                         .prompt_tokens = g->prompt_length,
                                         .most_tokens = g->prompt_length + g->options->max_tokens};
    return sw_decoder_open(&spec, &g->decoder);
}

static sw_status next_token(struct generator *g, int32_t *out) {
    SW_TRY(sw_decoder_logits(&g->decoder, g->text, g->length, g->logits));
    for (int64_t i = 0; i < sw_source_config(g->source)->vocab; i++)
        if (!isfinite(g->logits[i]))
            return sw_fail(SW_ERR_ARG, "the model's output after %lld tokens is not finite: its weights have diverged",
                           (long long)g->length);
    *out = sw_sampler_choose(g->sampler, g->logits, (uint64_t)g->length);
    return SW_OK;
}

static sw_status print_token(struct generator *g, int32_t token, bool first) {
    if (g->writing != NULL) {
        SW_TRY(sw_text_decode(g->writing, token, &g->written));
        if (g->written.bytes > 0)
            fwrite(g->written.data, 1, g->written.bytes, stdout);
        g->written.bytes = 0;
    } else if (sw_source_config(g->source)->vocab == BYTE_VOCAB) {
        putchar(token);
    } else {
        printf(first ? "%d" : " %d", token);
    }
    fflush(stdout);
    return SW_OK;
}

/* Prints what the last token left of a character. */
static sw_status print_end(struct generator *g) {
    if (g->writing != NULL) {
        SW_TRY(sw_text_decode_end(g->writing, &g->written));
        if (g->written.bytes > 0)
            fwrite(g->written.data, 1, g->written.bytes, stdout);
    }
    putchar('\n');
    fflush(stdout);
    return SW_OK;
}

static void say_context(const struct generator *g) {
    const int64_t positions = sw_source_config(g->source)->max_positions;
    if (g->prompt_length + g->options->max_tokens > positions + 1)
        sw_log_info("the model has %lld positions: where the text is longer, it is continued from its last %lld tokens",
                    (long long)positions, (long long)sw_decoder_left(positions));
}

static void say_speed(const struct generator *g, int64_t start_ns, int64_t first_ns, int64_t end_ns) {
    const int64_t more = g->length - g->prompt_length - 1;
    if (more > 0)
        sw_log_info("%lld tokens of prompt in %.2f s, then %.1f tokens/s", (long long)g->prompt_length,
                    (double)(first_ns - start_ns) * 1e-9, (double)more / ((double)(end_ns - first_ns) * 1e-9));
}

static sw_status open_all(void *context) {
    struct generator *g = context;
    SW_TRY(sw_source_open_any(g->options->from, &g->options->nvme, &g->source));
    SW_TRY(read_prompt(g));
    return open_model(g);
}

static void close_all(void *context) {
    struct generator *g = context;
    sw_decoder_close(&g->decoder);
    sw_source_close(g->source);
    sw_sampler_destroy(g->sampler);
    sw_text_decoder_destroy(g->writing);
    sw_model_text_close(&g->model);
    free(g->written.data);
    free(g->text);
    free(g->logits);
    *g = (struct generator){.options = g->options};
}

static sw_status generate(struct generator *g) {
    SW_TRY(sw_command_read_run(open_all, close_all, g));
    const struct sw_sampler_spec spec = {.vocab = sw_source_config(g->source)->vocab,
                                         .temperature = g->options->temperature,
                                         .top_k = g->options->top_k,
                                         .top_p = g->options->top_p,
                                         .seed = (uint64_t)g->options->seed};
    SW_TRY(sw_sampler_create(&spec, &g->sampler));
    g->logits = calloc((size_t)spec.vocab, sizeof *g->logits);
    if (g->logits == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the logits");
    say_context(g);
    const int64_t start_ns = sw_now_ns();
    for (g->length = 0; g->length < g->prompt_length; g->length++)
        SW_TRY(print_token(g, g->text[g->length], g->length == 0));
    int64_t first_ns = start_ns;
    for (int64_t n = 0; n < g->options->max_tokens; n++) {
        int32_t token;
        SW_TRY(next_token(g, &token));
        first_ns = n == 0 ? sw_now_ns() : first_ns;
        if (sw_model_text_ends(&g->model, token))
            break;
        g->text[g->length++] = token;
        SW_TRY(print_token(g, token, false));
    }
    SW_TRY(print_end(g));
    say_speed(g, start_ns, first_ns, sw_now_ns());
    return SW_OK;
}

static sw_status run(const void *given) {
    struct generator g = {.options = given};
    const sw_status status = generate(&g);
    close_all(&g);
    return status;
}

int sw_command_generate(int argc, char **argv) {
    struct sw_read_options given = {0};
    return sw_command_run(&sw_generate_command, argc, argv, &given, run);
}
