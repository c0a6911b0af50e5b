/* Elements of a unit as runs of the caller's tensors. */
#include "core/size.h"
#include "library/library_private.h"

int64_t sw_library_first_run(const spillway *self, int64_t unit, int64_t first) {
    int64_t low = self->unit_first[unit], high = self->unit_first[unit + 1];
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        const struct tensor *tensor = &self->tensor[self->order[middle]];
        if (tensor->offset + tensor->count <= first)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool sw_library_run_at(const spillway *self, int64_t unit, int64_t position, int64_t first, int64_t count,
                       struct library_run *out) {
    if (position >= self->unit_first[unit + 1])
        return false;
    struct tensor *tensor = &self->tensor[self->order[position]];
    const int64_t begin = sw_max_i64(first, tensor->offset);
    const int64_t end = sw_min_i64(first + count, tensor->offset + tensor->count);
    *out = (struct library_run){tensor, begin - tensor->offset, begin - first, end - begin};
    return begin < end;
}
