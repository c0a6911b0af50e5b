/* Lays out the optimizer state of a run again: in another format, or for other tensor groups. The elements of a tensor
 * then are in other grains, units and stores, so state moves tensor by tensor.
 *
 * The new store is filled in its own order, grain by grain; for each run of elements the old state is looked up by the
 * tensor's name. Filling in the order of the old stores would read each of them once, but would write grains in pieces.
 * Old grains are read several at a time and a few stay widened to fp32, which suffices because neighbours are mostly
 * neighbours in both layouts.
 *
 * State passes through fp32, so any format converts to any other with one rounding, to nearest: stochastic rounding
 * belongs to a step, and a conversion is not one. */
#include "core/size.h"
#include "kernels/moments.h"
#include "model/model.h"
#include "run/folder/run.h"
#include "run/stores/rank_store_private.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* The state of a grain in fp32, laid out like a record. */
struct sw_wide_state {
    float master[SW_GRAIN_ELEMS], m[SW_GRAIN_ELEMS], v[SW_GRAIN_ELEMS];
};
static_assert(sizeof(struct sw_wide_state) == sizeof(float) * 3 * SW_GRAIN_ELEMS, "the parts follow each other");

struct sw_old_state;

/* Reads the optimizer state of a run's old stores by the names of tensors, whichever units of a tensor rank have them.
 */

/* Reads many consecutive grains at once, and keeps the last few widened. */
enum { READ_GRAINS = 16, KEPT = 4, IO_DEPTH = 32 };

/* One old grain, widened. */
struct kept {
    int64_t unit, grain; /* unit -1: none */
    struct sw_wide_state state;
};

/* The old state of one tensor rank: its units, and the stores that divide them. */
struct member {
    struct sw_units *units;
    struct sw_store **store; /* `stores` entries, borrowed from the set of all old stores */
    struct sw_store_lane **lane;
    int stores;
    char *read;                                /* room for READ_GRAINS grains */
    int64_t read_unit, read_first, read_count; /* grains in `read`; read_unit -1: none */
    struct kept kept[KEPT];
    int next_kept;
};

/* The part of a tensor that a member has in one unit. */
struct piece {
    struct member *member;
    int64_t unit;
    const struct sw_tensor *tensor;
};

struct sw_old_state {
    struct sw_store_set stores;
    int members;
    struct member *member;
    struct piece *piece; /* pieces of all members, by the names of their tensors */
    int64_t pieces;
};

/* Returns which of a member's stores has a grain, or -1. */
static int holder_of(const struct member *member, int64_t unit, int64_t grain) {
    for (int s = 0; s < member->stores; s++) {
        const int64_t within = grain - sw_store_unit_first(member->store[s], unit);
        if (within >= 0 && within < sw_store_unit_grains(member->store[s], unit))
            return s;
    }
    return -1;
}

/* Reads a grain, and those that follow it if the grain before was read last. */
static sw_status read_grains(struct member *member, int64_t unit, int64_t grain) {
    const bool follows = unit == member->read_unit && grain == member->read_first + member->read_count;
    const int s = holder_of(member, unit, grain);
    if (s < 0)
        return sw_fail(SW_ERR_CORRUPT, "no store of the run has grain %lld of unit %lld", (long long)grain,
                       (long long)unit);
    const struct sw_store *store = member->store[s];
    const struct sw_store_commit *commit = sw_store_last_commit(store);
    const int64_t end = sw_store_unit_first(store, unit) + sw_store_unit_grains(store, unit);
    const struct sw_store_transfer transfer = {.kind = SW_STORE_OPTIMIZER,
                                               .generation = commit->generation,
                                               .unit = unit,
                                               .first_grain = grain,
                                               .grains =
                                                   sw_min_i64(follows || grain == 0 ? READ_GRAINS : 1, end - grain),
                                               .buf = member->read,
                                               .step = commit->step};
    member->read_unit = -1;
    SW_TRY(sw_store_transfer(member->lane[s], &transfer));
    member->read_unit = unit;
    member->read_first = grain;
    member->read_count = transfer.grains;
    return SW_OK;
}

/* Returns in *out the old state of a grain. It is valid until the next call. */
static sw_status old_state(struct member *member, int64_t unit, int64_t grain, const struct sw_wide_state **out) {
    for (int k = 0; k < KEPT; k++)
        if (member->kept[k].unit == unit && member->kept[k].grain == grain) {
            *out = &member->kept[k].state;
            return SW_OK;
        }
    if (unit != member->read_unit || grain < member->read_first || grain >= member->read_first + member->read_count)
        SW_TRY(read_grains(member, unit, grain));
    struct kept *kept = &member->kept[member->next_kept];
    member->next_kept = (member->next_kept + 1) % KEPT;
    const sw_optimizer_format format = member->units->optimizer;
    const char *record = member->read + (grain - member->read_first) * sw_optimizer_grain_bytes(format);
    sw_record_to_fp32(format, grain >= member->units->unit[unit].wide_grain, record, kept->state.master);
    kept->unit = unit;
    kept->grain = grain;
    *out = &kept->state;
    return SW_OK;
}

/* Returns the first piece of a tensor, or the position where it would be. */
static const struct piece *first_piece(const struct sw_old_state *self, const char *name) {
    int64_t low = 0, high = self->pieces;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (strcmp(self->piece[middle].tensor->name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return self->piece + low;
}

/* Finds the piece that holds element `whole` of a tensor. *elem is the element in the piece's unit; from there, *run
 * elements are consecutive in both. Of replicas it returns the first tensor rank's. NULL: no piece holds the element.
 */
static const struct piece *find_piece(const struct sw_old_state *self, const char *name, int64_t whole, int64_t *elem,
                                      int64_t *run) {
    const struct piece *end = self->piece + self->pieces;
    for (const struct piece *piece = first_piece(self, name); piece < end && strcmp(piece->tensor->name, name) == 0;
         piece++) {
        *elem = sw_tensor_from_whole(piece->tensor, whole, run);
        if (*elem >= 0)
            return piece;
    }
    return NULL;
}

/* Copies the state of elements [whole, whole + *out_count) of a whole tensor to element `to` of *out: at least one
 * element and at most `most`. Calls that walk through a tensor in order are fast. */
static sw_status old_state_take(struct sw_old_state *self, const char *name, int64_t whole, int64_t most,
                                struct sw_wide_state *out, int64_t to, int64_t *out_count) {
    const struct sw_wide_state *state;
    int64_t elem, run;
    const struct piece *piece = find_piece(self, name, whole, &elem, &run);
    if (piece == NULL)
        return sw_fail(SW_ERR_CORRUPT, "no store of the run has element %lld of %s", (long long)whole, name);
    const int64_t from = piece->tensor->offset + elem, within = from % SW_GRAIN_ELEMS;
    run = sw_min_i64(sw_min_i64(run, most), SW_GRAIN_ELEMS - within);
    SW_TRY(old_state(piece->member, piece->unit, from / SW_GRAIN_ELEMS, &state));
    memcpy(out->master + to, state->master + within, (size_t)run * sizeof(float));
    memcpy(out->m + to, state->m + within, (size_t)run * sizeof(float));
    memcpy(out->v + to, state->v + within, (size_t)run * sizeof(float));
    *out_count = run;
    return SW_OK;
}

static sw_status fail_memory(void) {
    return sw_fail(SW_ERR_NOMEM, "no memory to read the state of a run's stores");
}

/* Opens one of a member's stores. The set owns it. */
static sw_status open_old_store(const struct sw_rank_conversion *given, struct sw_store *store, struct member *member) {
    if (!sw_run_store_is_of(store, member->units))
        return sw_fail(SW_ERR_CORRUPT, "the store belongs to another model than run.json");
    if (sw_store_last_commit(store)->step != given->step)
        return sw_fail(SW_ERR_CORRUPT, "the stores of the run have no commit of step %lld, the newest of all ranks",
                       (long long)given->step);
    SW_TRY(sw_store_lane_open(store, IO_DEPTH, &member->lane[member->stores]));
    member->store[member->stores++] = store;
    return SW_OK;
}

/* Prepares the old state of a tensor rank. The ranks of a group are neighbours. */
static sw_status open_member(const struct sw_rank_conversion *given, struct sw_old_state *self, int tensor_rank) {
    struct member *member = &self->member[tensor_rank];
    const struct sw_run *run = given->run, *before = given->before;
    const size_t most_stores = (size_t)(self->stores.count / self->members);
    SW_TRY(self->members > 1 ? sw_model_rank_units(&run->config, self->members, tensor_rank, before->tiles,
                                                   before->optimizer, &member->units)
                             : sw_model_units(&run->config, before->tiles, before->optimizer, &member->units));
    member->store = calloc(most_stores, sizeof(struct sw_store *));
    member->lane = calloc(most_stores, sizeof(struct sw_store_lane *));
    if (member->store == NULL || member->lane == NULL)
        return fail_memory();
    member->read_unit = -1;
    for (int k = 0; k < KEPT; k++)
        member->kept[k].unit = -1;
    void *read = NULL;
    const int64_t read_bytes = READ_GRAINS * sw_optimizer_grain_bytes(before->optimizer);
    if (posix_memalign(&read, SW_BUFFER_ALIGN_BYTES, (size_t)read_bytes) != 0)
        return fail_memory();
    member->read = read;
    for (int s = tensor_rank; s < self->stores.count; s += self->members)
        SW_TRY(open_old_store(given, self->stores.store[s], member));
    return SW_OK;
}

/* Orders pieces by name; pieces of one tensor by tensor rank and unit. */
static int compare_pieces(const void *a, const void *b) {
    const struct piece *one = a, *other = b;
    const int names = strcmp(one->tensor->name, other->tensor->name);
    if (names != 0)
        return names;
    if (one->member != other->member)
        return one->member < other->member ? -1 : 1;
    return one->unit < other->unit ? -1 : one->unit > other->unit;
}

static sw_status list_pieces(struct sw_old_state *self) {
    int64_t most = 0;
    for (int m = 0; m < self->members; m++)
        for (int64_t unit = 0; unit < self->member[m].units->count; unit++)
            most += self->member[m].units->unit[unit].tensor_count;
    self->piece = calloc((size_t)most, sizeof *self->piece);
    if (self->piece == NULL)
        return fail_memory();
    for (int m = 0; m < self->members; m++)
        for (int64_t unit = 0; unit < self->member[m].units->count; unit++) {
            const struct sw_unit *from = &self->member[m].units->unit[unit];
            for (int64_t t = 0; t < from->tensor_count; t++)
                self->piece[self->pieces++] = (struct piece){&self->member[m], unit, &from->tensor[t]};
        }
    qsort(self->piece, (size_t)self->pieces, sizeof *self->piece, compare_pieces);
    return SW_OK;
}

static sw_status open_stores(const struct sw_rank_conversion *given, struct sw_old_state *self) {
    SW_TRY(sw_run_open_stores(given->folder, given->before, NULL, &self->stores));
    self->member = calloc((size_t)given->before->tensor_ranks, sizeof *self->member);
    if (self->member == NULL)
        return fail_memory();
    self->members = (int)given->before->tensor_ranks;
    for (int m = 0; m < self->members; m++)
        SW_TRY(open_member(given, self, m));
    return list_pieces(self);
}

static void close_member(struct member *member) {
    for (int s = 0; s < member->stores; s++)
        sw_store_lane_close(member->lane[s]);
    free(member->lane);
    free(member->store);
    free(member->read);
    sw_units_destroy(member->units);
}

static void old_state_close(struct sw_old_state *self);

/* Opens the old stores for reading, each at the conversion's step. The caller closes it; `given` is not needed
 * afterwards. SW_ERR_CORRUPT: a store is of another model, or lacks the step. */
static sw_status old_state_open(const struct sw_rank_conversion *given, struct sw_old_state **out) {
    struct sw_old_state *self = calloc(1, sizeof *self);
    const sw_status status = self == NULL ? fail_memory() : open_stores(given, self);
    if (status == SW_OK)
        *out = self;
    else
        old_state_close(self);
    return status;
}

static void old_state_close(struct sw_old_state *self) {
    if (self == NULL)
        return;
    for (int m = 0; m < self->members; m++)
        close_member(&self->member[m]);
    free(self->member);
    free(self->piece);
    sw_store_set_close(&self->stores);
    free(self);
}

/* Returns the commit at which the stores are open. */
static const struct sw_store_commit *old_state_commit(const struct sw_old_state *self) {
    return sw_store_last_commit(self->stores.store[0]);
}

/* Copies the grains that two stores both hold from one to the other. */

enum { BOX_GRAINS = 16, BOXES = 2 };

/* One buffer is read while the other is written. */
static sw_status copy_run(struct sw_store_lane *from, struct sw_store_lane *to, const struct sw_store_transfer *run,
                          char *const boxes[BOXES], struct sw_ranks *ranks) {
    for (int64_t done = 0, turn = 0; done < run->grains; done += BOX_GRAINS, turn++) {
        struct sw_store_transfer box = *run;
        box.first_grain += done;
        box.grains = sw_min_i64(BOX_GRAINS, run->grains - done);
        box.buf = boxes[turn % BOXES];
        SW_TRY(sw_store_transfer(from, &box));
        while (sw_store_outstanding(to) > 0) {
            uint64_t tag;
            int count;
            SW_TRY(sw_store_reap(to, true, &tag, 1, &count));
        }
        box.write = true;
        box.generation = 0;
        SW_TRY(sw_store_submit(to, &box));
        sw_ranks_tick(ranks);
    }
    while (sw_store_outstanding(to) > 0) {
        uint64_t tag;
        int count;
        SW_TRY(sw_store_reap(to, true, &tag, 1, &count));
    }
    return SW_OK;
}

static sw_status copy_units(struct sw_store *from, struct sw_store *to, struct sw_store_lane *const lanes[2],
                            char *const boxes[BOXES], struct sw_ranks *ranks, int64_t *grains) {
    const struct sw_store_commit *commit = sw_store_last_commit(from);
    for (int64_t unit = 0; unit < sw_store_unit_count(to); unit++) {
        if (sw_store_unit_whole_grains(from, unit) != sw_store_unit_whole_grains(to, unit))
            return sw_fail(SW_ERR_CORRUPT, "the store belongs to another model than run.json");
        const int64_t first = sw_max_i64(sw_store_unit_first(from, unit), sw_store_unit_first(to, unit));
        const int64_t end = sw_min_i64(sw_store_unit_first(from, unit) + sw_store_unit_grains(from, unit),
                                       sw_store_unit_first(to, unit) + sw_store_unit_grains(to, unit));
        if (end <= first)
            continue;
        const struct sw_store_transfer run = {.generation = commit->generation,
                                              .unit = unit,
                                              .first_grain = first,
                                              .grains = end - first,
                                              .step = commit->step};
        SW_TRY(copy_run(lanes[0], lanes[1], &run, boxes, ranks));
        *grains += end - first;
    }
    return SW_OK;
}

sw_status sw_rank_copy(struct sw_store *from, struct sw_store *to, struct sw_ranks *ranks, int64_t *grains) {
    struct sw_store_lane *lanes[2] = {NULL, NULL};
    const int64_t box_bytes = BOX_GRAINS * sw_optimizer_grain_bytes(sw_store_optimizer(from));
    void *memory = NULL;
    sw_status status = SW_OK;
    if (sw_store_unit_count(from) != sw_store_unit_count(to))
        return sw_fail(SW_ERR_CORRUPT, "the store belongs to another model than run.json");
    if (posix_memalign(&memory, SW_BUFFER_ALIGN_BYTES, (size_t)(BOXES * box_bytes)) != 0)
        return sw_fail(SW_ERR_NOMEM, "no memory to copy a store");
    char *const boxes[BOXES] = {memory, (char *)memory + box_bytes};
    SW_TRY_GOTO(sw_store_lane_open(from, IO_DEPTH, &lanes[0]), end);
    SW_TRY_GOTO(sw_store_lane_open(to, IO_DEPTH, &lanes[1]), end);
    status = copy_units(from, to, lanes, boxes, ranks, grains);
end:
    sw_store_lane_close(lanes[0]);
    sw_store_lane_close(lanes[1]);
    free(memory);
    return status;
}

enum { WRITE_GRAINS = 16 };

struct converter {
    struct sw_ranks *ranks;
    struct sw_old_state *old;
    struct sw_units *to;
    struct sw_store_lane *lane;
    char *written; /* room for WRITE_GRAINS grains of new state */
    struct sw_wide_state made;
};

/* A grain of the new layout while it is filled. */
struct making {
    struct converter *self;
    const struct sw_unit *unit;
};

/* Takes a run of elements of a tensor into the grain, starting at its element `at`. */
static sw_status take_run(void *context, int64_t tensor, int64_t whole, int64_t run, int64_t at) {
    const struct making *making = context;
    struct converter *self = making->self;
    const char *name = making->unit->tensor[tensor].name;
    for (int64_t done = 0, taken; done < run; done += taken)
        SW_TRY(old_state_take(self->old, name, whole + done, run - done, &self->made, at + done, &taken));
    return SW_OK;
}

static sw_status make_grain(struct converter *self, int64_t unit, int64_t grain, char *out) {
    const struct sw_moment_rounding nearest = {.rounding = SW_ROUND_NEAREST};
    struct making making = {.self = self, .unit = &self->to->unit[unit]};
    memset(&self->made, 0, sizeof self->made);
    SW_TRY(sw_unit_walk(making.unit, grain * SW_GRAIN_ELEMS, SW_GRAIN_ELEMS, take_run, &making));
    sw_record_from_fp32(self->to->optimizer, grain >= making.unit->wide_grain, &nearest, self->made.master, out);
    return SW_OK;
}

static sw_status convert_unit(struct converter *self, struct sw_store *store, int64_t unit) {
    const int64_t end = sw_store_unit_first(store, unit) + sw_store_unit_grains(store, unit);
    const int64_t grain_bytes = sw_optimizer_grain_bytes(self->to->optimizer);
    for (int64_t first = sw_store_unit_first(store, unit), count; first < end; first += count) {
        count = sw_min_i64(WRITE_GRAINS, end - first);
        for (int64_t g = 0; g < count; g++)
            SW_TRY(make_grain(self, unit, first + g, self->written + g * grain_bytes));
        const struct sw_store_transfer transfer = {.write = true,
                                                   .kind = SW_STORE_OPTIMIZER,
                                                   .unit = unit,
                                                   .first_grain = first,
                                                   .grains = count,
                                                   .buf = self->written};
        SW_TRY(sw_store_transfer(self->lane, &transfer));
        sw_ranks_tick(self->ranks);
    }
    return SW_OK;
}

/* Returns the units of this rank's new store. */
static sw_status new_units(const struct sw_run *run, sw_optimizer_format format, struct sw_units **out) {
    const int tensor_ranks = (int)sw_settings_tensor_ranks(&run->settings);
    return tensor_ranks > 1
               ? sw_model_rank_units(&run->config, tensor_ranks, (int)sw_settings_tensor_rank(&run->settings),
                                     run->settings.tiles, format, out)
               : sw_model_units(&run->config, run->settings.tiles, format, out);
}

static sw_status prepare(struct converter *self, const struct sw_rank_conversion *given, struct sw_store *store) {
    void *written = NULL;
    SW_TRY(new_units(given->run, sw_store_optimizer(store), &self->to));
    if (!sw_run_store_is_of(store, self->to))
        return sw_fail(SW_ERR_INTERNAL, "the new store is of another model");
    const int64_t bytes = WRITE_GRAINS * sw_optimizer_grain_bytes(self->to->optimizer);
    if (posix_memalign(&written, SW_BUFFER_ALIGN_BYTES, (size_t)bytes) != 0)
        return sw_fail(SW_ERR_NOMEM, "no memory to lay out a store anew");
    self->written = written;
    SW_TRY(old_state_open(given, &self->old));
    return sw_store_lane_open(store, IO_DEPTH, &self->lane);
}

static sw_status convert(struct converter *self, const struct sw_rank_conversion *given, struct sw_store *store) {
    SW_TRY(prepare(self, given, store));
    for (int64_t unit = 0; unit < self->to->count; unit++)
        SW_TRY(convert_unit(self, store, unit));
    *given->commit = *old_state_commit(self->old);
    return SW_OK;
}

sw_status sw_rank_convert(const struct sw_rank_conversion *given, struct sw_store *store) {
    struct converter *self = calloc(1, sizeof *self);
    if (self == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to lay out a store anew");
    self->ranks = given->ranks;
    const sw_status status = convert(self, given, store);
    sw_store_lane_close(self->lane);
    old_state_close(self->old);
    sw_units_destroy(self->to);
    free(self->written);
    free(self);
    return status;
}
