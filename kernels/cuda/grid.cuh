/* Grids of one thread for each vector of SW_ELEMS elements. */
#ifndef SW_KERNELS_CUDA_GRID_CUH
#define SW_KERNELS_CUDA_GRID_CUH

#include "kernels/cuda/elements.cuh"

enum { SW_BLOCK_THREADS = 256 };

static inline int64_t sw_vectors(int64_t elems) {
    return (elems + SW_ELEMS - 1) / SW_ELEMS;
}

static inline unsigned sw_blocks(int64_t items, int64_t items_per_block) {
    return (unsigned)((items + items_per_block - 1) / items_per_block);
}

/* The running thread among all of a grid of SW_BLOCK_THREADS. */
static __device__ __forceinline__ int64_t sw_thread_of_grid(void) {
    return (int64_t)blockIdx.x * SW_BLOCK_THREADS + threadIdx.x;
}

#endif
