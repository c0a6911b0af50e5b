/* Attention, forward, for GPUs of capability 9.0: each warpgroup takes 64 queries over all keys that they see, keeping
 * for each query the greatest score and the sum of exponentials so far (FlashAttention-2, algorithm 1). The scores of
 * the next tile and the values of this one are multiplied while exponentials are taken (FlashAttention-3). */
#include "kernels/cuda/attention/hopper.cuh"

namespace {
enum { KEYS = 128, STAGES = 2, SCORES = KEYS / 2 };

/* State that a lane keeps for its two queries. The greatest score is yet to be scaled. */
struct query_state {
    float max[2], sum[2];
};

/* The block's tiles in shared memory; keys and values take turns in theirs. */
template <int DIM> struct tiles {
    static constexpr int q_bytes = SW_HOPPER_ROWS * DIM * 2, kv_bytes = KEYS * DIM * 2;
    static constexpr int bytes = SW_PATTERN_BYTES + q_bytes + 2 * STAGES * kv_bytes;
    char *q;
    __device__ char *keys(int step) const {
        return q + q_bytes + step % STAGES * kv_bytes;
    }
    __device__ char *values(int step) const {
        return q + q_bytes + (STAGES + step % STAGES) * kv_bytes;
    }
};

template <typename T> struct tensors {
    const T *q, *k, *v;
    T *o;
    float *log_sum_exp;
};
} // namespace

static __device__ __forceinline__ void hide_scores(const sw_warp_seen &seen, int first_key, float (&scores)[SCORES]) {
    if (sw_all_see(seen, first_key, KEYS))
        return;
    SW_UNROLL
    for (int i = 0; i < SCORES; i++) {
        if (!sw_sees(seen.rows[i % 4 / 2], first_key + sw_sum_column(i)))
            scores[i] = -INFINITY;
    }
}

/* Turns scores into exponentials; factors[r] rescales earlier sums to the new maximum. */
static __device__ __forceinline__ void take_scores(query_state *s, float (&scores)[SCORES], float factors[2],
                                                   float scale_log2) {
    SW_UNROLL
    for (int r = 0; r < 2; r++) {
        float max = s->max[r];
        SW_UNROLL
        for (int i = 2 * r; i < SCORES; i += 4)
            max = fmaxf(max, fmaxf(scores[i], scores[i + 1]));
        max = sw_quad_max(max);
        const float base = sw_base_of(max, scale_log2);
        factors[r] = sw_max_factor(s->max[r], max, scale_log2);
        s->max[r] = max;
        float sums[2] = {s->sum[r] * factors[r], 0.0f};
        SW_UNROLL
        for (int i = 2 * r; i < SCORES; i += 4) {
            for (int e = 0; e < 2; e++) {
                scores[i + e] = sw_exp2(fmaf(scores[i + e], scale_log2, -base));
                sums[e] += scores[i + e];
            }
        }
        s->sum[r] = sums[0] + sums[1];
    }
}

/* Most tiles leave every maximum of a warp as it was. */
template <int COUNT> static __device__ __forceinline__ void rescale(float (&out)[COUNT], const float factors[2]) {
    if (__ballot_sync(SW_ALL_LANES, factors[0] != 1.0f || factors[1] != 1.0f) == 0)
        return;
    SW_UNROLL
    for (int i = 0; i < COUNT; i++)
        out[i] *= factors[i % 4 / 2];
}

/* `first` is the warp's first query. */
template <typename T, int DIM>
static __device__ __forceinline__ void write_queries(const sw_attention &shape, const query_state &s,
                                                     const float (&out)[DIM / 2], int64_t batch, int64_t head,
                                                     int64_t first, const tensors<T> &t) {
    float factors[2];
    for (int r = 0; r < 2; r++) {
        const float sum = sw_quad_sum(s.sum[r]);
        const int64_t token = first + sw_lane() / 4 + r * 8;
        factors[r] = 1.0f / sum;
        if (token < shape.seq && sw_lane() % 4 == 0)
            t.log_sum_exp[(batch * shape.heads + head) * shape.seq + token] =
                s.max[r] * (shape.scale * SW_LOG2_E) * SW_LN_2 + logf(sum);
    }
    const sw_rows_to<T> rows = {t.o + (batch * shape.seq + first) * shape.o_stride + head * shape.head_dim,
                                shape.o_stride, shape.seq - first, (int)shape.head_dim, true};
    sw_write_sums(out, factors, rows);
}

/* The block of 128 queries over its `steps` tiles of keys. bring(step) starts to bring the values of a tile and the
 * keys of the next, where there are some. */
template <typename T, int DIM, typename Bring>
static __device__ __forceinline__ void go_through(const tiles<DIM> &shared, const sw_warp_seen &seen, int steps,
                                                  float scale_log2, Bring bring, query_state *state,
                                                  float (&out)[DIM / 2]) {
    const uint32_t q = sw_shared_address(shared.q) + sw_hopper_group() * SW_WARPGROUP_ROWS * SW_PANEL_ROW_BYTES;
    float scores[SCORES], factors[2];
    uint32_t p[SCORES / 2];
    sw_end_copies();
    __syncthreads();
    bring(0);
    sw_warpgroup_fence();
    sw_start_rows<T, DIM, SW_HOPPER_ROWS, KEYS>(scores, q, sw_shared_address(shared.keys(0)));
    sw_warpgroup_commit();
    sw_warpgroup_wait<0>();
    sw_finished(scores);
    hide_scores(seen, 0, scores);
    take_scores(state, scores, factors, scale_log2);
    sw_round_sums<T>(scores, p);
    for (int step = 0; step + 1 < steps; step++) {
        sw_end_copies();
        __syncthreads();
        bring(step + 1);
        sw_warpgroup_fence();
        sw_start_rows<T, DIM, SW_HOPPER_ROWS, KEYS>(scores, q, sw_shared_address(shared.keys(step + 1)));
        sw_warpgroup_commit();
        sw_start_columns<T, false>(out, p, sw_shared_address(shared.values(step)));
        sw_warpgroup_commit();
        sw_warpgroup_wait<1>();
        sw_finished(scores);
        hide_scores(seen, (step + 1) * KEYS, scores);
        take_scores(state, scores, factors, scale_log2);
        sw_warpgroup_wait_behind(state->sum[0] + state->sum[1]);
        sw_finished(out);
        sw_finished(p);
        rescale(out, factors);
        sw_round_sums<T>(scores, p);
    }
    sw_end_copies();
    __syncthreads();
    sw_warpgroup_fence();
    sw_start_columns<T, false>(out, p, sw_shared_address(shared.values(steps - 1)));
    sw_warpgroup_commit();
    sw_warpgroup_wait<0>();
    sw_finished(out);
}

template <typename T, int DIM>
static __global__ void __launch_bounds__(SW_HOPPER_THREADS, 1)
    forward_kernel(sw_attention shape, tensors<T> t, sw_hopper_grid grid) {
    SW_DYNAMIC_SHARED(memory);
    SW_STATE_SHARED(tiles<DIM>::bytes);
    const tiles<DIM> shared = {sw_first_pattern(memory)};
    const sw_hopper_block own = sw_hopper_block_of<true>(grid);
    const int heads = (int)shape.heads, batch = own.item / heads, head = own.item % heads;
    const int kv_head = head / (heads / (int)shape.kv_heads);
    const int64_t all_keys = shape.past + shape.seq, past_last = shape.past + own.first + SW_HOPPER_ROWS;
    const int64_t begin = sw_first_key(shape, batch, shape.past + own.first) / KEYS * KEYS;
    const int64_t end = past_last < all_keys ? past_last : all_keys;
    const int steps = (int)((end - begin + KEYS - 1) / KEYS);
    const int warp_first = own.first + (int)threadIdx.x / SW_WARP * SW_FRAGMENT_ROWS;
    const sw_head_rows<T> queries = sw_head_of(t.q, shape.q_stride, shape.seq, batch, head, shape, true);
    const sw_head_rows<T> keys = sw_head_of(t.k, shape.k_stride, all_keys, batch, kv_head, shape, true);
    const sw_head_rows<T> values = sw_head_of(t.v, shape.v_stride, all_keys, batch, kv_head, shape, true);
    const sw_warp_seen seen = sw_warp_seen_of(shape, batch, warp_first, begin);
    sw_bring_panels<T, DIM, SW_HOPPER_ROWS>(shared.q, queries, own.first);
    sw_bring_panels<T, DIM, KEYS>(shared.keys(0), keys, begin);
    sw_commit_copies();
    auto bring = [&](int step) {
        sw_bring_panels<T, DIM, KEYS>(shared.values(step), values, begin + (int64_t)step * KEYS);
        if (step + 1 < steps)
            sw_bring_panels<T, DIM, KEYS>(shared.keys(step + 1), keys, begin + (int64_t)(step + 1) * KEYS);
        sw_commit_copies();
    };
    query_state state = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
    float out[DIM / 2] = {};
    go_through<T>(shared, seen, steps, shape.scale * SW_LOG2_E, bring, &state, out);
    write_queries<T, DIM>(shape, state, out, batch, head, warp_first, t);
}

template <typename T, int DIM>
static void forward_dim(cudaStream_t stream, const sw_attention *shape, const tensors<T> &t) {
    const sw_hopper_grid grid = sw_hopper_grid_of(shape, shape->batch * shape->heads);
    static_assert(tiles<DIM>::bytes <= SW_HOPPER_SHARED_BYTES, "a GPU refuses the launch otherwise");
    SW_ALLOW_SHARED((forward_kernel<T, DIM>), tiles<DIM>::bytes);
    SW_LAUNCH((forward_kernel<T, DIM>), grid.tiles * grid.items, SW_HOPPER_THREADS, tiles<DIM>::bytes, stream, *shape,
              t, grid);
}

template <typename T> static void forward(cudaStream_t stream, const sw_attention_forward *op) {
    const tensors<T> t = {(const T *)op->q, (const T *)op->k, (const T *)op->v, (T *)op->o, op->log_sum_exp};
    SW_HOPPER_FOR_DIM(T, op->shape->head_dim, forward_dim, stream, op->shape, t);
}

bool sw_cuda_hopper_attention_serves(const struct sw_attention *shape, sw_dtype type) {
    const int64_t piece = SW_PIECE_BYTES / 2;
    const bool plain = shape->alibi_heads == 0 && sw_attention_head_stride(shape) == shape->head_dim;
    return plain && type != SW_F32 && shape->head_dim <= 128 && shape->head_dim % piece == 0 &&
           shape->q_stride % piece == 0 && shape->k_stride % piece == 0 && shape->v_stride % piece == 0 &&
           shape->o_stride % piece == 0 &&
           shape->batch * shape->heads * sw_blocks(shape->seq, SW_HOPPER_ROWS) <= INT32_MAX;
}

void sw_cuda_hopper_attention_forward(cudaStream_t stream, const void *args) {
    const sw_attention_forward *op = (const sw_attention_forward *)args;
    SW_HOPPER_FOR_TYPE(op->type, forward, stream, op);
}
