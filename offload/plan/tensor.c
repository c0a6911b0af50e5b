/* The exchanges of a tensor group. The ranks' parts of a piece are added up, each rank getting its rows, and then
 * gathered, so the piece is whole again on every rank. Both happen in place, except for the rows of an input that is
 * kept partitioned on the device. */
#include "offload/plan/builder.h"

#include <assert.h>

/* A norm's passes go over memory about so often: forward the input and the output; backward the input, gradients in and
 * out, and the statistics again. */
enum { NORM_FORWARD_PASSES = 2, NORM_BACKWARD_PASSES = 5 };

bool sw_build_norm_is_apart(const struct sw_builder *b, int64_t unit) {
    return sw_plan_tensor_ranks(b->plan) > 1 && !sw_plan_continues(b->plan, unit);
}

int sw_build_adds(const struct sw_builder *b, int64_t unit) {
    enum { WITH_NORM = 2, SPLIT = 4 }; /* the norm, and the first and the last product of a block, add apart */
    if (unit == 0 || !sw_build_norm_is_apart(b, unit))
        return 1;
    return sw_plan_splits_backward(b->plan, unit) ? SPLIT : WITH_NORM;
}

static int64_t own_rows(const struct sw_builder *b) {
    return sw_plan_own_rows(b->plan).grains;
}

/* A piece in exchange. */
struct shared {
    struct sw_operand at,
        rows;            /* the piece, and where this rank's rows are if not in their place in it; else slot -1 */
    struct sw_what what; /* its version says what it becomes */
    int64_t unit;        /* the op's */
};

static const struct sw_operand in_place = {.slot = -1};

/* Begins an exchange. Returns the op, to which the caller adds its bytes. */
static struct sw_op *exchange(struct sw_builder *b, sw_op_kind kind, const struct shared *piece, int64_t from_version,
                              int64_t to_version) {
    struct sw_op *op = sw_build_op(b, kind, piece->unit, piece->what.index);
    struct sw_what from = piece->what, to = piece->what;
    from.version = from_version;
    to.version = to_version;
    const bool reduces = kind == SW_OP_REDUCE_TENSOR, apart = piece->rows.slot >= 0;
    op->content = piece->what.content;
    sw_build_read(b, apart && !reduces ? piece->rows : piece->at, from);
    sw_build_write(b, apart && reduces ? piece->rows : piece->at, to);
    return op;
}

/* A rank gives all rows but those that it gets. */
static void add_up(struct sw_builder *b, const struct shared *piece, int64_t to_version) {
    struct sw_op *op = exchange(b, SW_OP_REDUCE_TENSOR, piece, SW_VERSION_LOCAL, to_version);
    const sw_among among = sw_plan_among(b->plan, op);
    const struct sw_span last = sw_plan_rows_of(b->plan, among, sw_plan_members(b->plan, among) - 1);
    const int64_t own = sw_plan_rows_of(b->plan, among, sw_plan_member(b->plan, among)).grains;
    op->bytes = (last.first_grain + last.grains - own) * sw_plan_row_bytes(b->plan);
}

static void reduce(struct sw_builder *b, const struct shared *piece) {
    add_up(b, piece, SW_VERSION_OWN);
}

static void gather(struct sw_builder *b, const struct shared *piece) {
    struct sw_op *op = exchange(b, SW_OP_GATHER_TENSOR, piece, SW_VERSION_OWN, 0);
    op->bytes = sw_plan_gathered_bytes(b->plan, op);
}

/* Returns where this rank's rows of a unit's output are kept, if that is a slot of their own on the device. */
static struct sw_operand kept_rows(const struct sw_builder *b, const struct sw_group *group, int64_t unit,
                                   int64_t within) {
    const int32_t home = group->train ? b->index->of_unit[SLOT_INPUT][unit + 1] : -1;
    return home >= 0 && sw_plan_partitions_inputs(b->plan) && b->plan->slot[home].tier == SW_DEVICE
               ? (struct sw_operand){.slot = home, .piece = sw_build_input_piece(b, group, unit + 1, within)}
               : in_place;
}

void sw_build_sum_output(struct sw_builder *b, const struct sw_group *group, int64_t unit, int64_t within,
                         struct sw_operand at) {
    const struct shared piece = {.at = at,
                                 .rows = kept_rows(b, group, unit, within),
                                 .what = sw_build_output_of(unit, group->first + within),
                                 .unit = unit};
    if (sw_plan_tensor_ranks(b->plan) == 1 || sw_plan_continues(b->plan, unit + 1))
        return;
    reduce(b, &piece);
    gather(b, &piece);
}

void sw_build_sum_experts(struct sw_builder *b, const struct sw_group *group, int64_t unit, int64_t within,
                          struct sw_operand parts, struct sw_operand out) {
    const struct sw_what what = sw_build_output_of(unit, group->first + within);
    const struct sw_operand kept = kept_rows(b, group, unit, within);
    const struct sw_operand rows = kept.slot >= 0 ? kept : sw_build_own_rows(b, out);
    reduce(b, &(struct shared){.at = parts, .rows = rows, .what = what, .unit = unit});
    gather(b, &(struct shared){.at = out, .rows = kept, .what = what, .unit = unit});
}

void sw_build_sum_rows(struct sw_builder *b, int64_t unit, int64_t micro, struct sw_operand parts,
                       struct sw_operand rows) {
    reduce(b, &(struct shared){.at = parts, .rows = rows, .what = sw_build_output_of(unit, micro), .unit = unit});
}

/* Parts of outputs and gradients at norms share a ring, because forward and backward passes take turns. */
struct sw_operand sw_build_parts(struct sw_builder *b) {
    return sw_build_ring(b, SLOT_NORM_GRAD);
}

static struct sw_what normed_of(int64_t unit, int64_t micro, int64_t version) {
    return (struct sw_what){SW_CONTENT_NORMED, unit, micro, version, 0, 0};
}

struct sw_operand sw_build_forward_norm(struct sw_builder *b, const struct sw_norm_work *norm) {
    const struct sw_operand to = sw_build_ring(b, SLOT_NORMED);
    struct sw_op *op = sw_build_op(b, SW_OP_FORWARD_NORM, norm->unit, norm->micro);
    op->bytes = NORM_FORWARD_PASSES * own_rows(b) * sw_plan_row_bytes(b->plan);
    sw_build_read_weights(b, norm->unit, norm->weights);
    sw_build_read(b, norm->input, sw_build_output_of(norm->unit - 1, norm->micro));
    sw_build_write(b, to, normed_of(norm->unit, norm->micro, SW_VERSION_OWN));
    sw_build_touch_work(b);
    gather(b, &(struct shared){
                  .at = to, .rows = in_place, .what = normed_of(norm->unit, norm->micro, 0), .unit = norm->unit});
    return to;
}

static struct sw_what grad_of(int64_t unit, int64_t micro, int64_t version) {
    return (struct sw_what){SW_CONTENT_BLOCK_OUTPUT_GRAD, unit, micro, version, 0, 0};
}

struct sw_operand sw_build_gather_grad(struct sw_builder *b, int64_t unit, int64_t micro, struct sw_operand rows) {
    const struct sw_operand to = sw_build_ring(b, SLOT_WHOLE_GRAD);
    gather(b, &(struct shared){.at = to, .rows = rows, .what = grad_of(unit, micro, 0), .unit = unit});
    return to;
}

void sw_build_read_normed(struct sw_builder *b, int64_t unit, int64_t micro, struct sw_operand normed) {
    sw_build_read(b, normed, normed_of(unit, micro, 0));
}

struct sw_operand sw_build_write_sent(struct sw_builder *b, int64_t unit, int64_t micro) {
    const struct sw_operand at = sw_build_ring(b, SLOT_NORMED);
    sw_build_write(b, at, normed_of(unit, micro, SW_VERSION_OWN));
    return at;
}

/* Gathers a piece from the members of an expert group. */
static void gather_sent(struct sw_builder *b, const struct shared *piece, int64_t from_version) {
    struct sw_op *op = exchange(b, SW_OP_GATHER_TENSOR, piece, from_version, piece->what.version);
    op->sends = true;
    op->bytes = sw_plan_gathered_bytes(b->plan, op);
}

void sw_build_gather_sent(struct sw_builder *b, int64_t unit, int64_t micro, struct sw_operand sent) {
    gather_sent(b, &(struct shared){.at = sent, .rows = in_place, .what = normed_of(unit, micro, 0), .unit = unit},
                SW_VERSION_OWN);
}

void sw_build_sum_parts(struct sw_builder *b, int64_t unit, int64_t micro, struct sw_operand parts,
                        struct sw_operand out) {
    add_up(b, &(struct shared){.at = parts, .rows = out, .what = sw_build_output_of(unit, micro), .unit = unit}, 0);
}

struct sw_operand sw_build_gather_grads(struct sw_builder *b, int64_t unit, int64_t micro, struct sw_operand own) {
    const struct sw_operand to = sw_build_ring(b, SLOT_WHOLE_GRAD);
    const struct shared piece = {.at = to, .rows = own, .what = grad_of(unit, micro, SW_VERSION_WHOLE), .unit = unit};
    gather_sent(b, &piece, 0);
    return to;
}

struct sw_operand sw_build_own_rows(const struct sw_builder *b, struct sw_operand at) {
    at.offset_bytes = sw_plan_own_rows(b->plan).first_grain * sw_plan_row_bytes(b->plan);
    return at;
}

int64_t sw_build_own_rows_bytes(const struct sw_builder *b) {
    return own_rows(b) * sw_plan_row_bytes(b->plan);
}

void sw_build_gather_input(struct sw_builder *b, int64_t unit, struct sw_what input, struct sw_operand rows,
                           struct sw_operand to) {
    const bool apart = rows.slot != to.slot;
    gather(b, &(struct shared){.at = to, .rows = apart ? rows : in_place, .what = input, .unit = unit});
}

struct sw_operand sw_build_share_softmax(struct sw_builder *b, int64_t micro) {
    const struct shared piece = {.at = sw_build_ring(b, SLOT_SOFTMAX),
                                 .rows = in_place,
                                 .what = {SW_CONTENT_SOFTMAX, -1, micro, 0, 0, 0},
                                 .unit = sw_build_head_of(b)};
    struct sw_what local = piece.what;
    local.version = SW_VERSION_LOCAL;
    sw_build_write(b, piece.at, local);
    struct sw_op *op = exchange(b, SW_OP_GATHER_TENSOR, &piece, SW_VERSION_LOCAL, piece.what.version);
    op->bytes = sw_plan_gathered_bytes(b->plan, op);
    return piece.at;
}

static struct sw_what product_grad_of(int64_t unit, int64_t micro) {
    return (struct sw_what){SW_CONTENT_PRODUCT_GRAD, unit, micro, 0, 0, 0};
}

void sw_build_write_product_grad(struct sw_builder *b, int64_t unit, int64_t micro) {
    sw_build_in_order(b, true, (struct sw_operand){.slot = b->index->slot[SLOT_PRODUCT_GRAD]},
                      product_grad_of(unit, micro));
}

void sw_build_read_product_grad(struct sw_builder *b, int64_t unit, int64_t micro) {
    sw_build_in_order(b, false, (struct sw_operand){.slot = b->index->slot[SLOT_PRODUCT_GRAD]},
                      product_grad_of(unit, micro));
}

static struct sw_what norm_grad_of(int64_t unit, int64_t micro, int64_t version) {
    return (struct sw_what){SW_CONTENT_NORM_GRAD, unit, micro, version, 0, 0};
}

struct sw_operand sw_build_write_norm_grad(struct sw_builder *b, int64_t unit, int64_t micro) {
    const struct sw_operand at = sw_build_ring(b, SLOT_NORM_GRAD);
    sw_build_write(b, at, norm_grad_of(unit, micro, SW_VERSION_LOCAL));
    return at;
}

void sw_build_reduce_norm_grad(struct sw_builder *b, const struct sw_norm_work *norm) {
    reduce(b, &(struct shared){.at = norm->norm_grad,
                               .rows = in_place,
                               .what = norm_grad_of(norm->unit, norm->micro, 0),
                               .unit = norm->unit});
}

/* The op reads the gradient at the unit's output, of which a block's input has a part beside the norm. The head's has
 * none. With sequence parallelism the gradient's rows are gathered when the unit before needs all. */
void sw_build_backward_norm(struct sw_builder *b, const struct sw_norm_work *norm) {
    const int64_t unit = norm->unit;
    const bool head = unit == sw_build_head_of(b), sequence = sw_plan_is_sequence_parallel(b->plan);
    const int64_t before = (head ? unit : sw_plan_backward_input(b->plan, unit)) - 1;
    const struct sw_what own_grad = grad_of(unit - 1, norm->micro, SW_VERSION_OWN);
    struct sw_op *op = sw_build_op(b, SW_OP_BACKWARD_NORM, unit, norm->micro);
    op->bytes = NORM_BACKWARD_PASSES * own_rows(b) * sw_plan_row_bytes(b->plan);
    sw_build_read_weights(b, unit, norm->weights);
    sw_build_read(b, norm->input, sw_build_output_of(before, norm->micro));
    sw_build_read(b, norm->norm_grad, norm_grad_of(unit, norm->micro, SW_VERSION_OWN));
    if (!head)
        sw_build_read(b, norm->grad, grad_of(unit, norm->micro, sequence ? SW_VERSION_OWN : 0));
    sw_build_write(b, norm->grad, own_grad);
    if (sw_plan_trains(b->plan, unit))
        sw_build_accumulate(b, unit, norm->acc);
    sw_build_touch_work(b);
    if (!sequence && sw_plan_passes_back(b->plan, unit - 1))
        gather(b, &(struct shared){.at = norm->grad, .rows = in_place, .what = own_grad, .unit = unit});
}
