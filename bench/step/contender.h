/* A training of a model on random tokens that is measured: its store and engine, and the times of its steps. */
#ifndef SW_BENCH_STEP_CONTENDER_H
#define SW_BENCH_STEP_CONTENDER_H

#include "job/machine/devices.h"
#include "job/machine/ranks.h"
#include "job/settings/places.h"
#include "job/settings/settings.h"
#include "model/model.h"
#include "offload/engine/engine.h"

enum { SW_CONTENDER_MAX_STEPS = 30000 };

/* Borrows all that it points to for the time of the training. */
struct sw_contender_spec {
    const struct sw_settings *settings;
    struct sw_model *model;
    const struct sw_devices *devices;
    struct sw_plan *plan;
    const struct sw_places *places; /* directories of the store; NULL for a plan without one */
    sw_speculation speculation;
    bool traced;
    const struct sw_load *load; /* source of the weights; NULL: they are random */
    struct sw_ranks *ranks;     /* ranks that train together; NULL: this process trains alone */
};

struct sw_contender {
    struct sw_contender_spec spec;
    struct sw_store *store; /* NULL: nothing is on NVMe */
    struct sw_engine *engine;
    double load_s; /* time of loading the weights, with the commit */
    uint64_t next_token;
    int64_t step;
};

/* Times of steps. */
struct sw_step_times {
    double *seconds; /* room for SW_CONTENDER_MAX_STEPS */
    int count;
    struct sw_step_result last; /* the last step that counts */
};

/* Creates the store and the engine, and loads the weights. On failure nothing is left open. */
sw_status sw_contender_open(const struct sw_contender_spec *spec, struct sw_contender *out);
void sw_contender_close(struct sw_contender *contender);

/* Trains `steps` steps and one before them, each begun while the last one ends, and adds their times. The first has no
 * time, because no step ran ahead of it. */
sw_status sw_contender_run(struct sw_contender *contender, int64_t steps, struct sw_step_times *times);

#endif
