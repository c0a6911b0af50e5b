#include "cli/commands.h"
#include "cli/read_options.h"
#include "core/size.h"
#include "core/text/text.h"
#include "library/reader.h"
#include "run/folder/state.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ELEMS_AT_ONCE = 1 << 20, HEADER_CHARS = 512, HEADER_ALIGN = 64, SHAPE_CHARS = 128, NAME_COLUMNS = 56 };

struct reading {
    const struct sw_read_options *given;
    struct sw_state_reader *state; /* NULL: the view has parts of tensors */
    struct sw_library_view view;   /* of a store; zeros: a run is read */
    const struct sw_units *units;  /* of the run or the store */
    int64_t step;
    bool begun; /* something was written to standard output */
};

static sw_status open_run(struct reading *r) {
    struct sw_run run = {0};
    const struct sw_run_moved moved = {&r->given->nvme, r->given->model};
    const sw_status status = sw_state_open_run(r->given->from, &moved, &run, &r->state);
    sw_run_release(&run);
    if (status == SW_OK)
        r->units = sw_state_units(r->state);
    return status;
}

static sw_status open_store(struct reading *r) {
    SW_TRY(sw_library_open_to_read(r->given->from, &r->view));
    r->units = r->view.units;
    if (r->view.parts != NULL)
        return SW_OK;
    /* The reader takes the stores. */
    struct sw_open_stores stores = {.count = r->view.store_count, .store = r->view.store};
    r->view.store = NULL;
    r->view.store_count = 0;
    return sw_state_take_stores(&stores, r->units, 1, &r->state);
}

static sw_status open_any(struct reading *r) {
    bool is_store;
    SW_TRY(sw_library_is_at(r->given->from, &is_store));
    SW_TRY(is_store ? open_store(r) : open_run(r));
    r->step = r->state != NULL ? sw_state_commit(r->state)->step : r->view.step;
    const long long step = (long long)r->step, wanted = (long long)r->given->step;
    return r->given->step == SW_OPTION_AUTO || step == wanted
               ? SW_OK
               : sw_fail(SW_ERR_ARG, "the last commit of %s is of step %lld, and step %lld is asked for",
                         r->given->from, step, wanted);
}

/* Calls `visit` with each tensor once, in forward order. Parts of a tensor lie in units that follow each other. */
static sw_status for_each(const struct sw_units *units, sw_status (*visit)(void *context, const struct sw_tensor *),
                          void *context) {
    for (int64_t u = 0; u < units->count; u++)
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++) {
            const struct sw_tensor *tensor = &units->unit[u].tensor[t];
            /* A store of the library has one without a name, which holds its tensors' counts of steps. */
            if (tensor->name[0] != '\0' && (u == 0 || sw_unit_find(&units->unit[u - 1], tensor->name) == NULL))
                SW_TRY(visit(context, tensor));
        }
    return SW_OK;
}

/* Writes a shape such as "(768, 3072)"; one dimension has a comma behind it, as Python has it. */
static void write_shape(const struct sw_tensor *tensor, char shape[SHAPE_CHARS]) {
    int used = snprintf(shape, SHAPE_CHARS, "(");
    for (int d = 0; d < tensor->dims; d++)
        used += snprintf(shape + used, (size_t)(SHAPE_CHARS - used), "%s%lld", d > 0 ? ", " : "",
                         (long long)tensor->dim[d]);
    snprintf(shape + used, (size_t)(SHAPE_CHARS - used), "%s)", tensor->dims == 1 ? "," : "");
}

static sw_status print_tensor(void *context, const struct sw_tensor *tensor) {
    char shape[SHAPE_CHARS];
    (void)context;
    write_shape(tensor, shape);
    printf("%-*s %s%s\n", NAME_COLUMNS, tensor->name, shape, tensor->frozen ? " frozen" : "");
    return SW_OK;
}

static sw_status list_tensor(void *context, const struct sw_tensor *tensor) {
    json_t *shape = json_array();
    for (int d = 0; d < tensor->dims; d++)
        json_array_append_new(shape, json_integer(tensor->dim[d]));
    json_t *entry = json_pack("{s:s, s:o, s:b}", "name", tensor->name, "shape", shape, "trained", !tensor->frozen);
    return json_array_append_new(context, entry) == 0 ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to list the tensors");
}

static sw_status list(const struct reading *r) {
    const json_int_t step = r->step;
    if (!r->given->json) {
        printf("step %lld\n", (long long)step);
        return for_each(r->units, print_tensor, NULL);
    }
    json_t *tensors = json_array();
    const sw_status status = for_each(r->units, list_tensor, tensors);
    if (status != SW_OK) {
        json_decref(tensors);
        return status;
    }
    return sw_command_print_json(json_pack("{s:I, s:o}", "step", step, "tensors", tensors));
}

struct search {
    const char *name;
    const struct sw_tensor *found;
    struct sw_nearest nearest;
};

static sw_status compare(void *context, const struct sw_tensor *tensor) {
    struct search *search = context;
    if (strcmp(tensor->name, search->name) == 0)
        search->found = tensor;
    sw_nearest_consider(&search->nearest, tensor->name);
    return SW_OK;
}

static sw_status find(const struct reading *r, const struct sw_tensor **out) {
    const char *name = r->given->name;
    struct search search = {.name = name, .nearest = sw_nearest_begin(name, strlen(name))};
    SW_TRY(for_each(r->units, compare, &search));
    *out = search.found;
    if (*out == NULL)
        return sw_fail(SW_ERR_ARG, "%s has no tensor '%s'%s%s; `spillway tensors %s` lists them", r->given->from, name,
                       search.nearest.name != NULL ? "; did you mean " : "",
                       search.nearest.name != NULL ? search.nearest.name : "", r->given->from);
    if ((*out)->muon_count > 0 && r->given->part == SW_STATE_V)
        return sw_fail(SW_ERR_ARG,
                       "Muon updates '%s', which has a momentum, --part m, and no second moment: leave --part v out",
                       name);
    return (*out)->frozen && r->given->part != SW_STATE_MASTER
               ? sw_fail(SW_ERR_ARG, "'%s' is frozen, so it has no moments", name)
               : SW_OK;
}

/* The header of a numpy array of fp32, version 1.0 of its format (numpy.lib.format): magic, version, length, and a
 * literal that is padded so that the elements begin at a multiple of 64 bytes. */
static size_t write_header(const struct sw_tensor *tensor, char header[HEADER_CHARS]) {
    char shape[SHAPE_CHARS];
    write_shape(tensor, shape);
    memcpy(header, "\x93NUMPY\x01\x00", 8);
    const int text =
        snprintf(header + 10, HEADER_CHARS - 10, "{'descr': '<f4', 'fortran_order': False, 'shape': %s, }", shape);
    const size_t bytes = (size_t)sw_round_up(10 + text + 1, HEADER_ALIGN);
    memset(header + 10 + text, ' ', bytes - 10 - (size_t)text);
    header[bytes - 1] = '\n';
    header[8] = (char)((bytes - 10) & 0xff);
    header[9] = (char)((bytes - 10) >> 8);
    return bytes;
}

static sw_status put(struct reading *r, FILE *to, const void *data, size_t bytes) {
    r->begun |= to == stdout;
    return fwrite(data, 1, bytes, to) == bytes ? SW_OK
                                               : sw_fail(errno == ENOSPC ? SW_ERR_SPACE : SW_ERR_IO,
                                                         "%s cannot be written: %s", r->given->array, strerror(errno));
}

static sw_status read_elements(const struct reading *r, const struct sw_tensor *tensor, int64_t first, int64_t count,
                               float *elements) {
    float *out[SW_STATE_PARTS] = {NULL};
    if (r->state == NULL)
        return sw_library_view_read(&r->view, tensor->name, r->given->part, first, count, elements);
    out[r->given->part] = elements;
    return sw_state_read(r->state, tensor->name, first, count, out);
}

static sw_status write_elements(struct reading *r, const struct sw_tensor *tensor, FILE *to, float *elements) {
    const int64_t count = sw_tensor_whole_elems(tensor);
    char header[HEADER_CHARS];
    for (int64_t at = 0; at < count; at += ELEMS_AT_ONCE) {
        const int64_t now = sw_min_i64(ELEMS_AT_ONCE, count - at);
        SW_TRY(read_elements(r, tensor, at, now, elements));
        if (at == 0)
            SW_TRY(put(r, to, header, write_header(tensor, header)));
        SW_TRY(put(r, to, elements, (size_t)now * sizeof *elements));
    }
    return SW_OK;
}

static sw_status write_tensor(struct reading *r, const struct sw_tensor *tensor) {
    const bool to_output = strcmp(r->given->array, "-") == 0;
    float *elements = malloc(ELEMS_AT_ONCE * sizeof *elements);
    if (elements == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read '%s'", tensor->name);
    FILE *to = to_output ? stdout : fopen(r->given->array, "we");
    sw_status status = to != NULL ? write_elements(r, tensor, to, elements)
                                  : sw_fail(SW_ERR_IO, "%s cannot be written: %s", r->given->array, strerror(errno));
    if (to != NULL && !to_output && fclose(to) != 0 && status == SW_OK)
        status = sw_fail(errno == ENOSPC ? SW_ERR_SPACE : SW_ERR_IO, "%s cannot be written: %s", r->given->array,
                         strerror(errno));
    free(elements);
    /* Standard output cannot be taken back, so nothing is tried again once it has some. */
    return status == SW_ERR_OVERTAKEN && r->begun
               ? sw_fail(SW_ERR_BUSY, "%s was trained on while it was read: try again", r->given->from)
               : status;
}

static sw_status attempt(void *context) {
    struct reading *r = context;
    const struct sw_tensor *tensor;
    SW_TRY(open_any(r));
    if (r->given->name == NULL)
        return list(r);
    SW_TRY(find(r, &tensor));
    return write_tensor(r, tensor);
}

static void end(void *context) {
    struct reading *r = context;
    sw_state_close(r->state);
    sw_library_view_release(&r->view);
    r->state = NULL;
    r->units = NULL;
}

static sw_status run(const void *given) {
    struct reading reading = {.given = given};
    const sw_status status = sw_command_read_run(attempt, end, &reading);
    end(&reading);
    return status;
}

int sw_command_tensors(int argc, char **argv) {
    struct sw_read_options given = {0};
    return sw_command_run(&sw_tensors_command, argc, argv, &given, run);
}
