/* The time of collectives over two levels of links: within a node (NVLink), and between nodes (InfiniBand).
 *
 * n ranks on m nodes, each rank with a shard of s bytes. A gather has two levels: each rank gives its shard to the m-1
 * ranks of the same place in the other nodes, (m-1) s bytes over the network, and the m shards that it then has to the
 * n/m-1 others of its node, (n-m) s bytes over the node's links. Together these are the (n-1) s bytes of a flat
 * collective: (n-1)/n of the whole, as ZeRO counts it (Rajbhandari et al., SC20, section 7). Both levels work at once
 * on different shares, so the slower one is the time of the bytes.
 *
 * A described machine's reductions are priced like gathers, as a library does them. The program's own reductions have
 * one level, because they sum in the order of ranks, and send (n-n/m) s bytes over the network. If neither groups nor
 * nodes contain the other whole, gathers have one level too, and both are priced by it.
 *
 * The latency is the one of NCCL's ring (ncclTopoTuneModel of NCCL's src/graph/tuning.cc): the base of any collective,
 * and n-1 hops, of which m-1 are between nodes:
 *
 *     time = base + (n-m) hop + (m-1) network_hop + max(bytes within the node / rate, bytes between / network_rate)
 *
 * A gather among the n/m ranks of a node is one of one node: base + (n/m-1) hop + (n/m-1) s / rate.
 *
 * Tensor groups split these collectives. The ranks with the same part of every layer are a group's size apart: where a
 * group fills its node, each of them is on another node, and all that they exchange crosses the network. The plan
 * counts the bytes that a group gives to other nodes (sw_plan_between_bytes). Expert groups split them further, and
 * one rank of each tensor group shares what has no experts.
 */
#ifndef SW_OFFLOAD_SIMULATE_NODES_H
#define SW_OFFLOAD_SIMULATE_NODES_H

#include "offload/simulate/rates.h"

#include <stdint.h>

/* A node of a cluster. */
struct sw_node {
    int64_t devices;            /* GPUs of a node; 0: not known, and ranks are linked as within one node */
    double hop_s;               /* from one rank to the next within a node */
    double network_bytes_per_s; /* bytes a second that each GPU sends to other nodes while all GPUs of its node send */
    double network_hop_s;       /* from one rank to the next in another node */
};

/* The nodes and groups of a job's ranks. */
struct sw_node_ranks {
    int64_t ranks, nodes;      /* nodes divides ranks */
    int64_t tensor_ranks;      /* ranks of a tensor group; 0 or 1: there are no such groups */
    int64_t tensor_node_ranks; /* the fewest ranks that a tensor group has on a node; at least 1 if there are groups */
    int64_t expert_ranks;      /* ranks, or tensor groups, of an expert group; 0 or 1: there are no such groups */
    int64_t expert_node_ranks; /* the fewest ranks that an expert group has on a node; at least 1 if there are groups */
    int64_t data_node_ranks;   /* ranks of a node with the same part of every layer; at least 1 if there are groups */
};

/* Turns the rates of collectives of one node into those of a job. Adds the rates within nodes and, if there are tensor
 * groups, the rates of groups. */
void sw_rates_over_nodes(const struct sw_node *node, const struct sw_node_ranks *job, struct sw_rates *rates);

/* Adds to the measured rates (of all ranks, and of the ranks of a node) the rates between nodes and, if there are
 * tensor groups, the rates of groups. The network is as fast as the faster of a gather and a reduction needs it to be,
 * each by the bytes above. Does nothing where rates->in_node was not measured. */
void sw_rates_over_measured_nodes(const struct sw_node_ranks *job, struct sw_rates *rates);

#endif
