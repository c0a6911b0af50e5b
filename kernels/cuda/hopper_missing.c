/* The attention by warpgroup products of a program that was built without it: it serves nothing. */
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

void sw_cuda_hopper_attention_forward(cudaStream_t stream, sw_dtype type, const struct sw_attention *shape,
                                      const void *q, const void *k, const void *v, void *o, float *log_sum_exp,
                                      void *scratch) {
    (void)stream, (void)type, (void)shape, (void)q, (void)k, (void)v, (void)o, (void)log_sum_exp, (void)scratch;
}

void sw_cuda_hopper_attention_backward(cudaStream_t stream, sw_dtype type, const struct sw_attention *shape,
                                       const void *q, const void *k, const void *v, const void *o, const void *d_o,
                                       const float *log_sum_exp, void *dq, void *dk, void *dv, void *scratch) {
    (void)stream, (void)type, (void)shape, (void)q, (void)k, (void)v, (void)o, (void)d_o, (void)log_sum_exp;
    (void)dq, (void)dk, (void)dv, (void)scratch;
}
