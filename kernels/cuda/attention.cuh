/* What the attention kernels share. A block owns a tile of rows of one head, 16 for each warp, and streams tiles of the
 * other side through shared memory; scores live in registers only. */
#ifndef SW_KERNELS_CUDA_ATTENTION_CUH
#define SW_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/fragment.cuh"
#include "kernels/cuda/grid.cuh"

#define SW_LOG2_E 1.44269504088896341f
#define SW_LN_2 0.693147180559945309f

/* That a block may have on every GPU of 8.0 or newer. */
enum { SW_MOST_SHARED_BYTES = 99 << 10 };

/* Rows of tiles, by the bytes of a row. `stages` tiles of the streamed side are in shared memory at once. */
template <typename T, int DIM> struct sw_attention_tiles {
    static constexpr int row_bytes = DIM * (int)sizeof(T);
    static constexpr int stride = DIM + 16 / (int)sizeof(T); /* in elements; rows begin in different banks */
    static constexpr int forward_rows = 64;
    static constexpr int forward_streamed = row_bytes <= 256 ? 64 : row_bytes <= 512 ? 32 : 16;
    static constexpr int backward_rows = row_bytes <= 512 ? 64 : 32;
    static constexpr int backward_streamed = row_bytes <= 128 ? 64 : row_bytes <= 256 ? 32 : 16;
    static constexpr int stages = row_bytes <= 256 ? 2 : 1;
    /* Columns of the key gradients that a block makes: more would not stay in registers. */
    static constexpr int slice = DIM <= 128 ? DIM : 128;
};

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

/* Starts to bring rows [first, first + ROWS) into a tile, zeros where there are none, for sw_wait_copies to finish. */
template <typename T, int DIM, int ROWS, int THREADS>
static __device__ __forceinline__ void sw_bring_tile(T *tile, const sw_head_rows<T> &rows, int64_t first) {
    enum { PIECE = 16 / (int)sizeof(T), PIECES = DIM / PIECE, STEP = THREADS / PIECES };
    static_assert(THREADS % PIECES == 0 && ROWS % STEP == 0, "a thread brings pieces of one column, as many as any");
    const int begin = (int)threadIdx.x / PIECES, column = (int)threadIdx.x % PIECES * PIECE;
    const int there = rows.seq - first < ROWS ? (int)(rows.seq - first) : ROWS, columns = rows.head_dim - column;
    const T *from = rows.from + (first + begin) * rows.stride + column;
    T *to = tile + begin * sw_attention_tiles<T, DIM>::stride + column;
    if (rows.aligned) {
        SW_UNROLL
        for (int row = 0; row < ROWS; row += STEP)
            sw_copy16_later(to + row * sw_attention_tiles<T, DIM>::stride, from + row * rows.stride,
                            row + begin >= there || columns <= 0);
        return;
    }
    for (int row = 0; row < ROWS; row += STEP)
        for (int e = 0; e < PIECE; e++)
            to[row * sw_attention_tiles<T, DIM>::stride + e] =
                row + begin < there && e < columns ? from[row * rows.stride + e] : T{};
}

/* The first key that the query at place t sees. Like t itself it never decreases, so tiles of keys and queries see each
 * other in runs. */
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

static __device__ __forceinline__ float sw_quad_max(float value) {
    value = fmaxf(value, __shfl_xor_sync(SW_ALL_LANES, value, 1));
    return fmaxf(value, __shfl_xor_sync(SW_ALL_LANES, value, 2));
}

static __device__ __forceinline__ float sw_quad_sum(float value) {
    value += __shfl_xor_sync(SW_ALL_LANES, value, 1);
    return value + __shfl_xor_sync(SW_ALL_LANES, value, 2);
}

static __device__ __forceinline__ void sw_store_pair(float *to, float first, float second) {
    to[0] = first;
    to[1] = second;
}

template <typename T> static __device__ __forceinline__ void sw_store_pair(T *to, float first, float second) {
    *(uint32_t *)to = sw_round_pair<T>(first, second);
}

/* Where a warp writes 16 rows of a head: `paired` where two columns may be stored as one. */
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

/* Whether rows of a tensor can be written by pairs, on the host. */
template <typename T> static inline bool sw_head_paired(const sw_attention *shape, const void *tensor, int64_t stride) {
    return shape->head_dim % 2 == 0 && stride % 2 == 0 && (uintptr_t)tensor % (2 * sizeof(T)) == 0;
}

/* Whether a tensor's rows can be brought 16 bytes at a time, on the host. */
template <typename T>
static inline bool sw_head_aligned(const sw_attention *shape, const void *tensor, int64_t stride) {
    const int64_t piece = 16 / (int64_t)sizeof(T);
    return shape->head_dim % piece == 0 && stride % piece == 0 && sw_is_aligned(tensor);
}

/* Calls function<T, DIM>(arguments...) with the least DIM that holds the head. */
#define SW_FOR_DIM(T, head_dim, function, ...)                                                                         \
    ((head_dim) <= 64    ? function<T, 64>(__VA_ARGS__)                                                                \
     : (head_dim) <= 128 ? function<T, 128>(__VA_ARGS__)                                                               \
                         : function<T, 256>(__VA_ARGS__))

#endif
