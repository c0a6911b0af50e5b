#include "kernels/cpu/isa.h"
#include "kernels/cpu/lanes.h"

sw_vec SW_ISA_NAME(sw_load_rest)(sw_dtype type, const void *tensor, int64_t at, int64_t count, float fill) {
    sw_vec value = sw_vec_splat(fill);
    for (int64_t i = 0; i < count; i++)
        value[i] = sw_dtype_load(type, tensor, at + i);
    return value;
}

void SW_ISA_NAME(sw_store_rest)(sw_dtype type, void *tensor, int64_t at, int64_t count, sw_vec value) {
    for (int64_t i = 0; i < count; i++)
        sw_dtype_store(type, tensor, at + i, value[i]);
}

void SW_ISA_NAME(sw_cpu_add_ops)(struct sw_device_ops *ops) {
    SW_ISA_NAME(sw_cpu_add_layernorm)(ops);
    SW_ISA_NAME(sw_cpu_add_pack)(ops);
    SW_ISA_NAME(sw_cpu_add_block_product)(ops);
    SW_ISA_NAME(sw_cpu_add_row_product)(ops);
    SW_ISA_NAME(sw_cpu_add_attention)(ops);
    SW_ISA_NAME(sw_cpu_add_elementwise)(ops);
    SW_ISA_NAME(sw_cpu_add_activation)(ops);
    SW_ISA_NAME(sw_cpu_add_embedding)(ops);
    SW_ISA_NAME(sw_cpu_add_cross_entropy)(ops);
    SW_ISA_NAME(sw_cpu_add_gradient)(ops);
    SW_ISA_NAME(sw_cpu_add_update)(ops);
    SW_ISA_NAME(sw_cpu_add_quant)(ops);
}
