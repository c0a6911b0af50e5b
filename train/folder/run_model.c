#include "train/folder/run_model.h"

#include "core/confine.h"
#include "core/log.h"
#include "train/files/files.h"
#include "train/files/model_files.h"
#include "train/text/model_text.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_folder(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* Warns of files that may not be copied. Returns whether the others can do without them. */
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

static sw_status copy_files(const char *model, const char *to) {
    struct sw_model_file file;
    char path[PATH_MAX];
    for (int i = 0; sw_model_file_names[i] != NULL; i++) {
        sw_model_file_look(model, sw_model_file_names[i], &file);
        if (!file.is_there || file.refused[0] != '\0')
            continue;
        SW_TRY(sw_path_join(path, sizeof path, to, sw_model_file_names[i]));
        SW_TRY(sw_file_copy(file.path, path, SW_FILE_PRIVATE));
    }
    SW_TRY(sw_path_join(path, sizeof path, to, "."));
    return sw_file_flush_folder_of(path);
}

sw_status sw_run_keep_model(const char *folder, const char *model) {
    char to[PATH_MAX];
    if (!is_folder(model) || !can_be_kept(model))
        return SW_OK;
    SW_TRY(sw_path_join(to, sizeof to, folder, SW_RUN_MODEL_NAME));
    SW_TRY(sw_folder_make_own(to, 0700));
    return copy_files(model, to);
}

sw_status sw_run_model_folder(const char *folder, const char *model, char **out) {
    char own[PATH_MAX] = "";
    struct stat info;
    const char *found = is_folder(model) ? model : NULL;
    if (folder != NULL)
        SW_TRY(sw_path_join(own, sizeof own, folder, SW_RUN_MODEL_NAME));
    if (folder != NULL && sw_path_lstat(own, &info) == 0 && S_ISDIR(info.st_mode))
        found = own;
    char *copy = found != NULL ? strdup(found) : NULL;
    free(*out);
    *out = copy;
    return copy != NULL || found == NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to open the model");
}

const char *sw_run_model_lack(const char *export, const char *model, const char *carried,
                              char text[SW_RUN_MODEL_CHARS]) {
    text[0] = '\0';
    if (sw_model_text_is_there(export))
        return text;
    if (sw_model_text_is_there(carried))
        snprintf(text, SW_RUN_MODEL_CHARS, ", without tokenizer.json: that of %s was not copied", carried);
    else if (carried != NULL || model[0] != '/')
        snprintf(text, SW_RUN_MODEL_CHARS, ", without tokenizer.json: %s has none", carried != NULL ? carried : model);
    else
        snprintf(text, SW_RUN_MODEL_CHARS,
                 ", without tokenizer.json and other files of %s, which is gone: copy them there if you have them",
                 model);
    return text;
}
