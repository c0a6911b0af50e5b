/* A matrix product by oneDNN alone, as a program that calls it directly would have it. */
#ifndef SW_BENCH_ONEDNN_H
#define SW_BENCH_ONEDNN_H

#include "kernels/device.h"

#include <stdbool.h>

struct onednn_product;

/* With the shape's row-major operands, or (own_layouts) with operands that already lie as oneDNN likes them best. The
 * memory is oneDNN's, filled with small numbers. Threads are OpenMP's at this call. */
sw_status onednn_product_open(const struct sw_gemm *shape, bool own_layouts, struct onednn_product **out);
sw_status onednn_product_run(struct onednn_product *product);
void onednn_product_close(struct onednn_product *product);

#endif
