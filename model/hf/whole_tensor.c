#include "model/hf/whole_tensor.h"

#include "core/size.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

sw_status sw_whole_tensor_make(const struct sw_units *units, struct sw_whole_tensor *out) {
    *out = (struct sw_whole_tensor){.part = calloc((size_t)units->count, sizeof *out->part)};
    return out->part != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory for the parts of tensors");
}

void sw_whole_tensor_release(struct sw_whole_tensor *whole) {
    free(whole->part);
    whole->part = NULL;
}

bool sw_tensor_is_first_part(const struct sw_tensor *tensor) {
    return tensor->part.first_row == 0 && tensor->part.first_col == 0;
}

void sw_whole_tensor_gather(const struct sw_units *units, int64_t unit, const struct sw_tensor *first,
                            struct sw_whole_tensor *out) {
    int64_t missing = sw_tensor_whole_elems(first);
    out->first_unit = unit;
    for (out->parts = 0; missing > 0; out->parts++) {
        out->part[out->parts] = sw_unit_find(&units->unit[unit + out->parts], first->name);
        assert(out->part[out->parts] != NULL);
        missing -= out->part[out->parts]->elems;
    }
}

/* The search begins where the last one ended: callers ask for one tensor of a unit after the other. */
bool sw_whole_tensor_find(const struct sw_units *units, const char *name, struct sw_whole_tensor *out) {
    for (int64_t i = 0; i < units->count; i++) {
        int64_t unit = (out->first_unit + i) % units->count;
        const struct sw_tensor *first = sw_unit_find(&units->unit[unit], name), *before;
        if (first == NULL)
            continue;
        while (unit > 0 && (before = sw_unit_find(&units->unit[unit - 1], name)) != NULL) {
            first = before;
            unit--;
        }
        sw_whole_tensor_gather(units, unit, first, out);
        return true;
    }
    return false;
}

/* Returns the part that holds element `at` of the whole tensor. The search begins with part `hint`: the next element is
 * mostly in the same part. */
static int64_t part_with(const struct sw_whole_tensor *whole, int64_t at, int64_t hint, int64_t *elem, int64_t *run) {
    for (int64_t i = 0; i < whole->parts; i++) {
        const int64_t p = (hint + i) % whole->parts;
        *elem = sw_tensor_from_whole(whole->part[p], at, run);
        if (*elem >= 0)
            return p;
    }
    assert(!"parts cover their tensor");
    return 0;
}

/* Reads elements in pieces of at most most_grains grains. A piece is one grain shorter than that, because a range that
 * begins and ends within grains touches one grain more than its length says. */
static sw_status get(const struct sw_load *from, int64_t unit, int64_t first, int64_t count, float *out) {
    const int64_t most = from->most_grains > 0 ? (from->most_grains - 1) * SW_GRAIN_ELEMS : count;
    for (int64_t done = 0, now; done < count; done += now) {
        now = sw_min_i64(most, count - done);
        if (from->prepare != NULL)
            SW_TRY(from->prepare(from->context, unit, first + done, now));
        SW_TRY(from->fill(from->context, unit, first + done, now, out + done));
    }
    return SW_OK;
}

sw_status sw_whole_tensor_read(const struct sw_whole_tensor *whole, const struct sw_load *from, int64_t first,
                               int64_t count, float *out) {
    for (int64_t done = 0, part = 0; done < count;) {
        int64_t elem, run;
        part = part_with(whole, first + done, part, &elem, &run);
        run = sw_min_i64(run, count - done);
        SW_TRY(get(from, whole->first_unit + part, whole->part[part]->offset + elem, run, out + done));
        done += run;
    }
    return SW_OK;
}
