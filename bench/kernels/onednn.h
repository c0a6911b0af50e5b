/* A matrix product by oneDNN alone, as a program that calls it directly would have it. */
#ifndef SW_BENCH_KERNELS_ONEDNN_H
#define SW_BENCH_KERNELS_ONEDNN_H

#include "kernels/device.h"

#include <stdbool.h>

struct sw_onednn_product;

/* Prepares a product with the shape's row-major operands, or with own_layouts with operands that already lie in the
 * layouts that oneDNN prefers. The product owns its memory, filled with small numbers, and uses the threads that OpenMP
 * has at this call. Fails with SW_ERR_UNSUPPORTED where oneDNN cannot multiply this type on this CPU. */
sw_status sw_onednn_product_open(const struct sw_gemm *shape, bool own_layouts, struct sw_onednn_product **out);
/* Computes the product, and measures the seconds that it takes. */
sw_status sw_onednn_product_time(struct sw_onednn_product *product, double *out_s);
void sw_onednn_product_close(struct sw_onednn_product *product);

#endif
