/* A model, its plan, store and engine put together as a run does it, for tests that compare whole trainings. */
#ifndef SW_TESTS_E2E_HARNESS_H
#define SW_TESTS_E2E_HARNESS_H

#include "model/model.h"
#include "offload/engine/engine.h"

struct harness_spec {
    const struct sw_model_config *config;
    struct sw_model_shape shape;
    int64_t micro_batches;            /* of a rank */
    struct sw_comm *comm;             /* of several ranks, each of which has a store of its own; NULL: alone */
    int zero;                         /* stage */
    struct sw_plan_pipeline pipeline; /* stages, which divide the comm's ranks, and their units; `stage` is set here */
    int reduce_nodes;                 /* nodes over which quantized gradients are reduced in two levels */
    int node_ranks;                   /* ranks of each node, which are neighbours; 0: not known */
    sw_quant gather, reduce;          /* how ranks exchange weights and gradients */
    int secondary_ranks;              /* ranks of a part of a node, for secondary shards; 0: there are none */
    bool secondary_on_host;           /* the device has no room for them; `place` names all states */
    const char *place;
    sw_recompute recompute;
    int64_t
        device_bytes; /* a budget within which as little as fits is recomputed; 0: without limit, as `recompute` says */
    /* Bit u % 64: the update of unit u runs on the device wherever its optimizer lives. */
    uint64_t update_on_device;
    int64_t group;      /* micro-batches; 0: all */
    int64_t unit_slots; /* 0: two */
    sw_speculation speculation;
    sw_grads_format grads; /* of rounded gradients */
    sw_rounding rounding;  /* of narrow moments; the format is the shape's */
    double loss_scale;     /* the first; 0: the type's */
    int64_t good_steps;    /* steps in a row that the first loss scale has had */
    int64_t chunk_grains, ring_chunks;
    int compute_threads, update_threads;
    const char *directory; /* of the store; NULL: none */
    bool one_generation;   /* of the optimizer in the store */
    bool commits_by_saves; /* although the whole optimizer may be on NVMe: that of another stage may not */
    bool resume;           /* the store is there: go on from its commit, else make it and load */
    /* Called with the store before the engine opens it; NULL: not. */
    sw_status (*prepare_store)(void *context, struct sw_store *store);
    void *prepare_context;
    sw_fill_function fill; /* NULL: random weights of `seed`, with adapters as they begin */
    sw_fill_prepare prepare;
    sw_fill_record record; /* beside fill: NULL: the source has no records */
    void *fill_context;
    uint64_t seed;
    int64_t infinite_step; /* training step whose first head call leaves an infinite gradient; 0: none */
    /* Changes the model's ops before the engine opens; NULL: not. */
    void (*wrap)(void *context, struct sw_unit_ops *ops);
    void *wrap_context;
};

struct harness {
    struct harness_spec spec;
    struct sw_device *compute, *update;
    struct sw_model *model;
    struct sw_model_init init;
    struct sw_plan *plan;
    struct sw_store *store;
    struct sw_engine *engine;
    struct sw_unit_ops model_ops;
    int64_t head_calls;    /* of training */
    int64_t first_step;    /* the commit's */
    int64_t frozen_loaded; /* grains of frozen weights that a resume has loaded */
};

/* On failure everything is closed. */
sw_status harness_open(const struct harness_spec *spec, struct harness *out);
void harness_close(struct harness *harness);

/* The rates of every test: so large that masters move in every element's leading bits. */
struct sw_adamw harness_adamw(int64_t step);

/* Fills the tokens of a step, a function of seed and step alone, and begins it. */
sw_status harness_begin(struct harness *harness, int64_t step, double clip);
sw_status harness_wait(struct harness *harness, struct sw_step_result *out);
/* The mean loss of a fixed batch, by the loss program. */
sw_status harness_evaluate(struct harness *harness, double *out);

/* Grains of all units. */
int64_t harness_grains(const struct harness *harness);
/* Bytes of a grain's optimizer state. */
int64_t harness_grain_bytes(const struct harness *harness);
/* Optimizer state of all units, one after the other. What this rank does not have is left as it is. */
sw_status harness_read_records(struct harness *harness, void *records);
sw_status harness_read_grads(struct harness *harness, float *grads);

/* cmocka's set-up and tear-down: the state is the path of an empty directory on disk, removed with the store in it. */
int harness_make_directory(void **state);
int harness_remove_directory(void **state);
/* Removes a closed store, so that another can be made in the directory. */
void harness_remove_store(const char *directory);

#endif
