/* Helpers that the attention kernels share. A block owns a tile of rows of one head, 16 for each warp, and streams
 * tiles of the other side through shared memory; scores live in registers only. */
#ifndef SW_KERNELS_CUDA_ATTENTION_ATTENTION_CUH
#define SW_KERNELS_CUDA_ATTENTION_ATTENTION_CUH

#include "kernels/cuda/attention/fragment.cuh"
#include "kernels/cuda/grid.cuh"

#define SW_LOG2_E 1.44269504088896341f
#define SW_LN_2 0.693147180559945309f

/* Shared memory that a block may have on every GPU of 8.0 or newer. */
enum { SW_MOST_SHARED_BYTES = 99 << 10 };

/* Tiles by the bytes of a row. A warp has `warp_tiles` times 16 rows: two where its sums of 128 columns fit in
 * registers, so that each fragment of the streamed side which it loads feeds two products. Every kernel takes at most
 * 255 registers a thread, so two blocks of four warps share a multiprocessor if its shared memory holds both, and one
 * computes while the other waits. SMALL tiles are for GPUs whose shared memory does not hold both: a warp has 16 rows,
 * and keeps the rows of one operand in registers. The choice does not change the bits of a result, because each row is
 * summed in the same order. Rows are padded: a swizzle would save a sixteenth of the shared memory for more address
 * arithmetic. */
template <typename T, int DIM, bool SMALL = false> struct sw_attention_tiles {
    static constexpr int row_bytes = DIM * (int)sizeof(T);
    static constexpr int stride = DIM + 16 / (int)sizeof(T); /* in elements; rows begin in different banks */
    static constexpr int warp_tiles = sizeof(T) == 2 && DIM <= 128 && !SMALL ? 2 : 1;
    static constexpr int warp_rows = warp_tiles * SW_FRAGMENT_ROWS;
    /* Forward: queries are rows, keys are streamed. */
    static constexpr int forward_rows = 4 * warp_rows;
    static constexpr int forward_threads = 4 * SW_WARP;
    static constexpr int forward_streamed = row_bytes <= 256 ? 64 : row_bytes <= 512 ? 32 : 16;
    /* The gradients of queries: queries are rows, keys are streamed. */
    static constexpr int queries_warps = row_bytes <= 512 ? 4 : 2;
    static constexpr int queries_rows = queries_warps * warp_rows;
    static constexpr int queries_threads = queries_warps * SW_WARP;
    static constexpr int queries_streamed = row_bytes <= (SMALL ? 256 : 128) ? 32 : 16;
    /* The gradients of keys and values: keys are rows, which two warps share, and queries are streamed. */
    static constexpr int keys_pairs = row_bytes <= 512 ? 2 : 1;
    static constexpr int keys_rows = keys_pairs * warp_rows;
    static constexpr int keys_threads = keys_pairs * 2 * SW_WARP;
    static constexpr int keys_streamed = row_bytes <= 256 ? 32 : 16;
};

/* Small tiles exist where this is true. In 16 bits rows of 64 columns need none, and sums of 256 columns leave no
 * registers for an operand. In fp32 the shuffles of products bind, not the blocks. */
template <typename T, int DIM> constexpr bool sw_has_small_tiles = sizeof(T) == 2 && DIM == 128;

/* Calls function<T, DIM, SMALL>(arguments...). Tiles are small if there are small ones and the current GPU cannot hold
 * two blocks with large tiles, which take `bytes` of dynamic shared memory each. */
#define SW_FOR_TILES(T, DIM, bytes, function, ...)                                                                     \
    (sw_two_blocks_fit(bytes) ? function<T, DIM, false>(__VA_ARGS__)                                                   \
                              : function<T, DIM, sw_has_small_tiles<T, DIM>>(__VA_ARGS__))

/* Returns, on the host, the shape for a kernel, in which head_stride is never 0. */
static inline sw_attention sw_kernel_shape(const sw_attention *shape) {
    sw_attention of_kernel = *shape;
    of_kernel.head_stride = sw_attention_head_stride(shape);
    return of_kernel;
}

/* Returns a head's slope of ALiBi (sw_alibi_slope) in units of scores that are yet to be scaled. */
static __device__ __forceinline__ float sw_raw_slope(const sw_attention &shape, int head) {
    if (shape.alibi_heads == 0)
        return 0.0f;
    const int heads = (int)shape.alibi_heads, at = (int)shape.alibi_first + head;
    int power = 1;
    while (2 * power <= heads)
        power *= 2;
    const int steps = at < power ? 2 * (at + 1) : 2 * (at - power) + 1;
    return exp2f(-4.0f * (float)steps / (float)power) / shape.scale;
}

/* One head of one sequence: where its rows begin. */
template <typename T> struct sw_head_rows {
    const T *from;
    int64_t stride, seq;
    int head_dim;
    bool aligned;
};

template <typename T>
static __device__ __forceinline__ sw_head_rows<T> sw_head_of(const T *tensor, int64_t stride, int64_t seq,
                                                             int64_t batch, int64_t head, const sw_attention &shape,
                                                             bool aligned) {
    sw_head_rows<T> rows;
    rows.from = tensor + batch * seq * stride + head * shape.head_dim;
    rows.stride = stride;
    rows.seq = seq;
    rows.head_dim = (int)shape.head_dim;
    rows.aligned = aligned;
    return rows;
}

/* Returns a head of queries, keys or values. */
template <typename T>
static __device__ __forceinline__ sw_head_rows<T> sw_input_head_of(const T *tensor, int64_t stride, int64_t seq,
                                                                   int64_t batch, int64_t head,
                                                                   const sw_attention &shape, bool aligned) {
    sw_head_rows<T> rows = sw_head_of(tensor, stride, seq, batch, 0, shape, aligned);
    rows.from += head * shape.head_stride;
    return rows;
}

/* The rows of a block: the first one, its head, its sequence, and the slope of the head's biases (sw_raw_slope). Its 16
 * bytes are read from shared memory at once. */
struct alignas(16) sw_block_rows {
    int first, head, batch;
    float slope;
};

/* The block's tile of `rows` queries of one of `heads`. The last queries see the most keys, so the last tiles of all
 * heads and sequences start first, and short tiles fill the gaps at the end. A grid has less than 2^31 blocks. */
static __device__ __forceinline__ sw_block_rows sw_last_rows_first(const sw_attention &shape, int64_t heads, int rows) {
    const unsigned tiles = (unsigned)((shape.seq + rows - 1) / rows), each = (unsigned)(heads * shape.batch);
    const unsigned tile = tiles - 1 - blockIdx.x / each, row = blockIdx.x % each;
    const int head = (int)(row % (unsigned)heads);
    const sw_block_rows rows_at = {(int)tile * rows, head, (int)(row / (unsigned)heads), sw_raw_slope(shape, head)};
    return rows_at;
}

/* How the threads of a block share a tile that is brought: 16 bytes of a row each. */
template <typename T, int DIM, int THREADS> struct sw_pieces {
    static constexpr int elems = 16 / (int)sizeof(T), row = DIM / elems, rows = THREADS / row;
    static_assert(THREADS % row == 0, "a thread brings pieces of one column");
};

/* Returns the address of the thread's piece of row `first`, from which sw_bring goes on. */
template <typename T, int DIM, int THREADS>
static __device__ __forceinline__ const T *sw_piece_of(const sw_head_rows<T> &rows, int64_t first) {
    typedef sw_pieces<T, DIM, THREADS> pieces;
    const int begin = (int)(threadIdx.x / pieces::row), column = (int)(threadIdx.x % pieces::row) * pieces::elems;
    return rows.from + (first + begin) * rows.stride + column;
}

/* Starts to bring the next ROWS rows into a tile, for sw_wait_copies to finish: `count` of them, and zeros after those.
 * `next` moves on to the rows after them. */
template <typename T, int DIM, int ROWS, int THREADS>
static __device__ __forceinline__ void sw_bring(T *tile, const T **next, const sw_head_rows<T> &rows, int count) {
    typedef sw_pieces<T, DIM, THREADS> pieces;
    static_assert(ROWS % pieces::rows == 0, "every thread brings as many pieces");
    const int begin = (int)(threadIdx.x / pieces::row), column = (int)(threadIdx.x % pieces::row) * pieces::elems;
    const int own = column < rows.head_dim ? count - begin : 0;
    const int64_t step = pieces::rows * rows.stride;
    T *to = tile + begin * sw_attention_tiles<T, DIM>::stride + column;
    const T *from = *next;
    if (rows.aligned) {
        SW_UNROLL
        for (int row = 0; row < ROWS; row += pieces::rows, from += step)
            sw_copy16_later(to + row * sw_attention_tiles<T, DIM>::stride, from, row >= own);
    } else {
        for (int row = 0; row < ROWS; row += pieces::rows, from += step)
            for (int e = 0; e < pieces::elems; e++)
                to[row * sw_attention_tiles<T, DIM>::stride + e] =
                    row < own && column + e < rows.head_dim ? from[e] : T{};
    }
    *next = from;
}

/* Waits for the rows that were brought last, and loads the warp's 16 into registers from `rows`. Afterwards the block's
 * shared memory is free for others. */
template <typename T, int DIM>
static __device__ __forceinline__ void sw_hold_rows(sw_fragment_a<T> (&held)[DIM / SW_FRAGMENT_DEPTH], const T *rows) {
    sw_commit_copies();
    sw_wait_copies<0>();
    __syncthreads();
    SW_UNROLL
    for (int i = 0; i < DIM / SW_FRAGMENT_DEPTH; i++)
        sw_load_a(&held[i], rows + i * SW_FRAGMENT_DEPTH, sw_attention_tiles<T, DIM>::stride);
    __syncthreads();
}

static __device__ __forceinline__ int64_t sw_least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Returns the first key that the query at position t sees. Like t itself it never decreases, so tiles of keys and
 * queries see each other in runs. */
static __device__ __forceinline__ int64_t sw_first_key(const sw_attention &shape, int64_t batch, int64_t t) {
    const int64_t in_window = shape.window > 0 && t >= shape.window ? t - shape.window + 1 : 0;
    const int64_t in_document =
        shape.document_start == NULL ? 0 : shape.document_start[batch * shape.seq + t - shape.past];
    return in_window > in_document ? in_window : in_document;
}

/* The keys that a query sees, counted from the first row of a tile; tiles are near enough for 32 bits. */
struct sw_seen {
    int first, last;
};

static __device__ __forceinline__ sw_seen sw_keys_seen(const sw_attention &shape, int64_t batch, int64_t t,
                                                       int64_t from) {
    sw_seen seen = {0, -1};
    if (t < shape.seq) {
        seen.first = (int)(sw_first_key(shape, batch, shape.past + t) - from);
        seen.last = (int)(shape.past + t - from);
    }
    return seen;
}

static __device__ __forceinline__ bool sw_sees(sw_seen seen, int key) {
    return key >= seen.first && key <= seen.last;
}

/* The keys that the queries of a warp see, counted from a key: the first query sees none after `last`, and each query
 * one more than the one before; every query sees the keys of [all_from, last]. */
struct sw_warp_keys {
    int all_from, last;
};

/* The queries are [first, first + rows) of the sequence, keys are counted from the key `from`. */
static __device__ __forceinline__ sw_warp_keys sw_warp_keys_of(const sw_attention &shape, int64_t batch, int64_t first,
                                                               int rows, int64_t from) {
    sw_warp_keys keys = {0, -rows};
    if (first < shape.seq) {
        const int64_t end = sw_least(first + rows, shape.seq);
        keys.all_from = (int)(sw_first_key(shape, batch, shape.past + end - 1) - from);
        keys.last = (int)(shape.past + first - from);
    }
    return keys;
}

/* Returns whether one of the warp's `rows` queries may see a key of the tile that begins at `at`. */
static __device__ __forceinline__ bool sw_some_seen(const sw_warp_keys &keys, int rows, int at) {
    return at < keys.last + rows;
}

/* Returns whether every query sees every key of the tile of `count` keys, so that nothing is masked. */
static __device__ __forceinline__ bool sw_all_seen(const sw_warp_keys &keys, int at, int count) {
    return at >= keys.all_from && at + count <= keys.last + 1;
}

/* Adds the biases of ALiBi to the scores of a tile, whose rows are queries. `from` is the tile's first key minus the
 * warp's first query. */
template <int KEYS, int TILES>
static __device__ __forceinline__ void sw_bias_scores(float slope, int from,
                                                      sw_fragment_c (*scores)[KEYS / SW_FRAGMENT_COLS]) {
    const float distance = (float)(from + sw_lane() % 4 * 2 - sw_lane() / 4);
    SW_UNROLL
    for (int m = 0; m < TILES; m++) {
        SW_UNROLL
        for (int i = 0; i < KEYS / SW_FRAGMENT_COLS * 4; i++) {
            const int more = i / 4 * SW_FRAGMENT_COLS + i % 2 - m * SW_FRAGMENT_ROWS - i % 4 / 2 * 8;
            float *score = &scores[m][i / 4].values[i % 4];
            *score = fmaf(slope, distance + (float)more, *score);
        }
    }
}

/* Hides the scores of a tile that are not seen. For each of the warp's queries first_keys has the first key that it
 * sees; the warp's first query sees the keys up to `last`. Both count from the first key of the tile at `at`. */
template <int KEYS, int TILES>
static __device__ __forceinline__ void sw_hide_scores(const int *first_keys, int last, int at,
                                                      sw_fragment_c (*scores)[KEYS / SW_FRAGMENT_COLS]) {
    const int column = at + sw_lane() % 4 * 2;
    SW_UNROLL
    for (int m = 0; m < TILES; m++) {
        SW_UNROLL
        for (int r = 0; r < 2; r++) {
            const int row = m * SW_FRAGMENT_ROWS + r * 8 + sw_lane() / 4;
            const sw_seen seen = {first_keys[row] - column, last + row - column};
            SW_UNROLL
            for (int i = 0; i < KEYS / SW_FRAGMENT_COLS * 2; i++) {
                if (!sw_sees(seen, i / 2 * SW_FRAGMENT_COLS + i % 2))
                    scores[m][i / 2].values[2 * r + i % 2] = -INFINITY;
            }
        }
    }
}

static __device__ __forceinline__ float sw_quad_max(float value) {
    value = fmaxf(value, __shfl_xor_sync(SW_ALL_LANES, value, 1));
    return fmaxf(value, __shfl_xor_sync(SW_ALL_LANES, value, 2));
}

static __device__ __forceinline__ float sw_quad_sum(float value) {
    value += __shfl_xor_sync(SW_ALL_LANES, value, 1);
    return value + __shfl_xor_sync(SW_ALL_LANES, value, 2);
}

/* Returns the base that is subtracted from scaled scores before 2 is raised to them: the greatest scaled score, or 0 if
 * no key is seen yet. */
static __device__ __forceinline__ float sw_base_of(float max, float scale_log2) {
    return max == -INFINITY ? 0.0f : sw_rounded_product(max, scale_log2);
}

/* Returns the factor of earlier sums when the greatest score rises: 2 to the difference of the bases of the
 * exponentials. An unrounded base would make it differ from 1 where no score rose, by a little that has
 * the same sign in each tile. */
static __device__ __forceinline__ float sw_max_factor(float before, float now, float scale_log2) {
    return sw_exp2(sw_rounded_product(before, scale_log2) - sw_base_of(now, scale_log2));
}

static __device__ __forceinline__ void sw_store_pair(float *to, float first, float second) {
    to[0] = first;
    to[1] = second;
}

template <typename T> static __device__ __forceinline__ void sw_store_pair(T *to, float first, float second) {
    *(uint32_t *)to = sw_round_pair<T>(first, second);
}

/* The target of 16 rows of a head that a warp writes. `paired`: two columns may be stored as one. */
template <typename T> struct sw_rows_to {
    T *to;
    int64_t stride, rows;
    int columns;
    bool paired;
};

/* Writes rows from registers, each times its factor: factors[0] for row g, factors[1] for row g+8. */
template <typename T, int COLS>
static __device__ __forceinline__ void sw_write_rows(const sw_fragment_c c[COLS / SW_FRAGMENT_COLS],
                                                     const float factors[2], const sw_rows_to<T> &rows) {
    const int g = sw_lane() / 4, t = sw_lane() % 4;
    SW_UNROLL
    for (int n = 0; n < COLS / SW_FRAGMENT_COLS; n++) {
        for (int r = 0; r < 2; r++) {
            const int row = g + r * 8, column = n * SW_FRAGMENT_COLS + 2 * t;
            const float first = c[n].values[2 * r] * factors[r], second = c[n].values[2 * r + 1] * factors[r];
            T *to = rows.to + row * rows.stride + column;
            if (row >= rows.rows || column >= rows.columns)
                continue;
            if (rows.paired) {
                sw_store_pair(to, first, second);
                continue;
            }
            sw_round(first, &to[0]);
            if (column + 1 < rows.columns)
                sw_round(second, &to[1]);
        }
    }
}

/* Returns, on the host, whether rows of a tensor can be written by pairs. */
template <typename T> static inline bool sw_head_paired(const sw_attention *shape, const void *tensor, int64_t stride) {
    return shape->head_dim % 2 == 0 && sw_attention_head_stride(shape) % 2 == 0 && stride % 2 == 0 &&
           (uintptr_t)tensor % (2 * sizeof(T)) == 0;
}

/* Returns, on the host, whether a tensor's rows can be loaded 16 bytes at a time. */
template <typename T>
static inline bool sw_head_aligned(const sw_attention *shape, const void *tensor, int64_t stride) {
    const int64_t piece = 16 / (int64_t)sizeof(T);
    return shape->head_dim % piece == 0 && sw_attention_head_stride(shape) % piece == 0 && stride % piece == 0 &&
           sw_is_aligned(tensor);
}

/* Calls function<T, DIM>(arguments...) with the least DIM that holds the head. */
#define SW_FOR_DIM(T, head_dim, function, ...)                                                                         \
    ((head_dim) <= 64    ? function<T, 64>(__VA_ARGS__)                                                                \
     : (head_dim) <= 128 ? function<T, 128>(__VA_ARGS__)                                                               \
                         : function<T, 256>(__VA_ARGS__))

#endif
