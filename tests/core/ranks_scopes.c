/* Collectives over the scopes of nodes, against what each rank computes for itself, and the count of bytes that leave a
 * node. */
#include "tests/core/ranks.h"

#include "core/size.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_RANKS = 16, SHARE = 1000 };

/* How many ranks a node, a part of a node and a tensor group have, how many tensor groups an expert group, and how many
 * stages the job. */
struct cuts {
    int node_ranks, part_ranks, tensor_ranks, expert_ranks, stages;
};

/* The ranks of a scope, by what the ranks' numbers say. */
struct expected {
    int rank, ranks, member[MOST_RANKS];
};

static struct expected expect(const struct sw_comm *comm, sw_comm_scope scope, const struct cuts *cuts) {
    const struct sw_comm_identity *self = sw_comm_identity(comm);
    const int node_ranks = cuts->node_ranks, part_ranks = cuts->part_ranks, tensor_ranks = cuts->tensor_ranks;
    const int stage_ranks = self->ranks / cuts->stages, stage = self->rank / stage_ranks, last = cuts->stages - 1;
    struct expected out = {0};
    for (int rank = 0; rank < self->ranks; rank++) {
        const int at = rank / stage_ranks;
        const bool own = at == stage, alike = rank % stage_ranks == self->rank % stage_ranks;
        const bool ends = (stage == 0 || stage == last) && (at == 0 || at == last);
        const bool node = rank / node_ranks == self->rank / node_ranks;
        const bool across = rank % node_ranks == self->rank % node_ranks;
        const bool part = node && rank % node_ranks / part_ranks == self->rank % node_ranks / part_ranks;
        const bool tensor = rank / tensor_ranks == self->rank / tensor_ranks;
        const bool data = rank % tensor_ranks == self->rank % tensor_ranks;
        const int group_ranks = tensor_ranks * cuts->expert_ranks;
        const bool experts = rank / group_ranks == self->rank / group_ranks;
        const bool replica = rank % group_ranks == self->rank % group_ranks;
        const bool in[SW_SCOPES] = {true,        node,    across,          part,           tensor,
                                    own && data, experts, experts && data, own && replica, alike && (own || ends)};
        if (!in[scope])
            continue;
        out.rank = rank == self->rank ? out.ranks : out.rank;
        out.member[out.ranks++] = rank;
    }
    return out;
}

/* Links make a ring of the ranks with one number in their stages. */
static bool is_link(sw_comm_scope scope) {
    return scope == SW_SCOPE_NEXT || scope == SW_SCOPE_PREVIOUS;
}

static struct expected expect_link(sw_comm_scope scope, const struct cuts *cuts) {
    return (struct expected){.ranks = cuts->stages > 1 ? 2 : 1,
                             .rank = cuts->stages > 1 && scope == SW_SCOPE_PREVIOUS ? 1 : 0};
}

/* Returns a rank's contribution: of many magnitudes, so that the order of sums shows. */
static float value_of(int rank, int64_t index) {
    return ldexpf(1.0f + (float)(index % 977) * 0x1p-10f, (rank * 5 + (int)(index % 7)) % 24);
}

/* Returns the first element of a share; shares differ, and one is empty. */
static int64_t bound_of(int number) {
    return number == 0 ? 0 : (int64_t)number * SHARE - 3 * (number % 2);
}

static void check_gather(struct sw_comm *comm, sw_comm_scope scope, const struct expected *in) {
    int64_t bounds[MOST_RANKS + 1];
    for (int number = 0; number <= in->ranks; number++)
        bounds[number] = bound_of(number) * (int64_t)sizeof(float);
    const int64_t elems = bound_of(in->ranks);
    float *data = calloc((size_t)elems, sizeof *data);
    RANKS_REQUIRE(data != NULL, "memory");
    for (int64_t i = bound_of(in->rank); i < bound_of(in->rank + 1); i++)
        data[i] = value_of(in->member[in->rank], i);
    struct sw_comm_request *request;
    const struct sw_comm_gather gather = {.what = "gather", .data = data, .bounds_bytes = bounds, .scope = scope};
    RANKS_REQUIRE(sw_comm_all_gather(comm, &gather, &request) == SW_OK && sw_comm_wait(request) == SW_OK, "gather");
    for (int number = 0; number < in->ranks; number++)
        for (int64_t i = bound_of(number); i < bound_of(number + 1); i++)
            RANKS_REQUIRE(data[i] == value_of(in->member[number], i), "scope %d, element %lld", (int)scope,
                          (long long)i);
    free(data);
}

static void check_reduce(struct sw_comm *comm, sw_comm_scope scope, const struct expected *in) {
    int64_t bounds[MOST_RANKS + 1];
    for (int number = 0; number <= in->ranks; number++)
        bounds[number] = bound_of(number);
    const int64_t elems = bound_of(in->ranks), first = bound_of(in->rank), own = bound_of(in->rank + 1) - first;
    float *data = calloc((size_t)elems, sizeof *data), *to = calloc((size_t)SHARE * 2, sizeof *to);
    RANKS_REQUIRE(data != NULL && to != NULL, "memory");
    for (int64_t i = 0; i < elems; i++)
        data[i] = value_of(in->member[in->rank], i);
    struct sw_comm_request *request;
    const struct sw_comm_reduce reduce = {
        .what = "reduce", .from = data, .bounds = bounds, .to = to, .type = SW_F32, .to_type = SW_F32, .scope = scope};
    RANKS_REQUIRE(sw_comm_reduce_scatter(comm, &reduce, &request) == SW_OK && sw_comm_wait(request) == SW_OK, "reduce");
    for (int64_t i = 0; i < own; i++) {
        float sum = value_of(in->member[0], first + i);
        for (int number = 1; number < in->ranks; number++)
            sum += value_of(in->member[number], first + i);
        RANKS_REQUIRE(to[i] == sum, "scope %d, element %lld is %a and not %a", (int)scope, (long long)(first + i),
                      (double)to[i], (double)sum);
    }
    free(data);
    free(to);
}

/* Returns how many of the scope's ranks each node has, where these are several neighbours on each of several nodes. */
static int node_members(const struct expected *in, int node_ranks) {
    int each = 0;
    for (int number = 0; number < in->ranks; number++)
        each += in->member[number] / node_ranks == in->member[0] / node_ranks;
    for (int number = 0; number < in->ranks; number++)
        if (in->member[number] / node_ranks != in->member[number / each * each] / node_ranks)
            return 0;
    return each > 1 && each < in->ranks && in->ranks % each == 0 ? each : 0;
}

/* Returns how many shares of a gather this rank gives to another: its own, to all, or over two levels to its
 * counterparts on other nodes, and as many as there are nodes to those of its own. */
static int shares_for(const struct expected *in, int number, int node_ranks) {
    const int each = node_members(in, node_ranks);
    if (number == in->rank)
        return 0;
    if (each == 0)
        return 1;
    if (number / each == in->rank / each)
        return in->ranks / each;
    return number % each == in->rank % each ? 1 : 0;
}

/* Gathers 1 KiB of every rank, and compares the bytes that are counted on all links, on those that leave the node, on
 * those within the tensor group, and on those to other stages. */
static void check_counts(struct sw_comm *comm, sw_comm_scope scope, const struct expected *in,
                         const struct cuts *cuts) {
    const int node_ranks = cuts->node_ranks, group_ranks = cuts->tensor_ranks;
    const int stage_ranks = sw_comm_identity(comm)->ranks / cuts->stages;
    int64_t bounds[MOST_RANKS + 1], between = 0, grouped = 0, staged = 0;
    for (int number = 0; number <= in->ranks; number++)
        bounds[number] = number * SW_KIB;
    for (int number = 0; number < in->ranks; number++)
        between += in->member[number] / node_ranks != in->member[in->rank] / node_ranks
                       ? shares_for(in, number, node_ranks) * SW_KIB
                       : 0;
    for (int number = 0; number < in->ranks; number++)
        grouped += in->member[number] / group_ranks == in->member[in->rank] / group_ranks
                       ? shares_for(in, number, node_ranks) * SW_KIB
                       : 0;
    for (int number = 0; number < in->ranks; number++)
        staged += in->member[number] / stage_ranks != in->member[in->rank] / stage_ranks
                      ? shares_for(in, number, node_ranks) * SW_KIB
                      : 0;
    char data[MOST_RANKS * SW_KIB];
    const int64_t sent = sw_comm_sent_bytes(comm), away = sw_comm_sent_between_bytes(comm);
    const int64_t group = sw_comm_sent_tensor_bytes(comm), stages = sw_comm_sent_stages_bytes(comm);
    struct sw_comm_request *request;
    const struct sw_comm_gather gather = {.what = "count", .data = data, .bounds_bytes = bounds, .scope = scope};
    memset(data, 1, sizeof data);
    RANKS_REQUIRE(sw_comm_all_gather(comm, &gather, &request) == SW_OK && sw_comm_wait(request) == SW_OK, "gather");
    RANKS_REQUIRE(sw_comm_sent_bytes(comm) - sent == (in->ranks - 1) * SW_KIB, "scope %d", (int)scope);
    RANKS_REQUIRE(sw_comm_sent_between_bytes(comm) - away == between, "scope %d: %lld bytes and not %lld", (int)scope,
                  (long long)(sw_comm_sent_between_bytes(comm) - away), (long long)between);
    RANKS_REQUIRE(sw_comm_sent_tensor_bytes(comm) - group == grouped, "scope %d: %lld bytes in the group and not %lld",
                  (int)scope, (long long)(sw_comm_sent_tensor_bytes(comm) - group), (long long)grouped);
    RANKS_REQUIRE(sw_comm_sent_stages_bytes(comm) - stages == staged,
                  "scope %d: %lld bytes between stages and not %lld", (int)scope,
                  (long long)(sw_comm_sent_stages_bytes(comm) - stages), (long long)staged);
}

/* Gathers shares that move in several parts, each rank's lying apart from the vector: of other lengths, and one empty.
 */
static void check_large_gather(struct sw_comm *comm, const struct expected *in) {
    enum { ELEMS = 700001 };
    int64_t bounds[MOST_RANKS + 1] = {0};
    for (int number = 0; number < in->ranks; number++)
        bounds[number + 1] = bounds[number] + (number == 1 ? 0 : ELEMS - 1001 * number) * (int64_t)sizeof(float);
    const int64_t first = bounds[in->rank] / (int64_t)sizeof(float),
                  end = bounds[in->rank + 1] / (int64_t)sizeof(float);
    float *data = calloc((size_t)bounds[in->ranks], 1), *own = calloc(ELEMS, sizeof *own);
    RANKS_REQUIRE(data != NULL && own != NULL, "memory");
    for (int64_t i = first; i < end; i++)
        own[i - first] = value_of(in->member[in->rank], i);
    struct sw_comm_request *request;
    const struct sw_comm_gather gather = {.what = "large", .data = data, .own = own, .bounds_bytes = bounds};
    RANKS_REQUIRE(sw_comm_all_gather(comm, &gather, &request) == SW_OK && sw_comm_wait(request) == SW_OK, "gather");
    for (int number = 0; number < in->ranks; number++)
        for (int64_t i = bounds[number] / (int64_t)sizeof(float); i < bounds[number + 1] / (int64_t)sizeof(float); i++)
            RANKS_REQUIRE(data[i] == value_of(in->member[number], i), "element %lld", (long long)i);
    free(data);
    free(own);
}

/* Checks every scope's members, collectives and counts. */
static void check_all(struct sw_comm *comm, const struct cuts *cuts) {
    for (int scope = 0; scope < SW_SCOPES; scope++) {
        const bool link = is_link((sw_comm_scope)scope);
        const struct expected in =
            link ? expect_link((sw_comm_scope)scope, cuts) : expect(comm, (sw_comm_scope)scope, cuts);
        RANKS_REQUIRE(sw_comm_scope_ranks(comm, (sw_comm_scope)scope) == in.ranks &&
                          sw_comm_scope_rank(comm, (sw_comm_scope)scope) == in.rank,
                      "scope %d", scope);
        if (link) /* a collective on every link at once would wait around the ring; see check_passes */
            continue;
        check_gather(comm, (sw_comm_scope)scope, &in);
        check_reduce(comm, (sw_comm_scope)scope, &in);
        check_counts(comm, (sw_comm_scope)scope, &in, cuts);
        if (scope == SW_SCOPE_ALL && cuts->tensor_ranks * cuts->expert_ranks * cuts->stages == 1)
            check_large_gather(comm, &in);
    }
}

static void pass(struct sw_comm *comm, sw_comm_scope scope, bool sends, void *data, int64_t bytes) {
    const struct sw_comm_pass pass = {
        .what = sends ? "give" : "get", .data = data, .bytes = bytes, .scope = scope, .sends = sends};
    struct sw_comm_request *request;
    RANKS_REQUIRE(sw_comm_pass(comm, &pass, &request) == SW_OK && sw_comm_wait(request) == SW_OK, "%s", pass.what);
}

/* Passes bytes from the first stage to the last and back again, each stage adding its number: as many as move in
 * several parts, and none; and from the last to the first. */
static void check_passes(struct sw_comm *comm, int stages) {
    enum { ELEMS = 300007 };
    const struct sw_comm_identity *self = sw_comm_identity(comm);
    const int stage = self->rank / (self->ranks / stages), number = self->rank % (self->ranks / stages);
    int32_t *data = calloc(ELEMS, sizeof *data);
    RANKS_REQUIRE(data != NULL, "memory");
    for (int way = 0; way < 2; way++) {
        const sw_comm_scope from = way == 0 ? SW_SCOPE_PREVIOUS : SW_SCOPE_NEXT;
        const sw_comm_scope to = way == 0 ? SW_SCOPE_NEXT : SW_SCOPE_PREVIOUS;
        const bool begins = way == 0 ? stage == 0 : stage + 1 == stages;
        const bool ends = way == 0 ? stage + 1 == stages : stage == 0;
        for (int64_t bytes = ELEMS * (int64_t)sizeof *data; bytes >= 0; bytes -= ELEMS * (int64_t)sizeof *data) {
            if (!begins)
                pass(comm, from, false, data, bytes);
            else if (bytes > 0)
                for (int32_t i = 0; i < ELEMS; i++)
                    data[i] = way == 0 ? i + number : data[i];
            for (int32_t i = 0; bytes > 0 && way == 0 && i < ELEMS; i++)
                data[i] += stage;
            if (!ends)
                pass(comm, to, true, data, bytes);
        }
    }
    if (stage + 1 == stages)
        pass(comm, SW_SCOPE_NEXT, true, data, ELEMS * (int64_t)sizeof *data);
    if (stage == 0)
        memset(data, 0, ELEMS * sizeof *data);
    if (stage == 0)
        pass(comm, SW_SCOPE_PREVIOUS, false, data, ELEMS * (int64_t)sizeof *data);
    for (int32_t i = 0; i < ELEMS; i++)
        RANKS_REQUIRE(data[i] == i + number + stages * (stages - 1) / 2, "element %d after %d stages", i, stages);
    free(data);
}

/* Checks the scopes of stages with and without tensor groups in them, and what neighbouring stages pass. */
static void check_stages(struct sw_comm *comm, int node_ranks, int part_ranks) {
    const struct sw_comm_identity *self = sw_comm_identity(comm);
    for (int stages = 2; stages <= self->ranks; stages++)
        for (int tensor_ranks = 1; self->ranks % stages == 0 && tensor_ranks <= self->ranks / stages; tensor_ranks++) {
            const struct cuts cuts = {node_ranks, part_ranks, tensor_ranks, 1, stages};
            if (self->ranks / stages % tensor_ranks != 0)
                continue;
            sw_comm_set_groups(comm, tensor_ranks, 1);
            sw_comm_set_stages(comm, stages);
            check_all(comm, &cuts);
            check_passes(comm, stages);
            sw_comm_set_stages(comm, 1);
        }
}

void ranks_check_scopes(struct sw_comm *comm, int node_ranks, int part_ranks) {
    const struct sw_comm_identity *self = sw_comm_identity(comm);
    const int nodes = (self->ranks + node_ranks - 1) / node_ranks;
    char *staging = malloc((size_t)sw_comm_least_staging_bytes(self->ranks) * 4);
    RANKS_REQUIRE(staging != NULL &&
                      sw_comm_use_staging(comm, staging, sw_comm_least_staging_bytes(self->ranks) * 4) == SW_OK,
                  "staging");
    const struct sw_comm_nodes *at = sw_comm_nodes(comm);
    RANKS_REQUIRE(at->nodes == self->nodes && at->node == self->node && at->rank == self->local_rank &&
                      at->ranks == self->local_ranks,
                  "machines are nodes at first");
    sw_comm_set_node_ranks(comm, node_ranks);
    sw_comm_set_part_ranks(comm, part_ranks);
    RANKS_REQUIRE(at->nodes == nodes && at->node == self->rank / node_ranks && at->rank == self->rank % node_ranks,
                  "%d nodes", at->nodes);
    RANKS_REQUIRE(at->even == (nodes == 1 || self->ranks % node_ranks == 0), "even nodes");
    RANKS_REQUIRE(at->in_order == at->even, "the ranks of a node are neighbours");
    /* The groups of the job are as they are whatever nodes do, and at first each rank is one. */
    for (int tensor_ranks = 1; tensor_ranks <= self->ranks; tensor_ranks++)
        for (int expert_ranks = 1; tensor_ranks * expert_ranks <= self->ranks; expert_ranks++) {
            const struct cuts cuts = {node_ranks, part_ranks, tensor_ranks, expert_ranks, 1};
            if (self->ranks % (tensor_ranks * expert_ranks) != 0)
                continue;
            if (tensor_ranks * expert_ranks > 1)
                sw_comm_set_groups(comm, tensor_ranks, expert_ranks);
            check_all(comm, &cuts);
        }
    check_stages(comm, node_ranks, part_ranks);
    sw_comm_set_groups(comm, self->ranks, 1);
    sw_comm_set_node_ranks(comm, 0);
    RANKS_REQUIRE(at->nodes == self->nodes && sw_comm_scope_ranks(comm, SW_SCOPE_PART) == self->local_ranks,
                  "machines are nodes again");
    RANKS_REQUIRE(sw_comm_scope_ranks(comm, SW_SCOPE_TENSOR) == self->ranks, "nodes leave groups as they are");
    sw_comm_set_groups(comm, 1, 1);
    RANKS_REQUIRE(sw_comm_scope_ranks(comm, SW_SCOPE_DATA) == self->ranks, "each rank is a group again");
    free(staging);
}
