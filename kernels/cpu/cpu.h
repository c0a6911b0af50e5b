/* The CPU device: vector code for the machine's instruction set, and oneDNN for matrix products. */
#ifndef SW_KERNELS_CPU_CPU_H
#define SW_KERNELS_CPU_CPU_H

#include "core/machine.h"
#include "kernels/device_ops.h"

#include <oneapi/dnnl/dnnl.h>

struct sw_cpu {
    dnnl_engine_t engine;
};

/* Limits oneDNN to an instruction set in this process. Must come before any other call of oneDNN; later calls change
 * nothing. */
sw_status sw_cpu_gemm_hold(sw_isa isa);
/* Open and close oneDNN, which multiplies matrices. */
sw_status sw_cpu_gemm_open(struct sw_cpu *cpu);
void sw_cpu_gemm_close(struct sw_cpu *cpu);
void sw_cpu_add_gemm(struct sw_device_ops *ops);

/* Returns whether products of operands of this type are computed by blocks (block_product.c) instead of oneDNN. */
bool sw_cpu_multiplies_blocks(const struct sw_device *device, sw_dtype type);

/* Returns whether oneDNN multiplies bf16 with this machine's own instructions. */
bool sw_cpu_has_bf16_products(void);

#endif
