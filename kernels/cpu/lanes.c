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
