/* The end of a gradient: rounds it, and sums the squares of every grain in the order of kernels/device.h. A block has a
 * grain, and each of its threads one of the grain's partial sums. A call has few grains (64 in a chunk of 4 MiB), so a
 * thread loads many of its elements before it adds the first: half a grain is under way on each multiprocessor. */
#include "kernels/cuda/grid.cuh"
#include "kernels/tiling.h"

enum {
    GRAIN_ROUNDS = SW_GRAIN_ELEMS / SW_GRAIN_PARTIAL_SUMS, /* elements of a partial sum */
    ROUNDS_AT_ONCE = 32,
    FOLDED = SW_GRAIN_PARTIAL_SUMS / SW_WARP /* partial sums of a lane of the warp that adds them */
};
static_assert(GRAIN_ROUNDS % ROUNDS_AT_ONCE == 0, "a thread's elements come in whole batches");

/* Halves added pairwise, by the first warp: a lane folds the sums that lie SW_WARP apart, and the lanes fold theirs. */
static __device__ __forceinline__ double add_halves(const double *partial) {
    double sums[FOLDED];
    SW_UNROLL
    for (int i = 0; i < FOLDED; i++)
        sums[i] = partial[i * SW_WARP + threadIdx.x];
    SW_UNROLL
    for (int half = FOLDED / 2; half >= 1; half /= 2) {
        for (int i = 0; i < half; i++)
            sums[i] += sums[i + half];
    }
    for (int half = SW_WARP / 2; half >= 1; half /= 2)
        sums[0] += __shfl_xor_sync(SW_ALL_LANES, sums[0], half);
    return sums[0];
}

namespace {
/* The elements of a grain, rounded on the way, */
template <typename T> struct rounding {
    typedef float loaded;
    const float *acc;
    T *grads;
    __device__ __forceinline__ float load(int64_t at) const {
        return acc[at];
    }
    __device__ __forceinline__ float value(int64_t at, float from) const {
        T rounded;
        sw_round(from, &rounded);
        grads[at] = rounded;
        return sw_widen(rounded);
    }
};

/* or as they are. */
template <typename T> struct reading {
    typedef T loaded;
    const T *grads;
    __device__ __forceinline__ T load(int64_t at) const {
        return grads[at];
    }
    __device__ __forceinline__ float value(int64_t, T from) const {
        return sw_widen(from);
    }
};
} // namespace

template <typename Source>
static __global__ void __launch_bounds__(SW_GRAIN_PARTIAL_SUMS) sums_kernel(Source source, double *sums) {
    SW_SHARED(double, partial, [SW_GRAIN_PARTIAL_SUMS]);
    const int64_t first = (int64_t)blockIdx.x * SW_GRAIN_ELEMS + threadIdx.x;
    typename Source::loaded held[ROUNDS_AT_ONCE];
    double squares = 0.0;
    for (int round = 0; round < GRAIN_ROUNDS; round += ROUNDS_AT_ONCE) {
        const int64_t at = first + round * SW_GRAIN_PARTIAL_SUMS;
        SW_UNROLL
        for (int i = 0; i < ROUNDS_AT_ONCE; i++)
            held[i] = source.load(at + i * SW_GRAIN_PARTIAL_SUMS);
        SW_UNROLL
        for (int i = 0; i < ROUNDS_AT_ONCE; i++) {
            const double value = (double)source.value(at + i * SW_GRAIN_PARTIAL_SUMS, held[i]);
            squares = fma(value, value, squares);
        }
    }
    partial[threadIdx.x] = squares;
    __syncthreads();
    if (threadIdx.x >= SW_WARP)
        return;
    const double total = add_halves(partial);
    if (threadIdx.x == 0)
        sums[blockIdx.x] = total;
}

template <typename Source>
static void sum_grains(cudaStream_t stream, int64_t grains, const Source &source, double *sums) {
    if (grains > 0)
        SW_LAUNCH(sums_kernel<Source>, (unsigned)grains, SW_GRAIN_PARTIAL_SUMS, 0, stream, source, sums);
}

template <typename T>
static void finish(cudaStream_t stream, int64_t grains, const float *acc, void *grads, double *sums) {
    const rounding<T> source = {acc, (T *)grads};
    sum_grains(stream, grains, source, sums);
}

template <typename T> static void sum_given(cudaStream_t stream, int64_t grains, const void *grads, double *sums) {
    const reading<T> source = {(const T *)grads};
    sum_grains(stream, grains, source, sums);
}

void sw_cuda_finish_gradient(cudaStream_t stream, const void *args) {
    const sw_finish_gradient *op = (const sw_finish_gradient *)args;
    SW_FOR_TYPE(op->type, finish, stream, op->elems / SW_GRAIN_ELEMS, op->acc, op->grads, op->sums);
}

void sw_cuda_square_sums(cudaStream_t stream, const void *args) {
    const sw_square_sums *op = (const sw_square_sums *)args;
    SW_FOR_TYPE(op->type, sum_given, stream, op->elems / SW_GRAIN_ELEMS, op->grads, op->sums);
}
