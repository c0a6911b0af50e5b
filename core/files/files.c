#include "core/files/files.h"

#include "core/confine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
/* Redirects XXH3_64bits and _update to versions chosen at run time, about twice as fast as the baseline with SSE2. */
#include <xxh_x86dispatch.h>
#endif

uint64_t sw_checksum(const void *data, int64_t bytes) {
    const uint64_t sum = XXH3_64bits(data, (size_t)bytes);
    return sum == SW_CHECKSUM_UNKNOWN ? 1 : sum;
}

struct sw_running_sum {
    XXH3_state_t *state;
};

struct sw_running_sum *sw_running_sum_new(void) {
    struct sw_running_sum *sum = calloc(1, sizeof *sum);
    if (sum != NULL && (sum->state = XXH3_createState()) != NULL)
        return sum;
    free(sum);
    return NULL;
}

void sw_running_sum_free(struct sw_running_sum *sum) {
    if (sum != NULL)
        XXH3_freeState(sum->state);
    free(sum);
}

void sw_running_sum_begin(struct sw_running_sum *sum) {
    XXH3_64bits_reset(sum->state);
}

void sw_running_sum_add(struct sw_running_sum *sum, const void *data, int64_t bytes) {
    XXH3_64bits_update(sum->state, data, (size_t)bytes);
}

uint64_t sw_running_sum_get(const struct sw_running_sum *sum) {
    const uint64_t found = XXH3_64bits_digest(sum->state);
    return found == SW_CHECKSUM_UNKNOWN ? 1 : found;
}

enum { PATH_CHARS = 4096, COPY_BYTES = 1 << 16 };

sw_status sw_path_join(char *out, size_t chars, const char *folder, const char *name) {
    const int used = snprintf(out, chars, "%s/%s", folder, name);
    if (used < 0 || (size_t)used >= chars)
        return sw_fail(SW_ERR_ARG, "the path %s/%s is too long", folder, name);
    return SW_OK;
}

bool sw_path_ends_in(const char *path, const char *ending) {
    const size_t chars = strlen(path), ending_chars = strlen(ending);
    return chars >= ending_chars && strcmp(path + chars - ending_chars, ending) == 0;
}

char *sw_path_absolute(const char *name) {
    char *path = realpath(name, NULL), *here = NULL;
    if (path != NULL || strpbrk(name, "*?[") == NULL)
        return path;
    here = name[0] != '/' ? getcwd(NULL, 0) : NULL;
    if (here == NULL && name[0] != '/')
        return NULL;
    if (asprintf(&path, "%s%s%s", here != NULL ? here : "", here != NULL ? "/" : "", name) < 0)
        path = NULL;
    free(here);
    return path;
}

/* Returns the status of a write that failed with this errno. EFBIG: the process may not make files of that size. */
static sw_status write_error(int error) {
    return error == ENOSPC || error == EDQUOT || error == EFBIG ? SW_ERR_SPACE : SW_ERR_IO;
}

sw_status sw_file_write_all(int file, const char *path, const char *text, size_t bytes) {
    while (bytes > 0) {
        const ssize_t wrote = write(file, text, bytes);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote < 0)
            return sw_fail(write_error(errno), "%s cannot be written: %s", path, strerror(errno));
        text += wrote;
        bytes -= (size_t)wrote;
    }
    return SW_OK;
}

sw_status sw_file_flush_folder_of(const char *path) {
    char folder[PATH_CHARS];
    snprintf(folder, PATH_CHARS, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash == NULL)
        snprintf(folder, PATH_CHARS, ".");
    else
        slash[slash == folder ? 1 : 0] = '\0';
    const int directory = sw_path_open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    /* Some file systems cannot flush a folder, and a folder may be writable but not readable. */
    const bool flushed = directory < 0 ? errno == EACCES : fsync(directory) == 0 || errno == EINVAL || errno == ENOTSUP;
    const int error = errno;
    if (directory >= 0)
        close(directory);
    return flushed ? SW_OK : sw_fail(SW_ERR_IO, "the folder %s cannot be flushed: %s", folder, strerror(error));
}

/* Creates a file in place of whatever has its name. If that is a link, removes the link and never its target. */
static int open_new(const char *path, sw_file_readers readers) {
    if (sw_path_unlink(path) != 0 && errno != ENOENT)
        return -1;
    const int file = sw_path_open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                                  readers == SW_FILE_PRIVATE ? 0600 : 0644);
    if (file >= 0 && readers == SW_FILE_PRIVATE)
        (void)fchmod(file, 0600);
    return file;
}

sw_status sw_file_replace(const char *path, const char *text, size_t bytes, sw_file_readers readers) {
    char beside[PATH_CHARS];
    const int used = snprintf(beside, sizeof beside, "%s.partial", path);
    if (used < 0 || (size_t)used >= sizeof beside)
        return sw_fail(SW_ERR_ARG, "the path %s is too long", path);
    const int file = open_new(beside, readers);
    if (file < 0)
        return sw_fail(write_error(errno), "cannot write %s: %s", beside, strerror(errno));
    sw_status status = sw_file_write_all(file, beside, text, bytes);
    if (status == SW_OK && fsync(file) != 0)
        status = sw_fail(write_error(errno), "cannot flush %s: %s", beside, strerror(errno));
    if (close(file) != 0 && status == SW_OK)
        status = sw_fail(write_error(errno), "cannot write %s: %s", beside, strerror(errno));
    if (status == SW_OK && sw_path_rename(beside, path) != 0)
        status = sw_fail(write_error(errno), "cannot rename %s to %s: %s", beside, path, strerror(errno));
    if (status != SW_OK) {
        sw_path_unlink(beside);
        return status;
    }
    return sw_file_flush_folder_of(path);
}

/* Opens a regular file for reading. Refuses other files: opening or reading a FIFO may wait for ever. */
static FILE *open_regular(const char *path, int flags) {
    struct stat info;
    const int fd = sw_path_open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags, 0);
    if (fd < 0)
        return NULL;
    errno = EINVAL;
    FILE *file = fstat(fd, &info) == 0 && S_ISREG(info.st_mode) ? fdopen(fd, "r") : NULL;
    if (file == NULL)
        close(fd);
    return file;
}

/* Tells whether an open failed because of the name or the file, not because the system ran out of something. */
static bool names_wrong_file(int error) {
    return error == ENOENT || error == ENOTDIR || error == EACCES || error == EPERM || error == ENAMETOOLONG;
}

static sw_status read_text(const char *path, int flags, size_t limit_bytes, char **out, size_t *out_bytes) {
    FILE *file = open_regular(path, flags);
    if (file == NULL)
        return errno == ELOOP || errno == EINVAL ? sw_fail(SW_ERR_ARG, "%s is not a regular file", path)
                                                 : sw_fail(names_wrong_file(errno) ? SW_ERR_ARG : SW_ERR_IO,
                                                           "cannot open %s: %s", path, strerror(errno));
    sw_status status = SW_OK;
    char *text = malloc(limit_bytes + 1);
    const size_t bytes = text == NULL ? 0 : fread(text, 1, limit_bytes, file);
    if (text == NULL)
        status = sw_fail(SW_ERR_NOMEM, "no memory to read %s", path);
    else if (ferror(file))
        status = sw_fail(SW_ERR_IO, "cannot read %s: %s", path, strerror(errno));
    else if (fgetc(file) != EOF)
        status = sw_fail(SW_ERR_ARG, "%s is too large: it may have at most %zu bytes", path, limit_bytes);
    fclose(file);
    if (status != SW_OK) {
        free(text);
        return status;
    }
    text[bytes] = '\0';
    *out = text;
    *out_bytes = bytes;
    return SW_OK;
}

sw_status sw_file_read_text(const char *path, size_t limit_bytes, char **out) {
    size_t bytes;
    SW_TRY(read_text(path, 0, limit_bytes, out, &bytes));
    if (strlen(*out) == bytes)
        return SW_OK;
    const bool is_utf16 = bytes >= 2 && (memcmp(*out, "\xFF\xFE", 2) == 0 || memcmp(*out, "\xFE\xFF", 2) == 0);
    free(*out);
    if (is_utf16)
        return sw_fail(SW_ERR_ARG, "%s is UTF-16; write it as UTF-8: iconv -f UTF-16 -t UTF-8", path);
    return sw_fail(SW_ERR_ARG, "%s is no text file: it contains zero bytes", path);
}

sw_status sw_file_read_own_text(const char *path, size_t limit_bytes, char **out) {
    size_t bytes;
    return read_text(path, O_NOFOLLOW, limit_bytes, out, &bytes);
}

/* Removes those rights of others on a copy that they do not have on the original. Some file systems have no rights. */
static void keep_from_others(int copy, int original) {
    struct stat has, may;
    if (fstat(copy, &has) == 0 && fstat(original, &may) == 0 && (has.st_mode & ~may.st_mode & 077) != 0)
        (void)fchmod(copy, has.st_mode & (may.st_mode | 0700) & 0777);
}

sw_status sw_file_copy(const char *from, const char *to, sw_file_readers readers) {
    sw_status status = SW_OK;
    char *buffer = malloc(COPY_BYTES);
    FILE *regular = buffer == NULL ? NULL : open_regular(from, 0);
    const int source = regular == NULL ? -1 : fileno(regular);
    const int target = source < 0 ? -1 : open_new(to, readers);
    if (target < 0)
        status = sw_fail(write_error(errno), "cannot copy %s to %s: %s", from, to, strerror(errno));
    else
        keep_from_others(target, source);
    while (status == SW_OK) {
        const ssize_t got = read(source, buffer, COPY_BYTES);
        if (got == 0)
            break;
        if (got < 0 && errno != EINTR)
            status = sw_fail(SW_ERR_IO, "cannot read %s: %s", from, strerror(errno));
        else if (got > 0)
            status = sw_file_write_all(target, to, buffer, (size_t)got);
    }
    if (target >= 0 && (fsync(target) != 0 || close(target) != 0) && status == SW_OK)
        status = sw_fail(SW_ERR_IO, "cannot write %s: %s", to, strerror(errno));
    if (regular != NULL)
        fclose(regular);
    free(buffer);
    return status;
}

bool sw_text_stream_end(FILE *stream, char *const *text) {
    const bool failed = ferror(stream) != 0;
    return fclose(stream) == 0 && !failed && *text != NULL;
}

static bool is_dot(const char *name) {
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

DIR *sw_folder_list(const char *folder) {
    const int fd = sw_path_open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    DIR *directory = fd >= 0 ? fdopendir(fd) : NULL;
    const int error = errno;
    if (directory == NULL && fd >= 0)
        close(fd);
    errno = error;
    return directory;
}

sw_status sw_folder_must_be_free(const char *folder, const char *but) {
    DIR *directory = sw_folder_list(folder);
    if (directory == NULL)
        return errno == ENOENT ? SW_OK
                               : sw_fail(SW_ERR_ARG, "%s cannot be used as a folder: %s", folder, strerror(errno));
    bool empty = true;
    for (const struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory))
        empty = empty && (is_dot(entry->d_name) || (but != NULL && strcmp(entry->d_name, but) == 0));
    closedir(directory);
    return empty ? SW_OK : sw_fail(SW_ERR_ARG, "the folder %s is not empty; name a new one", folder);
}

sw_status sw_folder_make(const char *folder, mode_t mode) {
    if (sw_path_mkdir(folder, mode) != 0)
        return errno == EEXIST ? SW_OK
                               : sw_fail(errno == ENOSPC ? SW_ERR_SPACE : SW_ERR_IO, "cannot make the folder %s: %s",
                                         folder, strerror(errno));
    /* A umask must not remove the owner's rights on a private folder. */
    if (mode == 0700 && sw_path_chmod(folder, mode) != 0)
        return sw_fail(SW_ERR_IO, "the folder %s cannot be kept for its user alone: %s", folder, strerror(errno));
    /* Flushes the parent: otherwise a power loss could remove the folder's own name, with everything that was flushed
     * inside. */
    const sw_status status = sw_file_flush_folder_of(folder);
    if (status != SW_OK)
        sw_path_rmdir(folder);
    return status;
}

/* Cuts the last name off a path. Returns false if the path has no parent that could be missing. */
static bool cut_name(char *path) {
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    while (length > 0 && path[length - 1] != '/')
        length--;
    while (length > 1 && path[length - 1] == '/')
        length--;
    path[length] = '\0';
    return length > 0 && strcmp(path, "/") != 0;
}

void sw_folder_unmake(const char *folder, int made) {
    char path[PATH_CHARS];
    snprintf(path, sizeof path, "%s", folder);
    for (int i = 0; i < made && sw_path_rmdir(path) == 0; i++)
        cut_name(path);
}

sw_status sw_folder_make_with_parents(const char *folder, mode_t mode, int *out_made) {
    char parent[PATH_CHARS];
    *out_made = 0;
    if (sw_path_exists(folder))
        return sw_folder_make(folder, mode);
    if (snprintf(parent, sizeof parent, "%s", folder) >= PATH_CHARS)
        return sw_fail(SW_ERR_ARG, "the path %s is too long", folder);
    sw_status status = cut_name(parent) ? sw_folder_make_with_parents(parent, 0777, out_made) : SW_OK;
    if (status == SW_OK)
        status = sw_folder_make(folder, mode);
    if (status == SW_OK) {
        ++*out_made;
        return SW_OK;
    }
    sw_folder_unmake(parent, *out_made);
    *out_made = 0;
    return status;
}

sw_status sw_folder_make_own(const char *folder, mode_t mode) {
    struct stat info;
    SW_TRY(sw_folder_make(folder, mode));
    if (sw_path_lstat(folder, &info) != 0)
        return sw_fail(SW_ERR_IO, "the folder %s cannot be examined: %s", folder, strerror(errno));
    if (!S_ISDIR(info.st_mode))
        return sw_fail(SW_ERR_ARG, "%s is not a folder: move it away", folder);
    return SW_OK;
}

sw_status sw_folder_empty(const char *folder, const char *but) {
    const int fd = sw_path_open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
    DIR *directory = fd >= 0 ? fdopendir(fd) : NULL;
    if (directory == NULL) {
        const int error = errno;
        if (fd >= 0)
            close(fd);
        return error == ENOENT ? SW_OK : sw_fail(SW_ERR_IO, "%s cannot be emptied: %s", folder, strerror(error));
    }
    for (const struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory))
        if (!is_dot(entry->d_name) && (but == NULL || strcmp(entry->d_name, but) != 0))
            unlinkat(fd, entry->d_name, 0);
    closedir(directory);
    return SW_OK;
}

sw_status sw_folder_remove(const char *folder) {
    SW_TRY(sw_folder_empty(folder, NULL));
    if (sw_path_rmdir(folder) == 0)
        return sw_file_flush_folder_of(folder);
    if (errno == ENOENT)
        return SW_OK;
    return sw_fail(SW_ERR_IO, "%s cannot be removed: %s", folder, strerror(errno));
}

sw_status sw_folder_remove_empty(const char *folder) {
    /* A folder that came back after a power loss would block the next start. */
    if (sw_path_rmdir(folder) == 0)
        return sw_file_flush_folder_of(folder);
    return errno == ENOENT || errno == ENOTEMPTY || errno == EEXIST
               ? SW_OK
               : sw_fail(SW_ERR_IO, "%s cannot be removed: %s", folder, strerror(errno));
}

const char *sw_download_fault(const char *begin, size_t bytes) {
    static const char page[] = "a page of HTML where the file should be: the download failed; get it again";
    static const struct {
        const char *begin, *what;
    } faults[] = {{"version https://git-lfs", "a git-lfs pointer and not the file: run `git lfs pull` in the folder"},
                  {"<!DOCTYPE", page},
                  {"<html", page}};
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        if (bytes >= strlen(faults[i].begin) && strncasecmp(begin, faults[i].begin, strlen(faults[i].begin)) == 0)
            return faults[i].what;
    return NULL;
}
