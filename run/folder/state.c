/* The state of a run, read by the names of tensors. */
#include "run/folder/state.h"

#include "core/size.h"
#include "kernels/moments.h"
#include "model/model.h"

#include <stdlib.h>
#include <string.h>

/* The state of a grain in fp32, laid out like a record. */
struct sw_wide_state {
    float master[SW_GRAIN_ELEMS], m[SW_GRAIN_ELEMS], v[SW_GRAIN_ELEMS];
};
static_assert(sizeof(struct sw_wide_state) == sizeof(float) * 3 * SW_GRAIN_ELEMS, "the parts follow each other");

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

struct sw_state_reader {
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
static const struct piece *first_piece(const struct sw_state_reader *self, const char *name) {
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
static const struct piece *find_piece(const struct sw_state_reader *self, const char *name, int64_t whole,
                                      int64_t *elem, int64_t *run) {
    const struct piece *end = self->piece + self->pieces;
    for (const struct piece *piece = first_piece(self, name); piece < end && strcmp(piece->tensor->name, name) == 0;
         piece++) {
        *elem = sw_tensor_from_whole(piece->tensor, whole, run);
        if (*elem >= 0)
            return piece;
    }
    return NULL;
}

/* Copies the state of at least one element and at most `most`, from element `whole` of a tensor on, to element `to` of
 * the parts. */
static sw_status take(struct sw_state_reader *self, const char *name, int64_t whole, int64_t most,
                      float *const out[SW_STATE_PARTS], int64_t to, int64_t *out_count) {
    const struct sw_wide_state *state;
    int64_t elem, run;
    const struct piece *piece = find_piece(self, name, whole, &elem, &run);
    if (piece == NULL)
        return sw_fail(SW_ERR_CORRUPT, "no store of the run has element %lld of %s", (long long)whole, name);
    const int64_t from = piece->tensor->offset + elem, within = from % SW_GRAIN_ELEMS;
    run = sw_min_i64(sw_min_i64(run, most), SW_GRAIN_ELEMS - within);
    SW_TRY(old_state(piece->member, piece->unit, from / SW_GRAIN_ELEMS, &state));
    const float *const parts[] = {state->master, state->m, state->v};
    for (int part = 0; part < SW_STATE_PARTS; part++)
        if (out[part] != NULL)
            memcpy(out[part] + to, parts[part] + within, (size_t)run * sizeof(float));
    *out_count = run;
    return SW_OK;
}

sw_status sw_state_read(struct sw_state_reader *self, const char *tensor, int64_t first, int64_t count,
                        float *const out[SW_STATE_PARTS]) {
    for (int64_t done = 0, taken; done < count; done += taken)
        SW_TRY(take(self, tensor, first + done, count - done, out, done, &taken));
    return SW_OK;
}

static sw_status fail_memory(void) {
    return sw_fail(SW_ERR_NOMEM, "no memory to read the state of a run's stores");
}

/* Opens one of a member's stores. The set owns it. */
static sw_status open_old_store(const struct sw_state_spec *given, struct sw_store *store, struct member *member) {
    if (!sw_run_store_is_of(store, member->units))
        return sw_fail(SW_ERR_CORRUPT, "the store belongs to another model than run.json");
    if (given->step != SW_STORE_NEWEST && sw_store_last_commit(store)->step != given->step)
        return sw_fail(SW_ERR_CORRUPT, "the stores of the run have no commit of step %lld, the newest of all ranks",
                       (long long)given->step);
    SW_TRY(sw_store_lane_open(store, IO_DEPTH, &member->lane[member->stores]));
    member->store[member->stores++] = store;
    return SW_OK;
}

/* Prepares the old state of a tensor rank. The ranks of a group are neighbours. */
static sw_status open_member(const struct sw_state_spec *given, struct sw_state_reader *self, int tensor_rank) {
    struct member *member = &self->member[tensor_rank];
    const struct sw_run *run = given->run;
    const size_t most_stores = (size_t)(self->stores.count / self->members);
    SW_TRY(self->members > 1 ? sw_model_rank_units(&run->config, self->members, tensor_rank, run->tiles, run->optimizer,
                                                   &member->units)
                             : sw_model_units(&run->config, run->tiles, run->optimizer, NULL, &member->units));
    member->store = calloc(most_stores, sizeof(struct sw_store *));
    member->lane = calloc(most_stores, sizeof(struct sw_store_lane *));
    if (member->store == NULL || member->lane == NULL)
        return fail_memory();
    member->read_unit = -1;
    for (int k = 0; k < KEPT; k++)
        member->kept[k].unit = -1;
    void *read = NULL;
    const int64_t read_bytes = READ_GRAINS * sw_optimizer_grain_bytes(run->optimizer);
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

static sw_status list_pieces(struct sw_state_reader *self) {
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

static sw_status open_stores(const struct sw_state_spec *given, struct sw_state_reader *self) {
    SW_TRY(sw_run_open_stores(given->folder, given->run, NULL, &self->stores));
    self->member = calloc((size_t)given->run->tensor_ranks, sizeof *self->member);
    if (self->member == NULL)
        return fail_memory();
    self->members = (int)given->run->tensor_ranks;
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

sw_status sw_state_open(const struct sw_state_spec *given, struct sw_state_reader **out) {
    struct sw_state_reader *self = calloc(1, sizeof *self);
    const sw_status status = self == NULL ? fail_memory() : open_stores(given, self);
    if (status == SW_OK)
        *out = self;
    else
        sw_state_close(self);
    return status;
}

void sw_state_close(struct sw_state_reader *self) {
    if (self == NULL)
        return;
    for (int m = 0; m < self->members; m++)
        close_member(&self->member[m]);
    free(self->member);
    free(self->piece);
    sw_store_set_close(&self->stores);
    free(self);
}

const struct sw_store_commit *sw_state_commit(const struct sw_state_reader *self) {
    return sw_store_last_commit(self->stores.store[0]);
}
