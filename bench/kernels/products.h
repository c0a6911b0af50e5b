/* Matrix products alone on a device: operands for any of a list of shapes, and the time of a call. Other kernels take
 * and fill their operands and time their calls by the same functions. */
#ifndef SW_BENCH_KERNELS_PRODUCTS_H
#define SW_BENCH_KERNELS_PRODUCTS_H

#include "kernels/device.h"
#include "model/model.h"

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

/* Returns the bytes of `count` areas that lie one behind the other, each aligned for a kernel. */
int64_t sw_bench_areas_bytes(const int64_t *bytes, int count);
/* Takes device memory for such areas and writes their addresses into `areas`. The caller closes the memory. */
sw_status sw_bench_areas_open(struct sw_device *device, const int64_t *bytes, int count, struct sw_memory **out,
                              void **areas);
/* Fills device memory with normal random numbers of deviation 1, as SW_BENCH_NUMBERS says. */
sw_status sw_bench_fill(const struct sw_bench_products *products, sw_dtype type, void *to, int64_t bytes);
/* Does the same to the host's memory. */
sw_status sw_bench_fill_host(sw_dtype type, void *to, int64_t bytes);

/* Measures the floating-point operations a second of all products of a micro-batch, each as often as it runs there. */
sw_status sw_bench_products_rate(struct sw_bench_products *products, const struct sw_model_product *all, int count,
                                 double *out_flops_per_s);

static inline double sw_gemm_flops(const struct sw_gemm *shape) {
    return 2.0 * (double)shape->m * (double)shape->n * (double)shape->k;
}

#endif
