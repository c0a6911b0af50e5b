/* The plain C truth: one thread, one loop for each mathematical sum. Sums that the contract does not fix are taken in
 * double, so that a faster implementation is measured against something better than itself. */
#ifndef SW_KERNELS_REF_REF_H
#define SW_KERNELS_REF_REF_H

#include "kernels/device_ops.h"

/* Each adds its ops to a table. */
void sw_ref_add_memory(struct sw_device_ops *ops);
void sw_ref_add_gemm(struct sw_device_ops *ops);
void sw_ref_add_layernorm(struct sw_device_ops *ops);
void sw_ref_add_attention(struct sw_device_ops *ops);
void sw_ref_add_elementwise(struct sw_device_ops *ops);
void sw_ref_add_columns(struct sw_device_ops *ops);
void sw_ref_add_embedding(struct sw_device_ops *ops);
void sw_ref_add_cross_entropy(struct sw_device_ops *ops);
void sw_ref_add_gradient(struct sw_device_ops *ops);
void sw_ref_add_update(struct sw_device_ops *ops);

/* All of them: a complete table, from which other devices start. */
void sw_ref_ops(struct sw_device_ops *ops);

static inline float sw_ref_load(sw_dtype type, const void *from, int64_t index) {
    return type == SW_F32 ? ((const float *)from)[index] : sw_bf16_to_f32(((const sw_bf16 *)from)[index]);
}

static inline void sw_ref_store(sw_dtype type, void *to, int64_t index, float value) {
    if (type == SW_F32)
        ((float *)to)[index] = value;
    else
        ((sw_bf16 *)to)[index] = sw_f32_to_bf16(value);
}

#endif
