/* Attention, forward: a block takes a tile of queries of one head over all keys that they see, keeping for each query
 * the greatest score and the sum of exponentials so far (FlashAttention-2, algorithm 1). */
#include "kernels/cuda/attention.cuh"

namespace {
/* What a lane keeps of its two queries, rows g and g+8 of the warp's 16. The greatest score is yet to be scaled. */
struct query_state {
    sw_seen seen[2];
    float max[2], sum[2];
};
} // namespace

/* The queries from `first` on, and what they see counted from the key `from`. */
static __device__ __forceinline__ query_state state_of(const sw_attention &shape, int64_t batch, int64_t first,
                                                       int64_t from) {
    query_state s;
    for (int r = 0; r < 2; r++) {
        s.seen[r] = sw_keys_seen(shape, batch, first + sw_lane() / 4 + r * 8, from);
        s.max[r] = -INFINITY;
        s.sum[r] = 0.0f;
    }
    return s;
}

/* Hides the scores of a tile that are not seen, and moves on to the next tile. Most tiles are seen whole by all queries
 * of a warp. */
template <int KEYS>
static __device__ __forceinline__ void hide_scores(query_state *s, sw_fragment_c scores[KEYS / SW_FRAGMENT_COLS]) {
    const bool whole =
        s->seen[0].first <= 0 && s->seen[0].last >= KEYS - 1 && s->seen[1].first <= 0 && s->seen[1].last >= KEYS - 1;
    if (__ballot_sync(SW_ALL_LANES, whole) != SW_ALL_LANES) {
        SW_UNROLL
        for (int n = 0; n < KEYS / SW_FRAGMENT_COLS; n++) {
            for (int i = 0; i < 4; i++) {
                const int key = n * SW_FRAGMENT_COLS + sw_lane() % 4 * 2 + i % 2;
                if (!sw_sees(s->seen[i / 2], key))
                    scores[n].values[i] = -INFINITY;
            }
        }
    }
    for (int r = 0; r < 2; r++) {
        s->seen[r].first -= KEYS;
        s->seen[r].last -= KEYS;
    }
}

/* Scores become exponentials, and what was summed before is scaled to the new maximum. */
template <int KEYS, int DIM>
static __device__ __forceinline__ void take_scores(query_state *s, sw_fragment_c scores[KEYS / SW_FRAGMENT_COLS],
                                                   sw_fragment_c out[DIM / SW_FRAGMENT_COLS], float scale_log2) {
    SW_UNROLL
    for (int r = 0; r < 2; r++) {
        float max = s->max[r];
        SW_UNROLL
        for (int n = 0; n < KEYS / SW_FRAGMENT_COLS; n++)
            max = fmaxf(max, fmaxf(scores[n].values[2 * r], scores[n].values[2 * r + 1]));
        max = sw_quad_max(max);
        const float base = max == -INFINITY ? 0.0f : max * scale_log2;
        const float rescale = sw_exp2(fmaf(s->max[r], scale_log2, -base));
        s->max[r] = max;
        s->sum[r] *= rescale;
        SW_UNROLL
        for (int n = 0; n < KEYS / SW_FRAGMENT_COLS; n++) {
            for (int i = 2 * r; i < 2 * r + 2; i++) {
                scores[n].values[i] = sw_exp2(fmaf(scores[n].values[i], scale_log2, -base));
                s->sum[r] += scores[n].values[i];
            }
        }
        SW_UNROLL
        for (int n = 0; n < DIM / SW_FRAGMENT_COLS; n++) {
            out[n].values[2 * r] *= rescale;
            out[n].values[2 * r + 1] *= rescale;
        }
    }
}

/* `first` is the warp's first query. */
template <typename T, int DIM>
static __device__ __forceinline__ void
write_queries(const sw_attention &shape, const query_state &s, const sw_fragment_c out[DIM / SW_FRAGMENT_COLS],
              int64_t batch, int64_t head, int64_t first, T *o, bool paired, float *log_sum_exp) {
    const float scale_log2 = shape.scale * SW_LOG2_E;
    float factors[2];
    for (int r = 0; r < 2; r++) {
        const float sum = sw_quad_sum(s.sum[r]);
        const int64_t token = first + sw_lane() / 4 + r * 8;
        factors[r] = 1.0f / sum;
        if (token < shape.seq && sw_lane() % 4 == 0)
            log_sum_exp[(batch * shape.heads + head) * shape.seq + token] = s.max[r] * scale_log2 * SW_LN_2 + logf(sum);
    }
    const sw_rows_to<T> rows = {o + (batch * shape.seq + first) * shape.o_stride + head * shape.head_dim,
                                shape.o_stride, shape.seq - first, (int)shape.head_dim, paired};
    sw_write_rows<T, DIM>(out, factors, rows);
}

template <typename T, int DIM>
static __global__ void __launch_bounds__(sw_attention_tiles<T, DIM>::forward_rows * 2)
    forward_kernel(sw_attention shape, const T *q, const T *k, const T *v, T *o, float *log_sum_exp, bool q_aligned,
                   bool kv_aligned, bool o_paired) {
    typedef sw_attention_tiles<T, DIM> tiles;
    enum { ROWS = tiles::forward_rows, KEYS = tiles::forward_streamed, STAGES = tiles::stages, THREADS = ROWS * 2 };
    SW_DYNAMIC_SHARED(shared);
    T *q_tile = (T *)shared, *kv_tiles = q_tile + ROWS * tiles::stride;
    const int64_t tile_count = (shape.seq + ROWS - 1) / ROWS;
    /* The last queries see the most keys, so they start first. */
    const int64_t first = (tile_count - 1 - blockIdx.x % tile_count) * ROWS;
    const int64_t head = blockIdx.x / tile_count % shape.heads, batch = blockIdx.x / tile_count / shape.heads;
    const int64_t kv_head = head / (shape.heads / shape.kv_heads);
    const int64_t all_keys = shape.past + shape.seq;
    const sw_head_rows<T> keys = sw_head_of(k, shape.k_stride, all_keys, batch, kv_head, shape, kv_aligned);
    const sw_head_rows<T> values = sw_head_of(v, shape.v_stride, all_keys, batch, kv_head, shape, kv_aligned);
    const int64_t warp_first = first + threadIdx.x / SW_WARP * SW_FRAGMENT_ROWS;
    const T *q_rows = q_tile + threadIdx.x / SW_WARP * SW_FRAGMENT_ROWS * tiles::stride;
    sw_fragment_c out[DIM / SW_FRAGMENT_COLS] = {};
    const int64_t begin = sw_first_key(shape, batch, shape.past + first) / KEYS * KEYS;
    const int64_t end = first + ROWS < shape.seq ? shape.past + first + ROWS : all_keys;
    query_state state = state_of(shape, batch, warp_first, begin);
    auto bring = [&](int64_t key) {
        T *tile = kv_tiles + key / KEYS % STAGES * 2 * KEYS * tiles::stride;
        if (key < end) {
            sw_bring_tile<T, DIM, KEYS, THREADS>(tile, keys, key);
            sw_bring_tile<T, DIM, KEYS, THREADS>(tile + KEYS * tiles::stride, values, key);
        }
        sw_commit_copies();
    };
    sw_bring_tile<T, DIM, ROWS, THREADS>(
        q_tile, sw_head_of(q, shape.q_stride, shape.seq, batch, head, shape, q_aligned), first);
    bring(begin);
    for (int64_t key = begin; key < end; key += KEYS) {
        if (STAGES == 2)
            bring(key + KEYS);
        sw_wait_copies<STAGES - 1>();
        __syncthreads();
        const T *tile = kv_tiles + key / KEYS % STAGES * 2 * KEYS * tiles::stride;
        sw_fragment_c scores[KEYS / SW_FRAGMENT_COLS] = {};
        sw_multiply_rows<T, DIM, KEYS>(scores, q_rows, tile, tiles::stride);
        hide_scores<KEYS>(&state, scores);
        take_scores<KEYS, DIM>(&state, scores, out, shape.scale * SW_LOG2_E);
        sw_multiply_columns<T, KEYS, DIM>(out, scores, tile + KEYS * tiles::stride, tiles::stride);
        __syncthreads();
        if (STAGES == 1)
            bring(key + KEYS);
    }
    write_queries<T, DIM>(shape, state, out, batch, head, warp_first, o, o_paired, log_sum_exp);
}

template <typename T, int DIM>
static void forward_dim(cudaStream_t stream, const sw_attention *shape, const void *q, const void *k, const void *v,
                        void *o, float *log_sum_exp) {
    typedef sw_attention_tiles<T, DIM> tiles;
    const sw_attention s = *shape;
    const int64_t blocks = sw_blocks(s.seq, tiles::forward_rows) * s.heads * s.batch;
    constexpr size_t bytes =
        (size_t)(tiles::forward_rows + tiles::stages * 2 * tiles::forward_streamed) * tiles::stride * sizeof(T);
    static_assert(bytes <= SW_MOST_SHARED_BYTES, "a GPU refuses the launch otherwise");
    const bool kv_aligned = sw_head_aligned<T>(shape, k, s.k_stride) && sw_head_aligned<T>(shape, v, s.v_stride);
    SW_ALLOW_SHARED((forward_kernel<T, DIM>), bytes);
    SW_LAUNCH((forward_kernel<T, DIM>), (unsigned)blocks, tiles::forward_rows * 2, bytes, stream, s, (const T *)q,
              (const T *)k, (const T *)v, (T *)o, log_sum_exp, sw_head_aligned<T>(shape, q, s.q_stride), kv_aligned,
              sw_head_paired<T>(shape, o, s.o_stride));
}

template <typename T>
static void forward(cudaStream_t stream, const sw_attention *shape, const void *q, const void *k, const void *v,
                    void *o, float *log_sum_exp) {
    SW_FOR_DIM(T, shape->head_dim, forward_dim, stream, shape, q, k, v, o, log_sum_exp);
}

void sw_cuda_attention_forward(cudaStream_t stream, sw_dtype type, const struct sw_attention *shape, const void *q,
                               const void *k, const void *v, void *o, float *log_sum_exp, void *scratch) {
    (void)scratch;
    SW_FOR_TYPE(type, forward, stream, shape, q, k, v, o, log_sum_exp);
}
