/* Products in 8 bits on devices that have none: the operands are encoded, and a product of the operands' type
 * multiplies what the codes stand for. Numbers of 8 bits and their scales lose nothing in bf16, so these products are
 * the reference of those that multiply codes. */
#ifndef SW_KERNELS_FP8_PRODUCT_H
#define SW_KERNELS_FP8_PRODUCT_H

#include "kernels/device_ops.h"

struct sw_gemm_operands {
    const void *a, *b, *bias, *addend;
    void *c, *scratch;
};

/* Tells whether a product is of operands in 8 bits and the device multiplies none. */
bool sw_fp8_is_apart(const struct sw_device *device, const struct sw_gemm *shape);
/* Prepare such a product, and run it. */
sw_status sw_fp8_prepare(struct sw_device *device, struct sw_gemm_entry *entry);
sw_status sw_fp8_multiply(struct sw_stream *stream, struct sw_gemm_entry *entry, const struct sw_gemm_operands *at);

#endif
