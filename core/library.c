#include "core/library.h"

#include <dlfcn.h>
#include <stdio.h>

/* An empty path would be the program itself. */
static void *open_library(const char *name, const char *path) {
    void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    return handle != NULL || path[0] == '\0' ? handle : dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static void load(struct sw_library *library, const char *name, const char *path,
                 const struct sw_library_function *functions, int count) {
    void *handle = open_library(name, path);
    if (handle == NULL) {
        snprintf(library->failure, sizeof library->failure, "%s", dlerror());
        return;
    }
    for (int i = 0; i < count; i++) {
        *functions[i].at = dlsym(handle, functions[i].name);
        if (*functions[i].at == NULL && library->failure[0] == '\0')
            snprintf(library->failure, sizeof library->failure, "%s is not in it", functions[i].name);
    }
}

const char *sw_library_load(struct sw_library *library, const char *name, const char *path,
                            const struct sw_library_function *functions, int count) {
    pthread_mutex_lock(&library->mutex);
    if (!library->tried)
        load(library, name, path, functions, count);
    library->tried = true;
    pthread_mutex_unlock(&library->mutex);
    return library->failure[0] == '\0' ? NULL : library->failure;
}
