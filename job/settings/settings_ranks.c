/* Ranks and nodes of a job, how they quantize what they exchange, and what --zero-secondary asks of them. */
#include "core/ranks/comm.h"
#include "core/size.h"
#include "job/machine/ranks.h"
#include "job/settings/settings.h"

#include <stdlib.h>
#include <string.h>

sw_quant sw_settings_gather(const struct sw_settings *settings) {
    return settings->gather == SW_GATHER_INT8 ? SW_QUANT_INT8 : SW_QUANT_NONE;
}

sw_quant sw_settings_reduce(const struct sw_settings *settings) {
    static const sw_quant quants[] = {[SW_REDUCE_ORDERED] = SW_QUANT_NONE,
                                      [SW_REDUCE_LIBRARY] = SW_QUANT_NONE,
                                      [SW_REDUCE_INT8] = SW_QUANT_INT8,
                                      [SW_REDUCE_INT4] = SW_QUANT_INT4};
    return quants[settings->reduce];
}

int64_t sw_settings_ranks(const struct sw_settings *settings) {
    return sw_max_i64(1, settings->ranks);
}

void sw_settings_take_ranks(struct sw_settings *settings, struct sw_ranks *ranks) {
    struct sw_comm *comm = sw_ranks_comm(ranks);
    settings->ranks = sw_ranks_count(ranks);
    settings->rank = sw_ranks_rank(ranks);
    settings->local_ranks = sw_ranks_local_count(ranks);
    settings->local_rank = sw_ranks_local_rank(ranks);
    settings->node_ranks = 1;
    settings->node_rank = 0;
    if (comm == NULL)
        return;
    sw_comm_set_node_ranks(comm, settings->ranks_per_node == SW_OPTION_AUTO ? 0 : (int)settings->ranks_per_node);
    const struct sw_comm_nodes *nodes = sw_comm_nodes(comm);
    settings->node_ranks = nodes->even ? nodes->ranks : SW_NODES_UNEVEN;
    settings->node_rank = nodes->rank;
    settings->nodes_mixed = !nodes->in_order;
}

/* Returns the ranks of a node: of this job's nodes, or of those that the flags of a plan name; 0: they name none. */
static int64_t node_ranks_of(const struct sw_settings *s) {
    const int64_t ranks = sw_settings_ranks(s);
    if (s->node_ranks != 0)
        return s->node_ranks;
    if (s->nodes > 0)
        return ranks / s->nodes;
    if (s->ranks_per_node <= 0)
        return 0;
    return ranks % s->ranks_per_node == 0 ? s->ranks_per_node : SW_NODES_UNEVEN;
}

int sw_settings_node_ranks(const struct sw_settings *settings) {
    const int64_t ranks = node_ranks_of(settings);
    return ranks > 0 ? (int)ranks : 0;
}

int sw_settings_reduce_nodes(const struct sw_settings *settings) {
    const int ranks = (int)sw_settings_ranks(settings), node = sw_settings_node_ranks(settings);
    return node > 1 && node < ranks && ranks % node == 0 && !settings->nodes_mixed ? ranks / node : 0;
}

/* Parses --zero-secondary into a number of ranks; 0: none, -1: those of a node. */
static sw_status parse(const char *text, int64_t *out) {
    char *end;
    *out = 0;
    if (text == NULL || strcmp(text, SW_NO_SECONDARY) == 0)
        return SW_OK;
    *out = -1;
    if (strcmp(text, "node") == 0)
        return SW_OK;
    *out = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || *out < 1 || *out > SW_SETTINGS_MOST_RANKS)
        return sw_fail(SW_ERR_ARG, "--zero-secondary '%s' must be none, node or a number of ranks", text);
    return SW_OK;
}

sw_status sw_settings_check_secondary(const struct sw_settings *s) {
    int64_t asked;
    SW_TRY(parse(s->zero_secondary, &asked));
    if (s->ranks_per_node > 0 && s->machine != NULL)
        return sw_fail(SW_ERR_ARG, "--nodes says where the ranks of a described machine are; leave out "
                                   "--ranks-per-node");
    /* A resume learns the stage of its run later. */
    if (asked != 0 && s->zero != SW_OPTION_AUTO && s->zero != SW_ZERO_WEIGHTS)
        return sw_fail(SW_ERR_ARG,
                       "--zero-secondary keeps a second shard of the weights that --zero 3 shares out, and "
                       "this is --zero %lld; give --zero 3",
                       (long long)s->zero);
    return SW_OK;
}

sw_status sw_settings_check_quantized(const struct sw_settings *s) {
    const sw_quant gather = sw_settings_gather(s), reduce = sw_settings_reduce(s);
    const bool alone = sw_settings_ranks(s) == 1;
    if (!alone && s->grads_state != SW_GRADS_TYPED)
        return sw_fail(SW_ERR_ARG,
                       "--grads-state 8bit is for one rank, and this job has %lld; give --grads-state "
                       "compute, or --reduce int8 to exchange gradients in 8 bits",
                       (long long)sw_settings_ranks(s));
    if (alone && (gather != SW_QUANT_NONE || reduce != SW_QUANT_NONE))
        return sw_fail(SW_ERR_ARG, "one rank exchanges nothing that %s %s could quantize; give %s",
                       gather != SW_QUANT_NONE ? "--gather" : "--reduce",
                       sw_quant_name(gather != SW_QUANT_NONE ? gather : reduce),
                       gather != SW_QUANT_NONE ? "--gather exact" : "--reduce ordered");
    return SW_OK;
}

/* Checks that so many ranks can keep secondary shards together, each group of them within a node. */
static sw_status check_part(const struct sw_settings *s, int64_t node, int64_t part) {
    const int64_t ranks = sw_settings_ranks(s);
    if (ranks == 1)
        return sw_fail(SW_ERR_ARG, "--zero-secondary is for several ranks, and this is one; start it with mpirun, or "
                                   "give --zero-secondary none");
    if (s->zero != SW_ZERO_WEIGHTS)
        return sw_fail(SW_ERR_ARG,
                       "--zero-secondary keeps a second shard of the weights that --zero 3 shares out; give --zero 3");
    if (node == SW_NODES_UNEVEN)
        return sw_fail(SW_ERR_ARG,
                       "%lld ranks do not fill nodes evenly, which --zero-secondary needs; start as many "
                       "on each node, or give --zero-secondary none",
                       (long long)ranks);
    if (part < 0)
        return sw_fail(SW_ERR_ARG, "--zero-secondary node needs to know the ranks of a node; give --ranks-per-node, or "
                                   "--machine with --nodes");
    if (part == 1)
        return sw_fail(SW_ERR_ARG,
                       "--zero-secondary %s is one rank, which would keep all weights by itself; give it "
                       "two ranks or more, or use --zero 2",
                       s->zero_secondary);
    if (node > 0 ? node % part != 0 : ranks % part != 0)
        return sw_fail(SW_ERR_ARG, "--zero-secondary %lld does not divide the %lld ranks of %s", (long long)part,
                       (long long)(node > 0 ? node : ranks), node > 0 ? "a node" : "the job");
    return SW_OK;
}

sw_status sw_settings_secondary(const struct sw_settings *s, int *out_ranks) {
    const int64_t node = node_ranks_of(s);
    int64_t part;
    *out_ranks = 0;
    SW_TRY(parse(s->zero_secondary, &part));
    if (part == 0)
        return SW_OK;
    part = part < 0 && node > 0 ? node : part;
    SW_TRY(check_part(s, node, part));
    *out_ranks = (int)part;
    return SW_OK;
}
