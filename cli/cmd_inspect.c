#include "cli/commands.h"
#include "core/files/files.h"
#include "core/log.h"
#include "core/size.h"
#include "model/peft.h"
#include "run/data/token_stream.h"
#include "run/folder/run.h"
#include "text/documents/chat_template.h"
#include "text/documents/text_inputs.h"
#include "text/documents/text_reader.h"
#include "text/model_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct inspect_options {
    char *data, *model, *chat_format, *encoding, *field;
    bool lossy, skip_bad;
    int loss; /* SW_LOSS_... */
    int bos;  /* SW_BOS_... */
    int64_t examples, most_tokens;
};

#define AT(member) .offset = offsetof(struct inspect_options, member)
#define INPUT "Input"
#define OUTPUT SW_OPTION_OUTPUT

/* With one member per line the table would not be visible at a glance. */
/* clang-format off */
static const struct sw_option options[] = {
    {.name = "DATA", .kind = SW_OPTION_STRING, AT(data), .group = INPUT, .required = true,
     .what = "a token file (.bin), what tokenize reads (text or chats, in a file or folder), or an adapter's folder"},
    {.name = "--model", .kind = SW_OPTION_STRING, AT(model), .group = INPUT, .value = "DIR", .required = true,
     .what = "Hugging Face folder with a tokenizer.json, or a run"},
    {.name = "--chat-format", .kind = SW_OPTION_STRING, AT(chat_format), .group = INPUT, .initial = "auto",
     .value = "NAME", .what = "format of chats, one of those in tokenize --help; auto: the model's chat template"},
    {.name = "--loss", .kind = SW_OPTION_CHOICE, AT(loss), .group = INPUT, .initial = "completions",
     .choices = SW_LOSS_CHOICES, .what = "tokens of chats and prompts that have a loss (tokenize --help)"},
    {.name = "--field", .kind = SW_OPTION_STRING, AT(field), .group = INPUT, .value = "NAME",
     .what = "member of JSON objects with the text or the messages (tokenize --help)"},
    {.name = "--skip-bad", .kind = SW_OPTION_FLAG, AT(skip_bad), .group = INPUT,
     .what = "skip JSON documents that are wrong, and count them"},
    {.name = "--bos", .kind = SW_OPTION_CHOICE, AT(bos), .group = INPUT, .initial = "auto", .choices = SW_BOS_CHOICES,
     .what = "token that begins a document (tokenize --help)"},
    {.name = "--encoding", .kind = SW_OPTION_STRING, AT(encoding), .group = INPUT, .value = "NAME",
     .what = "encoding of text that is not UTF-8 (tokenize --help)"},
    {.name = "--lossy", .kind = SW_OPTION_FLAG, AT(lossy), .group = INPUT,
     .what = "replace bytes that are invalid in the encoding with U+FFFD"},
    {.name = "--examples", .kind = SW_OPTION_INT, AT(examples), .group = OUTPUT, .initial = "3", .value = "N",
     .int_min = 1, .int_max = 1 << 20, .what = "documents to print"},
    {.name = "--max-tokens", .kind = SW_OPTION_INT, AT(most_tokens), .group = OUTPUT, .initial = "500", .value = "N",
     .int_min = 1, .int_max = 1 << 20, .what = "most tokens of a document to print"},
};
/* clang-format on */

static sw_status check(const void *target) {
    const struct inspect_options *given = target;
    SW_TRY(sw_chat_format_check(given->chat_format));
    return sw_text_coding_check(given->encoding);
}

static const struct sw_command_line line = {
    .command = "inspect",
    .summary = "Prints documents as a model will see them, tokens with a loss in colour or in [[ ]]; or an adapter.",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .check = check,
    .examples = {"spillway inspect chat.jsonl --model model", "spillway inspect text.bin --model model --examples 1",
                 "spillway inspect docs.jsonl --model model --max-tokens 50"}};

struct inspection {
    const struct inspect_options *given;
    char *folder; /* folder of the tokenizer */
    struct sw_model_text model;
    struct sw_text_encoder *encoder;
    struct sw_text_decoder *decoder;
    struct sw_text_inputs inputs;
    struct sw_text_reader *reader;
    struct sw_token_stream *stream;
    struct sw_marked_text text;
    struct sw_document_frame frame;
    struct sw_token_list tokens; /* the document being printed */
    struct sw_text_buffer loss;  /* a byte per token */
    struct sw_text_buffer written;
    bool continues; /* the document is a later part of one that was split */
    int64_t printed;
};

/* Prints what the decoder has produced, and switches to or from tokens with a loss. */
static void print_run(struct inspection *i, bool was_learnt, bool is_learnt) {
    const bool colours = sw_log_takes_escapes(STDOUT_FILENO);
    if (i->written.bytes > 0)
        fwrite(i->written.data, 1, i->written.bytes, stdout);
    i->written.bytes = 0;
    if (was_learnt == is_learnt)
        return;
    if (colours)
        sw_log_escape(is_learnt ? "\033[32m" : "\033[0m");
    else
        fputs(is_learnt ? "[[" : "]]", stdout);
}

static sw_status print_document(struct inspection *i, bool is_whole) {
    int64_t learnt = 0;
    bool was_learnt = false;
    for (size_t t = 0; t < i->loss.bytes; t++)
        learnt += i->loss.data[t] != 0;
    printf("document %lld: %s%s%s, %lld with a loss\n", (long long)++i->printed,
           i->continues ? "more of one that was split; " : "", is_whole ? "" : "the first ",
           SW_COUNT((int64_t)i->tokens.count, "token"), (long long)learnt);
    for (size_t t = 0; t < i->tokens.count; t++) {
        const bool is_learnt = i->loss.data[t] != 0;
        if (is_learnt != was_learnt)
            SW_TRY(sw_text_decode_end(i->decoder, &i->written));
        print_run(i, was_learnt, is_learnt);
        was_learnt = is_learnt;
        SW_TRY(sw_text_decode(i->decoder, i->tokens.id[t], &i->written));
    }
    SW_TRY(sw_text_decode_end(i->decoder, &i->written));
    print_run(i, was_learnt, false);
    fputs("\n\n", stdout);
    return SW_OK;
}

/* Prints one of the tokens around documents. */
static void print_around(const struct inspection *i, const char *what, int32_t id, const char *from) {
    const struct sw_text text = sw_tokenizer_text(i->model.tokenizer, id);
    printf("documents %s with %.*s (%d)%s%s\n", what, (int)text.bytes, text.data, id, from != NULL ? ", by " : "",
           from != NULL ? from : "");
}

/* Finds and prints the tokens around documents. */
static sw_status find_frame(struct inspection *i) {
    SW_TRY(sw_model_text_begin(&i->model, i->given->bos, &i->frame.begin));
    i->frame.begins_chats = i->given->bos == SW_BOS_YES;
    i->frame.end = i->model.end;
    for (size_t t = 0; t < i->frame.begin.count; t++)
        print_around(i, "begin", i->frame.begin.id[t], NULL);
    if (i->frame.end >= 0)
        print_around(i, "end", i->frame.end, i->model.end_from);
    else
        printf("nothing ends documents: no file of the model names an eos_token; tokenize --end TOKEN names one\n");
    printf("\n");
    return SW_OK;
}

/* Prints documents of text. The first token of each has no loss: nothing predicts it. */
static sw_status inspect_text(struct inspection *i) {
    const struct inspect_options *given = i->given;
    const struct sw_text_rules rules = {.field = given->field,
                                        .skip_bad = given->skip_bad,
                                        .tokenizer = i->model.tokenizer,
                                        .model = i->folder,
                                        .chat_format = given->chat_format,
                                        .coding = {.encoding = given->encoding, .lossy = given->lossy},
                                        .all_loss = given->loss == SW_LOSS_ALL};
    SW_TRY(sw_text_inputs_expand((const char *const[]){given->data}, 1, &i->inputs));
    sw_text_inputs_say(&i->inputs);
    SW_TRY(sw_text_reader_open((const char *const *)i->inputs.path, i->inputs.count, &rules, &i->reader));
    SW_TRY(sw_text_encoder_create(i->model.tokenizer, &i->encoder));
    SW_TRY(find_frame(i));
    while (i->printed < given->examples) {
        bool end;
        SW_TRY(sw_text_reader_next(i->reader, &i->text, &end));
        if (end)
            break;
        i->tokens.count = i->loss.bytes = 0;
        SW_TRY(sw_document_encode(i->encoder, &i->text, &i->frame, &i->tokens, &i->loss));
        if (i->tokens.count > 0)
            i->loss.data[0] = 0;
        const bool is_whole = (int64_t)i->tokens.count <= given->most_tokens;
        if (!is_whole)
            i->tokens.count = i->loss.bytes = (size_t)given->most_tokens;
        SW_TRY(print_document(i, is_whole));
    }
    fflush(stdout);
    sw_text_reader_say_passed(i->reader);
    const int64_t skipped = sw_text_reader_skipped(i->reader);
    if (skipped > 0)
        sw_log_warn("%s %s wrong and left out", SW_COUNT(skipped, "JSON document"), skipped == 1 ? "was" : "were");
    return SW_OK;
}

/* Reads the document that begins at a token, at most --max-tokens of it. *out_next: where the next one begins. */
static sw_status read_document(struct inspection *i, int64_t first, bool *out_whole, int64_t *out_next) {
    enum { AT_ONCE = 4096 };
    uint8_t marks[AT_ONCE];
    const int64_t tokens = sw_token_stream_tokens(i->stream), most = i->given->most_tokens;
    const bool has_documents = sw_token_stream_has_documents(i->stream);
    int64_t at = first;
    i->tokens.count = i->loss.bytes = 0;
    for (bool ended = false; at < tokens && !ended && (has_documents || at - first < most);) {
        const int64_t count = tokens - at < AT_ONCE ? tokens - at : AT_ONCE;
        SW_TRY(sw_token_stream_read_marks(i->stream, at, count, marks));
        if (at == first)
            i->continues = (marks[0] & SW_TOKEN_CONTINUES) != 0;
        int64_t n = 0;
        for (; n < count && !ended; n++) {
            const char learnt = (marks[n] & SW_TOKEN_LEARNT) != 0;
            ended = (marks[n] & SW_TOKEN_BEGINS_DOCUMENT) != 0 && at + n > first;
            ended |= !has_documents && at + n - first >= most;
            if (!ended && at + n - first < most)
                SW_TRY(sw_text_buffer_append(&i->loss, (struct sw_text){&learnt, 1}));
        }
        at += n - (ended ? 1 : 0);
    }
    SW_TRY(sw_token_list_reserve(&i->tokens, i->loss.bytes));
    i->tokens.count = i->loss.bytes;
    *out_whole = (int64_t)i->tokens.count == at - first;
    *out_next = at;
    return sw_token_stream_read(i->stream, first, (int64_t)i->tokens.count, i->tokens.id);
}

/* Prints the counts of a whole token file. */
static sw_status print_counts(struct inspection *i) {
    enum { AT_ONCE = 65536, TEXT_CHARS = 256 };
    struct sw_token_counts counts = {0};
    uint8_t marks[AT_ONCE];
    char text[TEXT_CHARS];
    const int64_t tokens = sw_token_stream_tokens(i->stream);
    for (int64_t at = 0; at < tokens; at += AT_ONCE) {
        const int64_t count = tokens - at < AT_ONCE ? tokens - at : AT_ONCE;
        SW_TRY(sw_token_stream_read_marks(i->stream, at, count, marks));
        if (at == 0)
            marks[0] &= (uint8_t)~SW_TOKEN_LEARNT;
        sw_token_counts_add(&counts, marks, count);
    }
    printf("%s\n\n", sw_token_counts_text(&counts, text, sizeof text));
    return SW_OK;
}

/* Prints documents of a token file. Those without any loss only fill up sequences. */
static sw_status inspect_tokens(struct inspection *i) {
    const struct sw_token_format format = {.type = SW_TOKENS_AUTO};
    SW_TRY(sw_token_stream_open((const char *const[]){i->given->data}, 1, i->model.vocab, format, &i->stream));
    SW_TRY(print_counts(i));
    for (int64_t at = 0; at < sw_token_stream_tokens(i->stream) && i->printed < i->given->examples;) {
        bool is_whole;
        SW_TRY(read_document(i, at, &is_whole, &at));
        if (!is_whole || memchr(i->loss.data, 1, i->loss.bytes) != NULL)
            SW_TRY(print_document(i, is_whole));
    }
    return SW_OK;
}

/* Prints what an adapter changes in the model. */
static sw_status inspect_adapter(const struct inspection *i) {
    struct sw_model_config config;
    struct sw_peft *peft;
    SW_TRY(sw_config_load(i->folder != NULL ? i->folder : i->given->model, &config));
    SW_TRY(sw_peft_open(i->given->data, &config, &peft));
    const struct sw_lora *lora = sw_peft_lora(peft);
    char *base = sw_peft_base(i->given->data);
    printf("adapter%s%s: rank %lld, alpha %g%s, scale %.3g\n", base != NULL ? " of " : "", base != NULL ? base : "",
           (long long)lora->rank, lora->alpha, lora->rank_stabilized ? " (rank-stabilized)" : "", sw_lora_scale(lora));
    printf("modules: %s\n", lora->targets);
    if (lora->modules_to_save != NULL)
        printf("trained whole: %s\n", lora->modules_to_save);
    printf("parameters: %lld\n", (long long)sw_peft_parameters(peft));
    free(base);
    sw_peft_close(peft);
    return SW_OK;
}

static sw_status inspect(struct inspection *i) {
    const bool is_tokens = sw_path_ends_in(i->given->data, ".bin");
    SW_TRY(sw_run_or_model_folder(i->given->model, &i->folder));
    if (sw_peft_is_one(i->given->data))
        return inspect_adapter(i);
    SW_TRY(sw_model_text_open(i->folder, &i->model));
    SW_TRY(sw_text_decoder_create(i->model.tokenizer, false, &i->decoder));
    return is_tokens ? inspect_tokens(i) : inspect_text(i);
}

static sw_status run(const void *target) {
    struct inspection i = {.given = target};
    const sw_status status = inspect(&i);
    sw_token_stream_close(i.stream);
    sw_text_reader_close(i.reader);
    sw_text_inputs_release(&i.inputs);
    sw_text_encoder_destroy(i.encoder);
    sw_text_decoder_destroy(i.decoder);
    sw_marked_text_release(&i.text);
    free(i.frame.begin.id);
    free(i.tokens.id);
    free(i.loss.data);
    free(i.written.data);
    sw_model_text_close(&i.model);
    free(i.folder);
    return status;
}

int sw_command_inspect(int argc, char **argv) {
    struct inspect_options given = {0};
    return sw_command_run(&line, argc, argv, &given, run);
}
