#include "offload/unit.h"

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
    assert(dims >= 1 && dims <= SW_TENSOR_MAX_DIMS && unit->grains == 0);
    struct sw_tensor tensor = {.dims = dims, .elems = 1, .decay = decay};
    snprintf(tensor.name, sizeof tensor.name, "%s", name);
    for (int d = 0; d < dims; d++) {
        tensor.dim[d] = dim[d];
        if (!sw_mul_i64(tensor.elems, dim[d], &tensor.elems) || tensor.elems > INT64_MAX / 64)
            return sw_fail(SW_ERR_ARG, "the tensor %s is too large", name);
    }
    tensor.offset = sw_round_up(unit->elems, SW_TENSOR_ALIGN_ELEMS);
    if (!sw_add_i64(tensor.offset, tensor.elems, &unit->elems) || unit->elems > INT64_MAX / 64)
        return sw_fail(SW_ERR_ARG, "the unit of tensor %s is too large", name);
    struct sw_tensor *grown = realloc(unit->tensor, (size_t)(unit->tensor_count + 1) * sizeof *grown);
    if (grown == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the description of %s", name);
    unit->tensor = grown;
    unit->tensor[unit->tensor_count++] = tensor;
    return SW_OK;
}

static sw_status seal_unit(struct sw_unit *unit) {
    unit->elems = sw_round_up(unit->elems, SW_GRAIN_ELEMS);
    unit->grains = unit->elems / SW_GRAIN_ELEMS;
    unit->run = calloc((size_t)unit->tensor_count + 1, sizeof *unit->run);
    if (unit->run == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the decay runs of %s", unit->name);
    for (int64_t t = 0; t < unit->tensor_count; t++) {
        const bool last = t + 1 == unit->tensor_count;
        const int64_t end = last ? unit->elems : unit->tensor[t + 1].offset;
        const bool extends = unit->run_count > 0 && unit->run[unit->run_count - 1].decay == unit->tensor[t].decay;
        if (!extends)
            unit->run_count++;
        unit->run[unit->run_count - 1] = (struct sw_decay_run){.end = end, .decay = unit->tensor[t].decay};
    }
    return SW_OK;
}

sw_status sw_units_seal(struct sw_units *units) {
    for (int64_t u = 0; u < units->count; u++) {
        assert(units->unit[u].tensor_count > 0);
        SW_TRY(seal_unit(&units->unit[u]));
    }
    return SW_OK;
}

int64_t sw_units_parameters(const struct sw_units *units) {
    int64_t parameters = 0;
    for (int64_t u = 0; u < units->count; u++)
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++)
            parameters += units->unit[u].tensor[t].elems;
    return parameters;
}
