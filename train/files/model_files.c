#include "train/files/model_files.h"

#include "core/confine.h"

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

/* Tells whether a path is that of a blob of the Hugging Face cache, ".../models--OWNER--NAME/blobs/DIGEST", to which
 * the files of its snapshots and of some downloads are links. */
static bool is_blob(const char *path) {
    static const char folder[] = "/blobs/", model[] = "/models--";
    const char *name = strrchr(path, '/'), *found = NULL;
    for (const char *at = strstr(path, model); at != NULL; at = strstr(at + 1, model))
        found = at;
    if (found == NULL || name == NULL)
        return false;
    const char *behind = strchr(found + 1, '/');
    return behind != NULL && strncmp(behind, folder, sizeof folder - 1) == 0 && behind + sizeof folder - 2 == name;
}

/* Returns whether the file at the resolved path may be copied out of the folder, and else notes why not. */
static void judge(const char *folder, struct sw_model_file *file) {
    struct stat info;
    char *whole = realpath(folder, NULL);
    const char *path = file->path;
    if (whole == NULL || (!is_below(path, whole) && !is_blob(path)))
        snprintf(file->refused, sizeof file->refused, "it is a link to %s, out of its folder", path);
    else if (stat(path, &info) != 0 || access(path, R_OK) != 0)
        snprintf(file->refused, sizeof file->refused, "it cannot be read: %s", strerror(errno));
    else if (!S_ISREG(info.st_mode))
        snprintf(file->refused, sizeof file->refused, "it is no regular file");
    else if (info.st_size > (off_t)MOST_FILE_MIB << 20)
        snprintf(file->refused, sizeof file->refused, "it is larger than %d MiB", MOST_FILE_MIB);
    free(whole);
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
