#include "model/hf/checkpoint_names.h"

#include "core/log.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PREFIX_CHARS = 256 };

struct sw_checkpoint_names {
    const struct sw_safetensors *tensors;
    const char *root;
    char **bare;      /* the name of each tensor of the file, by its index */
    int64_t *by_name; /* indices of tensors, in the order of their bare names */
    int64_t count;
    size_t prefix_chars; /* characters of the wrappers' prefix, which all tensors share */
};

/* Wrappers of a model and the prefix that each puts before the tensors' names. Where `within` is set, it is in the
 * middle of names too, after a part of the model was wrapped. */
static const struct wrapper {
    const char *prefix, *what;
    bool within;
} wrappers[] = {
    {"_orig_mod.", "torch.compile", true},
    {"_fsdp_wrapped_module.", "FSDP", true},
    {"_checkpoint_wrapped_module.", "activation checkpointing", true},
    {"_forward_module.", "Lightning", true},
    {"module.", "DataParallel, DDP or DeepSpeed", false},
    {"base_model.model.", "PEFT", false},
    {"language_model.", "a multimodal model", true},
};
enum { WRAPPERS = sizeof wrappers / sizeof wrappers[0] };

/* Parts of names that no plain weights have. */
enum sign_kind { ADAPTER, QUANTIZED, MULTIMODAL, VALUE_HEAD };
static const struct sign {
    const char *part;
    enum sign_kind kind;
    const char *what;
    bool at_end;
} signs[] = {
    {".lora_", ADAPTER, "LoRA", false},
    {".base_layer.", ADAPTER, "PEFT", false},
    {".modules_to_save.", ADAPTER, "PEFT", false},
    {".original_module.", ADAPTER, "PEFT", false},
    {".hada_w", ADAPTER, "LoHa", false},
    {".lokr_w", ADAPTER, "LoKr", false},
    {".ia3_l", ADAPTER, "IA3", false},
    {"prompt_embeddings", ADAPTER, "prompt tuning", false},
    {".qweight", QUANTIZED, "GPTQ or AWQ", true},
    {".qzeros", QUANTIZED, "GPTQ or AWQ", true},
    {".g_idx", QUANTIZED, "GPTQ", true},
    {".scales", QUANTIZED, "GPTQ or AWQ", true},
    {".absmax", QUANTIZED, "bitsandbytes", false},
    {".quant_map", QUANTIZED, "bitsandbytes", false},
    {".quant_state.", QUANTIZED, "bitsandbytes", false},
    {".SCB", QUANTIZED, "bitsandbytes", true},
    {".weight_format", QUANTIZED, "bitsandbytes", true},
    {".weight_scale", QUANTIZED, "fp8 or compressed-tensors", false},
    {".input_scale", QUANTIZED, "fp8", true},
    {".activation_scale", QUANTIZED, "fp8", true},
    {".weight_packed", QUANTIZED, "compressed-tensors", true},
    {".weight_zero_point", QUANTIZED, "compressed-tensors", true},
    {"_blocks", QUANTIZED, "MXFP4", true},
    {"_scales", QUANTIZED, "MXFP4", true},
    {".codebooks", QUANTIZED, "AQLM", true},
    {".W_q", QUANTIZED, "HQQ", true},
    {"vision_tower.", MULTIMODAL, "vision", false},
    {"vision_model.", MULTIMODAL, "vision", false},
    {"vision_encoder.", MULTIMODAL, "vision", false},
    {"visual.", MULTIMODAL, "vision", false},
    {"multi_modal_projector.", MULTIMODAL, "vision", false},
    {"multimodal_projector.", MULTIMODAL, "vision", false},
    {"mm_projector.", MULTIMODAL, "vision", false},
    {"image_newline", MULTIMODAL, "vision", false},
    {"audio_tower.", MULTIMODAL, "audio", false},
    {"v_head.", VALUE_HEAD, "a value head", false},
    {"score.weight", VALUE_HEAD, "the head of a classifier or reward model", true},
};
enum { SIGNS = sizeof signs / sizeof signs[0] };

static bool begins(const char *name, const char *prefix) {
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

static bool has_sign(const char *name, const struct sign *sign) {
    const char *found = strstr(name, sign->part);
    return found != NULL && (!sign->at_end || strcmp(name + strlen(name) - strlen(sign->part), sign->part) == 0);
}

static sw_status fail_sign(const char *folder, const char *name, const struct sign *sign, int64_t count) {
    switch (sign->kind) {
    case ADAPTER:
        return sw_fail(SW_ERR_ARG,
                       "the weights in %s hold an adapter (%s: tensors such as '%s', %lld in all): merge it into its "
                       "model first, with PEFT's merge_and_unload() and save_pretrained(), and give the folder that "
                       "this makes",
                       folder, sign->what, name, (long long)count);
    case QUANTIZED:
        return sw_fail(
            SW_ERR_UNSUPPORTED,
            "the weights in %s are quantized (%s: tensors such as '%s', %lld in all), and training needs them "
            "in BF16, F16 or F32: give the model that they were made from, or write it so with "
            "transformers' dequantize() and save_pretrained()",
            folder, sign->what, name, (long long)count);
    case MULTIMODAL:
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "the weights in %s are those of a multimodal model (%s: tensors such as '%s', %lld in all), and "
                       "only models of text are supported: save its language model alone with save_pretrained() and "
                       "give the folder that this makes",
                       folder, sign->what, name, (long long)count);
    case VALUE_HEAD: break;
    }
    return sw_fail(SW_ERR_UNSUPPORTED,
                   "the weights in %s have %s ('%s'), which training would drop: save the language model alone with "
                   "save_pretrained() and give the folder that this makes",
                   folder, sign->what, name);
}

/* Refuses tensors whose names say that they are no plain weights. The first kind of the list that is there is named. */
static sw_status refuse_signs(const struct sw_safetensors *tensors, const char *folder) {
    for (const struct sign *sign = signs; sign < signs + SIGNS; sign++) {
        const char *first = NULL;
        int64_t count = 0;
        for (int64_t i = 0; i < sw_safetensors_count(tensors); i++) {
            const char *name = sw_safetensors_at(tensors, i)->name;
            if (!has_sign(name, sign))
                continue;
            first = first == NULL ? name : first;
            count++;
        }
        if (first != NULL)
            return fail_sign(folder, first, sign, count);
    }
    return SW_OK;
}

/* A tensor's name behind the prefix that all share. */
static const char *rest_at(const struct sw_checkpoint_names *names, int64_t index) {
    return sw_safetensors_at(names->tensors, index)->name + names->prefix_chars;
}

/* Counts the tensors whose names go on with a prefix. *out_with and *out_without name one that does and one that does
 * not; NULL: there is none. */
static int64_t count_with(const struct sw_checkpoint_names *names, const char *prefix, const char **out_with,
                          const char **out_without) {
    int64_t count = 0;
    *out_with = *out_without = NULL;
    for (int64_t i = 0; i < names->count; i++) {
        const bool with = begins(rest_at(names, i), prefix);
        *(with ? out_with : out_without) = sw_safetensors_at(names->tensors, i)->name;
        count += with;
    }
    return count;
}

/* Tells whether `prefix`, with which all names go on and which is a root too, is a wrapper's attribute, such as the
 * `model` of a Lightning module: a root, the output table or a wrapper's own prefix follows it. */
static bool is_doubled(const struct sw_checkpoint_names *names, const char *prefix) {
    int64_t wrapped = 0;
    for (int64_t i = 0; i < names->count; i++) {
        const char *rest = rest_at(names, i) + strlen(prefix);
        if (begins(rest, names->root) || begins(rest, "lm_head."))
            return true;
        for (int w = 0; w < WRAPPERS; w++)
            wrapped += begins(rest, wrappers[w].prefix);
    }
    return wrapped == names->count;
}

/* Leaves out one prefix that all names share. *out_what says what wrote it; NULL: there was none. */
static sw_status take_prefix(struct sw_checkpoint_names *names, const char *folder, const char **out_what) {
    const char *with, *without;
    *out_what = NULL;
    for (int w = 0; w < WRAPPERS; w++) {
        const int64_t count = count_with(names, wrappers[w].prefix, &with, &without);
        if (count == names->count) {
            names->prefix_chars += strlen(wrappers[w].prefix);
            *out_what = wrappers[w].what;
            return SW_OK;
        }
        if (count > 0)
            return sw_fail(SW_ERR_ARG,
                           "the weights in %s are a mixture: %lld of %lld tensors have the prefix '%s' of %s, such as "
                           "'%s', and others such as '%s' do not; save the model again without the wrapper",
                           folder, (long long)count, (long long)names->count, wrappers[w].prefix, wrappers[w].what,
                           with, without);
    }
    const char *const roots[] = {"model.", names->root};
    for (int r = 0; r < 2; r++) {
        if (count_with(names, roots[r], &with, &without) < names->count || !is_doubled(names, roots[r]))
            continue;
        names->prefix_chars += strlen(roots[r]);
        *out_what = "a wrapper";
        return SW_OK;
    }
    return SW_OK;
}

static sw_status take_prefixes(struct sw_checkpoint_names *names, const char *folder) {
    char whats[PREFIX_CHARS] = "";
    size_t used = 0;
    const char *what = NULL;
    do {
        SW_TRY(take_prefix(names, folder, &what));
        if (what != NULL && used < sizeof whats)
            used += (size_t)snprintf(whats + used, sizeof whats - used, "%s%s", used > 0 ? ", " : "", what);
    } while (what != NULL && names->prefix_chars < SW_SAFETENSORS_NAME_CHARS);
    if (names->prefix_chars > 0)
        sw_log_info("%s: the prefix '%.*s' of %s is left out of the names of all %lld tensors", folder,
                    (int)names->prefix_chars, sw_safetensors_at(names->tensors, 0)->name, whats,
                    (long long)names->count);
    return SW_OK;
}

const char *sw_checkpoint_names_bare(const struct sw_checkpoint_names *names, const char *name) {
    return begins(name, names->root) ? name + strlen(names->root) : name;
}

/* Removes what wrappers of a part of the model put into the middle of a name. */
static void cut_inner(char *name) {
    for (int w = 0; w < WRAPPERS; w++) {
        const size_t chars = strlen(wrappers[w].prefix);
        char *at = name;
        while (wrappers[w].within && (at = strstr(at, wrappers[w].prefix)) != NULL) {
            if (at == name || at[-1] == '.')
                memmove(at, at + chars, strlen(at + chars) + 1);
            else
                at += chars;
        }
    }
}

static int by_name(const void *a, const void *b, void *context) {
    char *const *bare = context;
    return strcmp(bare[*(const int64_t *)a], bare[*(const int64_t *)b]);
}

static sw_status sort_names(struct sw_checkpoint_names *names, const char *folder) {
    for (int64_t i = 0; i < names->count; i++) {
        char name[SW_SAFETENSORS_NAME_CHARS];
        snprintf(name, sizeof name, "%s", rest_at(names, i));
        cut_inner(name);
        names->by_name[i] = i;
        names->bare[i] = strdup(sw_checkpoint_names_bare(names, name));
        if (names->bare[i] == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory for the names of the tensors in %s", folder);
    }
    qsort_r(names->by_name, (size_t)names->count, sizeof *names->by_name, by_name, names->bare);
    for (int64_t i = 1; i < names->count; i++) {
        const int64_t a = names->by_name[i - 1], b = names->by_name[i];
        if (strcmp(names->bare[a], names->bare[b]) == 0)
            return sw_fail(SW_ERR_ARG, "the weights in %s have '%s' twice: as '%s' and as '%s'", folder, names->bare[a],
                           sw_safetensors_at(names->tensors, a)->name, sw_safetensors_at(names->tensors, b)->name);
    }
    return SW_OK;
}

sw_status sw_checkpoint_names_create(const struct sw_safetensors *tensors, const char *folder, const char *root,
                                     struct sw_checkpoint_names **out) {
    struct sw_checkpoint_names *names = calloc(1, sizeof *names);
    if (names == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the names of the tensors in %s", folder);
    *names = (struct sw_checkpoint_names){.tensors = tensors, .root = root, .count = sw_safetensors_count(tensors)};
    names->bare = calloc((size_t)names->count + 1, sizeof *names->bare);
    names->by_name = calloc((size_t)names->count + 1, sizeof *names->by_name);
    sw_status status = names->bare != NULL && names->by_name != NULL
                           ? SW_OK
                           : sw_fail(SW_ERR_NOMEM, "no memory for the names of the tensors in %s", folder);
    if (status == SW_OK && names->count == 0)
        status = sw_fail(SW_ERR_ARG, "the weights in %s hold no tensor", folder);
    if (status == SW_OK)
        status = refuse_signs(tensors, folder);
    if (status == SW_OK)
        status = take_prefixes(names, folder);
    if (status == SW_OK)
        status = sort_names(names, folder);
    if (status != SW_OK) {
        sw_checkpoint_names_destroy(names);
        return status;
    }
    *out = names;
    return SW_OK;
}

void sw_checkpoint_names_destroy(struct sw_checkpoint_names *names) {
    if (names == NULL)
        return;
    for (int64_t i = 0; names->bare != NULL && i < names->count; i++)
        free(names->bare[i]);
    free(names->bare);
    free(names->by_name);
    free(names);
}

const struct sw_safetensor *sw_checkpoint_names_find(const struct sw_checkpoint_names *names, const char *name) {
    const char *sought = sw_checkpoint_names_bare(names, name);
    int64_t from = 0, to = names->count;
    while (from < to) {
        const int64_t middle = from + (to - from) / 2, index = names->by_name[middle];
        const int order = strcmp(sought, names->bare[index]);
        if (order == 0)
            return sw_safetensors_at(names->tensors, index);
        if (order < 0)
            to = middle;
        else
            from = middle + 1;
    }
    return NULL;
}

const char *sw_checkpoint_names_at(const struct sw_checkpoint_names *names, int64_t index) {
    return names->bare[index];
}
