/* The engine's inside: lanes are threads that count the ops they have done; an op starts when the counts that it waits
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
    int generation[3]; /* of the store, by the role that an access gives it (sw_generation) ... */
    int in_place_from; /* ... and, for SW_GENERATION_NONE, the one that reads take, as writes take generation[0] */
    bool speculates;
    bool steady;               /* the step before ran the same program */
    double *loss;              /* of each micro-batch */
    double shared_loss;        /* of all ranks, where there are several */
    struct sw_op_times *times; /* of each op; NULL: not traced */
    struct sw_step_result result;
};

/* What the norm op of a step leaves for the update, which belongs to the next program. Ordered by the plan: the norm
 * waits for the updates and the commit that read it. */
struct pending_update {
    bool redo; /* it was speculated, wrongly */
    struct sw_adamw adamw;
    int64_t step;
};

struct device_lane;

struct lane {
    struct sw_engine *engine;
    sw_lane which;
    pthread_t thread;
    bool started;
    struct sw_stream *stream;         /* compute, upload, download, update */
    struct sw_store_lane *store_lane; /* read, write */
    pthread_cond_t wake;
    bool asleep;                /* until its next op may start, or the lanes end */
    struct device_lane *device; /* of an asynchronous device; NULL: an op is done when its call returns */
    int64_t number;             /* next op to start, counted over all steps of the program */
    int64_t given;              /* ops given to an asynchronous device, likewise, in order */
    int64_t done;               /* ops done, likewise, in order */
};

struct sw_engine {
    struct sw_engine_spec spec;
    const struct sw_plan *plan;
    struct sw_memory *memory[SW_NVME]; /* device, host */
    struct sw_memory *losses;          /* host: of each micro-batch of the steps in flight */
    struct sw_trace *trace;            /* NULL: none */

    pthread_mutex_t mutex;       /* guards what follows, to the blank line */
    pthread_cond_t awaited_done; /* for the owner, */
    int64_t awaited_steps;       /* which waits for so many steps of the program; 0: it does not */
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
    struct sw_stream *setup_stream, *host_stream;
    int committed_generation;
    struct pending_update pending;
    int64_t *bounds;       /* of the ranks' parts, for the comm lane */
    atomic_uint requests;  /* of this rank, for all */
    sw_waiting waiting;    /* what the last step begun has left to the next program */
    bool working_is_newer; /* units on NVMe have their newest state in the generation that is not committed */
    int64_t step;          /* last one begun */
    int64_t saved_step;    /* last one committed; -1 before the first commit */
    int64_t applied_steps, skipped_steps;
    struct sw_loss_scale loss_scale; /* changed by the norm, which the plan orders with its readers */
    struct sw_pace pace;             /* guarded by the mutex */
    int64_t last_end_ns;
};

/* The store's generation that is changed between commits. */
static inline int sw_engine_working(const struct sw_engine *engine) {
    return engine->plan->spec.one_generation ? 0 : 1 - engine->committed_generation;
}

/* Address of a piece of a slot on device or host. */
void *sw_engine_piece(const struct sw_engine *engine, int32_t slot, int64_t piece);

/* Of a grain of a unit's state. */
void *sw_engine_grain(const struct sw_engine *engine, int32_t slot, int64_t grain);

/* Returns an op's first operand of a role (last: NULL), or the one after `last`; NULL: the op has no other. */
const struct sw_access *sw_engine_next_operand(const struct sw_engine *engine, const struct sw_op *op, sw_role role,
                                               const struct sw_access *last);
/* Returns where an operand on device or host begins. */
void *sw_engine_address(const struct sw_engine *engine, const struct sw_access *operand);
/* Returns where an op's first operand of a role begins; NULL: the op has none. */
void *sw_engine_operand(const struct sw_engine *engine, const struct sw_op *op, sw_role role);
/* Returns where the owner puts a micro-batch's tokens, in host memory, for the step of this context. */
void *sw_engine_staged_tokens(const struct sw_engine *engine, int64_t context, int64_t micro);

/* Of all micro-batches of this rank, in their order; of all ranks, in theirs. */
double sw_engine_own_loss(const struct sw_engine *engine, const struct step_context *context);
double sw_engine_loss_sum(const struct sw_engine *engine, const struct step_context *context);

/* The ops between ranks, and what prepares them (ops_ranks.c). */
sw_status sw_engine_round(struct sw_engine *engine, struct lane *lane, const struct sw_op *op);
sw_status sw_engine_reduce(struct sw_engine *engine, const struct sw_op *op);
sw_status sw_engine_all_gather(struct sw_engine *engine, const struct sw_op *op);
sw_status sw_engine_exchange_summary(struct sw_engine *engine, const struct sw_op *op, struct step_context *context);

/* Runs an op that is no transfer of an I/O lane; on an asynchronous device, gives it to the lane's stream. */
sw_status sw_engine_start_op(struct sw_engine *engine, struct lane *lane, const struct sw_op *op,
                             struct step_context *context);
/* And waits for it. */
sw_status sw_engine_run_op(struct sw_engine *engine, struct lane *lane, const struct sw_op *op,
                           struct step_context *context);
/* Adds to an error what was being done. */
sw_status sw_engine_fail_while(sw_status status, const struct sw_op *op, const struct step_context *context);
/* The transfer of an op of an I/O lane. */
struct sw_store_transfer sw_engine_transfer(const struct sw_engine *engine, const struct sw_op *op,
                                            const struct step_context *context);

/* Needs the mutex. Steps of the program whose ops are all done. */
int64_t sw_engine_steps_done(const struct sw_engine *engine);

/* Needs the mutex. After any change: wakes the lanes and the owner that it lets go on, and nobody else. On few cores a
 * needless wake takes its time from an op. */
void sw_engine_wake(struct sw_engine *engine);

/* Commits the store's generation that is changed, all of which has been written, as the state of the engine's step. */
sw_status sw_engine_commit(struct sw_engine *engine);

/* Starts and joins the lanes' threads. */
sw_status sw_engine_start_lanes(struct sw_engine *engine);
void sw_engine_stop_lanes(struct sw_engine *engine);
/* Counts the ops of a lane that has nothing left to do anew. */
void sw_engine_restart_lane(struct lane *lane);

/* What the kinds of lanes share. All but the first two and skips need the mutex. */
const struct sw_op *sw_lane_op(const struct sw_engine *engine, const struct lane *lane, int64_t number);
struct step_context *sw_lane_context(struct sw_engine *engine, const struct lane *lane, int64_t number);
bool sw_lane_skips(const struct sw_engine *engine, const struct sw_op *op);
bool sw_lane_ready(const struct sw_engine *engine, const struct lane *lane);
bool sw_engine_ended(const struct sw_engine *engine);
void sw_engine_fail(struct sw_engine *engine, sw_status status); /* keeps the first failure */
void sw_lane_sleep(struct sw_engine *engine, struct lane *lane); /* until it is ready, or the lanes end */
/* Tells the watch that a lane has begun an op, or, without one, that it has nothing to do. */
void sw_lane_tell(const struct sw_engine *engine, const struct lane *lane, const struct sw_op *op);
/* Number of the op that a wait of another lane's op, of this step of the program, waits for; negative: none. */
int64_t sw_wait_target(const struct sw_engine *engine, const struct sw_wait *wait, int64_t step);
void sw_op_note_times(const struct sw_engine *engine, const struct step_context *context, const struct sw_op *op,
                      struct sw_op_times times);

/* The lanes of an asynchronous device (lanes_device.c). */
enum { SW_DEVICE_WINDOW = 64 }; /* ops that one has given to the device and that are not done */
sw_status sw_device_lane_open(struct lane *lane);
/* After the lane's thread has been joined. */
void sw_device_lane_close(struct lane *lane);
sw_status sw_device_lane_start(struct lane *lane);
/* Joins its second thread, once the lanes end. */
void sw_device_lane_join(struct lane *lane);
void sw_device_lane_restart(struct lane *lane);
void *sw_device_lane_run(void *argument); /* the lane */

#endif
