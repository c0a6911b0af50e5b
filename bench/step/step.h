/* The measurements of `bench step`, for its report. */
#ifndef SW_BENCH_STEP_STEP_H
#define SW_BENCH_STEP_STEP_H

#include "core/dtype.h"
#include "core/status.h"
#include "job/job.h"
#include "offload/engine/engine.h"
#include "offload/engine/trace.h"
#include "offload/plan/placement.h"
#include "offload/plan/plan.h"
#include "offload/plan/unit.h"

/* The least bytes that a training step can move, by lane: from the model's shape and where its state lives, without a
 * look at any plan.
 *
 * These hold for a step by layer on one device:
 * - A block's weights that live elsewhere cross the link for the forward and for the backward pass. The last block's
 * and the head's cross it once, because there the passes meet.
 * - A tied embedding table crosses once. An untied one needs no more than the rows that the step's tokens can name.
 * - Each gradient leaves the device once. Optimizer state, as its format has it, is read once and written once. New
 * weights feed the next forward pass without a detour.
 * - Block inputs that do not stay on the device leave it and come back once. Their gradients need not leave it.
 * - Optimizer state that lives elsewhere but is updated on the device crosses the link both ways.
 * ZeRO-Infinity (arXiv 2104.07857, sections 4 and 5) counts by the same items. */
struct sw_least_shape {
    const struct sw_units *units;
    const struct sw_unit_placement *placement; /* one entry per unit */
    const struct sw_unit_cost *cost;           /* one entry per unit */
    sw_dtype type;
    sw_grads_format grads; /* form of rounded gradients */
    int64_t micro_batches, tokens, seq;
    const bool *update_on_device; /* one entry per unit, as in struct sw_plan; NULL: no unit does */
    bool speculated; /* updates run in the backward pass: the forward pass reads weights from where they live */
};

void sw_least_bytes(const struct sw_least_shape *shape, int64_t out[SW_LANES]);

/* The time in which ranks exchange data, and the part of it that arithmetic hides, from a measured or predicted
 * trace. */
struct sw_overlap {
    double comm_s;   /* seconds per step in which the comm lane is busy, its waits for other ranks included */
    double hidden_s; /* the seconds of these in which the compute lane is busy too */
};

/* Finds both times for the programs [first, end) of a trace, each of which is a step. No lane may run meanwhile. */
sw_status sw_overlap_find(const struct sw_trace *trace, int64_t first, int64_t end, struct sw_overlap *out);

/* A training of a model on random tokens that is measured: its store and engine, and the times of its steps. */
enum { SW_CONTENDER_MAX_STEPS = 30000 };

/* Borrows all that it points to for the time of the training. */
struct sw_contender_spec {
    const struct sw_job *job; /* with a complete plan; its ranks train together */
    sw_speculation speculation;
    bool traced;
    const struct sw_load *load; /* source of the weights; NULL: they are random */
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

typedef enum {
    SW_STEP_RESIDENT,
    SW_STEP_PLACED,
    SW_STEP_IO_ALONE,
    SW_STEP_ADAMW, /* as placed, where Muon trains matrices, but with AdamW for all */
    SW_STEP_KINDS
} sw_step_bench_kind;

/* Steps whose exchange of ranks is reported: as it ran, as predicted, and as predicted where each rank has a core more
 * than its arithmetic takes. */
typedef enum { SW_STEP_COMM_PLACED, SW_STEP_COMM_PREDICTED, SW_STEP_COMM_ONE_CORE_MORE, SW_STEP_COMMS } sw_step_comm;
struct sw_step_exchange {
    double step_s;
    struct sw_overlap overlap;
};

struct sw_step_bench {
    struct sw_ranks ranks;
    struct sw_settings settings;
    struct sw_job job; /* of the placed step */
    struct sw_job
        resident; /* with everything on the device; no plan: it does not fit in memory together with the placed one */
    struct sw_job adamw;      /* no plan: Muon trains nothing, or it does not fit in memory together with the others */
    double adamw_predicted_s; /* 0: Muon trains nothing */
    int64_t traced_from, traced_to;                  /* the last round's programs in the trace */
    struct sw_step_exchange exchange[SW_STEP_COMMS]; /* zero for a single rank */
    bool speculates;                                 /* the placed step updates in the backward pass */
    struct sw_contender placed, whole, other;        /* whole: the resident one; other: the one with AdamW */
    struct sw_step_times times[SW_STEP_KINDS];
    double median_s[SW_STEP_KINDS]; /* 0: not measured */
    int64_t least[SW_LANES];        /* least bytes a step, by lane; 0 where ranks run together */
};

#endif
