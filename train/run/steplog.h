/* What a run reports: log.jsonl, one line a step or evaluation, and the line for people on standard error. */
#ifndef SW_TRAIN_RUN_STEPLOG_H
#define SW_TRAIN_RUN_STEPLOG_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

/* NULL is the log of a rank that has none, since rank 0 writes for all: nothing comes of it. */
struct sw_steplog;

/* Numbers that are not finite stand for "not known" or "not a number", and are null in JSON. */
struct sw_step_record {
    int64_t step;   /* from 1 */
    int64_t time_s; /* when the line was written, in seconds since 1970; 0: not known. Set by sw_steplog_step */
    double loss;    /* nats a token */
    double grad_norm;
    double lr;
    int64_t tokens; /* of this step */
    double seconds;
    double tokens_per_second;
    double mfu; /* model flops over the device's peak */
    bool skipped;
    bool saved;          /* it committed: its own state where every step does, else that of the step before it */
    bool carries_save;   /* it took longer by a save, where not every step commits */
    int64_t ranks, zero; /* how many shared the work, and the ZeRO stage */
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
    int64_t time_s;  /* as of a step; set by sw_steplog_evaluation */
    double val_loss; /* nats a token */
    int64_t val_tokens;
};

/* Opens the log at path, made if it is not there, and removes every line beyond last_step (0: all of them), so that a
 * resumed run's log has each step once. total_steps is for people's lines. The caller closes it. */
sw_status sw_steplog_open(const char *path, int64_t last_step, int64_t total_steps, struct sw_steplog **out);
sw_status sw_steplog_close(struct sw_steplog *log);
/* Makes the lines last that a log has so far, on any thread. Nothing happens where there is none
 * yet. */
sw_status sw_steplog_flush(const char *path);

/* Each writes its line at once. They allocate nothing. */
sw_status sw_steplog_step(struct sw_steplog *log, struct sw_step_record record);
sw_status sw_steplog_evaluation(struct sw_steplog *log, struct sw_eval_record record);

/* The last step and the last evaluation that the log has; 0: none. */
int64_t sw_steplog_last_step(const struct sw_steplog *log);
int64_t sw_steplog_last_evaluation(const struct sw_steplog *log);
/* Writes the line of a step that was committed by a process that died before it could; for people there is none. What
 * died with the process is null, or 0 bytes. */
sw_status sw_steplog_restore(struct sw_steplog *log, struct sw_step_record record);

#endif
