/* The engine owns the memory of every tier and the threads of every lane, and executes a plan.
 *
 * Ranks: all ranks of a plan make the same calls in the same order. Opening, loading, restoring, settling, saving,
 * beginning a step and reading state are collective.
 *
 * Threads: one thread makes all calls, unless a function says otherwise. It begins a training step, the lanes run it,
 * and it waits for the step. It may begin the next step before it waits, so that the end of one step overlaps the start
 * of the next. Every other call needs an idle engine: each step that was begun has been waited for.
 *
 * Errors: the first error of any lane stops all lanes. sw_engine_wait returns it, or sw_engine_begin if that changes
 * the program. After an error only sw_engine_close is allowed. */
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
    /* The run's seed and `draw` determine the random numbers of a training step. draw: the micro-batch's number over
     * all steps and ranks, from 1; its forward pass, recomputation and backward pass have the same one. 0: not a
     * training step; nothing is drawn. */
    uint64_t seed, draw;
    const void *weights;     /* the unit's flat vector in the compute type, without its base */
    const void *base;        /* the records of the unit's base; NULL: the unit has none */
    const void *rows;        /* embedding: the rows that `gather` took for this micro-batch, instead of the weights */
    const void *table;       /* head of a tied model: the embedding's weights */
    const int32_t *tokens;   /* the micro-batch's tokens, laid out as in sw_engine_tokens */
    const void *in;          /* the output of the previous unit; in the backward pass, the unit's kept input */
    const void *own_in;      /* tensor group: this rank's rows of the input. With sequence parallelism `in` is NULL */
    const void *normed;      /* sequence parallelism: all rows of the normalised input, for calls that read it; else
                              * NULL, and the unit normalises its input itself */
    void *out;               /* the unit's output; norm_forward: the normalised input, of which it writes own_rows */
    void *saved, *derived;   /* intermediates for the backward pass; `derived` can be computed again from `saved` */
    sw_recompute recompute;  /* block: which intermediates the backward pass recomputes */
    void *norm_grad;         /* tensor group: gradient at the output of the unit's norm; NULL: the unit has no norm */
    void *product_grad;      /* tensor group: gradient at the result of a block's first product, for first_product */
    void *softmax;           /* tensor group: per-row softmax terms of each rank's vocabulary shard, in rank order */
    struct sw_span own_rows; /* tensor group: the rows that this rank sums */
    void *grad;              /* the gradient at the output, overwritten with that at the input; the head creates it */
    void *own_grad;          /* tensor group: this rank's rows of the gradient, for norm_backward */
    float *acc, *table_acc;  /* fp32 gradient accumulators, laid out like the trained spans of the weights. acc NULL:
                              * the unit is frozen; table_acc NULL: the tied table is frozen */
    void *work;              /* scratch of the compute lane */
    float loss_scale;        /* factor of every token's loss in the gradient */
    /* Factor in the gradient of a loss that a micro-batch has as a whole; the step's is the mean over the micro-batches
     * of all ranks. */
    double micro_scale;
    double *loss;  /* out, host memory: the sum of the micro-batch's unscaled token losses, or one sum per
                    * sequence if the plan has pair_sequences */
    double *tally; /* out, host memory: what the model has summed over the step's micro-batches so far, from the head;
                    * NULL: the plan has no tally, or this is not a training step */
    int64_t row;   /* logits: the row of the micro-batch */
    int64_t past, count; /* logits: tokens of earlier passes, and of this pass; count 0: a whole micro-batch */
    void *cache;         /* logits: the unit's KV cache; NULL: the plan keeps none */
    float *logits;       /* logits: receives [vocab], host memory */
    void *routing;       /* logits: receives the unit's routing_bytes, host memory; NULL: not wanted */
};

typedef sw_status (*sw_unit_function)(void *context, const struct sw_unit_call *call);

/* Copies the rows that a micro-batch's tokens name out of one chunk of the embedding, in host memory. Chunks come in
 * order. `out` has room for the plan's gathered_bytes and holds the rows of earlier chunks. */
struct sw_gather_call {
    const int32_t *tokens; /* the micro-batch's tokens, laid out as in sw_engine_tokens */
    const void *weights;   /* elements [first_elem, first_elem + elems) */
    int64_t first_elem, elems;
    void *out;
};

/* Memory of a caller for `elems` elements, whole grains, from the first one asked for. Aligned to SW_LOAN_ALIGN_BYTES
 * and in the plan's type; both NULL: these elements are not lent. */
enum { SW_LOAN_ALIGN_BYTES = 64 };
struct sw_loan {
    int64_t elems;
    const void *grads;
    void *weights;
};

/* The model's arithmetic. The compute lane's thread calls it, except gather, which the update lane's thread calls. On
 * an asynchronous device a call enqueues work and does not wait for it. */
struct sw_unit_ops {
    void *context;
    /* Fills the constant part of the work area. The thread that opens the engine calls it once, before all others.
     * NULL: there is no constant part. */
    sw_status (*begin)(void *context, struct sw_stream *stream, void *work);
    sw_unit_function forward, backward; /* embedding and blocks */
    /* Tensor group: the gradients of the weights and bias of a block's last and first product. The backward pass leaves
     * these gradients out, so that they are computed while the ranks exchange the gradient at the norm's output. */
    sw_unit_function last_product, first_product;
    sw_unit_function recompute;     /* blocks: before backward, computes the intermediates of call->recompute */
    sw_unit_function norm_forward;  /* sequence parallelism: the norm of a block or the head, for own_rows */
    sw_unit_function norm_backward; /* tensor group: the norm's backward pass, for own_rows */
    sw_unit_function head_logits;   /* tensor group: the head up to the softmax terms of this rank's vocabulary shard */
    /* Expert group, instead of a block's forward pass. `send` runs the block up to the rows that the experts get, and
     * writes this rank's rows to `out`. experts_forward reads all ranks' rows in `normed` and writes this rank's part
     * of all ranks' outputs. */
    sw_unit_function send, experts_forward;
    /* Expert group, before a block's backward pass. `recall` computes intermediates again and writes the rows again.
     * experts_backward reads all ranks' gradients in `grad` and writes its part of those at `normed` to norm_grad;
     * `backward` continues from their sum. */
    sw_unit_function recall, experts_backward;
    sw_unit_function head; /* the loss and its gradient */
    sw_unit_function loss; /* the loss alone */
    sw_unit_function logits;
    /* Tells from a routing whether a `routed` unit has rows. Called on the host, by any thread. NULL: no unit is
     * routed. */
    bool (*has_rows)(void *context, int64_t unit, const void *routing);
    /* For a plan that is update_only: elements [first, first+count) of a unit, whole grains. take: writes the caller's
     * gradients in the compute type, zeros as padding; it is called twice a step for the same gradients, by the update
     * lane's thread. give: receives new weights, by that thread, or from sw_engine_restore. */
    sw_status (*take)(void *context, int64_t unit, int64_t first, int64_t count, void *grads);
    sw_status (*give)(void *context, int64_t unit, int64_t first, int64_t count, const void *weights);
    /* Returns what the caller lends of elements [first, first+count), whole grains: then gradients are read and weights
     * written where they are, instead of by take and give, with the same bits. The same until the step is done. NULL:
     * it lends nothing. */
    struct sw_loan (*lend)(void *context, int64_t unit, int64_t first, int64_t count);
    /* Changes records of elements [first, first+count) of a unit, which the step has just updated and is about to write
     * (update_only). Called by the update lane's thread. NULL: nothing is changed. */
    void (*stamp)(void *context, int64_t unit, int64_t first, int64_t count, void *records);
    /* Adds the sums of squares that others have to that of this engine's gradients, from which the norm follows
     * (update_only). Called once a step, by a thread of the engine. NULL: there are no others. */
    sw_status (*join_squares)(void *context, double *total);
    void (*gather)(void *context, const struct sw_gather_call *call); /* NULL if the plan's gathered_bytes is 0 */
    /* Adds the sums of a micro-batch's pairs to `out`. tokens: as in sw_engine_tokens; losses: call->loss as the head
     * wrote it. Any thread of the host may call it. NULL if the plan has no pair_sequences. */
    void (*score)(void *context, const int32_t *tokens, const double *losses, double out[SW_PAIR_SUMS]);
};

typedef enum { SW_STEP_TRAIN, SW_STEP_LOSS, SW_STEP_LOGITS } sw_step_kind;

struct sw_step_input {
    sw_step_kind kind;
    int64_t step;          /* from 1 (training) */
    struct sw_adamw adamw; /* rates of this step; the engine sets step, grad_scale and skip */
    struct sw_muon muon;   /* Muon's rates, for units that have such matrices; the engine sets grad_scale and skip */
    double clip;           /* largest gradient norm; 0: none */
    int64_t loss_tokens;   /* the divisor of the mean loss: tokens of all ranks that have a loss, or pairs; 0: none has
                              one */
    bool save;             /* commit the state of the previous step during this one (sw_engine_may_save) */
    /* Logits: row, past and count are those of struct sw_unit_call. logits: out, [vocab] in host memory; a rank of a
     * tensor group fills its part of the vocabulary. */
    int64_t row, past, count;
    float *logits;
};

/* Dynamic loss scaling for fp16 (Micikevicius et al. 2018): losses are multiplied by the scale, a power of two, and
 * gradients are divided by it. A step that overflows is skipped and halves the scale, down to 1; SW_SCALE_STEPS good
 * steps in a row double it. Other types keep a scale of 1. */
struct sw_loss_scale {
    double scale; /* 0 in a specification: the type's initial scale */
    int64_t good_steps;
};
#define SW_FP16_INITIAL_SCALE 65536.0
#define SW_FP16_LARGEST_SCALE 16777216.0
enum { SW_SCALE_STEPS = 1000 };

struct sw_step_result {
    int64_t step;
    double loss_sum;                      /* sum of the losses of all ranks' tokens, or pairs */
    double pair_sums[SW_PAIR_SUMS];       /* over all ranks; 0 without pairs */
    int64_t loss_tokens;                  /* as in the step's input */
    unsigned requests;                    /* bits that any rank had requested when the step ended; 0 for one rank */
    double grad_norm;                     /* before clipping */
    bool redone;                          /* the speculated update was wrong and is done again */
    bool skipped;                         /* non-finite gradients: nothing was updated */
    int64_t applied_steps, skipped_steps; /* since the first start of the run */
    double loss_scale;                    /* factor of this step's losses */
    struct sw_loss_scale next_scale;      /* scale of the next step */
    double seconds;                       /* since the previous step ended or, if later, this one began */
    double busy_seconds[SW_LANES];        /* one entry per lane, of this step */
    int64_t lane_bytes[SW_LANES];         /* bytes moved by each lane in this step */
    /* In a pipeline the busy seconds of a compute lane up to the norm: mean and least of all ranks; else 0. */
    double mean_compute_seconds, least_compute_seconds;
};

/* When updates start during the backward pass, if the plan has two generations. AUTO: pace.h decides. */
typedef enum { SW_SPECULATE_NEVER, SW_SPECULATE_AUTO, SW_SPECULATE_ALWAYS } sw_speculation;

struct sw_engine_spec {
    const struct sw_plan *plan; /* checked; must outlive the engine */
    struct sw_device *device;   /* runs the compute lane */
    struct sw_device *host;     /* runs updates in host memory; may be `device` if that computes in host memory */
    struct sw_store *store;     /* may be NULL for inference */
    /* Collectives over the plan's ranks; NULL: one rank. Only the engine uses it while a step is running. */
    struct sw_comm *comm;
    /* Borrowed: the stream on which the comm runs its collectives of device memory (sw_ranks_stream). It gets no other
     * work while a step is running. NULL: collectives use host memory. */
    struct sw_stream *comm_stream;
    struct sw_watch *watch; /* may be NULL; learns of each lane's ops as row 1 + the lane's number */
    int io_depth;           /* requests that an I/O lane keeps in flight */
    sw_speculation speculation;
    sw_rounding rounding; /* how narrow moments are rounded */
    uint64_t seed;        /* the run's seed; stochastic rounding and dropout draw from it */
    struct sw_unit_ops ops;
    /* The model's own files. Units with in_place read their frozen weights on NVMe from these. The caller keeps the
     * files open as long as the store. NULL: the plan reads nothing in place. */
    const struct sw_store_files *files;
    /* Digest of the frozen weights. Weights with this digest that an earlier process wrote to the store are reused. 0:
     * the digest is not known yet, or nothing is frozen. */
    uint64_t frozen_digest;
    bool described; /* sw_engine_describe gives every commit its text; false: commits have no text */
    int64_t applied_steps, skipped_steps; /* counts of a resumed run; 0 for a new one */
    struct sw_loss_scale loss_scale;      /* that of a resumed run; 0 for the type's initial one */
    int64_t trace_ops;                    /* ops whose times are recorded, from the first step; 0: no trace */
    /* Records one step only: the first, from step trace_step, whose program can follow itself. 0: records all. */
    int64_t trace_step;
};

/* Opens an engine: takes the memory of all tiers and starts the lanes. The caller closes it. */
sw_status sw_engine_open(const struct sw_engine_spec *spec, struct sw_engine **out);
void sw_engine_close(struct sw_engine *engine);

/* Writes the fp32 masters of elements [first, first+count) of a unit; padding becomes zero. */
typedef sw_status (*sw_fill_function)(void *context, int64_t unit, int64_t first, int64_t count, float *out);
/* Prepares the fills of elements [first, first+count) of a unit. */
typedef sw_status (*sw_fill_prepare)(void *context, int64_t unit, int64_t first, int64_t count);

/* Writes the source's own record of a grain of a unit's base, in the base's format. */
typedef sw_status (*sw_fill_record)(void *context, int64_t unit, int64_t grain, void *record);

/* A source of masters. Units are asked for in order, and the elements of a unit in order. */
struct sw_load {
    sw_fill_function fill; /* called by several threads at once, for neighbouring grains */
    /* May be NULL. One thread calls it before the fills of these elements, while no fill runs: it reads their bytes
     * into memory, and may read ahead. */
    sw_fill_prepare prepare;
    /* Called after fill, in the same way, if the base has a format that only checkpoints have. NULL: the source has no
     * records. */
    sw_fill_record record;
    void *context;       /* passed to fill, prepare and record */
    int64_t most_grains; /* the most grains that prepare holds at once; 0: any number */
    /* May be NULL. Called now and then; an error ends the loading. */
    sw_status (*progress)(void *context, int64_t done_grains, int64_t total_grains);
    void *progress_context;
    /* May be NULL. Called once, when everything is loaded; an error prevents the commit of step 0. */
    sw_status (*loaded)(void *progress_context);
};

/* Copies the text that the commit of a step keeps: at most SW_STORE_META_BYTES with its terminating zero. If the spec
 * says `described`, each commit waits for its text: the caller gives that of step 0 before sw_engine_load, and that of
 * a training step right after sw_engine_wait has returned the step. */
void sw_engine_describe(struct sw_engine *engine, int64_t step, const char *text);

/* Loads the initial state, with moments of zero, and commits it as step 0 if there is a store. A rank asks `load` only
 * for grains that it keeps. */
sw_status sw_engine_load(struct sw_engine *engine, const struct sw_load *load);

/* Restores trained state and weights from the store's last commit. Frozen weights are not committed: the caller loads
 * them by sw_engine_load_frozen. */
sw_status sw_engine_restore(struct sw_engine *engine);
/* Returns the number of grains of frozen weights that are still to be loaded. The store keeps frozen weights that were
 * written to it until they are placed elsewhere or found damaged. */
int64_t sw_engine_frozen_grains_to_load(const struct sw_engine *engine);
/* Loads these grains, and keeps them under the digest of the engine's spec. `load` is asked for no others. */
sw_status sw_engine_load_frozen(struct sw_engine *engine, const struct sw_load *load);
/* Makes the frozen weights that sw_engine_load wrote to the store durable, for later processes that open the engine
 * with this digest. 0: keeps none. */
sw_status sw_engine_keep_frozen(struct sw_engine *engine, uint64_t frozen_digest);

/* Returns the host memory for the tokens of one micro-batch of the next step: the plan's token_bytes, whose layout is
 * the model's. Valid until sw_engine_begin. */
int32_t *sw_engine_tokens(struct sw_engine *engine, int64_t micro);

/* Begins a step. At most SW_ENGINE_STEPS_AHEAD steps may be begun and not waited for. The next step applies a training
 * step's update, or the first call before it that needs the state. */
enum { SW_ENGINE_STEPS_AHEAD = 2 };
sw_status sw_engine_begin(struct sw_engine *engine, const struct sw_step_input *input);
/* Waits for the oldest begun step and returns its result. */
sw_status sw_engine_wait(struct sw_engine *engine, struct sw_step_result *out);

/* Returns one loss per sequence of a micro-batch, of the step that sw_engine_wait returned last. The plan has
 * pair_sequences. Valid until the next sw_engine_begin. */
const double *sw_engine_sequence_losses(const struct sw_engine *engine, int64_t micro);

/* Returns the sums over all micro-batches and ranks that the model kept in the step that sw_engine_wait returned last;
 * the plan has a tally. Valid until the next sw_engine_begin. */
const double *sw_engine_tally(const struct sw_engine *engine);

/* Tells whether a lane has failed, so that only sw_engine_close is left. */
bool sw_engine_has_failed(struct sw_engine *engine);

/* Replaces the bits that this rank requests. All ranks see them in the results of the next steps. Any thread may call
 * it. */
void sw_engine_request(struct sw_engine *engine, unsigned requests);

/* Applies the update that the last training step left, if any. The caller does this before it writes the tokens of an
 * evaluation. */
sw_status sw_engine_settle(struct sw_engine *engine);

/* Begin and end what sw_engine_settle does at once: the update runs while the caller does something else. Between the
 * two only sw_engine_wait_given and sw_engine_has_failed may be called. sw_engine_settle_begin needs an update that is
 * pending. */
sw_status sw_engine_settle_begin(struct sw_engine *engine);
sw_status sw_engine_settle_end(struct sw_engine *engine);

/* For a plan that is update_only, after sw_engine_settle_begin: waits until the caller has been given elements [0,
 * elems) of a unit. Their gradients are not read any more. */
sw_status sw_engine_wait_given(struct sw_engine *engine, int64_t unit, int64_t elems);

/* Tells whether the next training step can commit the state of the last one: not every step commits, and an update is
 * pending. */
bool sw_engine_may_save(const struct sw_engine *engine);

/* Commits the current state, unless the plan has committed the last step. */
sw_status sw_engine_save(struct sw_engine *engine);

/* Changes a chunk's records of optimizer state in place. */
typedef sw_status (*sw_replace_function)(void *context, int64_t unit, int64_t first_grain, int64_t grains,
                                         void *records);
struct sw_replacement {
    sw_replace_function change; /* called once for each chunk, in order */
    void *context;
    int64_t step;                         /* at least 0; may be lower than the last step */
    int64_t applied_steps, skipped_steps; /* counts of the new state */
    const char *text;                     /* of the commit; the spec says `described` */
};
/* Passes all optimizer state through `change`, makes the weights from it, and commits it as `step`. Until then the
 * store keeps the state before. For one rank, and a store of two generations. */
sw_status sw_engine_replace(struct sw_engine *engine, const struct sw_replacement *replacement);

/* Read grains of this rank's span (sw_plan_span): optimizer state in its own format, its records
 * sw_optimizer_grain_bytes apart with zeros behind shorter ones, and the last step's rounded gradients as fp32. */
sw_status sw_engine_read_optimizer(struct sw_engine *engine, int64_t unit, int64_t first_grain, int64_t grains,
                                   void *out);
sw_status sw_engine_read_grads(struct sw_engine *engine, int64_t unit, int64_t first_grain, int64_t grains, float *out);

/* Turns replay of I/O on or off: steps then read, write, commit and wait as planned, but do not compute, copy or
 * update. Transfers carry stale bytes, so this is only for measurements, on a store whose state is worthless. */
void sw_engine_replay_io(struct sw_engine *engine, bool on);

/* Returns the measured times, complete for all steps that were waited for. The spec's trace_ops was above 0. */
const struct sw_trace *sw_engine_trace(const struct sw_engine *engine);

#endif
