#include "core/library.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct opening {
    struct sw_library *library;
    void *handle;
    bool exists; /* the failure that is kept is that of a file that is there */
};

/* Tries to load this file. Keeps the first failure, but prefers that of a file which exists: "not found" says less. */
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
        /* A name with a slash is already the only place. */
        if (strchr(name, '/') == NULL)
            sw_library_search(name, open_file, &opening);
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
