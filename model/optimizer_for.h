/* The choice of each tensor's optimizer: --optimizer for all, and --optimizer-for for those that it names.
 *
 * The text of --optimizer-for is a list of PATTERN=NAME, with commas between them. A pattern is one of tensors' names
 * in the checkpoint, as fnmatch has it; NAME is adamw or muon. The last match counts. Muon updates matrices of layers
 * only: embeddings, the output table, norms, biases and vectors that a pattern names beside matrices stay AdamW's. */
#ifndef SW_MODEL_OPTIMIZER_FOR_H
#define SW_MODEL_OPTIMIZER_FOR_H

#include "core/status.h"
#include "model/freeze.h"

#include <stdbool.h>

/* Refuses a text that does not have this form. NULL: names nothing. */
sw_status sw_optimizer_for_check(const char *text);
/* Tells whether the text names muon. */
bool sw_optimizer_for_has_muon(const char *text);
/* Leaves those matrices of the units to Muon that `tuning` says, before the units are sealed. They describe all
 * matrices to Muon. Refuses patterns that match no tensor, and for muon no matrix of a layer; `some`: the units are one
 * rank's part, so a pattern may name only tensors of other ranks. */
sw_status sw_optimizer_for_apply(const struct sw_tuning *tuning, bool some, struct sw_units *units);

#endif
