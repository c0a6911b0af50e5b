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
    assert(comm->scope[SW_SCOPE_NODE].ranks > 0);
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

void sw_comm_set_tensor_ranks(struct sw_comm *comm, int tensor_ranks) {
    struct sw_comm_members *tensor = &comm->scope[SW_SCOPE_TENSOR], *data = &comm->scope[SW_SCOPE_DATA];
    const struct sw_comm_identity *self = &comm->place;
    assert(comm->given == comm->begun && tensor_ranks > 0 && self->ranks % tensor_ranks == 0);
    empty(tensor);
    empty(data);
    for (int rank = 0; rank < self->ranks; rank++) {
        if (rank / tensor_ranks == self->rank / tensor_ranks)
            join(comm, tensor, rank);
        if (rank % tensor_ranks == self->rank % tensor_ranks)
            join(comm, data, rank);
    }
}

int sw_comm_node_members(const struct sw_comm *comm, const struct sw_comm_members *members) {
    const int *node_of = comm->node_of, *rank_of = members->rank_of, ranks = members->ranks;
    int each = 0;
    for (int number = 0; number < ranks; number++)
        each += node_of[rank_of[number]] == node_of[rank_of[0]];
    if (each < 2 || each == ranks || ranks % each != 0)
        return 0;
    for (int number = 0; number < ranks; number++) {
        const int node = node_of[rank_of[number]];
        const bool joins = number % each > 0, same = number > 0 && node == node_of[rank_of[number - 1]];
        if (joins != same)
            return 0;
    }
    return each;
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

/* Names the ranks of a group, whose numbers are equally far apart: "ranks 2 and 3", "ranks 0, 4, ..., 12". */
static void name_group(const char *kind, const struct sw_comm_members *group, char out[SW_COMM_SCOPE_CHARS]) {
    const int *rank_of = group->rank_of, last = rank_of[group->ranks - 1];
    if (group->ranks == 1)
        snprintf(out, SW_COMM_SCOPE_CHARS, "%s group of rank %d", kind, last);
    else if (group->ranks == 2)
        snprintf(out, SW_COMM_SCOPE_CHARS, "%s group of ranks %d and %d", kind, rank_of[0], last);
    else if (rank_of[1] == rank_of[0] + 1)
        snprintf(out, SW_COMM_SCOPE_CHARS, "%s group of ranks %d to %d", kind, rank_of[0], last);
    else
        snprintf(out, SW_COMM_SCOPE_CHARS, "%s group of ranks %d, %d%s %d", kind, rank_of[0], rank_of[1],
                 group->ranks == 3 ? " and" : ", ...,", last);
}

void sw_comm_name_scope(const struct sw_comm *comm, sw_comm_scope scope, char out[SW_COMM_SCOPE_CHARS]) {
    const struct sw_comm_members *part = &comm->scope[SW_SCOPE_PART];
    out[0] = '\0';
    switch (scope) {
    case SW_SCOPE_NODE: snprintf(out, SW_COMM_SCOPE_CHARS, "node %d", comm->nodes.node); break;
    case SW_SCOPE_ACROSS: snprintf(out, SW_COMM_SCOPE_CHARS, "rank %d of each node", comm->nodes.rank); break;
    case SW_SCOPE_PART:
        snprintf(out, SW_COMM_SCOPE_CHARS, "ranks %d to %d", part->rank_of[0], part->rank_of[part->ranks - 1]);
        break;
    case SW_SCOPE_TENSOR: name_group("tensor", &comm->scope[scope], out); break;
    case SW_SCOPE_DATA:
        if (comm->scope[scope].ranks < comm->place.ranks)
            name_group("data", &comm->scope[scope], out);
        break;
    case SW_SCOPE_ALL:
    case SW_SCOPES: break;
    }
}
