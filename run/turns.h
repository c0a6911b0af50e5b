/* Which token ends a turn in what a run learns. */
#ifndef SW_RUN_TURNS_H
#define SW_RUN_TURNS_H

#include "run/trainer.h"

/* Finds the token that ends a turn of the model's chats, where the training data teach it and the model's files do not
 * name it as an end, notes it for exports in trainer->run, and says it. */
sw_status sw_turns_find(struct sw_trainer *trainer);

#endif
