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

/* Tells whether nodes have whole tensor groups, or groups whole nodes. */
static bool groups_fill_nodes(const struct sw_node_ranks *job) {
    const int64_t near = job->ranks / job->nodes;
    return near % job->tensor_ranks == 0 || job->tensor_ranks % near == 0;
}

static void add_groups(const struct sw_node *node, const struct sw_node_ranks *job, const struct sw_scope_rates *links,
                       struct sw_rates *rates) {
    const int64_t data_ranks = job->ranks / job->tensor_ranks;
    const bool levels = groups_fill_nodes(job);
    const struct members group = {job->tensor_ranks, sw_div_up(job->tensor_ranks, job->tensor_node_ranks), levels};
    const struct members data = {data_ranks, sw_div_up(data_ranks, job->data_node_ranks), levels};
    rates->in_group = *links;
    rates->in_group.latency_s = rates_over(node, group, links).latency_s;
    rates->among_data = rates_over(node, data, links);
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
    if (job->tensor_ranks > 1)
        add_groups(node, job, &links, rates);
}

/* Returns the rate between nodes at which they would bound a measured collective. */
static double rate_between(struct given given, struct sw_rate measured) {
    return given.between / (given.within + given.between) * measured.bytes_per_s;
}

void sw_rates_over_measured_nodes(const struct sw_node_ranks *job, struct sw_rates *rates) {
    const struct sw_scope_rates *in_node = &rates->in_node;
    if (in_node->gather.bytes_per_s <= 0.0 || job->nodes < 2)
        return;
    const struct members all = {job->ranks, job->nodes, true};
    const double network = fmax(rate_between(gathered(all), rates->gather), rate_between(straight(all), rates->reduce));
    rates->between_bytes_per_s = network;
    if (job->tensor_ranks < 2)
        return;
    rates->in_group = *in_node;
    if (job->tensor_node_ranks < job->tensor_ranks)
        rates->in_group.latency_s = rates->comm_latency_s;
    const int64_t data_ranks = job->ranks / job->tensor_ranks;
    if (data_ranks < 2)
        return;
    const struct members data = {data_ranks, sw_div_up(data_ranks, job->data_node_ranks), groups_fill_nodes(job)};
    const struct given gather = data.levels ? gathered(data) : straight(data);
    rates->among_data = *in_node;
    rates->among_data.gather.bytes_per_s = rate_over(gather, in_node->gather.bytes_per_s, network);
    rates->among_data.reduce.bytes_per_s = rate_over(straight(data), in_node->reduce.bytes_per_s, network);
    rates->among_data.latency_s = job->data_node_ranks < data_ranks ? rates->comm_latency_s : in_node->latency_s;
}
