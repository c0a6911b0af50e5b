/* Several ranks that read a model together: eval and generate. */
#ifndef SW_CLI_READ_RANKS_H
#define SW_CLI_READ_RANKS_H

#include "cli/read_options.h"
#include "job/machine/ranks.h"
#include "run/folder/source.h"

/* Runs a whole command on all ranks together, as sw_command_run does on one: parses the arguments, starts the watch and
 * calls `run`. Returns the exit status. */
int sw_read_on_ranks(const struct sw_command_line *line, int argc, char **argv,
                     sw_status (*run)(struct sw_ranks *ranks, const struct sw_read_options *given));

/* Returns in *out the ranks of a tensor group: those of --tensor, or automatic_ranks. SW_ERR_ARG where the ranks cannot
 * form such groups. */
sw_status sw_read_groups(struct sw_ranks *ranks, const struct sw_inference_options *options, int automatic_ranks,
                         int *out);

/* Returns the --bos that was given, or for auto what the source's texts were made with. */
int sw_read_bos(const struct sw_read_options *given, const struct sw_source *source);

/* Checks that all ranks have opened the same step of a run that may be training: SW_ERR_OVERTAKEN where they have not.
 * All ranks call it together. */
sw_status sw_read_same_step(struct sw_ranks *ranks, const struct sw_source *source);

#endif
