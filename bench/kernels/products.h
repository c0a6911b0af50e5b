/* Matrix products alone on a device: operands for any of a list of shapes, and the time of a call. */
#ifndef SW_BENCH_KERNELS_PRODUCTS_H
#define SW_BENCH_KERNELS_PRODUCTS_H

#include "kernels/device.h"
#include "train/model/model.h"

struct sw_bench_products {
    struct sw_device *device;
    struct sw_stream *stream;
    struct sw_memory *memory;
    struct sw_event *from, *to;
    void *a, *b, *bias, *c, *scratch;
};

/* Prepares the products, and returns the bytes of operands that serve any of the shapes. */
sw_status sw_bench_products_bytes(struct sw_device *device, const struct sw_model_product *products, int count,
                                  int64_t *out_bytes);
/* Takes operands on the device and fills them with numbers of both signs. The caller closes it, even after an error. */
sw_status sw_bench_products_open(struct sw_device *device, const struct sw_model_product *products, int count,
                                 struct sw_bench_products *out);
void sw_bench_products_close(struct sw_bench_products *products);

/* Measures the seconds of one call. An asynchronous device gets many calls in a row, so that their start does not
 * count. */
sw_status sw_bench_product_time(struct sw_bench_products *products, const struct sw_gemm *shape, double *out_s);

/* Measures the floating-point operations a second of all products of a micro-batch, each as often as it runs there. */
sw_status sw_bench_products_rate(struct sw_bench_products *products, const struct sw_model_product *all, int count,
                                 double *out_flops_per_s);

static inline double sw_gemm_flops(const struct sw_gemm *shape) {
    return 2.0 * (double)shape->m * (double)shape->n * (double)shape->k;
}

#endif
