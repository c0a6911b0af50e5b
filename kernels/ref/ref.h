/* The plain reference in C: one thread, one loop per mathematical sum. Sums whose order the contract leaves open are
 * taken in double, so that a faster implementation is compared with something better than itself. */
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
void sw_ref_add_muon(struct sw_device_ops *ops);
void sw_ref_add_update(struct sw_device_ops *ops);
void sw_ref_add_quant(struct sw_device_ops *ops);
void sw_ref_add_fp8(struct sw_device_ops *ops);
void sw_ref_add_base_format(struct sw_device_ops *ops);
void sw_ref_add_experts(struct sw_device_ops *ops);

/* Fills a complete table, from which the other host devices start. */
void sw_ref_ops(struct sw_device_ops *ops);

#endif
