/* The engine: the memory of every tier and the threads of every lane, obeying a plan.
 *
 * Of a plan for several ranks all open, load, restore, settle, save, begin and read records at once, in one order: they
 * do parts of it together.
 *
 * Calls belong to one thread. A training step is begun, runs on the lanes, and is waited for; the next may be begun
 * before that, so that the end of a step overlaps the start of the next. Everything else needs an idle engine (each
 * begun step waited for). The first error of any lane ends all lanes and is returned by sw_engine_wait, or by
 * sw_engine_begin where that changes the program; after it only sw_engine_close is allowed. */
#ifndef SW_OFFLOAD_ENGINE_ENGINE_H
#define SW_OFFLOAD_ENGINE_ENGINE_H

#include "core/ranks/watch.h"
#include "io/store/store.h"
#include "kernels/device.h"
#include "offload/engine/trace.h"
#include "offload/plan/plan.h"

struct sw_engine;

/* One call of a unit's arithmetic. Pointers that do not apply are NULL. */
struct sw_unit_call {
    struct sw_stream *stream;
    int64_t unit, micro;
    const void *weights;    /* the unit's flat vector, compute type */
    const void *rows;       /* in its place, for an embedding: what `gather` has made of it for this micro-batch */
    const void *table;      /* head of a tied model: the embedding's weights */
    const int32_t *tokens;  /* of the micro-batch, as sw_engine_tokens had them */
    const void *in;         /* output of the unit before; backward: of what the plan keeps for it */
    void *out;              /* boundary */
    void *saved, *derived;  /* intermediates for the backward pass, and those that follow from them */
    sw_recompute recompute; /* of a block: which of them are filled again for the backward pass */
    void *grad;             /* gradient at the output, replaced by that at the input; head: written */
    float *acc, *table_acc; /* gradient accumulators, fp32, laid out as the weights */
    void *work;
    float loss_scale; /* factor of every token's loss in the gradient */
    double *loss;     /* host memory: receives the sum of the micro-batch's token losses, unscaled */
    int64_t row;      /* logits: the row of the micro-batch */
    int64_t past;     /* logits: tokens before those of this pass, ... */
    int64_t count;    /* ... which are so many; 0: a whole micro-batch */
    void *cache;      /* logits: what earlier passes left in the unit; NULL: nothing is kept */
    float *logits;    /* logits: receives [vocab], host memory */
};

typedef sw_status (*sw_unit_function)(void *context, const struct sw_unit_call *call);

/* Of one chunk of the embedding's flat vector, what a micro-batch needs; all in host memory. Chunks come in order;
 * `out` has room for the plan's gathered_bytes and keeps what the chunks before have put there. */
struct sw_gather_call {
    const int32_t *tokens; /* of the micro-batch, as sw_engine_tokens had them */
    const void *weights;   /* elements [first_elem, first_elem + elems) */
    int64_t first_elem, elems;
    void *out;
};

/* The model's arithmetic. Called on the compute lane's thread, gather on the update lane's. Where the device is
 * asynchronous, calls give it work and do not wait for it. */
struct sw_unit_ops {
    void *context;
    /* Once, before all others, on the engine's own thread: puts into the work area what stays there. NULL: nothing. */
    sw_status (*begin)(void *context, struct sw_stream *stream, void *work);
    sw_unit_function forward, backward; /* embedding and blocks */
    sw_unit_function recompute;         /* blocks: before backward, fills what call->recompute says */
    sw_unit_function head;              /* loss and its gradient */
    sw_unit_function loss;              /* loss only */
    sw_unit_function logits;
    void (*gather)(void *context, const struct sw_gather_call *call); /* NULL where the plan's gathered_bytes is 0 */
};

typedef enum { SW_STEP_TRAIN, SW_STEP_LOSS, SW_STEP_LOGITS } sw_step_kind;

struct sw_step_input {
    sw_step_kind kind;
    int64_t step;          /* from 1 (training) */
    struct sw_adamw adamw; /* rates of this step; step, grad_scale and skip are the engine's */
    double clip;           /* largest gradient norm; 0: none */
    int64_t loss_tokens;   /* tokens of all ranks that count in the loss; its mean is over these; at least 1 */
    /* Commits the state of the step before beside this one. Only where the plan does not commit every step and that
     * step's update waits (sw_engine_may_save). */
    bool save;
    /* Logits of a row of a pass: of a whole micro-batch, or of `count` tokens where that is not 0, which follow `past`
     * tokens whose passes have filled the units' caches. */
    int64_t row, past, count;
    float *logits;
};

/* Dynamic loss scaling, of fp16: losses are multiplied by the scale, a power of two, and gradients divided by it again.
 * A step that overflows is skipped and halves it, down to 1; SW_SCALE_STEPS good steps in a row double it. Other types
 * keep 1. */
struct sw_loss_scale {
    double scale; /* 0 in a specification: the type's initial one */
    int64_t good_steps;
};
#define SW_FP16_INITIAL_SCALE 65536.0
#define SW_FP16_LARGEST_SCALE 16777216.0
enum { SW_SCALE_STEPS = 1000 };

struct sw_step_result {
    int64_t step;
    double loss_sum;                      /* over loss_tokens, of all ranks */
    int64_t loss_tokens;                  /* of the input */
    unsigned requests;                    /* of any rank, at the end of the step; 0 for a rank alone */
    double grad_norm;                     /* before clipping */
    bool redone;                          /* the update was speculated, wrongly, and is done again */
    bool skipped;                         /* non-finite gradients: nothing was updated */
    int64_t applied_steps, skipped_steps; /* since the first start of the run */
    double loss_scale;                    /* of this step */
    struct sw_loss_scale next_scale;      /* after it */
    double seconds;                       /* since the step before ended, or since this one began */
    double busy_seconds[SW_LANES];
    int64_t lane_bytes[SW_LANES];
};

/* Whether updates start during the backward pass, where the plan has two generations. AUTO: as pace.h says. */
typedef enum { SW_SPECULATE_NEVER, SW_SPECULATE_AUTO, SW_SPECULATE_ALWAYS } sw_speculation;

struct sw_engine_spec {
    const struct sw_plan *plan; /* checked; must outlive the engine */
    struct sw_device *device;   /* computes */
    struct sw_device *host;     /* updates in host memory; may be the same where the device computes in host memory */
    struct sw_store *store;     /* may be NULL for inference */
    struct sw_comm *comm;   /* of a plan for several ranks, whose place it has; else NULL. The engine's while a step is
                             * under way */
    struct sw_watch *watch; /* told of the lanes' ops, under 1 + their number; may be NULL */
    int io_depth;
    sw_speculation speculation;
    struct sw_unit_ops ops;
    bool described; /* sw_engine_describe gives every commit its text; false: commits keep no text */
    int64_t applied_steps, skipped_steps; /* of a resumed run */
    struct sw_loss_scale loss_scale;      /* likewise */
    int64_t trace_ops;                    /* room for the times of so many ops of training, the first ones; 0: none */
};

sw_status sw_engine_open(const struct sw_engine_spec *spec, struct sw_engine **out);
void sw_engine_close(struct sw_engine *engine);

/* Gives fp32 masters of elements [first, first+count) of a unit, padding included, as zeros. */
typedef sw_status (*sw_fill_function)(void *context, int64_t unit, int64_t first, int64_t count, float *out);
typedef sw_status (*sw_fill_prepare)(void *context, int64_t unit, int64_t first, int64_t count);

/* Where masters come from. Units are asked for in their order, their elements in theirs. */
struct sw_load {
    sw_fill_function fill; /* called by several threads at once, for grains that are next to each other */
    /* Called by one thread before the fills of these elements, while no other runs: what they read is to be in memory
     * then, and what follows may be on its way. May be NULL. */
    sw_fill_prepare prepare;
    void *context;       /* of both */
    int64_t most_grains; /* that prepare can have ready at once; 0: any */
    /* Told now and then; an error ends the loading with it. May be NULL. */
    sw_status (*progress)(void *context, int64_t done_grains, int64_t total_grains);
    void *progress_context;
};

/* Hands down the text that the commit of a step keeps, at most SW_STORE_META_BYTES with its zero, which is copied.
 * Where the spec says `described`, the caller owes it for step 0 before sw_engine_load, and for each training step
 * after sw_engine_wait has returned it, before any other call: the step's commit waits for it. */
void sw_engine_describe(struct sw_engine *engine, int64_t step, const char *text);

/* Initial state: moments are zero. With a store, all of it is committed as step 0. A rank asks for no more than it
 * keeps. */
sw_status sw_engine_load(struct sw_engine *engine, const struct sw_load *load);

/* State and weights from the store's last commit. */
sw_status sw_engine_restore(struct sw_engine *engine);

/* Where the next begun step's tokens go (host memory): the plan's token_bytes of each micro-batch, which the model lays
 * out as it likes. Valid until begin. */
int32_t *sw_engine_tokens(struct sw_engine *engine, int64_t micro);

/* At most SW_ENGINE_STEPS_AHEAD steps may be begun and not waited for. A training step leaves its update to the one
 * that is begun next, or to whatever needs the state before that. */
enum { SW_ENGINE_STEPS_AHEAD = 2 };
sw_status sw_engine_begin(struct sw_engine *engine, const struct sw_step_input *input);
/* Waits for the oldest begun step. */
sw_status sw_engine_wait(struct sw_engine *engine, struct sw_step_result *out);

/* Tells whether a lane has failed, so that only sw_engine_close is left. */
bool sw_engine_has_failed(struct sw_engine *engine);

/* Bits that all ranks are to know of, with the next steps that end (the result's requests), in place of those of
 * before. By any thread. */
void sw_engine_request(struct sw_engine *engine, unsigned requests);

/* Applies the update that the last training step left, if it did; before tokens of another program are put in place. */
sw_status sw_engine_settle(struct sw_engine *engine);

/* Whether the next training step could commit the state that it finds. */
bool sw_engine_may_save(const struct sw_engine *engine);

/* Commits the state as it is, where the last step has not been committed by the plan. */
sw_status sw_engine_save(struct sw_engine *engine);

/* State as it is: records (master|m|v by grain) and rounded gradients of the last step, widened to fp32. Grains that
 * this rank has (sw_plan_span). */
sw_status sw_engine_read_optimizer(struct sw_engine *engine, int64_t unit, int64_t first_grain, int64_t grains,
                                   float *out);
sw_status sw_engine_read_grads(struct sw_engine *engine, int64_t unit, int64_t first_grain, int64_t grains, float *out);

/* Replays a plan's I/O: from now on steps read, write, commit and wait as planned, and neither compute nor copy nor
 * update. What the transfers carry is then left over from before: for measuring on a store of no worth, with random
 * state. The engine is idle. */
void sw_engine_replay_io(struct sw_engine *engine, bool on);

/* The measured times, of an idle engine. Needs trace_ops. */
const struct sw_trace *sw_engine_trace(const struct sw_engine *engine);

#endif
