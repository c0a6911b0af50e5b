/* Products in 8 bits on devices that have none, or none of these sides: the operands are encoded, and a product of the
 * operands' type multiplies what the codes stand for. Numbers of 8 bits and their scales lose nothing in bf16, so these
 * products are the reference of those that multiply codes. */
#ifndef SW_KERNELS_FP8_PRODUCT_H
#define SW_KERNELS_FP8_PRODUCT_H

#include "kernels/device_ops.h"

/* The bytes of sw_encode_fp8's scale. */
#define SW_FP8_SCALE_BYTES ((1 + SW_FP8_PARTS) * (int64_t)sizeof(float))

struct sw_gemm_operands {
    const void *a, *b, *bias, *addend;
    void *c, *scratch;
};

/* cuBLASLt multiplies codes only where each side of the product is a multiple of this. */
enum { SW_FP8_SIDE_MULTIPLE = 16 };

/* Tells whether a product is of operands in 8 bits and the device does not multiply their codes. */
bool sw_fp8_is_apart(const struct sw_device *device, const struct sw_gemm *shape);
/* Returns the product of rounded operands that such a product needs prepared, and the scratch of a call, where that
 * product takes so much. */
struct sw_gemm sw_fp8_rounded(const struct sw_gemm *shape);
int64_t sw_fp8_scratch_bytes(const struct sw_gemm *shape, int64_t rounded_bytes);
/* Runs such a product. */
sw_status sw_fp8_multiply(struct sw_stream *stream, struct sw_gemm_entry *entry, const struct sw_gemm_operands *at);

#endif
