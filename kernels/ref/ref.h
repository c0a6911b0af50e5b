/* The plain C truth: one thread, one loop for each mathematical sum. Sums that the contract does not fix are taken in
 * double, so that a faster implementation is measured against something better than itself. */
#ifndef SW_KERNELS_REF_REF_H
#define SW_KERNELS_REF_REF_H

#include "kernels/device_ops.h"

/* Each of these functions adds the ops of one file to a table. */
void sw_ref_add_memory(struct sw_device_ops *ops);
void sw_ref_add_gemm(struct sw_device_ops *ops);
void sw_ref_add_layernorm(struct sw_device_ops *ops);
void sw_ref_add_rmsnorm(struct sw_device_ops *ops);
void sw_ref_add_rotate(struct sw_device_ops *ops);
void sw_ref_add_attention(struct sw_device_ops *ops);
void sw_ref_add_elementwise(struct sw_device_ops *ops);
void sw_ref_add_embedding(struct sw_device_ops *ops);
void sw_ref_add_cross_entropy(struct sw_device_ops *ops);
void sw_ref_add_gradient(struct sw_device_ops *ops);
void sw_ref_add_update(struct sw_device_ops *ops);
void sw_ref_add_quant(struct sw_device_ops *ops);
void sw_ref_add_fp8(struct sw_device_ops *ops);

/* Fills a complete table, from which the other devices of the host start. */
void sw_ref_ops(struct sw_device_ops *ops);

#endif
