/* Embeddings. In the backward pass a block owns every table row of a bucket, row number modulo BUCKETS, for a strip of
 * columns. It looks through all tokens once and adds the rows of d_out that are its own, in order, so nothing is added
 * by two blocks and the order is fixed. The cost is linear in the tokens: at 3,584 columns the looking reads 8 KiB of
 * cache a token, where the gradients move 35 KiB of memory. Rows that go to one place are added one after the other,
 * ROWS_AT_ONCE of them under way, which bounds how fast a text of one token can be. */
#include "kernels/cuda/grid.cuh"

/* Returns the number of a row within the part of the table that is here, or -1. */
static __device__ __forceinline__ int64_t row_of(sw_table_part part, int64_t row) {
    const int64_t at = row - part.first;
    return part.rows == 0 || (at >= 0 && at < part.rows) ? at : -1;
}

/* Returns a row's position in its document. */
static __device__ __forceinline__ int64_t position_of(int64_t row, int64_t seq, const int32_t *document_start) {
    return row % seq - (document_start == NULL ? 0 : document_start[row]);
}

namespace {
template <typename T> struct looking_up {
    enum { VECTORS = 2 };
    struct held {
        float values[SW_ELEMS], positions[SW_ELEMS];
    };
    int64_t seq, cols;
    const int32_t *tokens, *document_start;
    const T *table, *positions;
    T *out;
    sw_table_part table_part, positions_part;
    float scale;
    /* A row that another has counts as zeros. */
    __device__ __forceinline__ void load_row(const T *from, int64_t row, int64_t col, int64_t count, bool aligned,
                                             float *values) const {
        for (int i = 0; i < SW_ELEMS && row < 0; i++)
            values[i] = 0.0f;
        if (row >= 0)
            sw_load_elems(from + row * cols + col, count, aligned, values);
    }
    __device__ __forceinline__ void load(int64_t row, int64_t col, int64_t count, bool aligned, held &h) const {
        load_row(table, row_of(table_part, tokens[row]), col, count, aligned, h.values);
        if (positions != NULL)
            load_row(positions, row_of(positions_part, position_of(row, seq, document_start)), col, count, aligned,
                     h.positions);
    }
    __device__ __forceinline__ void store(int64_t row, int64_t col, int64_t count, bool aligned, held &h) const {
        for (int i = 0; i < SW_ELEMS; i++)
            h.values[i] *= scale;
        for (int i = 0; i < SW_ELEMS && positions != NULL; i++)
            h.values[i] += h.positions[i];
        sw_store_elems(out + row * cols + col, count, aligned, h.values);
    }
};
} // namespace

template <typename T> static void forward(cudaStream_t stream, const sw_embedding_forward *op) {
    const bool aligned =
        op->cols % SW_ELEMS == 0 && sw_is_aligned(op->table) && sw_is_aligned(op->positions) && sw_is_aligned(op->out);
    const looking_up<T> map = {op->seq,
                               op->cols,
                               op->tokens,
                               op->document_start,
                               (const T *)op->table,
                               (const T *)op->positions,
                               (T *)op->out,
                               op->table_part,
                               op->positions_part,
                               sw_embedding_scale(op->scale)};
    sw_for_rows(stream, op->batch * op->seq, op->cols, map, aligned);
}

void sw_cuda_embedding_forward(cudaStream_t stream, const void *args) {
    const sw_embedding_forward *op = (const sw_embedding_forward *)args;
    if (op->batch * op->seq > 0)
        SW_FOR_TYPE(op->type, forward, stream, op);
}

/* A power of two: with four strips, about as many blocks as a large GPU holds at once. Tests have fewer. */
#ifndef SW_CUDA_BUCKETS
#define SW_CUDA_BUCKETS 512
#endif
enum {
    BUCKETS = SW_CUDA_BUCKETS,
    STRIP_THREADS = 128, /* 1,024 columns */
    STRIP_WARPS = STRIP_THREADS / SW_WARP,
    LOOKS = 8, /* tokens that a thread looks at before the block adds the rows that were found */
    WINDOW = LOOKS * STRIP_THREADS,
    ROWS_AT_ONCE = 4, /* rows of d_out under way */
    STRIP_BLOCKS = 5  /* as SW_LEAST_BLOCKS: 96 registers a thread */
};

namespace {
/* The targets of a gather: of(i) returns the row of the table, or of the positions, that row i of d_out is added
 * to, or -1. */
struct table_rows {
    const int32_t *tokens;
    sw_table_part part;
    __device__ __forceinline__ int32_t of(int64_t i) const {
        return (int32_t)row_of(part, tokens[i]);
    }
};
struct position_rows {
    int64_t seq;
    const int32_t *document_start;
    sw_table_part part;
    __device__ __forceinline__ int32_t of(int64_t i) const {
        return (int32_t)row_of(part, position_of(i, seq, document_start));
    }
};

/* Entries of a window for the bucket, in order: rows of d_out, counted from the window's first, and where they go. */
struct window {
    int32_t from[WINDOW], to[WINDOW];
    unsigned votes[LOOKS][STRIP_WARPS]; /* the lanes of each warp that found a row */
};
} // namespace

/* Finds the bucket's rows among those from `first` on, and returns how many they are. All threads of the block call it,
 * and may read `found` afterwards until they call it again. */
template <typename Rows>
static __device__ __forceinline__ int find_rows(const Rows &rows, int64_t first, int64_t count, window &found) {
    const int thread = (int)threadIdx.x, lane = thread % SW_WARP, warp = thread / SW_WARP;
    int32_t to[LOOKS];
    SW_UNROLL
    for (int look = 0; look < LOOKS; look++) {
        const int64_t i = first + look * STRIP_THREADS + thread;
        to[look] = i < count ? rows.of(i) : -1;
    }
    SW_UNROLL
    for (int look = 0; look < LOOKS; look++) {
        const unsigned vote = __ballot_sync(SW_ALL_LANES, to[look] >= 0 && to[look] % BUCKETS == (int)blockIdx.x);
        if (lane == 0)
            found.votes[look][warp] = vote;
    }
    __syncthreads();
    int total = 0;
    SW_UNROLL
    for (int look = 0; look < LOOKS; look++) {
        for (int w = 0; w < STRIP_WARPS; w++) {
            const unsigned vote = found.votes[look][w];
            const int at = total + __popc(vote & ((1u << lane) - 1u));
            if (w == warp && (vote >> lane & 1u) != 0) {
                found.from[at] = look * STRIP_THREADS + thread;
                found.to[at] = to[look];
            }
            total += __popc(vote);
        }
    }
    __syncthreads();
    return total;
}

namespace {
/* A vector of the gradient that is being added to: `row` of the accumulator, -1 for none. */
struct open_row {
    int64_t row;
    float sums[SW_ELEMS];
};
} // namespace

/* A grid of BUCKETS times strips of columns. Rows that go to the same place one after the other are added in registers;
 * a row that is left is in memory before the same thread may come to it again. */
template <typename T, typename Rows>
static __global__ void __launch_bounds__(STRIP_THREADS, STRIP_BLOCKS)
    gather_kernel(Rows rows, int64_t count, int64_t cols, const T *d_out, float scale, float *acc, bool aligned) {
    SW_SHARED(window, found, [1]);
    const int64_t col = ((int64_t)blockIdx.y * STRIP_THREADS + threadIdx.x) * SW_ELEMS, left = cols - col;
    open_row open = {-1, {}};
    for (int64_t first = 0; first < count; first += WINDOW) {
        const int total = find_rows(rows, first, count, found[0]);
        for (int m = 0; m < total; m += ROWS_AT_ONCE) {
            float values[ROWS_AT_ONCE][SW_ELEMS];
            SW_UNROLL
            for (int r = 0; r < ROWS_AT_ONCE; r++) {
                if (m + r < total)
                    sw_load_elems(d_out + (first + found[0].from[m + r]) * cols + col, left, aligned, values[r]);
            }
            SW_UNROLL
            for (int r = 0; r < ROWS_AT_ONCE; r++) {
                if (m + r >= total)
                    continue;
                const int64_t row = found[0].to[m + r];
                if (row != open.row) {
                    if (open.row >= 0)
                        sw_store_elems(acc + open.row * cols + col, left, aligned, open.sums);
                    open.row = row;
                    sw_load_elems(acc + row * cols + col, left, aligned, open.sums);
                }
                for (int e = 0; e < SW_ELEMS; e++)
                    open.sums[e] += values[r][e] * scale;
            }
        }
        /* The next window's first barrier comes before its rows are written. */
    }
    if (open.row >= 0)
        sw_store_elems(acc + open.row * cols + col, left, aligned, open.sums);
}

template <typename T, typename Rows>
static void gather(cudaStream_t stream, Rows rows, int64_t count, int64_t cols, const void *d_out, float scale,
                   float *acc) {
    const bool aligned = cols % SW_ELEMS == 0 && sw_is_aligned(d_out) && sw_is_aligned(acc);
    SW_LAUNCH((gather_kernel<T, Rows>), dim3(BUCKETS, sw_blocks(sw_vectors(cols), STRIP_THREADS)), STRIP_THREADS, 0,
              stream, rows, count, cols, (const T *)d_out, scale, acc, aligned);
}

template <typename T> static void backward(cudaStream_t stream, const sw_embedding_backward *op) {
    const int64_t count = op->batch * op->seq;
    gather<T>(stream, table_rows{op->tokens, op->table_part}, count, op->cols, op->d_out, sw_embedding_scale(op->scale),
              op->table_acc);
    if (op->positions_acc != NULL)
        gather<T>(stream, position_rows{op->seq, op->document_start, op->positions_part}, count, op->cols, op->d_out,
                  1.0f, op->positions_acc);
}

void sw_cuda_embedding_backward(cudaStream_t stream, const void *args) {
    const sw_embedding_backward *op = (const sw_embedding_backward *)args;
    if (op->batch * op->seq > 0)
        SW_FOR_TYPE(op->type, backward, stream, op);
}
