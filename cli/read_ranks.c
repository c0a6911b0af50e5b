#include "cli/read_ranks.h"

#include "cli/cmd_ranks.h"
#include "cli/commands.h"
#include "text/model_text.h"

#include <stdlib.h>
#include <string.h>

/* Checks that all ranks were given the same arguments. */
static sw_status agree_on_arguments(struct sw_ranks *ranks, int argc, char **argv) {
    size_t bytes = 1;
    for (int i = 0; i < argc; i++)
        bytes += strlen(argv[i]) + 1;
    char *all = calloc(1, bytes), *at = all;
    sw_status status = all != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to compare the arguments of all ranks");
    for (int i = 0; all != NULL && i < argc; i++)
        at = stpcpy(at, argv[i]) + 1;
    const struct sw_comm_claim claim = {.kind = SW_CLAIM_EQUAL,
                                        .what = "command line",
                                        .remedy = "give all ranks the same",
                                        .value = all,
                                        .bytes = (int64_t)bytes};
    status = sw_ranks_agree_on_error(ranks, status);
    if (status == SW_OK)
        status = sw_ranks_agree(ranks, &claim, 1);
    free(all);
    return status;
}

int sw_read_on_ranks(const struct sw_command_line *line, int argc, char **argv,
                     sw_status (*run)(struct sw_ranks *ranks, const struct sw_read_options *given)) {
    struct sw_read_options given = {0};
    struct sw_ranks ranks;
    int code;
    if (!sw_command_begin(&ranks, line->command, &code))
        return code;
    if (sw_command_parse_ranks(&ranks, line, argc, argv, &given, &code)) {
        sw_status status = agree_on_arguments(&ranks, argc, argv);
        if (status == SW_OK)
            status = sw_ranks_begin_watch(&ranks, given.inference.rank_timeout);
        if (status == SW_OK)
            status = run(&ranks, &given);
        code = status == SW_OK ? SW_EXIT_DONE : sw_command_fail_ranks(&ranks, status);
    }
    sw_options_release(line, &given);
    sw_command_end(&ranks, code);
    return code;
}

sw_status sw_read_groups(struct sw_ranks *ranks, const struct sw_inference_options *options, int automatic_ranks,
                         int *out) {
    const int count = sw_ranks_count(ranks);
    const int64_t wanted = options->tensor == SW_OPTION_AUTO ? automatic_ranks : options->tensor;
    if (count % wanted != 0)
        return sw_fail(SW_ERR_USAGE,
                       "--tensor %lld makes groups of %lld ranks, and this job has %d; start a multiple of %lld with "
                       "mpirun -n, or give another --tensor",
                       (long long)wanted, (long long)wanted, count, (long long)wanted);
    *out = (int)wanted;
    return SW_OK;
}

int sw_read_bos(const struct sw_read_options *given, const struct sw_source *source) {
    return given->bos != SW_BOS_AUTO ? given->bos : sw_source_bos(source);
}

sw_status sw_read_same_step(struct sw_ranks *ranks, const struct sw_source *source) {
    const int64_t step = sw_source_step(source);
    int64_t range[] = {step, -step};
    SW_TRY(sw_ranks_least(ranks, range, 2));
    return range[0] == -range[1] ? SW_OK : sw_fail(SW_ERR_OVERTAKEN, "the run has committed a step meanwhile");
}
