/* The groups that a job's flags divide its ranks into, and how these groups lie on nodes: arithmetic on flags and on
 * the number of ranks alone, which the checks of all flags use. */
#include "job/settings/settings.h"

#include "core/size.h"

int64_t sw_settings_any_node_ranks(const struct sw_settings *s) {
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
    const int64_t ranks = sw_settings_any_node_ranks(settings);
    return ranks > 0 ? (int)ranks : 0;
}

int sw_settings_reduce_nodes(const struct sw_settings *settings) {
    const int ranks = (int)sw_settings_ranks(settings), node = sw_settings_node_ranks(settings);
    return node > 1 && node < ranks && ranks % node == 0 && !settings->nodes_mixed ? ranks / node : 0;
}

int64_t sw_settings_tensor_ranks(const struct sw_settings *settings) {
    return sw_max_i64(1, settings->tensor);
}

int64_t sw_settings_tensor_rank(const struct sw_settings *settings) {
    return settings->rank % sw_settings_tensor_ranks(settings);
}

int64_t sw_settings_data_ranks(const struct sw_settings *settings) {
    return sw_settings_stage_ranks(settings) / sw_settings_tensor_ranks(settings);
}

int64_t sw_settings_data_rank(const struct sw_settings *settings) {
    return settings->rank % sw_settings_stage_ranks(settings) / sw_settings_tensor_ranks(settings);
}

bool sw_settings_shares_experts(const struct sw_settings *settings) {
    return settings->experts > 1;
}

int64_t sw_settings_expert_ranks(const struct sw_settings *settings) {
    return sw_max_i64(1, settings->experts);
}

int64_t sw_settings_expert_rank(const struct sw_settings *settings) {
    return sw_settings_data_rank(settings) % sw_settings_expert_ranks(settings);
}

int64_t sw_settings_part_ranks(const struct sw_settings *settings) {
    return sw_settings_expert_ranks(settings) * sw_settings_tensor_ranks(settings);
}

int64_t sw_settings_part_rank(const struct sw_settings *settings) {
    return settings->rank % sw_settings_part_ranks(settings);
}

int64_t sw_settings_state_ranks(const struct sw_settings *settings) {
    return sw_settings_stage_ranks(settings) / sw_settings_part_ranks(settings);
}

int64_t sw_settings_most_state_ranks(const struct sw_settings *settings) {
    return sw_settings_data_ranks(settings);
}

int64_t sw_settings_state_rank(const struct sw_settings *settings) {
    return settings->rank % sw_settings_stage_ranks(settings) / sw_settings_part_ranks(settings);
}

static int greatest_divisor(int a, int b) {
    return b == 0 ? a : greatest_divisor(b, a % b);
}

/* If groups and nodes divide each other badly, some group has on one of its nodes no more ranks than their greatest
 * common divisor. */
static int group_node_ranks(const struct sw_settings *settings, int64_t group) {
    const int node = settings->nodes_mixed ? 0 : sw_settings_node_ranks(settings);
    return node == 0 ? 0 : greatest_divisor((int)group, node);
}

int sw_settings_tensor_node_ranks(const struct sw_settings *settings) {
    return group_node_ranks(settings, sw_settings_tensor_ranks(settings));
}

int sw_settings_part_node_ranks(const struct sw_settings *settings) {
    return group_node_ranks(settings, sw_settings_part_ranks(settings));
}

int sw_settings_data_node_ranks(const struct sw_settings *settings) {
    const int node = sw_settings_node_ranks(settings), group = (int)sw_settings_part_ranks(settings);
    return node == 0 || node >= group ? node / group : 1;
}

bool sw_settings_fills_nodes(const struct sw_settings *settings) {
    const int node = sw_settings_node_ranks(settings), group = (int)sw_settings_part_ranks(settings);
    const int tensor = (int)sw_settings_tensor_ranks(settings);
    return node > 0 && !settings->nodes_mixed && (node % group == 0 || group % node == 0) &&
           (node % tensor == 0 || tensor % node == 0);
}

/* The group on most nodes has only its first ranks on the first of them: as few as any group has on a node. */
int64_t sw_settings_tensor_nodes(const struct sw_settings *settings) {
    const int64_t first = sw_settings_tensor_node_ranks(settings);
    if (first == 0)
        return 0;
    return 1 + sw_div_up(sw_settings_tensor_ranks(settings) - first, sw_settings_node_ranks(settings));
}
