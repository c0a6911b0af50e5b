#include "core/files/model_files.h"

#include "core/confine.h"
#include "core/files/files.h"

#include <errno.h>
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

/* Tells whether a path is that of a file below a folder. Both are without links. */
static bool is_below(const char *path, const char *folder) {
    const size_t chars = strlen(folder);
    return strncmp(path, folder, chars) == 0 && (path[chars] == '/' || strcmp(folder, "/") == 0);
}

/* Tells whether a path is that of a blob of the model's own folder in a Hugging Face cache: the files of
 * ".../models--OWNER--NAME/snapshots/REVISION" are links to ".../models--OWNER--NAME/blobs/DIGEST". The blobs of other
 * models may be private, and `folder` may be from somebody else. Both paths are without links. */
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

/* Returns whether the file at the resolved path may be copied out of the folder, and else notes why not. */
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
    return sw_fail(SW_ERR_IO, "%s cannot be looked at: %s", path, strerror(error));
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
