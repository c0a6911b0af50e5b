#include "offload/plan/unit.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
        free(units->unit[u].muon);
    }
    free(units->unit);
    free(units);
}

sw_status sw_unit_add_tensor(struct sw_unit *unit, const char *name, int dims, const int64_t *dim, bool decay) {
    return sw_unit_add_part(unit, name, dims, dim, NULL, decay);
}

/* Returns the columns of the whole tensor, as its part counts them. */
static int64_t width_of(const struct sw_tensor *tensor) {
    return tensor->part.width > 0 ? tensor->part.width : tensor->dim[tensor->dims - 1];
}

static bool part_is_inside(const struct sw_tensor *tensor, int64_t whole_elems) {
    const struct sw_part *part = &tensor->part;
    const int64_t cols = width_of(tensor), blocks = part->cols / part->block_cols;
    return part->first_row >= 0 && part->rows > 0 && part->first_row + part->rows <= whole_elems / cols &&
           part->first_col >= 0 && part->cols % part->block_cols == 0 && part->block_stride >= part->block_cols &&
           part->first_col + (blocks - 1) * part->block_stride + part->block_cols <= cols;
}

static int64_t room_of(const struct sw_tensor *tensor) {
    return tensor->part.room_rows * tensor->part.cols;
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
    tensor.part.room_rows = sw_max_i64(tensor.part.room_rows, tensor.part.rows);
    tensor.elems = tensor.part.rows * tensor.part.cols;
    tensor.offset = tensor.part.joined ? unit->elems : sw_round_up(unit->elems, SW_TENSOR_ALIGN_ELEMS);
    if (!sw_add_i64(tensor.offset, room_of(&tensor), &unit->elems) || unit->elems > INT64_MAX / 64)
        return sw_fail(SW_ERR_ARG, "the unit of tensor %s is too large", name);
    struct sw_tensor *grown = realloc(unit->tensor, (size_t)(unit->tensor_count + 1) * sizeof *grown);
    if (grown == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the description of %s", name);
    unit->tensor = grown;
    unit->tensor[unit->tensor_count++] = tensor;
    return SW_OK;
}

const struct sw_tensor *sw_unit_find(const struct sw_unit *unit, const char *name) {
    for (int64_t t = 0; t < unit->tensor_count; t++)
        if (strcmp(unit->tensor[t].name, name) == 0)
            return &unit->tensor[t];
    return NULL;
}

int64_t sw_tensor_whole_elems(const struct sw_tensor *tensor) {
    int64_t elems = 1;
    for (int d = 0; d < tensor->dims; d++)
        elems *= tensor->dim[d];
    return elems;
}

/* Rows that are there with all their columns follow each other in both. */
static bool has_whole_rows(const struct sw_tensor *tensor) {
    return tensor->part.block_cols == width_of(tensor);
}

int64_t sw_tensor_to_whole(const struct sw_tensor *tensor, int64_t elem, int64_t *run) {
    const struct sw_part *part = &tensor->part;
    const int64_t row = elem / part->cols, col = elem % part->cols, within = col % part->block_cols;
    *run = has_whole_rows(tensor) ? tensor->elems - elem : part->block_cols - within;
    return (part->first_row + row) * width_of(tensor) + part->first_col + col / part->block_cols * part->block_stride +
           within;
}

int64_t sw_tensor_from_whole(const struct sw_tensor *tensor, int64_t whole, int64_t *run) {
    const struct sw_part *part = &tensor->part;
    const int64_t cols = width_of(tensor);
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

void sw_unit_masters(const struct sw_unit *unit, int64_t grain, const void *record, float *out) {
    const size_t used = grain >= unit->wide_grain ? SW_WIDE_GRAIN_ELEMS : SW_GRAIN_ELEMS;
    memcpy(out, record, used * sizeof *out);
    memset(out + used, 0, (SW_GRAIN_ELEMS - used) * sizeof *out);
}

/* Returns the tensor that lies behind tensor t, or the first one for t -1. tensor_count: there is none. */
static int64_t next_in_layout(const struct sw_unit *unit, int64_t t) {
    const int64_t after = t >= 0 ? unit->tensor[t].offset : -1;
    int64_t next = unit->tensor_count;
    for (int64_t i = 0; i < unit->tensor_count; i++)
        if (unit->tensor[i].offset > after &&
            (next == unit->tensor_count || unit->tensor[i].offset < unit->tensor[next].offset))
            next = i;
    return next;
}

/* Returns the tensor that has element `elem` of the unit, or the first one behind that element. tensor_count: there is
 * none. */
static int64_t at_or_behind(const struct sw_unit *unit, int64_t elem) {
    int64_t found = unit->tensor_count;
    for (int64_t t = 0; t < unit->tensor_count; t++)
        if (unit->tensor[t].offset + unit->tensor[t].elems > elem &&
            (found == unit->tensor_count || unit->tensor[t].offset < unit->tensor[found].offset))
            found = t;
    return found;
}

sw_status sw_unit_walk(const struct sw_unit *unit, int64_t first, int64_t count, sw_unit_visit visit, void *context) {
    for (int64_t t = at_or_behind(unit, first); t < unit->tensor_count && unit->tensor[t].offset < first + count;
         t = next_in_layout(unit, t)) {
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

/* Sets the runs: neighbouring tensors with the same decay, learning rate and t are one, if all or none is left out. */
static void join_runs(struct sw_unit *unit) {
    unit->run_count = 0;
    for (int64_t t = next_in_layout(unit, -1); t < unit->tensor_count; t = next_in_layout(unit, t)) {
        const struct sw_tensor *tensor = &unit->tensor[t];
        struct sw_decay_run *before = unit->run_count > 0 ? &unit->run[unit->run_count - 1] : NULL;
        if (before != NULL && before->decay == tensor->decay && before->lr_scale == tensor->lr_scale &&
            before->step == tensor->step && before->left_out == tensor->left_out)
            continue;
        if (before != NULL)
            before->end = tensor->offset;
        unit->run[unit->run_count++] = (struct sw_decay_run){.end = unit->elems,
                                                             .decay = tensor->decay,
                                                             .lr_scale = tensor->lr_scale,
                                                             .step = tensor->step,
                                                             .left_out = tensor->left_out};
    }
}

/* Sets the trained matrices that Muon updates, with the rates of their tensors. */
static void list_muon(struct sw_unit *unit) {
    unit->muon_count = 0;
    for (int64_t t = next_in_layout(unit, -1); t < unit->tensor_count; t = next_in_layout(unit, t)) {
        const struct sw_tensor *tensor = &unit->tensor[t];
        struct sw_muon_tensor matrix = tensor->muon;
        matrix.decay = tensor->decay;
        matrix.lr_scale = tensor->lr_scale;
        for (int64_t i = 0; i < tensor->muon_count && !tensor->frozen; i++) {
            matrix.first_elem = tensor->offset + i * matrix.outputs * matrix.inputs;
            unit->muon[unit->muon_count++] = matrix;
        }
    }
}

/* Tensors that must stay together: one, and the parts that are joined to it. */
struct together {
    int64_t first, end; /* tensors [first, end) of the unit */
    int64_t elems;
    bool vectors, wide; /* wide: they are vectors that fit into a wide grain */
    bool replicated, frozen, typed, muon;
};

static struct together together_at(const struct sw_unit *unit, int64_t first) {
    struct together found = {.first = first, .end = first, .vectors = true, .frozen = unit->tensor[first].frozen};
    do {
        const struct sw_tensor *tensor = &unit->tensor[found.end++];
        found.elems += room_of(tensor);
        found.replicated |= tensor->part.replicated;
        found.vectors &= tensor->dims == 1;
        found.typed |= tensor->typed;
        found.muon |= tensor->muon_count > 0;
    } while (found.end < unit->tensor_count && unit->tensor[found.end].part.joined);
    found.wide = found.vectors && found.elems <= SW_WIDE_GRAIN_ELEMS;
    return found;
}

/* Moves tensors to this element and returns the first one behind them. */
static int64_t move_to(struct sw_unit *unit, const struct together *moved, int64_t elem) {
    for (int64_t t = moved->first; t < moved->end; elem += room_of(&unit->tensor[t++]))
        unit->tensor[t].offset = elem;
    return elem;
}

/* Returns where vectors of so many elements begin in the wide grains, whose elements before `elem` are taken. */
static int64_t wide_place(int64_t elem, int64_t elems) {
    const int64_t aligned = sw_round_up(elem, SW_TENSOR_ALIGN_ELEMS);
    return aligned % SW_GRAIN_ELEMS + elems <= SW_WIDE_GRAIN_ELEMS ? aligned : sw_round_up(aligned, SW_GRAIN_ELEMS);
}

/* The sections of a unit, in their order. With fp32 state there are no wide ones. The frozen one is the frozen span of
 * a unit that also has a trained one, or what the base leaves of it. */
enum section { BASE, FROZEN, MUON, PLAIN, WIDE, REPLICATED, REPLICATED_WIDE, SECTIONS };

/* A unit's layout: whether moments, or weights, are narrow; whether frozen tensors have a span of their own; and
 * whether their matrices are quantized. */
struct form {
    bool narrow, parted, based;
    int64_t align_elems; /* where tensors outside of wide grains begin */
};

static enum section section_of(const struct together *at, struct form form) {
    const bool narrow = form.narrow;
    if (form.parted && at->frozen)
        return form.based && !at->vectors && !at->typed ? BASE : FROZEN;
    if (at->replicated)
        return narrow && at->vectors ? REPLICATED_WIDE : REPLICATED;
    if (at->muon)
        return MUON;
    return narrow && at->wide ? WIDE : PLAIN;
}

/* Lays out the tensors of a section from this element on, and returns the element behind them, or -1 where a vector of
 * a wide grain is too large for one. */
static int64_t lay_out_section(struct sw_unit *unit, enum section section, struct form form, int64_t elem) {
    struct together at;
    for (int64_t t = 0; t < unit->tensor_count; t = at.end) {
        at = together_at(unit, t);
        if (section_of(&at, form) != section)
            continue;
        const bool wide = section == WIDE || section == REPLICATED_WIDE;
        if (wide && !at.wide)
            return -1;
        elem = move_to(unit, &at, wide ? wide_place(elem, at.elems) : sw_round_up(elem, form.align_elems));
    }
    return elem;
}

/* Lays out a unit by sections, and sets its elements and where they begin. */
static sw_status lay_out(struct sw_unit *unit, struct form form) {
    const bool narrow = form.narrow;
    int64_t first_grain[SECTIONS], elem = 0;
    for (int section = BASE; section < SECTIONS; section++) {
        const int64_t first = sw_round_up(elem, SW_GRAIN_ELEMS);
        const int64_t end = lay_out_section(unit, (enum section)section, form, first);
        first_grain[section] = first / SW_GRAIN_ELEMS;
        elem = end == first ? elem : end;
        if (end < 0)
            return sw_fail(SW_ERR_UNSUPPORTED, "--tensor keeps no vectors of more than %d elements in narrow state",
                           SW_WIDE_GRAIN_ELEMS);
    }
    unit->elems = sw_round_up(elem, SW_GRAIN_ELEMS);
    unit->grains = unit->elems / SW_GRAIN_ELEMS;
    unit->base_grains = first_grain[FROZEN];
    unit->trained_grain = first_grain[MUON];
    unit->adamw_grain = first_grain[PLAIN];
    unit->replicated_grain = first_grain[REPLICATED];
    unit->replicated_elems = sw_max_i64(0, elem - first_grain[REPLICATED] * SW_GRAIN_ELEMS);
    const bool copies_matrices = first_grain[REPLICATED_WIDE] > unit->replicated_grain;
    if (narrow && copies_matrices && unit->replicated_grain > first_grain[WIDE])
        return sw_fail(
            SW_ERR_UNSUPPORTED,
            "--tensor keeps no vectors that ranks share out beside matrices that all of them train in narrow "
            "state, as in %s",
            unit->name);
    unit->wide_grain = unit->grains;
    if (narrow)
        unit->wide_grain = first_grain[copies_matrices ? REPLICATED_WIDE : WIDE];
    return SW_OK;
}

/* Refuses parts that one product takes as one matrix, and of which some are frozen and some are not. */
static sw_status check_joined(const struct sw_unit *unit) {
    for (int64_t t = 1; t < unit->tensor_count; t++)
        if (unit->tensor[t].part.joined && unit->tensor[t].frozen != unit->tensor[t - 1].frozen)
            return sw_fail(SW_ERR_UNSUPPORTED,
                           "%s and %s are multiplied as one matrix: both of them are frozen, or neither",
                           unit->tensor[t - 1].name, unit->tensor[t].name);
    return SW_OK;
}

/* Refuses tensors of a base whose rows do not have whole blocks of the base's format. In the unit's vector they then
 * begin at whole blocks too. */
static sw_status check_rows(const struct sw_units *units, const struct sw_unit *unit) {
    const int64_t neighbours = sw_base_stored_elems(units->base);
    for (int64_t t = 0; neighbours > 0 && t < unit->tensor_count; t++) {
        const struct sw_tensor *tensor = &unit->tensor[t];
        const struct sw_part *part = &tensor->part;
        const int64_t lengths[] = {tensor->dim[tensor->dims - 1], part->cols, part->first_col, part->block_cols,
                                   part->block_stride};
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
            if (tensor->offset < unit->base_grains * SW_GRAIN_ELEMS && lengths[i] % neighbours != 0)
                return sw_fail(SW_ERR_UNSUPPORTED,
                               "--base-format %s needs rows of whole blocks of %lld weights, and %s has rows or parts "
                               "of %lld; leave it out, or take int8 or nf4",
                               sw_base_format_name(units->base), (long long)neighbours, tensor->name,
                               (long long)lengths[i]);
        assert(tensor->offset >= unit->base_grains * SW_GRAIN_ELEMS || tensor->offset % neighbours == 0);
    }
    return SW_OK;
}

static sw_status seal_unit(const struct sw_units *units, struct sw_unit *unit) {
    const bool block = unit != &units->unit[0] && unit != &units->unit[units->count - 1];
    const bool based = block && units->base != SW_BASE_TYPED;
    int64_t frozen = 0;
    SW_TRY(check_joined(unit));
    for (int64_t t = 0; t < unit->tensor_count; t++)
        frozen += unit->tensor[t].frozen;
    const struct form form = {.narrow = units->optimizer != SW_OPTIMIZER_FP32,
                              .parted = frozen > 0 && (based || frozen < unit->tensor_count),
                              .based = based,
                              .align_elems = sw_max_i64(SW_TENSOR_ALIGN_ELEMS, units->tensor_align_elems)};
    SW_TRY(lay_out(unit, form));
    SW_TRY(check_rows(units, unit));
    unit->trained_grain = frozen == unit->tensor_count ? unit->grains : unit->trained_grain;
    unit->run = calloc((size_t)unit->tensor_count + 1, sizeof *unit->run);
    if (unit->run == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the decay runs of %s", unit->name);
    join_runs(unit);
    int64_t matrices = 0;
    for (int64_t t = 0; t < unit->tensor_count; t++)
        matrices += unit->tensor[t].muon_count;
    if (matrices == 0)
        return SW_OK;
    unit->muon = calloc((size_t)matrices, sizeof *unit->muon);
    if (unit->muon == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the matrices of %s", unit->name);
    list_muon(unit);
    return SW_OK;
}

int64_t sw_units_muon_scratch_bytes(const struct sw_units *units) {
    int64_t most = 0;
    for (int64_t u = 0; u < units->count; u++)
        if (sw_unit_has_muon(&units->unit[u]))
            most = sw_max_i64(most, sw_muon_scratch_bytes(units->unit[u].muon, units->unit[u].muon_count));
    return most;
}

/* Returns the number of a unit's matrices of Muon that begin before an element. */
static int64_t muon_before(const struct sw_unit *unit, int64_t elem) {
    int64_t first = 0, end = unit->muon_count;
    while (first < end) {
        const int64_t middle = first + (end - first) / 2;
        if (unit->muon[middle].first_elem < elem)
            first = middle + 1;
        else
            end = middle;
    }
    return first;
}

/* Returns the matrix of Muon that begins before a grain and ends behind where the grain begins; NULL: none does. */
static const struct sw_muon_tensor *muon_across(const struct sw_unit *unit, int64_t grain) {
    const int64_t elem = grain * SW_GRAIN_ELEMS, before = muon_before(unit, elem);
    const struct sw_muon_tensor *last = before > 0 ? &unit->muon[before - 1] : NULL;
    return last != NULL && last->first_elem + last->outputs * last->inputs > elem ? last : NULL;
}

bool sw_unit_is_border(const struct sw_unit *unit, int64_t grain) {
    return muon_across(unit, grain) == NULL;
}

/* Returns the border before or behind a grain. Multiples of the golden ratio lie evenly between whole numbers, however
 * many there are, and all ends of a unit compare with the same one, so that their order stays. */
static int64_t border_near(const struct sw_unit *unit, int64_t number, int64_t grain) {
    static const uint64_t golden = 0x9e3779b9; /* the fraction of the golden ratio, in 32 bits */
    int64_t before = grain, behind = grain;
    const struct sw_muon_tensor *across;
    while ((across = muon_across(unit, before)) != NULL)
        before = across->first_elem / SW_GRAIN_ELEMS;
    while ((across = muon_across(unit, behind)) != NULL)
        behind = sw_div_up(across->first_elem + across->outputs * across->inputs, SW_GRAIN_ELEMS);
    const int64_t turn = (int64_t)((uint64_t)number * golden % (UINT64_C(1) << 32));
    return turn * (behind - before) < (grain - before) * (INT64_C(1) << 32) ? behind : before;
}

struct sw_span sw_unit_shard(const struct sw_unit *unit, int64_t number, int ranks, int rank) {
    const int64_t trained = unit->trained_grain < unit->grains ? unit->trained_grain : unit->base_grains;
    struct sw_span shard = sw_shard(unit->grains - trained, ranks, rank);
    shard.first_grain += trained;
    if (!sw_unit_has_muon(unit) || ranks == 1)
        return shard;
    const int64_t first = border_near(unit, number, shard.first_grain);
    return (struct sw_span){.first_grain = first,
                            .grains = border_near(unit, number, shard.first_grain + shard.grains) - first};
}

int64_t sw_unit_most_shard_grains(const struct sw_unit *unit, int64_t number, int ranks) {
    int64_t most = sw_unit_shard(unit, number, ranks, 0).grains; /* no even shard is larger than the first one */
    for (int rank = 1; rank < ranks && sw_unit_has_muon(unit); rank++)
        most = sw_max_i64(most, sw_unit_shard(unit, number, ranks, rank).grains);
    return most;
}

const struct sw_muon_tensor *sw_unit_muon_in(const struct sw_unit *unit, struct sw_span span, int64_t *count) {
    const int64_t first = muon_before(unit, span.first_grain * SW_GRAIN_ELEMS);
    assert(sw_unit_is_border(unit, span.first_grain) && sw_unit_is_border(unit, span.first_grain + span.grains));
    *count = muon_before(unit, (span.first_grain + span.grains) * SW_GRAIN_ELEMS) - first;
    return *count > 0 ? &unit->muon[first] : NULL;
}

void sw_units_join_runs(struct sw_units *units) {
    for (int64_t u = 0; u < units->count; u++) {
        join_runs(&units->unit[u]);
        list_muon(&units->unit[u]);
    }
}

sw_status sw_units_seal(struct sw_units *units) {
    for (int64_t u = 0; u < units->count; u++) {
        assert(units->unit[u].tensor_count > 0);
        SW_TRY(seal_unit(units, &units->unit[u]));
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

int64_t sw_units_frozen_parameters(const struct sw_units *units) {
    int64_t parameters = 0;
    for (int64_t u = 0; u < units->count; u++)
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++)
            parameters += units->unit[u].tensor[t].frozen ? units->unit[u].tensor[t].elems : 0;
    return parameters;
}

int64_t sw_units_frozen_grains(const struct sw_units *units) {
    int64_t grains = 0;
    for (int64_t u = 0; u < units->count; u++)
        grains += units->unit[u].trained_grain;
    return grains;
}

int64_t sw_units_frozen(const struct sw_units *units) {
    int64_t count = 0;
    for (int64_t u = 0; u < units->count; u++)
        count += units->unit[u].trained_grain > 0;
    return count;
}

int64_t sw_units_base_grains(const struct sw_units *units) {
    int64_t grains = 0;
    for (int64_t u = 0; u < units->count; u++)
        grains += units->unit[u].base_grains;
    return grains;
}

int64_t sw_units_all_base_bytes(const struct sw_units *units) {
    int64_t bytes = 0;
    for (int64_t u = 0; u < units->count; u++)
        bytes += sw_units_base_bytes(units, u);
    return bytes;
}
