/* Nodes, and the scopes of collectives that follow from them. */
#include "core/ranks/comm_private.h"
#include "core/size.h"

#include <stdio.h>

/* Adds a rank to a scope; ranks are added in their order. */
static void join(const struct sw_comm *comm, struct sw_comm_members *members, int rank) {
    if (rank == comm->place.rank)
        members->rank = members->ranks;
    members->rank_of[members->ranks++] = rank;
}

static void empty(struct sw_comm_members *members) {
    *members = (struct sw_comm_members){.rank_of = members->rank_of};
}

/* Returns a rank's number within its node. */
static int number_in_node(const struct sw_comm *comm, int rank) {
    int number = 0;
    for (int before = 0; before < rank; before++)
        number += comm->node_of[before] == comm->node_of[rank];
    return number;
}

/* Finds which ranks share the node, and how many nodes there are. */
static void find_node(struct sw_comm *comm) {
    struct sw_comm_members *node = &comm->scope[SW_SCOPE_NODE];
    struct sw_comm_nodes *nodes = &comm->nodes;
    *nodes = (struct sw_comm_nodes){.node = comm->node_of[comm->place.rank]};
    empty(node);
    for (int rank = 0; rank < comm->place.ranks; rank++) {
        nodes->nodes = comm->node_of[rank] >= nodes->nodes ? comm->node_of[rank] + 1 : nodes->nodes;
        if (comm->node_of[rank] == nodes->node)
            join(comm, node, rank);
    }
    nodes->rank = node->rank;
    nodes->ranks = node->ranks;
}

/* Finds the ranks of this rank's number in their nodes, and whether nodes are even: the last rank of each has the last
 * number that an even node has. */
static void find_across(struct sw_comm *comm) {
    struct sw_comm_members *across = &comm->scope[SW_SCOPE_ACROSS];
    struct sw_comm_nodes *nodes = &comm->nodes;
    assert(nodes->nodes > 0 && nodes->nodes <= comm->place.ranks);
    const int share = comm->place.ranks / nodes->nodes;
    nodes->even = nodes->in_order = share * nodes->nodes == comm->place.ranks;
    empty(across);
    for (int rank = 0; rank < comm->place.ranks; rank++) {
        const int number = number_in_node(comm, rank);
        nodes->even = nodes->even && number < share;
        nodes->in_order = nodes->in_order && comm->node_of[rank] == rank / share;
        if (number == nodes->rank)
            join(comm, across, rank);
    }
}

void sw_comm_set_node_ranks(struct sw_comm *comm, int node_ranks) {
    assert(comm->given == comm->begun && node_ranks >= 0);
    for (int rank = 0; rank < comm->place.ranks; rank++)
        comm->node_of[rank] = node_ranks > 0 ? rank / node_ranks : comm->machine_of[rank];
    find_node(comm);
    find_across(comm);
    sw_comm_set_part_ranks(comm, 0);
}

void sw_comm_set_part_ranks(struct sw_comm *comm, int part_ranks) {
    const struct sw_comm_members *node = &comm->scope[SW_SCOPE_NODE];
    struct sw_comm_members *part = &comm->scope[SW_SCOPE_PART];
    const int size = part_ranks > 0 ? part_ranks : node->ranks, first = node->rank / size * size;
    assert(comm->given == comm->begun && part_ranks >= 0);
    empty(part);
    for (int number = first; number < first + size && number < node->ranks; number++)
        join(comm, part, node->rank_of[number]);
}

const struct sw_comm_nodes *sw_comm_nodes(const struct sw_comm *comm) {
    return &comm->nodes;
}

int sw_comm_scope_ranks(const struct sw_comm *comm, sw_comm_scope scope) {
    return comm->scope[scope].ranks;
}

int sw_comm_scope_rank(const struct sw_comm *comm, sw_comm_scope scope) {
    return comm->scope[scope].rank;
}

void sw_comm_name_scope(const struct sw_comm *comm, sw_comm_scope scope, char out[SW_COMM_SCOPE_CHARS]) {
    const struct sw_comm_members *part = &comm->scope[SW_SCOPE_PART];
    switch (scope) {
    case SW_SCOPE_NODE: snprintf(out, SW_COMM_SCOPE_CHARS, "node %d", comm->nodes.node); break;
    case SW_SCOPE_ACROSS: snprintf(out, SW_COMM_SCOPE_CHARS, "rank %d of each node", comm->nodes.rank); break;
    case SW_SCOPE_PART:
        snprintf(out, SW_COMM_SCOPE_CHARS, "ranks %d to %d", part->rank_of[0], part->rank_of[part->ranks - 1]);
        break;
    default: out[0] = '\0';
    }
}
