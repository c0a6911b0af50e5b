/* A model for tests of the engine: four units whose calls are counted, checked for their operands and their order, and
 * can fail or be waited for. Gradients follow from all weights and boundaries, so that a wrong one shows in the state.
 */
#ifndef SW_TESTS_OFFLOAD_TOY_H
#define SW_TESTS_OFFLOAD_TOY_H

#include "offload/engine/engine.h"

#include <pthread.h>

enum { TOY_UNITS = 4, TOY_MICROS = 3, TOY_PATH_CHARS = 512, TOY_FAILURE_CHARS = 256 };

typedef enum { TOY_FORWARD, TOY_BACKWARD, TOY_HEAD, TOY_LOSS, TOY_LOGITS, TOY_KINDS } toy_kind;

/* A call by its place; a step of 0 is never reached. */
struct toy_place {
    toy_kind kind;
    int64_t step, unit, micro;
};

struct toy_spec {
    bool tied;
    const char *place;
    const char *directory; /* of the store; NULL: none */
    int64_t chunk_grains, ring_chunks, group, unit_slots;
    sw_recompute recompute;
    unsigned update_on_device; /* bit u: the update of unit u runs on the device wherever its optimizer lives */
    bool shares_input;         /* the last block's backward reads what that of the one before reads */
    sw_speculation speculation;
    int64_t clip_every, overflow_every; /* steps; 0: never */
    int64_t head_grains;
    int host_threads;      /* of a CPU device in host memory; 0: the reference, which has one */
    struct toy_place fail; /* this call fails with SW_ERR_IO */
};

struct toy {
    struct toy_spec spec;
    struct sw_units *units;
    struct sw_device *device, *host;
    struct sw_plan *plan;
    struct sw_store *store;
    struct sw_engine *engine;
    int64_t calls;                 /* of the running program's step, to check their order */
    int64_t last_step;             /* of the last call */
    bool one_micro;                /* the logits program runs */
    bool trains;                   /* a training program runs */
    char wrong[TOY_FAILURE_CHARS]; /* the first wrong operand or order; empty: none */
    pthread_mutex_t mutex;         /* guards what follows */
    pthread_cond_t changed;
    struct toy_place reached; /* the last forward call */
};

sw_status toy_open(const struct toy_spec *spec, struct toy *out);
void toy_close(struct toy *toy);

/* Settles what a training step left, unless another follows; fills the tokens of a step and begins it. */
sw_status toy_begin(struct toy *toy, sw_step_kind kind, int64_t step, float *out_logits);
/* Waits for a step; one of training is described ("step N"). toy_describe does that alone. */
sw_status toy_wait(struct toy *toy, struct sw_step_result *out);
void toy_describe(struct toy *toy, int64_t step);
bool toy_clips(const struct toy *toy, int64_t step);
bool toy_overflows(const struct toy *toy, int64_t step);
/* Waits until the forward call of a step and unit has begun, at most some seconds. False where it did not come. */
bool toy_await_forward(struct toy *toy, int64_t step, int64_t unit);

/* cmocka's set-up and tear-down: the state is the path of an empty directory, removed with the store in it. */
int toy_make_directory(void **state);
int toy_remove_directory(void **state);
/* Removes a closed store, so that another can be made in the directory. */
void toy_remove_store(const char *directory);

#endif
