/* The frozen weights of a run, which no step changes and the store does not hold. "frozen.spillway" in the run's folder
 * has an XXH3 of each frozen grain, in fp32 as loaded, and is written once, before the run's first commit.
 *
 * A run whose weights came from a Hugging Face folder reads them from there whenever it needs them. That folder is the
 * run's base: run.json names it by its path and by the digest of the checksums, and the digest decides. For other runs
 * the file also holds the grains.
 *
 * The file is a header of one page, the frozen grains of all units one after the other (version 1 only), the XXH3 of
 * each grain, and one of the header and these sums. Numbers are little-endian. */
#ifndef SW_RUN_FOLDER_FROZEN_H
#define SW_RUN_FOLDER_FROZEN_H

#include "core/status.h"
#include "io/store/store.h"
#include "job/machine/ranks.h"
#include "offload/engine/engine.h"
#include "run/folder/run.h"

#include <stdbool.h>
#include <stdint.h>

#define SW_FROZEN_NAME "frozen.spillway"

struct sw_frozen;

/* The frozen part of whole layers, of which a rank of a tensor group has some: units with frozen tensors and all units,
 * frozen parameters, and the size of the file. */
struct sw_frozen_part {
    int64_t units, all_units, parameters, file_bytes;
};
/* Counts it. units: those of a rank. base: the run has a base. If there is no memory for whole layers, it counts what
 * the rank has. */
struct sw_frozen_part sw_frozen_part_of(const struct sw_settings *settings, const struct sw_model_config *config,
                                        const struct sw_units *units, bool base);

/* Writes the frozen weights of a source to the run's folder, durably. The file must not exist; a failure leaves none.
 * Asks for the elements in order, and reports to from->progress, which must not be NULL. */
sw_status sw_frozen_write(const char *folder, const struct sw_units *units, const struct sw_load *from);

/* Begins the frozen weights of a run that reads them from the folder `base`. sw_frozen_load then passes on the weights
 * of its source and computes the checksums of the frozen grains. `units` must outlive *out. */
sw_status sw_frozen_begin(const char *base, const struct sw_units *units, struct sw_frozen **out);
/* Ends the start: gives every rank the checksums of all grains, and writes them to the run's folder, durably. The file
 * must not exist; a failure leaves none. Every grain must have been loaded by a rank. All ranks call it together. */
sw_status sw_frozen_finish(struct sw_frozen *self, const char *folder, struct sw_ranks *ranks);

/* Opens the file of a run that has frozen weights, and its base, if it has one, in the folder where its model is now;
 * *out is NULL for other runs. `units` are laid out with the run's --freeze, and must outlive *out. Refuses another
 * run's file, by run->frozen_digest unless that is 0, and run->moved_model of a run without a base. */
sw_status sw_frozen_open(const char *folder, const struct sw_run *run, const struct sw_units *units,
                         struct sw_frozen **out);
void sw_frozen_close(struct sw_frozen *self);

/* Returns the run's base; NULL: there is none. self may be NULL. */
const char *sw_frozen_base(const struct sw_frozen *self);

/* Returns in *out the frozen weights, each grain checked whenever it is read, and all other weights from `trained`,
 * whose context must live as long; without a fill, it leaves them as they are. Opens the base again after
 * sw_frozen_rest. self NULL: everything comes from `trained`. */
sw_status sw_frozen_load(struct sw_frozen *self, const struct sw_load *trained, struct sw_load *out);
/* Closes the base, and frees its memory, until the next sw_frozen_load. self may be NULL. */
void sw_frozen_rest(struct sw_frozen *self);

/* Return the bytes of the grains in fp32, and the digest of the file's content. self may be NULL. */
int64_t sw_frozen_bytes(const struct sw_frozen *self);
uint64_t sw_frozen_digest(const struct sw_frozen *self);

/* Make sure that the file's path still leads to it, as sw_name_keep and sw_name_put_back do. self NULL: nothing to do.
 */
sw_status sw_frozen_keep_name(const struct sw_frozen *self);
sw_status sw_frozen_put_back_name(const struct sw_frozen *self);

/* Warns if the base is no longer in its folder, where the next resume looks for it. self may be NULL. */
void sw_frozen_look_for_base(const struct sw_frozen *self);

/* Reads every grain and checks its sum. *out_grains: number of grains; *out_bad: number of bad ones, which are reported
 * to verifier->bad, which must not be NULL, and are no error of the call. self NULL: there are none. */
sw_status sw_frozen_verify(struct sw_frozen *self, const struct sw_store_verifier *verifier, int64_t *out_grains,
                           int64_t *out_bad);

#endif
