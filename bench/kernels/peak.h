/* The peak rates of GPUs by their data sheets. */
#ifndef SW_BENCH_KERNELS_PEAK_H
#define SW_BENCH_KERNELS_PEAK_H

#include "core/dtype.h"
#include "kernels/device.h"

/* Returns the dense floating-point operations a second of a device by its name, with fp32 sums; 0: not known. */
double sw_peak_flops_per_s(const struct sw_device_info *info, sw_dtype type);

#endif
