/* The products of adapters beside the matrices of experts. Each expert has an A and a B of its own for each of its
 * matrices, which multiply the rows of its pairs as the matrix does: beside y = x·Wᵀ they add (scale·x·Aᵀ)·Bᵀ, with the
 * gradients that adapter.c names. Rows are sorted by expert, so a grouped product takes the adapters of all experts at
 * once.
 *
 * Gate and up lie side by side in the results of one product of the base, and each has an adapter of its own, as each
 * is a module of its own in PEFT: their products work on one half of each row. Where a tensor has the matrices of all
 * experts, gate and up are one matrix with one adapter, and the factors of all experts are one tensor too.
 *
 * Experts without an adapter, or whose adapters lie elsewhere in the unit, end a run of those that one call takes. The
 * result for an expert does not depend on the run, to the bit (sw_grouped_gemm), and so not on the experts that a unit
 * has. */
#include "core/size.h"
#include "model/lora.h"
#include "model/model_private.h"

#include <assert.h>
#include <stdlib.h>

/* A run of experts that have an adapter beside one of their matrices, at equal distances in the unit. count 0: there
 * are no more. */
struct adapter_run {
    int64_t first, count;
    int a, b; /* the tensors of the first expert, in the unit */
    int64_t a_stride, b_stride;
};

static const struct sw_expert_factors *factors_of(const struct sw_model *model, int64_t unit, int64_t expert,
                                                  enum sw_expert_matrix matrix) {
    const int64_t layer = sw_tile_of(&model->cut, unit).layer;
    return &model->expert_factors[(layer * model->config.experts + expert) * EXPERT_MATRICES + (int)matrix];
}

static int64_t distance(const struct sw_unit *unit, int from, int to) {
    return unit->tensor[to].offset - unit->tensor[from].offset;
}

/* Returns the run of all experts of the unit, whose adapters are one tensor of each kind, or the end behind it. */
static struct adapter_run joined_run(const struct sw_model *model, int64_t u, enum sw_expert_matrix matrix,
                                     int64_t first) {
    const struct sw_tensor *tensor = model->units->unit[u].tensor;
    const struct sw_expert_run own = sw_experts_in(&model->config, &model->cut, u);
    const struct sw_expert_factors *factors = factors_of(model, u, own.first, matrix);
    if (first != own.first || factors->a == 0)
        return (struct adapter_run){.first = own.first + own.count};
    return (struct adapter_run){.first = first,
                                .count = own.count,
                                .a = factors->a,
                                .b = factors->b,
                                .a_stride = tensor[factors->a].elems / own.count,
                                .b_stride = tensor[factors->b].elems / own.count};
}

/* Returns the longest run that begins with expert `first` of the unit, or with the next one that has an adapter. */
static struct adapter_run next_run(const struct sw_model *model, int64_t u, enum sw_expert_matrix matrix,
                                   int64_t first) {
    const struct sw_unit *unit = &model->units->unit[u];
    const struct sw_expert_run own = sw_experts_in(&model->config, &model->cut, u);
    const int64_t end = own.first + own.count;
    struct adapter_run run = {.first = first};
    if (model->config.joined_experts)
        return joined_run(model, u, matrix, first);
    while (run.first < end && factors_of(model, u, run.first, matrix)->a == 0)
        run.first++;
    if (run.first == end)
        return run;
    const struct sw_expert_factors *begin = factors_of(model, u, run.first, matrix);
    run.a = begin->a;
    run.b = begin->b;
    for (run.count = 1; run.first + run.count < end; run.count++) {
        const struct sw_expert_factors *next = factors_of(model, u, run.first + run.count, matrix);
        if (next->a == 0)
            break;
        if (run.count == 1) {
            run.a_stride = distance(unit, run.a, next->a);
            run.b_stride = distance(unit, run.b, next->b);
        }
        if (run.a_stride <= 0 || run.b_stride <= 0 || distance(unit, run.a, next->a) != run.count * run.a_stride ||
            distance(unit, run.b, next->b) != run.count * run.b_stride)
            break;
    }
    return run;
}

enum product { A_FORWARD, B_FORWARD, B_INPUT_GRADIENT, A_INPUT_GRADIENT, B_GRADIENT, A_GRADIENT, PRODUCTS };
enum { FORWARD_PRODUCTS = B_INPUT_GRADIENT };

/* Returns the shape of a product of the adapters of a run. The inputs are whole rows; the results of gate and up are
 * half of each row, unless one matrix has both. */
static struct sw_grouped_gemm shape_of(const struct sw_model *model, enum sw_expert_matrix matrix,
                                       const struct adapter_run *run, enum product product) {
    const int64_t rank = model->shape.tuning.lora.rank, inner = model->widths.expert_ffn;
    const bool down = matrix == EXPERT_DOWN, has_a = product == A_FORWARD || product == A_INPUT_GRADIENT;
    const int64_t up = model->config.joined_experts ? 2 * inner : inner;
    const int64_t in = down ? inner : model->config.hidden, out = down ? model->config.hidden : up;
    const int64_t result_stride = down ? 0 : 2 * inner;
    const sw_dtype type = model->shape.type;
    struct sw_grouped_gemm shape = {.experts = run->count,
                                    .rows = sw_experts_pairs(model),
                                    .in = type,
                                    .out = SW_F32,
                                    .likely_rows = sw_experts_likely_rows(model, run->count),
                                    .matrix_stride = has_a || product == A_GRADIENT ? run->a_stride : run->b_stride};
    switch (product) {
    case A_FORWARD:
        shape.n = rank;
        shape.k = in;
        shape.transpose_b = true;
        break;
    case B_FORWARD:
        shape.n = out;
        shape.k = rank;
        shape.transpose_b = shape.accumulate = true;
        shape.out = type;
        shape.c_stride = result_stride;
        break;
    case B_INPUT_GRADIENT:
        shape.n = rank;
        shape.k = out;
        shape.a_stride = result_stride;
        break;
    case A_INPUT_GRADIENT:
        shape.n = in;
        shape.k = rank;
        shape.accumulate = true;
        shape.out = type;
        break;
    case B_GRADIENT:
        shape.n = out;
        shape.k = rank;
        shape.weight_gradient = true;
        shape.a_stride = result_stride;
        break;
    default:
        shape.n = rank;
        shape.k = in;
        shape.weight_gradient = true;
    }
    if (run->count == 1)
        shape.matrix_stride = shape.n * shape.k;
    return shape;
}

/* The products of the adapters of one run after the other: of those beside down, or beside gate and then up. */
struct runs {
    const struct sw_model *model;
    const struct sw_unit_call *call;
    const struct saved *saved;
    enum sw_expert_matrix matrix;
    struct adapter_run run;
};

static int64_t first_expert(const struct sw_model *model, int64_t unit) {
    return sw_experts_in(&model->config, &model->cut, unit).first;
}

/* matrix: EXPERT_DOWN, or EXPERT_GATE, with which EXPERT_UP is joined. */
static struct runs runs_of(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s,
                           enum sw_expert_matrix matrix) {
    return (struct runs){
        .model = model, .call = call, .saved = s, .matrix = matrix, .run = {.first = first_expert(model, call->unit)}};
}

/* Goes on to the next run. Returns false after the last. */
static bool next(struct runs *of) {
    const int64_t unit = of->call->unit;
    if (of->model->expert_factors == NULL)
        return false;
    of->run = next_run(of->model, unit, of->matrix, of->run.first + of->run.count);
    if (of->run.count == 0 && of->matrix == EXPERT_GATE) {
        of->matrix = EXPERT_UP;
        of->run = next_run(of->model, unit, of->matrix, first_expert(of->model, unit));
    }
    return of->run.count > 0;
}

/* Returns the bytes before the run's results in each row of the base's results. */
static int64_t results_at(const struct runs *of) {
    return of->matrix == EXPERT_UP ? of->model->widths.expert_ffn * sw_dtype_bytes(of->model->shape.type) : 0;
}

static sw_status multiply(const struct runs *of, enum product product, const void *a, const void *b, void *c) {
    const struct sw_grouped_gemm shape = shape_of(of->model, of->matrix, &of->run, product);
    return sw_grouped_gemm(of->call->stream, .shape = &shape, .offset = of->saved->expert_offset + of->run.first,
                           .a = a, .b = b, .c = c, .scratch = area_at(of->call->work, of->model->work.scratch));
}

/* Writes scale·product into the work area, in the compute type, and returns it in *out. */
static sw_status scaled(const struct runs *of, enum product product, const void *a, const void *b, const void **out) {
    const struct sw_model *model = of->model;
    const int64_t rank = model->shape.tuning.lora.rank;
    const int32_t *offset = of->saved->expert_offset + of->run.first;
    float *sums = area_at(of->call->work, model->work.adapter_sums);
    void *typed = area_at(of->call->work, model->work.adapter);
    const struct sw_row_run run = {offset, offset + of->run.count, sw_experts_likely_rows(model, of->run.count)};
    SW_TRY(multiply(of, product, a, b, sums));
    *out = typed;
    return sw_cast_from_f32(of->call->stream, .type = model->shape.type, .elems = sw_experts_pairs(model) * rank,
                            .from = sums, .to = typed, .run = run, .cols = rank,
                            .scale = (float)sw_lora_scale(&model->shape.tuning.lora));
}

static const void *a_of(const struct runs *of) {
    return tensor_at(of->model, of->call, of->run.a);
}

static const void *b_of(const struct runs *of) {
    return tensor_at(of->model, of->call, of->run.b);
}

sw_status sw_expert_adapters_forward(const struct sw_model *model, const struct sw_unit_call *call,
                                     const struct saved *s, enum sw_expert_matrix matrix, const void *x, void *y) {
    for (struct runs of = runs_of(model, call, s, matrix); next(&of);) {
        const void *h;
        SW_TRY(scaled(&of, A_FORWARD, x, a_of(&of), &h));
        SW_TRY(multiply(&of, B_FORWARD, h, b_of(&of), area_at(y, results_at(&of))));
    }
    return SW_OK;
}

sw_status sw_expert_adapters_input_gradient(const struct sw_model *model, const struct sw_unit_call *call,
                                            const struct saved *s, enum sw_expert_matrix matrix, const void *dy,
                                            void *dx) {
    for (struct runs of = runs_of(model, call, s, matrix); next(&of);) {
        const void *dh;
        SW_TRY(scaled(&of, B_INPUT_GRADIENT, (const char *)dy + results_at(&of), b_of(&of), &dh));
        SW_TRY(multiply(&of, A_INPUT_GRADIENT, dh, a_of(&of), dx));
    }
    return SW_OK;
}

/* The results of A are computed again, as in adapter.c. */
sw_status sw_expert_adapters_weight_gradient(const struct sw_model *model, const struct sw_unit_call *call,
                                             const struct saved *s, enum sw_expert_matrix matrix, const void *x,
                                             const void *dy) {
    for (struct runs of = runs_of(model, call, s, matrix); next(&of);) {
        const char *results = (const char *)dy + results_at(&of);
        const void *h, *dh;
        SW_TRY(scaled(&of, A_FORWARD, x, a_of(&of), &h));
        SW_TRY(multiply(&of, B_GRADIENT, results, h, acc_at(model, call, of.run.b)));
        SW_TRY(scaled(&of, B_INPUT_GRADIENT, results, b_of(&of), &dh));
        SW_TRY(multiply(&of, A_GRADIENT, dh, x, acc_at(model, call, of.run.a)));
    }
    return SW_OK;
}

/* Returns the tensor of this name that training added to a unit, or 0. Neighbours are asked for one after the other, so
 * the search begins behind the last one found. */
static int added_tensor(const struct sw_unit *unit, const char *module, const char *factor, int *last) {
    const size_t chars = strlen(module);
    for (int64_t i = 1; i <= unit->tensor_count; i++) {
        const int t = (int)((*last + i) % unit->tensor_count);
        const struct sw_tensor *tensor = &unit->tensor[t];
        if (!tensor->added || strncmp(tensor->name, module, chars) != 0 || strcmp(tensor->name + chars, factor) != 0)
            continue;
        *last = t;
        return t;
    }
    return 0;
}

/* Lists the adapters beside the tensors of all experts that a unit has a part of. Returns their number. */
static int64_t list_joined(struct sw_model *model, int64_t u) {
    static const struct {
        enum sw_expert_matrix matrix;
        enum sw_block_tensor tensor;
    } kinds[] = {{EXPERT_GATE, JOINED_UP}, {EXPERT_DOWN, JOINED_DOWN}};
    const struct sw_unit *unit = &model->units->unit[u];
    const struct sw_expert_run own = sw_experts_in(&model->config, &model->cut, u);
    const int64_t layer = sw_tile_of(&model->cut, u).layer;
    struct sw_expert_factors *factors =
        &model->expert_factors[(layer * model->config.experts + own.first) * EXPERT_MATRICES];
    int64_t count = 0;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0] && own.count > 0; k++) {
        const char *name = unit->tensor[sw_block_tensor_in(model, u, kinds[k].tensor)].name;
        const int a = sw_lora_factor(unit, name, SW_LORA_A), b = sw_lora_factor(unit, name, SW_LORA_B);
        if (a < 0)
            continue;
        factors[kinds[k].matrix] = (struct sw_expert_factors){a, b};
        count++;
    }
    return count;
}

/* Lists the adapters of a unit's experts. Returns their number. */
static int64_t list_unit(struct sw_model *model, int64_t u) {
    const struct sw_unit *unit = &model->units->unit[u];
    const struct sw_expert_run own = sw_experts_in(&model->config, &model->cut, u);
    const int64_t layer = sw_tile_of(&model->cut, u).layer;
    const int first = sw_block_tensor_in(model, u, EXPERTS);
    int64_t count = 0;
    int last = 0;
    assert(own.count == 0 || first >= 0);
    for (int64_t i = 0; i < own.count * EXPERT_MATRICES; i++) {
        char module[SW_TENSOR_NAME_CHARS];
        sw_lora_module(unit->tensor[first + i].name, module);
        struct sw_expert_factors *factors =
            &model->expert_factors[(layer * model->config.experts + own.first) * EXPERT_MATRICES + i];
        factors->a = added_tensor(unit, module, SW_LORA_A, &last);
        factors->b = factors->a == 0 ? 0 : added_tensor(unit, module, SW_LORA_B, &last);
        count += factors->a > 0;
    }
    return count;
}

static sw_status prepare_run(struct sw_model *model, enum sw_expert_matrix matrix, const struct adapter_run *run) {
    const int products = model->shape.forward_only ? FORWARD_PRODUCTS : PRODUCTS;
    for (int product = 0; product < products; product++) {
        const struct sw_grouped_gemm shape = shape_of(model, matrix, run, (enum product)product);
        int64_t bytes;
        SW_TRY(sw_device_prepare_grouped_gemm(model->device, &shape, &bytes));
        model->scratch_bytes = sw_max_i64(model->scratch_bytes, bytes);
    }
    return SW_OK;
}

static sw_status prepare_unit(struct sw_model *model, int64_t unit) {
    for (int matrix = 0; matrix < EXPERT_MATRICES; matrix++) {
        struct adapter_run run = {.first = first_expert(model, unit)};
        while ((run = next_run(model, unit, (enum sw_expert_matrix)matrix, run.first + run.count)).count > 0)
            SW_TRY(prepare_run(model, (enum sw_expert_matrix)matrix, &run));
    }
    return SW_OK;
}

sw_status sw_expert_adapters_prepare(struct sw_model *model) {
    const int64_t matrices = model->config.layers * model->config.experts * EXPERT_MATRICES;
    int64_t adapters = 0;
    if (model->shape.tuning.lora.rank == 0 || matrices == 0)
        return SW_OK;
    model->expert_factors = calloc((size_t)matrices, sizeof *model->expert_factors);
    if (model->expert_factors == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the adapters of experts");
    for (int64_t u = 1; u + 1 < model->units->count; u++)
        adapters += model->config.joined_experts ? list_joined(model, u) : list_unit(model, u);
    if (adapters == 0) {
        free(model->expert_factors);
        model->expert_factors = NULL;
        return SW_OK;
    }
    if (model->shape.tuning.lora.dropout > 0.0 && !model->shape.forward_only)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "adapters of experts are trained without dropout, as in PEFT; leave out --lora-dropout (in a "
                       "folder of --adapter: set lora_dropout to 0), or give --lora-targets attention");
    for (int64_t u = 1; u + 1 < model->units->count; u++)
        if (sw_experts_in(&model->config, &model->cut, u).count > 0)
            SW_TRY(prepare_unit(model, u));
    return SW_OK;
}
