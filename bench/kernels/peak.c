#include "bench/kernels/peak.h"

#include <string.h>

/* Tera-operations a second without sparsity, from the data sheets: 16-bit types with fp32 sums, and fp32 outside of the
 * tensor cores. A name may begin another one, so the longer stands first. */
static const struct {
    const char *name; /* a part of what the driver calls it */
    double typed, fp32;
} peaks[] = {
    {"H100 NVL", 835.5, 60.0}, {"H100 PCIe", 756.0, 51.0}, {"H100", 989.4, 66.9},      {"H200 NVL", 835.5, 60.0},
    {"H200", 989.4, 66.9},     {"GH200", 989.4, 66.9},     {"B200", 2250.0, 75.0},     {"A100", 312.0, 19.5},
    {"L40S", 362.0, 91.6},     {"L40", 181.0, 90.5},       {"L4", 121.0, 30.3},        {"A10G", 70.0, 35.0},
    {"A10", 125.0, 31.2},      {"A40", 149.7, 37.4},       {"RTX 5090", 209.5, 104.8}, {"RTX 4090", 165.2, 82.6},
    {"RTX 4080", 97.5, 48.7},  {"RTX 3090", 71.0, 35.6},
};

double sw_peak_flops_per_s(const struct sw_device_info *info, sw_dtype type) {
    for (size_t i = 0; info->model != NULL && i < sizeof peaks / sizeof peaks[0]; i++)
        if (strstr(info->model, peaks[i].name) != NULL)
            return (type == SW_F32 ? peaks[i].fp32 : peaks[i].typed) * 1e12;
    return 0.0;
}
