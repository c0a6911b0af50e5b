/* The matrix products of a model's training: a block's and the head's, forward and backward.
 *
 * The bounds: oneDNN called directly with the same row-major operands, and oneDNN with operands that already lie in the
 * layouts that it chose, which a training step would have to make first. A GPU's products, which are the vendor's
 * library, have no bound. */
#include "bench/kernels/harness.h"
#include "bench/options.h"
#include "bench/report.h"
#include "cli/commands.h"
#include "core/log.h"
#include "core/size.h"

#include <math.h>
#include <stdio.h>

enum { OURS, SAME_LAYOUTS, OWN_LAYOUTS, CONTENDERS };
static_assert((int)CONTENDERS <= SW_BENCH_MAX_CONTENDERS, "each contender has its rates");

/* One product of a micro-batch, and the products of a part of the model. */
struct product_row {
    struct sw_model_product of;
    const char *operands; /* 'T' or 'N' for each */
    int64_t a_stride, c_stride;
    struct sw_bench_rounds rounds; /* floating-point operations a second */
};
struct total_row {
    const char *part;
    double seconds[CONTENDERS], flops, flops_per_s, of_same_layouts, of_own_layouts;
};
enum { TOTALS = 3 };

#define ROW struct product_row
static const struct sw_bench_field product_fields[] = {
    {.name = "layer", .heading = "", SW_AT(SW_FIELD_TEXT, of.layer), .key = true},
    {.name = "pass", .heading = "", SW_AT(SW_FIELD_TEXT, of.pass), .key = true},
    {.name = "times", .heading = "times", SW_AT(SW_FIELD_COUNT, of.times)},
    {.name = "m", .heading = "m", SW_AT(SW_FIELD_COUNT, of.shape.m)},
    {.name = "n", .heading = "n", SW_AT(SW_FIELD_COUNT, of.shape.n)},
    {.name = "k", .heading = "k", SW_AT(SW_FIELD_COUNT, of.shape.k)},
    {.heading = "", SW_AT(SW_FIELD_TEXT, operands)},
    {.name = "transpose_a", SW_AT(SW_FIELD_FLAG, of.shape.transpose_a)},
    {.name = "transpose_b", SW_AT(SW_FIELD_FLAG, of.shape.transpose_b)},
    {.name = "bias", SW_AT(SW_FIELD_FLAG, of.shape.bias)},
    {.name = "accumulate", SW_AT(SW_FIELD_FLAG, of.shape.accumulate)},
    {.name = "a_stride", SW_AT(SW_FIELD_COUNT, a_stride)},
    {.name = "c_stride", SW_AT(SW_FIELD_COUNT, c_stride)},
    SW_RATE_FIELD("flops_per_s", "Gflop/s", OURS, 0),
    SW_RATE_FIELD("same_layouts_flops_per_s", "same", SAME_LAYOUTS, 0),
    SW_RATE_FIELD("own_layouts_flops_per_s", "own", OWN_LAYOUTS, 0),
    SW_RATIO_FIELD("of_same_layouts", "to same", OURS, SAME_LAYOUTS),
    SW_RATIO_FIELD("of_own_layouts", "to own", OURS, OWN_LAYOUTS),
};
#undef ROW
#define ROW struct total_row
static const struct sw_bench_field total_fields[] = {
    {.heading = "", SW_AT(SW_FIELD_TEXT, part)},
    {.name = "seconds", .heading = "seconds", SW_AT(SW_FIELD_REAL, seconds[OURS]), .digits = 4},
    {.name = "flops_per_s", .heading = "Gflop/s", SW_AT(SW_FIELD_REAL, flops_per_s), SW_GIGA},
    {.name = "of_same_layouts", .heading = "to same", SW_AT(SW_FIELD_REAL, of_same_layouts), .digits = 2},
    {.name = "of_own_layouts", .heading = "to own", SW_AT(SW_FIELD_REAL, of_own_layouts), .digits = 2},
};

struct gemm_bench {
    const struct sw_bench_options *given;
    struct sw_bench_model of;
    int contenders; /* on a GPU only ours */
    struct sw_bench_products products;
    struct product_row row[SW_MODEL_MAX_PRODUCTS];
};

/* Each contender has operands of its own, the direct ones at most the largest of each. A GPU's memory says itself what
 * it has no room for. */
static sw_status check_memory(const struct gemm_bench *bench) {
    int64_t bytes;
    if (bench->contenders == 1)
        return SW_OK;
    SW_TRY(sw_bench_products_bytes(bench->of.device, bench->of.product, bench->of.count, &bytes));
    return sw_bench_check_memory("operands of these products", CONTENDERS * bytes, SW_BENCH_SMALLER_MODEL);
}

/* Runs all in turn, round by round. The round before the first only touches the memory. */
static sw_status race(struct gemm_bench *bench, int product, struct sw_onednn_product *const direct[]) {
    const struct sw_gemm *shape = &bench->of.product[product].shape;
    struct sw_bench_rounds *result = &bench->row[product].rounds;
    result->rounds = (int)bench->given->rounds;
    for (int who = bench->contenders; who < CONTENDERS; who++)
        result->rate[who][0] = NAN;
    for (int round = -1; round < result->rounds; round++)
        for (int who = 0; who < bench->contenders; who++) {
            double seconds;
            SW_TRY(who == OURS ? sw_bench_product_time(&bench->products, shape, &seconds)
                               : sw_onednn_product_time(direct[who], &seconds));
            if (round >= 0)
                result->rate[who][round] = sw_gemm_flops(shape) / seconds;
        }
    return SW_OK;
}

static sw_status measure(struct gemm_bench *bench, int product) {
    const struct sw_gemm shape = sw_bench_bound_shape(&bench->of, product);
    struct sw_onednn_product *direct[CONTENDERS] = {NULL};
    sw_status status = SW_OK;
    if (bench->contenders == 1)
        return race(bench, product, direct);
    SW_TRY_GOTO(sw_onednn_product_open(&shape, false, &direct[SAME_LAYOUTS]), out);
    SW_TRY_GOTO(sw_onednn_product_open(&shape, true, &direct[OWN_LAYOUTS]), out);
    status = race(bench, product, direct);
out:
    sw_onednn_product_close(direct[SAME_LAYOUTS]);
    sw_onednn_product_close(direct[OWN_LAYOUTS]);
    return status;
}

static struct product_row row_of(const struct sw_model_product *product) {
    static const char *const operands[2][2] = {{"NN", "NT"}, {"TN", "TT"}};
    return (struct product_row){.of = *product,
                                .operands = operands[product->shape.transpose_a][product->shape.transpose_b],
                                .a_stride = sw_gemm_a_stride(&product->shape),
                                .c_stride = sw_gemm_c_stride(&product->shape)};
}

/* Sums a part of the model: the blocks, the head, or all. */
static struct total_row total_of(const struct gemm_bench *bench, int part) {
    static const char *const parts[TOTALS] = {"blocks", "head", "all"};
    struct total_row total = {.part = parts[part]};
    for (int i = 0; i < bench->of.count; i++) {
        const struct sw_model_product *product = &bench->of.product[i];
        const double flops = sw_gemm_flops(&product->shape) * (double)product->times;
        if (part < 2 && product->head != (part == 1))
            continue;
        total.flops += flops;
        for (int who = 0; who < bench->contenders; who++)
            total.seconds[who] += flops / sw_bench_median(&bench->row[i].rounds, who);
    }
    const bool alone = bench->contenders == 1;
    total.flops_per_s = total.flops / total.seconds[OURS];
    total.of_same_layouts = alone ? NAN : total.seconds[SAME_LAYOUTS] / total.seconds[OURS];
    total.of_own_layouts = alone ? NAN : total.seconds[OWN_LAYOUTS] / total.seconds[OURS];
    return total;
}

static sw_status report(const struct gemm_bench *bench) {
    const bool alone = bench->contenders == 1;
    struct total_row totals[TOTALS];
    for (int part = 0; part < TOTALS; part++)
        totals[part] = total_of(bench, part);
    if (bench->of.settings.json)
        return sw_command_print_json(
            sw_bench_join(sw_bench_model_json(&bench->of, "gemm", bench->given->rounds),
                          json_pack("{s:s, s:s*, s:o, s:o}", "numbers", SW_BENCH_NUMBERS, "bound_precision",
                                    alone ? NULL : sw_dtype_name(bench->of.bound_type), "products",
                                    sw_table_json(SW_TABLE(product_fields, bench->row, bench->of.count)), "totals",
                                    sw_table_named_json(SW_TABLE(total_fields, totals, TOTALS)))));
    sw_bench_model_print(&bench->of, bench->given->rounds);
    if (!alone)
        puts("against oneDNN with the same operands, and in its own layouts");
    sw_table_print(SW_TABLE(product_fields, bench->row, bench->of.count));
    puts("a micro-batch");
    sw_table_print(SW_TABLE(total_fields, totals, TOTALS));
    return SW_OK;
}

static sw_status run(struct gemm_bench *bench) {
    SW_TRY(sw_bench_model_open(&bench->given->settings, &bench->of));
    bench->contenders = sw_device_info(bench->of.device).host_memory ? CONTENDERS : 1;
    SW_TRY(check_memory(bench));
    SW_TRY(sw_bench_products_open(bench->of.device, bench->of.product, bench->of.count, &bench->products));
    if (bench->contenders > 1)
        SW_TRY(sw_bench_choose_bound_type(&bench->of));
    struct sw_long_work work = sw_long_work_begin("measuring matrix products", 0);
    for (int i = 0; i < bench->of.count; i++) {
        SW_TRY(sw_long_work_at(&work, 0));
        bench->row[i] = row_of(&bench->of.product[i]);
        SW_TRY(measure(bench, i));
    }
    sw_long_work_end(&work);
    return report(bench);
}

sw_status sw_bench_gemm(const void *given_options) {
    struct gemm_bench bench = {.given = given_options};
    const sw_status status = run(&bench);
    sw_bench_products_close(&bench.products);
    sw_bench_model_close(&bench.of);
    return status;
}
