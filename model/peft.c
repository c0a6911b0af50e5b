/* Reads adapters in PEFT's format.
 *
 * The tensors decide which modules have an adapter, because the rules of adapter_config.json (suffixes, regular
 * expressions of Python, lists of layers) name modules only by their effect on a model. A plain list of names is
 * compared with the tensors, so that a file without some of them is noticed. Fields that change the result are known or
 * refused; a field of a later version that is off, as its value says, changes nothing. */
#include "model/peft_private.h"

#include "core/files/json_file.h"
#include "core/files/model_files.h"
#include "core/json.h"
#include "core/log.h"
#include "io/safetensors/safetensors.h"
#include "model/hf/checkpoint.h"
#include "model/hf/family.h"
#include "model/hf/whole_tensor.h"
#include "model/model.h"

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_CONFIG_BYTES = 1 << 20, KEY_CHARS = SW_TENSOR_NAME_CHARS + sizeof SW_PEFT_PREFIX + sizeof SW_LORA_A };
#define MOST_ALPHA 1e6 /* that of --lora-alpha */
#define PICKLED_WEIGHTS "adapter_model.bin"

struct sw_peft {
    char *folder;
    struct sw_lora lora;
    char *targets, *saved; /* the lists of `lora` */
    json_t *root;          /* adapter_config.json */
    struct sw_safetensors *tensors;
    struct sw_units *plain; /* the model without adapters */
    struct sw_model_config config;
    bool *known; /* for each tensor of the file: the model has it */
    /* Set by sw_peft_load: the units and, for each of their tensors, that of the file; NULL: it is the base's. */
    const struct sw_units *units;
    const struct sw_safetensor ***found;
    int64_t found_units; /* entries of `found`, which may outlive the units */
    /* The tensors B of the adapters of all experts of the layer that is being filled, in the units' order. */
    struct turned {
        const struct sw_safetensor *from;
        float *values; /* owned; NULL: nothing is there */
    } turned[EXPERT_MATRICES];
    struct sw_load base;
};

bool sw_peft_is_one(const char *folder) {
    char path[PATH_MAX];
    return snprintf(path, sizeof path, "%s/" SW_PEFT_CONFIG, folder) < (int)sizeof path && access(path, F_OK) == 0;
}

char *sw_peft_base(const char *folder) {
    SW_HANDLES_ERRORS();
    char path[PATH_MAX];
    json_t *root = NULL;
    snprintf(path, sizeof path, "%s/" SW_PEFT_CONFIG, folder);
    if (sw_json_read_file(path, MOST_CONFIG_BYTES, SW_ERR_ARG, &root) != SW_OK)
        return NULL;
    const char *base = json_string_value(json_object_get(root, "base_model_name_or_path"));
    char *copy = base != NULL ? strdup(base) : NULL;
    json_decref(root);
    return copy;
}

/* Fields of adapter_config.json that are read, or have no effect on an adapter that has been trained. */
static const char *const fields[] = {
    "peft_type",
    "task_type",
    "r",
    "lora_alpha",
    "use_rslora",
    "lora_dropout",
    "bias",
    "init_lora_weights",
    "rank_pattern",
    "alpha_pattern",
    "target_modules",
    "target_parameters",
    "modules_to_save",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
    "base_model_name_or_path",
    "auto_mapping",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "fan_in_fan_out",
    "inference_mode",
    "loftq_config",
    "lora_ga_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
};

static bool is_known(const char *name) {
    for (size_t f = 0; f < sizeof fields / sizeof fields[0]; f++)
        if (strcmp(fields[f], name) == 0)
            return true;
    return false;
}

/* True if a field is missing or says no. */
static bool is_off(const json_t *value) {
    return value == NULL || json_is_null(value) || json_is_false(value) ||
           (json_is_number(value) && json_number_value(value) == 0.0) ||
           (json_is_string(value) && json_string_length(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

static sw_status refuse_value(const struct sw_peft *self, const char *name, const char *why) {
    char shown[SW_SHOWN_CHARS];
    return sw_fail(SW_ERR_UNSUPPORTED, "%s/" SW_PEFT_CONFIG ": '%s' is %s; %s", self->folder, name,
                   sw_config_show(json_object_get(self->root, name), shown), why);
}

static sw_status check_fields(const struct sw_peft *self) {
    const char *name;
    json_t *value;
    json_object_foreach(self->root, name, value) {
        if (!is_known(name) && !is_off(value))
            return refuse_value(self, name, "this version does not support that");
    }
    return SW_OK;
}

/* Refuses a field that is neither one of the texts in `allowed`, which ends with NULL, nor missing or null. */
static sw_status check_text(const struct sw_peft *self, const char *name, const char *const *allowed, const char *why) {
    const json_t *value = sw_config_field_of(self->root, name);
    for (const char *const *text = allowed; value != NULL && *text != NULL; text++)
        if (json_is_string(value) && strcmp(json_string_value(value), *text) == 0)
            return SW_OK;
    return value == NULL ? SW_OK : refuse_value(self, name, why);
}

/* Some ways to begin an adapter change the base model too, and PEFT changes it again whenever it loads the adapter. */
static sw_status check_start(const struct sw_peft *self) {
    static const char *const allowed[] = {"gaussian", "eva", "orthogonal", NULL};
    const json_t *value = json_object_get(self->root, "init_lora_weights");
    return json_is_boolean(value) ? SW_OK
                                  : check_text(self, "init_lora_weights", allowed,
                                               "it changes the base model as well: save the adapter as a plain one, "
                                               "with save_pretrained(path_initial_model_for_weight_conversion=...)");
}

/* Refuses modules of another rank or alpha than those of all others. */
static sw_status check_pattern(const struct sw_peft *self, const char *name, double all) {
    json_t *pattern = json_object_get(self->root, name), *value;
    const char *module;
    if (pattern != NULL && !json_is_null(pattern) && !json_is_object(pattern))
        return refuse_value(self, name, "it must be an object");
    json_object_foreach(pattern, module, value) {
        if (!json_is_number(value) || json_number_value(value) != all)
            return refuse_value(self, name, "all modules must have one rank and one alpha");
    }
    return SW_OK;
}

/* Refuses anything but a list of texts, a text or null. */
static sw_status check_names(const struct sw_peft *self, const char *name) {
    const json_t *value = json_object_get(self->root, name);
    bool right = value == NULL || json_is_null(value) || json_is_string(value) || json_is_array(value);
    for (size_t i = 0; right && i < json_array_size(value); i++)
        right = json_is_string(json_array_get(value, i));
    return right ? SW_OK : refuse_value(self, name, "it must be a list of names, or a text");
}

static sw_status read_numbers(struct sw_peft *self) {
    const json_t *rank = json_object_get(self->root, "r"), *alpha = json_object_get(self->root, "lora_alpha");
    const json_t *stabilized = sw_config_field_of(self->root, "use_rslora");
    const json_t *dropout = sw_config_field_of(self->root, "lora_dropout");
    if (rank == NULL || alpha == NULL)
        return sw_fail(SW_ERR_ARG, "%s/" SW_PEFT_CONFIG " has no '%s'", self->folder,
                       rank == NULL ? "r" : "lora_alpha");
    if (!json_is_integer(rank) || json_integer_value(rank) < 1 || json_integer_value(rank) > SW_LORA_MOST_RANK)
        return refuse_value(self, "r", "it must be a whole number from 1 to 1024");
    if (!json_is_number(alpha) || !(json_number_value(alpha) > 0.0) || json_number_value(alpha) > MOST_ALPHA)
        return refuse_value(self, "lora_alpha", "it must be a number above 0 and at most 1e6");
    if (stabilized != NULL && !json_is_boolean(stabilized))
        return refuse_value(self, "use_rslora", "it must be true or false");
    if (dropout != NULL &&
        !(json_is_number(dropout) && json_number_value(dropout) >= 0.0 && json_number_value(dropout) < 1.0))
        return refuse_value(self, "lora_dropout", "it must be a number of at least 0 and below 1");
    self->lora.rank = json_integer_value(rank);
    self->lora.alpha = json_number_value(alpha);
    self->lora.rank_stabilized = json_is_true(stabilized);
    self->lora.dropout = json_number_value(dropout);
    SW_TRY(check_pattern(self, "rank_pattern", (double)self->lora.rank));
    return check_pattern(self, "alpha_pattern", self->lora.alpha);
}

static sw_status read_config(struct sw_peft *self) {
    static const char *const lora[] = {"LORA", NULL}, *const causal[] = {"CAUSAL_LM", NULL},
                             *const none[] = {"none", NULL};
    char path[PATH_MAX];
    bool is_there;
    SW_TRY(sw_model_file_find(self->folder, SW_PEFT_CONFIG, path, &is_there));
    if (!is_there)
        return sw_fail(SW_ERR_ARG,
                       "%s has no " SW_PEFT_CONFIG ", so it is no adapter; give a folder that PEFT or "
                       "`spillway export` wrote",
                       self->folder);
    SW_TRY(sw_json_read_file(path, MOST_CONFIG_BYTES, SW_ERR_ARG, &self->root));
    if (!json_is_object(self->root))
        return sw_fail(SW_ERR_ARG, "%s must be a JSON object", path);
    if (sw_config_field_of(self->root, "peft_type") == NULL)
        return sw_fail(SW_ERR_ARG, "%s has no 'peft_type'", path);
    SW_TRY(check_text(self, "peft_type", lora, "only adapters of the type LORA are supported"));
    SW_TRY(check_fields(self));
    SW_TRY(check_text(self, "task_type", causal, "only CAUSAL_LM is supported"));
    SW_TRY(check_text(self, "bias", none, "only adapters without biases (\"none\") are supported"));
    SW_TRY(check_start(self));
    SW_TRY(check_names(self, "target_modules"));
    SW_TRY(check_names(self, "target_parameters"));
    SW_TRY(check_names(self, "modules_to_save"));
    return read_numbers(self);
}

static sw_status open_tensors(struct sw_peft *self) {
    char path[PATH_MAX];
    bool is_there, is_pickled;
    SW_TRY(sw_model_file_find(self->folder, SW_PEFT_WEIGHTS, path, &is_there));
    if (is_there)
        return sw_safetensors_open_file(self->folder, SW_PEFT_WEIGHTS, &self->tensors);
    SW_TRY(sw_model_file_find(self->folder, PICKLED_WEIGHTS, path, &is_pickled));
    if (!is_pickled)
        return sw_fail(SW_ERR_ARG, "%s has no " SW_PEFT_WEIGHTS ": the download is not complete", self->folder);
    return sw_fail(SW_ERR_ARG,
                   "%s has its weights in " PICKLED_WEIGHTS ", which is a program and not read: load the adapter with "
                   "PEFT and save it again, with save_pretrained(), as " SW_PEFT_WEIGHTS,
                   self->folder);
}

/* Returns the file's tensor of this name, to which the prefix is added, and notes that the model has it; NULL: the file
 * has none. */
static const struct sw_safetensor *take(struct sw_peft *self, const char *module, const char *end) {
    char key[KEY_CHARS];
    if (snprintf(key, sizeof key, SW_PEFT_PREFIX "%s%s", module, end) >= (int)sizeof key)
        return NULL;
    const struct sw_safetensor *found = sw_safetensors_find(self->tensors, key);
    if (found != NULL)
        self->known[found - sw_safetensors_at(self->tensors, 0)] = true;
    return found;
}

static sw_status check_tensor(const struct sw_peft *self, const struct sw_safetensor *tensor, int dims,
                              const int64_t *dim) {
    char found[SW_SHAPE_CHARS], wanted[SW_SHAPE_CHARS];
    bool same = tensor->dims == dims;
    for (int d = 0; same && d < dims; d++)
        same = tensor->dim[d] == dim[d];
    if (!tensor->supported)
        return sw_fail(SW_ERR_ARG, "the tensor '%s' in %s has the type %s; it must be F32, F16 or BF16", tensor->name,
                       self->folder, tensor->type_name);
    if (same)
        return SW_OK;
    return sw_fail(SW_ERR_ARG,
                   "the tensor '%s' in %s has the shape %s; by the model and the adapter's rank %lld it is %s: the "
                   "adapter is of another model, or its " SW_PEFT_CONFIG " is another adapter's",
                   tensor->name, self->folder, sw_shape_text(tensor->dims, tensor->dim, found),
                   (long long)self->lora.rank, sw_shape_text(dims, dim, wanted));
}

static sw_status fail_missing(const struct sw_peft *self, const char *module, const char *end, const char *why) {
    return sw_fail(SW_ERR_ARG, "the adapter in %s has no tensor '" SW_PEFT_PREFIX "%s%s', %s", self->folder, module,
                   end, why);
}

/* Returns what the names of the factors of an adapter begin with in the file. adapted: as sw_lora_adapted has it. Of
 * the experts of gpt-oss, the outer adapter is that of down, unless its B has the outputs of gate and up. */
static void key_of(const struct sw_peft *self, const char *adapted, char out[SW_TENSOR_NAME_CHARS]) {
    const int matrix = self->config.joined_experts ? sw_expert_matrix_of(&self->config, adapted) : -1;
    char module[SW_TENSOR_NAME_CHARS], key[KEY_CHARS];
    if (matrix < 0) {
        snprintf(out, SW_TENSOR_NAME_CHARS, "%s", adapted);
        return;
    }
    sw_lora_module(adapted, module);
    snprintf(key, sizeof key, SW_PEFT_PREFIX "%s" SW_LORA_B, module);
    const struct sw_safetensor *outer = sw_safetensors_find(self->tensors, key);
    const bool of_up = outer != NULL && outer->dims == 2 && outer->dim[0] == 2 * self->config.expert_ffn &&
                       outer->dim[0] != self->config.hidden;
    const bool is_outer = (matrix == EXPERT_GATE) == of_up;
    snprintf(out, SW_TENSOR_NAME_CHARS, "%.*s%s", (int)(SW_TENSOR_NAME_CHARS - sizeof SW_PEFT_INNER), module,
             is_outer ? "" : SW_PEFT_INNER);
}

/* Checks the two tensors of the adapter of a matrix, or of the matrices of all experts, if it has one. */
static sw_status check_adapter_of(struct sw_peft *self, const struct sw_tensor *matrix) {
    const bool joined = matrix->dims == 3, out_first = self->config.out_first && !joined;
    const int64_t rank = self->lora.rank * (joined ? matrix->dim[0] : 1);
    const int64_t *dim = &matrix->dim[matrix->dims - 2];
    char adapted[SW_TENSOR_NAME_CHARS], module[SW_TENSOR_NAME_CHARS];
    sw_lora_adapted(matrix->name, adapted);
    key_of(self, adapted, module);
    const struct sw_safetensor *a = take(self, module, SW_LORA_A), *b = take(self, module, SW_LORA_B);
    if (a == NULL && b == NULL)
        return SW_OK;
    if (a == NULL || b == NULL)
        return fail_missing(self, module, a == NULL ? SW_LORA_A : SW_LORA_B, "only the other one of the two");
    SW_TRY(check_tensor(self, a, 2, (int64_t[]){rank, dim[out_first ? 1 : 0]}));
    return check_tensor(self, b, 2, (int64_t[]){dim[out_first ? 0 : 1], rank});
}

/* Checks the tensor that the adapter has in place of one of the model's, if any, and adds its module to
 * modules_to_save. */
static sw_status check_saved(struct sw_peft *self, const struct sw_tensor *tensor, json_t *saved) {
    char module[SW_TENSOR_NAME_CHARS];
    const struct sw_safetensor *found = take(self, tensor->name, "");
    if (found == NULL)
        return SW_OK;
    SW_TRY(check_tensor(self, found, tensor->dims, tensor->dim));
    sw_lora_module(tensor->name, module);
    const char *last = json_string_value(json_array_get(saved, json_array_size(saved) - 1));
    if (last == NULL || strcmp(last, module) != 0)
        json_array_append_new(saved, json_string(module));
    return SW_OK;
}

static sw_status fail_unknown(const struct sw_peft *self, const char *name) {
    if (strstr(name, ".lora_") != NULL)
        return sw_fail(SW_ERR_ARG,
                       "the adapter in %s has a tensor '%s', which is for no matrix of a block of this model: the "
                       "adapter is of another model, or of a kind that is not supported",
                       self->folder, name);
    return sw_fail(SW_ERR_ARG, "the adapter in %s has a tensor '%s' that this model does not know", self->folder, name);
}

static bool may_adapt(const struct sw_peft *self, int64_t unit, const struct sw_tensor *tensor) {
    return sw_peft_may_adapt(SW_PEFT_MODULE, self->plain, unit, tensor) ||
           sw_peft_may_adapt(SW_PEFT_PARAMETER, self->plain, unit, tensor);
}

/* Compares the file's tensors with the model. */
static sw_status check_tensors(struct sw_peft *self, json_t *saved) {
    int64_t adapters = 0;
    for (int64_t u = 0; u < self->plain->count; u++) {
        const struct sw_unit *unit = &self->plain->unit[u];
        for (int64_t t = 0; t < unit->tensor_count; t++) {
            SW_TRY(check_saved(self, &unit->tensor[t], saved));
            if (may_adapt(self, u, &unit->tensor[t]))
                SW_TRY(check_adapter_of(self, &unit->tensor[t]));
        }
    }
    for (int64_t i = 0; i < sw_safetensors_count(self->tensors); i++) {
        const char *name = sw_safetensors_at(self->tensors, i)->name;
        if (!self->known[i])
            return fail_unknown(self, name);
        adapters += strstr(name, SW_LORA_A) != NULL;
    }
    return adapters > 0 ? SW_OK : sw_fail(SW_ERR_ARG, "the adapter in %s has no tensor of an adapter", self->folder);
}

static bool file_has(const void *context, const char *module) {
    const struct sw_peft *self = context;
    char named[SW_TENSOR_NAME_CHARS], key[KEY_CHARS];
    key_of(self, module, named);
    snprintf(key, sizeof key, SW_PEFT_PREFIX "%s" SW_LORA_A, named);
    return sw_safetensors_find(self->tensors, key) != NULL;
}

/* Tells whether a set of names has a module: by its whole name, or by its last parts. */
static bool names_module(const json_t *set, const char *module) {
    for (const char *part = module; part != NULL; part = strchr(part, '.')) {
        part += *part == '.';
        if (json_object_get(set, part) != NULL)
            return true;
    }
    return false;
}

/* Checks that each module that target_modules names, or each parameter of target_parameters, has an adapter. Other
 * forms than a plain list are left alone. */
static sw_status check_targets(const struct sw_peft *self, const char *field, sw_peft_kind kind) {
    const json_t *list = json_object_get(self->root, field);
    const bool limited = !is_off(json_object_get(self->root, "exclude_modules")) ||
                         !is_off(json_object_get(self->root, "layers_to_transform"));
    json_t *set = json_object();
    sw_status status = SW_OK;
    for (size_t i = 0; !limited && i < json_array_size(list); i++)
        json_object_set_new(set, json_string_value(json_array_get(list, i)), json_true());
    for (int64_t u = 0; status == SW_OK && u < self->plain->count; u++) {
        const struct sw_unit *unit = &self->plain->unit[u];
        for (int64_t t = 0; status == SW_OK && t < unit->tensor_count; t++) {
            char module[SW_TENSOR_NAME_CHARS], key[SW_TENSOR_NAME_CHARS];
            sw_lora_adapted(unit->tensor[t].name, module);
            if (sw_peft_may_adapt(kind, self->plain, u, &unit->tensor[t]) && names_module(set, module) &&
                !file_has(self, module)) {
                key_of(self, module, key);
                status =
                    fail_missing(self, key, SW_LORA_A,
                                 kind == SW_PEFT_MODULE ? "which the 'target_modules' of its configuration ask for"
                                                        : "which the 'target_parameters' of its configuration ask for");
            }
        }
    }
    json_decref(set);
    return status;
}

/* Joins a list of names with commas. *out is NULL for an empty list. */
static sw_status join(const json_t *names, char **out) {
    size_t chars = 0, used = 0;
    for (size_t i = 0; i < json_array_size(names); i++)
        chars += json_string_length(json_array_get(names, i)) + 1;
    *out = chars > 0 ? malloc(chars) : NULL;
    if (sw_json_lacked_memory() || (chars > 0 && *out == NULL))
        return sw_fail(SW_ERR_NOMEM, "no memory for the names of adapted modules");
    for (size_t i = 0; i < json_array_size(names); i++)
        used += (size_t)snprintf(*out + used, chars - used, "%s%s", i > 0 ? "," : "",
                                 json_string_value(json_array_get(names, i)));
    return SW_OK;
}

static sw_status match(struct sw_peft *self, const struct sw_model_config *config) {
    const json_t *given = sw_config_field_of(self->root, "target_parameters");
    json_t *saved = json_array(), *targets = NULL;
    self->known = calloc((size_t)sw_safetensors_count(self->tensors) + 1, sizeof *self->known);
    sw_status status = self->known != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to open %s", self->folder);
    if (status == SW_OK && !is_off(given) && !config->joined_experts)
        status =
            refuse_value(self, "target_parameters", "this model has no tensors of all experts of a layer to adapt");
    if (status == SW_OK)
        status = check_tensors(self, saved);
    if (status == SW_OK)
        status = check_targets(self, "target_modules", SW_PEFT_MODULE);
    if (status == SW_OK)
        status = check_targets(self, "target_parameters", SW_PEFT_PARAMETER);
    if (status == SW_OK)
        status = join(saved, &self->saved);
    if (status == SW_OK) {
        json_t *parameters = sw_peft_targets(SW_PEFT_PARAMETER, self->plain, config, file_has, self);
        targets = sw_peft_targets(SW_PEFT_MODULE, self->plain, config, file_has, self);
        json_array_extend(targets, parameters);
        json_decref(parameters);
    }
    if (status == SW_OK)
        status = join(targets, &self->targets);
    self->lora.targets = self->targets;
    self->lora.modules_to_save = self->saved;
    json_decref(saved);
    json_decref(targets);
    return status;
}

sw_status sw_peft_open(const char *folder, const struct sw_model_config *config, struct sw_peft **out) {
    struct sw_peft *self = calloc(1, sizeof *self);
    if (self == NULL || (self->folder = strdup(folder)) == NULL) {
        sw_peft_close(self);
        return sw_fail(SW_ERR_NOMEM, "no memory to open %s", folder);
    }
    self->config = *config;
    sw_status status = read_config(self);
    if (status == SW_OK)
        status = open_tensors(self);
    if (status == SW_OK)
        status = sw_model_units(config, 1, SW_OPTIMIZER_FP32, NULL, &self->plain);
    if (status == SW_OK)
        status = match(self, config);
    if (status != SW_OK) {
        sw_peft_close(self);
        return status;
    }
    *out = self;
    return SW_OK;
}

void sw_peft_close(struct sw_peft *self) {
    if (self == NULL)
        return;
    for (int64_t u = 0; u < self->found_units; u++)
        free(self->found[u]);
    free(self->found);
    for (int matrix = 0; matrix < EXPERT_MATRICES; matrix++)
        free(self->turned[matrix].values);
    sw_units_destroy(self->plain);
    sw_safetensors_close(self->tensors);
    json_decref(self->root);
    free(self->targets);
    free(self->saved);
    free(self->known);
    free(self->folder);
    free(self);
}

const struct sw_lora *sw_peft_lora(const struct sw_peft *self) {
    return &self->lora;
}

int64_t sw_peft_parameters(const struct sw_peft *self) {
    int64_t elems = 0;
    for (int64_t i = 0; i < sw_safetensors_count(self->tensors); i++)
        elems += sw_safetensors_at(self->tensors, i)->elems;
    return elems;
}

/* Returns where B of the adapters of all experts is kept in the units' order; NULL: the tensor is nothing of the kind.
 */
static struct turned *turned_of(struct sw_peft *self, const struct sw_tensor *tensor) {
    return tensor->added && tensor->dims == 3 && sw_name_ends_with(tensor->name, SW_LORA_B)
               ? &self->turned[sw_expert_matrix_of(&self->config, tensor->name)]
               : NULL;
}

/* The elements of a unit that are being filled. */
struct filling {
    struct sw_peft *adapter;
    int64_t unit;
    float *out;
};

static sw_status fill_run(void *context, int64_t tensor, int64_t whole, int64_t run, int64_t at) {
    const struct filling *filling = context;
    struct sw_peft *self = filling->adapter;
    const struct sw_safetensor *from = self->found[filling->unit][tensor];
    float *out = filling->out + at;
    if (from == NULL)
        return SW_OK;
    const struct sw_tensor *of = &self->units->unit[filling->unit].tensor[tensor];
    const struct turned *turned = turned_of(self, of);
    if (turned == NULL)
        SW_TRY(sw_safetensors_read_f32(self->tensors, from, whole, run, out));
    else
        memcpy(out, turned->values + whole, (size_t)run * sizeof *out);
    for (int64_t i = 0; i < run; i++)
        if (!isfinite(out[i]))
            return sw_fail(SW_ERR_ARG, "the tensor '%s' in %s holds a value that is not finite at element %lld",
                           from->name, self->folder,
                           (long long)(turned == NULL ? whole + i : sw_peft_b_elem(of, whole + i)));
    return SW_OK;
}

static sw_status fill(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    struct sw_peft *self = context;
    struct filling filling = {self, unit, out};
    SW_TRY(self->base.fill(self->base.context, unit, first, count, out));
    return sw_unit_walk(&self->units->unit[unit], first, count, fill_run, &filling);
}

/* Reads a tensor B of the adapters of all experts, unless it is there. An element's neighbours in the file belong to
 * other experts, so all of it is read. */
static sw_status read_turned(void *context, int64_t tensor, int64_t whole, int64_t run, int64_t at) {
    const struct filling *filling = context;
    struct sw_peft *self = filling->adapter;
    const struct sw_safetensor *from = self->found[filling->unit][tensor];
    const struct sw_tensor *b = &self->units->unit[filling->unit].tensor[tensor];
    struct turned *turned = from == NULL ? NULL : turned_of(self, b);
    (void)whole, (void)run, (void)at;
    if (turned == NULL || turned->from == from)
        return SW_OK;
    free(turned->values);
    *turned = (struct turned){.values = malloc((size_t)from->elems * sizeof(float))};
    float *read = malloc((size_t)from->elems * sizeof *read);
    sw_status status =
        read != NULL && turned->values != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to read %s", self->folder);
    if (status == SW_OK)
        status = sw_safetensors_read_f32(self->tensors, from, 0, from->elems, read);
    for (int64_t i = 0; status == SW_OK && i < from->elems; i++)
        turned->values[i] = read[sw_peft_b_elem(b, i)];
    if (status == SW_OK)
        turned->from = from;
    free(read);
    return status;
}

static sw_status prepare(void *context, int64_t unit, int64_t first, int64_t count) {
    struct sw_peft *self = context;
    struct filling filling = {self, unit, NULL};
    if (self->config.joined_experts)
        SW_TRY(sw_unit_walk(&self->units->unit[unit], first, count, read_turned, &filling));
    return self->base.prepare != NULL ? self->base.prepare(self->base.context, unit, first, count) : SW_OK;
}

static sw_status take_record(void *context, int64_t unit, int64_t grain, void *record) {
    const struct sw_peft *self = context;
    return self->base.record(self->base.context, unit, grain, record);
}

/* Returns the file's tensor for a factor of an adapter. */
static const struct sw_safetensor *take_factor(struct sw_peft *self, const char *name) {
    const char *factor = sw_name_ends_with(name, SW_LORA_A) ? SW_LORA_A : SW_LORA_B;
    char adapted[SW_TENSOR_NAME_CHARS], module[SW_TENSOR_NAME_CHARS];
    snprintf(adapted, sizeof adapted, "%.*s", (int)(strlen(name) - strlen(factor)), name);
    key_of(self, adapted, module);
    return take(self, module, factor);
}

/* Finds the file's tensors of a unit, and counts them. */
static sw_status find_in_unit(struct sw_peft *self, int64_t u, int64_t *count) {
    const struct sw_unit *unit = &self->units->unit[u];
    self->found[u] = calloc((size_t)unit->tensor_count, sizeof **self->found);
    if (self->found[u] == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read %s", self->folder);
    for (int64_t t = 0; t < unit->tensor_count; t++) {
        self->found[u][t] =
            unit->tensor[t].added ? take_factor(self, unit->tensor[t].name) : take(self, unit->tensor[t].name, "");
        *count += self->found[u][t] != NULL && sw_tensor_is_first_part(&unit->tensor[t]);
        if (unit->tensor[t].added && self->found[u][t] == NULL)
            return sw_fail(SW_ERR_ARG, "the adapter in %s has no tensor for %s", self->folder, unit->tensor[t].name);
    }
    return SW_OK;
}

sw_status sw_peft_load(struct sw_peft *self, const struct sw_units *units, const struct sw_load *base,
                       struct sw_load *out) {
    int64_t count = 0;
    assert(self->units == NULL);
    self->units = units;
    self->base = *base;
    self->found = calloc((size_t)units->count, sizeof *self->found);
    if (self->found == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read %s", self->folder);
    self->found_units = units->count;
    for (int64_t u = 0; u < units->count; u++)
        SW_TRY(find_in_unit(self, u, &count));
    if (count != sw_safetensors_count(self->tensors))
        return sw_fail(SW_ERR_ARG, "the adapter in %s adapts other modules than the run", self->folder);
    *out = *base;
    out->fill = fill;
    out->prepare = prepare;
    out->record = base->record == NULL ? NULL : take_record;
    out->context = self;
    return SW_OK;
}
