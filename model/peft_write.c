/* Writes adapters in PEFT's format.
 *
 * The configuration has the fields that every version of PEFT knows, and a later one only where the adapter needs it:
 * older versions refuse fields that they do not know.
 *
 * Adapters of experts have a tensor for each matrix of each expert, as PEFT writes them with transformers 4, whose
 * experts are modules. With transformers 5, whose experts are one tensor, PEFT (0.21,
 * transformers_weight_conversion.py) joins them as it loads them: gate and up become one adapter of twice the rank. It
 * does so for all experts of all layers or not at all; it then has no dropout, and takes the scale from alpha / rank,
 * also with use_rslora. So the configuration of such adapters says alpha instead, and no dropout, which matters in
 * training only.
 *
 * Adapters beside a tensor that has the matrices of all experts (gpt-oss) are those of PEFT's target_parameters: A is
 * [experts·rank, inputs] and B [outputs, rank·experts], with the rows of A by expert and then rank, and the columns of
 * B by rank and then expert. */
#include "core/files/files.h"
#include "core/json.h"
#include "core/log.h"
#include "core/size.h"
#include "io/safetensors/safetensors.h"
#include "model/hf/checkpoint.h"
#include "model/hf/export_folder.h"
#include "model/hf/family.h"
#include "model/hf/whole_tensor.h"
#include "model/peft_private.h"

#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    COPY_ELEMS = 1 << 16,
    KEY_CHARS = SW_TENSOR_NAME_CHARS + sizeof SW_PEFT_PREFIX + sizeof SW_PEFT_INNER + sizeof SW_LORA_A
};

/* Biases of experts have two dimensions, and are no matrices. */
bool sw_peft_may_adapt(sw_peft_kind kind, const struct sw_units *units, int64_t unit, const struct sw_tensor *tensor) {
    const bool right =
        kind == SW_PEFT_MODULE ? tensor->dims == 2 && sw_name_ends_with(tensor->name, ".weight") : tensor->dims == 3;
    return right && unit > 0 && unit + 1 < units->count && !tensor->added;
}

/* The modules of a model that could have an adapter, or the parameters, and those that have one. */
struct modules {
    sw_peft_kind kind;
    const struct sw_units *units;
    int64_t layers;
    const char *block; /* the text before a layer's number in names */
    bool (*has)(const void *context, const char *module);
    const void *context;
};

/* Returns a module's name within its block, such as "self_attn.q_proj". */
static const char *within_block(const struct modules *modules, const char *module) {
    const char *at = module + strlen(modules->block);
    return at + strspn(at, "0123456789") + 1;
}

static const char *last_part(const char *module) {
    const char *dot = strrchr(module, '.');
    return dot == NULL ? module : dot + 1;
}

/* Tells whether all modules, or some, whose names end like `part` are adapted. */
static void count_modules(const struct modules *modules, const char *part, bool by_last_part, bool *all, bool *some) {
    *all = true;
    *some = false;
    for (int64_t u = 1; u + 1 < modules->units->count; u++) {
        const struct sw_unit *unit = &modules->units->unit[u];
        for (int64_t t = 0; t < unit->tensor_count; t++) {
            char module[SW_TENSOR_NAME_CHARS];
            if (!sw_peft_may_adapt(modules->kind, modules->units, u, &unit->tensor[t]))
                continue;
            sw_lora_adapted(unit->tensor[t].name, module);
            const char *name = within_block(modules, module);
            if (strcmp(by_last_part ? last_part(name) : name, part) != 0)
                continue;
            const bool has = modules->has(modules->context, module);
            *all = *all && has;
            *some = *some || has;
        }
    }
}

static bool has_name(const json_t *list, const char *name) {
    for (size_t i = 0; i < json_array_size(list); i++)
        if (strcmp(json_string_value(json_array_get(list, i)), name) == 0)
            return true;
    return false;
}

/* Adds the shortest names of the modules that are called `name` within their blocks. `without`: the last parts of names
 * that no adapted module has; of a mixture, many modules have the same last part. */
static void add_named(const struct modules *modules, const char *name, json_t *list, json_t *without) {
    bool all, some;
    if (has_name(list, last_part(name)) || json_object_get(without, last_part(name)) != NULL)
        return;
    count_modules(modules, last_part(name), true, &all, &some);
    if (!some)
        json_object_set_new(without, last_part(name), json_true());
    const bool by_last_part = all && some;
    if (!by_last_part && some)
        count_modules(modules, name, false, &all, &some);
    const char *shown = by_last_part ? last_part(name) : name;
    if (all && some && !has_name(list, shown))
        json_array_append_new(list, json_string(shown));
    for (int64_t layer = 0; some && !all && layer < modules->layers; layer++) {
        char module[SW_TENSOR_NAME_CHARS];
        if (snprintf(module, sizeof module, "%s%lld.%s", modules->block, (long long)layer, name) < (int)sizeof module &&
            modules->has(modules->context, module))
            json_array_append_new(list, json_string(module));
    }
}

json_t *sw_peft_targets(sw_peft_kind kind, const struct sw_units *units, const struct sw_model_config *config,
                        bool (*has)(const void *context, const char *module), const void *context) {
    const struct modules modules = {.kind = kind,
                                    .units = units,
                                    .layers = config->layers,
                                    .block = sw_family_find(config->family)->names->block,
                                    .has = has,
                                    .context = context};
    const int64_t block_units = (units->count - 2) / config->layers;
    json_t *list = json_array(), *without = json_object();
    for (int64_t u = 1; list != NULL && u <= block_units; u++)
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++) {
            const struct sw_tensor *tensor = &units->unit[u].tensor[t];
            char module[SW_TENSOR_NAME_CHARS];
            if (!sw_peft_may_adapt(kind, units, u, tensor) || !sw_tensor_is_first_part(tensor))
                continue;
            sw_lora_adapted(tensor->name, module);
            add_named(&modules, within_block(&modules, module), list, without);
        }
    json_decref(without);
    return list;
}

/* Returns the set of adapted modules and parameters; NULL: there is no memory. */
static json_t *adapted_modules(const struct sw_units *units) {
    json_t *set = json_object();
    for (int64_t u = 1; set != NULL && u + 1 < units->count; u++)
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++) {
            const char *name = units->unit[u].tensor[t].name, *end = strstr(name, SW_LORA_A);
            char module[SW_TENSOR_NAME_CHARS];
            if (!units->unit[u].tensor[t].added || end == NULL)
                continue;
            snprintf(module, sizeof module, "%.*s", (int)(end - name), name);
            json_object_set_new(set, module, json_true());
        }
    return set;
}

static bool set_has(const void *set, const char *module) {
    return json_object_get(set, module) != NULL;
}

/* Tells whether the shared expert of a layer is adapted. PEFT takes it for one of those that it joins, by its names. */
static bool adapts_shared_expert(const json_t *adapted, const struct sw_model_config *config) {
    static const enum sw_block_tensor matrices[] = {UP_WEIGHT, DOWN_WEIGHT};
    bool found = false;
    for (int64_t layer = 0; sw_config_has_shared_expert(config) && layer < config->layers; layer++)
        for (size_t m = 0; m < sizeof matrices / sizeof matrices[0]; m++)
            for (int piece = 0; piece < sw_block_pieces(config, matrices[m]); piece++) {
                char name[SW_TENSOR_NAME_CHARS], module[SW_TENSOR_NAME_CHARS];
                sw_block_piece_name(config, layer, matrices[m], piece, name, sizeof name);
                sw_lora_module(name, module);
                found |= set_has(adapted, module);
            }
    return found;
}

/* Tells whether experts are adapted, and *out_all, whether in a way that PEFT can join: the same matrices of all
 * experts, gate and up both or neither, and never without down, around which it wraps the two. */
static bool adapts_experts(const json_t *adapted, const struct sw_model_config *config, bool *out_all) {
    const int pieces = sw_block_pieces(config, EXPERTS);
    int64_t count[EXPERT_MATRICES] = {0};
    for (int64_t layer = 0; layer < config->layers; layer++)
        for (int piece = 0; piece < pieces; piece++) {
            char name[SW_TENSOR_NAME_CHARS], module[SW_TENSOR_NAME_CHARS];
            sw_block_piece_name(config, layer, EXPERTS, piece, name, sizeof name);
            sw_lora_module(name, module);
            count[piece % EXPERT_MATRICES] += set_has(adapted, module);
        }
    const int64_t gates = count[EXPERT_GATE], downs = count[EXPERT_DOWN], all = config->layers * config->experts;
    *out_all = downs == all && gates == count[EXPERT_UP] && (gates == 0 || gates == all);
    return gates + count[EXPERT_UP] + downs > 0;
}

/* Tells whether a unit trains a tensor of a module of the base model. PEFT saves such modules whole. */
static bool trains_module(const struct sw_unit *unit, const char *module) {
    for (int64_t t = 0; t < unit->tensor_count; t++) {
        char other[SW_TENSOR_NAME_CHARS];
        sw_lora_module(unit->tensor[t].name, other);
        if (!unit->tensor[t].added && !unit->tensor[t].frozen && strcmp(other, module) == 0)
            return true;
    }
    return false;
}

/* Tells whether the folder of adapters has a tensor, and whether as one of a module that is saved whole. */
static bool is_written(const struct sw_unit *unit, const struct sw_tensor *tensor, bool *out_saved) {
    char module[SW_TENSOR_NAME_CHARS];
    sw_lora_module(tensor->name, module);
    *out_saved = !tensor->added && trains_module(unit, module);
    return tensor->added || *out_saved;
}

/* The tensors of the file, in the order of the units. */
struct contents {
    int64_t count;
    struct sw_safetensors_declared *declared;
    char (*key)[KEY_CHARS];
    struct place {
        int64_t unit;
        const struct sw_tensor *tensor;
    } * place;
    json_t *saved; /* modules_to_save */
};

static void contents_release(struct contents *contents) {
    free(contents->declared);
    free(contents->key);
    free(contents->place);
    json_decref(contents->saved);
}

/* Tells whether a tensor is a factor of the adapters of all experts of a layer. */
static bool is_joined_factor(const struct sw_tensor *tensor) {
    return tensor->added && tensor->dims == 3;
}

/* Names and shapes a factor of the adapters of all experts. others: adapters of the unit. */
static void add_joined(const struct sw_model_config *config, const struct sw_unit *unit, const struct sw_tensor *tensor,
                       char key[KEY_CHARS], struct sw_safetensors_declared *declared) {
    const bool is_a = sw_name_ends_with(tensor->name, SW_LORA_A);
    const char *factor = is_a ? SW_LORA_A : SW_LORA_B;
    char adapted[SW_TENSOR_NAME_CHARS], module[SW_TENSOR_NAME_CHARS];
    bool inner = false;
    snprintf(adapted, sizeof adapted, "%.*s", (int)(strlen(tensor->name) - strlen(factor)), tensor->name);
    sw_lora_module(adapted, module);
    for (int64_t t = 0; t < unit->tensor_count && sw_expert_matrix_of(config, tensor->name) == EXPERT_GATE; t++)
        inner |= is_joined_factor(&unit->tensor[t]) && sw_expert_matrix_of(config, unit->tensor[t].name) == EXPERT_DOWN;
    snprintf(key, KEY_CHARS, SW_PEFT_PREFIX "%s%s%s", module, inner ? SW_PEFT_INNER : "", factor);
    declared->dims = 2;
    declared->dim[0] = is_a ? tensor->dim[0] * tensor->dim[1] : tensor->dim[1];
    declared->dim[1] = is_a ? tensor->dim[2] : tensor->dim[2] * tensor->dim[0];
}

static void add_content(struct contents *contents, const struct sw_model_config *config, const struct sw_units *units,
                        int64_t unit, const struct sw_tensor *tensor) {
    const int64_t i = contents->count++;
    snprintf(contents->key[i], KEY_CHARS, SW_PEFT_PREFIX "%s", tensor->name);
    contents->declared[i] = (struct sw_safetensors_declared){.name = contents->key[i], .dims = tensor->dims};
    memcpy(contents->declared[i].dim, tensor->dim, sizeof tensor->dim);
    if (is_joined_factor(tensor))
        add_joined(config, &units->unit[unit], tensor, contents->key[i], &contents->declared[i]);
    contents->place[i] = (struct place){unit, tensor};
}

static sw_status list_contents(const struct sw_model_config *config, const struct sw_units *units,
                               struct contents *out) {
    int64_t tensors = 0;
    for (int64_t u = 0; u < units->count; u++)
        tensors += units->unit[u].tensor_count;
    *out = (struct contents){.declared = calloc((size_t)tensors, sizeof *out->declared),
                             .key = calloc((size_t)tensors, sizeof *out->key),
                             .place = calloc((size_t)tensors, sizeof *out->place),
                             .saved = json_array()};
    if (out->declared == NULL || out->key == NULL || out->place == NULL || out->saved == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to write an adapter");
    for (int64_t u = 0; u < units->count; u++) {
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++) {
            const struct sw_tensor *tensor = &units->unit[u].tensor[t];
            char module[SW_TENSOR_NAME_CHARS];
            bool saved;
            if (!sw_tensor_is_first_part(tensor) || !is_written(&units->unit[u], tensor, &saved))
                continue;
            add_content(out, config, units, u, tensor);
            sw_lora_module(tensor->name, module);
            if (saved && !has_name(out->saved, module))
                json_array_append_new(out->saved, json_string(module));
        }
    }
    return SW_OK;
}

/* PEFT would give a trained table that the head shares to the embedding alone. */
const char *sw_peft_unwritable(const struct sw_units *units) {
    return units->tied && !units->unit[0].tensor[0].frozen ? units->unit[0].tensor[0].name : NULL;
}

static json_t *number(double value) {
    const int64_t whole = (int64_t)value;
    return (double)whole == value ? json_integer(whole) : json_real(value);
}

static sw_status write_config(const char *folder, const struct sw_peft_export *export, const json_t *saved) {
    char path[PATH_MAX];
    const struct sw_lora *lora = export->lora;
    json_t *adapted = adapted_modules(export->units);
    bool joins;
    const bool experts = adapts_experts(adapted, export->config, &joins);
    const double given = lora->alpha > 0.0 ? lora->alpha : 2.0 * (double)lora->rank;
    const double alpha = experts ? sw_lora_scale(lora) * (double)lora->rank : given;
    json_t *targets = sw_peft_targets(SW_PEFT_MODULE, export->units, export->config, set_has, adapted);
    json_t *parameters = sw_peft_targets(SW_PEFT_PARAMETER, export->units, export->config, set_has, adapted);
    if ((experts && !joins) || adapts_shared_expert(adapted, export->config))
        sw_log_warn("the adapters are of some experts, of a shared expert, or of gate or up without the other or down: "
                    "PEFT loads them with transformers 4 only");
    json_decref(adapted);
    json_t *root = json_pack(
        "{s:{}, s:n, s:s?, s:s, s:b, s:b, s:b, s:n, s:n, s:o, s:f, s:o, s:s, s:I, s:{}, s:n, s:o, "
        "s:s}",
        "alpha_pattern", "auto_mapping", "base_model_name_or_path", export->base, "bias", "none", "fan_in_fan_out",
        !export->config->out_first, "inference_mode", 1, "init_lora_weights", 1, "layers_pattern",
        "layers_to_transform", "lora_alpha", number(alpha), "lora_dropout", experts ? 0.0 : lora->dropout,
        "modules_to_save", json_array_size(saved) > 0 ? json_deep_copy(saved) : json_null(), "peft_type", "LORA", "r",
        (json_int_t)lora->rank, "rank_pattern", "revision", "target_modules", targets, "task_type", "CAUSAL_LM");
    if (lora->rank_stabilized && !experts)
        json_object_set_new(root, "use_rslora", json_true());
    if (json_array_size(parameters) > 0)
        json_object_set(root, "target_parameters", parameters);
    json_decref(parameters);
    char *text = sw_config_dump(root);
    json_decref(root);
    sw_status status = text != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to write " SW_PEFT_CONFIG);
    if (status == SW_OK)
        status = sw_path_join(path, sizeof path, folder, SW_PEFT_CONFIG);
    if (status == SW_OK)
        status = sw_file_replace(path, text, strlen(text), SW_FILE_SHARED);
    free(text);
    return status;
}

/* Writes a tensor B of the adapters of all experts in PEFT's order, for which all of it must be in memory. */
static sw_status write_turned(const struct sw_peft_export *export, const struct sw_tensor *tensor,
                              const struct sw_whole_tensor *whole, struct sw_safetensors_writer *writer) {
    const int64_t elems = sw_tensor_whole_elems(tensor);
    float *read = malloc((size_t)elems * sizeof *read), *turned = malloc((size_t)elems * sizeof *turned);
    sw_status status =
        read != NULL && turned != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to write %s", tensor->name);
    if (status == SW_OK)
        status = sw_whole_tensor_read(whole, export->from, 0, elems, read);
    for (int64_t i = 0; status == SW_OK && i < elems; i++)
        turned[sw_peft_b_elem(tensor, i)] = read[i];
    if (status == SW_OK)
        status = sw_checkpoint_check_values(tensor->name, export->type, turned, elems);
    if (status == SW_OK)
        status = sw_safetensors_write_f32(writer, turned, elems);
    free(read);
    free(turned);
    return status;
}

static sw_status write_elements(const struct sw_peft_export *export, const struct contents *contents,
                                struct sw_whole_tensor *whole, float *values, struct sw_safetensors_writer *writer) {
    for (int64_t i = 0; i < contents->count; i++) {
        const struct place place = contents->place[i];
        const int64_t elems = sw_tensor_whole_elems(place.tensor);
        const bool turned = is_joined_factor(place.tensor) && sw_name_ends_with(place.tensor->name, SW_LORA_B);
        sw_whole_tensor_gather(export->units, place.unit, place.tensor, whole);
        if (turned)
            SW_TRY(write_turned(export, place.tensor, whole, writer));
        for (int64_t at = 0, count; !turned && at < elems; at += count) {
            count = sw_min_i64(elems - at, COPY_ELEMS);
            SW_TRY(sw_whole_tensor_read(whole, export->from, at, count, values));
            SW_TRY(sw_checkpoint_check_values(place.tensor->name, export->type, values, count));
            SW_TRY(sw_safetensors_write_f32(writer, values, count));
        }
    }
    return SW_OK;
}

static sw_status write_tensors(const char *folder, const struct sw_peft_export *export,
                               const struct contents *contents) {
    char path[PATH_MAX];
    struct sw_whole_tensor whole = {0};
    struct sw_safetensors_writer *writer = NULL;
    float *values = malloc(COPY_ELEMS * sizeof *values);
    sw_status status = values != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to write %s", folder);
    if (status == SW_OK)
        status = sw_whole_tensor_make(export->units, &whole);
    if (status == SW_OK)
        status = sw_path_join(path, sizeof path, folder, SW_PEFT_WEIGHTS);
    if (status == SW_OK)
        status = sw_safetensors_writer_open(path, export->type, contents->declared, contents->count, &writer);
    if (status == SW_OK)
        status = write_elements(export, contents, &whole, values, writer);
    if (status == SW_OK)
        status = sw_safetensors_writer_finish(writer);
    else
        sw_safetensors_writer_abort(writer);
    sw_whole_tensor_release(&whole);
    free(values);
    return status;
}

static sw_status fill_folder(void *context, const char *folder) {
    const struct sw_peft_export *export = context;
    struct contents contents;
    sw_status status = list_contents(export->config, export->units, &contents);
    if (status == SW_OK)
        status = write_config(folder, export, contents.saved);
    if (status == SW_OK)
        status = write_tensors(folder, export, &contents);
    contents_release(&contents);
    return status;
}

sw_status sw_peft_write(const char *folder, const struct sw_peft_export *export) {
    struct sw_peft_export copy = *export;
    const char *unwritable = sw_peft_unwritable(export->units);
    if (unwritable != NULL)
        return sw_fail(
            SW_ERR_UNSUPPORTED,
            "an adapter's folder cannot hold %s, which was trained and is the model's output table too; give "
            "--merge to export the whole model",
            unwritable);
    return sw_export_folder_write(folder, fill_folder, &copy);
}
