/* A run in memory: model, plan, store, data and engine, put together from settings; and the steps of training on it. */
#ifndef SW_TRAIN_RUN_TRAINER_H
#define SW_TRAIN_RUN_TRAINER_H

#include "core/status.h"
#include "offload/engine/engine.h"
#include "offload/simulate/update_price.h"
#include "train/data/data.h"
#include "train/devices/devices.h"
#include "train/devices/ranks.h"
#include "train/folder/run.h"
#include "train/folder/source.h"
#include "train/model/model.h"
#include "train/run/costs.h"
#include "train/settings/settings.h"
#include "train/stores/start.h"

#include <signal.h>

struct sw_trainer {
    const char *folder; /* of the run */
    struct sw_ranks *ranks;
    struct sw_run run;
    struct sw_source *source; /* a new run's weights, until they are loaded; NULL when resumed */
    struct sw_devices devices;
    struct sw_model *model;
    struct sw_plan *plan;
    struct sw_data *data;
    struct sw_store *store;
    struct sw_engine *engine;
    struct sw_schedule past_schedule;               /* of the steps before this start, where it is a resume */
    struct sw_run_position position;                /* of the last commit at the start */
    struct sw_run_step recent[SW_RUN_RECENT_STEPS]; /* of this start's commits, on the lane that commits */
    int64_t log_flushed;     /* the step of the last commit that the log was flushed before; 0: none; on that lane */
    bool log_fails;          /* to be flushed; likewise */
    double validation_loss;  /* the last one measured, in nats a token; 0: none */
    struct sw_costs costs;   /* of this start */
    double predicted_step_s; /* seconds; 0: not priced */
    int64_t start_ns;
    const volatile sig_atomic_t *stop; /* set by a signal handler */
    struct sw_start start;
    int lock;         /* on the run, held by rank 0; else -1 */
    int made_folders; /* the run's folder and parents that were missing, made by this start */
    bool made_store;
};

/* A new run: settings move into the trainer. Everything is checked before anything is written; on failure nothing is
 * left. *stop (set by a signal handler) is a failure until the first commit. */
sw_status sw_trainer_create(struct sw_settings *settings, struct sw_ranks *ranks, const volatile sig_atomic_t *stop,
                            struct sw_trainer **out);
/* Goes on from the last commit. change (may be NULL) is applied to the run's settings before they are used. */
sw_status sw_trainer_resume(const char *folder, struct sw_ranks *ranks, const volatile sig_atomic_t *stop,
                            sw_status (*change)(void *context, struct sw_settings *settings), void *context,
                            struct sw_trainer **out);
void sw_trainer_close(struct sw_trainer *trainer);

/* Returns the part of a finished training step that a commit keeps. */
struct sw_run_step sw_trainer_run_step(const struct sw_step_result *result);

/* Of a training step, in nats a token. */
double sw_trainer_mean_loss(const struct sw_step_result *result);

/* How a run ended. */
typedef enum { SW_END_DONE, SW_END_STOPPED, SW_END_TIME_LIMIT } sw_run_end;

/* Trains up to the settings' number of steps, logging each; *stop (set by a signal handler) ends after the current
 * step. All is saved when it returns SW_OK. SW_ERR_NOT_FINITE, on all
 * ranks, after SW_BAD_STEPS_LIMIT steps in a row without finite loss and gradients, where no step of the run had them,
 * and where the weights at the end give no finite loss: the state is saved then too. */
enum { SW_BAD_STEPS_LIMIT = 10 };
sw_status sw_trainer_run(struct sw_trainer *trainer, const volatile sig_atomic_t *stop, sw_run_end *out_end);

#endif
