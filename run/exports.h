/* Writes Hugging Face folders during a run: DIR/exports/step-N. Keeps the best by validation loss, or the newest if
 * there is no validation data. DIR/exports/index.json lists them with their losses. A folder that the index calls
 * `unlisted` is being written or removed; the next start or export removes it. Each entry names the start that
 * committed its step: if a run went back to an earlier commit, this tells exports of dropped weights from those of the
 * run as it continues. */
#ifndef SW_RUN_EXPORTS_H
#define SW_RUN_EXPORTS_H

#include "run/steplog.h"
#include "run/trainer.h"

enum { SW_EXPORTS_MOST = 1000 };

/* All ranks call both functions together, with idle engines; rank 0 writes. */

/* Tells whether the index lists this step. An unreadable index counts as empty; writing then reports what is wrong. */
sw_status sw_exports_has(struct sw_trainer *trainer, int64_t step, bool *out);

/* Prepares for a start, on rank 0, with the log opened. Removes exports that a kill left incomplete or that are no
 * longer kept. Gives up exports of weights that the run went back from: those of steps after the last commit, and those
 * made by a start that is not one of the run's. A given-up export counts for nothing, and stays until the run exports
 * its step, or a later one, again. An export of an older version, whose index names no start, is also given up if the
 * log has another loss for its step. */
sw_status sw_exports_tidy(const struct sw_trainer *trainer, const struct sw_steplog *log);

/* Exports the weights after `step`, unless the index lists them, and removes one export if there are now too many.
 * validation_loss: NAN if there is none. */
sw_status sw_exports_write(struct sw_trainer *trainer, int64_t step, double validation_loss);

#endif
