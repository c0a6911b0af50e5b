/* Reads weights from a Hugging Face folder: matches the names of the file with the model's tensors, then reads by unit.
 *
 * Names are matched as a whole set before anything is read. Training wrappers put prefixes before names, and a prefix
 * is left out only if all tensors have it: dropping it name by name would let a file with two models load as one. An
 * unexpected tensor is an error, since training would silently drop it.
 *
 * Reads run ahead in the order of units (io/queue/streams.h). The store asks for units in that order, so one queue
 * of reads keeps the drive busy without holding a shard in memory. */
#include "model/hf/checkpoint.h"

#include "core/log.h"
#include "core/size.h"
#include "core/status.h"
#include "io/safetensors/safetensors.h"
#include "model/hf/folder_contents.h"
#include "model/hf/joined_experts.h"
#include "model/hf/quantized.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PREFIX_CHARS = 256 };

struct checkpoint_names {
    const struct sw_safetensors *tensors;
    const char *root;
    char **bare;      /* the name of each tensor of the file without prefixes, indexed like the file's tensors */
    int64_t *by_name; /* indices of the tensors, sorted by their bare names */
    int64_t count;
    size_t prefix_chars; /* length of the wrappers' prefix, which all tensors share; 0: none */
};

/* Training wrappers (DDP, torch.compile, ...) and the prefix that each puts before the tensors' names. If `within` is
 * set, the prefix may also stand inside a name, where only a part of the model was wrapped. */
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

/* Parts of names that mark a file whose weights cannot be trained as they are. */
enum sign_kind { ADAPTER, QUANTIZED, IN_FP8, IN_MXFP4, MULTIMODAL, VALUE_HEAD };
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
    {".weight_scale", IN_FP8, "fp8 or compressed-tensors", true},
    {".weight_scale_inv", IN_FP8, "fp8", true},
    {".weight_scale_2", QUANTIZED, "NVFP4", true},
    {".input_scale", QUANTIZED, "fp8", true},
    {".activation_scale", QUANTIZED, "fp8", true},
    {".weight_packed", QUANTIZED, "compressed-tensors", true},
    {".weight_zero_point", QUANTIZED, "compressed-tensors", true},
    {"_blocks", IN_MXFP4, "MXFP4", true},
    {"_scales", IN_MXFP4, "MXFP4", true},
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
    case IN_FP8:
    case IN_MXFP4:
        return sw_fail(
            SW_ERR_UNSUPPORTED,
            "the weights in %s are quantized (%s: tensors such as '%s', %lld in all), and config.json does not "
            "describe "
            "them by quantization_config as fp8 or mxfp4: give the original model, or convert it with transformers' "
            "dequantize() and save_pretrained()",
            folder, sign->what, name, (long long)count);
    case MULTIMODAL:
        return sw_fail(
            SW_ERR_UNSUPPORTED,
            "the weights in %s are those of a multimodal model (%s: tensors such as '%s', %lld in all), and only "
            "models of text are supported: save only its language model with save_pretrained(), and give that folder",
            folder, sign->what, name, (long long)count);
    case VALUE_HEAD: break;
    }
    return sw_fail(SW_ERR_UNSUPPORTED,
                   "the weights in %s have %s ('%s'), which training would drop: save only the language model with "
                   "save_pretrained(), and give that folder",
                   folder, sign->what, name);
}

/* Refuses tensors whose names mark adapters, weights quantized in another format, and the like. Reports the first kind
 * of the list that occurs. */
static sw_status refuse_signs(const struct sw_safetensors *tensors, const char *folder, sw_base_format format) {
    for (const struct sign *sign = signs; sign < signs + SIGNS; sign++) {
        const char *first = NULL;
        int64_t count = 0;
        if ((sign->kind == IN_FP8 && format == SW_BASE_FP8) || (sign->kind == IN_MXFP4 && format == SW_BASE_MXFP4))
            continue;
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

/* Returns a tensor's name without the prefix that all share. */
static const char *rest_at(const struct checkpoint_names *names, int64_t index) {
    return sw_safetensors_at(names->tensors, index)->name + names->prefix_chars;
}

/* Counts the tensors whose names continue with a prefix. *out_with and *out_without name an example of each; NULL:
 * there is none. */
static int64_t count_with(const struct checkpoint_names *names, const char *prefix, const char **out_with,
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

/* Tells whether `prefix` is a wrapper's attribute, such as the `model` of a Lightning module, although it is also the
 * family's root: all names continue with it, and a root, the output table or a wrapper's prefix follows. */
static bool is_doubled(const struct checkpoint_names *names, const char *prefix) {
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

/* Leaves out one prefix that all names share. *out_what says which wrapper writes it; NULL: there was no prefix. */
static sw_status take_prefix(struct checkpoint_names *names, const char *folder, const char **out_what) {
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

static sw_status take_prefixes(struct checkpoint_names *names, const char *folder, bool quiet) {
    char whats[PREFIX_CHARS] = "";
    size_t used = 0;
    const char *what = NULL;
    do {
        SW_TRY(take_prefix(names, folder, &what));
        if (what != NULL && used < sizeof whats)
            used += (size_t)snprintf(whats + used, sizeof whats - used, "%s%s", used > 0 ? ", " : "", what);
    } while (what != NULL && names->prefix_chars < SW_SAFETENSORS_NAME_CHARS);
    if (names->prefix_chars > 0 && !quiet)
        sw_log_info("%s: the prefix '%.*s' of %s is left out of the names of all %lld tensors", folder,
                    (int)names->prefix_chars, sw_safetensors_at(names->tensors, 0)->name, whats,
                    (long long)names->count);
    return SW_OK;
}

/* Returns a family's name without the root. */
static const char *checkpoint_names_bare(const struct checkpoint_names *names, const char *name) {
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

static sw_status sort_names(struct checkpoint_names *names, const char *folder) {
    for (int64_t i = 0; i < names->count; i++) {
        char name[SW_SAFETENSORS_NAME_CHARS];
        snprintf(name, sizeof name, "%s", rest_at(names, i));
        cut_inner(name);
        names->by_name[i] = i;
        names->bare[i] = strdup(checkpoint_names_bare(names, name));
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

static void checkpoint_names_destroy(struct checkpoint_names *names) {
    if (names == NULL)
        return;
    for (int64_t i = 0; names->bare != NULL && i < names->count; i++)
        free(names->bare[i]);
    free(names->bare);
    free(names->by_name);
    free(names);
}

/* Reads the names. `root` is what the family puts before the names of its body ("model."); a file may lack it or have
 * it twice. Leaves out a wrapper's prefix that all tensors have, and logs it unless `quiet`. Refuses weights that
 * cannot be trained (an adapter's, quantized ones, those of a vision tower), prefixes that only some tensors have, and
 * two names that become one. Borrows `tensors`. */
static sw_status checkpoint_names_create(const struct sw_safetensors *tensors, const char *folder, const char *root,
                                         sw_base_format format, bool quiet, struct checkpoint_names **out) {
    struct checkpoint_names *names = calloc(1, sizeof *names);
    if (names == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the names of the tensors in %s", folder);
    *names = (struct checkpoint_names){.tensors = tensors, .root = root, .count = sw_safetensors_count(tensors)};
    names->bare = calloc((size_t)names->count + 1, sizeof *names->bare);
    names->by_name = calloc((size_t)names->count + 1, sizeof *names->by_name);
    sw_status status = names->bare != NULL && names->by_name != NULL
                           ? SW_OK
                           : sw_fail(SW_ERR_NOMEM, "no memory for the names of the tensors in %s", folder);
    if (status == SW_OK && names->count == 0)
        status = sw_fail(SW_ERR_ARG, "the weights in %s hold no tensor", folder);
    if (status == SW_OK)
        status = refuse_signs(tensors, folder, format);
    if (status == SW_OK)
        status = take_prefixes(names, folder, quiet);
    if (status == SW_OK)
        status = sort_names(names, folder);
    if (status != SW_OK) {
        checkpoint_names_destroy(names);
        return status;
    }
    *out = names;
    return SW_OK;
}

/* Returns the tensor that a family calls `name`, or NULL. */
static const struct sw_safetensor *checkpoint_names_find(const struct checkpoint_names *names, const char *name) {
    const char *sought = checkpoint_names_bare(names, name);
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

/* Returns the name of the file's tensor `index` as the family spells it, without the root. */
static const char *checkpoint_names_at(const struct checkpoint_names *names, int64_t index) {
    return names->bare[index];
}

#define OUTPUT_TABLE "lm_head.weight"
enum { ENDING_CHARS = 16 };        /* room for what follows a tensor's name */
enum { COMPARED_ELEMS = 1 << 20 }; /* elements of each table that are compared in one piece */
#define LARGEST_FINITE_BITS INT32_C(0x7f7fffff)

struct sw_checkpoint {
    struct sw_safetensors *tensors;
    struct checkpoint_names *names;
    char root[SW_SAFETENSORS_NAME_CHARS]; /* what the family puts before the names of its body, such as "model." */
    const struct sw_units *units;
    bool frozen_only; /* only frozen tensors are matched and read */
    bool quiet;       /* what is left out is not logged */
    struct sw_quantization quantization;
    struct sw_transposed_experts *transposed;
    const char **known; /* the names of the model's tensors without the root, sorted; the units own them */
    int64_t known_count;
    int64_t experts;                 /* the number that the model has; 0: none */
    struct sw_stored_tensor **found; /* by unit and by tensor of the unit */
    int64_t *first_grain; /* first grain of each unit, counted over all units; count + 1 entries, the last is the number
                             of all grains */
    int64_t ahead;        /* the first grain, counted over all units, whose reads have not been announced */
};

/* Returns what a family puts before the names of its body: "model." of "model.embed_tokens.weight". */
static void root_of(const struct sw_units *units, char root[SW_SAFETENSORS_NAME_CHARS]) {
    const char *table = units->unit[0].tensor[0].name;
    snprintf(root, SW_SAFETENSORS_NAME_CHARS, "%.*s", (int)(strcspn(table, ".") + 1), table);
}

static bool same_shape(const struct sw_tensor *tensor, const struct sw_safetensor *stored) {
    if (stored->dims != tensor->dims)
        return false;
    for (int d = 0; d < tensor->dims; d++)
        if (stored->dim[d] != tensor->dim[d])
            return false;
    return true;
}

/* Tells whether a name ends like one of the buffers that older versions of transformers stored. */
static bool is_buffer(const char *name) {
    const size_t length = strlen(name);
    const char *const endings[] = {".attn.bias", ".attn.masked_bias", "rotary_emb.inv_freq"};
    for (size_t e = 0; e < sizeof endings / sizeof endings[0]; e++)
        if (length >= strlen(endings[e]) && strcmp(name + length - strlen(endings[e]), endings[e]) == 0)
            return true;
    return false;
}

static int compare_texts(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Lists the names of the model's tensors. Mixtures of experts have tens of thousands, so they are searched, not walked.
 */
static sw_status list_known(struct sw_checkpoint *checkpoint, const char *folder) {
    const struct sw_units *units = checkpoint->units;
    int64_t count = 0;
    for (int64_t u = 0; u < units->count; u++)
        count += units->unit[u].tensor_count;
    checkpoint->known = calloc((size_t)count, sizeof *checkpoint->known);
    if (checkpoint->known == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to match the tensors of %s", folder);
    for (int64_t u = 0; u < units->count; u++)
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++)
            checkpoint->known[checkpoint->known_count++] =
                checkpoint_names_bare(checkpoint->names, units->unit[u].tensor[t].name);
    qsort(checkpoint->known, (size_t)count, sizeof *checkpoint->known, compare_texts);
    return SW_OK;
}

static bool is_listed(const struct sw_checkpoint *checkpoint, const char *name) {
    return bsearch(&name, checkpoint->known, (size_t)checkpoint->known_count, sizeof *checkpoint->known,
                   compare_texts) != NULL;
}

/* Tells whether a name is that of a tensor from which the model's are taken because the file has no others. */
static bool is_joined(const struct sw_checkpoint *checkpoint, const char *name) {
    char first[SW_TENSOR_NAME_CHARS];
    for (int form = 0; form < SW_EXPERT_FORMS; form++)
        if (sw_joined_tensor_first(name, form, first) && is_listed(checkpoint, first) &&
            checkpoint_names_find(checkpoint->names, first) == NULL)
            return true;
    return false;
}

/* Tells whether a name is that of a tensor of the model, or of its codes or scales. */
static bool is_of_model(const struct sw_checkpoint *checkpoint, const char *name) {
    bool found = is_listed(checkpoint, name);
    for (const char *const *ending = sw_quantization_endings(checkpoint->quantization.format);
         !found && *ending != NULL; ending++) {
        char tensor[SW_SAFETENSORS_NAME_CHARS];
        const size_t chars = strlen(name), tail = strlen(*ending);
        if (chars < tail || strcmp(name + chars - tail, *ending) != 0)
            continue;
        snprintf(tensor, sizeof tensor, "%.*s", (int)(chars - tail), name);
        found = is_listed(checkpoint, tensor);
    }
    return found || is_joined(checkpoint, name);
}

/* Tells whether a tensor of this name, given without the root, is expected: one of the model's, a buffer, or the second
 * copy of a tied table (check_tied_table). */
static bool is_known(const struct sw_checkpoint *checkpoint, const char *name) {
    return is_of_model(checkpoint, name) || is_buffer(name) ||
           (checkpoint->units->tied && strcmp(name, OUTPUT_TABLE) == 0);
}

/* Returns the length of the first part of the names, dot included, if all tensors share it; else 0. */
static size_t shared_chars(const struct sw_checkpoint *checkpoint) {
    const char *first = sw_safetensors_at(checkpoint->tensors, 0)->name;
    const size_t chars = strcspn(first, ".") + 1;
    for (int64_t i = 0; i < sw_safetensors_count(checkpoint->tensors); i++)
        if (chars > strlen(first) || strncmp(sw_safetensors_at(checkpoint->tensors, i)->name, first, chars) != 0)
            return 0;
    return chars;
}

/* Fails for a missing tensor, and says what the file has instead. */
static sw_status fail_missing(const struct sw_checkpoint *checkpoint, const char *folder, const char *name) {
    const int64_t count = sw_safetensors_count(checkpoint->tensors);
    int64_t known = 0, other = -1;
    if (strcmp(name, OUTPUT_TABLE) == 0)
        return sw_fail(SW_ERR_ARG,
                       "the weights in %s have no tensor '%s', which config.json asks for; if the model has one table "
                       "for its input and output, set \"tie_word_embeddings\": true",
                       folder, name);
    for (int64_t i = 0; i < count; i++) {
        if (is_known(checkpoint, checkpoint_names_at(checkpoint->names, i)))
            known++;
        else
            other = other < 0 ? i : other;
    }
    const size_t shared = known == 0 ? shared_chars(checkpoint) : 0;
    if (shared > 0)
        return sw_fail(SW_ERR_ARG,
                       "the weights in %s have no tensor '%s', which config.json asks for; all %lld tensors have the "
                       "prefix '%.*s', which this version does not know: save the model again without it",
                       folder, name, (long long)count, (int)shared, sw_safetensors_at(checkpoint->tensors, 0)->name);
    if (other < 0)
        return sw_fail(SW_ERR_ARG,
                       "the weights in %s have no tensor '%s', which config.json asks for; the %lld tensors that they "
                       "have are of this model: a shard is missing, or config.json is another model's",
                       folder, name, (long long)count);
    return sw_fail(SW_ERR_ARG,
                   "the weights in %s have no tensor '%s', which config.json asks for; of the %lld tensors that they "
                   "have, %lld are of this model, and others are not, such as '%s'",
                   folder, name, (long long)count, (long long)known,
                   sw_safetensors_at(checkpoint->tensors, other)->name);
}

/* Finds the codes or scales of a tensor, by what follows its name; NULL: there are none. */
static const struct sw_safetensor *find_beside(const struct sw_checkpoint *checkpoint, const struct sw_tensor *tensor,
                                               const char *ending) {
    char name[SW_TENSOR_NAME_CHARS + ENDING_CHARS];
    snprintf(name, sizeof name, "%s%s", tensor->name, ending);
    return checkpoint_names_find(checkpoint->names, name);
}

/* Finds the tensors of the file that hold a tensor of the model. */
static void find_stored(const struct sw_checkpoint *checkpoint, const struct sw_tensor *tensor,
                        struct sw_stored_tensor *out) {
    const sw_base_format format = checkpoint->quantization.format;
    const char *const *endings = sw_quantization_endings(format);
    out->values = checkpoint_names_find(checkpoint->names, tensor->name);
    if (format == SW_BASE_MXFP4 && out->values == NULL) {
        out->values = find_beside(checkpoint, tensor, endings[0]);
        out->scales = find_beside(checkpoint, tensor, endings[1]);
    }
    for (int i = 0; format == SW_BASE_FP8 && out->scales == NULL && endings[i] != NULL; i++)
        out->scales = find_beside(checkpoint, tensor, endings[i]);
}

/* Returns how many experts the model has. */
static int64_t count_experts(const struct sw_units *units) {
    struct sw_joined_tensor joined;
    int64_t experts = 0;
    for (int64_t u = 0; u < units->count; u++)
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++)
            if (sw_joined_tensor_of(units->unit[u].tensor[t].name, &joined) && joined.parts > 0)
                experts = sw_max_i64(experts, joined.part / joined.parts + 1);
    return experts;
}

/* Finds a tensor where the file has those of all experts of a layer in one. Leaves out->values NULL if it has not. */
static sw_status find_joined(const struct sw_checkpoint *checkpoint, const char *folder, const struct sw_tensor *tensor,
                             struct sw_stored_tensor *out) {
    struct sw_joined_tensor joined;
    const struct sw_safetensor *values = NULL;
    if (sw_joined_tensor_of(tensor->name, &joined))
        values = checkpoint_names_find(checkpoint->names, joined.name);
    if (values == NULL)
        return SW_OK;
    out->values = values;
    if (joined.parts == 0)
        return SW_OK;
    const int64_t wanted[] = {checkpoint->experts, joined.parts * tensor->dim[0], tensor->dim[1]};
    char stored[SW_SHAPE_CHARS], shape[SW_SHAPE_CHARS];
    out->first = joined.part * tensor->elems;
    if (values->dims == 3 && memcmp(values->dim, wanted, sizeof wanted) == 0)
        return SW_OK;
    return sw_fail(SW_ERR_ARG, "the tensor '%s' in %s has the shape %s; by config.json it is %s", values->name, folder,
                   sw_shape_text(values->dims, values->dim, stored), sw_shape_text(3, wanted, shape));
}

/* Fails for a tensor of the base that the folder has in another format than the base. */
static sw_status fail_other_format(const struct sw_checkpoint *checkpoint, const char *folder,
                                   const struct sw_tensor *tensor, const struct sw_stored_tensor *stored) {
    return sw_fail(SW_ERR_ARG,
                   "--base-format %s keeps matrices as they are stored, and '%s' in %s is stored as %s; leave it out, "
                   "or take int8 or nf4",
                   sw_base_format_name(checkpoint->units->base), tensor->name, folder, stored->values->type_name);
}

static sw_status match_tensor(const struct sw_checkpoint *checkpoint, const char *folder,
                              const struct sw_tensor *tensor, struct sw_stored_tensor *out) {
    find_stored(checkpoint, tensor, out);
    const bool own = out->values != NULL;
    out->transposed = checkpoint->transposed;
    if (!own)
        SW_TRY(find_joined(checkpoint, folder, tensor, out));
    if (out->values == NULL)
        return fail_missing(checkpoint, folder, tensor->name);
    if (out->scales != NULL)
        return sw_stored_tensor_open(&checkpoint->quantization, checkpoint->tensors, folder, tensor, out);
    if (!out->values->supported && checkpoint->quantization.format != SW_BASE_TYPED)
        return sw_fail(SW_ERR_ARG,
                       "the tensor '%s' in %s has the type %s and no scales ('%s%s'): a shard is missing, or "
                       "config.json is another model's",
                       out->values->name, folder, out->values->type_name, tensor->name,
                       checkpoint->quantization.format == SW_BASE_FP8 ? "_scale_inv" : "_scales");
    if (!out->values->supported)
        return sw_fail(SW_ERR_ARG,
                       "the tensor '%s' in %s has the type %s, and weights must be F32, F16 or BF16: convert them with "
                       "transformers' save_pretrained()",
                       out->values->name, folder, out->values->type_name);
    if (checkpoint->units->base == SW_BASE_MXFP4 && tensor->dims == 3) /* laid out as MXFP4 has it */
        return fail_other_format(checkpoint, folder, tensor, out);
    if (same_shape(tensor, out->values) || (!own && out->values->dims == 3))
        return SW_OK;
    char stored[SW_SHAPE_CHARS], wanted[SW_SHAPE_CHARS];
    return sw_fail(SW_ERR_ARG, "the tensor '%s' in %s has the shape %s; by config.json it is %s", out->values->name,
                   folder, sw_shape_text(out->values->dims, out->values->dim, stored),
                   sw_shape_text(tensor->dims, tensor->dim, wanted));
}

static sw_status fail_untied(const char *folder, const char *table) {
    return sw_fail(SW_ERR_ARG,
                   "config.json in %s ties '" OUTPUT_TABLE "' to '%s', and the two differ in the weights; set "
                   "\"tie_word_embeddings\": false to train both",
                   folder, table);
}

static sw_status compare_tables(struct sw_safetensors *tensors, const char *folder,
                                const struct sw_stored_tensor *input, const struct sw_stored_tensor *output,
                                float *values) {
    float *others = values + COMPARED_ELEMS;
    const int64_t elems = output->values->elems;
    for (int64_t first = 0; first < elems; first += COMPARED_ELEMS) {
        const int64_t count = sw_min_i64(COMPARED_ELEMS, elems - first);
        SW_TRY(sw_stored_tensor_read(tensors, input, first, count, values));
        SW_TRY(sw_stored_tensor_read(tensors, output, first, count, others));
        for (int64_t i = 0; i < count; i++)
            if (!(values[i] == others[i]))
                return fail_untied(folder, input->values->name);
    }
    return SW_OK;
}

/* Checks that a second table of a tied model equals the first: a tied model has one table, so training would drop the
 * second. */
static sw_status check_tied_table(const struct sw_checkpoint *checkpoint, const char *folder) {
    const struct sw_stored_tensor output = {.values = checkpoint_names_find(checkpoint->names, OUTPUT_TABLE)};
    const struct sw_stored_tensor *input = checkpoint->found[0];
    assert(input != NULL && input->values != NULL); /* match_all has found every tensor */
    if (!checkpoint->units->tied || output.values == NULL)
        return SW_OK;
    if (!output.values->supported || !same_shape(&checkpoint->units->unit[0].tensor[0], output.values))
        return fail_untied(folder, input->values->name);
    float *values = malloc((size_t)2 * COMPARED_ELEMS * sizeof *values);
    if (values == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to compare the tables of %s", folder);
    const sw_status status = compare_tables(checkpoint->tensors, folder, input, &output, values);
    free(values);
    return status;
}

/* Writes the name with its first number, the layer's, replaced by 0. */
static void in_first_layer(const char *name, char *out, size_t capacity) {
    const size_t before = strcspn(name, "0123456789"), digits = strspn(name + before, "0123456789");
    snprintf(out, capacity, "%.*s%s%s", (int)before, name, digits > 0 ? "0" : "", name + before + digits);
}

static sw_status fail_unknown(const struct sw_checkpoint *checkpoint, const char *folder, int64_t index) {
    const char *name = sw_safetensors_at(checkpoint->tensors, index)->name;
    char first[SW_SAFETENSORS_NAME_CHARS + 1];
    in_first_layer(checkpoint_names_at(checkpoint->names, index), first, sizeof first);
    if (is_known(checkpoint, first))
        return sw_fail(SW_ERR_ARG, "the weights in %s have a tensor '%s', and config.json asks for fewer layers",
                       folder, name);
    return sw_fail(SW_ERR_ARG, "the weights in %s have a tensor '%s' that this architecture does not know", folder,
                   name);
}

/* Logs which tensors of the file are left out, and refuses those that the model does not know. */
static sw_status check_others(const struct sw_checkpoint *checkpoint, const char *folder) {
    const char *buffer = NULL;
    int64_t buffers = 0;
    for (int64_t i = 0; i < sw_safetensors_count(checkpoint->tensors); i++) {
        const char *name = checkpoint_names_at(checkpoint->names, i);
        if (!is_known(checkpoint, name))
            return fail_unknown(checkpoint, folder, i);
        if (!is_buffer(name))
            continue;
        buffer = sw_safetensors_at(checkpoint->tensors, i)->name;
        buffers++;
    }
    if (buffers > 0 && !checkpoint->quiet)
        sw_log_info("%s: ignoring buffers, which are computed and not trained, such as '%s', %lld in all", folder,
                    buffer, (long long)buffers);
    return SW_OK;
}

static sw_status match_all(struct sw_checkpoint *checkpoint, const char *folder) {
    const struct sw_units *units = checkpoint->units;
    SW_TRY(list_known(checkpoint, folder));
    checkpoint->experts = count_experts(units);
    checkpoint->found = calloc((size_t)units->count, sizeof *checkpoint->found);
    if (checkpoint->found == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to match the tensors of %s", folder);
    for (int64_t u = 0; u < units->count; u++) {
        const struct sw_unit *unit = &units->unit[u];
        checkpoint->found[u] = calloc((size_t)unit->tensor_count, sizeof **checkpoint->found);
        if (checkpoint->found[u] == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory to match the tensors of %s", folder);
        for (int64_t t = 0; t < unit->tensor_count; t++)
            if (!unit->tensor[t].added && (unit->tensor[t].frozen || !checkpoint->frozen_only))
                SW_TRY(match_tensor(checkpoint, folder, &unit->tensor[t], &checkpoint->found[u][t]));
    }
    SW_TRY(check_others(checkpoint, folder));
    return checkpoint->frozen_only ? SW_OK : check_tied_table(checkpoint, folder);
}

/* Refuses tensors of the base that the folder has in another format than the base. */
static sw_status check_base(const struct sw_checkpoint *checkpoint, const char *folder) {
    const struct sw_units *units = checkpoint->units;
    const int64_t neighbours = sw_base_stored_elems(units->base);
    for (int64_t u = 0; neighbours > 0 && u < units->count; u++)
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++) {
            const struct sw_tensor *tensor = &units->unit[u].tensor[t];
            const struct sw_stored_tensor *stored = &checkpoint->found[u][t];
            if (tensor->offset >= units->unit[u].base_grains * SW_GRAIN_ELEMS)
                continue;
            if (stored->format != units->base)
                return fail_other_format(checkpoint, folder, tensor, stored);
            if (units->base == SW_BASE_FP8 && stored->block_cols % neighbours != 0 && stored->block_cols < stored->cols)
                return sw_fail(SW_ERR_UNSUPPORTED,
                               "--base-format fp8 needs a scale for each %lld weights of a row, and '%s' in %s has one "
                               "for each %lld; leave it out, or take int8 or nf4",
                               (long long)neighbours, tensor->name, folder, (long long)stored->block_cols);
        }
    return SW_OK;
}

/* Says once, when all weights are read, that some are in fewer bits. */
static void say_quantized(const struct sw_checkpoint *checkpoint, const char *folder) {
    int64_t count = 0;
    for (int64_t u = 0; u < checkpoint->units->count; u++)
        for (int64_t t = 0; t < checkpoint->units->unit[u].tensor_count; t++)
            count += checkpoint->found[u][t].format != SW_BASE_TYPED;
    if (count > 0 && !checkpoint->frozen_only)
        sw_log_info("%s: %s in %s; each of their weights is read as its code times its scale", folder,
                    SW_COUNT(count, "tensor"), sw_base_format_name(checkpoint->quantization.format));
}

static sw_status count_grains(struct sw_checkpoint *checkpoint) {
    const struct sw_units *units = checkpoint->units;
    checkpoint->first_grain = calloc((size_t)units->count + 1, sizeof *checkpoint->first_grain);
    if (checkpoint->first_grain == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to match the tensors of a model");
    for (int64_t u = 0; u < units->count; u++)
        checkpoint->first_grain[u + 1] = checkpoint->first_grain[u] + units->unit[u].grains;
    return SW_OK;
}

static sw_status open_folder(const char *folder, const struct sw_units *units, bool frozen_only, bool quiet,
                             struct sw_checkpoint **out) {
    struct sw_checkpoint *checkpoint = calloc(1, sizeof *checkpoint);
    if (checkpoint == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to open %s", folder);
    checkpoint->units = units;
    checkpoint->frozen_only = frozen_only;
    checkpoint->quiet = quiet;
    sw_status status = count_grains(checkpoint);
    if (status == SW_OK)
        status = sw_folder_check_weights(folder);
    if (status == SW_OK)
        status = sw_safetensors_open(folder, &checkpoint->tensors);
    root_of(units, checkpoint->root);
    if (status == SW_OK)
        status = sw_quantization_load(folder, &checkpoint->quantization);
    if (status == SW_OK)
        status = sw_transposed_experts_create(&checkpoint->transposed);
    if (status == SW_OK)
        status = checkpoint_names_create(checkpoint->tensors, folder, checkpoint->root, checkpoint->quantization.format,
                                         quiet, &checkpoint->names);
    if (status == SW_OK)
        status = match_all(checkpoint, folder);
    if (status == SW_OK)
        status = check_base(checkpoint, folder);
    if (status == SW_OK)
        say_quantized(checkpoint, folder);
    if (status != SW_OK) {
        sw_checkpoint_close(checkpoint);
        return status;
    }
    *out = checkpoint;
    return SW_OK;
}

sw_status sw_checkpoint_open(const char *folder, const struct sw_units *units, struct sw_checkpoint **out) {
    return open_folder(folder, units, false, false, out);
}

sw_status sw_checkpoint_open_frozen(const char *folder, const struct sw_units *units, struct sw_checkpoint **out) {
    return open_folder(folder, units, true, false, out);
}

sw_status sw_checkpoint_open_quietly(const char *folder, const struct sw_units *units, struct sw_checkpoint **out) {
    return open_folder(folder, units, true, true, out);
}

void sw_checkpoint_close(struct sw_checkpoint *checkpoint) {
    if (checkpoint == NULL)
        return;
    for (int64_t u = 0; checkpoint->found != NULL && u < checkpoint->units->count; u++) {
        for (int64_t t = 0; checkpoint->found[u] != NULL && t < checkpoint->units->unit[u].tensor_count; t++)
            sw_stored_tensor_release(&checkpoint->found[u][t]);
        free(checkpoint->found[u]);
    }
    free(checkpoint->found);
    free(checkpoint->known);
    free(checkpoint->first_grain);
    checkpoint_names_destroy(checkpoint->names);
    sw_transposed_experts_destroy(checkpoint->transposed);
    if (checkpoint->tensors != NULL)
        sw_safetensors_close(checkpoint->tensors);
    free(checkpoint);
}

struct checkpoint_fill {
    struct sw_checkpoint *checkpoint;
    int64_t unit;
    float *out;
    int64_t filled; /* elements of `out` that are filled */
};

/* Tells whether all values are finite. Without the sign bit, infinities and NaN are larger as integers than every
 * finite number, so a difference becomes negative. Compilers vectorise this form. */
static bool are_finite(const float *values, int64_t count) {
    int32_t any = 0;
    for (int64_t i = 0; i < count; i++) {
        int32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        any |= LARGEST_FINITE_BITS - (bits & INT32_MAX);
    }
    return any >= 0;
}

static void zero_up_to(struct checkpoint_fill *fill, int64_t end) {
    memset(fill->out + fill->filled, 0, (size_t)(end - fill->filled) * sizeof *fill->out);
}

static sw_status fill_run(void *context, int64_t tensor, int64_t whole, int64_t run, int64_t at) {
    struct checkpoint_fill *fill = context;
    const struct sw_checkpoint *checkpoint = fill->checkpoint;
    float *to = fill->out + at;
    const struct sw_stored_tensor *stored = &checkpoint->found[fill->unit][tensor];
    if (stored->values == NULL) /* an added tensor */
        return SW_OK;
    zero_up_to(fill, at);
    fill->filled = at + run;
    SW_TRY(sw_stored_tensor_read(checkpoint->tensors, stored, whole, run, to));
    if (are_finite(to, run))
        return SW_OK;
    int64_t i = 0;
    while (isfinite(to[i]))
        i++;
    return sw_fail(SW_ERR_ARG, "the tensor '%s' holds a value that is not finite at element %lld",
                   checkpoint->units->unit[fill->unit].tensor[tensor].name, (long long)(whole + i));
}

sw_status sw_checkpoint_fill(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    struct checkpoint_fill fill = {.checkpoint = context, .unit = unit, .out = out};
    SW_TRY(sw_unit_walk(&fill.checkpoint->units->unit[unit], first, count, fill_run, &fill));
    zero_up_to(&fill, count);
    return SW_OK;
}

struct record_fill {
    struct sw_checkpoint *checkpoint;
    int64_t unit;
    void *record;
};

static sw_status take_record(void *context, int64_t tensor, int64_t whole, int64_t run, int64_t at) {
    const struct record_fill *fill = context;
    return sw_stored_tensor_take(fill->checkpoint->tensors, &fill->checkpoint->found[fill->unit][tensor], whole, run,
                                 at, fill->record);
}

sw_status sw_checkpoint_record(void *context, int64_t unit, int64_t grain, void *record) {
    struct record_fill fill = {.checkpoint = context, .unit = unit, .record = record};
    const struct sw_units *units = fill.checkpoint->units;
    assert(sw_base_stored_elems(units->base) > 0 && grain < units->unit[unit].base_grains);
    memset(record, 0, (size_t)sw_base_grain_bytes(units->base)); /* zeros stand for zeros in padding */
    return sw_unit_walk(&units->unit[unit], grain * SW_GRAIN_ELEMS, SW_GRAIN_ELEMS, take_record, &fill);
}

struct announcement {
    struct sw_checkpoint *checkpoint;
    int64_t unit, grain;
    bool taken;
};

static sw_status announce_run(void *context, int64_t tensor, int64_t whole, int64_t run, int64_t at) {
    (void)at;
    struct announcement *self = context;
    struct sw_checkpoint *checkpoint = self->checkpoint;
    const struct sw_stored_tensor *stored = &checkpoint->found[self->unit][tensor];
    if (!self->taken || stored->values == NULL)
        return SW_OK;
    return sw_stored_tensor_announce(checkpoint->tensors, stored, whole, run, self->grain, &self->taken);
}

/* Returns whether a grain of a unit is read at all. */
static bool is_read(const struct sw_checkpoint *checkpoint, int64_t unit, int64_t grain) {
    return !checkpoint->frozen_only || grain < checkpoint->units->unit[unit].trained_grain;
}

/* Announces the reads of grains up to `end`, or until the queue has no room for more. */
static sw_status announce(struct sw_checkpoint *checkpoint, int64_t end) {
    const struct sw_units *units = checkpoint->units;
    int64_t unit = 0;
    while (checkpoint->ahead < end) {
        while (checkpoint->ahead >= checkpoint->first_grain[unit + 1])
            unit++;
        struct announcement self = {.checkpoint = checkpoint, .unit = unit, .grain = checkpoint->ahead, .taken = true};
        const int64_t grain = checkpoint->ahead - checkpoint->first_grain[unit];
        if (is_read(checkpoint, unit, grain))
            SW_TRY(sw_unit_walk(&units->unit[unit], grain * SW_GRAIN_ELEMS, SW_GRAIN_ELEMS, announce_run, &self));
        if (!self.taken)
            return SW_OK;
        checkpoint->ahead++;
    }
    return SW_OK;
}

sw_status sw_checkpoint_prepare(void *context, int64_t unit, int64_t first, int64_t count) {
    struct sw_checkpoint *checkpoint = context;
    const int64_t begin = checkpoint->first_grain[unit] + first / SW_GRAIN_ELEMS;
    const int64_t end = checkpoint->first_grain[unit] + sw_div_up(first + count, SW_GRAIN_ELEMS);
    sw_safetensors_pass(checkpoint->tensors, begin);
    checkpoint->ahead = sw_max_i64(checkpoint->ahead, begin);
    SW_TRY(announce(checkpoint, checkpoint->first_grain[checkpoint->units->count]));
    SW_TRY(sw_safetensors_await(checkpoint->tensors, end));
    if (checkpoint->ahead >= end)
        return SW_OK;
    /* Announces the next shard only after all of this one has arrived. Reads that find no room are made on demand. */
    SW_TRY(announce(checkpoint, end));
    return sw_safetensors_await(checkpoint->tensors, end);
}

struct sw_checkpoint_place sw_checkpoint_find(const struct sw_checkpoint *checkpoint, int64_t unit, int64_t tensor,
                                              int64_t whole) {
    const struct sw_stored_tensor *stored = &checkpoint->found[unit][tensor];
    return (struct sw_checkpoint_place){.tensor = stored->values->name,
                                        .path = sw_safetensors_path(checkpoint->tensors, stored->values),
                                        .offset_bytes = sw_stored_tensor_offset(stored, whole),
                                        .is_number = stored->format == SW_BASE_TYPED && stored->values->supported,
                                        .type = stored->values->type};
}

int64_t sw_checkpoint_bytes_read(const struct sw_checkpoint *checkpoint) {
    return sw_safetensors_bytes_ahead(checkpoint->tensors);
}

int64_t sw_checkpoint_bytes(const struct sw_checkpoint *checkpoint) {
    int64_t bytes = 0;
    for (int64_t i = 0; i < sw_safetensors_count(checkpoint->tensors); i++) {
        const struct sw_safetensor *tensor = sw_safetensors_at(checkpoint->tensors, i);
        bytes += tensor->elems * tensor->elem_bytes;
    }
    return bytes;
}
