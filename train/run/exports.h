/* Writes Hugging Face folders during a run: DIR/exports/step-N. The best by validation loss are kept, or the newest if
 * there is no validation data. DIR/exports/index.json lists them with their losses. A folder that it calls `unlisted`
 * is being written or removed; the next start or export removes it. */
#ifndef SW_TRAIN_RUN_EXPORTS_H
#define SW_TRAIN_RUN_EXPORTS_H

#include "train/run/trainer.h"

enum { SW_EXPORTS_MOST = 1000 };

/* All ranks call both functions together, with idle engines; rank 0 writes. */

/* Tells whether the index lists this step. An index that cannot be read lists none; writing reports what is wrong. */
sw_status sw_exports_has(struct sw_trainer *trainer, int64_t step, bool *out);

/* Removes exports that a kill left: the index says which are incomplete or no longer kept. */
sw_status sw_exports_tidy(const char *run_folder);

/* Exports the weights after `step`, unless the index lists them, and removes one export if there are now too many.
 * validation_loss: NAN if there is none. */
sw_status sw_exports_write(struct sw_trainer *trainer, int64_t step, double validation_loss);

#endif
