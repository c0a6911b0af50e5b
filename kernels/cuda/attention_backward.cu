/* Attention, backward (FlashAttention-2, algorithm 2, without its atomic sums): one kernel makes the gradients of keys
 * and values, a block for each tile of keys over the queries that see it; another those of queries. Both work out the
 * scores again. No sum is shared between blocks, so the bits are the same in every run. */
#include "kernels/cuda/attention_delta.cuh"

namespace {
/* What is known of a query: its log-sum-exp in units of log2(e), delta, and the keys that it sees. */
struct query {
    float lse_log2, delta;
    sw_seen seen;
};

template <typename T> struct tensors {
    const T *q, *k, *v, *d_o;
    const float *log_sum_exp, *delta;
    T *dq, *dk, *dv;
    bool q_aligned, kv_aligned, d_o_aligned, q_paired, kv_paired;
};

/* A block's place: its tile of rows, head and sequence. */
struct place {
    int64_t first, head, batch;
};
} // namespace

/* What it sees is counted from the key `from`. */
static __device__ __forceinline__ query query_of(const sw_attention &shape, const float *log_sum_exp,
                                                 const float *delta, int64_t batch, int64_t head, int64_t t,
                                                 int64_t from) {
    query found = {0.0f, 0.0f, sw_keys_seen(shape, batch, t, from)};
    if (t < shape.seq) {
        const int64_t at = (batch * shape.heads + head) * shape.seq + t;
        found.lse_log2 = log_sum_exp[at] * SW_LOG2_E;
        found.delta = delta[at];
    }
    return found;
}

/* A score becomes a probability, and the gradient of the probability that of the score (but for the scale). */
static __device__ __forceinline__ void take_score(const query &of, int key, float scale_log2, float *score,
                                                  float *gradient) {
    *score = sw_sees(of.seen, key) ? sw_exp2(fmaf(*score, scale_log2, -of.lse_log2)) : 0.0f;
    *gradient = *score * (*gradient - of.delta);
}

/* The end of the run of query tiles that see a tile of keys, the last of which is last_key. */
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

/* A tile of queries, and of d_o behind it, meets the warp's 16 keys. Keys are rows here, so the transposed scores and
 * their gradients become left operands where they are. The gradients are those of a slice of columns. */
template <typename T, int DIM>
static __device__ __forceinline__ void keys_step(const T *k_rows, const T *v_rows, const T *q_tile, const query *of,
                                                 int first_key, int64_t column, float scale_log2, sw_fragment_c *dk,
                                                 sw_fragment_c *dv) {
    typedef sw_attention_tiles<T, DIM> tiles;
    enum { QUERIES = tiles::backward_streamed };
    const T *d_o_tile = q_tile + QUERIES * tiles::stride;
    sw_fragment_c p[QUERIES / SW_FRAGMENT_COLS] = {}, ds[QUERIES / SW_FRAGMENT_COLS] = {};
    sw_multiply_rows<T, DIM, QUERIES>(p, k_rows, q_tile, tiles::stride);
    sw_multiply_rows<T, DIM, QUERIES>(ds, v_rows, d_o_tile, tiles::stride);
    SW_UNROLL
    for (int n = 0; n < QUERIES / SW_FRAGMENT_COLS; n++) {
        for (int i = 0; i < 4; i++)
            take_score(of[n * SW_FRAGMENT_COLS + sw_lane() % 4 * 2 + i % 2], first_key + sw_lane() / 4 + i / 2 * 8,
                       scale_log2, &p[n].values[i], &ds[n].values[i]);
    }
    sw_multiply_columns<T, QUERIES, tiles::slice>(dv, p, d_o_tile + column, tiles::stride);
    sw_multiply_columns<T, QUERIES, tiles::slice>(dk, ds, q_tile + column, tiles::stride);
}

template <typename T, int SLICE>
static __device__ __forceinline__ void write_keys(const sw_attention &shape, const tensors<T> &t, const place &own,
                                                  int warp_row, int64_t column, const sw_fragment_c *dk,
                                                  const sw_fragment_c *dv) {
    const int64_t row = own.batch * shape.seq + own.first + warp_row, col = own.head * shape.head_dim + column;
    const int64_t rows = shape.seq - own.first - warp_row;
    const int columns = (int)(shape.head_dim - column);
    const float whole[2] = {1.0f, 1.0f}, scaled[2] = {shape.scale, shape.scale};
    const sw_rows_to<T> dv_rows = {t.dv + row * shape.v_stride + col, shape.v_stride, rows, columns, t.kv_paired};
    const sw_rows_to<T> dk_rows = {t.dk + row * shape.k_stride + col, shape.k_stride, rows, columns, t.kv_paired};
    sw_write_rows<T, SLICE>(dv, whole, dv_rows);
    sw_write_rows<T, SLICE>(dk, scaled, dk_rows);
}

template <typename T, int DIM>
static __global__ void __launch_bounds__(sw_attention_tiles<T, DIM>::backward_rows * 2)
    keys_kernel(sw_attention shape, tensors<T> t) {
    typedef sw_attention_tiles<T, DIM> tiles;
    enum { KEYS = tiles::backward_rows, QUERIES = tiles::backward_streamed, STAGES = tiles::stages };
    enum { THREADS = KEYS * 2, SLICE = tiles::slice, SLICES = DIM / SLICE, STAGE_ELEMS = 2 * QUERIES * tiles::stride };
    SW_DYNAMIC_SHARED(shared);
    T *k_tile = (T *)shared, *v_tile = k_tile + KEYS * tiles::stride, *streamed = v_tile + KEYS * tiles::stride;
    query *queries = (query *)(streamed + STAGES * STAGE_ELEMS);
    const int64_t tile_count = (shape.seq + KEYS - 1) / KEYS, group = shape.heads / shape.kv_heads;
    const int64_t item = blockIdx.x / SLICES, column = blockIdx.x % SLICES * SLICE;
    const place own = {item % tile_count * KEYS, item / tile_count % shape.kv_heads,
                       item / tile_count / shape.kv_heads};
    const int64_t begin = own.first / QUERIES * QUERIES;
    const int64_t end = queries_end(shape, own.batch, begin, QUERIES, own.first + KEYS - 1);
    const int64_t per_head = (end - begin) / QUERIES, steps = group * per_head;
    const int warp_row = (int)threadIdx.x / SW_WARP * SW_FRAGMENT_ROWS;
    sw_fragment_c dk[SLICE / SW_FRAGMENT_COLS] = {}, dv[SLICE / SW_FRAGMENT_COLS] = {};
    auto bring = [&](int64_t step) {
        if (step < steps) {
            const int64_t head = own.head * group + step / per_head, first = begin + step % per_head * QUERIES;
            T *tile = streamed + step % STAGES * STAGE_ELEMS;
            sw_bring_tile<T, DIM, QUERIES, THREADS>(
                tile, sw_head_of(t.q, shape.q_stride, shape.seq, own.batch, head, shape, t.q_aligned), first);
            sw_bring_tile<T, DIM, QUERIES, THREADS>(
                tile + QUERIES * tiles::stride,
                sw_head_of(t.d_o, shape.o_stride, shape.seq, own.batch, head, shape, t.d_o_aligned), first);
            if (threadIdx.x < QUERIES)
                queries[step % STAGES * QUERIES + threadIdx.x] =
                    query_of(shape, t.log_sum_exp, t.delta, own.batch, head, first + threadIdx.x, own.first);
        }
        sw_commit_copies();
    };
    sw_bring_tile<T, DIM, KEYS, THREADS>(
        k_tile, sw_head_of(t.k, shape.k_stride, shape.seq, own.batch, own.head, shape, t.kv_aligned), own.first);
    sw_bring_tile<T, DIM, KEYS, THREADS>(
        v_tile, sw_head_of(t.v, shape.v_stride, shape.seq, own.batch, own.head, shape, t.kv_aligned), own.first);
    bring(0);
    for (int64_t step = 0; step < steps; step++) {
        if (STAGES == 2)
            bring(step + 1);
        sw_wait_copies<STAGES - 1>();
        __syncthreads();
        keys_step<T, DIM>(k_tile + warp_row * tiles::stride, v_tile + warp_row * tiles::stride,
                          streamed + step % STAGES * STAGE_ELEMS, queries + step % STAGES * QUERIES, warp_row, column,
                          shape.scale * SW_LOG2_E, dk, dv);
        __syncthreads();
        if (STAGES == 1)
            bring(step + 1);
    }
    write_keys<T, tiles::slice>(shape, t, own, warp_row, column, dk, dv);
}

/* A tile of keys and values meets the warp's 16 queries. */
template <typename T, int DIM>
static __device__ __forceinline__ void queries_step(const T *q_rows, const T *d_o_rows, const T *k_tile, query of[2],
                                                    float scale_log2, sw_fragment_c dq[DIM / SW_FRAGMENT_COLS]) {
    typedef sw_attention_tiles<T, DIM> tiles;
    enum { KEYS = tiles::backward_streamed };
    sw_fragment_c p[KEYS / SW_FRAGMENT_COLS] = {}, ds[KEYS / SW_FRAGMENT_COLS] = {};
    sw_multiply_rows<T, DIM, KEYS>(p, q_rows, k_tile, tiles::stride);
    sw_multiply_rows<T, DIM, KEYS>(ds, d_o_rows, k_tile + KEYS * tiles::stride, tiles::stride);
    SW_UNROLL
    for (int n = 0; n < KEYS / SW_FRAGMENT_COLS; n++) {
        for (int i = 0; i < 4; i++)
            take_score(of[i / 2], n * SW_FRAGMENT_COLS + sw_lane() % 4 * 2 + i % 2, scale_log2, &p[n].values[i],
                       &ds[n].values[i]);
    }
    for (int r = 0; r < 2; r++) {
        of[r].seen.first -= KEYS;
        of[r].seen.last -= KEYS;
    }
    sw_multiply_columns<T, KEYS, DIM>(dq, ds, k_tile, tiles::stride);
}

template <typename T, int DIM>
static __global__ void __launch_bounds__(sw_attention_tiles<T, DIM>::backward_rows * 2)
    queries_kernel(sw_attention shape, tensors<T> t) {
    typedef sw_attention_tiles<T, DIM> tiles;
    enum { QUERIES = tiles::backward_rows, KEYS = tiles::backward_streamed, STAGES = tiles::stages };
    enum { THREADS = QUERIES * 2, STAGE_ELEMS = 2 * KEYS * tiles::stride };
    SW_DYNAMIC_SHARED(shared);
    T *q_tile = (T *)shared, *d_o_tile = q_tile + QUERIES * tiles::stride;
    T *streamed = d_o_tile + QUERIES * tiles::stride;
    const int64_t tile_count = (shape.seq + QUERIES - 1) / QUERIES;
    const place own = {(tile_count - 1 - blockIdx.x % tile_count) * QUERIES, blockIdx.x / tile_count % shape.heads,
                       blockIdx.x / tile_count / shape.heads};
    const int64_t kv_head = own.head / (shape.heads / shape.kv_heads);
    const sw_head_rows<T> keys = sw_head_of(t.k, shape.k_stride, shape.seq, own.batch, kv_head, shape, t.kv_aligned);
    const sw_head_rows<T> values = sw_head_of(t.v, shape.v_stride, shape.seq, own.batch, kv_head, shape, t.kv_aligned);
    const int64_t begin = sw_first_key(shape, own.batch, own.first) / KEYS * KEYS;
    const int64_t end = own.first + QUERIES < shape.seq ? own.first + QUERIES : shape.seq;
    const int warp_row = (int)threadIdx.x / SW_WARP * SW_FRAGMENT_ROWS;
    const int64_t token = own.first + warp_row + sw_lane() / 4;
    query of[2];
    for (int r = 0; r < 2; r++)
        of[r] = query_of(shape, t.log_sum_exp, t.delta, own.batch, own.head, token + r * 8, begin);
    sw_fragment_c dq[DIM / SW_FRAGMENT_COLS] = {};
    auto bring = [&](int64_t key) {
        T *tile = streamed + key / KEYS % STAGES * STAGE_ELEMS;
        if (key < end) {
            sw_bring_tile<T, DIM, KEYS, THREADS>(tile, keys, key);
            sw_bring_tile<T, DIM, KEYS, THREADS>(tile + KEYS * tiles::stride, values, key);
        }
        sw_commit_copies();
    };
    sw_bring_tile<T, DIM, QUERIES, THREADS>(
        q_tile, sw_head_of(t.q, shape.q_stride, shape.seq, own.batch, own.head, shape, t.q_aligned), own.first);
    sw_bring_tile<T, DIM, QUERIES, THREADS>(
        d_o_tile, sw_head_of(t.d_o, shape.o_stride, shape.seq, own.batch, own.head, shape, t.d_o_aligned), own.first);
    bring(begin);
    for (int64_t key = begin; key < end; key += KEYS) {
        if (STAGES == 2)
            bring(key + KEYS);
        sw_wait_copies<STAGES - 1>();
        __syncthreads();
        queries_step<T, DIM>(q_tile + warp_row * tiles::stride, d_o_tile + warp_row * tiles::stride,
                             streamed + key / KEYS % STAGES * STAGE_ELEMS, of, shape.scale * SW_LOG2_E, dq);
        __syncthreads();
        if (STAGES == 1)
            bring(key + KEYS);
    }
    const float scaled[2] = {shape.scale, shape.scale};
    const sw_rows_to<T> rows = {t.dq + (own.batch * shape.seq + own.first + warp_row) * shape.q_stride +
                                    own.head * shape.head_dim,
                                shape.q_stride, shape.seq - own.first - warp_row, (int)shape.head_dim, t.q_paired};
    sw_write_rows<T, DIM>(dq, scaled, rows);
}

template <typename T, int DIM> static void backward_dim(cudaStream_t stream, const sw_attention *shape, tensors<T> t) {
    typedef sw_attention_tiles<T, DIM> tiles;
    const sw_attention s = *shape;
    const int64_t row_tiles = sw_blocks(s.seq, tiles::backward_rows) * s.batch;
    constexpr size_t tile_bytes =
        (size_t)(2 * tiles::backward_rows + tiles::stages * 2 * tiles::backward_streamed) * tiles::stride * sizeof(T);
    constexpr size_t query_bytes = (size_t)tiles::stages * tiles::backward_streamed * sizeof(query);
    static_assert(tile_bytes + query_bytes <= SW_MOST_SHARED_BYTES, "a GPU refuses the launch otherwise");
    SW_ALLOW_SHARED((keys_kernel<T, DIM>), tile_bytes + query_bytes);
    SW_LAUNCH((keys_kernel<T, DIM>), (unsigned)(row_tiles * s.kv_heads * (DIM / tiles::slice)),
              tiles::backward_rows * 2, tile_bytes + query_bytes, stream, s, t);
    SW_ALLOW_SHARED((queries_kernel<T, DIM>), tile_bytes);
    SW_LAUNCH((queries_kernel<T, DIM>), (unsigned)(row_tiles * s.heads), tiles::backward_rows * 2, tile_bytes, stream,
              s, t);
}

template <typename T>
static void backward(cudaStream_t stream, const sw_attention *shape, const void *q, const void *k, const void *v,
                     const void *o, const void *d_o, const float *log_sum_exp, void *dq, void *dk, void *dv,
                     float *delta) {
    sw_launch_delta(stream, shape, (const T *)o, (const T *)d_o, delta);
    tensors<T> t = {};
    t.q = (const T *)q;
    t.k = (const T *)k;
    t.v = (const T *)v;
    t.d_o = (const T *)d_o;
    t.log_sum_exp = log_sum_exp;
    t.delta = delta;
    t.dq = (T *)dq;
    t.dk = (T *)dk;
    t.dv = (T *)dv;
    t.q_aligned = sw_head_aligned<T>(shape, q, shape->q_stride);
    t.kv_aligned = sw_head_aligned<T>(shape, k, shape->k_stride) && sw_head_aligned<T>(shape, v, shape->v_stride);
    t.d_o_aligned = sw_head_aligned<T>(shape, d_o, shape->o_stride);
    t.q_paired = sw_head_paired<T>(shape, dq, shape->q_stride);
    t.kv_paired = sw_head_paired<T>(shape, dk, shape->k_stride) && sw_head_paired<T>(shape, dv, shape->v_stride);
    SW_FOR_DIM(T, shape->head_dim, backward_dim, stream, shape, t);
}

int64_t sw_cuda_attention_scratch_bytes(const struct sw_attention *shape, sw_dtype type) {
    (void)type;
    return shape->batch * shape->heads * shape->seq * (int64_t)sizeof(float);
}

void sw_cuda_attention_backward(cudaStream_t stream, sw_dtype type, const struct sw_attention *shape, const void *q,
                                const void *k, const void *v, const void *o, const void *d_o, const float *log_sum_exp,
                                void *dq, void *dk, void *dv, void *scratch) {
    SW_FOR_TYPE(type, backward, stream, shape, q, k, v, o, d_o, log_sum_exp, dq, dk, dv, (float *)scratch);
}
