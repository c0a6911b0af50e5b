/* A matrix product by oneDNN: whole, or in pieces that threads take as they become free. */
#ifndef SW_KERNELS_CPU_PRODUCT_H
#define SW_KERNELS_CPU_PRODUCT_H

#include "kernels/device.h"

#include <oneapi/dnnl/dnnl.h>

struct sw_cpu_product;

/* The operands of a call, whole. */
struct sw_cpu_operands {
    const void *a, *b, *bias; /* bias: NULL where the shape has none */
    void *c;
};

/* Prepares a product of this shape, whose types are fp32 or bf16, for so many threads. *out_scratch_bytes is the memory
 * that a call needs. may_pack: the device can pack B (pack.h). */
sw_status sw_cpu_product_open(dnnl_engine_t engine, const struct sw_gemm *shape, int threads, bool may_pack,
                              struct sw_cpu_product **out, int64_t *out_scratch_bytes);
/* NULL is allowed. */
void sw_cpu_product_close(struct sw_cpu_product *product);
/* Multiplies by the stream's threads. One call at a time. */
struct sw_stream;
sw_status sw_cpu_product_run(struct sw_cpu_product *product, struct sw_stream *stream, const struct sw_cpu_operands *at,
                             void *scratch);

/* Returns SW_OK, or an error that says what oneDNN could not do. */
sw_status sw_cpu_check(dnnl_status_t status, const char *what);

#endif
