/* A run in memory: puts model, plan, store, data and engine together from settings, and trains. */
#ifndef SW_RUN_TRAINER_H
#define SW_RUN_TRAINER_H

#include "core/status.h"
#include "job/job.h"
#include "offload/engine/engine.h"
#include "run/data/data.h"
#include "run/departure.h"
#include "run/folder/run.h"
#include "run/folder/source.h"
#include "run/reference.h"
#include "run/stores/store_set.h"
#include "run/trace_file.h"

#include <signal.h>

struct sw_samples;

struct sw_trainer {
    const char *folder; /* folder of the run; the caller keeps the string */
    struct sw_ranks *ranks;
    struct sw_run run;
    char *model_folder;           /* folder of the model's small files (folder/run.h); NULL: none */
    json_t *given;                /* settings of a new run before anything was resolved; NULL in a resume */
    struct sw_frozen *frozen;     /* weights of units that are not trained; NULL: every unit is trained */
    struct sw_in_place *in_place; /* files from which the store reads frozen weights; NULL: it has all that it reads */
    struct sw_units *whole;   /* whole layers, if there are frozen weights and the model's units are no whole layers */
    struct sw_source *source; /* weights of a new run, until they are loaded; then, and in a resume, NULL */
    struct sw_job job;        /* made from run.settings and run.config */
    struct sw_data *data;
    struct sw_reference reference; /* of the data's pairs; zero without --dpo, and until sw_trainer_run prepares it */
    struct sw_store *store;
    struct sw_engine *engine;
    struct sw_schedule past_schedule; /* in a resume: the schedule of the steps before it */
    struct sw_run_position position;  /* the last commit before this start */
    int64_t log_flushed;              /* newest commit before which the log was flushed; 0: none */
    bool log_decides; /* the log has lines since the last flush that no commit's text has, such as those of evaluations
                       */
    bool log_fails;   /* the log cannot be flushed */
    struct sw_samples *samples;        /* NULL: --sample-every is 0 */
    double validation_loss;            /* last validation loss, in nats per token; 0: none */
    struct sw_costs costs;             /* since this start */
    struct sw_forecast forecast;       /* what rank 0's plan predicts for the steps */
    struct sw_departure departure;     /* whether steps keep to the forecast */
    struct sw_timeline_file *timeline; /* NULL: this start keeps no timeline */
    int64_t start_ns;                  /* time when this process began the run (sw_now_ns) */
    const volatile sig_atomic_t *stop; /* set by a signal handler */
    struct sw_store_set stores;
    int lock;                     /* descriptor of the lock on the run, held by rank 0; -1: none */
    int made_folders;             /* how many directories this start made: the run's folder and missing parents */
    bool made_store;              /* this start made the store */
    struct sw_confined *confined; /* the run's folder, through which its files are reached; NULL until it exists */
};

/* Creates a new run. Takes over the settings. Checks everything before writing anything; a failure leaves nothing
 * behind. With --dry-run it stops after the checks: the trainer has neither store nor engine. Until the first commit,
 * setting *stop (from a signal handler) makes it fail. */
sw_status sw_trainer_create(struct sw_settings *settings, struct sw_ranks *ranks, const volatile sig_atomic_t *stop,
                            struct sw_trainer **out);
/* Resumes a run from its last commit. change (may be NULL) edits the run's settings before they are used. */
sw_status sw_trainer_resume(const char *folder, struct sw_ranks *ranks, const volatile sig_atomic_t *stop,
                            sw_status (*change)(void *context, struct sw_settings *settings), void *context,
                            struct sw_trainer **out);
void sw_trainer_close(struct sw_trainer *trainer);

/* Returns the units by which frozen weights are kept: whole layers. Without frozen weights they are the model's. */
static inline const struct sw_units *sw_trainer_whole_units(const struct sw_trainer *trainer) {
    return trainer->whole != NULL ? trainer->whole : sw_model_get_units(trainer->job.model);
}

/* How a run ended. */
typedef enum { SW_END_DONE, SW_END_STOPPED, SW_END_TIME_LIMIT, SW_END_EARLY } sw_run_end;

/* Trains up to the settings' number of steps and logs each. A stop request ends the run after the current step. All
 * state is saved when it returns SW_OK. Returns SW_ERR_NOT_FINITE, on all ranks and with the state saved, after
 * SW_BAD_STEPS_LIMIT consecutive steps without finite loss and gradients, if no step of this start had them, or if the
 * final weights give no finite loss. */
enum { SW_BAD_STEPS_LIMIT = 10 };
sw_status sw_trainer_run(struct sw_trainer *trainer, sw_run_end *out_end);

#endif
