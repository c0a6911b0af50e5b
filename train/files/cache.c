#include "train/files/cache.h"

#include "core/error_scope.h"
#include "core/json.h"
#include "train/files/files.h"
#include "train/files/json_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define FILE_LIMIT_BYTES ((size_t)4 << 20)
enum { PATH_CHARS = SW_CACHE_PATH_CHARS, NAME_CHARS = 64, PRIVATE_FOLDER = 0700 };

/* Writes the folder that the user has for caches. Ignores a path that is not absolute, as the XDG base directory
 * specification asks. False: there is none. */
static bool users_base(char out[PATH_CHARS]) {
    const char *named = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (named != NULL && named[0] == '/')
        return snprintf(out, PATH_CHARS, "%s", named) < PATH_CHARS;
    return home != NULL && home[0] == '/' && snprintf(out, PATH_CHARS, "%s/.cache", home) < PATH_CHARS;
}

/* Tells whether a folder is there and only this user writes into it. Others can make folders in a temporary or a shared
 * one, too, and what they put there must not be believed. A link of the user's to such a folder is as good. */
static bool is_ours(const char *folder) {
    struct stat link, info;
    return lstat(folder, &link) == 0 && link.st_uid == geteuid() && stat(folder, &info) == 0 && S_ISDIR(info.st_mode) &&
           info.st_uid == geteuid() && (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

/* Tells whether a folder is ours, or is not there yet. */
static bool could_be_ours(const char *folder) {
    struct stat info;
    return is_ours(folder) || (lstat(folder, &info) != 0 && errno != EACCES);
}

static bool is_writable(const char *folder) {
    return access(folder, W_OK | X_OK) == 0;
}

/* Writes the folder for files that may go at any time: $TMPDIR or, where that cannot be written, the first of the usual
 * ones that can. A cache below it serves where the user's cannot be written. */
static bool temporary_base(char out[PATH_CHARS]) {
    const char *named = getenv("TMPDIR");
    const char *const bases[] = {named != NULL && named[0] == '/' ? named : "/tmp", "/tmp", "/var/tmp", "/dev/shm"};
    size_t chosen = 0;
    for (size_t i = sizeof bases / sizeof bases[0]; i > 0; i--)
        chosen = is_writable(bases[i - 1]) ? i - 1 : chosen;
    return snprintf(out, PATH_CHARS, "%s", bases[chosen]) < PATH_CHARS;
}

/* Tells whether a folder is writable, or would be once it and the one that holds it are made, as make_folder does.
 * Makes nothing, because readers ask, too. */
static bool could_be_written(const char *folder) {
    char path[PATH_CHARS];
    snprintf(path, sizeof path, "%s", folder);
    for (int made = 0; made < 2 && access(path, F_OK) != 0; made++) {
        char *slash = strrchr(path, '/');
        if (slash == NULL || slash == path)
            break;
        *slash = '\0';
    }
    return is_writable(path);
}

static bool makes(const char *folder) {
    SW_HANDLES_ERRORS();
    return sw_folder_make(folder, PRIVATE_FOLDER) == SW_OK && is_writable(folder);
}

/* Writes the folders that may hold the caches; empty: there is no such folder. */
static void candidates(char users[PATH_CHARS], char temporary[PATH_CHARS]) {
    char base[PATH_CHARS], name[NAME_CHARS];
    if (!users_base(base) || snprintf(users, PATH_CHARS, "%s/spillway", base) >= PATH_CHARS)
        users[0] = '\0';
    snprintf(name, sizeof name, "spillway-%lld", (long long)geteuid());
    if (!temporary_base(base) || snprintf(temporary, PATH_CHARS, "%s/%s", base, name) >= PATH_CHARS)
        temporary[0] = '\0';
}

/* Writes the folder of the caches: the one that is there, else the one that would be made first. False: there is none.
 */
static bool folder_of(char out[PATH_CHARS]) {
    char users[PATH_CHARS], temporary[PATH_CHARS];
    candidates(users, temporary);
    const bool in_temporary =
        users[0] == '\0' || !could_be_ours(users) || (!could_be_written(users) && is_ours(temporary));
    snprintf(out, PATH_CHARS, "%s", in_temporary ? temporary : users);
    return out[0] != '\0' && could_be_ours(out);
}

/* Makes the folder of the caches and writes it. False: neither the user's nor a temporary one can be written, or
 * others can write into both. */
static bool make_folder(char out[PATH_CHARS]) {
    char base[PATH_CHARS], users[PATH_CHARS], temporary[PATH_CHARS];
    candidates(users, temporary);
    const bool in_users = users[0] != '\0' && users_base(base) && makes(base) && makes(users) && is_ours(users);
    snprintf(out, PATH_CHARS, "%s", in_users ? users : temporary);
    return in_users || (temporary[0] != '\0' && makes(temporary) && is_ours(temporary));
}

bool sw_cache_is_temporary(const char *path) {
    char base[PATH_CHARS];
    if (!users_base(base))
        return true;
    const size_t chars = strlen(base);
    return strncmp(path, base, chars) != 0 || path[chars] != '/';
}

static sw_status fail_no_folder(void) {
    return sw_fail(SW_ERR_ARG,
                   "no folder for caches is yours alone and can be written, neither below ~/.cache nor one in "
                   "$TMPDIR, /tmp, /var/tmp or /dev/shm; set XDG_CACHE_HOME to a folder of yours");
}

sw_status sw_cache_path(const char *kind, const char *key, char out[SW_CACHE_PATH_CHARS]) {
    char folder[PATH_CHARS], name[NAME_CHARS];
    if (!folder_of(folder))
        return fail_no_folder();
    snprintf(name, sizeof name, "%s-%016" PRIx64 ".json", kind, (uint64_t)XXH3_64bits(key, strlen(key)));
    return sw_path_join(out, PATH_CHARS, folder, name);
}

json_t *sw_cache_read(const char *kind, const char *key) {
    SW_HANDLES_ERRORS();
    char path[PATH_CHARS];
    json_t *root = NULL;
    if (sw_cache_path(kind, key, path) != SW_OK || access(path, F_OK) != 0 ||
        sw_json_read_file(path, FILE_LIMIT_BYTES, SW_ERR_CORRUPT, &root) != SW_OK)
        root = NULL;
    const char *of = json_string_value(json_object_get(root, "key"));
    if (of != NULL && strcmp(of, key) == 0)
        return root;
    json_decref(root);
    return NULL;
}

/* Writes through a file of this process's own, because other processes may write the same entry at the same time. The
 * last one stays. */
sw_status sw_cache_replace(const char *path, const char *content, size_t bytes) {
    char own[PATH_CHARS];
    if (snprintf(own, sizeof own, "%s.%ld", path, (long)getpid()) >= (int)sizeof own)
        return sw_fail(SW_ERR_ARG, "the path %s is too long", path);
    SW_TRY(sw_file_replace(own, content, bytes, SW_FILE_PRIVATE));
    /* A power loss must not leave the file under its process's name, which nothing removes. */
    if (rename(own, path) == 0)
        return sw_file_flush_folder_of(path);
    const int error = errno;
    unlink(own);
    return sw_fail(SW_ERR_IO, "cannot rename %s to %s: %s", own, path, strerror(error));
}

static sw_status write_object(const char *path, const json_t *object) {
    char *text = sw_json_text(object, JSON_INDENT(1));
    if (text == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to write %s", path);
    const sw_status status = sw_cache_replace(path, text, strlen(text));
    free(text);
    return status;
}

sw_status sw_cache_write(const char *kind, const char *key, json_t *object) {
    char path[PATH_CHARS];
    if (!make_folder(path))
        return fail_no_folder();
    SW_TRY(sw_cache_path(kind, key, path));
    json_object_set_new(object, "key", json_string(key));
    return write_object(path, object);
}

sw_status sw_cache_mark(const char *path, const char *member) {
    json_t *object;
    SW_TRY(sw_json_read_file(path, FILE_LIMIT_BYTES, SW_ERR_CORRUPT, &object));
    json_object_set_new(object, member, json_true());
    const sw_status status = write_object(path, object);
    json_decref(object);
    return status;
}

sw_status sw_cache_file(const char *kind, uint64_t digest, const char *ending, char *out, size_t chars) {
    char folder[PATH_CHARS], name[NAME_CHARS];
    if (!make_folder(folder))
        return fail_no_folder();
    snprintf(name, sizeof name, "%s-%016" PRIx64 ".%s", kind, digest, ending);
    return sw_path_join(out, chars, folder, name);
}
