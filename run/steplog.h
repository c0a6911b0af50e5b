/* The log of a run: log.jsonl, with one line per step, evaluation, sample and export, and the same for people on
 * standard error. */
#ifndef SW_RUN_STEPLOG_H
#define SW_RUN_STEPLOG_H

#include "core/status.h"
#include "run/trainer.h"
#include "text/buffer.h"

#include <stdbool.h>
#include <stdint.h>

/* NULL is the log of every rank except rank 0: its functions do nothing, since rank 0 writes for all. */
struct sw_steplog;

/* A number that is not finite means "unknown" or "not a number", and is null in JSON. */
struct sw_step_record {
    int64_t step;        /* number of the step, from 1 */
    int64_t time_s;      /* when the line was written, in seconds since 1970; 0: unknown. Set by sw_steplog_step */
    double loss;         /* nats per token, or mean over pairs; NaN: not finite, or no token of the step has a loss */
    int64_t loss_tokens; /* tokens with a loss, over all ranks; -1: unknown, or the loss is a mean over pairs */
    double grad_norm;
    bool clipped; /* the gradient was scaled down */
    /* Share of the last 100 steps that were clipped, or of all if there are fewer; set by the log. */
    double clipped_share;
    double lr;
    int64_t tokens;            /* tokens of this step, over all ranks */
    struct sw_rewards rewards; /* --dpo; left out of the line if there are no pairs */
    struct {
        int64_t stages, interleave; /* of ranks, and the turns of each stage */
        int64_t groups;             /* of micro-batches that pass through the stages one after the other */
        double idle, most_idle;     /* share of the step in which compute lanes waited: mean and most of all ranks */
        double formula;             /* sw_plan_equal_bubble */
    } pipeline;                     /* left out of the line if `stages` is 0 */
    struct {
        double load;             /* the tokens of the busiest expert over the mean of its layer; 0: none were counted */
        int64_t idle;            /* experts of all layers without a token */
        double aux_loss, z_loss; /* of the routers, means over micro-batches; NaN: not in the training */
    } experts;                   /* left out of the line if `load` is 0 */
    double seconds;
    double tokens_per_second;
    double mfu; /* model flops over the device's peak */
    bool skipped;
    bool saved;        /* the step made a commit: of its own state if every step commits, else of the state before it */
    bool carries_save; /* the step ran together with a save, which made it longer; only if not every step commits */
    int64_t ranks, zero; /* number of ranks, and the ZeRO stage */
    double eta_seconds;
    struct {
        double compute, upload, download, read, write, update, comm;
    } lanes; /* busy seconds */
    struct {
        int64_t nvme_read, nvme_write, upload, download, comm;
    } bytes;
    struct {
        int64_t device, host, nvme;
    } peak; /* bytes */
};

struct sw_eval_record {
    int64_t step;
    int64_t time_s;            /* as in sw_step_record; set by sw_steplog_evaluation */
    double val_loss;           /* nats per token; NaN: not finite, or no token has a loss */
    int64_t val_tokens;        /* tokens with a loss */
    double seconds;            /* how long the evaluation took */
    struct sw_rewards rewards; /* --dpo; left out of the line if there are no pairs */
};

/* A prompt and the run's continuation. */
struct sw_sample_record {
    struct sw_text prompt, text; /* the prompt as given, and the text without it; borrowed, UTF-8 */
    double seconds;              /* how long the continuation took */
};

/* Opens the log at `path`, or creates it, and removes every line after last_step (0: all lines), so that the log of a
 * resumed run has each step once. total_steps is printed in the lines for people. The caller closes the log. */
sw_status sw_steplog_open(const char *path, int64_t last_step, int64_t total_steps, struct sw_steplog **out);
/* Makes sure that the log's path still leads to the file being written, and writes the file again if it was removed.
 * Warns once if that fails: a run goes on without its log. */
void sw_steplog_keep_name(struct sw_steplog *log);
sw_status sw_steplog_close(struct sw_steplog *log);
/* Flushes the lines of a log to the drive; any thread may call it. Does nothing if the file does not exist. */
sw_status sw_steplog_flush(const char *path);

/* Write a line at once. Neither allocates. */
sw_status sw_steplog_step(struct sw_steplog *log, struct sw_step_record record);
sw_status sw_steplog_evaluation(struct sw_steplog *log, struct sw_eval_record record);

/* Writes the lines of a step's samples together, so that a killed process leaves all of them or none. It allocates. */
sw_status sw_steplog_samples(struct sw_steplog *log, int64_t step, const struct sw_sample_record *samples, int count);

/* Writes the lines of the tokens that went to each expert of each layer in the last `steps` steps, a line per layer, in
 * one call. tokens: [layers, experts]. It allocates. */
sw_status sw_steplog_expert_tokens(struct sw_steplog *log, int64_t step, int64_t steps, int64_t layers, int64_t experts,
                                   const double *tokens);

/* Writes the line of an export of the weights after a step; `seconds` is the time it took. */
sw_status sw_steplog_export(struct sw_steplog *log, int64_t step, double seconds);

/* Return the last step in the log, and the steps of its last evaluation and of its last samples; 0: none. */
int64_t sw_steplog_last_step(const struct sw_steplog *log);
int64_t sw_steplog_last_evaluation(const struct sw_steplog *log);
int64_t sw_steplog_last_sample(const struct sw_steplog *log);
/* Returns the evaluations that the log had when it was opened, oldest first; only steps and losses are read. The log
 * owns them. */
const struct sw_eval_record *sw_steplog_evaluations(const struct sw_steplog *log, int64_t *out_count);
/* Writes the line of a step that was committed by a process killed before it could write one. Facts that only that
 * process knew are null, or 0 bytes. Prints nothing for people. */
sw_status sw_steplog_restore(struct sw_steplog *log, struct sw_step_record record);

/* Room for the longest line; a static assertion in steplog.c checks it. */
enum { SW_STEPLOG_LINE_CHARS = 2880 };

/* Write a line without its end into buffer and return its length. */
int sw_step_to_json(const struct sw_step_record *record, char buffer[SW_STEPLOG_LINE_CHARS]);
int sw_step_to_text(const struct sw_step_record *record, int64_t total_steps, char buffer[SW_STEPLOG_LINE_CHARS]);
int sw_eval_to_text(const struct sw_eval_record *record, char buffer[SW_STEPLOG_LINE_CHARS]);

/* Writes a time in UTC to the second, as in RFC 3339. Returns buffer, or NULL if the time is 0 (unknown). */
enum { SW_TIME_CHARS = 32 };

/* Returns the mean loss of a step, in nats per token; NaN if none of its tokens has a loss. */
double sw_step_mean_loss(const struct sw_step_result *result);
/* Returns what a commit keeps of a finished training step, made with this learning rate. */
struct sw_run_step sw_commit_text_step(const struct sw_step_result *result, double lr);

/* Hands the engine the commit text of step 0. */
sw_status sw_commit_text_begin(struct sw_trainer *trainer);
/* Hands the engine the commit text of a training step that has ended. recent: the last steps, this one last. */
sw_status sw_commit_text_hand(struct sw_trainer *trainer, const struct sw_step_result *result,
                              const struct sw_run_step recent[SW_RUN_RECENT_STEPS]);

/* Flushes the log before a commit that follows these steps, so that no resume finds a commit whose steps the log lacks.
 * Call it before handing over the text of a committing step, and before sw_engine_save. A log that cannot be flushed is
 * no reason to stop training. */
void sw_commit_text_flush_log(struct sw_trainer *trainer, const struct sw_run_step recent[SW_RUN_RECENT_STEPS]);

#endif
