/* Sums over a row that a group of threads shares: a warp for short rows, a block for long ones. A block has
 * SW_BLOCK_THREADS threads in both cases, threadIdx.y telling its rows apart. */
#ifndef SW_KERNELS_CUDA_ROWS_CUH
#define SW_KERNELS_CUDA_ROWS_CUH

#include "kernels/cuda/grid.cuh"

enum {
    SW_SHORT_ROW_COLUMNS = 1024, /* up to here a warp has at most four vectors for each thread */
    SW_ROW_BLOCKS = 4            /* as SW_LEAST_BLOCKS: 64 registers a thread */
};

static __device__ __forceinline__ float sw_warp_sum(float value) {
    for (int distance = SW_WARP / 2; distance > 0; distance /= 2)
        value += __shfl_xor_sync(SW_ALL_LANES, value, distance);
    return value;
}

/* Returns the sum over the THREADS threads of a row, the same bits in each. */
template <int THREADS> static __device__ __forceinline__ float sw_row_sum(float value) {
    value = sw_warp_sum(value);
    if (THREADS == SW_WARP)
        return value;
    SW_SHARED(float, sums, [THREADS / SW_WARP]);
    if (threadIdx.x % SW_WARP == 0)
        sums[threadIdx.x / SW_WARP] = value;
    __syncthreads();
    float total = 0.0f;
    for (int i = 0; i < THREADS / SW_WARP; i++)
        total += sums[i];
    __syncthreads();
    return total;
}

/* The two inputs whose sum is the row that a kernel normalises, and the buffer for that sum. If `sum` is NULL, the row
 * is already in memory and nothing is added. */
template <typename T> struct sw_addends {
    const T *a, *b;
    T *sum;
};

/* Adds the row of `cols` elements from `at`, by the THREADS threads that share it. Each thread writes what it reads
 * later. */
template <int THREADS, typename T>
static __device__ __forceinline__ void sw_add_row(const sw_addends<T> &add, int64_t at, int64_t cols, bool aligned) {
    if (add.sum == NULL)
        return;
    const T *a = add.a + at, *b = add.b + at;
    T *sum = add.sum + at;
    enum { VECTORS = 2, STEP = THREADS * SW_ELEMS };
    for (int64_t first = threadIdx.x * SW_ELEMS; first < cols; first += VECTORS * STEP) {
        float left[VECTORS][SW_ELEMS], right[VECTORS][SW_ELEMS];
        SW_UNROLL
        for (int v = 0; v < VECTORS; v++) {
            const int64_t col = first + v * STEP;
            sw_load_elems(a + col, cols - col, aligned, left[v]);
            sw_load_elems(b + col, cols - col, aligned, right[v]);
        }
        SW_UNROLL
        for (int v = 0; v < VECTORS; v++) {
            const int64_t col = first + v * STEP;
            for (int i = 0; i < SW_ELEMS; i++)
                left[v][i] += right[v][i];
            sw_store_elems(sum + col, cols - col, aligned, left[v]);
        }
    }
}

/* SW_FOR_ROWS(kernel, T, rows, cols, stream, arguments...): a warp or a block for each row. */
#define SW_FOR_ROWS(kernel, T, rows, cols, stream, ...)                                                                \
    do {                                                                                                               \
        if ((cols) <= SW_SHORT_ROW_COLUMNS)                                                                            \
            SW_LAUNCH((kernel<T, SW_WARP>), sw_blocks(rows, SW_BLOCK_THREADS / SW_WARP),                               \
                      dim3(SW_WARP, SW_BLOCK_THREADS / SW_WARP), 0, stream, __VA_ARGS__);                              \
        else                                                                                                           \
            SW_LAUNCH((kernel<T, SW_BLOCK_THREADS>), sw_blocks(rows, 1), dim3(SW_BLOCK_THREADS, 1), 0, stream,         \
                      __VA_ARGS__);                                                                                    \
    } while (0)

template <int THREADS> static __device__ __forceinline__ int64_t sw_row_of_thread(void) {
    return (int64_t)blockIdx.x * (SW_BLOCK_THREADS / THREADS) + threadIdx.y;
}

/* Returns the row of a thread, counted from the last to the first: a kernel that then walks the rows in order finds the
 * first ones in the second-level cache. Negative where a block has more threads than rows are left. */
template <int THREADS> static __device__ __forceinline__ int64_t sw_row_from_end(int64_t rows) {
    return rows - 1 - sw_row_of_thread<THREADS>();
}

#endif
