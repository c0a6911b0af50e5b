/* The engine's inside. Lanes are threads that count the ops they have done; an op starts when the counts that it waits
 * for are reached. */
#ifndef SW_OFFLOAD_ENGINE_ENGINE_PRIVATE_H
#define SW_OFFLOAD_ENGINE_ENGINE_PRIVATE_H

#include "offload/engine/engine.h"
#include "offload/engine/pace.h"
#include "offload/plan/plan.h"

#include <pthread.h>
#include <stdatomic.h>

enum { ENGINE_ERROR_CHARS = 1024 };

/* One step in flight. */
struct step_context {
    struct sw_step_input input;
    int64_t begun_ns;
    int generation[3]; /* the store's generation that each sw_generation of an access means */
    int in_place_from; /* the generation that reads with SW_GENERATION_NONE take; writes take generation[0] */
    bool speculates;
    bool steady;                      /* the step before ran the same program */
    double *loss;                     /* what the head writes, sw_plan_losses per micro-batch; lies in engine->losses */
    double shared_sums[SW_PAIR_SUMS]; /* sums over all ranks, where there are several */
    double *tally, *shared_tally;     /* this rank's, and all ranks' where there are several; lie in engine->losses */
    struct sw_op_times *times;        /* one entry per op; NULL: not traced */
    struct sw_step_result result;
};

/* The norm op of a step leaves these for the update, which belongs to the next program. The plan orders it: the norm
 * waits for the updates and the commit that read it. */
struct pending_update {
    bool redo; /* it was speculated, wrongly */
    struct sw_adamw adamw;
    struct sw_muon muon; /* its grad_scale and skip are those of adamw */
    int64_t step;
};

struct device_lane;

struct lane {
    struct sw_engine *engine;
    sw_lane which;
    pthread_t thread;
    bool started;
    /* compute, upload, download, update; comm where GPUs exchange, the engine's spec keeping it, or where it quantizes;
     * else NULL */
    struct sw_stream *stream;
    struct sw_store_lane *store_lane; /* read, write; else NULL */
    pthread_cond_t wake;
    bool asleep;                /* the thread waits until its next op may start, or the lanes end */
    struct device_lane *device; /* an asynchronous device's part; NULL: an op is done when its call returns */
    struct sw_comm_left *left;  /* receives the collective that its op leaves to the device; NULL: the host waits */
    int64_t number;             /* next op to start, counted over all steps of the program */
    int64_t given;              /* ops given to an asynchronous device, counted in the same way */
    int64_t done;               /* ops done, counted in the same way; they end in order */
};

struct sw_engine {
    struct sw_engine_spec spec;
    const struct sw_plan *plan;
    struct sw_memory *memory[SW_NVME]; /* device, host */
    struct sw_memory *losses;          /* host: losses of each micro-batch of the steps in flight, and their tallies */
    struct sw_trace *trace;            /* NULL: no trace is kept */

    pthread_mutex_t mutex;       /* guards the fields down to the blank line */
    pthread_cond_t awaited_done; /* wakes the thread that owns the engine */
    int64_t awaited_steps;       /* steps of the program that the owner waits for; 0: for none */
    int64_t awaited_updates;     /* ops of the update lane, counted as lane.done, that it waits for; 0: for none */
    const struct sw_program *program;
    int64_t begun, waited; /* steps, over all programs */
    int64_t program_first; /* the step with which this program began */
    bool stopping;
    sw_status failure;
    char failure_text[ENGINE_ERROR_CHARS];
    struct lane lane[SW_LANES];
    int64_t described_step; /* the step whose commit's text is in `text`; INT64_MAX: no commit has one */
    int64_t trained_step;   /* the last training step that was waited for; -1: none */

    char text[SW_STORE_META_BYTES]; /* read by a commit after its step is described, and before that step's next */
    bool io_only;                   /* changed while idle */
    struct step_context context[SW_ENGINE_STEPS_AHEAD]; /* a step's is its number modulo this */
    struct sw_store_lane *setup_lane;                   /* transfers outside of steps, by the owner's thread */
    void *cells; /* memory from which a base is loaded, freed once the setup lane is closed; NULL: there is none */
    struct sw_stream *setup_stream, *host_stream;
    int committed_generation;
    struct pending_update pending;
    int64_t *bounds;       /* comm lane: where each rank's part begins; one more entry than ranks */
    atomic_uint requests;  /* bits that this rank requests */
    sw_waiting waiting;    /* what the last step begun has left to the next program */
    bool working_is_newer; /* units on NVMe have their newest state in the generation that is not committed */
    int64_t step;          /* last training step begun */
    int64_t saved_step;    /* last step committed, or to be committed by a program under way; -1: none */
    int64_t applied_steps, skipped_steps;
    struct sw_loss_scale loss_scale; /* changed by the norm, which the plan orders with its readers */
    struct sw_pace pace;             /* guarded by the mutex */
    int64_t last_end_ns;
};

/* Returns the store's generation that is changed between commits. */
static inline int sw_engine_working(const struct sw_engine *engine) {
    return engine->plan->spec.one_generation ? 0 : 1 - engine->committed_generation;
}

/* Returns where a piece of a slot on device or host begins. */
void *sw_engine_piece(const struct sw_engine *engine, int32_t slot, int64_t piece);

/* Returns where a grain of a unit's state lies in a slot on device or host. */
void *sw_engine_grain(const struct sw_engine *engine, int32_t slot, int64_t grain);

/* Copies bytes between staging memory on the host and a slot's memory, outside of steps, and waits for the copy. */
sw_status sw_engine_put(struct sw_engine *engine, int32_t slot, void *to, const void *from, int64_t bytes);
sw_status sw_engine_get(struct sw_engine *engine, int32_t slot, void *to, const void *from, int64_t bytes);

/* Returns an op's first operand of a role (last: NULL), or the one after `last`; NULL: the op has no other. */
const struct sw_access *sw_engine_next_operand(const struct sw_engine *engine, const struct sw_op *op, sw_role role,
                                               const struct sw_access *last);
/* Returns where an operand on device or host begins. */
void *sw_engine_address(const struct sw_engine *engine, const struct sw_access *operand);
/* Returns where an op's first operand of a role begins; NULL: the op has none. */
void *sw_engine_operand(const struct sw_engine *engine, const struct sw_op *op, sw_role role);
/* Returns where the owner puts a micro-batch's tokens, in host memory, for the step of this context. */
void *sw_engine_staged_tokens(const struct sw_engine *engine, int64_t context, int64_t micro);

/* Return a step's sums: of this rank's micro-batches, in their order, and of all ranks, in theirs. Without pairs only
 * the first has a value, the sum of token losses. */
void sw_engine_own_sums(const struct sw_engine *engine, const struct step_context *context, double out[SW_PAIR_SUMS]);
void sw_engine_step_sums(const struct sw_engine *engine, const struct step_context *context, double out[SW_PAIR_SUMS]);

/* Makes the weights of grains that lie in 8 bits from their records. */
sw_status sw_engine_pack(const struct sw_engine *engine, struct sw_stream *stream, int64_t unit, struct sw_span at,
                         const void *records, void *weights);

/* Tells whether the engine knows how to run a kind of op. */
bool sw_engine_runs(sw_op_kind kind);
/* Runs an op that is no transfer of an I/O lane; on an asynchronous device, gives it to the lane's stream. */
sw_status sw_engine_start_op(struct sw_engine *engine, struct lane *lane, const struct sw_op *op,
                             struct step_context *context);
/* Does the same and waits until the op is done. */
sw_status sw_engine_run_op(struct sw_engine *engine, struct lane *lane, const struct sw_op *op,
                           struct step_context *context);
/* Adds to an error's message which op of which step was running. */
sw_status sw_engine_fail_while(sw_status status, const struct sw_op *op, const struct step_context *context);
/* Returns the store's kind of a run of a unit's weights that begins with this grain: frozen and trained ones are apart.
 */
static inline sw_store_kind sw_engine_kind_of_weights(const struct sw_engine *engine, int64_t unit, int64_t grain) {
    if (grain >= engine->plan->spec.units->unit[unit].trained_grain)
        return SW_STORE_WEIGHTS;
    return sw_plan_reads_in_place(engine->plan, unit) ? SW_STORE_IN_PLACE : SW_STORE_FROZEN;
}
/* Returns the store's transfer that an op of an I/O lane stands for. */
struct sw_store_transfer sw_engine_transfer(const struct sw_engine *engine, const struct sw_op *op,
                                            const struct step_context *context);

/* Returns the number of steps of the program whose ops are all done. Needs the mutex. */
int64_t sw_engine_steps_done(const struct sw_engine *engine);

/* Wakes the lanes and the owner that a change lets go on, and nobody else: on few cores a needless wake takes its time
 * from an op. Needs the mutex. */
void sw_engine_wake(struct sw_engine *engine);

/* Commits the store's generation that is changed, all of which has been written, as the state of the engine's step. */
sw_status sw_engine_commit(struct sw_engine *engine);

/* Starts and joins the lanes' threads. */
sw_status sw_engine_start_lanes(struct sw_engine *engine);
void sw_engine_stop_lanes(struct sw_engine *engine);
/* Counts the ops of a lane that has nothing left to do anew. */
void sw_engine_restart_lane(struct lane *lane);

/* Returns the ranks that share a unit's state. */
static inline sw_comm_scope sw_engine_sharers(const struct sw_engine *engine, int64_t unit) {
    return sw_plan_shares_experts(engine->plan, unit) ? SW_SCOPE_REPLICAS : SW_SCOPE_DATA;
}

#endif
