/* Measures how long each unit of a model takes: one unit of each shape runs alone, or a described device counts it. */
#include "core/clock.h"
#include "core/long_work.h"
#include "job/rates.h"
#include "kernels/described.h"
#include "model/unit_run.h"
#include "offload/simulate/measure.h"

#include <math.h>
#include <stdlib.h>

/* Rounds that are timed: three, and more while they are short. */
enum { LEAST_ROUNDS = 3, MOST_ROUNDS = 25 };
#define ENOUGH_S 0.3
#define LONG_S 0.9

/* The units' runner, and the processor time and wall time of all rounds. */
struct bench {
    struct sw_unit_run *run;
    const struct sw_device *device;
    const struct sw_units *units;
    struct sw_ranks *ranks;
    struct sw_long_work *progress;
    double cpu_s, wall_s;
};

static sw_status count_pass(struct bench *bench, sw_unit_pass pass, double *out_s) {
    const double before_s = sw_device_counted_s(bench->device);
    SW_TRY(sw_unit_run_pass(bench->run, pass));
    *out_s = sw_device_counted_s(bench->device) - before_s;
    return SW_OK;
}

static sw_status time_pass(struct bench *bench, sw_unit_pass pass, double *out_s) {
    double seconds[MOST_ROUNDS], total_s = 0.0;
    int rounds = 0;
    for (bool first = true; rounds < MOST_ROUNDS && total_s < (rounds < LEAST_ROUNDS ? LONG_S : ENOUGH_S);
         first = false) {
        const double start_cpu_s = sw_cpu_seconds();
        const int64_t start_ns = sw_now_ns();
        SW_TRY(sw_unit_run_pass(bench->run, pass));
        sw_ranks_tick(bench->ranks);
        SW_TRY(sw_long_work_at(bench->progress, 0));
        seconds[rounds] = (double)(sw_now_ns() - start_ns) * 1e-9;
        /* The first round touches memory and fills caches. That matters only if a round is short. */
        if (first && seconds[rounds] < LONG_S / LEAST_ROUNDS)
            continue;
        bench->cpu_s += sw_cpu_seconds() - start_cpu_s;
        total_s += seconds[rounds++];
    }
    bench->wall_s += total_s;
    *out_s = sw_median(seconds, rounds);
    return SW_OK;
}

static bool same_shape(const struct sw_unit *a, const struct sw_unit *b) {
    if (a->tensor_count != b->tensor_count || a->elems != b->elems)
        return false;
    for (int64_t t = 0; t < a->tensor_count; t++)
        if (a->tensor[t].elems != b->tensor[t].elems || a->tensor[t].dims != b->tensor[t].dims)
            return false;
    return true;
}

/* Returns an earlier unit of the same shape, or -1. The embedding and the head are always measured. */
static int64_t alike(const struct sw_units *units, int64_t unit) {
    for (int64_t u = 1; unit > 0 && unit + 1 < units->count && u < unit; u++)
        if (same_shape(&units->unit[u], &units->unit[unit]))
            return u;
    return -1;
}

/* Adds the time to recompute derived intermediates in the backward pass. It is counted, because it is too short to be
 * measured as the difference of two passes. */
static sw_status count_deriving(struct bench *bench, int64_t unit, struct sw_unit_seconds *out) {
    double deriving_s;
    SW_TRY(count_pass(bench, SW_UNIT_BACKWARD_DERIVING, &deriving_s));
    out->recompute[unit] += deriving_s - out->backward[unit];
    out->derive[unit] += deriving_s - out->backward[unit];
    return SW_OK;
}

static sw_status measure_unit(struct bench *bench, int64_t unit, struct sw_unit_seconds *out) {
    const bool described = sw_device_info(bench->device).described;
    sw_status (*const price)(struct bench *, sw_unit_pass, double *) = described ? count_pass : time_pass;
    const bool block = unit > 0 && unit + 1 < bench->units->count;
    SW_TRY(sw_unit_run_choose(bench->run, unit));
    SW_TRY(price(bench, SW_UNIT_FORWARD, &out->forward[unit]));
    SW_TRY(price(bench, SW_UNIT_BACKWARD, &out->backward[unit]));
    if (!block)
        return SW_OK;
    SW_TRY(price(bench, SW_UNIT_RECOMPUTE, &out->recompute[unit]));
    SW_TRY(price(bench, SW_UNIT_DERIVE, &out->derive[unit]));
    if (described)
        SW_TRY(count_deriving(bench, unit, out));
    if (!sw_unit_run_has_products(bench->run))
        return SW_OK;
    SW_TRY(price(bench, SW_UNIT_LAST_PRODUCT, &out->last_product[unit]));
    SW_TRY(price(bench, SW_UNIT_FIRST_PRODUCT, &out->first_product[unit]));
    out->backward[unit] += out->last_product[unit] + out->first_product[unit];
    return SW_OK;
}

static sw_status measure_all(struct bench *bench, struct sw_unit_seconds *out) {
    for (int64_t u = 0; u < bench->units->count; u++) {
        const int64_t like = alike(bench->units, u);
        if (like < 0) {
            SW_TRY(measure_unit(bench, u, out));
            continue;
        }
        out->forward[u] = out->forward[like];
        out->backward[u] = out->backward[like];
        out->recompute[u] = out->recompute[like];
        out->derive[u] = out->derive[like];
        out->last_product[u] = out->last_product[like];
        out->first_product[u] = out->first_product[like];
    }
    return SW_OK;
}

sw_status sw_measure_units(struct sw_model *model, struct sw_device *device, struct sw_ranks *ranks,
                           struct sw_long_work *progress, struct sw_unit_seconds *out, double *out_cores) {
    struct bench bench = {.device = device, .units = sw_model_get_units(model), .ranks = ranks, .progress = progress};
    sw_status status = sw_unit_run_open(model, device, &bench.run);
    if (status == SW_OK)
        status = measure_all(&bench, out);
    *out_cores = bench.wall_s > 0.0 ? bench.cpu_s / bench.wall_s : 0.0;
    sw_unit_run_close(bench.run);
    return status;
}

sw_status sw_unit_seconds_alloc(int64_t units, struct sw_unit_seconds *out) {
    double *all = calloc(SW_UNIT_SECONDS_ARRAYS * (size_t)units, sizeof *all);
    *out = (struct sw_unit_seconds){0};
    if (all == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the units' times");
    double **const arrays[SW_UNIT_SECONDS_ARRAYS] = {&out->forward, &out->backward,     &out->recompute,
                                                     &out->derive,  &out->last_product, &out->first_product};
    for (int i = 0; i < SW_UNIT_SECONDS_ARRAYS; i++)
        *arrays[i] = all + i * units;
    return SW_OK;
}

void sw_unit_seconds_free(struct sw_unit_seconds *seconds) {
    free(seconds->forward);
    *seconds = (struct sw_unit_seconds){0};
}
