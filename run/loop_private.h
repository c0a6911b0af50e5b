/* The state of the training loop, and what its files share. */
#ifndef SW_RUN_LOOP_PRIVATE_H
#define SW_RUN_LOOP_PRIVATE_H

#include "run/folder/run_names.h"
#include "run/steplog.h"
#include "run/trainer.h"

/* The evaluations of --eval-every, in this start and before it. */
struct best_evaluation {
    int64_t step; /* the step of the least loss; 0: there is none */
    double loss;
    int64_t since; /* evaluations after it */
};

/* A training loop. Steps are numbered from 1. */
struct loop {
    struct sw_trainer *trainer;
    struct sw_steplog *log; /* NULL on ranks other than 0 */
    struct sw_schedule schedule;
    int64_t first_step, last_step;                /* first step of this start, and last step of the run */
    int64_t begun;                                /* last step that was begun */
    struct sw_run_step last[SW_RUN_RECENT_STEPS]; /* last steps that ended, oldest first */
    sw_status failure;                            /* first failure outside the engine (keep_failure); SW_OK: none */
    char failure_text[SW_WATCH_TEXT_CHARS];       /* message of that failure */
    struct sw_run_names *names;                   /* of the run's files */
    int64_t looked_ns;                            /* when these names were last looked at */
    bool saved;                                   /* the final save has succeeded */
    int64_t evaluated, sampled;                   /* last steps that the log has an evaluation and samples of */
    struct best_evaluation best;                  /* the same on all ranks */
    unsigned heard;                               /* requests of all ranks, up to the last step that ended */
    int64_t ended_ns;                             /* when the last step ended, or this loop began */
    int64_t bad_steps;                            /* steps without finite loss or gradients in a row, up to now */
    int64_t good_steps;                           /* steps of this start with finite loss and gradients */
    int64_t empty_steps;                          /* steps of this start without any token that has a loss */
    int64_t applied_steps;                        /* steps of the whole run that changed the weights */
    double seconds_per_step;                      /* smoothed */
    double longest_pause_seconds;                 /* longest evaluation or export between two steps */
    bool out_of_time;                             /* --time-limit ends the run */
    bool stopped_early;                           /* --early-stop ends the run */
    int64_t nvme_bytes;                           /* size of the store's files */
    int64_t saved_ns;  /* when the last save began; with several ranks, rank 0's clock decides */
    int64_t save_step; /* first step that began after that save; requests of earlier steps are answered by it */
    bool save_is_due;  /* the time between saves is over; all ranks agree on it */
    bool saves[SW_ENGINE_STEPS_AHEAD]; /* indexed by step modulo its length: a begun step carries a save */
};

/* Fills in this rank's sequences of a step, and counts the targets of all ranks that masks and documents leave. */
sw_status sw_loop_fill_tokens(struct sw_trainer *trainer, int64_t step, int64_t *out_loss_tokens);

/* Keeps a failure until the final save: a full disk, a failed export or unreadable data must not cost the steps since
 * the last commit. It ends the run like a stop request, and is returned after the save. A failure of the engine is
 * returned at once, since nothing can be saved then. Later failures are dropped. */
sw_status sw_loop_keep_failure(struct loop *loop, sw_status status);

/* Tell whether an evaluation, samples or an export follow this step. With --early-stop an export follows each step
 * whose evaluation was the best, which is known once it was evaluated. */
bool sw_loop_evaluates_after(const struct loop *loop, int64_t step);
bool sw_loop_samples_after(const struct loop *loop, int64_t step);
bool sw_loop_exports_after(const struct loop *loop, int64_t step);

/* Returns the mean loss over the whole validation part. The engine must be idle. */
sw_status sw_loop_validate(struct sw_trainer *trainer, double *out_loss, int64_t *out_tokens);

/* Counts an evaluation of --eval-every for --early-stop. A loss that is not finite is no improvement. */
void sw_loop_note_evaluation(struct loop *loop, int64_t step, double loss);

/* Tells whether a step's gradient was scaled down to --clip. */
bool sw_loop_clips(const struct loop *loop, double grad_norm, bool skipped);

/* Evaluates and logs the loss. *out_loss is unchanged if the evaluation fails. The engine must be idle. */
sw_status sw_loop_evaluate(struct loop *loop, int64_t step, double *out_loss);

/* Logs samples after a step that the log has none of. The engine must be idle. */
sw_status sw_loop_sample(struct loop *loop, int64_t step);
/* Exports and logs the weights after a step. loss: of the validation data, NAN: none. The engine must be idle. */
sw_status sw_loop_export(struct loop *loop, int64_t step, double loss);

/* Does what a killed process should have done after the last commit: log lines, an evaluation, samples, an export. */
sw_status sw_loop_catch_up(struct loop *loop);

/* Make sure that the names of the run's files lead to them. The first does so once a second, between two steps; the
 * second after the final save, on all ranks together, and writes removed files anew. The failure of that makes
 * loop->saved false. */
sw_status sw_loop_keep_names(struct loop *loop);
sw_status sw_loop_put_back_names(struct loop *loop);

/* Saves the state after the last step, and checks that the run has learned: evaluates it, and fails if too many steps,
 * or the final weights, were not finite. */
sw_status sw_loop_finish(struct loop *loop, int64_t step, sw_run_end *out_end);

#endif
