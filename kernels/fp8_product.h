/* Products in 8 bits on devices that have none, or not with these sides: the operands are encoded, and a product of the
 * operands' type multiplies the values of the codes. 8-bit numbers and their scales are exact in bf16, so these
 * products are the reference for those that multiply codes. */
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

/* Tells whether a product is of 8-bit operands and the device does not multiply their codes. */
bool sw_fp8_is_apart(const struct sw_device *device, const struct sw_gemm *shape);
/* Return the product of rounded operands that must be prepared, and the scratch of a call, given what that product
 * takes. */
struct sw_gemm sw_fp8_rounded(const struct sw_gemm *shape);
int64_t sw_fp8_scratch_bytes(const struct sw_gemm *shape, int64_t rounded_bytes);
/* Runs such a product. */
sw_status sw_fp8_multiply(struct sw_stream *stream, struct sw_gemm_entry *entry, const struct sw_gemm_operands *at);

#endif
