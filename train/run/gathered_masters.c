#include "train/run/gathered_masters.h"

#include "core/size.h"

#include <stdlib.h>
#include <string.h>

#define MASTER_BYTES (SW_GRAIN_ELEMS * (int64_t)sizeof(float))

/* The grains that rank 0 asks for; count 0 ends the gathering. */
struct request {
    int64_t unit, first, count;
};

struct sw_gathered_masters {
    struct sw_trainer *trainer;
    bool shared;   /* there are several ranks */
    bool failed;   /* some rank failed; all ranks know it */
    char *records; /* optimizer state of SW_GATHERED_GRAINS grains of this rank */
    float *all;    /* masters of SW_GATHERED_GRAINS grains for each rank, in rank order */
};

sw_status sw_gathered_masters_open(struct sw_trainer *trainer, struct sw_gathered_masters **out) {
    struct sw_gathered_masters *self = calloc(1, sizeof *self);
    if (self != NULL) {
        self->trainer = trainer;
        self->shared = sw_ranks_count(trainer->ranks) > 1;
        self->records = malloc((size_t)sw_plan_optimizer_bytes(trainer->plan, SW_GATHERED_GRAINS));
        self->all = calloc((size_t)sw_ranks_count(trainer->ranks), SW_GATHERED_GRAINS * MASTER_BYTES);
    }
    const bool made = self != NULL && self->records != NULL && self->all != NULL;
    *out = self;
    const sw_status status =
        sw_ranks_agree_on_error(trainer->ranks, made ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to export"));
    if (status != SW_OK)
        sw_gathered_masters_close(self);
    return status;
}

void sw_gathered_masters_close(struct sw_gathered_masters *self) {
    if (self == NULL)
        return;
    free(self->records);
    free(self->all);
    free(self);
}

static float *part_of(struct sw_gathered_masters *self, int rank) {
    return self->all + (int64_t)rank * SW_GATHERED_GRAINS * SW_GRAIN_ELEMS;
}

/* Reads the requested grains that this rank has, into its part of `all`. */
static sw_status read_own(struct sw_gathered_masters *self, const struct request *request) {
    const struct sw_unit *unit = &self->trainer->plan->spec.units->unit[request->unit];
    const struct sw_span has = sw_plan_span(self->trainer->plan, SW_OPTIMIZER, request->unit);
    const int64_t first = sw_max_i64(request->first, has.first_grain);
    const int64_t end = sw_min_i64(request->first + request->count, has.first_grain + has.grains);
    float *own = part_of(self, sw_ranks_rank(self->trainer->ranks));
    if (first >= end)
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
                                                SW_GATHERED_GRAINS * MASTER_BYTES)
                        : SW_OK;
}

static int owner_of(const struct sw_trainer *trainer, int64_t unit, int64_t grain) {
    const int ranks = sw_ranks_count(trainer->ranks);
    const int64_t grains = sw_model_get_units(trainer->model)->unit[unit].grains;
    int rank = 0;
    while (rank + 1 < ranks && grain >= sw_shard(grains, ranks, rank + 1).first_grain)
        rank++;
    return rank;
}

sw_status sw_gathered_masters_read(struct sw_gathered_masters *self, int64_t unit, int64_t first, int64_t count,
                                   const float **out) {
    struct request request = {.unit = unit, .first = first, .count = count};
    float *own = part_of(self, 0);
    SW_TRY(sw_ranks_spread(self->trainer->ranks, "export", &request, sizeof request));
    SW_TRY(exchange(self, &request));
    for (int64_t g = 0; g < count; g++) {
        const int rank = owner_of(self->trainer, unit, first + g);
        if (rank > 0)
            memcpy(own + g * SW_GRAIN_ELEMS, part_of(self, rank) + g * SW_GRAIN_ELEMS, (size_t)MASTER_BYTES);
    }
    *out = own;
    return SW_OK;
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
