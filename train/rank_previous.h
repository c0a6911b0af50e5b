/* Going back to the commit before the last, where the last one is damaged. */
#ifndef SW_TRAIN_RANK_PREVIOUS_H
#define SW_TRAIN_RANK_PREVIOUS_H

#include "train/rank_store.h"

/* Removes the last commit of every rank's store, once all grains of the one before are found whole: a step writes over
 * them, so that they are only where the run ended before the step after its last commit had begun to write. Refuses
 * without a change what is not whole on every rank, and stores of another number of ranks. With wanted false it only
 * makes sure that no rank wants it. Call it on all ranks at once, before the stores are opened. */
sw_status sw_rank_go_to_previous(const struct sw_rank_stores *self, bool wanted);

#endif
