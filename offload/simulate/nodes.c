#include "offload/simulate/nodes.h"

#include "core/size.h"

#include <float.h>
#include <math.h>

/* Ranks that have a collective together, and the nodes on which they are. */
struct members {
    int64_t ranks, nodes;
};

static double rate_over(const struct sw_node *node, struct members members, double link_bytes_per_s) {
    const double within = (double)(members.ranks - members.nodes), between = (double)(members.nodes - 1);
    const double within_s = within / link_bytes_per_s;
    const double between_s = between > 0.0 ? between / node->network_bytes_per_s : 0.0;
    return fmax(DBL_MIN, (within + between) / fmax(within_s, between_s));
}

/* Returns the rates of these ranks. links: those of one node, whose latency is the base of any collective. */
static struct sw_scope_rates rates_over(const struct sw_node *node, struct members members,
                                        const struct sw_scope_rates *links) {
    struct sw_scope_rates rates = *links;
    if (members.ranks < 2)
        return rates;
    rates.gather.bytes_per_s = rate_over(node, members, links->gather.bytes_per_s);
    rates.reduce.bytes_per_s = rate_over(node, members, links->reduce.bytes_per_s);
    rates.latency_s += (double)(members.ranks - members.nodes) * node->hop_s;
    rates.latency_s += (double)(members.nodes - 1) * node->network_hop_s;
    return rates;
}

static void add_groups(const struct sw_node *node, const struct sw_node_ranks *job, const struct sw_scope_rates *links,
                       struct sw_rates *rates) {
    const int64_t data_ranks = job->ranks / job->tensor_ranks;
    const struct members group = {job->tensor_ranks, sw_div_up(job->tensor_ranks, job->tensor_node_ranks)};
    const struct members data = {data_ranks, sw_div_up(data_ranks, job->data_node_ranks)};
    rates->in_group = *links;
    rates->in_group.latency_s = rates_over(node, group, links).latency_s;
    rates->among_data = rates_over(node, data, links);
}

void sw_rates_over_nodes(const struct sw_node *node, const struct sw_node_ranks *job, struct sw_rates *rates) {
    const struct sw_scope_rates links = {rates->gather, rates->reduce, rates->comm_latency_s};
    if (node->devices == 0 || job->ranks < 2)
        return;
    const int64_t hops_in_node = job->ranks / job->nodes - 1;
    const struct sw_scope_rates all = rates_over(node, (struct members){job->ranks, job->nodes}, &links);
    rates->gather = all.gather;
    rates->reduce = all.reduce;
    rates->comm_latency_s = all.latency_s;
    rates->in_node = links;
    rates->in_node.latency_s += (double)hops_in_node * node->hop_s;
    rates->between_bytes_per_s = job->nodes > 1 ? node->network_bytes_per_s : 0.0;
    if (job->tensor_ranks > 1)
        add_groups(node, job, &links, rates);
}

/* Returns the measured rate of a kind of collective among the data ranks, `near` of them on each node: the slower of
 * the bytes that stay on a node and those that leave it. */
static struct sw_rate among_data(double ranks, double near, struct sw_rate in_node, double between_bytes_per_s) {
    const double within_s = (near - 1.0) / in_node.bytes_per_s, between_s = (ranks - near) / between_bytes_per_s;
    in_node.bytes_per_s = fmax(DBL_MIN, (ranks - 1.0) / fmax(within_s, between_s));
    return in_node;
}

void sw_rates_over_measured_nodes(const struct sw_node_ranks *job, struct sw_rates *rates) {
    const struct sw_scope_rates *in_node = &rates->in_node;
    if (in_node->gather.bytes_per_s <= 0.0 || job->nodes < 2)
        return;
    const double ranks = (double)job->ranks, near = ranks / (double)job->nodes;
    const double leaving = (ranks - near) / (ranks - 1.0);
    rates->between_bytes_per_s = leaving * rates->gather.bytes_per_s;
    if (job->tensor_ranks < 2)
        return;
    const double data_ranks = ranks / (double)job->tensor_ranks, data_near = (double)job->data_node_ranks;
    rates->in_group = *in_node;
    if (job->tensor_node_ranks < job->tensor_ranks)
        rates->in_group.latency_s = rates->comm_latency_s;
    if (data_ranks < 2.0)
        return;
    rates->among_data.gather = among_data(data_ranks, data_near, in_node->gather, rates->between_bytes_per_s);
    rates->among_data.reduce = among_data(data_ranks, data_near, in_node->reduce, leaving * rates->reduce.bytes_per_s);
    rates->among_data.latency_s = data_near < data_ranks ? rates->comm_latency_s : in_node->latency_s;
}
