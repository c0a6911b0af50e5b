/* Fails for unknown flags. Flags of axolotl, LLaMA-Factory, torchtune, transformers and Unsloth come first: users type
 * them from habit, and no spelling suggestion finds a flag that has another name here. */
#include "job/settings/options_internal.h"

#include <ctype.h>
#include <string.h>

enum { WORD_CHARS = 48 };

struct peer_word {
    const char *word;   /* lower case, with hyphens, without leading dashes */
    const char *flag;   /* the flag that does the same; NULL: no flag does, and `advice` says what to do */
    const char *advice; /* what differs, as the end of a sentence; NULL: only the name does */
};

static const struct peer_word words[] = {
    {.word = "learning-rate", .flag = "--lr"},
    {.word = "peak-lr", .flag = "--lr"},
    {.word = "min-learning-rate", .flag = "--min-lr"},
    {.word = "cosine-min-lr-ratio", .flag = "--min-lr", .advice = "an absolute rate, not a ratio"},
    {.word = "lr-scheduler", .flag = "--schedule", .advice = "constant, linear, cosine or wsd"},
    {.word = "lr-scheduler-type", .flag = "--schedule", .advice = "constant, linear, cosine or wsd"},
    {.word = "warmup-steps", .flag = "--warmup", .advice = "in steps"},
    {.word = "num-warmup-steps", .flag = "--warmup", .advice = "in steps"},
    {.word = "warmup-ratio", .flag = "--warmup", .advice = "in steps, not a share of them"},
    {.word = "max-steps", .flag = "--steps"},
    {.word = "train-iters", .flag = "--steps"},
    {.word = "max-iters", .flag = "--steps"},
    {.word = "num-iterations", .flag = "--steps"},
    {.word = "num-epochs", .flag = "--epochs"},
    {.word = "num-train-epochs", .flag = "--epochs"},
    {.word = "batch-size", .flag = "--batch-tokens", .advice = "tokens of a step over all ranks: sequences x --seq"},
    {.word = "global-batch-size",
     .flag = "--batch-tokens",
     .advice = "tokens of a step over all ranks: sequences x --seq"},
    {.word = "train-batch-size",
     .flag = "--batch-tokens",
     .advice = "tokens of a step over all ranks: sequences x --seq"},
    {.word = "total-batch-size", .flag = "--batch-tokens", .advice = "tokens of a step over all ranks"},
    {.word = "gradient-accumulation-steps",
     .flag = "--batch-tokens",
     .advice = "tokens of a step over all ranks; the micro-batches that accumulate follow from it and --micro-batch"},
    {.word = "grad-accum",
     .flag = "--batch-tokens",
     .advice = "tokens of a step over all ranks; the micro-batches that accumulate follow from it and --micro-batch"},
    {.word = "micro-batch-size", .flag = "--micro-batch", .advice = "sequences that a rank computes at once"},
    {.word = "per-device-train-batch-size",
     .flag = "--micro-batch",
     .advice = "sequences that a rank computes at once"},
    {.word = "device-batch-size", .flag = "--micro-batch", .advice = "sequences that a rank computes at once"},
    {.word = "train-micro-batch-size-per-gpu",
     .flag = "--micro-batch",
     .advice = "sequences that a rank computes at once"},
    {.word = "max-seq-length", .flag = "--seq"},
    {.word = "max-seq-len", .flag = "--seq"},
    {.word = "max-length", .flag = "--seq"},
    {.word = "seq-len", .flag = "--seq"},
    {.word = "seq-length", .flag = "--seq"},
    {.word = "sequence-len", .flag = "--seq"},
    {.word = "sequence-length", .flag = "--seq"},
    {.word = "cutoff-len", .flag = "--seq"},
    {.word = "block-size", .flag = "--seq"},
    {.word = "context-length", .flag = "--seq"},
    {.word = "model-name-or-path", .flag = "--model", .advice = "a Hugging Face folder on this machine"},
    {.word = "model-name", .flag = "--model", .advice = "a Hugging Face folder on this machine"},
    {.word = "base-model", .flag = "--model", .advice = "a Hugging Face folder on this machine"},
    {.word = "checkpoint-dir", .flag = "--model", .advice = "a Hugging Face folder on this machine"},
    {.word = "output-dir", .flag = "--run", .advice = "a new folder"},
    {.word = "out-dir", .flag = "--run", .advice = "a new folder"},
    {.word = "save-dir", .flag = "--run", .advice = "a new folder"},
    {.word = "dataset", .flag = "--data", .advice = "files or folders on this machine"},
    {.word = "datasets", .flag = "--data", .advice = "files or folders on this machine"},
    {.word = "dataset-path", .flag = "--data", .advice = "files or folders on this machine"},
    {.word = "dataset-name", .flag = "--data", .advice = "files or folders on this machine"},
    {.word = "train-file", .flag = "--data"},
    {.word = "train-data", .flag = "--data"},
    {.word = "data-path", .flag = "--data"},
    {.word = "input", .flag = "--data"},
    {.word = "validation-file", .flag = "--val"},
    {.word = "val-data", .flag = "--val"},
    {.word = "val-set-size", .flag = "--val", .advice = "a file, or a share of the training data such as 2%"},
    {.word = "val-size", .flag = "--val", .advice = "a file, or a share of the training data such as 2%"},
    {.word = "eval-steps", .flag = "--eval-every"},
    {.word = "eval-interval", .flag = "--eval-every"},
    {.word = "eval-strategy", .flag = "--eval-every", .advice = "in steps"},
    {.word = "evaluation-strategy", .flag = "--eval-every", .advice = "in steps"},
    {.word = "evals-per-epoch", .flag = "--eval-every", .advice = "in steps"},
    {.word = "save-steps", .flag = "--save-every"},
    {.word = "save-interval", .flag = "--save-every"},
    {.word = "save-strategy", .flag = "--save-every", .advice = "steps, a time, or whichever comes first"},
    {.word = "saves-per-epoch", .flag = "--save-every", .advice = "steps, a time, or whichever comes first"},
    {.word = "save-total-limit", .flag = "--keep", .advice = "exports to keep"},
    {.word = "early-stopping-patience", .flag = "--early-stop", .advice = "evaluations in a row"},
    {.word = "max-grad-norm", .flag = "--clip"},
    {.word = "grad-clip", .flag = "--clip"},
    {.word = "clip-grad", .flag = "--clip"},
    {.word = "gradient-clipping", .flag = "--clip"},
    {.word = "adam-beta1", .flag = "--beta1"},
    {.word = "adam-beta2", .flag = "--beta2"},
    {.word = "adam-epsilon", .flag = "--eps"},
    {.word = "wd", .flag = "--weight-decay"},
    {.word = "optim", .flag = "--optimizer-state", .advice = "AdamW always trains; fp32, bf16 or 8bit moments"},
    {.word = "optimizer-type",
     .flag = "--optimizer-state",
     .advice = "AdamW always trains; fp32, bf16 or 8bit moments"},
    {.word = "optimizer", .flag = "--optimizer-state", .advice = "AdamW always trains; fp32, bf16 or 8bit moments"},
    {.word = "bf16", .flag = "--precision", .advice = "--precision bf16"},
    {.word = "fp16", .flag = "--precision", .advice = "--precision fp16"},
    {.word = "fp32", .flag = "--precision", .advice = "--precision fp32"},
    {.word = "tf32", .flag = "--precision", .advice = "--precision tf32"},
    {.word = "fp8", .flag = "--precision", .advice = "--precision fp8"},
    {.word = "dtype", .flag = "--precision"},
    {.word = "torch-dtype", .flag = "--precision"},
    {.word = "mixed-precision", .flag = "--precision"},
    {.word = "gradient-checkpointing", .flag = "--recompute", .advice = "auto, all or none"},
    {.word = "activation-checkpointing", .flag = "--recompute", .advice = "auto, all or none"},
    {.word = "freeze-layers", .flag = "--freeze"},
    {.word = "unfrozen-parameters", .flag = "--freeze", .advice = "what is not trained, not what is"},
    {.word = "train-on-inputs", .flag = "--loss", .advice = "--loss all"},
    {.word = "train-on-input", .flag = "--loss", .advice = "--loss all"},
    {.word = "completion-only-loss", .flag = "--loss", .advice = "--loss completions, which is the default"},
    {.word = "assistant-only-loss", .flag = "--loss", .advice = "--loss completions, which is the default"},
    {.word = "chat-template", .flag = "--chat-format"},
    {.word = "template", .flag = "--chat-format"},
    {.word = "zero-stage", .flag = "--zero"},
    {.word = "deepspeed", .flag = "--zero", .advice = "a stage; placement is --place, and needs no file"},
    {.word = "deepspeed-config", .flag = "--zero", .advice = "a stage; placement is --place, and needs no file"},
    {.word = "fsdp", .flag = "--zero", .advice = "stage 3 shards as FSDP does"},
    {.word = "offload-optimizer", .flag = "--place", .advice = "such as optimizer=host or optimizer=nvme"},
    {.word = "offload-param", .flag = "--place", .advice = "such as weights=host or weights=nvme"},
    {.word = "nvme-path", .flag = "--nvme"},
    {.word = "tensor-parallel-size", .flag = "--tensor"},
    {.word = "tensor-model-parallel-size", .flag = "--tensor"},
    {.word = "tp", .flag = "--tensor"},
    {.word = "config", .flag = "--recipe", .advice = "a YAML file of spillway's own flags"},
    {.word = "config-file", .flag = "--recipe", .advice = "a YAML file of spillway's own flags"},
    {.word = "max-new-tokens", .flag = "--max-tokens"},
    {.word = "n-predict", .flag = "--max-tokens"},
    {.word = "temp", .flag = "--temperature"},
    {.word = "interactive", .flag = "--chat"},
    {.word = "sample-packing", .advice = "documents are always packed into whole sequences; leave it out"},
    {.word = "packing", .advice = "documents are always packed into whole sequences; leave it out"},
    {.word = "flash-attention", .advice = "attention is always fused; leave it out"},
    {.word = "flash-attn", .advice = "attention is always fused; leave it out"},
    {.word = "attn-implementation", .advice = "attention is always fused; leave it out"},
    {.word = "resume-from-checkpoint", .advice = "'spillway resume RUN' continues a run from its last commit"},
    {.word = "auto-resume-from-checkpoints", .advice = "'spillway resume RUN' continues a run from its last commit"},
    {.word = "report-to",
     .advice = "'spillway report RUN' draws a run; docs/guide/report.md names the scripts for "
               "TensorBoard and W&B"},
    {.word = "wandb-project",
     .advice = "'spillway report RUN' draws a run; docs/guide/report.md names the script "
               "for W&B"},
    {.word = "logging-steps", .advice = "every step is a line of the run's log.jsonl; leave it out"},
    {.word = "num-gpus", .advice = "'mpirun -n N spillway train ...' or Slurm starts N ranks, one a GPU"},
    {.word = "nproc-per-node", .advice = "'mpirun -n N spillway train ...' or Slurm starts N ranks, one a GPU"},
    {.word = "use-peft", .advice = "all parameters are trained; --freeze leaves out whole units"},
    {.word = "use-lora", .advice = "all parameters are trained; --freeze leaves out whole units"},
    {.word = "finetuning-type", .advice = "all parameters are trained; --freeze leaves out whole units"},
};

/* Adapters have many flags, and none of them exists here. */
static const char *const adapter_prefixes[] = {"lora", "qlora", "peft", "adapter", "load-in-4bit", "load-in-8bit"};
static const char adapter_advice[] = "adapters are not trained here: all parameters are, or those that --freeze leaves";

/* Copies a flag as the tables have it; false where it is too long to be one of theirs. */
static bool normalise(const char *typed, size_t length, char word[WORD_CHARS]) {
    size_t dashes = 0, chars = 0;
    while (dashes < length && typed[dashes] == '-')
        dashes++;
    if (length - dashes >= WORD_CHARS)
        return false;
    for (size_t i = dashes; i < length; i++)
        word[chars++] = (char)(typed[i] == '_' ? '-' : tolower((unsigned char)typed[i]));
    word[chars] = '\0';
    return true;
}

static sw_status fail_known(const struct sw_command_line *line, const struct peer_word *known, const char *typed,
                            size_t length) {
    if (known->flag == NULL)
        return sw_fail(SW_ERR_ARG, "%s has no flag %.*s: %s", line->command, (int)length, typed, known->advice);
    if (sw_option_find(line, known->flag, strlen(known->flag)) == NULL)
        return SW_OK;
    return sw_fail(SW_ERR_ARG, "%s has no flag %.*s; here it is %s%s%s%s", line->command, (int)length, typed,
                   known->flag, known->advice != NULL ? " (" : "", known->advice != NULL ? known->advice : "",
                   known->advice != NULL ? ")" : "");
}

/* Returns SW_OK for a word that no other trainer has either. */
static sw_status fail_peer_word(const struct sw_command_line *line, const char *typed, size_t length) {
    char word[WORD_CHARS];
    if (!normalise(typed, length, word))
        return SW_OK;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(words[i].word, word) == 0)
            return fail_known(line, &words[i], typed, length);
    for (size_t i = 0; i < sizeof adapter_prefixes / sizeof adapter_prefixes[0]; i++)
        if (strncmp(word, adapter_prefixes[i], strlen(adapter_prefixes[i])) == 0)
            return sw_fail(SW_ERR_ARG, "%s has no flag %.*s: %s", line->command, (int)length, typed, adapter_advice);
    return SW_OK;
}

sw_status sw_option_fail_unknown(const struct sw_command_line *line, const char *typed, size_t length) {
    SW_TRY(fail_peer_word(line, typed, length));
    const char *nearest = sw_options_nearest(line, typed, length);
    if (nearest != NULL)
        return sw_fail(SW_ERR_ARG, "%s has no flag %.*s; did you mean %s?", line->command, (int)length, typed, nearest);
    return sw_fail(SW_ERR_ARG, "%s has no flag %.*s; 'spillway %s --help' lists its flags", line->command, (int)length,
                   typed, line->command);
}
