/* Embeddings. In the backward pass a block owns a row of the gradient for some columns: it looks through all tokens for
 * those that have the row, in order, and adds theirs. So nothing is added by two blocks, and the order is fixed. */
#include "kernels/cuda/grid.cuh"

/* A row's position in its document. */
static __device__ __forceinline__ int64_t position_of(int64_t row, int64_t seq, const int32_t *document_start) {
    return row % seq - (document_start == NULL ? 0 : document_start[row]);
}

template <typename T>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    forward_kernel(int64_t rows, int64_t seq, int64_t cols, const int32_t *tokens, const int32_t *document_start,
                   const T *table, const T *positions, T *out, bool aligned) {
    const int64_t vectors = (cols + SW_ELEMS - 1) / SW_ELEMS, index = sw_thread_of_grid();
    const int64_t row = index / vectors, col = index % vectors * SW_ELEMS;
    if (row >= rows)
        return;
    float values[SW_ELEMS], places[SW_ELEMS];
    sw_load_elems(table + tokens[row] * cols + col, cols - col, aligned, values);
    if (positions != NULL) {
        sw_load_elems(positions + position_of(row, seq, document_start) * cols + col, cols - col, aligned, places);
        for (int i = 0; i < SW_ELEMS; i++)
            values[i] += places[i];
    }
    sw_store_elems(out + row * cols + col, cols - col, aligned, values);
}

template <typename T>
static void forward(cudaStream_t stream, int64_t rows, int64_t seq, int64_t cols, const int32_t *tokens,
                    const int32_t *document_start, const void *table, const void *positions, void *out) {
    const bool aligned = cols % SW_ELEMS == 0 && sw_is_aligned(table) && sw_is_aligned(positions) && sw_is_aligned(out);
    SW_LAUNCH(forward_kernel<T>, sw_blocks(rows * sw_vectors(cols), SW_BLOCK_THREADS), SW_BLOCK_THREADS, 0, stream,
              rows, seq, cols, tokens, document_start, (const T *)table, (const T *)positions, (T *)out, aligned);
}

void sw_cuda_embedding_forward(cudaStream_t stream, sw_dtype type, int64_t batch, int64_t seq, int64_t cols,
                               const int32_t *tokens, const int32_t *document_start, const void *table,
                               const void *positions, void *out) {
    if (batch * seq > 0)
        SW_FOR_TYPE(type, forward, stream, batch * seq, seq, cols, tokens, document_start, table, positions, out);
}

namespace {
/* The row of the table, or of the positions, that row i of d_out is added to. */
struct table_rows {
    const int32_t *tokens;
    __device__ __forceinline__ int64_t of(int64_t i) const {
        return tokens[i];
    }
};
struct position_rows {
    int64_t seq;
    const int32_t *document_start;
    __device__ __forceinline__ int64_t of(int64_t i) const {
        return position_of(i, seq, document_start);
    }
};
} // namespace

/* Whether any row before `end` is added to the same place as row `end`, whose block then has nothing to do. */
template <typename Rows> static __device__ __forceinline__ bool seen_before(const Rows &rows, int64_t end) {
    SW_SHARED(unsigned, votes, [SW_BLOCK_THREADS / SW_WARP]);
    const int64_t wanted = rows.of(end);
    bool seen = false;
    for (int64_t first = 0; first < end && !seen; first += SW_BLOCK_THREADS) {
        const int64_t i = first + threadIdx.x;
        const unsigned found = __ballot_sync(SW_ALL_LANES, i < end && rows.of(i) == wanted);
        if (threadIdx.x % SW_WARP == 0)
            votes[threadIdx.x / SW_WARP] = found;
        __syncthreads();
        for (int w = 0; w < SW_BLOCK_THREADS / SW_WARP; w++)
            seen = seen || votes[w] != 0;
        __syncthreads();
    }
    return seen;
}

/* A block for each row of d_out and SW_BLOCK_THREADS vectors of columns; the block of the first row that goes to a
 * place takes all that go there. */
template <typename T, typename Rows>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    gather_kernel(Rows rows, int64_t count, int64_t cols, const T *d_out, float *acc, bool aligned) {
    SW_SHARED(int64_t, matches, [SW_BLOCK_THREADS]);
    SW_SHARED(unsigned, votes, [SW_BLOCK_THREADS / SW_WARP]);
    const int64_t owner = blockIdx.x, wanted = rows.of(owner);
    if (seen_before(rows, owner))
        return;
    const int64_t col = ((int64_t)blockIdx.y * SW_BLOCK_THREADS + threadIdx.x) * SW_ELEMS;
    const int lane = (int)threadIdx.x % SW_WARP, warp = (int)threadIdx.x / SW_WARP;
    float sums[SW_ELEMS], values[SW_ELEMS];
    sw_load_elems(acc + wanted * cols + col, cols - col, aligned, sums);
    for (int64_t first = owner; first < count; first += SW_BLOCK_THREADS) {
        const int64_t i = first + threadIdx.x;
        const bool match = i < count && rows.of(i) == wanted;
        const unsigned found = __ballot_sync(SW_ALL_LANES, match);
        if (lane == 0)
            votes[warp] = found;
        __syncthreads();
        int before = __popc(found & ((1u << lane) - 1u)), total = 0;
        for (int w = 0; w < SW_BLOCK_THREADS / SW_WARP; w++) {
            before += w < warp ? __popc(votes[w]) : 0;
            total += __popc(votes[w]);
        }
        if (match)
            matches[before] = i;
        __syncthreads();
        for (int m = 0; m < total; m++) {
            sw_load_elems(d_out + matches[m] * cols + col, cols - col, aligned, values);
            for (int e = 0; e < SW_ELEMS; e++)
                sums[e] += values[e];
        }
        /* The next votes' barrier comes before the next matches are written. */
    }
    sw_store_elems(acc + wanted * cols + col, cols - col, aligned, sums);
}

template <typename T, typename Rows>
static void gather(cudaStream_t stream, Rows rows, int64_t count, int64_t cols, const void *d_out, float *acc) {
    const bool aligned = cols % SW_ELEMS == 0 && sw_is_aligned(d_out) && sw_is_aligned(acc);
    SW_LAUNCH((gather_kernel<T, Rows>), dim3((unsigned)count, sw_blocks(sw_vectors(cols), SW_BLOCK_THREADS)),
              SW_BLOCK_THREADS, 0, stream, rows, count, cols, (const T *)d_out, acc, aligned);
}

template <typename T>
static void backward(cudaStream_t stream, int64_t batch, int64_t seq, int64_t cols, const int32_t *tokens,
                     const int32_t *document_start, const void *d_out, float *table_acc, float *positions_acc) {
    gather<T, table_rows>(stream, table_rows{tokens}, batch * seq, cols, d_out, table_acc);
    if (positions_acc != NULL)
        gather<T, position_rows>(stream, position_rows{seq, document_start}, batch * seq, cols, d_out, positions_acc);
}

void sw_cuda_embedding_backward(cudaStream_t stream, sw_dtype type, int64_t batch, int64_t seq, int64_t cols,
                                const int32_t *tokens, const int32_t *document_start, const void *d_out,
                                float *table_acc, float *positions_acc) {
    if (batch * seq > 0)
        SW_FOR_TYPE(type, backward, stream, batch, seq, cols, tokens, document_start, d_out, table_acc, positions_acc);
}
