/* Counts the bytes that ops of the comm lane give to other ranks, and those of them that go to other nodes. */
#include "core/size.h"
#include "offload/plan/plan_private.h"

/* The ranks among which an op exchanges, this one's number among them, and those on this rank's node; node 0: not
 * known. */
struct among {
    int ranks, rank, node;
};

static struct among among_of(const struct sw_plan *plan, const struct sw_op *op) {
    const struct sw_plan_tensor *tensor = &plan->spec.tensor;
    const struct among group = {sw_plan_tensor_ranks(plan), tensor->rank, tensor->node_ranks};
    const struct among data = {sw_plan_ranks(plan), plan->spec.rank, plan->spec.node_ranks};
    switch (sw_ops[op->kind].among) {
    case SW_AMONG_GROUP: return group;
    case SW_AMONG_JOB:
        return group.ranks == 1
                   ? data
                   : (struct among){group.ranks * data.ranks, sw_plan_job_rank(plan), group.node * data.node};
    default: return data;
    }
}

static int64_t replicated_bytes(const struct sw_plan *plan, const struct sw_op *op) {
    return sw_plan_replicated_elems(plan, op->unit) * (int64_t)sizeof(float);
}

/* Returns the bytes that the gather of an op takes from one of its ranks. */
static int64_t share_bytes(const struct sw_plan *plan, const struct sw_op *op, int number) {
    if (op->kind == SW_OP_SUM_REPLICATED)
        return sw_plan_replicated_of(plan, op->unit, number).grains * (int64_t)sizeof(float);
    if (op->kind == SW_OP_GATHER_TENSOR)
        return op->content == SW_CONTENT_SOFTMAX ? plan->spec.tensor.softmax_bytes
                                                 : sw_plan_rows_of(plan, number).grains * sw_plan_row_bytes(plan);
    const struct sw_span at =
        op->bucket ? sw_plan_shard_chunk(plan, op->unit, number, op->chunk) : sw_plan_shard_of(plan, op->unit, number);
    return at.grains * sw_plan_grain_bytes(plan, op->content, op->unit);
}

/* Tells whether an op gathers in two levels, as core/ranks/comm.c does. */
static bool gathers_in_levels(const struct sw_plan *plan, const struct sw_op *op, struct among among) {
    return sw_ops[op->kind].gathers && plan->spec.fills_nodes && !op->secondary && among.node > 1 &&
           among.node < among.ranks;
}

/* Over two levels a rank gives its share to its counterparts on other nodes, and the shares that it then has to the
 * others of its node. */
int64_t sw_plan_gathered_bytes(const struct sw_plan *plan, const struct sw_op *op) {
    const struct among among = among_of(plan, op);
    const int64_t own = share_bytes(plan, op, among.rank);
    if (!gathers_in_levels(plan, op, among))
        return own * (among.ranks - 1);
    int64_t bytes = own * (among.ranks / among.node - 1);
    for (int number = among.rank % among.node; number < among.ranks; number += among.node)
        bytes += share_bytes(plan, op, number) * (among.node - 1);
    return bytes;
}

/* Returns the bytes of an op that go to other nodes. But for gathers in two levels every other rank is given as much,
 * and in reductions about as much, as shares differ by a grain or a row. */
int64_t sw_plan_between_bytes(const struct sw_plan *plan, const struct sw_op *op) {
    const struct among among = among_of(plan, op);
    if (op->level != SW_LEVEL_ALL)
        return op->level == SW_LEVEL_ACROSS ? op->bytes : 0;
    if (op->secondary || among.node == 0 || among.node >= among.ranks)
        return 0;
    int64_t straight = op->bytes, across = 0;
    if (gathers_in_levels(plan, op, among)) {
        const int64_t own = share_bytes(plan, op, among.rank);
        across = own * (among.ranks / among.node - 1);
        straight = op->kind == SW_OP_SUM_REPLICATED ? replicated_bytes(plan, op) - own : 0;
    }
    return across + straight * (among.ranks - among.node) / (among.ranks - 1);
}

struct sw_plan_sent sw_plan_sent_bytes(const struct sw_plan *plan) {
    const struct sw_program *program = &plan->program[SW_PROGRAM_UPDATE];
    struct sw_plan_sent sent = {0};
    for (int32_t i = 0; i < program->lane_count[SW_LANE_COMM]; i++) {
        const struct sw_op *op = &program->op[program->lane_op[SW_LANE_COMM][i]];
        sent.bytes += op->bytes;
        sent.between_bytes += sw_plan_between_bytes(plan, op);
    }
    return sent;
}
