#include "model/hf/folder_contents.h"

#include "core/files/json_file.h"
#include "core/log.h"
#include "core/status.h"

#include <dirent.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_ADAPTER_BYTES = 1 << 20, NAMED_FILES = 4, LIST_CHARS = 512 };

/* The command that saves a folder's model as safetensors; '@' stands for the folder. transformers must be able to load
 * it. */
#define CONVERT(more)                                                                                                  \
    "python3 -c \"from transformers import AutoModelForCausalLM as M; M.from_pretrained('@'" more                      \
    ", torch_dtype='auto').save_pretrained('converted')\""
#define PICKLED "which is a program and not read: write its state dict with safetensors.torch.save_file"

/* Names of files that tell what a folder holds, most telling first. `advice` continues the sentence "FOLDER has no
 * config.json; it has NAME, ", with @ for the folder and # for the file. */
static const struct content {
    const char *pattern, *advice;
} contents[] = {
    {"snapshots", "so it is a folder of the Hub's cache: give the folder of one version, which is in @/snapshots"},
    {"run.json", "so it is the folder of a run: `spillway export @ OUT` makes a model of it, which --model takes"},
    {"consolidated*.safetensors", "weights under Mistral's own names: download the model-*.safetensors of the model"},
    {"model-*-of-*.safetensors", "and no model.safetensors.index.json that names all such files: download that too"},
    {"*.safetensors", "safetensors under another name: if @/# holds the whole model, rename it to model.safetensors"},
    {"pytorch_model*.bin", "which is a program and not read: convert it with " CONVERT("")},
    {"consolidated*.pth", "weights in Meta's own format: download the model's safetensors, or convert them with "
                          "transformers' convert_llama_weights_to_hf"},
    {"*.gguf",
     "weights of llama.cpp: download the model's safetensors, or convert it with " CONVERT(", gguf_file='#'")},
    {"zero_to_fp32.py", "so it is a checkpoint of DeepSpeed: gather it with python3 @/zero_to_fp32.py @ converted "
                        "--safe_serialization, and copy config.json and the tokenizer's files to converted"},
    {"*.distcp", "so it is a sharded checkpoint of FSDP: merge it with accelerate merge-weights @ converted"},
    {"pytorch_model_fsdp_*", "so it is a sharded checkpoint of FSDP: merge it with accelerate merge-weights @/# "
                             "converted"},
    {"*.pt", PICKLED},
    {"*.pth", PICKLED},
    {"*.ckpt", PICKLED},
    {"*.bin", PICKLED},
    {"*.h5", "weights of TensorFlow: download the model's safetensors"},
    {"*.msgpack", "weights of Flax: download the model's safetensors"},
    {"*.onnx", "a graph that cannot be trained: download the model's safetensors"},
    {"*.incomplete", "so its download has not ended: start that again"},
    {"checkpoint-*", "so it holds the checkpoints of a run: give one of them, such as @/#"},
};
enum { CONTENTS = sizeof contents / sizeof contents[0] };

/* Tells whether a file with this pattern says nothing about weights: trainers write such files next to them. */
static bool is_silent(const char *name) {
    return strcmp(name, "training_args.bin") == 0 || strcmp(name, "optimizer.bin") == 0 ||
           strcmp(name, "optimizer.pt") == 0 || strcmp(name, "scheduler.pt") == 0 || strcmp(name, "scaler.pt") == 0 ||
           fnmatch("rng_state*.pth", name, 0) == 0;
}

/* The names of a folder's entries. */
struct listing {
    char first[CONTENTS][NAME_MAX + 1]; /* for each kind of content the first name in alphabetical order */
    char names[LIST_CHARS];             /* a list of names for messages, cut off where it is full */
    int64_t count;
};

static void take_name(struct listing *listing, const char *name) {
    for (int c = 0; !is_silent(name) && c < CONTENTS; c++)
        if (fnmatch(contents[c].pattern, name, 0) == 0 &&
            (listing->first[c][0] == 0 || strcmp(name, listing->first[c]) < 0))
            snprintf(listing->first[c], sizeof listing->first[c], "%s", name);
    const size_t used = strlen(listing->names);
    if (listing->count++ < NAMED_FILES)
        snprintf(listing->names + used, sizeof listing->names - used, "%s%.100s", used > 0 ? ", " : "", name);
}

static int visible(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

static sw_status list(const char *folder, struct listing *out) {
    struct dirent **entry = NULL;
    *out = (struct listing){0};
    const int count = scandir(folder, &entry, visible, alphasort);
    if (count < 0)
        return sw_fail(SW_ERR_IO, "the folder %s cannot be read: %m", folder);
    for (int i = 0; i < count; i++) {
        take_name(out, entry[i]->d_name);
        free(entry[i]);
    }
    free(entry);
    return SW_OK;
}

static bool has(const char *folder, const char *name) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

/* Reads which model an adapter changes; writes an empty text if its file does not say so. */
static void read_base_model(const char *folder, char out[LIST_CHARS]) {
    SW_HANDLES_ERRORS();
    char path[PATH_MAX];
    json_t *json = NULL;
    out[0] = 0;
    snprintf(path, sizeof path, "%s/adapter_config.json", folder);
    if (sw_json_read_file(path, MOST_ADAPTER_BYTES, SW_ERR_ARG, &json) != SW_OK)
        return; /* the message then leaves out the name of the adapter's model */
    const char *base = json_string_value(json_object_get(json, "base_model_name_or_path"));
    if (base != NULL)
        snprintf(out, LIST_CHARS, " of the model '%.200s'", base);
    json_decref(json);
}

static sw_status fail_adapter(const char *folder, const char *what) {
    char base[LIST_CHARS];
    read_base_model(folder, base);
    return sw_fail(
        SW_ERR_ARG,
        "%s has no %s: it holds an adapter%s and not the model; give the folder of that model, and --adapter "
        "%s",
        folder, what, base, folder);
}

/* Writes advice, with the names of the folder and the file filled in. */
static void write_advice(const char *advice, const char *folder, const char *file, char out[2 * LIST_CHARS]) {
    size_t used = 0;
    for (const char *at = advice; *at != 0 && used < 2 * LIST_CHARS; at++) {
        if (*at == '@' || *at == '#')
            used += (size_t)snprintf(out + used, 2 * LIST_CHARS - used, "%s", *at == '@' ? folder : file);
        else
            used += (size_t)snprintf(out + used, 2 * LIST_CHARS - used, "%c", *at);
    }
}

sw_status sw_folder_fail_without(const char *folder, const char *what) {
    struct listing *listing = malloc(sizeof *listing);
    if (listing == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to list %s", folder);
    sw_status status = list(folder, listing);
    if (status == SW_OK && (has(folder, "adapter_config.json") || has(folder, "adapter_model.safetensors") ||
                            has(folder, "adapter_model.bin")))
        status = fail_adapter(folder, what);
    for (int c = 0; status == SW_OK && c < CONTENTS; c++) {
        char advice[2 * LIST_CHARS];
        if (listing->first[c][0] == 0)
            continue;
        write_advice(contents[c].advice, folder, listing->first[c], advice);
        status = sw_fail(SW_ERR_ARG, "%s has no %s; it has %s, %s", folder, what, listing->first[c], advice);
    }
    if (status == SW_OK && listing->count == 0)
        status = sw_fail(SW_ERR_ARG, "%s has no %s: it is empty", folder, what);
    if (status == SW_OK)
        status = sw_fail(SW_ERR_ARG, "%s has no %s; it has %s%s: download the model's files into it", folder, what,
                         listing->names, listing->count > NAMED_FILES ? " and more" : "");
    free(listing);
    return status;
}

bool sw_folder_has_weights(const char *folder) {
    return has(folder, "model.safetensors") || has(folder, "model.safetensors.index.json");
}

sw_status sw_folder_check_weights(const char *folder) {
    const bool there = sw_folder_has_weights(folder);
    if (there && has(folder, "adapter_config.json"))
        sw_log_warn("%s has an adapter beside the model (adapter_config.json), which is left out: give --adapter %s to "
                    "use it",
                    folder, folder);
    if (there)
        return SW_OK;
    return sw_folder_fail_without(folder, "model.safetensors");
}
