/* The sum of a micro-batch's losses: one block, each thread a stride of the rows, then halves pairwise. */
#include "kernels/cuda/grid.cuh"

static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    sum_kernel(int64_t rows, const float *losses, double *total) {
    SW_SHARED(double, partial, [SW_BLOCK_THREADS]);
    const int thread = (int)threadIdx.x;
    double sum = 0.0;
    for (int64_t row = thread; row < rows; row += SW_BLOCK_THREADS)
        sum += (double)losses[row];
    partial[thread] = sum;
    __syncthreads();
    for (int half = SW_BLOCK_THREADS / 2; half >= 1; half /= 2) {
        if (thread < half)
            partial[thread] += partial[thread + half];
        __syncthreads();
    }
    if (thread == 0)
        *total += partial[0];
}

void sw_cuda_sum_losses(cudaStream_t stream, const void *args) {
    const sw_sum_losses *op = (const sw_sum_losses *)args;
    SW_LAUNCH(sum_kernel, 1, SW_BLOCK_THREADS, 0, stream, op->rows, op->losses, op->total);
}

/* All kernels are compiled for the same GPUs, so that one speaks for all. */
int sw_cuda_kernels_error(void) {
    return SW_KERNEL_ERROR(sum_kernel);
}
