/* The model whose micro-batch is measured, with its device. */
#ifndef SW_BENCH_KERNELS_MODEL_H
#define SW_BENCH_KERNELS_MODEL_H

#include "bench/options.h"
#include "job/job.h"

struct sw_bench_model {
    struct sw_settings settings; /* resolved */
    struct sw_job job;           /* has no plan */
    struct sw_device *device;    /* the one that computes */
    sw_dtype type, bound_type;   /* bound_type: fp32 where oneDNN does not multiply `type` on this CPU */
    int count;                   /* entries of `product` in use */
    struct sw_model_product product[SW_MODEL_MAX_PRODUCTS];
};

/* Opens the device and creates the model. OpenMP's threads become the device's, for oneDNN called directly from this
 * thread. The caller closes it, even after an error. */
sw_status sw_bench_model_open(const struct sw_settings *given, struct sw_bench_model *out);
void sw_bench_model_close(struct sw_bench_model *model);

/* Finds bound_type by making one of the products, whose memory must have been checked. */
sw_status sw_bench_choose_bound_type(struct sw_bench_model *model);
/* Returns a product as oneDNN alone would compute it on this CPU. */
struct sw_gemm sw_bench_bound_shape(const struct sw_bench_model *model, int product);
/* Returns the members of a report that say what was measured: from "bench" to "seq". The caller releases it. */
json_t *sw_bench_model_json(const struct sw_bench_model *model, const char *bench, int64_t rounds);
/* Prints the same as two lines, and where oneDNN's products are of another type says so. */
void sw_bench_model_print(const struct sw_bench_model *model, int64_t rounds);
/* Refuses operands that need more memory than is available. */
sw_status sw_bench_check_memory(const char *what, int64_t need_bytes);

#endif
