/* The user's cache of what can be measured or made again.
 *
 * An entry is replaced by renaming a complete file, so a reader needs no lock. Changing an entry takes a lock, because
 * two processes that add to it would otherwise lose one addition. A file system without locks only risks that.
 *
 * Nothing in a folder that another user can write is believed: the fallback in $TMPDIR must be the user's own. */
#include "core/files/cache.h"

#include "core/files/files.h"
#include "core/files/json_file.h"
#include "core/json.h"
#include "core/status.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#define FILE_LIMIT_BYTES ((size_t)4 << 20)
enum { PATH_CHARS = SW_CACHE_PATH_CHARS, NAME_CHARS = 64, PRIVATE_FOLDER = 0700 };
/* Changing an entry takes milliseconds. */
enum { LOCK_TURN_NS = 10000000, LOCK_TURNS_A_S = 1000000000 / LOCK_TURN_NS, LOCK_TURNS = 10 * LOCK_TURNS_A_S };

/* Writes the base folder of the user's caches. Ignores a relative path, as the XDG base directory specification asks.
 * Returns false if there is none. */
static bool users_base(char out[PATH_CHARS]) {
    const char *named = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (named != NULL && named[0] == '/')
        return snprintf(out, PATH_CHARS, "%s", named) < PATH_CHARS;
    return home != NULL && home[0] == '/' && snprintf(out, PATH_CHARS, "%s/.cache", home) < PATH_CHARS;
}

/* Tells whether a folder exists and only this user can write into it. In a shared or temporary folder others can make
 * folders too, and their content must not be believed. The user's own link to such a folder is as good. */
static bool is_ours(const char *folder) {
    struct stat link, info;
    return lstat(folder, &link) == 0 && link.st_uid == geteuid() && stat(folder, &info) == 0 && S_ISDIR(info.st_mode) &&
           info.st_uid == geteuid() && (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

/* Tells whether a folder is ours, or does not exist yet. */
static bool could_be_ours(const char *folder) {
    struct stat info;
    return is_ours(folder) || (lstat(folder, &info) != 0 && errno != EACCES);
}

static bool is_writable(const char *folder) {
    return access(folder, W_OK | X_OK) == 0;
}

/* Writes the cache folder below candidate `number` for temporary files: $TMPDIR first, then fallbacks. It is used if
 * the user's own cannot be written. Returns false after the last candidate. */
static bool temporary_at(size_t number, char out[PATH_CHARS]) {
    const char *named = getenv("TMPDIR");
    const char *const bases[] = {named != NULL && named[0] == '/' ? named : "/tmp", "/tmp", "/var/tmp", "/dev/shm"};
    return number < sizeof bases / sizeof bases[0] &&
           snprintf(out, PATH_CHARS, "%s/spillway-%lld", bases[number], (long long)geteuid()) < PATH_CHARS;
}

/* Tells whether a folder is writable, or would be once make_folder has made it and its parent. Makes nothing: readers
 * ask too. */
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

/* Writes the user's own cache folder. Returns false if there is none. */
static bool users_folder(char out[PATH_CHARS]) {
    char base[PATH_CHARS];
    return users_base(base) && snprintf(out, PATH_CHARS, "%s/spillway", base) < PATH_CHARS;
}

/* Writes the first temporary folder that is ours, or else the one that would be made first. */
static bool find_temporary(char out[PATH_CHARS], bool *is_there) {
    for (size_t i = 0; temporary_at(i, out); i++)
        if (is_ours(out) && is_writable(out)) {
            *is_there = true;
            return true;
        }
    *is_there = false;
    return temporary_at(0, out);
}

/* Writes the cache folder: the existing one, or else the one that would be made first. Returns false if there is none.
 */
static bool folder_of(char out[PATH_CHARS]) {
    char temporary[PATH_CHARS];
    bool is_there;
    const bool has_temporary = find_temporary(temporary, &is_there);
    if (users_folder(out) && could_be_ours(out) && (could_be_written(out) || !is_there))
        return true;
    snprintf(out, PATH_CHARS, "%s", temporary);
    return has_temporary && could_be_ours(out);
}

/* Makes and writes the cache folder. Returns false if neither the user's own nor a temporary one can be written, or if
 * others can write into the first candidate. */
static bool make_folder(char out[PATH_CHARS]) {
    char base[PATH_CHARS];
    if (users_folder(out) && users_base(base) && makes(base) && makes(out) && is_ours(out))
        return true;
    for (size_t i = 0; temporary_at(i, out); i++)
        if (makes(out))
            return is_ours(out);
    return false;
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

/* Writes through a temporary file of this thread's own: other processes, and ranks that are threads, may write the same
 * entry at the same time. The last one wins. */
sw_status sw_cache_replace(const char *path, const char *content, size_t bytes) {
    char own[PATH_CHARS];
    if (snprintf(own, sizeof own, "%s.%ld", path, (long)gettid()) >= (int)sizeof own)
        return sw_fail(SW_ERR_ARG, "the path %s is too long", path);
    SW_TRY(sw_file_replace(own, content, bytes, SW_FILE_PRIVATE));
    /* A power loss must not leave the temporary file, which nothing would remove. */
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

/* Opens and locks the file by which processes take turns to change entries. *out: the file, unlocked when it is closed;
 * -1: the file system has no locks, and the last writer wins. A process that was stopped while it had the lock does not
 * block others for long. */
static sw_status lock_folder(const char *folder, int *out) {
    char path[PATH_CHARS];
    *out = -1;
    SW_TRY(sw_path_join(path, sizeof path, folder, "lock"));
    const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
    if (file < 0)
        return sw_fail(SW_ERR_IO, "cannot open %s: %s", path, strerror(errno));
    int error = flock(file, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    for (int turn = 0; turn < LOCK_TURNS && (error == EWOULDBLOCK || error == EINTR); turn++) {
        nanosleep(&(struct timespec){.tv_nsec = LOCK_TURN_NS}, NULL);
        error = flock(file, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    }
    if (error == 0) {
        *out = file;
        return SW_OK;
    }
    close(file);
    return error == EWOULDBLOCK
               ? sw_fail(SW_ERR_BUSY, "another process has kept %s locked for %d s", path, LOCK_TURNS / LOCK_TURNS_A_S)
               : SW_OK;
}

static void unlock_folder(int file) {
    if (file >= 0)
        close(file);
}

sw_status sw_cache_update(const char *kind, const char *key, sw_cache_change *change, void *context) {
    char folder[PATH_CHARS];
    int lock;
    sw_status status = SW_OK;
    if (!make_folder(folder))
        return fail_no_folder();
    SW_TRY(lock_folder(folder, &lock));
    json_t *entry = sw_cache_read(kind, key);
    if (entry == NULL)
        entry = json_object();
    if (change(entry, context))
        status = sw_cache_write(kind, key, entry);
    json_decref(entry);
    unlock_folder(lock);
    return status;
}

static sw_status mark(const char *path, const char *member) {
    json_t *object;
    SW_TRY(sw_json_read_file(path, FILE_LIMIT_BYTES, SW_ERR_CORRUPT, &object));
    json_object_set_new(object, member, json_true());
    const sw_status status = write_object(path, object);
    json_decref(object);
    return status;
}

sw_status sw_cache_mark(const char *path, const char *member) {
    char folder[PATH_CHARS];
    int lock;
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
    SW_TRY(lock_folder(folder, &lock));
    const sw_status status = mark(path, member);
    unlock_folder(lock);
    return status;
}

sw_status sw_cache_file(const char *kind, uint64_t digest, const char *ending, char *out, size_t chars) {
    char folder[PATH_CHARS], name[NAME_CHARS];
    if (!make_folder(folder))
        return fail_no_folder();
    snprintf(name, sizeof name, "%s-%016" PRIx64 ".%s", kind, digest, ending);
    return sw_path_join(out, chars, folder, name);
}

char *sw_cache_read_file(const char *path, size_t *out_bytes) {
    struct stat info;
    char *content = NULL;
    size_t done = 0;
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0)
        return NULL;
    if (fstat(file, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0)
        content = malloc((size_t)info.st_size);
    while (content != NULL && done < (size_t)info.st_size) {
        const ssize_t got = read(file, content + done, (size_t)info.st_size - done);
        if (got <= 0)
            break;
        done += (size_t)got;
    }
    close(file);
    *out_bytes = done;
    return content;
}
