/* Sums over rows for every column, in row order. A block owns a strip of columns and takes chunks of rows: all its
 * threads bring terms into shared memory, from where one thread for each column and sum adds them one after the other,
 * while the others' next loads are under way. So memory is read by many and sums have the order of a plain loop. */
#ifndef SW_KERNELS_CUDA_COLUMNS_CUH
#define SW_KERNELS_CUDA_COLUMNS_CUH

#include "kernels/cuda/grid.cuh"
#include "kernels/tiling.h"

enum {
    SW_STRIP_COLUMNS = 16, /* 32 bytes of a 16-bit type: a whole sector of memory */
    SW_STRIP_VECTORS = SW_STRIP_COLUMNS / SW_ELEMS,
    SW_CHUNK_ROWS = 256,
    SW_STRIP_THREADS = SW_CHUNK_ROWS * SW_STRIP_VECTORS
};
static_assert(SW_CHUNK_ROWS % SW_BIAS_TILE_ROWS == 0, "a tile of rows lies within a chunk");

/* Adds `rows` terms of a lane's column to an accumulator, one by one. Terms are read in batches, so that only additions
 * wait for each other. */
static __device__ __forceinline__ float sw_add_terms(const float (*terms)[SW_STRIP_COLUMNS], int column, int rows,
                                                     float acc) {
    enum { BATCH = 32 };
    int row = 0;
    for (; row + BATCH <= rows; row += BATCH) {
        float held[BATCH];
        SW_UNROLL
        for (int i = 0; i < BATCH; i++)
            held[i] = terms[row + i][column];
        SW_UNROLL
        for (int i = 0; i < BATCH; i++)
            acc += held[i];
    }
    for (; row < rows; row++)
        acc += terms[row][column];
    return acc;
}

/* Adds terms in tiles that are summed apart, by a whole warp: a lane of each half sums every second tile, so that four
 * sums are under way at once, and the lower half adds them in their order. */
static __device__ __forceinline__ float sw_add_tiles(const float (*terms)[SW_STRIP_COLUMNS], int rows, float acc) {
    enum { HALVES = SW_WARP / SW_STRIP_COLUMNS, PAIRS = SW_CHUNK_ROWS / SW_BIAS_TILE_ROWS / HALVES };
    static_assert(HALVES == 2 && SW_CHUNK_ROWS % (HALVES * SW_BIAS_TILE_ROWS) == 0, "halves have as many tiles");
    const int column = (int)threadIdx.x % SW_STRIP_COLUMNS, half = (int)threadIdx.x % SW_WARP / SW_STRIP_COLUMNS;
    float sums[PAIRS] = {};
    SW_UNROLL
    for (int row = 0; row < SW_BIAS_TILE_ROWS; row++) {
        for (int pair = 0; pair < PAIRS; pair++) {
            const int at = (pair * HALVES + half) * SW_BIAS_TILE_ROWS + row;
            if (at < rows)
                sums[pair] += terms[at][column];
        }
    }
    for (int pair = 0; pair < PAIRS; pair++) {
        const int first = pair * HALVES * SW_BIAS_TILE_ROWS;
        const float second = __shfl_xor_sync(SW_ALL_LANES, sums[pair], SW_STRIP_COLUMNS);
        acc = first < rows ? acc + sums[pair] : acc;
        acc = first + SW_BIAS_TILE_ROWS < rows ? acc + second : acc;
    }
    return acc;
}

/* Sums columns of a source: Source::load(row, col, count, out[SUMS][SW_ELEMS]) gives the terms of up to SW_ELEMS
 * columns of a row. */
template <typename Source, int SUMS, bool TILED>
static __global__ void __launch_bounds__(SW_STRIP_THREADS)
    sw_columns_kernel(int64_t rows, int64_t cols, Source source, float *acc0, float *acc1) {
    SW_SHARED(float, terms, [SUMS][SW_CHUNK_ROWS][SW_STRIP_COLUMNS]);
    const int row = threadIdx.x / SW_STRIP_VECTORS, column = threadIdx.x % SW_STRIP_VECTORS * SW_ELEMS;
    const int64_t strip = (int64_t)blockIdx.x * SW_STRIP_COLUMNS, left = cols - strip - column;
    const int sum = threadIdx.x / SW_WARP, owned = threadIdx.x % SW_WARP;
    const bool adds = sum < SUMS && owned < SW_STRIP_COLUMNS && strip + owned < cols;
    float *acc = (sum == 0 ? acc0 : acc1) + strip + owned;
    float total = adds ? *acc : 0.0f, loaded[SUMS][SW_ELEMS] = {};
    if (row < rows && left > 0)
        source.load(row, strip + column, left, loaded);
    for (int64_t first = 0; first < rows; first += SW_CHUNK_ROWS) {
        for (int s = 0; s < SUMS; s++) {
            for (int i = 0; i < SW_ELEMS; i++)
                terms[s][row][column + i] = loaded[s][i];
        }
        __syncthreads();
        if (first + SW_CHUNK_ROWS + row < rows && left > 0)
            source.load(first + SW_CHUNK_ROWS + row, strip + column, left, loaded);
        const int there = rows - first < SW_CHUNK_ROWS ? (int)(rows - first) : (int)SW_CHUNK_ROWS;
        if constexpr (TILED)
            total = sum < SUMS ? sw_add_tiles(terms[sum], there, total) : total;
        else if (adds)
            total = sw_add_terms(terms[sum], owned, there, total);
        __syncthreads();
    }
    if (adds)
        *acc = total;
}

template <typename Source, int SUMS, bool TILED>
static void sw_sum_columns(cudaStream_t stream, int64_t rows, int64_t cols, Source source, float *acc0, float *acc1) {
    SW_LAUNCH((sw_columns_kernel<Source, SUMS, TILED>), sw_blocks(cols, SW_STRIP_COLUMNS), SW_STRIP_THREADS, 0, stream,
              rows, cols, source, acc0, acc1);
}

#endif
