/* Opens paths below a folder without ever leaving it.
 *
 * A check before the open (realpath, lstat) leaves a moment in which another process can swap a folder for a link. So
 * the folder is opened once and each name is looked up in the descriptor of the one before, without following links;
 * there is no moment to use. openat2 does this in one call, but not on older kernels. */
#include "core/confine.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct sw_confined {
    struct sw_confined *next;
    int fd;
    int users;              /* sw_confine's caller and the threads currently using the folder; the last user frees it */
    char *given, *absolute; /* the path as given, and absolute; both without trailing slashes */
};

static struct sw_confined *confined;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static char *copy_path(const char *before, const char *folder) {
    char *copy;
    if (asprintf(&copy, "%s%s%s", before, before[0] != '\0' ? "/" : "", folder) < 0)
        return NULL;
    for (size_t chars = strlen(copy); chars > 1 && copy[chars - 1] == '/'; chars--)
        copy[chars - 1] = '\0';
    return copy;
}

/* Releases a folder, and frees it if nobody else uses it. */
static void drop(struct sw_confined *folder) {
    pthread_mutex_lock(&lock);
    const bool last = --folder->users == 0;
    pthread_mutex_unlock(&lock);
    if (!last)
        return;
    if (folder->fd >= 0)
        close(folder->fd);
    free(folder->given);
    free(folder->absolute);
    free(folder);
}

sw_status sw_confine(const char *folder, struct sw_confined **out) {
    char current[PATH_MAX] = "";
    struct sw_confined *self = calloc(1, sizeof *self);
    *out = NULL;
    if (self == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to open the folder %s", folder);
    self->users = 1;
    self->fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (self->fd < 0 && (errno == ENOENT || errno == ENOTDIR)) {
        sw_confine_end(self);
        return SW_OK;
    }
    if (self->fd < 0 || (folder[0] != '/' && getcwd(current, sizeof current) == NULL)) {
        const sw_status status = sw_fail(SW_ERR_ARG, "the folder %s cannot be opened: %s", folder, strerror(errno));
        sw_confine_end(self);
        return status;
    }
    self->given = copy_path("", folder);
    self->absolute = copy_path(current, folder);
    if (self->given == NULL || self->absolute == NULL) {
        sw_confine_end(self);
        return sw_fail(SW_ERR_NOMEM, "no memory to open the folder %s", folder);
    }
    pthread_mutex_lock(&lock);
    self->next = confined;
    confined = self;
    pthread_mutex_unlock(&lock);
    *out = self;
    return SW_OK;
}

void sw_confine_end(struct sw_confined *folder) {
    if (folder == NULL)
        return;
    pthread_mutex_lock(&lock);
    for (struct sw_confined **at = &confined; *at != NULL; at = &(*at)->next)
        if (*at == folder) {
            *at = folder->next;
            break;
        }
    pthread_mutex_unlock(&lock);
    drop(folder);
}

/* Returns whether a path, with links followed, leads to an open file or folder. */
static bool leads_to(const char *path, int fd) {
    struct stat held, named;
    return fstat(fd, &held) == 0 && stat(path, &named) == 0 && held.st_dev == named.st_dev &&
           held.st_ino == named.st_ino;
}

bool sw_path_of(int fd, char path[PATH_MAX]) {
    char link[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t chars = readlink(link, path, PATH_MAX - 1);
    path[chars > 0 ? chars : 0] = '\0';
    const bool found = chars > 0 && leads_to(path, fd);
    if (!found)
        path[0] = '\0';
    return found;
}

bool sw_confine_holds(const struct sw_confined *folder, char now[PATH_MAX]) {
    (void)sw_path_of(folder->fd, now);
    return leads_to(folder->given, folder->fd) || leads_to(folder->absolute, folder->fd);
}

bool sw_path_goes_up(const char *path) {
    for (const char *at = strstr(path, ".."); at != NULL; at = strstr(at + 1, ".."))
        if ((at == path || at[-1] == '/') && (at[2] == '/' || at[2] == '\0'))
            return true;
    return false;
}

/* Returns the rest of a path after a folder's path; NULL: it is not below the folder. */
static const char *below(const char *folder, const char *path) {
    const size_t chars = strlen(folder);
    const bool under = strncmp(path, folder, chars) == 0 && (path[chars] == '/' || path[chars] == '\0');
    return under && !sw_path_goes_up(path + chars) ? path + chars : NULL;
}

/* A path, split into an open folder and a name in it. */
struct spot {
    struct sw_confined *confined; /* the confined folder of the path, in use until `leave`; NULL: none */
    int folder;
    bool owned;
    const char *name;    /* the path's last name; for a path that is not confined, the whole path */
    char rest[PATH_MAX]; /* buffer for the names of a confined path */
};

/* Returns the confined folder of the path, and in *out_rest the path below it; NULL: no folder confines it. The caller
 * drops the folder. Another thread may end the confinement meanwhile: ranks that are threads confine one run each. */
static struct sw_confined *use_folder(const char *path, const char **out_rest) {
    struct sw_confined *each;
    pthread_mutex_lock(&lock);
    for (each = confined; each != NULL; each = each->next) {
        *out_rest = below(each->given, path);
        if (*out_rest == NULL)
            *out_rest = below(each->absolute, path);
        if (*out_rest != NULL)
            break;
    }
    if (each != NULL)
        each->users++;
    pthread_mutex_unlock(&lock);
    return each;
}

/* Enters the next folder. Looks up the name in the folder that is open, so that nothing swapped meanwhile leads out. */
static bool enter(struct spot *spot, const char *name) {
    const int next = openat(spot->folder, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    const int error = errno;
    if (spot->owned)
        close(spot->folder);
    errno = error;
    spot->folder = next;
    spot->owned = next >= 0;
    return next >= 0;
}

/* Finds a path's spot; the caller leaves it. Returns false, with errno and nothing open, on failure. */
static bool find(const char *path, struct spot *out) {
    const char *rest;
    char *more;
    *out = (struct spot){.confined = use_folder(path, &rest), .folder = AT_FDCWD, .name = path};
    if (out->confined == NULL)
        return true;
    out->folder = out->confined->fd;
    if ((size_t)snprintf(out->rest, sizeof out->rest, "%s", rest) >= sizeof out->rest) {
        drop(out->confined);
        errno = ENAMETOOLONG;
        return false;
    }
    const char *name = strtok_r(out->rest, "/", &more);
    out->name = name != NULL ? name : ".";
    while (name != NULL) {
        name = strtok_r(NULL, "/", &more);
        if (name != NULL && !enter(out, out->name)) {
            const int error = errno;
            drop(out->confined);
            errno = error;
            return false;
        }
        out->name = name != NULL ? name : out->name;
    }
    return true;
}

/* Releases a spot and returns `result`. Keeps errno. */
static int leave(const struct spot *spot, int result) {
    const int error = errno;
    if (spot->owned)
        close(spot->folder);
    if (spot->confined != NULL)
        drop(spot->confined);
    errno = error;
    return result;
}

int sw_path_open(const char *path, int flags, mode_t mode) {
    struct spot spot;
    if (!find(path, &spot))
        return -1;
    return leave(&spot, openat(spot.folder, spot.name, flags | (spot.confined != NULL ? O_NOFOLLOW : 0), mode));
}

int sw_path_link(int fd, const char *path) {
    struct spot spot;
    char link[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    return find(path, &spot) ? leave(&spot, linkat(AT_FDCWD, link, spot.folder, spot.name, AT_SYMLINK_FOLLOW)) : -1;
}

int sw_path_mkdir(const char *path, mode_t mode) {
    struct spot spot;
    return find(path, &spot) ? leave(&spot, mkdirat(spot.folder, spot.name, mode)) : -1;
}

int sw_path_unlink(const char *path) {
    struct spot spot;
    return find(path, &spot) ? leave(&spot, unlinkat(spot.folder, spot.name, 0)) : -1;
}

int sw_path_rmdir(const char *path) {
    struct spot spot;
    return find(path, &spot) ? leave(&spot, unlinkat(spot.folder, spot.name, AT_REMOVEDIR)) : -1;
}

int sw_path_chmod(const char *path, mode_t mode) {
    struct spot spot;
    if (!find(path, &spot))
        return -1;
    return leave(&spot, fchmodat(spot.folder, spot.name, mode, spot.confined != NULL ? AT_SYMLINK_NOFOLLOW : 0));
}

int sw_path_rename(const char *from, const char *to) {
    struct spot spot, target;
    if (!find(from, &spot))
        return -1;
    if (!find(to, &target))
        return leave(&spot, -1);
    return leave(&spot, leave(&target, renameat(spot.folder, spot.name, target.folder, target.name)));
}

int sw_path_stat(const char *path, struct stat *out) {
    struct spot spot;
    if (!find(path, &spot))
        return -1;
    return leave(&spot, fstatat(spot.folder, spot.name, out, spot.confined != NULL ? AT_SYMLINK_NOFOLLOW : 0));
}

int sw_path_lstat(const char *path, struct stat *out) {
    struct spot spot;
    return find(path, &spot) ? leave(&spot, fstatat(spot.folder, spot.name, out, AT_SYMLINK_NOFOLLOW)) : -1;
}

static bool cannot_tell(int error) {
    return error == EMFILE || error == ENFILE || error == ENOMEM || error == EIO;
}

bool sw_path_exists(const char *path) {
    struct stat info;
    return sw_path_stat(path, &info) == 0 || cannot_tell(errno);
}

sw_status sw_path_find(const char *path, bool *out) {
    struct stat info;
    *out = sw_path_stat(path, &info) == 0;
    return *out || !cannot_tell(errno) ? SW_OK : sw_fail(SW_ERR_IO, "%s cannot be examined: %s", path, strerror(errno));
}
