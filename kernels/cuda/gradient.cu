/* The end of a gradient: rounds it, and sums the squares of every grain in the order of kernels/device.h. */
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

/* Where the values of a grain come from: rounded on the way, */
template <typename T> struct rounding {
    const float *acc;
    T *grads;
    bool aligned;
    __device__ __forceinline__ void operator()(int64_t at, float values[SW_ELEMS]) const {
        sw_load_elems(acc + at, SW_ELEMS, aligned, values);
        for (int e = 0; e < SW_ELEMS; e++) {
            T rounded;
            sw_round(values[e], &rounded);
            values[e] = sw_widen(rounded);
        }
        sw_store_elems(grads + at, SW_ELEMS, aligned, values);
    }
};

/* or as they are. */
template <typename T> struct reading {
    const T *grads;
    bool aligned;
    __device__ __forceinline__ void operator()(int64_t at, float values[SW_ELEMS]) const {
        sw_load_elems(grads + at, SW_ELEMS, aligned, values);
    }
};

template <typename Source>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS) sums_kernel(int64_t grains, Source source, double *sums) {
    SW_SHARED(double, partial, [GRAINS_PER_BLOCK][SW_GRAIN_PARTIAL_SUMS]);
    const int64_t grain = (int64_t)blockIdx.x * GRAINS_PER_BLOCK + threadIdx.y;
    const int thread = (int)threadIdx.x;
    if (grain >= grains)
        return;
    double squares[SW_ELEMS] = {0};
    for (int64_t i = thread * SW_ELEMS; i < SW_GRAIN_ELEMS; i += SW_GRAIN_PARTIAL_SUMS) {
        float values[SW_ELEMS];
        source(grain * SW_GRAIN_ELEMS + i, values);
        for (int e = 0; e < SW_ELEMS; e++)
            squares[e] = fma((double)values[e], (double)values[e], squares[e]);
    }
    for (int e = 0; e < SW_ELEMS; e++)
        partial[threadIdx.y][thread * SW_ELEMS + e] = squares[e];
    __syncwarp();
    const double total = add_halves(partial[threadIdx.y], thread);
    if (thread == 0)
        sums[grain] = total;
}

template <typename Source>
static void sum_grains(cudaStream_t stream, int64_t grains, const Source &source, double *sums) {
    if (grains > 0)
        SW_LAUNCH(sums_kernel<Source>, sw_blocks(grains, GRAINS_PER_BLOCK), dim3(GRAIN_THREADS, GRAINS_PER_BLOCK), 0,
                  stream, grains, source, sums);
}

template <typename T>
static void finish(cudaStream_t stream, int64_t grains, const float *acc, void *grads, double *sums) {
    const rounding<T> source = {acc, (T *)grads, sw_is_aligned(acc) && sw_is_aligned(grads)};
    sum_grains(stream, grains, source, sums);
}

template <typename T> static void sum_given(cudaStream_t stream, int64_t grains, const void *grads, double *sums) {
    const reading<T> source = {(const T *)grads, sw_is_aligned(grads)};
    sum_grains(stream, grains, source, sums);
}

void sw_cuda_finish_gradient(cudaStream_t stream, sw_dtype type, int64_t elems, const float *acc, void *grads,
                             double *sums) {
    SW_FOR_TYPE(type, finish, stream, elems / SW_GRAIN_ELEMS, acc, grads, sums);
}

void sw_cuda_square_sums(cudaStream_t stream, sw_dtype type, int64_t elems, const void *grads, double *sums) {
    SW_FOR_TYPE(type, sum_given, stream, elems / SW_GRAIN_ELEMS, grads, sums);
}
