/* A training of a model on random tokens, for measuring: a plan, the store that it needs, an engine, and the times of
 * its steps. */
#ifndef SW_BENCH_STEP_CONTENDER_H
#define SW_BENCH_STEP_CONTENDER_H

#include "offload/engine/engine.h"
#include "train/devices/devices.h"
#include "train/devices/ranks.h"
#include "train/model/model.h"
#include "train/settings/places.h"
#include "train/settings/settings.h"

enum { SW_CONTENDER_MAX_STEPS = 30000 };

/* All of it must outlive the training. */
struct sw_contender_spec {
    const struct sw_settings *settings;
    struct sw_model *model;
    const struct sw_devices *devices;
    struct sw_plan *plan;
    const struct sw_places *places; /* for the store; NULL for a plan that needs none */
    sw_speculation speculation;
    bool traced;
    const struct sw_load *load; /* its weights; NULL: random ones */
    struct sw_ranks *ranks;     /* that train it together; NULL: this process alone */
};

struct sw_contender {
    struct sw_contender_spec spec;
    struct sw_store *store; /* NULL: nothing is on NVMe */
    struct sw_engine *engine;
    double load_s; /* what loading took, its commit with it */
    uint64_t next_token;
    int64_t step;
};

/* What some steps took. */
struct sw_step_times {
    double *seconds; /* room for SW_CONTENDER_MAX_STEPS */
    int count;
    struct sw_step_result last; /* the last step that counts */
};

/* On failure nothing is left open. */
sw_status sw_contender_open(const struct sw_contender_spec *spec, struct sw_contender *out);
void sw_contender_close(struct sw_contender *contender);

/* Trains that many steps, one begun while the one before ends, and adds their times, but the first's: the ones before
 * it did not run ahead of it. */
sw_status sw_contender_run(struct sw_contender *contender, int64_t steps, struct sw_step_times *times);

#endif
