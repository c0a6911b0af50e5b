/* The bench of matrix products: what it measures and what it prints. */
#ifndef SW_BENCH_KERNELS_GEMM_H
#define SW_BENCH_KERNELS_GEMM_H

#include "bench/kernels/model.h"
#include "bench/kernels/products.h"
#include "bench/report.h"

enum sw_gemm_contender { SW_GEMM_OURS, SW_GEMM_SAME_LAYOUTS, SW_GEMM_OWN_LAYOUTS, SW_GEMM_CONTENDERS };
static_assert((int)SW_GEMM_CONTENDERS <= SW_BENCH_MAX_CONTENDERS, "each has its place among the rates");

struct sw_gemm_options {
    struct sw_settings settings; /* what shapes a step, as of train */
    int64_t rounds;
};

struct sw_gemm_bench {
    const struct sw_gemm_options *given;
    struct sw_bench_model of;
    int contenders; /* on a GPU ours alone */
    struct sw_bench_products products;
    struct sw_bench_rounds result[SW_MODEL_MAX_PRODUCTS]; /* flops a second of the contenders */
};

void sw_gemm_print_head(const struct sw_gemm_bench *bench);
void sw_gemm_print_product(const struct sw_gemm_bench *bench, int product);
void sw_gemm_print_totals(const struct sw_gemm_bench *bench);
sw_status sw_gemm_print_json(const struct sw_gemm_bench *bench);

#endif
