#include "train/hf/config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Real ones have a few KiB; label maps can make them larger. */
#define CONFIG_MAX_BYTES (INT64_C(1) << 24)

/* Reads until the end or the buffer is full. */
static sw_status read_fully(int fd, const char *path, char *to, size_t capacity, size_t *out_used) {
    size_t used = 0;
    while (used < capacity) {
        const ssize_t got = read(fd, to + used, capacity - used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return sw_fail(SW_ERR_IO, "%s cannot be read: %s", path, strerror(errno));
        if (got == 0)
            break;
        used += (size_t)got;
    }
    *out_used = used;
    return SW_OK;
}

static sw_status read_open_text(int fd, const char *path, char **out) {
    struct stat info;
    if (fstat(fd, &info) != 0)
        return sw_fail(SW_ERR_IO, "%s cannot be read: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode) || info.st_size > CONFIG_MAX_BYTES)
        return sw_fail(SW_ERR_ARG, "%s is not a config.json: it must be a regular file of at most %lld bytes", path,
                       (long long)CONFIG_MAX_BYTES);
    char *text = malloc((size_t)info.st_size + 1);
    if (text == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read %s", path);
    size_t used = 0;
    const sw_status status = read_fully(fd, path, text, (size_t)info.st_size, &used);
    if (status != SW_OK) {
        free(text);
        return status;
    }
    text[used] = '\0';
    if (strlen(text) != used) {
        free(text);
        return sw_fail(SW_ERR_ARG, "%s is not a config.json: it contains zero bytes", path);
    }
    *out = text;
    return SW_OK;
}

static sw_status load_file(const char *path, struct sw_model_config *out) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return sw_fail(SW_ERR_IO, "%s cannot be opened: %s", path, strerror(errno));
    char *text = NULL;
    sw_status status = read_open_text(fd, path, &text);
    close(fd);
    if (status == SW_OK)
        status = sw_config_parse(text, path, out);
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

static sw_status fail_unknown_model(const char *model, bool is_folder) {
    char names[1024] = "";
    size_t used = 0;
    const struct sw_preset *preset = NULL;
    for (int i = 0; (preset = sw_preset_at(i)) != NULL && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? ", " : "", preset->name);
    if (is_folder)
        return sw_fail(SW_ERR_ARG,
                       "the model folder %s has no config.json; give a Hugging Face folder or a preset (%s)", model,
                       names);
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
        char *path = NULL;
        if (asprintf(&path, "%s/config.json", model) < 0)
            return sw_fail(SW_ERR_NOMEM, "no memory to read %s", model);
        const bool has_config = access(path, F_OK) == 0;
        const sw_status status = has_config ? load_file(path, out) : SW_OK;
        free(path);
        if (has_config)
            return status;
    }
    /* A folder without a config.json does not hide the preset of the same name. */
    const struct sw_preset *preset = find_preset(model);
    if (preset == NULL)
        return fail_unknown_model(model, is_folder);
    *out = preset->config;
    return SW_OK;
}
