#include "cli/commands.h"
#include "core/files/files.h"
#include "core/log.h"
#include "core/machine.h"
#include "run/folder/run.h"
#include "run/signals.h"
#include "text/documents/chat_template.h"
#include "text/documents/tokenize_files.h"
#include "text/model_text.h"

#include <stdlib.h>

struct tokenize_options {
    char *model, *out, *separator, *field, *end, *chat_format, *encoding;
    struct sw_option_list data;
    bool lines, joined, parse_special, skip_bad, lossy, dpo;
    int loss; /* SW_LOSS_... */
    int bos;  /* SW_BOS_... */
    int64_t threads, pack;
};

#define AT(member) .offset = offsetof(struct tokenize_options, member)
#define INPUT "Input"
#define OUTPUT SW_OPTION_OUTPUT

/* With one member per line the table would not be visible at a glance. */
/* clang-format off */
static const struct sw_option options[] = {
    {.name = "--model", .kind = SW_OPTION_STRING, AT(model), .group = INPUT, .value = "DIR", .required = true,
     .what = "Hugging Face folder with a tokenizer.json, or that file, or a run"},
    {.name = "--data", .kind = SW_OPTION_MANY, AT(data), .group = INPUT, .value = "FILE|DIR|-", .required = true,
     .what = "text: .txt and .md, each file one document, or .jsonl and .json, whose lines, or the values of whose list, are "
             "one each: a chat ('messages', or ShareGPT's 'conversations'), a 'prompt' with its 'completion', Alpaca's "
             "'instruction', 'input' and 'output', a 'question' with its 'answer', or a 'text'; also with .gz or .zst; a folder stands for all such "
             "files below it, and - for standard input, which is JSON where it begins with {, [{ or [\""},
    {.name = "--lines", .kind = SW_OPTION_FLAG, AT(lines), .group = INPUT,
     .what = "take each line of a .txt or .md file as a document"},
    {.name = "--separator", .kind = SW_OPTION_STRING, AT(separator), .group = INPUT, .value = "LINE",
     .what = "split .txt and .md files at lines that are just this"},
    {.name = "--field", .kind = SW_OPTION_STRING, AT(field), .group = INPUT, .value = "NAME",
     .what = "member of JSON objects with the text or the list of messages; without the flag, the schema tells"},
    {.name = "--chat-format", .kind = SW_OPTION_STRING, AT(chat_format), .group = INPUT, .initial = "auto",
     .value = "NAME",
     .what = "how chats are written: chatml, qwen2, qwen2.5, qwen3, smollm2, llama3, llama3.1, zephyr, llama2, mistral, "
             "mistral-spaced, mistral-v3, mistral-tekken, ministral, phi4 or harmony; auto: as the model's chat template does"},
    {.name = "--loss", .kind = SW_OPTION_CHOICE, AT(loss), .group = INPUT, .initial = "completions",
     .choices = SW_LOSS_CHOICES,
     .what = "tokens of chats and prompts that the model learns to write: the assistant's and the completions', or all"},
    {.name = "--skip-bad", .kind = SW_OPTION_FLAG, AT(skip_bad), .group = INPUT,
     .what = "skip JSON documents that are wrong, and count them"},
    {.name = "--dpo", .kind = SW_OPTION_FLAG, AT(dpo), .group = INPUT,
     .what = "JSON objects are pairs of a 'chosen' and a 'rejected' reply to a 'prompt', strings or lists of messages; each "
             "reply gets a sequence of --pack tokens, cut off at its end"},
    {.name = "--bos", .kind = SW_OPTION_CHOICE, AT(bos), .group = INPUT, .initial = "auto", .choices = SW_BOS_CHOICES,
     .what = "token that begins a document; chats get it from their template; auto: as the tokenizer does "
             "(TemplateProcessing); yes: always, chats too; no: none"},
    {.name = "--encoding", .kind = SW_OPTION_STRING, AT(encoding), .group = INPUT, .value = "NAME",
     .what = "encoding of text that is not UTF-8, as iconv names it: latin-1, gbk, shift-jis, utf-16"},
    {.name = "--lossy", .kind = SW_OPTION_FLAG, AT(lossy), .group = INPUT,
     .what = "replace bytes that are invalid in the encoding with U+FFFD and count them, instead of refusing the "
             "text"},
    {.name = "--special", .kind = SW_OPTION_FLAG, AT(parse_special), .group = INPUT,
     .what = "read special tokens that the text spells out, such as <|im_end|>, as these tokens; without the flag "
             "they are text"},
    {.name = "--out", .kind = SW_OPTION_STRING, AT(out), .group = OUTPUT, .value = "FILE.bin", .required = true,
     .what = "token file to write; next to it, FILE.bin.doc lists where documents begin, and FILE.bin.mask tells "
             "which tokens have a loss if not all do"},
    {.name = "--end", .kind = SW_OPTION_STRING, AT(end), .group = OUTPUT, .initial = "auto", .value = "TOKEN",
     .what = "token to append to each document except chats, or none; auto: the eos_token_id of the model, or else"
             " the eos_token of its tokenizer"},
    {.name = "--joined", .kind = SW_OPTION_FLAG, AT(joined), .group = OUTPUT,
     .what = "write no FILE.bin.doc: attention then crosses from one document to the next"},
    {.name = "--pack", .kind = SW_OPTION_INT, AT(pack), .group = OUTPUT, .initial = "0", .value = "SEQ", .int_min = 0,
     .int_max = 1 << 22,
     .what = "pack whole documents into sequences of SEQ tokens, the --seq of the training; longer documents are "
             "split, and gaps are filled without a loss; 0: documents follow each other"},
    {.name = "--threads", .kind = SW_OPTION_INT, AT(threads), .group = OUTPUT, .initial = "auto", .value = "N",
     .int_min = 1, .int_max = 4096, .allow_auto = true, .what = "CPU threads; auto: all cores"},
};
/* clang-format on */

static sw_status check(const void *target) {
    const struct tokenize_options *given = target;
    if (given->pack > 0 && given->joined)
        return sw_fail(SW_ERR_ARG, "give either --pack or --joined");
    if (given->dpo && given->pack == 0)
        return sw_fail(SW_ERR_ARG, "--dpo gives each reply a sequence of its own; say how long with --pack SEQ");
    if (given->dpo && (given->field != NULL || given->loss == SW_LOSS_ALL))
        return sw_fail(SW_ERR_ARG,
                       "--dpo reads 'prompt', 'chosen' and 'rejected', and only replies count; leave out %s",
                       given->field != NULL ? "--field" : "--loss all");
    SW_TRY(sw_chat_format_check(given->chat_format));
    SW_TRY(sw_text_coding_check(given->encoding));
    if (given->lines && given->separator != NULL)
        return sw_fail(SW_ERR_ARG, "give either --lines or --separator");
    if (!sw_path_ends_in(given->out, ".bin"))
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

static sw_status run(const void *target) {
    const struct tokenize_options *given = target;
    struct sw_tokenize_spec spec = {
        .names = (const char *const *)given->data.items,
        .name_count = given->data.count,
        .rules = {.separator = given->separator,
                  .lines = given->lines,
                  .field = given->field,
                  .chat_format = given->chat_format,
                  .all_loss = given->loss == SW_LOSS_ALL,
                  .skip_bad = given->skip_bad,
                  .pairs = given->dpo,
                  .coding = {.encoding = given->encoding, .lossy = given->lossy}},
        .end = given->end,
        .bos = given->bos,
        .out = given->out,
        .parse_special = given->parse_special,
        .joined = given->joined,
        .threads = given->threads == SW_OPTION_AUTO ? sw_machine_cores() : (int)given->threads,
        .pack_seq = given->pack,
    };
    struct sw_tokenized made;
    sw_long_work_stop_by(sw_signals_catch(false));
    char *folder;
    SW_TRY(sw_run_or_model_folder(given->model, &folder));
    spec.model = folder;
    const sw_status status = sw_tokenize_files(&spec, &made);
    free(folder);
    SW_TRY(status);
    sw_tokenized_say(&made, given->out);
    return SW_OK;
}

int sw_command_tokenize(int argc, char **argv) {
    struct tokenize_options given = {0};
    return sw_command_run(&line, argc, argv, &given, run);
}
