#include "core/files/model_files.h"

#include "core/confine.h"
#include "core/files/files.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_FILE_MIB = 256 };

const char *const sw_model_file_names[] = {"tokenizer.json",
                                           "tokenizer_config.json",
                                           "chat_template.jinja",
                                           SW_MODEL_CONFIG,
                                           "generation_config.json",
                                           "special_tokens_map.json",
                                           "chat_template.json",
                                           "vocab.json",
                                           "merges.txt",
                                           "tokenizer.model",
                                           "added_tokens.json",
                                           NULL};

/* Tells whether a path is below a folder. Both must be free of links. */
static bool is_below(const char *path, const char *folder) {
    const size_t chars = strlen(folder);
    return strncmp(path, folder, chars) == 0 && (path[chars] == '/' || strcmp(folder, "/") == 0);
}

/* Tells whether a path is a blob of the model's own folder in a Hugging Face cache, where the files of
 * ".../models--OWNER--NAME/snapshots/REVISION" are links to ".../models--OWNER--NAME/blobs/DIGEST". Blobs of other
 * models may be private, and `folder` may come from somebody else. Both paths must be free of links. */
static bool is_own_blob(const char *path, const char *folder) {
    static const char model[] = "/models--", snapshots[] = "/snapshots/", blobs[] = "/blobs/";
    const char *found = NULL;
    for (const char *at = strstr(folder, model); at != NULL; at = strstr(at + 1, model))
        found = at;
    const char *behind = found != NULL ? strchr(found + 1, '/') : NULL;
    if (behind == NULL || strncmp(behind, snapshots, sizeof snapshots - 1) != 0)
        return false;
    const size_t chars = (size_t)(behind - folder);
    return strncmp(path, folder, chars) == 0 && strncmp(path + chars, blobs, sizeof blobs - 1) == 0 &&
           strchr(path + chars + sizeof blobs - 1, '/') == NULL;
}

/* Decides whether the file at the resolved path may be copied out of the folder, or else notes the reason. */
static void judge(const char *folder, struct sw_model_file *file) {
    struct stat info;
    char whole[PATH_MAX];
    const char *path = file->path;
    if (realpath(folder, whole) == NULL)
        snprintf(file->refused, sizeof file->refused, "its folder cannot be found: %s", strerror(errno));
    else if (!is_below(path, whole) && !is_own_blob(path, whole))
        snprintf(file->refused, sizeof file->refused, "it is a link to %s, out of its folder", path);
    else if (stat(path, &info) != 0 || access(path, R_OK) != 0)
        snprintf(file->refused, sizeof file->refused, "it cannot be read: %s", strerror(errno));
    else if (!S_ISREG(info.st_mode))
        snprintf(file->refused, sizeof file->refused, "it is no regular file");
    else if (info.st_size > (off_t)MOST_FILE_MIB << 20)
        snprintf(file->refused, sizeof file->refused, "it is larger than %d MiB", MOST_FILE_MIB);
}

sw_status sw_model_file_find(const char *folder, const char *name, char path[PATH_MAX], bool *out) {
    struct stat info;
    SW_TRY(sw_path_join(path, PATH_MAX, folder, name));
    *out = sw_path_stat(path, &info) == 0;
    const int error = errno;
    if (*out || (sw_path_lstat(path, &info) != 0 && (error == ENOENT || error == ENOTDIR)))
        return SW_OK;
    if (error == ENOENT)
        return sw_fail(SW_ERR_ARG, "%s is a link to a file that is not there: download the model again, or remove it",
                       path);
    return sw_fail(SW_ERR_IO, "%s cannot be examined: %s", path, strerror(error));
}

void sw_model_file_look(const char *folder, const char *name, struct sw_model_file *out) {
    char path[PATH_MAX];
    struct stat info;
    out->refused[0] = out->path[0] = '\0';
    out->is_there = snprintf(path, sizeof path, "%s/%s", folder, name) < PATH_MAX && sw_path_lstat(path, &info) == 0;
    if (!out->is_there)
        return;
    if (realpath(path, out->path) == NULL)
        snprintf(out->refused, sizeof out->refused, "it cannot be found: %s", strerror(errno));
    else
        judge(folder, out);
}

enum { NAME_CHARS = 160 };

static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";

/* Returns what follows the address of the Hub; *out_address says whether there is an address. */
static const char *without_address(const char *given, bool *out_address) {
    static const char *const addresses[] = {
        "https://huggingface.co/", "http://huggingface.co/", "huggingface.co/", "https://hf.co/", "hf.co/", "hf://"};
    static const char data[] = "datasets/";
    const char *name = given;
    for (size_t i = 0; i < sizeof addresses / sizeof addresses[0] && name == given; i++)
        if (strncmp(given, addresses[i], strlen(addresses[i])) == 0)
            name = given + strlen(addresses[i]);
    *out_address = name != given;
    return *out_address && strncmp(name, data, strlen(data)) == 0 ? name + strlen(data) : name;
}

/* Copies OWNER/NAME, without a revision or, in an address, the rest of the page's path. Returns false if it is not a
 * name of the Hub. */
static bool read_name(const char *name, bool is_address, char out[NAME_CHARS]) {
    const size_t owner = strspn(name, allowed);
    if (owner == 0 || name[0] == '.' || name[owner] != '/')
        return false;
    const size_t chars = owner + 1 + strspn(name + owner + 1, allowed);
    const char *rest = name + chars;
    const bool ends = *rest == '\0' || *rest == '@' || *rest == ':' || strcmp(rest, "/") == 0 ||
                      (is_address && strchr("/?#", *rest) != NULL);
    if (chars == owner + 1 || chars >= NAME_CHARS || !ends)
        return false;
    memcpy(out, name, chars);
    out[chars] = '\0';
    return true;
}

/* Finds OWNER/NAME in a name or an address of the Hub. */
static bool find_name(const char *given, char out[NAME_CHARS], bool *out_address) {
    const char *begin = without_address(given, out_address);
    return read_name(begin, *out_address, out);
}

sw_status sw_hub_refuse_name(const char *model) {
    char name[NAME_CHARS];
    bool is_address;
    if (!find_name(model, name, &is_address))
        return SW_OK;
    const char *folder = strchr(name, '/') + 1;
    return sw_fail(SW_ERR_ARG,
                   "the model '%s' is no folder on this machine; if it is a model of the Hugging Face Hub, download it "
                   "with `hf download %s --local-dir %s` and give --model %s",
                   model, name, folder, folder);
}

sw_status sw_hub_refuse_data(const char *data) {
    char name[NAME_CHARS];
    bool is_address;
    /* A dot more likely belongs to a file's ending. */
    if (!find_name(data, name, &is_address) || (!is_address && strchr(name, '.') != NULL))
        return SW_OK;
    const char *folder = strchr(name, '/') + 1;
    return sw_fail(SW_ERR_ARG,
                   "%s is no file or folder on this machine; if it is a data set of the Hugging Face Hub, download it "
                   "with `hf download %s --repo-type dataset --local-dir %s` and give --data %s",
                   data, name, folder, folder);
}
