/* Attention, backward, for GPUs of capability 9.0 (FlashAttention-2, algorithm 2, without its atomic sums): one kernel
 * makes the gradients of keys and values, with a block for 128 keys over the queries that see them; another
 * makes the gradients of queries. Both recompute the scores. If several query heads share a key head, each has blocks
 * of its own that leave their sums in scratch, and a third kernel adds these sums in the order of heads. */
#include "kernels/cuda/attention/delta.cuh"
#include "kernels/cuda/attention/hopper.cuh"

/* The gradients of keys and values on GPUs of capability 9.0: the kernel that makes them, and the one that adds the
 * parts of query heads which share a key head. */

namespace {
template <typename T> struct tensors {
    const T *q, *k, *v, *d_o;
    const float *log_sum_exp, *delta;
    T *dq, *dk, *dv;
    float *dk_parts, *dv_parts; /* [sequences of a launch, heads, seq, head_dim] */
};

/* The kernel of keys streams 64 queries a step, with one more stage than it has copies under way: products of the step
 * before may still read theirs. */
enum { QUERIES = 64, QUERY_STAGES = 3, QUERY_SCORES = QUERIES / 2 };

/* Values that are streamed with a tile of queries, one for each query; and the first query. */
struct query_columns {
    float log_sum_exp[QUERIES], delta[QUERIES];
    int32_t document_start[QUERIES];
    int first;
};

/* Position of a block of keys, in shared memory because registers are short. */
struct key_block {
    int first, item, batch, kv_head;
};

template <int DIM> struct key_tiles {
    static constexpr int own_bytes = SW_HOPPER_ROWS * DIM * 2, streamed_bytes = QUERIES * DIM * 2;
    static constexpr int bytes = SW_PATTERN_BYTES + 2 * own_bytes + 2 * QUERY_STAGES * streamed_bytes +
                                 QUERY_STAGES * (int)sizeof(query_columns) + (int)sizeof(key_block);
    char *k;
    __device__ char *v() const {
        return k + own_bytes;
    }
    __device__ char *queries(int step) const {
        return k + 2 * own_bytes + 2 * (step % QUERY_STAGES) * streamed_bytes;
    }
    __device__ char *d_o(int step) const {
        return queries(step) + streamed_bytes;
    }
    __device__ query_columns *columns(int step) const {
        return (query_columns *)(k + 2 * own_bytes + 2 * QUERY_STAGES * streamed_bytes) + step % QUERY_STAGES;
    }
    __device__ key_block *block() const {
        return (key_block *)(columns(0) + QUERY_STAGES);
    }
};

} // namespace

/* Returns the end of the run of query tiles that see a tile of keys, whose last key is last_key. */
static __device__ __forceinline__ int queries_end(const sw_attention &shape, int64_t batch, int begin, int last_key) {
    int low = begin / QUERIES, high = (int)((shape.seq + QUERIES - 1) / QUERIES);
    while (low < high) {
        const int middle = (low + high) / 2;
        if (middle * QUERIES <= last_key || sw_first_key(shape, batch, middle * QUERIES) <= last_key)
            low = middle + 1;
        else
            high = middle;
    }
    return low * QUERIES;
}

/* Returns the first key that the query of a column sees. */
static __device__ __forceinline__ int first_seen(const query_columns *of, int column, int window) {
    const int in_window = window > 0 ? of->first + column - window + 1 : 0, in_document = of->document_start[column];
    return in_window > in_document ? in_window : in_document;
}

/* Hides the warp's 16 keys from the queries of a step that do not see them. The block's keys begin at `block_first`.
 * Queries beyond the last have rows of zeros, and add nothing in either case. */
static __device__ __forceinline__ void hide_keys(const query_columns *of, int block_first, int seq, int window,
                                                 float (&p)[QUERY_SCORES]) {
    const int first_key = block_first + (int)threadIdx.x / SW_WARP * SW_FRAGMENT_ROWS;
    const int left = seq - of->first, last = left < QUERIES ? left - 1 : QUERIES - 1;
    if (first_key + SW_FRAGMENT_ROWS - 1 <= of->first && first_key >= first_seen(of, last, window))
        return;
    const int key = first_key + sw_lane() / 4;
    SW_UNROLL
    for (int i = 0; i < QUERY_SCORES; i += 4) {
        for (int e = 0; e < 2; e++) {
            const int column = sw_sum_column(i + e);
            const sw_seen seen = {first_seen(of, column, window), of->first + column};
            p[i + e] = sw_sees(seen, key) ? p[i + e] : 0.0f;
            p[i + e + 2] = sw_sees(seen, key + 8) ? p[i + e + 2] : 0.0f;
        }
    }
}

/* Turns scores into probabilities. */
static __device__ __forceinline__ void take_probabilities(const query_columns *of, float scale_log2,
                                                          float (&p)[QUERY_SCORES]) {
    SW_UNROLL
    for (int i = 0; i < QUERY_SCORES; i += 4) {
        for (int e = 0; e < 2; e++) {
            const float log2_sum = of->log_sum_exp[sw_sum_column(i + e)] * SW_LOG2_E;
            for (int r = 0; r < 4; r += 2)
                p[i + e + r] = sw_exp2(fmaf(p[i + e + r], scale_log2, -log2_sum));
        }
    }
}

/* Turns the gradients of probabilities into gradients of scores, without the factor `scale`. */
static __device__ __forceinline__ void take_gradients(const query_columns *of, const float (&p)[QUERY_SCORES],
                                                      float (&ds)[QUERY_SCORES]) {
    SW_UNROLL
    for (int i = 0; i < QUERY_SCORES; i++)
        ds[i] = p[i] * (ds[i] - of->delta[sw_sum_column(i)]);
}

/* Walks over the queries: all tiles of a head, then all tiles of the next. */
struct query_walk {
    int end, head, first;
    __device__ void next(int begin) {
        first += QUERIES;
        if (first >= end) {
            first = begin;
            head++;
        }
    }
};

/* Starts to bring the tile of queries that a walk is at. */
template <typename T, int DIM>
static __device__ __forceinline__ void bring_queries(const sw_attention &shape, const tensors<T> &t, int64_t batch,
                                                     const query_walk &at, const key_tiles<DIM> &shared, int step) {
    sw_bring_panels<T, DIM, QUERIES>(shared.queries(step),
                                     sw_head_of(t.q, shape.q_stride, shape.seq, batch, at.head, shape, true), at.first);
    sw_bring_panels<T, DIM, QUERIES>(
        shared.d_o(step), sw_head_of(t.d_o, shape.o_stride, shape.seq, batch, at.head, shape, true), at.first);
    if (threadIdx.x < QUERIES) {
        const int column = (int)threadIdx.x;
        const int64_t token = at.first + column, from = (batch * shape.heads + at.head) * shape.seq + token;
        query_columns *to = shared.columns(step);
        const bool none = token >= shape.seq;
        sw_copy4_later(&to->log_sum_exp[column], t.log_sum_exp + from, none);
        sw_copy4_later(&to->delta[column], t.delta + from, none);
        if (column == 0)
            to->first = at.first;
        const bool no_documents = shape.document_start == NULL;
        const int32_t *starts = no_documents ? (const int32_t *)t.log_sum_exp : shape.document_start;
        sw_copy4_later(&to->document_start[column], starts + (no_documents ? 0 : batch * shape.seq + token),
                       none || no_documents);
    }
}

/* State of a warpgroup's 64 keys: their gradients, and operands in registers that products may still read. */
template <int DIM> struct key_sums {
    float dk[DIM / 2], dv[DIM / 2];
    uint32_t p[QUERY_SCORES / 2], ds[QUERY_SCORES / 2];
};

/* A tile of queries meets the warpgroup's keys. Products of the step before run on until the first wait, and the last
 * ones of this step when it returns. */
template <typename T, int DIM, bool FIRST>
static __device__ __forceinline__ void keys_step(const sw_attention &shape, const key_tiles<DIM> &shared, int step,
                                                 key_sums<DIM> &sums) {
    const uint32_t row = sw_hopper_group() * SW_WARPGROUP_ROWS * SW_PANEL_ROW_BYTES;
    const uint32_t k = sw_shared_address(shared.k) + row, v = sw_shared_address(shared.v()) + row;
    const uint32_t q = sw_shared_address(shared.queries(step)), d_o = sw_shared_address(shared.d_o(step));
    float p[QUERY_SCORES], ds[QUERY_SCORES];
    sw_warpgroup_fence();
    sw_start_rows<T, DIM, SW_HOPPER_ROWS, QUERIES>(p, k, q);
    sw_warpgroup_commit();
    if (!FIRST) {
        sw_warpgroup_release<1>();
        sw_finished(sums.p);
        sw_finished(sums.ds);
    }
    sw_warpgroup_fence();
    sw_start_rows<T, DIM, SW_HOPPER_ROWS, QUERIES>(ds, v, d_o);
    sw_warpgroup_commit();
    sw_warpgroup_wait<1>();
    sw_finished(p);
    take_probabilities(shared.columns(step), shape.scale * SW_LOG2_E, p);
    hide_keys(shared.columns(step), shared.block()->first, (int)shape.seq, (int)shape.window, p);
    sw_round_sums<T>(p, sums.p);
    sw_warpgroup_fence();
    sw_start_columns<T, FIRST>(sums.dv, sums.p, d_o);
    sw_warpgroup_commit();
    sw_warpgroup_wait<1>();
    sw_finished(ds);
    take_gradients(shared.columns(step), p, ds);
    sw_round_sums<T>(ds, sums.ds);
    sw_warpgroup_fence();
    sw_start_columns<T, FIRST>(sums.dk, sums.ds, q);
    sw_warpgroup_commit();
}

/* The block's 128 keys over `steps` tiles of queries, which bring(step) starts to bring. */
template <typename T, int DIM, typename Bring>
static __device__ __forceinline__ void go_through_queries(const sw_attention &shape, const key_tiles<DIM> &shared,
                                                          int steps, Bring bring, key_sums<DIM> &sums) {
    sw_end_copies();
    __syncthreads();
    bring(1);
    keys_step<T, DIM, true>(shape, shared, 0, sums);
    for (int step = 1; step < steps; step++) {
        sw_end_copies();
        __syncthreads();
        bring(step + 1);
        keys_step<T, DIM, false>(shape, shared, step, sums);
    }
    sw_warpgroup_wait<0>();
    sw_finished(sums.dk);
    sw_finished(sums.dv);
}

/* Writes the warp's 16 rows of a gradient of keys or values, or of the part that a query head has of it. */
template <typename T>
static __device__ __forceinline__ sw_rows_to<T> gradient_rows(const sw_attention &shape, T *to, int64_t stride,
                                                              int64_t batch, int64_t head, int64_t first) {
    return {to + (batch * shape.seq + first) * stride + head * shape.head_dim, stride, shape.seq - first,
            (int)shape.head_dim, true};
}

template <typename T, int DIM, bool PARTS>
static __device__ __forceinline__ void write_keys(const sw_attention &shape, const tensors<T> &t, const key_block &own,
                                                  const key_sums<DIM> &sums) {
    const int64_t first = own.first + (int)threadIdx.x / SW_WARP * SW_FRAGMENT_ROWS, dim = shape.head_dim;
    const float whole[2] = {1.0f, 1.0f}, scaled[2] = {shape.scale, shape.scale};
    if (PARTS) {
        sw_write_sums(sums.dk, scaled, gradient_rows(shape, t.dk_parts, dim, own.item, 0, first));
        sw_write_sums(sums.dv, whole, gradient_rows(shape, t.dv_parts, dim, own.item, 0, first));
    } else {
        sw_write_sums(sums.dk, scaled, gradient_rows(shape, t.dk, shape.k_stride, own.batch, own.kv_head, first));
        sw_write_sums(sums.dv, whole, gradient_rows(shape, t.dv, shape.v_stride, own.batch, own.kv_head, first));
    }
}

/* PARTS: a block is for one query head and leaves a part; otherwise for a key head and all its query heads. Items begin
 * with the sequence first_batch. */
template <typename T, int DIM, bool PARTS>
static __global__ void __launch_bounds__(SW_HOPPER_THREADS, 1)
    keys_kernel(sw_attention shape, tensors<T> t, sw_hopper_grid grid, int first_batch) {
    SW_DYNAMIC_SHARED(memory);
    SW_STATE_SHARED(key_tiles<DIM>::bytes);
    const key_tiles<DIM> shared = {sw_first_pattern(memory)};
    const sw_hopper_block own = sw_hopper_block_of<false>(grid);
    const int group = (int)(shape.heads / shape.kv_heads), in_item = PARTS ? 1 : group;
    const int items = (int)shape.heads / in_item, batch = first_batch + own.item / items;
    const int first_head = own.item % items * in_item, kv_head = first_head / group;
    const int end = queries_end(shape, batch, own.first, own.first + SW_HOPPER_ROWS - 1);
    const int steps = in_item * ((end - own.first) / QUERIES);
    query_walk next = {end, first_head, own.first};
    if (threadIdx.x == 0)
        *shared.block() = {own.first, own.item, batch, kv_head};
    sw_bring_panels<T, DIM, SW_HOPPER_ROWS>(
        shared.k, sw_head_of(t.k, shape.k_stride, shape.seq, batch, kv_head, shape, true), own.first);
    sw_bring_panels<T, DIM, SW_HOPPER_ROWS>(
        shared.v(), sw_head_of(t.v, shape.v_stride, shape.seq, batch, kv_head, shape, true), own.first);
    bring_queries(shape, t, batch, next, shared, 0);
    sw_commit_copies();
    auto bring = [&](int step) {
        next.next(shared.block()->first);
        if (step < steps)
            bring_queries(shape, t, shared.block()->batch, next, shared, step);
        sw_commit_copies();
    };
    key_sums<DIM> sums;
    go_through_queries<T>(shape, shared, steps, bring, sums);
    write_keys<T, DIM, PARTS>(shape, t, *shared.block(), sums);
}

/* Adds the parts of the query heads that share a key head, in their order: a thread for each vector of a tensor. */
template <typename T>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    add_parts_kernel(sw_attention shape, const float *parts, T *to, int64_t stride, int64_t first_batch,
                     int64_t batches) {
    const int64_t vectors = shape.head_dim / SW_ELEMS;
    const int64_t at = (int64_t)blockIdx.x * SW_BLOCK_THREADS + threadIdx.x;
    const int64_t column = at % vectors * SW_ELEMS, token = at / vectors % shape.seq;
    const int64_t item = at / vectors / shape.seq, group = shape.heads / shape.kv_heads;
    if (item >= batches * shape.kv_heads)
        return;
    float sum[SW_ELEMS] = {};
    for (int64_t head = 0; head < group; head++) {
        float part[SW_ELEMS];
        sw_load_elems(parts + ((item * group + head) * shape.seq + token) * shape.head_dim + column, SW_ELEMS, true,
                      part);
        for (int i = 0; i < SW_ELEMS; i++)
            sum[i] += part[i];
    }
    const int64_t row = (first_batch + item / shape.kv_heads) * shape.seq + token;
    sw_store_elems(to + row * stride + item % shape.kv_heads * shape.head_dim + column, SW_ELEMS, true, sum);
}

namespace {
/* The kernel of queries. Three tiles of keys, as products of the step before may still read theirs, and two of values.
 */
enum { KEYS = 128, KEY_STAGES = 3, VALUE_STAGES = 2, KEY_SCORES = KEYS / 2 };

/* Values of a row, in shared memory because registers are short: its log-sum-exp in units of log2(e), delta, and the
 * first key that it sees, counted from the block's first. */
struct query_row {
    float log2_sum, delta;
    int first;
};

template <int DIM> struct query_tiles {
    static constexpr int own_bytes = SW_HOPPER_ROWS * DIM * 2, streamed_bytes = KEYS * DIM * 2;
    static constexpr int bytes = SW_PATTERN_BYTES + 2 * own_bytes + (KEY_STAGES + VALUE_STAGES) * streamed_bytes +
                                 SW_HOPPER_ROWS * (int)sizeof(query_row);
    char *q;
    __device__ char *d_o() const {
        return q + own_bytes;
    }
    __device__ char *keys(int step) const {
        return q + 2 * own_bytes + step % KEY_STAGES * streamed_bytes;
    }
    __device__ char *values(int step) const {
        return q + 2 * own_bytes + (KEY_STAGES + step % VALUE_STAGES) * streamed_bytes;
    }
    __device__ query_row *rows() const {
        return (query_row *)(q + 2 * own_bytes + (KEY_STAGES + VALUE_STAGES) * streamed_bytes);
    }
};

/* A warp's 16 rows, and the last key that the first of them sees. */
struct query_rows {
    const query_row *rows;
    int last;
};
} // namespace

/* Queries beyond the last have rows of zeros, so that their probabilities of 1 add nothing. */
template <typename T>
static __device__ __forceinline__ query_row row_of(const sw_attention &shape, const tensors<T> &t, int64_t batch,
                                                   int64_t item, int64_t token, int64_t begin) {
    query_row row = {};
    const int64_t at = item * shape.seq + token, last = shape.seq - 1;
    row.first = (int)(sw_first_key(shape, batch, token < last ? token : last) - begin);
    if (token <= last) {
        row.log2_sum = t.log_sum_exp[at] * SW_LOG2_E;
        row.delta = t.delta[at];
    }
    return row;
}

static __device__ __forceinline__ void take_probabilities(const query_rows &of, int first_key, float scale_log2,
                                                          float (&p)[KEY_SCORES]) {
    const int g = sw_lane() / 4;
    const query_row rows[2] = {of.rows[g], of.rows[g + 8]};
    SW_UNROLL
    for (int i = 0; i < KEY_SCORES; i++)
        p[i] = sw_exp2(fmaf(p[i], scale_log2, -rows[i % 4 / 2].log2_sum));
    if (of.rows[SW_FRAGMENT_ROWS - 1].first <= first_key && first_key + KEYS - 1 <= of.last)
        return;
    SW_UNROLL
    for (int i = 0; i < KEY_SCORES; i++) {
        const int r = i % 4 / 2;
        const sw_seen seen = {rows[r].first, of.last + g + r * 8};
        p[i] = sw_sees(seen, first_key + sw_sum_column(i)) ? p[i] : 0.0f;
    }
}

static __device__ __forceinline__ void take_gradients(const query_rows &of, const float (&p)[KEY_SCORES],
                                                      float (&ds)[KEY_SCORES]) {
    const float delta[2] = {of.rows[sw_lane() / 4].delta, of.rows[sw_lane() / 4 + 8].delta};
    SW_UNROLL
    for (int i = 0; i < KEY_SCORES; i++)
        ds[i] = p[i] * (ds[i] - delta[i % 4 / 2]);
}

/* A tile of keys meets the warpgroup's 64 queries; the product of its last lines runs on when it returns. */
template <typename T, int DIM, bool FIRST>
static __device__ __forceinline__ void queries_step(const query_tiles<DIM> &shared, const query_rows &rows, int step,
                                                    float scale_log2, float (&dq)[DIM / 2],
                                                    uint32_t (&ds_words)[KEY_SCORES / 2]) {
    const uint32_t row = sw_hopper_group() * SW_WARPGROUP_ROWS * SW_PANEL_ROW_BYTES;
    const uint32_t q = sw_shared_address(shared.q) + row, d_o = sw_shared_address(shared.d_o()) + row;
    const uint32_t k = sw_shared_address(shared.keys(step));
    float p[KEY_SCORES], ds[KEY_SCORES];
    sw_warpgroup_fence();
    sw_start_rows<T, DIM, SW_HOPPER_ROWS, KEYS>(p, q, k);
    sw_warpgroup_commit();
    if (!FIRST) {
        sw_warpgroup_wait<1>();
        sw_finished(ds_words);
    }
    sw_warpgroup_fence();
    sw_start_rows<T, DIM, SW_HOPPER_ROWS, KEYS>(ds, d_o, sw_shared_address(shared.values(step)));
    sw_warpgroup_commit();
    sw_warpgroup_wait<1>();
    sw_finished(p);
    take_probabilities(rows, step * KEYS, scale_log2, p);
    sw_warpgroup_wait<0>();
    sw_finished(ds);
    take_gradients(rows, p, ds);
    sw_round_sums<T>(ds, ds_words);
    sw_warpgroup_fence();
    sw_start_columns<T, FIRST>(dq, ds_words, k);
    sw_warpgroup_commit();
}

/* The block's 128 queries over `steps` tiles of keys, which bring(step) starts to bring. */
template <typename T, int DIM, typename Bring>
static __device__ __forceinline__ void go_through_keys(const query_tiles<DIM> &shared, const query_rows &rows,
                                                       int steps, float scale_log2, Bring bring, float (&dq)[DIM / 2]) {
    uint32_t ds_words[KEY_SCORES / 2];
    sw_end_copies();
    __syncthreads();
    bring(1);
    queries_step<T, DIM, true>(shared, rows, 0, scale_log2, dq, ds_words);
    for (int step = 1; step < steps; step++) {
        sw_end_copies();
        __syncthreads();
        bring(step + 1);
        queries_step<T, DIM, false>(shared, rows, step, scale_log2, dq, ds_words);
    }
    sw_warpgroup_wait<0>();
    sw_finished(dq);
}

template <typename T, int DIM>
static __global__ void __launch_bounds__(SW_HOPPER_THREADS, 1)
    queries_kernel(sw_attention shape, tensors<T> t, sw_hopper_grid grid) {
    SW_DYNAMIC_SHARED(memory);
    SW_STATE_SHARED(query_tiles<DIM>::bytes);
    const query_tiles<DIM> shared = {sw_first_pattern(memory)};
    const sw_hopper_block own = sw_hopper_block_of<true>(grid);
    const int heads = (int)shape.heads, batch = own.item / heads, head = own.item % heads;
    const int kv_head = head / (heads / (int)shape.kv_heads), warp = (int)threadIdx.x / SW_WARP;
    const int64_t begin = sw_first_key(shape, batch, own.first) / KEYS * KEYS;
    const int64_t end = own.first + SW_HOPPER_ROWS < shape.seq ? own.first + SW_HOPPER_ROWS : shape.seq;
    const int steps = (int)((end - begin + KEYS - 1) / KEYS), warp_first = own.first + warp * SW_FRAGMENT_ROWS;
    const sw_head_rows<T> keys = sw_head_of(t.k, shape.k_stride, shape.seq, batch, kv_head, shape, true);
    const sw_head_rows<T> values = sw_head_of(t.v, shape.v_stride, shape.seq, batch, kv_head, shape, true);
    const query_rows rows = {shared.rows() + warp * SW_FRAGMENT_ROWS, (int)(warp_first - begin)};
    if (threadIdx.x < SW_HOPPER_ROWS)
        shared.rows()[threadIdx.x] = row_of(shape, t, batch, own.item, own.first + (int64_t)threadIdx.x, begin);
    auto bring = [&](int step) {
        if (step < steps) {
            sw_bring_panels<T, DIM, KEYS>(shared.keys(step), keys, begin + (int64_t)step * KEYS);
            sw_bring_panels<T, DIM, KEYS>(shared.values(step), values, begin + (int64_t)step * KEYS);
        }
        sw_commit_copies();
    };
    sw_bring_panels<T, DIM, SW_HOPPER_ROWS>(
        shared.q, sw_head_of(t.q, shape.q_stride, shape.seq, batch, head, shape, true), own.first);
    sw_bring_panels<T, DIM, SW_HOPPER_ROWS>(
        shared.d_o(), sw_head_of(t.d_o, shape.o_stride, shape.seq, batch, head, shape, true), own.first);
    bring(0);
    float dq[DIM / 2];
    go_through_keys<T>(shared, rows, steps, shape.scale * SW_LOG2_E, bring, dq);
    const float scaled[2] = {shape.scale, shape.scale};
    sw_write_sums(dq, scaled, gradient_rows(shape, t.dq, shape.q_stride, batch, head, warp_first));
}

/* Sequences whose parts are in scratch at once: as many as fill a GPU with blocks several times over. */
static int64_t sequences_at_once(const sw_attention *shape) {
    enum { BLOCKS = 1024 };
    const int64_t blocks = shape->heads * sw_blocks(shape->seq, SW_HOPPER_ROWS),
                  enough = (BLOCKS + blocks - 1) / blocks;
    return enough < shape->batch ? enough : shape->batch;
}

static int64_t part_elems(const sw_attention *shape) {
    const int64_t sequences = shape->heads == shape->kv_heads ? 0 : sequences_at_once(shape);
    return sequences * shape->heads * shape->seq * shape->head_dim;
}

/* Returns the bytes of delta, rounded up so that the next area is aligned. */
static int64_t delta_bytes(const sw_attention *shape) {
    const int64_t bytes = shape->batch * shape->heads * shape->seq * (int64_t)sizeof(float);
    return (bytes + SW_PATTERN_BYTES - 1) / SW_PATTERN_BYTES * SW_PATTERN_BYTES;
}

int64_t sw_cuda_hopper_attention_scratch_bytes(const struct sw_attention *shape, sw_dtype type) {
    (void)type;
    return delta_bytes(shape) + 2 * part_elems(shape) * (int64_t)sizeof(float);
}

template <typename T, int DIM, bool PARTS>
static void launch_keys(cudaStream_t stream, const sw_attention &shape, const tensors<T> &t, int64_t first_batch,
                        int64_t items) {
    const sw_hopper_grid grid = sw_hopper_grid_of(&shape, items);
    SW_ALLOW_SHARED((keys_kernel<T, DIM, PARTS>), key_tiles<DIM>::bytes);
    SW_LAUNCH((keys_kernel<T, DIM, PARTS>), grid.tiles * grid.items, SW_HOPPER_THREADS, key_tiles<DIM>::bytes, stream,
              shape, t, grid, (int)first_batch);
}

template <typename T, int DIM>
static void backward_keys(cudaStream_t stream, const sw_attention &shape, const tensors<T> &t) {
    if (shape.heads == shape.kv_heads) {
        launch_keys<T, DIM, false>(stream, shape, t, 0, shape.batch * shape.kv_heads);
        return;
    }
    const int64_t at_once = sequences_at_once(&shape);
    for (int64_t first = 0; first < shape.batch; first += at_once) {
        const int64_t count = shape.batch - first < at_once ? shape.batch - first : at_once;
        const unsigned blocks =
            sw_blocks(count * shape.kv_heads * shape.seq * shape.head_dim, SW_BLOCK_THREADS * SW_ELEMS);
        launch_keys<T, DIM, true>(stream, shape, t, first, count * shape.heads);
        SW_LAUNCH(add_parts_kernel<T>, blocks, SW_BLOCK_THREADS, 0, stream, shape, t.dk_parts, t.dk, shape.k_stride,
                  first, count);
        SW_LAUNCH(add_parts_kernel<T>, blocks, SW_BLOCK_THREADS, 0, stream, shape, t.dv_parts, t.dv, shape.v_stride,
                  first, count);
    }
}

template <typename T, int DIM>
static void backward_dim(cudaStream_t stream, const sw_attention *shape, const tensors<T> &t) {
    static_assert(key_tiles<DIM>::bytes <= SW_HOPPER_SHARED_BYTES && query_tiles<DIM>::bytes <= SW_HOPPER_SHARED_BYTES,
                  "a GPU refuses the launch otherwise");
    const sw_hopper_grid grid = sw_hopper_grid_of(shape, shape->batch * shape->heads);
    backward_keys<T, DIM>(stream, *shape, t);
    SW_ALLOW_SHARED((queries_kernel<T, DIM>), query_tiles<DIM>::bytes);
    SW_LAUNCH((queries_kernel<T, DIM>), grid.tiles * grid.items, SW_HOPPER_THREADS, query_tiles<DIM>::bytes, stream,
              *shape, t, grid);
}

template <typename T> static void backward(cudaStream_t stream, const sw_attention_backward *op) {
    const sw_attention *shape = op->shape;
    float *const delta = (float *)op->scratch, *const parts = (float *)((char *)op->scratch + delta_bytes(shape));
    sw_launch_delta(stream, shape, (const T *)op->o, (const T *)op->d_o, delta);
    const tensors<T> t = {(const T *)op->q,
                          (const T *)op->k,
                          (const T *)op->v,
                          (const T *)op->d_o,
                          op->log_sum_exp,
                          delta,
                          (T *)op->dq,
                          (T *)op->dk,
                          (T *)op->dv,
                          parts,
                          parts + part_elems(shape)};
    SW_HOPPER_FOR_DIM(T, shape->head_dim, backward_dim, stream, shape, t);
}

void sw_cuda_hopper_attention_backward(cudaStream_t stream, const void *args) {
    const sw_attention_backward *op = (const sw_attention_backward *)args;
    SW_HOPPER_FOR_TYPE(op->type, backward, stream, op);
}
