/* The parts of a start that a new run and a resume share. After each part that a rank does by itself, all ranks learn
 * whether it failed on any. */
#ifndef SW_RUN_TRAINER_PRIVATE_H
#define SW_RUN_TRAINER_PRIVATE_H

#include "run/stores/rank_store.h"
#include "run/trainer.h"

/* Allocates a trainer with nothing open. *stop is the request to stop. */
sw_status sw_trainer_make(const char *folder, struct sw_ranks *ranks, const volatile sig_atomic_t *stop,
                          struct sw_trainer **out);
/* Do everything that can be refused before anything is written: sw_trainer_prepare_inputs opens device and data and
 * resolves the settings, sw_trainer_prepare_plan makes the model and outlines the plan. */
sw_status sw_trainer_prepare_inputs(struct sw_trainer *trainer);
sw_status sw_trainer_prepare_plan(struct sw_trainer *trainer);
/* Chooses and completes the cheapest plan. Checks its memory again, as it may take more than the plan that was checked,
 * and that all ranks have the same collectives. */
sw_status sw_trainer_choose_plan(struct sw_trainer *trainer);
/* Returns how this run's stores are made and opened. */
struct sw_rank_stores sw_trainer_stores(struct sw_trainer *trainer);
/* Adds the id of this start to the run, before its first commit, which carries the id. */
sw_status sw_trainer_add_start(struct sw_trainer *trainer);
/* Opens the engine, with nothing loaded. */
sw_status sw_trainer_open_engine(struct sw_trainer *trainer);

/* Returns the shape of the trainer's model. */
struct sw_model_shape sw_trainer_shape(const struct sw_trainer *trainer);

#endif
