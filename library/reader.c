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

/* Reads tensors.json: first the tensors, then all of it, as a process that registered them whole reads it. */
static sw_status read_record(spillway *self, struct store_record *out) {
    char path[LIBRARY_PATH_CHARS];
    json_t *object;
    bool found;
    SW_TRY(sw_path_join(path, sizeof path, self->folder, RECORD_NAME));
    SW_TRY(sw_json_read_checked_file(path, SW_JSON_MOST_WRITTEN_BYTES, SW_ERR_CORRUPT, &object));
    const sw_status status = sw_library_take_listed(self, json_object_get(object, "tensors"), -1);
    json_decref(object);
    SW_TRY(status);
    SW_TRY(sw_library_read_record(self, out, &found));
    if (!found || !out->started)
        return sw_fail(SW_ERR_ARG, "the store in %s has no step yet: it is being made, or its making ended early",
                       self->folder);
    self->options.state = (int)out->state;
    SW_TRY(sw_library_lay_out(self, !out->sharded));
    return out->sharded ? SW_OK : sw_library_check_places(self);
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

/* Opens the stores at the newest step that all have. */
static sw_status open_newest(const spillway *self, const struct store_set *set, struct sw_library_view *view) {
    SW_TRY(open_stores(self, set, SW_STORE_NEWEST, view, &view->step));
    for (int rank = 0; rank < view->store_count; rank++) {
        if (sw_store_last_commit(view->store[rank])->step == view->step)
            continue;
        close_stores(view);
        return open_stores(self, set, view->step, view, &view->step);
    }
    return SW_OK;
}

/* Gives the stores to what knows the layout of each process. */
static sw_status open_parts(const spillway *self, const struct store_record *record, struct sw_library_view *view) {
    view->room = malloc(SW_OPTIMIZER_VECTORS * SW_GRAIN_ELEMS * sizeof *view->room);
    if (view->room == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read the store in %s", self->folder);
    SW_TRY(sw_library_parts_open(self, record, view->step, &view->parts));
    sw_library_parts_take_stores(view->parts, view->store);
    close_stores(view);
    return SW_OK;
}

static sw_status open_view(spillway *self, struct store_record *record, struct sw_library_view *view) {
    SW_TRY(read_record(self, record));
    SW_TRY(open_newest(self, &record->set, view));
    return record->sharded ? open_parts(self, record, view) : SW_OK;
}

sw_status sw_library_open_to_read(const char *folder, struct sw_library_view *out) {
    struct store_record record = {0};
    *out = (struct sw_library_view){0};
    spillway *self = calloc(1, sizeof *self);
    if (self == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read the store in %s", folder);
    sw_status status =
        strlen(folder) < sizeof self->folder ? SW_OK : sw_fail(SW_ERR_ARG, "the path %s is too long", folder);
    if (status == SW_OK) {
        memcpy(self->folder, folder, strlen(folder) + 1);
        status = open_view(self, &record, out);
    }
    sw_library_release_record(&record);
    out->units = self->units;
    out->tensor = self->tensor;
    out->tensor_count = self->tensor_count;
    free(self->unit_first);
    free(self->order);
    free(self);
    return status;
}

sw_status sw_library_view_read(const struct sw_library_view *view, const char *name, int part, int64_t first,
                               int64_t count, float *out) {
    int64_t number = 0;
    while (number < view->tensor_count && strcmp(view->tensor[number].name, name) != 0)
        number++;
    for (int64_t at = 0, some; at < count; at += some) {
        some = sw_min_i64(SW_GRAIN_ELEMS, count - at);
        SW_TRY(sw_library_parts_read(view->parts, number, first + at, some, view->room));
        memcpy(out + at, view->room + (int64_t)part * SW_GRAIN_ELEMS, (size_t)some * sizeof *out);
    }
    return SW_OK;
}

void sw_library_view_release(struct sw_library_view *view) {
    close_stores(view);
    sw_library_parts_close(view->parts);
    sw_units_destroy(view->units);
    free(view->tensor);
    free(view->room);
    *view = (struct sw_library_view){0};
}
