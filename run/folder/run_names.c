#include "run/folder/run_names.h"

#include "core/files/files.h"
#include "core/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sw_run_names {
    struct sw_run_names_spec spec;
    char path[SW_RUN_PATH_CHARS];  /* of run.json */
    char aside[SW_RUN_PATH_CHARS]; /* new name for a run.json that is not this run's */
    char *text;                    /* content that run.json must have; NULL: another rank is responsible for it */
    struct stat seen;              /* run.json when it was last compared with the text */
    char now[PATH_MAX];            /* the folder's current path, if it was moved */
};

sw_status sw_run_names_open(const struct sw_run_names_spec *spec, struct sw_run_names **out) {
    struct sw_run_names *self = calloc(1, sizeof *self);
    *out = self;
    if (self == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to look at the names of the run's files");
    self->spec = *spec;
    if (!spec->shared)
        return SW_OK;
    SW_TRY(sw_path_join(self->path, sizeof self->path, spec->folder, "run.json"));
    SW_TRY(sw_path_join(self->aside, sizeof self->aside, spec->folder, "run.json.changed"));
    if (sw_path_lstat(self->path, &self->seen) != 0)
        return sw_fail(SW_ERR_IO, "%s cannot be examined: %s", self->path, strerror(errno));
    return sw_file_read_own_text(self->path, SW_RUN_JSON_LIMIT_BYTES, &self->text);
}

void sw_run_names_close(struct sw_run_names *self) {
    if (self == NULL)
        return;
    free(self->text);
    free(self);
}

static bool is_as_seen(const struct stat *now, const struct stat *seen) {
    return now->st_dev == seen->st_dev && now->st_ino == seen->st_ino && now->st_size == seen->st_size &&
           now->st_mtim.tv_sec == seen->st_mtim.tv_sec && now->st_mtim.tv_nsec == seen->st_mtim.tv_nsec &&
           now->st_ctim.tv_sec == seen->st_ctim.tv_sec && now->st_ctim.tv_nsec == seen->st_ctim.tv_nsec;
}

/* Finds out whether run.json holds the run's text. A file that cannot be read is an error; anything but a file of the
 * right length does not hold it. */
static sw_status is_whole(const struct sw_run_names *self, bool *out) {
    char *text = NULL;
    const sw_status status = sw_file_read_own_text(self->path, SW_RUN_JSON_LIMIT_BYTES, &text);
    *out = status == SW_OK && strcmp(text, self->text) == 0;
    free(text);
    if (status != SW_ERR_ARG)
        return status;
    sw_error_clear();
    return SW_OK;
}

/* Writes run.json again if it is gone or changed. A file that another program put there is kept under another name. */
static sw_status keep_json(struct sw_run_names *self) {
    struct stat now;
    bool whole = false;
    if (self->text == NULL)
        return SW_OK;
    const bool is_there = sw_path_lstat(self->path, &now) == 0;
    if (!is_there && errno != ENOENT && errno != ENOTDIR)
        return sw_fail(SW_ERR_IO, "%s cannot be examined: %s", self->path, strerror(errno));
    if (is_there && is_as_seen(&now, &self->seen))
        return SW_OK;
    if (is_there)
        SW_TRY(is_whole(self, &whole));
    if (whole) {
        self->seen = now;
        return SW_OK;
    }
    if (is_there && sw_path_rename(self->path, self->aside) != 0)
        return sw_fail(SW_ERR_IO, "%s was changed while the run trained, and cannot be moved aside: remove it",
                       self->path);
    SW_TRY(sw_file_replace(self->path, self->text, strlen(self->text), SW_FILE_PRIVATE));
    if (is_there)
        sw_log_warn("%s was changed while the run trained, and was written anew; the changed one is now %s", self->path,
                    self->aside);
    else
        sw_log_warn("%s was removed while the run trained, and was written anew", self->path);
    return SW_OK;
}

static sw_status keep_folder(struct sw_run_names *self) {
    const char *folder = self->spec.folder;
    if (self->spec.confined == NULL || sw_confine_holds(self->spec.confined, self->now))
        return SW_OK;
    if (self->now[0] != '\0')
        return sw_fail(SW_ERR_IO, "the run's folder %s was moved to %s while it trained", folder, self->now);
    return sw_fail(SW_ERR_IO, "the run's folder %s was removed, or its drive was unmounted, while it trained", folder);
}

const char *sw_run_names_folder(struct sw_run_names *self) {
    const struct sw_run_names_spec *spec = &self->spec;
    if (spec->confined == NULL || sw_confine_holds(spec->confined, self->now))
        return spec->folder;
    return self->now[0] != '\0' ? self->now : NULL;
}

sw_status sw_run_names_keep(struct sw_run_names *self) {
    SW_TRY(keep_folder(self));
    SW_TRY(keep_json(self));
    SW_TRY(sw_store_keep_names(self->spec.store));
    return self->spec.shared ? sw_frozen_keep_name(self->spec.frozen) : SW_OK;
}

sw_status sw_run_names_put_back(struct sw_run_names *self) {
    if (sw_run_names_folder(self) == NULL)
        return keep_folder(self);
    SW_TRY(keep_json(self));
    SW_TRY(sw_store_put_back_names(self->spec.store));
    return self->spec.shared ? sw_frozen_put_back_name(self->spec.frozen) : SW_OK;
}
