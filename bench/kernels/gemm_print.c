#include "bench/kernels/gemm.h"

#include <stdio.h>

/* Seconds that a micro-batch spends in some of the products, by the medians. */
struct total {
    const char *name;
    bool of_blocks, of_head;
    double seconds[SW_GEMM_CONTENDERS], flops;
};

enum { TOTALS = 3 };

static void sum(const struct sw_gemm_bench *bench, struct total totals[TOTALS]) {
    static const struct total empty[TOTALS] = {{.name = "blocks", .of_blocks = true},
                                               {.name = "head", .of_head = true},
                                               {.name = "all", .of_blocks = true, .of_head = true}};
    for (int t = 0; t < TOTALS; t++) {
        totals[t] = empty[t];
        for (int i = 0; i < bench->of.count; i++) {
            const struct sw_model_product *product = &bench->of.product[i];
            const double flops = sw_gemm_flops(&product->shape) * (double)product->times;
            if (product->head ? !empty[t].of_head : !empty[t].of_blocks)
                continue;
            totals[t].flops += flops;
            for (int who = 0; who < bench->contenders; who++)
                totals[t].seconds[who] += flops / sw_bench_median(&bench->result[i], who);
        }
    }
}

void sw_gemm_print_head(const struct sw_gemm_bench *bench) {
    const struct sw_settings *s = &bench->of.settings;
    const struct sw_device_info info = sw_devices_info(&bench->of.devices);
    printf("%s, micro-batch of %lld x %lld tokens, %s, ", s->model, (long long)s->micro_batch, (long long)s->seq,
           sw_dtype_name(bench->of.type));
    if (bench->contenders == 1)
        printf("%s: Gflop/s (median of %d)\n", info.model, (int)bench->given->rounds);
    else
        printf("%d threads: Gflop/s of ours, of oneDNN with the same operands, with its own layouts; ours to each "
               "(median of %d)\n",
               info.threads, (int)bench->given->rounds);
    sw_bench_print_bound(&bench->of);
}

void sw_gemm_print_product(const struct sw_gemm_bench *bench, int product) {
    const struct sw_model_product *p = &bench->of.product[product];
    const struct sw_bench_rounds *result = &bench->result[product];
    const struct sw_gemm *g = &p->shape;
    printf("%-10s %-15s %4lldx %5lld x %5lld x %5lld %c%c", p->layer, p->pass, (long long)p->times, (long long)g->m,
           (long long)g->n, (long long)g->k, g->transpose_a ? 'T' : 'N', g->transpose_b ? 'T' : 'N');
    for (int who = 0; who < bench->contenders; who++)
        printf(" %7.0f", sw_bench_median(result, who) * 1e-9);
    for (int who = SW_GEMM_SAME_LAYOUTS; who < bench->contenders; who++)
        printf(" %7.2f", sw_bench_ratio(result, SW_GEMM_OURS, who));
    putchar('\n');
}

void sw_gemm_print_totals(const struct sw_gemm_bench *bench) {
    struct total totals[TOTALS];
    sum(bench, totals);
    for (int t = 0; t < TOTALS; t++) {
        const double *seconds = totals[t].seconds;
        printf("%-6s of a micro-batch: %.4f s, %.0f Gflop/s", totals[t].name, seconds[SW_GEMM_OURS],
               totals[t].flops / seconds[SW_GEMM_OURS] * 1e-9);
        if (bench->contenders > 1)
            printf("; %.2f of oneDNN with the same operands, %.2f with its own layouts",
                   seconds[SW_GEMM_SAME_LAYOUTS] / seconds[SW_GEMM_OURS],
                   seconds[SW_GEMM_OWN_LAYOUTS] / seconds[SW_GEMM_OURS]);
        putchar('\n');
    }
}

/* What ours is compared with, in the order of the contenders. */
static const struct {
    const char *rate, *ratio;
} compared[SW_GEMM_CONTENDERS] = {{"flops_per_s", NULL},
                                  {"same_layouts_flops_per_s", "of_same_layouts"},
                                  {"own_layouts_flops_per_s", "of_own_layouts"}};

static json_t *product_json(const struct sw_gemm_bench *bench, int product) {
    const struct sw_model_product *p = &bench->of.product[product];
    const struct sw_bench_rounds *result = &bench->result[product];
    const struct sw_gemm *g = &p->shape;
    json_t *object = json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:b, s:b, s:b, s:b}", "layer", p->layer, "pass", p->pass,
                               "times", (json_int_t)p->times, "m", (json_int_t)g->m, "n", (json_int_t)g->n, "k",
                               (json_int_t)g->k, "transpose_a", g->transpose_a, "transpose_b", g->transpose_b, "bias",
                               g->bias, "accumulate", g->accumulate);
    for (int who = 0; who < bench->contenders; who++) {
        json_object_set_new(object, compared[who].rate, json_real(sw_bench_median(result, who)));
        if (compared[who].ratio != NULL)
            json_object_set_new(object, compared[who].ratio, json_real(sw_bench_ratio(result, SW_GEMM_OURS, who)));
    }
    return object;
}

static json_t *total_json(const struct sw_gemm_bench *bench, const struct total *total) {
    json_t *object = json_pack("{s:f, s:f}", "seconds", total->seconds[SW_GEMM_OURS], "flops_per_s",
                               total->flops / total->seconds[SW_GEMM_OURS]);
    for (int who = SW_GEMM_SAME_LAYOUTS; who < bench->contenders; who++)
        json_object_set_new(object, compared[who].ratio, json_real(total->seconds[who] / total->seconds[SW_GEMM_OURS]));
    return object;
}

static sw_status add_results(const struct sw_gemm_bench *bench, json_t *products, json_t *totals) {
    struct total total[TOTALS];
    sum(bench, total);
    for (int i = 0; i < bench->of.count; i++)
        SW_TRY(sw_bench_append(products, product_json(bench, i)));
    for (int t = 0; t < TOTALS; t++)
        if (json_object_set_new(totals, total[t].name, total_json(bench, &total[t])) != 0)
            return sw_fail(SW_ERR_NOMEM, "no memory to print what was measured");
    return SW_OK;
}

sw_status sw_gemm_print_json(const struct sw_gemm_bench *bench) {
    const struct sw_settings *s = &bench->of.settings;
    const struct sw_device_info info = sw_devices_info(&bench->of.devices);
    json_t *products = json_array(), *totals = json_object();
    sw_status status = add_results(bench, products, totals);
    if (status == SW_OK)
        status = sw_bench_print_json(
            json_pack("{s:s, s:s, s:s, s:s, s:s, s:s*, s:i, s:i, s:I, s:I, s:O, s:O}", "bench", "gemm", "device",
                      info.name, "isa", info.isa, "model", s->model, "precision", sw_dtype_name(bench->of.type),
                      "bound_precision", bench->contenders > 1 ? sw_dtype_name(bench->of.bound_type) : NULL, "threads",
                      info.threads, "rounds", (int)bench->given->rounds, "micro_batch", (json_int_t)s->micro_batch,
                      "seq", (json_int_t)s->seq, "products", products, "totals", totals));
    json_decref(products);
    json_decref(totals);
    return status;
}
