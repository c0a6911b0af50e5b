#include "cli/commands.h"
#include "cli/read_options.h"
#include "core/clock.h"
#include "core/files/files.h"
#include "core/log.h"
#include "core/size.h"
#include "run/data/token_stream.h"
#include "run/folder/source.h"
#include "run/inference/inference.h"
#include "text/documents/chat_template.h"
#include "text/model_text.h"

#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BYTE_VOCAB = 256, MOST_PROMPT_BYTES = 64 << 20 };
/* Room for keys and values of a chat, in tokens, unless the model has fewer positions. When it is full, the oldest
 * tokens are dropped. */
enum { CHAT_TOKENS = 8192, CHAT_PASS_TOKENS = 512 };

struct generator {
    const struct sw_read_options *options;
    struct sw_ranks *ranks; /* one tensor group: all ranks choose the same tokens, and rank 0 prints them */
    struct sw_source *source;
    struct sw_decoder decoder;
    struct sw_sampler *sampler;
    struct sw_token_list text; /* the prompt and what was generated */
    int64_t prompt_length;
    float *logits;
    bool *said;                 /* one per token of the vocabulary: whether the text has it */
    int64_t marked;             /* tokens of the text already entered in `said` */
    struct sw_model_text model; /* without a tokenizer, the model's tokens are bytes, or are read and written as ids */
    struct sw_text_encoder *encoder;
    struct sw_text_decoder *writing;
    struct sw_text_buffer written; /* text that is not printed yet */
    struct sw_chat_style chat;     /* with --chat */
    int32_t end_of_turn;           /* token, or -1 */
};

static sw_status read_token_file(struct generator *g, const char *path, int64_t vocab) {
    struct sw_token_stream *stream;
    SW_TRY(sw_token_stream_open(&path, 1, vocab, (struct sw_token_format){.type = SW_TOKENS_AUTO}, &stream));
    const int64_t tokens = sw_token_stream_tokens(stream);
    sw_status status = sw_token_list_reserve(&g->text, (size_t)tokens);
    if (status == SW_OK)
        status = sw_token_stream_read(stream, 0, tokens, g->text.id);
    if (status == SW_OK)
        g->text.count = (size_t)tokens;
    sw_token_stream_close(stream);
    return status;
}

static sw_status take_bytes(struct generator *g, const char *prompt) {
    for (const char *byte = prompt; *byte != 0; byte++)
        SW_TRY(sw_token_list_append(&g->text, &(int32_t){(unsigned char)*byte}, 1));
    return SW_OK;
}

static sw_status take_text(struct generator *g, const char *prompt) {
    const sw_status status = g->encoder == NULL
                                 ? take_bytes(g, prompt)
                                 : sw_prompt_encode(g->encoder, &g->model, sw_read_bos(g->options, g->source),
                                                    (struct sw_text){prompt, strlen(prompt)}, &g->text);
    if (status == SW_OK && g->text.count == 0)
        return sw_fail(SW_ERR_ARG, "the prompt is empty; give at least one character");
    return status;
}

static sw_status take_prompt_file(struct generator *g, const char *path) {
    char *prompt;
    SW_TRY(sw_file_read_text(path, MOST_PROMPT_BYTES, &prompt));
    const sw_status status = take_text(g, prompt);
    free(prompt);
    return status;
}

static sw_status open_tokenizer(struct generator *g, const char *folder) {
    if (!sw_model_text_is_there(folder))
        return SW_OK;
    SW_TRY(sw_model_text_open(folder, &g->model));
    SW_TRY(sw_text_encoder_create(g->model.tokenizer, &g->encoder));
    return sw_text_decoder_create(g->model.tokenizer, true, &g->writing);
}

static sw_status open_chat(struct generator *g, const char *folder) {
    SW_TRY(sw_chat_style_open(folder, g->options->chat_format, g->model.tokenizer, &g->chat));
    g->end_of_turn = sw_tokenizer_find(g->model.tokenizer, g->chat.end_of_turn);
    return SW_OK;
}

static sw_status read_prompt(struct generator *g) {
    const struct sw_read_options *options = g->options;
    const int64_t vocab = sw_source_config(g->source)->vocab;
    const char *folder = sw_source_folder(g->source);
    g->end_of_turn = -1;
    SW_TRY(open_tokenizer(g, folder));
    if (options->token_file != NULL)
        return read_token_file(g, options->token_file, vocab);
    if (g->encoder == NULL && (vocab != BYTE_VOCAB || options->chat))
        return sw_fail(SW_ERR_ARG, "%s has no tokenizer.json to read %s with; %s",
                       folder != NULL ? folder : options->from, options->chat ? "a chat" : "--prompt",
                       options->chat ? "a chat needs a model with one" : "give the prompt's ids with --tokens");
    if (options->chat)
        return open_chat(g, folder);
    return options->prompt_file != NULL ? take_prompt_file(g, options->prompt_file) : take_text(g, options->prompt);
}

static sw_status open_model(struct generator *g) {
    const struct sw_read_options *options = g->options;
    g->prompt_length = (int64_t)g->text.count;
    const struct sw_decoder_spec spec = {.source = g->source,
                                         .ranks = g->ranks,
                                         .options = &options->inference,
                                         .prompt_tokens = options->chat ? CHAT_PASS_TOKENS : g->prompt_length,
                                         .most_tokens =
                                             options->chat ? CHAT_TOKENS : g->prompt_length + options->max_tokens};
    return sw_decoder_open(&spec, &g->decoder);
}

/* Makes tokens less likely that the text already has (Keskar et al., arXiv 1909.05858). */
static void penalize(struct generator *g) {
    const float penalty = (float)g->options->repetition_penalty;
    for (; g->marked < (int64_t)g->text.count; g->marked++)
        g->said[g->text.id[g->marked]] = true;
    for (int64_t i = 0; penalty != 1 && i < sw_source_config(g->source)->vocab; i++)
        if (g->said[i])
            g->logits[i] = g->logits[i] > 0 ? g->logits[i] / penalty : g->logits[i] * penalty;
}

static sw_status next_token(struct generator *g, int32_t *out) {
    const int64_t length = (int64_t)g->text.count;
    SW_TRY(sw_decoder_logits(&g->decoder, g->text.id, length, g->logits));
    for (int64_t i = 0; i < sw_source_config(g->source)->vocab; i++)
        if (!isfinite(g->logits[i]))
            return sw_fail(SW_ERR_ARG, "the model's output after %s is not finite: its weights have diverged",
                           SW_COUNT(length, "token"));
    penalize(g);
    *out = sw_sampler_choose(g->sampler, g->logits, (uint64_t)length);
    return SW_OK;
}

static bool prints(const struct generator *g) {
    return sw_ranks_rank(g->ranks) == 0;
}

static sw_status print_token(struct generator *g, int32_t token, bool first) {
    if (!prints(g))
        return SW_OK;
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
    /* A launcher forwards lines: mpirun of Open MPI 5.0.7 loses parts of lines that arrive in pieces. */
    if (sw_ranks_count(g->ranks) == 1)
        fflush(stdout);
    return SW_OK;
}

/* Prints what the last token left of an incomplete character. */
static sw_status print_end(struct generator *g) {
    if (!prints(g))
        return SW_OK;
    if (g->writing != NULL) {
        SW_TRY(sw_text_decode_end(g->writing, &g->written));
        if (g->written.bytes > 0)
            fwrite(g->written.data, 1, g->written.bytes, stdout);
        g->written.bytes = 0;
    }
    putchar('\n');
    fflush(stdout);
    return SW_OK;
}

/* Times of milestones. */
struct times {
    int64_t start_ns, first_ns, end_ns; /* of the start, of the first new token, of the last one */
};

/* Generates tokens until one ends the text or the turn, and appends them. *out_end: the token that ended it, or -1. */
static sw_status write_tokens(struct generator *g, int32_t *out_end, struct times *times) {
    *out_end = -1;
    for (int64_t n = 0; n < g->options->max_tokens; n++) {
        int32_t token;
        SW_TRY(next_token(g, &token));
        times->first_ns = n == 0 ? sw_now_ns() : times->first_ns;
        if (sw_model_text_ends(&g->model, token) || token == g->end_of_turn) {
            *out_end = token;
            break;
        }
        SW_TRY(sw_token_list_append(&g->text, &token, 1));
        SW_TRY(print_token(g, token, false));
    }
    SW_TRY(print_end(g));
    times->end_ns = sw_now_ns();
    return SW_OK;
}

/* Appends a turn of the user, and what begins the model's. */
static sw_status take_turn(struct generator *g, struct sw_text said) {
    struct sw_marked_text marked = {0};
    struct sw_text_buffer loss = {0};
    const char *system = g->options->system;
    const bool begins = g->text.count == 0;
    struct sw_chat_turn turn[2] = {{SW_CHAT_USER, said}};
    size_t turns = 1;
    if (begins && system != NULL) {
        turn[1] = turn[0];
        turn[0] = (struct sw_chat_turn){SW_CHAT_SYSTEM, {system, strlen(system)}};
        turns = 2;
    }
    const struct sw_chat_rendering how = {.opens_reply = true, .continues = !begins};
    sw_status status = sw_chat_render(&g->chat, turn, turns, how, &marked);
    if (status == SW_OK)
        status = sw_marked_text_encode(g->encoder, &marked, false, &g->text, &loss);
    sw_marked_text_release(&marked);
    free(loss.data);
    return status;
}

/* Answers a turn. A reply that was cut off is ended too, because the next turn follows it. */
static sw_status answer(struct generator *g, struct sw_text said) {
    struct times times = {0};
    int32_t end;
    SW_TRY(take_turn(g, said));
    SW_TRY(write_tokens(g, &end, &times));
    if (end < 0 && prints(g))
        sw_log_info("the reply was cut off after --max-tokens %lld", (long long)g->options->max_tokens);
    return sw_token_list_append(&g->text, &g->end_of_turn, 1);
}

/* A line of standard input, without its end. */
struct line {
    char *text;
    size_t room;
    int64_t bytes; /* -1: end of input */
};

/* Waits for input, and keeps the other ranks' watchdogs fed meanwhile. Standard input must be unbuffered, since poll
 * does not see what a buffer holds. */
static void await_input(struct generator *g) {
    enum { TICK_MS = 1000 };
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    while (sw_ranks_count(g->ranks) > 1 && poll(&input, 1, TICK_MS) == 0)
        sw_ranks_tick(g->ranks);
}

static void read_line(struct generator *g, struct line *line) {
    if (isatty(STDIN_FILENO) && isatty(STDERR_FILENO))
        fputs("> ", stderr);
    await_input(g);
    line->bytes = getline(&line->text, &line->room, stdin);
    while (line->bytes > 0 && (line->text[line->bytes - 1] == '\n' || line->text[line->bytes - 1] == '\r'))
        line->bytes--;
}

/* Gives every rank the line that rank 0 has read. */
static sw_status share_line(struct generator *g, struct line *line) {
    sw_status status = SW_OK;
    SW_TRY(sw_ranks_spread(g->ranks, "length of a line", &line->bytes, sizeof line->bytes));
    if (line->bytes > 0 && !prints(g)) {
        free(line->text);
        line->text = malloc((size_t)line->bytes);
        status = line->text != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory for a line");
    }
    SW_TRY(sw_ranks_agree_on_error(g->ranks, status));
    return line->bytes > 0 ? sw_ranks_spread(g->ranks, "line", line->text, line->bytes) : SW_OK;
}

/* Answers each line of standard input. */
static sw_status answer_lines(struct generator *g, struct line *line) {
    for (;;) {
        if (prints(g))
            read_line(g, line);
        SW_TRY(share_line(g, line));
        if (line->bytes < 0)
            return SW_OK;
        if (line->bytes > 0)
            SW_TRY(answer(g, (struct sw_text){line->text, (size_t)line->bytes}));
    }
}

/* Answers the first turn, if --prompt gives one, and then each line. */
static sw_status talk(struct generator *g) {
    const char *prompt = g->options->prompt;
    struct line line = {0};
    if (sw_ranks_count(g->ranks) > 1)
        (void)setvbuf(stdin, NULL, _IONBF, 0);
    sw_status status = prompt != NULL ? answer(g, (struct sw_text){prompt, strlen(prompt)}) : SW_OK;
    if (status == SW_OK)
        status = answer_lines(g, &line);
    free(line.text);
    return status;
}

static void say_context(const struct generator *g) {
    const int64_t positions = sw_source_config(g->source)->max_positions;
    if (prints(g) && g->prompt_length + g->options->max_tokens > positions + 1)
        sw_log_info("the model has %lld positions: where the text is longer, it is continued from its last %lld tokens",
                    (long long)positions, (long long)sw_decoder_left(positions));
}

static void say_speed(const struct generator *g, const struct times *times) {
    const int64_t more = (int64_t)g->text.count - g->prompt_length - 1;
    char fetched[SW_SIZE_CHARS];
    if (more > 0 && prints(g))
        sw_log_info("%s of prompt in %.2f s, then %.1f tokens/s", SW_COUNT(g->prompt_length, "token"),
                    (double)(times->first_ns - times->start_ns) * 1e-9,
                    (double)more / ((double)(times->end_ns - times->first_ns) * 1e-9));
    if (more > 0 && g->decoder.fetched_bytes > 0 && prints(g))
        sw_log_info("each of these tokens fetched %s of weights on average",
                    sw_format_size(g->decoder.fetched_bytes / g->decoder.singles, fetched));
}

static sw_status open_source(struct generator *g) {
    SW_TRY(sw_source_open_any(g->options->from, &(struct sw_run_moved){&g->options->nvme, g->options->model},
                              g->options->adapter, &g->source));
    return read_prompt(g);
}

static sw_status open_all(void *context) {
    struct generator *g = context;
    sw_ranks_forget_error(g->ranks); /* the error of the previous attempt */
    SW_TRY(sw_ranks_agree_on_error(g->ranks, open_source(g)));
    SW_TRY(sw_read_same_step(g->ranks, g->source));
    return open_model(g);
}

static void close_all(void *context) {
    struct generator *g = context;
    sw_decoder_close(&g->decoder);
    sw_source_close(g->source);
    sw_sampler_destroy(g->sampler);
    sw_text_encoder_destroy(g->encoder);
    sw_text_decoder_destroy(g->writing);
    sw_chat_style_release(&g->chat);
    sw_model_text_close(&g->model);
    free(g->written.data);
    free(g->text.id);
    free(g->logits);
    free(g->said);
    *g = (struct generator){.options = g->options, .ranks = g->ranks};
}

static sw_status open_sampler(struct generator *g) {
    const struct sw_sampler_spec spec = {.vocab = sw_source_config(g->source)->vocab,
                                         .temperature = g->options->temperature,
                                         .top_k = g->options->top_k,
                                         .top_p = g->options->top_p,
                                         .min_p = g->options->min_p,
                                         .seed = (uint64_t)g->options->seed};
    SW_TRY(sw_sampler_create(&spec, &g->sampler));
    g->logits = calloc((size_t)spec.vocab, sizeof *g->logits);
    g->said = calloc((size_t)spec.vocab, sizeof *g->said);
    return g->logits != NULL && g->said != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory for the logits");
}

/* Generation uses all ranks as one tensor group. */
static sw_status check_groups(const struct generator *g) {
    const int count = sw_ranks_count(g->ranks);
    int tensor_ranks;
    SW_TRY(sw_read_groups(g->ranks, &g->options->inference, count, &tensor_ranks));
    return tensor_ranks == count
               ? SW_OK
               : sw_fail(SW_ERR_USAGE,
                         "generate writes one text, for which %d ranks are one group; leave out --tensor %d", count,
                         tensor_ranks);
}

static sw_status generate(struct generator *g) {
    struct times times = {0};
    int32_t end;
    SW_TRY(sw_ranks_agree_on_error(g->ranks, check_groups(g)));
    SW_TRY(sw_command_read_run(open_all, close_all, g));
    SW_TRY(sw_ranks_agree_on_error(g->ranks, open_sampler(g)));
    if (g->options->chat)
        return talk(g);
    say_context(g);
    times.start_ns = sw_now_ns();
    for (int64_t i = 0; i < g->prompt_length; i++)
        SW_TRY(print_token(g, g->text.id[i], i == 0));
    SW_TRY(write_tokens(g, &end, &times));
    say_speed(g, &times);
    return SW_OK;
}

static sw_status run(struct sw_ranks *ranks, const struct sw_read_options *given) {
    struct generator g = {.options = given, .ranks = ranks};
    const sw_status status = generate(&g);
    close_all(&g);
    return status;
}

int sw_command_generate(int argc, char **argv) {
    return sw_read_on_ranks(&sw_generate_command, argc, argv, run);
}
