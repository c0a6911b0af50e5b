#include "run/gathered_masters.h"

#include "core/size.h"
#include "run/folder/group_reader.h"

#include <stdlib.h>
#include <string.h>

/* The most grains that ranks exchange at once. */
enum { GATHERED_GRAINS = 16 };
#define MASTER_BYTES (SW_GRAIN_ELEMS * (int64_t)sizeof(float))

/* The grains that rank 0 asks for, of the parts of one tensor rank; count 0 ends the gathering. */
struct request {
    int64_t tensor_rank, unit, first, count;
};

/* The parts of one tensor rank, as rank 0 reads them. */
struct part {
    struct sw_gathered_masters *masters;
    int64_t tensor_rank;
    const struct sw_units *units;
    struct sw_units *own; /* the units where they are not this rank's model's; else NULL */
};

struct sw_gathered_masters {
    struct sw_trainer *trainer;
    bool shared;         /* there are several ranks */
    bool failed;         /* some rank failed; all ranks know it */
    char *records;       /* optimizer state of GATHERED_GRAINS grains of this rank */
    float *all;          /* masters of GATHERED_GRAINS grains for each rank, in rank order */
    struct request held; /* on rank 0: the grains in its part of `all`; count 0: none */
    int64_t tensor_ranks;
    struct part *part;             /* on rank 0: one entry for each tensor rank; else NULL */
    struct sw_units *whole;        /* on rank 0: the units of whole layers; NULL: those of the model are whole */
    struct sw_group_reader *group; /* on rank 0: joins the parts; NULL: there is one part */
};

/* Copies masters of one tensor rank's parts, exchanging the grains that rank 0 does not hold. A sw_fill_function whose
 * context is a struct part. */
static sw_status fill_part(void *context, int64_t unit, int64_t first, int64_t count, float *out);

static struct sw_load load_of(struct part *part) {
    return (struct sw_load){.fill = fill_part, .context = part};
}

static sw_status make_part(struct sw_gathered_masters *self, int tensor_rank) {
    const struct sw_trainer *trainer = self->trainer;
    struct part *part = &self->part[tensor_rank];
    *part = (struct part){.masters = self, .tensor_rank = tensor_rank, .units = sw_model_get_units(trainer->model)};
    if (self->tensor_ranks == 1)
        return SW_OK;
    SW_TRY(sw_model_rank_units(&trainer->run.config, (int)self->tensor_ranks, tensor_rank, trainer->run.tiles,
                               part->units->optimizer, &part->own));
    part->units = part->own;
    return SW_OK;
}

/* Makes what rank 0 reads with. */
static sw_status make_parts(struct sw_gathered_masters *self) {
    const int ranks = (int)self->tensor_ranks;
    self->part = calloc((size_t)ranks, sizeof *self->part);
    struct sw_group_part *given = calloc((size_t)ranks, sizeof *given);
    sw_status status = self->part != NULL && given != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to export");
    for (int rank = 0; status == SW_OK && rank < ranks; rank++) {
        status = make_part(self, rank);
        given[rank] = (struct sw_group_part){.units = self->part[rank].units, .load = load_of(&self->part[rank])};
    }
    if (status == SW_OK && ranks > 1)
        status = sw_model_units(&self->trainer->run.config, 1, self->part[0].units->optimizer, &self->whole);
    if (status == SW_OK && ranks > 1)
        status = sw_group_reader_join(given, ranks, self->trainer->run.config.layers, self->whole, &self->group);
    free(given);
    return status;
}

static sw_status make(struct sw_gathered_masters *self) {
    const struct sw_trainer *trainer = self->trainer;
    self->shared = sw_ranks_count(trainer->ranks) > 1;
    self->tensor_ranks = sw_settings_tensor_ranks(&trainer->run.settings);
    self->records = malloc((size_t)sw_plan_optimizer_bytes(trainer->plan, GATHERED_GRAINS));
    self->all = calloc((size_t)sw_ranks_count(trainer->ranks), GATHERED_GRAINS * MASTER_BYTES);
    if (self->records == NULL || self->all == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to export");
    return sw_ranks_rank(trainer->ranks) == 0 ? make_parts(self) : SW_OK;
}

sw_status sw_gathered_masters_open(struct sw_trainer *trainer, struct sw_gathered_masters **out) {
    struct sw_gathered_masters *self = calloc(1, sizeof *self);
    sw_status status = self != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to export");
    if (self != NULL) {
        self->trainer = trainer;
        status = make(self);
    }
    *out = self;
    status = sw_ranks_agree_on_error(trainer->ranks, status);
    if (status != SW_OK)
        sw_gathered_masters_close(self);
    return status;
}

void sw_gathered_masters_close(struct sw_gathered_masters *self) {
    if (self == NULL)
        return;
    sw_group_reader_close(self->group);
    for (int64_t rank = 0; self->part != NULL && rank < self->tensor_ranks; rank++)
        sw_units_destroy(self->part[rank].own);
    sw_units_destroy(self->whole);
    free(self->part);
    free(self->records);
    free(self->all);
    free(self);
}

static float *part_of(struct sw_gathered_masters *self, int64_t rank) {
    return self->all + rank * GATHERED_GRAINS * SW_GRAIN_ELEMS;
}

/* Reads the requested grains that this rank has, into its part of `all`. */
static sw_status read_own(struct sw_gathered_masters *self, const struct request *request) {
    const struct sw_unit *unit = &self->trainer->plan->spec.units->unit[request->unit];
    const struct sw_span has = sw_plan_span(self->trainer->plan, SW_OPTIMIZER, request->unit);
    const int64_t first = sw_max_i64(request->first, has.first_grain);
    const int64_t end = sw_min_i64(request->first + request->count, has.first_grain + has.grains);
    float *own = part_of(self, sw_ranks_rank(self->trainer->ranks));
    if (request->tensor_rank != sw_settings_tensor_rank(&self->trainer->run.settings) || first >= end)
        return SW_OK;
    SW_TRY(sw_engine_read_optimizer(self->trainer->engine, request->unit, first, end - first, self->records));
    for (int64_t g = first; g < end; g++)
        sw_unit_masters(unit, g, self->records + sw_plan_optimizer_bytes(self->trainer->plan, g - first),
                        own + (g - request->first) * SW_GRAIN_ELEMS);
    return SW_OK;
}

static sw_status exchange(struct sw_gathered_masters *self, const struct request *request) {
    const sw_status status = sw_ranks_agree_on_error(self->trainer->ranks, read_own(self, request));
    self->failed = status != SW_OK;
    SW_TRY(status);
    return self->shared ? sw_comm_share_records(sw_ranks_comm(self->trainer->ranks), "export", self->all,
                                                GATHERED_GRAINS * MASTER_BYTES)
                        : SW_OK;
}

/* Returns the rank that has a grain of a part: one of those with this number in their tensor groups. */
static int64_t owner_of(const struct part *part, int64_t unit, int64_t grain) {
    const struct sw_gathered_masters *self = part->masters;
    const int sharers = (int)sw_settings_data_ranks(&self->trainer->run.settings);
    const int64_t grains = part->units->unit[unit].grains;
    int sharer = 0;
    while (sharer + 1 < sharers && grain >= sw_shard(grains, sharers, sharer + 1).first_grain)
        sharer++;
    return sharer * self->tensor_ranks + part->tensor_rank;
}

/* Brings a grain of a part, and some behind it, to rank 0's part of `all`. */
static sw_status hold(const struct part *part, int64_t unit, int64_t grain) {
    struct sw_gathered_masters *self = part->masters;
    const struct request *held = &self->held;
    if (held->count > 0 && held->tensor_rank == part->tensor_rank && held->unit == unit && grain >= held->first &&
        grain < held->first + held->count)
        return SW_OK;
    const int64_t first = grain / GATHERED_GRAINS * GATHERED_GRAINS;
    struct request request = {.tensor_rank = part->tensor_rank,
                              .unit = unit,
                              .first = first,
                              .count = sw_min_i64(GATHERED_GRAINS, part->units->unit[unit].grains - first)};
    self->held = (struct request){0};
    SW_TRY(sw_ranks_spread(self->trainer->ranks, "export", &request, sizeof request));
    SW_TRY(exchange(self, &request));
    for (int64_t g = 0; g < request.count; g++) {
        const int64_t rank = owner_of(part, unit, first + g);
        if (rank > 0)
            memcpy(part_of(self, 0) + g * SW_GRAIN_ELEMS, part_of(self, rank) + g * SW_GRAIN_ELEMS,
                   (size_t)MASTER_BYTES);
    }
    self->held = request;
    return SW_OK;
}

static sw_status fill_part(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    const struct part *part = context;
    struct sw_gathered_masters *self = part->masters;
    while (count > 0) {
        const int64_t grain = first / SW_GRAIN_ELEMS, within = first % SW_GRAIN_ELEMS;
        const int64_t run = sw_min_i64(count, SW_GRAIN_ELEMS - within);
        SW_TRY(hold(part, unit, grain));
        const int64_t at = (grain - self->held.first) * SW_GRAIN_ELEMS;
        memcpy(out, part_of(self, 0) + at + within, (size_t)run * sizeof *out);
        first += run;
        count -= run;
        out += run;
    }
    return SW_OK;
}

const struct sw_units *sw_gathered_masters_units(const struct sw_gathered_masters *self) {
    return self->whole != NULL ? self->whole : self->part[0].units;
}

struct sw_load sw_gathered_masters_load(struct sw_gathered_masters *self) {
    return self->group != NULL ? sw_group_reader_load(self->group) : load_of(&self->part[0]);
}

void sw_gathered_masters_end(struct sw_gathered_masters *self) {
    struct request end = {0};
    if (self->failed)
        return;
    /* A failure here makes the next agreement on errors fail too. */
    (void)sw_ranks_spread(self->trainer->ranks, "export", &end, sizeof end);
}

sw_status sw_gathered_masters_follow(struct sw_gathered_masters *self) {
    for (;;) {
        struct request request = {0};
        SW_TRY(sw_ranks_spread(self->trainer->ranks, "export", &request, sizeof request));
        if (request.count == 0)
            return SW_OK;
        SW_TRY(exchange(self, &request));
    }
}
