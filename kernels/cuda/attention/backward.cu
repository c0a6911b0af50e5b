/* Attention, backward (FlashAttention-2, algorithm 2, without its atomic sums): one kernel makes the gradients of keys
 * and values, with a block for each tile of keys over the queries that see it; another makes the gradients of queries.
 * Both recompute the scores. No sum is shared between blocks, so the bits are the same in every run. */
#include "kernels/cuda/attention/delta.cuh"
#include "kernels/tiling.h"

namespace {
template <typename T> struct tensors {
    const T *q, *k, *v, *d_o;
    const float *log_sum_exp, *delta;
    T *dq, *dk, *dv;
    float *dk_parts, *dv_parts; /* [parts][batch, seq, kv_heads, head_dim]; unused where there is one part */
    int parts;
    bool q_aligned, kv_aligned, d_o_aligned, q_paired, kv_paired, parts_paired;
};

/* The queries of a tile: log-sum-exp in units of log2(e), delta, and the first key that each sees. */
template <int QUERIES> struct query_tile {
    float lse_log2[QUERIES], delta[QUERIES];
    int first_key[QUERIES];
};

/* Dynamic shared memory of the kernel of keys. Small tiles keep keys or values in registers, which come by way of the
 * streamed tiles. */
template <typename T, int DIM, bool SMALL> struct keys_memory {
    typedef sw_attention_tiles<T, DIM, SMALL> tiles;
    static constexpr int rows = (SMALL ? 0 : 2 * tiles::keys_rows) + 4 * tiles::keys_streamed;
    static constexpr size_t bytes =
        (size_t)rows * tiles::stride * sizeof(T) +
        (size_t)tiles::keys_pairs * tiles::warp_rows * tiles::keys_streamed * sizeof(float) +
        2 * sizeof(query_tile<tiles::keys_streamed>) + sizeof(float);
    static_assert(2 * tiles::keys_rows <= rows, "keys and values fit where they pass through");
    static_assert(bytes <= SW_MOST_SHARED_BYTES, "a GPU refuses the launch otherwise");
};

/* Dynamic shared memory of the kernel of queries. Small tiles keep the gradients of outputs in registers. */
template <typename T, int DIM, bool SMALL> struct queries_memory {
    typedef sw_attention_tiles<T, DIM, SMALL> tiles;
    static constexpr int rows = (SMALL ? 1 : 2) * tiles::queries_rows + 2 * tiles::queries_streamed;
    static constexpr size_t bytes =
        (size_t)rows * tiles::stride * sizeof(T) + tiles::queries_rows * sizeof(int) + sizeof(float);
    static_assert(!SMALL || tiles::queries_rows <= 2 * tiles::queries_streamed,
                  "the gradients of outputs fit where they pass through");
    static_assert(bytes <= SW_MOST_SHARED_BYTES, "a GPU refuses the launch otherwise");
};

/* A walk over the query tiles that see a tile of keys, for one head after the other. */
struct query_walk {
    int head, last_head, query, begin, end;
};
} // namespace

/* Returns the end of the run of query tiles that see a tile of keys, the last of which is last_key. */
static __device__ __forceinline__ int64_t queries_end(const sw_attention &shape, int64_t batch, int64_t begin,
                                                      int64_t step, int64_t last_key) {
    int64_t low = begin / step, high = (shape.seq + step - 1) / step;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (middle * step <= last_key || sw_first_key(shape, batch, middle * step) <= last_key)
            low = middle + 1;
        else
            high = middle;
    }
    return low * step;
}

/* The block's tile of keys, of one key head for a part of the query heads that use it. The first keys are seen by the
 * most queries, so the first tiles of all heads and sequences start first. */
static __device__ __forceinline__ sw_block_rows block_keys(const sw_attention &shape, int parts, int rows, int *part) {
    const unsigned heads = (unsigned)shape.kv_heads, each = heads * (unsigned)shape.batch * (unsigned)parts;
    const unsigned row = blockIdx.x % each;
    const sw_block_rows keys = {(int)(blockIdx.x / each) * rows, (int)(row / (unsigned)parts % heads),
                                (int)(row / (unsigned)parts / heads), 0.0f};
    *part = (int)(row % (unsigned)parts);
    return keys;
}

/* The walk's tiles, and what to bring of them next. */
template <typename T> struct query_rows {
    sw_head_rows<T> q, d_o;
    const T *next_q, *next_d_o;
};

template <typename T, int DIM, int THREADS>
static __device__ __forceinline__ query_rows<T> rows_of_head(const sw_attention &shape, const tensors<T> &t, int batch,
                                                             int head, int first) {
    query_rows<T> rows;
    rows.q = sw_input_head_of(t.q, shape.q_stride, shape.seq, batch, head, shape, t.q_aligned);
    rows.d_o = sw_head_of(t.d_o, shape.o_stride, shape.seq, batch, head, shape, t.d_o_aligned);
    rows.next_q = sw_piece_of<T, DIM, THREADS>(rows.q, first);
    rows.next_d_o = sw_piece_of<T, DIM, THREADS>(rows.d_o, first);
    return rows;
}

/* Brings the values of the next tile of queries in the walk. Queries after the last have zeros in all tensors, so they
 * add none: only their first key has to be in order. */
template <typename T, int QUERIES>
static __device__ __forceinline__ void bring_queries(const sw_attention &shape, const tensors<T> &t,
                                                     const sw_block_rows &own, const query_walk &walk,
                                                     query_tile<QUERIES> *to) {
    if (threadIdx.x >= QUERIES)
        return;
    const int64_t query = walk.query + (int)threadIdx.x, last = sw_least(query, shape.seq - 1);
    const int64_t at = ((int64_t)own.batch * shape.heads + walk.head) * shape.seq + last;
    to->lse_log2[threadIdx.x] = query < shape.seq ? t.log_sum_exp[at] * SW_LOG2_E : 0.0f;
    to->delta[threadIdx.x] = query < shape.seq ? t.delta[at] : 0.0f;
    to->first_key[threadIdx.x] = (int)(sw_first_key(shape, own.batch, last) - own.first);
}

/* Adds the biases of ALiBi. Keys are rows here; `from` is the warp's first key minus the tile's first query. */
template <int QUERIES, int TILES>
static __device__ __forceinline__ void bias_scores(float slope, int from,
                                                   sw_fragment_c (*scores)[QUERIES / SW_FRAGMENT_COLS]) {
    const float distance = (float)(from + sw_lane() / 4 - sw_lane() % 4 * 2);
    SW_UNROLL
    for (int m = 0; m < TILES; m++) {
        SW_UNROLL
        for (int i = 0; i < QUERIES / SW_FRAGMENT_COLS * 4; i++) {
            const int more = m * SW_FRAGMENT_ROWS + i % 4 / 2 * 8 - i / 4 * SW_FRAGMENT_COLS - i % 2;
            float *score = &scores[m][i / 4].values[i % 4];
            *score = fmaf(slope, distance + (float)more, *score);
        }
    }
}

/* Scores become probabilities. Keys are rows here. Counted from the block's first key, the warp's keys begin at
 * first_key and the queries at first_query, and key j is seen by the queries from j on whose first key is not after it;
 * most tiles are seen whole. */
template <int QUERIES, int TILES>
static __device__ __forceinline__ void take_scores(const query_tile<QUERIES> &of, int first_key, int first_query,
                                                   float scale_log2, sw_fragment_c (*p)[QUERIES / SW_FRAGMENT_COLS]) {
    const int column = sw_lane() % 4 * 2, row = sw_lane() / 4;
    SW_UNROLL
    for (int n = 0; n < QUERIES / SW_FRAGMENT_COLS; n++) {
        SW_UNROLL
        for (int i = 0; i < 2; i++) {
            const float lse = of.lse_log2[n * SW_FRAGMENT_COLS + column + i];
            SW_UNROLL
            for (int m = 0; m < TILES * 2; m++) {
                float *score = &p[m / 2][n].values[m % 2 * 2 + i];
                *score = sw_exp2(fmaf(*score, scale_log2, -lse));
            }
        }
    }
    if (first_query >= first_key + TILES * SW_FRAGMENT_ROWS - 1 && of.first_key[QUERIES - 1] <= first_key)
        return;
    SW_UNROLL
    for (int n = 0; n < QUERIES / SW_FRAGMENT_COLS; n++) {
        SW_UNROLL
        for (int i = 0; i < 2; i++) {
            const int query = n * SW_FRAGMENT_COLS + column + i;
            const sw_seen seen = {of.first_key[query], first_query + query};
            SW_UNROLL
            for (int m = 0; m < TILES * 2; m++) {
                if (!sw_sees(seen, first_key + row + m * 8))
                    p[m / 2][n].values[m % 2 * 2 + i] = 0.0f;
            }
        }
    }
}

/* Turns the gradients of probabilities into gradients of scores, without the factor `scale`. */
template <int QUERIES, int TILES>
static __device__ __forceinline__ void take_gradients(const query_tile<QUERIES> &of, const sw_vector16 *p,
                                                      sw_fragment_c (*ds)[QUERIES / SW_FRAGMENT_COLS]) {
    SW_UNROLL
    for (int n = 0; n < QUERIES / SW_FRAGMENT_COLS; n++) {
        const float *delta = of.delta + n * SW_FRAGMENT_COLS + sw_lane() % 4 * 2;
        SW_UNROLL
        for (int m = 0; m < TILES; m++) {
            const sw_fragment_c probability = sw_vector_fragment(p[(m * (QUERIES / SW_FRAGMENT_COLS) + n) * SW_WARP]);
            SW_UNROLL
            for (int i = 0; i < 4; i++)
                ds[m][n].values[i] = probability.values[i] * (ds[m][n].values[i] - delta[i % 2]);
        }
    }
}

/* Writes a warp's sums for its keys: of the values' gradients or of the keys', as they are or as a part. */
template <typename T, int DIM, int TILES>
static __device__ __forceinline__ void write_keys(const sw_attention &shape, const tensors<T> &t,
                                                  const sw_block_rows &own, int part, bool of_values, int warp_row,
                                                  const sw_fragment_c (*sums)[DIM / SW_FRAGMENT_COLS]) {
    const float factor = of_values ? 1.0f : shape.scale, factors[2] = {factor, factor};
    const int64_t column = own.head * shape.head_dim, width = shape.kv_heads * shape.head_dim;
    const int64_t input_column = own.head * shape.head_stride;
    SW_UNROLL
    for (int m = 0; m < TILES; m++) {
        const int64_t first = own.first + warp_row + m * SW_FRAGMENT_ROWS, row = own.batch * shape.seq + first;
        if (t.parts > 1) {
            const int64_t at = (part * shape.batch * shape.seq + row) * width + column;
            const sw_rows_to<float> rows = {(of_values ? t.dv_parts : t.dk_parts) + at, width, shape.seq - first,
                                            (int)shape.head_dim, t.parts_paired};
            sw_write_rows<float, DIM>(sums[m], factors, rows);
        } else {
            const int64_t stride = of_values ? shape.v_stride : shape.k_stride;
            const sw_rows_to<T> rows = {(of_values ? t.dv : t.dk) + row * stride + input_column, stride,
                                        shape.seq - first, (int)shape.head_dim, t.kv_paired};
            sw_write_rows<T, DIM>(sums[m], factors, rows);
        }
    }
}

/* Two warps share the same keys, so that the sums of each fit in its registers: one computes probabilities and sums
 * the gradients of values; the other computes the gradients of probabilities, turns them into gradients of scores by
 * the probabilities that the first left in shared memory, and sums the gradients of keys. Keys are rows, so a warp's
 * result is its next left operand without a move. */
template <typename T, int DIM, bool SMALL>
static __global__ void __launch_bounds__(sw_attention_tiles<T, DIM, SMALL>::keys_threads, 2)
    keys_kernel(sw_attention shape, tensors<T> t) {
    typedef sw_attention_tiles<T, DIM, SMALL> tiles;
    enum { KEYS = tiles::keys_rows, QUERIES = tiles::keys_streamed, THREADS = tiles::keys_threads };
    enum { TILES = tiles::warp_tiles, COLS = DIM / SW_FRAGMENT_COLS, QUERY_COLS = QUERIES / SW_FRAGMENT_COLS };
    enum { TILE = QUERIES * tiles::stride, STAGE = 2 * TILE };
    SW_DYNAMIC_SHARED(shared);
    SW_STATE_SHARED((keys_memory<T, DIM, SMALL>::bytes));
    T *k_tile = (T *)shared, *v_tile = k_tile + KEYS * tiles::stride;
    T *streamed = SMALL ? k_tile : v_tile + KEYS * tiles::stride;
    sw_vector16 *exchanged = (sw_vector16 *)(streamed + 2 * STAGE);
    query_tile<QUERIES> *known = (query_tile<QUERIES> *)(exchanged + tiles::keys_pairs * TILES * QUERY_COLS * SW_WARP);
    float *slope = (float *)(known + 2);
    int part;
    const sw_block_rows own = block_keys(shape, t.parts, KEYS, &part);
    const int group = (int)(shape.heads / shape.kv_heads), warp = (int)(threadIdx.x / SW_WARP);
    const int pair_row = warp / 2 * tiles::warp_rows;
    const bool of_values = warp % 2 == 0;
    sw_vector16 *probabilities = exchanged + warp / 2 * (TILES * QUERY_COLS * SW_WARP) + sw_lane();
    query_walk walk;
    walk.head = own.head * group + group * part / t.parts;
    walk.last_head = own.head * group + group * (part + 1) / t.parts - 1;
    walk.begin = own.first / QUERIES * QUERIES;
    walk.end = (int)queries_end(shape, own.batch, walk.begin, QUERIES, own.first + KEYS - 1);
    walk.query = walk.begin;
    query_rows<T> rows = rows_of_head<T, DIM, THREADS>(shape, t, own.batch, walk.head, walk.begin);
    int stage = 0, left = (walk.end - walk.begin) / QUERIES * (walk.last_head - walk.head + 1);
    auto bring = [&](int to) {
        sw_bring<T, DIM, QUERIES, THREADS>(streamed + to * STAGE, &rows.next_q, rows.q, (int)shape.seq - walk.query);
        sw_bring<T, DIM, QUERIES, THREADS>(streamed + to * STAGE + TILE, &rows.next_d_o, rows.d_o,
                                           (int)shape.seq - walk.query);
        bring_queries<T, QUERIES>(shape, t, own, walk, known + to);
        walk.query += QUERIES;
        if (walk.query == walk.end && walk.head < walk.last_head) {
            walk.head++;
            walk.query = walk.begin;
            rows = rows_of_head<T, DIM, THREADS>(shape, t, own.batch, walk.head, walk.begin);
        }
    };
    const sw_head_rows<T> keys =
        sw_input_head_of(t.k, shape.k_stride, shape.seq, own.batch, own.head, shape, t.kv_aligned);
    const sw_head_rows<T> values =
        sw_input_head_of(t.v, shape.v_stride, shape.seq, own.batch, own.head, shape, t.kv_aligned);
    const T *next_keys = sw_piece_of<T, DIM, THREADS>(keys, own.first);
    const T *next_values = sw_piece_of<T, DIM, THREADS>(values, own.first);
    sw_bring<T, DIM, KEYS, THREADS>(k_tile, &next_keys, keys, (int)shape.seq - own.first);
    sw_bring<T, DIM, KEYS, THREADS>(v_tile, &next_values, values, (int)shape.seq - own.first);
    if (threadIdx.x == 0)
        *slope = sw_raw_slope(shape, own.head); /* with biases a key head has one query head */
    const T *const own_rows = (of_values ? k_tile : v_tile) + pair_row * tiles::stride;
    sw_fragment_a<T> held[DIM / SW_FRAGMENT_DEPTH];
    if constexpr (SMALL)
        sw_hold_rows<T, DIM>(held, own_rows);
    bring(0);
    sw_commit_copies();
    sw_fragment_c sums[TILES][COLS] = {};
    int at = walk.begin - own.first;
    for (; left > 0; left--, stage ^= 1) {
        const T *q_tile = streamed + stage * STAGE, *d_o_tile = q_tile + TILE;
        sw_fragment_c scores[TILES][QUERY_COLS] = {};
        sw_wait_copies<0>();
        __syncthreads();
        if (left > 1)
            bring(stage ^ 1);
        sw_commit_copies();
        if constexpr (SMALL)
            sw_multiply_held<T, DIM, QUERIES>(scores, held, of_values ? q_tile : d_o_tile, tiles::stride);
        else
            sw_multiply_rows<T, TILES, DIM, QUERIES>(scores, own_rows, of_values ? q_tile : d_o_tile, tiles::stride);
        if (of_values && shape.alibi_heads > 0)
            bias_scores<QUERIES, TILES>(*slope, pair_row - at, scores);
        if (of_values) {
            take_scores<QUERIES, TILES>(known[stage], pair_row, at, shape.scale * SW_LOG2_E, scores);
            SW_UNROLL
            for (int i = 0; i < TILES * QUERY_COLS; i++)
                sw_store16(probabilities + i * SW_WARP, sw_fragment_vector(scores[i / QUERY_COLS][i % QUERY_COLS]));
        }
        __syncthreads();
        if (!of_values)
            take_gradients<QUERIES, TILES>(known[stage], probabilities, scores);
        sw_multiply_columns<T, TILES, QUERIES, DIM>(sums, scores, of_values ? d_o_tile : q_tile, tiles::stride);
        at = at + QUERIES == walk.end - own.first ? walk.begin - own.first : at + QUERIES;
    }
    write_keys<T, DIM, TILES>(shape, t, own, part, of_values, pair_row, sums);
}

/* State that a lane keeps for its queries, rows g and g+8 of each 16 of the warp. */
template <int TILES> struct query_state { float lse_log2[TILES][2], delta[TILES][2]; };

template <int TILES>
static __device__ __forceinline__ query_state<TILES> state_of(const sw_attention &shape, const float *log_sum_exp,
                                                              const float *delta, const sw_block_rows &own, int first) {
    query_state<TILES> state;
    for (int i = 0; i < TILES * 2; i++) {
        const int64_t query = first + sw_lane() / 4 + i * 8;
        const int64_t at = ((int64_t)own.batch * shape.heads + own.head) * shape.seq + query;
        state.lse_log2[i / 2][i % 2] = query < shape.seq ? log_sum_exp[at] * SW_LOG2_E : 0.0f;
        state.delta[i / 2][i % 2] = query < shape.seq ? delta[at] : 0.0f;
    }
    return state;
}

/* Turns scores into probabilities, and the gradients of these into gradients of scores, without the factor `scale`. */
template <int KEYS, int TILES>
static __device__ __forceinline__ void take_pairs(const query_state<TILES> &state, float scale_log2,
                                                  const sw_fragment_c (*p)[KEYS / SW_FRAGMENT_COLS],
                                                  sw_fragment_c (*ds)[KEYS / SW_FRAGMENT_COLS]) {
    SW_UNROLL
    for (int m = 0; m < TILES; m++) {
        SW_UNROLL
        for (int i = 0; i < KEYS / SW_FRAGMENT_COLS * 4; i++) {
            const float score = p[m][i / 4].values[i % 4];
            float *gradient = &ds[m][i / 4].values[i % 4];
            *gradient = sw_exp2(fmaf(score, scale_log2, -state.lse_log2[m][i % 4 / 2])) *
                        (*gradient - state.delta[m][i % 4 / 2]);
        }
    }
}

/* Tiles of values and of keys take turns: one arrives while the other is multiplied. */
template <typename T, int DIM, bool SMALL>
static __global__ void __launch_bounds__(sw_attention_tiles<T, DIM, SMALL>::queries_threads, 2)
    queries_kernel(sw_attention shape, tensors<T> t) {
    typedef sw_attention_tiles<T, DIM, SMALL> tiles;
    enum { QUERIES = tiles::queries_rows, KEYS = tiles::queries_streamed, THREADS = tiles::queries_threads };
    enum { TILES = tiles::warp_tiles, COLS = DIM / SW_FRAGMENT_COLS, KEY_COLS = KEYS / SW_FRAGMENT_COLS };
    SW_DYNAMIC_SHARED(shared);
    SW_STATE_SHARED((queries_memory<T, DIM, SMALL>::bytes));
    T *q_tile = (T *)shared, *d_o_tile = q_tile + QUERIES * tiles::stride;
    T *k_tile = d_o_tile + (SMALL ? 0 : QUERIES * tiles::stride), *v_tile = k_tile + KEYS * tiles::stride;
    int *first_keys = (int *)(v_tile + KEYS * tiles::stride);
    float *slope = (float *)(first_keys + QUERIES);
    const sw_block_rows own = sw_last_rows_first(shape, shape.heads, QUERIES);
    const int kv_head = own.head / (int)(shape.heads / shape.kv_heads);
    const int64_t begin = sw_first_key(shape, own.batch, own.first) / KEYS * KEYS;
    const int count = (int)(sw_least(own.first + QUERIES, shape.seq) - begin);
    const int warp_row = (int)(threadIdx.x / SW_WARP) * tiles::warp_rows;
    const sw_warp_keys seen = sw_warp_keys_of(shape, own.batch, own.first + warp_row, tiles::warp_rows, begin);
    const sw_head_rows<T> queries =
        sw_input_head_of(t.q, shape.q_stride, shape.seq, own.batch, own.head, shape, t.q_aligned);
    const sw_head_rows<T> d_os =
        sw_head_of(t.d_o, shape.o_stride, shape.seq, own.batch, own.head, shape, t.d_o_aligned);
    const sw_head_rows<T> keys =
        sw_input_head_of(t.k, shape.k_stride, shape.seq, own.batch, kv_head, shape, t.kv_aligned);
    const sw_head_rows<T> values =
        sw_input_head_of(t.v, shape.v_stride, shape.seq, own.batch, kv_head, shape, t.kv_aligned);
    const T *next_queries = sw_piece_of<T, DIM, THREADS>(queries, own.first);
    const T *next_d_os = sw_piece_of<T, DIM, THREADS>(d_os, own.first);
    const T *next_keys = sw_piece_of<T, DIM, THREADS>(keys, begin);
    const T *next_values = sw_piece_of<T, DIM, THREADS>(values, begin);
    sw_bring<T, DIM, QUERIES, THREADS>(q_tile, &next_queries, queries, (int)shape.seq - own.first);
    sw_bring<T, DIM, QUERIES, THREADS>(d_o_tile, &next_d_os, d_os, (int)shape.seq - own.first);
    sw_fragment_a<T> held[DIM / SW_FRAGMENT_DEPTH];
    if constexpr (SMALL)
        sw_hold_rows<T, DIM>(held, d_o_tile + warp_row * tiles::stride);
    sw_bring<T, DIM, KEYS, THREADS>(v_tile, &next_values, values, count);
    sw_commit_copies();
    for (int row = (int)threadIdx.x; row < QUERIES; row += THREADS)
        first_keys[row] = sw_keys_seen(shape, own.batch, own.first + row, begin).first;
    if (threadIdx.x == 0)
        *slope = own.slope; /* the loop has no register for it */
    const query_state<TILES> state = state_of<TILES>(shape, t.log_sum_exp, t.delta, own, own.first + warp_row);
    sw_fragment_c dq[TILES][COLS] = {};
    for (int at = 0; at < count; at += KEYS) {
        const bool some = sw_some_seen(seen, tiles::warp_rows, at);
        sw_fragment_c p[TILES][KEY_COLS] = {}, ds[TILES][KEY_COLS] = {};
        sw_wait_copies<0>();
        __syncthreads();
        sw_bring<T, DIM, KEYS, THREADS>(k_tile, &next_keys, keys, count - at);
        sw_commit_copies();
        if constexpr (SMALL) {
            if (some)
                sw_multiply_held<T, DIM, KEYS>(ds, held, v_tile, tiles::stride);
        } else if (some) {
            sw_multiply_rows<T, TILES, DIM, KEYS>(ds, d_o_tile + warp_row * tiles::stride, v_tile, tiles::stride);
        }
        sw_wait_copies<0>();
        __syncthreads();
        if (at + KEYS < count)
            sw_bring<T, DIM, KEYS, THREADS>(v_tile, &next_values, values, count - at - KEYS);
        sw_commit_copies();
        if (!some)
            continue;
        sw_multiply_rows<T, TILES, DIM, KEYS>(p, q_tile + warp_row * tiles::stride, k_tile, tiles::stride);
        if (shape.alibi_heads > 0)
            sw_bias_scores<KEYS, TILES>(*slope, at - seen.last, p);
        if (!sw_all_seen(seen, at, KEYS))
            sw_hide_scores<KEYS, TILES>(first_keys + warp_row, seen.last, at, p);
        take_pairs<KEYS, TILES>(state, shape.scale * SW_LOG2_E, p, ds);
        sw_multiply_columns<T, TILES, KEYS, DIM>(dq, ds, k_tile, tiles::stride);
    }
    const float scaled[2] = {shape.scale, shape.scale};
    SW_UNROLL
    for (int m = 0; m < TILES; m++) {
        const int64_t first = own.first + warp_row + m * SW_FRAGMENT_ROWS;
        const sw_rows_to<T> rows = {t.dq + (own.batch * shape.seq + first) * shape.q_stride +
                                        own.head * shape.head_stride,
                                    shape.q_stride, shape.seq - first, (int)shape.head_dim, t.q_paired};
        sw_write_rows<T, DIM>(dq[m], scaled, rows);
    }
}

/* Adds up the parts of a tensor's rows in their order, a warp for each row. */
template <typename T>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    add_parts_kernel(int64_t rows, int64_t cols, int parts, const float *from, T *to, int64_t stride, bool aligned) {
    const int64_t row = sw_row_of_thread<SW_WARP>();
    if (row >= rows)
        return;
    for (int64_t col = sw_lane() * SW_ELEMS; col < cols; col += SW_WARP * SW_ELEMS) {
        const float *part = from + row * cols + col;
        float sum[SW_ELEMS], more[SW_ELEMS];
        sw_load_elems(part, cols - col, aligned, sum);
        for (int i = 1; i < parts; i++) {
            part += rows * cols;
            sw_load_elems(part, cols - col, aligned, more);
            SW_UNROLL
            for (int e = 0; e < SW_ELEMS; e++)
                sum[e] += more[e];
        }
        sw_store_elems(to + row * stride + col, cols - col, aligned, sum);
    }
}

template <typename T>
static void add_parts(cudaStream_t stream, const sw_attention *shape, int parts, const float *from, T *to,
                      int64_t stride) {
    const int64_t rows = shape->batch * shape->seq, cols = shape->kv_heads * shape->head_dim;
    const bool aligned = cols % SW_ELEMS == 0 && stride % SW_ELEMS == 0 && sw_is_aligned(from) && sw_is_aligned(to);
    SW_LAUNCH(add_parts_kernel<T>, sw_blocks(rows, SW_BLOCK_THREADS / SW_WARP),
              dim3(SW_WARP, SW_BLOCK_THREADS / SW_WARP), 0, stream, rows, cols, parts, from, to, stride, aligned);
}

template <typename T, int DIM, bool SMALL>
static void launch_keys(cudaStream_t stream, const sw_attention &s, const tensors<T> &t) {
    typedef sw_attention_tiles<T, DIM, SMALL> tiles;
    constexpr size_t bytes = keys_memory<T, DIM, SMALL>::bytes;
    SW_ALLOW_SHARED((keys_kernel<T, DIM, SMALL>), bytes);
    SW_LAUNCH((keys_kernel<T, DIM, SMALL>),
              (unsigned)(sw_blocks(s.seq, tiles::keys_rows) * s.batch * s.kv_heads * t.parts), tiles::keys_threads,
              bytes, stream, s, t);
}

template <typename T, int DIM, bool SMALL>
static void launch_queries(cudaStream_t stream, const sw_attention &s, const tensors<T> &t) {
    typedef sw_attention_tiles<T, DIM, SMALL> tiles;
    constexpr size_t bytes = queries_memory<T, DIM, SMALL>::bytes;
    SW_ALLOW_SHARED((queries_kernel<T, DIM, SMALL>), bytes);
    SW_LAUNCH((queries_kernel<T, DIM, SMALL>), (unsigned)(sw_blocks(s.seq, tiles::queries_rows) * s.batch * s.heads),
              tiles::queries_threads, bytes, stream, s, t);
}

template <typename T, int DIM>
static void backward_dim(cudaStream_t stream, const sw_attention *shape, const tensors<T> &t) {
    constexpr size_t of_keys = keys_memory<T, DIM, false>::bytes, of_queries = queries_memory<T, DIM, false>::bytes;
    SW_FOR_TILES(T, DIM, of_keys, launch_keys, stream, *shape, t);
    SW_FOR_TILES(T, DIM, of_queries, launch_queries, stream, *shape, t);
    if (t.parts > 1) {
        add_parts(stream, shape, t.parts, t.dk_parts, t.dk, shape->k_stride);
        add_parts(stream, shape, t.parts, t.dv_parts, t.dv, shape->v_stride);
    }
}

template <typename T> static void backward(cudaStream_t stream, const sw_attention_backward *op) {
    const sw_attention *shape = op->shape;
    char *scratch = (char *)op->scratch;
    float *delta = (float *)scratch;
    sw_launch_delta(stream, shape, (const T *)op->o, (const T *)op->d_o, delta);
    tensors<T> t = {};
    t.parts = (int)sw_attention_parts(shape);
    t.dk_parts = (float *)(scratch + sw_attention_delta_bytes(shape));
    t.dv_parts = t.dk_parts + t.parts * sw_attention_part_elems(shape);
    t.parts_paired = shape->head_dim % 2 == 0;
    t.q = (const T *)op->q;
    t.k = (const T *)op->k;
    t.v = (const T *)op->v;
    t.d_o = (const T *)op->d_o;
    t.log_sum_exp = op->log_sum_exp;
    t.delta = delta;
    t.dq = (T *)op->dq;
    t.dk = (T *)op->dk;
    t.dv = (T *)op->dv;
    t.q_aligned = sw_head_aligned<T>(shape, op->q, shape->q_stride);
    t.kv_aligned =
        sw_head_aligned<T>(shape, op->k, shape->k_stride) && sw_head_aligned<T>(shape, op->v, shape->v_stride);
    t.d_o_aligned = sw_head_aligned<T>(shape, op->d_o, shape->o_stride);
    t.q_paired = sw_head_paired<T>(shape, op->dq, shape->q_stride);
    t.kv_paired =
        sw_head_paired<T>(shape, op->dk, shape->k_stride) && sw_head_paired<T>(shape, op->dv, shape->v_stride);
    const sw_attention of_kernel = sw_kernel_shape(shape);
    SW_FOR_DIM(T, shape->head_dim, backward_dim, stream, &of_kernel, t);
}

int64_t sw_cuda_attention_scratch_bytes(const struct sw_attention *shape, sw_dtype type) {
    (void)type;
    return sw_attention_parted_bytes(shape);
}

void sw_cuda_attention_backward(cudaStream_t stream, const void *args) {
    const sw_attention_backward *op = (const sw_attention_backward *)args;
    SW_FOR_TYPE(op->type, backward, stream, op);
}
