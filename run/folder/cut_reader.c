#include "run/folder/cut_reader.h"

#include "core/size.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Grains that are put together at once, and grains of whole layers that are read at once. */
enum { MADE_GRAINS = 16, WINDOW_GRAINS = 16 };

struct sw_cut_reader {
    struct sw_cut_reader_spec spec;
    float *made;                /* elements [first, first + count) of a unit of the rank */
    int64_t unit, first, count; /* unit -1: none */
    float *window;              /* elements [window_first, window_end) of a whole unit */
    int64_t window_elems, window_unit, window_first, window_end; /* window_elems: its room; window_unit -1: none */
    const struct sw_tensor *tensor; /* the rank's tensor that was looked up last; NULL: none */
    int64_t tensor_unit;            /* first whole unit that has a piece of it */
};

sw_status sw_cut_reader_open(const struct sw_cut_reader_spec *spec, struct sw_cut_reader **out) {
    struct sw_cut_reader *self = calloc(1, sizeof *self);
    if (self != NULL) {
        const int64_t most = spec->load.most_grains > 0 ? spec->load.most_grains - 1 : WINDOW_GRAINS;
        self->spec = *spec;
        self->unit = self->window_unit = -1;
        /* A range that begins within a grain touches one grain more. */
        self->window_elems = sw_max_i64(1, sw_min_i64(most, WINDOW_GRAINS)) * SW_GRAIN_ELEMS;
        self->window = malloc((size_t)self->window_elems * sizeof *self->window);
        self->made = malloc((size_t)MADE_GRAINS * SW_GRAIN_ELEMS * sizeof *self->made);
    }
    if (self == NULL || self->window == NULL || self->made == NULL) {
        sw_cut_reader_close(self);
        return sw_fail(SW_ERR_NOMEM, "no memory to cut layers into parts");
    }
    *out = self;
    return SW_OK;
}

void sw_cut_reader_close(struct sw_cut_reader *self) {
    if (self == NULL)
        return;
    free(self->window);
    free(self->made);
    free(self);
}

/* Returns the piece of a tensor that a whole unit has, or NULL. */
static const struct sw_tensor *piece_in(const struct sw_unit *unit, const char *name) {
    for (int64_t t = 0; t < unit->tensor_count; t++)
        if (strcmp(unit->tensor[t].name, name) == 0)
            return &unit->tensor[t];
    return NULL;
}

/* Notes the first whole unit that has a piece of a tensor. */
static void look_up(struct sw_cut_reader *self, const struct sw_tensor *tensor) {
    const struct sw_units *whole = self->spec.whole;
    if (self->tensor == tensor)
        return;
    self->tensor = tensor;
    self->tensor_unit = 0;
    while (self->tensor_unit < whole->count && piece_in(&whole->unit[self->tensor_unit], tensor->name) == NULL)
        self->tensor_unit++;
}

/* Finds where element `at_whole` of a tensor is: the unit, the element in the unit, and how many neighbours it has from
 * there on. The pieces of a tensor are in units that follow each other. */
static sw_status find(struct sw_cut_reader *self, const struct sw_tensor *tensor, int64_t at_whole, int64_t *out_unit,
                      int64_t *out_elem, int64_t *out_run) {
    const struct sw_units *whole = self->spec.whole;
    look_up(self, tensor);
    for (int64_t unit = self->tensor_unit; unit < whole->count; unit++) {
        const struct sw_tensor *piece = piece_in(&whole->unit[unit], tensor->name);
        const int64_t elem = piece != NULL ? sw_tensor_from_whole(piece, at_whole, out_run) : -1;
        if (elem < 0)
            continue;
        *out_unit = unit;
        *out_elem = piece->offset + elem;
        return SW_OK;
    }
    return sw_fail(SW_ERR_CORRUPT, "the model's weights lack element %lld of %s", (long long)at_whole, tensor->name);
}

/* Reads whole weights from an element on. */
static sw_status read_window(struct sw_cut_reader *self, int64_t unit, int64_t elem) {
    const struct sw_load *load = &self->spec.load;
    const int64_t count = sw_min_i64(self->window_elems, self->spec.whole->unit[unit].elems - elem);
    self->window_unit = -1;
    if (load->prepare != NULL)
        SW_TRY(load->prepare(load->context, unit, elem, count));
    SW_TRY(load->fill(load->context, unit, elem, count, self->window));
    self->window_unit = unit;
    self->window_first = elem;
    self->window_end = elem + count;
    return SW_OK;
}

/* Copies a run of elements of a tensor to element `at` of what is made. */
static sw_status take_run(void *context, int64_t tensor, int64_t whole, int64_t run, int64_t at) {
    struct sw_cut_reader *self = context;
    const struct sw_tensor *of = &self->spec.cut->unit[self->unit].tensor[tensor];
    for (int64_t done = 0, count; done < run; done += count) {
        int64_t unit, elem;
        SW_TRY(find(self, of, whole + done, &unit, &elem, &count));
        if (unit != self->window_unit || elem < self->window_first || elem >= self->window_end)
            SW_TRY(read_window(self, unit, elem));
        count = sw_min_i64(sw_min_i64(count, run - done), self->window_end - elem);
        memcpy(self->made + at + done, self->window + (elem - self->window_first), (size_t)count * sizeof *self->made);
    }
    return SW_OK;
}

static sw_status prepare(void *context, int64_t unit, int64_t first, int64_t count) {
    struct sw_cut_reader *self = context;
    assert(count <= (int64_t)MADE_GRAINS * SW_GRAIN_ELEMS);
    self->unit = unit;
    self->first = first;
    self->count = count;
    memset(self->made, 0, (size_t)count * sizeof *self->made);
    return sw_unit_walk(&self->spec.cut->unit[unit], first, count, take_run, self);
}

static sw_status fill(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    const struct sw_cut_reader *self = context;
    assert(unit == self->unit && first >= self->first && first + count <= self->first + self->count);
    memcpy(out, self->made + (first - self->first), (size_t)count * sizeof *out);
    return SW_OK;
}

struct sw_load sw_cut_reader_load(struct sw_cut_reader *self) {
    return (struct sw_load){.fill = fill, .prepare = prepare, .context = self, .most_grains = MADE_GRAINS};
}
