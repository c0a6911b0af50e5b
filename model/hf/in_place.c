#include "model/hf/in_place.h"

#include "core/log.h"
#include "io/queue/file.h"
#include "model/hf/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct sw_in_place {
    struct sw_store_files files;
    char **paths; /* owned, like the two below; as many as files.count */
    int *fds;
    struct sw_store_piece *pieces;
};

/* Follows links: folders of the Hugging Face cache have links to their weights. */
static bool find_file_system(const char *folder, const char *name, dev_t *out) {
    char *path = name != NULL ? sw_file_path(folder, name) : strdup(folder);
    struct stat found;
    const bool is_there = path != NULL && stat(path, &found) == 0 && !S_ISBLK(found.st_mode);
    free(path);
    if (is_there)
        *out = found.st_dev;
    return is_there;
}

bool sw_in_place_is_on(const char *folder, const char *const *places, int count) {
    dev_t weights, place;
    if (!find_file_system(folder, "model.safetensors", &weights) &&
        !find_file_system(folder, "model.safetensors.index.json", &weights))
        return false;
    for (int i = 0; i < count; i++)
        if (!find_file_system(places[i], NULL, &place) || place != weights)
            return false;
    return count > 0;
}

/* Tells whether the folder has a tensor as it computes. */
static bool is_as_computed(const struct sw_checkpoint *checkpoint, sw_dtype type, int64_t unit, int64_t number,
                           const struct sw_tensor *tensor) {
    int64_t run;
    const int64_t first = sw_tensor_to_whole(tensor, 0, &run);
    const struct sw_checkpoint_place place = sw_checkpoint_find(checkpoint, unit, number, first);
    return run >= tensor->elems && place.is_number && place.type == type;
}

static bool may_be_in_place(const struct sw_checkpoint *checkpoint, sw_dtype type, const struct sw_units *units,
                            int64_t number) {
    const struct sw_unit *unit = &units->unit[number];
    bool may = unit->trained_grain > 0 && unit->base_grains == 0 && !sw_units_packs(units, number);
    for (int64_t t = 0; t < unit->tensor_count && may; t++)
        may = !unit->tensor[t].frozen || is_as_computed(checkpoint, type, number, t, &unit->tensor[t]);
    return may;
}

void sw_in_place_mark(const char *folder, sw_dtype type, struct sw_units *units) {
    SW_HANDLES_ERRORS();
    struct sw_checkpoint *checkpoint = NULL;
    if (sw_units_frozen(units) == 0 || sw_checkpoint_open_quietly(folder, units, &checkpoint) != SW_OK)
        return;
    for (int64_t u = 0; u < units->count; u++)
        units->unit[u].in_place = may_be_in_place(checkpoint, type, units, u);
    sw_checkpoint_close(checkpoint);
}

/* Opens the file of a path, unless it is open already. *out: its number. */
static sw_status open_file(struct sw_in_place *self, const char *path, int *out) {
    for (*out = 0; *out < self->files.count; (*out)++)
        if (strcmp(self->paths[*out], path) == 0)
            return SW_OK;
    char **paths = realloc(self->paths, ((size_t)*out + 1) * sizeof *paths);
    int *fds = realloc(self->fds, ((size_t)*out + 1) * sizeof *fds);
    self->paths = paths != NULL ? paths : self->paths;
    self->fds = fds != NULL ? fds : self->fds;
    char *copy = strdup(path);
    if (paths == NULL || fds == NULL || copy == NULL) {
        free(copy);
        return sw_fail(SW_ERR_NOMEM, "no memory to read %s in place", path);
    }
    const sw_status status = sw_file_open_to_read(path, &self->fds[*out]);
    if (status != SW_OK) {
        free(copy);
        return status;
    }
    self->paths[*out] = copy;
    self->files.count++;
    if (!sw_file_try_direct(self->fds[*out]) && !sw_file_is_in_memory(self->fds[*out]))
        sw_log_info("%s is on a file system without direct I/O: it is read through the page cache", path);
    return SW_OK;
}

static int by_place(const void *a, const void *b) {
    const struct sw_store_piece *x = a, *y = b;
    return x->at_bytes < y->at_bytes ? -1 : x->at_bytes > y->at_bytes;
}

static sw_status add_unit(struct sw_in_place *self, const struct sw_checkpoint *checkpoint, sw_dtype type,
                          const struct sw_units *units, int64_t number) {
    const struct sw_unit *unit = &units->unit[number];
    const int64_t bytes = sw_dtype_bytes(type), first_piece = self->files.piece_count;
    for (int64_t t = 0; t < unit->tensor_count; t++) {
        const struct sw_tensor *tensor = &unit->tensor[t];
        if (!tensor->frozen)
            continue;
        if (!is_as_computed(checkpoint, type, number, t, tensor))
            return sw_fail(SW_ERR_CORRUPT, "the tensor '%s' has changed its type since the run was planned",
                           tensor->name);
        int64_t run;
        const struct sw_checkpoint_place place =
            sw_checkpoint_find(checkpoint, number, t, sw_tensor_to_whole(tensor, 0, &run));
        struct sw_store_piece *piece = &self->pieces[self->files.piece_count++];
        *piece = (struct sw_store_piece){.unit = number,
                                         .at_bytes = tensor->offset * bytes,
                                         .bytes = tensor->elems * bytes,
                                         .offset_bytes = place.offset_bytes,
                                         .name = tensor->name};
        SW_TRY(open_file(self, place.path, &piece->file));
    }
    qsort(self->pieces + first_piece, (size_t)(self->files.piece_count - first_piece), sizeof *self->pieces, by_place);
    return SW_OK;
}

static sw_status add_units(struct sw_in_place *self, const struct sw_checkpoint *checkpoint, sw_dtype type,
                           const struct sw_units *units) {
    int64_t tensors = 0;
    for (int64_t u = 0; u < units->count; u++)
        tensors += units->unit[u].in_place ? units->unit[u].tensor_count : 0;
    self->pieces = calloc((size_t)tensors + 1, sizeof *self->pieces);
    if (self->pieces == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read frozen weights in place");
    for (int64_t u = 0; u < units->count; u++)
        if (units->unit[u].in_place)
            SW_TRY(add_unit(self, checkpoint, type, units, u));
    self->files.paths = (const char *const *)self->paths;
    self->files.fds = self->fds;
    self->files.pieces = self->pieces;
    return SW_OK;
}

sw_status sw_in_place_open(const char *folder, sw_dtype type, const struct sw_units *units, struct sw_in_place **out) {
    struct sw_checkpoint *checkpoint;
    SW_TRY(sw_checkpoint_open_quietly(folder, units, &checkpoint));
    struct sw_in_place *self = calloc(1, sizeof *self);
    sw_status status = self != NULL ? add_units(self, checkpoint, type, units)
                                    : sw_fail(SW_ERR_NOMEM, "no memory to read frozen weights in place");
    sw_checkpoint_close(checkpoint);
    if (status == SW_OK)
        *out = self;
    else
        sw_in_place_close(self);
    return status;
}

void sw_in_place_close(struct sw_in_place *self) {
    if (self == NULL)
        return;
    for (int file = 0; file < self->files.count; file++) {
        close(self->fds[file]);
        free(self->paths[file]);
    }
    free(self->paths);
    free(self->fds);
    free(self->pieces);
    free(self);
}

const struct sw_store_files *sw_in_place_files(const struct sw_in_place *self) {
    return self != NULL ? &self->files : NULL;
}
