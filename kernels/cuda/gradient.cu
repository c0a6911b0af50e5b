/* The end of a gradient: rounds it and sums the squares of every grain, in the order of kernels/device.h. */
#include "kernels/cuda/grid.cuh"
#include "kernels/tiling.h"

enum {
    /* A grain is shared by as many threads as have one vector each of a round of partial sums. */
    GRAIN_THREADS = SW_GRAIN_PARTIAL_SUMS / SW_ELEMS,
    GRAINS_PER_BLOCK = SW_BLOCK_THREADS / GRAIN_THREADS
};

/* Halves added pairwise: the sums of a grain are with GRAIN_THREADS threads, and one has the total. */
static __device__ __forceinline__ double add_halves(double *partial, int thread) {
    for (int half = SW_GRAIN_PARTIAL_SUMS / 2; half >= 1; half /= 2) {
        for (int i = thread; i < half; i += GRAIN_THREADS)
            partial[i] += partial[i + half];
        __syncwarp();
    }
    return partial[0];
}
static_assert((int)GRAIN_THREADS == (int)SW_WARP, "a grain's threads wait for each other as a warp");

template <typename T>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    finish_kernel(int64_t grains, const float *acc, T *grads, double *sums, bool aligned) {
    SW_SHARED(double, partial, [GRAINS_PER_BLOCK][SW_GRAIN_PARTIAL_SUMS]);
    const int64_t grain = (int64_t)blockIdx.x * GRAINS_PER_BLOCK + threadIdx.y;
    const int thread = (int)threadIdx.x;
    if (grain >= grains)
        return;
    double squares[SW_ELEMS] = {0};
    for (int64_t i = thread * SW_ELEMS; i < SW_GRAIN_ELEMS; i += SW_GRAIN_PARTIAL_SUMS) {
        const int64_t at = grain * SW_GRAIN_ELEMS + i;
        float values[SW_ELEMS];
        sw_load_elems(acc + at, SW_ELEMS, aligned, values);
        T rounded[SW_ELEMS];
        for (int e = 0; e < SW_ELEMS; e++) {
            sw_round(values[e], &rounded[e]);
            values[e] = sw_widen(rounded[e]);
            squares[e] = fma((double)values[e], (double)values[e], squares[e]);
        }
        sw_store_elems(grads + at, SW_ELEMS, aligned, values);
    }
    for (int e = 0; e < SW_ELEMS; e++)
        partial[threadIdx.y][thread * SW_ELEMS + e] = squares[e];
    __syncwarp();
    const double total = add_halves(partial[threadIdx.y], thread);
    if (thread == 0)
        sums[grain] = total;
}

template <typename T>
static void finish(cudaStream_t stream, int64_t grains, const float *acc, void *grads, double *sums) {
    SW_LAUNCH(finish_kernel<T>, sw_blocks(grains, GRAINS_PER_BLOCK), dim3(GRAIN_THREADS, GRAINS_PER_BLOCK), 0, stream,
              grains, acc, (T *)grads, sums, sw_is_aligned(acc) && sw_is_aligned(grads));
}

void sw_cuda_finish_gradient(cudaStream_t stream, sw_dtype type, int64_t elems, const float *acc, void *grads,
                             double *sums) {
    if (elems > 0)
        SW_FOR_TYPE(type, finish, stream, elems / SW_GRAIN_ELEMS, acc, grads, sums);
}
