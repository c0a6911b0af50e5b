/* The reference of a run with --dpo: the log-probability of each sequence of its pairs by the weights at the start of
 * the run, in the order of the data. It is computed once, by forward passes of the training engine before the first
 * step, and kept in the run's folder. run.json has the digest of that file, so that only a run's own numbers are used.
 */
#ifndef SW_RUN_REFERENCE_H
#define SW_RUN_REFERENCE_H

#include "core/status.h"

#include <stdint.h>

#define SW_REFERENCE_NAME "reference.spillway"
/* The file of what is done while it is computed. */
#define SW_REFERENCE_UNFINISHED_NAME "reference.unfinished"

struct sw_run;
struct sw_trainer;

struct sw_reference {
    int64_t trained, validated; /* sequences of the training part and of the validation part */
    double *of_training;        /* owned, one entry per sequence; those of validation follow */
    double *of_validation;
};

/* Reads the reference of a resumed run into trainer->reference. Does nothing without --dpo, and if it was not computed
 * before the run was killed. The data must be open; all ranks call it together. */
sw_status sw_reference_read(struct sw_trainer *trainer);
/* Computes and writes the reference of a run with --dpo before the first step, unless it was read. The engine must be
 * idle; all ranks call it together. */
sw_status sw_reference_prepare(struct sw_trainer *trainer);
/* Writes the file of a run with --dpo again, with a warning, if it was removed while the run trains. */
sw_status sw_reference_keep(const struct sw_trainer *trainer);
void sw_reference_release(struct sw_reference *reference);

/* Checks the file of a run against the digest in run.json. Does nothing for a run that has none. */
sw_status sw_reference_check(const char *folder, const struct sw_run *run);

#endif
