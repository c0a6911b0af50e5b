/* The engine owns the memory of every tier and the threads of every lane, and obeys a plan.
 *
 * The ranks of a plan for several ranks make the same calls in the same order: opening, loading, restoring, settling,
 * saving, beginning a step and reading state are done together.
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
    /* Random numbers of a training step are drawn from the run's seed and by `draw`: the number of the micro-batch
     * among those of all steps and ranks, from 1 on, equal for its forward pass, recomputation and backward pass. draw
     * 0: this is no training, and nothing is drawn. */
    uint64_t seed, draw;
    const void *weights;     /* the unit's flat vector in the compute type, from behind its base on */
    const void *base;        /* the records of the unit's base; NULL: it has none */
    const void *rows;        /* embedding: rows that `gather` took for this micro-batch, in place of the weights */
    const void *table;       /* head of a tied model: the embedding's weights */
    const int32_t *tokens;   /* the micro-batch's tokens, laid out as in sw_engine_tokens */
    const void *in;          /* output of the unit before, or, in the backward pass, the input that the plan keeps */
    const void *own_in;      /* tensor group: this rank's rows of it. With sequence parallelism `in` is NULL */
    const void *normed;      /* sequence parallelism: the normalised input, all rows; NULL where the call reads none.
                              * Without sequence parallelism NULL: the unit computes it */
    void *out;               /* the unit's output; of norm_forward the normalised input, of which it writes own_rows */
    void *saved, *derived;   /* intermediates for the backward pass, and those that follow from them */
    sw_recompute recompute;  /* block: which intermediates are computed again for the backward pass */
    void *norm_grad;         /* tensor group: gradient at the output of the unit's norm; NULL: the unit has no norm */
    void *product_grad;      /* tensor group: gradient at the result of a block's first product, for first_product */
    void *softmax;           /* tensor group: what each rank tells of its part of the vocabulary, rank after rank */
    struct sw_span own_rows; /* tensor group: the rows that this rank adds up */
    void *grad;              /* gradient at the output, replaced by that at the input; the head writes it */
    void *own_grad;          /* tensor group: this rank's rows of it, for norm_backward */
    float *acc, *table_acc;  /* gradient accumulators, fp32, laid out as the trained spans of the weights; acc NULL: the
                              * unit is frozen; table_acc NULL: the tied table is, and gets no gradient */
    void *work;              /* scratch of the compute lane */
    float loss_scale;        /* factor of every token's loss in the gradient */
    double *loss;        /* host memory: receives the sum of the micro-batch's token losses, unscaled; or one sum per
                          * sequence, where the plan has pair_sequences */
    int64_t row;         /* logits: row of the micro-batch */
    int64_t past, count; /* logits: tokens before this pass, and in it; count 0: a whole micro-batch */
    void *cache;         /* logits: the unit's KV cache; NULL: the plan keeps none */
    float *logits;       /* logits: receives [vocab], host memory */
};

typedef sw_status (*sw_unit_function)(void *context, const struct sw_unit_call *call);

/* Takes from one chunk of the embedding the rows that a micro-batch's tokens name; all memory is host memory. Chunks
 * come in order. `out` has the plan's gathered_bytes and keeps the rows of earlier chunks. */
struct sw_gather_call {
    const int32_t *tokens; /* the micro-batch's tokens, laid out as in sw_engine_tokens */
    const void *weights;   /* elements [first_elem, first_elem + elems) */
    int64_t first_elem, elems;
    void *out;
};

/* The model's arithmetic. Called on the compute lane's thread, gather on the update lane's. Where the device is
 * asynchronous, calls give it work and do not wait for it. */
struct sw_unit_ops {
    void *context;
    /* Fills the part of the work area that stays; called once, before all others, by the thread that opens the engine.
     * NULL: nothing stays. */
    sw_status (*begin)(void *context, struct sw_stream *stream, void *work);
    sw_unit_function forward, backward; /* embedding and blocks */
    /* Tensor group: the gradients of the weights and bias of a block's last and first product, which its backward pass
     * leaves out. The gradient at the norm's output can so be exchanged while these are computed. */
    sw_unit_function last_product, first_product;
    sw_unit_function recompute;     /* blocks: before backward, fills what call->recompute says */
    sw_unit_function norm_forward;  /* sequence parallelism: the norm of a block or the head, for own_rows */
    sw_unit_function norm_backward; /* tensor group: the norm's backward pass, for own_rows */
    sw_unit_function head_logits;   /* tensor group: the head up to this rank's part of the softmax */
    sw_unit_function head;          /* loss and its gradient */
    sw_unit_function loss;          /* loss only */
    sw_unit_function logits;
    void (*gather)(void *context, const struct sw_gather_call *call); /* NULL where the plan's gathered_bytes is 0 */
    /* Adds the pairs of a micro-batch to `out`. tokens: as in sw_engine_tokens; losses: what the head wrote to
     * call->loss. Called on the host, by any thread. NULL where the plan has no pair_sequences. */
    void (*score)(void *context, const int32_t *tokens, const double *losses, double out[SW_PAIR_SUMS]);
};

typedef enum { SW_STEP_TRAIN, SW_STEP_LOSS, SW_STEP_LOGITS } sw_step_kind;

struct sw_step_input {
    sw_step_kind kind;
    int64_t step;          /* from 1 (training) */
    struct sw_adamw adamw; /* rates of this step; the engine sets step, grad_scale and skip */
    double clip;           /* largest gradient norm; 0: none */
    int64_t loss_tokens; /* tokens of all ranks that count in the loss, or pairs, whose mean is over these; 0: none has
                            a loss */
    bool save;           /* commit the state of the step before beside this one (sw_engine_may_save) */
    /* Logits: the row of the pass; tokens whose earlier passes have filled the KV caches; tokens of this pass, 0 for a
     * whole micro-batch; receives [vocab] in host memory, of which a tensor group's rank fills its part. */
    int64_t row, past, count;
    float *logits;
};

/* Dynamic loss scaling for fp16 (Micikevicius et al. 2018): losses are multiplied by the scale, a power of two, and
 * gradients divided by it again. A step that overflows is skipped and halves it, down to 1; SW_SCALE_STEPS good steps
 * in a row double it. Other types keep 1. */
struct sw_loss_scale {
    double scale; /* 0 in a specification: the type's initial one */
    int64_t good_steps;
};
#define SW_FP16_INITIAL_SCALE 65536.0
#define SW_FP16_LARGEST_SCALE 16777216.0
enum { SW_SCALE_STEPS = 1000 };

struct sw_step_result {
    int64_t step;
    double loss_sum;                      /* token losses of all ranks, over loss_tokens tokens; or losses of pairs */
    double pair_sums[SW_PAIR_SUMS];       /* over all ranks; 0 where there are no pairs */
    int64_t loss_tokens;                  /* as in the step's input */
    unsigned requests;                    /* bits that any rank had requested when the step ended; 0 for a rank alone */
    double grad_norm;                     /* before clipping */
    bool redone;                          /* the update was speculated, wrongly, and is done again */
    bool skipped;                         /* non-finite gradients: nothing was updated */
    int64_t applied_steps, skipped_steps; /* since the first start of the run */
    double loss_scale;                    /* factor of this step's losses */
    struct sw_loss_scale next_scale;      /* scale of the next step */
    double seconds;                       /* since the step before ended, or since this one began */
    double busy_seconds[SW_LANES];        /* one entry per lane, of this step */
    int64_t lane_bytes[SW_LANES];         /* bytes moved by each lane in this step */
};

/* When updates start in the backward pass, where the plan has two generations. AUTO: by the rule of pace.h. */
typedef enum { SW_SPECULATE_NEVER, SW_SPECULATE_AUTO, SW_SPECULATE_ALWAYS } sw_speculation;

struct sw_engine_spec {
    const struct sw_plan *plan; /* checked; must outlive the engine */
    struct sw_device *device;   /* computes */
    struct sw_device *host;     /* updates in host memory; may be the same where the device computes in host memory */
    struct sw_store *store;     /* may be NULL for inference */
    /* Collectives of a plan for several ranks, whose ranks and rank it has; NULL for a rank alone. Nobody else uses it
     * while a step is under way. */
    struct sw_comm *comm;
    /* The stream to which the comm gives its collectives of the device's memory (sw_ranks_stream); NULL: they exchange
     * the host's memory. The caller keeps it, and gives it no other work while a step is under way. */
    struct sw_stream *comm_stream;
    struct sw_watch *watch; /* is told of each lane's ops, under 1 + the lane's number; may be NULL */
    int io_depth;           /* requests that an I/O lane keeps in flight */
    sw_speculation speculation;
    sw_rounding rounding; /* of narrow moments */
    uint64_t seed;        /* of the run: stochastic rounding draws from it */
    struct sw_unit_ops ops;
    /* The model's own files, from which units with in_place read frozen weights that are placed on NVMe; NULL: the plan
     * reads none in place. The caller keeps them open as long as the store. */
    const struct sw_store_files *files;
    /* Digest of the frozen weights, by which those that an earlier process wrote to the store are taken over. 0: they
     * are not known yet, or there are none. */
    uint64_t frozen_digest;
    bool described; /* sw_engine_describe gives every commit its text; false: commits keep no text */
    int64_t applied_steps, skipped_steps; /* counts of a resumed run; 0 for a new one */
    struct sw_loss_scale loss_scale;      /* scale of a resumed run; 0 for the type's initial one */
    int64_t trace_ops;                    /* ops whose times are kept, from the first step on; 0: no trace */
    /* The times of one step alone are kept: of the first from this one on whose program can follow itself. 0: of all */
    int64_t trace_step;
};

/* Opens an engine, which takes the memory of all tiers and starts the lanes. The caller closes it. */
sw_status sw_engine_open(const struct sw_engine_spec *spec, struct sw_engine **out);
void sw_engine_close(struct sw_engine *engine);

/* Writes the fp32 masters of elements [first, first+count) of a unit; padding gets zeros. */
typedef sw_status (*sw_fill_function)(void *context, int64_t unit, int64_t first, int64_t count, float *out);
/* Prepares the fills of elements [first, first+count) of a unit. */
typedef sw_status (*sw_fill_prepare)(void *context, int64_t unit, int64_t first, int64_t count);

/* Writes the record of a grain of a unit's base as the source has it, in the format of the base. */
typedef sw_status (*sw_fill_record)(void *context, int64_t unit, int64_t grain, void *record);

/* A source of masters. Units are asked for in order, and the elements of a unit in order. */
struct sw_load {
    sw_fill_function fill; /* called by several threads at once, for neighbouring grains */
    /* Called by one thread before the fills of these elements, while no fill runs: brings what they read into memory,
     * and may start on what follows. May be NULL. */
    sw_fill_prepare prepare;
    /* Called like fill, after it, where the base has a format that only checkpoints have. NULL: the source has none. */
    sw_fill_record record;
    void *context;       /* passed to fill, prepare and record */
    int64_t most_grains; /* grains that prepare can have ready at once; 0: any number */
    /* Receives progress now and then; its error ends the loading. May be NULL. */
    sw_status (*progress)(void *context, int64_t done_grains, int64_t total_grains);
    void *progress_context;
    /* Called once when all is loaded, before the commit of step 0; its error prevents the commit. May be NULL. */
    sw_status (*loaded)(void *progress_context);
};

/* Hands down the text that the commit of a step keeps, at most SW_STORE_META_BYTES with its zero, which is copied.
 * Where the spec says `described`, the caller owes it for step 0 before sw_engine_load, and for each training step
 * after sw_engine_wait has returned it, before any other call: the step's commit waits for it. */
void sw_engine_describe(struct sw_engine *engine, int64_t step, const char *text);

/* Loads the initial state, with moments of zero, and commits it as step 0 where there is a store. A rank asks `load`
 * only for grains that it keeps. */
sw_status sw_engine_load(struct sw_engine *engine, const struct sw_load *load);

/* Restores state and weights from the store's last commit. The store has nothing of what is frozen: the caller also
 * loads that. */
sw_status sw_engine_restore(struct sw_engine *engine);
/* Returns the grains of frozen weights that are not in their place yet. The store keeps those that were written to it,
 * until they are placed elsewhere or found damaged. */
int64_t sw_engine_frozen_grains_to_load(const struct sw_engine *engine);
/* Loads these grains, and keeps them by the digest of the engine's spec. `load` is asked for no others. */
sw_status sw_engine_load_frozen(struct sw_engine *engine, const struct sw_load *load);
/* Keeps the frozen weights that sw_engine_load has written to the store, durably, for later processes whose engines are
 * opened with this digest. 0: keeps none. */
sw_status sw_engine_keep_frozen(struct sw_engine *engine, uint64_t frozen_digest);

/* Returns the host memory for the tokens of one micro-batch of the next begun step: the plan's token_bytes, laid out as
 * the model likes. Valid until sw_engine_begin. */
int32_t *sw_engine_tokens(struct sw_engine *engine, int64_t micro);

/* Begins a step; at most SW_ENGINE_STEPS_AHEAD may be begun and not waited for. A training step leaves its update to
 * the step that is begun next, or to whatever call needs the state before that. */
enum { SW_ENGINE_STEPS_AHEAD = 2 };
sw_status sw_engine_begin(struct sw_engine *engine, const struct sw_step_input *input);
/* Waits for the oldest begun step and returns its result. */
sw_status sw_engine_wait(struct sw_engine *engine, struct sw_step_result *out);

/* Returns the losses of a micro-batch's sequences in the step that sw_engine_wait returned last; the plan has
 * pair_sequences. Valid until the next sw_engine_begin. */
const double *sw_engine_sequence_losses(const struct sw_engine *engine, int64_t micro);

/* Tells whether a lane has failed, so that only sw_engine_close is left. */
bool sw_engine_has_failed(struct sw_engine *engine);

/* Replaces the bits that this rank requests; all ranks get them in the results of the steps that end next. Any thread
 * may call it. */
void sw_engine_request(struct sw_engine *engine, unsigned requests);

/* Applies the update that the last training step left, if any. Called before the tokens of an evaluation are put in
 * place. */
sw_status sw_engine_settle(struct sw_engine *engine);

/* Tells whether the next training step can commit the state that it finds: not every step commits, and an update waits.
 */
bool sw_engine_may_save(const struct sw_engine *engine);

/* Commits the state as it is, where the last step has not been committed by the plan. */
sw_status sw_engine_save(struct sw_engine *engine);

/* Reads grains that this rank has (sw_plan_span): optimizer state, as its format has it, and the rounded gradients of
 * the last step, widened to fp32. */
sw_status sw_engine_read_optimizer(struct sw_engine *engine, int64_t unit, int64_t first_grain, int64_t grains,
                                   void *out);
sw_status sw_engine_read_grads(struct sw_engine *engine, int64_t unit, int64_t first_grain, int64_t grains, float *out);

/* Replays a plan's I/O: from now on steps read, write, commit and wait as planned, and neither compute nor copy nor
 * update. Transfers carry stale bytes, so this is only for measurements on a store whose state is worthless. The engine
 * is idle. */
void sw_engine_replay_io(struct sw_engine *engine, bool on);

/* Returns the measured times, which are complete for all steps that were waited for; trace_ops was above 0. */
const struct sw_trace *sw_engine_trace(const struct sw_engine *engine);

#endif
