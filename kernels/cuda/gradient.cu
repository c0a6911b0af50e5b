/* The gradient of a bias, and the end of every gradient: rounds it, and sums the squares of every grain in the order of
 * kernels/device.h. A block has a grain, and each of its threads one of the grain's partial sums. A call has few grains
 * (64 in a chunk of 4 MiB), so a thread loads many of its elements before it adds the first: half a grain is under way
 * on each multiprocessor. */
#include "kernels/cuda/columns.cuh"

#include "core/quant.h"

enum {
    GRAIN_ROUNDS = SW_GRAIN_ELEMS / SW_GRAIN_PARTIAL_SUMS, /* elements of a partial sum */
    ROUNDS_AT_ONCE = 32,
    FOLDED = SW_GRAIN_PARTIAL_SUMS / SW_WARP /* partial sums of a lane of the warp that adds them */
};
static_assert(GRAIN_ROUNDS % ROUNDS_AT_ONCE == 0, "a thread's elements come in whole batches");

/* Adds halves pairwise, by the first warp: a lane folds the sums that are SW_WARP apart, then the lanes fold theirs. */
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
/* Brings a grain's elements from the accumulator and rounds them on the way. */
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

/* Brings a grain's elements as they are. */
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
/* Reads kept gradients in 8 bits as the values that they encode. */
struct reading_8bit {
    typedef float loaded;
    const char *records;
    __device__ __forceinline__ float load(int64_t at) const {
        const int elem = (int)(at & (SW_GRAIN_ELEMS - 1));
        const char *record = records + at / SW_GRAIN_ELEMS * SW_GRADS_8BIT_GRAIN_BYTES;
        return (float)(signed char)record[elem] *
               ((const float *)(const void *)(record + SW_GRAIN_ELEMS))[elem / SW_QUANT_BLOCK_ELEMS];
    }
    __device__ __forceinline__ float value(int64_t, float from) const {
        return from;
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

template <typename T> static void finish(cudaStream_t stream, const sw_finish_gradient *op) {
    const rounding<T> source = {op->acc, (T *)op->grads};
    sum_grains(stream, op->elems / SW_GRAIN_ELEMS, source, op->sums);
}

template <typename T> static void sum_given(cudaStream_t stream, const sw_square_sums *op) {
    const reading<T> source = {(const T *)op->grads};
    sum_grains(stream, op->elems / SW_GRAIN_ELEMS, source, op->sums);
}

void sw_cuda_finish_gradient(cudaStream_t stream, const void *args) {
    const sw_finish_gradient *op = (const sw_finish_gradient *)args;
    if (op->format == SW_GRADS_8BIT) {
        const reading_8bit source = {(const char *)op->grads};
        sw_cuda_quantize_kept(stream, op->elems / SW_GRAIN_ELEMS, op->acc, op->grads);
        sum_grains(stream, op->elems / SW_GRAIN_ELEMS, source, op->sums);
        return;
    }
    SW_FOR_TYPE(op->type, finish, stream, op);
}

void sw_cuda_square_sums(cudaStream_t stream, const void *args) {
    const sw_square_sums *op = (const sw_square_sums *)args;
    SW_FOR_TYPE(op->type, sum_given, stream, op);
}

namespace {
template <typename T> struct gradients {
    const T *dy;
    int64_t cols;
    bool aligned;
    __device__ __forceinline__ void load(int64_t row, int64_t col, int64_t count, float out[1][SW_ELEMS]) const {
        sw_load_elems(dy + row * cols + col, count, aligned, out[0]);
    }
};
} // namespace

template <typename T> static void bias_gradient(cudaStream_t stream, const sw_bias_gradient *op) {
    const gradients<T> source = {(const T *)op->dy, op->cols, op->cols % SW_ELEMS == 0 && sw_is_aligned(op->dy)};
    sw_sum_columns<gradients<T>, 1, true>(stream, op->rows, op->cols, source, op->acc, op->acc);
}

void sw_cuda_bias_gradient(cudaStream_t stream, const void *args) {
    const sw_bias_gradient *op = (const sw_bias_gradient *)args;
    SW_FOR_TYPE(op->type, bias_gradient, stream, op);
}
