#include "offload/scratch_store.h"

#include "io/format.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_CHARS = 4096 };

struct sw_scratch_store {
    struct sw_store *store;
    int folders;
    char folder[SW_STORE_MAX_FILES][PATH_CHARS];
};

/* A folder of our own, so that a store that is there already is left alone. */
static sw_status make_folder(struct sw_scratch_store *scratch, const char *directory) {
    char *path = scratch->folder[scratch->folders];
    const int used = snprintf(path, PATH_CHARS, "%s/spillway-measures-XXXXXX", directory);
    if (used < 0 || used >= PATH_CHARS)
        return sw_fail(SW_ERR_ARG, "the path %.64s... is too long to measure its drive", directory);
    if (mkdtemp(path) == NULL)
        return sw_fail(SW_ERR_IO, "cannot make a folder in %s to measure its drive: %s", directory, strerror(errno));
    scratch->folders++;
    return SW_OK;
}

static void remove_name(const char *folder) {
    char file[PATH_CHARS + sizeof "/" SW_STORE_FILE_NAME];
    snprintf(file, sizeof file, "%s/" SW_STORE_FILE_NAME, folder);
    unlink(file);
}

static void remove_folders(struct sw_scratch_store *scratch) {
    for (int d = 0; d < scratch->folders; d++)
        rmdir(scratch->folder[d]);
    scratch->folders = 0;
}

/* As soon as the files are there they lose their names, so that death during the first writing leaves none. */
static void remove_names(void *context, int64_t done, int64_t total) {
    const struct sw_scratch_store *scratch = context;
    (void)done;
    (void)total;
    for (int d = 0; d < scratch->folders; d++)
        remove_name(scratch->folder[d]);
}

static sw_status make(const struct sw_store_spec *spec, struct sw_scratch_store *scratch) {
    const char *directories[SW_STORE_MAX_FILES];
    struct sw_store_spec own = *spec;
    own.directories = directories;
    for (int d = 0; d < spec->directory_count; d++) {
        SW_TRY(make_folder(scratch, spec->directories[d]));
        directories[d] = scratch->folder[d];
    }
    SW_TRY(sw_store_create(&own, remove_names, scratch, &scratch->store));
    remove_folders(scratch);
    return SW_OK;
}

sw_status sw_scratch_store_open(const struct sw_store_spec *spec, struct sw_scratch_store **out) {
    struct sw_scratch_store *scratch = calloc(1, sizeof *scratch);
    if (scratch == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a store to measure");
    const sw_status status = make(spec, scratch);
    if (status != SW_OK) {
        sw_scratch_store_close(scratch);
        return status;
    }
    *out = scratch;
    return SW_OK;
}

struct sw_store *sw_scratch_store_get(struct sw_scratch_store *scratch) {
    return scratch->store;
}

void sw_scratch_store_close(struct sw_scratch_store *scratch) {
    if (scratch == NULL)
        return;
    if (scratch->store != NULL)
        sw_store_close(scratch->store);
    remove_folders(scratch);
    free(scratch);
}
