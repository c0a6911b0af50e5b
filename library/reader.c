#include "library/reader.h"

#include "core/confine.h"
#include "core/files/files.h"
#include "core/files/json_file.h"
#include "core/json.h"
#include "core/size.h"
#include "library/library_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RECORD_NAME "tensors.json"

sw_status sw_library_is_at(const char *folder, bool *out) {
    char path[LIBRARY_PATH_CHARS];
    SW_TRY(sw_path_join(path, sizeof path, folder, RECORD_NAME));
    return sw_path_find(path, out);
}

/* Reads tensors.json: first the tensors, then all of it, as a process that registered them reads it. */
static sw_status read_record(spillway *self, struct store_record *out) {
    char path[LIBRARY_PATH_CHARS];
    json_t *object;
    bool found;
    SW_TRY(sw_path_join(path, sizeof path, self->folder, RECORD_NAME));
    SW_TRY(sw_json_read_checked_file(path, SW_JSON_MOST_WRITTEN_BYTES, SW_ERR_CORRUPT, &object));
    const sw_status status =
        json_is_true(json_object_get(object, "sharded"))
            ? sw_fail(SW_ERR_UNSUPPORTED,
                      "%s has parts of tensors that each process cut for itself (sharded), which only these processes "
                      "can read",
                      self->folder)
            : sw_library_take_listed(self, json_object_get(object, "tensors"), -1);
    json_decref(object);
    SW_TRY(status);
    const sw_status read = sw_library_read_record(self, out, &found);
    sw_library_release_record(out);
    SW_TRY(read);
    if (!found || !out->started)
        return sw_fail(SW_ERR_ARG, "the store in %s has no step yet: it is being made, or its making ended early",
                       self->folder);
    self->options.state = (int)out->state;
    SW_TRY(sw_library_lay_out(self, true));
    return sw_library_check_places(self);
}

static void close_stores(struct sw_library_view *view) {
    for (int i = 0; i < view->store_count; i++)
        if (view->store[i] != NULL)
            sw_store_close(view->store[i]);
    free(view->store);
    view->store = NULL;
    view->store_count = 0;
}

/* Opens the stores of all processes at the last commit of at most this step. *newest: the oldest of their commits. */
static sw_status open_stores(const spillway *self, const struct store_set *set, int64_t most_step,
                             struct sw_library_view *view, int64_t *newest) {
    view->store = calloc((size_t)set->ranks, sizeof(struct sw_store *));
    if (view->store == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the stores of %d processes", set->ranks);
    view->store_count = set->ranks;
    *newest = most_step;
    for (int rank = 0; rank < set->ranks; rank++) {
        SW_TRY(sw_library_open_part(self, set, rank, most_step, &view->store[rank]));
        *newest = sw_min_i64(*newest, sw_store_last_commit(view->store[rank])->step);
    }
    return SW_OK;
}

static sw_status open_view(spillway *self, struct sw_library_view *view) {
    struct store_record record;
    int64_t newest;
    SW_TRY(read_record(self, &record));
    SW_TRY(open_stores(self, &record.set, SW_STORE_NEWEST, view, &newest));
    for (int rank = 0; rank < view->store_count; rank++) {
        if (sw_store_last_commit(view->store[rank])->step == newest)
            continue;
        close_stores(view);
        return open_stores(self, &record.set, newest, view, &newest);
    }
    return SW_OK;
}

sw_status sw_library_open_to_read(const char *folder, struct sw_library_view *out) {
    *out = (struct sw_library_view){0};
    spillway *self = calloc(1, sizeof *self);
    if (self == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read the store in %s", folder);
    sw_status status =
        strlen(folder) < sizeof self->folder ? SW_OK : sw_fail(SW_ERR_ARG, "the path %s is too long", folder);
    if (status == SW_OK) {
        memcpy(self->folder, folder, strlen(folder) + 1);
        status = open_view(self, out);
    }
    out->units = self->units;
    free(self->unit_first);
    free(self->order);
    free(self->tensor);
    free(self);
    return status;
}

void sw_library_view_release(struct sw_library_view *view) {
    close_stores(view);
    sw_units_destroy(view->units);
    view->units = NULL;
}
