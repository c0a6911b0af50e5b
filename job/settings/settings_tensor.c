/* Tensor parallelism: the groups of neighbouring ranks that --tensor makes, and the flags that it excludes. */
#include "core/ranks/comm.h"
#include "core/size.h"
#include "job/machine/ranks.h"
#include "job/settings/settings.h"

#include <string.h>

int64_t sw_settings_tensor_ranks(const struct sw_settings *settings) {
    return sw_max_i64(1, settings->tensor);
}

int64_t sw_settings_tensor_rank(const struct sw_settings *settings) {
    return settings->rank % sw_settings_tensor_ranks(settings);
}

int64_t sw_settings_data_ranks(const struct sw_settings *settings) {
    return sw_settings_ranks(settings) / sw_settings_tensor_ranks(settings);
}

int64_t sw_settings_data_rank(const struct sw_settings *settings) {
    return settings->rank / sw_settings_tensor_ranks(settings);
}

static int greatest_divisor(int a, int b) {
    return b == 0 ? a : greatest_divisor(b, a % b);
}

/* Where groups and nodes divide each other badly, some group has no more ranks on one of its nodes than the greatest
 * divisor of both. */
int sw_settings_tensor_node_ranks(const struct sw_settings *settings) {
    const int node = settings->nodes_mixed ? 0 : sw_settings_node_ranks(settings);
    return node == 0 ? 0 : greatest_divisor((int)sw_settings_tensor_ranks(settings), node);
}

int sw_settings_data_node_ranks(const struct sw_settings *settings) {
    const int node = sw_settings_node_ranks(settings), group = (int)sw_settings_tensor_ranks(settings);
    return node == 0 || node >= group ? node / group : 1;
}

bool sw_settings_fills_nodes(const struct sw_settings *settings) {
    const int node = sw_settings_node_ranks(settings), group = (int)sw_settings_tensor_ranks(settings);
    return node > 0 && !settings->nodes_mixed && (node % group == 0 || group % node == 0);
}

/* The group that spans most has its first ranks, as few as a group has on any node, on the last places of one. */
int64_t sw_settings_tensor_nodes(const struct sw_settings *settings) {
    const int64_t first = sw_settings_tensor_node_ranks(settings);
    if (first == 0)
        return 0;
    return 1 + sw_div_up(sw_settings_tensor_ranks(settings) - first, sw_settings_node_ranks(settings));
}

/* Refuses flags that are for tensor groups where there are none. */
static sw_status check_without_groups(const struct sw_settings *s) {
    const bool sequence = s->sequence == SW_SEQUENCE_YES;
    if (s->partition != SW_PARTITION_YES && !sequence)
        return SW_OK;
    return sw_fail(SW_ERR_ARG, "%s yes is for tensor groups; give --tensor N too, or leave it out",
                   sequence ? "--sequence-parallel" : "--partition-activations");
}

/* Each of these flags needs a whole layer or a whole gradient on one rank, or has formats and shards of its own. */
sw_status sw_settings_check_tensor(const struct sw_settings *s) {
    const struct {
        bool given;
        const char *flag, *without;
    } flags[] = {
        {s->freeze != NULL, "--freeze", NULL},
        {s->gather != SW_GATHER_EXACT, "--gather int8", "--gather exact"},
        {s->reduce == SW_REDUCE_LIBRARY, "--reduce library", "--reduce ordered"},
        {s->reduce == SW_REDUCE_INT8, "--reduce int8", "--reduce ordered"},
        {s->reduce == SW_REDUCE_INT4, "--reduce int4", "--reduce ordered"},
        {s->grads_state != SW_GRADS_TYPED, "--grads-state 8bit", "--grads-state compute"},
        {s->zero_secondary != NULL && strcmp(s->zero_secondary, SW_NO_SECONDARY) != 0, "--zero-secondary",
         "--zero-secondary " SW_NO_SECONDARY},
    };
    if (s->tensor == SW_OPTION_AUTO)
        return s->rates == NULL ? SW_OK
                                : sw_fail(SW_ERR_ARG, "--rates has the rates of one model's parts, and --tensor auto "
                                                      "compares several; give --tensor N, or leave --rates out");
    if (sw_settings_tensor_ranks(s) == 1)
        return check_without_groups(s);
    if (s->sequence == SW_SEQUENCE_YES && s->partition == SW_PARTITION_NO)
        return sw_fail(SW_ERR_ARG,
                       "--sequence-parallel yes keeps a rank's rows alone, which --partition-activations no "
                       "excludes; leave one of them out");
    if (s->sequence == SW_SEQUENCE_YES && s->tiles > 1)
        return sw_fail(
            SW_ERR_ARG,
            "--sequence-parallel yes does not work with --tiles %lld, because the tiles of a layer hand on all "
            "rows; give --partition-activations yes instead, or --tiles 1",
            (long long)s->tiles);
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        if (flags[i].given)
            return sw_fail(SW_ERR_ARG, "%s does not work with --tensor %lld; leave one of them out%s%s", flags[i].flag,
                           (long long)s->tensor, flags[i].without != NULL ? ", or give " : "",
                           flags[i].without != NULL ? flags[i].without : "");
    return SW_OK;
}

sw_status sw_settings_check_tensor_ranks(const struct sw_settings *s) {
    const int64_t ranks = sw_settings_ranks(s), group = sw_settings_tensor_ranks(s);
    if (ranks % group == 0)
        return SW_OK;
    return sw_fail(SW_ERR_ARG,
                   "--tensor %lld makes groups of %lld ranks, and this job has %lld; start a multiple of %lld with "
                   "mpirun -n, plan for one with --ranks, or give another --tensor",
                   (long long)group, (long long)group, (long long)ranks, (long long)group);
}

sw_status sw_settings_group_ranks(const struct sw_settings *settings, struct sw_ranks *ranks) {
    SW_TRY(sw_ranks_agree_on_error(ranks, sw_as_usage(sw_settings_check_tensor_ranks(settings))));
    if (sw_ranks_comm(ranks) != NULL)
        sw_comm_set_tensor_ranks(sw_ranks_comm(ranks), (int)sw_settings_tensor_ranks(settings));
    return SW_OK;
}

/* Tells whether a unit has a part of a tensor too. */
static bool has_part(const struct sw_unit *unit, const char *name) {
    for (int64_t t = 0; t < unit->tensor_count; t++)
        if (strcmp(unit->tensor[t].name, name) == 0)
            return true;
    return false;
}

/* The tiles that a rank has of a tensor are in units that follow each other, and the tensor counts once. */
int64_t sw_settings_parameters(const struct sw_settings *settings, const struct sw_units *units) {
    int64_t parameters = 0;
    if (sw_settings_tensor_ranks(settings) == 1)
        return sw_units_parameters(units);
    for (int64_t u = 0; u < units->count; u++)
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++) {
            const struct sw_tensor *tensor = &units->unit[u].tensor[t];
            if (u == 0 || !has_part(&units->unit[u - 1], tensor->name))
                parameters += sw_tensor_whole_elems(tensor);
        }
    return parameters;
}
