#include "kernels/cpu/isa.h"

void SW_ISA_NAME(sw_cpu_add_ops)(struct sw_device_ops *ops) {
    SW_ISA_NAME(sw_cpu_add_layernorm)(ops);
    SW_ISA_NAME(sw_cpu_add_pack)(ops);
    SW_ISA_NAME(sw_cpu_add_block_product)(ops);
    SW_ISA_NAME(sw_cpu_add_row_product)(ops);
    SW_ISA_NAME(sw_cpu_add_attention)(ops);
    SW_ISA_NAME(sw_cpu_add_sink)(ops);
    SW_ISA_NAME(sw_cpu_add_elementwise)(ops);
    SW_ISA_NAME(sw_cpu_add_activation)(ops);
    SW_ISA_NAME(sw_cpu_add_embedding)(ops);
    SW_ISA_NAME(sw_cpu_add_cross_entropy)(ops);
    SW_ISA_NAME(sw_cpu_add_gradient)(ops);
    SW_ISA_NAME(sw_cpu_add_update)(ops);
    SW_ISA_NAME(sw_cpu_add_muon)(ops);
    SW_ISA_NAME(sw_cpu_add_quant)(ops);
    SW_ISA_NAME(sw_cpu_add_base_format)(ops);
    SW_ISA_NAME(sw_cpu_add_experts)(ops);
}
