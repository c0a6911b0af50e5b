/* Attention, backward, for GPUs of capability 9.0 (FlashAttention-2, algorithm 2, without its atomic sums): one kernel
 * makes the gradients of keys and values, a block for 128 keys over the queries that see them; another those of
 * queries. Both work out the scores again. Where several query heads share a key head, each has blocks of its own that
 * leave their sums in scratch, and a third kernel adds those in the order of heads. */
#include "kernels/cuda/attention/delta.cuh"
#include "kernels/cuda/attention/hopper_keys.cuh"

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

/* Rounded up, so that what follows is aligned. */
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
