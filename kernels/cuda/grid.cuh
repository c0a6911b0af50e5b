/* Kernels that pass over memory once. Elements form rows (a flat tensor is one row), and a thread takes several vectors
 * of SW_ELEMS of a row. It loads all of them before it uses the first, so that enough bytes are in flight to keep
 * memory busy. No thread divides: the grid gives its row and column. */
#ifndef SW_KERNELS_CUDA_GRID_CUH
#define SW_KERNELS_CUDA_GRID_CUH

#include "kernels/cuda/elements.cuh"

enum {
    SW_BLOCK_THREADS = 256,
    SW_MOST_GRID_ROWS = 65535, /* CUDA's limit of gridDim.y */
    /* Blocks that nvcc must allow for on a multiprocessor: 80 registers a thread, so that it spills none for more. */
    SW_LEAST_BLOCKS = 3
};

static inline int64_t sw_vectors(int64_t elems) {
    return (elems + SW_ELEMS - 1) / SW_ELEMS;
}

static inline unsigned sw_blocks(int64_t items, int64_t items_per_block) {
    return (unsigned)((items + items_per_block - 1) / items_per_block);
}

/* The blocks of a grid over rows of `threads` threads each, along x, and rows, along y and z, with the layout of a
 * block: blockDim.x threads along a row, a power of two no larger than a row needs, and blockDim.y rows. */
struct sw_row_grid {
    dim3 blocks, block;
};

static inline sw_row_grid sw_row_grid_of(int64_t rows, int64_t threads) {
    unsigned along = SW_BLOCK_THREADS;
    while (along > 1 && along / 2 >= threads)
        along /= 2;
    const unsigned block_rows = SW_BLOCK_THREADS / along, grid_rows = sw_blocks(rows, block_rows);
    const unsigned y = grid_rows < SW_MOST_GRID_ROWS ? grid_rows : (unsigned)SW_MOST_GRID_ROWS;
    return {dim3(sw_blocks(threads, along), y, sw_blocks(grid_rows, y)), dim3(along, block_rows)};
}

/* Op::VECTORS: vectors of a thread. op.load(row, col, count, aligned, held) loads the vector of `count` elements from
 * column `col` on into an Op::held. op.store takes the same arguments, and writes the results of that Op::held. With
 * constants for `count` and `aligned` both are free of bounds checks. */
template <typename Op>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS, SW_LEAST_BLOCKS)
    sw_rows_kernel(int64_t rows, int64_t cols, Op op, bool aligned) {
    const int64_t first = ((int64_t)blockIdx.x * blockDim.x * Op::VECTORS + threadIdx.x) * SW_ELEMS;
    const int64_t step = (int64_t)blockDim.x * SW_ELEMS;
    const int64_t row = ((int64_t)blockIdx.z * gridDim.y + blockIdx.y) * blockDim.y + threadIdx.y;
    if (row >= rows)
        return;
    typename Op::held held[Op::VECTORS];
    if (aligned && first + (Op::VECTORS - 1) * step + SW_ELEMS <= cols) {
        SW_UNROLL
        for (int i = 0; i < Op::VECTORS; i++)
            op.load(row, first + i * step, SW_ELEMS, true, held[i]);
        SW_UNROLL
        for (int i = 0; i < Op::VECTORS; i++)
            op.store(row, first + i * step, SW_ELEMS, true, held[i]);
        return;
    }
    for (int64_t col = first; col < cols && col < first + Op::VECTORS * step; col += step) {
        op.load(row, col, cols - col, aligned, held[0]);
        op.store(row, col, cols - col, aligned, held[0]);
    }
}

/* Runs an op over rows. `aligned`: every row of every tensor begins at a whole vector. */
template <typename Op>
static void sw_for_rows(cudaStream_t stream, int64_t rows, int64_t cols, const Op &op, bool aligned) {
    const int64_t threads = (sw_vectors(cols) + Op::VECTORS - 1) / Op::VECTORS;
    const sw_row_grid grid = sw_row_grid_of(rows, threads);
    SW_LAUNCH(sw_rows_kernel<Op>, grid.blocks, grid.block, 0, stream, rows, cols, op, aligned);
}

/* Tells whether a run has a row. */
static __device__ __forceinline__ bool sw_run_has(const sw_row_run &run, int64_t row) {
    return run.first == NULL || (row >= *run.first && row < *run.end);
}

/* An op on the rows of a run, which only the device knows. */
template <typename Op> struct sw_within {
    enum { VECTORS = Op::VECTORS };
    typedef typename Op::held held;
    Op op;
    sw_row_run run;
    __device__ __forceinline__ void load(int64_t row, int64_t col, int64_t count, bool aligned, held &h) const {
        if (sw_run_has(run, row))
            op.load(row, col, count, aligned, h);
    }
    __device__ __forceinline__ void store(int64_t row, int64_t col, int64_t count, bool aligned, held &h) const {
        if (sw_run_has(run, row))
            op.store(row, col, count, aligned, h);
    }
};

/* Runs `op` on the rows of a run, or on all rows if run.first is NULL. */
template <typename Op>
static void sw_for_run(cudaStream_t stream, const sw_row_run &run, int64_t rows, int64_t cols, const Op &op,
                       bool aligned) {
    if (run.first == NULL)
        sw_for_rows(stream, rows, cols, op, aligned);
    else
        sw_for_rows(stream, rows, cols, sw_within<Op>{op, run}, aligned);
}

#endif
