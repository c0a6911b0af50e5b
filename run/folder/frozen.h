/* The frozen weights of a run, which no step changes: "frozen.spillway" in the run's folder. The file is
 * written once, before the run's first commit, in fp32 as loaded, so that exports hold the exact weights. The store
 * does not hold them.
 *
 * The file is a header of one page, the frozen grains of all units one after the other, an XXH3 of each grain, and one
 * of the header and these sums. Numbers are little-endian. */
#ifndef SW_RUN_FOLDER_FROZEN_H
#define SW_RUN_FOLDER_FROZEN_H

#include "core/status.h"
#include "io/store/store.h"
#include "offload/engine/engine.h"
#include "run/folder/run.h"

#include <stdint.h>

#define SW_FROZEN_NAME "frozen.spillway"

struct sw_frozen;

/* Writes the frozen weights of a source to the run's folder, durably. The file must not exist; a failure leaves none.
 * Asks for the elements in order, and reports to from->progress. */
sw_status sw_frozen_write(const char *folder, const struct sw_units *units, const struct sw_load *from);

/* Opens the file of a run that has frozen weights; *out is NULL for other runs. `units` are laid out with the run's
 * --freeze. Refuses another run's file, by
 * run->frozen_digest unless that is 0. */
sw_status sw_frozen_open(const char *folder, const struct sw_run *run, const struct sw_units *units,
                         struct sw_frozen **out);
void sw_frozen_close(struct sw_frozen *self);

/* Returns the frozen weights from the file, each grain checked whenever it is read, and all other weights from
 * `trained`, whose context must live as long. self NULL: everything comes from `trained`. */
struct sw_load sw_frozen_load(struct sw_frozen *self, const struct sw_load *trained);

/* Return the bytes of the grains in the file, and the digest of the file's content. self may be NULL. */
int64_t sw_frozen_bytes(const struct sw_frozen *self);
uint64_t sw_frozen_digest(const struct sw_frozen *self);

/* Make sure that the file's path still leads to it, as sw_name_keep and sw_name_put_back do. self NULL: nothing to do.
 */
sw_status sw_frozen_keep_name(const struct sw_frozen *self);
sw_status sw_frozen_put_back_name(const struct sw_frozen *self);

/* Reads every grain and checks its sum. *out_grains: number of grains; *out_bad: number of bad ones, which are reported
 * to verifier->bad and are no error of the call. self NULL: there are none. */
sw_status sw_frozen_verify(struct sw_frozen *self, const struct sw_store_verifier *verifier, int64_t *out_grains,
                           int64_t *out_bad);

#endif
