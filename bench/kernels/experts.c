/* The grouped products of a mixture of experts, forward and backward, against products of as many operations of which
 * all rows meet one matrix. Each expert has rows as a balanced router would give it. */
#include "bench/kernels/harness.h"
#include "bench/options.h"
#include "bench/report.h"
#include "cli/commands.h"
#include "core/log.h"
#include "core/rng.h"
#include "core/size.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { GROUPED, DENSE, CONTENDERS };
static_assert((int)CONTENDERS <= SW_BENCH_MAX_CONTENDERS, "each contender has its rates");
enum { OFFSET, ROWS_IN, ROWS_OUT, MATRICES, GRADIENTS, SCRATCH, AREAS };
enum { FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, PASSES, LAYERS = 2, PRODUCTS = LAYERS * PASSES, SEED = 43 };

struct product {
    const char *layer, *pass;
    int64_t n, k;
    struct sw_grouped_gemm grouped;
    struct sw_gemm dense;
    struct sw_bench_rounds rounds; /* floating-point operations a second */
};

struct experts_bench {
    const struct sw_bench_options *given;
    struct sw_devices devices;
    struct sw_bench_products timing; /* the stream and events of the harness */
    sw_dtype type;
    struct product product[PRODUCTS];
    const struct product *now; /* the product being measured */
    struct sw_memory *memory;  /* holds the areas */
    void *area[AREAS];
};

/* Lists a layer's products: [rows, k] by the [n, k] matrices of a model, and what its backward pass needs. */
static void list_layer(struct experts_bench *b, struct product *at, const char *layer, int64_t out, int64_t in) {
    static const char *const passes[PASSES] = {"forward", "input gradient", "weight gradient"};
    const struct sw_bench_options *given = b->given;
    const int64_t rows = given->tokens * given->chosen;
    for (int pass = 0; pass < PASSES; pass++) {
        const bool of_weight = pass == WEIGHT_GRADIENT;
        const int64_t n = pass == INPUT_GRADIENT ? in : out, k = pass == INPUT_GRADIENT ? out : in;
        const sw_dtype type_out = of_weight ? SW_F32 : b->type;
        at[pass] = (struct product){.layer = layer, .pass = passes[pass], .n = n, .k = k};
        at[pass].grouped = (struct sw_grouped_gemm){.experts = given->experts,
                                                    .rows = rows,
                                                    .n = n,
                                                    .k = k,
                                                    .weight_gradient = of_weight,
                                                    .transpose_b = pass == FORWARD,
                                                    .in = b->type,
                                                    .out = type_out,
                                                    .matrix_stride = n * k};
        at[pass].dense =
            (struct sw_gemm){.m = rows, .n = n, .k = k, .transpose_b = pass == FORWARD, .in = b->type, .out = type_out};
        if (of_weight)
            at[pass].dense = (struct sw_gemm){
                .m = n, .n = k, .k = rows, .transpose_a = true, .accumulate = true, .in = b->type, .out = SW_F32};
    }
}

/* Prepares every product. Returns the scratch that any call needs. */
static sw_status prepare(struct experts_bench *b, int64_t *out_bytes) {
    *out_bytes = 0;
    for (int i = 0; i < PRODUCTS; i++) {
        int64_t grouped_bytes, dense_bytes;
        SW_TRY(sw_device_prepare_grouped_gemm(b->devices.compute, &b->product[i].grouped, &grouped_bytes));
        SW_TRY(sw_device_prepare_gemm(b->devices.compute, &b->product[i].dense, &dense_bytes));
        *out_bytes = sw_max_i64(*out_bytes, sw_max_i64(grouped_bytes, dense_bytes));
    }
    return SW_OK;
}

/* Draws the expert of every pair of a token and a slot. */
static sw_status fill_offsets(struct experts_bench *b) {
    int32_t offset[SW_MOST_EXPERTS + 1] = {0};
    const int64_t experts = b->given->experts;
    for (int64_t pair = 0; pair < b->given->tokens * b->given->chosen; pair++)
        offset[1 + (int64_t)(sw_rng_uniform(SEED, 0, (uint64_t)pair) * (double)experts)]++;
    for (int64_t e = 0; e < experts; e++)
        offset[e + 1] += offset[e];
    SW_TRY(sw_copy_to_device(b->timing.stream, b->area[OFFSET], offset, (experts + 1) * (int64_t)sizeof offset[0]));
    return sw_stream_synchronize(b->timing.stream);
}

static sw_status take_areas(struct experts_bench *b) {
    const struct sw_bench_options *given = b->given;
    const int64_t wide = sw_max_i64(given->hidden, 2 * given->inner), typed = sw_dtype_bytes(b->type);
    const int64_t row_elems = given->tokens * given->chosen * wide;
    const int64_t matrix_elems = given->experts * 2 * given->inner * given->hidden;
    int64_t bytes[AREAS] = {[OFFSET] = (given->experts + 1) * (int64_t)sizeof(int32_t),
                            [ROWS_IN] = row_elems * typed,
                            [ROWS_OUT] = row_elems * typed,
                            [MATRICES] = matrix_elems * typed,
                            [GRADIENTS] = matrix_elems * (int64_t)sizeof(float)};
    SW_TRY(prepare(b, &bytes[SCRATCH]));
    if (sw_device_info(b->devices.compute).host_memory)
        SW_TRY(sw_bench_check_memory("operands of these products", sw_bench_areas_bytes(bytes, AREAS),
                                     "--tokens, --experts, --hidden or --inner"));
    SW_TRY(sw_bench_areas_open(b->devices.compute, bytes, AREAS, &b->memory, b->area));
    for (int area = ROWS_IN; area <= MATRICES; area++)
        SW_TRY(sw_bench_fill(&b->timing, b->type, b->area[area], bytes[area]));
    SW_TRY(sw_zero(b->timing.stream, b->area[GRADIENTS], bytes[GRADIENTS]));
    return fill_offsets(b);
}

static sw_status run_grouped(void *context) {
    struct experts_bench *b = context;
    const struct sw_grouped_gemm *shape = &b->now->grouped;
    const bool of_weight = shape->weight_gradient;
    return sw_grouped_gemm(b->timing.stream, shape, b->area[OFFSET], b->area[of_weight ? ROWS_OUT : ROWS_IN],
                           b->area[of_weight ? ROWS_IN : MATRICES], NULL, b->area[of_weight ? GRADIENTS : ROWS_OUT],
                           b->area[SCRATCH]);
}

static sw_status run_dense(void *context) {
    struct experts_bench *b = context;
    const bool of_weight = b->now->grouped.weight_gradient;
    return sw_gemm(b->timing.stream, &b->now->dense, b->area[of_weight ? ROWS_OUT : ROWS_IN],
                   b->area[of_weight ? ROWS_IN : MATRICES], NULL, b->area[of_weight ? GRADIENTS : ROWS_OUT],
                   b->area[SCRATCH]);
}

/* Runs both in turn, round by round. The round before the first only touches the memory. */
static sw_status race(struct experts_bench *b, struct product *product) {
    sw_status (*const run[CONTENDERS])(void *context) = {run_grouped, run_dense};
    product->rounds.rounds = (int)b->given->rounds;
    b->now = product;
    for (int round = -1; round < product->rounds.rounds; round++)
        for (int who = 0; who < CONTENDERS; who++) {
            double seconds;
            SW_TRY(sw_bench_time(&b->timing, run[who], b, &seconds));
            if (round >= 0)
                product->rounds.rate[who][round] = sw_gemm_flops(&product->dense) / seconds;
        }
    return SW_OK;
}

#define ROW struct product
static const struct sw_bench_field fields[] = {
    {.name = "layer", .heading = "", SW_AT(SW_FIELD_TEXT, layer), .key = true},
    {.name = "pass", .heading = "", SW_AT(SW_FIELD_TEXT, pass), .key = true},
    {.name = "n", .heading = "n", SW_AT(SW_FIELD_COUNT, n)},
    {.name = "k", .heading = "k", SW_AT(SW_FIELD_COUNT, k)},
    SW_RATE_FIELD("flops_per_s", "Gflop/s", GROUPED, 0),
    SW_RATE_FIELD("dense_flops_per_s", "dense", DENSE, 0),
    SW_RATIO_FIELD("of_dense", "to dense", GROUPED, DENSE),
};

static sw_status report(const struct experts_bench *b) {
    const struct sw_bench_options *given = b->given;
    const struct sw_device_info info = sw_devices_info(&b->devices);
    if (given->settings.json)
        return sw_command_print_json(
            sw_bench_join(json_pack("{s:s, s:s, s:s, s:i, s:I, s:s, s:s}", "bench", "experts", "device", info.name,
                                    "isa", info.isa, "threads", info.threads, "rounds", (json_int_t)given->rounds,
                                    "precision", sw_dtype_name(b->type), "numbers", SW_BENCH_NUMBERS),
                          json_pack("{s:I, s:I, s:I, s:I, s:I, s:o}", "experts", (json_int_t)given->experts, "chosen",
                                    (json_int_t)given->chosen, "hidden", (json_int_t)given->hidden, "inner",
                                    (json_int_t)given->inner, "tokens", (json_int_t)given->tokens, "products",
                                    sw_table_json(SW_TABLE(fields, b->product, PRODUCTS)))));
    printf("%s (%s), %d threads, %s, %lld rounds\n", info.name, info.isa, info.threads, sw_dtype_name(b->type),
           (long long)given->rounds);
    printf("%lld tokens, %lld of %lld experts each, hidden %lld, inner %lld\n", (long long)given->tokens,
           (long long)given->chosen, (long long)given->experts, (long long)given->hidden, (long long)given->inner);
    sw_table_print(SW_TABLE(fields, b->product, PRODUCTS));
    return SW_OK;
}

static sw_status run(struct experts_bench *b) {
    const struct sw_bench_options *given = b->given;
    if (given->chosen > given->experts)
        return sw_fail(SW_ERR_ARG, "--chosen %lld is more than --experts %lld", (long long)given->chosen,
                       (long long)given->experts);
    SW_TRY(sw_bench_open_devices(given->settings.device, given->settings.threads, &b->devices));
    b->timing.device = b->devices.compute;
    SW_TRY(sw_stream_open(b->devices.compute, &b->timing.stream));
    SW_TRY(sw_event_open(b->devices.compute, &b->timing.from));
    SW_TRY(sw_event_open(b->devices.compute, &b->timing.to));
    list_layer(b, b->product, "up", 2 * given->inner, given->hidden);
    list_layer(b, b->product + PASSES, "down", given->hidden, given->inner);
    SW_TRY(take_areas(b));
    struct sw_long_work work = sw_long_work_begin("measuring grouped products", 0);
    for (int i = 0; i < PRODUCTS; i++) {
        SW_TRY(sw_long_work_at(&work, 0));
        SW_TRY(race(b, &b->product[i]));
    }
    sw_long_work_end(&work);
    return report(b);
}

sw_status sw_bench_experts(const void *given_options) {
    const struct sw_bench_options *given = given_options;
    struct experts_bench b = {.given = given, .type = (sw_dtype)given->settings.precision};
    const sw_status status = run(&b);
    sw_bench_products_close(&b.timing);
    sw_memory_close(b.memory);
    sw_devices_close(&b.devices);
    return status;
}
