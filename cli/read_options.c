#include "cli/read_options.h"

#include "cli/commands.h"
#include "job/settings/places.h"
#include "job/settings/settings.h"
#include "text/documents/chat_template.h"
#include "text/documents/text_reader.h"
#include "text/model_text.h"

#include <stdlib.h>
#include <string.h>

enum {
    EVAL = 1,
    GENERATE = 2,
    EXPORT = 4,
    VERIFY = 8,
    TENSORS = 16,
    PASSES = EVAL | GENERATE,
    MAX_NEW_TOKENS = 1 << 20
};

/* Headings in --help. */
#define INPUT "Input"
#define SAMPLING "Sampling"
#define MEMORY "Memory and drives"
#define DEVICE "Device"
#define RANKS "Ranks"
#define OUTPUT SW_OPTION_OUTPUT

#define AT(member) .offset = offsetof(struct sw_read_options, member)

/* With one member per line the table would be 500 lines long. */
/* clang-format off */
static const struct sw_option options[] = {
    {.name = "DIR|MODEL", .kind = SW_OPTION_STRING, AT(from), .commands = PASSES | EXPORT, .group = INPUT,
     .required = true, .what = "folder of a run, or a Hugging Face folder"},
    {.name = "DIR", .kind = SW_OPTION_STRING, AT(from), .commands = VERIFY, .group = INPUT, .required = true,
     .what = "folder of a run"},
    {.name = "DIR", .kind = SW_OPTION_STRING, AT(from), .commands = TENSORS, .group = INPUT, .required = true,
     .what = "folder of a run, or of a store that libspillway made"},
    {.name = "--name", .kind = SW_OPTION_STRING, AT(name), .commands = TENSORS, .group = INPUT, .value = "NAME",
     .what = "tensor to write; default: list all"},
    {.name = "--part", .kind = SW_OPTION_CHOICE, AT(part), .commands = TENSORS, .group = INPUT, .initial = "master",
     .choices = "master|m|v", .what = "its fp32 weights, or its first or second moment"},
    {.name = "--step", .kind = SW_OPTION_INT, AT(step), .commands = TENSORS, .group = INPUT, .initial = "auto",
     .value = "N", .int_min = 0, .allow_auto = true,
     .what = "refuse any other step than this as the last commit; auto: take the one that is there"},
    {.name = "--data", .kind = SW_OPTION_STRING, AT(data), .commands = EVAL, .group = INPUT, .required = true,
     .value = "FILE",
     .what = "tokens to predict: a token file (.bin), or chats or text as for train (.jsonl, .json, .txt, .md, "
             ".gz)"},
    {.name = "--token-type", .kind = SW_OPTION_CHOICE, AT(token_type), .commands = EVAL, .group = INPUT,
     .initial = "auto", .choices = "auto|u16|u32",
     .what = "type of the tokens in a .bin file; auto: u16 for vocabularies up to 65,536, else u32"},
    {.name = "--loss", .kind = SW_OPTION_CHOICE, AT(loss), .commands = EVAL, .group = INPUT, .initial = "completions",
     .choices = SW_LOSS_CHOICES, .what = "tokens of chats and prompts that are predicted (tokenize --help)"},
    {.name = "--field", .kind = SW_OPTION_STRING, AT(field), .commands = EVAL, .group = INPUT, .value = "NAME",
     .what = "member of JSON objects with the text or the messages (tokenize --help)"},
    {.name = "--skip-bad", .kind = SW_OPTION_FLAG, AT(skip_bad), .commands = EVAL, .group = INPUT,
     .what = "skip JSON documents that are wrong, and count them"},
    {.name = "--bos", .kind = SW_OPTION_CHOICE, AT(bos), .commands = PASSES, .group = INPUT, .initial = "auto",
     .choices = SW_BOS_CHOICES,
     .what = "token that begins a text; auto: as the tokenizer does; yes: always; no: none"},
    {.name = "--encoding", .kind = SW_OPTION_STRING, AT(encoding), .commands = EVAL, .group = INPUT, .value = "NAME",
     .what = "encoding of text that is not UTF-8 (tokenize --help)"},
    {.name = "--lossy", .kind = SW_OPTION_FLAG, AT(lossy), .commands = EVAL, .group = INPUT,
     .what = "replace bytes that are invalid in the encoding with U+FFFD, and count them"},
    {.name = "--tokens", .kind = SW_OPTION_INT, AT(most_tokens), .commands = EVAL, .group = INPUT, .initial = "auto",
     .value = "N", .int_min = 1, .allow_auto = true, .what = "predict only the first N tokens; auto: all"},
    {.name = "--seq", .kind = SW_OPTION_INT, AT(seq), .commands = EVAL, .group = INPUT, .initial = "auto", .value = "N",
     .int_min = 1, .int_max = 1 << 22, .allow_auto = true,
     .what = "tokens of a window, the context that predictions see; auto: 1024, or fewer if the model has fewer "
             "positions"},
    {.name = "--prompt", .kind = SW_OPTION_STRING, AT(prompt), .commands = GENERATE, .group = INPUT, .value = "TEXT",
     .what = "text to continue, in tokens if the model has a tokenizer.json, else in bytes"},
    {.name = "--prompt-file", .kind = SW_OPTION_STRING, AT(prompt_file), .commands = GENERATE, .group = INPUT,
     .value = "FILE", .what = "file with the text to continue instead"},
    {.name = "--chat", .kind = SW_OPTION_FLAG, AT(chat), .commands = GENERATE, .group = INPUT,
     .what = "talk to the model: it answers each line of standard input; --prompt is the first turn"},
    {.name = "--system", .kind = SW_OPTION_STRING, AT(system), .commands = GENERATE, .group = INPUT, .value = "TEXT",
     .what = "system turn that a chat begins with"},
    {.name = "--chat-format", .kind = SW_OPTION_STRING, AT(chat_format), .commands = PASSES, .group = INPUT,
     .initial = "auto", .value = "NAME",
     .what = "format of chats, one of those in tokenize --help; auto: the model's chat template"},
    {.name = "--tokens", .kind = SW_OPTION_STRING, AT(token_file), .commands = GENERATE, .group = INPUT,
     .value = "FILE", .what = "file to continue instead: tokens (.bin), or text (.txt) of which each byte is a token"},
    {.name = "--nvme", .kind = SW_OPTION_LIST, AT(nvme), .commands = PASSES | EXPORT | VERIFY | TENSORS, .group = INPUT,
     .value = "DIR|DEVICE",
     .what = "where the run's store is now, if it moved; repeat for a striped store; default: where the run has it"},
    {.name = "--model", .kind = SW_OPTION_STRING, AT(model), .commands = PASSES | EXPORT | VERIFY | TENSORS, .group = INPUT,
     .value = "DIR",
     .what = "where the model with the run's frozen weights is now, if it moved; default: where it was in training"},

    {.name = "--adapter", .kind = SW_OPTION_STRING, AT(adapter), .commands = PASSES | EXPORT, .group = INPUT,
     .value = "FOLDER", .what = "adapter of the model, as PEFT or `spillway export` writes it"},

    {.name = "OUT", .kind = SW_OPTION_STRING, AT(to), .commands = EXPORT, .group = OUTPUT, .required = true,
     .what = "folder to write: new, or empty"},
    {.name = "--merge", .kind = SW_OPTION_FLAG, AT(merge), .commands = EXPORT, .group = OUTPUT,
     .what = "write the whole model with its adapters merged into it, not the adapters alone"},
    {.name = "--dtype", .kind = SW_OPTION_CHOICE, AT(type), .commands = EXPORT, .group = OUTPUT, .initial = "f32",
     .choices = "f32|bf16|f16", .what = "type of the tensors"},
    {.name = "--shard-size", .kind = SW_OPTION_SIZE, AT(shard_bytes), .commands = EXPORT, .group = OUTPUT,
     .initial = "5GiB", .value = "SIZE", .int_min = 1,
     .what = "largest file; more weights are written as several files and an index"},

    {.name = "--max-tokens", .kind = SW_OPTION_INT, AT(max_tokens), .commands = GENERATE, .group = SAMPLING,
     .initial = "200", .value = "N", .int_min = 1, .int_max = MAX_NEW_TOKENS,
     .what = "most tokens to write; an end token ends the text earlier"},
    {.name = "--temperature", .kind = SW_OPTION_REAL, AT(temperature), .commands = GENERATE, .group = SAMPLING,
     .initial = "0.8", .value = "X", .real_min = 0, .real_max = 100,
     .what = "divides the logits; 0: always the most likely token"},
    {.name = "--top-k", .kind = SW_OPTION_INT, AT(top_k), .commands = GENERATE, .group = SAMPLING, .initial = "0",
     .value = "N", .int_min = 0, .what = "choose among the N most likely tokens; 0: all"},
    {.name = "--top-p", .kind = SW_OPTION_REAL, AT(top_p), .commands = GENERATE, .group = SAMPLING, .initial = "1",
     .value = "P", .real_min = 0.0001, .real_max = 1,
     .what = "of the tokens that --top-k leaves, choose among the most likely ones whose probabilities together "
             "reach P"},
    {.name = "--min-p", .kind = SW_OPTION_REAL, AT(min_p), .commands = GENERATE, .group = SAMPLING, .initial = "0",
     .value = "P", .real_min = 0, .real_max = 1,
     .what = "of these, choose among tokens at least P times as probable as the most likely one; 0: all"},
    {.name = "--repetition-penalty", .kind = SW_OPTION_REAL, AT(repetition_penalty), .commands = GENERATE,
     .group = SAMPLING, .initial = "1", .value = "X", .real_min = 0.01, .real_max = 100,
     .what = "for tokens that are in the text already, divides logits above 0 and multiplies those below; 1: none"},
    {.name = "--seed", .kind = SW_OPTION_INT, AT(seed), .commands = GENERATE, .group = SAMPLING, .initial = "0",
     .value = "N", .int_min = 0, .what = "seed of the choice of tokens"},

    {.name = "--device-memory", .kind = SW_OPTION_SIZE, AT(inference.device_memory), .commands = PASSES,
     .group = MEMORY, .initial = "auto", .value = "SIZE", .allow_auto = true,
     .what = "device memory to use, such as 8GiB; auto: most of what is available"},
    {.name = "--host-memory", .kind = SW_OPTION_SIZE, AT(inference.host_memory), .commands = PASSES, .group = MEMORY,
     .initial = "auto", .value = "SIZE", .allow_auto = true,
     .what = "host memory to use; auto: a tenth of what is available"},
    {.name = "--scratch", .kind = SW_OPTION_LIST, AT(inference.scratch), .commands = PASSES, .group = MEMORY,
     .value = "FOLDER",
     .what = "folder on a fast drive for a temporary copy of weights that memory cannot hold; repeat for several "
             "drives; default: where the run's store is"},
    {.name = "--allow-buffered", .kind = SW_OPTION_FLAG, AT(inference.allow_buffered), .commands = PASSES,
     .group = MEMORY, .what = "accept a --scratch without O_DIRECT; weights then go through the page cache"},

    {.name = "--device", .kind = SW_OPTION_CHOICE, AT(inference.device), .commands = PASSES, .group = DEVICE,
     .initial = "auto", .choices = "auto|cpu|cuda",
     .what = "device that computes; auto: the CUDA GPU, or the CPU where there is no GPU"},
    {.name = "--precision", .kind = SW_OPTION_CHOICE, AT(inference.precision), .commands = PASSES, .group = DEVICE,
     .initial = "auto", .choices = "auto|bf16|fp16|fp32",
     .what = "type of weights and activations; auto: bf16 if the device has it"},
    {.name = "--micro-batch", .kind = SW_OPTION_INT, AT(micro_batch), .commands = EVAL, .group = DEVICE,
     .initial = "auto", .value = "N", .int_min = 1, .int_max = 1 << 20, .allow_auto = true,
     .what = "windows computed at once; auto: as many as hold 4096 tokens"},
    {.name = "--threads", .kind = SW_OPTION_INT, AT(inference.threads), .commands = PASSES, .group = DEVICE,
     .initial = "auto", .value = "N", .int_min = 1, .int_max = 4096, .allow_auto = true,
     .what = "CPU threads; auto: all cores"},

    {.name = "--tensor", .kind = SW_OPTION_INT, AT(inference.tensor), .commands = PASSES, .group = RANKS,
     .initial = "auto", .value = "N", .int_min = 1, .int_max = SW_SETTINGS_MOST_RANKS, .allow_auto = true,
     .what = "cut each layer into parts for groups of N neighbouring ranks; auto: eval 1, so that each rank has whole "
             "layers and its share of the windows; generate all ranks"},
    {.name = "--rank-timeout", .kind = SW_OPTION_DURATION, AT(inference.rank_timeout), .commands = PASSES,
     .group = RANKS, .initial = "60", .value = "TIME", .int_min = 1,
     .what = "end all ranks when one is silent for this long, or idle while others wait for it"},

    {.name = "--to", .kind = SW_OPTION_STRING, AT(array), .commands = TENSORS, .group = OUTPUT, .value = "FILE",
     .what = "the numpy array to write (.npy), with --name; - is standard output"},
    {.name = "--json", .kind = SW_OPTION_FLAG, AT(json), .commands = EVAL | VERIFY | TENSORS, .group = OUTPUT,
     .what = "print one JSON object on standard output"},
};
/* clang-format on */
#define TABLE .options = options, .option_count = sizeof options / sizeof options[0]

static sw_status check_prompt(const void *target) {
    const struct sw_read_options *given = target;
    const int prompts = (given->prompt != NULL) + (given->prompt_file != NULL) + (given->token_file != NULL);
    if (given->chat && (given->prompt_file != NULL || given->token_file != NULL))
        return sw_fail(SW_ERR_ARG, "--chat takes turns from --prompt and standard input; leave out --prompt-file and "
                                   "--tokens");
    if (given->system != NULL && !given->chat)
        return sw_fail(SW_ERR_ARG, "--system begins a chat; give --chat too");
    if (prompts != 1 && !(given->chat && prompts == 0))
        return sw_fail(SW_ERR_ARG, "give one of --prompt, --prompt-file and --tokens, or --chat");
    SW_TRY(sw_places_check(&given->nvme));
    return sw_chat_format_check(given->chat_format);
}

static sw_status check_places(const void *target) {
    const struct sw_read_options *given = target;
    return sw_places_check(&given->nvme);
}

static sw_status check_tensor(const void *target) {
    const struct sw_read_options *given = target;
    if ((given->name == NULL) != (given->array == NULL))
        return sw_fail(SW_ERR_ARG, "--name and --to go together: which tensor is written, and where to");
    if (given->name != NULL && given->json)
        return sw_fail(SW_ERR_ARG, "--json lists the tensors; leave it out to write one");
    return sw_places_check(&given->nvme);
}

static sw_status check_data(const void *target) {
    const struct sw_read_options *given = target;
    SW_TRY(sw_places_check(&given->nvme));
    SW_TRY(sw_chat_format_check(given->chat_format));
    return sw_text_coding_check(given->encoding);
}

const struct sw_command_line sw_eval_command = {
    .command = "eval",
    .bit = EVAL,
    .summary = "Prints a model's loss and perplexity on a file of tokens or text.",
    TABLE,
    .check = check_data,
    .examples = {"spillway eval runs/a --data held-out.bin", "spillway eval model --data held-out.txt --json",
                 "spillway eval runs/a --data held-out.bin --seq 32 --tokens 1000"}};
const struct sw_command_line sw_generate_command = {
    .command = "generate",
    .bit = GENERATE,
    .summary = "Continues a text or tokens, or answers in a chat.",
    TABLE,
    .check = check_prompt,
    .examples = {"spillway generate runs/a --tokens prompt.bin --max-tokens 50",
                 "spillway generate runs/b --prompt 'Once upon a time' --temperature 0.7",
                 "spillway generate model --chat --prompt Hello --max-tokens 20"}};
const struct sw_command_line sw_export_command = {
    .command = "export",
    .bit = EXPORT,
    .summary = "Writes the weights of a run's last commit as a Hugging Face folder, and adapters as PEFT's.",
    TABLE,
    .check = check_places,
    .examples = {"spillway export runs/a out", "spillway export runs/a out-bf16 --dtype bf16",
                 "spillway export runs/a out-small --dtype bf16 --shard-size 2GiB"}};
const struct sw_command_line sw_tensors_command = {
    .command = "tensors",
    .bit = TENSORS,
    .summary = "Lists the tensors of the last commit of a run or a store, or writes one as a numpy array of fp32.",
    TABLE,
    .check = check_tensor,
    .examples = {"spillway tensors runs/a", "spillway tensors runs/a --json",
                 "spillway tensors runs/b --name transformer.ln_f.weight --part m --to m.npy"}};
const struct sw_command_line sw_verify_command = {
    .command = "verify",
    .bit = VERIFY,
    .summary = "Reads all of a run's last commit and checks every checksum.",
    TABLE,
    .check = check_places,
    .examples = {"spillway verify runs/a", "spillway verify runs/a --json", "spillway verify runs/c --nvme runs/c"}};

/* Checks that all ranks were given the same arguments. */
static sw_status agree_on_arguments(struct sw_ranks *ranks, int argc, char **argv) {
    size_t bytes = 1;
    for (int i = 0; i < argc; i++)
        bytes += strlen(argv[i]) + 1;
    char *all = calloc(1, bytes), *at = all;
    sw_status status = all != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to compare the arguments of all ranks");
    for (int i = 0; all != NULL && i < argc; i++)
        at = stpcpy(at, argv[i]) + 1;
    const struct sw_comm_claim claim = {.kind = SW_CLAIM_EQUAL,
                                        .what = "command line",
                                        .remedy = "give all ranks the same",
                                        .value = all,
                                        .bytes = (int64_t)bytes};
    status = sw_ranks_agree_on_error(ranks, status);
    if (status == SW_OK)
        status = sw_ranks_agree(ranks, &claim, 1);
    free(all);
    return status;
}

int sw_read_on_ranks(const struct sw_command_line *line, int argc, char **argv,
                     sw_status (*run)(struct sw_ranks *ranks, const struct sw_read_options *given)) {
    struct sw_read_options given = {0};
    struct sw_ranks ranks;
    int code;
    if (!sw_command_begin(&ranks, line->command, &code))
        return code;
    if (sw_command_parse_ranks(&ranks, line, argc, argv, &given, &code)) {
        sw_status status = agree_on_arguments(&ranks, argc, argv);
        if (status == SW_OK)
            status = sw_ranks_begin_watch(&ranks, given.inference.rank_timeout);
        if (status == SW_OK)
            status = run(&ranks, &given);
        code = status == SW_OK ? SW_EXIT_DONE : sw_command_fail_ranks(&ranks, status);
    }
    sw_options_release(line, &given);
    sw_command_end(&ranks, code);
    return code;
}

sw_status sw_read_groups(struct sw_ranks *ranks, const struct sw_inference_options *asked, int automatic_ranks,
                         int *out) {
    const int count = sw_ranks_count(ranks);
    const int64_t wanted = asked->tensor == SW_OPTION_AUTO ? automatic_ranks : asked->tensor;
    if (count % wanted != 0)
        return sw_fail(SW_ERR_USAGE,
                       "--tensor %lld makes groups of %lld ranks, and this job has %d; start a multiple of %lld with "
                       "mpirun -n, or give another --tensor",
                       (long long)wanted, (long long)wanted, count, (long long)wanted);
    *out = (int)wanted;
    return SW_OK;
}

int sw_read_bos(const struct sw_read_options *given, const struct sw_source *source) {
    return given->bos != SW_BOS_AUTO ? given->bos : sw_source_bos(source);
}

sw_status sw_read_same_step(struct sw_ranks *ranks, const struct sw_source *source) {
    const int64_t step = sw_source_step(source);
    int64_t range[] = {step, -step};
    SW_TRY(sw_ranks_least(ranks, range, 2));
    return range[0] == -range[1] ? SW_OK : sw_fail(SW_ERR_OVERTAKEN, "the run has committed a step meanwhile");
}
