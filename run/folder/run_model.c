#include "run/folder/run_model.h"

#include "core/confine.h"
#include "core/files/files.h"
#include "core/files/model_files.h"
#include "core/log.h"
#include "core/status.h"
#include "run/folder/run.h"
#include "text/documents/tokenize_files.h"
#include "text/model_text.h"

#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIGEST_CHARS = 24, LOST_CHARS = 512 };

static bool is_folder(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* Warns about files that may not be copied. Returns whether the others are of use without them. */
static bool can_be_kept(const char *model) {
    struct sw_model_file file;
    bool is_whole = true;
    for (int i = 0; sw_model_file_names[i] != NULL; i++) {
        const char *name = sw_model_file_names[i];
        sw_model_file_look(model, name, &file);
        if (!file.is_there || file.refused[0] == '\0')
            continue;
        is_whole &= i >= SW_MODEL_TEXT_FILES;
        if (i < SW_MODEL_TEXT_FILES)
            sw_log_warn("the run keeps no copies of the tokenizer and the configuration, and needs %s as long as it is "
                        "used: %s is not copied, as %s",
                        model, name, file.refused);
        else
            sw_log_warn("the run keeps no copy of %s/%s, as %s", model, name, file.refused);
    }
    return is_whole;
}

/* Writes the digest of a file in run.json's form. */
static sw_status digest_of(const char *path, char text[DIGEST_CHARS]) {
    XXH3_state_t *hash = XXH3_createState();
    if (hash == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read %s", path);
    XXH3_64bits_reset(hash);
    const sw_status status = sw_digest_file(hash, path);
    snprintf(text, DIGEST_CHARS, "%016" PRIx64, XXH3_64bits_digest(hash));
    XXH3_freeState(hash);
    return status;
}

static sw_status copy_files(const char *model, const char *to, json_t *digests) {
    struct sw_model_file file;
    char path[PATH_MAX], digest[DIGEST_CHARS];
    for (int i = 0; sw_model_file_names[i] != NULL; i++) {
        sw_model_file_look(model, sw_model_file_names[i], &file);
        if (!file.is_there || file.refused[0] != '\0')
            continue;
        SW_TRY(sw_path_join(path, sizeof path, to, sw_model_file_names[i]));
        SW_TRY(sw_file_copy(file.path, path, SW_FILE_PRIVATE));
        SW_TRY(digest_of(path, digest));
        if (json_object_set_new(digests, sw_model_file_names[i], json_string(digest)) != 0)
            return sw_fail(SW_ERR_NOMEM, "no memory for the files of the model");
    }
    return json_object_size(digests) > 0 ? sw_file_flush_folder_of(path) : SW_OK;
}

sw_status sw_run_keep_model(const char *folder, const char *model, json_t **out) {
    *out = NULL;
    if (!is_folder(model) || !can_be_kept(model))
        return SW_OK;
    *out = json_object();
    return copy_files(model, folder, *out);
}

/* Returns what is wrong with a copy; NULL: nothing. */
static const char *damage_of(const char *path, const char *digest) {
    SW_HANDLES_ERRORS();
    char found[DIGEST_CHARS];
    struct stat info;
    if (sw_path_lstat(path, &info) != 0)
        return "missing";
    if (!S_ISREG(info.st_mode))
        return "no regular file";
    if (digest_of(path, found) != SW_OK)
        return "cannot be read";
    return digest != NULL && strcmp(found, digest) == 0 ? NULL : "wrong checksum";
}

json_t *sw_run_damaged_copies(const char *folder, const json_t *digests) {
    json_t *list = json_array();
    for (int i = 0; sw_model_file_names[i] != NULL && list != NULL; i++) {
        const json_t *digest = json_object_get(digests, sw_model_file_names[i]);
        char path[PATH_MAX];
        if (digest == NULL || snprintf(path, sizeof path, "%s/%s", folder, sw_model_file_names[i]) >= PATH_MAX)
            continue;
        const char *damage = damage_of(path, json_string_value(digest));
        if (damage != NULL)
            json_array_append_new(list, json_pack("{s:s, s:s}", "file", path, "reason", damage));
    }
    return list;
}

/* Finds out whether a run's folder has copies. Refuses links among them: the folder may come from somebody else. */
static sw_status look_for_copies(const char *folder, bool *out_any) {
    char path[PATH_MAX];
    struct stat info;
    *out_any = false;
    for (int i = 0; sw_model_file_names[i] != NULL; i++) {
        SW_TRY(sw_path_join(path, sizeof path, folder, sw_model_file_names[i]));
        if (sw_path_lstat(path, &info) != 0)
            continue;
        if (S_ISLNK(info.st_mode))
            return sw_fail(SW_ERR_ARG, "%s is a link, which is not followed in the folder of a run: put the file there",
                           path);
        *out_any = true;
    }
    return SW_OK;
}

sw_status sw_run_model_folder(const char *folder, const char *model, char **out) {
    bool has_copies = false;
    if (folder != NULL)
        SW_TRY(look_for_copies(folder, &has_copies));
    const char *found = has_copies ? folder : is_folder(model) ? model : NULL;
    char *copy = found != NULL ? strdup(found) : NULL;
    free(*out);
    *out = copy;
    return copy != NULL || found == NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to open the model");
}

sw_status sw_run_or_model_folder(const char *run_or_model, char **out) {
    struct sw_run run = {0};
    *out = NULL;
    if (!sw_run_is_one(run_or_model)) {
        *out = strdup(run_or_model);
        return *out != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to open the model");
    }
    sw_status status = sw_run_read(run_or_model, &run);
    if (status == SW_OK)
        status = sw_run_model_folder(run_or_model, run.settings.model, out);
    if (status == SW_OK && *out == NULL)
        status = sw_fail(SW_ERR_ARG, "the run %s keeps no tokenizer, and the folder of its model %s is not there",
                         run_or_model, run.settings.model);
    sw_run_release(&run);
    return status;
}

/* Lists the copies that an export does not have. */
static void list_lost(const char *export, const json_t *digests, char *text, size_t chars) {
    size_t used = 0;
    for (int i = 0; sw_model_file_names[i] != NULL; i++) {
        char path[PATH_MAX];
        const bool is_copied = json_object_get(digests, sw_model_file_names[i]) != NULL;
        if (is_copied && snprintf(path, sizeof path, "%s/%s", export, sw_model_file_names[i]) < PATH_MAX &&
            !sw_path_exists(path))
            used += (size_t)snprintf(text + used, chars - used, "%s%s", used > 0 ? ", " : "", sw_model_file_names[i]);
    }
}

const char *sw_run_model_lack(const char *export, const struct sw_run_model *from, char text[SW_RUN_MODEL_CHARS]) {
    char lost[LOST_CHARS] = "";
    list_lost(export, from->digests, lost, sizeof lost);
    text[0] = '\0';
    if (lost[0] != '\0')
        snprintf(text, SW_RUN_MODEL_CHARS, ", without %s: restore what the run's folder lacks from any copy of it",
                 lost);
    else if (sw_model_text_is_there(export))
        return text;
    else if (sw_model_text_is_there(from->folder))
        snprintf(text, SW_RUN_MODEL_CHARS, ", without tokenizer.json: that of %s was not copied", from->folder);
    else if (from->folder != NULL || from->model[0] != '/')
        snprintf(text, SW_RUN_MODEL_CHARS, ", without tokenizer.json: %s has none",
                 from->folder != NULL ? from->folder : from->model);
    else
        snprintf(text, SW_RUN_MODEL_CHARS,
                 ", without tokenizer.json and other files of %s, which is gone: copy them there if you have them",
                 from->model);
    return text;
}
