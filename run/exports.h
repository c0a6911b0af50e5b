/* Writes Hugging Face folders during a run: DIR/exports/step-N. The best by validation loss are kept, or the newest if
 * there is no validation data. DIR/exports/index.json lists them with their losses. A folder that it calls `unlisted`
 * is being written or removed; the next start or export removes it. Each entry names the start that committed its step,
 * so that exports of a run that went back to an earlier commit are told from those of the run as it went on. */
#ifndef SW_RUN_EXPORTS_H
#define SW_RUN_EXPORTS_H

#include "run/steplog.h"
#include "run/trainer.h"

enum { SW_EXPORTS_MOST = 1000 };

/* All ranks call both functions together, with idle engines; rank 0 writes. */

/* Tells whether the index lists this step. An index that cannot be read lists none; writing reports what is wrong. */
sw_status sw_exports_has(struct sw_trainer *trainer, int64_t step, bool *out);

/* Prepares for a start, on rank 0; log: opened. Removes exports that a kill left incomplete or no longer kept, and
 * gives up those of weights that the run went back from: of later steps than the last commit, or made by a start that
 * is not one of the run's. An export that was given up stays until the run exports its step, or a later one, anew;
 * until then it counts for nothing. An export of an older version, whose index names no start, is also given up where
 * the log has another loss of its step. */
sw_status sw_exports_tidy(const struct sw_trainer *trainer, const struct sw_steplog *log);

/* Exports the weights after `step`, unless the index lists them, and removes one export if there are now too many.
 * validation_loss: NAN if there is none. */
sw_status sw_exports_write(struct sw_trainer *trainer, int64_t step, double validation_loss);

#endif
