/* Tensors without a gradient are left out of a step, so each tensor has a t of its own: the applied steps less those
 * that it missed. The store has what each missed as the masters of one tensor more, which is the library's own: a step
 * puts them into the records that it writes anyway, so they are committed with the state, on any tier and by any number
 * of processes. A master is an fp32 number, which counts to 2^24 exactly, so that a count takes two. They are in the
 * order of tensors.json, because another process may register the tensors in another order. */
#include "core/ranks/comm.h"
#include "kernels/moments.h"
#include "library/library_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT_ELEMS = 2, LOW_BITS = 24 };

/* Its name is one that no tensor of a caller can have. */
sw_status sw_library_add_counts(spillway *self) {
    struct tensor *grown = realloc(self->tensor, (size_t)sw_library_all_tensors(self) * sizeof *grown);
    if (grown == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the counts of steps of %lld tensors",
                       (long long)self->tensor_count);
    self->tensor = grown;
    self->tensor_room = sw_library_all_tensors(self);
    const int64_t count = COUNT_ELEMS * self->tensor_count;
    self->tensor[self->tensor_count] = (struct tensor){.type = SW_F32,
                                                       .count = count,
                                                       .whole = count,
                                                       .most = count,
                                                       .lr_scale = 1.0,
                                                       .streamed = -1,
                                                       .streamed_sum = -1};
    return SW_OK;
}

static float count_at(const spillway *self, int64_t elem) {
    const int64_t missed = self->tensor[self->by_listed[elem / COUNT_ELEMS]].missed;
    return (float)(elem % COUNT_ELEMS == 0 ? missed & ((1 << LOW_BITS) - 1) : missed >> LOW_BITS);
}

void sw_library_stamp(void *context, int64_t unit, int64_t first, int64_t count, void *records) {
    const spillway *self = context;
    const sw_optimizer_format format = self->units->optimizer;
    const struct tensor *counts = &self->tensor[self->tensor_count];
    int64_t position = sw_library_first_run(self, unit, first);
    for (struct library_run run; sw_library_run_at(self, unit, position, first, count, &run); position++)
        for (int64_t i = 0; run.tensor == counts && i < run.count; i++) {
            const int64_t at = run.at + i;
            char *record = (char *)records + at / SW_GRAIN_ELEMS * sw_optimizer_grain_bytes(format);
            ((float *)(void *)record)[at % SW_GRAIN_ELEMS] = count_at(self, run.from + i);
        }
}

sw_status sw_library_take_counts(spillway *self) {
    const struct tensor *counts = &self->tensor[self->tensor_count];
    float *values = calloc((size_t)counts->count, sizeof *values);
    sw_status status = values != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory for counts of steps");
    status = sw_library_agree(self, status, "counts of steps");
    if (status == SW_OK)
        status = sw_library_read(self, counts, SPILLWAY_MASTER, 0, counts->count, values);
    for (int64_t t = 0; status == SW_OK && t < self->tensor_count; t++) {
        const int64_t missed = sw_library_count_of(values, self->tensor[t].listed);
        self->tensor[t].missed = missed;
        if (missed < 0 || missed > self->applied_steps)
            status = sw_fail(SW_ERR_CORRUPT, "'%s' missed %lld steps of %lld in %s", self->tensor[t].name,
                             (long long)missed, (long long)self->applied_steps, self->folder);
    }
    free(values);
    return status;
}

int64_t sw_library_count_of(const float *values, int64_t listed) {
    return (int64_t)values[COUNT_ELEMS * listed] + ((int64_t)values[COUNT_ELEMS * listed + 1] << LOW_BITS);
}

/* Refuses gradients that only some processes have: each updates only its part of a tensor. Where each has elements of
 * its own, the others have one of zeros, and rows[t] becomes whether any has one. rows: which of the tensors have one,
 * process by process. */
static sw_status check_rows(const spillway *self, char *rows) {
    for (int64_t i = self->tensor_count; self->options.sharded && i < self->ranks * self->tensor_count; i++)
        rows[i % self->tensor_count] |= rows[i];
    for (int rank = 1; rank < self->ranks && !self->options.sharded; rank++)
        for (int64_t t = 0; t < self->tensor_count; t++) {
            const bool has = rows[rank * self->tensor_count + t] != 0;
            if (has != (rows[t] != 0))
                return sw_fail(
                    SW_ERR_ARG,
                    "'%s' has a gradient in process %d and none in process %d: all processes hand in the same "
                    "gradients; let the one without it hand in its part of the average",
                    self->tensor[t].name, has ? rank : 0, has ? 0 : rank);
        }
    return SW_OK;
}

/* Finds which of the tensors have a gradient. */
static sw_status find_gradients(spillway *self) {
    char *rows = self->has_gradient;
    for (int64_t t = 0; t < self->tensor_count; t++)
        rows[self->rank * self->tensor_count + t] = self->tensor[t].gradient != NULL;
    if (self->comm != NULL)
        SW_TRY(sw_comm_share_records(self->comm, "gradients", rows, self->tensor_count));
    return check_rows(self, rows);
}

sw_status sw_library_leave_out(spillway *self) {
    const bool may = self->options.missing_gradients == SPILLWAY_MISSING_SKIP;
    if (may)
        SW_TRY(find_gradients(self));
    for (int64_t t = 0; t < self->tensor_count; t++) {
        struct tensor *tensor = &self->tensor[t];
        struct sw_tensor *of_unit = &self->units->unit[tensor->unit].tensor[tensor->within];
        const int64_t step = tensor->missed > 0 ? self->applied_steps + 1 - tensor->missed : 0;
        const bool left_out = may && self->has_gradient[t] == 0;
        self->factors_changed |= of_unit->left_out != left_out || of_unit->step != step;
        of_unit->left_out = left_out;
        of_unit->step = step;
    }
    return SW_OK;
}

void sw_library_count_step(spillway *self) {
    for (int64_t t = 0; t < self->tensor_count; t++)
        self->tensor[t].missed += self->units->unit[self->tensor[t].unit].tensor[self->tensor[t].within].left_out;
}

int64_t spillway_tensor_steps(const spillway *self, int64_t index) {
    return self != NULL && self->last_step >= 0 && index >= 0 && index < self->tensor_count
               ? self->applied_steps - self->tensor[index].missed
               : -1;
}
