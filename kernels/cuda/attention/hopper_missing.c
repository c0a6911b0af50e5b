/* Stands in for attention by warpgroup products where the program is built without it: it serves nothing. */
#include "kernels/cuda/launch.h"

bool sw_cuda_hopper_attention_serves(const struct sw_attention *shape, sw_dtype type) {
    (void)shape;
    (void)type;
    return false;
}

int64_t sw_cuda_hopper_attention_scratch_bytes(const struct sw_attention *shape, sw_dtype type) {
    (void)shape;
    (void)type;
    return 0;
}

void sw_cuda_hopper_attention_forward(cudaStream_t stream, const void *args) {
    (void)stream, (void)args;
}

void sw_cuda_hopper_attention_backward(cudaStream_t stream, const void *args) {
    (void)stream, (void)args;
}
