#include "model/hf/config.h"

#include "core/files/files.h"
#include "core/files/hub.h"
#include "core/files/model_files.h"
#include "model/hf/folder_contents.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A config.json has a few KiB; label maps can make it larger. */
#define CONFIG_LIMIT_BYTES ((size_t)1 << 24)

static sw_status load_file(const char *path, struct sw_model_config *out) {
    char *text;
    SW_TRY(sw_file_read_text(path, CONFIG_LIMIT_BYTES, &text));
    const sw_status status = sw_config_parse(text, path, out);
    free(text);
    return status;
}

static const struct sw_preset *find_preset(const char *name) {
    const struct sw_preset *preset = NULL;
    for (int i = 0; (preset = sw_preset_at(i)) != NULL; i++) {
        if (strcmp(preset->name, name) == 0)
            return preset;
    }
    return NULL;
}

static sw_status fail_unknown_model(const char *model) {
    char names[1024] = "";
    size_t used = 0;
    const struct sw_preset *preset = NULL;
    SW_TRY(sw_hub_refuse_name(model));
    for (int i = 0; (preset = sw_preset_at(i)) != NULL && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? ", " : "", preset->name);
    return sw_fail(SW_ERR_ARG, "the model '%s' is neither a folder or file on this machine nor a preset (%s)", model,
                   names);
}

sw_status sw_config_load(const char *model, struct sw_model_config *out) {
    struct stat info;
    const bool exists = stat(model, &info) == 0;
    const bool is_folder = exists && S_ISDIR(info.st_mode);
    if (exists && !is_folder)
        return load_file(model, out);
    if (is_folder) {
        char path[PATH_MAX];
        bool has_config;
        SW_TRY(sw_model_file_find(model, "config.json", path, &has_config));
        if (has_config)
            return load_file(path, out);
    }
    /* A folder without a config.json does not hide the preset of the same name. */
    const struct sw_preset *preset = find_preset(model);
    if (preset == NULL)
        return is_folder ? sw_folder_fail_without(model, "config.json") : fail_unknown_model(model);
    *out = preset->config;
    return SW_OK;
}
