/* Parses the flags of a command, and recipes, by a table.
 *
 * Each flag is one row: its kind, range, default, help and place in the settings. Parsing, --help, run.json, recipes,
 * the manual and the completions all read the rows, so a flag cannot be documented and not exist, or exist and not be
 * kept. A value from run.json or a recipe is turned into the text that a user would type, and goes through the same
 * checks.
 *
 * Unknown flags of other trainers get an answer by name, because no spelling suggestion finds a flag that is called
 * something else here. */
#include "core/files/files.h"
#include "core/log.h"
#include "core/size.h"
#include "core/text/text.h"
#include "job/settings/options_internal.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

/* Looks up rows in the table of a command's flags. */

const struct sw_option *sw_option_next(const struct sw_command_line *line, const struct sw_option *previous) {
    const struct sw_option *option = previous == NULL ? line->options : previous + 1;
    for (; option < line->options + line->option_count; option++)
        if (line->bit == 0 || (option->commands & line->bit) != 0)
            return option;
    return NULL;
}

/* Returns the command's flag of this name (not terminated, `length` characters), or NULL. */
static const struct sw_option *option_find(const struct sw_command_line *line, const char *name, size_t length) {
    for (const struct sw_option *option = NULL; (option = sw_option_next(line, option)) != NULL;)
        if (sw_option_has_flag(option) && strlen(option->name) == length && strncmp(option->name, name, length) == 0)
            return option;
    return NULL;
}

bool sw_options_have(const struct sw_command_line *line, const char *argument) {
    return option_find(line, argument, strcspn(argument, "=")) != NULL;
}

/* Returns the command's flag most similar to the typed one, or NULL if none is near. */
static const char *options_nearest(const struct sw_command_line *line, const char *typed, size_t length) {
    struct sw_nearest nearest = sw_nearest_begin(typed, length);
    for (const struct sw_option *option = NULL; (option = sw_option_next(line, option)) != NULL;)
        if (sw_option_has_flag(option))
            sw_nearest_consider(&nearest, option->name);
    return nearest.name;
}

/* Parses the text of one value into its member. */

enum { SECONDS_PER_MINUTE = 60, SECONDS_PER_HOUR = 3600, EVERY_PART_CHARS = 32 };

static int64_t int_max_of(const struct sw_option *option) {
    return option->int_max != 0 ? option->int_max : INT64_MAX;
}

static sw_status fail_int(const struct sw_option *option, const char *text) {
    const char *or_auto = option->allow_auto ? ", or auto" : "";
    if (option->int_max == 0)
        return sw_fail(SW_ERR_ARG, "%s is '%.200s'; it must be a whole number of at least %lld%s", option->name, text,
                       (long long)option->int_min, or_auto);
    return sw_fail(SW_ERR_ARG, "%s is '%.200s'; it must be a whole number from %lld to %lld%s", option->name, text,
                   (long long)option->int_min, (long long)option->int_max, or_auto);
}

static sw_status set_int(const struct sw_option *option, const char *text, int64_t *out) {
    char *end = NULL;
    errno = 0;
    const long long number = strtoll(text, &end, 10);
    const bool is_number = end != text && *end == '\0' && errno == 0 && !isspace((unsigned char)text[0]);
    if (!is_number || number < option->int_min || number > int_max_of(option))
        return fail_int(option, text);
    *out = number;
    return SW_OK;
}

static sw_status set_real(const struct sw_option *option, const char *text, double *out) {
    char *end = NULL;
    const double number = strtod(text, &end);
    const bool is_number = end != text && *end == '\0' && isfinite(number) && !isspace((unsigned char)text[0]);
    const bool has_max = option->real_max != 0;
    const bool too_large = has_max && (option->below_max ? number >= option->real_max : number > option->real_max);
    if (is_number && number >= option->real_min && !too_large) {
        *out = number;
        return SW_OK;
    }
    const char *or_auto = option->allow_auto ? ", or auto" : "";
    if (!has_max)
        return sw_fail(SW_ERR_ARG, "%s is '%.200s'; it must be a number of at least %g%s", option->name, text,
                       option->real_min, or_auto);
    return sw_fail(SW_ERR_ARG, "%s is '%.200s'; it must be a number from %g to %s%g%s", option->name, text,
                   option->real_min, option->below_max ? "below " : "", option->real_max, or_auto);
}

static sw_status set_size(const struct sw_option *option, const char *text, int64_t *out) {
    int64_t bytes = 0;
    const sw_status status = sw_parse_size(text, &bytes);
    if (status != SW_OK)
        return sw_fail_while(status, "reading %s", option->name);
    char least[SW_SIZE_CHARS], most[SW_SIZE_CHARS];
    if (bytes < option->int_min || bytes > int_max_of(option))
        return sw_fail(SW_ERR_ARG, "%s is '%.200s'; it must be from %s to %s", option->name, text,
                       sw_format_size(option->int_min, least), sw_format_size(int_max_of(option), most));
    *out = bytes;
    return SW_OK;
}

/* Returns the seconds of a number with its unit, or -1 for any other text. */
static int64_t seconds_of(const char *text) {
    static const struct {
        const char *name;
        int64_t seconds;
    } units[] = {{"", 1}, {"s", 1}, {"m", SECONDS_PER_MINUTE}, {"min", SECONDS_PER_MINUTE}, {"h", SECONDS_PER_HOUR}};
    char *end = NULL;
    errno = 0;
    const long long number = isdigit((unsigned char)text[0]) ? strtoll(text, &end, 10) : -1;
    int64_t seconds = 0;
    for (size_t i = 0; end != NULL && errno == 0 && i < sizeof units / sizeof units[0]; i++)
        if (strcmp(end, units[i].name) == 0 && sw_mul_i64(number, units[i].seconds, &seconds))
            return seconds;
    return -1;
}

static sw_status set_duration(const struct sw_option *option, const char *text, int64_t *out) {
    const int64_t seconds = seconds_of(text);
    if (seconds < 0 || seconds < option->int_min || seconds > int_max_of(option))
        return sw_fail(SW_ERR_ARG, "%s is '%.200s'; it must be a time of at least %s, such as 90s, 15m or 2h",
                       option->name, text, SW_COUNT(option->int_min, "second"));
    *out = seconds;
    return SW_OK;
}

/* Reads "100,10m": a number without a unit counts steps, one with a unit is a time. */
static sw_status set_every(const struct sw_option *option, const char *text, struct sw_option_every *out) {
    char part[EVERY_PART_CHARS];
    struct sw_option_every every = {0};
    for (const char *at = text;; at++) {
        const size_t chars = strcspn(at, ",");
        snprintf(part, sizeof part, "%.*s", (int)chars, at);
        const bool is_steps = part[strspn(part, "0123456789")] == '\0';
        int64_t *member = is_steps ? &every.steps : &every.seconds;
        const int64_t value = chars < sizeof part ? seconds_of(part) : -1;
        if (value < 1 || *member != 0)
            return sw_fail(SW_ERR_ARG, "%s is '%.200s'; it must be steps, a time or both, such as 100, 10m or 100,10m",
                           option->name, text);
        *member = value;
        at += chars;
        if (*at == '\0')
            break;
    }
    *out = every;
    return SW_OK;
}

bool sw_option_choice_name(const struct sw_option *option, int index, char buffer[SW_OPTION_CHOICE_CHARS]) {
    const char *at = option->choices;
    for (int i = 0; i < index && at != NULL; i++) {
        at = strchr(at, '|');
        at = at != NULL ? at + 1 : NULL;
    }
    if (at == NULL || index < 0)
        return false;
    const size_t length = strcspn(at, "|");
    assert(length < SW_OPTION_CHOICE_CHARS);
    memcpy(buffer, at, length);
    buffer[length] = '\0';
    return true;
}

static sw_status set_choice(const struct sw_option *option, const char *text, int *out) {
    char name[SW_OPTION_CHOICE_CHARS];
    for (int i = 0; sw_option_choice_name(option, i, name); i++) {
        if (strcmp(name, text) == 0) {
            *out = i;
            return SW_OK;
        }
    }
    return sw_fail(SW_ERR_ARG, "%s is '%.200s'; it must be one of %s", option->name, text, option->choices);
}

static sw_status check_text(const struct sw_option *option, const char *text) {
    return text[0] != '\0' ? SW_OK : sw_fail(SW_ERR_ARG, "%s is empty; give a value", option->name);
}

static sw_status set_string(const struct sw_option *option, const char *text, char **out) {
    SW_TRY(check_text(option, text));
    char *copy = strdup(text);
    if (copy == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the value of %s", option->name);
    free(*out);
    *out = copy;
    return SW_OK;
}

static void set_auto(const struct sw_option *option, void *member) {
    assert(option->kind == SW_OPTION_INT || option->kind == SW_OPTION_SIZE || option->kind == SW_OPTION_DURATION ||
           option->kind == SW_OPTION_REAL);
    if (option->kind == SW_OPTION_REAL)
        *(double *)member = (double)SW_OPTION_AUTO;
    else
        *(int64_t *)member = SW_OPTION_AUTO;
}

bool sw_option_has_value(const struct sw_option *option, const void *target) {
    const void *member = (const char *)target + option->offset;
    if (option->kind == SW_OPTION_STRING)
        return *(char *const *)member != NULL;
    return !sw_option_is_list(option) || ((const struct sw_option_list *)member)->count > 0;
}

bool sw_option_is_auto(const struct sw_option *option, const void *target) {
    const void *member = (const char *)target + option->offset;
    if (!option->allow_auto)
        return false;
    return option->kind == SW_OPTION_REAL ? *(const double *)member == (double)SW_OPTION_AUTO
                                          : *(const int64_t *)member == SW_OPTION_AUTO;
}

sw_status sw_option_set(const struct sw_option *option, const char *text, void *target) {
    void *member = sw_option_member(option, target);
    if (option->allow_auto && strcmp(text, "auto") == 0) {
        set_auto(option, member);
        return SW_OK;
    }
    switch (option->kind) {
    case SW_OPTION_FLAG: *(bool *)member = true; return SW_OK;
    case SW_OPTION_STRING: return set_string(option, text, member);
    case SW_OPTION_INT: return set_int(option, text, member);
    case SW_OPTION_REAL: return set_real(option, text, member);
    case SW_OPTION_SIZE: return set_size(option, text, member);
    case SW_OPTION_DURATION: return set_duration(option, text, member);
    case SW_OPTION_EVERY: return set_every(option, text, member);
    case SW_OPTION_CHOICE: return set_choice(option, text, member);
    case SW_OPTION_LIST:
    case SW_OPTION_MANY: SW_TRY(check_text(option, text)); return sw_option_list_add(member, text);
    }
    return sw_fail(SW_ERR_INTERNAL, "%s has no known kind", option->name);
}

sw_status sw_option_list_add(struct sw_option_list *list, const char *text) {
    char **items = realloc(list->items, ((size_t)list->count + 1) * sizeof *items);
    if (items == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a list of %d texts", list->count + 1);
    list->items = items;
    items[list->count] = strdup(text);
    if (items[list->count] == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a list of %d texts", list->count + 1);
    list->count++;
    return SW_OK;
}

void sw_option_list_release(struct sw_option_list *list) {
    for (int i = 0; i < list->count; i++)
        free(list->items[i]);
    free(list->items);
    *list = (struct sw_option_list){0};
}

void sw_option_clear(const struct sw_option *option, void *target) {
    void *member = sw_option_member(option, target);
    if (option->kind == SW_OPTION_STRING) {
        free(*(char **)member);
        *(char **)member = NULL;
    } else if (sw_option_is_list(option)) {
        sw_option_list_release(member);
    }
}

sw_status sw_options_defaults(const struct sw_command_line *line, void *target) {
    for (const struct sw_option *option = NULL; (option = sw_option_next(line, option)) != NULL;) {
        assert(option->kind != SW_OPTION_FLAG || option->initial == NULL);
        if (option->initial != NULL)
            SW_TRY(sw_option_set(option, option->initial, target));
    }
    return SW_OK;
}

void sw_options_release(const struct sw_command_line *line, void *target) {
    for (int i = 0; i < line->option_count; i++)
        sw_option_clear(&line->options[i], target);
}

/* Fails for unknown flags. First come flags of axolotl, LLaMA-Factory, torchtune, transformers and Unsloth: users type
 * them from habit, and no spelling suggestion finds a flag that has another name here. */

enum { WORD_CHARS = 50 };

struct peer_word {
    const char *words;  /* lower case, with hyphens, without leading dashes; a space before and behind each */
    const char *flag;   /* the flag that does the same; NULL: none does, and `advice` says what to do */
    const char *advice; /* what differs, as the end of a sentence; NULL: only the name */
};

static const struct peer_word peer_words[] = {
    {.words = " learning-rate peak-lr ", .flag = "--lr"},
    {.words = " min-learning-rate ", .flag = "--min-lr"},
    {.words = " cosine-min-lr-ratio ", .flag = "--min-lr", .advice = "an absolute rate, not a ratio"},
    {.words = " lr-scheduler lr-scheduler-type ", .flag = "--schedule", .advice = "constant, linear, cosine or wsd"},
    {.words = " warmup-steps num-warmup-steps ", .flag = "--warmup", .advice = "in steps"},
    {.words = " warmup-ratio ", .flag = "--warmup", .advice = "in steps, not a share of them"},
    {.words = " max-steps train-iters max-iters num-iterations ", .flag = "--steps"},
    {.words = " num-epochs num-train-epochs ", .flag = "--epochs"},
    {.words = " batch-size global-batch-size train-batch-size ",
     .flag = "--batch-tokens",
     .advice = "tokens of a step over all ranks: sequences x --seq"},
    {.words = " total-batch-size ", .flag = "--batch-tokens", .advice = "tokens of a step over all ranks"},
    {.words = " gradient-accumulation-steps grad-accum ",
     .flag = "--batch-tokens",
     .advice = "tokens of a step over all ranks; the micro-batches that accumulate follow from it and --micro-batch"},
    {.words = " micro-batch-size per-device-train-batch-size device-batch-size train-micro-batch-size-per-gpu ",
     .flag = "--micro-batch",
     .advice = "sequences that a rank computes at once"},
    {.words = " max-seq-length max-seq-len max-length seq-len seq-length sequence-len sequence-length cutoff-len "
              "block-size context-length ",
     .flag = "--seq"},
    {.words = " model-name-or-path model-name base-model checkpoint-dir ",
     .flag = "--model",
     .advice = "a Hugging Face folder on this machine"},
    {.words = " output-dir out-dir save-dir ", .flag = "--run", .advice = "a new folder"},
    {.words = " dataset datasets dataset-path dataset-name ",
     .flag = "--data",
     .advice = "files or folders on this machine"},
    {.words = " train-file train-data data-path input ", .flag = "--data"},
    {.words = " validation-file val-data ", .flag = "--val"},
    {.words = " val-set-size val-size ",
     .flag = "--val",
     .advice = "a file, or a share of the training data such as 2%"},
    {.words = " eval-steps eval-interval ", .flag = "--eval-every"},
    {.words = " eval-strategy evaluation-strategy evals-per-epoch ", .flag = "--eval-every", .advice = "in steps"},
    {.words = " save-steps save-interval ", .flag = "--save-every"},
    {.words = " save-strategy saves-per-epoch ",
     .flag = "--save-every",
     .advice = "steps, a time, or whichever comes first"},
    {.words = " save-total-limit ", .flag = "--keep", .advice = "exports to keep"},
    {.words = " early-stopping-patience ", .flag = "--early-stop", .advice = "evaluations in a row"},
    {.words = " max-grad-norm grad-clip clip-grad gradient-clipping ", .flag = "--clip"},
    {.words = " adam-beta1 ", .flag = "--beta1"},
    {.words = " adam-beta2 ", .flag = "--beta2"},
    {.words = " adam-epsilon ", .flag = "--eps"},
    {.words = " wd ", .flag = "--weight-decay"},
    {.words = " optim optimizer-type ", .flag = "--optimizer", .advice = "adamw or muon"},
    {.words = " bf16 ", .flag = "--precision", .advice = "--precision bf16"},
    {.words = " fp16 ", .flag = "--precision", .advice = "--precision fp16"},
    {.words = " fp32 ", .flag = "--precision", .advice = "--precision fp32"},
    {.words = " tf32 ", .flag = "--precision", .advice = "--precision tf32"},
    {.words = " fp8 ", .flag = "--precision", .advice = "--precision fp8"},
    {.words = " dtype torch-dtype mixed-precision ", .flag = "--precision"},
    {.words = " gradient-checkpointing activation-checkpointing ",
     .flag = "--recompute",
     .advice = "auto, all or none"},
    {.words = " load-in-4bit ", .flag = "--base-format", .advice = "--base-format nf4, with --lora or --freeze"},
    {.words = " load-in-8bit ", .flag = "--base-format", .advice = "--base-format int8, with --lora or --freeze"},
    {.words = " bnb-4bit-quant-type ", .flag = "--base-format", .advice = "nf4, with --lora or --freeze"},
    {.words = " quantization-bit ", .flag = "--base-format", .advice = "int8 or nf4, with --lora or --freeze"},
    {.words = " freeze-layers ", .flag = "--freeze"},
    {.words = " unfrozen-parameters ", .flag = "--freeze", .advice = "what is not trained, not what is"},
    {.words = " train-on-inputs train-on-input ", .flag = "--loss", .advice = "--loss all"},
    {.words = " completion-only-loss assistant-only-loss ",
     .flag = "--loss",
     .advice = "--loss completions, which is the default"},
    {.words = " chat-template template ", .flag = "--chat-format"},
    {.words = " zero-stage ", .flag = "--zero"},
    {.words = " deepspeed deepspeed-config ",
     .flag = "--zero",
     .advice = "a stage; placement is --place, and needs no file"},
    {.words = " fsdp ", .flag = "--zero", .advice = "stage 3 shards as FSDP does"},
    {.words = " offload-optimizer ", .flag = "--place", .advice = "such as optimizer=host or optimizer=nvme"},
    {.words = " offload-param ", .flag = "--place", .advice = "such as weights=host or weights=nvme"},
    {.words = " nvme-path ", .flag = "--nvme"},
    {.words = " tensor-parallel-size tensor-model-parallel-size tp ", .flag = "--tensor"},
    {.words = " config config-file ", .flag = "--recipe", .advice = "a YAML file of spillway's own flags"},
    {.words = " max-new-tokens n-predict ", .flag = "--max-tokens"},
    {.words = " temp ", .flag = "--temperature"},
    {.words = " interactive ", .flag = "--chat"},
    {.words = " sample-packing packing ", .advice = "documents are always packed into whole sequences; leave it out"},
    {.words = " flash-attention flash-attn attn-implementation ", .advice = "attention is always fused; leave it out"},
    {.words = " resume-from-checkpoint auto-resume-from-checkpoints ",
     .advice = "'spillway resume RUN' continues a run from its last commit"},
    {.words = " report-to ",
     .advice = "'spillway report RUN' draws a run; docs/guide/report.md names the scripts for TensorBoard and W&B"},
    {.words = " wandb-project ",
     .advice = "'spillway report RUN' draws a run; docs/guide/report.md names the script for W&B"},
    {.words = " logging-steps ", .advice = "every step is a line of the run's log.jsonl; leave it out"},
    {.words = " num-gpus nproc-per-node ",
     .advice = "'mpirun -n N spillway train ...' or Slurm starts N ranks, one a GPU"},
    {.words = " use-peft use-lora lora-r lora-rank ", .flag = "--lora", .advice = "the rank of the adapters"},
    {.words = " finetuning-type ", .flag = "--lora", .advice = "the rank of the adapters; without it all is trained"},
    {.words = " lora-target lora-target-modules ", .flag = "--lora-targets"},
    {.words = " lora-target-linear ", .flag = "--lora-targets", .advice = "all matrices of blocks without the flag"},
    {.words = " lora-modules-to-save additional-target ", .flag = "--modules-to-save"},
    {.words = " use-rslora ", .flag = "--rslora"},
    {.words = " use-dora ", .advice = "adapters change no magnitudes; leave it out"},
};

/* Other trainers have many more flags for adapters. */
static const char *const adapter_prefixes[] = {"lora", "qlora", "peft", "adapter"};
static const char adapter_advice[] =
    "adapters have the flags --lora, --lora-alpha, --rslora, --lora-dropout, --lora-targets "
    "and --modules-to-save";

/* Copies a flag in the spelling of the tables, between two spaces. Returns false if it is too long to be one of theirs.
 */
static bool normalise(const char *typed, size_t length, char word[WORD_CHARS]) {
    size_t dashes = 0, chars = 0;
    while (dashes < length && typed[dashes] == '-')
        dashes++;
    if (length - dashes + sizeof "  " > WORD_CHARS)
        return false;
    word[chars++] = ' ';
    for (size_t i = dashes; i < length; i++)
        word[chars++] = (char)(typed[i] == '_' ? '-' : tolower((unsigned char)typed[i]));
    word[chars++] = ' ';
    word[chars] = '\0';
    return true;
}

static sw_status fail_known(const struct sw_command_line *line, const struct peer_word *known, const char *typed,
                            size_t length) {
    if (known->flag == NULL)
        return sw_fail(SW_ERR_ARG, "%s has no flag %.*s: %s", line->command, (int)length, typed, known->advice);
    if (option_find(line, known->flag, strlen(known->flag)) == NULL)
        return SW_OK;
    return sw_fail(SW_ERR_ARG, "%s has no flag %.*s; here it is %s%s%s%s", line->command, (int)length, typed,
                   known->flag, known->advice != NULL ? " (" : "", known->advice != NULL ? known->advice : "",
                   known->advice != NULL ? ")" : "");
}

/* Returns SW_OK for a word that no other trainer uses either. */
static sw_status fail_peer_word(const struct sw_command_line *line, const char *typed, size_t length) {
    char word[WORD_CHARS];
    if (!normalise(typed, length, word))
        return SW_OK;
    for (size_t i = 0; i < sizeof peer_words / sizeof peer_words[0]; i++)
        if (strstr(peer_words[i].words, word) != NULL)
            return fail_known(line, &peer_words[i], typed, length);
    for (size_t i = 0; i < sizeof adapter_prefixes / sizeof adapter_prefixes[0]; i++)
        if (option_find(line, "--lora", strlen("--lora")) != NULL &&
            strncmp(word + 1, adapter_prefixes[i], strlen(adapter_prefixes[i])) == 0)
            return sw_fail(SW_ERR_ARG, "%s has no flag %.*s: %s", line->command, (int)length, typed, adapter_advice);
    return SW_OK;
}

/* Fails for a flag that the command does not have. Names the flag that does the same as another trainer's flag of this
 * name, else the nearest. */
static sw_status option_fail_unknown(const struct sw_command_line *line, const char *typed, size_t length) {
    SW_TRY(fail_peer_word(line, typed, length));
    const char *nearest = options_nearest(line, typed, length);
    if (nearest != NULL)
        return sw_fail(SW_ERR_ARG, "%s has no flag %.*s; did you mean %s?", line->command, (int)length, typed, nearest);
    return sw_fail(SW_ERR_ARG, "%s has no flag %.*s; 'spillway %s --help' lists its flags", line->command, (int)length,
                   typed, line->command);
}

/* Reads a recipe: a YAML file whose keys are flags, such as `batch-tokens: 16384`, `data: [a.bin, b.bin]`, `init:
 * true`. */

/* As much as a run writes (settings_flags.c). */
#define MOST_BYTES ((size_t)16 << 20)
/* No recipe is nested deeper or has more anchors; libyaml would take a time that grows with their square. */
enum { NAME_CHARS = 64, NAME_PREFIX_CHARS = 2, MOST_LEVELS = 16, MOST_ANCHORS = 64 };

struct recipe {
    const struct sw_command_line *line;
    const char *path;
    void *target;
    bool *given; /* by index of the option */
    yaml_document_t document;
};

static const char *scalar_of(const yaml_node_t *node) {
    return node->type == YAML_SCALAR_NODE ? (const char *)node->data.scalar.value : NULL;
}

static bool is_nothing(const yaml_node_t *node) {
    const char *text = scalar_of(node);
    return text == NULL || (node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
                            (text[0] == '\0' || strcmp(text, "~") == 0 || strcmp(text, "null") == 0));
}

/* A recipe of train works for plan too, which skips the flags that it does not have. */
static bool another_command_has(const struct sw_command_line *line, const char *name) {
    for (int i = 0; i < line->option_count; i++)
        if (strcmp(line->options[i].name, name) == 0)
            return true;
    return false;
}

static sw_status set_scalar(const struct recipe *recipe, const struct sw_option *option, const yaml_node_t *node) {
    if (is_nothing(node))
        return sw_fail(SW_ERR_ARG, "%s has no value, or one that is neither a word nor a list of words", option->name);
    const char *text = scalar_of(node);
    if (option->kind != SW_OPTION_FLAG)
        return sw_option_set(option, text, recipe->target);
    if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0)
        return sw_fail(SW_ERR_ARG, "%s is '%s'; it must be true or false", option->name, text);
    return strcmp(text, "true") == 0 ? sw_option_set(option, NULL, recipe->target) : SW_OK;
}

static sw_status set_value(struct recipe *recipe, const struct sw_option *option, const yaml_node_t *node) {
    bool *given = &recipe->given[option - recipe->line->options];
    if (option->recipe)
        return sw_fail(SW_ERR_ARG, "a recipe cannot name another recipe");
    if (*given)
        return sw_fail(SW_ERR_ARG, "%s is given twice; give it once", option->name);
    *given = true;
    sw_option_clear(option, recipe->target);
    if (node->type != YAML_SEQUENCE_NODE || !sw_option_is_list(option))
        return set_scalar(recipe, option, node);
    for (const yaml_node_item_t *item = node->data.sequence.items.start; item < node->data.sequence.items.top; item++)
        SW_TRY(set_scalar(recipe, option, yaml_document_get_node(&recipe->document, *item)));
    return !option->required || sw_option_has_value(option, recipe->target)
               ? SW_OK
               : sw_fail(SW_ERR_ARG, "%s is an empty list; name at least one %s", option->name, option->value);
}

static sw_status set_pair(struct recipe *recipe, const yaml_node_t *key, const yaml_node_t *value) {
    char name[NAME_CHARS];
    const char *text = scalar_of(key);
    const int chars = text != NULL ? snprintf(name, sizeof name, "--%s", text) : 0;
    if (chars <= NAME_PREFIX_CHARS || chars >= NAME_CHARS)
        return sw_fail(SW_ERR_ARG, "a key must be the name of a flag without its dashes");
    for (char *at = name; *at != '\0'; at++)
        *at = *at == '_' ? '-' : *at;
    const struct sw_option *option = option_find(recipe->line, name, (size_t)chars);
    if (option != NULL)
        return set_value(recipe, option, value);
    return another_command_has(recipe->line, name) ? SW_OK : option_fail_unknown(recipe->line, name, (size_t)chars);
}

static sw_status set_all(struct recipe *recipe) {
    const yaml_node_t *root = yaml_document_get_root_node(&recipe->document);
    if (root == NULL || root->type != YAML_MAPPING_NODE)
        return sw_fail(SW_ERR_ARG, "%s is no recipe: it must hold lines such as `batch-tokens: 16384`", recipe->path);
    for (const yaml_node_pair_t *pair = root->data.mapping.pairs.start; pair < root->data.mapping.pairs.top; pair++) {
        const yaml_node_t *key = yaml_document_get_node(&recipe->document, pair->key);
        const sw_status status = set_pair(recipe, key, yaml_document_get_node(&recipe->document, pair->value));
        if (status != SW_OK)
            return sw_fail_while(status, "reading %s, line %zu", recipe->path, key->start_mark.line + 1);
    }
    return SW_OK;
}

static bool has_anchor(const yaml_event_t *event) {
    return (event->type == YAML_SCALAR_EVENT && event->data.scalar.anchor != NULL) ||
           (event->type == YAML_SEQUENCE_START_EVENT && event->data.sequence_start.anchor != NULL) ||
           (event->type == YAML_MAPPING_START_EVENT && event->data.mapping_start.anchor != NULL);
}

/* Runs the parser to the end of the text, or to something that no recipe has. Leaves text that is not YAML to the
 * loader, which says what is wrong. */
static sw_status follow(yaml_parser_t *parser, const char *path) {
    yaml_event_t event;
    int levels = 0, anchors = 0;
    bool ended = false;
    while (!ended && levels <= MOST_LEVELS && anchors <= MOST_ANCHORS && yaml_parser_parse(parser, &event)) {
        levels += event.type == YAML_SEQUENCE_START_EVENT || event.type == YAML_MAPPING_START_EVENT;
        levels -= event.type == YAML_SEQUENCE_END_EVENT || event.type == YAML_MAPPING_END_EVENT;
        anchors += has_anchor(&event);
        ended = event.type == YAML_STREAM_END_EVENT;
        yaml_event_delete(&event);
    }
    if (levels > MOST_LEVELS)
        return sw_fail(SW_ERR_ARG, "%s is no recipe: line %zu has more than %d lists within each other", path,
                       parser->mark.line + 1, MOST_LEVELS);
    return anchors <= MOST_ANCHORS
               ? SW_OK
               : sw_fail(SW_ERR_ARG, "%s is no recipe: up to line %zu it has more than %d anchors (&NAME)", path,
                         parser->mark.line + 1, MOST_ANCHORS);
}

/* Checks the structure before loading, because libyaml has no bounds of its own. Refuses directives first: they are
 * kept until the document begins, and a recipe needs none but %YAML. */
static sw_status check_structure(const char *text, const char *path) {
    yaml_parser_t parser;
    if (strncmp(text, "%TAG", 4) == 0 || strstr(text, "\n%TAG") != NULL)
        return sw_fail(SW_ERR_ARG, "%s has a %%TAG directive, which means nothing in a recipe; remove it", path);
    if (!yaml_parser_initialize(&parser))
        return sw_fail(SW_ERR_NOMEM, "no memory to read %s", path);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, strlen(text));
    const sw_status status = follow(&parser, path);
    yaml_parser_delete(&parser);
    return status;
}

static sw_status read_text(struct recipe *recipe, const char *text) {
    yaml_parser_t parser;
    SW_TRY(check_structure(text, recipe->path));
    if (!yaml_parser_initialize(&parser))
        return sw_fail(SW_ERR_NOMEM, "no memory to read %s", recipe->path);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, strlen(text));
    sw_status status;
    if (yaml_parser_load(&parser, &recipe->document)) {
        status = set_all(recipe);
        yaml_document_delete(&recipe->document);
    } else {
        status = sw_fail(SW_ERR_ARG, "%s is not YAML: line %zu: %s", recipe->path, parser.problem_mark.line + 1,
                         parser.problem);
    }
    yaml_parser_delete(&parser);
    return status;
}

/* Sets the flags that a recipe names, and marks them in `given`, which has an entry per row of the table. */
static sw_status options_read_recipe(const struct sw_command_line *line, const char *path, void *target, bool *given) {
    struct recipe recipe = {.line = line, .path = path, .target = target, .given = given};
    char *text;
    SW_TRY(sw_file_read_text(path, MOST_BYTES, &text));
    const sw_status status = read_text(&recipe, text);
    free(text);
    return status;
}

enum { MAX_OPTIONS = 128 };

struct parser {
    const struct sw_command_line *line;
    void *target;
    int argc;
    char *const *argv;
    int next;                /* index of the next argument */
    bool seen[MAX_OPTIONS];  /* by index of the option: given on the command line */
    bool given[MAX_OPTIONS]; /* by index of the option: given by the recipe */
    bool flags_ended;        /* "--" was read: all later arguments are values */
    bool help;
};

static bool looks_like_flag(const char *text) {
    return text[0] == '-' && text[1] == '-';
}

/* Marks an option as given. The first time, empties its list: given values replace earlier ones. */
static sw_status mark(struct parser *parser, const struct sw_option *option) {
    bool *seen = &parser->seen[option - parser->line->options];
    if (*seen && !sw_option_is_list(option))
        return sw_fail(SW_ERR_ARG, "%s is given twice; give it once", option->name);
    if (!*seen)
        sw_option_clear(option, parser->target);
    *seen = true;
    return SW_OK;
}

static sw_status parse_values(struct parser *parser, const struct sw_option *option) {
    if (parser->next >= parser->argc || looks_like_flag(parser->argv[parser->next]))
        return sw_fail(SW_ERR_ARG, "%s needs a value (%s)", option->name,
                       option->value != NULL ? option->value : "see --help");
    do {
        SW_TRY(sw_option_set(option, parser->argv[parser->next++], parser->target));
    } while (option->kind == SW_OPTION_MANY && parser->next < parser->argc &&
             !looks_like_flag(parser->argv[parser->next]));
    return SW_OK;
}

static sw_status parse_flag(struct parser *parser, const char *argument) {
    const size_t length = strcspn(argument, "=");
    const char *attached = argument[length] == '=' ? argument + length + 1 : NULL;
    const struct sw_option *option = option_find(parser->line, argument, length);
    if (option == NULL)
        return option_fail_unknown(parser->line, argument, length);
    SW_TRY(mark(parser, option));
    if (option->kind == SW_OPTION_FLAG && attached != NULL)
        return sw_fail(SW_ERR_ARG, "%s takes no value, but '%s' is given; leave it out", option->name, attached);
    if (option->kind == SW_OPTION_FLAG || attached != NULL)
        return sw_option_set(option, attached, parser->target);
    return parse_values(parser, option);
}

static sw_status parse_positional(struct parser *parser, const char *argument) {
    const struct sw_command_line *line = parser->line;
    for (const struct sw_option *option = NULL; (option = sw_option_next(line, option)) != NULL;) {
        if (sw_option_has_flag(option) || (parser->seen[option - line->options] && !sw_option_is_list(option)))
            continue;
        SW_TRY(mark(parser, option));
        return sw_option_set(option, argument, parser->target);
    }
    return sw_fail(SW_ERR_ARG, "%s does not know what to do with '%s'; 'spillway %s --help' shows what it takes",
                   line->command, argument, line->command);
}

static bool asks_for_help(const char *argument) {
    return strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0;
}

static sw_status parse_argument(struct parser *parser) {
    const char *argument = parser->argv[parser->next++];
    if (parser->flags_ended)
        return parse_positional(parser, argument);
    if (strcmp(argument, "--") == 0) {
        parser->flags_ended = true;
        return SW_OK;
    }
    if (asks_for_help(argument)) {
        parser->help = true;
        return SW_OK;
    }
    if (strcmp(argument, "--quiet") == 0) {
        sw_log_set_quiet();
        return SW_OK;
    }
    if (argument[0] == '-' && argument[1] != '\0')
        return parse_flag(parser, argument);
    return parse_positional(parser, argument);
}

static sw_status check_required(const struct parser *parser) {
    const struct sw_command_line *line = parser->line;
    for (const struct sw_option *option = NULL; (option = sw_option_next(line, option)) != NULL;)
        if (option->required && !parser->seen[option - line->options] && !parser->given[option - line->options])
            return sw_fail(SW_ERR_ARG, "%s needs %s (%s)", line->command, option->name, option->what);
    return SW_OK;
}

static const struct sw_option *recipe_of(const struct sw_command_line *line) {
    const struct sw_option *option = NULL;
    while ((option = sw_option_next(line, option)) != NULL && !option->recipe)
        ;
    return option;
}

/* Reads the recipe before any other flag, wherever it is on the command line, so that the command line wins. A flag
 * without its file is refused later. */
static sw_status read_recipe(struct parser *parser) {
    const struct sw_option *option = recipe_of(parser->line);
    const size_t chars = option != NULL ? strlen(option->name) : 0;
    for (int i = 0; option != NULL && i < parser->argc; i++) {
        const char *at = parser->argv[i];
        assert(at != NULL);
        if (strcmp(at, "--") == 0)
            break;
        const bool is_flag = strncmp(at, option->name, chars) == 0;
        const char *file = NULL;
        if (is_flag && at[chars] == '=')
            file = at + chars + 1;
        else if (is_flag && at[chars] == '\0' && i + 1 < parser->argc)
            file = parser->argv[i + 1];
        if (file != NULL)
            return options_read_recipe(parser->line, file, parser->target, parser->given);
    }
    return SW_OK;
}

sw_status sw_options_parse(const struct sw_command_line *line, int argc, char *const *argv, void *target,
                           bool *out_help) {
    assert(line->option_count <= MAX_OPTIONS);
    struct parser parser = {.line = line, .target = target, .argc = argc, .argv = argv};
    *out_help = false;
    SW_TRY(read_recipe(&parser));
    while (parser.next < argc && !parser.help)
        SW_TRY(parse_argument(&parser));
    *out_help = parser.help;
    if (parser.help)
        return SW_OK;
    SW_TRY(check_required(&parser));
    return line->check != NULL ? line->check(target) : SW_OK;
}
