/* Grouped products by a warp's fragments. A block computes a tile of C; its terms come through shared memory in chunks,
 * and the next chunk is under way while one is multiplied. The number of an expert's rows is known on the device only,
 * so a grid has a block for every tile that the rows and experts may make: each block finds its tile from the offsets,
 * or has none. No sum is cut, so an expert's results depend on its own operands only. */
#include "kernels/cuda/attention/fragment.cuh"
#include "kernels/cuda/grid.cuh"

enum { TILE = 64, DEPTH = 32, TILE_THREADS = 128, WARP_SIDE = TILE / 2, ROW_TILES = 2 };
static_assert((int)ROW_TILES * (int)SW_FRAGMENT_ROWS == (int)WARP_SIDE, "a warp has a quarter of a tile");
/* Elements between lines in shared memory: along the terms, or along the rows or columns of C. */
enum { ALONG_TERMS = DEPTH + 8, ALONG_SIDE = TILE + 8, TILE_ELEMS = TILE * ALONG_TERMS };
static_assert((int)DEPTH * (int)ALONG_SIDE <= (int)TILE_ELEMS, "a tile has room in either layout");
enum { TILE_VECTORS = TILE * DEPTH / SW_ELEMS / TILE_THREADS };

/* Returns the blocks that nvcc must allow for on a multiprocessor: 168 registers a thread, and 255 in fp32, whose
 * fragments take twice as many. */
template <typename T> static constexpr int least_blocks(void) {
    return sizeof(T) == sizeof(float) ? 2 : 3;
}

/* B is stored as [n,k], or as [k,n]; or C is the gradient of a matrix and both operands are stored by terms. */
typedef enum { BY_COLUMNS, BY_TERMS, OF_MATRIX } product_kind;

namespace {
/* A thread's part of a chunk of an operand, between device memory and shared memory. A line has SIDE elements. */
template <int SIDE> struct chunk {
    float values[TILE_VECTORS][SW_ELEMS];

    static __device__ __forceinline__ int line_of(int v) {
        return ((int)threadIdx.x + v * TILE_THREADS) / (SIDE / SW_ELEMS);
    }
    static __device__ __forceinline__ int column_of(int v) {
        return ((int)threadIdx.x + v * TILE_THREADS) % (SIDE / SW_ELEMS) * SW_ELEMS;
    }
    /* Loads from lines that are `stride` elements apart. Beyond `lines` and `elems` it is zero. */
    template <typename T>
    __device__ __forceinline__ void load(const T *from, int64_t stride, int64_t lines, int64_t elems, bool aligned) {
        SW_UNROLL
        for (int v = 0; v < TILE_VECTORS; v++) {
            const int64_t left = line_of(v) < lines ? elems - column_of(v) : 0;
            sw_load_elems(from + line_of(v) * stride + column_of(v), left, aligned, values[v]);
        }
    }
    template <typename T> __device__ __forceinline__ void store(T *tile) const {
        SW_UNROLL
        for (int v = 0; v < TILE_VECTORS; v++)
            sw_store_whole(tile + line_of(v) * (SIDE + 8) + column_of(v), values[v]);
    }
};

template <typename T> struct operands {
    sw_grouped_gemm shape;
    const int32_t *offset;
    const T *a, *b, *bias;
    void *c;
    int64_t a_stride, c_stride;
    bool aligned; /* every line of an operand begins at a whole vector */
};

/* The tile of a block. A has `rows` rows left and `a` at the first; B has `cols` columns left and `b` at the first. */
template <typename T> struct tile {
    const T *a, *b;
    int64_t a_stride, b_stride;
    int64_t rows, cols, terms;
};
} // namespace

/* Load A from a tile whose lines are terms: A[m][k] = tile[k][m]. */
template <typename T>
static __device__ __forceinline__ void load_a_of_columns(sw_fragment_a<T> *a, const T *tile, int stride) {
    const int lane = sw_lane();
    sw_load_matrices<true>(tile + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8, a->words);
}

static __device__ __forceinline__ void load_a_of_columns(sw_fragment_a<float> *a, const float *tile, int stride) {
    const float *at = tile + sw_lane() % 4 * 2 * stride + sw_lane() / 4;
    for (int i = 0; i < 8; i++)
        a->values[i] = at[(i / 4 * 8 + i % 2) * stride + i / 2 % 2 * 8];
}

/* Multiplies the chunk in shared memory into a warp's sums. */
template <typename T, product_kind KIND>
static __device__ __forceinline__ void multiply_chunk(sw_fragment_c (*c)[WARP_SIDE / SW_FRAGMENT_COLS], const T *a_tile,
                                                      const T *b_tile, int row, int col) {
    SW_UNROLL
    for (int k = 0; k < DEPTH; k += SW_FRAGMENT_DEPTH) {
        sw_fragment_a<T> a[ROW_TILES];
        SW_UNROLL
        for (int m = 0; m < ROW_TILES; m++) {
            const int first = row + m * SW_FRAGMENT_ROWS;
            if constexpr (KIND == OF_MATRIX)
                load_a_of_columns(&a[m], a_tile + k * ALONG_SIDE + first, ALONG_SIDE);
            else
                sw_load_a(&a[m], a_tile + first * ALONG_TERMS + k, ALONG_TERMS);
        }
        SW_UNROLL
        for (int n = 0; n < WARP_SIDE; n += 2 * SW_FRAGMENT_COLS) {
            sw_fragment_b<T> b[2];
            if constexpr (KIND == BY_COLUMNS)
                sw_load_b_of_rows(b, b_tile + (col + n) * ALONG_TERMS + k, ALONG_TERMS);
            else
                sw_load_b_of_columns(b, b_tile + k * ALONG_SIDE + col + n, ALONG_SIDE);
            sw_multiply_all<T, ROW_TILES, WARP_SIDE>(c, n, a, b);
        }
    }
}

/* Loads the chunk from term `term` on. */
template <typename T, product_kind KIND, typename A, typename B>
static __device__ __forceinline__ void load_chunk(const tile<T> &t, int64_t term, bool aligned, A &a, B &b) {
    const int64_t left = t.terms - term;
    if constexpr (KIND == OF_MATRIX)
        a.load(t.a + term * t.a_stride, t.a_stride, left, t.rows, aligned);
    else
        a.load(t.a + term, t.a_stride, t.rows, left, aligned);
    if constexpr (KIND == BY_COLUMNS)
        b.load(t.b + term, t.b_stride, t.cols, left, aligned);
    else
        b.load(t.b + term * t.b_stride, t.b_stride, left, t.cols, aligned);
}

/* Computes a warp's part of a tile. All threads of the block call it. */
template <typename T, product_kind KIND>
static __device__ __forceinline__ void multiply_tile(const tile<T> &t, bool aligned, int row, int col,
                                                     sw_fragment_c (*c)[WARP_SIDE / SW_FRAGMENT_COLS]) {
    SW_SHARED(sw_vector16, a_memory, [TILE_ELEMS * sizeof(T) / sizeof(sw_vector16)]);
    SW_SHARED(sw_vector16, b_memory, [TILE_ELEMS * sizeof(T) / sizeof(sw_vector16)]);
    T *a_tile = (T *)a_memory, *b_tile = (T *)b_memory;
    chunk<KIND == OF_MATRIX ? TILE : DEPTH> a;
    chunk<KIND == BY_COLUMNS ? DEPTH : TILE> b;
    load_chunk<T, KIND>(t, 0, aligned, a, b);
    for (int64_t term = 0; term < t.terms; term += DEPTH) {
        a.store(a_tile);
        b.store(b_tile);
        __syncthreads();
        if (term + DEPTH < t.terms)
            load_chunk<T, KIND>(t, term + DEPTH, aligned, a, b);
        multiply_chunk<T, KIND>(c, a_tile, b_tile, row, col);
        __syncthreads();
    }
}

/* Returns the number of the first tile that an expert may have: one with r rows has at most r / TILE + 1. */
static __device__ __forceinline__ int64_t first_tile(const int32_t *offset, int expert) {
    return (offset[expert] - offset[0]) / TILE + expert;
}

static __device__ __forceinline__ int expert_of_tile(const int32_t *offset, int experts, int64_t tile) {
    int low = 0, high = experts;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (first_tile(offset, middle) <= tile)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Calls write(row, col, value) for each element that the lane has of a warp's part, within the tile's rows and columns.
 */
template <typename T, typename Write>
static __device__ __forceinline__ void write_sums(const sw_fragment_c (*c)[WARP_SIDE / SW_FRAGMENT_COLS],
                                                  const tile<T> &t, int row, int col, const Write &write) {
    SW_UNROLL
    for (int m = 0; m < ROW_TILES; m++) {
        SW_UNROLL
        for (int n = 0; n < WARP_SIDE / SW_FRAGMENT_COLS; n++) {
            SW_UNROLL
            for (int i = 0; i < 4; i++) {
                const int at_row = row + m * SW_FRAGMENT_ROWS + sw_lane() / 4 + i / 2 * 8;
                const int at_col = col + n * SW_FRAGMENT_COLS + sw_lane() % 4 * 2 + i % 2;
                if (at_row < t.rows && at_col < t.cols)
                    write(at_row, at_col, c[m][n].values[i]);
            }
        }
    }
}

/* A block per tile of rows and tile of columns. */
template <typename T, product_kind KIND>
static __global__ void __launch_bounds__(TILE_THREADS, least_blocks<T>())
    rows_kernel(operands<T> of, unsigned col_tiles) {
    const sw_grouped_gemm &s = of.shape;
    const int64_t row_tile = blockIdx.x / col_tiles, first_col = (int64_t)(blockIdx.x % col_tiles) * TILE;
    const int expert = expert_of_tile(of.offset, (int)s.experts, row_tile);
    const int64_t first = of.offset[expert] + (row_tile - first_tile(of.offset, expert)) * TILE;
    if (first >= of.offset[expert + 1])
        return;
    const T *matrix = of.b + expert * s.matrix_stride;
    const tile<T> t = {of.a + first * of.a_stride,
                       KIND == BY_COLUMNS ? matrix + first_col * s.k : matrix + first_col,
                       of.a_stride,
                       KIND == BY_COLUMNS ? s.k : s.n,
                       of.offset[expert + 1] - first,
                       s.n - first_col,
                       s.k};
    const int warp = (int)threadIdx.x / SW_WARP, row = warp / 2 * WARP_SIDE, col = warp % 2 * WARP_SIDE;
    sw_fragment_c c[ROW_TILES][WARP_SIDE / SW_FRAGMENT_COLS] = {};
    multiply_tile<T, KIND>(t, of.aligned, row, col, c);
    const T *bias = of.bias == NULL ? NULL : of.bias + expert * s.bias_stride + first_col;
    const bool is_wide = s.out == SW_F32;
    const int64_t at = first * of.c_stride + first_col;
    write_sums(c, t, row, col, [&](int at_row, int at_col, float value) {
        const int64_t to = at + at_row * of.c_stride + at_col;
        float sum = bias == NULL ? value : value + sw_widen(bias[at_col]);
        if (s.accumulate)
            sum += is_wide ? ((const float *)of.c)[to] : sw_widen(((const T *)of.c)[to]);
        if (is_wide)
            ((float *)of.c)[to] = sum;
        else
            sw_round(sum, (T *)of.c + to);
    });
}

/* A block per tile of a matrix, for each expert. */
template <typename T>
static __global__ void __launch_bounds__(TILE_THREADS, least_blocks<T>())
    matrix_kernel(operands<T> of, unsigned col_tiles) {
    const sw_grouped_gemm &s = of.shape;
    const int64_t first_row = (int64_t)(blockIdx.x / col_tiles) * TILE;
    const int64_t first_col = (int64_t)(blockIdx.x % col_tiles) * TILE, first = of.offset[blockIdx.y];
    const tile<T> t = {of.a + first * of.a_stride + first_row,
                       of.b + first * s.k + first_col,
                       of.a_stride,
                       s.k,
                       s.n - first_row,
                       s.k - first_col,
                       of.offset[blockIdx.y + 1] - first};
    if (t.terms == 0)
        return;
    const int warp = (int)threadIdx.x / SW_WARP, row = warp / 2 * WARP_SIDE, col = warp % 2 * WARP_SIDE;
    sw_fragment_c c[ROW_TILES][WARP_SIDE / SW_FRAGMENT_COLS] = {};
    multiply_tile<T, OF_MATRIX>(t, of.aligned, row, col, c);
    float *to = (float *)of.c + blockIdx.y * s.matrix_stride + first_row * s.k + first_col;
    write_sums(c, t, row, col, [&](int at_row, int at_col, float value) { to[at_row * s.k + at_col] += value; });
}

template <typename T> static void multiply(cudaStream_t stream, const sw_grouped_product *op) {
    const sw_grouped_gemm &s = *op->shape;
    const int64_t a_stride = sw_grouped_a_stride(&s), c_stride = sw_grouped_c_stride(&s);
    const bool aligned = s.n % SW_ELEMS == 0 && s.k % SW_ELEMS == 0 && s.matrix_stride % SW_ELEMS == 0 &&
                         a_stride % SW_ELEMS == 0 && sw_is_aligned(op->a) && sw_is_aligned(op->b);
    const operands<T> of = {s,     op->offset, (const T *)op->a, (const T *)op->b, (const T *)op->bias,
                            op->c, a_stride,   c_stride,         aligned};
    const unsigned along_n = sw_blocks(s.n, TILE), along_k = sw_blocks(s.k, TILE);
    const unsigned row_tiles = (unsigned)(s.rows / TILE + s.experts);
    if (s.weight_gradient)
        SW_LAUNCH(matrix_kernel<T>, dim3(along_n * along_k, (unsigned)s.experts), TILE_THREADS, 0, stream, of, along_k);
    else if (s.transpose_b)
        SW_LAUNCH((rows_kernel<T, BY_COLUMNS>), row_tiles * along_n, TILE_THREADS, 0, stream, of, along_n);
    else
        SW_LAUNCH((rows_kernel<T, BY_TERMS>), row_tiles * along_n, TILE_THREADS, 0, stream, of, along_n);
}

int64_t sw_cuda_grouped_gemm_tiles(const sw_grouped_gemm *shape) {
    const int64_t along_n = (shape->n + TILE - 1) / TILE, along_k = (shape->k + TILE - 1) / TILE;
    return along_n * (shape->weight_gradient ? along_k : shape->rows / TILE + shape->experts);
}

void sw_cuda_grouped_gemm(cudaStream_t stream, const void *args) {
    const sw_grouped_product *op = (const sw_grouped_product *)args;
    SW_FOR_TYPE(op->shape->in, multiply, stream, op);
}
