/* The bench of a micro-batch's arithmetic: what it measures and what it prints. */
#ifndef SW_BENCH_KERNELS_COMPUTE_H
#define SW_BENCH_KERNELS_COMPUTE_H

#include "bench/kernels/model.h"
#include "bench/kernels/products.h"
#include "bench/report.h"

enum { SW_COMPUTE_EMBEDDING, SW_COMPUTE_BLOCK, SW_COMPUTE_HEAD, SW_COMPUTE_PARTS };
/* The head's backward pass is all of it. */
enum { SW_COMPUTE_FORWARD, SW_COMPUTE_BACKWARD, SW_COMPUTE_PRODUCTS, SW_COMPUTE_CONTENDERS };

struct sw_compute_options {
    struct sw_settings settings; /* what shapes a step, as of train */
    int64_t rounds;
};

/* A unit, and how often a micro-batch goes through one like it. */
struct sw_compute_part {
    const char *name;
    int64_t unit, times;
    double seconds[SW_COMPUTE_CONTENDERS][SW_BENCH_MAX_ROUNDS]; /* of one unit */
};

struct sw_compute_bench {
    const struct sw_compute_options *given;
    struct sw_bench_model of;
    struct sw_unit_run *run;
    struct sw_bench_products products; /* of a GPU; the CPU's are oneDNN's own */
    struct sw_compute_part part[SW_COMPUTE_PARTS];
};

void sw_compute_print(const struct sw_compute_bench *bench);
sw_status sw_compute_print_json(const struct sw_compute_bench *bench);

#endif
