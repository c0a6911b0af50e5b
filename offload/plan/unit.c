#include "offload/plan/unit.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

sw_status sw_units_create(int64_t count, struct sw_units **out) {
    struct sw_units *units = calloc(1, sizeof *units);
    if (units != NULL)
        units->unit = calloc((size_t)count, sizeof *units->unit);
    if (units == NULL || units->unit == NULL) {
        free(units);
        return sw_fail(SW_ERR_NOMEM, "no memory for %lld units", (long long)count);
    }
    units->count = count;
    *out = units;
    return SW_OK;
}

void sw_units_destroy(struct sw_units *units) {
    if (units == NULL)
        return;
    for (int64_t u = 0; u < units->count; u++) {
        free(units->unit[u].tensor);
        free(units->unit[u].run);
    }
    free(units->unit);
    free(units);
}

sw_status sw_unit_add_tensor(struct sw_unit *unit, const char *name, int dims, const int64_t *dim, bool decay) {
    return sw_unit_add_part(unit, name, dims, dim, NULL, decay);
}

static bool part_is_inside(const struct sw_tensor *tensor, int64_t whole_elems) {
    const struct sw_part *part = &tensor->part;
    const int64_t cols = tensor->dim[tensor->dims - 1], blocks = part->cols / part->block_cols;
    return part->first_row >= 0 && part->rows > 0 && part->first_row + part->rows <= whole_elems / cols &&
           part->first_col >= 0 && part->cols % part->block_cols == 0 && part->block_stride >= part->block_cols &&
           part->first_col + (blocks - 1) * part->block_stride + part->block_cols <= cols;
}

sw_status sw_unit_add_part(struct sw_unit *unit, const char *name, int dims, const int64_t *dim,
                           const struct sw_part *part, bool decay) {
    assert(dims >= 1 && dims <= SW_TENSOR_MAX_DIMS && unit->grains == 0);
    struct sw_tensor tensor = {.dims = dims, .decay = decay};
    int64_t whole_elems = 1;
    snprintf(tensor.name, sizeof tensor.name, "%s", name);
    for (int d = 0; d < dims; d++) {
        tensor.dim[d] = dim[d];
        if (!sw_mul_i64(whole_elems, dim[d], &whole_elems) || whole_elems > INT64_MAX / 64)
            return sw_fail(SW_ERR_ARG, "the tensor %s is too large", name);
    }
    const int64_t cols = dim[dims - 1];
    tensor.part =
        part != NULL
            ? *part
            : (struct sw_part){.rows = whole_elems / cols, .cols = cols, .block_cols = cols, .block_stride = cols};
    assert(part_is_inside(&tensor, whole_elems));
    tensor.elems = tensor.part.rows * tensor.part.cols;
    tensor.offset = tensor.part.joined ? unit->elems : sw_round_up(unit->elems, SW_TENSOR_ALIGN_ELEMS);
    if (!sw_add_i64(tensor.offset, tensor.elems, &unit->elems) || unit->elems > INT64_MAX / 64)
        return sw_fail(SW_ERR_ARG, "the unit of tensor %s is too large", name);
    struct sw_tensor *grown = realloc(unit->tensor, (size_t)(unit->tensor_count + 1) * sizeof *grown);
    if (grown == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the description of %s", name);
    unit->tensor = grown;
    unit->tensor[unit->tensor_count++] = tensor;
    return SW_OK;
}

int64_t sw_tensor_whole_elems(const struct sw_tensor *tensor) {
    int64_t elems = 1;
    for (int d = 0; d < tensor->dims; d++)
        elems *= tensor->dim[d];
    return elems;
}

/* Rows that are there with all their columns follow each other in both. */
static bool has_whole_rows(const struct sw_tensor *tensor) {
    return tensor->part.block_cols == tensor->dim[tensor->dims - 1];
}

int64_t sw_tensor_to_whole(const struct sw_tensor *tensor, int64_t elem, int64_t *run) {
    const struct sw_part *part = &tensor->part;
    const int64_t row = elem / part->cols, col = elem % part->cols, within = col % part->block_cols;
    *run = has_whole_rows(tensor) ? tensor->elems - elem : part->block_cols - within;
    return (part->first_row + row) * tensor->dim[tensor->dims - 1] + part->first_col +
           col / part->block_cols * part->block_stride + within;
}

int64_t sw_tensor_from_whole(const struct sw_tensor *tensor, int64_t whole, int64_t *run) {
    const struct sw_part *part = &tensor->part;
    const int64_t cols = tensor->dim[tensor->dims - 1];
    const int64_t row = whole / cols - part->first_row, col = whole % cols - part->first_col;
    if (row < 0 || row >= part->rows || col < 0)
        return -1;
    const int64_t block = col / part->block_stride, within = col % part->block_stride;
    if (within >= part->block_cols || block >= part->cols / part->block_cols)
        return -1;
    const int64_t elem = row * part->cols + block * part->block_cols + within;
    sw_tensor_to_whole(tensor, elem, run);
    return elem;
}

sw_status sw_unit_walk(const struct sw_unit *unit, int64_t first, int64_t count, sw_unit_visit visit, void *context) {
    for (int64_t t = 0; t < unit->tensor_count; t++) {
        const struct sw_tensor *tensor = &unit->tensor[t];
        const int64_t end = sw_min_i64(first + count, tensor->offset + tensor->elems);
        for (int64_t at = sw_max_i64(first, tensor->offset); at < end;) {
            int64_t run;
            const int64_t whole = sw_tensor_to_whole(tensor, at - tensor->offset, &run);
            run = sw_min_i64(run, end - at);
            SW_TRY(visit(context, t, whole, run, at - first));
            at += run;
        }
    }
    return SW_OK;
}

/* Sets the runs: neighbouring tensors with the same decay and learning rate are one. */
static void join_runs(struct sw_unit *unit) {
    unit->run_count = 0;
    for (int64_t t = 0; t < unit->tensor_count; t++) {
        const struct sw_tensor *tensor = &unit->tensor[t];
        const struct sw_decay_run *before = unit->run_count > 0 ? &unit->run[unit->run_count - 1] : NULL;
        const bool last = t + 1 == unit->tensor_count;
        const int64_t end = last ? unit->elems : tensor[1].offset;
        if (before == NULL || before->decay != tensor->decay || before->lr_scale != tensor->lr_scale)
            unit->run_count++;
        unit->run[unit->run_count - 1] =
            (struct sw_decay_run){.end = end, .decay = tensor->decay, .lr_scale = tensor->lr_scale};
    }
}

static sw_status seal_unit(struct sw_unit *unit) {
    unit->elems = sw_round_up(unit->elems, SW_GRAIN_ELEMS);
    unit->grains = unit->elems / SW_GRAIN_ELEMS;
    unit->run = calloc((size_t)unit->tensor_count + 1, sizeof *unit->run);
    if (unit->run == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the decay runs of %s", unit->name);
    join_runs(unit);
    return SW_OK;
}

void sw_units_join_runs(struct sw_units *units) {
    for (int64_t u = 0; u < units->count; u++)
        join_runs(&units->unit[u]);
}

sw_status sw_units_seal(struct sw_units *units) {
    for (int64_t u = 0; u < units->count; u++) {
        assert(units->unit[u].tensor_count > 0);
        SW_TRY(seal_unit(&units->unit[u]));
    }
    return SW_OK;
}

int64_t sw_units_parameters(const struct sw_units *units) {
    return sw_units_first_parameters(units, units->count);
}

int64_t sw_units_first_parameters(const struct sw_units *units, int64_t count) {
    int64_t parameters = 0;
    for (int64_t u = 0; u < count; u++)
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++)
            parameters += units->unit[u].tensor[t].elems;
    return parameters;
}
