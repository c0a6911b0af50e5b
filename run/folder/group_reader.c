/* Puts the parts of tensor ranks together to whole layers, as weights for an engine or an export.
 *
 * Both sides are lists of named tensors whose elements keep their order in every cut. For a range of a whole tensor,
 * each rank is asked for its elements within the range, found by binary search, and they are copied into place. No
 * table of all cuts is needed, and any number of ranks and tiles can be read as any other number of tiles.
 *
 * Replicas are equal on all ranks, so the first rank's is taken. */
#include "run/folder/group_reader.h"

#include "core/size.h"
#include "model/model.h"
#include "run/folder/store_reader.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Grains put together at once, and the largest number of them read from one rank. */
enum { WINDOW_GRAINS = 32, WINDOW_ELEMS = WINDOW_GRAINS * SW_GRAIN_ELEMS };

/* One tensor rank. */
struct member {
    struct sw_group_part part;
    struct sw_units *units;         /* owned: the units of `part`; NULL: the caller owns them */
    struct sw_store_reader *reader; /* reads the stores that hold the masters; NULL: the masters come from elsewhere */
};

struct sw_group_reader {
    const struct sw_units *units; /* borrowed: the units as which the weights are read */
    int64_t layers;
    int ranks;
    struct member *member;
    float *window, *part; /* elements [first, first + count) of a whole unit; and one rank's share of a piece of them */
    int64_t unit, first, count;
};

static sw_status open_member(struct sw_group_reader *self, struct sw_store_set *stores, int rank,
                             const struct sw_run *run) {
    struct member *member = &self->member[rank];
    struct sw_store_set own = {0};
    SW_TRY(sw_model_rank_units(&run->config, self->ranks, rank, run->tiles, self->units->optimizer, &member->units));
    own.store = calloc((size_t)(stores->count / self->ranks), sizeof(struct sw_store *));
    if (own.store == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read the stores");
    bool same = true;
    for (int s = rank; s < stores->count; s += self->ranks) {
        same = same && sw_run_store_is_of(stores->store[s], member->units);
        own.store[own.count++] = stores->store[s];
        stores->store[s] = NULL;
    }
    if (!same) {
        sw_store_set_close(&own);
        return sw_fail(SW_ERR_CORRUPT, "the stores were made for another model than run.json describes");
    }
    SW_TRY(sw_store_reader_open(&own, member->units, run->tiles, &member->reader));
    member->part = (struct sw_group_part){.units = member->units, .load = sw_store_reader_load(member->reader)};
    assert(member->part.load.most_grains > 1);
    return SW_OK;
}

static sw_status make(int64_t ranks, int64_t layers, const struct sw_units *units, struct sw_group_reader **out) {
    const size_t window_bytes = (size_t)WINDOW_ELEMS * sizeof(float);
    struct sw_group_reader *self = *out = calloc(1, sizeof *self);
    if (self == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read the parts of a tensor group");
    *self = (struct sw_group_reader){.units = units, .layers = layers, .ranks = (int)ranks, .unit = -1};
    self->member = calloc((size_t)ranks, sizeof *self->member);
    self->window = malloc(window_bytes);
    self->part = malloc(window_bytes);
    if (self->member == NULL || self->window == NULL || self->part == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read the parts of a tensor group");
    return SW_OK;
}

/* Gives an opened reader to the caller, or closes one whose opening failed. */
static sw_status hand_over(struct sw_group_reader *self, sw_status status, struct sw_group_reader **out) {
    if (status == SW_OK)
        *out = self;
    else
        sw_group_reader_close(self);
    return status;
}

sw_status sw_group_reader_open(struct sw_store_set *stores, const struct sw_run *run, const struct sw_units *units,
                               struct sw_group_reader **out) {
    struct sw_group_reader *self;
    sw_status status = make(run->tensor_ranks, run->config.layers, units, &self);
    assert(stores->count % run->tensor_ranks == 0);
    for (int rank = 0; status == SW_OK && rank < run->tensor_ranks; rank++)
        status = open_member(self, stores, rank, run);
    sw_store_set_close(stores); /* the stores that no member has taken */
    return hand_over(self, status, out);
}

sw_status sw_group_reader_join(const struct sw_group_part *parts, int ranks, int64_t layers,
                               const struct sw_units *units, struct sw_group_reader **out) {
    struct sw_group_reader *self;
    const sw_status status = make(ranks, layers, units, &self);
    for (int rank = 0; status == SW_OK && rank < ranks; rank++)
        self->member[rank].part = parts[rank];
    return hand_over(self, status, out);
}

void sw_group_reader_close(struct sw_group_reader *self) {
    if (self == NULL)
        return;
    for (int rank = 0; self->member != NULL && rank < self->ranks; rank++) {
        sw_store_reader_close(self->member[rank].reader);
        sw_units_destroy(self->member[rank].units);
    }
    free(self->member);
    free(self->window);
    free(self->part);
    free(self);
}

/* Consecutive units. */
struct run_of_units {
    int64_t first, end;
};

/* Returns which of `units` have a part of the reader's unit `unit`: those of the same layer. */
static struct run_of_units counterparts(const struct sw_group_reader *self, const struct sw_units *units,
                                        int64_t unit) {
    const int64_t head = self->units->count - 1;
    if (unit == 0)
        return (struct run_of_units){0, 1};
    if (unit == head)
        return (struct run_of_units){units->count - 1, units->count};
    const int64_t layer = (unit - 1) / ((head - 1) / self->layers), of_layer = (units->count - 2) / self->layers;
    return (struct run_of_units){1 + layer * of_layer, 1 + (layer + 1) * of_layer};
}

/* A tensor of a rank, and the unit that holds it. */
struct unit_tensor {
    int64_t unit;
    const struct sw_tensor *tensor;
};

static const struct sw_tensor *tensor_in(const struct sw_unit *unit, const char *name) {
    for (int64_t t = 0; t < unit->tensor_count; t++)
        if (strcmp(unit->tensor[t].name, name) == 0)
            return &unit->tensor[t];
    return NULL;
}

/* Returns the first element of a part that is element `whole` of the whole tensor or a later one. Parts keep the order.
 */
static int64_t first_from(const struct sw_tensor *tensor, int64_t whole) {
    int64_t low = 0, high = tensor->elems, run;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (sw_tensor_to_whole(tensor, middle, &run) < whole)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Reads elements [low, high) of a rank's tensor, and copies each to its position in `out`, which begins at element
 * `whole` of the whole tensor. */
static sw_status take_piece(const struct sw_group_reader *self, const struct sw_load *load, struct unit_tensor at,
                            int64_t low, int64_t high, int64_t whole, float *out) {
    const int64_t first = at.tensor->offset + low;
    if (load->prepare != NULL)
        SW_TRY(load->prepare(load->context, at.unit, first, high - low));
    SW_TRY(load->fill(load->context, at.unit, first, high - low, self->part));
    for (int64_t e = low, run; e < high; e += run) {
        const int64_t to = sw_tensor_to_whole(at.tensor, e, &run) - whole;
        run = sw_min_i64(run, high - e);
        memcpy(out + to, self->part + (e - low), (size_t)run * sizeof *out);
    }
    return SW_OK;
}

/* Reads a rank's share of elements [whole, whole + count) of a tensor, in pieces small enough for its reader: tiles
 * share its memory. A piece that begins within a grain touches one grain more. */
static sw_status take_part(const struct sw_group_reader *self, const struct sw_load *load, struct unit_tensor at,
                           int64_t whole, int64_t count, float *out) {
    const int64_t low = first_from(at.tensor, whole), high = first_from(at.tensor, whole + count);
    const int64_t most = load->most_grains > 0 ? (load->most_grains - 1) * SW_GRAIN_ELEMS : WINDOW_ELEMS;
    for (int64_t e = low; e < high; e += most)
        SW_TRY(take_piece(self, load, at, e, sw_min_i64(e + most, high), whole, out));
    return SW_OK;
}

/* Puts together a rank's share of elements of a tensor. Several of its units may have parts. */
static sw_status take_parts(struct sw_group_reader *self, const struct sw_group_part *part, const char *name,
                            int64_t whole, int64_t run, float *out, bool *out_replicated) {
    const struct run_of_units of = counterparts(self, part->units, self->unit);
    for (int64_t u = of.first; u < of.end; u++) {
        const struct unit_tensor at = {u, tensor_in(&part->units->unit[u], name)};
        if (at.tensor == NULL)
            continue;
        SW_TRY(take_part(self, &part->load, at, whole, run, out));
        *out_replicated = at.tensor->part.replicated;
    }
    return SW_OK;
}

/* Puts together elements of one tensor. The first rank's replica stands for all. */
static sw_status take_run(void *context, int64_t tensor, int64_t whole, int64_t run, int64_t at) {
    struct sw_group_reader *self = context;
    const char *name = self->units->unit[self->unit].tensor[tensor].name;
    bool replicated = false;
    for (int rank = 0; rank < self->ranks && !replicated; rank++)
        SW_TRY(take_parts(self, &self->member[rank].part, name, whole, run, self->window + at, &replicated));
    return SW_OK;
}

static sw_status prepare(void *context, int64_t unit, int64_t first, int64_t count) {
    struct sw_group_reader *self = context;
    assert(count <= WINDOW_ELEMS);
    self->unit = unit;
    self->first = first;
    self->count = count;
    memset(self->window, 0, (size_t)count * sizeof *self->window);
    return sw_unit_walk(&self->units->unit[unit], first, count, take_run, self);
}

static sw_status fill(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    const struct sw_group_reader *self = context;
    assert(unit == self->unit && first >= self->first && first + count <= self->first + self->count);
    memcpy(out, self->window + (first - self->first), (size_t)count * sizeof *out);
    return SW_OK;
}

struct sw_load sw_group_reader_load(struct sw_group_reader *self) {
    return (struct sw_load){.fill = fill, .prepare = prepare, .context = self, .most_grains = WINDOW_GRAINS};
}

int64_t sw_group_reader_bytes(const struct sw_group_reader *self) {
    int64_t bytes = 0;
    for (int rank = 0; rank < self->ranks; rank++)
        bytes += self->member[rank].reader == NULL ? 0 : sw_store_reader_bytes(self->member[rank].reader);
    return bytes;
}
