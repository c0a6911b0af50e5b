#include "offload/simulate/nodes.h"

#include "core/size.h"

#include <float.h>
#include <math.h>

/* Ranks that have a collective together, and the nodes on which they are. levels: every node has equally many of them,
 * so they gather in two levels. */
struct members {
    int64_t ranks, nodes;
    bool levels;
};

/* The shares that a rank gives to other ranks of its node and to ranks of other nodes. */
struct given {
    double within, between;
};

static struct given gathered(struct members members) {
    const double ranks = (double)members.ranks, nodes = (double)members.nodes;
    return (struct given){ranks - nodes, nodes - 1.0};
}

/* Returns the shares if every rank sends to every other. */
static struct given straight(struct members members) {
    const double ranks = (double)members.ranks, near = ranks / (double)members.nodes;
    return (struct given){near - 1.0, ranks - near};
}

static double rate_over(struct given given, double link_bytes_per_s, double network_bytes_per_s) {
    const double within_s = given.within / link_bytes_per_s;
    const double between_s = given.between > 0.0 ? given.between / network_bytes_per_s : 0.0;
    return fmax(DBL_MIN, (given.within + given.between) / fmax(within_s, between_s));
}

/* Returns the rates of these ranks. links: the rates within one node, whose latency is the base of any collective. */
static struct sw_scope_rates rates_over(const struct sw_node *node, struct members members,
                                        const struct sw_scope_rates *links) {
    struct sw_scope_rates rates = *links;
    if (members.ranks < 2)
        return rates;
    const double network = node->network_bytes_per_s;
    const struct given given = members.levels ? gathered(members) : straight(members);
    rates.gather.bytes_per_s = rate_over(given, links->gather.bytes_per_s, network);
    rates.reduce.bytes_per_s = rate_over(given, links->reduce.bytes_per_s, network);
    rates.latency_s += (double)(members.ranks - members.nodes) * node->hop_s;
    rates.latency_s += (double)(members.nodes - 1) * node->network_hop_s;
    return rates;
}

/* Tells whether nodes have whole groups of so many ranks, or groups whole nodes. */
static bool fills_nodes(const struct sw_node_ranks *job, int64_t group) {
    const int64_t near = job->ranks / job->nodes;
    return near % group == 0 || group % near == 0;
}

/* The members of the collectives of groups: of a tensor group and of an expert group; of the ranks with the same part
 * of every layer, and of those with the same part of layers without experts. */
struct groups {
    struct members tensor, experts, data, sharers;
};

static struct groups groups_of(const struct sw_node_ranks *job) {
    const int64_t tensor = sw_max_i64(1, job->tensor_ranks), tensor_near = tensor > 1 ? job->tensor_node_ranks : 1;
    const bool has_experts = job->expert_ranks > 1;
    const int64_t all = has_experts ? tensor * job->expert_ranks : tensor;
    const int64_t all_near = has_experts ? job->expert_node_ranks : tensor_near;
    const int64_t data = job->ranks / all, sharers = job->ranks / tensor;
    const int64_t sharers_near = sw_max_i64(1, all_near / tensor_near) * job->data_node_ranks;
    const bool tensor_levels = fills_nodes(job, tensor), levels = tensor_levels && fills_nodes(job, all);
    return (struct groups){.tensor = {tensor, sw_div_up(tensor, tensor_near), tensor_levels},
                           .experts = {all, sw_div_up(all, all_near), levels},
                           .data = {data, sw_div_up(data, job->data_node_ranks), levels},
                           .sharers = {sharers, sw_div_up(sharers, sharers_near), tensor_levels}};
}

static bool has_groups(const struct sw_node_ranks *job) {
    return job->tensor_ranks > 1 || job->expert_ranks > 1;
}

static void add_groups(const struct sw_node *node, const struct sw_node_ranks *job, const struct sw_scope_rates *links,
                       struct sw_rates *rates) {
    const struct groups groups = groups_of(job);
    rates->in_group = rates->in_experts = *links;
    rates->in_group.latency_s = rates_over(node, groups.tensor, links).latency_s;
    rates->in_experts.latency_s = rates_over(node, groups.experts, links).latency_s;
    rates->among_data = rates_over(node, groups.data, links);
    rates->among_sharers = rates_over(node, groups.sharers, links);
}

void sw_rates_over_nodes(const struct sw_node *node, const struct sw_node_ranks *job, struct sw_rates *rates) {
    const struct sw_scope_rates links = {rates->gather, rates->reduce, rates->comm_latency_s};
    if (node->devices == 0 || job->ranks < 2)
        return;
    const int64_t hops_in_node = job->ranks / job->nodes - 1;
    const struct sw_scope_rates all = rates_over(node, (struct members){job->ranks, job->nodes, true}, &links);
    rates->gather = all.gather;
    rates->reduce = all.reduce;
    rates->comm_latency_s = all.latency_s;
    rates->in_node = links;
    rates->in_node.latency_s += (double)hops_in_node * node->hop_s;
    rates->between_bytes_per_s = job->nodes > 1 ? node->network_bytes_per_s : 0.0;
    if (has_groups(job))
        add_groups(node, job, &links, rates);
}

/* Returns the rate between nodes at which they would bound a measured collective. */
static double rate_between(struct given given, struct sw_rate measured) {
    return given.between / (given.within + given.between) * measured.bytes_per_s;
}

/* Returns the rates of ranks from those within a node and between nodes. */
static struct sw_scope_rates measured_over(const struct sw_rates *rates, struct members members) {
    const struct sw_scope_rates *in_node = &rates->in_node;
    struct sw_scope_rates out = *in_node;
    if (members.ranks < 2)
        return (struct sw_scope_rates){.latency_s = 0.0};
    const struct given gather = members.levels ? gathered(members) : straight(members);
    out.gather.bytes_per_s = rate_over(gather, in_node->gather.bytes_per_s, rates->between_bytes_per_s);
    out.reduce.bytes_per_s = rate_over(straight(members), in_node->reduce.bytes_per_s, rates->between_bytes_per_s);
    out.latency_s = members.nodes > 1 ? rates->comm_latency_s : in_node->latency_s;
    return out;
}

void sw_rates_over_measured_nodes(const struct sw_node_ranks *job, struct sw_rates *rates) {
    const struct sw_scope_rates *in_node = &rates->in_node;
    if (in_node->gather.bytes_per_s <= 0.0 || job->nodes < 2)
        return;
    const struct members all = {job->ranks, job->nodes, true};
    const double network = fmax(rate_between(gathered(all), rates->gather), rate_between(straight(all), rates->reduce));
    rates->between_bytes_per_s = network;
    if (!has_groups(job))
        return;
    const struct groups groups = groups_of(job);
    rates->in_group = rates->in_experts = *in_node;
    if (groups.tensor.nodes > 1)
        rates->in_group.latency_s = rates->comm_latency_s;
    if (groups.experts.nodes > 1)
        rates->in_experts.latency_s = rates->comm_latency_s;
    rates->among_data = measured_over(rates, groups.data);
    rates->among_sharers = measured_over(rates, groups.sharers);
}
