#include "core/clock.h"
#include "core/log.h"
#include "core/long_work.h"
#include "core/machine.h"
#include "offload/engine/team.h"
#include "train/cli/commands.h"
#include "train/run/signals.h"
#include "train/text/model_text.h"
#include "train/text/text_reader.h"
#include "train/text/token_writer.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A batch is what all threads encode before it is written. */
enum { BATCH_DOCUMENTS = 1024, BATCH_BYTES = 8 << 20, UINT16_VOCAB = 1 << 16 };

/* The choices of --loss. */
enum { LOSS_COMPLETIONS, LOSS_ALL };

struct tokenize_options {
    char *model, *out, *separator, *field, *end, *chat_format;
    struct sw_option_list data;
    bool lines, joined, parse_special, skip_bad;
    int loss; /* index in completions, all */
    int64_t threads;
};

#define AT(member) .offset = offsetof(struct tokenize_options, member)
#define INPUT "Input"
#define OUTPUT SW_OPTION_OUTPUT

/* One member a line would hide the table. */
/* clang-format off */
static const struct sw_option options[] = {
    {.name = "--model", .kind = SW_OPTION_STRING, AT(model), .group = INPUT, .value = "DIR", .required = true,
     .what = "Hugging Face folder with a tokenizer.json, or that file"},
    {.name = "--data", .kind = SW_OPTION_MANY, AT(data), .group = INPUT, .value = "FILE", .required = true,
     .what = "text in UTF-8: .txt and .md, each file one document, or .jsonl, each line one: a text, a chat ('messages') "
             "or a 'prompt' with its 'completion'; also with .gz"},
    {.name = "--lines", .kind = SW_OPTION_FLAG, AT(lines), .group = INPUT,
     .what = "take each line of a .txt or .md file as a document"},
    {.name = "--separator", .kind = SW_OPTION_STRING, AT(separator), .group = INPUT, .value = "LINE",
     .what = "divide .txt and .md files at lines that are just this"},
    {.name = "--field", .kind = SW_OPTION_STRING, AT(field), .group = INPUT, .initial = "text", .value = "NAME",
     .what = "member of a .jsonl line that has the text"},
    {.name = "--chat-format", .kind = SW_OPTION_STRING, AT(chat_format), .group = INPUT, .initial = "auto",
     .value = "NAME",
     .what = "how chats are written: chatml, qwen2, qwen2.5, qwen3, smollm2, llama3, llama3.1, zephyr, llama2, mistral "
             "or mistral-spaced; auto: as the model's chat template does"},
    {.name = "--loss", .kind = SW_OPTION_CHOICE, AT(loss), .group = INPUT, .initial = "completions",
     .choices = "completions|all",
     .what = "tokens of chats and prompts that the model learns to write: the assistant's and the completions', or all"},
    {.name = "--skip-bad", .kind = SW_OPTION_FLAG, AT(skip_bad), .group = INPUT,
     .what = "leave out .jsonl lines that are wrong, count them and go on"},
    {.name = "--special", .kind = SW_OPTION_FLAG, AT(parse_special), .group = INPUT,
     .what = "take special tokens that the text spells out, such as <|im_end|>, for these tokens; without it they are "
             "text"},
    {.name = "--out", .kind = SW_OPTION_STRING, AT(out), .group = OUTPUT, .value = "FILE.bin", .required = true,
     .what = "token file to write; beside it, FILE.bin.doc has where documents begin, and FILE.bin.mask which tokens "
             "have a loss, where not all do"},
    {.name = "--end", .kind = SW_OPTION_STRING, AT(end), .group = OUTPUT, .initial = "auto", .value = "TOKEN",
     .what = "token to put behind each document but chats, or none; auto: the model's eos_token_id"},
    {.name = "--joined", .kind = SW_OPTION_FLAG, AT(joined), .group = OUTPUT,
     .what = "write no FILE.bin.doc: attention then crosses from one document to the next"},
    {.name = "--threads", .kind = SW_OPTION_INT, AT(threads), .group = OUTPUT, .initial = "auto", .value = "N",
     .int_min = 1, .int_max = 4096, .allow_auto = true, .what = "CPU threads; auto: all cores"},
};
/* clang-format on */

static sw_status check(const void *target) {
    const struct tokenize_options *given = target;
    const size_t chars = strlen(given->out);
    if (given->lines && given->separator != NULL)
        return sw_fail(SW_ERR_ARG, "give either --lines or --separator");
    if (chars < 5 || strcmp(given->out + chars - 4, ".bin") != 0)
        return sw_fail(SW_ERR_ARG, "--out %s: token files end in .bin", given->out);
    return SW_OK;
}

static const struct sw_command_line line = {
    .command = "tokenize",
    .summary = "Writes text as the tokens of a model, for train and eval.",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .check = check,
    .examples = {"spillway tokenize --model model --data text.txt --out text.bin",
                 "spillway tokenize --model model --data text.txt --lines --out lines.bin",
                 "spillway tokenize --model model --data chat.jsonl --out chat.bin"}};

struct document {
    struct sw_marked_text text;
    struct sw_token_list tokens;
    struct sw_text_buffer loss; /* a byte a token */
    sw_status status;
    char message[256]; /* of a failure, which its thread keeps to itself */
};

struct work {
    const struct tokenize_options *given;
    struct sw_model_text model;
    struct sw_text_reader *reader;
    struct sw_token_writer *writer;
    struct sw_team *team;
    struct sw_text_encoder **encoder; /* one a document of a batch is in work; taken and given back */
    int encoders;
    struct document *document;
    int64_t documents;  /* of this batch */
    int64_t text_bytes; /* of all documents */
    int32_t end;        /* token behind each document; -1: none */
};

static sw_status find_end(struct work *w) {
    const char *end = w->given->end;
    w->end = -1;
    if (strcmp(end, "auto") == 0) {
        w->end = w->model.ends.count > 0 ? w->model.ends.id[0] : -1;
        return SW_OK;
    }
    if (strcmp(end, "none") == 0)
        return SW_OK;
    w->end = sw_tokenizer_find(w->model.tokenizer, end);
    if (w->end < 0)
        return sw_fail(SW_ERR_ARG, "--end: the tokenizer has no token '%s'", end);
    return SW_OK;
}

static sw_status refuse_stale_documents(const struct work *w) {
    char path[PATH_MAX];
    const int chars = snprintf(path, sizeof path, "%s.doc", w->given->out);
    if (w->given->joined && chars > 0 && chars < (int)sizeof path && access(path, F_OK) == 0)
        return sw_fail(SW_ERR_ARG, "%s belongs to other tokens; remove it first", path);
    return SW_OK;
}

static sw_status encode(struct work *w, struct sw_text_encoder *encoder, struct document *document) {
    static const char learnt = 1;
    document->tokens.count = document->loss.bytes = 0;
    SW_TRY(
        sw_marked_text_encode(encoder, &document->text, w->given->parse_special, &document->tokens, &document->loss));
    if (w->end < 0 || document->tokens.count == 0 || document->text.closed)
        return SW_OK;
    SW_TRY(sw_token_list_append(&document->tokens, &w->end, 1));
    return sw_text_buffer_append(&document->loss, (struct sw_text){&learnt, 1});
}

/* Encodes the documents of the batch whose number is `index` modulo the encoders. */
static void encode_share(void *context, int64_t index) {
    struct work *w = context;
    for (int64_t i = index; i < w->documents; i += w->encoders) {
        struct document *document = &w->document[i];
        document->status = encode(w, w->encoder[index], document);
        if (document->status == SW_OK)
            continue;
        (void)snprintf(document->message, sizeof document->message, "%s", sw_error_message(document->status));
        sw_error_clear();
        return;
    }
}

static sw_status read_batch(struct work *w, bool *out_end) {
    size_t bytes = 0;
    for (w->documents = 0; w->documents < BATCH_DOCUMENTS && bytes < BATCH_BYTES; w->documents++) {
        struct document *document = &w->document[w->documents];
        document->status = SW_OK;
        SW_TRY(sw_text_reader_next(w->reader, &document->text, out_end));
        if (*out_end)
            return SW_OK;
        bytes += document->text.text.bytes;
        w->text_bytes += (int64_t)document->text.text.bytes;
    }
    return SW_OK;
}

static sw_status encode_all(struct work *w) {
    struct sw_long_work progress = sw_long_work_begin("encoding text", sw_text_reader_bytes(w->reader));
    for (bool end = false; !end;) {
        SW_TRY(read_batch(w, &end));
        sw_team_begin(w->team, encode_share, w, w->encoders);
        sw_team_finish(w->team);
        for (int64_t i = 0; i < w->documents; i++) {
            const struct document *document = &w->document[i];
            if (document->status != SW_OK)
                return sw_fail(document->status, "%s", document->message);
            SW_TRY(sw_token_writer_add(w->writer, &document->tokens, sw_text_of_buffer(&document->loss)));
        }
        SW_TRY(sw_long_work_at(&progress, sw_text_reader_bytes_read(w->reader)));
    }
    sw_long_work_end(&progress);
    if (sw_token_writer_tokens(w->writer) == 0)
        return sw_fail(SW_ERR_ARG, "the files hold no text, so there is nothing to write");
    return sw_token_writer_publish(w->writer);
}

static sw_status open_all(struct work *w) {
    const struct tokenize_options *given = w->given;
    SW_TRY(sw_model_text_open(given->model, &w->model));
    const struct sw_text_rules rules = {.separator = given->separator,
                                        .lines = given->lines,
                                        .field = given->field,
                                        .tokenizer = w->model.tokenizer,
                                        .model = given->model,
                                        .chat_format = given->chat_format,
                                        .all_loss = given->loss == LOSS_ALL,
                                        .skip_bad = given->skip_bad};
    SW_TRY(find_end(w));
    SW_TRY(refuse_stale_documents(w));
    SW_TRY(sw_text_reader_open((const char *const *)given->data.items, given->data.count, &rules, &w->reader));
    SW_TRY(sw_token_writer_open(given->out, w->model.vocab <= UINT16_VOCAB ? 2 : 4, !given->joined, &w->writer));
    w->encoders = given->threads == SW_OPTION_AUTO ? sw_machine_cores() : (int)given->threads;
    w->encoder = calloc((size_t)w->encoders, sizeof(struct sw_text_encoder *));
    w->document = calloc(BATCH_DOCUMENTS, sizeof *w->document);
    if (w->encoder == NULL || w->document == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to encode text");
    for (int i = 0; i < w->encoders; i++)
        SW_TRY(sw_text_encoder_create(w->model.tokenizer, &w->encoder[i]));
    return sw_team_open(w->encoders, &w->team);
}

static void close_all(struct work *w) {
    if (w->team != NULL)
        sw_team_close(w->team);
    for (int i = 0; w->encoder != NULL && i < w->encoders; i++)
        sw_text_encoder_destroy(w->encoder[i]);
    for (int i = 0; w->document != NULL && i < BATCH_DOCUMENTS; i++) {
        sw_marked_text_release(&w->document[i].text);
        free(w->document[i].tokens.id);
        free(w->document[i].loss.data);
    }
    free(w->encoder);
    free(w->document);
    sw_token_writer_close(w->writer);
    sw_text_reader_close(w->reader);
    sw_model_text_close(&w->model);
}

static void say(const struct work *w, double seconds) {
    const int64_t tokens = sw_token_writer_tokens(w->writer), learnt = sw_token_writer_learnt(w->writer);
    const int64_t skipped = sw_text_reader_skipped(w->reader);
    const struct sw_chat_format *format = sw_text_reader_chat_format(w->reader);
    sw_log_info("wrote %s: %lld tokens of %lld documents, uint%d, in %.2f s (%.1f MB/s of text)", w->given->out,
                (long long)tokens, (long long)sw_token_writer_documents(w->writer),
                w->model.vocab <= UINT16_VOCAB ? 16 : 32, seconds, (double)w->text_bytes / seconds * 1e-6);
    if (format != NULL)
        sw_log_info("chats are written in the format %s", sw_chat_format_name(format));
    if (learnt < tokens)
        sw_log_info("%lld tokens have a loss (%.3g%%)", (long long)learnt, 100.0 * (double)learnt / (double)tokens);
    if (skipped > 0)
        sw_log_warn("%lld lines were wrong and were left out", (long long)skipped);
}

static sw_status run(const void *target) {
    struct work w = {.given = target};
    sw_long_work_stop_by(sw_signals_catch(false));
    sw_status status = open_all(&w);
    const int64_t begin_ns = sw_now_ns();
    if (status == SW_OK)
        status = encode_all(&w);
    if (status == SW_OK)
        say(&w, (double)(sw_now_ns() - begin_ns) * 1e-9);
    close_all(&w);
    return status;
}

int sw_command_tokenize(int argc, char **argv) {
    struct tokenize_options given = {0};
    return sw_command_run(&line, argc, argv, &given, run);
}
