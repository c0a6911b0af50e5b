/* Hugging Face folders that a run writes while it goes on: DIR/exports/step-N, of which the best by validation loss are
 * kept, or where there is no validation data the newest. DIR/exports/index.json lists them with their losses; one
 * that it calls `unlisted` is being written or removed, and goes with the next start or export. */
#ifndef SW_TRAIN_RUN_EXPORTS_H
#define SW_TRAIN_RUN_EXPORTS_H

#include "train/run/trainer.h"

enum { SW_EXPORTS_MOST = 1000 };

/* All ranks at once call both, with idle engines; the folder is rank 0's. */

/* Whether the list has this step. A list that cannot be read has none; writing names what is wrong with it. */
sw_status sw_exports_has(struct sw_trainer *trainer, int64_t step, bool *out);

/* Removes what a kill has left of exports in a run's folder: the list says which are not whole, or no longer kept. */
sw_status sw_exports_tidy(const char *run_folder);

/* Writes the weights as they are after `step`, unless the list has them already, and removes what is one too many.
 * validation_loss: NAN for none. */
sw_status sw_exports_write(struct sw_trainer *trainer, int64_t step, double validation_loss);

#endif
