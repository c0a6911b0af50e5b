/* Finds libraries of CUDA that the system's loader does not know: in toolkits, and in wheels of Python. The program
 * looks into the folders itself, because asking an interpreter takes longer than most commands run. */
#include "core/library.h"

#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Below a prefix: a toolkit's and conda's folders, then those of wheels, whose names CUDA 12 and 13 chose differently.
 */
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

/* Removes the last `count` components of a path; false: there are not so many. */
static bool go_up(char *path, int count) {
    for (int i = 0; i < count; i++) {
        char *slash = strrchr(path, '/');
        if (slash == NULL)
            return false;
        *slash = '\0';
    }
    return true;
}

/* Looks in the toolkit or environment that this folder's program belongs to. `resolve`: follow links first, by which a
 * toolkit's nvcc is often reached. A Python environment's own python is a link out of it, and is not resolved. */
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

void sw_library_search(const char *name, bool (*visit)(void *context, const char *path), void *context) {
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
