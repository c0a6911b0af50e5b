#include "offload/simulate/nodes.h"

#include <float.h>
#include <math.h>

void sw_rates_over_nodes(const struct sw_node *node, int64_t ranks, int64_t nodes, struct sw_rates *rates) {
    if (node->devices == 0 || ranks < 2)
        return;
    const int64_t hops_in_node = ranks / nodes - 1;
    const double within = (double)(ranks - nodes), between = (double)(nodes - 1);
    rates->gather_in_node = rates->gather;
    rates->between_bytes_per_s = nodes > 1 ? node->network_bytes_per_s : 0.0;
    rates->latency_in_node_s = rates->comm_latency_s + (double)hops_in_node * node->hop_s;
    rates->comm_latency_s += within * node->hop_s + between * node->network_hop_s;
    struct sw_rate *const collectives[] = {&rates->gather, &rates->reduce};
    for (int i = 0; i < 2; i++) {
        const double within_s = within / collectives[i]->bytes_per_s;
        const double between_s = between > 0.0 ? between / node->network_bytes_per_s : 0.0;
        collectives[i]->bytes_per_s = fmax(DBL_MIN, (within + between) / fmax(within_s, between_s));
    }
}
