/* The harness of the kernel benches: operands on a device for any of a list of matrix products, and the time of a call;
 * other kernels take and fill their operands by the same functions. Then oneDNN called directly, the model whose
 * micro-batch is measured, and plain loops over memory. */
#ifndef SW_BENCH_KERNELS_HARNESS_H
#define SW_BENCH_KERNELS_HARNESS_H

#include "bench/options.h"
#include "core/arena.h"
#include "core/dtype.h"
#include "core/status.h"
#include "job/job.h"
#include "kernels/device.h"
#include "model/model.h"

#include <stdbool.h>
#include <stdint.h>

enum { SW_BENCH_OPERANDS = 5 };
/* Names the numbers that operands are filled with, for reports. Numbers decide how much power a multiplication takes,
 * and so how fast a processor at its limit of power multiplies: what is compared must have the same. */
#define SW_BENCH_NUMBERS "normal"

struct sw_bench_products {
    struct sw_device *device;
    struct sw_stream *stream;
    struct sw_event *from, *to;
    struct sw_memory *memory;         /* holds the operands */
    void *operand[SW_BENCH_OPERANDS]; /* two factors, bias, product, scratch */
};

/* Prepares the products, and returns the bytes of operands that suffice for each of the shapes. */
sw_status sw_bench_products_bytes(struct sw_device *device, const struct sw_model_product *products, int count,
                                  int64_t *out_bytes);
/* Takes operands on the device and fills them with random numbers. The caller closes it, even after an error. */
sw_status sw_bench_products_open(struct sw_device *device, const struct sw_model_product *products, int count,
                                 struct sw_bench_products *out);
void sw_bench_products_close(struct sw_bench_products *products);

/* Measures the seconds of one call of `run`, which queues work in the products' stream. An asynchronous device gets
 * many calls in a row, so that their start does not count: bench/peers/torch_pairs.py gives PyTorch as many by the same
 * rule. */
sw_status sw_bench_time(struct sw_bench_products *products, sw_status (*run)(void *context), void *context,
                        double *out_s);
/* Measures the seconds of one product. */
sw_status sw_bench_product_time(struct sw_bench_products *products, const struct sw_gemm *shape, double *out_s);

/* Returns the bytes of `count` areas in a row, each aligned for a kernel. */
int64_t sw_bench_areas_bytes(const int64_t *bytes, int count);
/* Takes device memory for such areas and writes their addresses into `areas`. The caller closes the memory. */
sw_status sw_bench_areas_open(struct sw_device *device, const int64_t *bytes, int count, struct sw_memory **out,
                              void **areas);
/* Fills device memory with normal random numbers of deviation 1, as SW_BENCH_NUMBERS says. */
sw_status sw_bench_fill(const struct sw_bench_products *products, sw_dtype type, void *to, int64_t bytes);

/* Measures the floating-point operations a second of all products of a micro-batch, each as often as it runs there. */
sw_status sw_bench_products_rate(struct sw_bench_products *products, const struct sw_model_product *all, int count,
                                 double *out_flops_per_s);

static inline double sw_gemm_flops(const struct sw_gemm *shape) {
    return 2.0 * (double)shape->m * (double)shape->n * (double)shape->k;
}

/* A matrix product by oneDNN, called directly. */
struct sw_onednn_product;

/* Prepares a product with the shape's row-major operands, or with own_layouts with operands that already lie in the
 * layouts that oneDNN prefers. The product owns its memory, filled with small numbers, and uses the threads that OpenMP
 * has at this call. Fails with SW_ERR_UNSUPPORTED where oneDNN cannot multiply this type on this CPU. */
sw_status sw_onednn_product_open(const struct sw_gemm *shape, bool own_layouts, struct sw_onednn_product **out);
/* Computes the product, and measures the seconds that it takes. */
sw_status sw_onednn_product_time(struct sw_onednn_product *product, double *out_s);
void sw_onednn_product_close(struct sw_onednn_product *product);

/* The model whose micro-batch is measured, with its device. */
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
/* Returns the product that oneDNN computes on this CPU when called directly. */
struct sw_gemm sw_bench_bound_shape(const struct sw_bench_model *model, int product);
/* Returns the members of a report that say what was measured: from "bench" to "seq". The caller releases it. */
json_t *sw_bench_model_json(const struct sw_bench_model *model, const char *bench, int64_t rounds);
/* Prints the same as two lines, and where oneDNN's products are of another type says so. */
void sw_bench_model_print(const struct sw_bench_model *model, int64_t rounds);
/* Refuses operands that need more memory than is available. smaller: the flags that would help, for the message. */
sw_status sw_bench_check_memory(const char *what, int64_t need_bytes, const char *smaller);
/* The flags of benches of a model's micro-batch. */
#define SW_BENCH_SMALLER_MODEL "--micro-batch, --seq or model"

/* Plain loops over memory by all threads at once: the machine's own limit. Rates are bytes a second, medians of a few
 * runs after one that warms up. Lines that a cache fetches before it overwrites them do not count, as in STREAM. */
enum { SW_BENCH_AREAS = 3 };

struct sw_bench_memory {
    int threads;
    struct sw_arena *arena;
    int64_t area_bytes;
    float *area[SW_BENCH_AREAS];
};

/* Takes areas in an arena, like the engine's memory, and fills them with small numbers. */
sw_status sw_bench_memory_open(int threads, int64_t area_bytes, struct sw_bench_memory *out);
void sw_bench_memory_close(struct sw_bench_memory *memory);

/* Measures memcpy of the first `bytes` of an area by chunks, each by `threads` threads together. The rate is of bytes
 * copied, each of which is read and written. */
double sw_bench_memcpy(const struct sw_bench_memory *memory, int64_t bytes, int64_t chunk_bytes, int threads);

/* Runs a loop once and then a few times, and returns the median of its bytes a second. */
double sw_bench_rate(void (*loop)(const void *context), const void *context, int64_t bytes);

/* Returns the dense floating-point operations a second of a device by its name, with fp32 sums; 0: not known. */
double sw_peak_flops_per_s(const struct sw_device_info *info, sw_dtype type);

#endif
