#include "bench/step/least.h"

#include "core/size.h"

enum { MASTER_AND_MOMENTS_BYTES = 12 };

static int64_t parameters_of(const struct sw_unit *unit) {
    int64_t sum = 0;
    for (int64_t t = 0; t < unit->tensor_count; t++)
        sum += unit->tensor[t].elems;
    return sum;
}

/* Returns the bytes of a unit's optimizer state without padding: of a parameter, its part of a full grain's bytes, or
 * in a wide grain those of fp32. */
static int64_t state_bytes_of(const struct sw_units *units, int64_t unit) {
    const struct sw_unit *of = &units->unit[unit];
    int64_t elems[2] = {0}; /* narrow, wide */
    for (int64_t t = 0; t < of->tensor_count; t++)
        elems[of->tensor[t].offset >= of->wide_grain * SW_GRAIN_ELEMS] += of->tensor[t].elems;
    return sw_div_up(elems[0] * sw_optimizer_grain_bytes(units->optimizer), SW_GRAIN_ELEMS) +
           MASTER_AND_MOMENTS_BYTES * elems[1];
}

/* Returns the elements of the embedding that a step needs: of a table of positions, as many rows as sequences are long;
 * a tied table as a whole, for the head; of an untied table, the rows that the step's tokens can name. */
static int64_t embedding_elems(const struct sw_least_shape *shape) {
    const struct sw_unit *unit = &shape->units->unit[0];
    int64_t elems = 0;
    for (int64_t t = 0; t < unit->tensor_count; t++) {
        const int64_t rows = unit->tensor[t].dim[0], row_elems = unit->tensor[t].elems / rows;
        const int64_t named = shape->units->tied ? rows : shape->tokens, used = t > 0 ? shape->seq : named;
        elems += sw_min_i64(rows, used) * row_elems;
    }
    return elems;
}

/* Returns how often a step needs a unit's weights on the device at different times. */
static int visits_of(const struct sw_least_shape *shape, int64_t unit) {
    const int64_t head = shape->units->count - 1;
    /* Blocks in 8 bits have the slots of units for themselves, so that two of them stay. */
    return unit == 0 || unit >= head - (shape->units->fp8 ? 2 : 1) ? 1 : 2;
}

static bool streams(const struct sw_least_shape *shape, int64_t unit) {
    return shape->update_on_device != NULL && shape->update_on_device[unit] &&
           shape->placement[unit].tier[SW_OPTIMIZER] != SW_DEVICE;
}

static bool updated_on_device(const struct sw_least_shape *shape, int64_t unit) {
    return shape->placement[unit].tier[SW_OPTIMIZER] == SW_DEVICE || streams(shape, unit);
}

static void add_weights(const struct sw_least_shape *shape, int64_t unit, int64_t weights_bytes,
                        int64_t bytes[SW_LANES]) {
    const struct sw_unit_placement at = shape->placement[unit];
    const bool on_device = updated_on_device(shape, unit);
    const int64_t fetched_bytes = unit == 0 ? embedding_elems(shape) * sw_dtype_bytes(shape->type) : weights_bytes;
    if (at.tier[SW_WEIGHTS] == SW_DEVICE) {
        bytes[SW_LANE_UPLOAD] += on_device ? 0 : weights_bytes;
        return;
    }
    /* An update on the device makes the weights that the next forward pass reads there, unless it is speculated: its
     * weights then do not stay on the device until that pass, except a tied table, which stays there from the
     * embedding's backward pass on. */
    const int later = visits_of(shape, unit) - 1;
    const bool feeds = !shape->speculated || (unit == 0 && shape->units->tied);
    bytes[SW_LANE_UPLOAD] += later * fetched_bytes;
    bytes[SW_LANE_UPLOAD] += on_device && feeds ? 0 : fetched_bytes;
    bytes[SW_LANE_DOWNLOAD] += on_device ? weights_bytes : 0;
    if (at.tier[SW_WEIGHTS] != SW_NVME)
        return;
    bytes[SW_LANE_WRITE] += weights_bytes;
    bytes[SW_LANE_READ] += (later + (feeds ? 0 : 1)) * fetched_bytes;
}

static void add_update(const struct sw_least_shape *shape, int64_t unit, int64_t weights_bytes,
                       int64_t bytes[SW_LANES]) {
    const int64_t state_bytes = state_bytes_of(shape->units, unit), type_bytes = sw_dtype_bytes(shape->type);
    const int64_t elems = parameters_of(&shape->units->unit[unit]);
    const int64_t grads_bytes = sw_div_up(elems * sw_grads_grain_bytes(shape->grads, type_bytes), SW_GRAIN_ELEMS);
    const struct sw_unit_placement at = shape->placement[unit];
    const bool on_device = updated_on_device(shape, unit), kept = at.tier[SW_GRADS] == SW_DEVICE;
    const int64_t streamed_bytes = streams(shape, unit) ? state_bytes : 0;
    bytes[SW_LANE_DOWNLOAD] += streamed_bytes + (kept && on_device ? 0 : grads_bytes);
    bytes[SW_LANE_UPLOAD] += streamed_bytes + (!kept && on_device && !shape->speculated ? grads_bytes : 0);
    if (at.tier[SW_GRADS] == SW_NVME) {
        bytes[SW_LANE_WRITE] += grads_bytes;
        bytes[SW_LANE_READ] += shape->speculated ? 0 : grads_bytes;
    }
    if (at.tier[SW_OPTIMIZER] == SW_NVME) {
        bytes[SW_LANE_READ] += state_bytes;
        bytes[SW_LANE_WRITE] += state_bytes;
    }
    bytes[SW_LANE_UPDATE] += on_device ? 0 : 2 * state_bytes + grads_bytes + weights_bytes;
}

static void add_inputs(const struct sw_least_shape *shape, int64_t unit, int64_t bytes[SW_LANES]) {
    const sw_tier tier = shape->placement[unit].tier[SW_ACTS];
    const int64_t all_bytes = shape->micro_batches * shape->output_bytes[unit - 1];
    if (tier == SW_DEVICE)
        return;
    bytes[SW_LANE_DOWNLOAD] += all_bytes;
    bytes[SW_LANE_UPLOAD] += all_bytes;
    bytes[SW_LANE_WRITE] += tier == SW_NVME ? all_bytes : 0;
    bytes[SW_LANE_READ] += tier == SW_NVME ? all_bytes : 0;
}

void sw_least_bytes(const struct sw_least_shape *shape, int64_t out[SW_LANES]) {
    for (int lane = 0; lane < SW_LANES; lane++)
        out[lane] = 0;
    for (int64_t u = 0; u < shape->units->count; u++) {
        const int64_t elems = parameters_of(&shape->units->unit[u]);
        /* Norms and biases of blocks in 8 bits have two bytes each, which are too few to count. */
        const int64_t weights_bytes = elems * sw_units_weights_bytes(shape->units, u, shape->type) / SW_GRAIN_ELEMS;
        add_weights(shape, u, weights_bytes, out);
        add_update(shape, u, weights_bytes, out);
        if (u > 0 && u + 1 < shape->units->count && !shape->shares_input[u])
            add_inputs(shape, u, out);
    }
}
