/* The tables of the self-test: its ops, their shapes and the methods of attention; and the run over them. */
#include "kernels/self_test.h"
#include "kernels/products.h"

#include "core/clock.h"
#include "core/size.h"
#include "core/status.h"
#include "kernels/self_test/cases.h"

#include <stdio.h>
#include <string.h>

/* A GPU with fewer multiprocessors is so slow that small shapes, which cross its tiles a few times, take as long. */
enum { FEW_MULTIPROCESSORS = 4 };

/* The shapes of one size of test: real shapes, then the awkward ones that both sizes have. */
enum { MOST_SHAPES = 11 };
struct table {
    struct test_rows rows[MOST_SHAPES];   /* shapes of activations and norms */
    struct test_rows vocab[MOST_SHAPES];  /* shapes of logits */
    struct test_rows grains[MOST_SHAPES]; /* shapes of updates */
    struct test_heads heads[MOST_SHAPES]; /* shapes of attention */
    struct test_product products[MOST_SHAPES];
};

#define AWKWARD_ROWS                                                                                                   \
    {1, 17}, {3, 65}, {67, 129}, {                                                                                     \
        2, 8                                                                                                           \
    }
#define AWKWARD_VOCABULARIES                                                                                           \
    {1, 3}, {                                                                                                          \
        5, 513                                                                                                         \
    }
/* One token; odd lengths and strides; a window; documents and a window; earlier keys; biases by distance. */
#define AWKWARD_HEADS                                                                                                  \
    {1, 1, 0, 1, 1, 8, 0, 0, 0, false}, {2, 17, 0, 3, 1, 24, 3, 0, 0, false}, {1, 71, 0, 2, 2, 64, 5, 9, 0, false},    \
        {2, 70, 0, 2, 1, 16, 3, 40, 30, false}, {1, 3, 66, 4, 2, 32, 1, 0, 0, false}, {                                \
        2, 75, 0, 2, 2, 64, 8, 0, 30, true                                                                             \
    }
#define AWKWARD_PRODUCTS                                                                                               \
    {1, 17, 65}, {33, 3, 129}, {                                                                                       \
        5, 67, 1                                                                                                       \
    }

/* 896 and 3584 wide, 14 and 28 heads with 2 and 4 key-value heads, as in models of 0.5 and 7 billion parameters. */
static const struct table whole = {.rows = {{512, 896}, {130, 3584}, AWKWARD_ROWS},
                                   .vocab = {{24, 32003}, AWKWARD_VOCABULARIES},
                                   .grains = {{9, 0}, {1, 0}},
                                   .heads = {{1, 200, 0, 14, 2, 64, 128, 0, 0, false},
                                             {1, 200, 0, 4, 1, 128, 0, 0, 0, false},
                                             {1, 600, 0, 1, 1, 64, 0, 0, 0, false},
                                             {1, 300, 0, 2, 1, 64, 8, 140, 90, false},
                                             {2, 5, 300, 2, 1, 128, 8, 0, 0, false},
                                             AWKWARD_HEADS},
                                   .products = {{512, 896, 896}, {256, 3584, 896}, {128, 896, 4864}, AWKWARD_PRODUCTS}};
static const struct table small = {.rows = {AWKWARD_ROWS},
                                   .vocab = {AWKWARD_VOCABULARIES},
                                   .grains = {{1, 0}},
                                   .heads = {AWKWARD_HEADS},
                                   .products = {{65, 70, 64}, AWKWARD_PRODUCTS}};

/* The column of a table with an op's shapes. */
enum shapes { ROWS, VOCABULARIES, GRAINS, HEADS };

struct op {
    const char *name;
    trial_function function;
    enum shapes shapes;
    bool of_one_type; /* the op has no type, or its types are equal */
};
static const struct op ops[] = {
    {"layer norm", trial_layernorm_forward, ROWS, false},
    {"layer norm backward", trial_layernorm_backward, ROWS, false},
    {"add and layer norm", trial_add_layernorm, ROWS, false},
    {"add and rms norm", trial_add_rmsnorm, ROWS, false},
    {"rms norm", trial_rmsnorm_forward, HEADS, false},
    {"rms norm backward", trial_rmsnorm_backward, HEADS, false},
    {"rotary positions", trial_rotate, HEADS, false},
    {"embedding", trial_embedding_forward, HEADS, false},
    {"embedding backward", trial_embedding_backward, HEADS, false},
    {"activation", trial_activations, ROWS, false},
    {"activation backward", trial_activation_gradients, ROWS, false},
    {"gated activation", trial_gated, ROWS, false},
    {"gated activation backward", trial_gated_gradients, ROWS, false},
    {"addition", trial_add, ROWS, false},
    {"dropout", trial_dropout, ROWS, false},
    {"bias gradient", trial_bias_gradient, ROWS, false},
    {"cross-entropy", trial_cross_entropy, VOCABULARIES, false},
    {"softmax of tiles", trial_softmax_partial, VOCABULARIES, true},
    {"softmax of parts", trial_softmax_combine, ROWS, true},
    {"cross-entropy of tiles", trial_cross_entropy_tile, VOCABULARIES, false},
    {"sum of losses", trial_sum_losses, ROWS, true},
    {"preference", trial_preference, ROWS, true},
    {"rounding", trial_cast, ROWS, false},
    {"end of a gradient", trial_finish_gradient, GRAINS, false},
    {"rounding of a gradient", trial_round_gradient, GRAINS, false},
    {"sums of squares", trial_square_sums, GRAINS, false},
    {"update", trial_update, GRAINS, false},
    {"update by Muon", trial_muon, GRAINS, false},
    {"quantization", trial_quantize, GRAINS, false},
    {"sum of quantized grains", trial_dequantize, GRAINS, false},
    {"encoding in 8 bits", trial_encode_fp8, GRAINS, false},
    {"weights in 8 bits", trial_pack_weights, GRAINS, true},
    {"frozen weights in int8 and nf4", trial_base, GRAINS, false},
    {"sum over ranks", trial_rank_sum, ROWS, false},
    {"routing to experts", trial_routing, ROWS, false},
    {"rows of experts", trial_expert_rows, ROWS, false},
    {"products of experts", trial_grouped, ROWS, false},
    {"biases of experts", trial_expert_biases, ROWS, false},
    {"clamped gates", trial_clamped, ROWS, false},
    {"attention sinks", trial_sinks, HEADS, false},
};
#define COUNT(table) ((int)(sizeof(table) / sizeof(table)[0]))

/* The methods by which a device can compute attention, slowest first. The first is the default and must pass; the other
 * is tried if the device has it. The last that passed is used: by this order and not by timing, so that a GPU computes
 * the same bits each time. */
static const struct way {
    const char *name;
    bool warpgroups;
} ways[] = {{"attention", false}, {"attention by warpgroups", true}};

/* The products of a linear layer: forward with what is added, and the gradients of its input and of its weights. */
static const struct linear {
    const char *name;
    bool gaps; /* between the rows of A and of C, as the head's products have them between rows of the vocabulary */
    struct sw_gemm shape;
} linears[] = {
    {"product", false, {.transpose_b = true, .in = SW_BF16, .out = SW_BF16}},
    {"product with a bias", false, {.transpose_b = true, .bias = true, .in = SW_BF16, .out = SW_BF16}},
    {"product with an addend", false, {.transpose_b = true, .addend = true, .in = SW_BF16, .out = SW_BF16}},
    {"product to fp32", true, {.transpose_b = true, .in = SW_BF16, .out = SW_F32}},
    {"product for an input's gradient", true, {.in = SW_BF16, .out = SW_BF16}},
    {"product for a weight's gradient", true, {.transpose_a = true, .accumulate = true, .in = SW_BF16, .out = SW_F32}},
};

static const struct table *table_of(const struct sw_device *device) {
    const struct sw_device_info info = sw_device_info(device);
    return !info.host_memory && info.multiprocessors < FEW_MULTIPROCESSORS ? &small : &whole;
}

/* Returns a shape of a table; NULL after the last. */
static const void *shape_of(const struct table *table, enum shapes shapes, int number) {
    if (number == MOST_SHAPES)
        return NULL;
    const struct test_rows *rows = shapes == ROWS           ? &table->rows[number]
                                   : shapes == VOCABULARIES ? &table->vocab[number]
                                                            : &table->grains[number];
    if (shapes < HEADS)
        return rows->rows > 0 ? rows : NULL;
    return table->heads[number].batch > 0 ? &table->heads[number] : NULL;
}

static struct sw_self_test_op *add_op(struct sw_self_test_report *report, const char *name) {
    assert(report->count < SW_SELF_TEST_OPS);
    struct sw_self_test_op *op = &report->op[report->count++];
    *op = (struct sw_self_test_op){0};
    snprintf(op->name, sizeof op->name, "%s", name);
    return op;
}

static sw_status run_types(struct trial_bench *bench, struct sw_self_test_op *op, trial_function function,
                           const void *shape, bool of_one_type) {
    for (int type = SW_F32; type < (of_one_type ? SW_BF16 : SW_DTYPES); type++)
        SW_TRY(trial_run(bench, op, function, shape, (sw_dtype)type));
    return SW_OK;
}

static sw_status run_ops(struct trial_bench *bench, struct sw_self_test_report *report) {
    const struct table *table = table_of(bench->device);
    for (int i = 0; i < COUNT(ops); i++) {
        struct sw_self_test_op *op = add_op(report, ops[i].name);
        const void *shape;
        for (int s = 0; (shape = shape_of(table, ops[i].shapes, s)) != NULL; s++)
            SW_TRY(run_types(bench, op, ops[i].function, shape, ops[i].of_one_type));
    }
    return SW_OK;
}

static sw_status run_way(struct trial_bench *bench, const struct way *way, struct sw_self_test_report *report,
                         bool *out_passed) {
    static const struct {
        const char *name;
        trial_function function;
    } passes[] = {{"", trial_attention_forward}, {" backward", trial_attention_backward}};
    const struct table *table = table_of(bench->device);
    char name[SW_SELF_TEST_NAME_CHARS];
    *out_passed = true;
    for (int p = 0; p < COUNT(passes); p++) {
        snprintf(name, sizeof name, "%s%s", way->name, passes[p].name);
        struct sw_self_test_op *op = add_op(report, name);
        op->optional = way->warpgroups;
        for (int s = 0; shape_of(table, HEADS, s) != NULL; s++)
            if (table->heads[s].past == 0 || p == 0)
                SW_TRY(run_types(bench, op, passes[p].function, &table->heads[s], false));
        *out_passed = *out_passed && !op->failed;
    }
    return SW_OK;
}

/* Small shapes do not cross the tiles of warpgroups, and so prove nothing about them. */
static bool can_try(struct sw_device *device, const struct way *way) {
    SW_HANDLES_ERRORS();
    const bool can =
        !way->warpgroups || (table_of(device) == &whole && sw_device_use_warpgroups(device, true) == SW_OK);
    return can;
}

static sw_status run_attention(struct trial_bench *bench, struct sw_self_test_report *report) {
    for (int i = 0; i < COUNT(ways); i++) {
        bool passed;
        if (!can_try(bench->device, &ways[i]))
            continue;
        SW_TRY(run_way(bench, &ways[i], report, &passed));
        if (passed)
            snprintf(report->attention, sizeof report->attention, "%s", ways[i].name);
    }
    return SW_OK;
}

static sw_status run_products(struct trial_bench *bench, struct sw_self_test_report *report, bool tf32) {
    const struct table *table = table_of(bench->device);
    for (int i = 0; i < COUNT(linears); i++) {
        char name[SW_SELF_TEST_NAME_CHARS];
        snprintf(name, sizeof name, "%s%s", linears[i].name, tf32 ? " in tf32" : "");
        struct sw_self_test_op *op = add_op(report, name);
        for (int s = 0; s < MOST_SHAPES && table->products[s].m > 0; s++) {
            struct sw_gemm shape = linears[i].shape;
            shape.m = table->products[s].m;
            shape.n = table->products[s].n;
            shape.k = table->products[s].k;
            if (linears[i].gaps) {
                shape.a_stride = sw_round_up(sw_gemm_a_cols(&shape), TRIAL_ROW_MULTIPLE);
                shape.c_stride = sw_round_up(shape.n, TRIAL_ROW_MULTIPLE);
            }
            SW_TRY(run_types(bench, op, tf32 ? trial_gemm_tf32 : trial_gemm, &shape, tf32));
        }
    }
    return SW_OK;
}

/* The products of a linear layer with 8-bit operands. */
static const struct linear fp8_linears[] = {
    {"product in 8 bits", false, {.transpose_b = true, .bias = true, .a_as = SW_FP8_E4M3, .b_as = SW_FP8_E4M3}},
    {"product in 8 bits for an input's gradient", false, {.a_as = SW_FP8_E5M2, .b_as = SW_FP8_E4M3}},
    {"product in 8 bits for a weight's gradient",
     false,
     {.transpose_a = true, .accumulate = true, .a_as = SW_FP8_E4M3, .b_as = SW_FP8_E5M2}},
};

/* Tells whether a device multiplies in 8 bits. A GPU that does not can be trusted with everything else. */
static bool multiplies_fp8(struct sw_device *device) {
    SW_HANDLES_ERRORS();
    const bool can = device->ops.check_fp8 == NULL || device->ops.check_fp8(device) == SW_OK;
    return can;
}

static sw_status run_fp8_products(struct trial_bench *bench, struct sw_self_test_report *report) {
    const struct table *table = table_of(bench->device);
    for (int i = 0; i < COUNT(fp8_linears) && multiplies_fp8(bench->device); i++) {
        struct sw_self_test_op *op = add_op(report, fp8_linears[i].name);
        for (int s = 0; s < MOST_SHAPES && table->products[s].m > 0; s++) {
            /* Sides whose codes a GPU can multiply, as the first shape has except in small tables. */
            struct sw_gemm shape = fp8_linears[i].shape;
            shape.m = s > 0 ? table->products[s].m : sw_round_up(table->products[s].m, SW_FP8_SIDE_MULTIPLE);
            shape.n = s > 0 ? table->products[s].n : sw_round_up(table->products[s].n, SW_FP8_SIDE_MULTIPLE);
            shape.k = table->products[s].k;
            SW_TRY(trial_run(bench, op, trial_gemm_fp8, &shape, SW_BF16));
        }
    }
    return SW_OK;
}

static sw_status run(struct sw_device *device, struct sw_self_test_report *report, bool tf32) {
    struct trial_bench bench;
    const int64_t start_ns = sw_now_ns();
    SW_TRY(trial_bench_open(device, &bench));
    sw_status status = tf32 ? SW_OK : run_ops(&bench, report);
    if (status == SW_OK && !tf32)
        status = run_attention(&bench, report);
    if (status == SW_OK)
        status = run_products(&bench, report, tf32);
    if (status == SW_OK && !tf32)
        status = run_fp8_products(&bench, report);
    trial_bench_close(&bench);
    report->seconds += (double)(sw_now_ns() - start_ns) * 1e-9;
    return status;
}

sw_status sw_self_test_run(struct sw_device *device, struct sw_self_test_report *out) {
    *out = (struct sw_self_test_report){0};
    return run(device, out, false);
}

sw_status sw_self_test_run_tf32(struct sw_device *device, struct sw_self_test_report *report) {
    return run(device, report, true);
}

const struct sw_self_test_op *sw_self_test_failed(const struct sw_self_test_report *report) {
    for (int i = 0; i < report->count; i++)
        if (report->op[i].failed && !report->op[i].optional)
            return &report->op[i];
    return NULL;
}

sw_status sw_self_test_use_attention(struct sw_device *device, const struct sw_self_test_report *report) {
    bool warpgroups = false;
    for (int i = 0; i < COUNT(ways); i++)
        warpgroups |= ways[i].warpgroups && strcmp(ways[i].name, report->attention) == 0;
    return sw_device_use_warpgroups(device, warpgroups);
}
