#include "core/library.h"

#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* CUDA libraries that the system's loader does not know are in toolkits and in Python wheels. The program searches
 * these folders itself, because asking an interpreter takes longer than most commands run. Below a prefix come a
 * toolkit's and conda's folders, then those of wheels, which CUDA 12 and 13 named differently. */
#define BELOW "/{lib64,lib,targets/*-linux/lib,lib/python3*/{site,dist}-packages/nvidia/*/lib}/"

struct search {
    const char *name;
    bool (*visit)(void *context, const char *path);
    void *context;
    bool ended;
};

static void look_below(struct search *search, const char *prefix) {
    char pattern[PATH_MAX];
    glob_t found;
    if (search->ended || prefix == NULL || prefix[0] == '\0')
        return;
    const int length = snprintf(pattern, sizeof pattern, "%s" BELOW "%s", prefix, search->name);
    if (length >= (int)sizeof pattern || glob(pattern, GLOB_BRACE, NULL, &found) != 0)
        return;
    for (size_t i = 0; i < found.gl_pathc && !search->ended; i++)
        search->ended = search->visit(search->context, found.gl_pathv[i]);
    globfree(&found);
}

/* Removes the last `count` components of a path. Returns false if there are not that many. */
static bool go_up(char *path, int count) {
    for (int i = 0; i < count; i++) {
        char *slash = strrchr(path, '/');
        if (slash == NULL)
            return false;
        *slash = '\0';
    }
    return true;
}

/* Searches the toolkit or environment to which this folder's program belongs. `resolve`: follow links first, through
 * which a toolkit's nvcc is often reached. A Python environment's python is a link that leads out of it, so it is not
 * resolved. */
static void look_beside(struct search *search, const char *folder, const char *program, bool resolve) {
    char path[PATH_MAX], real[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", folder, program) >= (int)sizeof path || access(path, X_OK) != 0)
        return;
    if (resolve && realpath(path, real) != NULL)
        snprintf(path, sizeof path, "%s", real);
    if (go_up(path, 2))
        look_below(search, path);
}

static void look_beside_all(struct search *search, const char *program, bool resolve) {
    const char *given = getenv("PATH");
    char *folders = strdup(given != NULL ? given : ""), *rest = NULL;
    if (folders == NULL)
        return;
    for (char *folder = strtok_r(folders, ":", &rest); folder != NULL; folder = strtok_r(NULL, ":", &rest))
        look_beside(search, folder, program, resolve);
    free(folders);
}

/* Calls `visit` with the path of each file of that name in the CUDA Toolkits ($CUDA_HOME, $CUDA_PATH, that of the nvcc
 * on $PATH, /usr/local/cuda) and in the Python environments ($VIRTUAL_ENV, $CONDA_PREFIX, those of the pythons on
 * $PATH, ~/.local), whose wheels contain NVIDIA's libraries. Stops when `visit` returns true. */
static void search(const char *name, bool (*visit)(void *context, const char *path), void *context) {
    struct search search = {.name = name, .visit = visit, .context = context};
    const char *home = getenv("HOME");
    char local[PATH_MAX] = "";
    if (home != NULL && home[0] != '\0')
        snprintf(local, sizeof local, "%s/.local", home);
    look_below(&search, getenv("CUDA_HOME"));
    look_below(&search, getenv("CUDA_PATH"));
    look_beside_all(&search, "nvcc", true);
    look_below(&search, "/usr/local/cuda");
    look_below(&search, getenv("VIRTUAL_ENV"));
    look_below(&search, getenv("CONDA_PREFIX"));
    look_beside_all(&search, "python3", false);
    look_below(&search, local);
}

struct opening {
    struct sw_library *library;
    void *handle;
    bool exists; /* the kept failure is that of a file that exists */
};

/* Tries to load this file. Keeps the first failure, but prefers the failure of a file that exists: "not found" says
 * less. */
static bool open_file(void *context, const char *name) {
    struct opening *opening = context;
    struct sw_library *library = opening->library;
    opening->handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (opening->handle != NULL)
        return true;
    const char *why = dlerror();
    const bool exists = strchr(name, '/') != NULL && access(name, F_OK) == 0;
    if (library->failure[0] == '\0' || (exists && !opening->exists))
        snprintf(library->failure, sizeof library->failure, "%s", why);
    opening->exists |= exists;
    return false;
}

static void *open_library(struct sw_library *library, const struct sw_library_need *need) {
    struct opening opening = {.library = library};
    for (int i = 0; need->names[i] != NULL; i++) {
        const char *name = need->names[i], *built = strrchr(need->built_path, '/');
        if (open_file(&opening, name))
            break;
        /* A name with a slash is not searched for. */
        if (strchr(name, '/') == NULL)
            search(name, open_file, &opening);
        if (opening.handle != NULL)
            break;
        if (built != NULL && strcmp(built + 1, name) == 0 && open_file(&opening, need->built_path))
            break;
    }
    return opening.handle;
}

static void load(struct sw_library *library, const struct sw_library_need *need) {
    const struct link_map *loaded = NULL;
    void *handle = open_library(library, need);
    if (handle == NULL)
        return;
    library->failure[0] = '\0';
    if (dlinfo(handle, RTLD_DI_LINKMAP, &loaded) == 0)
        snprintf(library->path, sizeof library->path, "%s", loaded->l_name);
    for (int i = 0; i < need->function_count; i++) {
        *need->functions[i].at = dlsym(handle, need->functions[i].name);
        if (*need->functions[i].at == NULL && library->failure[0] == '\0')
            snprintf(library->failure, sizeof library->failure, "%s has no function %s", library->path,
                     need->functions[i].name);
    }
}

const char *sw_library_load(struct sw_library *library, const struct sw_library_need *need) {
    pthread_mutex_lock(&library->mutex);
    if (!library->tried)
        load(library, need);
    library->tried = true;
    pthread_mutex_unlock(&library->mutex);
    return library->failure[0] == '\0' ? NULL : library->failure;
}
