/* One source for several instruction sets. Files that include this are compiled once per instruction set, with SW_ISA
 * as the suffix of their public names and the compiler's flags for it; the table of ops is chosen at run time. */
#ifndef SW_KERNELS_CPU_ISA_H
#define SW_KERNELS_CPU_ISA_H

#include "kernels/device_ops.h"

#ifndef SW_ISA
#define SW_ISA baseline
#endif

#define SW_ISA_JOIN_(name, isa) name##_##isa
#define SW_ISA_JOIN(name, isa) SW_ISA_JOIN_(name, isa)
#define SW_ISA_NAME(name) SW_ISA_JOIN(name, SW_ISA)

/* Each of these functions adds the ops of one file to a table; sw_cpu_add_ops calls them all. */
void SW_ISA_NAME(sw_cpu_add_layernorm)(struct sw_device_ops *ops);
void SW_ISA_NAME(sw_cpu_add_pack)(struct sw_device_ops *ops);
void SW_ISA_NAME(sw_cpu_add_block_product)(struct sw_device_ops *ops);
void SW_ISA_NAME(sw_cpu_add_row_product)(struct sw_device_ops *ops);
void SW_ISA_NAME(sw_cpu_add_attention)(struct sw_device_ops *ops);
void SW_ISA_NAME(sw_cpu_add_sink)(struct sw_device_ops *ops);
void SW_ISA_NAME(sw_cpu_add_elementwise)(struct sw_device_ops *ops);
void SW_ISA_NAME(sw_cpu_add_activation)(struct sw_device_ops *ops);
void SW_ISA_NAME(sw_cpu_add_embedding)(struct sw_device_ops *ops);
void SW_ISA_NAME(sw_cpu_add_cross_entropy)(struct sw_device_ops *ops);
void SW_ISA_NAME(sw_cpu_add_gradient)(struct sw_device_ops *ops);
void SW_ISA_NAME(sw_cpu_add_update)(struct sw_device_ops *ops);
void SW_ISA_NAME(sw_cpu_add_muon)(struct sw_device_ops *ops);
void SW_ISA_NAME(sw_cpu_add_quant)(struct sw_device_ops *ops);
void SW_ISA_NAME(sw_cpu_add_base_format)(struct sw_device_ops *ops);
void SW_ISA_NAME(sw_cpu_add_experts)(struct sw_device_ops *ops);
void SW_ISA_NAME(sw_cpu_add_ops)(struct sw_device_ops *ops);

#endif
