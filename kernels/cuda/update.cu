/* AdamW with the bits of kernels/ref/update.c: the same operations, none of them fused but those written out. */
#include "kernels/cuda/adamw.cuh"
extern "C" {
#include "kernels/moments.h"
}

namespace {
/* A call's grains with fp32 moments: all grains of fp32 state, the wide grains of narrow state, and in a skipped step
 * any grain, because its moments do not matter. */
struct update {
    struct sw_adamw_scalars scalars;
    bool skip, aligned;
    char *records;
    int64_t record_bytes;
    int plane_elems; /* floats of the master, which m and v follow; the grain's other elements are padding */
};
} // namespace

static __device__ __forceinline__ int in_grain(int64_t at) {
    return (int)(at & (SW_GRAIN_ELEMS - 1));
}
static_assert((SW_GRAIN_ELEMS & (SW_GRAIN_ELEMS - 1)) == 0, "a grain's elements are counted by the low bits");

/* Returns the address of a vector's master weights in the optimizer state; the two moments are one and two planes on.
 */
static __device__ __forceinline__ float *record_at(const update &u, int64_t at) {
    return (float *)(u.records + at / SW_GRAIN_ELEMS * u.record_bytes) + in_grain(at);
}

/* Updates a whole vector that is in one span and in aligned memory, as nearly all vectors of a call are. */
template <typename T>
static __device__ __forceinline__ void update_whole(const update &u, const sw_span_values &span, int64_t at,
                                                    const sw_gradients<T> &grads, T *weights) {
    float *record = record_at(u, at), master[SW_ELEMS], m[SW_ELEMS], v[SW_ELEMS], gradients[SW_ELEMS];
    sw_load_whole(record, master);
    sw_load_whole(record + u.plane_elems, m);
    sw_load_whole(record + 2 * u.plane_elems, v);
    grads.load(at, true, gradients);
    for (int i = 0; i < SW_ELEMS; i++)
        sw_update_elem(u.scalars, span, gradients[i], &master[i], &m[i], &v[i]);
    sw_store_whole(record, master);
    sw_store_whole(record + u.plane_elems, m);
    sw_store_whole(record + 2 * u.plane_elems, v);
    if (weights != NULL)
        sw_store_whole(weights + at, master);
}

/* Updates the elements [begin, end) of a vector, one by one. */
template <typename T>
static __device__ __forceinline__ void update_part(const update &u, const sw_stretch &s, int64_t at, int begin, int end,
                                                   const sw_gradients<T> &grads, T *weights) {
    float *record = record_at(u, at);
    for (int i = begin; i < end; i++) {
        const bool padding = in_grain(at) >= u.plane_elems;
        float master = padding ? 0.0f : record[i];
        const int span = u.skip || padding ? 0 : sw_span_of(s, at + i);
        if (!u.skip && !padding && !s.left_out[span]) {
            float *m = &record[u.plane_elems + i], *v = &record[2 * u.plane_elems + i];
            sw_update_elem(u.scalars, sw_values_of(s, span), grads.at(at + i), &master, m, v);
            record[i] = master;
        }
        if (weights != NULL)
            sw_round(master, &weights[at + i]);
    }
}

/* A stretch may start or stop within a vector. */
template <typename T>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    update_kernel(update u, sw_stretch s, sw_gradients<T> grads, T *weights) {
    const int64_t thread = (int64_t)blockIdx.x * SW_BLOCK_THREADS + threadIdx.x;
    const int64_t at = s.first / SW_ELEMS * SW_ELEMS + thread * SW_ELEMS;
    if (at >= s.end)
        return;
    const int begin = at < s.first ? (int)(s.first - at) : 0;
    const int end = s.end - at < SW_ELEMS ? (int)(s.end - at) : (int)SW_ELEMS;
    const int span = u.skip ? 0 : sw_span_of(s, at + begin);
    if (u.aligned && !u.skip && !s.left_out[span] && in_grain(at) < u.plane_elems && begin == 0 &&
        at + SW_ELEMS <= s.ends[span])
        update_whole(u, sw_values_of(s, span), at, grads, weights);
    else
        update_part(u, s, at, begin, end, grads, weights);
}

template <typename T>
static void update_stretch(cudaStream_t stream, const struct sw_update_adamw *op, update u, sw_stretch s) {
    const int64_t vectors = (s.end - s.first / SW_ELEMS * SW_ELEMS + SW_ELEMS - 1) / SW_ELEMS;
    SW_LAUNCH(update_kernel<T>, sw_blocks(vectors, SW_BLOCK_THREADS), SW_BLOCK_THREADS, 0, stream, u, s,
              sw_gradients_of<T>(op), (T *)op->weights);
}

/* Updates the elements [first, end) of a call, whose records have planes of plane_elems floats. */
static void update_wide(cudaStream_t stream, const struct sw_update_adamw *op, int64_t first, int64_t end,
                        int plane_elems) {
    const bool aligned =
        sw_is_aligned(op->records) && sw_is_aligned(op->weights) && (op->adamw->skip || sw_is_aligned(op->grads));
    const update u = {sw_adamw_scalars(op->adamw), op->adamw->skip, aligned, (char *)op->records,
                      sw_update_record_bytes(op),  plane_elems};
    while (first < end) {
        const sw_stretch s = sw_next_stretch(&u.scalars, op, first, end);
        SW_FOR_TYPE(op->type, update_stretch, stream, op, u, s);
        first = s.end;
    }
}

void sw_cuda_update_adamw(cudaStream_t stream, const void *args) {
    const sw_update_adamw *op = (const sw_update_adamw *)args;
    const int64_t elems = op->grains * SW_GRAIN_ELEMS, before_wide = op->wide_elem - op->first_elem;
    const int64_t narrow = sw_max_i64(0, sw_min_i64(elems, before_wide));
    if (op->format == SW_OPTIMIZER_FP32) {
        update_wide(stream, op, 0, elems, SW_GRAIN_ELEMS);
        return;
    }
    if (op->adamw->skip)
        update_wide(stream, op, 0, narrow, SW_GRAIN_ELEMS);
    else
        sw_cuda_update_narrow(stream, op, narrow);
    update_wide(stream, op, narrow, elems, SW_WIDE_GRAIN_ELEMS);
}
