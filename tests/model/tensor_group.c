/* The ranks of a tensor group in one process, without an engine: this code carries out the exchanges that a plan would.
 * Every area is NaN before a call writes it. */
#include "tests/model/tensor_group.h"
#include "tests/equipment/support.h"

#include <math.h>

#include "core/rng.h"
#include "core/size.h"

enum { THREADS = 2, POISON = 0xff, TARGETS_STREAM = 77 };
#define LOSS_SCALE (1.0f / (float)(BATCH * SEQ))

static void *take(int64_t bytes) {
    const size_t whole = (size_t)sw_round_up(sw_max_i64(bytes, 1), SW_BUFFER_ALIGN_BYTES);
    void *at = aligned_alloc(SW_BUFFER_ALIGN_BYTES, whole);
    assert_non_null(at);
    memset(at, POISON, whole);
    return at;
}

/* One rank: its model, and the memory of its units. */
struct rank {
    struct sw_model *model;
    const struct sw_units *units;
    struct sw_model_bytes bytes;
    struct sw_span own_rows;
    void **weights, **saved, **derived;
    float **acc;
    void *work, *part, *norm_grad, *softmax; /* part: of a unit's output, or of the gradient at its input */
    void *product_grad;
    void *own_in;    /* this rank's rows of a unit's input */
    void **handed;   /* what each tile but a half's last hands on to the next */
    void *tile_grad; /* gradients at the output and the norm of a half in tiles */
    double loss;
};

/* A group of ranks, and what all of them have alike. One rank without a group runs the whole model. */
struct group {
    const struct tensor_case *c;
    struct sw_device *device;
    struct sw_stream *stream;
    int ranks;
    struct rank rank[MOST_RANKS];
    int32_t *tokens;
    void **hidden; /* output of each unit but the head */
    void *normed;  /* normalised input of the unit whose turn it is; with sequence parallelism */
    void *grad;    /* gradient at the output of the unit whose turn it is */
    int64_t units, hidden_elems;
};

/* Values of one unit that get random vectors. */
struct perturbed {
    const struct sw_unit *unit;
    float *values;
};

/* Biases and scales are random too, so that their part in the arithmetic shows. */
static sw_status perturb(void *context, int64_t tensor, int64_t whole, int64_t run, int64_t at) {
    const struct sw_tensor *t = &((const struct perturbed *)context)->unit->tensor[tensor];
    float *out = ((const struct perturbed *)context)->values + at;
    for (int64_t i = 0; i < run && t->dims == 1; i++)
        out[i] += 0.2f * sw_rng_normal(SEED, (uint64_t)t->name[strlen(t->name) - 6], (uint64_t)(whole + i));
    return SW_OK;
}

void tensor_fill(const struct sw_model_config *config, const struct sw_units *units, int64_t unit, float *out) {
    struct sw_model_init init = {.config = config, .units = units, .seed = SEED};
    const int64_t elems = units->unit[unit].elems;
    struct perturbed perturbed = {.unit = &units->unit[unit], .values = out};
    support_expect_ok(sw_model_fill_random(&init, unit, 0, elems, out), "random weights");
    support_expect_ok(sw_unit_walk(perturbed.unit, 0, elems, perturb, &perturbed), "random vectors");
}

static void fill_weights(const struct group *g, struct rank *r, int64_t unit) {
    const int64_t elems = r->units->unit[unit].elems;
    float *values = take(elems * (int64_t)sizeof *values);
    r->weights[unit] = take(elems * sw_dtype_bytes(g->c->type));
    r->acc[unit] = take(elems * (int64_t)sizeof(float));
    memset(r->acc[unit], 0, (size_t)elems * sizeof(float));
    tensor_fill(&g->c->config, r->units, unit, values);
    for (int64_t e = 0; e < elems; e++)
        sw_dtype_store(g->c->type, r->weights[unit], e, values[e]);
    free(values);
}

static int64_t derived_bytes(const struct group *g, const struct rank *r, int64_t unit) {
    return g->c->sequence ? r->bytes.cost[unit].unnormed_bytes : r->bytes.cost[unit].derived_bytes;
}

/* Tells whether the unit after this one continues its half. */
static bool hands_on(const struct rank *r, int64_t unit) {
    return unit + 1 < r->units->count && r->bytes.cost[unit + 1].continues;
}

/* Takes the memory of a rank's units. */
static void take_units(struct group *g, struct rank *r) {
    const size_t count = (size_t)r->units->count;
    int64_t most = 0;
    r->weights = calloc(count, sizeof *r->weights);
    r->saved = calloc(count, sizeof *r->saved);
    r->derived = calloc(count, sizeof *r->derived);
    r->acc = calloc(count, sizeof *r->acc);
    r->handed = calloc(count, sizeof *r->handed);
    assert_true(r->weights != NULL && r->saved != NULL && r->derived != NULL && r->acc != NULL && r->handed != NULL);
    for (int64_t u = 0; u < r->units->count; u++) {
        fill_weights(g, r, u);
        assert_false(g->ranks > 1 && g->c->tiles <= 1 && (r->bytes.cost[u].shares_input || r->bytes.cost[u].continues));
        r->saved[u] = take(r->bytes.cost[u].saved_bytes);
        r->derived[u] = take(derived_bytes(g, r, u));
        r->handed[u] = hands_on(r, u) ? take(r->bytes.cost[u].output_bytes) : NULL;
        most = sw_max_i64(most, r->bytes.cost[u].output_bytes);
    }
    r->tile_grad = take(most);
}

/* The ranks of a group keep rows of logits as on a GPU, with gaps, and the whole model as on a CPU, without. */
static void open_rank(struct group *g, int number) {
    struct rank *r = &g->rank[number];
    const struct sw_model_shape shape = {.type = g->c->type,
                                         .batch = BATCH,
                                         .seq = SEQ,
                                         .tiles = g->c->tiles,
                                         .tensor_ranks = g->ranks == 1 ? 0 : g->ranks,
                                         .tensor_rank = number,
                                         .documents = g->c->documents,
                                         .head_tile_bytes = HEAD_TILE_BYTES,
                                         .head_logits_apart = g->ranks > 1};
    support_expect_ok(sw_model_create(&g->c->config, &shape, g->device, &r->model), g->c->name);
    r->units = sw_model_get_units(r->model);
    r->bytes = sw_model_bytes(r->model);
    assert_true(r->bytes.rows == BATCH * SEQ && (r->bytes.softmax > 0) == (g->ranks > 1));
    assert_true(r->bytes.softmax % 64 == 0 && (g->ranks == 1 || r->bytes.gathered == 0));
    r->own_rows = sw_shard(BATCH * SEQ, g->ranks, number);
    take_units(g, r);
    const int64_t output_bytes = g->hidden_elems * sw_dtype_bytes(g->c->type);
    r->work = take(r->bytes.work);
    r->part = take(output_bytes);
    r->norm_grad = take(output_bytes);
    r->own_in = take(output_bytes / (BATCH * SEQ) * r->own_rows.grains);
    r->product_grad = take(r->bytes.product);
    r->softmax = take(g->ranks * r->bytes.softmax);
}

/* Some rows have no target, and documents begin at different places of each sequence. */
static void make_tokens(struct group *g) {
    g->tokens = take(g->rank[0].bytes.token);
    const struct sw_tokens tokens = sw_model_tokens(g->rank[0].model, g->tokens);
    for (int32_t row = 0; row < BATCH * SEQ; row++) {
        const struct sw_rng_block drawn = sw_rng(SEED, TARGETS_STREAM, (uint64_t)row);
        tokens.inputs[row] = (int32_t)(drawn.word[0] % (uint32_t)g->c->config.vocab);
        tokens.targets[row] = row % 5 == 3 ? -1 : (int32_t)(drawn.word[1] % (uint32_t)g->c->config.vocab);
        if (tokens.document_start != NULL)
            tokens.document_start[row] = row % SEQ > row / SEQ + 1 ? row / SEQ + 2 : 0;
    }
}

static void open_group(const struct tensor_case *c, int ranks, struct group *g) {
    *g = (struct group){.c = c, .ranks = ranks, .hidden_elems = BATCH * SEQ * c->config.hidden};
    support_expect_ok(sw_device_open("cpu", THREADS, &g->device), c->name);
    support_expect_ok(sw_stream_open(g->device, &g->stream), c->name);
    for (int t = 0; t < ranks; t++)
        open_rank(g, t);
    g->units = g->rank[0].units->count;
    g->hidden = calloc((size_t)g->units, sizeof *g->hidden);
    assert_non_null(g->hidden);
    for (int64_t u = 0; u + 1 < g->units; u++)
        g->hidden[u] = take(g->hidden_elems * sw_dtype_bytes(c->type));
    g->normed = take(g->hidden_elems * sw_dtype_bytes(c->type));
    g->grad = take(g->hidden_elems * sw_dtype_bytes(c->type));
    make_tokens(g);
}

static void close_group(struct group *g) {
    for (int t = 0; t < g->ranks; t++) {
        struct rank *r = &g->rank[t];
        for (int64_t u = 0; u < g->units; u++) {
            free(r->weights[u]);
            free(r->saved[u]);
            free(r->derived[u]);
            free(r->acc[u]);
            free(r->handed[u]);
        }
        void *const areas[] = {r->weights, r->saved,     r->derived,      r->acc,     r->work,   r->part,
                               r->own_in,  r->norm_grad, r->product_grad, r->softmax, r->handed, r->tile_grad};
        for (size_t i = 0; i < sizeof areas / sizeof areas[0]; i++)
            free(areas[i]);
        sw_model_destroy(r->model);
    }
    for (int64_t u = 0; u + 1 < g->units; u++)
        free(g->hidden[u]);
    free(g->hidden);
    free(g->normed);
    free(g->grad);
    free(g->tokens);
    sw_stream_close(g->stream);
    sw_device_close(g->device);
}

static int64_t row_bytes(const struct group *g) {
    return g->c->config.hidden * sw_dtype_bytes(g->c->type);
}

/* Returns a unit's input: what the unit before hands on, or what all ranks have. */
static const void *input_of(const struct group *g, const struct rank *r, int64_t unit) {
    if (unit == 0)
        return NULL;
    return r->bytes.cost[unit].continues ? r->handed[unit - 1] : g->hidden[unit - 1];
}

/* Returns the call of a unit. With sequence parallelism a rank sees its rows of the input alone, and what continues a
 * half needs no rows of its own. */
static struct sw_unit_call call_of(const struct group *g, struct rank *r, int64_t unit) {
    const bool table = r->units->tied && unit + 1 == g->units, inner = unit > 0;
    const bool rows = inner && !r->bytes.cost[unit].continues;
    if (rows)
        memcpy(r->own_in, (const char *)g->hidden[unit - 1] + r->own_rows.first_grain * row_bytes(g),
               (size_t)(r->own_rows.grains * row_bytes(g)));
    return (struct sw_unit_call){.stream = g->stream,
                                 .unit = unit,
                                 .weights = r->weights[unit],
                                 .table = table ? r->weights[0] : NULL,
                                 .tokens = g->tokens,
                                 .in = g->c->sequence ? NULL : input_of(g, r, unit),
                                 .own_in = rows ? r->own_in : NULL,
                                 .normed = inner && g->c->sequence ? g->normed : NULL,
                                 .saved = r->saved[unit],
                                 .derived = r->derived[unit],
                                 .acc = r->acc[unit],
                                 .table_acc = table ? r->acc[0] : NULL,
                                 .work = r->work,
                                 .norm_grad = r->bytes.cost[unit].continues ? NULL : r->norm_grad,
                                 .product_grad = r->product_grad,
                                 .softmax = r->softmax,
                                 .own_rows = r->own_rows,
                                 .loss_scale = LOSS_SCALE,
                                 .loss = &r->loss};
}

/* Runs a function of the model. Nothing that an earlier call left in the work area may matter. */
static void run(const struct group *g, struct rank *r, sw_unit_function function, const struct sw_unit_call *call) {
    const struct sw_unit_ops ops = sw_model_ops(r->model);
    memset(r->work, POISON, (size_t)r->bytes.work);
    support_expect_ok(ops.begin(ops.context, g->stream, r->work), g->c->name);
    support_expect_ok(function(ops.context, call), g->c->name);
    support_expect_ok(sw_stream_synchronize(g->stream), g->c->name);
}

/* Normalises a unit's input, each rank its rows and no others, and puts the ranks' rows together. */
static void norm_forward(struct group *g, int64_t unit) {
    const int64_t bytes = BATCH * SEQ * row_bytes(g);
    if (!g->c->sequence || unit == 0)
        return;
    for (int t = 0; t < g->ranks; t++) {
        struct rank *r = &g->rank[t];
        struct sw_unit_call call = call_of(g, r, unit);
        const int64_t at = r->own_rows.first_grain * row_bytes(g), own_bytes = r->own_rows.grains * row_bytes(g);
        call.out = r->part;
        call.normed = NULL;
        memset(r->part, POISON, (size_t)bytes);
        run(g, r, sw_model_ops(r->model).norm_forward, &call);
        for (int64_t b = 0; b < bytes; b++)
            assert_true((b >= at && b < at + own_bytes) || ((unsigned char *)r->part)[b] == POISON);
        memcpy((char *)g->normed + at, (char *)r->part + at, (size_t)own_bytes);
    }
}

/* Sums rows of all ranks' areas in fp32, in the order of ranks, and rounds once. */
static void sum_rows(const struct group *g, void *const area[MOST_RANKS], struct sw_span rows, void *out) {
    const int64_t cols = g->c->config.hidden, first = rows.first_grain * cols;
    for (int64_t e = first; e < first + rows.grains * cols; e++) {
        float sum = 0.0f;
        for (int t = 0; t < g->ranks; t++)
            sum += sw_dtype_load(g->c->type, area[t], e);
        sw_dtype_store(g->c->type, out, e, sum);
    }
}

static void forward(struct group *g, int64_t unit) {
    void *part[MOST_RANKS];
    norm_forward(g, unit);
    for (int t = 0; t < g->ranks; t++) {
        struct rank *r = &g->rank[t];
        struct sw_unit_call call = call_of(g, r, unit);
        part[t] = r->part;
        call.out = hands_on(r, unit) ? r->handed[unit] : r->part;
        run(g, r, sw_model_ops(r->model).forward, &call);
    }
    if (!hands_on(&g->rank[0], unit))
        sum_rows(g, part, (struct sw_span){.grains = BATCH * SEQ}, g->hidden[unit]);
}

/* Returns a unit's call for the backward pass. As in a plan, tiles that share an input have that of the half's second
 * tile. */
static struct sw_unit_call backward_call(const struct group *g, struct rank *r, int64_t unit) {
    struct sw_unit_call call = call_of(g, r, unit);
    int64_t kept = unit;
    while (r->bytes.cost[kept].shares_input)
        kept--;
    if (!g->c->sequence)
        call.in = input_of(g, r, kept);
    call.recompute = g->c->recompute;
    return call;
}

/* Forgets what the forward pass left, as a plan does that recomputes. */
static void recompute(struct group *g, struct rank *r, int64_t unit) {
    struct sw_unit_call call = backward_call(g, r, unit);
    if (call.recompute == SW_RECOMPUTE_NOTHING)
        return;
    memset(r->derived[unit], POISON, (size_t)derived_bytes(g, r, unit));
    if (call.recompute != SW_RECOMPUTE_UNIT)
        call.normed = NULL;
    if (call.recompute == SW_RECOMPUTE_UNIT)
        memset(r->saved[unit], POISON, (size_t)r->bytes.cost[unit].saved_bytes);
    run(g, r, sw_model_ops(r->model).recompute, &call);
}

/* Sums the gradients at the norm's output, so that each rank has its own rows of them alone, runs the norms backward,
 * and puts the ranks' rows together. */
static void norm_backward(struct group *g, int64_t unit) {
    const int64_t bytes = BATCH * SEQ * row_bytes(g);
    void *norm_grad[MOST_RANKS], *summed = take(bytes), *grad = take(bytes);
    for (int t = 0; t < g->ranks; t++)
        norm_grad[t] = g->rank[t].norm_grad;
    sum_rows(g, norm_grad, (struct sw_span){.grains = BATCH * SEQ}, summed);
    for (int t = 0; t < g->ranks; t++) {
        struct rank *r = &g->rank[t];
        const int64_t at = r->own_rows.first_grain * row_bytes(g), own_bytes = r->own_rows.grains * row_bytes(g);
        struct sw_unit_call call = call_of(g, r, unit);
        call.in = call.normed = NULL; /* a norm's backward pass has its own rows alone */
        call.own_grad = (char *)r->part + at;
        memcpy(r->part, g->grad, (size_t)bytes);
        memset(r->norm_grad, POISON, (size_t)bytes);
        memcpy((char *)r->norm_grad + at, (char *)summed + at, (size_t)own_bytes);
        run(g, r, sw_model_ops(r->model).norm_backward, &call);
        assert_memory_equal(r->part, g->grad, (size_t)at);
        assert_memory_equal((char *)r->part + at + own_bytes, (char *)g->grad + at + own_bytes,
                            (size_t)(bytes - at - own_bytes));
        memcpy((char *)grad + at, (char *)r->part + at, (size_t)own_bytes);
        memset(r->norm_grad, POISON, (size_t)bytes);
    }
    memcpy(g->grad, grad, (size_t)bytes);
    free(summed);
    free(grad);
}

/* Returns the gradient at a unit's output, beside which a half in tiles has a rank's gradient at its norm. */
static void *grad_of(const struct group *g, const struct rank *r, int64_t unit) {
    const bool tile = g->ranks > 1 && (r->bytes.cost[unit].continues || hands_on(r, unit));
    if (tile && !hands_on(r, unit)) {
        const int64_t bytes = g->hidden_elems * sw_dtype_bytes(g->c->type);
        memset((char *)r->tile_grad + bytes, POISON, (size_t)(r->bytes.cost[unit - 1].output_bytes - bytes));
        memcpy(r->tile_grad, g->grad, (size_t)bytes);
    }
    return tile ? r->tile_grad : g->grad;
}

/* Runs a function of the model that adds to the gradients of a product's weights, on every rank. grad: the gradient at
 * the unit's output; NULL once the norm has replaced it. */
static void product_backward(struct group *g, int64_t unit, sw_unit_function function, void *grad) {
    for (int t = 0; t < g->ranks; t++) {
        struct sw_unit_call call = call_of(g, &g->rank[t], unit);
        call.grad = grad;
        call.recompute = g->c->recompute;
        if (grad != NULL)
            call.normed = NULL;
        run(g, &g->rank[t], function, &call);
    }
}

/* Runs the parts of a unit's backward pass in the order of a plan whose groups of micro-batches have one each. */
static void backward(struct group *g, int64_t unit) {
    const int64_t bytes = g->hidden_elems * sw_dtype_bytes(g->c->type);
    void *before = take(bytes);
    memcpy(before, g->grad, (size_t)bytes);
    memset(g->normed, POISON, (size_t)bytes);
    norm_forward(g, unit);
    for (int t = 0; t < g->ranks; t++) {
        struct rank *r = &g->rank[t];
        struct sw_unit_call call = backward_call(g, r, unit);
        if (unit > 0)
            recompute(g, r, unit);
        call.grad = grad_of(g, r, unit);
        call.recompute = g->c->recompute;
        if (r->bytes.product > 0)
            call.normed = NULL;
        run(g, r, sw_model_ops(r->model).backward, &call);
        if (g->ranks > 1)
            assert_memory_equal(call.grad, before, (size_t)bytes);
    }
    free(before);
    const struct sw_unit_ops ops = sw_model_ops(g->rank[0].model);
    const bool splits = unit > 0 && ops.last_product != NULL;
    if (splits)
        product_backward(g, unit, ops.last_product, g->grad);
    if (g->ranks > 1 && unit > 0 && !g->rank[0].bytes.cost[unit].continues)
        norm_backward(g, unit);
    if (splits)
        product_backward(g, unit, ops.first_product, NULL);
}

/* Each rank tells the others of its part of the vocabulary. */
static void share_softmax(struct group *g) {
    norm_forward(g, g->units - 1);
    for (int t = 0; t < g->ranks; t++) {
        const struct sw_unit_call call = call_of(g, &g->rank[t], g->units - 1);
        run(g, &g->rank[t], sw_model_ops(g->rank[t].model).head_logits, &call);
    }
    for (int to = 0; to < g->ranks; to++)
        for (int from = 0; from < g->ranks; from++) {
            const int64_t bytes = g->rank[from].bytes.softmax, at = from * bytes;
            if (to != from)
                memcpy((char *)g->rank[to].softmax + at, (char *)g->rank[from].softmax + at, (size_t)bytes);
        }
}

static void head(struct group *g) {
    for (int t = 0; t < g->ranks; t++) {
        struct rank *r = &g->rank[t];
        struct sw_unit_call call = call_of(g, r, g->units - 1);
        double evaluation;
        call.grad = g->ranks == 1 ? g->grad : NULL;
        run(g, r, sw_model_ops(r->model).head, &call);
        call.loss = &evaluation;
        run(g, r, sw_model_ops(r->model).loss, &call);
        assert_true(isfinite(r->loss) && r->loss == g->rank[0].loss && evaluation == r->loss);
    }
    if (g->ranks > 1)
        norm_backward(g, g->units - 1);
}

/* Writes a rank's gradients into whole tensors, laid out as in the whole model's units. Replicated tensors are summed;
 * of the others each element comes once. Padding has none. */
static void gather_acc(const struct sw_units *whole, struct rank *r, float *to) {
    for (int64_t u = 0; u < r->units->count; u++) {
        const struct sw_unit *unit = &r->units->unit[u];
        for (int64_t t = 0; t < unit->tensor_count; t++) {
            const struct sw_tensor *part = &unit->tensor[t];
            float *base = to + tensor_place(whole, part->name), *from = r->acc[u] + part->offset;
            for (int64_t e = 0, rest; e < part->elems; e++) {
                float *at = base + sw_tensor_to_whole(part, e, &rest);
                assert_true(isfinite(from[e]) && (part->part.replicated || isnan(*at)));
                *at = isnan(*at) ? from[e] : *at + from[e];
                from[e] = 0.0f;
            }
        }
        for (int64_t e = 0; e < unit->elems; e++)
            assert_true(r->acc[u][e] == 0.0f);
    }
}

void tensor_run(const struct tensor_case *c, int ranks, const struct sw_units *whole, struct tensor_result *out) {
    struct group g;
    open_group(c, ranks, &g);
    for (int64_t u = 0; u + 1 < g.units; u++)
        forward(&g, u);
    if (ranks > 1)
        share_softmax(&g);
    head(&g);
    for (int64_t u = g.units - 2; u >= 0; u--) {
        if (u == 0)
            for (int64_t e = 0; e < g.hidden_elems; e++)
                out->input_grad[e] = sw_dtype_load(c->type, g.grad, e);
        backward(&g, u);
    }
    for (int64_t e = 0; e < tensor_elems(whole); e++)
        out->grads[e] = NAN;
    for (int t = 0; t < ranks; t++)
        gather_acc(whole, &g.rank[t], out->grads);
    out->loss = g.rank[0].loss;
    close_group(&g);
}
