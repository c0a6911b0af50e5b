/* Attention, forward: a block takes a tile of queries of one head over all keys that they see, keeping for each query
 * the greatest score and the sum of exponentials so far (FlashAttention-2, algorithm 1). */
#include "kernels/cuda/attention/attention.cuh"

namespace {
/* State that a lane keeps for its queries, rows g and g+8 of each 16 of the warp. The greatest score is yet to be
 * scaled. */
template <int TILES> struct query_state { float max[TILES][2], sum[TILES][2]; };

/* Dynamic shared memory. Small tiles keep the queries in registers, which come by way of the streamed tiles. */
template <typename T, int DIM, bool SMALL> struct shared_memory {
    typedef sw_attention_tiles<T, DIM, SMALL> tiles;
    static constexpr int rows = (SMALL ? 0 : tiles::forward_rows) + 2 * tiles::forward_streamed;
    static constexpr size_t bytes =
        (size_t)rows * tiles::stride * sizeof(T) + tiles::forward_rows * sizeof(int) + sizeof(sw_block_rows);
    static_assert(tiles::forward_rows <= rows, "the queries fit where they pass through");
    static_assert(bytes <= SW_MOST_SHARED_BYTES, "a GPU refuses the launch otherwise");
};
} // namespace

/* Raises the greatest scores by a tile's scores, and returns in `rescale` the factors of earlier sums. */
template <int KEYS, int TILES>
static __device__ __forceinline__ void raise_max(query_state<TILES> *s,
                                                 const sw_fragment_c (*scores)[KEYS / SW_FRAGMENT_COLS],
                                                 float scale_log2, float (*rescale)[2]) {
    SW_UNROLL
    for (int m = 0; m < TILES; m++) {
        SW_UNROLL
        for (int r = 0; r < 2; r++) {
            float max = s->max[m][r];
            SW_UNROLL
            for (int n = 0; n < KEYS / SW_FRAGMENT_COLS; n++)
                max = fmaxf(max, fmaxf(scores[m][n].values[2 * r], scores[m][n].values[2 * r + 1]));
            max = sw_quad_max(max);
            rescale[m][r] = sw_max_factor(s->max[m][r], max, scale_log2);
            s->max[m][r] = max;
        }
    }
}

/* The earlier sums are scaled to the new maximum. Most tiles do not raise it for any query of the warp, and then
 * all factors are 1. */
template <int DIM, int TILES>
static __device__ __forceinline__ void rescale_sums(query_state<TILES> *s, sw_fragment_c (*out)[DIM / SW_FRAGMENT_COLS],
                                                    const float (*rescale)[2]) {
    bool same = true;
    SW_UNROLL
    for (int m = 0; m < TILES; m++)
        same = same && rescale[m][0] == 1.0f && rescale[m][1] == 1.0f;
    if (__ballot_sync(SW_ALL_LANES, same) == SW_ALL_LANES)
        return;
    SW_UNROLL
    for (int m = 0; m < TILES; m++) {
        s->sum[m][0] *= rescale[m][0];
        s->sum[m][1] *= rescale[m][1];
        SW_UNROLL
        for (int n = 0; n < DIM / SW_FRAGMENT_COLS; n++) {
            SW_UNROLL
            for (int i = 0; i < 4; i++)
                out[m][n].values[i] *= rescale[m][i / 2];
        }
    }
}

/* Scores become exponentials. */
template <int KEYS, int TILES>
static __device__ __forceinline__ void take_scores(query_state<TILES> *s,
                                                   sw_fragment_c (*scores)[KEYS / SW_FRAGMENT_COLS], float scale_log2) {
    SW_UNROLL
    for (int m = 0; m < TILES; m++) {
        SW_UNROLL
        for (int r = 0; r < 2; r++) {
            const float base = sw_base_of(s->max[m][r], scale_log2);
            SW_UNROLL
            for (int i = 0; i < KEYS / SW_FRAGMENT_COLS * 2; i++) {
                float *score = &scores[m][i / 2].values[2 * r + i % 2];
                *score = sw_exp2(fmaf(*score, scale_log2, -base));
                s->sum[m][r] += *score;
            }
        }
    }
}

template <typename T, int DIM, int TILES>
static __device__ __forceinline__ void write_queries(const sw_attention &shape, const query_state<TILES> &s,
                                                     const sw_fragment_c (*out)[DIM / SW_FRAGMENT_COLS],
                                                     const sw_block_rows &own, int warp_row, T *o, bool paired,
                                                     float *log_sum_exp) {
    const float scale_log2 = shape.scale * SW_LOG2_E;
    const int64_t sequence = own.batch * shape.seq, logs = (own.batch * shape.heads + own.head) * shape.seq;
    SW_UNROLL
    for (int m = 0; m < TILES; m++) {
        const int64_t first = own.first + warp_row + m * SW_FRAGMENT_ROWS;
        float factors[2];
        for (int r = 0; r < 2; r++) {
            const float sum = sw_quad_sum(s.sum[m][r]);
            const int64_t token = first + sw_lane() / 4 + r * 8;
            factors[r] = 1.0f / sum;
            if (token < shape.seq && sw_lane() % 4 == 0)
                log_sum_exp[logs + token] = s.max[m][r] * scale_log2 * SW_LN_2 + logf(sum);
        }
        const sw_rows_to<T> rows = {o + (sequence + first) * shape.o_stride + own.head * shape.head_dim, shape.o_stride,
                                    shape.seq - first, (int)shape.head_dim, paired};
        sw_write_rows<T, DIM>(out[m], factors, rows);
    }
}

/* Tiles of keys and of values take turns: one arrives while the other is multiplied. */
template <typename T, int DIM, bool SMALL>
static __global__ void __launch_bounds__(sw_attention_tiles<T, DIM, SMALL>::forward_threads, 2)
    forward_kernel(sw_attention shape, const T *q, const T *k, const T *v, T *o, float *log_sum_exp, bool q_aligned,
                   bool kv_aligned, bool o_paired) {
    typedef sw_attention_tiles<T, DIM, SMALL> tiles;
    enum { ROWS = tiles::forward_rows, KEYS = tiles::forward_streamed, THREADS = tiles::forward_threads };
    enum { TILES = tiles::warp_tiles, COLS = DIM / SW_FRAGMENT_COLS };
    SW_DYNAMIC_SHARED(shared);
    SW_STATE_SHARED((shared_memory<T, DIM, SMALL>::bytes));
    T *q_tile = (T *)shared, *k_tile = q_tile + (SMALL ? 0 : ROWS * tiles::stride);
    T *v_tile = k_tile + KEYS * tiles::stride;
    int *first_keys = (int *)(v_tile + KEYS * tiles::stride);
    sw_block_rows *kept = (sw_block_rows *)(first_keys + ROWS);
    const sw_block_rows own = sw_last_rows_first(shape, shape.heads, ROWS);
    const int kv_head = own.head / (int)(shape.heads / shape.kv_heads);
    const int64_t all_keys = shape.past + shape.seq, end = sw_least(shape.past + own.first + ROWS, all_keys);
    const int64_t begin = sw_first_key(shape, own.batch, shape.past + own.first) / KEYS * KEYS;
    const int count = (int)(end - begin), warp_row = (int)(threadIdx.x / SW_WARP) * tiles::warp_rows;
    const sw_warp_keys seen = sw_warp_keys_of(shape, own.batch, own.first + warp_row, tiles::warp_rows, begin);
    const sw_head_rows<T> queries =
        sw_input_head_of(q, shape.q_stride, shape.seq, own.batch, own.head, shape, q_aligned);
    const sw_head_rows<T> keys = sw_input_head_of(k, shape.k_stride, all_keys, own.batch, kv_head, shape, kv_aligned);
    const sw_head_rows<T> values = sw_input_head_of(v, shape.v_stride, all_keys, own.batch, kv_head, shape, kv_aligned);
    const T *next_queries = sw_piece_of<T, DIM, THREADS>(queries, own.first);
    const T *next_keys = sw_piece_of<T, DIM, THREADS>(keys, begin);
    const T *next_values = sw_piece_of<T, DIM, THREADS>(values, begin);
    sw_bring<T, DIM, ROWS, THREADS>(q_tile, &next_queries, queries, (int)shape.seq - own.first);
    sw_fragment_a<T> held[DIM / SW_FRAGMENT_DEPTH];
    if constexpr (SMALL)
        sw_hold_rows<T, DIM>(held, q_tile + warp_row * tiles::stride);
    sw_bring<T, DIM, KEYS, THREADS>(k_tile, &next_keys, keys, count);
    sw_commit_copies();
    for (int row = (int)threadIdx.x; row < ROWS; row += THREADS)
        first_keys[row] = sw_keys_seen(shape, own.batch, own.first + row, begin).first;
    if (threadIdx.x == 0)
        *kept = own; /* the loop has no registers for it */
    sw_fragment_c out[TILES][COLS] = {};
    query_state<TILES> state;
    for (int m = 0; m < TILES; m++) {
        state.max[m][0] = state.max[m][1] = -INFINITY;
        state.sum[m][0] = state.sum[m][1] = 0.0f;
    }
    for (int at = 0; at < count; at += KEYS) {
        const bool some = sw_some_seen(seen, tiles::warp_rows, at);
        sw_fragment_c scores[TILES][KEYS / SW_FRAGMENT_COLS] = {};
        sw_wait_copies<0>();
        __syncthreads();
        sw_bring<T, DIM, KEYS, THREADS>(v_tile, &next_values, values, count - at);
        sw_commit_copies();
        if constexpr (SMALL) {
            if (some)
                sw_multiply_held<T, DIM, KEYS>(scores, held, k_tile, tiles::stride);
        } else if (some) {
            sw_multiply_rows<T, TILES, DIM, KEYS>(scores, q_tile + warp_row * tiles::stride, k_tile, tiles::stride);
        }
        sw_wait_copies<0>();
        __syncthreads();
        if (at + KEYS < count)
            sw_bring<T, DIM, KEYS, THREADS>(k_tile, &next_keys, keys, count - at - KEYS);
        sw_commit_copies();
        if (!some)
            continue;
        float rescale[TILES][2];
        if (shape.alibi_heads > 0)
            sw_bias_scores<KEYS, TILES>(kept->slope, at - seen.last, scores);
        if (!sw_all_seen(seen, at, KEYS))
            sw_hide_scores<KEYS, TILES>(first_keys + warp_row, seen.last, at, scores);
        raise_max<KEYS, TILES>(&state, scores, shape.scale * SW_LOG2_E, rescale);
        rescale_sums<DIM, TILES>(&state, out, rescale);
        take_scores<KEYS, TILES>(&state, scores, shape.scale * SW_LOG2_E);
        sw_multiply_columns<T, TILES, KEYS, DIM>(out, scores, v_tile, tiles::stride);
    }
    write_queries<T, DIM, TILES>(shape, state, out, *kept, warp_row, o, o_paired, log_sum_exp);
}

template <typename T, int DIM, bool SMALL>
static void launch_forward(cudaStream_t stream, const sw_attention_forward *op) {
    typedef sw_attention_tiles<T, DIM, SMALL> tiles;
    const sw_attention s = sw_kernel_shape(op->shape);
    const T *q = (const T *)op->q, *k = (const T *)op->k, *v = (const T *)op->v;
    const int64_t blocks = sw_blocks(s.seq, tiles::forward_rows) * s.heads * s.batch;
    constexpr size_t bytes = shared_memory<T, DIM, SMALL>::bytes;
    const bool kv_aligned = sw_head_aligned<T>(&s, k, s.k_stride) && sw_head_aligned<T>(&s, v, s.v_stride);
    SW_ALLOW_SHARED((forward_kernel<T, DIM, SMALL>), bytes);
    SW_LAUNCH((forward_kernel<T, DIM, SMALL>), (unsigned)blocks, tiles::forward_threads, bytes, stream, s, q, k, v,
              (T *)op->o, op->log_sum_exp, sw_head_aligned<T>(&s, q, s.q_stride), kv_aligned,
              sw_head_paired<T>(&s, op->o, s.o_stride));
}

template <typename T, int DIM> static void forward_dim(cudaStream_t stream, const sw_attention_forward *op) {
    constexpr size_t bytes = shared_memory<T, DIM, false>::bytes;
    SW_FOR_TILES(T, DIM, bytes, launch_forward, stream, op);
}

template <typename T> static void forward(cudaStream_t stream, const sw_attention_forward *op) {
    SW_FOR_DIM(T, op->shape->head_dim, forward_dim, stream, op);
}

void sw_cuda_attention_forward(cudaStream_t stream, const void *args) {
    const sw_attention_forward *op = (const sw_attention_forward *)args;
    SW_FOR_TYPE(op->type, forward, stream, op);
}
